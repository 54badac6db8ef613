"""The asynchronous client, from which the other is generated: what an event loop adds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.client import AsyncClient, Client
from tailrace.errors import Conflict, NotFound, Unavailable
from tests.unit.threaded import PATIENCE_S, Served


@pytest.fixture
def server(data_dir: Path) -> Iterator[Served]:
    with Served(data_dir, long_poll_timeout_s=0.2) as served:
        yield served


def played(url: str, scenario: Callable[[AsyncClient], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S), AsyncClient(url) as client:
            await scenario(client)

    asyncio.run(bounded())


def test_it_offers_what_the_other_does() -> None:
    def public(of: type) -> set[str]:
        return {name for name in dir(of) if not name.startswith("_")}

    assert public(AsyncClient) - {"aclose"} == public(Client) - {"close"}


def test_sql_tables_and_errors(server: Served) -> None:
    async def scenario(client: AsyncClient) -> None:
        await client.sql("CREATE TABLE orders (id TEXT PRIMARY KEY) WITH (stream = 'NEW_IMAGE')")
        await client.sql("INSERT INTO orders (id) VALUES ('o-1')")
        (found,) = await client.sql("SELECT id FROM orders")
        assert found.rows == [{"id": "o-1"}]
        described = await client.call("DescribeTable", {"TableName": "orders"})
        assert described["Table"]["TableName"] == "orders"
        assert b"o-1" in (await client.changes("orders")).body
        with pytest.raises(NotFound):
            await client.call("DescribeTable", {"TableName": "missing"})
        with pytest.raises(Conflict):
            await client.sql("CREATE TABLE orders (id TEXT PRIMARY KEY)")

    played(server.url, scenario)


def test_it_looks_into_a_database(server: Served) -> None:
    async def scenario(client: AsyncClient) -> None:
        made = "CREATE TABLE orders (id TEXT PRIMARY KEY, n BIGINT) WITH (stream = 'NEW_AND_OLD_IMAGES')"
        await client.sql(f"{made}; INSERT INTO orders VALUES ('a', 1); UPDATE orders SET n = 2 WHERE id = 'a'")
        history = await client.item_history("orders", {"id": "a"})
        first = history["versions"][-1]["sequence"]
        assert [version["new"]["n"] for version in history["versions"]] == [2, 1]
        assert (await client.items_at("orders", sequence=first))["items"] == [{"id": "a", "n": 1}]
        assert (await client.items_at("orders", time="2999-01-01T00:00:00Z"))["items"] == [{"id": "a", "n": 2}]
        assert (await client.trace_write("orders", first, {"id": "a"}))["records"][0]["event"] == "INSERT"
        await client.create("docs/a")
        assert [each["path"] async for each in client.list_streams(prefix="docs/", search="A")] == ["docs/a"]
        assert [each["name"] async for each in client.list_tables(search="orders")] == ["orders"]
        assert (await client.status())["ready"]
        assert (await client.samples(step_s=60))["step_s"] == 60

    played(server.url, scenario)


def test_many_requests_at_once(server: Served) -> None:
    async def scenario(client: AsyncClient) -> None:
        await client.sql("CREATE TOPIC t")
        await asyncio.gather(*(client.publish("t", number) for number in range(50)))
        got = await client.consume("t", "g")
        assert sorted(message.json() for message in got) == list(range(50))
        assert await client.ack("t", "g", got.messages[-1].offset) == 49

    played(server.url, scenario)


def test_a_cancelled_wait_leases_nothing(server: Served) -> None:
    async def scenario(client: AsyncClient) -> None:
        await client.sql("CREATE TOPIC t")
        waiting = asyncio.create_task(client.consume("t", "g", timeout_s=PATIENCE_S))
        while not server.running.db.metrics.consumers_waiting:
            await asyncio.sleep(0.002)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        while server.running.db.metrics.consumers_waiting:
            await asyncio.sleep(0.002)
        await client.publish("t", b"x")
        assert len(await client.consume("t", "g")) == 1

    played(server.url, scenario)


def test_a_producer(server: Served) -> None:
    async def scenario(client: AsyncClient) -> None:
        await client.sql("CREATE TOPIC t")
        producer = client.producer("t", id="p")
        await asyncio.gather(*(producer.publish(number) for number in range(20)))
        assert [message.offset for message in await client.consume("t", None)] == list(range(20))

    played(server.url, scenario)


def test_items_in_bulk(server: Served) -> None:
    async def scenario(client: AsyncClient) -> None:
        await client.sql("CREATE TABLE orders (id TEXT PRIMARY KEY)")
        await client.sql("INSERT INTO orders (id) VALUES ('o-1'), ('o-2')")
        async with client.items("orders") as (sequence, reader):
            assert sequence >= 0
            assert reader.read_all().num_rows == 2

    played(server.url, scenario)


def test_batches(server: Served) -> None:
    async def scenario(client: AsyncClient) -> None:
        await client.sql("CREATE TOPIC t")
        await client.publish("t", list(range(7)))
        seen: list[int] = []
        async with client.consumer("t", "g", batch=3) as consumer:
            async for batch in consumer.batches():
                seen.extend(message.json() for message in batch)
                await batch.ack()
                if len(seen) == 7:
                    consumer.stop()
        assert seen == list(range(7))

    played(server.url, scenario)


def test_a_server_that_is_not_there() -> None:
    async def scenario(client: AsyncClient) -> None:
        with pytest.raises(Unavailable, match="is the server running"):
            await client.read("a")
        await client.aclose()
        with pytest.raises(Unavailable, match="was closed"):
            await client.read("a")

    played("http://127.0.0.1:1", scenario)
