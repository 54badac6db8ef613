"""Run the mixed soak.

    python -m tests.soak [--minutes 60] [--seed N] [--data DIR] [--picture FILE.svg]

Streams, tables, topics, SQL, an Arrow reader and webhooks work side by side, with clients that stall and clients that
send garbage. In the first half the server is killed, stopped and restarted, and paused; in the second half it lives on,
so that growth is seen. Every 10 s a line is printed. In the end every client compares what it was acknowledged with
what is there, `tailrace check` verifies the database, and the figures are judged. The exit status is 0 if all of that
is right.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from tests.soak import work
from tests.soak.curve import KINDS, Sample, growth, picture
from tests.support.server import ServerProcess, check

EVERY_S = 10.0
WAL_MB_MAX = 64.0


class Soak:
    """The server, its clients and what is done to them."""

    def __init__(self, minutes: float, seed: int, data: Path) -> None:
        self.whole_s = minutes * 60
        self.seed = seed
        self.chance = random.Random(seed)
        self.data = data
        self.lives = 0
        self.faults: Counter[str] = Counter()
        self.fresh_faults: list[str] = []
        self.samples: list[Sample] = []
        self.requests = 0
        self.server = self._start(0)
        self._create()
        self.clients = self._clients()

    # -- set-up

    def _start(self, port: int) -> ServerProcess:
        self.lives += 1
        return ServerProcess.tailrace(self.data, port=port).start(timeout_s=120)

    def _create(self) -> None:
        statements = f"""
            CREATE TABLE {work.TABLE} (id TEXT PRIMARY KEY, v BIGINT, by TEXT) WITH (stream = true);
            CREATE TABLE {work.BULK} (id TEXT PRIMARY KEY) WITH (stream = true);
            CREATE TOPIC {work.TOPIC} PARTITIONS 2 WITH (retention_max_bytes = 100000000);
            ALTER TOPIC {work.TOPIC} ADD SOURCE {work.TABLE} ON INSERT WHERE (by IS NOT NULL)
        """
        with httpx.Client(base_url=self.server.url, timeout=60) as http:
            _good(http.post("/v1/api/sql", json={"sql": statements}))
            ttl = {"TableName": work.TABLE, "TimeToLiveSpecification": {"Enabled": True, "AttributeName": "until"}}
            headers = {
                "X-Amz-Target": "DynamoDB_20120810.UpdateTimeToLive",
                "Content-Type": "application/x-amz-json-1.0",
            }
            _good(http.post("/", json=ttl, headers=headers))
            for table, count in ((work.TABLE, 50_000), (work.BULK, 20_000)):
                _good(http.patch(f"/v1/tables/{table}/stream", json={"max_count": count}))

    def _clients(self) -> list[work.Client]:
        url, seed = self.server.url, self.seed
        appenders = [work.Appender(f"appender-{number}", url, seed) for number in range(3)]
        self.writers = [work.Writer(f"writer-{number}", url, seed) for number in range(2)]
        self.consumers = [work.Consumer(f"consumer-{number}", url, seed) for number in range(2)]
        bulk = work.BulkWriter("bulk-writer", url, seed)
        print(f"filling the table {work.BULK!r} with {work.BULK_ITEMS} items", flush=True)
        bulk.fill()
        return [
            *appenders,
            *[work.Follower(f"follower-{number}", url, seed, appenders[0]) for number in range(3)],
            work.Retained("retained", url, seed),
            *self.writers,
            *self.consumers,
            bulk,
            *[work.SlowArrow(f"arrow-{number}", url, seed) for number in range(2)],
            work.Selecter("select", url, seed),
            work.Webhooks("webhooks", url, seed),
            work.Backups("backups", url, seed, self.data),
            work.Stalled("stalled", url, seed),
            work.Garbage("garbage", url, seed),
        ]

    # -- the run

    def run(self) -> list[str]:
        """What was wrong."""
        for client in self.clients:
            client.start()
        began = time.monotonic()
        next_fault = self._soon()
        while (now := time.monotonic() - began) < self.whole_s - 1:
            time.sleep(min(EVERY_S, max(self.whole_s - now, 0.1)))
            now = time.monotonic() - began
            if self.server.returncode is not None:
                return [f"the server ended by itself: {self.server.returncode}\n{self.server.output[-4000:]}"]
            self._sample(now)
            if now < self.whole_s / 2 and now >= next_fault:
                self._fault()
                next_fault = now + self._soon()
        problems = self._settle()
        problems += growth(self.samples, WAL_MB_MAX)
        if not any("kill" in fault for fault in self.faults):
            problems.append("no kill fell into this run: it was too short to show anything")
        return problems

    def _soon(self) -> float:
        """Seconds to the next fault: some ten of them in the first half, whatever its length."""
        return self.whole_s / 2 / 12 * self.chance.uniform(0.5, 1.5)

    def _fault(self) -> None:
        what = self.chance.choice(("kill -9", "kill -9", "SIGTERM and restart", "SIGSTOP for 3 s"))
        self.faults[what] += 1
        self.fresh_faults.append(what)
        port = self.server.port
        if what == "kill -9":
            self.server.kill()
            self.server = self._start(port)
        elif what == "SIGTERM and restart":
            status = self.server.terminate(timeout_s=60)
            assert status == 0, f"the server ended with {status}:\n{self.server.output[-4000:]}"
            self.server = self._start(port)
        else:
            os.kill(self.server.pid, signal.SIGSTOP)
            time.sleep(3)
            os.kill(self.server.pid, signal.SIGCONT)

    def _sample(self, at_s: float) -> None:
        latencies: dict[str, list[float]] = {}
        for client in self.clients:
            taken, client.latencies = client.latencies, []
            for kind, seconds in taken:
                latencies.setdefault(kind, []).append(seconds * 1000)
        requests = sum(client.requests for client in self.clients)
        since_s = at_s - self.samples[-1].at_s if self.samples else at_s
        sample = Sample(
            at_s,
            self.lives,
            sum(map(_rss_mb, (self.server.pid, *_children(self.server.pid)))),
            len(os.listdir(f"/proc/{self.server.pid}/fd")),
            _size_mb(self.data / "tailrace.db-wal"),
            _size_mb(self.data / "tailrace.db"),
            (requests - self.requests) / since_s,
            {kind: _p99(latencies[kind]) for kind in KINDS if kind in latencies},
            self.fresh_faults,
        )
        self.requests, self.fresh_faults = requests, []
        self.samples.append(sample)
        print(sample.line(), flush=True)

    # -- what is right

    def _settle(self) -> list[str]:
        print("settling: every client compares what it was acknowledged with what is there", flush=True)
        for client in self.clients:
            client.ending.set()
        for client in self.clients:
            client.join(180)
        problems = [f"{client.name} does not end" for client in self.clients if client.is_alive()]
        for client in self.clients:
            problems += client.problems[:20]
            problems += client.settle()
            if client.requests == 0:
                problems.append(f"{client.name} did nothing")
        problems += self._consumed()
        for client in self.clients:
            client.http.close()
        status = self.server.terminate(timeout_s=60)
        if status != 0:
            problems.append(f"the server ended with {status}: {self.server.output[-4000:]}")
        checked = check(self.data)
        print(checked.stdout.strip(), flush=True)
        if checked.returncode != 0:
            problems.append(f"tailrace check: {checked.stdout}{checked.stderr}")
        return problems

    def _consumed(self) -> list[str]:
        """Every insert that was acknowledged was delivered."""
        end = time.monotonic() + work.PATIENCE_S
        wanted = {key for writer in self.writers for key in writer.inserted}
        consumer = self.consumers[0]
        while True:
            left = wanted.difference(*(each.seen for each in self.consumers))
            left -= consumer.seen
            if not left or time.monotonic() > end:
                break
            consumer.until_answered(lambda: consumer.consume(timeout_s=1.0, forget=False))
        return [f"{len(left)} of {len(wanted)} inserts were never delivered: {sorted(left)[:5]}"] if left else []

    def report(self) -> str:
        """What was done, for the page on reliability."""
        retries: Counter[str] = Counter()
        for client in self.clients:
            retries += client.retries
        counts = ", ".join(f"{name} {count:,}" for name, count in self._counted().items())
        rss = [each.rss_mb for each in self.samples]
        return "\n".join(
            [
                f"{self.whole_s / 60:.0f} minutes, seed {self.seed}, {self.lives} lives of the server",
                f"done: {counts}",
                f"faults: {', '.join(f'{what} ×{count}' for what, count in sorted(self.faults.items())) or 'none'}",
                f"retried by clients: {', '.join(f'{what} ×{count}' for what, count in sorted(retries.items()))}",
                f"memory {min(rss):.0f} to {max(rss):.0f} MB, "
                f"WAL at most {max(each.wal_mb for each in self.samples):.1f} MB, "
                f"open files at most {max(each.files for each in self.samples)}",
            ]
        )

    def _counted(self) -> dict[str, int]:
        counted: dict[str, int] = {}
        for client in self.clients:
            name = client.name.rsplit("-", 1)[0] if client.name[-1].isdigit() else client.name
            counted[name] = counted.get(name, 0) + client.requests
        return counted


def _good(response: httpx.Response) -> None:
    assert response.status_code < 300, f"{response.request.url}: {response.status_code} {response.text}"


def _children(pid: int) -> list[int]:
    """The worker processes of a server."""
    return [int(each) for task in Path(f"/proc/{pid}/task").iterdir() for each in _text(task / "children").split()]


def _rss_mb(pid: int) -> float:
    found = [line for line in _text(Path(f"/proc/{pid}/status")).splitlines() if line.startswith("VmRSS:")]
    return int(found[0].split()[1]) / 1024 if found else 0.0


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return ""


def _size_mb(path: Path) -> float:
    return path.stat().st_size / 1e6 if path.exists() else 0.0


def _p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (default 60)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--data", type=Path, help="keep the database in this directory; it must not exist yet")
    parser.add_argument("--picture", type=Path, help="write the curves to this file, as SVG")
    options: Any = parser.parse_args()
    folder = options.data or Path(tempfile.mkdtemp(prefix="tailrace-soak-")) / "data"
    print(f"seed {options.seed}, {options.minutes:g} minutes, the database is in {folder}", flush=True)
    soak = Soak(options.minutes, options.seed, folder)
    try:
        problems = soak.run()
    finally:
        if soak.server.returncode is None:
            soak.server.kill()
    print(soak.report())
    if options.picture and soak.samples:
        options.picture.write_text(picture(soak.samples))
    for problem in problems:
        print(f"FAILED: {problem}")
    if not problems and options.data is None:
        shutil.rmtree(folder.parent)
    print(f"{0 if problems else 1} passed, {1 if problems else 0} failed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
