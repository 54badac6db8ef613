"""Queries about jobs, stages and cold storage."""

from __future__ import annotations

import msgspec

from tailrace.access import Permission
from tailrace.command import Query
from tailrace.jobs.commands import Registered, registered
from tailrace.jobs.fence import CONSUMER
from tailrace.jobs.job import JOBS, PAUSED_JOBS, Job, JobPause, find, positions
from tailrace.jobs.stage import STAGES, Target
from tailrace.jobs.target import ResolvedTarget, resolve
from tailrace.log.cold import COLD_RANGES, COLD_TABLES, ColdRange, ColdTable
from tailrace.log.entry import LOGS
from tailrace.storage.engine import Reader
from tailrace.tables import change_stream

TIER = "tier"  # the kind of a job whose positions are the marks of a Delta table in cold storage


class JobStatus(msgspec.Struct, frozen=True):
    """A job, its positions by log, and its lag."""

    job: Job
    positions: dict[int, int]
    lag: int | None  # positions it is behind; None: its logs are not in this database
    pause: JobPause | None = None


class GetJob(Query[Registered], frozen=True):
    subject = ("jobs", "name")

    name: str

    def run(self, reader: Reader) -> Registered:
        return registered(reader, find(reader, self.name))


class ListJobs(Query[list[JobStatus]], frozen=True):
    """All jobs, by name."""

    def run(self, reader: Reader) -> list[JobStatus]:
        tiers: dict[str, dict[int, int]] = {}
        for tier in list(reader.scan(COLD_RANGES)):
            tiers.setdefault(tier.place, {})[tier.log] = tier.tiered
        pauses = {pause.name: pause for pause in reader.scan(PAUSED_JOBS)}
        return [_progress(reader, job, tiers, pauses.get(job.name)) for job in list(reader.scan(JOBS))]


def _progress(reader: Reader, job: Job, tiers: dict[str, dict[int, int]], pause: JobPause | None) -> JobStatus:
    at = positions(reader, job.name)
    if job.kind == TIER and not at:
        at = tiers.get(job.name.removeprefix(f"{TIER}/"), {})  # the job is named after its Delta table
    if job.kind == CONSUMER or not at:
        return JobStatus(job, at, None, pause)  # a consumer may follow the logs of another server
    lag = 0
    for log, position in at.items():
        row = reader.get(LOGS, log)
        lag += 0 if row is None else max(0, row.next - position)
    return JobStatus(job, at, lag, pause)


class FindStage(Query[Target | None], frozen=True):
    """The target of a stage; None: there is no such stage."""

    id: str

    def run(self, reader: Reader) -> Target | None:
        row = reader.get(STAGES, self.id)
        return None if row is None else Target(*row.subject.split("/", 1))


class FindTarget(Query[ResolvedTarget], frozen=True):
    """The target of rows to be staged."""

    permission = Permission.WRITE

    target: Target

    def subjects(self) -> tuple[str, ...]:
        return (self.target.subject,)

    def run(self, reader: Reader) -> ResolvedTarget:
        return resolve(reader, self.target)


class ColdLogInfo(msgspec.Struct, frozen=True):
    """A log with history in cold storage, and the change stream that it belongs to."""

    tier: ColdRange
    next: int  # the log's tail: untiered entries before it are only in the hot log
    table: str | None = None  # of a change stream, also a closed one
    label: str | None = None


class ColdTableInfo(msgspec.Struct, frozen=True):
    """A Delta table of cold storage, and the logs with history in it."""

    place: ColdTable
    logs: list[ColdLogInfo]


class ListCold(Query[list[ColdTableInfo]], frozen=True):
    """The Delta tables of cold storage."""

    def run(self, reader: Reader) -> list[ColdTableInfo]:
        tiers: dict[str, list[ColdLogInfo]] = {}
        for tier in list(reader.scan(COLD_RANGES)):
            tiers.setdefault(tier.place, []).append(_tier(reader, tier))
        return [ColdTableInfo(place, tiers.get(place.name, [])) for place in reader.scan(COLD_TABLES)]


def _tier(reader: Reader, tier: ColdRange) -> ColdLogInfo:
    log = reader.get(LOGS, tier.log)
    if log is None or not log.owner.startswith(change_stream.OWNER):
        return ColdLogInfo(tier, tier.tiered if log is None else log.next)
    table, _, label = log.owner.removeprefix(change_stream.OWNER).rpartition("/")
    return ColdLogInfo(tier, log.next, table, label)
