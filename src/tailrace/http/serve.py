"""Runs a server: opens the database, serves HTTP until a signal to stop, closes in order."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from tailrace import limits
from tailrace.config import Config
from tailrace.database import Database, open_configured
from tailrace.errors import Invalid
from tailrace.http import standby
from tailrace.http.app import COMMON, App
from tailrace.http.authentication import check_data_directory
from tailrace.http.shared import TransportLimits
from tailrace.http.transport import Server

# With Python's default of 5 ms a busy loop lets the committer wait that long for its turn after every sync.
SWITCH_INTERVAL_S: Final = 0.0005
GC_THRESHOLDS: Final = (10_000, 20, 50)
# Of glibc's malloc: the largest block that comes from its heap, and the free end of the heap that it keeps.
MALLOC_OPTIONS: Final = ((-3, 4 * limits.MiB), (-1, 32 * limits.MiB))  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
STOP_SHARE: Final = 0.95  # of SHUTDOWN_S, for all but closing the database
FILES_KEPT: Final = 64  # descriptors that are not connections: the database, webhooks, logs

logger = logging.getLogger("tailrace.http")


class Up(Protocol):
    """A server that listens, whether it serves or waits."""

    @property
    def url(self) -> str: ...


class Running:
    """A server that is up."""

    def __init__(self, db: Database, app: App, server: Server, config: Config) -> None:
        self.db = db
        self.app = app
        self._server = server
        self._config = config

    @property
    def url(self) -> str:
        host, port = self._server.address
        scheme = "https" if self._config.tls_certificate else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    async def stop(self) -> None:
        """Answer what is under way, let live readers go, close the database; all within SHUTDOWN_S."""
        self.app.release()
        try:
            async with asyncio.timeout(limits.SHUTDOWN_S * STOP_SHARE):
                await asyncio.gather(self.app.stop(), self._server.stop())
        except TimeoutError:
            logger.warning("some requests did not end within %g s and are cut off", limits.SHUTDOWN_S)
        finally:
            await self.db.aclose()


async def start(
    config: Config, *, accept_loss: bool = False, engine: Any = None, sock: socket.socket | None = None
) -> Running:
    """Open the database and listen; `Invalid` if no credentials would be accepted. `engine`: of a database that is open
    already. `sock`: a socket that listens already."""
    context = tls_context(config)
    check_data_directory(config)
    db = open_configured(config, accept_loss=accept_loss, engine=engine)
    try:
        db.attach(asyncio.get_running_loop())
        app = App(db, config)
        await app.start()
        bounds = TransportLimits(
            body_bytes_max=config.body_bytes_max,
            connections_max=config.connections_max,
            unsent_bytes_max=config.unsent_bytes_max,
        )
        server = Server(app, common=COMMON, limits=bounds, stats=db.metrics)
        app.services.connections = lambda: server.connections
        try:
            await server.start(config.host, config.port, ssl_context=context, sock=sock)
        except OSError as error:
            raise Invalid(f"cannot listen on {config.host}:{config.port}: {error.strerror or error}") from error
    except BaseException:
        await db.aclose()
        raise
    return Running(db, app, server, config)


def run(config: Config, on_up: Callable[[Up], None], *, accept_loss: bool = False) -> None:
    """Serve in the foreground until SIGINT or SIGTERM."""
    import uvloop

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # Requests leave no cycles behind, so the collector need not run after every 700 objects; and what was imported
    # stays, so it need not look at that again.
    gc.set_threshold(*GC_THRESHOLDS)
    gc.freeze()
    keep_freed_memory()
    allow_open_files(config.connections_max)
    uvloop.run(_serve(config, on_up, accept_loss))


def keep_freed_memory() -> bool:
    """Let malloc keep some of what is freed. A page of a stream is some large blocks that live for milliseconds; if
    they go back to the system, the next page begins with a page fault for every 4 KiB. False where malloc has no
    such options."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all(mallopt(option, value) for option, value in MALLOC_OPTIONS)


def allow_open_files(connections_max: int) -> None:
    """Let the process open as many files as it may. A connection is one: say so where there is no room for all."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as error:
            logger.warning("the limit of open files stays at %d: %s", soft, error)
    # Some connections above the maximum are kept for the moment that it takes to refuse them.
    needed = connections_max + connections_max // 8 + FILES_KEPT
    if soft != resource.RLIM_INFINITY and soft < needed:
        logger.warning(
            "connections_max is %d, but only %d files may be open; raise the limit (ulimit -n) to %d or lower it",
            connections_max, soft, needed,
        )  # fmt: skip


async def _serve(config: Config, on_up: Callable[[Up], None], accept_loss: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    if config.database is not None:
        check_data_directory(config)
        _on_signals(loop, stop)
        if config.cluster.listen is not None:
            from tailrace.http import member  # it needs this module

            await member.serve(config, tls_context(config), stop, on_up)
            return
        begin = partial(_begin, config)
        await standby.serve(config, tls_context(config), stop, on_up, begin)
        return
    running = await start(config, accept_loss=accept_loss)
    _on_signals(loop, stop)
    on_up(running)
    await stop.wait()
    await running.stop()


def _on_signals(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)


async def _begin(config: Config, engine: Any, sock: socket.socket) -> Running:
    return await start(config, engine=engine, sock=sock)


def tls_context(config: Config) -> ssl.SSLContext | None:
    if config.tls_certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(config.tls_certificate, config.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise Invalid(f"cannot use the TLS files {config.tls_certificate!r} and {config.tls_key!r}: {error}") from error
    return context
