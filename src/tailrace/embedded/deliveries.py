"""What a consumer fetches and holds, apart from how it works on it: `Consumer` and `AsyncConsumer` share this.

`begin` starts the threads that fetch and that extend leases, `next` waits for a delivery, `settle` acknowledges what of
it is done and gives back the rest, `ask` lets its thread fetch the next one, and `end` settles everything and ends the
threads. All of these block; `stop` does not, and may be called from any thread and from signal handlers.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Final, Literal, TypeAlias, TypedDict

from tailrace.embedded.leases import BackOff, Heart, Lease, Line, Settings, Source, logger
from tailrace.embedded.messages import (
    ANY,
    Begin,
    Message,
    Partition,
    check_numbers,
    check_seconds,
    check_texts,
    partition_number,
)
from tailrace.errors import Error, Invalid, TooMany, Unavailable
from tailrace.topics.group import TOO_MANY_RANGES

BEATS: Final = 3  # in the time that a lease lasts: two may fail
RETRY_S_MAX: Final = 300.0  # between two attempts at a message whose work fails
Partitions: TypeAlias = Literal["any"] | int | Iterable[int]


class ConsumerOptions(TypedDict, total=False):
    """What a consumer may be told; the defaults are those of `Deliveries`."""

    consumer_id: str | None  # who it is; without, a name of its own
    partitions: Partitions  # "any", a number, or several
    batch: int  # how many messages are fetched at a time, and held at most for each of `partitions`
    visibility_s: float  # how long others wait for what a crashed consumer held
    start: Begin  # where a new group begins
    timeout_s: float  # how long one request waits for messages
    ack_every_s: float  # how long an acknowledgement may wait for others
    stop_timeout_s: float  # how long leaving may take if the source is away


class Deliveries:
    """The deliveries of one consumer."""

    def __init__(
        self,
        source: Source,
        topic: str,
        group: str,
        *,
        consumer_id: str | None = None,
        partitions: Partitions = ANY,
        batch: int = 100,
        visibility_s: float = 60.0,
        start: Begin = "earliest",
        timeout_s: float = 30.0,
        ack_every_s: float = 0.5,
        stop_timeout_s: float = 5.0,
    ) -> None:
        self.consumer_id = consumer_id or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        check_texts(topic=topic, group=group, consumer_id=consumer_id)
        check_numbers(batch=batch)
        for name, seconds in (("visibility_s", visibility_s), ("timeout_s", timeout_s)):
            if not 0 < check_seconds(name, seconds) <= threading.TIMEOUT_MAX:
                raise Invalid(f"{name}={seconds!r} is no time to wait; give seconds, more than 0")
        self.ack_every_s = ack_every_s
        self._source = source
        self._settings = Settings(topic, group, self.consumer_id, batch, visibility_s, start, timeout_s)
        self._partitions = _partitions(partitions)
        self._stop_timeout_s = stop_timeout_s
        self._held: dict[Lease, None] = {}
        self._arrived: SimpleQueue[Lease | BaseException | None] = SimpleQueue()
        self._lines: list[Line] = []
        self._heart: Heart | None = None
        self._stopping = False
        self._naps: SimpleQueue[None] = SimpleQueue()  # what cuts a pause short

    @property
    def stopped(self) -> bool:
        return self._stopping

    def stop(self) -> None:
        """Let `next` find nothing any more. From any thread, and from signal handlers."""
        self._stopping = True
        for line in self._lines:
            line.interrupt()
        self._arrived.put(None)
        self._naps.put(None)

    def begin(self) -> None:
        """Start to fetch."""
        self._arrived = SimpleQueue()
        self._held.clear()
        self._heart = Heart(self._held, self._settings.visibility_s / BEATS)
        for partition in self._partitions:
            line = Line(self._source, self._settings, partition, self._held, self._arrived)
            self._lines.append(line)
            line.ask()
        if self._stopping:  # meanwhile
            self.stop()

    def next(self) -> Lease | None:
        """The next delivery; None when there will be no more."""
        while not self.stopped:
            found = self._arrived.get()
            if isinstance(found, Lease):
                return found
            if isinstance(found, Unavailable) and found.code == "CLOSED":
                self._stopping = True  # the database of this process was closed
            elif found is not None:
                raise found
        return None

    def ask(self, lease: Lease) -> None:
        """Let the next delivery be fetched by whoever fetched this one.

        First what is done of this one is acknowledged, and the rest is kept: of a lease that has run out meanwhile, the
        same messages would come again."""
        if self.stopped:
            return
        self.insist(lease.ack)
        if lease in self._held and not lease.settled:
            self.insist(lease.extend)
        lease.line.ask()

    def settle(self, lease: Lease, deadline_s: float | None = None) -> None:
        """Acknowledge what is done and give back the rest."""
        lease.close_gaps(lambda first, upto: self._returned(lease, first, upto, 0.0, deadline_s))
        self.insist(lease.ack, deadline_s)
        if not lease.settled:
            self._returned(lease, lease.done + 1, None, 0.0, deadline_s)
        self._held.pop(lease, None)

    def give_back(self, lease: Lease, first: int, upto: int | None = None, delay_s: float = 0.0) -> bool:
        """Give back what is held from an offset on; whether that was taken."""
        return self._returned(lease, first, upto, delay_s, None)

    def end(self) -> None:
        """Give back all that is held, and end the threads."""
        lines, self._lines = self._lines, []
        for line in lines:
            line.interrupt()
        deadline_s = time.monotonic() + self._stop_timeout_s
        for lease in list(self._held):
            try:
                self.settle(lease, deadline_s)
            except Error as error:
                logger.warning("messages could not be given back, they will be when their lease ends: %s", error)
            self._held.pop(lease, None)
        if self._heart is not None:
            self._heart.end()
        for line in lines:
            line.join()

    def acknowledge(self) -> None:
        """Send all acknowledgements that are owed."""
        for lease in list(self._held):
            if lease.owed:
                self.insist(lease.ack)

    def _returned(self, lease: Lease, first: int, upto: int | None, delay_s: float, deadline_s: float | None) -> bool:
        return self.insist(lambda: lease.nack(first, upto, delay_s), deadline_s)

    def insist(self, call: Callable[[], None], deadline_s: float | None = None) -> bool:
        """Do it, again and again while the source is away; whether it was done. Who is told to stop insists for a
        while only. All that is done this way has the same effect twice as once."""
        pause = BackOff()
        while True:
            try:
                call()
                return True
            except (Unavailable, TooMany) as error:
                if error.code == "CLOSED":
                    return False
                if error.code == TOO_MANY_RANGES:  # trying again would not help; it is given back when the lease ends
                    logger.warning("messages stay held until their lease ends: %s", error)
                    return False
                if self.stopped and deadline_s is None:
                    deadline_s = time.monotonic() + self._stop_timeout_s
                left_s = threading.TIMEOUT_MAX if deadline_s is None else deadline_s - time.monotonic()
                if left_s <= 0:
                    logger.warning("what was done could not be told; it will be delivered again: %s", error)
                    return False
                pause_s = min(pause.next_s(), left_s)
                logger.warning("the source is away, trying again in %.1f s: %s", pause_s, error)
                with contextlib.suppress(Empty):
                    self._naps.get(timeout=pause_s)


def retry_after_s(message: Message, retry_s: float) -> float:
    """How long a message waits whose work failed: `retry_s`, and twice that after each further attempt. To be called
    where the exception is handled: it is logged."""
    pause_s = min(retry_s * 2.0 ** min(message.attempt - 1, 32), RETRY_S_MAX)
    logger.exception(
        "the work on offset %d of partition %d failed, attempt %d; again in %.1f s",
        message.offset, message.partition, message.attempt, pause_s,
    )  # fmt: skip
    return pause_s


@contextlib.contextmanager
def stopped_by_signals(stop: Callable[[], None], *numbers: signal.Signals) -> Iterator[None]:
    """Within this, SIGTERM and SIGINT (or those given) call `stop`; a second one does what it did before. Nothing, on
    a thread that may not handle signals."""
    before: dict[int, Any] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(number, before[number])
        stop()

    if threading.current_thread() is threading.main_thread():
        for number in numbers or (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _partitions(asked: Partitions) -> list[Partition]:
    if isinstance(asked, str | int):
        number = partition_number(asked)
        return [ANY] if number is None else [number]
    chosen = sorted({number for each in asked if (number := partition_number(each)) is not None})
    if not chosen:
        raise Invalid("partitions=[] leaves nothing to consume; give numbers, or 'any'", code="NO_SUCH_PARTITION")
    return list(chosen)
