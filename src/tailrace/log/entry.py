"""Logs and their entries.

A log's positions run from `start` (the earliest retained) to `next` (the position of the next entry). Entries below
`base` belong to its parent: a fork shares them without copying. An entry covers [position, next); the distance depends
on the kind of log (bytes for streams, one for messages).

Entries are stored in segments: a row holds consecutive entries of one log.
"""

from __future__ import annotations

import msgspec

from tailrace.storage.table import StorageTable


class Log(msgspec.Struct, frozen=True, gc=False):
    id: int
    owner: str  # the object that the log belongs to, for people and for housekeeping
    parent: int | None  # the log with the entries below `base`
    base: int  # the log's own entries begin here
    start: int  # the earliest readable position
    next: int  # the position of the next entry; never decreases
    at_ms: int  # of the last entry; timestamps never decrease
    forks: int  # logs that have this one as parent
    depth: int  # the number of ancestors
    dropped: int  # 1: deleted, kept until no fork needs it and housekeeping has removed the entries


class Entry(msgspec.Struct, frozen=True, gc=False):
    log: int
    position: int
    next: int
    at_ms: int
    body: bytes


class Segment(msgspec.Struct, frozen=True, gc=False):
    """Consecutive entries of a log, as they are stored. `layout` says where each of them ends (`segments.py`); None if
    there is one."""

    log: int
    position: int  # of the first entry
    next: int  # of the last entry
    at_ms: int  # of the first entry, and of the others unless the layout says otherwise
    body: bytes  # of all entries, one after the other
    layout: bytes | None = None


class StagedSegment(msgspec.Struct, frozen=True, gc=False):
    """A segment that waits to be sealed; `id` says when it was added."""

    id: int
    log: int
    position: int
    next: int
    at_ms: int
    body: bytes
    layout: bytes | None = None


class Garbage(msgspec.Struct, frozen=True):
    """A log with unreachable entries; the list of work of `log.reclaim`."""

    log: int


LOGS = StorageTable("logs", Log, key=("id",), cached=True)
GARBAGE = StorageTable("garbage", Garbage, key=("log",))
