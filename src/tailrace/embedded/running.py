"""The database as its operations see it: they execute commands, wait for changes and copy tables."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tailrace.command import Command, Query
from tailrace.embedded.requests import AckRequest, ExtendRequest
from tailrace.log.log import CLOSED

if TYPE_CHECKING:  # clients import this module, and have no use for these
    from tailrace.clock import Clock
    from tailrace.log.tail import Tail
    from tailrace.tables.export import Exports
    from tailrace.tables.operations import TableSnapshot

T = TypeVar("T")


class Executor(Protocol):
    """The part of a database that its operations need."""

    @property
    def followers(self) -> Followers: ...
    @property
    def exports(self) -> Exports: ...
    @property
    def clock(self) -> Clock: ...
    def execute(self, command: Command[T] | Query[T]) -> T: ...
    def aexecute(self, command: Command[T] | Query[T]) -> Awaitable[T]: ...
    def send_ack(self, request: AckRequest) -> int: ...
    def send_extend(self, request: ExtendRequest) -> int: ...


class AsyncFacade:
    """The base of the asynchronous operations: they belong to a database (`db.aio`)."""

    def __init__(self, db: Executor) -> None:
        self._db = db


class Facade:
    """The base of the synchronous operations: they are methods of the database itself."""

    if TYPE_CHECKING:
        clock: Clock
        exports: Exports

        @property
        def followers(self) -> Followers: ...
        def execute(self, command: Command[T] | Query[T]) -> T: ...
        def aexecute(self, command: Command[T] | Query[T]) -> Awaitable[T]: ...
        def send_ack(self, request: AckRequest) -> int: ...
        def send_extend(self, request: ExtendRequest) -> int: ...


class Followers:
    """The callers that wait for changes of one database; they are woken when it closes."""

    def __init__(self, tail: Tail) -> None:
        self._tail = tail
        self._wakes: dict[object, Callable[[], None]] = {}
        self.closed = False

    @contextmanager
    def waiting(self, log: int, wake: Callable[[], None]) -> Iterator[None]:
        """Call `wake` whenever something happens to `log`, on the thread that committed."""
        one = object()
        self._wakes[one] = wake
        unsubscribe = self._tail.subscribe(log, lambda notices: wake())
        try:
            yield
        finally:
            del self._wakes[one]
            unsubscribe()

    @contextmanager
    def waiting_for(self, logs: Sequence[int], notify: Callable[[list[Any]], None]) -> Iterator[None]:
        """Call `notify` with the notices of each commit that touched one of `logs`, on the thread that committed.
        The closing of the database is reported like the end of a log."""
        one = object()
        self._wakes[one] = lambda: notify([CLOSED])
        with ExitStack() as ending:
            ending.callback(self._wakes.pop, one)
            for log in logs:
                ending.callback(self._tail.subscribe(log, notify))
            yield

    def close(self) -> None:
        """Wake all that wait; nothing will happen any more."""
        self.closed = True  # first: a later caller sees it before it waits
        for wake in list(self._wakes.values()):
            wake()


def take_snapshot(db: Executor, table: str) -> TableSnapshot:
    """Copy a table as it is now, page by page; a large one goes to a temporary file, not into memory."""
    from tempfile import SpooledTemporaryFile

    from tailrace.tables.export import ReadExport
    from tailrace.tables.operations import SPOOL_BYTES, TableSnapshot

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
    return TableSnapshot(export.sequence, spool)
