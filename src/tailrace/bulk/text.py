"""Items as JSON, whole columns at once: as DynamoDB writes them, and from that as plain values.

Typed JSON is what the decoder and encoder make of stored items without a line of Python for each. The step from there
to plain JSON, ``{"n":{"N":"12"}}`` to ``{"n":12}``, is made on the text of all columns together. That is sound because
of what typed JSON looks like: after the name of an attribute there always comes ``{``, so ``{"S":"`` can only be a
string's type. Inside of strings quotes are escaped, and escapes are set aside first. Hence a quote that is there is one
of the grammar's. ``"}`` ends a string, a number or bytes, and ``"]}`` a set, unless it begins a text like ``"}x"``. So
they are counted: if there are as many ends as there are beginnings, none of them is anything else.

Maps, lists and sets of numbers are beyond that. Where there may be any, or the counts differ, items are made plain
value by value.
"""

from __future__ import annotations

from array import array
from base64 import b64encode
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, UnsetType

from tailrace.bulk.entries import data_of

INT_DIGITS_MAX: Final = 18  # what surely fits in 64 bits


class TypedValue(msgspec.Struct, gc=False, omit_defaults=True):
    """A value of an item. One field is set; the garbage collector need not look at it, which a dict cannot say."""

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
# Types as they stand in stored items. To be found there may be chance; not to be found says that there is none.
_NESTED: Final = (b"\x81\xa1M", b"\x81\xa1L", b"\x81\xa2NS")
_OPENED: Final = (
    (b"\x81\xa1S", b'{"S":"', b'"'),
    (b"\x81\xa1B", b'{"B":"', b'"'),
    (b"\x81\xa2SS", b'{"SS":[', b"["),
    (b"\x81\xa2BS", b'{"BS":[', b"["),
)
_SCALARS: Final = ((b"\x81\xa1S", b'{"S":"'), (b"\x81\xa1N", b'{"N":"'), (b"\x81\xa1B", b'{"B":"'))
_SETS: Final = (b"\x81\xa2SS", b"\x81\xa2BS")
_WORDS: Final = (
    (b"\x81\xa4BOOL\xc3", b'{"BOOL":true}', b"true"),
    (b"\x81\xa4BOOL\xc2", b'{"BOOL":false}', b"false"),
    (b"\x81\xa4NULL", b'{"NULL":true}', b"null"),
)
_MARKS: Final = frozenset((b"\x81\xa1N", *_NESTED, *(mark for mark, _, _ in _OPENED), *(mark for mark, _, _ in _WORDS)))
_NULL: Final = b"null"


class Unsure(Exception):
    """The text says too little; value by value it is sure."""


class ItemTexts:
    """Columns of items that are added in runs and become texts. `stored` has all of them, as they are stored."""

    def __init__(self, columns: int, stored: bytes, *, plain: bool, by_value: bool = False) -> None:
        self._columns: list[list[bytes]] = [[] for _ in range(columns)]
        self._marks = frozenset(mark for mark in _MARKS if mark in stored) if plain else frozenset()
        self._plain = plain
        self._by_value = plain and (by_value or any(mark in self._marks for mark in _NESTED))

    def add(self, *columns: list[TypedItem] | list[TypedItem | None]) -> None:
        """Take some more items of each column."""
        for texts, items in zip(self._columns, columns, strict=True):
            if self._by_value:
                texts.append(_encode_lines([None if item is None else plain_item(item) for item in items]))
            else:
                texts.append(_encode_lines(items))

    def arrays(self) -> list[pa.Array]:
        """The columns as strings; null where there was no item. Raises `Unsure`, unless by value."""
        lines = b"".join([text for texts in self._columns for text in texts])
        if self._plain and not self._by_value:
            lines = plain_lines(lines, self._marks)
        split = strings_of_lines(lines)
        rows = len(split) // len(self._columns)
        return [split.slice(column * rows, rows) for column in range(len(self._columns))]


def plain_lines(lines: bytes, marks: frozenset[bytes] = _MARKS) -> bytes:
    """Typed JSON without maps, lists and sets of numbers as plain JSON. `marks`: the types that may be there. Raises
    `Unsure`."""
    escaped = b"\\" in lines
    if escaped:
        lines = lines.replace(b"\\\\", b"\x02").replace(b'\\"', b"\x01")  # neither byte can be there otherwise
    _check_ends(lines, marks)
    text = _one(lines)
    for mark, opening, kept in _OPENED:
        if mark in marks:
            text = pc.replace_substring(text, opening, kept)
    if b"\x81\xa1N" in marks:
        parts = pc.list_flatten(pc.split_pattern(text, b'{"N":"'))
        bare = pc.replace_substring(parts.slice(1), b'"}', b"", max_replacements=1)
        text = _one(parts[0].as_py() + bytes(data_of(bare)))
    text = pc.replace_substring(text, b'"}', b'"')
    if any(mark in marks for mark in _SETS):
        text = pc.replace_substring(text, b'"]}', b'"]')
    for mark, word, kept in _WORDS:
        if mark in marks:
            text = pc.replace_substring(text, word, kept)
    made = bytes(data_of(text))
    return made.replace(b"\x01", b'\\"').replace(b"\x02", b"\\\\") if escaped else made


def _check_ends(lines: bytes, marks: frozenset[bytes]) -> None:
    """Raise unless every end is one."""
    begun = sum(lines.count(opening) for mark, opening in _SCALARS if mark in marks)
    if lines.count(b'"}') != begun:
        raise Unsure
    if any(mark in marks for mark in _SETS):
        begun = lines.count(b'{"SS":[') + lines.count(b'{"BS":[')
        if lines.count(b'"]}') != begun:
            raise Unsure


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


# -- value by value


def plain_item(item: TypedItem) -> dict[str, Any]:
    """The item as plain JSON that the encoder takes, as `tables.value.item_to_json`."""
    return {name: value.S if value.S is not UNSET else _plain(value) for name, value in item.items()}


def _plain(value: TypedValue) -> Any:
    if value.N is not UNSET:
        return _number(value.N)
    if value.S is not UNSET:
        return value.S
    if value.BOOL is not UNSET:
        return value.BOOL
    if value.M is not UNSET:
        return plain_item(value.M)
    if value.L is not UNSET:
        return [_plain(element) for element in value.L]
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
