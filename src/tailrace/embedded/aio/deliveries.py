"""The deliveries of one consumer: fetching, holding and settling them.

`begin` starts the workers that fetch and that extend leases, `next` waits for a delivery, `settle` acknowledges the
messages that are done and gives back the rest, `ask` lets its fetcher fetch the next one, and `end` settles everything
and ends the workers. `stop` does not wait, and may be called from any thread and from signal handlers.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from queue import Empty
from typing import Final

import msgspec

from tailrace.embedded.aio.leases import AsyncFetcher, AsyncLease, AsyncSource
from tailrace.embedded.async_primitives import AsyncQueue, in_thread
from tailrace.embedded.handlers import BackOff, Partitions, chosen_partitions, logger
from tailrace.embedded.heartbeat import Heartbeat
from tailrace.embedded.messages import ANY, Start, check_numbers, check_seconds, check_texts
from tailrace.embedded.requests import ConsumeRequest
from tailrace.errors import Error, Invalid, TooMany, Unavailable
from tailrace.topics.group import TOO_MANY_RANGES

BEATS: Final = 3  # while a lease lasts: two may fail


class AsyncDeliveries:
    """The deliveries of one consumer."""

    def __init__(
        self,
        source: AsyncSource,
        topic: str,
        group: str,
        *,
        consumer_id: str | None = None,
        partitions: Partitions = ANY,
        batch: int = 100,
        visibility_s: float = 60.0,
        start: Start = "earliest",
        timeout_s: float = 30.0,
        ack_every_s: float = 0.5,
        stop_timeout_s: float = 5.0,
    ) -> None:
        self.consumer_id = consumer_id or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        check_texts(topic=topic, group=group, consumer_id=consumer_id)
        check_numbers(batch=batch)
        for name, seconds in (("visibility_s", visibility_s), ("timeout_s", timeout_s)):
            if not 0 < check_seconds(name, seconds) <= threading.TIMEOUT_MAX:
                raise Invalid(f"{name}={seconds!r} is not a time to wait; give seconds, more than 0")
        self._source = source
        self._request = ConsumeRequest(topic, group, batch, self.consumer_id, start, ANY, visibility_s, timeout_s)
        self._partitions = chosen_partitions(partitions)
        self._ack_every_s = ack_every_s
        self._acked_s = 0.0  # when acknowledgements were sent last
        self._stop_timeout_s = stop_timeout_s
        self._held: dict[AsyncLease, None] = {}
        self._arrived: AsyncQueue[AsyncLease | BaseException | None] = AsyncQueue()
        self._fetchers: list[AsyncFetcher] = []
        self._heartbeat: Heartbeat | None = None
        self._stopping = False
        self._naps: AsyncQueue[None] = AsyncQueue()  # cuts a pause short

    @property
    def stopped(self) -> bool:
        return self._stopping

    def stop(self) -> None:
        """Let `next` find no more deliveries. For any thread, and for signal handlers."""
        self._stopping = True
        for fetcher in self._fetchers:
            fetcher.interrupt()
        self._arrived.put(None)
        self._naps.put(None)

    async def begin(self) -> None:
        """Start to fetch."""
        self._arrived = AsyncQueue()
        self._held.clear()
        every_s = self._request.visibility_s / BEATS
        self._heartbeat = Heartbeat(self._source.heartbeat_source(), self._held, every_s)
        for partition in self._partitions:
            request = msgspec.structs.replace(self._request, partition=partition)
            fetcher = AsyncFetcher(self._source, request, self._held, self._arrived)
            self._fetchers.append(fetcher)
            fetcher.ask()
        if self._stopping:  # meanwhile
            self.stop()

    async def next(self) -> AsyncLease | None:
        """The next delivery; None when there will be no more."""
        while not self.stopped:
            arrived = await self._arrived.get()
            if isinstance(arrived, AsyncLease):
                self._acked_s = time.monotonic()
                return arrived
            if isinstance(arrived, Unavailable) and arrived.code == "CLOSED":
                self._stopping = True  # the database of this process was closed
            elif arrived is not None:
                raise arrived
        return None

    async def ask(self, lease: AsyncLease) -> None:
        """Let the fetcher of this delivery fetch the next one.

        Before that, the messages that are done are acknowledged, and the lease of the rest is extended: of a lease
        that expired meanwhile, the same messages would come again."""
        if self.stopped:
            return
        await self.insist(lease.ack)
        if lease in self._held and not lease.settled:
            await self.insist(lease.extend)
        lease.fetcher.ask()

    async def settle(self, lease: AsyncLease, deadline_s: float | None = None) -> None:
        """Acknowledge the messages that are done and give back the rest."""
        while (gap := lease.gap()) is not None and await self._return(lease, *gap, 0.0, deadline_s):
            lease.close_gap(gap[1])
        await self.insist(lease.ack, deadline_s)
        if not lease.settled:
            await self._return(lease, lease.done + 1, None, 0.0, deadline_s)
        self._held.pop(lease, None)

    async def give_back(self, lease: AsyncLease, first: int, upto: int | None = None, delay_s: float = 0.0) -> bool:
        """Give back the messages from an offset on; whether the source took them."""
        return await self._return(lease, first, upto, delay_s, None)

    async def end(self) -> None:
        """Give back all that is held, and end the workers."""
        fetchers, self._fetchers = self._fetchers, []
        for fetcher in fetchers:
            fetcher.interrupt()
        deadline_s = time.monotonic() + self._stop_timeout_s
        for lease in list(self._held):
            try:
                await self.settle(lease, deadline_s)
            except Error as error:
                logger.warning("messages could not be returned and stay held until their lease expires: %s", error)
            self._held.pop(lease, None)
        if self._heartbeat is not None:
            self._heartbeat.end()
            await in_thread(self._heartbeat.join)
        for fetcher in fetchers:
            await fetcher.join()

    async def worked(self) -> None:
        """A message was worked off: send the acknowledgements that are owed, or let the heartbeat do so in time."""
        now_s = time.monotonic()
        if now_s - self._acked_s < self._ack_every_s:
            assert self._heartbeat is not None
            self._heartbeat.ack_at(self._acked_s + self._ack_every_s)
            return
        self._acked_s = now_s
        for lease in list(self._held):
            if lease.owed:
                await self.insist(lease.ack)

    async def _return(
        self, lease: AsyncLease, first: int, upto: int | None, delay_s: float, deadline_s: float | None
    ) -> bool:
        return await self.insist(lambda: lease.nack(first, upto, delay_s), deadline_s)

    async def insist(self, call: Callable[[], Awaitable[None]], deadline_s: float | None = None) -> bool:
        """Repeat a call while the source is unavailable; whether it was done. After `stop` it is repeated for a while
        only. All that is done this way has the same effect twice as once."""
        pause = BackOff()
        while True:
            try:
                await call()
                return True
            except (Unavailable, TooMany) as error:
                if error.code == "CLOSED":
                    return False
                if error.code == TOO_MANY_RANGES:  # trying again would not help; they are given back on expiry
                    logger.warning("messages stay held until their lease expires: %s", error)
                    return False
                if self.stopped and deadline_s is None:
                    deadline_s = time.monotonic() + self._stop_timeout_s
                left_s = threading.TIMEOUT_MAX if deadline_s is None else deadline_s - time.monotonic()
                if left_s <= 0:
                    logger.warning("messages could not be acknowledged and will be delivered again: %s", error)
                    return False
                pause_s = min(pause.next_s(), left_s)
                logger.warning("the source is unavailable, trying again in %.1f s: %s", pause_s, error)
                with contextlib.suppress(Empty):
                    await self._naps.get(pause_s)
