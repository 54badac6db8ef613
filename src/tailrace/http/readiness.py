"""Whether a server of a cluster can read its database. `/readyz` asks, since commits of the leader do not tell.

A query runs in a thread of its own, one at a time, and its outcome serves requests for READY_CHECK_S; a failure for
less, so that a short interruption does not appear longer to a load balancer. A database that has not answered within
READY_WAIT_S cannot be read; the thread goes on to wait, and the next request looks whether it has ended.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from tailrace import limits
from tailrace.database import Database
from tailrace.errors import Error, Unavailable
from tailrace.jobs.identity import Identify


class ReadCheck:
    """The check of one database. For the event loop's thread."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._threads: ThreadPoolExecutor | None = None
        self._running: asyncio.Future[Error | None] | None = None
        self._began_s = 0.0
        self._ended_s = float("-inf")
        self._failure: Error | None = None

    @property
    def needed(self) -> bool:
        """Whether reads may fail while the writer's commits do not."""
        return self._db.forwarder is not None and self._db.blocking

    async def failure(self) -> Error | None:
        """Why the database cannot be read; None: it can."""
        loop = asyncio.get_running_loop()
        now_s, running = loop.time(), self._running
        if running is None:
            if now_s - self._ended_s < limits.READY_CHECK_S * (1.0 if self._failure is None else 0.2):
                return self._failure
            if self._threads is None:
                self._threads = ThreadPoolExecutor(1, "tailrace-ready")
            self._began_s = now_s
            self._running = running = loop.run_in_executor(self._threads, self._read)
            running.add_done_callback(self._done)
        await asyncio.wait((running,), timeout=max(self._began_s + limits.READY_WAIT_S - now_s, 0.0))
        if not running.done():
            return Unavailable(f"the database has not answered a query for {limits.READY_WAIT_S:g} s or more")
        return self._failure

    def _read(self) -> Error | None:
        try:
            self._db.execute(Identify())
        except Error as error:
            return error
        return None

    def _done(self, running: asyncio.Future[Error | None]) -> None:
        self._running, self._ended_s = None, asyncio.get_running_loop().time()
        error = None if running.cancelled() else running.exception()
        if running.cancelled() or error is not None:
            self._failure = Unavailable(f"the database cannot be read: {error or 'the server stops'}")
        else:
            self._failure = running.result()

    def close(self) -> None:
        """Begin no more checks."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
