"""Progress of jobs: reported to a callback, and to the server, where `system.pipelines` shows it.

A job has a `Meter`, which counts its batches. The meter passes a `Progress` to the callback after each batch: a `Board`
for a terminal, any function for a program. Reports to the server are less frequent, and a job continues if one fails.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from tailrace.errors import Conflict, Error

STARTING: Final = "starting"
RUNNING: Final = "running"
WAITING: Final = "waiting"  # there is nothing to do
RETRYING: Final = "retrying"  # it failed, and will be tried again
DONE: Final = "done"
PAUSED: Final = "paused"  # on request, until it is resumed
STOPPED: Final = "stopped"
FAILED: Final = "failed"

# The states that the server stores: fewer than these, with the details in the message.
_STORED: Final = {STARTING: "running", RUNNING: "running", WAITING: "running", RETRYING: "failed", DONE: "stopped"}

RATE_S: Final = 30.0  # over how long rows per second are counted
REPORT_S: Final = 5.0  # between two reports of one job to the server
MESSAGE_CHARACTERS_MAX: Final = 500  # of an error that is reported to the server


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a job, at one moment."""

    job: str  # its name in system.pipelines
    kind: str
    state: str
    rows: int = 0  # since it was started here
    rows_per_s: float = 0.0  # recently
    lag: int | None = None  # not processed yet: records, messages, or bytes of a stream
    batch_rows: int = 0  # of the last batch
    batch_s: float = 0.0
    cold_bytes: int | None = None
    message: str = ""
    at_ms: int = 0


ProgressCallback: TypeAlias = Callable[[Progress], None]


class JobServer(Protocol):
    """The methods of a client that a meter uses."""

    def register_job(
        self, name: str, kind: str, *, source: str = "", target: str = "", definition: Mapping[str, Any] | None = None
    ) -> dict[str, Any]: ...

    def job(self, name: str) -> dict[str, Any]: ...

    def report_job(
        self, name: str, state: str, *, rows: int | None = None, message: str | None = None
    ) -> dict[str, Any]: ...


def ignore_progress(progress: Progress) -> None:
    """The callback where none is given."""


class Meter:
    """Counts the batches of one job. Used by the job's thread only."""

    def __init__(
        self,
        job: str,
        kind: str,
        on_progress: ProgressCallback | None = None,
        *,
        server: JobServer | None = None,
        source: str = "",
        target: str = "",
        definition: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = Progress(job=job, kind=kind, state=STARTING)
        self._on_progress = on_progress or ignore_progress
        self._server = server
        self._source, self._target, self._definition = source, target, definition
        self._clock = clock
        self._recent: deque[tuple[float, int]] = deque()  # moment and rows of each batch
        self._began = clock()
        self._reported_at: float | None = None
        self._before: int | None = None  # rows of earlier runs, once the job is registered

    @property
    def job(self) -> str:
        return self._now.job

    def batch(self, rows: int, seconds: float, **facts: Any) -> None:
        """Count a batch; `lag` and `cold_bytes` where they are known."""
        self._recent.append((self._clock(), rows))
        self._publish(state=RUNNING, rows=self._now.rows + rows, batch_rows=rows, batch_s=seconds, message="", **facts)

    def say(self, state: str, message: str = "", **facts: Any) -> None:
        """Report the state of the job, with a message."""
        self._publish(state=state, message=message, **facts)

    def _publish(self, **facts: Any) -> None:
        changed = facts["state"] != self._now.state and {facts["state"], self._now.state} != {RUNNING, WAITING}
        rate = self._rate()
        self._now = msgspec.structs.replace(self._now, rows_per_s=rate, at_ms=int(time.time() * 1000), **facts)
        self._on_progress(self._now)
        if self._server is not None:
            now = self._clock()
            if changed or self._reported_at is None or now - self._reported_at >= REPORT_S:
                self._report(self._server)
                self._reported_at = now

    def _rate(self) -> float:
        now = self._clock()
        while self._recent and self._recent[0][0] < now - RATE_S:
            self._recent.popleft()
        if not self._recent:
            return 0.0
        return sum(rows for _, rows in self._recent) / max(min(now - self._began, RATE_S), 0.001)

    def _report(self, server: JobServer) -> None:
        now = self._now
        # A report that fails, because the server is away or the principal may not register jobs, is not repeated: the
        # positions themselves are stored with the work.
        with suppress(Error):
            if self._before is None:
                self._before = self._registered(server)
            message = now.message or (f"{now.lag:,} behind" if now.lag else "")
            server.report_job(
                now.job,
                _STORED.get(now.state, now.state),
                rows=self._before + now.rows,
                message=message[:MESSAGE_CHARACTERS_MAX],
            )

    def _registered(self, server: JobServer) -> int:
        """The rows that the job processed in earlier runs."""
        now = self._now
        try:
            found = server.register_job(
                now.job, now.kind, source=self._source, target=self._target, definition=self._definition
            )
        except Conflict:  # it is registered with another target: cold storage has moved
            found = server.job(now.job)
        return int(found["rows"])


def brief(error: BaseException) -> str:
    """The error as one line of text."""
    if isinstance(error, Error):
        return str(error)
    return f"{type(error).__name__}: {error}".splitlines()[0]


# -- display


class Board:
    """The latest progress of every job. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, Progress] = {}

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            self._jobs[progress.job] = progress

    def drop(self, job: str) -> None:
        with self._lock:
            self._jobs.pop(job, None)

    def jobs(self) -> list[Progress]:
        with self._lock:
            return [self._jobs[name] for name in sorted(self._jobs)]


def line(progress: Progress) -> str:
    """A job in one line of plain text."""
    parts = [f"{progress.job}: {progress.state}"]
    if progress.rows:
        parts.append(f"{progress.rows:,} rows")
        parts.append(f"{progress.rows_per_s:,.0f} rows/s")
    if progress.lag is not None:
        parts.append(f"lag {progress.lag:,}")
    if progress.batch_rows:
        parts.append(f"last batch {progress.batch_rows:,} in {progress.batch_s:.1f} s")
    if progress.cold_bytes is not None:
        parts.append(f"cold {size(progress.cold_bytes)}")
    if progress.message:
        parts.append(progress.message)
    return ", ".join(parts)


def size(count: int) -> str:
    """A number of bytes, formatted with a unit."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
