"""Types, defaults and constraints of declared columns, which hold for every API; ALTER TABLE, indexes, settings."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import tailrace
from tailrace import limits
from tailrace.database import Database
from tailrace.errors import Error, Invalid
from tailrace.tables.operations import FindTable

ID = "123e4567-e89b-12d3-a456-42661417400"
TABLE = """
CREATE TABLE v (id UUID PRIMARY KEY, page VARCHAR(5) NOT NULL DEFAULT '/', at TIMESTAMP, day DATE,
                n BIGINT DEFAULT 1 + 2 CHECK (n >= 0), CONSTRAINT local CHECK (page LIKE '/%'))
WITH (stream = true, retention_seconds = 60, retention_records = NULL)
"""


@pytest.fixture
def db(data_dir: Path) -> Iterator[Database]:
    with tailrace.open(data_dir, housekeeping_s=None) as opened:
        opened.sql(TABLE)
        yield opened


def refused(db: Database, text: str, *params: Any) -> str | None:
    before = db.sql("SELECT * FROM v ORDER BY id").rows, db.sql("DESCRIBE v").rows
    with pytest.raises(Error) as raised:
        db.sql(text, params)
    assert (db.sql("SELECT * FROM v ORDER BY id").rows, db.sql("DESCRIBE v").rows) == before
    return raised.value.code


def test_values_of_the_new_types(db: Database) -> None:
    rows = [
        (f"{ID}0".upper(), "2026-01-28 12:00:00+02:00", "2026-01-28"),
        (UUID(f"{ID}1"), datetime(2026, 1, 28, 10, tzinfo=UTC), date(2026, 1, 28)),
        (f"{ID}2", "2026-01-28T10:00:00", "2026-01-28"),
    ]
    for row in rows:
        db.sql("INSERT INTO v (id, at, day) VALUES (?, ?, ?)", row)
    assert {tuple(item.values()) for item in db.table("v").scan()} == {
        (f"{ID}{n}", "2026-01-28T10:00:00.000000", "2026-01-28", "/", 3) for n in range(3)
    }
    found = db.sql(
        "SELECT count(*) AS c, typeof(max(at)) AS a, typeof(max(day)) AS d FROM v WHERE at = '2026-01-28 10:00'"
    )
    assert found.rows == [{"c": 3, "a": "TIMESTAMP", "d": "DATE"}]
    for name, value in (("at", "soon"), ("day", "2026-13-01"), ("id", "x"), ("at", 5), ("day", datetime.now(UTC))):
        columns = "id" if name == "id" else f"id, {name}"
        params = [value] if name == "id" else [f"{ID}9", value]
        assert (
            refused(db, f"INSERT INTO v ({columns}) VALUES ({', '.join('?' * len(params))})", *params) == "WRONG_TYPE"
        )


def test_times_are_keys(db: Database) -> None:
    db.sql("CREATE TABLE log (who TEXT, at TIMESTAMP, PRIMARY KEY (who, at))")
    for day in range(1, 6):
        db.sql("INSERT INTO log VALUES ('a', ?)", [f"2026-01-0{day}"])
    text = "SELECT at FROM log WHERE who = 'a' AND at > '2026-01-02' AND at <= '2026-01-04 00:00:00'"
    assert [row["at"] for row in db.sql(f"{text} ORDER BY at").rows] == ["2026-01-03T00:00:00", "2026-01-04T00:00:00"]
    assert db.sql(f"EXPLAIN {text}").rows[0]["step"].startswith("range of log by who, at")


VIOLATIONS = [
    ({"page": "/too-long"}, "WRONG_TYPE"),
    ({"page": None}, "NULL_VALUE"),
    ({"page": "x"}, "CONSTRAINT"),
    ({"n": -1}, "CONSTRAINT"),
    ({"at": "soon"}, "WRONG_TYPE"),
    ({"day": "2026-1-1"}, "WRONG_TYPE"),
]


@pytest.mark.parametrize(("given", "code"), VIOLATIONS)
def test_constraints_hold_for_every_api(db: Database, given: dict[str, Any], code: str) -> None:
    item = {"id": f"{ID}0", "page": "/", "n": 1}
    table = db.table("v")
    table.put(item)
    bad = {name: value for name, value in {**item, **given}.items() if value is not None}
    assert table.get(f"{ID}0") == item
    (name,) = given
    writes = [
        lambda: table.put(bad),
        lambda: table.put({**bad, "id": f"{ID}1"}),
        lambda: db.batch_write([tailrace.Put("v", {**each, "id": f"{ID}{n}"}) for n, each in ((2, item), (3, bad))]),
        lambda: db.transact_write([tailrace.Put("v", {**item, "id": f"{ID}4"}), tailrace.Put("v", bad)]),
        lambda: table.update(f"{ID}0", "REMOVE #n" if given[name] is None else "SET #n = :v", names={"#n": name},
                             **({} if given[name] is None else {"values": {":v": given[name]}})),
        lambda: db.sql(f"UPDATE v SET {name} = ? WHERE true", [given[name]]),
    ]  # fmt: skip
    for write in writes:
        with pytest.raises(Invalid) as raised:
            write()
        assert raised.value.code == code
        assert list(table.scan()) == [item]


def test_null_passes_a_check(db: Database) -> None:
    db.table("v").put({"id": f"{ID}0", "page": "/"})
    assert db.sql("UPDATE v SET n = NULL WHERE true").row_count == 1


def test_tables_without_constraints_pay_nothing(db: Database) -> None:
    db.sql("CREATE TABLE plain (id TEXT PRIMARY KEY, n BIGINT, t TEXT DEFAULT 'x')")
    assert db.execute(FindTable("plain")).plain and not db.execute(FindTable("v")).plain


def test_columns_are_added_dropped_and_renamed(db: Database) -> None:
    db.sql("INSERT INTO v (id) VALUES (?)", [f"{ID}0"])
    db.sql("ALTER TABLE v ADD COLUMN agent VARCHAR(9) NOT NULL DEFAULT 'none' CHECK (agent <> 'bad')")
    assert db.table("v").get(f"{ID}0")["agent"] == "none"
    assert refused(db, "ALTER TABLE v ADD more TEXT NOT NULL") == "NULL_VALUE"
    assert refused(db, "ALTER TABLE v ADD COLUMN AGENT TEXT") == "COLUMN_EXISTS"
    assert db.sql("ALTER TABLE v ADD COLUMN IF NOT EXISTS agent TEXT").facts == {"added": False}
    assert refused(db, "ALTER TABLE v DROP COLUMN agent") == "COLUMN_USED"
    assert refused(db, "ALTER TABLE v RENAME page TO path") == "COLUMN_USED"
    assert refused(db, "ALTER TABLE v DROP id") == "COLUMN_USED"
    assert refused(db, "ALTER TABLE v DROP nope") == "UNKNOWN_COLUMN"
    assert db.sql("ALTER TABLE v DROP COLUMN IF EXISTS nope").facts == {"dropped": False}
    db.sql("ALTER TABLE v DROP CONSTRAINT v_check_2; ALTER TABLE v RENAME COLUMN Agent TO browser")
    assert db.sql("SELECT browser FROM v").rows == [{"browser": "none"}]
    db.sql("ALTER TABLE v DROP COLUMN browser")
    assert "browser" not in db.table("v").get(f"{ID}0")
    assert [change.event for change in db.table("v").changes()] == ["INSERT", "MODIFY", "MODIFY", "MODIFY"]
    assert refused(db, "ALTER TABLE v ADD CONSTRAINT local CHECK (n > 0)") == "CONSTRAINT_EXISTS"
    assert refused(db, "ALTER TABLE v ADD CONSTRAINT large CHECK (n > 100)") == "CONSTRAINT"
    assert refused(db, "ALTER TABLE v DROP CONSTRAINT nope") == "NO_CONSTRAINT"
    db.sql("ALTER TABLE v ADD CHECK (n < 100)")
    assert refused(db, "UPDATE v SET n = 100 WHERE true") == "CONSTRAINT"


def test_a_large_table_is_not_rewritten(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SQL_WRITE_ROWS_MAX", 2)
    db.sql("CREATE TABLE big (id BIGINT PRIMARY KEY, a TEXT)")
    db.sql("INSERT INTO big VALUES (1, 'x'), (2, 'x'), (3, 'x')")
    with pytest.raises(Error, match="more rows than can be changed"):
        db.sql("ALTER TABLE big DROP a")
    db.sql("ALTER TABLE big ADD b TEXT")
    assert db.sql("SELECT * FROM big WHERE id = 1").rows == [{"id": 1, "a": "x", "b": None}]


def test_definitions_that_are_refused(db: Database) -> None:
    for text in (
        "CREATE TABLE w (id TEXT PRIMARY KEY, n BIGINT CHECK (nope > 1))",
        "CREATE TABLE w (id TEXT PRIMARY KEY, n BIGINT DEFAULT id)",
        "CREATE TABLE w (id TEXT PRIMARY KEY, n BIGINT DEFAULT 'x')",
        "CREATE TABLE w (id TEXT PRIMARY KEY, n VARCHAR(0))",
        "CREATE TABLE w (id TEXT PRIMARY KEY, n BIGINT(5))",
        "CREATE TABLE w (id TEXT PRIMARY KEY) WITH (retention_records = 5)",
        "CREATE TABLE w (id TEXT PRIMARY KEY, n BIGINT CHECK (NEW.n > OLD.n AND ? > 1))",
    ):
        with pytest.raises(Error):
            db.sql(text, [1] if "?" in text else [])
        with pytest.raises(Error, match="no table 'w'"):
            db.execute(FindTable("w"))


def test_indexes_and_settings(db: Database) -> None:
    db.sql("INSERT INTO v (id, day) VALUES (?, '2026-01-01')", [f"{ID}0"])
    db.sql("CREATE INDEX by_page ON v (PAGE, day)")
    assert db.sql("CREATE INDEX IF NOT EXISTS by_page ON v (page)").facts == {"created": False}
    (index,) = db.execute(FindTable("v")).indexes
    assert (index.name, index.hash, index.range, index.local) == ("by_page", ("page",), ("day",), False)
    assert refused(db, "CREATE INDEX other ON v (nope)") == "UNKNOWN_COLUMN"
    assert refused(db, "ALTER TABLE v DROP day") == "COLUMN_USED"
    db.sql("DROP INDEX by_page ON v")
    assert not db.execute(FindTable("v")).indexes
    assert db.sql("DROP INDEX IF EXISTS by_page ON v").facts == {"dropped": False}
    db.sql("ALTER TABLE v SET (retention_records = 7, ttl = n)")
    info = db.table("v").stream_info()
    assert (info.max_count, db.execute(FindTable("v")).ttl) == (7, "n")
    db.sql("ALTER TABLE v SET (stream = false, ttl = NULL)")
    assert db.execute(FindTable("v")).stream is None and db.execute(FindTable("v")).ttl is None


def test_the_information_schema(db: Database) -> None:
    assert db.sql("SELECT table_name FROM information_schema.tables").rows == [{"table_name": "v"}]
    rows = db.sql(
        "SELECT column_name, data_type, is_nullable, column_default, character_maximum_length AS length "
        "FROM Information_Schema.Columns WHERE table_name = 'v' ORDER BY ordinal_position LIMIT 2"
    ).rows
    assert [tuple(row.values()) for row in rows] == [
        ("id", "UUID", "NO", None, None),
        ("page", "VARCHAR", "NO", "'/'", 5),
    ]
    with pytest.raises(Error, match="the system tables are tables, columns"):
        db.sql("SELECT * FROM information_schema.nope")
