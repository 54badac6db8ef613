"""PartiQL statements as trees. Their conditions, paths and updates are those of expressions (`syntax`); literals and
parameters are placeholders in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tailrace.tables.syntax import Action, DocumentPath, Node
from tailrace.tables.value import Value


@dataclass(frozen=True, slots=True)
class StatementSource:
    """A table, or an index of it."""

    table: str
    index: str | None = None


@dataclass(frozen=True, slots=True)
class StatementValues:
    """The constants of a statement, by placeholder; and the placeholders that its parameters fill, in their order."""

    constants: dict[str, Value]
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartiQLSelect:
    """SELECT. `columns` are paths and their names in the result; None: whole items."""

    source: StatementSource
    columns: tuple[tuple[str, DocumentPath], ...] | None
    where: Node | None
    order: tuple[tuple[str, bool], ...]  # attributes, and whether each is descending
    values: StatementValues


@dataclass(frozen=True, slots=True)
class PartiQLInsert:
    """INSERT: the placeholders of the item's attributes."""

    source: StatementSource
    item: tuple[tuple[str, str], ...]
    values: StatementValues


@dataclass(frozen=True, slots=True)
class SetOperand:
    """The set that set_add or set_delete changes an attribute by; where an error about its type points to."""

    function: str
    placeholder: str
    position: str


@dataclass(frozen=True, slots=True)
class PartiQLUpdate:
    """UPDATE, in either order of its clauses."""

    source: StatementSource
    actions: tuple[Action, ...]
    sets: tuple[SetOperand, ...]
    where: Node | None
    returns: str  # as ReturnValues
    values: StatementValues


@dataclass(frozen=True, slots=True)
class PartiQLDelete:
    """DELETE."""

    source: StatementSource
    where: Node | None
    returns: str
    values: StatementValues


@dataclass(frozen=True, slots=True)
class PartiQLExists:
    """EXISTS: a condition check in a transaction."""

    select: PartiQLSelect

    @property
    def source(self) -> StatementSource:
        return self.select.source

    @property
    def values(self) -> StatementValues:
        return self.select.values


Statement: TypeAlias = PartiQLSelect | PartiQLInsert | PartiQLUpdate | PartiQLDelete | PartiQLExists
