"""Commands on topics: create, alter, clear, drop, add and drop sources, publish."""

from __future__ import annotations

import re
from typing import Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from tailrace import limits, scalar
from tailrace.access import Permission
from tailrace.command import Command
from tailrace.errors import Conflict, InUse, Invalid, LimitExceeded, NotFound, TooLarge
from tailrace.log import cold
from tailrace.log import log as logs
from tailrace.log.entry import LOGS
from tailrace.storage.engine import Peek, Tx
from tailrace.streams.producer import PRODUCERS, ProducerClaim, ProducerState, is_new
from tailrace.tables import definition as tables
from tailrace.tables.definition import TABLES, Definition, TopicRoute
from tailrace.topics import backfill, consumption, router
from tailrace.topics.group import TopicChanged
from tailrace.topics.topic import (
    GROUPS,
    HASH_VERSION,
    INSERT,
    MODES,
    OWNER,
    PARTITIONS,
    PUBLISH,
    TOPIC_NAMES,
    TOPICS,
    Envelope,
    Partition,
    Topic,
    TopicName,
    encode,
    find,
)

V = TypeVar("V")
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
_FULL: Final = MODES.index("Full")


class TopicOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a topic; UNSET leaves one unchanged, None removes it."""

    alias: str | UnsetType | None = UNSET
    retention_seconds: int | UnsetType | None = UNSET
    retention_max_bytes: int | UnsetType | None = UNSET
    max_attempts: int | UnsetType | None = UNSET
    dead_letter: str | UnsetType | None = UNSET

    def subjects(self) -> tuple[str, ...]:
        """The topics that these settings name."""
        return tuple(subject(name) for name in (self.alias, self.dead_letter) if isinstance(name, str))


class CreatedTopic(msgspec.Struct, frozen=True):
    topic: Topic
    fresh: bool  # False: it existed already


class CreateTopic(Command[CreatedTopic], frozen=True):
    """Create a topic."""

    permission = Permission.ADMIN

    name: str
    partitions: int = 1
    options: TopicOptions = TopicOptions()
    if_not_exists: bool = False

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.name), *self.options.subjects())

    def run(self, tx: Tx) -> CreatedTopic:
        check_name(self.name, "a topic")
        taken = tx.get(TOPIC_NAMES, self.name)
        if taken is not None:
            topic = tx.get(TOPICS, taken.topic)
            assert topic is not None
            if self.if_not_exists and topic.name == self.name:
                return CreatedTopic(topic, False)
            raise _taken(self.name, topic)
        if not 1 <= self.partitions <= limits.PARTITIONS_MAX:
            raise Invalid(f"a topic has 1 to {limits.PARTITIONS_MAX} partitions, not {self.partitions}")
        if sum(1 for _ in tx.scan(TOPICS, limit=limits.TOPICS_MAX)) >= limits.TOPICS_MAX:
            raise LimitExceeded(f"there are {limits.TOPICS_MAX} topics, the maximum; drop some first")
        number = tx.next_id("topic")
        made = [logs.create(tx, f"{OWNER}{number}/{partition}").id for partition in range(self.partitions)]
        assert made[-1] - made[0] == self.partitions - 1, "the logs of a topic are numbered one after the other"
        topic = Topic(
            number, self.name, None, self.partitions, made[0], HASH_VERSION, None, None, None, None, tx.now_ms, tx.by
        )
        tx.put(TOPIC_NAMES, TopicName(self.name, number))
        for partition, log in enumerate(made):
            tx.put(PARTITIONS, Partition(log, number, partition, 0))
        return CreatedTopic(_configured(tx, topic, self.options), True)


class AlterTopic(Command[Topic], frozen=True):
    """Change a topic's settings."""

    freeing = True
    permission = Permission.ADMIN

    name: str
    options: TopicOptions
    force: bool = False  # take the alias from the topic that has it

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.name), *self.options.subjects())

    def run(self, tx: Tx) -> Topic:
        topic = find(tx, self.name)
        if self.force and isinstance(self.options.alias, str):
            _release_alias(tx, topic, self.options.alias)
        return _configured(tx, topic, self.options)


def _release_alias(tx: Tx, topic: Topic, alias: str) -> None:
    """Take an alias from the topic that has it; consumers that wait there look again."""
    taken = tx.get(TOPIC_NAMES, alias)
    other = None if taken is None else tx.get(TOPICS, taken.topic)
    if other is None or other.id == topic.id or other.alias != alias:
        return  # it is free, or a name, which is not taken away
    tx.put(TOPICS, msgspec.structs.replace(other, alias=None))
    tx.delete(TOPIC_NAMES, alias)
    for partition in range(other.partitions):
        tx.notify(other.log_of(partition), TopicChanged())


def _configured(tx: Tx, topic: Topic, options: TopicOptions) -> Topic:
    """The topic with these settings, stored."""
    alias = _or(options.alias, topic.alias)
    if alias != topic.alias:
        if alias is not None:
            check_name(alias, "an alias")
            taken = tx.get(TOPIC_NAMES, alias)
            if taken is not None:
                other = tx.get(TOPICS, taken.topic)
                raise _taken(alias, topic if other is None else other)
            tx.put(TOPIC_NAMES, TopicName(alias, topic.id))
        if topic.alias is not None:
            tx.delete(TOPIC_NAMES, topic.alias)
    changed = msgspec.structs.replace(
        topic,
        alias=alias,
        retention_seconds=_positive("retention_seconds", _or(options.retention_seconds, topic.retention_seconds)),
        retention_max_bytes=_positive(
            "retention_max_bytes", _or(options.retention_max_bytes, topic.retention_max_bytes)
        ),
        max_attempts=_positive("max_attempts", _or(options.max_attempts, topic.max_attempts)),
        dead_letter=topic.dead_letter if options.dead_letter is UNSET else _dead_letter(tx, topic, options.dead_letter),
    )
    if (changed.max_attempts is None) != (changed.dead_letter is None):
        raise Invalid(
            "max_attempts and dead_letter go together: after so many deliveries a message goes to that topic; give "
            "both, or neither"
        )
    tx.put(TOPICS, changed)
    return changed


def _or(value: V | UnsetType, current: V) -> V:
    return current if isinstance(value, UnsetType) else value


def _positive(name: str, value: int | None) -> int | None:
    if value is not None and not 1 <= value <= limits.POSITION_MAX:
        raise Invalid(f"{name} is a whole number from 1 to {limits.POSITION_MAX}, not {value}; or NULL for none")
    return value


def _dead_letter(tx: Tx, topic: Topic, name: str | None) -> int | None:
    if name is None:
        return None
    target = find(tx, name)
    if target.id == topic.id:
        raise Invalid(f"topic {topic.name!r} cannot be its own dead-letter topic; name another")
    return target.id


class DropTopic(Command[bool], frozen=True):
    """Drop a topic with its messages, groups and routes; True if it existed. A later topic of the same name inherits
    nothing."""

    freeing = True
    permission = Permission.ADMIN

    name: str
    if_exists: bool = False

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.name),)

    def run(self, tx: Tx) -> bool:
        try:
            topic = find(tx, self.name)
        except NotFound:
            if self.if_exists:
                return False
            raise
        for other in tx.scan(TOPICS):
            if other.dead_letter == topic.id:
                raise InUse(
                    f"topic {topic.name!r} is the dead-letter topic of {other.name!r}; ALTER TOPIC {other.name} SET "
                    "(max_attempts = NULL, dead_letter = NULL) first"
                )
        for definition in _routed(tx, topic.id):
            kept = tuple(route for route in definition.routes if route.topic != topic.id)
            backfill.end(tx, tuple(route for route in definition.routes if route.topic == topic.id))
            tables.save(tx, msgspec.structs.replace(definition, routes=kept))
        numbers = [topic.log_of(partition) for partition in range(topic.partitions)]
        groups = [(number, group.name) for number in numbers for group in list(tx.scan(GROUPS, number))]
        consumption.forget(tx, groups)
        for number, name in groups:
            tx.delete(GROUPS, number, name)
        for number in numbers:
            tx.delete(PARTITIONS, number)
            log = tx.get(LOGS, number)
            assert log is not None
            logs.drop(tx, log)
        tx.delete(TOPIC_NAMES, topic.name)
        if topic.alias is not None:
            tx.delete(TOPIC_NAMES, topic.alias)
        tx.delete(TOPICS, topic.id)
        return True


class ClearTopic(Command[int], frozen=True):
    """Remove all messages of a topic; the number removed. Offsets continue where they were."""

    freeing = True
    permission = Permission.ADMIN

    name: str

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.name),)

    def run(self, tx: Tx) -> int:
        topic = find(tx, self.name)
        count = 0
        for partition in range(topic.partitions):
            log = tx.get(LOGS, topic.log_of(partition))
            held = tx.get(PARTITIONS, topic.log_of(partition))
            assert log is not None and held is not None
            count += log.next - cold.earliest(tx, log)
            logs.forget(tx, log, log.next)
            tx.put(PARTITIONS, Partition(held.log, held.topic, held.number, 0))
        return count


# -- sources


class AddedSource(msgspec.Struct, frozen=True):
    routes: tuple[TopicRoute, ...]  # one for each event
    replaced: int  # the number of routes that these took the place of


class AddSource(Command[AddedSource], frozen=True):
    """Send changes of a table to a topic from now on. `replace`: in place of the source of the same name."""

    permission = Permission.ADMIN

    topic: str
    table: str
    events: int | tuple[int, ...]  # one or several, into change.EVENTS
    where: str | None = None
    partition_by: str | None = None
    mode: int = 0  # into MODES
    name: str | None = None
    replace: bool = False
    backfill: bool = False  # also the rows that are there already, as inserts

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.topic), f"tables/{self.table}")

    def run(self, tx: Tx) -> AddedSource:
        topic = find(tx, self.topic)
        definition = tables.find(tx, self.table)
        columns = router.columns_of(definition)
        for text, check in ((self.where, scalar.condition), (self.partition_by, scalar.stored_value)):
            if text is not None:
                check(text, columns=columns)
        replaced = 0
        if self.name is not None:
            check_name(self.name, "a source")
            replaced = self._replaced(tx, topic)
            definition = tables.find(tx, self.table)
        events = _listed(self.events)
        if self.backfill and INSERT not in events:
            raise Invalid("a backfill sends existing rows as inserts; the source needs ON INSERT")
        made = tuple(
            TopicRoute(topic.id, event, self.where, self.partition_by, self.mode, self.name)
            for event in sorted(set(events))
        )
        known = {msgspec.structs.replace(each, backfill=0) for each in definition.routes}
        if any(each in known for each in made):
            raise Conflict(f"topic {topic.name!r} already has this source", code="SOURCE_EXISTS")
        if len(definition.routes) + len(made) > limits.ROUTES_MAX:
            raise LimitExceeded(
                f"table {definition.name!r} can have {limits.ROUTES_MAX} routes, one for each event of a source; drop "
                "some first"
            )
        if self.backfill:
            space = backfill.begin(tx, definition)
            made = tuple(
                msgspec.structs.replace(each, backfill=space) if each.event == INSERT else each for each in made
            )
        tables.save(tx, msgspec.structs.replace(definition, routes=(*definition.routes, *made)))
        return AddedSource(made, replaced)

    def _replaced(self, tx: Tx, topic: Topic) -> int:
        """Remove the routes of the name, which may be of another table."""
        count = 0
        for definition in _routed(tx, topic.id):
            kept = tuple(each for each in definition.routes if each.topic != topic.id or each.name != self.name)
            removed = len(definition.routes) - len(kept)
            if removed and not self.replace:
                raise Conflict(
                    f"topic {topic.name!r} already has a source named {self.name!r}, of table {definition.name!r}; "
                    "write ADD OR REPLACE SOURCE to replace it",
                    code="SOURCE_EXISTS",
                )
            if removed:
                backfill.end(tx, tuple(each for each in definition.routes if each not in kept))
                tables.save(tx, msgspec.structs.replace(definition, routes=kept))
            count += removed
        return count


class DropSource(Command[int], frozen=True):
    """Stop sending a table's changes to a topic; the number of routes removed."""

    freeing = True
    permission = Permission.ADMIN

    topic: str
    table: str
    events: int | tuple[int, ...] | None = None  # None: all of them
    name: str | None = None  # None: any

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.topic), f"tables/{self.table}")

    def run(self, tx: Tx) -> int:
        topic = find(tx, self.topic)
        definition = tables.find(tx, self.table)
        events = _listed(self.events)
        kept = tuple(
            route
            for route in definition.routes
            if route.topic != topic.id
            or (events and route.event not in events)
            or (self.name is not None and route.name != self.name)
        )
        if len(kept) == len(definition.routes):
            raise NotFound(
                f"topic {topic.name!r} has no such source {definition.name!r}; DESCRIBE TOPIC {topic.name} lists them",
                code="SOURCE_NOT_FOUND",
            )
        backfill.end(tx, tuple(route for route in definition.routes if route not in kept))
        tables.save(tx, msgspec.structs.replace(definition, routes=kept))
        return len(definition.routes) - len(kept)


def _listed(events: int | tuple[int, ...] | None) -> tuple[int, ...]:
    return () if events is None else (events,) if isinstance(events, int) else events


def _routed(tx: Tx, topic: int) -> list[Definition]:
    """The tables with a route to a topic."""
    found = [tables.decoded(row) for row in tx.scan(TABLES)]
    return [each for each in found if any(route.topic == topic for route in each.routes)]


# -- publishing


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A message to publish. Its partition is `partition`, or that of the key, or 0."""

    payload: bytes
    key: bytes | None = None
    partition: int | None = None


class PublishedMessages(msgspec.Struct, frozen=True, gc=False):
    topic: Topic
    offsets: list[tuple[int, int]]  # partition and offset of each message
    duplicate: bool = False
    sequence: int | None = None  # the producer's highest accepted


class Publish(Command[PublishedMessages], frozen=True, gc=False):
    """Add messages to a topic: all or none, and once, however often an idempotent producer sends them."""

    together = True
    signed = True

    topic: str
    messages: tuple[Outgoing, ...]
    claim: ProducerClaim | None = None

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.topic),)

    def size(self) -> int:
        messages = self.messages
        return len(messages[0].payload) if len(messages) == 1 else sum([len(each.payload) for each in messages])

    def heavy(self) -> bool:
        return len(self.messages) > limits.LOOP_MESSAGES or self.size() > limits.LOOP_BYTES

    def prefetch(self, peek: Peek) -> None:
        name = peek(TOPIC_NAMES, self.topic)
        topic = None if name is None else peek(TOPICS, name.topic)
        if topic is not None and self.claim is not None:
            peek(PRODUCERS, topic.first_log, self.claim.id)

    @classmethod
    def run_together(cls, tx: Tx, commands: list[Publish]) -> list[PublishedMessages]:
        """As `Command.run_together`: single messages without a claim, with one pass over each partition."""
        topics: dict[str, Topic] = {}
        bodies: dict[int, list[bytes]] = {}  # by the number of the partition's log
        placed: list[tuple[Topic, int, int, int]] = []  # partition, its log, and index in its bodies
        by = tx.by
        for command in commands:
            name = command.topic
            if command.claim is not None or len(command.messages) != 1:
                break
            if name not in topics:
                try:
                    topics[name] = find(tx, name)
                except NotFound:
                    break
            topic = topics[name]
            (message,) = command.messages
            try:
                partition = cls._placed(topic, message)
            except (Invalid, TooLarge):
                break
            body = encode(Envelope(0, 0, PUBLISH, _FULL, None, message.payload, by, message.key))
            number = topic.log_of(partition)
            beside = bodies.setdefault(number, [])
            placed.append((topic, partition, number, len(beside)))
            beside.append(body)
        first = {number: router.append(tx, number, each) for number, each in bodies.items()}
        return [
            PublishedMessages(topic, [(partition, first[number] + index)]) for topic, partition, number, index in placed
        ]

    def run(self, tx: Tx) -> PublishedMessages:
        topic = find(tx, self.topic)
        claim = self.claim
        if claim is not None:
            known = tx.get(PRODUCERS, topic.first_log, claim.id)
            if not is_new(claim, known):
                assert known is not None
                return PublishedMessages(topic, [], True, known.sequence)
            tx.put(PRODUCERS, ProducerState(topic.first_log, claim.id, claim.epoch, claim.sequence))
        accepted = None if claim is None else claim.sequence
        if len(self.messages) == 1:  # nearly always
            (message,) = self.messages
            partition = self._placed(topic, message)
            body = encode(Envelope(0, 0, PUBLISH, _FULL, None, message.payload, tx.by, message.key))
            return PublishedMessages(
                topic, [(partition, router.append(tx, topic.log_of(partition), [body]))], False, accepted
            )
        return PublishedMessages(topic, self._published(tx, topic), False, accepted)

    def _published(self, tx: Tx, topic: Topic) -> list[tuple[int, int]]:
        """Append the messages; partition and offset of each."""
        partitions = [self._placed(topic, message) for message in self.messages]
        bodies: dict[int, list[bytes]] = {}
        for index, (message, partition) in enumerate(zip(self.messages, partitions, strict=True)):
            envelope = Envelope(0, index, PUBLISH, _FULL, None, message.payload, tx.by, message.key)
            bodies.setdefault(partition, []).append(encode(envelope))
        following = {partition: router.append(tx, topic.log_of(partition), each) for partition, each in bodies.items()}
        offsets: list[tuple[int, int]] = []
        for partition in partitions:
            offsets.append((partition, following[partition]))
            following[partition] += 1
        return offsets

    @staticmethod
    def _placed(topic: Topic, message: Outgoing) -> int:
        if len(message.payload) > limits.MESSAGE_BYTES_MAX:
            raise TooLarge(
                f"a message of {len(message.payload)} bytes is too large; the maximum is {limits.MESSAGE_BYTES_MAX}"
            )
        if message.partition is not None:
            topic.log_of(message.partition)  # raises if it does not exist
            return message.partition
        return 0 if message.key is None else topic.partition_for(message.key)


# -- names


def subject(name: str) -> str:
    """The subject of a topic in access patterns."""
    return f"topics/{name}"


def check_name(name: str, what: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > limits.TOPIC_NAME_CHARACTERS_MAX:
        raise Invalid(
            f"{name[:64]!r} is not a valid name for {what}: use up to {limits.TOPIC_NAME_CHARACTERS_MAX} letters, "
            "digits, _, - and dots, not beginning with a dot",
            code="INVALID_TOPIC_NAME",
        )
    if name.lower().startswith("system."):
        raise Invalid(
            f"{name[:64]!r} is not a valid name for {what}: names in system are reserved", code="INVALID_TOPIC_NAME"
        )


def _taken(name: str, topic: Topic) -> InUse:
    what = "a topic" if topic.name == name else f"the alias of topic {topic.name!r}"
    return InUse(
        f"{name!r} is {what} already; names and aliases share one namespace: choose another", code="NAME_TAKEN"
    )
