"""Change streams: enabled and disabled on a live table, read by anybody who knows a sequence, trimmed by retention.

Each time a stream is enabled it is a new one, with its own label, log and epoch. Disabling closes it and keeps it
readable beside the one that may come later; so does deleting the table. A closed stream goes when its retention has
passed; one without a maximal age stays until it is pruned.

A reader names a sequence and gets what comes after it, in whole transactions. Enabling takes a sequence of its own and
the stream begins after it, so that somebody who comes with an earlier one, of a stream before, is told so: what was
written in between is in no stream, and nobody skips it unawares.
"""

from __future__ import annotations

import logging
import secrets
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain
from typing import Final

import msgspec

from tailrace import limits
from tailrace.access import Permission
from tailrace.command import Command, Query
from tailrace.errors import Invalid, NotFound, TableNotFound, Trimmed
from tailrace.log import cold
from tailrace.log import log as logs
from tailrace.log.entry import ENTRIES, LOGS, Entry, Log
from tailrace.log.position import offset
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.table import META, Table
from tailrace.tables import change, retention
from tailrace.tables.change import Record
from tailrace.tables.definition import COUNTS, TABLES, Definition, StreamRef, counted, decoded, find, save
from tailrace.tables.retention import CHANGE_CURSORS, MAX_AGE_S, MAX_COUNT, Plan

logger = logging.getLogger("tailrace.tables")

OWNER: Final = "table/"  # what a log's owner begins with when it is a change stream's
PAGE_RECORDS: Final = 1_000
PAGE_BYTES: Final = 1 * limits.MiB


class ChangeStream(msgspec.Struct, frozen=True):
    """A table's change stream, of now or of once."""

    name: str  # the table's
    label: str  # when it was enabled; new each time
    log: int
    space: int  # the table's number: a later table of that name has another
    view: str
    epoch: str  # random, so that what was handed out for another database is recognised
    created_ms: int
    closed_ms: int | None
    max_age_s: int | None
    max_count: int | None
    schema: bytes

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        """Name and type of the table's key attributes, the partition key first."""
        return _schema(self.schema).keys

    @property
    def first(self) -> int:
        """Where the log began: after the sequence of its enabling."""
        return _schema(self.schema).first

    @property
    def complete(self) -> bool:
        """Whether the table had no items when the stream began."""
        return _schema(self.schema).complete


class Schema(msgspec.Struct, frozen=True):
    """What stays known of a table when it is deleted."""

    keys: tuple[tuple[str, str], ...]
    first: int
    complete: bool = False  # the table had no items when the stream began, so the stream tells of all there are


CHANGE_STREAMS = Table("change_streams", ChangeStream, key=("name", "label"), cached=True)

_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(Schema)


@lru_cache(maxsize=1024)
def _schema(body: bytes) -> Schema:
    return _decoder.decode(body)


# -- for those who change tables


def enable(
    tx: Tx,
    definition: Definition,
    view: str,
    *,
    max_age_s: int | None = MAX_AGE_S,
    max_count: int | None = MAX_COUNT,
) -> Definition:
    """Let the table's changes be recorded from now on; the table afterwards, saved."""
    if definition.stream is not None:
        raise Invalid(f"Table already has an enabled stream: TableName: {definition.name}")
    if view not in change.VIEWS:
        raise Invalid(f"stream view {view!r} is unknown; use one of {', '.join(change.VIEWS)}")
    check_retention(max_age_s, max_count)
    first = tx.next_id(change.SEQUENCE) + 1
    label = _new_label(tx, definition.name)
    log = logs.create(tx, f"{OWNER}{definition.name}/{label}")
    tx.put(LOGS, msgspec.structs.replace(log, start=first, next=first))
    empty = not counted(tx, definition.space).items
    schema = Schema(tuple((name, definition.kinds[name]) for name in definition.keys), first, complete=empty)
    tx.put(
        CHANGE_STREAMS,
        ChangeStream(
            definition.name, label, log.id, definition.space, view, secrets.token_hex(8), tx.now_ms, None, max_age_s,
            max_count, _encode(schema),
        ),
    )  # fmt: skip
    definition = msgspec.structs.replace(definition, stream=StreamRef(label, log.id, view))
    save(tx, definition)
    return definition


def disable(tx: Tx, definition: Definition) -> Definition:
    """Record no more; what is there stays readable. The table afterwards, saved."""
    if definition.stream is None:
        raise Invalid(f"Table has no stream to disable: TableName: {definition.name}")
    dropped(tx, definition)
    definition = msgspec.structs.replace(definition, stream=None)
    save(tx, definition)
    return definition


def dropped(tx: Tx, definition: Definition) -> None:
    """The table is being deleted: its stream, if it has one, takes no more and is kept until its retention passes."""
    if definition.stream is None:
        return
    stream = tx.get(CHANGE_STREAMS, definition.name, definition.stream.label)
    assert stream is not None, f"table {definition.name!r} has lost its change stream"
    tx.put(CHANGE_STREAMS, msgspec.structs.replace(stream, closed_ms=tx.now_ms))
    tx.notify(stream.log, logs.CLOSED)


def check_retention(max_age_s: int | None, max_count: int | None) -> None:
    """Bounds may be absent, not senseless."""
    if max_age_s is not None and not whole(max_age_s, 1, limits.TTL_S_MAX):
        raise Invalid(f"max_age_s {max_age_s!r} is not from 1 to {limits.TTL_S_MAX}; give none to keep them any time")
    if max_count is not None and not whole(max_count, 1, limits.POSITION_MAX):
        raise Invalid(f"max_count {max_count!r} is not from 1 to {limits.POSITION_MAX}; give none to keep any number")


def whole(number: object, least: int, most: int) -> bool:
    """Whether it is an int in these bounds. Python programs can pass anything, and a column takes no fractions."""
    return type(number) is int and least <= number <= most


def _check_sequence(sequence: object) -> None:
    if type(sequence) is not int:
        raise Invalid(f"{sequence!r} is not a sequence; use one that the database returned, an int")


def _new_label(tx: Tx, name: str) -> str:
    """The time, moved on where the table had a stream at that very millisecond or the clock went back."""
    label = _iso(tx.now_ms)
    for last in tx.scan(CHANGE_STREAMS, name, reverse=True, limit=1):
        if last.label >= label:
            moment = datetime.fromisoformat(last.label).replace(tzinfo=UTC)
            label = _iso(round(moment.timestamp() * 1000) + 1)
    return label


def _iso(at_ms: int) -> str:
    seconds, ms = divmod(at_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03d}"


# -- finding


def find_stream(reader: Reader | Tx, name: str, label: str | None = None) -> ChangeStream:
    """The stream of this label; without one the table's present stream, or its last. A deleted table's is found too."""
    if label is not None:
        stream = reader.get(CHANGE_STREAMS, name, label)
        if stream is None:
            raise NotFound(f"table {name!r} has no change stream {label!r}; list its streams", code="STREAM_NOT_FOUND")
        return stream
    row = reader.get(TABLES, name)
    space = None
    if row is not None:
        definition = decoded(row)
        space = definition.space
        if definition.stream is not None:
            stream = reader.get(CHANGE_STREAMS, name, definition.stream.label)
            assert stream is not None, f"table {name!r} has lost its change stream"
            return stream
    for stream in reader.scan(CHANGE_STREAMS, name, reverse=True, limit=1):
        if space is None or stream.space == space:
            return stream
    if row is None:
        raise TableNotFound(name)
    raise NotFound(f"table {name!r} has no change stream; enable one first", code="STREAM_NOT_FOUND")


def log_of(reader: Reader | Tx, stream: ChangeStream) -> Log:
    log = reader.get(LOGS, stream.log)
    assert log is not None, f"change stream {stream.name}/{stream.label} has lost its log {stream.log}"
    return log


def position_after(reader: Reader | Tx, stream: ChangeStream, log: Log, after: int | None) -> int:
    """Where somebody goes on who has seen all up to the sequence `after`; None: has seen nothing.

    `after` may be any sequence that the database has given out, also another table's. Zero is before all of them: it
    means the beginning as long as nothing of it was trimmed."""
    first = cold.earliest(reader, log)
    if after is None:
        return first
    _check_sequence(after)
    if after == 0 and first == stream.first:
        return first
    return _checked(reader, log, after + 1, "sequence")


def _checked(reader: Reader | Tx, log: Log, position: int, noun: str = "position") -> int:
    if position < log.start:
        first = cold.earliest(reader, log)
        if position < first:
            raise Trimmed(requested=position, earliest=first, offset=offset(first), noun=noun)
    if position > log.next and position > given_out(reader) + 1:
        raise Invalid(
            f"sequence {position - 1} was never given out; read after one that the database returned",
            code="INVALID_OFFSET",
        )
    return position


def given_out(reader: Reader | Tx) -> int:
    """The last sequence of the database."""
    counter = reader.get(META, f"counter/{change.SEQUENCE}")
    return int(counter.value) if counter else 0


# -- reading


class Changes(msgspec.Struct, frozen=True):
    """A run of whole transactions."""

    stream: ChangeStream
    records: list[Record]
    after: int  # the sequence to read on after
    latest: int  # the last sequence in the stream; below `oldest` if it holds nothing
    oldest: int  # the first sequence that may still be read
    more: bool  # there was more to read than fitted

    @property
    def ended(self) -> bool:
        """The reader has now seen all there will ever be."""
        return self.stream.closed_ms is not None and not self.more


class ReadChanges(Query[Changes], frozen=True):
    """What happened after a sequence (None: from the oldest record on).

    `limit` and `bytes_max` are rounded up to whole transactions: at least one is returned if there is any."""

    subject = ("tables", "table")
    table: str
    after: int | None = None
    limit: int = PAGE_RECORDS
    bytes_max: int = PAGE_BYTES
    label: str | None = None

    def run(self, reader: Reader) -> Changes:
        if not whole(self.limit, 1, sys.maxsize):
            raise Invalid(f"limit {self.limit!r} is not a number from 1 on")
        stream = find_stream(reader, self.table, self.label)
        log = log_of(reader, stream)
        position = at = position_after(reader, stream, log, self.after)
        records: list[Record] = []
        left = self.bytes_max
        for entry in entries_from(reader, log, position):
            records += change.decode(entry)
            at = entry.next
            left -= len(entry.body)
            if left <= 0 or len(records) >= self.limit:
                break
        return Changes(stream, records, at - 1, log.next - 1, cold.earliest(reader, log), at < log.next)


def entries_from(reader: Reader, log: Log, position: int) -> Iterator[Entry]:
    """The entry that covers `position` and those that follow, lazily. They may end where what comes next has to be
    fetched from cold storage.

    A position from this stream is where an entry begins; for any other, the one that covers it is looked for."""
    if position < log.start:
        return _cold_and_hot(reader, log, position)
    if position >= log.next:
        return iter(())
    rows = reader.scan(ENTRIES, log.id, start=position)
    first = next(rows, None)
    if first is None or first.position != position:
        position = retention.aligned(reader, log, position)
        return logs.following(log, position, reader.scan(ENTRIES, log.id, start=position))
    return logs.following(log, position, chain((first,), rows))


def _cold_and_hot(reader: Reader, log: Log, position: int) -> Iterator[Entry]:
    for entry in cold.within_reach(reader, log, position, log.start):
        yield entry
        position = entry.next
    if position >= log.start:
        yield from entries_from(reader, log, position)


class Run(msgspec.Struct, frozen=True):
    """Some entries, undecoded, and the stream as it was when they were read."""

    stream: ChangeStream
    log: Log
    position: int  # where the first of them begins
    entries: list[Entry]
    next: int


class ReadEntries(Query[Run], frozen=True):
    """Entries that cover `position` (None: the oldest) and what follows: at least one if there is any."""

    subject = ("tables", "table")
    table: str
    label: str | None = None
    position: int | None = None
    bytes_max: int = PAGE_BYTES
    entries_max: int = sys.maxsize
    epoch: str | None = None  # of the stream that is meant; another one is refused

    def run(self, reader: Reader) -> Run:
        stream = find_stream(reader, self.table, self.label)
        if self.epoch is not None and self.epoch != stream.epoch:
            raise Invalid(f"this position was handed out for another stream than {stream.name!r}, of another database")
        log = log_of(reader, stream)
        position = cold.earliest(reader, log) if self.position is None else _checked(reader, log, self.position)
        entries: list[Entry] = []
        left = self.bytes_max
        for entry in entries_from(reader, log, position):
            left -= len(entry.body)
            if entries and left < 0:
                break
            entries.append(entry)
            if left <= 0 or len(entries) >= self.entries_max:
                break
        if not entries:
            return Run(stream, log, log.next, [], log.next)
        return Run(stream, log, entries[0].position, entries, entries[-1].next)


# -- describing


class Info(msgspec.Struct, frozen=True):
    """A change stream and what is in it."""

    stream: ChangeStream
    log: Log
    earliest: int  # the first position that can be read, hot or cold
    oldest: int | None  # the sequence of the oldest record; None if there is none
    latest: int | None  # of the newest
    latest_index: int  # of the newest record within its transaction
    count: int  # how many records there are
    bytes: int  # about how large they are: from the mean size of a record

    @property
    def enabled(self) -> bool:
        return self.stream.closed_ms is None

    @property
    def view(self) -> str:
        return self.stream.view


class State(msgspec.Struct, frozen=True):
    """A change stream and where it begins and ends."""

    stream: ChangeStream
    log: Log
    earliest: int  # the first position that can be read, hot or cold

    @property
    def enabled(self) -> bool:
        return self.stream.closed_ms is None


class StreamState(Query[State], frozen=True):
    """As `StreamInfo`, without looking at a record: some are far away."""

    subject = ("tables", "table")
    table: str
    label: str | None = None

    def run(self, reader: Reader) -> State:
        stream = find_stream(reader, self.table, self.label)
        log = log_of(reader, stream)
        return State(stream, log, cold.earliest(reader, log))


class StreamInfo(Query[Info], frozen=True):
    """What is in a table's stream: the present one, or the one of `label`."""

    subject = ("tables", "table")
    table: str
    label: str | None = None

    def run(self, reader: Reader) -> Info:
        return info_of(reader, find_stream(reader, self.table, self.label))


class AllStreams(Query[list[Info]], frozen=True):
    """All that there are of a table's name, the oldest first; also those of a deleted table before it."""

    subject = ("tables", "table")
    table: str

    def run(self, reader: Reader) -> list[Info]:
        found = [info_of(reader, stream) for stream in list(reader.scan(CHANGE_STREAMS, self.table))]
        if not found:
            find(reader, self.table)
        return found


def info_of(reader: Reader, stream: ChangeStream) -> Info:
    """What is in a stream."""
    log = log_of(reader, stream)
    earliest = cold.earliest(reader, log)
    if earliest < log.start:
        oldest = next(cold.entries(reader, log, earliest))
        rows = [(oldest.next, oldest.body[: change.HEAD_BYTES])]
    else:
        rows = reader.values(ENTRIES, "next, substr(body, 1, 8)", log.id, start=log.start, limit=1)
    if not rows:
        return Info(stream, log, earliest, None, None, 0, 0, 0)
    first, head = rows[0]
    total = counted(reader, -log.id)
    index = total.items - change.before(_newest(reader, log).body) - 1
    count = total.items - change.before(head)
    return Info(stream, log, earliest, first - 1, log.next - 1, index, count, count * total.bytes // total.items)


def _newest(reader: Reader, log: Log) -> Entry:
    """The last entry of a log that has one."""
    for entry in reader.scan(ENTRIES, log.id, start=log.start, reverse=True, limit=1):
        return entry
    return next(cold.entries(reader, log, log.next - 1))


class ListChangeStreams(Query[list[ChangeStream]], frozen=True):
    """Change streams in order of table and label, `after` one of them, which need not be there any more."""

    subject = ("tables", "table")
    table: str | None = None
    after: tuple[str, str] | None = None
    limit: int = 100

    def run(self, reader: Reader) -> list[ChangeStream]:
        return _listed(reader, self.table, self.after, self.limit)


class RecentStreams(Query[list[ChangeStream]], frozen=True):
    """Change streams, the newest first, `after` one of them (its label and its table's name)."""

    subject = ("tables", "table")
    table: str | None = None
    after: tuple[str, str] | None = None
    limit: int = 100

    def run(self, reader: Reader) -> list[ChangeStream]:
        prefix = () if self.table is None else (self.table,)
        # There are about as many streams as tables: so few that no second order of them is kept.
        known = sorted(reader.values(CHANGE_STREAMS, "label, name", *prefix), reverse=True)
        if self.table is not None and not known:
            find(reader, self.table)
        rest = known if self.after is None else [each for each in known if each < self.after]
        found = (reader.get(CHANGE_STREAMS, name, label) for label, name in rest[: self.limit])
        return [stream for stream in found if stream is not None]


def _listed(reader: Reader, table: str | None, after: tuple[str, str] | None, limit: int) -> list[ChangeStream]:
    if table is not None:
        if after is not None and after[0] != table:
            return [] if after[0] > table else list(reader.scan(CHANGE_STREAMS, table, limit=limit))
        return list(reader.scan(CHANGE_STREAMS, table, after=after[1] if after else None, limit=limit))
    if after is None:
        return list(reader.scan(CHANGE_STREAMS, limit=limit))
    rows = list(reader.scan(CHANGE_STREAMS, after[0], after=after[1], limit=limit))
    if len(rows) < limit:
        rows += reader.scan(CHANGE_STREAMS, after=after[0], limit=limit - len(rows))
    return rows


# -- commands of those who own the table


class EnableStream(Command[ChangeStream], frozen=True):
    """Record a table's changes from now on; bounds of None keep records until they are pruned."""

    permission = Permission.ADMIN
    subject = ("tables", "table")

    table: str
    view: str = change.BOTH
    max_age_s: int | None = MAX_AGE_S
    max_count: int | None = MAX_COUNT

    def run(self, tx: Tx) -> ChangeStream:
        definition = find(tx, self.table)
        enable(tx, definition, self.view, max_age_s=self.max_age_s, max_count=self.max_count)
        return find_stream(tx, self.table)


class DisableStream(Command[ChangeStream], frozen=True):
    """Record no more of a table's changes. What is there stays readable."""

    freeing = True
    permission = Permission.ADMIN
    subject = ("tables", "table")

    table: str

    def run(self, tx: Tx) -> ChangeStream:
        stream = find_stream(tx, self.table)
        disable(tx, find(tx, self.table))
        return find_stream(tx, self.table, stream.label)


class AlterRetention(Command[ChangeStream], frozen=True):
    """Keep records for so long and so many of them from now on; None: no bound. What is not set stays as it is."""

    freeing = True
    permission = Permission.ADMIN
    subject = ("tables", "table")

    table: str
    max_age_s: int | msgspec.UnsetType | None = msgspec.UNSET
    max_count: int | msgspec.UnsetType | None = msgspec.UNSET
    label: str | None = None

    def run(self, tx: Tx) -> ChangeStream:
        stream = find_stream(tx, self.table, self.label)
        max_age_s = stream.max_age_s if self.max_age_s is msgspec.UNSET else self.max_age_s
        max_count = stream.max_count if self.max_count is msgspec.UNSET else self.max_count
        check_retention(max_age_s, max_count)
        stream = msgspec.structs.replace(stream, max_age_s=max_age_s, max_count=max_count)
        tx.put(CHANGE_STREAMS, stream)
        return stream


class Pruned(msgspec.Struct, frozen=True):
    """What a prune did."""

    records: int  # how many were removed
    gone: bool  # the stream was closed and nothing is left: it is no more


class PruneStream(Command[Pruned], frozen=True):
    """Remove records up to and including the sequence `through` (None: all there are), cursors or not."""

    freeing = True
    history = True
    permission = Permission.ADMIN
    subject = ("tables", "table")

    table: str
    through: int | None = None
    label: str | None = None

    def run(self, tx: Tx) -> Pruned:
        stream = find_stream(tx, self.table, self.label)
        if self.through is not None:
            _check_sequence(self.through)
        if self.through is not None and self.through > given_out(tx):
            raise Invalid(f"sequence {self.through} was never given out; prune through one that the database returned")
        log = log_of(tx, stream)
        number = retention.number_at(tx, log, cold.earliest(tx, log))
        start = log.next if self.through is None else self._start(tx, log, self.through + 1)
        if start > cold.earliest(tx, log):
            plan = retention.past_cursors(tx, log, start, held=False)
            logs.forget(tx, log, start)
            _cut_off(tx, stream, plan)
        removed = retention.number_at(tx, log, start) - number
        if stream.closed_ms is None or start < log.next:
            return Pruned(removed, gone=False)
        _remove(tx, stream)
        return Pruned(removed, gone=True)

    def _start(self, tx: Tx, log: Log, position: int) -> int:
        """Where the entry begins that covers `position`, hot or cold."""
        first = cold.earliest(tx, log)
        if first < position < log.start:
            return next(cold.entries(tx, log, position)).position
        return first if position <= first else retention.aligned(tx, log, position)


def _trim(tx: Tx, stream: ChangeStream, log: Log, plan: Plan) -> None:
    logs.trim(tx, log, plan.start)
    _cut_off(tx, stream, plan)


def _cut_off(tx: Tx, stream: ChangeStream, plan: Plan) -> None:
    for cursor in plan.cut:
        logger.warning(
            "cursor %r of the change stream %s/%s is cut off: it has lost %d records; the stream starts at %d now",
            cursor.name, stream.name, stream.label, cursor.lost, plan.start,
        )  # fmt: skip
        tx.put(CHANGE_CURSORS, cursor)


def _remove(tx: Tx, stream: ChangeStream) -> None:
    """The end of a closed stream."""
    for cursor in list(tx.scan(CHANGE_CURSORS, stream.log)):
        tx.delete(CHANGE_CURSORS, cursor.log, cursor.name)
    tx.delete(COUNTS, -stream.log)
    tx.delete(CHANGE_STREAMS, stream.name, stream.label)
    logs.drop(tx, log_of(tx, stream))


# -- retention


def _plan(reader: Reader | Tx, stream: ChangeStream) -> tuple[Log, Plan, bool] | None:
    """What is due for a stream: its log, how to trim it, and whether nothing is left to keep then."""
    log = log_of(reader, stream)
    plan = Plan(log.start, [])
    if stream.max_age_s is not None or stream.max_count is not None:
        plan = retention.plan(reader, log, stream.max_age_s, stream.max_count)
    over = (
        stream.closed_ms is not None
        and stream.max_age_s is not None
        and plan.start >= log.next
        and stream.closed_ms + stream.max_age_s * 1000 < reader.settled_ms
        and cold.earliest(reader, log) >= log.start  # what is in cold storage stays readable
    )
    return (log, plan, over) if over or plan.start > log.start else None


class DueStreams(msgspec.Struct, frozen=True):
    """The streams among some that have something to trim."""

    due: list[tuple[str, str]]  # name and label
    looked_at: tuple[str, str] | None  # go on after it; None at the end of all streams


def find_due(reader: Reader, after: tuple[str, str] | None, limit: int) -> DueStreams:
    """Look at up to `limit` streams `after` one; nothing is changed."""
    rows = _listed(reader, None, after, limit)
    due = [(row.name, row.label) for row in rows if _plan(reader, row) is not None]
    return DueStreams(due, (rows[-1].name, rows[-1].label) if len(rows) == limit else None)


class TrimChanges(Command[int], frozen=True):
    """Let a stream start where its retention says, or end it where that has passed; how many records went."""

    freeing = True
    permission = Permission.ADMIN

    name: str
    label: str

    def run(self, tx: Tx) -> int:
        stream = tx.get(CHANGE_STREAMS, self.name, self.label)
        found = None if stream is None else _plan(tx, stream)
        if stream is None or found is None:
            return 0
        log, plan, over = found
        removed = retention.number_at(tx, log, plan.start) - retention.number_at(tx, log, log.start)
        _trim(tx, stream, log, plan)
        if over:
            _remove(tx, stream)
        return removed
