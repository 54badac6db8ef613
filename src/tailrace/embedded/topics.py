"""What a database can do with topics: make and drop them, publish to them, and consume from them in groups.

To wait for messages is to subscribe to the partitions first, consume then, and wait for what the tail tells: new
messages, something given back, or the time at which a lease runs out. Nothing polls.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Awaitable, Coroutine, Iterable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

import msgspec
from msgspec import UNSET, UnsetType

from tailrace.clock import Clock
from tailrace.command import Command, Query
from tailrace.embedded import messages as plain
from tailrace.embedded.async_consumer import AsyncConsumer
from tailrace.embedded.consumer import Consumer
from tailrace.embedded.messages import Begin, Delivery, Partition, Payload, Place, Published, TopicInfo
from tailrace.embedded.running import Executor, Followers, arun, run
from tailrace.errors import NotFound, Unavailable
from tailrace.log.log import Advanced, Ended
from tailrace.streams.producer import Claim
from tailrace.tables.export import Exports
from tailrace.tables.plain import Steps
from tailrace.topics.commands import CreateTopic, DropTopic, Options, Outgoing, Publish
from tailrace.topics.consuming import Ack, Consume, Extend, Nack
from tailrace.topics.consuming import Delivery as Delivered
from tailrace.topics.group import OFFSET, Moved, Start
from tailrace.topics.queries import Described, DescribeTopic, FindTopic, ListTopics, ReadTopic
from tailrace.topics.topic import Topic

T = TypeVar("T")
_turns: Final = itertools.count()
ALARM_S_MIN: Final = 0.001  # timers are not more exact than that
Asked = Consume | ReadTopic


class TopicOperations:
    """The part of `Database` that is about topics. It relies on `execute`, `followers` and `clock`."""

    clock: Clock
    exports: Exports

    if TYPE_CHECKING:

        @property
        def followers(self) -> Followers: ...
        def execute(self, command: Command[T] | Query[T]) -> T: ...
        def aexecute(self, command: Command[T] | Query[T]) -> Awaitable[T]: ...

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        alias: str | UnsetType | None = UNSET,
        retention_seconds: int | UnsetType | None = UNSET,
        retention_max_bytes: int | UnsetType | None = UNSET,
        max_attempts: int | UnsetType | None = UNSET,
        dead_letter: str | UnsetType | None = UNSET,
        exist_ok: bool = False,
    ) -> TopicInfo:
        """Make a topic. With `exist_ok` one that is there already is fine, and stays as it is.

        `alias` is a second name. Messages are kept for `retention_seconds`, and `retention_max_bytes` of them in each
        partition; without, for ever. One that was delivered `max_attempts` times to a group and not acknowledged goes
        to the topic `dead_letter`.

        >>> db.create_topic("app.jobs", partitions=4, exist_ok=True).partitions
        4
        """
        options = Options(
            alias=alias, retention_seconds=retention_seconds, retention_max_bytes=retention_max_bytes,
            max_attempts=max_attempts, dead_letter=dead_letter,
        )  # fmt: skip
        return run(self, _create(name, partitions, options, exist_ok))

    def drop_topic(self, name: str, *, missing_ok: bool = False) -> bool:
        """Drop a topic with its messages, groups and routes; whether it was there."""
        return run(self, _drop(name, missing_ok))

    def topics(self) -> list[TopicInfo]:
        """All topics, by name."""
        return run(self, _list())

    def describe_topic(self, name: str) -> Described:
        """A topic with its partitions, groups and routes."""
        return run(self, _describe(name))

    # -- publishing

    @overload
    def publish(
        self, topic: str, payload: list[Payload], *, key: str | bytes | None = None, partition: int | None = None
    ) -> list[Place]: ...

    @overload
    def publish(
        self, topic: str, payload: Payload, *, key: str | bytes | None = None, partition: int | None = None
    ) -> Place: ...

    def publish(
        self, topic: str, payload: Payload, *, key: str | bytes | None = None, partition: int | None = None
    ) -> Place | list[Place]:
        """Add a message to a topic, or a list of them: all or none. Where they are.

        A payload is bytes, or text, or what becomes JSON. Messages with the same key go to the same partition, where
        their order is kept; without a key and a partition they go to partition 0.

        >>> db.publish("app.jobs", {"job": 1}, key="user-7").offset
        0
        """
        several = isinstance(payload, list)
        made = plain.outgoings(payload if several else [payload], key, partition)
        places = run(self, _publish(topic, made, None)).places
        return places if several else places[0]

    def publish_many(
        self,
        topic: str,
        payloads: Iterable[Payload | Outgoing],
        *,
        key: str | bytes | None = None,
        partition: int | None = None,
        claim: Claim | None = None,
    ) -> Published:
        """Add messages to a topic: all or none. `Outgoing` gives one its own key or partition; with the `claim` of a
        producer they are added once, however often they are sent (see `Producer`)."""
        return run(self, _publish(topic, plain.outgoings(payloads, key, partition), claim))

    # -- consuming

    def consume(
        self,
        topic: str,
        group: str | None,
        *,
        limit: int = 100,
        consumer: str = "",
        start: Begin = "earliest",
        partition: Partition = 0,
        visibility_s: float = 60.0,
        timeout_s: float = 0.0,
    ) -> Delivery:
        """Messages for a consumer of a group, leased to it for `visibility_s`; if there are none yet, those that come
        within `timeout_s`.

        `start` counts for a group's first consume: "earliest", "latest", an offset, or a `datetime`. `partition` "any"
        is whichever has something. Without a group (None) nothing is leased, and `start` counts each time.

        >>> got = db.consume("app.jobs", "workers", partition="any", consumer="worker-1")
        >>> [message.json() for message in got]
        [{'job': 1}]
        """
        asked = question(topic, group, limit, consumer, start, partition, visibility_s)
        return plain.delivery(self._claimed(asked, timeout_s, SimpleQueue()))

    def ack(
        self, topic: str, group: str, upto: int, *, partition: int = 0, consumer: str = "", lease: str | None = None
    ) -> int:
        """Acknowledge what a consumer holds, up to and including an offset, of one lease if it is given. The offset up
        to which the group has acknowledged all; -1: nothing yet.

        >>> db.ack("app.jobs", "workers", got.messages[-1].offset, partition=got.partition, consumer="worker-1")
        0
        """
        return run(self, _ack(topic, group, upto, partition, consumer, lease))

    def extend(
        self,
        topic: str,
        group: str,
        *,
        partition: int = 0,
        consumer: str = "",
        lease: str | None = None,
        visibility_s: float = 60.0,
    ) -> int:
        """Let a consumer keep what it holds for `visibility_s` from now on; how many messages that is. `Conflict` with
        the code LEASE_LOST says that it holds nothing any more."""
        return run(self, _extend(topic, group, partition, consumer, lease, visibility_s))

    def nack(
        self,
        topic: str,
        group: str,
        *,
        partition: int = 0,
        consumer: str = "",
        lease: str | None = None,
        first: int | None = None,
        upto: int | None = None,
        delay_s: float = 0.0,
    ) -> int:
        """Give back what a consumer holds, or what of it lies from `first` to `upto`, to be delivered again after a
        delay; how many messages that is."""
        return run(self, _nack(topic, group, partition, consumer, lease, first, upto, delay_s))

    def consumer(self, topic: str, group: str, **options: Any) -> Consumer:
        """A `Consumer` of this database: a loop over messages that acknowledges what was worked off."""
        return Consumer(self, topic, group, **options)

    def waiter(self) -> Waiter:
        """Someone to consume whose waiting another thread can end."""
        return Waiter(self)

    def _claimed(self, asked: Asked, timeout_s: float, wakes: SimpleQueue[bool | None]) -> Delivered:
        """Consume, and wait for messages if there are none. In `wakes`, None ends the wait."""
        if plain.check_seconds("timeout_s", timeout_s) <= 0:
            return self.execute(asked)
        topic = self.execute(FindTopic(asked.topic))
        deadline_s = time.monotonic() + timeout_s
        alarm = Alarm(self.clock, asked)
        with self.followers.waiting_for(_logs(topic, asked), lambda notices: alarm.told(notices, wakes.put)):
            while True:
                found = self.execute(asked)
                if found.messages:
                    return found
                _check_open(self.followers)
                _check_same(topic, found)
                asked = _from_there(asked, found)
                alarm.set(found.wake_ms)
                again: bool | None = False
                while again is False:  # it was only told when to look again
                    left_s = deadline_s - time.monotonic()
                    if left_s <= 0:
                        return found
                    try:
                        again = wakes.get(timeout=min(left_s, alarm.after_s()))
                    except Empty:
                        again = alarm.rings()
                if again is None:
                    return found


class Waiter:
    """Consumes from a database, for one thread; `interrupt` is for the others, and for signal handlers."""

    def __init__(self, db: TopicOperations) -> None:
        self._db = db
        self._wakes: SimpleQueue[bool | None] = SimpleQueue()  # the one queue that may be filled while it is filled
        self._interrupted = False

    def consume(
        self,
        topic: str,
        group: str,
        *,
        limit: int,
        consumer: str,
        start: Begin,
        partition: Partition,
        visibility_s: float,
        timeout_s: float,
    ) -> Delivery:
        """As `TopicOperations.consume`; with no messages when it was interrupted."""
        asked = question(topic, group, limit, consumer, start, partition, visibility_s)
        return plain.delivery(self._db._claimed(asked, 0.0 if self._interrupted else timeout_s, self._wakes))

    def interrupt(self) -> None:
        """End the wait, and those to come."""
        self._interrupted = True
        self._wakes.put(None)

    def close(self) -> None:
        """There is nothing to let go of."""


class Alarm:
    """When a waiting consumer should ask again."""

    def __init__(self, clock: Clock, asked: Asked) -> None:
        self._clock = clock
        self._group = asked.group if isinstance(asked, Consume) else None
        self._at_ms: int | None = None
        self._changing = threading.Lock()

    def told(self, notices: list[Any], wake: Any) -> None:
        """A commit touched one of the partitions: call `wake` with whether to ask again at once; False, if there is
        only a new time to look at."""
        again = rearmed = False
        for notice in notices:
            if isinstance(notice, Moved):
                if notice.group == self._group:
                    again = again or notice.deliverable
                    rearmed = self._sooner(notice.wake_ms) or rearmed
            elif isinstance(notice, Advanced | Ended):
                again = True
        if again or rearmed:
            wake(again)

    def set(self, at_ms: int | None) -> None:
        """As the last answer said; what was told meanwhile may be sooner."""
        self._sooner(at_ms)

    def _sooner(self, at_ms: int | None) -> bool:
        with self._changing:
            if at_ms is None or (self._at_ms is not None and self._at_ms <= at_ms):
                return False
            self._at_ms = at_ms
            return True

    def after_s(self) -> float:
        """How long until then."""
        at_ms = self._at_ms
        return threading.TIMEOUT_MAX if at_ms is None else max((at_ms - self._clock.now_ms()) / 1000, ALARM_S_MIN)

    def rings(self) -> bool:
        """Whether it is time; the alarm is off then."""
        with self._changing:
            if self._at_ms is None or self._clock.now_ms() < self._at_ms:
                return False
            self._at_ms = None
            return True


class AsyncTopicOperations:
    """`TopicOperations` for programs on an event loop."""

    _db: TopicOperations

    def create_topic(
        self, name: str, partitions: int = 1, *, exist_ok: bool = False, **options: Any
    ) -> Coroutine[Any, Any, TopicInfo]:
        """As `TopicOperations.create_topic`."""
        return arun(self._db, _create(name, partitions, Options(**options), exist_ok))

    def drop_topic(self, name: str, *, missing_ok: bool = False) -> Coroutine[Any, Any, bool]:
        """As `TopicOperations.drop_topic`."""
        return arun(self._db, _drop(name, missing_ok))

    def topics(self) -> Coroutine[Any, Any, list[TopicInfo]]:
        """As `TopicOperations.topics`."""
        return arun(self._db, _list())

    def describe_topic(self, name: str) -> Coroutine[Any, Any, Described]:
        """As `TopicOperations.describe_topic`."""
        return arun(self._db, _describe(name))

    @overload
    async def publish(
        self, topic: str, payload: list[Payload], *, key: str | bytes | None = None, partition: int | None = None
    ) -> list[Place]: ...

    @overload
    async def publish(
        self, topic: str, payload: Payload, *, key: str | bytes | None = None, partition: int | None = None
    ) -> Place: ...

    async def publish(
        self, topic: str, payload: Payload, *, key: str | bytes | None = None, partition: int | None = None
    ) -> Place | list[Place]:
        """As `TopicOperations.publish`."""
        several = isinstance(payload, list)
        made = plain.outgoings(payload if several else [payload], key, partition)
        places = (await arun(self._db, _publish(topic, made, None))).places
        return places if several else places[0]

    def publish_many(
        self,
        topic: str,
        payloads: Iterable[Payload | Outgoing],
        *,
        key: str | bytes | None = None,
        partition: int | None = None,
        claim: Claim | None = None,
    ) -> Coroutine[Any, Any, Published]:
        """As `TopicOperations.publish_many`."""
        return arun(self._db, _publish(topic, plain.outgoings(payloads, key, partition), claim))

    async def consume(
        self,
        topic: str,
        group: str | None,
        *,
        limit: int = 100,
        consumer: str = "",
        start: Begin = "earliest",
        partition: Partition = 0,
        visibility_s: float = 60.0,
        timeout_s: float = 0.0,
    ) -> Delivery:
        """As `TopicOperations.consume`. Cancelled, it holds nothing: what was leased meanwhile is given back."""
        asked = question(topic, group, limit, consumer, start, partition, visibility_s)
        if plain.check_seconds("timeout_s", timeout_s) <= 0:
            return plain.delivery(await self._asked(asked))
        db = self._db
        found_topic = await db.aexecute(FindTopic(topic))
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        alarm, woken = Alarm(db.clock, asked), asyncio.Event()
        asking = False

        def wake(again: bool) -> None:
            nonlocal asking
            asking = asking or again
            woken.set()

        def told(notices: list[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # a loop that is closed: nobody waits here any more
                alarm.told(notices, lambda again: loop.call_soon_threadsafe(wake, again))

        with db.followers.waiting_for(_logs(found_topic, asked), told):
            while True:
                asking = False
                found = await self._asked(asked)
                if found.messages:
                    return plain.delivery(found)
                _check_same(found_topic, found)
                asked = _from_there(asked, found)
                alarm.set(found.wake_ms)
                while not asking:
                    left_s = deadline_s - loop.time()
                    _check_open(db.followers)
                    if left_s <= 0:
                        return plain.delivery(found)
                    woken.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(min(left_s, alarm.after_s(), _AWHILE_S)):
                            await woken.wait()
                    asking = alarm.rings() or asking

    async def _asked(self, asked: Asked) -> Delivered:
        """The answer; if whoever waits for it is cancelled, what it leased is given back."""
        if not isinstance(asked, Consume):
            return await self._db.aexecute(asked)
        asking = asyncio.ensure_future(_awaited(self._db.aexecute(asked)))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.add_done_callback(lambda done: _return(self._db, asked, done))
            raise

    def consumer(self, topic: str, group: str, *, concurrency: int = 1, **options: Any) -> AsyncConsumer:
        """An `AsyncConsumer` of this database: up to `concurrency` handlers at once."""
        return AsyncConsumer(self._db, topic, group, concurrency=concurrency, **options)

    def ack(
        self, topic: str, group: str, upto: int, *, partition: int = 0, consumer: str = "", lease: str | None = None
    ) -> Coroutine[Any, Any, int]:
        """As `TopicOperations.ack`."""
        return arun(self._db, _ack(topic, group, upto, partition, consumer, lease))

    def extend(
        self,
        topic: str,
        group: str,
        *,
        partition: int = 0,
        consumer: str = "",
        lease: str | None = None,
        visibility_s: float = 60.0,
    ) -> Coroutine[Any, Any, int]:
        """As `TopicOperations.extend`."""
        return arun(self._db, _extend(topic, group, partition, consumer, lease, visibility_s))

    def nack(
        self,
        topic: str,
        group: str,
        *,
        partition: int = 0,
        consumer: str = "",
        lease: str | None = None,
        first: int | None = None,
        upto: int | None = None,
        delay_s: float = 0.0,
    ) -> Coroutine[Any, Any, int]:
        """As `TopicOperations.nack`."""
        return arun(self._db, _nack(topic, group, partition, consumer, lease, first, upto, delay_s))


_AWHILE_S: Final = 3600.0  # event loops do not wait for centuries


async def _awaited(answer: Awaitable[T]) -> T:
    return await answer


def _return(db: Executor, asked: Consume, done: asyncio.Future[Delivered]) -> None:
    """Give back what was leased to a consumer that has left; if that fails, the lease runs out."""
    if done.cancelled() or done.exception() is not None:
        return
    found = done.result()
    if found.messages:
        # The command is submitted by this very call; nobody waits for what comes of it.
        db.aexecute(Nack(asked.topic, asked.group, found.partition, asked.consumer, found.lease, undelivered=True))


# -- operations, apart from how they wait


def question(
    topic: str, group: str | None, limit: int, consumer: str, start: Begin, partition: Partition, visibility_s: float
) -> Asked:
    """The command or query that asks for messages."""
    plain.check_texts(topic=topic, group=group, consumer=consumer)
    plain.check_numbers(limit=limit)
    number, begin = plain.partition_number(partition), plain.start_at(start)
    if group is None:
        return ReadTopic(topic, 0 if number is None else number, begin, limit)
    visibility_ms = plain.milliseconds("visibility_s", visibility_s)
    # Where any will do, each question looks at another partition first: none of them waits for the others to be empty.
    return Consume(topic, group, number, begin, limit, consumer, visibility_ms, first=next(_turns))


def _from_there(asked: Asked, found: Delivered) -> Asked:
    """What to ask after an empty answer: without a group the place is kept, for what is the latest moves."""
    if isinstance(asked, Consume):
        return asked
    return ReadTopic(asked.topic, asked.partition, Start(OFFSET, found.next_offset), asked.limit)


def _check_open(followers: Followers) -> None:
    if followers.closed:
        raise Unavailable("the database was closed while this call waited for messages", code="CLOSED")


def _check_same(topic: Topic, found: Delivered) -> None:
    if found.topic.id != topic.id:
        raise NotFound(f"topic {topic.name!r} was dropped while this call waited for messages", code="TOPIC_NOT_FOUND")


def _logs(topic: Topic, asked: Asked) -> list[int]:
    numbers = range(topic.partitions) if asked.partition is None else (asked.partition,)
    return [topic.log_of(number) for number in numbers]


def _create(name: str, partitions: int, options: Options, exist_ok: bool) -> Steps[TopicInfo]:
    told = {each: given for each, given in msgspec.structs.asdict(options).items() if given is not UNSET}
    texts = {each: told.pop(each) for each in ("alias", "dead_letter") if each in told}
    plain.check_texts(name=name, **texts)
    plain.check_numbers(partitions=partitions, **told)
    made = yield CreateTopic(name, partitions, options, exist_ok)
    return plain.topic_info(made.topic)


def _drop(name: str, missing_ok: bool) -> Steps[bool]:
    plain.check_texts(name=name)
    there: bool = yield DropTopic(name, missing_ok)
    return there


def _describe(name: str) -> Steps[Described]:
    plain.check_texts(name=name)
    found: Described = yield DescribeTopic(name)
    return found


def _list() -> Steps[list[TopicInfo]]:
    found = yield ListTopics()
    return [plain.topic_info(topic) for topic in found]


def _publish(topic: str, made: tuple[Outgoing, ...], claim: Claim | None) -> Steps[Published]:
    plain.check_texts(topic=topic)
    done = yield Publish(topic, made, claim)
    return Published([Place(*place) for place in done.places], done.duplicate)


def _ack(topic: str, group: str, upto: int, partition: int, consumer: str, lease: str | None) -> Steps[int]:
    plain.check_texts(topic=topic, group=group, consumer=consumer, lease=lease)
    plain.check_numbers(upto=upto, partition=partition)
    done = yield Ack(topic, group, upto, partition, consumer, lease)
    return int(done.floor) - 1


def _extend(
    topic: str, group: str, partition: int, consumer: str, lease: str | None, visibility_s: float
) -> Steps[int]:
    plain.check_texts(topic=topic, group=group, consumer=consumer, lease=lease)
    plain.check_numbers(partition=partition)
    done = yield Extend(topic, group, partition, consumer, lease, plain.milliseconds("visibility_s", visibility_s))
    return int(done.messages)


def _nack(
    topic: str, group: str, partition: int, consumer: str, lease: str | None, first: int | None, upto: int | None,
    delay_s: float,
) -> Steps[int]:  # fmt: skip
    plain.check_texts(topic=topic, group=group, consumer=consumer, lease=lease)
    plain.check_numbers(partition=partition, first=first, upto=upto)
    delay_ms = plain.milliseconds("delay_s", delay_s)
    done = yield Nack(topic, group, partition, consumer, lease, first, upto, delay_ms)
    return int(done.messages)
