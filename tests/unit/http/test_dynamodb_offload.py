"""Threads for long requests: how many, and what a coroutine may do there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from tailrace.errors import Unavailable
from tailrace.http.dynamodb import offload
from tailrace.http.dynamodb.offload import OffloadPool, run_sync


@pytest.fixture
def workers() -> Iterator[OffloadPool]:
    made = OffloadPool(threads=1, requests_max=2)
    yield made
    made.close()


def test_work_is_done_in_a_thread(workers: OffloadPool) -> None:
    assert asyncio.run(workers.run(threading.current_thread)) is not threading.current_thread()


def test_the_queue_has_an_end(workers: OffloadPool) -> None:
    async def scenario() -> None:
        gate = threading.Event()
        wait = partial(gate.wait, 5)  # not for ever, so that the test ends when it fails
        first = asyncio.ensure_future(workers.run(wait))
        second = asyncio.ensure_future(workers.run(wait))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await workers.run(wait)
        second.cancel()  # its client has gone: it makes room
        with pytest.raises(asyncio.CancelledError):
            await second
        third = asyncio.ensure_future(workers.run(wait))
        await asyncio.sleep(0)
        gate.set()
        assert await first
        assert await third
        assert await workers.run(lambda: "room again") == "room again"

    asyncio.run(scenario())


def test_so_have_the_bytes(workers: OffloadPool) -> None:
    async def scenario() -> None:
        gate = threading.Event()
        wait = partial(gate.wait, 5)  # not for ever, so that the test ends when it fails
        first = asyncio.ensure_future(workers.run(wait, offload.REQUEST_BYTES_MAX))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await workers.run(wait, 1)
        gate.set()
        await first
        assert await workers.run(lambda: 1, offload.REQUEST_BYTES_MAX) == 1

    asyncio.run(scenario())


def test_a_coroutine_is_stepped_to_its_end() -> None:
    async def turns(number: int) -> int:
        for _ in range(number):
            await asyncio.sleep(0)
        return number

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError

    assert run_sync(turns(3)) == 3
    with pytest.raises(ValueError):
        run_sync(fails())
