"""UPDATE, DELETE and INSERT … ON CONFLICT against a model: random rows and statements, found by keys, ranges and an
index, in slices. The model judges conditions by DuckDB, whose logic is three-valued too."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pytest

import tailrace
from tailrace import limits
from tailrace.database import Database

SCHEMA = {"id": pa.string(), "seq": pa.int64(), "n": pa.int64(), "kind": pa.string()}
Row = dict[str, Any]
Key = tuple[str, int]


@pytest.fixture
def db(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setattr(limits, "SELECT_SLICE_ROWS", 7)
    with tailrace.open(data_dir, housekeeping_s=None) as opened:
        indexes = [tailrace.Index("by_kind", "kind")]
        opened.create_table("t", "id", ("seq", "N"), stream="NEW_AND_OLD_IMAGES", indexes=indexes)
        yield opened


def condition(draw: random.Random) -> str:
    def one() -> str:
        a, b = draw.randrange(-3, 9), draw.randrange(-3, 9)
        return draw.choice([
            f"id = 'p{a}'", f"id IN ('p1', 'p{b}')", f"seq = {a}", f"seq BETWEEN {a} AND {b}", f"seq > {a}",
            f"n < {b}", f"n + seq = {a}", "n IS NULL", f"kind = 'k{a % 3}'", f"kind IN ('k0', 'k{b % 4}')",
            "kind LIKE 'k%'", f"NOT (n > {a})", f"kind <> 'k{b % 3}'", "true", f"coalesce(n, 0) >= {a}",
        ])  # fmt: skip

    text = one()
    for _ in range(draw.randrange(3)):
        text = f"{text} {draw.choice(['AND', 'AND', 'OR'])} {one()}"
    return text if draw.random() < 0.8 else f"NOT ({text})"


def meeting(model: dict[Key, Row], where: str) -> set[Key]:
    rows = pa.table({name: pa.array([row.get(name) for row in model.values()], kind) for name, kind in SCHEMA.items()})
    found = duckdb.connect().register("rows", rows).execute(f"SELECT id, seq FROM rows WHERE {where}")
    return {(id_, seq) for id_, seq in found.fetchall()}


def without_nulls(row: Row) -> Row:
    return {name: value for name, value in row.items() if value is not None}


@pytest.mark.parametrize("seed", range(3))
def test_writes_do_what_the_model_does(seed: int, db: Database) -> None:
    draw = random.Random(seed)
    model: dict[Key, Row] = {}
    for _ in range(60):
        kind = draw.random()
        if kind < 0.4:
            rows = {}
            for _ in range(draw.randrange(1, 6)):
                row = {"id": f"p{draw.randrange(6)}", "seq": draw.randrange(8)}
                row |= {
                    "n": draw.choice([None, draw.randrange(9)]),
                    "kind": draw.choice([None, f"k{draw.randrange(3)}"]),
                }
                rows[row["id"], row["seq"]] = row
            update = draw.random() < 0.6
            action = "UPDATE SET n = n + EXCLUDED.n, kind = EXCLUDED.kind WHERE t.n > 2" if update else "NOTHING"
            marks = ", ".join(["(?, ?, ?, ?)"] * len(rows))
            params = [value for row in rows.values() for value in row.values()]
            written = db.sql(
                f"INSERT INTO t (id, seq, n, kind) VALUES {marks} ON CONFLICT DO {action} RETURNING *", params
            )
            expected = set()
            for key, row in rows.items():
                there = model.get(key)
                if there is None:
                    model[key] = without_nulls(row)
                elif not update or there.get("n", 0) <= 2:
                    continue
                else:
                    total = None if row["n"] is None else there["n"] + row["n"]
                    model[key] = without_nulls({**there, "n": total, "kind": row["kind"]})
                expected.add(key)
        elif kind < 0.8:
            where = condition(draw)
            expected = meeting(model, where)
            written = db.sql(
                f"UPDATE t SET n = coalesce(n, 0) + seq, kind = NULLIF(kind, 'k1') WHERE {where} RETURNING *"
            )
            for key in expected:
                row = model[key]
                new = {**row, "n": row.get("n", 0) + row["seq"], "kind": row.get("kind")}
                model[key] = without_nulls({**new, "kind": None if new["kind"] == "k1" else new["kind"]})
        else:
            where = f"({condition(draw)}) AND seq % 3 = {draw.randrange(3)}"
            expected = meeting(model, where)
            written = db.sql(f"DELETE FROM t WHERE {where} RETURNING id, seq")
            for key in expected:
                del model[key]
        assert {(row["id"], row["seq"]) for row in written.rows} == expected
        assert {(row["id"], row["seq"]): row for row in db.table("t").scan()} == model


def routed(draw: random.Random) -> str:
    """A condition over declared columns, in any case, with times and UUIDs in several forms."""

    def moment() -> str:
        day, hour = draw.randrange(1, 4), draw.randrange(24)
        return f"{draw.choice(['', 'TIMESTAMP '])}'2026-01-{day:02}{draw.choice([' ', 'T'])}{hour:02}:00:00'"

    def uuid() -> str:
        text = f"123e4567-e89b-12d3-a456-42661417400{draw.choice('abc')}"
        return f"'{draw.choice([text, text.upper(), text.replace('-', '')])}'"

    def name(column: str) -> str:
        return draw.choice([column, column.lower(), column.upper(), f'"{column}"'])

    def one() -> str:
        at, number = name("At"), name("N")
        a = draw.randrange(4)
        return draw.choice([
            f"{at} {draw.choice(['=', '<>', '<', '<=', '>', '>='])} {moment()}",
            f"{at} BETWEEN {moment()} AND {moment()}", f"{at} IN ({moment()}, {moment()})", f"{at} IS NULL",
            f"coalesce({at}, '2026-01-02') < {moment()}", f"extract(hour FROM {at}) < {draw.randrange(24)}",
            f"{name('Day')} {draw.choice(['=', '<', '>='])} '2026-01-0{draw.randrange(1, 4)}'",
            f"{number} = {a}", f"{number} = '{a}'", f"{number} + 1 > {a}", f"{number} IN ({a}, 2)",
            f"{name('Name')} = 'a{a}'", f"lower({name('Name')}) LIKE 'a%'",
            f"{name('Ref')} {draw.choice(['=', '<>', '>'])} {uuid()}", f"{name('Ref')} IN ({uuid()}, {uuid()})",
        ])  # fmt: skip

    text = one()
    for _ in range(draw.randrange(3)):
        text = f"{text} {draw.choice(['AND', 'OR'])} {one()}"
    return text if draw.random() < 0.7 else f"NOT ({text})"


@pytest.mark.parametrize("seed", range(3))
def test_a_route_delivers_the_rows_that_update_and_select_find(seed: int, db: Database) -> None:
    """The filter of a route, that of a backfill, and WHERE mean the same over declared columns."""
    draw = random.Random(seed)
    db.sql("CREATE TABLE r (Id TEXT PRIMARY KEY, At TIMESTAMP, Day DATE, N BIGINT, Name TEXT, Ref UUID)")
    conditions = [routed(draw) for _ in range(20)]
    for number, where in enumerate(conditions):
        db.sql(f"CREATE TOPIC live{number}; CREATE TOPIC old{number}")
        db.sql(f"ALTER TOPIC live{number} ADD SOURCE r ON INSERT WHERE ({where})")
    for number in range(40):
        values = [
            f"2026-01-{draw.randrange(1, 4):02}T{draw.randrange(24):02}:00:00", f"2026-01-0{draw.randrange(1, 4)}",
            draw.randrange(4), draw.choice(["a", "A"]) + str(draw.randrange(4)),
            f"123E4567-e89b-12d3-a456-42661417400{draw.choice('aBc')}",
        ]  # fmt: skip
        given = [None if draw.random() < 0.2 else value for value in values]
        db.sql("INSERT INTO r VALUES (?, ?, ?, ?, ?, ?)", [str(number), *given])
    for number, where in enumerate(conditions):
        db.sql(f"ALTER TOPIC old{number} ADD SOURCE r ON INSERT WHERE ({where}) WITH (backfill = true)")
    db.sweep()
    for number, where in enumerate(conditions):
        found = sorted(row["Id"] for row in db.sql(f"SELECT Id FROM r WHERE {where}").rows)
        updated = db.sql(f"UPDATE r SET Name = Name WHERE {where} RETURNING Id").rows
        assert sorted(row["Id"] for row in updated) == found, where
        for topic in (f"live{number}", f"old{number}"):
            sent = db.sql(f"SELECT value FROM topic('{topic}')").rows
            assert sorted(msgspec.json.decode(row["value"])["Id"] for row in sent) == found, (topic, where)
