"""The registry of jobs: what they are, how they are, where they begin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import tailrace
from tailrace import limits
from tailrace.access import ROLES, Principal
from tailrace.check import check_database
from tailrace.database import Database
from tailrace.errors import Conflict, Forbidden, Invalid, LimitExceeded, NotFound, TooLarge
from tailrace.jobs.commands import DropJob, PauseJob, PinPositions, RegisterJob, ReportJob, ResumeJob
from tailrace.jobs.queries import GetJob, ListJobs
from tailrace.jobs.stage import Target
from tailrace.jobs.tiering import AttachTier

ANN = Principal("ann", ROLES["service"], "service")
DEFINITION = msgspec.msgpack.encode({"select": "SELECT 1"})


@pytest.fixture
def db(data_dir: Path) -> Iterator[Database]:
    with tailrace.open(data_dir, housekeeping_s=None) as opened:
        yield opened
    assert check_database(data_dir).findings == []


def test_a_job_is_registered_once(db: Database) -> None:
    register = RegisterJob("totals", "view", "tables/orders", "tables/totals", DEFINITION)
    made = db.execute(register).job
    assert (made.kind, made.source, made.target, made.state) == ("view", "tables/orders", "tables/totals", "registered")
    assert made.settings() == {"select": "SELECT 1"}
    db.execute(ReportJob("totals", "running", 5, "all is well"))
    again = db.execute(register).job
    assert (again.state, again.rows, again.message) == ("running", 5, "all is well")


@pytest.mark.parametrize(
    "other",
    [
        RegisterJob("totals", "tier", "tables/orders", "tables/totals", DEFINITION),
        RegisterJob("totals", "view", "tables/items", "tables/totals", DEFINITION),
        RegisterJob("totals", "view", "tables/orders", "tables/totals"),
    ],
)
def test_a_job_is_not_changed_under_those_who_run_it(db: Database, other: RegisterJob) -> None:
    db.execute(RegisterJob("totals", "view", "tables/orders", "tables/totals", DEFINITION))
    with pytest.raises(Conflict, match="already") as caught:
        db.execute(other)
    assert caught.value.code == "JOB_EXISTS"
    db.execute(DropJob("totals"))
    assert db.execute(other).job.kind == other.kind


def test_what_is_not_reported_stays(db: Database) -> None:
    db.execute(RegisterJob("totals", "view"))
    db.execute(ReportJob("totals", "running", 5, "first"))
    job = db.execute(ReportJob("totals", "stopped")).job
    assert (job.state, job.rows, job.message) == ("stopped", 5, "first")


def test_where_a_job_begins_is_noted_once(db: Database) -> None:
    assert db.execute(PinPositions("copy", {1: 10, 2: 20})) == {1: 10, 2: 20}
    assert db.execute(PinPositions("copy", {1: 11, 3: 30})) == {1: 10, 2: 20, 3: 30}
    assert db.execute(GetJob("copy")).positions == {1: 10, 2: 20, 3: 30}
    db.execute(DropJob("copy"))
    assert db.execute(PinPositions("copy", {1: 12})) == {1: 12}


def test_a_consumer_becomes_what_it_is_registered_as(db: Database) -> None:
    db.execute(PinPositions("copy", {1: 10}))
    made = db.execute(RegisterJob("copy", "replicate"))
    assert made.job.kind == "replicate"
    assert made.positions == {1: 10}


def test_what_does_not_exist_is_not_found(db: Database) -> None:
    for command in (GetJob("x"), DropJob("x"), ReportJob("x", "running")):
        with pytest.raises(NotFound, match="there is no job 'x'"):
            db.execute(command)  # type: ignore[arg-type]


def test_bad_facts_are_refused(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.execute(RegisterJob("totals", "view"))
    with pytest.raises(Invalid, match="state 'asleep' is unknown"):
        db.execute(ReportJob("totals", "asleep"))
    with pytest.raises(Invalid, match="rows -1"):
        db.execute(ReportJob("totals", "running", -1))
    with pytest.raises(TooLarge, match="the message has"):
        db.execute(ReportJob("totals", "running", 1, "x" * (limits.JOB_TEXT_BYTES_MAX + 1)))
    with pytest.raises(Invalid, match="not valid UTF-8"):
        db.execute(ReportJob("totals", "running", 1, "\ud800"))
    with pytest.raises(TooLarge, match="the definition has"):
        db.execute(RegisterJob("large", "view", "", "", b"x" * (limits.JOB_DEFINITION_BYTES_MAX + 1)))
    with pytest.raises(Invalid, match="cannot name a job"):
        db.execute(RegisterJob("", "view"))
    with pytest.raises(Invalid, match="cannot name a kind of job"):
        db.execute(RegisterJob("x", ""))
    monkeypatch.setattr(limits, "JOBS_MAX", 1)
    with pytest.raises(LimitExceeded, match="1 jobs, the maximum"):
        db.execute(RegisterJob("second", "view"))
    monkeypatch.setattr(limits, "JOB_LOGS_MAX", 2)
    db.execute(PinPositions("totals", {3: 0}))
    with pytest.raises(LimitExceeded, match="at most 2 logs"):
        db.execute(PinPositions("totals", {1: 0, 2: 0}))


def test_lag_is_what_a_job_has_not_come_to(db: Database) -> None:
    orders = db.create_table("orders", partition_key="id", stream="NEW_IMAGE")
    orders.put({"id": "a"})
    log = next(iter(orders.changes())).sequence
    db.execute(RegisterJob("totals", "view", "tables/orders", "tables/totals"))
    db.execute(PinPositions("totals", {1: log}))
    db.execute(PinPositions("elsewhere", {1: log}))
    found = {each.job.name: each for each in db.execute(ListJobs())}
    assert found["totals"].lag == 1
    assert found["elsewhere"].lag is None, "whose log 1 that is, nobody knows"


def test_a_job_that_tiers_is_where_the_marks_of_its_place_are(db: Database) -> None:
    orders = db.create_table("orders", partition_key="id", stream="NEW_IMAGE")
    (tier,) = db.execute(AttachTier(Target("tables", "orders")))
    orders.put({"id": "a"})
    db.execute(RegisterJob(f"tier/{tier.place}", "tier", "table orders", "file:///cold/tables/orders"))
    (found,) = db.execute(ListJobs())
    assert (found.positions, found.lag) == ({tier.log: tier.tiered}, 1)


def test_jobs_are_rows_of_a_system_table(db: Database) -> None:
    assert db.sql("SELECT * FROM system.pipelines").rows == []
    db.execute(RegisterJob("totals", "view", "tables/orders", "tables/totals", DEFINITION))
    db.execute(ReportJob("totals", "failed", 5, "no more"))
    db.execute(PinPositions("totals", {7: 3}))
    (row,) = db.sql("SELECT * FROM system.pipelines").rows
    assert row["updated_at"] is not None and row["created_at"] is not None
    del row["updated_at"], row["created_at"]
    assert row == {
        "name": "totals", "kind": "view", "source": "tables/orders", "target": "tables/totals", "state": "failed",
        "position": '{"7":3}', "rows": 5, "lag": 0, "message": "no more", "paused": False, "paused_at": None,
        "paused_by": None,
    }  # fmt: skip


def test_a_paused_job_stays_paused_until_it_is_resumed(data_dir: Path) -> None:
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        db.execute(RegisterJob("totals", "view"))
        assert db.execute(GetJob("totals")).pause is None
        first = db.execute(PauseJob("totals"), ANN).pause
        assert first is not None and first.by == "ann"
        assert db.execute(PauseJob("totals")).pause == first  # whoever was first
        assert db.execute(ReportJob("totals", "paused")).pause == first
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        (found,) = db.execute(ListJobs())
        assert (found.pause, found.job.state) == (first, "paused")
        (row,) = db.sql("SELECT paused, paused_by, paused_at FROM system.pipelines").rows
        assert (row["paused"], row["paused_by"]) == (True, "ann") and row["paused_at"] is not None
        assert db.execute(RegisterJob("totals", "view")).pause == first
        assert db.execute(ResumeJob("totals")).pause is None
        assert db.execute(ResumeJob("totals")).pause is None
        assert db.execute(GetJob("totals")).pause is None
        db.execute(PauseJob("totals"))
        db.execute(DropJob("totals"))
        db.execute(RegisterJob("totals", "view"))
        assert db.execute(GetJob("totals")).pause is None  # another job, of the same name
    assert check_database(data_dir).findings == []


def test_what_cannot_be_paused(db: Database) -> None:
    with pytest.raises(NotFound):
        db.execute(PauseJob("nobody"))
    with pytest.raises(NotFound):
        db.execute(ResumeJob("nobody"))
    db.execute(PinPositions("mine", {7: 1}))
    with pytest.raises(Conflict, match="a program of yours") as caught:
        db.execute(PauseJob("mine"))
    assert caught.value.code == "NOT_PAUSABLE"
    with pytest.raises(Forbidden):
        db.execute(PauseJob("mine"), Principal("reader", ROLES["user"], "user"))
