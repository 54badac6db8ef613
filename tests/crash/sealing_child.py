"""``python -m tests.crash.sealing_child DATA FIRST``: appends numbers to some streams, and seals them after
every few rows, until it is killed. Each number is written to standard output when it is durable."""

from __future__ import annotations

import itertools
import os
import sys

import tailrace
from tailrace import limits
from tailrace.streams.commands import Append, CreateStream

TEXT = "text/plain"
STREAMS = ("a", "b", "c", "retained")


def stream_of(number: int) -> str:
    return STREAMS[(number * number % 7 + number) % len(STREAMS)]


def main(data: str, first: int) -> None:
    limits.STAGED_ROWS = 20  # type: ignore[misc]
    limits.SEAL_ROWS = 30  # type: ignore[misc]
    db = tailrace.open(data, housekeeping_s=0.01)
    for path in STREAMS:
        db.execute(CreateStream(path, TEXT, max_bytes=60 if path == "retained" else None))
    for number in itertools.count(first):
        db.execute(Append(stream_of(number), b"%d;" % number, TEXT))
        os.write(1, b"%d\n" % number)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
