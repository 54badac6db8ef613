"""Conversion of plain values to the typed values of columns; an error names the column and the value.

NULL is the absence of an attribute: a row that is NULL in a column does not have it. Numbers are decimals of up to 38
digits in columns of any numeric type, DOUBLE included.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import cached_property
from typing import Any, Final
from uuid import UUID

import msgspec

from tailrace import scalar
from tailrace.errors import Invalid
from tailrace.tables import value as typing
from tailrace.tables.definition import Column, Definition
from tailrace.tables.number import decimal_of
from tailrace.tables.value import Item, Value

BIGINT_MAX: Final = 2**63 - 1
BIGINT_DIGITS_MAX: Final = 19
SHOWN_CHARACTERS_MAX: Final = 60
KEY_KINDS: Final = {"S": "TEXT", "N": "DECIMAL", "B": "BLOB"}
KEY_TYPES: Final = {
    "TEXT": "S", "BIGINT": "N", "DOUBLE": "N", "DECIMAL": "N", "BLOB": "B", "TIMESTAMP": "S", "DATE": "S", "UUID": "S",
}  # fmt: skip
UNKNOWN_COLUMN: Final = "UNKNOWN_COLUMN"

_json: Final = msgspec.json.Decoder(float_hook=decimal_of)


def columns_of(definition: Definition) -> dict[str, Column]:
    """The declared columns of a table, or those of its key if it has none."""
    if definition.columns:
        return {column.name: column for column in definition.columns}
    return {name: Column(name, KEY_KINDS[definition.kinds[name]], True) for name in definition.keys}


def resolved(definition: Definition, name: str) -> str:
    """The column that a name means: the one of that name, else the only one that differs in case alone."""
    columns = columns_of(definition)
    if name in columns:
        return name
    alike = [each for each in columns if each.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else name


def type_of(column: Column) -> str:
    """The declared type of a column, as it is written."""
    if column.digits is not None:
        return f"DECIMAL({column.digits}, {column.scale})"
    return column.kind if column.length is None else f"VARCHAR({column.length})"


class StatementTime:
    """The time of a statement, in UTC: that of its first use, and the same for all rows and expressions."""

    @cached_property
    def text(self) -> str:
        return datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")

    def added(self, compiled: scalar.Scalar, params: tuple[Any, ...]) -> tuple[Any, ...]:
        """The parameters of an expression, with the time if it needs that."""
        return (*params, self.text) if compiled.timed else params


def default_value(column: Column, now: StatementTime) -> Any:
    """The plain value of a column's default."""
    if column.default is None:
        return None
    compiled = scalar.exact_value(column.default, columns=())
    return compiled.of(None, None, now.added(compiled, ()))


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
            if isinstance(given, date):
                raise Invalid("a time is not stored as such in a column without a type; CAST it to TEXT")
            return typing.from_plain(_decimal(given))
        stored = _READERS[column.kind](given)
        if column.digits is not None and not _fits(stored["N"], column.digits, column.scale):
            raise _Unfit
        if column.length is not None and len(stored["S"]) > column.length:
            raise Invalid(
                f"it is VARCHAR({column.length}) and cannot hold a text of {len(stored['S'])} characters; shorten it",
                code="WRONG_TYPE",
            )
        return stored
    except _Unfit:
        assert column is not None
        raise Invalid(
            f"column {name!r} is {type_of(column)} and cannot hold {_shown(given)}{_hint(column, given)}",
            code="WRONG_TYPE",
        ) from None
    except Invalid as error:
        raise Invalid(f"column {name!r}: {error}", code=error.code) from None


def row(definition: Definition, columns: dict[str, Column], given: dict[str, Any], now: StatementTime) -> Item:
    """A row as the item that is stored; `now`: for defaults."""
    item: Item = {}
    for name, value in given.items():
        column = columns.get(name)
        if column is None and definition.columns:
            raise unknown(definition.name, name, columns)
        stored = typed(column, name, value)
        if stored is not None:
            item[name] = stored
    for name, column in columns.items():
        if column.default is not None and name not in given:
            stored = typed(column, name, default_value(column, now))
            if stored is not None:
                item[name] = stored
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


def _timestamp(given: Any) -> Value:
    """In UTC, with six digits of the second, so that texts sort like times."""
    try:
        moment = datetime.fromisoformat(given) if isinstance(given, str) else given
        if isinstance(moment, date) and not isinstance(moment, datetime):
            moment = datetime(moment.year, moment.month, moment.day)  # noqa: DTZ001
        if not isinstance(moment, datetime):
            raise _Unfit
        if moment.tzinfo is not None:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
        return typing.from_plain(moment.isoformat(timespec="microseconds"))
    except (ValueError, OverflowError):
        raise _Unfit from None


def _date(given: Any) -> Value:
    try:
        day = date.fromisoformat(given) if isinstance(given, str) else given
    except ValueError:
        raise _Unfit from None
    if isinstance(day, datetime):  # of an expression: a day is the time at which it begins
        if day.tzinfo is not None or day.time() != time():
            raise _Unfit
        day = day.date()
    if not isinstance(day, date):
        raise _Unfit
    return typing.from_plain(day.isoformat())


def _uuid(given: Any) -> Value:
    try:
        known = UUID(given) if isinstance(given, str) else given
    except ValueError:
        raise _Unfit from None
    if not isinstance(known, UUID):
        raise _Unfit
    return typing.from_plain(str(known))


def moment_text(kind: str, given: Any) -> str | None:
    """A constant as a TIMESTAMP or DATE column stores it; None if it is none."""
    try:
        return str(_READERS[kind](given)["S"])
    except _Unfit:
        return None


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
    "TIMESTAMP": _timestamp,
    "DATE": _date,
    "UUID": _uuid,
}
_HINTS: Final = {
    "TEXT": "; write a text in single quotes",
    "BIGINT": "; write a whole number of up to 64 bits",
    "BLOB": "; write bytes as X'00ff', or give them as a parameter",
    "TIMESTAMP": "; write a time such as '2026-01-28 12:00:00'",
    "DATE": "; write a day such as '2026-01-28'",
    "UUID": "; write a UUID such as '123e4567-e89b-12d3-a456-426614174000'",
    "JSON": "; write JSON as a text: '{\"a\": 1}', or '\"a\"' for a string",
}


def _fits(text: str, digits: int, scale: int) -> bool:
    """Whether a number has at most this many digits after the point, and the rest of them before it."""
    whole, _, fraction = text.lstrip("-").partition(".")
    return len(fraction) <= scale and len(whole.lstrip("0")) <= digits - scale


def _hint(column: Column, given: Any) -> str:
    if isinstance(given, date) and column.kind in ("TEXT", "DATE"):
        return f"; CAST it to {column.kind}"
    if column.digits is not None and isinstance(given, int | float | Decimal):
        return f": it has more than {column.digits - column.scale} digits before the point, or {column.scale} after it"
    return _HINTS.get(column.kind, "")


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
    if isinstance(given, date):
        return f"the time {given.isoformat()}"
    return f"a {type(given).__name__}"
