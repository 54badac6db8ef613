"""The write transaction of SQLite: rows that commands have buffered go to the database, and are read from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from tailrace.storage import packing, sql, staging
from tailrace.storage.engine import Packed, Tx
from tailrace.storage.reading import MARK
from tailrace.storage.staging import EVERY, StagedView, StagingList
from tailrace.storage.table import Key, R, StorageTable
from tailrace.storage.translation import FOREIGN, REFUSALS, refused, translated

if TYPE_CHECKING:
    from tailrace.storage.sqlite import SqliteEngine


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
        self._marks: dict[StagingList, int] = {}
        with translated():
            for staged in engine.all_staged():
                if staged.open:
                    staged.ended(self._execute)  # a commit may have been interrupted when it was durable
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
            added = staged.pending
            staged.committed(self._moved.get(staged.table, 0))
            if added and staged.overgrown:
                with suppress(*FOREIGN):  # the commit is durable, and the next one tries again
                    staged.load(self._execute, added)
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
                    staged.ended(self._execute)
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
        for first in range(0, len(last), sql.KEYS_AT_ONCE):
            some = last[first : first + sql.KEYS_AT_ONCE]
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
                    self._connection.executemany(sql.insert(table.staging, MARK), staged.add(small, self.now_ms))
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
        if len(rows) > sql.KEYS_AT_ONCE:  # so that neighbours are written together, each page once
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
            rows = self._engine.staged(table, self._execute)
            return iter(list(staging.oldest(self._execute, table, rows, self.now_ms, least, limit)))

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
