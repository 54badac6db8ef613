"""Values in Spark's binary format VARIANT: numbers keep all their digits, which `parse_json` does not promise.

A variant is two byte strings: the names of all attributes in it (`metadata`), and the value, which refers to them by
number. Sets are arrays, and a binary is one. `tailrace.jobs.variant_values` reads the format.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
from msgspec import UNSET

from tailrace.bulk.text import TypedItem, TypedValue
from tailrace.jobs.variant_values import is_variant as is_variant

_PRIMITIVE, _SHORT, _OBJECT, _ARRAY = range(4)  # the lowest two bits of a value's first byte
_NULL, _TRUE, _FALSE, _INT1, _INT2, _INT4, _INT8 = range(7)
_DECIMAL4, _DECIMAL8, _DECIMAL16 = 8, 9, 10
_BINARY, _STRING = 15, 16
_VERSION: Final = 1
_SHORT_MAX: Final = 63
_DIGITS_MAX: Final = 38
_INTEGERS: Final = ((1, _INT1), (2, _INT2), (4, _INT4), (8, _INT8))
_DECIMALS: Final = ((9, 4, _DECIMAL4), (18, 8, _DECIMAL8), (38, 16, _DECIMAL16))  # digits, bytes, type

TYPE: Final = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
    ]
)


def of_item(item: TypedItem) -> dict[str, bytes]:
    """An item as a variant. ArithmeticError: a number does not fit."""
    return of_value(TypedValue(M=item))


def of_value(value: TypedValue) -> dict[str, bytes]:
    """A value as a variant. ArithmeticError: a number does not fit."""
    names: dict[str, int] = {}
    body = _encoded(value, names)
    return {"value": body, "metadata": _metadata(tuple(names))}


@lru_cache(1024)
def _metadata(names: tuple[str, ...]) -> bytes:
    texts = [name.encode() for name in names]
    width = _width(max(sum(map(len, texts)), len(texts)))
    return bytes((_VERSION | (width - 1) << 6,)) + _number(len(texts), width) + _offsets(texts, width) + b"".join(texts)


def _offsets(parts: list[bytes], width: int) -> bytes:
    found, at = [_number(0, width)], 0
    for part in parts:
        at += len(part)
        found.append(_number(at, width))
    return b"".join(found)


def _width(most: int) -> int:
    return max(1, (most.bit_length() + 7) // 8)


def _number(number: int, width: int) -> bytes:
    return number.to_bytes(width, "little")


def _head(kind: int) -> bytes:
    return bytes((kind << 2 | _PRIMITIVE,))


def _encoded(value: TypedValue, names: dict[str, int]) -> bytes:
    if value.S is not UNSET:
        return _text(value.S)
    if value.N is not UNSET:
        return _numeric(value.N)
    if value.BOOL is not UNSET:
        return _head(_TRUE if value.BOOL else _FALSE)
    if value.M is not UNSET:
        return _object(value.M, names)
    if value.L is not UNSET:
        return _array([_encoded(each, names) for each in value.L])
    if value.SS is not UNSET:
        return _array([_text(each) for each in value.SS])
    if value.NS is not UNSET:
        return _array([_numeric(each) for each in value.NS])
    if value.B is not UNSET:
        return _binary(value.B)
    if value.BS is not UNSET:
        return _array([_binary(each) for each in value.BS])
    return _head(_NULL)


def _text(text: str) -> bytes:
    body = text.encode()
    if len(body) <= _SHORT_MAX:
        return bytes((len(body) << 2 | _SHORT,)) + body
    return _head(_STRING) + _number(len(body), 4) + body


def _binary(body: bytes) -> bytes:
    return _head(_BINARY) + _number(len(body), 4) + body


def _numeric(text: str) -> bytes:
    whole, _, fraction = text.partition(".")
    number = int(whole + fraction)
    if not fraction:
        for width, kind in _INTEGERS:
            if -(1 << 8 * width - 1) <= number < 1 << 8 * width - 1:
                return _head(kind) + number.to_bytes(width, "little", signed=True)
    digits = max(len(str(abs(number))), len(fraction))
    for most, width, kind in _DECIMALS:
        if digits <= most:
            return _head(kind) + bytes((len(fraction),)) + number.to_bytes(width, "little", signed=True)
    raise ArithmeticError(f"{text} has more than {_DIGITS_MAX} digits")


def _object(members: dict[str, TypedValue], names: dict[str, int]) -> bytes:
    ids = [names.setdefault(name, len(names)) for name in members]
    parts = [_encoded(value, names) for value in members.values()]
    starts, at = [], 0
    for part in parts:
        starts.append(at)
        at += len(part)
    # Fields are listed in the order of their names; their values may be anywhere.
    order = sorted(range(len(ids)), key=list(members).__getitem__)
    wide, large = _width(at), len(ids) > 255
    id_width = _width(max(ids, default=0))
    head = ((large << 4 | (id_width - 1) << 2 | (wide - 1)) << 2) | _OBJECT
    return b"".join(
        [
            bytes((head,)),
            _number(len(ids), 4 if large else 1),
            *(_number(ids[each], id_width) for each in order),
            *(_number(starts[each], wide) for each in order),
            _number(at, wide),
            *parts,
        ]
    )


def _array(parts: list[bytes]) -> bytes:
    wide, large = _width(sum(map(len, parts))), len(parts) > 255
    head = ((large << 2 | (wide - 1)) << 2) | _ARRAY
    return bytes((head,)) + _number(len(parts), 4 if large else 1) + _offsets(parts, wide) + b"".join(parts)


def array(items: list[Any]) -> pa.Array:
    """Variants, or None, as a column."""
    return pa.array(items, TYPE)
