"""Evaluation of CHECK: a row is refused if its condition is FALSE; TRUE and NULL pass."""

from __future__ import annotations

from functools import lru_cache

from tailrace import scalar
from tailrace.tables.definition import Definition
from tailrace.tables.value import Item


def fails(definition: Definition, text: str, item: Item) -> bool:
    """Whether the condition is FALSE for an item."""
    return violated(text, definition.expression_kinds).true(item)


@lru_cache(maxsize=1_024)
def violated(text: str, columns: tuple[tuple[str, str], ...] | None) -> scalar.Condition:
    """The compiled negation of a condition. It has no parameters and reads one row."""
    return scalar.condition(f"NOT ({text})", columns=columns)
