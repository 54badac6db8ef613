"""Samples of the server's state, every ten seconds for a day: what charts are drawn from without a metrics server.

The samples are columns of numbers in a ring, about 110 bytes each. Taking one compares counters, on the event loop;
what needs the disk or the database is measured in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import msgspec

from tailrace import limits
from tailrace.database import Database
from tailrace.errors import Error
from tailrace.topics.overview import FindLag

logger = logging.getLogger("tailrace.http")

# Counters of `Metrics`, each sampled as its rate: per second.
RATES: Final = (
    "commits", "commands", "queries", "entries", "entry_bytes", "requests", "published", "consumed", "acked", "frames",
)  # fmt: skip
LATENCIES: Final = ("commit_p50_ms", "commit_p99_ms")
GAUGES: Final = (
    "queue", "connections", "live_readers", "consumers_waiting", "unsent_bytes", "lag", "in_flight", "database_bytes",
    "disk_free_bytes", "memory_bytes", "cpu",
)  # fmt: skip
COLUMNS: Final = (*RATES, *LATENCIES, *GAUGES)
_LARGE: Final = frozenset(("entry_bytes", "unsent_bytes", "database_bytes", "disk_free_bytes", "memory_bytes"))
_WORST: Final = frozenset(("commit_p99_ms",))  # of several samples the largest is shown, and otherwise their mean
_RECENT_S: Final = 2.0  # rates since the last sample are used from then on
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class DiskUse(msgspec.Struct, frozen=True):
    """The size of the database and what is left on its disk; None: unknown."""

    database_bytes: int | None
    free_bytes: int | None
    total_bytes: int | None


def disk_use(directory: str) -> DiskUse:
    """Without cold storage, which may be elsewhere."""
    try:
        size = sum(each.stat().st_size for each in os.scandir(directory) if each.is_file(follow_symlinks=False))
        disk = os.statvfs(directory)
    except OSError:
        return DiskUse(None, None, None)
    return DiskUse(size, disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize)


def memory_bytes() -> int | None:
    """Resident memory of this process; None where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None


def percentiles_ms(times_s: list[float]) -> tuple[float, float]:
    """The median and the 99th percentile in milliseconds; NaN if there are none."""
    if not times_s:
        return math.nan, math.nan
    ordered = sorted(times_s)
    last = len(ordered) - 1
    return ordered[last // 2] * 1000, ordered[math.ceil(last * 0.99)] * 1000


class Samples:
    """The ring, and the task that fills it. For one event loop."""

    def __init__(
        self, db: Database, directory: str, connections: Callable[[], int | None], interval_s: float = limits.SAMPLE_S
    ) -> None:
        self._db = db
        self._directory = directory
        self._connections = connections
        self._interval_s = interval_s
        self._times = array("q")  # in milliseconds since 1970, from `_first` on and around
        self._columns = {name: array("d" if name in _LARGE else "f") for name in COLUMNS}
        self._first = 0
        self._task: asyncio.Task[None] | None = None
        self._measuring: asyncio.Future[Any] | None = None  # in a thread, on the database
        self._counters = self._count()
        self._counted_s = time.monotonic()
        self._cpu_s = time.process_time()
        self.started_s = self._counted_s

    def start(self) -> None:
        """Take samples from now on."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Take no more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,) if self._measuring is None else (task, self._measuring))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.take()
            except Error as error:  # the database may be closed, or damaged: reads and writes say so
                logger.debug("no sample was taken: %s", error)
            except Exception:
                logger.exception("no sample was taken")

    async def take(self) -> None:
        """Take a sample now."""
        self._measuring = asyncio.get_running_loop().run_in_executor(None, self._measure)
        disk, lag, in_flight, memory = await asyncio.shield(self._measuring)
        self._measuring = None
        metrics, now_s = self._db.metrics, time.monotonic()
        counters, cpu_s, elapsed_s = self._count(), time.process_time(), max(now_s - self._counted_s, 1e-3)
        numbers = {name: (counters[name] - self._counters[name]) / elapsed_s for name in RATES}
        p50, p99 = percentiles_ms(list(metrics.commit_times))
        metrics.commit_times.clear()
        measured: dict[str, float | None] = {
            "commit_p50_ms": p50,
            "commit_p99_ms": p99,
            "queue": self._db.waiting,
            "connections": self._connections(),
            "live_readers": metrics.live_readers,
            "consumers_waiting": metrics.consumers_waiting,
            "unsent_bytes": metrics.unsent_bytes,
            "lag": lag,
            "in_flight": in_flight,
            "database_bytes": disk.database_bytes,
            "disk_free_bytes": disk.free_bytes,
            "memory_bytes": memory,
            "cpu": (cpu_s - self._cpu_s) / elapsed_s,
        }
        self._counters, self._counted_s, self._cpu_s = counters, now_s, cpu_s
        self._add(self._db.clock.now_ms(), {**numbers, **measured})

    def _measure(self) -> tuple[DiskUse, int, int, int | None]:
        found = self._db.execute(FindLag(limit=0))
        return disk_use(self._directory), found.lag, found.in_flight, memory_bytes()

    def _count(self) -> dict[str, float]:
        return {name: getattr(self._db.metrics, name) for name in RATES}

    def _add(self, at_ms: int, numbers: dict[str, float | None]) -> None:
        known = {name: math.nan if number is None else number for name, number in numbers.items()}
        if len(self._times) < limits.SAMPLES_MAX:
            self._times.append(at_ms)
            for name, column in self._columns.items():
                column.append(known[name])
            return
        self._times[self._first] = at_ms
        for name, column in self._columns.items():
            column[self._first] = known[name]
        self._first = (self._first + 1) % len(self._times)

    # -- reading

    def rates(self) -> dict[str, float]:
        """Events per second: since the last sample, or of the last sample if that has just been taken."""
        elapsed_s = time.monotonic() - self._counted_s
        if elapsed_s < _RECENT_S and self._times:
            last = (self._first - 1) % len(self._times)
            return {name: round(self._columns[name][last], 3) for name in RATES}
        counters = self._count()
        return {name: round((counters[name] - self._counters[name]) / max(elapsed_s, 1e-3), 3) for name in RATES}

    def latencies(self) -> dict[str, float | None]:
        """Of the commits since the last sample, or of the last sample if there are none."""
        found = percentiles_ms(list(self._db.metrics.commit_times))
        if math.isnan(found[0]) and self._times:
            last = (self._first - 1) % len(self._times)
            found = self._columns["commit_p50_ms"][last], self._columns["commit_p99_ms"][last]
        return {name: _shown(value) for name, value in zip(LATENCIES, found, strict=True)}

    def copied(self) -> SampleColumns:
        """The samples in the order of their times; to be read in a thread."""
        first = self._first
        columns = {name: ring[first:] + ring[:first] for name, ring in self._columns.items()}
        return SampleColumns(self._times[first:] + self._times[:first], columns)


class SampleColumns(msgspec.Struct, frozen=True):
    """Columns of numbers, all of one length; NaN where a number is unknown."""

    times: array[int]  # in milliseconds since 1970
    columns: dict[str, array[float]]

    def since(self, at_ms: int, step_s: int) -> dict[str, list[float | None]]:
        """The samples after a time, each `step_s` seconds of them as one, by column."""
        times, step_ms = self.times, step_s * 1000
        bounds: list[int] = []  # where each step begins
        for at in range(bisect_right(times, at_ms), len(times)):
            if not bounds or times[at] // step_ms != times[at - 1] // step_ms:
                bounds.append(at)
        bounds.append(len(times))
        spans = [(low, high) for low, high in pairwise(bounds) if low < high]
        found: dict[str, list[float | None]] = {"at_ms": [times[high - 1] for _, high in spans]}
        for name, column in self.columns.items():
            together = _largest if name in _WORST else _mean
            found[name] = [_shown(together(column[low:high])) for low, high in spans]
        return found


def _mean(values: array[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _largest(values: array[float]) -> float:
    return max((value for value in values if not math.isnan(value)), default=math.nan)


def _shown(value: float) -> float | None:
    if math.isnan(value):
        return None
    return int(value) if value == int(value) else round(value, 3)
