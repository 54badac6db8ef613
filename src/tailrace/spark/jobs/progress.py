"""How jobs are getting on: told to whoever watches, and to the server, where `system.pipelines` shows it.

A job has a `Meter`. It notes each batch; what it notes goes as a `Progress`, a value, to whoever is told, which is a
`Board` on a terminal and whatever the caller likes in a program. The server is told less often, and a server that
cannot be told stops no work.
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
STOPPED: Final = "stopped"
FAILED: Final = "failed"

# What the server is told: it knows fewer states, and the message says the rest.
_STORED: Final = {STARTING: "running", RUNNING: "running", WAITING: "running", RETRYING: "failed", DONE: "stopped"}

RATE_S: Final = 30.0  # over how long rows per second are counted
REPORT_S: Final = 5.0  # between two reports of one job to the server
MESSAGE_CHARACTERS_MAX: Final = 500  # of an error, told to the server


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job is, at one moment."""

    job: str  # its name in system.pipelines
    kind: str
    state: str
    rows: int = 0  # since it was started here
    rows_per_s: float = 0.0  # lately
    lag: int | None = None  # how much is not done yet: records, messages, or bytes of a stream
    batch_rows: int = 0  # of the last batch
    batch_s: float = 0.0
    cold_bytes: int | None = None
    message: str = ""
    at_ms: int = 0


Told: TypeAlias = Callable[[Progress], None]


class Server(Protocol):
    """What a meter needs of a client."""

    def register_job(
        self, name: str, kind: str, *, source: str = "", target: str = "", definition: Mapping[str, Any] | None = None
    ) -> dict[str, Any]: ...

    def job(self, name: str) -> dict[str, Any]: ...

    def report_job(
        self, name: str, state: str, *, rows: int | None = None, message: str | None = None
    ) -> dict[str, Any]: ...


def nobody(progress: Progress) -> None:
    """Who is told when nobody wants to know."""


class Meter:
    """Counts what one job does. Used by the job's thread alone."""

    def __init__(
        self,
        job: str,
        kind: str,
        told: Told | None = None,
        *,
        server: Server | None = None,
        source: str = "",
        target: str = "",
        definition: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = Progress(job=job, kind=kind, state=STARTING)
        self._told = told or nobody
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
        """Note a batch that is done; `lag` and `cold_bytes` if they are known."""
        self._recent.append((self._clock(), rows))
        self._tell(state=RUNNING, rows=self._now.rows + rows, batch_rows=rows, batch_s=seconds, message="", **facts)

    def say(self, state: str, message: str = "", **facts: Any) -> None:
        """Note that the job is in another state, or why."""
        self._tell(state=state, message=message, **facts)

    def _tell(self, **facts: Any) -> None:
        turned = facts["state"] != self._now.state and {facts["state"], self._now.state} != {RUNNING, WAITING}
        rate = self._rate()
        self._now = msgspec.structs.replace(self._now, rows_per_s=rate, at_ms=int(time.time() * 1000), **facts)
        self._told(self._now)
        if self._server is not None:
            now = self._clock()
            if turned or self._reported_at is None or now - self._reported_at >= REPORT_S:
                self._report(self._server)
                self._reported_at = now

    def _rate(self) -> float:
        now = self._clock()
        while self._recent and self._recent[0][0] < now - RATE_S:
            self._recent.popleft()
        if not self._recent:
            return 0.0
        return sum(rows for _, rows in self._recent) / max(min(now - self._began, RATE_S), 0.001)

    def _report(self, server: Server) -> None:
        now = self._now
        # A server that is away hears of it next time, and who may not administer is not heard: what counts is already
        # there, the marks themselves.
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

    def _registered(self, server: Server) -> int:
        """How many rows the job has worked through before this."""
        now = self._now
        try:
            found = server.register_job(
                now.job, now.kind, source=self._source, target=self._target, definition=self._definition
            )
        except Conflict:  # it has moved: cold storage is elsewhere now
            found = server.job(now.job)
        return int(found["rows"])


def brief(error: BaseException) -> str:
    """An error in one line."""
    if isinstance(error, Error):
        return str(error)
    return f"{type(error).__name__}: {error}".splitlines()[0]


# -- for people


class Board:
    """The latest word of every job. Used by many threads."""

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
    """Bytes, for people."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
