"""The server as an ASGI 3 application, to be mounted in another server or served over HTTP/2.

The rule: a handler sees the same requests and gives the same answers as under our own transport. ASGI runs every
request in a task, so the handler's work is simply awaited. Time-outs, header limits and the Date field are up to the
hosting server.

The hosting server has buffers of its own, which are small: it takes a response in slices, and the rest waits here. What
waits counts against the same budget as under our own transport (see `unsent`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import quote

from tailrace.config import Config, load
from tailrace.database import open_configured
from tailrace.http import wire
from tailrace.http.app import COMMON, App
from tailrace.http.authentication import check_data_directory
from tailrace.http.message import Answer, Frame, Headers, LiveResponse, Request, Response
from tailrace.http.shutdown import on_stop_signals
from tailrace.http.submitted import Handler, settled
from tailrace.http.unsent import SEND_BYTES, Budget, Held
from tailrace.http.wire import Refusal
from tailrace.limits import (
    AWS_HEAD_BYTES_MAX,
    BODY_BYTES_MAX,
    HEAD_BYTES_MAX,
    HEADERS_MAX,
    READER_BUFFER_MAX,
    UNSENT_BYTES_MAX,
)
from tailrace.metrics import Metrics

log = logging.getLogger("tailrace.http")

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Hook = Callable[[], Awaitable[None]]

_PATH_SAFE: Final = "/:@!$&'()*+,;=~-._"


def application(
    handler: Handler,
    common: Headers | None = None,
    *,
    on_startup: Hook | None = None,
    on_shutdown: Hook | None = None,
    body_bytes_max: int = BODY_BYTES_MAX,
    reader_buffer_max: int = READER_BUFFER_MAX,
    unsent_bytes_max: int = UNSENT_BYTES_MAX,
) -> AsgiAdapter:
    """An ASGI application over a handler; the hooks run at the server's start and end."""
    unsent = Budget(unsent_bytes_max, Metrics())
    return AsgiAdapter(handler, common or [], on_startup, on_shutdown, body_bytes_max, reader_buffer_max, unsent)


class AsgiAdapter:
    """See `application`."""

    def __init__(
        self,
        handler: Handler,
        common: Headers,
        on_startup: Hook | None,
        on_shutdown: Hook | None,
        body_bytes_max: int,
        reader_buffer_max: int,
        unsent: Budget,
    ) -> None:
        self._handler = handler
        self._common = common
        self._on_startup = on_startup
        self._on_shutdown = on_shutdown
        self._body_bytes_max = body_bytes_max
        self._reader_buffer_max = reader_buffer_max
        self._unsent = unsent

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:
            raise RuntimeError(f"scope type {scope['type']!r} is not served here, only http and lifespan")

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        for hook, stage in ((self._on_startup, "startup"), (self._on_shutdown, "shutdown")):
            await receive()
            try:
                if hook is not None:
                    await hook()
            except Exception as error:
                log.exception("the %s hook failed", stage)
                await send({"type": f"lifespan.{stage}.failed", "message": str(error)})
                return
            await send({"type": f"lifespan.{stage}.complete"})

    async def _serve(self, scope: Event, receive: Receive, send: Send) -> None:
        head_only = scope["method"] == "HEAD"
        try:
            request = await self._request(scope, receive)
        except Refusal as refusal:
            await self._respond(refusal.response(), head_only, send)
            return
        if request is None:
            return
        departure = asyncio.ensure_future(_departure(receive))
        try:
            answer = await self._answer(request, departure)
            if isinstance(answer, LiveResponse) and not head_only:
                await self._stream(answer, departure, send)
            elif answer is not None:
                await self._respond(answer, head_only, send)
        finally:
            await _ended(departure)

    async def _request(self, scope: Event, receive: Receive) -> Request | None:
        """The whole request, or None when the client left before it was whole."""
        fields = scope["headers"]
        if len(fields) > HEADERS_MAX:  # servers differ in how many they let through
            raise wire.too_many_fields(HEADERS_MAX)
        headers: dict[bytes, bytes] = {}
        for name, value in fields:
            name = name.lower()
            headers[name] = b"%b, %b" % (headers[name], value) if name in headers else value
        path = _path(scope)
        aws = wire.AWS_FIELD in headers
        bytes_max = AWS_HEAD_BYTES_MAX if aws else HEAD_BYTES_MAX
        wire.check_head(headers, path + scope.get("query_string", b""), bytes_max, aws=aws)
        wire.check_body_length(headers.get(b"content-length"), self._body_bytes_max)
        body = await self._read_body(receive)
        if body is None:
            return None
        client = scope.get("client")
        return Request(
            scope["method"].encode("ascii"),
            path,
            scope.get("query_string", b""),
            headers,
            body,
            peer=str(client[0]) if client else "",
            secure=scope.get("scheme") == "https",
            mount=_mount(scope),
        )

    async def _read_body(self, receive: Receive) -> bytes | None:
        body = bytearray()
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                return None
            body += event.get("body", b"")
            if len(body) > self._body_bytes_max:
                raise wire.too_large(self._body_bytes_max)
            if not event.get("more_body", False):
                return bytes(body)

    async def _answer(self, request: Request, departure: asyncio.Future[None]) -> Answer | None:
        """The handler's answer; None for a read whose client left. What a write does is committed anyway."""
        work = asyncio.ensure_future(self._handled(request))
        try:
            if request.method in wire.READS or request.path in wire.CLAIMS:
                await asyncio.wait((work, departure), return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
                    return None
            return await work
        except Exception:
            log.exception("a handler failed")
            return wire.error_response(500, "INTERNAL", "internal error; the server's log has the reason")
        finally:
            await _ended(work)

    async def _handled(self, request: Request) -> Answer:
        return await settled(self._handler(request))

    async def _respond(self, answer: Answer, head_only: bool, send: Send) -> None:
        body = b"".join((answer.body, *answer.more)) if isinstance(answer, Response) else b""
        headers = [*answer.headers, *self._common]
        if isinstance(answer, Response) and wire.has_body(answer.status) and (body or not head_only):
            headers.append((b"content-length", b"%d" % len(body)))
        if head_only or not wire.has_body(answer.status):
            body = b""
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        if len(body) <= SEND_BYTES:
            await send({"type": "http.response.body", "body": body})
            return
        pending = PendingBody(len(body))
        self._unsent.note(pending)
        try:
            for at in range(0, len(body), SEND_BYTES):
                more = at + SEND_BYTES < len(body)
                await send({"type": "http.response.body", "body": body[at : at + SEND_BYTES], "more_body": more})
                pending.taken = at + SEND_BYTES
                self._unsent.note(pending)
        except asyncio.CancelledError:
            if not pending.was_cut or pending.task.uncancel():
                raise
            # The response stays unfinished, and the hosting server closes the connection.
        finally:
            self._unsent.forget(pending)

    async def _stream(self, live: LiveResponse, departure: asyncio.Future[None], send: Send) -> None:
        await send({"type": "http.response.start", "status": live.status, "headers": [*live.headers, *self._common]})
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        sink = AsgiSink(self._reader_buffer_max, self._unsent)
        run = asyncio.ensure_future(live.run(sink))
        run.add_done_callback(lambda _: sink.end())
        forward = asyncio.ensure_future(sink.forward(send))
        try:
            await asyncio.wait((forward, departure, sink.dropped), return_when=asyncio.FIRST_COMPLETED)
            if forward.done():
                forward.result()
                if run.cancelled():
                    return  # the caller's rights were revoked: half a response must not look like a whole one
                run.result()
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            # Else the answer stays unfinished, and the hosting server closes the connection.
        finally:
            await _ended(run)
            await _ended(forward)
            sink.close()


class PendingBody:
    """A response that the hosting server takes in slices; see `unsent.Holder`."""

    def __init__(self, size: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.taken = 0
        self.was_cut = False
        self._size = size

    def unsent(self) -> tuple[int, int]:
        return (self._size if self.taken < self._size else 0), self.taken

    def cut(self) -> None:
        self.was_cut = True
        self.task.cancel()


class AsgiSink:
    """Where a live answer is written; see `message.ResponseSink`. `forward` carries it to the hosting server."""

    def __init__(self, limit: int, budget: Budget) -> None:
        self._limit = limit
        self._budget = budget
        self._held: Held | None = None
        self._taken_bytes = 0
        self._pieces: list[bytes] = []
        self._unsent_bytes = 0
        self._ended = False
        self._more = asyncio.Event()
        self._taken = asyncio.Event()
        self._taken.set()
        self.dropped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def send(self, *frames: Frame) -> None:
        size = sum(len(frame.data) for frame in frames)
        if self._ended or self.dropped.done() or not size:
            return
        if self._unsent_bytes and self._unsent_bytes + size > self._limit:
            self.dropped.set_result(None)
            return
        piled_up = self._unsent_bytes
        self._pieces += [frame.data for frame in frames]
        self._unsent_bytes += size
        if piled_up:
            self._budget.note(self)
        self._taken.clear()
        self._more.set()

    async def drained(self) -> None:
        await self._taken.wait()

    def hold(self, held: Held) -> None:
        self.release()
        self._held = held
        self._budget.hold(held)

    def release(self) -> None:
        if self._held is not None:
            self._budget.release(self._held)
            self._held = None

    def unsent(self) -> tuple[int, int]:
        """See `unsent.Holder`."""
        return self._unsent_bytes, self._taken_bytes

    def cut(self) -> None:
        """See `unsent.Holder`."""
        self.release()
        self._pieces.clear()
        if not self.dropped.done():
            self.dropped.set_result(None)

    def close(self) -> None:
        """The response has ended, one way or another."""
        self.release()
        self._budget.forget(self)

    def end(self) -> None:
        self._ended = True
        self._more.set()

    async def forward(self, send: Send) -> None:
        """Send what comes until the end; a send that returns has been taken."""
        while True:
            await self._more.wait()
            self._more.clear()
            pieces, self._pieces = self._pieces, []
            if pieces:
                data = b"".join(pieces)
                await send({"type": "http.response.body", "body": data, "more_body": True})
                self._unsent_bytes -= len(data)
                self._taken_bytes += len(data)
                if self in self._budget:
                    self._budget.note(self)
            if not self._pieces:
                self._taken.set()
                if self._ended:
                    return


def _mount(scope: Event) -> str:
    """Where we are mounted, percent-encoded; empty at the root."""
    return quote(scope.get("root_path", "").rstrip("/"), safe=_PATH_SAFE)


def _path(scope: Event) -> bytes:
    """The raw path below where we are mounted; servers differ in whether they leave the mount in."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"], safe=_PATH_SAFE).encode("ascii")
    raw = raw.partition(b"?")[0]
    root = _mount(scope).encode("ascii")
    if root and (raw == root or raw.startswith(root + b"/")):
        raw = raw[len(root) :]
    return raw or b"/"


async def _departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _ended(work: asyncio.Future[Any]) -> None:
    """Cancel work that still runs, and wait for its end; its outcome is dropped."""
    if not work.done():
        work.cancel()
        await asyncio.wait((work,))
    if not work.cancelled():
        work.exception()


class Mounted(AsgiAdapter):
    """A whole Tailrace as an ASGI application: it opens its database when the server starts and closes it at the end.

    Most frameworks send no lifespan events to mounted applications; give them `lifespan`. Without either, the first
    request opens the database."""

    def __init__(self, config: Config) -> None:
        unsent = Budget(config.unsent_bytes_max, Metrics())
        super().__init__(
            self._enter, COMMON, self.startup, self.shutdown, config.body_bytes_max, READER_BUFFER_MAX, unsent
        )
        self._config = config
        self._app: App | None = None
        self._opening = asyncio.Lock()
        self._unhook: Callable[[], None] = lambda: None

    async def startup(self) -> None:
        async with self._opening:
            if self._app is None:
                check_data_directory(self._config)
                db = open_configured(self._config)
                try:
                    db.attach(asyncio.get_running_loop())
                    app = App(db, self._config)
                    await app.start()
                except BaseException:
                    await db.aclose()
                    raise
                self._app = app
                self._unsent = Budget(self._config.unsent_bytes_max, db.metrics)
                self._unhook = on_stop_signals(self.release)

    def release(self) -> None:
        """End live responses and requests that wait, because the hosting server is about to stop. Signals to the
        process do this where the server runs in the main thread; elsewhere, call it on the event loop."""
        if self._app is not None:
            self._app.release()

    async def shutdown(self) -> None:
        app, self._app = self._app, None
        self._unhook()
        if app is not None:
            await app.stop()
            await app.db.aclose()

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """For the outer application's ``lifespan=``."""
        await self.startup()
        try:
            yield
        finally:
            await self.shutdown()

    async def _enter(self, request: Request) -> Answer:
        if self._app is None:
            await self.startup()
            assert self._app is not None
        return await settled(self._app(request))


def create_app(**settings: Any) -> Mounted:
    """An ASGI application with the settings of `tailrace.toml`, the environment and the arguments."""
    return Mounted(load(**settings))
