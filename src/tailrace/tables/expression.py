"""Expressions: conditions, projections and updates as text, compiled to objects that work on items.

Text goes through two steps. `syntax` parses it, once per text, into a tree that still has placeholders; then the tree
is bound to the placeholders of a request and compiled. Errors are the service's, to the letter, and begin with the name
of the expression's parameter.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from tailrace import limits
from tailrace.errors import Invalid
from tailrace.tables import binding, syntax
from tailrace.tables import condition as conditions
from tailrace.tables import key_condition as key_conditions
from tailrace.tables import update as updates
from tailrace.tables.binding import Paths, Placeholders, placeholders
from tailrace.tables.condition import ItemCondition
from tailrace.tables.definition import Definition
from tailrace.tables.key_condition import KeyCondition, KeyConditions
from tailrace.tables.syntax import InvalidExpression
from tailrace.tables.update import ItemUpdate, Updated

__all__ = [
    "ItemCondition",
    "ItemUpdate",
    "KeyCondition",
    "KeyConditions",
    "Paths",
    "Placeholders",
    "Updated",
    "check_scalars",
    "condition",
    "key_condition",
    "placeholders",
    "projection",
    "update",
]


def condition(text: str, placeholders: Placeholders, parameter: str = "ConditionExpression") -> ItemCondition:
    """A ConditionExpression or FilterExpression."""
    if "#" not in text and ":" not in text:
        return _fixed_condition(text, parameter)
    return _condition(text, placeholders, parameter)


def _condition(text: str, placeholders: Placeholders, parameter: str) -> ItemCondition:
    try:
        found = conditions.ConditionBinder(placeholders).condition(syntax.condition(text))
    except InvalidExpression as refused:
        raise _named(parameter, refused) from None
    found.source = placeholders.source(text)
    return found


@lru_cache(limits.EXPRESSIONS_BOUND_MAX)
def _fixed_condition(text: str, parameter: str) -> ItemCondition:
    return _condition(text, Placeholders(), parameter)


def key_condition(text: str, placeholders: Placeholders) -> KeyConditions:
    """A KeyConditionExpression. The result is to be checked (`.check`) after a request's other expressions, and called
    with the hash and range attributes of the key."""
    try:
        return key_conditions.bind(syntax.condition(text), conditions.ConditionBinder(placeholders))
    except InvalidExpression as refused:
        raise _named("KeyConditionExpression", refused) from None


def projection(text: str, placeholders: Placeholders) -> Paths:
    """A ProjectionExpression."""
    return _projection(text, placeholders) if "#" in text else _fixed_projection(text)


def _projection(text: str, placeholders: Placeholders) -> Paths:
    try:
        steps = [placeholders.path(path) for path in syntax.projection(text)]
        binding.check_disjoint(steps)
        return Paths(steps)
    except InvalidExpression as refused:
        raise _named("ProjectionExpression", refused) from None


@lru_cache(limits.EXPRESSIONS_BOUND_MAX)
def _fixed_projection(text: str) -> Paths:
    return _projection(text, Placeholders())


def update(text: str, placeholders: Placeholders) -> ItemUpdate:
    """An UpdateExpression."""
    try:
        found = updates.UpdateBinder(placeholders).update(syntax.update(text))
    except InvalidExpression as refused:
        raise _named("UpdateExpression", refused) from None
    found.source = placeholders.source(text)
    return found


def _named(parameter: str, refused: InvalidExpression) -> Invalid:
    return Invalid(f"Invalid {parameter}: {refused}")


# -- paths and keys

_SCALARS: Final = "Key attributes must be scalars; list random access '[]' and map lookup '.' are not allowed:"


def check_scalars(definition: Definition, used: ItemCondition | Paths | ItemUpdate) -> None:
    """Raise if a path goes into a key attribute, which is always a scalar."""
    nested = used.nested
    if not nested:
        return
    for name in definition.keys:
        if name in nested:
            raise Invalid(f"{_SCALARS} Key: {name}")
    for index in definition.indexes:
        for name in index.hash + index.range:
            if name in nested:
                raise Invalid(f"{_SCALARS} IndexKey: {name}")
