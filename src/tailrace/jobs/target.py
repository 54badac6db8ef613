"""The target of staged rows: resolved by its name, distinguished from earlier ones of that name, and written to."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Final

import msgspec

from tailrace import failpoints
from tailrace.errors import Closed, WrongType
from tailrace.extras import require
from tailrace.jobs import rows
from tailrace.jobs.stage import STREAM, TABLE, Target
from tailrace.log import log as logs
from tailrace.storage.engine import Reader, Tx
from tailrace.streams import commands as streams
from tailrace.streams.stream import STREAMS, StreamRow, is_json, touched
from tailrace.tables import definition as tables
from tailrace.tables import write as writing
from tailrace.tables.definition import Definition
from tailrace.topics import router
from tailrace.topics import topic as topics
from tailrace.topics.topic import PUBLISH, Envelope, Topic, encode

_FULL: Final = topics.MODES.index("Full")


class ResolvedTarget(msgspec.Struct, frozen=True):
    """An existing target. Unlike names, `number` is never reused."""

    target: Target
    number: int
    thing: Definition | Topic | StreamRow

    @property
    def stored(self) -> str:
        """The form that is stored with a stage."""
        return f"{self.target.kind}/{self.number}/{self.target.name}"


def resolve(reader: Reader | Tx, target: Target) -> ResolvedTarget:
    """The table, topic or stream of this name."""
    if target.kind == TABLE:
        definition = tables.find(reader, target.name)
        return ResolvedTarget(target, definition.space, definition)
    if target.kind == STREAM:
        stream = streams.live(reader, target.name)
        return ResolvedTarget(target, stream.log, stream)
    topic = topics.find(reader, target.name)
    return ResolvedTarget(Target(target.kind, topic.name), topic.id, topic)


def checked(here: ResolvedTarget, body: bytes, *, arrow: bool = False) -> rows.CheckedRows:
    """Check rows from a client, as MessagePack or Arrow, and convert them to the stored form. Slow: not for an event
    loop."""
    thing = here.thing
    if arrow:
        if not isinstance(thing, Definition):
            raise WrongType(f"rows for {here.target.subject} cannot be sent as Arrow; send MessagePack")
        require("cold")
        from tailrace.jobs import arrow_rows  # Arrow takes long to import, and many servers never need it

        return arrow_rows.for_table(body, thing)
    if isinstance(thing, Definition):
        return rows.for_table(body, thing)
    if isinstance(thing, Topic):
        return rows.for_topic(body, thing)
    return rows.for_stream(body, json=is_json(thing.content_type))


def write(tx: Tx, here: ResolvedTarget, bodies: Iterable[bytes]) -> None:
    """Write the rows of these chunks, in order."""
    thing = here.thing
    if isinstance(thing, Definition):
        chunks = (rows.writes(rows.table_chunk(body)) for body in bodies)
        writing.do_each(tx, thing, chain.from_iterable(chunks))
    elif isinstance(thing, Topic):
        _publish(tx, thing, bodies)
    else:
        _append(tx, thing, bodies)


def _publish(tx: Tx, topic: Topic, bodies: Iterable[bytes]) -> None:
    index = 0
    for body in bodies:
        messages: dict[int, list[bytes]] = {}
        for row in rows.outgoing(body):
            assert row.partition is not None, "the partition is set when the row is staged"
            envelope = Envelope(0, index, PUBLISH, _FULL, None, row.payload, tx.by, row.key)
            messages.setdefault(row.partition, []).append(encode(envelope))
            index += 1
        for partition, each in messages.items():
            router.append(tx, topic.log_of(partition), each)
        failpoints.hit("stages.part")


def _append(tx: Tx, stream: StreamRow, bodies: Iterable[bytes]) -> None:
    log = streams.log_of(tx, stream)
    if stream.closed:
        raise Closed(path=stream.path, tail=log.next)
    for body in bodies:
        for entry in rows.stream_entries(body):
            log = logs.append(tx, log, entry.body, len(entry.body))
        failpoints.hit("stages.part")
    if stream.ttl_s is not None:
        tx.put(STREAMS, touched(stream, tx.now_ms))
