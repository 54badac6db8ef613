"""The shell's meta-commands: those that begin with a backslash and take one line."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Final

import click
from rich.text import Text

from tailrace import __version__
from tailrace.cli import drawing
from tailrace.cli.session import SqlSession, StatementResult
from tailrace.cli.sql import AUTO, TABLE, Output, read_text, run_text
from tailrace.cli.text import quoted, safe
from tailrace.errors import Invalid, NotFound

WATCH_S: Final = 2.0
WATCH_S_MIN: Final = 0.1

TOPICS: Final = """
SELECT t.name, t.alias, t.partitions, coalesce(sum(p.messages), 0)::BIGINT AS messages,
       coalesce(sum(p.bytes), 0)::BIGINT AS bytes
FROM system.topics t LEFT JOIN system.topic_partitions p ON p.topic_id = t.topic_id
GROUP BY t.topic_id, t.name, t.alias, t.partitions ORDER BY t.name"""
TABLES: Final = """
SELECT name, partition_key, sort_key, items, bytes, stream_view AS changes, status FROM system.tables ORDER BY name"""
GROUPS: Final = """
SELECT topic, group_id AS "group", partition_id AS "partition", lag, in_flight, redelivered, lost, consumers
FROM system.topic_groups ORDER BY topic, group_id, partition_id"""
STREAMS: Final = """
SELECT path, content_type, start_position, next_position, closed, updated_at FROM system.streams ORDER BY path"""
USERS: Final = "SELECT name, role, access, disabled, created_at FROM system.users ORDER BY name"
VIEWS: Final = "SHOW MATERIALIZED VIEWS"
CONTENTS: Final = """
SELECT 'tables' AS kind, count(*) AS "count", coalesce(sum(bytes), 0)::BIGINT AS bytes FROM system.tables
UNION ALL SELECT 'topics', (SELECT count(*) FROM system.topics), coalesce(sum(bytes), 0)::BIGINT
          FROM system.topic_partitions
UNION ALL SELECT 'streams', count(*), NULL FROM system.streams"""
TABLE_DETAILS: Final = """
SELECT items, bytes, stream_view AS changes, ttl_attribute AS ttl, indexes, status, created_at
FROM system.tables WHERE name = ?"""
TOPIC_SOURCES: Final = "SELECT * EXCLUDE (topic_id) FROM system.topic_routes WHERE topic = ?"
TOPIC_GROUPS: Final = """
SELECT group_id AS "group", partition_id AS "partition", lag, in_flight, redelivered, lost, consumers
FROM system.topic_groups WHERE topic = ? ORDER BY group_id, partition_id"""
_SWITCH: Final = {"on": True, "off": False}

HELP: Final[dict[str, str]] = {
    "\\?": "list these commands",
    "\\h": "\\h [STATEMENT]: the syntax of SQL statements",
    "\\l": "what the database contains: tables, topics and streams, with counts",
    "\\d": "list tables and topics; \\d NAME: describe one",
    "\\d+": "\\d+ NAME: describe one in detail",
    "\\dt": "list tables",
    "\\dT": "list topics",
    "\\dg": "list consumer groups",
    "\\ds": "list streams",
    "\\dv": "list materialized views",
    "\\du": "list users",
    "\\x": "one line per value: on, off or auto",
    "\\timing": "show how long statements take: on or off",
    "\\e": "edit the last statement in $EDITOR, and run it; \\e FILE: edit and run a file",
    "\\i": "\\i FILE: run a file",
    "\\watch": "\\watch [SECONDS [COUNT]]: repeat the last statement, every 2 seconds",
    "\\copy": "\\copy TABLE|(QUERY) TO FILE, \\copy TABLE FROM FILE: CSV, or JSON lines by the suffix .json",
    "\\conninfo": "the server, the user and the version",
    "\\password": "\\password NAME: change a user's password",
    "\\q": "quit (or exit, quit, Ctrl-D)",
}
KEYS: Final[dict[str, str]] = {
    "Enter": "run, after a semicolon; else a new line",
    "Tab": "complete",
    "Up, Ctrl-R": "the history",
    "Ctrl-C": "discard the line, or stop waiting for a result",
}


class Quit(Exception):
    """The user ends the shell."""


class MetaCommands:
    """Runs the shell's meta-commands. `run_sql` runs an edited text; `last` is the last text that was run."""

    def __init__(self, session: SqlSession, output: Output, run_sql: Callable[[str], None] | None = None) -> None:
        self._session = session
        self._output = output
        self._run_sql = run_sql or self._run_text
        self.last = ""
        self._commands: dict[str, Callable[[str], None]] = {
            "\\?": self._help,
            "\\h": self._syntax,
            "\\l": self._contents,
            "\\d": self._describe,
            "\\d+": self._describe_in_detail,
            "\\dt": lambda rest: self._list(TABLES, rest),
            "\\dT": lambda rest: self._list(TOPICS, rest),
            "\\dg": lambda rest: self._list(GROUPS, rest),
            "\\ds": lambda rest: self._list(STREAMS, rest),
            "\\dv": lambda rest: self._list(VIEWS, rest),
            "\\du": lambda rest: self._list(USERS, rest),
            "\\x": self._expand,
            "\\timing": self._time,
            "\\e": self._edit,
            "\\i": self._include,
            "\\watch": self._watch,
            "\\copy": self._copy,
            "\\conninfo": self._conninfo,
            "\\password": self._password,
            "\\q": self._quit,
        }

    def run(self, line: str) -> None:
        """Run a line; raises `Quit` to end the shell."""
        name, _, rest = line.strip().rstrip(";").partition(" ")
        command = self._commands.get(name)
        if command is None:
            raise Invalid(f"there is no command {safe(name[:40])}; \\? lists them")
        command(rest.strip())

    # -- help

    def _help(self, rest: str) -> None:
        console = self._output.console
        for facts in (HELP, KEYS):
            rows = [(Text(name, style="bold"), Text(what)) for name, what in facts.items()]
            console.print(drawing.listed(("", ""), rows, header=False))
            console.print()

    def _syntax(self, rest: str) -> None:
        from tailrace.cli.sql_help import SYNTAX, matching

        console = self._output.console
        if not rest:
            console.print(Text(", ".join(SYNTAX)), soft_wrap=False)
            console.print(Text("\\h STATEMENT shows the syntax of one", style="dim"))
            return
        statements = matching(rest)
        if not statements:
            raise NotFound(f"there is no statement {safe(rest[:40])!r}; \\h lists them")
        for syntax in statements.values():
            console.print(Text(syntax))

    def _conninfo(self, rest: str) -> None:
        session = self._session
        user = f" as user {session.user!r}" if session.user else ""
        self._output.console.print(Text(f"connected to {safe(session.name)}{user}; client version {__version__}"))

    # -- contents

    def _result(self, text: str, params: tuple[Any, ...] = ()) -> StatementResult:
        return self._session.run(text.strip(), params)[-1]

    def _list(self, text: str, rest: str) -> None:
        if rest:
            raise Invalid("this command takes no name; \\d NAME describes one table or topic")
        self._output.show(self._result(text))

    def _contents(self, rest: str) -> None:
        self._list(CONTENTS, rest)

    def _describe(self, name: str) -> None:
        if not name:
            for text in (TABLES, TOPICS):
                self._list(text, "")
            return
        self._show_described(name)

    def _describe_in_detail(self, name: str) -> None:
        if not name:
            for text in (TABLES, TOPICS, GROUPS, VIEWS):
                self._list(text, "")
            return
        kind = self._show_described(name)
        plain = name[1:-1].replace('""', '"') if name.startswith('"') else name
        parts = {"Storage": TABLE_DETAILS} if kind == "TABLE" else {"Sources": TOPIC_SOURCES, "Groups": TOPIC_GROUPS}
        for title, text in parts.items():
            if self._output.style == TABLE:
                self._output.console.print(Text(title, style="bold"))
            self._output.show(self._result(text, (plain,)))

    def _show_described(self, name: str) -> str:
        """Describe a table or a topic; returns which of the two it is."""
        quoted_name = name if name.startswith('"') else quoted(name)
        for kind in ("TABLE", "TOPIC"):
            try:
                results = self._session.run(f"DESCRIBE {kind} {quoted_name}")
            except NotFound:
                continue
            for result in results:
                self._output.show(result)
            return kind
        raise NotFound(f"there is no table or topic {quoted_name}; \\d lists them")

    # -- settings

    def _expand(self, rest: str) -> None:
        output = self._output
        if rest == AUTO:
            output.expanded = AUTO
        elif rest:
            output.expanded = _switch(rest, "on, off or auto")
        else:
            output.expanded = output.expanded is not True
        state = "auto" if output.expanded == AUTO else "on" if output.expanded else "off"
        output.console.print(Text(f"one line per value: {state}", style="dim"))

    def _time(self, rest: str) -> None:
        output = self._output
        output.timing = _switch(rest, "on or off") if rest else not output.timing
        output.console.print(Text(f"timing: {'on' if output.timing else 'off'}", style="dim"))

    # -- running

    def _run_text(self, text: str) -> None:
        run_text(self._session, text, "<editor>", self._output)

    def _include(self, rest: str) -> None:
        if not rest:
            raise Invalid("the file is missing: \\i FILE")
        run_text(self._session, *read_text(_path(rest)), self._output)

    def _edit(self, rest: str) -> None:
        try:
            if rest:
                click.edit(filename=_path(rest))
                text: str | None = read_text(_path(rest))[0]
            else:
                text = click.edit(self.last or "-- write a statement, and save\n", extension=".sql")
        except click.ClickException as error:
            raise Invalid(f"{error.message}; set EDITOR to the editor to use") from None
        if text is None or not text.strip():
            self._output.console.print(Text("nothing was saved, and nothing is run", style="dim"))
            return
        self._output.console.print(Text(safe(text.strip(), lines=True), style="dim"))
        self.last = text
        self._run_sql(text)

    def _watch(self, rest: str) -> None:
        words = rest.split()
        if not self.last.strip():
            raise Invalid("there is no statement to repeat; run one first, then \\watch")
        try:
            interval_s = float(words[0].removeprefix("i=")) if words else WATCH_S
            count = int(words[1].removeprefix("c=")) if len(words) > 1 else None
        except ValueError:
            raise Invalid(f"{safe(rest[:40])!r} is not a number of seconds; write \\watch [SECONDS [COUNT]]") from None
        if not interval_s >= WATCH_S_MIN or len(words) > 2:
            raise Invalid(f"write \\watch [SECONDS [COUNT]], with at least {WATCH_S_MIN:g} seconds")
        console = self._output.console
        try:
            while count is None or count > 0:
                console.print(Text(f"{time.strftime('%H:%M:%S')}, every {interval_s:g} s; Ctrl-C ends", style="dim"))
                self._run_sql(self.last)
                if count is not None:
                    count -= 1
                if count != 0:
                    time.sleep(interval_s)
        except KeyboardInterrupt:
            console.print()

    def _copy(self, rest: str) -> None:
        from tailrace.cli.copying import copy, parse_copy

        request = parse_copy(rest)
        count = copy(self._session, request)
        if request.file != "-" or request.into_table:
            self._output.console.print(Text(f"{count:,} {'row' if count == 1 else 'rows'} copied", style="green"))

    def _password(self, name: str) -> None:
        if not name:
            raise Invalid("the user is missing: \\password NAME")
        password = click.prompt(f"New password of {name}", hide_input=True, confirmation_prompt=True, err=True)
        self._output.show(self._result(f"ALTER USER {quoted(name.strip(chr(34)))} PASSWORD ?", (password,)))

    def _quit(self, rest: str) -> None:
        raise Quit


def _path(text: str) -> str:
    return os.path.expanduser(text.strip("'\""))


def _switch(text: str, choices: str) -> bool:
    if text not in _SWITCH:
        raise Invalid(f"{safe(text[:40])!r} is not {choices}")
    return _SWITCH[text]
