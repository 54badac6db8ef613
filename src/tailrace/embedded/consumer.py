"""A consumer of a topic: the loop around the work, written once for databases of this process and for servers.

What is promised: a message is acknowledged after its work returned and never before; what was not worked off is given
back when the loop is left, however it is left, so that others get it at once; what a crash leaves is delivered again
when its lease runs out. While the work takes long, a thread extends the lease. While the source cannot be reached, the
consumer tries again. So every message is worked off at least once, and those of one partition in order as long as one
consumer reads it and nothing is given back.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import secrets
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Final, Literal, TypeAlias, TypeVar

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
Y = TypeVar("Y")


class Consumer:
    """Consumes a topic as a member of a group.

        for message in consumer:
            work(message.json())

    A message is acknowledged when the loop asks for the next one. An exception, or `break`, gives it back together with
    all that was fetched with it. `stop` lets the loop end after the message in hand. Acknowledgements are sent once in
    `ack_every_s` and at the end of each batch. Use a consumer from one thread; `stop` from any, and from signal
    handlers.
    """

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
        """`partitions` is "any", a number, or several; `batch` how many messages are fetched at a time, and held at
        most for each of those. `visibility_s` is how long others wait for what a crashed consumer held; `timeout_s`
        how long one request waits for messages; `stop_timeout_s` how long leaving may take if the source is away."""
        self.consumer_id = consumer_id or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        check_texts(topic=topic, group=group, consumer_id=consumer_id)
        check_numbers(batch=batch)
        for name, seconds in (("visibility_s", visibility_s), ("timeout_s", timeout_s)):
            if not 0 < check_seconds(name, seconds) <= threading.TIMEOUT_MAX:
                raise Invalid(f"{name}={seconds!r} is no time to wait; give seconds, more than 0")
        self._source = source
        self._settings = Settings(topic, group, self.consumer_id, batch, visibility_s, start, timeout_s)
        self._partitions = _partitions(partitions)
        self._ack_every_s = ack_every_s
        self._stop_timeout_s = stop_timeout_s
        self._held: dict[Lease, None] = {}
        self._arrived: SimpleQueue[Lease | BaseException | None] = SimpleQueue()
        self._lines: list[Line] = []
        self._stopping = False
        self._naps: SimpleQueue[None] = SimpleQueue()  # what cuts a pause short
        self._walk: Callable[[], Generator[Any, Any, None] | None] = lambda: None

    # -- the ways to consume

    def __iter__(self) -> Iterator[Message]:
        return self._started(self._messages())

    def batches(self) -> Iterator[Batch]:
        """Messages as they were fetched, each batch of one partition. What of a batch is not acknowledged when the next
        one is asked for, or when the loop is left, is given back."""
        return self._started(self._batches())

    def run(self, handler: Callable[[Message], object], *, retry_s: float = 1.0, signals: bool = True) -> None:
        """Call `handler` with each message until `stop` is called, or a SIGTERM or SIGINT comes (`signals`, on the main
        thread). If it raises, that is logged, and the message is delivered again after `retry_s`, then twice that, and
        so on; the others go on meanwhile."""
        main = signals and threading.current_thread() is threading.main_thread()
        with self.stopped_by_signals() if main else contextlib.nullcontext():
            walk = self._started(self._messages())
            answer: float | None = None
            with contextlib.closing(walk):
                while True:
                    try:
                        message = walk.send(answer)
                    except StopIteration:
                        return
                    answer = None
                    try:
                        handler(message)
                    except Exception:
                        answer = min(retry_s * 2.0 ** min(message.attempt - 1, 32), RETRY_S_MAX)
                        logger.exception(
                            "the work on offset %d of partition %d failed, attempt %d; again in %.1f s",
                            message.offset, message.partition, message.attempt, answer,
                        )  # fmt: skip

    # -- ending

    def stop(self) -> None:
        """Let the loop end after the message in hand; what else was fetched is given back. From any thread, and from
        signal handlers."""
        self._stopping = True
        for line in self._lines:
            line.interrupt()
        self._arrived.put(None)
        self._naps.put(None)

    @contextlib.contextmanager
    def stopped_by_signals(self, *numbers: signal.Signals) -> Iterator[None]:
        """Within this, SIGTERM and SIGINT (or those given) stop the consumer. A second one does what it did before."""
        before: dict[int, Any] = {}

        def handle(number: int, frame: FrameType | None) -> None:
            signal.signal(number, before[number])
            self.stop()

        for number in numbers or (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, handle)
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def close(self) -> None:
        """Stop, and give back what is in hand."""
        self.stop()
        walk = self._walk()
        if walk is not None:
            with contextlib.suppress(ValueError):  # it runs, on another thread: there it ends by itself
                walk.close()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- the loop

    def _stopped(self) -> bool:
        return self._stopping

    def _started(self, walk: Generator[Y, float | None, None]) -> Generator[Y, float | None, None]:
        """The one loop there is. It is known weakly: when whoever iterates lets go of it, it must end."""
        last = self._walk()
        if last is not None and inspect.getgeneratorstate(last) != inspect.GEN_CLOSED:
            raise Invalid("this consumer is in use already; one loop at a time, or make another consumer")
        self._walk = weakref.ref(walk)
        return walk

    def _messages(self) -> Generator[Message, float | None, None]:
        """Each message; what is sent back is None if it was worked off, or after how long to deliver it again."""
        with contextlib.closing(self._leases()) as leases:
            for lease in leases:
                owed_since_s = time.monotonic()
                for message in lease.messages:
                    if lease.lost:
                        logger.warning("the lease of partition %d was lost; others have the rest", lease.partition)
                        break
                    retry_s = yield message
                    if retry_s is not None and not self._returned(lease, message.offset, message.offset, retry_s):
                        break  # nothing above this one may be acknowledged: it would go with it
                    lease.done = message.offset
                    if self._stopped():
                        break
                    if time.monotonic() - owed_since_s >= self._ack_every_s:
                        self._insist(lease.ack)
                        owed_since_s = time.monotonic()

    def _batches(self) -> Generator[Batch, float | None, None]:
        with contextlib.closing(self._leases()) as leases:
            for lease in leases:
                yield Batch(self, lease)

    def _leases(self) -> Generator[Lease, None, None]:
        """Deliveries, one after the other; each is settled when the next is asked for. Leaving gives back all."""
        if self._stopped():
            return
        self._arrived = SimpleQueue()
        self._held.clear()
        heart = Heart(self._held, self._settings.visibility_s / BEATS)
        try:
            for partition in self._partitions:
                line = Line(self._source, self._settings, partition, self._held, self._arrived)
                self._lines.append(line)
                line.ask()
            if self._stopped():  # meanwhile
                return
            while (lease := self._next()) is not None:
                yield lease
                # First this, then more: of a lease that has run out meanwhile, the same messages would come again.
                self._settle(lease)
                if not self._stopped():
                    lease.line.ask()
        finally:
            self._end(heart)

    def _next(self) -> Lease | None:
        """The next delivery; None when there will be no more."""
        while not self._stopped():
            found = self._arrived.get()
            if isinstance(found, Lease):
                return found
            if isinstance(found, Unavailable) and found.code == "CLOSED":
                self._stopping = True  # the database of this process was closed
            elif found is not None:
                raise found
        return None

    def _settle(self, lease: Lease) -> None:
        """Acknowledge what is done and give back the rest."""
        self._insist(lease.ack)
        if not lease.settled:
            self._returned(lease, lease.done + 1)
        self._held.pop(lease, None)

    def _returned(self, lease: Lease, first: int, upto: int | None = None, delay_s: float = 0.0) -> bool:
        """Give back what is held from an offset on; whether that was taken."""
        return self._insist(lambda: lease.nack(first, upto, delay_s))

    def _end(self, heart: Heart) -> None:
        lines, self._lines = self._lines, []
        for line in lines:
            line.interrupt()
        deadline_s = time.monotonic() + self._stop_timeout_s
        for lease in list(self._held):
            try:
                self._insist(lease.ack, deadline_s)
                if not lease.settled:
                    self._insist(lambda lease=lease: lease.nack(lease.done + 1), deadline_s)  # type: ignore[misc]
            except Error as error:
                logger.warning("messages could not be given back, they will be when their lease ends: %s", error)
            self._held.pop(lease, None)
        heart.end()
        for line in lines:
            line.join()

    def _insist(self, call: Callable[[], None], deadline_s: float | None = None) -> bool:
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
                if self._stopped() and deadline_s is None:
                    deadline_s = time.monotonic() + self._stop_timeout_s
                left_s = threading.TIMEOUT_MAX if deadline_s is None else deadline_s - time.monotonic()
                if left_s <= 0:
                    logger.warning("what was done could not be told; it will be delivered again: %s", error)
                    return False
                pause_s = min(pause.next_s(), left_s)
                logger.warning("the source is away, trying again in %.1f s: %s", pause_s, error)
                with contextlib.suppress(Empty):
                    self._naps.get(timeout=pause_s)


class Batch:
    """Messages of one partition, fetched together."""

    def __init__(self, consumer: Consumer, lease: Lease) -> None:
        self._consumer = consumer
        self._lease = lease
        self.partition = lease.partition
        self.messages = lease.messages

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def lost(self) -> bool:
        """Whether the lease was lost: others have the messages, or had them."""
        return self._lease.lost

    def ack(self, upto: Message | None = None) -> None:
        """Acknowledge the batch, or its messages up to and including one."""
        offset = self.messages[-1].offset if upto is None else upto.offset
        self._lease.done = max(self._lease.done, offset)
        self._consumer._insist(self._lease.ack)

    def nack(self, *, first: Message | None = None, delay_s: float = 0.0) -> None:
        """Give back what is not acknowledged, or what of it lies from one message on, to be delivered again after a
        delay."""
        offset = self._lease.done + 1 if first is None else first.offset
        self._consumer._returned(self._lease, offset, None, delay_s)


def _partitions(asked: Partitions) -> list[Partition]:
    if isinstance(asked, str | int):
        number = partition_number(asked)
        return [ANY] if number is None else [number]
    chosen = sorted({number for each in asked if (number := partition_number(each)) is not None})
    if not chosen:
        raise Invalid("partitions=[] leaves nothing to consume; give numbers, or 'any'", code="NO_SUCH_PARTITION")
    return list(chosen)
