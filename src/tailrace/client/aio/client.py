"""The client of one server: streams, tables, SQL, access keys; topics and the pipeline are in modules of their own.

It repeats no request but reads that follow a stream, which go on where they stopped.
"""

from __future__ import annotations

import socket
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from decimal import Decimal
from types import TracebackType
from typing import Any, Final, cast

import msgspec

from tailrace.client.aio.inspection import AsyncInspection
from tailrace.client.aio.pipeline import AsyncPipeline
from tailrace.client.aio.topics import AsyncTopics
from tailrace.client.async_connection import AsyncServerConnections, AsyncServerResponse
from tailrace.client.connection import ConnectionFailed, ServerAddress
from tailrace.client.errors import error_of, statement_result
from tailrace.client.heartbeat import HeartbeatClient
from tailrace.client.targets import (
    NOTHING,
    authorization,
    changes_target,
    cursors_target,
    label_parameters,
    quoted,
    stream_target,
)
from tailrace.embedded.aio.stream import AsyncStreamApi, AsyncStreamStore
from tailrace.embedded.async_primitives import ASYNC, AsyncLock, sleep
from tailrace.embedded.heartbeat import HeartbeatSource
from tailrace.embedded.pages import StreamPage, StreamState, page_of_response, state_of_response
from tailrace.errors import Invalid, TooMany, Unauthenticated, Unavailable
from tailrace.sql.result import Result

TYPED: Final[dict[bool, Mapping[str, str]]] = {False: NOTHING, True: {"values": "typed"}}
KEYS: Final = "/v1/admin/keys"
AUTH: Final = "/v1/api/auth"
TIMEOUT_S: Final = 90.0  # longer than the server holds a long-poll
_results: Final = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)  # numbers keep all their digits


class AsyncClient(AsyncTopics, AsyncStreamApi, AsyncPipeline, AsyncInspection):
    """Talks to one server, for programs on an event loop; with its `token`, or as a user: `user` and `password` go with
    each request, `login` exchanges them for a session."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:4437",
        *,
        token: str | None = None,
        user: str | None = None,
        password: str | None = None,
    ) -> None:
        self._address = ServerAddress.parse(url)
        self._authorization = authorization(token, user, password)
        self._refresh_token: str | None = None
        self._refreshing = AsyncLock()
        self._http = self._connections()

    def _connections(self, on_connect: Callable[[socket.socket], None] | None = None) -> AsyncServerConnections:
        """Connections to the server, separate from others."""
        return AsyncServerConnections(self._address, TIMEOUT_S, on_connect=on_connect)

    # -- sessions

    async def login(self, user: str, password: str) -> None:
        """Start a session. It is renewed when it expires, until `logout`."""
        await self._start_session("login", {"username": user, "password": password})

    async def logout(self) -> None:
        """End the session."""
        if self._refresh_token is not None:
            await self._send("POST", f"{AUTH}/logout", json={"refresh_token": self._refresh_token})
            self._refresh_token, self._authorization = None, {}

    async def _start_session(self, how: str, body: dict[str, str]) -> None:
        response = await self._response(self._http, "POST", f"{AUTH}/{how}", json=body)
        if response.status_code >= 400:
            raise error_of(response)
        facts = response.json()
        self._authorization = {"authorization": f"Bearer {facts['access_token']}"}
        self._refresh_token = facts["refresh_token"]

    async def _renew(self, before: Mapping[str, str]) -> None:
        """Renew the session, unless another request has done so since `before` was sent."""
        async with self._refreshing:
            if self._authorization == before and self._refresh_token is not None:
                await self._start_session("refresh", {"refresh_token": self._refresh_token})

    # -- SQL

    async def sql(self, text: str, params: Sequence[Any] = ()) -> list[Result]:
        """Run statements; the result of each. The error of one that fails has `line`, `column` and `done`, the results
        of those before it."""
        try:
            body = msgspec.json.encode({"sql": text, "params": [_parameter(each) for each in params]})
        except (UnicodeEncodeError, TypeError) as error:
            raise Invalid(f"the statement or its parameters cannot be sent to the server: {error}") from None
        response = await self._send("POST", "/v1/api/sql", headers={"content-type": "application/json"}, content=body)
        return [statement_result(each) for each in _results.decode(response.content)["results"]]

    # -- streams

    def _stream_store(self) -> AsyncStreamStore:
        return self

    async def create(self, path: str, content_type: str = "text/plain", *, ttl_s: int | None = None) -> str:
        """Create a stream if it does not exist. Returns its tail offset."""
        headers = {"content-type": content_type}
        if ttl_s is not None:
            headers["stream-ttl"] = str(ttl_s)
        response = await self._send("PUT", stream_target(path), headers=headers)
        return response.headers["stream-next-offset"]

    async def append(self, path: str, body: bytes, content_type: str = "text/plain", *, close: bool = False) -> str:
        """Append durably. Returns the new tail offset."""
        headers = {"content-type": content_type}
        if close:
            headers["stream-closed"] = "true"
        response = await self._send("POST", stream_target(path), headers=headers, content=body)
        return response.headers["stream-next-offset"]

    async def head(self, path: str) -> dict[str, str]:
        """The headers that describe a stream."""
        response = await self._send("HEAD", stream_target(path))
        return dict(response.headers)

    async def state(self, path: str) -> StreamState:
        """The content type of a stream, its tail offset, and whether it is closed."""
        return state_of_response(path, await self.head(path))

    async def delete(self, path: str) -> None:
        """Delete a stream."""
        await self._send("DELETE", stream_target(path))

    async def read(self, path: str, offset: str = "-1", *, wait: bool = False) -> StreamPage:
        """One page from `offset` on; with `wait`, when there is one or the server's time-out has passed."""
        return await self._read(stream_target(path), offset, wait)

    def follow(self, path: str, offset: str = "-1") -> AsyncIterator[StreamPage]:
        """Pages with data, as they arrive, until the stream is closed. A broken connection is made again; a server that
        cannot be reached at first is an error."""
        return self._follow(stream_target(path), offset)

    # -- tables

    async def call(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """Call an operation of the DynamoDB API; parameters and result are its typed JSON, binary as base64 text."""
        headers = {"content-type": "application/x-amz-json-1.0", "x-amz-target": f"DynamoDB_20120810.{operation}"}
        try:
            body = msgspec.json.encode(parameters)
        except UnicodeEncodeError as error:
            raise Invalid(f"{error.object!r} cannot be sent to the server: {error.reason}") from None
        response = await self._send("POST", "/", headers=headers, content=body)
        try:
            return msgspec.json.decode(response.content or b"{}", type=dict[str, Any])  # some have an empty response
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Unavailable(f"{self._address} does not offer tables: is it a Tailrace server?") from None

    async def changes(self, table: str, offset: str = "-1", *, wait: bool = False, typed: bool = False) -> StreamPage:
        """One page of a table's change records, a JSON array; as `read`. Values are plain JSON, or `typed`."""
        return await self._read(changes_target(table), offset, wait, TYPED[typed])

    def follow_changes(self, table: str, offset: str = "-1", *, typed: bool = False) -> AsyncIterator[StreamPage]:
        """Change records as they arrive, until the change stream is closed; as `follow`."""
        return self._follow(changes_target(table), offset, **TYPED[typed])

    async def stream_info(self, table: str, label: str | None = None) -> dict[str, Any]:
        """The contents of a table's change stream, its retention, and its cursors."""
        return await self._retention("GET", f"{changes_target(table)}/info", label)

    async def alter_retention(
        self, table: str, bounds: Mapping[str, int | None], label: str | None = None
    ) -> dict[str, Any]:
        """Keep changes for `max_age_s` and `max_count` of them; None is no bound, and a bound left out stays."""
        return await self._retention("PATCH", changes_target(table), label, bounds)

    async def prune(self, table: str, through: int, label: str | None = None) -> dict[str, Any]:
        """Remove changes up to and including a sequence. Returns the state of the stream, with the number removed as
        `pruned`."""
        return await self._retention("POST", f"{changes_target(table)}/prune", label, {"through": through})

    async def cursors(self, table: str, label: str | None = None) -> list[dict[str, Any]]:
        """The named cursors of a table's change stream."""
        state = await self._retention("GET", cursors_target(table), label)
        cursors: list[dict[str, Any]] = state["cursors"]
        return cursors

    async def save_cursor(
        self, table: str, name: str, sequence: int, hold_bytes: int | None = None, label: str | None = None
    ) -> dict[str, Any]:
        """Record that `name` has seen all changes up to `sequence`."""
        facts = {"sequence": sequence} if hold_bytes is None else {"sequence": sequence, "hold_bytes": hold_bytes}
        return await self._retention("PUT", cursors_target(table, name), label, facts)

    async def drop_cursor(self, table: str, name: str, label: str | None = None) -> None:
        """Drop a cursor."""
        await self._send("DELETE", cursors_target(table, name), params=label_parameters(label))

    async def _retention(
        self, method: str, target: str, label: str | None, facts: Mapping[str, int | None] | None = None
    ) -> dict[str, Any]:
        response = await self._send(method, target, params=label_parameters(label), json=facts)
        state: dict[str, Any] = response.json()
        return state

    # -- access keys

    async def access_keys(self) -> list[dict[str, Any]]:
        """All keys, without their secrets."""
        response = await self._send("GET", KEYS)
        keys: list[dict[str, Any]] = response.json()["keys"]
        return keys

    async def create_access_key(self, principal: str, role: str | None = None) -> dict[str, Any]:
        """A new key, with its secret. `role` None is that of the user with this name, or `user` if there is none."""
        body = {"principal": principal} if role is None else {"principal": principal, "role": role}
        response = await self._send("POST", KEYS, json=body)
        key: dict[str, Any] = response.json()
        return key

    async def delete_access_key(self, name: str) -> None:
        """Delete a key."""
        await self._send("DELETE", f"{KEYS}/{quoted(name, 'a key')}")

    async def switch_access_key(self, name: str, *, disabled: bool) -> None:
        """Disable a key, or enable it again."""
        await self._send("PATCH", f"{KEYS}/{quoted(name, 'a key')}", json={"disabled": disabled})

    async def rotate_signing_key(self) -> dict[str, Any]:
        """Have webhooks signed with a new key. Returns that key, without its halves."""
        response = await self._send("POST", "/v1/admin/signing-keys/rotate")
        key: dict[str, Any] = response.json()
        return key

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # -- sending

    def heartbeat_source(self) -> AbstractContextManager[HeartbeatSource]:
        """A client for the heartbeat of a consumer, which is a thread."""
        if ASYNC:
            return closing(HeartbeatClient(self._address.text, lambda: self._authorization))
        return nullcontext(cast("Any", self))

    async def _read(self, target: str, offset: str, wait: bool, parameters: Mapping[str, str] = NOTHING) -> StreamPage:
        query = {"offset": offset, **parameters}
        if wait:
            query["live"] = "long-poll"
        response = await self._send("GET", target, params=query)
        return page_of_response(response.content, response.headers)

    async def _follow(self, target: str, offset: str, **parameters: str) -> AsyncIterator[StreamPage]:
        wait = reached = False
        delay_s = 0.1
        while True:
            try:
                page = await self._read(target, offset, wait or offset == "now", parameters)
                delay_s = 0.1
                reached = True
            except (Unavailable, TooMany):
                if not reached:
                    raise
                await sleep(delay_s)
                delay_s = min(delay_s * 2, 5.0)
                continue
            if not page.empty:
                yield page
            if page.closed:
                return
            offset, wait = page.next, page.up_to_date

    async def _send(
        self, method: str, target: str, *, connections: AsyncServerConnections | None = None, **options: Any
    ) -> AsyncServerResponse:
        before = self._authorization
        response = await self._response(connections or self._http, method, target, **options)
        if response.status_code == Unauthenticated.status and self._refresh_token is not None:
            await self._renew(before)
            response = await self._response(connections or self._http, method, target, **options)
        if response.status_code >= 400:
            raise error_of(response)
        return response

    async def _open(self, target: str, **options: Any) -> AsyncServerResponse:
        """The response to a GET, its body still to be read; to be closed."""
        before = self._authorization
        response = await self._response(self._http, "GET", target, stream=True, **options)
        if response.status_code == Unauthenticated.status and self._refresh_token is not None:
            await response.aclose()
            await self._renew(before)
            response = await self._response(self._http, "GET", target, stream=True, **options)
        if response.status_code >= 400:
            try:
                await response.aread()
            except ConnectionFailed as error:
                raise Unavailable(f"cannot read the response of {self._address}: {error}") from error
            finally:
                await response.aclose()
            raise error_of(response)
        return response

    async def _response(
        self, connections: AsyncServerConnections, method: str, target: str, **options: Any
    ) -> AsyncServerResponse:
        if connections.is_closed or self._http.is_closed:
            raise Unavailable("this client was closed; make another one", code="CLOSED")
        headers = {**self._authorization, **options.pop("headers", NOTHING)}
        try:
            return await connections.request(method, target, headers=headers, **options)
        except UnicodeEncodeError as error:  # in a header or the query
            raise Invalid(f"{error.object!r} cannot be sent to the server: {error.reason}") from None
        except ConnectionFailed as error:
            raise Unavailable(
                f"cannot reach {self._address}: {error}; is the server running (tailrace serve --dev)?"
            ) from error


def _parameter(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return {"$base64": b64encode(value).decode()}
    return value
