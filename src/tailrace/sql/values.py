"""Conversion of plain values to the typed values of columns; an error names the column and the value.

NULL is the absence of an attribute: a row that is NULL in a column does not have it. Numbers are decimals of up to 38
digits in columns of any numeric type, DOUBLE included.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import msgspec

from tailrace.errors import Invalid
from tailrace.tables import value as typing
from tailrace.tables.definition import Column, Definition
from tailrace.tables.value import Item, Value

BIGINT_MAX: Final = 2**63 - 1
BIGINT_DIGITS_MAX: Final = 19
SHOWN_CHARACTERS_MAX: Final = 60
KEY_KINDS: Final = {"S": "TEXT", "N": "DECIMAL", "B": "BLOB"}
KEY_TYPES: Final = {"TEXT": "S", "BIGINT": "N", "DOUBLE": "N", "DECIMAL": "N", "BLOB": "B"}
UNKNOWN_COLUMN: Final = "UNKNOWN_COLUMN"

_json: Final = msgspec.json.Decoder(float_hook=Decimal)


def columns_of(definition: Definition) -> dict[str, Column]:
    """The declared columns of a table, or those of its key if it has none."""
    if definition.columns:
        return {column.name: column for column in definition.columns}
    return {name: Column(name, KEY_KINDS[definition.kinds[name]], True) for name in definition.keys}


def unknown(table: str, name: str, columns: dict[str, Column]) -> Invalid:
    """The error for a column that the table does not have."""
    known = ", ".join(list(columns)[:20])
    return Invalid(f"table {table!r} has no column {name!r}; it has {known}", code=UNKNOWN_COLUMN)


def typed(column: Column | None, name: str, given: Any) -> Value | None:
    """The typed value that a column stores; None for NULL. An undeclared column takes a value of any type."""
    if given is None:
        if column is not None and column.required:
            raise Invalid(f"column {name!r} is NOT NULL and is given no value; give it one", code="NULL_VALUE")
        return None
    try:
        if column is None:
            return typing.from_plain(_decimal(given))
        return _READERS[column.kind](given)
    except _Unfit:
        assert column is not None
        raise Invalid(
            f"column {name!r} is {column.kind} and cannot hold {_shown(given)}{_HINTS.get(column.kind, '')}",
            code="WRONG_TYPE",
        ) from None
    except Invalid as error:
        raise Invalid(f"column {name!r}: {error}", code=error.code) from None


def row(definition: Definition, columns: dict[str, Column], given: dict[str, Any]) -> Item:
    """A row as the item that is stored."""
    item: Item = {}
    for name, value in given.items():
        column = columns.get(name)
        if column is None and definition.columns:
            raise unknown(definition.name, name, columns)
        stored = typed(column, name, value)
        if stored is not None:
            item[name] = stored
    for name, column in columns.items():
        if column.required and name not in item:
            raise Invalid(f"column {name!r} is NOT NULL and is given no value; give it one", code="NULL_VALUE")
    return item


class _Unfit(Exception):
    """The value is not of the column's type."""


def _text(given: Any) -> Value:
    if not isinstance(given, str):
        raise _Unfit
    return typing.from_plain(given)


def _whole(given: Any) -> Value:
    if isinstance(given, float):
        given = _decimal(given)
    if isinstance(given, Decimal):
        if not given.is_finite() or given.adjusted() >= BIGINT_DIGITS_MAX or given != given.to_integral_value():
            raise _Unfit
        given = int(given)
    if not isinstance(given, int) or isinstance(given, bool) or not -BIGINT_MAX - 1 <= given <= BIGINT_MAX:
        raise _Unfit
    return typing.from_plain(given)


def _number(given: Any) -> Value:
    given = _decimal(given)
    if not isinstance(given, int | Decimal) or isinstance(given, bool):
        raise _Unfit
    return typing.from_plain(given)


def _boolean(given: Any) -> Value:
    if not isinstance(given, bool):
        raise _Unfit
    return typing.from_plain(given)


def _blob(given: Any) -> Value:
    if not isinstance(given, bytes):
        raise _Unfit
    return typing.from_plain(given)


def _document(given: Any) -> Value:
    if isinstance(given, str):
        try:
            given = _json.decode(given)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            raise _Unfit from None
    return typing.from_plain(_decimal(given))


_READERS: Final[dict[str, Callable[[Any], Value]]] = {
    "TEXT": _text,
    "BIGINT": _whole,
    "DOUBLE": _number,
    "DECIMAL": _number,
    "BOOLEAN": _boolean,
    "BLOB": _blob,
    "JSON": _document,
}
_HINTS: Final = {
    "TEXT": "; write a text in single quotes",
    "BIGINT": "; write a whole number of up to 64 bits",
    "BLOB": "; write bytes as X'00ff', or give them as a parameter",
    "JSON": "; write JSON as a text: '{\"a\": 1}', or '\"a\"' for a string",
}


def _decimal(given: Any, _depth: int = 0) -> Any:
    """The value with each float replaced by its shortest decimal representation."""
    if isinstance(given, float):
        return Decimal(repr(given))
    if _depth > typing.DEPTH_MAX:
        return given  # too deep for an item; `from_plain` raises the error
    if isinstance(given, list | tuple):
        return [_decimal(each, _depth + 1) for each in given]
    if isinstance(given, dict):
        return {name: _decimal(each, _depth + 1) for name, each in given.items()}
    return given


def _shown(given: Any) -> str:
    if isinstance(given, bool):
        return "TRUE" if given else "FALSE"
    if isinstance(given, bytes):
        return f"{len(given)} bytes"
    if isinstance(given, int | float | Decimal):
        return f"the number {str(given)[:SHOWN_CHARACTERS_MAX]}"
    if isinstance(given, str):
        return f"the text {given[:SHOWN_CHARACTERS_MAX]!r}"
    return f"a {type(given).__name__}"
