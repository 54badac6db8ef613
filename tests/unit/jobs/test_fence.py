"""The rule that applies each range once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from tailrace import limits
from tailrace.check import check_database
from tailrace.command import Command
from tailrace.database import Database
from tailrace.errors import Fenced, Invalid, LimitExceeded
from tailrace.jobs import fence
from tailrace.jobs.fence import ALREADY, APPLY, CONFLICT, judge
from tailrace.jobs.queries import GetJob
from tailrace.storage.engine import Tx


@pytest.fixture
def db(data_dir: Path) -> Iterator[Database]:
    with tailrace.open(data_dir, housekeeping_s=None) as opened:
        yield opened
    assert check_database(data_dir).findings == []


class Apply(Command[bool], frozen=True):
    """What a job applies is here nothing but the fence."""

    job: str
    ranges: dict[int, tuple[int, int]]
    strict: bool = True

    def run(self, tx: Tx) -> bool:
        return fence.check(tx, self.job, self.ranges, self.strict)


@pytest.mark.parametrize(
    ("stored", "ranges", "strict", "verdict"),
    [
        ({}, {7: (0, 5)}, True, APPLY),  # at its first use it is where it begins
        ({7: 5}, {7: (5, 9)}, True, APPLY),
        ({7: 5}, {7: (0, 5)}, True, ALREADY),
        ({7: 5}, {7: (0, 3)}, True, ALREADY),
        ({7: 5}, {7: (3, 9)}, True, CONFLICT),  # a part of it was applied
        ({7: 5}, {7: (6, 9)}, True, CONFLICT),  # 5 is missing
        ({7: 5}, {7: (6, 9)}, False, APPLY),  # and known to be lost
        ({7: 5}, {7: (3, 9)}, False, CONFLICT),
        ({7: 5}, {7: (0, 5)}, False, ALREADY),
        ({7: 5, 8: 2}, {7: (5, 9), 8: (2, 4)}, True, APPLY),
        ({7: 5, 8: 2}, {7: (0, 5), 8: (0, 2)}, True, ALREADY),
        ({7: 5, 8: 2}, {7: (5, 9), 8: (0, 2)}, True, CONFLICT),  # one was applied, the other was not
        ({7: 5}, {7: (5, 9), 8: (0, 4)}, True, APPLY),  # a log that came later
        ({7: 5}, {7: (0, 5), 8: (0, 4)}, True, CONFLICT),
        ({7: 5, 8: 2}, {7: (5, 5), 8: (2, 4)}, True, APPLY),  # what is empty fits with either
        ({7: 5, 8: 2}, {7: (5, 5), 8: (0, 2)}, True, ALREADY),
        ({7: 5}, {7: (5, 5)}, True, ALREADY),
        ({}, {7: (5, 5)}, True, APPLY),  # it is noted where it begins
        ({7: 5}, {7: (4, 4)}, True, ALREADY),
        ({7: 5}, {7: (6, 6)}, True, CONFLICT),
        ({}, {}, True, ALREADY),
    ],
)
def test_what_to_do_with_ranges(
    stored: dict[int, int], ranges: dict[int, tuple[int, int]], strict: bool, verdict: str
) -> None:
    assert judge(stored, ranges, strict=strict) == verdict


def test_positions_move_with_what_is_applied(db: Database) -> None:
    assert db.execute(Apply("copy", {1: (0, 5), 2: (3, 4)}))
    assert not db.execute(Apply("copy", {1: (0, 5), 2: (3, 4)}))
    assert db.execute(Apply("copy", {1: (5, 6)}))
    found = db.execute(GetJob("copy"))
    assert found.positions == {1: 6, 2: 4}
    assert found.job.kind == "consumer"


def test_a_conflict_tells_the_stored_positions_and_changes_nothing(db: Database) -> None:
    db.execute(Apply("copy", {1: (0, 5), 2: (0, 5)}))
    with pytest.raises(Fenced, match=r"'copy' is at 5 of log 2, and \[3, 9\)") as caught:
        db.execute(Apply("copy", {1: (5, 9), 2: (3, 9)}))
    assert caught.value.facts == {"positions": {"1": 5, "2": 5}}
    assert db.execute(GetJob("copy")).positions == {1: 5, 2: 5}


def test_a_job_is_in_so_many_logs_at_most(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JOB_LOGS_MAX", 2)
    assert db.execute(Apply("copy", {1: (0, 5), 2: (0, 5)}))
    assert db.execute(Apply("copy", {1: (5, 6), 2: (5, 6)}))
    with pytest.raises(LimitExceeded, match="at most 2 logs"):
        db.execute(Apply("copy", {1: (6, 7), 3: (0, 5)}))
    assert db.execute(GetJob("copy")).positions == {1: 6, 2: 6}


def test_two_jobs_do_not_touch_each_other(db: Database) -> None:
    assert db.execute(Apply("one", {1: (0, 5)}))
    assert db.execute(Apply("two", {1: (0, 5)}))
    assert db.execute(GetJob("one")).positions == {1: 5}


@pytest.mark.parametrize("ranges", [{0: (0, 1)}, {1: (2, 1)}, {1: (-1, 1)}, {1: (0, limits.POSITION_MAX + 1)}])
def test_what_is_no_range_is_refused(db: Database, ranges: dict[int, tuple[int, int]]) -> None:
    with pytest.raises(Invalid, match="not a range of log"):
        db.execute(Apply("copy", ranges))


@pytest.mark.parametrize("name", ["", "x" * 257, "a\nb"])
def test_a_name_that_cannot_be_is_refused(db: Database, name: str) -> None:
    with pytest.raises(Invalid, match="cannot name a consumer"):
        db.execute(Apply(name, {1: (0, 1)}))
