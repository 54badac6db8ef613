"""The command line. Every command is in the tree below; errors end with one line that says what to do, and status 1
(2 for wrong usage).

A command's module is imported when the command runs, and a module imports only what all of its commands need: no
command waits for a server, a database or a drawing that it does not use.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import click

from tailrace import __version__, build
from tailrace.errors import Error

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class CommandEntry(NamedTuple):
    """Where a command is, `module:function`, and its line in `--help`."""

    target: str
    summary: str


class GroupEntry(NamedTuple):
    """Commands on one kind of thing."""

    summary: str
    commands: Mapping[str, CommandEntry]


TreeEntry: TypeAlias = CommandEntry | GroupEntry

_STREAMS: Final = {
    "list": CommandEntry("streams:list_streams", "List the streams."),
    "create": CommandEntry("streams:create", "Create a stream."),
    "append": CommandEntry("streams:append", "Append a message, or standard input, to a stream."),
    "describe": CommandEntry("streams:describe", "Describe a stream."),
    "delete": CommandEntry("streams:delete", "Delete a stream."),
}
_TABLES: Final = {
    "list": CommandEntry("tables:list_tables", "List the tables."),
    "create": CommandEntry("tables:create", "Create a table."),
    "describe": CommandEntry("tables:describe", "Describe a table, as JSON."),
    "drop": CommandEntry("tables:drop", "Delete a table with all its items."),
    "query": CommandEntry("items:query", "Print the items with one partition key."),
    "scan": CommandEntry("items:scan", "Print all items of a table."),
    "delete-item": CommandEntry("items:delete_item", "Delete an item of a table."),
    "export": CommandEntry("transfer:export_table", "Write all items of a table as JSON lines."),
    "import": CommandEntry("transfer:import_table", "Put JSON lines into a table."),
    "changes": CommandEntry("changes:changes", "Print the changes of a table, or follow them."),
    "change-stream": CommandEntry("retention:change_stream", "Describe the change stream of a table."),
    "retention": CommandEntry("retention:retention", "Show or set how long changes are kept."),
    "prune": CommandEntry("retention:prune", "Remove changes up to a sequence."),
    "cursors": CommandEntry("retention:cursors", "List, save or drop the cursors of a change stream."),
}
_TOPICS: Final = {
    "list": CommandEntry("topics:list_topics", "List the topics."),
    "describe": CommandEntry("topics:describe", "Describe a topic."),
    "publish": CommandEntry("topics:publish", "Publish messages, or each line of standard input."),
    "consume": CommandEntry("topics:consume", "Print messages of a topic and acknowledge them."),
}
_GROUPS: Final = {
    "list": CommandEntry("groups:list_groups", "List or watch the consumer groups."),
    "reset": CommandEntry("groups:reset", "Move a consumer group to another offset."),
    "drop": CommandEntry("groups:drop", "Delete a consumer group of a topic."),
}
_VIEWS: Final = {
    "list": CommandEntry("views:list_views", "List the materialized views."),
    "describe": CommandEntry("views:describe", "Describe a materialized view, as JSON."),
    "explain": CommandEntry("views:explain", "Show how a materialized view is kept."),
    "refresh": CommandEntry("views:refresh", "Have a materialized view filled again."),
    "drop": CommandEntry("views:drop", "Delete a materialized view and its table."),
}
_PIPELINE: Final = {
    "run": CommandEntry("pipeline:run", "Run all jobs of a pipeline.toml in one Spark application."),
    "tier": CommandEntry("pipeline:tier", "Copy logs to cold storage."),
    "compact": CommandEntry("pipeline:compact", "Merge small files of cold storage."),
    "snapshot": CommandEntry("pipeline:snapshot", "Fold the changes of a table to its state."),
    "restore": CommandEntry("pipeline:restore", "Rebuild a table as of an earlier time, in another table."),
    "view": CommandEntry("pipeline:view", "Maintain a materialized view."),
    "explain": CommandEntry("pipeline:explain", "Plan a materialized view without creating it."),
    "replicate": CommandEntry("pipeline:replicate", "Maintain a copy of a table elsewhere."),
    "audit": CommandEntry("pipeline:audit", "Report who changed what, and when."),
    "status": CommandEntry("pipeline:status", "List the jobs registered with the server."),
    "pause": CommandEntry("pipeline:pause", "Pause a job."),
    "resume": CommandEntry("pipeline:resume", "Resume a paused job."),
    "init": CommandEntry("pipeline:init", "Write a pipeline.toml with every setting."),
}
_USERS: Final = {
    "list": CommandEntry("users:list_users", "List the users."),
    "create": CommandEntry("users:create", "Create a user."),
    "alter": CommandEntry("users:alter", "Change a user."),
    "drop": CommandEntry("users:drop", "Delete a user."),
}
_KEYS: Final = {
    "list": CommandEntry("keys:list_keys", "List the access keys, without their secrets."),
    "create": CommandEntry("keys:create", "Create an access key."),
    "enable": CommandEntry("keys:enable", "Accept an access key again."),
    "disable": CommandEntry("keys:disable", "Refuse an access key until it is enabled."),
    "delete": CommandEntry("keys:delete", "Delete an access key."),
    "rotate-signing": CommandEntry("keys:rotate_signing", "Sign webhooks with a new key."),
    "rotate-secret": CommandEntry("keys:rotate_secret", "Encrypt the stored secrets with a new key."),
}
_SERVER: Final = {
    "status": CommandEntry("server:status", "Show whether a server is up and accepts writes."),
    "metrics": CommandEntry("server:metrics", "Print the metrics of a server."),
}
_CLUSTER: Final = {
    "status": CommandEntry("cluster:status", "Show which server leads, and which wait."),
    "step-down": CommandEntry("cluster:step_down", "Let another server take over."),
}
TREE: Final[Mapping[str, TreeEntry]] = {
    "serve": CommandEntry("serve:serve", "Serve a database over HTTP until interrupted."),
    "sql": CommandEntry("sql:sql", "Run SQL statements or files, or open a shell."),
    "tail": CommandEntry("streams:tail", "Print a stream and follow it."),
    "put": CommandEntry("items:put", "Put an item into a table."),
    "get": CommandEntry("items:get", "Print an item of a table."),
    "check": CommandEntry("check:check", "Check every invariant of a database."),
    "backup": CommandEntry("backup:backup", "Back up a database with its cold storage."),
    "restore": CommandEntry("backup:restore", "Restore a database from a backup."),
    "completion": CommandEntry("completion:completion", "Print the completion script of a shell."),
    "streams": GroupEntry("Streams: list, append, delete.", _STREAMS),
    "tables": GroupEntry("Tables, their items and their change streams.", _TABLES),
    "topics": GroupEntry("Topics: list, publish, consume.", _TOPICS),
    "groups": GroupEntry("Consumer groups: list, reset, drop.", _GROUPS),
    "views": GroupEntry("Materialized views.", _VIEWS),
    "pipeline": GroupEntry("Jobs on history: cold storage, views, copies (Spark).", _PIPELINE),
    "users": GroupEntry("Users, their roles and passwords.", _USERS),
    "keys": GroupEntry("Access keys for AWS SDKs; keys that sign and encrypt.", _KEYS),
    "server": GroupEntry("The status and metrics of a server.", _SERVER),
    "cluster": GroupEntry("The servers over one database in PostgreSQL.", _CLUSTER),
}
SETTINGS: Final[dict[str, Any]] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Tree(click.Group):
    """A group of the tree. A command is imported when it runs; help and suggestions need none of them."""

    def __init__(self, entries: Mapping[str, TreeEntry], path: str = "", **options: Any) -> None:
        super().__init__(**options)
        self._entries = entries
        self._path = path

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self._entries.get(cmd_name)
        if entry is None:
            return None
        if isinstance(entry, GroupEntry):
            return Tree(entry.commands, f"{cmd_name} ", name=cmd_name, help=entry.summary, context_settings=SETTINGS)
        module, _, function = entry.target.partition(":")
        command: click.Command = getattr(import_module(f"tailrace.cli.{module}"), function)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self._entries and not ctx.resilient_parsing and not name.startswith("-"):
            raise click.UsageError(f"there is no command {self._path + name!r}{suggested(self._path, name)}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        commands = [
            CompletionItem(name, help=entry.summary)
            for name, entry in self._entries.items()
            if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, kind in (("Commands", CommandEntry), ("Groups", GroupEntry)):
            rows = [(name, entry.summary) for name, entry in self._entries.items() if isinstance(entry, kind)]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def suggested(path: str, name: str) -> str:
    """What was probably meant: a command by a similar name here, or one by this name elsewhere."""
    from difflib import get_close_matches

    group = TREE.get(path.strip())
    here = group.commands if isinstance(group, GroupEntry) else TREE
    words = [f"{path}{match}" for match in get_close_matches(name, here, n=2)]
    groups = [(noun, entry) for noun, entry in TREE.items() if isinstance(entry, GroupEntry)]
    words += [f"{noun} {name}" for noun, entry in groups if name in entry.commands]
    verb, _, noun = name.partition("-")  # create-table
    if noun and verb in _commands(f"{noun}s"):
        words.append(f"{noun}s {verb}")
    if f"{name}s" in TREE:
        words.append(f"{name}s")
    found = [f"tailrace {word}" for word in dict.fromkeys(words)]
    if not found:
        return f"; see tailrace {path}--help"
    return f"; did you mean {' or '.join(filter(None, [', '.join(found[:-1]), found[-1]]))}?"


def _commands(group: str) -> Mapping[str, CommandEntry]:
    entry = TREE.get(group)
    return entry.commands if isinstance(entry, GroupEntry) else {}


def _note_profile(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    context.meta["tailrace.profile"] = value


cli: Final = click.version_option(
    __version__, prog_name="tailrace", message=f"%(prog)s, version %(version)s ({build.describe()})"
)(
    Tree(
        TREE,
        name="tailrace",
        help="One ordered, durable log behind several APIs: streams, tables, topics, SQL.",
        context_settings=SETTINGS,
        params=[
            click.Option(
                ["--profile"],
                metavar="NAME",
                expose_value=False,
                callback=_note_profile,
                help="Connect with this profile of ~/.config/tailrace.toml.",
            )
        ],
    )
)


def main() -> None:
    """Run; the product's errors are one line, without a traceback."""
    try:
        cli(prog_name="tailrace", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except Error as error:
        click.echo(f"tailrace: {error}", err=True)
        sys.exit(1)
