"""``tailrace check``: verify a whole database."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tailrace import config as settings
from tailrace.check import Report, check_database
from tailrace.cli.backup import cold_of
from tailrace.errors import Corrupt


@click.command()
@click.option("--data", type=click.Path(), default="data", show_default=True, help="The data directory.")
@click.option(
    "--database",
    metavar="URL",
    envvar="TAILRACE_DATABASE",
    help="The database, if it is in PostgreSQL: postgresql://...",
)
@click.option("--cold", metavar="URL", help="Its cold storage, if not that of the settings: a directory, or s3://...")
@click.option(
    "--config", "file", type=click.Path(dir_okay=False), help="The settings (default: tailrace.toml, if it exists)."
)
@click.option("--deep", is_flag=True, help="Read all of cold storage.")
@click.option("--accept-loss", is_flag=True, help="Open a damaged write-ahead log up to the damage; keeps a copy.")
def check(data: str, database: str | None, cold: str | None, file: str | None, deep: bool, accept_loss: bool) -> None:
    """Check every invariant of the database in a directory, and its cold storage. Reads only; a server may be running
    on it."""
    where, options = cold_of(cold, file)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("checking", total=None)

        def advance(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        report = _report(
            partial(
                check_database,
                data,
                on_progress=advance,
                accept_loss=accept_loss,
                cold=where,
                cold_options=options,
                deep=deep,
                database=database or settings.load(file).database,
            )
        )
    for finding in report.findings:
        click.echo(finding, err=True)
    click.echo(
        f"{report.streams} streams, {report.tables} tables, {report.items} items, {report.records} records, "
        f"{report.logs} logs, {report.entries} entries, {report.bytes} bytes: "
        + ("clean" if not report.findings else f"{len(report.findings)} findings")
    )
    if report.findings:
        sys.exit(1)


def _report(check_all: Callable[[], Report]) -> Report:
    """The report; damage that makes rows unreadable is one line."""
    try:
        return check_all()
    except Corrupt as error:  # SQLite quotes a damaged schema line by line
        raise Corrupt(" ".join(str(error).split()), code=error.code, facts=error.facts) from error
    except (ValueError, TypeError) as error:  # text that is not UTF-8, NULL where a number was
        raise Corrupt(f"the database is damaged: a row cannot be read: {error}; restore a backup") from error
