"""Which keys a SELECT reads: of the table, or of an index; and what the cache of columns keeps."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import Index, limits
from tailrace.database import Database
from tailrace.errors import Error
from tailrace.sql.access import AccessPath
from tailrace.sql.column_cache import cache_of
from tailrace.sql.select import _SelectQuery
from tailrace.sql.sources import path_of
from tailrace.tables.operations import FindTable


@pytest.fixture
def db(data_dir: Path) -> Iterator[Database]:
    with tailrace.open(data_dir, housekeeping_s=None) as opened:
        indexes = [Index("by_kind", "kind"), Index("by_city", ["land", "city"], ("n", "N"))]
        opened.create_table("t", "id", ("at", "N"), indexes=indexes)
        yield opened


def path(db: Database, text: str, *params: Any, source: int = 0) -> AccessPath:
    reference = _SelectQuery(text, params, 1, 1).sources[source].reference
    definition = db.execute(FindTable("t"))

    class Found:
        def get(self, *_: Any) -> Any:
            from tailrace.tables.definition import TableRow, _encode

            return TableRow(definition.name, definition.space, _encode(definition))

    return path_of(Found(), reference)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("where", "described"),
    [
        ("", "scan of all of t"),
        ("id = 'a'", "range of t by id"),
        ("id = 'a' AND at = 1", "keys of t by id, at"),
        ("id IN ('a', 'b', 'a') AND at IN (1, 2)", "keys of t by id, at in 4 ranges"),
        ("id = 'a' OR 'b' = id", "range of t by id in 2 ranges"),
        ("id = 'a' OR at = 1", "scan of all of t"),
        ("id = 'a' AND at > 1 AND at <= 7", "range of t by id, at"),
        ("id LIKE 'a%'", "scan of all of t"),
        ("kind = 'k'", "range of index by_kind of t by kind"),
        ("kind = 'k' AND id = 'a'", "range of t by id"),
        ("kind = 'k' AND id = 'a' AND at = 1", "keys of t by id, at"),
        ("kind <> 'k'", "scan of all of t"),
        ("kind NOT IN ('k')", "scan of all of t"),
        ("land = 'x' AND city = 'y'", "scan of all of t"),  # an item without n is not in the index
        ("land = 'x' AND city = 'y' AND n >= 3", "range of index by_city of t by land, city, n"),
        ("land = 'x' AND n >= 3", "scan of all of t"),
        ("kind = 3", "scan of all of t"),
        ("kind = NULL", "scan of all of t"),
        ("lower(kind) = 'k'", "scan of all of t"),
    ],
)
def test_the_path_of_conditions(db: Database, where: str, described: str) -> None:
    assert path(db, f"SELECT at FROM t {'WHERE ' + where if where else ''}").described() == described


@pytest.mark.parametrize(
    ("text", "described"),
    [
        ("SELECT * FROM t LIMIT 3", "scan of all of t, the first 3"),
        ("SELECT * FROM t ORDER BY at LIMIT 3", "scan of all of t"),
        ("SELECT * FROM t WHERE id = 'a' ORDER BY at DESC LIMIT 3 OFFSET 2", "range of t by id, the last 5"),
        ("SELECT * FROM t WHERE id = 'a' ORDER BY t.at LIMIT 3", "range of t by id, the first 3"),
        ("SELECT -at AS at FROM t WHERE id = 'a' ORDER BY at LIMIT 3", "range of t by id"),
        ("SELECT * FROM t WHERE id = 'a' ORDER BY kind LIMIT 3", "range of t by id"),
        ("SELECT * FROM t WHERE id = 'a' AND kind = 'k' ORDER BY at LIMIT 3", "range of t by id"),
        ("SELECT * FROM t WHERE id IN ('a', 'b') ORDER BY at LIMIT 3", "range of t by id in 2 ranges"),
        (
            "SELECT * FROM t WHERE kind IN ('a', 'b') LIMIT 3",
            "range of index by_kind of t by kind in 2 ranges, the first 3",
        ),
        ("SELECT * FROM t WHERE id = 'a' GROUP BY ALL ORDER BY at LIMIT 3", "range of t by id"),
        ("SELECT * FROM t JOIN t u ON true WHERE t.id = 'a' LIMIT 3", "range of t by id"),
        ("SELECT * FROM t LEFT JOIN t u ON true WHERE t.id = 'a'", "range of t by id"),
        ("SELECT * FROM t JOIN t u ON true WHERE id = 'a'", "scan of all of t"),
        ("SELECT * FROM t ASOF JOIN t u ON t.at >= u.at WHERE t.id = 'a'", "scan of all of t"),
    ],
)  # fmt: skip
def test_the_path_of_limits_and_joins(db: Database, text: str, described: str) -> None:
    assert path(db, text).described() == described


def test_too_many_combinations_are_a_scan(db: Database) -> None:
    listed = ", ".join(str(n) for n in range(limits.SELECT_RANGES_MAX))
    assert len(path(db, f"SELECT * FROM t WHERE id = 'a' AND at IN ({listed})").ranges) == limits.SELECT_RANGES_MAX
    assert path(db, f"SELECT * FROM t WHERE id IN ('a', 'b') AND at IN ({listed})").whole


def test_an_index_with_many_items_is_a_scan(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SELECT_POINTERS_MAX", 10)
    table = db.table("t")
    for n in range(30):
        table.put({"id": f"i{n}", "at": n, "kind": "few" if n % 10 == 0 else "many"})
    for kind, count in (("few", 3), ("many", 27)):
        assert db.sql("SELECT count(at) AS c FROM t WHERE kind = ?", [kind]).rows == [{"c": count}]


# -- the cache


def cached(db: Database, name: str = "s") -> int | None:
    entry = cache_of(db.exports).get(db.execute(FindTable(name)))
    return None if entry is None else entry.version[1]


@pytest.fixture
def large(db: Database, monkeypatch: pytest.MonkeyPatch) -> Database:
    monkeypatch.setattr(limits, "SELECT_SLICE_ROWS", 8)
    db.create_table("s", "id", stream="KEYS_ONLY")
    for n in range(30):
        db.table("s").put({"id": f"i{n}", "n": n, "price": Decimal(n) / 4, "text": f"t{n}"})
    return db


def test_columns_are_kept_and_advanced(large: Database) -> None:
    total = "SELECT sum(n) AS n, count(text) AS c FROM s"
    assert cached(large) is None
    assert large.sql(total).rows == [{"n": 435, "c": 30}]
    first = cached(large)
    assert first is not None
    large.table("s").put({"id": "i3", "n": 1000, "text": "new"})
    large.table("s").delete("i4")
    large.table("s").put({"id": "new", "n": 1})
    assert large.sql(total).rows == [{"n": 435 - 3 - 4 + 1000 + 1, "c": 29}]
    assert (cached(large) or 0) > first


def test_types_are_those_of_a_new_read(large: Database) -> None:
    """A value of another type, or the loss of the only one of its type, changes the type of the whole column."""
    types = "SELECT typeof(n) AS n, typeof(price) AS p FROM s LIMIT 1 OFFSET (SELECT count(id) - count(id) FROM s)"
    assert large.sql(types).rows == [{"n": "BIGINT", "p": "DECIMAL(38,2)"}]
    large.table("s").put({"id": "i1", "n": "text", "price": Decimal("0.125")})
    assert large.sql(types).rows == [{"n": "VARCHAR", "p": "DECIMAL(38,3)"}]
    large.table("s").put({"id": "i1", "n": 1})
    assert large.sql(types).rows == [{"n": "BIGINT", "p": "DECIMAL(38,2)"}]


def test_a_table_without_a_stream_is_read_again_after_a_write(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SELECT_SLICE_ROWS", 8)
    for n in range(30):
        db.table("t").put({"id": "x", "at": n, "n": 5})
    for n in range(5):
        assert db.sql("SELECT sum(n) AS s FROM t").rows == [{"s": 150 + n}]
        assert cached(db, "t") is not None
        db.table("t").put({"id": "x", "at": 3, "n": 5 + n + 1})


def test_a_cached_table_counts_as_read(large: Database) -> None:
    from tailrace.sql.select import run
    from tailrace.sql.sources import ReadBudget

    large.sql("SELECT sum(n) FROM s")
    with pytest.raises(Error, match="more than 20 rows"):
        run(large.execute, "SELECT sum(n) FROM s", (), ReadBudget(rows=20))


def test_the_cache_is_bounded(large: Database) -> None:
    cache = cache_of(large.exports)
    cache._bytes_max = 500
    for name in ("a", "b", "c", "d"):
        large.create_table(name, "id")
        for n in range(20):
            large.table(name).put({"id": f"i{n:03d}"})
        large.sql(f"SELECT count(id) FROM {name}")
        assert cache.bytes <= 500
    assert cached(large, "d") is not None and cached(large, "a") is None


# -- EXPLAIN


def test_explain_says_what_is_read(large: Database) -> None:
    def steps(text: str, *params: Any) -> list[tuple[str, ...]]:
        return [tuple(row.values()) for row in large.sql(f"EXPLAIN {text}", params).rows]

    rest = ("", "duckdb", "the statement over these rows, all conditions included")
    assert steps("SELECT kind, n FROM t AS x WHERE kind = ? AND x.n > 3", "k") == [
        ("x", "tailrace", "range of index by_kind of t by kind; columns kind, n"),
        rest,
    ]
    assert steps("SELECT count(*) FROM t") == [("t", "tailrace", "number of rows of t"), (*rest[:2], rest[2][:29])]
    assert steps("SELECT * FROM s")[0] == ("s", "tailrace", "scan of all of s; all columns")
    large.sql("SELECT * FROM s")
    assert steps("SELECT n FROM s")[0][2] == "scan of all of s, from the cache; columns n"
    large.table("s").delete("i1")
    assert steps("SELECT n FROM s")[0][2] == "scan of all of s, from the cache and what changed; columns n"
    assert steps("SELECT * FROM changes('s') WHERE sequence > 5")[0][2] == "changes of table s by sequence"
    assert steps("UPDATE t SET x = 1 WHERE id = 'a' AND at = 1")[0][2].startswith("keys of t by id, at; ")
    assert steps("DELETE FROM t WHERE kind IN ('a', 'b')")[0][2].startswith("range of index by_kind of t by kind in 2")
    assert len(steps("INSERT INTO s (id) SELECT kind FROM t WHERE id = 'a'")) == 3
    with pytest.raises(Error, match="no table 'nope'"):
        steps("SELECT * FROM nope")
