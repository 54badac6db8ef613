"""The loop of jobs: steps until one is the last, pauses after transient errors, patience that ends."""

from __future__ import annotations

import threading

import pytest

from tailrace.errors import Conflict, Error, Unavailable
from tailrace.spark.jobs import loop
from tailrace.spark.jobs.loop import run_steps


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
