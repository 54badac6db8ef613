"""The commands behind INSERT, UPDATE and DELETE, and the queries behind SHOW TABLES and WHERE.

Like every write of an item they plan with `tables.write` and then apply the plan, so that a row, its change record and
its messages are one transaction. A statement is checked against the table's definition before its command runs; the
command compares the table's uuid to be sure that the table is still the same.

UPDATE and DELETE have two steps: `FindRows` finds keys, in slices; one command then judges the rows with these keys by
their present values. Commands are plain data: an expression is its text, compiled when it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec

from tailrace import limits, scalar
from tailrace.access import Permission
from tailrace.command import Command, Query
from tailrace.errors import Conflict, Invalid
from tailrace.scalar.problem import ExpressionError, TextOrigin
from tailrace.scalar.reading import read
from tailrace.sql.access import Comparison, SourceNeeds, access_path
from tailrace.sql.values import columns_of, typed
from tailrace.storage.engine import Reader, Tx
from tailrace.tables import key as keys
from tailrace.tables import lifecycle, messages, value, write
from tailrace.tables.change import Capture, too_large
from tailrace.tables.definition import (
    INDEX_ENTRIES,
    ITEMS,
    TABLES,
    Definition,
    IndexDefinition,
    ItemRow,
    decoded,
    find,
)
from tailrace.tables.value import Item

_S = TypeVar("_S", bound=scalar.Scalar)
_OTHER: Final = frozenset(("old", "new"))  # the sides that only a conflict may read


class AllTables(Query[list[lifecycle.TableDescription]], frozen=True):
    """A page of tables with their item counts, ordered by name, `after` one."""

    after: str | None = None
    limit: int = limits.SLICE_ENTRIES

    def run(self, reader: Reader) -> list[lifecycle.TableDescription]:
        rows = list(reader.scan(TABLES, after=self.after, limit=self.limit))
        return [lifecycle.describe(reader, decoded(row)) for row in rows]


class RowExpression(msgspec.Struct, frozen=True):
    """An expression over a row: its text, the values of its parameters (the last is the time of the statement, if it
    needs that), and where it is in the statement. `excluded`: it may read the row that was to be inserted, under the
    name OLD."""

    text: str
    params: tuple[Any, ...] = ()
    line: int = 1
    column: int = 1
    excluded: bool = False

    def condition(self, definition: Definition) -> scalar.Condition:
        """The compiled condition; raises if it is not valid for this table."""
        columns, keys = _names(definition)
        try:
            compiled = _condition(self.text, columns, keys)
        except ExpressionError:  # compile again with the location, for the error
            tree = read(self.text, TextOrigin(self.line, self.column))
            compiled = scalar.compile_condition(tree, columns=columns, line=self.line, column=self.column, keys=keys)
        return self._checked(compiled)

    def value(self, definition: Definition) -> scalar.ValueExpression:
        """The compiled value, likewise."""
        columns, keys = _names(definition)
        return self._checked(
            scalar.exact_value(self.text, columns=columns, line=self.line, column=self.column, keys=keys)
        )

    def _checked(self, compiled: _S) -> _S:
        if compiled.sides & _OTHER and not (self.excluded and "new" not in compiled.sides):
            raise ExpressionError(
                "OLD and NEW are only allowed in the sources of topics; here, write the name of the column alone",
                line=self.line,
                column=self.column,
            )
        return compiled


def _names(definition: Definition) -> tuple[tuple[tuple[str, str], ...] | None, tuple[str, ...]]:
    """The declared columns; or, if there are none, the key, whose names match in any case."""
    declared = definition.expression_kinds
    return declared, definition.keys if declared is None else ()


@lru_cache(maxsize=1_024)
def _condition(text: str, columns: tuple[tuple[str, str], ...] | None, keys: tuple[str, ...]) -> scalar.Condition:
    return scalar.compile_condition(read(text, TextOrigin()), columns=columns, keys=keys)


class RowsWritten(msgspec.Struct, frozen=True, gc=False):
    """How many rows were written, and the sequence of their change records if there are any; and the rows, if they are
    to be returned: as they are now, or as they were if they are deleted."""

    rows: int
    sequence: int | None = None
    items: tuple[Item, ...] = ()


class FoundKeys(msgspec.Struct, frozen=True):
    """Keys of rows that meet conditions, how many rows were examined, and where to go on; None: these are all."""

    keys: list[Item]
    examined: int
    next: tuple[int, bytes] | None
    by: int = 0  # the space of the index that was searched; 0: the table's keys


class FindRows(Query[FoundKeys], frozen=True):
    """The keys of rows that meet all conditions: a slice of them, from a range of the access path and after a key."""

    permission = Permission.WRITE
    subject = ("tables", "table")

    table: str
    uuid: str
    where: tuple[RowExpression, ...]
    compared: tuple[Comparison, ...] = ()  # those of the conditions that a key or an index can answer
    after: tuple[int, bytes] = (0, b"")
    by: int = 0  # that of the slice before

    def run(self, reader: Reader) -> FoundKeys:
        definition = _same(reader, self.table, self.uuid)
        path = access_path(definition, SourceNeeds(self.compared))
        by = 0 if path.index is None else path.index.space
        conditions = [(each.condition(definition).true, each.params) for each in self.where]
        # With an index that was created or dropped since the slice before, the search begins again.
        number, after = self.after if by == self.by else (0, b"")
        found: list[Item] = []
        rows, size = limits.SELECT_SLICE_ROWS, limits.SELECT_SLICE_BYTES
        while number < len(path.ranges):
            part = path.ranges[number]
            start = after + b"\0" if after else part.start
            for place, stored in _rows_from(reader, definition, path.index, start, part.before, rows):
                after, rows = place, rows - 1
                if stored is None:
                    continue
                size -= len(stored.body)
                item = value.decode(stored.body)
                if all(true(item, None, params) for true, params in conditions):
                    found.append({name: item[name] for name in definition.keys})
                if size <= 0:
                    break
            if rows <= 0 or size <= 0:
                return FoundKeys(found, limits.SELECT_SLICE_ROWS - rows, (number, after), by)
            number, after = number + 1, b""
        return FoundKeys(found, limits.SELECT_SLICE_ROWS - rows, None)


def _rows_from(
    reader: Reader, definition: Definition, index: IndexDefinition | None, start: bytes, before: bytes, limit: int
) -> Iterator[tuple[bytes, ItemRow | None]]:
    """Rows of a range of keys of the table or of an index, and their places in it."""
    if index is None:
        for row in reader.scan(ITEMS, definition.space, start=start, before=before, limit=limit):
            yield row.key, row
    else:
        for pointer in list(reader.scan(INDEX_ENTRIES, index.space, start=start, before=before, limit=limit)):
            yield pointer.key, reader.get(ITEMS, definition.space, pointer.item)


class RowsCommand(Command[RowsWritten], frozen=True):
    """A write to rows of a table, which must be the one that the statement was checked against."""

    subject = ("tables", "table")

    table: str
    uuid: str

    def definition(self, tx: Tx) -> Definition:
        return _same(tx, self.table, self.uuid)


def _same(reader: Reader | Tx, table: str, uuid: str) -> Definition:
    definition = find(reader, table)
    if definition.uuid != uuid:
        raise Conflict(f"table {table!r} was dropped and recreated in the meantime; try again", code="TABLE_CHANGED")
    return definition


class InsertRows(RowsCommand, frozen=True):
    """Insert all rows, or none if the key of one already exists. `replace`: existing rows are replaced. `conflict`:
    they are kept, and changed by `sets` if they meet `where`."""

    items: tuple[Item, ...]
    replace: bool = False
    conflict: bool = False
    sets: tuple[tuple[str, RowExpression], ...] = ()
    where: tuple[RowExpression, ...] = ()
    returning: bool = False

    def size(self) -> int:
        return sum([value.item_size(item) for item in self.items])

    def heavy(self) -> bool:
        return len(self.items) > limits.LOOP_WRITES or self.size() > limits.LOOP_BYTES

    def run(self, tx: Tx) -> RowsWritten:
        definition = self.definition(tx)
        changed = _Changes(definition, self.sets, self.where)
        plans = _RowPlans(self.returning)
        known: dict[bytes, int] = {}
        for number, item in enumerate(self.items, start=1):
            plan = write.find(tx, definition, keys.item_key(definition, item), item)
            if plan.key in known:
                if self.conflict and not self.sets:
                    continue
                raise Conflict(
                    f"rows {known[plan.key]} and {number} have the same key, {_key(definition, item)}; keep one",
                    code="DUPLICATE_KEY",
                )
            known[plan.key] = number
            if plan.row is not None and self.conflict:
                row = plan.old
                assert row is not None
                new = changed.of(row, item) if self.sets else None
                if new is not None:
                    plans.add(plan, new, messages.UPDATED_ITEM_TOO_LARGE)
                continue
            if plan.row is not None and not self.replace:
                raise Conflict(
                    f"row {number}: table {self.table!r} already has a row with {_key(definition, item)}; use INSERT "
                    "OR REPLACE to replace it, ON CONFLICT to keep it, or UPDATE to change it",
                    code="DUPLICATE_KEY",
                )
            plans.add(plan, item, messages.ITEM_TOO_LARGE)
        return plans.done(tx)


class KeyedRows(RowsCommand, frozen=True):
    """A write to the rows with these keys that exist and meet all conditions."""

    keys: tuple[Item, ...]
    where: tuple[RowExpression, ...] = ()
    returning: bool = False

    def size(self) -> int:
        return sum([value.item_size(key) + limits.KiB for key in self.keys])

    def heavy(self) -> bool:
        return len(self.keys) > limits.LOOP_WRITES


class UpdateRows(KeyedRows, frozen=True, kw_only=True):
    """Set columns of rows; every value is computed from the row as it was before."""

    sets: tuple[tuple[str, RowExpression], ...]

    def run(self, tx: Tx) -> RowsWritten:
        definition = self.definition(tx)
        changed = _Changes(definition, self.sets, self.where)
        plans = _RowPlans(self.returning)
        for key in self.keys:
            plan = write.find(tx, definition, keys.key_of(definition, key), key)
            new = None if plan.old is None else changed.of(plan.old)
            if new is not None:
                plans.add(plan, new, messages.UPDATED_ITEM_TOO_LARGE)
        return plans.done(tx)


class DeleteRows(KeyedRows, frozen=True):
    """Delete rows."""

    freeing = True

    def run(self, tx: Tx) -> RowsWritten:
        definition = self.definition(tx)
        changed = _Changes(definition, (), self.where)
        plans = _RowPlans(self.returning)
        for key in self.keys:
            plan = write.find(tx, definition, keys.key_of(definition, key), key)
            if plan.old is not None and changed.of(plan.old) is not None:
                plans.add(plan, None, "")
        return plans.done(tx)


class _Changes:
    """What a statement makes of a row."""

    def __init__(
        self, definition: Definition, sets: Sequence[tuple[str, RowExpression]], where: Sequence[RowExpression]
    ) -> None:
        self._columns = columns_of(definition)
        self._sets = [(name, each.value(definition).of, each.params) for name, each in sets]
        self._where = [(each.condition(definition).true, each.params) for each in where]

    def of(self, row: Item, other: Item | None = None) -> Item | None:
        """The row with its columns set; None if it does not meet the conditions. `other`: the row of EXCLUDED."""
        if not all(true(row, other, params) for true, params in self._where):
            return None
        changed = dict(row)
        for name, of, params in self._sets:
            try:
                given = of(row, other, params)
            except scalar.NoResult as error:
                raise scalar.NoResult(f"column {name!r}: {error}; nothing was changed") from None
            stored = typed(self._columns.get(name), name, given)
            if stored is None:
                changed.pop(name, None)
            else:
                changed[name] = stored
        return changed


class _RowPlans:
    """The plans of a statement, all of which are made before the first is applied."""

    def __init__(self, returning: bool) -> None:
        self._returning = returning
        self._plans: list[write.WritePlan] = []
        self._size = 0

    def add(self, plan: write.WritePlan, item: Item | None, too_long: str) -> None:
        """Complete a plan with the new item, and keep it; raises if the transaction becomes too large."""
        if item is not None:
            value.check_names(item)
            plan.new, plan.size = item, value.item_size(item)
            if plan.size > limits.ITEM_BYTES_MAX:
                raise Invalid(too_long)
        self._size += plan.size + plan.size_old
        if self._size > limits.TRANSACTION_BYTES_MAX:
            raise too_large()
        self._plans.append(plan)

    def done(self, tx: Tx) -> RowsWritten:
        capture = Capture()
        for plan in self._plans:
            write.do(tx, plan, capture)
        items = [plan.old if plan.new is None else plan.new for plan in self._plans] if self._returning else []
        return RowsWritten(len(self._plans), capture.append(tx), tuple(item for item in items if item is not None))


def _key(definition: Definition, item: Item) -> str:
    return " and ".join(f"{name} = {str(value.to_plain(item[name]))[:100]!r}" for name in definition.keys)
