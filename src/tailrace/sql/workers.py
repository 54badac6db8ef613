"""SELECT workers, seen from the process that asks: started, used one statement at a time, stopped, replaced.

Theory of operation. DuckDB's own memory limit does not hold (docs/why/0017), so it runs in child processes whose memory
the operating system limits (`worker_main.py`). A message is a header, which is JSON, and a body:

    check  number, text                  -> kinds, and the query as a tree (body: JSON)
    schema name; batch name              (bodies: Arrow IPC) the sources of the next run; no answer
    run    number, text, caller (body: params)  -> columns, then rows (body: Arrow IPC) again and again, then end
    stop   number                        ends the run with that number, by its error
    ping                                 -> ready

or, in the place of any answer, error: the name of DuckDB's exception, and its text. A worker serves one statement at a
time and is then used again. It is ended, and the next statement gets a new one, when it does not stop in time, when it
broke, and when it holds on to much memory. It ends by itself when this process does, however that ends.

Nothing that a worker sends is trusted to be small: every length is compared with what may still come.
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
    "SET lock_configuration = true",  # last: from here on they stay so
)
_WATCH_S: Final = 0.05  # between two looks at the clock
_START_S: Final = 60.0  # for a worker to start, on a machine that is very busy
_STOP_S: Final = 1.0  # for a query that was interrupted to notice; then its process is killed
_HEADER_BYTES_MAX: Final = 4 * limits.MiB  # names and types of many columns, or an error's text
# What a worker needs of the environment; secrets of the server are not among it.
_ENVIRONMENT: Final = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME", "LANG", "LC_ALL", "TZ", "TMPDIR")
_PLAIN: Final = (
    type(None), bool, int, float, str, bytes, Decimal, datetime.datetime, datetime.date, datetime.time,
    datetime.timedelta, uuid.UUID,
)  # fmt: skip


class Failed(Exception):
    """DuckDB's error: the name of its class, and its text."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Broken(Exception):
    """The worker's process has ended, or does not answer any more."""


class Interrupted(Exception):
    """The time is over, or nobody waits any more."""


Over = Callable[[], bool]  # whether the statement has to end now


class Worker:
    """One child process. Used by one thread at a time."""

    def __init__(self, idle_s: float) -> None:
        """`idle_s`: end when not used for so long; 0: never."""
        ours, theirs = socket.socketpair()
        told = {"bytes_max": limits.SELECT_WORKER_BYTES_MAX, "config": _CONFIG, "settings": _SETTINGS, "idle_s": idle_s}
        program = Path(__file__).with_name("worker_main.py").resolve()
        kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        paths = os.pathsep.join(os.path.abspath(each) for each in sys.path if each)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", str(program), msgspec.json.encode(told).decode()],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={**kept, "PYTHONPATH": paths},
                    cwd="/",
                    start_new_session=True,  # a Ctrl-C in the terminal is for this process alone
                )
            except OSError as error:
                ours.close()
                raise Unavailable(f"a process for SELECT cannot be started: {error}", code="SELECT_WORKER") from None
        ours.settimeout(_WATCH_S)
        self._sock = ours
        self._number = 0
        self._torn = False  # part of a message was sent or received
        self.data_bytes = 0  # the memory that the process had after the last statement
        deadline_s = monotonic() + _START_S
        try:
            self._receive(lambda: monotonic() > deadline_s)
        except (Broken, Interrupted):
            status = self.kill()
            raise Unavailable(
                f"a process for SELECT did not start (exit status {status}): {sys.executable} must be the Python that "
                "runs this program, with duckdb and pyarrow",
                code="SELECT_WORKER",
            ) from None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> int:
        """End the process; its exit status."""
        self._process.kill()
        self._sock.close()
        return self._process.wait()

    # -- requests

    def ping(self) -> bool:
        """Whether it answers. One that does will not end for being idle before it is used."""
        deadline_s = monotonic() + _STOP_S
        try:
            self._send({"op": "ping"}, b"", lambda: monotonic() > deadline_s)
            self._receive(lambda: monotonic() > deadline_s)
        except (Broken, Interrupted):
            return False
        return True

    def check(self, text: str, over: Over) -> tuple[list[str], bytes]:
        """The kinds of the statements in a text, and the query as DuckDB reads it, if it is one."""
        with self._stopping():
            self._send({"op": "check", "number": self._next(), "text": text}, b"", over)
            header, body = self._answer(over, limits.SELECT_TREE_BYTES_MAX)
            return header["kinds"], bytes(body)

    def run(
        self, text: str, params: Sequence[Any], sources: list[tuple[str, pa.Table]], over: Over, caller: str = ""
    ) -> Generator[Any, None, None]:
        """The names and types of the answer's columns, then its batches. Whoever stops reading stops the query.
        `sources` is emptied: the worker has them then. `caller` is what current_user says."""
        bound = pickle.dumps([_parameter(at, each) for at, each in enumerate(params, start=1)])
        with self._stopping():
            while sources:
                name, table = sources.pop()
                self._send({"op": "schema", "name": name}, table.schema.serialize(), over)
                for batch in table.to_batches():
                    self._send({"op": "batch", "name": name}, batch.serialize(), over)
                del table
            self._send({"op": "run", "number": self._next(), "text": text, "caller": caller}, bound, over)
            header, _ = self._answer(over)
            yield [(name, kind) for name, kind in header["columns"]]
            left = limits.SELECT_RESULT_BYTES_MAX
            while True:
                header, body = self._answer(over, left)
                if "end" in header:
                    return
                left -= len(body)
                yield from pa.ipc.open_stream(pa.py_buffer(body))

    def _next(self) -> int:
        self._number += 1
        return self._number

    @contextlib.contextmanager
    def _stopping(self) -> Iterator[None]:
        """Whatever ends the use of an answer before its end, stops the query; what is left of its answer is dropped."""
        try:
            yield
        except (Failed, Broken):
            raise  # there is nothing to stop
        except BaseException:
            deadline_s = monotonic() + _STOP_S
            try:
                if self._torn:
                    raise Broken
                self._send({"op": "stop", "number": self._number}, b"", lambda: monotonic() > deadline_s)
                while "end" not in self._answer(lambda: monotonic() > deadline_s, drop=True)[0]:
                    pass
            except Failed:
                pass
            except (Broken, Interrupted):
                self.kill()
            raise

    # -- messages

    def _send(self, header: dict[str, Any], body: Any, over: Over) -> None:
        head = msgspec.json.encode(header)
        self._torn = True
        for part in (HEAD.pack(len(head), len(body)) + head, body):
            view, at = memoryview(part), 0
            while at < len(view):
                try:
                    at += self._sock.send(view[at:])
                except TimeoutError:
                    if over():
                        raise Interrupted from None
                except OSError:
                    raise Broken from None
        self._torn = False

    def _answer(self, over: Over, bytes_max: int = 0, *, drop: bool = False) -> tuple[dict[str, Any], bytearray]:
        header, body = self._receive(over, bytes_max, drop=drop)
        self.data_bytes = header.get("data", 0)
        if "error" in header:
            raise Failed(header["error"], header["text"])
        return header, body

    def _receive(self, over: Over, bytes_max: int = 0, *, drop: bool = False) -> tuple[dict[str, Any], bytearray]:
        self._wait(over)
        self._torn = True
        head, size = HEAD.unpack(self._exactly(HEAD.size, over))
        if head > _HEADER_BYTES_MAX:
            raise Broken
        header: dict[str, Any] = msgspec.json.decode(self._exactly(head, over))
        if drop or size > bytes_max:
            self._drop(size, over)
            self._torn = False
            if not drop:
                raise too_large()
            return header, bytearray()
        body = self._exactly(size, over)
        self._torn = False
        return header, body

    def _wait(self, over: Over) -> None:
        """Return when a message begins."""
        while True:
            try:
                self._sock.recv(1, socket.MSG_PEEK)
                return
            except TimeoutError:
                if over():
                    raise Interrupted from None
            except OSError:
                raise Broken from None

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
                    raise Interrupted from None
                continue
            except OSError:
                raise Broken from None
            if not got:
                raise Broken
            at += got
        return held


def too_large() -> TooLarge:
    """The error that a result is too large."""
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
        f"parameter {number} is a {kind.__name__}, which SELECT does not take; give a text, a number, bytes, a time, "
        "true, false or None",
        code="SQL_PARAMETERS",
    )


class Pool:
    """The workers of this process; as many as are used at once. One is kept, others end when they are idle."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._kept: Worker | None = None

    @contextlib.contextmanager
    def worker(self) -> Iterator[Worker]:
        """A worker that nobody else uses."""
        worker = self._take()
        try:
            yield worker
        except Broken:
            status = worker.kill()
            raise TooLarge(
                f"the statement needs more memory than a SELECT may use ({limits.SELECT_WORKER_BYTES_MAX:,} bytes), "
                f"and its process has ended (exit status {status}); narrow it, or use LIMIT",
                code="SELECT_TOO_LARGE",
            ) from None
        finally:
            self._give_back(worker)

    def _take(self) -> Worker:
        while True:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            if worker is None:
                return self._start()
            if worker.ping():
                return worker
            worker.kill()

    def _start(self) -> Worker:
        kept = self._kept is None or not self._kept.alive
        worker = Worker(0.0 if kept else limits.SELECT_WORKER_IDLE_S)
        if kept:
            self._kept = worker
        return worker

    def _give_back(self, worker: Worker) -> None:
        if not worker.alive or worker.data_bytes > limits.SELECT_WORKER_KEPT_BYTES:
            worker.kill()
            return
        with self._lock:
            self._idle.append(worker)

    def close(self) -> None:
        """End the workers that nobody uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.kill()

    def forget(self) -> None:
        """After a fork, in the child: the workers are the parent's."""
        self._lock = threading.Lock()
        self._idle, self._kept = [], None


POOL: Final = Pool()
atexit.register(POOL.close)
os.register_at_fork(after_in_child=POOL.forget)
