"""`python -m bench`: start the servers, measure every row, print the tables."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from bench import cluster, editor, embedded, generator, growth, routes, rows, selects, tables, topics, transactions
from bench import report as reports
from bench.load import Failed
from bench.machine import describe, probe
from bench.pipeline import rows as pipeline
from bench.queues import version_of
from bench.report import Report, RowResult
from bench.rows import Row, Settings, quiet_sample
from bench.servers import (
    DURABILITY,
    NAMES,
    PEERS,
    QUEUE_PEERS,
    ROOT,
    Contender,
    Missing,
    cores,
    install_packages,
    version,
)
from tailrace.errors import Error

ROWS = [
    *rows.ROWS,
    *editor.ROWS,
    *growth.ROWS,
    *embedded.ROWS,
    *tables.ROWS,
    *topics.ROWS,
    *transactions.ROWS,
    *cluster.ROWS,
    *routes.ROWS,
    *selects.ROWS,
    *pipeline.ROWS,
]
OURS = "tailrace"
NODE_SERVERS = {"reference", "dynalite", "dynamodb-local"}  # what `npm ci` installs


@click.command(context_settings={"max_content_width": 110})
@click.option("--quick", is_flag=True, help="One short repetition: to see that everything works, not for figures.")
@click.option("--only", multiple=True, metavar="NAME", help="Only rows whose name begins so; may be given again.")
@click.option("--without", multiple=True, metavar="NAME", help="No rows whose name begins so; may be given again.")
@click.option(
    "--server",
    multiple=True,
    type=click.Choice([*NAMES, *PEERS, *QUEUE_PEERS]),
    help="Only these servers; may be given again.",
)
@click.option(
    "--history", multiple=True, type=click.IntRange(min=1_000), metavar="N",
    help="So many changes for the rows of the pipeline, instead of 1, 2 and 5 million; may be given again.",
)  # fmt: skip
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write every sample to this file, row by row."
)
@click.option("--markdown", type=click.Path(path_type=Path, exists=True), help="Put the figures between its markers.")
@click.option(
    "--from", "from_path", type=click.Path(path_type=Path, exists=True), help="Measure nothing, take this JSON."
)
@click.option("--list", "list_rows", is_flag=True, help="Print the names of the rows.")
def main(
    quick: bool,
    only: tuple[str, ...],
    without: tuple[str, ...],
    server: tuple[str, ...],
    history: tuple[int, ...],
    json_path: Path | None,
    markdown: Path | None,
    from_path: Path | None,
    list_rows: bool,
) -> None:
    """Measure Tailrace beside the servers that do the same, each on one core, the load generator on another."""
    console = Console(width=None if sys.stdout.isatty() else 150)
    settings = Settings.quick() if quick else Settings()
    if history:
        settings.pipeline = tuple(sorted(history))
    wanted = [
        kind(settings)
        for kind in ROWS
        if (not only or kind.name.startswith(only)) and not kind.name.startswith(without)
    ]
    if list_rows or not wanted:
        for kind in ROWS:
            click.echo(f"{kind.name:20} {kind(settings).title}")
        raise SystemExit(0 if list_rows else f"no row is named like {', '.join(only) or 'that'}")
    if from_path is not None:
        report = reports.read(from_path).narrowed({row.name for row in wanted})
    else:
        report = measure(wanted, server, settings, quick, console, json_path)
    reports.show(report, console)
    if json_path is not None:
        reports.save(report, json_path)
    if markdown is not None:
        reports.write_markdown(report, markdown)
    raise SystemExit(0 if report.sound() else 1)


def measure(
    wanted: list[Row[Any]],
    only: tuple[str, ...],
    settings: Settings,
    quick: bool,
    console: Console,
    json_path: Path | None,
) -> Report:
    names = {name for row in wanted for name in row.contenders if not only or name in only}
    if names & NODE_SERVERS:
        try:
            install_packages()
        except Failed as error:
            raise click.ClickException(str(error)) from error
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a thousand readers and then some
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that children are stopped and files removed
    data = ROOT / ".bench-data" / str(os.getpid())
    data.mkdir(parents=True)
    settings.client_cores = os.sched_getaffinity(0)
    settings.server_core, client_core = cores()
    settings.client_cores = settings.client_cores - settings.server_core or client_core
    settings.data = data
    os.sched_setaffinity(0, client_core)
    if settings.server_core == client_core:
        console.print("[yellow]one core only: the load generator shares it with the servers[/]")
    try:
        machine = describe(ROOT, data, generator.kind())
        report = Report(
            machine=machine,
            disk=probe(data, settings.server_core),
            quick=quick,
            repetitions=settings.repetitions,
            seconds=settings.seconds,
            peers=promises(names),
        )
        console.print(f"disk: {reports.disk_text(report.disk)}", highlight=False)
        for row in wanted:
            report.rows.append(one_row(row, only, settings, console))
            if json_path is not None:  # a run takes long, and what it has found so far is of use
                reports.save(report, json_path)
        report.disk_after = probe(data, settings.server_core)
        return report
    finally:
        settings.closing.close()
        shutil.rmtree(data, ignore_errors=True)
        with suppress(OSError):  # another run may be under way
            (ROOT / ".bench-data").rmdir()


def promises(names: set[str]) -> dict[str, str]:
    """The servers beside us with their versions, and what each does when it acknowledges a write."""
    found: dict[str, str] = {}
    for kinds, version_in in ((NAMES[1:], version), (PEERS, version), (QUEUE_PEERS, version_of)):
        found |= {name: f"{version_in(name)}; {DURABILITY[name]}" for name in kinds if name in names}
    found = {OURS: DURABILITY[OURS]} | found if found else {}
    return found | {pipeline.PARQUET: pipeline.about()} if pipeline.PARQUET in names else found


def one_row(row: Row[Any], only: tuple[str, ...], settings: Settings, console: Console) -> RowResult:
    """All contenders, fresh, in turn. One that cannot be measured fails this row alone."""
    result = RowResult(row.name, row.title, row.lines(), group=row.group, missing=dict(row.without))
    names = [name for name in row.contenders if name not in row.without and (not only or name in only)]
    contenders: list[Contender] = [row.contender(name) for name in names]
    with console.status("") as status:
        try:
            for contender in contenders:
                status.update(f"{row.name}: preparing {contender.name}")
                attempt(result, contender, row, first=True)
            for repetition in range(settings.repetitions if row.repeated else 1):
                for contender in contenders:
                    if contender.name not in result.failed and contender.name not in result.missing:
                        status.update(f"{row.name}: {contender.name}, repetition {repetition + 1}")
                        attempt(result, contender, row, first=False)
        finally:
            for contender in contenders:
                contender.stop()
            shutil.rmtree(settings.data / row.name, ignore_errors=True)
    parts = [f"{name} {reports.shown(result, name)}" for name in row.contenders if not only or name in only]
    console.print(f"[dim]{row.name:20}[/] {'   '.join(parts)}", highlight=False, soft_wrap=True)
    return result


def attempt(result: RowResult, contender: Contender, row: Row[Any], *, first: bool) -> None:
    try:
        if first:
            row.start(contender)
            row.prepare(contender)
        else:
            contender.resume()
            result.samples.setdefault(contender.name, []).append(quiet_sample(contender, row))
    except Missing as error:
        result.missing[contender.name] = str(error)
    except (Failed, Error, OSError, EOFError) as error:
        result.failed[contender.name] = describe_error(error)
    finally:
        contender.pause()


def describe_error(error: Exception) -> str:
    """An error as a report has it: how it begins and ends, without the paths of this machine."""
    text = " ".join(f"{type(error).__name__}: {error}".replace(f"{ROOT}/", "").replace(f"{sys.prefix}/", "").split())
    return text if len(text) <= 300 else f"{text[:100]} … {text[-190:]}"


main()
