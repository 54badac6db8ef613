"""Retention of change streams: by age, by count, and for named cursors.

Record counts and times only grow along a log, so its new start is found by bisection, in a few reads. The trim itself
moves the start at once; the entries are removed later, in small steps (`log.reclaim`).

A named cursor holds back retention as long as the records kept for it are no more than its `hold_bytes`. Then it is cut
off: the trim passes it, the records it missed are counted in `lost`, and it holds nothing until it is saved again.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tailrace.log import cold, segments
from tailrace.log.entry import Log
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.table import StorageTable
from tailrace.tables import change
from tailrace.tables.definition import counted


class ChangeCursor(msgspec.Struct, frozen=True):
    """The position of a consumer in a change stream."""

    log: int
    name: str
    position: int  # where it continues
    at_ms: int  # when it was saved
    hold_bytes: int  # how much the stream keeps for it beyond its retention
    lost: int  # records trimmed before it reached them


CHANGE_CURSORS = StorageTable("change_cursors", ChangeCursor, key=("log", "name"))


class RetentionPlan(msgspec.Struct, frozen=True):
    """The new start of a log, and the updated cursors that it cuts off."""

    start: int
    cut: list[ChangeCursor]


class Lag(msgspec.Struct, frozen=True):
    """The distance between a position and the tail."""

    records: int
    bytes: int  # from the mean size of a record
    age_ms: int  # of the oldest of them; 0 if there is none


def plan(reader: Reader | Tx, log: Log, max_age_s: int | None, max_count: int | None) -> RetentionPlan:
    """The plan of retention now. A tiered log is trimmed only up to its cold range, where its entries stay readable, so
    no cursor holds it back and none is cut off."""
    start = horizon(reader, log, max_age_s, max_count)
    tier = cold.tier_of(reader, log.id)
    if tier is not None:
        return RetentionPlan(max(log.start, min(start, cold.removable(reader, log))), [])
    return past_cursors(reader, log, start, held=True) if start > log.start else RetentionPlan(log.start, [])


def horizon(reader: Reader | Tx, log: Log, max_age_s: int | None, max_count: int | None) -> int:
    """Where the log should start so that nothing older than `max_age_s` and at most `max_count` records are kept.

    Always between two transactions. The newest one is kept however many records it has, until it is too old."""
    oldest_ms = reader.settled_ms - max_age_s * 1000 if max_age_s is not None else 0
    lowest = counted(reader, -log.id).items - max_count if max_count is not None else 0

    def kept(following: int, at_ms: int, number: int) -> bool:
        return at_ms >= oldest_ms and (number >= lowest or following >= log.next)

    return _bisect(reader, log, kept)


def first_after(reader: Reader | Tx, log: Log, at_ms: int) -> int:
    """Where the first entry begins that is younger than a time, hot or cold; the end of the log if there is none."""
    begin = _bisect(reader, log, lambda following, time_ms, number: time_ms > at_ms)
    return begin if begin > log.start else cold.first_since(reader, log, at_ms + 1)


def _bisect(reader: Reader | Tx, log: Log, kept: Callable[[int, int, int], bool]) -> int:
    """The first entry that is kept, as are all that follow it. Usually it is the first entry."""
    low, high = log.start, log.next  # below `low` nothing is kept, from `high` on everything
    middle = low
    while low < high:
        found = segments.head(reader, log.id, middle, change.HEAD_BYTES)
        if found is None or kept(found[1], found[2], change.before(found[3])):
            high = middle
        else:
            low = found[1]
        middle = (low + high) // 2
    return low


def past_cursors(reader: Reader | Tx, log: Log, start: int, *, held: bool) -> RetentionPlan:
    """The plan to start the log at `start`, or at the first cursor that holds it back (if `held`)."""
    behind = [cursor for cursor in reader.scan(CHANGE_CURSORS, log.id) if cursor.position < start]
    cut = []
    for cursor in behind:
        if cursor.position >= start:
            continue  # another cursor, further behind, holds already
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
    return RetentionPlan(start, lost)


def number_at(reader: Reader | Tx, log: Log, position: int) -> int:
    """The number of records that the stream has had below this position."""
    head = _head(reader, log, position)
    return counted(reader, -log.id).items if head is None else head[1]


def bytes_between(reader: Reader | Tx, log: Log, low: int, high: int) -> int:
    """The approximate bytes of records between two positions."""
    total = counted(reader, -log.id)
    records = number_at(reader, log, high) - number_at(reader, log, low)
    return records * total.bytes // total.items if total.items else 0


def lag(reader: Reader | Tx, log: Log, position: int) -> Lag:
    """The lag of a reader at `position`."""
    head = _head(reader, log, position)
    if head is None:
        return Lag(0, 0, 0)
    at_ms, before = head
    total = counted(reader, -log.id)
    records = total.items - before
    return Lag(records, records * total.bytes // total.items, max(0, reader.now_ms - at_ms))


def _head(reader: Reader | Tx, log: Log, position: int) -> tuple[int, int] | None:
    """Time of the entry that covers `position`, or of the next one, and the number of records before it."""
    if position < log.start:
        first = cold.earliest(reader, log)
        if first < log.start:
            entry = next(cold.entries(reader, log, max(position, first)))
            return entry.at_ms, change.before(entry.body)
    start = aligned(reader, log, position)
    found = segments.head(reader, log.id, start, change.HEAD_BYTES)
    return None if found is None else (found[2], change.before(found[3]))


def aligned(reader: Reader | Tx, log: Log, position: int) -> int:
    """The start of the hot entry that covers `position`, which may be any sequence, also another table's."""
    if position <= log.start:
        return log.start
    if position >= log.next:
        return log.next
    for entry in segments.scan(reader, log.id, before=position + 1, limit=1, reverse=True):
        return entry.position
    return log.start
