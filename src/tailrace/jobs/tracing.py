"""The trace of a write: its change record, its messages, who has them, the views that have applied it, its files.

Nothing is stored for it, but for who has acknowledged messages lately (`topics/consumption.py`). A message has the
sequence of the transaction that caused it and the time of its commit; the messages of a sequence are searched from that
time on, in the topics that the table has routes to now. A job has applied a change when its position in the table's log
is behind it. Each partition is searched by a query of its own: it may have to be fetched from cold storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from tailrace import limits
from tailrace.access import Access
from tailrace.command import Query
from tailrace.errors import NotFound
from tailrace.jobs import batches
from tailrace.jobs.job import JOB_POSITIONS, JOBS
from tailrace.jobs.view import KIND
from tailrace.log import cold, segments
from tailrace.log.cold import ColdRange
from tailrace.log.entry import LOGS, Entry, Log
from tailrace.storage.engine import Reader
from tailrace.tables import change, value
from tailrace.tables import key as keys
from tailrace.tables.change import ChangeRecord
from tailrace.tables.change_reading import entries_from, position_after
from tailrace.tables.change_stream import find_stream, log_of
from tailrace.tables.definition import TABLES, Definition, decoded, find
from tailrace.tables.history import key_from_json
from tailrace.tables.value import Item
from tailrace.topics import group as rules
from tailrace.topics.consuming import resolved
from tailrace.topics.consumption import AckRange, acknowledgements
from tailrace.topics.group import TIMESTAMP, GroupProgress, StartPoint
from tailrace.topics.topic import GROUPS, MODES, OPERATIONS, TOPICS, Envelope, Topic, opened, partition_log, read

WAITING: Final = "waiting"
IN_FLIGHT: Final = "in_flight"
ACKNOWLEDGED: Final = "acknowledged"
_MESSAGES_AT_ONCE: Final = 128
_SOON_MS: Final = (
    1_000  # messages of a transaction have its time, or that of a message before them if the clock went back
)


class KeptEntry(msgspec.Struct, frozen=True):
    """An entry of a log, and where it is kept: in the database (hot), in a Delta table of cold storage, or in both."""

    log: int
    position: int
    hot: bool
    cold: ColdRange | None


class GroupState(msgspec.Struct, frozen=True):
    """A message as a group has it. `acknowledged` is also a message that the group was moved past."""

    group: str
    state: str
    attempt: int  # deliveries so far, of a message that is not acknowledged
    consumer: str | None  # that holds it, or has acknowledged it
    until_ms: int | None  # the end of the lease, or of the delay
    acked_ms: int | None = None  # when it was acknowledged, if that is still on record
    by: str | None = None  # and by which principal


class TracedMessage(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    offset: int
    at_ms: int
    operation: str
    mode: str
    kept: KeptEntry
    groups: list[GroupState]


class MovedRows(msgspec.Struct, frozen=True):
    """The rows of a view that changed by the batch with a write. `alone`: no other change was in the batch, so that
    they have all changed by this one."""

    at_ms: int
    alone: bool
    records: list[ChangeRecord]  # TRACED_VIEW_ROWS at most
    more: bool


class TracedJob(msgspec.Struct, frozen=True):
    """A job that reads the table's changes; `applied`: also this one."""

    name: str
    kind: str
    state: str
    position: int
    applied: bool
    updated_ms: int
    moved: MovedRows | None = None  # of a view, if the batch that applied the change is still on record


class TracedRecord(msgspec.Struct, frozen=True):
    """The change record of a transaction in one table, and where its messages may be: topics and partitions."""

    definition: Definition
    entry: Entry
    key: Item | None
    records: list[ChangeRecord]  # a few more than are shown at most
    kept: KeptEntry
    jobs: list[TracedJob]
    partitions: list[tuple[int, int]]


class WriteTrace(msgspec.Struct, frozen=True):
    """What has become of a write."""

    table: str
    sequence: int
    records: list[ChangeRecord]
    kept: KeptEntry
    messages: list[TracedMessage]
    jobs: list[TracedJob]
    complete: bool  # there are no more records or messages than are shown


class TraceRecord(Query[TracedRecord], frozen=True):
    """Find the change record of a transaction, and the jobs that read it. A principal with grants sees the topics and
    views that it was granted."""

    subject = ("tables", "table")

    table: str
    sequence: int
    key: str | None = None  # as JSON
    access: Access | None = None

    def run(self, reader: Reader) -> TracedRecord:
        definition = find(reader, self.table)
        stream = find_stream(reader, self.table)
        log = log_of(reader, stream)
        key = None if self.key is None else key_from_json(definition, self.key)
        entry = self._entry(reader, log, position_after(reader, stream, log, self.sequence - 1))
        partitions = []
        for number in dict.fromkeys(route.topic for route in definition.routes):
            topic = reader.get(TOPICS, number)
            if topic is not None and self._shows(f"topics/{topic.name}"):
                for partition in range(topic.partitions):
                    log_of_partition = partition_log(reader, topic, partition)
                    if log_of_partition.next and log_of_partition.at_ms >= entry.at_ms:
                        partitions.append((number, partition))
        kept = kept_entry(reader, log, entry.position)
        records = _records(definition, entry, key)
        return TracedRecord(definition, entry, key, records, kept, list(self._jobs(reader, log)), partitions)

    def _entry(self, reader: Reader, log: Log, position: int) -> Entry:
        """The entry of the transaction."""
        entry = next(iter(entries_from(reader, log, position)), None)
        if entry is None or entry.next - 1 != self.sequence:
            raise NotFound(
                f"sequence {self.sequence} has changed nothing in table {self.table!r}; its change stream names the "
                "sequences that have",
                code="SEQUENCE_NOT_FOUND",
            )
        return entry

    def _jobs(self, reader: Reader, log: Log) -> Iterator[TracedJob]:
        for job in list(reader.scan(JOBS)):
            at = reader.get(JOB_POSITIONS, job.name, log.id)
            if at is not None and self._shows(f"tables/{job.name}" if job.kind == KIND else f"jobs/{job.name}"):
                applied = at.position > self.sequence
                moved = _moved(reader, job.name, log, self.sequence) if applied and job.kind == KIND else None
                yield TracedJob(job.name, job.kind, job.state, at.position, applied, job.updated_ms, moved)

    def _shows(self, subject: str) -> bool:
        return self.access is None or self.access.covers(subject)


class TraceMessages(Query[list[TracedMessage]], frozen=True):
    """The messages of a transaction in one partition, and their groups."""

    subject = ("tables", "table")

    table: str
    topic: int
    partition: int
    search: MessageSearch

    def run(self, reader: Reader) -> list[TracedMessage]:
        topic = reader.get(TOPICS, self.topic)
        return [] if topic is None else self.search.messages(reader, topic, self.partition)


def trace_write(
    execute: Callable[[Query[Any]], Any], table: str, sequence: int, key: str | None, access: Access | None
) -> WriteTrace:
    """Follow a transaction from its change record on; with a key, its change of one item."""
    found: TracedRecord = execute(TraceRecord(table, sequence, key, access))
    search = MessageSearch(found.definition, found.entry, found.key)
    messages: list[TracedMessage] = []
    shown = limits.TRACED_RECORDS
    for topic, partition in found.partitions:
        if len(messages) <= shown:
            messages += execute(TraceMessages(table, topic, partition, search))
    complete = search.complete and len(found.records) <= shown and len(messages) <= shown
    return WriteTrace(table, sequence, found.records[:shown], found.kept, messages[:shown], found.jobs, complete)


def _records(definition: Definition, entry: Entry, key: Item | None) -> list[ChangeRecord]:
    """The changes of the transaction in this table, or that of one item; a few more than are shown at most."""
    held = change.skimmed(entry.body)
    wanted = None if key is None else keys.key_of(definition, key)
    last, found = len(held.records) - 1, []
    for index, raw in enumerate(held.records):
        record = change.record(raw)
        if wanted is None or keys.key_of(definition, record.keys) == wanted:
            event = change.EVENTS[record.event]
            found.append(
                ChangeRecord(
                    entry.next - 1, index, index == last, event, record.keys, record.old, record.new, entry.at_ms,
                    held.by, record.size,
                )
            )  # fmt: skip
        if len(found) > limits.TRACED_RECORDS:
            break
    if wanted is not None and not found:
        raise NotFound(f"sequence {entry.next - 1} has not changed this item", code="SEQUENCE_NOT_FOUND")
    return found


def _moved(reader: Reader, view: str, log: Log, sequence: int) -> MovedRows | None:
    """The rows of a view that changed by the batch with this change of a source."""
    batch = batches.find(reader, view, log.id, sequence)
    row = reader.get(TABLES, view)
    stream = None if row is None else decoded(row).stream
    if batch is None or stream is None:
        return None
    began = max(batch.began, cold.earliest(reader, log))
    followed = [entry for entry, _ in zip(entries_from(reader, log, began), range(2), strict=False)]
    alone = len(followed) < 2 or followed[1].position >= batch.ended
    target = reader.get(LOGS, stream.log)
    found: list[ChangeRecord] = []
    if target is None or batch.first > batch.last or batch.last < cold.earliest(reader, target):
        return MovedRows(batch.at_ms, alone, found, False)
    definition = find(reader, view)
    for entry in entries_from(reader, target, max(batch.first, cold.earliest(reader, target))):
        if entry.next - 1 > batch.last or len(found) > limits.TRACED_VIEW_ROWS:
            break
        found += _records(definition, entry, None)
    return MovedRows(batch.at_ms, alone, found[: limits.TRACED_VIEW_ROWS], len(found) > limits.TRACED_VIEW_ROWS)


def kept_entry(reader: Reader, log: Log, position: int) -> KeptEntry:
    tier = cold.tier_of(reader, log.id)
    inside = tier is not None and tier.start <= position < tier.tiered
    return KeptEntry(log.id, position, position >= log.start, tier if inside else None)


class MessageSearch:
    """Searches the messages of one transaction, with a budget for all partitions."""

    def __init__(self, definition: Definition, entry: Entry, key: Item | None) -> None:
        self.complete = True
        self._table = definition.name
        self._sequence, self._at_ms = entry.next - 1, entry.at_ms
        self._key = None if key is None else {name: _same_json(value.to_json(key[name])) for name in definition.keys}
        self._left = limits.TRACED_MESSAGES

    def messages(self, reader: Reader, topic: Topic, partition: int) -> list[TracedMessage]:
        """Those in a partition."""
        log = partition_log(reader, topic, partition)
        mine = list(self._search(reader, log))
        groups = list(reader.scan(GROUPS, log.id)) if mine else []
        start, now_ms, found = cold.earliest(reader, log), reader.now_ms, []
        acks = {row.name: list(acknowledgements(reader, log.id, row.name)) for row in groups}
        for at, at_ms, envelope in mine:
            states = []
            for row in groups:
                progress = GroupProgress(row.cursor, rules.unpacked(row.ranges))
                state = _state(row.name, rules.overtaken(progress, start, now_ms)[0], at, now_ms)
                states.append(_consumed(state, acks[row.name], at))
            kept = kept_entry(reader, log, at)
            operation, mode = OPERATIONS[envelope.operation], MODES[envelope.mode]
            found.append(TracedMessage(topic.name, partition, at, at_ms, operation, mode, kept, states))
        return found

    def _search(self, reader: Reader, log: Log) -> Iterator[tuple[int, int, Envelope]]:
        """Messages of a transaction follow one another, among those of others with the same time."""
        start = resolved(reader, log, StartPoint(TIMESTAMP, self._at_ms))
        at = max(start, cold.earliest(reader, log))
        while at < log.next:
            page = read(reader, log, at, _MESSAGES_AT_ONCE, limits.CONSUME_BYTES)
            for segment in page:
                for position, at_ms, body in segments.views(segment):
                    if self._left <= 0:
                        self.complete = False
                        return
                    self._left -= 1
                    envelope = opened(body)
                    if at_ms > self._at_ms + _SOON_MS or (not envelope.origin and envelope.sequence > self._sequence):
                        return
                    if self._is_mine(envelope):
                        yield position, at_ms, envelope
            at = page[-1].next

    def _is_mine(self, envelope: Envelope) -> bool:
        if envelope.sequence != self._sequence or envelope.source != self._table or envelope.origin is not None:
            return False
        if self._key is None:
            return True
        row: Any = msgspec.json.decode(envelope.payload)
        if MODES[envelope.mode] == "Diff":
            row = row["key"]
        return all(_same_json(row.get(name)) == wanted for name, wanted in self._key.items())


def _same_json(found: Any) -> bytes:
    """The JSON of a value, read and written once, so that equal values are equal bytes."""
    return msgspec.json.encode(msgspec.json.decode(msgspec.json.encode(found)))


def _consumed(state: GroupState, acks: list[AckRange], offset: int) -> GroupState:
    """The state, with who has acknowledged the message last: also before a reset of the group."""
    found = next((each for each in acks if each.first <= offset < each.end), None)
    if found is None:
        return state
    consumer = found.consumer if state.consumer is None else state.consumer
    return msgspec.structs.replace(state, acked_ms=found.at_ms, by=found.by, consumer=consumer)


def _state(group: str, progress: GroupProgress, offset: int, now_ms: int) -> GroupState:
    """A message as a group has it."""
    if offset >= progress.cursor:
        return GroupState(group, WAITING, 0, None, None)
    for held in progress.ranges:
        if held.first <= offset < held.end:
            if held.lease and not held.free(now_ms):
                return GroupState(group, IN_FLIGHT, held.attempt, held.consumer, held.until_ms)
            return GroupState(group, WAITING, held.attempt, None, None if held.free(now_ms) else held.until_ms)
    return GroupState(group, ACKNOWLEDGED, 0, None, None)
