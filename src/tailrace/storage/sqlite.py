"""The embedded engine: one directory, one SQLite database in WAL mode, every commit synced.

One process owns a directory (a lock file says so), one connection writes. Readers have connections of their own and
see the last durable commit: SQLite publishes a commit to them only after its WAL is synced. Committed rows of small
hot tables are cached, which is safe just because nobody else writes.
"""

from __future__ import annotations

import fcntl
import os
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from importlib import resources
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, Final

import apsw
import msgspec

from tailrace import failpoints, limits
from tailrace.errors import Corrupt, Error, Invalid, Unavailable
from tailrace.storage import sql
from tailrace.storage.engine import Packed, Tx, closed, unstorable
from tailrace.storage.table import Key, R, Table

FILE: Final = "tailrace.db"
_MARK: Final = "?"
_INTS: Final = msgspec.json.Decoder(list[int])
BUSY_MS: Final = 250  # how long somebody else's lock on the file is waited for; the event loop waits too
_WAL_BYTES_KEPT: Final = 64 * limits.MiB  # what a long reader made the WAL grow beyond this is given back
_WRITER_CACHE_KIB: Final = 64 * 1024
_READER_CACHE_KIB: Final = 8 * 1024


class SqliteReader:
    """A read transaction on a connection of its own."""

    def __init__(self, connection: apsw.Connection, now_ms: int) -> None:
        self.now_ms = now_ms
        self.shelf: Any = None
        self._execute = connection.execute

    def get(self, table: Table[R], *key: Any) -> R | None:
        row = self._execute(sql.select_one(table, _MARK), key).fetchone()
        return None if row is None else table.row(*row)

    def scan(
        self,
        table: Table[R],
        *prefix: Any,
        start: Any = None,
        after: Any = None,
        before: Any = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Iterator[R]:
        statement, bound = sql.scan(table, prefix, start, after, before, limit, reverse, _MARK)
        make = table.row
        return (make(*row) for row in self._execute(statement, bound))

    def values(
        self, table: Table[Any], columns: str, *prefix: Any, start: Any = None, limit: int | None = None
    ) -> list[tuple[Any, ...]]:
        statement, bound = sql.scan(table, prefix, start, None, None, limit, False, _MARK, columns)
        return self._execute(statement, bound).fetchall()

    def packed(
        self,
        table: Table[Any],
        numbers: tuple[str, ...],
        body: str,
        *prefix: Any,
        start: Any,
        before: Any,
        limit: int,
        bytes_max: int,
    ) -> Packed:
        return _packed(self._execute, table, numbers, body, prefix, start, before, limit, bytes_max)


class SingleReader(SqliteReader):
    """Rows one by one, each from the last commit; no transaction around them. Rows that the writer keeps in memory need
    no look at the file: what it keeps is committed, and goes when a commit that changes it begins."""

    def __init__(self, connection: apsw.Connection, now_ms: int, cache: dict[Table[Any], dict[Key, Any]]) -> None:
        super().__init__(connection, now_ms)
        self._cache = cache

    def get(self, table: Table[R], *key: Any) -> R | None:
        if table.cached:
            rows = self._cache.get(table)
            row = None if rows is None else rows.get(key)
            if row is not None:
                return row  # type: ignore[no-any-return]
        return super().get(table, *key)


def _packed(
    execute: Any,
    table: Table[Any],
    numbers: tuple[str, ...],
    body: str,
    prefix: Key,
    start: Any,
    before: Any,
    limit: int,
    bytes_max: int,
) -> Packed:
    """Read as `Reader.packed` has it."""
    listing, bodies = sql.packed(table, numbers, body, len(prefix), _MARK)
    bound = (*prefix, start, before)
    # The length of bytes stands in the row's head: what is too much is not read.
    ((*texts, sizes),) = execute(listing, (*bound, limit)).fetchall()
    if sizes is None:
        return Packed(tuple(array("q") for _ in numbers), array("q"), b"")
    taken = _fitting(_numbers(sizes), bytes_max)
    ((together,),) = execute(bodies, (*bound, len(taken))).fetchall()
    return Packed(tuple(_numbers(text)[: len(taken)] for text in texts), taken, together)


def _numbers(text: str) -> array[int]:
    return array("q", _INTS.decode(f"[{text}]"))


def _fitting(sizes: array[int], bytes_max: int) -> array[int]:
    """The first of them, and those that follow while all together are not too much."""
    for count, total in enumerate(accumulate(sizes)):
        if total > bytes_max:
            return sizes[: max(count, 1)]
    return sizes


class _Opened:
    """A connection lent to a reader, in a read transaction unless single rows will do."""

    __slots__ = ("_connection", "_engine", "_now_ms", "_single")

    def __init__(self, engine: SqliteEngine, now_ms: int, single: bool) -> None:
        self._engine = engine
        self._now_ms = now_ms
        self._single = single

    def __enter__(self) -> SqliteReader:
        self._connection = self._engine.lend()
        if self._single:
            return SingleReader(self._connection, self._now_ms, self._engine.cache)
        with _translated():
            self._connection.execute("BEGIN")
        return SqliteReader(self._connection, self._now_ms)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not self._single:
            with _translated():
                self._connection.execute("ROLLBACK")
        self._engine.take_back(self._connection)
        if isinstance(error, _FOREIGN):
            raise _translate(error) from error


class SqliteTx(Tx):
    """The write transaction. Statements run here; COMMIT may be called from another thread, one at a time."""

    def __init__(self, engine: SqliteEngine, now_ms: int) -> None:
        super().__init__(now_ms)
        self._engine = engine
        self._connection = engine.writer
        self._execute = engine.writer.execute
        self._cache = engine.cache
        with _translated():
            self._execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        with _translated():
            try:
                self._execute("COMMIT")
            except BaseException:
                self._engine.cache.clear()
                raise
        for table, rows in self._flushed.items():
            self._engine.remember(table, rows)

    def ended(self) -> bool:
        return self._connection.get_autocommit()

    def rollback(self) -> None:
        self._engine.cache.clear()
        if not self._connection.get_autocommit():
            with _translated():
                self._execute("ROLLBACK")

    def _load(self, table: Table[R], key: Key) -> R | None:
        if not table.cached:
            return self._fetch(table, key)
        cache = self._cache.get(table)
        if cache is not None:
            row = cache.get(key)
            if row is not None:
                return row  # type: ignore[no-any-return]
        row = self._fetch(table, key)
        flushed = self._flushed.get(table)
        # What this transaction flushed is not committed yet, so it must not be remembered as if it were.
        if row is not None and not self._saved and (flushed is None or key not in flushed):
            self._engine.remember(table, {key: row})
        return row

    def _fetch(self, table: Table[R], key: Key) -> R | None:
        with _translated():
            row = self._execute(sql.select_one(table, _MARK), key).fetchone()
        return None if row is None else table.row(*row)

    def _select(
        self, table: Table[R], prefix: Key, start: Any, after: Any, before: Any, limit: int | None, reverse: bool
    ) -> Iterator[R]:
        statement, bound = sql.scan(table, prefix, start, after, before, limit, reverse, _MARK)
        with _translated():
            rows = self._execute(statement, bound).fetchall()
        make = table.row
        return (make(*row) for row in rows)

    def _select_values(
        self, table: Table[Any], columns: str, prefix: Key, start: Any, limit: int | None
    ) -> list[tuple[Any, ...]]:
        statement, bound = sql.scan(table, prefix, start, None, None, limit, False, _MARK, columns)
        with _translated():
            return self._execute(statement, bound).fetchall()

    def _select_packed(
        self,
        table: Table[Any],
        numbers: tuple[str, ...],
        body: str,
        prefix: Key,
        start: Any,
        before: Any,
        limit: int,
        bytes_max: int,
    ) -> Packed:
        with _translated():
            return _packed(self._execute, table, numbers, body, prefix, start, before, limit, bytes_max)

    def _insert(self, table: Table[Any], rows: list[Any]) -> None:
        try:
            self._connection.executemany(sql.insert(table, _MARK), map(table.values, rows))
        except _REFUSALS as error:
            raise _refused(table, error) from error

    def _write(self, table: Table[Any], rows: dict[Key, Any]) -> None:
        cache = self._cache.get(table)
        if cache is not None:
            for key in rows:
                cache.pop(key, None)
        values = table.values
        try:
            self._connection.executemany(
                sql.upsert(table, _MARK), [values(row) for row in rows.values() if row is not None]
            )
            gone = [key for key, row in rows.items() if row is None]
            if gone:
                self._connection.executemany(sql.delete(table, _MARK), gone)
        except _REFUSALS as error:
            raise _refused(table, error) from error

    def _remove(self, table: Table[Any], prefix: Key, before: Any, limit: int) -> int:
        assert not table.cached, f"{table.name} is cached: delete its rows one by one"
        terms = [f"{name} = ?" for name in table.key[: len(prefix)]]
        bound = prefix
        if before is not None:
            terms.append(f"{table.key[len(prefix)]} < ?")
            bound += (before,)
        order = ", ".join(table.key)
        # A heap's rows are deleted in the order they lie in; other tables may have no row number.
        named = "rowid" if table.heap else f"({order})"
        chosen = f"SELECT {named.strip('()')} FROM {table.name} WHERE {' AND '.join(terms)} ORDER BY {order} LIMIT ?"
        with _translated():
            self._execute(f"DELETE FROM {table.name} WHERE {named} IN ({chosen})", (*bound, limit))
            return self._connection.changes()

    def _savepoint(self) -> None:
        with _translated():
            self._execute("SAVEPOINT command")

    def _rollback_to(self) -> None:
        with _translated():
            self._execute("ROLLBACK TO command")

    def _release(self) -> None:
        with _translated():
            self._execute("RELEASE command")


class SqliteEngine:
    """A database in a directory of the local file system."""

    blocking = False

    def __init__(self, directory: str | os.PathLike[str], *, read_only: bool = False, vfs: str | None = None) -> None:
        self.directory = Path(directory)
        self.read_only = read_only
        self.cache: dict[Table[Any], dict[Key, Any]] = {}
        self._vfs = vfs
        self._idle: deque[apsw.Connection] = deque()
        self._closed = False
        self._lock: IO[bytes] | None = None
        if read_only:
            if not (self.directory / FILE).is_file():
                raise Invalid(f"there is no database in {str(self.directory)!r}; name the directory given to --data")
        else:
            self._claim()
        try:
            with _translated():
                self.writer = self._connect(_WRITER_CACHE_KIB)
                try:
                    self._prepare()
                except BaseException:
                    self.writer.close()  # or a transaction stays open for as long as somebody keeps the error
                    raise
        except BaseException:
            self._unclaim()
            raise

    def begin(self, now_ms: int) -> SqliteTx:
        return SqliteTx(self, now_ms)

    def reader(self, now_ms: int = 0, *, single: bool = False) -> _Opened:
        return _Opened(self, now_ms, single)

    def lend(self) -> apsw.Connection:
        """A connection to read with."""
        try:
            return self._idle.pop()
        except IndexError:
            if self._closed:
                raise closed() from None
            with _translated():
                connection = self._connect(_READER_CACHE_KIB)
                connection.execute("PRAGMA query_only = ON")
            return connection

    def take_back(self, connection: apsw.Connection) -> None:
        self._idle.append(connection)
        if self._closed:
            self._close_idle()

    def close(self) -> None:
        self._closed = True
        try:
            self._close_idle()
            self.writer.close()
        finally:
            self._unclaim()

    def _close_idle(self) -> None:
        with suppress(IndexError):  # a reader may end meanwhile, and look too
            while True:
                self._idle.pop().close()

    def remember(self, table: Table[Any], rows: dict[Key, Any]) -> None:
        """Keep committed rows in memory; forget all of a table when there are too many."""
        cache = self.cache.setdefault(table, {})
        if len(cache) + len(rows) > limits.ROW_CACHE_MAX:
            cache.clear()
        for key, row in rows.items():
            if row is None:
                cache.pop(key, None)
            else:
                cache[key] = row

    def integrity(self) -> list[str]:
        """What SQLite itself finds wrong with the file."""
        with _translated():
            found = [row[0] for row in self.writer.execute("PRAGMA integrity_check")]
        return [] if found == ["ok"] else found

    def schema(self) -> list[str]:
        """The statements that make this database, as it is."""
        with _translated():
            rows = self.writer.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name")
            return [row[0] for row in rows]

    # -- opening

    def _claim(self) -> None:
        """Make the directory ours. Its own name must survive a power loss too, so the parents of what is made are
        synced."""
        directory = self.directory.absolute()
        made = [path for path in (directory, *directory.parents) if not path.exists()]
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.directory / "LOCK", "wb")  # noqa: SIM115 - held until close
        except OSError as error:
            raise Invalid(f"cannot open {str(self.directory)!r} for writing: {error.strerror or error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise Unavailable(
                f"another process has {str(self.directory)!r} open; stop it, or talk to its server over HTTP",
                code="DATABASE_IN_USE",
            ) from None
        for path in made:
            _sync_directory(path.parent)

    def _unclaim(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _connect(self, cache_kib: int) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        connection = apsw.Connection(str(self.directory / FILE), flags=flags, vfs=self._vfs, statementcachesize=256)
        connection.set_busy_timeout(BUSY_MS)
        connection.execute(f"PRAGMA cache_size = -{cache_kib}")
        return connection

    def _prepare(self) -> None:
        execute = self.writer.execute
        if self.read_only:
            execute("PRAGMA query_only = ON")
            _refuse_other(self._version())
            return
        execute("PRAGMA journal_mode = WAL").fetchall()
        for pragma in (
            "synchronous = FULL",
            "wal_autocheckpoint = 1000",
            f"journal_size_limit = {_WAL_BYTES_KEPT}",
            "secure_delete = OFF",
            "temp_store = MEMORY",
        ):
            execute(f"PRAGMA {pragma}").fetchall()
        self._migrate()

    def _version(self) -> int:
        ((version,),) = self.writer.execute("PRAGMA user_version").fetchall()
        assert isinstance(version, int)
        return version

    def _migrate(self) -> None:
        version = self._version()
        steps = migrations()
        if version > len(steps):
            _refuse_other(version)
        for number, statements in enumerate(steps[version:], start=version + 1):
            self.writer.execute("BEGIN IMMEDIATE")
            self.writer.execute(statements)
            failpoints.hit("migration.step")
            self.writer.execute(f"PRAGMA user_version = {number}")
            self.writer.execute("COMMIT")


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
            f"the database has schema version {version}, this Tailrace knows up to {known}; upgrade to open it",
            code="DATABASE_TOO_NEW",
        )
    if version < known:
        raise Invalid(
            f"the database has schema version {version}, this Tailrace needs {known}; "
            f"open it once for writing (tailrace serve) to migrate it",
            code="DATABASE_TOO_OLD",
        )


def _sync_directory(path: Path) -> None:
    with suppress(OSError):  # not every file system lets a directory be opened; those need no sync either
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class _Translation:
    """What SQLite and its binding raise, as ours. One object serves all: entering costs nothing."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, _FOREIGN):
            raise _translate(error) from error


_FOREIGN: Final = (apsw.Error, UnicodeEncodeError)
# What a write can fail with because of a value in it; apsw.Error is more than that.
_REFUSALS: Final = (apsw.Error, OverflowError, TypeError, UnicodeEncodeError)
_DATATYPES: Final = (apsw.SQLITE_CONSTRAINT_DATATYPE, apsw.SQLITE_CONSTRAINT_NOTNULL)


def _refused(table: Table[Any], error: Exception) -> Error:
    """Why rows were not written."""
    if isinstance(error, apsw.ConstraintError) and getattr(error, "extendedresult", None) not in _DATATYPES:
        return _translate(error)  # a key that must be new is there
    if isinstance(error, apsw.Error) and not isinstance(error, apsw.ConstraintError | apsw.TooBigError):
        return _translate(error)
    return unstorable(table, error)


def _translate(error: apsw.Error | UnicodeEncodeError) -> Error:
    if isinstance(error, UnicodeEncodeError):
        return Invalid(f"a text has half of a surrogate pair at {error.start}, which UTF-8 cannot say; leave it out")
    if isinstance(error, apsw.FullError):
        return Unavailable(f"the disk is full ({error}); free some space, then writes go on", code="DISK_FULL")
    if isinstance(error, apsw.BusyError):
        return Unavailable(
            f"another program has locked the database ({error}); writes go on when it lets go", code="DATABASE_BUSY"
        )
    if isinstance(error, (apsw.CorruptError, apsw.NotADBError, apsw.ConstraintError)):
        return Corrupt(f"the database is damaged: {error}; run `tailrace check` and restore a backup")
    return Unavailable(f"the database cannot be used: {error}; see the log, then restart", code="STORAGE_FAILED")


_TRANSLATION: Final = _Translation()


def _translated() -> _Translation:
    return _TRANSLATION
