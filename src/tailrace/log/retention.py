"""How far a log may be trimmed. It only reads entries; the trim itself is `log.trim`."""

from __future__ import annotations

from tailrace import limits
from tailrace.log import cold, segments
from tailrace.log.entry import Log
from tailrace.storage.engine import Reader, Tx


def horizon(reader: Reader | Tx, log: Log, *, max_age_s: int | None, max_bytes: int | None) -> int:
    """Where the log should start so that nothing older than `max_age_s` and at most `max_bytes` are kept.

    Examines one step's worth of entries at most and always returns a boundary between entries. Only a log's own entries
    are trimmed: those that a fork shares belong to its parent."""
    oldest_ms = reader.settled_ms - max_age_s * 1000 if max_age_s is not None else None
    lowest = log.next - max_bytes if max_bytes is not None else None
    start = log.start
    if start < log.base:
        if not _inherited_expired(reader, log, oldest_ms, lowest):
            return log.start
        start = log.base
    until = cold.removable(reader, log)  # entries of a tiered log stay until they are in cold storage
    step = 1  # usually nothing is due, and the first entry shows it
    while start < until:
        for position, following, at_ms, _ in segments.outlines(reader, log.id, start, step):
            too_old = oldest_ms is not None and at_ms < oldest_ms
            # A single entry that exceeds the limit alone is kept: an empty stream is of no use.
            too_much = lowest is not None and position < lowest and following < log.next
            if not (too_old or too_much) or position >= until:
                return position
            start = following
        if step > 1:
            break
        step = limits.SWEEP_ENTRIES
    return start


def _inherited_expired(reader: Reader | Tx, log: Log, oldest_ms: int | None, lowest: int | None) -> bool:
    """Whether all entries that a fork inherited are past retention: they are older than its first own entry."""
    if lowest is not None and log.base <= lowest:
        return True
    if oldest_ms is None:
        return False
    first = segments.outline(reader, log.id, log.base)
    return (log.at_ms if first is None else first[2]) < oldest_ms
