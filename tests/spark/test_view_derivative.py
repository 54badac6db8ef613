"""The derivative of a view's plan: after every batch of random changes, the view equals its SELECT run from scratch."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tailrace.spark.views.failing import FailingRow, failing_row
from tailrace.spark.views.query import ADDITIVE, DELTAS, GROUPS, INTERVAL, REFRESH, ViewQuery
from tests.spark.view_queries import QUERIES
from tests.spark.view_worlds import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCHES = 15 if os.environ.get("TAILRACE_SOAK") else 3  # `make soak-views` takes all
SEED = 7


@pytest.fixture(scope="module")
def world(spark: SparkSession) -> World:
    return World(spark, SEED, BATCHES)


@pytest.mark.parametrize("name", QUERIES)
def test_a_view_equals_its_query_after_every_batch(world: World, name: str) -> None:
    world.check(QUERIES[name])


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
        ("SELECT id FROM orders TABLESAMPLE (50 PERCENT) REPEATABLE (1)", REFRESH, ["id"]),
    ],
)
def test_the_strategy_and_the_key_are_found_in_the_plan(world: World, sql: str, strategy: str, key: list[str]) -> None:
    query = ViewQuery(world.spark, sql, world.sources)
    assert (query.strategy, [query.names[index] for index in query.key]) == (strategy, key)
    query.drop()


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
