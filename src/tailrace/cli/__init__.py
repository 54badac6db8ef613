"""The command line. Each command is in a file; errors end with one line that says what to do, and status 1 (or 2).

A command's file is imported when the command is asked for, and no file imports what only some of its work needs: nobody
waits for a server, a database or a drawing that is not wanted.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final, NamedTuple

import click

from tailrace import __version__
from tailrace.errors import Error


class Entry(NamedTuple):
    """Where a command is, and what it does, in a line of `tailrace --help`."""

    module: str
    summary: str
    function: str | None = None  # if it is not named as the command


COMMANDS: Final = {
    "serve": Entry("serve", "Serve a database over HTTP until interrupted."),
    "demo": Entry("demo", "Show the whole path, and check every step of it."),
    "users": Entry("users", "Users, their roles and passwords."),
    "keys": Entry("keys", "Access keys, for the SDKs and the command line of AWS."),
    "backup": Entry("backup", "Back up a whole database, cold storage included."),
    "restore": Entry("backup", "Restore a whole database from a backup."),
    "check": Entry("check", "Check every invariant of a database."),
    "bench": Entry("bench", "Measure appends per second and their latency."),
    "append": Entry("streams", "Append a message or standard input to a stream."),
    "tail": Entry("streams", "Print a stream, and follow it."),
    "sql": Entry("sql", "Run SQL: statements, files, or a shell."),
    "topics": Entry("topics", "List the topics."),
    "topic": Entry("topics", "Tell all that there is to say of a topic."),
    "publish": Entry("topics", "Publish messages, or each line of standard input."),
    "consume": Entry("topics", "Print the messages of a topic, and acknowledge them."),
    "groups": Entry("topics", "List or watch the consumer groups."),
    "tables": Entry("tables", "List the tables."),
    "create-table": Entry("tables", "Create a table."),
    "describe-table": Entry("tables", "Print all that there is to say of a table, as JSON."),
    "drop-table": Entry("tables", "Delete a table with all its items."),
    "put": Entry("items", "Put an item into a table."),
    "get": Entry("items", "Print an item of a table."),
    "delete": Entry("items", "Delete an item of a table."),
    "query": Entry("items", "Print the items of a table with one partition key."),
    "scan": Entry("items", "Print all items of a table."),
    "export": Entry("transfer", "Write all items of a table as JSON lines.", "export_table"),
    "import": Entry("transfer", "Put JSON lines into a table.", "import_table"),
    "changes": Entry("changes", "Print the changes of a table, or follow them."),
    "stream": Entry("upkeep", "Tell what is in the change stream of a table."),
    "retention": Entry("upkeep", "Say how long the changes of a table are kept."),
    "prune": Entry("upkeep", "Remove changes of a table by hand."),
    "pipeline": Entry("pipeline", "Jobs on history, on Spark."),
    "cursors": Entry("upkeep", "List, save or drop the cursors of a table's changes."),
}


class Commands(click.Group):
    """The commands, none of which is imported before it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module = import_module(f"tailrace.cli.{entry.module}")
        found: click.Command = getattr(module, entry.function or cmd_name.replace("-", "_"))
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].summary) for name in self.list_commands(ctx)])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="tailrace")
def cli() -> None:
    """One ordered, durable log with several front doors."""


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
