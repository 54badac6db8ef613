"""HTTP/1.1 connections to one server, over the standard library.

It imports in a tenth of the time that a full HTTP library takes, which every start of the command line and of a Spark
worker would wait for. A connection is kept for the next request of any thread. Nothing is retried here: a request whose
response was lost may have taken effect.
"""

from __future__ import annotations

import os
import select
import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from tailrace.errors import Invalid

if TYPE_CHECKING:
    import ssl

CONNECT_TIMEOUT_S: Final = 5.0
IDLE_MAX: Final = 20  # connections that are kept for later
CHUNK_BYTES: Final = 64 * 1024  # of a body that is read as it arrives


class ConnectionFailed(Exception):
    """The server could not be reached, or its response did not arrive."""


class ServerAddress(msgspec.Struct, frozen=True):
    """Where a server is; `prefix` comes before every path."""

    scheme: str
    host: str
    port: int
    prefix: str
    text: str

    def __str__(self) -> str:
        return self.text

    @classmethod
    def parse(cls, url: str) -> ServerAddress:
        try:
            url.encode()
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise Invalid(f"{url!r} is not a server's URL: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable() or " " in url:
            raise Invalid(f"{url!r} is not a server's URL: give one like http://127.0.0.1:4437")
        return cls(
            parts.scheme,
            parts.hostname,
            port or (443 if parts.scheme == "https" else 80),
            quote(parts.path.rstrip("/"), safe="/%"),
            url.rstrip("/"),
        )


class ServerResponse:
    """A response. Its body is `content`, or is read by `iter_raw` as it arrives; header names are in lower case."""

    __slots__ = ("_body", "_release", "content", "headers", "reason_phrase", "status_code")

    def __init__(self, body: HTTPResponse, release: Callable[[bool], None]) -> None:
        self._body = body
        self._release = release
        self.status_code = body.status
        self.reason_phrase = body.reason
        self.content = b""
        self.headers: dict[str, str] = {}
        for name, value in body.getheaders():
            key = name.lower()
            self.headers[key] = f"{self.headers[key]}, {value}" if key in self.headers else value

    def json(self) -> Any:
        """The body as JSON; ValueError if it is not."""
        return msgspec.json.decode(self.content)

    def read(self) -> bytes:
        """The whole body."""
        try:
            self.content = self._body.read()
        except (OSError, HTTPException) as error:
            self.close()
            raise ConnectionFailed(_reason(error)) from error
        self._release(not self._body.will_close)
        return self.content

    def iter_raw(self) -> Iterator[bytes]:
        """The body in pieces, as they arrive."""
        announced = self.headers.get("content-length")
        left = None if announced is None else int(announced)
        while True:
            try:
                piece = self._body.read(CHUNK_BYTES)
            except (OSError, HTTPException, ValueError) as error:
                raise ConnectionFailed(_reason(error)) from error
            if not piece:
                break
            if left is not None:
                left -= len(piece)
            yield piece
        if left:
            raise ConnectionFailed(f"the connection was closed {left} bytes before the end of the body")

    def close(self) -> None:
        """Let go of a body that was not read to its end."""
        self._release(False)


class ServerConnections:
    """Connections to one server, for any number of threads. `on_connect` is called with each new socket."""

    def __init__(
        self, address: ServerAddress, timeout_s: float, *, on_connect: Callable[[socket.socket], None] | None = None
    ) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._on_connect = on_connect
        self._idle: deque[HTTPConnection] = deque()
        self._context: ssl.SSLContext | None = None
        self.is_closed = False

    def request(
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
    ) -> ServerResponse:
        """Send a request and read its response; with `stream`, its body is left to the caller, who closes it.

        `ConnectionFailed` if the server cannot be reached; UnicodeEncodeError if a header or the query is not text."""
        fields = dict(headers)
        if json is not None:
            content = msgspec.json.encode(json)
            fields.setdefault("content-type", "application/json")
        path = self._address.prefix + target
        if params:
            path = f"{path}?{urlencode(params, quote_via=quote)}"
        connection = self._taken(self._timeout_s if timeout_s is None else timeout_s)
        try:
            connection.request(method, self._absolute(connection, path), content, fields)
            received = connection.getresponse()
        except (OSError, HTTPException) as error:
            connection.close()
            raise ConnectionFailed(_reason(error)) from error
        except BaseException:
            connection.close()
            raise

        def release(reusable: bool) -> None:
            if reusable and not self.is_closed and len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
            else:
                received.close()
                connection.close()

        response = ServerResponse(received, release)
        if not stream:
            response.read()
        return response

    def close(self) -> None:
        self.is_closed = True
        while self._idle:
            self._idle.pop().close()

    def _taken(self, timeout_s: float) -> HTTPConnection:
        """A connection that is open: one that is idle and that the server has not closed, or a new one."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread took it
                break
            if connection.sock is not None and not _readable(connection.sock):
                connection.sock.settimeout(timeout_s)
                return connection
            connection.close()
        connection = self._made()
        try:
            connection.connect()
        except (OSError, HTTPException) as error:
            connection.close()
            raise ConnectionFailed(_reason(error)) from error
        connection.sock.settimeout(timeout_s)
        if self._on_connect is not None:
            self._on_connect(connection.sock)
        return connection

    def _made(self) -> HTTPConnection:
        address = self._address
        proxy = _proxy(address)
        host, port = (address.host, address.port) if proxy is None else proxy
        if address.scheme == "http":
            return HTTPConnection(host, port, timeout=CONNECT_TIMEOUT_S)
        if self._context is None:
            self._context = _trusted()
        connection = HTTPSConnection(host, port, timeout=CONNECT_TIMEOUT_S, context=self._context)
        if proxy is not None:
            connection.set_tunnel(address.host, address.port)
        return connection

    def _absolute(self, connection: HTTPConnection, path: str) -> str:
        """The request's target; a proxy for http needs the whole URL."""
        address = self._address
        if address.scheme == "https" or (connection.host, connection.port) == (address.host, address.port):
            return path
        host = f"[{address.host}]" if ":" in address.host else address.host
        return f"http://{host}:{address.port}{path}"


def _readable(sock: socket.socket) -> bool:
    """Whether an idle connection has something to read, which can only be its end."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _trusted() -> ssl.SSLContext:
    import ssl

    context = ssl.create_default_context()
    if not context.cert_store_stats()["x509_ca"] and "SSL_CERT_FILE" not in os.environ:
        import certifi  # where Python does not find the system's certificates

        context.load_verify_locations(certifi.where())
    return context


def _proxy(address: ServerAddress) -> tuple[str, int] | None:
    """The proxy of the environment (HTTP_PROXY, HTTPS_PROXY, NO_PROXY), if it has one."""
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    from urllib.request import getproxies, proxy_bypass

    found = getproxies().get(address.scheme) or getproxies().get("all")
    if not found or proxy_bypass(address.host):
        return None
    parts = urlsplit(found if "//" in found else f"//{found}")
    return (parts.hostname, parts.port or 80) if parts.hostname else None


def _reason(error: Exception) -> str:
    """An error in words; some have none."""
    return str(error) or type(error).__name__
