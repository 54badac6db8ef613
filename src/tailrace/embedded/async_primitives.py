"""How the asynchronous API waits: queues, signals and workers of an event loop.

`primitives` has the same for threads. These two modules are the only part of the Python API that is written twice: the
code in `aio` uses this one, the code that is generated from it uses the other. Calls that other threads and signal
handlers may make say so.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from queue import Empty
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")
ASYNC: Final = True  # tools/make-sync leaves the branch of `if ASYNC` that applies


class AsyncQueue(Generic[T]):
    """A queue without a bound. `put` is for any thread, and for signal handlers; `get` for one event loop."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    def put(self, item: T) -> None:
        self._items.append(item)
        for event, loop in list(self._waiting.items()):
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits there any more
                loop.call_soon_threadsafe(event.set)

    async def get(self, timeout_s: float | None = None) -> T:
        """The next item; `Empty` if there is none in time."""
        if not self._items:
            event = asyncio.Event()
            self._waiting[event] = asyncio.get_running_loop()  # before looking again: nothing is missed
            try:
                async with asyncio.timeout(timeout_s):
                    while not self._items:
                        await event.wait()
                        event.clear()
            except TimeoutError:
                if not self._items:
                    raise Empty from None
            finally:
                del self._waiting[event]
        return self._items.popleft()


class AsyncSignal:
    """Wakes the one that waits. `set` is for any thread, the rest for one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits here any more
            self._loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        self._event.clear()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it was set in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        return True


class AsyncWorker:
    """Runs a function beside the caller."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._task = asyncio.create_task(work(), name=name)

    async def join(self, timeout_s: float) -> None:
        """Wait for its end; a worker that takes longer is cancelled."""
        done, _ = await asyncio.wait({self._task}, timeout=timeout_s)
        if not done:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=timeout_s)


class AsyncWorkers:
    """Runs up to `concurrency` calls at once. The first error ends the others' welcome: `on_error` is called, and
    `join` raises it."""

    def __init__(self, concurrency: int, on_error: Callable[[], None]) -> None:
        self._slots = asyncio.Semaphore(concurrency)
        self._on_error = on_error
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None

    async def ready(self) -> None:
        """Wait until a call can begin at once; `start` follows, or `release`."""
        await self._slots.acquire()

    def release(self) -> None:
        self._slots.release()

    async def start(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> None:
        task = asyncio.create_task(work(*arguments))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = self._error or error
            self._on_error()

    async def join(self) -> None:
        """Wait until all calls have ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self._error is not None:
            raise self._error

    async def cancel(self) -> None:
        """Cancel the calls and wait until they have ended, however often this is cancelled itself: only then it is
        known which messages are done."""
        cancelled = False
        for task in self._tasks:
            task.cancel()
        while self._tasks:
            try:
                await asyncio.wait(self._tasks)
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError


AsyncLock = asyncio.Lock
Ended = asyncio.Event
FAILURES: Final = (Exception, asyncio.CancelledError)  # of a handler; it may wait for something that is cancelled


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def in_thread(function: Callable[..., T], *arguments: object) -> T:
    """Call a function that blocks, in a thread."""
    return await asyncio.to_thread(function, *arguments)


async def uncancelled(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Call it and wait for its end, even if this task is cancelled meanwhile; then raise that."""
    running = asyncio.ensure_future(work())
    cancelled = False
    while not running.done():
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            cancelled = True
            if running.cancelled():
                break
        except BaseException:  # noqa: S112 - the result is looked at below
            continue
    if cancelled:
        raise asyncio.CancelledError
    return running.result()


async def undone_if_cancelled(waiting: Awaitable[T], undo: Callable[[T], object]) -> T:
    """The result; if this task is cancelled before it arrives, it is undone when it does."""

    async def result() -> T:
        return await waiting

    def settle(done: asyncio.Future[T]) -> None:
        if not done.cancelled() and done.exception() is None:
            undo(done.result())

    running = asyncio.ensure_future(result())
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        running.add_done_callback(settle)
        raise


async def result_of(returned: object) -> object:
    """The result of a handler: an awaitable, or a future of a pool of threads, is waited for."""
    if isinstance(returned, Future):
        returned = asyncio.wrap_future(returned)
    return await returned if inspect.isawaitable(returned) else returned


def is_cancellation(error: BaseException) -> bool:
    """Whether this task is being cancelled, in contrast to something that it waited for."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
