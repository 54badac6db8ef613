"""Bulk queries of logs: which logs there are, a range of one, the offset of a time, how far some records reach.

A range [first, end) has the entries whose position is in it, so that ranges may be cut anywhere, between entries or
within one, and no entry is lost or duplicated.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final, TypeVar

import msgspec
import pyarrow as pa

from tailrace import limits
from tailrace.access import Permission
from tailrace.bulk.columns import STREAM, TABLE, TOPIC
from tailrace.bulk.entries import batch, binaries, segments_batch
from tailrace.command import Query
from tailrace.errors import Gone, Invalid, Trimmed
from tailrace.log import cold, segments
from tailrace.log import log as logs
from tailrace.log.entry import LOGS, Entry, Log, Segment
from tailrace.log.position import offset
from tailrace.storage.engine import Reader
from tailrace.streams.commands import live
from tailrace.streams.commands import log_of as log_of_stream
from tailrace.streams.stream import touch_due
from tailrace.tables import change, change_stream
from tailrace.tables.definition import TABLES, decoded, find
from tailrace.tables.export import Export, ReadExport
from tailrace.topics import topic as topics

T = TypeVar("T")

COUNTED_MAX: Final = 100_000  # entries that are counted; beyond that, the rest is extrapolated


class Ready(Query[T | None], frozen=True):
    """The result of a query, or None if entries have to be fetched from cold storage: then the caller runs the query
    again in a thread, where waiting blocks nothing else."""

    query: Query[T]

    def subjects(self) -> tuple[str, ...]:
        return self.query.subjects()

    def run(self, reader: Reader) -> T | None:
        try:
            return self.query.run(reader)
        except cold.ColdMiss:
            return None


class ReadyMessages(Ready[T], frozen=True):
    permission = Permission.CONSUME


def ready(query: Query[T]) -> Ready[T]:
    return (ReadyMessages if query.permission == Permission.CONSUME else Ready)(query)


class LogSelector(msgspec.Struct, frozen=True):
    """Selects the logs of a table, a topic or a stream."""

    kind: str
    name: str
    label: str | None = None  # of a table's change stream; None: the current one, or the last

    @property
    def subject(self) -> str:
        return f"{self.kind}s/{self.name}"


class PartitionLog(msgspec.Struct, frozen=True):
    """The log of a partition."""

    partition: int
    log: Log
    earliest: int  # hot or cold
    tier: cold.ColdRange | None


class LogInfo(msgspec.Struct, frozen=True):
    """A table, topic or stream, and its logs."""

    which: LogSelector
    parts: list[PartitionLog]
    label: str | None = None
    view: str | None = None
    content_type: str | None = None
    keys: tuple[tuple[str, str], ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    complete: bool = False
    place: cold.ColdTable | None = None
    idle: bool = False  # a stream that expires unless it is read, and whose last access has to be recorded


def _found(reader: Reader, which: LogSelector, partition: int | None = None) -> LogInfo:
    if which.kind == STREAM:
        stream = live(reader, which.name)
        part = _part(reader, 0, log_of_stream(reader, stream))
        return LogInfo(
            which,
            [part],
            content_type=stream.content_type,
            place=_place(reader, [part]),
            idle=touch_due(stream, reader.now_ms),
        )
    if which.kind == TOPIC:
        topic = topics.find(reader, which.name)
        numbers = range(topic.partitions) if partition is None else (partition,)
        parts = [_part(reader, number, topics.partition_log(reader, topic, number)) for number in numbers]
        return LogInfo(which, parts, place=_place(reader, parts))
    changes = change_stream.find_stream(reader, which.name, which.label)
    part = _part(reader, 0, change_stream.log_of(reader, changes))
    row = reader.get(TABLES, which.name)
    columns = () if row is None or row.space != changes.space else decoded(row).columns
    return LogInfo(
        which,
        [part],
        changes.label,
        changes.view,
        keys=changes.keys,
        columns=tuple((column.name, column.kind) for column in columns),
        complete=changes.complete and part.earliest <= changes.first,
        place=_place(reader, [part]),
    )


def _part(reader: Reader, number: int, log: Log) -> PartitionLog:
    return PartitionLog(number, log, cold.earliest(reader, log), cold.tier_of(reader, log.id))


def _place(reader: Reader, parts: list[PartitionLog]) -> cold.ColdTable | None:
    for part in parts:
        if part.tier is not None:
            return reader.get(cold.COLD_TABLES, part.tier.place)
    return None


class FindLogs(Query[LogInfo], frozen=True):
    """The table, topic or stream, and its logs: all, or that of one partition."""

    which: LogSelector
    partition: int | None = None

    def subjects(self) -> tuple[str, ...]:
        return (self.which.subject,)

    def run(self, reader: Reader) -> LogInfo:
        return _found(reader, self.which, self.partition)


class FindTopicLogs(FindLogs, frozen=True):
    permission = Permission.CONSUME


def find_logs(which: LogSelector, partition: int | None = None) -> FindLogs:
    """The query with the required permission: reading a topic needs CONSUME."""
    return (FindTopicLogs if which.kind == TOPIC else FindLogs)(which, partition)


# -- ranges


class LogRange(msgspec.Struct, frozen=True):
    """The range of a log to read: the entries in [first, end)."""

    log: int
    first: int
    end: int
    tail: int
    content_type: str | None
    idle: bool


class PlanRange(Query[LogRange], frozen=True):
    """The range of a read: from `first` (None: the earliest) to `until` (None: the tail)."""

    which: LogSelector
    partition: int = 0
    first: int | None = None
    until: int | None = None

    def subjects(self) -> tuple[str, ...]:
        return (self.which.subject,)

    def run(self, reader: Reader) -> LogRange:
        facts = _found(reader, self.which, self.partition)
        (part,) = facts.parts
        log = part.log
        first = part.earliest if self.first is None else self.first
        if first < part.earliest:
            raise Trimmed(requested=first, earliest=part.earliest, offset=offset(part.earliest))
        # The last sequence may be of another table: beyond this table's log, and still a valid offset.
        tail = max(log.next, change_stream.last_sequence(reader) + 1) if self.which.kind == TABLE else log.next
        if first > tail:
            raise Invalid(
                f"offset {offset(first)} is beyond the tail {offset(log.next)}; use an offset returned for this log",
                code="INVALID_OFFSET",
            )
        end = log.next if self.until is None else min(self.until, log.next)
        return LogRange(log.id, first, max(end, first), log.next, facts.content_type, facts.idle)


class PlanTopicRange(PlanRange, frozen=True):
    permission = Permission.CONSUME


def plan(which: LogSelector, partition: int, first: int | None, until: int | None) -> PlanRange:
    return (PlanTopicRange if which.kind == TOPIC else PlanRange)(which, partition, first, until)


class EntryBatch(msgspec.Struct, frozen=True):
    """The first entries of a range, and where the rest begins."""

    entries: pa.RecordBatch
    next: int


class PackedEntries(Query[EntryBatch], frozen=True):
    """The first entries of a range: at least one if there is any, then up to `entries_max` and `bytes_max`."""

    which: LogSelector
    log: int
    first: int
    end: int
    entries_max: int = limits.BULK_ENTRIES
    bytes_max: int = limits.BULK_BYTES

    def subjects(self) -> tuple[str, ...]:
        return (self.which.subject,)

    def run(self, reader: Reader) -> EntryBatch:
        log = reader.get(LOGS, self.log)
        if log is None or log.dropped:
            raise Gone(f"{self.which.subject!r} was deleted while it was read; the entries before this are complete")
        if self.first < log.start:
            entries = list(_cold(reader, log, self.first, self.end, self.entries_max, self.bytes_max))
            if entries:
                return EntryBatch(batch(entries), entries[-1].next)
            return EntryBatch(batch([]), min(max(log.start, self.first), self.end))
        holder, until = logs.holder(reader, log, self.first)
        before = min(until, self.end)
        found: list[Segment] = []
        count, left = 0, self.bytes_max
        for segment in segments.between(reader, holder, self.first, before):
            part = segments.cut(segment, self.first, before, left, self.entries_max - count)
            if part is None and not found:  # nothing of it is in the range, or its first entry is large
                part = segments.cut(segment, self.first, before, sys.maxsize, 1)
                if part is None:
                    continue
            if part is None:
                break
            if found and part.position != found[-1].next:
                raise logs.gap(log, found[-1].next)
            found.append(part)
            count, left = count + segments.count(part), left - len(part.body)
            if part.next != segment.next or left <= 0 or count >= self.entries_max:
                break
        elsewhere = not found or found[0].position != self.first  # within an entry; or the covering entry is lost
        if elsewhere and self.first < before and logs.uncovered(reader, holder, self.first):
            raise logs.gap(log, self.first)
        return EntryBatch(segments_batch(self.log, found), found[-1].next if found else before)


class PackedMessages(PackedEntries, frozen=True):
    permission = Permission.CONSUME


def packed_entries(which: LogSelector, log: int, first: int, end: int, bytes_max: int) -> PackedEntries:
    kind = PackedMessages if which.kind == TOPIC else PackedEntries
    return kind(which, log, first, end, bytes_max=bytes_max)


def _cold(reader: Reader, log: Log, first: int, end: int, entries_max: int, bytes_max: int) -> Iterator[Entry]:
    """Entries of the range below the log's start, up to the first one that has to be fetched; at least one."""
    earliest = cold.earliest(reader, log)
    if first < earliest:
        raise Trimmed(requested=first, earliest=earliest, offset=offset(earliest))
    count, left = 0, bytes_max
    try:
        for entry in cold.entries(reader, log, first):
            if entry.position < first:
                continue  # it covers `first` and belongs to another range
            if entry.position >= min(end, log.start) or (count and len(entry.body) > left):
                return
            yield entry
            count, left = count + 1, left - len(entry.body)
            if count == entries_max or left <= 0:
                return
    except cold.ColdMiss:
        if not count:
            raise


# -- the offset of a time


class OffsetsAt(Query[dict[int, int]], frozen=True):
    """The first offset of each partition whose entry is not older than `at_ms`; the tail if there is none."""

    which: LogSelector
    at_ms: int

    def subjects(self) -> tuple[str, ...]:
        return (self.which.subject,)

    def run(self, reader: Reader) -> dict[int, int]:
        facts = _found(reader, self.which)
        return {part.partition: _at(reader, part, self.at_ms) for part in facts.parts}


class TopicOffsetsAt(OffsetsAt, frozen=True):
    permission = Permission.CONSUME


def offsets_at(which: LogSelector, at_ms: int) -> OffsetsAt:
    return (TopicOffsetsAt if which.kind == TOPIC else OffsetsAt)(which, at_ms)


def _at(reader: Reader, part: PartitionLog, at_ms: int) -> int:
    """By bisection: times of a log never decrease. The hot part first, which needs no fetch."""
    low, high = part.log.start, part.log.next
    first = _entry_at(reader, part.log, low)
    if part.earliest < low and (first is None or first[2] >= at_ms):
        since = cold.first_since(reader, part.log, at_ms)
        return since if since < low or first is None else first[0]
    while low < high:
        middle = (low + high) // 2
        found = _entry_at(reader, part.log, middle)
        if found is None or found[0] >= high:
            high = middle  # no entry begins from there on
        elif found[2] < at_ms:
            low = found[1]
        else:
            high = middle
    found = _entry_at(reader, part.log, low)
    return part.log.next if found is None else found[0]


def _entry_at(reader: Reader, log: Log, position: int) -> tuple[int, int, int] | None:
    """Position, end and time of the first entry that begins at `position` or after it."""
    while position < log.next:
        holder, until = logs.holder(reader, log, position)
        found = segments.outline(reader, holder, position)
        if found is not None and found[0] < until:
            return found[:3]
        position = until
    return None


# -- how far some records reach


class Advance(Query[dict[int, int]], frozen=True):
    """How far about `records` records reach from these offsets, distributed over the partitions by their backlog."""

    which: LogSelector
    offsets: dict[int, int]
    records: int

    def subjects(self) -> tuple[str, ...]:
        return (self.which.subject,)

    def run(self, reader: Reader) -> dict[int, int]:
        parts = {part.partition: part for part in _found(reader, self.which).parts}
        for partition in self.offsets:
            if partition not in parts:
                raise Invalid(
                    f"{self.which.subject!r} has no partition {partition}; it has {len(parts)}, numbered from 0"
                )
        behind = {number: max(parts[number].log.next - at, 0) for number, at in self.offsets.items()}
        total = sum(behind.values())
        reached = {}
        for number, at in self.offsets.items():
            share = -(-self.records * behind[number] // total) if total else 0
            reached[number] = self._reach(reader, parts[number], at, share) if behind[number] else at
        return reached

    def _reach(self, reader: Reader, part: PartitionLog, first: int, records: int) -> int:
        log = part.log
        if first < part.earliest:
            raise Trimmed(requested=first, earliest=part.earliest, offset=offset(part.earliest))
        if self.which.kind == TOPIC:
            return min(first + max(records, 1), log.next)
        if first < log.start:
            return _extrapolated(reader, log, first, records, self.which.kind)
        if self.which.kind == TABLE:
            return _counted(reader, log, first, records)
        return _measured(reader, log, first, records)


class AdvanceTopic(Advance, frozen=True):
    permission = Permission.CONSUME


def advance(which: LogSelector, offsets: dict[int, int], records: int) -> Advance:
    return (AdvanceTopic if which.kind == TOPIC else Advance)(which, offsets, records)


def _extrapolated(reader: Reader, log: Log, first: int, records: int, kind: str) -> int:
    """Extrapolated from the first segment of cold entries."""
    count, end = 0, first
    for entry in _cold(reader, log, first, log.start, COUNTED_MAX, limits.BULK_BYTES):
        count += len(change.skimmed(entry.body).records) if kind == TABLE else 1
        end = entry.next
        if count >= records:
            return end
    if not count:  # no entry begins between `first` and the hot part
        return log.start
    return min(first + (end - first) * records // count, log.next)


# -- how many records there are


class RecordCount(msgspec.Struct, frozen=True):
    """The number of records in a range, and offsets that cut it into ranges of about the same number."""

    records: int
    cuts: list[int]


class CountRecords(Query[RecordCount], frozen=True):
    """The number of records of a table's change stream in [first, until), and where to cut it into `pieces` of about
    the same number: offsets do not give it, because all tables share them. Only entries in the hot log count."""

    which: LogSelector
    first: int
    until: int
    pieces: int

    def subjects(self) -> tuple[str, ...]:
        return (self.which.subject,)

    def run(self, reader: Reader) -> RecordCount:
        if self.which.kind != TABLE:
            raise Invalid(
                f"{self.which.subject!r} is not a table; offsets of topics count messages and those of streams "
                "count bytes, so they can be cut anywhere"
            )
        if self.first > self.until:
            raise Invalid(f"first={self.first} is greater than until={self.until}; give first <= until")
        (part,) = _found(reader, self.which).parts
        log = part.log
        low, high = max(self.first, log.start), min(self.until, log.next)
        found = segments.head(reader, log.id, low, change.HEAD_BYTES) if low < high else None
        if found is None:
            return RecordCount(0, [self.first, self.until])
        begin, end = change.before(found[3]), _records_before(reader, log, high)
        cuts = [self.first]
        for number in range(1, self.pieces):
            at = _preceded(reader, log, max(low, cuts[-1]), high, begin + (end - begin) * number // self.pieces)
            if cuts[-1] < at < high:
                cuts.append(at)
        return RecordCount(end - begin, [*cuts, self.until])


def _records_before(reader: Reader, log: Log, position: int) -> int:
    """The number of records in entries of a change stream that begin below a position; there is at least one."""
    last = next(segments.scan(reader, log.id, before=position, limit=1, reverse=True))
    return change.before(last.body) + len(change.skimmed(last.body).records)


def _counted(reader: Reader, log: Log, first: int, records: int) -> int:
    """The position after so many records, from `first` on; at least one entry further."""
    found = segments.head(reader, log.id, first, change.HEAD_BYTES)
    if found is None:
        return log.next
    return _preceded(reader, log, found[1], log.next, change.before(found[3]) + records)


def _preceded(reader: Reader, log: Log, low: int, high: int, wanted: int) -> int:
    """The first position in [low, high] whose entry has `wanted` records before it, by bisection: each entry of a
    change stream has the number of records before it."""
    while low < high:
        middle = (low + high) // 2
        found = segments.head(reader, log.id, middle, change.HEAD_BYTES)
        if found is None or change.before(found[3]) >= wanted:
            high = middle
        else:
            low = found[1]
    return min(low, log.next)


def _measured(reader: Reader, log: Log, first: int, records: int) -> int:
    """Count the entries of a stream; beyond `COUNTED_MAX`, extrapolate by their bytes."""
    holder, until = logs.holder(reader, log, first)
    found = segments.outlines(reader, holder, first, min(records, COUNTED_MAX) + 1)
    starts = [position for position, _, _, _ in found if position < until]
    if len(starts) > records:
        return starts[records]
    if len(starts) <= COUNTED_MAX:
        return until  # of a fork: the shared entries; its own are in the next range
    return int(min(first + (starts[-1] - first) * records // len(starts), until))


# -- items


class CheckTable(Query[None], frozen=True):
    """Raise unless the table exists."""

    single = True
    subject = ("tables", "table")

    table: str

    def run(self, reader: Reader) -> None:
        find(reader, self.table)


class ReadItems(Query[pa.Array | None], frozen=True):
    """The next stored items of an export, as `ReadExport`; None: no more."""

    permission = Permission.SYSTEM

    export: Export

    def run(self, reader: Reader) -> pa.Array | None:
        page = ReadExport(self.export).run(reader)
        return None if page is None else binaries(page.sizes, page.body)
