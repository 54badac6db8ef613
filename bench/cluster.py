"""Several servers over one PostgreSQL: what the leader spends, how commits compare with plain INSERTs, how long
followers and take-overs take. PostgreSQL and three servers share the cores of this machine, so rates are below those of
a cluster.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import os
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import httpx

from bench import engines
from bench.load import Child, Failed
from bench.rows import Line, Row, Sample, milliseconds
from bench.servers import ROOT, Contender, Missing, free_port
from tailrace.database import Database, open_postgres
from tailrace.database import open as open_database

OURS: Final = "tailrace"
SERVERS: Final = 3
DELIVERIES: Final = 200
TAKE_OVERS: Final = 5
START_S: Final = 60.0
STREAM: Final = "/v1/stream/bench"
TEXT: Final = {"Content-Type": "text/plain"}


class Engines(Contender):
    """Databases in this process: one in a directory, one in PostgreSQL."""

    def start(self) -> None:
        self._stack = ExitStack()
        try:
            # Not below the data of the run: PostgreSQL runs as another user, who may not look there.
            folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-cluster-")))
            self.url = self._stack.enter_context(engines.postgres(folder))
            self.sqlite = self._stack.enter_context(open_database(folder / "sqlite"))
            self.postgres = self._stack.enter_context(Database(open_postgres(self.url, f"{folder}/key")))
        except BaseException:
            self._stack.close()
            raise
        for db in (self.sqlite, self.postgres):
            engines.prepare(db)

    def stop(self) -> None:
        self._stack.close()


class EngineRow(Row[Engines]):
    group = "cluster"
    contenders = (OURS,)

    def contender(self, name: str) -> Engines:
        return Engines(name, self.settings.data / self.name)


class Commits(EngineRow):
    """Appends in commits of some sizes."""

    name = "cluster-commits"
    title = "appends without HTTP, in commits of some sizes: over SQLite, over PostgreSQL, and plain INSERTs"

    def lines(self) -> list[Line]:
        found = []
        for size in engines.SIZES:
            found.append(Line(f"postgres{size}", f"PostgreSQL, {size} in a commit", "/s"))
            found.append(Line(f"share{size}", "of plain INSERTs", "", secondary=True, at_least=0.7))
            found.append(Line(f"sqlite{size}", "SQLite", "/s", secondary=True))
        return found

    def measure(self, server: Engines) -> Sample:
        sample, seconds = Sample(), self.settings.short_s
        for size in engines.SIZES:
            sample.figures[f"sqlite{size}"], _ = asyncio.run(engines.appends(server.sqlite, size, seconds))
            there, _ = asyncio.run(engines.appends(server.postgres, size, seconds))
            sample.figures[f"postgres{size}"] = there
            sample.figures[f"share{size}"] = there / engines.raw(server.url, size, seconds)
        return sample


class LeaderCpu(EngineRow):
    """What a leader spends on a command, without HTTP and without the bus."""

    name = "cluster-leader-cpu"
    title = "CPU of the leader for one command, without HTTP, in commits of 64"
    SIZE: Final = 64

    def lines(self) -> list[Line]:
        return [
            Line("append", "append, PostgreSQL", "µs", higher=False),
            Line("append_sqlite", "append, SQLite", "µs", higher=False, secondary=True),
            Line("put", "PutItem, PostgreSQL", "µs", higher=False),
            Line("put_sqlite", "PutItem, SQLite", "µs", higher=False, secondary=True),
        ]

    def measure(self, server: Engines) -> Sample:
        sample, seconds = Sample(), self.settings.short_s
        for suffix, db in (("", server.postgres), ("_sqlite", server.sqlite)):
            _, sample.figures[f"append{suffix}"] = asyncio.run(engines.appends(db, self.SIZE, seconds))
            _, sample.figures[f"put{suffix}"] = asyncio.run(engines.puts(db, self.SIZE, seconds))
        return sample


class Cluster(Contender):
    """Three servers, as processes."""

    def start(self) -> None:
        self._stack = ExitStack()
        self.children: dict[str, Child] = {}
        try:
            self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-cluster-")))
            self._url = self._stack.enter_context(engines.postgres(self._folder))
            self._secret = self._folder / "cluster.secret"
            self._secret.write_text(secrets.token_hex(32))
            self._key = secrets.token_hex(32)
            for _ in range(SERVERS):
                self.add()
            self.wait()
        except BaseException:
            self.stop()
            raise

    def add(self) -> None:
        port, name = free_port(), f"server{len(list(self._folder.glob('server*.log')))}"
        options = ["--dev", "--host", "127.0.0.1", "--port", str(port), "--data", str(self._folder / name)]
        options += ["--database", self._url, "--cluster-listen", "127.0.0.1:0"]
        options += ["--cluster-secret-file", str(self._secret)]
        command = ["env", f"TAILRACE_SECRET_KEY={self._key}", sys.executable, "-m", "tailrace.cli", "serve", *options]
        child = Child(command, log=self._folder / f"{name}.log", cores=os.sched_getaffinity(0), cwd=ROOT)
        self.children[f"http://127.0.0.1:{port}"] = child

    def wait(self) -> None:
        """Until all of them serve."""
        until_s = time.monotonic() + START_S
        for url in self.children:
            while not _ready(url):
                if time.monotonic() > until_s:
                    raise Failed(f"a server of the cluster is not ready: {self.children[url].output()}")
                time.sleep(0.05)

    def leader(self) -> str:
        until_s = time.monotonic() + START_S
        while time.monotonic() < until_s:
            for url in self.children:
                try:
                    found = httpx.get(f"{url}/v1/cluster", timeout=START_S).json()["leader"]
                except httpx.HTTPError:
                    continue
                if found in self.children:
                    return str(found)
            time.sleep(0.05)
        raise Failed("no server leads")

    def kill(self, url: str) -> None:
        child = self.children.pop(url)
        os.kill(child.pid, 9)
        child.stop()

    def stop(self) -> None:
        for child in self.children.values():
            child.stop()
        self.children.clear()
        self._stack.close()


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=START_S).status_code == 200
    except httpx.HTTPError:
        return False


class ClusterRow(Row[Cluster]):
    group = "cluster"
    contenders = (OURS,)

    def contender(self, name: str) -> Cluster:
        return Cluster(name, self.settings.data / self.name)

    def start(self, server: Cluster) -> None:
        if shutil.which("setpriv") is None and os.getuid() == 0:
            raise Missing("it needs setpriv, to run PostgreSQL as another user than root")
        server.start()

    def prepare(self, server: Cluster) -> None:
        httpx.put(f"{server.leader()}{STREAM}", headers=TEXT, timeout=START_S).raise_for_status()


class FollowerDelivery(ClusterRow):
    """From an append at the leader to the event at a reader of a follower."""

    name = "cluster-follower-sse"
    title = "from sending an append to the leader until a live reader of a follower has it, one at a time"

    def lines(self) -> list[Line]:
        return [
            Line("p50", "follower, p50", "ms", higher=False),
            Line("p99", "follower, p99", "ms", higher=False, secondary=True),
            Line("leader_p50", "reader of the leader, p50", "ms", higher=False),
            Line("leader_p99", "reader of the leader, p99", "ms", higher=False, secondary=True),
        ]

    def measure(self, server: Cluster) -> Sample:
        leader = server.leader()
        follower = next(url for url in server.children if url != leader)
        sample = Sample()
        sample.figures |= milliseconds(_deliveries(leader, follower))
        sample.figures |= milliseconds(_deliveries(leader, leader), "leader_")
        return sample


def _deliveries(leader: str, reader: str) -> list[float]:
    sender = http.client.HTTPConnection(leader.removeprefix("http://"), timeout=START_S)
    latencies = []
    with _events(reader) as events:
        for number in range(DELIVERIES):
            mark = f"<{time.monotonic_ns()}-{number}>"
            began = time.perf_counter()
            sender.request("POST", STREAM, mark, TEXT)
            answer = sender.getresponse()
            answer.read()
            if answer.status not in (200, 204):
                raise Failed(f"an append was answered {answer.status}")
            while mark not in next(events):
                pass
            latencies.append(time.perf_counter() - began)
    sender.close()
    return latencies


@contextmanager
def _events(url: str) -> Iterator[Iterator[str]]:
    query = {"offset": "now", "live": "sse"}
    with httpx.stream("GET", f"{url}{STREAM}", params=query, timeout=START_S) as response:
        lines = response.iter_lines()
        for line in lines:
            if line.startswith("event: control"):  # it is at the tail
                break
        yield lines


class TakeOver(ClusterRow):
    """The leader is killed, and a writer that sends to the others waits for the next acknowledgement."""

    name = "cluster-take-over"
    title = "the leader is killed: the longest time in which a writer at the other servers got no acknowledgement"
    repeatable = False

    def lines(self) -> list[Line]:
        return [
            Line("p50", "median of the kills", "ms", higher=False, at_most=500.0),
            Line("most", "longest", "ms", higher=False, secondary=True),
        ]

    def measure(self, server: Cluster) -> Sample:
        gaps = []
        for _ in range(TAKE_OVERS):
            server.wait()
            leader = server.leader()
            gaps.append(_gap(server, leader, next(url for url in server.children if url != leader)))
            server.add()
        return Sample({"p50": sorted(gaps)[len(gaps) // 2] * 1000, "most": max(gaps) * 1000})


def _gap(server: Cluster, leader: str, other: str) -> float:
    acknowledged: list[float] = []
    ending = threading.Event()

    def write() -> None:
        with httpx.Client(base_url=other, timeout=START_S) as client:
            while not ending.is_set():
                if client.post(STREAM, content="x", headers=TEXT).status_code in (200, 204):
                    acknowledged.append(time.monotonic())

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        _until(lambda: len(acknowledged) > 20)
        killed = time.monotonic()
        server.kill(leader)
        _until(lambda: acknowledged[-1] > killed + 0.5)
    finally:
        ending.set()
        writer.join(START_S)
    near = [at for at in acknowledged if at > killed - 0.5]
    return max((later - earlier for earlier, later in itertools.pairwise(near)), default=0.0)


def _until(true: engines.Condition) -> None:
    until_s = time.monotonic() + START_S
    while not true():
        if time.monotonic() > until_s:
            raise Failed("the servers acknowledge nothing")
        time.sleep(0.01)


ROWS: Final = [Commits, LeaderCpu, FollowerDelivery, TakeOver]
