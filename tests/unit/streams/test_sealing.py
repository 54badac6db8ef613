"""Sealing of a database: housekeeping does it, and every API reads the same as before."""

from __future__ import annotations

from pathlib import Path

import pytest

import tailrace
from tailrace import limits
from tailrace.check import check_database
from tailrace.clock import ManualClock
from tailrace.log.segments import SEGMENTS, count
from tailrace.streams.commands import Append, CreateStream
from tailrace.streams.queries import ReadStream
from tailrace.topics.consuming import Consume
from tests.support.sealed import seal

TEXT = "text/plain"


def rows(db: tailrace.Database) -> list[int]:
    """How many entries each row has."""
    with db._engine.reader() as reader:
        return [count(segment) for segment in reader.scan(SEGMENTS)]


def test_housekeeping_seals_the_oldest_when_there_are_many(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STAGED_ROWS", 20)
    monkeypatch.setattr(limits, "SEAL_ROWS", 8)
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        db.execute(CreateStream("s", TEXT))
        for number in range(19):
            db.execute(Append("s", b"%d;" % number, TEXT))
        assert db.sweep() == 0
        assert rows(db) == [1] * 19
        db.execute(Append("s", b"19;", TEXT))
        assert db.sweep() == 1
        assert rows(db) == [8] + [1] * 12
        assert [int(entry.body[:-1]) for entry in db.execute(ReadStream("s")).page.entries] == list(range(20))
    assert check_database(data_dir).findings == []


def test_the_times_of_messages_and_changes_stay(data_dir: Path) -> None:
    clock = ManualClock()
    with tailrace.open(data_dir, clock=clock, housekeeping_s=None) as db:
        db.create_topic("news")
        table = db.create_table("things", "id", stream="NEW_IMAGE")
        expected = []
        for number in range(10):
            clock.advance(number)
            expected.append(clock.now_ms())
            db.publish("news", b"%d" % number)
            table.put({"id": f"i-{number}"})
        changes = list(table.changes())
        assert max(rows(db)) == 1
        seal(db)
        assert max(rows(db)) == 10
        assert list(table.changes()) == changes
        for part in (expected[:3], expected[3:7], expected[7:]):
            consumed = db.execute(Consume("news", "group", limit=len(part)))
            assert [message.at_ms for message in consumed.messages] == part
    assert check_database(data_dir).findings == []
