"""What is read for a SELECT and what it returns, measured in the bytes that it takes; rows come in bounded slices."""

from __future__ import annotations

import tracemalloc
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tailrace import limits
from tailrace.errors import Invalid, TooLarge, TooMany
from tailrace.http.message import LiveResponse, Response
from tailrace.http.sql_reply import Reply, Sender
from tailrace.sql.arrow import VALUE_BYTES, ItemTableBuilder, KnownColumn
from tailrace.sql.result import ColumnInfo
from tailrace.sql.selected import SLICE_BYTES, ArrowResult, ArrowRows


def collected(items: list[dict[str, Any]]) -> tuple[pa.Table, int]:
    """The table of these items, and what was paid for it."""
    paid = 0

    def spend(size: int) -> None:
        nonlocal paid
        paid += size

    columns = ItemTableBuilder([KnownColumn("id", key="S")], spend)
    for item in items:
        columns.add(item, 100)
    return columns.table(), paid


@pytest.mark.parametrize(
    "items",
    [
        [{"id": {"S": str(n)}, "x": {"N": str(n)}} for n in range(5_000)],
        [{"id": {"S": str(n)}, f"c{n % 400}": {"S": "v"}} for n in range(5_000)],
        [{"id": {"S": str(n)}, **({"late": {"M": {}}} if n == 4_999 else {})} for n in range(5_000)],
        [{"id": {"S": str(n)}, "m": {"BOOL": True} if n < 4_000 else {"S": "x" * 50}} for n in range(5_000)],
    ],
    ids=["dense", "sparse", "late", "mixed"],
)
def test_what_is_paid_for_is_what_arrow_takes(items: list[dict[str, Any]]) -> None:
    table, paid = collected(items)
    assert table.num_rows == len(items)
    assert table.nbytes * 0.95 <= paid <= table.nbytes * 3 + 100_000


def test_values_stay_in_their_rows_whatever_is_packed_when() -> None:
    items = [
        {"id": {"S": str(n)}}
        | ({"a": {"N": str(n)}} if n % 7 == 0 else {})
        | ({"b": {"S": "x"} if n < 3_000 else {"BOOL": True}} if n % 1_500 == 1 else {})
        | ({"z": {"NULL": True}} if n % 2 else {})
        | ({"late": {"B": b"y"}} if n == 3_999 else {})
        for n in range(4_000)
    ]
    table, _ = collected(items)
    assert table.column_names == ["id", "a", "b", "z", "late"]
    for n, row in enumerate(table.to_pylist()):
        assert row["id"] == str(n)
        assert row["a"] == (n if n % 7 == 0 else None)
        assert row["b"] == (None if n % 1_500 != 1 else '"x"' if n < 3_000 else "true"), n
        assert row["z"] is None
        assert row["late"] == (b"y" if n == 3_999 else None)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1", "-9223372036854775808"], [1, -(2**63)]),
        (["1", "9223372036854775808"], [1, Decimal(2**63)]),
        (["-1.5", "100"], [Decimal("-1.5"), 100]),
        (["0." + "1" * 37], [Decimal("0." + "1" * 37)]),
        (["1" * 39, "2"], ["1" * 39, "2"]),
    ],
)
def test_numbers_keep_all_their_digits(texts: list[str], expected: list[Any]) -> None:
    table, _ = collected([{"id": {"S": "a"}, "n": {"N": text}} for text in texts])
    assert table.column("n").to_pylist() == expected


def test_columns_are_bounded_before_they_are_made() -> None:
    columns = ItemTableBuilder([], lambda size: None)
    with pytest.raises(TooLarge, match="name only the columns you need"):
        for n in range(limits.SELECT_COLUMNS_MAX + 1):
            columns.add({f"c{n}": {"S": "v"}}, 10)
    kept = ItemTableBuilder([], lambda size: None, frozenset(("c7",)))
    for n in range(limits.SELECT_COLUMNS_MAX + 10):
        kept.add({f"c{n}": {"S": "v"}}, 10)
    assert kept.table().column_names == ["c7"]


def test_memory_is_paid_for_before_it_is_taken() -> None:
    """A row far down with many new columns needs a null in each row above."""
    paid = 0

    def spend(size: int) -> None:
        nonlocal paid
        paid += size
        if paid > 50 * limits.MiB:
            raise TooLarge("enough")

    columns = ItemTableBuilder([], spend)
    for _ in range(100_000):
        columns.add({"a": {"BOOL": True}}, 1)
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    with pytest.raises(TooLarge, match="enough"):
        columns.add({f"c{n}": {"S": "v"} for n in range(1_900)}, 10)
    assert pa.total_allocated_bytes() - before < 64 * limits.MiB
    assert tracemalloc.get_traced_memory()[1] < 16 * limits.MiB
    tracemalloc.stop()


# -- results


def selected(table: pa.Table) -> ArrowRows:
    found = ArrowRows(table.column_names)
    for batch in table.to_batches():
        found.add(batch)
    return found


def test_slices_are_of_bounded_size_and_have_all_rows() -> None:
    texts = ["x" * (n % 3_000) for n in range(5_000)]
    found = selected(pa.table({"n": list(range(5_000)), "t": texts}))
    slices = list(found.slices())
    assert len(slices) > 3
    assert [row for some in slices for row in some] == [{"n": n, "t": text} for n, text in enumerate(texts)]
    assert all(sum(len(row["t"]) for row in some) <= 2 * SLICE_BYTES for some in slices)


def test_slices_of_wide_results_have_several_rows() -> None:
    """Each column of a slice costs time, so slices of one row would make the time quadratic in the columns."""
    for width in (10, 400, 4_000):
        found = selected(pa.table({f"c{number}": ["a"] * 40 for number in range(width)}))
        slices = list(found.slices())
        assert all(len(some) >= 8 for some in slices[:-1])
        assert [row for some in slices for row in some] == [{f"c{number}": "a" for number in range(width)}] * 40


def test_values_inside_values_count_towards_the_size_of_a_slice() -> None:
    rows = [[n] * 20_000 for n in range(30)]
    found = selected(pa.table({"n": list(range(30)), "l": rows}))
    assert found.rows_bytes > 30 * 20_000 * VALUE_BYTES
    slices = list(found.slices())
    assert {len(some) for some in slices} == {1}
    assert [row["l"] for some in slices for row in some] == rows


def test_one_large_row_among_small_ones_has_its_own_slice() -> None:
    found = selected(pa.table({"t": ["a"] * 1_000 + ["x" * 4 * SLICE_BYTES] + ["b"] * 1_000}))
    assert {len(some) for some in found.slices() if len(some[0]["t"]) > 1} == {1}


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[True] * 8_000_000]),
        pa.array([[{"a": n} for n in range(600_000)]]),
        pa.array([[(str(n), n) for n in range(300_000)]], pa.map_(pa.string(), pa.int64())),
        pa.array(["x" * (limits.SELECT_ROW_BYTES_MAX + 1)]),
    ],
    ids=["a list of bits", "structs", "a map", "a text"],
)
def test_a_row_that_takes_much_in_python_is_refused_however_small_it_is_in_arrow(column: pa.Array) -> None:
    with pytest.raises(TooLarge, match="a row of the result"):
        selected(pa.table({"v": column}))


def test_rows_in_python_are_bounded_by_what_they_take() -> None:
    wide = pa.table({f"c{n}": pa.array([True] * 10_000) for n in range(1_000)})
    with pytest.raises(TooLarge, match="select fewer columns"):
        selected(wide).rows()
    assert len(selected(wide.slice(0, 100)).rows()) == 100


def test_a_time_that_cannot_be_shown_is_found_before_anything_is_sent() -> None:
    days = pa.array([3_000_000], pa.int32()).view(pa.date32())
    for column in (
        days,
        pa.array([[1]], pa.list_(pa.timestamp("ns"))),
        pa.array([-(10**17)], pa.int64()).view(pa.timestamp("us")),
    ):
        with pytest.raises(Invalid, match="cast it to VARCHAR"):
            selected(pa.table({"v": column}))
    assert selected(pa.table({"v": pa.array([[1_000]], pa.list_(pa.timestamp("ns")))})).count == 1


# -- replies


def selection(table: pa.Table) -> ArrowResult:
    found = selected(table)
    columns = [ColumnInfo(name, "BIGINT") for name in table.column_names]
    return ArrowResult("SELECT", columns, [], found.count, f"{found.count} rows", selected=found)


def test_a_streamed_reply_has_the_same_json_as_a_whole_one() -> None:
    for rows in (0, 1, 40_000):
        reply = Reply(
            200,
            {"status": "success"},
            [selection(pa.table({"n": pa.array(range(rows), pa.int64())}))],
            {"took_ms": 1},
        )
        response = msgspec.json.decode(b"".join(reply.pieces()))
        assert response == {
            "status": "success",
            "results": [
                {
                    "statement": "SELECT",
                    "columns": [{"name": "n", "type": "BIGINT"}],
                    "rows": [{"n": n} for n in range(rows)],
                    "row_count": rows,
                    "message": f"{rows} rows",
                }
            ],
            "took_ms": 1,
        }
        assert list(response["results"][0]) == ["statement", "columns", "rows", "row_count", "message"]


def test_results_that_wait_to_be_read_are_bounded_and_given_back() -> None:
    sender = Sender()

    def reply() -> Reply:
        return Reply(200, {}, [selection(pa.table({"t": ["x" * 100_000] * 400}))], {})

    assert isinstance(sender.answer("ann", Reply(200, {}, [selection(pa.table({"n": [1]}))], {})), Response)
    held = [sender.answer("ann", reply()) for _ in range(3)]
    assert all(isinstance(each, LiveResponse) for each in held)
    with pytest.raises(TooMany, match="read those first"):
        sender.answer("ann", reply())
    held += [sender.answer("bob", reply()) for _ in range(3)]
    with pytest.raises(TooMany):
        sender.answer("eve", reply())
    held.clear()  # their rows were never read
    assert sender._held == {}
    sender.close()
