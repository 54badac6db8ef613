"""``tailrace sql``: statements from the command line, from files, from standard input, or typed into a shell.

Statements run one by one; the first error ends the run with its location.
"""

from __future__ import annotations

import os
import sys
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tailrace.cli.options import connect, server_options
from tailrace.cli.pipes import quietly_ended
from tailrace.cli.script import located, statements
from tailrace.cli.session import EmbeddedSession, RemoteSession, SqlSession, StatementResult
from tailrace.cli.text import csv_lines, json_line, moment, safe
from tailrace.errors import Error, Invalid

if TYPE_CHECKING:
    from rich.console import Console

DRAWN_ROWS_MAX: Final = 1_000  # of one result on a terminal, where more would only scroll by
TABLE: Final = "table"
JSON: Final = "json"
CSV: Final = "csv"
AUTO: Final = "auto"  # a line for each value where the columns do not fit the terminal


class Output:
    """Prints results as tables, as JSON or as CSV."""

    def __init__(self, style: str = TABLE, console: Console | None = None) -> None:
        self.style = style
        self.expanded: bool | str = AUTO
        self.timing = True
        self._console = console
        self._shown = False

    @cached_property
    def console(self) -> Console:
        """The console that tables are drawn on."""
        from tailrace.cli import drawing

        return self._console or drawing.terminal()

    def show(self, result: StatementResult, took_s: float | None = None) -> None:
        """Print a result, and on a terminal how long it took."""
        if self.style == JSON:
            self._json(result)
        elif self.style == CSV:
            self._csv(result)
        else:
            self._draw(result, took_s)

    def _json(self, result: StatementResult) -> None:
        out = sys.stdout.buffer
        if result.columns:
            for row in result.rows:
                out.write(json_line(row))
        else:
            facts = {"statement": result.statement, "row_count": result.row_count, "message": result.message}
            out.write(json_line(facts | result.facts))
        out.flush()

    def _csv(self, result: StatementResult) -> None:
        if not result.columns:
            click.echo(result.message or result.statement, err=True)
            return
        if self._shown:  # an empty line between one table and the next
            click.echo()
        self._shown = True
        click.echo(csv_lines(result.columns, result.rows), nl=False)

    def _draw(self, result: StatementResult, took_s: float | None) -> None:
        from rich.text import Text

        from tailrace.cli import drawing

        console = self.console
        if result.statement == "CONSUME":
            result = messages(result)
        rows, seen = result.rows, ""
        if console.is_terminal and len(rows) > DRAWN_ROWS_MAX:
            rows = rows[:DRAWN_ROWS_MAX]
            seen = f"the first {DRAWN_ROWS_MAX:,} of "
        if result.columns and rows:
            if self._expands(result):
                console.print(*drawing.records(result.columns, rows), sep="\n")
            else:
                console.print(drawing.grid(result.columns, rows, console.width if console.is_terminal else None))
        message = result.message or (counted(result.row_count) if result.columns else result.statement)
        foot = Text(seen + safe(message), style="dim" if result.columns else "green")
        if took_s is not None and self.timing and console.is_terminal:
            foot.append(f" · {duration(took_s)}", style="dim")
        console.print(foot)
        if console.is_terminal:
            console.print()

    def _expands(self, result: StatementResult) -> bool:
        from tailrace.cli import drawing

        if self.expanded == AUTO:
            return not drawing.fits(result.columns, result.rows, self.console.width)
        return bool(self.expanded)


def messages(result: StatementResult) -> StatementResult:
    """The result of CONSUME for people: the messages, and what an acknowledgement needs."""
    rows = [
        {
            "partition": row["partition_id"],
            "offset": row["offset"],
            "at": moment(row["ts"]),
            "from": " ".join(each for each in (row["op"], row["source_table"]) if each),
            "attempt": row["attempt"],
            "payload": row["payload"],  # base64, which drawing decodes
        }
        for row in result.rows
    ]
    columns = [(name, "BIGINT") for name in ("partition", "offset")] + [("at", "TEXT"), ("from", "TEXT")]
    if any(row["attempt"] > 1 for row in rows):
        columns.append(("attempt", "BIGINT"))
    facts = result.facts
    notes = [result.message]
    if facts.get("skipped"):
        notes.append(f"{facts['skipped']:,} were no longer retained")
    notes.append(f"next offset {facts.get('next_offset')}" + (", more are there" if facts.get("has_more") else ""))
    if facts.get("lease_id"):
        notes.append(f"lease {facts['lease_id']}")
    columns.append(("payload", "BLOB"))
    return StatementResult(result.statement, columns, rows, result.row_count, " · ".join(notes), facts)


def counted(count: int) -> str:
    return f"{count:,} {'row' if count == 1 else 'rows'}"


def duration(seconds: float) -> str:
    """A time as a person reads it."""
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds:.2f} s" if seconds < 60 else f"{int(seconds // 60)} min {seconds % 60:.0f} s"


def run_text(session: SqlSession, text: str, source: str, output: Output) -> None:
    """Run all statements of a text; raises the first error with its location in `source`."""
    for statement in statements(text):
        began = time.perf_counter()
        try:
            results = session.run(statement.text)
        except Error as error:
            raise Invalid(located(text, statement, error).text(source), code=error.code) from error
        for result in results:
            output.show(result, time.perf_counter() - began)


def read_text(path: str) -> tuple[str, str]:
    """A file's text (- is standard input), and its name in errors."""
    name = "<stdin>" if path == "-" else path
    try:
        content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise Invalid(f"cannot read {path!r}: {error.strerror}") from None
    try:
        return content.decode("utf-8-sig"), name
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Invalid(f"{name}:{line}: the file is not UTF-8: {error.reason}") from None


@click.command()
@click.argument("inputs", nargs=-1, metavar="[SQL|FILE]...")
@click.option("-c", "--command", "commands", multiple=True, metavar="SQL", help="Run this SQL; can be repeated.")
@click.option("-f", "--file", "files", multiple=True, metavar="FILE", help="Run this file; - is standard input.")
@click.option("--table", "style", flag_value=TABLE, default=True, help="Print rows as a table (default).")
@click.option("--json", "style", flag_value=JSON, help="Print one JSON object per row and line.")
@click.option("--csv", "style", flag_value=CSV, help="Print CSV with a header.")
@click.option(
    "--data", type=click.Path(file_okay=False), metavar="DIR", help="Open a data directory, without a server."
)
@server_options
def sql(
    inputs: tuple[str, ...], commands: tuple[str, ...], files: tuple[str, ...], style: str, data: str | None, url: str,
    token: str | None,
) -> None:  # fmt: skip
    """Run SQL: "SELECT ...", a FILE, or standard input; on a terminal, without arguments, open a shell.

    The first error ends the run with status 1, and names file, line and column.
    """
    session = _session(data, url, token)
    try:
        output = Output(style)
        if not inputs and not commands and not files:
            if sys.stdin.isatty() and sys.stdout.isatty():
                from tailrace.cli.shell import Shell

                Shell(session, output).run()
                return
            files = ("-",)
        with quietly_ended():
            for text in commands:
                _run_command(session, text, "-c", output)
            for text in inputs:
                if is_sql(text):
                    _run_command(session, text, "SQL", output)
                else:
                    run_text(session, *read_text(text), output)
            for path in files:
                run_text(session, *read_text(path), output)
            if session.in_transaction:
                raise Invalid(
                    "the statements end within a transaction, which was rolled back; end it with COMMIT",
                    code="TRANSACTION_OPEN",
                )
    finally:
        session.close()


def is_sql(text: str) -> bool:
    """Whether an argument is SQL: it has a space, a semicolon or a backslash, and no file has this name."""
    return any(each.isspace() or each in ";\\" for each in text) and not os.path.exists(text)


def _run_command(session: SqlSession, text: str, source: str, output: Output) -> None:
    if text.lstrip().startswith("\\"):
        from tailrace.cli.meta import MetaCommands

        MetaCommands(session, output).run(text.strip())
    else:
        run_text(session, text, source, output)


def _session(data: str | None, url: str, token: str | None) -> SqlSession:
    context = click.get_current_context()
    if data is None:
        user = context.meta.get("tailrace.user")
        return RemoteSession(connect(url, token), url, None if token is not None else user)
    if context.get_parameter_source("url") is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("--data and --url exclude each other: a running server has its directory open")
    return EmbeddedSession(data)
