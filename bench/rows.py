"""What is measured, one class per row.

A row prepares each server once, then measures them in turn (A B A B A B): the machine is noisy, and its mood must
not fall on one of them. A sample is a dictionary of figures; the report takes the median of each over the
repetitions. What went wrong (answers that were not the expected one, streams that do not hold what was
acknowledged) travels with the sample and is printed in the row. So does the processor time of the server, which is
steadier than a rate on cores that others use too, and the share of the server's core that others took: a sample with
too much of it is taken again.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypeVar

import uvloop

from bench import generator, live, load
from bench.generator import Pages, Source
from bench.load import Session
from bench.machine import Core, probe
from bench.servers import DURABILITY, NAMES, Contender, Missing, Server, scratch

T = TypeVar("T")
C = TypeVar("C", bound=Contender)

BASE: Final = "/v1/stream/bench"
CONNECTIONS: Final = 64
MB: Final = 1_000_000
OTHERS_MAX: Final = 10.0  # percent of the server's core: with more of it taken by others a sample counts as disturbed
AGAIN_AFTER_S: Final = 1.0  # a moment for the disturbance to pass
SYNC_CALLS: Final = "fsync,fdatasync,sync_file_range,msync"
SYNCED_WRITES: Final = 200


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
    again: int = 3  # how often a disturbed sample is repeated at most
    again_in_all: int = 120  # and all of them together: a machine that is never quiet must not take forever
    growth_streams: tuple[int, ...] = (10, 1_000, 100_000)
    growth_entries: tuple[int, ...] = (1_000_000, 10_000_000, 50_000_000)
    small_bytes: int = 10 * MB  # of messages of 100 B that are caught up with
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
            messages=20_000, pipeline=(50_000, 100_000, 200_000), ticks=8, again=0,
            growth_streams=(10, 100, 1_000), growth_entries=(20_000, 50_000, 200_000), small_bytes=MB,
        )  # fmt: skip


@dataclass
class Sample:
    figures: dict[str, float] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)

    @property
    def disturbed(self) -> bool:
        return self.figures.get("others", 0.0) > OTHERS_MAX


@dataclass
class Line:
    """One printed line of a row: a figure, which way is better, and what the issue expects of it."""

    key: str
    label: str
    unit: str
    higher: bool = True
    at_least: float | None = None  # of our figure
    at_most: float | None = None
    ratio_at_least: float | None = None  # better than the best of the others by, or than
    against: str | None = None  # this one of them
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
    repeatable: ClassVar[bool] = True  # whether a disturbed sample can be taken again

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


def quiet_sample(server: C, row: Row[C]) -> Sample:
    """A sample; while it is disturbed, another one, so often as the settings allow. The least disturbed one is kept."""
    settings = row.settings
    best = row.measure(server)
    for _ in range(settings.again if row.repeatable else 0):
        if not best.disturbed or not settings.again_in_all or best.errors or best.complaints:
            break
        settings.again_in_all -= 1
        time.sleep(AGAIN_AFTER_S)
        other = row.measure(server)
        if other.errors or other.complaints or other.figures["others"] < best.figures["others"]:
            best = other
    return best


class ServerRow(Row[Server]):
    """A measurement of servers."""

    def contender(self, name: str) -> Server:
        return Server(name, self.settings.data / self.name / name, self.settings.server_core)


def cpu_line(what: str) -> Line:
    """Processor time of all threads and processes of the server, for each of what is counted."""
    return Line("cpu_us", f"server CPU per {what}", "µs", higher=False)


def setting_lines(client: str = "load generator busy") -> list[Line]:
    """Under what circumstances the figures above came about."""
    return [
        Line("others", "of the server's core, taken by others", "%", higher=False, secondary=True),
        Line("client", client, "%", higher=False, secondary=True),
    ]


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return uvloop.run(coroutine)


def milliseconds(latencies: Sequence[float], prefix: str = "") -> dict[str, float]:
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
            cpu_line("append"),
            Line("p99", "p99 under this load", "ms", higher=False, secondary=True),
            *setting_lines(),
        ]

    def headline(self) -> Line:
        return Line("rate", "appends", "/s", ratio_at_least=1.0, against="electric")

    def prepare(self, server: Server) -> None:
        with Session(server.address) as session:
            for target in self.targets:
                session.create(target, self.content_type)

    def sources(self, repetition: int) -> Iterator[Source]:
        """Each connection goes round over streams of its own; where there are fewer streams, they are shared."""
        for n in range(CONNECTIONS):
            mine = self.targets[n::CONNECTIONS] or [self.targets[n % len(self.targets)]]
            yield generator.appends(mine, self.body, self.content_type)

    def measure(self, server: Server) -> Sample:
        return run(self._measure(server))

    async def _measure(self, server: Server) -> Sample:
        with Session(server.address) as session:
            before = {target: session.create(target, self.content_type) for target in self.targets}
        readers = [live.Reader(self.targets[0]) for _ in range(self.readers)]
        meter = Meter(server, self.settings)
        try:
            await live.follow(server.address, readers)
            done = await generator.append(
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
        count = generator.messages if self.content_type == load.JSON else None
        with Session(server.address) as session:
            complaints += generator.verify(session, done, before, count=count, size=self.size)
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
    """What the server's processes and its core did during the measured window."""

    def __init__(self, server: Contender, settings: Settings) -> None:
        self._server = server
        self._core = Core(min(settings.server_core))

    def start(self) -> None:
        self._cpu, (self._busy, self._all) = self._server.cpu_s(), self._core.look()

    def end(self) -> None:
        busy, total = self._core.look()
        self._cpu = self._server.cpu_s() - self._cpu
        self._busy, self._all = busy - self._busy, total - self._all

    def __enter__(self) -> Meter:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def figures(self, count: float) -> dict[str, float]:
        """Processor time for each of so many, and how disturbed the window was."""
        return {
            "cpu_us": self._cpu / count * 1e6 if count else float("nan"),
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
        return Line(
            "rate", "appends", "/s",
            ratio_at_least=1.0, against="electric", share_at_least=(ManyStreams100.name, 0.5),
        )  # fmt: skip


class JsonAppends(Appends):
    name = "append-json"
    content_type = load.JSON

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, 1, 100)
        frame = b'{"id":123456,"kind":"order","note":"%s"}'
        self.body = frame % (b"x" * (self.size - len(frame) + 2))
        self.title = f"{CONNECTIONS} connections, 1 JSON stream, {self.size} B"


class ProducerAppends(Appends):
    """Each connection is an idempotent producer of its own; a new one in each repetition."""

    name = "append-producers"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, 1, 100)
        self.title = f"{CONNECTIONS} idempotent producers, 1 stream, {self.size} B"

    def sources(self, repetition: int) -> Iterator[Source]:
        for n in range(CONNECTIONS):
            yield generator.produced(self.targets, f"producer-{repetition}-{n}", self.body, self.content_type)


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
            Line("p50", "append latency p50", "ms", higher=False, within=("disk_p50", 1.6)),
            Line("p99", "append latency p99", "ms", higher=False),
            cpu_line("append"),
            Line("disk_p50", "bare write + fdatasync just then, p50", "ms", higher=False, secondary=True),
            Line("times_disk", "append p50 as a multiple of it", "×", higher=False, secondary=True),
            *setting_lines(),
        ]

    def prepare(self, server: Server) -> None:
        with Session(server.address) as session:
            session.create(f"{BASE}/one")

    def measure(self, server: Server) -> Sample:
        target, body = f"{BASE}/one", b"x" * 100
        with Session(server.address) as session:
            before = session.tail(target)
        meter = Meter(server, self.settings)
        disk = [probe(self.settings.data, self.settings.server_core, count=150)]
        done = run(
            generator.append(
                server.address,
                [generator.appends([target], body, load.OCTETS)],
                seconds=self.settings.seconds,
                warmup_s=self.settings.warmup_s,
                started=meter.start,
                ended=meter.end,
            )
        )
        disk.append(probe(self.settings.data, self.settings.server_core, count=150))
        with Session(server.address) as session:
            complaints = generator.verify(session, done, {target: before}, count=None, size=len(body))
        figures = {**milliseconds(done.latencies), "client": done.client_share * 100}
        figures["disk_p50"] = sum(one.grow_p50 for one in disk) / 2
        figures["times_disk"] = figures["p50"] / figures["disk_p50"]
        return Sample(figures | meter.figures(len(done.latencies)), dict(done.errors), complaints)


class SyncsRow(ServerRow):
    """How often each server asks the disk to keep what it has: system calls, counted by strace."""

    repeated = False
    what: ClassVar[str] = "append"

    def lines(self) -> list[Line]:
        label = f"fsync, fdatasync and the like per {self.what}"
        return [Line("syncs", label, "", compared=False, at_least=1)]

    def _trace(self, server: Server) -> Path:
        return server.data.with_name(f"{server.name}.strace")

    def start(self, server: Server) -> None:
        if shutil.which("strace") is None:
            raise Missing(f"strace is not here to count with. {DURABILITY[server.name]}")
        self._trace(server).parent.mkdir(parents=True, exist_ok=True)
        # -D: the server keeps the process that was started, and strace is the one that goes with it
        server.start(("strace", "-D", "-f", "-qq", "-e", f"trace={SYNC_CALLS}", "-o", str(self._trace(server))))

    def write(self, server: Server) -> Iterator[None]:
        """Write one after the other, each acknowledged before the next; the first yield is before all of them."""
        raise NotImplementedError

    def measure(self, server: Server) -> Sample:
        writes = self.write(server)
        next(writes)
        time.sleep(0.5)  # what the preparation leaves to be done is not counted
        before = self._count(server)
        count = sum(1 for _ in writes)
        return Sample({"syncs": (self._count(server) - before) / count})

    def _count(self, server: Server) -> int:
        lines = self._trace(server).read_text().splitlines()
        return sum("sync" in line and "resumed" not in line for line in lines)


class AppendSyncs(SyncsRow):
    name = "append-syncs"
    title = f"{SYNCED_WRITES} appends of 100 B from 1 connection, one at a time, under strace"

    def write(self, server: Server) -> Iterator[None]:
        with Session(server.address) as session:
            session.create(f"{BASE}/synced")
            yield
            for _ in range(SYNCED_WRITES):
                answer = session.call("POST", f"{BASE}/synced", [("content-type", load.OCTETS)], b"x" * 100)
                if answer.status != 204:
                    raise load.Failed(f"an append was answered {answer.status}")
                yield


class CatchUp(ServerRow):
    """Read a stream from its start, page after page, until the server says that this is all.

    The servers are filled in memory, where an append does not wait for the disk, and are then started on the same
    files on the disk. One untimed read compares every byte.
    """

    size: int = 1024
    connections: int = 16

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.count = self.bytes_in_all() // self.size
        self.body = (bytes(range(33, 97)) * (self.size // 64 + 1))[: self.size]
        unit = f"{self.size // 1024} KB" if self.size >= 1024 else f"{self.size} B"
        self.title = f"catch-up of {self.count * self.size / MB:.0f} MB in messages of {unit}"

    def bytes_in_all(self) -> int:
        return self.settings.catch_up_bytes

    def lines(self) -> list[Line]:
        return [
            Line("mbs", "read", "MB/s", ratio_at_least=0.9, against="electric"),
            cpu_line("MB"),
            Line("pages", "pages", "", higher=False, secondary=True),
            *setting_lines(),
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
        shares = [self.count // self.connections] * self.connections
        shares[0] += self.count % self.connections
        sources = [generator.appends([target], self.body, load.OCTETS, limit=share) for share in shares]
        done = run(generator.append(server.address, sources))
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
        meter = Meter(server, self.settings)
        with Session(server.address) as session:
            pages = Pages.of(session, f"{BASE}/long")
        done, read = run(generator.read(server.address, pages, self.settings.short_s, meter.start, meter.end))
        sample = Sample({"mbs": read / MB / done.seconds, "pages": len(pages.lengths)}, dict(done.errors))
        if sum(pages.lengths) != self.count * self.size:
            sample.complaints.append(f"read {sum(pages.lengths)} bytes of {self.count * self.size}")
        sample.figures |= {"client": done.client_share * 100, **meter.figures(read / MB)}
        return sample


class CatchUp100(CatchUp):
    name = "catchup-100"
    size = 100

    def bytes_in_all(self) -> int:
        return self.settings.small_bytes


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
            Line("p99", "append → data event p99", "ms", higher=False, ratio_at_least=1.0, against="electric"),
            cpu_line("delivery"),
            Line("pace", "appends that reached all, one after the other", "/s", secondary=True),
            *setting_lines(),
        ]

    def measure(self, server: Server) -> Sample:
        # Streams of its own for each repetition: what an overloaded server still has to append arrives in the old ones.
        repetition = time.monotonic_ns()
        targets = [f"{BASE}/live-{repetition}-{n}" for n in range(self.streams)]
        with Session(server.address) as session:
            for target in targets:
                session.create(target, load.TEXT)
        meter = Meter(server, self.settings)
        done = run(
            live.deliver(
                server.address,
                targets,
                readers_each=self.readers // self.streams,
                pens_each=self.pens,
                rate=self.rate,
                seconds=self.settings.seconds * 2,
                started=meter.start,
                ended=meter.end,
                lockstep=self.lockstep,
            )
        )
        figures = {**milliseconds(done.latencies), "late": done.late, "errors": sum(done.errors.values())}
        figures["pace"] = min(self.rate, done.appended / done.seconds)
        figures["deliveries"] = len(done.latencies)
        figures["client"] = done.client_cpu_s / done.busy_s * 100
        return Sample(figures | meter.figures(len(done.latencies)), dict(done.errors))


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
            Line("deliveries", "deliveries", "", compared=False),
            cpu_line("delivery"),
            Line("p50", "append → data event p50", "ms", higher=False, secondary=True),
            Line("p99", "append → data event p99", "ms", higher=False, secondary=True),
            Line("late", "appends behind the pace", "", higher=False, secondary=True),
            *setting_lines(),
        ]


class Memory(ServerRow):
    """Resident memory while 1,000 live readers of one stream have nothing to read."""

    name = "memory"
    title = "1,000 idle SSE readers"
    repeated = False
    readers: Final = 1000
    first: Final = 100  # with them comes what a server needs for any number: code, pools, buffers

    def lines(self) -> list[Line]:
        return [
            Line("each", "memory per reader, from the 101st to the 1,000th", "KB", higher=False, at_most=4),
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
            await live.follow(server.address, readers[: self.first])
            await asyncio.sleep(self.settings.seconds)
            few = server.child.rss_bytes()
            await live.follow(server.address, readers[self.first :])
            await asyncio.sleep(self.settings.seconds)
            after = server.child.rss_bytes()
            errors = Counter(f"reader: {reader.error}" for reader in readers if reader.error)
        finally:
            for reader in readers:
                reader.close()
        each = (after - few) / (self.readers - self.first) / 1000
        return Sample({"each": each, "rss": after / MB, "before": before / MB}, dict(errors))


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
    AppendSyncs,
    CatchUp100,
    CatchUp1k,
    CatchUp64k,
    Delivery200,
    Delivery1000,
    ActiveStreams,
    Memory,
]
