"""Entries and their rows, for tests of cold storage: what a tier job would make of a log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tailrace.cold import reading
from tailrace.cold.schemas import CHANGES, MESSAGES, STREAMS, TIMESTAMP
from tailrace.cold.store import Store
from tailrace.cold.writing import WrittenFile, commit, write_rows
from tailrace.log.entry import Entry

T0 = 1_700_000_000_000
ORDERS = "tables/orders"
DATABASE = "db-1"


def entries(log: int, start: int, end: int, *, width: int = 1, size: int = 20) -> list[Entry]:
    """Entries that tile [start, end), each `width` positions wide."""
    return [
        Entry(log, at, min(at + width, end), T0 + at, f"{log}/{at}".encode().ljust(size, b"."))
        for at in range(start, end, width)
    ]


def stream_rows(found: Sequence[Entry]) -> pa.RecordBatch:
    return _batch(
        STREAMS,
        [
            {**_entry(entry), "stream": f"/s/{entry.log}", "content_type": "text/plain", "body": entry.body}
            for entry in found
        ],
    )


def change_rows(found: Sequence[Entry], records: int = 1) -> pa.RecordBatch:
    """One row per record; only the first has the body."""
    return _batch(
        CHANGES,
        [
            {
                **_entry(entry),
                "sequence": entry.next - 1,
                "index": index,
                "last": index == records - 1,
                "event": "MODIFY",
                "principal": "joe",
                "keys": f'{{"id": {entry.position}}}',
                "old_image": None,
                "new_image": f'{{"id": {entry.position}, "n": {index}}}',
                "body": entry.body if index == 0 else None,
            }
            for entry in found
            for index in range(records)
        ],
    )


def message_rows(found: Sequence[Entry], partition: int = 0) -> pa.RecordBatch:
    return _batch(
        MESSAGES,
        [
            {
                **_entry(entry),
                "partition": partition,
                "offset": entry.position,
                "message_id": str(entry.position),
                "payload": entry.body,
                "body": entry.body,
            }
            for entry in found
        ],
    )


def _entry(entry: Entry) -> dict[str, Any]:
    return {"log": entry.log, "position": entry.position, "next": entry.next, "timestamp": entry.at_ms * 1000}


def _batch(schema: pa.Schema, rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    columns = [
        pa.array([row.get(field.name) for row in rows], pa.int64() if field.type == TIMESTAMP else field.type)
        for field in schema
    ]
    return pa.record_batch(
        [column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def tiered(
    store: Store,
    place: str,
    batches: Sequence[pa.RecordBatch],
    generation: int,
    *,
    app: str = "tier",
    database: str = DATABASE,
    **options: Any,
) -> tuple[str, list[WrittenFile]]:
    """Write and commit, as a tier job does."""
    written = write_rows(store, place, batches)
    metadata = {"generation": generation, "files": [file.path for file in written]}
    schema = batches[0].schema
    done = commit(
        store, place, schema, written, app=app, generation=generation, database=database, metadata=metadata, **options
    )
    return done, written


def whole(
    store: Store, place: str, log: int, start: int | None, end: int | None, columns: Sequence[str] | None = None
) -> pa.Table:
    """All that `read` gives."""
    batches = list(reading.read(store, reading.files(store, place, log, start, end), log, start, end, columns))
    return pa.Table.from_batches(batches) if batches else pa.table({})


def positions(store: Store, place: str, log: int, start: int | None, end: int | None) -> list[int]:
    table = whole(store, place, log, start, end, ["position"])
    return table["position"].to_pylist() if table.num_rows else []
