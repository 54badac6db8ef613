"""The door of topics: messages are published, consumed and settled here.

    POST  /v1/api/topics/consume    messages for a consumer of a group; waits for them
    POST  /v1/api/topics/ack        they are done with
    POST  /v1/api/topics/extend     it takes longer
    POST  /v1/api/topics/nack       somebody else should have them
    POST  /v1/api/topics/publish    messages as JSON
    GET   /v1/topics                which topics there are
    GET   /v1/topics/:name          one of them, with its partitions, groups and routes
    POST  /v1/topics/:name          the body is a message
    GET   /v1/topics/:name/:partition/stream   a partition as a Durable Stream

The first five are at /api/topics/ too. This door translates; how consumers wait is in `consuming`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta, Raw

from tailrace import limits
from tailrace.access import SYSTEM, Principal
from tailrace.config import Config
from tailrace.database import Database
from tailrace.errors import Invalid, NotAllowed, NotFound, TooLarge
from tailrace.http import asking
from tailrace.http.bulk import BulkDoor, wants_arrow
from tailrace.http.callers import Callers
from tailrace.http.consuming import Consuming
from tailrace.http.encoding import rfc3339
from tailrace.http.message import Answer, Headers, Request, Response
from tailrace.http.partitions import WireMessage, partition_answer, wire_messages
from tailrace.http.reading import PARAMETERS, Reading
from tailrace.http.streams import decode_path, producer_claim
from tailrace.streams.producer import Claim
from tailrace.topics.commands import Outgoing, Publish
from tailrace.topics.consuming import VISIBILITY_MS, Ack, Consume, Delivery, Extend, Nack
from tailrace.topics.group import EARLIEST, LATEST, OFFSET, TIMESTAMP, Start
from tailrace.topics.queries import DescribeTopic, FindTopic, GroupInfo, ListTopics, PartitionInfo, ReadTopic, RouteInfo
from tailrace.topics.topic import MODES, Message, Topic

T = TypeVar("T")
METHODS: Final = "GET, HEAD, POST, OPTIONS"
ANY: Final = "any"  # for a partition: whichever has something
PUBLISH_BODY_BYTES_MAX: Final = 4 * limits.MiB  # of JSON, which is parsed in one go; more is 413
WIDE: Final = 64  # partitions; more are looked at in a thread
SLICE_MESSAGES: Final = 500  # encoded between turns of the event loop
_JSON: Final[Headers] = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
_encode: Final = msgspec.json.Encoder().encode

Count = Annotated[int, Meta(ge=0, le=limits.POSITION_MAX)]
Seconds = Annotated[float, Meta(ge=0)]


# -- what clients send


class SettledBody(msgspec.Struct, forbid_unknown_fields=True):
    """What a consumer acknowledges when it asks for more."""

    upto_offset: Count
    partition_id: Count | None = None  # the one that is asked for
    lease_id: str | None = None


class ConsumeBody(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    group_id: str | None = None
    start: str | dict[str, Any] | None = None
    limit: int = 100
    partition_id: Count | str | None = 0
    timeout_seconds: Seconds | None = None
    consumer_id: str | None = None
    visibility_timeout_seconds: Seconds | None = None
    ack: SettledBody | None = None


class AckBody(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    group_id: str
    upto_offset: Count
    partition_id: Count = 0
    consumer_id: str | None = None
    lease_id: str | None = None


class ExtendBody(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    group_id: str
    partition_id: Count = 0
    consumer_id: str | None = None
    lease_id: str | None = None
    visibility_timeout_seconds: Seconds | None = None


class NackBody(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    group_id: str
    partition_id: Count = 0
    consumer_id: str | None = None
    lease_id: str | None = None
    offset: Count | None = None
    from_offset: Count | None = None
    upto_offset: Count | None = None
    delay_seconds: Seconds = 0


class MessageBody(msgspec.Struct, forbid_unknown_fields=True):
    payload: bytes | None = None  # base64
    value: Raw | msgspec.UnsetType = msgspec.UNSET  # JSON
    key: str | None = None
    partition_id: Count | None = None


class ProducerBody(msgspec.Struct, forbid_unknown_fields=True):
    id: Annotated[str, Meta(min_length=1, max_length=limits.PRODUCER_ID_BYTES_MAX)]
    epoch: Annotated[int, Meta(ge=0, le=limits.PRODUCER_NUMBER_MAX)]
    sequence: Annotated[int, Meta(ge=0, le=limits.PRODUCER_NUMBER_MAX)]


class PublishBody(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    messages: list[MessageBody]
    producer: ProducerBody | None = None


# -- what they get


class Consumed(msgspec.Struct):
    messages: list[WireMessage] | Raw
    next_offset: int
    has_more: bool
    skipped: int
    lease_id: str | None
    partition_id: int


class Place(msgspec.Struct, gc=False):
    partition_id: int
    offset: int


class TopicsDoor:
    """Everything about topics; `api` has what is below /v1/api/topics/, a call what is at and below /v1/topics."""

    def __init__(self, db: Database, reading: Reading, bulk: BulkDoor, callers: Callers, config: Config) -> None:
        self._db = db
        self._callers = callers
        self._reading = reading
        self._bulk = bulk
        self._timeout_s = config.topics.default_consume_timeout
        self._timeout_s_max = config.topics.max_consume_timeout
        self._consuming = Consuming(db)
        self._first = 0
        self._consume_decoder = msgspec.json.Decoder(ConsumeBody)
        self._ack_decoder = msgspec.json.Decoder(AckBody)
        self._extend_decoder = msgspec.json.Decoder(ExtendBody)
        self._nack_decoder = msgspec.json.Decoder(NackBody)
        self._publish_decoder = msgspec.json.Decoder(PublishBody)

    def release(self) -> None:
        """Let those go who wait for messages."""
        self._consuming.release()

    def api(self, request: Request, raw: bytes, principal: Principal) -> Coroutine[Any, Any, Answer]:
        """Answer a request; `raw` is the path after /v1/api/topics/ or /api/topics/, as it came."""
        match raw:
            case b"consume":
                work = self._consume
            case b"ack":
                work = self._ack
            case b"extend":
                work = self._extend
            case b"nack":
                work = self._nack
            case b"publish":
                work = self._publish
            case _:
                raise NotFound(
                    f"there is nothing at {request.path.decode('latin-1')[:200]!r}; below /v1/api/topics/ there are "
                    "consume, ack, extend, nack and publish"
                )
        if request.method != b"POST":
            raise _refused(request, "POST, OPTIONS")
        return work(request, principal)

    def __call__(self, request: Request, raw: bytes, principal: Principal) -> Coroutine[Any, Any, Answer]:
        """Answer a request; `raw` is the path after /v1/topics, as it came: empty, or with a slash at its beginning."""
        if raw in (b"", b"/"):
            if request.method not in (b"GET", b"HEAD"):
                raise _refused(request, "GET, HEAD, OPTIONS")
            asking.check_none(request)
            return self._list(principal)
        name, *parts = raw[1:].split(b"/")
        if not parts:
            if request.method == b"POST":
                return self._publish_raw(request, decode_path(name), principal)
            if request.method not in (b"GET", b"HEAD"):
                raise _refused(request, METHODS)
            asking.check_none(request)
            return self._describe(decode_path(name), principal)
        if len(parts) == 2 and parts[1] == b"stream" and parts[0].isdigit() and len(parts[0]) <= 9:
            if wants_arrow(request):
                return self._bulk.partition(request, principal, decode_path(name), int(parts[0]))
            if request.query:
                asking.asked(request, *PARAMETERS)
            return partition_answer(self._db, self._reading, request, principal, decode_path(name), int(parts[0]))
        raise NotFound(
            "there is nothing here; a topic is at /v1/topics/<name>, and its messages are at "
            "/v1/topics/<name>/<partition>/stream"
        )

    # -- consuming

    async def _consume(self, request: Request, principal: Principal) -> Response:
        asked = _body(request, self._consume_decoder)
        timeout_s = self._timeout(asked.timeout_seconds)
        start = _start(asked.start)
        if not 1 <= asked.limit <= limits.CONSUME_MESSAGES_MAX:
            raise Invalid(f"limit {asked.limit} is not from 1 to {limits.CONSUME_MESSAGES_MAX}", code="INVALID_LIMIT")
        partition = _partition(asked.partition_id)
        clock = self._db.clock
        began = clock.monotonic_s()
        if asked.group_id is None:
            if partition is None:
                raise Invalid('partition_id "any" needs a group_id: without a group, name the partition to read')
            if asked.ack is not None:
                raise Invalid("ack needs a group_id: without a group there is nothing to acknowledge")
            query = ReadTopic(asked.topic, partition, start, asked.limit, limits.CONSUME_BYTES)
            delivery = await self._consuming.read(query, self._callers.of(request, principal), timeout_s)
            answer = await _consumed(delivery)
        else:
            self._first += 1
            command = Consume(
                asked.topic, asked.group_id, partition, start, asked.limit, asked.consumer_id or "",
                _visibility_ms(asked.visibility_timeout_seconds), limits.CONSUME_BYTES, self._first,
                _acks(asked, asked.group_id, partition), partition is None and await self._wide(asked.topic),
            )  # fmt: skip
            delivery = await self._consuming.claim(command, self._callers.of(request, principal), timeout_s)
            try:
                answer = await _consumed(delivery)
            except asyncio.CancelledError:
                self._consuming.give_back(command, principal, delivery)
                raise
        self._measure(delivery.messages, clock.monotonic_s() - began)
        self._db.metrics.acked += delivery.acked
        return Response(200, _JSON, answer)

    async def _wide(self, name: str) -> bool:
        """Whether a topic has so many partitions that looking at all of them takes long."""
        try:
            return (await self._db.aexecute(FindTopic(name), SYSTEM)).partitions > WIDE
        except NotFound:
            return False  # who asks for messages is told

    def _timeout(self, asked: float | None) -> float:
        if asked is None:
            return self._timeout_s
        if not asked <= self._timeout_s_max:
            raise Invalid(
                f"timeout_seconds {asked:g} is too long; at most {self._timeout_s_max:g} (max_consume_timeout) are "
                "waited, then consume again",
                code="INVALID_TIMEOUT",
            )
        return asked

    def _measure(self, messages: list[Message], took_s: float) -> None:
        metrics = self._db.metrics
        metrics.consume_seconds.observe(took_s)
        if not messages:
            return
        metrics.consumed += len(messages)
        now_ms = self._db.clock.now_ms()
        at_ms, count = messages[0].at_ms, 0
        for message in messages:
            if message.attempt > 1:
                continue  # how long it was held before says nothing of us
            if message.at_ms != at_ms:
                if count:
                    metrics.delivery_seconds.observe((now_ms - at_ms) / 1000, count)
                at_ms, count = message.at_ms, 0
            count += 1
        if count:
            metrics.delivery_seconds.observe((now_ms - at_ms) / 1000, count)

    async def _ack(self, request: Request, principal: Principal) -> Response:
        asked = _body(request, self._ack_decoder)
        done = await self._db.aexecute(
            Ack(
                asked.topic, asked.group_id, asked.upto_offset, asked.partition_id, asked.consumer_id or "",
                asked.lease_id,
            ),
            principal,
        )  # fmt: skip
        self._db.metrics.acked += done.acked
        return Response(200, _JSON, b'{"success":true,"acknowledged_offset":%d}' % (done.floor - 1))

    async def _extend(self, request: Request, principal: Principal) -> Response:
        asked = _body(request, self._extend_decoder)
        done = await self._db.aexecute(
            Extend(
                asked.topic, asked.group_id, asked.partition_id, asked.consumer_id or "", asked.lease_id,
                _visibility_ms(asked.visibility_timeout_seconds),
            ),
            principal,
        )  # fmt: skip
        return _answer({"success": True, "lease_until": done.until_ms, "messages": done.messages})

    async def _nack(self, request: Request, principal: Principal) -> Response:
        asked = _body(request, self._nack_decoder)
        first, upto = asked.from_offset, asked.upto_offset
        if asked.offset is not None:
            if first is not None or upto is not None:
                raise Invalid("offset names one message, from_offset and upto_offset a range; send one or the other")
            first = upto = asked.offset
        done = await self._db.aexecute(
            Nack(
                asked.topic, asked.group_id, asked.partition_id, asked.consumer_id or "", asked.lease_id, first, upto,
                _milliseconds("delay_seconds", asked.delay_seconds, 0),
            ),
            principal,
        )  # fmt: skip
        return _answer({"success": True, "messages": done.messages})

    # -- publishing

    async def _publish(self, request: Request, principal: Principal) -> Response:
        asked = _body(request, self._publish_decoder, PUBLISH_BODY_BYTES_MAX)
        if not 1 <= len(asked.messages) <= limits.PUBLISH_MESSAGES_MAX:
            raise Invalid(
                f"messages has {len(asked.messages)} of them; send 1 to {limits.PUBLISH_MESSAGES_MAX} in one request"
            )
        _check_text(request.body)
        producer = asked.producer
        claim = None if producer is None else Claim(producer.id, producer.epoch, producer.sequence)
        messages = tuple([_outgoing(message, index) for index, message in enumerate(asked.messages)])
        done = await self._db.aexecute(Publish(asked.topic, messages, claim), principal)
        self._db.metrics.published += len(done.places)
        places = [Place(partition, position) for partition, position in done.places]
        return _answer({"messages": places, "duplicate": done.duplicate})

    async def _publish_raw(self, request: Request, name: str, principal: Principal) -> Response:
        fields = request.headers
        claim = None
        if b"producer-id" in fields or b"producer-epoch" in fields or b"producer-seq" in fields:
            claim = producer_claim(fields)
        key = partition = None
        if request.query or b"topic-key" in fields or b"topic-partition" in fields:
            key, partition = _addressed(request)
        done = await self._db.aexecute(Publish(name, (Outgoing(request.body, key, partition),), claim), principal)
        headers: Headers = []
        if done.places:
            ((number, position),) = done.places
            headers = [(b"topic-partition", b"%d" % number), (b"topic-offset", b"%d" % position)]
            self._db.metrics.published += 1
        if claim is not None:
            headers.append((b"producer-epoch", b"%d" % claim.epoch))
            headers.append((b"producer-seq", b"%d" % (done.sequence or 0)))
        return Response(200 if claim is not None and not done.duplicate else 204, headers)

    # -- what there is

    async def _list(self, principal: Principal) -> Response:
        def listed() -> Response:  # there may be very many
            found = self._db.execute(ListTopics(), principal)
            names = {topic.id: topic.name for topic in found}
            return _answer({"topics": [_topic(topic, names.get(topic.dead_letter or 0)) for topic in found]})

        return await asyncio.to_thread(listed)

    async def _describe(self, name: str, principal: Principal) -> Response:
        # There may be a thousand partitions, and as many groups in each.
        found = await asyncio.to_thread(self._db.execute, DescribeTopic(name), principal)
        return _answer(
            _topic(found.topic, found.dead_letter)
            | {
                "partition_list": [_partition_info(each) for each in found.partitions],
                "groups": [_group(each) for each in found.groups],
                "routes": [_route(each) for each in found.routes],
            }
        )


# -- from requests


def _body(request: Request, decoder: msgspec.json.Decoder[T], bytes_max: int = limits.CONTROL_BODY_BYTES_MAX) -> T:
    if len(request.body) > bytes_max:
        raise TooLarge(f"the body has {len(request.body)} bytes, and may have {bytes_max}; send less at a time")
    try:
        return decoder.decode(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the body is not the JSON that is wanted here: {error}") from None


def _start(asked: str | dict[str, Any] | None) -> Start:
    """Where a group begins; with capitals or without."""
    if asked is None:
        return Start(EARLIEST)
    if isinstance(asked, str):
        kind = asked.lower()
        if kind in (EARLIEST, LATEST):
            return Start(kind)
    elif len(asked) == 1:
        ((name, at),) = asked.items()
        kind = name.lower()
        if kind in (OFFSET, TIMESTAMP) and type(at) is int and 0 <= at <= limits.POSITION_MAX:
            return Start(kind, at)
    raise Invalid(
        f'start {str(asked)[:80]!r} is unknown; use "Earliest", "Latest", {{"Offset": n}} or {{"Timestamp": ms}}',
        code="INVALID_START",
    )


def _acks(asked: ConsumeBody, group: str, partition: int | None) -> tuple[Ack, ...]:
    """What is acknowledged along with a consume."""
    settled = asked.ack
    if settled is None:
        return ()
    where = partition if settled.partition_id is None else settled.partition_id
    if where is None:
        raise Invalid('ack needs a partition_id where "any" partition is asked for; send that of the messages')
    return (Ack(asked.topic, group, settled.upto_offset, where, asked.consumer_id or "", settled.lease_id),)


def _partition(asked: int | str | None) -> int | None:
    if isinstance(asked, int):
        return asked
    if asked is None:
        return 0
    if asked.lower() == ANY:
        return None
    raise Invalid(f'partition_id {asked[:80]!r} is unknown; use a number, or "any"', code="NO_SUCH_PARTITION")


def _visibility_ms(asked: float | None) -> int:
    if asked is None:
        return VISIBILITY_MS
    return _milliseconds("visibility_timeout_seconds", asked, limits.VISIBILITY_MS_MIN)


def _milliseconds(name: str, seconds: float, least_ms: int) -> int:
    if not least_ms <= seconds * 1000 <= limits.VISIBILITY_MS_MAX:
        raise Invalid(
            f"{name} {seconds:g} is not from {least_ms / 1000:g} to {limits.VISIBILITY_MS_MAX // 1000} seconds",
            code="INVALID_TIMEOUT",
        )
    return round(seconds * 1000)


def _outgoing(message: MessageBody, index: int) -> Outgoing:
    payload, value = message.payload, message.value
    if isinstance(value, Raw):
        if payload is not None:
            raise Invalid(f"messages[{index}] has both payload (base64) and value (JSON); send one of them")
        payload = bytes(value)
    elif payload is None:
        raise Invalid(f"messages[{index}] has neither payload (base64) nor value (JSON); send one of them")
    return Outgoing(payload, None if message.key is None else message.key.encode(), message.partition_id)


def _check_text(body: bytes) -> None:
    """What is kept as it came must be UTF-8; the decoder looks only at what it decodes."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise Invalid(f"the body is not UTF-8: {error}") from None


def _addressed(request: Request) -> tuple[bytes | None, int | None]:
    """The key and the partition that a message comes with, in fields or in the query string."""
    fields = request.headers
    seen: dict[str, str] = {}
    try:
        pairs = parse_qsl(request.query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=64)
    except ValueError as error:
        raise Invalid(f"the query string is malformed: {error}") from None
    for name in ("key", "partition"):
        if (value := fields.get(f"topic-{name}".encode())) is not None:
            try:
                pairs.append((name, value.decode()))
            except UnicodeDecodeError:
                raise Invalid(f"Topic-{name.title()} is not UTF-8") from None
    for name, text in pairs:
        if name not in ("key", "partition"):
            raise Invalid(f"parameter {name[:80]!r} is unknown here; there are key and partition")
        if name in seen:
            raise Invalid(f"{name} is given more than once; give it once, as a field or in the query")
        seen[name] = text
    number = seen.get("partition")
    if number is not None and not (number.isascii() and number.isdigit() and len(number) <= 9):
        raise Invalid(f"partition {number[:80]!r} is not a number from 0 on", code="NO_SUCH_PARTITION")
    key = seen.get("key")
    return None if key is None else key.encode(), None if number is None else int(number)


def _refused(request: Request, allow: str) -> NotAllowed:
    path, method = request.path.decode("latin-1")[:200], request.method.decode("latin-1")
    return NotAllowed(f"{path} does not take {method}; it takes {allow}", allow=allow)


# -- to answers


async def _consumed(delivery: Delivery) -> bytes:
    """The answer with these messages. The encoder is not interrupted, so many are encoded in slices."""
    topic, lease, found = str(delivery.topic.id), delivery.lease, delivery.messages
    messages: list[WireMessage] | Raw
    if len(found) <= SLICE_MESSAGES:
        messages = wire_messages(topic, found, lease)
    else:
        slices = []
        for at in range(0, len(found), SLICE_MESSAGES):
            slices.append(_encode(wire_messages(topic, found[at : at + SLICE_MESSAGES], lease))[1:-1])
            await asyncio.sleep(0)
        messages = Raw(b"[%b]" % b",".join(slices))
    return _encode(
        Consumed(messages, delivery.next_offset, delivery.has_more, delivery.skipped, lease, delivery.partition)
    )


def _answer(value: Any) -> Response:
    return Response(200, _JSON, _encode(value))


def _topic(topic: Topic, dead_letter: str | None) -> dict[str, Any]:
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


def _partition_info(info: PartitionInfo) -> dict[str, Any]:
    return {
        "partition_id": info.partition,
        "start_offset": info.start,
        "next_offset": info.next,
        "messages": info.next - info.start,
        "bytes": info.bytes,
    }


def _group(info: GroupInfo) -> dict[str, Any]:
    return {
        "group_id": info.group,
        "partition_id": info.partition,
        "last_acked_offset": info.floor - 1,
        "next_offset": info.cursor,
        "lag": info.lag,
        "in_flight": info.in_flight,
        "pending": info.pending,
        "delivered": info.delivered,
        "redelivered": info.redelivered,
        "lost": info.lost,
        "consumers": info.consumers,
        "created_at": rfc3339(info.created_ms),
        "updated_at": rfc3339(info.updated_ms),
    }


def _route(info: RouteInfo) -> dict[str, Any]:
    route = info.route
    return {
        "table": info.table,
        "op": ("Insert", "Update", "Delete")[route.event],
        "payload_mode": MODES[route.mode],
        "filter": route.filter,
        "partition_by": route.partition_by,
    }
