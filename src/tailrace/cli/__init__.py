"""The command line. Each command is a file; errors end with one line that says what to do, and status 1 (or 2)."""

from __future__ import annotations

import sys

import click

from tailrace import __version__
from tailrace.cli.bench import bench
from tailrace.cli.check import check
from tailrace.cli.serve import serve
from tailrace.cli.streams import append, tail
from tailrace.errors import Error


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="tailrace")
def cli() -> None:
    """One ordered, durable log with several front doors."""


for command in (serve, check, tail, append, bench):
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
