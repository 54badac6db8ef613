"""Entries of a log as an Arrow batch: sent by the server undecoded, and the source of all rows."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa

from tailrace.log import segments
from tailrace.log.entry import Entry, Segment

TIMESTAMP: Final = pa.timestamp("us", "UTC")
SCHEMA: Final = pa.schema(
    [("log", pa.int64()), ("position", pa.int64()), ("next", pa.int64()), ("at_ms", pa.int64()), ("body", pa.binary())]
)


def batch(entries: Sequence[Entry]) -> pa.RecordBatch:
    """A batch of these entries."""
    return packed_batch(
        0,
        array("q", [entry.position for entry in entries]),
        array("q", [entry.next for entry in entries]),
        array("q", [entry.at_ms for entry in entries]),
        array("q", [len(entry.body) for entry in entries]),
        b"".join([entry.body for entry in entries]),
        logs=array("q", [entry.log for entry in entries]),
    )


def packed_batch(
    log: int,
    positions: array[int],
    nexts: array[int],
    times: array[int],
    sizes: array[int],
    body: bytes,
    *,
    logs: array[int] | None = None,
) -> pa.RecordBatch:
    """A batch of these numbers and bytes, which are not copied."""
    count = len(positions)
    columns = [
        int64s(array("q", [log]) * count if logs is None else logs),
        int64s(positions),
        int64s(nexts),
        int64s(times),
        binaries(sizes, body),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def segments_batch(log: int, found: Sequence[Segment]) -> pa.RecordBatch:
    """A batch of the entries of consecutive segments; there is no object per entry."""
    columns = segments.columns(found)
    count = len(columns.nexts)
    positions = array("q", [found[0].position]) + columns.nexts[:-1] if found else columns.nexts
    body = found[0].body if len(found) == 1 else b"".join([segment.body for segment in found])
    return pa.RecordBatch.from_arrays(
        [
            int64s(array("q", [log]) * count),
            int64s(positions),
            int64s(columns.nexts),
            int64s(columns.times),
            _slices(columns.ends, body, pa.binary()),
        ],
        schema=SCHEMA,
    )


def int64s(numbers: Any) -> pa.Array:
    """64-bit integers as an Arrow array that shares their memory."""
    buffer = pa.py_buffer(numbers)
    return pa.Array.from_buffers(pa.int64(), buffer.size // 8, [None, buffer])


def same_numbers(number: int, count: int) -> pa.Array:
    """An array of `count` times the same 32-bit integer."""
    return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(array("i", [number]) * count)])


def binaries(sizes: array[int], body: bytes, kind: pa.DataType | None = None) -> pa.Array:
    """Consecutive slices of `body` with these sizes."""
    return _slices(array("i", accumulate(sizes, initial=0)), body, kind or pa.binary())


def _slices(offsets: array[int], body: bytes, kind: pa.DataType) -> pa.Array:
    assert len(body) < 2**31, "a batch holds less than 2 GiB"
    assert offsets.itemsize == 4 and sys.byteorder == "little", "Arrow's own layout"
    return pa.Array.from_buffers(kind, len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(body)])


def data_of(column: pa.Array) -> memoryview:
    """The bytes of a binary or string column, concatenated."""
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return memoryview(b"")
    bounds = memoryview(offsets).cast("i")
    return memoryview(data)[bounds[column.offset] : bounds[column.offset + len(column)]]


def bounds_of(column: pa.Array) -> memoryview:
    """Where each value of `data_of` begins, and where the last one ends; relative to the column's own first offset."""
    return memoryview(column.buffers()[1]).cast("i")[column.offset : column.offset + len(column) + 1]
