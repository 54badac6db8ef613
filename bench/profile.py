"""Where the processor time of a request goes, layer by layer: ``python -m bench.profile``.

The same requests are made with fewer and fewer layers around them, and what a layer costs is the difference:

    sockets          the server over loopback, less the next line: kernel, uvloop, smaller batches
    HTTP             the same bytes given to the connections of a server in this process, whose responses are dropped
    queue and rules  the commands alone, given to the database: the queue, the batch, the rules, the hand-over
    storage          the rows alone, written in transactions of the engine: SQLite, without waiting for a disk

Data is in memory where there is room, so that no disk is waited for. Each figure is the least of many rounds of one
batch, in processor time of the whole process: what others do on the machine makes a round longer, never shorter. The
build is the one that runs this: for the compiled one, set PYTHONPATH to what ``tools/compile --path`` prints.

"of it, in the kernel" is the share of system calls, of all threads. ``--peer`` measures Electric's server for
the same appends; ``--disk`` has the data of both on the disk of the current directory, where each commit is synced.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import uvloop

from bench.builds import MEMORY_BYTES
from bench.dynamodb import prepared
from bench.rows import ManyStreams100, OneConnection, OneStream100, Row, Settings
from bench.servers import cores, scratch
from bench.tables import GetItems
from bench.topics import Publishes
from tailrace import build
from tailrace.access import Principal
from tailrace.config import Config
from tailrace.database import Database, open_configured
from tailrace.http import wire
from tailrace.http.app import COMMON, App
from tailrace.http.authentication import EVERYONE
from tailrace.http.connection import Connection
from tailrace.http.serve import GC_THRESHOLDS, SWITCH_INTERVAL_S
from tailrace.http.shared import Shared, TransportLimits
from tailrace.log import log as logs
from tailrace.log.entry import LOGS, Log
from tailrace.runner import CalledBack
from tailrace.storage.sqlite import SqliteEngine
from tailrace.streams.commands import Append, CreateStream
from tailrace.tables.queries import GetItem
from tailrace.topics.commands import Outgoing, Publish

OCTETS: Final = "application/octet-stream"
WARM: Final = 300  # rounds before the first that counts: a lone commit stays on the loop only after many fast ones
Batch = Callable[[], Awaitable[None]]


@dataclass
class Case:
    """One kind of request: how many are made together, as bytes and as commands or queries."""

    title: str
    row: type[Row[Any]]  # which measures it over sockets
    count: int
    requests: list[bytes]
    commands: list[Any]
    prepare: list[bytes]
    streams: int = 0  # that it appends to; 0: its rows are not written alone


def _request(method: str, path: str, body: bytes, kind: str = OCTETS) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _appends(title: str, row: type[Row[Any]], count: int, streams: int) -> Case:
    names, body = [f"p/{number % streams}" for number in range(count)], b"x" * 100
    return Case(
        title, row, count,
        [_request("POST", f"/v1/stream/{name}", body) for name in names],
        [Append(name, body, OCTETS) for name in names],
        [_request("PUT", f"/v1/stream/p/{number}", b"") for number in range(streams)],
        streams,
    )  # fmt: skip


def _publishes() -> Case:
    payload = b'{"text": "' + b"x" * 1000 + b'"}'
    create = b'{"sql": "CREATE TOPIC p"}'
    return Case(
        "publish, 16 connections, 1 KB", Publishes, 16,
        [_request("POST", "/v1/topics/p", payload, "application/json")] * 16,
        [Publish("p", (Outgoing(payload),))] * 16,
        [_request("POST", "/v1/api/sql", create, "application/json")],
    )  # fmt: skip


def _gets() -> Case:
    create = {
        "TableName": "profile", "BillingMode": "PAY_PER_REQUEST",
        "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
        "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
    }  # fmt: skip
    item = {"TableName": "profile", "Item": {"id": {"S": "a"}, "text": {"S": "x" * 1000}}}
    get = prepared("GetItem", {"TableName": "profile", "Key": {"id": {"S": "a"}}})
    return Case(
        "GetItem, 64 connections, 1 KB", GetItems, 64, [get] * 64, [GetItem("profile", {"id": {"S": "a"}})] * 64,
        [prepared("CreateTable", create), prepared("PutItem", item)],
    )  # fmt: skip


def cases() -> list[Case]:
    return [
        _appends("append, 64 connections, 1 stream, 100 B", OneStream100, 64, 1),
        _appends("append, 64 connections, 64 streams, 100 B", ManyStreams100, 64, 64),
        _appends("append, 1 connection, 100 B", OneConnection, 1, 1),
        _publishes(),
        _gets(),
    ]


class Dropped:
    """A transport that drops what is written, and says when so many responses were."""

    def __init__(self, answered: Callable[[bytes], None]) -> None:
        self.write = answered

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def abort(self) -> None:
        pass


class InProcess:
    """A server without sockets."""

    def __init__(self, db: Database, app: App) -> None:
        self.db = db
        self._shared = Shared(app, TransportLimits(), db.metrics)
        self._shared.stamp = wire.encode_date(time.time()) + wire.encode_fields(COMMON)
        self._left = 0
        self._done: asyncio.Future[None] = self._shared.loop.create_future()

    def _answered(self, data: bytes) -> None:
        good = data.startswith(b"HTTP/1.1 2")
        self._finished(None, None if good else click.ClickException(f"an unexpected response: {data!r}"))

    def _finished(self, result: Any, error: BaseException | None) -> None:
        self._left -= 1
        if self._done.done():
            return
        if error is not None:
            self._done.set_exception(error)
        elif not self._left:
            self._done.set_result(None)

    def _begin(self, count: int) -> asyncio.Future[None]:
        self._left, self._done = count, self._shared.loop.create_future()
        return self._done

    def connections(self, count: int) -> list[Connection]:
        made = [Connection(self._shared) for _ in range(count)]
        for connection in made:
            connection.connection_made(Dropped(self._answered))  # type: ignore[arg-type]
        return made

    async def send(self, connections: list[Connection], requests: list[bytes]) -> None:
        done = self._begin(len(requests))
        for connection, data in zip(connections, requests, strict=True):
            connection.data_received(data)
        await done
        await asyncio.sleep(0)  # a connection begins only so many requests in one turn of the loop

    async def execute(self, commands: list[Any], principal: Principal) -> None:
        done = self._begin(len(commands))
        for command in commands:
            if hasattr(command, "together"):
                self.db.submit(CalledBack(command, principal.name, self._finished), principal)
            else:
                await self.db.aexecute(command, principal)
                self._finished(None, None)
        await done


async def least(batch: Batch, count: int, rounds: int) -> float:
    """Microseconds of processor time for each of the `count` requests of a batch, in the best of many rounds."""
    for _ in range(WARM):
        await batch()
    found = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        await batch()
        found = min(found, time.process_time() - began)
    return found / count * 1e6


async def in_process(case: Case, data: Path, rounds: int) -> tuple[float, float]:
    """With HTTP and without."""
    config = Config(data=str(data), dev=True, port=0)
    db = open_configured(config)
    try:
        db.attach(asyncio.get_running_loop())
        app = App(db, config)
        await app.start()
        server = InProcess(db, app)
        first = server.connections(1)
        for request in case.prepare:
            await server.send(first, [request])
        connections = server.connections(case.count)
        whole = await least(lambda: server.send(connections, case.requests), case.count, rounds)
        inner = await least(lambda: server.execute(case.commands, EVERYONE), case.count, rounds)
        await app.stop()
        return whole, inner
    finally:
        await db.aclose()


async def rows_alone(case: Case, data: Path, rounds: int) -> float:
    """The rows of the appends, in a transaction of the engine for each batch."""
    engine = SqliteEngine(data)
    now_ms = time.time_ns() // 1_000_000
    numbers: list[int] = []
    tx = engine.begin(now_ms)
    for number in range(case.streams):
        numbers.append(CreateStream(f"p/{number}", OCTETS).run(tx).stream.log)
    tx.keep()
    tx.flush()
    tx.commit()
    each = [b"x" * 100] * (case.count // case.streams)

    async def batch() -> None:
        tx = engine.begin(now_ms)
        found: list[tuple[Log, list[bytes]]] = []
        for number in numbers:
            log = tx.get(LOGS, number)
            assert log is not None
            found.append((log, each))
        logs.append_together(tx, found)
        tx.keep()
        tx.flush()
        tx.commit()

    try:
        return await least(batch, case.count, rounds)
    finally:
        engine.close()


@dataclass
class OverSockets:
    """A server under load over loopback."""

    cpu_us: float  # processor time for each request
    kernel_us: float  # the part of it in system calls


def over_sockets(case: Case, data: Path, seconds: float, name: str = "tailrace") -> OverSockets:
    server_core, client_cores = cores()
    settings = Settings(
        seconds=seconds, warmup_s=0.5, short_s=seconds, items=2_000, messages=40_000, again=0,
        server_core=server_core, client_cores=client_cores, data=data,
    )  # fmt: skip
    row = case.row(settings)
    server = row.contender(name)
    row.start(server)
    try:
        row.prepare(server)
        found = []
        for _ in range(3):
            before = _ticks(server.child.pid)
            sample = row.measure(server)
            after = _ticks(server.child.pid)
            if sample.errors or sample.complaints:
                raise click.ClickException(f"{row.name}: {dict(sample.errors)} {sample.complaints}")
            share = (after[1] - before[1]) / max(1, sum(after) - sum(before))
            cpu_us = float(sample.figures["cpu_us"])
            found.append(OverSockets(cpu_us, cpu_us * share))
        return min(found, key=lambda each: each.cpu_us)
    finally:
        server.stop()


def _ticks(pid: int) -> tuple[int, int]:
    """Processor time of a process so far, in user mode and in the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]), int(fields[12])


@click.command(help=__doc__)
@click.option("--only", multiple=True, metavar="WORD", help="Only requests with this word in their title.")
@click.option("--rounds", default=2_000, show_default=True, help="Batches, of which the cheapest counts.")
@click.option("--seconds", default=2.0, show_default=True, help="Load over sockets; 0: leave it out.")
@click.option("--disk", is_flag=True, help="Data on the disk of the current directory instead of in memory.")
@click.option("--peer", is_flag=True, help="Electric's server beside it, for appends.")
def main(only: tuple[str, ...], rounds: int, seconds: float, disk: bool, peer: bool) -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_S)  # as the server does
    gc.set_threshold(*GC_THRESHOLDS)
    gc.freeze()
    os.sched_setaffinity(0, cores()[1])
    memory = None if disk else scratch(MEMORY_BYTES)
    data = memory or Path(tempfile.mkdtemp(prefix=".tailrace-profile-", dir=Path.cwd()))
    click.echo(f"µs of CPU per request, {build.describe()}")
    try:
        for number, case in enumerate(cases()):
            if only and not any(word in case.title for word in only):
                continue
            home = data / str(number)
            whole, inner = uvloop.run(in_process(case, home / "server", rounds))
            total = over_sockets(case, home / "sockets", seconds) if seconds else None
            rows = uvloop.run(rows_alone(case, home / "rows", rounds)) if case.streams else None
            click.echo(f"\n{case.title}")
            for name, figure in layers(total, whole, inner, rows):
                click.echo(f"  {name:24}{figure:8.1f}")
            if peer and seconds and case.streams:
                beside = over_sockets(case, home / "peer", seconds, "electric")
                click.echo(f"  {'electric, in all':24}{beside.cpu_us:8.1f}")
                click.echo(f"  {'of it, in the kernel':24}{beside.kernel_us:8.1f}")
    finally:
        shutil.rmtree(data, ignore_errors=True)


def layers(total: OverSockets | None, whole: float, inner: float, rows: float | None) -> list[tuple[str, float]]:
    """What each layer takes: the difference between the time with it and the time without."""
    found = [("HTTP", whole - inner)]
    if rows is None:
        found.append(("the rest", inner))
    else:
        found += [("queue and rules", inner - rows), ("storage", rows)]
    if total is None:
        return found
    sockets = [("in all", total.cpu_us), ("of it, in the kernel", total.kernel_us), ("sockets", total.cpu_us - whole)]
    return sockets + found


if __name__ == "__main__":
    main()
