"""Copies of tables that are in use: each is exactly the table of one commit, whatever is written meanwhile; restored
tables are those of an earlier moment."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import Index
from tailrace.check import check_database
from tailrace.clock import ManualClock
from tailrace.database import Database
from tailrace.embedded import Table
from tailrace.errors import InUse, Invalid, NotFound, TransactionConflict
from tailrace.tables import sweep
from tailrace.tables.backups import (
    CreateBackup,
    DeleteBackup,
    DescribeBackup,
    DescribeRecovery,
    ListBackups,
    RestoreBackup,
    RestoreSettings,
    RestoreToPointInTime,
    SetRecovery,
)
from tailrace.tables.change_stream import DisableStream, EnableStream, find_stream
from tailrace.tables.change_trimming import PruneStream
from tailrace.tables.copying import COPIES, ContinueCopy
from tailrace.tables.lifecycle import DescribeTable


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def db(data_dir: Path, clock: ManualClock) -> Iterator[Database]:
    with tailrace.open(data_dir, clock=clock, housekeeping_s=None) as opened:
        yield opened
    assert check_database(data_dir).findings == []


def items_of(db: Database, table: str) -> dict[str, Any]:
    return {item["id"]: item for item in db.table(table).scan()}


def scribble(rng: random.Random, table: Table, present: dict[str, Any], writes: int) -> None:
    for _ in range(writes):
        key = f"k{rng.randrange(30):02d}"
        if rng.random() < 0.35:
            table.delete(key)
            present.pop(key, None)
        else:
            present[key] = {"id": key, "kind": rng.choice("abc"), "n": rng.randrange(1_000)}
            table.put(present[key])


def finish(db: Database, space: int, between: Any = lambda: None) -> int:
    steps = 0
    while not db.execute(ContinueCopy(space)):
        steps += 1
        between()
    return steps


@pytest.mark.parametrize("stream", [None, "KEYS_ONLY"])
def test_a_backup_is_the_table_of_one_commit(db: Database, monkeypatch: pytest.MonkeyPatch, stream: str | None) -> None:
    monkeypatch.setattr(sweep.limits, "SWEEP_ITEMS", 4)
    rng = random.Random(11)
    orders = db.create_table("orders", partition_key="id", stream=stream, indexes=[Index("by_kind", "kind")])
    present: dict[str, Any] = {}
    scribble(rng, orders, present, 60)
    for round_ in range(5):
        wanted = dict(present)
        backup = db.execute(CreateBackup("orders", f"b{round_}"))
        assert not backup.available
        with pytest.raises(InUse):
            db.drop_table("orders")
        steps = finish(db, backup.row.space, lambda: scribble(rng, orders, present, rng.randrange(6)))
        assert steps > 1
        id_ = backup.details.backup
        assert id_ is not None
        made = db.execute(DescribeBackup("orders", id_))
        assert made.available and made.size.items == len(wanted)
        restore = db.execute(RestoreBackup("orders", id_, f"copy{round_}"))
        with pytest.raises(InUse):
            db.execute(DeleteBackup("orders", id_))
        with pytest.raises(InUse):
            db.create_table(f"copy{round_}", partition_key="id")
        finish(db, restore.space, lambda: scribble(rng, orders, present, 2))
        db.sweep()
        copy = db.table(f"copy{round_}")
        assert items_of(db, f"copy{round_}") == wanted
        found = [item["id"] for item in copy.query("a", index="by_kind")]
        assert sorted(found) == sorted(key for key, item in wanted.items() if item["kind"] == "a")
        copy.put({"id": "k00", "kind": "z"})  # it is a table like any other, and nothing of it is the backup's
    assert items_of(db, "orders") == present
    db.drop_table("orders")
    db.sweep()
    backups = db.execute(ListBackups("orders"))
    assert [each.row.name for each in backups] == [f"b{number}" for number in range(5)]
    db.execute(RestoreBackup("orders", backups[0].details.backup or "", "orders"))  # also after its table is gone
    db.sweep()
    assert len(items_of(db, "orders")) == backups[0].size.items
    for each in backups:
        db.execute(DeleteBackup("orders", each.details.backup or ""))
    db.sweep()
    with pytest.raises(NotFound, match="Backup not found"):
        db.execute(DescribeBackup("orders", backups[0].details.backup or ""))


def test_transactions_and_copies_of_their_tables(db: Database) -> None:
    """A backup that begins or ends in a transaction is no conflict, and has nothing or all of it. A table that is being
    restored cannot be used before it is complete."""
    orders = db.create_table("orders", partition_key="id")
    orders.put({"id": "a", "n": 1})
    first, second = db.transaction(), db.transaction()
    assert first.get("orders", "a") == second.get("orders", "a") == {"id": "a", "n": 1}
    backup = db.execute(CreateBackup("orders", "b"))
    first.put("orders", {"id": "b", "n": 1})
    first.delete("orders", "a")
    assert [item["id"] for item in first.scan("orders")] == ["b"]
    first.commit()
    finish(db, backup.row.space)
    with pytest.raises(TransactionConflict):
        second.commit()
    restore = db.execute(RestoreBackup("orders", backup.details.backup or "", "copy"))
    with pytest.raises(NotFound):
        db.transaction().scan("copy")
    blind = db.transaction()
    blind.put("copy", {"id": "c"})
    with pytest.raises(NotFound):
        blind.commit()
    finish(db, restore.space)
    with db.transaction() as tx:
        tx.put("copy", {"id": "c"})
        assert tx.get("copy", "a") == {"id": "a", "n": 1}
        assert len(tx.scan("copy")) == 2
    assert set(items_of(db, "copy")) == {"a", "c"}
    assert set(items_of(db, "orders")) == {"b"}


@pytest.mark.parametrize("stream", [None, "NEW_AND_OLD_IMAGES"])
def test_a_table_is_restored_to_any_moment(
    db: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, stream: str | None
) -> None:
    monkeypatch.setattr(sweep.limits, "SWEEP_ITEMS", 5)
    rng = random.Random(5)
    orders = db.create_table("orders", partition_key="id", stream=stream, indexes=[Index("by_kind", "kind")])
    present: dict[str, Any] = {}
    scribble(rng, orders, present, 30)
    with pytest.raises(Invalid, match="not enabled"):
        db.execute(RestoreToPointInTime("orders", "early"))
    clock.advance(10)
    assert db.execute(SetRecovery("orders", 35)).days == 35
    shown = db.execute(DescribeTable("orders"))
    assert (shown.definition.stream is None) == (stream is None)  # the one of the recovery is not shown
    moments: list[tuple[int, dict[str, Any]]] = [(clock.now_ms(), dict(present))]
    for _ in range(6):
        clock.advance(10)
        scribble(rng, orders, present, rng.randrange(1, 12))
        moments.append((clock.now_ms(), dict(present)))
    clock.advance(1)  # a moment has all changes of its millisecond
    for number, (at_ms, wanted) in enumerate(moments):
        restore = db.execute(RestoreToPointInTime("orders", f"past{number}", at_ms))
        finish(db, restore.space, lambda: scribble(rng, orders, present, rng.randrange(4)))
        clock.advance(1)
        assert items_of(db, f"past{number}") == wanted
        db.sweep()
    restore = db.execute(RestoreToPointInTime("orders", "latest", None, RestoreSettings("PAY_PER_REQUEST", globals=())))
    finish(db, restore.space)
    assert items_of(db, "latest") == present
    made = db.execute(DescribeTable("latest")).definition
    assert (made.indexes, made.billing, made.stream, made.recovery) == ((), "PAY_PER_REQUEST", None, None)
    for wrong in (moments[0][0] - 11_000, clock.now_ms() + 1_000):
        with pytest.raises(Invalid, match="out of range") as refused:
            db.execute(RestoreToPointInTime("orders", "never", wrong))
        assert refused.value.code == "InvalidRestoreTimeException"
    with pytest.raises(InUse):
        db.execute(RestoreToPointInTime("orders", "latest"))
    with pytest.raises(Invalid, match="not one of the source"):
        db.execute(RestoreToPointInTime("orders", "never", None, RestoreSettings(globals=("missing",))))


def test_recovery_follows_the_stream_of_the_table(db: Database, clock: ManualClock) -> None:
    orders = db.create_table("orders", partition_key="id")
    clock.advance(10)
    db.execute(SetRecovery("orders", 7))
    with pytest.raises(Invalid, match="needs old images"):
        db.execute(EnableStream("orders", "KEYS_ONLY"))
    with pytest.raises(Invalid, match="no stream to disable"):
        db.execute(DisableStream("orders"))
    orders.put({"id": "a"})
    clock.advance(10)
    db.execute(EnableStream("orders"))  # takes the place of that of the recovery
    assert db.execute(DescribeRecovery("orders")).earliest_ms == clock.now_ms()
    orders.put({"id": "b"})
    clock.advance(10)
    moment = clock.now_ms()
    orders.put({"id": "c"})
    clock.advance(10)
    db.execute(PruneStream("orders"))
    with pytest.raises(Invalid, match="out of range"):
        db.execute(RestoreToPointInTime("orders", "gone", moment - 20_000))
    db.execute(DisableStream("orders"))
    assert db.execute(DescribeTable("orders")).definition.stream is None
    clock.advance(10)
    moment = clock.now_ms()
    clock.advance(10)
    orders.delete("a")
    db.execute(RestoreToPointInTime("orders", "back", moment))
    db.sweep()
    assert set(items_of(db, "back")) == {"a", "b", "c"}
    db.execute(SetRecovery("orders", None))
    assert db.execute(DescribeRecovery("orders")).days is None
    orders.put({"id": "z"})
    clock.advance(36 * 24 * 3600)
    db.sweep()


def test_a_restore_ends_if_its_history_is_gone(db: Database, clock: ManualClock) -> None:
    orders = db.create_table("orders", partition_key="id", stream="NEW_AND_OLD_IMAGES")
    db.execute(SetRecovery("orders", 35))
    for number in range(5):
        clock.advance(10)
        orders.put({"id": "a", "n": number})
    restore = db.execute(RestoreToPointInTime("orders", "past", clock.now_ms() - 25_000))
    assert not db.execute(ContinueCopy(restore.space))  # copied; the changes are undone next
    db.execute(PruneStream("orders"))
    assert db.execute(ContinueCopy(restore.space))
    with db._engine.reader() as reader:
        assert list(reader.scan(COPIES)) == []
    db.sweep()


def test_a_backup_is_found_by_its_own_table_alone(db: Database) -> None:
    """Access is checked by the table that a request names."""
    db.create_table("secret", partition_key="id").put({"id": "x"})
    backup = db.execute(CreateBackup("secret", "b"))
    db.sweep()
    id_ = backup.details.backup or ""
    for command in (DescribeBackup("mine", id_), DeleteBackup("mine", id_), RestoreBackup("mine", id_, "mine2")):
        with pytest.raises(NotFound, match="Backup not found"):
            db.execute(command)


def test_transactions_go_on_while_a_table_is_copied(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep.limits, "SWEEP_ITEMS", 2)
    orders = db.create_table("orders", partition_key="id")
    for number in range(6):
        orders.put({"id": str(number), "n": 0})
    backup = db.execute(CreateBackup("orders", "b"))
    db.sql("BEGIN; UPDATE orders SET n = 1 WHERE id = '5'; INSERT INTO orders (id, n) VALUES ('9', 9); COMMIT")
    with db.transaction() as tx:
        tx.put("orders", {"id": "4", "n": 2})
        assert tx.get("orders", "4") == {"id": "4", "n": 2}
    finish(db, backup.row.space)
    db.execute(RestoreBackup("orders", backup.details.backup or "", "copy"))
    db.sweep()
    assert {key: item["n"] for key, item in items_of(db, "copy").items()} == {str(number): 0 for number in range(6)}
    assert {key: item["n"] for key, item in items_of(db, "orders").items()} == {
        "0": 0, "1": 0, "2": 0, "3": 0, "4": 2, "5": 1, "9": 9,
    }  # fmt: skip


def test_the_history_of_recovery_has_its_own_period(db: Database) -> None:
    db.sql("CREATE TABLE pt (id TEXT PRIMARY KEY)")
    db.execute(SetRecovery("pt", 1))
    db.execute(SetRecovery("pt", 35))
    assert find_stream_of(db, "pt").max_age_s == 35 * 24 * 3600
    with pytest.raises(NotFound, match="point-in-time recovery"):
        db.sql("ALTER TABLE pt SET (retention_records = 1)")
    with pytest.raises(NotFound, match="point-in-time recovery"):
        db.execute(PruneStream("pt"))
    db.sql("ALTER TABLE pt SET (stream = true)")
    assert not find_stream_of(db, "pt").hidden


def find_stream_of(db: Database, name: str) -> Any:
    with db._engine.reader() as reader:
        return find_stream(reader, name)
