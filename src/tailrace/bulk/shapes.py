"""Records and items of one shape, thousands at once: their JSON is assembled from slices of the stored bytes.

Items of a table mostly have the same attributes of the same types. Then they differ in a few texts, and the bytes
between these are always the same: they are the *shape*. One item is taken as an example and parsed byte by byte. Then
all items are compared with it at the same time, from text to text, in as many steps as the shape has texts. Those with
the same fixed bytes have the shape; the others are compared with the next example. Their JSON is the fixed parts of the
example's JSON with the texts in between: slices of one buffer, which Arrow concatenates.

Items with bytes, with a text that JSON has to escape, or with a rare shape are left to `columns`, which decodes them
value by value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import msgspec
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

_TEXT, _FLAG, _COUNT = range(3)  # kinds of values: a text, true or false, a number that is passed over
_QUOTE, _BACKSLASH, _SPACE = 0x22, 0x5C, 0x20

Numbers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]


class NoShape(Exception):
    """The record or item has no usable shape."""


# -- JSON with gaps


@dataclass
class TextTemplate:
    """JSON without its values: the text before each value and after the last, and the numbers of the values."""

    pieces: list[bytes] = field(default_factory=lambda: [b""])
    values: list[int] = field(default_factory=list)


def joined(*parts: bytes | int | TextTemplate) -> TextTemplate:
    """The concatenation of fixed parts, values by their numbers, and templates."""
    made = TextTemplate()
    for part in parts:
        match part:
            case bytes():
                made.pieces[-1] += part
            case int():
                made.values.append(part)
                made.pieces.append(b"")
            case TextTemplate():
                made.pieces[-1] += part.pieces[0]
                made.pieces += part.pieces[1:]
                made.values += part.values
    return made


def array(elements: list[TextTemplate]) -> TextTemplate:
    return joined(b"[", *_comma_separated(elements), b"]")


def mapping(members: Mapping[str, TextTemplate]) -> TextTemplate:
    return joined(
        b"{", *_comma_separated([joined(msgspec.json.encode(name), b":", text) for name, text in members.items()]), b"}"
    )


def _comma_separated(texts: list[TextTemplate]) -> list[TextTemplate | bytes]:
    return [part for text in texts for part in (b",", text)][1:]


@dataclass
class RecordShape:
    """The common bytes and JSON of records or items."""

    event: int  # of change records
    fixed: list[bytes]  # before each value, and behind the last
    kinds: list[int]  # of each value
    texts: list[TextTemplate | None]  # the columns


# -- one example, byte by byte

Both = tuple[TextTemplate, TextTemplate]  # plain JSON, and DynamoDB JSON


class ExampleRecord:
    """Parses a stored record or item, and records its shape."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = self._begun = at
        self._left = FIXED_MAX  # of fixed bytes
        self._fixed: list[bytes] = []
        self._kinds: list[int] = []

    def change(self, *, plain: bool) -> RecordShape:
        """A change record; the columns are its keys and images."""
        if self._next() != 0x95:
            raise NoShape
        event = self._next()
        if event >= len(EVENTS):
            raise NoShape
        self._value(_COUNT, lambda: self._skip(_COUNT_BYTES[self._data[self._at]]))
        images = [self._item(), self._item_or_none(), self._item_or_none()]
        style = 0 if plain else 1
        return self._shape(
            [None if each is None else mapping({name: both[style] for name, both in each.items()}) for each in images],
            event,
        )

    def item(self, keys: tuple[str, ...]) -> RecordShape:
        """An item; the columns are its keys, and the item in both forms."""
        found = self._item()
        if not all(name in found for name in keys):
            raise NoShape
        plain, typed = ({name: both[style] for name, both in found.items()} for style in (0, 1))
        return self._shape([mapping({name: plain[name] for name in keys}), mapping(plain), mapping(typed)])

    def _shape(self, texts: list[TextTemplate | None], event: int = 0) -> RecordShape:
        self._note_fixed()
        if sum(len(piece) for text in texts if text is not None for piece in text.pieces) > FIXED_MAX:
            raise NoShape
        return RecordShape(event, self._fixed, self._kinds, texts)

    # -- items

    def _item_or_none(self) -> dict[str, Both] | None:
        if self._data[self._at] == 0xC0:
            self._skip(1)
            return None
        return self._item()

    def _item(self) -> dict[str, Both]:
        return {self._string(): self._attribute() for _ in range(self._members(0x80, 0xDE))}

    def _attribute(self) -> Both:
        if self._next() != 0x81 or self._at - self._begun > self._left:
            raise NoShape
        match kind := self._string():
            case "S":
                plain = typed = joined(b'"', self._text(), b'"')
            case "N":
                plain = joined(number := self._text())
                typed = joined(b'"', number, b'"')
            case "BOOL":
                plain = typed = joined(self._value(_FLAG, lambda: self._skip(_FLAG_BYTES[self._data[self._at]])))
            case "NULL":
                if self._next() != 0xC3:
                    raise NoShape
                plain, typed = joined(b"null"), joined(b"true")
            case "M":
                members = self._item()
                plain, typed = (mapping({name: both[style] for name, both in members.items()}) for style in (0, 1))
            case "L":
                elements = [self._attribute() for _ in range(self._members(0x90, 0xDC))]
                plain, typed = (array([both[style] for both in elements]) for style in (0, 1))
            case "SS" | "NS":
                numbers = [self._text() for _ in range(self._members(0x90, 0xDC))]
                typed = array([joined(b'"', number, b'"') for number in numbers])
                plain = typed if kind == "SS" else array([joined(number) for number in numbers])
            case _:
                raise NoShape
        return plain, joined(b'{"' + kind.encode() + b'":', typed, b"}")

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
        return self._value(_TEXT, self._string)

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
_HEAD_BYTES[0xD9], _HEAD_BYTES[0xDA] = 2, 3
_SIZES = np.zeros(256, np.int64)
_SIZES[0xA0:0xC0] = np.arange(32)
_IS_TEXT = np.zeros(256, np.bool_)
_IS_TEXT[0xA0:0xC0] = True
_IS_TEXT[[0xD9, 0xDA]] = True
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
    images: list[pa.Array]  # keys, old image, new image


@dataclass
class ShapedItems:
    """The items with a common shape, in order."""

    fit: pa.Array  # by number
    others: pa.Array
    texts: list[pa.Array]  # keys, plain, typed


@dataclass
class _ShapeGroup:
    """Records of one shape: the ones with this index in these entries."""

    entries: Numbers
    index: int
    event: int
    images: list[pa.Array]


class _KnownShape:
    """A shape in use: how its fixed bytes are compared, and where the parts of its JSON are."""

    def __init__(self, shape: RecordShape, room: Bytes, at: int) -> None:
        self.shape = shape
        self.uses = 0
        self.fixed = [(len(fixed), _words(fixed)) for fixed in shape.fixed]
        pieces = [b"true", b"false", *(piece for text in shape.texts if text is not None for piece in text.pieces)]
        joined = b"".join(pieces)
        self.cuts = at + np.cumsum([0, *map(len, pieces)])
        self.end = int(self.cuts[-1])
        room[at : self.end] = np.frombuffer(joined, np.uint8)


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

    def __init__(self, stored: memoryview, bounds: memoryview, head: int = 0) -> None:
        limits = np.frombuffer(bounds, np.int32).astype(np.int64)
        limits -= limits[0]
        self._starts, self._ends = limits[:-1] + head, limits[1:]
        self._size = len(stored)
        self._bytes = np.zeros(self._size + _ROOM, np.uint8)
        self._bytes[: self._size] = np.frombuffer(stored, np.uint8)
        self._stored = self._bytes.data[: self._size]
        self._used = self._size
        self._eight = np.ndarray((len(self._bytes) - 7,), "<u8", self._bytes.data, strides=(1,))  # from any byte on
        self._shapes: list[_KnownShape] = []
        self._tries = SHAPES_MAX
        self._groups: list[_ShapeGroup] = []

    def changes(self, *, plain: bool) -> ShapedChanges | None:
        """The change records of these entries; None where none have a shape."""
        at = np.minimum(self._starts, self._size)
        fit = self._bytes[at] == 0x92
        by, at = self._texts(at + 1, fit)
        counts, at = self._members(at, fit)
        fit &= counts > 0
        index = 0
        while len(entries := np.flatnonzero(fit & (counts > index))):
            if index and len(entries) < ROUND_MIN:
                fit[entries] = False
                break
            self._round(entries, at, index, fit, lambda example: example.change(plain=plain))
            index += 1
        fit &= at == self._ends
        if not fit.any():
            return None
        principals = self._slices(by[fit].ravel()).take(int64s(np.arange(0, 2 * int(fit.sum()), 2)))
        try:
            events, images = self._put_together(fit)
            return ShapedChanges(
                *_fit_and_others(fit), counts[fit].tolist(), principals.cast(pa.string()), events, images
            )
        except pa.ArrowInvalid:  # not UTF-8; decoding one by one raises the error
            return None

    def items(self, keys: tuple[str, ...]) -> ShapedItems | None:
        """These items; None where none have a shape."""
        at, fit = self._starts.copy(), np.ones(len(self._starts), np.bool_)
        self._round(np.arange(len(at)), at, 0, fit, lambda example: example.item(keys))
        fit &= at == self._ends
        try:
            return ShapedItems(*_fit_and_others(fit), self._put_together(fit)[1]) if fit.any() else None
        except pa.ArrowInvalid:
            return None

    # -- from text to text

    def _texts(self, at: Numbers, fit: Mask) -> tuple[Numbers, Numbers]:
        """Where texts begin and end, and where they end. Rows without a text there do not fit."""
        heads = self._bytes[at]
        fit &= _IS_TEXT[heads]
        begin, sizes = at + _HEAD_BYTES[heads], _SIZES[heads]
        longer = np.flatnonzero(heads > 0xC0)
        if len(longer):
            high, low = (self._bytes[at[longer] + each].astype(np.int64) for each in (1, 2))
            sizes[longer] = np.where(heads[longer] == 0xDA, high << 8 | low, high)
        end = begin + sizes
        fit &= end <= self._size
        np.minimum(end, self._size, out=end)
        return np.stack((np.minimum(begin, end), end), axis=1), end

    def _members(self, at: Numbers, fit: Mask) -> tuple[Numbers, Numbers]:
        """The number of elements of arrays, and where the first one is."""
        heads, high, low = (self._bytes[at + each].astype(np.int64) for each in (0, 1, 2))
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
        known = _KnownShape(shape, self._bytes, self._used)
        if np.count_nonzero(self._follow(known, sample)[0]) < SHARE_MIN * len(sample):
            raise NoShape
        self._used = known.end
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
        images, wrong = self._images(known, places if mine is entries else places[same])
        at[mine] = there if mine is entries else there[same]
        if wrong is not None:
            fit[mine[wrong]] = False
            images = [image.take(int64s(np.flatnonzero(~wrong))) for image in images]
            mine = mine[~wrong]
        known.uses += len(mine)
        self._groups.append(_ShapeGroup(mine, index, known.shape.event, images))
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
            if kind == _TEXT:
                places[:, number], there = self._texts(there, same)
            else:
                places[:, number] = there[:, None]
                there = there + (_FLAG_BYTES if kind == _FLAG else _COUNT_BYTES)[self._bytes[there]]
                same &= there <= self._size
                np.minimum(there, self._size, out=there)
        size, words = known.fixed[-1]
        same &= self._is(there, words)
        there = there + size
        same &= there <= self._size
        return same, places, there

    def _images(self, known: _KnownShape, places: Numbers) -> tuple[list[pa.Array], Mask | None]:
        """The JSON of records of this shape with these values, and which of it is invalid; None: all is valid."""
        rows, values, _ = places.shape
        cuts = np.concatenate((places.ravel(), known.cuts))
        slices = self._slices(cuts)
        first = 2 * rows * values  # the first part of JSON, after the values
        yes, no, piece = first, first + 1, first + 2
        flags = {
            number: np.where(self._bytes[places[:, number, 0]] == 0xC3, yes, no)
            for number, kind in enumerate(known.shape.kinds)
            if kind == _FLAG
        }
        row = 2 * values * np.arange(rows)[:, None]
        images: list[pa.Array] = []
        wrong: Mask | None = None
        for text in known.shape.texts:
            if text is None:
                images.append(pa.nulls(rows, pa.binary()))
                continue
            width = len(text.pieces) + len(text.values)
            which = np.empty((rows, width), np.int64)
            which[:, ::2] = np.arange(piece, piece + len(text.pieces))
            which[:, 1::2] = row + 2 * np.array(text.values, np.int64)
            for nth, value in enumerate(text.values):
                if value in flags:
                    which[:, 1 + 2 * nth] = flags[value]
            piece += len(text.pieces)
            _, ends, joined = slices.take(int64s(which.ravel())).buffers()
            bounds = np.ascontiguousarray(np.frombuffer(ends, np.int32)[: rows * width + 1 : width])
            images.append(pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(bounds), joined]))
            unescaped = _unescaped(np.frombuffer(joined, np.uint8), bounds, b"".join(text.pieces))
            if unescaped is not None:
                wrong = unescaped if wrong is None else wrong | unescaped
        return images, wrong

    def _slices(self, cuts: Numbers) -> pa.Array:
        """The bytes between consecutive cuts, as an array; nothing is copied."""
        buffers = [None, pa.py_buffer(cuts.astype(np.int32)), pa.py_buffer(self._bytes)]
        return pa.Array.from_buffers(pa.binary(), len(cuts) - 1, buffers)

    def _put_together(self, fit: Mask) -> tuple[bytes, list[pa.Array]]:
        """Events and texts of the rows that fit, in order. Raises ArrowInvalid for a text that is not UTF-8."""
        sizes = [len(group.entries) for group in self._groups]
        entries = np.concatenate([group.entries for group in self._groups])
        events = np.repeat(np.array([group.event for group in self._groups], np.uint8), sizes)
        columns = zip(*(group.images for group in self._groups), strict=True)
        texts = [pa.concat_arrays(column).cast(pa.string()) for column in columns]
        if len(sizes) > 1 or not fit[entries].all():
            order = np.lexsort((np.repeat([group.index for group in self._groups], sizes), entries))
            order = order[fit[entries[order]]]
            events, texts = events[order], [text.take(int64s(order)) for text in texts]
        return events.tobytes(), texts


def _fit_and_others(fit: Mask) -> tuple[pa.Array, pa.Array]:
    return int64s(np.flatnonzero(fit)), int64s(np.flatnonzero(~fit))


def _unescaped(joined: Bytes, bounds: npt.NDArray[np.int32], pieces: bytes) -> Mask | None:
    """Which texts have characters that JSON has to escape; None: none of them. `pieces` are the fixed parts of each."""
    rows = len(bounds) - 1
    joined = joined[: bounds[-1]]
    wrong: Mask | None = None
    for marks, expected in (
        (joined == _QUOTE, pieces.count(b'"')),
        (joined == _BACKSLASH, pieces.count(b"\\")),
        (joined < _SPACE, 0),
    ):
        if np.count_nonzero(marks) != rows * expected:
            here = np.add.reduceat(marks.astype(np.int32), bounds[:-1]) != expected
            wrong = here if wrong is None else wrong | here
    return wrong
