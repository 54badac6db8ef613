"""Consumers, over a database of this process and over a server: the same loop, the same promises."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from tailrace import limits
from tailrace.client import Client, Consumer, Message
from tailrace.database import Database
from tailrace.embedded.aio.leases import AsyncWaiting
from tailrace.embedded.requests import AckRequest, ExtendRequest, NackRequest
from tailrace.embedded.sync.leases import Waiting
from tailrace.errors import Invalid, NotFound, Unavailable
from tailrace.storage.sqlite import SqliteEngine
from tailrace.topics.consuming import ResetGroup
from tailrace.topics.group import LATEST, StartPoint
from tailrace.topics.queries import GroupInfo, ListGroups, ListPartitions
from tests.support.server import ROOT, ServerProcess
from tests.unit.threaded import PATIENCE_S, Served


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.002)


class Place:
    """Where consumers are tested: `source` is what they consume from, `db` what is behind it."""

    def __init__(self, source: Any, db: Database, run: Callable[[Any], Any], asynchronous: Any) -> None:
        self.source = source
        self.asynchronous = asynchronous  # the same for asynchronous consumers
        self.db = db
        self.run = run  # a command or a query

    def fill(self, count: int, partitions: int = 1) -> None:
        self.source.sql(f"CREATE TOPIC t PARTITIONS {partitions}")
        for partition in range(partitions):
            self.source.publish_many("t", [b"%d" % number for number in range(count)], partition=partition)

    def consumer(self, **options: Any) -> Any:
        options = {"batch": 5, **options}
        return self.source.consumer("t", "g", **options)

    def group(self, partition: int = 0) -> GroupInfo:
        found: list[GroupInfo] = self.run(ListGroups("t"))
        return next(group for group in found if group.partition == partition and group.group == "g")

    def floor(self) -> int:
        return self.group().floor

    def waiting(self) -> int:
        """How many wait for messages."""
        return sum(len(self.db.tail._waiters.get(info.log, {})) for info in self.run(ListPartitions("t")))


@pytest.fixture(params=["database", "server"])
def place(request: pytest.FixtureRequest, data_dir: Path) -> Iterator[Place]:
    if request.param == "database":
        with Database(SqliteEngine(data_dir), housekeeping_s=None) as db:
            yield Place(db, db, db.execute, db.aio)
        return
    with Served(data_dir) as served, Client(served.url) as client:
        db = served.running.db

        async def ask(command: Any) -> Any:
            return await db.aexecute(command)

        yield Place(client, db, lambda command: served._call(ask(command)), served.url)


# -- the loop


def test_each_message_once_in_order_and_acknowledged(place: Place) -> None:
    place.fill(23)
    seen = []
    with place.consumer() as consumer:
        for message in consumer:
            seen.append((message.offset, message.payload, message.attempt))
            if len(seen) == 23:
                consumer.stop()
    assert seen == [(number, b"%d" % number, 1) for number in range(23)]
    group = place.group()
    assert (group.floor, group.lag, group.in_flight) == (23, 0, 0)


def test_nothing_is_acknowledged_before_its_work_is_done(place: Place) -> None:
    place.fill(12)
    with place.consumer(ack_every_s=0.0) as consumer:
        for message in consumer:
            assert place.floor() == message.offset, "what came before is, with no delay asked for; this is not"
            if message.offset == 11:
                consumer.stop()
    assert place.floor() == 12


def test_acknowledgements_are_sent_together(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.fill(20)
    sent: list[int] = []
    send_ack = place.source.send_ack

    def counted(request: AckRequest) -> int:
        sent.append(request.upto)
        return int(send_ack(request))

    monkeypatch.setattr(place.source, "send_ack", counted)
    with place.consumer(batch=10, ack_every_s=3600) as consumer:
        for message in consumer:
            if message.offset == 19:
                consumer.stop()
    assert sent == [9, 19]


def test_an_exception_gives_the_message_back_at_once(place: Place) -> None:
    place.fill(10)

    def work() -> None:
        for message in place.consumer(visibility_s=3600):
            if message.offset == 2:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    group = place.group()
    assert (group.floor, group.in_flight, group.pending) == (2, 0, 3), "two are done; those fetched with them are back"
    got = place.source.consume("t", "g", consumer="other", limit=100)
    assert [(message.offset, message.attempt) for message in got][:4] == [(2, 2), (3, 2), (4, 2), (5, 1)]


def test_leaving_the_loop_gives_back_what_is_in_hand(place: Place) -> None:
    place.fill(10)
    consumer = place.consumer(visibility_s=3600)
    for message in consumer:
        if message.offset == 1:
            break
    assert (place.floor(), place.group().in_flight) == (1, 0)
    again = []
    for message in consumer:  # and it can be taken up again
        again.append((message.offset, message.attempt))
        if message.offset == 9:
            consumer.stop()
    assert again[0] == (1, 2)
    assert [offset for offset, _ in again] == list(range(1, 10))
    assert place.floor() == 10


def test_the_context_gives_back_what_an_iterator_holds(place: Place) -> None:
    place.fill(10)
    with place.consumer(visibility_s=3600) as consumer:
        iterator = iter(consumer)
        assert next(iterator).offset == 0
        assert next(iterator).offset == 1
    assert (place.floor(), place.group().in_flight) == (1, 0)
    assert list(iterator) == []


def test_stop_finishes_the_message_in_hand_and_gives_back_the_rest(place: Place) -> None:
    place.fill(10)
    consumer = place.consumer(visibility_s=3600)
    seen = []
    for message in consumer:
        seen.append(message.offset)
        consumer.stop()
    assert seen == [0]
    assert (place.floor(), place.group().in_flight, place.group().pending) == (1, 0, 4)
    assert list(consumer) == [], "it is over"


def test_one_loop_at_a_time(place: Place) -> None:
    place.fill(3)
    with place.consumer() as consumer:
        iterator = iter(consumer)
        next(iterator)
        with pytest.raises(Invalid, match="in use already"):
            iter(consumer)


def test_stop_ends_a_wait_at_once(place: Place) -> None:
    place.fill(1)
    consumer = place.consumer(timeout_s=limits.CONSUME_TIMEOUT_S_MAX)
    seen: list[int] = []

    def work() -> None:
        seen.extend(message.offset for message in consumer)

    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: bool(seen) and place.waiting() == 1 and place.floor() == 1)
    consumer.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    until(lambda: place.waiting() == 0)  # nobody waits there any more, so nothing is leased to nobody
    place.source.publish("t", b"later")
    assert (place.group().in_flight, place.group().lag) == (0, 1)


def test_a_slow_worker_keeps_what_it_holds(place: Place) -> None:
    place.fill(3)
    with place.consumer(visibility_s=6.0) as consumer:
        for message in consumer:
            if message.offset == 0:
                others = place.source.consume("t", "g", consumer="other", timeout_s=8.0)
                assert others.messages == [], "a lease was not extended"
            if message.offset == 2:
                consumer.stop()
    assert (place.floor(), place.group().redelivered) == (3, 0)


def test_a_lost_lease_is_dropped_and_the_consumer_goes_on(place: Place) -> None:
    place.fill(10)
    with place.consumer(visibility_s=0.3) as consumer:
        seen = []
        for message in consumer:
            seen.append(message.offset)
            if message.offset == 1:
                place.run(ResetGroup("t", "g", StartPoint(LATEST)))
                place.source.publish("t", b"new")
                until(lambda: all(lease.lost for lease in consumer._deliveries._held))
            if message.offset == 10:
                consumer.stop()
    assert seen == [0, 1, 10]
    assert place.floor() == 11


def test_messages_that_others_took_are_not_acknowledged(place: Place) -> None:
    """Another consumer has taken the messages before this one acknowledges them."""
    place.fill(4)
    consumer = place.consumer(visibility_s=PATIENCE_S)
    for message in consumer:
        if message.offset == 0:
            held = next(iter(consumer._deliveries._held))
            place.source.nack("t", "g", consumer=consumer.consumer_id, lease=held.id)
            theirs = place.source.consume("t", "g", consumer="other")
            assert len(theirs) == 4
        if message.offset == 3:
            consumer.stop()
    assert (place.floor(), place.group().in_flight) == (0, 4)


# -- handlers


def test_run_goes_on_when_a_handler_fails(place: Place) -> None:
    place.fill(7)
    seen: list[tuple[int, int]] = []
    consumer = place.consumer()

    def handler(message: Message) -> None:
        seen.append((message.offset, message.attempt))
        if message.offset == 3 and message.attempt < 3:
            raise ZeroDivisionError
        if len({offset for offset, _ in seen}) == 7 and (3, 3) in seen:
            consumer.stop()

    consumer.run(handler, retry_s=0.0)
    assert [attempt for offset, attempt in seen if offset == 3] == [1, 2, 3]
    assert sorted(offset for offset, attempt in seen if attempt == 1) == list(range(7))
    assert (place.floor(), place.group().lag) == (7, 0)


async def coroutine_function(message: Message) -> None:
    raise AssertionError("never run")


async def async_generator_function(message: Message) -> AsyncIterator[None]:
    yield


def generator_function(message: Message) -> Iterator[None]:
    yield


class Called:
    async def __call__(self, message: Message) -> None:
        raise AssertionError("never run")

    async def method(self, message: Message) -> None:
        raise AssertionError("never run")


@pytest.mark.parametrize(
    "handler",
    [
        coroutine_function,
        functools.partial(coroutine_function),
        functools.partial(functools.partial(coroutine_function)),
        Called(),
        Called().method,
        AsyncMock(),
        async_generator_function,
        generator_function,
        None,
    ],
    ids=[
        "coroutine function",
        "partial",
        "partial of a partial",
        "asynchronous call",
        "asynchronous method",
        "asynchronous mock",
        "asynchronous generator",
        "generator",
        "nothing",
    ],
)
def test_a_handler_that_would_not_run_is_refused_before_anything_is_consumed(place: Place, handler: Any) -> None:
    place.fill(3)
    with pytest.raises(Invalid, match="handler"):
        place.consumer().run(handler)
    assert place.run(ListGroups("t")) == []


def handed_on(message: Message) -> Future[None]:
    return Future()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("defers", [coroutine_function, async_generator_function, generator_function, handed_on])
def test_a_handler_that_returns_work_undone_acknowledges_nothing(place: Place, defers: Any) -> None:
    place.fill(3)
    with pytest.raises(Invalid, match=r"AsyncConsumer") as refused:
        place.consumer(visibility_s=3600).run(lambda message: defers(message))
    assert refused.value.code == "HANDLER_NOT_RUN"
    group = place.group()
    assert (group.floor, group.in_flight, group.pending) == (0, 0, 3), "all is given back"


def test_several_handlers_at_once(place: Place) -> None:
    place.fill(20)
    together = threading.Barrier(4, timeout=PATIENCE_S)
    seen: list[int] = []
    consumer = place.consumer(concurrency=4, batch=8, ack_every_s=0.0)

    def handler(message: Message) -> None:
        if message.attempt == 1:
            together.wait()  # four must be here at once, or none gets on
        if message.offset == 7 and message.attempt == 1:
            raise ZeroDivisionError
        seen.append(message.offset)
        if len(seen) == 20:
            consumer.stop()

    consumer.run(handler, retry_s=0.0)
    assert sorted(seen) == list(range(20))
    assert (place.floor(), place.group().in_flight) == (20, 0)


def test_a_failed_message_waits_before_it_comes_again(place: Place) -> None:
    place.fill(1)
    consumer = place.consumer()
    times: list[float] = []

    def handler(message: Message) -> None:
        times.append(time.monotonic())
        if message.attempt == 1:
            raise ZeroDivisionError
        consumer.stop()

    consumer.run(handler, retry_s=0.3)
    assert times[1] - times[0] >= 0.29


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_run(place: Place, number: signal.Signals) -> None:
    place.fill(5)
    before = signal.getsignal(number)
    seen: list[int] = []

    def handler(message: Message) -> None:
        seen.append(message.offset)
        if message.offset == 2:
            signal.raise_signal(number)

    place.consumer().run(handler)
    assert seen == [0, 1, 2]
    assert (place.floor(), place.group().in_flight) == (3, 0)
    assert signal.getsignal(number) is before


def test_an_interrupt_leaves_the_message(place: Place) -> None:
    place.fill(5)

    def handler(message: Message) -> None:
        if message.offset == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        place.consumer().run(handler, signals=False)
    assert (place.floor(), place.group().in_flight) == (2, 0)


# -- batches


def test_batches(place: Place) -> None:
    place.fill(12)
    sizes = []
    with place.consumer() as consumer:
        for batch in consumer.batches():
            sizes.append((batch.partition, len(batch), batch.messages[0].offset))
            batch.ack()
            if batch.messages[-1].offset == 11:
                consumer.stop()
    assert sizes == [(0, 5, 0), (0, 5, 5), (0, 2, 10)]
    assert place.floor() == 12


def test_unacknowledged_messages_of_a_batch_are_given_back(place: Place) -> None:
    place.fill(5)
    seen: list[list[tuple[int, int]]] = []
    with place.consumer() as consumer:
        for batch in consumer.batches():
            seen.append([(message.offset, message.attempt) for message in batch])
            if len(seen) == 1:
                batch.ack(batch.messages[1])
            else:
                batch.ack()
                consumer.stop()
    assert seen == [[(number, 1) for number in range(5)], [(2, 2), (3, 2), (4, 2)]]
    assert place.floor() == 5


def test_a_part_of_a_batch_can_be_given_back(place: Place) -> None:
    place.fill(5)
    with place.consumer() as consumer:
        for batch in consumer.batches():
            batch.nack(first=batch.messages[3], delay_s=3600)
            batch.ack()
            assert not batch.lost
            consumer.stop()
    group = place.group()
    assert (group.floor, group.lag) == (3, 2)


def test_an_exception_gives_a_batch_back(place: Place) -> None:
    place.fill(5)

    def work() -> None:
        for _ in place.consumer().batches():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert (place.floor(), place.group().in_flight) == (0, 0)


# -- several


def test_several_partitions(place: Place) -> None:
    place.fill(8, partitions=4)
    seen: dict[int, list[int]] = {}
    with place.consumer(partitions=[1, 3]) as consumer:
        for message in consumer:
            seen.setdefault(message.partition, []).append(message.offset)
            if sum(map(len, seen.values())) == 16:
                consumer.stop()
    assert seen == {1: list(range(8)), 3: list(range(8))}
    assert [place.group(number).floor for number in (1, 3)] == [8, 8]


def test_several_consumers_share_and_lose_nothing(place: Place) -> None:
    place.fill(30, partitions=3)
    seen: list[tuple[int, int]] = []
    consumers = [place.consumer(batch=4) for _ in range(3)]

    def work(consumer: Any, fails: bool) -> None:
        for message in consumer:
            if fails and message.offset % 7 == 3:
                raise ZeroDivisionError
            seen.append((message.partition, message.offset))
            if len(set(seen)) == 90:
                for each in consumers:
                    each.stop()

    def again(consumer: Any) -> None:
        try:
            work(consumer, True)
        except ZeroDivisionError:
            work(consumer, False)

    threads = [threading.Thread(target=again, args=(consumer,)) for consumer in consumers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert set(seen) == {(partition, offset) for partition in range(3) for offset in range(30)}
    assert [place.group(number).lag for number in range(3)] == [0, 0, 0]


def test_consumers_are_distinguished(place: Place) -> None:
    place.fill(1)
    one, two = place.consumer(), place.consumer()
    assert one.consumer_id != two.consumer_id
    assert place.consumer(consumer_id="mine").consumer_id == "mine"


# -- what goes wrong outside


def test_a_topic_that_is_not_there(place: Place) -> None:
    with pytest.raises(NotFound) as raised:
        next(iter(place.consumer()))
    assert raised.value.code == "TOPIC_NOT_FOUND"


def test_a_topic_that_is_dropped(place: Place) -> None:
    place.fill(1)
    with pytest.raises(NotFound):
        for _ in place.consumer():
            place.source.sql("DROP TOPIC t")


class Flaky:
    """A database that is away for some calls."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.away: dict[str, int] = {}  # how often, by what is called
        self.calls: list[str] = []

    def waiter(self) -> Waiting:
        return self._db.waiter()

    def called(self, name: str) -> None:
        self.calls.append(name)
        if self.away.get(name, 0) > 0:
            self.away[name] -= 1
            raise Unavailable("away")

    def heartbeat_source(self) -> contextlib.AbstractContextManager[Flaky]:
        return contextlib.nullcontext(self)

    def send_ack(self, request: AckRequest) -> int:
        self.called("ack")
        return self._db.send_ack(request)

    def send_nack(self, request: NackRequest) -> int:
        self.called("nack")
        return self._db.send_nack(request)

    def send_extend(self, request: ExtendRequest) -> int:
        self.called("extend")
        return self._db.send_extend(request)


class AsyncFlaky:
    """The same for asynchronous consumers."""

    def __init__(self, flaky: Flaky) -> None:
        self._flaky = flaky
        self._aio = flaky._db.aio

    def waiter(self) -> AsyncWaiting:
        return self._aio.waiter()

    def heartbeat_source(self) -> contextlib.AbstractContextManager[Flaky]:
        return contextlib.nullcontext(self._flaky)

    async def send_ack(self, request: AckRequest) -> int:
        self._flaky.called("ack")
        return await self._aio.send_ack(request)

    async def send_nack(self, request: NackRequest) -> int:
        self._flaky.called("nack")
        return await self._aio.send_nack(request)

    async def send_extend(self, request: ExtendRequest) -> int:
        self._flaky.called("extend")
        return await self._aio.send_extend(request)


@pytest.fixture
def flaky(data_dir: Path) -> Iterator[Flaky]:
    with Database(SqliteEngine(data_dir), housekeeping_s=None) as db:
        db.create_topic("t")
        db.publish_many("t", [b"%d" % number for number in range(10)])
        yield Flaky(db)


def floor(flaky: Flaky) -> int:
    return flaky._db.describe_topic("t").groups[0].floor


def test_an_acknowledgement_is_sent_until_it_is_taken(flaky: Flaky) -> None:
    flaky.away["ack"] = 3
    consumer = Consumer(flaky, "t", "g", batch=5)
    for message in consumer:
        if message.offset == 9:
            consumer.stop()
    assert floor(flaky) == 10
    assert flaky.away["ack"] == 0


def test_a_failed_message_is_never_acknowledged_with_those_after_it(flaky: Flaky) -> None:
    """The failure cannot be reported and the consumer is stopped meanwhile: later messages must stay too."""
    flaky.away["nack"] = 10**6
    consumer = Consumer(flaky, "t", "g", batch=5, stop_timeout_s=0.2)

    def handler(message: Message) -> None:
        if message.offset == 2:
            consumer.stop()
            raise ZeroDivisionError

    consumer.run(handler)
    assert floor(flaky) == 2
    assert "nack" in flaky.calls


def test_a_lease_that_ran_out_while_the_source_was_away_is_settled_first(flaky: Flaky) -> None:
    """No other consumer took the messages: finished ones are acknowledged before the next request, none comes twice."""
    flaky.away = {"extend": 10**6, "ack": 6}
    consumer = Consumer(flaky, "t", "g", batch=5, visibility_s=0.1)
    seen = []
    for message in consumer:
        seen.append(message.offset)
        if message.offset == 4:
            until(lambda: flaky._db.describe_topic("t").groups[0].pending == 5)
        if message.offset == 9:
            consumer.stop()
    assert seen == list(range(10))
    assert floor(flaky) == 10


def test_stopping_does_not_wait_for_ever(flaky: Flaky) -> None:
    flaky.away = {"ack": 10**6, "nack": 10**6}
    consumer = Consumer(flaky, "t", "g", stop_timeout_s=0.3)
    began = time.monotonic()
    for _ in consumer:
        consumer.stop()
    assert 0.3 <= time.monotonic() - began < PATIENCE_S / 2
    assert floor(flaky) == 0


def test_a_heartbeat_that_fails_is_tried_again_soon(flaky: Flaky) -> None:
    flaky.away["extend"] = 3
    consumer = Consumer(flaky, "t", "g", visibility_s=9.0)
    for message in consumer:
        if message.offset == 0:
            assert not flaky._db.consume("t", "g", consumer="other", timeout_s=12.0).messages
        consumer.stop()
    assert flaky.calls.count("extend") > 3


def test_a_closed_database_ends_the_loop(data_dir: Path) -> None:
    db = Database(SqliteEngine(data_dir), housekeeping_s=None)
    db.create_topic("t")
    db.publish("t", b"x")
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.extend(message.offset for message in db.consumer("t", "g")))
    thread.start()
    until(lambda: bool(seen) and len(db.tail) > 0)
    db.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_consumer_waits_for_a_server_that_is_not_there_yet(caplog: pytest.LogCaptureFixture) -> None:
    consumer = Consumer("http://127.0.0.1:1", "t", "g")
    threading.Timer(0.5, consumer.stop).start()
    assert list(consumer) == []
    assert "trying again" in caplog.text
    consumer.close()


def test_a_closed_client_ends_the_loop(data_dir: Path) -> None:
    with Served(data_dir) as served:
        client = Client(served.url)
        client.sql("CREATE TOPIC t")
        client.publish("t", b"x")
        seen = []
        for message in client.consumer("t", "g", timeout_s=0.1, stop_timeout_s=0.1):
            seen.append(message.offset)
            client.close()
        assert seen == [0]
        with pytest.raises(Unavailable, match="was closed"):
            client.publish("t", b"y")


# -- processes

WORKER = """
import sys
from tailrace.client import Consumer
url, visibility_s = sys.argv[1], float(sys.argv[2])
for message in Consumer(url, "t", "g", batch=10, visibility_s=visibility_s, ack_every_s=0):
    print(message.offset, flush=True)
    if message.offset == 3:
        sys.stdin.read()  # for ever
"""


def worker(url: str, visibility_s: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, url, str(visibility_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )


def test_what_a_killed_consumer_held_comes_to_another(data_dir: Path) -> None:
    with Served(data_dir) as served, Client(served.url) as client:
        client.sql("CREATE TOPIC t")
        client.publish_many("t", [b"%d" % number for number in range(10)])
        child = worker(served.url, 1.0)
        assert child.stdout is not None
        assert [int(child.stdout.readline()) for _ in range(4)] == [0, 1, 2, 3]
        child.kill()
        child.communicate()
        with Consumer(served.url, "t", "g", timeout_s=PATIENCE_S) as consumer:
            seen = []
            for message in consumer:
                seen.append((message.offset, message.attempt))
                if message.offset == 9:
                    consumer.stop()
        assert seen == [(offset, 2) for offset in range(3, 10)], "0 to 2 were acknowledged, 3 was in work"


def test_a_consumer_goes_on_when_its_server_was_killed(data_dir: Path) -> None:
    count = 60
    first = ServerProcess.tailrace(data_dir).start()
    second = None
    try:
        with Client(first.url) as client:
            client.sql("CREATE TOPIC t")
            client.publish_many("t", [b"%d" % number for number in range(count)])
        seen: list[int] = []
        with Consumer(first.url, "t", "g", batch=7, visibility_s=2.0, ack_every_s=0, timeout_s=1.0) as consumer:
            for message in consumer:
                seen.append(message.offset)
                if len(seen) == 20:
                    first.kill()
                    second = ServerProcess.tailrace(data_dir, port=first.port).start()
                if message.offset == count - 1:
                    consumer.stop()
        assert sorted(set(seen)) == list(range(count)), "nothing is lost"
        assert seen == sorted(seen), "in order: what was held was still ours"
        with Client(first.url) as client:
            (group,) = client.describe_topic("t")["groups"]
            assert (group["lag"], group["in_flight"]) == (0, 0)
    finally:
        if second is not None:
            second.terminate()
        elif first.returncode is None:
            first.kill()
