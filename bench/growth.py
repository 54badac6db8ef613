"""What becomes of Tailrace when there is more in it: more streams, more entries.

A server is filled in steps and measured at each of them. The last figure is compared with the first: rates must stay
within 20 %, memory must stay flat, and a server over the largest database must start within two seconds. The status of
every response is checked, the tails of streams are compared, and the end of a filled stream is read back and counted.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final

from bench import generator, load
from bench.generator import Pages, Prepared, Source
from bench.load import Failed, Session
from bench.rows import BASE, CONNECTIONS, MB, OTHERS_MAX, Line, Meter, Row, Sample, ServerRow, run, setting_lines
from bench.servers import Missing, Server

SHARE_MIN: Final = 80.0  # percent of the first rate
MEMORY_MAX: Final = 1.2  # times the first
START_MAX_S: Final = 2.0
WRITTEN_STREAMS: Final = 10  # of however many there are
LONG: Final = f"{BASE}/long"
MESSAGE: Final = (b'{"id":123456,"kind":"order","note":"' + b"x" * 100)[:98] + b'"}'
FILL_MESSAGES: Final = 5_000  # in one request
DISK_BYTES_EACH: Final = 300  # for an entry of 100 B with its index, the log before a checkpoint, and room to spare


class GrowthRow(ServerRow):
    """The same server, measured at several sizes."""

    group = "growth"
    contenders = ("tailrace",)
    repeated = False
    repeatable = False  # each part of it is, instead
    sizes: tuple[int, ...] = ()
    rates: ClassVar[dict[str, tuple[str, str, str]]] = {}  # key: label, unit of the rate, what processor time is per

    def lines(self) -> list[Line]:
        lines: list[Line] = []
        for key, (label, unit, each) in self.rates.items():
            for size in self.sizes:
                lines.append(Line(f"{key} {size}", f"{label}, {self.called(size)}", unit))
                lines.append(Line(f"{key} cpu {size}", f"server CPU per {each}", "µs", higher=False))
            lines.append(Line(f"{key} share", "the last rate as a share of the first", "%", at_least=SHARE_MIN))
            lines.append(Line(f"{key} cpu share", "the same in processor time", "%", secondary=True))
        lines += [Line(f"rss {size}", f"server memory, {self.called(size)}", "MB", higher=False) for size in self.sizes]
        lines.append(Line("rss times", "memory: the last as a multiple of the first", "×", False, at_most=MEMORY_MAX))
        return [*lines, *self.more(), setting_lines()[0]]

    def more(self) -> list[Line]:
        return []

    def called(self, size: int) -> str:
        raise NotImplementedError

    def grow(self, server: Server, size: int, sample: Sample) -> None:
        """Fill the server up to this size."""
        raise NotImplementedError

    def parts(self, server: Server, size: int, sample: Sample) -> dict[str, Callable[[Meter], tuple[float, float]]]:
        """By the keys of `rates`: a measurement, which gives a rate and how many it counted."""
        raise NotImplementedError

    def measure(self, server: Server) -> Sample:
        sample = Sample({"others": 0.0})
        for size in self.sizes:
            self.grow(server, size, sample)
            for key, part in self.parts(server, size, sample).items():
                self._part(server, f"{key}", size, part, sample)
            sample.figures[f"rss {size}"] = server.child.rss_bytes() / MB
        figures, first, last = sample.figures, self.sizes[0], self.sizes[-1]
        for key in self.rates:
            figures[f"{key} share"] = figures[f"{key} {last}"] / figures[f"{key} {first}"] * 100
            figures[f"{key} cpu share"] = figures[f"{key} cpu {first}"] / figures[f"{key} cpu {last}"] * 100
        figures["rss times"] = figures[f"rss {last}"] / figures[f"rss {first}"]
        return sample

    def _part(
        self, server: Server, key: str, size: int, part: Callable[[Meter], tuple[float, float]], sample: Sample
    ) -> None:
        """Measure it until it is not disturbed, but not for ever."""
        settings, found = self.settings, {"others": float("inf")}
        for again in range(1 + settings.again):
            if again:
                settings.again_in_all -= 1
            meter = Meter(server, settings)
            rate, count = part(meter)
            seen = {"rate": rate, **meter.figures(count)}
            found = min(found, seen, key=lambda one: one["others"])
            if found["others"] <= OTHERS_MAX or settings.again_in_all <= 0:
                break
        sample.figures[f"{key} {size}"], sample.figures[f"{key} cpu {size}"] = found["rate"], found["cpu_us"]
        sample.figures["others"] = max(sample.figures["others"], found["others"])

    def append(self, server: Server, sources: list[Source], sample: Sample, meter: Meter) -> tuple[float, float]:
        done = run(
            generator.append(
                server.address,
                sources,
                seconds=self.settings.short_s,
                warmup_s=self.settings.warmup_s,
                started=meter.start,
                ended=meter.end,
            )
        )
        self.note(done.errors, sample)
        with Session(server.address) as session:
            for target in list(done.tails)[:: max(1, len(done.tails) // 100)]:
                if (tail := session.tail(target)) != done.tails[target]:
                    sample.complaints.append(f"{target}: tail {tail}, acknowledged up to {done.tails[target]}")
        return done.rate, len(done.latencies)

    def read(self, server: Server, offset: str, most: int, sample: Sample, meter: Meter) -> tuple[float, float]:
        """Read about so many bytes of the long stream from an offset, again and again; MB per second and MB."""
        with Session(server.address) as session:
            pages = Pages.of(session, LONG, offset, most)
        done, read = run(generator.read(server.address, pages, self.settings.short_s, meter.start, meter.end))
        self.note(done.errors, sample)
        return read / MB / done.seconds, read / MB

    def note(self, errors: Counter[str], sample: Sample) -> None:
        for what, count in errors.items():
            sample.errors[what] = sample.errors.get(what, 0) + count


class GrowingStreams(GrowthRow):
    """More and more streams."""

    name = "growth-streams"
    rates: ClassVar = {
        "ten": (f"appends to {WRITTEN_STREAMS} of them, {CONNECTIONS} connections, 100 B", "/s", "append"),
        "all": (f"appends to all of them in turn, {CONNECTIONS} connections, 100 B", "/s", "append"),
        "read": ("catch-up of one, messages of 1 KB", "MB/s", "MB"),
    }

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.sizes = settings.growth_streams
        self.title = f"a server with {', '.join(f'{size:,}' for size in self.sizes)} streams"
        self.long_bytes = settings.catch_up_bytes // 5

    def called(self, size: int) -> str:
        return f"{size:,} streams"

    def target(self, number: int) -> str:
        return f"{BASE}/many/{number}"

    def prepare(self, server: Server) -> None:
        with Session(server.address) as session:
            session.create(LONG)
        sources = [generator.appends([LONG], b"x" * 1024, load.OCTETS, limit=self.long_bytes // 1024 // 16)] * 16
        if errors := run(generator.append(server.address, sources)).errors:
            raise Failed(f"could not fill the stream: {dict(errors)}")

    def grow(self, server: Server, size: int, sample: Sample) -> None:
        there = max((other for other in self.sizes if other < size), default=0)
        kind = [("content-type", load.OCTETS)]
        puts = [Prepared(load.request("PUT", self.target(n), kind), 201) for n in range(there, size)]
        shares = [puts[n::CONNECTIONS] for n in range(min(CONNECTIONS, len(puts)))]
        done = run(generator.drive(server.address, [Source(share, limit=len(share)) for share in shares]))
        if done.errors:
            raise Failed(f"could not create the streams: {dict(done.errors)}")

    def parts(self, server: Server, size: int, sample: Sample) -> dict[str, Callable[[Meter], tuple[float, float]]]:
        body = b"x" * 100
        everything = [self.target(n) for n in range(size)]
        some = everything[:: max(1, size // WRITTEN_STREAMS)][:WRITTEN_STREAMS]

        def sources(targets: list[str]) -> list[Source]:
            shares = [targets[n::CONNECTIONS] or [targets[n % len(targets)]] for n in range(CONNECTIONS)]
            return [generator.appends(share, body, load.OCTETS) for share in shares]

        return {
            "ten": lambda meter: self.append(server, sources(some), sample, meter),
            "all": lambda meter: self.append(server, sources(everything), sample, meter),
            "read": lambda meter: self.read(server, "-1", self.long_bytes, sample, meter),
        }


class GrowingLog(GrowthRow):
    """One stream that becomes longer and longer; the server is started anew at each size."""

    name = "growth-entries"
    rates: ClassVar = {
        "append": (f"appends, {CONNECTIONS} connections", "/s", "append"),
        "first": ("catch-up, from the beginning", "MB/s", "MB"),
        "last": ("catch-up, of the end", "MB/s", "MB"),
    }

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.sizes = settings.growth_entries
        self.part_entries = min(settings.catch_up_bytes // len(MESSAGE), self.sizes[0])
        named = ", ".join(f"{size / 1e6:g}" for size in self.sizes)
        self.title = f"a stream of {named} million entries of 100 B"
        self._held = 0
        self._near_end = "-1"

    def called(self, size: int) -> str:
        return f"{size / 1e6:g} million entries"

    def more(self) -> list[Line]:
        lines: list[Line] = []
        for size in self.sizes:
            label = f"start-up until the first answer, {self.called(size)}"
            most = START_MAX_S if size == self.sizes[-1] else None
            lines.append(Line(f"start {size}", label, "s", higher=False, at_most=most))
            lines.append(Line(f"start cpu {size}", "the same in processor time", "s", higher=False, secondary=True))
        fill = Line("fill", f"entries written before, {FILL_MESSAGES:,} to a request", "/s", secondary=True)
        return [*lines, fill, Line("disk", "bytes on disk per entry", "", higher=False, secondary=True)]

    def start(self, server: Server) -> None:
        self.settings.data.mkdir(parents=True, exist_ok=True)
        needed = self.sizes[-1] * DISK_BYTES_EACH
        if (free := shutil.disk_usage(self.settings.data).free) < needed:
            raise Missing(f"it needs {needed / 1e9:.0f} GB of disk, {free / 1e9:.0f} GB are free")
        super().start(server)

    def prepare(self, server: Server) -> None:
        with Session(server.address) as session:
            session.create(LONG, load.JSON)

    def grow(self, server: Server, size: int, sample: Sample) -> None:
        begin, before = time.perf_counter(), self._held
        self._fill(server, max(0, size - self._held - self.part_entries))
        with Session(server.address) as session:
            self._near_end = session.tail(LONG)
        self._fill(server, self.part_entries)
        sample.figures["fill"] = (self._held - before) / (time.perf_counter() - begin)
        server.stop()
        begin = time.perf_counter()
        server.start()
        with Session(server.address) as session:
            session.tail(LONG)
            sample.figures[f"start {size}"] = time.perf_counter() - begin
            sample.figures[f"start cpu {size}"] = server.cpu_s()
            counted = sum(page.body.count(b'{"id"') for page in session.pages(LONG, self._near_end))
        if counted != self.part_entries:
            sample.complaints.append(f"{counted} of the last {self.part_entries} entries are there")
        sample.figures["disk"] = bytes_in(server.data) / self._held

    def _fill(self, server: Server, count: int) -> None:
        """Append so many entries; from one connection, because requests of this size keep the server busy."""
        for messages, limit in ((FILL_MESSAGES, count // FILL_MESSAGES), (count % FILL_MESSAGES, 1)):
            if messages and limit:
                body = b"[" + b",".join([MESSAGE] * messages) + b"]"
                sources = [generator.appends([LONG], body, load.JSON, limit=limit)]
                if errors := run(generator.append(server.address, sources)).errors:
                    raise Failed(f"could not fill the stream: {dict(errors)}")
        self._held += count

    def parts(self, server: Server, size: int, sample: Sample) -> dict[str, Callable[[Meter], tuple[float, float]]]:
        sources = [generator.appends([LONG], MESSAGE, load.JSON)] * CONNECTIONS
        most = self.part_entries * len(MESSAGE)
        near_end, before_end = self._near_end, self._held - self.part_entries

        def append(meter: Meter) -> tuple[float, float]:
            rate, count = self.append(server, sources, sample, meter)
            with Session(server.address) as session:
                pages = session.pages(LONG, near_end)
                self._held = before_end + sum(page.body.count(b'{"id"') for page in pages)
            return rate, count

        return {
            "first": lambda meter: self.read(server, "-1", most, sample, meter),
            "last": lambda meter: self.read(server, near_end, most, sample, meter),
            "append": append,
        }


def bytes_in(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


ROWS: Final[list[type[Row[Any]]]] = [GrowingStreams, GrowingLog]
