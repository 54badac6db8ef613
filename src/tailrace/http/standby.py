"""A server over PostgreSQL: it leads and serves, or waits until it does. Both on the same socket.

While it waits, every request but `/healthz` gets 503 with the address of the leader. A server that has lost its lease,
or was asked to step down, closes its database and waits again.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from tailrace.config import Config
from tailrace.errors import Invalid, Unavailable
from tailrace.http import errors
from tailrace.http.app import COMMON
from tailrace.http.codec import JSON_FIELDS
from tailrace.http.message import Request, Response
from tailrace.http.system import health
from tailrace.http.transport import BACKLOG, Server
from tailrace.leadership import Candidate

logger = logging.getLogger("tailrace.http")


class Serving(Protocol):
    """A server that leads."""

    async def stop(self) -> None: ...


class Standby:
    """Answers requests while another server leads; also what is known of a server before it serves: its URL."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.candidate: Candidate | None = None

    @property
    def url(self) -> str:
        return self._url

    def __call__(self, request: Request) -> Response:
        if request.path == b"/healthz":
            return health()
        candidate = self.candidate
        reason = Unavailable("the server is starting") if candidate is None else candidate.reason
        if request.path == b"/readyz":
            leader = None if candidate is None else candidate.leader
            body = {"status": "standby", "reason": str(reason), "leader": leader}
            return Response(503, JSON_FIELDS, msgspec.json.encode(body))
        return errors.response(Unavailable(str(reason), code=reason.code))


Begin = Callable[[Any, socket.socket], Awaitable[Serving]]  # serves the database of an engine on a socket


async def serve(
    config: Config,
    context: ssl.SSLContext | None,
    stop: asyncio.Event,
    on_up: Callable[[Standby], None],
    begin: Begin,
) -> None:
    """Wait to lead, and lead, until `stop`."""
    listening = bind(config)
    try:
        host, port = listening.getsockname()[:2]
        scheme = "http" if context is None else "https"
        standby = Standby(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")
        assert config.database is not None
        standby.candidate = candidate = Candidate(config.database, config.data, config.public_url or standby.url)
        try:
            await _serve(standby, candidate, listening, context, stop, on_up, begin)
        finally:
            candidate.close()
    finally:
        listening.close()


async def _serve(
    standby: Standby,
    candidate: Candidate,
    listening: socket.socket,
    context: ssl.SSLContext | None,
    stop: asyncio.Event,
    on_up: Callable[[Standby], None],
    begin: Begin,
) -> None:
    loop = asyncio.get_running_loop()
    up = False
    while not stop.is_set():
        engine = await asyncio.to_thread(candidate.attempt)
        if engine is None:
            waiting = Server(standby, common=COMMON)
            await waiting.start(sock=listening.dup(), ssl_context=context)
            logger.info("waiting to lead: %s", candidate.reason)
            if not up:
                up = True
                on_up(standby)
            engine = await _until_leading(candidate, stop)
            await waiting.stop()
            if engine is None:
                return
        ended = asyncio.Event()
        engine.lease.on_end = lambda ended=ended: _set(loop, ended)
        sock = listening.dup()
        try:
            serving = await begin(engine, sock)
        except Unavailable as error:  # the database went away again, and the engine is closed
            sock.close()
            logger.warning("cannot lead: %s", error)
            await asyncio.to_thread(candidate.wait)
            continue
        logger.info("leading the database, epoch %d", engine.lease.epoch)
        if not up:
            up = True
            on_up(standby)
        if engine.lease.lost is not None or engine.lease.asked:  # before anybody listened
            ended.set()
        await first(stop, ended)
        if engine.lease.asked:
            candidate.rest()
        if ended.is_set():
            logger.warning("leads no more: %s", engine.lease.lost or "asked to step down")
        await serving.stop()


async def _until_leading(candidate: Candidate, stop: asyncio.Event) -> Any:
    """The engine, or None if it is to stop first."""
    while not stop.is_set():
        await asyncio.to_thread(candidate.wait)
        engine = await asyncio.to_thread(candidate.attempt)
        if engine is not None:
            return engine
    return None


def _set(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    try:
        loop.call_soon_threadsafe(event.set)
    except RuntimeError:  # the loop is closed
        logger.debug("the lease ended after the server")


async def first(*events: asyncio.Event) -> None:
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def bind(config: Config) -> socket.socket:
    """The socket of the server, which it keeps whether it leads or waits."""
    return bind_to(config.host, config.port)


def bind_to(host: str, port: int) -> socket.socket:
    """A socket that listens."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise Invalid(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    found.setblocking(False)
    return found
