"""Standard input and output as pipes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import BufferedIOBase
from typing import BinaryIO, cast

from tailrace.limits import MiB

CHUNK_BYTES = 1 * MiB  # of one read


@contextmanager
def quietly_ended() -> Iterator[None]:
    """End silently when the reader of our output (`| head -1`) has gone."""
    try:
        yield
    except BrokenPipeError:
        # The rest of the buffer has nowhere to go; the interpreter would report that when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def chunks_of(source: BinaryIO) -> Iterator[bytes]:
    """Whatever the input has now, without waiting for more: it may be a live pipe."""
    return iter(partial(cast(BufferedIOBase, source).read1, CHUNK_BYTES), b"")


def lines_of(source: BinaryIO) -> Iterator[list[bytes]]:
    """The lines that each read completes, newlines included. The input's last line may lack its own."""
    begun: list[bytes] = []
    for chunk in chunks_of(source):
        ended, newline, rest = chunk.rpartition(b"\n")
        if newline:
            yield [line + b"\n" for line in b"".join((*begun, ended)).split(b"\n")]
            begun = []
        begun.append(rest)
    if last := b"".join(begun):
        yield [last]
