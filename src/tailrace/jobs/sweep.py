"""Housekeeping of jobs: a large commit that its client has left half done is continued; a stage that was not committed
is removed a day after its last chunk; the last batch of a streaming query is forgotten long after the query ended.

Due rows are found a page at a time and removed one by one: each step checks again before it acts.
"""

from __future__ import annotations

from tailrace import failpoints, limits
from tailrace.access import Permission
from tailrace.command import Command
from tailrace.housekeeping import DueWork, HousekeepingTask
from tailrace.jobs.commands import ContinueCommit, remove
from tailrace.jobs.stage import PENDING, PENDING_END, SINKS, STAGES, is_accepted, pending_commit
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.table import META


class ExpireStage(Command[bool], frozen=True):
    """Remove a stage that was not committed in time; True if it was removed."""

    freeing = True
    permission = Permission.ADMIN

    id: str

    def run(self, tx: Tx) -> bool:
        failpoints.hit("sweep.step")
        row = tx.get(STAGES, self.id)
        if row is None or not _is_over(row.at_ms, limits.STAGE_S, tx.settled_ms) or is_accepted(tx, row):
            return False
        remove(tx, [row])
        return True


class ForgetQuery(Command[bool], frozen=True):
    """Forget which batch of a query was written last, if that was long ago; True if it was."""

    freeing = True
    permission = Permission.ADMIN

    id: str

    def run(self, tx: Tx) -> bool:
        failpoints.hit("sweep.step")
        row = tx.get(SINKS, self.id)
        if row is None or not _is_over(row.at_ms, limits.SINK_S, tx.settled_ms):
            return False
        tx.delete(SINKS, self.id)
        return True


def _is_over(at_ms: int, kept_s: int, now_ms: int) -> bool:
    return at_ms + kept_s * 1000 <= now_ms


def _find_stages(reader: Reader, after: str | None) -> DueWork[bool]:
    stages = list(reader.scan(STAGES, after=after, limit=limits.SWEEP_STREAMS))
    due = [ExpireStage(row.id) for row in stages if _is_over(row.at_ms, limits.STAGE_S, reader.settled_ms)]
    return DueWork(due, stages[-1].id if len(stages) == limits.SWEEP_STREAMS else None)


def _find_queries(reader: Reader, after: str | None) -> DueWork[bool]:
    sinks = list(reader.scan(SINKS, after=after, limit=limits.SWEEP_STREAMS))
    due = [ForgetQuery(row.id) for row in sinks if _is_over(row.at_ms, limits.SINK_S, reader.settled_ms)]
    return DueWork(due, sinks[-1].id if len(sinks) == limits.SWEEP_STREAMS else None)


def _find_commits(reader: Reader, after: str | None) -> DueWork[bool]:
    idle = []
    for row in reader.scan(META, start=PENDING, before=PENDING_END, limit=limits.SWEEP_STREAMS):
        number = int(row.name.removeprefix(PENDING))
        pending = pending_commit(reader, number)
        if pending is not None and _is_over(pending.at_ms, limits.COMMIT_IDLE_S, reader.settled_ms):
            idle.append(ContinueCommit(number))
    return DueWork(idle)


TASKS = (
    HousekeepingTask("jobs.commits", _find_commits, finished=lambda finished: finished),
    HousekeepingTask("jobs.stages", _find_stages),
    HousekeepingTask("jobs.queries", _find_queries),
)
