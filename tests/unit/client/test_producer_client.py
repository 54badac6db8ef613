"""Producers: each message once, whatever gets lost on the way; over a database and over a server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.client import Client, Producer, Published
from tailrace.database import Database
from tailrace.embedded import PublishRequest
from tailrace.errors import Invalid, StaleEpoch, Unavailable
from tailrace.storage.sqlite import SqliteEngine
from tailrace.streams.producer import ProducerClaim
from tests.unit.threaded import PATIENCE_S, Served


@pytest.fixture(params=["database", "server"])
def sink(request: pytest.FixtureRequest, data_dir: Path) -> Iterator[Any]:
    if request.param == "database":
        with Database(SqliteEngine(data_dir), housekeeping_s=None) as db:
            db.sql("CREATE TOPIC t")
            yield db
        return
    with Served(data_dir) as served, Client(served.url) as client:
        client.sql("CREATE TOPIC t")
        yield client


class Lossy:
    """Loses answers, or requests."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self.answers_lost = 0
        self.requests_lost = 0
        self.claims: list[ProducerClaim] = []

    def send_publish(self, request: PublishRequest) -> Published:
        assert request.claim is not None
        self.claims.append(request.claim)
        if self.requests_lost:
            self.requests_lost -= 1
            raise Unavailable("the request was lost")
        done: Published = self._sink.send_publish(request)
        if self.answers_lost:
            self.answers_lost -= 1
            raise Unavailable("the answer was lost")
        return done


def messages(sink: Any) -> list[Any]:
    return [message.json() for message in sink.consume("t", None, limit=1000)]


def test_each_message_once(sink: Any) -> None:
    lossy = Lossy(sink)
    producer = Producer(lossy, "t")
    for number in range(12):
        lossy.answers_lost, lossy.requests_lost = number % 3, number % 2
        done = producer.publish({"n": number})
        assert done.duplicate == (number % 3 > 0), "the first answer that comes is of a repetition"
    producer.publish([{"n": 12}, {"n": 13}])
    assert messages(sink) == [{"n": number} for number in range(14)]
    assert sorted({claim.sequence for claim in lossy.claims}) == list(range(13))


def test_a_new_run_with_the_same_name_takes_over(sink: Any) -> None:
    old = Producer(sink, "t", id="p")
    old.publish(1)
    new = Producer(sink, "t", id="p")
    new._epoch = old._epoch + 1  # the clock may not have moved in between
    new.publish(2)
    with pytest.raises(StaleEpoch) as raised:
        old.publish(3)
    assert raised.value.current == new._epoch
    new.publish(4)
    assert messages(sink) == [1, 2, 4]


@pytest.mark.parametrize("behind_ms", [0, 1, 10**6])
def test_a_clock_that_went_back(sink: Any, behind_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same epoch, or a lower one: what a new run sends must not be taken for a repetition."""
    old = Producer(sink, "t", id="p")
    old.publish(1)
    new = Producer(sink, "t", id="p")
    new._epoch = old._epoch - behind_ms
    now_ns = new._epoch * 1_000_000
    monkeypatch.setattr("time.time_ns", lambda: now_ns)
    new.publish(2)
    new.publish(3)
    assert messages(sink) == [1, 2, 3]


def test_an_abandoned_request_is_not_taken_for_another(sink: Any) -> None:
    """The answer is lost for good: the next message must not get the number of the one before."""
    lossy = Lossy(sink)
    producer = Producer(lossy, "t", retry_s=0.05)
    producer.publish(0)
    lossy.answers_lost = 10**6
    with pytest.raises(Unavailable):
        producer.publish(1)
    lossy.answers_lost, lossy.requests_lost = 0, 1
    producer._retry_s = PATIENCE_S
    assert not producer.publish(2).duplicate, "also when it is sent twice itself"
    assert messages(sink) == [0, 1, 2]


def test_what_is_refused_uses_no_number(sink: Any) -> None:
    producer = Producer(sink, "t")
    producer.publish(0)
    with pytest.raises(Invalid):
        producer.publish(1, partition=9)
    assert not producer.publish(2).duplicate
    assert messages(sink) == [0, 2]


def test_a_recreated_topic(sink: Any) -> None:
    producer = Producer(sink, "t")
    producer.publish(0)
    producer.publish(1)
    sink.sql("DROP TOPIC t; CREATE TOPIC t")
    producer.publish(2)
    assert messages(sink) == [2]


def test_threads_share_a_producer(sink: Any) -> None:
    producer = Producer(sink, "t")
    threads = [
        threading.Thread(target=lambda at=at: [producer.publish(at * 100 + number) for number in range(10)])
        for at in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(messages(sink)) == sorted(at * 100 + number for at in range(4) for number in range(10))
