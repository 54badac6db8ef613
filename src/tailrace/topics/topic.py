"""Topics, and the rows of topics, partitions and groups.

A topic has a number that is never reused; names and aliases refer to it and share one namespace, because they share one
table. Each partition is a log of its own whose positions are offsets: dense, from 0, one for each message. Retention
only moves the log's start, so offsets never go back.

The partition of a key is the CRC-32 of its bytes, modulo the number of partitions. That is version 1; a topic stores
the version it was created with, so that a key changes its partition only when partitions are added.
"""

from __future__ import annotations

import sys
from typing import Any, Final
from zlib import crc32

import msgspec

from tailrace.errors import Corrupt, Damaged, Invalid, NotFound
from tailrace.log import cold, segments
from tailrace.log.entry import LOGS, Log, Segment
from tailrace.log.log import gap
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.table import StorageTable

OWNER: Final = "topic/"  # of a partition's log: topic/<number>/<partition>
HASH_VERSION: Final = 1
READ_AHEAD: Final = 128  # messages read in one go

# The event that caused a message; PUBLISH is for messages that were published directly.
INSERT: Final = 0
UPDATE: Final = 1
DELETE: Final = 2
PUBLISH: Final = 3
OPERATIONS: Final = ("Insert", "Update", "Delete", "Publish")
MODES: Final = ("Key", "Full", "Diff")  # the contents of a payload


_numbers: Final = msgspec.msgpack.Decoder(list[int])


class Topic(msgspec.Struct, frozen=True):
    id: int
    name: str
    alias: str | None
    partitions: int
    first_log: int  # partition p is the log first_log + p, but for those that were added later
    hash: int  # the version of the hash that finds a key's partition
    retention_seconds: int | None
    retention_max_bytes: int | None  # of one partition
    max_attempts: int | None  # deliveries of a message to one group; then it goes to `dead_letter`
    dead_letter: int | None  # the number of a topic
    created_ms: int
    created_by: str
    added: bytes | None = None  # MessagePack of the numbers of the logs of partitions that were added later

    def log_of(self, partition: int) -> int:
        """The number of a partition's log."""
        if not 0 <= partition < self.partitions:
            raise Invalid(
                f"topic {self.name!r} has no partition {partition}; it has {self.partitions}, numbered from 0",
                code="NO_SUCH_PARTITION",
            )
        return self.first_log + partition if self.added is None else self._number(partition, self.added)

    def _number(self, partition: int, added: bytes) -> int:
        later: list[int] = _numbers.decode(added)
        first = self.partitions - len(later)
        return self.first_log + partition if partition < first else later[partition - first]

    def partition_for(self, key: bytes) -> int:
        """The partition of messages with this key."""
        return crc32(key) % self.partitions

    def number_for(self, key: bytes) -> int:
        """The number of the log of messages with this key."""
        return self.log_of(crc32(key) % self.partitions)


class TopicName(msgspec.Struct, frozen=True):
    """A name or an alias; there is one namespace for both."""

    name: str
    topic: int


class Partition(msgspec.Struct, frozen=True, gc=False):
    """The size of a partition; its log has the rest."""

    log: int
    topic: int
    number: int
    bytes: int  # of the entries from the log's start on


class GroupRow(msgspec.Struct, frozen=True, gc=False):
    """The state of a group in a partition. `group.py` has the rules."""

    log: int
    name: str
    cursor: int  # the first offset that was never delivered
    leases: int  # leases so far
    delivered: int  # messages, each delivery counted
    redelivered: int  # of those, not the first delivery
    lost: int  # never acknowledged and removed by retention
    created_ms: int
    updated_ms: int
    ranges: bytes  # MessagePack of list[LeasedRange]: delivered and not acknowledged


TOPICS = StorageTable("topics", Topic, key=("id",), cached=True)
TOPIC_NAMES = StorageTable("topic_names", TopicName, key=("name",), cached=True)
PARTITIONS = StorageTable("topic_partitions", Partition, key=("log",), cached=True)
GROUPS = StorageTable("topic_groups", GroupRow, key=("log", "name"), cached=True)


class Envelope(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message as it is stored in its entry."""

    sequence: int  # of the transaction that changed the row; 0 if that has none: published, or no change stream
    index: int  # within that
    operation: int  # into OPERATIONS
    mode: int  # into MODES
    source: str | None  # the table
    payload: bytes
    by: str  # the principal that wrote or published
    key: bytes | None = None  # the key of a published message
    origin: Any = None  # of a dead letter: [topic, partition, offset, group, attempts]


class DeliveredRange(msgspec.Struct, frozen=True):
    """Consecutive messages that are delivered for the same time, as they are stored."""

    attempt: int  # 1: delivered for the first time; 0: read without a group
    segments: list[Segment]

    @property
    def count(self) -> int:
        """The number of messages."""
        return self.segments[-1].next - self.segments[0].position


class DeliveredMessage(msgspec.Struct, frozen=True, gc=False):
    """A message as a consumer gets it."""

    partition: int
    offset: int
    at_ms: int
    attempt: int  # as in a `DeliveredRange`
    envelope: Envelope

    @property
    def id(self) -> str:
        return message_id(self.envelope, self.partition, self.offset)


def message_id(envelope: Envelope, partition: int, offset: int) -> str:
    """For tracing: the change record of a message, which is the same in every topic, or else its position."""
    return f"{envelope.sequence}-{envelope.index}" if envelope.sequence else f"p{partition}-{offset}"


encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(Envelope)


def opened(body: bytes | memoryview) -> Envelope:
    """The message in an entry."""
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise Corrupt(f"a message cannot be read: {error}; run tailrace check") from error


def read(reader: Reader | Tx, log: Log, first: int, count: int, bytes_max: int) -> list[Segment]:
    """Messages from an offset on, in segments: at least one if there is any, then up to `count` of them and
    `bytes_max`. Reads of cold storage may return fewer.

    Rows are read in small pages, so that little is read that is not delivered."""
    if first < log.start:
        return _read_cold(reader, log, first, count, bytes_max)
    found: list[Segment] = []
    at, left, end = first, bytes_max, min(first + count, log.next)
    while at < end:
        until = min(at + READ_AHEAD, end)
        for segment in list(segments.between(reader, log.id, at, until)):
            if segment.position == at and segment.next <= until:
                inside: Segment | None = segment
            else:
                inside = segments.cut(segment, at, until, sys.maxsize, sys.maxsize)
            if inside is None or inside.position != at:
                raise gap(log, at)
            if len(inside.body) > left:
                part = segments.cut(inside, at, until, left, sys.maxsize)
                if part is None and not found:
                    part = segments.cut(inside, at, until, sys.maxsize, 1)
                return found if part is None else [*found, part]
            found.append(inside)
            left -= len(inside.body)
            at = inside.next
        if at < until:
            raise gap(log, at)
    return found


def _read_cold(reader: Reader | Tx, log: Log, first: int, count: int, bytes_max: int) -> list[Segment]:
    """As `read`, below the start of the hot log, and perhaps into it."""
    found: list[Segment] = []
    left = bytes_max
    for entry in cold.within_reach(reader, log, first, log.start):
        left -= len(entry.body)
        if len(found) == count or (left < 0 and found):
            return found
        try:
            opened(entry.body)
        except Corrupt as error:  # not damage of the database: only this read fails
            raise Damaged(
                f"the message at offset {entry.position} of log {entry.log} in cold storage: {error}"
            ) from error
        found.append(Segment(entry.log, entry.position, entry.next, entry.at_ms, entry.body))
    after = found[-1].next
    if after == log.start and len(found) < count and left > 0:
        hot = read(reader, log, after, count - len(found), left)
        found += hot if sum([len(segment.body) for segment in hot]) <= left else []
    return found


def find(reader: Reader | Tx, name: str) -> Topic:
    """The topic of this name or alias."""
    row = reader.get(TOPIC_NAMES, name)
    topic = None if row is None else reader.get(TOPICS, row.topic)
    if topic is None:
        raise NotFound(
            f"there is no topic {name[:200]!r}; create it with CREATE TOPIC, or list the topics with SHOW TOPICS",
            code="TOPIC_NOT_FOUND",
        )
    return topic


def partition_log(reader: Reader | Tx, topic: Topic, partition: int) -> Log:
    log = reader.get(LOGS, topic.log_of(partition))
    assert log is not None, f"topic {topic.name!r} has lost the log of partition {partition}"
    return log
