"""Threads for requests that would block the event loop for too long.

Such a request is parsed, checked, run and encoded in a thread. Its operation is the same coroutine as on the event
loop, but with a context that executes commands synchronously, so that it runs to its end without suspending.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

from tailrace.errors import Unavailable
from tailrace.limits import BODY_BYTES_MAX, MiB

THREADS: Final = 4  # they share one interpreter lock, and mostly wait for commits
REQUESTS_MAX: Final = 256  # running and queued; more is 503
REQUEST_BYTES_MAX: Final = 256 * MiB  # of the bodies of these requests

T = TypeVar("T")


class OffloadPool:
    """A few threads with a bounded queue."""

    def __init__(self, threads: int = THREADS, requests_max: int = REQUESTS_MAX) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tailrace-request")
        self._requests_max = requests_max
        self._lock = threading.Lock()
        self._requests = 0
        self._bytes = 0

    async def run(self, work: Callable[[], T], size: int = 0) -> T:
        """Call `work` in a thread and return its result; `size` is the memory, in bytes, that it holds meanwhile."""
        with self._lock:
            if self._requests >= self._requests_max or (
                self._requests and self._bytes + size > max(REQUEST_BYTES_MAX, BODY_BYTES_MAX)
            ):
                raise Unavailable("too many large requests are in progress; retry in a moment", code="QUEUE_FULL")
            self._requests += 1
            self._bytes += size

        def done(_: Future[T]) -> None:
            with self._lock:
                self._requests -= 1
                self._bytes -= size

        future = self._pool.submit(work)
        future.add_done_callback(done)  # on the thread's future: the caller may be cancelled before it is done
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Finish the running requests and cancel the queued ones."""
        self._pool.shutdown(cancel_futures=True)


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends except to yield to the event loop; returns its result."""
    try:
        while True:
            waits_for = coroutine.send(None)
            assert waits_for is None, f"a request in a thread waits for {waits_for!r}"
    except StopIteration as stop:
        result: T = stop.value
        return result
