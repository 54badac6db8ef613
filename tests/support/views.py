"""A view's job without Spark: the same deltas, worked out in one process. And what a view ought to be: its SELECT over
the tables as they are, by DuckDB."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pytest

from tailrace.command import Query
from tailrace.database import Database
from tailrace.jobs.apply import Applied, ApplyView, EncodedDelta, ReadHeld
from tailrace.jobs.view import DescribeView, ViewDescription
from tailrace.jobs.view_delta import Delta, join, key_item, unpack
from tailrace.jobs.view_fill import BeginFill, ClearRows, FillRows, FinishFill
from tailrace.jobs.view_plan import AVG, ViewPlan, plan
from tailrace.scalar import to_attribute
from tailrace.sql.session import Session
from tailrace.storage.engine import Reader
from tailrace.storage.table import META
from tailrace.tables import change
from tailrace.tables.change_reading import ReadEntries
from tailrace.tables.definition import ITEMS, find
from tailrace.tables.value import Item, decode


class Items(Query[tuple[int, list[Item]]], frozen=True):
    """All items of a table, and the sequence that they are of."""

    table: str

    def run(self, reader: Reader) -> tuple[int, list[Item]]:
        row = reader.get(META, f"counter/{change.SEQUENCE}")
        items = [decode(each.body) for each in reader.scan(ITEMS, find(reader, self.table).space)]
        return int(row.value) if row else 0, items


def run(db: Database, text: str, *params: Any) -> list[dict[str, Any]]:
    return Session(db.execute).run(text, params)[-1].rows


def planned(described: ViewDescription) -> ViewPlan:
    return plan(described.sql, described.tables)


def moves(wire: dict[str, Any]) -> EncodedDelta:
    """What the server makes of what was sent."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(wire), type=EncodedDelta)


def work_out(db: Database, name: str, plan_: ViewPlan, delta: Delta, *, asks: bool = True) -> Delta:
    """The delta with what its changes mean through the join, as another process has it. Not `asks`: the view has
    nothing yet."""
    delta = unpack(plan_, delta.packed())
    if plan_.join is not None and not asks:
        join(plan_, delta, lambda side, text: [], lambda side, text: 0)
    elif plan_.join is not None:

        def held(side: int, text: str) -> list[Item]:
            found: list[Item] = []
            after = b""
            while True:
                (answer,) = db.execute(ReadHeld(name, ((side, text, True, after),)))
                found += answer.rows
                if answer.next is None:
                    return found
                after = answer.next

        join(plan_, delta, held, lambda side, text: db.execute(ReadHeld(name, ((side, text, False, b""),)))[0].count)
    return unpack(plan_, delta.packed())


def advance(db: Database, name: str, entries: int = 1_000_000) -> Applied | None:
    """Move a view on by so many transactions of each source; None if there are none."""
    described = db.execute(DescribeView(name))
    plan_ = planned(described)
    delta = Delta(plan_)
    ranges = {}
    for side, source in enumerate(described.sources):
        page = db.execute(ReadEntries(source.table, position=source.position, entries_max=entries))
        assert source.position is not None
        ranges[source.log] = (source.position, page.entries[-1].next if page.entries else source.position)
        for entry in page.entries:
            for record in change.decode(entry):
                if plan_.join is None:
                    delta.change(record.old, record.new)
                else:
                    delta.side(side, record.old, record.new)
    if all(start == end for start, end in ranges.values()):
        return None
    delta = work_out(db, name, plan_, delta)
    applied: Applied = db.execute(ApplyView(name, ranges, moves(delta.wire())))
    return applied


def fill(db: Database, name: str, piece: int = 3) -> None:
    """Refill a view."""
    fill_ = db.execute(BeginFill(name))
    while db.execute(ClearRows(name, fill_)):
        pass
    described = db.execute(DescribeView(name))
    plan_ = planned(described)
    delta = Delta(plan_)
    sequences = {}
    for side, source in enumerate(described.sources):
        sequences[source.table], items = db.execute(Items(source.table))
        for item in items:
            if plan_.join is None:
                delta.change(None, item)
            else:
                delta.side(side, None, item)
    delta = work_out(db, name, plan_, delta, asks=False)
    for number, wire in enumerate(delta.parts(piece), start=1):
        assert db.execute(FillRows(name, fill_, number, moves(wire)))
        assert not db.execute(FillRows(name, fill_, number, moves(wire)))  # twice is once
    db.execute(FinishFill(name, fill_, sequences))


# -- what it ought to be


def rows_of(db: Database, name: str) -> dict[str, Item]:
    """The view's rows by their key."""
    keys = [key for key, _ in db.execute(DescribeView(name)).keys]
    return {repr([item[key] for key in keys]): item for item in db.execute(Items(name))[1]}


def expected(db: Database, name: str) -> dict[str, Item]:
    """The same, by SELECT over the tables as they are."""
    described = db.execute(DescribeView(name))
    plan_ = planned(described)
    names = [key for key, _ in plan_.keys]
    found: dict[str, Item] = {}
    for row in run(db, described.sql):
        values = [to_attribute(row[group.name]) for group in plan_.groups]
        item = key_item(plan_, values)
        others = [each.name for each in plan_.aggregates] + [each for each, _ in plan_.values]
        item |= {each: to_attribute(row[each]) for each in others}
        found[repr([item[each] for each in names])] = item
    return found


def check(db: Database, name: str) -> None:
    """The view is what its SELECT says. Of an average, the last digits may be another's."""
    described = db.execute(DescribeView(name))
    means = [each.name for each in planned(described).aggregates if each.function == AVG]
    is_, ought = rows_of(db, name), expected(db, name)
    assert is_.keys() == ought.keys(), described.sql
    for key, item in ought.items():
        row = dict(is_[key])
        for each in means:
            mine, theirs = row.pop(each), item.pop(each)
            assert ("N" in mine) == ("N" in theirs), (described.sql, key)
            if "N" in mine:
                assert float(Decimal(mine["N"])) == pytest.approx(float(Decimal(theirs["N"])), rel=1e-12)
        assert row == item, described.sql
