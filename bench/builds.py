"""The compiled build beside pure Python: ``python -m bench.builds``.

Both builds of the present sources run on the same core, and the same measurement is made with each in turn (A B A B):
on a machine that others use as well, two runs one after the other say little. Data is in memory where there is room,
and processor time per request is what is compared.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from bench.rows import ManyStreams100, OneConnection, OneStream100, Row, Settings
from bench.servers import ROOT, cores, scratch
from bench.tables import GetItems, PutItems, Queries
from bench.topics import ConsumesMany, Publishes

ROWS: Final[tuple[type[Row[Any]], ...]] = (
    OneConnection, OneStream100, ManyStreams100, PutItems, GetItems, Queries, Publishes, ConsumesMany,
)  # fmt: skip
MEMORY_BYTES: Final = 1_000_000_000


@contextmanager
def build(path: Path) -> Iterator[None]:
    """Servers that are started here are of this build."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(path), before] if before else [str(path)])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def measure(kind: type[Row[Any]], builds: dict[str, Path], data: Path, rounds: int, seconds: float) -> dict[str, float]:
    """The median of the processor time for each of what the row counts, in microseconds, by build."""
    server_core, client_cores = cores()
    started: list[tuple[str, Row[Any], Any]] = []
    found: dict[str, list[float]] = {name: [] for name in builds}
    try:
        for name, path in builds.items():
            settings = Settings(
                seconds=seconds, warmup_s=0.3, short_s=seconds, items=2_000, messages=40_000, again=0,
                server_core=server_core, client_cores=client_cores, data=data / name,
            )  # fmt: skip
            row = kind(settings)
            server = row.contender("tailrace")
            started.append((name, row, server))
            with build(path):
                row.start(server)
            row.prepare(server)
        for _ in range(rounds):
            for name, row, server in started:
                sample = row.measure(server)
                if sample.errors or sample.complaints:
                    raise click.ClickException(f"{row.name}, {name}: {dict(sample.errors)} {sample.complaints}")
                found[name].append(sample.figures["cpu_us"])
    finally:
        for _, _, server in started:
            server.stop()
    return {name: statistics.median(figures) for name, figures in found.items()}


@click.command(help=__doc__)
@click.option("--only", multiple=True, metavar="NAME", help="Only rows whose name begins so; may be given again.")
@click.option("--rounds", default=5, show_default=True, help="Measurements of each build.")
@click.option("--seconds", default=1.0, show_default=True, help="Length of one.")
def main(only: tuple[str, ...], rounds: int, seconds: float) -> None:
    command = [sys.executable, str(ROOT / "tools" / "compile"), "--path"]
    compiled = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    if not compiled:
        raise click.ClickException("there is no compiled build of the present sources: make compile")
    builds = {"pure": ROOT / "src", "compiled": Path(compiled)}
    data = scratch(MEMORY_BYTES) or Path(tempfile.mkdtemp(prefix="tailrace-builds-"))
    os.sched_setaffinity(0, cores()[1])
    click.echo(f"{'server CPU, µs':20}{'pure':>10}{'compiled':>10}{'ratio':>8}")
    try:
        for kind in ROWS:
            if only and not kind.name.startswith(only):
                continue
            found = measure(kind, builds, data, rounds, seconds)
            ratio = found["compiled"] / found["pure"]
            click.echo(f"{kind.name:20}{found['pure']:10.1f}{found['compiled']:10.1f}{ratio:8.2f}")
    finally:
        shutil.rmtree(data, ignore_errors=True)


if __name__ == "__main__":
    main()
