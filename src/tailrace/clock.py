"""The only source of time. Injected, so that tests can move it.

`now_ms` is wall time that never goes back within a process; `monotonic_s` measures durations.
"""

from __future__ import annotations

import time


class Clock:
    """The system's clock, made non-decreasing: a step back of the wall clock is waited out, not followed."""

    def __init__(self) -> None:
        self._last_ms = 0

    def now_ms(self) -> int:
        now = time.time_ns() // 1_000_000
        if now > self._last_ms:
            self._last_ms = now
        return self._last_ms

    def monotonic_s(self) -> float:
        return time.monotonic()


class ManualClock(Clock):
    """A clock that moves only when told to. For tests and simulations."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        super().__init__()
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_s(self) -> float:
        return self._now_ms / 1000

    def advance(self, seconds: float) -> None:
        self._now_ms += int(seconds * 1000)
