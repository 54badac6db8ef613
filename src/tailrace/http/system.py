"""The state of the server, for operators: whether it is alive, whether it is ready, and its metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from tailrace import limits
from tailrace.access import Principal
from tailrace.database import Database
from tailrace.errors import Error, Forbidden, Unavailable
from tailrace.http import static
from tailrace.http.codec import JSON_FIELDS
from tailrace.http.message import Request, Response
from tailrace.metrics import BUCKETS, CUT, HISTOGRAMS, LABELLED, NAMES, Histogram
from tailrace.topics.queries import GroupInfo, ListGroups, ListPartitions, PartitionInfo

if TYPE_CHECKING:
    from tailrace.http.services import Services
from tailrace.http.submitted import Work

_INDEX: Final = b"""Tailrace: one ordered, durable log with several APIs.

PUT    /v1/stream/<path>                      create a stream
POST   /v1/stream/<path>                      append to it
GET    /v1/stream/<path>?offset=-1            read it
GET    /v1/stream/<path>?offset=now&live=sse  follow it
POST   /                                      the DynamoDB API: tables, for any AWS SDK
GET    /v1/tables/<name>/stream?offset=-1     read a table's changes; follow them like a stream
POST   /v1/api/sql                            SQL: {"sql": "SELECT name FROM system.tables"}
POST   /v1/topics/<name>                      publish a message to a topic
POST   /v1/api/topics/consume                 consume messages as a group; then /v1/api/topics/ack
GET    /v1/topics/<name>/0/stream?offset=-1   read a topic's partition; follow it like a stream
POST   /v1/api/auth/login                     log in
GET    /healthz  /readyz  /metrics            the state of the server
GET    /console                               the web console
GET    /openapi.json                          all endpoints
"""


class StatusResponse(msgspec.Struct):
    status: str
    reason: str | msgspec.UnsetType = msgspec.UNSET  # why it is not ready
    clock: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET  # a clock that has jumped


# -- handlers


def get_root(services: Services, request: Request, principal: Principal) -> Work:
    """The console for a browser, an index as text; for a client of DynamoDB, the health check of that API."""
    accepted = request.headers.get(b"accept", b"")
    if b"text/html" in accepted:
        return static.page(request)
    if request.method == b"HEAD" or b"text/plain" in accepted:
        return index()
    return services.dynamodb(request)


def get_health(services: Services, request: Request, principal: Principal) -> Response:
    return health()


def get_ready(services: Services, request: Request, principal: Principal) -> Work:
    response = ready(services.db)
    return _readable(services, response) if response.status == 200 and services.read_check.needed else response


async def _readable(services: Services, response: Response) -> Response:
    """The response, unless this server cannot read its database."""
    failure = await services.read_check.failure()
    return response if failure is None else _unready("failing", failure)


async def get_metrics(services: Services, request: Request, principal: Principal) -> Response:
    """All metrics, which name topics and groups: not for principals with a list of grants."""
    if principal.access is not None:
        raise Forbidden(
            f"{principal.name!r} may not read metrics: its grants are limited to some objects", code="NOT_GIVEN"
        )
    return await asyncio.to_thread(metrics, services.db)  # there may be many topics and groups


# -- responses


def index() -> Response:
    return Response(200, [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")], _INDEX)


def health() -> Response:
    """The process is alive and its loop turns."""
    return Response(200, JSON_FIELDS, b'{"status":"ok"}')


def ready(db: Database) -> Response:
    """Writes are taken. Reads may go on where they are not."""
    db.verify()
    if db.stopped is not None:
        return _unready("stopped", db.stopped)
    if db.trouble is not None:
        return _unready("failing", db.trouble)
    if not db.clock.lag_ms:
        return Response(200, JSON_FIELDS, b'{"status":"ready"}')
    return Response(200, JSON_FIELDS, msgspec.json.encode({"status": "ready", "clock": _clock(db)}))


def _clock(db: Database) -> dict[str, object]:
    """A clock that has jumped, and what that holds up."""
    ahead_s, jump = db.clock.lag_ms / 1000, db.clock.jump
    if jump is None:
        reason = "the clock has come back from a jump; timestamps stay ahead until the server is restarted"
        return {"ahead_s": ahead_s, "confirmed_in_s": None, "reason": reason}
    reason = "the clock has jumped ahead; deletion by age waits until the new time is confirmed"
    return {"ahead_s": ahead_s, "confirmed_in_s": jump.confirmed_in_ms / 1000, "reason": reason}


def _unready(status: str, reason: Error) -> Response:
    return Response(503, JSON_FIELDS, msgspec.json.encode({"status": status, "reason": str(reason)}))


class _Counters(Collector):
    """The counters, read when Prometheus asks."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def collect(self) -> Iterator[Metric]:
        found = self._db.sharing.total_metrics()
        for name, (kind, text) in NAMES.items():
            value = float(getattr(found, name))
            family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            yield family(f"tailrace_{name}", text, value=value)
        for name, text in HISTOGRAMS.items():
            counted: Histogram = getattr(found, name)
            yield HistogramMetricFamily(f"tailrace_{name}", text, _buckets(counted), counted.sum_s)
        yield from self._labelled()

    def _labelled(self) -> Iterator[Metric]:
        """Metrics of partitions and groups: the first of them, by name, and whether there are more."""
        try:
            partitions = self._db.execute(ListPartitions(limit=limits.METRIC_SERIES_MAX + 1))
            groups = self._db.execute(ListGroups(limit=limits.METRIC_SERIES_MAX + 1))
        except Unavailable:
            return  # PostgreSQL cannot be reached: what this process has counted is known all the same
        shown = {
            name: (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(
                f"tailrace_{name}", text, labels=labels
            )
            for name, (kind, text, labels) in LABELLED.items()
        }
        for partition in partitions[: limits.METRIC_SERIES_MAX]:
            for name, count in _of_partition(partition).items():
                shown[name].add_metric([partition.topic.name, str(partition.partition)], count)
        for group in groups[: limits.METRIC_SERIES_MAX]:
            for name, count in _of_group(group).items():
                shown[name].add_metric([group.topic.name, group.group, str(group.partition)], count)
        yield from shown.values()
        cut = max(len(partitions), len(groups)) > limits.METRIC_SERIES_MAX
        yield GaugeMetricFamily(f"tailrace_{CUT[0]}", CUT[1], value=cut)


def _of_partition(info: PartitionInfo) -> dict[str, int]:
    return {"topic_messages": info.next - info.start, "topic_bytes": info.bytes, "topic_appended": info.next}


def _of_group(info: GroupInfo) -> dict[str, int]:
    return {
        "group_lag": info.lag,
        "group_in_flight": info.in_flight,
        "group_delivered": info.delivered,
        "group_redelivered": info.redelivered,
        "group_lost": info.lost,
    }


def _buckets(counted: Histogram) -> list[tuple[str, float]]:
    """The counts as Prometheus has them: of all that is within each bound."""
    bounds = [*(str(bound) for bound in BUCKETS), "+Inf"]
    return list(zip(bounds, accumulate(counted.counts), strict=True))


def metrics(db: Database) -> Response:
    registry = CollectorRegistry()
    registry.register(_Counters(db))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return Response(200, [(b"content-type", CONTENT_TYPE_LATEST.encode())], generate_latest(registry))
