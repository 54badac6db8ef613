"""The processes of a server with several workers: the one that writes, and those that serve HTTP.

Both are forked by the supervisor (`supervisor.py`) and inherit their listening sockets from it. The writer owns the
database: it runs the commands of all, housekeeping and webhooks, and serves the bus. A worker is a whole HTTP server
whose database reads the files itself and sends its commands to the writer.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from tailrace import __version__, limits
from tailrace.bus import messages
from tailrace.bus.link import BusLink
from tailrace.bus.totals import counts_of
from tailrace.bus.writer import BusServer
from tailrace.config import Config
from tailrace.database import Database, open_configured, open_worker
from tailrace.errors import Error, Unavailable
from tailrace.http import serve
from tailrace.http.app import COMMON, App
from tailrace.http.authentication import check_credentials_exist
from tailrace.http.shared import TransportLimits
from tailrace.http.transport import Server
from tailrace.http.webhooks import Dispatcher

logger = logging.getLogger("tailrace.workers")


class Places(msgspec.Struct, frozen=True):
    """Descriptors that a process inherits."""

    alive: int  # closed when the supervisor has ended
    ready: int  # where it reports that it is up, or why it is not


def run(main: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]], places: Places) -> int:
    """Run a process until it gets SIGTERM, or the supervisor has ended; its exit status."""
    import uvloop

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the supervisor sees to the order
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.setswitchinterval(serve.SWITCH_INTERVAL_S)
    gc.set_threshold(*serve.GC_THRESHOLDS)
    gc.freeze()
    serve.keep_freed_memory()
    try:
        uvloop.run(_until_stopped(main, places))
    except Error as error:
        logger.error("%s", error)  # noqa: TRY400 - it says what to do
        _report(places.ready, messages.encode_error(error))
        return 1
    except Exception as error:
        logger.exception("a process failed")
        _report(places.ready, messages.encode_error(error))
        return 1
    return 0


async def _until_stopped(main: Any, places: Places) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_reader(places.alive, stop.set)

    async def up() -> None:
        _report(places.ready, b"")
        await stop.wait()

    await main(up)


def _report(handle: int, message: bytes) -> None:
    """Report once; later calls do nothing."""
    with suppress(OSError):
        os.write(handle, message or b"\0")
        os.close(handle)


# -- the writer


async def write(
    up: Callable[[], Awaitable[None]],
    *,
    config: Config,
    bus: socket.socket,
    accept_loss: bool = False,
    replaces: bool = False,
) -> None:
    """The process that writes; `replaces`: it is not the first."""
    db = open_configured(config, accept_loss=accept_loss)
    try:
        db.attach(asyncio.get_running_loop())
        check_credentials_exist(db, config)
        dispatcher = Dispatcher(db, config)
        server = BusServer(db, db.sharing.login_throttle(), __version__, replaces=replaces)
        await dispatcher.start()
        try:
            await server.start(partial(_listen, bus))
            await up()
            await server.stop()
        finally:
            await dispatcher.stop()
    finally:
        await db.aclose()


async def _listen(bus: socket.socket, protocol: Callable[[], BusLink]) -> asyncio.AbstractServer:
    return await asyncio.get_running_loop().create_unix_server(protocol, sock=bus)


# -- a worker


async def work(
    up: Callable[[], Awaitable[None]], *, config: Config, slot: int, count: int, bus: str, sock: socket.socket
) -> None:
    """A process that serves HTTP, one of `count`."""
    db = open_worker(config, partial(_connect, bus), f"worker-{slot}-{os.getpid()}", __version__)
    try:
        loop = asyncio.get_running_loop()
        db.attach(loop)
        await _welcomed(db)
        app = App(db, config)
        await app.start()
        bounds = TransportLimits(
            body_bytes_max=config.body_bytes_max,
            connections_max=-(-config.connections_max // count),
            unsent_bytes_max=-(-config.unsent_bytes_max // count),
        )
        serve.allow_open_files(bounds.connections_max)
        server = Server(app, common=COMMON, limits=bounds, stats=db.metrics)
        await server.start(ssl_context=serve.tls_context(config), sock=sock)
        reporting = loop.create_task(_report_metrics(db))
        await up()
        reporting.cancel()
        await serve.Running(db, app, server, config).stop()
    except BaseException:
        await db.aclose()
        raise


async def _connect(path: str, loop: asyncio.AbstractEventLoop, protocol: Callable[[], BusLink]) -> None:
    await loop.create_unix_connection(protocol, path)


async def _welcomed(db: Database) -> None:
    """Return when the writer has answered; the state of the database is known then."""
    assert db.forwarder is not None
    deadline = db.clock.monotonic_s() + limits.WRITER_WAIT_S
    while not db.forwarder.welcomed.is_set():
        if db.clock.monotonic_s() > deadline:
            raise Unavailable("the process that writes does not answer")
        await asyncio.sleep(0.005)


async def _report_metrics(db: Database) -> None:
    """Let the writer know what this process has counted, for the sum that another one may be asked for."""
    assert db.forwarder is not None
    while True:
        db.metrics.queue = db.waiting
        db.forwarder.tell(counts_of(db.metrics))
        await asyncio.sleep(limits.BUS_BEAT_S)
