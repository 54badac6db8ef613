"""A producer that publishes each message once, also when answers get lost on the way.

It numbers its requests within an epoch, and sends one again under its number until there is an answer; the source knows
a number that it has seen. A producer that starts anew takes a higher epoch, so that what its predecessor may still have
under way is refused. Epochs are milliseconds since 1970: they rise from run to run without anything to remember.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterable
from typing import Protocol

from tailrace.embedded.leases import BackOff, logger
from tailrace.embedded.messages import Payload, Published, outgoings
from tailrace.errors import SequenceGap, StaleEpoch, TooMany, Unavailable
from tailrace.streams.producer import Claim
from tailrace.topics.commands import Outgoing


class Sink(Protocol):
    """Where messages go: `Database` and `Client` are such."""

    def publish_many(
        self,
        topic: str,
        payloads: Iterable[Payload | Outgoing],
        *,
        key: str | bytes | None = None,
        partition: int | None = None,
        claim: Claim | None = None,
    ) -> Published: ...


class Producer:
    """Publishes to a topic, each request once. Thread-safe; requests are sent one after the other.

    Give an `id` that stays the same from run to run, and a new run ends what the one before it has under way: it gets
    `StaleEpoch`. Without one, each producer is one of its own.
    """

    def __init__(self, sink: Sink, topic: str, *, id: str | None = None, retry_s: float = 30.0) -> None:  # noqa: A002
        self.id = id or f"producer-{secrets.token_hex(8)}"
        self.topic = topic
        self._sink = sink
        self._retry_s = retry_s
        self._epoch = time.time_ns() // 1_000_000
        self._sequence = 0  # of the next request
        self._accepted = False  # whether this run was ever heard
        self._sending = threading.Lock()

    def publish(self, payload: Payload, *, key: str | bytes | None = None, partition: int | None = None) -> Published:
        """Add a message, or a list of them: all or none, and once."""
        return self.publish_many(payload if isinstance(payload, list) else [payload], key=key, partition=partition)

    def publish_many(
        self, payloads: Iterable[Payload | Outgoing], *, key: str | bytes | None = None, partition: int | None = None
    ) -> Published:
        """Add messages: all or none, and once. While the source is away this tries again for `retry_s`; then it raises
        `Unavailable`, and whether they were added is not known."""
        made = outgoings(payloads, key, partition)
        with self._sending:
            try:
                done = self._sent(made)
            except (Unavailable, TooMany):
                self._renew(self._epoch)  # the number may be used up or not: never give it to other messages
                raise
            self._sequence += 1
            self._accepted = True
            return done

    def _sent(self, made: tuple[Outgoing, ...]) -> Published:
        pause = BackOff()
        deadline_s = time.monotonic() + self._retry_s
        lost = False  # an answer, so that a repetition is known to be ours
        while True:
            try:
                done = self._sink.publish_many(self.topic, made, claim=Claim(self.id, self._epoch, self._sequence))
                if done.duplicate and not lost:
                    self._renew(self._epoch)  # somebody else has this epoch; what we send was never seen
                    continue
                return done
            except StaleEpoch as error:
                # Before we were ever heard it means a clock that was ahead; afterwards, that another run took over.
                if self._accepted:
                    raise
                self._renew(error.current)
            except SequenceGap:
                if self._sequence == 0:
                    raise
                self._renew(self._epoch)  # the topic was dropped and made anew: nothing of ours is known there
            except (Unavailable, TooMany) as error:
                pause_s = pause.next_s()
                if error.code == "CLOSED" or time.monotonic() + pause_s > deadline_s:
                    raise
                lost = True
                logger.warning("nothing can be published, trying again in %.1f s: %s", pause_s, error)
                time.sleep(pause_s)

    def _renew(self, epoch: int) -> None:
        """Begin anew in an epoch above this one."""
        self._epoch, self._sequence = max(epoch + 1, time.time_ns() // 1_000_000), 0
