"""Queries on streams: describe, read, list."""

from __future__ import annotations

import sys

import msgspec

from tailrace import limits
from tailrace.command import Query
from tailrace.listing import NamedPage, NameFilter, page
from tailrace.log import cold
from tailrace.log import log as logs
from tailrace.log.entry import LOGS, Log
from tailrace.log.log import LogPage
from tailrace.storage.engine import Reader
from tailrace.streams.commands import live, log_of
from tailrace.streams.stream import STREAMS, StreamRow, expired


class StreamDescription(msgspec.Struct, frozen=True):
    stream: StreamRow
    log: Log
    earliest: int  # the first position that can be read, hot or cold


class StreamSlice(msgspec.Struct, frozen=True):
    """Some entries, and the state of the stream when they were read."""

    stream: StreamRow
    log: Log
    position: int  # where the page begins
    page: LogPage

    @property
    def closed(self) -> bool:
        """Whether the reader has reached the end of a closed stream."""
        return bool(self.stream.closed) and self.page.at_tail


class DescribeStream(Query[StreamDescription], frozen=True):
    subject = ("streams", "path")

    path: str

    def run(self, reader: Reader) -> StreamDescription:
        stream = live(reader, self.path)
        log = log_of(reader, stream)
        return StreamDescription(stream, log, cold.earliest(reader, log))


class ReadStream(Query[StreamSlice], frozen=True):
    """Entries from `position` on (None: from the earliest one), up to `bytes_max`, `entries_max` and `segments_max`.

    A position that lies inside a message is read from the beginning of that message, and one past the tail is the tail:
    the official Yjs server adds one to the offset of its snapshot, and nothing may be skipped because of it."""

    subject = ("streams", "path")

    path: str
    position: int | None = None
    bytes_max: int = limits.SLICE_BYTES
    entries_max: int = sys.maxsize
    segments_max: int = sys.maxsize

    def run(self, reader: Reader) -> StreamSlice:
        stream = live(reader, self.path)
        log = log_of(reader, stream)
        position = cold.earliest(reader, log) if self.position is None else self.position
        if position == log.next + 1:
            position = log.next
        try:
            page = logs.read(reader, log, position, self.bytes_max, self.entries_max, self.segments_max)
        except logs.Misaligned:
            position = logs.message_start(reader, log, position)
            page = logs.read(reader, log, position, self.bytes_max, self.entries_max, self.segments_max)
        return StreamSlice(stream, log, position, page)


class ListStreams(Query[list[StreamRow]], frozen=True):
    """Streams in path order, `after` a path."""

    after: str | None = None
    limit: int = 1000

    def run(self, reader: Reader) -> list[StreamRow]:
        return list(reader.scan(STREAMS, after=self.after, limit=self.limit))


class FindStreamPage(Query[NamedPage[StreamDescription]], frozen=True):
    """A page of streams with their logs, in path order."""

    wanted: NameFilter = NameFilter()

    def subjects(self) -> tuple[str, ...]:
        return self.wanted.subjects()

    def run(self, reader: Reader) -> NamedPage[StreamDescription]:
        def described(stream: StreamRow) -> StreamDescription | None:
            if stream.deleted or expired(stream, reader.settled_ms):
                return None
            log = reader.get(LOGS, stream.log)
            return None if log is None else StreamDescription(stream, log, cold.earliest(reader, log))

        return page(reader, STREAMS, "streams", self.wanted, described)
