"""The consistency check of topics, partitions and groups."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tailrace.errors import Corrupt
from tailrace.log import segments
from tailrace.log.entry import LOGS
from tailrace.storage.engine import Reader
from tailrace.tables import definition as tables
from tailrace.tables.definition import TABLES
from tailrace.topics import group as rules
from tailrace.topics.consumption import CONSUMPTION
from tailrace.topics.topic import GROUPS, OWNER, PARTITIONS, TOPIC_NAMES, TOPICS, GroupRow, Topic, opened


class TopicsChecked(msgspec.Struct):
    """The findings, and how much was checked."""

    findings: list[str]
    topics: int = 0
    messages: int = 0


def check_topics(reader: Reader) -> TopicsChecked:
    """Check all topics of one view."""
    topics = {topic.id: topic for topic in reader.scan(TOPICS)}
    checked = TopicsChecked([], topics=len(topics))
    checked.findings += _check_names(reader, topics)
    checked.findings += _check_routes(reader, topics)
    for topic in topics.values():
        if topic.dead_letter is not None and topic.dead_letter not in topics:
            checked.findings.append(f"topic {topic.name!r}: its dead-letter topic {topic.dead_letter} does not exist")
        for partition in range(topic.partitions):
            checked.findings += _check_partition(reader, topic, partition, checked)
    known = {topic.log_of(partition) for topic in topics.values() for partition in range(topic.partitions)}
    for row in reader.scan(PARTITIONS):
        if row.log not in known:
            checked.findings.append(f"partition with log {row.log} belongs to no topic")
    strays = {row.log for row in reader.scan(GROUPS)} - known
    checked.findings += [f"consumer groups of log {number}, which is no partition" for number in sorted(strays)]
    groups = {(row.log, row.name) for row in reader.scan(GROUPS)}
    recorded = {(log, name) for log, name in reader.values(CONSUMPTION, "log, name")} - groups
    checked.findings += [
        f"acknowledgements of group {name!r} in log {log}, which there is not" for log, name in sorted(recorded)
    ]
    return checked


def _check_names(reader: Reader, topics: dict[int, Topic]) -> Iterator[str]:
    """Each name leads to the topic that has it, and each topic is found by its names."""
    names = {row.name: row.topic for row in reader.scan(TOPIC_NAMES)}
    wanted: dict[str, int] = {}
    for topic in topics.values():
        for name in (topic.name, topic.alias):
            if name is not None:
                if name in wanted:
                    yield f"topics {wanted[name]} and {topic.id} are both called {name!r}"
                wanted[name] = topic.id
    for name in names.keys() | wanted.keys():
        if names.get(name) != wanted.get(name):
            yield f"topic name {name!r} leads to {names.get(name)}, and is of {wanted.get(name)}"


def _check_routes(reader: Reader, topics: dict[int, Topic]) -> Iterator[str]:
    for row in list(reader.scan(TABLES)):
        try:
            definition = tables.decoded(row)
        except msgspec.DecodeError:
            continue  # a finding of the check of tables
        for route in definition.routes:
            if route.topic not in topics:
                yield f"table {definition.name!r} has a route to topic {route.topic}, which does not exist"


def _check_partition(reader: Reader, topic: Topic, partition: int, checked: TopicsChecked) -> Iterator[str]:
    number = topic.log_of(partition)
    where = f"topic {topic.name!r}, partition {partition}"
    log, held = reader.get(LOGS, number), reader.get(PARTITIONS, number)
    if log is None or held is None:
        yield f"{where}: its log {number} or its row is missing"
        return
    if log.owner != f"{OWNER}{topic.id}/{partition}" or log.dropped:
        yield f"{where}: its log {number} belongs to {log.owner!r}, dropped {log.dropped}"
    if (held.topic, held.number) != (topic.id, partition):
        yield f"{where}: its row is of topic {held.topic}, partition {held.number}"
    size = 0
    for entry in segments.scan(reader, number, start=log.start):
        checked.messages += 1
        size += len(entry.body)
        if entry.next != entry.position + 1:
            yield f"{where}: the message at {entry.position} takes {entry.next - entry.position} offsets"
        try:
            opened(entry.body)
        except Corrupt as error:
            yield f"{where}, offset {entry.position}: {error}"
    if size != held.bytes:
        yield f"{where}: counts {held.bytes} bytes, there are {size}"
    for row in list(reader.scan(GROUPS, number)):
        yield from _check_group(row, log.next, where)


def _check_group(row: GroupRow, tail: int, where: str) -> Iterator[str]:
    where = f"{where}, group {row.name!r}"
    if not 0 <= row.cursor <= tail:
        yield f"{where}: is at {row.cursor}, the partition ends at {tail}"
    last = 0
    for held in rules.unpacked(row.ranges):
        if not last <= held.first < held.end <= row.cursor:
            yield f"{where}: holds [{held.first}, {held.end}) after {last} and below {row.cursor}"
        if held.attempt < (held.lease > 0) or held.lease > row.leases:
            yield f"{where}: holds [{held.first}, {held.end}) lease {held.lease}, attempt {held.attempt}"
        last = held.end
