"""Items as JSON, in DynamoDB's form and as plain values, many at a time."""

from __future__ import annotations

from array import array
from base64 import b64encode
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, UnsetType

from tailrace.errors import Corrupt

INT_DIGITS_MAX: Final = 18  # always fit in 64 bits


class TypedValue(msgspec.Struct, gc=False, omit_defaults=True):
    """A value of an item. One field is set. Unlike a dict, it is not tracked by the garbage collector."""

    S: str | UnsetType = UNSET
    N: str | UnsetType = UNSET
    BOOL: bool | UnsetType = UNSET
    NULL: bool | UnsetType = UNSET
    B: bytes | UnsetType = UNSET
    M: dict[str, TypedValue] | UnsetType = UNSET
    L: list[TypedValue] | UnsetType = UNSET
    SS: list[str] | UnsetType = UNSET
    NS: list[str] | UnsetType = UNSET
    BS: list[bytes] | UnsetType = UNSET


TypedItem = dict[str, TypedValue]

_encode_lines: Final = msgspec.json.Encoder().encode_lines
_NULL: Final = b"null"


class ItemTexts:
    """Columns of items that are added in chunks and become texts."""

    def __init__(self, columns: int, *, plain: bool) -> None:
        self._columns: list[list[bytes]] = [[] for _ in range(columns)]
        self._plain = plain

    def add(self, *columns: list[TypedItem] | list[TypedItem | None]) -> None:
        """Add items of each column."""
        for texts, items in zip(self._columns, columns, strict=True):
            if self._plain:
                try:
                    texts.append(_encode_lines([None if item is None else plain_item(item) for item in items]))
                except (ValueError, RecursionError) as error:
                    raise Corrupt(f"an item cannot be read: {error}; run tailrace check") from None
            else:
                texts.append(_encode_lines(items))

    def arrays(self) -> list[pa.Array]:
        """The columns as strings; null where there was no item."""
        split = strings_of_lines(b"".join([text for texts in self._columns for text in texts]))
        rows = len(split) // len(self._columns)
        return [split.slice(column * rows, rows) for column in range(len(self._columns))]


def strings_of_lines(lines: bytes) -> pa.Array:
    """Each line as a string; null where it is JSON's."""
    if not lines:
        return pa.array([], pa.string())
    split = pc.list_flatten(pc.split_pattern(_one(lines[:-1]), b"\n"))
    absent = pc.equal(split, _NULL)
    if absent.true_count:
        split = pc.if_else(absent, pa.scalar(None, pa.binary()), split)
    return split.view(pa.string())


def _one(text: bytes) -> pa.Array:
    bounds = array("i", [0, len(text)])
    return pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(bounds), pa.py_buffer(text)])


def plain_item(item: TypedItem) -> dict[str, Any]:
    """The item as plain JSON that the encoder takes, as `tables.value.item_to_json`."""
    return {name: value.S if value.S is not UNSET else plain_value(value) for name, value in item.items()}


def plain_value(value: TypedValue) -> Any:
    """The value as plain JSON that the encoder takes."""
    if value.N is not UNSET:
        return _number(value.N)
    if value.S is not UNSET:
        return value.S
    if value.BOOL is not UNSET:
        return value.BOOL
    if value.M is not UNSET:
        return plain_item(value.M)
    if value.L is not UNSET:
        return [plain_value(element) for element in value.L]
    if value.SS is not UNSET:
        return value.SS
    if value.NS is not UNSET:
        return [_number(element) for element in value.NS]
    if value.B is not UNSET:
        return b64encode(value.B).decode()
    if value.BS is not UNSET:
        return [b64encode(element).decode() for element in value.BS]
    return None


def _number(text: str) -> int | msgspec.Raw:
    if len(text) <= INT_DIGITS_MAX and "." not in text:
        return int(text)
    return msgspec.Raw(text.encode())
