"""The system tables: the contents of the database as rows that SELECT can read.

Each has fixed columns and is built from the same queries that the other APIs use, so it requires the same permissions.
Nothing is stored twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa

from tailrace import limits
from tailrace.auth.users import ListUsers
from tailrace.command import Query
from tailrace.jobs.queries import ListJobs
from tailrace.log import cold
from tailrace.log.entry import LOGS, Log
from tailrace.sql.arrow import BIGINT, BOOLEAN, MOMENT, TEXT, json_text
from tailrace.sql.commands import AllTables
from tailrace.sql.result import Execute
from tailrace.sql.values import columns_of
from tailrace.storage.engine import Reader
from tailrace.streams.stream import STREAMS, StreamRow, expired
from tailrace.tables.definition import Definition
from tailrace.topics.queries import ListGroups, ListPartitions, ListRoutes, ListTopics, RouteInfo
from tailrace.topics.topic import MODES, OPERATIONS

Row = tuple[Any, ...]


class SystemTable(msgspec.Struct, frozen=True):
    """The columns of a system table, and the function that returns its rows."""

    columns: tuple[tuple[str, pa.DataType], ...]
    rows: Callable[[Execute], Iterator[Row]]


# -- topics


def _topics(execute: Execute) -> Iterator[Row]:
    topics = execute(ListTopics())
    names = {topic.id: topic.name for topic in topics}
    routes: dict[int, list[dict[str, Any]]] = {}
    for info in execute(ListRoutes()):
        routes.setdefault(info.topic_id, []).append(_route(info))
    for topic in topics:
        letters = None if topic.dead_letter is None else names.get(topic.dead_letter)
        yield (
            str(topic.id), topic.name, topic.alias, topic.partitions, topic.retention_seconds,
            topic.retention_max_bytes, topic.max_attempts, letters, json_text(routes.get(topic.id, [])),
            topic.created_ms, topic.created_by,
        )  # fmt: skip


def _route(info: RouteInfo) -> dict[str, Any]:
    route = info.route
    return {
        "table_id": info.table,
        "op": OPERATIONS[route.event],
        "payload_mode": MODES[route.mode],
        "filter_expr": route.filter,
        "partition_key_expr": route.partition_by,
        "name": route.name,
        "backfill": bool(route.backfill),
    }


def _routes(execute: Execute) -> Iterator[Row]:
    for info in execute(ListRoutes()):
        yield (str(info.topic_id), info.topic, *_route(info).values())


def _offsets(execute: Execute) -> Iterator[Row]:
    for info in execute(ListGroups()):
        topic = info.topic
        yield str(topic.id), topic.name, info.group, info.partition, info.floor - 1, info.cursor, info.updated_ms


def _groups(execute: Execute) -> Iterator[Row]:
    for info in execute(ListGroups()):
        yield (
            str(info.topic.id), info.topic.name, info.group, info.partition, info.lag, info.in_flight, info.pending,
            info.delivered, info.redelivered, info.lost, json_text(info.consumers), info.created_ms, info.updated_ms,
        )  # fmt: skip


def _partitions(execute: Execute) -> Iterator[Row]:
    for info in execute(ListPartitions()):
        last_ms = info.at_ms if info.next else None
        yield (
            str(info.topic.id), info.topic.name, info.partition, info.start, info.next, info.next - info.start,
            info.bytes, last_ms,
        )  # fmt: skip


# -- tables and streams


class AllStreams(Query[list[tuple[StreamRow, Log | None]]], frozen=True):
    """A page of streams with their logs, ordered by path, `after` one. Includes deleted streams."""

    after: str | None = None
    limit: int = limits.SLICE_ENTRIES

    def run(self, reader: Reader) -> list[tuple[StreamRow, Log | None]]:
        rows = list(reader.scan(STREAMS, after=self.after, limit=self.limit))
        logs = [None if expired(row, reader.settled_ms) else reader.get(LOGS, row.log) for row in rows]
        return [(row, log and cold.whole(reader, log)) for row, log in zip(rows, logs, strict=True)]


def _tables(execute: Execute) -> Iterator[Row]:
    page = execute(AllTables())
    while page:
        for described in page:
            definition = described.definition
            held = described.counts[definition.space]
            sort = definition.range
            yield (
                definition.name, definition.space, definition.hash, definition.kinds[definition.hash], sort,
                None if sort is None else definition.kinds[sort],
                json_text([{"name": column.name, "kind": column.kind} for column in definition.columns]),
                json_text([index.name for index in definition.indexes]), held.items, held.bytes,
                None if definition.stream is None else definition.stream.view, definition.ttl, described.status,
                definition.created_ms,
            )  # fmt: skip
        page = execute(AllTables(page[-1].definition.name))


def _streams(execute: Execute) -> Iterator[Row]:
    page = execute(AllStreams())
    while page:
        for stream, log in page:
            if log is not None and not stream.deleted:
                yield (
                    stream.path, stream.content_type, log.start, log.next, bool(stream.closed), stream.ttl_s,
                    stream.expires_ms, stream.max_age_s, stream.max_bytes, stream.forked_from, stream.created_ms,
                    log.at_ms,
                )  # fmt: skip
        page = execute(AllStreams(page[-1][0].path))


# -- users and pipelines


def _users(execute: Execute) -> Iterator[Row]:
    for user in execute(ListUsers()):
        patterns = None if user.access is None else json_text(user.access)
        yield user.name, user.role, patterns, user.disabled, user.created_ms, user.updated_ms


def _pipelines(execute: Execute) -> Iterator[Row]:
    for each in execute(ListJobs()):
        job, pause = each.job, each.pause
        at = json_text({str(log): position for log, position in each.positions.items()})
        yield (
            job.name, job.kind, job.source or None, job.target or None, job.state, at if each.positions else None,
            job.updated_ms, job.rows, each.lag, job.message or None, job.created_ms, pause is not None,
            None if pause is None else pause.at_ms, None if pause is None else pause.by,
        )  # fmt: skip


# -- information_schema


def _listed(execute: Execute) -> Iterator[Definition]:
    after: str | None = None
    while page := execute(AllTables(after)):
        yield from (description.definition for description in page)
        after = page[-1].definition.name


def _schema_tables(execute: Execute) -> Iterator[Row]:
    for definition in _listed(execute):
        yield CATALOG, CATALOG, definition.name, "BASE TABLE"


def _schema_columns(execute: Execute) -> Iterator[Row]:
    for definition in _listed(execute):
        for number, column in enumerate(columns_of(definition).values(), start=1):
            type_ = "VARCHAR" if column.kind == "TEXT" else column.kind
            nullable = "NO" if column.required else "YES"
            yield (
                CATALOG, CATALOG, definition.name, column.name, number, column.default, nullable, type_, column.length,
            )  # fmt: skip


CATALOG: Final = "tailrace"  # the name of the only catalog, and of its only schema
INFORMATION: Final = "information_schema"

SYSTEM_TABLES: Final[dict[str, SystemTable]] = {
    "topics": SystemTable(
        (
            ("topic_id", TEXT), ("name", TEXT), ("alias", TEXT), ("partitions", BIGINT),
            ("retention_seconds", BIGINT), ("retention_max_bytes", BIGINT), ("max_attempts", BIGINT),
            ("dead_letter", TEXT), ("routes", TEXT), ("created_at", MOMENT), ("created_by", TEXT),
        ),
        _topics,
    ),
    "topic_routes": SystemTable(
        (
            ("topic_id", TEXT), ("topic", TEXT), ("table_id", TEXT), ("op", TEXT), ("payload_mode", TEXT),
            ("filter_expr", TEXT), ("partition_key_expr", TEXT), ("name", TEXT), ("backfill", BOOLEAN),
        ),
        _routes,
    ),
    "topic_offsets": SystemTable(
        (
            ("topic_id", TEXT), ("topic", TEXT), ("group_id", TEXT), ("partition_id", BIGINT),
            ("last_acked_offset", BIGINT), ("next_offset", BIGINT), ("updated_at", MOMENT),
        ),
        _offsets,
    ),
    "topic_groups": SystemTable(
        (
            ("topic_id", TEXT), ("topic", TEXT), ("group_id", TEXT), ("partition_id", BIGINT), ("lag", BIGINT),
            ("in_flight", BIGINT), ("pending", BIGINT), ("delivered", BIGINT), ("redelivered", BIGINT),
            ("lost", BIGINT), ("consumers", TEXT), ("created_at", MOMENT), ("updated_at", MOMENT),
        ),
        _groups,
    ),
    "topic_partitions": SystemTable(
        (
            ("topic_id", TEXT), ("topic", TEXT), ("partition_id", BIGINT), ("start_offset", BIGINT),
            ("next_offset", BIGINT), ("messages", BIGINT), ("bytes", BIGINT), ("last_message_at", MOMENT),
        ),
        _partitions,
    ),
    "streams": SystemTable(
        (
            ("path", TEXT), ("content_type", TEXT), ("start_position", BIGINT), ("next_position", BIGINT),
            ("closed", BOOLEAN), ("ttl_seconds", BIGINT), ("expires_at", MOMENT), ("retention_seconds", BIGINT),
            ("retention_max_bytes", BIGINT), ("forked_from", TEXT), ("created_at", MOMENT), ("updated_at", MOMENT),
        ),
        _streams,
    ),
    "tables": SystemTable(
        (
            ("name", TEXT), ("table_number", BIGINT), ("partition_key", TEXT), ("partition_key_type", TEXT),
            ("sort_key", TEXT), ("sort_key_type", TEXT), ("columns", TEXT), ("indexes", TEXT), ("items", BIGINT),
            ("bytes", BIGINT), ("stream_view", TEXT), ("ttl_attribute", TEXT), ("status", TEXT),
            ("created_at", MOMENT),
        ),
        _tables,
    ),
    "users": SystemTable(
        (
            ("name", TEXT), ("role", TEXT), ("access", TEXT), ("disabled", BOOLEAN), ("created_at", MOMENT),
            ("updated_at", MOMENT),
        ),
        _users,
    ),
    "pipelines": SystemTable(
        (
            ("name", TEXT), ("kind", TEXT), ("source", TEXT), ("target", TEXT), ("state", TEXT), ("position", TEXT),
            ("updated_at", MOMENT), ("rows", BIGINT), ("lag", BIGINT), ("message", TEXT), ("created_at", MOMENT),
            ("paused", BOOLEAN), ("paused_at", MOMENT), ("paused_by", TEXT),
        ),
        _pipelines,
    ),
}  # fmt: skip
INFORMATION_TABLES: Final[dict[str, SystemTable]] = {
    "tables": SystemTable(
        (("table_catalog", TEXT), ("table_schema", TEXT), ("table_name", TEXT), ("table_type", TEXT)), _schema_tables
    ),
    "columns": SystemTable(
        (
            ("table_catalog", TEXT), ("table_schema", TEXT), ("table_name", TEXT), ("column_name", TEXT),
            ("ordinal_position", BIGINT), ("column_default", TEXT), ("is_nullable", TEXT), ("data_type", TEXT),
            ("character_maximum_length", BIGINT),
        ),
        _schema_columns,
    ),
}  # fmt: skip
