"""Rows for cold storage from entries: the columns of the entry, the public columns, and the exact bytes."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.bulk.columns import STREAM, TABLE, TOPIC, rows_of, timestamps
from tailrace.cold.schemas import CHANGES, MESSAGES, STREAMS
from tailrace.errors import Invalid


def cold_batch(
    kind: str,
    entries: pa.RecordBatch,
    *,
    partition: int = 0,
    stream: str | None = None,
    content_type: str | None = None,
) -> pa.RecordBatch:
    """The rows of these entries as they are stored in cold storage. `stream` and `content_type` are for streams."""
    if kind == TABLE:
        return _changes(entries)
    if kind == TOPIC:
        rows = rows_of(kind, entries, partition=partition)
        return _of(MESSAGES, entries, rows, {"body": entries["body"]})
    if kind == STREAM:
        assert stream is not None and content_type is not None, "a stream has a path and a content type"
        facts = {"stream": _constant(stream, entries), "content_type": _constant(content_type, entries)}
        return _of(STREAMS, entries, entries, {**facts, "body": entries["body"]})
    raise Invalid(f"cold storage has no rows of kind {kind!r}; use {TABLE}, {TOPIC} or {STREAM}")


def _changes(entries: pa.RecordBatch) -> pa.RecordBatch:
    rows = rows_of(TABLE, entries)
    body = entries["body"]
    if rows.num_rows != entries.num_rows:
        spread = pc.index_in(rows["offset"], entries["position"])
        entries = entries.take(spread)
        # Only the row with index 0 has the bytes: repeating them would multiply their size by the number of records.
        where = pc.if_else(pc.equal(rows["index"], 0), spread, pa.scalar(None, spread.type))
        body = body.take(where)
    return _of(CHANGES, entries, rows, {"body": body})


def _of(schema: pa.Schema, entries: pa.RecordBatch, rows: pa.RecordBatch, facts: dict[str, pa.Array]) -> pa.RecordBatch:
    known = {
        "log": entries["log"],
        "position": entries["position"],
        "next": entries["next"],
        "timestamp": timestamps(entries["at_ms"]),
        **facts,
    }
    return pa.RecordBatch.from_arrays(
        [known[name] if name in known else rows[name] for name in schema.names], schema=schema
    )


def _constant(text: str, entries: pa.RecordBatch) -> pa.Array:
    return pa.array([text], pa.string()).take(pa.array(bytes(entries.num_rows), pa.uint8()))
