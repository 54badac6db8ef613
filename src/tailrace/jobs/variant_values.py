"""VARIANT, Spark's binary format for documents, as values of an item: an object is a map, an array a list, and a number
keeps all its digits. `tailrace.bulk.variant` writes the format.

A variant is two byte strings: the names of all attributes in it (`metadata`), and the value, which refers to them by
number. Both come from a client, so every offset is checked. Offsets may overlap, which makes a value larger than its
bytes; reading it stops when it is larger than an item may be.
"""

from __future__ import annotations

import struct
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from tailrace import limits
from tailrace.errors import Invalid
from tailrace.tables import messages, number, value
from tailrace.tables.value import Value

TIME_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"  # with as many digits of a second as the type has
_PRIMITIVE, _SHORT, _OBJECT = range(3)  # the lowest two bits of a value's first byte; 3: an array
_NULL, _TRUE, _FALSE = range(3)
_INTEGERS: Final = {3: 1, 4: 2, 5: 4, 6: 8}  # the bytes of each type
_DOUBLE, _FLOAT = 7, 14
_DECIMALS: Final = {8: 4, 9: 8, 10: 16}
_DATE, _TIMESTAMP, _TIMESTAMP_NTZ = 11, 12, 13
_BINARY, _STRING, _UUID = 15, 16, 20
_VERSION: Final = 1
_LITTLE: Final = "little"


def is_variant(kind: pa.DataType) -> bool:
    """Whether Spark sees the type as VARIANT."""
    return (
        pa.types.is_struct(kind)
        and kind.num_fields == 2
        and {field.name for field in kind} == {"value", "metadata"}
        and any((field.metadata or {}).get(b"variant") == b"true" for field in kind)
    )


def has_variant(kind: pa.DataType) -> bool:
    """Whether the type is VARIANT, or a nested one with VARIANT in it."""
    return is_variant(kind) or any(has_variant(kind.field(at).type) for at in range(kind.num_fields))


def read(body: bytes, metadata: bytes, depth: int = 1, bytes_max: int = limits.ITEM_BYTES_MAX) -> Value:
    """The value of an item that a variant is; `depth`: of the attribute that it becomes. Invalid: it cannot be
    stored."""
    try:
        return _VariantReader(body, metadata, bytes_max).decoded(0, depth)
    except (IndexError, UnicodeDecodeError, pa.ArrowInvalid):
        raise Invalid("it is not a valid VARIANT: an offset, a text or a time in it is out of range") from None


class _VariantReader:
    def __init__(self, body: bytes, metadata: bytes, bytes_max: int) -> None:
        self._body, self._left = body, bytes_max
        head = _part(metadata, 0, 1)[0]
        if head & 15 != _VERSION:
            raise Invalid(f"it is a VARIANT of version {head & 15}, which is unknown; send version {_VERSION}")
        width = (head >> 6) + 1
        count = int.from_bytes(_part(metadata, 1, width), _LITTLE)
        self._metadata, self._names_at = metadata, 1 + width * (count + 2)
        self._ends = _numbers(metadata, 1 + width, count + 1, width)
        self._names: dict[int, str] = {}

    def decoded(self, at: int, depth: int) -> Value:
        """The value that begins at this byte."""
        head = _part(self._body, at, 1)[0]
        kind, info = head & 3, head >> 2
        if kind == _PRIMITIVE:
            return self._primitive(info, at + 1)
        if kind == _SHORT:
            return self._text(at + 1, info)
        if depth > value.DEPTH_MAX:
            raise Invalid(messages.NESTED_TOO_DEEP)
        return self._object(info, at + 1, depth) if kind == _OBJECT else self._array(info, at + 1, depth)

    def _object(self, info: int, at: int, depth: int) -> Value:
        count, at = self._count(at, large=bool(info >> 4 & 1))
        id_width, width = (info >> 2 & 3) + 1, (info & 3) + 1
        names = [self._name(each) for each in _numbers(self._body, at, count, id_width)]
        at += count * id_width
        starts = _numbers(self._body, at, count + 1, width)
        at += (count + 1) * width
        self._spend(3 + count + sum(len(name.encode()) for name in names))
        return {"M": {name: self.decoded(at + start, depth + 1) for name, start in zip(names, starts, strict=False)}}

    def _array(self, info: int, at: int, depth: int) -> Value:
        count, at = self._count(at, large=bool(info >> 2 & 1))
        width = (info & 3) + 1
        starts = _numbers(self._body, at, count + 1, width)
        at += (count + 1) * width
        self._spend(3 + count)
        return {"L": [self.decoded(at + start, depth + 1) for start in starts[:-1]]}

    def _count(self, at: int, *, large: bool) -> tuple[int, int]:
        """The number of elements, and where their offsets begin."""
        width = 4 if large else 1
        return int.from_bytes(_part(self._body, at, width), _LITTLE), at + width

    def _name(self, number: int) -> str:
        found = self._names.get(number)
        if found is None:
            start, end = self._ends[number], self._ends[number + 1]
            found = self._names[number] = _part(self._metadata, self._names_at + start, end - start).decode()
        return found

    def _primitive(self, kind: int, at: int) -> Value:
        if kind == _NULL:
            return self._sized({"NULL": True})
        if kind in (_TRUE, _FALSE):
            return self._sized({"BOOL": kind == _TRUE})
        if kind in (_STRING, _BINARY):
            length = int.from_bytes(_part(self._body, at, 4), _LITTLE)
            if kind == _STRING:
                return self._text(at + 4, length)
            self._spend(length)
            return {"B": _part(self._body, at + 4, length)}
        if kind == _UUID:
            return self._sized({"S": str(UUID(bytes=_part(self._body, at, 16)))})
        if kind in (_DATE, _TIMESTAMP, _TIMESTAMP_NTZ):
            return self._sized({"S": self._moment(kind, at)})
        return self._sized({"N": self._number(kind, at)})

    def _text(self, at: int, length: int) -> Value:
        self._spend(length)
        return {"S": _part(self._body, at, length).decode()}

    def _moment(self, kind: int, at: int) -> str:
        if kind == _DATE:
            text: str = pa.scalar(self._integer(at, 4), pa.date32()).cast(pa.string()).as_py()
        else:
            text = pc.strftime(pa.scalar(self._integer(at, 8), pa.timestamp("us", "UTC")), format=TIME_FORMAT).as_py()
        return text

    def _number(self, kind: int, at: int) -> str:
        if kind in _INTEGERS:
            return str(self._integer(at, _INTEGERS[kind]))
        if kind in _DECIMALS:
            scale = _part(self._body, at, 1)[0]
            return number.canonical(f"{self._integer(at + 1, _DECIMALS[kind])}e-{scale}")
        if kind == _DOUBLE:
            text = repr(struct.unpack("<d", _part(self._body, at, 8))[0])
        elif kind == _FLOAT:  # as few digits as 32 bits need
            found = struct.unpack("<f", _part(self._body, at, 4))[0]
            text = pa.scalar(found, pa.float32()).cast(pa.string()).as_py()
        else:
            raise Invalid(f"a VARIANT of the type {kind} cannot be stored in a table; cast it to a string")
        if text.lstrip("-") in ("nan", "inf"):
            raise Invalid(f"{text} cannot be stored; filter such rows")
        return number.canonical(text)

    def _integer(self, at: int, width: int) -> int:
        return int.from_bytes(_part(self._body, at, width), _LITTLE, signed=True)

    def _sized(self, found: Value) -> Value:
        self._spend(value.size(found))
        return found

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise Invalid(messages.ITEM_TOO_LARGE)


def _part(body: bytes, at: int, length: int) -> bytes:
    """Bytes that are there; an IndexError if they are not."""
    found = body[at : at + length] if length >= 0 else b""
    if len(found) != length:
        raise IndexError
    return found


def _numbers(body: bytes, at: int, count: int, width: int) -> list[int]:
    found = _part(body, at, count * width)
    return [int.from_bytes(found[start : start + width], _LITTLE) for start in range(0, len(found), width)]


def plain(kind: pa.DataType, found: Any) -> Any:
    """A value of an Arrow type, as `to_pylist` returns it, with the variants in it as plain JSON."""
    if found is None or not has_variant(kind):
        return found
    if is_variant(kind):
        return value.to_json(read(found["value"], found["metadata"], bytes_max=limits.COMMIT_BYTES_MAX))
    if pa.types.is_struct(kind):
        return {field.name: plain(field.type, found[field.name]) for field in kind}
    if pa.types.is_map(kind):
        return [(key, plain(kind.item_type, each)) for key, each in found]
    return [plain(kind.value_type, each) for each in found]
