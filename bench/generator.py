"""The load generator: connections in a closed loop over prepared requests, one under way on each.

It must cost far less than the server it measures, so that one core drives one core. Requests are bytes made in advance,
and an answer is checked by its status, by a text that must stand in it so many times, and by its offset. The work is
done by a small C program (`generator.c`) where a C compiler is there, in a process of its own; else by `_Caller` below,
which does the same in Python and costs several times as much. `kind()` says which, and the report prints it. Live
readers have such a program too (`readers.c`, see `live.py`).

    Prepared    one request; a number that grows with every request of its connection can be written into it
    Source      the requests of one connection, in turn
    drive       run sources for so long or until they are over
    append      the same for appends to streams; `verify` compares what was acknowledged with what the streams hold

An unexpected answer is counted in `errors`, never in the rate.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import shutil
import socket
import subprocess
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, cast

import msgspec

from bench.load import ANSWER_TIMEOUT_S, END, Address, Failed, Session, framed, header, post, request

PROGRAMS: Final = ("generator", "readers")  # one file of C each, beside this one
TIMES_MAX: Final = 10_000  # that pages are read
TICK_S: Final = 0.1  # between two looks at the clock, and two reports of progress
MARK: Final = b"########"  # stands for a number of eight digits in a request

Progress = Callable[[float], None]  # seconds since the measured window began


class Prepared(NamedTuple):
    """One request, and what its answer must be like."""

    data: bytes
    status: int = 200
    number_at: int = 0
    number_width: int = 0  # digits; 0: no number is written
    fill: bytes = b"0"  # on the left of a shorter number
    needle: bytes = b""  # must stand in the answer
    times: int = 0  # so many times

    def numbered(self, fill: bytes = b"0") -> Prepared:
        """The connection's next number takes the place of `MARK`."""
        return self._replace(number_at=self.data.index(MARK), number_width=len(MARK), fill=fill)

    def bytes_for(self, number: int) -> bytes:
        if not self.number_width:
            return self.data
        digits = str(number).encode().rjust(self.number_width, self.fill)
        return self.data[: self.number_at] + digits + self.data[self.number_at + self.number_width :]


class Source(NamedTuple):
    """What one connection sends."""

    requests: Sequence[Prepared]  # in turn, from the beginning when all were sent
    targets: Sequence[str] = ()  # the stream of each of them
    first: int = 0  # the number of its first request; each has the next
    limit: int = 0  # requests in all; 0: until the time is over
    strict: bool = False  # an unexpected status ends it: a producer cannot go on past a gap


class Answered(msgspec.Struct, frozen=True, array_like=True):
    """The expected answers to one of the requests of a source."""

    count: int
    number: int  # of the last of them
    tail: str  # its Stream-Next-Offset
    body_bytes: int  # of all of them


@dataclass
class Driven:
    """What `drive` did."""

    latencies: array[float] = field(default_factory=lambda: array("d"))  # seconds, of the measured window only
    errors: Counter[str] = field(default_factory=Counter)  # of the whole run
    answers: list[list[Answered]] = field(default_factory=list)  # of each source, of the whole run
    seconds: float = 0.0
    client_cpu_s: float = 0.0

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds if self.seconds else 0.0

    @property
    def client_share(self) -> float:
        """How busy the load generator was; near 1 it is what was measured."""
        return self.client_cpu_s / self.seconds if self.seconds else 0.0


@dataclass
class Appends(Driven):
    """What `append` did."""

    acknowledged: dict[str, int] = field(default_factory=dict)  # appends per stream, of the whole run
    tails: dict[str, str] = field(default_factory=dict)  # the highest acknowledged offset per stream


@functools.cache
def programs() -> dict[str, Path]:
    """The compiled programs, made on first use; none where they cannot be."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return {}
    home = Path(tempfile.mkdtemp(prefix="tailrace-bench-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    made = {name: home / name for name in PROGRAMS}
    try:
        for name, path in made.items():
            source = str(Path(__file__).with_name(f"{name}.c"))
            subprocess.run([compiler, "-O2", "-o", str(path), source], check=True, capture_output=True)
            subprocess.run([str(path)], check=False, capture_output=True)  # /tmp may not let programs run
    except (OSError, subprocess.CalledProcessError):
        return {}
    return made


def kind() -> str:
    """Which load generator is used."""
    return "compiled from C" if programs() else "Python, because there is no C compiler: it costs more"


async def drive(
    address: Address,
    sources: Sequence[Source],
    *,
    seconds: float = 0.0,
    warmup_s: float = 0.0,
    started: Callable[[], None] | None = None,
    ended: Callable[[], None] | None = None,
    progress: Progress | None = None,
) -> Driven:
    """One connection per source for so long, or (`seconds` 0) until all are over.

    `started` and `ended` are called around the measured window, which leaves out the warm-up and the answers still to
    come at the end; those count in `answers`, not in the rate.
    """
    window = _Window(seconds, warmup_s, started or _nothing, ended or _nothing, progress)
    if not programs():
        return await _drive_in_python(address, sources, window)
    return await _drive_compiled(address, sources, window)


def _nothing() -> None:
    pass


class _Window(NamedTuple):
    seconds: float
    warmup_s: float
    started: Callable[[], None]
    ended: Callable[[], None]
    progress: Progress | None

    async def report(self) -> None:
        """Progress, until it is cancelled."""
        begin = time.perf_counter()
        while self.progress is not None:
            self.progress(time.perf_counter() - begin)
            await asyncio.sleep(TICK_S)


# -- the compiled one


def script(sources: Sequence[Source]) -> bytes:
    """What the program reads: see the head of `generator.c`."""
    parts: list[bytes] = []
    for source in sources:
        parts.append(b"connection %d %d %d %d\n" % (source.first, source.limit, source.strict, len(source.requests)))
        for one in source.requests:
            number = (one.number_at, one.number_width, one.fill[0])
            sizes = (one.times, len(one.needle), len(one.data))
            parts.append(b"request %d %d %d %d %d %d %d\n" % (one.status, *number, *sizes))
            parts += (one.needle, one.data)
    return b"".join(parts)


class _Result(msgspec.Struct):
    seconds: float
    cpu_s: float
    lost: int
    wrong: int
    unanswered: int
    statuses: dict[str, int]
    answers: list[Answered]


async def run_program(
    name: str,
    address: Address,
    words: Sequence[object],
    text: bytes,
    started: Callable[[], None],
    ended: Callable[[], None],
) -> tuple[bytes, array[float]]:
    """Run one of the programs with this input; the line of JSON that it prints, and the latencies."""
    host = await asyncio.to_thread(socket.gethostbyname, address.host)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        str(programs()[name]), host, str(address.port), *map(str, words), stdin=pipe, stdout=pipe, stderr=pipe
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        with suppress(BrokenPipeError, ConnectionResetError):  # then the program says why
            process.stdin.write(text)
            await process.stdin.drain()
            process.stdin.close()
        for line, call in ((b"begin\n", started), (b"end\n", ended)):
            if await process.stdout.readline() != line:
                raise Failed(f"the load generator failed: {(await process.stderr.read()).decode().strip()}")
            call()
        head, _, latencies = (await process.stdout.read()).partition(b"\n")
        if await process.wait():
            raise Failed(f"the load generator failed: {(await process.stderr.read()).decode().strip()}")
        return head, array("d", latencies)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _drive_compiled(address: Address, sources: Sequence[Source], window: _Window) -> Driven:
    reporting: list[asyncio.Future[None]] = []

    def started() -> None:
        window.started()
        reporting.append(asyncio.ensure_future(window.report()))

    words = (len(sources), window.warmup_s, window.seconds)
    try:
        head, latencies = await run_program("generator", address, words, script(sources), started, window.ended)
    finally:
        for one in reporting:
            one.cancel()
    found = msgspec.json.decode(head, type=_Result)
    result = Driven(latencies, seconds=found.seconds, client_cpu_s=found.cpu_s)
    result.errors.update({f"status {status}": count for status, count in found.statuses.items()})
    result.errors.update({"connection lost": found.lost, "wrong answer": found.wrong, "unanswered": found.unanswered})
    result.errors = +result.errors
    answers = iter(found.answers)
    result.answers = [[next(answers) for _ in source.requests] for source in sources]
    return result


# -- the one in Python


class _Round:
    """What the callers of one run share."""

    __slots__ = ("errors", "finished", "latencies", "stopping", "under_way")

    def __init__(self) -> None:
        self.latencies = array("d")
        self.errors: Counter[str] = Counter()
        self.stopping = False
        self.under_way = 0
        self.finished = asyncio.Event()


class _Caller(asyncio.Protocol):
    """One connection with one request under way."""

    def __init__(self, round_: _Round, source: Source) -> None:
        self._round = round_
        self._source = source
        self._partial = b""
        self._at = 0
        self._number = source.first
        self._left = source.limit or -1
        self._sent = 0.0
        self._active = False
        self._counts = [0] * len(source.requests)
        self._numbers = [0] * len(source.requests)
        self._last = [b""] * len(source.requests)
        self._bytes = [0] * len(source.requests)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def start(self) -> None:
        self._active = True
        self._round.under_way += 1
        self._next()

    def data_received(self, data: bytes) -> None:
        if self._partial:
            data = self._partial + data
        if framed(data) is None:
            self._partial = data
            return
        self._partial = b""
        took = time.perf_counter() - self._sent
        at, number, sent = self._at, self._number, self._source.requests[self._at]
        self._at = at + 1 if at + 1 < len(self._counts) else 0
        self._number += 1
        if not data.startswith(b"HTTP/1.1 %d " % sent.status):
            self._round.errors[f"status {data[9:12].decode()}"] += 1
            if self._source.strict:
                self._leave()
                return
        elif sent.needle and data.count(sent.needle) != sent.times:
            self._round.errors["wrong answer"] += 1
        else:
            self._round.latencies.append(took)
            self._counts[at] += 1
            head_bytes = data.index(END) + len(END)
            self._numbers[at], self._last[at] = number, data[:head_bytes]
            self._bytes[at] += _body_bytes(data, head_bytes)
        self._next()

    def _next(self) -> None:
        if self._round.stopping or not self._left:
            self._leave()
            return
        self._left -= 1
        data = self._source.requests[self._at].bytes_for(self._number)
        self._sent = time.perf_counter()
        self._transport.write(data)

    def connection_lost(self, _error: Exception | None) -> None:
        if self._active:
            self._round.errors["connection lost"] += 1
            self._leave()

    def _leave(self) -> None:
        self._active = False
        self._round.under_way -= 1
        if not self._round.under_way:
            self._round.finished.set()

    def close(self) -> None:
        self._active = False
        self._transport.abort()

    def answered(self) -> list[Answered]:
        return [
            Answered(count, number, header(last, "stream-next-offset") or "" if last else "", size)
            for count, number, last, size in zip(self._counts, self._numbers, self._last, self._bytes, strict=True)
        ]


def _body_bytes(answer: bytes, at: int) -> int:
    """The length of a body that begins there, without what frames its chunks."""
    if b"\r\ntransfer-encoding: chunked" not in answer[:at].lower():
        return len(answer) - at
    total = 0
    while size := int(answer[at : (line_end := answer.index(b"\r\n", at))], 16):
        total += size
        at = line_end + 2 + size + 2
    return total


async def _drive_in_python(address: Address, sources: Sequence[Source], window: _Window) -> Driven:
    loop = asyncio.get_running_loop()
    round_ = _Round()
    callers: list[_Caller] = []
    try:
        for source in sources:
            _, caller = await loop.create_connection(lambda source=source: _Caller(round_, source), *address)  # type: ignore[misc]
            callers.append(caller)
        if window.warmup_s:
            for caller in callers:
                caller.start()
            await asyncio.sleep(window.warmup_s)
        round_.latencies = array("d")
        window.started()
        reporting = asyncio.ensure_future(window.report())
        cpu, begin = time.process_time(), time.perf_counter()
        if not window.warmup_s:
            for caller in callers:
                caller.start()
        with suppress(TimeoutError):
            await asyncio.wait_for(round_.finished.wait(), window.seconds or None)
        result = Driven(round_.latencies[:], round_.errors, seconds=time.perf_counter() - begin)
        result.client_cpu_s = time.process_time() - cpu
        reporting.cancel()
        window.ended()
        round_.stopping = True
        if round_.under_way:
            with suppress(TimeoutError):
                await asyncio.wait_for(round_.finished.wait(), ANSWER_TIMEOUT_S)
        if round_.under_way:
            round_.errors["unanswered"] += round_.under_way
        result.answers = [caller.answered() for caller in callers]
        return result
    finally:
        for caller in callers:
            caller.close()


# -- appends


def appends(targets: Sequence[str], body: bytes, content_type: str, *, limit: int = 0) -> Source:
    """A connection that appends to these streams in turn."""
    return Source([Prepared(post(target, body, content_type), 204) for target in targets], targets, limit=limit)


def produced(targets: Sequence[str], producer: str, body: bytes, content_type: str) -> Source:
    """A connection that is an idempotent producer of one stream; a stored append is answered 200, a duplicate 204."""
    (target,) = targets
    named = [("content-type", content_type), ("producer-id", producer), ("producer-epoch", 0)]
    data = request("POST", target, [*named, ("producer-seq", MARK.decode())], body)
    return Source([Prepared(data).numbered(b" ")], targets, strict=True)


async def append(
    address: Address,
    sources: Sequence[Source],
    *,
    seconds: float = 0.0,
    warmup_s: float = 0.0,
    started: Callable[[], None] | None = None,
    ended: Callable[[], None] | None = None,
    progress: Progress | None = None,
) -> Appends:
    """Append from one connection per source; see `drive`."""
    done = await drive(
        address, sources, seconds=seconds, warmup_s=warmup_s, started=started, ended=ended, progress=progress
    )
    result = Appends(done.latencies, done.errors, done.answers, done.seconds, done.client_cpu_s)
    for source, answers in zip(sources, done.answers, strict=True):
        for target, answered in zip(source.targets, answers, strict=True):
            if answered.count:
                result.acknowledged[target] = result.acknowledged.get(target, 0) + answered.count
                result.tails[target] = max(result.tails.get(target, ""), answered.tail)
    return result


def verify(
    session: Session, done: Appends, before: dict[str, str], *, count: Callable[[bytes], int] | None, size: int
) -> list[str]:
    """Complaints, if any stream does not hold exactly what was acknowledged.

    The tail must be the highest offset that was acknowledged, and reading back from the tail `before` must give
    as many messages (`count` of a page) or bytes (`size` each) as were. Where some requests failed, their
    outcome is unknown and up to that many more are accepted.
    """
    return list(_differences(session, done, before, count, size))


def _differences(
    session: Session, done: Appends, before: dict[str, str], count: Callable[[bytes], int] | None, size: int
) -> Iterator[str]:
    slack = done.errors.total()
    for target, acknowledged in done.acknowledged.items():
        tail = session.tail(target)
        if tail != done.tails[target] and not slack:
            yield f"{target}: tail {tail}, acknowledged up to {done.tails[target]}"
        held = 0
        for page in session.pages(target, before[target], keep=count is not None):
            held += page.length if count is None else count(page.body)
        appended = held if count is not None else held // size
        if not acknowledged <= appended <= acknowledged + slack or (count is None and held % size):
            yield f"{target}: holds {appended} appends, {acknowledged} were acknowledged"


# -- reading from the beginning


class Pages(NamedTuple):
    """The requests that a reader makes from an offset on, page after page, and how long each answer is."""

    requests: list[Prepared]
    lengths: list[int]

    @classmethod
    def of(cls, session: Session, target: str, offset: str = "-1", most: int | None = None) -> Pages:
        """Those of all pages, or of as many as hold so many bytes."""
        found = cls([], [])
        for page in session.pages(target, offset, keep=False):
            found.requests.append(Prepared(request("GET", f"{target}?offset={offset}")))
            found.lengths.append(page.length)
            offset = page.header("stream-next-offset") or ""
            if most is not None and sum(found.lengths) >= most:
                break
        return found


async def read(
    address: Address, pages: Pages, seconds: float, started: Callable[[], None], ended: Callable[[], None]
) -> tuple[Driven, int]:
    """Read the pages from the first to the last on one connection, as many times as take about so long; and the bytes.

    The first time is not counted: it shows how long one takes. A page that is not as long as it was is an error.
    """
    once = await drive(address, [Source(pages.requests, limit=len(pages.requests))])
    times = max(1, min(TIMES_MAX, round(seconds / max(once.seconds, 1e-6))))
    source = Source(pages.requests, limit=len(pages.requests) * times)
    done = await drive(address, [source], started=started, ended=ended)
    done.errors += once.errors
    for length, answered in zip(pages.lengths, done.answers[0], strict=True):
        if answered.body_bytes != length * times:
            done.errors["a page of another length"] += 1
    return done, sum(answered.body_bytes for answered in done.answers[0])


def messages(page: bytes) -> int:
    """How many messages a page of a JSON stream has."""
    return len(json.loads(page))
