"""What a consumer holds, and the threads that fetch it and keep it.

A `Line` is a thread that consumes from one partition, or from any, and hands over one delivery at a time; it asks for
the next when it is told to. The `Heart` is a thread that extends what is held while it is worked on. Both talk to a
`Source`: a database of this process, or a server.

What signal handlers touch is a `SimpleQueue` or a plain attribute: neither can find itself locked by the very thread
that it interrupts.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final, Protocol

from tailrace.embedded.messages import Begin, Delivery, Message, Partition
from tailrace.errors import Conflict, Error, Invalid, TooMany, Unavailable

BACK_OFF_S_MIN: Final = 0.1
BACK_OFF_S_MAX: Final = 5.0
JOIN_S: Final = 1.0  # for a thread that was told to end; it holds nothing up, so nobody waits for it for long
logger = logging.getLogger("tailrace.consumer")


class Waiting(Protocol):
    """Consumes for one thread; another can interrupt it."""

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
    ) -> Delivery: ...
    def interrupt(self) -> None: ...
    def close(self) -> None: ...


class Source(Protocol):
    """Where messages come from: `Database` and `Client` are such."""

    def waiter(self) -> Waiting: ...
    def ack(
        self, topic: str, group: str, upto: int, *, partition: int = 0, consumer: str = "", lease: str | None = None
    ) -> int: ...
    def extend(
        self,
        topic: str,
        group: str,
        *,
        partition: int = 0,
        consumer: str = "",
        lease: str | None = None,
        visibility_s: float = 60.0,
    ) -> int: ...
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
    ) -> int: ...


class Settings:
    """What a consumer was told."""

    def __init__(
        self, topic: str, group: str, consumer: str, batch: int, visibility_s: float, start: Begin, timeout_s: float
    ) -> None:
        self.topic = topic
        self.group = group
        self.consumer = consumer
        self.batch = batch
        self.visibility_s = visibility_s
        self.start = start
        self.timeout_s = timeout_s


class Lease:
    """A delivery in our hands. `done` is the last offset that was worked off, `acked` the last that the source knows
    of; they are equal when nothing is owed. What is `lost` is somebody else's now."""

    def __init__(self, source: Source, settings: Settings, delivery: Delivery, line: Line) -> None:
        self.messages: list[Message] = delivery.messages
        self.partition = delivery.partition
        self.line = line
        self.done = self.acked = -1
        self.lost = False
        self._finished: set[int] = set()  # offsets above `done`
        self._at = 0  # the first message above `done`, where messages are finished in any order
        self._source = source
        self._settings = settings
        self._number = delivery.lease

    @property
    def settled(self) -> bool:
        """Whether nothing of it is held any more, as far as we know."""
        return self.lost or self.acked == self.messages[-1].offset

    @property
    def owed(self) -> bool:
        """Whether something is done that the source does not know of."""
        return self.done != self.acked and not self.lost

    def finish(self, offset: int) -> None:
        """Note that a message is worked off, or given back; in any order. `done` is where all up to it are."""
        self._finished.add(offset)
        while self._at < len(self.messages) and self.messages[self._at].offset in self._finished:
            self.done = self.messages[self._at].offset
            self._finished.discard(self.done)
            self._at += 1

    def close_gaps(self, give_back: Callable[[int, int], bool]) -> None:
        """Give back what is not finished below something that is, so that `done` covers the latter too; as far as that
        is taken."""
        while self._finished:
            first = self.messages[self._at].offset
            upto = min(self._finished) - 1
            if not give_back(first, upto):
                return
            for message in self.messages[self._at :]:
                if message.offset > upto:
                    break
                self.finish(message.offset)

    def ack(self) -> None:
        """Acknowledge what is done. Covers this lease alone: what of it was given back is not touched."""
        done = self.done
        if done == self.acked or self.lost:
            return
        told = self._settings
        self._settle(
            lambda: self._source.ack(
                told.topic, told.group, done, partition=self.partition, consumer=told.consumer, lease=self._number
            )
        )
        self.acked = max(self.acked, done)  # another thread may have acknowledged more meanwhile

    def nack(self, first: int, upto: int | None = None, delay_s: float = 0.0) -> None:
        """Give back what is held from an offset on."""
        if self.lost:
            return
        told = self._settings
        self._settle(
            lambda: self._source.nack(
                told.topic, told.group, partition=self.partition, consumer=told.consumer, lease=self._number,
                first=first, upto=upto, delay_s=delay_s,
            )
        )  # fmt: skip

    def extend(self) -> None:
        """Keep it for longer."""
        told = self._settings
        self._settle(
            lambda: self._source.extend(
                told.topic, told.group, partition=self.partition, consumer=told.consumer, lease=self._number,
                visibility_s=told.visibility_s,
            )
        )  # fmt: skip

    def _settle(self, call: Callable[[], int]) -> None:
        try:
            call()
        except (Conflict, Invalid) as error:
            # LEASE_LOST: others have it. NOT_DELIVERED: the group was set back or dropped meanwhile.
            if error.code not in ("LEASE_LOST", "NOT_DELIVERED"):
                raise
            self.lost = True


class BackOff:
    """How long to wait before the next attempt: longer each time."""

    def __init__(self) -> None:
        self._next_s = BACK_OFF_S_MIN

    def next_s(self) -> float:
        pause_s, self._next_s = self._next_s, min(self._next_s * 2, BACK_OFF_S_MAX)
        return pause_s


class Line:
    """A thread that fetches. It hands over a lease, or what went wrong."""

    def __init__(
        self,
        source: Source,
        settings: Settings,
        partition: Partition,
        held: dict[Lease, None],
        arrived: SimpleQueue[Lease | BaseException | None],
    ) -> None:
        self._source = source
        self._settings = settings
        self._partition = partition
        self._held = held
        self._arrived = arrived
        self._waiter = source.waiter()
        self._wanted: SimpleQueue[bool] = SimpleQueue()  # True: one more; False: end
        self._ending = False
        self._thread = threading.Thread(target=self._work, name="tailrace-fetch", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Fetch one more delivery."""
        self._wanted.put(True)

    def interrupt(self) -> None:
        """Fetch no more; what comes nevertheless is given back."""
        self._ending = True
        self._wanted.put(False)
        self._waiter.interrupt()

    def join(self) -> None:
        """Wait a little for the thread to end."""
        self._thread.join(JOIN_S)

    def _ended(self) -> bool:
        return self._ending

    def _work(self) -> None:
        try:
            while self._wanted.get() and not self._ending:
                self._fetch()
        except BaseException as error:
            self._arrived.put(error)
        finally:
            self._waiter.close()

    def _fetch(self) -> None:
        """Hand over one delivery with messages, however long it takes to get one."""
        pause = BackOff()
        told = self._settings
        while not self._ended():
            try:
                found = self._waiter.consume(
                    told.topic, told.group, limit=told.batch, consumer=told.consumer, start=told.start,
                    partition=self._partition, visibility_s=told.visibility_s, timeout_s=told.timeout_s,
                )  # fmt: skip
            except (Unavailable, TooMany) as error:
                if self._ended():
                    return
                if error.code == "CLOSED":
                    raise
                pause_s = pause.next_s()
                logger.warning("nothing can be consumed, trying again in %.1f s: %s", pause_s, error)
                try:
                    self._wanted.get(timeout=pause_s)  # nobody asks again before we answered: it says to end
                except Empty:
                    pass
                continue
            pause = BackOff()
            if found.skipped:
                logger.warning(
                    "retention removed %d messages of partition %d before group %r came to them",
                    found.skipped, found.partition, told.group,
                )  # fmt: skip
            if found.messages:
                self._hand_over(Lease(self._source, told, found, self))
                return

    def _hand_over(self, lease: Lease) -> None:
        self._held[lease] = None  # first: from here on it is kept, or given back by whoever ends the consumer
        if self._ended():
            try:
                lease.nack(lease.messages[0].offset)
            except Error as error:
                logger.warning("messages could not be given back, they will be when their lease ends: %s", error)
            self._held.pop(lease, None)
        else:
            self._arrived.put(lease)


class Heart:
    """A thread that keeps what is held, and sends acknowledgements that are owed."""

    def __init__(self, held: dict[Lease, None], every_s: float) -> None:
        self._held = held
        self._every_s = every_s
        self._ended: SimpleQueue[None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="tailrace-heartbeat", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.put(None)
        self._thread.join(JOIN_S)

    def _work(self) -> None:
        wait_s = self._every_s
        while True:
            try:
                return self._ended.get(timeout=wait_s)
            except Empty:
                wait_s = self._every_s if self._beat() else min(self._every_s, BACK_OFF_S_MIN)

    def _beat(self) -> bool:
        """Whether all that is held was extended."""
        well = True
        for lease in list(self._held):
            try:
                lease.ack()
                if not lease.settled:
                    lease.extend()
            except Error as error:
                well = False
                logger.warning("the lease of partition %d could not be extended: %s", lease.partition, error)
        return well
