"""What a job tells of itself: rates, states, and a server that is not always there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tailrace.errors import Conflict, Forbidden, Unavailable
from tailrace.spark.jobs import progress
from tailrace.spark.jobs.progress import Board, Meter, Progress, line, size


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Server:
    """The reports that a server would receive."""

    def __init__(self, rows: int = 0) -> None:
        self.rows = rows
        self.reports: list[tuple[str, int | None, str | None]] = []
        self.error: Exception | None = None
        self.registering: Exception | None = None

    def register_job(self, name: str, kind: str, **_: Any) -> dict[str, Any]:
        if self.error or self.registering:
            raise self.error or self.registering  # type: ignore[misc]
        return {"rows": self.rows}

    def job(self, name: str) -> Mapping[str, Any]:
        return {"rows": self.rows}

    def report_job(
        self, name: str, state: str, *, rows: int | None = None, message: str | None = None
    ) -> dict[str, Any]:
        if self.error:
            raise self.error
        self.reports.append((state, rows, message))
        return {}


def test_rows_per_second_are_recent() -> None:
    clock, reports = Clock(), []
    meter = Meter("tier x", "tier", reports.append, clock=clock)
    clock.now += 10
    meter.batch(1000, 0.5, lag=7)
    assert reports[-1].rows_per_s == pytest.approx(100)
    assert (reports[-1].rows, reports[-1].lag, reports[-1].batch_rows, reports[-1].state) == (1000, 7, 1000, "running")
    clock.now += progress.RATE_S + 1
    meter.batch(300, 0.1)
    assert reports[-1].rows_per_s == pytest.approx(300 / progress.RATE_S)
    assert reports[-1].rows == 1300
    meter.say(progress.WAITING, lag=0)
    assert (reports[-1].lag, reports[-1].rows) == (0, 1300)


def test_the_server_gets_reports_now_and_then_and_of_every_state() -> None:
    clock, server = Clock(), Server(rows=50)
    meter = Meter("tier x", "tier", server=server, clock=clock)  # type: ignore[arg-type]
    for _ in range(100):
        clock.now += 0.1
        meter.batch(1, 0.1)
        meter.say(progress.WAITING)
    assert 2 <= len(server.reports) <= 4
    assert server.reports[-1][1] is not None and 50 < server.reports[-1][1] <= 150
    meter.say(progress.RETRYING, "no")
    assert server.reports[-1] == ("failed", 150, "no")
    meter.say(progress.STOPPED)
    assert server.reports[-1][0] == "stopped"


def test_a_server_that_is_away_stops_nothing_and_gets_reports_later() -> None:
    clock, server, progressed = Clock(), Server(), []
    server.error = Unavailable("gone")
    meter = Meter("tier x", "tier", progressed.append, server=server, clock=clock)  # type: ignore[arg-type]
    meter.batch(10, 0.1)
    assert progressed[-1].rows == 10
    server.error = None
    clock.now += progress.REPORT_S
    meter.batch(10, 0.1)
    assert server.reports == [("running", 20, "")]


@pytest.mark.parametrize(("error", "reports"), [(Conflict("moved"), 1), (Forbidden("no"), 0)])
def test_a_job_that_cannot_be_registered_goes_on(error: Exception, reports: int) -> None:
    server = Server(rows=5)
    server.registering = error
    meter = Meter("tier x", "tier", server=server)  # type: ignore[arg-type]
    meter.batch(10, 0.1)
    assert len(server.reports) == reports


def test_lines_for_people() -> None:
    report = Progress(
        job="tier tables/a", kind="tier", state="running", rows=1234, rows_per_s=99.6, lag=5, batch_rows=34,
        batch_s=0.25, cold_bytes=3 << 20, message="well",
    )  # fmt: skip
    assert line(report) == (
        "tier tables/a: running, 1,234 rows, 100 rows/s, lag 5, last batch 34 in 0.2 s, cold 3.0 MiB, well"
    )
    assert [size(count) for count in (5, 2048, 3 << 40)] == ["5 B", "2.0 KiB", "3.0 TiB"]
    board = Board()
    board(report)
    board(Progress(job="a", kind="x", state="done"))
    assert [each.job for each in board.jobs()] == ["a", "tier tables/a"]
    board.drop("a")
    assert len(board.jobs()) == 1
