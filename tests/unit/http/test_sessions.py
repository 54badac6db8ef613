"""Logging in, refreshing and logging out over HTTP; and users."""

from __future__ import annotations

import base64
import logging
import math
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest

from tailrace import limits
from tailrace.auth import passwords, sessions
from tailrace.auth.users import AlterUser, CreateUser, DropUser, alter_user
from tailrace.clock import ManualClock
from tailrace.config import AuthConfig
from tests.unit.http.inprocess import Up, serve

HASH = passwords.hashed("correct horse")
TOKEN = {"authorization": "Bearer s3cret-s3cret-s3cret"}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def basic(name: str, password: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


async def post(up: Up, what: str, body: Any = None, **headers: str) -> httpx.Response:
    return await up.http.post(f"/v1/api/auth/{what}", json=body, headers=headers)


async def login(up: Up, name: str = "ann", password: str = "correct horse") -> dict[str, Any]:
    answer = await post(up, "login", {"username": name, "password": password})
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    found: dict[str, Any] = answer.json()
    return found


async def add(up: Up, name: str = "ann", role: str = "service") -> None:
    await up.db.aexecute(CreateUser(name=name, role=role, password=HASH))


def code(answer: httpx.Response, status: int = 401) -> str:
    assert answer.status_code == status, answer.text
    if status == 401:
        assert "Basic realm" in answer.headers["www-authenticate"]
        assert "Bearer realm" in answer.headers["www-authenticate"]
    return str(answer.json()["error"]["code"])


def test_logging_in(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await add(up)
        found = await login(up)
        assert found["token_type"] == "Bearer"
        assert found["expires_in"] == 3600
        assert found["user"] == {"name": "ann", "role": "service"}
        claims = jwt.decode(found["access_token"], options={"verify_signature": False})
        assert (claims["iss"], claims["sub"], claims["role"]) == ("tailrace", "ann", "service")
        assert claims["exp"] - claims["iat"] == 3600
        me = await up.http.get("/v1/api/auth/me", headers=bearer(found["access_token"]))
        assert me.json() == {
            "name": "ann",
            "role": "service",
            "permissions": ["consume", "jobs", "read", "write"],
            "access": None,
        }
        made = await up.http.put("/v1/stream/a", headers=bearer(found["access_token"]))
        assert made.status_code == 201
        other = await post(up, "login", {"user": "ann", "password": "correct horse"})
        assert other.json()["access_token"] != found["access_token"]
        assert (await up.http.get("/v1/api/auth/me", headers=TOKEN)).json()["role"] == "system"
        assert (await up.http.get("/v1/api/auth/me", headers=basic("ann", "correct horse"))).json()["name"] == "ann"
        assert code(await up.http.get("/v1/api/auth/me")) == "UNAUTHENTICATED"

    serve(data_dir, scenario, token="s3cret-s3cret-s3cret")


def test_a_login_survives_a_restart(data_dir: Path) -> None:
    kept: dict[str, Any] = {}

    async def first(up: Up) -> None:
        await add(up)
        kept.update(await login(up))

    async def second(up: Up) -> None:
        assert (await up.http.get("/v1/api/auth/me", headers=bearer(kept["access_token"]))).json()["name"] == "ann"
        assert (await post(up, "refresh", {"refresh_token": kept["refresh_token"]})).status_code == 200

    serve(data_dir, first, token="s3cret-s3cret-s3cret")
    serve(data_dir, second, dev=False)  # with a user that can log in no token is needed


def test_refreshing_rotates_and_reuse_ends_it_all(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await add(up)
        first = await login(up)
        second = (await post(up, "refresh", {"refresh_token": first["refresh_token"]})).json()
        assert second["refresh_token"] != first["refresh_token"]
        for token in (first, second):
            me = await up.http.get("/v1/api/auth/me", headers=bearer(token["access_token"]))
            assert me.status_code == 200
        assert code(await post(up, "refresh", {"refresh_token": first["refresh_token"]})) == "REFRESH_REUSED"
        assert code(await post(up, "refresh", {"refresh_token": second["refresh_token"]})) == "REFRESH_UNKNOWN"
        for token in (first, second):
            me = await up.http.get("/v1/api/auth/me", headers=bearer(token["access_token"]))
            assert code(me) == "TOKEN_REVOKED"

    serve(data_dir, scenario, token="s3cret-s3cret-s3cret")


def test_leaving(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await add(up)
        one, other, third = [await login(up) for _ in range(3)]
        assert (await post(up, "logout", **bearer(one["access_token"]))).status_code == 204
        assert code(await up.http.get("/v1/stream/a", headers=bearer(one["access_token"]))) == "TOKEN_REVOKED"
        assert code(await post(up, "refresh", {"refresh_token": one["refresh_token"]})) == "REFRESH_UNKNOWN"
        assert (await post(up, "logout", {"refresh_token": other["refresh_token"]})).status_code == 204
        assert code(await up.http.get("/v1/stream/a", headers=bearer(other["access_token"]))) == "TOKEN_REVOKED"
        me = await up.http.get("/v1/api/auth/me", headers=bearer(third["access_token"]))
        assert me.status_code == 200, "the other sessions go on"
        assert code(await post(up, "logout")) == "UNAUTHENTICATED"
        assert code(await post(up, "logout", **TOKEN)) == "TOKEN_MALFORMED"

    serve(data_dir, scenario, token="s3cret-s3cret-s3cret")


@pytest.mark.parametrize(
    "command", [alter_user("ann", password="another horse"), AlterUser(name="ann", disabled=True), DropUser(name="ann")]
)
def test_what_invalidates_tokens_at_once(data_dir: Path, command: Any) -> None:
    async def scenario(up: Up) -> None:
        await add(up)
        found = await login(up)
        assert (await up.http.get("/v1/api/auth/me", headers=bearer(found["access_token"]))).status_code == 200
        await up.db.aexecute(command)
        assert code(await up.http.get("/v1/api/auth/me", headers=bearer(found["access_token"]))) == "TOKEN_REVOKED"
        assert code(await post(up, "refresh", {"refresh_token": found["refresh_token"]})) == "REFRESH_UNKNOWN"

    serve(data_dir, scenario, token="s3cret-s3cret-s3cret")


def test_another_role_counts_for_tokens_there_are(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await add(up)
        found = await login(up)
        await up.db.aexecute(AlterUser(name="ann", role="user", access=("streams/a",)))
        me = (await up.http.get("/v1/api/auth/me", headers=bearer(found["access_token"]))).json()
        assert (me["role"], me["access"]) == ("user", ["streams/a"])
        refused = await up.http.put("/v1/stream/b", headers=bearer(found["access_token"]))
        assert code(refused, 403) == "NOT_GIVEN"
        assert (await up.http.put("/v1/stream/a", headers=bearer(found["access_token"]))).status_code == 201
        assert code(await up.http.get("/metrics", headers=bearer(found["access_token"])), 403) == "NOT_GIVEN"

    serve(data_dir, scenario, token="s3cret-s3cret-s3cret")


def test_tokens_expire(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        clock = ManualClock(up.db.clock.now_ms())
        up.db.clock.now_ms = clock.now_ms  # type: ignore[method-assign]
        await add(up)
        found = await login(up)
        clock.advance(59)
        assert (await up.http.get("/v1/api/auth/me", headers=bearer(found["access_token"]))).status_code == 200
        clock.advance(1)
        assert code(await up.http.get("/v1/api/auth/me", headers=bearer(found["access_token"]))) == "TOKEN_EXPIRED"
        found = (await post(up, "refresh", {"refresh_token": found["refresh_token"]})).json()
        assert found["expires_in"] == 60
        assert (await up.http.get("/v1/api/auth/me", headers=bearer(found["access_token"]))).status_code == 200
        clock.advance(120)
        assert code(await post(up, "refresh", {"refresh_token": found["refresh_token"]})) == "REFRESH_EXPIRED"

    serve(data_dir, scenario, token="s3cret-s3cret-s3cret", auth=AuthConfig(access_token_s=60, refresh_token_s=120))


@pytest.mark.parametrize(
    ("what", "body", "status"),
    [
        ("login", {}, 400),
        ("login", {"username": "ann"}, 400),
        ("login", {"password": "x"}, 400),
        ("login", {"username": "", "password": "x"}, 400),
        ("login", {"username": "ann", "password": 7}, 400),
        ("login", {"username": "ann", "password": "x", "more": 1}, 400),
        ("login", [], 400),
        ("login", {"username": "ann", "password": "x" * 1025}, 400),
        ("login", {"username": "ann", "password": "x" * 20_000}, 413),
        ("login", {"username": "ann", "password": "wrong"}, 401),
        ("login", {"username": "x" * 300, "password": "wrong"}, 401),
        ("login", {"username": "nobody", "password": "wrong"}, 401),
        ("refresh", {}, 400),
        ("refresh", {"refresh_token": ""}, 401),
        ("refresh", {"refresh_token": "trr.YW5u.x.y"}, 401),
        ("logout", {"refresh_token": "nonsense"}, 401),
        ("nothing", {}, 404),
    ],
)
def test_bad_requests(data_dir: Path, what: str, body: Any, status: int) -> None:
    async def scenario(up: Up) -> None:
        await add(up)
        assert (await post(up, what, body)).status_code == status
        for wrong in ("login", "refresh", "logout"):
            assert (await up.http.get(f"/v1/api/auth/{wrong}")).status_code == 405
        assert (await up.http.post("/v1/api/auth/me", headers=TOKEN)).status_code == 405

    serve(data_dir, scenario, token="s3cret-s3cret-s3cret")


def test_guessing_at_the_login_is_throttled(data_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tailrace.audit")

    async def scenario(up: Up) -> None:
        await add(up)
        for number in range(5):
            wrong = await post(up, "login", {"username": "ann", "password": f"guess {number}"})
            assert code(wrong) == "WRONG_PASSWORD"
        throttled = await post(up, "login", {"username": "ann", "password": "correct horse"})
        assert code(throttled, 429) == "TOO_MANY_ATTEMPTS"
        assert int(throttled.headers["retry-after"]) >= 1
        throttled = await up.http.get("/v1/stream/a", headers=basic("ann", "correct horse"))
        assert code(throttled, 429) == "TOO_MANY_ATTEMPTS", "the other way in is the same"
        assert "guess" not in caplog.text
        assert "what='login' outcome='WRONG_PASSWORD' peer='127.0.0.1'" in caplog.text

    serve(data_dir, scenario, token="s3cret-s3cret-s3cret")


def test_made_up_sessions_cost_no_write_and_slow_down_who_shows_them(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CLOCK_NOTE_S", math.inf)  # else housekeeping may write meanwhile

    async def scenario(up: Up) -> None:
        await add(up)
        await up.db.aexecute(CreateUser(name="bob", password=HASH))
        await login(up)
        commands = up.db.metrics.commands
        made_up = sessions.new_token("bob").text()
        for number in range(30):
            answer = await post(up, "refresh", {"refresh_token": made_up})
            assert code(answer, 401 if number < 20 else 429) in ("REFRESH_UNKNOWN", "TOO_MANY_ATTEMPTS")
        assert code(await post(up, "logout", {"refresh_token": made_up}), 429) == "TOO_MANY_ATTEMPTS"
        assert up.db.metrics.commands == commands
        found = await login(up)
        again = await post(up, "refresh", {"refresh_token": found["refresh_token"]})
        assert again.status_code == 200, "a user who logged in from here is not throttled by others"

    serve(data_dir, scenario, token="s3cret-s3cret-s3cret")


def test_leaving_a_session_that_is_none_costs_no_write(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLOCK_NOTE_S", math.inf)  # else housekeeping may write meanwhile

    async def scenario(up: Up) -> None:
        await add(up)
        found = await login(up)
        commands = up.db.metrics.commands
        shown = sessions.read_token(found["refresh_token"])
        for token in (sessions.new_token("ann"), sessions.new_token("ann", shown.session)):
            assert (await post(up, "logout", {"refresh_token": token.text()})).status_code == 204
        assert up.db.metrics.commands == commands
        assert (await up.http.get("/v1/api/auth/me", headers=bearer(found["access_token"]))).status_code == 200

    serve(data_dir, scenario, token="s3cret-s3cret-s3cret")


# -- users


def test_users_over_http(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        up.http.headers.update(TOKEN)
        url = "/v1/admin/users"
        made = await up.http.post(url, json={"name": "ä/b", "password": "correct horse", "access": ["tables/a"]})
        assert made.status_code == 201
        facts = made.json()
        assert (facts["name"], facts["role"], facts["access"]) == ("ä/b", "user", ["tables/a"])
        assert (facts["password"], facts["disabled"]) == (True, False)
        assert (await up.http.get(url)).json() == {"users": [facts]}
        one = f"{url}/%C3%A4%2Fb"
        assert (await up.http.get(one)).json() == facts
        assert (await up.http.get("/v1/api/auth/me", headers=basic("ä/b", "correct horse"))).status_code == 200
        changed = await up.http.patch(one, json={"password": "another horse", "role": "dba", "access": None})
        assert (changed.json()["role"], changed.json()["access"]) == ("dba", None)
        assert (await up.http.get("/v1/api/auth/me", headers=basic("ä/b", "correct horse"))).status_code == 401
        assert (await up.http.get("/v1/api/auth/me", headers=basic("ä/b", "another horse"))).json()["role"] == "dba"
        assert (await up.http.patch(one, json={"disabled": True})).json()["disabled"]
        assert (await up.http.delete(one)).status_code == 204
        assert (await up.http.get(one)).status_code == 404
        assert (await up.http.delete(one)).status_code == 404

    serve(data_dir, scenario, token="s3cret-s3cret-s3cret")


@pytest.mark.parametrize(
    ("method", "rest", "body", "status"),
    [
        ("POST", "", {"name": "a:b"}, 400),
        ("POST", "", {"name": "x", "password": "short"}, 400),
        ("POST", "", {"name": "x", "role": "root"}, 400),
        ("POST", "", {"name": "x", "access": ["y"]}, 400),
        ("POST", "", {"name": "x", "more": 1}, 400),
        ("POST", "", {}, 400),
        ("POST", "", {"name": "ann"}, 409),
        ("POST", "", {"name": "x" * 300_000}, 413),
        ("PATCH", "/nobody", {"role": "dba"}, 404),
        ("PATCH", "/ann", {"name": "x"}, 400),
        ("PATCH", "/%ff", {}, 400),
        ("PUT", "", {}, 405),
        ("POST", "/ann", {}, 405),
        ("GET", "/a/b", None, 404),
        ("GET", "x", None, 404),
    ],
)
def test_bad_requests_for_users(data_dir: Path, method: str, rest: str, body: Any, status: int) -> None:
    async def scenario(up: Up) -> None:
        await add(up)
        answer = await up.http.request(method, f"/v1/admin/users{rest}", json=body, headers=TOKEN)
        assert answer.status_code == status, answer.text
        users = (await up.http.get("/v1/admin/users", headers=TOKEN)).json()["users"]
        assert [(user["name"], user["role"]) for user in users] == [("ann", "service")]

    serve(data_dir, scenario, token="s3cret-s3cret-s3cret")


def test_users_are_for_administrators_and_the_role_system_for_system(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await add(up)
        await add(up, "boss", "dba")
        for method, rest in (("GET", ""), ("POST", ""), ("PATCH", "/ann"), ("DELETE", "/ann")):
            body = {"name": "x"} if method == "POST" else {"role": "dba"} if method == "PATCH" else None
            answer = await up.http.request(
                method, f"/v1/admin/users{rest}", json=body, headers=basic("ann", "correct horse")
            )
            assert answer.status_code == 403, method
        boss = basic("boss", "correct horse")
        wanted = {"name": "root", "role": "system", "password": "correct horse"}
        answer = await up.http.post("/v1/admin/users", json=wanted, headers=boss)
        assert code(answer, 403) == "NEEDS_SYSTEM"
        assert (await up.http.post("/v1/admin/users", json=wanted, headers=TOKEN)).status_code == 201
        answer = await up.http.patch("/v1/admin/users/root", json={"password": "boss's horse"}, headers=boss)
        assert code(answer, 403) == "NEEDS_SYSTEM"
        answer = await up.http.post("/v1/admin/keys", json={"principal": "root"}, headers=boss)
        assert code(answer, 403) == "NEEDS_SYSTEM"

    serve(data_dir, scenario, token="s3cret-s3cret-s3cret")


GUESSES = {
    "bearer": ("GET", "/v1/topics", {"authorization": "Bearer wrong"}, b""),
    "wake": ("POST", "/v1/stream/__ds/subscriptions/s/ack", {"authorization": "Bearer wrong"}, b""),
    "logout": ("POST", "/v1/api/auth/logout", {"authorization": "Bearer eyJ.wrong.wrong"}, b""),
    "tables": (
        "POST",
        "/",
        {
            "authorization": "Bearer wrong",
            "content-type": "application/x-amz-json-1.0",
            "x-amz-target": "DynamoDB_20120810.ListTables",
        },
        b"{}",
    ),
}


@pytest.mark.parametrize("kind", GUESSES)
def test_wrong_tokens_of_every_kind_are_throttled(data_dir: Path, kind: str) -> None:
    method, path, headers, body = GUESSES[kind]

    async def scenario(up: Up) -> None:
        assert (await up.http.get("/v1/topics", headers=TOKEN)).status_code == 200
        answers = [
            await up.http.request(method, path, headers=headers, content=body)
            for _ in range(limits.LOGIN_PEER_FREE + 1)
        ]
        assert {answer.status_code for answer in answers[:-1]} == {400 if path == "/" else 401}
        if path == "/":
            assert answers[-1].json()["__type"].endswith("#ThrottlingException")
        else:
            assert answers[-1].status_code == 429 and int(answers[-1].headers["retry-after"]) >= 1
        assert (await up.http.get("/v1/topics", headers=TOKEN)).status_code == 200, "known before, it does not wait"

    serve(data_dir, scenario, token="s3cret-s3cret-s3cret")
