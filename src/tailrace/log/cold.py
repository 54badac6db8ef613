"""Trimmed history: which range of a log is in cold storage, and how it is read from there.

Theory of operation
-------------------
A tiered log has a row here: its entries in [start, tiered) are durable in cold storage, and the hot log is trimmed only
below `tiered`. So the two parts always meet, and a reader goes through both by the same positions.

Reading cold storage is slow and may wait for another machine; a query or a transaction must not wait. Entries are
either in the *cold cache*, in memory, or the read raises `ColdMiss`. Then the database has the cache fetch them,
outside any transaction and off the event loop, and runs the query or command again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

import msgspec

from tailrace.errors import Invalid
from tailrace.log.entry import Entry, Log
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.table import StorageTable

NO_COLD_STORAGE: Final = "NO_COLD_STORAGE"  # the error code if a database was opened without its cold storage


class ColdRange(msgspec.Struct, frozen=True, gc=False):
    """The range of a log that is in cold storage."""

    log: int
    start: int  # the earliest position in cold storage
    tiered: int  # the end of the range, exclusive
    place: str  # the Delta table, below the root of cold storage


class ColdTable(msgspec.Struct, frozen=True):
    """A Delta table of cold storage."""

    name: str
    generation: int  # the number of batches committed to it
    updated_ms: int


COLD_RANGES = StorageTable("tiers", ColdRange, key=("log",), cached=True)
COLD_TABLES = StorageTable("cold_places", ColdTable, key=("name",))


class ColdMiss(Exception):
    """A query or command needs cold entries that are not in the cold cache: those at a position or, with `at_ms`, the
    first ones of a time."""

    def __init__(self, tier: ColdRange, position: int, at_ms: int | None = None) -> None:
        super().__init__(f"position {position} of log {tier.log} is in cold storage at {tier.place!r}")
        self.tier = tier
        self.position = position
        self.at_ms = at_ms


class ColdReader(Protocol):
    """Reads cold entries through a cache. Used by many threads."""

    def segment(self, tier: ColdRange, position: int) -> list[Entry]:
        """Entries in order, the first of which covers `position`; at least one. Raises `ColdMiss`; never waits."""

    def first_since(self, tier: ColdRange, at_ms: int) -> int:
        """The position of the first cold entry that is not older, or `tiered`. Raises `ColdMiss`; never waits."""

    def fetch(self, missing: ColdMiss) -> None:
        """Read the missing entries into the cache. May take long. Raises `Corrupt` or `Unavailable`."""


def tier_of(reader: Reader | Tx, log: int) -> ColdRange | None:
    """The cold range of a log; None if the log is not tiered."""
    return reader.get(COLD_RANGES, log)


def earliest(reader: Reader | Tx, log: Log) -> int:
    """The earliest readable position, hot or cold."""
    tier = reader.get(COLD_RANGES, log.id) if log.start else None
    return log.start if tier is None else min(tier.start, log.start)


def whole(reader: Reader | Tx, log: Log) -> Log:
    """The log with the earliest readable position, hot or cold, as its start."""
    first = earliest(reader, log)
    return log if first == log.start else msgspec.structs.replace(log, start=first)


def removable(reader: Reader | Tx, log: Log) -> int:
    """Up to where the hot log may be trimmed. Entries of a tiered log stay until they are in cold storage. So do the
    entries that a fork shares with its parent: only a log's own entries are tiered."""
    tier = reader.get(COLD_RANGES, log.id)
    if tier is None:
        return log.next
    return tier.tiered if log.base <= log.start else log.start


def within_reach(reader: Reader | Tx, log: Log, position: int, until: int) -> Iterator[Entry]:
    """As `entries`, below `until`, and ending before the first entry that is not in the cold cache, so that the entries
    read so far are not lost; at least one."""
    found = False
    try:
        for entry in entries(reader, log, position):
            if entry.position >= until:
                return
            found = True
            yield entry
    except ColdMiss:
        if not found:
            raise


def entries(reader: Reader | Tx, log: Log, position: int) -> Iterator[Entry]:
    """The cold entries from the one that covers `position` on, up to where the hot log starts."""
    tier = reader.get(COLD_RANGES, log.id)
    assert tier is not None and tier.start <= position, f"log {log.id} has nothing cold at {position}"
    while position < log.start:
        for entry in _cold_reader(reader, log).segment(tier, position):
            if entry.position >= log.start:
                return
            yield entry
            position = entry.next


def first_since(reader: Reader | Tx, log: Log, at_ms: int) -> int:
    """The first cold position whose entry is not older; the start of the hot log if all are older."""
    tier = reader.get(COLD_RANGES, log.id)
    if tier is None or tier.start >= log.start:
        return log.start
    return min(max(_cold_reader(reader, log).first_since(tier, at_ms), tier.start), log.start)


def _cold_reader(reader: Reader | Tx, log: Log) -> ColdReader:
    if reader.cold is None:
        raise Invalid(
            f"a part of {log.owner!r} is in cold storage, and this database was opened without cold storage; open it "
            "with the URL of its cold storage",
            code=NO_COLD_STORAGE,
        )
    return reader.cold  # type: ignore[no-any-return]
