"""The write transaction of PostgreSQL: what commands have buffered waits, and goes to the server in one round trip.

Statements wait until the transaction has to see their effect, or is committed: then BEGIN, all of them, and the next
query or the fence and COMMIT are sent at once. Before anything is sent there is no transaction, and rows are read
without one: nobody else writes. A savepoint that has not been sent is undone by dropping what waits behind it.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import errors as postgres
from psycopg.pq import ExecStatus, TransactionStatus

from tailrace.errors import Unavailable
from tailrace.storage import packing, sql, staging
from tailrace.storage import postgres_arrays as arrays
from tailrace.storage.engine import LOST, Packed, Peek, Tx
from tailrace.storage.lease import FENCE, Deposed
from tailrace.storage.postgres_errors import translate, translated, without_nul
from tailrace.storage.postgres_reading import MARK, bind, marked, pages
from tailrace.storage.staging import EVERY, StagedView, StagingList
from tailrace.storage.table import Key, R, StorageTable

if TYPE_CHECKING:
    from tailrace.storage.postgres import PostgresEngine

_ROUNDS: Final = 3  # of `fetch_ahead`: a row may say which others are read
_ENDING: Final = ("57P", "08")  # classes of errors that end the connection
_ABSENT: Final[Any] = object()


def undo(connection: Any, statement: bytes) -> None:
    """Run a statement of which the driver must not know: after a ROLLBACK it would prepare all statements again."""
    result = connection.pgconn.exec_(statement)
    if result.status != ExecStatus.COMMAND_OK:
        raise psycopg.OperationalError(result.get_error_message())


class PostgresTx(Tx):
    """The write transaction. One thread at a time."""

    def __init__(self, engine: PostgresEngine, now_ms: int) -> None:
        super().__init__(now_ms)
        self._engine = engine
        self._lease = engine.lease
        self._connection = engine.lease.writer
        self._cursor = self._connection.cursor(binary=True)
        self._cache = engine.cache
        self.vault = engine.vault
        self._waiting: list[tuple[str, Any]] = []
        self._begun = False
        self._ended = False
        self._save_at = -1  # where the savepoint waits; -1: it was sent, or there is none
        self._ahead: dict[StorageTable[Any], dict[Key, Any]] = {}  # rows that were read for the whole batch
        self._moved: dict[StorageTable[Any], int] = {}  # the last number of the staged rows that were moved
        self._saved_moved: dict[StorageTable[Any], int] = {}
        self._marks: dict[StagingList, int] = {}

    # -- the end

    def commit(self) -> None:
        if self._waiting or self._begun or not self._lease.fresh:
            self._send_commit()
        self._succeed()

    def _send_commit(self) -> None:
        lease = self._lease
        number, (epoch, before) = lease.next_number()
        lease.warned, began_s = False, time.monotonic()
        try:
            with self._connection.pipeline():
                self._send()
                self._cursor.execute(FENCE, bind((number, self.now_ms, epoch, before)))
                self._cursor.execute("COMMIT")
            if lease.warned:  # for example: it is not known whether a synchronous standby has it
                raise psycopg.OperationalError("COMMIT was answered with a warning")
        except BaseException as error:
            if self._refused(error):
                if isinstance(error, postgres.DivisionByZero):
                    raise self._lease.end(
                        Deposed("another server leads this database by now; nothing was written")
                    ) from error
                raise translate(error) from error
            self._connection.close()
            if not lease.decide(epoch, number):
                raise Unavailable(
                    "the connection to PostgreSQL broke before the commit, and nothing was written; try again",
                    code=LOST,
                ) from error
            if not isinstance(error, Exception):
                self._succeed()
                raise
        else:
            lease.committed(number, began_s)

    def _refused(self, error: BaseException) -> bool:
        """Whether the server has answered, so that nothing is committed."""
        if not isinstance(error, psycopg.Error) or self._lease.warned or self._connection.closed:
            return False
        # Of a server that shuts down it is not known what it did before.
        answered = error.sqlstate is not None and not error.sqlstate.startswith(_ENDING)
        return answered and bool(self._connection.info.transaction_status != TransactionStatus.UNKNOWN)

    def _succeed(self) -> None:
        self._ended = True
        for table, rows in self._flushed.items():
            if table.cached:
                self._engine.remember(table, rows)
        for staged in self._engine.all_staged():
            added = staged.pending
            staged.committed(self._moved.get(staged.table, 0))
            if added and staged.overgrown and self._lease.lost is None:
                try:
                    staged.load(self._read_after, added)
                except psycopg.Error:
                    pass  # the commit is durable, and the next one tries again
        self._engine.recent.end(self._flushed)

    def _read_after(self, statement: str, bound: Any = ()) -> Any:
        return self._lease.writer.cursor(binary=True).execute(marked(statement), bind(bound) or None)

    def ended(self) -> bool:
        return self._ended

    def rollback(self) -> None:
        self._engine.cache.clear()
        self._waiting.clear()
        if not self._connection.closed and self._connection.info.transaction_status != TransactionStatus.IDLE:
            try:
                undo(self._connection, b"ROLLBACK")
            except psycopg.Error:
                self._connection.close()  # which rolls it back
        if not self._ended:
            for staged in self._engine.all_staged():
                staged.undo()
        self._engine.recent.end({})

    # -- statements

    def _send(self) -> None:
        """Send what waits; within a pipeline."""
        if not self._begun:
            self._cursor.execute("BEGIN")
            self._begun = True
        for statement, bound in self._waiting:
            self._cursor.execute(statement, bound)
        self._waiting.clear()
        self._save_at = -1

    def _execute(self, statement: str, bound: Any = ()) -> Any:
        """Run a statement with the placeholders of `sql.py`, after what waits."""
        return self._run(marked(statement), bind(bound) or None)

    def _run(self, statement: str, bound: Any) -> Any:
        cursor = self._connection.cursor(binary=True)
        with translated():
            if not self._waiting:
                return cursor.execute(statement, bound)
            with self._connection.pipeline():
                self._send()
                cursor.execute(statement, bound)
            return cursor

    def _queue(self, statement: str, bound: Any = None) -> None:
        self._waiting.append((statement, bound))

    # -- texts that PostgreSQL does not store fail the command, and not its whole batch

    def _set(self, table: StorageTable[Any], key: Key, row: Any) -> None:
        for value in key if row is None else table.fields_of(row):
            if type(value) is str:
                without_nul(value)
        super()._set(table, key, row)

    # -- reading

    def fetch_ahead(self, declare: Sequence[Callable[[Peek], None]]) -> None:
        for _ in range(_ROUNDS):
            wanted: dict[StorageTable[Any], dict[Key, None]] = {}

            def peek(table: StorageTable[Any], *key: Any, wanted: Any = wanted) -> Any:
                known = self._known(table, key)
                if known is _ABSENT:
                    wanted.setdefault(table, {})[key] = None
                    return None
                return known

            for reads in declare:
                reads(peek)
            if not wanted:
                return
            self._fetch_all(wanted)

    def _known(self, table: StorageTable[Any], key: Key) -> Any:
        """A row in memory, None for one that is known not to exist, or _ABSENT."""
        if table.cached:
            row = self._cache.get(table, {}).get(key)
        else:
            row = self._engine.recent.of(table).get(key) if table.recent_bytes else None
        if row is not None:
            return row
        return self._ahead.get(table, {}).get(key, _ABSENT)

    def _fetch_all(self, wanted: dict[StorageTable[Any], dict[Key, None]]) -> None:
        asked = []
        with translated(), self._connection.pipeline():
            for table, keys in wanted.items():
                columns = arrays.keys_of(table)
                try:
                    bound = [
                        arrays.pack(column.kind, values)
                        for column, values in zip(columns, zip(*keys, strict=True), strict=True)
                    ]
                except (struct.error, TypeError, AttributeError, ValueError):
                    continue  # a key that cannot be one: the command that has it will say so
                cursor = self._connection.cursor(binary=True)
                cursor.execute(arrays.bulk_select(table), bound)
                asked.append((table, keys, cursor))
        for table, keys, cursor in asked:
            found: dict[Key, Any] = dict.fromkeys(keys)
            for values in cursor.fetchall():
                row = table.load(values)
                found[table.key_of(row)] = row
            if table.cached:
                self._engine.remember(table, {key: row for key, row in found.items() if row is not None})
                found = dict.fromkeys([key for key in found if found[key] is None])
            self._ahead.setdefault(table, {}).update(found)

    def _load(self, table: StorageTable[R], key: Key) -> R | None:
        row: Any
        if table.cached:
            rows = self._cache.get(table)
            row = None if rows is None else rows.get(key)
        else:
            row = self._engine.recent.of(table).get(key) if table.recent_bytes else None
        if row is not None:
            return row  # type: ignore[no-any-return]
        ahead = self._ahead.get(table)
        if ahead is not None:
            row = ahead.get(key, _ABSENT)
            if row is not _ABSENT:
                return row  # type: ignore[no-any-return]
        values = self._execute(sql.select_one(table, MARK), key).fetchone()
        found = None if values is None else table.load(values)
        flushed = self._flushed.get(table)
        # Flushed rows are not committed yet, so they must not go into the cache.
        if table.cached and found is not None and not self._saved and (flushed is None or key not in flushed):
            self._engine.remember(table, {key: found})
        return found

    def _load_each(self, table: StorageTable[R], prefix: Key, last: Sequence[Any]) -> dict[Any, R]:
        assert not table.cached, f"{table.name} is cached: get its rows one by one"
        at = len(prefix)
        found: dict[Any, R] = {}
        missing: list[Any] = []
        for value in last:
            row = self._known(table, (*prefix, value))
            if row is _ABSENT:
                missing.append(value)
            elif row is not None:
                found[value] = row
        if missing:
            for value in missing:
                if type(value) is str:
                    without_nul(value)
            with translated():
                values = arrays.pack(table.columns[at].kind, missing)
            rows = self._run(arrays.select_any(table, at), [*bind(prefix), values]).fetchall()
            found.update((row[at], table.load(row)) for row in rows)
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
            found = pages(self._execute, table, prefix, start, after, before, limit, reverse, covering)
            return iter([table.load(row) for row in found])

        view = self._staged(table)
        if view is None:
            return stored(limit)
        assert table.staging is not None
        load = table.staging.load
        return iter(
            list(staging.scan(view, table, stored, load, prefix, start, after, before, limit, reverse, covering))
        )

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
            return self._execute(statement, bound).fetchall()  # type: ignore[no-any-return]

        view = self._staged(table)
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
        return packing.read(
            self._execute, MARK, table, numbers, body, prefix, start, before, limit, bytes_max, sql.STRING_AGG
        )

    # -- writing

    def _insert(self, table: StorageTable[Any], rows: list[Any]) -> None:
        packed = rows if table.pack is None else table.pack(rows)
        staged = self._engine.staged(table, self._execute)
        if staged is not None:
            assert table.staging is not None
            small = [row for row in packed if table.staged(row)]
            if small:
                self._queue_rows(table.staging, staged.add(small, self.now_ms))
            packed = [row for row in packed if not table.staged(row)]
        if packed:
            self._queue_rows(table, list(map(table.values, packed)))
        self._ahead.pop(table, None)

    def _queue_rows(self, table: StorageTable[Any], rows: list[Key]) -> None:
        self._queue(arrays.bulk_insert(table), arrays.columns_of(table, rows, table.stored))

    def _write(self, table: StorageTable[Any], rows: dict[Key, Any]) -> None:
        for known in (self._cache.get(table), self._ahead.get(table)):
            if known is not None:
                for key in rows:
                    known.pop(key, None)
        if table.recent_bytes:
            self._engine.recent.of(table).begin(rows)
        there = [table.values(row) for row in rows.values() if row is not None]
        gone = [key for key, row in rows.items() if row is None]
        if there:
            self._queue(arrays.bulk_upsert(table), arrays.columns_of(table, there, table.stored))
        if gone:
            self._queue(arrays.bulk_delete(table), arrays.columns_of(table, gone, arrays.keys_of(table)))

    def _remove(self, table: StorageTable[Any], prefix: Key, before: Any, limit: int) -> int:
        assert not table.cached, f"{table.name} is cached: delete its rows one by one"
        self._ahead.pop(table, None)
        if table.recent_bytes:
            self._engine.recent.of(table).begin_all()
        self._begin()
        view = self._staged(table)
        if view is not None:
            return self._remove_staged(table, view, prefix, before, limit)
        chosen, bound = sql.scan(table, prefix, None, None, before, limit, False, MARK, "ctid")
        statement = f"DELETE FROM {table.name} WHERE ctid = ANY (ARRAY({chosen}))"
        return self._execute(statement, bound).rowcount  # type: ignore[no-any-return]

    def _remove_staged(self, table: StorageTable[Any], view: StagedView, prefix: Key, before: Any, limit: int) -> int:
        """As `_remove`, of a table with staged rows: the lowest of both."""
        assert table.staging is not None
        assert len(prefix) == 1, f"rows of {table.name} are removed by their first key column"
        second = table.key[1]
        statement, bound = sql.scan(table, prefix, None, None, before, limit, False, MARK, second)
        stored = [(key, None) for (key,) in self._execute(statement, bound).fetchall()]
        listed = view.between(prefix[0], None, before)[:]
        staged = [(key, number) for number, key in view.fetch(second, listed)][:limit]
        lowest = sorted([*stored, *staged], key=itemgetter(0))[:limit]
        keys = [(prefix[0], key) for key, number in lowest if number is None]
        numbers = [(number,) for _, number in lowest if number is not None]
        for of, gone in ((table, keys), (table.staging, numbers)):
            if gone:
                self._queue(arrays.bulk_delete(of), arrays.columns_of(of, gone, arrays.keys_of(of)))
        return len(lowest)

    def _select_staged(self, table: StorageTable[R], least: int, limit: int) -> Iterator[tuple[int, R]]:
        rows = self._engine.staged(table, self._execute)
        return iter(list(staging.oldest(self._execute, table, rows, self.now_ms, least, limit)))

    def _settle(self, table: StorageTable[Any], first: int, last: int, count: int, rows: list[Any]) -> bool:
        assert table.staging is not None
        self._begin()
        self._engine.staged(table, self._execute)  # lists them, if they are not yet: this may be rolled back
        numbers = staging.numbers(self._execute, table)
        ((there,),) = self._execute(sql.count_up_to(table.staging, MARK), (last,)).fetchall()
        if numbers is None or numbers[0] != first or there != count:
            return False
        if rows:
            self._queue_rows(table, list(map(table.values, sorted(rows, key=table.key_of))))
        self._queue(marked(sql.delete_up_to(table.staging, MARK)), bind((last,)))
        self._moved[table] = last
        return True

    # -- savepoints

    def _begin(self) -> None:
        """Begin the transaction now: what follows is not only read."""
        if not self._begun:
            with translated(), self._connection.pipeline():
                self._send()

    def _savepoint(self) -> None:
        self._save_at = len(self._waiting)
        self._queue("SAVEPOINT command")
        self._marks = {staged: staged.mark() for staged in self._engine.all_staged()}
        self._saved_moved = dict(self._moved)

    def _rollback_to(self) -> None:
        if self._save_at >= 0:
            del self._waiting[self._save_at + 1 :]
        else:
            self._waiting.clear()
            with translated():
                undo(self._connection, b"ROLLBACK TO command")
        for staged in self._engine.all_staged():
            staged.undo(self._marks.get(staged, 0))
        self._moved = self._saved_moved

    def _release(self) -> None:
        if self._save_at >= 0:
            del self._waiting[self._save_at]
            self._save_at = -1
        else:
            self._queue("RELEASE command")
