"""The handler of `POST /v1/api/sql`: statements in, their results out, as JSON.

    {"sql": "SELECT * FROM orders WHERE total > ?", "params": [100]}
    {"status": "success", "results": [{"statement": ..., "columns": ..., "rows": ..., ...}], "took_ms": 1.5}

Several statements may be sent at once; the first that fails ends the run. Its error comes with its own status, and with
the results of those before it, which stay done. A parameter is a JSON value; `{"$base64": "..."}` stands for bytes.

A request is handled in threads: whoever asks much holds nobody else up. Those that read the text also run what is done
at once. What has a SELECT in it moves on to others, of which one principal has some and never all; and whoever waits
for one of those waits on the event loop, and keeps no thread. A SELECT is interrupted when its client leaves and when
the server stops. Its rows stay in Arrow until they are sent (`sql_reply.py`).
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
from decimal import Decimal
from typing import Any, Final

import msgspec

from tailrace import limits
from tailrace.access import Principal
from tailrace.database import Database
from tailrace.errors import Error, Invalid, NotAllowed, TooLarge, TooMany, Unavailable
from tailrace.http import errors
from tailrace.http.dynamodb.apart import Workers
from tailrace.http.message import Answer, Request
from tailrace.http.sql_reply import Reply, Sender
from tailrace.sql import statements as ast
from tailrace.sql.session import Session, marked, selects

THREADS: Final = 4  # that read texts and run all but SELECT
REQUESTS_MAX: Final = 128  # under way and waiting for those; more is 503
CLOSE_S: Final = 2.0  # how long a SELECT that was interrupted may take to notice
BYTES_KEY: Final = "$base64"


class SqlBody(msgspec.Struct, forbid_unknown_fields=True):
    sql: str
    params: list[Any] = []


_decoder: Final = msgspec.json.Decoder(SqlBody, float_hook=Decimal)  # numbers keep all their digits


class SqlDoor:
    """Answers requests at `/v1/api/sql`; what may be done is up to the commands."""

    def __init__(self, db: Database, *, threads: int = THREADS, requests_max: int = REQUESTS_MAX) -> None:
        self._db = db
        self._workers = Workers(threads, requests_max)
        self._selecting = _Selecting()
        self._sender = Sender()

    async def __call__(self, request: Request, principal: Principal) -> Answer:
        try:
            if request.method != b"POST":
                raise NotAllowed('SQL is sent with POST, as JSON: {"sql": "…"}', allow="POST, OPTIONS")
            if len(request.body) > limits.SQL_BODY_BYTES_MAX:
                raise TooLarge(f"the body is larger than {limits.SQL_BODY_BYTES_MAX} bytes; send less")
            asked = _Asked(self._db, principal)
            size = len(request.body)
            reply = await self._workers.run(lambda: asked.begin(request.body), size)
            if reply is None:
                reply = await self._selecting.run(principal.name, asked.finish, asked.halted, size)
            return self._sender.answer(principal.name, reply)  # a large result may find no room
        except Error as error:
            return self._sender.answer(principal.name, _failed(error))

    def close(self) -> None:
        """Finish what is under way, but for SELECT: that is interrupted. What waits is given up."""
        self._selecting.halt()
        self._workers.close()
        self._selecting.close(CLOSE_S)
        self._sender.close()


class _Asked:
    """One request: begun in one thread, and finished in another if it has a SELECT. `halted` ends that."""

    def __init__(self, db: Database, principal: Principal) -> None:
        self._began = time.perf_counter()
        self.halted = threading.Event()
        self._session = Session(
            lambda command: db.execute(command, principal), self.halted, arrow=True, caller=principal.name
        )
        self._text = ""
        self._statements: Sequence[ast.Statement] = ()

    def begin(self, body: bytes) -> Reply | None:
        """The answer; None if that is for `finish`."""
        try:
            asked = _read(body)
            self._text = asked.sql
            self._statements = self._session.read(asked.sql, [_parameter(each) for each in asked.params])
        except Error as error:
            return _failed(error)
        return None if selects(self._statements) else self.finish()

    def finish(self) -> Reply:
        """Run what was read, and answer."""
        try:
            results = self._session.carry_out(self._text, self._statements)
        except Error as error:
            return _failed(error)
        took_ms = round((time.perf_counter() - self._began) * 1000, 3)
        return Reply(200, {"status": "success"}, results, {"took_ms": took_ms})


class _Line:
    """Those of one principal: how many run, and who waits."""

    __slots__ = ("running", "waiting")

    def __init__(self) -> None:
        self.running = 0
        self.waiting: deque[asyncio.Future[None]] = deque()


class _Job(msgspec.Struct):
    """A request with a SELECT, whose turn it is when a thread is free."""

    work: Callable[[], Reply]
    future: Future[Reply]
    halted: threading.Event
    deadline_s: float  # for it to begin


class _Selecting:
    """Threads for SELECT, shared out among principals. All but `close` is called on the event loop.

    A principal runs no more than some at once; its others wait in a queue of its own, so that nobody waits behind
    somebody else's. The threads are daemons: a process that ends does not wait for a query that hears nothing."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._waiting_bytes = 0
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._under_way: set[threading.Event] = set()
        self._closed = False

    async def run(self, name: str, work: Callable[[], Reply], halted: threading.Event, size: int) -> Reply:
        """What `work` returns, called in a thread when it is this principal's turn. If nobody waits for it any more,
        `halted` is set. `size` is what it keeps in memory until then."""
        deadline_s = time.monotonic() + limits.SELECT_WAIT_S
        line = self._lines.setdefault(name, _Line())
        if line.running >= limits.SELECTS_OF_ONE_MAX:
            await self._turn(name, line, size)
        else:
            line.running += 1
        loop = asyncio.get_running_loop()
        job = _Job(work, Future(), halted, deadline_s)
        # Who waits may go away before it is done; the thread is busy until then.
        job.future.add_done_callback(lambda _: _call(loop, lambda: self._leave(name, line)))
        self._submit(job)
        try:
            return await asyncio.shield(asyncio.wrap_future(job.future))
        except asyncio.CancelledError:
            halted.set()
            raise

    async def _turn(self, name: str, line: _Line, size: int) -> None:
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

    def _leave(self, name: str, line: _Line) -> None:
        while line.waiting:
            turn = line.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        line.running -= 1
        if not line.running and self._lines.get(name) is line:
            del self._lines[name]

    def _submit(self, job: _Job) -> None:
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
                except BaseException as error:  # whoever waits for it gets it
                    job.future.set_exception(error)
            del job  # and with it the result, which may be large

    def halt(self) -> None:
        """Take no more, and interrupt what runs."""
        self._closed = True
        for halted in list(self._under_way):
            halted.set()

    def close(self, timeout_s: float) -> None:
        """Wait so long for what runs."""
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
    """Let the loop do this, if it still runs."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(what)


def _read(body: bytes) -> SqlBody:
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f'the body is not the JSON that is wanted here, {{"sql": "…", "params": […]}}: {error}') from None


def _parameter(given: Any) -> Any:
    if isinstance(given, dict) and given.keys() == {BYTES_KEY}:
        try:
            return b64decode(given[BYTES_KEY], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise Invalid(f"a parameter with {BYTES_KEY} holds base64 text; this one does not") from None
    return given


def _failed(error: Error) -> Reply:
    """The house's answer to an error, and where in the text it is, and what was done before it."""
    response = errors.response(error)
    done, line, column = marked(error)
    told = msgspec.json.decode(response.body)["error"]
    if line is not None:
        told |= {"line": line, "column": column}
    return Reply(response.status, {"status": "error", "error": told}, done, {}, response.headers)
