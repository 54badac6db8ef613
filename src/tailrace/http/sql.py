"""The handler of `POST /v1/api/sql`: statements in, their results out, as JSON.

    {"sql": "SELECT * FROM orders WHERE total > ?", "params": [100]}
    {"status": "success", "results": [{"statement": ..., "columns": ..., "rows": ..., ...}], "took_ms": 1.5}

Several statements may be sent at once; the first that fails ends the run. Its error comes with its own status, and with
the results of those before it, which stay done. A parameter is a JSON value; `{"$base64": "..."}` stands for bytes.

A request is handled in threads, so that a large one does not delay others. One pool parses the text and runs all other
statements than SELECT. Requests with a SELECT move on to another pool, of which one principal has some threads and
never all; they wait for one on the event loop, without a thread. A SELECT is interrupted when its client disconnects
and when the server stops. Its rows stay in Arrow until they are sent (`sql_reply.py`).
"""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import queue
import threading
import time
from base64 import b64decode
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final

import msgspec

from tailrace import limits
from tailrace.access import Principal
from tailrace.database import Database
from tailrace.errors import Error, Invalid, TooLarge, TooMany, Unavailable
from tailrace.http import errors
from tailrace.http.dynamodb.offload import OffloadPool
from tailrace.http.lookups import sql_execute
from tailrace.http.message import Answer, Request
from tailrace.http.sql_reply import Reply, Sender
from tailrace.sql import statements as ast
from tailrace.sql.session import Session, marked, selects
from tailrace.sql.transactions import from_text, to_text
from tailrace.tables.number import decimal_of

THREADS: Final = 4  # that parse, and run all statements but SELECT
REQUESTS_MAX: Final = 128  # under way and waiting for those; more is 503
CLOSE_S: Final = 2.0  # how long a SELECT that was interrupted may take to notice
BYTES_KEY: Final = "$base64"


class SqlBody(msgspec.Struct, forbid_unknown_fields=True):
    sql: str
    params: list[Any] = []
    transaction: str | None = None  # "", or that of the response before: a transaction may span requests


class SqlColumnResponse(msgspec.Struct):
    name: str
    type: str


class SqlResultResponse(msgspec.Struct):
    statement: str
    columns: list[SqlColumnResponse]
    rows: list[Any]
    row_count: int
    message: str


class SqlResponse(msgspec.Struct):
    """For the documentation: `sql_reply.py` encodes it piece by piece."""

    status: str
    results: list[SqlResultResponse]
    took_ms: float
    transaction: str | None = None  # the one that is open, if the request had this field


_decoder: Final = msgspec.json.Decoder(SqlBody, float_hook=decimal_of)  # numbers keep all their digits


class SqlHandler:
    """Answers requests at `/v1/api/sql`; the commands check permissions."""

    def __init__(self, db: Database, *, threads: int = THREADS, requests_max: int = REQUESTS_MAX) -> None:
        self._db = db
        self._workers = OffloadPool(threads, requests_max)
        self._selecting = _SelectThreads()
        self._sender = Sender()

    async def __call__(self, request: Request, principal: Principal) -> Answer:
        try:
            if len(request.body) > limits.SQL_BODY_BYTES_MAX:
                raise TooLarge(f"the body is larger than {limits.SQL_BODY_BYTES_MAX} bytes; send less")
            work = _SqlRequest(self._db, principal)
            size = len(request.body)
            reply = await self._workers.run(lambda: work.begin(request.body), size)
            if reply is None:
                reply = await self._selecting.run(principal.name, work.finish, work.halted, size)
            return self._sender.answer(principal.name, reply)  # a large result may find no room
        except Error as error:
            return self._sender.answer(principal.name, _failed(error))

    def close(self) -> None:
        """Finish requests that are under way; SELECTs are interrupted, and waiting requests are dropped."""
        self._selecting.halt()
        self._workers.close()
        self._selecting.close(CLOSE_S)
        self._sender.close()


class _SqlRequest:
    """One request: begun in one thread, and finished in another if it has a SELECT. `halted` ends that."""

    def __init__(self, db: Database, principal: Principal) -> None:
        self._began = time.perf_counter()
        self.halted = threading.Event()
        self._session = Session(
            sql_execute(db, principal), self.halted, arrow=True, caller=principal.name, access=principal.access
        )
        self._spans = False  # whether a transaction may stay open
        self._text = ""
        self._statements: Sequence[ast.Statement] = ()

    def begin(self, body: bytes) -> Reply | None:
        """The answer; None if that is for `finish`."""
        try:
            request = _read(body)
            self._text = request.sql
            if request.transaction is not None:
                self._spans = True
                self._session.resume(from_text(request.transaction))
            self._statements = self._session.parse(request.sql, [_parameter(each) for each in request.params])
        except Error as error:
            return _failed(error)
        return None if selects(self._statements) else self.finish()

    def finish(self) -> Reply:
        """Run what was read, and answer."""
        try:
            results = self._session.run_statements(self._text, self._statements)
            if not self._spans:
                self._session.check_ended()
        except Error as error:
            if self._spans:
                error.facts = {**error.facts, "transaction": to_text(self._session.transaction)}
            return _failed(error)
        after: dict[str, Any] = {"took_ms": round((time.perf_counter() - self._began) * 1000, 3)}
        if self._spans:
            after["transaction"] = to_text(self._session.transaction)
        return Reply(200, {"status": "success"}, results, after)


class _PrincipalQueue:
    """The SELECTs of one principal: how many run, and those that wait."""

    __slots__ = ("running", "waiting")

    def __init__(self) -> None:
        self.running = 0
        self.waiting: deque[asyncio.Future[None]] = deque()


class _SelectJob(msgspec.Struct):
    """A request with a SELECT, whose turn it is when a thread is free."""

    work: Callable[[], Reply]
    future: Future[Reply]
    halted: threading.Event
    deadline_s: float  # for it to begin


class _SelectThreads:
    """Threads for SELECT, shared out among principals. All but `close` is called on the event loop.

    A principal runs no more than some at once; its others wait in a queue of their own, so that principals do not wait
    for each other. The threads are daemons: a process that ends does not wait for a query that ignores interrupts."""

    def __init__(self) -> None:
        self._lines: dict[str, _PrincipalQueue] = {}
        self._waiting_bytes = 0
        self._jobs: queue.SimpleQueue[_SelectJob | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._under_way: set[threading.Event] = set()
        self._closed = False

    async def run(self, name: str, work: Callable[[], Reply], halted: threading.Event, size: int) -> Reply:
        """Run `work` in a thread when it is this principal's turn. If the wait is cancelled, `halted` is set. `size` is
        the memory that it holds until then."""
        deadline_s = time.monotonic() + limits.SELECT_WAIT_S
        line = self._lines.setdefault(name, _PrincipalQueue())
        if line.running >= limits.SELECTS_OF_ONE_MAX:
            await self._turn(name, line, size)
        else:
            line.running += 1
        loop = asyncio.get_running_loop()
        job = _SelectJob(work, Future(), halted, deadline_s)
        # The wait may be cancelled before it is done; the thread is busy until then.
        job.future.add_done_callback(lambda _: _call(loop, lambda: self._leave(name, line)))
        self._submit(job)
        try:
            return await asyncio.shield(asyncio.wrap_future(job.future))
        except asyncio.CancelledError:
            halted.set()
            raise

    async def _turn(self, name: str, line: _PrincipalQueue, size: int) -> None:
        """Wait for one of this principal's to end."""
        if (
            len(line.waiting) >= limits.SELECTS_WAITING_MAX
            or self._waiting_bytes + size > limits.SELECTS_WAITING_BYTES_MAX
        ):
            raise TooMany(
                f"{line.running} requests with SELECT of {name!r} are running and {len(line.waiting)} wait; "
                "try again later"
            )
        turn = asyncio.get_running_loop().create_future()
        line.waiting.append(turn)
        self._waiting_bytes += size
        try:
            await asyncio.wait((turn,), timeout=limits.SELECT_WAIT_S)
            if not turn.done():
                raise _busy()
        except (asyncio.CancelledError, Unavailable):
            if turn.done():
                self._leave(name, line)  # it was this one's turn just now
            else:
                line.waiting.remove(turn)
            raise
        finally:
            self._waiting_bytes -= size

    def _leave(self, name: str, line: _PrincipalQueue) -> None:
        while line.waiting:
            turn = line.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        line.running -= 1
        if not line.running and self._lines.get(name) is line:
            del self._lines[name]

    def _submit(self, job: _SelectJob) -> None:
        if self._closed:
            job.future.set_exception(_stopping())
            return
        if len(self._threads) < limits.SELECT_WORKERS_MAX:
            thread = threading.Thread(target=self._serve, name=f"tailrace-select-{len(self._threads) + 1}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._under_way.add(job.halted)
        job.future.add_done_callback(lambda _: self._under_way.discard(job.halted))
        self._jobs.put(job)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._closed:
                job.future.set_exception(_stopping())
            elif time.monotonic() > job.deadline_s:
                job.future.set_exception(_busy())
            elif job.future.set_running_or_notify_cancel():
                try:
                    job.future.set_result(job.work())
                except BaseException as error:  # it is raised where the result is awaited
                    job.future.set_exception(error)
            del job  # and with it the result, which may be large

    def halt(self) -> None:
        """Take no more requests, and interrupt those that run."""
        self._closed = True
        for halted in list(self._under_way):
            halted.set()

    def close(self, timeout_s: float) -> None:
        """Wait so long for the threads."""
        for _ in self._threads:
            self._jobs.put(None)
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))


def _stopping() -> Unavailable:
    return Unavailable("the server stops; try again later", code="STOPPING")


def _busy() -> Unavailable:
    return Unavailable(
        f"the request waited {limits.SELECT_WAIT_S:g} s for other SELECT statements to end; try again later",
        code="SELECT_BUSY",
    )


def _call(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    """Call this on the loop, if it still runs."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(what)


def _read(body: bytes) -> SqlBody:
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f'the body is not JSON of the expected form, {{"sql": "…", "params": […]}}: {error}') from None


def _parameter(given: Any) -> Any:
    if isinstance(given, dict) and given.keys() == {BYTES_KEY}:
        try:
            return b64decode(given[BYTES_KEY], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise Invalid(f"a parameter with {BYTES_KEY} holds base64 text; this one does not") from None
    return given


def _failed(error: Error) -> Reply:
    """The error response, with its place in the text, and the results of the statements before it."""
    response = errors.response(error)
    done, line, column = marked(error)
    facts = msgspec.json.decode(response.body)["error"]
    if line is not None:
        facts |= {"line": line, "column": column}
    return Reply(response.status, {"status": "error", "error": facts}, done, {}, response.headers)
