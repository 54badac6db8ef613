"""A producer that publishes each message once, even if responses are lost on the way.

It numbers its requests within an epoch, and repeats a request under its number until there is a response; the source
recognizes a number that it has seen. A producer that is started again takes a higher epoch, so that requests of its
predecessor that are still under way are refused. Epochs are milliseconds since 1970: they rise from run to run without
any state to keep.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from typing import Protocol

from tailrace.embedded.async_primitives import AsyncLock, sleep
from tailrace.embedded.handlers import BackOff, logger
from tailrace.embedded.messages import Payload, Published, outgoings
from tailrace.embedded.requests import PublishRequest
from tailrace.errors import SequenceGap, StaleEpoch, TooMany, Unavailable
from tailrace.streams.producer import ProducerClaim
from tailrace.topics.commands import Outgoing


class AsyncSink(Protocol):
    """Takes messages: a database, or a client of a server."""

    async def send_publish(self, request: PublishRequest) -> Published: ...


class AsyncProducer:
    """Publishes to a topic, each request once, for programs on an event loop. It can be shared; requests are sent one
    after the other.

    With an `id` that stays the same from run to run, a new run fences the one before it, whose requests then fail with
    `StaleEpoch`. Without an `id` each producer is independent.
    """

    def __init__(self, sink: AsyncSink, topic: str, *, id: str | None = None, retry_s: float = 30.0) -> None:  # noqa: A002
        self.id = id or f"producer-{secrets.token_hex(8)}"
        self.topic = topic
        self._sink = sink
        self._retry_s = retry_s
        self._epoch = time.time_ns() // 1_000_000
        self._sequence = 0  # of the next request
        self._accepted = False  # whether a request of this run was ever accepted
        self._sending = AsyncLock()

    async def publish(
        self, payload: Payload, *, key: str | bytes | None = None, partition: int | None = None
    ) -> Published:
        """Add a message, or a list of them: all or none, and once."""
        return await self.publish_many(
            payload if isinstance(payload, list) else [payload], key=key, partition=partition
        )

    async def publish_many(
        self, payloads: Iterable[Payload | Outgoing], *, key: str | bytes | None = None, partition: int | None = None
    ) -> Published:
        """Add messages: all or none, and once. While the source is unavailable, this is repeated for `retry_s`; then it
        raises `Unavailable`, and it is unknown whether they were added."""
        made = outgoings(payloads, key, partition)
        async with self._sending:
            try:
                done = await self._send(made)
            except StaleEpoch:
                raise  # fenced: a higher epoch would fence the run that took over
            except BaseException:
                self._renew(self._epoch)  # the number may be used up or not: never give it to other messages
                raise
            self._sequence += 1
            self._accepted = True
            return done

    async def _send(self, made: tuple[Outgoing, ...]) -> Published:
        pause = BackOff()
        deadline_s = time.monotonic() + self._retry_s
        lost = False  # a response: then a duplicate is known to be ours
        while True:
            try:
                claim = ProducerClaim(self.id, self._epoch, self._sequence)
                done = await self._sink.send_publish(PublishRequest(self.topic, made, claim))
                if done.duplicate and not lost:
                    self._renew(self._epoch)  # another producer has this epoch; our request was never seen
                    continue
                return done
            except StaleEpoch as error:
                # Before the first accepted request the clock was ahead; afterwards, another run took over.
                if self._accepted:
                    raise
                self._renew(error.current)
            except SequenceGap:
                if self._sequence == 0:
                    raise
                self._renew(self._epoch)  # the topic was recreated: it knows no request of ours
            except (Unavailable, TooMany) as error:
                pause_s = pause.next_s()
                if error.code == "CLOSED" or time.monotonic() + pause_s > deadline_s:
                    raise
                lost = True
                logger.warning("publishing failed, trying again in %.1f s: %s", pause_s, error)
                await sleep(pause_s)

    def _renew(self, epoch: int) -> None:
        """Start again in an epoch above this one."""
        self._epoch, self._sequence = epoch + 1, 0
