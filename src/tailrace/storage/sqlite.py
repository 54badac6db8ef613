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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from importlib import resources
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, Final

import apsw

from tailrace import failpoints, limits
from tailrace.errors import Corrupt, Invalid, Unavailable
from tailrace.storage import modes, packing, pages, reserve, sql, staging, vault, wal
from tailrace.storage.checkpoints import Checkpoints, leave_log
from tailrace.storage.engine import Packed, Tx, closed
from tailrace.storage.presence import Presence, locked_directory, sync_directory
from tailrace.storage.reading import MARK, SqliteReader
from tailrace.storage.recent import RecentTables
from tailrace.storage.reserve import Reserve
from tailrace.storage.scratch import Scratch
from tailrace.storage.staging import EVERY, StagedRows, StagedView
from tailrace.storage.table import Key, R, StorageTable
from tailrace.storage.translation import REFUSALS, refused, translate, translated

FILE: Final = "tailrace.db"
ENCRYPTED_SINCE: Final = 6  # the migration that encrypts what was in clear text
BUSY_MS: Final = 250  # how long to wait for another program's lock on the file; the event loop waits too
_CHECKPOINT_PAGES: Final = 1000  # in the WAL before it is moved into the file; fewer on a small disk
_WAL_BYTES_KEPT: Final = 64 * limits.MiB  # a WAL that a long reader made larger is truncated to this
_PRIVATE_FILES: Final = (FILE, "LOCK", vault.FILE, reserve.FILE)  # prefixes of file names
_KEYS_AT_ONCE: Final = 100  # in one statement, which is prepared once for each number of them
_WRITER_CACHE_KIB: Final = 64 * 1024
_READER_CACHE_KIB: Final = 8 * 1024


class SqliteTx(Tx):
    """The write transaction. Statements run here; COMMIT may be called from another thread, one at a time."""

    def __init__(self, engine: SqliteEngine, now_ms: int) -> None:
        super().__init__(now_ms)
        self._engine = engine
        self._connection = engine.writer
        self._execute = engine.writer.execute
        self._cache = engine.cache
        self.vault = engine.vault
        self._moved: dict[StorageTable[Any], int] = {}  # the last number of the staged rows that were moved
        self._saved_moved: dict[StorageTable[Any], int] = {}
        self._marks: dict[StagedRows, int] = {}
        with translated():
            self._execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        with translated():
            try:
                self._execute("COMMIT")
            except BaseException:
                self._engine.cache.clear()
                raise
        for table, rows in self._flushed.items():
            if table.cached:
                self._engine.remember(table, rows)
        for staged in self._engine.all_staged():
            staged.committed(self._moved.get(staged.table, 0))
        self._engine.recent.end(self._flushed)
        self._engine.committed()

    def ended(self) -> bool:
        return self._connection.get_autocommit()

    def rollback(self) -> None:
        self._engine.cache.clear()
        if not self._connection.get_autocommit():
            with translated():
                self._execute("ROLLBACK")
            for staged in self._engine.all_staged():
                staged.undo()
        else:  # the commit has failed, and what became of it is only known to the database
            with translated():
                for staged in self._engine.all_staged():
                    if staged.pending:
                        staged.load(self._execute)
        self._engine.recent.end({})

    def _load(self, table: StorageTable[R], key: Key) -> R | None:
        if not table.cached:
            return (self._engine.recent.of(table).get(key) if table.recent_bytes else None) or self._fetch(table, key)
        cache = self._cache.get(table)
        if cache is not None:
            row = cache.get(key)
            if row is not None:
                return row  # type: ignore[no-any-return]
        row = self._fetch(table, key)
        flushed = self._flushed.get(table)
        # Flushed rows are not committed yet, so they must not go into the cache.
        if row is not None and not self._saved and (flushed is None or key not in flushed):
            self._engine.remember(table, {key: row})
        return row

    def _fetch(self, table: StorageTable[R], key: Key) -> R | None:
        with translated():
            row = self._execute(sql.select_one(table, MARK), key).fetchone()
        return None if row is None else table.load(row)

    def _load_each(self, table: StorageTable[R], prefix: Key, last: Sequence[Any]) -> dict[Any, R]:
        assert not table.cached, f"{table.name} is cached: get its rows one by one"
        found: dict[Any, R] = {}
        at = len(prefix)
        for first in range(0, len(last), _KEYS_AT_ONCE):
            some = last[first : first + _KEYS_AT_ONCE]
            statement = sql.select_each(table, at, len(some), MARK)
            with translated():
                rows = self._execute(statement, (*prefix, *some)).fetchall()
            for row in rows:
                found[row[at]] = table.load(row)
        return found

    def _select(
        self,
        table: StorageTable[R],
        prefix: Key,
        start: Any,
        after: Any,
        before: Any,
        limit: int | None,
        reverse: bool,
        covering: Any,
    ) -> Iterator[R]:
        def stored(limit: int | None) -> Iterator[R]:
            statement, bound = sql.scan(table, prefix, start, after, before, limit, reverse, MARK, covering=covering)
            with translated():
                rows = self._execute(statement, bound).fetchall()
            return map(table.load, rows)

        view = self._staged(table)
        if view is None:
            return stored(limit)
        assert table.staging is not None
        load = table.staging.load
        with translated():
            found = staging.scan(view, table, stored, load, prefix, start, after, before, limit, reverse, covering)
            return iter(list(found))

    def _staged(self, table: StorageTable[Any]) -> StagedView | None:
        """The staged rows of a table, if there are any, as this transaction has left them."""
        rows = self._engine.staged(table, self._execute)
        if rows is None or rows.empty:
            return None
        return StagedView(table, rows, self._execute, (rows.lowest, EVERY[1]))

    def _select_values(
        self, table: StorageTable[Any], columns: str, prefix: Key, start: Any, limit: int | None, covering: Any
    ) -> list[tuple[Any, ...]]:
        def stored(columns: str, limit: int | None) -> list[tuple[Any, ...]]:
            statement, bound = sql.scan(table, prefix, start, None, None, limit, False, MARK, columns, covering)
            return self._execute(statement, bound).fetchall()

        view = self._staged(table)
        with translated():
            if view is None:
                return stored(columns, limit)
            return staging.values(view, table, columns, stored, prefix, start, limit, covering)

    def _select_packed(
        self,
        table: StorageTable[Any],
        numbers: tuple[str, ...],
        body: str,
        prefix: Key,
        start: Any,
        before: Any,
        limit: int,
        bytes_max: int,
    ) -> Packed:
        assert table.staging is None, f"rows of {table.name} may be staged: scan them"
        with translated():
            return packing.read(self._execute, MARK, table, numbers, body, prefix, start, before, limit, bytes_max)

    def _insert(self, table: StorageTable[Any], rows: list[Any]) -> None:
        try:
            packed = rows if table.pack is None else table.pack(rows)
            staged = self._engine.staged(table, self._execute)
            if staged is not None:
                assert table.staging is not None
                small = [row for row in packed if table.staged(row)]
                if small:
                    self._connection.executemany(sql.insert(table.staging, MARK), staged.add(small))
                if len(small) == len(packed):
                    return
                packed = [row for row in packed if not table.staged(row)]
            self._connection.executemany(sql.insert(table, MARK), map(table.values, packed))
        except REFUSALS as error:
            raise refused(table, error) from error

    def _write(self, table: StorageTable[Any], rows: dict[Key, Any]) -> None:
        cache = self._cache.get(table)
        if cache is not None:
            for key in rows:
                cache.pop(key, None)
        if table.recent_bytes:
            self._engine.recent.of(table).begin(rows)
        values = table.values
        if len(rows) > _KEYS_AT_ONCE:  # so that neighbours are written together, each page once
            rows = dict(sorted(rows.items(), key=itemgetter(0)))
        try:
            self._connection.executemany(
                sql.upsert(table, MARK), [values(row) for row in rows.values() if row is not None]
            )
            gone = [key for key, row in rows.items() if row is None]
            if gone:
                self._connection.executemany(sql.delete(table, MARK), gone)
        except REFUSALS as error:
            raise refused(table, error) from error

    def _remove(self, table: StorageTable[Any], prefix: Key, before: Any, limit: int) -> int:
        assert not table.cached, f"{table.name} is cached: delete its rows one by one"
        if table.recent_bytes:
            self._engine.recent.of(table).begin_all()
        terms = [f"{name} = ?" for name in table.key[: len(prefix)]]
        bound = prefix
        if before is not None:
            terms.append(f"{table.key[len(prefix)]} < ?")
            bound += (before,)
        view = self._staged(table)
        if view is not None:
            return self._remove_staged(table, view, prefix, before, limit)
        order = ", ".join(table.key)
        # A heap's rows are deleted in storage order; other tables may have no row number.
        named = "rowid" if table.heap else f"({order})"
        chosen = f"SELECT {named.strip('()')} FROM {table.name} WHERE {' AND '.join(terms)} ORDER BY {order} LIMIT ?"
        with translated():
            self._execute(f"DELETE FROM {table.name} WHERE {named} IN ({chosen})", (*bound, limit))
            return self._connection.changes()

    def _remove_staged(self, table: StorageTable[Any], view: StagedView, prefix: Key, before: Any, limit: int) -> int:
        """As `_remove`, of a table with staged rows: the lowest of both."""
        assert table.staging is not None
        assert len(prefix) == 1, f"rows of {table.name} are removed by their first key column"
        second = table.key[1]
        statement, bound = sql.scan(table, prefix, None, None, before, limit, False, MARK, second)
        with translated():
            stored = [(key, None) for (key,) in self._execute(statement, bound)]
            listed = view.between(prefix[0], None, before)
            staged = [(key, number) for number, key in islice(view.fetch(second, listed), limit)]
            lowest = sorted([*stored, *staged], key=itemgetter(0))[:limit]
            self._connection.executemany(
                sql.delete(table, MARK), [(prefix[0], key) for key, number in lowest if number is None]
            )
            self._connection.executemany(
                sql.delete(table.staging, MARK), [(number,) for _, number in lowest if number is not None]
            )
        return len(lowest)

    def _select_staged(self, table: StorageTable[R], least: int, limit: int) -> Iterator[tuple[int, R]]:
        with translated():
            return iter(list(staging.oldest(self._execute, table, least, limit)))

    def _settle(self, table: StorageTable[Any], first: int, last: int, count: int, rows: list[Any]) -> bool:
        assert table.staging is not None
        with translated():
            self._engine.staged(table, self._execute)  # lists them, if they are not yet: this may be rolled back
            numbers = staging.numbers(self._execute, table)
            ((there,),) = self._execute(sql.count_up_to(table.staging, MARK), (last,)).fetchall()
            if numbers is None or numbers[0] != first or there != count:
                return False
            in_order = sorted(rows, key=table.key_of)  # so that neighbours in the index are written together
            self._connection.executemany(sql.insert(table, MARK), map(table.values, in_order))
            self._execute(sql.delete_up_to(table.staging, MARK), (last,))
        self._moved[table] = last
        return True

    def _savepoint(self) -> None:
        with translated():
            self._execute("SAVEPOINT command")
        self._marks = {staged: staged.mark() for staged in self._engine.all_staged()}
        self._saved_moved = dict(self._moved)

    def _rollback_to(self) -> None:
        with translated():
            self._execute("ROLLBACK TO command")
        for staged in self._engine.all_staged():
            staged.undo(self._marks.get(staged, 0))
        self._moved = self._saved_moved

    def _release(self) -> None:
        with translated():
            self._execute("RELEASE command")


class SqliteEngine:
    """A database in a directory of the local file system."""

    blocking = False

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
        self._staged: dict[StorageTable[Any], StagedRows] = {}
        self._listing = threading.Lock()
        self._vfs = vfs
        self._idle: deque[SqliteReader] = deque()
        self._closed = False
        self._lock: IO[bytes] | None = None
        self._home: int | None = None  # the directory, locked
        self._presence: Presence | None = None
        self._reserve: Reserve | None = None
        self._checkpoints: Checkpoints | None = None
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

    def staged(self, table: StorageTable[Any], execute: Callable[..., Any]) -> StagedRows | None:
        """The list of a table's staged rows; None if it has none, or another process writes. The first call reads them
        by `execute`: it comes before the first write of such rows, so that all views have the same ones."""
        if table.staging is None or self.read_only:
            return None
        found = self._staged.get(table)
        if found is None:
            with self._listing:
                found = self._staged.get(table)
                if found is None:
                    found = StagedRows(table)
                    found.load(execute)
                    self._staged[table] = found
        return found

    def all_staged(self) -> list[StagedRows]:
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

    def _refuse_damage(self) -> None:
        if self._checkpoints is not None and self._checkpoints.damage is not None:
            raise self._checkpoints.damage

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
            _refuse_other(self.version())
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
            _refuse_other(version)
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


def migrations() -> list[str]:
    """The numbered steps from nothing to the current schema."""
    folder = resources.files("tailrace.storage") / "migrations"
    names = sorted(path.name for path in folder.iterdir() if path.name[:4].isdigit())
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1)), f"migrations have a gap: {names}"
    return [(folder / name).read_text() for name in names]


def _refuse_other(version: int) -> None:
    known = len(migrations())
    if version > known:
        raise Invalid(
            f"the database has schema version {version}, this Tailrace supports up to {known}; upgrade to open it",
            code="DATABASE_TOO_NEW",
        )
    if version < known:
        raise Invalid(
            f"the database has schema version {version}, this Tailrace needs {known}; "
            f"open it once for writing (tailrace serve) to migrate it",
            code="DATABASE_TOO_OLD",
        )
