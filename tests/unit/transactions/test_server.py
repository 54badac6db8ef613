"""Transactions of a server: over HTTP, and with the Python clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from uuid import uuid4

import httpx
import pytest

import tailrace.client
from tailrace import between, limits
from tailrace.client import AsyncClient, AsyncConsumer, Client, Consumer
from tailrace.errors import ConditionFailed, Conflict, Invalid, TooLarge, TransactionConflict, Unavailable
from tailrace.streams.producer import ProducerClaim
from tests.support.patience import PATIENCE_S
from tests.support.server import ServerProcess


class Names:
    """A table, a topic, another one and a stream of one test."""

    def __init__(self, client: Client) -> None:
        unique = uuid4().hex[:8]
        self.table, self.jobs, self.done, self.stream = (f"{kind}-{unique}" for kind in ("t", "jobs", "done", "s"))
        client.sql(f'CREATE TABLE "{self.table}" (id TEXT PRIMARY KEY, n DECIMAL) WITH (stream = NEW_AND_OLD_IMAGES)')
        client.call(
            "CreateTable",
            {
                "TableName": f"lines-{unique}", "BillingMode": "PAY_PER_REQUEST",
                "AttributeDefinitions": [
                    {"AttributeName": "o", "AttributeType": "S"}, {"AttributeName": "n", "AttributeType": "N"},
                ],
                "KeySchema": [{"AttributeName": "o", "KeyType": "HASH"}, {"AttributeName": "n", "KeyType": "RANGE"}],
            },
        )  # fmt: skip
        self.lines = f"lines-{unique}"
        client.sql(f'CREATE TOPIC "{self.jobs}" PARTITIONS 2; CREATE TOPIC "{self.done}"')
        client.create(self.stream)


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.url) as made:
        yield made


@pytest.fixture
def names(client: Client) -> Names:
    return Names(client)


def post(server: ServerProcess, body: Any, status: int = 200, path: str = "") -> Any:
    answer = httpx.post(f"{server.url}/v1/api/transaction{path}", json=body, timeout=PATIENCE_S)
    assert answer.status_code == status, answer.text
    return answer.json()


# -- HTTP


def test_everything_in_one_request(server: ServerProcess, client: Client, names: Names) -> None:
    client.publish(names.jobs, b"work", partition=1)
    (message,) = client.consume(names.jobs, "g", consumer="w", partition=1)
    body = {
        "token": "t-" + names.table[:20],
        "operations": [
            {"op": "put", "table": names.table, "item": {"id": "a", "n": 1.5}, "condition": "attribute_not_exists(id)"},
            {"op": "update", "table": names.table, "key": "b", "expression": "SET n = :n", "values": {"n": 2}},
            {"op": "check", "table": names.table, "key": ["c"], "condition": "attribute_not_exists(id)"},
            {"op": "delete", "table": names.table, "key": {"id": "d"}},
            {
                "op": "ack", "topic": names.jobs, "group_id": "g", "consumer_id": "w", "partition_id": 1,
                "lease_id": message.lease_id, "offsets": [[0, 0]],
            },
            {"op": "publish", "topic": names.done, "messages": [{"value": {"n": 1}}, {"payload": "aGk=", "key": "k"}]},
            {"op": "append", "stream": names.stream, "text": "hello"},
        ],
    }  # fmt: skip
    done = post(server, body)
    assert done == {
        "replayed": False, "sequence": done["sequence"], "acknowledged": 1,
        "published": [[{"partition_id": 0, "offset": 0}, {"partition_id": 0, "offset": 1}]],
        "appended": ["0000000000000000_0000000000000005"],
    }  # fmt: skip
    assert post(server, body) == {
        "replayed": True, "sequence": None, "acknowledged": 0, "published": [], "appended": [],
    }  # fmt: skip
    assert client.read(names.stream).body == b"hello"
    assert [each.payload for each in client.consume(names.done, None)] == [b'{"n":1}', b"hi"]
    read = post(server, {"get": {"table": names.table, "key": "a"}}, path="/read")
    assert read["items"] == [{"id": "a", "n": 1.5}]
    changed = {"op": "put", "table": names.table, "item": {"id": "a", "n": 2}}
    assert post(server, {"operations": [changed], "reads": read["reads"]})["sequence"]
    refused = post(server, {"operations": [changed], "reads": read["reads"]}, 409)
    assert refused["error"]["code"] == "TRANSACTION_CONFLICT"
    refused = post(server, {"operations": [changed, {**body["operations"][0], "token": 1}]}, 400)  # type: ignore[dict-item]
    assert "operations[1]" in refused["error"]["message"]
    refused = post(server, {"operations": [changed, body["operations"][0]]}, 409)
    assert (refused["error"]["code"], refused["error"]["operation"]) == ("CONDITION_FAILED", 1)


@pytest.mark.parametrize(
    ("body", "path", "status"),
    [
        ({}, "", 400),
        ({"operations": {}}, "", 400),
        ({"operations": [{"op": "drop", "table": "t"}]}, "", 400),
        ({"operations": [{"op": "put", "table": "no-such-table", "item": {"id": "a"}}]}, "", 404),
        ({"operations": [{"op": "put", "table": "t", "item": {"id": {"S": 1}}}], "values": "typed"}, "", 400),
        ({"operations": [{"op": "put", "table": "t", "item": {"id": {"Q": "x"}}}], "values": "typed"}, "", 400),
        ({"operations": [{"op": "ack", "topic": "t", "group_id": "g", "offsets": [[1]]}]}, "", 400),
        ({"operations": [{"op": "ack", "topic": "t", "group_id": "g", "offsets": [-1]}]}, "", 400),
        ({"operations": [{"op": "publish", "topic": "t", "messages": []}]}, "", 400),
        ({"operations": [{"op": "publish", "topic": "t", "messages": [{}]}]}, "", 400),
        ({"operations": [{"op": "append", "stream": "s"}]}, "", 400),
        ({"operations": [{"op": "append", "stream": "s", "text": "a", "value": 1}]}, "", 400),
        ({"operations": [], "reads": ["?"]}, "", 400),
        ({"operations": [], "token": "x" * 37}, "", 400),
        ({"operations": [{"op": "delete", "table": "t", "key": "x"}] * 1_001}, "", 413),
        ({}, "/read", 400),
        ({"get": {"table": "no-such-table", "key": "a"}}, "/read", 404),
        ({"get": {"table": "no-such-table", "key": "a"}, "tail": "s"}, "/read", 400),
        ({"query": {"table": "no-such-table", "partition": {"a": 1}}}, "/read", 400),
        ({"query": {"table": "no-such-table", "partition": 1, "limit": 0}}, "/read", 400),
        ({"scan": {"table": "no-such-table"}}, "/read", 404),
        ({"query": {"table": "t", "partition": 1, "sort": [{"op": "BETWEEN", "operands": [1]}]}}, "/read", 400),
        ({"query": {"table": "t", "partition": 1, "sort": [{"op": "=", "operands": [1, 2]}]}}, "/read", 400),
        ({"query": {"table": "t", "partition": 1, "sort": [{"op": "begins_with", "operands": [1]}]}}, "/read", 400),
        (
            {"operations": [{"op": "update", "table": "t", "key": 1, "expression": "REMOVE #a", "names": {"a": ""}}]},
            "",
            400,
        ),
    ],
)
def test_bad_requests_say_so(server: ServerProcess, body: Any, path: str, status: int) -> None:
    error = post(server, body, status, path)["error"]
    assert error["code"] != "INTERNAL"
    assert error["message"]


def test_a_large_request(server: ServerProcess, names: Names) -> None:
    operations = [
        {"op": "put", "table": names.lines, "item": {"o": "x", "n": number, "text": "y" * 1_500}}
        for number in range(limits.TRANSACTION_OPERATIONS_MAX)
    ]
    assert post(server, {"operations": operations})["sequence"] is None
    found = post(server, {"query": {"table": names.lines, "partition": "x", "reverse": True}}, path="/read")
    assert 500 < len(found["items"]) <= 1_000
    assert found["cursor"] == {"o": "x", "n": 1_000 - len(found["items"])}
    post(server, {"operations": [{**operations[0], "junk": "z" * limits.TRANSACTION_BODY_BYTES_MAX}]}, 413)


# -- the Python clients


def test_a_client_reads_its_own_writes(client: Client, names: Names) -> None:
    item = {"id": "a", "n": Decimal("1.25"), "raw": b"\xff", "set": {1, 2}, "none": None, "list": [True, {"x": "y"}]}
    with client.transaction() as tx:
        assert tx.get(names.table, "a") is None
        tx.put(names.table, item)
        assert tx.get(names.table, {"id": "a"}) == item
        for number in range(5):
            tx.put(names.lines, {"o": "x", "n": number})
        tx.delete(names.lines, ("x", 2))
        tx.update(names.lines, ("x", 3), "SET #v = :v", names={"v": "v"}, values={"v": b"\0"})
        assert tx.get(names.lines, ("x", 3), projection="#v", names={"v": "v"}) == {"v": b"\0"}
        assert [line["n"] for line in tx.query(names.lines, "x")] == [0, 1, 3, 4]
        assert [line["n"] for line in tx.query(names.lines, "x", between(1, 3), reverse=True)] == [3, 1]
        assert [line["n"] for line in tx.query(names.lines, "x", 4)] == [4]
        assert len(tx.query(names.lines, "x", filter="v = :v", values={"v": b"\0"})) == 1
        assert len(tx.scan(names.lines, limit=2)) == 2
        assert tx.tail(names.stream) == "0000000000000000_0000000000000000"
        tx.append(names.stream, b"x", claim=ProducerClaim("p", 0, 0))
        tx.publish(names.done, [1, "two"], key="k")
        tx.check(names.table, "b", "attribute_not_exists(id)")
    assert tx.result is not None
    assert tx.result.tails == [1]
    with client.transaction() as tx:
        assert tx.get(names.table, "a") == item
        tx.rollback()


def test_a_clients_errors_have_their_classes(client: Client, names: Names) -> None:
    with pytest.raises(ConditionFailed) as failed, client.transaction() as tx:
        tx.put(names.table, {"id": "a"}, condition="attribute_exists(id)")
    assert failed.value.facts["operation"] == 0
    first, second = client.transaction(), client.transaction()
    for tx in (first, second):
        tx.get(names.table, "a")
        tx.put(names.table, {"id": "a", "n": 1})
    first.commit()
    with pytest.raises(TransactionConflict):
        second.commit()
    with pytest.raises(Conflict):
        second.commit()
    with pytest.raises(Invalid), client.transaction() as tx:
        tx.publish(names.done, b"x", key=b"\xff")
    with pytest.raises(TooLarge), client.transaction() as tx:
        tx.append(names.stream, b"x" * limits.TRANSACTION_BODY_BYTES_MAX)
    with pytest.raises(Invalid), client.transaction() as tx:
        tx.put(names.table, {"id": "\ud800"})


def test_a_lost_response_is_asked_for_again(client: Client, names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    send = Client._send
    lost: list[str] = []

    def lossy(self: Client, method: str, target: str, **options: Any) -> Any:
        response = send(self, method, target, **options)
        if len(lost) < 2:
            lost.append(target)
            raise Unavailable("the connection was cut after the server had answered")
        return response

    monkeypatch.setattr(Client, "_send", lossy)
    tx = client.transaction()
    tx.publish(names.done, b"once")
    assert tx.commit().replayed
    assert len(lost) == 2
    monkeypatch.undo()
    assert len(client.consume(names.done, None).messages) == 1


def test_workers_with_conflicts_lose_nothing(server: ServerProcess, client: Client, names: Names) -> None:
    """Eight threads add to two of three numbers each; every addition counts."""

    def add(tx: Any) -> None:
        for key in ("a", "b"):
            found = tx.get(names.table, key) or {"id": key, "n": 0}
            tx.put(names.table, {**found, "n": found["n"] + 1})

    def work() -> None:
        with Client(server.url) as own:
            for _ in range(5):
                own.transact(add, attempts=1_000)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with client.transaction() as tx:
        assert [tx.get(names.table, key) for key in "ab"] == [{"id": key, "n": 40} for key in "ab"]


def test_a_transactional_consumer(server: ServerProcess, client: Client, names: Names) -> None:
    client.publish(names.jobs, [{"n": number} for number in range(20)])
    consumer = Consumer(server.url, names.jobs, "g", batch=7, ack_every_s=60)
    failed: list[int] = []

    def handle(message: tailrace.Message, tx: tailrace.Transaction) -> None:
        number = message.json()["n"]
        total = tx.get(names.table, "total") or {"id": "total", "n": 0, "count": 0}
        tx.put(names.table, {**total, "n": total["n"] + number, "count": total["count"] + 1})
        if number == 5 and message.attempt == 1:
            failed.append(number)
            raise ValueError("the first time")
        if total["count"] == 19:
            consumer.stop()

    with consumer:
        consumer.run(handle, transactional=True, signals=False, retry_s=0.01)
    assert failed == [5]
    with client.transaction() as tx:
        assert tx.get(names.table, "total") == {"id": "total", "n": 190, "count": 20}
    assert client.consume(names.jobs, "g", consumer="other", partition="any").messages == []


def test_an_asynchronous_transactional_consumer(server: ServerProcess, names: Names) -> None:
    async def run() -> Any:
        async with AsyncClient(server.url) as client:
            await client.publish(names.jobs, [{"n": number} for number in range(10)])
            consumer = AsyncConsumer(server.url, names.jobs, "g", concurrency=4)

            async def handle(message: tailrace.Message, tx: tailrace.AsyncTransaction) -> None:
                total = await tx.get(names.table, "total") or {"id": "total", "n": 0, "count": 0}
                tx.put(names.table, {**total, "n": total["n"] + message.json()["n"], "count": total["count"] + 1})
                tx.publish(names.done, message.payload)

            running = asyncio.create_task(consumer.run(handle, transactional=True, signals=False, retry_s=0.01))
            for _ in range(int(PATIENCE_S / 0.02)):
                if len((await client.consume(names.done, None)).messages) == 10:
                    break
                await asyncio.sleep(0.02)
            consumer.stop()
            await running
            await consumer.aclose()
            async with client.transaction() as tx:
                return await tx.get(names.table, "total")

    assert asyncio.run(run()) == {"id": "total", "n": 45, "count": 10}
