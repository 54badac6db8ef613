"""Writing rows: what INSERT, UPDATE and DELETE do inside the write transaction, and CREATE TABLE with its columns.

Like every write of an item these plan with `tables.write` and then do, so a row, its change record and its messages are
one transaction. What a statement says was checked against the table as it was when the statement was read; the table's
uuid says whether it is still the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from tailrace import limits
from tailrace.access import Permission
from tailrace.command import Command
from tailrace.errors import Conflict, Invalid
from tailrace.sql.values import columns_of, typed
from tailrace.storage.engine import Tx
from tailrace.tables import definition as definitions
from tailrace.tables import key as keys
from tailrace.tables import lifecycle, messages, schema, value, write
from tailrace.tables.change import Capture, too_large
from tailrace.tables.definition import TABLES, Column, Definition, decoded, find
from tailrace.tables.value import Item

Term: TypeAlias = Callable[[Item], Any]  # a compiled expression with its parameters: of the row as it is, a plain value


class Made(msgspec.Struct, frozen=True):
    """A table is there; `fresh`: it was not before."""

    definition: Definition
    fresh: bool


class DefineTable(Command[Made], frozen=True):
    """Make a table with declared columns."""

    permission = Permission.ADMIN

    spec: schema.Spec
    columns: tuple[Column, ...]
    ttl: str | None = None
    if_not_exists: bool = False

    def subjects(self) -> tuple[str, ...]:
        return (f"tables/{self.spec.name}",)

    def run(self, tx: Tx) -> Made:
        there = tx.get(TABLES, self.spec.name)
        if there is not None and self.if_not_exists:
            return Made(decoded(there), False)
        lifecycle.CreateTable(self.spec).run(tx)
        if self.ttl is not None:
            lifecycle.SetTimeToLive(self.spec.name, self.ttl, True).run(tx)
        definition = msgspec.structs.replace(find(tx, self.spec.name), columns=self.columns)
        definitions.save(tx, definition)
        return Made(definition, True)


class RowsWritten(msgspec.Struct, frozen=True, gc=False):
    """How many rows, and the sequence of their change records where there are any."""

    rows: int
    sequence: int | None = None


class RowsCommand(Command[RowsWritten], frozen=True):
    """Something is done to rows of a table that is still the one it was when the statement was read."""

    subject = ("tables", "table")

    table: str
    uuid: str

    def definition(self, tx: Tx) -> Definition:
        found = find(tx, self.table)
        if found.uuid != self.uuid:
            raise Conflict(f"table {self.table!r} was dropped and made anew meanwhile; try again", code="TABLE_CHANGED")
        return found


class InsertRows(RowsCommand, frozen=True):
    """Insert rows: all, or none if there is one with the key of one of them. `replace`: that is replaced."""

    items: tuple[Item, ...]
    replace: bool = False

    def size(self) -> int:
        return sum([value.item_size(item) for item in self.items])

    def heavy(self) -> bool:
        return len(self.items) > limits.LOOP_WRITES or self.size() > limits.LOOP_BYTES

    def run(self, tx: Tx) -> RowsWritten:
        definition = self.definition(tx)
        plans: list[write.Plan] = []
        known: dict[bytes, int] = {}
        total = 0
        for number, item in enumerate(self.items, start=1):
            plan = write.find(tx, definition, keys.item_key(definition, item), item)
            if plan.key in known:
                raise Conflict(
                    f"rows {known[plan.key]} and {number} have the same key, {_key(definition, item)}; give each once",
                    code="DUPLICATE_KEY",
                )
            if plan.row is not None and not self.replace:
                raise Conflict(
                    f"row {number}: table {self.table!r} has a row with {_key(definition, item)} already; use INSERT "
                    "OR REPLACE to put the new one in its place, or UPDATE",
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
    """Something is done to the row with a key, if it is there and meets all conditions."""

    key: Item
    conditions: tuple[Term, ...] = ()

    def plan(self, tx: Tx) -> tuple[write.Plan, Item | None]:
        """The row's plan, and the row if it is the one that is meant."""
        definition = self.definition(tx)
        plan = write.find(tx, definition, keys.key_of(definition, self.key), self.key)
        row = plan.old
        meant = row is not None and all(condition(row) for condition in self.conditions)
        return plan, row if meant else None

    def size(self) -> int:
        return value.item_size(self.key) + limits.KiB


class UpdateRow(RowCommand, frozen=True, kw_only=True):
    """Set columns of a row; every value is worked out from the row as it was before."""

    sets: tuple[tuple[str, Term], ...]

    def run(self, tx: Tx) -> RowsWritten:
        plan, row = self.plan(tx)
        if row is None:
            return RowsWritten(0)
        columns = columns_of(plan.definition)
        changed = dict(row)
        for name, term in self.sets:
            found = typed(columns.get(name), name, term(row))
            if found is None:
                changed.pop(name, None)
            else:
                changed[name] = found
        _fill(plan, changed, messages.UPDATED_ITEM_TOO_LARGE)
        return _done(tx, plan)


class DeleteRow(RowCommand, frozen=True):
    """Delete a row."""

    freeing = True

    def run(self, tx: Tx) -> RowsWritten:
        plan, row = self.plan(tx)
        return RowsWritten(0) if row is None else _done(tx, plan)


def _fill(plan: write.Plan, item: Item, too_large: str) -> None:
    """Let the plan be to have this item."""
    value.check_names(item)
    plan.new, plan.size = item, value.item_size(item)
    if plan.size > limits.ITEM_BYTES_MAX:
        raise Invalid(too_large)


def _done(tx: Tx, plan: write.Plan) -> RowsWritten:
    capture = Capture()
    write.do(tx, plan, capture)
    return RowsWritten(1, capture.append(tx))


def _key(definition: Definition, item: Item) -> str:
    return " and ".join(f"{name} = {str(value.to_plain(item[name]))[:100]!r}" for name in definition.keys)
