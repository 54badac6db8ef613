"""``tailrace sql``: statements from the command line, from files, from standard input, or typed into a shell.

Statements are run one by one, each when the one before it is done; the first error ends the run, and says where it
stands.
"""

from __future__ import annotations

import sys
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tailrace.cli.asking import Answer, Asked, Embedded, Remote
from tailrace.cli.script import mistake, statements
from tailrace.cli.streams import connect, quietly_ended, server_options
from tailrace.cli.text import csv_lines, json_line, moment, safe
from tailrace.errors import Error, Invalid

if TYPE_CHECKING:
    from rich.console import Console

DRAWN_ROWS_MAX: Final = 1_000  # of one answer on a terminal, where more only scroll by
TABLE: Final = "table"
JSON: Final = "json"
CSV: Final = "csv"
AUTO: Final = "auto"  # a line for each value where the columns do not fit the terminal


class Output:
    """Shows answers: drawn, as JSON or as CSV."""

    def __init__(self, style: str = TABLE, console: Console | None = None) -> None:
        self.style = style
        self.expanded: bool | str = AUTO
        self.timing = True
        self._console = console
        self._shown = False

    @cached_property
    def console(self) -> Console:
        """Where answers are drawn."""
        from tailrace.cli import drawing

        return self._console or drawing.terminal()

    def show(self, answer: Answer, took_s: float | None = None) -> None:
        """Show an answer, and how long it took where a person looks."""
        if self.style == JSON:
            self._json(answer)
        elif self.style == CSV:
            self._csv(answer)
        else:
            self._draw(answer, took_s)

    def _json(self, answer: Answer) -> None:
        out = sys.stdout.buffer
        if answer.columns:
            for row in answer.rows:
                out.write(json_line(row))
        else:
            said = {"statement": answer.statement, "row_count": answer.row_count, "message": answer.message}
            out.write(json_line(said | answer.facts))
        out.flush()

    def _csv(self, answer: Answer) -> None:
        if not answer.columns:
            click.echo(answer.message or answer.statement, err=True)
            return
        if self._shown:  # an empty line between one table and the next
            click.echo()
        self._shown = True
        click.echo(csv_lines(answer.columns, answer.rows), nl=False)

    def _draw(self, answer: Answer, took_s: float | None) -> None:
        from rich.text import Text

        from tailrace.cli import drawing

        console = self.console
        if answer.statement == "CONSUME":
            answer = messages(answer)
        rows, seen = answer.rows, ""
        if console.is_terminal and len(rows) > DRAWN_ROWS_MAX:
            rows = rows[:DRAWN_ROWS_MAX]
            seen = f"the first {DRAWN_ROWS_MAX:,} of "
        if answer.columns and rows:
            if self._expands(answer):
                console.print(*drawing.records(answer.columns, rows), sep="\n")
            else:
                console.print(drawing.grid(answer.columns, rows, console.width if console.is_terminal else None))
        said = answer.message or (counted(answer.row_count) if answer.columns else answer.statement)
        foot = Text(seen + safe(said), style="dim" if answer.columns else "green")
        if took_s is not None and self.timing and console.is_terminal:
            foot.append(f" · {duration(took_s)}", style="dim")
        console.print(foot)
        if console.is_terminal:
            console.print()

    def _expands(self, answer: Answer) -> bool:
        from tailrace.cli import drawing

        if self.expanded == AUTO:
            return not drawing.fits(answer.columns, answer.rows, self.console.width)
        return bool(self.expanded)


def messages(answer: Answer) -> Answer:
    """What CONSUME answered, as a person wants to see it: what was sent, and what is needed to acknowledge it."""
    rows = [
        {
            "partition": row["partition_id"],
            "offset": row["offset"],
            "at": moment(row["ts"]),
            "from": " ".join(each for each in (row["op"], row["source_table"]) if each),
            "attempt": row["attempt"],
            "payload": row["payload"],  # base64, which drawing looks into
        }
        for row in answer.rows
    ]
    columns = [(name, "BIGINT") for name in ("partition", "offset")] + [("at", "TEXT"), ("from", "TEXT")]
    if any(row["attempt"] > 1 for row in rows):
        columns.append(("attempt", "BIGINT"))
    facts = answer.facts
    said = [answer.message]
    if facts.get("skipped"):
        said.append(f"{facts['skipped']:,} were no longer retained")
    said.append(f"next offset {facts.get('next_offset')}" + (", more are there" if facts.get("has_more") else ""))
    if facts.get("lease_id"):
        said.append(f"lease {facts['lease_id']}")
    columns.append(("payload", "BLOB"))
    return Answer(answer.statement, columns, rows, answer.row_count, " · ".join(said), facts)


def counted(count: int) -> str:
    return f"{count:,} {'row' if count == 1 else 'rows'}"


def duration(seconds: float) -> str:
    """A time as a person reads it."""
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds:.2f} s" if seconds < 60 else f"{int(seconds // 60)} min {seconds % 60:.0f} s"


def run_text(asked: Asked, text: str, source: str, output: Output) -> None:
    """Run all statements of a text; the first error is raised, with its place in `source`."""
    for statement in statements(text):
        began = time.perf_counter()
        try:
            answers = asked.run(statement.text)
        except Error as error:
            raise Invalid(mistake(text, statement, error).told(source), code=error.code) from error
        for answer in answers:
            output.show(answer, time.perf_counter() - began)


def read_text(path: str) -> tuple[str, str]:
    """A file's text (- is standard input), and what to call it in errors."""
    name = "<stdin>" if path == "-" else path
    try:
        content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise Invalid(f"cannot read {path!r}: {error.strerror}") from None
    try:
        return content.decode("utf-8-sig"), name
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Invalid(f"{name}:{line}: that is not text in UTF-8: {error.reason}") from None


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("-c", "--command", "commands", multiple=True, metavar="SQL", help="Run this; may be given several times.")
@click.option("-f", "--file", "more", multiple=True, metavar="FILE", help="Run a file, as FILE does; - is the input.")
@click.option("--table", "style", flag_value=TABLE, default=True, help="Draw the rows (default).")
@click.option("--json", "style", flag_value=JSON, help="One JSON object per row and line.")
@click.option("--csv", "style", flag_value=CSV, help="CSV, with the names of the columns first.")
@click.option("--data", type=click.Path(file_okay=False), metavar="DIR", help="Run on a directory, without a server.")
@server_options
def sql(
    files: tuple[str, ...], commands: tuple[str, ...], more: tuple[str, ...], style: str, data: str | None, url: str,
    token: str | None,
) -> None:  # fmt: skip
    """Run SQL: what -c says, then each FILE; else standard input, and on a terminal a shell.

    The first error ends it with status 1, and says file, line and column.
    """
    paths = [*files, *more]
    asked = _asked(data, url, token)
    try:
        output = Output(style)
        if not commands and not paths:
            if sys.stdin.isatty() and sys.stdout.isatty():
                from tailrace.cli.shell import Shell  # few need what it imports

                Shell(asked, output).run()
                return
            paths = ["-"]
        with quietly_ended():
            for text in commands:
                if text.lstrip().startswith("\\"):
                    from tailrace.cli.meta import Meta

                    Meta(asked, output).run(text.strip())
                else:
                    run_text(asked, text, "-c", output)
            for path in paths:
                run_text(asked, *read_text(path), output)
    finally:
        asked.close()


def _asked(data: str | None, url: str, token: str | None) -> Asked:
    if data is None:
        return Remote(connect(url, token), url)
    source = click.get_current_context().get_parameter_source("url")
    if source is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("give --data or --url, not both: a running server has the directory to itself")
    return Embedded(data)
