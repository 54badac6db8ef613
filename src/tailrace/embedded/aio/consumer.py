"""A consumer of a topic: the loop around the work, for databases of this process and for servers.

Guarantees: a message is acknowledged after its work is done and never before; messages that were not worked off are
given back when the loop is left, in whichever way, so that others get them at once; those of a process that crashed are
delivered again when their lease expires. While the work takes long, leases are extended. While the source is
unavailable, the consumer tries again. So every message is worked off at least once, and those of one partition in order
as long as one consumer reads it, one handler runs at a time and nothing is given back.

Theory of operation
-------------------
`run` starts a call of the handler for each message of a delivery as soon as one of `concurrency` slots is free. When
the last message of a delivery has its slot, the next delivery is fetched: so at most `batch` messages of each of
`partitions` wait here, beside those in work. Calls end in any order; an acknowledgement covers a prefix of a delivery,
so it goes as far as all are done. Messages above that are acknowledged when the gap closes or, when the consumer ends,
after the gap was given back.
"""

from __future__ import annotations

import contextlib
import signal
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack, cast

from tailrace import limits
from tailrace.embedded.aio.deliveries import AsyncDeliveries
from tailrace.embedded.aio.leases import AsyncLease, AsyncSource
from tailrace.embedded.async_primitives import (
    ASYNC,
    FAILURES,
    AsyncWorkers,
    Ended,
    is_cancellation,
    result_of,
    sleep,
    uncancelled,
)
from tailrace.embedded.handlers import (
    ConsumerOptions,
    check_concurrency,
    check_handler,
    check_returned,
    check_source,
    logger,
    retry_after_s,
    stopped_by_signals,
)
from tailrace.embedded.messages import Message
from tailrace.errors import Conflict, Invalid

if TYPE_CHECKING:
    from tailrace.embedded.aio.transaction_api import AsyncTransactionApi

LEASE_LOST: Final = "LEASE_LOST"
Y = TypeVar("Y")


class AsyncConsumer:
    """Consumes a topic as a member of a group, for programs on an event loop.

        async for message in consumer:
            work(message.json())

    A message is acknowledged when the loop asks for the next one. An exception, or `break`, gives it back together with
    all that was fetched with it. `run` calls a handler instead, up to `concurrency` at once. `stop` lets the loop end
    after the message in hand. Acknowledgements are sent once in `ack_every_s` and at the end of each batch. Use a
    consumer from one event loop; `stop` from any thread, and from signal handlers.
    """

    def __init__(
        self,
        source: AsyncSource,
        topic: str,
        group: str,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        self._concurrency = options.pop("concurrency", 1)
        check_concurrency(self._concurrency)
        check_source(source, asynchronous=ASYNC)
        self._source = source
        self._topic = topic
        self._group = group
        self._deliveries = AsyncDeliveries(source, topic, group, **options)  # type: ignore[misc]
        self.consumer_id = self._deliveries.consumer_id
        self._in_use = False
        self._iterating: Callable[[], AsyncGenerator[Any, None] | None] = lambda: None
        if ASYNC:
            self._ended = Ended()
            self._ended.set()

    # -- the ways to consume

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._started(self._messages())

    def batches(self) -> AsyncIterator[AsyncBatch]:
        """Messages as they were fetched, each batch of one partition. Messages of a batch that are not acknowledged
        when the next one is asked for, or when the loop is left, are given back."""
        return self._started(self._batches())

    async def run(
        self,
        handler: Callable[..., object],
        *,
        retry_s: float = 1.0,
        signals: bool = True,
        transactional: bool = False,
    ) -> None:
        """Call `handler` with each message, up to `concurrency` at a time, until `stop` is called or, on the main
        thread with `signals`, a SIGTERM or SIGINT arrives; then those in work are finished.

        If a handler raises, the exception is logged, and the message is delivered again after `retry_s`, then twice
        that, and so on; the others go on meanwhile. With `transactional`, the handler gets the message and a
        transaction, which also acknowledges the message and is committed when the handler returns: all that it writes
        by it is written exactly once for the message. After a conflict the handler is called again.
        A handler may return an awaitable. To cancel the run cancels the handlers, and gives back their messages.
        """
        check_handler(handler, deferred=ASYNC)
        with self.stopped_by_signals() if signals else contextlib.nullcontext():
            async with self._running():
                workers = AsyncWorkers(self._concurrency, self.stop)
                try:
                    while (lease := await self._deliveries.next()) is not None:
                        await self._dispatch(workers, lease, handler, retry_s, transactional)
                    await workers.join()
                finally:
                    await workers.cancel()

    # -- ending

    def stop(self) -> None:
        """Let the loop end after the message in hand; the other messages are given back. For any thread, and
        for signal handlers."""
        self._deliveries.stop()

    def stopped_by_signals(self, *numbers: signal.Signals) -> contextlib.AbstractContextManager[None]:
        """Within this, SIGTERM and SIGINT (or those given) stop the consumer. A second one has its former effect. On a
        thread other than the main one, which alone may handle signals, this does nothing."""
        return stopped_by_signals(self.stop, *numbers)

    async def aclose(self) -> None:
        """Stop, and give back the messages in hand."""
        self.stop()
        iterating = self._iterating()
        if iterating is not None:
            with contextlib.suppress(RuntimeError, ValueError):  # it runs elsewhere: there it ends by itself
                await iterating.aclose()
        if ASYNC:
            await self._ended.wait()

    async def __aenter__(self) -> AsyncConsumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # -- the loop

    def _started(self, iterating: AsyncGenerator[Y, None]) -> AsyncGenerator[Y, None]:
        """The one loop there is. It is known weakly: it ends when the program drops it."""
        self._check_free()
        self._iterating = weakref.ref(iterating)
        return iterating

    def _check_free(self) -> None:
        if self._in_use:
            raise Invalid("this consumer is in use already; one loop or run at a time, or make another consumer")

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        """Within this, deliveries are fetched; leaving it gives back all messages, even if cancelled."""
        self._check_free()
        self._in_use = True
        if ASYNC:
            self._ended.clear()
        try:
            if not self._deliveries.stopped:
                await self._deliveries.begin()
            yield
        finally:
            try:
                await uncancelled(self._deliveries.end)
            finally:
                self._in_use = False
                if ASYNC:
                    self._ended.set()

    async def _messages(self) -> AsyncGenerator[Message, None]:
        deliveries = self._deliveries
        async with self._running():
            while (lease := await deliveries.next()) is not None:
                for message in lease.messages:
                    if _lost(lease):
                        break
                    yield message
                    lease.done = message.offset
                    if deliveries.stopped:
                        break
                    await deliveries.worked()
                await deliveries.settle(lease)
                await deliveries.ask(lease)

    async def _batches(self) -> AsyncGenerator[AsyncBatch, None]:
        deliveries = self._deliveries
        async with self._running():
            while (lease := await deliveries.next()) is not None:
                yield AsyncBatch(deliveries, lease)
                await deliveries.settle(lease)
                await deliveries.ask(lease)

    # -- handlers

    async def _dispatch(
        self,
        workers: AsyncWorkers,
        lease: AsyncLease,
        handler: Callable[..., object],
        retry_s: float,
        transactional: bool,
    ) -> None:
        """Start a call for each message, when there is room for it. The last to let go of the lease settles it."""
        lease.hold()
        for message in lease.messages:
            await workers.ready()
            if self._deliveries.stopped or lease.blocked or _lost(lease):
                workers.release()
                break
            lease.hold()
            await workers.start(self._work, workers, lease, message, handler, retry_s, transactional)
        if lease.release():
            await self._deliveries.settle(lease)
        await self._deliveries.ask(lease)

    async def _work(
        self, workers: AsyncWorkers, lease: AsyncLease, message: Message, handler: Callable[..., object],
        retry_s: float, transactional: bool,
    ) -> None:  # fmt: skip
        try:
            if await self._handled(lease, message, handler, retry_s, transactional):
                lease.finish(message.offset)
                if transactional:  # transactions have acknowledged what is done, and the rest was given back
                    lease.acknowledged(lease.done)
            else:
                lease.blocked = True
        finally:
            workers.release()
            last = lease.release()
        if not self._deliveries.stopped:
            await self._deliveries.worked()
        if last:
            await self._deliveries.settle(lease)

    async def _handled(
        self, lease: AsyncLease, message: Message, handler: Callable[..., object], retry_s: float, transactional: bool
    ) -> bool:
        """Whether the message is done with: worked off, or given back."""
        try:
            if transactional:
                return await self._transacted(message, handler)
            returned = handler(message)
            if ASYNC:
                returned = await result_of(returned)
        except FAILURES as error:
            if is_cancellation(error):
                raise
            if isinstance(error, Conflict) and error.code == LEASE_LOST and transactional:
                lease.lose(error)
                return True
            pause_s = retry_after_s(message, retry_s)
        else:
            check_returned(handler, returned)
            return True
        return await self._deliveries.give_back(lease, message.offset, message.offset, pause_s)

    async def _transacted(self, message: Message, handler: Callable[..., object]) -> bool:
        """Call the handler with a transaction that acknowledges its message; again, if that conflicts with others."""
        from tailrace.embedded.transactions import is_conflict, pause_s

        transactions = cast("AsyncTransactionApi", self._source)
        attempt = 0
        while True:
            attempt += 1
            try:
                async with transactions.transaction() as tx:
                    tx.ack(self._topic, self._group, message, consumer=self.consumer_id)
                    returned = handler(message, tx)
                    if ASYNC:
                        returned = await result_of(returned)
                    check_returned(handler, returned)
                return True
            except Conflict as error:
                if attempt >= limits.TRANSACTION_ATTEMPTS or not is_conflict(error):
                    raise
            await sleep(pause_s(attempt))


class AsyncBatch:
    """Messages of one partition, fetched together."""

    def __init__(self, deliveries: AsyncDeliveries, lease: AsyncLease) -> None:
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
        """Whether the lease was lost: other consumers have the messages, or had them."""
        return self._lease.lost

    async def ack(self, upto: Message | None = None) -> None:
        """Acknowledge the batch, or its messages up to and including one."""
        offset = self.messages[-1].offset if upto is None else upto.offset
        self._lease.done = max(self._lease.done, offset)
        await self._deliveries.insist(self._lease.ack)

    async def nack(self, *, first: Message | None = None, delay_s: float = 0.0) -> None:
        """Give back the messages that are not acknowledged, or those of them from one message on, to be delivered again
        after a delay."""
        offset = self._lease.done + 1 if first is None else first.offset
        await self._deliveries.give_back(self._lease, offset, None, delay_s)


def _lost(lease: AsyncLease) -> bool:
    if lease.lost:
        logger.warning("the lease of partition %d was lost; other consumers have the rest", lease.partition)
    return lease.lost
