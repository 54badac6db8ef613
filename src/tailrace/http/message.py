"""Requests and responses, as they pass between a transport and a handler, without sockets.

Transports (our own and ASGI) build the `Request`, call the handler and write the answer (`submitted.py` says what a
handler returns). Header names are lower-case bytes on both sides.

A `LiveResponse` response stays open: its ``run(sink)`` is started as a task once the head is on the wire and is
cancelled when the reader leaves. A `Frame` is encoded once, however many sinks it is sent to.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Any, Final, Protocol

import msgspec

from tailrace.config import Config
from tailrace.http.unsent import Held

Headers = list[tuple[bytes, bytes]]

# What a browser shows or saves, and never runs. The rest may be a document with scripts (HTML, SVG, XML), now or in
# some browser.
INERT_TYPES: Final = frozenset(("application/json", "application/octet-stream", "text/plain"))
SANDBOX: Final = (b"content-security-policy", b"sandbox")


class Request(msgspec.Struct, eq=False):
    """One request, whole: the transport has read the body within its limits before a handler sees it."""

    method: bytes
    path: bytes  # raw, still percent-encoded, without the query
    query: bytes  # raw, without the "?"
    headers: dict[bytes, bytes]  # repeated fields are joined with ", "; not to be changed: requests may share them
    body: bytes
    peer: str = ""
    secure: bool = False
    mount: str = ""  # the part before `path` in the client's URL, percent-encoded; no slash at the end

    # Set when the request is dispatched: the server's configuration; and the parameters in the query string, if there
    # are any and the route knows all of its own.
    config: Config = None  # type: ignore[assignment]
    parameters: dict[str, str] = None  # type: ignore[assignment]


def origin(request: Request, config: Config) -> str:
    """How the client reaches this server: the URL before `request.path`, without a slash at the end."""
    if config.public_url is not None:
        return config.public_url.rstrip("/")
    host = request.headers.get(b"host", b"").decode("latin-1") or f"{config.host}:{config.port}"
    return f"{'https' if request.secure else 'http'}://{host}{request.mount}"


@lru_cache(maxsize=1024)
def content_fields(content_type: str) -> tuple[tuple[bytes, bytes], ...]:
    """The fields that say of which type a client's data is; what could run in a browser is sandboxed there."""
    field = (b"content-type", content_type.encode())
    # A comma may begin another type: browsers take the last one.
    inert = "," not in content_type and content_type.partition(";")[0].strip().lower() in INERT_TYPES
    return (field,) if inert else (field, SANDBOX)


class Response(msgspec.Struct, eq=False):
    """A whole answer. The transport adds Content-Length, Date and what every answer carries."""

    status: int
    headers: Headers
    body: bytes = b""
    more: tuple[bytes, ...] = ()  # further parts of the body, none of them empty: a long page is not copied together


class Frame:
    """A piece of a live answer; `chunk` is the same bytes framed for HTTP/1.1, made at most once."""

    __slots__ = ("_chunk", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._chunk: bytes | None = None

    @property
    def chunk(self) -> bytes:
        if self._chunk is None:
            self._chunk = b"%x\r\n%b\r\n" % (len(self.data), self.data)
        return self._chunk


class ResponseSink(Protocol):
    """Where a live answer is written. Sending to a reader that is gone or dropped does nothing."""

    def send(self, *frames: Frame) -> None:
        """Queue frames: all of them, or none. A reader that has let more than its limit pile up is dropped, not
        buffered for."""

    async def drained(self) -> None:
        """Return when the reader has taken enough of what was sent to be sent more."""

    def hold(self, held: Held) -> None:
        """Count `held` as unsent output, in place of the memory held before, while it is sent in slices."""

    def release(self) -> None:
        """Nothing is held any more."""


class LiveResponse:
    """An answer that stays open; it ends when `run` returns. `whole`: it is not to end before, so that if `run` is
    cancelled the connection is cut, as it is when `run` fails."""

    __slots__ = ("headers", "run", "status", "whole")

    def __init__(
        self,
        status: int,
        headers: Headers,
        run: Callable[[ResponseSink], Coroutine[Any, Any, None]],
        *,
        whole: bool = False,
    ) -> None:
        self.status = status
        self.headers = headers
        self.run = run
        self.whole = whole


Answer = Response | LiveResponse
