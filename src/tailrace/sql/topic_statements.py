"""Statements about topics, carried out: each becomes one command or query, and its result becomes rows."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from tailrace import scalar
from tailrace.sql import statements as ast
from tailrace.sql.result import Execute, Result, counted, done, table
from tailrace.streams.producer import Claim
from tailrace.tables.operations import FindTable
from tailrace.topics import commands, consuming, queries
from tailrace.topics.group import Start
from tailrace.topics.topic import MODES, OPERATIONS, Message, Topic

EVENTS: Final = ("INSERT", "UPDATE", "DELETE")
_MESSAGE: Final = (
    "topic_id TEXT, partition_id BIGINT, offset BIGINT, message_id TEXT, source_table TEXT, op TEXT, ts BIGINT, "
    "payload_mode TEXT, payload TEXT, attempt BIGINT, lease_id TEXT, value TEXT"
)


def moment(at_ms: int) -> str:
    """A time as text, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# -- topics


def create_topic(execute: Execute, asked: ast.CreateTopic) -> Result:
    command = commands.CreateTopic(asked.name, asked.partitions, _options(asked.settings), asked.if_not_exists)
    made = execute(command)
    topic = made.topic
    partitions = counted(topic.partitions, "partition")
    message = f"topic {topic.name} created with {partitions}" if made.fresh else f"topic {topic.name} was there already"
    return done(asked.title, message, created=made.fresh, topic_id=str(topic.id), partitions=topic.partitions)


def _options(settings: ast.Settings) -> commands.Options:
    return commands.Options(**msgspec.structs.asdict(settings))


def drop_topic(execute: Execute, asked: ast.DropTopic) -> Result:
    dropped = execute(commands.DropTopic(asked.name, asked.if_exists))
    message = f"topic {asked.name} dropped" if dropped else f"there was no topic {asked.name}"
    return done(asked.title, message, dropped=dropped)


def add_source(execute: Execute, asked: ast.AddSource) -> Result:
    # Here its mistakes are told with their place in the text; the command looks again, inside the transaction.
    columns = execute(FindTable(asked.table)).column_kinds
    if asked.where is not None:
        scalar.condition(asked.where.text, columns=columns, line=asked.where.line, column=asked.where.column)
    if asked.partition_by is not None:
        by = asked.partition_by
        scalar.stored_value(by.text, columns=columns, line=by.line, column=by.column)
    command = commands.AddSource(
        asked.topic,
        asked.table,
        asked.event,
        None if asked.where is None else asked.where.text,
        None if asked.partition_by is None else asked.partition_by.text,
        asked.mode,
    )
    execute(command)
    return done(asked.title, f"topic {asked.topic} gets each {EVENTS[asked.event]} of table {asked.table} from now on")


def drop_source(execute: Execute, asked: ast.DropSource) -> Result:
    count = execute(commands.DropSource(asked.topic, asked.table, asked.event))
    return done(asked.title, f"{counted(count, 'source')} of topic {asked.topic} dropped", dropped=count)


def set_topic(execute: Execute, asked: ast.SetTopic) -> Result:
    topic = execute(commands.AlterTopic(asked.name, _options(asked.settings)))
    return done(asked.title, f"topic {topic.name} changed")


def clear_topic(execute: Execute, asked: ast.ClearTopic) -> Result:
    count = execute(commands.ClearTopic(asked.name))
    return done(asked.title, f"{counted(count, 'message')} of topic {asked.name} removed", count)


# -- messages


def publish(execute: Execute, asked: ast.Publish) -> Result:
    claim = None
    if asked.producer is not None:
        claim = Claim(asked.producer.id, asked.producer.epoch, asked.producer.sequence)
    messages = tuple([commands.Outgoing(payload, asked.key, asked.partition) for payload in asked.payloads])
    published = execute(commands.Publish(asked.topic, messages, claim))
    message = "these were published before" if published.duplicate else counted(len(messages), "message") + " published"
    facts = {} if claim is None else {"producer_sequence": published.sequence}
    return table(
        asked.title,
        "partition_id BIGINT, offset BIGINT",
        published.places,
        message,
        duplicate=published.duplicate,
        **facts,
    )


def consume(execute: Execute, asked: ast.Consume) -> Result:
    start = Start(asked.start.kind, asked.start.at)
    if asked.group is None:
        assert asked.partition is not None
        found = execute(queries.ReadTopic(asked.topic, asked.partition, start, asked.limit))
    else:
        visibility_ms = consuming.VISIBILITY_MS if asked.visibility_ms is None else asked.visibility_ms
        found = execute(
            consuming.Consume(
                asked.topic, asked.group, asked.partition, start, asked.limit, asked.consumer, visibility_ms
            )
        )
    rows = [_message(found.topic, message, found.lease) for message in found.messages]
    return table(
        asked.title,
        _MESSAGE,
        rows,
        counted(len(rows), "message"),
        partition_id=found.partition,
        next_offset=found.next_offset,
        has_more=found.has_more,
        skipped=found.skipped,
        lease_id=found.lease,
    )


def _message(topic: Topic, message: Message, lease: str | None) -> tuple[Any, ...]:
    envelope = message.envelope
    try:
        value = envelope.payload.decode()
    except UnicodeDecodeError:
        value = None
    return (
        str(topic.id), message.partition, message.offset, message.id, envelope.source, OPERATIONS[envelope.operation],
        message.at_ms, MODES[envelope.mode], b64encode(envelope.payload).decode(), message.attempt, lease, value,
    )  # fmt: skip


def ack(execute: Execute, asked: ast.Ack) -> Result:
    acked = execute(consuming.Ack(asked.topic, asked.group, asked.upto, asked.partition, asked.consumer, asked.lease))
    return done(
        asked.title,
        f"{counted(acked.acked, 'message')} acknowledged; everything below offset {acked.floor} is",
        acked.acked,
        acknowledged_offset=acked.floor - 1,
        acked=acked.acked,
    )


def nack(execute: Execute, asked: ast.Nack) -> Result:
    nacked = execute(
        consuming.Nack(
            asked.topic,
            asked.group,
            asked.partition,
            asked.consumer,
            asked.lease,
            asked.first,
            asked.upto,
            asked.delay_ms,
        )
    )
    return done(asked.title, f"{counted(nacked.messages, 'message')} given back", nacked.messages)


def extend(execute: Execute, asked: ast.Extend) -> Result:
    extended = execute(
        consuming.Extend(asked.topic, asked.group, asked.partition, asked.consumer, asked.lease, asked.visibility_ms)
    )
    return done(
        asked.title,
        f"{counted(extended.messages, 'message')} held until {moment(extended.until_ms)}",
        extended.messages,
        lease_until=extended.until_ms,
    )


# -- groups


def reset_group(execute: Execute, asked: ast.ResetGroup) -> Result:
    to = Start(asked.to.kind, asked.to.at)
    reset = execute(consuming.ResetGroup(asked.topic, asked.group, to, asked.partition))
    rows = sorted(reset.offsets.items())
    return table(asked.title, "partition_id BIGINT, next_offset BIGINT", rows, f"group {asked.group} reset")


def drop_group(execute: Execute, asked: ast.DropGroup) -> Result:
    count = execute(consuming.DropGroup(asked.topic, asked.group))
    return done(asked.title, f"group {asked.group} forgotten in {counted(count, 'partition')}")


# -- how they are


def show_topics(execute: Execute, asked: ast.ShowTopics) -> Result:
    topics = execute(queries.ListTopics())
    names = {topic.id: topic.name for topic in topics}
    columns = (
        "name TEXT, alias TEXT, partitions BIGINT, retention_seconds BIGINT, retention_max_bytes BIGINT, "
        "max_attempts BIGINT, dead_letter TEXT, created_at TEXT"
    )
    rows = [
        (
            topic.name, topic.alias, topic.partitions, topic.retention_seconds, topic.retention_max_bytes,
            topic.max_attempts, None if topic.dead_letter is None else names.get(topic.dead_letter),
            moment(topic.created_ms),
        )
        for topic in topics
    ]  # fmt: skip
    return table(asked.title, columns, rows, counted(len(rows), "topic"))


_GROUP: Final = (
    "topic TEXT, group_id TEXT, partition_id BIGINT, last_acked_offset BIGINT, next_offset BIGINT, lag BIGINT, "
    "in_flight BIGINT, pending BIGINT, delivered BIGINT, redelivered BIGINT, lost BIGINT, updated_at TEXT"
)


def show_groups(execute: Execute, asked: ast.ShowGroups) -> Result:
    return _groups(asked.title, execute(queries.ListGroups(asked.topic)))


def _groups(title: str, infos: list[queries.GroupInfo]) -> Result:
    rows = [
        (
            info.topic.name, info.group, info.partition, info.floor - 1, info.cursor, info.lag, info.in_flight,
            info.pending, info.delivered, info.redelivered, info.lost, moment(info.updated_ms),
        )
        for info in infos
    ]  # fmt: skip
    return table(title, _GROUP, rows)


def describe_topic(execute: Execute, asked: ast.DescribeTopic) -> Result:
    """A line for each thing that there is to say; `facts` has the same for programs."""
    found = execute(queries.DescribeTopic(asked.name))
    topic = found.topic
    said: dict[str, Any] = {
        "name": topic.name,
        "topic_id": str(topic.id),
        "alias": topic.alias,
        "partitions": topic.partitions,
        "retention_seconds": topic.retention_seconds,
        "retention_max_bytes": topic.retention_max_bytes,
        "max_attempts": topic.max_attempts,
        "dead_letter": found.dead_letter,
        "created_at": moment(topic.created_ms),
        "created_by": topic.created_by,
    }
    rows = [(name, None if value is None else str(value)) for name, value in said.items()]
    for info in found.partitions:
        held = f"offsets {info.start} to {info.next - 1}" if info.next > info.start else f"empty, next is {info.next}"
        rows.append((f"partition {info.partition}", f"{held}, {counted(info.bytes, 'byte')}"))
    rows += [_described(info) for info in found.routes]
    for group in found.groups:
        told = f"lag {group.lag}, in flight {group.in_flight}, to be delivered again {group.pending}, lost {group.lost}"
        rows.append((f"group {group.group}, partition {group.partition}", told))
    return table(
        asked.title,
        "property TEXT, value TEXT",
        rows,
        topic=said,
        partitions=[
            {"partition_id": info.partition, "start_offset": info.start, "next_offset": info.next, "bytes": info.bytes}
            for info in found.partitions
        ],
        sources=[
            {
                "table": info.table,
                "op": OPERATIONS[info.route.event],
                "payload_mode": MODES[info.route.mode],
                "filter": info.route.filter,
                "partition_by": info.route.partition_by,
            }
            for info in found.routes
        ],
        groups=_groups(asked.title, found.groups).rows,
    )


def _described(info: queries.RouteInfo) -> tuple[str, str]:
    route = info.route
    clauses = [f"payload {MODES[route.mode].lower()}"]
    if route.filter is not None:
        clauses.append(f"WHERE {route.filter}")
    if route.partition_by is not None:
        clauses.append(f"PARTITION BY ({route.partition_by})")
    return f"source {info.table} ON {EVENTS[route.event]}", ", ".join(clauses)


RUN: Final[dict[type[ast.Statement], Callable[[Execute, Any], Result]]] = {
    ast.CreateTopic: create_topic,
    ast.DropTopic: drop_topic,
    ast.AddSource: add_source,
    ast.DropSource: drop_source,
    ast.SetTopic: set_topic,
    ast.ClearTopic: clear_topic,
    ast.Publish: publish,
    ast.Consume: consume,
    ast.Ack: ack,
    ast.Nack: nack,
    ast.Extend: extend,
    ast.ResetGroup: reset_group,
    ast.DropGroup: drop_group,
    ast.ShowTopics: show_topics,
    ast.ShowGroups: show_groups,
    ast.DescribeTopic: describe_topic,
}
