"""Stages that nobody committed go a day after their last chunk; queries that are long over are forgotten.

Both are looked for a page at a time, for there may be many, and removed one by one: each step looks again.
"""

from __future__ import annotations

import msgspec

from tailrace import failpoints, limits
from tailrace.access import Permission
from tailrace.command import Command, Query
from tailrace.jobs.commands import remove
from tailrace.jobs.stage import SINKS, STAGES
from tailrace.storage.engine import Reader, Tx


class Place(msgspec.Struct, frozen=True):
    """How far was looked."""

    stage: str | None = None
    sink: str | None = None


class Due(msgspec.Struct, frozen=True):
    """What is to be removed, found by looking at committed state; each step looks again before it acts."""

    steps: list[ExpireStage | ForgetQuery]
    looked_at: Place | None  # None: all was looked at

    def __bool__(self) -> bool:
        return bool(self.steps)


class FindDue(Query[Due], frozen=True):
    """What there is to remove, in some of the stages and queries `after` a place: looking at all takes long."""

    after: Place | None = None

    def run(self, reader: Reader) -> Due:
        after = self.after or Place()
        page = limits.SWEEP_STREAMS
        steps: list[ExpireStage | ForgetQuery] = []
        # A place with a sink in it is one where the stages were all looked at.
        stages = [] if after.sink is not None else list(reader.scan(STAGES, after=after.stage, limit=page))
        steps += [ExpireStage(row.id) for row in stages if _over(row.at_ms, limits.STAGE_S, reader.settled_ms)]
        if len(stages) == page:
            return Due(steps, Place(stage=stages[-1].id))
        sinks = list(reader.scan(SINKS, after=after.sink, limit=page))
        steps += [ForgetQuery(row.id) for row in sinks if _over(row.at_ms, limits.SINK_S, reader.settled_ms)]
        return Due(steps, Place(sink=sinks[-1].id) if len(sinks) == page else None)


class ExpireStage(Command[bool], frozen=True):
    """Remove a stage that was not committed in time; whether it was removed."""

    freeing = True
    permission = Permission.ADMIN

    id: str

    def run(self, tx: Tx) -> bool:
        failpoints.hit("sweep.step")
        row = tx.get(STAGES, self.id)
        if row is None or not _over(row.at_ms, limits.STAGE_S, tx.settled_ms):
            return False
        remove(tx, [row])
        return True


class ForgetQuery(Command[bool], frozen=True):
    """Forget which batch of a query was written last, if that was long ago; whether it was."""

    freeing = True
    permission = Permission.ADMIN

    id: str

    def run(self, tx: Tx) -> bool:
        failpoints.hit("sweep.step")
        row = tx.get(SINKS, self.id)
        if row is None or not _over(row.at_ms, limits.SINK_S, tx.settled_ms):
            return False
        tx.delete(SINKS, self.id)
        return True


def _over(at_ms: int, kept_s: int, now_ms: int) -> bool:
    return at_ms + kept_s * 1000 <= now_ms
