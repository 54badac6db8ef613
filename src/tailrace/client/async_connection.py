"""HTTP/1.1 connections to one server for event loops, over httpx. `connection` has the same for threads."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx
import msgspec

from tailrace.client.connection import CONNECT_TIMEOUT_S, ConnectionFailed, ServerAddress


class AsyncServerResponse:
    """A response. Its body is `content`, or is read by `aiter_raw` as it arrives."""

    __slots__ = ("_response", "content", "headers", "reason_phrase", "status_code")

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.status_code = response.status_code
        self.reason_phrase = response.reason_phrase
        self.content = b""
        self.headers: Mapping[str, str] = response.headers

    def json(self) -> Any:
        """The body as JSON."""
        return msgspec.json.decode(self.content)

    async def aread(self) -> bytes:
        """The whole body."""
        try:
            self.content = await self._response.aread()
        except httpx.HTTPError as error:
            raise ConnectionFailed(str(error) or type(error).__name__) from error
        return self.content

    async def aiter_raw(self) -> AsyncIterator[bytes]:
        """The body in pieces, as they arrive."""
        try:
            async for piece in self._response.aiter_bytes():
                yield piece
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise ConnectionFailed(str(error) or type(error).__name__) from error

    async def aclose(self) -> None:
        """Let go of a body that was not read to its end."""
        await self._response.aclose()


class AsyncServerConnections:
    """Connections to one server, for one event loop. `on_connect` is called with each new socket."""

    def __init__(
        self, address: ServerAddress, timeout_s: float, *, on_connect: Callable[[socket.socket], None] | None = None
    ) -> None:
        self._timeout_s = timeout_s
        self._on_connect = on_connect
        self._http = httpx.AsyncClient(base_url=address.text)

    @property
    def is_closed(self) -> bool:
        return self._http.is_closed

    async def request(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str],
        params: Mapping[str, str] | None = None,
        json: Any = None,
        content: bytes | None = None,
        timeout_s: float | None = None,
        stream: bool = False,
    ) -> AsyncServerResponse:
        """Send a request and read its response; with `stream`, its body is left to the caller, who closes it.

        `ConnectionFailed` if the server cannot be reached; UnicodeEncodeError if a header or the query is not text."""
        fields = dict(headers)
        if json is not None:
            content = msgspec.json.encode(json)
            fields.setdefault("content-type", "application/json")
        request = self._http.build_request(
            method,
            target,
            headers=fields,
            params=params,
            content=content,
            timeout=httpx.Timeout(self._timeout_s if timeout_s is None else timeout_s, connect=CONNECT_TIMEOUT_S),
            extensions=None if self._on_connect is None else {"trace": self._traced},
        )
        try:
            response = AsyncServerResponse(await self._http.send(request, stream=True))
        except httpx.HTTPError as error:
            raise ConnectionFailed(str(error) or type(error).__name__) from error
        if not stream:
            await response.aread()
        return response

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _traced(self, event: str, facts: dict[str, Any]) -> None:
        """Events of a connection; nothing else gives its socket."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            assert self._on_connect is not None
            self._on_connect(facts["return_value"].get_extra_info("socket"))
