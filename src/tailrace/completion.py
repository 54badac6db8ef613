"""A pending result, cheap enough for every request.

A `Completion` is awaited like an asyncio future, by any task. A driver that steps a coroutine by hand (see
`http/drive.py`) receives the completion itself and is called back directly, without a task and without a trip through
the event loop. A durable append then costs only microseconds of CPU.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Completion(Generic[T]):
    """Set once, on the event loop's thread, with a value or an error. It has one waiter."""

    __slots__ = ("_asyncio_future_blocking", "_callback", "_done", "_error", "_loop", "_value")

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        # None: not a future to asyncio's functions (gather, wait_for), which then wrap it in a task like any awaitable.
        self._asyncio_future_blocking: bool | None = None
        self._loop = loop
        self._done = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._callback: Callable[[], object] | None = None

    def set(self, value: T | None, error: BaseException | None = None) -> None:
        if self._done:  # the waiter was cancelled
            return
        self._value = value
        self._error = error
        self._done = True
        # Forgotten before it is called: a task that has waited, and its result, must not be kept by this in a circle.
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    def done(self) -> bool:
        return self._done

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def outcome(self) -> tuple[T | None, BaseException | None]:
        """The value and the error, one of which it was set with."""
        assert self._done
        return self._value, self._error

    def on_done(self, callback: Callable[[], object]) -> None:
        """Call back when set; at once if it already is."""
        if self._done:
            callback()
            return
        assert self._callback is None, "a completion has one waiter"
        self._callback = callback

    def __await__(self) -> Generator[Any, None, T]:
        if not self._done:
            self._asyncio_future_blocking = True  # tells a task that it may wait for the yielded object
            yield self
        return self.result()

    # -- the interface that an asyncio task needs

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop or asyncio.get_running_loop()

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context | None = None) -> None:
        loop = self.get_loop()
        self.on_done(lambda: loop.call_soon(callback, self, context=context))

    def remove_done_callback(self, callback: Callable[[Any], object]) -> int:
        """Forget the waiter; there is only one."""
        waited = self._callback is not None
        self._callback = None
        return int(waited)

    def cancelled(self) -> bool:
        return isinstance(self._error, asyncio.CancelledError)

    def exception(self) -> BaseException | None:
        """The error that `result` would raise; for `asyncio.gather` and `asyncio.wait`."""
        if isinstance(self._error, asyncio.CancelledError):
            raise self._error
        return self._error

    def cancel(self, msg: object = None) -> bool:
        """Cancel the waiter. The command still runs; its result is dropped."""
        if self._done:
            return False
        self.set(None, asyncio.CancelledError())
        return True
