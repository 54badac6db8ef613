"""The commands behind INSERT, UPDATE, DELETE and CREATE TABLE, and the query behind SHOW TABLES.

Like every write of an item they plan with `tables.write` and then apply the plan, so that a row, its change record and
its messages are one transaction. A statement is checked against the table's definition before its command runs; the
command compares the table's uuid to be sure that the table is still the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tailrace import limits
from tailrace.access import Permission
from tailrace.command import Command, Query
from tailrace.errors import Conflict, Invalid
from tailrace.sql.values import columns_of, typed
from tailrace.storage.engine import Reader, Tx
from tailrace.tables import definition as definitions
from tailrace.tables import key as keys
from tailrace.tables import lifecycle, messages, schema, value, write
from tailrace.tables.change import Capture, too_large
from tailrace.tables.definition import TABLES, Column, Definition, decoded, find
from tailrace.tables.value import Item


class RowTerm:
    """A compiled expression with its parameters: from a row to a plain value. `source` is what it was compiled from, as
    data (`table_statements.term_of`)."""

    __slots__ = ("_evaluate", "source")

    def __init__(self, evaluate: Callable[[Item], Any], source: tuple[Any, ...]) -> None:
        self._evaluate = evaluate
        self.source = source

    def __call__(self, row: Item) -> Any:
        return self._evaluate(row)


class AllTables(Query[list[lifecycle.TableDescription]], frozen=True):
    """A page of tables with their item counts, ordered by name, `after` one."""

    after: str | None = None
    limit: int = limits.SLICE_ENTRIES

    def run(self, reader: Reader) -> list[lifecycle.TableDescription]:
        rows = list(reader.scan(TABLES, after=self.after, limit=self.limit))
        return [lifecycle.describe(reader, decoded(row)) for row in rows]


class DefinedTable(msgspec.Struct, frozen=True):
    """The table that CREATE TABLE created, or found if `created` is false."""

    definition: Definition
    created: bool


class DefineTable(Command[DefinedTable], frozen=True):
    """Create a table with declared columns."""

    permission = Permission.ADMIN

    spec: schema.TableSpec
    columns: tuple[Column, ...]
    ttl: str | None = None
    if_not_exists: bool = False

    def subjects(self) -> tuple[str, ...]:
        return (f"tables/{self.spec.name}",)

    def run(self, tx: Tx) -> DefinedTable:
        there = tx.get(TABLES, self.spec.name)
        if there is not None and self.if_not_exists:
            return DefinedTable(decoded(there), False)
        lifecycle.CreateTable(self.spec).run(tx)
        if self.ttl is not None:
            lifecycle.SetTimeToLive(self.spec.name, self.ttl, True).run(tx)
        definition = msgspec.structs.replace(find(tx, self.spec.name), columns=self.columns)
        definitions.save(tx, definition)
        return DefinedTable(definition, True)


class RowsWritten(msgspec.Struct, frozen=True, gc=False):
    """How many rows were written, and the sequence of their change records if there are any."""

    rows: int
    sequence: int | None = None


class RowsCommand(Command[RowsWritten], frozen=True):
    """A write to rows of a table, which must be the one that the statement was checked against."""

    subject = ("tables", "table")

    table: str
    uuid: str

    def definition(self, tx: Tx) -> Definition:
        definition = find(tx, self.table)
        if definition.uuid != self.uuid:
            raise Conflict(
                f"table {self.table!r} was dropped and recreated in the meantime; try again", code="TABLE_CHANGED"
            )
        return definition


class InsertRows(RowsCommand, frozen=True):
    """Insert all rows, or none if the key of one already exists. `replace`: existing rows are replaced."""

    items: tuple[Item, ...]
    replace: bool = False

    def size(self) -> int:
        return sum([value.item_size(item) for item in self.items])

    def heavy(self) -> bool:
        return len(self.items) > limits.LOOP_WRITES or self.size() > limits.LOOP_BYTES

    def run(self, tx: Tx) -> RowsWritten:
        definition = self.definition(tx)
        plans: list[write.WritePlan] = []
        known: dict[bytes, int] = {}
        total = 0
        for number, item in enumerate(self.items, start=1):
            plan = write.find(tx, definition, keys.item_key(definition, item), item)
            if plan.key in known:
                raise Conflict(
                    f"rows {known[plan.key]} and {number} have the same key, {_key(definition, item)}; keep one",
                    code="DUPLICATE_KEY",
                )
            if plan.row is not None and not self.replace:
                raise Conflict(
                    f"row {number}: table {self.table!r} already has a row with {_key(definition, item)}; use INSERT "
                    "OR REPLACE to replace it, or UPDATE to change it",
                    code="DUPLICATE_KEY",
                )
            known[plan.key] = number
            _fill(plan, item, messages.ITEM_TOO_LARGE)
            total += plan.size + plan.size_old
            if total > limits.TRANSACTION_BYTES_MAX:
                raise too_large()
            plans.append(plan)
        capture = Capture()
        for plan in plans:
            write.do(tx, plan, capture)
        return RowsWritten(len(plans), capture.append(tx))


class RowCommand(RowsCommand, frozen=True):
    """A write to the row with a key, if it exists and meets all conditions."""

    key: Item
    conditions: tuple[RowTerm, ...] = ()

    def plan(self, tx: Tx) -> tuple[write.WritePlan, Item | None]:
        """The row's plan, and the row if it exists and meets all conditions."""
        definition = self.definition(tx)
        plan = write.find(tx, definition, keys.key_of(definition, self.key), self.key)
        row = plan.old
        matches = row is not None and all(condition(row) for condition in self.conditions)
        return plan, row if matches else None

    def size(self) -> int:
        return value.item_size(self.key) + limits.KiB


class UpdateRow(RowCommand, frozen=True, kw_only=True):
    """Set columns of a row; every value is computed from the row as it was before."""

    sets: tuple[tuple[str, RowTerm], ...]

    def run(self, tx: Tx) -> RowsWritten:
        plan, row = self.plan(tx)
        if row is None:
            return RowsWritten(0)
        columns = columns_of(plan.definition)
        changed = dict(row)
        for name, term in self.sets:
            stored = typed(columns.get(name), name, term(row))
            if stored is None:
                changed.pop(name, None)
            else:
                changed[name] = stored
        _fill(plan, changed, messages.UPDATED_ITEM_TOO_LARGE)
        return _done(tx, plan)


class DeleteRow(RowCommand, frozen=True):
    """Delete a row."""

    freeing = True

    def run(self, tx: Tx) -> RowsWritten:
        plan, row = self.plan(tx)
        return RowsWritten(0) if row is None else _done(tx, plan)


def _fill(plan: write.WritePlan, item: Item, too_large: str) -> None:
    """Complete the plan with the new item."""
    value.check_names(item)
    plan.new, plan.size = item, value.item_size(item)
    if plan.size > limits.ITEM_BYTES_MAX:
        raise Invalid(too_large)


def _done(tx: Tx, plan: write.WritePlan) -> RowsWritten:
    capture = Capture()
    write.do(tx, plan, capture)
    return RowsWritten(1, capture.append(tx))


def _key(definition: Definition, item: Item) -> str:
    return " and ".join(f"{name} = {str(value.to_plain(item[name]))[:100]!r}" for name in definition.keys)
