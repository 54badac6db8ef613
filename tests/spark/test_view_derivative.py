"""The derivative of a view's plan: after every batch of random changes, the view equals its SELECT run from scratch."""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f

from tailrace.errors import Invalid
from tailrace.spark.views.catalyst import WEIGHT
from tailrace.spark.views.encoding import ViewEncoder
from tailrace.spark.views.failing import FailingRow, failing_row
from tailrace.spark.views.query import ADDITIVE, DELTAS, GROUPS, INTERVAL, REFRESH, SourceRows, ViewQuery
from tests.spark.soak_views import QueryGenerator, kept_seeds
from tests.spark.view_queries import QUERIES
from tests.spark.view_worlds import COLUMNS, World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCHES = 15 if os.environ.get("TAILRACE_SOAK") else 3  # `make soak-views` takes all
SEED = 7
_ORDERS = COLUMNS["orders"][1]


@pytest.fixture(scope="module")
def world(spark: SparkSession) -> World:
    return World(spark, SEED, BATCHES)


@pytest.mark.parametrize("name", QUERIES)
def test_a_view_equals_its_query_after_every_batch(world: World, name: str) -> None:
    world.check(QUERIES[name])


@pytest.mark.parametrize("seed", [kept.last for kept in kept_seeds()[-2:]])
def test_random_queries_of_kept_seeds_are_right(spark: SparkSession, seed: int) -> None:
    rng, world = random.Random(seed), World(spark, seed, BATCHES)
    for _ in range(3):
        world.check(QueryGenerator(rng).query())


@pytest.mark.parametrize(
    ("sql", "strategy", "key"),
    [
        ("SELECT status, count(*) AS n FROM orders GROUP BY status", ADDITIVE, ["status"]),
        ("SELECT status, avg(total) AS n FROM orders GROUP BY status HAVING n > 1", ADDITIVE, ["status"]),
        ("SELECT device, sum(temp) AS n FROM readings GROUP BY device", GROUPS, ["device"]),
        ("SELECT status, max(total) AS n FROM orders GROUP BY status", GROUPS, ["status"]),
        ("SELECT total FROM orders", DELTAS, ["__id"]),
        ("SELECT o.id, c.name FROM orders o JOIN customers c ON o.customer = c.id", DELTAS, ["id"]),
        ("SELECT o.qty FROM orders o JOIN payments p ON p.order_id = o.id", DELTAS, ["__id"]),
        ("SELECT id, now() AS t FROM orders", INTERVAL, ["id"]),
        ("SELECT id, rand() AS t FROM orders", INTERVAL, ["id"]),
        ("SELECT id, (SELECT max(now()) FROM customers) AS t FROM orders", INTERVAL, ["id"]),
        ("SELECT id FROM orders LIMIT 3", REFRESH, ["id"]),
        ("SELECT region COLLATE UTF8_LCASE AS r, count(*) AS n FROM orders GROUP BY 1", REFRESH, ["r"]),
        ("SELECT id FROM orders TABLESAMPLE (50 PERCENT) REPEATABLE (1)", REFRESH, ["id"]),
    ],
)
def test_the_strategy_and_the_key_are_found_in_the_plan(world: World, sql: str, strategy: str, key: list[str]) -> None:
    query = ViewQuery(world.spark, sql, world.sources)
    assert (query.strategy, [query.names[index] for index in query.key]) == (strategy, key)
    query.drop()


@pytest.mark.parametrize(
    ("columns", "names", "keys"),
    [
        ("t, id, n", ["key"], [["{t}Z", "a", "{t}"]]),
        ("id, s", ["id", "s"], ["a", {"t": ["{t}Z", None]}]),
        ("t, n", ["t", "n"], ["{short}Z", "{short}Z"]),
    ],
)
def test_times_in_keys_have_all_their_digits(world: World, columns: str, names: list[str], keys: list[Any]) -> None:
    sql = (
        f"SELECT {columns}, count(*) AS many FROM (SELECT id, t, CAST(t AS TIMESTAMP_NTZ) AS n, named_struct('t', "
        f"array(t, NULL)) AS s FROM (SELECT id, timestamp_micros(qty) AS t FROM orders)) GROUP BY {columns}"
    )
    spark = world.spark
    times = {
        0: ("00:00:00.000", "00:00:00"),
        1_500_000: ("00:00:01.500", "00:00:01.5"),
        1_500_001: ("00:00:01.500001", "00:00:01.500001"),
        1_500_010: ("00:00:01.500010", "00:00:01.50001"),
    }
    rows = spark.createDataFrame([{"id": "a", "qty": each} for each in times], _ORDERS)
    query = ViewQuery(spark, sql, world.sources)
    encoder = ViewEncoder(query, "view")
    found = encoder.items(query.result({"orders": rows}).withColumn(WEIGHT, f.lit(1))).collect()
    query.drop()
    assert [name for name, _ in encoder.keys] == names
    wanted = set()
    for text, short in times.values():
        filled = json.dumps(keys).replace("{t}", f"1970-01-01T{text}").replace("{short}", f"1970-01-01T{short}")
        made = [
            each if isinstance(each, str) else json.dumps(each, separators=(",", ":")) for each in json.loads(filled)
        ]
        wanted.add(tuple(made))
    assert {tuple(row[name] for name in names) for row in found} == wanted


def test_texts_in_keys_are_stored_without_their_collation(world: World) -> None:
    spark = world.spark
    texts = ["", "EU", "eu", "\\", None]
    rows = spark.createDataFrame([{"id": str(number), "status": each} for number, each in enumerate(texts)], _ORDERS)
    query = ViewQuery(
        spark, "SELECT status COLLATE UTF8_LCASE AS s, id FROM orders", {"orders": world.sources["orders"]}
    )
    grouped = ViewQuery(spark, f"SELECT s, count(*) AS n FROM ({query.sql}) GROUP BY s", query.sources)
    encoder = ViewEncoder(grouped, "view")
    found = encoder.items(grouped.result({"orders": rows}).withColumn(WEIGHT, f.lit(1))).collect()
    query.drop()
    grouped.drop()
    assert encoder.columns[0] == ("s", "string")
    assert sorted(row["s"].lower() for row in found) == ['\\""', '\\"\\\\"', "\\null", "eu"]


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT id, make_dt_interval(qty) AS x FROM orders", "the column 'x' is interval day to second, .* cast it"),
        ("SELECT id, array(make_ym_interval(qty)) AS x FROM orders", "the column 'x' is interval year to month"),
        ("SELECT id, named_struct('y', make_interval(qty)) AS x FROM orders", r"the column 'x\.y' is interval, "),
        ("SELECT id, map(total, 1) AS x FROM orders", r"a map whose keys are decimal\(20,4\); cast them to strings"),
        ("SELECT explode(array(value)) AS x FROM events", r"'x' is variant, .*CAST\(x AS STRING\).* x:path::type"),
        (
            "SELECT explode(array(status COLLATE UTF8_LCASE)) AS x FROM orders",
            r"'x' is string collate .*CAST\(x AS STRING\)",
        ),
        ("SELECT id, status AS _row FROM orders", "'_row', a name that is reserved"),
    ],
)
def test_a_result_that_cannot_be_stored_is_refused_when_it_is_planned(world: World, sql: str, why: str) -> None:
    with pytest.raises(Invalid, match=why) as caught:
        ViewEncoder(ViewQuery(world.spark, sql, world.sources), "view")
    assert caught.value.code == "INVALID_VIEW"


@pytest.mark.parametrize("kind", ["string", "variant"])
def test_a_change_that_spark_does_not_see_is_a_change(world: World, kind: str) -> None:
    """Texts that are equal under a collation, and variants with the same JSON."""
    orders = world.spark.createDataFrame([{"id": "a", "status": each} for each in ("AAA=", "aaa=")], _ORDERS)
    old, new = orders.where("status = 'AAA='"), orders.where("status = 'aaa='")
    column = "status COLLATE UTF8_LCASE"
    if kind == "variant":  # the Base64 text of two bytes that are 0, and the bytes
        column = "if(status = 'AAA=', CAST(X'0000' AS VARIANT), CAST('AAA=' AS VARIANT))"
    query = ViewQuery(world.spark, f"SELECT id, {column} AS s FROM orders", {"orders": world.sources["orders"]})
    delta = old.withColumn(WEIGHT, f.lit(-1)).unionAll(new.withColumn(WEIGHT, f.lit(1)))
    made = query.batch({"orders": SourceRows(old, new, delta)})
    assert made is not None
    (row,) = made.collect()
    query.drop()
    found = row["c1"] if kind == "string" else row["c1"].toPython()
    assert (row["c0"], found, row[WEIGHT]) == ("a", "aaa=" if kind == "string" else "AAA=", 1)


def test_the_time_is_that_of_each_run(world: World) -> None:
    sql = "SELECT id, unix_micros(now()) AS t, (SELECT count(*) FROM customers) AS n FROM orders"
    rows = [ViewQuery(world.spark, sql, world.sources).result(world.states[0]).first() for _ in range(2)]
    assert rows[0] is not None and rows[1] is not None
    assert rows[0]["c1"] < rows[1]["c1"]
    assert rows[0]["c2"] == world.states[0]["customers"].count()


def test_explain_names_the_derivative_of_each_operator(world: World) -> None:
    sql = "SELECT c.tier, max(o.total) AS m FROM orders o JOIN customers c ON o.customer = c.id GROUP BY c.tier"
    query = ViewQuery(world.spark, sql, world.sources)
    text = "\n".join(query.explained)
    assert "Aggregate: affected groups [c.tier]" in text
    assert "Join: bilinear [o.customer = c.id]" in text
    assert "orders: changes" in text
    assert query.warnings == []
    assert query.needs_state == {"orders", "customers"}
    query.drop()


@pytest.mark.parametrize(
    ("column", "warned"),
    [
        ("collect_list(id)", "collect_list"),
        ("any_value(id)", "first"),  # what Spark makes of it
        ("listagg(id, ',')", "listagg"),
        ("sort_array(collect_list(id))", None),
        ("listagg(id, ',') WITHIN GROUP (ORDER BY id)", None),
        ("max_by(id, at)", None),
    ],
)
def test_a_result_that_depends_on_the_order_of_rows_is_warned_about(
    world: World, column: str, warned: str | None
) -> None:
    query = ViewQuery(world.spark, f"SELECT status, {column} AS x FROM orders GROUP BY status", world.sources)
    found = [text.partition(" ")[0] for text in query.warnings]
    assert found == ([] if warned is None else [warned])
    query.drop()


def test_the_row_that_makes_a_select_fail_is_found(world: World) -> None:
    rows = world.states[0]
    bad = rows["orders"].where("qty IS NOT NULL").orderBy("id").first()
    assert bad is not None
    test = f"CASE WHEN id = '{bad['id']}' THEN 0 ELSE 1 END"
    for sql, column in (
        (f"SELECT id, status, qty / {test} AS part FROM orders", "part"),
        (f"SELECT id, status FROM orders WHERE qty / {test} > 0", None),
    ):
        query = ViewQuery(world.spark, sql, world.sources)
        found = failing_row(query, {"customers": rows["customers"], "orders": rows["orders"]}, rows)
        assert found == FailingRow("orders", {"id": bad["id"]}, column)
        query.drop()


def test_an_additive_view_of_one_table_reads_no_state(world: World) -> None:
    query = ViewQuery(world.spark, QUERIES["by status"], world.sources)
    assert query.needs_state == set()
    query.drop()


def test_the_examples_of_the_documentation_are_among_the_queries() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/views.md").read_text()
    examples = re.findall(r"<!-- view -->\n```sql\n(.*?)\n```", page, re.S)
    assert len(examples) >= 25
    assert [each for each in examples if each not in QUERIES.values()] == []
