"""What is measured, one class per row.

A row prepares each server once, then measures them in turn (A B A B A B): the machine is noisy, and its mood must
not fall on one of them. A sample is a dictionary of figures; the report takes the median of each over the
repetitions. What went wrong (answers that were not the expected one, streams that do not hold what was
acknowledged) travels with the sample and is printed in the row.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypeVar

import uvloop

from bench import live, load
from bench.load import Session, Source
from bench.machine import Core, probe
from bench.servers import NAMES, Contender, Server, scratch

T = TypeVar("T")
C = TypeVar("C", bound=Contender)

BASE: Final = "/v1/stream/bench"
CONNECTIONS: Final = 64
MB: Final = 1_000_000


@dataclass
class Settings:
    """How long and how much; `--quick` is for seeing that everything works, not for figures."""

    repetitions: int = 3
    seconds: float = 3.0
    warmup_s: float = 0.7
    catch_up_bytes: int = 100 * MB
    short_s: float = 3.0  # of rows over several servers or stores
    items: int = 8_000  # in a table that is written to or read from
    records: int = 20_000  # in a change stream that is read over HTTP
    changes: int = 1_000_000  # in the one that is read to the end from Python
    rounds: int = 15  # over the views
    round_batches: int = 40  # in each of them: enough that every view has its share of checkpoints
    peer_warmup_s: float = 4.0  # before the first sample: a JVM compiles what it finds to be hot
    messages: int = 200_000  # in a queue that is consumed
    pipeline: tuple[int, ...] = (1_000_000, 2_000_000, 5_000_000)  # changes that Spark reads, rows that it writes
    ticks: int = 40  # records through a waiting query
    server_core: set[int] = field(default_factory=set)
    client_cores: set[int] = field(default_factory=set)  # of clients in processes of their own
    data: Path = Path()
    shared: dict[str, Any] = field(default_factory=dict)  # what several rows need, made by the first of them
    closing: ExitStack = field(default_factory=ExitStack)  # and ended with the run

    @classmethod
    def quick(cls) -> Settings:
        return cls(
            repetitions=1, seconds=1.0, warmup_s=0.3, catch_up_bytes=10 * MB,
            short_s=0.5, items=400, records=600, changes=50_000, rounds=2, round_batches=20, peer_warmup_s=0.2,
            messages=20_000, pipeline=(50_000, 100_000, 200_000), ticks=8,
        )  # fmt: skip


@dataclass
class Sample:
    figures: dict[str, float] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)


@dataclass
class Line:
    """One printed line of a row: a figure, which way is better, and what the issue expects of it."""

    key: str
    label: str
    unit: str
    higher: bool = True
    at_least: float | None = None  # of our figure
    at_most: float | None = None
    ratio_at_least: float | None = None  # better than the reference by
    share_at_least: tuple[str, float] | None = None  # of the same figure of ours in another row
    within: tuple[str, float] | None = None  # at most so many times another figure of ours
    secondary: bool = False  # explains the line above it
    compared: bool = True  # whether one can be so many times better


class Row(Generic[C]):
    """A measurement. `name` is what `--only` takes."""

    name: ClassVar[str] = ""
    group: ClassVar[str] = "streams"  # which table of the report it stands in
    contenders: ClassVar[tuple[str, ...]] = NAMES
    without: ClassVar[dict[str, str]] = {}  # who cannot do this at all, and why
    title: str = ""
    repeated: bool = True

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def contender(self, name: str) -> C:
        """One of the contenders, not started yet."""
        raise NotImplementedError

    def lines(self) -> list[Line]:
        raise NotImplementedError

    def start(self, server: C) -> None:
        server.start()

    def prepare(self, server: C) -> None:
        """Once per server, before the first sample."""

    def measure(self, server: C) -> Sample:
        raise NotImplementedError


class ServerRow(Row[Server]):
    """A measurement of servers."""

    def contender(self, name: str) -> Server:
        return Server(name, self.settings.data / self.name / name, self.settings.server_core)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return uvloop.run(coroutine)


def milliseconds(latencies: list[float], prefix: str = "") -> dict[str, float]:
    ordered = sorted(latencies)
    return {
        f"{prefix}p50": load.percentile(ordered, 0.5) * 1000,
        f"{prefix}p99": load.percentile(ordered, 0.99) * 1000,
    }


class Appends(ServerRow):
    """Appends from 64 keep-alive connections, one under way on each."""

    content_type: str = load.OCTETS
    readers: int = 0

    def __init__(self, settings: Settings, streams: int, size: int) -> None:
        super().__init__(settings)
        self.targets = [f"{BASE}/s{n}" for n in range(streams)]
        self.size = size
        self.body = b"x" * size
        many = "stream" if streams == 1 else "streams"
        self.title = f"{CONNECTIONS} connections, {streams:,} {many}, {size} B"

    def lines(self) -> list[Line]:
        return [
            self.headline(),
            Line("p99", "p99 under this load", "ms", higher=False, secondary=True),
            Line("cpu_us", "CPU per append", "µs", higher=False, secondary=True),
            Line("others", "of the server's core, taken by others", "%", higher=False, secondary=True),
            Line("client", "load generator busy", "%", higher=False, secondary=True),
        ]

    def headline(self) -> Line:
        return Line("rate", "appends", "/s", at_least=25_000, ratio_at_least=15)

    def prepare(self, server: Server) -> None:
        with Session(server.address) as session:
            for target in self.targets:
                session.create(target, self.content_type)

    def sources(self, repetition: int) -> Iterator[Source]:
        """Each connection goes round over streams of its own; where there are fewer streams, they are shared."""
        for n in range(CONNECTIONS):
            mine = self.targets[n::CONNECTIONS] or [self.targets[n % len(self.targets)]]
            yield Source(itertools.cycle([self.post(target) for target in mine]), mine)

    def post(self, target: str) -> bytes:
        return load.post(target, self.body, self.content_type)

    def measure(self, server: Server) -> Sample:
        return run(self._measure(server))

    async def _measure(self, server: Server) -> Sample:
        with Session(server.address) as session:
            before = {target: session.create(target, self.content_type) for target in self.targets}
        readers = [live.Reader(self.targets[0]) for _ in range(self.readers)]
        meter = Meter(server, self.settings)
        try:
            await live.follow(server.address, readers)
            done = await load.append(
                server.address,
                list(self.sources(time.monotonic_ns())),
                seconds=self.settings.seconds,
                warmup_s=self.settings.warmup_s,
                started=meter.start,
                ended=meter.end,
            )
            complaints = await caught_up(readers, done.tails)
        finally:
            for reader in readers:
                reader.close()
        count = load.messages if self.content_type == load.JSON else None
        with Session(server.address) as session:
            complaints += load.verify(session, done, before, count=count, size=self.size)
        figures = {"rate": done.rate, **milliseconds(done.latencies), "client": done.client_share * 100}
        figures |= meter.figures(len(done.latencies))
        return Sample(figures, dict(done.errors), complaints)


async def caught_up(readers: list[live.Reader], tails: dict[str, str]) -> list[str]:
    """Wait for live readers to receive the tail; complaints about those that do not."""
    patience = time.monotonic() + load.ANSWER_TIMEOUT_S
    behind = readers
    while behind and time.monotonic() < patience:
        behind = [reader for reader in behind if reader.tail() != tails.get(reader.target)]
        await asyncio.sleep(0.05)
    return [f"a live reader stands at {reader.tail()}: {reader.error or 'still open'}" for reader in behind]


class Meter:
    """What the server's process and its core did during the measured window."""

    def __init__(self, server: Server, settings: Settings) -> None:
        self._child = server.child
        self._core = Core(min(settings.server_core))

    def start(self) -> None:
        self._cpu, (self._busy, self._all) = self._child.cpu_s(), self._core.look()

    def end(self) -> None:
        busy, total = self._core.look()
        self._cpu = self._child.cpu_s() - self._cpu
        self._busy, self._all = busy - self._busy, total - self._all

    def figures(self, appends: int) -> dict[str, float]:
        return {
            "cpu_us": self._cpu / appends * 1e6 if appends else float("nan"),
            "others": max(0.0, self._busy - self._cpu) / self._all * 100 if self._all else 0.0,
        }


class OneStream100(Appends):
    name = "append-1x100"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, 1, 100)


class OneStream1k(Appends):
    name = "append-1x1k"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, 1, 1024)


class ManyStreams100(Appends):
    name = "append-64x100"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, 64, 100)


class ManyStreams1k(Appends):
    name = "append-64x1k"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, 64, 1024)


class ThousandStreams(Appends):
    name = "append-1000x100"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, 1000, 100)

    def headline(self) -> Line:
        return Line("rate", "appends", "/s", at_least=12_500, share_at_least=(ManyStreams100.name, 0.5))


class JsonAppends(Appends):
    name = "append-json"
    content_type = load.JSON

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, 1, 100)
        frame = b'{"id":123456,"kind":"order","note":"%s"}'
        self.body = frame % (b"x" * (self.size - len(frame) + 2))
        self.title = f"{CONNECTIONS} connections, 1 JSON stream, {self.size} B"

    def headline(self) -> Line:
        return Line("rate", "appends", "/s", ratio_at_least=15)


class ProducerAppends(Appends):
    """Each connection is an idempotent producer of its own; a new one in each repetition."""

    name = "append-producers"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, 1, 100)
        self.title = f"{CONNECTIONS} idempotent producers, 1 stream, {self.size} B"

    def headline(self) -> Line:
        return Line("rate", "appends", "/s", ratio_at_least=15)

    def sources(self, repetition: int) -> Iterator[Source]:
        for n in range(CONNECTIONS):
            make = load.produce(self.targets[0], f"producer-{repetition}-{n}", self.body)
            yield Source(map(make, itertools.count()), self.targets, status=200)


class FollowedAppends(Appends):
    """50 live readers of the stream that is written to; they must end at its tail."""

    name = "append-followed"
    readers = 50

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, 1, 100)
        self.title = f"{CONNECTIONS} connections, 1 stream, 100 B, 50 live readers"

    def headline(self) -> Line:
        return Line("rate", "appends", "/s")


class OneConnection(ServerRow):
    """One connection, one append at a time, and a bare write + fdatasync around each repetition."""

    name = "latency"
    title = "1 connection, 1 stream, 100 B"

    def lines(self) -> list[Line]:
        return [
            Line("p50", "append latency p50", "ms", higher=False, within=("disk_p50", 2.0)),
            Line("p99", "append latency p99", "ms", higher=False),
            Line("disk_p50", "bare write + fdatasync just then, p50", "ms", higher=False, secondary=True),
            Line("times_disk", "append p50 as a multiple of it", "×", higher=False, secondary=True),
        ]

    def prepare(self, server: Server) -> None:
        with Session(server.address) as session:
            session.create(f"{BASE}/one")

    def measure(self, server: Server) -> Sample:
        target, body = f"{BASE}/one", b"x" * 100
        load.one_by_one(server.address, target, body, self.settings.warmup_s)
        with Session(server.address) as session:
            before = session.tail(target)
        disk = [probe(self.settings.data, self.settings.server_core, count=150)]
        done = load.one_by_one(server.address, target, body, self.settings.seconds)
        disk.append(probe(self.settings.data, self.settings.server_core, count=150))
        with Session(server.address) as session:
            complaints = load.verify(session, done, {target: before}, count=None, size=len(body))
        figures = milliseconds(done.latencies)
        figures["disk_p50"] = sum(one.grow_p50 for one in disk) / 2
        figures["times_disk"] = figures["p50"] / figures["disk_p50"]
        return Sample(figures, dict(done.errors), complaints)


class CatchUp(ServerRow):
    """Read a stream from its start, page after page, until the server says that this is all.

    The servers are filled in memory, where an append does not wait for the disk, and are then started on the same
    files on the disk. One untimed read compares every byte.
    """

    size: int = 1024
    connections: int = 16

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.count = settings.catch_up_bytes // self.size
        self.body = bytes(range(33, 97)) * (self.size // 64)
        unit = f"{self.size // 1024} KB"
        self.title = f"catch-up of {self.count * self.size / MB:.0f} MB in messages of {unit}"

    def lines(self) -> list[Line]:
        return [
            Line("mbs", "read", "MB/s", ratio_at_least=1),
            Line("pages", "pages", "", higher=False, secondary=True),
        ]

    def prepare(self, server: Server) -> None:
        home = server.data
        memory = scratch(self.count * self.size)
        if memory is not None:
            server.stop()
            server.data = memory / server.name
            server.start()
        try:
            self._fill(server)
            if memory is not None:
                server.move(home)
        finally:
            if memory is not None:
                shutil.rmtree(memory)
        self._compare(server)

    def _fill(self, server: Server) -> None:
        target = f"{BASE}/long"
        with Session(server.address) as session:
            session.create(target)
        data = load.post(target, self.body)
        shares = [self.count // self.connections] * self.connections
        shares[0] += self.count % self.connections
        done = run(load.append(server.address, [Source(itertools.repeat(data, n), [target]) for n in shares]))
        if done.errors:
            raise load.Failed(f"could not fill the stream: {dict(done.errors)}")

    def _compare(self, server: Server) -> None:
        held = 0
        with Session(server.address) as session:
            for page in session.pages(f"{BASE}/long"):
                if page.body != self.body * (page.length // self.size):
                    raise load.Failed("a page does not hold what was written")
                held += page.length
        if held != self.count * self.size:
            raise load.Failed(f"the stream holds {held} bytes, {self.count * self.size} were written")

    def measure(self, server: Server) -> Sample:
        sample = Sample()
        with Session(server.address) as session:
            begin = time.perf_counter()
            lengths = [page.length for page in session.pages(f"{BASE}/long", keep=False)]
            took = time.perf_counter() - begin
        if sum(lengths) != self.count * self.size:
            sample.complaints.append(f"read {sum(lengths)} bytes of {self.count * self.size}")
        sample.figures = {"mbs": sum(lengths) / MB / took, "pages": len(lengths)}
        return sample


class CatchUp1k(CatchUp):
    name = "catchup-1k"


class CatchUp64k(CatchUp):
    name = "catchup-64k"
    size = 64 * 1024


class Delivery(ServerRow):
    """From the write of an append to the data event at each live reader."""

    readers: int = 200
    streams: int = 1
    pens: int = 2
    rate: float = 10
    lockstep: bool = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.title = f"delivery to {self.readers:,} SSE readers, up to {self.rate:g} appends/s"

    def lines(self) -> list[Line]:
        return [
            Line("p50", "append → data event p50", "ms", higher=False),
            Line("p99", "append → data event p99", "ms", higher=False),
            Line("pace", "appends that reached all, one after the other", "/s", secondary=True),
        ]

    def measure(self, server: Server) -> Sample:
        # Streams of its own for each repetition: what an overloaded server still has to append arrives in the old ones.
        repetition = time.monotonic_ns()
        targets = [f"{BASE}/live-{repetition}-{n}" for n in range(self.streams)]
        with Session(server.address) as session:
            for target in targets:
                session.create(target, load.TEXT)
        done = run(
            live.deliver(
                server.address,
                targets,
                readers_each=self.readers // self.streams,
                pens_each=self.pens,
                rate=self.rate,
                seconds=self.settings.seconds * 2,
                lockstep=self.lockstep,
            )
        )
        figures = {**milliseconds(done.latencies), "late": done.late, "errors": sum(done.errors.values())}
        figures["pace"] = min(self.rate, done.appended / done.seconds)
        figures["deliveries"] = len(done.latencies)
        return Sample(figures, dict(done.errors))


class Delivery200(Delivery):
    name = "delivery-200"


class Delivery1000(Delivery):
    name = "delivery-1000"
    readers = 1000
    rate = 5


class ActiveStreams(Delivery):
    """200 streams, each written to and read live at the same time. Any answer but 204 and any gap is an error."""

    name = "active-200"
    readers = 200
    streams = 200
    pens = 1
    rate = 400
    lockstep = False

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.title = f"{self.streams} streams written and read live, {self.rate:g} appends/s"

    def lines(self) -> list[Line]:
        return [
            Line("errors", "errors", "", higher=False, at_most=0),
            Line("deliveries", "deliveries", ""),
            Line("p50", "append → data event p50", "ms", higher=False, secondary=True),
            Line("p99", "append → data event p99", "ms", higher=False, secondary=True),
            Line("late", "appends behind the pace", "", higher=False, secondary=True),
        ]


class Memory(ServerRow):
    """Resident memory while 1,000 live readers of one stream have nothing to read."""

    name = "memory"
    title = "1,000 idle SSE readers"
    repeated = False
    readers: Final = 1000

    def lines(self) -> list[Line]:
        return [
            Line("rss", "server memory (RSS)", "MB", higher=False, at_most=150),
            Line("before", "before they came", "MB", higher=False, secondary=True),
        ]

    def prepare(self, server: Server) -> None:
        with Session(server.address) as session:
            session.create(f"{BASE}/idle", load.TEXT)

    def measure(self, server: Server) -> Sample:
        return run(self._measure(server))

    async def _measure(self, server: Server) -> Sample:
        before = server.child.rss_bytes()
        readers = [live.Reader(f"{BASE}/idle") for _ in range(self.readers)]
        try:
            await live.follow(server.address, readers)
            await asyncio.sleep(self.settings.seconds)
            after = server.child.rss_bytes()
            errors = Counter(f"reader: {reader.error}" for reader in readers if reader.error)
        finally:
            for reader in readers:
                reader.close()
        return Sample({"rss": after / MB, "before": before / MB}, dict(errors))


ROWS: Final[list[type[Row[Any]]]] = [
    OneStream100,
    OneStream1k,
    ManyStreams100,
    ManyStreams1k,
    ThousandStreams,
    JsonAppends,
    ProducerAppends,
    FollowedAppends,
    OneConnection,
    CatchUp1k,
    CatchUp64k,
    Delivery200,
    Delivery1000,
    ActiveStreams,
    Memory,
]
