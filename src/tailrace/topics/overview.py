"""Facts about a whole database, for people who look at it: how many objects there are, and which groups lag behind.

Each query does a bounded amount of work, however large the database is.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tailrace import limits
from tailrace.command import Query
from tailrace.log.entry import LOGS
from tailrace.storage.engine import Reader
from tailrace.storage.table import StorageTable
from tailrace.streams.stream import STREAMS
from tailrace.tables.definition import TABLES
from tailrace.topics.queries import GroupInfo, group_info, oldest_ms
from tailrace.topics.topic import GROUPS, PARTITIONS, TOPICS

_COUNTED: Final[dict[str, StorageTable[Any]]] = {"streams": STREAMS, "tables": TABLES, "topics": TOPICS}


class ObjectCount(msgspec.Struct, frozen=True):
    """A number of objects; `more`: there are more than that."""

    count: int
    more: bool = False


class CountObjects(Query[dict[str, ObjectCount]], frozen=True):
    """How many streams, tables and topics there are, up to a limit. Deleted streams that forks still need count too."""

    limit: int = limits.STATUS_COUNT_MAX

    def run(self, reader: Reader) -> dict[str, ObjectCount]:
        found = {}
        for kind, table in _COUNTED.items():
            rows = len(reader.values(table, table.key[0], limit=self.limit + 1))
            found[kind] = ObjectCount(min(rows, self.limit), rows > self.limit)
        return found


class LaggingGroup(msgspec.Struct, frozen=True):
    """A group in all partitions of a topic."""

    topic: str
    group: str
    lag: int  # messages that are not acknowledged
    in_flight: int
    redelivered: int
    lost: int
    oldest_ms: int | None  # when the oldest of them was written; None: there is none


class GroupLag(msgspec.Struct, frozen=True):
    """The lag of all groups, and the groups with the largest; `more`: there are groups that were not looked at."""

    groups: int
    lag: int
    in_flight: int
    worst: list[LaggingGroup]
    more: bool


class FindLag(Query[GroupLag], frozen=True):
    """The groups that are furthest behind, of the first METRIC_SERIES_MAX groups in partitions."""

    limit: int = limits.STATUS_GROUPS

    def run(self, reader: Reader) -> GroupLag:
        rows = list(reader.scan(GROUPS, limit=limits.METRIC_SERIES_MAX + 1))
        by_group: dict[tuple[str, str], list[GroupInfo]] = {}
        for row in rows[: limits.METRIC_SERIES_MAX]:
            partition, log = reader.get(PARTITIONS, row.log), reader.get(LOGS, row.log)
            topic = None if partition is None else reader.get(TOPICS, partition.topic)
            if partition is not None and topic is not None and log is not None:
                found = group_info(reader, topic, partition.number, log, row)
                by_group.setdefault((topic.name, row.name), []).append(found)
        lags = {name: sum(part.lag for part in parts) for name, parts in by_group.items()}
        worst = sorted(lags, key=lambda name: (-lags[name], name))[: self.limit]
        return GroupLag(
            len(lags),
            sum(lags.values()),
            sum(part.in_flight for parts in by_group.values() for part in parts),
            [_lagging(reader, name, by_group[name]) for name in worst],
            len(rows) > limits.METRIC_SERIES_MAX,
        )


def _lagging(reader: Reader, name: tuple[str, str], parts: list[GroupInfo]) -> LaggingGroup:
    behind = [part for part in parts if part.lag]
    times = [at_ms for part in behind if (at_ms := oldest_ms(reader, part)) is not None]
    return LaggingGroup(
        *name,
        sum(part.lag for part in parts),
        sum(part.in_flight for part in parts),
        sum(part.redelivered for part in parts),
        sum(part.lost for part in parts),
        min(times, default=None),
    )
