"""Constraints of declared columns, which hold for every write of an item, whatever API it comes by.

They are NOT NULL, the length of VARCHAR(n), the form of TIMESTAMP, DATE and UUID, and CHECK. A table without any pays
nothing: only writes of tables that have some come here (`Definition.plain`). Other declared types are no constraints:
documents may have values of other types in these columns.

A CHECK is an expression of SQL. What compiles it is above this package, and is set when a database is opened.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from tailrace.errors import Invalid
from tailrace.tables.definition import Definition
from tailrace.tables.value import Item

VIOLATED: Final = "CONSTRAINT"
# The stored forms: texts that sort like the values.
FORMS: Final = {
    "TIMESTAMP": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}"),
    "DATE": re.compile(r"\d{4}-\d\d-\d\d"),
    "UUID": re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
}
_EXAMPLES: Final = {
    "TIMESTAMP": "2026-01-28T12:00:00.000000",
    "DATE": "2026-01-28",
    "UUID": "123e4567-e89b-12d3-a456-426614174000",
}

Fails = Callable[[Definition, str, Item], bool]  # whether a CHECK with this text is FALSE for an item
_compilers: Final[list[Fails]] = []


def use(fails: Fails) -> None:
    """What evaluates the texts of CHECK."""
    _compilers[:] = [fails]


def check(definition: Definition, item: Item) -> None:
    """Raise if an item violates a constraint of its table."""
    for column in definition.columns:
        held = item.get(column.name)
        if held is None or "NULL" in held:
            if column.required:
                raise Invalid(
                    f"column {column.name!r} of table {definition.name!r} is NOT NULL and has no value; give it one",
                    code="NULL_VALUE",
                )
            continue
        text = held.get("S")
        if column.length is not None and isinstance(text, str) and len(text) > column.length:
            raise Invalid(
                f"column {column.name!r} of table {definition.name!r} is VARCHAR({column.length}) and cannot hold "
                f"a text of {len(text)} characters; shorten it",
                code="WRONG_TYPE",
            )
        form = FORMS.get(column.kind)
        if form is not None and (not isinstance(text, str) or form.fullmatch(text) is None):
            raise Invalid(
                f"column {column.name!r} of table {definition.name!r} is {column.kind} and holds texts such as "
                f"{_EXAMPLES[column.kind]!r}, not {str(next(iter(held.values())))[:60]!r}",
                code="WRONG_TYPE",
            )
    for name, expression in definition.checks:
        if _compilers[0](definition, expression, item):
            raise Invalid(
                f"the row violates the constraint {name!r} of table {definition.name!r}: CHECK ({expression})",
                code=VIOLATED,
            )
