"""Segments: consecutive entries of a log, in one row of storage.

A row for each entry would cost more than the entry, where entries are small. So the entries that a transaction adds to
a log share rows, up to `SEGMENT_BYTES` and `SEGMENT_ENTRIES`; a large entry has its own. Small rows are staged, and
sealed later: joined with their neighbours to segments of up to `SEALED_BYTES` and `SEALED_ENTRIES` (`sealing.py`). A
reader that wants entries as they are gets them from `scan`; one that can do with less uses `between` (whole segments)
or `outlines` (no bodies).

A segment of several entries has a layout of little-endian 32-bit numbers: a form, then the end of each entry within the
body. The form says which positions the entries cover: as many as they have bytes (SIZED), one each (SINGLE), or
those up to the ends that follow, relative to the segment (SPREAD). With TIMED, the time of each entry comes last, in
milliseconds after the segment's. A segment of one entry has no layout.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from itertools import accumulate, chain, islice, repeat
from operator import ge, gt, sub
from typing import Final

import msgspec

from tailrace import limits
from tailrace.errors import Corrupt
from tailrace.log.entry import Entry, Segment, StagedSegment
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.sql import head_of, size_of
from tailrace.storage.table import StorageTable

SIZED: Final = 0
SINGLE: Final = 1
SPREAD: Final = 2
TIMED: Final = 4  # added to the form if the entries have different times
_NUMBER_BYTES: Final = 4
_NUMBER_MAX: Final = 2**32 - 1  # positions, or milliseconds, that a layout can express
_FORMS: Final = {SIZED: 1, SINGLE: 1, SPREAD: 2, TIMED + SIZED: 2, TIMED + SINGLE: 2, TIMED + SPREAD: 3}
_ROWS: Final = 128  # read at once, of which the bodies are not
assert array("I").itemsize == _NUMBER_BYTES


# -- writing


def joined(log: int, position: int, at_ms: int, bodies: Sequence[bytes], form: int) -> list[Segment]:
    """Segments of these bodies, from `position` on, for entries that are SIZED or SINGLE."""
    ends = list(accumulate(map(len, bodies)))
    count = len(ends)
    if ends[-1] <= limits.SEGMENT_BYTES and count <= limits.SEGMENT_ENTRIES:
        following = position + (ends[-1] if form == SIZED else count)
        if count == 1:
            return [Segment(log, position, following, at_ms, bodies[0])]
        return [Segment(log, position, following, at_ms, b"".join(bodies), _packed([form, *ends]))]
    found: list[Segment] = []
    first = 0
    while first < count:
        begun = ends[first - 1] if first else 0
        last = max(bisect_right(ends, begun + limits.SEGMENT_BYTES), first + 1)
        last = min(last, first + limits.SEGMENT_ENTRIES)
        together = bodies[first:last]
        following = position + (ends[last - 1] - begun if form == SIZED else last - first)
        layout = None if last - first == 1 else _packed([form, *(end - begun for end in ends[first:last])])
        found.append(Segment(log, position, following, at_ms, b"".join(together), layout))
        first, position = last, following
    return found


def pack(added: list[Segment]) -> list[Segment]:
    """The same entries in fewer segments: those of a log are in the order of their positions."""
    return added if len(added) == 1 else packed(added, limits.SEGMENT_BYTES, limits.SEGMENT_ENTRIES)


def packed(added: list[Segment], bytes_max: int, entries_max: int) -> list[Segment]:
    """The same, with other bounds."""
    by_log: dict[int, list[Segment]] = {}
    for segment in added:
        group = by_log.get(segment.log)
        if group is None:
            by_log[segment.log] = [segment]
        else:
            group.append(segment)
    if len(by_log) == len(added):
        return added
    found: list[Segment] = []
    for group in by_log.values():
        if len(group) == 1:
            found += group
            continue
        held = [group[0]]
        size, entries = len(group[0].body), count(group[0])
        for segment in group[1:]:
            size += len(segment.body)
            entries += 1 if segment.layout is None else count(segment)
            if size > bytes_max or entries > entries_max or not _follows(held, segment):
                found.append(_merged(held))
                held, size, entries = [segment], len(segment.body), count(segment)
            else:
                held.append(segment)
        found.append(_merged(held))
    return found


def _follows(held: list[Segment], segment: Segment) -> bool:
    first, last = held[0], held[-1]
    return (
        segment.position == last.next
        and segment.next - first.position <= _NUMBER_MAX
        and segment.next > segment.position
        and _last_ms(last) <= segment.at_ms
        and _last_ms(segment) - first.at_ms <= _NUMBER_MAX
    )


def _last_ms(segment: Segment) -> int:
    """The time of the last entry."""
    layout = segment.layout
    if layout is None or not layout[0] & TIMED:
        return segment.at_ms
    return segment.at_ms + int.from_bytes(layout[-_NUMBER_BYTES:], "little")


def _merged(held: list[Segment]) -> Segment:
    first = held[0]
    if len(held) == 1:
        return first
    origin, begun_ms = first.position, first.at_ms
    ends: list[int] = []
    reach: list[int] = []
    lags: list[int] = []
    size = 0
    for segment in held:
        later_ms = segment.at_ms - begun_ms
        if segment.layout is None:
            ends.append(size + len(segment.body))
            reach.append(segment.next - origin)
            lags.append(later_ms)
        else:
            some, reached, lagging = _numbers(segment.layout)
            moved = segment.position - origin
            ends += [size + end for end in some]
            reach += [moved + end for end in reached]
            lags += [later_ms] * len(some) if lagging is None else [later_ms + lag for lag in lagging]
        size += len(segment.body)
    return Segment(
        first.log,
        origin,
        held[-1].next,
        first.at_ms,
        b"".join([segment.body for segment in held]),
        _layout(ends, reach, lags),
    )


def _layout(ends: list[int], reach: list[int], lags: list[int]) -> bytes:
    timed, times = (TIMED, lags) if lags and lags[-1] else (0, [])  # they never decrease
    if ends is reach or ends == reach:
        return _packed([SIZED + timed, *ends, *times])
    if reach[-1] == len(reach):
        return _packed([SINGLE + timed, *ends, *times])
    return _packed([SPREAD + timed, *ends, *reach, *times])


def _packed(numbers: list[int]) -> bytes:
    found = array("I", numbers)
    if sys.byteorder == "big":
        found.byteswap()
    return found.tobytes()


# -- one segment


def count(segment: Segment) -> int:
    """The number of entries."""
    return 1 if segment.layout is None else _count(segment.layout)


def _count(layout: bytes) -> int:
    return (len(layout) // _NUMBER_BYTES - 1) // _FORMS.get(layout[0], 1)


def _numbers(layout: bytes) -> tuple[array[int], Sequence[int], array[int] | None]:
    """The ends of the entries within the body, and of their positions, and their times unless they have the same; all
    relative to the segment."""
    if not _whole(layout):
        raise Corrupt(f"{layout[:40]!r} is not the layout of a segment; run `tailrace check` and restore a backup")
    numbers = array("I", layout)
    if sys.byteorder == "big":
        numbers.byteswap()
    form = numbers.pop(0)
    lags = None
    if form & TIMED:
        form -= TIMED
        many = len(numbers) // _FORMS[TIMED + form]
        lags = numbers[-many:]
        del numbers[-many:]
    if form == SIZED:
        return numbers, numbers, lags
    if form == SINGLE:
        return numbers, range(1, len(numbers) + 1), lags
    half = len(numbers) // 2
    return numbers[:half], numbers[half:], lags


def bodies(segment: Segment) -> list[bytes]:
    """The body of each entry."""
    body = segment.body
    if segment.layout is None:
        return [body]
    ends = _numbers(segment.layout)[0].tolist()
    return list(map(BytesIO(body).read, map(sub, ends, [0, *ends])))  # twice as fast as slices


def entries(segment: Segment) -> Iterator[Entry]:
    """The entries, in order."""
    return _between(segment, None, None, False)


def views(segment: Segment) -> Iterator[tuple[int, int, memoryview]]:
    """The position, the time and the body of each entry, in order, without copying."""
    body, at, at_ms = memoryview(segment.body), segment.position, segment.at_ms
    if segment.layout is None:
        yield at, at_ms, body
        return
    begun = 0
    ends, reach, lags = _numbers(segment.layout)
    for end, following, lag in zip(ends, reach, repeat(0, len(ends)) if lags is None else lags, strict=True):
        yield at, at_ms + lag, body[begun:end]
        begun, at = end, segment.position + following


def times(segment: Segment) -> Iterable[tuple[int, int]]:
    """The times of the entries, and how many have each."""
    lags = None if segment.layout is None else _numbers(segment.layout)[2]
    if lags is None:
        return ((segment.at_ms, count(segment)),)
    return Counter([segment.at_ms + lag for lag in lags]).items()


def cut(segment: Segment, start: int, before: int, bytes_max: int, entries_max: int) -> Segment | None:
    """The entries that begin in [start, before): as many of the first as fit `bytes_max` and `entries_max`; None if
    there are none."""
    if segment.layout is None:
        fits = start <= segment.position < before and len(segment.body) <= bytes_max and entries_max > 0
        return segment if fits else None
    ends, reach, lags = _numbers(segment.layout)
    first, last = _index(reach, start - segment.position), _index(reach, before - segment.position)
    begun = ends[first - 1] if first else 0
    last = min(last, first + entries_max, bisect_right(ends, begun + bytes_max))
    if first >= last:
        return None
    if last - first == len(ends):
        return segment
    covered = reach[first - 1] if first else 0
    later_ms = 0 if lags is None else lags[first]
    some = [end - begun for end in ends[first:last]]
    reached = some if reach is ends else [end - covered for end in reach[first:last]]
    layout = _layout(some, reached, [] if lags is None else [lag - later_ms for lag in lags[first:last]])
    return Segment(
        segment.log,
        segment.position + covered,
        segment.position + reach[last - 1],
        segment.at_ms + later_ms,
        segment.body[begun : ends[last - 1]],
        layout if last - first > 1 else None,
    )


class Columns(msgspec.Struct, frozen=True):
    """The numbers of the entries of consecutive segments."""

    nexts: array[int]
    times: array[int]
    ends: array[int]  # within the concatenated bodies, 32 bits each, after a zero


def columns(found: Iterable[Segment]) -> Columns:
    """The entries of consecutive segments as columns; there is no object per entry."""
    nexts, times, bounds = array("q"), array("q"), array("i", [0])
    size = 0
    for segment in found:
        origin = segment.position
        if segment.layout is None:
            nexts.append(segment.next)
            times.append(segment.at_ms)
            bounds.append(size + len(segment.body))
        else:
            ends, reach, lags = _numbers(segment.layout)
            if type(reach) is range:
                nexts.extend(range(origin + 1, origin + 1 + len(reach)))
            else:
                nexts.extend([origin + end for end in reach])
            at_ms = segment.at_ms
            times.extend(array("q", [at_ms]) * len(ends) if lags is None else [at_ms + lag for lag in lags])
            bounds.extend([size + end for end in ends])
        size += len(segment.body)
    return Columns(nexts, times, bounds)


def flaw(segment: Segment) -> str | None:
    """What is wrong with the layout of a segment, if anything."""
    if segment.layout is None:
        return None
    if not _whole(segment.layout):
        return "its layout cannot be read"
    ends, reach, lags = _numbers(segment.layout)
    if ends[-1] != len(segment.body) or reach[-1] != segment.next - segment.position:
        return "its entries do not end where it ends"
    if any(map(gt, ends, ends[1:])) or any(map(ge, reach, reach[1:])) or not reach[0]:
        return "its entries are out of order"
    if lags is not None and (lags[0] or any(map(gt, lags, lags[1:]))):
        return "the times of its entries are out of order"
    return None


def _whole(layout: bytes) -> bool:
    """Whether a layout has a form and the numbers of two entries at least."""
    columns = _FORMS.get(int.from_bytes(layout[:_NUMBER_BYTES], "little"))
    numbers, rest = divmod(len(layout), _NUMBER_BYTES)
    return columns is not None and not rest and numbers > 2 * columns and (numbers - 1) % columns == 0


def _index(reach: Sequence[int], distance: int) -> int:
    """The number of the first entry that begins at this distance from the segment's position, or after it; the number
    of entries if there is none."""
    return 0 if distance <= 0 else min(bisect_left(reach, distance) + 1, len(reach))


def _between(segment: Segment, start: int | None, before: int | None, reverse: bool) -> Iterator[Entry]:
    """The entries that begin in [start, before)."""
    log, origin, at_ms, body = segment.log, segment.position, segment.at_ms, segment.body
    if segment.layout is None:
        if (start is None or start <= origin) and (before is None or origin < before):
            yield Entry(log, origin, segment.next, at_ms, body)
        return
    ends, reach, lags = _numbers(segment.layout)
    first = 0 if start is None else _index(reach, start - origin)
    last = len(ends) if before is None else _index(reach, before - origin)
    for at in range(last - 1, first - 1, -1) if reverse else range(first, last):
        entry_ms = at_ms if lags is None else at_ms + lags[at]
        if at:
            yield Entry(log, origin + reach[at - 1], origin + reach[at], entry_ms, body[ends[at - 1] : ends[at]])
        else:
            yield Entry(log, origin, origin + reach[0], entry_ms, body[: ends[0]])


# -- reading


def _small(segment: Segment) -> bool:
    """Whether a segment is staged, to be sealed into a larger one. That pays where its index page would be larger than
    itself; and for streams, whose entries are sent as they are stored, also above that."""
    size = len(segment.body)
    if size < limits.STAGED_BYTES_MIN:
        return True
    if size >= limits.STAGED_BYTES_MAX:
        return False
    layout = segment.layout
    return segment.next - segment.position == size if layout is None else layout[0] & ~TIMED == SIZED


STAGED = StorageTable("staged_entries", StagedSegment, key=("id",), checked=True, names=("id", "log", "position"))
SEGMENTS = StorageTable(
    "entries", Segment, key=("log", "position"), heap=True, checked=True, pack=pack, staging=STAGED, staged=_small
)


def _rest(segment: Segment, start: int) -> Segment:
    """The entries from `start` on: of what is in memory as it was added and in storage as it was packed, one may begin
    within the other."""
    if segment.position >= start:
        return segment
    return cut(segment, start, segment.next, sys.maxsize, sys.maxsize) or segment


def between(reader: Reader | Tx, log: int, start: int, before: int | None, *, long: bool = False) -> Iterator[Segment]:
    """The segments of a log's own entries that cover [start, before), lazily. The first may begin before it, and the
    last end after it: `cut` takes what is inside. Without `before`, segments that are newer than what the reader sees
    of the log may follow. A `long` read, of many segments in order, evicts none from memory."""
    recent, first = reader.recent, start
    keep = None if recent is None else recent.fill if long else recent.add
    while before is None or start < before:
        if recent is not None and (held := recent.covering(log, start)) is not None:
            yield held if start == first else _rest(held, start)
            start = held.next
            continue
        for segment in reader.scan(SEGMENTS, log, covering=start, before=before):
            if segment.next <= start:
                continue  # the last one that begins before it ends before it
            if keep is not None:
                keep(segment)
            yield segment if start == first else _rest(segment, start)
            start = segment.next
            if recent is not None and recent.covering(log, start) is not None:
                break
        else:
            return


def scan(
    reader: Reader | Tx,
    log: int,
    *,
    start: int | None = None,
    before: int | None = None,
    limit: int | None = None,
    reverse: bool = False,
) -> Iterator[Entry]:
    """A log's own entries that begin in [start, before), in order or in reverse, lazily."""
    if start is not None and not reverse and reader.recent is not None:
        rows = between(reader, log, start, before)
    else:
        most = None if limit is None else limit + 1  # the row that covers `start` may have no entry after it
        rows = reader.scan(SEGMENTS, log, covering=start, before=before, limit=most, reverse=reverse)
    found = chain.from_iterable(_between(segment, start, before, reverse) for segment in rows)
    return found if limit is None else islice(found, limit)


def outlines(reader: Reader | Tx, log: int, start: int, limit: int) -> Iterator[tuple[int, int, int, int]]:
    """Position, end, time and size of the entries that begin at `start` or after it, without reading them."""
    columns = f"position, next, at_ms, {size_of('body')}, layout"
    while limit > 0:
        wanted = min(limit + 1, _ROWS)
        rows = reader.values(SEGMENTS, columns, log, covering=start, limit=wanted)
        for origin, following, at_ms, size, layout in rows:
            if layout is None:
                if origin >= start:
                    yield origin, following, at_ms, size
                    limit -= 1
            else:
                ends, reach, lags = _numbers(layout)
                first = _index(reach, start - origin)
                for at in range(first, min(len(ends), first + limit)):
                    position, begun = (origin + reach[at - 1], ends[at - 1]) if at else (origin, 0)
                    entry_ms = at_ms if lags is None else at_ms + lags[at]
                    yield position, origin + reach[at], entry_ms, ends[at] - begun
                    limit -= 1
            start = max(start, following)
            if limit <= 0:
                return
        if len(rows) < wanted:
            return


def outline(reader: Reader | Tx, log: int, start: int) -> tuple[int, int, int, int] | None:
    """Those of the first of them."""
    return next(outlines(reader, log, start, 1), None)


def head(reader: Reader | Tx, log: int, start: int, size: int) -> tuple[int, int, int, bytes] | None:
    """Position, end and time of the first entry that begins at `start` or after it, and the first bytes of its body. A
    body that is alone in its row is not read."""
    columns = f"position, next, at_ms, layout, {head_of('body', size)}"
    for origin, following, at_ms, layout, begin in reader.values(SEGMENTS, columns, log, covering=start, limit=2):
        if layout is None:
            if origin >= start:
                return origin, following, at_ms, begin or b""  # of an empty body it is NULL
        elif following > start:
            for entry in scan(reader, log, start=start, limit=1):
                return entry.position, entry.next, entry.at_ms, entry.body[:size]
    return None
