"""Messages as readers get them, and a topic's partition as a Durable Stream to read.

An entry of a partition's log is one message in MessagePack. Here it becomes JSON, the same that a consumer gets but for
what belongs to a delivery; live readers of a partition share one encoding of it. There is nothing to append here:
messages are published, or come by routes.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import UNSET, UnsetType

from tailrace import limits
from tailrace.access import Principal
from tailrace.database import Database
from tailrace.errors import NotFound
from tailrace.http import feed_filter
from tailrace.http.feed_filter import FeedFilter
from tailrace.http.message import Answer, Headers, Request, Response
from tailrace.http.reading import PARAMETERS, FeedSlice
from tailrace.http.sse import JsonEncoding
from tailrace.log import segments
from tailrace.log.entry import Entry, Segment
from tailrace.log.position import offset
from tailrace.topics.queries import DescribePartition, PartitionEntries, ReadPartition
from tailrace.topics.topic import MODES, OPERATIONS, Topic, message_id, opened

if TYPE_CHECKING:
    from tailrace.http.services import Services

PARTITION_DIGITS_MAX: Final = 9
READ_PARAMETERS: Final = (*PARAMETERS, feed_filter.PARAMETER)
CONTENT_TYPE: Final = "application/json"
TURN_BYTES: Final = 64 * limits.KiB  # of entries; more are made JSON in several turns of the event loop


class DeadLetterOrigin(msgspec.Struct, gc=False):
    """Where a dead letter comes from."""

    topic: str
    partition_id: int
    offset: int
    group_id: str
    attempts: int


class WireMessage(msgspec.Struct, gc=False):
    """A message on the wire. Its payload is bytes in MessagePack; in JSON the encoder makes base64 of them."""

    topic_id: str
    partition_id: int
    offset: int
    message_id: str
    source_table: str | None
    op: str
    ts: int
    payload_mode: str
    payload: bytes
    by: str
    attempt: int | UnsetType = UNSET
    lease_id: str | UnsetType | None = UNSET
    key: str | UnsetType = UNSET
    origin: DeadLetterOrigin | UnsetType = UNSET


_encode: Final = msgspec.json.Encoder().encode


def wire_messages(
    topic: str, partition: int, segment: Segment, attempt: int | UnsetType, lease: str | UnsetType | None
) -> list[WireMessage]:
    """The messages in a segment; `topic` is its number."""
    made = []
    for at, at_ms, body in segments.views(segment):
        envelope = opened(body)
        wire = WireMessage(
            topic, partition, at, message_id(envelope, partition, at), envelope.source,
            OPERATIONS[envelope.operation], at_ms, MODES[envelope.mode], envelope.payload, envelope.by,
            attempt, lease,
        )  # fmt: skip
        if envelope.key is not None:
            wire.key = envelope.key.decode("utf-8", "replace")
        if envelope.origin is not None:
            wire.origin = DeadLetterOrigin(*envelope.origin)
        made.append(wire)
    return made


def rendered(entry: Entry, topic: str, partition: int) -> bytes:
    """An entry's message, as a reader of the partition gets it."""
    segment = Segment(entry.log, entry.position, entry.next, entry.at_ms, entry.body)
    (wire,) = wire_messages(topic, partition, segment, UNSET, UNSET)
    return _encode(wire)


class MessagesEncoding(JsonEncoding):
    """One partition's messages. Equal ones share a channel, so that everybody on it is sent the same bytes."""

    live_bytes_max = TURN_BYTES

    def __init__(self, topic: Topic, partition: int, where: FeedFilter | None = None) -> None:
        self._topic = str(topic.id)
        self._partition = partition
        self._where = where
        self.sparse = where is not None

    def rendered(self, entry: Entry) -> bytes:
        if self._where is not None and not self._where.takes_message(opened(entry.body)):
            return b""
        return rendered(entry, self._topic, self._partition)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MessagesEncoding) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[str, int, FeedFilter | None]:
        return self._topic, self._partition, self._where


class PartitionFeed:
    """A topic's partition as something to be read."""

    renew_s = math.inf

    def __init__(
        self, db: Database, principal: Principal, topic: str, partition: int, where: FeedFilter | None = None
    ) -> None:
        self._where = where
        self._db = db
        self.principal = principal
        self.slice_bytes = limits.SLICE_BYTES
        self._topic = topic
        self._partition = partition

    async def read(self, position: int | None, bytes_max: int) -> FeedSlice:
        query = ReadPartition(self._topic, self._partition, position, bytes_max, limits.SLICE_ENTRIES)
        run = await self._db.aexecute(query, self.principal)
        encoding = MessagesEncoding(run.topic, self._partition, self._where)
        bodies, left = [], TURN_BYTES
        for entry in run.entries:
            if left <= 0:
                await asyncio.sleep(0)
                left = TURN_BYTES
            left -= len(entry.body)
            body = encoding.rendered(entry)
            if body:
                bodies.append(body)
        return FeedSlice(run.log.id, CONTENT_TYPE, encoding, run.position, bodies, run.next, run.log.next, False)

    async def describe(self) -> FeedSlice:
        run = await self._db.aexecute(DescribePartition(self._topic, self._partition), self.principal)
        tail = run.log.next
        encoding = MessagesEncoding(run.topic, self._partition, self._where)
        return FeedSlice(run.log.id, CONTENT_TYPE, encoding, tail, [], tail, tail, False)


async def read(services: Services, request: Request, principal: Principal, topic: str, partition: str) -> Answer:
    """A page, a long-poll or an event stream; with `where`, of the messages for which it is true."""
    number = partition_number(partition)
    text = feed_filter.requested(request)
    where = None if text is None else await feed_filter.compiled(text)
    return await services.reading.answer(request, PartitionFeed(services.db, principal, topic, number, where))


def parse_head(request: Request, topic: str, partition: str) -> DescribePartition:
    return DescribePartition(topic, partition_number(partition))


def render_head(request: Request, found: PartitionEntries) -> Response:
    headers: Headers = [
        (b"content-type", CONTENT_TYPE.encode()),
        (b"stream-next-offset", offset(found.log.next).encode()),
        (b"stream-earliest-offset", offset(found.position).encode()),
        (b"cache-control", b"no-store"),
    ]
    if found.topic.retention_seconds is not None:
        headers.append((b"stream-max-age", b"%d" % found.topic.retention_seconds))
    if found.topic.retention_max_bytes is not None:
        headers.append((b"stream-max-bytes", b"%d" % found.topic.retention_max_bytes))
    return Response(200, headers)


def partition_number(text: str) -> int:
    """The number of a partition in a path."""
    if not (text.isascii() and text.isdigit() and len(text) <= PARTITION_DIGITS_MAX):
        raise NotFound(
            f"{text[:80]!r} is not the number of a partition; a partition is read at "
            "/v1/topics/<name>/<partition>/stream"
        )
    return int(text)
