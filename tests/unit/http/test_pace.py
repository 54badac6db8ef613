"""Bulk reads rest while the event loop is busy with other things, and only then."""

from __future__ import annotations

import asyncio

import pytest

from tailrace import limits
from tailrace.http import arrow
from tailrace.http.arrow import Pace


class Clocks:
    """Time that passes on command: by the clock, and of the loop's processor."""

    def __init__(self) -> None:
        self.now_s = self.used_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def thread_time(self) -> float:
        return self.used_s


@pytest.mark.parametrize(
    ("busy", "rest"),
    [(0.0, 0.0), (limits.BULK_BUSY, 0.0), (1.0, limits.BULK_REST), ((1 + limits.BULK_BUSY) / 2, limits.BULK_REST / 2)],
)
def test_the_busier_the_loop_the_longer_the_rest(monkeypatch: pytest.MonkeyPatch, busy: float, rest: float) -> None:
    clocks, rests = Clocks(), []

    async def sleep(seconds: float) -> None:
        rests.append(seconds)

    async def run() -> None:
        pace = Pace()
        for _ in range(2):  # what came before does not count
            clocks.now_s += 0.02
            clocks.used_s += 0.02 * busy
            await pace.rest()

    monkeypatch.setattr(arrow, "time", clocks)
    monkeypatch.setattr(arrow.asyncio, "sleep", sleep)
    asyncio.run(run())
    assert rests == pytest.approx([0.02 * rest] * 2)
