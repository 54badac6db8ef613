"""A clock that jumps ahead deletes nothing by age until the jump is confirmed: in the process, and at a start."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import msgspec
import pytest

from tailrace import limits
from tailrace.clock import Clock, ManualClock
from tailrace.database import ColdStorage, Database
from tailrace.errors import NotFound
from tailrace.http import system
from tailrace.jobs.commands import StageRows
from tailrace.jobs.identity import LastTime
from tailrace.jobs.queries import FindTarget
from tailrace.jobs.stage import STAGES
from tailrace.jobs.target import Target
from tailrace.storage.sqlite import SqliteEngine
from tailrace.streams.commands import Append, CreateStream
from tailrace.streams.queries import ReadStream
from tailrace.tables.change_stream import CHANGE_STREAMS
from tailrace.tables.commands import PutItem, TransactWrite
from tailrace.tables.definition import TOKENS
from tailrace.topics.queries import ListPartitions

DAY_S = 24 * 3600
TEN_DAYS_S = 10 * DAY_S
NOW_S = 1_700_000_000
TEXT = "text/plain"


def opened(path: Path, clock: Clock) -> Database:
    return Database(SqliteEngine(path), clock=clock, housekeeping_s=None, cold=ColdStorage(str(path / "cold")))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_S * 1000)


def filled(db: Database) -> None:
    """Something of every class that goes by age, none of it as old as it may become."""
    orders = db.create_table("orders", partition_key="id", stream="NEW_IMAGE")
    orders.alter_stream_retention(max_age=DAY_S, max_count=None)
    orders.set_ttl("expires")
    for number in range(50):
        orders.put({"id": f"o-{number}", "expires": NOW_S + 2 * DAY_S})
    db.create_table("gone", partition_key="id", stream="NEW_IMAGE").put({"id": "x"})
    db.drop_table("gone")
    db.create_topic("news", retention_seconds=DAY_S)
    for number in range(50):
        db.publish("news", number)
    db.execute(CreateStream("kept", TEXT, max_age_s=DAY_S))
    db.execute(CreateStream("short", TEXT, b"here", ttl_s=DAY_S))
    for number in range(50):
        db.execute(Append("kept", b"%d;" % number, TEXT))
    kept = db.execute(FindTarget(Target("streams", "kept")))
    db.execute(StageRows(kept.target, kept.number, 1, msgspec.msgpack.encode([b"staged"])))
    db.execute(TRANSACTION)


TRANSACTION = TransactWrite((PutItem("orders", {"id": {"S": "t"}}, 3),), "token", b"digest")
# The removals of expired items are changes too, and new ones.
NOTHING = {"changes": 50, "items": 1, "messages": 0, "entries": 0, "short": 0, "stages": 0, "streams": 1, "tokens": 0}
ALL = {"changes": 51, "items": 51, "messages": 50, "entries": 50, "short": 1, "stages": 1, "streams": 2, "tokens": 1}


def state(db: Database) -> dict[str, int]:
    orders = db.table("orders")
    with db._engine.reader() as reader:
        counts = {
            "stages": len(list(reader.scan(STAGES))),
            "streams": len(list(reader.scan(CHANGE_STREAMS))),
            "tokens": len(list(reader.scan(TOKENS))),
        }
    try:
        short = len(db.execute(ReadStream("short")).page.entries)
    except NotFound:
        short = 0
    (partition,) = db.execute(ListPartitions(limit=2))
    return {
        **counts,
        "changes": len(list(orders.changes())),
        "items": sum(1 for _ in orders.scan()),
        "messages": partition.next - partition.start,
        "entries": len(db.execute(ReadStream("kept")).page.entries),
        "short": short,
    }


def sweeps(db: Database, clock: ManualClock, seconds: float, *, every_s: float = 60) -> None:
    """Let time pass while housekeeping runs."""
    for _ in range(int(seconds // every_s)):
        clock.advance(every_s)
        db.sweep()


def test_a_jump_of_ten_days_that_comes_back_deletes_nothing(
    data_dir: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(data_dir, clock) as db:
        filled(db)
        clock.jump_by(TEN_DAYS_S)
        with caplog.at_level(logging.WARNING, logger="tailrace.database"):
            sweeps(db, clock, 300)
            assert state(db) == ALL
            assert "ahead of the time that is confirmed" in caplog.text
            clock.jump_by(-TEN_DAYS_S)
            sweeps(db, clock, 300)
            assert "has come back" in caplog.text
        assert state(db) == ALL
        db.table("orders").put({"id": "after"})
        sweeps(db, clock, 2 * limits.CLOCK_CONFIRM_S, every_s=600)
        assert {**state(db), "tokens": 1} == {**ALL, "changes": 52, "items": 52}
        assert state(db)["tokens"] == 0, "tokens are kept for ten minutes of real time"


def test_a_jump_that_lasts_is_confirmed_and_followed(data_dir: Path, clock: ManualClock) -> None:
    with opened(data_dir, clock) as db:
        filled(db)
        clock.jump_by(TEN_DAYS_S)
        sweeps(db, clock, 540)
        assert state(db) == ALL
        assert db.metrics.clock_jumps == 1
        assert db.metrics.clock_ahead_seconds == TEN_DAYS_S
        sweeps(db, clock, limits.CLOCK_CONFIRM_S)
        assert state(db) == NOTHING
        assert db.metrics.clock_ahead_seconds == 0


def test_small_steps_are_followed_at_once(data_dir: Path, clock: ManualClock) -> None:
    with opened(data_dir, clock) as db:
        filled(db)
        clock.advance(DAY_S - 100)
        clock.jump_by(limits.CLOCK_JUMP_S - 1)
        db.sweep()
        assert state(db)["entries"] == 0


def test_time_that_passes_is_no_jump(data_dir: Path, clock: ManualClock) -> None:
    with opened(data_dir, clock) as db:
        filled(db)
        clock.advance(TEN_DAYS_S)
        db.sweep()
        assert state(db) == NOTHING
        assert db.metrics.clock_jumps == 0


def test_a_repeated_transaction_is_known_after_a_jump(data_dir: Path, clock: ManualClock) -> None:
    with opened(data_dir, clock) as db:
        filled(db)
        clock.jump_by(TEN_DAYS_S)
        db.sweep()
        assert db.execute(TRANSACTION).replayed


def test_an_expired_path_is_not_taken_over_after_a_jump(data_dir: Path, clock: ManualClock) -> None:
    """A client that makes sure of its stream with PUT must not replace it by an empty one."""
    with opened(data_dir, clock) as db:
        filled(db)
        clock.jump_by(TEN_DAYS_S)
        assert not db.execute(CreateStream("short", TEXT, ttl_s=DAY_S)).fresh
        assert len(db.execute(ReadStream("short")).page.entries) == 1


# -- at a start


def noted(db: Database) -> int:
    last = db.execute(LastTime())
    assert last is not None
    return last.settled_ms


def test_a_start_with_the_clock_ahead_deletes_nothing_until_it_is_confirmed(data_dir: Path, clock: ManualClock) -> None:
    with opened(data_dir, clock) as db:
        filled(db)
    later = ManualClock((NOW_S + TEN_DAYS_S) * 1000)
    with opened(data_dir, later) as db:
        sweeps(db, later, 540)
        assert state(db) == ALL
    again = ManualClock((NOW_S + TEN_DAYS_S + 600) * 1000)
    with opened(data_dir, again) as db:
        db.table("orders").put({"id": "meanwhile"})
        sweeps(db, again, 540)
        assert state(db)["changes"] == 52
        sweeps(db, again, limits.CLOCK_CONFIRM_S)
        assert state(db)["entries"] == 0, "a machine that was off for ten days goes on to delete in the end"
    right = ManualClock(NOW_S * 1000)
    with opened(data_dir, right) as db:
        assert db.clock.settled_ms() == NOW_S * 1000, "a clock that was put back is followed at once"


def test_a_start_with_the_clock_ahead_records_no_wrong_time(data_dir: Path, clock: ManualClock) -> None:
    with opened(data_dir, clock) as db:
        filled(db)
    wrong = ManualClock((NOW_S + TEN_DAYS_S) * 1000)
    with opened(data_dir, wrong) as db:
        db.table("orders").put({"id": "meanwhile"})
        sweeps(db, wrong, 300)
    right = ManualClock((NOW_S + 310) * 1000)
    with opened(data_dir, right) as db:
        assert noted(db) == (NOW_S + 300) * 1000
        assert right.lag_ms == 0, "nothing to wait for"
        assert state(db) == {**ALL, "changes": 52, "items": 52}


def test_a_database_that_is_opened_for_moments_deletes_in_the_end(data_dir: Path, clock: ManualClock) -> None:
    """A script that runs once a day: what it has seen the day before is confirmed."""
    with opened(data_dir, clock) as db:
        filled(db)
    for day in range(1, 4):
        with opened(data_dir, ManualClock((NOW_S + day * DAY_S + 10) * 1000)) as db:
            db.sweep()
            assert state(db)["entries"] == (50 if day == 1 else 0)


def test_a_second_jump_confirms_no_more_than_the_first(data_dir: Path, clock: ManualClock) -> None:
    with opened(data_dir, clock) as db:
        filled(db)
    with opened(data_dir, ManualClock((NOW_S + 600) * 1000)) as db:
        db.sweep()
    with opened(data_dir, ManualClock((NOW_S + TEN_DAYS_S) * 1000)) as db:
        db.sweep()
        assert db.clock.settled_ms() == (NOW_S + 600) * 1000
        assert state(db) == ALL


def test_the_time_is_recorded_while_there_are_writes_and_not_otherwise(data_dir: Path, clock: ManualClock) -> None:
    with opened(data_dir, clock) as db:
        filled(db)
        clock.advance(limits.CLOCK_NOTE_S + 1)
        db._note_time()
        assert noted(db) == clock.now_ms()
        commits = db.metrics.commits
        clock.advance(DAY_S)
        db._note_time()
        assert db.metrics.commits == commits, "an idle database writes nothing"
        db.table("orders").put({"id": "last"})
    with opened(data_dir, clock) as db:
        assert noted(db) == clock.now_ms(), "closing records it"


# -- what is reported


def test_readiness_reports_a_jump_and_stays_ready(data_dir: Path, clock: ManualClock) -> None:
    with opened(data_dir, clock) as db:
        assert msgspec.json.decode(system.ready(db).body) == {"status": "ready"}
        clock.jump_by(TEN_DAYS_S)
        db.sweep()
        answer = system.ready(db)
        report = msgspec.json.decode(answer.body)
        assert (answer.status, report["status"]) == (200, "ready")
        assert report["clock"]["ahead_s"] == TEN_DAYS_S
        assert report["clock"]["confirmed_in_s"] == limits.CLOCK_CONFIRM_S
        clock.jump_by(-TEN_DAYS_S)
        db.sweep()
        report = msgspec.json.decode(system.ready(db).body)
        assert report["clock"]["confirmed_in_s"] is None
        assert "restart" in report["clock"]["reason"]


# -- the system's clock


class Hands:
    """The system's two clocks, moved by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall_ms, self.monotonic_ms = NOW_S * 1000, 5_000
        monkeypatch.setattr(time, "time_ns", lambda: self.wall_ms * 1_000_000)
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.monotonic_ms * 1_000_000)

    def pass_by(self, seconds: float, *, step_s: float = 0) -> None:
        self.monotonic_ms += int(seconds * 1000)
        self.wall_ms += int((seconds + step_s) * 1000)


def test_the_settled_time_keeps_its_pace_through_every_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    hands, clock = Hands(monkeypatch), Clock()
    began = clock.settled_ms()
    hands.pass_by(10, step_s=TEN_DAYS_S)
    assert clock.now_ms() == hands.wall_ms
    assert clock.settled_ms() == began + 10_000, "without anybody having looked"
    for _ in range(100):
        hands.pass_by(10)
        clock.observe()
    assert clock.settled_ms() == began + 1_010_000
    assert clock.jump is not None
    hands.pass_by(10, step_s=-TEN_DAYS_S)
    clock.observe()
    assert clock.jump is None
    assert clock.settled_ms() == hands.wall_ms
    assert clock.now_ms() > hands.wall_ms, "timestamps do not go back"
    hands.pass_by(10, step_s=5 * DAY_S)
    clock.observe()
    assert clock.settled_ms() == hands.wall_ms - 5 * DAY_S * 1000, "a jump below the first one is one, too"
    hands.pass_by(limits.CLOCK_CONFIRM_S)
    clock.observe()
    assert clock.settled_ms() == hands.wall_ms


def test_a_clock_that_runs_a_little_fast_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    hands, clock = Hands(monkeypatch), Clock()
    for _ in range(1_000):
        hands.pass_by(1, step_s=1)
        clock.observe()
        assert clock.settled_ms() == hands.wall_ms


def test_a_clock_that_jumps_again_and_again_is_not_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    hands, clock = Hands(monkeypatch), Clock()
    began = clock.settled_ms()
    for _ in range(10):
        hands.pass_by(limits.CLOCK_CONFIRM_S / 2, step_s=DAY_S)
        clock.observe()
    assert clock.settled_ms() == began + int(limits.CLOCK_CONFIRM_S * 5000)
