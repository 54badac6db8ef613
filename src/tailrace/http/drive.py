"""Runs a handler's coroutine by hand, without an asyncio Task for each request.

Theory of operation. A coroutine is stepped at once, in the caller's turn of the event loop, outside any task.
What it yields says what it waits for:

* nothing, it finished: `done` is called before `start` returns;
* a `Completion`: it is resumed straight from the completion's callback, without a trip through the loop;
* anything else (an asyncio future, or None from ``sleep(0)``): the rest runs in a real task, so that
  ``asyncio.timeout`` and its like work from there on. There is no way back, nor a need for one.

The rule: a step never runs inside another task, for ``current_task()`` would then name the wrong one
and a time-out would cancel the wrong one. Drives are started and completions set by callbacks of the loop only: the
transport's, the runner's. (Checking each time costs as much as the rest of a step.)
Context variables are not isolated before the coroutine is handed to a task; handlers pass values instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from tailrace.completion import Completion

T = TypeVar("T")

Done = Callable[[T | None, BaseException | None], None]


def start(coroutine: Coroutine[Any, Any, T], done: Done[T]) -> Drive[T]:
    """Step the coroutine now; call ``done(result, None)`` or ``done(None, error)`` once, when it has finished."""
    drive: Drive[T] = Called(done)
    drive.run(coroutine)
    return drive


class Drive(Generic[T]):
    """A coroutine under way. Heirs say what happens when it has `finished`."""

    __slots__ = ("_coroutine", "_parked", "_task")

    def __init__(self) -> None:
        self._coroutine: Coroutine[Any, Any, T] | None = None
        self._parked: Completion[Any] | None = None
        self._task: asyncio.Task[T] | None = None

    def finished(self, result: T | None, error: BaseException | None) -> None:
        """Called once."""
        raise NotImplementedError

    def run(self, coroutine: Coroutine[Any, Any, T]) -> None:
        """Step the coroutine now, and to its end."""
        self._coroutine = coroutine
        self._step(None)

    def cancel(self) -> None:
        """Raise CancelledError where the coroutine waits; one that has finished does not notice."""
        if self._task is not None:
            self._task.cancel()
        elif self._parked is None:
            return
        elif asyncio.current_task() is not None:
            asyncio.get_running_loop().call_soon(self.cancel)
        else:
            self._parked = None
            self._step(asyncio.CancelledError())

    def _step(self, error: BaseException | None) -> None:
        coroutine = self._coroutine
        assert coroutine is not None
        try:
            waits_for = coroutine.send(None) if error is None else coroutine.throw(error)
        except StopIteration as stop:
            self._coroutine = None
            self.finished(stop.value, None)
        except (Exception, asyncio.CancelledError) as raised:
            self._coroutine = None
            self.finished(None, raised)
        else:
            if type(waits_for) is Completion:
                self._parked = waits_for
                waits_for.on_done(self._resume)
            else:
                self._task = asyncio.get_running_loop().create_task(_Rest(coroutine, waits_for))
                self._task.add_done_callback(self._task_done)

    def _resume(self) -> None:
        # A cancelled coroutine may wait for something else by the time its old completion is set.
        if self._parked is None or not self._parked.done():
            return
        self._parked = None
        self._step(None)

    def _task_done(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.finished(None, asyncio.CancelledError())
            return
        error = task.exception()
        self.finished(None if error is not None else task.result(), error)


class Called(Drive[T]):
    """A drive that calls back."""

    __slots__ = ("_done",)

    def __init__(self, done: Done[T]) -> None:
        super().__init__()
        self._done = done

    def finished(self, result: T | None, error: BaseException | None) -> None:
        self._done(result, error)


class _Rest(Coroutine[Any, Any, T]):
    """A coroutine already under way, for a task: it first yields again what the coroutine waits for.

    An object and not a generator, because a task cancelled before its first step throws into what it was
    given, and a generator that has not started would keep that from the coroutine.
    """

    __slots__ = ("_coroutine", "_first")

    def __init__(self, coroutine: Coroutine[Any, Any, T], first: Any) -> None:
        self._coroutine = coroutine
        self._first: tuple[Any] | None = (first,)

    def send(self, value: Any) -> Any:
        if self._first is None:
            return self._coroutine.send(value)
        (first,) = self._first
        self._first = None
        return first

    def throw(self, *error: Any) -> Any:
        self._first = None
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return (yield from self._coroutine.__await__())
