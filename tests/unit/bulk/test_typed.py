"""Attributes of JSON as columns: their type, and the error for a value that does not fit."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tailrace.bulk.columns import rows_of
from tailrace.bulk.entries import batch
from tailrace.bulk.typed import typed
from tailrace.errors import Invalid
from tailrace.log.entry import Entry
from tailrace.topics import topic as topics

NESTED = pa.struct([("b", pa.int64()), ("c", pa.struct([("d", pa.string())]))])
AT_MS = 1_700_000_000_000


def values(*documents: dict[str, Any]) -> pa.RecordBatch:
    """Values of a stream of JSON."""
    texts = [msgspec.json.Encoder(decimal_format="number").encode(each) for each in documents]
    entries = [Entry(7, 10 + at, 11 + at, AT_MS, text) for at, text in enumerate(texts)]
    return rows_of("stream", batch(entries), content_type="application/json")


def column(rows: pa.RecordBatch, kind: pa.DataType, name: str = "a") -> list[Any]:
    found = typed("stream", rows, pa.schema([(name, kind)]))
    found.validate(full=True)
    assert found.schema.field(name).type == kind
    return found[name].to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("plain", "kind", "expected"),
    [
        (12, pa.int64(), 12),
        (12, pa.int32(), 12),
        (Decimal("12.5"), pa.float64(), 12.5),
        (Decimal("12.5"), pa.decimal128(38, 18), Decimal("12.5")),
        (12345678901234567890123456789, pa.decimal128(38, 0), Decimal("12345678901234567890123456789")),
        ("12.50", pa.decimal128(10, 2), Decimal("12.50")),
        (True, pa.bool_(), True),
        ("x", pa.string(), "x"),
        (12, pa.string(), "12"),
        (Decimal("0.1"), pa.string(), "0.1"),
        ({"b": [1, Decimal("2.5")]}, pa.string(), '{"b":[1,2.5]}'),
        ("AP8=", pa.binary(), b"\x00\xff"),
        ("2024-01-02T03:04:05.123456Z", pa.timestamp("us", "UTC"), datetime(2024, 1, 2, 3, 4, 5, 123456, UTC)),
        ("2024-01-02T03:04:05+01:00", pa.timestamp("us", "UTC"), datetime(2024, 1, 2, 2, 4, 5, 0, UTC)),
        ("2024-01-02", pa.date32(), date(2024, 1, 2)),
        ({"b": 1, "c": {"d": "x"}}, NESTED, {"b": 1, "c": {"d": "x"}}),
        ([1, 2], pa.list_(pa.int64()), [1, 2]),
        ({"x": 1}, pa.map_(pa.string(), pa.int64()), [("x", 1)]),
        (None, pa.int64(), None),
    ],
)  # fmt: skip
def test_types(plain: Any, kind: pa.DataType, expected: Any) -> None:
    assert column(values({"a": plain}), kind) == [expected]
    # With another column that is read value by value, this one is too, and says the same.
    slow = typed("stream", values({"a": plain}), pa.schema([("a", kind), ("z", pa.date32())]))
    assert slow["a"].to_pylist() == [expected]


@pytest.mark.parametrize(
    ("plain", "kind", "shown"),
    [
        ("x", pa.int64(), "'x'"),
        (Decimal("12.5"), pa.int64(), "12.5"),
        (2**63, pa.int64(), "9223372036854775808"),
        (2**31, pa.int32(), "2147483648"),
        (True, pa.int64(), "True"),
        ("x", pa.float64(), "'x'"),
        (Decimal("1.005"), pa.decimal128(10, 2), "1.005"),
        ("x", pa.decimal128(10, 2), "'x'"),
        (1, pa.bool_(), "1"),
        ("yesterday", pa.timestamp("us", "UTC"), "'yesterday'"),
        (12, pa.timestamp("us", "UTC"), "12"),
        ("x", pa.struct([("b", pa.int64())]), "'x'"),
        ({"b": "y"}, pa.struct([("b", pa.int64())]), "'b': 'y'"),
        ("no base64!", pa.binary(), "'no base64!'"),
        ("x", pa.list_(pa.int64()), "'x'"),
    ],
)
def test_what_does_not_fit_is_named(plain: Any, kind: pa.DataType, shown: str) -> None:
    rows = values({"a": None}, {"a": plain})
    with pytest.raises(Invalid) as caught:
        column(rows, kind)
    message = str(caught.value)
    assert "'a'" in message and shown in message and "offset 11" in message and str(kind) in message


def test_messages_and_streams() -> None:
    payloads = [b'{"a": 1}', b'{\n "a": 2\n}', b'{"b": 3}']
    entries = [
        Entry(9, 5 + at, 6 + at, AT_MS, topics.encode(topics.Envelope(0, 0, 3, 1, None, payload, "")))
        for at, payload in enumerate(payloads)
    ]
    schema = pa.schema([("_partition", pa.int32()), ("_offset", pa.int64()), ("a", pa.int64())])
    found = typed("topic", rows_of("topic", batch(entries), partition=1), schema)
    assert [tuple(row.values()) for row in found.to_pylist()] == [(1, 5, 1), (1, 6, 2), (1, 7, None)]
    stream = rows_of("stream", batch([Entry(3, 0, 9, AT_MS, b'{"a":1},{"a":2}')]), content_type="application/json")
    assert typed("stream", stream, pa.schema([("a", pa.int64())]))["a"].to_pylist() == [1, 2]


@pytest.mark.parametrize(
    "text", [b"[1]", b"no json", b"", b"3", b"\xff", b'{"a":1}{"a":2}', b'{"a":1}\n{"a":2}', b'{"a":']
)
def test_what_is_no_object_is_named(text: bytes) -> None:
    body = topics.encode(topics.Envelope(0, 0, 3, 1, None, text, ""))
    rows = rows_of("topic", batch([Entry(9, 5, 6, AT_MS, body)]), partition=1)
    with pytest.raises(Invalid, match="offset 5 of partition 1"):
        typed("topic", rows, pa.schema([("a", pa.int64())]))


def test_nothing_and_metadata_alone() -> None:
    schema = pa.schema([("a", pa.int64()), ("_offset", pa.int64())])
    assert typed("stream", values(), schema).num_rows == 0
    assert typed("stream", values({"a": 1}), pa.schema([("_offset", pa.int64())])).to_pylist() == [{"_offset": 10}]
