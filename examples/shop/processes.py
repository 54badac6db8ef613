"""The programs of the demo: a server and a pipeline, each a process of its own, as in production.

Each runs in a session of its own, so that Ctrl-C reaches only the program that started them; it stops the pipeline
first, while its server is up. Their output is passed on line by line, and the last lines are kept: they say why a
program has ended.
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
STOP_S: Final = 40.0  # how long a program may take to end: jobs finish the batch in hand
LIFELINE: Final = Path(__file__).resolve().with_name("lifeline.py")
_LISTENING: Final = re.compile(r"listening on (\S+)")
_NOISE: Final = re.compile(r"WARNING: |Using Spark's default|Setting default log level|To adjust logging level|\s*$")

OnLine = Callable[[str], None]


class Program:
    """`tailrace` with some arguments: started when it is made, ended by `stop`."""

    def __init__(
        self,
        *arguments: str,
        out: OnLine | None = None,
        err: OnLine | None = None,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self._errors: deque[str] = deque(maxlen=LINES_KEPT)
        self._process = subprocess.Popen(
            [sys.executable, str(LIFELINE), *arguments],
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
            _reader(self._process.stdout, out or _ignore),
            _reader(self._process.stderr, self._recording(err or _ignore)),
        ]

    def _recording(self, on_line: OnLine) -> OnLine:
        def record(line: str) -> None:
            if not _NOISE.match(line):
                self._errors.append(line)
                on_line(line)

        return record

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    @property
    def reason(self) -> str:
        """Its last message: one of Tailrace's own, if there is one."""
        for reader in self._readers:
            reader.join(2)
        lines = [line for line in self._errors if line.startswith("tailrace: ")] or list(self._errors)
        return lines[-1].removeprefix("tailrace: ") if lines else f"it ended with status {self.status}"

    def stop(self, within_s: float = STOP_S) -> int:
        """Interrupt it and wait; kill it if it takes longer. Returns its exit status."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(within_s)
            except subprocess.TimeoutExpired:
                self.kill()
        return self._wait()

    def kill(self) -> None:
        """End it and every process that it started, at once."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def _wait(self) -> int:
        status = self._process.wait()
        for reader in self._readers:
            reader.join(0.5)
        if self._process.stdin is not None:
            self._process.stdin.close()
        return status


class Server(Program):
    """A server in dev mode."""

    def __init__(
        self,
        data: Path,
        port: int,
        *,
        err: OnLine | None = None,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self._up = threading.Event()
        self._url = ""
        arguments = ("serve", "--dev", "--port", str(port), "--data", str(data), "--log-level", "warning")
        super().__init__(*arguments, out=self._look, err=err, environ=environ, cwd=cwd)

    def _look(self, line: str) -> None:
        match = _LISTENING.search(line)
        if match is not None and not self._url:
            self._url = match[1]
            self._up.set()

    def url(self, within_s: float) -> str:
        """Its address, once it accepts connections."""
        for _ in range(int(within_s * 20)):
            if self._up.wait(0.05):
                return self._url
            if self.status is not None:
                raise Unavailable(f"the server did not start: {self.reason}")
        raise Unavailable(f"the server did not accept connections within {within_s:g} s")


def _reader(file: IO[str] | None, on_line: OnLine) -> threading.Thread:
    assert file is not None

    def read() -> None:
        for line in file:
            on_line(line.rstrip("\n"))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    return reader


def _environment(changes: Mapping[str, str]) -> dict[str, str]:
    """The environment of this process with absolute paths, and with `changes`; an empty value removes a variable."""
    environ = {**os.environ, "PYTHONUNBUFFERED": "1", **changes}
    if "PYTHONPATH" in environ:
        paths = filter(None, environ["PYTHONPATH"].split(os.pathsep))
        environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, paths))
    return {name: value for name, value in environ.items() if value != ""}


def _ignore(line: str) -> None:
    """Do nothing with a line."""
