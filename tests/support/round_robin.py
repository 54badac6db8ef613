"""A load balancer of the tests' own: every request goes to another server, even those of one connection.

It speaks as much HTTP/1.1 as it needs to know where a request and a response end, and passes bytes on as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from tests.support.proxy import on_loop

HEAD_BYTES_MAX: Final = 8 << 20
_PIECE: Final = 1 << 16
_END: Final = b"\r\n\r\n"


class RoundRobin:
    """Listens on a free port of the loopback interface. Usable as a context manager."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._places = [(str(urlsplit(url).hostname), int(urlsplit(url).port or 80)) for url in urls]
        self._turn = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests: Counter[int] = Counter()  # of each server
        self._server = on_loop(self._listen())
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accepted, "127.0.0.1", 0, limit=HEAD_BYTES_MAX, backlog=1024)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def __enter__(self) -> RoundRobin:
        return self

    def __exit__(self, *_: object) -> None:
        on_loop(self._close())

    async def _close(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(_END)
            while True:
                following = await self._exchange(head, reader, writer)
                if following is None:
                    return
                head = following
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return
        finally:
            writer.transport.abort() if writer.transport.is_closing() else writer.close()

    async def _exchange(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:
        """One request and its response; the head of the next request, None at the end of the connection."""
        number = next(self._turn) % len(self._places)
        self.requests[number] += 1
        back_reader, back_writer = await asyncio.open_connection(*self._places[number], limit=HEAD_BYTES_MAX)
        back_writer.write(head)
        sending = asyncio.ensure_future(_pass_body(head, reader, back_writer))
        answering = asyncio.ensure_future(self._answer(head, back_reader, writer))
        following: asyncio.Future[bytes] | None = None
        try:
            await asyncio.wait([sending, answering], return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():  # the response came before the end of the request
                await answering
                return None
            await sending
            following = asyncio.ensure_future(reader.readuntil(_END))
            await asyncio.wait([following, answering], return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and following.exception() is not None:  # the client has gone
                return None
            return await following if await answering else None
        finally:
            for task in (sending, answering, following):
                if task is not None:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError, OSError, asyncio.IncompleteReadError):
                        await task
            back_writer.transport.abort()

    @staticmethod
    async def _answer(head: bytes, back_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Pass the response on; whether the connection stays open."""
        while True:
            answered = await back_reader.readuntil(_END)
            writer.write(answered)
            status = int(answered[9:12])
            if status >= 200:
                break
        fields = _fields(answered)
        if not head.startswith(b"HEAD ") and status not in (204, 304):
            if b"content-length" not in fields and b"transfer-encoding" not in fields:
                while piece := await back_reader.read(_PIECE):
                    writer.write(piece)
                    await writer.drain()
                return False
            await _pass_body(answered, back_reader, writer)
        await writer.drain()
        return fields.get(b"connection", b"").lower() != b"close"


def _fields(head: bytes) -> dict[bytes, bytes]:
    lines = head.split(b"\r\n")[1:]
    return {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}


async def _pass_body(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The body of a message, to its end."""
    fields = _fields(head)
    if b"chunked" in fields.get(b"transfer-encoding", b"").lower():
        while True:
            line = await reader.readuntil(b"\r\n")
            size = int(line.partition(b";")[0], 16)
            writer.write(line)
            if size == 0:
                break
            await _pass(size + 2, reader, writer)
        while (line := await reader.readuntil(b"\r\n")) != b"\r\n":  # trailers
            writer.write(line)
        writer.write(line)
        await writer.drain()
    else:
        await _pass(int(fields.get(b"content-length", b"0")), reader, writer)


async def _pass(size: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while size:
        piece = await reader.read(min(size, _PIECE))
        if not piece:
            raise asyncio.IncompleteReadError(b"", size)
        writer.write(piece)
        await writer.drain()
        size -= len(piece)
