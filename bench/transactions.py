"""Transactions over HTTP, beside PostgreSQL at SERIALIZABLE: money moves between two accounts, which are read first.

Eight workers, each a process with a client in Python. A transaction reads two rows and writes both; one that conflicts
with another runs again, and counts once. *Disjoint*: each worker has accounts of its own. *Conflicting*: all of them
share four. The sum of all accounts is compared afterwards.
"""

from __future__ import annotations

import importlib
import multiprocessing
import random
import time
from typing import Any, ClassVar, Final

import psycopg

from bench.clients import Place
from bench.load import pinned
from bench.queues import QUEUES, PostgresQueue, Queue, sql
from bench.rows import Line, Meter, Row, Sample, cpu_line, milliseconds
from tailrace.client import Client

WORKERS: Final = 8
SHARED: Final = 4  # accounts, where all workers use the same
BALANCE: Final = 1_000_000
TABLE: Final = "accounts"
ATTEMPTS: Final = 1_000
START_S: Final = 120.0  # for the workers
Outcome = tuple[int, int, list[float]]  # commits, attempts, and how long each commit took in all


def accounts_of(worker: int, shared: bool) -> list[str]:
    return [f"a{number}" for number in range(SHARED)] if shared else [f"w{worker}-{number}" for number in range(2)]


def ready(started: Any) -> None:
    """A worker has imported this module, and what the first transaction imports."""
    importlib.import_module("tailrace.client.sync.transactions")
    importlib.import_module("tailrace.embedded.sync.transaction")
    started.wait(START_S)


def move(place: Place, worker: int, shared: bool, begin: float, warmup_s: float, seconds: float) -> Outcome:
    """Move money until the time is over; what happened after the warm-up."""
    chosen, names = random.Random(worker), accounts_of(worker, shared)
    run = _tailrace(place) if place.server == "tailrace" else _postgres(place)
    commits = attempts = 0
    latencies: list[float] = []
    while True:
        began = time.monotonic()
        if began >= begin + warmup_s + seconds:
            return commits, attempts, latencies
        tried = run(*chosen.sample(names, 2))
        if began >= begin + warmup_s:
            commits, attempts = commits + 1, attempts + tried
            latencies.append(time.monotonic() - began)


def _tailrace(place: Place) -> Any:
    client = Client(f"http://{place.address.host}:{place.address.port}")

    def once(source: str, target: str) -> int:
        tried = 0

        def transfer(tx: Any) -> None:
            nonlocal tried
            tried += 1
            one, other = tx.get(TABLE, source), tx.get(TABLE, target)
            tx.put(TABLE, {**one, "balance": one["balance"] - 1})
            tx.put(TABLE, {**other, "balance": other["balance"] + 1})

        client.transact(transfer, attempts=ATTEMPTS)
        return tried

    return once


def _postgres(place: Place) -> Any:
    connection = psycopg.connect(host=place.address.host, port=place.address.port, user="bench", dbname="postgres")
    connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE

    def once(source: str, target: str) -> int:
        for tried in range(1, ATTEMPTS + 1):
            try:
                with connection.transaction():
                    balances = []
                    for name in (source, target):
                        found = connection.execute(f"SELECT balance FROM {TABLE} WHERE id = %s", [name]).fetchone()
                        assert found is not None
                        balances.append(found[0])
                    for name, balance in ((source, balances[0] - 1), (target, balances[1] + 1)):
                        connection.execute(f"UPDATE {TABLE} SET balance = %s WHERE id = %s", [balance, name])
                return tried
            except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
                time.sleep(random.uniform(0.5, 1.0) * min(0.002 * 2**tried, 1.0))
        raise AssertionError(f"{ATTEMPTS} attempts were not enough")

    return once


class TransactionRow(Row[Queue]):
    """Transactions of eight workers."""

    group = "transactions"
    contenders = ("tailrace", "postgresql")
    shared: ClassVar[bool] = False

    def contender(self, name: str) -> Queue:
        return QUEUES[name](name, self.settings.data / self.name / name, self.settings.server_core)

    def lines(self) -> list[Line]:
        return [
            Line("rate", "transactions", "/s"),
            cpu_line("transaction"),
            Line("tries", "attempts per transaction", "", higher=False, secondary=True),
            Line("p50", "p50 under this load", "ms", higher=False, secondary=True),
            Line("p99", "p99 under this load", "ms", higher=False, secondary=True),
        ]

    def prepare(self, server: Queue) -> None:
        names = sorted({name for worker in range(WORKERS) for name in accounts_of(worker, self.shared)})
        rows = ", ".join(f"('{name}', {BALANCE})" for name in names)
        create = f"CREATE TABLE {TABLE} (id TEXT PRIMARY KEY, balance BIGINT)"
        statements = [create, f"INSERT INTO {TABLE} VALUES {rows}"]
        self._total = BALANCE * len(names)
        if isinstance(server, PostgresQueue):
            with server._open() as connection:
                for statement in statements:
                    connection.execute(statement)
        else:
            sql(server.address, ";".join(statements))

    def measure(self, server: Queue) -> Sample:
        settings = self.settings
        place = Place(server.name, server.address)
        context = multiprocessing.get_context("spawn")
        started = context.Barrier(WORKERS + 1)
        with pinned(settings.client_cores or None), context.Pool(WORKERS, ready, (started,)) as pool:
            started.wait(START_S)
            begin = time.monotonic() + 0.5
            jobs = [
                pool.apply_async(move, (place, worker, self.shared, begin, settings.warmup_s, settings.short_s))
                for worker in range(WORKERS)
            ]
            time.sleep(max(0.0, begin + settings.warmup_s - time.monotonic()))
            meter = Meter(server, settings)
            with meter:
                outcomes = [job.get() for job in jobs]
        commits = sum(outcome[0] for outcome in outcomes)
        latencies = [latency for outcome in outcomes for latency in outcome[2]]
        figures = {"rate": commits / settings.short_s, "tries": sum(each[1] for each in outcomes) / max(commits, 1)}
        sample = Sample({**figures, **milliseconds(latencies), **meter.figures(commits)})
        if (total := self._sum(server)) != self._total:
            sample.complaints.append(f"the accounts have {total}, and had {self._total}")
        return sample

    def _sum(self, server: Queue) -> int:
        text = f"SELECT sum(balance) AS total FROM {TABLE}"
        if isinstance(server, PostgresQueue):
            with server._open() as connection:
                found = connection.execute(text).fetchone()
                assert found is not None
                return int(str(found[0]))
        with Client(f"http://{server.address.host}:{server.address.port}") as client:
            return int(client.sql(text)[0].rows[0]["total"])


class DisjointTransactions(TransactionRow):
    name = "transactions-disjoint"
    title = f"transactions of {WORKERS} workers on accounts of their own: two reads and two writes each, serializable"


class ConflictingTransactions(TransactionRow):
    name = "transactions-conflicting"
    title = f"the same where all workers share {SHARED} accounts; a transaction that conflicts runs again"
    shared = True


ROWS: Final[list[type[Row[Any]]]] = [DisjointTransactions, ConflictingTransactions]
