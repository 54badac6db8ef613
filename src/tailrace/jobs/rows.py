"""Staged rows: how they are checked, stored, and decoded when they are written.

What a client sends is MessagePack, an array of rows: for a table ``[op, item]`` with typed values, for a topic
``[key, payload, partition]``, for a stream bytes. Rows for a table may also come as Arrow (`arrow_rows`). Chunks store
them in the form in which they are written, so that the commit, which all other writers wait for, does as little as
possible: for a table the encoded keys and items, each kind in one piece.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, Final

import msgspec

from tailrace import limits
from tailrace.errors import Conflict, Error, Invalid, TooLarge
from tailrace.streams import json_mode
from tailrace.tables import key as keys
from tailrace.tables import messages, value
from tailrace.tables.definition import Definition
from tailrace.tables.write import EncodedWrite
from tailrace.topics.topic import Topic

PUT: Final = "PUT"
DELETE: Final = "DELETE"
PARTIALS: Final = "_partials"  # the column with the partial aggregates of a view's group
ENTRY_BYTES: Final = 256 * limits.KiB  # of JSON messages that share an entry
ENTRY_MESSAGES: Final = 1_000  # and how many


class CheckedRows(msgspec.Struct, frozen=True):
    """A chunk as it is stored."""

    rows: int
    body: bytes


class PackedWrites(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Rows for a table, by field (`EncodedWrite`): the sizes and the ends of keys, key attributes and items as 32-bit
    numbers, little-endian, and the bytes of each. Partial aggregates are empty where a group has none any more."""

    sizes: bytes
    key_ends: bytes
    keys: bytes
    named_ends: bytes
    named: bytes
    body_ends: bytes
    bodies: bytes
    partial_ends: bytes = b""  # of a view with partial aggregates (`partials`)
    partials: bytes = b""


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
_packed: Final = msgspec.msgpack.Decoder(PackedWrites)
_NUMBER: Final = "i"
assert array(_NUMBER).itemsize == 4
_stream_entries: Final = msgspec.msgpack.Decoder(list[StagedEntry])


def for_table(body: bytes, definition: Definition) -> CheckedRows:
    """Rows for a table, as puts and deletes."""
    writes = []
    for number, (op, raw) in enumerate(_decoded(_items, body)):
        try:
            writes.append(_write(op, raw, definition))
        except Error as error:
            raise wrong(number, error) from None
    return CheckedRows(len(writes), _encode(packed(writes)))


def _write(op: str, raw: dict[str, Any], definition: Definition) -> EncodedWrite:
    item, size = value.read_item(raw)
    if op == PUT:
        key = keys.item_key(definition, item)
        if size > value.NAME_BYTES_MAX or "" in item:
            value.check_names(item)
        if size > limits.ITEM_BYTES_MAX:
            raise Invalid(messages.ITEM_TOO_LARGE)
        for index in definition.indexes:
            keys.index_key(definition, index, item, key)
        named = {name: item[name] for name in definition.keys}
        return key, value.encode(named), size, value.encode(item)
    if op != DELETE:
        raise Invalid(f"operation {op[:40]!r} is unknown; use {PUT} or {DELETE}", code="INVALID_OPERATION")
    named = {name: item[name] for name in definition.keys if name in item}
    return keys.key_of(definition, named), value.encode(named), -1, b""


def for_topic(body: bytes, topic: Topic) -> CheckedRows:
    """Rows for a topic, each with its partition."""
    rows = []
    for number, row in enumerate(_decoded(_outgoing, body)):
        try:
            rows.append(_placed(row, topic))
        except Error as error:
            raise wrong(number, error) from None
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
                raise wrong(number, Invalid("it is empty; give at least one byte"))
            pieces.append(StagedEntry(1, row))
            continue
        try:
            message = _message(row)
        except Error as error:
            raise wrong(number, error) from None
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


def packed(writes: Sequence[EncodedWrite]) -> PackedWrites:
    """Rows for a table, by field."""
    stored, named, sizes, bodies = zip(*writes, strict=True) if writes else ((), (), (), ())
    return PackedWrites(
        packed_numbers(sizes),
        packed_numbers(accumulate(map(len, stored))),
        b"".join(stored),
        packed_numbers(accumulate(map(len, named))),
        b"".join(named),
        packed_numbers(accumulate(map(len, bodies))),
        b"".join(bodies),
    )


def packed_numbers(numbers: Iterable[int]) -> bytes:
    """Sizes or ends, as `PackedWrites` has them."""
    found = array(_NUMBER, numbers)
    if sys.byteorder == "big":
        found.byteswap()
    return found.tobytes()


def _unpacked(numbers: bytes) -> array[int]:
    found = array(_NUMBER)
    found.frombytes(numbers)
    if sys.byteorder == "big":
        found.byteswap()
    return found


def pieces(ends: bytes, joined: bytes) -> Iterator[bytes]:
    """The parts of joined bytes that end there."""
    stops = _unpacked(ends)
    return map(joined.__getitem__, map(slice, chain((0,), stops), stops))


def table_chunk(body: bytes) -> PackedWrites:
    """A chunk for a table, decoded."""
    try:
        return _packed.decode(body)
    except msgspec.DecodeError:
        raise Conflict(
            "rows were staged by an earlier version of the server; stage them again", code="STAGED_EARLIER"
        ) from None


def writes(found: PackedWrites) -> list[EncodedWrite]:
    """The rows of a chunk for a table."""
    fields = (
        pieces(found.key_ends, found.keys),
        pieces(found.named_ends, found.named),
        _unpacked(found.sizes),
        pieces(found.body_ends, found.bodies),
    )
    return list(zip(*fields, strict=True))


def partials(found: PackedWrites) -> Iterator[tuple[bytes, bytes]]:
    """The keys of a chunk with their partial aggregates; nothing, if it has none."""
    if not found.partial_ends:
        return iter(())
    return zip(pieces(found.key_ends, found.keys), pieces(found.partial_ends, found.partials), strict=True)


def outgoing(body: bytes) -> list[StagedMessage]:
    return _outgoing.decode(body)


def stream_entries(body: bytes) -> Iterator[StagedEntry]:
    yield from _stream_entries.decode(body)


def _decoded(decoder: msgspec.msgpack.Decoder[list[Any]], body: bytes) -> list[Any]:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise Invalid(f"the body is not MessagePack of the expected form: {error}", code="INVALID_ROWS") from None


def wrong(number: int, error: Error) -> Error:
    """The error of one row, with its number."""
    kind = TooLarge if isinstance(error, TooLarge) else Invalid
    return kind(f"row {number}: {error}", code=error.code)
