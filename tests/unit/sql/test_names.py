"""Names of tables, topics and views in statements: exact, else in any case."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import limits
from tailrace.access import ROLES, Access, Principal
from tailrace.check import check_database
from tailrace.database import Database
from tailrace.errors import Conflict, Forbidden, Invalid, NotFound
from tailrace.sql import names
from tailrace.sql.session import Session


@pytest.fixture
def db(data_dir: Path) -> Iterator[Database]:
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        db.sql("CREATE TABLE Orders (id TEXT PRIMARY KEY, n BIGINT)")
        db.sql("CREATE TOPIC App.News")
        db.sql("INSERT INTO Orders VALUES ('a', 1)")
        yield db
    assert check_database(data_dir).findings == []


def ids(db: Database, text: str, *params: Any) -> list[Any]:
    return [next(iter(row.values())) for row in db.sql(text, params).rows]


def test_select_in_any_case(db: Database) -> None:
    db.sql("CREATE TABLE lines (id TEXT PRIMARY KEY, of TEXT)")
    db.sql("INSERT INTO lines VALUES ('x', 'a')")
    for text in (
        "SELECT id FROM orders",
        'SELECT "ORDERS".id FROM "ORDERS" WHERE orders.n = 1',
        "SELECT o.id FROM ORDERS o JOIN LINES l ON l.of = o.id",
        "SELECT orders.id FROM orders JOIN Lines ON lines.of = orders.id",
        "WITH few AS (SELECT * FROM orders) SELECT id FROM few",
        "SELECT id FROM lines WHERE false UNION ALL SELECT id FROM (FROM orders)",
    ):
        assert ids(db, text) == ["a"], text
        assert ids(db, text) == ["a"], text  # from the statements that are remembered
    assert ids(db, "SELECT id FROM orders WHERE n = ?", 1) == ["a"]
    assert ids(db, "SELECT id FROM orders WHERE n = ?", 2) == []
    assert ids(db, "WITH orders AS (SELECT 7 AS n) SELECT n FROM orders") == [7]


def test_the_functions_of_select(db: Database) -> None:
    db.sql("ALTER TABLE ORDERS ENABLE STREAM")
    db.sql("INSERT INTO orders VALUES ('b', 2)")
    db.sql("PUBLISH TO app.news VALUES ('x')")
    assert ids(db, "SELECT event FROM changes('oRders')") == ["INSERT"]
    assert ids(db, "SELECT value FROM topic('APP.news')") == ["x"]
    assert ids(db, "SELECT value FROM topic(?)", "APP.news") == ["x"]


def test_statements_on_rows(db: Database) -> None:
    assert db.sql("INSERT INTO ORDERS SELECT 'b', n + 1 FROM orders").row_count == 1
    assert db.sql("UPDATE orders SET n = orders.n + 10 WHERE orders.id = 'b'").row_count == 1
    assert ids(db, "DELETE FROM oRDERS WHERE n = 12 RETURNING id") == ["b"]
    assert "Orders" in str(db.sql("EXPLAIN SELECT * FROM orders WHERE id = 'a'").rows)
    assert "Orders" in str(db.sql("EXPLAIN UPDATE orders SET n = 1 WHERE id = 'a'").rows)
    assert db.sql("DESCRIBE orders").facts["table"] == "Orders"
    assert db.sql("TRUNCATE orders").row_count == 1


def test_statements_on_definitions(db: Database) -> None:
    db.sql("ALTER TABLE orders ADD COLUMN extra TEXT")
    db.sql("CREATE INDEX by_n ON orders (n)")
    db.sql("DROP INDEX by_n ON orders")
    db.sql("ALTER TABLE orders DROP COLUMN extra")
    db.sql("ALTER TOPIC app.news ADD SOURCE orders ON INSERT")
    assert ids(db, "SELECT name FROM system.tables") == ["Orders"]
    db.sql("INSERT INTO orders VALUES ('b', 2)")
    assert db.sql("CONSUME FROM app.NEWS GROUP 'g'").row_count == 1
    db.sql("ACK app.NEWS GROUP 'g' UPTO OFFSET 0")
    db.sql("RESET CONSUMER GROUP 'g' ON app.NEWS TO EARLIEST")
    assert db.sql("SHOW CONSUMER GROUPS ON app.NEWS").row_count == 1
    assert db.sql("DESCRIBE TOPIC app.news").facts["topic"]["name"] == "App.News"
    db.sql("ALTER TOPIC app.news DROP SOURCE orders")
    assert db.sql("DROP TOPIC IF EXISTS app.news").facts["dropped"]
    assert db.sql("DROP TABLE IF EXISTS orders").facts["dropped"]
    assert not db.sql("DROP TABLE IF EXISTS orders").facts["dropped"]


def test_views(db: Database) -> None:
    db.sql("ALTER TABLE orders ENABLE STREAM WITH (view = 'NEW_AND_OLD_IMAGES')")
    db.sql("CREATE MATERIALIZED VIEW Totals AS SELECT n, count(*) AS c FROM Orders GROUP BY n")
    assert db.sql("EXPLAIN MATERIALIZED VIEW totals").rows
    db.sql("ALTER MATERIALIZED VIEW TOTALS REFRESH")
    with pytest.raises(Conflict, match="a materialized view 'Totals' already"):
        db.sql("CREATE TABLE totals (id TEXT PRIMARY KEY)")
    with pytest.raises(Conflict, match="a table 'Orders' already"):
        db.sql("CREATE MATERIALIZED VIEW orders AS SELECT n, count(*) AS c FROM Orders GROUP BY n")
    assert db.sql("DROP MATERIALIZED VIEW IF EXISTS totals").facts["dropped"]


def test_an_exact_name_comes_first_and_several_are_an_error(db: Database) -> None:
    db.create_table("orders", "id")
    db.create_table("ORDERS", "id")
    assert ids(db, "SELECT id FROM Orders") == ["a"]
    assert ids(db, "SELECT id FROM orders") == []
    for text in ("SELECT * FROM oRDERS", "DELETE FROM oRDERS WHERE true", "DROP TABLE IF EXISTS oRDERS"):
        with pytest.raises(Invalid, match="'ORDERS', 'Orders', 'orders'") as raised:
            db.sql(text)
        assert raised.value.code == "AMBIGUOUS_NAME"
    assert db.sql("SHOW TABLES").row_count == 3


def test_a_topic_and_its_alias_are_one(db: Database) -> None:
    db.sql("ALTER TOPIC App.News SET ALIAS app.news")
    db.sql("PUBLISH TO APP.NEWS VALUES ('x')")
    assert db.sql("CONSUME FROM app.News").row_count == 1


def test_create_refuses_a_name_in_another_case(db: Database) -> None:
    for text in ("CREATE TABLE orders (id TEXT PRIMARY KEY)", "CREATE TOPIC app.NEWS"):
        with pytest.raises(Conflict, match="already, whose name differs") as raised:
            db.sql(text)
        assert raised.value.code == "ALREADY_EXISTS"
    assert not db.sql("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY)").facts["created"]
    assert not db.sql("CREATE TOPIC IF NOT EXISTS app.NEWS").facts["created"]
    assert ids(db, "SELECT name FROM system.tables") == ["Orders"]
    assert ids(db, "SELECT name FROM system.topics") == ["App.News"]
    db.create_table("orders", "id")  # the other APIs are case-sensitive
    assert db.sql("SHOW TABLES").row_count == 2


def test_transactions_record_the_name_that_was_found(db: Database) -> None:
    session = Session(db.execute)
    session.run("BEGIN; INSERT INTO orders VALUES ('b', 2); UPDATE ORDERS SET n = 3 WHERE id = 'b'")
    session.run("PUBLISH TO app.news VALUES ('x'); SELECT * FROM orders")
    assert session.transaction is not None
    assert {each.table for each in session.transaction.writes} == {"Orders"}
    assert {each.topic for each in session.transaction.published} == {"App.News"}
    session.run("COMMIT")
    assert ids(db, "SELECT n FROM Orders WHERE id = 'b'") == [3]


def test_grants_are_judged_for_the_name_that_was_found(db: Database) -> None:
    db.create_table("hidden", "id")
    db.create_table("ORDERS", "id")
    granted = Principal("ann", ROLES["service"], "service", Access(("tables/Orders", "topics/App.*")))
    assert db.sql("SELECT id FROM orders", principal=granted).rows == [{"id": "a"}]  # ORDERS is not granted
    assert db.sql("UPDATE orders SET n = 5 WHERE id = 'a'", principal=granted).row_count == 1
    assert db.sql("CONSUME FROM App.news", principal=granted).row_count == 0
    session = Session(lambda request: db.execute(request, granted), access=granted.access)
    session.run("BEGIN; INSERT INTO orders VALUES ('b', 2); COMMIT")
    for text in ("SELECT * FROM Hidden", "DELETE FROM HIDDEN WHERE true", "SELECT * FROM ORDERS"):
        with pytest.raises(Forbidden) as raised:
            db.sql(text, principal=granted)
        assert "hidden" not in str(raised.value)
    reader = Principal("bob", ROLES["reader"], "reader")
    assert db.sql("SELECT id FROM HIDDEN", principal=reader).row_count == 0
    with pytest.raises(Forbidden):
        db.sql("DELETE FROM HIDDEN WHERE true", principal=reader)


def test_unknown_names_and_the_cost_of_known_ones(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, code in (
        ("SELECT * FROM nothing", "TABLE_NOT_FOUND"),
        ("DELETE FROM nothing WHERE true", "TABLE_NOT_FOUND"),
        ("CONSUME FROM nothing", "TOPIC_NOT_FOUND"),
        ("DROP MATERIALIZED VIEW nothing", "VIEW_NOT_FOUND"),
        ("SELECT * FROM orders JOIN nothing USING (id)", "TABLE_NOT_FOUND"),
    ):
        with pytest.raises(NotFound, match="'nothing'") as raised:
            db.sql(text)
        assert raised.value.code == code
    looked_up: list[Any] = []
    monkeypatch.setattr(names.FindAlike, "run", lambda self, reader: looked_up.append(self))
    for text in ("SELECT * FROM Orders", "INSERT INTO Orders VALUES ('z', 1)", "PUBLISH TO App.News VALUES ('x')"):
        db.sql(text)
    assert not looked_up


def test_a_statement_that_has_written_does_not_go_on_with_another_name(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.sql("INSERT INTO Orders VALUES ('b', 2)")
    db.create_table("ORDERS", "id")
    db.sql("INSERT INTO ORDERS (id) VALUES ('kept')")
    writes = 0

    def execute(request: Any) -> Any:
        nonlocal writes
        if type(request).__name__ == "FindRows" and writes:
            db.sql("DROP TABLE Orders")
        result = db.execute(request)
        writes += type(request).__name__ == "DeleteRows"
        return result

    monkeypatch.setattr(limits, "SELECT_SLICE_ROWS", 1)
    with pytest.raises(NotFound, match="'Orders'"):
        Session(execute).run("TRUNCATE Orders")
    assert ids(db, "SELECT id FROM ORDERS") == ["kept"]
