"""A stream, and the methods for streams that a database and the client of a server share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

from tailrace.embedded import pages
from tailrace.embedded.pages import StreamPage, StreamState
from tailrace.log.position import BEGINNING


class AsyncStreamStore(Protocol):
    """Keeps streams: a database, or a client of a server. Offsets are texts, as in HTTP."""

    async def create(self, path: str, content_type: str, *, ttl_s: int | None = None) -> str: ...
    async def append(self, path: str, body: bytes, content_type: str, *, close: bool = False) -> str: ...
    async def read(self, path: str, offset: str = BEGINNING) -> StreamPage: ...
    def follow(self, path: str, offset: str = BEGINNING) -> AsyncIterator[StreamPage]: ...
    async def state(self, path: str) -> StreamState: ...
    async def delete(self, path: str) -> None: ...


class AsyncStream:
    """A stream, for programs on an event loop. Cheap to make and to keep."""

    def __init__(self, store: AsyncStreamStore, path: str, content_type: str | None = None) -> None:
        self.path = path
        self._store = store
        self._content_type = content_type

    def __repr__(self) -> str:
        return f"<AsyncStream {self.path!r}>"

    async def append(self, content: Any, *, close: bool = False) -> str:
        """Append durably; with `close`, as the last entry. Returns the new tail offset.

        Content is bytes or text; of a JSON stream, bytes or any value that becomes JSON: a list appends each of its
        elements as a message.

        >>> tail = await greetings.append({"hello": "world"})
        >>> tail
        '0000000000000000_0000000000000017'
        """
        if self._content_type is None:
            self._content_type = (await self.state()).content_type
        body = pages.content_bytes(content, self._content_type)
        return await self._store.append(self.path, body, self._content_type, close=close)

    async def close(self) -> str:
        """Close the stream: it can be read, and takes no more appends. Returns its tail offset."""
        return await self._store.append(self.path, b"", "", close=True)

    async def read(self, offset: str = BEGINNING) -> StreamPage:
        """One page from an offset on: "-1" is the beginning, "now" the tail. Go on with `page.next`.

        >>> page = await greetings.read()
        >>> page.json()
        [{'hello': 'world'}]
        """
        return await self._store.read(self.path, offset)

    def follow(self, offset: str = BEGINNING) -> AsyncIterator[StreamPage]:
        """Pages with content from an offset on, and then as entries are appended, until the stream is closed."""
        return self._store.follow(self.path, offset)

    async def state(self) -> StreamState:
        """The content type, the tail offset, and whether the stream is closed."""
        return await self._store.state(self.path)

    async def delete(self) -> None:
        """Delete the stream."""
        await self._store.delete(self.path)


class AsyncStreamApi:
    """Streams of a database or of a server, for programs on an event loop."""

    def _stream_store(self) -> AsyncStreamStore:
        raise NotImplementedError

    def stream(self, path: str) -> AsyncStream:
        """The stream with this path; nothing is read yet."""
        return AsyncStream(self._stream_store(), path)

    async def create_stream(
        self, path: str, content_type: str = "application/json", *, ttl_s: int | None = None
    ) -> AsyncStream:
        """Create a stream, if it does not exist with this content type. With `ttl_s` it is deleted when it was neither
        read nor written for so long.

        >>> await db.aio.create_stream("greetings")
        <AsyncStream 'greetings'>
        """
        store = self._stream_store()
        await store.create(path, content_type, ttl_s=ttl_s)
        return AsyncStream(store, path, content_type)
