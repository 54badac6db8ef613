"""When a caller that waits for messages should consume again, and with which command."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from tailrace.clock import Clock
from tailrace.embedded import messages
from tailrace.embedded.requests import ConsumeRequest
from tailrace.embedded.running import Followers
from tailrace.errors import NotFound, Unavailable
from tailrace.log.log import Advanced, Ended
from tailrace.topics.consuming import Consume, ConsumedMessages
from tailrace.topics.group import OFFSET, GroupMoved, StartPoint, TopicChanged
from tailrace.topics.queries import ReadTopic
from tailrace.topics.topic import Topic

ALARM_S_MIN: Final = 0.001  # timers are not more exact than that
WAIT_S_MAX: Final = 3600.0  # event loops do not wait for centuries
ConsumeCommand: TypeAlias = Consume | ReadTopic
_turns: Final = itertools.count()


class Alarm:
    """The time at which a waiting consumer should consume again."""

    def __init__(self, clock: Clock, command: ConsumeCommand) -> None:
        self._clock = clock
        self._group = command.group if isinstance(command, Consume) else None
        self._at_ms: int | None = None
        self._changing = threading.Lock()

    def notify(self, notices: list[Any], wake: Callable[[bool], object]) -> None:
        """A commit touched one of the partitions: call `wake` with True to consume again at once, with False if only
        the time has changed."""
        again = rearmed = False
        for notice in notices:
            if isinstance(notice, GroupMoved):
                if notice.group == self._group:
                    again = again or bool(notice.deliverable)
                    rearmed = self._sooner(notice.wake_ms) or rearmed
            elif isinstance(notice, Advanced | Ended | TopicChanged):
                again = True
        if again or rearmed:
            wake(again)

    def set(self, at_ms: int | None) -> None:
        """The time that the last response gave; a notice may have set a sooner one."""
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


def consume_command(request: ConsumeRequest) -> ConsumeCommand:
    """The command that leases messages, or the query that reads them."""
    messages.check_texts(topic=request.topic, group=request.group, consumer=request.consumer)
    messages.check_numbers(limit=request.limit)
    number, start = messages.partition_number(request.partition), messages.start_at(request.start)
    if request.group is None:
        return ReadTopic(request.topic, 0 if number is None else number, start, request.limit)
    visibility_ms = messages.milliseconds("visibility_s", request.visibility_s)
    # For any partition, each request looks at another one first: none of them waits for the others to be empty.
    return Consume(
        request.topic, request.group, number, start, request.limit, request.consumer, visibility_ms, first=next(_turns)
    )


def next_command(command: ConsumeCommand, found: ConsumedMessages) -> ConsumeCommand:
    """The command after an empty response: without a group the position is kept, for "latest" moves."""
    if isinstance(command, Consume):
        return command
    return ReadTopic(command.topic, command.partition, StartPoint(OFFSET, found.next_offset), command.limit)


def logs(topic: Topic, command: ConsumeCommand) -> list[int]:
    """The logs in which messages for this command appear."""
    numbers = range(topic.partitions) if command.partition is None else (command.partition,)
    return [topic.log_of(number) for number in numbers]


def check_open(followers: Followers) -> None:
    """Refuse to wait for a database that was closed."""
    if followers.closed:
        raise Unavailable("the database was closed while this call waited for messages", code="CLOSED")


def has_moved(topic: Topic, found: ConsumedMessages, command: ConsumeCommand) -> bool:
    """Whether to wait elsewhere: an alias leads to another topic now, or the topic has more partitions. A topic that
    was dropped is an error."""
    if found.topic.id == topic.id:
        return found.topic.partitions != topic.partitions
    if command.topic == topic.name:
        raise NotFound(f"topic {topic.name!r} was dropped while this call waited for messages", code="TOPIC_NOT_FOUND")
    return True
