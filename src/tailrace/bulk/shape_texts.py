"""JSON of records of one shape: the fixed parts of the example's JSON with the stored texts in between.

All parts are slices of one buffer, which Arrow concatenates. Records with bytes, or with a text that JSON has to
escape, are left to be encoded one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.bulk.entries import int64s
from tailrace.bulk.shapes import FLAG, Bytes, Mask, NoShape, Numbers, RecordShape, ShapeBatch, ShapeItem, ShapeNode

_QUOTE, _BACKSLASH, _SPACE = 0x22, 0x5C, 0x20
PLAIN: Final = 0
TYPED: Final = 1  # DynamoDB JSON


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


def item_text(item: ShapeItem, style: int) -> TextTemplate:
    """The JSON of an item."""
    return mapping({name: node_text(node, style) for name, node in item.items()})


def node_text(node: ShapeNode, style: int) -> TextTemplate:
    """The JSON of a value. NoShape: it has to be encoded."""
    match node.kind:
        case "S":
            text = joined(b'"', node.value, b'"')
        case "N":
            text = joined(node.value) if style == PLAIN else joined(b'"', node.value, b'"')
        case "BOOL":
            text = joined(node.value)
        case "NULL":
            text = joined(b"null" if style == PLAIN else b"true")
        case "M":
            text = item_text(node.members, style)
        case "L":
            text = array([node_text(each, style) for each in node.elements])
        case "SS" | "NS":
            quote = b"" if style == PLAIN and node.kind == "NS" else b'"'
            text = array([joined(quote, each.value, quote) for each in node.elements])
        case _:
            raise NoShape
    return text if style == PLAIN else joined(b'{"' + node.kind.encode() + b'":', text, b"}")


@dataclass
class ShapeTexts:
    """The templates of a shape, where their parts are, and the values that are flags."""

    templates: list[TextTemplate | None]
    cuts: Numbers
    flags: list[int]


def learned(batch: ShapeBatch, shape: RecordShape, templates: list[TextTemplate | None]) -> ShapeTexts:
    """Store the parts of these templates in the batch."""
    pieces = [b"true", b"false", *(piece for text in templates if text is not None for piece in text.pieces)]
    return ShapeTexts(templates, batch.put_aside(pieces), [n for n, kind in enumerate(shape.kinds) if kind == FLAG])


class JsonColumns:
    """The JSON of some items of each record: of keys, old and new image, or of an item. `keys`: of the item, only these
    attributes."""

    def __init__(self, *wanted: tuple[int, int], keys: Sequence[str] | None = None) -> None:
        """`wanted`: the number of the item in the shape, and the style of its JSON."""
        self._wanted = wanted
        self._keys = keys

    def learn(self, batch: ShapeBatch, shape: RecordShape) -> ShapeTexts:
        items = [(shape.items[number], style) for number, style in self._wanted]
        if self._keys is not None:
            (item,) = shape.items
            if item is None or not all(name in item for name in self._keys):
                raise NoShape
            items.insert(0, ({name: item[name] for name in self._keys}, PLAIN))
        templates = [None if item is None else item_text(item, style) for item, style in items]
        return learned(batch, shape, templates)

    def arrays(self, batch: ShapeBatch, how: ShapeTexts, places: Numbers) -> tuple[list[pa.Array], Mask | None]:
        return texts_of(batch, how, places)


def texts_of(batch: ShapeBatch, how: ShapeTexts, places: Numbers) -> tuple[list[pa.Array], Mask | None]:
    """The texts as bytes, and which of them are not valid JSON; None: all are."""
    rows, values, _ = places.shape
    slices = batch.slices(np.concatenate((places.ravel(), how.cuts)))
    first = 2 * rows * values  # the first part of JSON, after the values
    yes, no, piece = first, first + 1, first + 2
    flags = {number: np.where(batch.bytes[places[:, number, 0]] == 0xC3, yes, no) for number in how.flags}
    row = 2 * values * np.arange(rows)[:, None]
    images: list[pa.Array] = []
    wrong: Mask | None = None
    for text in how.templates:
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
