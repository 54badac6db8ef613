"""Rows for a table as Arrow: what a column becomes, and what is refused. `tests/property` compares it with ordinary
writes."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tailrace import limits
from tailrace.bulk import variant
from tailrace.errors import Invalid, TooLarge
from tailrace.jobs import arrow_rows
from tailrace.jobs.rows import table_chunk, writes
from tailrace.tables import value
from tailrace.tables.definition import Attribute, Definition, IndexDefinition

DEFINITION = Definition("t", 1, "", 0, (Attribute("id", "S"),), "id")
INDEXED = Definition(
    "t",
    1,
    "",
    0,
    (Attribute("id", "S"), Attribute("status", "S")),
    "id",
    indexes=(IndexDefinition("by_status", 2, False, ("status",)),),
)


def stream(*batches: pa.RecordBatch, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def items(columns: dict[str, Any], definition: Definition = DEFINITION) -> list[Any]:
    found = writes(table_chunk(arrow_rows.for_table(stream(pa.record_batch(columns)), definition).body))
    return [value.decode(body) if size >= 0 else None for _, _, size, body in found]


def test_columns_become_typed_attributes() -> None:
    one, two = items(
        {
            "id": ["a", "b"],
            "n": pa.array([1, None]),
            "price": pa.array([Decimal("12.50"), Decimal("100.00")], pa.decimal128(10, 2)),
            "f": [1.5, 1e100],
            "ok": [True, False],
            "raw": [b"\x00\x01", None],
            "at": pa.array([datetime(2026, 1, 2, 3, 4, 5, 6, UTC)] * 2, pa.timestamp("us", "UTC")),
            "day": [date(2026, 1, 2)] * 2,
            "tags": [["x", None], []],
            "deep": [{"x": 1, "y": None}, None],
            "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        }
    )
    assert one == {
        "id": {"S": "a"},
        "n": {"N": "1"},
        "price": {"N": "12.5"},
        "f": {"N": "1.5"},
        "ok": {"BOOL": True},
        "raw": {"B": b"\x00\x01"},
        "at": {"S": "2026-01-02T03:04:05.000006Z"},
        "day": {"S": "2026-01-02"},
        "tags": {"L": [{"S": "x"}, {"NULL": True}]},
        "deep": {"M": {"x": {"N": "1"}}},
        "map": {"M": {"k": {"N": "1"}}},
    }
    assert two.keys() == {"id", "price", "f", "ok", "at", "day", "tags"}
    assert (two["price"], two["f"], two["tags"]) == ({"N": "100"}, {"N": "1" + "0" * 100}, {"L": []})


def test_other_zones_are_the_same_moment() -> None:
    at = pa.array([datetime(2026, 1, 2, 12, tzinfo=UTC)], pa.timestamp("us", "Europe/Berlin"))
    assert items({"id": ["a"], "at": at})[0]["at"] == {"S": "2026-01-02T12:00:00.000000Z"}


def typed(found: Any) -> dict[str, bytes]:
    return variant.of_value(msgspec.convert(found, variant.TypedValue))


def primitive(kind: int, body: bytes) -> dict[str, bytes]:
    """A variant of a type that `bulk.variant` does not write."""
    return {"value": bytes((kind << 2,)) + body, "metadata": b"\x01\x00\x00"}


@pytest.mark.parametrize(
    ("found", "stored"),
    [
        (typed({"NULL": True}), {"NULL": True}),
        (typed({"S": "é" * 200}), {"S": "é" * 200}),
        (typed({"N": "1" * 37 + ".5"}), {"N": "1" * 37 + ".5"}),
        (typed({"N": "-0." + "0" * 37 + "1"}), {"N": "-0." + "0" * 37 + "1"}),
        (primitive(7, struct.pack("<d", 1e100)), {"N": "1" + "0" * 100}),
        (primitive(7, struct.pack("<d", -0.0)), {"N": "0"}),
        (primitive(14, struct.pack("<f", 0.1)), {"N": "0.1"}),
        (primitive(11, struct.pack("<i", -1)), {"S": "1969-12-31"}),
        (primitive(12, struct.pack("<q", 1)), {"S": "1970-01-01T00:00:00.000001Z"}),
        (primitive(13, struct.pack("<q", 1)), {"S": "1970-01-01T00:00:00.000001Z"}),
        (primitive(20, bytes(range(16))), {"S": "00010203-0405-0607-0809-0a0b0c0d0e0f"}),
    ],
)
def test_a_variant_is_the_document_that_it_holds(found: Any, stored: Any) -> None:
    column = variant.array([found, None])
    nested = pa.ListArray.from_arrays(pa.array([0, 2, 2], pa.int32()), column)
    one, two = items({"id": ["a", "b"], "doc": column, "all": nested})
    assert one == {"id": {"S": "a"}, "doc": stored, "all": {"L": [stored, {"NULL": True}]}}
    assert two == {"id": {"S": "b"}, "all": {"L": []}}


def deep(levels: int) -> Any:
    found: Any = {"S": "x"}
    for _ in range(levels):
        found = {"L": [found]}
    return found


# Eight arrays, one in the other, each with 200 elements at the same offset: 200 ** 8 values in about 1,700 bytes.
BOMB = b"".join(b"\x03\xc8" + bytes(201) for _ in range(8)) + b"\x00"


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (primitive(7, struct.pack("<d", float("nan"))), "nan cannot be stored"),
        (primitive(7, struct.pack("<d", 1e200)), "Number overflow"),
        (primitive(30, b""), "the type 30 cannot be stored"),
        (typed(deep(32)), "[Nn]est"),
        ({"value": b"", "metadata": b"\x01\x00\x00"}, "not a valid VARIANT"),
        ({"value": b"\x00", "metadata": b"\x02\x00\x00"}, "version 2"),
        ({"value": b"\x03\x05\x00", "metadata": b"\x01\x00\x00"}, "not a valid VARIANT"),
        ({"value": b"\x02\x01\x07\x00\x01\x00", "metadata": b"\x01\x00\x00"}, "not a valid VARIANT"),
        ({"value": b"\x05\xff", "metadata": b"\x01\x00\x00"}, "not a valid VARIANT"),
        ({"value": BOMB, "metadata": b"\x01\x00\x00"}, "Item size has exceeded"),
    ],
)
def test_variants_that_cannot_be_stored(found: Any, why: str) -> None:
    with pytest.raises(Invalid, match=f"row 1: the column 'doc': .*{why}"):
        items({"id": ["a", "b"], "doc": variant.array([typed({"NULL": True}), found])})


def test_many_variants_that_are_small_to_send_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    large = {"value": b"\x03\xc8" + bytes(201) + b"\x03\xc8" + bytes(201) + b"\x00", "metadata": b"\x01\x00\x00"}
    monkeypatch.setattr(arrow_rows, "_WEIGHT_MAX", 5 << 20)
    names = [str(number) for number in range(100)]
    with pytest.raises(TooLarge, match="send fewer"):
        items({"id": names, "doc": variant.array([large] * 100)})
    assert len(items({"id": names[:10], "doc": variant.array([large] * 10)})) == 10


def test_rows_are_deleted() -> None:
    assert items({"id": ["a", "b", "c"], "_op": ["delete", None, "PUT"]}) == [
        None,
        {"id": {"S": "b"}},
        {"id": {"S": "c"}},
    ]


@pytest.mark.parametrize("count", [15, 16, 31, 32, 255, 256, 65_535, 65_536, 70_000])
def test_long_values_have_long_heads(count: int) -> None:
    typed = {
        "t": ("x" * count, {"S": "x" * count}),
        "b": (b"y" * count, {"B": b"y" * count}),
        "l": ([True] * count, {"L": [{"BOOL": True}] * count}),
    }
    for name, (plain, stored) in typed.items():
        assert items({"id": ["a"], name: [plain]}) == [{"id": {"S": "a"}, name: stored}]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"n": [1]}, "there is no column 'id', which is a key of table 't'; the columns are n"),
        ({"id": [1]}, "the column 'id' is of the wrong type: the key of table 't' is S; send a string"),
        ({"id": ["a", None]}, "row 1: the column 'id' is null, and it is a key"),
        ({"id": ["a", ""]}, "row 1: .*empty string"),
        ({"id": ["a", "x" * 2049]}, "row 1: .*2048"),
        ({"id": ["a", "b"], "f": [1.0, float("nan")]}, "row 1: the column 'f': nan cannot be stored"),
        ({"id": ["a", "b"], "f": [float("-inf"), 1.0]}, "row 0: the column 'f': -inf cannot be stored"),
        ({"id": ["a", "b"], "f": [1.0, 1e126]}, r"row 1: the column 'f': 1e\+126: .*Number overflow"),
        ({"id": ["a"], "_op": ["UPSERT"]}, "row 0: operation 'UPSERT' is unknown; use PUT or DELETE"),
        ({"id": ["a", "b"], "t": ["", "x" * limits.ITEM_BYTES_MAX]}, "row 1: Item size has exceeded"),
        ({"id": ["a"], "": ["b"]}, "Empty attribute name"),
        ({"id": ["a"], "d": pa.array([1], pa.duration("us"))}, "the column 'd' is duration.us., which a table cannot"),
        ({"id": ["a"], "d": pa.array(["x"]).dictionary_encode()}, "dictionary-encoded"),
        ({"id": ["a"], "m": pa.array([[(1.5, 1)]], pa.map_(pa.float64(), pa.int64()))}, "a map whose keys are double"),
        (
            {"id": ["a", "b"], "m": pa.array([None, [("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int64()))},
            "row 1: the column 'm': a map has a key twice",
        ),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_stored(columns: dict[str, Any], why: str) -> None:
    with pytest.raises(Invalid, match=why):
        items(columns)


def test_rows_fit_the_indexes() -> None:
    assert len(items({"id": ["a", "b"], "status": ["new", None]}, INDEXED)) == 2
    with pytest.raises(Invalid, match=r"row 1: .*status"):
        items({"id": ["a", "b"], "status": ["new", ""]}, INDEXED)
    with pytest.raises(Invalid, match=r"row 0: .*status.*by_status"):
        items({"id": ["a"], "status": [5]}, INDEXED)


def test_nesting_is_bounded() -> None:
    deep: Any = 1
    for _ in range(31):
        deep = [deep]
    assert items({"id": ["a"], "deep": [deep]})[0].keys() == {"id", "deep"}
    with pytest.raises(Invalid, match=r"(?i)nest"):
        items({"id": ["a"], "deep": [[deep]]})


def test_two_columns_of_one_name() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["a"])] * 2, names=["id", "id"])
    with pytest.raises(Invalid, match="two columns of id, id have the same name"):
        arrow_rows.for_table(stream(batch), DEFINITION)


def test_what_is_small_to_send_and_large_to_store_is_refused() -> None:
    """A request has 16 MiB at most; it must not need much more than that."""
    many = pa.record_batch(
        {"id": pa.nulls(3_000_000, pa.string()), **{f"n{at}": pa.nulls(3_000_000) for at in range(9)}}
    )
    with pytest.raises(TooLarge, match="send fewer"):
        arrow_rows.for_table(stream(many), DEFINITION)
    lists = pa.ListArray.from_arrays(pa.array([0, 50_000_000], pa.int32()), pa.nulls(50_000_000))
    with pytest.raises(TooLarge, match="send fewer"):
        arrow_rows.for_table(stream(pa.record_batch({"id": ["a"], "l": lists})), DEFINITION)
    for how in ("lz4", "zstd"):
        with pytest.raises(Invalid, match="compressed; send it uncompressed"):
            arrow_rows.for_table(stream(pa.record_batch({"id": ["a" * 100] * 100}), compression=how), DEFINITION)


def test_what_is_not_arrow_is_refused() -> None:
    good = stream(pa.record_batch({"id": ["a", "b"], "n": [1, 2]}))
    for body in (b"", b"x", b"\xff\xff\xff\xff", good[:40], good[:-100], b"\x93" * 100):
        with pytest.raises(Invalid, match="not an Arrow stream"):
            arrow_rows.for_table(body, DEFINITION)
    assert arrow_rows.for_table(stream(pa.record_batch({"id": pa.array([], pa.string())})), DEFINITION).rows == 0
    for at in range(0, len(good), 3):  # whatever byte is wrong: an error, or other rows, but no crash
        broken = bytearray(good)
        broken[at] ^= 0xFF
        try:
            arrow_rows.for_table(bytes(broken), DEFINITION)
        except (Invalid, TooLarge):
            pass
