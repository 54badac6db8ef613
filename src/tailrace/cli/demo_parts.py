"""The programs of the demo: a server and a pipeline, each a process of its own, as they are in earnest.

They are started in sessions of their own, so that Ctrl-C reaches only who started them, who ends them in order: the
pipeline first, while its server is there. What they print is handed on line by line, and the last lines are kept: they
say why a program has ended.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Final

from tailrace.errors import Unavailable

LINES_KEPT: Final = 50
LEAVE_S: Final = 40.0  # how long a program may take to end: jobs finish what they do
_LISTENING: Final = re.compile(r"listening on (\S+)")
_NOISE: Final = re.compile(r"WARNING: |Using Spark's default|Setting default log level|To adjust logging level|\s*$")

Line = Callable[[str], None]


class Part:
    """One program: started when it is made, and ended by `end`."""

    def __init__(
        self,
        *arguments: str,
        out: Line | None = None,
        err: Line | None = None,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self._errors: deque[str] = deque(maxlen=LINES_KEPT)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tailrace.cli.lifeline", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            env=_environment(environ or {}),
            cwd=cwd,
        )
        self._readers = [
            _reader(self._process.stdout, out or _nobody),
            _reader(self._process.stderr, self._noting(err or _nobody)),
        ]

    def _noting(self, told: Line) -> Line:
        def note(line: str) -> None:
            if not _NOISE.match(line):
                self._errors.append(line)
                told(line)

        return note

    @property
    def status(self) -> int | None:
        """What it ended with; None while it runs."""
        return self._process.poll()

    @property
    def why(self) -> str:
        """What it said at the end, in a line: ours, if there is one."""
        for reader in self._readers:
            reader.join(2)
        said = [line for line in self._errors if line.startswith("tailrace: ")] or list(self._errors)
        return said[-1].removeprefix("tailrace: ") if said else f"it ended with status {self.status}"

    def end(self, within_s: float = LEAVE_S) -> int:
        """Ask it to end, and wait; one that does not is killed. What it ended with."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(within_s)
            except subprocess.TimeoutExpired:
                self.kill()
        return self._gone()

    def kill(self) -> None:
        """End it, and all that it started, at once."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def _gone(self) -> int:
        status = self._process.wait()
        for reader in self._readers:
            reader.join(2)
        if self._process.stdin is not None:
            self._process.stdin.close()
        return status


class ServerPart(Part):
    """A server that lets everyone of this machine in."""

    def __init__(
        self,
        data: Path,
        port: int,
        *,
        err: Line | None = None,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self._up = threading.Event()
        self._url = ""
        arguments = ("serve", "--dev", "--port", str(port), "--data", str(data), "--log-level", "warning")
        super().__init__(*arguments, out=self._look, err=err, environ=environ, cwd=cwd)

    def _look(self, line: str) -> None:
        found = _LISTENING.search(line)
        if found is not None and not self._url:
            self._url = found[1]
            self._up.set()

    def url(self, within_s: float) -> str:
        """Where it listens, when it does."""
        for _ in range(int(within_s * 10)):
            if self._up.wait(0.1):
                return self._url
            if self.status is not None:
                raise Unavailable(f"the server did not start: {self.why}")
        raise Unavailable(f"the server did not say within {within_s:g} s that it listens")


def _reader(file: IO[str] | None, told: Line) -> threading.Thread:
    assert file is not None

    def read() -> None:
        for line in file:
            told(line.rstrip("\n"))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    return reader


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    """This process's own, with paths that hold from other directories too. An empty value takes a variable away."""
    found = {**os.environ, "PYTHONUNBUFFERED": "1", **more}
    if "PYTHONPATH" in found:
        found["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, filter(None, found["PYTHONPATH"].split(os.pathsep))))
    return {name: value for name, value in found.items() if value != ""}


def _nobody(line: str) -> None:
    """Whom nothing is told."""
