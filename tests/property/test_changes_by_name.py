"""Reads of change streams by name: what a reader of pages must never lose, split or see twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

import tailrace
from tailrace.check import check_database
from tailrace.clock import ManualClock
from tailrace.database import Database
from tailrace.errors import Error
from tailrace.tables import change_reading, value
from tailrace.tables import schema as schemas
from tailrace.tables.change import BOTH, NEW_IMAGE
from tailrace.tables.commands import BatchWrite, ItemCommand, PutItem, TransactWrite
from tailrace.tables.definition import Attribute
from tailrace.tables.lifecycle import CreateTable
from tailrace.tables.schema import KeyElement, StreamSpec, TableSpec
from tests.support.table_model import Plain, plain_item, wire_item


@pytest.fixture
def db(tmp_path: Any) -> Iterator[Database]:
    with tailrace.open(tmp_path / "data", clock=ManualClock(), housekeeping_s=None) as db:
        spec = TableSpec(
            name="orders",
            attributes=(Attribute("pk", "S"),),
            keys=(KeyElement("pk", "HASH"),),
            billing=schemas.PAY_PER_REQUEST,
            stream=StreamSpec(True, BOTH),
        )
        db.execute(CreateTable(spec))
        yield db
    assert check_database(tmp_path / "data").findings == []


def put(name: str) -> PutItem:
    return PutItem("orders", *value.item_from_plain({"pk": name}))


@pytest.mark.parametrize("before", [0, 1, 37, 99, 100])
def test_a_read_of_100_records_in_the_middle_of_a_150_item_transaction_loses_nothing(db: Database, before: int) -> None:
    """Whatever stands before it: the read ends with the transaction, not inside it."""
    for number in range(before):
        db.execute(put(f"before {number}"))
    db.execute(BatchWrite(tuple(put(f"item {number}") for number in range(150))))
    for number in range(5):
        db.execute(put(f"after {number}"))
    expected = [*(f"before {number}" for number in range(before)), *(f"item {number}" for number in range(150))]
    expected += [f"after {number}" for number in range(5)]
    names: list[str] = []
    sizes: list[int] = []
    after: int | None = None
    while True:
        page = db.execute(change_reading.ReadChanges("orders", after, 100))
        if not page.records:
            break
        names += [record.keys["pk"]["S"] for record in page.records]
        sizes.append(len(page.records))
        after = page.records[-1].sequence  # all that a reader remembers
        assert page.records[-1].last
    assert names == expected
    assert before + 150 in sizes or 150 in sizes or sizes[0] == before + 150


def test_a_transaction_over_two_tables_has_one_sequence_and_is_one_in_each_stream(db: Database) -> None:
    spec = TableSpec(
        name="lines",
        attributes=(Attribute("pk", "S"),),
        keys=(KeyElement("pk", "HASH"),),
        billing=schemas.PAY_PER_REQUEST,
        stream=StreamSpec(True, NEW_IMAGE),
    )
    db.execute(CreateTable(spec))
    other = PutItem("lines", *value.item_from_plain({"pk": "l"}))
    actions: tuple[ItemCommand, ...] = (put("a"), other, put("b"))
    written = db.execute(TransactWrite(actions)).written
    read: Callable[[str], list[Any]] = lambda name: db.execute(change_reading.ReadChanges(name)).records  # noqa: E731
    assert {record.sequence for name in ("orders", "lines") for record in read(name)} == {written[0].sequence}
    assert [(record.index, record.last) for record in read("orders")] == [(0, False), (1, True)]
    assert [(record.index, record.last) for record in read("lines")] == [(0, True)]


def test_the_model_says_what_items_look_like() -> None:
    """The conversions that everything above relies on."""
    item: Plain = {"a": Decimal("1.50"), "b": b"\0", "c": frozenset("xy"), "d": (None, "x"), "e": None}
    assert plain_item(wire_item(item)) == item
    assert plain_item(value.decode(value.encode(value.item_from_plain(item)[0]))) == item
    with pytest.raises(Error):
        value.item_from_plain({"a": 1.5})
