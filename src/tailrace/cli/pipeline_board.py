"""The jobs of the pipeline as tables: progress while they run, and their status.

On a terminal a table is redrawn continuously. Elsewhere each job with progress prints a line every few seconds, as text
or as JSON.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final

import click
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from tailrace.cli import drawing
from tailrace.cli.text import json_line, plain, safe
from tailrace.spark.jobs.progress import Board, Progress, line, size

DRAW_S: Final = 0.5
LINE_S: Final = 5.0
_STYLES: Final = {
    "running": "green", "waiting": "dim", "starting": "dim", "retrying": "yellow", "failed": "bold red",
    "done": "green", "stopped": "dim", "registered": "dim", "paused": "yellow",
}  # fmt: skip
_ENDS: Final = ("retrying", "failed", "done", "stopped", "paused")  # states that are printed at once


class ProgressDisplay:
    """Shows the progress of jobs while it is entered. Jobs call it with their progress."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False, every_s: float = LINE_S) -> None:
        self._as_json = as_json
        self._quiet = quiet
        self._every_s = every_s
        self._board = Board()
        self._lock = threading.Lock()
        self._written: dict[str, tuple[float, Progress]] = {}
        self._live: Live | None = None
        if not (as_json or quiet) and sys.stderr.isatty():
            console = drawing.terminal(sys.stderr)
            self._live = Live(console=console, refresh_per_second=1 / DRAW_S, get_renderable=self._drawn)

    def __call__(self, progress: Progress) -> None:
        self._board(progress)
        if self._live is None and not self._quiet:
            self._write(progress)

    def __enter__(self) -> ProgressDisplay:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.refresh()
            self._live.stop()

    def _write(self, progress: Progress) -> None:
        """Print a line, if there is progress and the last line is old enough."""
        with self._lock:
            at, last = self._written.get(progress.job, (-self._every_s, None))
            turned = last is None or last.state != progress.state
            now = time.monotonic()
            if now - at < self._every_s and not (turned and progress.state in _ENDS):
                return
            if last is not None and not turned and last.rows == progress.rows and last.lag == progress.lag:
                return
            self._written[progress.job] = now, progress
            if self._as_json:
                click.echo(json_line(progress), nl=False)
            else:
                click.echo(safe(line(progress)), err=True)

    def _drawn(self) -> RenderableType:
        return running_jobs(self._board.jobs())


def running_jobs(progress: Sequence[Progress]) -> RenderableType:
    """One line per running job."""
    if not progress:
        return Text("starting Spark", style="dim")
    titles = ("job", "state", "rows", "rows/s", "lag", "last batch", "cold", "")
    rows = [
        (
            Text(safe(each.job)), Text(each.state, style=_STYLES.get(each.state, "")), Text(f"{each.rows:,}"),
            Text(f"{each.rows_per_s:,.0f}"), Text("" if each.lag is None else f"{each.lag:,}"),
            Text(f"{each.batch_rows:,} in {each.batch_s:.1f} s" if each.batch_rows else ""),
            Text("" if each.cold_bytes is None else size(each.cold_bytes)), Text(safe(each.message), style="yellow"),
        )
        for each in progress
    ]  # fmt: skip
    return drawing.listed(titles, rows, titles[2:7])


def stored_jobs(jobs: Sequence[dict[str, Any]]) -> RenderableType:
    """One line per job registered with the server."""
    titles = ("job", "kind", "source", "target", "state", "rows", "updated", "message")
    rows = [
        [
            Text(safe(each["name"])), Text(each["kind"]), Text(safe(each["source"])), Text(safe(each["target"])),
            _state(each), Text(f"{each.get('rows') or 0:,}"),
            Text(str(each["updated_at"])), Text(safe(each.get("message") or "")),
        ]
        for each in jobs
    ]  # fmt: skip
    return drawing.listed(titles, rows, ("rows",))


def _state(job: dict[str, Any]) -> Text:
    """The state of a job; one that is paused, and whose program has not said so, has both."""
    state, paused = job["state"], bool(job.get("paused"))
    shown = "paused" if paused and state == "paused" else f"{state}, paused" if paused else state
    return Text(shown, style=_STYLES.get("paused" if paused else state, ""))


def audit_rows(changes: Sequence[dict[str, Any]]) -> RenderableType:
    """One line per change."""
    if not changes:
        return Text("no changes", style="dim")
    titles = [name for name in changes[0] if name not in ("table", "index")]
    rows = [[Text(safe(_cell(each[name]))) for name in titles] for each in changes]
    return drawing.listed(titles, rows, ("sequence", "offset", "partition", "bytes"))


def _cell(value: Any) -> str:
    if isinstance(value, list):  # attributes that differ
        return ", ".join(f"{each['name']}: {each['before'] or '–'} → {each['after'] or '–'}" for each in value)
    return plain(value)


def show(drawn: RenderableType) -> None:
    """Print a table to the terminal."""
    drawing.terminal().print(drawn)
