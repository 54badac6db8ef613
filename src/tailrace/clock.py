"""The only source of time. Injected, so that tests can move it.

`now_ms` is wall time that never goes back within a process; `monotonic_s` measures durations; `wall_ms` is the wall
clock itself, for times that are compared with the clocks of others.

Theory of operation
-------------------
Deletion by age cannot be undone, and one wrong second of the wall clock is enough to make everything look old. So
deletion by age uses the *settled* time, ``now_ms() - lag_ms``: wall time as far as the monotonic clock confirms it. A
forward step of more than CLOCK_JUMP_S is not followed at once; the confirmed time advances at the pace of the monotonic
clock, `lag_ms` behind, until the wall clock has kept the new time for CLOCK_CONFIRM_S (`observe`, which housekeeping
calls in every round) or has stepped back. The same applies when a database is opened: a clock ahead of the last
recorded time may be wrong, or the machine was off; `resume` waits as for a jump. A database that is only opened briefly
confirms a jump at a later start: a time that was seen once is accepted when the clock is beyond it by CLOCK_CONFIRM_S.
A step back is followed at once: it makes everything younger.

Timestamps of entries come from `now_ms`. If the clock jumps ahead and steps back, they stay in the future, since time
never goes back in a log; such entries are kept that much longer, and never deleted early.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import NamedTuple

from tailrace import limits

_JUMP_MS = int(limits.CLOCK_JUMP_S * 1000)
_REPORTS = 64  # of another clock, of which the quickest counts
_CONFIRM_MS = int(limits.CLOCK_CONFIRM_S * 1000)


class Jump(NamedTuple):
    """An unconfirmed jump: the wall clock is ahead of the confirmed time."""

    ahead_ms: int
    confirmed_in_ms: int


class Clock:
    """The system clock, made non-decreasing. When the wall clock steps back, time continues from its last value, at the
    pace of the monotonic clock: running leases and TTLs must still end."""

    def __init__(self) -> None:
        wall_ms, monotonic_ms = self._read()
        # The greatest lead of the wall clock over the monotonic one.
        self._base_ms = wall_ms - monotonic_ms
        self.lag_ms = 0  # by how much the confirmed time is behind `now_ms`
        self._jumped_ms: int | None = None  # the wall clock's lead over the monotonic one since its jump
        self._since_ms = 0  # when the jump was first seen, by the monotonic clock
        self.seen_ms: int | None = None  # and by the wall clock, possibly by an earlier process
        self._resumed = False
        self._moving = threading.Lock()

    def _read(self) -> tuple[int, int]:
        """The wall clock and the monotonic one."""
        return time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000

    def now_ms(self) -> int:
        # The wall clock first: a thread that is held up between the two then sees it ahead by less, never by more.
        wall = time.time_ns() // 1_000_000
        monotonic = time.monotonic_ns() // 1_000_000
        ahead = wall - monotonic
        if ahead > self._base_ms:
            self._step(ahead, monotonic)
        return self._base_ms + monotonic

    def wall_ms(self) -> int:
        """The wall clock as it is, which may go back: after a jump that is over, `now_ms` differs from everybody
        else's time for as long as the process runs."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def _step(self, ahead_ms: int, monotonic_ms: int) -> None:
        """The wall clock has gained on the monotonic one: by drift, or by a jump."""
        with self._moving:
            gained = ahead_ms - self._base_ms
            if gained <= 0:
                return  # another thread has seen it too
            if self.lag_ms or gained > _JUMP_MS:
                self.lag_ms += (
                    gained  # before the base: other threads then compute a time that is early rather than late
                )
                if self._jumped_ms is None:
                    self._suspect(ahead_ms, monotonic_ms)
            self._base_ms = ahead_ms

    def not_before(self, now_ms: int) -> None:
        """Go on from a time that another machine has used, whose clock was ahead, at the pace of the monotonic
        clock: time must neither go back nor stand still. The confirmed time does not follow a large difference."""
        with self._moving:
            _, monotonic_ms = self._read()
            gained = now_ms - monotonic_ms - self._base_ms
            if gained > 0:
                self.lag_ms += gained if gained > _JUMP_MS else 0
                self._base_ms += gained

    # -- the confirmed time

    def settled_ms(self) -> int:
        """The confirmed wall time; it may go back, with the wall clock."""
        now_ms = self.now_ms()
        return now_ms - self.lag_ms

    def _suspect(self, ahead_ms: int, monotonic_ms: int) -> None:
        self._jumped_ms, self._since_ms, self.seen_ms = ahead_ms, monotonic_ms, ahead_ms + monotonic_ms

    def resume(self, last_ms: int | None, seen_ms: int | None) -> None:
        """Continue from the confirmed time that another process recorded, and from the jump it was waiting to confirm.
        Ignored by a clock that was used before."""
        if self._resumed:
            return
        self._resumed = True
        wall_ms, monotonic_ms = self._read()
        if last_ms is None:
            return
        if seen_ms is not None and wall_ms - seen_ms >= _CONFIRM_MS:
            last_ms, seen_ms = max(last_ms, seen_ms), None
        if wall_ms - last_ms > _JUMP_MS:
            self._base_ms = wall_ms - monotonic_ms
            self.lag_ms = wall_ms - last_ms
            self._suspect(self._base_ms, monotonic_ms)
            if seen_ms is not None and seen_ms < wall_ms:
                self.seen_ms = seen_ms

    @property
    def jump(self) -> Jump | None:
        """The unconfirmed jump of the wall clock, if there is one."""
        if self._jumped_ms is None:
            return None
        _, monotonic_ms = self._read()
        ahead_ms = self._jumped_ms - (self._base_ms - self.lag_ms)
        return Jump(ahead_ms, max(0, self._since_ms + _CONFIRM_MS - monotonic_ms))

    def observe(self) -> None:
        """Compare the clocks: a jump is confirmed, over, or still unconfirmed. Call it regularly."""
        self.now_ms()
        with self._moving:
            wall_ms, monotonic_ms = self._read()
            ahead = wall_ms - monotonic_ms
            behind = self._base_ms - ahead  # above 0 if the wall clock has stepped back
            if not self.lag_ms and behind <= _JUMP_MS:
                return  # the usual case
            if behind >= self.lag_ms - _JUMP_MS:  # it agrees with the confirmed time, or is before it
                self._jumped_ms, self.seen_ms, self.lag_ms = None, None, max(0, behind)
            elif self._jumped_ms is None or abs(ahead - self._jumped_ms) > _JUMP_MS:
                self._suspect(ahead, monotonic_ms)
            elif monotonic_ms - self._since_ms >= _CONFIRM_MS:
                self._jumped_ms, self.seen_ms, self.lag_ms = None, None, max(0, behind)


class FollowedClock(Clock):
    """The clock of another process, perhaps of another machine, which reports it now and then: all must agree on what
    has expired. A report takes a moment to arrive, so that of the last ones the quickest counts; earlier ones do not,
    because the clocks of two machines drift apart."""

    def __init__(self) -> None:
        super().__init__()
        self._offsets: deque[int] = deque(maxlen=_REPORTS)  # of the other clock from the monotonic one of this process

    def follow(self, now_ms: int, lag_ms: int) -> None:
        """The other clock showed this a moment ago."""
        _, monotonic_ms = self._read()
        base_ms = now_ms - monotonic_ms
        if self._offsets and self._offsets[-1] - base_ms > _JUMP_MS:  # it was set back
            self._offsets.clear()
        self._offsets.append(base_ms)
        self._base_ms = max(self._offsets)
        self.lag_ms = lag_ms

    def now_ms(self) -> int:
        return self._base_ms + time.monotonic_ns() // 1_000_000

    def observe(self) -> None:
        """The other process observes it."""


class ManualClock(Clock):
    """A clock that moves only when the program moves it. For tests and simulations."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = self._monotonic_ms = now_ms
        super().__init__()

    def _read(self) -> tuple[int, int]:
        return self._wall_ms, self._monotonic_ms

    def now_ms(self) -> int:
        ahead = self._wall_ms - self._monotonic_ms
        if ahead > self._base_ms:
            self._step(ahead, self._monotonic_ms)
        return self._base_ms + self._monotonic_ms

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic_s(self) -> float:
        return self._monotonic_ms / 1000

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._wall_ms += int(seconds * 1000)
        self._monotonic_ms += int(seconds * 1000)

    def jump_by(self, seconds: float) -> None:
        """Set the wall clock, ahead or back, while no time passes."""
        self._wall_ms += int(seconds * 1000)
