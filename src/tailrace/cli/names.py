"""Names that a shell completes: those of streams, tables, topics, groups, views and users, asked from the server.

Completion is silent: without a server, without credentials or without an answer in time there are no names.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

TIMEOUT_S: Final = 2  # for the server's answer
NAMES_MAX: Final = 200

_QUERIES: Final = {
    "streams": "SELECT path AS name FROM system.streams",
    "tables": "SELECT name FROM system.tables",
    "topics": "SELECT name FROM system.topics",
    "groups": "SELECT DISTINCT group_id AS name FROM system.topic_groups",
    "views": "SHOW MATERIALIZED VIEWS",
    "users": "SELECT name FROM system.users",
    "jobs": "SELECT name FROM system.pipelines WHERE kind <> 'consumer'",
}


def complete(kind: str) -> Callable[[click.Context, click.Parameter, str], list[str | CompletionItem]]:
    """What completes a parameter that names a thing of this kind."""

    def find(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str | CompletionItem]:
        from tailrace.errors import Error

        try:
            with context.scope(cleanup=False), _limited(TIMEOUT_S):
                return [*_names(context, kind, incomplete)]
        except (Error, OSError, click.ClickException):
            return []

    return find


def _names(context: click.Context, kind: str, incomplete: str) -> list[str]:
    from tailrace.cli.options import DEFAULT_URL, credentials
    from tailrace.client import Client

    url = context.params.get("url") or DEFAULT_URL
    with Client(url, **credentials(url, context.params.get("token"), prompt=False)) as client:
        query = _QUERIES[kind]
        if query.startswith("SELECT"):
            text = f"SELECT name FROM ({query}) n WHERE starts_with(name, ?) ORDER BY name LIMIT {NAMES_MAX}"
            rows = client.sql(text, (incomplete,))[-1].rows
        else:
            rows = client.sql(query)[-1].rows
    return [row["name"] for row in rows if row["name"].startswith(incomplete)]


@contextmanager
def _limited(timeout_s: int) -> Iterator[None]:
    """Raise TimeoutError after so long."""

    def expired(number: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(timeout_s)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


stream_argument: Final = click.argument("stream", shell_complete=complete("streams"))
table_argument: Final = click.argument("table", shell_complete=complete("tables"))
topic_argument: Final = click.argument("topic", shell_complete=complete("topics"))
job_argument: Final = click.argument("name", shell_complete=complete("jobs"))
view_argument: Final = click.argument("view", shell_complete=complete("views"))
