"""Rows for cold storage: the entry's own bytes are there once, and all columns are those of the schema."""

from __future__ import annotations

import pytest

from tailrace.bulk.cold_rows import cold_batch
from tailrace.bulk.columns import rows_of
from tailrace.bulk.entries import batch
from tailrace.cold.schemas import CHANGES, MESSAGES, STREAMS
from tailrace.errors import Invalid
from tailrace.log.entry import Entry
from tailrace.tables import change
from tailrace.tables.change import StoredRecord
from tailrace.topics import topic as topics

AT_MS = 1_700_000_000_000
RECORD = StoredRecord(0, 1, {"id": {"S": "k"}}, None, {"id": {"S": "k"}, "n": {"N": "1"}})


@pytest.mark.parametrize("counts", [[1, 1, 1], [1, 3, 2], []])
def test_changes(counts: list[int]) -> None:
    entries = [
        Entry(7, 10 * at, 10 * at + 10, AT_MS + at, change.encode(at, "ada", [RECORD] * count))
        for at, count in enumerate(counts)
    ]
    found = cold_batch("table", batch(entries))
    found.validate(full=True)
    assert found.schema == CHANGES
    rows = rows_of("table", batch(entries))
    for name in ("sequence", "index", "last", "event", "principal", "keys", "old_image", "new_image", "timestamp"):
        assert found[name].equals(rows[name])
    assert found["position"].equals(rows["offset"]) and found["next"].equals(rows["next_offset"])
    assert found["log"].to_pylist() == [7] * sum(counts)
    expected = [
        entry.body if index == 0 else None
        for entry, count in zip(entries, counts, strict=True)
        for index in range(count)
    ]
    assert found["body"].to_pylist() == expected


def test_messages() -> None:
    entries = [
        Entry(9, 5 + at, 6 + at, AT_MS, topics.encode(topics.Envelope(0, 0, 3, 1, None, b"x", ""))) for at in range(3)
    ]
    found = cold_batch("topic", batch(entries), partition=4)
    assert found.schema == MESSAGES
    assert found["partition"].to_pylist() == [4] * 3 and found["offset"].to_pylist() == [5, 6, 7]
    assert found["body"].to_pylist() == [entry.body for entry in entries]


def test_streams() -> None:
    entries = [Entry(3, 0, 9, AT_MS, b'{"a":1},{"a":2}'), Entry(3, 9, 10, AT_MS, b"3")]
    found = cold_batch("stream", batch(entries), stream="a/b", content_type="application/json")
    assert found.schema == STREAMS and found["stream"].to_pylist() == ["a/b"] * 2
    assert found["body"].to_pylist() == [entry.body for entry in entries]


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(Invalid, match="'queue'"):
        cold_batch("queue", batch([]))
