"""What can be asked of jobs, stages and cold storage."""

from __future__ import annotations

import msgspec

from tailrace.access import Permission
from tailrace.command import Query
from tailrace.jobs.commands import Registered
from tailrace.jobs.fence import CONSUMER
from tailrace.jobs.job import JOBS, Job, find, positions
from tailrace.jobs.stage import STAGES, Target
from tailrace.jobs.target import Found, found
from tailrace.log.cold import PLACES, TIERS, Place, Tier
from tailrace.log.entry import LOGS
from tailrace.storage.engine import Reader
from tailrace.tables import streams as changes

TIER = "tier"  # the kind of a job whose positions are the marks of a place in cold storage


class Progress(msgspec.Struct, frozen=True):
    """A job, how far it is by log, and by how much that is behind."""

    job: Job
    positions: dict[int, int]
    lag: int | None  # positions that it has not come to; None: its logs are not here


class GetJob(Query[Registered], frozen=True):
    subject = ("jobs", "name")

    name: str

    def run(self, reader: Reader) -> Registered:
        return Registered(find(reader, self.name), positions(reader, self.name))


class ListJobs(Query[list[Progress]], frozen=True):
    """All jobs, by name."""

    def run(self, reader: Reader) -> list[Progress]:
        tiers: dict[str, dict[int, int]] = {}
        for tier in list(reader.scan(TIERS)):
            tiers.setdefault(tier.place, {})[tier.log] = tier.tiered
        return [_progress(reader, job, tiers) for job in list(reader.scan(JOBS))]


def _progress(reader: Reader, job: Job, tiers: dict[str, dict[int, int]]) -> Progress:
    at = positions(reader, job.name)
    if job.kind == TIER and not at:
        at = tiers.get(job.name.removeprefix(f"{TIER}/"), {})  # the job of a place is named after it
    if job.kind == CONSUMER or not at:
        return Progress(job, at, None)  # a consumer may follow the logs of another server
    lag = 0
    for log, position in at.items():
        row = reader.get(LOGS, log)
        lag += 0 if row is None else max(0, row.next - position)
    return Progress(job, at, lag)


class FindStage(Query[Target | None], frozen=True):
    """What a stage is for; None: there is no such stage."""

    id: str

    def run(self, reader: Reader) -> Target | None:
        row = reader.get(STAGES, self.id)
        return None if row is None else Target(*row.subject.split("/", 1))


class FindTarget(Query[Found], frozen=True):
    """What rows are to be staged for."""

    permission = Permission.WRITE

    target: Target

    def subjects(self) -> tuple[str, ...]:
        return (self.target.subject,)

    def run(self, reader: Reader) -> Found:
        return found(reader, self.target)


class TierInfo(msgspec.Struct, frozen=True):
    """A log whose history lies in cold storage, and whose it is."""

    tier: Tier
    next: int  # the log's tail: what is before it and not tiered yet is hot alone
    table: str | None = None  # of a change stream, also one that is closed
    label: str | None = None


class PlaceInfo(msgspec.Struct, frozen=True):
    """A place in cold storage, and the logs whose history lies there."""

    place: Place
    logs: list[TierInfo]


class ListCold(Query[list[PlaceInfo]], frozen=True):
    """What is in cold storage."""

    def run(self, reader: Reader) -> list[PlaceInfo]:
        tiers: dict[str, list[TierInfo]] = {}
        for tier in list(reader.scan(TIERS)):
            tiers.setdefault(tier.place, []).append(_tier(reader, tier))
        return [PlaceInfo(place, tiers.get(place.name, [])) for place in reader.scan(PLACES)]


def _tier(reader: Reader, tier: Tier) -> TierInfo:
    log = reader.get(LOGS, tier.log)
    if log is None or not log.owner.startswith(changes.OWNER):
        return TierInfo(tier, tier.tiered if log is None else log.next)
    table, _, label = log.owner.removeprefix(changes.OWNER).rpartition("/")
    return TierInfo(tier, log.next, table, label)
