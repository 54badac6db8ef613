"""BEGIN, COMMIT and ROLLBACK: statements that are written together, see each other, and fail together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import limits
from tailrace.check import check_database
from tailrace.database import Database
from tailrace.errors import Conflict, Error, Invalid, TooLarge, TransactionConflict
from tailrace.sql.session import Session
from tailrace.sql.transactions import from_text, to_text
from tailrace.storage.sqlite import SqliteEngine


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    database = Database(SqliteEngine(tmp_path / "data"), housekeeping_s=None)
    database.sql("CREATE TABLE accounts (id TEXT PRIMARY KEY, n BIGINT, raw BLOB) WITH (stream = NEW_AND_OLD_IMAGES)")
    database.sql("CREATE TABLE lines (o TEXT, n BIGINT, PRIMARY KEY (o, n)); CREATE TOPIC done")
    database.sql("INSERT INTO accounts (id, n) VALUES ('a', 10), ('b', 20)")
    yield database
    database.close()
    assert check_database(tmp_path / "data").findings == []


def rows(db: Database) -> dict[str, Any]:
    return {item["id"]: item["n"] for item in db.table("accounts").scan()}


def test_statements_are_committed_together(db: Database) -> None:
    before = db.table("accounts").stream_info().latest
    result = db.sql(
        """
        BEGIN;
        UPDATE accounts SET n = n - 5 WHERE id = 'a';
        UPDATE accounts SET n = n - 1 WHERE id = 'a' AND n = 5;
        INSERT INTO accounts (id, n, raw) VALUES ('c', 1, ?);
        DELETE FROM accounts WHERE id = 'b';
        INSERT INTO accounts (id, n) VALUES ('gone', 1);
        DELETE FROM accounts WHERE id = 'gone';
        PUBLISH TO done VALUES ('one'), ('two');
        SELECT id, n FROM accounts WHERE id = 'a';
        SELECT count(*) AS items FROM accounts;
        SELECT count(*) AS items FROM accounts WHERE id = 'b';
        COMMIT
        """,
        [b"\x00\xff"],
    )
    assert [each.row_count for each in result.results[1:7]] == [1, 1, 1, 1, 1, 1]
    assert result.results[8].rows == [{"id": "a", "n": 4}]
    assert result.results[9].rows == [{"items": 2}]
    assert result.results[10].rows == [{"items": 0}]
    assert (result.statement, result.facts["committed"]) == ("COMMIT", True)
    assert rows(db) == {"a": 4, "c": 1}
    changes = db.table("accounts").changes(after=before)
    assert {(change.event, change.keys["id"], change.sequence) for change in changes} == {
        (event, key, result.facts["sequence"]) for event, key in (("MODIFY", "a"), ("INSERT", "c"), ("REMOVE", "b"))
    }
    assert [message.payload for message in db.consume("done", None)] == [b"one", b"two"]


def test_rollback_and_errors_write_nothing(db: Database) -> None:
    before = rows(db)
    db.sql("BEGIN TRANSACTION; DELETE FROM accounts WHERE id = 'a'; PUBLISH TO done VALUES ('x'); ROLLBACK WORK")
    for text, code in (
        ("START TRANSACTION; DELETE FROM accounts WHERE id = 'a'", "TRANSACTION_OPEN"),
        ("BEGIN; DELETE FROM accounts WHERE id = 'a'; INSERT INTO accounts (id) VALUES ('b'); COMMIT", "DUPLICATE_KEY"),
        ("BEGIN; DELETE FROM accounts WHERE id = 'a'; BEGIN; COMMIT", "IN_TRANSACTION"),
        ("BEGIN; DELETE FROM accounts WHERE id = 'a'; CREATE TOPIC other; COMMIT", "IN_TRANSACTION"),
        ("BEGIN; DELETE FROM accounts WHERE id = 'a'; CONSUME FROM done GROUP 'g'; COMMIT", "IN_TRANSACTION"),
        ("BEGIN; DELETE FROM accounts WHERE id = 'a'; SELECT 1 / 0 FROM nowhere; COMMIT", None),
        ("COMMIT", "NO_TRANSACTION"),
        ("ROLLBACK", "NO_TRANSACTION"),
    ):
        with pytest.raises(Error) as refused:
            db.sql(text)
        assert code in (None, refused.value.code), text
    assert rows(db) == before
    assert db.consume("done", None).messages == []


def test_a_failed_transaction_takes_nothing_but_its_end(db: Database) -> None:
    session = Session(db.execute)
    session.run("BEGIN; DELETE FROM accounts WHERE id = 'a'; SHOW TOPICS; DESCRIBE accounts")
    with pytest.raises(Conflict):
        session.run("INSERT INTO accounts (id) VALUES ('b')")
    with pytest.raises(Invalid) as refused:
        session.run("SELECT * FROM accounts")
    assert refused.value.code == "TRANSACTION_FAILED"
    (ended,) = session.run("COMMIT")
    assert ended.facts["committed"] is False
    assert session.transaction is None
    assert rows(db) == {"a": 10, "b": 20}
    session.run("BEGIN ISOLATION LEVEL SERIALIZABLE")
    session.run("DELETE FROM accounts WHERE id = 'a'")
    session.run("COMMIT")
    assert rows(db) == {"b": 20}


def test_changes_of_others_are_conflicts(db: Database) -> None:
    for read in (
        "SELECT n FROM accounts WHERE id = 'a'",
        "SELECT sum(n) FROM accounts",
        "UPDATE accounts SET n = n + 1 WHERE id = 'a'",
        "DELETE FROM accounts WHERE id = 'a' AND n = 0",
    ):
        session = Session(db.execute)
        session.run(f"BEGIN; {read}; INSERT INTO accounts (id, n) VALUES ('new', 1)")
        db.sql("UPDATE accounts SET n = n + 1 WHERE id = 'a'")
        with pytest.raises(TransactionConflict):
            session.run("COMMIT")
        assert session.transaction is None
        assert "new" not in rows(db)
    session = Session(db.execute)
    session.run("BEGIN; SELECT n FROM accounts WHERE id = 'a'; INSERT INTO accounts (id, n) VALUES ('new', 1)")
    db.sql("UPDATE accounts SET n = n + 1 WHERE id = 'b'; INSERT INTO accounts (id, n) VALUES ('other', 1)")
    session.run("COMMIT")
    session.run("BEGIN; SELECT n FROM accounts WHERE id = 'a'")
    db.sql("UPDATE accounts SET n = n + 1 WHERE id = 'a'")
    with pytest.raises(TransactionConflict):
        session.run("SELECT n FROM accounts WHERE id = 'b'")


STATEMENTS = (
    "SELECT n FROM accounts WHERE id = 'a'",
    "SELECT count(*) AS n FROM accounts",
    "INSERT INTO accounts (id, n) VALUES ('c', 1)",
    "INSERT INTO accounts (id, n) VALUES ('a', 1) ON CONFLICT (id) DO UPDATE SET n = 5",
    "UPDATE accounts SET n = n + 1 WHERE n = 10",
    "DELETE FROM accounts WHERE id = 'nobody'",
    "INSERT INTO lines (o, n) SELECT id, n FROM accounts",
    "SELECT * FROM changes('accounts')",
)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_definitions_of_its_tables_are_compared(db: Database, statement: str) -> None:
    for alter in (
        "ALTER TABLE accounts ADD COLUMN more BIGINT DEFAULT 3",
        "ALTER TABLE accounts RENAME COLUMN raw TO bytes",
        "ALTER TABLE accounts ADD CONSTRAINT positive CHECK (n > 0)",
        "CREATE INDEX by_n ON accounts (n)",
        "ALTER TABLE accounts SET (ttl = n)",
        "ALTER TABLE accounts DISABLE STREAM",
        "ALTER TABLE accounts ENABLE STREAM",
        "DROP TABLE accounts; CREATE TABLE accounts (id TEXT PRIMARY KEY, n BIGINT) WITH (stream = NEW_IMAGE)",
    ):
        session = Session(db.execute)
        session.run(f"BEGIN; {statement}; PUBLISH TO done VALUES ('x')")
        db.sql(alter)
        with pytest.raises(TransactionConflict):
            session.run("COMMIT")
    assert db.consume("done", None).messages == []


def test_a_dropped_table_is_a_conflict(db: Database) -> None:
    session = Session(db.execute)
    session.run("BEGIN; SELECT n FROM lines")
    db.sql("DROP TABLE lines")
    with pytest.raises(TransactionConflict):
        session.run("SELECT n FROM accounts")


@pytest.mark.parametrize(
    ("read", "write"),
    [
        ("SELECT count(*) AS n FROM changes('accounts')", "UPDATE accounts SET n = n + 1 WHERE id = 'a'"),
        ("SELECT * FROM changes('accounts') WHERE sequence > 1000000", "DELETE FROM accounts WHERE id = 'a'"),
        ("SELECT count(*) AS n FROM topic('done')", "PUBLISH TO done VALUES ('other')"),
        ("SELECT * FROM topic('done') WHERE \"offset\" > 99", "DROP TOPIC done; CREATE TOPIC done"),
    ],
)
def test_changes_and_messages_that_it_reads_are_compared(db: Database, read: str, write: str) -> None:
    session = Session(db.execute)
    session.run(f"BEGIN; {read}; {read}; INSERT INTO lines (o, n) VALUES ('o', 1)")
    db.sql("INSERT INTO lines (o, n) VALUES ('other', 1)")  # neither of the table nor of the topic
    session.run("COMMIT")
    session.run(f"BEGIN; {read}; INSERT INTO lines (o, n) VALUES ('o', 2)")
    db.sql(write)
    with pytest.raises(TransactionConflict):
        session.run("COMMIT")
    session.run(f"BEGIN; {read}")
    session.run("DESCRIBE TOPIC done; SHOW TOPICS; COMMIT")


def test_it_may_span_requests(db: Database) -> None:
    text = ""
    for statement in (
        "BEGIN",
        "INSERT INTO accounts (id, n, raw) VALUES ('c', 1, X'00ff')",
        "DELETE FROM accounts WHERE id = 'a'",
        "PUBLISH TO done VALUES ('x')",
        "UPDATE accounts SET n = n + 1 WHERE id = 'c'",
    ):
        session = Session(db.execute)
        session.resume(from_text(text))
        session.run(statement)
        text = to_text(session.transaction)
        assert text
    assert rows(db) == {"a": 10, "b": 20}
    session = Session(db.execute)
    session.resume(from_text(text))
    session.run("COMMIT")
    assert to_text(session.transaction) == ""
    assert rows(db) == {"b": 20, "c": 2}
    assert db.table("accounts").get("c") == {"id": "c", "n": 2, "raw": b"\x00\xff"}
    for wrong in ("?", "AAAA", text[:-8], "W1tbInQiLHsiaWQiOjF9XV0sW10sW10sIiIsZmFsc2Vd"):
        with pytest.raises(Invalid):
            from_text(wrong)


def test_what_is_too_large_is_refused(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SELECT_SLICE_ROWS", 5)
    values = ", ".join(f"('o', {number})" for number in range(10))
    db.sql(f"INSERT INTO lines (o, n) VALUES {values}")
    with pytest.raises(TooLarge) as refused:
        db.sql("BEGIN; SELECT * FROM lines; COMMIT")
    assert refused.value.code == "TRANSACTION_TOO_LARGE"
    db.sql("BEGIN; SELECT * FROM lines WHERE o = 'o' AND n = 3; COMMIT")
    monkeypatch.setattr(limits, "TRANSACTION_OPERATIONS_MAX", 9)
    with pytest.raises(TooLarge):
        db.sql(f"BEGIN; INSERT INTO lines (o, n) VALUES {values.replace('o', 'p')}; COMMIT")


def test_statements_with_any_condition_see_the_rows_of_their_transaction(tmp_path: Path) -> None:
    with tailrace.open(tmp_path / "any") as db:
        db.sql("CREATE TABLE t (id TEXT PRIMARY KEY, n BIGINT, k TEXT)")
        db.sql("INSERT INTO t VALUES ('a', 1, 'x'), ('b', 2, 'x'), ('c', 3, 'y')")
        db.sql("SELECT * FROM t")  # now its columns are in the cache, without what the transaction writes
        found = db.sql("""
            BEGIN; INSERT INTO t VALUES ('d', 4, 'x'); UPDATE t SET n = n + 100 WHERE k = 'x';
            DELETE FROM t WHERE n > 102 RETURNING id; SELECT count(*) AS n FROM t; SELECT sum(n) AS n FROM t; COMMIT""")
        rows = [each.rows for each in found.results]
        assert (rows[3], rows[4], rows[5]) == ([{"id": "d"}], [{"n": 3}], [{"n": 206}])
        assert db.sql("SELECT sum(n) AS n, count(*) AS c FROM t").rows == [{"n": 206, "c": 3}]
