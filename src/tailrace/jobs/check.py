"""Consistency checks of jobs, stages and tiered logs, over a whole database."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace import limits
from tailrace.jobs.batches import VIEW_BATCHES
from tailrace.jobs.commands import OWN_PACE
from tailrace.jobs.job import JOB_POSITIONS, JOBS, PAUSED_JOBS, STATES
from tailrace.jobs.stage import KINDS, STAGE_CHUNKS, STAGES, StagedTotals, staged_totals
from tailrace.log.cold import COLD_RANGES, COLD_TABLES
from tailrace.log.entry import LOGS
from tailrace.storage.engine import Reader
from tailrace.storage.sql import size_of


def check_jobs(reader: Reader) -> list[str]:
    """The problems found in one view of the database."""
    return [*_check_positions(reader), *_check_stages(reader), *_check_tiers(reader)]


def _check_positions(reader: Reader) -> Iterator[str]:
    jobs = {job.name: job for job in reader.scan(JOBS)}
    for job in jobs.values():
        if job.state not in STATES:
            yield f"job {job.name!r}: its state is {job.state!r}"
    for pause in reader.scan(PAUSED_JOBS):
        if pause.name not in jobs:
            yield f"job {pause.name!r} is paused, and does not exist"
    for view in {view for (view,) in reader.values(VIEW_BATCHES, "view")} - jobs.keys():
        yield f"batches of view {view!r}, which does not exist"
    for row in list(reader.scan(JOB_POSITIONS)):
        if row.job not in jobs:
            yield f"positions of job {row.job!r}, which does not exist"
        elif not 0 <= row.position <= limits.POSITION_MAX:
            yield f"job {row.job!r}: is at {row.position} of log {row.log}"
        elif jobs[row.job].kind in OWN_PACE:  # others may follow the logs of another server
            log = reader.get(LOGS, row.log)
            if log is not None and row.position > log.next:
                yield f"job {row.job!r}: is at {row.position} of log {row.log}, which ends at {log.next}"


def _check_stages(reader: Reader) -> Iterator[str]:
    held: dict[str, tuple[int, int]] = {}  # chunks and bytes, by stage
    for stage, number, size in reader.values(STAGE_CHUNKS, f"stage, number, {size_of('body')}"):
        count, total = held.get(stage, (0, 0))
        if number != count:
            yield f"stage {stage}: chunk {number} where {count} is expected"
        held[stage] = (count + 1, total + size)
    counted: dict[str | None, StagedTotals] = {None: StagedTotals()}  # by principal, and of all
    for row in list(reader.scan(STAGES)):
        for by in (None, row.by):
            before = counted.get(by, StagedTotals())
            counted[by] = StagedTotals(before.stages + 1, before.bytes + row.bytes)
        count, total = held.pop(row.id, (0, 0))
        if not count or total != row.bytes:
            yield f"stage {row.id}: counts {row.bytes} bytes, there are {total} in {count} chunks"
        if row.target.split("/", 2)[0] not in KINDS.values() or row.rows < 0:
            yield f"stage {row.id}: has {row.rows} rows for {row.target!r}"
    for stage in held:
        yield f"chunks of stage {stage}, which does not exist"
    for by, is_ in counted.items():
        if is_ != (noted := staged_totals(reader, by)):
            whose = "all" if by is None else repr(by)
            yield f"stages of {whose}: {noted.stages} of {noted.bytes} bytes are counted, there are {is_}"


def _check_tiers(reader: Reader) -> Iterator[str]:
    tables = {place.name for place in reader.scan(COLD_TABLES)}
    for tier in list(reader.scan(COLD_RANGES)):
        log = reader.get(LOGS, tier.log)
        where = f"log {tier.log} in cold storage"
        if log is None:
            yield f"{where}: the log does not exist"
            continue
        if tier.place not in tables:
            yield f"{where}: its Delta table {tier.place!r} does not exist"
        if not tier.start <= tier.tiered <= log.next:
            yield f"{where}: [{tier.start}, {tier.tiered}) of a log that ends at {log.next}"
        if log.start > tier.tiered:
            yield f"{where}: tiered up to {tier.tiered}, the hot log begins at {log.start}: entries in between are lost"
