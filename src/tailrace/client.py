"""A small HTTP client for a Tailrace server: what the command line uses.

It retries nothing by itself but reads that follow a stream, which go on where they stopped. For applications there are
the official Durable Streams clients.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from tailrace.errors import (
    Conflict,
    Error,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    TooLarge,
    TooMany,
    Unauthenticated,
    Unavailable,
)

_KINDS: dict[int, type[Error]] = {
    kind.status: kind
    for kind in (Invalid, Unauthenticated, Forbidden, NotFound, Conflict, Gone, TooLarge, TooMany, Unavailable)
}
_PATIENCE_S = 90.0  # longer than the server holds a long-poll
_PORT_MAX = 65_535


class Page(msgspec.Struct, frozen=True):
    """One answer to a read."""

    body: bytes
    content_type: str
    next: str
    up_to_date: bool
    closed: bool


class Client:
    """Talks to one server."""

    def __init__(self, url: str = "http://127.0.0.1:4437", *, token: str | None = None) -> None:
        if token is not None and not (token.isascii() and token.isprintable()):
            raise Invalid("the token is not one: it holds other characters than printable ASCII")
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._http = httpx.Client(
            base_url=_server(url), headers=headers, timeout=httpx.Timeout(_PATIENCE_S, connect=5.0)
        )

    def create(self, path: str, content_type: str = "text/plain", *, ttl_s: int | None = None) -> str:
        """Make sure the stream exists; its tail offset."""
        headers = {"content-type": content_type}
        if ttl_s is not None:
            headers["stream-ttl"] = str(ttl_s)
        return self._send("PUT", path, headers=headers).headers["stream-next-offset"]

    def append(self, path: str, body: bytes, content_type: str = "text/plain", *, close: bool = False) -> str:
        """Append durably; the new tail offset."""
        headers = {"content-type": content_type}
        if close:
            headers["stream-closed"] = "true"
        return self._send("POST", path, headers=headers, content=body).headers["stream-next-offset"]

    def head(self, path: str) -> dict[str, str]:
        """What the server says of a stream."""
        return dict(self._send("HEAD", path).headers)

    def delete(self, path: str) -> None:
        self._send("DELETE", path)

    def read(self, path: str, offset: str = "-1", *, wait: bool = False) -> Page:
        """One page from `offset` on; with `wait`, when there is one or the server's time-out has passed."""
        query = {"offset": offset}
        if wait:
            query["live"] = "long-poll"
        answer = self._send("GET", path, params=query)
        fields = answer.headers
        return Page(
            answer.content,
            fields.get("content-type", ""),
            fields["stream-next-offset"],
            fields.get("stream-up-to-date") == "true",
            fields.get("stream-closed") == "true",
        )

    def follow(self, path: str, offset: str = "-1") -> Iterator[Page]:
        """Pages with data, as they come, until the stream is closed. A broken connection is taken up again; one that
        never was, is an error."""
        wait = reached = False
        delay_s = 0.1
        while True:
            try:
                page = self.read(path, offset, wait=wait or offset == "now")
                delay_s = 0.1
                reached = True
            except (Unavailable, TooMany):
                if not reached:
                    raise
                time.sleep(delay_s)
                delay_s = min(delay_s * 2, 5.0)
                continue
            if page.body and page.body != b"[]":
                yield page
            if page.closed:
                return
            offset, wait = page.next, page.up_to_date

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            target = f"/v1/stream/{quote(path)}"
        except UnicodeEncodeError:
            raise Invalid(f"{path!r} cannot name a stream: it is not valid UTF-8") from None
        try:
            answer = self._http.request(method, target, **options)
        except UnicodeEncodeError as error:  # in a header or the query
            raise Invalid(f"{error.object!r} cannot be sent to the server: {error.reason}") from None
        except httpx.HTTPError as error:
            raise Unavailable(
                f"cannot reach {self._http.base_url}: {error}; is the server running (tailrace serve --dev)?"
            ) from error
        except httpx.InvalidURL as error:
            raise Invalid(f"{str(self._http.base_url)!r} is not a server's URL: {error}") from error
        if answer.status_code >= 400:
            raise _error(answer)
        return answer


def _server(url: str) -> httpx.URL:
    """The URL, if a server can be there."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, UnicodeEncodeError) as error:
        raise Invalid(f"{url!r} is not a server's URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host or (parsed.port or 0) > _PORT_MAX:
        raise Invalid(f"{url!r} is not a server's URL: give one like http://127.0.0.1:4437")
    return parsed


def _error(answer: httpx.Response) -> Error:
    """The server's error, as it was raised there."""
    kind = _KINDS.get(answer.status_code, Error)
    try:
        facts = answer.json()["error"]
        return kind(facts["message"], code=facts["code"])
    except (ValueError, KeyError, TypeError):
        return kind(f"the server answered {answer.status_code} {answer.reason_phrase}")
