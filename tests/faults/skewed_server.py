"""``python -m tests.faults.skewed_server SECONDS serve ...``: the real server, on a machine whose clock is wrong."""

from __future__ import annotations

import sys
import time


def skew(seconds: int) -> None:
    """Let the wall clock of this process be ahead, or behind."""
    time_ns, time_s = time.time_ns, time.time
    time.time_ns = lambda: time_ns() + seconds * 1_000_000_000
    time.time = lambda: time_s() + seconds


if __name__ == "__main__":
    skew(int(sys.argv.pop(1)))
    from tailrace.cli import main

    main()
