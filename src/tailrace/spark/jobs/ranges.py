"""Splitting a batch into ranges for many tasks, and the proof that their results cover the batch.

A range [start, end) of a log has the entries whose position is in it, so it may be split anywhere, also within an
entry. Each task reports where the entries that it read begin and end; together and in order they must tile the range of
the batch. Only then is anything committed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import Corrupt

TASK_RECORDS: Final = 20_000  # the minimum for a task: its overhead exceeds the cost of reading a few records
TASK_BYTES: Final = 8 * 1024 * 1024  # the same for streams, whose positions count bytes


class TaskRange(msgspec.Struct, frozen=True):
    """A range of a log that one task reads."""

    kind: str  # table, topic or stream
    name: str
    partition: int
    log: int
    start: int
    end: int
    content_type: str | None = None
    label: str | None = None  # of a table's change stream, so that one enabled later is not read instead


class RangeResult(msgspec.Struct, frozen=True):
    """The entries of a range that were read: they tile [first, next); none if these are equal."""

    log: int
    start: int  # of the range
    end: int
    first: int
    next: int
    rows: int
    digest: int  # of the positions, times and bytes of all entries


class Digest:
    """A checksum over entries, the same however they are cut into batches."""

    def __init__(self) -> None:
        self._sums = [0, 0, 0, 0, 0]

    def add(self, entries: pa.RecordBatch) -> None:
        """Add a batch with the columns position, next, at_ms and body."""
        body = entries.column("body")
        lengths = pc.binary_length(body).cast(pa.int64())  # or bytes could move from one entry to the next
        for number, column in enumerate((*(entries.column(name) for name in ("position", "next", "at_ms")), lengths)):
            values = memoryview(column.buffers()[1])[8 * column.offset : 8 * (column.offset + len(column))]
            self._sums[number] = zlib.crc32(values, self._sums[number])
        if len(body):
            _, offsets, data = body.buffers()
            ends = memoryview(offsets).cast("q" if pa.types.is_large_binary(body.type) else "i")
            first, last = ends[body.offset], ends[body.offset + len(body)]
            if last > first:
                self._sums[4] = zlib.crc32(memoryview(data)[first:last], self._sums[4])

    def value(self) -> int:
        total = 0
        for each in self._sums:
            total = zlib.crc32(each.to_bytes(4, "big"), total)
        return total


def split(ranges: Sequence[TaskRange], tasks: int) -> list[list[TaskRange]]:
    """The ranges split for at most `tasks` tasks of about the same size, in order of log and position."""
    ordered = sorted((each for each in ranges if each.start < each.end), key=lambda each: (each.log, each.start))
    total = sum(each.end - each.start for each in ordered)
    if not total:
        return []
    least = TASK_BYTES if ordered[0].kind == "stream" else TASK_RECORDS
    share = max(-(-total // max(tasks, 1)), least)
    found: list[list[TaskRange]] = [[]]
    room = share
    for each in ordered:
        start = each.start
        while start < each.end:
            if room == 0:
                found.append([])
                room = share
            end = min(start + room, each.end)
            found[-1].append(msgspec.structs.replace(each, start=start, end=end))
            room -= end - start
            start = end
    return found


def tiled(start: int, end: int, spans: Iterable[RangeResult]) -> int:
    """Where the entries of the spans end, if they tile [start, end); the last one may reach beyond."""
    at = start
    log = None
    for span in sorted(spans, key=lambda each: each.start):
        log = span.log
        if span.first == span.next:
            continue
        if span.first != at:
            raise Corrupt(
                f"positions {at} to {span.first} of log {log} were not sent by the server; run tailrace check"
            )
        at = span.next
    if at < end:
        raise Corrupt(f"positions {at} to {end} of log {log} were not sent by the server; run tailrace check")
    return at
