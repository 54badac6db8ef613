"""Housekeeping: what has expired is deleted, what retention lets go is trimmed, what nobody can read is removed.

Each step is a small command of its own, so that writers wait for milliseconds at most, and can be repeated or
interrupted anywhere: the lists of work are in the database.
"""

from __future__ import annotations

import msgspec

from tailrace import failpoints, limits
from tailrace.access import Permission
from tailrace.command import Command, Query
from tailrace.log import log as logs
from tailrace.log import retention
from tailrace.log.entry import GARBAGE, LOGS, Log
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.table import META, Meta
from tailrace.streams.commands import bury, log_of, watch_expiry
from tailrace.streams.producer import PRODUCERS
from tailrace.streams.stream import DEADLINES, RETAINED, STREAMS, Deadline, expired


class Due(msgspec.Struct, frozen=True):
    """Work found by looking at committed state; each step looks again before it acts."""

    deadlines: list[Deadline]
    trims: list[str]
    garbage: list[int]
    looked_at: str | None  # the last stream with retention that was looked at; None: there are no more
    more: bool  # there may be more deadlines or garbage than these

    def __bool__(self) -> bool:
        return bool(self.deadlines or self.trims or self.garbage)


class FindDue(Query[Due], frozen=True):
    """What there is to do. Of the streams with retention only some, `after` a path: looking at all takes long."""

    after: str | None = None
    limit: int = 100

    def run(self, reader: Reader) -> Due:
        deadlines = list(reader.scan(DEADLINES, before=reader.settled_ms + 1, limit=self.limit))
        garbage = [row.log for row in reader.scan(GARBAGE, limit=self.limit)]
        paths = [row.path for row in reader.scan(RETAINED, after=self.after, limit=limits.SWEEP_STREAMS)]
        trims = [path for path in paths if _horizon(reader, path) is not None]
        looked_at = paths[-1] if len(paths) == limits.SWEEP_STREAMS else None
        more = len(deadlines) == self.limit or len(garbage) == self.limit
        return Due(deadlines, trims, garbage, looked_at, more)


def _horizon(reader: Reader | Tx, path: str) -> tuple[Log, int] | None:
    """The log of a stream and where retention lets it start, if that is not where it does."""
    stream = reader.get(STREAMS, path)
    if stream is None or stream.deleted or (stream.max_age_s is None and stream.max_bytes is None):
        return None
    log = log_of(reader, stream)
    start = retention.horizon(reader, log, max_age_s=stream.max_age_s, max_bytes=stream.max_bytes)
    return (log, start) if start > log.start else None


class Probe(Command[None], frozen=True):
    """The smallest write there is, to find out whether writes work again."""

    permission = Permission.ADMIN

    def run(self, tx: Tx) -> None:
        tx.put(META, Meta("probe", b"%d" % tx.now_ms))


class Expire(Command[bool], frozen=True):
    """Delete the stream of a deadline if it has really expired; whether it had."""

    freeing = True
    permission = Permission.ADMIN

    deadline: Deadline

    def run(self, tx: Tx) -> bool:
        failpoints.hit("sweep.step")
        deadline = self.deadline
        tx.delete(DEADLINES, deadline.at_ms, deadline.path)
        stream = tx.get(STREAMS, deadline.path)
        if stream is None or stream.deleted or stream.deadline_ms != deadline.at_ms:
            return False
        if not expired(stream, tx.settled_ms):
            watch_expiry(tx, stream)
            return False
        bury(tx, stream)
        return True


class Trim(Command[None], frozen=True):
    """Let a stream start where its retention says: the stream that is at the path now, not one that was."""

    freeing = True
    permission = Permission.ADMIN

    path: str

    def run(self, tx: Tx) -> None:
        failpoints.hit("sweep.step")
        found = _horizon(tx, self.path)
        if found is not None:
            logs.trim(tx, *found)


class Reclaim(Command[bool], frozen=True):
    """Remove one step's worth of a log that nobody can read; whether it is done."""

    freeing = True
    permission = Permission.ADMIN

    log: int

    def run(self, tx: Tx) -> bool:
        failpoints.hit("sweep.step")
        log = tx.get(LOGS, self.log)
        if log is not None and log.dropped:
            producers = list(tx.scan(PRODUCERS, self.log, limit=limits.SWEEP_ENTRIES))
            for producer in producers:
                tx.delete(PRODUCERS, self.log, producer.id)
            if len(producers) == limits.SWEEP_ENTRIES:
                return False
        return logs.reclaim(tx, self.log)
