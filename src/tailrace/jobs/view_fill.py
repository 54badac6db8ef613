"""Filling a view: what its sources have, at one moment each, before it can follow their changes.

A view that starts late, or has lost its thread, is emptied and then filled in pieces. The pieces are deltas like any
other (`apply`), and are counted: one that is sent twice counts once, and a filling that was taken over by another one
is refused. The end says which sequence of each source the pieces came from, and the view goes on behind it. A filling
that crashed is begun again, from nothing.
"""

from __future__ import annotations

import secrets

import msgspec

from tailrace import limits
from tailrace.errors import Conflict, Fenced, Invalid
from tailrace.jobs.apply import Adding, Moves, ViewCommand, check_size
from tailrace.jobs.job import JOB_POSITIONS, Job, JobPosition, positions
from tailrace.jobs.view import FILLING, LIVE, Described, View, changed, describe, forget, found, put_only_row, source_of
from tailrace.jobs.view_plan import check
from tailrace.log import cold
from tailrace.log.entry import ENTRIES, LOGS
from tailrace.storage.engine import Tx
from tailrace.tables import value, write
from tailrace.tables.change import Capture
from tailrace.tables.definition import ITEMS, TABLES, counted, decoded, find


class BeginFill(ViewCommand, frozen=True):
    """Begin to fill a view anew: from here on only the pieces of this filling are taken. It follows its sources as they
    are defined now."""

    def run(self, tx: Tx) -> str:
        job, view = found(tx, self.name)
        sources = tuple(source_of(tx, source.table) for source in view.sources)
        check(view.sql, sources, 1, 1)
        for log in positions(tx, self.name):
            tx.delete(JOB_POSITIONS, self.name, log)
        forget(tx, self.name)
        fill = secrets.token_hex(8)
        changed(tx, job, View(view.sql, sources, FILLING, fill, 0))
        return fill


def _filling(tx: Tx, name: str, fill: str) -> tuple[Job, View]:
    job, view = found(tx, name)
    if view.phase != FILLING or view.fill != fill:
        raise Fenced(f"view {name!r} is not being filled by {fill!r} any more; somebody else began, or has finished")
    return job, view


class ClearRows(ViewCommand, frozen=True):
    """Remove some of the rows that a view had before it is filled; whether there are more."""

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
    """Add a piece, the next one in order; one that was added before is not added again."""

    fill: str
    piece: int  # from 1
    moves: Moves
    bytes: int = 0

    def size(self) -> int:
        return self.bytes

    def run(self, tx: Tx) -> bool:
        job, view = _filling(tx, self.name, self.fill)
        check_size(self.moves)
        if self.piece <= view.piece:
            return False
        if self.piece != view.piece + 1:
            raise Fenced(f"view {self.name!r} has {view.piece} pieces of this filling, so {self.piece} is not the next")
        Adding(tx, self.name, view.plan).add(self.moves)
        changed(tx, job, msgspec.structs.replace(view, piece=self.piece), rows=self.moves.records)
        return True


class FinishFill(ViewCommand, frozen=True):
    """The view has all that its sources had at these sequences, and goes on from there."""

    history = True  # what came since may be in cold storage already

    fill: str
    sequences: dict[str, int]  # by table

    def run(self, tx: Tx) -> Described:
        job, view = _filling(tx, self.name, self.fill)
        for source in view.sources:
            sequence = self.sequences.get(source.table)
            if sequence is None:
                raise Invalid(f"the sequence of table {source.table!r} is missing")
            row = tx.get(TABLES, source.table)
            stream = None if row is None else decoded(row).stream
            if stream is None or stream.log != source.log:
                raise Conflict(
                    f"the change stream of table {source.table!r} was made anew since the filling began; begin again",
                    code="VIEW_STALE",
                )
            tx.put(JOB_POSITIONS, JobPosition(self.name, source.log, boundary(tx, source.log, sequence)))
        if counted(tx, find(tx, self.name).space).items == 0:
            put_only_row(tx, self.name, view.plan)
        view = View(view.sql, view.sources, LIVE)
        changed(tx, job, view)
        return describe(tx, *found(tx, self.name))


def boundary(tx: Tx, log: int, sequence: int) -> int:
    """Where the first entry begins whose changes are later than this sequence: an entry covers all sequences since the
    one before it, so the place of a sequence may lie inside of it."""
    row = tx.get(LOGS, log)
    assert row is not None, f"log {log} is gone"
    first = cold.earliest(tx, row)
    if first > sequence + 1:
        raise Conflict(f"changes after sequence {sequence} were trimmed meanwhile; begin again", code="VIEW_STALE")
    if sequence + 1 < row.start:
        if sequence < first:
            return first
        entry = next(cold.entries(tx, row, sequence))
        return entry.position if entry.next - 1 > sequence else entry.next
    for entry in tx.scan(ENTRIES, log, start=row.start, before=sequence + 1, limit=1, reverse=True):
        return entry.position if entry.next - 1 > sequence else entry.next
    return row.start
