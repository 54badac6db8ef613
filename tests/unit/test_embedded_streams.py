"""Streams from Python: of a database and of a server, synchronous and asynchronous, in the same words."""

from __future__ import annotations

import asyncio
import doctest
import inspect
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.client import AsyncClient, Client
from tailrace.database import Database
from tailrace.embedded import AsyncStream, Stream, StreamState
from tailrace.errors import Conflict, Invalid, NotFound
from tailrace.log.position import offset
from tailrace.storage.sqlite import SqliteEngine
from tests.unit.threaded import PATIENCE_S, Served


@pytest.fixture(params=["database", "server"])
def api(request: pytest.FixtureRequest, data_dir: Path) -> Iterator[Any]:
    if request.param == "database":
        with Database(SqliteEngine(data_dir), housekeeping_s=None) as db:
            yield db
        return
    with Served(data_dir, long_poll_timeout_s=0.2) as served, Client(served.url) as client:
        yield client


def test_a_json_stream(api: Any) -> None:
    greetings = api.create_stream("greetings")
    assert repr(greetings) == "<Stream 'greetings'>"
    tail = greetings.append({"hello": "world"})
    greetings.append([1, "two"])
    page = greetings.read()
    assert page.json() == [{"hello": "world"}, 1, "two"]
    assert (page.content_type, page.up_to_date, page.closed) == ("application/json", True, False)
    assert greetings.read(tail).json() == [1, "two"]
    assert greetings.read("now").empty
    assert greetings.state() == StreamState("greetings", "application/json", page.next)
    assert api.create_stream("greetings").read() == page


def test_a_text_stream_that_is_found_again(api: Any) -> None:
    api.create_stream("log", "text/plain")
    log = api.stream("log")
    assert log.append("hé") == offset(3)
    assert log.append(b"!", close=True) == offset(4)
    assert log.read().body == "hé!".encode()
    with pytest.raises(Invalid, match="not JSON"):
        log.read().json()
    with pytest.raises(Conflict, match="is closed"):
        log.append("more")
    log.delete()
    with pytest.raises(NotFound):
        log.read()


def test_what_cannot_be_appended(api: Any) -> None:
    with pytest.raises(Invalid, match="text/plain"):
        api.create_stream("log", "text/plain").append({"a": 1})
    with pytest.raises(Invalid, match="cannot be appended"):
        api.create_stream("json").append(object())
    with pytest.raises(NotFound):
        api.stream("missing").append("x")


def test_following_until_it_is_closed(api: Any) -> None:
    stream = api.create_stream("s")
    stream.append(1)
    seen: list[Any] = []
    arrived = threading.Semaphore(0)

    def follow() -> None:
        for page in stream.follow():
            seen.extend(page.json())
            arrived.release()

    thread = threading.Thread(target=follow)
    thread.start()
    assert arrived.acquire(timeout=PATIENCE_S)
    stream.append(2)
    assert arrived.acquire(timeout=PATIENCE_S)
    stream.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert seen == [1, 2]


def test_a_stream_that_expires(api: Any) -> None:
    assert api.create_stream("s", ttl_s=60).state().ttl_s == 60


def test_streams_of_a_database(data_dir: Path) -> None:
    with Database(SqliteEngine(data_dir), housekeeping_s=None) as db:
        for path in ("b", "a/c", "a"):
            db.create_stream(path)
        assert db.streams() == ["a", "a/c", "b"]


def test_a_closed_database_ends_the_following(data_dir: Path) -> None:
    db = Database(SqliteEngine(data_dir), housekeeping_s=None)
    stream = db.create_stream("s")
    thread = threading.Thread(target=lambda: list(stream.follow("now")))
    thread.start()
    while not len(db.tail):
        assert thread.is_alive()
    db.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


async def scenario(api: Any) -> None:
    stream = await api.create_stream("s")
    assert repr(stream) == "<AsyncStream 's'>"
    await stream.append(1)
    seen: list[Any] = []
    there = asyncio.Event()

    async def follow() -> None:
        async for page in stream.follow():
            seen.extend(page.json())
            there.set()

    following = asyncio.create_task(follow())
    await there.wait()
    await stream.append([2, 3])
    await stream.close()
    await asyncio.wait_for(following, PATIENCE_S)
    assert seen == [1, 2, 3]
    assert (await stream.read("now")).closed
    await stream.delete()


def test_on_an_event_loop(data_dir: Path) -> None:
    async def of_a_database() -> None:
        db = Database(SqliteEngine(data_dir), housekeeping_s=None)
        await scenario(db.aio)
        assert await db.aio.streams() == []
        await db.aclose()

    asyncio.run(of_a_database())


def test_of_a_server_on_an_event_loop(data_dir: Path) -> None:
    async def of_a_server() -> None:
        async with AsyncClient(served.url) as client:
            await scenario(client)

    with Served(data_dir) as served:
        asyncio.run(of_a_server())


def test_the_examples_work(data_dir: Path) -> None:
    with Database(SqliteEngine(data_dir), housekeeping_s=None) as db:
        names = {"db": db, "greetings": db.create_stream("greetings")}
        for method in (Database.create_stream, Stream.append, Stream.read):
            parsed = doctest.DocTestParser().get_doctest(inspect.getdoc(method) or "", names, "", None, None)
            assert parsed.examples
            assert doctest.DocTestRunner().run(parsed, clear_globs=False).failed == 0
    assert {name for name in vars(Stream) if name[0] != "_"} == {name for name in vars(AsyncStream) if name[0] != "_"}
