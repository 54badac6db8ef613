"""UPDATE and DELETE with any WHERE, ON CONFLICT, INSERT … SELECT, RETURNING, TRUNCATE."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import limits
from tailrace.command import Command
from tailrace.database import Database
from tailrace.errors import Conflict, Error, TooLarge
from tailrace.sql import commands
from tailrace.sql.session import Session


@pytest.fixture
def db(data_dir: Path) -> Iterator[Database]:
    with tailrace.open(data_dir, housekeeping_s=None) as opened:
        opened.sql("CREATE TABLE t (id TEXT PRIMARY KEY, n BIGINT, price DECIMAL, kind TEXT) WITH (stream = true)")
        for number in range(6):
            opened.sql(
                "INSERT INTO t VALUES (?, ?, ?, ?)", [f"i{number}", number, Decimal(number) / 2, "ab"[number % 2]]
            )
        yield opened


def ids(db: Database, where: str = "true") -> list[str]:
    return [row["id"] for row in db.sql(f"SELECT id FROM t WHERE {where} ORDER BY id").rows]


def refused(db: Database, text: str, *params: Any) -> Error:
    before = db.sql("SELECT * FROM t ORDER BY id").rows
    with pytest.raises(Error) as raised:
        db.sql(text, params)
    assert db.sql("SELECT * FROM t ORDER BY id").rows == before
    return raised.value


@pytest.mark.parametrize(
    ("where", "params", "found"),
    [
        ("true", (), "012345"),
        ("false", (), ""),
        ("NULL", (), ""),
        ("n > 3", (), "45"),
        ("n > ? OR id = ?", (4, "i0"), "05"),
        ("n > $2 OR id = $1", ("i0", 4), "05"),
        ("NOT (n > 3 AND kind = 'a')", (), "01235"),
        ("id IN ('i1', 'i3', 'x')", (), "13"),
        ("id LIKE 'i%' AND price BETWEEN 1 AND 2", (), "234"),
        ("t.n % 2 = 0", (), "024"),
        ("(kind = 'a' OR n = 5) AND (n < 2 OR n > 3)", (), "045"),
        ("id = 'i' || n", (), "012345"),
        ("id = lower('I2')", (), "2"),
        ("N = 2", (), "2"),
        ("id = 'i2' AND n = 3", (), ""),
        ("kind = NULL", (), ""),
    ],
)
def test_a_condition_of_any_kind(db: Database, where: str, params: tuple[Any, ...], found: str) -> None:
    expected = [f"i{each}" for each in found]
    updated = db.sql(f"UPDATE t SET n = n + 100 WHERE {where} RETURNING id", params)
    assert sorted(row["id"] for row in updated.rows) == expected and updated.row_count == len(expected)
    assert ids(db, "n >= 100") == expected
    db.sql("UPDATE t SET n = n - 100 WHERE n >= 100")
    deleted = db.sql(f"DELETE FROM t WHERE {where}", params)
    assert deleted.row_count == len(expected)
    assert not set(ids(db)) & set(expected) and len(ids(db)) == 6 - len(expected)


def test_all_rows_change_in_one_transaction(db: Database) -> None:
    result = db.sql("UPDATE t SET n = 0 WHERE n > 1")
    changes = db.table("t").changes(after=(result.facts["sequence"] or 0) - 1)
    assert [change.event for change in changes] == ["MODIFY"] * 4
    assert refused(db, "UPDATE t SET n = 'x'::BIGINT + n WHERE true").code == "NO_RESULT"


def test_a_row_is_judged_by_its_present_value(db: Database) -> None:
    """Between the search and the write another one changes a row and adds one."""
    seen: list[Any] = []

    def execute(request: Any) -> Any:
        if isinstance(request, commands.UpdateRows):
            seen.append(request)
            db.table("t").put({"id": "i4", "n": 0, "kind": "changed"})
            db.table("t").delete("i5")
            db.table("t").put({"id": "new", "n": 9})
        return db.execute(request)

    (result,) = Session(execute).run("UPDATE t SET n = n + 1 WHERE n >= 3 RETURNING id, n")
    assert result.rows == [{"id": "i3", "n": 4}] and len(seen[0].keys) == 3
    assert db.table("t").get("i4") == {"id": "i4", "n": 0, "kind": "changed"} and db.table("t").get("i5") is None


def test_more_rows_than_the_limit_are_refused(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SQL_WRITE_ROWS_MAX", 5)
    error = refused(db, "DELETE FROM t WHERE true")
    assert isinstance(error, TooLarge) and error.code == "TOO_MANY_ROWS" and "more than 5 rows" in str(error)
    assert db.sql("DELETE FROM t WHERE id <> 'i0'").row_count == 5


def test_rows_are_found_in_slices(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SELECT_SLICE_ROWS", 2)
    requests: list[Any] = []
    session = Session(lambda request: (requests.append(request), db.execute(request))[1])
    assert session.run("DELETE FROM t WHERE kind = 'a'")[0].row_count == 3
    assert sum(isinstance(each, commands.FindRows) for each in requests) >= 3
    assert session.run("TRUNCATE TABLE t")[0].row_count == 3 and not ids(db)


def test_an_index_finds_the_rows(db: Database) -> None:
    table = db.create_table("u", "id", ("at", "N"), indexes=[tailrace.Index("by_kind", "kind")])
    for number in range(20):
        table.put({"id": f"i{number}", "at": number, "kind": "ab"[number % 2]})
    found: list[commands.FoundKeys] = []

    def execute(request: Any) -> Any:
        result = db.execute(request)
        if isinstance(result, commands.FoundKeys):
            found.append(result)
        return result

    assert Session(execute).run("DELETE FROM u WHERE kind = ? AND at > ?", ["a", 9])[0].row_count == 5
    assert [each.examined for each in found] == [10]
    found.clear()
    assert Session(execute).run("UPDATE u SET x = 1 WHERE id = 'i1' AND at < 5")[0].row_count == 1
    assert [each.examined for each in found] == [1]


def test_conflicts(db: Database) -> None:
    insert = "INSERT INTO t (id, n) VALUES ('i1', 10), ('new', 11)"
    assert isinstance(refused(db, insert), Conflict)
    assert db.sql(f"{insert} ON CONFLICT DO NOTHING RETURNING id").rows == [{"id": "new"}]
    result = db.sql(
        "INSERT INTO t (id, n, kind) VALUES ('i1', 10, 'x'), ('i2', 1, 'x'), ('newer', 3, 'y') ON CONFLICT (ID) "
        "DO UPDATE SET n = t.n + EXCLUDED.n + ?, kind = EXCLUDED.kind || kind WHERE t.n < EXCLUDED.n "
        "RETURNING id, n, kind",
        [100],
    )
    assert result.rows == [{"id": "i1", "n": 111, "kind": "xb"}, {"id": "newer", "n": 3, "kind": "y"}]
    assert db.table("t").get("i2")["n"] == 2
    twice = "INSERT INTO t (id, n) VALUES ('z', 1), ('z', 2)"
    assert refused(db, f"{twice} ON CONFLICT DO UPDATE SET n = 1").code == "DUPLICATE_KEY"
    assert db.sql(f"{twice} ON CONFLICT DO NOTHING").row_count == 1
    assert refused(db, "INSERT INTO t (id) VALUES ('i1') ON CONFLICT (n) DO NOTHING").code == "KEY_NEEDED"
    assert refused(db, "INSERT INTO t (id) VALUES ('i1') ON CONFLICT DO UPDATE SET id = 'x'").code == "KEY_COLUMN"
    assert (
        refused(db, "INSERT INTO t (id) VALUES ('i1') ON CONFLICT DO UPDATE SET n = OLD.n").code == "INVALID_EXPRESSION"
    )


def test_insert_from_a_select(db: Database) -> None:
    db.sql("CREATE TABLE sums (kind TEXT PRIMARY KEY, n BIGINT, price DECIMAL)")
    text = "INSERT INTO sums SELECT kind, sum(n), sum(price) FROM t WHERE n >= $1 GROUP BY kind"
    assert db.sql(text, [1]).row_count == 2
    assert db.table("sums").get("a") == {"kind": "a", "n": 6, "price": 3}
    again = db.sql(f"{text} ON CONFLICT DO UPDATE SET n = EXCLUDED.n RETURNING kind, n", [3]).rows
    assert sorted(again, key=lambda row: row["n"]) == [{"kind": "a", "n": 4}, {"kind": "b", "n": 8}]
    assert db.table("sums").get("a")["n"] == 4
    assert refused(db, "INSERT INTO sums SELECT 1, 2").code == "WRONG_COUNT"
    assert refused(db, "INSERT INTO sums SELECT 5, 2, 1").code == "WRONG_TYPE"
    db.sql("CREATE TABLE bytes (id BLOB PRIMARY KEY)")
    db.sql("INSERT INTO bytes SELECT encode(id) FROM t")
    assert db.table("bytes").get(b"i3") is not None


def test_returning(db: Database) -> None:
    result = db.sql("UPDATE t SET n = 7 WHERE id = 'i1' RETURNING *, n * 2 AS twice, id")
    assert result.rows == [{"id": "i1", "n": 7, "price": Decimal("0.5"), "kind": "b", "twice": 14, "id_1": "i1"}]
    assert [column.name for column in result.columns] == ["id", "n", "price", "kind", "twice", "id_1"]
    assert refused(db, "DELETE FROM t WHERE true RETURNING nope").code == "UNKNOWN_COLUMN"
    assert db.sql("DELETE FROM t WHERE id = 'i1' RETURNING n").rows == [{"n": 7}]
    assert db.sql("DELETE FROM t WHERE id = 'i1' RETURNING n").rows == []


def test_commands_are_plain_data(db: Database) -> None:
    """No compiled expression, no function: another process could run them."""
    seen: list[Command[Any]] = []

    def execute(request: Any) -> Any:
        if isinstance(request, commands.RowsCommand | commands.FindRows):
            seen.append(request)
        return db.execute(request)

    session = Session(execute)
    session.run("UPDATE t SET n = n + 1 WHERE n > ?", [2])
    session.run("INSERT INTO t (id, n) VALUES ('i1', 1) ON CONFLICT DO UPDATE SET n = EXCLUDED.n")
    assert len(seen) == 3

    def plain(held: Any) -> bool:
        if hasattr(held, "__struct_fields__"):
            return all(plain(getattr(held, name)) for name in held.__struct_fields__)
        if isinstance(held, tuple | list):
            return all(map(plain, held))
        if isinstance(held, dict):
            return all(map(plain, held.values()))
        return isinstance(held, str | int | bytes | Decimal | type(None))

    assert all(map(plain, seen))


def test_times_are_compared_as_times(tmp_path: Path) -> None:
    with tailrace.open(tmp_path / "times") as db:
        db.sql("CREATE TABLE ts (id TEXT, at TIMESTAMP, v TEXT, PRIMARY KEY (id, at))")
        db.sql("INSERT INTO ts VALUES ('a', '2026-01-28 12:00:00', 'x'), ('a', '2026-01-28 14:00:00', 'y')")
        for condition, rows in (
            ("at > '2026-01-28 23:59:59'", 0),
            ("at < '2026-01-28 23:59:59'", 2),
            ("at > '2026-01-28 13:00:00'", 1),
            ("id = 'a' AND at > '2026-01-28 13:00:00'", 1),
            ("id = 'a' AND at = '2026-01-28 14:00:00'", 1),
            ("at IN ('2026-01-28T14:00:00', '2027-01-01')", 1),
            ("at > TIMESTAMP '2026-01-28 13:00:00'", 1),
        ):
            assert db.sql(f"UPDATE ts SET v = v || '!' WHERE {condition}").row_count == rows, condition
            counted = db.sql(f"SELECT count(v) AS n FROM ts WHERE {condition}").rows
            assert counted == [{"n": rows}], condition
        for more in ("", "id = 'a' AND "):
            found = db.sql(f"SELECT v FROM ts WHERE {more}at < '2026-01-28T14:00:00+02:00'").rows
            assert len(found) == 1, "with and without a key it is the same"
        assert db.sql("UPDATE ts SET v = at WHERE at LIKE '2026-%'").row_count == 2


def test_an_index_that_appears_between_two_slices_loses_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SELECT_SLICE_ROWS", 10)
    with tailrace.open(tmp_path / "slices", housekeeping_s=None) as db:
        db.sql("CREATE TABLE w (id TEXT PRIMARY KEY, c TEXT)")
        for number in range(35):
            db.sql("INSERT INTO w VALUES (?, 'x')", [f"k{number:02d}"])
        execute, pages = db.execute, []

        def between(command: Any, *more: Any, **named: Any) -> Any:
            found = execute(command, *more, **named)
            if isinstance(command, commands.FindRows):
                pages.append(command)
                if len(pages) == 1:
                    db.sql("CREATE INDEX by_c ON w (c)")
                    db.sweep()
            return found

        monkeypatch.setattr(db, "execute", between)
        assert db.sql("UPDATE w SET c = 'y' WHERE c = 'x'").row_count == 35
        assert len(pages) > 2


def test_an_index_of_another_type_changes_no_result(tmp_path: Path) -> None:
    with tailrace.open(tmp_path / "types", housekeeping_s=None) as db:
        table = db.create_table("doc2", partition_key="id")
        for number in range(5):
            table.put({"id": str(number), "a": "x", "b": number})
        assert db.sql("UPDATE doc2 SET z = 1 WHERE a = 'x' AND b >= 3").row_count == 2
        db.sql("CREATE INDEX by_ab ON doc2 (a, b)")
        db.sweep()
        assert db.sql("DELETE FROM doc2 WHERE a = 'x' AND b >= 3").row_count == 2


def test_columns_of_tables_with_routes_by_principal_are_renamed(tmp_path: Path) -> None:
    with tailrace.open(tmp_path / "routes") as db:
        db.sql("CREATE TABLE rr (id TEXT PRIMARY KEY, b TEXT); CREATE TOPIC t")
        db.sql("ALTER TOPIC t ADD SOURCE rr ON INSERT WHERE (_by = 'x')")
        db.sql("ALTER TABLE rr RENAME COLUMN b TO c; ALTER TABLE rr DROP COLUMN c")
