"""Where users and keys are administered: in a database's directory, or on a running server."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

from tailrace.cli.options import OPTIONAL_URL, PASSWORD_STDIN, PROFILE, TOKEN, USER, applied, credentials
from tailrace.errors import NotFound, Unavailable

if TYPE_CHECKING:
    from tailrace.client import Client
    from tailrace.command import Command, Query

T = TypeVar("T")

_COMMANDLINE: Final = click.core.ParameterSource.COMMANDLINE
_TARGET: Final = (
    click.option("--data", type=click.Path(file_okay=False), help="The data directory (./data)."),
    OPTIONAL_URL,
    PROFILE,
    TOKEN,
    USER,
)
target_options: Final = applied(*_TARGET, PASSWORD_STDIN)
# For commands that read a new password from standard input.
target_options_without_stdin: Final = applied(*_TARGET)


class AdminTarget:
    """A directory, or a server."""

    def __init__(self, data: str | None, url: str | None, token: str | None) -> None:
        context = click.get_current_context()
        if data is not None and url is not None:
            if context.get_parameter_source("url") is _COMMANDLINE:
                raise click.UsageError("--data and --url exclude each other: a running server has its directory open")
            url = None  # from the environment or a profile: the command line wins
        if url is None:
            for name in ("user", "token"):
                if context.get_parameter_source(name) is _COMMANDLINE:
                    raise click.UsageError(f"--{name} is for a server: add --url (a directory needs no credentials)")
        self._data = data or "data"
        self.url = url
        self.credentials: dict[str, str | None] = {} if url is None else credentials(url, token)

    @property
    def client(self) -> Client | None:
        """A client of the server; None for a directory."""
        if self.url is None:
            return None
        from tailrace.client import Client

        return Client(self.url, **self.credentials)

    def execute(self, command: Command[T] | Query[T], *, create: bool = False) -> T:
        """Run a command on the database in the directory, or in PostgreSQL if TAILRACE_DATABASE names it; with
        `create`, the directory may be missing."""
        database = os.environ.get("TAILRACE_DATABASE")
        if database:
            from tailrace.database import Database, open_postgres

            with closing(Database(open_postgres(database, self._data), housekeeping_s=None)) as there:
                return there.execute(command)
        import tailrace

        if not create and not Path(self._data).is_dir():
            raise NotFound(f"there is no database in {self._data!r}; use --data DIR, or --url of a server")
        try:
            with closing(tailrace.open(self._data, housekeeping_s=None)) as db:
                return db.execute(command)
        except Unavailable as error:
            if error.code != "DATABASE_IN_USE":
                raise
            raise Unavailable(
                f"a server has {self._data!r} open; connect to it: --url http://127.0.0.1:4437 and --user or --token "
                f"(or TAILRACE_URL with TAILRACE_USER or TAILRACE_TOKEN)",
                code=error.code,
            ) from None
