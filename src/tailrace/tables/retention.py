"""How long a change stream is kept: by age, by count, and for whom.

Records and times only grow along a log, so where it should start is found by bisection, a few looks however long it is.
The trim itself moves the start at once; the entries go later, in small steps (`log.reclaim`).

A named cursor holds retention back while what it makes the stream keep is no more than its `hold_bytes`. Then it is cut
off: the trim passes it, what it missed is counted in `lost`, and it holds nothing until it is saved anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from tailrace.log import cold
from tailrace.log.entry import ENTRIES, Log
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.table import Table
from tailrace.tables import change
from tailrace.tables.definition import counted

MAX_AGE_S: Final = 7 * 24 * 3600
MAX_COUNT: Final = 1_000_000
_COLUMNS: Final = "position, next, at_ms, substr(body, 1, 8)"


class ChangeCursor(msgspec.Struct, frozen=True):
    """How far a consumer of a change stream has come."""

    log: int
    name: str
    position: int  # where it goes on
    at_ms: int  # when it was saved
    hold_bytes: int  # how much it may make the stream keep beyond its retention
    lost: int  # records that were trimmed before it came to them


CHANGE_CURSORS = Table("change_cursors", ChangeCursor, key=("log", "name"))


class Plan(msgspec.Struct, frozen=True):
    """Where a log is to start, and the cursors that this leaves behind, as they are to be."""

    start: int
    cut: list[ChangeCursor]


class Lag(msgspec.Struct, frozen=True):
    """What lies between a position and the tail."""

    records: int
    bytes: int  # from the mean size of a record
    age_ms: int  # of the oldest of them; 0 if there is none


def plan(reader: Reader | Tx, log: Log, max_age_s: int | None, max_count: int | None) -> Plan:
    """What retention asks for now. Of a log that is tiered only what is in cold storage goes; there everybody can go on
    reading it, so no cursor holds it back and none is cut off."""
    start = horizon(reader, log, max_age_s, max_count)
    tier = cold.tier_of(reader, log.id)
    if tier is not None:
        return Plan(max(log.start, min(start, cold.removable(reader, log))), [])
    return past_cursors(reader, log, start, held=True) if start > log.start else Plan(log.start, [])


def horizon(reader: Reader | Tx, log: Log, max_age_s: int | None, max_count: int | None) -> int:
    """Where the log should start so that nothing older than `max_age_s` and at most `max_count` records are kept.

    Always between two transactions. The newest one is kept however many records it has, until it is too old."""
    oldest_ms = reader.settled_ms - max_age_s * 1000 if max_age_s is not None else 0
    lowest = counted(reader, -log.id).items - max_count if max_count is not None else 0

    def kept(following: int, at_ms: int, number: int) -> bool:
        return at_ms >= oldest_ms and (number >= lowest or following >= log.next)

    return _bisect(reader, log, kept)


def _bisect(reader: Reader | Tx, log: Log, kept: Callable[[int, int, int], bool]) -> int:
    """The first entry that is kept; all that follow it are. Most of the time that is the first one there is."""
    low, high = log.start, log.next  # below `low` nothing is kept, from `high` on everything
    middle = low
    while low < high:
        rows = reader.values(ENTRIES, _COLUMNS, log.id, start=middle, limit=1)
        if not rows or kept(rows[0][1], rows[0][2], change.before(rows[0][3])):
            high = middle
        else:
            low = rows[0][1]
        middle = (low + high) // 2
    return low


def past_cursors(reader: Reader | Tx, log: Log, start: int, *, held: bool) -> Plan:
    """Let the log start at `start`, or where the first cursor stands that may hold it back (if `held`)."""
    behind = [cursor for cursor in reader.scan(CHANGE_CURSORS, log.id) if cursor.position < start]
    cut = []
    for cursor in behind:
        if cursor.position >= start:
            continue  # another one, further behind, holds already
        holds = held and cursor.position >= log.start
        if holds and bytes_between(reader, log, cursor.position, start) <= cursor.hold_bytes:
            start = aligned(reader, log, cursor.position)
        else:
            cut.append(cursor)
    number = number_at(reader, log, start)
    lost = []
    for cursor in cut:
        missed = number - number_at(reader, log, max(cursor.position, cold.earliest(reader, log)))
        if missed > 0:
            lost.append(msgspec.structs.replace(cursor, lost=cursor.lost + missed))
    return Plan(start, lost)


def number_at(reader: Reader | Tx, log: Log, position: int) -> int:
    """How many records the stream has had below this position."""
    head = _head(reader, log, position)
    return counted(reader, -log.id).items if head is None else head[1]


def bytes_between(reader: Reader | Tx, log: Log, low: int, high: int) -> int:
    """About how many bytes of records lie between two positions."""
    total = counted(reader, -log.id)
    records = number_at(reader, log, high) - number_at(reader, log, low)
    return records * total.bytes // total.items if total.items else 0


def lag(reader: Reader | Tx, log: Log, position: int) -> Lag:
    """How far behind somebody is who goes on at `position`."""
    head = _head(reader, log, position)
    if head is None:
        return Lag(0, 0, 0)
    at_ms, before = head
    total = counted(reader, -log.id)
    records = total.items - before
    return Lag(records, records * total.bytes // total.items, max(0, reader.now_ms - at_ms))


def _head(reader: Reader | Tx, log: Log, position: int) -> tuple[int, int] | None:
    """Of the entry that covers `position`, or the first one after it: its time, and how many records came before it."""
    if position < log.start:
        first = cold.earliest(reader, log)
        if first < log.start:
            entry = next(cold.entries(reader, log, max(position, first)))
            return entry.at_ms, change.before(entry.body)
    start = aligned(reader, log, position)
    rows = reader.values(ENTRIES, "at_ms, substr(body, 1, 8)", log.id, start=start, limit=1)
    return (rows[0][0], change.before(rows[0][1])) if rows else None


def aligned(reader: Reader | Tx, log: Log, position: int) -> int:
    """The beginning of the hot entry that covers `position`: any sequence is one, also one of another table's."""
    if position <= log.start:
        return log.start
    if position >= log.next:
        return log.next
    for entry in reader.scan(ENTRIES, log.id, before=position + 1, limit=1, reverse=True):
        return entry.position
    return log.start
