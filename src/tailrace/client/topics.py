"""What the client does with topics: publish, consume, settle, and look."""

from __future__ import annotations

import contextlib
import socket
from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar, overload
from urllib.parse import quote

import httpx
import msgspec

from tailrace.client.page import Page, followed
from tailrace.embedded import messages as plain
from tailrace.embedded.consumer import Consumer
from tailrace.embedded.messages import Begin, Delivery, Partition, Payload, Place, Published, TopicInfo
from tailrace.errors import Invalid, Unavailable
from tailrace.streams.producer import Claim
from tailrace.topics.commands import Outgoing
from tailrace.topics.group import OFFSET, TIMESTAMP

T = TypeVar("T")
API: Final = "/v1/api/topics"
SLACK_S: Final = 30.0  # longer than a server waits, before it counts as gone
_published: Final = msgspec.json.Decoder(Published)
_delivery: Final = msgspec.json.Decoder(Delivery)


class Topics:
    """The part of `Client` that is about topics."""

    def _send(self, method: str, target: str, **options: Any) -> httpx.Response:
        raise NotImplementedError

    def _connection(self, **options: Any) -> httpx.Client:
        raise NotImplementedError

    def _page(self, target: str, offset: str, wait: bool) -> Page:
        raise NotImplementedError

    def topics(self) -> list[TopicInfo]:
        """All topics, by name."""
        found = self._send("GET", "/v1/topics").json()["topics"]
        return msgspec.convert(found, list[TopicInfo])

    def describe_topic(self, name: str) -> dict[str, Any]:
        """A topic with its partitions, groups and routes."""
        found: dict[str, Any] = self._send("GET", _topic(name)).json()
        return found

    def follow_topic(self, topic: str, partition: int = 0, offset: str = "-1") -> Iterator[Page]:
        """Messages of a partition as they come, each page a JSON array, without a group; as `follow`."""
        target = f"{_topic(topic)}/{partition}/stream"
        return followed(lambda offset, wait: self._page(target, offset, wait), offset)

    # -- publishing

    @overload
    def publish(
        self, topic: str, payload: list[Payload], *, key: str | bytes | None = None, partition: int | None = None
    ) -> list[Place]: ...

    @overload
    def publish(
        self, topic: str, payload: Payload, *, key: str | bytes | None = None, partition: int | None = None
    ) -> Place: ...

    def publish(
        self, topic: str, payload: Payload, *, key: str | bytes | None = None, partition: int | None = None
    ) -> Place | list[Place]:
        """Add a message to a topic, or a list of them: all or none. Where they are. As `Database.publish`."""
        if isinstance(payload, list):
            return self.publish_many(topic, payload, key=key, partition=partition).places
        return self._publish_one(topic, plain.outgoing(payload, key, partition), None).places[0]

    def publish_many(
        self,
        topic: str,
        payloads: Iterable[Payload | Outgoing],
        *,
        key: str | bytes | None = None,
        partition: int | None = None,
        claim: Claim | None = None,
    ) -> Published:
        """Add messages to a topic: all or none; with a `claim`, once (see `Producer`)."""
        made = plain.outgoings(payloads, key, partition)
        if len(made) == 1:
            return self._publish_one(topic, made[0], claim)
        body: dict[str, Any] = {"topic": topic, "messages": [_told(message) for message in made]}
        if claim is not None:
            body["producer"] = {"id": claim.id, "epoch": claim.epoch, "sequence": claim.sequence}
        return _decoded(self._send("POST", f"{API}/publish", **_json(body)), _published)

    def _publish_one(self, topic: str, message: Outgoing, claim: Claim | None) -> Published:
        """A message as the body: no base64, and as large as messages may be."""
        headers = {"content-type": "application/octet-stream"}
        if claim is not None:
            headers |= {
                "producer-id": claim.id, "producer-epoch": str(claim.epoch), "producer-seq": str(claim.sequence),
            }  # fmt: skip
        asked: dict[str, str] = {}
        if message.key is not None:
            asked["key"] = _key(message.key)
        if message.partition is not None:
            asked["partition"] = str(message.partition)
        answer = self._send("POST", _topic(topic), headers=headers, params=asked, content=message.payload)
        fields = answer.headers
        if "topic-offset" not in fields:
            return Published([], True)
        return Published([Place(int(fields["topic-partition"]), int(fields["topic-offset"]))])

    # -- consuming

    def consume(
        self,
        topic: str,
        group: str | None,
        *,
        limit: int = 100,
        consumer: str = "",
        start: Begin = "earliest",
        partition: Partition = 0,
        visibility_s: float = 60.0,
        timeout_s: float = 0.0,
    ) -> Delivery:
        """Messages for a consumer of a group, leased to it for `visibility_s`; if there are none yet, those that come
        within `timeout_s`. As `Database.consume`."""
        options = _question(topic, group, limit, consumer, start, partition, visibility_s, timeout_s)
        return _decoded(self._send("POST", f"{API}/consume", **options), _delivery)

    def ack(
        self, topic: str, group: str, upto: int, *, partition: int = 0, consumer: str = "", lease: str | None = None
    ) -> int:
        """Acknowledge what a consumer holds, up to and including an offset; the offset up to which the group has
        acknowledged all."""
        body = {**_who(topic, group, partition, consumer, lease), "upto_offset": upto}
        return int(self._send("POST", f"{API}/ack", **_json(body)).json()["acknowledged_offset"])

    def extend(
        self,
        topic: str,
        group: str,
        *,
        partition: int = 0,
        consumer: str = "",
        lease: str | None = None,
        visibility_s: float = 60.0,
    ) -> int:
        """Let a consumer keep what it holds for `visibility_s` from now on; how many messages that is."""
        body = {**_who(topic, group, partition, consumer, lease), "visibility_timeout_seconds": visibility_s}
        return int(self._send("POST", f"{API}/extend", **_json(body)).json()["messages"])

    def nack(
        self,
        topic: str,
        group: str,
        *,
        partition: int = 0,
        consumer: str = "",
        lease: str | None = None,
        first: int | None = None,
        upto: int | None = None,
        delay_s: float = 0.0,
    ) -> int:
        """Give back what a consumer holds, or what of it lies from `first` to `upto`, to be delivered again after a
        delay; how many messages that is."""
        body = {**_who(topic, group, partition, consumer, lease), "delay_seconds": delay_s}
        if first is not None:
            body["from_offset"] = first
        if upto is not None:
            body["upto_offset"] = upto
        return int(self._send("POST", f"{API}/nack", **_json(body)).json()["messages"])

    def consumer(self, topic: str, group: str, **options: Any) -> Consumer:
        """A `Consumer` of this server: a loop over messages that acknowledges what was worked off."""
        return Consumer(self, topic, group, **options)

    def waiter(self) -> Waiter:
        """Someone to consume, on a connection of its own, whose waiting another thread can end."""
        return Waiter(self)


class Waiter:
    """Consumes from a server, for one thread; `interrupt` is for the others, and for signal handlers.

    To interrupt is to close our half of the connection. The server takes a waiting consumer that does so to have left,
    and leases nothing to it; what it had answered already still arrives."""

    def __init__(self, client: Topics) -> None:
        self._client = client
        self._http = client._connection(limits=httpx.Limits(max_connections=1))
        self._socket: socket.socket | None = None
        self._interrupted = False

    def consume(
        self,
        topic: str,
        group: str,
        *,
        limit: int,
        consumer: str,
        start: Begin,
        partition: Partition,
        visibility_s: float,
        timeout_s: float,
    ) -> Delivery:
        """As `Client.consume`; `Unavailable` when it was interrupted."""
        options = _question(topic, group, limit, consumer, start, partition, visibility_s, timeout_s)
        if self._interrupted:
            raise Unavailable("this consumer was told to wait no more")
        options |= {"http": self._http, "extensions": {"trace": self._traced}}
        return _decoded(self._client._send("POST", f"{API}/consume", **options), _delivery)

    def _traced(self, event: str, facts: dict[str, Any]) -> None:
        """What the connection goes through; it is told of nowhere else which socket it has."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._socket = facts["return_value"].get_extra_info("socket")
            if self._interrupted:
                self.interrupt()

    def interrupt(self) -> None:
        """End the wait, and those to come."""
        self._interrupted = True
        if self._socket is not None:
            with contextlib.suppress(OSError):  # it is closed already
                self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._http.close()


def _question(
    topic: str, group: str | None, limit: int, consumer: str, start: Begin, partition: Partition, visibility_s: float,
    timeout_s: float,
) -> dict[str, Any]:  # fmt: skip
    begin = plain.start_at(start)
    named = {OFFSET: "Offset", TIMESTAMP: "Timestamp"}.get(begin.kind)
    number = plain.partition_number(partition)
    body: dict[str, Any] = {
        "topic": topic,
        "start": begin.kind.title() if named is None else {named: begin.at},
        "limit": limit,
        "partition_id": plain.ANY if number is None else number,
        "timeout_seconds": timeout_s,
    }
    if group is not None:
        body |= {"group_id": group, "consumer_id": consumer, "visibility_timeout_seconds": visibility_s}
    return {**_json(body), "timeout": httpx.Timeout(timeout_s + SLACK_S, connect=5.0)}


def _who(topic: str, group: str, partition: int, consumer: str, lease: str | None) -> dict[str, Any]:
    told: dict[str, Any] = {"topic": topic, "group_id": group, "partition_id": partition, "consumer_id": consumer}
    if lease is not None:
        told["lease_id"] = lease
    return told


def _told(message: Outgoing) -> dict[str, Any]:
    told: dict[str, Any] = {"payload": b64encode(message.payload).decode()}
    if message.key is not None:
        told["key"] = _key(message.key)
    if message.partition is not None:
        told["partition_id"] = message.partition
    return told


def _key(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise Invalid(f"the key {key!r} cannot be sent to the server: it is not UTF-8") from None


def _json(body: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"headers": {"content-type": "application/json"}, "content": msgspec.json.encode(body)}
    except UnicodeEncodeError as error:
        raise Invalid(f"{error.object!r} cannot be sent to the server: {error.reason}") from None


def _decoded(answer: httpx.Response, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(answer.content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Unavailable(f"{answer.url} does not speak of topics: is it a Tailrace server?") from None


def _topic(name: str) -> str:
    try:
        return f"/v1/topics/{quote(name, safe='')}"
    except UnicodeEncodeError:
        raise Invalid(f"{name!r} cannot name a topic: it is not valid UTF-8") from None
