"""SELECT gives what DuckDB gives over the same rows: random rows, written and changed between random queries, found by
keys, ranges and indexes, decoded by shape or one by one, from the cache or not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import tailrace
from tailrace import Index, limits
from tailrace.database import Database
from tailrace.sql.column_cache import cache_of

SCHEMA = {
    "id": pa.string(), "seq": pa.int64(), "kind": pa.string(), "n": pa.int64(), "price": pa.decimal128(38, 3),
    "on_sale": pa.bool_(),
}  # fmt: skip
KEYS = ("id", "seq")
Row = dict[str, Any]


@pytest.fixture(params=["pages", "slices"])
def db(data_dir: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    if request.param == "pages":  # large tables: read in pages, and kept in the cache
        monkeypatch.setattr(limits, "SELECT_SLICE_ROWS", 20)
        monkeypatch.setattr("tailrace.sql.arrow.SHAPED_ROWS_MIN", 1)
    with tailrace.open(data_dir, housekeeping_s=None) as opened:
        yield opened


def drawn_row(draw: random.Random) -> Row:
    row: Row = {"id": f"p{draw.randrange(8)}", "seq": draw.randrange(-20, 20)}
    if draw.random() < 0.8:
        row["kind"] = draw.choice(["a", "ab", "abc", "b", "ö", "a%b", "Zz"])
    if draw.random() < 0.7:
        row["n"] = draw.randrange(-5, 100)
    if draw.random() < 0.7:
        row["price"] = Decimal(draw.randrange(-500, 5_000)).scaleb(-draw.randrange(4))
    if draw.random() < 0.5:
        row["on_sale"] = draw.random() < 0.5
    return row


def condition(draw: random.Random, alias: str) -> str:
    def one() -> str:
        name = draw.choice(["id", "id", "seq", "seq", "kind", "kind", "n", "price"])
        column = f"{alias}.{name}"
        if name in ("id", "kind"):
            values = [
                f"'p{draw.randrange(9)}'" if name == "id" else draw.choice(["'a'", "'ab'", "'b'", "'ö'"]) for _ in "123"
            ]
            form = draw.choice(
                [
                    "{c} = {a}",
                    "{c} IN ({a}, {b})",
                    "{c} LIKE {p}",
                    "{a} < {c}",
                    "({c} = {a} OR {c} = {b})",
                    "{c} NOT LIKE {p}",
                    "starts_with({c}, {a})",
                    "{c} IS NULL",
                    "{c} <> {a}",
                ]
            )
            return form.format(
                c=column, a=values[0], b=values[1], p=draw.choice(["'a%'", "'p1%'", "'%b'", "'a_'", "'a'"])
            )
        a, b = draw.randrange(-20, 30), draw.randrange(-20, 30)
        form = draw.choice(["{c} = {a}", "{c} >= {a}", "{c} < {a}", "{c} BETWEEN {a} AND {b}", "{c} IN ({a}, {b}, 3)",
                            "{c} > {a}.5", "NOT ({c} > {a})", "{c} IS NOT NULL"])  # fmt: skip
        return form.format(c=column, a=a, b=b)

    parts = [one() for _ in range(draw.randrange(4))]
    return " AND ".join(parts) or "true"


def query(draw: random.Random) -> str:
    where, other = condition(draw, "t"), condition(draw, "u")
    low = draw.randrange(8)
    return draw.choice([
        f"SELECT * FROM items t WHERE {where}",
        f"SELECT id, seq, price FROM items t WHERE {where} ORDER BY id, seq LIMIT 7",
        f"SELECT seq FROM items t WHERE id = 'p{low}' ORDER BY seq {draw.choice(['', 'DESC'])} LIMIT {low}",
        f"SELECT seq, n FROM items t WHERE id = 'p{low}' AND seq > -5 AND seq <= 12 ORDER BY seq DESC LIMIT 3",
        f"SELECT count(*) AS c FROM items t WHERE {where}",
        "SELECT count(*) AS c FROM items",
        f"SELECT kind, count(*) AS c, sum(price) AS s, max(n) AS m FROM items t WHERE {where} GROUP BY kind",
        f"SELECT t.id, u.seq, t.n FROM items t JOIN others u ON t.id = u.id WHERE {where} AND {other}",
        f"SELECT t.id, t.seq, u.kind FROM items t LEFT JOIN others u ON t.kind = u.kind AND t.n = u.n WHERE {where}",
        f"SELECT t.seq, u.seq AS other FROM items t FULL JOIN others u ON t.id = u.id AND t.seq = u.seq WHERE {other}",
        f"WITH w AS (SELECT * FROM items t WHERE {where}) SELECT w.kind, sum(w.n) AS s FROM w GROUP BY ALL",
        f"SELECT id, seq, row_number() OVER (PARTITION BY id ORDER BY seq) AS r, sum(n) OVER (PARTITION BY kind) AS s "
        f"FROM items t WHERE {where}",
        f"SELECT id, (SELECT max(u.n) FROM others u WHERE u.id = t.id AND {other}) AS m FROM items t WHERE {where}",
        f"SELECT id, seq FROM items t WHERE {where} UNION ALL SELECT id, seq FROM others u WHERE {other}",
        f"SELECT DISTINCT kind, on_sale FROM items t WHERE {where} AND EXISTS (FROM others u WHERE u.id = t.id)",
        f"SELECT t.id, t.seq FROM items t SEMI JOIN others u ON t.id = u.id AND u.seq = 3 WHERE {where}",
    ])  # fmt: skip


def rows_of(found: list[Row]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in found), key=repr)


def plain(held: Any) -> Any:
    if isinstance(held, Decimal):
        return int(held) if held == held.to_integral_value() else held.normalize()
    return held


@pytest.mark.parametrize("seed", range(3))
def test_a_select_is_what_duckdb_says(seed: int, db: Database) -> None:
    draw = random.Random(seed)
    model: dict[str, dict[tuple[Any, ...], Row]] = {"items": {}, "others": {}}
    indexes = [Index("by_kind", "kind", ("n", "N")), Index("by_seq", ("seq", "N"))]
    db.create_table(
        "items", "id", ("seq", "N"), stream=draw.choice(["KEYS_ONLY", "NEW_AND_OLD_IMAGES"]), indexes=indexes
    )
    db.create_table("others", "id", ("seq", "N"), indexes=indexes[:1])

    def write(count: int) -> None:
        for name in ("items", "others") if draw.random() < 0.7 else ("items",):
            for _ in range(count):
                row = drawn_row(draw)
                key = tuple(row[each] for each in KEYS)
                if draw.random() < 0.25:
                    db.table(name).delete(key)
                    model[name].pop(key, None)
                else:
                    db.table(name).put(row)
                    model[name][key] = row

    reference = duckdb.connect()
    for _ in range(3):
        write(60)
    cached = 0
    for _ in range(40):
        write(draw.choice([0, 0, 1, 5]))
        for name, held in model.items():
            rows = pa.table({column: pa.array([row.get(column) for row in held.values()], type_)
                             for column, type_ in SCHEMA.items()})  # fmt: skip
            reference.register(name, rows)
        text = query(draw)
        relation = reference.sql(text)
        expected = [dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()]
        found = db.sql(text).rows
        if text.startswith("SELECT *"):
            found = [{column: row.get(column) for column in SCHEMA} for row in found]
        wanted = [{name: plain(value) for name, value in row.items()} for row in expected]
        got = [{name: plain(value) for name, value in row.items()} for row in found]
        if "ORDER BY seq" in text and "LIMIT" in text:
            assert [tuple(row.values()) for row in got] == [tuple(row.values()) for row in wanted], text
        assert rows_of(got) == rows_of(wanted), text
        cached += cache_of(db.exports).bytes > 0
    assert cached > 10 or limits.SELECT_SLICE_ROWS > 20
