"""Housekeeping of tables happens in steps that can be cut off anywhere, and never touches what it must not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace import failpoints, limits
from tailrace.check import check_database
from tailrace.clock import ManualClock
from tailrace.command import Command, Query
from tailrace.database import Database
from tailrace.housekeeping import DueWork, FindDueWork, Housekeeper, HousekeepingTask
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.sqlite import SqliteEngine
from tailrace.tables import change_info, change_reading, sweep, value, write
from tailrace.tables import key as keys
from tailrace.tables.change import Capture
from tailrace.tables.definition import (
    ACTIVE,
    BACKFILLS,
    CREATING,
    DROPPED_SPACES,
    INDEX_ENTRIES,
    ITEMS,
    TOKEN_AGES,
    TOKENS,
    Attribute,
    Definition,
    TokenAgeRow,
    TokenRow,
    find,
)
from tailrace.tables.lifecycle import (
    CreateTable,
    DeleteTable,
    DescribeTable,
    SetTimeToLive,
    TableDescription,
    UpdateTable,
)
from tailrace.tables.schema import IndexChange, IndexSpec, KeyElement, StreamSpec, TableChanges, TableSpec
from tests.support.patience import PATIENCE_S

NOW_S = 1_700_000_000
EXPIRE = next(task for task in sweep.TASKS if task.name == "tables.expire")
YEAR_S = 365 * 24 * 3600


def found(db: Database, task: HousekeepingTask[Any]) -> list[Command[Any]]:
    """The commands that are due for a task."""
    return list(db.execute(FindDueWork(task)).commands)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_S * 1000)


@pytest.fixture
def db(data_dir: Path, clock: ManualClock) -> Iterator[Database]:
    with Database(SqliteEngine(data_dir), clock=clock, housekeeping_s=None) as db:
        yield db
    failpoints.disarm()
    assert check_database(data_dir).findings == []


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SWEEP_ITEMS", 3)
    monkeypatch.setattr(limits, "SWEEP_ROWS", 3)


class Put(Command[None], frozen=True):
    """The smallest write of an item; without attributes but the key's it is a removal."""

    item: dict[str, dict[str, Any]]
    remove: bool = False

    def run(self, tx: Tx) -> None:
        definition = find(tx, "orders")
        plan = write.find(tx, definition, keys.item_key(definition, self.item), self.item)
        if not self.remove:
            plan.new, plan.size = self.item, value.item_size(self.item)
        capture = Capture()
        write.do(tx, plan, capture)
        capture.append(tx)


class Held(Query[list[Any]], frozen=True):
    """All rows of a table of rows, or of one space of it."""

    table: Any
    prefix: tuple[Any, ...] = ()

    def run(self, reader: Reader) -> list[Any]:
        return list(reader.scan(self.table, *self.prefix))


def create(db: Database, **options: Any) -> Definition:
    spec = TableSpec(
        name="orders",
        attributes=(Attribute("a", "S"),),
        keys=(KeyElement("a", "HASH"),),
        billing="PAY_PER_REQUEST",
        **options,
    )
    return db.execute(CreateTable(spec)).definition


def index(db: Database, name: str = "byb", kind: str = "S") -> TableDescription:
    create = IndexChange(create=IndexSpec(name, (KeyElement("b", "HASH"),)))
    return db.execute(UpdateTable("orders", TableChanges(attributes=(Attribute("b", kind),), indexes=(create,))))


def put(db: Database, name: str, **attributes: dict[str, Any]) -> None:
    db.execute(Put({"a": {"S": name}, **attributes}))


def names(db: Database) -> set[str]:
    space = db.execute(DescribeTable("orders")).definition.space
    return {value.decode(row.body)["a"]["S"] for row in db.execute(Held(ITEMS, (space,)))}


def indexed(db: Database, name: str = "byb") -> set[str]:
    definition = db.execute(DescribeTable("orders")).definition
    bodies = {row.key: row.body for row in db.execute(Held(ITEMS, (definition.space,)))}
    entries = db.execute(Held(INDEX_ENTRIES, (definition.by_name[name].space,)))
    return {value.decode(bodies[entry.item])["a"]["S"] for entry in entries}


# -- expiry


def test_what_has_expired_is_deleted_and_nothing_else(db: Database, clock: ManualClock) -> None:
    create(db)
    db.execute(SetTimeToLive("orders", "ttl", enabled=True))
    put(db, "past", ttl={"N": str(NOW_S - 60)})
    put(db, "now", ttl={"N": str(NOW_S)})
    put(db, "fraction", ttl={"N": f"{NOW_S - 1}.5"})
    put(db, "later", ttl={"N": str(NOW_S + 60)})
    put(db, "ancient", ttl={"N": str(NOW_S - 5 * YEAR_S - 1)})
    put(db, "old", ttl={"N": str(NOW_S - 5 * YEAR_S + 10)})
    put(db, "zero", ttl={"N": "0"})
    put(db, "negative", ttl={"N": "-1"})
    put(db, "text", ttl={"S": str(NOW_S - 60)})
    put(db, "none")
    db.sweep()
    kept = {"later", "ancient", "zero", "negative", "text", "none"}
    assert names(db) == kept
    clock.advance(60)
    db.sweep()
    assert names(db) == kept - {"later"}


def test_items_from_before_expire_too(db: Database) -> None:
    create(db)
    for n in range(10):
        put(db, f"item{n}", ttl={"N": str(NOW_S - 1 if n % 2 else NOW_S + 1)})
    db.execute(SetTimeToLive("orders", "ttl", enabled=True))
    db.sweep()
    assert names(db) == {f"item{n}" for n in range(0, 10, 2)}


def test_a_refreshed_item_is_never_deleted(db: Database) -> None:
    create(db)
    db.execute(SetTimeToLive("orders", "ttl", enabled=True))
    put(db, "kept", ttl={"N": str(NOW_S - 1)})
    put(db, "gone", ttl={"N": str(NOW_S - 1)})
    assert [found(db, task) for task in sweep.TASKS] == [[], [], [], [sweep.ExpireItems("orders")], []]
    put(db, "kept", ttl={"N": str(NOW_S + 1)})
    assert db.execute(sweep.ExpireItems("orders")) == sweep.Expired(1, done=True)
    assert names(db) == {"kept"}


def test_expiry_that_was_switched_off_deletes_nothing(db: Database) -> None:
    create(db)
    db.execute(SetTimeToLive("orders", "ttl", enabled=True))
    put(db, "kept", ttl={"N": str(NOW_S - 1)})
    (expiry,) = found(db, EXPIRE)
    db.execute(SetTimeToLive("orders", "ttl", enabled=False))
    assert db.execute(expiry) == sweep.Expired(0, done=True)
    assert names(db) == {"kept"}
    db.execute(DeleteTable("orders"))
    assert db.execute(expiry) == sweep.Expired(0, done=True)
    db.sweep()
    assert db.execute(Held(INDEX_ENTRIES)) == []


def test_expiry_makes_records_of_the_service(db: Database) -> None:
    create(db, stream=StreamSpec(enabled=True, view="NEW_AND_OLD_IMAGES"))
    db.execute(SetTimeToLive("orders", "ttl", enabled=True))
    put(db, "gone", ttl={"N": str(NOW_S - 1)})
    db.sweep()
    last = db.execute(change_reading.ReadChanges("orders")).records[-1]
    assert (last.event, last.by, last.keys) == ("REMOVE", "ttl", {"a": {"S": "gone"}})


def test_many_expire_in_steps(db: Database) -> None:
    create(db)
    db.execute(SetTimeToLive("orders", "ttl", enabled=True))
    for n in range(7):
        put(db, f"item{n}", ttl={"N": str(NOW_S - 1)})
    steps = [db.execute(sweep.ExpireItems("orders")) for _ in range(3)]
    assert [(step.items, step.done) for step in steps] == [(3, False), (3, False), (1, True)]
    assert names(db) == set()


def test_a_step_of_expiry_takes_few_large_items(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    create(db)
    db.execute(SetTimeToLive("orders", "ttl", enabled=True))
    monkeypatch.setattr(limits, "SWEEP_BYTES", 1000)
    for number, size in enumerate((2000, 600, 300, 600, 100)):
        put(db, f"{number}", ttl={"N": str(NOW_S - 60 + number)}, b={"S": "x" * size})
    steps = []
    while not (steps and steps[-1].done):
        steps.append(db.execute(sweep.ExpireItems("orders")))
    assert [step.items for step in steps] == [1, 2, 2]
    assert names(db) == set()


def test_what_expired_is_counted(db: Database) -> None:
    create(db)
    db.execute(SetTimeToLive("orders", "ttl", enabled=True))
    for n in range(7):
        put(db, f"item{n}", ttl={"N": str(NOW_S - 1)})
    put(db, "kept", ttl={"N": str(NOW_S + 1)})
    db.sweep()
    assert (db.metrics.items_expired, names(db)) == (7, {"kept"})
    db.sweep()
    assert db.metrics.items_expired == 7


# -- backfill


def test_items_that_do_not_fit_are_passed_over(db: Database) -> None:
    create(db)
    put(db, "good", b={"S": "x"})
    put(db, "number", b={"N": "1"})
    put(db, "empty", b={"S": ""})
    put(db, "huge", b={"S": "x" * 2049})
    put(db, "none")
    assert index(db).definition.indexes[0].status == CREATING
    db.sweep()
    assert indexed(db) == {"good"}
    described = db.execute(DescribeTable("orders"))
    count = described.counts[described.definition.indexes[0].space]
    assert (described.definition.indexes[0].status, count.items) == (ACTIVE, 1)
    assert count.bytes == value.item_size({"a": {"S": "good"}, "b": {"S": "x"}})


def test_writes_between_the_steps(db: Database) -> None:
    """What is written while an index is filled is in it as it was written, wherever the filling has come to."""
    create(db)
    for n in range(12):
        put(db, f"item{n}", b={"S": f"x{n}"})
    space = index(db).definition.indexes[0].space
    assert not db.execute(sweep.BackfillIndex(space))
    for n in range(0, 12, 3):
        put(db, f"item{n}", b={"S": "moved"})
    for n in range(1, 12, 3):
        db.execute(Put({"a": {"S": f"item{n}"}}, remove=True))
    put(db, "item2")
    put(db, "new", b={"S": "new"})
    assert len(indexed(db)) < 9
    db.sweep()
    assert indexed(db) == {f"item{n}" for n in range(12) if n % 3 != 1 and n != 2} | {"new"}
    assert db.execute(Held(BACKFILLS)) == []


def test_a_step_takes_few_large_items(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SWEEP_ITEMS", 100)
    monkeypatch.setattr(limits, "SWEEP_BYTES", 2_500)
    create(db)
    for n in range(5):
        put(db, f"item{n}", b={"S": "x"}, c={"S": "y" * 1000})
    space = index(db).definition.indexes[0].space
    assert [db.execute(sweep.BackfillIndex(space)) for _ in range(3)] == [False, False, True]
    assert len(indexed(db)) == 5


def test_a_crash_between_steps_loses_nothing(db: Database) -> None:
    create(db)
    for n in range(10):
        put(db, f"item{n}", b={"S": "x"})
    index(db)
    failpoints.arm("sweep.step", at=3)
    with pytest.raises(failpoints.Failure):
        db.sweep()
    assert len(indexed(db)) == 6
    db.sweep()
    assert len(indexed(db)) == 10


def test_filling_ends_when_the_index_is_dropped(db: Database) -> None:
    create(db)
    for n in range(5):
        put(db, f"item{n}", b={"S": "x"})
    space = index(db).definition.indexes[0].space
    assert not db.execute(sweep.BackfillIndex(space))
    db.execute(UpdateTable("orders", TableChanges(indexes=(IndexChange(delete="byb"),))))
    assert db.execute(sweep.BackfillIndex(space))
    db.sweep()
    assert db.execute(Held(INDEX_ENTRIES)) == []


# -- what was dropped


def test_a_dropped_table_is_removed_in_steps(db: Database) -> None:
    definition = create(db)
    index(db)
    db.execute(SetTimeToLive("orders", "ttl", enabled=True))
    for n in range(7):
        put(db, f"item{n}", b={"S": "x"}, ttl={"N": str(NOW_S + 60)})
    db.execute(DeleteTable("orders"))
    create(db)
    put(db, "another")
    assert len(db.execute(Held(DROPPED_SPACES))) == 3
    assert not db.execute(sweep.PurgeSpace(definition.space))
    assert len(db.execute(Held(ITEMS, (definition.space,)))) == 4
    assert db.sweep() > 6
    assert db.execute(Held(DROPPED_SPACES)) == []
    assert db.execute(Held(INDEX_ENTRIES)) == []
    assert len(db.execute(Held(ITEMS))) == 1
    assert names(db) == {"another"}


def test_what_is_not_listed_is_not_purged(db: Database) -> None:
    definition = create(db)
    put(db, "kept")
    assert db.execute(sweep.PurgeSpace(definition.space))
    assert names(db) == {"kept"}


# -- tokens, change streams


class Remember(Command[None], frozen=True):
    token: str

    def run(self, tx: Tx) -> None:
        tx.put(TOKENS, TokenRow(self.token, b"digest", tx.now_ms))
        tx.put(TOKEN_AGES, TokenAgeRow(tx.now_ms, self.token))


def test_tokens_are_forgotten_after_ten_minutes(db: Database, clock: ManualClock) -> None:
    for n in range(7):
        db.execute(Remember(f"old{n}"))
    clock.advance(300)
    db.execute(Remember("new"))
    db.execute(Remember("old0"))  # used again
    clock.advance(301)
    db.sweep()
    assert {row.token for row in db.execute(Held(TOKENS))} == {"new", "old0"}
    assert {row.token for row in db.execute(Held(TOKEN_AGES))} == {"new", "old0"}
    clock.advance(300)
    db.sweep()
    assert db.execute(Held(TOKENS)) == []


def test_change_streams_are_trimmed(db: Database, clock: ManualClock) -> None:
    create(db, stream=StreamSpec(enabled=True, view="NEW_IMAGE", max_age_s=60, max_count=3))
    for n in range(5):
        put(db, f"item{n}")
    db.sweep()
    assert db.execute(change_info.DescribeChangeStream("orders")).count == 3
    clock.advance(61)
    db.sweep()
    assert db.execute(change_info.DescribeChangeStream("orders")).count == 0
    assert len(names(db)) == 5


# -- the housekeeper


def test_work_is_begun_at_once(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after the interval: an index is filled as soon as it is asked for."""
    filled = threading.Event()
    do = Housekeeper._do

    def watched(housekeeper: Housekeeper, task: HousekeepingTask[Any], due: DueWork[Any]) -> int:
        steps = do(housekeeper, task, due)
        if any(isinstance(command, sweep.BackfillIndex) for command in due.commands):
            filled.set()
        return steps

    monkeypatch.setattr(Housekeeper, "_do", watched)
    with Database(SqliteEngine(data_dir), housekeeping_s=3600.0) as db:
        create(db)
        for n in range(10):
            put(db, f"item{n}", b={"S": "x"})
        index(db)
        assert filled.wait(PATIENCE_S)
        assert db.execute(DescribeTable("orders")).status == ACTIVE
        assert len(indexed(db)) == 10
    assert check_database(data_dir).findings == []
