"""The state that the connections of one server share: limits, counters, the coarse clock, the open connections."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from tailrace import limits as named
from tailrace.http.heads import RequestLines
from tailrace.http.submitted import Handler
from tailrace.http.unsent import Budget
from tailrace.metrics import Metrics


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """The limits of `tailrace.limits` that the transport keeps, so that tests can have smaller ones."""

    head_bytes_max: int = named.HEAD_BYTES_MAX
    headers_max: int = named.HEADERS_MAX
    body_bytes_max: int = named.BODY_BYTES_MAX
    inbound_bytes_max: int = named.INBOUND_BYTES_MAX
    head_timeout_s: float = named.HEAD_TIMEOUT_S
    body_timeout_s: float = named.BODY_TIMEOUT_S
    body_rate_min: int = named.BODY_RATE_MIN
    idle_timeout_s: float = named.IDLE_TIMEOUT_S
    handshake_timeout_s: float = named.HEAD_TIMEOUT_S
    connections_max: int = named.CONNECTIONS_MAX
    pipeline_max: int = named.PIPELINE_MAX
    linger_s: float = named.LINGER_S
    reader_buffer_max: int = named.READER_BUFFER_MAX
    unsent_bytes_max: int = named.UNSENT_BYTES_MAX
    unsent_connection_max: int = named.UNSENT_CONNECTION_MAX
    shutdown_s: float = named.SHUTDOWN_S
    tick_s: float = 0.5  # how exact the time-outs are


class Watched(Protocol):
    """A connection, as the server's clock and its stopping see it."""

    def check(self, now: float) -> None:
        """Check the deadlines that have passed at `now`."""

    def wind_up(self) -> None:
        """Take no new request, end the live answer, close when nothing is owed."""

    def give_up_reads(self) -> None:
        """Wait no longer for parked reads; they are answered that the server stops."""

    def abort(self) -> None:
        """End now, whatever is owed."""


class Shared:
    """The state that the connections of one server share."""

    __slots__ = (
        "connections",
        "emptied",
        "handler",
        "held_bytes",
        "limits",
        "lines",
        "loop",
        "now",
        "stamp",
        "stats",
        "stopping",
        "unsent",
        "write_buffer_high",
    )

    def __init__(self, handler: Handler, limits: TransportLimits, stats: Metrics) -> None:
        self.handler = handler
        self.limits = limits
        self.stats = stats
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.now = self.loop.time()  # as of the last tick
        self.lines: RequestLines = {}  # that were parsed; see `heads`
        self.stamp = b""  # the fields that every answer carries, with the date
        self.connections: set[Watched] = set()
        self.held_bytes = 0  # of bodies that wait for their rest, or for their turn
        self.unsent = Budget(limits.unsent_bytes_max, stats)
        self.write_buffer_high = max(limits.reader_buffer_max // 4, 1)  # bytes, with which a transport pauses writing
        self.stopping = False
        self.emptied: asyncio.Future[None] | None = None  # set when the last connection of a stopping server ends
