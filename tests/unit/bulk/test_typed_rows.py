"""Images and items as structs: the same as their JSON, whichever way they are converted, and an error for misfits."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.bulk import shapes, variant
from tailrace.bulk.columns import CHANGES, rows_of
from tailrace.bulk.entries import batch
from tailrace.bulk.typed_rows import TypedRows
from tailrace.errors import Corrupt, Invalid
from tailrace.log.entry import Entry
from tailrace.tables import change, value
from tailrace.tables.change import StoredRecord

AT_MS = 1_700_000_000_000
NESTED = pa.struct([("b", pa.int64()), ("c", pa.struct([("d", pa.string())]))])
MANY = 3 * shapes.ROWS_MIN
MOMENT = pa.timestamp("us", "UTC")
FACTS = list(CHANGES)[:-3]


def item(plain: dict[str, Any] | None) -> Any:
    return None if plain is None else value.item_from_plain(plain)[0]


def table(*records: tuple[int, Any, Any], keys: dict[str, Any] | None = None) -> pa.RecordBatch:
    stored = [StoredRecord(event, 1, item(keys or {"id": "k"}), item(old), item(new)) for event, old, new in records]
    entries = [Entry(7, 10 + at, 11 + at, AT_MS, change.encode(at, "ada", [each])) for at, each in enumerate(stored)]
    return batch(entries)


def changes(row: pa.StructType, *, strict: bool = False) -> TypedRows:
    keys = pa.struct([("id", pa.string())])
    schema = pa.schema([*FACTS, ("keys", keys), ("before", row), ("after", row)])
    return TypedRows("orders", schema, strict)


def one(kind: pa.DataType, plain: Any, count: int) -> list[Any]:
    """The value of a column in `count` changes, and in `count` items."""
    row = pa.struct([("a", kind)])
    found = changes(row).of_changes(table(*[(0, None, {"a": plain})] * count))
    found.validate(full=True)
    assert found.schema.field("after").type == row
    bodies = pa.array([value.encode(item({"a": plain}))] * count, pa.binary())
    items = TypedRows("orders", pa.schema([("a", kind), ("_sequence", pa.int64())])).of_items(bodies, ("a",), 7)
    items.validate(full=True)
    assert items["a"].to_pylist() == [None if each is None else each["a"] for each in found["after"].to_pylist()]
    assert items["_sequence"].to_pylist() == [7] * count
    assert found["before"].null_count == count
    return items["a"].to_pylist()  # type: ignore[no-any-return]


def test_the_columns_of_changes() -> None:
    rows = [
        (0, None, {"id": "k", "a": 1}),
        (1, {"id": "k", "a": 1}, {"id": "k"}),
        (2, {"id": "k"}, None),
        (2, None, None),
    ]
    typed = changes(pa.struct([("id", pa.string()), ("a", pa.int64())]))
    for count in (1, shapes.ROWS_MIN):
        entries = table(*rows * count)
        found, expected = typed.of_changes(entries), rows_of("table", entries)
        assert found.schema == typed.schema
        for name in CHANGES.names[:-3]:
            assert found[name] == expected[name], name
        assert found["keys"].to_pylist() == [{"id": "k"}] * len(rows) * count
        assert found["before"].to_pylist()[:4] == [None, {"id": "k", "a": 1}, {"id": "k", "a": None}, None]
        assert found["after"].to_pylist()[:4] == [{"id": "k", "a": 1}, {"id": "k", "a": None}, None, None]
        part = pa.schema([("sequence", pa.int64()), ("after", pa.struct([("a", pa.int64())]))])
        assert TypedRows("orders", part).of_changes(entries).to_pylist()[0] == {"sequence": 10, "after": {"a": 1}}


@pytest.mark.parametrize("count", [1, MANY])
def test_an_image_without_any_of_the_columns_is_not_null(count: int) -> None:
    image = pa.struct([("b", pa.int64()), ("c", pa.string())])
    rows = [(0, None, {"a": 1}), (1, {"a": 1}, {"a": 1, "b": 2}), (2, {"a": 1, "z": 3}, None)]
    found = TypedRows("orders", pa.schema([("before", image), ("after", image)])).of_changes(table(*rows * count))
    nothing = {"b": None, "c": None}
    assert (
        found.to_pylist()
        == [
            {"before": None, "after": nothing},
            {"before": nothing, "after": {"b": 2, "c": None}},
            {"before": nothing, "after": None},
        ]
        * count
    )


def test_changes_as_rows() -> None:
    """The attributes of what is there after the change, or was before it; or of the key."""
    rows = [
        (0, None, {"id": "k", "a": 1}), (1, {"a": 1}, {"a": 2}), (2, {"a": 2}, None), (2, None, None), (0, None, None)
    ]  # fmt: skip
    schema = pa.schema([("id", pa.string()), ("a", pa.int64()), ("_sequence", pa.int64()), ("_event", pa.string())])
    for count in (1, shapes.ROWS_MIN):
        found = TypedRows("orders", schema).of_changes(table(*rows * count))
        assert found.schema == schema
        assert found.to_pylist()[:5] == [
            {"id": "k", "a": 1, "_sequence": 10, "_event": "INSERT"},
            {"id": None, "a": 2, "_sequence": 11, "_event": "MODIFY"},
            {"id": None, "a": 2, "_sequence": 12, "_event": "REMOVE"},
            {"id": "k", "a": None, "_sequence": 13, "_event": "REMOVE"},
            {"id": "k", "a": None, "_sequence": 14, "_event": "INSERT"},
        ]


@pytest.mark.parametrize("count", [1, MANY])
@pytest.mark.parametrize(
    ("plain", "kind", "expected"),
    [
        (12, pa.int64(), 12),
        (-(2**63), pa.int64(), -(2**63)),
        (12, pa.int32(), 12),
        (-128, pa.int8(), -128),
        (Decimal("12.5"), pa.float64(), 12.5),
        (Decimal("12.5"), pa.float32(), 12.5),
        (Decimal("0.1"), pa.float32(), 0.10000000149011612),
        (Decimal("0.30000000000000004"), pa.float64(), 0.30000000000000004),
        (Decimal("12.5"), pa.decimal128(38, 18), Decimal("12.5")),
        (Decimal("0.05"), pa.decimal128(2, 2), Decimal("0.05")),
        (12345678901234567890123456789, pa.decimal128(38, 0), Decimal("12345678901234567890123456789")),
        (Decimal("9" * 20 + "." + "9" * 18), pa.decimal128(38, 18), Decimal("9" * 20 + "." + "9" * 18)),
        (True, pa.bool_(), True),
        (False, pa.bool_(), False),
        ("x", pa.string(), "x"),
        ('a"b\\\n\u00fc', pa.string(), 'a"b\\\n\u00fc'),
        (12, pa.string(), "12"),
        (True, pa.string(), "true"),
        (Decimal("0.10"), pa.string(), "0.1"),
        ({"b": [1, Decimal("2.5"), 'q"'], "c": False}, pa.string(), '{"b":[1,2.5,"q\\""],"c":false}'),
        (b"\x00\xff", pa.binary(), b"\x00\xff"),
        (b"x" * 300, pa.binary(), b"x" * 300),
        (b"\x00\xff", pa.string(), "AP8="),
        ("2024-01-02T03:04:05.123456Z", MOMENT, datetime(2024, 1, 2, 3, 4, 5, 123456, UTC)),
        ("2024-01-02T03:04:05+01:00", MOMENT, datetime(2024, 1, 2, 2, 4, 5, 0, UTC)),
        ("2024-01-02T03:04:05", pa.timestamp("us"), datetime(2024, 1, 2, 3, 4, 5)),  # noqa: DTZ001
        ("2024-01-02", pa.date32(), date(2024, 1, 2)),
        ({"b": 1, "c": {"d": "x"}}, NESTED, {"b": 1, "c": {"d": "x"}}),
        ({"b": 1, "e": 5}, NESTED, {"b": 1, "c": None}),
        ([1, 2], pa.list_(pa.int64()), [1, 2]),
        ([], pa.list_(pa.int64()), []),
        ([1, None], pa.list_(pa.int64()), [1, None]),
        ({"x", "y"}, pa.list_(pa.string()), ["x", "y"]),
        ({1, 2}, pa.list_(pa.int64()), [1, 2]),
        ({b"1", b"2"}, pa.list_(pa.binary()), [b"1", b"2"]),
        ([{"b": 1}, {"b": 2}], pa.list_(pa.struct([("b", pa.int64())])), [{"b": 1}, {"b": 2}]),
        ({"x": 1, "y": 2}, pa.map_(pa.string(), pa.int64()), [("x", 1), ("y", 2)]),
        ({}, pa.map_(pa.string(), pa.int64()), []),
        (None, pa.int64(), None),
    ],
)  # fmt: skip
def test_types(plain: Any, kind: pa.DataType, expected: Any, count: int) -> None:
    found = one(kind, plain, count)
    assert [sorted(each) if isinstance(plain, set) else each for each in found] == [expected] * count
    assert type(found[0]) is type(expected)


@pytest.mark.parametrize("count", [1, MANY])
@pytest.mark.parametrize(
    ("plain", "kind", "shown"),
    [
        ("x", pa.int64(), 'bigint, which cannot hold the text "x"'),
        (Decimal("12.5"), pa.int64(), "bigint, which cannot hold the number 12.5"),
        (2**63, pa.int64(), "the number 9223372036854775808"),
        (2**31, pa.int32(), "int, which cannot hold the number 2147483648"),
        (True, pa.int64(), "the boolean true"),
        ("x", pa.float64(), 'double, which cannot hold the text "x"'),
        (12345678901234567890, pa.float64(), "double, which cannot hold the number 12345678901234567890"),
        (Decimal("0.123456789"), pa.float32(), "float, which cannot hold the number 0.123456789"),
        (Decimal("1.005"), pa.decimal128(10, 2), "decimal(10,2), which cannot hold the number 1.005"),
        (10**9, pa.decimal128(10, 2), "the number 1000000000"),
        (Decimal("1E-60"), pa.decimal128(38, 18), "the number 0.000"),
        (10**60, pa.decimal128(38, 18), "the number 1000"),
        (10**20, pa.decimal128(38, 18), "the number 100000000000000000000"),
        (-(10**20), pa.decimal128(38, 18), "the number -100000000000000000000"),
        (10**30, pa.decimal128(38, 18), "decimal(38,18), which cannot hold the number 1" + "0" * 30),
        ("12.5", pa.decimal128(10, 2), 'the text "12.5"'),
        (1, pa.bool_(), "boolean, which cannot hold the number 1"),
        ("yesterday", MOMENT, 'timestamp, which cannot hold the text "yesterday"'),
        (12, MOMENT, "the number 12"),
        ("x", pa.date32(), 'date, which cannot hold the text "x"'),
        ("x", pa.struct([("b", pa.int64())]), 'struct<b:bigint>, which cannot hold the text "x"'),
        ("AP8=", pa.binary(), 'binary, which cannot hold the text "AP8="'),
        ("x", pa.list_(pa.int64()), "array<bigint>, which cannot hold"),
        ({"x": 1}, pa.list_(pa.int64()), 'the map {"x":1}'),
        ([1], pa.map_(pa.string(), pa.int64()), "map<string,bigint>, which cannot hold the list [1]"),
    ],
)
def test_what_does_not_fit_is_named(plain: Any, kind: pa.DataType, shown: str, count: int) -> None:
    records = [(0, None, {"a": None}), *[(1, None, {"a": plain})] * count]
    typed = changes(pa.struct([("a", kind)]))
    with pytest.raises(Invalid) as caught:
        typed.of_changes(table(*records))
    assert caught.value.code == "NOT_TYPED"
    assert str(caught.value).startswith("table 'orders', key {\"id\":\"k\"}, sequence 11: column 'after.a' is ")
    assert shown in str(caught.value)
    bodies = pa.array([value.encode(item({"id": "k", "a": plain}))] * count, pa.binary())
    with pytest.raises(Invalid, match=r"key \{\"id\":\"k\"\}, sequence 9: column 'a' is"):
        TypedRows("orders", pa.schema([("a", kind)])).of_items(bodies, ("id",), 9)


@pytest.mark.parametrize("count", [1, MANY])
def test_what_is_inside_is_named_with_its_path(count: int) -> None:
    typed = changes(pa.struct([("a", NESTED)]))
    with pytest.raises(Invalid, match=r"column 'after\.a\.c\.d' is|column 'before\.a\.b' is bigint"):
        typed.of_changes(table(*[(1, {"a": {"b": "x"}}, None)] * count))


@pytest.mark.parametrize("count", [1, MANY])
def test_an_attribute_that_was_not_inferred_is_an_error(count: int) -> None:
    row = pa.struct([("id", pa.string()), ("a", NESTED)])
    entries = table(*[(0, None, {"id": "k", "later": 5})] * count)
    assert changes(row).of_changes(entries)["after"][0].as_py() == {"id": "k", "a": None}
    with pytest.raises(
        Invalid, match=r"no column 'after\.later' in the inferred schema, and the item has the number 5"
    ):
        changes(row, strict=True).of_changes(entries)
    entries = table(*[(0, None, {"id": "k", "a": {"more": "x"}})] * count)
    with pytest.raises(Invalid, match=r"no column 'after\.a\.more'"):
        changes(row, strict=True).of_changes(entries)


def test_a_type_that_is_not_supported() -> None:
    with pytest.raises(Invalid, match="a column cannot be duration"):
        changes(pa.struct([("a", pa.duration("s"))])).of_changes(table((0, None, {"a": 1})))
    with pytest.raises(Invalid, match="the keys of a map are bigint"):
        changes(pa.struct([("a", pa.map_(pa.int64(), pa.int64()))])).of_changes(table((0, None, {"a": {"x": 1}})))


def test_bytes_that_are_no_text_are_corrupt() -> None:
    entries = table(*[(0, None, {"a": "abcdefgh"})] * MANY)
    body = entries["body"].to_pylist()
    body[5] = body[5].replace(b"abcdefgh", b"abcd\xff\xff\xff\xff")
    broken = pa.RecordBatch.from_arrays([*entries.columns[:-1], pa.array(body, pa.binary())], schema=entries.schema)
    with pytest.raises(Corrupt, match="run tailrace check"):
        changes(pa.struct([("a", pa.string())])).of_changes(broken)


# -- against JSON


_SCALARS = {
    "s": (st.text(max_size=8), pa.string()),
    "n": (st.integers(-(2**63), 2**63 - 1), pa.int64()),
    "d": (st.decimals(-(10**15), 10**15, allow_nan=False, places=4), pa.decimal128(38, 18)),
    "f": (st.booleans(), pa.bool_()),
    "b": (st.binary(max_size=6), pa.binary()),
    "x": (st.lists(st.integers(-5, 5), max_size=2), pa.list_(pa.int64())),
    "m": (
        st.fixed_dictionaries({}, optional={"i": st.integers(0, 9), "t": st.text(max_size=3)}),
        pa.struct([("i", pa.int64()), ("t", pa.string())]),
    ),
}  # fmt: skip
_ITEMS = st.fixed_dictionaries({}, optional={name: values for name, (values, _) in _SCALARS.items()})
_ROW = pa.struct([("id", pa.string()), *((name, kind) for name, (_, kind) in _SCALARS.items())])


def expected(plain: dict[str, Any] | None) -> dict[str, Any] | None:
    if plain is None:
        return None
    found = {field.name: plain.get(field.name) for field in _ROW}
    if found["m"] is not None:
        found["m"] = {"i": found["m"].get("i"), "t": found["m"].get("t")}
    return found


@given(st.lists(_ITEMS, min_size=1, max_size=6), st.integers(0, 2**32))
def test_random_items(examples: list[dict[str, Any]], seed: int) -> None:
    """Changes between a few random items, in any order, are the same as what was written; and so are the items."""
    chance = random.Random(seed)

    def image() -> dict[str, Any] | None:
        return {"id": f"k{chance.randrange(9)}", **chance.choice(examples)} if chance.random() < 0.8 else None

    records = [(chance.randrange(3), image(), image()) for _ in range(shapes.ROWS_MIN + 9)]
    found = changes(_ROW, strict=True).of_changes(table(*records))
    found.validate(full=True)
    assert found["before"].to_pylist() == [expected(old) for _, old, _ in records]
    assert found["after"].to_pylist() == [expected(new) for _, _, new in records]
    there = [new for _, _, new in records if new is not None]
    bodies = pa.array([value.encode(item(each)) for each in there], pa.binary())
    items = TypedRows("orders", pa.schema(list(_ROW)), True).of_items(bodies, ("id",), 5)
    assert items.to_pylist() == [expected(each) for each in there]


# -- variants


def test_variants_are_what_spark_reads() -> None:
    """PySpark's own decoder, where it is installed, reads what was written."""
    pytest.importorskip("pyspark")
    from pyspark.sql.types import VariantVal

    plain = {
        "id": "k", "long": "x" * 100, "n": 5, "small": -300, "int": 70_000, "big": 2**40, "huge": 2**70,
        "d": Decimal("-1.5"), "tiny": Decimal("1E-20"), "t": True, "f": False, "z": None, "l": [1, "a", [2]],
        "m": {"b": 1, "a": {"c": "d"}}, "many": list(range(300)),
    }  # fmt: skip
    for each in ({}, {"a": {}}, {"l": []}, plain, {f"a{n}": n for n in range(300)}):
        made = variant.of_item(msgspec.convert(item(each), dict[str, variant.TypedValue]))
        assert VariantVal(made["value"], made["metadata"]).toPython() == each


def test_a_number_that_no_variant_holds_is_named() -> None:
    schema = pa.schema([("after", variant.TYPE)])
    fits = TypedRows("orders", schema).of_changes(table((0, None, {"a": Decimal("9" * 38)})))
    assert fits.num_rows == 1
    with pytest.raises(Invalid, match=r"sequence 10: column 'after\.a' is variant, which cannot hold the number 10+;"):
        TypedRows("orders", schema).of_changes(table((0, None, {"b": 1, "a": Decimal("1E+60")})))
