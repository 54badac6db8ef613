"""The embedded engine: one directory, one SQLite database in WAL mode, every commit synced.

One process owns a directory (by a lock file), one connection writes. Readers have connections of their own and see the
last durable commit: SQLite publishes a commit to them only after its WAL is synced. Committed rows of small hot tables
are cached, which is safe because there is no other writer.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Any, Final

import apsw

from tailrace import failpoints, limits
from tailrace.errors import Corrupt, Error, Invalid, Unavailable
from tailrace.storage import modes, pages, reserve, vault, wal
from tailrace.storage.checkpoints import Checkpoints, leave_log
from tailrace.storage.engine import closed
from tailrace.storage.migrations_list import ENCRYPTED_SINCE as ENCRYPTED_SINCE
from tailrace.storage.migrations_list import migrations as migrations
from tailrace.storage.migrations_list import refuse_other
from tailrace.storage.presence import Presence, locked_directory, sync_directory
from tailrace.storage.reading import SqliteReader
from tailrace.storage.recent import RecentTables
from tailrace.storage.reserve import Reserve
from tailrace.storage.scratch import Scratch
from tailrace.storage.staging import StagingList
from tailrace.storage.table import Key, StorageTable
from tailrace.storage.translation import translate, translated
from tailrace.storage.writing import SqliteTx

FILE: Final = "tailrace.db"
BUSY_MS: Final = 250  # how long to wait for another program's lock on the file; the event loop waits too
_CHECKPOINT_PAGES: Final = 1000  # in the WAL before it is moved into the file; fewer on a small disk
_WAL_BYTES_KEPT: Final = 64 * limits.MiB  # a WAL that a long reader made larger is truncated to this
_PRIVATE_FILES: Final = (FILE, "LOCK", vault.FILE, reserve.FILE)  # prefixes of file names
_WRITER_CACHE_KIB: Final = 64 * 1024
_READER_CACHE_KIB: Final = 8 * 1024


class SqliteEngine:
    """A database in a directory of the local file system."""

    blocking = False
    floor_ms = 0

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        read_only: bool = False,
        vfs: str | None = None,
        accept_loss: bool = False,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.directory = Path(directory)
        self._environment = environment
        self.read_only = read_only
        self.cache: dict[StorageTable[Any], dict[Key, Any]] = {}
        self.recent = RecentTables(kept=not read_only)
        self._staged: dict[StorageTable[Any], StagingList] = {}
        self._listing = threading.Lock()
        self._vfs = vfs
        self._idle: deque[SqliteReader] = deque()
        self._closed = False
        self._lock: IO[bytes] | None = None
        self._home: int | None = None  # the directory, locked
        self._presence: Presence | None = None
        self._reserve: Reserve | None = None
        self._checkpoints: Checkpoints | None = None
        self.reported: Error | None = None  # damage that another process has found, which writes and verifies
        if read_only:
            if not (self.directory / FILE).is_file():
                raise Invalid(f"there is no database in {str(self.directory)!r}; name the directory of --data")
            modes.warn_of_exposure(self.directory, _PRIVATE_FILES)
        else:
            self._claim()
        try:
            self._guard(accept_loss)
            self._choose_vfs()
            with translated():
                self.writer = self._connect(_WRITER_CACHE_KIB)
                try:
                    self._prepare()
                    if not read_only:
                        self._watch()
                except BaseException:
                    self.writer.close()  # otherwise a transaction would stay open as long as the error is referenced
                    raise
        except BaseException:
            self._unclaim()
            raise

    def begin(self, now_ms: int) -> SqliteTx:
        return SqliteTx(self, now_ms)

    def reader(self, now_ms: int = 0, *, single: bool = False, damaged: dict[str, None] | None = None) -> SqliteReader:
        """As `Engine.reader`. With `damaged`, rows that fail their checksum are collected there, and still returned."""
        reader = self.lend()
        reader.now_ms = now_ms
        reader._single = single
        reader._damaged = damaged
        return reader

    def scratch(self) -> Scratch:
        return Scratch(self.directory)

    def staged(self, table: StorageTable[Any], execute: Callable[..., Any]) -> StagingList | None:
        """The list of a table's staged rows; None if it has none, or another process writes. The first call reads them
        by `execute`: it comes before the first write of such rows, so that all views have the same ones."""
        if table.staging is None or self.read_only:
            return None
        found = self._staged.get(table)
        if found is None:
            with self._listing:
                found = self._staged.get(table)
                if found is None:
                    found = StagingList(table)
                    found.load(execute)
                    self._staged[table] = found
        return found

    def all_staged(self) -> list[StagingList]:
        """The staged rows of all tables that were used."""
        return list(self._staged.values())

    def lend(self) -> SqliteReader:
        """A connection to read with."""
        self._refuse_damage()
        try:
            return self._idle.pop()
        except IndexError:
            if self._closed:
                raise closed() from None
            self.verify()  # otherwise another file of that name could be read
            with translated():
                connection = self._connect(_READER_CACHE_KIB, create=False)
                connection.execute("PRAGMA query_only = ON")
                leave_log(connection)
            return SqliteReader(self, connection)

    def take_back(self, reader: SqliteReader) -> None:
        self._idle.append(reader)
        if self._closed:
            self._close_idle()

    def close(self) -> None:
        self._closed = True
        try:
            self._close_idle()
            if self._checkpoints is not None:
                self._checkpoints.finish()
            self.writer.close()
            if self._reserve is not None:
                self._reserve.close()
        finally:
            self._unclaim()

    # -- a disk that fills, files that go away

    def verify(self) -> None:
        """As `Engine.verify`."""
        self._refuse_damage()
        if self._presence is not None:
            self._presence.verify()

    def examine(self) -> None:
        """As `Engine.examine`: verifies the write-ahead log."""
        if self._checkpoints is not None:
            self._checkpoints.examine()

    def committed(self) -> None:
        """A commit is durable; the write-ahead log may be full."""
        if self._checkpoints is not None:
            self._checkpoints.committed()

    def brief(self) -> bool:
        """As `Engine.brief`: no checkpoint is due soon."""
        return self._checkpoints is not None and not self._checkpoints.near()

    def _refuse_damage(self) -> None:
        if self._checkpoints is not None:
            if self._checkpoints.damage is not None:
                raise self._checkpoints.damage
        elif self.reported is not None:
            raise self.reported

    @property
    def damage(self) -> Error | None:
        """The damage of the write-ahead log that was found, if any."""
        return self.reported if self._checkpoints is None else self._checkpoints.damage

    def make_room(self, freeing: bool) -> None:
        """As `Engine.make_room`."""
        assert self._reserve is not None, "opened for reading"
        assert self._checkpoints is not None
        self.verify()
        checkpoint = True
        if freeing:
            self._reserve.release()
            # A checkpoint that fits lets the write-ahead log be written from its beginning again, which needs no more
            # space. One that does not fit would use the space up for nothing.
            with translated():
                grown = self._number("page_count") * self._number("page_size") - (self.directory / FILE).stat().st_size
                checkpoint = grown < self._reserve.room() // 2
                if checkpoint:
                    with suppress(apsw.Error):
                        self._checkpoints.run()
        else:
            self._reserve.take()
        self._checkpoint_by_itself(checkpoint)

    def roomy(self) -> bool:
        """As `Engine.roomy`."""
        if self._reserve is None or (self._reserve.full and self._reserve.room() >= self._reserve.wanted):
            return True
        with translated():
            return self._number("freelist_count") * self._number("page_size") >= self._reserve.wanted

    def _checkpoint_by_itself(self, on: bool) -> None:
        """Checkpoint before the WAL is larger than the reserve, or not at all."""
        assert self._reserve is not None
        assert self._checkpoints is not None
        pages = self._reserve.wanted // 2 // self._number("page_size") or _CHECKPOINT_PAGES
        self._checkpoints.at = min(pages, _CHECKPOINT_PAGES) if on else 0

    def _number(self, pragma: str) -> int:
        ((value,),) = self.writer.execute(f"PRAGMA {pragma}").fetchall()
        assert isinstance(value, int)
        return value

    def _watch(self) -> None:
        """From now on the files must stay in place, and the reserve is taken."""
        files = (FILE, f"{FILE}-wal", f"{FILE}-shm")
        self._presence = Presence(self.directory, files if self._home is not None else (*files, "LOCK"))
        self._reserve = Reserve(self.directory)
        self._reserve.take()
        self._checkpoints = self._make_checkpoints()
        self._checkpoint_by_itself(True)
        reader = self.lend()  # so that reads work even if the files are renamed
        with translated():
            reader.connection.execute("SELECT 1 FROM sqlite_schema").fetchall()
        self.take_back(reader)

    def _make_checkpoints(self) -> Checkpoints:
        verify = pages.verify if self._vfs == pages.VFS else None
        return Checkpoints(self.writer, self.directory / FILE, verify)

    def _close_idle(self) -> None:
        with suppress(IndexError):  # a reader may end meanwhile, and look too
            while True:
                self._idle.pop().connection.close()

    def remember(self, table: StorageTable[Any], rows: dict[Key, Any]) -> None:
        """Cache committed rows; evict all rows of a table when there are too many."""
        cache = self.cache.setdefault(table, {})
        if len(cache) + len(rows) > limits.ROW_CACHE_MAX:
            cache.clear()
        for key, row in rows.items():
            if row is None:
                cache.pop(key, None)
            else:
                cache[key] = row

    def copy_to(self, path: Path, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Copy the database as it is at this moment into a new file, page by page, while others write. `on_progress`
        gets the pages done and the total."""
        modes.create_private(path)
        with translated(), closing(pages.begin(path)) as copy:
            copy.execute("PRAGMA synchronous = OFF").fetchall()
            reader = self.lend()
            source = reader.connection
            try:
                # The read transaction pins the view; without it each commit would restart the copy.
                source.execute("BEGIN")
                source.execute("SELECT 1 FROM sqlite_schema").fetchall()
                log = self._checkpoints or self._make_checkpoints()
                with copy.backup("main", source, "main") as backup:
                    done = False
                    while not done:
                        done = backup.step(limits.BACKUP_PAGES)
                        if on_progress is not None:
                            on_progress(backup.page_count - backup.remaining, backup.page_count)
                log.examine()  # the copy gives pages of the log new checksums, even if they are damaged
                if log.damage is not None:
                    raise log.damage
            finally:
                source.execute("ROLLBACK")
                self.take_back(reader)

    def integrity(self) -> list[str]:
        """Findings about the file: pages that fail their checksum, and those of SQLite's own check."""
        database = self.directory / FILE
        findings: list[str] = []
        if self.checksums:
            bad = list(pages.damaged(database, wal.pages(database, pages.verify)))
            named = pages.names(database, bad) if bad else {}
            for number in bad:
                holder = named.get(number, "not in use, or unknown")
                findings.append(f"{str(database)!r}: page {number} ({holder}) fails its checksum")
        try:
            found = [row[0] for row in self.writer.execute("PRAGMA integrity_check")]
        except apsw.Error as error:
            found = [str(translate(error))]
        return findings + ([] if found == ["ok"] else found)

    def schema(self) -> list[str]:
        """The statements of this database's schema."""
        with translated():
            rows = self.writer.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name")
            return [row[0] for row in rows]

    # -- opening

    def _claim(self) -> None:
        """Create and lock the directory. Its name must survive a power loss, so the parents of new directories are
        synced."""
        directory = self.directory.absolute()
        made = [path for path in (directory, *directory.parents) if not path.exists()]
        try:
            modes.claim_directory(directory, _PRIVATE_FILES)
            self._lock = modes.open_private(directory / "LOCK", "wb")  # held until close
        except OSError as error:
            raise Invalid(f"cannot open {str(self.directory)!r} for writing: {error.strerror or error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The directory itself is locked too: if the file is removed, the next process would create a new one.
            self._home = locked_directory(directory)
        except OSError:
            self._unclaim()
            raise Unavailable(
                f"another process has {str(self.directory)!r} open; stop it, or talk to its server over HTTP",
                code="DATABASE_IN_USE",
            ) from None
        try:
            modes.create_private(directory / FILE)  # SQLite would create it and its WAL readable for others
        except Unavailable:
            self._unclaim()
            raise
        for path in made:
            sync_directory(path.parent)

    def _guard(self, accept_loss: bool) -> None:
        """Verify the WAL before SQLite reads it. A read-only engine has no lock: a server may be writing."""
        database = self.directory / FILE
        if not self.read_only:
            wal.guard(database, pages.verify, accept_loss=accept_loss)
        elif wal.judge(database, pages.verify).damage is not None:
            if self._claim_shared():
                wal.guard(database, pages.verify, accept_loss=accept_loss)
                self._unclaim()
            elif (damage := wal.judge(database, pages.verify, live=True).damage) is not None:
                raise wal.refusal(damage)

    def _choose_vfs(self) -> None:
        """Choose the VFS that maintains page checksums; a database without checksums is upgraded now."""
        database = self.directory / FILE
        if self._vfs is None:
            pages.load()
            self._vfs = pages.VFS
            if not self.read_only:
                with translated():
                    pages.upgrade(database)
        elif pages.kept(database):
            raise Invalid(f"the pages of {str(database)!r} have checksums, which the VFS {self._vfs!r} does not keep")
        self.checksums = self._vfs == pages.VFS and (not database.exists() or pages.kept(database))

    def _claim_shared(self) -> bool:
        """Lock the directory against writers; False if another process has it open for writing."""
        try:
            self._home = locked_directory(self.directory, shared=True)
        except BlockingIOError:
            return False
        except OSError as error:
            raise Invalid(f"cannot read {str(self.directory)!r}: {error.strerror or error}") from error
        try:
            self._lock = open(self.directory / "LOCK", "rb")  # noqa: SIM115 - held until `_unclaim`
        except FileNotFoundError:
            return True
        except OSError as error:
            raise Invalid(f"cannot read {str(self.directory)!r}: {error.strerror or error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            self._unclaim()
            return False
        return True

    def _unclaim(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if self._home is not None:
            os.close(self._home)
            self._home = None

    def _connect(self, cache_kib: int, *, create: bool = True) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
        connection = apsw.Connection(str(self.directory / FILE), flags=flags, vfs=self._vfs, statementcachesize=256)
        connection.set_busy_timeout(BUSY_MS)
        connection.execute(f"PRAGMA cache_size = -{cache_kib}")
        return connection

    def _prepare(self) -> None:
        execute = self.writer.execute
        if self.read_only:
            execute("PRAGMA query_only = ON")
            refuse_other(self.version())
            try:
                self.vault = self._open_vault()
            except Invalid as error:  # the rest is readable without the key
                self.vault = vault.LockedVault(error)
            return
        if self._vfs == pages.VFS:
            pages.reserve(self.writer)
        execute("PRAGMA journal_mode = WAL").fetchall()
        for pragma in (
            "synchronous = FULL",
            f"journal_size_limit = {_WAL_BYTES_KEPT}",
            f"secure_delete = {'ON' if 0 < self.version() < ENCRYPTED_SINCE else 'OFF'}",
            "temp_store = MEMORY",
        ):
            execute(f"PRAGMA {pragma}").fetchall()
        self._migrate()

    def version(self) -> int:
        """The version of the schema."""
        return self._number("user_version")

    def _migrate(self) -> None:
        version = self.version()
        steps = migrations()
        if version > len(steps):
            refuse_other(version)
        self.vault = self._open_vault()
        for number, statements in enumerate(steps[version:], start=version + 1):
            self.writer.execute("BEGIN IMMEDIATE")
            self.writer.execute(statements)
            if number == ENCRYPTED_SINCE:
                vault.encrypt_existing(self.writer.execute, self.vault)
            failpoints.hit("migration.step")
            self.writer.execute(f"PRAGMA user_version = {number}")
            self.writer.execute("COMMIT")
        if 0 < version < ENCRYPTED_SINCE:
            self._forget_old_pages()

    def _open_vault(self) -> vault.Vault:
        check: Any = None
        if self.version() >= ENCRYPTED_SINCE:
            found = self.writer.execute("SELECT value FROM meta WHERE name = ?", (vault.CHECK,)).fetchall()
            if not found:
                raise Corrupt(f"the row {vault.CHECK!r} of meta is missing; restore a backup")
            ((check,),) = found
        return vault.open_vault(self.directory, check, self._environment, writable=not self.read_only)

    def reencrypt(self, fresh: vault.Vault) -> None:
        """Encrypt all secrets with another key, in one transaction. No other thread may use the engine meanwhile."""
        with translated():
            self.writer.execute("PRAGMA secure_delete = ON").fetchall()
            self.writer.execute("BEGIN IMMEDIATE")
            try:
                vault.reencrypt(self.writer.execute, self.vault, fresh)
                self.writer.execute("COMMIT")
            except BaseException:
                self.writer.execute("ROLLBACK")
                raise
            self.vault = fresh
            self.cache.clear()
            self._forget_old_pages()

    def _forget_old_pages(self) -> None:
        """Remove replaced secrets from the files: free space within pages is zeroed as rows change (`secure_delete`),
        and old versions of pages are removed with the write-ahead log."""
        self.examine()
        self.verify()
        self.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
