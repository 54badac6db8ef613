"""Retractions: whatever is inserted, updated and deleted, a view equals its SELECT over the tables' current rows.

The deltas are those of the Spark job, worked out in one process; `tests/spark/test_view.py` has the same with Spark."""

from __future__ import annotations

import tempfile
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
from hypothesis import example, given, settings

import tailrace
from tailrace.check import check_database
from tailrace.database import Database
from tailrace.jobs.view import DescribeView
from tailrace.tables.plain import Delete, Put
from tests.support.soak import examples
from tests.support.views import advance, check, fill, run

TABLES = """
    CREATE TABLE orders (id TEXT, line BIGINT, status TEXT, total DECIMAL, paid BOOLEAN, customer TEXT,
        PRIMARY KEY (id, line)) WITH (stream = true);
    CREATE TABLE customers (id TEXT PRIMARY KEY, country TEXT, weight DECIMAL) WITH (stream = true);
"""
VIEWS = {
    "plain": "SELECT status, count(*) AS n, sum(total) AS total FROM orders GROUP BY status",
    "every": "SELECT status, paid, count(total) AS n, avg(total) AS mean, min(total) AS least, max(total) AS most, "
    "count(DISTINCT customer) AS customers, min(status || customer) AS text FROM orders GROUP BY status, paid",
    "whole": "SELECT count(*) AS n, sum(total) AS total, max(customer) AS last FROM orders WHERE paid",
    "three": "SELECT status, paid, customer, count(*) AS n, sum(line * 2) AS lines FROM orders GROUP BY ALL",
    "numbers": "SELECT line, count(*) AS n FROM orders WHERE total > 0 GROUP BY line",
    "rows": "SELECT id, line, upper(status) AS status, total + 1 AS more FROM orders WHERE status <> 'a'",
    "inner_": "SELECT c.country, count(*) AS n, sum(o.total) AS total, max(c.weight) AS w FROM orders o "
    "JOIN customers c ON o.customer = c.id GROUP BY c.country",
    "lefts": "SELECT c.country, o.status, count(*) AS n, count(c.id) AS known, min(o.total) AS least FROM orders AS o "
    "LEFT JOIN customers AS c ON c.id = o.customer GROUP BY 1, 2",
    "pairs": "SELECT o.id, o.line, c.id AS cid, c.country FROM orders o LEFT JOIN customers c ON o.customer = c.id "
    "WHERE o.paid IS NOT TRUE",
}

ids = st.sampled_from(["1", "2", "3"])
numbers = st.one_of(
    st.none(), st.integers(-3, 3), st.decimals(-100, 100, places=3), st.sampled_from([Decimal("1e9"), Decimal("0.1")])
)
orders = st.fixed_dictionaries(
    {"id": ids, "line": st.integers(1, 2)},
    optional={
        "status": st.sampled_from(["a", "b", "\\null", "", "1", "true", None]),
        "total": numbers,
        "paid": st.sampled_from([True, False, None]),
        "customer": st.sampled_from(["x", "y", "z", None]),
    },
)
customers = st.fixed_dictionaries(
    {"id": st.sampled_from(["x", "y"])},
    optional={"country": st.sampled_from(["de", "fr", None]), "weight": numbers},
)
actions = st.one_of(
    orders.map(lambda item: Put("orders", item)),
    st.builds(lambda id, line: Delete("orders", (id, line)), ids, st.integers(1, 2)),
    customers.map(lambda item: Put("customers", item)),
    st.sampled_from(["x", "y"]).map(lambda id: Delete("customers", id)),
)
transactions = st.lists(actions, min_size=1, max_size=4)
steps = st.lists(
    st.one_of(
        transactions,
        st.sampled_from(["advance", "advance one", "fill"]),
    ),
    max_size=12,
)


def write(db: Database, given: list[Any]) -> None:
    """One transaction; the last action on a key counts."""
    named = {(each.table, repr(_key(each))): each for each in given}
    db.batch_write(list(named.values()))


def _key(action: Any) -> Any:
    if isinstance(action, Delete):
        return action.key
    item = action.item
    return (item["id"], item["line"]) if action.table == "orders" else item["id"]


_PARTNERS = [
    [Put("orders", {"id": "1", "line": 1, "status": "b", "customer": "x"})],
    [Put("customers", {"id": "x", "country": "de"})],
]


@example(before=_PARTNERS, script=["advance", [Delete("customers", "x")], "advance", *_PARTNERS, "advance"])
@example(before=[], script=[_PARTNERS[0] + _PARTNERS[1], "advance", [Delete("customers", "x"), *_PARTNERS[0]]])
@given(before=st.lists(transactions, max_size=3), script=steps)
@settings(max_examples=examples(40), deadline=None)
def test_a_view_is_its_select_whatever_happens(before: list[Any], script: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        with tailrace.open(directory, housekeeping_s=None) as db:
            run(db, TABLES)
            for each in before:
                write(db, each)
            for name, sql in VIEWS.items():
                run(db, f"CREATE MATERIALIZED VIEW {name} AS {sql}")
                if db.execute(DescribeView(name)).phase != "live":
                    fill(db, name)
                check(db, name)
            for step in script:
                if isinstance(step, list):
                    write(db, step)
                    continue
                for name in VIEWS:
                    if step == "fill":
                        fill(db, name)
                    elif step == "advance one":
                        advance(db, name, 1)
                    else:
                        while advance(db, name):
                            pass
                        check(db, name)
            for name in VIEWS:
                while advance(db, name, 2):
                    pass
                check(db, name)
        assert check_database(directory).findings == []
