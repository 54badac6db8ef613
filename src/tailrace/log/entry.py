"""What a log consists of.

A log's positions run from `start` (what is retained) to `next` (where the next entry goes). Entries below `base` are
not its own: they are its parent's, which a fork shares without copying. An entry covers [position, next); how far
apart the two are is the business of what writes the log (bytes for streams, one for messages).
"""

from __future__ import annotations

import msgspec

from tailrace.storage.table import Table


class Log(msgspec.Struct, frozen=True, gc=False):
    id: int
    owner: str  # what the log belongs to, for people and for cleaning up
    parent: int | None  # whose entries stand below `base`
    base: int  # the first position that is the log's own
    start: int  # the earliest readable position
    next: int  # the position of the next entry; never decreases
    at_ms: int  # of the last entry; timestamps never decrease
    forks: int  # logs that have this one as parent
    depth: int  # how many ancestors there are
    dropped: int  # 1: deleted, kept until no fork needs it and the sweep has removed the entries


class Entry(msgspec.Struct, frozen=True, gc=False):
    log: int
    position: int
    next: int
    at_ms: int
    body: bytes


class Garbage(msgspec.Struct, frozen=True):
    """A log with entries that nobody can read any more; the sweep's list of work."""

    log: int


LOGS = Table("logs", Log, key=("id",), cached=True)
ENTRIES = Table("entries", Entry, key=("log", "position"), heap=True, checked=True)
GARBAGE = Table("garbage", Garbage, key=("log",))
