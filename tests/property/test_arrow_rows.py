"""Rows for a table that come as Arrow against the same rows as ordinary writes: the same keys, sizes and stored bytes.

Random typed columns, nested ones too, with nulls. The ordinary way is one item at a time: `value.item_from_plain`, then
what any write does.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import msgspec
import pyarrow as pa
from hypothesis import example, given, settings

from tailrace.bulk import variant
from tailrace.errors import Error, Invalid
from tailrace.jobs import arrow_rows, variant_values
from tailrace.jobs.rows import for_table, table_chunk, writes
from tailrace.tables import value
from tailrace.tables.definition import Attribute, Definition
from tests.support.soak import examples

MIN = datetime(1000, 1, 1)  # noqa: DTZ001 - hypothesis adds the zone
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
# Each scalar type of Arrow, and its values.
SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.string(), TEXT),
    (pa.large_string(), TEXT),
    (pa.binary(), st.binary(max_size=300)),
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1) | st.integers(-1000, 1000) | st.sampled_from([0, 100, 10**18])),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float64(), st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, 1e21, 1e-7, 1e300])),
    (pa.float32(), st.floats(width=32, allow_nan=False, allow_infinity=False)),
    (pa.decimal128(10, 2), st.decimals(-99999999, 99999999, places=2)),
    (pa.decimal128(38, 18), st.decimals(-(10**19), 10**19, places=18)),
    (pa.decimal128(38, 0), st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal)),
    (pa.decimal128(38, 38), st.decimals(Decimal("-0.9"), Decimal("0.9"), places=38)),
    (pa.timestamp("us", "UTC"), st.datetimes(MIN, timezones=st.just(UTC))),
    (pa.date32(), st.dates(date(1, 1, 1))),
    (pa.null(), st.none()),
]


@st.composite
def types(draw: st.DrawFn, depth: int = 0) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    """A type, and its values, null among them."""
    choice = draw(st.integers(0, 5 if depth < 2 else 2))
    if choice <= 2:
        kind, values = draw(st.sampled_from(SCALARS))
        return kind, st.none() | values
    if choice == 3:
        kind, values = draw(types(depth + 1))
        return pa.list_(kind), st.none() | st.lists(values, max_size=20)
    if choice == 4:
        kind, values = draw(types(depth + 1))
        entries = st.dictionaries(TEXT, values, max_size=18).map(lambda each: list(each.items()))
        return pa.map_(pa.string(), kind), st.none() | entries
    names = draw(st.lists(TEXT, max_size=18 if depth == 0 else 3, unique=True))
    inner = [draw(types(depth + 1)) for _ in names]
    fields = pa.struct([pa.field(name, kind) for name, (kind, _) in zip(names, inner, strict=True)])
    fixed = {name: values for name, (_, values) in zip(names, inner, strict=True)}
    return fields, st.none() | st.fixed_dictionaries(fixed)


def plain(kind: pa.DataType, found: Any) -> Any:
    """A value as a Python program would put it; what a table stores as text or as a number, as such."""
    if found is None:
        return None
    if pa.types.is_list(kind):
        return [plain(kind.value_type, each) for each in found]
    if pa.types.is_map(kind):
        return {name: plain(kind.item_type, each) for name, each in found}
    if pa.types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return {each.name: plain(each.type, found[each.name]) for each in fields if found[each.name] is not None}
    if pa.types.is_floating(kind):
        return Decimal(pa.array([found], kind).cast(pa.string())[0].as_py())
    if pa.types.is_timestamp(kind):
        return found.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return found.isoformat() if pa.types.is_date(kind) else found


KEYS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "S": (pa.string(), TEXT.filter(bool)),
    "N": (pa.decimal128(20, 4), st.decimals(-(10**15), 10**15, places=4)),
    "B": (pa.binary(), st.binary(min_size=1, max_size=100)),
}


@st.composite
def batches(draw: st.DrawFn) -> tuple[Definition, pa.RecordBatch, list[dict[str, Any]], list[str]]:
    """A table, rows for it as Arrow, the same as plain items, and the operation of each."""
    kinds = draw(st.lists(st.sampled_from("SNB"), min_size=1, max_size=2))
    keys = [f"key{at}" for at in range(len(kinds))]
    attributes = tuple(Attribute(*each) for each in zip(keys, kinds, strict=True))
    definition = Definition("t", 1, "", 0, attributes, *keys)
    names = draw(st.lists(TEXT.filter(lambda name: name and name not in (*keys, "_op")), max_size=18, unique=True))
    columns = {name: KEYS[kind] for name, kind in zip(keys, kinds, strict=True)}
    columns |= {name: draw(types()) for name in names}
    columns = {name: columns[name] for name in draw(st.permutations(list(columns)))}
    count = draw(st.integers(1, 12))
    found = {name: draw(st.lists(each, min_size=count, max_size=count)) for name, (_, each) in columns.items()}
    ops = draw(st.lists(st.sampled_from(["PUT", "DELETE"]), min_size=count, max_size=count))
    arrays = {name: pa.array(found[name], kind) for name, (kind, _) in columns.items()}
    items = [
        {name: plain(kind, found[name][row]) for name, (kind, _) in columns.items() if found[name][row] is not None}
        for row in range(count)
    ]
    return definition, pa.record_batch({**arrays, "_op": ops}), items, ops


def ipc(*some: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, some[0].schema) as writer:
        for batch in some:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


@given(batches())
@settings(max_examples=examples(120), deadline=None)
def test_rows_as_arrow_are_stored_as_ordinary_writes_are(
    case: tuple[Definition, pa.RecordBatch, list[dict[str, Any]], list[str]],
) -> None:
    definition, batch, items, ops = case
    expected = wrong = done = None
    try:
        typed = [[op, value.item_from_plain(item)[0]] for op, item in zip(ops, items, strict=True)]
        expected = for_table(msgspec.msgpack.encode(typed), definition)
    except Error as error:
        wrong = error
    try:
        done = arrow_rows.for_table(ipc(batch), definition)
    except Error as error:
        assert wrong is not None, f"{error}, which an ordinary write accepts"
        return
    assert expected is not None, f"an ordinary write says {wrong}"
    assert writes(table_chunk(done.body)) == writes(table_chunk(expected.body))
    # In several batches, of which some are slices, it is the same.
    parts = [batch.slice(at, 5) for at in range(0, batch.num_rows, 5)]
    assert arrow_rows.for_table(ipc(*parts), definition) == done


NUMBERS = st.decimals(-(10**37), 10**37, places=3).map(lambda each: each.normalize())


@given(st.lists(NUMBERS, min_size=1, max_size=50))
@example([Decimal("0.001"), Decimal("0.01"), Decimal("10.5"), Decimal("-100"), Decimal("0")])
@settings(max_examples=examples(200), deadline=None)
def test_sizes_of_numbers_are_those_of_the_service(numbers: list[Decimal]) -> None:
    texts = [value.from_plain(each)["N"] for each in numbers]
    found = arrow_rows._number_sizes(pa.array(texts)).to_pylist()
    assert found == [value.size({"N": text}) for text in texts]


TYPED: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.one_of(
        TEXT.map(lambda each: {"S": each}),
        NUMBERS.map(value.from_plain),
        st.binary(max_size=40).map(lambda each: {"B": each}),
        st.booleans().map(lambda each: {"BOOL": each}),
        st.just({"NULL": True}),
    ),
    lambda inner: (
        st.lists(inner, max_size=300).map(lambda each: {"L": each})
        | st.dictionaries(TEXT, inner, max_size=8).map(lambda each: {"M": each})
    ),
    max_leaves=20,
)


@given(TYPED)
@settings(max_examples=examples(150), deadline=None)
def test_a_document_that_became_a_variant_is_read_as_it_was(found: dict[str, Any]) -> None:
    made = variant.of_value(msgspec.convert(found, variant.TypedValue))
    assert variant_values.read(made["value"], made["metadata"]) == found


@given(TYPED, st.data())
@settings(max_examples=examples(150), deadline=None)
def test_a_damaged_variant_is_another_one_or_refused(found: dict[str, Any], data: st.DataObject) -> None:
    made = variant.of_value(msgspec.convert(found, variant.TypedValue))
    name = data.draw(st.sampled_from(["value", "metadata"]))
    damaged = bytearray(made[name])
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] = data.draw(st.integers(0, 255))
    made[name] = bytes(damaged)[: data.draw(st.integers(0, len(damaged)))]
    try:
        value.encode(variant_values.read(made["value"], made["metadata"]))
    except Invalid:
        pass
