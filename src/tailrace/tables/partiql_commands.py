"""Writes of PartiQL statements: the commands of single items, whose keys are in a WHERE clause.

The key is known once the table is, so it is found in the transaction. Two things differ from the other writes: INSERT
does not replace an item, and UPDATE does not create one. DELETE of an item that does not exist does nothing, whatever
its other conditions are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tailrace.command import Query
from tailrace.errors import DuplicateItem, Invalid
from tailrace.storage.engine import Reader, Tx
from tailrace.tables import messages, partiql
from tailrace.tables.binding import Placeholders, Source
from tailrace.tables.commands import CheckItem, DeleteItem, PutItem, UpdateItem
from tailrace.tables.condition import ItemCondition
from tailrace.tables.definition import TABLES, Definition, decoded, find
from tailrace.tables.partiql_tree import PartiQLDelete, PartiQLExists, PartiQLUpdate, StatementSource
from tailrace.tables.value import Item
from tailrace.tables.write import WritePlan

INCOMPLETE: Final = "Where clause does not contain a mandatory equality on all key attributes"
NO_CONDITION: Final = "EXISTS() must contain a single item read with additional condition"
ON_INDEX: Final = "This operation is not supported on an index"


class FindTables(Query[dict[str, Definition]], frozen=True):
    """The definitions of tables, by name; those that do not exist are left out."""

    names: tuple[str, ...]

    def subjects(self) -> tuple[str, ...]:
        return tuple({f"tables/{name}" for name in self.names})

    def run(self, reader: Reader) -> dict[str, Definition]:
        rows = {name: reader.get(TABLES, name) for name in self.names}
        return {name: decoded(row) for name, row in rows.items() if row is not None}


class ItemWhere:
    """The WHERE clause of a write. `within`: what an error is called that refuses a whole transaction. `source`: the
    statement's text and parameters, and `within`."""

    __slots__ = ("_given", "_statement", "_within", "source")

    def __init__(
        self,
        statement: PartiQLUpdate | PartiQLDelete | PartiQLExists,
        given: Placeholders,
        within: str | None = None,
        source: Source | None = None,
    ) -> None:
        self.source = source
        self._statement = statement
        self._given = given
        self._within = within
        where = statement.select.where if isinstance(statement, PartiQLExists) else statement.where
        partiql.condition([] if where is None else [where], given)  # what is wrong with it on any table
        _check_source(statement.source, isinstance(statement, PartiQLExists))

    def item(self, definition: Definition) -> tuple[Item, ItemCondition | None]:
        """The key of the item, and the condition on it."""
        statement = self._statement
        where = statement.select.where if isinstance(statement, PartiQLExists) else statement.where
        named = partiql.named_item(where, self._given, definition.keys)
        complete = len(named.key) == len(definition.keys)
        if isinstance(statement, PartiQLExists):
            if not complete or not named.rest:
                raise messages.RequestInvalid(f"{self._within or ''}{NO_CONDITION}")
        elif not complete:
            raise Invalid(INCOMPLETE if self._within is None else messages.KEY_MISMATCH)
        elif named.conflict is not None:
            raise Invalid(
                f"Multiple conditions on same key {named.conflict}. Only single item Update/Insert/Delete are supported"
            )
        return named.key, partiql.condition(named.rest, self._given)


def _check_source(source: StatementSource, checks: bool) -> None:
    if source.index is not None:
        raise Invalid(
            f"EXISTS reads a table, not its index {source.index}; use FROM {source.table}" if checks else ON_INDEX
        )


def _when(test: Callable[[Item], bool], condition: ItemCondition | None) -> ItemCondition:
    return ItemCondition(test, frozenset() if condition is None else condition.names)


class InsertItem(PutItem, frozen=True, gc=False):
    """INSERT: put an item, if there is none with its key."""

    together = False  # it may fail

    def planned(self, definition: Definition, key: bytes, row: object) -> WritePlan:
        if row is not None:
            raise DuplicateItem
        return super().planned(definition, key, None)


class UpdateWhere(UpdateItem, frozen=True, kw_only=True, gc=False):
    """UPDATE: change the item that the WHERE clause names, if it exists and meets the other conditions."""

    where: ItemWhere

    def plan(self, tx: Tx) -> WritePlan:
        key, condition = self.where.item(find(tx, self.table))
        if condition is None:
            exists = _when(bool, None)
        else:
            holds = condition.test
            exists = _when(lambda item: bool(item) and holds(item), condition)
        action = UpdateItem(
            self.table, key, self.update, condition=exists, on_failure=self.on_failure, returns=self.returns
        )
        return action.plan(tx)

    def named(self, definition: Definition) -> Item:
        return self.where.item(definition)[0]


class DeleteWhere(DeleteItem, frozen=True, kw_only=True, gc=False):
    """DELETE: remove the item that the WHERE clause names, if it meets the other conditions."""

    where: ItemWhere

    def plan(self, tx: Tx) -> WritePlan:
        key, condition = self.where.item(find(tx, self.table))
        if condition is not None:
            holds = condition.test
            condition = _when(lambda item: not item or holds(item), condition)
        return DeleteItem(self.table, key, condition=condition, on_failure=self.on_failure).plan(tx)

    def named(self, definition: Definition) -> Item:
        return self.where.item(definition)[0]


class CheckWhere(CheckItem, frozen=True, kw_only=True, gc=False):
    """EXISTS: fail the transaction unless the item that the WHERE clause names meets the other conditions."""

    where: ItemWhere

    def plan(self, tx: Tx) -> WritePlan:
        key, condition = self.where.item(find(tx, self.table))
        return CheckItem(self.table, key, condition=condition, on_failure=self.on_failure).plan(tx)

    def named(self, definition: Definition) -> Item:
        return self.where.item(definition)[0]
