"""The operations of a database on topics: create and drop them, publish to them, and consume from them in groups.

Waiting for messages means to subscribe to the partitions first, to consume then, and to wait for a notice of the tail:
new messages, messages that were given back, or the time at which a lease expires. Nothing polls.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from queue import Empty

import msgspec
from msgspec import UNSET, UnsetType

from tailrace.embedded import messages
from tailrace.embedded.aio.topic_api import AsyncTopicApi
from tailrace.embedded.alarm import (
    WAIT_S_MAX,
    Alarm,
    ConsumeCommand,
    check_open,
    consume_command,
    has_moved,
    logs,
    next_command,
)
from tailrace.embedded.async_primitives import ASYNC, AsyncQueue, undone_if_cancelled
from tailrace.embedded.heartbeat import HeartbeatSource
from tailrace.embedded.messages import Delivery, Published, PublishedMessage, TopicInfo
from tailrace.embedded.requests import (
    AckRequest,
    ConsumeRequest,
    ExtendRequest,
    LeaseRequest,
    NackRequest,
    PublishRequest,
)
from tailrace.embedded.running import AsyncFacade, Executor
from tailrace.topics.commands import CreateTopic, DropTopic, Publish, TopicOptions
from tailrace.topics.consuming import Ack, Consume, ConsumedMessages, Extend, Nack
from tailrace.topics.queries import DescribeTopic, FindTopic, ListTopics, TopicDescription


class AsyncTopicOperations(AsyncTopicApi, AsyncFacade):
    """The operations of a database on topics, for programs on an event loop."""

    async def create_topic(
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
        """Create a topic. With `exist_ok` a topic that exists is returned as it is.

        `alias` is a second name. Messages are kept for `retention_seconds`, and up to `retention_max_bytes` in each
        partition; by default for ever. A message that was delivered `max_attempts` times to a group and not
        acknowledged goes to the topic `dead_letter`.

        >>> topic = await db.aio.create_topic("app.jobs", partitions=4, exist_ok=True)
        >>> topic.partitions
        4
        """
        options = TopicOptions(
            alias=alias, retention_seconds=retention_seconds, retention_max_bytes=retention_max_bytes,
            max_attempts=max_attempts, dead_letter=dead_letter,
        )  # fmt: skip
        given = {each: option for each, option in msgspec.structs.asdict(options).items() if option is not UNSET}
        texts = {each: given.pop(each) for each in ("alias", "dead_letter") if each in given}
        messages.check_texts(name=name, **texts)
        messages.check_numbers(partitions=partitions, **given)
        made = await self._db.aexecute(CreateTopic(name, partitions, options, exist_ok))
        return messages.topic_info(made.topic)

    async def drop_topic(self, name: str, *, missing_ok: bool = False) -> bool:
        """Drop a topic with its messages, groups and routes. Returns whether it existed."""
        messages.check_texts(name=name)
        return await self._db.aexecute(DropTopic(name, missing_ok))

    async def topics(self) -> list[TopicInfo]:
        """All topics, by name."""
        found = await self._db.aexecute(ListTopics())
        return [messages.topic_info(topic) for topic in found]

    async def describe_topic(self, name: str) -> TopicDescription:
        """A topic with its partitions, groups and routes."""
        messages.check_texts(name=name)
        return await self._db.aexecute(DescribeTopic(name))

    # -- requests

    async def send_publish(self, request: PublishRequest) -> Published:
        """Publish messages."""
        messages.check_texts(topic=request.topic)
        done = await self._db.aexecute(Publish(request.topic, request.messages, request.claim))
        return Published([PublishedMessage(*each) for each in done.offsets], done.duplicate)

    async def send_consume(self, request: ConsumeRequest) -> Delivery:
        """Consume messages."""
        if request.timeout_s == 0:
            return messages.delivery(await _consumed(self._db, consume_command(request)))
        return await self.waiter().consume(request)

    async def send_ack(self, request: AckRequest) -> int:
        """Acknowledge messages."""
        _check(request)
        messages.check_numbers(upto=request.upto)
        done = await self._db.aexecute(
            Ack(
                request.topic,
                request.group,
                request.upto,
                request.partition,
                request.consumer,
                request.lease,
                request.offsets,
            )
        )
        return done.floor - 1

    async def send_extend(self, request: ExtendRequest) -> int:
        """Extend a lease."""
        _check(request)
        visibility_ms = messages.milliseconds("visibility_s", request.visibility_s)
        done = await self._db.aexecute(
            Extend(request.topic, request.group, request.partition, request.consumer, request.lease, visibility_ms)
        )
        return done.messages

    async def send_nack(self, request: NackRequest) -> int:
        """Give messages back."""
        _check(request)
        messages.check_numbers(first=request.first, upto=request.upto)
        delay_ms = messages.milliseconds("delay_s", request.delay_s)
        done = await self._db.aexecute(
            Nack(
                request.topic, request.group, request.partition, request.consumer, request.lease, request.first,
                request.upto, delay_ms,
            )
        )  # fmt: skip
        return done.messages

    def heartbeat_source(self) -> AbstractContextManager[HeartbeatSource]:
        """The database, for the heartbeat of a consumer."""
        return nullcontext(self._db)

    def waiter(self) -> AsyncWaiter:
        """A waiter for one consumer, whose wait another thread can end."""
        return AsyncWaiter(self._db)


class AsyncWaiter:
    """Consumes from a database; `interrupt` is for other threads, and for signal handlers."""

    def __init__(self, db: Executor) -> None:
        self._db = db
        self._wakes: AsyncQueue[bool | None] = AsyncQueue()  # None ends the wait
        self._interrupted = False

    async def consume(self, request: ConsumeRequest) -> Delivery:
        """Messages, once there are some; none if the time has passed or the wait was interrupted."""
        command = consume_command(request)
        timeout_s = messages.check_seconds("timeout_s", request.timeout_s)
        if timeout_s <= 0 or self._interrupted:
            return messages.delivery(await _consumed(self._db, command))
        topic = await self._db.aexecute(FindTopic(command.topic))
        deadline_s = time.monotonic() + timeout_s
        alarm = Alarm(self._db.clock, command)
        wakes = self._wakes
        with self._db.followers.waiting_for(logs(topic, command), lambda notices: alarm.notify(notices, wakes.put)):
            while True:
                found = await _consumed(self._db, command)
                if found.ranges:
                    break
                check_open(self._db.followers)
                if has_moved(topic, found, command):
                    left_s = max(0.0, deadline_s - time.monotonic())
                    return await self.consume(msgspec.structs.replace(request, timeout_s=left_s))
                command = next_command(command, found)
                alarm.set(found.wake_ms)
                again: bool | None = False
                while again is False:  # there was only a new time to look again
                    left_s = deadline_s - time.monotonic()
                    if left_s <= 0:
                        return messages.delivery(found)
                    try:
                        again = await wakes.get(min(left_s, alarm.after_s(), WAIT_S_MAX))
                    except Empty:
                        again = alarm.rings()
                if again is None:
                    break
        return messages.delivery(found)

    def interrupt(self) -> None:
        """End the wait, and those to come."""
        self._interrupted = True
        self._wakes.put(None)

    async def aclose(self) -> None:
        """There is nothing to release."""


async def _consumed(db: Executor, command: ConsumeCommand) -> ConsumedMessages:
    if ASYNC and isinstance(command, Consume):
        return await undone_if_cancelled(db.aexecute(command), partial(_give_back, db, command))
    return await db.aexecute(command)


if ASYNC:

    def _give_back(db: Executor, command: Consume, found: ConsumedMessages) -> None:
        """Give back the messages that were leased to a consumer that has left; if that fails, the lease expires."""
        if found.ranges:
            # The command is submitted by this very call; nothing waits for its result.
            db.aexecute(
                Nack(command.topic, command.group, found.partition, command.consumer, found.lease, undelivered=True)
            )


def _check(request: LeaseRequest) -> None:
    messages.check_texts(topic=request.topic, group=request.group, consumer=request.consumer, lease=request.lease)
    messages.check_numbers(partition=request.partition)
