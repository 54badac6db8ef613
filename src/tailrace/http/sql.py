"""The door of `POST /v1/api/sql`: statements in, their results out, as JSON.

    {"sql": "SELECT * FROM orders WHERE total > ?", "params": [100]}
    {"status": "success", "results": [{"statement": ..., "columns": ..., "rows": ..., ...}], "took_ms": 1.5}

Several statements may be sent at once; the first that fails ends the run. Its error comes with its own status, and with
the results of those before it, which stay done. A parameter is a JSON value; `{"$base64": "..."}` stands for bytes.

A request is handled in threads: whoever asks much holds nobody else up. Those that read the text also run what is done
at once. What has a SELECT in it moves on to others, of which one principal has some and never all; and whoever waits
for one of those waits on the event loop, and keeps no thread. When the server stops, a SELECT is interrupted.
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
from tailrace.http.message import Headers, Request, Response
from tailrace.sql import statements as ast
from tailrace.sql.session import Result, Session, marked, selects

THREADS: Final = 4  # that read texts and run all but SELECT
REQUESTS_MAX: Final = 128  # under way and waiting for those; more is 503
SELECT_THREADS: Final = 4  # that run SELECT
SELECTS_OF_ONE_MAX: Final = 2  # of those, for one principal at once
SELECTS_WAITING_MAX: Final = 16  # of one principal; more is 429
CLOSE_S: Final = 2.0  # how long a SELECT that was interrupted may take to notice
BYTES_KEY: Final = "$base64"

_JSON: Final[Headers] = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]


class SqlBody(msgspec.Struct, forbid_unknown_fields=True):
    sql: str
    params: list[Any] = []


_decoder: Final = msgspec.json.Decoder(SqlBody, float_hook=Decimal)  # numbers keep all their digits
_encoder: Final = msgspec.json.Encoder(decimal_format="number", enc_hook=str)


class SqlDoor:
    """Answers requests at `/v1/api/sql`; what may be done is up to the commands."""

    def __init__(self, db: Database, *, threads: int = THREADS, requests_max: int = REQUESTS_MAX) -> None:
        self._db = db
        self._workers = Workers(threads, requests_max)
        self._halted = threading.Event()
        self._selecting = _Selecting()

    async def __call__(self, request: Request, principal: Principal) -> Response:
        try:
            if request.method != b"POST":
                raise NotAllowed('SQL is sent with POST, as JSON: {"sql": "…"}', allow="POST, OPTIONS")
            if len(request.body) > limits.SQL_BODY_BYTES_MAX:
                raise TooLarge(f"the body is larger than {limits.SQL_BODY_BYTES_MAX} bytes; send less")
            asked = _Asked(self._db, principal, self._halted)
            answer = await self._workers.run(lambda: asked.begin(request.body), len(request.body))
            return answer if answer is not None else await self._selecting.run(principal.name, asked.finish)
        except Error as error:
            return _failed(error)

    def close(self) -> None:
        """Finish what is under way, but for SELECT: that is interrupted. What waits is given up."""
        self._halted.set()
        self._workers.close()
        self._selecting.close(CLOSE_S)


class _Asked:
    """One request: begun in one thread, and finished in another if it has a SELECT."""

    def __init__(self, db: Database, principal: Principal, halted: threading.Event) -> None:
        self._began = time.perf_counter()
        self._session = Session(lambda command: db.execute(command, principal), halted)
        self._text = ""
        self._statements: Sequence[ast.Statement] = ()

    def begin(self, body: bytes) -> Response | None:
        """The answer; None if that is for `finish`."""
        try:
            asked = _read(body)
            self._text = asked.sql
            self._statements = self._session.read(asked.sql, [_parameter(each) for each in asked.params])
        except Error as error:
            return _failed(error)
        return None if selects(self._statements) else self.finish()

    def finish(self) -> Response:
        """Run what was read, and answer."""
        try:
            results = self._session.carry_out(self._text, self._statements)
        except Error as error:
            return _failed(error)
        took_ms = round((time.perf_counter() - self._began) * 1000, 3)
        answer = {"status": "success", "results": [_shown(each) for each in results], "took_ms": took_ms}
        return Response(200, _JSON, _encoder.encode(answer))


class _Line:
    """Those of one principal: how many run, and who waits."""

    __slots__ = ("running", "waiting")

    def __init__(self) -> None:
        self.running = 0
        self.waiting: deque[asyncio.Future[None]] = deque()


class _Selecting:
    """Threads for SELECT, shared out among principals. All but `close` is called on the event loop.

    The threads are daemons: a process that ends does not wait for a query that hears nothing."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Response], Future[Response]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = False

    async def run(self, name: str, work: Callable[[], Response]) -> Response:
        """What `work` returns, called in a thread when it is this principal's turn."""
        line = self._lines.setdefault(name, _Line())
        if line.running >= SELECTS_OF_ONE_MAX:
            if len(line.waiting) >= SELECTS_WAITING_MAX:
                raise TooMany(
                    f"{SELECTS_OF_ONE_MAX} SELECT statements of {name!r} are running and {SELECTS_WAITING_MAX} wait; "
                    "try again later"
                )
            turn = asyncio.get_running_loop().create_future()
            line.waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._leave(name, line)  # it was this one's turn just now
                else:
                    line.waiting.remove(turn)
                raise
        else:
            line.running += 1
        loop = asyncio.get_running_loop()
        future: Future[Response] = Future()
        # Who waits may go away before it is done; the thread is busy until then.
        future.add_done_callback(lambda _: _call(loop, lambda: self._leave(name, line)))
        self._submit(work, future)
        return await asyncio.shield(asyncio.wrap_future(future))

    def _leave(self, name: str, line: _Line) -> None:
        while line.waiting:
            turn = line.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        line.running -= 1
        if not line.running and self._lines.get(name) is line:
            del self._lines[name]

    def _submit(self, work: Callable[[], Response], future: Future[Response]) -> None:
        if self._closed:
            raise Unavailable("the server stops; try again later", code="STOPPING")
        if len(self._threads) < SELECT_THREADS:
            thread = threading.Thread(target=self._serve, name=f"tailrace-select-{len(self._threads) + 1}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put((work, future))

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, future = job
            if self._closed:
                future.set_exception(Unavailable("the server stops; try again later", code="STOPPING"))
            elif future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:  # whoever waits for it gets it
                    future.set_exception(error)

    def close(self, timeout_s: float) -> None:
        """Take no more, and wait so long for what runs."""
        self._closed = True
        for _ in self._threads:
            self._jobs.put(None)
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))


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


def _shown(result: Result) -> dict[str, Any]:
    return {
        **result.facts,
        "statement": result.statement,
        "columns": [{"name": column.name, "type": column.type} for column in result.columns],
        "rows": result.rows,
        "row_count": result.row_count,
        "message": result.message,
    }


def _failed(error: Error) -> Response:
    """The house's answer to an error, and where in the text it is, and what was done before it."""
    response = errors.response(error)
    done, line, column = marked(error)
    told = msgspec.json.decode(response.body)["error"]
    if line is not None:
        told |= {"line": line, "column": column}
    body = {"status": "error", "error": told, "results": [_shown(each) for each in done]}
    return Response(response.status, response.headers, _encoder.encode(body))
