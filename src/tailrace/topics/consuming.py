"""What consumer groups do: consume, acknowledge, give back, extend, and be reset. The rules are in `group.py`."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from tailrace import limits
from tailrace.access import Permission
from tailrace.command import Command
from tailrace.errors import Invalid, LimitExceeded, NotFound
from tailrace.log import cold
from tailrace.log.entry import ENTRIES, Log
from tailrace.storage.engine import Reader, Tx
from tailrace.topics import group as rules
from tailrace.topics import router
from tailrace.topics.commands import subject
from tailrace.topics.group import EARLIEST, LATEST, OFFSET, TIMESTAMP, Moved, Place, Range, Start
from tailrace.topics.topic import GROUPS, TOPICS, Group, Message, Topic, encode, find, partition_log
from tailrace.topics.topic import messages as read

VISIBILITY_MS: Final = 60_000
LEASE_BITS: Final = 31  # of a lease's number that count within its group
_LEASE: Final = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")


class Delivery(msgspec.Struct, frozen=True):
    """Messages, and how it goes on. `lease` is None without a group; `wake_ms` says when a lease runs out, if nothing
    can be delivered before."""

    topic: Topic
    partition: int
    log: int
    messages: list[Message]
    next_offset: int
    has_more: bool
    skipped: int = 0  # messages that retention had removed before the group came to them
    lease: str | None = None
    wake_ms: int | None = None
    acked: int = 0  # messages that the same call acknowledged


class Acked(msgspec.Struct, frozen=True, gc=False):
    topic: Topic
    floor: int  # the first offset that the group has not acknowledged
    acked: int  # how many messages this very call acknowledged


class Extended(msgspec.Struct, frozen=True, gc=False):
    topic: Topic
    until_ms: int
    messages: int


class Nacked(msgspec.Struct, frozen=True, gc=False):
    topic: Topic
    messages: int


class ResetDone(msgspec.Struct, frozen=True):
    topic: Topic
    offsets: dict[int, int]  # by partition


class Consume(Command[Delivery], frozen=True, gc=False):
    """Deliver messages to a consumer of a group, and lease them to it.

    `start` counts for the group's first consume of the partition, whose place is stored then. `partition` None: any
    that has something, looking from `first` on. `acks` are done before, in the same commit: a consumer that has worked
    through one batch acknowledges it when it asks for the next."""

    history = True
    permission = Permission.CONSUME

    topic: str
    group: str
    partition: int | None = 0
    start: Start = Start()
    limit: int = 100
    consumer: str = ""
    visibility_ms: int = VISIBILITY_MS
    bytes_max: int = limits.CONSUME_BYTES
    first: int = 0
    acks: tuple[Ack, ...] = ()
    wide: bool = False  # there are many partitions to look at

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.topic), *(subject(ack.topic) for ack in self.acks))

    def heavy(self) -> bool:
        return self.wide or self.limit > limits.SLICE_ENTRIES

    def run(self, tx: Tx) -> Delivery:
        self._check()
        topic = find(tx, self.topic)
        if self.acks:
            acked = sum([ack.run(tx).acked for ack in self.acks])
            return msgspec.structs.replace(self._delivered(tx, topic), acked=acked)
        return self._delivered(tx, topic)

    def _delivered(self, tx: Tx, topic: Topic) -> Delivery:
        if self.partition is not None:
            return self._consume(tx, topic, self.partition)
        for partition in range(topic.partitions):  # of which each has its start from now on
            log = partition_log(tx, topic, partition)
            if tx.get(GROUPS, log.id, self.group) is None:
                tx.put(GROUPS, _joined(tx, topic, log, self.group, self.start))
        wake_ms: int | None = None
        found: Delivery | None = None
        skipped = 0
        for turn in range(topic.partitions):
            found = self._consume(tx, topic, (self.first + turn) % topic.partitions)
            skipped += found.skipped
            if found.messages:
                break
            if found.wake_ms is not None:
                wake_ms = found.wake_ms if wake_ms is None else min(wake_ms, found.wake_ms)
        assert found is not None
        more = found.has_more or (bool(found.messages) and self._elsewhere(tx, topic, found.partition))
        return msgspec.structs.replace(found, wake_ms=wake_ms, skipped=skipped, has_more=more)

    def _elsewhere(self, tx: Tx, topic: Topic, but: int) -> bool:
        """Whether another partition has something to deliver."""
        for partition in range(topic.partitions):
            log = partition_log(tx, topic, partition)
            row = tx.get(GROUPS, log.id, self.group)
            if partition == but:
                continue
            assert row is not None, "it has joined all of them"
            place, _ = _overtaken(tx, log, row)
            if rules.deliverable(place, log.next, tx.now_ms):
                return True
        return False

    def _check(self) -> None:
        check_group(self.group)
        check_consumer(self.consumer)
        if not 1 <= self.limit <= limits.CONSUME_MESSAGES_MAX:
            raise Invalid(f"limit is 1 to {limits.CONSUME_MESSAGES_MAX}, not {self.limit}")
        check_visibility(self.visibility_ms)

    def _consume(self, tx: Tx, topic: Topic, partition: int) -> Delivery:
        log = partition_log(tx, topic, partition)
        row = tx.get(GROUPS, log.id, self.group)
        fresh = row is None
        if row is None:
            row = _joined(tx, topic, log, self.group, self.start)
        place, skipped = _overtaken(tx, log, row)
        if fresh:
            skipped += max(0, row.cursor - self.start.at) if self.start.kind == OFFSET else 0
        buried = 0
        if topic.max_attempts is not None:
            place, buried = _bury(tx, topic, partition, log, self.group, place)
        given, messages = self._taken(tx, topic, partition, log, place)
        lease = row.leases
        redelivered = 0
        if given:
            lease += 1
            until_ms = tx.now_ms + self.visibility_ms
            place = rules.taken(place, given, self.consumer, lease, until_ms, self.visibility_ms)
            redelivered = sum([each.end - each.first for each in given if each.attempt])
        more = rules.deliverable(place, log.next, tx.now_ms)
        wake_ms = rules.wake_ms(place, tx.now_ms)
        if given or skipped or buried or fresh:
            lost = row.lost if fresh else row.lost + skipped
            tx.put(
                GROUPS,
                Group(
                    log.id, self.group, place.cursor, lease, row.delivered + len(messages),
                    row.redelivered + redelivered, lost, row.created_ms, tx.now_ms, rules.packed(place.ranges),
                ),
            )  # fmt: skip
            tx.notify(log.id, Moved(self.group, more, wake_ms))
        after = messages[-1].offset + 1 if messages else place.cursor
        return Delivery(
            topic, partition, log.id, messages, after, more, skipped, lease_text(lease) if given else None, wake_ms
        )

    def _taken(self, tx: Tx, topic: Topic, partition: int, log: Log, place: Place) -> tuple[list[Range], list[Message]]:
        """What is offered and fits, with the messages themselves."""
        given: list[Range] = []
        messages: list[Message] = []
        left = self.bytes_max
        for offer in rules.offers(place, log.next, tx.now_ms, self.limit):
            if topic.max_attempts is not None and offer.attempt >= topic.max_attempts:
                continue  # there were too many of them to be moved at once; the next call goes on with it
            wanted = offer.end - offer.first
            try:
                found = list(read(tx, log, partition, offer.first, wanted, left, offer.attempt + 1))
            except cold.Missing:
                if not given:
                    raise
                break  # what was found is delivered; the next call fetches the rest
            messages += found
            given.append(
                offer if len(found) == wanted else msgspec.structs.replace(offer, end=offer.first + len(found))
            )
            left -= sum([len(message.envelope.payload) for message in found])
            if len(found) < wanted or left <= 0:
                break
        return given, messages


def _joined(tx: Tx, topic: Topic, log: Log, name: str, start: Start) -> Group:
    """A group that consumes a partition for the first time."""
    if sum(1 for _ in tx.scan(GROUPS, log.id, limit=limits.GROUPS_MAX)) >= limits.GROUPS_MAX:
        raise LimitExceeded(
            f"topic {topic.name!r} has {limits.GROUPS_MAX} consumer groups, the most there may be; drop some first"
        )
    cursor = max(cold.earliest(tx, log), resolved(tx, log, start))
    # A number of its own goes before the leases', so that a lease of a group that was dropped is never one of another.
    leases = tx.next_id("group") << LEASE_BITS
    return Group(log.id, name, cursor, leases, 0, 0, 0, tx.now_ms, tx.now_ms, rules.NOTHING)


def resolved(reader: Reader | Tx, log: Log, start: Start, *, exact: bool = False) -> int:
    """The offset that is meant; it may lie below the log's start. One that is not there yet is an error where it must
    be `exact`; else it means what comes next, so that nothing is passed over."""
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
    raise Invalid(f"{start.kind!r} is no place to start; use earliest, latest, offset or timestamp")


def _at_time(reader: Reader | Tx, log: Log, at_ms: int) -> int:
    """The first offset whose message is not older: offsets are dense and times in order, so halving finds it."""
    low, high = log.start, log.next
    rows = reader.values(ENTRIES, "at_ms", log.id, start=low, limit=1)
    if not rows or rows[0][0] >= at_ms:  # what is looked for is the first hot one, or in cold storage
        return cold.first_since(reader, log, at_ms)
    while low < high:
        middle = (low + high) // 2
        rows = reader.values(ENTRIES, "at_ms", log.id, start=middle, limit=1)
        if rows and rows[0][0] < at_ms:
            low = middle + 1
        else:
            high = middle
    return low


def _overtaken(tx: Tx, log: Log, row: Group) -> tuple[Place, int]:
    """Where a group is, and how many messages were gone before it came to them."""
    place = Place(row.cursor, rules.unpacked(row.ranges))
    # Only who is behind the hot part needs to know whether there is more in cold storage.
    start = log.start if place.floor >= log.start else cold.earliest(tx, log)
    return rules.overtaken(place, start, tx.now_ms)


def _bury(tx: Tx, topic: Topic, partition: int, log: Log, group: str, place: Place) -> tuple[Place, int]:
    """Move messages that were delivered often enough to the dead-letter topic, one step's worth of them."""
    assert topic.max_attempts is not None and topic.dead_letter is not None
    target = tx.get(TOPICS, topic.dead_letter)
    assert target is not None, f"topic {topic.name!r} has lost its dead-letter topic"
    count, left = 0, limits.SLICE_BYTES
    for offer in rules.offers(place, place.cursor, tx.now_ms, limits.SLICE_ENTRIES):
        if offer.attempt < topic.max_attempts:
            continue
        if left <= 0:
            break
        wanted = offer.end - offer.first
        try:
            letters = list(read(tx, log, partition, offer.first, wanted, left, offer.attempt))
        except cold.Missing:
            if not count:
                raise
            break
        for letter in letters:
            envelope = letter.envelope
            left -= len(envelope.payload)
            origin = [topic.name, partition, letter.offset, group, offer.attempt]
            key = envelope.key if envelope.key is not None else b"%d" % letter.offset
            body = encode(msgspec.structs.replace(envelope, origin=origin))
            router.append(tx, target.log_of(target.partition_for(key)), [body])
        count += len(letters)
        place = Place(place.cursor, rules.without(place.ranges, offer.first, offer.first + len(letters)))
    return place, count


# -- settling


class Ack(Command[Acked], frozen=True, gc=False):
    """Acknowledge what a consumer holds, up to and including an offset."""

    freeing = True
    permission = Permission.CONSUME

    topic: str
    group: str
    upto: int
    partition: int = 0
    consumer: str = ""
    lease: str | None = None

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.topic),)

    def run(self, tx: Tx) -> Acked:
        topic = find(tx, self.topic)
        if self.upto < 0:
            raise Invalid(f"an offset is 0 or more, not {self.upto}")
        row = known(tx, topic, self.partition, self.group)
        place = Place(row.cursor, rules.unpacked(row.ranges))
        place, count = rules.acknowledged(place, self.consumer, lease_number(self.lease), self.upto)
        if count:
            _store(tx, row, place)
        return Acked(topic, place.floor, count)


class Extend(Command[Extended], frozen=True, gc=False):
    """Let a consumer keep what it holds for longer, from now on."""

    permission = Permission.CONSUME

    topic: str
    group: str
    partition: int = 0
    consumer: str = ""
    lease: str | None = None
    visibility_ms: int = VISIBILITY_MS

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.topic),)

    def run(self, tx: Tx) -> Extended:
        topic = find(tx, self.topic)
        check_visibility(self.visibility_ms)
        row = known(tx, topic, self.partition, self.group)
        place = Place(row.cursor, rules.unpacked(row.ranges))
        until_ms = tx.now_ms + self.visibility_ms
        place, count = rules.extended(place, self.consumer, lease_number(self.lease), until_ms, self.visibility_ms)
        _store(tx, row, place)
        return Extended(topic, until_ms, count)


class Nack(Command[Nacked], frozen=True, gc=False):
    """Give back what a consumer holds, or some of it, to be delivered again at once or after a delay."""

    permission = Permission.CONSUME

    topic: str
    group: str
    partition: int = 0
    consumer: str = ""
    lease: str | None = None
    first: int | None = None
    upto: int | None = None  # inclusive
    delay_ms: int = 0
    undelivered: bool = False  # the consumer had left before it got them: that was no attempt

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.topic),)

    def run(self, tx: Tx) -> Nacked:
        topic = find(tx, self.topic)
        if not 0 <= self.delay_ms <= limits.VISIBILITY_MS_MAX:
            raise Invalid(f"a delay is 0 to {limits.VISIBILITY_MS_MAX} ms, not {self.delay_ms}")
        first = 0 if self.first is None else self.first
        end = limits.POSITION_MAX if self.upto is None else self.upto + 1
        if not 0 <= first < end:
            raise Invalid(f"offsets {first} to {end - 1} are no range; give the lower one first, from 0 on")
        row = known(tx, topic, self.partition, self.group)
        place = Place(row.cursor, rules.unpacked(row.ranges))
        place, count = rules.returned(
            place,
            self.consumer,
            lease_number(self.lease),
            first,
            end,
            tx.now_ms,
            self.delay_ms,
            undelivered=self.undelivered,
        )
        if count:
            _store(tx, row, place)
        return Nacked(topic, count)


class ResetGroup(Command[ResetDone], frozen=True):
    """Let a group go on from another place. What its consumers hold is no longer theirs."""

    history = True
    permission = Permission.CONSUME

    topic: str
    group: str
    to: Start
    partition: int | None = None  # None: every one

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.topic),)

    def run(self, tx: Tx) -> ResetDone:
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
            _store(tx, row, Place(offsets[partition]), deliverable=offsets[partition] < log.next)
        return ResetDone(topic, offsets)


class DropGroup(Command[int], frozen=True):
    """Forget a group; in how many partitions it was known."""

    freeing = True
    permission = Permission.CONSUME

    topic: str
    group: str

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.topic),)

    def run(self, tx: Tx) -> int:
        topic = find(tx, self.topic)
        count = 0
        for partition in range(topic.partitions):
            number = topic.log_of(partition)
            if tx.get(GROUPS, number, self.group) is not None:
                tx.delete(GROUPS, number, self.group)
                tx.notify(number, Moved(self.group, True, None))
                count += 1
        if not count:
            raise NotFound(_unknown(topic, self.group), code="GROUP_NOT_FOUND")
        return count


def known(tx: Tx, topic: Topic, partition: int, name: str) -> Group:
    """A group that has consumed from a partition."""
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


def _store(tx: Tx, row: Group, place: Place, *, deliverable: bool = False) -> None:
    ranges = rules.packed(place.ranges)
    tx.put(GROUPS, msgspec.structs.replace(row, cursor=place.cursor, ranges=ranges, updated_ms=tx.now_ms))
    deliverable = deliverable or any(each.free(tx.now_ms) for each in place.ranges)
    tx.notify(row.log, Moved(row.name, deliverable, rules.wake_ms(place, tx.now_ms)))


def lease_number(lease: str | None) -> int | None:
    """The number of a lease, from its text."""
    if lease is None:
        return None
    parts = _LEASE.fullmatch(lease)
    if parts is None:
        raise Invalid(f"{lease[:40]!r} is no lease; use the lease_id that consume returned")
    return (int(parts[1]) << LEASE_BITS) + int(parts[2])


def lease_text(number: int) -> str:
    """A lease as it is told: the number of its group in the partition, and its own."""
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
            f"{name[:64]!r} cannot name {what}: use up to {limits.GROUP_NAME_BYTES_MAX} bytes of printable text"
        )
