"""Commands of consumer groups: consume, ack, nack, extend, reset, drop. The rules are in `group.py`."""

from __future__ import annotations

import re
from itertools import chain
from typing import Final

import msgspec

from tailrace import limits
from tailrace.access import Permission
from tailrace.command import Command
from tailrace.errors import Invalid, LimitExceeded, NotFound
from tailrace.log import cold, segments
from tailrace.log.entry import Log
from tailrace.log.tail import ACKNOWLEDGED
from tailrace.storage.engine import Reader, Tx
from tailrace.topics import consumption, router
from tailrace.topics import group as rules
from tailrace.topics.commands import subject
from tailrace.topics.group import (
    EARLIEST,
    LATEST,
    OFFSET,
    TIMESTAMP,
    Acknowledged,
    GroupMoved,
    GroupProgress,
    LeasedRange,
    StartPoint,
)
from tailrace.topics.topic import (
    GROUPS,
    TOPICS,
    DeliveredMessage,
    DeliveredRange,
    GroupRow,
    Topic,
    encode,
    find,
    opened,
    partition_log,
    read,
)

LEASE_BITS: Final = 31  # bits of a lease's number that count leases within its group
_LEASE: Final = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")


class ConsumedMessages(msgspec.Struct, frozen=True):
    """Messages, and the state after their delivery. `lease` is None without a group; `wake_ms` is when the next lease
    ends, if nothing can be delivered before."""

    topic: Topic
    partition: int
    log: int
    ranges: list[DeliveredRange]  # none of them empty
    next_offset: int
    has_more: bool
    skipped: int = 0  # messages that retention removed before they were delivered to the group
    lease: str | None = None
    wake_ms: int | None = None
    acked: int = 0  # messages that the same call acknowledged

    @property
    def count(self) -> int:
        """The number of messages."""
        return sum([each.count for each in self.ranges])

    @property
    def messages(self) -> list[DeliveredMessage]:
        """The messages, decoded."""
        return [
            DeliveredMessage(self.partition, offset, at_ms, each.attempt, opened(body))
            for each in self.ranges
            for segment in each.segments
            for offset, at_ms, body in segments.views(segment)
        ]


class Acked(msgspec.Struct, frozen=True, gc=False):
    topic: Topic
    floor: int  # the first offset that the group has not acknowledged
    acked: int  # the number of messages that this call acknowledged


class Extended(msgspec.Struct, frozen=True, gc=False):
    topic: Topic
    until_ms: int
    messages: int


class Nacked(msgspec.Struct, frozen=True, gc=False):
    topic: Topic
    messages: int


class GroupReset(msgspec.Struct, frozen=True):
    topic: Topic
    offsets: dict[int, int]  # by partition


class Consume(Command[ConsumedMessages], frozen=True, gc=False):
    """Deliver messages to a consumer of a group, and lease them to it.

    `start` applies to the group's first consume of the partition. `partition` None: the first partition with messages,
    searched from `first` on. `acks` are applied before, in the same commit: a consumer that has processed one batch
    acknowledges it when it requests the next."""

    history = True
    permission = Permission.CONSUME

    topic: str
    group: str
    partition: int | None = 0
    start: StartPoint = StartPoint()
    limit: int = 100
    consumer: str = ""
    visibility_ms: int = limits.VISIBILITY_MS
    bytes_max: int = limits.CONSUME_BYTES
    first: int = 0
    acks: tuple[Ack, ...] = ()
    wide: bool = False  # the topic has many partitions to search

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.topic), *(subject(ack.topic) for ack in self.acks))

    def heavy(self) -> bool:
        return self.wide or self.limit > limits.SLICE_ENTRIES

    def run(self, tx: Tx) -> ConsumedMessages:
        self._check()
        topic = find(tx, self.topic)
        if self.acks:
            acked = sum([ack.run(tx).acked for ack in self.acks])
            return msgspec.structs.replace(self._delivered(tx, topic), acked=acked)
        return self._delivered(tx, topic)

    def _delivered(self, tx: Tx, topic: Topic) -> ConsumedMessages:
        if self.partition is not None:
            return self._consume(tx, topic, self.partition)
        for partition in range(topic.partitions):  # each partition gets its start now
            log = partition_log(tx, topic, partition)
            if tx.get(GROUPS, log.id, self.group) is None:
                tx.put(GROUPS, _joined(tx, topic, log, self.group, self.start))
        wake_ms: int | None = None
        found: ConsumedMessages | None = None
        skipped = 0
        for turn in range(topic.partitions):
            found = self._consume(tx, topic, (self.first + turn) % topic.partitions)
            skipped += found.skipped
            if found.ranges:
                break
            if found.wake_ms is not None:
                wake_ms = found.wake_ms if wake_ms is None else min(wake_ms, found.wake_ms)
        assert found is not None
        more = found.has_more or (bool(found.ranges) and self._elsewhere(tx, topic, found.partition))
        return msgspec.structs.replace(found, wake_ms=wake_ms, skipped=skipped, has_more=more)

    def _elsewhere(self, tx: Tx, topic: Topic, but: int) -> bool:
        """Whether another partition has messages to deliver."""
        for partition in range(topic.partitions):
            log = partition_log(tx, topic, partition)
            row = tx.get(GROUPS, log.id, self.group)
            if partition == but:
                continue
            assert row is not None, "it has joined all of them"
            progress, _ = _overtaken(tx, log, row)
            if rules.deliverable(progress, log.next, tx.now_ms):
                return True
        return False

    def _check(self) -> None:
        check_group(self.group)
        check_consumer(self.consumer)
        if not 1 <= self.limit <= limits.CONSUME_MESSAGES_MAX:
            raise Invalid(f"limit is 1 to {limits.CONSUME_MESSAGES_MAX}, not {self.limit}")
        check_visibility(self.visibility_ms)

    def _consume(self, tx: Tx, topic: Topic, partition: int) -> ConsumedMessages:
        log = partition_log(tx, topic, partition)
        row = tx.get(GROUPS, log.id, self.group)
        fresh = row is None
        if row is None:
            row = _joined(tx, topic, log, self.group, self.start)
        progress, skipped = _overtaken(tx, log, row)
        if fresh:
            skipped += max(0, row.cursor - self.start.at) if self.start.kind == OFFSET else 0
        buried = 0
        if topic.max_attempts is not None:
            progress, buried = _bury(tx, topic, partition, log, self.group, progress)
        leased, ranges = self._taken(tx, topic, log, progress)
        lease = row.leases
        delivered = redelivered = 0
        if leased:
            delivered = sum([each.end - each.first for each in leased])
            lease += 1
            until_ms = tx.now_ms + self.visibility_ms
            progress = rules.taken(progress, leased, self.consumer, lease, until_ms, self.visibility_ms)
            redelivered = sum([each.end - each.first for each in leased if each.attempt])
        more = rules.deliverable(progress, log.next, tx.now_ms)
        wake_ms = rules.wake_ms(progress, tx.now_ms)
        if leased or skipped or buried or fresh:
            lost = row.lost if fresh else row.lost + skipped
            tx.put(
                GROUPS,
                GroupRow(
                    log.id, self.group, progress.cursor, lease, row.delivered + delivered,
                    row.redelivered + redelivered, lost, row.created_ms, tx.now_ms, rules.packed(progress.ranges),
                ),
            )  # fmt: skip
            tx.notify(log.id, GroupMoved(self.group, more, wake_ms))
        after = leased[-1].end if leased else progress.cursor
        return ConsumedMessages(
            topic, partition, log.id, ranges, after, more, skipped, lease_text(lease) if leased else None, wake_ms
        )

    def _taken(
        self, tx: Tx, topic: Topic, log: Log, progress: GroupProgress
    ) -> tuple[list[LeasedRange], list[DeliveredRange]]:
        """The offered ranges that fit, with their messages."""
        leased: list[LeasedRange] = []
        ranges: list[DeliveredRange] = []
        left = self.bytes_max
        for offer in rules.offers(progress, log.next, tx.now_ms, self.limit):
            if topic.max_attempts is not None and offer.attempt >= topic.max_attempts:
                continue  # too many to move at once; the next call continues
            try:
                found = read(tx, log, offer.first, offer.end - offer.first, left)
            except cold.ColdMiss:
                if not leased:
                    raise
                break  # deliver the messages found so far; the next call fetches the rest
            ranges.append(DeliveredRange(offer.attempt + 1, found))
            if found[-1].next < offer.end:
                leased.append(msgspec.structs.replace(offer, end=found[-1].next))
                break
            leased.append(offer)
            left -= sum([len(segment.body) for segment in found])
            if left <= 0:
                break
        return leased, ranges


def _joined(tx: Tx, topic: Topic, log: Log, name: str, start: StartPoint) -> GroupRow:
    """A group that consumes a partition for the first time."""
    if sum(1 for _ in tx.scan(GROUPS, log.id, limit=limits.GROUPS_MAX)) >= limits.GROUPS_MAX:
        raise LimitExceeded(
            f"topic {topic.name!r} has {limits.GROUPS_MAX} consumer groups, the maximum; drop some first"
        )
    cursor = max(cold.earliest(tx, log), resolved(tx, log, start))
    # A unique number prefixes the leases, so that a lease of a dropped group is never valid for another one.
    leases = tx.next_id("group") << LEASE_BITS
    return GroupRow(log.id, name, cursor, leases, 0, 0, 0, tx.now_ms, tx.now_ms, rules.NOTHING)


def resolved(reader: Reader | Tx, log: Log, start: StartPoint, *, exact: bool = False) -> int:
    """The offset of a start point; it may be below the log's start. An offset beyond the tail is an error if `exact`,
    and the tail otherwise, so that no message is skipped."""
    if start.kind == EARLIEST:
        return cold.earliest(reader, log)
    if start.kind == LATEST:
        return log.next
    if start.kind == TIMESTAMP:
        return _at_time(reader, log, start.at)
    if start.kind == OFFSET:
        if 0 <= start.at <= log.next:
            return start.at
        if start.at > log.next and not exact:
            return log.next
        raise Invalid(
            f"offset {start.at} is not in partition {log.owner.rpartition('/')[2]}, which goes from "
            f"{cold.earliest(reader, log)} to {log.next}; use one of those",
            code="INVALID_OFFSET",
        )
    raise Invalid(f"{start.kind!r} is not a start position; use earliest, latest, offset or timestamp")


def _at_time(reader: Reader | Tx, log: Log, at_ms: int) -> int:
    """The first offset whose message is not older, by bisection: offsets are dense and times are ordered."""
    low, high = log.start, log.next
    first = segments.outline(reader, log.id, low)
    if first is None or first[2] >= at_ms:  # the offset is the first hot one, or in cold storage
        return cold.first_since(reader, log, at_ms)
    while low < high:
        middle = (low + high) // 2
        found = segments.outline(reader, log.id, middle)
        if found is not None and found[2] < at_ms:
            low = middle + 1
        else:
            high = middle
    return low


def _overtaken(tx: Tx, log: Log, row: GroupRow) -> tuple[GroupProgress, int]:
    """The progress of a group, and how many messages it has lost to retention."""
    progress = GroupProgress(row.cursor, rules.unpacked(row.ranges))
    # Only a group that is behind the hot part needs the start of the cold range.
    start = log.start if progress.floor >= log.start else cold.earliest(tx, log)
    return rules.overtaken(progress, start, tx.now_ms)


def _bury(
    tx: Tx, topic: Topic, partition: int, log: Log, group: str, progress: GroupProgress
) -> tuple[GroupProgress, int]:
    """Move messages that have reached `max_attempts` to the dead-letter topic, one step's worth of them."""
    assert topic.max_attempts is not None and topic.dead_letter is not None
    target = tx.get(TOPICS, topic.dead_letter)
    assert target is not None, f"topic {topic.name!r} has lost its dead-letter topic"
    count, left = 0, limits.SLICE_BYTES
    for offer in rules.offers(progress, progress.cursor, tx.now_ms, limits.SLICE_ENTRIES):
        if offer.attempt < topic.max_attempts:
            continue
        if left <= 0:
            break
        try:
            letters = read(tx, log, offer.first, offer.end - offer.first, left)
        except cold.ColdMiss:
            if not count:
                raise
            break
        for offset, _, body in chain.from_iterable(map(segments.views, letters)):
            envelope = opened(body)
            left -= len(envelope.payload)
            origin = [topic.name, partition, offset, group, offer.attempt]
            key = envelope.key if envelope.key is not None else b"%d" % offset
            letter = encode(msgspec.structs.replace(envelope, origin=origin))
            router.append(tx, target.log_of(target.partition_for(key)), [letter])
        count += letters[-1].next - offer.first
        progress = GroupProgress(progress.cursor, rules.without(progress.ranges, offer.first, letters[-1].next))
    return progress, count


# -- settling


class Ack(Command[Acked], frozen=True, gc=False):
    """Acknowledge the messages that a consumer holds, up to and including an offset; or, where `offsets` has any, only
    those at these offsets."""

    freeing = True
    permission = Permission.CONSUME

    topic: str
    group: str
    upto: int
    partition: int = 0
    consumer: str = ""
    lease: str | None = None
    offsets: tuple[int, ...] = ()

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.topic),)

    def run(self, tx: Tx) -> Acked:
        topic = find(tx, self.topic)
        if self.upto < 0:
            raise Invalid(f"an offset is 0 or more, not {self.upto}")
        row = known(tx, topic, self.partition, self.group)
        progress = before = GroupProgress(row.cursor, rules.unpacked(row.ranges))
        lease = lease_number(self.lease)
        if self.offsets:
            progress, count = rules.acknowledged_each(progress, self.consumer, lease, self.offsets, tx.now_ms)
        else:
            progress, count = rules.acknowledged(progress, self.consumer, lease, self.upto)
        if count:
            _store(tx, row, progress)
            _note_acked(tx, row, before.ranges, progress, self.consumer)
        return Acked(topic, progress.floor, count)


class AckHeld(Command[Acked], frozen=True, gc=False):
    """Acknowledge exactly these messages, each range from an offset up to and including another: all of them, or none
    unless the consumer holds all of them now. For transactions."""

    freeing = True
    permission = Permission.CONSUME

    topic: str
    group: str
    offsets: tuple[tuple[int, int], ...]
    partition: int = 0
    consumer: str = ""
    lease: str | None = None

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.topic),)

    def run(self, tx: Tx) -> Acked:
        topic = find(tx, self.topic)
        check_consumer(self.consumer)
        for first, last in self.offsets:
            if not 0 <= first <= last:
                raise Invalid(f"offsets {first} to {last} are not a range; give the lower one first, from 0 on")
        row = known(tx, topic, self.partition, self.group)
        before = GroupProgress(row.cursor, rules.unpacked(row.ranges))
        progress, count = rules.settled(before, self.consumer, lease_number(self.lease), self.offsets, tx.now_ms)
        if count:
            _store(tx, row, progress)
            _note_acked(tx, row, before.ranges, progress, self.consumer)
        return Acked(topic, progress.floor, count)


class Extend(Command[Extended], frozen=True, gc=False):
    """Extend the leases of a consumer, from now on."""

    permission = Permission.CONSUME

    topic: str
    group: str
    partition: int = 0
    consumer: str = ""
    lease: str | None = None
    visibility_ms: int = limits.VISIBILITY_MS

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.topic),)

    def run(self, tx: Tx) -> Extended:
        topic = find(tx, self.topic)
        check_visibility(self.visibility_ms)
        row = known(tx, topic, self.partition, self.group)
        progress = GroupProgress(row.cursor, rules.unpacked(row.ranges))
        until_ms = tx.now_ms + self.visibility_ms
        progress, count = rules.extended(
            progress, self.consumer, lease_number(self.lease), until_ms, self.visibility_ms
        )
        _store(tx, row, progress)
        return Extended(topic, until_ms, count)


class Nack(Command[Nacked], frozen=True, gc=False):
    """Return the messages that a consumer holds, or some of them, to be delivered again at once or after a delay."""

    permission = Permission.CONSUME

    topic: str
    group: str
    partition: int = 0
    consumer: str = ""
    lease: str | None = None
    first: int | None = None
    upto: int | None = None  # inclusive
    delay_ms: int = 0
    undelivered: bool = False  # the consumer was gone before it received them: it does not count as an attempt

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.topic),)

    def run(self, tx: Tx) -> Nacked:
        topic = find(tx, self.topic)
        if not 0 <= self.delay_ms <= limits.VISIBILITY_MS_MAX:
            raise Invalid(f"a delay is 0 to {limits.VISIBILITY_MS_MAX} ms, not {self.delay_ms}")
        first = 0 if self.first is None else self.first
        end = limits.POSITION_MAX if self.upto is None else self.upto + 1
        if not 0 <= first < end:
            raise Invalid(f"offsets {first} to {end - 1} are not a range; give the lower one first, from 0 on")
        row = known(tx, topic, self.partition, self.group)
        progress = GroupProgress(row.cursor, rules.unpacked(row.ranges))
        progress, count = rules.returned(
            progress,
            self.consumer,
            lease_number(self.lease),
            first,
            end,
            tx.now_ms,
            self.delay_ms,
            undelivered=self.undelivered,
        )
        if count:
            _store(tx, row, progress)
        return Nacked(topic, count)


class ResetGroup(Command[GroupReset], frozen=True):
    """Move a group to another position. Leases of its consumers end."""

    history = True
    permission = Permission.CONSUME

    topic: str
    group: str
    to: StartPoint
    partition: int | None = None  # None: all

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.topic),)

    def run(self, tx: Tx) -> GroupReset:
        topic = find(tx, self.topic)
        check_group(self.group)
        chosen = range(topic.partitions) if self.partition is None else (self.partition,)
        offsets: dict[int, int] = {}
        for partition in chosen:
            log = partition_log(tx, topic, partition)
            row = tx.get(GROUPS, log.id, self.group)
            if row is None:
                row = _joined(tx, topic, log, self.group, self.to)
            offsets[partition] = max(cold.earliest(tx, log), resolved(tx, log, self.to, exact=True))
            _store(tx, row, GroupProgress(offsets[partition]), deliverable=offsets[partition] < log.next)
        return GroupReset(topic, offsets)


class DropGroup(Command[int], frozen=True):
    """Drop a group; the number of partitions it had consumed from."""

    freeing = True
    permission = Permission.CONSUME

    topic: str
    group: str

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.topic),)

    def run(self, tx: Tx) -> int:
        topic = find(tx, self.topic)
        numbers = [topic.log_of(partition) for partition in range(topic.partitions)]
        numbers = [number for number in numbers if tx.get(GROUPS, number, self.group) is not None]
        if not numbers:
            raise NotFound(_unknown(topic, self.group), code="GROUP_NOT_FOUND")
        consumption.forget(tx, [(number, self.group) for number in numbers])
        for number in numbers:
            tx.delete(GROUPS, number, self.group)
            tx.notify(number, GroupMoved(self.group, True, None))
        return len(numbers)

    def heavy(self) -> bool:
        return True  # it removes the record of each partition


def known(tx: Tx, topic: Topic, partition: int, name: str) -> GroupRow:
    """A group that has consumed from a partition; raises if there is none."""
    check_group(name)
    row = tx.get(GROUPS, topic.log_of(partition), name)
    if row is None:
        raise Invalid(
            f"{_unknown(topic, name)} in partition {partition}, so nothing was delivered to it; consume first",
            code="NOT_DELIVERED",
        )
    return row


def _unknown(topic: Topic, name: str) -> str:
    return f"group {name!r} has not consumed from topic {topic.name!r}"


def _store(tx: Tx, row: GroupRow, progress: GroupProgress, *, deliverable: bool = False) -> None:
    ranges = rules.packed(progress.ranges)
    tx.put(GROUPS, msgspec.structs.replace(row, cursor=progress.cursor, ranges=ranges, updated_ms=tx.now_ms))
    deliverable = deliverable or any(each.free(tx.now_ms) for each in progress.ranges)
    tx.notify(row.log, GroupMoved(row.name, deliverable or None, rules.wake_ms(progress, tx.now_ms)))


def _note_acked(tx: Tx, row: GroupRow, before: tuple[LeasedRange, ...], progress: GroupProgress, consumer: str) -> None:
    """Leave a notice for the record of acknowledgements."""
    ranges = rules.removed(before, progress.ranges)
    tx.notify(ACKNOWLEDGED, Acknowledged(row.log, row.name, ranges, tx.now_ms, consumer, tx.by))


def lease_number(lease: str | None) -> int | None:
    """The number of a lease, from its text."""
    if lease is None:
        return None
    parts = _LEASE.fullmatch(lease)
    if parts is None:
        raise Invalid(f"{lease[:40]!r} is not a lease; use the lease_id that consume returned")
    return (int(parts[1]) << LEASE_BITS) + int(parts[2])


def lease_text(number: int) -> str:
    """The wire form of a lease: the number of its group in the partition, and its own."""
    return f"{number >> LEASE_BITS}-{number & ((1 << LEASE_BITS) - 1)}"


def check_visibility(visibility_ms: int) -> None:
    if not limits.VISIBILITY_MS_MIN <= visibility_ms <= limits.VISIBILITY_MS_MAX:
        raise Invalid(
            f"a visibility timeout is {limits.VISIBILITY_MS_MIN} to {limits.VISIBILITY_MS_MAX} ms, not {visibility_ms}"
        )


def check_group(name: str) -> None:
    _check_text(name, "a consumer group")
    if not name:
        raise Invalid("a consumer group has a name; give one, or leave the group out to read without one")


def check_consumer(name: str) -> None:
    _check_text(name, "a consumer")


def _check_text(name: str, what: str) -> None:
    if len(name.encode("utf-8", "replace")) > limits.GROUP_NAME_BYTES_MAX or not (name.isprintable()):
        raise Invalid(
            f"{name[:64]!r} is not a valid name for {what}: use up to {limits.GROUP_NAME_BYTES_MAX} bytes of "
            "printable text"
        )
