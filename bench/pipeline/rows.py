"""What is measured of the pipeline: source, jobs and sink, and what the server does meanwhile.

The order of the rows is that of the history's life: written, read hot, tiered, trimmed, read cold. Rates are of rows,
by the clock of the process that has the session, with planning and commits; starting Spark is not counted. What was
read or written is compared with what must come of the changes (`orders.Model`).
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, Final

import duckdb

from bench import generator, load
from bench.load import Failed, Session
from bench.pipeline import orders, views
from bench.pipeline.plant import Plant, family_s, say
from bench.pipeline.row import PARQUET, LapRow, Part, PipelineRow, compare, millions
from bench.rows import BASE, CONNECTIONS, Line, Meter, Row, Sample, Settings, milliseconds, run
from bench.servers import ROOT

HOT_SHARE: Final = 0.7  # of its rate, where both write Parquet
COLD_SHARE: Final = 0.95
SOURCE_CPU_US: Final = 5.0  # a row: server, and Python in Spark
SINK_RATE: Final = 80_000  # rows a second into a table
SINK_CPU_US: Final = 12.0  # of the server, a row
TIER_RATE: Final = 300_000
APPEND_SHARE: Final = 0.7  # of the rate without a bulk read
CHANGE: Final = (
    "offset", "next_offset", "sequence", "index", "last", "timestamp", "event", "principal", "keys", "before", "after",
)  # fmt: skip
APPENDED: Final = f"{BASE}/pipeline"
SEEN_TIMEOUT_S: Final = 60.0


def about() -> str:
    """What stands in the column of Parquet."""
    try:
        found = f"PySpark {version('pyspark')}"
    except PackageNotFoundError:
        found = "no PySpark"
    return f"{found}; Spark's own reader over Parquet that Spark wrote (Snappy) from the same rows, in the page cache"


class Loads(PipelineRow):
    """Single puts from Python, many to a commit: how the history comes about."""

    name = "pipeline-load"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.title = (
            f"{self.most:,} puts of small items from Python, {orders.AT_ONCE:,} to a commit, both images recorded"
        )

    def lines(self) -> list[Line]:
        return [Line("rate", "changes", "/s"), self.others()]

    def ready(self) -> None:
        pass

    def work(self, server: Part, sample: Sample) -> None:
        self.plant.load()
        sample.figures["rate"] = self.most / self.plant.load_s

    def verify(self, server: Part, sample: Sample) -> None:
        with self.plant.client() as client:
            (part,) = client.logs(table=orders.TABLE)["partitions"]
        compare(sample, "the offset behind the last change", part["next"], self.plant.until(self.most))


# -- the source


class Reads(PipelineRow):
    """The first so many changes: read into nothing, counted, and written to Parquet; then the same of that Parquet."""

    contenders = ("tailrace", PARQUET)
    cores: ClassVar[int] = 2
    share: ClassVar[float] = HOT_SHARE
    where: ClassVar[str] = "hot, from the server"
    native: ClassVar[bool] = False
    images: ClassVar[str] = "typed"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        form = "typed columns" if self.images == "typed" else "JSON"
        self.title = (
            f"read of changes, {form}, {self.where}, Spark local[{self.cores}]; beside it the same rows as Parquet"
        )

    def lines(self) -> list[Line]:
        lines = []
        for size in self.sizes:
            named = f"{millions(size)} rows"
            lines += [
                Line(f"noop {size}", f"{named}, all columns, into nothing", "/s"),
                Line(
                    f"cpu {size}", f"{named}, CPU of server and Python per row", "µs", higher=False, secondary=True,
                    at_most=SOURCE_CPU_US if self.images == "typed" else None, compared=False,
                ),
                Line(f"count {size}", f"{named}, counted", "/s", compared=False),
                Line(
                    f"copy {size}", f"{named}, written to Parquet", "/s",
                    ratio_at_least=self.share if self.images == "typed" else None,
                ),
                Line(
                    f"copy cpu {size}", f"{named}, written to Parquet, CPU of server and Spark per row", "µs",
                    higher=False, secondary=True,
                ),
            ]  # fmt: skip
        return [*lines, self.others()]

    def ready(self) -> None:
        self.plant.spark(self.cores)

    def copy(self, name: str, size: int) -> Path:
        return self.settings.data / self.name / f"{name}-{size}"

    def work(self, server: Part, sample: Sample) -> None:
        spark = self.plant.spark(self.cores)
        for size in self.sizes:
            if server.name == PARQUET:
                made = self.copy("tailrace", size)
                if not (made / "_SUCCESS").exists():
                    raise Failed("there is no Parquet to read, since Tailrace's rows were not written")
                parameters: dict[str, Any] = {"path": str(made)}
            else:
                parameters = {"until": self.plant.until(size), "native": self.native, "images": self.images}
            with Meter(self.plant.server, self.settings) as meter:
                done = spark.ask("noop", **parameters)
            sample.figures[f"noop {size}"] = size / done["seconds"]
            sample.figures[f"cpu {size}"] = meter.figures(size)["cpu_us"] + done["python_s"] / size * 1e6
            done = spark.ask("count", **parameters)
            sample.figures[f"count {size}"] = size / done["seconds"]
            compare(sample, f"rows counted of {size:,}", done["count"], size)
            before = family_s(os.getpid())
            done = spark.ask("parquet", into=str(self.copy(server.name, size)), **parameters)
            sample.figures[f"copy {size}"] = size / done["seconds"]
            sample.figures[f"copy cpu {size}"] = (family_s(os.getpid()) - before) / size * 1e6

    def verify(self, server: Part, sample: Sample) -> None:
        for size in self.sizes:
            model = self.plant.model(size)
            rows, distinct, totals, sums = self._sums(self.copy(server.name, size))
            compare(sample, "rows written", rows, size)
            compare(sample, "different sequences", distinct, size)
            compare(sample, "sum of totals", totals, model.totals)
            # All reads of the same changes are the same to the last character, whoever reads them from wherever.
            known = self.plant.sums.setdefault((self.images, size), (sums,))
            compare(sample, "sum of hashes", sums, known[0])

    def _sums(self, path: Path) -> tuple[int, int, int, int]:
        columns = ", ".join(f'"{name}"' for name in CHANGE)
        total = "after.total" if self.images == "typed" else "after ->> '$.total'"
        text = f"""SELECT count(*), count(DISTINCT sequence), sum(CAST({total} AS BIGINT)),
            sum(CAST(hash({columns}) AS HUGEINT)) FROM read_parquet(?)"""
        with duckdb.connect() as connection:
            found = connection.execute(text, [f"{path}/*.parquet"]).fetchone()
        assert found is not None
        return tuple(int(each or 0) for each in found)  # type: ignore[return-value]


class HotReadsOne(Reads):
    name = "pipeline-hot-1"
    cores = 1


class HotReadsTwo(Reads):
    name = "pipeline-hot-2"
    cores = 2


class HotJsonTwo(HotReadsTwo):
    name = "pipeline-hot-json-2"
    images = "json"


class ColdReads(Reads):
    share = COLD_SHARE
    where = "cold, from Delta files"

    def ready(self) -> None:
        self.plant.trimmed()
        super().ready()


class ColdReadsOne(ColdReads):
    name = "pipeline-cold-1"
    cores = 1


class ColdReadsTwo(ColdReads):
    name = "pipeline-cold-2"
    cores = 2


class ColdJsonTwo(ColdReadsTwo):
    name = "pipeline-cold-json-2"
    images = "json"


class HistoriesOne(ColdReadsOne):
    name = "pipeline-history-1"
    where = "cold, by history()"
    native = True
    images = "json"


class HistoriesTwo(ColdReadsTwo):
    name = "pipeline-history-2"
    where = "cold, by history()"
    native = True
    images = "json"


# -- the server meanwhile


class AppendsMeanwhile(PipelineRow):
    """Appends from 64 connections, without and with a bulk read of the history by another process, in turn."""

    name = "pipeline-appends"
    title = f"appends of 100 B from {CONNECTIONS} connections while another client reads the history as Arrow"
    body: Final = b"x" * 100

    def lines(self) -> list[Line]:
        return [
            Line("share", "appends, of those without a bulk read", "×", at_least=APPEND_SHARE),
            Line("with", "appends with it", "/s"),
            Line("without", "appends without it", "/s"),
            Line("with p99", "p99 with it", "ms", higher=False),
            Line("without p99", "p99 without it", "ms", higher=False),
            Line("read", "changes read meanwhile", "/s", secondary=True),
            Line("cpu_us", "server CPU per append without it", "µs", higher=False, secondary=True),
            Line("client", "load generator busy", "%", higher=False, secondary=True),
            self.others(),
        ]

    def ready(self) -> None:
        with Session(self.plant.server.address) as session:
            session.create(APPENDED, load.OCTETS)

    def work(self, server: Part, sample: Sample) -> None:
        rounds: list[dict[str, float]] = []
        for _ in range(self.settings.repetitions):
            figures = self._appends("without", sample)
            with self._reading(sample, figures):
                figures |= self._appends("with", sample)
            figures["share"] = figures["with"] / figures["without"]
            rounds.append(figures)
        sample.figures |= {name: median(each[name] for each in rounds) for name in rounds[0]}

    def _appends(self, how: str, sample: Sample) -> dict[str, float]:
        server = self.plant.server
        meter = Meter(server, self.settings)
        with Session(server.address) as session:
            before = session.tail(APPENDED)
        sources = [generator.appends([APPENDED], self.body, load.OCTETS) for _ in range(CONNECTIONS)]
        done = run(
            generator.append(
                server.address, sources, seconds=self.settings.seconds, warmup_s=self.settings.warmup_s,
                started=meter.start, ended=meter.end,
            )
        )  # fmt: skip
        with Session(server.address) as session:
            sample.complaints += generator.verify(session, done, {APPENDED: before}, count=None, size=len(self.body))
        for what, count in done.errors.items():
            sample.errors[what] = sample.errors.get(what, 0) + count
        found = {how: done.rate, f"{how} p99": milliseconds(done.latencies)["p99"]}
        if how == "without":
            found |= {"cpu_us": meter.figures(len(done.latencies))["cpu_us"], "client": done.client_share * 100}
        return found

    @contextmanager
    def _reading(self, sample: Sample, figures: dict[str, float]) -> Iterator[None]:
        """A bulk read is under way."""
        command = [sys.executable, "-m", "bench.pipeline.reader", self.plant.url, str(self.most)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                if not process.stdout.readline():
                    raise Failed("the bulk reader did not start")
                time.sleep(0.3)
                yield
                process.stdin.close()
                done = json.loads(process.stdout.readline() or b"{}")
            except BaseException:
                process.kill()
                raise
        if not done:
            raise Failed("the bulk reader failed")
        figures["read"] = done["rows"] / done["seconds"]
        if done["wrong"] or not done["rows"]:
            sample.complaints.append(f"{done['wrong']} of {done['passes']} bulk reads were not whole")


# -- jobs


class Tiers(LapRow):
    """All of the history into cold storage."""

    name = "pipeline-tier"
    goal = TIER_RATE

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.title = (
            f"tier job, {self.most:,} changes into Delta files on the same disk; beside it Spark copies Parquet of them"
        )

    def more(self) -> list[Line]:
        return [
            Line("bytes", "bytes per change in cold storage", "", higher=False, secondary=True),
            Line("commits", "commits", "", higher=False, secondary=True),
        ]

    def ready(self) -> None:
        self.plant.spark(2)
        self.plant.parquet()

    def ours(self, sample: Sample) -> dict[str, Any]:
        done = self.plant.tiered()
        sample.figures |= {"bytes": done["bytes"] / self.most, "commits": done["commits"]}
        return done

    def native(self, size: int) -> float:
        into = str(self.settings.data / self.name / f"copied-{size}")
        until = self.plant.until(size)
        done = self.plant.spark(2).ask("parquet", into=into, path=str(self.plant.parquet()), until=until)
        return float(done["seconds"])

    def verify(self, server: Part, sample: Sample) -> None:
        if server.name == PARQUET:
            return
        with self.plant.client() as client:
            (part,) = client.logs(table=orders.TABLE)["partitions"]
        compare(sample, "the tiered mark", part["tiered"], self.plant.until(self.most))
        found = delta(self.plant, f"tables/{orders.TABLE}", "count(*), count(DISTINCT sequence), count(body)")
        compare(sample, "rows, sequences and bodies in cold storage", found, (self.most,) * 3)


class Snapshots(PipelineRow):
    """The changes folded to the last state of every item, each time from the beginning."""

    name = "pipeline-snapshot"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        keys = max(self.sizes) // orders.CHANGES_PER_KEY
        self.title = f"snapshot job: cold changes of {keys:,} items folded to their state, written to Delta"

    def lines(self) -> list[Line]:
        return [*(Line(f"rate {size}", f"{millions(size)} changes", "/s") for size in self.sizes), self.others()]

    def ready(self) -> None:
        self.plant.trimmed()
        self.plant.spark(2)

    def work(self, server: Part, sample: Sample) -> None:
        for size in self.sizes:
            self._forget()
            done = self.plant.spark(2).ask("snapshot", at=self.plant.until(size) - 1)
            sample.figures[f"rate {size}"] = size / done["seconds"]
            model = self.plant.model(size)
            compare(sample, "how the snapshot was taken", done["how"], "folded")
            columns = "count(*), count(DISTINCT keys), sum(CAST(item ->> '$.total' AS BIGINT))"
            found = delta(self.plant, f"snapshots/{orders.TABLE}", columns)
            compare(sample, f"items, keys and totals after {size:,}", found, (model.items,) * 2 + (model.state_totals,))

    def _forget(self) -> None:
        """The earlier snapshot, on which the next one would stand."""
        shutil.rmtree(self.plant.cold() / "snapshots", ignore_errors=True)


def delta(plant: Plant, place: str, columns: str) -> tuple[int, ...]:
    """Sums over a place of cold storage, by programs that know nothing of Tailrace."""
    from deltalake import DeltaTable

    files = DeltaTable(str(plant.cold() / place)).file_uris()
    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT {columns} FROM read_parquet(?)", [files]).fetchone()
    assert found is not None
    return tuple(int(each or 0) for each in found)


# -- the sink


class Sinks(PipelineRow):
    """Rows that Spark makes up as it goes, written as batches; a figure is of all up to there."""

    contenders = ("tailrace", PARQUET)
    kind: ClassVar[str] = "stream"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        what = {"stream": "a JSON stream", "topic": "a topic", "table": "a table without a change stream"}[self.kind]
        self.title = f"sink, small rows into {what}, Spark local[2]; beside it the same rows written as Parquet"
        self.target = "bench/sink" if self.kind == "stream" else "sunk"
        self._made = False

    def lines(self) -> list[Line]:
        return [
            *(
                Line(f"rate {size}", f"the first {millions(size)}", "/s", at_least=self._goal(size, SINK_RATE))
                for size in self.sizes
            ),
            Line(
                "server_us", "server CPU per row", "µs", higher=False, at_most=self._goal(self.most, SINK_CPU_US),
                compared=False,
            ),
            Line("spark_us", "Spark CPU per row", "µs", higher=False),
            self.others(),
        ]  # fmt: skip

    def _goal(self, size: int, goal: float) -> float | None:
        return goal if self.kind == "table" and size == self.most else None

    def ready(self) -> None:
        self.plant.spark(2)
        if self._made:
            return
        self._made = True
        with self.plant.client() as client:
            match self.kind:
                case "stream":
                    client.create(self.target, load.JSON)
                case "topic":
                    client.sql(f"CREATE TOPIC {self.target}")
                case _:
                    parameters = {
                        "TableName": self.target,
                        "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
                        "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
                        "BillingMode": "PAY_PER_REQUEST",
                    }
                    client.call("CreateTable", parameters)

    def work(self, server: Part, sample: Sample) -> None:
        first, spent = 0, 0.0
        spark = self.plant.spark(2)
        server_s, spark_s = self.plant.server.cpu_s(), spark.cpu_s()
        for size in self.sizes:
            parameters = {"kind": self.kind, "name": self.target, "first": first, "until": size}
            if server.name == PARQUET:
                parameters |= {"kind": "parquet", "name": str(self.settings.data / self.name / "rows")}
            spent += spark.ask("sink", **parameters)["seconds"]
            sample.figures[f"rate {size}"] = size / spent
            first = size
            say(f"{self.name}: {size:,} rows in {spent:.0f} s")
        if server.name != PARQUET:
            sample.figures["server_us"] = (self.plant.server.cpu_s() - server_s) / self.most * 1e6
        sample.figures["spark_us"] = (spark.cpu_s() - spark_s) / self.most * 1e6

    def verify(self, server: Part, sample: Sample) -> None:
        if server.name == PARQUET:
            return
        if self.kind != "table":
            held = self.plant.spark(2).ask("held", kind=self.kind, name=self.target)
            compare(sample, "rows", held["rows"], self.most)
            compare(sample, "sum of totals", held["totals"], self.most * (self.most - 1) // 2)
            return
        with self.plant.client() as client:
            found = client.call("DescribeTable", {"TableName": self.target})["Table"]["ItemCount"]
            compare(sample, "items", found, self.most)
            for number in (0, self.most - 1, *random.Random(5).sample(range(self.most), 20)):
                key = {"id": {"S": orders.key_text(number)}}
                item = client.call("GetItem", {"TableName": self.target, "Key": key}).get("Item", {})
                compare(sample, "the total of an item", item.get("total"), {"N": str(number)})


class StreamSink(Sinks):
    name = "pipeline-sink-stream"
    kind = "stream"


class TopicSink(Sinks):
    name = "pipeline-sink-topic"
    kind = "topic"


class TableSink(Sinks):
    name = "pipeline-sink-table"
    kind = "table"


class MicroBatches(PipelineRow):
    """One record at a time through a query that is waiting for it."""

    name = "pipeline-latency"
    title = "stream → Spark query → stream, one record at a time: from its acknowledgement to a live reader of the sink"
    warmup: Final = 5

    def lines(self) -> list[Line]:
        return [
            Line("p50", "acknowledged → visible p50", "ms", higher=False),
            Line("p99", "acknowledged → visible p99", "ms", higher=False),
            Line("batch", "of that the micro-batch, p50", "ms", higher=False, secondary=True),
            self.others(),
        ]

    def ready(self) -> None:
        self.plant.spark(2)

    def work(self, server: Part, sample: Sample) -> None:
        source, target = "bench/ticks", "bench/tocks"
        spark, seen = self.plant.spark(2), Seen()
        chance = random.Random(5)
        latencies = []
        with self.plant.client() as client, self.plant.client() as reading:
            client.create(source, load.TEXT)
            client.create(target, load.TEXT)
            threading.Thread(target=seen.follow, args=(reading, target), daemon=True).start()
            checkpoint = self.settings.data / self.name / "checkpoint"
            spark.ask("follow", source=source, target=target, checkpoint=str(checkpoint))
            try:
                for number in range(self.warmup + self.settings.ticks):
                    client.append(source, b"%d\n" % number, load.TEXT)
                    acknowledged = time.perf_counter()
                    latencies.append(seen.wait(number) - acknowledged)
                    time.sleep(chance.uniform(0.1, 0.4))
                count = seen.count
            except Failed:
                spark.ask("stop_following")  # which says why, if the query has failed
                raise
            batch_ms = spark.ask("stop_following")["batch_ms"]
        sample.figures |= milliseconds(latencies[self.warmup :])
        sample.figures["batch"] = load.percentile(batch_ms, 0.5)
        compare(sample, "records in the sink", count, self.warmup + self.settings.ticks)


class Seen:
    """When a live reader has seen which record."""

    def __init__(self) -> None:
        self._at: dict[int, float] = {}
        self._changed = threading.Condition()
        self._rest = b""
        self.count = 0

    def follow(self, client: Any, path: str) -> None:
        try:
            for page in client.follow(path):
                now = time.perf_counter()
                *lines, self._rest = (self._rest + page.body).split(b"\n")
                with self._changed:
                    self.count += len(lines)
                    for line in lines:
                        self._at.setdefault(int(line), now)
                    self._changed.notify_all()
        except Exception as error:
            say(f"the reader of the sink has ended: {error}")

    def wait(self, number: int) -> float:
        with self._changed:
            if not self._changed.wait_for(lambda: number in self._at, SEEN_TIMEOUT_S):
                raise Failed(f"record {number} did not come to the sink within {SEEN_TIMEOUT_S:g} s")
            return self._at[number]


ROWS: Final[list[type[Row[Any]]]] = [
    Loads,
    HotReadsOne,
    HotReadsTwo,
    HotJsonTwo,
    AppendsMeanwhile,
    views.Views,
    views.OtherViews,
    Tiers,
    ColdReadsOne,
    HistoriesOne,
    ColdReadsTwo,
    ColdJsonTwo,
    HistoriesTwo,
    Snapshots,
    StreamSink,
    TopicSink,
    TableSink,
    MicroBatches,
    views.FreshViews,  # the last: it adds changes to the history
]
