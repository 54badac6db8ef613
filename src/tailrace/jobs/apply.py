"""Applying a batch to a view: puts and deletes by key, in one transaction with the positions of its sources.

The job works out in Spark which rows of the view change, and stages them (`stage`); so the server needs no algebra. The
fence (`jobs.fence`) makes a batch count once. It is compared with *every* source, with an empty range where one has no
changes: the rows follow from the state of all sources, and are wrong if one of them was at another position. Filling
(`view_fill`) writes staged rows too, in chunks that are numbered instead of fenced, to a view that was emptied first.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tailrace import failpoints, limits
from tailrace.access import Permission
from tailrace.command import Command
from tailrace.errors import Conflict, Invalid, TooLarge
from tailrace.jobs import batches, fence, partials, stage
from tailrace.jobs.commands import bodies, check_target, remove
from tailrace.jobs.job import positions
from tailrace.jobs.stage import STAGES, TABLE, Target
from tailrace.jobs.target import resolve, write
from tailrace.jobs.view import LIVE, ViewDefinition, changed, found
from tailrace.log import cold
from tailrace.log import log as logs
from tailrace.log.entry import LOGS
from tailrace.storage.engine import Tx
from tailrace.tables.change_stream import last_sequence
from tailrace.tables.definition import Definition
from tailrace.topics.topic import TOPIC_NAMES


class Applied(msgspec.Struct, frozen=True):
    """The result of a batch. `applied` is False if it was applied before."""

    applied: bool
    positions: dict[int, int]


class ViewCommand(Command[Any], frozen=True):
    """A command of a view's job."""

    permission = Permission.JOBS

    name: str

    def subjects(self) -> tuple[str, ...]:
        return (f"tables/{self.name}",)

    def heavy(self) -> bool:
        return True


class ApplyView(ViewCommand, frozen=True):
    """Write staged rows that follow from these ranges of the sources' logs, one for each: [p, p) where nothing
    changed."""

    history = True  # a view that is far behind may read cold entries

    ranges: dict[int, tuple[int, int]]
    stages: tuple[str, ...] = ()
    records: int = 0  # changes in the ranges
    form: str = ""  # of the partial aggregates in the stages

    def run(self, tx: Tx) -> Applied:
        job, view = found(tx, self.name)
        check_live(self.name, view)
        if not 0 <= self.records <= limits.POSITION_MAX:
            raise Invalid(f"{self.records} is not a number of changes")
        partials.check_form(self.name, view, self.form)
        followed = {source.log for source in view.sources}
        unknown, missing = set(self.ranges) - followed, followed - set(self.ranges)
        if unknown:
            raise Invalid(
                f"log {min(unknown)} is not a source of view {self.name!r}; describe the view to list its sources"
            )
        if missing:
            raise Invalid(
                f"a range of log {min(missing)} is missing, which is a source of view {self.name!r}; send [p, p) where "
                "nothing changed, where p is the position that the batch was computed from",
                code="INVALID_RANGE",
            )
        applied = fence.check(tx, self.name, self.ranges)
        if applied:
            check_topics(tx, self.name, view)
            for log, (start, end) in self.ranges.items():
                _check_end(tx, log, start, end)
            failpoints.hit("views.fenced")
            before = last_sequence(tx)
            rows = write_stages(tx, self.name, self.stages)
            if rows > limits.VIEW_ROWS_MAX:
                raise TooLarge(
                    f"{rows:,} rows are more than the {limits.VIEW_ROWS_MAX:,} of one transaction; send shorter ranges",
                    code="VIEW_BATCH_TOO_LARGE",
                )
            failpoints.hit("views.written")
            batches.note(tx, self.name, self.ranges, before, last_sequence(tx))
            changed(tx, job, view, rows=self.records)
        else:
            drop_stages(tx, self.name, self.stages)
        return Applied(applied, positions(tx, self.name))


class RewriteView(ViewCommand, frozen=True):
    """Write staged rows of a view that is computed again on an interval, whose positions stay as they are."""

    at: dict[int, int]  # the positions that the rows were computed from
    stages: tuple[str, ...] = ()

    def run(self, tx: Tx) -> bool:
        job, view = found(tx, self.name)
        check_live(self.name, view)
        stored = positions(tx, self.name)
        fits = stored == self.at
        if fits:
            write_stages(tx, self.name, self.stages)
            changed(tx, job, view)
        else:
            drop_stages(tx, self.name, self.stages)
        return fits


def write_stages(tx: Tx, name: str, stages: tuple[str, ...]) -> int:
    """Write the rows of these stages to the view's table, with their partial aggregates, and remove them; their
    number."""
    here = resolve(tx, Target(TABLE, name))
    if len(stages) > limits.STAGES_MAX or len(set(stages)) != len(stages):
        raise Invalid(f"stages names one twice, or more than {limits.STAGES_MAX}; name each once")
    staged = [stage.find(tx, each) for each in stages]
    for each in staged:
        check_target(each, here)
    assert isinstance(here.thing, Definition), "the target is a table"
    chunks = (body for each in staged for body in bodies(tx, each.id))
    write(tx, here, partials.written(tx, here.thing, chunks))
    remove(tx, staged)
    return sum(each.rows for each in staged)


def drop_stages(tx: Tx, name: str, stages: tuple[str, ...]) -> None:
    """Remove stages of the view that were not needed."""
    here = resolve(tx, Target(TABLE, name))
    there = [row for each in stages if (row := tx.get(STAGES, each)) is not None]
    remove(tx, [row for row in there if row.target == here.stored])


def check_live(name: str, view: ViewDefinition) -> None:
    """Raise unless the view is live: while it is being filled, its rows are of no one moment."""
    if view.phase != LIVE:
        raise Conflict(
            f"view {name!r} is {view.phase}, not {LIVE}: fill it first (tailrace pipeline view {name}), or try again "
            "when the job that fills it is done",
            code="VIEW_NOT_LIVE",
        )


def check_topics(tx: Tx, name: str, view: ViewDefinition) -> None:
    """Raise if a topic was dropped: the job reads it by its name, and may have read another one of that name."""
    for source in view.sources:
        if source.topic and ((there := tx.get(TOPIC_NAMES, source.table)) is None or there.topic != source.topic):
            raise Conflict(
                f"topic {source.table!r}, a source of view {name!r}, was dropped or recreated; start over",
                code="VIEW_STALE",
            )


def _check_end(tx: Tx, number: int, start: int, end: int) -> None:
    """Raise unless a range ends where an entry does: the view could not continue from another position."""
    log = tx.get(LOGS, number)
    if log is None or start == end:
        return
    if end >= log.start:
        fits = logs.boundary(tx, log, end)
    else:
        first = cold.earliest(tx, log)
        fits = end == first or (end > first and next(cold.entries(tx, log, end)).position == end)
    if not fits:
        raise Invalid(
            f"[{start}, {end}) of log {number} does not end where an entry does; the log ends at {log.next}",
            code="INVALID_RANGE",
        )
