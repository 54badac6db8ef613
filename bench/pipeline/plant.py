"""What the rows of the pipeline share: one history, loaded once, a server over it, and sessions of Spark.

A history of millions of changes takes minutes to write, so the rows read growing parts of the same one. Each row asks
for the state that it needs (loaded, tiered, trimmed); who comes first brings it about, in this order and no other.
"""

from __future__ import annotations

import gc
import os
import select
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from bench.load import Failed, pinned
from bench.machine import Core
from bench.pipeline import orders
from bench.rows import Settings
from bench.servers import ROOT, Missing, Server
from tailrace.client import Client

ANSWER_S: Final = 900.0  # one request to Spark
STOP_S: Final = 20.0
SAY_EVERY: Final = 250_000  # changes
TICKS: Final = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def say(text: str) -> None:
    """Progress: some of this takes minutes."""
    print(f"  pipeline: {text}", file=sys.stderr, flush=True)


class Spark:
    """A session with so many cores, in a process of its own."""

    def __init__(self, url: str, cores: int, log: Path, where: set[int]) -> None:
        self.url = url
        self.cores = cores
        self._log = log
        command = [sys.executable, "-m", "bench.pipeline.worker", url, str(cores)]
        with log.open("ab") as output, pinned(where or None):
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, cwd=ROOT
            )

    def ask(self, do: str, **parameters: Any) -> dict[str, Any]:
        """Have something done; what came of it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(msgspec.json.encode({"do": do, **parameters}) + b"\n")
            self._process.stdin.flush()
            if not select.select([self._process.stdout], [], [], ANSWER_S)[0]:
                self._process.kill()
                raise Failed(f"Spark has not done {do} within {ANSWER_S:g} s")
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise Failed(f"Spark ended in the middle of {do}: {self._log.read_bytes()[-500:].decode(errors='replace')}")
        answer = msgspec.json.decode(line, type=dict[str, Any])
        if "error" in answer:
            raise Failed(f"{do}: {answer['error']}")
        return answer

    def cpu_s(self, named: bytes = b"") -> float:
        """Processor time of the driver, the JVM and the Python workers so far, or of those with such a name."""
        return family_s(self._process.pid, named)

    def stop(self) -> None:
        """End it: it does when there are no more requests."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class Chain(NamedTuple):
    """Seconds of processor time, by whose they are."""

    server: float
    python: float  # Spark's driver, planners and workers
    jvm: float


class Plant:
    """The history, its server, and Spark."""

    def __init__(self, settings: Settings) -> None:
        self.sizes = settings.pipeline
        self.count = max(self.sizes)
        self.keys = max(1, self.count // orders.CHANGES_PER_KEY)
        self.data = settings.data / "pipeline"
        self.first = 0  # sequence of the first change
        self.load_s = 0.0
        self.sums: dict[tuple[str, int], tuple[Any, ...]] = {}  # by images and rows, of what was read first
        self._settings = settings
        self._server: Server | None = None
        self._spark: Spark | None = None
        self._models: dict[int, orders.Model] = {}
        self._broken: Failed | None = None  # loading is not tried again
        self._tiered: dict[str, Any] | None = None
        self._trimmed = False

    @classmethod
    def of(cls, settings: Settings) -> Plant:
        """The one of this run."""
        found = settings.shared.get("pipeline")
        if found is None:
            found = settings.shared["pipeline"] = cls(settings)
            settings.closing.callback(found.close)
        assert isinstance(found, cls)
        return found

    # -- the history

    def load(self) -> None:
        """Make sure that the history is there."""
        if self._broken is not None:
            raise self._broken
        if self.first:
            return
        try:
            import pyspark  # noqa: F401
        except ImportError:
            self._broken = Missing("not available here: it needs Spark, pip install 'tailrace[spark]'")
            raise self._broken from None
        self.data.mkdir(parents=True, exist_ok=True)
        say(f"loading {self.count:,} changes of {self.keys:,} items")
        gc.collect()
        gc.disable()  # there is nothing to find, and it looks through everything again and again
        try:
            self.first, self.load_s = orders.load(self.data / "db", self.count, self.keys, self._loading)
        except Exception as error:
            self._broken = Failed(f"the history could not be loaded: {error}")
            raise
        finally:
            gc.enable()
        say(f"loaded in {self.load_s:.0f} s, {self.count / self.load_s:,.0f} changes/s")

    def _loading(self, done: int) -> None:
        if done % SAY_EVERY < orders.AT_ONCE and done > orders.AT_ONCE:
            say(f"{done:,} of {self.count:,} changes")

    def until(self, rows: int) -> int:
        """The offset behind the first so many changes."""
        return self.first + rows

    def model(self, rows: int) -> orders.Model:
        if rows not in self._models:
            self._models[rows] = orders.Model(rows, self.keys)
        return self._models[rows]

    # -- who serves it

    @property
    def server(self) -> Server:
        self.load()
        if self._server is None:
            server = Server("tailrace", self.data / "db", self._settings.server_core)
            server.start()
            self._server = server
        return self._server

    @property
    def url(self) -> str:
        return f"http://{self.server.address.host}:{self.server.address.port}"

    def client(self) -> Client:
        return Client(self.url)

    def cold(self) -> Path:
        """The directory of cold storage."""
        return self.data / "db" / "cold"

    def spark(self, cores: int) -> Spark:
        """A session with so many cores; one with other cores ends."""
        url = self.url
        if self._spark is not None and (self._spark.cores, self._spark.url) != (cores, url):
            self._stop_spark()
        if self._spark is None:
            say(f"starting Spark on {cores} {'core' if cores == 1 else 'cores'}")
            where = self._settings.server_core | self._settings.client_cores
            self._spark = Spark(url, cores, self.data / f"spark-{cores}.log", where)
            self._warm_up(self._spark)
        return self._spark

    def _warm_up(self, spark: Spark) -> None:
        """So that workers are there, and code is compiled: that of our source and that of Spark's as well."""
        until = self.until(min(self.sizes) // 5)
        made, again = str(self.data / "warm"), str(self.data / "warm-again")
        for _ in range(2):
            spark.ask("noop", until=until)
            spark.ask("parquet", into=made, until=until)
            spark.ask("noop", path=made)
            spark.ask("parquet", into=again, path=made)

    def chain(self) -> Chain:
        """Processor time of the server and of Spark so far."""
        spark = self.spark(2)
        python_s = spark.cpu_s(named=b"python")
        return Chain(self.server.cpu_s(), python_s, spark.cpu_s() - python_s)

    def parquet(self) -> Path:
        """All changes as Parquet that Spark wrote."""
        made = self.data / "changes.parquet"
        if not (made / "_SUCCESS").exists():
            say("writing all changes as Parquet, for Spark alone")
            self.spark(2).ask("parquet", into=str(made), until=self.until(self.count))
        return made

    # -- cold storage

    def tiered(self) -> dict[str, Any]:
        """What tiering the whole history took."""
        if self._tiered is None:
            say(f"tiering {self.count:,} changes")
            self._tiered = self.spark(2).ask("tier", marks=list(self.sizes))
        return self._tiered

    def trimmed(self) -> None:
        """Make sure that all history is cold, and only there."""
        if self._trimmed:
            return
        self.tiered()
        with self.client() as client:
            (part,) = client.logs(table=orders.TABLE)["partitions"]
        self._stop_spark()
        self.server.stop()
        self._server = None
        orders.trim(self.data / "db", part["log"])
        self._trimmed = True

    # -- the end

    def _stop_spark(self) -> None:
        if self._spark is not None:
            self._spark.stop()
            self._spark = None

    def close(self) -> None:
        self._stop_spark()
        if self._server is not None:
            self._server.stop()
        shutil.rmtree(self.data, ignore_errors=True)


class Cores:
    """How much of all cores was taken by processes that are not ours."""

    def __init__(self, settings: Settings) -> None:
        self._cores = [Core(number) for number in settings.server_core | settings.client_cores]

    def __enter__(self) -> Cores:
        self._ours, (self._busy, self._all) = family_s(os.getpid()), self._look()
        return self

    def __exit__(self, *_: object) -> None:
        busy, total = self._look()
        ours = family_s(os.getpid()) - self._ours
        self.others = max(0.0, busy - self._busy - ours) / max(total - self._all, 1e-9) * 100

    def _look(self) -> tuple[float, float]:
        looks = [core.look() for core in self._cores]
        return sum(busy for busy, _ in looks), sum(total for _, total in looks)


def family_s(root: int, named: bytes = b"") -> float:
    """Processor time of a process, all that it has started, and those of them that have ended and were waited for;
    or of those whose program is named like this."""
    parents: dict[int, int] = {}
    spent: Counter[int] = Counter()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            program, _, rest = path.read_bytes().rpartition(b")")
            fields = rest.split()
            pid = int(path.parent.name)
            parents[pid] = int(fields[1])
            if named not in program:
                continue
            spent[pid] = sum(int(field) for field in fields[11:15])
    total = 0
    for pid in parents:
        at = pid
        while at != root and at in parents:
            at = parents[at]
        if at == root:
            total += spent[pid]
    return total / TICKS
