"""Topics of a server: publish, consume, settle, and look."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from tailrace.client.async_connection import AsyncServerConnections, AsyncServerResponse
from tailrace.client.targets import MSGPACK, json_body, msgpack_body, topic_target
from tailrace.embedded import messages
from tailrace.embedded.aio.topic_api import AsyncTopicApi
from tailrace.embedded.messages import Delivery, Published, PublishedMessage, TopicInfo
from tailrace.embedded.pages import StreamPage
from tailrace.embedded.requests import (
    AckRequest,
    ConsumeRequest,
    ExtendRequest,
    LeaseRequest,
    NackRequest,
    PublishRequest,
)
from tailrace.errors import Invalid, Unavailable
from tailrace.streams.producer import ProducerClaim
from tailrace.topics.commands import Outgoing
from tailrace.topics.group import OFFSET, TIMESTAMP

T = TypeVar("T")
Decoder: TypeAlias = msgspec.json.Decoder[T] | msgspec.msgpack.Decoder[T]
JSON: Final = "application/json"
API: Final = "/v1/api/topics"
SLACK_S: Final = 30.0  # longer than a server waits, before it counts as gone
_published: Final[Mapping[str, Decoder[Published]]] = {JSON: msgspec.json.Decoder(Published)}
_delivery: Final[Mapping[str, Decoder[Delivery]]] = {
    JSON: msgspec.json.Decoder(Delivery),
    MSGPACK: msgspec.msgpack.Decoder(Delivery),
}


class AsyncTopics(AsyncTopicApi):
    """The part of the asynchronous client that is about topics."""

    async def _send(self, method: str, target: str, **options: Any) -> AsyncServerResponse:
        raise NotImplementedError

    def _connections(self, on_connect: Callable[[socket.socket], None] | None = None) -> AsyncServerConnections:
        raise NotImplementedError

    def _follow(self, target: str, offset: str, **parameters: str) -> AsyncIterator[StreamPage]:
        raise NotImplementedError

    async def topics(self) -> list[TopicInfo]:
        """All topics, by name."""
        response = await self._send("GET", "/v1/topics")
        return msgspec.convert(response.json()["topics"], list[TopicInfo])

    async def describe_topic(self, name: str) -> dict[str, Any]:
        """A topic with its partitions, groups and routes."""
        response = await self._send("GET", topic_target(name))
        description: dict[str, Any] = response.json()
        return description

    def follow_topic(self, topic: str, partition: int = 0, offset: str = "-1") -> AsyncIterator[StreamPage]:
        """Messages of a partition as they arrive, each page a JSON array, without a group; as `follow`."""
        return self._follow(f"{topic_target(topic)}/{partition}/stream", offset)

    # -- requests

    async def send_publish(self, request: PublishRequest) -> Published:
        """Publish messages."""
        if len(request.messages) == 1:
            return await self._publish_one(request.topic, request.messages[0], request.claim)
        body: dict[str, Any] = {"topic": request.topic, "messages": [_outgoing(each) for each in request.messages]}
        if (claim := request.claim) is not None:
            body["producer"] = {"id": claim.id, "epoch": claim.epoch, "sequence": claim.sequence}
        return _decoded(await self._send("POST", f"{API}/publish", **msgpack_body(body)), _published)

    async def _publish_one(self, topic: str, message: Outgoing, claim: ProducerClaim | None) -> Published:
        """A message as the body: no base64, and as large as messages may be."""
        headers = {"content-type": "application/octet-stream"}
        if claim is not None:
            headers |= {
                "producer-id": claim.id, "producer-epoch": str(claim.epoch), "producer-seq": str(claim.sequence),
            }  # fmt: skip
        parameters: dict[str, str] = {}
        if message.key is not None:
            parameters["key"] = _key(message.key)
        if message.partition is not None:
            parameters["partition"] = str(message.partition)
        target = topic_target(topic)
        response = await self._send("POST", target, headers=headers, params=parameters, content=message.payload)
        fields = response.headers
        if "topic-offset" not in fields:
            return Published([], True)
        return Published([PublishedMessage(int(fields["topic-partition"]), int(fields["topic-offset"]))])

    async def send_consume(self, request: ConsumeRequest) -> Delivery:
        """Consume messages."""
        return _decoded(await self._send("POST", f"{API}/consume", **_consume_options(request)), _delivery)

    async def send_ack(self, request: AckRequest) -> int:
        """Acknowledge messages."""
        which = {"offsets": request.offsets} if request.offsets else {"upto_offset": request.upto}
        return await self._settle("ack", _held(request) | which, "acknowledged_offset")

    async def send_extend(self, request: ExtendRequest) -> int:
        """Extend a lease."""
        body = _held(request) | {"visibility_timeout_seconds": request.visibility_s}
        return await self._settle("extend", body, "messages")

    async def send_nack(self, request: NackRequest) -> int:
        """Give messages back."""
        body = _held(request) | {"delay_seconds": request.delay_s}
        if request.first is not None:
            body["from_offset"] = request.first
        if request.upto is not None:
            body["upto_offset"] = request.upto
        return await self._settle("nack", body, "messages")

    async def _settle(self, operation: str, body: dict[str, Any], result: str) -> int:
        response = await self._send("POST", f"{API}/{operation}", **json_body(body))
        return int(response.json()[result])

    def waiter(self) -> AsyncServerWaiter:
        """A connection for one consumer, whose wait another thread can end."""
        return AsyncServerWaiter(self)


class AsyncServerWaiter:
    """Consumes from a server on a connection of its own; `interrupt` is for other threads, and for signal handlers.

    To interrupt is to close our half of the connection. For the server a waiting consumer that does so has left, and it
    leases no messages to it; a response that it has sent already still arrives."""

    def __init__(self, client: AsyncTopics) -> None:
        self._client = client
        self._connections = client._connections(self._connected)
        self._socket: socket.socket | None = None
        self._interrupted = False

    async def consume(self, request: ConsumeRequest) -> Delivery:
        """Messages, once there are some; `Unavailable` if the wait was interrupted."""
        options = _consume_options(request)
        if self._interrupted:
            raise Unavailable("this consumer was interrupted, and waits no more")
        response = await self._client._send("POST", f"{API}/consume", connections=self._connections, **options)
        return _decoded(response, _delivery)

    def _connected(self, connected: socket.socket) -> None:
        self._socket = connected
        if self._interrupted:
            self.interrupt()

    def interrupt(self) -> None:
        """End the wait, and those to come."""
        self._interrupted = True
        if self._socket is not None:
            with contextlib.suppress(OSError):  # it is closed already
                self._socket.shutdown(socket.SHUT_WR)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._connections.aclose()


def _consume_options(request: ConsumeRequest) -> dict[str, Any]:
    start = messages.start_at(request.start)
    named = {OFFSET: "Offset", TIMESTAMP: "Timestamp"}.get(start.kind)
    number = messages.partition_number(request.partition)
    body: dict[str, Any] = {
        "topic": request.topic,
        "start": start.kind.title() if named is None else {named: start.at},
        "limit": request.limit,
        "partition_id": messages.ANY if number is None else number,
        "timeout_seconds": request.timeout_s,
    }
    if request.group is not None:
        body |= {
            "group_id": request.group,
            "consumer_id": request.consumer,
            "visibility_timeout_seconds": request.visibility_s,
        }
    return {**msgpack_body(body), "timeout_s": request.timeout_s + SLACK_S}


def _held(request: LeaseRequest) -> dict[str, Any]:
    body: dict[str, Any] = {
        "topic": request.topic,
        "group_id": request.group,
        "partition_id": request.partition,
        "consumer_id": request.consumer,
    }
    return body if request.lease is None else {**body, "lease_id": request.lease}


def _outgoing(message: Outgoing) -> dict[str, Any]:
    body: dict[str, Any] = {"payload": message.payload}
    if message.key is not None:
        body["key"] = _key(message.key)
    if message.partition is not None:
        body["partition_id"] = message.partition
    return body


def _key(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise Invalid(f"the key {key!r} cannot be sent to the server: it is not UTF-8") from None


def _decoded(response: AsyncServerResponse, decoders: Mapping[str, Decoder[T]]) -> T:
    decoder = decoders.get(response.headers.get("content-type", ""))
    try:
        if decoder is not None:
            return decoder.decode(response.content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    raise Unavailable("the response is not about topics: is it a Tailrace server?")
