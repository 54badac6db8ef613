"""Reads that are spread over the servers of a cluster: each gives a part; another one replaces one that is away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

import httpx
import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict

from tailrace.client import Client
from tailrace.errors import Unavailable
from tailrace.spark import servers
from tailrace.spark.connection import client as connected
from tailrace.spark.items import HandedOver, ItemsReader, ItemsTask, Key
from tailrace.spark.options import ServerAccess, server_access
from tailrace.spark.planning import ReadTask
from tailrace.spark.reading import BatchReader
from tailrace.spark.servers import Turn, beginning, usable
from tailrace.spark.source import TailraceSource
from tailrace.tables.key import hash_of
from tests.support.clustered import Servers
from tests.support.patience import PATIENCE_S
from tests.support.postgres import shared_server
from tests.support.proxy import Proxy
from tests.support.server import ServerProcess

Put = Callable[..., None]


# -- rules


def test_each_task_begins_with_another_server() -> None:
    urls = ("a", "b", "c")
    assert [beginning(urls, number)[0] for number in range(4)] == ["a", "b", "c", "a"]
    assert beginning(urls, 1) == ("b", "c", "a")
    assert beginning((), 5) == ()


@pytest.mark.parametrize(
    ("url", "given", "expected"),
    [
        ("http://10.0.0.1:4437", "http://lb:80", True),
        ("http://10.0.0.1:4437", "https://lb", False),
        ("https://10.0.0.1:4437", "http://lb", True),
        ("http://127.0.0.1:4437", "http://lb", False),
        ("http://127.0.0.1:4437", "http://127.0.0.1:4438", True),
        ("http://localhost:4437", "http://127.0.0.1:4438", True),
        ("http://localhost:4437", "http://lb", False),
        ("http://0.0.0.0:4437", "http://127.0.0.1:4437", False),
        ("http://[::]:4437", "http://lb", False),
        ("ftp://10.0.0.1", "http://lb", False),
    ],
)
def test_which_servers_may_be_asked(url: str, given: str, expected: bool) -> None:
    assert usable(url, given) is expected


def test_a_server_that_is_away_is_replaced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("tailrace.spark.servers.time.sleep", slept.append)
    turn = Turn(ServerAccess("lb"), ("a", "b"))
    asked = [turn.access.url]
    for _ in range(6):
        turn.failed(Unavailable("away"))
        asked.append(turn.access.url)
    assert asked == ["a", "b", "lb", "a", "b", "lb", "a"]
    assert len(slept) == 2, "it waits when all of them have failed"
    with pytest.raises(Unavailable, match="for good"):
        turn.failed(Unavailable("for good", code="CLOSED"))


def test_a_list_is_asked_for_once(monkeypatch: pytest.MonkeyPatch, server: ServerProcess, table: str) -> None:
    access = server_access(server.url, None)
    asked: list[ServerAccess] = []

    def answered(given: ServerAccess) -> tuple[str, ...]:
        asked.append(given)
        return "a", "b"

    monkeypatch.setattr(servers, "_asked", answered)
    monkeypatch.setattr(servers, "_known", {})
    settings = source(server, table=table)._settings()
    assert servers.servers(settings) == servers.servers(settings) == ("a", "b")
    assert asked == [access]
    assert servers.servers(source(server, table=table, servers="one")._settings()) == ()


def test_one_server_is_no_cluster(server: ServerProcess) -> None:
    assert servers._asked(server_access(server.url, None)) == ()


def test_what_was_handed_over() -> None:
    ordered: list[Key] = sorted(((f"k{number}", sort) for number in range(5) for sort in "ab"), key=by_hash)
    handed = HandedOver("S")
    handed.keep([ordered[1]])
    handed.note(reversed([ordered[0], ordered[2]]))
    assert not handed.any_before
    handed.keep([])
    assert [handed.any_before] == [True]
    assert [handed.has(key) for key in ordered[:5]] == [True, False, True, False, False]


def by_hash(key: Key) -> tuple[bytes, Key]:
    return hash_of("S", key[0]), key


# -- with three ways to one server


@pytest.fixture
def ways(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Proxy]]:
    """A cluster of three, as the source sees it."""
    made = [Proxy(("127.0.0.1", server.port)) for _ in range(3)]
    urls = tuple(f"http://127.0.0.1:{way.port}" for way in made)
    monkeypatch.setattr(servers, "_asked", lambda _: urls)
    monkeypatch.setattr(servers, "_known", {})
    yield made
    for way in made:
        way.close()


def source(server: ServerProcess, **options: str) -> TailraceSource:
    return TailraceSource(CaseInsensitiveDict({"url": server.url, **options}))


def opened(server: ServerProcess, **options: str) -> Any:
    made = source(server, minPartitions="6", **options)
    schema = made.schema()
    assert not isinstance(schema, str)
    return made.reader(schema)


def read(reader: Any, tasks: list[Any]) -> list[dict[str, Any]]:
    return [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


def test_changes_come_from_all_servers(server: ServerProcess, table: str, put: Put, ways: list[Proxy]) -> None:
    put(*range(60))
    reader = opened(server, table=table)
    assert isinstance(reader, BatchReader)
    tasks = reader.partitions()
    assert [len(task.servers) for task in tasks] == [3] * len(tasks)
    found = read(reader, tasks)
    assert [row["keys"]["id"] for row in found] == [f"k{number}" for number in range(60)]
    assert all(way.connections for way in ways)
    assert read(reader, [ReadTask(task.range, task.files) for task in tasks]) == found, "as from one server"


def test_changes_when_servers_are_away(server: ServerProcess, table: str, put: Put, ways: list[Proxy]) -> None:
    put(*range(60))
    reader = opened(server, table=table)
    tasks = reader.partitions()
    ways[0].refuse()
    ways[1].refuse()
    assert [row["keys"]["id"] for row in read(reader, tasks)] == [f"k{number}" for number in range(60)]
    ways[2].refuse()
    assert len(read(reader, tasks)) == 60, "the given URL is left"


def test_items_come_from_all_servers(server: ServerProcess, table: str, put: Put, ways: list[Proxy]) -> None:
    put(*range(60))
    reader = opened(server, table=table, mode="items")
    assert isinstance(reader, ItemsReader)
    tasks = reader.partitions()
    found = read(reader, tasks)
    assert sorted(row["id"] for row in found) == sorted(f"k{number}" for number in range(60))
    assert all(way.connections for way in ways)
    ways[1].refuse()
    assert read(reader, tasks) == found


def test_items_when_a_server_goes_away_in_the_middle(
    server: ServerProcess, client: Client, table: str, put: Put, ways: list[Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a segment was handed over; meanwhile rows change. What another server gives continues it."""
    put(*range(40))
    reader = opened(server, table=table, mode="items")
    task = ItemsTask(0, 1, reader.partitions()[0].until, reader.partitions()[0].log, reader.partitions()[0].servers)
    expected = sorted((row["id"], row["n"]) for row in read(reader, [task]))

    class Breaking:
        """The first response breaks off after one batch; each batch has four rows."""

        broken = False

        def __init__(self, given: Any) -> None:
            self._given = given

        def items(self, name: str, **how: Any) -> Any:
            manager = self._given.items(name, **how)

            class Cut:
                def __enter__(self) -> tuple[int, Iterator[pa.RecordBatch]]:
                    sequence, batches = manager.__enter__()
                    return sequence, cut(batches)

                def __exit__(self, *error: Any) -> Any:
                    return manager.__exit__(*error)

            return Cut()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._given, name)

    def cut(batches: Any) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for at in range(0, batch.num_rows, 4):
                if at >= 16 and not Breaking.broken:
                    Breaking.broken = True
                    put(*range(0, 40, 3), changed={"S": "since"})
                    client.call("DeleteItem", {"TableName": table, "Key": {"id": {"S": "k1"}}})
                    raise Unavailable("broke off", code="CUT_OFF")
                yield batch.slice(at, 4)

    monkeypatch.setattr("tailrace.spark.items.client", lambda access: Breaking(connected(access)))
    found = [(row["id"], row["n"]) for row in read(reader, [task])]
    assert Breaking.broken
    assert sorted(found) == expected


# -- with three real servers


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with Servers(shared_server(), tmp_path_factory.mktemp("cluster")) as started:
        yield started


def requests_of(one: ServerProcess) -> float:
    """How many requests a server has received; this is one."""
    text = httpx.get(f"{one.url}/metrics", timeout=PATIENCE_S).text
    (line,) = (line for line in text.splitlines() if line.startswith("tailrace_requests_total "))
    return float(line.split()[1])


def test_a_cluster_feeds_a_read_and_one_may_be_killed(cluster: Servers) -> None:
    leader, (first, second) = cluster.leader(), cluster.followers()
    with Client(leader.url) as client:
        client.sql("CREATE TABLE spread (id TEXT PRIMARY KEY, n BIGINT) WITH (stream = NEW_AND_OLD_IMAGES)")
        for at in range(0, 300, 25):
            requests = [
                {"PutRequest": {"Item": {"id": {"S": f"k{at + n}"}, "n": {"N": str(at + n)}}}} for n in range(25)
            ]
            client.call("BatchWriteItem", {"RequestItems": {"spread": requests}})
    expected = sorted((f"k{number}", number) for number in range(300))
    changes, items = opened(first, table="spread"), opened(first, table="spread", mode="items")
    for reader, row_of in ((changes, lambda row: row["after"]), (items, lambda row: row)):
        before = [requests_of(one) for one in cluster.all]
        tasks = reader.partitions()
        assert {task.servers[0] for task in tasks} == {one.url for one in cluster.all}
        found = sorted((row_of(row)["id"], row_of(row)["n"]) for row in read(reader, tasks))
        assert found == expected
        assert all(requests_of(one) > was + 1 for one, was in zip(cluster.all, before, strict=True)), "one gave nothing"
    tasks = changes.partitions() + items.partitions()
    second.kill()
    half = len(changes.partitions())
    assert sorted(row["keys"]["id"] for row in read(changes, tasks[:half])) == sorted(key for key, _ in expected)
    leader.kill()  # then another one leads
    assert sorted((row["id"], row["n"]) for row in read(items, tasks[half:])) == expected
