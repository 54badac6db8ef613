"""How the synchronous API waits: queues, signals and workers that are threads. `async_primitives` has the same for
event loops, and describes each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import Final, Generic, TypeVar

T = TypeVar("T")
ASYNC: Final = False


class Queue(Generic[T]):
    """A queue without a bound. `put` is for any thread, and for signal handlers: a `SimpleQueue` cannot find itself
    locked by the thread that they interrupt."""

    def __init__(self) -> None:
        self._items: SimpleQueue[T] = SimpleQueue()
        self.put = self._items.put

    def get(self, timeout_s: float | None = None) -> T:
        """The next item; `Empty` if there is none in time."""
        return self._items.get(timeout=timeout_s)


Signal = threading.Event


class Worker:
    """Runs a function beside the caller, on a thread that does not keep the process alive."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self._thread = threading.Thread(target=work, name=name, daemon=True)
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for its end; a worker that takes longer is left to itself."""
        self._thread.join(timeout_s)


class Workers:
    """Runs up to `concurrency` calls at once: one on the thread of the caller, several on threads of their own."""

    def __init__(self, concurrency: int, on_error: Callable[[], None]) -> None:
        self._pool = ThreadPoolExecutor(concurrency, "tailrace-handler") if concurrency > 1 else None
        self._slots = threading.Semaphore(concurrency)
        self._on_error = on_error
        self._running: set[Future[None]] = set()
        self._error: BaseException | None = None

    def ready(self) -> None:
        self._slots.acquire()

    def release(self) -> None:
        self._slots.release()

    def start(self, work: Callable[..., None], *arguments: object) -> None:
        if self._pool is None:
            return work(*arguments)
        future = self._pool.submit(work, *arguments)
        self._running.add(future)
        future.add_done_callback(self._done)
        return None

    def _done(self, future: Future[None]) -> None:
        self._running.discard(future)
        if (error := future.exception()) is not None:
            self._error = self._error or error
            self._on_error()

    def join(self) -> None:
        """Wait until all calls have ended."""
        while self._running:
            wait(list(self._running))
        if self._error is not None:
            raise self._error

    def cancel(self) -> None:
        """Wait until all calls have ended: threads cannot be cancelled."""
        if self._pool is not None:
            self._pool.shutdown()


Lock = threading.Lock
FAILURES: Final = (Exception,)


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def in_thread(function: Callable[..., T], *arguments: object) -> T:
    return function(*arguments)


def uncancelled(work: Callable[[], T]) -> T:
    return work()


def is_cancellation(error: BaseException) -> bool:
    return False
