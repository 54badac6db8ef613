"""Making a backup: copy the database, check the copy, store new chunks, and write the manifest."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec

from tailrace import extras, failpoints, limits
from tailrace.backup import cold_files
from tailrace.backup.archives import is_archive, must_be_new, pack_archive
from tailrace.backup.manifest import (
    COLD,
    DATABASE,
    KEY,
    BackupFile,
    Chunk,
    Manifest,
    decode,
    digest,
    encode,
    manifest_name,
    object_name,
    pack,
    unpack,
)
from tailrace.backup.targets import BackupTarget, open_target, translated_disk_errors
from tailrace.check import check_database
from tailrace.cold.store import Store
from tailrace.errors import Corrupt, Error, Invalid, Unavailable
from tailrace.jobs.identity import NAME as IDENTITY
from tailrace.log.cold import COLD_RANGES
from tailrace.storage.modes import write_private
from tailrace.storage.sqlite import FILE, SqliteEngine
from tailrace.storage.table import META

T = TypeVar("T")
R = TypeVar("R")
Progress = Callable[[str, int, int], None]  # step, done, total
SECRET_KEY: Final = "secret.key"  # beside the database, if its encryption key is in a file


class BackupSource(Protocol):
    """The engine of a database that is backed up."""

    @property
    def directory(self) -> Path | None:
        """Where the key of its secrets is, if it is in a file."""

    def copy_to(self, path: Path, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Copy the database as it is at this moment into a new file of SQLite, the portable form."""

    def close(self) -> None: ...


def open_source(data: str | os.PathLike[str], database: str | None = None) -> BackupSource:
    """Open the database in a directory, or at a URL, for a backup; a server may have it open."""
    if database is None:
        return SqliteEngine(data, read_only=True)
    extras.require("postgres")
    from tailrace.storage.postgres import PostgresEngine  # an optional package

    return PostgresEngine(database, data, read_only=True)


class BackupResult(msgspec.Struct, frozen=True):
    """The outcome of a backup."""

    target: str
    manifest: Manifest
    removed: tuple[str, ...]  # generations beyond `keep`


def back_up(
    engine: BackupSource,
    target: str | os.PathLike[str],
    *,
    cold: Store,
    keep: int | None = None,
    deep: bool = False,
    options: Mapping[str, str] | None = None,
    on_progress: Progress | None = None,
) -> BackupResult:
    """Back up a database with its cold storage, while it is in use; returns when all of it is durable and was checked.

    `keep`: the number of generations to keep; older ones are removed afterwards. `deep`: read all of cold storage while
    checking it, and read back every object of the generation. `options`: of the target, if it is a bucket."""
    advance = on_progress or (lambda what, done, total: None)
    if keep is not None and keep < 1:
        raise Invalid(f"{keep} is not a number of generations to keep; use 1 or more")
    if not is_archive(target):
        with closing(open_target(target, writing=True, options=options)) as opened:
            return _Backup(engine, cold, opened, deep, advance).make(keep)
    path = Path(target)
    must_be_new(path)
    folder = path.absolute().with_name(f".{path.name}.partial-{secrets.token_hex(4)}")
    try:
        with closing(open_target(folder, writing=True)) as opened:
            made = _Backup(engine, cold, opened, deep, advance).make(None)
        advance("writing the archive", 0, 1)
        pack_archive(folder, path)
        advance("writing the archive", 1, 1)
        return msgspec.structs.replace(made, target=str(path))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Backup:
    """A backup in progress."""

    def __init__(self, engine: BackupSource, cold: Store, target: BackupTarget, deep: bool, advance: Progress) -> None:
        self._engine, self._cold, self._target = engine, cold, target
        self._deep, self._advance = deep, advance
        self._written = 0
        self._done = self._total = 0
        self._readable = True  # whether all existing manifests could be read
        self._earlier = self._manifests()
        present = target.list("objects")
        known = {digest: stored for each in self._earlier for digest, stored in each.chunks().items()}
        # An object without a generation may be of an interrupted backup to a bucket, and incomplete: write it again.
        self._known = {digest: stored for digest, stored in known.items() if present.get(object_name(digest)) == stored}

    def make(self, keep: int | None) -> BackupResult:
        snapshots = cold_files.snapshots_now(self._cold)
        scratch = self._target.scratch()
        try:
            manifest = self._stored(scratch, snapshots)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        failpoints.hit("backup.stored")
        self._verify(manifest)
        self._target.write(manifest_name(manifest.id), encode(manifest))
        removed = self._prune(manifest, keep)
        return BackupResult(self._target.url, manifest, removed)

    def _manifests(self) -> list[Manifest]:
        found = []
        for name in sorted(self._target.list("generations")):
            if not name.endswith(".json"):
                continue
            try:
                found.append(decode(self._target.read(name), f"{self._target.url}/{name}"))
            except Error:
                self._readable = False  # it is kept, and so are all objects that it may refer to
        return found

    # -- the copy

    def _stored(self, scratch: Path, snapshots: dict[str, int]) -> Manifest:
        copy = scratch / FILE
        made_ms = time.time_ns() // 1_000_000
        try:
            self._engine.copy_to(copy, lambda done, total: self._advance("copying the database", done, total))
        except Unavailable as error:
            if error.code != "DISK_FULL":
                raise
            raise Unavailable(
                f"there is no space left at {str(scratch.parent)!r} for a copy of the database; free some, and run the "
                "backup again",
                code="BACKUP_DISK_FULL",
            ) from error
        key = (self._engine.directory or scratch) / SECRET_KEY
        if self._engine.directory is not None and key.is_file():
            write_private(scratch / SECRET_KEY, key.read_bytes())  # the copy is checked with it
        failpoints.hit("backup.copied")
        tiered = self._check(scratch)
        with closing(SqliteEngine(scratch, read_only=True)) as opened, opened.reader() as reader:
            known = reader.get(META, IDENTITY)
            schema = opened.version()
            cold_tables = cold_files.tables_of(reader, self._cold, snapshots) if tiered or snapshots else []
        sources = [
            (cold_table, source) for cold_table in cold_tables for source in cold_files.files_of(self._cold, cold_table)
        ]
        self._total = copy.stat().st_size + sum(source.size for _, source in sources)
        files = [self._file(DATABASE, _local_chunks(copy), limits.BACKUP_CHUNK_BYTES)]
        key = scratch / SECRET_KEY
        if key.is_file():
            files.append(self._file(KEY, _local_chunks(key), limits.BACKUP_CHUNK_BYTES))
        files += self._cold_files([source for _, source in sources])
        return Manifest(
            id=_new_id(made_ms, self._earlier),
            made_ms=made_ms,
            tailrace=version("tailrace"),
            engine="sqlite",
            schema=schema,
            identity=None if known is None else known.value.decode(),
            cold_url=self._cold.url if cold_tables else None,
            places=tuple(cold_tables),
            files=tuple(files),
            written_bytes=self._written,
        )

    def _check(self, scratch: Path) -> bool:
        """Raise if the copy is damaged; True if it refers to cold storage."""
        report = check_database(
            scratch,
            on_progress=self._advance,
            cold=self._cold.url,
            cold_options=self._cold.storage_options,
            deep=self._deep,
            without_key=True,
        )
        if report.findings:
            raise Corrupt(
                f"the database is damaged, and was not backed up: {report.findings[0]} ({len(report.findings)} "
                "findings); run `tailrace check`, and restore an earlier backup"
            )
        with closing(SqliteEngine(scratch, read_only=True)) as opened, opened.reader() as reader:
            return next(reader.scan(COLD_RANGES, limit=1), None) is not None

    # -- chunks

    def _cold_files(self, sources: list[cold_files.ColdSource]) -> Iterator[BackupFile]:
        before = {file.path: file for each in self._earlier for file in each.files}
        for source in sources:
            path = COLD + source.path
            same = before.get(path)
            if source.immutable and same is not None and same.size == source.size and self._has(same):
                self._step(source.size)
                yield same
                continue
            chunks = cold_files.read_chunks(self._cold, source, limits.BACKUP_COLD_CHUNK_BYTES)
            yield self._file(path, chunks, limits.BACKUP_COLD_CHUNK_BYTES)

    def _has(self, file: BackupFile) -> bool:
        return all(self._known.get(chunk.hash) == chunk.stored for chunk in file.chunks)

    def _file(self, path: str, content: Iterable[bytes], chunk_bytes: int) -> BackupFile:
        whole = blake2b(digest_size=32)
        size = 0

        def seen() -> Iterator[bytes]:
            nonlocal size
            for data in content:
                whole.update(data)
                size += len(data)
                yield data

        chunks = tuple(in_parallel(self._chunk, seen()))
        return BackupFile(path, size, whole.hexdigest(), chunk_bytes, chunks)

    def _chunk(self, data: bytes) -> Chunk:
        named = digest(data)
        stored = self._known.get(named)
        if stored is None:
            packed = pack(data)
            stored = len(packed)
            self._target.write(object_name(named), packed)
            failpoints.hit("backup.object")
            self._known[named] = stored
            self._written += stored
        self._step(len(data))
        return Chunk(named, stored)

    def _step(self, size: int) -> None:
        self._done += size
        self._advance("storing", self._done, self._total)

    # -- the end

    def _verify(self, manifest: Manifest) -> None:
        """Check that all objects exist and have the right size; `deep`: and the right content."""
        present = self._target.list("objects")
        for file in manifest.files:
            for chunk in file.chunks:
                if present.get(chunk.object) != chunk.stored:
                    raise Unavailable(
                        f"{self._target.url}/{chunk.object} was removed or changed by others while the backup was "
                        "made; run it again, one at a time",
                        code="BACKUP_INTERRUPTED",
                    )
        if self._deep:
            verify_objects(self._target, manifest, self._advance)

    def _prune(self, manifest: Manifest, keep: int | None) -> tuple[str, ...]:
        """Remove generations beyond `keep`, and then objects without a generation."""
        if not self._readable:
            return ()
        everything = sorted([*self._earlier, manifest], key=lambda each: each.id)
        kept = everything if keep is None else everything[-keep:]
        gone = [each for each in everything if each not in kept]
        for each in gone:
            self._target.remove(manifest_name(each.id))
        used = {digest for each in kept for digest in each.chunks()}
        for name in self._target.list("objects"):
            if name.rpartition("/")[2] not in used:
                self._target.remove(name, unused=True)
        return tuple(each.id for each in gone)


def verify_objects(target: BackupTarget, manifest: Manifest, advance: Progress) -> None:
    """Read every object of a generation. Raises `Corrupt` with the name of a damaged one."""
    total, done = manifest.bytes, 0
    for file in manifest.files:
        for data in in_parallel(partial(read_part, target, file), parts_of(file)):
            done += len(data)
            advance("reading back", done, total)


def parts_of(file: BackupFile) -> Iterator[tuple[Chunk, int]]:
    """The chunks of a file with the size of each."""
    for number, chunk in enumerate(file.chunks):
        yield chunk, min(file.chunk_bytes, file.size - number * file.chunk_bytes)


def read_part(target: BackupTarget, file: BackupFile, part: tuple[Chunk, int]) -> bytes:
    """The content of a chunk; raises `Corrupt` if it is damaged."""
    chunk, size = part
    where = f"{target.url}/{chunk.object}"
    try:
        stored = target.read(chunk.object)
    except FileNotFoundError as error:
        raise Corrupt(f"the backup is damaged: {where} is missing, a part of {file.path!r}; restore another") from error
    data = unpack(stored, size)
    if data is None or digest(data) != chunk.hash:
        raise Corrupt(
            f"the backup is damaged: {where} was changed, a part of {file.path!r}; restore another "
            "generation, or remove that object and back up again"
        )
    return data


def in_parallel(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """The results in order; a few items are processed at once, and no more are held in memory."""
    with ThreadPoolExecutor(limits.BACKUP_THREADS, "tailrace-backup") as pool:
        under_way: deque[Future[R]] = deque()
        try:
            for item in items:
                under_way.append(pool.submit(work, item))
                if len(under_way) > limits.BACKUP_THREADS:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()


def _local_chunks(path: Path) -> Iterator[bytes]:
    with translated_disk_errors(str(path)), path.open("rb") as file:
        while data := file.read(limits.BACKUP_CHUNK_BYTES):
            yield data


def _new_id(made_ms: int, earlier: list[Manifest]) -> str:
    """A name that sorts by time, also after the clock was set back."""
    last = max((each.made_ms for each in earlier), default=0)
    at_s, ms = divmod(max(made_ms, last + 1), 1000)
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(at_s))}-{ms:03d}-{secrets.token_hex(2)}"
