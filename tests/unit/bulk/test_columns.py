"""Rows of entries: what they say is what the values say, whatever the items are, in the bulk way as in the thorough."""

from __future__ import annotations

import json
from base64 import b64encode
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.bulk import columns
from tailrace.bulk.columns import items_of, rows_of, schema_of
from tailrace.bulk.entries import batch
from tailrace.errors import Corrupt, Invalid
from tailrace.log.entry import Entry
from tailrace.tables import change, value
from tailrace.tables.change import StoredRecord
from tailrace.topics import topic as topics
from tailrace.topics.topic import Envelope

AT_MS = 1_700_000_000_123
# What could be mistaken for something else where JSON is looked at as text.
TRAPS = [
    "}",
    "]}",
    "}x",
    '{"S":"',
    '"}',
    '"]}',
    '{"N":"1"}',
    "\\",
    '\\"',
    '\\\\"}',
    "\x00\x01\x02",
    "null",
    "\n",
    "",
    "ü→𝄞",
    "\u2028",
    '{"M":{',
    ",",
]
TEXTS = st.sampled_from(TRAPS) | st.text(max_size=12) | st.lists(st.sampled_from(TRAPS), max_size=4).map("".join)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, places=9, min_value=-(10**9), max_value=10**9)
NUMBERS = st.integers(-(10**37), 10**37) | DECIMALS
SETS = st.frozensets(TEXTS, min_size=1, max_size=4) | st.frozensets(st.binary(max_size=5), min_size=1, max_size=4)
FLAT = TEXTS | NUMBERS | st.binary(max_size=12) | st.booleans() | st.none() | SETS
NAMES = (TEXTS | st.sampled_from(["S", "N", "B", "M", "L", "BOOL", "NULL", "SS", "NS", "id"])).filter(bool)
NESTED = st.recursive(
    FLAT | st.frozensets(st.integers(-99, 99), min_size=1, max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


def items(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(NAMES, values, max_size=5).map(lambda plain: value.item_from_plain(plain)[0])


def changed(*transactions: list[StoredRecord], by: str = "ada", before: int = 0) -> list[Entry]:
    entries, first = [], 10
    for number, records in enumerate(transactions):
        body = change.encode(before, by, records)
        entries.append(Entry(7, first, first + 3, AT_MS + number, body))
        first, before = first + 3, before + len(records)
    return entries


def shown(item: dict[str, Any] | None, images: str) -> str | None:
    if item is None:
        return None
    return msgspec.json.encode(value.item_to_json(item) if images == "plain" else item).decode()


def expected(entries: list[Entry], images: str) -> list[dict[str, Any]]:
    rows = []
    for entry in entries:
        for record in change.decode(entry):
            rows.append(
                {
                    "offset": entry.position,
                    "next_offset": entry.next,
                    "sequence": record.sequence,
                    "index": record.index,
                    "last": record.last,
                    "event": record.event,
                    "principal": record.by,
                    "keys": shown(record.keys, images),
                    "old_image": shown(record.old, images),
                    "new_image": shown(record.new, images),
                }
            )
    return rows


def plain_rows(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    rows.validate(full=True)
    return [{name: held for name, held in row.items() if name != "timestamp"} for row in rows.to_pylist()]


RECORDS = st.builds(
    lambda event, keys, old, new: StoredRecord(event, 1, keys, old, new),
    st.integers(0, 2), items(FLAT), st.none() | items(FLAT), st.none() | items(FLAT),
)  # fmt: skip
DEEP = st.builds(
    lambda event, keys, old, new: StoredRecord(event, 1, keys, old, new),
    st.integers(0, 2), items(FLAT), st.none() | items(NESTED), st.none() | items(NESTED),
)  # fmt: skip


@pytest.mark.parametrize("images", ["plain", "typed"])
@given(transactions=st.lists(st.lists(RECORDS, min_size=1, max_size=3), max_size=6))
def test_changes_of_flat_items(transactions: list[list[StoredRecord]], images: str) -> None:
    entries = changed(*transactions)
    assert plain_rows(rows_of("table", batch(entries), images=images)) == expected(entries, images)


@pytest.mark.parametrize("images", ["plain", "typed"])
@given(transactions=st.lists(st.lists(DEEP, min_size=1, max_size=3), max_size=4))
def test_changes_of_any_items(transactions: list[list[StoredRecord]], images: str) -> None:
    entries = changed(*transactions)
    assert plain_rows(rows_of("table", batch(entries), images=images)) == expected(entries, images)


@given(item=items(NESTED))
def test_plain_images_are_the_values_that_python_has(item: dict[str, Any]) -> None:
    rows = rows_of("table", batch(changed([StoredRecord(0, 1, {}, None, item)])))
    text = rows["new_image"][0].as_py()
    assert json.loads(text, parse_float=Decimal) == jsonable(value.item_to_plain(item), item)


def jsonable(plain: Any, typed: Any) -> Any:
    """Python's form as JSON has it: sets in the order in which they are stored, bytes as base64."""
    return json.loads(msgspec.json.encode(value.item_to_json(typed)), parse_float=Decimal) if not plain else {
        name: _jsonable(held, typed[name]) for name, held in plain.items()
    }  # fmt: skip


def _jsonable(plain: Any, typed: dict[str, Any]) -> Any:
    ((kind, inner),) = typed.items()
    if kind == "B":
        return b64encode(plain).decode()
    if kind in ("SS", "NS"):
        assert len(plain) == len(inner)
        return [value.to_plain({"N": each}) for each in inner] if kind == "NS" else inner
    if kind == "BS":
        return [b64encode(each).decode() for each in inner]
    if kind == "L":
        return [_jsonable(each, held) for each, held in zip(plain, inner, strict=True)]
    if kind == "M":
        return {name: _jsonable(held, inner[name]) for name, held in plain.items()}
    return plain


def test_numbers_keep_all_their_digits() -> None:
    item = value.item_from_plain(
        {"a": 12345678901234567890123456789012345678, "b": Decimal("0.1"), "c": Decimal("1e-7")}
    )
    rows = rows_of("table", batch(changed([StoredRecord(0, 1, {}, None, item[0])])))
    assert rows["new_image"][0].as_py() == '{"a":12345678901234567890123456789012345678,"b":0.1,"c":0.0000001}'


def test_a_batch_is_more_than_one_run() -> None:
    entries = changed(
        *[[StoredRecord(0, 1, {"id": {"S": str(number)}}, None, {"n": {"N": str(number)}})] for number in range(1000)]
    )
    rows = rows_of("table", batch(entries))
    assert rows["keys"].to_pylist() == [f'{{"id":"{number}"}}' for number in range(1000)]
    assert rows["new_image"].to_pylist() == [f'{{"n":{number}}}' for number in range(1000)]
    assert rows["timestamp"].cast(pa.int64()).to_pylist() == [(AT_MS + number) * 1000 for number in range(1000)]
    assert rows.slice(0, 0).schema == columns.CHANGES


def test_a_slice_of_entries_has_its_own_rows() -> None:
    """Batches are cut without copying; what lies before the cut is not the slice's."""
    entries = changed(
        *[[StoredRecord(0, 1, {"id": {"S": str(number)}}, None, None)] * (1 + number % 3) for number in range(20)]
    )
    cut = batch(entries).slice(7, 6)
    assert plain_rows(rows_of("table", cut)) == expected(entries[7:13], "plain")


def test_nothing_becomes_nothing() -> None:
    for kind, content_type in (
        ("table", None),
        ("topic", None),
        ("stream", "application/json"),
        ("stream", "text/plain"),
        ("stream", "a/b"),
    ):
        rows = rows_of(kind, batch([]), content_type=content_type)
        assert rows.num_rows == 0 and rows.schema == schema_of(kind, content_type)


def test_what_cannot_be_decoded_is_damage() -> None:
    with pytest.raises(Corrupt, match="cannot be read"):
        rows_of("table", batch([Entry(7, 0, 1, AT_MS, bytes(8) + b"\xc1")]))
    with pytest.raises(Corrupt, match="cannot be read"):
        rows_of("topic", batch([Entry(7, 0, 1, AT_MS, b"\xc1")]))


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(Invalid, match="'queue'"):
        rows_of("queue", batch([]))
    with pytest.raises(Invalid, match="'both'"):
        rows_of("table", batch([]), images="both")


def test_messages() -> None:
    envelopes = [
        Envelope(0, 0, topics.PUBLISH, 1, None, b"\x00\xff", "ada", b"k"),
        Envelope(41, 2, topics.UPDATE, 2, "orders", b"{}", "bob"),
        Envelope(0, 0, topics.PUBLISH, 1, None, b"", "", None, ["t", 0, 1, "g", 3]),
    ]
    entries = [Entry(9, 5 + at, 6 + at, AT_MS, topics.encode(each)) for at, each in enumerate(envelopes)]
    rows = rows_of("topic", batch(entries), partition=3)
    rows.validate(full=True)
    assert rows["message_id"].to_pylist() == [
        topics.DeliveredMessage(3, entry.position, AT_MS, 0, topics.opened(entry.body)).id for entry in entries
    ]
    assert rows["op"].to_pylist() == ["Publish", "Update", "Publish"]
    assert rows["mode"].to_pylist() == ["Full", "Diff", "Full"]
    assert rows["key"].to_pylist() == [b"k", None, None]
    assert rows["payload"].to_pylist() == [b"\x00\xff", b"{}", b""]
    assert rows["source_table"].to_pylist() == [None, "orders", None]
    assert rows["principal"].to_pylist() == ["ada", "bob", ""]
    assert rows["partition"].to_pylist() == [3, 3, 3] and rows["offset"].to_pylist() == [5, 6, 7]


@pytest.mark.parametrize(
    ("content_type", "bodies", "rows"),
    [
        ("application/json", [b'{"a":1},[2, 3]', b'"x"'], [(0, 0, '{"a":1}'), (0, 1, "[2, 3]"), (1, 0, '"x"')]),
        ("application/json", [b'"\\ud83d",1', b"2"], [(0, 0, '"\\ud83d"'), (0, 1, "1"), (1, 0, "2")]),
        ("text/plain", ["ü".encode(), b"a\nb"], [(0, 0, "ü"), (1, 0, "a\nb")]),
        ("text/plain", [b"\xff", b"b"], [(0, 0, "\ufffd"), (1, 0, "b")]),
        ("application/octet-stream", [b"\xff\x00", b"b"], [(0, 0, b"\xff\x00"), (1, 0, b"b")]),
    ],
)
def test_streams(content_type: str, bodies: list[bytes], rows: list[tuple[int, int, Any]]) -> None:
    entries = [Entry(3, 10 * at, 10 * at + 10, AT_MS, body) for at, body in enumerate(bodies)]
    found = rows_of("stream", batch(entries), content_type=content_type)
    found.validate(full=True)
    assert [(row["offset"] // 10, row["index"], row["value"]) for row in found.to_pylist()] == rows
    assert found.schema == schema_of("stream", content_type)


@given(found=st.lists(items(NESTED), max_size=5))
def test_items(found: list[dict[str, Any]]) -> None:
    stored = [{**item, "id": {"S": str(number)}} for number, item in enumerate(found)]
    rows = items_of(pa.array([value.encode(item) for item in stored], pa.binary()), ("id",))
    rows.validate(full=True)
    assert rows.to_pylist() == [
        {"keys": shown({"id": item["id"]}, "plain"), "item": shown(item, "plain"), "typed": shown(item, "typed")}
        for item in stored
    ]
