"""How the cost of something grows with its size, measured in CPU time: the clock of a busy machine says nothing.

`check_growth` doubles the size until the cost is well above the noise and then holds one doubling against the bound:
work that is linear takes twice as long, with a margin three times; work that is quadratic takes four times.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

FACTOR_MAX = 3.0  # CPU at 2n against CPU at n
NOISE_S = 0.04  # CPU that is not worth a comparison, whatever it is spent on
TRIES = 6  # measurements of a pair that looks wrong, before it is wrong

Work = Callable[[], object]


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
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                spent += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return spent


def check_growth(what: str, make: Callable[[int], Work], first: int = 2_048, last: int = 262_144) -> list[float]:
    """Double the size from `first` until a doubling was seen that costs more than the noise, or to `last`; raise
    AssertionError if CPU at 2n is more than `FACTOR_MAX` times CPU at n. The costs are returned, smallest size first.

    `make(n)` prepares work of size n; only what it returns is measured, and it must be new each time: what was seen
    before may be remembered."""
    gc.collect()
    gc.freeze()  # a collection between two measurements looks at nothing but what they left
    size = first
    costs = [cpu_s(make(size))]
    while size < last:
        size *= 2
        costs.append(cpu_s(make(size)))
        before, after = costs[-2:]
        if after > NOISE_S and after > FACTOR_MAX * before:
            before, after = _again(make, size, before, after)
            costs[-2:] = before, after
            if after > NOISE_S and after > FACTOR_MAX * before:
                raise AssertionError(
                    f"{what}: {after * 1000:.0f} ms of CPU at a size of {size:,}, {before * 1000:.0f} ms at half of "
                    f"that: {after / before:.1f} times as much, and {FACTOR_MAX:g} is the most"
                )
        if before > NOISE_S:
            break  # a whole doubling above the noise
    return costs


def _again(make: Callable[[int], Work], size: int, before: float, after: float) -> tuple[float, float]:
    """The least of several measurements: what disturbs one only ever adds."""
    for _ in range(TRIES):
        before = min(before, cpu_s(make(size // 2)))
        after = min(after, cpu_s(make(size)))
        if after <= FACTOR_MAX * before:
            break
    return before, after
