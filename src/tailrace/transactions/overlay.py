"""Writes over committed rows that are never committed: how a transaction sees its own writes before its commit, and how
its operations are planned.

An overlay is a `Tx`, so commands run in it and queries read from it as anywhere else. It writes to memory alone. Reads
of items and of indexes that reach the rows below are recorded, if wanted: a result depends on these, and on no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from types import MappingProxyType
from typing import Any, NoReturn

from tailrace import limits
from tailrace.storage.engine import Packed, Reader, Tx
from tailrace.storage.table import Key, R, StorageTable
from tailrace.tables.definition import INDEX_ENTRIES, ITEMS, TABLES, Definition, ItemRow, TableRow, decoded
from tailrace.transactions.reads import (
    DefinitionRead,
    RangeDigest,
    RangeRead,
    RowRead,
    TransactionRead,
    definition_read,
    digest_of,
    in_steps,
    too_many,
)


class OpenRange:
    """A range that is being read. The record is right at any time: nothing has to be closed."""

    def __init__(
        self,
        table: str,
        space: int,
        index: bool,
        bounds: tuple[bytes | None, bytes | None, bytes | None],
        reverse: bool,
    ) -> None:
        self.last: bytes | None = None
        self._table = table
        self._space = space
        self._index = index
        self._bounds = bounds
        self._reverse = reverse
        self._digest = RangeDigest()

    def add(self, row: Any) -> None:
        self._digest.add(row)
        self.last = row.key

    def read(self) -> RangeRead:
        digest = self._digest
        return RangeRead(
            self._table, self._space, self._index, *self._bounds, self._reverse, self.last, digest.count,
            digest.digest(),
        )  # fmt: skip


class ReadRecorder:
    """The rows that were read below an overlay, and the definitions of their tables."""

    def __init__(self) -> None:
        self.ranges: list[OpenRange] = []
        self._rows: dict[Key, RowRead] = {}
        self._tables: dict[int, Definition] = {}  # by space
        self._definitions: dict[str, DefinitionRead] = {}
        self._count = 0
        self._bytes = 0

    def know(self, definition: Definition) -> None:
        """The spaces of a table."""
        for space in (definition.space, *(index.space for index in definition.indexes)):
            self._tables[space] = definition

    def table(self, name: str, row: TableRow | None) -> None:
        """The definition of a table, or that there is none."""
        definition = None if row is None else decoded(row)
        if name not in self._definitions:
            self._definitions[name] = definition_read(name, definition)
        if definition is not None:
            self.know(definition)

    def row(self, place: Key, row: ItemRow | None) -> None:
        if place not in self._rows:
            space, key = place
            self.count(0 if row is None else len(row.body))
            self._rows[place] = RowRead(self._tables[space].name, space, key, digest_of(row))

    def count(self, size: int) -> None:
        """Count a row; raises if there are too many."""
        self._count += 1
        self._bytes += size
        if self._count > limits.TRANSACTION_READS_MAX or self._bytes > limits.TRANSACTION_READS_BYTES_MAX:
            raise too_many()

    def definition(self, space: int) -> Definition:
        """The table that has this space."""
        return self._tables[space]

    def reads(self) -> tuple[TransactionRead, ...]:
        return (*self._definitions.values(), *self._rows.values(), *(each.read() for each in self.ranges))


class NoExports(dict[int, Sequence[Any]]):
    """Stands for the exports of tables: what is too large to be read at once is too large for a transaction."""

    def begin_together(self, *args: Any) -> NoReturn:
        raise too_many()


class OverlayTx(Tx):
    """Writes over the rows of a reader, or of a transaction; they stay here."""

    def __init__(
        self,
        below: Reader | Tx,
        recorder: ReadRecorder | None = None,
        dependent: Mapping[tuple[int, bytes], ItemRow | None] = MappingProxyType({}),
    ) -> None:
        """`dependent`: items that are written here and depend on what is stored, and what that is; to read such an item
        is to read the stored one."""
        super().__init__(below.now_ms)
        self.lag_ms = below.lag_ms
        self.cold, self.recent, self.vault = below.cold, below.recent, below.vault
        self._below = below
        self._recorder = recorder
        self._dependent = dependent
        self.exports = NoExports()
        self.tentative = True

    # -- reading

    def get(self, table: StorageTable[R], *key: Any) -> R | None:
        """As `Tx.get`."""
        if table is ITEMS and self._recorder is not None and key in self._dependent:
            self._recorder.row(key, self._dependent[key])
        return super().get(table, *key)

    def _load(self, table: StorageTable[R], key: Key) -> R | None:
        row = self._below.get(table, *key)
        if self._recorder is not None:
            if table is ITEMS:
                self._recorder.row(key, row)  # type: ignore[arg-type]
            elif table is TABLES:
                self._recorder.table(key[0], row)  # type: ignore[arg-type]
        return row

    def _load_each(self, table: StorageTable[R], prefix: Key, last: Sequence[Any]) -> dict[Any, R]:
        rows = {value: self._load(table, (*prefix, value)) for value in last}
        return {value: row for value, row in rows.items() if row is not None}

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
        """As `Reader.scan`, over what was written here."""
        if table is not ITEMS and table is not INDEX_ENTRIES:
            assert not self._dirty.get(table) and not self._added.get(table), f"{table.name} is not read in an overlay"
            bounds = {"start": start, "after": after, "before": before, "covering": covering}
            return self._below.scan(table, *prefix, **bounds, limit=limit, reverse=reverse)
        (space,) = prefix
        if table is INDEX_ENTRIES and self._recorder is not None:  # their places in the index depend on it, too
            for place, row in self._dependent.items():
                self._recorder.row(place, row)
        return self._merged(table, space, start, after, before, limit, reverse)

    def _merged(
        self,
        table: StorageTable[Any],
        space: int,
        start: bytes | None,
        after: bytes | None,
        before: bytes | None,
        limit: int | None,
        reverse: bool,
    ) -> Iterator[Any]:
        """The rows of a range, those below and those written here."""
        written: dict[bytes, Any] = {
            key: row
            for (owner, key), row in self._dirty.get(table, {}).items()
            if owner == space
            and (start is None or key >= start)
            and (after is None or key > after)
            and (before is None or key < before)
        }
        found = self._recorded(table, space, start, after, before, reverse)
        kept = _without(found, written)
        added = sorted((row for row in written.values() if row is not None), key=_key, reverse=reverse)
        left = limit
        for row in merge(kept, added, key=_key, reverse=reverse):
            yield row
            if left is not None:
                left -= 1
                if left == 0:
                    return

    def _recorded(
        self,
        table: StorageTable[Any],
        space: int,
        start: bytes | None,
        after: bytes | None,
        before: bytes | None,
        reverse: bool,
    ) -> Iterator[Any]:
        """The rows of a range below, and a record of those that were taken."""
        index = table is INDEX_ENTRIES
        found = in_steps(self._below, index, space, start, after, before, reverse)
        recorder = self._recorder
        if recorder is None:
            yield from found
            return
        reading = OpenRange(recorder.definition(space).name, space, index, (start, after, before), reverse)
        recorder.ranges.append(reading)
        for row in found:
            recorder.count(len(row.item) if index else len(row.body))
            reading.add(row)
            yield row
        reading.last = None  # to the end of the range

    def values(
        self,
        table: StorageTable[Any],
        columns: str,
        *prefix: Any,
        start: Any = None,
        limit: int | None = None,
        covering: Any = None,
    ) -> list[tuple[Any, ...]]:
        """As `Reader.values`, of tables that nothing is written to here."""
        assert not self._dirty.get(table) and not self._added.get(table), f"{table.name} is not read in an overlay"
        return self._below.values(table, columns, *prefix, start=start, limit=limit, covering=covering)

    def packed(self, *args: Any, **bounds: Any) -> Packed:
        """Bulk reads are not recorded, so there are none."""
        raise too_many()

    # -- writing

    def written(self, table: StorageTable[Any]) -> dict[Key, Any]:
        """The rows of a table that were written here, None where one was deleted, by their keys."""
        return self._dirty.get(table, {})

    def stored(self, space: int, key: bytes) -> ItemRow | None:
        """The item below, whatever is written here."""
        return self._below.get(ITEMS, space, key)

    def commit(self) -> None:
        self._refuse()

    def ended(self) -> bool:
        return False

    def rollback(self) -> None:
        """There is nothing to drop."""

    # -- what an overlay has no use for

    def _flush_early(self, *, always: bool = False) -> None:
        self._refuse()

    def flush(self) -> None:
        self._refuse()

    def _select(self, *args: Any) -> Iterator[Any]:
        self._refuse()

    def _select_values(self, *args: Any) -> list[tuple[Any, ...]]:
        self._refuse()

    def _select_packed(self, *args: Any) -> Packed:
        self._refuse()

    def _insert(self, *args: Any) -> None:
        self._refuse()

    def _write(self, *args: Any) -> None:
        self._refuse()

    def _remove(self, *args: Any) -> int:
        self._refuse()

    def _select_staged(self, *args: Any) -> Iterator[Any]:
        self._refuse()

    def _settle(self, *args: Any) -> bool:
        self._refuse()

    def _savepoint(self) -> None:
        self._refuse()

    def _rollback_to(self) -> None:
        self._refuse()

    def _release(self) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise AssertionError("an overlay holds rows of items and of indexes, in memory")


def _without(rows: Iterator[Any], keys: dict[bytes, Any]) -> Iterator[Any]:
    for row in rows:
        if row.key not in keys:
            yield row


def _key(row: Any) -> bytes:
    key: bytes = row.key
    return key
