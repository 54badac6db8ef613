"""How the cost of something grows with its size, measured in CPU time: the clock of a busy machine says nothing.

`check_growth` doubles the size until the cost is well above the noise. Work that is linear costs twice as much at twice
the size, with a margin three times; work that is quadratic costs four times. A doubling that costs more is measured
again, in rounds:

- A round has as much CPU time at the smaller size as at the larger one, and the larger is measured between the smaller
  ones. Whatever slows the machine down for a while then slows both. Were each measured once, the short measurement
  would often fit between two disturbances, and the long one never.
- The least round of each size counts: a disturbance only ever adds.
- One doubling may cost more for a reason that does not continue, such as a cache that is too small from there on. So
  the next doubling is measured too, also beyond the last size, and the bound is then on both: three times three. If the
  next costs less, the work was refused at a limit: then the first doubling decides, unless the limit keeps the cost
  below `BOUNDED_S`.
"""

from __future__ import annotations

import contextlib
import gc
import math
import resource
import time
from collections.abc import Callable
from pathlib import Path

FACTOR_MAX = 3.0  # CPU at 2n against CPU at n
NOISE_S = 0.04  # CPU that is not worth a comparison, whatever it is spent on
BOUNDED_S = 0.2  # CPU that is little for one request: a limit that keeps the cost below it is a bound
CLEAR = 4.0  # times the least cost: quadratic work then outweighs a fixed cost by so much that a doubling shows it
ROUNDS_MIN = 3  # of a doubling that looks wrong, before it is right after all: the smaller size may have been disturbed
ROUNDS_MAX = 8  # before it is wrong

Work = Callable[[], object]
Measure = Callable[[Work], float]


def cpu_s(work: Work) -> float:
    """The CPU time that `work` takes, of all threads of this process and of its children, which run SELECT; but for
    the garbage collector's: when that comes to it depends on what was done before."""
    gc.disable()
    try:
        began = _spent_s()
        work()
        return _spent_s() - began
    finally:
        gc.enable()


def _spent_s() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = time.process_time() + ended.ru_utime + ended.ru_stime
    for listed in Path("/proc/self/task").glob("*/children"):  # where there is no such thing, they are not counted
        for child in listed.read_text().split():
            with contextlib.suppress(OSError):  # it has just ended
                spent += child_cpu_s(int(child))
    return spent


def child_cpu_s(pid: int) -> float:
    """The CPU time of a running process. /proc/{pid}/stat has it in hundredths of a second, which is too coarse; its
    clock, whose number is made of the process's as clock_getcpuclockid(3) does it, has nanoseconds."""
    return time.clock_gettime((~pid << 3) | 2)


def check_growth(
    what: str, make: Callable[[int], Work], first: int = 2_048, last: int = 262_144, measure: Measure = cpu_s
) -> list[float]:
    """Double the size from `first` until a doubling was seen that costs much more than the noise, or to `last`; raise
    AssertionError if CPU at 2n is more than `FACTOR_MAX` times CPU at n, and goes on like that. The costs are returned,
    smallest size first.

    `make(n)` prepares work of size n; only what it returns is measured, and it must be new each time: what was seen
    before may be remembered."""
    gc.collect()
    gc.freeze()  # a collection between two measurements looks at nothing but what they left
    size = first
    costs = [measure(make(size))]
    while size < last:
        size *= 2
        costs.append(measure(make(size)))
        before, after = costs[-2:]
        if _wrong(before, after):
            before, after = costs[-2:] = _rounds(make, size // 2, 2, measure)
            if _wrong(before, after):
                _check_next(what, make, size, (before, after), measure)
        if before > NOISE_S and before > CLEAR * min(costs):
            break  # a whole doubling above the noise, and above what is spent whatever the size
    return costs


def _check_next(
    what: str, make: Callable[[int], Work], size: int, measured: tuple[float, float], measure: Measure
) -> None:
    """Raise AssertionError if the doubling after one that is wrong does not make up for it."""
    (before, after), times, largest = measured, 2, size
    if measure(make(size * 2)) > after:
        before, after = _rounds(make, size // 2, 4, measure)
        times, largest = 4, size * 2
    elif after < BOUNDED_S:
        return
    if _wrong(before, after, times):
        raise AssertionError(
            f"{what}: {after * 1000:.0f} ms of CPU at a size of {largest:,}, {before * 1000:.0f} ms at {size // 2:,}: "
            f"{after / before:.1f} times as much, and {_factor_max(times):g} is the most"
        )


def _factor_max(times: int) -> float:
    return FACTOR_MAX ** math.log2(times)


def _wrong(before: float, after: float, times: int = 2) -> bool:
    return after > NOISE_S and after > _factor_max(times) * before


def _rounds(make: Callable[[int], Work], size: int, times: int, measure: Measure) -> tuple[float, float]:
    """The least costs at a size and at `times` that size, of rounds that have as much work of the one as of the
    other."""
    before = after = math.inf
    for number in range(1, ROUNDS_MAX + 1):
        parts = [measure(make(size)) for _ in range(times // 2)]
        after = min(after, measure(make(size * times)))
        parts += [measure(make(size)) for _ in range(times - times // 2)]
        before = min(before, sum(parts) / times)
        if number >= ROUNDS_MIN and not _wrong(before, after, times):
            break
    return before, after
