"""A table's change stream: how it is enabled and disabled, and how it is found.

Enabling always creates a new stream, with its own label, log and epoch. Disabling closes the stream; it stays readable
beside a later one, also after the table is deleted. A closed stream is removed when its retention has passed, and one
without a maximum age when it is pruned.

Enabling takes a sequence of its own, and the stream begins after it. A reader that continues from an earlier stream
gets an error instead of silently skipping the changes that were made in between, which no stream recorded.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

import msgspec

from tailrace import limits
from tailrace.access import Permission
from tailrace.command import Command
from tailrace.errors import Invalid, NotFound, TableNotFound
from tailrace.log import log as logs
from tailrace.log.entry import LOGS, Log
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.table import META, StorageTable
from tailrace.tables import change
from tailrace.tables.definition import TABLES, Definition, StreamRef, counted, decoded, find, save

OWNER: Final = "table/"  # the prefix of the owner of a change stream's log


class ChangeStream(msgspec.Struct, frozen=True):
    """A table's change stream, open or closed."""

    name: str  # the table's
    label: str  # the time it was enabled; unique per table
    log: int
    space: int  # the table's number: a later table of that name has another
    view: str
    epoch: str  # random, so that iterators of another database are recognised
    created_ms: int
    closed_ms: int | None
    max_age_s: int | None
    max_count: int | None
    schema: bytes

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        """Name and type of the table's key attributes, the partition key first."""
        return _schema(self.schema).keys

    @property
    def first(self) -> int:
        """The first position of the log: after the sequence at which the stream was enabled."""
        return _schema(self.schema).first

    @property
    def hidden(self) -> bool:
        """Whether it was made for point-in-time recovery, and the DynamoDB API does not show it."""
        return _schema(self.schema).hidden

    @property
    def complete(self) -> bool:
        """Whether the table had no items when the stream began."""
        return _schema(self.schema).complete


class StreamSchema(msgspec.Struct, frozen=True):
    """Facts about a table that the stream keeps when the table is deleted."""

    keys: tuple[tuple[str, str], ...]
    first: int
    complete: bool = False  # the table had no items when the stream began, so the stream has a record of every item
    hidden: bool = False  # it was made for point-in-time recovery


CHANGE_STREAMS = StorageTable("change_streams", ChangeStream, key=("name", "label"), cached=True)
_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(StreamSchema)


@lru_cache(maxsize=1024)
def _schema(body: bytes) -> StreamSchema:
    return _decoder.decode(body)


def enable(
    tx: Tx,
    definition: Definition,
    view: str,
    *,
    max_age_s: int | None = limits.CHANGES_AGE_S,
    max_count: int | None = limits.CHANGES_COUNT,
    hidden: bool = False,
) -> Definition:
    """Record the table's changes from now on; saves and returns the table's definition."""
    if definition.recovery is not None and view not in (change.BOTH, change.OLD_IMAGE):
        raise Invalid(
            f"table {definition.name!r} has point-in-time recovery, which needs old images; enable the stream with "
            f"view {change.BOTH}, or disable point-in-time recovery first"
        )
    if definition.stream is not None and definition.stream.hidden:
        close(tx, definition)
    elif definition.stream is not None:
        raise Invalid(f"Table already has an enabled stream: TableName: {definition.name}")
    if view not in change.VIEWS:
        raise Invalid(f"stream view {view!r} is unknown; use one of {', '.join(change.VIEWS)}")
    check_retention(max_age_s, max_count)
    first = tx.next_id(change.SEQUENCE) + 1
    label = _new_label(tx, definition.name)
    log = logs.create(tx, f"{OWNER}{definition.name}/{label}")
    tx.put(LOGS, msgspec.structs.replace(log, start=first, next=first))
    empty = not counted(tx, definition.space).items
    schema = StreamSchema(tuple((name, definition.kinds[name]) for name in definition.keys), first, empty, hidden)
    tx.put(
        CHANGE_STREAMS,
        ChangeStream(
            definition.name, label, log.id, definition.space, view, secrets.token_hex(8), tx.now_ms, None, max_age_s,
            max_count, _encode(schema),
        ),
    )  # fmt: skip
    definition = msgspec.structs.replace(definition, stream=StreamRef(label, log.id, view, hidden))
    save(tx, definition)
    return definition


def record_for_recovery(tx: Tx, definition: Definition) -> Definition:
    """Record the changes of a table without a stream for its point-in-time recovery."""
    assert definition.recovery is not None
    days = definition.recovery.days
    return enable(tx, definition, change.OLD_IMAGE, max_age_s=days * 24 * 3600, max_count=None, hidden=True)


def disable(tx: Tx, definition: Definition) -> Definition:
    """Stop recording; the stream stays readable. Saves and returns the table's definition."""
    if definition.stream is None or (definition.stream.hidden and definition.recovery is not None):
        raise Invalid(f"Table has no stream to disable: TableName: {definition.name}")
    close(tx, definition)
    definition = msgspec.structs.replace(definition, stream=None)
    if definition.recovery is not None:
        return record_for_recovery(tx, definition)
    save(tx, definition)
    return definition


def close(tx: Tx, definition: Definition) -> None:
    """Close the table's stream, if it has one; it is kept until its retention passes."""
    if definition.stream is None:
        return
    stream = tx.get(CHANGE_STREAMS, definition.name, definition.stream.label)
    assert stream is not None, f"table {definition.name!r} has lost its change stream"
    tx.put(CHANGE_STREAMS, msgspec.structs.replace(stream, closed_ms=tx.now_ms))
    tx.notify(stream.log, logs.CLOSED)


def check_retention(max_age_s: int | None, max_count: int | None) -> None:
    """Raise if a bound is out of range; None is no bound."""
    if max_age_s is not None and not whole(max_age_s, 1, limits.TTL_S_MAX):
        raise Invalid(f"max_age_s {max_age_s!r} is not from 1 to {limits.TTL_S_MAX}; use None for no limit")
    if max_count is not None and not whole(max_count, 1, limits.POSITION_MAX):
        raise Invalid(f"max_count {max_count!r} is not from 1 to {limits.POSITION_MAX}; use None for no limit")


def whole(number: object, least: int, most: int) -> bool:
    """Whether it is an int in these bounds. Python programs can pass anything, and a column takes no fractions."""
    return type(number) is int and least <= number <= most


def _new_label(tx: Tx, name: str) -> str:
    """The time, made later than the label of the table's last stream."""
    label = _iso(tx.now_ms)
    for last in tx.scan(CHANGE_STREAMS, name, reverse=True, limit=1):
        if last.label >= label:
            moment = datetime.fromisoformat(last.label).replace(tzinfo=UTC)
            label = _iso(round(moment.timestamp() * 1000) + 1)
    return label


def _iso(at_ms: int) -> str:
    seconds, ms = divmod(at_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03d}"


def find_stream(reader: Reader | Tx, name: str, label: str | None = None) -> ChangeStream:
    """The stream with this label; None: the table's current stream, or its last. Also finds those of deleted tables."""
    if label is not None:
        stream = reader.get(CHANGE_STREAMS, name, label)
        if stream is None:
            raise NotFound(f"table {name!r} has no change stream {label!r}; list its streams", code="STREAM_NOT_FOUND")
        return stream
    row = reader.get(TABLES, name)
    space = None
    if row is not None:
        definition = decoded(row)
        space = definition.space
        if definition.stream is not None:
            stream = reader.get(CHANGE_STREAMS, name, definition.stream.label)
            assert stream is not None, f"table {name!r} has lost its change stream"
            return stream
    for stream in reader.scan(CHANGE_STREAMS, name, reverse=True, limit=1):
        if space is None or stream.space == space:
            return stream
    if row is None:
        raise TableNotFound(name)
    raise NotFound(f"table {name!r} has no change stream; enable one first", code="STREAM_NOT_FOUND")


def log_of(reader: Reader | Tx, stream: ChangeStream) -> Log:
    log = reader.get(LOGS, stream.log)
    assert log is not None, f"change stream {stream.name}/{stream.label} has lost its log {stream.log}"
    return log


def last_sequence(reader: Reader | Tx) -> int:
    """The last sequence that the database has assigned."""
    counter = reader.get(META, f"counter/{change.SEQUENCE}")
    return int(counter.value) if counter else 0


class EnableStream(Command[ChangeStream], frozen=True):
    """Record a table's changes from now on; bounds of None keep records until they are pruned."""

    permission = Permission.ADMIN
    subject = ("tables", "table")

    table: str
    view: str = change.BOTH
    max_age_s: int | None = limits.CHANGES_AGE_S
    max_count: int | None = limits.CHANGES_COUNT

    def run(self, tx: Tx) -> ChangeStream:
        definition = find(tx, self.table)
        enable(tx, definition, self.view, max_age_s=self.max_age_s, max_count=self.max_count)
        return find_stream(tx, self.table)


class DisableStream(Command[ChangeStream], frozen=True):
    """Stop recording a table's changes. The stream stays readable."""

    freeing = True
    permission = Permission.ADMIN
    subject = ("tables", "table")

    table: str

    def run(self, tx: Tx) -> ChangeStream:
        stream = find_stream(tx, self.table)
        disable(tx, find(tx, self.table))
        return find_stream(tx, self.table, stream.label)
