"""A TCP proxy of the tests' own, which can be told to fail: to refuse, to be silent, to break a connection at COMMIT.

All proxies of a process share one event loop, in a thread of its own. `BEFORE`, `AFTER` and `LATE` break the connection
of the leader at its next COMMIT: the message never arrives; it arrives, and its answer is lost; or it arrives
a second after the connection was lost, when somebody who merely looks has been told that nothing was committed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from tests.support.patience import PATIENCE_S

BEFORE: Final = "before"
AFTER: Final = "after"
LATE: Final = "late"
LATE_S: Final = 1.0
_COMMITTED: Final = b"C\x00\x00\x00\x0bCOMMIT\x00"
_FENCE: Final = b"UPDATE leader SET batch"
_STARTS: Final = (80877103, 80877104)  # the requests for TLS and GSS encryption, after which the first message follows
Address = Path | tuple[str, int]  # a Unix socket, or a host and a port
Found = TypeVar("Found")


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="proxies", daemon=True).start()
    return loop


def on_loop(what: Coroutine[Any, Any, Found]) -> Found:
    """Run it in the event loop of all proxies."""
    return asyncio.run_coroutine_threadsafe(what, _loop()).result(PATIENCE_S)


class Proxy:
    """Listens on a free port of the loopback interface, and passes all on to `target`."""

    def __init__(self, target: Address) -> None:
        self.target = target
        self._links: set[_Link] = set()
        self._cut: tuple[str, threading.Event] | None = None
        self._refusing = False
        self.connections = 0  # so far
        self.bytes_back = 0  # from the target
        self._passing = on_loop(_gate())
        self._server = on_loop(self._listen())
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    # -- what tests tell it

    def refuse(self) -> None:
        """Break all connections, and every new one."""
        on_loop(self._refuse())

    def silence(self) -> None:
        """Pass nothing on any more, and break nothing: as a network that drops all packets."""
        on_loop(_set(self._passing, passing=False))

    def heal(self, *, lose: bool = True) -> None:
        """Work again. With `lose`, connections that were silent are broken; otherwise what they have held back arrives
        now."""
        on_loop(self._heal(lose))

    def cut_at_commit(self, mode: str) -> threading.Event:
        """Break the connection of the leader at its next COMMIT; the event is set when it has happened."""
        done = threading.Event()
        self._cut = mode, done
        return done

    def pass_commits(self) -> None:
        self._cut = None

    def close(self) -> None:
        on_loop(self._close())

    # -- in the loop

    async def _refuse(self) -> None:
        self._refusing = True
        self._abort()

    async def _heal(self, lose: bool) -> None:
        self._refusing = False
        if lose and not self._passing.is_set():
            self._abort()
        self._passing.set()

    async def _close(self) -> None:
        self._server.close()
        self._abort()

    def _abort(self) -> None:
        for link in list(self._links):
            link.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._passing.wait()
        if self._refusing:
            writer.transport.abort()
            return
        try:
            if isinstance(self.target, Path):
                back = await asyncio.open_unix_connection(str(self.target))
            else:
                back = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        self.connections += 1
        link = _Link(self, reader, writer, *back)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)

    async def passing(self) -> None:
        await self._passing.wait()

    def take_cut(self) -> tuple[str, threading.Event] | None:
        found, self._cut = self._cut, None
        return found

    @property
    def wants_commits(self) -> bool:
        return self._cut is not None


class _Link:
    """One connection through a proxy."""

    def __init__(
        self,
        proxy: Proxy,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        back_reader: asyncio.StreamReader,
        back_writer: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._reader, self._writer = reader, writer
        self._back_reader, self._back_writer = back_reader, back_writer
        self._commits = CommitFinder() if isinstance(proxy.target, Path) else None
        self._mute: threading.Event | None = None  # set when the answer to COMMIT was seen, which is not passed on

    def abort(self) -> None:
        self._writer.transport.abort()
        self._back_writer.transport.abort()

    async def run(self) -> None:
        both = [asyncio.ensure_future(self._forth()), asyncio.ensure_future(self._back())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in both:
                each.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            self.abort()

    async def _forth(self) -> None:
        try:
            while data := await self._reader.read(1 << 18):
                await self._proxy.passing()
                if self._commits is not None and self._commits.feed(data) and self._proxy.wants_commits:
                    cut = self._proxy.take_cut()
                    if cut is not None:
                        await self._break(*cut, data)
                        return
                self._back_writer.write(data)
                await self._back_writer.drain()
        except OSError:
            return

    async def _back(self) -> None:
        try:
            while data := await self._back_reader.read(1 << 18):
                await self._proxy.passing()
                self._proxy.bytes_back += len(data)
                if self._mute is None:
                    self._writer.write(data)
                    await self._writer.drain()
                elif _COMMITTED in data:
                    self._mute.set()
        except OSError:
            return

    async def _break(self, mode: str, done: threading.Event, data: bytes) -> None:
        """Do it, with the bytes that have the COMMIT."""
        self._mute = threading.Event()
        if mode == AFTER:
            self._back_writer.write(data)
            for _ in range(100):
                if self._mute.is_set():
                    break
                await asyncio.sleep(0.01)
        self._writer.transport.abort()
        done.set()
        if mode == LATE:
            await asyncio.sleep(LATE_S)
            self._back_writer.write(data)
            await asyncio.sleep(LATE_S)


class CommitFinder:
    """Follows what a client sends to PostgreSQL, and finds COMMITs of a leader: those behind its fence."""

    def __init__(self) -> None:
        self._rest = b""
        self._started = False
        self._commits: set[bytes] = set()  # the names of prepared statements
        self._fences: set[bytes] = set()
        self._fenced = False

    def feed(self, data: bytes) -> bool:
        """Whether a COMMIT of a leader was in it."""
        found = False
        self._rest += data
        while len(self._rest) >= 8:
            kind, at = (b"", 0) if not self._started else (self._rest[:1], 1)
            size = at + int.from_bytes(self._rest[at : at + 4], "big")
            if len(self._rest) < size:
                break
            body, self._rest = self._rest[at + 4 : size], self._rest[size:]
            found |= self._message(kind, body)
        return found

    def _message(self, kind: bytes, body: bytes) -> bool:
        if kind == b"":
            self._started = int.from_bytes(body[:4], "big") not in _STARTS
        elif kind == b"P":
            name, _, rest = body.partition(b"\x00")
            query = rest.partition(b"\x00")[0]
            self._commits.discard(name)
            self._fences.discard(name)
            if query == b"COMMIT":
                self._commits.add(name)
            elif _FENCE in query:
                self._fences.add(name)
        elif kind == b"B":
            name = body.partition(b"\x00")[2].partition(b"\x00")[0]
            if name in self._fences:
                self._fenced = True
            elif name in self._commits and self._fenced:
                self._fenced = False
                return True
        return False


async def _gate() -> asyncio.Event:
    found = asyncio.Event()
    found.set()
    return found


async def _set(gate: asyncio.Event, *, passing: bool) -> None:
    (gate.set if passing else gate.clear)()
