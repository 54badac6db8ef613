"""Which ranges of which logs are read, and how they are cut into tasks: pure rules.

The size of a range is its number of records (bytes, of a stream), not the difference of a table's offsets: these are
sequences that all tables share. Entries tile the positions of a log, and a range [start, end) has the entries whose
position is in it. So a range may be cut anywhere: no entry is lost and none is read twice.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql.datasource import InputPartition

from tailrace.errors import Gone, Invalid
from tailrace.spark.connection import SourceLog
from tailrace.spark.options import EARLIEST, LATEST

MiB: Final = 1 << 20
# Records, and bytes of streams. A range below SPLIT_MIN is one task; no task is larger than TASK_MAX, unless there
# would be more than TASKS_PER_CORE_MAX of them for each core: then a task costs more than it saves.
SPLIT_MIN: Final = {"table": 50_000, "topic": 50_000, "stream": 8 * MiB}
TASK_MAX: Final = {"table": 500_000, "topic": 500_000, "stream": 64 * MiB}
TASKS_PER_CORE_MAX: Final = 32


@dataclass(frozen=True)
class OffsetRange:
    """A part of one log: the entries whose position is in [start, end)."""

    partition: int
    log: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return max(0, self.end - self.start)


@dataclass
class ReadTask(InputPartition):
    """A range that one task reads: from the server, or from these files of cold storage."""

    range: OffsetRange
    files: tuple[Any, ...] | None = field(default=None)
    servers: tuple[str, ...] = field(default=())  # to ask in this order; none: the given one

    def __repr__(self) -> str:
        place = "hot" if self.files is None else f"{len(self.files)} cold files"
        return f"Task({self.range.partition}: [{self.range.start}, {self.range.end}) {place})"


def tasks_wanted(kind: str, sizes: Sequence[int], cores: int, at_least: int | None) -> int:
    """The total number of tasks for ranges of these sizes, in records or bytes."""
    total = sum(sizes)
    if at_least is not None:
        return max(at_least, len(sizes))
    full = min(-(-total // TASK_MAX[kind]), cores * TASKS_PER_CORE_MAX)
    return max(len(sizes), min(cores, total // SPLIT_MIN[kind]), full)


def split(ranges: Iterable[OffsetRange], wanted: int) -> list[OffsetRange]:
    """The ranges, cut into about `wanted` ranges of about the same size."""
    found = [each for each in ranges if each.size > 0]
    total = sum(each.size for each in found)
    cut: list[OffsetRange] = []
    for each in found:
        pieces = min(each.size, max(1, round(each.size * wanted / total)))
        bounds = [each.start + each.size * number // pieces for number in range(pieces + 1)]
        cut += [OffsetRange(each.partition, each.log, low, high) for low, high in itertools.pairwise(bounds)]
    return cut


def cold_cuts(spans: Sequence[tuple[int, int, int]], start: int, end: int, wanted: int) -> list[int]:
    """Bounds of ranges within [start, end) with about the same number of rows each, for files of (first, last,
    rows)."""
    ends: list[tuple[int, int]] = []
    rows: list[float] = []  # up to the end of each file
    total = 0.0
    for low, high, count in sorted(spans):
        inside = max(low, start), min(high, end - 1)
        if inside[0] <= inside[1]:
            total += count * (inside[1] + 1 - inside[0]) / (high + 1 - low)
            ends.append(inside)
            rows.append(total)
    bounds = {start, end}
    for number in range(1, wanted if total else 1):
        goal = total * number / wanted
        at = min(bisect.bisect_left(rows, goal), len(rows) - 1)
        before = rows[at - 1] if at else 0
        low, high = ends[at]
        bounds.add(low + int((high + 1 - low) * (goal - before) / max(1.0, rows[at] - before)))
    return sorted(bound for bound in bounds if start <= bound <= end)


def resolved(
    offsets: str | Mapping[str, int] | None, parts: Sequence[SourceLog], default: str, option: str, noun: str
) -> dict[int, int]:
    """The offset of each partition for the value of an option."""
    offsets = default if offsets is None else offsets
    if offsets == EARLIEST:
        return {part.partition: part.earliest for part in parts}
    if offsets == LATEST:
        return {part.partition: part.next for part in parts}
    assert not isinstance(offsets, str), offsets
    known = {part.partition: part for part in parts}
    for partition in offsets:
        if int(partition) not in known:
            raise Invalid(
                f"{option} names partition {partition}, and {noun} has partitions 0 to {max(known)}",
                code="WRONG_OFFSET",
            )
    rest = {part.partition: part.earliest if default == EARLIEST else part.next for part in parts}
    return rest | {int(partition): offset for partition, offset in offsets.items()}


def checked(
    starts: Mapping[int, int], parts: Sequence[SourceLog], noun: str, *, fail: bool
) -> tuple[dict[int, int], str]:
    """The offsets at which reading starts, and a warning if entries before them are gone. With `fail`, an error."""
    found: dict[int, int] = {}
    warnings: list[str] = []
    for part in parts:
        start = starts.get(part.partition, part.earliest)
        at = min(max(start, part.earliest), part.next)
        found[part.partition] = at
        if start < part.earliest:
            what = (
                f"offset {start} of {noun}, partition {part.partition}, is no longer available: the earliest is "
                f"{part.earliest}"
            )
        elif start > part.next:
            what = f"offset {start} of {noun}, partition {part.partition}, is beyond its end {part.next}"
        else:
            continue
        if fail:
            raise Gone(
                f"{what}; start at {at} or later with startingOffsets and a new checkpoint, or set failOnDataLoss to "
                "false to continue without the lost entries",
                code="DATA_LOSS",
            )
        warnings.append(f"{what}; reading continues at {at}")
    return found, "; ".join(warnings)
