"""The state of a lease, and the heartbeat that extends leases while messages are worked on.

The heartbeat is a thread for every consumer: a handler that blocks an event loop does not lose its messages.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from queue import Empty
from typing import Any, Protocol

from tailrace.embedded.handlers import BACK_OFF_S_MIN, JOIN_S, logger
from tailrace.embedded.messages import Delivery, Message
from tailrace.embedded.primitives import Queue, Worker
from tailrace.embedded.requests import AckRequest, ConsumeRequest, ExtendRequest, NackRequest
from tailrace.errors import Conflict, Error, Invalid


class LeaseState:
    """A delivery that a consumer holds. `done` is the last offset that was worked off, `acked` the last that the source
    knows of; they are equal when no acknowledgement is owed. A `lost` lease belongs to another consumer now."""

    def __init__(self, request: ConsumeRequest, delivery: Delivery) -> None:
        self.messages: list[Message] = delivery.messages
        self.partition = delivery.partition
        self.id = delivery.lease
        self.done = self.acked = -1
        self.lost = False
        self.blocked = False  # a message could not be given back: nothing above it may be acknowledged
        self._finished: set[int] = set()  # offsets above `done`
        self._at = 0  # the first message above `done`, where messages are finished in any order
        self._users = 0
        self._changing = threading.Lock()
        self._visibility_s = request.visibility_s
        self._held: dict[str, Any] = {
            "topic": request.topic, "group": request.group, "partition": delivery.partition,
            "consumer": request.consumer, "lease": delivery.lease,
        }  # fmt: skip

    @property
    def settled(self) -> bool:
        """Whether nothing of it is held any more, as far as is known here."""
        return self.lost or self.acked == self.messages[-1].offset

    @property
    def owed(self) -> bool:
        """Whether an acknowledgement is owed."""
        return self.done != self.acked and not self.lost

    def hold(self) -> None:
        """One more works on it."""
        with self._changing:
            self._users += 1

    def release(self) -> bool:
        """One less works on it; whether that was the last."""
        with self._changing:
            self._users -= 1
            return self._users == 0

    def finish(self, offset: int) -> None:
        """Note that a message is worked off, or given back; in any order. `done` is where all up to it are."""
        with self._changing:
            self._finished.add(offset)
            while self._at < len(self.messages) and self.messages[self._at].offset in self._finished:
                self.done = self.messages[self._at].offset
                self._finished.discard(self.done)
                self._at += 1

    def gap(self) -> tuple[int, int] | None:
        """The first range of offsets that is not finished below a message that is."""
        return (self.messages[self._at].offset, min(self._finished) - 1) if self._finished else None

    def close_gap(self, upto: int) -> None:
        """Note that the messages up to an offset were given back."""
        for message in self.messages[self._at :]:
            if message.offset > upto:
                break
            self.finish(message.offset)

    # -- requests

    def ack_request(self, upto: int) -> AckRequest:
        return AckRequest(upto=upto, **self._held)

    def acknowledged(self, upto: int) -> None:
        """The source knows of it; another worker may have acknowledged more meanwhile."""
        self.acked = max(self.acked, upto)

    def extend_request(self) -> ExtendRequest:
        return ExtendRequest(visibility_s=self._visibility_s, **self._held)

    def nack_request(self, first: int, upto: int | None, delay_s: float) -> NackRequest:
        return NackRequest(first=first, upto=upto, delay_s=delay_s, **self._held)

    def lose(self, error: Error) -> None:
        """The lease was lost, if that is the error; any other one is raised."""
        # LEASE_LOST: others have it. NOT_DELIVERED: the group was reset or dropped meanwhile.
        if error.code not in ("LEASE_LOST", "NOT_DELIVERED"):
            raise error
        self.lost = True


class HeartbeatSource(Protocol):
    """A source of messages for a thread: a database, or a synchronous client."""

    def send_ack(self, request: AckRequest) -> int: ...
    def send_extend(self, request: ExtendRequest) -> int: ...


class Heartbeat:
    """A thread that extends the leases that are held, and sends acknowledgements that are owed."""

    def __init__(
        self, source: AbstractContextManager[HeartbeatSource], held: Mapping[Any, None], every_s: float
    ) -> None:
        self._source = source
        self._held: Mapping[LeaseState, None] = held
        self._every_s = every_s
        self._ack_at_s: float | None = None
        self._wakes: Queue[bool] = Queue()  # True: end
        self._worker = Worker(self._work, "tailrace-heartbeat")

    def ack_at(self, at_s: float) -> None:
        """Send acknowledgements at this time, or at the one that was set before."""
        if self._ack_at_s is None:
            self._ack_at_s = at_s
            self._wakes.put(False)

    def end(self) -> None:
        """Let the thread end."""
        self._wakes.put(True)

    def join(self) -> None:
        """Wait a little for its end."""
        self._worker.join(JOIN_S)

    def _work(self) -> None:
        with self._source as source:
            self._run(source)

    def _run(self, source: HeartbeatSource) -> None:
        beat_at_s = time.monotonic() + self._every_s
        while True:
            at_s = beat_at_s if self._ack_at_s is None else min(beat_at_s, self._ack_at_s)
            try:
                if self._wakes.get(max(0.0, at_s - time.monotonic())):
                    return
            except Empty:
                self._ack_at_s = None
                beating = time.monotonic() >= beat_at_s
                well = self._beat(source, beating)
                if beating or not well:
                    beat_at_s = time.monotonic() + (self._every_s if well else min(self._every_s, BACK_OFF_S_MIN))

    def _beat(self, source: HeartbeatSource, extending: bool) -> bool:
        """Whether all acknowledgements were taken and all leases extended."""
        well = True
        for lease in list(self._held):
            try:
                _settle(source, lease, extending)
            except Error as error:
                well = False
                logger.warning("the lease of partition %d could not be extended: %s", lease.partition, error)
        return well


def _settle(source: HeartbeatSource, lease: LeaseState, extending: bool) -> None:
    done = lease.done
    try:
        if done != lease.acked and not lease.lost:
            source.send_ack(lease.ack_request(done))
            lease.acknowledged(done)
        if extending and not lease.settled:
            source.send_extend(lease.extend_request())
    except (Conflict, Invalid) as error:
        lease.lose(error)
