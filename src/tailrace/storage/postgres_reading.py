"""Reading from PostgreSQL: rows by key, and scans in pages.

A reader is lent a connection of the pool for one query. Its transaction (REPEATABLE READ) begins with the first
statement and in the same round trip. A scan fetches a few rows at first and then more, from the last key on: within the
transaction that is the same as one long result, and memory is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.types.numeric import Int8

from tailrace import limits
from tailrace.storage import packing, sql, staging
from tailrace.storage import postgres_arrays as arrays
from tailrace.storage.engine import Packed
from tailrace.storage.postgres_errors import FOREIGN, translate, without_nul
from tailrace.storage.staging import StagedView
from tailrace.storage.table import Key, R, StorageTable

if TYPE_CHECKING:
    from tailrace.storage.postgres import PostgresEngine

MARK: Final = staging.MARK
_BEGIN: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_PAGE_ROWS: Final = 8  # of the first page of a scan
_PAGE_ROWS_MAX: Final = 1024


@cache
def marked(statement: str) -> str:
    """A statement with the placeholders of the driver."""
    return statement.replace(MARK, "%b")


def bind(values: Any) -> list[Any]:
    """Parameters as they are sent: an int is a bigint whatever its size, or each size would be another statement."""
    bound: list[Any] = []
    for value in values:
        if type(value) is int:
            bound.append(Int8(value))
        else:
            if type(value) is str:
                without_nul(value)
            bound.append(value)
    return bound


def pages(
    execute: Callable[..., Any],
    table: StorageTable[Any],
    prefix: Key,
    start: Any,
    after: Any,
    before: Any,
    limit: int | None,
    reverse: bool,
    covering: Any,
) -> Iterator[tuple[Any, ...]]:
    """The rows of `Reader.scan`, as tuples."""
    size = _PAGE_ROWS
    prefixed, width = len(prefix), len(table.key)
    last: Key = ()
    while True:
        wanted = size if limit is None else min(limit, size)
        statement, bound = sql.scan(
            table, prefix, start, after, before, wanted, reverse, MARK, covering=covering, beyond=last
        )
        rows = execute(statement, bound).fetchall()
        yield from rows
        if limit is not None:
            limit -= len(rows)
        if len(rows) < wanted or limit == 0 or prefixed == width:
            return
        last = rows[-1][prefixed:width]
        held = sum(len(value) for row in rows for value in row if type(value) is bytes) + 64 * len(rows)
        size = max(1, min(4 * size, _PAGE_ROWS_MAX, limits.SCAN_PAGE_BYTES * len(rows) // held))


class PostgresReader:
    """A connection to read with, lent for one query at a time (`PostgresEngine.reader`).

    In a read transaction, unless single rows will do: then each row is of the last commit, and rows in the writer's
    cache, or among the recent ones, are not read from the database as long as this server certainly leads."""

    def __init__(self, engine: PostgresEngine, connection: Any) -> None:
        self.now_ms = 0
        self.lag_ms = 0
        self.cold: Any = None
        self.recent: Any = None
        self.exports: Any = None
        self.vault: Any = engine.vault
        self.connection = connection
        self._engine = engine
        self._cursor = connection.cursor(binary=True)
        self.single = False
        self._begun = False
        self._views: dict[StorageTable[Any], StagedView | None] = {}  # of the staged rows in this read transaction
        self.damaged: dict[str, None] | None = None  # collects rows that fail their checksum; None: it is an error

    def __enter__(self) -> PostgresReader:
        self._views.clear()
        self._begun = False
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if self._begun and not self.connection.closed:
                self.connection.execute("COMMIT")  # of nothing; a ROLLBACK would make the driver prepare anew
        except psycopg.Error:
            self.connection.close()
        self._engine.take_back(self)
        if isinstance(error, FOREIGN):
            raise translate(error) from error

    @property
    def settled_ms(self) -> int:
        return self.now_ms - self.lag_ms

    def execute(self, statement: str, bound: Any = ()) -> Any:
        """Run a statement with the placeholders of `sql.py`; its rows are all fetched, and outlive the next call."""
        parameters = bind(bound) if bound else None
        cursor = self.connection.cursor(binary=True)
        if self.single or self._begun:
            return cursor.execute(marked(statement), parameters)
        with self.connection.pipeline():
            self._cursor.execute(_BEGIN)
            self._begun = True
            cursor.execute(marked(statement), parameters)
        return cursor

    def get(self, table: StorageTable[R], *key: Any) -> R | None:
        if self.single and table.recent_bytes:
            return self._get_recent(table, key)
        if self.single and table.cached and self._engine.lease.fresh:
            rows = self._engine.cache.get(table)
            cached = None if rows is None else rows.get(key)
            if cached is not None:
                return cached  # type: ignore[no-any-return]
        row = self.execute(sql.select_one(table, MARK), key).fetchone()
        if row is None:
            return None
        return table.load(row) if self.damaged is None else table.load_anyway(self.damaged, row)

    def version(self, table: StorageTable[Any]) -> int | None:
        return None  # another server may lead, and write

    def get_each(self, table: StorageTable[R], prefix: Key, last: Sequence[Any]) -> dict[Any, R]:
        at, load = len(prefix), self._loader(table)
        found: dict[Any, R] = {}
        for first in range(0, len(last), sql.KEYS_AT_ONCE):
            values = arrays.pack(table.columns[at].kind, last[first : first + sql.KEYS_AT_ONCE])
            for row in self.execute(arrays.select_any(table, at), (*prefix, values)):
                found[row[at]] = load(row)
        return found

    def _get_recent(self, table: StorageTable[R], key: Key) -> R | None:
        recent = self._engine.recent.of(table)
        row = recent.get(key) if self._engine.lease.fresh else None
        if row is None:
            version = recent.version
            values = self.execute(sql.select_one(table, MARK), key).fetchone()
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
            found = pages(self.execute, table, prefix, start, after, before, limit, reverse, covering)
            return map(self._loader(table), found)

        view = self._staged(table)
        if view is None:
            return stored(limit)
        assert table.staging is not None
        load = self._loader(table.staging)
        return staging.scan(view, table, stored, load, prefix, start, after, before, limit, reverse, covering)

    def _loader(self, table: StorageTable[R]) -> Callable[[Any], R]:
        return table.load if self.damaged is None else partial(table.load_anyway, self.damaged)

    def _staged(self, table: StorageTable[Any]) -> StagedView | None:
        """The staged rows of a table, if there are any."""
        if table.staging is None:
            return None
        if table not in self._views:
            numbers = staging.numbers(self.execute, table)  # begins the view of the database, so it comes first
            rows = self._engine.staged(table, self.execute)
            self._views[table] = None if numbers is None else StagedView(table, rows, self.execute, numbers)
        return self._views[table]

    def staged(self, table: StorageTable[R], least: int, limit: int) -> Iterator[tuple[int, R]]:
        rows = self._engine.staged(table, self.execute)
        return staging.oldest(self.execute, table, rows, self.now_ms, least, limit)

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
            return self.execute(statement, bound).fetchall()  # type: ignore[no-any-return]

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
        return packing.read(
            self.execute, MARK, table, numbers, body, prefix, start, before, limit, bytes_max, sql.STRING_AGG
        )
