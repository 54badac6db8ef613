"""A consumer of a topic for programs on an event loop: up to `concurrency` handlers at once.

Theory of operation
-------------------
Fetching, extending and settling are those of `Consumer` (`Deliveries`), on threads of this consumer; the event loop
never waits for the source. On the loop, each message of a delivery becomes a task as soon as one of `concurrency` slots
is free. When the last message of a delivery has its task, the next delivery is fetched: so at most `batch` messages of
each of `partitions` wait here, beside those in work. Tasks end in any order; an acknowledgement covers a prefix of a
delivery, so it goes as far as all are done. What is done above that is acknowledged when the gap closes or, when the
consumer ends, after the gap was given back. A process that dies leaves it to be delivered again: at least once.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, Final, TypeVar, Unpack

from tailrace import limits
from tailrace.embedded.consumer import deferred
from tailrace.embedded.deliveries import ConsumerOptions, Deliveries, retry_after_s, stopped_by_signals
from tailrace.embedded.leases import Lease, Source, logger
from tailrace.embedded.messages import Message, check_numbers
from tailrace.errors import Invalid

T = TypeVar("T")
THREADS: Final = 4  # one waits for deliveries, the others settle


class AsyncConsumer:
    """Consumes a topic as a member of a group, on an event loop.

        async with db.aio.consumer("app.mail", "mailer", concurrency=10) as consumer:
            await consumer.run(send_mail)

    `concurrency` is how many messages are in work at once; with 1, those of one partition are handled in the order of
    `Consumer`, with more in none. The other options are those of `Consumer`. Use it on one event loop; `stop` from any
    thread, and from signal handlers.
    """

    def __init__(
        self, source: Source, topic: str, group: str, *, concurrency: int = 1, **options: Unpack[ConsumerOptions]
    ) -> None:
        check_numbers(concurrency=concurrency)
        if not 1 <= concurrency <= limits.CONSUMER_CONCURRENCY_MAX:
            raise Invalid(
                f"concurrency={concurrency} is out of range; use 1 to {limits.CONSUMER_CONCURRENCY_MAX}, and more "
                "consumers for more"
            )
        self._deliveries = Deliveries(source, topic, group, **options)
        self.consumer_id = self._deliveries.consumer_id
        self._concurrency = concurrency
        self._in_use = False
        self._iterating: AsyncGenerator[Message, None] | None = None
        self._ended = asyncio.Event()
        self._ended.set()

    # -- the ways to consume

    async def run(self, handler: Callable[[Message], object], *, retry_s: float = 1.0, signals: bool = True) -> None:
        """Call `handler` with each message, up to `concurrency` at a time, and await what it returns, until `stop` is
        called, or a SIGTERM or SIGINT comes (`signals`, on the main thread); then those in work are finished.

        If a handler raises, that is logged, and its message is delivered again after `retry_s`, then twice that, and so
        on; the others go on meanwhile. To cancel the run cancels the handlers, and gives back what they had in work. A
        plain function is called on the event loop, which it must not hold up."""
        if not callable(handler):
            raise Invalid(f"the handler {handler!r} cannot be called; give an async function that takes a message")
        with stopped_by_signals(self.stop) if signals else contextlib.nullcontext():
            async with self._running() as threads:
                await _Run(self._deliveries, threads, handler, retry_s, self._concurrency).go()

    def __aiter__(self) -> AsyncIterator[Message]:
        """One message after the other, as `Consumer`: acknowledged when the loop asks for the next one. Leave the loop
        within `async with`, which gives back what is in hand; Python leaves an asynchronous iterator as it is."""
        self._check_free()
        self._iterating = self._messages()
        return self._iterating

    async def _messages(self) -> AsyncGenerator[Message, None]:
        deliveries = self._deliveries
        async with self._running() as threads:
            while (lease := await threads.call(deliveries.next)) is not None:
                since_s = threads.loop.time()
                for message in lease.messages:
                    if lease.lost:
                        logger.warning("the lease of partition %d was lost; others have the rest", lease.partition)
                        break
                    yield message
                    lease.done = message.offset
                    if deliveries.stopped:
                        break
                    if threads.loop.time() - since_s >= deliveries.ack_every_s:
                        await threads.call(deliveries.insist, lease.ack)
                        since_s = threads.loop.time()
                await threads.call(deliveries.settle, lease)
                await threads.call(deliveries.ask, lease)

    # -- ending

    def stop(self) -> None:
        """Let the run or the loop end after what is in work; what else was fetched is given back. From any thread, and
        from signal handlers."""
        self._deliveries.stop()

    async def aclose(self) -> None:
        """Stop, wait for what is in work, and give back the rest."""
        self.stop()
        iterating, self._iterating = self._iterating, None
        if iterating is not None:
            with contextlib.suppress(RuntimeError):  # another task waits in it: there it ends by itself
                await iterating.aclose()
        await self._ended.wait()

    async def __aenter__(self) -> AsyncConsumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _check_free(self) -> None:
        if self._in_use:
            raise Invalid("this consumer is in use already; one run or loop at a time, or make another consumer")

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncIterator[_Threads]:
        """Within this, deliveries are fetched; leaving it gives back what is held, even if cancelled."""
        self._check_free()
        self._in_use = True
        self._ended.clear()
        threads = _Threads()
        try:
            if not self._deliveries.stopped:
                await threads.call(self._deliveries.begin)
            yield threads
        finally:
            self._deliveries.stop()  # whoever waits for a delivery stops
            try:
                await threads.finally_call(self._deliveries.end)
            finally:
                threads.end()
                self._in_use = False
                self._ended.set()


class _Threads:
    """The threads of one consumer: what waits for the source waits here, and holds up neither the loop nor others."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(THREADS, "tailrace-consumer")

    async def call(self, function: Callable[..., T], *arguments: object) -> T:
        return await self.loop.run_in_executor(self._pool, partial(function, *arguments))

    async def finally_call(self, function: Callable[[], T]) -> None:
        """Call it and wait for it, though this task be cancelled meanwhile."""
        calling = asyncio.ensure_future(self.call(function))
        cancelled = False
        while not calling.done():
            try:
                await asyncio.shield(calling)
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError
        calling.result()

    def end(self) -> None:
        self._pool.shutdown(wait=False)


class _Run:
    """One run of an `AsyncConsumer`."""

    def __init__(
        self, deliveries: Deliveries, threads: _Threads, handler: Callable[[Message], object], retry_s: float,
        concurrency: int,
    ) -> None:  # fmt: skip
        self._deliveries = deliveries
        self._threads = threads
        self._handler = handler
        self._retry_s = retry_s
        self._slots = asyncio.Semaphore(concurrency)
        self._tasks: set[asyncio.Task[None]] = set()  # handlers at work, and what settles their deliveries
        self._owing = asyncio.Event()
        self._failure: BaseException | None = None

    async def go(self) -> None:
        acknowledging = self._start(self._acknowledge())
        try:
            while (lease := await self._threads.call(self._deliveries.next)) is not None:
                works = await self._dispatched(lease)
                self._start(self._settled(lease, works))
                if not self._deliveries.stopped:
                    await self._threads.call(self._deliveries.ask, lease)
            acknowledging.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            await self._cancel_all()
        if self._failure is not None:
            raise self._failure

    async def _dispatched(self, lease: Lease) -> list[asyncio.Task[None]]:
        """A task for each message, when there is room for it."""
        works: list[asyncio.Task[None]] = []
        for message in lease.messages:
            await self._slots.acquire()
            if lease.lost:
                logger.warning("the lease of partition %d was lost; others have the rest", lease.partition)
            if lease.lost or self._deliveries.stopped:
                self._slots.release()
                break
            works.append(self._start(self._work(lease, message)))
        return works

    async def _work(self, lease: Lease, message: Message) -> None:
        deliveries = self._deliveries
        try:
            returned = self._handler(message)
            if isinstance(returned, Future):
                returned = asyncio.wrap_future(returned)
            if inspect.isawaitable(returned):
                returned = await returned
            if deferred(returned):  # a generator, or a coroutine that the handler made and did not await
                raise _never_run(self._handler, returned)
        except (Exception, asyncio.CancelledError) as error:
            if _cancelling() and isinstance(error, asyncio.CancelledError):
                raise  # it is we who are cancelled; otherwise it is something that the handler waited for
            if isinstance(error, Invalid) and error.code == "HANDLER_NOT_RUN":
                raise
            pause_s = retry_after_s(message, self._retry_s)
            back = partial(deliveries.give_back, lease, message.offset, message.offset, pause_s)
            if not await self._threads.call(back):
                return  # nothing above this one may be acknowledged: it would go with it
        finally:
            self._slots.release()
        lease.finish(message.offset)
        self._owing.set()

    async def _settled(self, lease: Lease, works: list[asyncio.Task[None]]) -> None:
        if works:
            await asyncio.wait(works)
        await self._threads.call(self._deliveries.settle, lease)

    async def _acknowledge(self) -> None:
        """Send what is owed, once in `ack_every_s`."""
        while True:
            await self._owing.wait()
            self._owing.clear()
            await self._threads.call(self._deliveries.acknowledge)
            await asyncio.sleep(self._deliveries.ack_every_s)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
            self._deliveries.stop()

    async def _cancel_all(self) -> None:
        """Cancel what is in work and wait until it has ended, however often this is cancelled: only then it is known
        what is done."""
        cancelled = False
        for task in self._tasks:
            task.cancel()
        while self._tasks:
            try:
                await asyncio.wait(self._tasks)
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError


def _never_run(handler: object, returned: object) -> Invalid:
    if inspect.iscoroutine(returned):
        returned.close()  # else Python warns of it, too
    return Invalid(
        f"the handler {handler!r} returned {type(returned).__name__!r} object, of which nothing runs; its message was "
        "not acknowledged. Give an async function that awaits it",
        code="HANDLER_NOT_RUN",
    )


def _cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
