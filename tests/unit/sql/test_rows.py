"""Tables and rows in SQL: what is kept, what is refused with the column's name, and what an update sees."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace.check import check_database
from tailrace.database import Database
from tailrace.errors import Conflict, Error, InUse, Invalid, NotFound, TableNotFound
from tailrace.sql.commands import InsertRows
from tailrace.sql.error import SqlError, marked
from tailrace.sql.session import Result, Session

EVERYTHING = """
    CREATE TABLE things (
        id TEXT PRIMARY KEY, t TEXT, i BIGINT, d DOUBLE PRECISION, n DECIMAL, b BOOLEAN, x BLOB, j JSON
    ) WITH (stream = true)
"""
TREE = {"a": [1, Decimal("2.5"), None, True], "b": {"c": "d"}}


@pytest.fixture
def db(data_dir: Path) -> Iterator[Database]:
    with tailrace.open(data_dir, housekeeping_s=None) as opened:
        yield opened
    assert check_database(data_dir).findings == []


def run(db: Database, text: str, *params: Any) -> Result:
    return Session(db.execute).run(text, params)[-1]


def refused(db: Database, text: str, *params: Any) -> Error:
    with pytest.raises(Error) as caught:
        run(db, text, *params)
    return caught.value


# -- tables


def test_a_table_is_made_described_and_dropped(db: Database) -> None:
    made = "CREATE TABLE orders (customer TEXT, number BIGINT, total DECIMAL NOT NULL, expires BIGINT, "
    run(db, made + "PRIMARY KEY (customer, number)) WITH (stream = 'NEW_IMAGE', ttl = expires)")
    found = run(db, "DESCRIBE orders")
    assert [tuple(row.values()) for row in found.rows] == [
        ("customer", "TEXT", False, "PARTITION"),
        ("number", "BIGINT", False, "SORT"),
        ("total", "DECIMAL", False, None),
        ("expires", "BIGINT", True, None),
    ]
    assert (found.facts["stream"], found.facts["ttl"], found.facts["items"]) == ("NEW_IMAGE", "expires", 0)
    assert run(db, "CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY)").facts == {"created": False}
    assert isinstance(refused(db, "CREATE TABLE orders (id TEXT PRIMARY KEY)"), InUse)
    (row,) = run(db, "SHOW TABLES").rows
    assert (row["name"], row["key"], row["stream"]) == ("orders", "customer, number", "NEW_IMAGE")
    assert run(db, "DROP TABLE orders").facts == {"dropped": True}
    assert run(db, "DROP TABLE IF EXISTS orders").facts == {"dropped": False}
    assert isinstance(refused(db, "DROP TABLE orders"), TableNotFound)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("CREATE TABLE things (id BOOLEAN PRIMARY KEY)", "WRONG_TYPE"),
        ("CREATE TABLE things (id JSON PRIMARY KEY)", "WRONG_TYPE"),
        ("CREATE TABLE things (id TEXT PRIMARY KEY) WITH (ttl = expires)", "UNKNOWN_COLUMN"),
        ("CREATE TABLE things (id TEXT PRIMARY KEY, e TEXT) WITH (ttl = e)", "WRONG_TYPE"),
    ],
)
def test_tables_that_cannot_be(db: Database, text: str, code: str) -> None:
    assert refused(db, text).code == code
    assert run(db, "SHOW TABLES").rows == []


def test_streams_are_enabled_and_disabled(db: Database) -> None:
    run(db, "CREATE TABLE things (id TEXT PRIMARY KEY)")
    assert run(db, "INSERT INTO things VALUES ('a')").facts == {"sequence": None}
    run(db, "ALTER TABLE things ENABLE STREAM WITH (view = 'KEYS_ONLY')")
    assert run(db, "DESCRIBE things").facts["stream"] == "KEYS_ONLY"
    sequence = run(db, "INSERT INTO things VALUES ('b')").facts["sequence"]
    assert [change.sequence for change in db.table("things").changes()] == [sequence]
    run(db, "ALTER TABLE things DISABLE STREAM")
    assert run(db, "DESCRIBE things").facts["stream"] is None


# -- values


def test_every_type_is_kept(db: Database) -> None:
    run(db, EVERYTHING)
    run(
        db,
        """INSERT INTO things VALUES
            ('a', 'it''s', -7, 1.5, 12345678901234567890.12345, TRUE, X'00ff', '{"k": [1, 2.50]}')""",
    )
    run(
        db,
        "INSERT INTO things VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        "b",
        "é",
        2**63 - 1,
        0.1,
        Decimal("0.10"),
        False,
        b"\x00",
        TREE,
    )
    run(db, "INSERT INTO things (id, d, j) VALUES ('c', 3, '\"text\"'), ('d', 1e3, '5')")
    table = db.table("things")
    assert table.get("a") == {
        "id": "a", "t": "it's", "i": -7, "d": Decimal("1.5"), "n": Decimal("12345678901234567890.12345"), "b": True,
        "x": b"\x00\xff", "j": {"k": [1, Decimal("2.5")]},
    }  # fmt: skip
    assert table.get("b") == {
        "id": "b", "t": "é", "i": 2**63 - 1, "d": Decimal("0.1"), "n": Decimal("0.1"), "b": False, "x": b"\x00",
        "j": TREE,
    }  # fmt: skip
    assert table.get("c") == {"id": "c", "d": 3, "j": "text"}
    assert table.get("d") == {"id": "d", "d": 1000, "j": 5}


def test_null_is_no_attribute(db: Database) -> None:
    run(db, EVERYTHING)
    run(db, "INSERT INTO things (id, t, i) VALUES ('a', NULL, ?)", None)
    assert db.table("things").get("a") == {"id": "a"}
    run(db, "UPDATE things SET t = 'x' WHERE id = 'a'; UPDATE things SET t = NULL, i = i + 1 WHERE id = 'a'")
    assert db.table("things").get("a") == {"id": "a"}


@pytest.mark.parametrize(
    ("column", "value", "shown"),
    [
        ("t", "5", "column 't' is TEXT and cannot hold the number 5"),
        ("t", "X'00'", "column 't' is TEXT and cannot hold 1 bytes"),
        ("i", "'5'", "column 'i' is BIGINT and cannot hold the text '5'"),
        ("i", "1.5", "column 'i' is BIGINT and cannot hold the number 1.5"),
        ("i", "9223372036854775808", "column 'i' is BIGINT"),
        ("i", "1e99999", "column 'i' is BIGINT"),
        ("i", "TRUE", "column 'i' is BIGINT and cannot hold TRUE"),
        ("d", "'x'", "column 'd' is DOUBLE"),
        ("d", "1e400", "column 'd': "),
        ("n", "FALSE", "column 'n' is DECIMAL"),
        ("b", "1", "column 'b' is BOOLEAN"),
        ("x", "'text'", "column 'x' is BLOB"),
        ("j", "'{\"a\": '", "column 'j' is JSON"),
    ],
)
def test_a_wrong_type_names_the_column_and_writes_nothing(db: Database, column: str, value: str, shown: str) -> None:
    run(db, EVERYTHING)
    error = refused(db, f"INSERT INTO things (id, {column}) VALUES ('a', {value})")
    assert isinstance(error, Invalid) and shown in str(error)
    run(db, "INSERT INTO things (id) VALUES ('a')")
    assert shown in str(refused(db, f"UPDATE things SET {column} = {value} WHERE id = 'a'"))
    assert db.table("things").get("a") == {"id": "a"}


def test_floats_are_taken_as_they_show(db: Database) -> None:
    run(db, EVERYTHING)
    run(db, "INSERT INTO things (id, d, i, j) VALUES ('a', ?, ?, ?)", 0.1, 3.0, {"f": [1.5]})
    assert db.table("things").get("a") == {"id": "a", "d": Decimal("0.1"), "i": 3, "j": {"f": [Decimal("1.5")]}}
    assert "column 'd'" in str(refused(db, "INSERT INTO things (id, d) VALUES ('b', ?)", float("nan")))


# -- INSERT


def test_an_existing_key_is_refused_and_nothing_is_written(db: Database) -> None:
    run(db, EVERYTHING)
    run(db, "INSERT INTO things (id, i) VALUES ('b', 1)")
    error = refused(db, "INSERT INTO things (id, i) VALUES ('a', 2), ('b', 2), ('c', 2)")
    assert isinstance(error, Conflict) and error.code == "DUPLICATE_KEY"
    assert "row 2" in str(error) and "id = 'b'" in str(error)
    assert db.table("things").count() == 1
    assert refused(db, "INSERT INTO things (id) VALUES ('x'), ('x')").code == "DUPLICATE_KEY"
    assert run(db, "INSERT OR REPLACE INTO things (id, t) VALUES ('a', 'new'), ('b', 'new')").row_count == 2
    assert db.table("things").get("b") == {"id": "b", "t": "new"}


def test_rows_of_one_insert_are_one_transaction(db: Database) -> None:
    run(db, EVERYTHING)
    done = run(db, "INSERT INTO things (id) VALUES ('a'), ('b'), ('c')")
    assert (done.row_count, done.message) == (3, "3 rows inserted")
    changes = list(db.table("things").changes())
    assert [(change.sequence, change.index) for change in changes] == [(done.facts["sequence"], at) for at in range(3)]


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("INSERT INTO things (id, nope) VALUES ('a', 1)", "UNKNOWN_COLUMN", "no column 'nope'; it has id, t, i"),
        ("INSERT INTO things VALUES ('a', 'b')", "WRONG_COUNT", "2 values"),
        ("INSERT INTO things (t) VALUES ('a')", "NULL_VALUE", "column 'id'"),
        ("INSERT INTO things (id) VALUES (NULL)", "NULL_VALUE", "column 'id'"),
        ("INSERT INTO things (id, i) VALUES ('a', 1), ('b', 'x')", "WRONG_TYPE", "row 2: column 'i'"),
        ("INSERT INTO things (id, t) VALUES ('a', t || 'x')", "UNKNOWN_COLUMN", "'t'"),
        ("INSERT INTO nothing (id) VALUES ('a')", "TABLE_NOT_FOUND", "nothing"),
    ],
)
def test_inserts_that_are_refused(db: Database, text: str, code: str, says: str) -> None:
    run(db, EVERYTHING)
    error = refused(db, text)
    assert error.code == code and says in str(error)
    assert db.table("things").count() == 0


def test_not_null(db: Database) -> None:
    run(db, "CREATE TABLE things (id TEXT PRIMARY KEY, n BIGINT NOT NULL, t TEXT NULL)")
    assert refused(db, "INSERT INTO things (id) VALUES ('a')").code == "NULL_VALUE"
    assert refused(db, "INSERT INTO things (id, n) VALUES ('a', NULL)").code == "NULL_VALUE"
    run(db, "INSERT INTO things (id, n) VALUES ('a', 1)")
    assert refused(db, "UPDATE things SET n = NULL WHERE id = 'a'").code == "NULL_VALUE"
    assert refused(db, "UPDATE things SET n = t WHERE id = 'a'").code == "NULL_VALUE"


def test_expressions_and_parameters_in_values(db: Database) -> None:
    run(db, EVERYTHING)
    run(db, "INSERT INTO things (id, t, i) VALUES (lower(?), 'a' || ?, ? * 2 + 1)", "KEY", "b", 20)
    assert db.table("things").get("key") == {"id": "key", "t": "ab", "i": 41}


def test_a_table_without_declared_columns(db: Database) -> None:
    db.create_table("free", partition_key="pk", sort_key=("sk", "N"))
    assert refused(db, "INSERT INTO free VALUES ('a', 1)").code == "COLUMNS_NEEDED"
    run(db, "INSERT INTO free (pk, sk, any) VALUES ('a', 1, ?)", {"x": 0.5})
    run(db, "UPDATE free SET more = sk + 1 WHERE pk = 'a' AND sk = 1 AND missing IS NULL")
    assert db.table("free").get(("a", 1)) == {"pk": "a", "sk": 1, "any": {"x": Decimal("0.5")}, "more": 2}
    assert [row["column"] for row in run(db, "DESCRIBE free").rows] == ["pk", "sk"]
    assert run(db, "DELETE FROM free WHERE pk = 'a' AND sk = 1").row_count == 1


# -- UPDATE and DELETE


def test_an_update_sees_the_row_as_it_was(db: Database) -> None:
    run(db, EVERYTHING)
    run(db, "INSERT INTO things (id, i, t) VALUES ('a', 1, 'x')")
    done = run(db, "UPDATE things SET i = i + ?, t = t || i WHERE id = ? AND i < ?", 10, "a", 5)
    assert (done.row_count, done.message) == (1, "1 row updated")
    assert db.table("things").get("a") == {"id": "a", "i": 11, "t": "x1"}


@pytest.mark.parametrize(
    "condition", ["i > 1", "i > n", "missing_is_null AND FALSE", "(i = 2 OR t = 'y')", "n = 1", "?"]
)
def test_conditions_that_are_not_true_leave_the_row_alone(db: Database, condition: str) -> None:
    run(db, EVERYTHING.replace("t TEXT,", "t TEXT, missing_is_null BOOLEAN,"))
    run(db, "INSERT INTO things (id, i, t) VALUES ('a', 1, 'x')")
    params = [False] if "?" in condition else []
    assert run(db, f"UPDATE things SET i = 5 WHERE id = 'a' AND {condition}", *params).row_count == 0
    assert run(db, f"DELETE FROM things WHERE {condition} AND id = 'a'", *params).row_count == 0
    assert db.table("things").get("a") == {"id": "a", "i": 1, "t": "x"}


def test_rows_that_are_not_there(db: Database) -> None:
    run(db, EVERYTHING)
    assert run(db, "UPDATE things SET i = 1 WHERE id = 'a'").row_count == 0
    assert run(db, "UPDATE things SET i = 1 WHERE id = NULL").row_count == 0
    assert run(db, "DELETE FROM things WHERE id = ?", None).row_count == 0
    assert db.table("things").count() == 0


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("UPDATE things SET id = 'b' WHERE id = 'a'", "KEY_COLUMN"),
        ("UPDATE things SET nope = 1 WHERE id = 'a'", "UNKNOWN_COLUMN"),
        ("UPDATE things SET i = nope WHERE id = 'a'", "UNKNOWN_COLUMN"),
        ("UPDATE things SET i = 1 WHERE id = 'a' AND nope = 1", "UNKNOWN_COLUMN"),
        ("UPDATE things SET i = 1 WHERE id = 5", "KIND_MISMATCH"),
        ("UPDATE things SET i = t WHERE id = 'a'", "WRONG_TYPE"),
        ("UPDATE things SET i = OLD.i WHERE id = 'a'", "INVALID_EXPRESSION"),
    ],
)
def test_updates_that_are_refused(db: Database, text: str, code: str) -> None:
    run(db, EVERYTHING)
    run(db, "INSERT INTO things (id, i, t) VALUES ('a', 1, 'x')")
    assert refused(db, text).code == code
    assert db.table("things").get("a") == {"id": "a", "i": 1, "t": "x"}


def test_a_mistake_in_an_expression_is_reported_with_its_place(db: Database) -> None:
    run(db, EVERYTHING)
    error = refused(db, "UPDATE things\nSET i = 1,\n    t = upper(nope)\nWHERE id = 'a'")
    assert isinstance(error, SqlError)
    assert (marked(error)[1:], error.line, error.column) == ((3, 15), 3, 15)
    assert str(error).endswith("\n      t = upper(nope)\n                ^")


def test_a_delete(db: Database) -> None:
    run(db, EVERYTHING)
    run(db, "INSERT INTO things (id, i) VALUES ('a', 1)")
    assert run(db, "DELETE FROM things WHERE (i BETWEEN 0 AND 1) AND (id = 'a')").row_count == 1
    assert [change.event for change in db.table("things").changes()] == ["INSERT", "REMOVE"]


def test_updates_from_many_threads_lose_nothing(db: Database) -> None:
    run(db, EVERYTHING)
    run(db, "INSERT INTO things (id, i) VALUES ('a', 0)")

    def count() -> None:
        for _ in range(25):
            run(db, "UPDATE things SET i = i + 1 WHERE id = 'a'")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    item = db.table("things").get("a")
    assert item is not None and item["i"] == 100


def test_a_table_recreated_meanwhile_is_another(db: Database) -> None:
    run(db, EVERYTHING)
    with pytest.raises(Conflict) as caught:
        db.execute(InsertRows("things", "another uuid", ({"id": {"S": "a"}},)))
    assert caught.value.code == "TABLE_CHANGED"
    with pytest.raises(NotFound):
        db.execute(InsertRows("nothing", "another uuid", ()))


def test_what_is_too_large_is_refused(db: Database) -> None:
    run(db, EVERYTHING)
    assert isinstance(refused(db, "INSERT INTO things (id, t) VALUES ('a', ?)", "x" * 500_000), Invalid)
    run(db, "INSERT INTO things (id, t) VALUES ('a', ?)", "x" * 250_000)
    assert isinstance(refused(db, "UPDATE things SET t = t || t WHERE id = 'a'"), Invalid)


# -- values that cannot be worked out


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("replace(replace(?, 'a', ?), 'b', ?)", "longer than"), ("CAST(t AS BIGINT)", "cannot be cast"),
        ("t::BOOLEAN", "cannot be cast"), ("i / 0", "division by zero"), ("i % 0", "division by zero"),
        ("n * n", "more than 38 digits"), ("CAST(i AS TINYINT)", "cannot be cast"), ("concat(x, t)", "binary"),
        ("CASE WHEN CAST(t AS BIGINT) > 1 THEN 'a' END", "cannot be cast"), ("j + 1", "is not a number"),
        ("upper(j)", "is not a text"),
    ],
)  # fmt: skip
def test_an_update_that_cannot_work_its_value_out_changes_nothing(db: Database, value: str, why: str) -> None:
    run(db, EVERYTHING)
    number = "1234567890123456789012345678901234567"
    run(db, f"INSERT INTO things (id, t, i, n, x, j) VALUES ('a', 'old', 300, {number}, X'ff', '[1]')")
    before = run(db, "SELECT * FROM things").rows
    params = ("a" * 1000, "b" * 600, "c" * 500) if "?" in value else ()
    error = refused(db, f"UPDATE things SET d = 1, t = {value} WHERE id = 'a'", *params)
    assert (error.status, error.code) == (400, "NO_RESULT")
    assert "column 't'" in str(error) and why in str(error)
    assert run(db, "SELECT * FROM things").rows == before


def test_an_insert_that_cannot_work_a_value_out_inserts_nothing(db: Database) -> None:
    run(db, EVERYTHING)
    error = refused(db, "INSERT INTO things (id, i) VALUES ('a', 1), ('b', CAST('x' AS BIGINT))")
    assert error.code == "NO_RESULT" and "row 2" in str(error)
    assert run(db, "SELECT * FROM things").rows == []


def test_null_still_comes_of_null_and_of_who_asks_for_it(db: Database) -> None:
    run(db, EVERYTHING)
    run(db, "INSERT INTO things (id, t, i) VALUES ('a', 'old', 3)")
    for value in ("i + NULL", "i / NULLIF(0, 0)", "TRY_CAST(t AS BIGINT)", "d + 1", "CASE WHEN t = 'x' THEN 1 END"):
        run(db, f"UPDATE things SET i = {value} WHERE id = 'a'")
        assert run(db, "SELECT i FROM things").rows == [{"i": None}], value
        run(db, "UPDATE things SET i = 3 WHERE id = 'a'")


def test_a_condition_that_cannot_be_worked_out_is_unknown(db: Database) -> None:
    run(db, EVERYTHING)
    run(db, "INSERT INTO things (id, t) VALUES ('a', 'old')")
    assert run(db, "UPDATE things SET i = 1 WHERE id = 'a' AND CAST(t AS BIGINT) > 0").row_count == 0
    assert run(db, "DELETE FROM things WHERE id = 'a' AND 1 / 0 = 1").row_count == 0
