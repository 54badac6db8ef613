"""The client of one server: streams, tables, SQL, access keys; topics are in `topics`.

It retries nothing by itself but reads that follow a stream, which go on where they stopped.
"""

from __future__ import annotations

import threading
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from tailrace.client.errors import raised, result
from tailrace.client.page import Page, followed
from tailrace.client.pipeline import Pipeline
from tailrace.client.topics import Topics
from tailrace.errors import Invalid, Unauthenticated, Unavailable
from tailrace.sql.result import Result

_NOTHING: Mapping[str, str] = {}
_VALUES: dict[bool, Mapping[str, str]] = {False: _NOTHING, True: {"values": "typed"}}
_KEYS = "/v1/admin/keys"
_AUTH = "/v1/api/auth"
_PATIENCE_S = 90.0  # longer than the server holds a long-poll
_PORT_MAX = 65_535
_results = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)  # numbers keep all their digits


class Client(Topics, Pipeline):
    """Talks to one server, with its `token`, or as a user: `user` and `password` go with each request, `login` changes
    them for a session of its own."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:4437",
        *,
        token: str | None = None,
        user: str | None = None,
        password: str | None = None,
    ) -> None:
        self._url = _server(url)
        self._authorization = _authorization(token, user, password)
        self._refresh_token: str | None = None
        self._refreshing = threading.Lock()
        self._http = self._connection()

    def _connection(self, **options: Any) -> httpx.Client:
        """Connections to the server, apart from others."""
        return httpx.Client(base_url=self._url, timeout=httpx.Timeout(_PATIENCE_S, connect=5.0), **options)

    # -- who we are

    def login(self, user: str, password: str) -> None:
        """Begin a session. It is renewed when it runs out, until `logout`."""
        self._logged_in("login", {"username": user, "password": password})

    def logout(self) -> None:
        """End the session."""
        if self._refresh_token is not None:
            self._send("POST", f"{_AUTH}/logout", json={"refresh_token": self._refresh_token})
            self._refresh_token, self._authorization = None, {}

    def _logged_in(self, how: str, body: dict[str, str]) -> None:
        answer = self._answer(self._http, "POST", f"{_AUTH}/{how}", json=body)
        if answer.status_code >= 400:
            raise raised(answer)
        facts = answer.json()
        self._authorization = {"authorization": f"Bearer {facts['access_token']}"}
        self._refresh_token = facts["refresh_token"]

    def _renewed(self, before: Mapping[str, str]) -> None:
        """Renew the session, unless another thread has done so since `before` was sent."""
        with self._refreshing:
            if self._authorization == before and self._refresh_token is not None:
                self._logged_in("refresh", {"refresh_token": self._refresh_token})

    # -- SQL

    def sql(self, text: str, params: Sequence[Any] = ()) -> list[Result]:
        """Run statements; the result of each. The error of one that fails has `line`, `column` and `done`, the results
        of those before it."""
        try:
            body = msgspec.json.encode({"sql": text, "params": [_parameter(each) for each in params]})
        except (UnicodeEncodeError, TypeError) as error:
            raise Invalid(f"the statement or its parameters cannot be sent to the server: {error}") from None
        answer = self._send("POST", "/v1/api/sql", headers={"content-type": "application/json"}, content=body)
        told = _results.decode(answer.content)
        return [result(each) for each in told["results"]]

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
        return followed(lambda offset, wait: self.read(path, offset, wait=wait), offset)

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
            return msgspec.json.decode(answer.content or b"{}", type=dict[str, Any])  # some operations say nothing
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Unavailable(f"{self._url} does not speak of tables: is it a Tailrace server?") from None

    def changes(self, table: str, offset: str = "-1", *, wait: bool = False, typed: bool = False) -> Page:
        """One page of a table's change records, a JSON array; as `read`. Values are plain JSON, or `typed`."""
        return self._read(_changes(table), offset, wait, _VALUES[typed])

    def follow_changes(self, table: str, offset: str = "-1", *, typed: bool = False) -> Iterator[Page]:
        """Change records as they come, until the change stream is closed; as `follow`."""
        return followed(lambda offset, wait: self.changes(table, offset, wait=wait, typed=typed), offset)

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

    def create_access_key(self, principal: str, role: str | None = None) -> dict[str, Any]:
        """A new key, with its secret. `role` None: the user's of that name, or `user` if there is none."""
        asked = {"principal": principal} if role is None else {"principal": principal, "role": role}
        made: dict[str, Any] = self._send("POST", _KEYS, json=asked).json()
        return made

    def delete_access_key(self, name: str) -> None:
        self._send("DELETE", f"{_KEYS}/{quote(name, safe='')}")

    def switch_access_key(self, name: str, *, disabled: bool) -> None:
        self._send("PATCH", f"{_KEYS}/{quote(name, safe='')}", json={"disabled": disabled})

    def rotate_signing_key(self) -> dict[str, Any]:
        """Have webhooks signed with a new key; that key, without its halves."""
        made: dict[str, Any] = self._send("POST", "/v1/admin/signing-keys/rotate").json()
        return made

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

    def _page(self, target: str, offset: str, wait: bool) -> Page:
        return self._read(target, offset, wait)

    def _send(self, method: str, target: str, *, http: httpx.Client | None = None, **options: Any) -> httpx.Response:
        before = self._authorization
        answer = self._answer(http or self._http, method, target, **options)
        if answer.status_code == Unauthenticated.status and self._refresh_token is not None:
            self._renewed(before)
            answer = self._answer(http or self._http, method, target, **options)
        if answer.status_code >= 400:
            raise raised(answer)
        return answer

    def _open(self, target: str, **options: Any) -> httpx.Response:
        """The answer to a GET, its body still to be read; to be closed."""
        before = self._authorization
        answer = self._answer(self._http, "GET", target, stream=True, **options)
        if answer.status_code == Unauthenticated.status and self._refresh_token is not None:
            answer.close()
            self._renewed(before)
            answer = self._answer(self._http, "GET", target, stream=True, **options)
        if answer.status_code >= 400:
            try:
                answer.read()
            except httpx.HTTPError as error:
                raise Unavailable(f"cannot read the answer of {self._url}: {error}") from error
            finally:
                answer.close()
            raise raised(answer)
        return answer

    def _answer(
        self, http: httpx.Client, method: str, target: str, *, stream: bool = False, **options: Any
    ) -> httpx.Response:
        if http.is_closed or self._http.is_closed:
            raise Unavailable("this client was closed; make another one", code="CLOSED")
        headers = {**self._authorization, **options.pop("headers", _NOTHING)}
        try:
            return http.send(http.build_request(method, target, headers=headers, **options), stream=stream)
        except UnicodeEncodeError as error:  # in a header or the query
            raise Invalid(f"{error.object!r} cannot be sent to the server: {error.reason}") from None
        except httpx.HTTPError as error:
            raise Unavailable(
                f"cannot reach {self._url}: {error}; is the server running (tailrace serve --dev)?"
            ) from error
        except httpx.InvalidURL as error:
            raise Invalid(f"{str(self._url)!r} is not a server's URL: {error}") from error


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


def _authorization(token: str | None, user: str | None, password: str | None) -> dict[str, str]:
    """What says who we are."""
    if token is not None and (user is not None or password is not None):
        raise Invalid("a token and a user are two ways to say who you are; give one of them")
    if token is not None:
        if not (token.isascii() and token.isprintable()):
            raise Invalid("the token is not one: it holds other characters than printable ASCII")
        return {"authorization": f"Bearer {token}"}
    if user is None and password is None:
        return {}
    if user is None or password is None:
        raise Invalid("a user has a name and a password; give both")
    if ":" in user:
        raise Invalid(f"{user!r} cannot name a user: it has a colon in it")
    try:
        return {"authorization": f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"}
    except UnicodeEncodeError:
        raise Invalid("the user or the password is not valid UTF-8") from None


def _parameter(given: Any) -> Any:
    if isinstance(given, bytes | bytearray):
        return {"$base64": b64encode(given).decode()}
    return given
