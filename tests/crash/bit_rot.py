"""A database with everything in it, and all that can be read of it: what a flipped bit must not change in silence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tailrace
from tailrace import Index
from tailrace.auth.keys import CreateAccessKey, ListAccessKeys
from tailrace.auth.users import CreateUser, FindUser, ListUsers
from tailrace.database import Database
from tailrace.errors import Corrupt
from tailrace.streams.commands import Append, CreateStream, Fork
from tailrace.streams.producer import ProducerClaim
from tailrace.streams.queries import DescribeStream, ListStreams, ReadStream
from tailrace.subscriptions.commands import ListSubscriptions, PutSubscription
from tailrace.subscriptions.subscription import SubscriptionSettings
from tailrace.topics.commands import AddSource
from tailrace.topics.consuming import Ack
from tailrace.topics.queries import ListGroups, ListPartitions, ListRoutes, ReadTopic

TEXT = "text/plain"
STREAMS = [f"stream-{number}" for number in range(12)]
ITEMS = 120


def fill(directory: Path) -> None:
    """Streams with a fork and a producer, tables with indexes and change streams, topics with a route and a
    group, users and keys: enough for several pages of most tables."""
    with tailrace.open(directory, housekeeping_s=None) as db:
        extend(db)


def extend(db: Database) -> None:
    for number, path in enumerate(STREAMS):
        db.execute(CreateStream(path, TEXT))
        for at in range(15):
            body = b"%d-%d;" % (number, at) + b"x" * (at * 97 % 1500)
            db.execute(Append(path, body, TEXT, ProducerClaim("p", 0, at)))
    db.execute(CreateStream("fork", fork=Fork("stream-1", 0)))
    orders = db.create_table("orders", "id", stream="NEW_AND_OLD_IMAGES", indexes=[Index("by-city", "city", "id")])
    db.create_topic("news", 2)
    db.execute(AddSource("news", "orders", 0, None, None, 0))
    for number in range(ITEMS):
        orders.put({"id": f"o-{number:03}", "city": f"c{number % 7}", "text": "y" * (number * 31 % 700)})
    for number in range(0, ITEMS, 5):
        orders.delete(f"o-{number:03}")
    for number in range(20):
        db.publish("news", b"message %d" % number, partition=number % 2)
    delivery = db.consume("news", "group", limit=4)
    db.execute(Ack("news", "group", delivery.messages[0].offset, partition=delivery.messages[0].partition))
    for number in range(15):
        db.execute(CreateUser(name=f"user{number}", role="user", access=(f"streams/{number}/*",)))
        db.execute(CreateAccessKey(f"user{number}"))
    db.execute(
        PutSubscription(
            "sub",
            SubscriptionSettings(kind="pull-wake", streams=("stream-1",), wake_stream="stream-2"),
            "http://localhost",
        )
    )
    db.sweep()


def questions(db: Database) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every kind of read of the database, each with a name."""
    do = db.execute
    yield "streams", lambda: [stream.path for stream in do(ListStreams())]
    for path in (*STREAMS, "fork"):
        yield f"read {path}", lambda path=path: entries(db, path)
        yield f"describe {path}", lambda path=path: do(DescribeStream(path)).log.next
    yield "tables", db.tables
    table = db.table("orders")
    for number in range(ITEMS):
        yield f"get {number}", lambda number=number: table.get(f"o-{number:03}")
    yield "scan", lambda: list(table.scan())
    for city in range(8):
        yield f"index {city}", lambda city=city: list(table.query(f"c{city}", index="by-city"))
    yield "changes", lambda: [(change.sequence, change.event, change.new, change.old) for change in table.changes()]
    yield "count", table.count
    yield "partitions", lambda: do(ListPartitions("news"))
    yield "routes", lambda: do(ListRoutes())
    for partition in (0, 1):
        yield (
            f"messages {partition}",
            lambda partition=partition: do(ReadTopic("news", partition, limit=1000)).messages,
        )
    yield "groups", lambda: [(group.group, group.cursor, group.lag) for group in do(ListGroups("news"))]
    yield "users", lambda: do(ListUsers())
    for number in range(16):
        yield f"user {number}", lambda number=number: do(FindUser(f"user{number}"))
    yield "keys", lambda: do(ListAccessKeys())
    yield "subscriptions", lambda: do(ListSubscriptions())
    yield "select", lambda: db.sql("SELECT count(*), min(id), max(city), sum(length(text)) FROM orders").rows


def entries(db: Database, path: str) -> list[bytes]:
    bodies: list[bytes] = []
    position = 0
    while True:
        page = db.execute(ReadStream(path, position, bytes_max=10**9)).page
        bodies += [entry.body for entry in page.entries]
        position = page.next
        if page.at_tail:
            return bodies


def answers(db: Database) -> dict[str, Any]:
    """Every answer; `Corrupt` stands for the question that was not answered."""
    found: dict[str, Any] = {}
    try:
        pairs = list(questions(db))
    except Corrupt:
        return found
    for name, ask in pairs:
        try:
            found[name] = ask()
        except Corrupt as error:
            assert "restore" in str(error) or "check" in str(error), "an error says what to do"
            found[name] = Corrupt
    return found
