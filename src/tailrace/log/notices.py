"""Notices of new entries and of the end of a log, and pages of entries. Apart from `log.py`: that is compiled, and
structs cannot be."""

from __future__ import annotations

from itertools import chain
from typing import Final

import msgspec

from tailrace.log import segments
from tailrace.log.entry import Entry, Log, Segment


class Advanced(msgspec.Struct, frozen=True, gc=False):
    """The notice of new entries; `log` is the log after them, and perhaps after others of the same command."""

    log: Log
    segment: Segment


class Ended(msgspec.Struct, frozen=True):
    """The notice that a log is closed (`gone` False) or deleted (`gone` True)."""

    gone: bool


class LogPage(msgspec.Struct, frozen=True):
    """Consecutive entries, in segments; `next` is where the next page starts."""

    segments: list[Segment]
    next: int
    tail: int

    @property
    def entries(self) -> list[Entry]:
        return list(chain.from_iterable(map(segments.entries, self.segments)))

    @property
    def at_tail(self) -> bool:
        return self.next >= self.tail


CLOSED: Final = Ended(gone=False)
DROPPED: Final = Ended(gone=True)
