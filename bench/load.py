"""The load generator: a closed loop of writers and a plain session.

It must cost less than the server it measures, so that one core drives one core. Requests are bytes prepared
in advance, a response is checked with a few C-speed operations, and anything unexpected takes the slow path,
which understands every HTTP/1.1 framing. Every status is checked: an unexpected response is counted in `errors`
by its status, never in the rate.

    Session    one blocking connection: set up, verify, read a stream page by page
    one_by_one one writer without an event loop, for its latency
    append     writers, each with one request under way, until the time or the requests are over
    Child      a server in a process of its own, on cores of its own

Nothing here trusts the server: `verify` compares what was acknowledged with what the stream then holds.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, cast
from urllib.parse import urlsplit

END: Final = b"\r\n\r\n"
NO_CONTENT: Final = b"HTTP/1.1 204 "
OCTETS: Final = "application/octet-stream"
JSON: Final = "application/json"
TEXT: Final = "text/plain"

ANSWER_TIMEOUT_S: Final = 30.0  # after which a request counts as unanswered
CONNECT_AT_ONCE_MAX: Final = 64  # more would overflow a small listen backlog and measure SYN retries
SCRATCH_BYTES: Final = 1 << 20  # what one read of a discarded body takes at most
START_TIMEOUT_S: Final = 60.0  # for a child process to say where it listens
STOP_TIMEOUT_S: Final = 15.0  # for it to end when asked; then it is killed
TICK_S: Final = 0.1  # between two looks at the clock, and two reports of progress

Progress = Callable[[float, int], None]  # seconds since the start, appends acknowledged since the warm-up


class Failed(Exception):
    """The measurement could not be made; says what the server did instead."""


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> Address:
        parts = urlsplit(url if "//" in url else f"//{url}")
        if parts.scheme not in ("", "http") or not parts.hostname:
            raise ValueError(f"{url!r} is not an http:// address; write http://127.0.0.1:4437, say")
        return cls(parts.hostname, parts.port or 80)


def request(method: str, target: str, headers: Sequence[tuple[str, object]] = (), body: bytes = b"") -> bytes:
    """The bytes of one request."""
    lines = [f"{method} {target} HTTP/1.1", "host: localhost", *(f"{name}: {value}" for name, value in headers)]
    if body or method in ("POST", "PUT"):
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join(lines).encode() + END + body


def post(target: str, body: bytes, content_type: str = OCTETS) -> bytes:
    return request("POST", target, [("content-type", content_type)], body)


def produce(target: str, producer: str, body: bytes, content_type: str = OCTETS) -> Callable[[int], bytes]:
    """A function from a producer sequence to the bytes of that append."""
    assert b"%" not in body
    named = [("content-type", content_type), ("producer-id", producer), ("producer-epoch", 0), ("producer-seq", "%d")]
    return request("POST", target, named, body).__mod__


# -- answers


def framed(data: bytes, *, bodiless: bool = False) -> int | None:
    """Where the first answer in `data` ends, or None when more has to come."""
    head_end = data.find(END)
    if head_end < 0:
        return None
    body = head_end + len(END)
    if bodiless or data[9:12] in (b"204", b"304"):
        return body
    head = data[: head_end + 2].lower()
    at = head.find(b"\r\ncontent-length:")
    if at >= 0:
        end = body + int(head[at + 17 : head.index(b"\r\n", at + 2)])
        return end if len(data) >= end else None
    if b"\r\ntransfer-encoding: chunked" not in head:
        raise Failed(f"an answer without a length: {head[:80]!r}")
    while (line_end := data.find(b"\r\n", body)) >= 0:
        size = int(data[body:line_end], 16)
        body = line_end + 2 + size + 2
        if len(data) < body:
            return None
        if size == 0:
            return body
    return None


def header(head: bytes, name: str) -> str | None:
    """The value of a field in an answer's head."""
    found = re.search(rb"\r\n" + name.encode() + rb":[ \t]*([^\r]*)", head[: head.find(END) + 2 or None], re.IGNORECASE)
    return found[1].decode() if found else None


class Answer(NamedTuple):
    status: int
    head: bytes
    body: bytes  # empty when it was only counted
    length: int

    def header(self, name: str) -> str | None:
        return header(self.head, name)


class Session:
    """One blocking connection, opened again when the server closed it while idle."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._socket: socket.socket | None = None
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._file.close()
            self._socket.close()
            self._socket = None

    def call(
        self,
        method: str,
        target: str,
        headers: Sequence[tuple[str, object]] = (),
        body: bytes = b"",
        *,
        keep: bool = True,
    ) -> Answer:
        """One exchange. With `keep` false the body is read at full speed, counted and dropped."""
        data = request(method, target, headers, body)
        fresh = self._socket is None
        try:
            return self._exchange(data, method, keep)
        except (ConnectionError, EOFError):
            self.close()
            if fresh:
                raise
            return self._exchange(data, method, keep)

    def _exchange(self, data: bytes, method: str, keep: bool) -> Answer:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=ANSWER_TIMEOUT_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._file = cast("io.BufferedReader", self._socket.makefile("rb", buffering=1 << 16))
        self._socket.sendall(data)
        lines = [self._line()]
        while lines[-1] != b"\r\n":
            lines.append(self._line())
        head = b"".join(lines)
        status = int(head[9:12])
        kept: list[bytes] = []
        length = 0
        if method != "HEAD" and status not in (204, 304):
            announced = header(head, "content-length")
            if announced is not None:
                length = self._take(int(announced), kept, keep)
            else:
                while size := int(self._line(), 16):
                    length += self._take(size, kept, keep)
                    self._line()
                self._line()
        if (header(head, "connection") or "").lower() == "close":
            self.close()
        return Answer(status, head, b"".join(kept), length)

    def _line(self) -> bytes:
        line = self._file.readline(1 << 16)
        if not line:
            raise EOFError("the server closed the connection")
        return line

    def _take(self, size: int, kept: list[bytes], keep: bool) -> int:
        rest = size
        while rest:
            taken = self._file.readinto(self._scratch[: min(rest, SCRATCH_BYTES)])
            if not taken:
                raise EOFError("the server closed the connection within a body")
            if keep:
                kept.append(bytes(self._scratch[:taken]))
            rest -= taken
        return size

    def create(self, target: str, content_type: str = OCTETS) -> str:
        """Make sure the stream is there; returns its tail."""
        answer = self.call("PUT", target, [("content-type", content_type)])
        tail = answer.header("stream-next-offset")
        if answer.status not in (200, 201) or tail is None:
            raise Failed(f"PUT {target} answered {answer.status}: {answer.body[:200]!r}")
        return tail

    def tail(self, target: str) -> str:
        answer = self.call("HEAD", target)
        tail = answer.header("stream-next-offset")
        if answer.status != 200 or tail is None:
            raise Failed(f"HEAD {target} answered {answer.status}")
        return tail

    def pages(self, target: str, offset: str = "-1", *, keep: bool = True) -> Iterator[Answer]:
        """Read from `offset`, page after page, until the server says that this is all."""
        while True:
            answer = self.call("GET", f"{target}?offset={offset}", keep=keep)
            following = answer.header("stream-next-offset")
            if answer.status != 200 or following is None:
                raise Failed(f"GET {target}?offset={offset} answered {answer.status}: {answer.body[:200]!r}")
            yield answer
            if answer.header("stream-up-to-date") == "true":
                return
            if following == offset:
                raise Failed(f"GET {target}?offset={offset} does not advance")
            offset = following


# -- writers


@dataclass(slots=True)
class Appends:
    """What `append` did."""

    latencies: list[float] = field(default_factory=list)  # seconds, of the measured window only
    errors: Counter[str] = field(default_factory=Counter)  # of the whole run
    acknowledged: dict[str, int] = field(default_factory=dict)  # appends per stream, of the whole run
    tails: dict[str, str] = field(default_factory=dict)  # the highest acknowledged offset per stream
    seconds: float = 0.0
    client_cpu_s: float = 0.0

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds if self.seconds else 0.0

    @property
    def client_share(self) -> float:
        """How busy the load generator was; near 1 it is what was measured."""
        return self.client_cpu_s / self.seconds if self.seconds else 0.0


def one_by_one(address: Address, target: str, body: bytes, seconds: float) -> Appends:
    """One connection, one append at a time, without an event loop in between."""
    result = Appends()
    data = post(target, body)
    last = b""
    clock = time.perf_counter
    with socket.create_connection(address, timeout=ANSWER_TIMEOUT_S) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begin = sent = clock()
        while sent < begin + seconds:
            line.sendall(data)
            answer = line.recv(1 << 16)
            while framed(answer) is None:
                more = line.recv(1 << 16)
                if not more:
                    raise Failed("the server closed the connection within an answer")
                answer += more
            now = clock()
            if answer.startswith(NO_CONTENT):
                result.latencies.append(now - sent)
                last = answer
            else:
                result.errors[f"status {answer[9:12].decode()}"] += 1
            sent = clock()
    result.seconds = sent - begin
    result.acknowledged[target] = len(result.latencies)
    result.tails[target] = header(last, "stream-next-offset") or ""
    return result


class Source(NamedTuple):
    """What one writer sends: `requests` goes round over `targets` in order; when it ends the writer is done."""

    requests: Iterator[bytes]
    targets: Sequence[str]
    status: int = 204  # what a stored append is answered with; a producer's is 200, and 204 would be a duplicate


class _Round:
    """What the writers of one run share."""

    __slots__ = ("errors", "finished", "latencies", "stopping", "under_way")

    def __init__(self, finished: asyncio.Event) -> None:
        self.latencies: list[float] = []
        self.errors: Counter[str] = Counter()
        self.stopping = False
        self.under_way = 0
        self.finished = finished

    def leave(self) -> None:
        self.under_way -= 1
        if not self.under_way:
            self.finished.set()


class _Writer(asyncio.Protocol):
    """One connection with one append under way."""

    def __init__(self, round_: _Round, source: Source) -> None:
        self._round = round_
        self.source = source
        self._fast = NO_CONTENT if source.status == 204 else b"?"
        self._first = b"HTTP/1.1 %d " % source.status
        self._partial = b""
        self._at = 0
        self._sent = 0.0
        self._last: list[bytes] = [b""] * len(source.targets)
        self.counts = [0] * len(source.targets)
        self.active = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def start(self) -> None:
        self.active = True
        self._round.under_way += 1
        self._next(time.perf_counter())

    def data_received(self, data: bytes) -> None:
        round_ = self._round
        at = self._at
        # A 204 has no body, so the end of its head is its end.
        if data.startswith(self._fast) and data.endswith(END) and not self._partial:
            now = time.perf_counter()
        else:
            data = self._partial + data
            if framed(data) is None:
                self._partial = data
                return
            self._partial = b""
            now = time.perf_counter()
            if not data.startswith(self._first):
                round_.errors[f"status {data[9:12].decode()}"] += 1
                if self.source.status != 204:
                    self._leave()  # a producer cannot go on past a gap
                    return
                self._at = at + 1 if at + 1 < len(self.counts) else 0
                self._next(now)
                return
        round_.latencies.append(now - self._sent)
        self._last[at] = data
        self.counts[at] += 1
        self._at = at + 1 if at + 1 < len(self.counts) else 0
        self._next(now)

    def _next(self, now: float) -> None:
        data = None if self._round.stopping else next(self.source.requests, None)
        if data is None:
            self._leave()
        else:
            self._sent = now
            self._transport.write(data)

    def connection_lost(self, _error: Exception | None) -> None:
        if self.active:
            self._round.errors["connection lost"] += 1
            self._leave()

    def _leave(self) -> None:
        self.active = False
        self._round.leave()

    def close(self) -> None:
        self._transport.abort()

    def acknowledged(self) -> Iterator[tuple[str, int, str]]:
        """Each stream written, how many of its appends were acknowledged, and the last offset among them."""
        for target, count, last in zip(self.source.targets, self.counts, self._last, strict=True):
            if count:
                yield target, count, header(last, "stream-next-offset") or ""


async def append(
    address: Address,
    sources: Sequence[Source],
    *,
    seconds: float | None = None,
    warmup_s: float = 0.0,
    started: Callable[[], None] | None = None,
    ended: Callable[[], None] | None = None,
    progress: Progress | None = None,
) -> Appends:
    """Write from one connection per source for so long, or until the sources are over.

    `started` and `ended` are called around the measured window, which leaves out the warm-up and the answers
    still to come at the end; those count in `acknowledged`, not in the rate.
    """
    loop = asyncio.get_running_loop()
    round_ = _Round(asyncio.Event())
    writers: list[_Writer] = []
    try:
        for source in sources:
            _, writer = await loop.create_connection(lambda source=source: _Writer(round_, source), *address)  # type: ignore[misc]
            writers.append(writer)
        for writer in writers:
            writer.start()
        if warmup_s:
            await _tick(round_, warmup_s, None)
        round_.latencies.clear()
        if started is not None:
            started()
        cpu, begin = time.process_time(), time.perf_counter()
        await _tick(round_, seconds, progress)
        result = Appends(seconds=time.perf_counter() - begin, client_cpu_s=time.process_time() - cpu)
        result.latencies = round_.latencies[:]
        if ended is not None:
            ended()
        round_.stopping = True
        if round_.under_way:
            with suppress(TimeoutError):
                await asyncio.wait_for(round_.finished.wait(), ANSWER_TIMEOUT_S)
        if round_.under_way:
            round_.errors["unanswered"] += round_.under_way
        result.errors = round_.errors
        for writer in writers:
            for target, count, tail in writer.acknowledged():
                result.acknowledged[target] = result.acknowledged.get(target, 0) + count
                result.tails[target] = max(result.tails.get(target, ""), tail)
        return result
    finally:
        for writer in writers:
            writer.active = False
            writer.close()


async def _tick(round_: _Round, seconds: float | None, progress: Progress | None) -> None:
    begin = time.perf_counter()
    while not round_.finished.is_set():
        elapsed = time.perf_counter() - begin
        if progress is not None:
            progress(elapsed, len(round_.latencies))
        rest = TICK_S if seconds is None else min(TICK_S, seconds - elapsed)
        if rest <= 0:
            return
        await asyncio.sleep(rest)


def verify(
    session: Session, appends: Appends, before: dict[str, str], *, count: Callable[[bytes], int] | None, size: int
) -> list[str]:
    """Complaints, if any stream does not hold exactly what was acknowledged.

    The tail must be the highest offset that was acknowledged, and reading back from the tail `before` must give
    as many messages (`count` of a page) or bytes (`size` each) as were. Where some requests failed, their
    outcome is unknown and up to that many more are accepted.
    """
    complaints = []
    slack = appends.errors.total()
    for target, acknowledged in appends.acknowledged.items():
        tail = session.tail(target)
        if tail != appends.tails[target] and not slack:
            complaints.append(f"{target}: tail {tail}, acknowledged up to {appends.tails[target]}")
        held = 0
        for page in session.pages(target, before[target], keep=count is not None):
            held += page.length if count is None else count(page.body)
        appended = held if count is not None else held // size
        if not acknowledged <= appended <= acknowledged + slack or (count is None and held % size):
            complaints.append(f"{target}: holds {appended} appends, {acknowledged} were acknowledged")
    return complaints


def messages(page: bytes) -> int:
    """How many messages a page of a JSON stream has."""
    return len(json.loads(page))


# -- a server of our own


@contextmanager
def pinned(cores: set[int] | None) -> Iterator[None]:
    """Run on these cores for a while. Where the system cannot pin (macOS), nothing changes."""
    if cores is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Child:
    """A server in a process of its own, which says `listening on http://HOST:PORT` when it is ready."""

    def __init__(
        self, command: Sequence[str], *, log: Path, cores: set[int] | None = None, cwd: Path | None = None
    ) -> None:
        self._log = log
        self.command = list(command)
        with log.open("wb") as output, pinned(cores):  # a child inherits where we run
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=cwd
            )
        self.pid = self._process.pid
        try:
            self.address = self._listening()
        except BaseException:
            self.stop()
            raise

    def _listening(self) -> Address:
        patience = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < patience:
            found = re.search(rb"listening on (http://\S+)", self._log.read_bytes())
            if found:
                return Address.parse(found[1].decode())
            if self._process.poll() is not None:
                break
            time.sleep(0.02)
        raise Failed(f"{' '.join(self.command)} did not start: {self.output()}")

    def output(self) -> str:
        """The end of what it printed."""
        return self._log.read_bytes()[-2000:].decode(errors="replace").strip() or "(no output)"

    def cpu_s(self) -> float:
        """Seconds of processor time so far, all threads, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self) -> int:
        found = re.search(rb"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_bytes())
        return int(found[1]) * 1024 if found else 0

    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def percentile(values: Sequence[float], share: float) -> float:
    """Of sorted values; nan when there are none."""
    return values[min(len(values) - 1, int(len(values) * share))] if values else float("nan")
