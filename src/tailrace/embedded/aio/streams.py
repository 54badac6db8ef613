"""The operations of a database on streams."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tailrace.embedded import pages
from tailrace.embedded.aio.stream import AsyncStreamApi, AsyncStreamStore
from tailrace.embedded.async_primitives import AsyncSignal
from tailrace.embedded.pages import StreamPage, StreamState
from tailrace.embedded.running import AsyncFacade, Executor
from tailrace.errors import Unavailable
from tailrace.log.position import BEGINNING, NOW, offset, parse
from tailrace.streams.commands import Append, CreateStream, DeleteStream, TouchStream
from tailrace.streams.queries import DescribeStream, ListStreams, ReadStream
from tailrace.streams.stream import touch_due


class AsyncStreamOperations(AsyncStreamApi, AsyncFacade):
    """The operations of a database on streams, for programs on an event loop."""

    def _stream_store(self) -> AsyncStreamStore:
        return AsyncEmbeddedStreams(self._db)

    async def streams(self) -> list[str]:
        """The paths of all streams, in order."""
        paths: list[str] = []
        while found := await self._db.aexecute(ListStreams(paths[-1] if paths else None)):
            paths += [stream.path for stream in found]
        return paths


class AsyncEmbeddedStreams:
    """The streams of a database."""

    def __init__(self, db: Executor) -> None:
        self._db = db

    async def create(self, path: str, content_type: str, *, ttl_s: int | None = None) -> str:
        created = await self._db.aexecute(CreateStream(path, content_type, ttl_s=ttl_s))
        return offset(created.tail)

    async def append(self, path: str, body: bytes, content_type: str, *, close: bool = False) -> str:
        appended = await self._db.aexecute(Append(path, body, content_type, close=close))
        return offset(appended.tail)

    async def read(self, path: str, offset: str = BEGINNING) -> StreamPage:
        if offset == NOW:
            offset = (await self.state(path)).tail
        found = await self._db.aexecute(ReadStream(path, None if offset == BEGINNING else parse(offset)))
        if touch_due(found.stream, self._db.clock.now_ms()):
            await self._db.aexecute(TouchStream(path))
        return pages.page_of(found)

    async def follow(self, path: str, offset: str = BEGINNING) -> AsyncIterator[StreamPage]:
        followers = self._db.followers
        happened = AsyncSignal()
        found = await self._db.aexecute(DescribeStream(path))
        if offset == NOW:
            offset = pages.state_of(found).tail
        with followers.waiting(found.stream.log, happened.set):
            while not followers.closed:
                happened.clear()
                try:
                    page = await self.read(path, offset)
                except Unavailable as error:
                    if error.code == "CLOSED":
                        return
                    raise
                if not page.empty:
                    yield page
                if page.closed:
                    return
                offset = page.next
                if page.up_to_date:
                    await happened.wait()

    async def state(self, path: str) -> StreamState:
        return pages.state_of(await self._db.aexecute(DescribeStream(path)))

    async def delete(self, path: str) -> None:
        await self._db.aexecute(DeleteStream(path))
