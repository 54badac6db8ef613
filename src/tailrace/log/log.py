"""The operations on a log: append, read, fork, trim, drop. Everything else is built from these.

Readers find entries in order with no gaps, across the ancestors of a fork. A trim moves `start` at once; the entries
themselves are removed in small steps by `reclaim`, and only when no fork still reads them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import msgspec

from tailrace import limits
from tailrace.errors import Corrupt, Invalid, TooLarge, Trimmed
from tailrace.log import cold, segments
from tailrace.log.entry import GARBAGE, LOGS, Entry, Garbage, Log, Segment
from tailrace.log.notices import CLOSED as CLOSED
from tailrace.log.notices import DROPPED as DROPPED
from tailrace.log.notices import Advanced as Advanced
from tailrace.log.notices import Ended as Ended
from tailrace.log.notices import LogPage as LogPage
from tailrace.log.position import offset
from tailrace.log.segments import SEGMENTS
from tailrace.storage.engine import Notice, Reader, Tx
from tailrace.storage.sql import size_of
from tailrace.storage.table import Key


def create(tx: Tx, owner: str) -> Log:
    """Create an empty log. A log's number is never reused."""
    log = Log(tx.next_id("log"), owner, None, 0, 0, 0, tx.now_ms, 0, 0, 0)
    tx.put(LOGS, log)
    return log


def append(tx: Tx, log: Log, body: bytes, size: int) -> Log:
    """Add an entry that covers `size` positions; the log afterwards."""
    position = log.next
    end = position + size
    if end > limits.POSITION_MAX:
        raise TooLarge(f"log {log.owner!r} is full: positions end at {limits.POSITION_MAX}")
    at_ms = log.at_ms if log.at_ms > tx.now_ms else tx.now_ms
    segment = Segment(log.id, position, end, at_ms, body)
    log = Log(log.id, log.owner, log.parent, log.base, log.start, end, at_ms, log.forks, log.depth, log.dropped)
    tx.add(SEGMENTS, segment)
    tx.put(LOGS, log)
    tx.notify(log.id, Advanced(log, segment))
    return log


def append_each(tx: Tx, log: Log, bodies: list[bytes]) -> Log:
    """Add an entry of one position for each body; the log afterwards. Cheaper than one by one."""
    return _append(tx, log, bodies, log.next + len(bodies), segments.SINGLE)


def append_together(tx: Tx, appends: list[tuple[Log, list[bytes]]]) -> None:
    """Add to each of these logs an entry for each of its bodies, of which there is one at least and none is empty. An
    entry covers as many positions as it has bytes. Cheaper than one by one."""
    now_ms = tx.now_ms
    rows: dict[Key, Log | None] = {}
    added: list[Segment] = []
    notices: list[Notice] = []
    for log, bodies in appends:
        number = log.id
        at_ms = log.at_ms if log.at_ms > now_ms else now_ms
        if len(bodies) == 1:
            body = bodies[0]
            end = log.next + len(body)
            some = [Segment(number, log.next, end, at_ms, body)]
        else:
            some = segments.joined(number, log.next, at_ms, bodies, segments.SIZED)
            end = some[-1].next
        if end > limits.POSITION_MAX:
            raise TooLarge(f"log {log.owner!r} is full: positions end at {limits.POSITION_MAX}")
        log = Log(number, log.owner, log.parent, log.base, log.start, end, at_ms, log.forks, log.depth, log.dropped)
        rows[(number,)] = log
        for segment in some:
            added.append(segment)
            notices.append(Notice(number, Advanced(log, segment)))
    if rows:
        tx.put_each(LOGS, rows)
        tx.add_each(SEGMENTS, added)
        tx.notify_each(notices)


def append_until(tx: Tx, log: Log, bodies: list[bytes], ends: list[int]) -> None:
    """Add an entry for each body, that covers the positions up to its end. Cheaper than one by one."""
    at_ms = log.at_ms if log.at_ms > tx.now_ms else tx.now_ms
    starts = [log.next, *ends[:-1]]
    added = [Segment(log.id, start, end, at_ms, body) for start, end, body in zip(starts, ends, bodies, strict=True)]
    _add(tx, log, ends[-1], at_ms, segments.pack(added) if len(added) > 1 else added)


def _append(tx: Tx, log: Log, bodies: list[bytes], end: int, form: int) -> Log:
    if not bodies:
        return log
    at_ms = log.at_ms if log.at_ms > tx.now_ms else tx.now_ms
    return _add(tx, log, end, at_ms, segments.joined(log.id, log.next, at_ms, bodies, form))


def _add(tx: Tx, log: Log, end: int, at_ms: int, added: list[Segment]) -> Log:
    """Add segments, the last of which ends at `end`; the log afterwards."""
    if end > limits.POSITION_MAX:
        raise TooLarge(f"log {log.owner!r} is full: positions end at {limits.POSITION_MAX}")
    log = Log(log.id, log.owner, log.parent, log.base, log.start, end, at_ms, log.forks, log.depth, log.dropped)
    tx.put(LOGS, log)
    for segment in added:
        tx.add(SEGMENTS, segment)
        tx.notify(log.id, Advanced(log, segment))
    return log


def read(
    reader: Reader | Tx,
    log: Log,
    position: int,
    bytes_max: int,
    entries_max: int = sys.maxsize,
    segments_max: int = sys.maxsize,
    *,
    long: bool = False,
) -> LogPage:
    """Entries from `position` on: at least one if there is any, then up to `bytes_max`, `entries_max` and
    `segments_max`, cut between entries. A `long` read, one of many in order, ends between segments if it has at least
    half of `bytes_max` then: a segment that is cut is read twice."""
    if position < log.start:
        return _read_cold(reader, log, position, bytes_max, min(entries_max, segments_max))
    if position > log.next:
        raise Invalid(
            f"offset {offset(position)} is beyond the tail {offset(log.next)}; read from an offset this log returned",
            code="INVALID_OFFSET",
        )
    found: list[Segment] = []
    left, room = bytes_max, entries_max
    at = position
    while at < log.next and left > 0:
        owner, until = holder(reader, log, at)
        before = at
        for segment in segments.between(reader, owner, at, until, long=long):
            inside = segment.position == at and segment.next <= until
            rest = segment if inside else segments.cut(segment, at, until, sys.maxsize, sys.maxsize)
            if rest is None or rest.position != at:
                break
            taken = rest
            size = len(rest.body)
            enough = long and (bytes_max - left) * 2 >= bytes_max
            if size > left or segments.count(rest) > room:
                if enough:
                    left = 0
                    break
                part = segments.cut(rest, at, until, left, room)
                if part is None:
                    part = None if found else segments.cut(rest, at, until, sys.maxsize, 1)
                    left = 0
                if part is None:
                    break
                taken, left = part, min(left, len(part.body))
            found.append(taken)
            at = taken.next
            left -= len(taken.body)
            room -= segments.count(taken)
            # The next segment is probably about as large, and would be read for nothing.
            if left <= 0 or room <= 0 or len(found) == segments_max or (enough and left < size):
                left = 0
                break
        if at == before:
            if left > 0:
                raise gap(log, at) if found or uncovered(reader, owner, at) else Misaligned(position)
            break
    return LogPage(found, at, log.next)


def gap(log: Log, position: int) -> Corrupt:
    """The error for a missing entry: entries follow one another without gaps up to the tail."""
    return Corrupt(
        f"log {log.id} ({log.owner}) has no entry at position {position}, although it ends at {log.next}; run "
        "`tailrace check` and restore a backup"
    )


def following(log: Log, position: int, entries: Iterable[Entry]) -> Iterator[Entry]:
    """A log's own entries from `position` on, lazily; an error where one is missing."""
    for entry in entries:
        if entry.position != position:
            raise gap(log, position)
        yield entry
        position = entry.next
    if position < log.next:
        raise gap(log, position)


def uncovered(reader: Reader | Tx, owner: int, position: int) -> bool:
    """Whether no entry of the log `owner` that begins below `position` covers it."""
    before = next(segments.scan(reader, owner, before=position, limit=1, reverse=True), None)
    return before is None or before.next <= position


def _read_cold(reader: Reader | Tx, log: Log, position: int, bytes_max: int, entries_max: int) -> LogPage:
    """As `read`, below the log's start. The page may end where the hot part begins, or before entries that must be
    fetched first."""
    first = cold.earliest(reader, log)
    if position < first:
        raise Trimmed(requested=position, earliest=first, offset=offset(first))
    found: list[Segment] = []
    left, at = bytes_max, position
    try:
        for entry in cold.entries(reader, log, position):
            if entry.position != at:
                raise Misaligned(position)
            if found and len(entry.body) > left:
                break
            found.append(Segment(entry.log, entry.position, entry.next, entry.at_ms, entry.body))
            left -= len(entry.body)
            at = entry.next
            if left <= 0 or len(found) == entries_max:
                break
    except cold.ColdMiss:
        if not found:
            raise
    return LogPage(found, at, log.next)


class Misaligned(Invalid):
    """A position at which no entry starts: `message_start` finds the entry that covers it."""

    def __init__(self, position: int) -> None:
        super().__init__(
            f"offset {offset(position)} lies inside a message; use an offset that the server returned",
            code="INVALID_OFFSET",
        )


def message_start(reader: Reader | Tx, log: Log, position: int) -> int:
    """The position of the entry that covers `position`, which must be readable."""
    if position < log.start:
        return next(cold.entries(reader, log, position)).position
    owner, _ = holder(reader, log, position)
    return next(segments.scan(reader, owner, before=position + 1, limit=1, reverse=True)).position


def holder(reader: Reader | Tx, log: Log, position: int) -> tuple[int, int]:
    """The id of the log whose own entries hold `position`, and up to where they count for `log`."""
    until = log.next
    while position < log.base:
        until = min(until, log.base)
        log = _parent(reader, log)
    return log.id, until


def _parent(reader: Reader | Tx, log: Log) -> Log:
    assert log.parent is not None, f"log {log.id} has a base and no parent"
    parent = reader.get(LOGS, log.parent)
    assert parent is not None, f"log {log.id} has lost its parent {log.parent}"
    return parent


def boundary(reader: Reader | Tx, log: Log, position: int) -> bool:
    """Whether an entry starts or ends at `position`."""
    if position in (log.start, log.next):
        return True
    if not log.start < position < log.next:
        return False
    owner, _ = holder(reader, log, position)
    return any(entry.position == position for entry in segments.scan(reader, owner, start=position, limit=1))


def fork(tx: Tx, parent: Log, owner: str, position: int) -> Log:
    """A new log that shares `parent`'s entries below `position`."""
    if parent.depth + 1 > limits.FORK_DEPTH_MAX:
        raise Invalid(f"a chain of forks may be {limits.FORK_DEPTH_MAX} deep; fork an earlier stream of the chain")
    log = Log(
        tx.next_id("log"), owner, parent.id, position, min(parent.start, position), position, tx.now_ms, 0,
        parent.depth + 1, 0,
    )  # fmt: skip
    tx.put(LOGS, log)
    tx.put(LOGS, msgspec.structs.replace(parent, forks=parent.forks + 1))
    return log


def trim(tx: Tx, log: Log, position: int) -> Log:
    """Move the start of the hot log to `position`, or to the end of its cold range; the log afterwards. Entries below
    it are then read from cold storage if the log is tiered, and gone otherwise."""
    return _begun(tx, log, min(position, cold.removable(tx, log)))


def _begun(tx: Tx, log: Log, position: int) -> Log:
    if position <= log.start:
        return log
    log = msgspec.structs.replace(log, start=position)
    tx.put(LOGS, log)
    tx.put(GARBAGE, Garbage(log.id))
    return log


def forget(tx: Tx, log: Log, position: int) -> Log:
    """Make everything below `position` unreadable, hot and cold; the log afterwards. The files in cold storage are not
    touched here: compaction removes forgotten entries from them."""
    position = min(position, log.next)
    tier = cold.tier_of(tx, log.id)
    if tier is not None and position > tier.start:
        tx.put(cold.COLD_RANGES, msgspec.structs.replace(tier, start=position, tiered=max(tier.tiered, position)))
    return _begun(tx, log, position)


def drop(tx: Tx, log: Log) -> list[Log]:
    """Delete the log. Forks keep the entries that they share with it.

    Returns the logs that become unreachable: this one, if it has no forks, and every dropped ancestor whose last fork
    it was."""
    log = msgspec.structs.replace(log, dropped=1)
    tx.put(LOGS, log)
    tx.notify(log.id, DROPPED)
    dead: list[Log] = []
    while log.dropped and not log.forks:
        dead.append(log)
        tx.put(GARBAGE, Garbage(log.id))
        if log.parent is None:
            break
        parent = tx.get(LOGS, log.parent)
        assert parent is not None, f"log {log.id} has lost its parent {log.parent}"
        log = msgspec.structs.replace(parent, forks=parent.forks - 1)
        tx.put(LOGS, log)
        if not log.forks and not log.dropped:
            tx.put(GARBAGE, Garbage(log.id))  # entries that were trimmed while forks shared them can be removed now
    return dead


def reclaim(tx: Tx, number: int) -> bool:
    """Remove one step's worth of unreachable entries; True when none are left."""
    log = tx.get(LOGS, number)
    if log is None or log.forks:
        # Forks still share its trimmed entries; dropping the last fork lists it again.
        tx.delete(GARBAGE, number)
        return True
    end = log.next if log.dropped else log.start
    rows = tx.values(SEGMENTS, f"next, {size_of('body')}", number, limit=limits.SWEEP_ENTRIES)
    step = [(following, size) for following, size in rows if following <= end]  # a segment goes when all of it is due
    count, left = 0, limits.SWEEP_BYTES
    for _, size in step:  # the first segment however large it is, then as many as fit SWEEP_BYTES
        left -= size
        if count and left < 0:
            break
        count += 1
    if count:
        tx.remove_range(SEGMENTS, number, before=step[count - 1][0], limit=count)
    done = count == len(step) < limits.SWEEP_ENTRIES
    if done:
        tx.delete(GARBAGE, number)
        if log.dropped:
            tx.delete(LOGS, number)
            tx.delete(cold.COLD_RANGES, number)
    return done
