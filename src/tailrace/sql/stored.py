"""Stored items as columns, many at a time: only the attributes that a statement names, from the stored bytes.

Items of a table mostly have the same attributes of the same types. A sample of them says which, and all items of such
shapes are converted together (`bulk/shapes.py`). The others are decoded one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.bulk.columns import NUMPY
from tailrace.bulk.entries import bounds_of, data_of
from tailrace.tables.value import Item, decode

if NUMPY:
    from tailrace.bulk import shapes
    from tailrace.bulk.shape_columns import Make, TypedColumns

SAMPLE_ITEMS: Final = 32
ITEMS_AT_ONCE: Final = 256  # decoded one by one before others get a turn
JSON: Final = "JSON"  # the kind of documents
_KINDS: Final = {"S": "S", "N": "N", "B": "B", "BOOL": "BOOL", "M": JSON, "L": JSON, "SS": JSON, "NS": JSON}
_TYPES: Final = {"S": pa.string(), "N": pa.string(), "B": pa.binary(), "BOOL": pa.bool_(), JSON: pa.string()}


class ShapedColumns(msgspec.Struct, frozen=True):
    """Columns of the items of common shapes: by name, the kind and the values. Numbers are texts."""

    columns: dict[str, tuple[str | None, pa.Array]]
    fit: pa.Array  # which items these are, by number
    others: pa.Array  # the numbers of the other items
    order: pa.Array  # of all items, if the others follow after these


def packed_array(sizes: bytes | memoryview, body: bytes, count: int) -> pa.Array:
    """Bodies that are concatenated, as an array; `sizes` are 64-bit integers. Nothing is copied but the bounds."""
    lengths = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(sizes)])
    ends = pc.cumulative_sum(lengths)
    bounds = pa.concat_arrays([pa.array([0], pa.int64()), ends]).cast(pa.int32())
    return pa.Array.from_buffers(pa.binary(), count, [None, bounds.buffers()[1], pa.py_buffer(body)])


def decoded(bodies: pa.Array) -> Iterator[list[tuple[Item, int]]]:
    """The items and their sizes, some at a time."""
    for first in range(0, len(bodies), ITEMS_AT_ONCE):
        some = bodies.slice(first, ITEMS_AT_ONCE).to_pylist()
        yield [(decode(body), len(body)) for body in some]


def shaped(bodies: pa.Array, keep: frozenset[str] | None) -> ShapedColumns | None:
    """Columns of the items of common shapes; None if there are none. `keep`: the names, in lower case; None: all."""
    if not shapes.suits(bodies):
        return None
    kinds = _sampled(bodies, keep)
    fields = [pa.field(name, _TYPES[kind]) for name, kind in kinds.items()]
    if not fields:
        return None
    made = _ItemShapes(pa.struct(fields), kinds, keep)
    found = shapes.ShapeBatch(made, data_of(bodies), bounds_of(bodies)).items()
    if found is None:
        return None
    (column,) = found.columns
    arrays = dict(zip(kinds.items(), column.flatten(), strict=True))
    columns = {name: (kind if array.null_count < len(array) else None, array) for (name, kind), array in arrays.items()}
    order = pc.sort_indices(pa.concat_arrays([found.fit, found.others])) if len(found.others) else found.fit
    return ShapedColumns(columns, found.fit, found.others, order)


def _sampled(bodies: pa.Array, keep: frozenset[str] | None) -> dict[str, str]:
    """The attributes of some of the items, and the kind of each: the first that was seen."""
    step = max(1, len(bodies) // SAMPLE_ITEMS)
    kinds: dict[str, str] = {}
    for at in range(0, len(bodies), step):
        for name, held in decode(bodies[at].as_py()).items():
            (stored,) = held
            if (keep is None or name.lower() in keep) and stored in _KINDS:
                kinds.setdefault(name, _KINDS[stored])
    return kinds


if NUMPY:

    class _ItemShapes(TypedColumns):
        """Makes columns of shapes whose attributes have the kinds of the sample."""

        def __init__(self, kind: pa.StructType, kinds: dict[str, str], keep: frozenset[str] | None) -> None:
            super().__init__([(0, kind)], strict=False)
            self._kinds = kinds
            self._keep = keep

        def learn(self, batch: shapes.ShapeBatch, shape: shapes.RecordShape) -> list[Make]:
            (item,) = shape.items
            assert item is not None
            for name, node in item.items():
                wanted = self._keep is None or name.lower() in self._keep
                if wanted and node.kind != "NULL" and self._kinds.get(name) != _KINDS.get(node.kind, ""):
                    raise shapes.NoShape
            return super().learn(batch, shape)
