"""Removing records of change streams: by retention, which housekeeping applies, and by pruning."""

from __future__ import annotations

import logging

import msgspec

from tailrace.access import Permission
from tailrace.command import Command
from tailrace.errors import Invalid, NotFound
from tailrace.log import cold
from tailrace.log import log as logs
from tailrace.log.entry import Log
from tailrace.storage.engine import Reader, Tx
from tailrace.tables import retention
from tailrace.tables.change_reading import check_sequence
from tailrace.tables.change_stream import (
    CHANGE_STREAMS,
    ChangeStream,
    check_retention,
    find_stream,
    last_sequence,
    log_of,
)
from tailrace.tables.definition import COUNTS
from tailrace.tables.retention import CHANGE_CURSORS, RetentionPlan

logger = logging.getLogger("tailrace.tables")


class AlterRetention(Command[ChangeStream], frozen=True):
    """Change the retention of a stream; None: no bound. Unset fields stay as they are."""

    freeing = True
    permission = Permission.ADMIN
    subject = ("tables", "table")

    table: str
    max_age_s: int | msgspec.UnsetType | None = msgspec.UNSET
    max_count: int | msgspec.UnsetType | None = msgspec.UNSET
    label: str | None = None

    def run(self, tx: Tx) -> ChangeStream:
        stream = find_stream(tx, self.table, self.label)
        _check_shown(stream)
        max_age_s = stream.max_age_s if self.max_age_s is msgspec.UNSET else self.max_age_s
        max_count = stream.max_count if self.max_count is msgspec.UNSET else self.max_count
        check_retention(max_age_s, max_count)
        stream = msgspec.structs.replace(stream, max_age_s=max_age_s, max_count=max_count)
        tx.put(CHANGE_STREAMS, stream)
        return stream


def _check_shown(stream: ChangeStream) -> None:
    """Refuse to shorten the history of point-in-time recovery, whose length is its own setting."""
    if stream.hidden:
        raise NotFound(
            f"table {stream.name!r} has no change stream, only the history of its point-in-time recovery; enable a "
            "stream first, or set the recovery period",
            code="STREAM_NOT_FOUND",
        )


class Pruned(msgspec.Struct, frozen=True):
    """The outcome of a prune."""

    records: int  # removed
    gone: bool  # the stream was closed and is empty now: it was removed


class PruneStream(Command[Pruned], frozen=True):
    """Remove records up to and including the sequence `through` (None: all), regardless of cursors."""

    freeing = True
    history = True
    permission = Permission.ADMIN
    subject = ("tables", "table")

    table: str
    through: int | None = None
    label: str | None = None

    def run(self, tx: Tx) -> Pruned:
        stream = find_stream(tx, self.table, self.label)
        _check_shown(stream)
        if self.through is not None:
            check_sequence(self.through)
        if self.through is not None and self.through > last_sequence(tx):
            raise Invalid(f"sequence {self.through} was never assigned; prune through one that the database returned")
        log = log_of(tx, stream)
        number = retention.number_at(tx, log, cold.earliest(tx, log))
        start = log.next if self.through is None else self._start(tx, log, self.through + 1)
        if start > cold.earliest(tx, log):
            plan = retention.past_cursors(tx, log, start, held=False)
            logs.forget(tx, log, start)
            _cut_off(tx, stream, plan)
        removed = retention.number_at(tx, log, start) - number
        if stream.closed_ms is None or start < log.next:
            return Pruned(removed, gone=False)
        _remove(tx, stream)
        return Pruned(removed, gone=True)

    def _start(self, tx: Tx, log: Log, position: int) -> int:
        """The start of the entry that covers `position`, hot or cold."""
        first = cold.earliest(tx, log)
        if first < position < log.start:
            return next(cold.entries(tx, log, position)).position
        return first if position <= first else retention.aligned(tx, log, position)


def _trim(tx: Tx, stream: ChangeStream, log: Log, plan: RetentionPlan) -> None:
    logs.trim(tx, log, plan.start)
    _cut_off(tx, stream, plan)


def _cut_off(tx: Tx, stream: ChangeStream, plan: RetentionPlan) -> None:
    for cursor in plan.cut:
        logger.warning(
            "cursor %r of the change stream %s/%s is cut off: it has lost %d records; the stream starts at %d now",
            cursor.name, stream.name, stream.label, cursor.lost, plan.start,
        )  # fmt: skip
        tx.put(CHANGE_CURSORS, cursor)


def _remove(tx: Tx, stream: ChangeStream) -> None:
    """Remove a closed stream."""
    for cursor in list(tx.scan(CHANGE_CURSORS, stream.log)):
        tx.delete(CHANGE_CURSORS, cursor.log, cursor.name)
    tx.delete(COUNTS, -stream.log)
    tx.delete(CHANGE_STREAMS, stream.name, stream.label)
    logs.drop(tx, log_of(tx, stream))


def _plan(reader: Reader | Tx, stream: ChangeStream) -> tuple[Log, RetentionPlan, bool] | None:
    """The due retention of a stream: its log, the plan, and whether the stream can be removed; None: nothing is due."""
    log = log_of(reader, stream)
    plan = RetentionPlan(log.start, [])
    if stream.max_age_s is not None or stream.max_count is not None:
        plan = retention.plan(reader, log, stream.max_age_s, stream.max_count)
    over = (
        stream.closed_ms is not None
        and stream.max_age_s is not None
        and plan.start >= log.next
        and stream.closed_ms + stream.max_age_s * 1000 < reader.settled_ms
        and cold.earliest(reader, log) >= log.start  # entries in cold storage stay readable
    )
    return (log, plan, over) if over or plan.start > log.start else None


def is_due(reader: Reader, stream: ChangeStream) -> bool:
    """Whether retention has something to remove."""
    return _plan(reader, stream) is not None


class TrimChanges(Command[int], frozen=True):
    """Apply the retention of a stream, and remove a closed one when it is empty; the number of records removed."""

    freeing = True
    permission = Permission.ADMIN

    name: str
    label: str

    def run(self, tx: Tx) -> int:
        stream = tx.get(CHANGE_STREAMS, self.name, self.label)
        found = None if stream is None else _plan(tx, stream)
        if stream is None or found is None:
            return 0
        log, plan, over = found
        removed = retention.number_at(tx, log, plan.start) - retention.number_at(tx, log, log.start)
        _trim(tx, stream, log, plan)
        if over:
            _remove(tx, stream)
        return removed
