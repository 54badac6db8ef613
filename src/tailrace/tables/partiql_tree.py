"""PartiQL statements as trees. Their conditions, paths and updates are those of expressions (`syntax`); literals and
parameters are placeholders in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tailrace.tables.syntax import Action, DocumentPath, Node
from tailrace.tables.value import Value


@dataclass(frozen=True, slots=True)
class Source:
    """A table, or an index of it."""

    table: str
    index: str | None = None


@dataclass(frozen=True, slots=True)
class Values:
    """The constants of a statement, by placeholder; and the placeholders that its parameters fill, in their order."""

    constants: dict[str, Value]
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Select:
    """SELECT. `columns` are paths and their names in the result; None: whole items."""

    source: Source
    columns: tuple[tuple[str, DocumentPath], ...] | None
    where: Node | None
    order: tuple[tuple[str, bool], ...]  # attributes, and whether each is descending
    values: Values


@dataclass(frozen=True, slots=True)
class Insert:
    """INSERT: the placeholders of the item's attributes."""

    source: Source
    item: tuple[tuple[str, str], ...]
    values: Values


@dataclass(frozen=True, slots=True)
class SetOperand:
    """The set that set_add or set_delete changes an attribute by; where an error about its type points to."""

    function: str
    placeholder: str
    position: str


@dataclass(frozen=True, slots=True)
class Update:
    """UPDATE, in either order of its clauses."""

    source: Source
    actions: tuple[Action, ...]
    sets: tuple[SetOperand, ...]
    where: Node | None
    returns: str  # as ReturnValues
    values: Values


@dataclass(frozen=True, slots=True)
class Delete:
    """DELETE."""

    source: Source
    where: Node | None
    returns: str
    values: Values


@dataclass(frozen=True, slots=True)
class Exists:
    """EXISTS: a condition check in a transaction."""

    select: Select

    @property
    def source(self) -> Source:
        return self.select.source

    @property
    def values(self) -> Values:
        return self.select.values


Statement: TypeAlias = Select | Insert | Update | Delete | Exists
