"""Time never goes back, and never stands still either."""

from __future__ import annotations

import time

import pytest

from tailrace.clock import Clock


class Hands:
    """The system's two clocks, moved by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall_ms, self.monotonic_ms = 1_700_000_000_000, 5_000
        monkeypatch.setattr(time, "time_ns", lambda: self.wall_ms * 1_000_000)
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.monotonic_ms * 1_000_000)

    def pass_by(self, ms: int, *, step_ms: int = 0) -> None:
        self.monotonic_ms += ms
        self.wall_ms += ms + step_ms


def test_a_step_back_does_not_stop_time(monkeypatch: pytest.MonkeyPatch) -> None:
    hands, clock = Hands(monkeypatch), Clock()
    before = clock.now_ms()
    hands.pass_by(1_000, step_ms=-3_600_000)
    assert clock.now_ms() == before + 1_000, "a lease that runs must still end"
    hands.pass_by(2_000)
    assert clock.now_ms() == before + 3_000


def test_a_step_forward_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    hands, clock = Hands(monkeypatch), Clock()
    assert clock.now_ms() == hands.wall_ms
    hands.pass_by(10, step_ms=60_000)
    assert clock.now_ms() == hands.wall_ms


def test_a_thread_that_is_held_up_between_two_looks_does_not_set_the_clock_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed_ms = held_up_ms = 0

    def look() -> int:
        nonlocal passed_ms
        passed_ms += held_up_ms  # before the next instruction
        return (1_700_000_000_000 + passed_ms) * 1_000_000

    monkeypatch.setattr("tailrace.clock.time.time_ns", look)
    monkeypatch.setattr("tailrace.clock.time.monotonic_ns", lambda: look() - 1_690_000_000_000 * 1_000_000)
    clock = Clock()
    held_up_ms = 5_000
    clock.now_ms()
    held_up_ms = 0
    assert clock.now_ms() == 1_700_000_000_000 + passed_ms


def test_time_goes_on_from_what_a_machine_ahead_has_used(monkeypatch: pytest.MonkeyPatch) -> None:
    hands, clock = Hands(monkeypatch), Clock()
    ahead_ms = clock.now_ms() + 420_000
    clock.not_before(ahead_ms)
    assert clock.now_ms() == ahead_ms
    hands.pass_by(4_000)
    assert clock.now_ms() == ahead_ms + 4_000, "a lease that runs must still end"
    assert clock.settled_ms() == hands.wall_ms, "nothing is deleted by the other one's time"
    clock.observe()
    assert (clock.jump, clock.settled_ms()) == (None, hands.wall_ms)
    clock.not_before(hands.wall_ms)
    assert clock.now_ms() == ahead_ms + 4_000, "it does not go back"


def test_a_small_difference_between_machines_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    hands, clock = Hands(monkeypatch), Clock()
    clock.not_before(hands.wall_ms + 50)
    hands.pass_by(10)
    assert clock.now_ms() == clock.settled_ms() == hands.wall_ms + 50
