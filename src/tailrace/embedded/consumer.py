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
import signal
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar, Unpack

from tailrace.embedded.deliveries import ConsumerOptions, Deliveries, retry_after_s, stopped_by_signals
from tailrace.embedded.leases import Lease, Source, logger
from tailrace.embedded.messages import Message
from tailrace.errors import Invalid

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

    def __init__(self, source: Source, topic: str, group: str, **options: Unpack[ConsumerOptions]) -> None:
        self._deliveries = Deliveries(source, topic, group, **options)
        self.consumer_id = self._deliveries.consumer_id
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
        so on; the others go on meanwhile.

        The handler is a plain function. A coroutine function is refused: calling one runs nothing of it. It is for
        `AsyncConsumer`."""
        refuse_deferred(handler)
        with self.stopped_by_signals() if signals else contextlib.nullcontext():
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
                        returned = handler(message)
                    except Exception:
                        answer = retry_after_s(message, retry_s)
                        continue
                    if deferred(returned):  # only now it shows; the message is given back
                        raise _never_run(handler, returned)

    # -- ending

    def stop(self) -> None:
        """Let the loop end after the message in hand; what else was fetched is given back. From any thread, and from
        signal handlers."""
        self._deliveries.stop()

    def stopped_by_signals(self, *numbers: signal.Signals) -> contextlib.AbstractContextManager[None]:
        """Within this, SIGTERM and SIGINT (or those given) stop the consumer. A second one does what it did before. On
        a thread other than the main one, which alone may handle signals, it does nothing."""
        return stopped_by_signals(self.stop, *numbers)

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
                    if retry_s is not None and not self._deliveries.give_back(
                        lease, message.offset, message.offset, retry_s
                    ):
                        break  # nothing above this one may be acknowledged: it would go with it
                    lease.done = message.offset
                    if self._deliveries.stopped:
                        break
                    if time.monotonic() - owed_since_s >= self._deliveries.ack_every_s:
                        self._deliveries.insist(lease.ack)
                        owed_since_s = time.monotonic()

    def _batches(self) -> Generator[Batch, float | None, None]:
        with contextlib.closing(self._leases()) as leases:
            for lease in leases:
                yield Batch(self._deliveries, lease)

    def _leases(self) -> Generator[Lease, None, None]:
        """Deliveries, one after the other; each is settled when the next is asked for. Leaving gives back all."""
        deliveries = self._deliveries
        if deliveries.stopped:
            return
        try:
            deliveries.begin()
            while (lease := deliveries.next()) is not None:
                yield lease
                deliveries.settle(lease)
                deliveries.ask(lease)
        finally:
            deliveries.end()


class Batch:
    """Messages of one partition, fetched together."""

    def __init__(self, deliveries: Deliveries, lease: Lease) -> None:
        self._deliveries = deliveries
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
        self._deliveries.insist(self._lease.ack)

    def nack(self, *, first: Message | None = None, delay_s: float = 0.0) -> None:
        """Give back what is not acknowledged, or what of it lies from one message on, to be delivered again after a
        delay."""
        offset = self._lease.done + 1 if first is None else first.offset
        self._deliveries.give_back(self._lease, offset, None, delay_s)


# -- what a handler may be


def refuse_deferred(handler: Callable[..., object]) -> None:
    """Refuse a handler of which a call runs nothing: its messages would be acknowledged, and nothing done."""
    if not callable(handler):
        raise Invalid(f"the handler {handler!r} cannot be called; give a function that takes a message")
    called = getattr(type(handler), "__call__", None)  # noqa: B004 - of an object that is called like a function
    tests = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    if any(test(each) for test in tests for each in (handler, called)):
        raise _never_run(handler)


def deferred(returned: object) -> bool:
    """Whether a call has returned work that is still to be done, or is done elsewhere: by a pool of threads, say."""
    tests = (inspect.isawaitable, inspect.isasyncgen, inspect.isgenerator)
    return isinstance(returned, Future) or any(test(returned) for test in tests)


def _never_run(handler: object, returned: object = None) -> Invalid:
    if inspect.iscoroutine(returned):
        returned.close()  # else Python warns of it, too
    what = (
        "is a coroutine or generator function" if returned is None else f"returned {type(returned).__name__!r} object"
    )
    return Invalid(
        f"the handler {handler!r} {what}, which run() does not wait for; its message was not acknowledged. Give a "
        "function that does the work, or use AsyncConsumer (tailrace.client) or db.aio.consumer(...), which await it",
        code="HANDLER_NOT_RUN",
    )
