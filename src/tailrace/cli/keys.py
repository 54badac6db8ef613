"""``tailrace keys``: the access keys that requests to the DynamoDB API are signed with, and that of webhooks.

A key can be made before the server first starts, in the database's directory; while a server runs it alone has the
directory, so then the same is asked of it over HTTP.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

import tailrace
from tailrace.access import ROLES
from tailrace.auth.keys import (
    CreateAccessKey,
    DeleteAccessKey,
    DisableAccessKey,
    EnableAccessKey,
    KeyInfo,
    ListAccessKeys,
    NewKey,
)
from tailrace.cli.streams import CREDENTIALS, USER, credentials
from tailrace.command import Command, Query
from tailrace.errors import NotFound, Unavailable
from tailrace.subscriptions.signing import RotateSigningKey

if TYPE_CHECKING:
    from tailrace.client import Client

T = TypeVar("T")
Wrapped = TypeVar("Wrapped", bound=Callable[..., Any])


_COMMANDLINE: Final = click.core.ParameterSource.COMMANDLINE
_PLACE: Final = (
    click.option("--token", envvar="TAILRACE_TOKEN", help="The server's bearer token, with --url."),
    click.option("--url", envvar="TAILRACE_URL", help="Ask this server, instead of opening the directory."),
    click.option("--data", type=click.Path(file_okay=False), help="The database's directory (./data)."),
)


def place_options(command: Wrapped) -> Wrapped:
    """Where the keys are: in a directory, or with a server."""
    for option in (*CREDENTIALS, *_PLACE):
        command = option(command)
    return command


def place_options_but_stdin(command: Wrapped) -> Wrapped:
    """The same for a command that reads something else from standard input than who asks."""
    for option in (USER, *_PLACE):
        command = option(command)
    return command


class Place:
    """Where the keys are."""

    def __init__(self, data: str | None, url: str | None, token: str | None) -> None:
        context = click.get_current_context()
        if data is not None and url is not None:
            if context.get_parameter_source("url") is _COMMANDLINE:
                raise click.UsageError("give --data or --url, not both: a running server has the directory to itself")
            url = None  # from the environment: what was said here counts
        if url is None:
            for name in ("user", "token"):
                if context.get_parameter_source(name) is _COMMANDLINE:
                    raise click.UsageError(f"--{name} is for a server: give --url too (a directory needs none)")
        self._data = data or "data"
        self.url = url
        self.credentials: dict[str, str | None] = {} if url is None else credentials(token)

    @property
    def client(self) -> Client | None:
        """The server, if it is one that is to be asked."""
        from tailrace.client import Client

        return None if self.url is None else Client(self.url, **self.credentials)

    def execute(self, command: Command[T] | Query[T], *, create: bool = False) -> T:
        """Run a command on the database in the directory."""
        if not create and not Path(self._data).is_dir():
            raise NotFound(f"there is no database in {self._data!r}; say where with --data, or ask a server with --url")
        try:
            with closing(tailrace.open(self._data, housekeeping_s=None)) as db:
                return db.execute(command)
        except Unavailable as error:
            if error.code != "DATABASE_IN_USE":
                raise
            raise Unavailable(
                f"a server has {self._data!r} open; ask it: --url http://127.0.0.1:4437 --user ... or --token ... "
                f"(or TAILRACE_URL with TAILRACE_USER or TAILRACE_TOKEN)",
                code=error.code,
            ) from None


@click.group()
def keys() -> None:
    """Access keys, for the SDKs and the command line of AWS."""


@keys.command()
@click.argument("name")
@click.option("--role", type=click.Choice(list(ROLES)), default=None, help="(user) A user's own role goes before.")
@place_options
def create(name: str, role: str | None, data: str | None, url: str | None, token: str | None) -> None:
    """Make a key for NAME, who is told in change records; prints it as the environment variables that SDKs read."""
    place = Place(data, url, token)
    client = place.client
    if client is None:
        key = place.execute(CreateAccessKey(name, role), create=True)
    else:
        with client:
            made = client.create_access_key(name, role)
        key = NewKey(made["id"], made["secret"], name, 0, made["role"])
    click.echo(f"AWS_ACCESS_KEY_ID={key.id}\nAWS_SECRET_ACCESS_KEY={key.secret}")
    if sys.stdout.isatty():
        click.echo("keep the secret: it is not shown again", err=True)


@keys.command("list")
@place_options
def list_keys(data: str | None, url: str | None, token: str | None) -> None:
    """List the keys, without their secrets."""
    place = Place(data, url, token)
    client = place.client
    if client is None:
        found = place.execute(ListAccessKeys())
    else:
        with client:
            found = [_told(each) for each in client.access_keys()]
    if not found:
        click.echo("there are no access keys; make one with tailrace keys create NAME", err=True)
    for key in sorted(found, key=lambda key: (key.principal, key.created_ms)):
        made = datetime.fromtimestamp(key.created_ms / 1000, UTC)
        click.echo(f"{key.id}  {made:%Y-%m-%d %H:%M}  {'disabled' if key.disabled else 'enabled ':8}  {key.principal}")


def _told(facts: dict[str, Any]) -> KeyInfo:
    made = datetime.fromisoformat(facts["created_at"])
    return KeyInfo(facts["id"], facts["principal"], int(made.timestamp() * 1000), facts["disabled"], facts["role"])


@keys.command()
@click.argument("id")
@place_options
def delete(id: str, data: str | None, url: str | None, token: str | None) -> None:  # noqa: A002 - the argument's name
    """Delete key ID: what it signs is refused at once."""
    place = Place(data, url, token)
    client = place.client
    if client is None:
        place.execute(DeleteAccessKey(id))
        return
    with client:
        client.delete_access_key(id)


@keys.command()
@click.argument("id")
@place_options
def disable(id: str, data: str | None, url: str | None, token: str | None) -> None:  # noqa: A002
    """Refuse what key ID signs, until it is enabled."""
    _switch(Place(data, url, token), id, disabled=True)


@keys.command()
@click.argument("id")
@place_options
def enable(id: str, data: str | None, url: str | None, token: str | None) -> None:  # noqa: A002
    """Let key ID in again."""
    _switch(Place(data, url, token), id, disabled=False)


@keys.command("rotate-signing")
@place_options
def rotate_signing(data: str | None, url: str | None, token: str | None) -> None:
    """Sign webhooks with a new key; the old one stays published for a day. Prints the id of the new one."""
    place = Place(data, url, token)
    client = place.client
    if client is None:
        click.echo(place.execute(RotateSigningKey()).kid)
        return
    with client:
        click.echo(client.rotate_signing_key()["kid"])


@keys.command("rotate-secret")
@click.option("--data", type=click.Path(file_okay=False), default="data", show_default=True, help="The directory.")
def rotate_secret(data: str) -> None:
    """Encrypt the secrets in the database with another key; stop the server first. The new key is that of
    TAILRACE_SECRET_KEY, or a new one in the file secret.key if that is not set. The present key is that of
    TAILRACE_SECRET_KEY_OLD, or that of the file."""
    from tailrace.secret_key import rotate_secret_key

    click.echo(f"the secrets are encrypted with the key in {rotate_secret_key(Path(data))}")


def _switch(place: Place, name: str, *, disabled: bool) -> None:
    client = place.client
    if client is None:
        command: Command[KeyInfo] = DisableAccessKey(name) if disabled else EnableAccessKey(name)
        place.execute(command)
        return
    with client:
        client.switch_access_key(name, disabled=disabled)
