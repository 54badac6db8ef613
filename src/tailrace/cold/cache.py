"""The cold cache: recently read entries of cold storage, for readers that must not wait.

A *segment* is a range of consecutive entries that are cached and evicted together. A fetch reads one row group from the
entry that covers the requested position on, and caches as much of it as fits, split into segments: a reader that goes
on finds the next ones in the cache. The least recently used segments are evicted first. A segment that was fetched for
a reader that has not read it yet stays for some seconds, even if the cache is full: else two readers could each evict
the segment that the other waits for, forever.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from tailrace import limits
from tailrace.cold.merging import FileCursor, RowSelection, Vanished, damaged, merge
from tailrace.cold.reading import ColdListing, EntryChain, again, listing, rows
from tailrace.cold.store import Store
from tailrace.errors import Corrupt, Unavailable
from tailrace.log.cold import ColdMiss, ColdRange
from tailrace.log.entry import Entry

_LAST_MS = 253_402_300_799_000  # the end of the year 9999
_TIMES_MAX = 1_000  # recent lookups of times
_WAIT_S = 10.0  # how long a fetched segment waits for its reader
_ENTRY_BYTES = 150  # the memory of an entry besides its body


class _Segment:
    """Consecutive entries of a log."""

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries
        self.starts = [entry.position for entry in entries]
        self.end = entries[-1].next
        self.bytes = sum(len(entry.body) + _ENTRY_BYTES for entry in entries)
        self.wanted_until = 0.0

    def since(self, position: int) -> list[Entry]:
        at = bisect_right(self.starts, position) - 1
        return self.entries[at:] if at else self.entries


class ColdCache:
    """Cold entries in memory, at most about `capacity_bytes` of them. `hits`, `fetches` and `bytes` are for metrics."""

    def __init__(self, store: Store, capacity_bytes: int = limits.COLD_CACHE_BYTES) -> None:
        self.store = store
        self.capacity_bytes = capacity_bytes
        self.hits = 0  # segments found in the cache
        self.fetches = 0  # reads of cold storage
        self.bytes = 0  # in the cache now
        self._segments: OrderedDict[tuple[int, int], _Segment] = OrderedDict()  # by log and first position
        self._starts: dict[int, list[int]] = {}  # by log, sorted
        self._listings: dict[str, ColdListing] = {}
        self._flights: dict[int, list[tuple[int, threading.Event]]] = {}  # by log: fetches in progress
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(limits.COLD_CACHE_FETCHES_MAX)
        self._times: OrderedDict[tuple[int, int, int], int] = OrderedDict()  # by log, mark and time: the position

    def segment(self, tier: ColdRange, position: int) -> list[Entry]:
        """Entries in order, the first of which covers `position`. Raises `ColdMiss`; never waits."""
        with self._lock:
            found = self._find(tier.log, position)
            if found is None:
                raise ColdMiss(tier, position)
            key, segment = found
            self._segments.move_to_end(key)
            segment.wanted_until = 0.0
            self.hits += 1
        return segment.since(position)

    def first_since(self, tier: ColdRange, at_ms: int) -> int:
        """The position of the first entry that is not older, or where the cold part ends. Raises `ColdMiss`; never
        waits."""
        with self._lock:
            found = self._times.get((tier.log, tier.tiered, at_ms))
        if found is None:
            raise ColdMiss(tier, tier.start, at_ms)
        return found

    def fetch(self, missing: ColdMiss) -> None:
        """Read the missing entries into the cache. If another thread is reading them already, wait for it."""
        if missing.at_ms is not None:
            self._look_up(missing.tier, missing.at_ms)
            return
        log, position = missing.tier.log, missing.position
        with self._lock:
            others = [done for start, done in self._flights.get(log, ()) if start <= position]
        for done in others:
            done.wait()
            with self._lock:
                if self._find(log, position) is not None:
                    return
        with self._flight(log, position) as first:
            if first:
                with self._slots:
                    self._read(missing)
                return
        self.fetch(missing)  # another thread began the same fetch in between

    def clear(self) -> None:
        """Empty the cache."""
        with self._lock:
            self._times.clear()
            self._segments.clear()
            self._starts.clear()
            self._listings.clear()
            self.bytes = 0

    # -- reading

    def _look_up(self, tier: ColdRange, at_ms: int) -> None:
        """Find the first position at or after a time."""
        at = datetime.fromtimestamp(min(max(at_ms, 0), _LAST_MS) / 1000, UTC)
        with self._slots:
            position = self._since(tier, at)
        with self._lock:
            self._times[tier.log, tier.tiered, at_ms] = position
            while len(self._times) > _TIMES_MAX:
                self._times.popitem(last=False)

    def _since(self, tier: ColdRange, at: datetime) -> int:
        """Times only grow along a log, so only the file with that time is read."""
        known = listing(self.store, tier.place)
        chain = EntryChain(self.store, tier.place, tier.log, tier.start, tier.tiered)
        for _ in range(limits.COLD_COMMIT_TRIES):
            files = known.having(tier.log, tier.start, tier.tiered)
            if not files:
                raise Corrupt(
                    f"positions {tier.start} to {tier.tiered} of log {tier.log} should be in cold storage at "
                    f"{self.store.uri(tier.place)}, and no file there has them; its Delta table is at version "
                    f"{known.version}"
                )
            later = [file for file in files if file.timestamp_max is None or file.timestamp_max >= at]
            selection = RowSelection(tier.log, tier.start, tier.tiered)
            cursors = [
                FileCursor(self.store, file, ["log", "position", "next", "timestamp"], selection) for file in later
            ]
            try:
                for table, _ in merge(cursors, ["log", "position"]):  # entries past retention may be missing in between
                    since = table.filter(pc.greater_equal(table["timestamp"], pa.scalar(at, table["timestamp"].type)))
                    if since.num_rows:
                        return int(since["position"][0].as_py())
                return tier.tiered
            except Vanished as vanished:
                known = again(self.store, vanished, chain)
        raise _too_fast(self.store, tier.place)

    @contextmanager
    def _flight(self, log: int, position: int) -> Iterator[bool]:
        """Register a fetch; False if the same one is in progress."""
        done = threading.Event()
        flight = (position, done)
        with self._lock:
            flights = self._flights.setdefault(log, [])
            first = all(start != position for start, _ in flights)
            if first:
                flights.append(flight)
        try:
            yield first
        finally:
            if first:
                with self._lock:
                    flights.remove(flight)
                    if not flights:
                        self._flights.pop(log, None)
                done.set()

    def _read(self, missing: ColdMiss) -> None:
        with self._lock:
            if self._find(missing.tier.log, missing.position) is not None:
                return
            self.fetches += 1
        tier, position = missing.tier, missing.position
        known = self._listings.get(tier.place)
        for _ in range(limits.COLD_COMMIT_TRIES):
            fresh = known is None
            if known is None:
                known = listing(self.store, tier.place)
                self._listings[tier.place] = known
            # Entries above the mark may be half of a batch that was not verified yet.
            chain = EntryChain(self.store, tier.place, tier.log, position, tier.tiered, covering=True)
            try:
                entries = self._entries(chain, known)
            except Vanished as vanished:
                known = again(self.store, vanished, chain)
                self._listings[tier.place] = known
                continue
            except Corrupt:
                # An old listing proves nothing; list the files again before reporting damage.
                if fresh:
                    raise
                known = None
                continue
            if entries:
                self._put(tier.log, position, entries)
                return
            if fresh:
                raise Corrupt(
                    f"position {position} of log {tier.log} should be in cold storage at "
                    f"{self.store.uri(tier.place)}, and no file there has it; its Delta table is at "
                    f"version {known.version}"
                )
            known = None
        raise _too_fast(self.store, tier.place)

    def _entries(self, chain: EntryChain, known: ColdListing) -> list[Entry]:
        """Entries from the one that covers the position on: at least a segment, or all that exist."""
        position = chain.start
        assert position is not None
        files = known.having(chain.log, position, chain.end)
        enough = max(
            limits.COLD_CACHE_SEGMENT_BYTES,
            min(self.capacity_bytes // limits.COLD_CACHE_FETCHES_MAX, limits.COLD_GROUP_BYTES),
        )
        found: list[Entry] = []
        size, reached = 0, position
        for batch in _readable(rows(self.store, files, chain, ["log", "position", "next", "timestamp", "body"])):
            for entry in _decoded(batch):
                if entry.position > reached or (found and entry.position < reached):
                    raise damaged(self.store, chain.files[0], f"the entry at position {reached} has no body")
                found.append(entry)
                reached = entry.next
                size += len(entry.body) + _ENTRY_BYTES
                if size >= enough:
                    return found
            if size >= limits.COLD_CACHE_SEGMENT_BYTES or len(found) >= limits.COLD_CACHE_SEGMENT_ENTRIES:
                break
        return found

    # -- segments

    def _find(self, log: int, position: int) -> tuple[tuple[int, int], _Segment] | None:
        starts = self._starts.get(log)
        if starts is None:
            return None
        at = bisect_right(starts, position) - 1
        if at < 0:
            return None
        key = (log, starts[at])
        segment = self._segments[key]
        return (key, segment) if position < segment.end else None

    def _put(self, log: int, position: int, entries: Sequence[Entry]) -> None:
        """Split into segments and cache them, the one with the position as the most recently used."""
        segments = list(_segments(entries))
        with self._lock:
            for segment in reversed(segments):
                self._keep(log, segment, wanted=segment.starts[0] <= position < segment.end)
            self._evict()

    def _keep(self, log: int, segment: _Segment, *, wanted: bool) -> None:
        starts = self._starts.setdefault(log, [])
        key = (log, segment.starts[0])
        old = self._segments.get(key)
        if old is not None:
            if old.end >= segment.end:
                self._segments.move_to_end(key)
                return
            self._forget(key)
            starts = self._starts.setdefault(log, [])
        segment.wanted_until = time.monotonic() + _WAIT_S if wanted else 0.0
        insort(starts, segment.starts[0])
        self._segments[key] = segment
        self.bytes += segment.bytes

    def _evict(self) -> None:
        """Evict segments until the cache fits. At least one stays, however large it is."""
        now = time.monotonic()
        for key in list(self._segments):
            if self.bytes <= self.capacity_bytes or len(self._segments) == 1:
                return
            if self._segments[key].wanted_until <= now:
                self._forget(key)

    def _forget(self, key: tuple[int, int]) -> None:
        segment = self._segments.pop(key)
        self.bytes -= segment.bytes
        starts = self._starts[key[0]]
        starts.remove(key[1])
        if not starts:
            del self._starts[key[0]]


def _too_fast(store: Store, place: str) -> Unavailable:
    return Unavailable(f"files of {store.uri(place)} are replaced faster than they can be read; try again")


def _readable(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches before a file that is lost or damaged. The error is raised for readers that come to that file."""
    some = False
    try:
        for batch in batches:
            some = True
            yield batch
    except (Corrupt, Vanished):
        if not some:
            raise


def _decoded(batch: pa.RecordBatch) -> Iterator[Entry]:
    """The entries of the rows that have a body."""
    bodies = batch.column("body")
    if bodies.null_count:
        batch = batch.filter(pc.is_valid(bodies))
    columns = [batch.column(name) for name in ("log", "position", "next", "timestamp", "body")]
    columns[3] = pc.divide(columns[3].cast(pa.int64()), 1000)
    for fields in zip(*(column.to_pylist() for column in columns), strict=True):
        yield Entry(*fields)


def _segments(entries: Sequence[Entry]) -> Iterator[_Segment]:
    held: list[Entry] = []
    size = 0
    for entry in entries:
        if held and (
            size + len(entry.body) > limits.COLD_CACHE_SEGMENT_BYTES or len(held) >= limits.COLD_CACHE_SEGMENT_ENTRIES
        ):
            yield _Segment(held)
            held, size = [], 0
        held.append(entry)
        size += len(entry.body)
    if held:
        yield _Segment(held)
