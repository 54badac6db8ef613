"""A server of a cluster: it serves all requests, whoever leads. Commands go to the leader, queries to PostgreSQL.

Theory of operation
-------------------
Its database is that of a worker (`Database` with a forwarder), over read connections to PostgreSQL. The leader is found
in the database by `Leading`, which may also be the leader itself; then the link is a socket within this process. So
nothing about requests changes when the leader does: commands that were not answered are kept, and sent to the next one.

Until the first leader has answered, requests get 503.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from tailrace import __version__, limits
from tailrace.bus.asking import ListServers, ServerList
from tailrace.bus.forwarder import Forwarder
from tailrace.bus.link import BusLink
from tailrace.bus.secret import ClusterTls, read_secrets
from tailrace.bus.totals import MetricTotals, counts_of, metrics_of
from tailrace.config import Config, address_of
from tailrace.database import Database, open_follower
from tailrace.errors import Error, Invalid, Unavailable
from tailrace.http.app import COMMON, App
from tailrace.http.cluster import ClusterResponse, ClusterServerResponse
from tailrace.http.leading import Leading
from tailrace.http.shared import TransportLimits
from tailrace.http.standby import Standby, bind, bind_to, first
from tailrace.http.transport import Server
from tailrace.leadership import Candidate, step_down
from tailrace.metrics import Metrics

_TERM: Final = "term"  # what the leader of this process counts as, in the totals
logger = logging.getLogger("tailrace.cluster")


class Member:
    """This server, as one of a cluster."""

    def __init__(self, config: Config, context: ssl.SSLContext | None, url: str, bus: socket.socket) -> None:
        """`url`: where it listens. `bus`: the socket of the bus."""
        cluster = config.cluster
        assert config.database is not None and cluster.listen is not None and cluster.secret_file is not None
        self._config = config
        self._context = context
        self._tls = ClusterTls(read_secrets(cluster.secret_file))
        self.url = cluster.advertise_url or config.public_url or url
        host = address_of(cluster.listen)[0]
        self._bus = cluster.advertise or f"{f'[{host}]' if ':' in host else host}:{bus.getsockname()[1]}"
        self._loop = asyncio.get_running_loop()
        self._look = asyncio.Event()  # the leader was looked at again
        self.candidate = Candidate(config.database, config.data, self.url, self._bus)
        self.leading = Leading(config, self.candidate, bus, self._tls.server, self.url, self._looked)
        self._db: Database | None = None
        self._totals: MetricTotals | None = None
        self._writer: Metrics | None = None  # what the leader of this process has counted, at the last look
        self.broken = asyncio.Event()  # it cannot lead any more

    # -- the leader

    def _looked(self) -> None:
        """Called by the other thread."""
        try:
            self._loop.call_soon_threadsafe(self._compare)
        except RuntimeError:  # the loop is closed
            logger.debug("the leader was looked at after the end")

    def _compare(self) -> None:
        self._look.set()
        self._look = asyncio.Event()
        if self.leading.ended.is_set():
            self.broken.set()
        state, db = self.candidate.state, self._db
        if db is not None and db.forwarder is not None:
            if state is not None:
                db.forwarder.dropped(state.server, state.epoch)
            db.metrics.leading = int(self.leading.epoch > 0)
            db.metrics.epoch = self.leading.epoch or (0 if state is None else state.epoch)

    async def connect(self, loop: asyncio.AbstractEventLoop, protocol: Callable[[], BusLink]) -> None:
        """Connect to the leader, wherever it is."""
        sock = self.leading.local()
        if sock is not None:
            await loop.create_unix_connection(protocol, sock=sock)
            return
        state = self.candidate.state
        if state is None or state.vacant or state.bus in ("", self._bus):
            await self._looked_again()
            raise OSError("no other server of the cluster leads")
        trying = loop.create_task(self._connect_to(loop, protocol, *address_of(state.bus)))
        try:
            while not trying.done():
                await asyncio.wait((trying,), timeout=limits.STANDBY_LOOK_S)
                now = self.candidate.state
                if now is not None and now.epoch != state.epoch and not trying.done():
                    raise OSError("another server leads by now")
        finally:
            trying.cancel()
        await trying

    async def _connect_to(
        self, loop: asyncio.AbstractEventLoop, protocol: Callable[[], BusLink], host: str, port: int
    ) -> None:
        async with asyncio.timeout(limits.BUS_HANDSHAKE_S):
            await loop.create_connection(
                protocol, host, port, ssl=self._tls.client, server_hostname="",
                ssl_handshake_timeout=limits.BUS_HANDSHAKE_S,
            )  # fmt: skip

    async def _looked_again(self) -> None:
        try:
            await asyncio.wait_for(self._look.wait(), limits.STANDBY_LOOK_S)
        except TimeoutError:
            pass

    # -- serving

    async def open(self, stop: asyncio.Event) -> Database | None:
        """The database, as soon as a leader has answered; None if it is to stop first."""
        while not stop.is_set():
            self.check()
            try:
                db = await asyncio.to_thread(
                    open_follower, self._config, self.connect, f"cluster-{os.urandom(8).hex()}", __version__, self.url
                )
            except Unavailable as error:
                self.candidate.reason = error
            except Invalid as error:
                if error.code not in ("DATABASE_TOO_OLD", "NO_DATABASE"):  # a leader makes one, or migrates it
                    raise
            else:
                return await self._welcomed(db, stop)
            await self._looked_again()
        return None

    def check(self) -> None:
        """Raise what has ended the other thread."""
        if self.leading.failure is not None:
            raise self.leading.failure

    async def _welcomed(self, db: Database, stop: asyncio.Event) -> Database | None:
        assert db.forwarder is not None
        self._db = db
        db.forwarder.totals = self.metrics
        self._totals = MetricTotals(db.metrics)
        self._compare()
        db.attach(self._loop)
        try:
            while not db.forwarder.welcomed.is_set():
                self.check()
                if stop.is_set():
                    await db.aclose()
                    return None
                await asyncio.sleep(0.005)
        except BaseException:
            await db.aclose()
            raise
        return db

    # -- for operators

    def metrics(self) -> Metrics:
        """What this server has counted, as a follower and as a leader. From any thread."""
        assert self._db is not None and self._totals is not None
        writer = self.leading.metrics
        if self._writer is not None and writer is not self._writer:  # its term has ended
            self._totals.count(_TERM, counts_of(self._writer))
            self._totals.ended(_TERM)
        self._writer = writer
        if writer is not None:
            self._totals.count(_TERM, counts_of(writer))
        found = metrics_of(self._totals.sum())
        found.workers = 0 if writer is None else writer.workers
        return found

    async def status(self) -> ClusterResponse:
        """The servers of the cluster, as the leader knows them."""
        db, state = self._db, self.candidate.state
        assert db is not None and db.forwarder is not None
        if db.forwarder.connected:
            try:
                return self._described(await self._loop.create_task(self._servers(db.forwarder)))
            except (Error, TimeoutError) as error:
                logger.debug("the leader does not list the servers: %s", error)
        alone = [ClusterServerResponse(self.url, self.url, "follower", None, 0.0)]
        if state is None:
            return ClusterResponse(0, 0, False, None, self.url, alone)
        leader = None if state.vacant else state.address  # as the database knows it: it may not have taken over yet
        return ClusterResponse(state.epoch, state.batch, False, leader, self.url, alone)

    async def _servers(self, forwarder: Forwarder) -> ServerList:
        async with asyncio.timeout(limits.BUS_TTL_S):
            found: ServerList = await forwarder.ask(ListServers())
            return found

    def _described(self, found: ServerList) -> ClusterResponse:
        servers = [ClusterServerResponse(found.url, found.url, "leader", 0.0, 0.0)]
        servers += [ClusterServerResponse(of.url, of.url, "follower", of.lag_s, of.seen_s) for of in found.servers]
        return ClusterResponse(found.epoch, found.batch, True, found.url, self.url, servers)

    async def step_down(self) -> ClusterResponse:
        """Let another server lead; returns when one does."""
        assert self._config.database is not None
        found = await asyncio.to_thread(step_down, self._config.database, limits.STEP_DOWN_S)
        until_s = self._loop.time() + limits.STEP_DOWN_S
        while True:  # it has the lease, and opens the database
            status = await self.status()
            if status.leading and status.epoch >= found.epoch:
                return status
            if self._loop.time() > until_s:
                raise Unavailable(
                    f"{found.leader or 'another server'} has taken over, and does not answer yet; "
                    "see its log, and `tailrace cluster status`",
                    code="NO_TAKE_OVER",
                )
            await asyncio.sleep(limits.STANDBY_LOOK_S)


async def serve(
    config: Config, context: ssl.SSLContext | None, stop: asyncio.Event, on_up: Callable[[Standby], None]
) -> None:
    """Serve as one of a cluster, until `stop`."""
    assert config.cluster.listen is not None
    listening = bind(config)
    bus = bind_to(*address_of(config.cluster.listen))
    try:
        host, port = listening.getsockname()[:2]
        scheme = "http" if context is None else "https"
        standby = Standby(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")
        member = Member(config, context, standby.url, bus)
        standby.candidate = member.candidate
        waiting = Server(standby, common=COMMON)
        await waiting.start(sock=listening.dup(), ssl_context=context)
        member.leading.start()
        try:
            on_up(standby)
            db = await member.open(stop)
            if db is not None:
                await _serve(member, db, config, context, listening, waiting, stop)
            else:
                await waiting.stop()
        finally:
            await asyncio.to_thread(member.leading.stop)
    finally:
        listening.close()
        bus.close()


async def _serve(
    member: Member,
    db: Database,
    config: Config,
    context: ssl.SSLContext | None,
    listening: socket.socket,
    waiting: Server,
    stop: asyncio.Event,
) -> None:
    from tailrace.http.serve import Running  # it needs this module

    try:
        app = App(db, config)
        app.services.cluster = member
        await app.start()
    except BaseException:
        await db.aclose()
        raise
    bounds = TransportLimits(
        body_bytes_max=config.body_bytes_max,
        connections_max=config.connections_max,
        unsent_bytes_max=config.unsent_bytes_max,
    )
    server = Server(app, common=COMMON, limits=bounds, stats=db.metrics)
    app.services.connections = lambda: server.connections
    await server.start(sock=listening.dup(), ssl_context=context)
    await waiting.stop()
    running: Any = Running(db, app, server, config)
    await first(stop, member.broken)
    await running.stop()
    member.check()
