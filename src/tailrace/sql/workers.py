"""The pool of SELECT worker processes, and the parent's side of their protocol.

Theory of operation. DuckDB's own memory limit is not reliable (docs/why/0017), so it runs in child processes whose
memory the operating system limits (`worker_main.py`). A message is a JSON header and a body:

    check  number, text                  -> kinds, and the query as a tree (body: JSON)
    schema name, token; batch name       (bodies: Arrow IPC) the sources of the next run; no response
    use    name, token                   a source that was sent before, with this token
    drop   tokens                        sources that are not kept any more; null: all
    run    number, text, caller (body: params)  -> columns, then any number of rows (body: Arrow IPC), then end
    stop   number                        interrupts the run with that number, which ends with an error
    ping                                 -> ready

Instead of any response a worker may send an error: the name of DuckDB's exception, and its text. A worker serves one
statement at a time and is reused. It is killed, and the next statement gets a new one, if it does not stop in time, if
the connection fails, or if it retains too much memory. It exits by itself when this process exits, even by a crash.

The size of a worker's messages is not trusted: every length is checked against a limit.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import os
import pickle
import socket
import subprocess
import sys
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from time import monotonic
from typing import Any, Final

import msgspec
import pyarrow as pa

from tailrace import limits
from tailrace.errors import Invalid, TooLarge, Unavailable
from tailrace.sql.worker_main import HEAD

TOKEN: Final = b"tailrace.token"  # in the metadata of a source: equal tokens are equal rows
THREADS: Final = 2  # of DuckDB in one worker
_CONFIG: Final[dict[str, Any]] = {
    "threads": THREADS,
    "memory_limit": f"{limits.SELECT_DUCKDB_BYTES_MAX // limits.MiB}MiB",
    "temp_directory": "",
    "max_temp_directory_size": "0B",
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
}
_SETTINGS: Final = (
    "SET GLOBAL TimeZone = 'UTC'",
    "SET GLOBAL errors_as_json = true",
    "SET allow_community_extensions = false",
    "SET enable_external_access = false",
    "SET lock_configuration = true",  # must be the last: it freezes the settings
)
_WATCH_S: Final = 0.05  # between two checks of the deadline
_START_S: Final = 60.0  # for a worker to start, on a very busy machine
_STOP_S: Final = 1.0  # for an interrupted query to stop; then its process is killed
_FRESH_S: Final = limits.SELECT_WORKER_IDLE_S / 4
_QUEUED_BYTES_MAX: Final = 64 * limits.KiB  # of messages that are sent together
_HEADER_BYTES_MAX: Final = 4 * limits.MiB  # names and types of many columns, or an error's text
# The environment variables that a worker inherits; the server's secrets are not among them.
_ENVIRONMENT: Final = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME", "LANG", "LC_ALL", "TZ", "TMPDIR")
_PLAIN: Final = (
    type(None), bool, int, float, str, bytes, Decimal, datetime.datetime, datetime.date, datetime.time,
    datetime.timedelta, uuid.UUID,
)  # fmt: skip


class DuckDBError(Exception):
    """An error from DuckDB: the name of its class, and its text."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class WorkerBroken(Exception):
    """The worker's process has exited, or no longer responds."""


class QueryInterrupted(Exception):
    """The time limit was reached, or the statement was cancelled."""


Over = Callable[[], bool]  # whether the statement must end now


class SelectWorker:
    """One child process. Used by one thread at a time."""

    def __init__(self, idle_s: float) -> None:
        """`idle_s`: the process exits after being idle for this long; 0: never."""
        ours, theirs = socket.socketpair()
        settings = {
            "bytes_max": limits.SELECT_WORKER_BYTES_MAX, "config": _CONFIG, "settings": _SETTINGS, "idle_s": idle_s,
        }  # fmt: skip
        program = Path(__file__).with_name("worker_main.py").resolve()
        kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        paths = os.pathsep.join(os.path.abspath(each) for each in sys.path if each)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", str(program), msgspec.json.encode(settings).decode()],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={**kept, "PYTHONPATH": paths},
                    cwd="/",
                    start_new_session=True,  # Ctrl-C in the terminal must reach only this process
                )
            except OSError as error:
                ours.close()
                raise Unavailable(f"cannot start a worker process for SELECT: {error}", code="SELECT_WORKER") from None
        ours.settimeout(_WATCH_S)
        self._sock = ours
        self._number = 0
        self._held: OrderedDict[str, int] = OrderedDict()  # sources that the process has kept, and their bytes
        self._queued = bytearray()  # messages to send with the next one
        self._used_s = 0.0  # when it answered last
        self._torn = False  # a message was sent or received only in part
        self.data_bytes = 0  # the memory of the process after the last statement
        deadline_s = monotonic() + _START_S
        try:
            self._receive(lambda: monotonic() > deadline_s)
        except (WorkerBroken, QueryInterrupted):
            status = self.kill()
            raise Unavailable(
                f"a worker process for SELECT did not start (exit status {status}): {sys.executable} must be a Python "
                "with duckdb and pyarrow installed",
                code="SELECT_WORKER",
            ) from None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> int:
        """Kill the process; returns its exit status."""
        self._process.kill()
        self._sock.close()
        return self._process.wait()

    # -- requests

    def ping(self) -> bool:
        """Whether the process responds. One that does will not exit for being idle before it is used; nor will one that
        answered a moment ago."""
        if self.alive and monotonic() - self._used_s < _FRESH_S:
            return True
        deadline_s = monotonic() + _STOP_S
        try:
            self._send({"op": "ping"}, b"", lambda: monotonic() > deadline_s)
            self._receive(lambda: monotonic() > deadline_s)
        except (WorkerBroken, QueryInterrupted):
            return False
        return True

    def check(self, text: str, over: Over) -> tuple[list[str], bytes]:
        """The kinds of the statements in a text, and DuckDB's parse tree if it is a single query."""
        with self._stopping():
            self._send({"op": "check", "number": self._next(), "text": text}, b"", over)
            header, body = self._answer(over, limits.SELECT_TREE_BYTES_MAX)
            return header["kinds"], bytes(body)

    def run(
        self, text: str, params: Sequence[Any], sources: list[tuple[str, pa.Table]], over: Over, caller: str = ""
    ) -> Generator[Any, None, None]:
        """Yields the names and types of the result's columns, then its batches. Closing the generator stops the query.
        `sources` is emptied, to free its memory as it is sent. `caller` is the value of current_user."""
        bound = pickle.dumps([_parameter(at, each) for at, each in enumerate(params, start=1)])
        with self._stopping():
            held, self._held = self._held, OrderedDict()  # none, if this fails
            if not held:
                self._queue({"op": "drop", "tokens": None}, b"", over)
            while sources:
                name, table = sources.pop()
                self._source(name, table, held, over)
                del table
            self._send({"op": "run", "number": self._next(), "text": text, "caller": caller}, bound, over)
            header, _ = self._answer(over)
            yield [(name, kind) for name, kind in header["columns"]]
            left = limits.SELECT_RESULT_BYTES_MAX
            while True:
                header, body = self._answer(over, left)
                if "end" in header:
                    self._held = held
                    return
                left -= len(body)
                yield from pa.ipc.open_stream(pa.py_buffer(body))

    def _source(self, name: str, table: pa.Table, held: OrderedDict[str, int], over: Over) -> None:
        """Send a source of the next run, unless the worker still has it from an earlier one. What has a token is kept
        there, up to a limit."""
        token = (table.schema.metadata or {}).get(TOKEN, b"").decode()
        if token in held:
            held.move_to_end(token)
            self._queue({"op": "use", "name": name, "token": token}, b"", over)
            return
        size = int(table.nbytes)
        kept = token if token and size <= limits.SELECT_WORKER_HELD_BYTES else ""
        if kept:
            held[kept] = size
            dropped = []
            while sum(held.values()) > limits.SELECT_WORKER_HELD_BYTES:
                dropped.append(held.popitem(last=False)[0])
            if dropped:
                self._queue({"op": "drop", "tokens": dropped}, b"", over)
        self._queue({"op": "schema", "name": name, "token": kept}, table.schema.serialize(), over)
        for batch in table.to_batches():
            self._queue({"op": "batch", "name": name}, batch.serialize(), over)

    def _next(self) -> int:
        self._number += 1
        return self._number

    @contextlib.contextmanager
    def _stopping(self) -> Iterator[None]:
        """Stop the query and discard the rest of its result if the block ends early."""
        try:
            yield
        except (DuckDBError, WorkerBroken):
            raise  # nothing is running
        except BaseException:
            deadline_s = monotonic() + _STOP_S
            try:
                if self._torn:
                    raise WorkerBroken
                self._send({"op": "stop", "number": self._number}, b"", lambda: monotonic() > deadline_s)
                while "end" not in self._answer(lambda: monotonic() > deadline_s, drop=True)[0]:
                    pass
            except DuckDBError:
                pass
            except (WorkerBroken, QueryInterrupted):
                self.kill()
            raise

    # -- messages

    def _queue(self, header: dict[str, Any], body: Any, over: Over) -> None:
        """Send a message together with the next one, if it is small: each would wake the worker."""
        if len(body) + len(self._queued) > _QUEUED_BYTES_MAX:
            self._send(header, body, over)
            return
        head = msgspec.json.encode(header)
        self._queued += HEAD.pack(len(head), len(body)) + head
        self._queued += memoryview(body)

    def _send(self, header: dict[str, Any], body: Any, over: Over) -> None:
        head = msgspec.json.encode(header)
        first = bytes(self._queued) + HEAD.pack(len(head), len(body)) + head
        self._queued.clear()
        if len(body) < _QUEUED_BYTES_MAX:
            first, body = first + memoryview(body).tobytes(), b""
        self._torn = True
        for part in (first, body):
            view, at = memoryview(part), 0
            while at < len(view):
                try:
                    at += self._sock.send(view[at:])
                except TimeoutError:
                    if over():
                        raise QueryInterrupted from None
                except OSError:
                    raise WorkerBroken from None
        self._torn = False

    def _answer(self, over: Over, bytes_max: int = 0, *, drop: bool = False) -> tuple[dict[str, Any], bytearray]:
        header, body = self._receive(over, bytes_max, drop=drop)
        self.data_bytes = header.get("data", 0)
        if "error" in header:
            raise DuckDBError(header["error"], header["text"])
        return header, body

    def _receive(self, over: Over, bytes_max: int = 0, *, drop: bool = False) -> tuple[dict[str, Any], bytearray]:
        self._wait(over)
        self._torn = True
        head, size = HEAD.unpack(self._exactly(HEAD.size, over))
        if head > _HEADER_BYTES_MAX:
            raise WorkerBroken
        header: dict[str, Any] = msgspec.json.decode(self._exactly(head, over))
        if drop or size > bytes_max:
            self._drop(size, over)
            self._torn = False
            if not drop:
                raise too_large()
            return header, bytearray()
        body = self._exactly(size, over)
        self._torn = False
        self._used_s = monotonic()
        return header, body

    def _wait(self, over: Over) -> None:
        """Wait until a message begins."""
        while True:
            try:
                self._sock.recv(1, socket.MSG_PEEK)
                return
            except TimeoutError:
                if over():
                    raise QueryInterrupted from None
            except OSError:
                raise WorkerBroken from None

    def _drop(self, size: int, over: Over) -> None:
        while size > 0:
            size -= len(self._exactly(min(size, limits.MiB), over))

    def _exactly(self, size: int, over: Over) -> bytearray:
        held = bytearray(size)
        view, at = memoryview(held), 0
        while at < size:
            try:
                got = self._sock.recv_into(view[at:])
            except TimeoutError:
                if over():
                    raise QueryInterrupted from None
                continue
            except OSError:
                raise WorkerBroken from None
            if not got:
                raise WorkerBroken
            at += got
        return held


def too_large() -> TooLarge:
    """The error for a result that is too large."""
    return TooLarge(
        f"the result has more than {limits.SELECT_RESULT_ROWS_MAX:,} rows or {limits.SELECT_RESULT_BYTES_MAX:,} bytes; "
        "use LIMIT, or select fewer columns",
        code="SELECT_TOO_LARGE",
    )


def _parameter(number: int, given: Any) -> Any:
    """A parameter as one of the types that are sent to a worker."""
    kind = type(given)
    if kind in _PLAIN:
        return given
    if isinstance(given, list | tuple):
        return [_parameter(number, each) for each in given]
    if isinstance(given, dict):
        return {_parameter(number, name): _parameter(number, each) for name, each in given.items()}
    if isinstance(given, bytearray | memoryview):
        return bytes(given)
    plain: Any
    for plain in (str, int, float, bytes, Decimal):
        if isinstance(given, plain):
            return plain(given)
    raise Invalid(
        f"parameter {number} is a {kind.__name__}, which SELECT does not support; use a text, a number, bytes, a time, "
        "a boolean or None",
        code="SQL_PARAMETERS",
    )


class WorkerPool:
    """The workers of this process, as many as are used at once. One is kept, the others exit when they are idle."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[SelectWorker] = []
        self._kept: SelectWorker | None = None

    @property
    def idle(self) -> int:
        """The number of workers that wait for a statement."""
        return len(self._idle)

    @contextlib.contextmanager
    def worker(self) -> Iterator[SelectWorker]:
        """A worker for exclusive use."""
        worker = self._take()
        try:
            yield worker
        except WorkerBroken:
            status = worker.kill()
            raise TooLarge(
                f"the statement needs more memory than a SELECT may use ({limits.SELECT_WORKER_BYTES_MAX:,} bytes), "
                f"and its process has exited (status {status}); make it more selective, or use LIMIT",
                code="SELECT_TOO_LARGE",
            ) from None
        finally:
            self._give_back(worker)

    def _take(self) -> SelectWorker:
        while True:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            if worker is None:
                return self._start()
            if worker.ping():
                return worker
            worker.kill()

    def _start(self) -> SelectWorker:
        kept = self._kept is None or not self._kept.alive
        worker = SelectWorker(0.0 if kept else limits.SELECT_WORKER_IDLE_S)
        if kept:
            self._kept = worker
        return worker

    def _give_back(self, worker: SelectWorker) -> None:
        if not worker.alive or worker.data_bytes > limits.SELECT_WORKER_KEPT_BYTES:
            worker.kill()
            return
        with self._lock:
            self._idle.append(worker)

    def close(self) -> None:
        """Kill the idle workers."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.kill()

    def forget(self) -> None:
        """Drop the workers in a forked child: they belong to the parent."""
        self._lock = threading.Lock()
        self._idle, self._kept = [], None


POOL: Final = WorkerPool()
atexit.register(POOL.close)
os.register_at_fork(after_in_child=POOL.forget)
