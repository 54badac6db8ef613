"""Columns with types from records of one shape: slices of the stored bytes, converted by Arrow, a column at a time.

How a column is made is decided once for a shape. Values that are not converted at once (a number that its type does not
hold, bytes that are not UTF-8) make all records of that shape be converted one by one (`values`), which converts what
can be converted, and raises an error that names the value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.bulk import variant
from tailrace.bulk.entries import int64s
from tailrace.bulk.shape_texts import PLAIN, learned, node_text, texts_of
from tailrace.bulk.shapes import Mask, NoShape, Numbers, RecordShape, ShapeBatch, ShapeItem, ShapeNode
from tailrace.bulk.values import moment, numbers

ROW: Final = -1  # the number of the image that a change leaves or removes
_REMOVE: Final = 2  # into EVENTS

Make = Callable[["_ShapeValues"], pa.Array]


class TypedColumns:
    """Structs of some images of each record: by number (keys, old, new), or `ROW`; and their types."""

    def __init__(self, wanted: Sequence[tuple[int, pa.StructType]], *, strict: bool) -> None:
        self._wanted = wanted
        self._strict = strict

    def learn(self, batch: ShapeBatch, shape: RecordShape) -> list[Make]:
        learner = _Learner(batch, shape, self._strict)
        return [learner.struct(self._item(shape, number), kind) for number, kind in self._wanted]

    def _item(self, shape: RecordShape, number: int) -> ShapeItem | None:
        if number != ROW or len(shape.items) == 1:
            return shape.items[max(0, number)]
        keys, old, new = shape.items
        return (old if shape.event == _REMOVE else new) or keys

    def arrays(self, batch: ShapeBatch, how: list[Make], places: Numbers) -> tuple[list[pa.Array], Mask | None]:
        values = _ShapeValues(batch, places)
        try:
            return [make(values) for make in how], values.wrong
        except (pa.ArrowInvalid, ValueError):
            return [], np.ones(len(places), np.bool_)


class _ShapeValues:
    """The values of records of one shape."""

    def __init__(self, batch: ShapeBatch, places: Numbers) -> None:
        self.batch = batch
        self.places = places
        self.rows, self._values, _ = places.shape
        self.wrong: Mask | None = None
        self._slices = batch.slices(places.ravel()) if self._values else None
        self._row = 2 * self._values * np.arange(self.rows)

    def bytes_of(self, value: int) -> pa.Array:
        assert self._slices is not None
        return self._slices.take(int64s(self._row + 2 * value))

    def text(self, value: int) -> pa.Array:
        return self.bytes_of(value).cast(pa.string())

    def digits(self, value: int) -> pa.Array:
        """A number; its text is ASCII."""
        return self.bytes_of(value).view(pa.string())

    def flags(self, value: int) -> pa.Array:
        return pa.array(self.batch.bytes[self.places[:, value, 0]] == 0xC3)


class _Learner:
    """Decides how columns are made of a shape."""

    def __init__(self, batch: ShapeBatch, shape: RecordShape, strict: bool) -> None:
        self._batch = batch
        self._shape = shape
        self._strict = strict

    def struct(self, item: ShapeItem | None, kind: pa.StructType) -> Make:
        if variant.is_variant(kind) or not kind.num_fields:
            raise NoShape
        if item is None:
            return lambda values: pa.nulls(values.rows, kind)
        fields = list(kind)
        if self._strict and not {field.name for field in fields} >= item.keys():
            raise NoShape
        makes = [self._column(item.get(field.name), field.type) for field in fields]
        return lambda values: pa.StructArray.from_arrays([make(values) for make in makes], fields=fields)

    def _column(self, node: ShapeNode | None, kind: pa.DataType) -> Make:
        if node is None or node.kind == "NULL":
            return lambda values: pa.nulls(values.rows, kind)
        if node.kind == "M" and pa.types.is_struct(kind):
            return self.struct(node.members, kind)
        if node.kind == "M" and pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
            return self._map(node, kind)
        if node.kind in ("L", "SS", "NS") and pa.types.is_list(kind):
            elements = [self._column(each, kind.value_type) for each in node.elements]
            return lambda values: pa.ListArray.from_arrays(
                _bounds(values.rows, len(elements)), _interleaved(values, elements, kind.value_type), type=kind
            )
        if pa.types.is_string(kind) and node.kind not in ("S", "N", "B"):
            return self._json(node)
        return _scalar(node.kind, node.value, kind)

    def _map(self, node: ShapeNode, kind: pa.MapType) -> Make:
        names = pa.array(list(node.members), pa.string())
        items = [self._column(each, kind.item_type) for each in node.members.values()]

        def make(values: _ShapeValues) -> pa.Array:
            keys = names.take(int64s(np.tile(np.arange(len(items)), values.rows)))
            held = _interleaved(values, items, kind.item_type)
            return pa.MapArray.from_arrays(_bounds(values.rows, len(items)), keys, held, type=kind)

        return make

    def _json(self, node: ShapeNode) -> Make:
        how = learned(self._batch, self._shape, [node_text(node, PLAIN)])

        def make(values: _ShapeValues) -> pa.Array:
            (texts,), wrong = texts_of(values.batch, how, values.places)
            if wrong is not None:
                values.wrong = wrong if values.wrong is None else values.wrong | wrong
            return texts.cast(pa.string())

        return make


def _scalar(stored: str, value: int, kind: pa.DataType) -> Make:
    if stored == "S":
        if pa.types.is_string(kind):
            return lambda values: values.text(value)
        if pa.types.is_timestamp(kind):
            return lambda values: pa.array([moment(each, kind) for each in values.text(value).to_pylist()], kind)
        if pa.types.is_date(kind):
            return lambda values: pa.array([date.fromisoformat(each) for each in values.text(value).to_pylist()], kind)
    if stored == "N":
        if pa.types.is_string(kind):
            return lambda values: values.digits(value)
        if pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_float64(kind):
            return lambda values: numbers(values.digits(value), kind)
    if stored == "BOOL" and pa.types.is_boolean(kind):
        return lambda values: values.flags(value)
    if stored == "B" and pa.types.is_binary(kind):
        return lambda values: values.bytes_of(value)
    raise NoShape


def _bounds(rows: int, each: int) -> pa.Array:
    bounds: npt.NDArray[Any] = np.arange(rows + 1, dtype=np.int32) * np.int32(each)
    return pa.array(bounds, pa.int32())


def _interleaved(values: _ShapeValues, makes: list[Make], kind: pa.DataType) -> pa.Array:
    """The elements of each row, row by row."""
    if not makes:
        return pa.array([], kind)
    made = [make(values) for make in makes]
    if len(made) == 1:
        return made[0]
    by_row = np.arange(values.rows)[:, None] + values.rows * np.arange(len(made))
    return pa.concat_arrays(made).take(int64s(by_row.ravel()))
