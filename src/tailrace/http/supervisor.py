"""`tailrace serve --workers N`: starts the writer and the workers, replaces those that end, and stops them in order.

Theory of operation
-------------------
The supervisor is a process without threads, event loop or database, which only waits for signals. It owns the listening
sockets: one per worker on the same port (SO_REUSEPORT), and that of the bus. A worker's successor inherits its socket,
so that connections which were not accepted yet wait for it and are not lost.

    a worker ends      another one is forked in its place
    the writer ends    another one is forked; workers keep the commands that were not answered, and send them again
    SIGHUP             the configuration is read again, and each worker is replaced: the new one listens before the old
                       one gets SIGTERM
    SIGTERM, SIGINT    workers stop, answering what is under way; then the writer does

A process that ends again and again is replaced after a growing pause. While a process is awaited, signals to stop are
heeded, and a writer that ends is replaced: workers need it to come up. If the supervisor itself is killed, all
processes stop by themselves.
"""

from __future__ import annotations

import logging
import math
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from tailrace import limits
from tailrace.bus import messages
from tailrace.config import Config
from tailrace.errors import Error, Invalid, Unavailable
from tailrace.http import processes, serve
from tailrace.http.authentication import check_data_directory
from tailrace.http.transport import BACKLOG

SIGNALS: Final = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
WRITER: Final = -1  # the slot of the writer; workers have numbers from 0 on
STOPPING: Final = (signal.SIGTERM, signal.SIGINT)
LOOK_S: Final = 0.1  # how often signals and the writer are looked at while a process is awaited
START_S: Final = 60.0  # for a process to be up; opening a damaged or large database takes a while
PAUSE_S_MIN: Final = 0.05
PAUSE_S_MAX: Final = 5.0
STEADY_S: Final = 10.0  # a process that ran this long did not fail at its start
logger = logging.getLogger("tailrace.workers")


class WorkersUp:
    """A server with several processes that is up."""

    def __init__(self, url: str) -> None:
        self.url = url


def run(
    config: Config,
    on_up: Callable[[Any], None],
    *,
    accept_loss: bool = False,
    reload: Callable[[], Config] | None = None,
) -> None:
    """Serve with several processes in the foreground until SIGINT or SIGTERM. `reload` reads the configuration."""
    if not hasattr(signal, "sigtimedwait"):
        raise Invalid("several workers need a system with sigtimedwait, such as Linux; use --workers 1")
    serve.tls_context(config)
    check_data_directory(config)
    count = worker_count(config)
    sockets = listening(config, count)
    home = tempfile.mkdtemp(prefix="tailrace-")  # mode 0700: nobody else reaches the bus
    try:
        Supervisor(config, sockets, home, accept_loss, reload or (lambda: config)).run(on_up)
    finally:
        for sock in sockets:
            sock.close()
        shutil.rmtree(home, ignore_errors=True)


def worker_count(config: Config) -> int:
    """How many processes serve HTTP."""
    if config.workers != "auto":
        return config.workers
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, limits.WORKERS_MAX)


def listening(config: Config, count: int) -> list[socket.socket]:
    """A socket for each worker, all on one address. Port 0 becomes the same free one for all."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise Invalid(f"cannot listen on {config.host}:{config.port}: {error.strerror or error}") from error
    sockets: list[socket.socket] = []
    # The first one must not share the port with another server, which would get a part of the requests.
    with socket.socket(family, kind) as alone:
        alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            alone.bind(address)
            if config.port == 0:
                address = (address[0], alone.getsockname()[1], *address[2:])
        except OSError as error:
            raise Invalid(f"cannot listen on {config.host}:{config.port}: {error.strerror or error}") from error
    try:
        for _ in range(count):
            sock = socket.socket(family, kind)
            sockets.append(sock)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(address)
            sock.listen(BACKLOG)
            sock.setblocking(False)
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise Invalid(f"cannot listen on {config.host}:{config.port}: {error.strerror or error}") from error
    return sockets


class _Terminated(Exception):
    """A signal to stop has arrived while a process was awaited."""


class ChildProcess:
    """A process that the supervisor has forked."""

    def __init__(self, slot: int, pid: int, ready: int) -> None:
        self.slot = slot
        self.pid = pid
        self.began_s = time.monotonic()
        self._ready = ready  # reports once that it is up, or why not

    def wait_until_up(self, within_s: float, meanwhile: Callable[[], None]) -> None:
        """Return when it is up; raise its error if it failed. `meanwhile` is called every LOOK_S."""
        until_s = time.monotonic() + within_s
        try:
            readable, _, _ = select.select([self._ready], [], [], LOOK_S)
            while not readable and time.monotonic() < until_s:
                meanwhile()
                readable, _, _ = select.select([self._ready], [], [], LOOK_S)
            report = os.read(self._ready, 1 << 16) if readable else b""
        finally:
            os.close(self._ready)
        if report == b"\0":
            return
        if not report:
            raise Unavailable(f"{self} did not start; see the log")
        error = messages.decode_error(report)
        raise error if isinstance(error, Error) else Unavailable(f"{self} did not start: {error}")

    def tell(self, number: int) -> None:
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            logger.debug("%s has ended already", self)

    def __str__(self) -> str:
        return f"the writer (process {self.pid})" if self.slot == WRITER else f"worker {self.slot} (process {self.pid})"


class Supervisor:
    """The parent of all processes."""

    def __init__(
        self,
        config: Config,
        sockets: list[socket.socket],
        home: str,
        accept_loss: bool,
        reload: Callable[[], Config],
    ) -> None:
        self._config = config
        self._sockets = sockets
        self._bus_path = os.path.join(home, "bus")
        self._bus = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._accept_loss = accept_loss
        self._reload = reload
        self._children: dict[int, ChildProcess] = {}  # by process id; those that are to stay
        self._leaving: dict[int, ChildProcess] = {}  # that have got SIGTERM
        self._failures: dict[int, int] = {}  # in a row, by slot
        self._due: dict[int, float] = {}  # when a slot is filled again
        self._alive, self._alive_writing = os.pipe()

    def run(self, on_up: Callable[[Any], None]) -> None:
        """Run until a signal to stop."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            self._listen()
            self._start(WRITER)
            for slot in range(len(self._sockets)):
                self._start(slot)
            on_up(WorkersUp(self._url()))
            self._supervise()
        except _Terminated:
            logger.info("stopped while a process was awaited")
        finally:
            self._stop_all()
            self._bus.close()
            os.close(self._alive)
            os.close(self._alive_writing)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def _listen(self) -> None:
        before = os.umask(0o177)  # the socket is its owner's alone
        try:
            self._bus.bind(self._bus_path)
        finally:
            os.umask(before)
        self._bus.listen(limits.WORKERS_MAX)
        self._bus.setblocking(False)

    def _url(self) -> str:
        host, port = self._sockets[0].getsockname()[:2]
        scheme = "https" if self._config.tls_certificate else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    # -- processes

    def _start(self, slot: int) -> ChildProcess:
        """Fork a process and wait until it is up."""
        child = self._fork(slot)
        self._children[child.pid] = child
        self._accept_loss = False  # once, at the first start
        self._await(child)
        logger.info("%s is up", child)
        return child

    def _await(self, child: ChildProcess) -> None:
        """Wait until a process is up, which raises if it failed."""
        child.wait_until_up(START_S, self._look if child.slot == WRITER else self._look_after_writer)

    def _look(self) -> None:
        """Raise if there was a signal to stop."""
        if signal.sigtimedwait(STOPPING, 0) is not None:
            raise _Terminated

    def _look_after_writer(self) -> None:
        """The same; and replace a writer that has ended."""
        self._look()
        for child in [child for child in self._children.values() if child.slot == WRITER]:
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                del self._children[pid]
                self._ended(child, status)
        if self._due.get(WRITER, math.inf) <= time.monotonic():
            del self._due[WRITER]
            self._replace(WRITER)

    def _fork(self, slot: int) -> ChildProcess:
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            os.close(writing)
            return ChildProcess(slot, pid, reading)
        status = 70
        try:
            os.close(reading)
            os.close(self._alive_writing)
            for number in SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            status = processes.run(self._main(slot), processes.Places(self._alive, writing))
        finally:
            logging.shutdown()
            os._exit(status)

    def _main(self, slot: int) -> Any:
        if slot == WRITER:
            replaces = WRITER in self._failures
            return partial(
                processes.write,
                config=self._config,
                bus=self._bus,
                accept_loss=self._accept_loss,
                replaces=replaces,
            )
        count = len(self._sockets)
        sock = self._sockets[slot]
        return partial(processes.work, config=self._config, slot=slot, count=count, bus=self._bus_path, sock=sock)

    # -- signals

    def _supervise(self) -> None:
        while True:
            now = time.monotonic()
            for slot in sorted(slot for slot, due in self._due.items() if due <= now):  # the writer first
                del self._due[slot]
                self._replace(slot)
            wait = min([1.0, *(max(0.0, due - now) for due in self._due.values())])
            found = signal.sigtimedwait(SIGNALS, wait)
            if found is None or found.si_signo == signal.SIGCHLD:
                self._reap()
            elif found.si_signo == signal.SIGHUP:
                self._replace_workers()
            else:
                return

    def _reap(self) -> None:
        """Replace the processes that have ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if self._leaving.pop(pid, None) is not None:
                continue
            child = self._children.pop(pid, None)
            if child is not None:
                self._ended(child, status)

    def _ended(self, child: ChildProcess, status: int) -> None:
        logger.error("%s has ended with status %d, and is replaced", child, os.waitstatus_to_exitcode(status))
        if time.monotonic() - child.began_s > STEADY_S:
            self._failures.pop(child.slot, None)
        failures = self._failures.get(child.slot, 0)
        self._failures[child.slot] = failures + 1
        pause_s = 0.0 if not failures else min(PAUSE_S_MIN * 2.0**failures, PAUSE_S_MAX)
        self._due[child.slot] = time.monotonic() + pause_s

    def _replace(self, slot: int) -> None:
        child = self._fork(slot)
        self._children[child.pid] = child
        try:
            self._await(child)
            logger.info("%s is up", child)
        except Error as error:
            logger.error("%s is not up: %s", child, error)  # noqa: TRY400
            child.tell(signal.SIGKILL)

    def _replace_workers(self) -> None:
        """Replace each worker by one with the configuration as it is now; those that are there stay until then."""
        try:
            config = self._reload()
        except Error as error:
            logger.error("the configuration is not read again: %s", error)  # noqa: TRY400
            return
        fixed = ("data", "host", "port", "workers", "dev")
        changed = [name for name in fixed if getattr(config, name) != getattr(self._config, name)]
        if changed:
            logger.error("the configuration is not read again: %s can only change with a restart", ", ".join(changed))
            return
        self._config = config
        logger.info("the workers are replaced")
        for child in [child for child in self._children.values() if child.slot != WRITER]:
            successor = self._fork(child.slot)
            self._leaving[successor.pid] = successor  # until it is up
            try:
                self._await(successor)
            except Error as error:
                logger.error("%s is not up, and the one before it stays: %s", successor, error)  # noqa: TRY400
                successor.tell(signal.SIGKILL)
                return
            logger.info("%s is up", successor)
            del self._leaving[successor.pid]
            self._children[successor.pid] = successor
            if self._children.pop(child.pid, None) is not None:
                self._leaving[child.pid] = child
                child.tell(signal.SIGTERM)

    # -- the end

    def _stop_all(self) -> None:
        """Stop the workers, then the writer: commands that are under way are still answered."""
        workers = [child for child in self._children.values() if child.slot != WRITER] + list(self._leaving.values())
        self._stop_some(workers)
        self._stop_some([child for child in self._children.values() if child.slot == WRITER])

    def _stop_some(self, children: list[ChildProcess]) -> None:
        for child in children:
            child.tell(signal.SIGTERM)
        deadline = time.monotonic() + limits.SHUTDOWN_S + 1.0
        left = {child.pid: child for child in children}
        while left:
            for pid in list(left):
                try:
                    ended, _ = os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    ended = pid
                if ended:
                    del left[pid]
            if left and time.monotonic() > deadline:
                for child in left.values():
                    logger.error("%s does not stop, and is killed", child)
                    child.tell(signal.SIGKILL)
                deadline += limits.SHUTDOWN_S
            if left:
                signal.sigtimedwait((signal.SIGCHLD,), 0.1)
