"""How ranges become tasks, options become settings and filters become ranges: without Spark and without a server."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tailrace.bulk.text import TypedValue
from tailrace.errors import Gone, Invalid, NotFound
from tailrace.spark import columns, options
from tailrace.spark.connection import SourceInfo, SourceLog
from tailrace.spark.filters import PushedFilters
from tailrace.spark.jobs.view import batch_ranges
from tailrace.spark.planning import TASKS_PER_CORE_MAX, OffsetRange, checked, cold_cuts, resolved, split, tasks_wanted
from tailrace.spark.session import available_cores, planning_cores
from tailrace.spark.streaming import checkpointed, same_logs, until_applied
from tailrace.tables.value import item_from_plain
from tests.support.server import ROOT


def part(partition: int = 0, log: int = 7, earliest: int = 10, tail: int = 100) -> SourceLog:
    return SourceLog(partition, log, earliest, earliest, earliest, tail)


def facts(*parts: SourceLog, database: str = "db") -> SourceInfo:
    return SourceInfo("table", "orders", database, list(parts))


# -- splitting


@given(
    st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 5_000)), max_size=6),
    st.integers(1, 20),
)
def test_cuts_lose_and_double_nothing(spans: list[tuple[int, int]], wanted: int) -> None:
    ranges = [OffsetRange(number, number, start, start + size) for number, (start, size) in enumerate(spans)]
    cut = split(ranges, wanted)
    for each in ranges:
        mine = [piece for piece in cut if piece.log == each.log]
        assert sum(piece.size for piece in mine) == each.size
        if each.size:
            assert mine[0].start == each.start and mine[-1].end == each.end
            assert all(one.end == two.start for one, two in itertools.pairwise(mine))
    assert all(piece.size > 0 for piece in cut)


def test_one_log_is_cut_into_equal_tasks() -> None:
    cut = split([OffsetRange(0, 7, 0, 1_000)], 4)
    assert [(each.start, each.end) for each in cut] == [(0, 250), (250, 500), (500, 750), (750, 1_000)]


def test_small_ranges_are_one_task_and_large_ones_are_bounded() -> None:
    assert tasks_wanted("table", [100], 8, None) == 1
    assert tasks_wanted("table", [100_000], 8, None) == 2
    assert tasks_wanted("table", [1_000_000], 8, None) == 8
    assert tasks_wanted("table", [50_000_000], 8, None) == 100
    assert tasks_wanted("table", [100], 8, 5) == 5


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=5), st.integers(1, 64))
def test_there_are_never_more_tasks_than_cores_can_use(sizes: list[int], cores: int) -> None:
    for kind in ("table", "topic", "stream"):
        assert len(sizes) <= tasks_wanted(kind, sizes, cores, None) <= max(len(sizes), cores * TASKS_PER_CORE_MAX)


@given(
    st.lists(st.tuples(st.integers(0, 900), st.integers(0, 99), st.integers(0, 5_000)), min_size=1, max_size=8),
    st.integers(1, 12),
)
def test_cold_cuts_cover_the_range_in_order(files: list[tuple[int, int, int]], wanted: int) -> None:
    spans = [(low, low + width, rows) for low, width, rows in files]
    bounds = cold_cuts(spans, 100, 800, wanted)
    assert bounds[0] == 100 and bounds[-1] == 800
    assert bounds == sorted(set(bounds))
    assert len(bounds) <= wanted + 1


def test_cold_cuts_follow_the_rows_and_not_the_positions() -> None:
    assert cold_cuts([(0, 99, 1_000), (100, 9_999, 1_000)], 0, 10_000, 2) == [0, 100, 10_000]
    assert cold_cuts([(0, 99, 1_000)], 20, 60, 4) == [20, 30, 40, 50, 60]  # only a part of the file is wanted


# -- options


def read(**source_options: str) -> options.SourceOptions:
    return options.read({"table": "orders", **source_options})


def test_options_in_any_case() -> None:
    found = read(STARTINGOFFSETS='{"0": 12}', MaxRecordsPerTrigger="5", failondataloss="FALSE")
    assert found.starting == {"0": 12}
    assert found.records_max == 5
    assert found.fail_on_data_loss is False


def test_times_are_milliseconds_or_iso() -> None:
    assert read(startingTimestamp="1700000000000").starting_ms == 1_700_000_000_000
    assert read(startingTimestamp="2026-01-31T12:00:00Z").starting_ms == 1_769_860_800_000
    assert read(startingTimestamp="2026-01-31T12:00:00").starting_ms == 1_769_860_800_000
    assert read(startingTimestamp="2026-01-31T13:00:00+01:00").starting_ms == 1_769_860_800_000


@pytest.mark.parametrize(
    ("source_options", "message"),
    [
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"startingOffsets": "first"}, "startingOffsets is 'first'; give 'earliest', 'latest' or JSON"),
        ({"startingOffsets": '{"0": "5"}'}, "an offset for each partition"),
        ({"startingOffsets": '{"0": -5}'}, "an offset for each partition"),
        ({"startingOffsets": "latest", "startingTimestamp": "0"}, "give one of them"),
        ({"endingOffsets": "earliest"}, "endingOffsets cannot be 'earliest'"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp is 'yesterday'"),
        ({"maxRecordsPerTrigger": "0"}, "a whole number above zero"),
        ({"minPartitions": "many"}, "minPartitions is 'many'"),
        ({"failOnDataLoss": "no"}, "give true or false"),
        ({"images": "raw"}, "give one of typed"),
        ({"topic": "t"}, "given: table='orders' and topic='t'"),
        ({"table": ""}, "given: none"),
        ({"table": "", "topic": "t", "label": "x"}, "label selects a change stream of a table"),
        ({"keyColumn": "k"}, "there is no option 'keycolumn'"),
    ],
)
def test_wrong_options(source_options: dict[str, str], message: str) -> None:
    with pytest.raises(Invalid) as caught:
        read(**source_options)
    assert message in str(caught.value)


def test_offsets_of_partitions() -> None:
    parts = [part(0), part(1, 8, 5, 50)]
    assert resolved(None, parts, "earliest", "startingOffsets", "topic 't'") == {0: 10, 1: 5}
    assert resolved("latest", parts, "earliest", "startingOffsets", "topic 't'") == {0: 100, 1: 50}
    assert resolved({"1": 20}, parts, "earliest", "startingOffsets", "topic 't'") == {0: 10, 1: 20}
    with pytest.raises(Invalid, match="names partition 2, and topic 't' has partitions 0 to 1"):
        resolved({"2": 20}, parts, "earliest", "startingOffsets", "topic 't'")


def test_lost_data_is_reported_or_skipped() -> None:
    with pytest.raises(
        Gone, match="offset 3 of table 'orders', partition 0, is no longer available: the earliest is 10"
    ):
        checked({0: 3}, [part()], "table 'orders'", fail=True)
    with pytest.raises(Gone, match=r"offset 300 .* is beyond its end 100"):
        checked({0: 300}, [part()], "table 'orders'", fail=True)
    assert checked({0: 3}, [part()], "table 'orders'", fail=False)[0] == {0: 10}
    assert checked({0: 3}, [part()], "table 'orders'", fail=False)[1].endswith("reading continues at 10")
    assert checked({0: 50}, [part()], "table 'orders'", fail=True) == ({0: 50}, "")


# -- checkpoints


def test_a_checkpoint_of_another_log_is_noticed() -> None:
    journal = checkpointed(facts(part(log=7)), {0: 50})
    assert same_logs(facts(part(log=7)), journal, "table 'orders'", fail=True) == ({0: 50}, "")
    with pytest.raises(Gone, match=r"table 'orders' is not the one .* dropped and recreated; start with a new check"):
        same_logs(facts(part(log=9)), journal, "table 'orders'", fail=True)
    with pytest.raises(Gone, match="in another database"):
        same_logs(facts(part(log=7), database="other"), journal, "table 'orders'", fail=True)
    assert same_logs(facts(part(log=9)), journal, "table 'orders'", fail=False)[0] == {}
    with pytest.raises(Invalid, match="not an offset of table 'orders'"):
        same_logs(facts(part()), {"0": 5}, "table 'orders'", fail=True)


def test_batches_end_where_the_consumer_was() -> None:
    found = facts(part(0, 7), part(1, 8))
    # Both are behind, or one of them: none goes past what was applied.
    assert until_applied(found, {0: 10, 1: 10}, {0: 90, 1: 90}, {7: 40, 8: 50}) == {0: 40, 1: 50}
    assert until_applied(found, {0: 40, 1: 20}, {0: 90, 1: 30}, {7: 40, 8: 50}) == {0: 40, 1: 30}
    assert until_applied(found, {0: 40, 1: 50}, {0: 90, 1: 90}, {7: 40, 8: 50}) == {0: 90, 1: 90}
    assert until_applied(found, {0: 10, 1: 10}, {0: 90, 1: 90}, {}) == {0: 90, 1: 90}


# -- filters


def pushed(kind: str, *filters: Any, is_typed: bool = False) -> tuple[PushedFilters, list[Any]]:
    narrowing = PushedFilters(kind, is_typed=is_typed)
    return narrowing, narrowing.push(filters)


def test_comparisons_of_offsets_are_done_with() -> None:
    filters = [GreaterThan(("offset",), 5), LessThanOrEqual(("offset",), 9), IsNotNull(("offset",))]
    narrowing, left = pushed("table", *filters)
    assert left == []
    assert (narrowing.low["offset"], narrowing.high["offset"]) == (6, 10)


def test_several_bounds_leave_the_narrowest() -> None:
    filters = [GreaterThanOrEqual(("sequence",), 5), EqualTo(("sequence",), 7), LessThan(("sequence",), 100)]
    narrowing, left = pushed("table", *filters)
    assert left == []
    assert (narrowing.low["sequence"], narrowing.high["sequence"]) == (7, 8)


def test_times_are_narrowed_and_looked_at_again() -> None:
    at = datetime(2026, 1, 31, 12, 0, 0, 500, tzinfo=UTC)
    condition = GreaterThan(("timestamp",), at)
    narrowing, left = pushed("table", condition)
    assert left == [condition]
    assert narrowing.low["timestamp"] == 1_769_860_800_000_501


def test_partitions_are_chosen() -> None:
    narrowing, left = pushed("topic", In(("partition",), (1, 3)), LessThan(("partition",), 3))
    assert left == []
    assert [each for each in range(5) if narrowing.has(each)] == [1]


def test_what_we_do_not_know_stays_with_spark() -> None:
    filters = [
        EqualTo(("event",), "INSERT"),
        Not(EqualTo(("offset",), 5)),
        In(("offset",), (1, 2)),
        EqualTo(("a", "offset"), 5),
        GreaterThan(("next_offset",), 5),
        IsNotNull(("after",)),
        EqualTo(("partition",), 0),
    ]
    narrowing, left = pushed("table", *filters)
    assert left == filters
    assert not narrowing.low and not narrowing.high


def test_columns_of_typed_rows_begin_with_a_line() -> None:
    mine = EqualTo(("offset",), 5)  # an attribute of that name
    narrowing, left = pushed("table", mine, GreaterThan(("_offset",), 5), is_typed=True)
    assert left == [mine]
    assert narrowing.low == {"offset": 6}


def test_every_option_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "spark.md").read_text()
    reading, writing = page.split("## Writing")
    assert [name for name in options.SOURCE if f"`{name}`" not in reading] == []
    assert [name for name in options.SINK if f"`{name}`" not in writing and name != "label"] == []


# -- columns


def orders(**known: Any) -> SourceInfo:
    return SourceInfo("table", "orders", "db", [], keys=[("id", "S"), ("n", "N")], **known)


def typed_item(**plain: Any) -> dict[str, TypedValue]:
    return msgspec.convert(item_from_plain(plain)[0], dict[str, TypedValue])


def test_the_types_of_declared_columns() -> None:
    kinds = ["TEXT", "BIGINT", "DOUBLE", "DECIMAL", "BOOLEAN", "BLOB", "JSON"]
    row = columns.declared(orders(columns=[("id", "TEXT"), *((kind.lower(), kind) for kind in kinds)]))
    assert row is not None
    assert row.simpleString() == (
        "struct<id:string,text:string,bigint:bigint,double:double,decimal:decimal(38,18),boolean:boolean,blob:binary,"
        "json:string>"
    )
    assert columns.keys_type(orders(), row).simpleString() == "struct<id:string,n:decimal(38,18)>"
    assert columns.declared(orders()) is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, -(2**63)], "bigint"),
        ([1, Decimal("0.5")], "decimal(38,18)"),
        ([2**63], "decimal(38,18)"),
        ([10**25], "decimal(38,6)"),
        ([10**25, Decimal("0.123456789")], "decimal(38,10)"),
        ([Decimal("1E-30"), 5], "decimal(38,33)"),
        ([Decimal("1E+100"), 1], "double"),
        ([Decimal("1E+100"), 12345678901234567890], "string"),
        (["x", None], "string"),
        ([True], "boolean"),
        ([True, 1], "string"),
        ([b"x"], "binary"),
        ([{1, 2}, [3]], "array<bigint>"),
        ([{"a"}, []], "array<string>"),
        ([{"x": 1}, {"y": "z"}], "struct<x:bigint,y:string>"),
        ([{}], "string"),
    ],
)
def test_types_are_inferred_from_items(values: list[Any], expected: str) -> None:
    row = columns.inferred_row(orders(), [typed_item(id="k", v=value) for value in values])
    assert row.simpleString() == f"struct<id:string,n:decimal(38,18),v:{expected}>"


def test_the_schema_of_rows_is_spelled_for_spark() -> None:
    found = orders()
    schema = (
        "id string, `odd name` struct<a: int, b: map<string, decimal(10,2)>> COMMENT 'x', n decimal(10, 2) NOT NULL"
    )
    settings = options.read({"table": "orders", "rowSchema": schema})
    made = columns.ddl(found, settings)
    assert "`keys` struct<`id`: string, `n`: decimal(10, 2)>" in made
    assert made.endswith(f"`before` struct<{schema}>, `after` struct<{schema}>")
    items = options.read({"table": "orders", "rowSchema": "id string", "mode": "items"})
    assert columns.ddl(found, items) == "id string, _sequence bigint"


def test_what_a_given_schema_means() -> None:
    whole = columns.public(orders(), options.read({"table": "orders", "images": "json"}))
    assert not columns.is_rows(orders(), whole)
    assert columns.have_text_images(whole)
    row = StructType([StructField("id", StringType())])
    assert not columns.is_rows(orders(), StructType([StructField("after", row), StructField("sequence", LongType())]))
    assert columns.is_rows(
        orders(), StructType([StructField("id", StringType()), StructField("_sequence", LongType())])
    )
    with pytest.raises(Invalid, match="'sequence' is string in the schema and bigint in table 'orders'"):
        columns.is_rows(orders(), StructType([StructField("after", row), StructField("sequence", StringType())]))
    with pytest.raises(Invalid, match="images cannot be read as before string, after struct<id:string>"):
        columns.is_rows(orders(), StructType([StructField("before", StringType()), StructField("after", row)]))


def test_the_cores_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_SPARK_CORES", "48")
    assert planning_cores() == 48
    monkeypatch.delenv("TAILRACE_SPARK_CORES")
    assert planning_cores() == available_cores()


# -- batches of views


class AdvancingServer:
    """Reaches two positions on, and counts the requests."""

    def __init__(self, *dropped: str) -> None:
        self.asked: list[Any] = []
        self._dropped = dropped

    def advance_logs(self, wanted: Any) -> list[dict[int, int] | None]:
        self.asked += wanted
        return [
            None if set(source.values()) & set(self._dropped) else {number: at + 2 for number, at in offsets.items()}
            for source, offsets, _ in wanted
        ]

    def advance(self, offsets: Any, records: int, **source: Any) -> dict[int, int]:
        raise NotFound(f"there is no {source}")


def test_a_batch_of_a_view_asks_for_all_of_its_sources_at_once() -> None:
    def source(table: str, log: int, position: int, tail: int, partition: int = 0) -> dict[str, Any]:
        return {"table": table, "log": log, "position": position, "next": tail, "partition": partition}

    known = {
        "tables": [{"table": "orders", "topic": 0}, {"table": "still", "topic": 0}, {"table": "events", "topic": 9}],
        "sources": [
            source("orders", 1, 5, 100), source("still", 2, 7, 7),
            source("events", 3, 0, 100, 0), source("events", 4, 8, 8, 1), source("events", 5, 3, 100, 2),
        ],
    }  # fmt: skip
    server = AdvancingServer()
    assert batch_ranges(server, known, 50) == {1: (5, 7), 2: (7, 7), 3: (0, 2), 4: (8, 8), 5: (3, 5)}
    assert server.asked == [({"table": "orders"}, {0: 5}, 50), ({"topic": "events"}, {0: 0, 2: 3}, 50)]
    idle = AdvancingServer()
    known["sources"] = [source("orders", 1, 5, 5)]
    assert batch_ranges(idle, known, 50) == {1: (5, 5)} and idle.asked == [], "nothing is asked about no changes"
    known["sources"] = [source("orders", 1, 5, 6)]
    with pytest.raises(NotFound, match="orders"):
        batch_ranges(AdvancingServer("orders"), known, 50)
