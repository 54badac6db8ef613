"""Conversion between plain SQL values and the typed values of items, and the canonical bytes of a value."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from decimal import Decimal
from typing import Any, Final

from tailrace.errors import Invalid
from tailrace.scalar.runtime import exact, json_of, load, read_json
from tailrace.tables import value as values
from tailrace.tables.value import Value

KINDS: Final = ("TEXT", "BIGINT", "DOUBLE", "DECIMAL", "BOOLEAN", "BLOB", "JSON")
_BIGINT_MAX: Final = 2**63 - 1
_SHOWN_MAX: Final = 60


def to_attribute(value: Any, kind: str | None = None) -> Value:
    """The typed value of a plain one for a column of this kind; None: any kind. Raises Invalid if the value is not of
    the kind: nothing is cast, except that JSON columns accept JSON text and BLOB columns base64 text."""
    if value is None:
        return {"NULL": True}
    if kind is None:
        return values.from_plain(exact(value))
    if kind == "JSON":
        return values.from_plain(read_json(value) if isinstance(value, str) else exact(value))
    if kind == "TEXT" and isinstance(value, str):
        return values.from_plain(value)
    if kind == "BOOLEAN" and isinstance(value, bool):
        return {"BOOL": value}
    if kind == "BLOB":
        return {"B": _binary(value)}
    numeric = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    if numeric and kind in ("BIGINT", "DOUBLE", "DECIMAL"):
        return _number(value, kind)
    if kind not in KINDS:
        raise Invalid(f"unknown column type {kind!r}; the types are {', '.join(KINDS)}")
    raise _misfit(value, kind)


def from_attribute(value: Value | None) -> Any:
    """The plain value of a typed one; None if it is missing."""
    return None if value is None else load(value)


def key_text(value: Any) -> bytes:
    """The canonical bytes of a value for the partition hash: its compact JSON. Equal numbers have equal bytes."""
    if type(value) is str:
        if value.isascii() and value.isalnum():
            return b'"' + value.encode() + b'"'
    elif value is None:
        return b"null"
    return json_of(exact(value))


def _number(value: float | Decimal, kind: str) -> Value:
    if kind == "DOUBLE":
        value = _double(value)
    typed = values.from_plain(exact(value))
    if kind == "BIGINT":
        text = typed["N"]
        if "." in text:
            raise Invalid(f"{text} is not a whole number, as a BIGINT column requires; use CAST(… AS BIGINT) to round")
        if not -_BIGINT_MAX - 1 <= int(text) <= _BIGINT_MAX:
            raise Invalid(f"{text} does not fit a BIGINT column; declare it DECIMAL")
    return typed


def _double(value: float | Decimal) -> float:
    try:
        return float(value)
    except OverflowError:
        raise Invalid(f"{_shown(value)} does not fit a DOUBLE column; declare it DECIMAL") from None


def _binary(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        try:
            return b64decode(value, validate=True)
        except (Base64Error, ValueError):
            raise Invalid(f"{_shown(value)} is not base64; text for a BLOB column must be base64") from None
    raise _misfit(value, "BLOB")


def _misfit(value: Any, kind: str) -> Invalid:
    return Invalid(f"a {kind} column cannot hold {_shown(value)}; use a value of that type, or CAST(… AS {kind})")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…"
