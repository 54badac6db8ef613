"""Execution of statements about topics: each becomes one command or query, whose result becomes rows."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from tailrace import limits, scalar
from tailrace.jobs.partitions import AddPartitions
from tailrace.sql import statements as ast
from tailrace.sql.result import Execute, Result, counted, done, table
from tailrace.streams.producer import ProducerClaim
from tailrace.tables.operations import FindTable
from tailrace.topics import commands, consuming, queries
from tailrace.topics.group import StartPoint
from tailrace.topics.router import columns_of
from tailrace.topics.topic import MODES, OPERATIONS, DeliveredMessage, Topic

EVENTS: Final = ("INSERT", "UPDATE", "DELETE")
_MESSAGE: Final = (
    "topic_id TEXT, partition_id BIGINT, offset BIGINT, message_id TEXT, source_table TEXT, op TEXT, ts BIGINT, "
    "payload_mode TEXT, payload TEXT, attempt BIGINT, lease_id TEXT, value TEXT"
)


def moment(at_ms: int) -> str:
    """A time as text, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# -- topics


def create_topic(execute: Execute, statement: ast.CreateTopicStatement) -> Result:
    command = commands.CreateTopic(
        statement.name, statement.partitions, _options(statement.settings), statement.if_not_exists
    )
    made = execute(command)
    topic = made.topic
    partitions = counted(topic.partitions, "partition")
    message = f"topic {topic.name} created with {partitions}" if made.fresh else f"topic {topic.name} already exists"
    return done(statement.title, message, created=made.fresh, topic_id=str(topic.id), partitions=topic.partitions)


def _options(settings: ast.TopicSettings) -> commands.TopicOptions:
    return commands.TopicOptions(**msgspec.structs.asdict(settings))


def drop_topic(execute: Execute, statement: ast.DropTopicStatement) -> Result:
    dropped = execute(commands.DropTopic(statement.name, statement.if_exists))
    message = f"topic {statement.name} dropped" if dropped else f"topic {statement.name} does not exist"
    return done(statement.title, message, dropped=dropped)


def add_source(execute: Execute, statement: ast.AddSourceStatement) -> Result:
    # Checked here so that errors have their location in the text; the command checks again, inside the transaction.
    columns = columns_of(execute(FindTable(statement.table)))
    if statement.where is not None:
        scalar.condition(
            statement.where.text, columns=columns, line=statement.where.line, column=statement.where.column
        )
    if statement.partition_by is not None:
        by = statement.partition_by
        scalar.stored_value(by.text, columns=columns, line=by.line, column=by.column)
    command = commands.AddSource(
        statement.topic,
        statement.table,
        statement.events,
        None if statement.where is None else statement.where.text,
        None if statement.partition_by is None else statement.partition_by.text,
        statement.mode,
        statement.name,
        statement.replace,
        statement.backfill,
    )
    made = execute(command)
    events = " and ".join(EVENTS[event] for event in statement.events)
    message = f"topic {statement.topic} gets each {events} of table {statement.table} from now on"
    if any(route.backfill for route in made.routes):
        message += ", and the rows that are there already"
    if made.replaced:
        message += f"; {counted(made.replaced, 'route')} replaced"
    return done(statement.title, message, replaced=made.replaced)


def drop_source(execute: Execute, statement: ast.DropSourceStatement) -> Result:
    count = execute(commands.DropSource(statement.topic, statement.table, statement.events, statement.name))
    return done(statement.title, f"{counted(count, 'source')} of topic {statement.topic} dropped", dropped=count)


def set_topic(execute: Execute, statement: ast.SetTopicStatement) -> Result:
    topic = execute(commands.AlterTopic(statement.name, _options(statement.settings)))
    return done(statement.title, f"topic {topic.name} changed")


def set_alias(execute: Execute, statement: ast.SetAliasStatement) -> Result:
    topic = execute(commands.AlterTopic(statement.name, commands.TopicOptions(alias=statement.alias), statement.force))
    alias = "no alias" if topic.alias is None else f"the alias {topic.alias}"
    return done(statement.title, f"topic {topic.name} has {alias}")


def add_partitions(execute: Execute, statement: ast.AddPartitionsStatement) -> Result:
    topic = execute(AddPartitions(statement.name, statement.partitions))
    partitions = counted(topic.partitions, "partition")
    return done(statement.title, f"topic {topic.name} has {partitions}", partitions=topic.partitions)


def clear_topic(execute: Execute, statement: ast.ClearTopicStatement) -> Result:
    count = execute(commands.ClearTopic(statement.name))
    return done(statement.title, f"{counted(count, 'message')} of topic {statement.name} removed", count)


# -- messages


def publish(execute: Execute, statement: ast.PublishStatement) -> Result:
    claim = None
    if statement.producer is not None:
        claim = ProducerClaim(statement.producer.id, statement.producer.epoch, statement.producer.sequence)
    messages = tuple([commands.Outgoing(payload, statement.key, statement.partition) for payload in statement.payloads])
    published = execute(commands.Publish(statement.topic, messages, claim))
    message = (
        "these messages were published before (a duplicate)"
        if published.duplicate
        else counted(len(messages), "message") + " published"
    )
    facts = {} if claim is None else {"producer_sequence": published.sequence}
    return table(
        statement.title,
        "partition_id BIGINT, offset BIGINT",
        published.offsets,
        message,
        duplicate=published.duplicate,
        **facts,
    )


def consume(execute: Execute, statement: ast.ConsumeStatement) -> Result:
    start = StartPoint(statement.start.kind, statement.start.at)
    if statement.group is None:
        assert statement.partition is not None
        delivered = execute(queries.ReadTopic(statement.topic, statement.partition, start, statement.limit))
    else:
        visibility_ms = limits.VISIBILITY_MS if statement.visibility_ms is None else statement.visibility_ms
        delivered = execute(
            consuming.Consume(
                statement.topic,
                statement.group,
                statement.partition,
                start,
                statement.limit,
                statement.consumer,
                visibility_ms,
            )
        )
    rows = [_message(delivered.topic, message, delivered.lease) for message in delivered.messages]
    return table(
        statement.title,
        _MESSAGE,
        rows,
        counted(len(rows), "message"),
        partition_id=delivered.partition,
        next_offset=delivered.next_offset,
        has_more=delivered.has_more,
        skipped=delivered.skipped,
        lease_id=delivered.lease,
    )


def _message(topic: Topic, message: DeliveredMessage, lease: str | None) -> tuple[Any, ...]:
    envelope = message.envelope
    try:
        value = envelope.payload.decode()
    except UnicodeDecodeError:
        value = None
    return (
        str(topic.id), message.partition, message.offset, message.id, envelope.source, OPERATIONS[envelope.operation],
        message.at_ms, MODES[envelope.mode], b64encode(envelope.payload).decode(), message.attempt, lease, value,
    )  # fmt: skip


def ack(execute: Execute, statement: ast.AckStatement) -> Result:
    upto = max(statement.offsets) if statement.upto is None else statement.upto
    acked = execute(
        consuming.Ack(
            statement.topic, statement.group, upto, statement.partition, statement.consumer, statement.lease,
            statement.offsets,
        )
    )  # fmt: skip
    return done(
        statement.title,
        f"{counted(acked.acked, 'message')} acknowledged; first unacknowledged offset: {acked.floor}",
        acked.acked,
        acknowledged_offset=acked.floor - 1,
        acked=acked.acked,
    )


def nack(execute: Execute, statement: ast.NackStatement) -> Result:
    nacked = execute(
        consuming.Nack(
            statement.topic,
            statement.group,
            statement.partition,
            statement.consumer,
            statement.lease,
            statement.first,
            statement.upto,
            statement.delay_ms,
        )
    )
    return done(statement.title, f"{counted(nacked.messages, 'message')} returned for redelivery", nacked.messages)


def extend(execute: Execute, statement: ast.ExtendStatement) -> Result:
    extended = execute(
        consuming.Extend(
            statement.topic,
            statement.group,
            statement.partition,
            statement.consumer,
            statement.lease,
            statement.visibility_ms,
        )
    )
    return done(
        statement.title,
        f"{counted(extended.messages, 'message')} leased until {moment(extended.until_ms)}",
        extended.messages,
        lease_until=extended.until_ms,
    )


# -- groups


def reset_group(execute: Execute, statement: ast.ResetGroupStatement) -> Result:
    to = StartPoint(statement.to.kind, statement.to.at)
    reset = execute(consuming.ResetGroup(statement.topic, statement.group, to, statement.partition))
    rows = sorted(reset.offsets.items())
    return table(statement.title, "partition_id BIGINT, next_offset BIGINT", rows, f"group {statement.group} reset")


def drop_group(execute: Execute, statement: ast.DropGroupStatement) -> Result:
    count = execute(consuming.DropGroup(statement.topic, statement.group))
    return done(statement.title, f"group {statement.group} dropped from {counted(count, 'partition')}")


# -- SHOW and DESCRIBE


def show_topics(execute: Execute, statement: ast.ShowTopicsStatement) -> Result:
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
    return table(statement.title, columns, rows, counted(len(rows), "topic"))


_GROUP: Final = (
    "topic TEXT, group_id TEXT, partition_id BIGINT, last_acked_offset BIGINT, next_offset BIGINT, lag BIGINT, "
    "in_flight BIGINT, pending BIGINT, delivered BIGINT, redelivered BIGINT, lost BIGINT, updated_at TEXT"
)


def show_groups(execute: Execute, statement: ast.ShowGroupsStatement) -> Result:
    return _groups(statement.title, execute(queries.ListGroups(statement.topic)))


def _groups(title: str, infos: list[queries.GroupInfo]) -> Result:
    rows = [
        (
            info.topic.name, info.group, info.partition, info.floor - 1, info.cursor, info.lag, info.in_flight,
            info.pending, info.delivered, info.redelivered, info.lost, moment(info.updated_ms),
        )
        for info in infos
    ]  # fmt: skip
    return table(title, _GROUP, rows)


def describe_topic(execute: Execute, statement: ast.DescribeTopicStatement) -> Result:
    """One row per property, partition, source and group; `facts` has the same for programs."""
    description = execute(queries.DescribeTopic(statement.name))
    topic = description.topic
    properties: dict[str, Any] = {
        "name": topic.name,
        "topic_id": str(topic.id),
        "alias": topic.alias,
        "partitions": topic.partitions,
        "retention_seconds": topic.retention_seconds,
        "retention_max_bytes": topic.retention_max_bytes,
        "max_attempts": topic.max_attempts,
        "dead_letter": description.dead_letter,
        "created_at": moment(topic.created_ms),
        "created_by": topic.created_by,
    }
    rows = [(name, None if value is None else str(value)) for name, value in properties.items()]
    for info in description.partitions:
        held = f"offsets {info.start} to {info.next - 1}" if info.next > info.start else f"empty, next is {info.next}"
        rows.append((f"partition {info.partition}", f"{held}, {counted(info.bytes, 'byte')}"))
    rows += [_described(info) for info in description.routes]
    for group in description.groups:
        status = (
            f"lag {group.lag}, in flight {group.in_flight}, to be delivered again {group.pending}, lost {group.lost}"
        )
        rows.append((f"group {group.group}, partition {group.partition}", status))
    return table(
        statement.title,
        "property TEXT, value TEXT",
        rows,
        topic=properties,
        partitions=[
            {"partition_id": info.partition, "start_offset": info.start, "next_offset": info.next, "bytes": info.bytes}
            for info in description.partitions
        ],
        sources=[
            {
                "name": info.route.name,
                "table": info.table,
                "op": OPERATIONS[info.route.event],
                "payload_mode": MODES[info.route.mode],
                "filter": info.route.filter,
                "partition_by": info.route.partition_by,
            }
            for info in description.routes
        ],
        groups=_groups(statement.title, description.groups).rows,
    )


def _described(info: queries.RouteInfo) -> tuple[str, str]:
    route = info.route
    clauses = [f"payload {MODES[route.mode].lower()}"]
    if route.filter is not None:
        clauses.append(f"WHERE {route.filter}")
    if route.partition_by is not None:
        clauses.append(f"PARTITION BY ({route.partition_by})")
    if route.backfill:
        clauses.append("existing rows are being sent")
    name = "" if route.name is None else f" AS {route.name}"
    return f"source {info.table}{name} ON {EVENTS[route.event]}", ", ".join(clauses)


RUN: Final[dict[type[ast.Statement], Callable[[Execute, Any], Result]]] = {
    ast.CreateTopicStatement: create_topic,
    ast.DropTopicStatement: drop_topic,
    ast.AddSourceStatement: add_source,
    ast.DropSourceStatement: drop_source,
    ast.SetTopicStatement: set_topic,
    ast.SetAliasStatement: set_alias,
    ast.AddPartitionsStatement: add_partitions,
    ast.ClearTopicStatement: clear_topic,
    ast.PublishStatement: publish,
    ast.ConsumeStatement: consume,
    ast.AckStatement: ack,
    ast.NackStatement: nack,
    ast.ExtendStatement: extend,
    ast.ResetGroupStatement: reset_group,
    ast.DropGroupStatement: drop_group,
    ast.ShowTopicsStatement: show_topics,
    ast.ShowGroupsStatement: show_groups,
    ast.DescribeTopicStatement: describe_topic,
}
