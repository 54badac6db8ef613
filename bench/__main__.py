"""`python -m bench`: start both servers, measure every row, print the table."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

import click
from rich.console import Console

from bench import report as reports
from bench.machine import describe, probe
from bench.report import Report, RowResult
from bench.rows import ROWS, Row, Settings
from bench.servers import HERE, NAMES, ROOT, Server, cores, install_reference
from tailrace.cli.load import Failed


@click.command(context_settings={"max_content_width": 110})
@click.option("--quick", is_flag=True, help="One short repetition: to see that everything works, not for figures.")
@click.option("--only", multiple=True, metavar="NAME", help="Only rows whose name begins so; may be given again.")
@click.option("--server", type=click.Choice(["both", *NAMES]), default="both", help="Which servers to run.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every sample to this file.")
@click.option("--markdown", type=click.Path(path_type=Path, exists=True), help="Put the figures between its markers.")
@click.option(
    "--from", "from_path", type=click.Path(path_type=Path, exists=True), help="Measure nothing, take this JSON."
)
@click.option("--list", "list_rows", is_flag=True, help="Print the names of the rows.")
def main(
    quick: bool,
    only: tuple[str, ...],
    server: str,
    json_path: Path | None,
    markdown: Path | None,
    from_path: Path | None,
    list_rows: bool,
) -> None:
    """Measure Tailrace beside @durable-streams/server, each on one core, the load generator on another."""
    console = Console(width=None if sys.stdout.isatty() else 150)
    settings = Settings.quick() if quick else Settings()
    rows = [kind(settings) for kind in ROWS if not only or any(kind.name.startswith(name) for name in only)]
    if list_rows or not rows:
        for kind in ROWS:
            click.echo(f"{kind.name:18} {kind(settings).title}")
        raise SystemExit(0 if list_rows else f"no row is named like {', '.join(only)}")
    if from_path is not None:
        report = reports.read(from_path)
    else:
        report = measure(rows, NAMES if server == "both" else (server,), settings, quick, console)
    reports.show(report, console)
    if json_path is not None:
        reports.save(report, json_path)
    if markdown is not None:
        reports.write_markdown(report, markdown)
    raise SystemExit(0 if report.sound() else 1)


def measure(rows: list[Row], names: tuple[str, ...], settings: Settings, quick: bool, console: Console) -> Report:
    if "reference" in names:
        try:
            install_reference()
        except Failed as error:
            raise click.ClickException(str(error)) from error
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a thousand readers and then some
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that children are stopped and files removed
    (ROOT / ".bench-data").mkdir(exist_ok=True)
    (ROOT / ".bench-data" / ".gitignore").write_text("*\n")
    data = ROOT / ".bench-data" / str(os.getpid())
    data.mkdir()
    settings.server_core, client_core = cores()
    settings.data = data
    os.sched_setaffinity(0, client_core)
    if settings.server_core == client_core:
        console.print("[yellow]one core only: the load generator shares it with the servers[/]")
    try:
        machine = describe(ROOT, data)
        report = Report(
            machine=machine,
            disk=probe(data, settings.server_core),
            quick=quick,
            repetitions=settings.repetitions,
            seconds=settings.seconds,
            reference=f"@durable-streams/server {pinned_version()}",
        )
        console.print(f"disk: {reports.disk_text(report.disk)}", highlight=False)
        for row in rows:
            report.rows.append(one_row(row, names, settings, console))
        report.disk_after = probe(data, settings.server_core)
        return report
    finally:
        shutil.rmtree(data, ignore_errors=True)
        with suppress(OSError):  # another run may be under way
            (ROOT / ".bench-data" / ".gitignore").unlink()
            (ROOT / ".bench-data").rmdir()


def pinned_version() -> str:
    version: str = json.loads((HERE / "package.json").read_text())["dependencies"]["@durable-streams/server"]
    return version


def one_row(row: Row, names: tuple[str, ...], settings: Settings, console: Console) -> RowResult:
    """Both servers, fresh, in turn. A server that cannot be measured fails this row alone."""
    result = RowResult(row.name, row.title, row.lines())
    servers = [Server(name, settings.data / row.name / name, settings.server_core) for name in names]
    with console.status("") as status:
        try:
            for server in servers:
                status.update(f"{row.name}: preparing {server.name}")
                attempt(result, server, row, first=True)
            for repetition in range(settings.repetitions if row.repeated else 1):
                for server in servers:
                    if server.name not in result.failed:
                        status.update(f"{row.name}: {server.name}, repetition {repetition + 1}")
                        attempt(result, server, row, first=False)
        finally:
            for server in servers:
                server.stop()
            shutil.rmtree(settings.data / row.name, ignore_errors=True)
    parts = []
    head = result.lines[0]
    for server in servers:
        shown = result.failed.get(server.name) or reports.cell(result, server.name, head)
        parts.append(f"{server.name} {shown}")
    console.print(f"[dim]{row.name:18}[/] {'   '.join(parts)}", highlight=False, soft_wrap=True)
    return result


def attempt(result: RowResult, server: Server, row: Row, *, first: bool) -> None:
    try:
        if first:
            server.start()
            row.prepare(server)
        else:
            result.samples.setdefault(server.name, []).append(row.measure(server))
    except (Failed, OSError, EOFError) as error:
        result.failed[server.name] = f"{type(error).__name__}: {error}"


main()
