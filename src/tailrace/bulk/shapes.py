"""Records and items of one shape, thousands at once: their columns are made from slices of the stored bytes.

Items of a table mostly have the same attributes of the same types. Then they differ in a few texts, and the bytes
between these are always the same: they are the *shape*. One item is taken as an example and parsed byte by byte. Then
all items are compared with it at the same time, from text to text, in as many steps as the shape has texts. Those with
the same fixed bytes have the shape; the others are compared with the next example. A `ShapeColumns` makes columns of
those that have the shape: JSON (`shape_texts`), or columns with types (`shape_columns`).

Items with a rare shape, or with values that the columns cannot be made of at once, are left to the caller, which
decodes them value by value.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.bulk.entries import int64s
from tailrace.tables.change import EVENTS

ROWS_MIN: Final = 64  # fewer are faster to decode one by one
ROUND_MIN: Final = 128  # the same, for entries with another record
BYTES_MAX: Final = 1 << 30
SHAPES_MAX: Final = 12  # per batch
SAMPLE: Final = 256  # records that are compared with a new shape first
SHARE_MIN: Final = 0.05  # of the sample that must have the shape
VAIN_MAX: Final = 3  # failed searches in a row; then the rest is decoded one by one
FIXED_MAX: Final = 4096  # bytes, and as many of JSON; larger shapes are not used
VALUES_MAX: Final = 200
BLOCK_VALUES: Final = 400_000  # compared at a time, which bounds the memory
_ROOM: Final = (
    2 * FIXED_MAX * SHAPES_MAX + 1024
)  # after the stored bytes: for parts of JSON, and for reads past the end

# Kinds of values: a text, true or false, a number that is passed over, bytes.
TEXT, FLAG, COUNT, BYTES = range(4)

Numbers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]


class NoShape(Exception):
    """The record or item has no usable shape."""


@dataclass(frozen=True)
class ShapeNode:
    """A value in the example: its type, and the number of the stored value, or what it consists of."""

    kind: str  # S, N, BOOL, NULL, M, L, SS, NS or B
    value: int = -1  # of S, N, BOOL and B
    members: dict[str, ShapeNode] = field(default_factory=dict)  # of M
    elements: tuple[ShapeNode, ...] = ()  # of L, and of sets: S, N or B


ShapeItem = dict[str, ShapeNode]


@dataclass
class RecordShape:
    """The common bytes of records or items, and what they consist of."""

    event: int  # of change records
    fixed: list[bytes]  # before each value, and behind the last
    kinds: list[int]  # of each value
    items: list[ShapeItem | None]  # keys, old and new image of a change record; or one item


# -- one example, byte by byte


class ExampleRecord:
    """Parses a stored record or item, and records its shape."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = self._begun = at
        self._left = FIXED_MAX  # of fixed bytes
        self._fixed: list[bytes] = []
        self._kinds: list[int] = []

    def change(self) -> RecordShape:
        """A change record: its keys and images."""
        if self._next() != 0x95:
            raise NoShape
        event = self._next()
        if event >= len(EVENTS):
            raise NoShape
        self._value(COUNT, lambda: self._skip(_COUNT_BYTES[self._data[self._at]]))
        return self._shape([self._item(), self._item_or_none(), self._item_or_none()], event)

    def item(self) -> RecordShape:
        """An item."""
        return self._shape([self._item()])

    def _shape(self, items: list[ShapeItem | None], event: int = 0) -> RecordShape:
        self._note_fixed()
        return RecordShape(event, self._fixed, self._kinds, items)

    # -- items

    def _item_or_none(self) -> ShapeItem | None:
        if self._data[self._at] == 0xC0:
            self._skip(1)
            return None
        return self._item()

    def _item(self) -> ShapeItem:
        return {self._string(): self._attribute() for _ in range(self._members(0x80, 0xDE))}

    def _attribute(self) -> ShapeNode:
        if self._next() != 0x81 or self._at - self._begun > self._left:
            raise NoShape
        match kind := self._string():
            case "S" | "N":
                return ShapeNode(kind, self._text())
            case "BOOL":
                return ShapeNode(kind, self._value(FLAG, lambda: self._skip(_FLAG_BYTES[self._data[self._at]])))
            case "NULL":
                if self._next() != 0xC3:
                    raise NoShape
                return ShapeNode(kind)
            case "M":
                return ShapeNode(kind, members=self._item())
            case "L":
                return ShapeNode(kind, elements=tuple(self._attribute() for _ in range(self._members(0x90, 0xDC))))
            case "B":
                return ShapeNode(kind, self._value(BYTES, self._blob))
            case "SS" | "NS":
                each = kind[0]
                texts = tuple(ShapeNode(each, self._text()) for _ in range(self._members(0x90, 0xDC)))
                return ShapeNode(kind, elements=texts)
        raise NoShape

    # -- MessagePack

    def _value(self, kind: int, pass_over: Callable[[], object]) -> int:
        """Record a value, and continue after it; its number."""
        self._note_fixed()
        self._kinds.append(kind)
        if len(self._kinds) > VALUES_MAX:
            raise NoShape
        pass_over()
        self._begun = self._at
        return len(self._kinds) - 1

    def _note_fixed(self) -> None:
        self._fixed.append(bytes(self._data[self._begun : self._at]))
        self._left -= len(self._fixed[-1])
        if self._left < 0:
            raise NoShape

    def _text(self) -> int:
        return self._value(TEXT, self._string)

    def _next(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _skip(self, count: int) -> None:
        self._at += int(count)

    def _members(self, few: int, many: int) -> int:
        head = self._next()
        if head & 0xF0 == few:
            return head & 0x0F
        if head != many:
            raise NoShape
        return self._next() << 8 | self._next()

    def _blob(self) -> None:
        head = self._next()
        if head not in (0xC4, 0xC5):
            raise NoShape
        self._skip(self._next() if head == 0xC4 else self._next() << 8 | self._next())

    def _string(self) -> str:
        head = self._next()
        if not _IS_TEXT[head]:
            raise NoShape
        size = int(_SIZES[head])
        if head == 0xD9:
            size = self._next()
        elif head == 0xDA:
            size = self._next() << 8 | self._next()
        self._skip(size)
        try:
            return str(self._data[self._at - size : self._at], "utf-8")
        except UnicodeDecodeError:
            raise NoShape from None


# By the first byte of a text: the size of the head, the size of the text if the head has it, and whether it is a text.
_HEAD_BYTES = np.ones(256, np.int64)
_HEAD_BYTES[[0xD9, 0xC4]], _HEAD_BYTES[[0xDA, 0xC5]] = 2, 3
_SIZES = np.zeros(256, np.int64)
_SIZES[0xA0:0xC0] = np.arange(32)
_IS_TEXT = np.zeros(256, np.bool_)
_IS_TEXT[0xA0:0xC0] = True
_IS_TEXT[[0xD9, 0xDA]] = True
_IS_BYTES = np.zeros(256, np.bool_)
_IS_BYTES[[0xC4, 0xC5]] = True
# By the first byte of a number, its size; other bytes have a size that never fits.
_COUNT_BYTES = np.full(256, BYTES_MAX, np.int64)
_COUNT_BYTES[:0x80] = 1
_COUNT_BYTES[[0xCC, 0xCD, 0xCE, 0xCF]] = 2, 3, 5, 9
# The two flags, true and false.
_FLAG_BYTES = np.full(256, BYTES_MAX, np.int64)
_FLAG_BYTES[[0xC2, 0xC3]] = 1


# -- all of them


@dataclass
class ShapedChanges:
    """The records of entries whose records all have a common shape, in order."""

    fit: pa.Array  # the numbers of these entries
    others: pa.Array  # the numbers of the other entries
    counts: list[int]  # of records per entry
    principals: pa.Array  # per entry
    events: bytes
    columns: list[pa.Array]


@dataclass
class ShapedItems:
    """The items with a common shape, in order."""

    fit: pa.Array  # by number
    others: pa.Array
    columns: list[pa.Array]


class ShapeColumns(Protocol):
    """Makes columns of records of one shape."""

    def learn(self, batch: ShapeBatch, shape: RecordShape) -> Any:
        """How columns are made of this shape; NoShape: they are not."""

    def arrays(self, batch: ShapeBatch, how: Any, places: Numbers) -> tuple[list[pa.Array], Mask | None]:
        """The columns of records with values at these places, and which of them are not valid; None: all are."""


@dataclass
class _ShapeGroup:
    """Records of one shape: the ones with this index in these entries."""

    entries: Numbers
    index: int
    event: int
    columns: list[pa.Array]


class _KnownShape:
    """A shape in use: how its fixed bytes are compared, and how columns are made of it."""

    def __init__(self, shape: RecordShape) -> None:
        self.shape = shape
        self.uses = 0
        self.fixed = [(len(fixed), _words(fixed)) for fixed in shape.fixed]
        self.how: Any = None


def _words(fixed: bytes) -> list[tuple[int, np.uint64, np.uint64 | None]]:
    """The comparisons of eight bytes: offset, value and mask; None: all bits."""
    size = len(fixed)
    if size < 8:
        mask = np.uint64((1 << 8 * size) - 1)
        return [(0, np.uint64(int.from_bytes(fixed, "little")), mask)] if size else []
    return [
        (at, np.uint64(int.from_bytes(fixed[at : at + 8], "little")), None) for at in (*range(0, size - 8, 8), size - 8)
    ]


def suits(bodies: pa.Array) -> bool:
    """Whether it is worthwhile to search for shapes."""
    return len(bodies) >= ROWS_MIN and bodies.nbytes < BYTES_MAX


class ShapeBatch:
    """Stored bodies in one buffer; the first `head` bytes of each are skipped."""

    def __init__(self, columns: ShapeColumns, stored: memoryview, bounds: memoryview, head: int = 0) -> None:
        self._columns = columns
        limits = np.frombuffer(bounds, np.int32).astype(np.int64)
        limits -= limits[0]
        self._starts, self._ends = limits[:-1] + head, limits[1:]
        self._size = len(stored)
        self.bytes = np.zeros(self._size + _ROOM, np.uint8)
        self.bytes[: self._size] = np.frombuffer(stored, np.uint8)
        self._stored = self.bytes.data[: self._size]
        self._used = self._size
        self._eight = np.ndarray((len(self.bytes) - 7,), "<u8", self.bytes.data, strides=(1,))  # from any byte on
        self._shapes: list[_KnownShape] = []
        self._tries = SHAPES_MAX
        self._groups: list[_ShapeGroup] = []

    def changes(self) -> ShapedChanges | None:
        """The change records of these entries; None where none have a shape."""
        at = np.minimum(self._starts, self._size)
        fit = self.bytes[at] == 0x92
        by, at = self._texts(at + 1, fit)
        counts, at = self._members(at, fit)
        fit &= counts > 0
        index = 0
        while len(entries := np.flatnonzero(fit & (counts > index))):
            if index and len(entries) < ROUND_MIN:
                fit[entries] = False
                break
            self._round(entries, at, index, fit, ExampleRecord.change)
            index += 1
        fit &= at == self._ends
        if not fit.any():
            return None
        principals = self.slices(by[fit].ravel()).take(int64s(np.arange(0, 2 * int(fit.sum()), 2)))
        try:
            events, columns = self._put_together(fit)
            return ShapedChanges(
                *_fit_and_others(fit), counts[fit].tolist(), principals.cast(pa.string()), events, columns
            )
        except pa.ArrowInvalid:  # not UTF-8; decoding one by one raises the error
            return None

    def items(self) -> ShapedItems | None:
        """These items; None where none have a shape."""
        at, fit = self._starts.copy(), np.ones(len(self._starts), np.bool_)
        self._round(np.arange(len(at)), at, 0, fit, ExampleRecord.item)
        fit &= at == self._ends
        try:
            return ShapedItems(*_fit_and_others(fit), self._put_together(fit)[1]) if fit.any() else None
        except pa.ArrowInvalid:
            return None

    # -- from text to text

    def _texts(self, at: Numbers, fit: Mask, wanted: Mask = _IS_TEXT) -> tuple[Numbers, Numbers]:
        """Where texts begin and end, and where they end. Rows without a text there do not fit."""
        heads = self.bytes[at]
        fit &= wanted[heads]
        begin, sizes = at + _HEAD_BYTES[heads], _SIZES[heads]
        longer = np.flatnonzero(heads > 0xC0)
        if len(longer):
            high, low = (self.bytes[at[longer] + each].astype(np.int64) for each in (1, 2))
            two = (heads[longer] == 0xDA) | (heads[longer] == 0xC5)
            sizes[longer] = np.where(two, high << 8 | low, high)
        end = begin + sizes
        fit &= end <= self._size
        np.minimum(end, self._size, out=end)
        return np.stack((np.minimum(begin, end), end), axis=1), end

    def _members(self, at: Numbers, fit: Mask) -> tuple[Numbers, Numbers]:
        """The number of elements of arrays, and where the first one is."""
        heads, high, low = (self.bytes[at + each].astype(np.int64) for each in (0, 1, 2))
        many = heads == 0xDC
        fit &= many | (heads & 0xF0 == 0x90)
        return np.where(many, high << 8 | low, heads & 0x0F), np.minimum(at + np.where(many, 3, 1), self._size)

    def _is(self, at: Numbers, words: list[tuple[int, np.uint64, np.uint64 | None]]) -> Mask:
        """Whether these bytes are at these positions."""
        found = np.ones(len(at), np.bool_)
        for offset, word, mask in words:
            there = self._eight[at + offset]
            found &= (there if mask is None else there & mask) == word
        return found

    # -- records

    def _round(
        self, entries: Numbers, at: Numbers, index: int, fit: Mask, look: Callable[[ExampleRecord], RecordShape]
    ) -> None:
        """Process one record of each of these entries, at `at`, and store there where the next one begins. Entries
        whose record has no shape do not fit."""
        left = entries
        for known in sorted(self._shapes, key=lambda each: -each.uses):
            left = self._take(known, left, at, index, fit)
        vain = 0
        while len(left) and self._tries and vain < VAIN_MAX:
            self._tries -= 1
            vain += 1
            with suppress(NoShape, IndexError, RecursionError):
                known = self._learn(
                    look(ExampleRecord(self._stored, int(at[left[0]]))), at[left[:: -(-len(left) // SAMPLE)]]
                )
                left = self._take(known, left, at, index, fit)
                vain = 0
                continue
            fit[left[0]] = False
            left = left[1:]
        fit[left] = False

    def _learn(self, shape: RecordShape, sample: Numbers) -> _KnownShape:
        known = _KnownShape(shape)
        if np.count_nonzero(self._follow(known, sample)[0]) < SHARE_MIN * len(sample):
            raise NoShape
        known.how = self._columns.learn(self, shape)
        self._shapes.append(known)
        return known

    def _take(self, known: _KnownShape, entries: Numbers, at: Numbers, index: int, fit: Mask) -> Numbers:
        """Process the records with this shape; the remaining entries."""
        blocks = -(-len(entries) * len(known.shape.kinds) // BLOCK_VALUES)
        if blocks > 1:
            parts = np.array_split(entries, min(blocks, len(entries)))
            return np.concatenate([self._take(known, part, at, index, fit) for part in parts])
        same, places, there = self._follow(known, at[entries])
        if not same.any():
            return entries
        mine = entries if same.all() else entries[same]
        columns, wrong = self._columns.arrays(self, known.how, places if mine is entries else places[same])
        at[mine] = there if mine is entries else there[same]
        if wrong is not None:
            fit[mine[wrong]] = False
            mine = mine[~wrong]
            if not len(mine):
                return entries[~same]
            columns = [column.take(int64s(np.flatnonzero(~wrong))) for column in columns]
        known.uses += len(mine)
        self._groups.append(_ShapeGroup(mine, index, known.shape.event, columns))
        return entries[~same]

    def _follow(self, known: _KnownShape, there: Numbers) -> tuple[Mask, Numbers, Numbers]:
        """Compare the records at these positions, value by value: whether they have the shape, where their values are,
        and where they end."""
        same = np.ones(len(there), np.bool_)
        places = np.empty((len(there), len(known.shape.kinds), 2), np.int64)
        for number, kind in enumerate(known.shape.kinds):
            size, words = known.fixed[number]
            same &= self._is(there, words)
            if not same.any():
                return same, places, there
            there = np.minimum(there + size, self._size)
            if kind in (TEXT, BYTES):
                wanted = _IS_TEXT if kind == TEXT else _IS_BYTES
                places[:, number], there = self._texts(there, same, wanted)
            else:
                places[:, number] = there[:, None]
                there = there + (_FLAG_BYTES if kind == FLAG else _COUNT_BYTES)[self.bytes[there]]
                same &= there <= self._size
                np.minimum(there, self._size, out=there)
        size, words = known.fixed[-1]
        same &= self._is(there, words)
        there = there + size
        same &= there <= self._size
        return same, places, there

    def put_aside(self, pieces: list[bytes]) -> Numbers:
        """Store these bytes after the stored ones; where each begins, and where the last one ends. NoShape: there is
        no room."""
        cuts = self._used + np.cumsum([0, *map(len, pieces)])
        end = int(cuts[-1])
        if end - self._used > FIXED_MAX or end > self._size + _ROOM - 1024:
            raise NoShape
        self.bytes[self._used : end] = np.frombuffer(b"".join(pieces), np.uint8)
        self._used = end
        return cuts

    def slices(self, cuts: Numbers) -> pa.Array:
        """The bytes between consecutive cuts, as an array; nothing is copied."""
        buffers = [None, pa.py_buffer(cuts.astype(np.int32)), pa.py_buffer(self.bytes)]
        return pa.Array.from_buffers(pa.binary(), len(cuts) - 1, buffers)

    def _put_together(self, fit: Mask) -> tuple[bytes, list[pa.Array]]:
        """Events and columns of the rows that fit, in order. Raises ArrowInvalid for a text that is not UTF-8."""
        sizes = [len(group.entries) for group in self._groups]
        entries = np.concatenate([group.entries for group in self._groups])
        events = np.repeat(np.array([group.event for group in self._groups], np.uint8), sizes)
        groups = zip(*(group.columns for group in self._groups), strict=True)
        columns = [_texts(pa.concat_arrays(column)) for column in groups]
        if len(sizes) > 1 or not fit[entries].all():
            order = np.lexsort((np.repeat([group.index for group in self._groups], sizes), entries))
            order = order[fit[entries[order]]]
            events, columns = events[order], [column.take(int64s(order)) for column in columns]
        return events.tobytes(), columns


def _texts(column: pa.Array) -> pa.Array:
    return column.cast(pa.string()) if pa.types.is_binary(column.type) else column


def _fit_and_others(fit: Mask) -> tuple[pa.Array, pa.Array]:
    return int64s(np.flatnonzero(fit)), int64s(np.flatnonzero(~fit))
