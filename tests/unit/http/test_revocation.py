"""Requests that go on end when their caller may no longer make them: each way to wait, each way to lose a right."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tailrace.auth import passwords
from tailrace.auth.users import AlterUser, CreateUser, DropUser
from tailrace.config import AuthConfig
from tailrace.topics.commands import CreateTopic
from tests.unit.http.inprocess import PATIENCE_S, Up, serve

HASH = passwords.hashed("correct horse")
OTHER = passwords.hashed("battery staple")
TOKEN = "a-token-of-many-characters"
LONG = 300.0  # no test waits so long: what ends before, ended because of the change
BASIC = {"authorization": "Basic " + base64.b64encode(b"ann:correct horse").decode()}
ROOT = {"authorization": f"Bearer {TOKEN}"}
CONSUME = {"topic": "news", "timeout_seconds": LONG}

CHANGES: dict[str, Callable[[], Any]] = {
    "dropped": lambda: DropUser(name="ann"),
    "disabled": lambda: AlterUser(name="ann", disabled=True),
    "another password": lambda: AlterUser(name="ann", password=OTHER),
    "no access": lambda: AlterUser(name="ann", access=("tables/none",)),
    "another role": lambda: AlterUser(name="ann", role="user"),
}


def run(data_dir: Path, scenario: Callable[[Up], Awaitable[None]], **settings: Any) -> None:
    async def prepared(up: Up) -> None:
        await up.db.aexecute(CreateUser(name="ann", role="service", password=HASH))
        await up.db.aexecute(CreateTopic("news"))
        up.http.headers.update(ROOT)
        await up.create("a")
        await scenario(up)

    options = {"token": TOKEN, "long_poll_timeout_s": LONG, "sse_recycle_s": LONG, **settings}
    serve(data_dir, prepared, **options)


def waiting(up: Up, how: str, headers: dict[str, str]) -> asyncio.Task[httpx.Response]:
    """A request that waits; its response is whole when it ends."""
    if how == "consume":
        pending = up.http.post("/v1/api/topics/consume", json={**CONSUME, "group_id": "g"}, headers=headers)
    elif how == "consume without a group":
        pending = up.http.post("/v1/api/topics/consume", json={**CONSUME, "partition_id": 0}, headers=headers)
    elif how == "partition":
        pending = up.http.get("/v1/topics/news/0/stream?offset=-1&live=long-poll", headers=headers)
    else:
        pending = up.http.get(f"/v1/stream/a?offset=-1&live={how}", headers=headers)
    return asyncio.create_task(pending)


async def ended(task: asyncio.Task[httpx.Response]) -> httpx.Response:
    return await asyncio.wait_for(task, PATIENCE_S)


@asynccontextmanager
async def all_waiting(up: Up, headers: dict[str, str]) -> AsyncIterator[dict[str, asyncio.Task[httpx.Response]]]:
    tasks = {how: waiting(up, how, headers) for how in WAYS}
    await up.until(lambda: up.db.metrics.live_readers == len(WAYS))
    yield tasks
    await up.until(lambda: up.db.metrics.live_readers == 0)


WAYS = ("long-poll", "sse", "partition", "consume", "consume without a group")


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_user_waits_for_ends_with_the_right_to_it(data_dir: Path, change: str) -> None:
    async def scenario(up: Up) -> None:
        async with all_waiting(up, BASIC) as tasks:
            await up.db.aexecute(CHANGES[change]())
            answers = {how: await ended(task) for how, task in tasks.items()}
        for how, answer in answers.items():
            if how == "sse":
                assert answer.status_code == 200 and "data:" in answer.text  # its head was sent; it ended
            elif change in ("dropped", "disabled", "another password"):
                assert answer.status_code == 401, how
            else:  # as at the time-out, and then judged by the rights there are
                assert answer.status_code in (200, 204), how
        again = await up.http.post("/v1/api/topics/consume", json={**CONSUME, "group_id": "g"}, headers=BASIC)
        assert again.status_code in (401, 403)

    run(data_dir, scenario)


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_is_sent_that_was_committed_after_the_right_was_lost(
    data_dir: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A password takes a while to verify; events must not pass meanwhile."""
    released = threading.Event()

    async def scenario(up: Up) -> None:
        task = waiting(up, "sse", BASIC)
        await up.until(lambda: up.db.metrics.live_readers == 1)
        matches = passwords.matches
        monkeypatch.setattr(passwords, "matches", lambda *arguments: released.wait(PATIENCE_S) and matches(*arguments))
        try:
            await up.db.aexecute(CHANGES[change]())
            await up.append("a", "committed later")
            assert "committed later" not in (await ended(task)).text
        finally:
            released.set()

    run(data_dir, scenario)


def test_a_password_that_was_verified_has_the_rights_of_the_moment(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        async def me() -> Any:
            answer = await up.http.get("/v1/api/auth/me", headers=BASIC)
            return answer.json().get("role", answer.status_code)

        assert await me() == "service"
        await up.db.aexecute(AlterUser(name="ann", role="user"))
        assert await me() == "user"
        await up.db.aexecute(AlterUser(name="ann", disabled=True))
        assert await me() == 401
        await up.db.aexecute(AlterUser(name="ann", disabled=False))
        assert await me() == "user"
        await up.db.aexecute(DropUser(name="ann"))
        await up.db.aexecute(CreateUser(name="ann", role="dba", password=OTHER))
        assert await me() == 401

    run(data_dir, scenario)


def test_who_keeps_all_rights_goes_on_waiting(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        async with all_waiting(up, BASIC) as tasks:
            await up.db.aexecute(AlterUser(name="ann", disabled=False, role="service"))  # no change
            await up.db.aexecute(CreateUser(name="bob", role="service", password=HASH))  # of another user
            await up.db.aexecute(DropUser(name="bob"))
            other = (await login(up))["refresh_token"]  # another session of the same user, which ends
            await up.http.post("/v1/api/auth/logout", json={"refresh_token": other})
            await up.append("a", "x")
            for _ in range(2):
                await up.http.post("/v1/topics/news", content=b"m")
            for how in ("long-poll", "partition", "consume", "consume without a group"):
                answer = await ended(tasks[how])
                assert answer.status_code == 200 and answer.content, how
            tasks["sse"].cancel()

    run(data_dir, scenario)


async def login(up: Up) -> dict[str, Any]:
    answer = await up.http.post("/v1/api/auth/login", json={"username": "ann", "password": "correct horse"})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def test_what_a_session_waits_for_ends_with_it(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        opened = await login(up)
        headers = {"authorization": f"Bearer {opened['access_token']}"}
        async with all_waiting(up, headers) as tasks:
            left = await up.http.post("/v1/api/auth/logout", json={"refresh_token": opened["refresh_token"]})
            assert left.status_code == 204
            for how, task in tasks.items():
                answer = await ended(task)
                assert answer.status_code == (200 if how == "sse" else 401), how

    run(data_dir, scenario)


def test_what_a_token_opened_ends_when_it_expires(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        headers = {"authorization": f"Bearer {(await login(up))['access_token']}"}
        tasks = {how: waiting(up, how, headers) for how in WAYS}
        for how, task in tasks.items():
            answer = await ended(task)
            if how != "sse":
                assert (answer.status_code, answer.json()["error"]["code"]) == (401, "TOKEN_EXPIRED"), how

    run(data_dir, scenario, auth=AuthConfig(access_token_s=4))


def test_nothing_is_delivered_to_a_consumer_that_was_dropped(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        task = waiting(up, "consume", BASIC)
        await up.until(lambda: up.db.metrics.consumers_waiting == 1)
        await up.db.aexecute(DropUser(name="ann"))
        await up.http.post("/v1/topics/news", content=b"m")
        assert (await ended(task)).status_code == 401
        answer = await up.http.post("/v1/api/topics/consume", json={**CONSUME, "group_id": "g"})
        assert len(answer.json()["messages"]) == 1

    run(data_dir, scenario)


def test_a_download_is_cut_off(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("big", "application/json")
        body = msgspec.json.encode(["x" * 1000] * 2000)
        for _ in range(40):
            await up.append("big", body, content_type="application/json")
        headers = {**BASIC, "accept": "application/vnd.apache.arrow.stream"}
        with pytest.raises(httpx.RemoteProtocolError):
            async with up.http.stream("GET", "/v1/stream/big?offset=-1", headers=headers) as answer:
                assert answer.status_code == 200
                parts = answer.aiter_raw(1)
                await anext(parts)
                await up.db.aexecute(DropUser(name="ann"))
                async for _ in parts:
                    pass

    pytest.importorskip("pyarrow")
    run(data_dir, scenario)
