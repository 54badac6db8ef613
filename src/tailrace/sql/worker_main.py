"""The program of a SELECT worker: DuckDB in a process of its own, with hard limits on its memory.

`workers.py` runs it as a script. It imports nothing of Tailrace, so that it starts in a fraction of a second and stays
small. Standard input is a socket to the parent process; see `workers.py` for the messages.

Theory of operation. The main thread runs one request at a time. A second thread reads the socket, so that "stop" can
interrupt a query. That thread also exits the process when the parent is gone, when the process has grown over its limit
(where possible, the operating system refuses memory before that), and, in a worker with an idle limit, when that has
passed. A worker never exits during a request for any other reason.
"""

import contextlib
import json
import os
import pickle
import queue
import resource
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from select import select
from typing import Any

HEAD = struct.Struct("<IQ")  # the lengths of a message's header and of its body
OVER_LIMIT = 70  # the exit status of a worker that has grown over its limit
_BUSY_S = 0.05  # between two checks of the memory while a query runs, and between two interrupts
_IDLE_S = 1.0  # between two checks of the parent
_ARROW_BATCH_ROWS = 8_192
_SENT_BYTES = 64 * 1024  # smaller messages are sent together
# Types whose Arrow values have no Python representation; they are sent as text.
_AS_TEXT = frozenset(("BIT", "BIGNUM", "INTERVAL", "TIME WITH TIME ZONE", "TIMESTAMP_NS", "TIME_NS", "VARIANT"))
_CALLER = ("current_user", "session_user", "user", "current_role")
_LOCATED = ("BinderException", "CatalogException", "ParserException")


class ParentGone(Exception):
    """The parent has closed the socket."""


def main() -> None:
    parent = os.getppid()
    sock = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "r+b") as nothing:  # output of libraries must not get into the socket
        for number in (0, 1, 2):
            os.dup2(nothing.fileno(), number)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # service managers signal all processes; the parent handles it
    settings = json.loads(sys.argv[1])
    _prepare(settings["bytes_max"])
    worker = WorkerProgram(sock, settings["config"], settings["settings"])
    bounds = settings["bytes_max"], settings["idle_s"]
    threading.Thread(target=_listen, args=(worker, parent, *bounds), daemon=True).start()
    worker.send({"ready": True})
    worker.serve()


def _prepare(bytes_max: int) -> None:
    """Set resource limits that the process cannot raise again."""
    with contextlib.suppress(OSError):
        os.nice(5)  # the server's writes and small reads have priority
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # when the machine runs out of memory, a query is killed before the server
    for kind, limit in ((resource.RLIMIT_DATA, bytes_max), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0)):
        _, hard = resource.getrlimit(kind)
        most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (most, most))


def _data_bytes() -> int:
    """The private memory of this process, as RLIMIT_DATA counts it; the resident peak where that is not available."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[5]) * resource.getpagesize()
    except OSError:
        return _resident_peak()


def _resident_peak() -> int:
    """The most memory that this program has had. On Linux `ru_maxrss` is not it: a process inherits that of the one
    which started it, so under a large server every worker would be over its limit."""
    try:
        with open("/proc/self/status", "rb") as status:
            return int(status.read().partition(b"VmHWM:")[2].split(None, 1)[0]) * 1024
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


class WorkerProgram:
    """Runs requests, one after the other."""

    def __init__(self, sock: socket.socket, config: dict[str, Any], settings: list[str]) -> None:
        import duckdb
        import pyarrow as pa

        self.duckdb, self.pa = duckdb, pa
        self.sock = sock
        self.unsent = bytearray()
        self.requests: queue.SimpleQueue[tuple[dict[str, Any], bytearray]] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.current = 0  # the number of the running request
        self.stopped = 0  # the number of the last request to stop, which may not have begun
        self.running: Any = None  # the connection whose query runs
        self.engine = duckdb.connect(":memory:", config=config)
        for setting in settings:
            self.engine.execute(setting)
        self.engine.execute("SELECT 1").fetchall()
        self.schemas: dict[str, Any] = {}
        self.batches: dict[str, list[Any]] = {}
        self.held: dict[str, tuple[Any, list[Any]]] = {}  # sources that a later statement may use again

    def send(self, header: dict[str, Any], body: Any = b"", *, more: bool = False) -> None:
        """Send a message; `more` follow soon, and small ones are sent together."""
        head = json.dumps(header).encode()
        self.unsent += HEAD.pack(len(head), len(body)) + head
        if len(body) < _SENT_BYTES:
            self.unsent += body
            body = b""
        if more and not len(body) and len(self.unsent) < _SENT_BYTES:
            return
        self.sock.sendall(self.unsent)
        self.unsent = bytearray()
        if len(body):
            self.sock.sendall(body)

    def serve(self) -> None:
        while True:
            header, body = self.requests.get()
            try:
                self.handle(header, body)
            except (BrokenPipeError, ConnectionError):
                os._exit(0)
            except MemoryError as error:
                self.fail("OutOfMemoryException", error)
            except Exception as error:  # every error is sent to the parent, which handles it
                self.fail(type(error).__name__, error)
            del header, body

    def fail(self, kind: str, error: BaseException) -> None:
        if isinstance(error, (self.pa.ArrowMemoryError, MemoryError)) or "Out of Memory Error" in str(error)[:40]:
            kind = "OutOfMemoryException"
        self.reset()
        self.send({"error": kind, "text": str(error), "data": _data_bytes()})

    def reset(self) -> None:
        self.schemas, self.batches = {}, {}

    def handle(self, header: dict[str, Any], body: bytearray) -> None:
        op = header["op"]
        if op == "schema":
            self.schemas[header["name"]] = self.pa.ipc.read_schema(self.pa.py_buffer(body))
            self.batches[header["name"]] = []
            if header["token"]:
                self.held[header["token"]] = self.schemas[header["name"]], self.batches[header["name"]]
        elif op == "use":
            self.schemas[header["name"]], self.batches[header["name"]] = self.held[header["token"]]
        elif op == "drop":
            for token in list(self.held) if header["tokens"] is None else header["tokens"]:
                self.held.pop(token, None)
        elif op == "batch":
            schema = self.schemas[header["name"]]
            self.batches[header["name"]].append(self.pa.ipc.read_record_batch(self.pa.py_buffer(body), schema))
        elif op == "ping":
            self.send({"ready": True})
        elif op == "check":
            self.current = header["number"]
            self.check(header["text"])
        elif op == "run":
            self.current = header["number"]
            self.run(header["text"], header["caller"], pickle.loads(body))  # trusted: pickled by the parent

    @contextlib.contextmanager
    def interruptible(self, connection: Any) -> Iterator[None]:
        with self.lock:
            if self.stopped == self.current:
                raise self.duckdb.InterruptException("INTERRUPT Error: QueryInterrupted!")
            self.running = connection
        try:
            yield
        finally:
            with self.lock:
                self.running = None

    def check(self, text: str) -> None:
        """Send the kinds of the statements in the text, and the parse tree of a single query."""
        connection = self.engine.cursor()
        try:
            with self.interruptible(connection):
                kinds = [str(each.type).rpartition(".")[2] for each in connection.extract_statements(text)]
                tree = "{}"
                if kinds == ["SELECT"]:
                    rows = connection.execute("SELECT json_serialize_sql($1::VARCHAR)", [text]).fetchall()
                    tree = rows[0][0]
        finally:
            connection.close()
        self.send({"kinds": kinds}, tree.encode())

    def run(self, text: str, caller: str, params: list[Any]) -> None:
        connection = self.engine.cursor()
        try:
            if any(name in text.lower() for name in _CALLER):
                for name in _CALLER:  # for this connection only; a column of that name has precedence
                    connection.execute(f"""CREATE TEMP MACRO "{name}"() AS '{caller.replace("'", "''")}'""")
            for name, schema in self.schemas.items():
                connection.register(name, self.pa.Table.from_batches(self.batches[name], schema))
            with self.interruptible(connection):
                try:
                    self.answer(connection, text, params)
                except Exception as error:
                    raise self.located(connection, text, params, error) from None
        finally:
            connection.close()
        self.reset()
        self.send({"end": True, "data": _data_bytes()})

    def answer(self, connection: Any, text: str, params: list[Any]) -> None:
        relation = connection.sql(text, params=params or None)
        types = [str(each).strip('"') for each in relation.types]
        names = list(relation.columns)
        if _AS_TEXT.intersection(types):
            places = enumerate(types, start=1)
            shown = [f"CAST(#{at} AS VARCHAR)" if kind in _AS_TEXT else f"#{at}" for at, kind in places]
            relation = relation.project(", ".join(shown))
        rows = max(1, min(_ARROW_BATCH_ROWS, 1_000_000 // max(len(names), 1)))
        reader = relation.to_arrow_reader(rows)
        self.send({"columns": list(zip(names, types, strict=True))}, more=True)
        for batch in reader:
            held = self.pa.BufferOutputStream()
            with self.pa.ipc.new_stream(held, reader.schema) as stream:  # with its schema: an ENUM has a dictionary
                stream.write_batch(batch)
            self.send({"rows": batch.num_rows}, memoryview(held.getvalue()), more=True)

    def located(self, connection: Any, text: str, params: list[Any], error: Exception) -> Exception:
        """The error with its position in the text, which DuckDB's relational API does not report."""
        if type(error).__name__ not in _LOCATED:
            return error
        try:
            connection.execute("EXPLAIN\n" + text, params)
        except self.duckdb.Error as explained:
            kind, brace, rest = str(explained).partition("{")
            if brace:
                facts = json.loads(brace + rest)
                if str(facts.get("position", "")).isdigit():
                    facts["position"] = str(max(0, int(facts["position"]) - len("EXPLAIN\n")))
                located: Exception = type(explained)(kind + json.dumps(facts))
                return located
        return error

    def stop(self, number: int) -> None:
        """Interrupt a request, whether it is running or has not begun yet."""
        with self.lock:
            self.stopped = number
            if self.running is not None and self.current == number:
                self.running.interrupt()


def _listen(worker: WorkerProgram, parent: int, bytes_max: int, idle_s: float) -> None:
    """Read messages until the parent is gone. Never returns."""
    used_s = time.monotonic()
    while True:
        worker.sock.settimeout(None)
        try:
            while not _readable(worker.sock, _BUSY_S if worker.running is not None else _IDLE_S):
                if os.getppid() != parent:
                    os._exit(0)
                if worker.running is not None:
                    used_s = time.monotonic()
                    if worker.stopped:  # DuckDB may miss an interrupt between two steps of a query, so repeat it
                        worker.stop(worker.stopped)
                    if _resident_peak() > bytes_max:
                        os._exit(OVER_LIMIT)
                elif idle_s and time.monotonic() - used_s > idle_s:
                    os._exit(0)
            header, body = _receive(worker.sock)
        except (ParentGone, ConnectionError):
            os._exit(0)
        except MemoryError:
            os._exit(OVER_LIMIT)
        used_s = time.monotonic()
        if header["op"] == "stop":
            worker.stop(header["number"])
        else:
            worker.requests.put((header, body))
        del header, body


def _readable(sock: socket.socket, timeout_s: float) -> bool:
    return bool(select([sock], [], [], timeout_s)[0])


def _receive(sock: socket.socket) -> tuple[dict[str, Any], bytearray]:
    head, size = HEAD.unpack(_exactly(sock, HEAD.size))
    header = json.loads(bytes(_exactly(sock, head)))
    return header, _exactly(sock, size)


def _exactly(sock: socket.socket, size: int) -> bytearray:
    held = bytearray(size)
    view, at = memoryview(held), 0
    while at < size:
        got = sock.recv_into(view[at:])
        if not got:
            raise ParentGone
        at += got
    return held


if __name__ == "__main__":
    main()
