"""Topics: messages are published here, and topics are described. `consume.py` has what consumers do."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw

from tailrace import limits
from tailrace.access import Principal
from tailrace.errors import Invalid
from tailrace.http.codec import (
    Position,
    json_body,
    json_response,
    msgpack_body,
    parameters_of,
    rfc3339,
    sends_msgpack,
)
from tailrace.http.listings import whole_number
from tailrace.http.message import Headers, Request, Response
from tailrace.http.streams import producer_claim
from tailrace.metrics import Metrics
from tailrace.streams import json_mode
from tailrace.streams.producer import ProducerClaim
from tailrace.topics.commands import Outgoing, Publish, PublishedMessages
from tailrace.topics.queries import (
    DescribeTopic,
    GroupInfo,
    ListAcks,
    ListTopics,
    PartitionInfo,
    RouteInfo,
    TopicDescription,
)
from tailrace.topics.topic import MODES, Topic

if TYPE_CHECKING:
    from tailrace.http.services import Services

PUBLISH_BODY_BYTES_MAX: Final = 4 * limits.MiB  # of several messages, parsed in one go; more is 413
PUBLISH_PARAMETERS: Final = ("key", "partition")
ACKS_PARAMETERS: Final = ("group", "partition", "limit")
ACKS_LISTED: Final = 100
_MESSAGE: Final = re.compile(r"\$\.messages\[([0-9]+)\]")


# -- requests


class MessageBody(msgspec.Struct, forbid_unknown_fields=True):
    payload: bytes | None = None  # base64 in JSON
    value: Raw | msgspec.UnsetType = msgspec.UNSET  # JSON
    key: str | None = None
    partition_id: Position | None = None


class ProducerBody(msgspec.Struct, forbid_unknown_fields=True):
    id: Annotated[str, Meta(min_length=1, max_length=limits.PRODUCER_ID_BYTES_MAX)]
    epoch: Annotated[int, Meta(ge=0, le=limits.PRODUCER_NUMBER_MAX)]
    sequence: Annotated[int, Meta(ge=0, le=limits.PRODUCER_NUMBER_MAX)]


class PublishBody(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    messages: list[MessageBody]
    producer: ProducerBody | None = None


class PublishBodyOutline(msgspec.Struct, forbid_unknown_fields=True):
    """A large body whose messages are not decoded yet."""

    topic: str
    messages: Raw
    producer: ProducerBody | None = None


class PublishBodyPart(msgspec.Struct):
    """Some of the messages of a large body."""

    messages: list[MessageBody]


class PackedPublishBody(PublishBody):
    """In MessagePack, where a byte may stand for a message: too many are refused before they are decoded."""

    messages: Annotated[list[MessageBody], Meta(max_length=limits.PUBLISH_MESSAGES_MAX)]


# -- responses


class PublishedOffset(msgspec.Struct, gc=False):
    partition_id: int
    offset: int


class PublishResponse(msgspec.Struct):
    messages: list[PublishedOffset]
    duplicate: bool


class TopicResponse(msgspec.Struct, kw_only=True):
    topic_id: str
    name: str
    alias: str | None
    partitions: int
    retention_seconds: int | None
    retention_max_bytes: int | None
    max_attempts: int | None
    dead_letter: str | None
    created_at: str
    created_by: str


class TopicsResponse(msgspec.Struct):
    topics: list[TopicResponse]


class PartitionResponse(msgspec.Struct):
    partition_id: int
    start_offset: int
    next_offset: int
    messages: int
    bytes: int


class GroupResponse(msgspec.Struct, kw_only=True):
    group_id: str
    partition_id: int
    last_acked_offset: int
    next_offset: int
    lag: int
    in_flight: int
    pending: int
    delivered: int
    redelivered: int
    lost: int
    consumers: list[str]
    created_at: str
    updated_at: str
    oldest_at: str | None  # when the first message of the lag was written; null: there is none, or it is cold


class RecordedAckResponse(msgspec.Struct):
    """Messages that a consumer has acknowledged: offsets from `first_offset` up to and including `last_offset`."""

    partition_id: int
    first_offset: int
    last_offset: int
    at: str
    consumer_id: str
    by: str


class AcksResponse(msgspec.Struct):
    group_id: str
    acknowledgements: list[RecordedAckResponse]  # the newest first


class RouteResponse(msgspec.Struct, kw_only=True):
    table: str
    op: str
    payload_mode: str
    filter: str | None
    partition_by: str | None
    name: str | None
    backfill: bool  # rows that were there before the route are still being sent


class TopicDetailResponse(TopicResponse, kw_only=True):
    partition_list: list[PartitionResponse]
    groups: list[GroupResponse]
    routes: list[RouteResponse]


_publish: Final = msgspec.json.Decoder(PublishBody)
_publish_outline: Final = msgspec.json.Decoder(PublishBodyOutline)
_publish_part: Final = msgspec.json.Decoder(PublishBodyPart)
_publish_msgpack: Final = msgspec.msgpack.Decoder(PackedPublishBody)


# -- publishing


def parse_publish(request: Request) -> Publish:
    packed = sends_msgpack(request)
    body: PublishBody
    if packed:
        body = msgpack_body(request, _publish_msgpack, PUBLISH_BODY_BYTES_MAX)
    else:
        body = _publish_body(request)
    if not 1 <= len(body.messages) <= limits.PUBLISH_MESSAGES_MAX:
        raise Invalid(
            f"messages has {len(body.messages)} of them; send 1 to {limits.PUBLISH_MESSAGES_MAX} in one request"
        )
    if packed:
        _check_payloads(body.messages)
    else:
        _check_text(request.body)
    producer = body.producer
    claim = None if producer is None else ProducerClaim(producer.id, producer.epoch, producer.sequence)
    messages = tuple([outgoing(message, index) for index, message in enumerate(body.messages)])
    return Publish(body.topic, messages, claim)


def _publish_body(request: Request) -> PublishBody:
    """The body, which is JSON. A large one may have a million messages, and decoding them keeps the event loop; so its
    messages are decoded in parts, and no more of them than are allowed."""
    body = request.body
    if len(body) <= limits.LOOP_BYTES or body.count(b"{") <= limits.PUBLISH_MESSAGES_MAX:
        return json_body(request, _publish, PUBLISH_BODY_BYTES_MAX)
    outline = json_body(request, _publish_outline, PUBLISH_BODY_BYTES_MAX)
    array = bytes(outline.messages)
    if not array.startswith(b"["):
        return json_body(request, _publish, PUBLISH_BODY_BYTES_MAX)  # raises: it is not an array
    messages: list[MessageBody] = []
    for part in json_mode.in_parts(array[1:-1].strip()):
        try:
            messages += _publish_part.decode(b'{"messages":[%b]}' % part).messages
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Invalid(f"the body is not JSON of the expected form: {_numbered(error, len(messages))}") from None
        if len(messages) > limits.PUBLISH_MESSAGES_MAX:
            raise Invalid(
                f"messages has more than {limits.PUBLISH_MESSAGES_MAX} of them; send 1 to "
                f"{limits.PUBLISH_MESSAGES_MAX} in one request"
            )
    return PublishBody(outline.topic, messages, outline.producer)


def _numbered(error: Exception, before: int) -> str:
    """The error of a part with the number that its message has in the whole body."""
    return _MESSAGE.sub(lambda found: f"$.messages[{int(found[1]) + before}]", str(error), count=1)


def render_published(request: Request, done: PublishedMessages) -> Response:
    offsets = [PublishedOffset(partition, position) for partition, position in done.offsets]
    return json_response(PublishResponse(offsets, done.duplicate))


def count_published(metrics: Metrics, done: PublishedMessages) -> None:
    metrics.published += len(done.offsets)


def parse_publish_raw(request: Request, name: str) -> Publish:
    fields = request.headers
    claim = None
    if b"producer-id" in fields or b"producer-epoch" in fields or b"producer-seq" in fields:
        claim = producer_claim(fields)
    key = partition = None
    if request.query or b"topic-key" in fields or b"topic-partition" in fields:
        key, partition = _addressed(request)
    return Publish(name, (Outgoing(request.body, key, partition),), claim)


def render_published_raw(request: Request, done: PublishedMessages) -> Response:
    headers: Headers = []
    if done.offsets:
        ((number, position),) = done.offsets
        headers = [(b"topic-partition", b"%d" % number), (b"topic-offset", b"%d" % position)]
    epoch = request.headers.get(b"producer-epoch")
    if epoch is not None:
        headers.append((b"producer-epoch", b"%d" % int(epoch)))
        headers.append((b"producer-seq", b"%d" % (done.sequence or 0)))
    return Response(200 if epoch is not None and not done.duplicate else 204, headers)


def outgoing(message: MessageBody, index: int) -> Outgoing:
    """A message to be published."""
    payload, value = message.payload, message.value
    if isinstance(value, Raw):
        if payload is not None:
            raise Invalid(f"messages[{index}] has both payload (base64) and value (JSON); send one of them")
        payload = bytes(value)
    elif payload is None:
        raise Invalid(f"messages[{index}] has neither payload (base64) nor value (JSON); send one of them")
    return Outgoing(payload, None if message.key is None else message.key.encode(), message.partition_id)


def _check_payloads(messages: list[MessageBody]) -> None:
    for index, message in enumerate(messages):
        if message.value is not msgspec.UNSET:
            raise Invalid(f"messages[{index}] has a value, which is for JSON; in MessagePack, send payload as bytes")


def _check_text(body: bytes) -> None:
    """A message that is stored as it came must be UTF-8; the decoder looks only at the parts that it decodes."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise Invalid(f"the body is not UTF-8: {error}") from None


def _addressed(request: Request) -> tuple[bytes | None, int | None]:
    """The key and the partition that a message comes with, in fields or in the query string."""
    fields = request.headers
    given = dict(parameters_of(request))
    for name in PUBLISH_PARAMETERS:
        if (value := fields.get(f"topic-{name}".encode())) is not None:
            if name in given:
                raise Invalid(f"{name} is given more than once; give it once, as a field or in the query")
            try:
                given[name] = value.decode()
            except UnicodeDecodeError:
                raise Invalid(f"Topic-{name.title()} is not UTF-8") from None
    number = given.get("partition")
    if number is not None and not (number.isascii() and number.isdigit() and len(number) <= 9):
        raise Invalid(f"partition {number[:80]!r} is not a number from 0 on", code="NO_SUCH_PARTITION")
    key = given.get("key")
    return None if key is None else key.encode(), None if number is None else int(number)


# -- describing


def parse_list(request: Request) -> ListTopics:
    return ListTopics()


def render_list(request: Request, found: list[Topic]) -> Response:
    names = {topic.id: topic.name for topic in found}
    return json_response(
        TopicsResponse([TopicResponse(**_facts(topic, names.get(topic.dead_letter or 0))) for topic in found])
    )


def parse_describe(request: Request, name: str) -> DescribeTopic:
    return DescribeTopic(name)


def render_described(request: Request, found: TopicDescription) -> Response:
    return json_response(
        TopicDetailResponse(
            **_facts(found.topic, found.dead_letter),
            partition_list=[_partition(each) for each in found.partitions],
            groups=[_group(each) for each in found.groups],
            routes=[_route(each) for each in found.routes],
        )
    )


async def acknowledgements(services: Services, request: Request, principal: Principal, name: str) -> Response:
    """Who has acknowledged messages of a topic as a member of a group, and when."""
    given = parameters_of(request)
    group = given.get("group", "")
    if not group:
        raise Invalid("name the group: group=workers")
    partition = whole_number(given, "partition", 0, 0, limits.PARTITIONS_MAX) if "partition" in given else None
    limit = whole_number(given, "limit", ACKS_LISTED, 1, limits.ACKS_LISTED_MAX)
    query = ListAcks(name, group, partition, limit)
    found = await asyncio.to_thread(services.db.execute, query, principal)
    shown = [
        RecordedAckResponse(
            each.partition, each.range.first, each.range.end - 1, rfc3339(each.range.at_ms), each.range.consumer,
            each.range.by,
        )
        for each in found
    ]  # fmt: skip
    return json_response(AcksResponse(group, shown))


def _facts(topic: Topic, dead_letter: str | None) -> dict[str, Any]:
    return {
        "topic_id": str(topic.id),
        "name": topic.name,
        "alias": topic.alias,
        "partitions": topic.partitions,
        "retention_seconds": topic.retention_seconds,
        "retention_max_bytes": topic.retention_max_bytes,
        "max_attempts": topic.max_attempts,
        "dead_letter": dead_letter,
        "created_at": rfc3339(topic.created_ms),
        "created_by": topic.created_by,
    }


def _partition(info: PartitionInfo) -> PartitionResponse:
    return PartitionResponse(info.partition, info.start, info.next, info.next - info.start, info.bytes)


def _group(info: GroupInfo) -> GroupResponse:
    return GroupResponse(
        group_id=info.group,
        partition_id=info.partition,
        last_acked_offset=info.floor - 1,
        next_offset=info.cursor,
        lag=info.lag,
        in_flight=info.in_flight,
        pending=info.pending,
        delivered=info.delivered,
        redelivered=info.redelivered,
        lost=info.lost,
        consumers=info.consumers,
        created_at=rfc3339(info.created_ms),
        updated_at=rfc3339(info.updated_ms),
        oldest_at=None if info.oldest_ms is None else rfc3339(info.oldest_ms),
    )


def _route(info: RouteInfo) -> RouteResponse:
    route = info.route
    return RouteResponse(
        table=info.table,
        op=("Insert", "Update", "Delete")[route.event],
        payload_mode=MODES[route.mode],
        filter=route.filter,
        partition_by=route.partition_by,
        name=route.name,
        backfill=bool(route.backfill),
    )
