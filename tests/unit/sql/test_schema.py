"""Types, defaults and constraints of declared columns, which hold for every API; ALTER TABLE, indexes, settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


@pytest.mark.parametrize("form", [str.upper, lambda text: f"{{{text}}}", lambda text: text.replace("-", "").upper()])
@pytest.mark.parametrize("key", [True, False])
def test_a_uuid_is_found_by_any_text_that_insert_accepts(db: Database, form: Callable[[str], str], key: bool) -> None:
    kinds = ("UUID PRIMARY KEY", "UUID") if key else ("TEXT PRIMARY KEY", "UUID")
    db.sql(f"CREATE TABLE ids (k {kinds[0]}, u UUID, name TEXT, n BIGINT)")
    for number in range(3):
        db.sql(
            "INSERT INTO ids VALUES (?, ?, ?, ?)", [f"{ID}{number}", form(f"{ID}{number}"), f"{ID}1".upper(), number]
        )
    name, one, two = "k" if key else "u", form(f"{ID}1"), form(f"{ID}2")
    for where, found in (
        (f"{name} = '{one}'", [1]),
        (f"'{one}' = {name}", [1]),
        (f"NOT ({name} <> '{one}')", [1]),
        (f"{name} IN ('{one}', '{two}')", [1, 2]),
        (f"{name} = '{one}' OR {name} = '{two}'", [1, 2]),
        (f"{name} BETWEEN '{one}' AND '{two}'", [1, 2]),
        (f"{name} > '{one}'", [2]),
        (f"{name} IS NOT DISTINCT FROM '{one}'", [1]),
        (f"CASE {name} WHEN '{one}' THEN true END", [1]),
        (f"ids.{name} = '{one}' AND name = '{f'{ID}1'.upper()}'", [1]),
        (f"name = '{ID}1'", []),
    ):
        assert [row["n"] for row in db.sql(f"SELECT n FROM ids WHERE {where} ORDER BY n").rows] == found, where
        assert sorted(row["n"] for row in db.sql(f"UPDATE ids SET n = n WHERE {where} RETURNING n").rows) == found, (
            where
        )
    for where, params in ((f"{name} = ?", [one]), (f"{name} IN (?, ?)", [one, one]), (f"? = {name}", [one])):
        assert db.sql(f"SELECT n FROM ids WHERE {where}", params).rows == [{"n": 1}]
        assert db.sql(f"UPDATE ids SET n = n WHERE {where} RETURNING n", params).rows == [{"n": 1}]
    joined = f"SELECT a.n FROM ids AS a JOIN ids AS b ON a.{name} = b.{name} WHERE b.{name} = '{one}' AND a.n >= 0"
    assert db.sql(joined).rows == [{"n": 1}]
    # A parameter that is also compared with a text, and a column of a subquery, are taken as they are written.
    text = f"SELECT n FROM ids WHERE name = $1 AND n = 1 AND ({name} = $1 OR true)"
    assert db.sql(text, [f"{ID}1".upper()]).rows == [{"n": 1}]
    other = f"SELECT n FROM (SELECT name AS {name}, n FROM ids) AS ids WHERE {name} = '{ID}1' ORDER BY n"
    assert db.sql(other).rows == []
    assert db.sql(f"DELETE FROM ids WHERE {name} = '{one}'").row_count == 1


def test_a_uuid_in_a_constraint_and_in_a_filter(db: Database) -> None:
    db.sql(f"CREATE TABLE u (k TEXT PRIMARY KEY, u UUID CHECK (u <> '{ID}0'), CHECK (u <> '{f'{ID}A'.upper()}'))")
    db.sql("CREATE TOPIC t")
    db.sql(f"ALTER TOPIC t ADD SOURCE u ON INSERT WHERE (U = '{f'{ID}B'.upper()}')")
    for bad in "0a":
        with pytest.raises(Invalid, match="constraint"):
            db.sql("INSERT INTO u VALUES ('x', ?)", [f"{ID}{bad}"])
    db.sql("INSERT INTO u VALUES ('1', ?), ('2', ?)", [f"{ID}b", f"{ID}c"])
    assert [row["value"] for row in db.sql("SELECT value FROM topic('t')").rows] == ['{"k":"1"}']


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


# -- times as values, and the time of a statement


def test_times_as_values(db: Database) -> None:
    db.sql("CREATE TABLE w (id BIGINT PRIMARY KEY, at TIMESTAMP, day DATE, note TEXT)")
    db.sql("INSERT INTO w VALUES (1, TIMESTAMP '2026-01-02 03:04:05', DATE '2026-01-02', NULL)")
    db.sql("INSERT INTO w (id, at, day) VALUES (2, CAST('2026-01-02T05:04:05+02:00' AS TIMESTAMP), '2026-01-02'::DATE)")
    stored = {"at": "2026-01-02T03:04:05.000000", "day": "2026-01-02"}
    assert [row | {"id": 0} for row in db.table("w").scan()] == [{"id": 0, **stored}] * 2
    db.sql("UPDATE w SET at = DATE '2026-01-03', day = TIMESTAMP '2026-01-03 00:00:00' WHERE day = DATE '2026-01-02'")
    assert {row["at"] for row in db.table("w").scan()} == {"2026-01-03T00:00:00.000000"}
    db.sql("UPDATE w SET at = CASE WHEN id = 1 THEN TIMESTAMP '2026-02-01 00:00:00' ELSE at END WHERE true")
    assert {row["at"][:10] for row in db.table("w").scan()} == {"2026-02-01", "2026-01-03"}
    for text, why in (
        ("INSERT INTO w (id, day) VALUES (3, TIMESTAMP '2026-01-02 03:04:05')", "CAST it to DATE"),
        ("INSERT INTO w (id, note) VALUES (3, TIMESTAMP '2026-01-02 03:04:05')", "CAST it to TEXT"),
        ("INSERT INTO w (id, at) VALUES (3, TIMESTAMP 'noon')", "not a timestamp"),
        ("UPDATE w SET at = CAST(coalesce(note, 'noon') AS TIMESTAMP) WHERE id = 1", "cannot be cast to TIMESTAMP"),
    ):
        with pytest.raises(Invalid, match=why):
            db.sql(text)
    tried = db.sql("UPDATE w SET note = '', at = TRY_CAST('noon' || id AS TIMESTAMP) WHERE id = 1 RETURNING at")
    assert tried.rows == [{"at": None}]
    # A time as the key.
    db.sql("CREATE TABLE k (at TIMESTAMP PRIMARY KEY, n BIGINT)")
    db.sql("INSERT INTO k VALUES (TIMESTAMP '2026-01-02 03:04:05', 1)")
    assert db.sql("UPDATE k SET n = 2 WHERE at = TIMESTAMP '2026-01-02 03:04:05'").row_count == 1


def test_the_time_of_a_statement(db: Database) -> None:
    db.sql(
        "CREATE TABLE w (id BIGINT PRIMARY KEY, at TIMESTAMP DEFAULT now(), day DATE DEFAULT CURRENT_DATE, n BIGINT)"
    )
    before = datetime.now(UTC).replace(tzinfo=None).isoformat()
    db.sql("INSERT INTO w (id) VALUES (1), (2)")
    db.sql("INSERT INTO w (id, at, day) VALUES (3, now(), CURRENT_DATE), (4, CURRENT_TIMESTAMP, CURRENT_DATE)")
    one, two, three, four = sorted(db.table("w").scan(), key=lambda row: int(row["id"]))
    after = datetime.now(UTC).replace(tzinfo=None).isoformat()
    assert before <= one["at"] == two["at"] <= three["at"] == four["at"] <= after
    assert before[:10] <= one["day"] == two["day"] <= four["day"] <= after[:10]
    db.sql("UPDATE w SET at = NULL, day = NULL WHERE true")
    changed = db.sql("UPDATE w SET at = now(), day = CURRENT_DATE, n = ? WHERE id < ? RETURNING at, day, n", [5, 4])
    assert changed.row_count == 3 and len({tuple(row.values()) for row in changed.rows}) == 1
    assert after <= changed.rows[0]["at"] and changed.rows[0]["n"] == 5
    assert db.sql("UPDATE w SET n = 6 WHERE at > now() AND id <> $1", [9]).row_count == 0
    assert db.sql("UPDATE w SET n = 6 WHERE at <= now() AND day <= CURRENT_DATE").row_count == 3
    (row,) = db.sql(
        "INSERT INTO w (id) VALUES (4) ON CONFLICT DO UPDATE SET at = now() WHERE w.at IS NULL RETURNING now() AS t, at"
    ).rows
    assert datetime.fromisoformat(row["t"]) == datetime.fromisoformat(row["at"])
    db.sql("ALTER TABLE w ADD COLUMN seen TIMESTAMP DEFAULT now()")
    assert len({row["seen"] for row in db.table("w").scan()}) == 1
    assert db.sql("DELETE FROM w WHERE seen < CURRENT_TIMESTAMP").row_count == 4
    db.sql("CREATE TOPIC t")
    for text in (
        "ALTER TOPIC t ADD SOURCE w ON INSERT WHERE (at < now())",
        "ALTER TOPIC t ADD SOURCE w ON INSERT PARTITION BY (CAST(now() AS TEXT))",
        "ALTER TABLE w ADD CHECK (at < CURRENT_TIMESTAMP)",
    ):
        with pytest.raises(Invalid, match="current time"):
            db.sql(text)


# -- values and types


def test_default_as_a_value_and_several_columns_at_once(db: Database) -> None:
    db.sql("CREATE TABLE w (id BIGINT PRIMARY KEY, a BIGINT DEFAULT 1 + 2, b TEXT DEFAULT 'x', c TEXT)")
    db.sql("INSERT INTO w VALUES (1, DEFAULT, 'y', DEFAULT), (2, 5, DEFAULT, 'z')")
    assert db.sql("SELECT * FROM w ORDER BY id").rows == [
        {"id": 1, "a": 3, "b": "y", "c": None}, {"id": 2, "a": 5, "b": "x", "c": "z"},
    ]  # fmt: skip
    changed = db.sql("UPDATE w SET b = DEFAULT, c = DEFAULT, a = a + 1 WHERE true RETURNING *").rows
    assert sorted(tuple(row.values()) for row in changed) == [(1, 4, "x", None), (2, 6, "x", None)]
    db.sql("UPDATE w SET (a, B) = (a * 2, ?), c = 'd' WHERE id = 1", ["q"])
    db.sql("INSERT INTO w (id) VALUES (1) ON CONFLICT DO UPDATE SET (c) = (EXCLUDED.b || w.b)")
    assert db.sql("SELECT * FROM w WHERE id = 1").rows == [{"id": 1, "a": 8, "b": "q", "c": "xq"}]
    for text, why in (
        ("UPDATE w SET (a, b) = (1) WHERE true", "2 columns are set to 1 values"),
        ("UPDATE w SET (a, a) = (1, 2) WHERE true", "twice"),
        ("UPDATE w SET (a, A) = (1, 2) WHERE true", "twice"),
        ("INSERT INTO w VALUES (DEFAULT, 1, 'a', 'b')", "NOT NULL"),
        ("UPDATE w SET a = 1", "WHERE true: all rows"),
        ("DELETE FROM w", "TRUNCATE"),
    ):
        with pytest.raises(Invalid, match=why):
            db.sql(text)


def test_decimals_with_a_number_of_digits(db: Database) -> None:
    db.sql("CREATE TABLE w (id BIGINT PRIMARY KEY, price DECIMAL(5, 2), count NUMERIC(3))")
    db.sql("INSERT INTO w VALUES (1, 123.45, 999), (2, -0.5, -1), (3, 100, NULL)")
    for value in ("1234.5", "1.234", "-1000"):
        with pytest.raises(Invalid, match=rf"'price' is DECIMAL\(5, 2\) and cannot hold the number {value}"):
            db.sql(f"INSERT INTO w VALUES (4, {value}, 1)")
    for text in ("INSERT INTO w VALUES (4, 1, 1.5)", "UPDATE w SET price = price * 10 WHERE id = 1"):
        with pytest.raises(Invalid) as raised:
            db.sql(text)
        assert raised.value.code == "WRONG_TYPE"
    assert [row["type"] for row in db.sql("DESCRIBE w").rows] == ["BIGINT", "DECIMAL(5, 2)", "DECIMAL(3, 0)"]
    for bad in ("DECIMAL(39)", "DECIMAL(2, 3)", "DECIMAL(0)", "BIGINT(3)"):
        with pytest.raises(Invalid):
            db.sql(f"CREATE TABLE x (id BIGINT PRIMARY KEY, n {bad})")


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("id = '1'", [1]),
        ("n = '1'", [1]),
        ("'1.0' = n", [1]),
        ("n < '10'", [1, 2]),
        ("n IN ('1', '3')", [1]),
        ("n BETWEEN '2' AND '30'", [2]),
        ("m = '1.50'", [1]),
        ("f = '2.5'", [2]),
        ("id = 1.5", []),
        ("coalesce(at, '2026-01-01') < '2026-01-01 12:00:00'", [1]),
        ("coalesce(at, '2026-01-01') = '2026-01-01 00:00'", [1]),
        ("CASE WHEN id = 2 THEN '2026-01-02T03:04:05' ELSE at END = '2026-01-02 03:04:05'", [2]),
    ],
)
def test_texts_that_are_compared_with_other_types(db: Database, where: str, found: list[int]) -> None:
    db.sql("CREATE TABLE w (id BIGINT PRIMARY KEY, n BIGINT, m DECIMAL, f DOUBLE, at TIMESTAMP)")
    db.sql("INSERT INTO w VALUES (1, 1, 1.5, 0.5, NULL), (2, 2, 2, 2.5, '2026-01-02 03:04:05')")
    assert [row["id"] for row in db.sql(f"SELECT id FROM w WHERE {where} ORDER BY id").rows] == found
    assert sorted(row["id"] for row in db.sql(f"UPDATE w SET n = n WHERE {where} RETURNING id").rows) == found
    if where in ("id = '1'", "n = '1'"):
        assert db.sql("DELETE FROM w WHERE " + where.replace("'1'", "?"), ["1"]).row_count == 1


def test_a_text_that_is_no_number_is_refused(db: Database) -> None:
    db.sql("CREATE TABLE w (id BIGINT PRIMARY KEY, n BIGINT)")
    db.sql("INSERT INTO w VALUES (1, 1)")
    for where, params in (("n = '1.5'", []), ("id = 'x'", []), ("n = ?", ["x"]), ("id = ?", ["x"])):
        with pytest.raises(Error, match=r"BIGINT.*text '(1.5|x)'"):
            db.sql(f"UPDATE w SET n = n WHERE {where}", params)


# -- names


def test_names_that_differ_in_case_alone(db: Database) -> None:
    for columns in ("id TEXT PRIMARY KEY, ID BIGINT", 'id TEXT PRIMARY KEY, a TEXT, "A" TEXT'):
        with pytest.raises(Invalid, match="declared twice"):
            db.sql(f"CREATE TABLE e ({columns})")


def test_the_key_of_a_table_without_columns_in_any_case(db: Database) -> None:
    docs = db.create_table("docs", "Id", ("At", "N"))
    for number in range(3):
        docs.put({"Id": "a", "At": number, "Status": "x"})
    assert db.sql("UPDATE docs SET n = at + 1 WHERE id = 'a' AND at = 1 RETURNING n").rows == [{"n": 2}]
    assert db.sql("UPDATE docs SET n = 3 WHERE ID = 'a' AND aT > 1").row_count == 1
    assert db.sql("UPDATE docs SET n = 3 WHERE \"id\" LIKE 'a' AND At >= 0").row_count == 0
    # Other attributes are matched exactly.
    assert db.sql("UPDATE docs SET n = 3 WHERE status = 'x'").row_count == 0
    assert db.sql("UPDATE docs SET n = 3 WHERE Status = 'x'").row_count == 3
    assert db.sql("DELETE FROM docs WHERE id LIKE 'a%' AND at IN (0, 1)").row_count == 2
