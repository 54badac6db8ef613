"""Housekeeping of streams: expired streams are deleted, retention is applied, unreachable entries are removed, and
small rows of entries are joined.

Each step is a small command of its own, so that writers wait for milliseconds at most, and can be repeated or
interrupted anywhere: the lists of work are in the database, and each step checks again before it acts.
"""

from __future__ import annotations

from tailrace import failpoints, limits
from tailrace.access import Permission
from tailrace.command import Command
from tailrace.housekeeping import DueWork, HousekeepingTask
from tailrace.log import log as logs
from tailrace.log import retention, sealing
from tailrace.log.entry import GARBAGE, LOGS, Log
from tailrace.log.sealing import SealableSegments
from tailrace.metrics import Metrics
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.table import META, MetaRow
from tailrace.streams.commands import log_of, remove_stream, watch_expiry
from tailrace.streams.producer import PRODUCERS
from tailrace.streams.stream import DEADLINES, RETAINED, STREAMS, Deadline, expired


def _horizon(reader: Reader | Tx, path: str) -> tuple[Log, int] | None:
    """The log of a stream and where retention lets it start; None if it starts there already."""
    stream = reader.get(STREAMS, path)
    if stream is None or stream.deleted or (stream.max_age_s is None and stream.max_bytes is None):
        return None
    log = log_of(reader, stream)
    start = retention.horizon(reader, log, max_age_s=stream.max_age_s, max_bytes=stream.max_bytes)
    return (log, start) if start > log.start else None


class ProbeWrite(Command[None], frozen=True):
    """The smallest possible write, to find out whether writes work again."""

    permission = Permission.ADMIN

    def run(self, tx: Tx) -> None:
        tx.put(META, MetaRow("probe", b"%d" % tx.now_ms))


class ExpireStream(Command[bool], frozen=True):
    """Delete the stream of a deadline if it has really expired; True if it had."""

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
        remove_stream(tx, stream)
        return True


class TrimStream(Command[None], frozen=True):
    """Apply the retention of the stream that is at the path now."""

    freeing = True
    permission = Permission.ADMIN

    path: str

    def run(self, tx: Tx) -> None:
        failpoints.hit("sweep.step")
        found = _horizon(tx, self.path)
        if found is not None:
            logs.trim(tx, *found)


class ReclaimLog(Command[bool], frozen=True):
    """Remove one step's worth of unreachable entries of a log; True when none are left."""

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


class SealEntries(Command[bool], frozen=True):
    """Join staged segments of entries; False if they are not what they were."""

    permission = Permission.ADMIN

    found: SealableSegments

    def run(self, tx: Tx) -> bool:
        return sealing.seal(tx, self.found)


# -- tasks


def _find_expired(reader: Reader, position: None) -> DueWork[bool]:
    deadlines = list(reader.scan(DEADLINES, before=reader.settled_ms + 1, limit=limits.SWEEP_DUE))
    return DueWork([ExpireStream(deadline) for deadline in deadlines], more=len(deadlines) == limits.SWEEP_DUE)


def _find_trims(reader: Reader, after: str | None) -> DueWork[None]:
    """A page of the streams with retention: examining all of them takes long."""
    paths = [row.path for row in reader.scan(RETAINED, after=after, limit=limits.SWEEP_STREAMS)]
    trims = [TrimStream(path) for path in paths if _horizon(reader, path) is not None]
    return DueWork(trims, paths[-1] if len(paths) == limits.SWEEP_STREAMS else None)


def _find_garbage(reader: Reader, position: None) -> DueWork[bool]:
    logs = [row.log for row in reader.scan(GARBAGE, limit=limits.SWEEP_DUE)]
    return DueWork([ReclaimLog(log) for log in logs], more=len(logs) == limits.SWEEP_DUE)


def _find_staged(reader: Reader, position: None) -> DueWork[bool]:
    found = sealing.find(reader)
    return DueWork([] if found is None else [SealEntries(found)], more=found is not None)


def _count_expired(metrics: Metrics, expired: bool) -> None:
    metrics.expired += expired


def _count_trimmed(metrics: Metrics, trimmed: None) -> None:
    metrics.trimmed += 1


TASKS = (
    HousekeepingTask("streams.expire", _find_expired, count=_count_expired),
    HousekeepingTask("streams.trim", _find_trims, count=_count_trimmed),
    HousekeepingTask("streams.seal", _find_staged),  # also entries of change streams and topics
    HousekeepingTask("streams.reclaim", _find_garbage, finished=bool),  # likewise
)
