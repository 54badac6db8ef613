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

A commit that is made on the event loop takes the claims of waiting consumers along (`ConsumerQueues.claims`, as a
follower of the runner's batch): their messages are published and leased by one commit, and the consumer has them as
soon as they are durable. Consumers that a commit of another thread wakes, or that it has no time for, consume by
themselves.

A consumer whose client disconnects is cancelled by the transport. While it waits nothing is claimed for it. If its
command is with the writer already, the messages that it claims are given back at once. So are those of a consumer
whose caller has lost its rights meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator
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
from tailrace.log import segments
from tailrace.log.log import Advanced, Ended
from tailrace.log.tail import KEYS_CHANGED, MISSED, USERS_CHANGED, Notices
from tailrace.runner import Done
from tailrace.topics.consuming import Consume, ConsumedMessages, Nack
from tailrace.topics.group import OFFSET, GroupMoved, StartPoint, TopicChanged
from tailrace.topics.queries import FindTopic, ReadTopic
from tailrace.topics.topic import Topic

ALARM_S_MIN: Final = 0.001  # timers are not more exact than that

ANY: Final = -1  # no partition in particular
REVOKING: Final = (USERS_CHANGED, KEYS_CHANGED)

Key = tuple[int, int | None, str | None, int]  # topic, partition, group, and the number of the topic's partitions


class WaitingConsumer:
    """A consumer in a queue. `woken`: True, it is its turn; False, it has waited long enough; or the result of its
    command, which a commit has taken along."""

    __slots__ = ("claimed", "command", "left", "limit", "principal", "woken")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, limit: int, command: Consume | None, principal: Principal
    ) -> None:
        self.limit = limit
        self.command = command  # None: without a group, nothing is claimed
        self.principal = principal
        self.claimed = False  # a commit has taken its command along, and is not durable yet
        self.left = False  # it was cancelled
        self.woken: Completion[bool | ConsumedMessages] = Completion(loop)


class ConsumerQueue:
    """The consumers that wait for the same messages, in the order they came."""

    def __init__(self, db: Database, topic: Topic, partition: int | None, group: str | None) -> None:
        self.topic = topic
        self.key: Key = (topic.id, partition, group, topic.partitions)
        self.group = group
        self.members = 0  # consumers that entered and have not left
        self.news = 0  # how often there were new messages
        self.new_bytes = 0  # of the messages that were new last
        self.moved = 0  # how often the group changed, too
        self.dropped = False
        self.changed = False  # its name may lead to another topic, or the topic has more partitions
        self._db = db
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[WaitingConsumer, None] = {}  # in order
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = 0
        self._ends: dict[int, int] = {}  # by partition: when its next lease or delay runs out
        self.unsure = False  # of many partitions, others than the one that rang may have something now, or soon
        numbers = range(topic.partitions) if partition is None else (partition,)
        self.logs = () if group is None else tuple(topic.log_of(number) for number in numbers)  # to claim from
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
        if MISSED in notices:
            self.news += 1
            self.ring(sum(waiter.limit for waiter in self._waiting))
            return
        for notice in notices:
            kind = type(notice)
            if kind is Advanced:
                messages += segments.count(notice.segment)
            elif kind is GroupMoved:
                if notice.group == self.group:
                    self.moved += 1
                    if notice.deliverable is False:
                        messages, deliverable = 0, False  # a consumer of this commit has them
                    else:
                        deliverable = deliverable or bool(notice.deliverable)
                    self.ring_at(partition, notice.wake_ms)
            elif kind is Ended and notice.gone:
                self.dropped = True
            elif kind is TopicChanged:
                self.changed = True
        if self.changed and not self.dropped:
            self.news += 1
            for waiter in list(self._waiting):
                self._wake(waiter, True)
        elif self.dropped:
            self.dismiss()
        elif messages or deliverable:
            self.news += 1
            self.new_bytes = appended_bytes(notices)
            self.ring(messages or 1)

    def left_behind(self, topic: Topic) -> bool:
        """Whether the name leads to another topic now, or to more partitions."""
        return topic.id != self.topic.id or topic.partitions != self.topic.partitions

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
        if waiter.claimed:
            return  # the commit that has its messages is under way, and wakes it
        # Out of the queue before it is woken: it may come back in the same moment.
        self._waiting.pop(waiter, None)
        waiter.woken.set(turn)

    def claims(self, messages: int) -> Iterator[tuple[Consume, Done, str]]:
        """The commands of as many waiting consumers as new messages fill."""
        while messages > 0 and self._waiting:
            waiter = next(iter(self._waiting))
            command = waiter.command
            if command is None or command.heavy():
                return
            del self._waiting[waiter]
            waiter.claimed = True
            messages -= waiter.limit
            yield command, partial(self._claimed, waiter, command), waiter.principal.name

    def _claimed(
        self, waiter: WaitingConsumer, command: Consume, delivery: ConsumedMessages | None, error: BaseException | None
    ) -> None:
        """The commit that a waiting consumer's command was a part of is durable, or has failed."""
        waiter.claimed = False
        gone = waiter.left or waiter.woken.done()
        if delivery is None or error is not None:
            # It consumes by itself, and so gets the error that concerns it; after the notices of this commit.
            self._loop.call_soon(self.ring if gone else partial(self._wake, waiter, True))
        elif gone:
            # Not from within the writer's handing out of answers: others wait for theirs.
            self._loop.call_soon(give_back, self._db, command, waiter.principal, delivery)
        else:
            waiter.woken.set(delivery)

    async def turn(
        self, limit: int, within_s: float, caller: Caller, *, first: bool, command: Consume | None = None
    ) -> bool | ConsumedMessages:
        """Wait; whether it is our turn to consume, or the result of `command` if a commit took it along. `first`: we
        were woken and found nothing, so we stay the next. Not if the caller changes."""
        caller.follow()
        if caller.changed:
            return False
        waiter = WaitingConsumer(self._loop, limit, command, caller.principal)
        if first:
            self._waiting = {waiter: None, **self._waiting}
        else:
            self._waiting[waiter] = None
        timer = self._loop.call_later(within_s, self._wake, waiter, False)
        caller.wake = partial(self._wake, waiter, False)
        try:
            return await waiter.woken
        except asyncio.CancelledError:
            waiter.left = True
            self._pass_on(waiter)
            raise
        finally:
            timer.cancel()
            caller.wake = None
            self._waiting.pop(waiter, None)

    def _pass_on(self, waiter: WaitingConsumer) -> None:
        """A waiting consumer has left: what it was woken for is the next one's now."""
        if waiter.claimed or waiter in self._waiting:
            return
        woken = waiter.woken
        delivery = None if not woken.done() or woken.cancelled() else woken.result()
        if isinstance(delivery, ConsumedMessages):
            assert waiter.command is not None
            give_back(self._db, waiter.command, waiter.principal, delivery)
        else:
            self.ring_soon()


class ConsumerQueues:
    """The waiting consumers of one server."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._queues: dict[Key, ConsumerQueue] = {}
        self._by_log: dict[int, dict[ConsumerQueue, None]] = {}  # those of groups
        self._unfollow: Callable[[], None] | None = None  # commits are followed while consumers of groups wait
        self._turns = Turns()
        self._stopping = False
        self._first = 0

    def next_first(self) -> int:
        """Which partition a consumer of any looks at first: they take turns."""
        self._first += 1
        return self._first

    def claims(self, notices: Notices) -> Iterator[tuple[Consume, Done, str]]:
        """The commands of consumers that wait for messages which a transaction has added. For `Runner.followers`."""
        added: dict[int, int] = {}
        for notice in notices:
            number = notice.log
            if number in REVOKING:
                return  # whether they may still have messages is known after this commit
            if number in self._by_log and type(notice.item) is Advanced:
                added[number] = added.get(number, 0) + segments.count(notice.item.segment)
        for number, messages in added.items():
            for queue in list(self._by_log.get(number, ())):
                yield from queue.claims(messages)

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
        called: bool | ConsumedMessages = False
        acked = 0
        while True:
            news, moved = queue.news, queue.moved
            if isinstance(called, ConsumedMessages):  # a commit took the command along
                delivery, called = called, True
            else:
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
            if delivery.ranges:
                # If it leaves more behind, the notice of that wakes the next.
                if queue.unsure:
                    queue.ring_soon()  # and so on, until one finds nothing and knows when there will be messages
                return delivery
            queue.unsure = False
            if queue.left_behind(delivery.topic):
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
            called = await self._wait(queue, caller, command.limit, left, first=bool(called), command=command)
            if queue.dropped:
                raise _dropped(queue.topic)
            if caller.changed:
                if isinstance(called, ConsumedMessages):
                    give_back(self._db, command, caller.principal, called)
                    called = False  # the notice of that wakes the next
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
        return PendingClaim(self._db, command, principal)

    # -- without one

    async def read(self, query: ReadTopic, caller: Caller, timeout_s: float) -> ConsumedMessages:
        """Messages from a position on, without a group, when there are some; none, at the time-out."""
        principal = caller.principal
        delivery = await self._db.aexecute(query, principal)
        if delivery.ranges or timeout_s <= 0 or self._stopping:
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
                if delivery.topic.id != queue.topic.id:
                    return empty  # an offset says nothing in the topic that the name leads to now
                if caller.changed:
                    if not await caller.is_same():
                        return empty
                    if not delivery.ranges:
                        continue  # authenticating took a while, and commits meanwhile have not woken us
                left = deadline - loop.time()
                if delivery.ranges or left <= 0 or self._stopping:
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
        key = (topic.id, partition, group, topic.partitions)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = ConsumerQueue(self._db, topic, partition, group)
            for number in queue.logs:
                self._by_log.setdefault(number, {})[queue] = None
            if self._unfollow is None and self._by_log:
                self._unfollow = self._db.add_followers(self.claims)
        queue.members += 1
        return queue

    def _leave(self, queue: ConsumerQueue) -> None:
        queue.members -= 1
        if not queue.members:
            queue.close()
            del self._queues[queue.key]
            for number in queue.logs:
                waited = self._by_log[number]
                del waited[queue]
                if not waited:
                    del self._by_log[number]
            if self._unfollow is not None and not self._by_log:
                self._unfollow()
                self._unfollow = None

    async def _wait(
        self,
        queue: ConsumerQueue,
        caller: Caller,
        limit: int,
        within_s: float,
        *,
        first: bool,
        command: Consume | None = None,
    ) -> bool | ConsumedMessages:
        metrics = self._db.metrics
        if metrics.live_readers >= limits.WAITERS_MAX:
            raise TooMany(f"{limits.WAITERS_MAX} readers are waiting already; retry in a moment")
        metrics.live_readers += 1
        metrics.consumers_waiting += 1
        try:
            return await queue.turn(limit, within_s, caller, first=first, command=command)
        finally:
            metrics.live_readers -= 1
            metrics.consumers_waiting -= 1


def give_back(db: Database, command: Consume, principal: Principal, delivery: ConsumedMessages) -> None:
    """Give back the messages that were claimed for a consumer that has left. The result is not awaited: if it fails,
    the lease expires."""
    if delivery.lease is not None and delivery.ranges and db.stopped is None:
        db.aexecute(
            Nack(
                command.topic, command.group, delivery.partition, command.consumer, delivery.lease, None, None, 0,
                undelivered=True,
            ),
            principal,
        )  # fmt: skip


class _Moved(Exception):
    """The name leads to another topic than it did when the consumer began to wait."""

    def __init__(self, left_s: float, command: Consume) -> None:
        super().__init__()
        self.left_s = left_s
        self.command = command


class PendingClaim:
    """A `Consume` under way, to be awaited. If the wait is cancelled, the messages that it claims are given back."""

    __slots__ = ("_answer", "_command", "_completion", "_db", "_left", "_principal")

    def __init__(self, db: Database, command: Consume, principal: Principal) -> None:
        self._db = db
        self._command = command
        self._principal = principal
        self._left = False
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
            give_back(self._db, self._command, self._principal, self._completion.result())

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
