"""Topics, and the rows of topics, partitions and groups.

A topic has a number that is never reused; names and aliases refer to it and share one namespace, because they share one
table. Each partition is a log of its own whose positions are offsets: dense, from 0, one for each message. Retention
only moves the log's start, so offsets never go back.

The partition of a key is the CRC-32 of its bytes, modulo the number of partitions. That is version 1; a topic stores
the version it was created with, so that a key never changes its partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from zlib import crc32

import msgspec

from tailrace.errors import Corrupt, Damaged, Invalid, NotFound
from tailrace.log import cold
from tailrace.log.entry import ENTRIES, LOGS, Entry, Log
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


class Topic(msgspec.Struct, frozen=True):
    id: int
    name: str
    alias: str | None
    partitions: int
    first_log: int  # partition p is the log first_log + p
    hash: int  # the version of the hash that finds a key's partition
    retention_seconds: int | None
    retention_max_bytes: int | None  # of one partition
    max_attempts: int | None  # deliveries of a message to one group; then it goes to `dead_letter`
    dead_letter: int | None  # the number of a topic
    created_ms: int
    created_by: str

    def log_of(self, partition: int) -> int:
        """The number of a partition's log."""
        if not 0 <= partition < self.partitions:
            raise Invalid(
                f"topic {self.name!r} has no partition {partition}; it has {self.partitions}, numbered from 0",
                code="NO_SUCH_PARTITION",
            )
        return self.first_log + partition

    def partition_for(self, key: bytes) -> int:
        """The partition of messages with this key."""
        return crc32(key) % self.partitions


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


class DeliveredMessage(msgspec.Struct, frozen=True, gc=False):
    """A message as a consumer gets it."""

    partition: int
    offset: int
    at_ms: int
    attempt: int  # 1: delivered for the first time; 0: read without a group
    envelope: Envelope

    @property
    def id(self) -> str:
        """For tracing: the change record of the message, which is the same in every topic, or else its position."""
        envelope = self.envelope
        if envelope.sequence:
            return f"{envelope.sequence}-{envelope.index}"
        return f"p{self.partition}-{self.offset}"


encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(Envelope)


def opened(body: bytes) -> Envelope:
    """The message in an entry."""
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise Corrupt(f"a message cannot be read: {error}; run tailrace check") from error


def _opened_cold(entry: Entry) -> Envelope:
    """As `opened`. Damage in cold storage is not damage of the database: only this read fails."""
    try:
        return opened(entry.body)
    except Corrupt as error:
        raise Damaged(f"the message at offset {entry.position} of log {entry.log} in cold storage: {error}") from error


def messages(
    reader: Reader | Tx, log: Log, partition: int, first: int, count: int, bytes_max: int, attempt: int
) -> Iterator[DeliveredMessage]:
    """Messages from an offset on: at least one if there is any, then up to `count` of them and `bytes_max`.

    Rows are read by column and in small pages, so that little is read that is not delivered. Reads of cold storage may
    return fewer."""
    left = bytes_max
    if first < log.start:
        for entry in cold.within_reach(reader, log, first, log.start):
            left -= len(entry.body)
            if count == 0 or (left < 0 and left + len(entry.body) < bytes_max):
                return
            yield DeliveredMessage(partition, entry.position, entry.at_ms, attempt, _opened_cold(entry))
            first, count = entry.next, count - 1
        if first < log.start:
            return
    while count > 0:
        end = min(first + min(count, READ_AHEAD), log.next)
        for entry in list(reader.scan(ENTRIES, log.id, start=first, before=end)):
            if entry.position != first:
                raise gap(log, first)
            left -= len(entry.body)
            if left < 0 and left + len(entry.body) < bytes_max:
                return
            yield DeliveredMessage(partition, entry.position, entry.at_ms, attempt, opened(entry.body))
            first, count = entry.next, count - 1
        if first < end:
            raise gap(log, first)
        if end == log.next:
            return


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
