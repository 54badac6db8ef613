"""Threads for requests that take so long that the event loop must not wait for them.

A request is handled there whole: parsed, checked, run and encoded. Its operation is the same coroutine as on the loop,
with a context that answers at once, so it is stepped to its end without ever waiting.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

from tailrace.errors import Unavailable
from tailrace.limits import BODY_BYTES_MAX, MiB

THREADS: Final = 4  # that work at once: they share one interpreter, and wait for commits
REQUESTS_MAX: Final = 256  # under way and waiting; more is 503
REQUEST_BYTES_MAX: Final = 256 * MiB  # and the bodies they hold

T = TypeVar("T")


class Workers:
    """A few threads and a queue with an end."""

    def __init__(self, threads: int = THREADS, requests_max: int = REQUESTS_MAX) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tailrace-request")
        self._requests_max = requests_max
        self._lock = threading.Lock()
        self._requests = 0
        self._bytes = 0

    async def run(self, work: Callable[[], T], size: int = 0) -> T:
        """What `work` returns, called in a thread; `size` is how many bytes it holds until then."""
        with self._lock:
            if self._requests >= self._requests_max or (
                self._requests and self._bytes + size > max(REQUEST_BYTES_MAX, BODY_BYTES_MAX)
            ):
                raise Unavailable("too many large requests are under way; retry in a moment", code="QUEUE_FULL")
            self._requests += 1
            self._bytes += size

        def done(_: Future[T]) -> None:
            with self._lock:
                self._requests -= 1
                self._bytes -= size

        future = self._pool.submit(work)
        future.add_done_callback(done)  # of the thread's own: who waits may go away before
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Finish what is under way; what waits is given up."""
        self._pool.shutdown(cancel_futures=True)


def stepped(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing but a turn, which it gets."""
    try:
        while True:
            waits_for = coroutine.send(None)
            assert waits_for is None, f"a request in a thread waits for {waits_for!r}"
    except StopIteration as stop:
        result: T = stop.value
        return result
