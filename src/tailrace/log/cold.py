"""History that is no longer in the database: which part of a log lies in cold storage, and how it is read from there.

Theory of operation
-------------------
A log that is tiered has a row here: its entries in [start, tiered) are durable in cold storage, and the hot log is
trimmed only below `tiered`. So the two parts always meet, and a reader goes through both by the same positions.

Reading cold storage takes long and may wait for another machine; a query must not, still less a transaction. What it
needs is either on the *shelf*, in memory, or it raises `Missing`. Then the database, outside of any transaction and of
the event loop, has the shelf fetch it, and asks again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

import msgspec

from tailrace.errors import Invalid
from tailrace.log.entry import Entry, Log
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.table import Table

NO_COLD_STORAGE: Final = "NO_COLD_STORAGE"  # the code of what is told where a database was opened without


class Tier(msgspec.Struct, frozen=True, gc=False):
    """What of a log is in cold storage."""

    log: int
    start: int  # the earliest position that is there
    tiered: int  # below it everything is there, from `start` on
    place: str  # the Delta table, below the root of cold storage


class Place(msgspec.Struct, frozen=True):
    """A Delta table of cold storage."""

    name: str
    generation: int  # how many batches were committed to it; the next one is the next number
    updated_ms: int


TIERS = Table("tiers", Tier, key=("log",), cached=True)
PLACES = Table("cold_places", Place, key=("name",))


class Missing(Exception):
    """What a query or command needs is in cold storage and not on the shelf: the entries at a position or, with
    `at_ms`, where those of a time begin."""

    def __init__(self, tier: Tier, position: int, at_ms: int | None = None) -> None:
        super().__init__(f"position {position} of log {tier.log} is in cold storage at {tier.place!r}")
        self.tier = tier
        self.position = position
        self.at_ms = at_ms


class Shelf(Protocol):
    """What was read from cold storage lately. Used by many threads."""

    def run(self, tier: Tier, position: int) -> list[Entry]:
        """Entries in order, the first of which covers `position`; at least one. Raises `Missing`; never waits."""

    def first_since(self, tier: Tier, at_ms: int) -> int:
        """The position of the first cold entry that is not older, or `tiered`. Raises `Missing`; never waits."""

    def fetch(self, missing: Missing) -> None:
        """Read what is missing, so that it is there when asked for again. May take long. Raises `Corrupt` or
        `Unavailable`."""


def tier_of(reader: Reader | Tx, log: int) -> Tier | None:
    """What of the log is in cold storage, if it is tiered."""
    return reader.get(TIERS, log)


def earliest(reader: Reader | Tx, log: Log) -> int:
    """The earliest readable position, hot or cold."""
    tier = reader.get(TIERS, log.id) if log.start else None
    return log.start if tier is None else min(tier.start, log.start)


def whole(reader: Reader | Tx, log: Log) -> Log:
    """The log as a reader sees it, who does not care what of it is hot: its start is the earliest position."""
    first = earliest(reader, log)
    return log if first == log.start else msgspec.structs.replace(log, start=first)


def removable(reader: Reader | Tx, log: Log) -> int:
    """Up to where the hot log may be trimmed: what is not in cold storage yet stays, if the log is tiered. So does what
    a fork shares with the log it was made of: only its own entries are there."""
    tier = reader.get(TIERS, log.id)
    if tier is None:
        return log.next
    return tier.tiered if log.base <= log.start else log.start


def within_reach(reader: Reader | Tx, log: Log, position: int, until: int) -> Iterator[Entry]:
    """As `entries`, below `until`, and ending where the next one is not on the shelf, so that what was found is not
    thrown away; but at least one. Whoever reads on comes to the rest."""
    found = False
    try:
        for entry in entries(reader, log, position):
            if entry.position >= until:
                return
            found = True
            yield entry
    except Missing:
        if not found:
            raise


def entries(reader: Reader | Tx, log: Log, position: int) -> Iterator[Entry]:
    """The cold entries from the one that covers `position` on, up to where the hot log starts."""
    tier = reader.get(TIERS, log.id)
    assert tier is not None and tier.start <= position, f"log {log.id} has nothing cold at {position}"
    while position < log.start:
        for entry in _shelf(reader, log).run(tier, position):
            if entry.position >= log.start:
                return
            yield entry
            position = entry.next


def first_since(reader: Reader | Tx, log: Log, at_ms: int) -> int:
    """The first position whose entry is not older, among what is cold; where the hot log starts, if all are older."""
    tier = reader.get(TIERS, log.id)
    if tier is None or tier.start >= log.start:
        return log.start
    return min(max(_shelf(reader, log).first_since(tier, at_ms), tier.start), log.start)


def _shelf(reader: Reader | Tx, log: Log) -> Shelf:
    if reader.shelf is None:
        raise Invalid(
            f"a part of {log.owner!r} is in cold storage, and this database was opened without; open it with the URL "
            "of its cold storage",
            code=NO_COLD_STORAGE,
        )
    return reader.shelf  # type: ignore[no-any-return]
