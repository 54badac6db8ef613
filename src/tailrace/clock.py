"""The only source of time. Injected, so that tests can move it.

`now_ms` is wall time that never goes back within a process; `monotonic_s` measures durations.
"""

from __future__ import annotations

import time


class Clock:
    """The system's clock, made non-decreasing. When the wall clock steps back, time goes on from where it was, at the
    pace of the monotonic clock: leases and TTLs that run must still end."""

    def __init__(self) -> None:
        self._base_ms = 0  # what the wall clock has been ahead of the monotonic one, at the most

    def now_ms(self) -> int:
        monotonic = time.monotonic_ns() // 1_000_000
        ahead = time.time_ns() // 1_000_000 - monotonic
        if ahead > self._base_ms:
            self._base_ms = ahead
        return self._base_ms + monotonic

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
