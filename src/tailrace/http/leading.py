"""The part of a server of a cluster that leads, or waits to: on a thread and an event loop of its own.

While another server leads, it looks at the leader's row again and again. When there is no leader it takes over: it
opens the database for writing, runs commands, housekeeping and webhooks, and serves the bus to all servers, the one in
its own process included. It has a loop and threads of its own, because requests of its own process wait for it: they
could otherwise take all threads that it needs to answer them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any

from tailrace import __version__, limits
from tailrace.bus.link import BusLink
from tailrace.bus.writer import BusServer
from tailrace.config import Config
from tailrace.database import Database, open_configured
from tailrace.errors import Error, Unavailable
from tailrace.http.standby import first
from tailrace.http.webhooks import Dispatcher
from tailrace.leadership import Candidate
from tailrace.metrics import Metrics

logger = logging.getLogger("tailrace.cluster")


class Leading:
    """Leads when no other server does. Its attributes may be read from any thread."""

    def __init__(
        self,
        config: Config,
        candidate: Candidate,
        listening: socket.socket,
        tls: ssl.SSLContext,
        url: str,
        changed: Callable[[], None],
    ) -> None:
        """`listening`: the socket of the bus. `changed` is called, on the thread of this, when the leader was looked
        at."""
        self._config = config
        self._candidate = candidate
        self._listening = listening
        self._tls = tls
        self._url = url
        self._changed = changed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._protocol: Callable[[], BusLink] | None = None  # of the bus, while it leads
        self._handshakes: dict[asyncio.Task[Any], None] = {}  # connections that have not proved the secret yet
        self._thread = threading.Thread(target=self._run, name="tailrace-leading", daemon=True)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._up = threading.Event()
        self.failure: BaseException | None = None  # that has ended it
        self.ended = threading.Event()
        self.bus: BusServer | None = None
        self.metrics: Metrics | None = None  # of the database that it has open for writing
        self.epoch = 0  # 0: it does not lead

    # -- for other threads

    def start(self) -> None:
        self._thread.start()
        self._up.wait()

    def stop(self) -> None:
        """Hand over, if it leads, and end. Waits for it."""
        if self._loop is not None and self._stop is not None:
            try:
                self._loop.call_soon_threadsafe(self._stop.set)
            except RuntimeError:
                logger.debug("it has ended already")
        self._thread.join()

    def local(self) -> socket.socket | None:
        """A connection to the bus of this process; None unless it leads."""
        loop = self._loop
        if self._protocol is None or loop is None:
            return None
        here, there = socket.socketpair()
        here.setblocking(False)
        there.setblocking(False)
        try:
            loop.call_soon_threadsafe(self._take_local, there)
        except RuntimeError:  # it has ended
            here.close()
            there.close()
            return None
        return here

    # -- the thread

    def _run(self) -> None:
        import uvloop

        try:
            uvloop.run(self._main())
        except BaseException as error:
            self.failure = error
            if not isinstance(error, Error):
                logger.critical("this server can lead no more", exc_info=error)
        finally:
            self.ended.set()
            self._up.set()
            self._changed()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._up.set()
        accepting = self._loop.create_task(self._accept_all(), name="tailrace-bus-accept")
        try:
            while not self._stop.is_set():
                engine = await asyncio.to_thread(self._candidate.attempt)
                self._changed()
                if engine is not None:
                    await self._lead(engine)
                else:
                    await _within(self._stop, limits.STANDBY_LOOK_S)
        finally:
            accepting.cancel()
            await asyncio.to_thread(self._candidate.close)

    async def _lead(self, engine: Any) -> None:
        """Lead until the lease is lost, or this server is asked to step down or to stop."""
        loop, stop = self._loop, self._stop
        assert loop is not None and stop is not None
        ended = asyncio.Event()
        engine.lease.on_end = lambda: _set(loop, ended)
        try:
            db = await asyncio.to_thread(open_configured, self._config, engine=engine)
        except Unavailable as error:  # the database went away again, and the engine is closed
            logger.warning("cannot lead: %s", error)
            await asyncio.to_thread(engine.close)
            await _within(stop, limits.STANDBY_LOOK_S)
            return
        try:
            await self._write(db, engine.lease, ended, stop)
        except Unavailable as error:
            logger.warning("cannot lead: %s", error)
        finally:
            self.epoch, self.bus, self._protocol = 0, None, None
            await db.aclose()
            self.metrics = None
            if engine.lease.asked:
                self._candidate.rest()
            self._changed()

    async def _write(self, db: Database, lease: Any, ended: asyncio.Event, stop: asyncio.Event) -> None:
        db.attach(asyncio.get_running_loop())
        throttle = db.sharing.login_throttle()
        bus = BusServer(db, throttle, __version__, replaces=True, term=lease, url=self._url)
        dispatcher = Dispatcher(db, self._config)
        await dispatcher.start()
        try:
            await bus.start(self._serve_bus)
            self.metrics, self.bus, self.epoch = db.metrics, bus, lease.epoch
            logger.info("leading the database, epoch %d", lease.epoch)
            self._changed()
            if lease.lost is not None or lease.asked:  # before anybody listened
                ended.set()
            while db.stopped is None and not (stop.is_set() or ended.is_set()):
                await _any_within(limits.BUS_BEAT_S, stop, ended)
            if lease.lost is None and db.stopped is None:
                logger.info("handing over to another server")
                transfers = asyncio.create_task(asyncio.to_thread(db.transfers.stop))  # may wait for a bucket
                await dispatcher.stop()  # a delivery may take long, and commands need not wait for it
                if not await bus.drain(limits.STEP_DOWN_DRAIN_S):
                    logger.warning("some commands were not finished before the hand-over")
                await transfers
            else:
                logger.warning("leads no more: %s", lease.lost or db.stopped)
                bus.cut_all()
                if lease.lost is None:  # another server may be able to write
                    self._candidate.rest()
        finally:
            await bus.stop()
            await dispatcher.stop(grace_s=0)

    # -- connections to the bus

    async def _serve_bus(self, protocol: Callable[[], BusLink]) -> _Listener:
        self._protocol = protocol
        return _Listener(self._refuse)

    def _refuse(self) -> None:
        self._protocol = None

    async def _accept_all(self) -> None:
        """Take connections for as long as this server runs. While it does not lead they are closed at once."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(self._listening)
            except OSError as error:  # for example: too many open files
                logger.warning("the bus cannot take a connection: %s", error)
                await asyncio.sleep(limits.BUS_BEAT_S)
                continue
            protocol = self._protocol
            if protocol is None:
                sock.close()
                continue
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if len(self._handshakes) >= limits.BUS_HANDSHAKES_MAX:  # who has the secret is done in a moment
                oldest = next(iter(self._handshakes))
                oldest.cancel()
                self._shaken(oldest)
            task = self._begin(self._shake_hands(sock, protocol))
            self._handshakes[task] = None
            task.add_done_callback(self._shaken)

    def _shaken(self, task: asyncio.Task[Any]) -> None:
        self._handshakes.pop(task, None)

    async def _shake_hands(self, sock: socket.socket, protocol: Callable[[], BusLink]) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                protocol, sock, ssl=self._tls, ssl_handshake_timeout=limits.BUS_HANDSHAKE_S
            )
        except (OSError, TimeoutError, asyncio.CancelledError) as error:
            logger.debug("a connection to the bus is refused: %s", str(error) or "too many")
            sock.close()

    def _take_local(self, sock: socket.socket) -> None:
        protocol = self._protocol
        if protocol is None:
            sock.close()
        else:
            self._begin(asyncio.get_running_loop().connect_accepted_socket(protocol, sock))

    def _begin(self, work: Any) -> asyncio.Task[Any]:
        assert self._loop is not None
        task: asyncio.Task[Any] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Listener:
    """What `BusServer` closes."""

    def __init__(self, close: Callable[[], None]) -> None:
        self.close = close


async def _within(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        pass


async def _any_within(seconds: float, *events: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(first(*events), seconds)
    except TimeoutError:
        pass


def _set(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    try:
        loop.call_soon_threadsafe(event.set)
    except RuntimeError:  # the loop is closed
        logger.debug("the lease ended after the server")
