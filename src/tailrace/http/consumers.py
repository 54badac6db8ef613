"""Consumers that wait for messages.

Theory of operation
-------------------
A `ConsumerQueue` holds the consumers that wait for one group at one partition, or at any of a topic's; without a group,
all that wait at a partition. A consumer enters its queue first (which subscribes to the partitions' logs), then
consumes, and only then waits, so that no commit goes unnoticed in between: `news` counts the notices of new messages,
and a consumer that got nothing consumes again if the count has changed since.

Waiting consumers are woken in turn. A commit wakes as many consumers as its messages fill; one that leaves more behind
wakes the next. So a message wakes one consumer of a group, not all of them. A lease that expires, or a delay that ends,
is an alarm of the queue. A consumer that was woken and does not consume after all passes its turn on.

A consumer whose client disconnects is cancelled by the transport. While it waits nothing is claimed for it. If its
command is with the writer already, the messages that it claims are given back at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final, cast

import msgspec

from tailrace import limits
from tailrace.access import SYSTEM, Principal
from tailrace.completion import Completion
from tailrace.database import Database
from tailrace.errors import NotFound, TooMany
from tailrace.http.live import Turns, appended_bytes
from tailrace.http.revocation import Caller
from tailrace.log.log import Advanced, Ended
from tailrace.topics.consuming import Consume, ConsumedMessages, Nack
from tailrace.topics.group import OFFSET, GroupMoved, StartPoint
from tailrace.topics.queries import FindTopic, ReadTopic
from tailrace.topics.topic import Topic

ALARM_S_MIN: Final = 0.001  # timers are not more exact than that

ANY: Final = -1  # no partition in particular

Key = tuple[int, int | None, str | None]  # topic, partition, group


class WaitingConsumer:
    """A consumer in a queue. `woken`: True, it is its turn; False, it has waited long enough."""

    __slots__ = ("limit", "woken")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self.limit = limit
        self.woken: Completion[bool] = Completion(loop)


class ConsumerQueue:
    """The consumers that wait for the same messages, in the order they came."""

    def __init__(self, db: Database, topic: Topic, partition: int | None, group: str | None) -> None:
        self.topic = topic
        self.key: Key = (topic.id, partition, group)
        self.group = group
        self.members = 0  # consumers that entered and have not left
        self.news = 0  # how often there were new messages
        self.new_bytes = 0  # of the messages that were new last
        self.moved = 0  # how often the group changed, too
        self.dropped = False
        self._db = db
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[WaitingConsumer, None] = {}  # in order
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = 0
        self._ends: dict[int, int] = {}  # by partition: when its next lease or delay runs out
        self.unsure = False  # of many partitions, others than the one that rang may have something now, or soon
        numbers = range(topic.partitions) if partition is None else (partition,)
        self._unsubscribe: list[Callable[[], None]] = [
            db.tail.subscribe(topic.log_of(number), partial(self._notified, number)) for number in numbers
        ]

    def close(self) -> None:
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        if self._alarm is not None:
            self._alarm.cancel()

    def _notified(self, partition: int, notices: list[Any]) -> None:
        """A commit touched the log of a partition."""
        messages, deliverable = 0, False
        for notice in notices:
            kind = type(notice)
            if kind is Advanced:
                messages += 1
            elif kind is GroupMoved:
                if notice.group == self.group:
                    self.moved += 1
                    deliverable = deliverable or notice.deliverable
                    self.ring_at(partition, notice.wake_ms)
            elif kind is Ended and notice.gone:
                self.dropped = True
        if self.dropped:
            self.dismiss()
        elif messages or deliverable:
            self.news += 1
            self.new_bytes = appended_bytes(notices)
            self.ring(messages or 1)

    def ring(self, messages: int = 1) -> None:
        """There are messages: wake as many consumers as these fill. Without a group, all of them."""
        for waiter in list(self._waiting):
            if messages <= 0 and self.group is not None:
                return
            messages -= waiter.limit
            self._wake(waiter, True)

    def ring_soon(self) -> None:
        """Wake the next consumer, from within another's turn."""
        if self._waiting:
            self._loop.call_soon(self.ring)

    def ring_at(self, partition: int, at_ms: int | None) -> None:
        """Wake one consumer when the next lease or delay of a partition has ended; None: there is none."""
        if at_ms is None:
            self._ends.pop(partition, None)
        else:
            self._ends[partition] = at_ms
            self._set_alarm(at_ms)

    def _set_alarm(self, at_ms: int) -> None:
        if self._alarm is not None:
            if self._alarm_ms <= at_ms:
                return  # the next one is set when it rings
            self._alarm.cancel()
        self._alarm_ms = at_ms
        after_s = max((at_ms - self._db.clock.now_ms()) / 1000, ALARM_S_MIN)
        self._alarm = self._loop.call_later(after_s, self._alarmed)

    def _alarmed(self) -> None:
        """Leases or delays have ended, perhaps in several partitions at once: wake one consumer for each."""
        self._alarm = None
        now_ms = self._db.clock.now_ms()
        due = [partition for partition, at_ms in self._ends.items() if at_ms <= now_ms]
        for partition in due:
            del self._ends[partition]
        if self._ends:
            self._set_alarm(min(self._ends.values()))
        if due:
            self.news += 1
            self.unsure = self.key[1] is None
            for _ in due:
                self.ring()

    def dismiss(self) -> None:
        """Wake all, without a turn."""
        for waiter in list(self._waiting):
            self._wake(waiter, False)

    def _wake(self, waiter: WaitingConsumer, turn: bool) -> None:
        # Out of the queue before it is woken: it may come back in the same moment.
        self._waiting.pop(waiter, None)
        waiter.woken.set(turn)

    async def turn(self, limit: int, within_s: float, caller: Caller, *, first: bool) -> bool:
        """Wait; whether it is our turn to consume. `first`: we were woken and found nothing, so we stay the next. Not
        if the caller changes."""
        caller.follow()
        if caller.changed:
            return False
        waiter = WaitingConsumer(self._loop, limit)
        if first:
            self._waiting = {waiter: None, **self._waiting}
        else:
            self._waiting[waiter] = None
        timer = self._loop.call_later(within_s, self._wake, waiter, False)
        caller.wake = partial(self._wake, waiter, False)
        try:
            return await waiter.woken
        except asyncio.CancelledError:
            if waiter not in self._waiting:
                self.ring_soon()  # it was our turn, and is the next one's now
            raise
        finally:
            timer.cancel()
            caller.wake = None
            self._waiting.pop(waiter, None)


class ConsumerQueues:
    """The waiting consumers of one server."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._queues: dict[Key, ConsumerQueue] = {}
        self._turns = Turns()
        self._stopping = False
        self._first = 0

    def next_first(self) -> int:
        """Which partition a consumer of any looks at first: they take turns."""
        self._first += 1
        return self._first

    def release(self) -> None:
        """End all waits: the consumers get no messages."""
        self._stopping = True
        loop = asyncio.get_running_loop()
        for queue in self._queues.values():
            loop.call_soon(queue.dismiss)  # outside of any task: consumers are resumed in it

    def _released(self) -> bool:
        return self._stopping

    # -- with a group

    async def claim(self, command: Consume, caller: Caller, timeout_s: float) -> ConsumedMessages:
        """Messages for a consumer of a group, when there are some; none, at the time-out."""
        if timeout_s <= 0 or self._stopping:
            return await self._claimed(command, caller.principal)
        while True:
            queue = await self._enter(command.topic, command.partition, command.group)
            if queue is None:
                return await self._claimed(command, caller.principal)  # the command says why
            try:
                return await self._claim(queue, command, caller, timeout_s)
            except _Moved as moved:
                timeout_s, command = moved.left_s, moved.command
            finally:
                caller.close()
                self._leave(queue)

    async def _claim(
        self, queue: ConsumerQueue, command: Consume, caller: Caller, timeout_s: float
    ) -> ConsumedMessages:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        called, acked = False, 0
        while True:
            news, moved = queue.news, queue.moved
            try:
                delivery = await self._claimed(command, caller.principal)
            except BaseException:
                if called:
                    queue.ring_soon()
                raise
            if command.acks:  # they are done, whether or not there is something to deliver
                acked, command = delivery.acked, msgspec.structs.replace(command, acks=())
            elif acked:
                delivery = msgspec.structs.replace(delivery, acked=acked)
            if delivery.messages:
                # If it leaves more behind, the notice of that wakes the next.
                if queue.unsure:
                    queue.ring_soon()  # and so on, until one finds nothing and knows when there will be messages
                return delivery
            queue.unsure = False
            if delivery.topic.id != queue.topic.id:  # the name leads to another topic now
                if called:
                    queue.ring_soon()
                raise _Moved(deadline - loop.time(), command)
            if command.partition is not None:  # of others the commit that moves them tells
                queue.ring_at(delivery.partition, delivery.wake_ms)
            elif delivery.wake_ms is not None:
                queue.ring_at(ANY, delivery.wake_ms)
            left = deadline - loop.time()
            if left <= 0 or self._stopping:
                return delivery
            if queue.dropped:
                raise _dropped(queue.topic)
            if queue.news != news:
                continue
            called = await self._wait(queue, caller, command.limit, left, first=called)
            if queue.dropped:
                raise _dropped(queue.topic)
            if caller.changed:
                if await self._goes_on(queue, caller, called=called):
                    continue
                return delivery
            if not called and (self._released() or queue.moved == moved):
                return delivery
            # At the time-out another consumer may have moved the group: the response has its present state.

    async def _goes_on(self, queue: ConsumerQueue, caller: Caller, *, called: bool) -> bool:
        """Whether a caller that has changed may still wait; a turn that it does not take passes to the next."""
        same = False
        try:
            same = await caller.is_same()
        finally:
            if called and not same:
                queue.ring_soon()
        return same

    def _claimed(self, command: Consume, principal: Principal) -> PendingClaim:
        return PendingClaim(self, command, principal)

    def give_back(self, command: Consume, principal: Principal, delivery: ConsumedMessages) -> None:
        """Give back the messages that were claimed for a consumer that has left. The result is not awaited: if it
        fails, the lease expires."""
        if delivery.lease is not None and delivery.messages and self._db.stopped is None:
            self._db.aexecute(
                Nack(
                    command.topic, command.group, delivery.partition, command.consumer, delivery.lease, None, None, 0,
                    undelivered=True,
                ),
                principal,
            )  # fmt: skip

    # -- without one

    async def read(self, query: ReadTopic, caller: Caller, timeout_s: float) -> ConsumedMessages:
        """Messages from a position on, without a group, when there are some; none, at the time-out."""
        principal = caller.principal
        delivery = await self._db.aexecute(query, principal)
        if delivery.messages or timeout_s <= 0 or self._stopping:
            return delivery
        queue = await self._enter(query.topic, query.partition, None)
        if queue is None:
            return await self._db.aexecute(query, principal)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        try:
            while True:
                # From here on it is that position: the latest one moves with each message.
                start = StartPoint(OFFSET, delivery.next_offset)
                query = ReadTopic(query.topic, query.partition, start, query.limit, query.bytes_max)
                if queue.dropped:
                    raise _dropped(queue.topic)
                empty, delivery = delivery, await self._db.aexecute(query, principal)
                if caller.changed:
                    if not await caller.is_same():
                        return empty
                    if not delivery.messages:
                        continue  # authenticating took a while, and commits meanwhile have not woken us
                left = deadline - loop.time()
                if delivery.messages or left <= 0 or self._stopping:
                    return delivery
                called = await self._wait(queue, caller, query.limit, left, first=False)
                if not (called or caller.changed) and not queue.dropped:
                    return delivery
                await self._turns.take(queue.new_bytes)  # without a group, all are woken at once
        finally:
            caller.close()
            self._leave(queue)

    # -- queues

    async def _enter(self, name: str, partition: int | None, group: str | None) -> ConsumerQueue | None:
        """The queue to wait in; None if there is no such topic. The command checks the permission."""
        try:
            topic = await self._db.aexecute(FindTopic(name), SYSTEM)
        except NotFound:
            return None
        if partition is not None and not 0 <= partition < topic.partitions:
            return None
        key = (topic.id, partition, group)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = ConsumerQueue(self._db, topic, partition, group)
        queue.members += 1
        return queue

    def _leave(self, queue: ConsumerQueue) -> None:
        queue.members -= 1
        if not queue.members:
            queue.close()
            del self._queues[queue.key]

    async def _wait(self, queue: ConsumerQueue, caller: Caller, limit: int, within_s: float, *, first: bool) -> bool:
        metrics = self._db.metrics
        if metrics.live_readers >= limits.WAITERS_MAX:
            raise TooMany(f"{limits.WAITERS_MAX} readers are waiting already; retry in a moment")
        metrics.live_readers += 1
        metrics.consumers_waiting += 1
        try:
            return await queue.turn(limit, within_s, caller, first=first)
        finally:
            metrics.live_readers -= 1
            metrics.consumers_waiting -= 1


class _Moved(Exception):
    """The name leads to another topic than it did when the consumer began to wait."""

    def __init__(self, left_s: float, command: Consume) -> None:
        super().__init__()
        self.left_s = left_s
        self.command = command


class PendingClaim:
    """A `Consume` under way, to be awaited. If the wait is cancelled, the messages that it claims are given back."""

    __slots__ = ("_answer", "_command", "_completion", "_left", "_principal", "_queues")

    def __init__(self, queues: ConsumerQueues, command: Consume, principal: Principal) -> None:
        self._queues = queues
        self._command = command
        self._principal = principal
        self._left = False
        db = queues._db
        # The writer sets another completion than the one that is awaited: a cancelled task cancels what it awaits.
        self._completion = cast(Completion[ConsumedMessages], db.aexecute(command, principal))
        self._answer: Completion[None] = Completion(asyncio.get_running_loop())
        self._completion.on_done(self._done)

    def _done(self) -> None:
        if self._left:
            # Not from within the writer's handing out of answers: others wait for theirs.
            asyncio.get_running_loop().call_soon(self._give_back)
        else:
            self._answer.set(None)

    def _give_back(self) -> None:
        if self._completion.exception() is None:
            self._queues.give_back(self._command, self._principal, self._completion.result())

    def __await__(self) -> Generator[Any, None, ConsumedMessages]:
        try:
            yield from self._answer.__await__()
        except asyncio.CancelledError:
            self._left = True
            if self._completion.done():
                self._give_back()
            raise
        return self._completion.result()


def _dropped(topic: Topic) -> NotFound:
    return NotFound(f"topic {topic.name!r} was dropped while this request waited for messages", code="TOPIC_NOT_FOUND")
