"""Topics from Python: publishing, consuming and settling, sync and async alike, and waiting that misses nothing."""

from __future__ import annotations

import asyncio
import doctest
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tailrace.database import Database
from tailrace.embedded import ConsumeRequest, Delivery, Outgoing, PublishedMessage
from tailrace.errors import Conflict, InUse, Invalid, NotFound, TooLarge, Unavailable
from tailrace.sql.error import SqlError
from tailrace.storage.sqlite import SqliteEngine
from tailrace.streams.producer import ProducerClaim
from tailrace.topics.commands import AddSource
from tailrace.topics.consuming import Consume
from tests.support.patience import PATIENCE_S


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    database = Database(SqliteEngine(tmp_path / "data"), housekeeping_s=None)
    yield database
    database.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as executor:
        yield executor


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.002)


def payloads(delivery: Delivery) -> list[bytes]:
    return [message.payload for message in delivery]


# -- topics


def test_topics_are_made_listed_and_dropped(db: Database) -> None:
    made = db.create_topic("b", 3, alias="bee", retention_seconds=60)
    assert (made.name, made.partitions, made.alias, made.retention_seconds) == ("b", 3, "bee", 60)
    db.create_topic("a")
    assert [topic.name for topic in db.topics()] == ["a", "b"]
    with pytest.raises(InUse):
        db.create_topic("b")
    assert db.create_topic("b", exist_ok=True).partitions == 3
    described = db.describe_topic("bee")
    assert (described.topic.name, len(described.partitions)) == ("b", 3)
    assert db.drop_topic("b")
    assert not db.drop_topic("b", missing_ok=True)
    with pytest.raises(NotFound):
        db.drop_topic("b")
    assert [topic.name for topic in db.topics()] == ["a"]


def test_what_is_published_is_consumed(db: Database) -> None:
    db.create_topic("t")
    assert db.publish("t", b"bytes") == PublishedMessage(0, 0)
    assert db.publish("t", ["text", {"a": [1, None]}, 7]) == [
        PublishedMessage(0, 1),
        PublishedMessage(0, 2),
        PublishedMessage(0, 3),
    ]
    got = db.consume("t", "g", limit=3, consumer="c")
    assert payloads(got) == [b"bytes", b"text", b'{"a":[1,null]}']
    assert (got.partition, got.next_offset, got.has_more, len(got)) == (0, 3, True, 3)
    assert got.lease is not None
    message = got.messages[2]
    assert message.json() == {"a": [1, None]}
    assert (message.offset, message.attempt, message.op, message.source_table) == (2, 1, "Publish", None)
    assert abs(message.at - datetime.now(UTC)) < timedelta(seconds=PATIENCE_S)
    with pytest.raises(Invalid, match="offset 1 of partition 0 is not JSON"):
        got.messages[1].json()


def test_keys_choose_the_partition_and_messages_their_own(db: Database) -> None:
    db.create_topic("t", 8)
    places = {db.publish("t", b"x", key="user-7").partition for _ in range(4)}
    assert len(places) == 1
    assert db.publish("t", b"x", key=b"user-7").partition in places
    assert db.publish("t", b"x", key="user-7", partition=5).partition == 5
    done = db.publish_many("t", [Outgoing(b"a", partition=3), "b", Outgoing(b"c", key=b"user-7")], partition=2)
    assert [place.partition for place in done.messages] == [3, 2, 2]
    assert db.consume("t", None, partition=places.pop()).messages[0].key == "user-7"


def test_a_claim_is_published_once(db: Database) -> None:
    db.create_topic("t")
    assert not db.publish_many("t", [b"x"], claim=ProducerClaim("p", 0, 0)).duplicate
    assert db.publish_many("t", [b"x"], claim=ProducerClaim("p", 0, 0)).duplicate
    assert len(db.consume("t", None)) == 1


def test_a_route_sends_what_happens_to_a_table(db: Database) -> None:
    orders = db.create_table("orders", partition_key="id")
    db.create_topic("t")
    db.execute(AddSource("t", "orders", 0, "amount > 10", None, 1))
    orders.put({"id": "small", "amount": 1})
    orders.put({"id": "large", "amount": 12})
    (message,) = db.consume("t", "g")
    assert (message.op, message.source_table, message.payload_mode) == ("Insert", "orders", "Full")
    assert message.json() == {"id": "large", "amount": 12}


def test_settling(db: Database) -> None:
    db.create_topic("t")
    db.publish("t", [b"0", b"1", b"2", b"3"])
    one = db.consume("t", "g", limit=2, consumer="one")
    two = db.consume("t", "g", limit=2, consumer="two")
    assert db.ack("t", "g", 3, consumer="two", lease=two.lease) == -1, "the first two are not acknowledged"
    assert db.extend("t", "g", consumer="one", lease=one.lease, visibility_s=120) == 2
    with pytest.raises(Conflict) as lost:
        db.extend("t", "g", consumer="two", lease=two.lease)
    assert lost.value.code == "LEASE_LOST"
    assert db.nack("t", "g", consumer="one", first=1, upto=1) == 1
    again = db.consume("t", "g", consumer="two")
    assert [(message.offset, message.attempt) for message in again] == [(1, 2)]
    assert db.ack("t", "g", 1, consumer="one") == 0
    assert db.ack("t", "g", 1, consumer="two") == 3


@pytest.mark.parametrize(("start", "expected"), [("earliest", 0), ("Latest", 3), (2, 2)])
def test_where_a_group_begins(db: Database, start: Any, expected: int) -> None:
    db.create_topic("t")
    db.publish("t", [b"0", b"1", b"2"])
    assert [message.offset for message in db.consume("t", "g", start=start)] == list(range(expected, 3))
    assert not db.consume("t", "g", start="earliest"), "it counts once"


def test_a_group_begins_at_a_time(db: Database) -> None:
    db.create_topic("t")
    db.publish("t", b"0")
    late = datetime.now(UTC) + timedelta(hours=1)
    assert len(db.consume("t", "g", start=late)) == 0
    assert len(db.consume("t", "h", start=late - timedelta(hours=2))) == 1


def test_all_partitions_are_polled_in_turn(db: Database) -> None:
    """A partition that always has something must not keep the others waiting."""
    db.create_topic("t", 3)
    for partition in range(3):
        db.publish("t", [b"x"] * 20, partition=partition)
    seen = {db.consume("t", "g", partition="any", limit=1).partition for _ in range(6)}
    assert seen == {0, 1, 2}


def test_without_a_group_nothing_is_leased(db: Database) -> None:
    db.create_topic("t")
    db.publish("t", [b"0", b"1"])
    for _ in range(2):
        got = db.consume("t", None, start=1)
        assert (payloads(got), got.lease, got.messages[0].attempt) == ([b"1"], None, 0)


# -- waiting


def waiting(db: Database, pool: ThreadPoolExecutor, **options: Any) -> Future[Delivery]:
    """A consume that waits, when it does."""
    before = len(db.tail)
    found = pool.submit(db.consume, "t", "g", **{"timeout_s": PATIENCE_S, "consumer": "waits", **options})
    until(lambda: len(db.tail) > before or found.done())
    return found


@pytest.mark.parametrize("partition", [0, "any"])
def test_a_message_ends_the_wait(db: Database, pool: ThreadPoolExecutor, partition: Any) -> None:
    db.create_topic("t", 2)
    found = waiting(db, pool, partition=partition)
    db.publish("t", b"x", partition=0)
    assert payloads(found.result(PATIENCE_S)) == [b"x"]
    assert len(db.tail) == 0


def test_messages_that_come_while_one_asks_are_not_missed(db: Database, pool: ThreadPoolExecutor) -> None:
    db.create_topic("t")
    publisher = pool.submit(lambda: [db.publish("t", b"%d" % number) for number in range(300)])
    seen: list[bytes] = []
    while len(seen) < 300:
        got = db.consume("t", "g", timeout_s=PATIENCE_S)
        seen += payloads(got)
        assert got.messages, "it waited in vain"
    assert seen == [b"%d" % number for number in range(300)]
    publisher.result(PATIENCE_S)


def test_something_given_back_ends_the_wait(db: Database, pool: ThreadPoolExecutor) -> None:
    db.create_topic("t")
    db.publish("t", b"x")
    db.consume("t", "g", consumer="holds")
    found = waiting(db, pool)
    db.nack("t", "g", consumer="holds")
    assert [message.attempt for message in found.result(PATIENCE_S)] == [2]


def test_a_lease_that_runs_out_ends_the_wait(db: Database, pool: ThreadPoolExecutor) -> None:
    db.create_topic("t")
    db.publish("t", b"x")
    db.consume("t", "g", consumer="holds", visibility_s=0.2)
    got = waiting(db, pool).result(PATIENCE_S)
    assert [(message.payload, message.attempt) for message in got] == [(b"x", 2)]


def test_a_lease_given_while_one_waits_sets_the_alarm(db: Database, pool: ThreadPoolExecutor) -> None:
    """The waiter did not know of a lease when it began to wait; it must learn when it ends."""
    db.create_topic("t")
    db.publish("t", b"x")
    db.consume("t", "g", consumer="holds", visibility_s=3600)
    found = waiting(db, pool)
    db.extend("t", "g", consumer="holds", visibility_s=0.1)
    assert [message.attempt for message in found.result(PATIENCE_S)] == [2]


def test_the_wait_ends_at_the_time_out(db: Database) -> None:
    db.create_topic("t")
    began = time.monotonic()
    assert not db.consume("t", "g", timeout_s=0.2).messages
    assert time.monotonic() - began >= 0.2


def test_a_dropped_topic_ends_the_wait(db: Database, pool: ThreadPoolExecutor) -> None:
    db.create_topic("t")
    found = waiting(db, pool)
    db.drop_topic("t")
    with pytest.raises(NotFound):
        found.result(PATIENCE_S)


def test_a_closed_database_ends_the_wait(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    database = Database(SqliteEngine(tmp_path / "other"), housekeeping_s=None)
    database.create_topic("t")
    found = waiting(database, pool)
    database.close()
    with pytest.raises(Unavailable):
        found.result(PATIENCE_S)


def test_other_groups_wake_no_consumer(db: Database, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    db.create_topic("t")
    db.publish("t", b"x")
    db.consume("t", "g", consumer="holds")
    found = waiting(db, pool)
    groups: list[str] = []
    execute = db.execute

    def counted(command: Any) -> Any:
        if isinstance(command, Consume) and command.consumer == "waits":
            groups.append(command.group)
        return execute(command)

    monkeypatch.setattr(db, "execute", counted)
    for _ in range(5):
        db.consume("t", "other")
        db.nack("t", "other")
    db.nack("t", "g", consumer="holds")
    assert len(found.result(PATIENCE_S)) == 1
    assert len(groups) <= 2, "once more for what was given back; the first time may be counted too"


def test_an_interrupted_waiter_waits_no_more(db: Database, pool: ThreadPoolExecutor) -> None:
    db.create_topic("t")
    waiter = db.waiter()
    request = ConsumeRequest("t", "g", limit=1, consumer="c", timeout_s=PATIENCE_S)
    found = pool.submit(waiter.consume, request)
    until(lambda: len(db.tail) > 0)
    waiter.interrupt()
    assert not found.result(PATIENCE_S).messages
    began = time.monotonic()
    assert not waiter.consume(request).messages
    assert time.monotonic() - began < PATIENCE_S / 2


# -- asyncio


def test_all_of_it_on_an_event_loop(db: Database) -> None:
    async def main() -> None:
        aio = db.aio
        assert (await aio.create_topic("t", 2, alias="tea")).alias == "tea"
        assert [topic.name for topic in await aio.topics()] == ["t"]
        consuming = asyncio.create_task(aio.consume("t", "g", partition="any", timeout_s=PATIENCE_S, consumer="c"))
        while not len(db.tail):
            await asyncio.sleep(0)
        assert await aio.publish("t", b"x", partition=1) == PublishedMessage(1, 0)
        got = await consuming
        assert (payloads(got), got.partition) == ([b"x"], 1)
        assert await aio.extend("t", "g", partition=1, consumer="c", lease=got.lease) == 1
        assert await aio.nack("t", "g", partition=1, consumer="c", lease=got.lease) == 1
        again = await aio.consume("t", "g", partition=1, consumer="c")
        assert again.messages[0].attempt == 2
        assert await aio.ack("t", "g", 0, partition=1, consumer="c") == 0
        assert [place.offset for place in (await aio.publish_many("t", [b"y", b"z"])).messages] == [0, 1]
        assert len(await aio.publish("t", [b"1", b"2"])) == 2
        assert len((await aio.describe_topic("t")).partitions) == 2
        assert not (await aio.consume("t", "g", partition=1, timeout_s=0.05)).messages
        assert await aio.drop_topic("t")

    asyncio.run(main())


def test_a_cancelled_consume_holds_nothing(db: Database) -> None:
    async def main() -> None:
        await db.aio.create_topic("t")
        await db.aio.publish("t", b"x")
        for turns in range(12):
            consuming = asyncio.create_task(db.aio.consume("t", "g", consumer="leaves", timeout_s=PATIENCE_S))
            for _ in range(turns):
                await asyncio.sleep(0)
            consuming.cancel()
            await asyncio.gather(consuming, return_exceptions=True)
            if not consuming.cancelled():
                await db.aio.nack("t", "g", consumer="leaves")
            # Whatever was under way has been given back before this is done: commands are done in order.
            got = await db.aio.consume("t", "g", consumer="stays", timeout_s=PATIENCE_S)
            assert payloads(got) == [b"x"], turns
            await db.aio.nack("t", "g", consumer="stays")

    asyncio.run(main())


# -- SQL


def test_sql(db: Database) -> None:
    answer = db.sql("CREATE TOPIC t PARTITIONS 2; SHOW TOPICS")
    assert (answer.statement, [row["name"] for row in answer.rows]) == ("SHOW TOPICS", ["t"])
    assert [result.statement for result in answer.results] == ["CREATE TOPIC", "SHOW TOPICS"]
    db.sql("CREATE TABLE orders (id TEXT PRIMARY KEY, amount BIGINT)")
    assert db.sql("INSERT INTO orders (id, amount) VALUES (?, ?)", ["o-1", 12]).row_count == 1
    assert db.table("orders").get("o-1") == {"id": "o-1", "amount": 12}
    with pytest.raises(SqlError) as wrong:
        db.sql("SHOW TOPICS;\n SELEC 1")
    assert (wrong.value.line, wrong.value.column) == (2, 2)


# -- what programs get wrong

HALF = "\ud800"  # of a surrogate pair: a str to Python, nothing that UTF-8 can say


@pytest.mark.parametrize(
    "wrong",
    [
        lambda db: db.create_topic(5),
        lambda db: db.create_topic(HALF),
        lambda db: db.create_topic("u", "2"),
        lambda db: db.create_topic("u", True),
        lambda db: db.create_topic("u", 0),
        lambda db: db.create_topic("u", alias=7),
        lambda db: db.create_topic("u", retention_seconds=1.5),
        lambda db: db.drop_topic(5),
        lambda db: db.publish("t", object()),
        lambda db: db.publish("t", HALF),
        lambda db: db.publish("t", []),
        lambda db: db.publish("t", b"x", key=5),
        lambda db: db.publish("t", b"x", key=HALF),
        lambda db: db.publish("t", b"x", partition=9),
        lambda db: db.publish("t", b"x", partition="0"),
        lambda db: db.publish("t", b"x", partition=2**70),
        lambda db: db.consume("t", ""),
        lambda db: db.consume("t", 5),
        lambda db: db.consume("t", HALF),
        lambda db: db.consume("t", "g", limit=0),
        lambda db: db.consume("t", "g", limit=1.5),
        lambda db: db.consume("t", "g", consumer=HALF),
        lambda db: db.consume("t", "g", start="sometime"),
        lambda db: db.consume("t", "g", start=2**80),
        lambda db: db.consume("t", "g", start=None),
        lambda db: db.consume("t", "g", partition="all"),
        lambda db: db.consume("t", "g", partition=7),
        lambda db: db.consume("t", "g", partition=True),
        lambda db: db.consume("t", "g", visibility_s=float("nan")),
        lambda db: db.consume("t", "g", visibility_s=float("inf")),
        lambda db: db.consume("t", "g", visibility_s="60"),
        lambda db: db.consume("t", "g", visibility_s=-1),
        lambda db: db.consume("t", "g", timeout_s=float("nan")),
        lambda db: db.consume("t", "g", timeout_s="1"),
        lambda db: db.ack("t", "g", 5),
        lambda db: db.ack("t", "g", "5"),
        lambda db: db.ack("t", "g", -1),
        lambda db: db.ack("t", "g", 0, lease="x"),
        lambda db: db.ack("t", "g", 0, lease=5),
        lambda db: db.nack("t", "g", first=2, upto=1),
        lambda db: db.nack("t", "g", delay_s=-1),
        lambda db: db.nack("t", "g", delay_s=float("inf")),
        lambda db: db.extend("t", "g", visibility_s=0),
        lambda db: db.consumer("t", "g", batch=1.5),
        lambda db: db.consumer("t", "g", visibility_s=0),
        lambda db: db.consumer("t", "g", timeout_s=float("nan")),
        lambda db: db.consumer("t", "g", partitions=[]),
        lambda db: db.consumer("t", "g", partitions="some"),
        lambda db: db.consumer("t", HALF),
    ],
)  # fmt: skip
def test_wrong_input_is_invalid_and_changes_nothing(db: Database, wrong: Callable[[Database], Any]) -> None:
    db.create_topic("t")
    with pytest.raises(Invalid) as raised:
        wrong(db)
    assert len(str(raised.value)) > 10
    assert [topic.name for topic in db.topics()] == ["t"]
    assert db.describe_topic("t").partitions[0].next == 0
    assert not db.describe_topic("t").groups


def test_what_is_too_large(db: Database) -> None:
    db.create_topic("t")
    with pytest.raises(TooLarge):
        db.publish("t", [b"small", b"x" * (8 * 1024 * 1024 + 1)])
    assert not db.consume("t", None).messages


def test_topics_that_are_not_there(db: Database) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: db.publish("missing", b"x"),
        lambda: db.consume("missing", "g"),
        lambda: db.consume("missing", "g", timeout_s=1),
        lambda: db.ack("missing", "g", 0),
        lambda: db.describe_topic("missing"),
    ]
    for call in calls:
        with pytest.raises(NotFound) as raised:
            call()
        assert raised.value.code == "TOPIC_NOT_FOUND"


def test_the_examples_of_methods_work(db: Database) -> None:
    names: dict[str, Any] = {"db": db}
    count = 0
    for name in ("create_topic", "publish", "consume", "ack"):
        text = inspect.getdoc(getattr(Database, name)) or ""
        parsed = doctest.DocTestParser().get_doctest(text, names, name, None, None)
        count += len(parsed.examples)
        assert doctest.DocTestRunner().run(parsed, clear_globs=False).failed == 0
        names = parsed.globs
    assert count >= 5


def test_many_threads_consume_disjoint_messages(db: Database) -> None:
    db.create_topic("t")
    db.publish("t", [b"%d" % number for number in range(400)])
    seen: list[int] = []

    def work(name: str) -> None:
        while got := db.consume("t", "g", limit=7, consumer=name).messages:
            seen.extend(message.offset for message in got)
            db.ack("t", "g", got[-1].offset, consumer=name)

    threads = [threading.Thread(target=work, args=(f"c{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(seen) == list(range(400))
    assert db.describe_topic("t").groups[0].lag == 0
