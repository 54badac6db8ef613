"""The read half of the Durable Streams protocol, for anything that can be read as a log.

A `Feed` is the source of a read: a stream, the changes of a table, or a partition of a topic. This module answers
catch-up, long-poll and event-stream requests over a feed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol
from urllib.parse import parse_qsl

import msgspec

from tailrace import limits
from tailrace.access import Principal
from tailrace.clock import Clock
from tailrace.errors import Error, Invalid
from tailrace.http import cursor as cursors
from tailrace.http.live import LiveReads
from tailrace.http.message import Answer, Frame, Headers, LiveResponse, Request, Response, ResponseSink, content_fields
from tailrace.http.revocation import Caller
from tailrace.http.sse import PART_BYTES, Encoding, SharedEvent, control
from tailrace.log.position import BEGINNING, NOW, offset, parse

PARAMETERS: Final = ("offset", "live", "cursor")  # of a read, in the query string
VARY: Final = (b"vary", b"accept")  # a cache must not answer a request for Arrow with JSON


class FeedSlice(msgspec.Struct, frozen=True):
    """Consecutive entries from `position` on, and the log as it was then."""

    log: int
    content_type: str
    encoding: Encoding
    position: int
    bodies: list[bytes]  # of the entries, one each; or of several, with what separates them
    next: int
    tail: int
    closed: bool  # the log takes no more

    @property
    def at_tail(self) -> bool:
        return self.next >= self.tail

    @property
    def ended(self) -> bool:
        """The log is closed, and the reader has seen all of it."""
        return self.closed and self.at_tail


class Feed(Protocol):
    """Something that can be read as a log."""

    principal: Principal  # of the reader
    slice_bytes: int  # of a page, read at once between turns of the event loop
    renew_s: float  # how often a reader must renew the log, or it may expire; infinity if it never does

    async def read(self, position: int | None, bytes_max: int) -> FeedSlice:
        """Entries from `position` (None: the earliest); none, at the tail."""

    async def describe(self) -> FeedSlice:
        """Where the tail is: a piece without entries that starts and ends there."""


class ReadParameters(msgspec.Struct, frozen=True):
    """The query string of a read."""

    offset: str | None
    live: str | None
    cursor: str | None

    @property
    def position(self) -> int | None:
        return None if self.offset is None or self.offset == BEGINNING else parse(self.offset)


def read_parameters(request: Request) -> ReadParameters:
    """Parse and check the query string of a read."""
    seen: dict[str, str] = {}
    if request.query:
        try:
            pairs = parse_qsl(request.query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=64)
        except ValueError as error:
            raise Invalid(f"the query string is malformed: {error}") from None
        for name, value in pairs:
            if name in PARAMETERS:
                if name in seen:
                    raise Invalid(f"{name} is given more than once; give it once", code=f"INVALID_{name.upper()}")
                seen[name] = value
    parameters = ReadParameters(seen.get("offset"), seen.get("live"), seen.get("cursor"))
    if parameters.live not in (None, "long-poll", "sse"):
        raise Invalid(f"live={parameters.live[:80]!r} is unknown; use long-poll or sse", code="INVALID_LIVE")
    if parameters.live is not None and parameters.offset is None:
        raise Invalid(f"live={parameters.live} needs an offset; use offset=-1 for the beginning", code="MISSING_OFFSET")
    if parameters.offset not in (None, BEGINNING, NOW):
        parse(parameters.offset)
    return parameters


class Reading:
    """Answers reads of feeds."""

    def __init__(
        self,
        live: LiveReads,
        clock: Clock,
        caller: Callable[[Request, Principal], Caller],
        *,
        page_bytes: int,
        long_poll_timeout_s: float,
        cache_scope: str,
    ) -> None:
        self._live = live
        self._caller = caller
        self._clock = clock
        self._page_bytes = page_bytes
        self._long_poll_timeout_s = long_poll_timeout_s
        self._cacheable = (b"cache-control", f"{cache_scope}, max-age=60, stale-while-revalidate=300".encode())

    async def answer(self, request: Request, feed: Feed) -> Answer:
        parameters = read_parameters(request)
        if parameters.live == "sse":
            return await self._event_stream(feed, parameters)
        if parameters.live == "long-poll":
            return await self._long_poll(request, feed, parameters)
        if parameters.offset == NOW:
            return whole(await feed.describe(), [(b"cache-control", b"no-store")])
        piece = await self._page(feed, parameters.position)
        return _conditional(request, piece, [self._cacheable, VARY])

    # -- catch-up

    async def _page(self, feed: Feed, position: int | None) -> FeedSlice:
        """A page, read in slices between which the loop serves others."""
        piece = await feed.read(position, min(feed.slice_bytes, self._page_bytes))
        if piece.at_tail:
            return piece
        left = self._page_bytes - sum(map(len, piece.bodies))
        entries = len(piece.bodies)
        bodies = piece.encoding.together(piece.bodies)
        slices = limits.FEED_FILTER_SLICES if piece.encoding.sparse else limits.PAGE_ENTRIES
        while left > 0 and entries < limits.PAGE_ENTRIES and slices > 0 and not piece.at_tail:
            slices -= 1
            await asyncio.sleep(0)
            try:
                more = await feed.read(piece.next, min(feed.slice_bytes, left))
            except Error:
                break  # deleted or trimmed meanwhile; what was read stands, and the next request says why
            size = sum(map(len, more.bodies))
            if more.log != piece.log or size > left:
                break
            bodies += more.encoding.together(more.bodies)
            entries += len(more.bodies)
            left -= size
            piece = msgspec.structs.replace(more, position=piece.position)
        return msgspec.structs.replace(piece, bodies=bodies)

    # -- long-poll

    async def _long_poll(self, request: Request, feed: Feed, parameters: ReadParameters) -> Response:
        piece = await (feed.describe() if parameters.offset == NOW else self._page(feed, parameters.position))
        if not piece.bodies and piece.at_tail and not piece.ended:
            piece = await self._wait(request, feed, piece)
        cursor = (b"stream-cursor", b"%d" % cursors.following(self._clock.now_ms(), parameters.cursor))
        if piece.bodies:
            return _conditional(request, piece, [cursor, self._cacheable])
        extra: Headers = [(b"cache-control", b"no-store")]
        if not piece.ended:
            extra.append(cursor)
        return Response(204, [*_state(piece), *extra])

    async def _wait(self, request: Request, feed: Feed, piece: FeedSlice) -> FeedSlice:
        """The entries after `piece`, when there are some; none, at the time-out."""
        self._live.admit()
        watch = self._live.watch(piece.log)
        caller = self._caller(request, feed.principal)
        caller.wake = watch.wake
        caller.follow()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._long_poll_timeout_s
        try:
            while True:
                found = await self._page(feed, piece.next)
                if caller.changed and not await caller.is_same():
                    return piece
                piece = found
                left = deadline - loop.time()
                if piece.bodies or piece.ended or left <= 0 or self._live.stopping:
                    return piece
                if not piece.at_tail:
                    continue  # the reader's filter left nothing of what was read
                await watch.wait(min(left, feed.renew_s))  # a reader that waits keeps the log alive
                await self._live.turns.take(watch.new_bytes)
                watch.new_bytes = 0
        finally:
            caller.close()
            watch.close()

    # -- event streams

    async def _event_stream(self, feed: Feed, parameters: ReadParameters) -> LiveResponse:
        self._live.admit()
        first = await (
            feed.describe() if parameters.offset == NOW else feed.read(parameters.position, limits.SLICE_BYTES)
        )
        headers: Headers = [
            (b"content-type", b"text/event-stream"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),  # proxies that would hold events back
        ]
        if first.encoding.base64:
            headers.append((b"stream-sse-data-encoding", b"base64"))

        # The slice is in a list, for only `_follow` to refer to what it sends, so that it can let go of it.
        return LiveResponse(200, headers, partial(self._follow, feed, [first], parameters.cursor))

    async def _follow(self, feed: Feed, start: list[FeedSlice], came_with: str | None, sink: ResponseSink) -> None:
        """Send the entries that there are, then those that are committed."""
        # No helper below waits: each coroutine that waits in another one takes memory, for every reader.
        loop = asyncio.get_running_loop()
        piece = start.pop()
        encoding, log = piece.encoding, piece.log
        cursor = cursors.following(self._clock.now_ms(), came_with)
        floor = cursor if cursor > cursors.current(self._clock.now_ms()) else None
        try:
            while piece.log == log:  # deleted and recreated, the path leads to another log: not the continuation
                if sum(map(len, piece.bodies)) > limits.EVENT_BYTES:
                    event = self._live.shared_event(log, piece.position, encoding, piece.bodies)
                    piece = msgspec.structs.replace(piece, bodies=[])
                    await _send_slices(sink, encoding, event)
                    del event
                sink.send(_caught_up(piece, cursor))
                if piece.ended:
                    return
                await sink.drained()
                if not piece.at_tail:
                    piece = await feed.read(piece.next, limits.SLICE_BYTES)
                    continue
                reader = self._live.join(log, encoding, sink, piece.next, floor)
                try:
                    # What was committed between the read and the join is found by reading once more.
                    piece = await feed.read(piece.next, limits.SLICE_BYTES)
                    if reader.position > piece.position or not (piece.bodies or piece.ended or not piece.at_tail):
                        del piece
                        # Until the log has ended, or it is time for the reader to reconnect.
                        until = loop.time() + self._live.recycle_s()
                        while not reader.ended and not self._live.stopping and (now := loop.time()) < until:
                            self._live.wake_at(reader, min(until, now + feed.renew_s))
                            await reader.woken
                            reader.woken = loop.create_future()
                            if not reader.ended:
                                await feed.describe()  # a reader keeps the log alive
                        if not reader.behind:
                            return
                        await self._live.turns.take(reader.behind)
                        piece = await feed.read(reader.position, limits.SLICE_BYTES)
                finally:
                    self._live.leave(log, encoding, reader)
        except Error:
            return  # deleted or trimmed meanwhile; the answer ends, and the next request says why


def _caught_up(piece: FeedSlice, cursor: int) -> Frame:
    """The entries of a slice, and where the reader is then."""
    position = control(piece.next, cursor, at_tail=piece.at_tail, closed=piece.ended)
    if not piece.bodies:
        return Frame(position)
    return Frame(piece.encoding.event(piece.bodies) + position)


async def _send_slices(sink: ResponseSink, encoding: Encoding, event: SharedEvent) -> None:
    """Send a large event no faster than the reader takes it."""
    sink.hold(event)
    try:
        sink.send(Frame(encoding.opening))
        for at in range(0, len(event.body), PART_BYTES):
            await sink.drained()
            sink.send(event.part(at))
            await asyncio.sleep(0)  # encoding takes time, and others want theirs
        await sink.drained()
        sink.send(Frame(encoding.closing))
    finally:
        sink.release()


def _conditional(request: Request, piece: FeedSlice, extra: Headers) -> Response:
    """The page, or 304 where the client has it."""
    etag = f'"{piece.log}:{piece.position}:{piece.next}{":c" if piece.ended else ""}"'.encode()
    known = request.headers.get(b"if-none-match")
    if known is not None and _matches(known, etag):
        return Response(304, [(b"etag", etag), *extra])
    return whole(piece, [(b"etag", etag), *extra])


def whole(piece: FeedSlice, extra: Headers) -> Response:
    """The entries of a piece, and where the reader is then."""
    body, *more = piece.encoding.parts(piece.bodies)
    return Response(200, [*content_fields(piece.content_type), *_state(piece), *extra], body, tuple(more))


def _state(piece: FeedSlice) -> Headers:
    """Where the reader is."""
    headers: Headers = [(b"stream-next-offset", offset(piece.next).encode())]
    if piece.at_tail:
        headers.append((b"stream-up-to-date", b"true"))
    if piece.ended:
        headers.append((b"stream-closed", b"true"))
    return headers


def _matches(known: bytes, etag: bytes) -> bool:
    """Whether an If-None-Match names this entity."""
    return any(tag.strip().removeprefix(b"W/") in (etag, b"*") for tag in known.split(b","))
