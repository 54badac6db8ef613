"""The commands behind CREATE TABLE and ALTER TABLE: declared columns, constraints, settings.

A column that is added with a default, dropped or renamed changes every row, in the transaction that changes the
definition; a table with too many rows is refused, and nothing has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from tailrace import limits, scalar
from tailrace.access import Permission
from tailrace.command import Command
from tailrace.errors import Conflict, Invalid, TooLarge
from tailrace.sql.checks import violated
from tailrace.storage.engine import Tx
from tailrace.tables import constraints, lifecycle, schema, value, write
from tailrace.tables import definition as definitions
from tailrace.tables.change import Capture
from tailrace.tables.change_stream import EnableStream
from tailrace.tables.change_trimming import AlterRetention
from tailrace.tables.definition import ITEMS, TABLES, Column, Definition, decoded, find
from tailrace.tables.value import Item, Value
from tailrace.topics import router


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
    checks: tuple[tuple[str, str], ...] = ()
    max_age_s: int | UnsetType | None = UNSET  # of its change stream
    max_count: int | UnsetType | None = UNSET

    def subjects(self) -> tuple[str, ...]:
        return (f"tables/{self.spec.name}",)

    def run(self, tx: Tx) -> DefinedTable:
        there = tx.get(TABLES, self.spec.name)
        if there is not None and self.if_not_exists:
            return DefinedTable(decoded(there), False)
        lifecycle.CreateTable(self.spec).run(tx)
        if self.ttl is not None:
            lifecycle.SetTimeToLive(self.spec.name, self.ttl, True).run(tx)
        if (self.max_age_s, self.max_count) != (UNSET, UNSET):
            AlterRetention(self.spec.name, self.max_age_s, self.max_count).run(tx)
        definition = msgspec.structs.replace(find(tx, self.spec.name), columns=self.columns, checks=self.checks)
        definitions.save(tx, definition)
        return DefinedTable(definition, True)


class SetTable(Command[None], frozen=True):
    """Change settings of a table: its change stream, how long that is kept, and the column with the expiry time."""

    permission = Permission.ADMIN
    subject = ("tables", "table")

    table: str
    stream: str | UnsetType | None = UNSET
    ttl: str | UnsetType | None = UNSET
    max_age_s: int | UnsetType | None = UNSET
    max_count: int | UnsetType | None = UNSET

    def run(self, tx: Tx) -> None:
        definition = find(tx, self.table)
        if self.ttl is not UNSET:
            if definition.ttl is not None and definition.ttl != self.ttl:
                lifecycle.SetTimeToLive(self.table, definition.ttl, False).run(tx)
            if self.ttl is not None and self.ttl != definition.ttl:
                lifecycle.SetTimeToLive(self.table, self.ttl, True).run(tx)
        if self.stream is not UNSET:
            view = None if definition.stream is None or definition.stream.hidden else definition.stream.view
            if self.stream is None and view is not None:
                lifecycle.UpdateTable(self.table, schema.TableChanges(stream=schema.StreamSpec(False, None))).run(tx)
            elif self.stream is not None and view is None:
                EnableStream(self.table, self.stream).run(tx)
            elif self.stream != view:
                raise Invalid(
                    f"table {self.table!r} has a change stream with the view {view}; disable it first, because another "
                    "view is another stream"
                )
        if (self.max_age_s, self.max_count) != (UNSET, UNSET):
            AlterRetention(self.table, self.max_age_s, self.max_count).run(tx)


class ColumnsCommand(Command[int], frozen=True):
    """A change of the declared columns of a table. The result is the number of rows that it has changed."""

    permission = Permission.ADMIN
    subject = ("tables", "table")

    table: str
    uuid: str

    def definition(self, tx: Tx) -> Definition:
        definition = find(tx, self.table)
        if definition.uuid != self.uuid:
            raise Conflict(
                f"table {self.table!r} was dropped and recreated in the meantime; try again", code="TABLE_CHANGED"
            )
        if not definition.columns:
            raise Invalid(f"table {self.table!r} has no declared columns: rows may have any attribute already")
        return definition


class AddColumn(ColumnsCommand, frozen=True):
    """Declare a column; existing rows get the value of its default."""

    column: Column
    checks: tuple[tuple[str, str], ...] = ()
    value: Value | None = None

    def run(self, tx: Tx) -> int:
        definition = self.definition(tx)
        name = self.column.name
        if any(each.name.lower() == name.lower() for each in definition.columns):
            raise Conflict(f"table {self.table!r} already has a column {name!r}", code="COLUMN_EXISTS")
        taken = {each for each, _ in definition.checks}
        checks = definition.checks + tuple((_free(each, taken), text) for each, text in self.checks)
        new = msgspec.structs.replace(definition, columns=(*definition.columns, self.column), checks=checks)
        given = self.value
        return _rewritten(tx, new, None if given is None else lambda item: {name: given, **item}, check=True)


class DropColumn(ColumnsCommand, frozen=True):
    """Remove a column from the declaration and from all rows."""

    freeing = True

    column: str

    def run(self, tx: Tx) -> int:
        definition = self.definition(tx)
        _check_free(definition, self.column, "dropped")
        columns = tuple(each for each in definition.columns if each.name != self.column)
        new = msgspec.structs.replace(definition, columns=columns)
        return _rewritten(tx, new, lambda item: {name: held for name, held in item.items() if name != self.column})


class RenameColumn(ColumnsCommand, frozen=True):
    """Rename a column, in the declaration and in all rows."""

    column: str
    to: str

    def run(self, tx: Tx) -> int:
        definition = self.definition(tx)
        _check_free(definition, self.column, "renamed")
        if any(each.name.lower() == self.to.lower() != self.column.lower() for each in definition.columns):
            raise Conflict(f"table {self.table!r} already has a column {self.to!r}", code="COLUMN_EXISTS")
        columns = tuple(
            msgspec.structs.replace(each, name=self.to) if each.name == self.column else each
            for each in definition.columns
        )
        new = msgspec.structs.replace(definition, columns=columns)
        return _rewritten(
            tx, new, lambda item: {self.to if name == self.column else name: held for name, held in item.items()}
        )


class AlterConstraint(ColumnsCommand, frozen=True):
    """Add a CHECK, which all rows must meet, or drop one."""

    name: str  # of a new one, empty: it gets a name
    condition: str | None = None

    def run(self, tx: Tx) -> int:
        definition = self.definition(tx)
        there = any(name == self.name for name, _ in definition.checks)
        if self.condition is None:
            if not there:
                known = ", ".join(name for name, _ in definition.checks) or "none"
                raise Invalid(
                    f"table {self.table!r} has no constraint {self.name!r}; its constraints are: {known}",
                    code="NO_CONSTRAINT",
                )
            checks = tuple(each for each in definition.checks if each[0] != self.name)
            return _rewritten(tx, msgspec.structs.replace(definition, checks=checks), None)
        if there:
            raise Conflict(f"table {self.table!r} already has a constraint {self.name!r}", code="CONSTRAINT_EXISTS")
        name = self.name or _free(f"{self.table}_check", {each for each, _ in definition.checks})
        checks = (*definition.checks, (name, self.condition))
        return _rewritten(tx, msgspec.structs.replace(definition, checks=checks), None, check=True)


def _check_free(definition: Definition, name: str, verb: str) -> None:
    """Raise if something else depends on a column."""
    users: dict[str, Iterable[str]] = {"the key": definition.keys, "the expiry": (definition.ttl or "",)}
    users |= {f"index {index.name!r}": (*index.hash, *index.range) for index in definition.indexes}
    users |= {
        f"constraint {each!r}": violated(text, definition.expression_kinds).names for each, text in definition.checks
    }
    routes = [compiled for some in router.compiled_routes(definition) for _, compiled in some]
    users |= {f"route {number} to a topic": compiled.names for number, compiled in enumerate(routes, start=1)}
    for user, used in users.items():
        if name in used:
            raise Invalid(f"column {name!r} cannot be {verb}: {user} uses it; remove that first", code="COLUMN_USED")
    if not any(each.name == name for each in definition.columns):
        known = ", ".join(each.name for each in definition.columns)
        raise Invalid(f"table {definition.name!r} has no column {name!r}; it has {known}", code="UNKNOWN_COLUMN")


def _free(name: str, taken: set[str]) -> str:
    new, number = name, 1
    while new in taken:
        number += 1
        new = f"{name}_{number}"
    taken.add(new)
    return new


def _rewritten(tx: Tx, definition: Definition, change: Callable[[Item], Item] | None, *, check: bool = False) -> int:
    """Save the definition and change all rows; `check`: all must meet the constraints."""
    definitions.save(tx, definition)
    if change is None and not (check and definition.constrained):
        return 0
    rows = list(tx.scan(ITEMS, definition.space, limit=limits.SQL_WRITE_ROWS_MAX + 1))
    if len(rows) > limits.SQL_WRITE_ROWS_MAX or sum(row.size for row in rows) > limits.TRANSACTION_BYTES_MAX:
        raise TooLarge(
            f"table {definition.name!r} has more rows than can be changed in one transaction "
            f"({limits.SQL_WRITE_ROWS_MAX:,} rows, {limits.TRANSACTION_BYTES_MAX:,} bytes); nothing was changed; "
            "create another table and copy the rows",
            code="TOO_MANY_ROWS",
        )
    capture = Capture()
    changed = 0
    for row in rows:
        old = value.decode(row.body)
        new = old if change is None else change(old)
        if check:
            constraints.check(definition, new)
        if new != old:
            plan = write.WritePlan(definition, row.key, new, row)
            plan.new, plan.size = new, value.item_size(new)
            if plan.size > limits.ITEM_BYTES_MAX:
                raise Invalid("a row would become too large; nothing was changed")
            write.do(tx, plan, capture)
            changed += 1
    capture.append(tx)
    return changed


def check_texts(columns: tuple[tuple[str, str], ...], checks: list[tuple[str, Any]]) -> tuple[tuple[str, str], ...]:
    """The names and texts of CHECK constraints, each with a name of its own; raises if one is not valid."""
    taken: set[str] = set()
    found: list[tuple[str, str]] = []
    for name, condition in checks:
        scalar.condition(condition.text, columns=columns, line=condition.line, column=condition.column)
        found.append((_free(name, taken), condition.text))
    return tuple(found)
