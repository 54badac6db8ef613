"""``tailrace check``: verify a whole database."""

from __future__ import annotations

import sys

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tailrace.check import Progress as OnProgress
from tailrace.check import Report, check_database
from tailrace.errors import Corrupt


@click.command()
@click.option("--data", type=click.Path(), default="data", show_default=True, help="The directory.")
def check(data: str) -> None:
    """Check every invariant of the database in a directory. Reads only; a server may be running on it."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("checking", total=None)

        def advance(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        report = _checked(data, advance)
    for finding in report.findings:
        click.echo(finding, err=True)
    click.echo(
        f"{report.streams} streams, {report.tables} tables, {report.items} items, {report.records} records, "
        f"{report.logs} logs, {report.entries} entries, {report.bytes} bytes: "
        + ("clean" if not report.findings else f"{len(report.findings)} findings")
    )
    if report.findings:
        sys.exit(1)


def _checked(data: str, on_progress: OnProgress) -> Report:
    """The report; where damage goes so deep that rows cannot be read at all, that is said in one line."""
    try:
        return check_database(data, on_progress=on_progress)
    except Corrupt as error:  # SQLite quotes a damaged schema line by line
        raise Corrupt(" ".join(str(error).split())) from error
    except (ValueError, TypeError) as error:  # text that is not UTF-8, NULL where a number was
        raise Corrupt(f"the database is damaged: a row cannot be read: {error}; restore a backup") from error
