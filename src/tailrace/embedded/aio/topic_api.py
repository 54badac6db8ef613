"""Topics of a database and of a server: one surface, one set of parameters.

Each method builds a request and sends it; where it goes is for the subclass to say (`send_publish`, `send_consume`,
`send_ack`, `send_extend`, `send_nack`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Unpack, overload

from tailrace.embedded import messages
from tailrace.embedded.aio.consumer import AsyncConsumer
from tailrace.embedded.aio.leases import AsyncWaiting
from tailrace.embedded.aio.producer import AsyncProducer
from tailrace.embedded.handlers import ConsumerOptions
from tailrace.embedded.heartbeat import HeartbeatSource
from tailrace.embedded.messages import Delivery, Partition, Payload, Published, PublishedMessage, Start
from tailrace.embedded.requests import AckRequest, ConsumeRequest, ExtendRequest, NackRequest, PublishRequest
from tailrace.streams.producer import ProducerClaim
from tailrace.topics.commands import Outgoing


class AsyncTopicApi:
    """Publishing to topics and consuming from them, for programs on an event loop."""

    # -- publishing

    @overload
    async def publish(
        self, topic: str, payload: list[Payload], *, key: str | bytes | None = None, partition: int | None = None
    ) -> list[PublishedMessage]: ...

    @overload
    async def publish(
        self, topic: str, payload: Payload, *, key: str | bytes | None = None, partition: int | None = None
    ) -> PublishedMessage: ...

    async def publish(
        self, topic: str, payload: Payload, *, key: str | bytes | None = None, partition: int | None = None
    ) -> PublishedMessage | list[PublishedMessage]:
        """Add a message to a topic, or a list of them: all or none. Returns the partition and offset of each.

        A payload is bytes, text, or a value that becomes JSON. Messages with the same key go to the same partition,
        where their order is kept; without a key and a partition they go to partition 0.

        >>> published = await db.aio.publish("app.jobs", {"job": 1}, key="user-7")
        >>> published.offset
        0
        """
        several = isinstance(payload, list)
        made = messages.outgoings(payload if several else [payload], key, partition)
        published = await self.send_publish(PublishRequest(topic, made))
        return published.messages if several else published.messages[0]

    async def publish_many(
        self,
        topic: str,
        payloads: Iterable[Payload | Outgoing],
        *,
        key: str | bytes | None = None,
        partition: int | None = None,
        claim: ProducerClaim | None = None,
    ) -> Published:
        """Add messages to a topic: all or none. An `Outgoing` has its own key or partition; with the `claim` of a
        producer the messages are added once, however often they are sent (see `AsyncProducer`)."""
        return await self.send_publish(PublishRequest(topic, messages.outgoings(payloads, key, partition), claim))

    def producer(self, topic: str, *, id: str | None = None, retry_s: float = 30.0) -> AsyncProducer:  # noqa: A002
        """An `AsyncProducer` for a topic: each message is added once, even if responses are lost."""
        return AsyncProducer(self, topic, id=id, retry_s=retry_s)

    # -- consuming

    async def consume(
        self,
        topic: str,
        group: str | None,
        *,
        limit: int = 100,
        consumer: str = "",
        start: Start = "earliest",
        partition: Partition = 0,
        visibility_s: float = 60.0,
        timeout_s: float = 0.0,
    ) -> Delivery:
        """Messages for a consumer of a group, leased to it for `visibility_s`; if there are none yet, those that
        arrive within `timeout_s`.

        `start` applies to the first consume of a group: "earliest", "latest", an offset, or a `datetime`. `partition`
        "any" is one that has messages. Without a group (None) nothing is leased, and `start` applies each time. If the
        call is cancelled, messages that were leased meanwhile are given back.

        >>> got = await db.aio.consume("app.jobs", "workers", partition="any", consumer="worker-1")
        >>> [message.json() for message in got]
        [{'job': 1}]
        """
        return await self.send_consume(
            ConsumeRequest(topic, group, limit, consumer, start, partition, visibility_s, timeout_s)
        )

    async def ack(
        self,
        topic: str,
        group: str,
        upto: int | None = None,
        *,
        offsets: Sequence[int] | None = None,
        partition: int = 0,
        consumer: str = "",
        lease: str | None = None,
    ) -> int:
        """Acknowledge the messages that a consumer holds, up to and including an offset, or those at `offsets` alone;
        of one lease if it is given. Returns the offset up to which the group has acknowledged all messages; -1 is none
        yet.

        >>> upto = got.messages[-1].offset
        >>> await db.aio.ack("app.jobs", "workers", upto, partition=got.partition, consumer="worker-1")
        0
        """
        single = messages.acked_offsets(upto, offsets)
        return await self.send_ack(
            AckRequest(
                topic=topic, group=group, partition=partition, consumer=consumer, lease=lease,
                upto=max(single) if upto is None else upto, offsets=single,
            )
        )  # fmt: skip

    async def extend(
        self,
        topic: str,
        group: str,
        *,
        partition: int = 0,
        consumer: str = "",
        lease: str | None = None,
        visibility_s: float = 60.0,
    ) -> int:
        """Extend the lease of the messages that a consumer holds, to `visibility_s` from now on. Returns their number.
        `Conflict` with the code LEASE_LOST means that it holds none any more."""
        return await self.send_extend(
            ExtendRequest(
                topic=topic, group=group, partition=partition, consumer=consumer, lease=lease, visibility_s=visibility_s
            )
        )

    async def nack(
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
        """Give back the messages that a consumer holds, or those from `first` to `upto`, to be delivered again after a
        delay. Returns their number."""
        return await self.send_nack(
            NackRequest(
                topic=topic, group=group, partition=partition, consumer=consumer, lease=lease, first=first, upto=upto,
                delay_s=delay_s,
            )
        )  # fmt: skip

    def consumer(self, topic: str, group: str, **options: Unpack[ConsumerOptions]) -> AsyncConsumer:
        """An `AsyncConsumer`: a loop over messages that acknowledges each when its work is done."""
        return AsyncConsumer(self, topic, group, **options)

    # -- requests

    async def send_publish(self, request: PublishRequest) -> Published:
        """Publish messages."""
        raise NotImplementedError

    async def send_consume(self, request: ConsumeRequest) -> Delivery:
        """Consume messages."""
        raise NotImplementedError

    async def send_ack(self, request: AckRequest) -> int:
        """Acknowledge messages."""
        raise NotImplementedError

    async def send_extend(self, request: ExtendRequest) -> int:
        """Extend a lease."""
        raise NotImplementedError

    async def send_nack(self, request: NackRequest) -> int:
        """Give messages back."""
        raise NotImplementedError

    def heartbeat_source(self) -> AbstractContextManager[HeartbeatSource]:
        """The same source for the heartbeat of a consumer, which is a thread and leaves the context when it ends."""
        raise NotImplementedError

    def waiter(self) -> AsyncWaiting:
        """A connection for one consumer, whose wait another thread can end."""
        raise NotImplementedError
