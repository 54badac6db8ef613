"""Our own HTTP/1.1 server: asyncio protocols over httptools, at its best on uvloop.

`Server` listens, keeps the one clock tick that all time-outs of all connections are compared at, and ends
everything in order. The rule: `stop` returns within `shutdown_s`, with no connection left.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from typing import Final

from tailrace.http import wire
from tailrace.http.connection import Connection
from tailrace.http.message import Headers
from tailrace.http.shared import Shared, TransportLimits, Watched
from tailrace.http.submitted import Handler
from tailrace.metrics import Metrics

__all__ = ["Server", "TransportLimits"]

BACKLOG: Final = 4096  # connections the kernel keeps for us while the loop is busy; it cuts this to somaxconn


class Server:
    """Serves one handler. A coroutine of the handler is stepped by hand (see `drive`), not in a task."""

    def __init__(
        self,
        handler: Handler,
        *,
        common: Headers | None = None,
        limits: TransportLimits | None = None,
        stats: Metrics | None = None,
    ) -> None:
        self.limits = limits or TransportLimits()
        self.stats = stats or Metrics()
        self._handler = handler
        self._common = wire.encode_fields(common or [])
        self._shared: Shared | None = None
        self._listener: asyncio.Server | None = None
        self._tick_timer: asyncio.TimerHandle | None = None
        self._stamped_at_s = 0

    async def start(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        ssl_context: ssl.SSLContext | None = None,
        sock: socket.socket | None = None,
        reuse_port: bool = False,
        backlog: int = BACKLOG,
    ) -> None:
        """Listen on host and port, or on a socket already bound."""
        assert self._shared is None, "a server starts once"
        self._shared = shared = Shared(self._handler, self.limits, self.stats)
        self._tick()
        handshake_timeout_s = self.limits.handshake_timeout_s if ssl_context is not None else None
        if sock is not None:
            self._listener = await shared.loop.create_server(
                lambda: Connection(shared),
                sock=sock,
                ssl=ssl_context,
                ssl_handshake_timeout=handshake_timeout_s,
                backlog=backlog,
            )
            return
        self._listener = await shared.loop.create_server(
            lambda: Connection(shared),
            host,
            port,
            ssl=ssl_context,
            ssl_handshake_timeout=handshake_timeout_s,
            backlog=backlog,
            reuse_port=reuse_port or None,
        )

    @property
    def address(self) -> tuple[str, int]:
        """Host and port as bound; port 0 has become a real one."""
        assert self._listener is not None, "the server has not started"
        name = self._listener.sockets[0].getsockname()
        return str(name[0]), int(name[1])

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return 0 if self._shared is None else len(self._shared.connections)

    async def stop(self) -> None:
        """Answer what is under way, end live answers cleanly, close; what is left after shutdown_s is cut off."""
        shared, listener = self._shared, self._listener
        if shared is None or listener is None or shared.stopping:
            return
        shared.stopping = True
        shared.emptied = shared.loop.create_future()
        listener.close()
        # Time for handlers to answer by themselves, as much for reads that are cancelled, a moment for connections that
        # are cut; together a tenth less than the limit.
        patience_s = self.limits.shutdown_s * 0.4
        self._call_all(lambda connection: connection.wind_up())
        if not await self._emptied_within(patience_s):
            self._call_all(lambda connection: connection.give_up_reads())
            if not await self._emptied_within(patience_s):
                self._call_all(lambda connection: connection.abort())
                await self._emptied_within(self.limits.shutdown_s * 0.1)
        if self._tick_timer is not None:
            self._tick_timer.cancel()

    def _call_all(self, order: Callable[[Watched], None]) -> None:
        """Call a method of every connection, outside this task: coroutines are stepped by it."""
        assert self._shared is not None
        for connection in list(self._shared.connections):
            self._shared.loop.call_soon(order, connection)

    async def _emptied_within(self, seconds: float) -> bool:
        shared = self._shared
        assert shared is not None and shared.emptied is not None
        if shared.connections:
            await asyncio.wait((shared.emptied,), timeout=seconds)
        return not shared.connections

    def _tick(self) -> None:
        shared = self._shared
        assert shared is not None
        shared.now = now = shared.loop.time()
        at_s = int(time.time())
        if at_s != self._stamped_at_s:
            self._stamped_at_s = at_s
            shared.stamp = wire.encode_date(at_s) + self._common
        for connection in list(shared.connections):
            connection.check(now)
        self._tick_timer = shared.loop.call_later(self.limits.tick_s, self._tick)
