"""From entries to rows: the public columns of tables, topics and streams.

Change records of common shapes are converted to rows together (`shapes`). All others are decoded many at a time, one
call for a chunk of them. Chunks are small, so that the decoded values are still in the processor's caches when they are
encoded, and so that other threads do not wait long for their turn.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.bulk.entries import TIMESTAMP, bounds_of, data_of, same_numbers
from tailrace.bulk.text import ItemTexts, TypedItem
from tailrace.errors import Corrupt, Invalid
from tailrace.streams import json_mode
from tailrace.streams.stream import DEFAULT_CONTENT_TYPE, is_json, is_text
from tailrace.tables.change import EVENTS, HEAD_BYTES
from tailrace.topics.topic import MODES, OPERATIONS, Envelope

NUMPY = find_spec("numpy") is not None  # installed with Spark; without it everything is decoded one by one
if NUMPY:
    from tailrace.bulk import shape_texts, shapes

TABLE: Final = "table"
TOPIC: Final = "topic"
STREAM: Final = "stream"
KINDS: Final = (TABLE, TOPIC, STREAM)
PLAIN: Final = "plain"
TYPED: Final = "typed"
CHUNK_ENTRIES: Final = 256  # decoded in one call
CHUNK_BYTES: Final = 256 * 1024  # the same, for large entries

CHANGES: Final = pa.schema(
    [
        ("offset", pa.int64()),
        ("next_offset", pa.int64()),
        ("sequence", pa.int64()),
        ("index", pa.int32()),
        ("last", pa.bool_()),
        ("timestamp", TIMESTAMP),
        ("event", pa.string()),
        ("principal", pa.string()),
        ("keys", pa.string()),
        ("old_image", pa.string()),
        ("new_image", pa.string()),
    ]
)
MESSAGES: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("next_offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("message_id", pa.string()),
        ("source_table", pa.string()),
        ("op", pa.string()),
        ("mode", pa.string()),
        ("key", pa.binary()),
        ("payload", pa.binary()),
        ("principal", pa.string()),
    ]
)
_VALUES: Final = [
    ("offset", pa.int64()),
    ("next_offset", pa.int64()),
    ("index", pa.int32()),
    ("timestamp", TIMESTAMP),
]
TEXTS: Final = pa.schema([*_VALUES, ("value", pa.string())])
BYTES: Final = pa.schema([*_VALUES, ("value", pa.binary())])


class DecodedRecord(msgspec.Struct, array_like=True, gc=False):
    """As `tables.change.StoredRecord`, with cheaper values."""

    event: int
    size: int
    keys: TypedItem
    old: TypedItem | None
    new: TypedItem | None


class DecodedEntry(msgspec.Struct, array_like=True, gc=False):
    by: str
    records: list[DecodedRecord]


T = TypeVar("T")
_entries: Final = msgspec.msgpack.Decoder(list[DecodedEntry])
_envelopes: Final = msgspec.msgpack.Decoder(list[Envelope])
_items: Final = msgspec.msgpack.Decoder(list[TypedItem])
_messages: Final = msgspec.json.Decoder(list[list[msgspec.Raw]])


def schema_of(kind: str, content_type: str | None = None) -> pa.Schema:
    """The columns of rows of this kind."""
    if kind == TABLE:
        return CHANGES
    if kind == TOPIC:
        return MESSAGES
    if kind == STREAM:
        return TEXTS if is_text(content_type or DEFAULT_CONTENT_TYPE) else BYTES
    raise Invalid(f"unknown kind of log {kind!r}; use one of {', '.join(KINDS)}")


def rows_of(
    kind: str,
    entries: pa.RecordBatch,
    *,
    partition: int = 0,
    content_type: str | None = None,
    images: str = PLAIN,
) -> pa.RecordBatch:
    """The rows of these entries. `images`: items as plain JSON, or as DynamoDB JSON."""
    if images not in (PLAIN, TYPED):
        raise Invalid(f"images={images!r} is unknown; use {PLAIN} or {TYPED}", code="INVALID_IMAGES")
    schema = schema_of(kind, content_type)
    if kind == TABLE:
        return _changes(entries, plain=images == PLAIN)
    if kind == TOPIC:
        return _messages_of(entries, partition)
    if is_json(content_type or DEFAULT_CONTENT_TYPE):
        return _json_values(entries)
    return _values(entries, schema)


def timestamps(at_ms: pa.Array) -> pa.Array:
    """Milliseconds as times."""
    return pc.multiply(at_ms, 1000).view(TIMESTAMP)


# -- tables


def _changes(entries: pa.RecordBatch, *, plain: bool) -> pa.RecordBatch:
    """Records of common shapes together, the others one by one. Entries are of one log, in order."""
    body = entries["body"]
    if not NUMPY or not shapes.suits(body):
        return _one_by_one(entries, plain=plain)
    style = shape_texts.PLAIN if plain else shape_texts.TYPED
    made = shape_texts.JsonColumns((0, style), (1, style), (2, style))
    found = shapes.ShapeBatch(made, data_of(body), bounds_of(body), HEAD_BYTES).changes()
    if found is None:
        return _one_by_one(entries, plain=plain)
    mine = entries.take(found.fit) if len(found.others) else entries
    rows = _change_rows(mine, found.counts, found.events, found.principals, found.columns)
    if not len(found.others):
        return rows
    rest = _one_by_one(entries.take(found.others), plain=plain)
    both = pa.concat_batches([rows, rest])
    return both.take(pc.sort_indices(both, [("offset", "ascending"), ("index", "ascending")]))


def _one_by_one(entries: pa.RecordBatch, *, plain: bool) -> pa.RecordBatch:
    counts: list[int] = []
    events: list[int] = []
    principals: list[str] = []
    texts = ItemTexts(3, plain=plain)
    for chunk in decoded_entries(entries["body"]):
        records = [record for entry in chunk for record in entry.records]
        counts += [len(entry.records) for entry in chunk]
        principals += [entry.by for entry in chunk]
        events += [record.event for record in records]
        texts.add(
            [record.keys for record in records], [record.old for record in records], [record.new for record in records]
        )
    check_events(events)
    return _change_rows(entries, counts, bytes(events), pa.array(principals, pa.string()), texts.arrays())


def decoded_entries(bodies: pa.Array) -> Iterator[list[DecodedEntry]]:
    """The bodies of a change stream's entries decoded, a chunk at a time."""
    beheaded = pc.binary_slice(bodies, HEAD_BYTES, 2**31 - 1)  # without an end it fails
    return _decoded(beheaded, _entries, "a change record")


def decoded_items(bodies: pa.Array) -> Iterator[list[TypedItem]]:
    """Stored items decoded, a chunk at a time."""
    return _decoded(bodies, _items, "an item")


def check_events(events: list[int]) -> None:
    """Raise Corrupt if one of them is unknown."""
    if any(not 0 <= event < len(EVENTS) for event in set(events)):
        raise Corrupt(f"a change record has an unknown event, one of {set(events)}; run tailrace check")


def _change_rows(
    entries: pa.RecordBatch, counts: list[int], events: bytes, principals: pa.Array, images: list[pa.Array]
) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*change_facts(entries, counts, events, principals), *images], schema=CHANGES)


def change_facts(entries: pa.RecordBatch, counts: list[int], events: bytes, principals: pa.Array) -> list[pa.Array]:
    """The columns of `CHANGES` before the keys."""
    rows = _Rows(entries, counts)
    return [
        rows.spread(entries["position"]),
        rows.spread(entries["next"]),
        rows.spread(pc.subtract(entries["next"], 1)),
        rows.index,
        rows.last,
        rows.spread(timestamps(entries["at_ms"])),
        _named(events, EVENTS),
        rows.spread(principals),
    ]


class _Rows:
    """The entry of each row. If each entry has one row, there is nothing to do."""

    def __init__(self, entries: pa.RecordBatch, counts: list[int]) -> None:
        self._take: pa.Array | None = None
        if counts.count(1) == len(counts):
            self.index = same_numbers(0, len(counts))
            self.last = pc.equal(self.index, 0)
            return
        self._take = pa.array([entry for entry, count in enumerate(counts) for _ in range(count)], pa.int64())
        self.index = pa.array([index for count in counts for index in range(count)], pa.int32())
        self.last = pa.array([index == count - 1 for count in counts for index in range(count)], pa.bool_())

    def spread(self, column: pa.Array) -> pa.Array:
        """A column of entries as one of rows."""
        return column if self._take is None else column.take(self._take)


def _decoded(bodies: pa.Array, decoder: msgspec.msgpack.Decoder[list[T]], what: str) -> Iterator[list[T]]:
    """Bodies decoded, a chunk at a time: MessagePack of many values is an array of them once it has an array's head."""
    data, bounds = data_of(bodies), bounds_of(bodies)
    count, first, base = len(bodies), 0, bounds[0] if len(bodies) else 0
    while first < count:
        end = min(first + CHUNK_ENTRIES, count)
        while end > first + 1 and bounds[end] - bounds[first] > CHUNK_BYTES:
            end = first + (end - first) // 2
        head = b"\xdd" + struct.pack(">I", end - first)
        try:
            yield decoder.decode(b"".join((head, data[bounds[first] - base : bounds[end] - base])))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Corrupt(f"{what} cannot be read: {error}; run tailrace check") from error
        first = end
        time.sleep(0)  # lets the event loop of a server run


def _named(codes: bytes, names: tuple[str, ...]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(
        pa.Array.from_buffers(pa.uint8(), len(codes), [None, pa.py_buffer(codes)]), list(names)
    ).cast(pa.string())


# -- topics


def _messages_of(entries: pa.RecordBatch, partition: int) -> pa.RecordBatch:
    found: list[Envelope] = []
    bodies = entries["body"]
    for chunk in _decoded(bodies, _envelopes, "a message"):
        found += chunk
    offsets = entries["position"]
    sequences = pa.array([each.sequence for each in found], pa.int64())
    indexes = pa.array([each.index for each in found], pa.int64())
    dash = pa.scalar("-")
    ids = pc.if_else(
        pc.equal(sequences, 0),
        pc.binary_join_element_wise(pa.scalar(f"p{partition}"), offsets.cast(pa.string()), dash),
        pc.binary_join_element_wise(sequences.cast(pa.string()), indexes.cast(pa.string()), dash),
    )
    return pa.RecordBatch.from_arrays(
        [
            same_numbers(partition, len(found)),
            offsets,
            entries["next"],
            timestamps(entries["at_ms"]),
            ids,
            pa.array([each.source for each in found], pa.string()),
            _named(bytes([each.operation for each in found]), OPERATIONS),
            _named(bytes([each.mode for each in found]), MODES),
            pa.array([each.key for each in found], pa.binary()),
            pa.array([each.payload for each in found], pa.binary()),
            pa.array([each.by for each in found], pa.string()),
        ],
        schema=MESSAGES,
    )


# -- streams


def _values(entries: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    value = entries["body"]
    if schema is TEXTS:
        try:
            value = value.cast(pa.string())
        except pa.ArrowInvalid:  # not all of it is UTF-8, which is not checked by append
            value = pa.array([each.as_py().decode("utf-8", "replace") for each in value], pa.string())
    return _value_rows(entries, [1] * entries.num_rows, value, schema)


def _json_values(entries: pa.RecordBatch) -> pa.RecordBatch:
    bodies = entries["body"].to_pylist()
    counts: list[int] = []
    values: list[bytes] = []
    for first in range(0, len(bodies), CHUNK_ENTRIES):
        chunk = bodies[first : first + CHUNK_ENTRIES]
        try:
            split = [[bytes(raw) for raw in each] for each in _messages.decode(b"[[" + b"],[".join(chunk) + b"]]")]
        except msgspec.DecodeError:  # half of a surrogate pair, say
            split = [json_mode.messages(body) for body in chunk]
        counts += map(len, split)
        for each in split:
            values += each
        time.sleep(0)
    return _value_rows(entries, counts, pa.array(values, pa.binary()).view(pa.string()), TEXTS)


def _value_rows(entries: pa.RecordBatch, counts: list[int], value: pa.Array, schema: pa.Schema) -> pa.RecordBatch:
    rows = _Rows(entries, counts)
    times = rows.spread(timestamps(entries["at_ms"]))
    return pa.RecordBatch.from_arrays(
        [rows.spread(entries["position"]), rows.spread(entries["next"]), rows.index, times, value], schema=schema
    )


# -- items


ITEMS: Final = pa.schema([("keys", pa.string()), ("item", pa.string()), ("typed", pa.string())])


STORED_ITEMS: Final = pa.schema([("body", pa.binary())])


def items_of(bodies: pa.Array, keys: tuple[str, ...]) -> pa.RecordBatch:
    """Stored items as rows: their keys, and the items as plain JSON and as DynamoDB JSON."""
    if not NUMPY or not shapes.suits(bodies):
        return _items_one_by_one(bodies, keys)
    texts = shape_texts.JsonColumns((0, shape_texts.PLAIN), (0, shape_texts.TYPED), keys=keys)
    found = shapes.ShapeBatch(texts, data_of(bodies), bounds_of(bodies)).items()
    if found is None:
        return _items_one_by_one(bodies, keys)
    made = pa.RecordBatch.from_arrays(found.columns, schema=ITEMS)
    if not len(found.others):
        return made
    both = pa.concat_batches([made, _items_one_by_one(bodies.take(found.others), keys)])
    return both.take(pc.sort_indices(pa.concat_arrays([found.fit, found.others])))


def _items_one_by_one(bodies: pa.Array, keys: tuple[str, ...]) -> pa.RecordBatch:
    plain, typed = ItemTexts(2, plain=True), ItemTexts(1, plain=False)
    for chunk in decoded_items(bodies):
        try:
            plain.add([{name: item[name] for name in keys} for item in chunk], chunk)
        except KeyError as error:
            raise Corrupt(f"an item lacks its key {error}; run tailrace check") from None
        typed.add(chunk)
    return pa.RecordBatch.from_arrays([*plain.arrays(), *typed.arrays()], schema=ITEMS)
