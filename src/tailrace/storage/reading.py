"""Reading with a connection of SQLite: single rows, or whatever a query needs in a read transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import apsw

from tailrace.storage import packing, sql, staging
from tailrace.storage.engine import Packed
from tailrace.storage.staging import StagedView
from tailrace.storage.table import Key, R, StorageTable
from tailrace.storage.translation import FOREIGN, translate, translated

if TYPE_CHECKING:
    from tailrace.storage.sqlite import SqliteEngine

MARK: Final = staging.MARK


class SqliteReader:
    """A connection to read with, lent for one query at a time (`SqliteEngine.reader`).

    In a read transaction, unless single rows will do: then each row is of the last commit, and rows in the writer's
    cache, or among the recent ones, are not read from the file. Both have committed rows only, and drop a row when a
    commit that changes it begins."""

    def __init__(self, engine: SqliteEngine, connection: apsw.Connection) -> None:
        self.now_ms = 0
        self.lag_ms = 0
        self.cold: Any = None
        self.recent: Any = None
        self.exports: Any = None
        self.vault: Any = engine.vault
        self.connection = connection
        self._engine = engine
        self._execute = connection.execute
        self._cache = engine.cache
        self._recent = engine.recent.of
        self._single = False
        self._views: dict[StorageTable[Any], StagedView | None] = {}  # of the staged rows in this read transaction
        self._damaged: dict[str, None] | None = None  # collects rows that fail their checksum; None: it is an error

    def __enter__(self) -> SqliteReader:
        self._views.clear()
        if not self._single:
            with translated():
                self._execute("BEGIN")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not self._single and not self.connection.get_autocommit():  # some errors have ended it already
            with translated():
                self._execute("ROLLBACK")
        self._engine.take_back(self)
        if error is not None and isinstance(error, FOREIGN):
            raise translate(error) from error

    @property
    def settled_ms(self) -> int:
        return self.now_ms - self.lag_ms

    def version(self, table: StorageTable[Any]) -> int | None:
        return self._engine.recent.version(table)

    def get(self, table: StorageTable[R], *key: Any) -> R | None:
        if self._single and table.recent_bytes:
            return self._get_recent(table, key)
        if self._single and table.cached:
            rows = self._cache.get(table)
            cached = None if rows is None else rows.get(key)
            if cached is not None:
                return cached  # type: ignore[no-any-return]
        row = self._execute(sql.select_one(table, MARK), key).fetchone()
        if row is None:
            return None
        return table.load(row) if self._damaged is None else table.load_anyway(self._damaged, row)

    def get_each(self, table: StorageTable[R], prefix: Key, last: Sequence[Any]) -> dict[Any, R]:
        at = len(prefix)
        load = self._loader(table)
        found: dict[Any, R] = {}
        for first in range(0, len(last), sql.KEYS_AT_ONCE):
            some = last[first : first + sql.KEYS_AT_ONCE]
            for row in self._execute(sql.select_each(table, at, len(some), MARK), (*prefix, *some)):
                found[row[at]] = load(row)
        return found

    def _get_recent(self, table: StorageTable[R], key: Key) -> R | None:
        recent = self._recent(table)
        row = recent.get(key)
        if row is None:
            version = recent.version
            values = self._execute(sql.select_one(table, MARK), key).fetchone()
            if values is not None:
                row = table.load(values)
                recent.offer(key, row, version)
        return row

    def scan(
        self,
        table: StorageTable[R],
        *prefix: Any,
        start: Any = None,
        after: Any = None,
        before: Any = None,
        limit: int | None = None,
        reverse: bool = False,
        covering: Any = None,
    ) -> Iterator[R]:
        def stored(limit: int | None) -> Iterator[R]:
            statement, bound = sql.scan(table, prefix, start, after, before, limit, reverse, MARK, covering=covering)
            return map(self._loader(table), self._execute(statement, bound))

        view = self._staged(table)
        if view is None:
            return stored(limit)
        assert table.staging is not None
        load = self._loader(table.staging)
        return staging.scan(view, table, stored, load, prefix, start, after, before, limit, reverse, covering)

    def _loader(self, table: StorageTable[R]) -> Callable[[Any], R]:
        return table.load if self._damaged is None else partial(table.load_anyway, self._damaged)

    def _staged(self, table: StorageTable[Any]) -> StagedView | None:
        """The staged rows of a table, if there are any."""
        if table.staging is None:
            return None
        if table not in self._views:
            # This begins the view of the database, so it comes before the list.
            numbers = staging.numbers(self._execute, table)
            rows = self._engine.staged(table, self._execute)
            self._views[table] = None if numbers is None else StagedView(table, rows, self._execute, numbers)
        return self._views[table]

    def staged(self, table: StorageTable[R], least: int, limit: int) -> Iterator[tuple[int, R]]:
        rows = self._engine.staged(table, self._execute)
        return staging.oldest(self._execute, table, rows, self.now_ms, least, limit)

    def values(
        self,
        table: StorageTable[Any],
        columns: str,
        *prefix: Any,
        start: Any = None,
        limit: int | None = None,
        covering: Any = None,
    ) -> list[tuple[Any, ...]]:
        def stored(columns: str, limit: int | None) -> list[tuple[Any, ...]]:
            statement, bound = sql.scan(table, prefix, start, None, None, limit, False, MARK, columns, covering)
            return self._execute(statement, bound).fetchall()

        view = self._staged(table)
        if view is None:
            return stored(columns, limit)
        return staging.values(view, table, columns, stored, prefix, start, limit, covering)

    def packed(
        self,
        table: StorageTable[Any],
        numbers: tuple[str, ...],
        body: str,
        *prefix: Any,
        start: Any,
        before: Any,
        limit: int,
        bytes_max: int,
    ) -> Packed:
        assert table.staging is None, f"rows of {table.name} may be staged: scan them"
        return packing.read(self._execute, MARK, table, numbers, body, prefix, start, before, limit, bytes_max)
