"""Filling a view with the items of its sources, at one sequence each, before it can follow their changes.

A new view, or one that has lost changes, is emptied and then filled in chunks. The chunks are staged rows (`apply`),
and are numbered: one that is sent twice counts once, and one of a filling that another job took over is refused. The
end names the sequence of each source that the chunks came from, and the view continues after it. A filling that crashed
is restarted from nothing.
"""

from __future__ import annotations

import secrets

import msgspec

from tailrace import limits
from tailrace.errors import Conflict, Fenced, Invalid
from tailrace.jobs.apply import ViewCommand, check_topics, drop_stages, write_stages
from tailrace.jobs.job import JOB_POSITIONS, Job, JobPosition, positions
from tailrace.jobs.view import (
    FILLING,
    INVALID,
    LIVE,
    PLANNING,
    SourceTable,
    ViewDefinition,
    ViewDescription,
    changed,
    describe,
    found,
    partitions_of,
    reset_partials,
    source_of,
)
from tailrace.log import cold, segments
from tailrace.log.entry import LOGS
from tailrace.storage.engine import Tx
from tailrace.tables import value, write
from tailrace.tables.change import Capture
from tailrace.tables.definition import ITEMS, TABLES, decoded, find


class BeginFill(ViewCommand, frozen=True):
    """Begin to fill a view: from here on only chunks of this filling are accepted. The view uses the current
    definitions of its sources. If messages that it has counted have left their topic since, it would become another
    one, so that has to be `requested`, here or by a refresh."""

    requested: bool = False

    def run(self, tx: Tx) -> str:
        job, view = found(tx, self.name)
        if view.phase in (PLANNING, INVALID):
            raise Conflict(f"view {self.name!r} is {view.phase}; plan it before it is filled", code="VIEW_NOT_PLANNED")
        sources = self._sources(tx, view)
        for log in positions(tx, self.name):
            tx.delete(JOB_POSITIONS, self.name, log)
        reset_partials(tx, self.name, view.shape)
        fill = secrets.token_hex(8)
        changed(tx, job, msgspec.structs.replace(view, sources=sources, phase=FILLING, fill=fill, piece=0))
        return fill

    def _sources(self, tx: Tx, view: ViewDefinition) -> tuple[SourceTable, ...]:
        found: list[SourceTable] = []
        for name, topic in dict.fromkeys((source.table, source.topic) for source in view.sources):
            found += partitions_of(tx, name) if topic else [source_of(tx, name)]
        if view.filled and not self.requested:
            first = {source.log: source.first for source in found if source.topic}
            for source in view.sources:
                if source.topic and first.get(source.log, source.first + 1) > source.first:
                    raise Conflict(
                        f"messages of topic {source.table!r} that view {self.name!r} has counted have left the topic, "
                        "and it cannot be filled without them; to fill it with the messages that are left, run ALTER "
                        f"MATERIALIZED VIEW {self.name} REFRESH",
                        code="VIEW_SOURCE_TRIMMED",
                    )
        return tuple(found)


def _filling(tx: Tx, name: str, fill: str) -> tuple[Job, ViewDefinition]:
    job, view = found(tx, name)
    if view.phase != FILLING or view.fill != fill:
        raise Fenced(f"view {name!r} is not being filled by {fill!r} any more; another job has begun or completed it")
    return job, view


class ClearRows(ViewCommand, frozen=True):
    """Remove some of the old rows of a view before it is filled; whether there are more."""

    freeing = True

    fill: str

    def run(self, tx: Tx) -> bool:
        _filling(tx, self.name, self.fill)
        definition = find(tx, self.name)
        capture = Capture()
        rows = list(tx.scan(ITEMS, definition.space, limit=limits.VIEW_CLEAR_ROWS))
        for row in rows:
            plan = write.find(tx, definition, row.key, value.decode(row.body))
            write.do(tx, plan, capture)
        capture.append(tx)
        return len(rows) == limits.VIEW_CLEAR_ROWS


class FillRows(ViewCommand, frozen=True):
    """Apply the next chunk; one that was applied before is not applied again."""

    fill: str
    piece: int  # from 1
    stages: tuple[str, ...] = ()

    def run(self, tx: Tx) -> bool:
        job, view = _filling(tx, self.name, self.fill)
        if self.piece <= view.piece:
            drop_stages(tx, self.name, self.stages)
            return False
        if self.piece != view.piece + 1:
            raise Fenced(f"view {self.name!r} has {view.piece} chunks of this filling, so {self.piece} is not the next")
        rows = write_stages(tx, self.name, self.stages)
        changed(tx, job, msgspec.structs.replace(view, piece=self.piece), rows=rows)
        return True


class FinishFill(ViewCommand, frozen=True):
    """Complete the filling: the view has its sources at these sequences, and continues from there."""

    history = True  # later entries may be in cold storage already

    fill: str
    sequences: dict[str, int]  # by table
    positions: dict[int, int] = {}  # of the partitions of topics, by log

    def run(self, tx: Tx) -> ViewDescription:
        job, view = _filling(tx, self.name, self.fill)
        check_topics(tx, self.name, view)
        for source in view.sources:
            if source.topic:
                tx.put(JOB_POSITIONS, JobPosition(self.name, source.log, self._position(tx, source)))
                continue
            sequence = self.sequences.get(source.table)
            if sequence is None:
                raise Invalid(f"the sequence of table {source.table!r} is missing")
            row = tx.get(TABLES, source.table)
            stream = None if row is None else decoded(row).stream
            if stream is None or stream.log != source.log:
                raise Conflict(
                    f"the change stream of table {source.table!r} was recreated since the filling began; start over",
                    code="VIEW_STALE",
                )
            tx.put(JOB_POSITIONS, JobPosition(self.name, source.log, boundary(tx, source.log, sequence)))
        changed(tx, job, msgspec.structs.replace(view, phase=LIVE, fill="", piece=0, filled=True))
        return describe(tx, *found(tx, self.name))

    def _position(self, tx: Tx, source: SourceTable) -> int:
        position, log = self.positions.get(source.log), tx.get(LOGS, source.log)
        if position is None:
            raise Invalid(f"the position in partition {source.partition} of topic {source.table!r} is missing")
        if log is None or position < cold.earliest(tx, log):
            raise Conflict(f"topic {source.table!r} was dropped or trimmed meanwhile; start over", code="VIEW_STALE")
        if position > log.next:
            raise Invalid(f"{position} is not a position in log {source.log}, which ends at {log.next}")
        return position


def boundary(tx: Tx, log: int, sequence: int) -> int:
    """The position of the first entry whose changes are later than this sequence: an entry covers all sequences since
    the one before it, so the sequence may be inside of an entry."""
    row = tx.get(LOGS, log)
    assert row is not None, f"log {log} is gone"
    first = cold.earliest(tx, row)
    if first > sequence + 1:
        raise Conflict(f"changes after sequence {sequence} were trimmed meanwhile; start over", code="VIEW_STALE")
    if sequence + 1 < row.start:
        if sequence < first:
            return first
        entry = next(cold.entries(tx, row, sequence))
        return entry.position if entry.next - 1 > sequence else entry.next
    for entry in segments.scan(tx, log, start=row.start, before=sequence + 1, limit=1, reverse=True):
        return entry.position if entry.next - 1 > sequence else entry.next
    return row.start
