"""The command line. Each command is a file; errors end with one line that says what to do, and status 1 (or 2)."""

from __future__ import annotations

import sys

import click

from tailrace import __version__
from tailrace.cli.bench import bench
from tailrace.cli.changes import changes
from tailrace.cli.check import check
from tailrace.cli.items import delete, get, put, query, scan
from tailrace.cli.keys import keys
from tailrace.cli.serve import serve
from tailrace.cli.sql import sql
from tailrace.cli.streams import append, tail
from tailrace.cli.tables import create_table, describe_table, drop_table, tables
from tailrace.cli.topics import consume, groups, publish, topic, topics
from tailrace.cli.transfer import export_table, import_table
from tailrace.cli.upkeep import cursors, prune, retention, stream
from tailrace.cli.users import users
from tailrace.errors import Error


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="tailrace")
def cli() -> None:
    """One ordered, durable log with several front doors."""


COMMANDS: tuple[click.Command, ...] = (
    *(serve, users, keys, check, bench),
    *(append, tail, sql),
    *(topics, topic, publish, consume, groups),
    *(tables, create_table, describe_table, drop_table),
    *(put, get, delete, query, scan, export_table, import_table),
    *(changes, stream, retention, prune, cursors),
)
for command in COMMANDS:
    cli.add_command(command)


def main() -> None:
    """Run; product errors are told in one line, without a traceback."""
    try:
        cli(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except Error as error:
        click.echo(f"tailrace: {error}", err=True)
        sys.exit(1)
