"""Metrics of topics: lag and messages in flight by group, sizes, and durations; and the readiness of a follower."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace import limits, metrics
from tailrace.access import SYSTEM
from tailrace.errors import Unavailable
from tailrace.http import system
from tailrace.http.message import Request
from tailrace.metrics import BUCKETS, HISTOGRAMS, LABELLED, NAMES, RECENT, Histogram, Metrics
from tailrace.topics.commands import ClearTopic
from tests.unit.http.messages import GROUP, TOPIC, Topics, encoded, run

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "metrics.md"


async def measured(topics: Topics) -> dict[str, float]:
    answer = await topics.http.get("/metrics")
    assert answer.status_code == 200
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def of_group(name: str, group: str = GROUP, partition: int = 0) -> str:
    return f'tailrace_group_{name}{{group="{group}",partition="{partition}",topic="{TOPIC}"}}'


def of_partition(name: str, partition: int = 0) -> str:
    return f'tailrace_topic_{name}{{partition="{partition}",topic="{TOPIC}"}}'


def test_groups_and_partitions_are_measured(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        await topics.publish(*(b"%d" % number for number in range(10)))
        await topics.publish(b"x", partition=1)
        await topics.consume(limit=6, consumer_id="a")
        await topics.ok("ack", consumer_id="a", upto_offset=1)
        await topics.ok("nack", consumer_id="a", offset=2)
        await topics.consume(limit=1, consumer_id="b")
        found = await measured(topics)
        assert found[of_group("lag")] == 8
        assert found[of_group("in_flight")] == 4
        assert found[of_group("delivered_total")] == 7
        assert found[of_group("redelivered_total")] == 1
        assert found[of_group("lost_total")] == 0
        assert found[of_partition("messages")] == found[of_partition("appended_total")] == 10
        assert found[of_partition("messages", 1)] == 1
        assert found[of_partition("bytes")] > 10
        await topics.db.aexecute(ClearTopic(TOPIC))
        await topics.consume(limit=1, consumer_id="b")
        found = await measured(topics)
        assert found[of_group("lost_total")] == 4  # those that nobody held
        assert found[of_partition("messages")] == found[of_partition("bytes")] == 0
        assert found[of_partition("appended_total")] == 10
        assert found["tailrace_series_cut"] == 0

    run(data_dir, work, partitions=2)


def test_messages_and_their_delivery_are_counted(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        await topics.ok("publish", messages=[{"payload": encoded(b"a")}, {"value": 2}])
        await topics.http.post(f"/v1/topics/{TOPIC}", content=b"c")
        await topics.consume()
        await topics.ok("ack", upto_offset=1)
        await topics.ok("nack")
        await topics.consume()
        found = await measured(topics)
        assert found["tailrace_published_total"] == 3
        assert found["tailrace_consumed_total"] == 4
        assert found["tailrace_acked_total"] == 2
        assert found["tailrace_delivery_seconds_count"] == 3  # not again for what is delivered again
        assert found['tailrace_delivery_seconds_bucket{le="300.0"}'] == 3
        assert found["tailrace_consume_seconds_count"] == 2
        assert found["tailrace_consume_seconds_sum"] > 0
        assert found["tailrace_consumers_waiting"] == 0

    run(data_dir, work)


def test_who_waits_is_counted(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        waiting = topics.waiting()
        await topics.parked(1)
        assert (await measured(topics))["tailrace_consumers_waiting"] == 1
        await topics.publish(b"a")
        await waiting

    run(data_dir, work)


def test_too_many_groups_are_cut_and_marked_so(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(topics: Topics) -> None:
        monkeypatch.setattr(limits, "METRIC_SERIES_MAX", 3)
        for number in range(5):
            await topics.consume(group_id=f"g{number}")
        found = await measured(topics)
        assert sum(name.startswith("tailrace_group_lag{") for name in found) == 3
        assert found["tailrace_series_cut"] == 1

    run(data_dir, work)


def test_labels_may_hold_anything(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        await topics.consume(group_id='a"b\\c')
        assert of_group("lag", r"a\"b\\c") in await measured(topics)

    run(data_dir, work)


def test_a_histogram_counts_what_is_within_each_bound() -> None:
    counted = Histogram()
    counted.observe(BUCKETS[0])
    counted.observe(BUCKETS[0] * 1.01, 3)
    counted.observe(1e9)
    assert counted.counts[:2] == [1, 3]
    assert counted.counts[-1] == 1
    assert sum(counted.counts) == 5
    assert counted.sum_s == pytest.approx(1e9)


def test_every_attribute_is_named_and_documented() -> None:
    text = PAGE.read_text(encoding="utf-8")
    documented = set(re.findall(r"`tailrace_(\w+)`", text))
    assert set(vars(Metrics())) == set(NAMES) | set(HISTOGRAMS) | set(RECENT)
    for name, (kind, *_) in {**NAMES, **LABELLED}.items():
        assert name + ("_total" if kind == "counter" else "") in documented, name
    assert set(HISTOGRAMS) | {metrics.CUT[0]} <= documented


# -- a server of a cluster, whose database is on another machine


class Followed:
    """Its database, as far as its readiness needs it."""

    def __init__(self, read: Callable[[], object]) -> None:
        from tailrace.http.readiness import ReadCheck

        self.threads: list[int] = []
        self._read = read
        self.forwarder, self.blocking = object(), True
        self.stopped = self.trouble = None
        self.clock = SimpleNamespace(lag_ms=0)
        self.services: Any = SimpleNamespace(db=self, read_check=ReadCheck(self))  # type: ignore[arg-type]

    def verify(self) -> None:
        pass

    def execute(self, query: Any) -> None:
        self.threads.append(threading.get_ident())
        self._read()

    async def ready(self) -> tuple[int, Any]:
        request = Request(b"GET", b"/readyz", b"", {}, b"")
        answer: Any = await asyncio.wait_for(system.get_ready(self.services, request, SYSTEM), 30)  # type: ignore
        return answer.status, json.loads(answer.body)


def test_a_follower_that_cannot_read_its_database_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = True

    def read() -> None:
        if failing:
            raise Unavailable("PostgreSQL does not answer")

    async def scenario() -> None:
        nonlocal failing
        monkeypatch.setattr(limits, "READY_CHECK_S", 300.0)
        db = Followed(read)
        for _ in range(3):
            assert await db.ready() == (503, {"status": "failing", "reason": "PostgreSQL does not answer"})
        assert len(db.threads) == 1 and threading.get_ident() not in db.threads
        failing = False
        monkeypatch.setattr(limits, "READY_CHECK_S", 0.0)
        assert await db.ready() == (200, {"status": "ready"})
        db.services.read_check.close()

    asyncio.run(scenario())


def test_a_database_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    async def scenario() -> None:
        monkeypatch.setattr(limits, "READY_WAIT_S", 0.1)
        monkeypatch.setattr(limits, "READY_CHECK_S", 0.0)
        db = Followed(go_on.wait)
        found = await asyncio.gather(*(db.ready() for _ in range(5)))
        assert {status for status, _ in found} == {503} and "has not answered" in found[0][1]["reason"]
        assert len(db.threads) == 1
        go_on.set()
        monkeypatch.setattr(limits, "READY_WAIT_S", 30.0)
        assert (await db.ready())[0] == 200
        db.services.read_check.close()

    asyncio.run(scenario())
