"""`make run`: a server, a shop that writes to it and a pipeline, until they are interrupted.

The server is up first. Spark is installed beside it where it is missing, and the pipeline starts when it can; without
it the server and the shop run on. Then the compiled build is made, where it is missing. Ctrl-C stops everything within
seconds: a job that does not end at once is killed, which loses nothing, because a job resumes where it was. If this
program is killed, the others notice and end.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from examples.shop import orders
from examples.shop.processes import Program, Server
from tailrace import build
from tailrace.cli.signals import stop_on_signals
from tailrace.errors import Conflict, Error

if TYPE_CHECKING:
    from examples.shop.compiling import Compilation
    from examples.shop.installing import Installation
    from tailrace.client import Client

DEFAULT_PORT: Final = 4437
START_S: Final = 60.0
STOP_PIPELINE_S: Final = 1.0
STOP_SERVER_S: Final = 1.5
WRITE_S: Final = 0.5  # between two writes
BUSY_S: Final = 900.0  # after that time the shop writes less
CALM_WRITE_S: Final = 10.0
STATUS_S: Final = 60.0  # between two status lines; a terminal has one, redrawn every second
PIPELINE: Final = f"""\
[tier]
tables = ["{orders.TABLE}"]
topics = ["{orders.TOPIC}"]
interval_s = 2.0
age_s = 10.0

[compact]
retention = "1d"
vacuum = "1h"

[views]
poll_s = 3.0
interval_s = 1.0
"""

# Without the shop no history is moved to cold storage; views are maintained.
VIEWS_ONLY: Final = """\
[tier]
enabled = false

[compact]
enabled = false
"""


class Suggestion(NamedTuple):
    """A thing to look at, and the commands that show it."""

    title: str
    commands: tuple[str, ...]


def run(data: Path, port: int, install: str | None, compile_command: str | None = None) -> int:
    """Run until SIGINT or SIGTERM. Returns the exit status."""
    stop = threading.Event()
    with (
        stop_on_signals(stop, signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
        tempfile.TemporaryDirectory(prefix="tailrace-run-", ignore_cleanup_errors=True) as folder,
    ):
        return Running(data, port, Path(folder), install, compile_command, stop).run()


def of_server(url: str) -> list[Suggestion]:
    """What can be seen as soon as the server is up; the commands are typed in this directory."""
    tailrace = _tailrace(url)
    return [
        Suggestion("write a row", (
            f"""{tailrace} sql "INSERT OR REPLACE INTO orders VALUES ('mine', 'me', 'new', 9.50)\"""",
        )),
        Suggestion("query the table", (f'{tailrace} sql "SELECT * FROM orders ORDER BY id LIMIT 5"',)),
        Suggestion("follow its changes live", (f"curl -N '{url}/v1/tables/{orders.TABLE}/stream?offset=-1&live=sse'",)),
        Suggestion("consume its messages as a group", (f"{tailrace} topics consume {orders.TOPIC} --group me",)),
    ]  # fmt: skip


def of_view(url: str) -> list[Suggestion]:
    """What can be seen when the pipeline has filled the view."""
    tailrace = _tailrace(url)
    commands = (f'{tailrace} sql "SELECT * FROM {orders.VIEW} ORDER BY status"', f"{tailrace} get {orders.VIEW} paid")
    return [
        Suggestion("a materialized view of it", commands),
        Suggestion("the jobs", (f"{tailrace} pipeline status",)),
    ]


def of_cold(url: str, data: Path) -> list[Suggestion]:
    """What can be seen when history is in cold storage."""
    python = _relative(Path(sys.executable))
    cold = data / "cold" / "tables" / orders.TABLE
    return [
        Suggestion("its history, partly from cold storage", (
            f"{_tailrace(url)} tables changes {orders.TABLE} --limit 5",
            f"""{python} -c "import deltalake, duckdb; orders = deltalake.DeltaTable('{cold}').to_pyarrow_dataset();"""
            """ print(duckdb.sql('SELECT event, count(*) FROM orders GROUP BY event'))\"""",
        )),
    ]  # fmt: skip


def _tailrace(url: str) -> str:
    beside = Path(sys.executable).with_name("tailrace")
    command = _relative(beside) if beside.exists() else f"{_relative(Path(sys.executable))} -m tailrace.cli"
    return command if url == f"http://127.0.0.1:{DEFAULT_PORT}" else f"TAILRACE_URL={url} {command}"


def _relative(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def _lines(suggestions: list[Suggestion]) -> list[str]:
    return [
        line
        for suggestion in suggestions
        for line in (f"  {suggestion.title}", *(f"    {command}" for command in suggestion.commands))
    ]


class Running:
    """The server, the shop and the pipeline, and the messages about them."""

    def __init__(
        self,
        data: Path,
        port: int,
        folder: Path,
        install: str | None,
        compile_command: str | None,
        stop: threading.Event,
    ) -> None:
        self._data = data
        self._port = port
        self._folder = folder
        self._install = install
        self._compile = compile_command
        self._stop = stop
        self._lock = threading.Lock()
        self._line = ""  # the status, in the last row of a terminal
        self._jobs: dict[str, dict[str, Any]] = {}
        self._began = time.monotonic()
        self._installation: Installation | None = None
        self._compilation: Compilation | None = None
        self._pipeline: Program | None = None
        self._url = ""
        self._shown: set[str] = set()

    def run(self) -> int:
        server = Server(self._data, self._port, err=self._say)
        try:
            from tailrace.client import Client  # while the server starts

            self._url = server.url(START_S)
            with Client(self._url) as client:
                shop = self._prepare(client)
                self._say(self._welcome(shop is not None))
                self._start_installation()
                self._follow(server, client, shop)
        finally:
            status = self._end(server)
        return status

    def _prepare(self, client: Client) -> orders.Shop | None:
        """The shop; None where a table of that name belongs to someone else."""
        try:
            orders.prepare(client, orders.CHANGES_KEPT)
        except Conflict as error:
            self._say(f"no demo: {error}. The server is up; for the demo use another directory: make run DATA=...")
            return None
        shop = orders.Shop(client, seed=int(time.time()))
        shop.resume()
        return shop

    # -- Spark

    def _start_installation(self) -> None:
        if self._install is None:
            return
        from examples.shop.installing import Installation

        self._installation = Installation(self._install, self._say)

    def _start_pipeline(self, with_shop: bool) -> None:
        settings = self._folder / "pipeline.toml"
        settings.write_text(PIPELINE if with_shop else VIEWS_ONLY, encoding="utf-8")
        scratch = self._folder / "spark"
        scratch.mkdir()
        # Scratch files go with the folder: a pipeline that is killed cannot remove its own.
        environ = {"TAILRACE_URL": self._url, "TAILRACE_TOKEN": "", "TMPDIR": str(scratch)}
        environ |= {"SPARK_LOCAL_DIRS": str(scratch), "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={scratch}"}
        arguments = ("pipeline", "run", "--config", str(settings), "--json")
        self._pipeline = Program(*arguments, out=self._note, environ=environ)
        self._say("the pipeline is starting; Spark takes 10 to 20 seconds")

    def _start_compilation(self) -> None:
        if self._compile is None:
            return
        from examples.shop.compiling import Compilation

        self._compilation = Compilation(self._compile, self._say)

    def _look_at_spark(self, with_shop: bool) -> None:
        """Start the pipeline once Spark is there; report either that fails. The compiled build waits for it, too."""
        if self._pipeline is None and "pipeline" not in self._shown:
            if self._installation is not None and self._installation.status is None:
                return
            self._shown.add("pipeline")
            self._start_compilation()
            failed = self._installation is not None and self._installation.status != 0
            if self._installation is not None and failed:
                self._say(f"Spark could not be installed: {self._installation.reason}")
                self._say("the server stays up without it; `make run` tries again")
            else:
                self._start_pipeline(with_shop)
            self._installation = None
        elif self._pipeline is not None and self._pipeline.status is not None:
            self._say(f"the pipeline has ended: {self._pipeline.reason}")
            self._say(f"the server stays up without it; when the cause is fixed: {_tailrace(self._url)} pipeline run")
            self._pipeline = None

    def _suggest(self, client: Client) -> None:
        """Print the commands of a part when they work."""
        if "view" not in self._shown and orders.view_has_rows(client):
            self._shown.add("view")
            self._say("\n".join(["the view is filled:", *_lines(of_view(self._url))]))
        log = self._data / "cold" / "tables" / orders.TABLE / "_delta_log"
        if "cold" not in self._shown and log.is_dir() and any(log.iterdir()):
            self._shown.add("cold")
            self._say("\n".join(["history is in cold storage:", *_lines(of_cold(self._url, self._data))]))

    # -- until it is interrupted

    def _follow(self, server: Server, client: Client, shop: orders.Shop | None) -> None:
        status_at = written_at = looked_at = time.monotonic()
        while not self._stop.wait(0.1):
            now = time.monotonic()
            if server.status is not None:
                self._say(f"the server has ended: {server.reason}")
                return
            self._look_at_spark(shop is not None)
            pause_s = WRITE_S if now - self._began < BUSY_S else CALM_WRITE_S
            if shop is not None and now - written_at >= pause_s:
                written_at = now
                self._write(shop)
            if shop is not None and self._pipeline is not None and now - looked_at >= 1.0:
                looked_at = now
                self._guarded(lambda: self._suggest(client))
            if now - status_at >= (1.0 if sys.stdout.isatty() else STATUS_S):
                status_at = now
                self._report(shop)

    def _write(self, shop: orders.Shop) -> None:
        if not self._guarded(shop.write):
            self._stop.wait(CALM_WRITE_S)

    def _guarded(self, action: Any) -> bool:
        try:
            action()
        except Error as error:  # the server runs on, whatever was done to the table
            self._say(f"the shop could not go on: {error}")
            return False
        return True

    # -- messages

    def _note(self, line: str) -> None:
        """Take a line of the pipeline, which is JSON."""
        try:
            report = json.loads(line)
        except ValueError:
            return
        before = self._jobs.get(report["job"])
        if not self._jobs:
            self._say(f"the pipeline is up, {time.monotonic() - self._began:.0f} s after the start")
        self._jobs[report["job"]] = report
        if report["state"] in ("retrying", "failed") and report["message"] != (before or {}).get("message"):
            self._say(f"{report['job']}: {report['message']}")

    def _report(self, shop: orders.Shop | None) -> None:
        parts = [] if shop is None else [f"{shop.writes:,} writes"]
        if self._installation is not None and self._installation.progress:
            parts.append(self._installation.progress)
        if self._compilation is not None and self._compilation.progress:
            parts.append("compiling the server")
        for name, job in sorted(self._jobs.items()):
            if job["kind"] in ("tier", "view") and name != "tier":
                parts.append(f"{name} {job['rows']:,} rows, lag {job['lag'] or 0:,}")
        text = "  ·  ".join(parts)
        if sys.stdout.isatty():
            self._draw(text)
        elif text:
            self._say(text)

    def _say(self, text: str) -> None:
        text = "".join(letter for letter in text if letter == "\n" or letter.isprintable())
        with self._lock:
            print(("\r\x1b[2K" if self._line else "") + text, flush=True)
            if self._line:
                print(self._line, end="", flush=True)

    def _draw(self, text: str) -> None:
        with self._lock:
            self._line = text[: shutil.get_terminal_size().columns - 1]
            print(f"\r\x1b[2K{self._line}", end="", flush=True)

    def _welcome(self, with_shop: bool) -> str:
        lines = [
            f"Tailrace is up at {self._url}; its database is in {str(self._data)!r}. Build: {build.describe()}.",
            "Dev mode: authentication is off, loopback only.",
            f"Open {self._url}/console in a browser to look into it.",
        ]
        if with_shop:
            lines += ["A small shop writes to the table orders. From another terminal, in this directory:", ""]
            lines += _lines(of_server(self._url))
        return "\n".join([*lines, "", "Ctrl-C stops everything. For a server without the shop: make serve", ""])

    def _end(self, server: Server) -> int:
        if self._line:
            self._draw("")
        self._say("stopping")
        for background in (self._installation, self._compilation):
            if background is not None:
                background.stop()
        if self._pipeline is not None:
            self._pipeline.stop(STOP_PIPELINE_S)
        return server.stop(STOP_SERVER_S)
