"""Restoring a backup: into a temporary directory, which is verified and then renamed."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from hashlib import blake2b
from pathlib import Path

import msgspec
import pyarrow.fs

from tailrace import extras
from tailrace.backup.archives import is_archive, unpack_archive
from tailrace.backup.making import SECRET_KEY, Progress, in_parallel, parts_of, read_part
from tailrace.backup.manifest import COLD, DATABASE, BackupFile, Manifest, decode
from tailrace.backup.targets import BackupTarget, make_folder, open_target, sync, translated_disk_errors
from tailrace.check import check_database
from tailrace.cold.store import Store
from tailrace.cold.writing import hand_over
from tailrace.errors import Corrupt, Error, Invalid, NotFound
from tailrace.jobs.identity import BecomeAnother
from tailrace.storage.sqlite import FILE, SqliteEngine

Step = Callable[[int], None]  # bytes done


class RestoreResult(msgspec.Struct, frozen=True):
    """The outcome of a restore."""

    data: str
    manifest: Manifest
    cold_url: str | None  # the URL of its cold storage; None if it has none


def generations(
    source: str | os.PathLike[str], *, options: Mapping[str, str] | None = None
) -> list[Manifest | Corrupt]:
    """The backups in a target, the oldest first. A damaged manifest is represented by its error."""
    with _opened(source, Path(source).absolute().parent if is_archive(source) else None, options) as target:
        return _found(target)


def restore(
    source: str | os.PathLike[str],
    data: str | os.PathLike[str],
    *,
    generation: str | None = None,
    cold: Store | None = None,
    as_copy: bool = False,
    deep: bool = False,
    database: str | None = None,
    options: Mapping[str, str] | None = None,
    on_progress: Progress | None = None,
) -> RestoreResult:
    """Restore a database into a new or empty directory; the newest generation, unless one is named. `database`: the URL
    of an empty one in PostgreSQL, for the rows; the directory gets the rest.

    Cold storage is restored to the directory `cold` in it, or to `cold`, which must be empty. Every chunk is compared
    with its hash, and the database is checked, before the directory gets its name. `deep`: all of cold storage is read.

    The restored database has the same identity: offsets and iterators of the original stay valid. `as_copy`: it gets a
    new identity, for use beside the original, and rejects iterators of the original."""
    advance = on_progress or (lambda what, done, total: None)
    path = Path(data).absolute()
    _refuse_existing(path, str(data))
    with translated_disk_errors(str(path.parent)):
        make_folder(path.parent)
    with _opened(source, path.parent, options) as target:
        manifest = _chosen(_found(target), generation, target.url)
        if manifest.engine != "sqlite":
            raise Invalid(f"the backup is of a database in {manifest.engine!r}, which this Tailrace cannot restore")
        scratch = path.with_name(f".{path.name}.restoring-{secrets.token_hex(4)}")
        made: list[str] = []
        try:
            with translated_disk_errors(str(scratch)):
                scratch.mkdir(0o700)
            if cold is not None:
                _refuse_used(cold)
            _write_all(target, manifest, scratch, cold, made, advance)
            if as_copy:
                _become_another(scratch, manifest, Store(scratch / "cold") if cold is None else cold, made)
            _check(scratch, manifest, cold, deep, advance)
            if database is not None:
                advance("filling PostgreSQL", 0, 1)
                _load(scratch, database)
                advance("filling PostgreSQL", 1, 1)
            with translated_disk_errors(str(path)):
                _refuse_existing(path, str(data))
                os.rename(scratch, path)  # onto an empty directory, if there is one
                sync(path.parent)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            if cold is not None:
                _remove(cold, made)
            raise
    where = None
    if manifest.cold_files:
        where = str(path / "cold") if cold is None else cold.url
    return RestoreResult(str(path), manifest, where)


def _load(scratch: Path, database: str) -> None:
    """Move the rows of the restored database to PostgreSQL."""
    extras.require("postgres")
    from tailrace.storage.postgres import PostgresEngine  # an optional package

    with closing(PostgresEngine(database, scratch)) as engine:
        engine.load_from(scratch / FILE)
    for path in (*scratch.glob(f"{FILE}*"), scratch / "LOCK"):
        path.unlink(missing_ok=True)


def _refuse_existing(path: Path, named: str) -> None:
    if path.is_dir() and not any(path.iterdir()):
        return
    if path.exists() or path.is_symlink():
        raise Invalid(f"{named!r} is not empty; restore into a new directory, and move it afterwards")


def _refuse_used(cold: Store) -> None:
    with cold.wrap_errors(""):
        found = cold.filesystem().get_file_info(pyarrow.fs.FileSelector("", allow_not_found=True))
    if found:
        raise Invalid(f"cold storage at {cold.url!r} is not empty; name an empty directory or prefix")


def _remove(cold: Store, made: list[str]) -> None:
    """Remove the files that were restored into cold storage."""
    for name in made:
        try:
            cold.filesystem().delete_file(name)
        except OSError:
            return


@contextmanager
def _opened(
    source: str | os.PathLike[str], beside: Path | None, options: Mapping[str, str] | None
) -> Iterator[BackupTarget]:
    """The target; an archive is unpacked into a temporary directory."""
    if not is_archive(source):
        with closing(open_target(source, writing=False, options=options)) as target:
            yield target
        return
    assert beside is not None
    folder = beside / f".{Path(source).name}.unpacked-{secrets.token_hex(4)}"
    try:
        with translated_disk_errors(str(folder)):
            make_folder(folder / "generations")
        unpack_archive(Path(source), folder)
        with closing(open_target(folder, writing=False)) as target:
            target.url = str(source)
            yield target
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _found(target: BackupTarget) -> list[Manifest | Corrupt]:
    found: list[Manifest | Corrupt] = []
    for name in sorted(target.list("generations")):
        if name.endswith(".json"):
            try:
                found.append(decode(target.read(name), f"{target.url}/{name}"))
            except Corrupt as error:
                found.append(error)
    return found


def _chosen(found: list[Manifest | Corrupt], generation: str | None, where: str) -> Manifest:
    whole = [each for each in found if isinstance(each, Manifest)]
    if generation is not None:
        named = [each for each in whole if each.id == generation]
        if not named:
            raise NotFound(f"{where!r} has no backup {generation!r} that can be read; list them with --list")
        return named[0]
    if not found:
        raise NotFound(f"there are no backups in {where!r}; interrupted ones do not count")
    last = found[-1]
    if isinstance(last, Corrupt):  # an older one must be named explicitly, so that the operator knows that it is older
        raise last
    return last


def _write_all(
    target: BackupTarget, manifest: Manifest, scratch: Path, cold: Store | None, made: list[str], advance: Progress
) -> None:
    total, done = manifest.bytes, 0

    def step(size: int) -> None:
        nonlocal done
        done += size
        advance("restoring", done, total)

    for file in manifest.files:
        content = in_parallel(partial(read_part, target, file), parts_of(file))
        if file.path.startswith(COLD) and cold is not None:
            name = file.path.removeprefix(COLD)
            made.append(name)
            _write_cold(cold, file, name, content, step)
        else:
            _write_local(scratch / _place(file), file, content, step)


def _place(file: BackupFile) -> str:
    if file.path == DATABASE:
        return FILE
    return file.path if file.path.startswith(COLD) else SECRET_KEY


def _write_local(path: Path, file: BackupFile, content: Iterator[bytes], step: Step) -> None:
    whole = blake2b(digest_size=32)
    with translated_disk_errors(str(path)):
        make_folder(path.parent)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as out:
            for data in content:
                whole.update(data)
                out.write(data)
                step(len(data))
            out.flush()
            os.fsync(out.fileno())
        sync(path.parent)
    _compare(file, whole.hexdigest())


def _write_cold(cold: Store, file: BackupFile, name: str, content: Iterator[bytes], step: Step) -> None:
    whole = blake2b(digest_size=32)
    folder, _, path = name.rpartition("/")
    output = cold.create(folder, path)
    try:
        for data in content:
            whole.update(data)
            with cold.wrap_errors(folder):
                output.write(data)
            step(len(data))
        with cold.wrap_errors(folder):
            output.close()
    except BaseException:
        output.abandon()
        raise
    _compare(file, whole.hexdigest())


def _compare(file: BackupFile, found: str) -> None:
    if found != file.hash:
        raise Corrupt(f"the backup is damaged: {file.path!r} has another hash than in the manifest; restore another")


def _become_another(scratch: Path, manifest: Manifest, cold: Store, made: list[str]) -> None:
    with closing(SqliteEngine(scratch)) as engine:
        tx = engine.begin(manifest.made_ms)
        identity = BecomeAnother().run(tx)
        tx.flush()
        tx.commit()
    for cold_table in manifest.places:
        hand_over(cold, cold_table.name, identity)
        made.append(f"{cold_table.name}/_delta_log/{cold_table.version + 1:020d}.json")
    for path in (scratch / "LOCK", *scratch.rglob("*.json")):
        if path.exists():
            path.chmod(0o600)


def _check(scratch: Path, manifest: Manifest, cold: Store | None, deep: bool, advance: Progress) -> None:
    """Check the restored database and its cold storage."""
    try:
        report = check_database(
            scratch,
            on_progress=advance,
            cold=None if cold is None else cold.url,
            cold_options=None if cold is None else cold.storage_options,
            deep=deep,
            without_key=True,
        )
    except Error as error:
        raise Corrupt(f"the restored database cannot be opened: {error}") from error
    if report.findings:
        raise Corrupt(
            f"the restored database is damaged: {report.findings[0]} ({len(report.findings)} findings); restore "
            f"another generation than {manifest.id}"
        )
