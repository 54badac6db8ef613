"""A small HTTP client for a Tailrace server: what the command line uses.

It retries nothing by itself but reads that follow a stream, which go on where they stopped. For applications there are
the official Durable Streams clients, and for tables the SDKs of AWS, whose protocol `Client.call` speaks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
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
_EXCEPTIONS: dict[str, type[Error]] = {  # what the tables' protocol says with status 400
    "ResourceNotFoundException": NotFound,
    "TableNotFoundException": NotFound,
    "ResourceInUseException": Conflict,
    "ConditionalCheckFailedException": Conflict,
    "TransactionCanceledException": Conflict,
    "TransactionConflictException": Conflict,
    "AccessDeniedException": Forbidden,
    "MissingAuthenticationTokenException": Unauthenticated,
    "IncompleteSignatureException": Unauthenticated,
    "InvalidSignatureException": Unauthenticated,
    "UnrecognizedClientException": Unauthenticated,
    "LimitExceededException": TooMany,
    "ThrottlingException": TooMany,
    "ProvisionedThroughputExceededException": TooMany,
}
_NOTHING: Mapping[str, str] = {}
_VALUES: dict[bool, Mapping[str, str]] = {False: _NOTHING, True: {"values": "typed"}}
_KEYS = "/v1/admin/keys"
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

    # -- streams

    def create(self, path: str, content_type: str = "text/plain", *, ttl_s: int | None = None) -> str:
        """Make sure the stream exists; its tail offset."""
        headers = {"content-type": content_type}
        if ttl_s is not None:
            headers["stream-ttl"] = str(ttl_s)
        return self._send("PUT", _stream(path), headers=headers).headers["stream-next-offset"]

    def append(self, path: str, body: bytes, content_type: str = "text/plain", *, close: bool = False) -> str:
        """Append durably; the new tail offset."""
        headers = {"content-type": content_type}
        if close:
            headers["stream-closed"] = "true"
        return self._send("POST", _stream(path), headers=headers, content=body).headers["stream-next-offset"]

    def head(self, path: str) -> dict[str, str]:
        """What the server says of a stream."""
        return dict(self._send("HEAD", _stream(path)).headers)

    def delete(self, path: str) -> None:
        self._send("DELETE", _stream(path))

    def read(self, path: str, offset: str = "-1", *, wait: bool = False) -> Page:
        """One page from `offset` on; with `wait`, when there is one or the server's time-out has passed."""
        return self._read(_stream(path), offset, wait)

    def follow(self, path: str, offset: str = "-1") -> Iterator[Page]:
        """Pages with data, as they come, until the stream is closed. A broken connection is taken up again; one that
        never was, is an error."""
        return _followed(lambda offset, wait: self.read(path, offset, wait=wait), offset)

    # -- tables

    def call(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """Do an operation of the DynamoDB API; parameters and answer are its typed JSON, binary as base64 text."""
        headers = {"content-type": "application/x-amz-json-1.0", "x-amz-target": f"DynamoDB_20120810.{operation}"}
        try:
            body = msgspec.json.encode(parameters)
        except UnicodeEncodeError as error:
            raise Invalid(f"{error.object!r} cannot be sent to the server: {error.reason}") from None
        answer = self._send("POST", "/", headers=headers, content=body)
        try:
            return msgspec.json.decode(answer.content, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Unavailable(f"{self._http.base_url} does not speak of tables: is it a Tailrace server?") from None

    def changes(self, table: str, offset: str = "-1", *, wait: bool = False, typed: bool = False) -> Page:
        """One page of a table's change records, a JSON array; as `read`. Values are plain JSON, or `typed`."""
        return self._read(_changes(table), offset, wait, _VALUES[typed])

    def follow_changes(self, table: str, offset: str = "-1", *, typed: bool = False) -> Iterator[Page]:
        """Change records as they come, until the change stream is closed; as `follow`."""
        return _followed(lambda offset, wait: self.changes(table, offset, wait=wait, typed=typed), offset)

    def stream_info(self, table: str, label: str | None = None) -> dict[str, Any]:
        """What is in a table's change stream, how long it is kept, and its cursors."""
        return self._upkeep("GET", f"{_changes(table)}/info", label)

    def alter_retention(self, table: str, bounds: Mapping[str, int | None], label: str | None = None) -> dict[str, Any]:
        """Keep changes for `max_age_s` and `max_count` of them; None is no bound, and what is left out stays."""
        return self._upkeep("PATCH", _changes(table), label, bounds)

    def prune(self, table: str, through: int, label: str | None = None) -> dict[str, Any]:
        """Remove changes up to and including a sequence; what is left, and `pruned`, how many went."""
        return self._upkeep("POST", f"{_changes(table)}/prune", label, {"through": through})

    def cursors(self, table: str, label: str | None = None) -> list[dict[str, Any]]:
        """The named cursors of a table's change stream."""
        found: list[dict[str, Any]] = self._upkeep("GET", _cursors(table), label)["cursors"]
        return found

    def save_cursor(
        self, table: str, name: str, sequence: int, hold_bytes: int | None = None, label: str | None = None
    ) -> dict[str, Any]:
        """Note that `name` has seen everything up to `sequence`."""
        facts = {"sequence": sequence} if hold_bytes is None else {"sequence": sequence, "hold_bytes": hold_bytes}
        return self._upkeep("PUT", _cursors(table, name), label, facts)

    def drop_cursor(self, table: str, name: str, label: str | None = None) -> None:
        self._send("DELETE", _cursors(table, name), params=_labelled(label))

    def _upkeep(
        self, method: str, target: str, label: str | None, facts: Mapping[str, int | None] | None = None
    ) -> dict[str, Any]:
        state: dict[str, Any] = self._send(method, target, params=_labelled(label), json=facts).json()
        return state

    # -- access keys

    def access_keys(self) -> list[dict[str, Any]]:
        """All keys, without their secrets."""
        found: list[dict[str, Any]] = self._send("GET", _KEYS).json()["keys"]
        return found

    def create_access_key(self, principal: str) -> dict[str, Any]:
        """A new key, with its secret."""
        made: dict[str, Any] = self._send("POST", _KEYS, json={"principal": principal}).json()
        return made

    def delete_access_key(self, name: str) -> None:
        self._send("DELETE", f"{_KEYS}/{quote(name, safe='')}")

    def switch_access_key(self, name: str, *, disabled: bool) -> None:
        self._send("PATCH", f"{_KEYS}/{quote(name, safe='')}", json={"disabled": disabled})

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, target: str, offset: str, wait: bool, asked: Mapping[str, str] = _NOTHING) -> Page:
        query = {"offset": offset, **asked}
        if wait:
            query["live"] = "long-poll"
        answer = self._send("GET", target, params=query)
        fields = answer.headers
        return Page(
            answer.content,
            fields.get("content-type", ""),
            fields["stream-next-offset"],
            fields.get("stream-up-to-date") == "true",
            fields.get("stream-closed") == "true",
        )

    def _send(self, method: str, target: str, **options: Any) -> httpx.Response:
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


def _followed(read: Callable[[str, bool], Page], offset: str) -> Iterator[Page]:
    """Pages with data, read one after the other; `read` takes an offset and whether to wait."""
    wait = reached = False
    delay_s = 0.1
    while True:
        try:
            page = read(offset, wait or offset == "now")
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


def _stream(path: str) -> str:
    try:
        return f"/v1/stream/{quote(path)}"
    except UnicodeEncodeError:
        raise Invalid(f"{path!r} cannot name a stream: it is not valid UTF-8") from None


def _table(name: str) -> str:
    try:
        return f"/v1/tables/{quote(name, safe='')}"
    except UnicodeEncodeError:
        raise Invalid(f"{name!r} cannot name a table: it is not valid UTF-8") from None


def _changes(table: str) -> str:
    return f"{_table(table)}/stream"


def _cursors(table: str, name: str | None = None) -> str:
    if name is None:
        return f"{_table(table)}/cursors"
    try:
        return f"{_table(table)}/cursors/{quote(name, safe='')}"
    except UnicodeEncodeError:
        raise Invalid(f"{name!r} cannot name a cursor: it is not valid UTF-8") from None


def _labelled(label: str | None) -> Mapping[str, str]:
    return _NOTHING if label is None else {"label": label}


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
        facts = answer.json()
        if "__type" in facts:
            return _exception(facts, kind)
        return kind(facts["error"]["message"], code=facts["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return kind(f"the server answered {answer.status_code} {answer.reason_phrase}")


def _exception(facts: dict[str, Any], kind: type[Error]) -> Error:
    """An error of the tables' protocol."""
    name = facts["__type"].rpartition("#")[2]
    kind = _EXCEPTIONS.get(name, kind)
    message = facts.get("message") or facts.get("Message") or name
    if kind is Unauthenticated:
        message += "; give the server's token (--token or TAILRACE_TOKEN)"
    return kind(message, code=name)
