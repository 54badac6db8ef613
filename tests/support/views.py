"""A view's job without Spark: the SELECT runs again, by the server's own SQL, and its rows are staged and applied."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from tailrace.command import Query
from tailrace.database import Database
from tailrace.jobs.apply import Applied, ApplyView
from tailrace.jobs.commands import StageRows
from tailrace.jobs.rows import PARTIALS
from tailrace.jobs.stage import TABLE, Target
from tailrace.jobs.target import ResolvedTarget, checked, resolve
from tailrace.jobs.view import DescribeView, PlanView, ViewShape
from tailrace.jobs.view_fill import BeginFill, ClearRows, FillRows, FinishFill
from tailrace.scalar import to_attribute
from tailrace.sql.session import Session
from tailrace.storage.engine import Reader
from tailrace.storage.table import META
from tailrace.tables import change
from tailrace.tables.definition import ITEMS, find
from tailrace.tables.value import Item, decode


class Items(Query[tuple[int, list[Item]]], frozen=True):
    """All items of a table, and the sequence that they are of."""

    table: str

    def run(self, reader: Reader) -> tuple[int, list[Item]]:
        row = reader.get(META, f"counter/{change.SEQUENCE}")
        items = [decode(each.body) for each in reader.scan(ITEMS, find(reader, self.table).space)]
        return int(row.value) if row else 0, items


class _Resolve(Query[ResolvedTarget], frozen=True):
    table: str

    def run(self, reader: Reader) -> ResolvedTarget:
        return resolve(reader, Target(TABLE, self.table))


def run(db: Database, text: str, *params: Any) -> list[dict[str, Any]]:
    return Session(db.execute).run(text, params)[-1].rows


def plan(
    db: Database, name: str, *columns: tuple[str, str], key: tuple[tuple[str, str], ...] = (), partials: str = ""
) -> None:
    """Report the plan of a view; with the form of its partial aggregates, if it is kept by them."""
    explained = ("Aggregate: affected groups [status]",)
    shape = ViewShape(key or (("status", "S"),), columns, "groups", explained, partials=partials)
    db.execute(PlanView(name, shape))


def stage(db: Database, name: str, rows: list[tuple[str, Item]]) -> str:
    """Stage rows for a view's table; the id of the stage. Of a view that is kept by partial aggregates, that of a row
    is the text of its column `n`."""
    here = db.execute(_Resolve(name))
    if getattr(here.thing, "partials_space", None) is not None:
        made = checked(here, _arrow(rows), arrow=True)
    else:
        made = checked(here, msgspec.msgpack.encode(rows))
    return db.execute(StageRows(here.target, here.number, made.rows, made.body)).stage.id


def _arrow(rows: list[tuple[str, Item]]) -> bytes:
    names = sorted({name for _, item in rows for name in item} | {"n"})
    kinds = {"S": str, "N": Decimal}

    def plain(value: dict[str, Any] | None) -> Any:
        return None if value is None else next(kinds[kind](text) for kind, text in value.items())

    columns = {name: [plain(item.get(name)) for _, item in rows] for name in names}
    texts = [None if op == "DELETE" else item["n"]["N"] for op, item in rows]
    return _stream(pa.table(columns | {"_op": [op for op, _ in rows], PARTIALS: pa.array(texts, pa.string())}))


def _stream(table: pa.Table) -> bytes:
    made = pa.BufferOutputStream()
    with pa.ipc.new_stream(made, table.schema) as writer:
        writer.write_table(table)
    body: bytes = made.getvalue().to_pybytes()
    return body


def form(db: Database, name: str) -> str:
    """The form of the view's partial aggregates; empty if it has none."""
    shape = db.execute(DescribeView(name)).shape
    return "" if shape is None else shape.partials


class _Partials(Query[list[str]], frozen=True):
    name: str

    def run(self, reader: Reader) -> list[str]:
        space = find(reader, self.name).partials_space
        return [] if space is None else [each.body.decode() for each in reader.scan(ITEMS, space)]


def partials(db: Database, name: str) -> list[str]:
    """The partial aggregates of a view, all of them."""
    return db.execute(_Partials(name))


def keys(*texts: str, column: str = "status") -> bytes:
    """Keys of a view's rows, as a job sends them."""
    return _stream(pa.table({column: list(texts)}))


def selected(db: Database, name: str) -> dict[str, Item]:
    """The rows of the view's SELECT by their key, which is one column of text."""
    described = db.execute(DescribeView(name))
    ((key, _),) = described.keys
    rows = run(db, described.sql)
    found = [{column: to_attribute(value) for column, value in row.items() if value is not None} for row in rows]
    return {item[key]["S"]: item for item in found}


def writes(db: Database, name: str) -> list[tuple[str, Item]]:
    """What has to be written so that the view is its SELECT."""
    ((key, _),) = db.execute(DescribeView(name)).keys
    now = selected(db, name)
    gone = [each for each in db.execute(Items(name))[1] if each[key]["S"] not in now]
    return [*(("DELETE", {key: each[key]}) for each in gone), *(("PUT", item) for item in now.values())]


def advance(db: Database, name: str) -> Applied | None:
    """Apply all changes of a view's sources; None if there are none."""
    described = db.execute(DescribeView(name))
    ranges = {source.log: (source.position or 0, source.next) for source in described.sources}
    if all(start == end for start, end in ranges.values()):
        return None
    applied: Applied = db.execute(ApplyView(name, ranges, (stage(db, name, writes(db, name)),), 1, form(db, name)))
    return applied


def fill(db: Database, name: str) -> None:
    """Fill a view, a row at a time."""
    number = db.execute(BeginFill(name))
    while db.execute(ClearRows(name, number)):
        pass
    sequences = {source.table: db.execute(Items(source.table))[0] for source in db.execute(DescribeView(name)).sources}
    for piece, item in enumerate(selected(db, name).values(), start=1):
        assert db.execute(FillRows(name, number, piece, (stage(db, name, [("PUT", item)]),)))
        assert not db.execute(FillRows(name, number, piece, (stage(db, name, [("PUT", item)]),)))  # twice is once
    db.execute(FinishFill(name, number, sequences))


def check(db: Database, name: str) -> None:
    """The view is what its SELECT says."""
    ((key, _),) = db.execute(DescribeView(name)).keys
    assert {each[key]["S"]: each for each in db.execute(Items(name))[1]} == selected(db, name)
    if form(db, name):
        assert sorted(partials(db, name)) == sorted(each["n"]["N"] for each in selected(db, name).values())
