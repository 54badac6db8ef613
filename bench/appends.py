"""`python -m bench.appends`: the append rate and latency of one server.

Appends from a number of connections for a few seconds, then prints the rate, the latencies and their distribution.
Every response is checked, and the streams are read back and must hold what was acknowledged. Without `--url` a
temporary server is started in a process of its own, on the disk of the current directory.
"""

from __future__ import annotations

import math
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from bench import generator, load
from bench.generator import Appends, Source
from bench.load import Address, Child, Session

STREAMS_MAX: Final = 100_000
CONNECTIONS_MAX: Final = 4_096  # more would run into the usual limit of open files
BODY_BYTES_MAX: Final = 16 * 1024 * 1024
WARMUP_S: Final = 0.5
STEPS: Final = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)  # where the bars of the distribution begin, in each power of ten
BAR_WIDTH: Final = 48


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--url", help="The server to measure, e.g. http://127.0.0.1:4437; by default a temporary one is started.")
@click.option(
    "--streams", type=click.IntRange(1, STREAMS_MAX), default=1, show_default=True, help="Streams to append to."
)
@click.option(
    "--connections",
    type=click.IntRange(1, CONNECTIONS_MAX),
    default=64,
    show_default=True,
    help="Concurrent appends.",
)
@click.option(
    "--bytes",
    "size",
    type=click.IntRange(1, BODY_BYTES_MAX),
    default=100,
    show_default=True,
    help="The size of an append.",
)
@click.option(
    "--seconds", type=click.FloatRange(0.1, 3600), default=5.0, show_default=True, help="How long to measure."
)
@click.option("--producers", is_flag=True, help="Each connection is an idempotent producer of one stream.")
def main(url: str | None, streams: int, connections: int, size: int, seconds: float, producers: bool) -> None:
    """Measure durable appends per second and their latency."""
    console = Console()
    try:
        with _server(url) as (address, child):
            prefix = f"/v1/stream/bench-{secrets.token_hex(4)}"
            targets = [f"{prefix}/{n}" for n in range(streams)]
            with Session(address) as session:
                before = {target: session.create(target) for target in targets}
                try:
                    cpu = child.cpu_s() if child else 0.0
                    done = _measure(console, address, _sources(targets, connections, size, producers), seconds)
                    cpu = child.cpu_s() - cpu if child else 0.0
                    complaints = generator.verify(session, done, before, count=None, size=size)
                finally:
                    for target in targets:
                        session.call("DELETE", target)
    except (load.Failed, OSError, EOFError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    _show(console, done, size, cpu)
    for complaint in complaints:
        click.echo(f"✗ {complaint}", err=True)
    if complaints or done.errors:
        raise click.ClickException("some appends failed or are missing; see above")


@contextmanager
def _server(url: str | None) -> Iterator[tuple[Address, Child | None]]:
    """The server at `url`, or a temporary one and its process."""
    if url is not None:
        yield Address.parse(url), None
        return
    # The current directory and not the system's: that one is often in memory, where a durable write costs nothing.
    home = Path(tempfile.mkdtemp(prefix=".tailrace-bench-", dir=Path.cwd()))
    try:
        command = [sys.executable, "-m", "tailrace.cli", "serve", "--dev", "--host", "127.0.0.1", "--port", "0"]
        child = Child([*command, "--data", str(home / "data")], log=home / "log")
        try:
            yield child.address, child
        finally:
            child.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _sources(targets: list[str], connections: int, size: int, producers: bool) -> list[Source]:
    """Each connection goes round over streams of its own; where there are fewer streams, they are shared."""
    body = b"x" * size
    sources = []
    for n in range(connections):
        if producers:  # a sequence belongs to a producer and one stream
            sources.append(generator.produced([targets[n % len(targets)]], f"producer-{n}", body, load.OCTETS))
        else:
            mine = targets[n::connections] or [targets[n % len(targets)]]
            sources.append(generator.appends(mine, body, load.OCTETS))
    return sources


def _measure(console: Console, address: Address, sources: list[Source], seconds: float) -> Appends:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("warming up", total=seconds)

        def report(elapsed_s: float) -> None:
            progress.update(task, completed=min(elapsed_s, seconds), description="measuring")

        return uvloop.run(generator.append(address, sources, seconds=seconds, warmup_s=WARMUP_S, progress=report))


def _show(console: Console, done: Appends, size: int, cpu_s: float) -> None:
    latencies = sorted(latency * 1000 for latency in done.latencies)
    table = Table(show_header=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_row("appends", f"{done.rate:,.0f}/s")
    table.add_row("data", f"{done.rate * size / 1e6:,.1f} MB/s")
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("worst", 1.0)):
        table.add_row(f"latency {name}", f"{load.percentile(latencies, share):,.2f} ms")
    if cpu_s:
        table.add_row("server CPU per append", f"{cpu_s / max(1, sum(done.acknowledged.values())) * 1e6:,.0f} µs")
    table.add_row("load generator busy", f"{done.client_share:.0%}")
    table.add_row("errors", f"{done.errors.total():,}")
    console.print(table)
    for what, count in done.errors.most_common():
        console.print(f"[red]✗[/] {count:,} × {what}")
    for low, high, count in distribution(latencies):
        share = count / len(latencies)
        bar = "█" * math.ceil(share * BAR_WIDTH) if count else ""
        console.print(f"[dim]{low:>7g} – {high:<5g} ms[/] {share:>6.1%} [cyan]{bar}[/]", highlight=False)


def distribution(latencies_ms: list[float]) -> list[tuple[float, float, int]]:
    """How many of the (sorted) latencies fall between steps of about a third, without the empty ones at both ends."""
    if not latencies_ms:
        return []
    edges = [step * 10.0**power for power in range(-3, 6) for step in STEPS]
    counts = [0] * (len(edges) - 1)
    at = 0
    for latency in latencies_ms:
        while at < len(counts) - 1 and latency >= edges[at + 1]:
            at += 1
        counts[at] += 1
    used = [n for n, count in enumerate(counts) if count]
    return [(edges[n], edges[n + 1], counts[n]) for n in range(used[0], used[-1] + 1)]


if __name__ == "__main__":
    main()
