"""What an operator asks a server: is it alive, is it ready, what has it done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from tailrace.database import Database
from tailrace.errors import Error
from tailrace.http.message import Headers, Response
from tailrace.metrics import NAMES

_JSON: Final[Headers] = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
_INDEX: Final = b"""Tailrace: one ordered, durable log with several front doors.

PUT    /v1/stream/<path>                      create a stream
POST   /v1/stream/<path>                      append to it
GET    /v1/stream/<path>?offset=-1            read it
GET    /v1/stream/<path>?offset=now&live=sse  follow it
POST   /                                      the DynamoDB API: tables, for any AWS SDK
GET    /v1/tables/<name>/stream?offset=-1     read a table's changes; follow them like a stream
GET    /healthz  /readyz  /metrics            how the server is
"""


def index() -> Response:
    return Response(200, [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")], _INDEX)


def health() -> Response:
    """The process is alive and its loop turns."""
    return Response(200, _JSON, b'{"status":"ok"}')


def ready(db: Database) -> Response:
    """Writes are taken. Reads may go on where they are not."""
    if db.stopped is not None:
        return _unready("stopped", db.stopped)
    if db.trouble is not None:
        return _unready("failing", db.trouble)
    return Response(200, _JSON, b'{"status":"ready"}')


def _unready(status: str, reason: Error) -> Response:
    return Response(503, _JSON, msgspec.json.encode({"status": status, "reason": str(reason)}))


class _Counters(Collector):
    """The counters, read when Prometheus asks."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def collect(self) -> Iterator[Metric]:
        self._db.metrics.queue = self._db.waiting
        for name, (kind, text) in NAMES.items():
            value = float(getattr(self._db.metrics, name))
            family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            yield family(f"tailrace_{name}", text, value=value)


def metrics(db: Database) -> Response:
    registry = CollectorRegistry()
    registry.register(_Counters(db))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return Response(200, [(b"content-type", CONTENT_TYPE_LATEST.encode())], generate_latest(registry))
