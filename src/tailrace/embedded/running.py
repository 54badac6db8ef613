"""How the steps of an operation are done: on this thread, or from the event loop. And who waits for changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from tempfile import SpooledTemporaryFile
from typing import Any, Protocol, TypeVar

from tailrace.command import Command, Query
from tailrace.errors import Error
from tailrace.log.log import CLOSED
from tailrace.log.tail import Tail
from tailrace.tables.export import Exports, ReadExport
from tailrace.tables.operations import SPOOL_BYTES, Snapshot
from tailrace.tables.plain import Steps

R = TypeVar("R")
T = TypeVar("T")


class Executor(Protocol):
    """The part of a database that tables need."""

    @property
    def followers(self) -> Followers: ...
    @property
    def exports(self) -> Exports: ...
    def execute(self, command: Command[T] | Query[T]) -> T: ...
    def aexecute(self, command: Command[T] | Query[T]) -> Awaitable[T]: ...


def run(db: Executor, steps: Steps[R]) -> R:
    """Do the steps of an operation, one after the other; what it returns. It is told of errors where they happen."""
    try:
        wanted = next(steps)
        while True:
            try:
                done = db.execute(wanted)
            except Error as error:
                wanted = steps.throw(error)
            else:
                wanted = steps.send(done)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def arun(db: Executor, steps: Steps[R]) -> R:
    """As `run`, from the event loop."""
    try:
        wanted = next(steps)
        while True:
            try:
                done = await db.aexecute(wanted)
            except Error as error:
                wanted = steps.throw(error)
            else:
                wanted = steps.send(done)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


class Followers:
    """Those who wait for changes of one database, so that they can be told when it closes."""

    def __init__(self, tail: Tail) -> None:
        self._tail = tail
        self._wakes: dict[object, Callable[[], None]] = {}
        self.closed = False

    @contextmanager
    def waiting(self, log: int, wake: Callable[[], None]) -> Iterator[None]:
        """Call `wake` whenever something happens to `log`, on whichever thread that is."""
        one = object()
        self._wakes[one] = wake
        unsubscribe = self._tail.subscribe(log, lambda notices: wake())
        try:
            yield
        finally:
            del self._wakes[one]
            unsubscribe()

    @contextmanager
    def waiting_for(self, logs: Sequence[int], told: Callable[[list[Any]], None]) -> Iterator[None]:
        """Call `told` with the notices of each commit that touched one of `logs`, on whichever thread that is. That the
        database closes is told like the end of a log."""
        one = object()
        self._wakes[one] = lambda: told([CLOSED])
        with ExitStack() as ending:
            ending.callback(self._wakes.pop, one)
            for log in logs:
                ending.callback(self._tail.subscribe(log, told))
            yield

    def close(self) -> None:
        """Let everybody stop waiting; nothing will happen any more."""
        self.closed = True  # first: who comes later sees it before waiting
        for wake in list(self._wakes.values()):
            wake()


def take_snapshot(db: Executor, table: str) -> Snapshot:
    """Copy a table as it is now, page by page; what is large goes to a temporary file, not into memory."""
    export = db.exports.begin(table)
    spool: SpooledTemporaryFile[bytes] = SpooledTemporaryFile(SPOOL_BYTES)  # noqa: SIM115 - the snapshot has it
    try:
        while (page := db.execute(ReadExport(export))) is not None:
            start = 0
            for size in page.sizes:
                spool.write(size.to_bytes(4))
                spool.write(page.body[start : start + size])
                start += size
        spool.seek(0)
    except BaseException:
        spool.close()
        raise
    finally:
        db.exports.end(export)
    return Snapshot(export.sequence, spool)
