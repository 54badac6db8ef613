"""The shell's own commands: those that begin with a backslash, and take one line."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import click
from rich.text import Text

from tailrace.cli import drawing
from tailrace.cli.asking import Answer, Asked
from tailrace.cli.completing import quoted
from tailrace.cli.sql import AUTO, Output, read_text, run_text
from tailrace.cli.text import safe
from tailrace.errors import Invalid, NotFound

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
_SWITCH: Final = {"on": True, "off": False}

HELP: Final[dict[str, str]] = {
    "\\?": "this help",
    "\\d": "tables and topics; \\d NAME: one of them",
    "\\dt": "tables",
    "\\dT": "topics",
    "\\dg": "consumer groups",
    "\\ds": "streams",
    "\\du": "users",
    "\\x": "a line for each value: on, off or auto",
    "\\timing": "how long statements take: on or off",
    "\\i": "run a file",
    "\\password": "\\password NAME: change a user's password",
    "\\q": "leave (or Ctrl-D)",
}
KEYS: Final[dict[str, str]] = {
    "Enter": "run, after a semicolon; else a new line",
    "Tab": "complete",
    "Up, Ctrl-R": "what was typed before",
    "Ctrl-C": "forget the line, or stop waiting for an answer",
}


class Left(Exception):
    """The person wants to leave."""


class Meta:
    """Runs the shell's own commands."""

    def __init__(self, asked: Asked, output: Output) -> None:
        self._asked = asked
        self._output = output
        self._commands: dict[str, Callable[[str], None]] = {
            "\\?": self._help,
            "\\d": self._describe,
            "\\dt": lambda rest: self._list(TABLES, rest),
            "\\dT": lambda rest: self._list(TOPICS, rest),
            "\\dg": lambda rest: self._list(GROUPS, rest),
            "\\ds": lambda rest: self._list(STREAMS, rest),
            "\\du": lambda rest: self._list(USERS, rest),
            "\\x": self._expand,
            "\\timing": self._time,
            "\\i": self._include,
            "\\password": self._password,
            "\\q": self._leave,
        }

    def run(self, line: str) -> None:
        """Do what a line says; raises `Left` when that is to leave."""
        name, _, rest = line.strip().rstrip(";").partition(" ")
        command = self._commands.get(name)
        if command is None:
            raise Invalid(f"there is no command {safe(name[:40])}; \\? lists them")
        command(rest.strip())

    def _help(self, rest: str) -> None:
        console = self._output.console
        for facts in (HELP, KEYS):
            rows = [(Text(name, style="bold"), Text(what)) for name, what in facts.items()]
            console.print(drawing.listed(("", ""), rows, header=False))
            console.print()

    def _ask(self, text: str, params: tuple[Any, ...] = ()) -> Answer:
        return self._asked.run(text, params)[-1]

    def _list(self, text: str, rest: str) -> None:
        if rest:
            raise Invalid("that command takes no name; \\d NAME describes one thing")
        self._output.show(self._ask(text.strip()))

    def _describe(self, name: str) -> None:
        if not name:
            for text in (TABLES, TOPICS):
                self._list(text, "")
            return
        name = quoted(name) if not name.startswith('"') else name
        try:
            answers = self._asked.run(f"DESCRIBE TABLE {name}")
        except NotFound:
            try:
                answers = self._asked.run(f"DESCRIBE TOPIC {name}")
            except NotFound:
                raise NotFound(f"there is neither a table nor a topic {name}; \\d lists them") from None
        for answer in answers:
            self._output.show(answer)

    def _expand(self, rest: str) -> None:
        output = self._output
        if rest == AUTO:
            output.expanded = AUTO
        elif rest:
            output.expanded = _switch(rest, "on, off or auto")
        else:
            output.expanded = output.expanded is not True
        said = "auto" if output.expanded == AUTO else "on" if output.expanded else "off"
        output.console.print(Text(f"a line for each value: {said}", style="dim"))

    def _time(self, rest: str) -> None:
        output = self._output
        output.timing = _switch(rest, "on or off") if rest else not output.timing
        output.console.print(Text(f"timing: {'on' if output.timing else 'off'}", style="dim"))

    def _include(self, rest: str) -> None:
        if not rest:
            raise Invalid("say which file: \\i FILE")
        run_text(self._asked, *read_text(os.path.expanduser(rest.strip("'\""))), self._output)

    def _password(self, name: str) -> None:
        if not name:
            raise Invalid("say whose: \\password NAME")
        password = click.prompt(f"New password of {name}", hide_input=True, confirmation_prompt=True, err=True)
        self._output.show(self._ask(f"ALTER USER {quoted(name.strip(chr(34)))} PASSWORD ?", (password,)))

    def _leave(self, rest: str) -> None:
        raise Left


def _switch(text: str, choices: str) -> bool:
    if text not in _SWITCH:
        raise Invalid(f"{safe(text[:40])!r} is not {choices}")
    return _SWITCH[text]
