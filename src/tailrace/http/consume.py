"""Consuming a topic as a group: messages are delivered, acknowledged, kept for longer and given back.

`consumers.py` says how consumers wait for messages.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw

from tailrace import limits
from tailrace.access import SYSTEM, Principal
from tailrace.errors import Invalid, NotFound
from tailrace.http.codec import JSON_FIELDS, Position, json_body, json_response, msgpack_body, prefers, sends_msgpack
from tailrace.http.consumers import give_back
from tailrace.http.message import Headers, Request, Response
from tailrace.http.partitions import WireMessage, wire_messages
from tailrace.http.route import MSGPACK_TYPES
from tailrace.log import segments
from tailrace.metrics import Metrics
from tailrace.topics.consuming import Ack, Acked, Consume, ConsumedMessages, Extend, Extended, Nack, Nacked
from tailrace.topics.group import EARLIEST, LATEST, OFFSET, TIMESTAMP, StartPoint
from tailrace.topics.queries import FindTopic, ReadTopic
from tailrace.topics.topic import DeliveredRange

if TYPE_CHECKING:
    from tailrace.http.services import Services

ANY: Final = "any"  # for a partition: whichever has something
WIDE: Final = 64  # partitions; more are looked at in a thread
SLICE_MESSAGES: Final = 500  # encoded between turns of the event loop

Seconds = Annotated[float, Meta(ge=0)]
Offsets = Annotated[tuple[Position, ...], Meta(min_length=1, max_length=limits.CONSUME_MESSAGES_MAX)]


# -- requests


class AckedBody(msgspec.Struct, forbid_unknown_fields=True):
    """Messages that a consumer acknowledges when it asks for more."""

    upto_offset: Position | None = None
    offsets: Offsets | None = None  # instead: these messages alone
    partition_id: Position | None = None  # without it, the one that is consumed
    lease_id: str | None = None


class ConsumeBody(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    group_id: str | None = None
    start: str | dict[str, Any] | None = None
    limit: int = 100
    partition_id: Position | str | None = 0
    timeout_seconds: Seconds | None = None
    consumer_id: str | None = None
    visibility_timeout_seconds: Seconds | None = None
    ack: AckedBody | None = None


class AckBody(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    group_id: str
    upto_offset: Position | None = None
    offsets: Offsets | None = None  # instead: these messages alone
    partition_id: Position = 0
    consumer_id: str | None = None
    lease_id: str | None = None


class ExtendBody(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    group_id: str
    partition_id: Position = 0
    consumer_id: str | None = None
    lease_id: str | None = None
    visibility_timeout_seconds: Seconds | None = None


class NackBody(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    group_id: str
    partition_id: Position = 0
    consumer_id: str | None = None
    lease_id: str | None = None
    offset: Position | None = None
    from_offset: Position | None = None
    upto_offset: Position | None = None
    delay_seconds: Seconds = 0


# -- responses


class ConsumeResponse(msgspec.Struct):
    messages: list[WireMessage] | Raw
    next_offset: int
    has_more: bool
    skipped: int
    lease_id: str | None
    partition_id: int


class AckResponse(msgspec.Struct):
    success: bool
    acknowledged_offset: int


class ExtendResponse(msgspec.Struct):
    success: bool
    lease_until: int
    messages: int


class NackResponse(msgspec.Struct):
    success: bool
    messages: int


_MSGPACK_FIELDS: Final[dict[bytes, Headers]] = {
    name: [(b"content-type", name), (b"cache-control", b"no-store")] for name in MSGPACK_TYPES
}
_json: Final = msgspec.json.Encoder().encode
_msgpack: Final = msgspec.msgpack.Encoder().encode
_consume: Final = msgspec.json.Decoder(ConsumeBody)
_consume_msgpack: Final = msgspec.msgpack.Decoder(ConsumeBody)
_ack: Final = msgspec.json.Decoder(AckBody)
_extend: Final = msgspec.json.Decoder(ExtendBody)
_nack: Final = msgspec.json.Decoder(NackBody)


# -- delivering


async def consume(services: Services, request: Request, principal: Principal) -> Response:
    """Messages, when there are some; none, at the time-out."""
    body = (
        msgpack_body(request, _consume_msgpack, limits.CONTROL_BODY_BYTES_MAX)
        if sends_msgpack(request)
        else json_body(request, _consume)
    )
    timeout_s = _timeout_s(request, body.timeout_seconds)
    start = _start(body.start)
    if not 1 <= body.limit <= limits.CONSUME_MESSAGES_MAX:
        raise Invalid(f"limit {body.limit} is not from 1 to {limits.CONSUME_MESSAGES_MAX}", code="INVALID_LIMIT")
    partition = _partition(body.partition_id)
    clock, consumers, metrics = services.db.clock, services.consumers, services.db.metrics
    began = clock.monotonic_s()
    caller = services.callers.of(request, principal)
    packed = _accepted(request)
    if body.group_id is None:
        if partition is None:
            raise Invalid('partition_id "any" needs a group_id: without a group, name the partition to read')
        if body.ack is not None:
            raise Invalid("ack needs a group_id: without a group there is nothing to acknowledge")
        query = ReadTopic(body.topic, partition, start, body.limit, limits.CONSUME_BYTES)
        delivery = await consumers.read(query, caller, timeout_s)
        encoded = await _encoded(delivery, packed is not None)
    else:
        command = Consume(
            body.topic, body.group_id, partition, start, body.limit, body.consumer_id or "",
            _visibility_ms(body.visibility_timeout_seconds), limits.CONSUME_BYTES, consumers.next_first(),
            _acks(body, body.group_id, partition), partition is None and await _is_wide(services, body.topic),
        )  # fmt: skip
        delivery = await consumers.claim(command, caller, timeout_s)
        try:
            encoded = await _encoded(delivery, packed is not None)
        except asyncio.CancelledError:
            give_back(services.db, command, principal, delivery)
            raise
    _observe(metrics, delivery.ranges, clock.monotonic_s() - began, clock.now_ms())
    metrics.acked += delivery.acked
    return Response(200, JSON_FIELDS if packed is None else packed, encoded)


async def _is_wide(services: Services, name: str) -> bool:
    """Whether a topic has so many partitions that looking at all of them takes long."""
    try:
        return (await services.db.aexecute(FindTopic(name), SYSTEM)).partitions > WIDE
    except NotFound:
        return False  # the command says so


def _accepted(request: Request) -> Headers | None:
    """The fields of a response in MessagePack, by the name that the client prefers for it; None: it prefers JSON."""
    accept = request.headers.get(b"accept")
    if accept is not None and b"msgpack" in accept.lower():
        for name, fields in _MSGPACK_FIELDS.items():
            if prefers(accept, name):
                return fields
    return None


async def _encoded(delivery: ConsumedMessages, packed: bool) -> bytes:
    """The response with these messages. The encoder is not interrupted, so many are encoded in slices."""
    topic, lease, encode = str(delivery.topic.id), delivery.lease, _msgpack if packed else _json
    messages: list[WireMessage] = []
    count, slices = delivery.count, []
    for each in delivery.ranges:
        for segment in each.segments:
            messages += wire_messages(topic, delivery.partition, segment, each.attempt, lease)
            if count > SLICE_MESSAGES and len(messages) >= SLICE_MESSAGES:
                slices.append(encode(messages))
                messages.clear()
                await asyncio.sleep(0)
    joined: list[WireMessage] | Raw = messages
    if slices:
        slices.append(encode(messages))
        joined = Raw(_msgpack_array(slices, count) if packed else _json_array(slices))
    return encode(
        ConsumeResponse(joined, delivery.next_offset, delivery.has_more, delivery.skipped, lease, delivery.partition)
    )


def _json_array(slices: list[bytes]) -> bytes:
    return b"[%b]" % b",".join([each[1:-1] for each in slices if len(each) > 2])


def _msgpack_array(slices: list[bytes], count: int) -> bytes:
    # An array of 15 at most has one byte before its elements; a longer one three, since a slice has no more than that.
    return b"\xdd%b%b" % (count.to_bytes(4), b"".join([each[1 if each[0] < 0xA0 else 3 :] for each in slices]))


def _observe(metrics: Metrics, ranges: list[DeliveredRange], took_s: float, now_ms: int) -> None:
    metrics.consume_seconds.observe(took_s)
    for each in ranges:
        metrics.consumed += each.count
        if each.attempt > 1:
            continue  # how long another consumer held it says nothing about the server
        for segment in each.segments:
            for at_ms, count in segments.times(segment):
                metrics.delivery_seconds.observe((now_ms - at_ms) / 1000, count)


# -- settling


def parse_ack(request: Request) -> Ack:
    body = json_body(request, _ack)
    return _acknowledging(body, body.topic, body.group_id, body.partition_id, body.consumer_id)


def _acknowledging(body: AckBody | AckedBody, topic: str, group: str, partition: int, consumer: str | None) -> Ack:
    upto, offsets = body.upto_offset, body.offsets
    if (upto is None) == (offsets is None):
        raise Invalid(
            "an acknowledgement has upto_offset, for the messages up to it, or offsets, for these alone; send one"
        )
    if upto is None:
        assert offsets is not None
        return Ack(topic, group, max(offsets), partition, consumer or "", body.lease_id, offsets)
    return Ack(topic, group, upto, partition, consumer or "", body.lease_id)


def render_acked(request: Request, done: Acked) -> Response:
    return Response(200, JSON_FIELDS, b'{"success":true,"acknowledged_offset":%d}' % (done.floor - 1))


def count_acked(metrics: Metrics, done: Acked) -> None:
    metrics.acked += done.acked


def parse_extend(request: Request) -> Extend:
    body = json_body(request, _extend)
    return Extend(
        body.topic, body.group_id, body.partition_id, body.consumer_id or "", body.lease_id,
        _visibility_ms(body.visibility_timeout_seconds),
    )  # fmt: skip


def render_extended(request: Request, done: Extended) -> Response:
    return json_response(ExtendResponse(True, done.until_ms, done.messages))


def parse_nack(request: Request) -> Nack:
    body = json_body(request, _nack)
    first, upto = body.from_offset, body.upto_offset
    if body.offset is not None:
        if first is not None or upto is not None:
            raise Invalid("offset names one message, from_offset and upto_offset a range; send one or the other")
        first = upto = body.offset
    return Nack(
        body.topic, body.group_id, body.partition_id, body.consumer_id or "", body.lease_id, first, upto,
        _milliseconds("delay_seconds", body.delay_seconds, 0),
    )  # fmt: skip


def render_nacked(request: Request, done: Nacked) -> Response:
    return json_response(NackResponse(True, done.messages))


# -- values


def _timeout_s(request: Request, seconds: float | None) -> float:
    most = request.config.topics.max_consume_timeout
    name = "timeout_seconds"
    if seconds is None:
        seconds = _preferred_s(request)
        if seconds is None:
            return request.config.topics.default_consume_timeout
        name = "Prefer: wait"
    if not seconds <= most:
        raise Invalid(
            f"{name} {seconds:g} is too long; a request waits {most:g} s at most (max_consume_timeout), then "
            "consume again",
            code="INVALID_TIMEOUT",
        )
    return seconds


def _preferred_s(request: Request) -> float | None:
    """The time to wait by the field Prefer (RFC 7240), as in `Prefer: wait=10`; other preferences are ignored."""
    field = request.headers.get(b"prefer")
    if field is None:
        return None
    for each in field.split(b","):
        name, _, given = each.partition(b";")[0].partition(b"=")
        if name.strip().lower() != b"wait":
            continue
        text = given.strip().strip(b'"')
        if not (text.isdigit() and len(text) <= 9):
            raise Invalid(
                f"Prefer: wait={text[:40].decode('latin-1')!r} is not a number of seconds; write as in Prefer: wait=10",
                code="INVALID_TIMEOUT",
            )
        return float(text)
    return None


def _start(value: str | dict[str, Any] | None) -> StartPoint:
    """Where a group begins; with capitals or without."""
    if value is None:
        return StartPoint(EARLIEST)
    if isinstance(value, str):
        kind = value.lower()
        if kind in (EARLIEST, LATEST):
            return StartPoint(kind)
    elif len(value) == 1:
        ((name, at),) = value.items()
        kind = name.lower()
        if kind in (OFFSET, TIMESTAMP) and type(at) is int and 0 <= at <= limits.POSITION_MAX:
            return StartPoint(kind, at)
    raise Invalid(
        f'start {str(value)[:80]!r} is unknown; use "Earliest", "Latest", {{"Offset": n}} or {{"Timestamp": ms}}',
        code="INVALID_START",
    )


def _acks(body: ConsumeBody, group: str, partition: int | None) -> tuple[Ack, ...]:
    """The acknowledgement that comes along with a consume."""
    acked = body.ack
    if acked is None:
        return ()
    where = partition if acked.partition_id is None else acked.partition_id
    if where is None:
        raise Invalid('ack needs a partition_id where partition_id is "any"; send that of the messages')
    return (_acknowledging(acked, body.topic, group, where, body.consumer_id),)


def _partition(value: int | str | None) -> int | None:
    if isinstance(value, int):
        return value
    if value is None:
        return 0
    if value.lower() == ANY:
        return None
    raise Invalid(f'partition_id {value[:80]!r} is unknown; use a number, or "any"', code="NO_SUCH_PARTITION")


def _visibility_ms(seconds: float | None) -> int:
    if seconds is None:
        return limits.VISIBILITY_MS
    return _milliseconds("visibility_timeout_seconds", seconds, limits.VISIBILITY_MS_MIN)


def _milliseconds(name: str, seconds: float, least_ms: int) -> int:
    if not least_ms <= seconds * 1000 <= limits.VISIBILITY_MS_MAX:
        raise Invalid(
            f"{name} {seconds:g} is not from {least_ms / 1000:g} to {limits.VISIBILITY_MS_MAX // 1000} seconds",
            code="INVALID_TIMEOUT",
        )
    return round(seconds * 1000)
