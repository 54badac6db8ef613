"""The status of the server as JSON, for a console: health, rates, latencies, sizes, groups that lag, and samples.

Like the metrics it names topics and groups, so it is not for principals with a list of grants. Nothing is scanned:
counts and groups are bounded.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import msgspec

from tailrace import __version__, build, limits
from tailrace.access import Permission, Principal
from tailrace.database import Database
from tailrace.errors import Forbidden
from tailrace.http.bulk import cold_url
from tailrace.http.codec import json_response, parameters_of, rfc3339
from tailrace.http.listings import whole_number
from tailrace.http.message import Request, Response
from tailrace.http.samples import RATES, DiskUse, disk_use, memory_bytes
from tailrace.jobs.identity import Identify
from tailrace.topics.overview import CountObjects, FindLag, LaggingGroup, ObjectCount

if TYPE_CHECKING:
    from tailrace.http.services import Services

SAMPLES_PARAMETERS: Final = ("since", "step_s")
STEP_S_MAX: Final = 24 * 3600
_AT_MS_MAX: Final = 253_402_300_799_000  # the end of the year 9999


class WritesResponse(msgspec.Struct):
    status: str  # ok, failing (they are still tried) or stopped
    error: str | None


class CommitLatencyResponse(msgspec.Struct):
    p50_ms: float | None
    p99_ms: float | None


class ConnectionsResponse(msgspec.Struct):
    open: int | None  # unknown under another server (ASGI)
    max: int
    live_readers: int
    consumers_waiting: int


class LaggingGroupResponse(msgspec.Struct):
    topic: str
    group_id: str
    lag: int
    in_flight: int
    redelivered: int
    lost: int
    oldest_at: str | None  # of the messages that it has not acknowledged


class GroupsResponse(msgspec.Struct):
    count: int
    more: bool
    lag: int
    in_flight: int
    worst: list[LaggingGroupResponse]


class ServerStatusResponse(msgspec.Struct):
    """What a console shows first."""

    version: str
    build: str
    database: str
    time: str
    uptime_s: float
    ready: bool
    writes: WritesResponse
    queue: int
    disk: DiskUse
    memory_bytes: int | None
    objects: dict[str, ObjectCount]
    connections: ConnectionsResponse
    commit: CommitLatencyResponse
    rates: dict[str, float]  # per second
    totals: dict[str, float]  # the counters that the rates are made of, since the start
    groups: GroupsResponse
    cold_url: str | None


class SamplesResponse(msgspec.Struct):
    """Columns of numbers, all of one length; null where a number is unknown."""

    step_s: int
    columns: dict[str, list[float | None]]


async def get(services: Services, request: Request, principal: Principal) -> Response:
    """The status now."""
    _check(principal, "read the status")
    return await asyncio.to_thread(_status, services)


async def get_samples(services: Services, request: Request, principal: Principal) -> Response:
    """The samples of the last 24 hours, or those after a time."""
    _check(principal, "read the samples")
    given = parameters_of(request)
    since_ms = whole_number(given, "since", 0, 0, _AT_MS_MAX)
    step_s = whole_number(given, "step_s", round(limits.SAMPLE_S), 1, STEP_S_MAX)
    samples = services.samples.copied()

    def work() -> Response:
        return json_response(SamplesResponse(step_s, samples.since(since_ms, step_s)))

    return await asyncio.to_thread(work)


def _check(principal: Principal, what: str) -> None:
    if Permission.READ not in principal.permissions:
        raise principal.refusal(Permission.READ, what)
    if principal.access is not None:
        raise Forbidden(f"{principal.name!r} may not {what}: its grants are limited to some objects", code="NOT_GIVEN")


def _status(services: Services) -> Response:
    db, samples = services.db, services.samples
    metrics, writes = db.metrics, _writes(db)
    lag = db.execute(FindLag())
    latencies = samples.latencies()
    return json_response(
        ServerStatusResponse(
            __version__,
            build.describe(),
            db.execute(Identify()),
            rfc3339(db.clock.now_ms()),
            round(time.monotonic() - samples.started_s, 3),
            writes.error is None,
            writes,
            db.waiting,
            disk_use(services.config.data),
            memory_bytes(),
            db.execute(CountObjects()),
            ConnectionsResponse(
                services.connections(),
                services.config.connections_max,
                metrics.live_readers,
                metrics.consumers_waiting,
            ),
            CommitLatencyResponse(latencies["commit_p50_ms"], latencies["commit_p99_ms"]),
            samples.rates(),
            {name: getattr(metrics, name) for name in RATES},
            GroupsResponse(lag.groups, lag.more, lag.lag, lag.in_flight, [_lagging(each) for each in lag.worst]),
            cold_url(db),
        )
    )


def _writes(db: Database) -> WritesResponse:
    db.verify()
    if db.stopped is not None:
        return WritesResponse("stopped", str(db.stopped))
    if db.trouble is not None:
        return WritesResponse("failing", str(db.trouble))
    return WritesResponse("ok", None)


def _lagging(group: LaggingGroup) -> LaggingGroupResponse:
    oldest = None if group.oldest_ms is None else rfc3339(group.oldest_ms)
    return LaggingGroupResponse(
        group.topic, group.group, group.lag, group.in_flight, group.redelivered, group.lost, oldest
    )
