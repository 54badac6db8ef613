"""Where consumers wait for messages.

Theory of operation
-------------------
A `Line` is the queue of those who wait for one group at one partition, or at any of a topic's; without a group,
everyone who waits at a partition. A consumer enters its line first (which subscribes to the partitions' logs), then
consumes, and only then waits, so that nothing is committed between unseen: what the line heard since the consumer
asked is counted in `heard`, and a consumer that came back with nothing asks again where that has moved.

Whoever waits is woken in turn. A commit wakes as many consumers as its messages fill; one that leaves more behind
wakes the next. So a message makes one consumer of a group ask, not all of them. A lease that runs out, or a delay that
ends, is an alarm of the line. A consumer that was woken and does not ask after all passes its turn on.

A consumer that leaves is cancelled by the transport. While it waits nothing is claimed for it. If its question is with
the writer already, what comes of that is given back at once.
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
from tailrace.http.callers import Caller
from tailrace.http.live import Turns, appended_bytes
from tailrace.log.log import Advanced, Ended
from tailrace.topics.consuming import Consume, Delivery, Nack
from tailrace.topics.group import OFFSET, Moved, Start
from tailrace.topics.queries import FindTopic, ReadTopic
from tailrace.topics.topic import Topic

ALARM_S_MIN: Final = 0.001  # timers are not more exact than that

ANY: Final = -1  # no partition in particular

Key = tuple[int, int | None, str | None]  # topic, partition, group


class Waiter:
    """A consumer in a line. `woken`: True, it is its turn; False, it has waited long enough."""

    __slots__ = ("limit", "woken")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self.limit = limit
        self.woken: Completion[bool] = Completion(loop)


class Line:
    """Those who wait for the same messages, in the order they came."""

    def __init__(self, db: Database, topic: Topic, partition: int | None, group: str | None) -> None:
        self.topic = topic
        self.key: Key = (topic.id, partition, group)
        self.group = group
        self.members = 0  # who entered and has not left
        self.heard = 0  # how often there was something new
        self.heard_bytes = 0  # of the messages that were new last
        self.moved = 0  # how often the group changed, too
        self.dropped = False
        self._db = db
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Waiter, None] = {}  # in order; whoever leaves is found at once
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = 0
        self._ends: dict[int, int] = {}  # by partition: when its next lease or delay runs out
        self.unsure = False  # of many partitions, others than the one that rang may have something now, or soon
        numbers = range(topic.partitions) if partition is None else (partition,)
        self._unsubscribe: list[Callable[[], None]] = [
            db.tail.subscribe(topic.log_of(number), partial(self._told, number)) for number in numbers
        ]

    def close(self) -> None:
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        if self._alarm is not None:
            self._alarm.cancel()

    def _told(self, partition: int, notices: list[Any]) -> None:
        """A commit touched the log of a partition."""
        messages, deliverable = 0, False
        for notice in notices:
            kind = type(notice)
            if kind is Advanced:
                messages += 1
            elif kind is Moved:
                if notice.group == self.group:
                    self.moved += 1
                    deliverable = deliverable or notice.deliverable
                    self.ring_at(partition, notice.wake_ms)
            elif kind is Ended and notice.gone:
                self.dropped = True
        if self.dropped:
            self.dismiss()
        elif messages or deliverable:
            self.heard += 1
            self.heard_bytes = appended_bytes(notices)
            self.ring(messages or 1)

    def ring(self, messages: int = 1) -> None:
        """There are messages: let as many ask as these are for. Without a group they are for everyone."""
        for waiter in list(self._waiting):
            if messages <= 0 and self.group is not None:
                return
            messages -= waiter.limit
            self._wake(waiter, True)

    def ring_soon(self) -> None:
        """Let the next one ask, from within somebody else's turn."""
        if self._waiting:
            self._loop.call_soon(self.ring)

    def ring_at(self, partition: int, at_ms: int | None) -> None:
        """Let one ask when the next lease or delay of a partition has run out; it is known of no other, if None."""
        if at_ms is None:
            self._ends.pop(partition, None)
        else:
            self._ends[partition] = at_ms
            self._set_alarm(at_ms)

    def _set_alarm(self, at_ms: int) -> None:
        if self._alarm is not None:
            if self._alarm_ms <= at_ms:
                return  # when it rings, what is next is looked for
            self._alarm.cancel()
        self._alarm_ms = at_ms
        after_s = max((at_ms - self._db.clock.now_ms()) / 1000, ALARM_S_MIN)
        self._alarm = self._loop.call_later(after_s, self._alarmed)

    def _alarmed(self) -> None:
        """Something has run out, perhaps in several partitions at once: let one ask for each."""
        self._alarm = None
        now_ms = self._db.clock.now_ms()
        due = [partition for partition, at_ms in self._ends.items() if at_ms <= now_ms]
        for partition in due:
            del self._ends[partition]
        if self._ends:
            self._set_alarm(min(self._ends.values()))
        if due:
            self.heard += 1
            self.unsure = self.key[1] is None
            for _ in due:
                self.ring()

    def dismiss(self) -> None:
        """Let everyone go."""
        for waiter in list(self._waiting):
            self._wake(waiter, False)

    def _wake(self, waiter: Waiter, turn: bool) -> None:
        # Out of the line before it is told: it may come back in the same moment.
        self._waiting.pop(waiter, None)
        waiter.woken.set(turn)

    async def turn(self, limit: int, within_s: float, caller: Caller, *, first: bool) -> bool:
        """Wait; whether it is our turn to ask. `first`: we were woken and found nothing, so we stay the next. If the
        caller changes, it is not."""
        caller.follow()
        if caller.changed:
            return False
        waiter = Waiter(self._loop, limit)
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
                self.ring_soon()  # it was our turn; nobody has asked
            raise
        finally:
            timer.cancel()
            caller.wake = None
            self._waiting.pop(waiter, None)


class Consuming:
    """All that wait for messages on one server."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._lines: dict[Key, Line] = {}
        self._turns = Turns()
        self._stopping = False

    def release(self) -> None:
        """Let everyone go: whoever waits is answered that there is nothing."""
        self._stopping = True
        loop = asyncio.get_running_loop()
        for line in self._lines.values():
            loop.call_soon(line.dismiss)  # outside of any task: consumers are resumed in it

    def _released(self) -> bool:
        return self._stopping

    # -- with a group

    async def claim(self, command: Consume, caller: Caller, timeout_s: float) -> Delivery:
        """Messages for a consumer of a group, when there are some; none, at the time-out."""
        if timeout_s <= 0 or self._stopping:
            return await self._ask(command, caller.principal)
        while True:
            line = await self._enter(command.topic, command.partition, command.group)
            if line is None:
                return await self._ask(command, caller.principal)  # which says why
            try:
                return await self._claim(line, command, caller, timeout_s)
            except _Moved as moved:
                timeout_s, command = moved.left_s, moved.command
            finally:
                caller.close()
                self._leave(line)

    async def _claim(self, line: Line, command: Consume, caller: Caller, timeout_s: float) -> Delivery:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        called, acked = False, 0
        while True:
            heard, moved = line.heard, line.moved
            try:
                delivery = await self._ask(command, caller.principal)
            except BaseException:
                if called:
                    line.ring_soon()
                raise
            if command.acks:  # they are done, whether or not there is something to deliver
                acked, command = delivery.acked, msgspec.structs.replace(command, acks=())
            elif acked:
                delivery = msgspec.structs.replace(delivery, acked=acked)
            if delivery.messages:
                # If it leaves more behind, the notice of that wakes the next.
                if line.unsure:
                    line.ring_soon()  # and so on, until one finds nothing and has heard when there will be something
                return delivery
            line.unsure = False
            if delivery.topic.id != line.topic.id:  # the name leads to another topic now
                if called:
                    line.ring_soon()
                raise _Moved(deadline - loop.time(), command)
            if command.partition is not None:  # of others the commit that moves them tells
                line.ring_at(delivery.partition, delivery.wake_ms)
            elif delivery.wake_ms is not None:
                line.ring_at(ANY, delivery.wake_ms)
            left = deadline - loop.time()
            if left <= 0 or self._stopping:
                return delivery
            if line.dropped:
                raise _dropped(line.topic)
            if line.heard != heard:
                continue
            called = await self._wait(line, caller, command.limit, left, first=called)
            if line.dropped:
                raise _dropped(line.topic)
            if caller.changed:
                if await self._goes_on(line, caller, called=called):
                    continue
                return delivery
            if not called and (self._released() or line.moved == moved):
                return delivery
            # At the time-out another consumer may have moved the group: what is answered is how it is now.

    async def _goes_on(self, line: Line, caller: Caller, *, called: bool) -> bool:
        """Whether a caller that has changed may still wait; a turn that it does not take passes to the next."""
        same = False
        try:
            same = await caller.is_same()
        finally:
            if called and not same:
                line.ring_soon()
        return same

    def _ask(self, command: Consume, principal: Principal) -> Asking:
        return Asking(self, command, principal)

    def give_back(self, command: Consume, principal: Principal, delivery: Delivery) -> None:
        """Let others have what was claimed for a consumer that has left. It is nobody's concern whether that succeeds:
        if not, the lease runs out."""
        if delivery.lease is not None and delivery.messages and self._db.stopped is None:
            self._db.aexecute(
                Nack(
                    command.topic, command.group, delivery.partition, command.consumer, delivery.lease, None, None, 0,
                    undelivered=True,
                ),
                principal,
            )  # fmt: skip

    # -- without one

    async def read(self, query: ReadTopic, caller: Caller, timeout_s: float) -> Delivery:
        """Messages from a place on, for nobody in particular, when there are some; none, at the time-out."""
        principal = caller.principal
        delivery = await self._db.aexecute(query, principal)
        if delivery.messages or timeout_s <= 0 or self._stopping:
            return delivery
        line = await self._enter(query.topic, query.partition, None)
        if line is None:
            return await self._db.aexecute(query, principal)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        try:
            while True:
                # From here on it is that place: what is the latest moves with each message.
                start = Start(OFFSET, delivery.next_offset)
                query = ReadTopic(query.topic, query.partition, start, query.limit, query.bytes_max)
                if line.dropped:
                    raise _dropped(line.topic)
                empty, delivery = delivery, await self._db.aexecute(query, principal)
                if caller.changed:
                    if not await caller.is_same():
                        return empty
                    if not delivery.messages:
                        continue  # asking took a while, and nothing that was committed then has been heard of
                left = deadline - loop.time()
                if delivery.messages or left <= 0 or self._stopping:
                    return delivery
                called = await self._wait(line, caller, query.limit, left, first=False)
                if not (called or caller.changed) and not line.dropped:
                    return delivery
                await self._turns.take(line.heard_bytes)  # without a group, all are woken at once
        finally:
            caller.close()
            self._leave(line)

    # -- lines

    async def _enter(self, name: str, partition: int | None, group: str | None) -> Line | None:
        """The line to wait in; None if there is no such topic. Who may wait is decided by what they ask."""
        try:
            topic = await self._db.aexecute(FindTopic(name), SYSTEM)
        except NotFound:
            return None
        if partition is not None and not 0 <= partition < topic.partitions:
            return None
        key = (topic.id, partition, group)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line(self._db, topic, partition, group)
        line.members += 1
        return line

    def _leave(self, line: Line) -> None:
        line.members -= 1
        if not line.members:
            line.close()
            del self._lines[line.key]

    async def _wait(self, line: Line, caller: Caller, limit: int, within_s: float, *, first: bool) -> bool:
        metrics = self._db.metrics
        if metrics.live_readers >= limits.WAITERS_MAX:
            raise TooMany(f"{limits.WAITERS_MAX} readers are waiting already; retry in a moment")
        metrics.live_readers += 1
        metrics.consumers_waiting += 1
        try:
            return await line.turn(limit, within_s, caller, first=first)
        finally:
            metrics.live_readers -= 1
            metrics.consumers_waiting -= 1


class _Moved(Exception):
    """The name leads to another topic than it did when the consumer began to wait."""

    def __init__(self, left_s: float, command: Consume) -> None:
        super().__init__()
        self.left_s = left_s
        self.command = command


class Asking:
    """A `Consume` under way, to be awaited. If whoever awaits it leaves, what it claims is given back."""

    __slots__ = ("_answer", "_asked", "_command", "_consuming", "_left", "_principal")

    def __init__(self, consuming: Consuming, command: Consume, principal: Principal) -> None:
        self._consuming = consuming
        self._command = command
        self._principal = principal
        self._left = False
        db = consuming._db
        # What is awaited is not what the writer sets: a task that is cancelled cancels what it awaits.
        self._asked = cast(Completion[Delivery], db.aexecute(command, principal))
        self._answer: Completion[None] = Completion(asyncio.get_running_loop())
        self._asked.on_done(self._done)

    def _done(self) -> None:
        if self._left:
            # Not from within the writer's handing out of answers: others wait for theirs.
            asyncio.get_running_loop().call_soon(self._give_back)
        else:
            self._answer.set(None)

    def _give_back(self) -> None:
        if self._asked.exception() is None:
            self._consuming.give_back(self._command, self._principal, self._asked.result())

    def __await__(self) -> Generator[Any, None, Delivery]:
        try:
            yield from self._answer.__await__()
        except asyncio.CancelledError:
            self._left = True
            if self._asked.done():
                self._give_back()
            raise
        return self._asked.result()


def _dropped(topic: Topic) -> NotFound:
    return NotFound(f"topic {topic.name!r} was dropped while this request waited for messages", code="TOPIC_NOT_FOUND")
