"""Compiled conditions, updates and WHERE clauses as data: what each was compiled from, and the same object again.

A command may run in another process than the one that built it. Functions do not travel; the text of an expression and
the values of its placeholders do, and are compiled again where the command runs. The text was checked when it was first
compiled, so this raises nothing.
"""

from __future__ import annotations

from typing import Final

from tailrace.tables import expression, legacy, partiql
from tailrace.tables.binding import EXPRESSION, Placeholders, Source
from tailrace.tables.condition import ItemCondition
from tailrace.tables.partiql_commands import ItemWhere
from tailrace.tables.partiql_syntax import statement as parsed
from tailrace.tables.partiql_tree import PartiQLInsert, PartiQLSelect, PartiQLUpdate
from tailrace.tables.update import ItemUpdate

STATEMENT: Final = "statement"  # the kind of an update that a PartiQL statement makes: its text and parameters


def source_of(compiled: ItemCondition | ItemUpdate | ItemWhere) -> Source:
    """What an object was compiled from: strings, numbers, lists, dicts and bytes."""
    assert compiled.source is not None, f"this {type(compiled).__name__} does not know what it was compiled from"
    return compiled.source


def condition(source: Source) -> ItemCondition:
    """The condition of a source."""
    kind, *given = source
    if kind == EXPRESSION:
        text, names, values = given
        return expression.condition(text, Placeholders(names, values))
    assert kind == legacy.COMPARISONS, f"a condition has no source of kind {kind!r}"
    comparisons, operator = given
    return legacy.joined([(op, name, operands) for op, name, operands in comparisons], operator)


def update(source: Source) -> ItemUpdate:
    """The update of a source."""
    kind, *given = source
    if kind == EXPRESSION:
        text, names, values = given
        return expression.update(text, Placeholders(names, values))
    if kind == STATEMENT:
        text, parameters = given
        statement = parsed(text)
        assert isinstance(statement, PartiQLUpdate)
        found = partiql.update(statement, partiql.bound(statement, parameters))
        found.source = source
        return found
    assert kind == legacy.ACTIONS, f"an update has no source of kind {kind!r}"
    return legacy.update_of([(action, name, operand) for action, name, operand in given[0]])


def where(source: Source) -> ItemWhere:
    """The WHERE clause of a source."""
    text, parameters, within = source
    statement = parsed(text)
    assert not isinstance(statement, PartiQLInsert | PartiQLSelect)
    return ItemWhere(statement, partiql.bound(statement, parameters), within, source)
