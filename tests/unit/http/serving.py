"""A transport under test: its loop runs in a thread of its own, the test speaks to it through plain sockets."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

import uvloop

from tailrace.http.submitted import Handler
from tailrace.http.transport import Server, TransportLimits
from tests.support.patience import PATIENCE_S

T = TypeVar("T")

COMMON = [(b"server", b"tailrace"), (b"x-content-type-options", b"nosniff")]


class Serving:
    """A started server, as a context manager."""

    def __init__(
        self, handler: Handler, *, ssl_context: ssl.SSLContext | None = None, plain_asyncio: bool = False, **limits: Any
    ) -> None:
        limits.setdefault("tick_s", 0.02)
        self.server = Server(handler, common=COMMON, limits=TransportLimits(**limits))
        self._ssl_context = ssl_context
        self._loop = asyncio.new_event_loop() if plain_asyncio else uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Serving:
        self._thread.start()
        self.run(self.server.start("127.0.0.1", 0, ssl_context=self._ssl_context))
        self.address = self.server.address
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.run(self.server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    def run(self, work: Any) -> Any:
        """Run a coroutine on the server's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the server's loop, outside any task, and wait for it."""
        done = threading.Event()
        results: list[T] = []

        def call() -> None:
            results.append(function())
            done.set()

        self._loop.call_soon_threadsafe(call)
        assert done.wait(PATIENCE_S)
        return results[0]

    def client(self) -> Client:
        return Client(socket.create_connection(self.address, timeout=PATIENCE_S))


class Answered:
    """A parsed answer."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body


class Client:
    """A socket with just enough HTTP to read answers; what it sends, the test writes out."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = b""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def ask(self, data: bytes, *, head_only: bool = False) -> Answered:
        self.send(data)
        return self.answer(head_only=head_only)

    def until(self, mark: bytes) -> bytes:
        """What comes up to and with a mark."""
        while mark not in self._buffer:
            self._fill()
        end = self._buffer.index(mark) + len(mark)
        taken, self._buffer = self._buffer[:end], self._buffer[end:]
        return taken

    def exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._fill()
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def rest(self) -> bytes:
        """Everything until the server closes."""
        while piece := self.sock.recv(65536):
            self._buffer += piece
        taken, self._buffer = self._buffer, b""
        return taken

    def answer(self, *, head_only: bool = False) -> Answered:
        lines = self.until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        status = int(lines[0].split(" ")[1])
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        if headers.get("transfer-encoding") == "chunked":
            return Answered(status, headers, b"" if head_only else self._chunks())
        length = 0 if head_only else int(headers.get("content-length", "0"))
        return Answered(status, headers, self.exactly(length))

    def chunk(self) -> bytes:
        size = int(self.until(b"\r\n"), 16)
        return self.exactly(size + 2)[:-2]

    def _chunks(self) -> bytes:
        body = b""
        while piece := self.chunk():
            body += piece
        return body

    def _fill(self) -> None:
        piece = self.sock.recv(65536)
        if not piece:
            raise EOFError(f"the server closed after {self._buffer!r}")
        self._buffer += piece
