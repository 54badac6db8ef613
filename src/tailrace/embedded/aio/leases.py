"""The deliveries that a consumer holds, and the workers that fetch them.

A fetcher consumes from one partition, or from any, and hands over one delivery at a time; it fetches the next when it
is asked to. It talks to a source: a database of this process, or a server.

Signal handlers touch queues and plain attributes only, which cannot be locked by the very thread that they interrupt.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from queue import Empty
from typing import Protocol

from tailrace.embedded.async_primitives import AsyncQueue, AsyncWorker
from tailrace.embedded.handlers import JOIN_S, BackOff, logger
from tailrace.embedded.heartbeat import HeartbeatSource, LeaseState
from tailrace.embedded.messages import Delivery
from tailrace.embedded.requests import AckRequest, ConsumeRequest, ExtendRequest, NackRequest
from tailrace.errors import Conflict, Error, Invalid, TooMany, Unavailable


class AsyncWaiting(Protocol):
    """Consumes for one fetcher; any thread can interrupt it."""

    async def consume(self, request: ConsumeRequest) -> Delivery: ...
    def interrupt(self) -> None: ...
    async def aclose(self) -> None: ...


class AsyncSource(Protocol):
    """A source of messages: a database, or a client of a server."""

    def waiter(self) -> AsyncWaiting: ...
    async def send_ack(self, request: AckRequest) -> int: ...
    async def send_extend(self, request: ExtendRequest) -> int: ...
    async def send_nack(self, request: NackRequest) -> int: ...
    def heartbeat_source(self) -> AbstractContextManager[HeartbeatSource]: ...


class AsyncLease(LeaseState):
    """A delivery that the consumer holds, and its source."""

    def __init__(self, source: AsyncSource, request: ConsumeRequest, delivery: Delivery, fetcher: AsyncFetcher) -> None:
        super().__init__(request, delivery)
        self.fetcher = fetcher
        self._source = source

    async def ack(self) -> None:
        """Acknowledge the messages that are done. It covers this lease alone, without messages that were given back."""
        done = self.done
        if done == self.acked or self.lost:
            return
        try:
            await self._source.send_ack(self.ack_request(done))
        except (Conflict, Invalid) as error:
            self.lose(error)
        self.acknowledged(done)

    async def nack(self, first: int, upto: int | None = None, delay_s: float = 0.0) -> None:
        """Give back the messages from an offset on."""
        if self.lost:
            return
        try:
            await self._source.send_nack(self.nack_request(first, upto, delay_s))
        except (Conflict, Invalid) as error:
            self.lose(error)

    async def extend(self) -> None:
        """Hold it for longer."""
        try:
            await self._source.send_extend(self.extend_request())
        except (Conflict, Invalid) as error:
            self.lose(error)


class AsyncFetcher:
    """A worker that fetches deliveries. It hands over a lease, or the error that ended it."""

    def __init__(
        self,
        source: AsyncSource,
        request: ConsumeRequest,
        held: dict[AsyncLease, None],
        arrived: AsyncQueue[AsyncLease | BaseException | None],
    ) -> None:
        self._source = source
        self._request = request
        self._held = held
        self._arrived = arrived
        self._waiter = source.waiter()
        self._wanted: AsyncQueue[bool] = AsyncQueue()  # True: one more; False: end
        self._ending = False
        self._worker = AsyncWorker(self._work, "tailrace-fetch")

    def ask(self) -> None:
        """Fetch one more delivery."""
        self._wanted.put(True)

    def interrupt(self) -> None:
        """Fetch no more; a delivery that arrives nevertheless is given back."""
        self._ending = True
        self._wanted.put(False)
        self._waiter.interrupt()

    async def join(self) -> None:
        """Wait a little for the worker to end."""
        await self._worker.join(JOIN_S)

    def _ended(self) -> bool:
        return self._ending

    async def _work(self) -> None:
        try:
            while await self._wanted.get() and not self._ending:
                await self._fetch()
        except BaseException as error:
            self._arrived.put(error)
        finally:
            await self._waiter.aclose()

    async def _fetch(self) -> None:
        """Hand over one delivery with messages, however long it takes to get one."""
        pause = BackOff()
        while not self._ended():
            try:
                found = await self._waiter.consume(self._request)
            except (Unavailable, TooMany) as error:
                if self._ended():
                    return
                if error.code == "CLOSED":
                    raise
                pause_s = pause.next_s()
                logger.warning("consuming failed, trying again in %.1f s: %s", pause_s, error)
                try:
                    await self._wanted.get(pause_s)  # no delivery is asked for before this one: it says to end
                except Empty:
                    pass
                continue
            pause = BackOff()
            if found.skipped:
                logger.warning(
                    "retention removed %d messages of partition %d before group %r consumed them",
                    found.skipped, found.partition, self._request.group,
                )  # fmt: skip
            if found.messages:
                await self._hand_over(AsyncLease(self._source, self._request, found, self))
                return

    async def _hand_over(self, lease: AsyncLease) -> None:
        self._held[lease] = None  # first: from here on it is extended, or given back when the consumer ends
        if self._ended():
            try:
                await lease.nack(lease.messages[0].offset)
            except Error as error:
                logger.warning("messages are not given back before their lease expires: %s", error)
            self._held.pop(lease, None)
        else:
            self._arrived.put(lease)
