"""How far a log may be trimmed. Pure but for looking at entries; the trim itself is `log.trim`."""

from __future__ import annotations

from tailrace import limits
from tailrace.log.entry import ENTRIES, Log
from tailrace.storage.engine import Reader


def horizon(reader: Reader, log: Log, *, max_age_s: int | None, max_bytes: int | None) -> int:
    """Where the log should start so that nothing older than `max_age_s` and at most `max_bytes` are kept.

    Looks at one step's worth of entries at most and always answers with a boundary between entries. Only a log's own
    entries are trimmed: what a fork shares belongs to its parent."""
    oldest_ms = reader.now_ms - max_age_s * 1000 if max_age_s is not None else None
    lowest = log.next - max_bytes if max_bytes is not None else None
    start = log.start
    if start < log.base:
        if not _inherited_expired(reader, log, oldest_ms, lowest):
            return log.start
        start = log.base
    for entry in reader.scan(ENTRIES, log.id, start=start, limit=limits.SWEEP_ENTRIES):
        too_old = oldest_ms is not None and entry.at_ms < oldest_ms
        # One message that is larger than all that may be kept is kept: an empty stream helps nobody.
        too_much = lowest is not None and entry.position < lowest and entry.next < log.next
        if not (too_old or too_much):
            return entry.position
        start = entry.next
    return start


def _inherited_expired(reader: Reader, log: Log, oldest_ms: int | None, lowest: int | None) -> bool:
    """Whether all that a fork inherited is past retention. It was written before the fork's own first entry."""
    if lowest is not None and log.base <= lowest:
        return True
    if oldest_ms is None:
        return False
    first = next(iter(reader.scan(ENTRIES, log.id, start=log.base, limit=1)), None)
    return (log.at_ms if first is None else first.at_ms) < oldest_ms
