"""What every measurement needs: requests and answers, one plain connection, and a server in a process of its own.

    Session    one blocking connection: set up, verify, read a stream page by page
    Child      a server in a process of its own, on cores of its own

Nothing here trusts the server: every status is checked, and the framing of every answer is understood.
"""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
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

    def members(self) -> list[int]:
        """The process and all that it has started."""
        found = [self.pid]
        for pid in found:  # grows while we go through it
            with suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    found += [int(child) for child in (task / "children").read_text().split()]
        return found

    def cpu_s(self) -> float:
        """Seconds of processor time so far: all threads of all its processes, user and system."""
        return sum(map(cpu_s, self.members()))

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


def cpu_s(pid: int) -> float:
    """Processor time of a process in seconds, with the processes that it has waited for.

    The scheduler counts nanoseconds for each living thread. The clock ticks of the process also count threads and
    processes that have ended, but are cut to hundredths of a second; they are taken where they say clearly more.
    """
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    precise, whole = 0, 0
    with suppress(OSError):  # it may end meanwhile
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        whole = sum(map(int, fields[11:15]))
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                precise += int((task / "schedstat").read_bytes().split()[0])
    return max(precise / 1e9, (whole - 2) * tick_s)


def percentile(values: Sequence[float], share: float) -> float:
    """Of sorted values; nan when there are none."""
    return values[min(len(values) - 1, int(len(values) * share))] if values else float("nan")
