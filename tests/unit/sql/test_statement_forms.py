"""Forms of statements that the reference promises: FROM and VALUES first, texts between $$, bytes, short names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import Database
from tailrace.access import ROLES, Principal
from tailrace.sql.error import SqlError


@pytest.fixture
def db(data_dir: Path) -> Iterator[Database]:
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        db.sql(
            "CREATE TABLE things (id TEXT PRIMARY KEY, b BLOB); INSERT INTO things VALUES ('a', X'00ff'), ('c', X'01')"
        )
        yield db


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FROM things ORDER BY id", [{"id": "a", "b": "AP8="}, {"id": "c", "b": "AQ=="}]),
        ("FROM things SELECT id WHERE id = 'a'", [{"id": "a"}]),
        ("from (VALUES (1)) AS v(x)", [{"x": 1}]),
        ("VALUES (1, 'a'), (2, 'b')", [{"col0": 1, "col1": "a"}, {"col0": 2, "col1": "b"}]),
        ("(SELECT 1 AS n) UNION ALL SELECT 2", [{"n": 1}, {"n": 2}]),
        ("SELECT $$it's; a -- text$$ AS it", [{"it": "it's; a -- text"}]),
        ("SELECT $q$a $$ b$q$ AS it", [{"it": "a $$ b"}]),
        ("SELECT $$$$ AS it", [{"it": ""}]),
        ("SELECT X'00ff' AS it, x'' AS none", [{"it": "AP8=", "none": ""}]),
        ("SELECT id FROM things WHERE b = X'00FF'", [{"id": "a"}]),
        ("SELECT id FROM things WHERE id = $$c$$", [{"id": "c"}]),
    ],
)
def test_a_query_may_begin_and_write_its_texts_so(db: Database, text: str, expected: list[dict[str, Any]]) -> None:
    assert db.sql(text).rows == expected
    assert db.sql(f"{text}; SHOW TABLES").results[0].rows == expected


def test_texts_between_dollars_work_in_every_statement(db: Database) -> None:
    db.sql("INSERT INTO things VALUES ($$it's$$, X'aa'); UPDATE things SET b = X'bb' WHERE id = $$it's$$")
    assert db.table("things").get("it's") == {"id": "it's", "b": b"\xbb"}
    db.sql('CREATE TOPIC news; PUBLISH TO news VALUES ($json${"a": "$$"}$json$)')
    assert db.sql("SELECT value FROM topic($$news$$)").rows == [{"value": '{"a": "$$"}'}]
    db.sql("DELETE FROM things WHERE id = $x$it's$x$")
    assert db.table("things").get("it's") is None


def test_a_parameter_beside_dollars_is_one(db: Database) -> None:
    assert db.sql("SELECT $$a$$ || $1 || $$b$$ AS it", ["-"]).rows == [{"it": "a-b"}]


@pytest.mark.parametrize("text", ["SELECT $$a", "SELECT $q$a$$", "SELECT $q$a$r$", "SELECT $ 1"])
def test_an_unterminated_text_is_reported(db: Database, text: str) -> None:
    with pytest.raises(SqlError, match=r"end with \$\$"):
        db.sql(text)


@pytest.mark.parametrize("name", ["a", "ab", "A", "a1"])
def test_names_of_one_and_two_characters_name_tables(db: Database, name: str) -> None:
    db.sql(f"CREATE TABLE {name} (id TEXT PRIMARY KEY, n BIGINT) WITH (stream = true)")
    db.sql(f"INSERT INTO {name} VALUES ('x', 1); UPDATE {name} SET n = n + 1 WHERE id = 'x'")
    assert db.sql(f"SELECT {name}.n FROM {name}").rows == [{"n": 2}]
    assert [row["event"] for row in db.sql(f"SELECT event FROM changes('{name}') ORDER BY sequence").rows] == [
        "INSERT",
        "MODIFY",
    ]
    assert db.sql(f"DROP TABLE {name}").facts == {"dropped": True}


def test_current_user_is_the_caller_and_a_column_of_that_name_goes_first(db: Database) -> None:
    ann = Principal("ann", ROLES["dba"], "dba")
    assert db.sql("SELECT current_user, session_user, user", principal=ann).rows == [
        {"current_user": "ann", "session_user": "ann", "user": "ann"}
    ]
    assert db.sql("SELECT id FROM things WHERE current_user = 'ann' AND id = 'a'", principal=ann).rows == [{"id": "a"}]
    assert db.sql("SELECT current_user AS it").rows == [{"it": "system"}]
    db.sql('CREATE TABLE notes (id TEXT PRIMARY KEY, "user" TEXT)')
    db.sql("INSERT INTO notes VALUES ('n', 'bob')")
    assert db.sql("SELECT user FROM notes", principal=ann).rows == [{"user": "bob"}]
