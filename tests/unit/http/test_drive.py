"""Stepping a coroutine by hand: eager, resumed from completions, handed to a task when it must, cancellable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from tailrace.completion import Completion
from tailrace.http.drive import Drive, start
from tests.support.patience import PATIENCE_S


class Outcome:
    """What `done` was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, BaseException | None]] = []
        self.came = asyncio.Event()

    def __call__(self, result: Any, error: BaseException | None) -> None:
        self.calls.append((result, error))
        self.came.set()

    async def wait(self) -> tuple[Any, BaseException | None]:
        await asyncio.wait_for(self.came.wait(), PATIENCE_S)
        assert len(self.calls) == 1
        return self.calls[0]


def outside_tasks(scenario: Callable[[Outcome], Awaitable[None] | None]) -> None:
    """Run a scenario's synchronous part in a plain callback of the loop, as the transport does."""

    async def main() -> None:
        outcome = Outcome()
        ran: asyncio.Future[Awaitable[None] | None] = asyncio.get_running_loop().create_future()

        def callback() -> None:
            try:
                ran.set_result(scenario(outcome))
            except BaseException as error:
                ran.set_exception(error)

        asyncio.get_running_loop().call_soon(callback)
        rest = await ran
        if rest is not None:
            await rest

    asyncio.run(main())


def test_what_finishes_at_once_is_done_before_start_returns() -> None:
    async def handler() -> int:
        return 7

    def scenario(outcome: Outcome) -> None:
        start(handler(), outcome)
        assert outcome.calls == [(7, None)]

    outside_tasks(scenario)


def test_an_error_goes_to_done() -> None:
    error = ValueError("no")

    async def handler() -> int:
        raise error

    def scenario(outcome: Outcome) -> None:
        start(handler(), outcome)
        assert outcome.calls == [(None, error)]

    outside_tasks(scenario)


def test_a_completion_resumes_directly_without_a_task() -> None:
    first: Completion[int] = Completion()
    second: Completion[int] = Completion()

    async def handler() -> int:
        return await first + await second

    def scenario(outcome: Outcome) -> None:
        start(handler(), outcome)
        first.set(1)
        assert outcome.calls == []
        second.set(2)
        assert outcome.calls == [(3, None)]
        assert len(asyncio.all_tasks(asyncio.get_running_loop())) == 1  # the test's own

    outside_tasks(scenario)


def test_a_completion_that_fails_raises_in_the_coroutine() -> None:
    completion: Completion[int] = Completion()

    async def handler() -> str:
        with pytest.raises(KeyError):
            await completion
        return "caught"

    def scenario(outcome: Outcome) -> None:
        start(handler(), outcome)
        completion.set(None, KeyError("x"))
        assert outcome.calls == [("caught", None)]

    outside_tasks(scenario)


def test_a_future_moves_the_rest_into_a_task_where_time_outs_work() -> None:
    completion: Completion[str] = Completion()

    async def handler() -> str:
        await asyncio.sleep(0)
        assert asyncio.current_task() is not None
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.get_running_loop().create_future()
        return await completion

    def scenario(outcome: Outcome) -> Awaitable[None]:
        start(handler(), outcome)
        asyncio.get_running_loop().call_later(0.05, completion.set, "done")

        async def rest() -> None:
            assert await outcome.wait() == ("done", None)

        return rest()

    outside_tasks(scenario)


@pytest.mark.parametrize("fails", [False, True])
def test_a_real_future_is_waited_for(fails: bool) -> None:
    def scenario(outcome: Outcome) -> Awaitable[None]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        error = ValueError("late")

        async def handler() -> int:
            return await future

        start(handler(), outcome)
        if fails:
            future.set_exception(error)
        else:
            future.set_result(5)

        async def rest() -> None:
            assert await outcome.wait() == ((None, error) if fails else (5, None))

        return rest()

    outside_tasks(scenario)


def test_cancel_reaches_a_coroutine_parked_on_a_completion() -> None:
    completion: Completion[int] = Completion()
    cleaned: list[bool] = []

    async def handler() -> int:
        try:
            return await completion
        finally:
            cleaned.append(True)

    def scenario(outcome: Outcome) -> None:
        drive = start(handler(), outcome)
        drive.cancel()
        ((result, error),) = outcome.calls
        assert result is None
        assert isinstance(error, asyncio.CancelledError)
        assert cleaned == [True]
        completion.set(1)  # too late to matter
        drive.cancel()
        assert len(outcome.calls) == 1

    outside_tasks(scenario)


def test_a_stale_completion_does_not_resume_what_waits_for_another() -> None:
    first: Completion[int] = Completion()
    second: Completion[str] = Completion()

    async def handler() -> str:
        try:
            await first
        except asyncio.CancelledError:
            return await second
        return "not cancelled"

    def scenario(outcome: Outcome) -> None:
        start(handler(), outcome).cancel()
        first.set(1)
        assert outcome.calls == []
        second.set("after all")
        assert outcome.calls == [("after all", None)]

    outside_tasks(scenario)


@pytest.mark.parametrize("turns", [0, 3])
def test_cancel_reaches_a_coroutine_in_a_task_even_before_its_first_step(turns: int) -> None:
    seen: list[str] = []

    async def handler() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    def scenario(outcome: Outcome) -> Awaitable[None]:
        drive = start(handler(), outcome)

        async def rest() -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            drive.cancel()
            _, error = await outcome.wait()
            assert isinstance(error, asyncio.CancelledError)
            assert seen == ["cancelled"]

        if turns == 0:
            drive.cancel()
        return rest()

    outside_tasks(scenario)


@pytest.mark.parametrize("begun", [False, True])
def test_cancel_within_a_task(begun: bool) -> None:
    completion: Completion[None] = Completion()

    async def handler() -> None:
        await completion

    async def main() -> None:
        outcome = Outcome()
        drive: Drive[None] = start(_typed(handler()), outcome)
        if begun:
            await asyncio.sleep(0)
        drive.cancel()
        _, error = await outcome.wait()
        assert isinstance(error, asyncio.CancelledError)

    asyncio.run(main())


def _typed(work: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
    return work
