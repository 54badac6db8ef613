"""Describing and listing change streams."""

from __future__ import annotations

from itertools import islice

import msgspec

from tailrace.command import Query
from tailrace.log import cold, segments
from tailrace.log.entry import Entry, Log
from tailrace.storage.engine import Reader
from tailrace.tables import change
from tailrace.tables.change_stream import CHANGE_STREAMS, ChangeStream, find_stream, log_of
from tailrace.tables.definition import counted, find


class ChangeStreamDescription(msgspec.Struct, frozen=True):
    """A change stream and its contents."""

    stream: ChangeStream
    log: Log
    earliest: int  # the first position that can be read, hot or cold
    oldest: int | None  # the sequence of the oldest record; None if there is none
    latest: int | None  # of the newest
    latest_index: int  # of the newest record within its transaction
    count: int  # the number of records
    bytes: int  # their approximate size, from the mean size of a record

    @property
    def enabled(self) -> bool:
        return self.stream.closed_ms is None

    @property
    def view(self) -> str:
        return self.stream.view


class ChangeStreamBounds(msgspec.Struct, frozen=True):
    """A change stream and where it begins and ends."""

    stream: ChangeStream
    log: Log
    earliest: int  # the first position that can be read, hot or cold

    @property
    def enabled(self) -> bool:
        return self.stream.closed_ms is None


class FindStreamBounds(Query[ChangeStreamBounds], frozen=True):
    """As `DescribeChangeStream`, without reading a record: some may be in cold storage."""

    subject = ("tables", "table")
    table: str
    label: str | None = None

    def run(self, reader: Reader) -> ChangeStreamBounds:
        stream = find_stream(reader, self.table, self.label)
        log = log_of(reader, stream)
        return ChangeStreamBounds(stream, log, cold.earliest(reader, log))


class DescribeChangeStream(Query[ChangeStreamDescription], frozen=True):
    """Describe a table's current stream, or the one with `label`."""

    subject = ("tables", "table")
    table: str
    label: str | None = None

    def run(self, reader: Reader) -> ChangeStreamDescription:
        return info_of(reader, find_stream(reader, self.table, self.label))


class ListTableStreams(Query[list[ChangeStreamDescription]], frozen=True):
    """All streams of a table's name, the oldest first, including those of earlier tables of that name."""

    subject = ("tables", "table")
    table: str

    def run(self, reader: Reader) -> list[ChangeStreamDescription]:
        found = [info_of(reader, stream) for stream in list(reader.scan(CHANGE_STREAMS, self.table))]
        if not found:
            find(reader, self.table)
        return found


def info_of(reader: Reader, stream: ChangeStream) -> ChangeStreamDescription:
    """The description of a stream."""
    log = log_of(reader, stream)
    earliest = cold.earliest(reader, log)
    if earliest < log.start:
        oldest = next(cold.entries(reader, log, earliest))
        first, head = oldest.next, oldest.body[: change.HEAD_BYTES]
    else:
        found = segments.head(reader, log.id, log.start, change.HEAD_BYTES)
        if found is None:
            return ChangeStreamDescription(stream, log, earliest, None, None, 0, 0, 0)
        _, first, _, head = found
    total = counted(reader, -log.id)
    index = total.items - change.before(_newest(reader, log).body) - 1
    count = total.items - change.before(head)
    return ChangeStreamDescription(
        stream, log, earliest, first - 1, log.next - 1, index, count, count * total.bytes // total.items
    )


def _newest(reader: Reader, log: Log) -> Entry:
    """The last entry of a log that has one."""
    for entry in segments.scan(reader, log.id, start=log.start, reverse=True, limit=1):
        return entry
    return next(cold.entries(reader, log, log.next - 1))


class ListRecentStreams(Query[list[ChangeStream]], frozen=True):
    """Change streams, the newest first, `after` one of them (its label and its table's name)."""

    subject = ("tables", "table")
    table: str | None = None
    after: tuple[str, str] | None = None
    limit: int = 100

    def run(self, reader: Reader) -> list[ChangeStream]:
        prefix = () if self.table is None else (self.table,)
        # There are about as many streams as tables: too few for an index.
        known = sorted(reader.values(CHANGE_STREAMS, "label, name", *prefix), reverse=True)
        if self.table is not None and not known:
            find(reader, self.table)
        rest = known if self.after is None else [each for each in known if each < self.after]
        found = (reader.get(CHANGE_STREAMS, name, label) for label, name in rest)
        return list(islice((stream for stream in found if stream is not None and not stream.hidden), self.limit))
