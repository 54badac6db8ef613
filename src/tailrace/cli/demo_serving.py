"""``tailrace demo --serve``: a server, a pipeline and a shop that writes, until they are interrupted.

They end together: who is interrupted is this program, and it ends the shop, then the pipeline, then the server. If it
is killed, the others notice. A pipeline that cannot start, or ends, takes nothing with it: the server stays up.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import msgspec

from tailrace.cli import demo_shop as shop
from tailrace.cli.demo_parts import Part, ServerPart
from tailrace.cli.text import safe
from tailrace.client import Client
from tailrace.config import DEFAULT_PORT
from tailrace.errors import Conflict, Error

START_S: Final = 60.0
WRITE_S: Final = 0.5  # between two writes
BUSY_S: Final = 900.0  # after so long nobody watches any more, and the shop writes less
CALM_WRITE_S: Final = 10.0
STATUS_S: Final = 60.0  # between two lines of how it is going; on a terminal there is one, written anew
PIPELINE: Final = f"""\
[tier]
tables = ["{shop.TABLE}"]
topics = ["{shop.TOPIC}"]
interval_s = 2.0
age_s = 10.0

[compact]
retention = "1d"
vacuum = "1h"

[views]
poll_s = 3.0
interval_s = 1.0
"""

# Where there is no demo, nothing is moved anywhere that nobody asked for; views are kept.
VIEWS_ONLY: Final = """\
[tier]
enabled = false

[compact]
enabled = false
"""


class Look(NamedTuple):
    """One place to look at, and what to type for it."""

    title: str
    commands: tuple[str, ...]


def run(data: Path, port: int) -> int:
    """Until SIGINT or SIGTERM; the status to end with."""
    with _signals() as stop, tempfile.TemporaryDirectory(prefix="tailrace-demo-") as folder:
        return Serving(data, port, Path(folder), stop).run()


def looks(url: str, data: Path) -> list[Look]:
    """Where to look, with commands that can be typed in a terminal in this directory."""
    tailrace, python = _programs()
    if url != f"http://127.0.0.1:{DEFAULT_PORT}":
        tailrace = f"TAILRACE_URL={url} {tailrace}"
    cold = data / "cold" / "tables" / shop.TABLE
    return [
        Look("write", (f"""{tailrace} sql -c "INSERT OR REPLACE INTO orders VALUES ('mine', 'me', 'new', 9.50)\"""",)),
        Look("its change, live", (f"curl -N '{url}/v1/tables/{shop.TABLE}/stream?offset=-1&live=sse'",)),
        Look("messages, to a group", (f"{tailrace} consume {shop.TOPIC} --group me",)),
        Look("a view of it", (
            f'{tailrace} sql -c "SELECT * FROM {shop.VIEW} ORDER BY status"',
            f"{tailrace} get {shop.VIEW} paid",
        )),
        Look("cold history", (
            f"{tailrace} changes {shop.TABLE} --limit 5",
            f"""{python} -c "import deltalake, duckdb; orders = deltalake.DeltaTable('{cold}').to_pyarrow_dataset();"""
            """ print(duckdb.sql('SELECT event, count(*) FROM orders GROUP BY event'))\"""",
        )),
        Look("how the jobs are", (f"{tailrace} pipeline status",)),
    ]  # fmt: skip


def _programs() -> tuple[str, str]:
    """How this program and its Python are called from a terminal in this directory."""
    beside = Path(sys.executable).with_name("tailrace")
    python = os.path.relpath(sys.executable) if Path(sys.executable).is_relative_to(Path.cwd()) else sys.executable
    if shutil.which("tailrace"):
        return "tailrace", python
    return (os.path.relpath(beside), python) if beside.exists() else (f"{python} -m tailrace.cli", python)


class Serving:
    """The three of them, and what is said of them."""

    def __init__(self, data: Path, port: int, folder: Path, stop: threading.Event) -> None:
        self._data = data
        self._port = port
        self._folder = folder
        self._stop = stop
        self._lock = threading.Lock()
        self._line = ""  # how it is going, at the foot of a terminal
        self._jobs: dict[str, dict[str, Any]] = {}
        self._began = time.monotonic()
        self._pipeline: Part | None = None

    def run(self) -> int:
        server = ServerPart(self._data, self._port, err=self._say)
        try:
            url = server.url(START_S)
            with Client(url) as client:
                found = self._prepare(client)
                self._say(self._welcome(url, found is not None))
                self._start_pipeline(url, VIEWS_ONLY if found is None else PIPELINE)
                self._follow(server, client, found)
        finally:
            status = self._end(server)
        return status

    def _prepare(self, client: Client) -> shop.Shop | None:
        """The shop; None where there is a table of that name which is none of the demo's."""
        try:
            shop.prepare(client, shop.CHANGES_KEPT)
        except Conflict as error:
            self._say(
                f"no demo: {error}. The server is up all the same; for the demo give another --data (make run DATA=...)"
            )
            return None
        found = shop.Shop(client, seed=int(time.time()))
        found.resume()
        return found

    def _start_pipeline(self, url: str, jobs: str) -> None:
        settings = self._folder / "pipeline.toml"
        settings.write_text(jobs, encoding="utf-8")
        environ = {"TAILRACE_URL": url, "TAILRACE_TOKEN": ""}
        arguments = ("pipeline", "run", "--config", str(settings), "--json")
        self._pipeline = Part(*arguments, out=self._note, environ=environ)
        self._say("the pipeline is starting: Spark takes 10 to 20 seconds")

    def _follow(self, server: ServerPart, client: Client, found: shop.Shop | None) -> None:
        """Write, and tell how it is going, until it is enough."""
        told_at = written_at = time.monotonic()
        while not self._stop.wait(0.1):
            now = time.monotonic()
            if server.status is not None:
                self._say(f"the server has ended: {server.why}")
                return
            if self._pipeline is not None and self._pipeline.status is not None:
                self._say(f"the pipeline has ended: {self._pipeline.why}")
                self._say(f"the server stays up without it; when that is put right: {_programs()[0]} pipeline run")
                self._pipeline = None
            pause_s = WRITE_S if now - self._began < BUSY_S else CALM_WRITE_S
            if found is not None and now - written_at >= pause_s:
                written_at = now
                self._write(found)
            if now - told_at >= (1.0 if sys.stdout.isatty() else STATUS_S):
                told_at = now
                self._tell(found)

    def _write(self, found: shop.Shop) -> None:
        try:
            found.write()
        except Error as error:  # the server goes on, whatever somebody did to the table
            self._say(f"the shop could not write: {error}")
            self._stop.wait(CALM_WRITE_S)

    # -- what is said

    def _note(self, line: str) -> None:
        """Take a line of the pipeline, which is JSON."""
        try:
            told = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError:
            return
        before = self._jobs.get(told["job"])
        self._jobs[told["job"]] = told
        if before is None and not (self._jobs.keys() - {told["job"]}):
            self._say(f"the pipeline is up, {time.monotonic() - self._began:.0f} s after the start")
        if told["state"] in ("retrying", "failed") and told["message"] != (before or {}).get("message"):
            self._say(f"{told['job']}: {told['message']}")

    def _tell(self, found: shop.Shop | None) -> None:
        parts = [] if found is None else [f"{found.writes:,} writes"]
        for name, job in sorted(self._jobs.items()):
            if job["kind"] in ("tier", "view") and name != "tier":
                parts.append(f"{name} {job['rows']:,} rows, lag {job['lag'] or 0:,}")
        text = "  ·  ".join(parts)
        if sys.stdout.isatty():
            self._draw(text)
        elif text:
            self._say(text)

    def _say(self, text: str) -> None:
        with self._lock:
            click.echo(("\r\x1b[2K" if self._line else "") + safe(text, lines=True))
            if self._line:
                click.echo(self._line, nl=False)

    def _draw(self, text: str) -> None:
        with self._lock:
            self._line = text[: shutil.get_terminal_size().columns - 1]
            click.echo(f"\r\x1b[2K{self._line}", nl=False)

    def _welcome(self, url: str, shopping: bool) -> str:
        lines = [
            f"Tailrace is up at {url}; its database is in {str(self._data)!r}. Everyone on this machine is let in."
        ]
        if shopping:
            lines += ["A small shop writes to the table orders. Look at it from another terminal:", ""]
            for look in looks(url, self._data):
                lines += [f"  {look.title}", *(f"    {command}" for command in look.commands)]
        lines += ["", f"Stop all of it with Ctrl-C. For a server without the demo: {_programs()[0]} serve --dev", ""]
        return "\n".join(lines)

    def _end(self, server: ServerPart) -> int:
        parts = [part for part in (self._pipeline, server) if part is not None]
        if self._line:
            self._draw("")
        self._say("stopping")
        try:
            statuses = [part.end() for part in parts]
        except KeyboardInterrupt:
            for part in parts:
                part.kill()
            statuses = [part.end() for part in parts]
        return statuses[-1]


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """An event that the first signal sets; the second is a KeyboardInterrupt."""
    stop = threading.Event()

    def asked(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, asked) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
