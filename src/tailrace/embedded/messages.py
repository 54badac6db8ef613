"""Messages of topics as Python programs see them, embedded and over HTTP alike.

`Message` and `Delivery` are decoded from the server's JSON as they are, so their fields are named there as on the wire.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypeAlias

import msgspec

from tailrace import limits
from tailrace.errors import Invalid
from tailrace.topics import topic as topics
from tailrace.topics.commands import Outgoing
from tailrace.topics.consuming import ConsumedMessages as Delivered
from tailrace.topics.group import EARLIEST, LATEST, OFFSET, TIMESTAMP, StartPoint
from tailrace.topics.topic import MODES, OPERATIONS

ANY: Final = "any"
Partition: TypeAlias = int | Literal["any"]
Payload: TypeAlias = Any  # bytes, text, or a value that becomes JSON
Start: TypeAlias = str | int | datetime  # "earliest", "latest", an offset, or a time

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_json: Final = msgspec.json.Encoder(decimal_format="number").encode


class Origin(msgspec.Struct, frozen=True, rename={"partition": "partition_id", "group": "group_id"}, gc=False):
    """Where a dead letter comes from."""

    topic: str
    partition: int
    offset: int
    group: str
    attempts: int


class Message(msgspec.Struct, frozen=True, rename={"partition": "partition_id", "at_ms": "ts"}, gc=False):
    """A message of a topic."""

    topic_id: str
    partition: int
    offset: int
    message_id: str  # of the change record, the same in whichever topics; without one, where the message is
    source_table: str | None
    op: str  # Insert, Update, Delete; Publish if it was published
    at_ms: int
    payload_mode: str  # Key, Full, Diff
    payload: bytes
    by: str = ""  # the principal that wrote the row, or published
    attempt: int = 0  # 1: delivered for the first time; 0: read without a group
    lease_id: str | None = None
    key: str | None = None  # the key that it was published with
    origin: Origin | None = None

    @property
    def at(self) -> datetime:
        """When it was written, in UTC."""
        return _EPOCH + timedelta(milliseconds=self.at_ms)

    def json(self) -> Any:
        """The payload, decoded; messages of routes are always JSON."""
        try:
            return msgspec.json.decode(self.payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Invalid(
                f"the message at offset {self.offset} of partition {self.partition} is not JSON: {error}; "
                "use its payload, which is bytes"
            ) from None


class Delivery(
    msgspec.Struct, frozen=True, rename={"partition": "partition_id", "lease": "lease_id"}
):  # not gc=False: it holds a list
    """Messages of one partition, and how it goes on. Iterating over it gives the messages."""

    messages: list[Message]
    next_offset: int
    has_more: bool
    partition: int
    skipped: int = 0  # messages that retention had removed before the group came to them
    lease: str | None = None  # names the messages in acknowledgements and the like; None without a group

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)


class PublishedMessage(msgspec.Struct, frozen=True, rename={"partition": "partition_id"}, gc=False):
    """Where a published message is."""

    partition: int
    offset: int


class Published(msgspec.Struct, frozen=True):
    """The result of a request to publish. That of a duplicate has no messages: the first response has them."""

    messages: list[PublishedMessage]
    duplicate: bool = False


class TopicInfo(msgspec.Struct, frozen=True):
    """A topic and its settings."""

    name: str
    partitions: int
    topic_id: str
    alias: str | None = None
    retention_seconds: int | None = None
    retention_max_bytes: int | None = None
    max_attempts: int | None = None


def delivery(found: Delivered) -> Delivery:
    """The delivery of a database."""
    topic, lease = str(found.topic.id), found.lease
    messages = [_message(topic, lease, each) for each in found.messages]
    return Delivery(messages, found.next_offset, found.has_more, found.partition, found.skipped, lease)


def _message(topic: str, lease: str | None, found: topics.DeliveredMessage) -> Message:
    envelope = found.envelope
    return Message(
        topic, found.partition, found.offset, found.id, envelope.source, OPERATIONS[envelope.operation], found.at_ms,
        MODES[envelope.mode], envelope.payload, envelope.by, found.attempt, lease,
        None if envelope.key is None else envelope.key.decode("utf-8", "replace"),
        None if envelope.origin is None else Origin(*envelope.origin),
    )  # fmt: skip


def topic_info(topic: topics.Topic) -> TopicInfo:
    """The settings of a topic of a database."""
    return TopicInfo(
        topic.name, topic.partitions, str(topic.id), topic.alias, topic.retention_seconds, topic.retention_max_bytes,
        topic.max_attempts,
    )  # fmt: skip


def payload_bytes(payload: Payload) -> bytes:
    """Bytes as they are, text as UTF-8, anything else as JSON."""
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, bytearray | memoryview):
        return bytes(payload)
    try:
        return payload.encode() if isinstance(payload, str) else _json(payload)
    except (TypeError, ValueError) as error:
        raise Invalid(f"a payload is bytes, text, or a value that JSON can hold: {error}") from None


def outgoing(payload: Payload, key: str | bytes | None, partition: int | None) -> Outgoing:
    """A message to be published; an `Outgoing` keeps its own key and partition where it has them."""
    check_numbers(partition=partition)
    if isinstance(payload, Outgoing):
        return Outgoing(
            payload.payload,
            key_bytes(key) if payload.key is None else payload.key,
            partition if payload.partition is None else payload.partition,
        )
    return Outgoing(payload_bytes(payload), key_bytes(key), partition)


def outgoings(payloads: Iterable[Payload], key: str | bytes | None, partition: int | None) -> tuple[Outgoing, ...]:
    """Messages to be published together."""
    made = tuple([outgoing(payload, key, partition) for payload in payloads])
    if not made:
        raise Invalid("there is nothing to publish; give one message or more")
    return made


def key_bytes(key: str | bytes | None) -> bytes | None:
    """A key as it is hashed."""
    if key is None or isinstance(key, bytes):
        return key
    if not isinstance(key, str):
        raise Invalid(f"key={key!r} is neither text nor bytes")
    try:
        return key.encode()
    except UnicodeEncodeError:
        raise Invalid(f"{key!r} cannot be a key: it is not valid UTF-8") from None


def start_at(start: Start) -> StartPoint:
    """Where a group starts."""
    if isinstance(start, datetime):
        when = start if start.tzinfo is not None else start.astimezone()
        return StartPoint(TIMESTAMP, max(0, (when - _EPOCH) // timedelta(milliseconds=1)))
    if type(start) is int:
        check_numbers(start=start)
        return StartPoint(OFFSET, start)
    if isinstance(start, str) and start.lower() in (EARLIEST, LATEST):
        return StartPoint(start.lower())
    raise Invalid(f"start={start!r} is not a start; use 'earliest', 'latest', an offset or a datetime")


def partition_number(partition: Partition | None) -> int | None:
    """The partition that is meant, None for any."""
    if partition is None or partition == ANY:
        return None
    if type(partition) is int:
        check_numbers(partition=partition)
        return partition
    raise Invalid(f"partition={partition!r} is not a partition; use a number, or 'any'", code="NO_SUCH_PARTITION")


def acked_offsets(upto: int | None, offsets: Sequence[int] | None) -> tuple[int, ...]:
    """The single offsets to acknowledge; none if all up to an offset are."""
    if (upto is None) == (not offsets):
        raise Invalid("acknowledge messages up to an offset (upto), or those at certain offsets (offsets); give one")
    for offset in offsets or ():
        check_numbers(offsets=offset)
    return tuple(offsets or ())


def milliseconds(name: str, seconds: float) -> int:
    """A duration in milliseconds."""
    return round(max(-1.0, min(check_seconds(name, seconds) * 1000, float(limits.POSITION_MAX))))


def check_seconds(name: str, seconds: float) -> float:
    """A duration, if it is one."""
    if type(seconds) not in (int, float) or math.isnan(seconds):
        raise Invalid(f"{name}={seconds!r} is not a number of seconds")
    return seconds


def check_texts(**given: str | None) -> None:
    """Names that the database can store."""
    for name, text in given.items():
        if text is not None and not isinstance(text, str):
            raise Invalid(f"{name}={text!r} is not text")
        try:
            (text or "").encode()
        except UnicodeEncodeError:
            raise Invalid(f"{name}={text!r} is not valid UTF-8") from None


def check_numbers(**given: int | None) -> None:
    """Whole numbers that the database can store."""
    for name, number in given.items():
        if number is not None and (type(number) is not int or abs(number) > limits.POSITION_MAX):
            raise Invalid(f"{name}={number!r} is not a whole number up to {limits.POSITION_MAX}")
