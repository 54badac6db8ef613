"""`make serve`: the server alone, and the compiled build beside it where it is missing.

The server gets Ctrl-C from the terminal, as if it had been started there; SIGTERM and SIGHUP are passed on to it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from examples.shop.processes import LIFELINE

if TYPE_CHECKING:
    from types import FrameType

    from examples.shop.compiling import Compilation


def serve(data: Path, port: int, compile_command: str | None) -> int:
    """Run a server until it ends. Returns its exit status."""
    arguments = ["serve", "--dev", "--port", str(port), "--data", str(data)]
    if compile_command is None:
        os.execv(sys.executable, [sys.executable, "-m", "tailrace.cli", *arguments])
    signal.signal(signal.SIGINT, lambda number, frame: None)  # not ignored: the server would inherit that
    server = subprocess.Popen(
        [sys.executable, str(LIFELINE), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )

    def pass_on(number: int, frame: FrameType | None) -> None:
        server.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    compilation: Compilation | None = None
    assert server.stdout is not None
    try:
        for line in server.stdout:
            print(line, end="", flush=True)
            if compilation is None and line.startswith("listening on "):
                compilation = _compile(compile_command)
        return server.wait()
    finally:
        if compilation is not None:
            compilation.stop()


def _compile(command: str) -> Compilation:
    from examples.shop.compiling import Compilation

    return Compilation(command, lambda line: print(line, flush=True))
