"""Segments that were written or read recently, in memory: consumers are mostly near the end of a log and read a few
entries of a segment at a time, and many readers catch up on the same log.

Entries never change, and a log's number and a position are never reused, so nothing here is ever wrong, also when
storage has joined segments since; what a reader may see is decided by the log's row, which is read each time. Used by
many threads.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict

from tailrace import limits
from tailrace.log.entry import Segment

SEGMENT_BYTES = 500  # of memory for a segment beside its bytes
LONG_READS = 8  # of different logs, whose last segment is kept until they have come to the next one


class RecentSegments:
    """Up to `RECENT_BYTES` of segments; those that were not used for the longest time are evicted."""

    def __init__(self) -> None:
        self.bytes = 0
        self._held: OrderedDict[tuple[int, int], Segment] = OrderedDict()  # by log and position, the latest use last
        self._positions: dict[int, list[int]] = {}  # of a log, in order
        self._last: dict[int, Segment] = {}  # that a long read of a log came across, and for which there was no room
        self._changing = threading.Lock()
        self.committed = _Committed(self)

    def covering(self, log: int, position: int) -> Segment | None:
        """The segment of a log's own entries that covers `position`, if it is here."""
        key = (log, position)
        with self._changing:
            segment = self._held.get(key)
            if segment is None:
                positions = self._positions.get(log)
                at = 0 if positions is None else bisect_right(positions, position)
                if not at:
                    return self._last_of(log, position)
                assert positions is not None
                key = (log, positions[at - 1])
                segment = self._held[key]
                if segment.next <= position:
                    return self._last_of(log, position)
            self._held.move_to_end(key)
            return segment

    def _last_of(self, log: int, position: int) -> Segment | None:
        segment = self._last.get(log)
        return None if segment is None or not segment.position <= position < segment.next else segment

    def add(self, segment: Segment) -> None:
        """Keep a segment that is committed; not a huge one, which would evict all others."""
        self.add_each([segment])

    def add_each(self, segments: list[Segment]) -> None:
        """As `add`, for many."""
        with self._changing:
            for segment in segments:
                size = _size(segment)
                key = (segment.log, segment.position)
                if size <= limits.RECENT_SEGMENT_BYTES_MAX and key not in self._held:
                    self._insert(key, segment, size)

    def fill(self, segment: Segment) -> None:
        """Keep a segment that a long read came across, if there is room: it must not evict what others use, and is
        read by few again. If there is none it is kept until the next one: a page may end within it, and the next
        page begins with the rest."""
        size = _size(segment)
        if size > limits.RECENT_SEGMENT_BYTES_MAX:
            return
        log = segment.log
        key = (log, segment.position)
        with self._changing:
            if self.bytes + size > limits.RECENT_BYTES:
                self._last.pop(log, None)
                self._last[log] = segment
                if len(self._last) > LONG_READS:
                    del self._last[next(iter(self._last))]
            elif key not in self._held:
                self._insert(key, segment, size)

    def join(self, segment: Segment) -> None:
        """Keep a segment in place of those that it was joined from, if the first of them is here."""
        key = (segment.log, segment.position)
        with self._changing:
            if key not in self._held:
                return
            positions = self._positions[segment.log]
            first, last = bisect_left(positions, segment.position), bisect_left(positions, segment.next)
            for position in positions[first:last]:
                self.bytes -= _size(self._held.pop((segment.log, position)))
            del positions[first:last]
            self._insert(key, segment, _size(segment))

    def _insert(self, key: tuple[int, int], segment: Segment, size: int) -> None:
        self._held[key] = segment
        log, position = key
        positions = self._positions.get(log)
        if positions is None:
            self._positions[log] = [position]
        elif not positions or position > positions[-1]:  # new entries come last
            positions.append(position)
        else:
            insort(positions, position)
        self.bytes += size
        while self.bytes > limits.RECENT_BYTES:
            (log, position), gone = self._held.popitem(last=False)
            self.bytes -= _size(gone)
            positions = self._positions[log]
            del positions[bisect_right(positions, position) - 1]
            if not positions:
                del self._positions[log]


class _Committed:
    """The same segments, for a transaction: it may have added others itself, which are not kept until it commits."""

    def __init__(self, recent: RecentSegments) -> None:
        self.covering = recent.covering
        self.join = recent.join  # of entries that are committed

    def add(self, segment: Segment) -> None:
        pass

    def fill(self, segment: Segment) -> None:
        pass


def _size(segment: Segment) -> int:
    """The memory that a segment takes; the layout of tiny entries is larger than they are."""
    return SEGMENT_BYTES + len(segment.body) + (0 if segment.layout is None else len(segment.layout))
