"""A completion is awaited by tasks, combined by asyncio's tools, and stepped by hand."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from tailrace.completion import Completion
from tailrace.errors import Invalid


def test_awaited_from_a_task() -> None:
    async def main() -> tuple[int, int]:
        later: Completion[int] = Completion(asyncio.get_running_loop())
        ready: Completion[int] = Completion()
        ready.set(1)
        asyncio.get_running_loop().call_later(0.01, later.set, 2)
        return await ready, await later

    assert asyncio.run(main()) == (1, 2)


@pytest.mark.parametrize("early", [True, False])
def test_an_error_is_raised_where_it_is_awaited(early: bool) -> None:
    async def main() -> None:
        completion: Completion[int] = Completion()
        if early:
            completion.set(None, Invalid("no"))
        else:
            asyncio.get_running_loop().call_soon(completion.set, None, Invalid("no"))
        with pytest.raises(Invalid, match="no"):
            await completion

    asyncio.run(main())


def test_a_cancelled_waiter_is_notified_no_more() -> None:
    async def main() -> None:
        completion: Completion[int] = Completion()
        steps = []

        async def wait() -> None:
            try:
                await completion
            except asyncio.CancelledError:
                steps.append("cancelled")
                raise
            steps.append("went on")

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        completion.set(5)  # what was asked for happened all the same
        assert steps == ["cancelled"]
        assert completion.cancelled()

    asyncio.run(main())


def test_a_time_out() -> None:
    async def main() -> None:
        completion: Completion[int] = Completion()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await completion
        other: Completion[int] = Completion()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(other, 0.01)
        completion.set(1)
        other.set(1)

    asyncio.run(main())


def test_with_what_asyncio_offers() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        some: list[Completion[Any]] = [Completion(loop) for _ in range(4)]
        for number, completion in enumerate(some[:3]):
            loop.call_soon(completion.set, number)
        loop.call_soon(some[3].set, None, Invalid("no"))
        results = await asyncio.gather(*some, return_exceptions=True)
        assert results[:3] == [0, 1, 2]
        assert isinstance(results[3], Invalid)
        one: Completion[int] = Completion(loop)
        loop.call_soon(one.set, 7)
        assert await asyncio.wait_for(one, 10) == 7
        two: Completion[int] = Completion(loop)
        loop.call_soon(two.set, 8)
        assert await asyncio.shield(two) == 8
        bad: Completion[int] = Completion(loop)
        loop.call_soon(bad.set, None, Invalid("no"))
        with pytest.raises(Invalid):
            await asyncio.gather(bad)

    asyncio.run(main())


def test_by_hand() -> None:
    """How a handler's coroutine is driven: it yields the completion itself, and goes on when called back."""
    completion: Completion[str] = Completion()

    async def handler() -> str:
        return await completion + "!"

    coroutine = handler()
    assert coroutine.send(None) is completion
    called = []
    completion.on_done(lambda: called.append(True))
    assert not completion.done()
    completion.set("yes")
    assert called == [True]
    with pytest.raises(StopIteration) as stop:
        coroutine.send(None)
    assert stop.value.value == "yes!"


def test_called_back_at_once_when_it_is_done() -> None:
    completion: Completion[int] = Completion()
    completion.set(1)
    called = []
    completion.on_done(lambda: called.append(True))
    assert called == [True]


def test_it_is_set_once_and_has_one_waiter() -> None:
    completion: Completion[int] = Completion()
    completion.on_done(lambda: None)
    with pytest.raises(AssertionError, match="one waiter"):
        completion.on_done(lambda: None)
    completion.set(1)
    completion.set(2, Invalid("late"))
    assert completion.result() == 1
    assert completion.cancel() is False


def test_a_task_that_has_waited_is_kept_by_nothing() -> None:
    """What it returned may be large, and the collector of circles may come late."""

    async def main() -> None:
        completion: Completion[int] = Completion()

        async def work() -> int:
            return await completion

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        completion.set(1)
        assert await task == 1
        kept = weakref.ref(task)
        del task
        await asyncio.sleep(0)  # the loop lets go of it
        assert kept() is None

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()
