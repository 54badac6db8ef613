"""Subscriptions over HTTP: requests become commands, results become responses, callers show the right credentials."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import Database, limits
from tailrace.access import SYSTEM, Permission, Principal
from tailrace.clock import ManualClock
from tailrace.config import Config
from tailrace.errors import NotFound
from tailrace.http.message import Request, Response
from tailrace.http.route import PRINCIPAL, RouteTable
from tailrace.http.routes import ROUTES
from tailrace.streams.commands import Append, CreateStream
from tailrace.subscriptions.commands import ClaimWake
from tailrace.subscriptions.dispatch import BeginDelivery, Notify
from tests.unit.http.dispatching import Dispatching

START = "0000000000000000_0000000000000000"
ANONYMOUS = Principal("nobody", frozenset())
READER = Principal("reader", frozenset((Permission.READ,)))
HOOK = {"type": "webhook", "pattern": "events/*", "webhook": {"url": "http://127.0.0.1:9/hook"}}
PULL = {"type": "pull-wake", "pattern": "events/*", "wake_stream": "wake/pool"}


class Caller:
    """The handlers, called as the server would."""

    def __init__(self, db: Database, config: Config) -> None:
        self.db = db
        self.loop = asyncio.new_event_loop()
        self.dispatching = self.loop.run_until_complete(_dispatching(db, config))

    def configure(self, config: Config) -> None:
        self.loop.run_until_complete(self.dispatching.close())
        self.dispatching = self.loop.run_until_complete(_dispatching(self.db, config))

    def __call__(
        self, method: str, rest: str, body: Any = None, *, token: str | None = None, principal: Principal = SYSTEM,
        secure: bool = False, host: bytes = b"localhost:4437",
    ) -> tuple[int, Any]:  # fmt: skip
        response = self.raw(method, rest, body, token=token, principal=principal, secure=secure, host=host)
        return response.status, json.loads(response.body) if response.body else None

    def raw(
        self, method: str, rest: str, body: Any = None, *, token: str | None = None, principal: Principal = SYSTEM,
        secure: bool = False, host: bytes = b"localhost:4437",
    ) -> Response:  # fmt: skip
        headers = {b"content-type": b"application/json"}
        if host:
            headers[b"host"] = host
        if token is not None:
            headers[b"authorization"] = f"Bearer {token}".encode()
        content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        path = f"/v1/stream/__ds/{rest}".partition("?")
        request = Request(method.encode(), path[0].encode(), path[2].encode(), headers, content, secure=secure)

        return self.loop.run_until_complete(self.dispatching.ask(request, principal))


async def _dispatching(db: Database, config: Config) -> Dispatching:
    return Dispatching(db, config)


@pytest.fixture
def db(data_dir: Path) -> Iterator[Database]:
    with tailrace.open(data_dir, clock=ManualClock(), housekeeping_s=None) as db:
        yield db


@pytest.fixture
def call(db: Database) -> Iterator[Caller]:
    caller = Caller(db, Config(dev=True))
    yield caller
    caller.loop.run_until_complete(caller.dispatching.close())
    caller.loop.run_until_complete(db.aclose())
    caller.loop.close()


def header(response: Response, name: bytes) -> bytes | None:
    return dict(response.headers).get(name)


def code(answer: tuple[int, Any]) -> tuple[int, str]:
    return answer[0], answer[1]["error"]["code"]


def test_put_get_delete(call: Caller) -> None:
    settings = {**HOOK, "lease_ttl_ms": 1000, "description": "d", "streams": ["/other/"], "some_day": {"a": 1}}
    status, made = call("PUT", "subscriptions/sub-1", settings)
    assert status == 201
    signing = made["webhook"].pop("signing")
    assert signing["alg"] == "ed25519"
    assert signing["jwks_url"] == "http://localhost:4437/v1/stream/__ds/jwks.json"
    assert {
        name: made[name] for name in made if name not in ("generation", "holder", "retries", "next_attempt_at")
    } == {
        "id": "sub-1",
        "subscription_id": "sub-1",
        "type": "webhook",
        "pattern": "events/*",
        "streams": [{"path": "other", "link_type": "explicit", "acked_offset": "0000000000000000_0000000000000000"}],
        "webhook": {"url": "http://127.0.0.1:9/hook"},
        "wake_stream": None,
        "lease_ttl_ms": 1000,
        "created_at": "2023-11-14T22:13:20.000Z",
        "status": "active",
        "description": "d",
    }
    assert call("PUT", "subscriptions/sub-1", settings)[0] == 200
    assert call("GET", "subscriptions/sub-1")[1]["webhook"]["signing"] == signing
    assert code(call("PUT", "subscriptions/sub-1", HOOK)) == (409, "SUBSCRIPTION_ALREADY_EXISTS")
    assert call("DELETE", "subscriptions/sub-1") == (204, None)
    assert call("DELETE", "subscriptions/sub-1") == (204, None)
    assert code(call("GET", "subscriptions/sub-1")) == (404, "SUBSCRIPTION_NOT_FOUND")


def test_the_keys_are_public_and_cacheable(call: Caller) -> None:
    response = call.raw("GET", "jwks.json", principal=ANONYMOUS)
    assert (response.status, header(response, b"content-type")) == (200, b"application/jwk-set+json")
    assert header(response, b"cache-control") == b"public, max-age=300"
    (key,) = json.loads(response.body)["keys"]
    assert call("PUT", "subscriptions/s", HOOK)[1]["webhook"]["signing"]["kid"] == key["kid"]
    assert "d" not in key


def test_list(call: Caller) -> None:
    for name in ("b", "a", "c"):
        call("PUT", f"subscriptions/{name}", {**PULL, "streams": ["x"]})
    status, page = call("GET", "subscriptions?limit=2")
    assert (status, [item["id"] for item in page["subscriptions"]], page["next_after"]) == (200, ["a", "b"], "b")
    assert page["subscriptions"][0]["link_count"] == 1
    assert "streams" not in page["subscriptions"][0]
    status, page = call("GET", "subscriptions/?limit=2&after=b")
    assert ([item["id"] for item in page["subscriptions"]], page["next_after"]) == (["c"], None)
    for limit in ("0", "1001", "x", "-1", "²", "000000001" + "9" * 5_000, "1" * 5_000, "0" * 5_000 + "1"):
        assert code(call("GET", f"subscriptions?limit={limit}")) == (400, "INVALID_REQUEST")
    for query in ("limt=2", "limit=2&after=a&from=b", "limit=2&limit=3"):
        assert code(call("GET", f"subscriptions?{query}")) == (400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "type"),
        (b"{", "JSON"),
        (b"[]", "object"),
        (b'{"type": "webhook\xff"}', "UTF-8|utf-8|JSON"),
        ({"type": 1}, "type"),
        ({"type": "other", "pattern": "a"}, "type"),
        ({**HOOK, "pattern": None}, "pattern"),
        ({**HOOK, "webhook": {}}, "url"),
        ({**HOOK, "webhook": None}, "webhook.url"),
        ({**HOOK, "streams": "a"}, "streams"),
        ({**HOOK, "streams": [1]}, "streams"),
        ({**HOOK, "lease_ttl_ms": 10}, "lease_ttl_ms"),
        ({**HOOK, "lease_ttl_ms": 1000.5}, "lease_ttl_ms"),
        ({**HOOK, "lease_ttl_ms": 10**30}, "lease_ttl_ms"),
        ({"type": "pull-wake", "pattern": "a"}, "wake_stream"),
    ],
)
def test_wrong_bodies_are_refused_with_the_field(call: Caller, body: Any, named: str) -> None:
    status, answer = call("PUT", "subscriptions/s", body)
    assert (status, answer["error"]["code"]) == (400, "INVALID_REQUEST")
    assert any(word in answer["error"]["message"] for word in named.split("|"))


def test_webhook_urls_follow_the_servers_mode(call: Caller, db: Database) -> None:
    local = {**HOOK, "webhook": {"url": "http://10.0.0.1/hook"}}
    assert code(call("PUT", "subscriptions/s", local)) == (400, "WEBHOOK_URL_REJECTED")
    call.configure(Config(token="t"))
    assert code(call("PUT", "subscriptions/s", HOOK)) == (400, "WEBHOOK_URL_REJECTED")
    private = {**HOOK, "webhook": {"url": "https://10.0.0.1/hook"}}
    assert code(call("PUT", "subscriptions/s", private)) == (400, "WEBHOOK_URL_REJECTED")
    call.configure(Config(token="t", webhook_allow_private=True))
    assert call("PUT", "subscriptions/s", private)[0] == 201


def test_membership(call: Caller) -> None:
    call("PUT", "subscriptions/s", {**HOOK, "pattern": None, "streams": ["a"]})
    assert call("POST", "subscriptions/s/streams", {"streams": ["m/b", "m/c", "ü/ö"]}) == (204, None)
    assert call("DELETE", "subscriptions/s/streams/m%2Fb") == (204, None)
    assert call("DELETE", "subscriptions/s/streams/m/c") == (204, None)
    assert call("DELETE", "subscriptions/s/streams/%C3%BC%2F%C3%B6") == (204, None)
    assert call("DELETE", "subscriptions/s/streams/not%2Fthere") == (204, None)
    assert [item["path"] for item in call("GET", "subscriptions/s")[1]["streams"]] == ["a"]
    assert code(call("POST", "subscriptions/s/streams", {"streams": []})) == (400, "INVALID_REQUEST")
    assert code(call("POST", "subscriptions/x/streams", {"streams": ["a"]})) == (404, "SUBSCRIPTION_NOT_FOUND")
    assert code(call("DELETE", "subscriptions/s/streams/%ff")) == (400, "INVALID_PATH")


def test_ids_may_hold_anything_printable(call: Caller) -> None:
    for encoded, name in (("a%2Fb", "a/b"), ("%C3%BC", "ü"), ("streams", "streams"), ("a%20b", "a b")):
        assert call("PUT", f"subscriptions/{encoded}", PULL)[1]["id"] == name
        assert call("GET", f"subscriptions/{encoded}")[0] == 200
    assert code(call("PUT", "subscriptions/" + "x" * 257, PULL)) == (400, "INVALID_REQUEST")
    assert code(call("PUT", "subscriptions/a%00b", PULL)) == (400, "INVALID_REQUEST")


def test_claim_ack_release(call: Caller, db: Database) -> None:
    db.execute(CreateStream("wake/pool", "application/json"))
    call("PUT", "subscriptions/s", PULL)
    assert code(call("POST", "subscriptions/s/claim", {"worker": "w"})) == (409, "NO_PENDING_WORK")
    db.execute(CreateStream("events/a", "application/json", b"{}"))
    db.execute(Notify((("s", "events/a"),)))
    status, claimed = call("POST", "subscriptions/s/claim", {"worker": "w"})
    assert status == 200
    tail = "0000000000000000_0000000000000002"
    assert claimed["streams"] == [
        {"path": "events/a", "link_type": "glob", "acked_offset": START, "tail_offset": tail, "has_pending": True}
    ]
    assert (claimed["generation"], claimed["lease_ttl_ms"]) == (1, 30_000)
    status, busy = call("POST", "subscriptions/s/claim", {"worker": "v"})
    assert (status, busy["error"]["current_holder"], busy["error"]["generation"]) == (409, "w", 1)
    wake = {"wake_id": claimed["wake_id"], "generation": 1}
    nothing = {**wake, "acks": [{"stream": "events/a", "offset": claimed["streams"][0]["acked_offset"]}]}
    assert call("POST", "subscriptions/s/ack", nothing, token=claimed["token"])[0] == 200
    beyond = {**wake, "acks": [{"stream": "events/a", "offset": tail[:-1] + "3"}]}
    assert code(call("POST", "subscriptions/s/ack", beyond, token=claimed["token"])) == (409, "INVALID_OFFSET")
    acked = {**wake, "acks": [{"path": "events/a", "offset": tail}]}
    assert call("POST", "subscriptions/s/ack", acked, token=claimed["token"], principal=ANONYMOUS) == (
        200,
        {"ok": True, "next_wake": False},
    )
    db.execute(Append("events/a", b"{}", "application/json"))
    assert call("POST", "subscriptions/s/release", wake, token=claimed["token"], principal=ANONYMOUS) == (204, None)
    assert code(call("POST", "subscriptions/s/release", wake, token=claimed["token"])) == (409, "FENCED")
    assert code(call("POST", "subscriptions/s/ack", wake, token=claimed["token"])) == (409, "FENCED")
    assert call("POST", "subscriptions/s/claim", {"worker": "w"})[1]["generation"] == 2


def test_callback(call: Caller, db: Database) -> None:
    call("PUT", "subscriptions/s", HOOK)
    db.execute(CreateStream("events/a", "application/json", b"{}"))
    db.execute(Notify((("s", "events/a"),)))
    delivery = db.execute(BeginDelivery("s"))
    assert delivery is not None
    tail = "0000000000000000_0000000000000002"
    body = {
        "wake_id": delivery.subscription.wake_id,
        "generation": 1,
        "acks": [{"stream": "events/a", "offset": tail}],
        "done": True,
    }
    for wrong in ("ack", "release"):
        assert code(call("POST", f"subscriptions/s/{wrong}", body, token=delivery.token)) == (400, "INVALID_REQUEST")
    answer = call("POST", "subscriptions/s/callback", body, token=delivery.token, principal=ANONYMOUS)
    assert answer == (200, {"ok": True, "next_wake": False})
    assert code(call("POST", "subscriptions/s/callback", body, token=delivery.token)) == (409, "FENCED")
    assert call("GET", "subscriptions/s")[1]["streams"][0]["acked_offset"] == tail


@pytest.mark.parametrize("action", ["callback", "ack", "release"])
def test_whoever_speaks_for_a_wake_shows_its_token(call: Caller, action: str) -> None:
    call("PUT", "subscriptions/s", HOOK if action == "callback" else PULL)
    body = {"wake_id": "w", "generation": 0}
    for name in ("s", "not-there"):  # no token, no news about what there is
        assert code(call("POST", f"subscriptions/{name}/{action}", body)) == (401, "TOKEN_INVALID")
        assert code(call("POST", f"subscriptions/{name}/{action}", body, token="x.y.z")) == (401, "TOKEN_INVALID")


@pytest.mark.parametrize("action", ["callback", "ack", "release"])
def test_a_body_is_looked_at_only_when_the_token_is_right(
    call: Caller, db: Database, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("PUT", "subscriptions/s", HOOK if action == "callback" else PULL)
    assert code(call("POST", f"subscriptions/s/{action}", b"{", token="x.y.z")) == (401, "TOKEN_INVALID")  # no secret
    db.execute(CreateStream("events/a", "application/json", b"{}"))
    db.execute(Notify((("s", "events/a"),)))
    delivery = db.execute(BeginDelivery("s")) if action == "callback" else db.execute(ClaimWake("s", "w"))
    assert delivery is not None
    signed, _, signature = delivery.token.rpartition(".")
    for wrong in ("x.y.z", f"{signed}.{signature[::-1]}"):
        assert code(call("POST", f"subscriptions/s/{action}", b"{", token=wrong)) == (401, "TOKEN_INVALID")
    assert code(call("POST", f"subscriptions/t/{action}", b"{", token=delivery.token)) == (401, "TOKEN_INVALID")
    assert code(call("POST", f"subscriptions/s/{action}", b"{", token=delivery.token)) == (400, "INVALID_REQUEST")
    monkeypatch.setattr(limits, "CONTROL_BODY_BYTES_MAX", 0)
    assert code(call("POST", f"subscriptions/s/{action}", b"{", token="x.y.z")) == (401, "TOKEN_INVALID")
    assert code(call("POST", f"subscriptions/s/{action}", b"{", token=delivery.token)) == (413, "TOO_LARGE")
    assert isinstance(db.clock, ManualClock)
    db.clock.advance(25 * 3600)
    assert code(call("POST", f"subscriptions/s/{action}", b"{", token=delivery.token)) == (401, "TOKEN_EXPIRED")


def test_a_body_longer_than_the_limit_is_refused_before_it_is_parsed(call: Caller) -> None:
    body = b'{"streams": [' + b" " * limits.CONTROL_BODY_BYTES_MAX
    for method, rest in (("PUT", "s"), ("POST", "s/streams"), ("POST", "s/claim")):
        assert code(call(method, f"subscriptions/{rest}", body)) == (413, "TOO_LARGE")
    assert code(call("PUT", "subscriptions/s", body[: limits.CONTROL_BODY_BYTES_MAX])) == (400, "INVALID_REQUEST")


def test_no_list_is_longer_than_what_a_subscription_follows(call: Caller, db: Database) -> None:
    most = limits.SUBSCRIPTION_LINKS_MAX
    status, answer = call("PUT", "subscriptions/s", {**PULL, "streams": ["a"] * (most + 1)})
    assert (status, "streams" in answer["error"]["message"]) == (400, True)
    call("PUT", "subscriptions/s", PULL)
    assert code(call("POST", "subscriptions/s/streams", {"streams": ["a"] * (most + 1)})) == (400, "INVALID_REQUEST")
    assert call("POST", "subscriptions/s/streams", {"streams": ["a", "/a/"] * (most // 2)}) == (204, None)
    assert [item["path"] for item in call("GET", "subscriptions/s")[1]["streams"]] == ["a"]
    db.execute(CreateStream("events/a", "application/json", b"{}"))
    db.execute(Notify((("s", "events/a"),)))
    claimed = call("POST", "subscriptions/s/claim", {"worker": "w"})[1]
    wake = {"wake_id": claimed["wake_id"], "generation": 1}
    acks = [{"stream": "events/a", "offset": START}] * (most + 1)
    answer = call("POST", "subscriptions/s/ack", {**wake, "acks": acks}, token=claimed["token"])
    assert code(answer) == (400, "INVALID_REQUEST")
    assert call("POST", "subscriptions/s/ack", {**wake, "acks": acks[1:]}, token=claimed["token"])[0] == 200


def test_everything_else_needs_the_permission(call: Caller) -> None:
    call("PUT", "subscriptions/s", PULL)
    assert call("GET", "subscriptions/s", principal=READER)[0] == 200
    assert call("GET", "subscriptions", principal=READER)[0] == 200
    for method, rest, body in (
        ("PUT", "subscriptions/s", PULL),
        ("DELETE", "subscriptions/s", None),
        ("POST", "subscriptions/s/streams", {"streams": ["a"]}),
        ("DELETE", "subscriptions/s/streams/a", None),
        ("POST", "subscriptions/s/claim", {"worker": "w"}),
    ):
        assert code(call(method, rest, body, principal=READER)) == (403, "FORBIDDEN")
    assert call("GET", "subscriptions/s", principal=ANONYMOUS)[0] == 403


@pytest.mark.parametrize(
    ("method", "rest", "opened"),
    [
        ("GET", "jwks.json", True),
        ("POST", "subscriptions/s/callback", True),
        ("POST", "subscriptions/s/ack", True),
        ("POST", "subscriptions/s/release", True),
        ("GET", "subscriptions/s/callback", False),
        ("POST", "subscriptions/s/claim", False),
        ("POST", "subscriptions/s/streams", False),
        ("PUT", "subscriptions/callback", False),
        ("DELETE", "subscriptions/s/streams/callback", False),
        ("POST", "subscriptions/s/streams/ack", False),
        ("GET", "subscriptions", False),
        ("GET", "", False),
    ],
)
def test_which_requests_come_without_the_servers_credentials(method: str, rest: str, opened: bool) -> None:
    try:
        methods, _ = RouteTable(ROUTES).find(f"/v1/stream/__ds/{rest}".encode())
    except NotFound:
        assert not opened
        return
    route = methods.get(method.encode())
    assert (route is not None and route.access != PRINCIPAL) is opened


@pytest.mark.parametrize(
    ("method", "rest", "allow"),
    [
        ("POST", "jwks.json", b"GET, HEAD"),
        ("PUT", "subscriptions", b"GET, HEAD"),
        ("POST", "subscriptions/s", b"GET, HEAD, PUT, DELETE"),
        ("GET", "subscriptions/s/streams", b"POST"),
        ("GET", "subscriptions/s/streams/a", b"DELETE"),
        ("GET", "subscriptions/s/claim", b"POST"),
        ("PUT", "subscriptions/s/callback", b"POST"),
        ("GET", "subscriptions/s/ack", b"POST"),
        ("DELETE", "subscriptions/s/release", b"POST"),
    ],
)
def test_other_methods_are_not_allowed(call: Caller, method: str, rest: str, allow: bytes) -> None:
    response = call.raw(method, rest)
    assert (response.status, header(response, b"allow")) == (405, allow + b", OPTIONS")


@pytest.mark.parametrize(
    "rest", ["", "x", "jwks.json/x", "subscriptions/s/x", "subscriptions/s/claim/x", "/subscriptions"]
)
def test_unknown_routes(call: Caller, rest: str) -> None:
    assert call("GET", rest)[0] == 404


def test_urls_are_those_the_client_reaches(call: Caller, db: Database) -> None:
    def jwks_url(**how: Any) -> str:
        return str(call("PUT", "subscriptions/s", HOOK, **how)[1]["webhook"]["signing"]["jwks_url"])

    assert jwks_url(secure=True, host=b"a.example") == "https://a.example/v1/stream/__ds/jwks.json"
    assert jwks_url(host=b"") == "http://127.0.0.1:4437/v1/stream/__ds/jwks.json"
    call.configure(Config(dev=True, public_url="https://p.example/base/"))
    assert jwks_url() == "https://p.example/base/v1/stream/__ds/jwks.json"
