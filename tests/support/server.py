"""A real server in a child process: started, found by the line it prints, stopped or killed.

No port is ever fixed: the child listens on port 0 and prints where. What it prints is kept, so that a failing
test can show it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]

OWN_READY = re.compile(r"listening on (https?://\S+)")
UVICORN_READY = re.compile(r"Uvicorn running on (https?://\S+)")


class ServerProcess:
    """One child process that serves HTTP. Usable as a context manager; leaving it terminates the child."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        ready: re.Pattern[str] = OWN_READY,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.command = list(command)
        self._ready = ready
        self._env = dict(env or {})
        self._process: subprocess.Popen[str] | None = None
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self._url: str | None = None
        self._reader: threading.Thread | None = None

    @classmethod
    def tailrace(
        cls,
        data: Path,
        *options: str,
        long_poll_timeout_s: float = 3,
        port: int = 0,
        env: Mapping[str, str] | None = None,
    ) -> ServerProcess:
        """`tailrace serve --dev` on a free port of the loopback interface, over the database in `data`."""
        command = [sys.executable, "-m", "tailrace.cli", "serve", "--dev", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--data", str(data), "--long-poll-timeout", f"{long_poll_timeout_s:g}", *options]
        return cls(command, env=env)

    @classmethod
    def uvicorn(cls, data: Path, *, long_poll_timeout_s: float = 3) -> ServerProcess:
        """The same handlers through the ASGI adapter, mounted in uvicorn."""
        command = [sys.executable, "-m", "uvicorn", "--factory", "tailrace.http.asgi:create_app"]
        command += ["--host", "127.0.0.1", "--port", "0", "--lifespan", "on", "--no-access-log"]
        # Otherwise idle connections are closed after 5 s, perhaps just when a client on a busy machine uses one again.
        command += ["--timeout-keep-alive", "75", "--timeout-graceful-shutdown", "5"]
        env = {
            "TAILRACE_DEV": "1",
            "TAILRACE_DATA": str(data),
            "TAILRACE_LONG_POLL_TIMEOUT_S": f"{long_poll_timeout_s:g}",
        }
        return cls(command, ready=UVICORN_READY, env=env)

    @property
    def url(self) -> str:
        """Where it listens, without a slash at the end."""
        assert self._url is not None, "the server was not started"
        return self._url

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server was not started"
        return self._process.pid

    @property
    def output(self) -> str:
        """All that the child printed so far, both channels, as it came."""
        with self._changed:
            return "".join(self._lines)

    @property
    def returncode(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def start(self, *, timeout_s: float = PATIENCE_S) -> ServerProcess:
        """Start the child and wait for the line that says where it listens."""
        assert self._process is None, "the server was already started"
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "COLUMNS": "200", **self._env},
        )
        self._reader = threading.Thread(target=self._read, name="server output", daemon=True)
        self._reader.start()
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._url is None and not self._ended:
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break
        if self._url is None:
            self.kill()
            raise AssertionError(f"the server did not say where it listens.\n{self._describe()}")
        return self

    def send(self, number: int) -> None:
        """Send the child a signal, and do not wait."""
        assert self._process is not None, "the server was not started"
        self._process.send_signal(number)

    def kill(self) -> int:
        """End the child as a crash would (SIGKILL) and return its exit status."""
        return self._end(signal.SIGKILL, timeout_s=PATIENCE_S)

    def terminate(self, *, timeout_s: float = PATIENCE_S) -> int:
        """Ask the child to end (SIGTERM) and return its exit status; a child that will not is an error."""
        return self._end(signal.SIGTERM, timeout_s=timeout_s)

    def wait(self, *, timeout_s: float = PATIENCE_S) -> int:
        """Wait until the child ends by itself and return its exit status."""
        return self._end(None, timeout_s=timeout_s)

    def __enter__(self) -> ServerProcess:
        return self.start() if self._process is None else self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.terminate()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._lines.append(line)
                found = self._ready.search(line) if self._url is None else None
                if found is not None:
                    self._url = found.group(1).rstrip("/")
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _end(self, how: signal.Signals | None, *, timeout_s: float) -> int:
        process = self._process
        assert process is not None, "the server was not started"
        if how is not None and process.poll() is None:
            process.send_signal(how)
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the server did not end within {timeout_s:g} s.\n{self._describe()}") from None
        if self._reader is not None:
            self._reader.join(5.0)
        if process.stdout is not None:
            process.stdout.close()
        return status

    def _describe(self) -> str:
        return f"command: {' '.join(self.command)}\nexit status: {self.returncode}\noutput:\n{self.output}"


def check(data: Path, *options: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `tailrace check` over a database that no server has open."""
    return subprocess.run(
        [sys.executable, "-m", "tailrace.cli", "check", "--data", str(data), *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200", **(env or {})},
    )
