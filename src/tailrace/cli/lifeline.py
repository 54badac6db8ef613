"""``python -m tailrace.cli.lifeline COMMAND...``: the program, which ends when whoever started it is gone.

Its standard input is a pipe that nobody writes to. When the other end is closed, also because that process was killed,
this one gets a SIGTERM: nothing is left behind that nobody watches.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from tailrace.cli import main


def _watch(line: int) -> None:
    while os.read(line, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    # What is started from here must not hold the line open, nor read from it.
    held = os.dup(sys.stdin.fileno())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    threading.Thread(target=_watch, args=(held,), name="lifeline", daemon=True).start()
    main()
