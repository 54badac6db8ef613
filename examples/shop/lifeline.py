"""Run ``tailrace`` with the given arguments, and end it when the process that started it is gone.

Standard input is a pipe that carries nothing. When its other end closes, also because that process was killed, this
one gets a SIGTERM, so no program is left running behind.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from tailrace.cli import main


def _watch(pipe: int) -> None:
    while os.read(pipe, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    # Programs started from here must neither hold the pipe open nor read from it.
    pipe = os.dup(sys.stdin.fileno())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    threading.Thread(target=_watch, args=(pipe,), name="lifeline", daemon=True).start()
    main()
