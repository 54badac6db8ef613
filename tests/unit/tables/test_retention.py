"""Where a change stream is to start when several cursors stand in the way."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest

from tailrace.check import check_database
from tailrace.database import Database
from tailrace.tables import change_reading, change_stream
from tailrace.tables import cursors as named
from tests.unit.tables.changes import define, opened, put

PLENTY = 10**9


@pytest.fixture
def db(data_dir: Path) -> Iterator[Database]:
    with opened(data_dir) as db:
        define(db)
        yield db
    assert check_database(data_dir).findings == []


@pytest.mark.parametrize("names", list(permutations("pqr")))
@pytest.mark.parametrize("hold_bytes", [0, PLENTY])
def test_the_cursor_furthest_behind_holds_whatever_the_others_want(
    db: Database, names: tuple[str, str, str], hold_bytes: int
) -> None:
    """Cursors are looked at by name; one that is further on must not let go of what another one holds."""
    db.execute(change_stream.EnableStream("orders", max_count=1))
    sequences = [put(db, number) for number in range(6)]
    furthest, middle, last = names
    db.execute(named.SaveCursor("orders", furthest, sequences[0], PLENTY))
    db.execute(named.SaveCursor("orders", middle, sequences[2], hold_bytes))
    db.execute(named.SaveCursor("orders", last, sequences[3], hold_bytes))
    db.sweep()
    kept = db.execute(change_reading.ReadChanges("orders", sequences[0])).records
    assert [record.sequence for record in kept] == sequences[1:]
    cursors = db.execute(named.ListCursors("orders"))
    assert [(cursor.lost, cursor.cut_off) for cursor in cursors] == [(0, False)] * 3


def test_an_expired_cursor_reports_what_it_lost(db: Database) -> None:
    db.execute(change_stream.EnableStream("orders", max_count=1))
    sequences = [put(db, number) for number in range(6)]
    db.execute(named.SaveCursor("orders", "idle", sequences[0], 0))
    db.execute(named.SaveCursor("orders", "slow", sequences[2], PLENTY))
    db.sweep()
    assert [record.sequence for record in db.execute(change_reading.ReadChanges("orders")).records] == sequences[3:]
    idle, slow = db.execute(named.ListCursors("orders"))
    assert (idle.lost, idle.cut_off) == (2, True)
    assert (slow.lost, slow.cut_off) == (0, False)


def test_the_newest_transaction_stays_however_many_records_it_has(db: Database) -> None:
    db.execute(change_stream.EnableStream("orders", max_count=2))
    put(db, 1)
    newest = put(db, 2, 3, 4, 5)
    db.sweep()
    assert [record.sequence for record in db.execute(change_reading.ReadChanges("orders")).records] == [newest] * 4
    after = put(db, 6)
    db.sweep()
    kept = db.execute(change_reading.ReadChanges("orders")).records
    assert [record.sequence for record in kept] == [after], "a transaction goes whole"
