"""Staged rows: how they are checked, stored, and decoded when they are written.

What a client sends is MessagePack, an array of rows: for a table ``[op, item]`` with typed values, for a topic
``[key, payload, partition]``, for a stream bytes. Chunks store them in the form in which they are written, so that the
commit, which all other writers wait for, does as little as possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from tailrace import limits
from tailrace.errors import Error, Invalid, TooLarge
from tailrace.streams import json_mode
from tailrace.tables import key as keys
from tailrace.tables import messages, value
from tailrace.tables.definition import Definition
from tailrace.topics.topic import Topic

PUT: Final = "PUT"
DELETE: Final = "DELETE"
ENTRY_BYTES: Final = 256 * limits.KiB  # of JSON messages that share an entry
ENTRY_MESSAGES: Final = 1_000  # and how many


class CheckedRows(msgspec.Struct, frozen=True):
    """A chunk as it is stored."""

    rows: int
    body: bytes


class StagedWrite(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row for a table: a put of an item of that size, or a delete of the item with that key."""

    size: int  # -1: delete
    item: dict[str, Any]


class StagedMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row for a topic."""

    key: bytes | None
    payload: bytes
    partition: int | None = None


class StagedEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An entry for a stream, and the number of rows in it."""

    rows: int
    body: bytes


_encode: Final = msgspec.msgpack.Encoder().encode
_items: Final = msgspec.msgpack.Decoder(list[tuple[str, dict[str, Any]]])
_outgoing: Final = msgspec.msgpack.Decoder(list[StagedMessage])
_bytes: Final = msgspec.msgpack.Decoder(list[bytes])
_writes: Final = msgspec.msgpack.Decoder(list[StagedWrite])
_stream_entries: Final = msgspec.msgpack.Decoder(list[StagedEntry])


def for_table(body: bytes, definition: Definition) -> CheckedRows:
    """Rows for a table, as puts and deletes."""
    writes = []
    for number, (op, raw) in enumerate(_decoded(_items, body)):
        try:
            writes.append(_write(op, raw, definition))
        except Error as error:
            raise _wrong(number, error) from None
    return CheckedRows(len(writes), _encode(writes))


def _write(op: str, raw: dict[str, Any], definition: Definition) -> StagedWrite:
    item, size = value.read_item(raw)
    if op == PUT:
        key = keys.item_key(definition, item)
        if size > value.NAME_BYTES_MAX or "" in item:
            value.check_names(item)
        if size > limits.ITEM_BYTES_MAX:
            raise Invalid(messages.ITEM_TOO_LARGE)
        for index in definition.indexes:
            keys.index_key(definition, index, item, key)
        return StagedWrite(size, item)
    if op != DELETE:
        raise Invalid(f"operation {op[:40]!r} is unknown; use {PUT} or {DELETE}", code="INVALID_OPERATION")
    key_only = {name: item[name] for name in definition.keys if name in item}
    keys.key_of(definition, key_only)
    return StagedWrite(-1, key_only)


def for_topic(body: bytes, topic: Topic) -> CheckedRows:
    """Rows for a topic, each with its partition."""
    rows = []
    for number, row in enumerate(_decoded(_outgoing, body)):
        try:
            rows.append(_placed(row, topic))
        except Error as error:
            raise _wrong(number, error) from None
    return CheckedRows(len(rows), _encode(rows))


def _placed(row: StagedMessage, topic: Topic) -> StagedMessage:
    if len(row.payload) > limits.MESSAGE_BYTES_MAX:
        raise TooLarge(f"a message of {len(row.payload)} bytes is too large; the maximum is {limits.MESSAGE_BYTES_MAX}")
    if row.partition is not None:
        topic.log_of(row.partition)  # raises if it does not exist
        return row
    return StagedMessage(row.key, row.payload, 0 if row.key is None else topic.partition_for(row.key))


def for_stream(body: bytes, *, json: bool) -> CheckedRows:
    """Rows for a stream. JSON messages share entries; other rows are an entry each, so that readers get them
    unchanged."""
    rows = _decoded(_bytes, body)
    pieces: list[StagedEntry] = []
    held: list[bytes] = []
    size = 0
    for number, row in enumerate(rows):
        if not json:
            if not row:
                raise _wrong(number, Invalid("it is empty; give at least one byte"))
            pieces.append(StagedEntry(1, row))
            continue
        try:
            message = _message(row)
        except Error as error:
            raise _wrong(number, error) from None
        if held and (size + len(message) > ENTRY_BYTES or len(held) == ENTRY_MESSAGES):
            pieces.append(StagedEntry(len(held), b",".join(held)))
            held, size = [], 0
        held.append(message)
        size += len(message) + 1
    if held:
        pieces.append(StagedEntry(len(held), b",".join(held)))
    return CheckedRows(len(rows), _encode(pieces))


def _message(row: bytes) -> bytes:
    """A row as one message: an array is one message too, and is not split."""
    json_mode.initial(row)
    return row.strip(b" \t\r\n")


# -- stored chunks


def writes(body: bytes) -> list[StagedWrite]:
    return _writes.decode(body)


def outgoing(body: bytes) -> list[StagedMessage]:
    return _outgoing.decode(body)


def stream_entries(body: bytes) -> Iterator[StagedEntry]:
    yield from _stream_entries.decode(body)


def _decoded(decoder: msgspec.msgpack.Decoder[list[Any]], body: bytes) -> list[Any]:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise Invalid(f"the body is not MessagePack of the expected form: {error}", code="INVALID_ROWS") from None


def _wrong(number: int, error: Error) -> Error:
    """The error of one row, with its number."""
    kind = TooLarge if isinstance(error, TooLarge) else Invalid
    return kind(f"row {number}: {error}", code=error.code)
