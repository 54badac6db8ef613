"""What the client does with topics and SQL, against a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace import limits
from tailrace.client import Client, ConsumeRequest, Outgoing, PublishedMessage
from tailrace.errors import Conflict, Invalid, NotFound, TooLarge, Unavailable
from tailrace.sql.error import marked
from tests.unit.threaded import PATIENCE_S, Served


@pytest.fixture
def server(data_dir: Path) -> Iterator[Served]:
    with Served(data_dir, long_poll_timeout_s=0.2) as served:
        yield served


@pytest.fixture
def client(server: Served) -> Iterator[Client]:
    with Client(server.url) as client:
        client.sql("CREATE TOPIC t PARTITIONS 2 WITH (alias = 'tea')")
        yield client


def test_topics(client: Client) -> None:
    (topic,) = client.topics()
    assert (topic.name, topic.alias, topic.partitions) == ("t", "tea", 2)
    described = client.describe_topic("tea")
    assert (described["name"], len(described["partition_list"])) == ("t", 2)
    with pytest.raises(NotFound) as raised:
        client.describe_topic("a/b ?")
    assert raised.value.code == "TOPIC_NOT_FOUND"


def test_publish_consume_and_settle(client: Client) -> None:
    assert client.publish("t", b"\x00\xff", partition=1) == PublishedMessage(1, 0)
    assert client.publish("t", ["text", {"a": 1}], partition=1) == [PublishedMessage(1, 1), PublishedMessage(1, 2)]
    got = client.consume("t", "g", partition="any", consumer="c", limit=2)
    assert [message.payload for message in got] == [b"\x00\xff", b"text"]
    assert (got.partition, got.next_offset, got.has_more) == (1, 2, True)
    message = got.messages[0]
    assert (message.op, message.attempt, message.source_table, message.lease_id) == ("Publish", 1, None, got.lease)
    assert abs(message.at - datetime.now(UTC)) < timedelta(seconds=PATIENCE_S)
    assert client.extend("t", "g", partition=1, consumer="c", lease=got.lease) == 2
    assert client.ack("t", "g", 0, partition=1, consumer="c", lease=got.lease) == 0
    assert client.nack("t", "g", partition=1, consumer="c", first=1, upto=1) == 1
    with pytest.raises(Conflict) as lost:
        client.extend("t", "g", partition=1, consumer="c", lease=got.lease)
    assert lost.value.code == "LEASE_LOST"
    assert [message.attempt for message in client.consume("t", "g", partition=1)] == [2, 1]


def test_keys_and_partitions(client: Client) -> None:
    for key in ("user-7", "ä/&=?+ %", b"bytes"):
        one = client.publish("t", b"x", key=key)
        two = client.publish_many("t", [Outgoing(b"x", key.encode() if isinstance(key, str) else key), b"y"]).messages[
            0
        ]
        assert one.partition == two.partition, key
    with pytest.raises(Invalid, match="not UTF-8"):
        client.publish("t", b"x", key=b"\xff")
    with pytest.raises(Invalid) as raised:
        client.publish("t", b"x", partition=7)
    assert raised.value.code == "NO_SUCH_PARTITION"


def test_a_large_message(client: Client) -> None:
    large = bytes(range(256)) * 4096 * 6
    client.publish("t", large, partition=0)
    assert client.consume("t", None).messages[0].payload == large
    with pytest.raises(TooLarge):
        client.publish("t", bytes(9 * 1024 * 1024))


@pytest.mark.parametrize("start", ["earliest", "latest", 1, datetime(2100, 1, 1, tzinfo=UTC)])
def test_where_a_group_begins(client: Client, start: Any) -> None:
    client.publish("t", [b"0", b"1"], partition=0)
    expected = {"earliest": 2, "latest": 0, 1: 1}.get(start, 0)
    assert len(client.consume("t", "g", start=start)) == expected


def test_consume_waits(server: Served, client: Client) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(client.consume("t", "g", timeout_s=PATIENCE_S)))
    thread.start()
    while server.running.db.metrics.consumers_waiting == 0:
        assert thread.is_alive()
    with Client(server.url) as other:
        other.publish("t", b"x", partition=0)
    thread.join(PATIENCE_S)
    assert [message.payload for message in found[0]] == [b"x"]


def test_an_interrupted_waiter_leaves_and_is_given_nothing(server: Served, client: Client) -> None:
    waiter = client.waiter()
    request = ConsumeRequest("t", "g", limit=1, consumer="c", timeout_s=limits.CONSUME_TIMEOUT_S_MAX)
    raised: list[BaseException] = []

    def work() -> None:
        try:
            waiter.consume(request)
        except Unavailable as error:
            raised.append(error)

    for _ in range(2):  # also when it was interrupted before
        thread = threading.Thread(target=work)
        thread.start()
        while server.running.db.metrics.consumers_waiting == 0 and not raised:
            assert thread.is_alive()
        waiter.interrupt()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert len(raised) == 2
    while server.running.db.metrics.consumers_waiting:
        pass
    client.publish("t", b"x", partition=0)
    (group,) = client.describe_topic("t")["groups"]
    assert (group["in_flight"], group["lag"]) == (0, 1)
    waiter.close()


def test_follow_a_partition(server: Served, client: Client) -> None:
    client.publish("t", [b"0", b"1"], partition=1)
    pages = client.follow_topic("t", 1)
    page = next(pages)
    assert [each["offset"] for each in msgspec.json.decode(page.body)] == [0, 1]
    client.publish("t", b"2", partition=1)
    assert [each["offset"] for each in msgspec.json.decode(next(pages).body)] == [2]
    with pytest.raises(Invalid):
        next(client.follow_topic("t", 9))


def test_sql(client: Client) -> None:
    made, shown = client.sql("CREATE TABLE orders (id TEXT PRIMARY KEY, photo BLOB, amount DOUBLE); SHOW TOPICS")
    assert (made.statement, shown.statement, shown.rows[0]["name"]) == ("CREATE TABLE", "SHOW TOPICS", "t")
    assert [column.name for column in shown.columns][:2] == ["name", "alias"]
    (done,) = client.sql("INSERT INTO orders (id, photo, amount) VALUES (?, ?, ?)", ["o-1", b"\x00\xff", 1.5])
    assert done.row_count == 1
    (found,) = client.sql("SELECT id, amount FROM orders")
    assert [row["id"] for row in found.rows] == ["o-1"]


def test_an_error_of_sql_says_where_and_what_was_done(client: Client) -> None:
    with pytest.raises(NotFound) as raised:
        client.sql("SHOW TOPICS;\n DROP TOPIC missing")
    done, line, column = marked(raised.value)
    assert ([result.statement for result in done], line, column) == (["SHOW TOPICS"], 2, 2)
    with pytest.raises(Invalid) as syntax:
        client.sql("SELEC 1")
    assert (syntax.value.code, marked(syntax.value)[1:]) == ("SQL_SYNTAX", (1, 1))
    for wrong in (object(), "\udcff"):
        with pytest.raises(Invalid, match="cannot be sent"):
            client.sql("SELECT ?", [wrong])


def test_what_no_request_can_carry(client: Client) -> None:
    for call in (
        lambda: client.consume("t\udcff", "g"),
        lambda: client.describe_topic("\udcff"),
        lambda: client.publish("\udcff", b"x"),
        lambda: client.publish("t", "\udcff"),
        lambda: client.publish("t", b"x", key="\udcff"),
        lambda: client.ack("t", "\udcff", 0),
    ):
        with pytest.raises(Invalid):
            call()


# -- who we are


def test_ways_to_say_who_one_is() -> None:
    for wrong in (
        {"token": "t", "user": "u", "password": "p"},
        {"user": "u"},
        {"password": "p"},
        {"user": "a:b", "password": "p"},
        {"user": "\udcff", "password": "p"},
    ):
        with pytest.raises(Invalid):
            Client("http://127.0.0.1:1", **wrong)


def test_a_user(data_dir: Path) -> None:
    with Served(data_dir, token="s3cret-s3cret-s3cret") as served:
        with Client(served.url, token="s3cret-s3cret-s3cret") as root:
            root.sql("CREATE TOPIC t")
            root.sql("CREATE USER ann PASSWORD 'correct horse' ROLE service")
        with Client(served.url, user="ann", password="correct horse") as ann:
            ann.publish("t", b"x")
            assert len(ann.consume("t", "g")) == 1
        with Client(served.url) as ann:
            ann.login("ann", "correct horse")
            first = ann._authorization
            ann.publish("t", b"y")
            ann._authorization = {"authorization": "Bearer " + first["authorization"][7:-4] + "xxxx"}  # as if expired
            ann.publish("t", b"z")
            assert ann._authorization != first
            with ann.consumer("t", "h") as consumer:
                for message in consumer:
                    if message.offset == 2:
                        consumer.stop()
            ann.logout()
            with pytest.raises(Exception, match="credentials"):
                ann.publish("t", b"z")
