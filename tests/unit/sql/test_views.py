"""Materialized views in SQL: what is read, what is refused and where, and what is answered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace.database import Database
from tailrace.errors import Error
from tailrace.sql import statements as ast
from tailrace.sql.error import SqlError, marked
from tailrace.sql.parser import parse
from tailrace.sql.session import Result, Session
from tests.support.views import plan

TABLES = """
    CREATE TABLE orders (id TEXT PRIMARY KEY, status TEXT, total DECIMAL, customer TEXT) WITH (stream = true);
    CREATE TABLE customers (id TEXT PRIMARY KEY, country TEXT) WITH (stream = true);
"""


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    path: Path = tmp_path_factory.mktemp("views")
    with tailrace.open(path, housekeeping_s=None) as opened:
        run(opened, TABLES)
        yield opened


def run(db: Database, text: str, *params: Any) -> Result:
    return Session(db.execute).run(text, params)[-1]


def refused(db: Database, text: str) -> Error:
    with pytest.raises(Error) as caught:
        run(db, text)
    return caught.value


# -- the text


def test_statements_are_read() -> None:
    text = 'CREATE MATERIALIZED VIEW IF NOT EXISTS app."the totals" AS\n  SELECT a FROM b GROUP BY a'
    created, shown = parse(f"{text}; SHOW MATERIALIZED VIEWS")
    assert isinstance(created, ast.CreateViewStatement)
    assert (created.name, created.if_not_exists) == ("app.the totals", True)
    assert (created.select.text, created.select.line, created.select.column) == ("SELECT a FROM b GROUP BY a", 2, 3)
    assert isinstance(shown, ast.ShowViewsStatement)
    (dropped,) = parse("drop materialized view if exists x")
    assert dropped == ast.DropViewStatement(name="x", if_exists=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CREATE MATERIALIZED", "expected VIEW"),
        ("CREATE MATERIALIZED VIEW x", "expected AS"),
        ("CREATE MATERIALIZED VIEW x AS UPDATE", "expected SELECT"),
        ("DROP MATERIALIZED x", "expected VIEW"),
        ("SHOW MATERIALIZED", "expected VIEWS"),
    ],
)
def test_a_missing_part_is_reported(text: str, message: str) -> None:
    with pytest.raises(SqlError, match=message):
        parse(text)


def test_a_view_takes_no_parameters() -> None:
    with pytest.raises(SqlError, match="cannot have parameters"):
        parse("CREATE MATERIALIZED VIEW x AS SELECT ? FROM t", ["a"])


# -- what a view may be


@pytest.mark.parametrize(
    ("select", "column", "message"),
    [
        ("SELECT 1 AS x", None, "reads none"),
        ("SELECT id FROM system.tables", 16, "has no changes to follow"),
        ("SELECT id FROM", None, "cannot be read"),
        ("SELECT id FROM orders WHERE id = :name", None, "no parameter"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_place(
    db: Database, select: str, column: int | None, message: str
) -> None:
    error = refused(db, f"CREATE MATERIALIZED VIEW bad AS\n{select}")
    assert error.status == 400
    with pytest.raises(Error, match=message):
        raise error
    _, line, found = marked(error)
    assert line == 2
    if column is not None:
        assert found == column, str(error)
    assert run(db, "SHOW MATERIALIZED VIEWS").rows == []


@pytest.mark.parametrize(
    "select",
    [
        "SELECT upper(status) AS s, count(*) FROM orders GROUP BY s",
        "SELECT Status, COUNT(*) AS n FROM orders GROUP BY STATUS",
        "SELECT orders.status, sum(orders.total * 2) AS s FROM orders GROUP BY orders.status",
        "SELECT o.status, min(o.id) FROM orders o WHERE o.total BETWEEN 1 AND 5 GROUP BY 1",
        "SELECT CASE WHEN total > 9 THEN 'big' ELSE 'small' END AS size, count(DISTINCT id) FROM orders GROUP BY 1",
        "SELECT * FROM orders WHERE status = 'open'",
        "WITH x AS (SELECT * FROM orders) SELECT count(*) AS n FROM x",
        "SELECT id FROM orders UNION ALL SELECT id FROM customers",
        "SELECT id, rank() OVER (PARTITION BY status ORDER BY total DESC) AS r FROM orders QUALIFY r < 3",
        "SELECT id FROM orders WHERE total > (SELECT avg(total) FROM orders) ORDER BY total DESC LIMIT 10",
        "SELECT transform(split(status, ','), x -> upper(x)) AS parts, id FROM orders",
        "SELECT country, status, count(*) AS n FROM orders JOIN customers ON customer = customers.id GROUP BY ALL",
        "SELECT c.id, count(o.id) AS n FROM customers c LEFT JOIN orders o "
        "ON (o.customer = c.id AND o.status = c.country) GROUP BY c.id",
    ],
)
def test_what_can_be_kept_is_taken(db: Database, select: str) -> None:
    made = run(db, f"CREATE MATERIALIZED VIEW good AS {select}")
    assert made.facts == {"created": True} and "tailrace pipeline view good" in made.message
    (row,) = run(db, "SHOW MATERIALIZED VIEWS").rows
    assert (row["name"], row["phase"], row["sql"]) == ("good", "planning", " ".join(select.split()))
    assert run(db, "CREATE MATERIALIZED VIEW IF NOT EXISTS good AS SELECT id FROM orders").facts == {"created": False}
    assert run(db, "DROP MATERIALIZED VIEW good").facts == {"dropped": True}
    assert run(db, "DROP MATERIALIZED VIEW IF EXISTS good").facts == {"dropped": False}


def test_a_view_can_read_a_view_that_was_planned(db: Database) -> None:
    run(db, "CREATE MATERIALIZED VIEW first AS SELECT status, count(*) AS n FROM orders GROUP BY status")
    error = refused(db, "CREATE MATERIALIZED VIEW second AS SELECT max(n) AS most FROM first")
    assert error.code == "VIEW_NOT_PLANNED" and "tailrace pipeline view first" in str(error)
    plan(db, "first", ("status", "string"), ("n", "bigint"))
    run(db, "CREATE MATERIALIZED VIEW second AS SELECT max(n) AS most FROM first")
    run(db, "DROP MATERIALIZED VIEW second; DROP MATERIALIZED VIEW first")


def test_drop_table_names_the_statement_that_drops_a_view(db: Database) -> None:
    run(db, "CREATE MATERIALIZED VIEW IF NOT EXISTS kept AS SELECT status, count(*) AS n FROM orders GROUP BY status")
    plan(db, "kept", ("status", "string"), ("n", "bigint"))
    error = refused(db, "DROP TABLE kept")
    assert str(error).startswith("table kept belongs to a materialized view; use DROP MATERIALIZED VIEW kept")
    run(db, "DROP MATERIALIZED VIEW kept")
