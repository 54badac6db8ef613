"""Which ranges of which logs are read, and how they are cut into tasks: pure rules.

How large a range is, is told by the records in it (bytes, of a stream), never by a table's offsets: these are sequences
that all tables share. Entries tile the positions of a log, and a range [start, end) has the entries whose position lies
in it. So a range may be cut anywhere: nothing is lost and nothing comes twice.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql.datasource import InputPartition

from tailrace.errors import Gone, Invalid
from tailrace.spark.connection import Part
from tailrace.spark.options import EARLIEST, LATEST

MiB: Final = 1 << 20
# Records, and bytes of streams. What is below the first is one task; no task is larger than the second, unless there
# would be more than the third of them for each core: what a task costs is then more than what it saves.
SPLIT_MIN: Final = {"table": 50_000, "topic": 50_000, "stream": 8 * MiB}
TASK_MAX: Final = {"table": 500_000, "topic": 500_000, "stream": 64 * MiB}
TASKS_PER_CORE_MAX: Final = 32


@dataclass(frozen=True)
class Range:
    """A part of one log: the entries whose position is in [start, end)."""

    partition: int
    log: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return max(0, self.end - self.start)


@dataclass
class Task(InputPartition):
    """What one executor reads at once: from the server, or from these files of cold storage."""

    range: Range
    files: tuple[Any, ...] | None = field(default=None)

    def __repr__(self) -> str:
        place = "hot" if self.files is None else f"{len(self.files)} cold files"
        return f"Task({self.range.partition}: [{self.range.start}, {self.range.end}) {place})"


def tasks_wanted(kind: str, sizes: Sequence[int], cores: int, asked: int | None) -> int:
    """Into how many tasks ranges of these sizes, in records or bytes, are cut, all together."""
    total = sum(sizes)
    if asked is not None:
        return max(asked, len(sizes))
    full = min(-(-total // TASK_MAX[kind]), cores * TASKS_PER_CORE_MAX)
    return max(len(sizes), min(cores, total // SPLIT_MIN[kind]), full)


def split(ranges: Iterable[Range], wanted: int) -> list[Range]:
    """The ranges, cut so that there are about as many as wanted and all of about one size."""
    found = [each for each in ranges if each.size > 0]
    total = sum(each.size for each in found)
    cut: list[Range] = []
    for each in found:
        pieces = min(each.size, max(1, round(each.size * wanted / total)))
        bounds = [each.start + each.size * number // pieces for number in range(pieces + 1)]
        cut += [Range(each.partition, each.log, low, high) for low, high in itertools.pairwise(bounds)]
    return cut


def cold_cuts(spans: Sequence[tuple[int, int, int]], start: int, end: int, wanted: int) -> list[int]:
    """Bounds of ranges within [start, end) with about as many rows each, where files hold (first, last, rows)."""
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
    asked: str | Mapping[str, int] | None, parts: Sequence[Part], default: str, option: str, noun: str
) -> dict[int, int]:
    """The offset of each partition that an option names."""
    asked = default if asked is None else asked
    if asked == EARLIEST:
        return {part.partition: part.earliest for part in parts}
    if asked == LATEST:
        return {part.partition: part.next for part in parts}
    assert not isinstance(asked, str), asked
    known = {part.partition: part for part in parts}
    for partition in asked:
        if int(partition) not in known:
            raise Invalid(
                f"{option} names partition {partition}, and {noun} has partitions 0 to {max(known)}",
                code="WRONG_OFFSET",
            )
    rest = {part.partition: part.earliest if default == EARLIEST else part.next for part in parts}
    return rest | {int(partition): offset for partition, offset in asked.items()}


def checked(starts: Mapping[int, int], parts: Sequence[Part], noun: str, *, fail: bool) -> tuple[dict[int, int], str]:
    """Where reading really starts, and a warning if that is not where it was asked to. With `fail`, an error."""
    found: dict[int, int] = {}
    warnings: list[str] = []
    for part in parts:
        start = starts.get(part.partition, part.earliest)
        at = min(max(start, part.earliest), part.next)
        found[part.partition] = at
        if start < part.earliest:
            what = (
                f"offset {start} of {noun}, partition {part.partition}, is no longer there: the earliest is "
                f"{part.earliest}"
            )
        elif start > part.next:
            what = f"offset {start} of {noun}, partition {part.partition}, is beyond its end {part.next}"
        else:
            continue
        if fail:
            raise Gone(
                f"{what}; start at {at} or later with startingOffsets and a new checkpoint, or set failOnDataLoss to "
                "false to go on without what is lost",
                code="DATA_LOSS",
            )
        warnings.append(f"{what}; reading goes on at {at}")
    return found, "; ".join(warnings)
