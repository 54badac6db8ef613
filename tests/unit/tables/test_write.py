"""One item written: the item, its places in indexes and expiry, counts and records move together, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.check import check_database
from tailrace.clock import ManualClock
from tailrace.database import Database
from tailrace.errors import Invalid
from tailrace.storage.engine import Tx
from tailrace.storage.sqlite import SqliteEngine
from tailrace.tables import change_reading, schema, value, write
from tailrace.tables import key as keys
from tailrace.tables.capacity import Capacity, IndexCapacity, read_units, write_units
from tailrace.tables.change import Capture
from tailrace.tables.commands import DeleteItem, PutItem, UpdateItem
from tailrace.tables.definition import (
    COUNTS,
    INDEX_ENTRIES,
    ITEMS,
    Attribute,
    CountRow,
    Definition,
    IndexDefinition,
    Projection,
    counted,
    find,
)
from tailrace.tables.expression import Placeholders, update
from tailrace.tables.lifecycle import CreateTable, SetTimeToLive, UpdateTable
from tests.unit.tables.changes import Do


def index(name: str, *names: str, projection: schema.ProjectionSpec | None = None) -> schema.IndexSpec:
    elements = [schema.KeyElement(key, role) for key, role in zip(names, ("HASH", "RANGE"), strict=False)]
    return schema.IndexSpec(name, tuple(elements), projection or schema.ProjectionSpec("ALL"))


KINDS = {"pk": "S", "sk": "N", "g": "S", "n": "N", "l": "S"}
SPEC = schema.TableSpec(
    name="orders",
    attributes=tuple(Attribute(name, kind) for name, kind in KINDS.items()),
    keys=(schema.KeyElement("pk", "HASH"), schema.KeyElement("sk", "RANGE")),
    local=(index("local", "pk", "l", projection=schema.ProjectionSpec("KEYS_ONLY")),),
    globals=(index("global", "g", "n", projection=schema.ProjectionSpec("INCLUDE", ("v",))),),
    billing=schema.PAY_PER_REQUEST,
    stream=schema.StreamSpec(True, "NEW_AND_OLD_IMAGES"),
)


@pytest.fixture
def db(data_dir: Path) -> Iterator[Database]:
    with Database(SqliteEngine(data_dir), clock=ManualClock(), housekeeping_s=None) as db:
        db.execute(CreateTable(SPEC))
        yield db
    assert check_database(data_dir).findings == []


def put(db: Database, **attributes: Any) -> int | None:
    item, size = value.item_from_plain({"pk": "a", "sk": 1, **attributes})
    return db.execute(PutItem("orders", item, size)).sequence


def delete(db: Database, pk: str = "a", sk: int = 1) -> int | None:
    return db.execute(DeleteItem("orders", value.item_from_plain({"pk": pk, "sk": sk})[0])).sequence


def definition(db: Database) -> Definition:
    with db._engine.reader() as reader:
        return find(reader, "orders")


def held(db: Database, name: str) -> tuple[int, CountRow]:
    """How many entries an index has, and what its counts say."""
    space = definition(db).by_name[name].space
    with db._engine.reader() as reader:
        return len(list(reader.scan(INDEX_ENTRIES, space))), counted(reader, space)


def expiring(db: Database) -> list[bytes]:
    with db._engine.reader() as reader:
        return [row.key for row in reader.scan(INDEX_ENTRIES, definition(db).ttl_space)]


def all_rows(db: Database) -> list[Any]:
    with db._engine.reader() as reader:
        return [list(reader.scan(table)) for table in (ITEMS, INDEX_ENTRIES, COUNTS)]


# -- items and counts


def test_counts_follow_items(db: Database) -> None:
    space = definition(db).space

    def count() -> tuple[int, int]:
        with db._engine.reader() as reader:
            row = counted(reader, space)
        return row.items, row.bytes

    put(db)
    empty = 2 + 1 + 2 + 2  # pk: a, sk: 1
    assert count() == (1, empty)
    put(db, v="xyz")
    assert count() == (1, empty + 4)
    put(db, sk=2)
    assert count() == (2, 2 * empty + 4)
    delete(db)
    assert count() == (1, empty)
    delete(db)
    assert count() == (1, empty), "it was gone already"
    delete(db, sk=2)
    assert count() == (0, 0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"v": 1}, {"v": 1}),
        ({"v": {"a", "b", "c"}}, {"v": {"c", "b", "a"}}),
        ({"v": 1, "w": 2}, {"w": 2, "v": 1}),
        ({"v": {"x": 1, "y": 2}}, {"v": {"y": 2, "x": 1}}),
        ({"g": "x", "n": 1, "l": "y"}, {"l": "y", "n": 1, "g": "x"}),
    ],
)
def test_a_write_that_changes_nothing_leaves_nothing_behind(db: Database, before: Any, after: Any) -> None:
    """Not a record, not a sequence, and the item stays as it was stored."""
    assert put(db, **before) is not None
    rows = all_rows(db)
    assert put(db, **after) is None
    nothing = update("REMOVE nothing", Placeholders(None, None))
    key, _ = value.item_from_plain({"pk": "a", "sk": 1})
    assert db.execute(UpdateItem("orders", key, nothing)).sequence is None
    assert db.execute(UpdateItem("orders", key)).sequence is None
    assert all_rows(db) == rows


@pytest.mark.parametrize(
    ("before", "after"), [({"v": 1}, {"v": "1"}), ({"v": [1, 2]}, {"v": [2, 1]}), ({"v": {"a"}}, {"v": {"b"}})]
)
def test_a_write_that_changes_something_of_the_same_length_is_one(db: Database, before: Any, after: Any) -> None:
    put(db, **before)
    assert put(db, **after) is not None


# -- indexes


def test_an_item_is_in_an_index_while_it_has_its_keys(db: Database) -> None:
    put(db)
    assert held(db, "global")[0] == held(db, "local")[0] == 0
    put(db, g="x")
    assert held(db, "global")[0] == 0, "it lacks the range key"
    put(db, g="x", n=1, l="y")
    assert held(db, "global")[0] == held(db, "local")[0] == 1
    put(db, g="y", n=1, l="z")
    assert held(db, "global")[0] == held(db, "local")[0] == 1, "it moved"
    put(db, sk=2, g="y", n=1, l="z")
    assert held(db, "global")[0] == held(db, "local")[0] == 2, "items may share an index key"
    put(db, g="y", l="z")
    assert (held(db, "global")[0], held(db, "local")[0]) == (1, 2)
    delete(db)
    delete(db, sk=2)
    assert held(db, "global") == (0, CountRow(definition(db).by_name["global"].space, 0, 0))


def test_an_index_counts_what_it_projects(db: Database) -> None:
    put(db, g="x", n=1, l="y", v="12345", other="not in any of them" * 10)
    keys_only = 2 + 1 + 2 + 2  # pk, sk
    assert held(db, "global")[1].bytes == keys_only + (1 + 1) + (1 + 2) + (1 + 5)
    assert held(db, "local")[1].bytes == keys_only + (1 + 1)
    put(db, g="x", n=1, l="y", v="1")
    assert held(db, "global")[1].bytes == keys_only + (1 + 1) + (1 + 2) + (1 + 1), "it stays where it is and shrinks"
    assert held(db, "global")[1].items == 1


@pytest.mark.parametrize(
    "wrong", [{"g": 1, "n": 1}, {"g": "", "n": 1}, {"g": "x", "n": "1"}, {"l": b"y"}, {"g": {"x"}}]
)
def test_an_index_key_of_the_wrong_type_is_refused_and_nothing_is_changed(db: Database, wrong: Any) -> None:
    put(db, g="x", n=1, l="y")
    rows = all_rows(db)
    with pytest.raises(Invalid):
        put(db, **wrong)
    with pytest.raises(Invalid):
        put(db, sk=9, **wrong)
    assert all_rows(db) == rows


def test_what_does_not_fit_an_index_made_later_is_not_in_it(db: Database) -> None:
    put(db, late=1)
    put(db, sk=2, late="fits")
    changes = schema.TableChanges(
        attributes=(Attribute("late", "S"),), indexes=(schema.IndexChange(create=index("late", "late")),)
    )
    db.execute(UpdateTable("orders", changes))
    db.sweep()
    assert held(db, "late")[0] == 1
    delete(db)
    put(db, sk=2)
    assert held(db, "late")[0] == 0


def test_a_write_to_an_index_that_is_being_filled_is_counted_once(db: Database) -> None:
    """Whether the filling has come to the item already or not."""
    for number in range(4):
        put(db, sk=number, late="x")
    changes = schema.TableChanges(
        attributes=(Attribute("late", "S"),), indexes=(schema.IndexChange(create=index("late", "late")),)
    )
    db.execute(UpdateTable("orders", changes))
    put(db, sk=0, late="x", v=1)  # stays where it will be
    put(db, sk=1, late="y")  # moves
    put(db, sk=2)  # leaves
    delete(db, sk=3)
    put(db, sk=4, late="z")  # comes
    assert held(db, "late")[0] == 3
    db.sweep()
    entries, count = held(db, "late")
    assert (entries, count.items) == (3, 3)


# -- expiry


def test_an_item_stands_in_the_order_of_expiry_by_its_number(db: Database) -> None:
    db.execute(SetTimeToLive("orders", "until", True))
    put(db, until=200)
    put(db, sk=2, until=100)
    put(db, sk=3, until="never")
    put(db, sk=4)
    assert len(expiring(db)) == 2
    space = definition(db)
    first = keys.item_key(space, value.item_from_plain({"pk": "a", "sk": 2})[0])
    assert expiring(db)[0] == keys.ttl_key("100", first)
    put(db, sk=2, until=300)
    assert expiring(db)[1] == keys.ttl_key("300", first)
    put(db, until="never")
    delete(db, sk=2)
    assert expiring(db) == []


def test_the_service_removes_an_item_under_its_own_name(db: Database) -> None:
    db.execute(SetTimeToLive("orders", "until", True))
    put(db, until=1, g="x", n=1)
    key = keys.item_key(definition(db), value.item_from_plain({"pk": "a", "sk": 1})[0])
    assert db.execute(Do(lambda tx: write.remove(tx, find(tx, "orders"), key))) is True
    assert db.execute(Do(lambda tx: write.remove(tx, find(tx, "orders"), key))) is False
    record = db.execute(change_reading.ReadChanges("orders")).records[-1]
    assert (record.event, record.by) == ("REMOVE", "ttl")
    assert record.old is not None
    assert record.keys == {"pk": {"S": "a"}, "sk": {"N": "1"}}
    assert held(db, "global")[0] == 0
    assert expiring(db) == []


# -- what it would cost


def test_units_of_reads_and_writes() -> None:
    assert [read_units(size, True) for size in (0, 1, 4096, 4097)] == [1, 1, 1, 2]
    assert [read_units(size, False) for size in (0, 4096, 4097)] == [0.5, 0.5, 1]
    assert read_units(4097, True, transactional=True) == 4
    assert [write_units(size) for size in (0, 1, 1024, 1025)] == [1, 1, 1, 2]
    assert write_units(1025, transactional=True) == 4


def test_units_add_up() -> None:
    one = Capacity("t", 1.0, 2.0, {"a": IndexCapacity(1.0, 0.0, True)})
    two = Capacity("t", 0.5, 0.0, {"a": IndexCapacity(1.0, 1.0, True), "b": IndexCapacity(0.0, 3.0, False)})
    both = one + two
    assert both == Capacity("t", 1.5, 2.0, {"a": IndexCapacity(2.0, 1.0, True), "b": IndexCapacity(0.0, 3.0, False)})
    assert (both.total_read, both.total_write, both.total) == (3.5, 6.0, 9.5)
    assert one.parts == {"a": IndexCapacity(1.0, 0.0, True)}, "neither is changed"


def units(db: Database, old: dict[str, Any] | None, new: dict[str, Any] | None, transactional: bool = False) -> Any:
    """What a write from one item to another would cost: the table's units, and each index's."""

    def work(tx: Tx) -> Capacity:
        known = find(tx, "orders")
        key, _ = value.item_from_plain({"pk": "u", "sk": 1})
        place = keys.key_of(known, key)
        for image in (old, new):
            plan = write.find(tx, known, place, key)
            if image is not None:
                plan.new, plan.size = value.item_from_plain({"pk": "u", "sk": 1, **image})
            if image is old:
                write.do(tx, plan, Capture())
        cost = write.units(plan, transactional=transactional)
        plan = write.find(tx, known, place, key)
        write.do(tx, plan, Capture())
        return cost

    cost = db.execute(Do(work))
    return cost.write, {name: part.write for name, part in cost.parts.items()}


def test_units_of_a_write(db: Database) -> None:
    indexed = {"g": "x", "n": 1, "l": "y"}
    assert units(db, None, {}) == (1, {})
    assert units(db, None, indexed) == (1, {"local": 1, "global": 1})
    assert units(db, indexed, None) == (1, {"local": 1, "global": 1})
    assert units(db, indexed, {**indexed, "other": 1}) == (1, {}), "the indexes hold nothing of it"
    assert units(db, indexed, {**indexed, "v": 1}) == (1, {"global": 1})
    assert units(db, indexed, {**indexed, "g": "z"}) == (1, {"global": 2}), "removed and put"
    assert units(db, {"v": "x" * 3000}, {"v": "x"}) == (3, {}), "the larger of the two"
    assert units(db, {"v": "x"}, {"v": "x" * 3000}, transactional=True) == (6, {})
    assert units(db, None, None) == (1, {}), "also what deletes nothing"


def test_what_an_index_projects() -> None:
    made = Definition("t", 1, "", 0, (Attribute("pk", "S"), Attribute("g", "S")), "pk")
    item = {"pk": {"S": "a"}, "g": {"S": "b"}, "v": {"N": "1"}, "w": {"N": "2"}}
    for projection, names in (
        (Projection(), {"pk", "g", "v", "w"}),
        (Projection("KEYS_ONLY"), {"pk", "g"}),
        (Projection("INCLUDE", ("v", "missing")), {"pk", "g", "v"}),
    ):
        assert write.projected(made, IndexDefinition("i", 2, False, ("g",), (), projection), item).keys() == names
