"""The loop of jobs: steps until one is the last, pauses after transient errors, patience that ends."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tailrace.errors import Conflict, Error, Invalid, NotFound, Unavailable
from tailrace.spark.jobs import loop
from tailrace.spark.jobs.loop import Pauses, run_steps


class Clock:
    """Time that passes only while the loop waits."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return self.now_s


class Stop(threading.Event):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self._clock.now_s += timeout
        self._clock.waits.append(timeout)
        return self.is_set()


class Job:
    """Takes what each step does from a list: an error, seconds to wait, or None at the end."""

    def __init__(self, *steps: Error | float | None, progress: bool = False) -> None:
        self.done = 0
        self.retried: list[str] = []
        self._steps = list(steps)
        self._progress = progress

    def step(self) -> float | None:
        self.done += self._progress
        found = self._steps.pop(0) if len(self._steps) > 1 else self._steps[0]
        if isinstance(found, Error):
            raise found
        return found

    def is_transient(self, error: Error) -> bool:
        return isinstance(error, Unavailable)

    def retry(self, error: Error) -> None:
        self.retried.append(str(error))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(loop, "time", made)
    return made


def test_steps_are_repeated_until_the_last(clock: Clock) -> None:
    run_steps(Job(1.0, 2.0, None), Stop(clock), patience_s=None)
    assert clock.waits == [1.0, 2.0]


def test_pauses_double_and_start_over_after_a_step_that_succeeded(clock: Clock) -> None:
    away = Unavailable("away")
    job = Job(away, away, away, 7.0, away, None)
    run_steps(job, Stop(clock), patience_s=None)
    assert clock.waits == [0.5, 1.0, 2.0, 7.0, 0.5]
    assert job.retried == ["away"] * 4


def test_pauses_are_bounded_and_patience_ends(clock: Clock) -> None:
    with pytest.raises(Unavailable):
        run_steps(Job(Unavailable("away")), Stop(clock), patience_s=60.0)
    assert max(clock.waits) == loop.PAUSE_S_MAX
    assert 60.0 < clock.now_s < 60.0 + 2 * loop.PAUSE_S_MAX


def test_progress_renews_the_patience(clock: Clock) -> None:
    away = [Unavailable("away")] * 200
    run_steps(Job(*away, None, progress=True), Stop(clock), patience_s=10.0)
    assert set(clock.waits) == {loop.PAUSE_S}


def test_other_errors_are_raised(clock: Clock) -> None:
    job = Job(Unavailable("away"), Conflict("taken"))
    with pytest.raises(Conflict):
        run_steps(job, Stop(clock), patience_s=None)
    assert job.retried == ["away"]


def test_a_stop_ends_the_loop(clock: Clock) -> None:
    stop = Stop(clock)

    class Stopping(Job):
        def retry(self, error: Error) -> None:
            super().retry(error)
            stop.set()

    job = Stopping(Unavailable("away"))
    run_steps(job, stop, patience_s=None)
    assert job.retried == ["away"]


class PausedServer:
    """Answers about one job from a list; the last answer stays."""

    def __init__(self, *found: bool | Error) -> None:
        self._found = list(found)
        self.asked = 0
        self.reported: list[str] = []

    def job(self, name: str) -> dict[str, Any]:
        self.asked += 1
        found = self._found.pop(0) if len(self._found) > 1 else self._found[0]
        if isinstance(found, Error):
            raise found
        return {"paused": found, "paused_by": "ann", "paused_at": "then"}

    def report_job(
        self, name: str, state: str, *, rows: int | None = None, message: str | None = None
    ) -> dict[str, Any]:
        self.reported.append(state)
        return {}


def test_a_paused_job_takes_no_step_and_says_that_it_is_there(clock: Clock) -> None:
    stop = Stop(clock)
    server = PausedServer(*[True] * 12, False)
    pauses = Pauses(server, "totals", clock=clock.monotonic)
    said: list[tuple[float, str]] = []
    job = Job(1.0, None, progress=True)
    run_steps(
        job, stop, patience_s=None, hold=lambda: pauses.hold(stop, lambda state: said.append((clock.now_s, state)))
    )
    assert [state for _, state in said] == ["paused"] * 3
    assert [at for at, _ in said] == [0.0, 5.0, 10.0]  # a report every REPORT_S
    assert clock.now_s == 13.0 and job.done == 2  # it was resumed after 12 looks, and did its work


def test_a_job_that_is_stopped_while_it_is_paused_ends(clock: Clock) -> None:
    stop = Stop(clock)
    pauses = Pauses(PausedServer(True), "totals", clock=clock.monotonic)
    job = Job(None, progress=True)
    run_steps(job, stop, patience_s=None, hold=lambda: pauses.hold(stop, lambda state: stop.set()))
    assert job.done == 0


def test_a_server_that_is_away_changes_nothing_about_a_pause(clock: Clock) -> None:
    pauses = Pauses(PausedServer(Unavailable("away"), True, Unavailable("away"), False), "x", clock=clock.monotonic)
    seen = []
    for _ in range(4):
        seen.append(pauses.paused())
        clock.now_s += 0.5
        assert pauses.paused() == seen[-1]  # it is not asked again within LOOK_S
        clock.now_s += 0.5
    assert seen == [False, True, True, False]


def test_a_job_that_the_server_does_not_know_is_not_paused(clock: Clock) -> None:
    server = PausedServer(True, NotFound("no such job"))
    pauses = Pauses(server, "totals", clock=clock.monotonic)
    with pytest.raises(Conflict, match="paused by 'ann' at then; run tailrace pipeline resume totals") as caught:
        pauses.refuse()
    assert caught.value.code == "JOB_PAUSED"
    clock.now_s += 1
    pauses.refuse()
    pauses.report("paused")
    assert server.reported == ["paused"]


def test_an_error_is_reported_in_one_line_and_raised() -> None:
    said: list[tuple[str, str]] = []

    def fail(error: Exception) -> None:
        with pytest.raises(type(error)), loop.reported(lambda state, message: said.append((state, message))):
            raise error

    class OfSpark(Exception):
        """As PySpark raises it."""

    OfSpark.__module__ = "pyspark.errors"
    fail(Invalid("no such column"))
    fail(KeyError("x"))
    fail(OfSpark("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\nJVM stacktrace:\n ..."))
    assert said == [("failed", "no such column"), ("failed", "KeyError: 'x'"), ("failed", "Division by zero.")]
