"""Queries on topics: reading messages without a group, and describing topics, partitions, groups and routes."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice

import msgspec

from tailrace import limits
from tailrace.access import Permission
from tailrace.command import Query
from tailrace.errors import Invalid, NotFound
from tailrace.listing import NamedPage, NameFilter, page
from tailrace.log import cold, segments
from tailrace.log import log as logs
from tailrace.log.entry import LOGS, Entry, Log
from tailrace.storage.engine import Reader
from tailrace.tables import definition as tables
from tailrace.tables import lifecycle
from tailrace.tables.definition import TABLES, TableRow, TopicRoute
from tailrace.topics import group as rules
from tailrace.topics.commands import subject
from tailrace.topics.consuming import ConsumedMessages, resolved
from tailrace.topics.consumption import AckRange, acknowledgements
from tailrace.topics.group import GroupProgress, StartPoint
from tailrace.topics.topic import GROUPS, PARTITIONS, TOPICS, DeliveredRange, GroupRow, Topic, find, partition_log, read


class ReadTopic(Query[ConsumedMessages], frozen=True):
    """Read messages without a group: nothing is leased; `start` says where to begin."""

    permission = Permission.CONSUME

    topic: str
    partition: int = 0
    start: StartPoint = StartPoint()
    limit: int = 100
    bytes_max: int = limits.CONSUME_BYTES

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.topic),)

    def run(self, reader: Reader) -> ConsumedMessages:
        if not 1 <= self.limit <= limits.CONSUME_MESSAGES_MAX:
            raise Invalid(f"limit is 1 to {limits.CONSUME_MESSAGES_MAX}, not {self.limit}")
        topic = find(reader, self.topic)
        log = partition_log(reader, topic, self.partition)
        wanted = resolved(reader, log, self.start)
        first = max(cold.earliest(reader, log), wanted)
        found = read(reader, log, first, self.limit, self.bytes_max)
        after = found[-1].next if found else first
        ranges = [DeliveredRange(0, found)] if found else []
        return ConsumedMessages(topic, self.partition, log.id, ranges, after, after < log.next, first - wanted)


class PartitionEntries(msgspec.Struct, frozen=True):
    """Entries of a partition from `position` on, and the state of its log when they were read."""

    topic: Topic
    log: Log
    position: int
    entries: list[Entry]
    next: int


class ReadPartition(Query[PartitionEntries], frozen=True):
    """Entries of a partition, as they are stored; None is the earliest position."""

    permission = Permission.CONSUME

    topic: str
    partition: int
    position: int | None
    bytes_max: int
    entries_max: int

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.topic),)

    def run(self, reader: Reader) -> PartitionEntries:
        topic = find(reader, self.topic)
        log = partition_log(reader, topic, self.partition)
        position = cold.earliest(reader, log) if self.position is None else self.position
        page = logs.read(reader, log, position, self.bytes_max, self.entries_max)
        return PartitionEntries(topic, log, position, page.entries, page.next)


class DescribePartition(Query[PartitionEntries], frozen=True):
    """A partition without its entries; the position is the earliest."""

    permission = Permission.CONSUME

    topic: str
    partition: int

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.topic),)

    def run(self, reader: Reader) -> PartitionEntries:
        topic = find(reader, self.topic)
        log = partition_log(reader, topic, self.partition)
        return PartitionEntries(topic, log, cold.earliest(reader, log), [], log.next)


# -- descriptions


class PartitionInfo(msgspec.Struct, frozen=True):
    topic: Topic
    partition: int
    log: int
    start: int  # the earliest offset that is retained
    next: int  # the offset of the next message
    bytes: int
    at_ms: int  # of the last message


class GroupInfo(msgspec.Struct, frozen=True):
    """A group in a partition."""

    topic: Topic
    group: str
    partition: int
    cursor: int
    floor: int
    start: int  # of the partition
    next: int  # of the partition
    lag: int  # messages that are not acknowledged
    in_flight: int  # of those, held by a consumer
    pending: int  # of those, to be delivered again, at once or after a delay
    delivered: int
    redelivered: int
    lost: int
    created_ms: int
    updated_ms: int
    consumers: list[str]  # those that hold messages
    oldest_ms: int | None = None  # when the first message of the lag was written, if that was asked for


class RouteInfo(msgspec.Struct, frozen=True):
    topic: str
    topic_id: int
    table: str
    route: TopicRoute


class TopicDescription(msgspec.Struct, frozen=True):
    topic: Topic
    dead_letter: str | None
    partitions: list[PartitionInfo]
    groups: list[GroupInfo]
    routes: list[RouteInfo]


class ListTopics(Query[list[Topic]], frozen=True):
    """All topics, by name."""

    def run(self, reader: Reader) -> list[Topic]:
        return sorted(reader.scan(TOPICS), key=lambda topic: topic.name)


class FindTopic(Query[Topic], frozen=True):
    """The topic of this name or alias."""

    name: str

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.name),)

    def run(self, reader: Reader) -> Topic:
        return find(reader, self.name)


class DescribeTopic(Query[TopicDescription], frozen=True):
    """A topic with its partitions, groups and routes."""

    name: str

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.name),)

    def run(self, reader: Reader) -> TopicDescription:
        topic = find(reader, self.name)
        letters = None if topic.dead_letter is None else reader.get(TOPICS, topic.dead_letter)
        routes = [info for info in _routes(reader) if info.topic_id == topic.id]
        return TopicDescription(
            topic,
            None if letters is None else letters.name,
            list(_partitions(reader, topic)),
            [msgspec.structs.replace(each, oldest_ms=oldest_ms(reader, each)) for each in _groups(reader, topic)],
            routes,
        )


class RoutedTable(msgspec.Struct, frozen=True):
    """A table and its routes to topics."""

    table: lifecycle.TableDescription
    routes: list[RouteInfo]


class FindTablePage(Query[NamedPage[RoutedTable]], frozen=True):
    """A page of tables with their sizes and routes, by name. Of the routes, a principal with grants sees those to
    topics that it was granted."""

    wanted: NameFilter = NameFilter()

    def subjects(self) -> tuple[str, ...]:
        return self.wanted.subjects()

    def run(self, reader: Reader) -> NamedPage[RoutedTable]:
        access = self.wanted.access

        def described(row: TableRow) -> RoutedTable:
            definition = tables.decoded(row)
            routes = []
            for route in definition.routes:
                topic = reader.get(TOPICS, route.topic)
                if topic is not None and (access is None or access.covers(f"topics/{topic.name}")):
                    routes.append(RouteInfo(topic.name, topic.id, definition.name, route))
            return RoutedTable(lifecycle.describe(reader, definition), routes)

        return page(reader, TABLES, "tables", self.wanted, described)


class ListPartitions(Query[list[PartitionInfo]], frozen=True):
    """All partitions of all topics, or of one."""

    topic: str | None = None
    limit: int | None = None

    def run(self, reader: Reader) -> list[PartitionInfo]:
        found = (info for topic in _chosen(reader, self.topic) for info in _partitions(reader, topic))
        return list(islice(found, self.limit))


class ListTopicPartitions(Query[list[PartitionInfo]], frozen=True):
    """All partitions of a topic."""

    topic: str

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.topic),)

    def run(self, reader: Reader) -> list[PartitionInfo]:
        return list(_partitions(reader, find(reader, self.topic)))


class ListGroups(Query[list[GroupInfo]], frozen=True):
    """All consumer groups of all topics, or of one, in each partition they have consumed from."""

    topic: str | None = None
    limit: int | None = None

    def run(self, reader: Reader) -> list[GroupInfo]:
        found = (info for topic in _chosen(reader, self.topic) for info in _groups(reader, topic))
        return list(islice(found, self.limit))


class ListRoutes(Query[list[RouteInfo]], frozen=True):
    """All routes to all topics, or to one."""

    topic: str | None = None

    def run(self, reader: Reader) -> list[RouteInfo]:
        number = None if self.topic is None else find(reader, self.topic).id
        return [info for info in _routes(reader) if number is None or info.topic_id == number]


class RecordedAck(msgspec.Struct, frozen=True):
    partition: int
    range: AckRange


class ListAcks(Query[list[RecordedAck]], frozen=True):
    """The last acknowledgements of a group, the newest first: of one partition, or of all."""

    permission = Permission.CONSUME

    topic: str
    group: str
    partition: int | None = None
    limit: int = limits.ACKS_LISTED_MAX

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.topic),)

    def run(self, reader: Reader) -> list[RecordedAck]:
        topic = find(reader, self.topic)
        chosen = range(topic.partitions) if self.partition is None else (self.partition,)
        if all(reader.get(GROUPS, topic.log_of(each), self.group) is None for each in chosen):
            raise NotFound(
                f"group {self.group[:80]!r} has not consumed from topic {topic.name!r}", code="GROUP_NOT_FOUND"
            )
        found: list[RecordedAck] = []
        for partition in chosen:
            recent = acknowledgements(reader, topic.log_of(partition), self.group, self.limit)
            found += [RecordedAck(partition, each) for each in islice(recent, self.limit)]
            found = heapq.nlargest(self.limit, found, key=lambda each: each.range.at_ms)
        return found


def _chosen(reader: Reader, name: str | None) -> list[Topic]:
    if name is not None:
        return [find(reader, name)]
    return sorted(reader.scan(TOPICS), key=lambda topic: topic.name)


def _partitions(reader: Reader, topic: Topic) -> Iterator[PartitionInfo]:
    for partition in range(topic.partitions):
        log = partition_log(reader, topic, partition)
        held = reader.get(PARTITIONS, log.id)
        assert held is not None
        yield PartitionInfo(topic, partition, log.id, cold.earliest(reader, log), log.next, held.bytes, log.at_ms)


def _groups(reader: Reader, topic: Topic) -> Iterator[GroupInfo]:
    for partition in range(topic.partitions):
        log = reader.get(LOGS, topic.log_of(partition))
        assert log is not None
        for row in list(reader.scan(GROUPS, log.id)):
            yield group_info(reader, topic, partition, log, row)


def group_info(reader: Reader, topic: Topic, partition: int, log: Log, row: GroupRow) -> GroupInfo:
    """The state of a group in a partition."""
    now_ms, start = reader.now_ms, cold.earliest(reader, log)
    progress, gone = rules.overtaken(GroupProgress(row.cursor, rules.unpacked(row.ranges)), start, now_ms)
    held = [each for each in progress.ranges if each.lease and not each.free(now_ms)]
    in_flight = sum(each.end - each.first for each in held)
    pending = sum(each.end - each.first for each in progress.ranges) - in_flight
    return GroupInfo(
        topic, row.name, partition, progress.cursor, progress.floor, start, log.next,
        log.next - progress.cursor + pending + in_flight, in_flight, pending, row.delivered, row.redelivered,
        row.lost + gone, row.created_ms, row.updated_ms, sorted({each.consumer for each in held}),
    )  # fmt: skip


def oldest_ms(reader: Reader, part: GroupInfo) -> int | None:
    """When the first message that a group has not acknowledged was written; None: there is none, or it is in cold
    storage."""
    log = reader.get(LOGS, part.topic.log_of(part.partition)) if part.lag else None
    if log is None or part.floor < log.start:
        return None
    found = segments.outline(reader, log.id, part.floor)
    return None if found is None else found[2]


def _routes(reader: Reader) -> Iterator[RouteInfo]:
    names = {topic.id: topic.name for topic in reader.scan(TOPICS)}
    for row in list(reader.scan(TABLES)):
        definition = tables.decoded(row)
        for route in definition.routes:
            yield RouteInfo(names[route.topic], route.topic, definition.name, route)
