"""Every route of the server × every kind of principal: each request is served or refused as the permissions say.

The requests are written out once. A test compares them with the route table of the server, so that a new row cannot be
forgotten here, and its permissions are those that the table documents.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
import pkgutil
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

import tailrace
from tailrace import limits
from tailrace.access import ROLES, Permission, roles
from tailrace.auth import passwords, tokens
from tailrace.auth.users import AlterUser, CreateUser, DropUser
from tailrace.command import Command, Query
from tailrace.http.dynamodb.operations import OPERATIONS
from tailrace.http.route import ANY_METHOD, WAKE_TOKEN, Route, RouteTable
from tailrace.http.routes import ROUTES
from tailrace.jobs.commands import CommitStages
from tailrace.jobs.stage import Target
from tailrace.tables.commands import PutItem
from tailrace.topics.commands import CreateTopic
from tests.support.patience import PATIENCE_S
from tests.unit.http.inprocess import Up, serve

READ, WRITE, CONSUME, ADMIN, JOBS = (
    Permission.READ, Permission.WRITE, Permission.CONSUME, Permission.ADMIN, Permission.JOBS,
)  # fmt: skip
OPEN = "open"  # for everyone
ANY = "any"  # for whoever is recognised
WAKE = "wake"  # for the token of a wake alone: no user's credentials open it

PASSWORD = "correct horse"
TOKEN = "s3cret-s3cret-s3cret"
HASH = passwords.hashed(PASSWORD)
TEXT = {"content-type": "text/plain"}
ARROW = {"accept": "application/vnd.apache.arrow.stream"}
MSGPACK = {"content-type": "application/vnd.msgpack"}
TOPIC = {"topic": "news", "group_id": "g"}
SUBSCRIPTION = {"type": "pull-wake", "streams": ["a"], "wake_stream": "wakes"}


class Row(NamedTuple):
    """A request, and what it takes to be let through. `body` is JSON, or bytes."""

    method: str
    path: str
    needs: str
    body: Any = None
    headers: dict[str, str] = {}


def topic_rows(prefix: str) -> list[Row]:
    return [
        Row("POST", f"{prefix}/consume", CONSUME, {**TOPIC, "timeout_seconds": 0}),
        Row("POST", f"{prefix}/ack", CONSUME, {**TOPIC, "upto_offset": 0}),
        Row("POST", f"{prefix}/extend", CONSUME, TOPIC),
        Row("POST", f"{prefix}/nack", CONSUME, TOPIC),
        Row("POST", f"{prefix}/publish", WRITE, {"topic": "news", "messages": [{"value": 1}]}),
    ]


def dynamodb(operation: str, needs: str, **parameters: Any) -> Row:
    target = next(target for target in OPERATIONS if target.endswith(f".{operation}"))
    headers = {"x-amz-target": target, "content-type": "application/x-amz-json-1.0"}
    return Row("POST", "/", needs, json.dumps(parameters).encode(), headers)


def sql(text: str, needs: str) -> Row:
    return Row("POST", "/v1/api/sql", needs, {"sql": text})


DS = "/v1/stream/__ds"
ITEM = {"id": {"S": "x"}}
TABLE: tuple[Row, ...] = (
    # streams
    Row("PUT", "/v1/stream/new", WRITE, headers=TEXT),
    Row("GET", "/v1/stream/a?offset=-1", READ),
    Row("HEAD", "/v1/stream/a", READ),
    Row("POST", "/v1/stream/a", WRITE, b"x", TEXT),
    Row("DELETE", "/v1/stream/gone", WRITE),
    Row("GET", "/v1/streams", READ),
    # subscriptions
    Row("GET", f"{DS}/jwks.json", OPEN),
    Row("GET", f"{DS}/subscriptions", READ),
    Row("PUT", f"{DS}/subscriptions/s", WRITE, SUBSCRIPTION),
    Row("GET", f"{DS}/subscriptions/s", READ),
    Row("DELETE", f"{DS}/subscriptions/gone", WRITE),
    Row("POST", f"{DS}/subscriptions/s/streams", WRITE, {"streams": ["b"]}),
    Row("DELETE", f"{DS}/subscriptions/s/streams/b", WRITE),
    Row("POST", f"{DS}/subscriptions/s/claim", WRITE, {"worker": "w"}),
    *(Row("POST", f"{DS}/subscriptions/s/{what}", WAKE, {}) for what in ("callback", "ack", "release")),
    # tables and their changes
    Row("GET", "/v1/tables", READ),
    Row("GET", "/v1/tables/orders/stream?offset=-1", READ),
    Row("HEAD", "/v1/tables/orders/stream", READ),
    Row("PATCH", "/v1/tables/orders/stream", ADMIN, {"max_count": 1000}),
    Row("GET", "/v1/tables/orders/stream/info", READ),
    Row("POST", "/v1/tables/orders/stream/prune", ADMIN, {"through": 0}),
    Row("GET", "/v1/tables/orders/cursors", READ),
    Row("GET", "/v1/tables/orders/cursors/c", READ),
    Row("PUT", "/v1/tables/orders/cursors/c", WRITE, {"sequence": 0}),
    Row("DELETE", "/v1/tables/orders/cursors/c", WRITE),
    Row("GET", "/v1/tables/orders/items/history?key=%7B%22id%22:%22x%22%7D", READ),
    Row("GET", "/v1/tables/orders/at?sequence=1", READ),
    Row("GET", "/v1/tables/orders/writes/2", READ),
    # transactions
    Row("POST", "/v1/api/transaction", WRITE, {"operations": [{"op": "put", "table": "orders", "item": {"id": "x"}}]}),
    Row("POST", "/v1/api/transaction", CONSUME, {"operations": [{"op": "ack", **TOPIC, "offsets": [0]}]}),
    Row("POST", "/v1/api/transaction/read", READ, {"get": {"table": "orders", "key": "x"}}),
    # topics
    *topic_rows("/v1/api/topics"),
    *topic_rows("/api/topics"),
    Row("GET", "/v1/topics", READ),
    Row("GET", "/v1/topics/news", READ),
    Row("GET", "/v1/topics/news/acknowledgements?group=g", CONSUME),
    Row("POST", "/v1/topics/news", WRITE, b"x", TEXT),
    Row("GET", "/v1/topics/news/0/stream?offset=-1", CONSUME),
    Row("HEAD", "/v1/topics/news/0/stream", CONSUME),
    # logs in bulk
    Row("GET", "/v1/logs?table=orders", READ),
    Row("GET", "/v1/logs?stream=a", READ),
    Row("GET", "/v1/logs?topic=news", CONSUME),
    Row("GET", "/v1/logs/at?table=orders&timestamp=0", READ),
    Row("GET", "/v1/logs/at?topic=news&timestamp=0", CONSUME),
    Row("POST", "/v1/logs", READ, {"logs": [{"table": "orders"}, {"stream": "a"}]}),
    Row("POST", "/v1/logs", CONSUME, {"logs": [{"topic": "news"}]}),
    Row("POST", "/v1/logs/advance", READ, {"logs": [{"stream": "a", "from": {"0": 0}, "records": 1}]}),
    Row("POST", "/v1/logs/advance", CONSUME, {"logs": [{"topic": "news", "from": {"0": 0}, "records": 1}]}),
    Row("GET", "/v1/logs/count?table=orders&first=0&until=0", READ),
    Row("GET", "/v1/stream/a?offset=-1", READ, headers=ARROW),
    Row("GET", "/v1/tables/orders/stream?offset=-1", READ, headers=ARROW),
    Row("GET", "/v1/topics/news/0/stream?offset=-1", CONSUME, headers=ARROW),
    Row("GET", "/v1/tables/orders/items", READ, headers=ARROW),
    # staged writes
    Row("POST", "/v1/stages?table=orders", WRITE, msgspec.msgpack.encode([["PUT", {"id": {"S": "z"}}]]), MSGPACK),
    Row("POST", "/v1/stages?topic=news", WRITE, msgspec.msgpack.encode([[None, b"x"]]), MSGPACK),
    Row("POST", "/v1/stages?stream=a", WRITE, msgspec.msgpack.encode([b"x"]), MSGPACK),
    Row("POST", "/v1/stages/commit", WRITE, {"query": "q", "batch": 0, "target": {"table": "orders"}, "stages": []}),
    Row("POST", "/v1/stages/commit", WRITE, {"query": "q", "batch": 1, "target": {"topic": "news"}, "stages": []}),
    Row(
        "POST",
        "/v1/stages/commit",
        JOBS,
        {"query": "q", "batch": 2, "target": {"stream": "a"}, "stages": [], "consumer": "c", "ranges": {"1": [0, 1]}},
    ),
    Row("DELETE", "/v1/stages/missing", WRITE),
    # jobs
    Row("GET", "/v1/jobs", READ),
    Row("GET", "/v1/jobs/missing", READ),
    Row("PUT", "/v1/jobs/missing", ADMIN, {"kind": "sink"}),
    Row("POST", "/v1/jobs/missing/report", JOBS, {"state": "running"}),
    Row("POST", "/v1/jobs/c/pin", JOBS, {"positions": {"1": 0}}),
    *(Row("POST", f"/v1/jobs/missing/{what}", JOBS, {}) for what in ("pause", "resume")),
    Row("DELETE", "/v1/jobs/missing", ADMIN),
    # cold storage
    Row("GET", "/v1/cold", READ),
    *(Row("POST", f"/v1/cold/{what}", ADMIN, {"table": "orders"}) for what in ("attach", "detach")),
    Row("POST", "/v1/cold/attach", ADMIN, {"topic": "news"}),
    Row("POST", "/v1/cold/attach", ADMIN, {"stream": "a"}),
    Row("POST", "/v1/cold/tiered", ADMIN, {"place": "missing", "generation": 1, "ranges": {}}),
    Row("POST", "/v1/cold/forget", ADMIN, {"place": "missing", "starts": {}}),
    # views
    Row("GET", "/v1/views", READ),
    Row("GET", "/v1/views/missing", READ),
    Row("POST", "/v1/views/missing/apply", JOBS, msgspec.msgpack.encode({"ranges": {}}), MSGPACK),
    Row(
        "POST", "/v1/views/missing/partials", JOBS, msgspec.msgpack.encode({"at": {}, "form": "", "keys": b""}), MSGPACK
    ),
    Row("POST", "/v1/views/missing/plan", JOBS, msgspec.msgpack.encode({"error": "x"}), MSGPACK),
    Row("POST", "/v1/views/missing/fill", JOBS, msgspec.msgpack.encode({"step": "begin"}), MSGPACK),
    # SQL
    sql("SHOW TOPICS", READ),
    sql("SELECT * FROM orders", READ),
    sql("INSERT INTO orders (id) VALUES ('y')", WRITE),
    sql("CONSUME FROM news GROUP 'g' LIMIT 1", CONSUME),
    sql("CREATE TOPIC IF NOT EXISTS other", ADMIN),
    sql("CREATE USER IF NOT EXISTS zoe PASSWORD 'correct horse' ROLE user", ADMIN),
    sql("SELECT * FROM system.users", ADMIN),
    sql("SELECT * FROM system.pipelines", READ),
    # the DynamoDB API
    Row("GET", "/", OPEN),
    dynamodb("ListTables", READ),
    dynamodb("GetItem", READ, TableName="orders", Key=ITEM),
    dynamodb("Scan", READ, TableName="orders"),
    dynamodb("PutItem", WRITE, TableName="orders", Item=ITEM),
    dynamodb("DeleteItem", WRITE, TableName="orders", Key={"id": {"S": "gone"}}),
    dynamodb("BatchWriteItem", WRITE, RequestItems={"orders": [{"PutRequest": {"Item": ITEM}}]}),
    dynamodb("ExecuteStatement", READ, Statement="SELECT * FROM orders WHERE id = 'x'"),
    dynamodb("ExecuteStatement", WRITE, Statement="DELETE FROM orders WHERE id = 'gone'"),
    dynamodb("ExecuteTransaction", READ, TransactStatements=[{"Statement": "SELECT * FROM orders WHERE id = 'x'"}]),
    dynamodb("ExecuteTransaction", WRITE, TransactStatements=[{"Statement": "DELETE FROM orders WHERE id = 'gone'"}]),
    dynamodb("DescribeTable", READ, TableName="orders"),
    dynamodb("DeleteTable", ADMIN, TableName="missing"),
    dynamodb(
        "UpdateTimeToLive", ADMIN, TableName="missing", TimeToLiveSpecification={"AttributeName": "t", "Enabled": True}
    ),
    dynamodb("ListStreams", READ),
    # access
    Row("GET", "/v1/admin/audit", ADMIN),
    Row("GET", "/v1/admin/keys", ADMIN),
    Row("POST", "/v1/admin/keys", ADMIN, {"principal": "app"}),
    Row("PATCH", "/v1/admin/keys/TRKMISSING", ADMIN, {"disabled": True}),
    Row("DELETE", "/v1/admin/keys/TRKMISSING", ADMIN),
    Row("GET", "/v1/admin/signing-keys", ADMIN),
    Row("POST", "/v1/admin/signing-keys/rotate", ADMIN),
    Row("GET", "/v1/admin/users", ADMIN),
    Row("POST", "/v1/admin/users", ADMIN, {"name": "missing", "role": "user"}),
    Row("GET", "/v1/admin/users/missing", ADMIN),
    Row("PATCH", "/v1/admin/users/missing", ADMIN, {"disabled": True}),
    Row("DELETE", "/v1/admin/users/missing", ADMIN),
    Row("POST", "/v1/api/auth/login", OPEN, {"username": "sam", "password": PASSWORD}),
    Row("POST", "/v1/api/auth/refresh", WAKE, {"refresh_token": "trr.a.b.c"}),
    Row("POST", "/v1/api/auth/logout", WAKE, {"refresh_token": "trr.a.b.c"}),
    Row("GET", "/v1/api/auth/me", ANY),
    # how it is
    Row("GET", "/console", OPEN),
    Row("GET", "/console/app.js", OPEN),
    Row("GET", "/healthz", OPEN),
    Row("GET", "/readyz", OPEN),
    Row("GET", "/v1/cluster", READ),
    Row("POST", "/v1/cluster/step-down", ADMIN),
    Row("GET", "/v1/status", READ),
    Row("GET", "/v1/status/samples", READ),
    Row("GET", "/metrics", ANY),
    Row("GET", "/openapi.json", OPEN),
)

Credentials = Callable[[Up], Awaitable[dict[str, str]]]


# -- the table is complete


ROUTE_TABLE = RouteTable(ROUTES)


def route_of(row: Row) -> Route:
    """The row of the server's table that answers a request."""
    methods, _ = ROUTE_TABLE.find(row.path.partition("?")[0].encode())
    return methods[row.method.encode()]


def test_every_route_of_the_server_is_in_the_table() -> None:
    known = {(route_of(row).method, route_of(row).path) for row in TABLE}
    rows = {(route.method, route.path) for route in ROUTES if route.method != ANY_METHOD}
    assert not rows - known, f"add requests for {rows - known}"


def test_the_route_table_documents_the_permissions() -> None:
    """A route's permissions are those that its requests need, no more and no fewer."""
    needed: dict[tuple[str, str], set[str]] = {}
    for row in TABLE:
        route = route_of(row)
        if row.path != "/":  # the DynamoDB API authenticates, and has a permission for each operation
            needed.setdefault((route.method, route.path), set()).add(row.needs)
    for route in ROUTES:
        if (needs := needed.get((route.method, route.path))) is not None:
            documented = set(route.permissions) or ({WAKE} if route.access == WAKE_TOKEN else {OPEN, ANY, WAKE})
            assert needs <= documented, f"{route.method} {route.path} needs {needs}"
            assert needs == documented or not route.permissions, f"{route.method} {route.path} needs {needs}"


# -- principals


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def basic(name: str, password: str = PASSWORD) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


async def login(up: Up, name: str) -> dict[str, str]:
    answer = await up.http.post("/v1/api/auth/login", json={"username": name, "password": PASSWORD})
    assert answer.status_code == 200, answer.text
    return bearer(answer.json()["access_token"])


async def claims_of(up: Up, name: str = "a-dba") -> tuple[dict[str, Any], bytes]:
    """What a good token says, and the key it is signed with."""
    token = (await login(up, name))["authorization"].removeprefix("Bearer ")
    key = await up.running.app.services.authenticator.token_key()
    return jwt.decode(token, options={"verify_signature": False}), key


async def nothing(up: Up) -> dict[str, str]:
    return {}


async def wrong_password(up: Up) -> dict[str, str]:
    return basic("a-dba", "wrong horse")


async def unknown_user(up: Up) -> dict[str, str]:
    return basic("nobody here")


async def no_password(up: Up) -> dict[str, str]:
    await up.db.aexecute(CreateUser(name="keyed", role="dba"))
    return basic("keyed", "")


async def disabled_user(up: Up) -> dict[str, str]:
    await up.db.aexecute(AlterUser(name="a-dba", disabled=True))
    return basic("a-dba")


async def wrong_token(up: Up) -> dict[str, str]:
    return bearer("s3cre")


async def unknown_scheme(up: Up) -> dict[str, str]:
    return {"authorization": "Digest username=dba"}


async def expired(up: Up) -> dict[str, str]:
    claims, key = await claims_of(up)
    return bearer(jwt.encode({**claims, "exp": int(time.time()) - 10}, key, algorithm="HS256"))


async def not_yet(up: Up) -> dict[str, str]:
    claims, key = await claims_of(up)
    return bearer(jwt.encode({**claims, "nbf": int(time.time()) + 100}, key, algorithm="HS256"))


async def never_ending(up: Up) -> dict[str, str]:
    claims, key = await claims_of(up)
    del claims["exp"]
    return bearer(jwt.encode(claims, key, algorithm="HS256"))


async def forged(up: Up) -> dict[str, str]:
    claims, _ = await claims_of(up)
    return bearer(jwt.encode(claims, b"another key, as long as ours is!", algorithm="HS256"))


async def alg_none(up: Up) -> dict[str, str]:
    claims, _ = await claims_of(up)
    return bearer(jwt.encode(claims, None, algorithm="none"))


async def wrong_algorithm(up: Up) -> dict[str, str]:
    claims, _ = await claims_of(up)
    return bearer(jwt.encode(claims, rsa.generate_private_key(65537, 2048), algorithm="RS256"))


async def wrong_issuer(up: Up) -> dict[str, str]:
    claims, key = await claims_of(up)
    return bearer(jwt.encode({**claims, "iss": "https://elsewhere"}, key, algorithm="HS256"))


async def of_a_dropped_user(up: Up) -> dict[str, str]:
    headers = await login(up, "a-dba")
    await up.db.aexecute(DropUser(name="a-dba"))
    return headers


async def logged_out(up: Up) -> dict[str, str]:
    headers = await login(up, "a-dba")
    assert (await up.http.post("/v1/api/auth/logout", headers=headers)).status_code == 204
    return headers


REFUSED: dict[str, tuple[Credentials, str]] = {  # and the code that says why
    "nothing": (nothing, "UNAUTHENTICATED"),
    "unknown scheme": (unknown_scheme, "UNAUTHENTICATED"),
    "wrong password": (wrong_password, "WRONG_PASSWORD"),
    "unknown user": (unknown_user, "WRONG_PASSWORD"),
    "no password": (no_password, "WRONG_PASSWORD"),
    "disabled user": (disabled_user, "WRONG_PASSWORD"),
    "wrong token": (wrong_token, "WRONG_TOKEN"),
    "expired": (expired, tokens.EXPIRED),
    "not yet valid": (not_yet, tokens.NOT_YET),
    "never ending": (never_ending, tokens.CLAIMS),
    "forged": (forged, tokens.SIGNATURE),
    "alg none": (alg_none, tokens.ALGORITHM),
    "wrong algorithm": (wrong_algorithm, tokens.ALGORITHM),
    "wrong issuer": (wrong_issuer, tokens.WRONG_ISSUER),
    "dropped user": (of_a_dropped_user, tokens.REVOKED),
    "logged out": (logged_out, tokens.REVOKED),
}


async def ask(up: Up, row: Row, headers: dict[str, str]) -> httpx.Response:
    content = row.body if isinstance(row.body, bytes) else None
    body = None if content is not None else row.body
    return await up.http.request(
        row.method, row.path, content=content, json=body, headers={**row.headers, **headers}, timeout=PATIENCE_S
    )


async def prepare(up: Up) -> None:
    """What the rows ask about, and a user of each role."""
    for role in ROLES:
        await up.db.aexecute(CreateUser(name=f"a-{role}", role=role, password=HASH))
    await up.db.aexecute(CreateUser(name="sam", role="user", password=HASH))
    await up.db.aexecute(CreateTopic("news"))
    await asyncio.to_thread(up.db.create_table, "orders", partition_key="id", stream="NEW_IMAGE")
    await up.db.aexecute(PutItem("orders", {"id": {"S": "x"}}, 3))
    token = bearer(TOKEN)
    await up.http.put("/v1/stream/a", headers={**TEXT, **token})
    assert (await up.http.put(f"{DS}/subscriptions/s", json=SUBSCRIPTION, headers=token)).status_code == 201


def verdict(answer: httpx.Response, row: Row) -> int:
    """401, 403, or 200 for all that is let through, also if it is then refused for what it asks."""
    if row.path == "/" and row.method == "POST" and answer.status_code == 400:
        name = answer.json()["__type"].rpartition("#")[2]
        if name in (
            "UnrecognizedClientException",
            "MissingAuthenticationTokenException",
            "IncompleteSignatureException",
        ):
            return 401
        return 403 if name == "AccessDeniedException" else 200
    return answer.status_code if answer.status_code in (401, 403) else 200


@pytest.fixture(autouse=True)
def _guessing_is_not_throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOGIN_USER_FREE", 10_000)
    monkeypatch.setattr(limits, "LOGIN_PEER_FREE", 10_000)
    monkeypatch.setattr(limits, "LOGIN_ANYWHERE_FREE", 10_000)


@pytest.mark.parametrize("kind", REFUSED)
def test_nothing_answers_who_is_not_recognised(data_dir: Path, kind: str) -> None:
    credentials, code = REFUSED[kind]

    async def scenario(up: Up) -> None:
        await prepare(up)
        headers = await credentials(up)
        for row in TABLE:
            answer = await ask(up, row, headers)
            where = f"{row.method} {row.path} {row.body}: {answer.status_code} {answer.text[:300]}"
            if row.needs == OPEN:
                assert answer.status_code == 200, where
                continue
            assert verdict(answer, row) == 401, where
            if row.path == "/":
                continue
            assert answer.headers["www-authenticate"].startswith("Bearer realm="), where
            if row.needs != WAKE and row.method != "HEAD":
                assert answer.json()["error"]["code"] == code, where
        users = {user["name"] for user in (await up.http.get("/v1/admin/users", headers=bearer(TOKEN))).json()["users"]}
        assert not users & {"missing", "zoe"}, "nothing was done"

    serve(data_dir, scenario, token=TOKEN)


async def check_role(up: Up, headers: dict[str, str], permissions: frozenset[str]) -> None:
    for row in TABLE:
        answer = await ask(up, row, headers)
        where = f"{row.method} {row.path} {row.body}: {answer.status_code} {answer.text[:300]}"
        if row.needs == WAKE:
            assert answer.status_code == 401, where
        elif row.needs in (OPEN, ANY) or row.needs in permissions:
            assert verdict(answer, row) == 200, where
            assert answer.status_code < 500, where
        else:
            assert verdict(answer, row) == 403, where


@pytest.mark.parametrize("way", ["password", "login"])
@pytest.mark.parametrize("role", ROLES)
def test_each_role_does_what_it_may_and_no_more(data_dir: Path, role: str, way: str) -> None:
    async def scenario(up: Up) -> None:
        await prepare(up)
        headers = basic(f"a-{role}") if way == "password" else await login(up, f"a-{role}")
        await check_role(up, headers, ROLES[role])

    serve(data_dir, scenario, token=TOKEN)


def test_the_token_of_the_server_does_everything(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await prepare(up)
        await check_role(up, bearer(TOKEN), ROLES["system"])

    serve(data_dir, scenario, token=TOKEN)


def test_principals_without_a_matching_grant_are_refused(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await prepare(up)
        await up.db.aexecute(AlterUser(name="a-dba", access=("tables/of-others",)))
        for row in TABLE:
            answer = await ask(up, row, basic("a-dba"))
            where = f"{row.method} {row.path} {row.body}: {answer.status_code} {answer.text[:300]}"
            if row.path in ("/v1/api/auth/me",):
                assert answer.json()["access"] == ["tables/of-others"]
            elif row.path in ("/v1/streams", "/v1/tables"):
                assert answer.json() == {row.path.removeprefix("/v1/"): [], "next": None}, where
            elif row.path == "/v1/cluster":  # which names no objects
                assert answer.status_code == 200, where
            elif row.needs == WAKE:
                assert answer.status_code == 401, where
            elif row.needs != OPEN:
                assert verdict(answer, row) == 403, where

    serve(data_dir, scenario, token=TOKEN)


# -- what each command needs

JOBS_ONLY = {
    "ReportJob",
    "PauseJob",
    "ResumeJob",
    "PinPositions",
    "ViewCommand",
    "ApplyView",
    "BeginFill",
    "PlanView",
    "RewriteView",
    "ClearRows",
    "FillRows",
    "FinishFill",
}
WRITES = {
    "Append", "CreateStream", "DeleteStream", "TouchStream",
    "PutSubscription", "DeleteSubscription", "AddStreams", "RemoveStream", "ClaimWake", "SubscriptionAck",
    "ReleaseWake",
    "ItemCommand", "PutItem", "UpdateItem", "DeleteItem", "CheckItem", "BatchWrite", "TransactWrite",
    "InsertItem", "UpdateWhere", "DeleteWhere", "CheckWhere",
    "KeyedRows", "RowsCommand", "InsertRows", "UpdateRows", "DeleteRows",
    "SaveCursor", "DropCursor", "Publish", "StageRows", "DropStage",
}  # fmt: skip
SECRET = {
    "LoadUser", "FindAccessKey", "FindTokenKey", "MakeTokenKey", "GetSigningKeys", "EnsureSigningKey",
    "FindSecret", "MakeSecret",
}  # fmt: skip


def commands(kind: type) -> Iterator[Any]:
    """All commands, or queries, that there are."""
    for found in kind.__subclasses__():
        if found.__module__.startswith("tailrace."):
            yield found
        yield from commands(found)


def test_what_each_role_may_run_is_listed_twice() -> None:
    """A command that is added, or whose permission changes, has to be put down here too."""
    for module in pkgutil.walk_packages(tailrace.__path__, "tailrace."):
        if not module.name.startswith(("tailrace.spark", "tailrace.cli.__main__")):
            importlib.import_module(module.name)
    needs = {found.__name__: found.permission for found in commands(Command)}
    assert {name for name, permission in needs.items() if permission == WRITE} == WRITES
    assert {name for name, permission in needs.items() if permission == JOBS} == JOBS_ONLY
    staged: dict[str, Any] = {"query": "q", "batch": 0, "target": Target("tables", "t"), "stages": ()}
    assert CommitStages(**staged).permission == WRITE
    assert CommitStages(**staged, consumer="c", ranges={}).permission == JOBS, "it moves the positions of a job"
    assert READ not in needs.values(), "a command changes something"
    every = {**needs, **{found.__name__: found.permission for found in commands(Query)}}
    assert {every[name] for name in SECRET} == {Permission.SYSTEM}, "their results hold secrets"


def test_the_role_user_is_no_job_even_where_it_consumes() -> None:
    for consumes in (False, True):
        mays = roles(user_consumes=consumes)["user"]
        assert JOBS not in mays and (CONSUME in mays) is consumes
