"""A command that runs beside a server, with its progress: the installation of Spark, or the compiled build.

The command runs on a pseudo-terminal, since pip draws its progress bar only on a terminal. Its lines go to `_take`.
"""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

LINES_KEPT: Final = 20
_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")


class Background:
    """A command that was started. `on_line` gets its steps, `progress` is a status line while it runs."""

    def __init__(self, command: str, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._last: deque[str] = deque(maxlen=LINES_KEPT)
        self.progress = ""
        self._terminal, other = pty.openpty()
        self._process = subprocess.Popen(
            shlex.split(command),
            stdin=subprocess.DEVNULL,
            stdout=other,
            stderr=other,
            start_new_session=True,
            env={**os.environ, "COLUMNS": "100"},
        )
        os.close(other)
        self._reader = threading.Thread(target=self._read, name="background command", daemon=True)
        self._reader.start()

    @property
    def status(self) -> int | None:
        """The exit status of the command; None while it runs."""
        return self._process.poll()

    @property
    def reason(self) -> str:
        """The last error that the command printed."""
        self._reader.join(2)
        errors = [line for line in self._last if line.startswith(("ERROR", "error"))] or list(self._last)
        return errors[-1] if errors else f"it ended with status {self.status}"

    def stop(self) -> None:
        """End the command and all its processes at once; the next start does what is left."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def _read(self) -> None:
        rest = b""
        while True:
            try:
                chunk = os.read(self._terminal, 65_536)
            except OSError:  # the command has ended
                break
            if not chunk:
                break
            *lines, rest = re.split(rb"[\r\n]+", rest + chunk)
            for line in lines:
                self._take(_ANSI.sub("", line.decode(errors="replace")).strip())
        os.close(self._terminal)

    def _take(self, line: str) -> None:
        raise NotImplementedError
