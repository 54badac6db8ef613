"""How consumers wait over HTTP: which events wake them, that none claims after leaving, and how waiting ends.

A consumer that waits is seen in a gauge; tests act when it is there and wait for what they expect, never for a time.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from tailrace import limits
from tailrace.access import SYSTEM
from tailrace.auth.users import UserChanged
from tailrace.command import Command
from tailrace.completion import Completion
from tailrace.errors import TooMany, Unavailable
from tailrace.http import drive
from tailrace.http.asgi import application
from tailrace.http.consumers import ConsumerQueues, give_back
from tailrace.http.revocation import Caller
from tailrace.log.tail import USERS_CHANGED
from tailrace.storage.engine import Tx
from tailrace.topics.commands import AlterTopic, Outgoing, Publish, TopicOptions
from tailrace.topics.consuming import Ack, Consume, ConsumedMessages, Nack, ResetGroup
from tailrace.topics.group import EARLIEST, LATEST, StartPoint
from tailrace.topics.queries import FindTopic, ListGroups
from tailrace.topics.topic import PARTITIONS, Partition
from tests.support.patience import AT_ONCE_S, PATIENCE_S
from tests.unit.http.messages import GROUP, TOPIC, Topics, offsets_of, payloads_of, run

ANYONE = Caller(None, None, SYSTEM)
CONSUME = b"POST /v1/api/topics/consume HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"


def commands_of(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts how often consumers consume from now on."""
    counted: Counter[str] = Counter()
    consume = Consume.run

    def counting(command: Consume, tx: Tx) -> ConsumedMessages:
        counted["Consume"] += 1
        return consume(command, tx)

    monkeypatch.setattr(Consume, "run", counting)
    return counted


def test_a_commit_wakes_who_waits(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        waiting = topics.waiting()
        await topics.parked(1)
        await topics.publish(b"a", b"b")
        answer = await waiting
        assert payloads_of(answer) == [b"a", b"b"]
        assert (answer["next_offset"], answer["has_more"]) == (2, False)
        assert topics.db.metrics.consumers_waiting == topics.db.metrics.live_readers == 0
        assert topics.up.waiters == 0

    run(data_dir, work)


def test_the_time_out_is_answered_with_the_groups_place(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        await topics.publish(b"a", b"b")
        await topics.consume()
        began = time.monotonic()
        answer = await topics.consume(timeout_seconds=0.3)
        assert time.monotonic() - began >= 0.3
        assert (answer["messages"], answer["next_offset"], answer["has_more"]) == ([], 2, False)
        assert answer["lease_id"] is None

    run(data_dir, work)


def test_at_the_time_out_the_place_is_the_present_one(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        first = topics.waiting(consumer_id="a")
        await topics.parked(1)
        second = topics.waiting(consumer_id="b", timeout_seconds=1.5)
        await topics.parked(2)
        await topics.publish(b"a")
        assert offsets_of(await first) == [0]
        answer = await second  # it was not woken, and yet knows
        assert (answer["messages"], answer["next_offset"]) == ([], 1)

    run(data_dir, work)


@pytest.mark.parametrize("event", ["nack", "lease", "delay", "reset"])
def test_what_else_wakes_who_waits(data_dir: Path, event: str) -> None:
    async def work(topics: Topics) -> None:
        await topics.publish(b"a")
        held_s = 0.4 if event == "lease" else 60
        await topics.consume(consumer_id="a", visibility_timeout_seconds=held_s)
        if event == "delay":
            await topics.ok("nack", consumer_id="a", delay_seconds=0.4)
        waiting = topics.waiting(consumer_id="b", timeout_seconds=PATIENCE_S)
        await topics.parked_or_answered(waiting)
        if event == "nack":
            await topics.ok("nack", consumer_id="a")
        elif event == "reset":
            await topics.db.aexecute(ResetGroup(TOPIC, GROUP, StartPoint(EARLIEST)))
        began = time.monotonic()
        answer = await waiting
        assert offsets_of(answer) == [0]
        assert answer["messages"][0]["attempt"] == (1 if event == "reset" else 2)
        assert time.monotonic() - began < AT_ONCE_S

    run(data_dir, work)


def test_a_nack_with_a_delay_sets_the_alarm_of_who_waits(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        await topics.publish(b"a")
        await topics.consume(consumer_id="a", visibility_timeout_seconds=3600)
        waiting = topics.waiting(consumer_id="b")
        await topics.parked(1)
        await topics.ok("nack", consumer_id="a", delay_seconds=0.3)
        assert offsets_of(await waiting) == [0]

    run(data_dir, work)


def test_an_ack_wakes_no_consumer(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(topics: Topics) -> None:
        await topics.publish(b"a", b"b")
        await topics.consume(consumer_id="a")
        waiting = topics.waiting(consumer_id="b")
        await topics.parked(1)
        counted = commands_of(monkeypatch)
        await topics.ok("ack", consumer_id="a", upto_offset=1)
        await topics.publish(b"c")
        assert offsets_of(await waiting) == [2]
        assert counted["Consume"] == 1

    run(data_dir, work)


def test_one_message_makes_one_of_many_ask(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(topics: Topics) -> None:
        waiting = [topics.waiting(consumer_id=f"c{number}") for number in range(20)]
        await topics.parked(20)
        counted = commands_of(monkeypatch)
        for number in range(20):
            await topics.publish(b"%d" % number)
            await topics.parked(19 - number)
        answers = await asyncio.gather(*waiting)
        assert sorted(payload for answer in answers for payload in payloads_of(answer)) == sorted(
            b"%d" % number for number in range(20)
        )
        assert counted["Consume"] == 20

    run(data_dir, work)


def test_many_messages_wake_as_many_as_they_fill(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(topics: Topics) -> None:
        waiting = [topics.waiting(consumer_id=f"c{number}", limit=10) for number in range(8)]
        await topics.parked(8)
        counted = commands_of(monkeypatch)
        await topics.publish(*(b"%d" % number for number in range(45)))
        await topics.parked(3)
        assert counted["Consume"] <= 8
        await topics.publish(*(b"x" for _ in range(30)))
        answers = await asyncio.gather(*waiting)
        assert sorted(offset for answer in answers for offset in offsets_of(answer)) == list(range(75))

    run(data_dir, work)


def test_one_that_leaves_more_behind_wakes_the_next(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        # Who is woken takes all that its limit allows, but an answer's bytes are bounded: it has to leave some.
        waiting = [topics.waiting(consumer_id=f"c{number}", limit=1000) for number in range(3)]
        await topics.parked(3)
        size = limits.CONSUME_BYTES // 2 - 100  # two in an answer
        await topics.publish(*(bytes([number]) * size for number in range(5)))
        answers = await asyncio.gather(*waiting)
        assert sorted(offset for answer in answers for offset in offsets_of(answer)) == list(range(5))

    run(data_dir, work)


def test_groups_do_not_take_from_each_other(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        waiting = [topics.waiting(group_id=name) for name in ("g", "h", "i")]
        waiting += [topics.waiting(group_id=None, start="Latest") for _ in range(3)]
        await topics.parked(6)
        await topics.publish(b"a")
        for answer in await asyncio.gather(*waiting):
            assert payloads_of(answer) == [b"a"]

    run(data_dir, work)


def test_any_partition_that_has_something(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        for partition in (2, 0, 3):
            waiting = topics.waiting(partition_id="any")
            await topics.parked(1)
            await topics.publish(b"%d" % partition, partition=partition)
            answer = await waiting
            assert payloads_of(answer) == [b"%d" % partition]
            assert answer["partition_id"] == answer["messages"][0]["partition_id"] == partition
        for partition in range(4):
            await topics.publish(b"x", partition=partition)
        seen = [(await topics.consume(partition_id="any"))["partition_id"] for _ in range(4)]
        assert sorted(seen) == [0, 1, 2, 3]

    run(data_dir, work, partitions=4)


def test_without_a_group_the_latest_is_where_it_was_when_asked(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        await topics.publish(b"before")
        waiting = topics.waiting(group_id=None, start="Latest")
        await topics.parked(1)
        await topics.publish(b"a", b"b")
        answer = await waiting
        assert payloads_of(answer) == [b"a", b"b"]
        assert answer["next_offset"] == 3
        assert await topics.db.aexecute(ListGroups()) == []

    run(data_dir, work)


def test_a_group_that_starts_at_the_latest_misses_nothing_from_then_on(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        await topics.publish(b"before")
        assert (await topics.consume(start="Latest", timeout_seconds=0.01))["messages"] == []
        await topics.publish(b"after")
        assert payloads_of(await topics.consume(start="Latest")) == [b"after"]

    run(data_dir, work)


# -- leaving


def request_of(**body: Any) -> bytes:
    text = json.dumps({"topic": TOPIC, "group_id": GROUP, "timeout_seconds": PATIENCE_S, **body}).encode()
    return b"%b\r\nContent-Length: %d\r\n\r\n%b" % (CONSUME, len(text), text)


@pytest.mark.parametrize("how", ["close", "abort", "half"])
def test_who_has_left_claims_nothing(data_dir: Path, how: str) -> None:
    async def work(topics: Topics) -> None:
        # Others that close their sending side are waited for a while; a consumer is not.
        shared = topics.up.running._server._shared
        assert shared is not None
        shared.limits = dataclasses.replace(shared.limits, linger_s=1000)
        address = topics.up.running.url.rsplit("/", 1)[1].split(":")
        _, writer = await asyncio.open_connection(address[0], int(address[1]))
        writer.write(request_of(consumer_id="gone"))
        await topics.parked(1)
        if how == "close":
            writer.close()
        elif how == "abort":
            writer.transport.abort()
        else:
            writer.write_eof()
        await topics.parked(0)
        await topics.publish(b"a")
        answer = await topics.consume(consumer_id="here")
        assert payloads_of(answer) == [b"a"]
        assert answer["messages"][0]["attempt"] == 1
        assert topics.up.waiters == 0
        writer.close()

    run(data_dir, work)


def test_the_turn_of_who_has_left_goes_to_the_next(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        gone = topics.waiting(consumer_id="gone")
        await topics.parked(1)
        waiting = topics.waiting(consumer_id="here")
        await topics.parked(2)
        gone.cancel()
        await topics.parked(1)
        await topics.publish(b"a")
        assert payloads_of(await waiting) == [b"a"]

    run(data_dir, work)


def test_a_turn_that_is_not_taken_goes_to_the_next(data_dir: Path) -> None:
    """The first is woken, and cancelled before its request."""

    async def work(topics: Topics) -> None:
        consuming = ConsumerQueues(topics.db)
        claims = []
        for number in range(2):
            command = Consume(TOPIC, GROUP, consumer=f"c{number}")
            claims.append(asyncio.create_task(consuming.claim(command, ANYONE, 60)))
            await topics.parked(number + 1)
        topic = await topics.db.aexecute(FindTopic(TOPIC))
        unsubscribe = topics.db.tail.subscribe(topic.first_log, lambda notices: claims[0].cancel() and None)
        await topics.publish(b"a")
        delivery = await claims[1]
        unsubscribe()
        assert [(message.offset, message.attempt) for message in delivery.messages] == [(0, 1)]
        assert claims[0].cancelled()

    run(data_dir, work)


def test_a_turn_that_fails_goes_to_the_next(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(topics: Topics) -> None:
        first = asyncio.create_task(topics.post("consume", consumer_id="a", timeout_seconds=PATIENCE_S))
        await topics.parked(1)
        second = topics.waiting(consumer_id="b")
        await topics.parked(2)
        consume = Consume.run

        def failing(command: Consume, tx: Tx) -> ConsumedMessages:
            if command.consumer == "a":
                raise TooMany("too many of something")
            return consume(command, tx)

        monkeypatch.setattr(Consume, "run", failing)
        await topics.publish(b"a")
        assert offsets_of(await second) == [0]
        assert (await first).status_code == 429

    run(data_dir, work)


def test_a_commit_between_two_responses_wakes_the_consumer(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer's answer, that there is nothing, comes after the notice of a message that was committed later."""

    async def work(topics: Topics) -> None:
        execute = topics.db.aexecute
        started: list[Completion[Any]] = []
        answers: list[Completion[Any]] = []

        def late(command: Any, *rest: Any) -> Any:
            if not isinstance(command, Consume) or started:
                return execute(command, *rest)
            started.append(cast(Completion[Any], execute(command, *rest)))
            answers.append(Completion())
            return answers[0]

        monkeypatch.setattr(topics.db, "aexecute", late)
        claim = asyncio.create_task(ConsumerQueues(topics.db).claim(Consume(TOPIC, GROUP), ANYONE, 60))
        await topics.up.until(lambda: bool(started) and started[0].done())
        await topics.publish(b"a")
        answers[0].set(started[0].result())
        assert [message.offset for message in (await claim).messages] == [0]

    run(data_dir, work)


def test_messages_claimed_for_a_consumer_that_left_are_given_back(data_dir: Path) -> None:
    """The question is with the writer when the consumer leaves, whether it runs in a task or is stepped by hand."""

    async def work(topics: Topics) -> None:
        await topics.publish(b"a")
        consuming = ConsumerQueues(topics.db)
        for timeout_s in (0, PATIENCE_S):
            leaving = asyncio.create_task(consuming.claim(Consume(TOPIC, GROUP, consumer="gone"), ANYONE, timeout_s))
            await asyncio.sleep(0)  # now it waits for the commit
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving
            waiting = topics.waiting(consumer_id="here")
            answer = await waiting
            assert offsets_of(answer) == [0]
            await topics.db.aexecute(Nack(TOPIC, GROUP, consumer="here"))
        assert topics.up.waiters == 0

    run(data_dir, work)


def test_a_socket_that_closes_while_its_claim_is_written_gives_it_back(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        await topics.publish(b"a")
        address = topics.up.running.url.rsplit("/", 1)[1].split(":")
        for _ in range(20):
            _, writer = await asyncio.open_connection(address[0], int(address[1]))
            writer.write(request_of(consumer_id="gone", visibility_timeout_seconds=3600))
            await writer.drain()
            writer.transport.abort()
            # The answer may have been written already: then it is lost like any answer, and the lease has to run out.
            answer = await topics.consume(consumer_id="here", timeout_seconds=0.5)
            if answer["messages"]:
                assert offsets_of(answer) == [0]
            await topics.db.aexecute(ResetGroup(TOPIC, GROUP, StartPoint(EARLIEST)))
        assert topics.up.waiters == 0

    run(data_dir, work)


def test_under_asgi_who_has_left_claims_nothing_either(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        body = json.dumps({"topic": TOPIC, "group_id": GROUP, "timeout_seconds": PATIENCE_S}).encode()
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/api/topics/consume",
            "raw_path": b"/v1/api/topics/consume",
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
        }
        leaves = asyncio.Event()
        events = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[Any] = []

        async def receive() -> Any:
            if events:
                return events.pop()
            await leaves.wait()
            return {"type": "http.disconnect"}

        async def send(event: Any) -> None:
            sent.append(event)

        serving = asyncio.create_task(application(topics.up.running.app)(scope, receive, send))
        await topics.parked(1)
        leaves.set()
        await serving
        assert sent == []
        await topics.publish(b"a")
        answer = await topics.consume()
        assert (payloads_of(answer), answer["messages"][0]["attempt"]) == ([b"a"], 1)

    run(data_dir, work)


# -- how waiting ends


@pytest.mark.parametrize("group", [GROUP, None])
def test_a_topic_that_is_dropped_answers_who_waits(data_dir: Path, group: str | None) -> None:
    async def work(topics: Topics) -> None:
        waiting = [
            asyncio.create_task(topics.refused("consume", timeout_seconds=PATIENCE_S, group_id=group, start="Latest"))
            for _ in range(3)
        ]
        await topics.parked(3)
        await topics.drop()
        await topics.create()  # another one, which they do not wait at
        for answer in await asyncio.gather(*waiting):
            assert answer[:2] == (404, "TOPIC_NOT_FOUND")
        assert topics.up.waiters == 0
        await topics.publish(b"new")
        assert payloads_of(await topics.consume()) == [b"new"]

    run(data_dir, work)


def test_stopping_lets_everyone_go(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        waiting = [topics.waiting(), topics.waiting(group_id=None), topics.waiting(group_id="other", start="Latest")]
        await topics.parked(3)
        began = time.monotonic()
        topics.up.running.app.release()
        for answer in await asyncio.gather(*waiting):
            assert answer["messages"] == []
        # Who comes now does not wait either.
        assert (await topics.consume(timeout_seconds=PATIENCE_S))["messages"] == []
        assert time.monotonic() - began < AT_ONCE_S

    run(data_dir, work)


def test_no_more_wait_than_may(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(topics: Topics) -> None:
        monkeypatch.setattr(limits, "WAITERS_MAX", 2)
        waiting = [topics.waiting(), topics.waiting(group_id=None)]
        await topics.parked(2)
        assert (await topics.refused("consume", timeout_seconds=PATIENCE_S))[:2] == (429, "TOO_MANY")
        assert (await topics.refused("consume", timeout_seconds=PATIENCE_S, group_id=None))[0] == 429
        assert (await topics.consume(timeout_seconds=0))["messages"] == []
        await topics.publish(b"a")
        for answer in await asyncio.gather(*waiting):
            assert payloads_of(answer) == [b"a"]

    run(data_dir, work)


def test_nothing_is_missed_between_asking_and_waiting(data_dir: Path) -> None:
    """Publishers and consumers race; every message comes to one consumer, and nobody waits while there is one."""

    async def work(topics: Topics) -> None:
        await topics.consume(start="Earliest")
        seen: Counter[int] = Counter()
        total = 300

        async def consumer(number: int) -> None:
            while sum(seen.values()) < total:
                answer = await topics.consume(consumer_id=f"c{number}", limit=3, timeout_seconds=PATIENCE_S)
                seen.update(offsets_of(answer))
                if sum(seen.values()) >= total:
                    topics.up.running.app.release()

        async def publisher() -> None:
            for number in range(total // 3):
                await topics.publish(b"%d" % number)

        began = time.monotonic()
        await asyncio.gather(*(consumer(number) for number in range(6)), *(publisher() for _ in range(3)))
        assert seen == Counter(range(total))
        assert time.monotonic() - began < AT_ONCE_S, "a consumer waited for the time-out"

    run(data_dir, work)


def test_a_consumer_of_another_thread_is_woken(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        await topics.publish(b"a")
        await topics.consume(consumer_id="a")
        waiting = topics.waiting(consumer_id="b")
        await topics.parked(1)
        await asyncio.to_thread(topics.db.execute, Nack(TOPIC, GROUP, consumer="a"))
        assert offsets_of(await waiting) == [0]
        waiting = topics.waiting(consumer_id="b", group_id="new", start="Latest")
        await topics.parked(1)
        await asyncio.to_thread(topics.db.execute, ResetGroup(TOPIC, "new", StartPoint(EARLIEST)))
        assert offsets_of(await waiting) == [0]
        await asyncio.to_thread(topics.db.execute, ResetGroup(TOPIC, "new", StartPoint(LATEST)))

    run(data_dir, work)


def test_leases_that_end_in_several_partitions_wake_everyone_who_waits_for_any(data_dir: Path) -> None:
    """At once, and one after the other: nobody sleeps while something can be delivered."""

    async def work(topics: Topics) -> None:
        for partition in range(6):
            await topics.publish(b"%d" % partition, partition=partition)
        for partition in range(6):
            held = await topics.consume(
                partition_id=partition, consumer_id="crashed", visibility_timeout_seconds=0.5 + 0.2 * (partition // 3)
            )
            assert len(held["messages"]) == 1
        waiting = [
            topics.waiting(partition_id="any", limit=1, consumer_id=f"c{number}", timeout_seconds=PATIENCE_S)
            for number in range(6)
        ]
        await topics.parked_or_answered(*waiting)
        answers = await asyncio.wait_for(asyncio.gather(*waiting), AT_ONCE_S)
        assert sorted(answer["partition_id"] for answer in answers) == list(range(6))

    run(data_dir, work, partitions=6)


def test_a_name_that_leads_elsewhere_takes_its_waiters_along(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        await topics.create("other")
        await topics.db.aexecute(AlterTopic(TOPIC, TopicOptions(alias="moving")))
        by_alias = topics.waiting(topic="moving")
        await topics.parked(1)
        by_name = topics.waiting()
        await topics.parked(2)
        await topics.db.aexecute(AlterTopic(TOPIC, TopicOptions(alias=None)))
        await topics.db.aexecute(AlterTopic("other", TopicOptions(alias="moving")))
        await topics.publish(b"here")
        assert payloads_of(await asyncio.wait_for(by_name, 30)) == [b"here"]
        await topics.db.aexecute(Publish("other", (Outgoing(b"there"),)))
        assert payloads_of(await asyncio.wait_for(by_alias, 30)) == [b"there"]

    run(data_dir, work)


def test_a_client_that_left_uses_up_no_attempt(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        await topics.create("dead")
        await topics.db.aexecute(AlterTopic(TOPIC, TopicOptions(max_attempts=1, dead_letter="dead")))
        await topics.publish(b"x")
        command = Consume(TOPIC, GROUP, consumer="left")
        give_back(topics.db, command, SYSTEM, await topics.db.aexecute(command))
        found = await topics.consume()
        assert [message["attempt"] for message in found["messages"]] == [1]

    run(data_dir, work)


# -- claims that share the commit of their messages


def transactions_of(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Tx]]:
    """The transactions in which publishers and consumers run from now on."""
    seen: dict[str, list[Tx]] = {"Publish": [], "Consume": []}

    def watch(kind: type[Command[Any]]) -> None:
        run_it = kind.run

        def watched(command: Command[Any], tx: Tx) -> Any:
            seen[kind.__name__].append(tx)
            return run_it(command, tx)

        monkeypatch.setattr(kind, "run", watched)

    watch(Publish)
    watch(Consume)
    return seen


@pytest.mark.parametrize("partition", [0, "any"])
def test_messages_are_published_and_claimed_by_one_commit(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, partition: Any
) -> None:
    async def work(topics: Topics) -> None:
        waiting = [topics.waiting(consumer_id=f"c{at}", limit=2, partition_id=partition) for at in range(4)]
        await topics.parked(4)
        seen = transactions_of(monkeypatch)
        await topics.publish(b"a", b"b", b"c", b"d", b"e")
        await topics.parked(1)
        assert len(seen["Consume"]) == 3
        assert {*seen["Consume"]} == {*seen["Publish"]}
        assert len({*seen["Publish"]}) == 1
        await topics.publish(b"f")
        answers = await asyncio.gather(*waiting)
        assert sorted(offset for answer in answers for offset in offsets_of(answer)) == list(range(6))
        assert {message["attempt"] for answer in answers for message in answer["messages"]} == {1}

    run(data_dir, work, partitions=1)


def test_a_large_claim_does_not_run_on_the_event_loop(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(topics: Topics) -> None:
        waiting = topics.waiting(limit=limits.SLICE_ENTRIES + 1)
        await topics.parked(1)
        seen = transactions_of(monkeypatch)
        await topics.publish(b"a")
        assert offsets_of(await waiting) == [0]
        assert seen["Consume"][0] is not seen["Publish"][0]

    run(data_dir, work)


async def claimed(topics: Topics) -> Any:
    """Publish; return when the commit has begun that takes the claims of waiting consumers along."""
    published = topics.db.aexecute(Publish(TOPIC, (Outgoing(b"a"),)))
    await asyncio.sleep(0)  # the runner's turn; it completes the commit in a later one
    assert not cast(Completion[Any], published).done()
    return published


@pytest.mark.parametrize("how", ["task", "stepped"])
def test_who_leaves_during_the_commit_that_claims_for_it_gives_back(data_dir: Path, how: str) -> None:
    async def work(topics: Topics) -> None:
        consuming = ConsumerQueues(topics.db)
        claim = consuming.claim(Consume(TOPIC, GROUP, consumer="gone"), ANYONE, 60)
        left: list[BaseException | None] = []
        leaving: Any
        if how == "task":
            leaving = asyncio.create_task(claim)
        else:
            leaving = drive.start(claim, lambda delivery, error: left.append(error))
        await topics.parked(1)
        published = await claimed(topics)
        leaving.cancel()
        await published
        if how == "task":
            with pytest.raises(asyncio.CancelledError):
                await leaving
        else:
            await topics.up.until(lambda: len(left) == 1)
            assert isinstance(left[0], asyncio.CancelledError)
        answer = await topics.consume(consumer_id="here", timeout_seconds=PATIENCE_S)
        assert [(message["offset"], message["attempt"]) for message in answer["messages"]] == [(0, 1)]

    run(data_dir, work)


class RevokedCaller(Caller):
    """A caller whose rights are others when it has changed."""

    async def is_same(self) -> bool:
        return False


def test_who_loses_its_rights_during_the_commit_that_claims_for_it_gets_nothing(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        caller = RevokedCaller(None, None, SYSTEM)
        claim = asyncio.create_task(
            ConsumerQueues(topics.db).claim(Consume(TOPIC, GROUP, consumer="revoked"), caller, 60)
        )
        await topics.parked(1)
        published = await claimed(topics)
        caller.change()
        await published
        assert (await claim).ranges == []
        answer = await topics.consume(consumer_id="here", timeout_seconds=PATIENCE_S)
        assert [(message["offset"], message["attempt"]) for message in answer["messages"]] == [(0, 1)]

    run(data_dir, work)


class RevokingPublish(Command[None], frozen=True):
    """A message and the end of somebody's rights, in one transaction."""

    def run(self, tx: Tx) -> None:
        Publish(TOPIC, (Outgoing(b"a"),)).run(tx)
        tx.notify(USERS_CHANGED, UserChanged("ann"))


def test_a_commit_that_changes_users_claims_for_nobody(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(topics: Topics) -> None:
        waiting = topics.waiting()
        await topics.parked(1)
        seen = transactions_of(monkeypatch)
        await topics.db.aexecute(RevokingPublish())
        assert offsets_of(await waiting) == [0]
        assert seen["Consume"][0] is not seen["Publish"][0]

    run(data_dir, work)


class Unstorable(Command[None], frozen=True):
    """Fails the commit that it is a part of, without harm."""

    def run(self, tx: Tx) -> None:
        tx.put(PARTITIONS, Partition(1 << 40, 1, 0, 1 << 70))


def test_who_waits_goes_on_waiting_if_the_commit_fails(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        waiting = topics.waiting()
        await topics.parked(1)
        failing = [topics.db.aexecute(Publish(TOPIC, (Outgoing(b"a"),))), topics.db.aexecute(Unstorable())]
        for each in failing:
            with pytest.raises(Unavailable):
                await each
        await topics.parked(1)
        await topics.publish(b"b")
        answer = await waiting
        assert payloads_of(answer) == [b"b"]
        assert [(message["offset"], message["attempt"]) for message in answer["messages"]] == [(0, 1)]

    run(data_dir, work)


def test_an_ack_in_the_commit_of_a_message_hides_it_from_nobody(data_dir: Path) -> None:
    """Commits with a heavy command run on the committer's thread, and take nothing along."""

    async def work(topics: Topics) -> None:
        await topics.publish(b"a")
        await topics.consume(consumer_id="a")
        waiting = topics.waiting(consumer_id="b")
        await topics.parked(1)
        together = [
            topics.db.aexecute(AlterTopic(TOPIC, TopicOptions(retention_seconds=3600))),
            topics.db.aexecute(Publish(TOPIC, (Outgoing(b"b"),))),
            topics.db.aexecute(Ack(TOPIC, GROUP, 0, consumer="a")),
        ]
        for each in together:
            await each
        assert offsets_of(await asyncio.wait_for(waiting, PATIENCE_S)) == [1]

    run(data_dir, work)
