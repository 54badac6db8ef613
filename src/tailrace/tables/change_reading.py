"""Reading a change stream after a sequence, in whole transactions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain

import msgspec

from tailrace import limits
from tailrace.command import Query
from tailrace.errors import Invalid, Trimmed
from tailrace.log import cold, segments
from tailrace.log import log as logs
from tailrace.log.entry import Entry, Log
from tailrace.log.position import offset
from tailrace.storage.engine import Reader, Tx
from tailrace.tables import change, retention
from tailrace.tables.change import ChangeRecord
from tailrace.tables.change_stream import ChangeStream, find_stream, last_sequence, log_of, whole
from tailrace.tables.definition import TABLES, decoded


def position_after(reader: Reader | Tx, stream: ChangeStream, log: Log, after: int | None) -> int:
    """The position after the sequence `after`; None: the beginning.

    `after` may be any sequence that the database has assigned, also another table's. Zero is before all of them: it
    means the beginning as long as nothing was trimmed."""
    first = cold.earliest(reader, log)
    if after is None:
        return first
    check_sequence(after)
    if after == 0 and first == stream.first:
        return first
    return _checked(reader, log, after + 1, "sequence")


def check_sequence(sequence: object) -> None:
    if type(sequence) is not int:
        raise Invalid(f"{sequence!r} is not a sequence; use one that the database returned, an int")


def _checked(reader: Reader | Tx, log: Log, position: int, noun: str = "position") -> int:
    if position < log.start:
        first = cold.earliest(reader, log)
        if position < first:
            raise Trimmed(requested=position, earliest=first, offset=offset(first), noun=noun)
    if position > log.next and position > last_sequence(reader) + 1:
        raise Invalid(
            f"sequence {position - 1} was never assigned; read after one that the database returned",
            code="INVALID_OFFSET",
        )
    return position


class ChangePage(msgspec.Struct, frozen=True):
    """Consecutive changes, in whole transactions."""

    stream: ChangeStream
    records: list[ChangeRecord]
    after: int  # the sequence after which to continue
    latest: int  # the last sequence in the stream; below `oldest` if it holds nothing
    oldest: int  # the first sequence that may still be read
    more: bool  # there was more than fits the page

    @property
    def ended(self) -> bool:
        """Whether the reader has reached the end of a closed stream."""
        return self.stream.closed_ms is not None and not self.more


class ReadChanges(Query[ChangePage], frozen=True):
    """The changes after a sequence (None: from the oldest record on).

    `limit` and `bytes_max` are rounded up to whole transactions: at least one is returned if there is any."""

    subject = ("tables", "table")
    table: str
    after: int | None = None
    limit: int = limits.CHANGE_PAGE_RECORDS
    bytes_max: int = limits.CHANGE_PAGE_BYTES
    label: str | None = None

    def run(self, reader: Reader) -> ChangePage:
        if not whole(self.limit, 1, sys.maxsize):
            raise Invalid(f"limit {self.limit!r} is not a number from 1 on")
        stream = find_stream(reader, self.table, self.label)
        log = log_of(reader, stream)
        position = at = position_after(reader, stream, log, self.after)
        records: list[ChangeRecord] = []
        left = self.bytes_max
        for entry in entries_from(reader, log, position):
            records += change.decode(entry)
            at = entry.next
            left -= len(entry.body)
            if left <= 0 or len(records) >= self.limit:
                break
        return ChangePage(stream, records, at - 1, log.next - 1, cold.earliest(reader, log), at < log.next)


def entries_from(reader: Reader | Tx, log: Log, position: int) -> Iterator[Entry]:
    """The entry that covers `position` and those that follow, lazily. They may end before entries that must be fetched
    from cold storage first.

    A position from this stream is the start of an entry; for any other, the covering entry is searched."""
    if position < log.start:
        return _cold_and_hot(reader, log, position)
    if position >= log.next:
        return iter(())
    rows = segments.scan(reader, log.id, start=position, before=log.next)
    first = next(rows, None)
    if first is None or first.position != position:
        position = retention.aligned(reader, log, position)
        return logs.following(log, position, segments.scan(reader, log.id, start=position, before=log.next))
    return logs.following(log, position, chain((first,), rows))


def _cold_and_hot(reader: Reader | Tx, log: Log, position: int) -> Iterator[Entry]:
    for entry in cold.within_reach(reader, log, position, log.start):
        yield entry
        position = entry.next
    if position >= log.start:
        yield from entries_from(reader, log, position)


class ChangeEntries(msgspec.Struct, frozen=True):
    """Some entries, undecoded, and the state of the stream when they were read."""

    stream: ChangeStream
    log: Log
    position: int  # where the first of them begins
    entries: list[Entry]
    next: int
    declared: tuple[tuple[str, str], ...] | None = None  # the columns of the table, if no entries were asked for


class ReadEntries(Query[ChangeEntries], frozen=True):
    """The entry that covers `position` (None: the oldest) and those that follow: at least one if there is any, unless
    `entries_max` is 0: then only the state of the stream, with the declared columns of its table."""

    subject = ("tables", "table")
    table: str
    label: str | None = None
    position: int | None = None
    bytes_max: int = limits.CHANGE_PAGE_BYTES
    entries_max: int = sys.maxsize
    epoch: str | None = None  # the expected epoch of the stream; another one is an error

    def run(self, reader: Reader) -> ChangeEntries:
        stream = find_stream(reader, self.table, self.label)
        if self.epoch is not None and self.epoch != stream.epoch:
            raise Invalid(f"this position was returned for another stream than {stream.name!r}, or by another database")
        log = log_of(reader, stream)
        if self.entries_max == 0:
            return ChangeEntries(stream, log, log.next, [], log.next, _declared(reader, stream))
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
            return ChangeEntries(stream, log, log.next, [], log.next)
        return ChangeEntries(stream, log, entries[0].position, entries, entries[-1].next)


def _declared(reader: Reader, stream: ChangeStream) -> tuple[tuple[str, str], ...] | None:
    """The declared columns of a stream's table, for expressions; None if there are none, or it is another table by
    now."""
    row = reader.get(TABLES, stream.name)
    return decoded(row).expression_kinds if row is not None and row.space == stream.space else None
