"""Asynchronous consumers, of a database of this process and of a server: handlers at once, and the same promises."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tailrace import limits
from tailrace.client import AsyncConsumer, Client, Consumer, Message
from tailrace.errors import Invalid, NotFound
from tailrace.topics.queries import ListGroups
from tests.support.server import ROOT
from tests.unit.client.test_consumer import AsyncFlaky, Flaky, Place, flaky, floor, place
from tests.unit.threaded import PATIENCE_S, Served

__all__ = ["flaky", "place"]


def consumer(place: Place, **options: Any) -> AsyncConsumer:
    return AsyncConsumer(place.asynchronous, "t", "g", **{"batch": 5, **options})


def played(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S * 3):
            await scenario()

    asyncio.run(bounded())


async def ran(one: AsyncConsumer, handler: Callable[[Message], object], **options: Any) -> None:
    async with one:
        await one.run(handler, **options)


async def threaded(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """What asks the database or the server: not on the event loop."""
    return await asyncio.to_thread(function, *arguments, **named)


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    while not await true():
        await asyncio.sleep(0.002)


# -- handlers at once


@pytest.mark.parametrize("concurrency", [1, 2, 7, 40])
def test_as_many_handlers_as_asked_for_are_at_work_and_never_more(place: Place, concurrency: int) -> None:
    place.fill(40)
    seen: list[int] = []
    working = most = 0

    async def scenario() -> None:
        together = asyncio.Event()

        async def handler(message: Message) -> None:
            nonlocal working, most
            working += 1
            most = max(most, working)
            if working == concurrency:
                together.set()
            await together.wait()  # so many must be here at once, or nobody gets on
            working -= 1
            seen.append(message.offset)
            if len(seen) == 40:
                one.stop()

        async with consumer(place, concurrency=concurrency) as one:
            await one.run(handler)

    played(scenario)
    assert (most, sorted(seen)) == (concurrency, list(range(40)))
    assert (place.group().floor, place.group().in_flight) == (40, 0)


def test_one_at_a_time_is_in_order(place: Place) -> None:
    place.fill(23)
    seen: list[int] = []

    async def handler(message: Message) -> None:
        await asyncio.sleep(0)
        seen.append(message.offset)
        if message.offset == 22:
            one.stop()

    one = consumer(place, ack_every_s=0)
    played(lambda: ran(one, handler))
    assert seen == list(range(23))
    assert place.floor() == 23


def test_an_acknowledgement_covers_only_what_is_done(place: Place) -> None:
    place.fill(5)

    async def scenario() -> None:
        first, others = asyncio.Event(), asyncio.Event()
        done: list[int] = []

        async def handler(message: Message) -> None:
            if message.offset == 2:
                await first.wait()
            done.append(message.offset)
            if len(done) == 4:
                others.set()

        one = consumer(place, concurrency=5, ack_every_s=0)
        running = asyncio.create_task(one.run(handler))
        await others.wait()

        async def acknowledged() -> bool:
            return bool(await threaded(place.floor) == 2)

        await until(acknowledged)  # 0 and 1; not 3 and 4, which are done too
        assert (await threaded(place.group)).in_flight == 3
        first.set()

        async def all_acknowledged() -> bool:
            return bool(await threaded(place.floor) == 5)

        await until(all_acknowledged)
        one.stop()
        await running

    played(scenario)


def test_no_more_is_fetched_than_there_is_room_for(place: Place) -> None:
    place.fill(40)

    async def scenario() -> None:
        go, there = asyncio.Event(), asyncio.Event()
        seen: list[int] = []

        async def handler(message: Message) -> None:
            seen.append(message.offset)
            if len(seen) == 2:
                there.set()
            await go.wait()

        one = consumer(place, concurrency=2, batch=5)
        running = asyncio.create_task(one.run(handler))
        await there.wait()
        for _ in range(50):  # whoever would fetch more could do so now
            assert (await threaded(place.group)).in_flight == 5
        assert seen == [0, 1]
        one.stop()
        go.set()
        await running

    played(scenario)
    assert (place.floor(), place.group().in_flight, place.group().pending) == (2, 0, 3)


# -- failures


def test_a_handler_that_fails_gets_its_message_again_and_the_others_go_on(place: Place) -> None:
    place.fill(12)
    seen: list[tuple[int, int]] = []

    async def handler(message: Message) -> None:
        seen.append((message.offset, message.attempt))
        if message.offset in (3, 7) and message.attempt == 1:
            raise ZeroDivisionError
        if message.offset == 5 and message.attempt == 1:
            raise asyncio.CancelledError  # of something that it waited for: nobody cancels the consumer
        if len(seen) == 15:
            one.stop()

    one = consumer(place, concurrency=4)
    played(lambda: ran(one, handler, retry_s=0.01))
    assert sorted(seen) == sorted([(n, 1) for n in range(12)] + [(3, 2), (5, 2), (7, 2)])
    assert (place.floor(), place.group().in_flight) == (12, 0)


def test_a_failure_that_cannot_be_reported_keeps_what_lies_above_it(flaky: Flaky) -> None:
    flaky.away["nack"] = 10**6

    async def handler(message: Message) -> None:
        if message.offset == 2:
            one.stop()
            raise ZeroDivisionError

    one = AsyncConsumer(AsyncFlaky(flaky), "t", "g", batch=5, concurrency=5, stop_timeout_s=0.2)
    played(lambda: ran(one, handler))
    assert floor(flaky) == 2
    assert "nack" in flaky.calls


def test_an_acknowledgement_is_sent_until_it_is_taken(flaky: Flaky) -> None:
    flaky.away["ack"] = 3

    async def handler(message: Message) -> None:
        if message.offset == 9:
            one.stop()

    one = AsyncConsumer(AsyncFlaky(flaky), "t", "g", batch=5, concurrency=3)
    played(lambda: ran(one, handler))
    assert floor(flaky) == 10
    assert flaky.away["ack"] == 0


def test_a_slow_handler_keeps_its_message(place: Place) -> None:
    place.fill(1)

    async def handler(message: Message) -> None:
        got = await threaded(place.source.consume, "t", "g", consumer="other", timeout_s=8.0)
        assert not got.messages, "the lease lasts six seconds, and is extended"
        one.stop()

    one = consumer(place, visibility_s=6.0)
    played(lambda: ran(one, handler))
    assert place.floor() == 1


def test_a_handler_that_blocks_the_loop_keeps_its_message(place: Place) -> None:
    place.fill(1)
    taken: list[int] = []

    def steal() -> None:
        taken.append(len(place.source.consume("t", "g", consumer="other", timeout_s=8.0)))

    def handler(message: Message) -> None:
        other = threading.Thread(target=steal)
        other.start()
        other.join()
        one.stop()

    one = consumer(place, visibility_s=6.0)
    played(lambda: ran(one, handler))
    assert taken == [0], "the lease lasts six seconds, and a thread extends it"
    assert place.floor() == 1


def test_a_topic_that_is_not_there(place: Place) -> None:
    async def handler(message: Message) -> None: ...

    with pytest.raises(NotFound, match="'t'"):
        played(lambda: ran(consumer(place), handler))


# -- ending


def test_a_cancelled_run_gives_back_what_was_in_work_and_acknowledges_what_was_done(place: Place) -> None:
    place.fill(10)
    cancelled: list[int] = []

    async def scenario() -> None:
        there = asyncio.Event()
        done: list[int] = []

        async def handler(message: Message) -> None:
            if message.offset in (1, 3):
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    cancelled.append(message.offset)
                    raise
            done.append(message.offset)
            if len(done) == 3:
                there.set()

        running = asyncio.create_task(consumer(place, concurrency=5, visibility_s=3600, batch=5).run(handler))
        await there.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    played(scenario)
    assert sorted(cancelled) == [1, 3]
    group = place.group()
    assert (group.floor, group.in_flight) == (1, 0)
    got = place.source.consume("t", "g", consumer="other", limit=100)
    again = [message.offset for message in got]
    while got.messages and len(again) < 7:
        got = place.source.consume("t", "g", consumer="other", limit=100)
        again += [message.offset for message in got]
    assert sorted(again)[:2] == [1, 3], "0, 2 and 4 were done"
    assert not {0, 2, 4} & set(again)


def test_stop_lets_handlers_finish(place: Place) -> None:
    place.fill(10)

    async def scenario() -> None:
        there, go = asyncio.Event(), asyncio.Event()
        count = 0

        async def handler(message: Message) -> None:
            nonlocal count
            count += 1
            if count == 3:
                there.set()
            await go.wait()

        async with consumer(place, concurrency=3, visibility_s=3600) as one:
            running = asyncio.create_task(one.run(handler))
            await there.wait()
            one.stop()
            await asyncio.sleep(0)
            assert not running.done()
            go.set()
            await running

    played(scenario)
    group = place.group()
    assert (group.floor, group.in_flight, group.pending) == (3, 0, 2)


def test_stop_ends_a_wait_for_messages(place: Place) -> None:
    place.source.sql("CREATE TOPIC t")

    async def handler(message: Message) -> None: ...

    async def scenario() -> None:
        async with consumer(place, timeout_s=300) as one:
            running = asyncio.create_task(one.run(handler))

            async def waiting() -> bool:
                return bool(await threaded(place.waiting))

            await until(waiting)
            one.stop()
            await running

    played(scenario)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_run(place: Place, number: signal.Signals) -> None:
    place.fill(3)
    before = signal.getsignal(number)
    seen: list[int] = []

    async def handler(message: Message) -> None:
        seen.append(message.offset)
        if message.offset == 1:
            os.kill(os.getpid(), number)
            await asyncio.sleep(0)

    played(lambda: ran(consumer(place, visibility_s=3600), handler))
    assert seen == [0, 1]
    assert signal.getsignal(number) is before
    assert (place.floor(), place.group().in_flight) == (2, 0)


def test_one_run_at_a_time(place: Place) -> None:
    place.fill(1)

    async def scenario() -> None:
        async def handler(message: Message) -> None:
            with pytest.raises(Invalid, match="in use already"):
                await one.run(handler)
            with pytest.raises(Invalid, match="in use already"):
                aiter(one)
            one.stop()

        async with consumer(place) as one:
            await one.run(handler)

    played(scenario)


# -- the loop


def test_each_message_once_in_order(place: Place) -> None:
    place.fill(23)
    seen: list[int] = []

    async def scenario() -> None:
        async with consumer(place) as one:
            async for message in one:
                seen.append(message.offset)
                if message.offset == 22:
                    one.stop()

    played(scenario)
    assert seen == list(range(23))
    assert (place.floor(), place.group().in_flight) == (23, 0)


@pytest.mark.parametrize("how", ["break", "raise"])
def test_leaving_the_loop_gives_back_what_is_in_hand(place: Place, how: str) -> None:
    place.fill(10)

    async def scenario() -> None:
        async with consumer(place, visibility_s=3600) as one:
            async for message in one:
                if message.offset == 2:
                    if how == "break":
                        break
                    raise ZeroDivisionError

    if how == "raise":
        with pytest.raises(ZeroDivisionError):
            played(scenario)
    else:
        played(scenario)
    group = place.group()
    assert (group.floor, group.in_flight, group.pending) == (2, 0, 3)


# -- handlers and options


def test_a_plain_function_and_a_lambda_are_handlers_too(place: Place) -> None:
    place.fill(6)
    seen: list[int] = []

    def plain(message: Message) -> None:
        seen.append(message.offset)
        if message.offset == 2:
            first.stop()

    async def last(message: Message) -> None:
        seen.append(message.offset)
        if message.offset == 5:
            second.stop()

    first, second = consumer(place, batch=3), consumer(place, batch=3)
    played(lambda: ran(first, plain))
    played(lambda: ran(second, lambda message: last(message)))
    assert seen == [0, 1, 2, 3, 4, 5]
    assert place.floor() == 6


def test_work_in_a_pool_of_threads_is_waited_for(place: Place) -> None:
    place.fill(3)
    done: list[int] = []
    released = threading.Event()

    def work(message: Message) -> None:
        if message.offset == 2:
            assert released.wait(PATIENCE_S)
            one.stop()
        done.append(message.offset)

    async def scenario() -> None:
        running = asyncio.create_task(one.run(lambda message: pool.submit(work, message)))
        await until(lambda: threaded(lambda: [group.floor for group in place.run(ListGroups("t"))] == [2]))
        released.set()
        await running

    one = consumer(place, ack_every_s=0)
    with ThreadPoolExecutor() as pool:
        played(scenario)
    assert (done, place.floor()) == ([0, 1, 2], 3)


async def forgets_to_await(message: Message) -> object:
    return asyncio.sleep(0)


@pytest.mark.filterwarnings("error::RuntimeWarning")  # of a coroutine that nothing awaited
@pytest.mark.parametrize(
    "handler",
    [None, lambda message: (each for each in ()), forgets_to_await],
    ids=["none", "generator", "coroutine that is not awaited"],
)
def test_a_handler_that_would_not_run_acknowledges_nothing(place: Place, handler: Any) -> None:
    place.fill(3)
    with pytest.raises(Invalid, match="handler"):
        played(lambda: ran(consumer(place, visibility_s=3600), handler))
    assert [(group.floor, group.in_flight) for group in place.run(ListGroups("t"))] == [(0, 0)] * bool(handler)


@pytest.mark.parametrize("concurrency", [0, -1, limits.CONSUMER_CONCURRENCY_MAX + 1, 1.5, "2", True])
def test_a_concurrency_that_is_none(place: Place, concurrency: Any) -> None:
    with pytest.raises(Invalid, match="concurrency="):
        consumer(place, concurrency=concurrency)
    consumer(place, concurrency=limits.CONSUMER_CONCURRENCY_MAX)


def test_a_source_of_the_other_api_is_refused(flaky: Flaky) -> None:
    with pytest.raises(Invalid, match=r"'Database'; give it db.aio, an AsyncClient or a URL"):
        AsyncConsumer(flaky._db, "t", "g")
    with pytest.raises(Invalid, match="'AsyncOperations'; give it a database, a Client or a URL"):
        Consumer(flaky._db.aio, "t", "g")


def test_the_database_makes_one(place: Place) -> None:
    if not hasattr(place.source, "aio"):
        pytest.skip("only a database has it")
    place.fill(3)

    async def scenario() -> None:
        async with place.source.aio.consumer("t", "g", concurrency=2, batch=3) as one:

            async def handler(message: Message) -> None:
                await place.source.aio.publish("t", b"more") if message.offset == 0 else None
                if message.offset == 3:
                    one.stop()

            await one.run(handler)

    played(scenario)
    assert place.floor() == 4


# -- processes

WORKER = """
import asyncio, sys
from tailrace.client import AsyncConsumer

async def handler(message):
    if message.offset in (2, 5):
        await asyncio.Event().wait()  # for ever
    print(message.offset, flush=True)

asyncio.run(AsyncConsumer(sys.argv[1], "t", "g", batch=8, concurrency=8, visibility_s=3.0, ack_every_s=0).run(handler))
"""


def test_what_a_killed_process_had_in_work_comes_to_another(data_dir: Path) -> None:
    with Served(data_dir) as served, Client(served.url) as client:
        client.sql("CREATE TOPIC t")
        client.publish_many("t", [b"%d" % number for number in range(8)])
        child = subprocess.Popen(
            [sys.executable, "-c", WORKER, served.url],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )  # fmt: skip
        assert child.stdout is not None
        assert sorted(int(child.stdout.readline()) for _ in range(6)) == [0, 1, 3, 4, 6, 7]
        child.kill()
        child.communicate()
        seen: dict[int, int] = {}

        async def scenario() -> None:
            async with AsyncConsumer(served.url, "t", "g", concurrency=4, batch=8) as one:

                async def handler(message: Message) -> None:
                    seen[message.offset] = message.attempt
                    if {2, 5, 7} <= seen.keys():
                        one.stop()

                await one.run(handler)

        played(scenario)
        assert {2, 5} <= seen.keys(), "they were in work"
        assert (seen[2], seen[5]) == (2, 2)
        (group,) = client.describe_topic("t")["groups"]
        assert (group["lag"], group["in_flight"]) == (0, 0)
