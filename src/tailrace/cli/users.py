"""``tailrace users``: users, their roles and passwords.

The first user is created before the server first starts, in the database's directory. A running server has the
directory to itself; then the same is requested over HTTP. A new password is prompted for twice, or read from
TAILRACE_NEW_PASSWORD or standard input, and never taken from the command line, where others can see it.
TAILRACE_PASSWORD is the caller's own password, here as everywhere.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import click

from tailrace.access import ROLES
from tailrace.cli.admin import AdminTarget, target_options, target_options_without_stdin
from tailrace.cli.names import complete
from tailrace.cli.server import request
from tailrace.errors import Invalid
from tailrace.limits import PASSWORD_CHARACTERS_MIN

_PATH: Final = "/v1/admin/users"

user_argument: Final = click.argument("name", shell_complete=complete("users"))
role_option = click.option("--role", type=click.Choice(list(ROLES)), help="The user's role.")
access_option = click.option(
    "--access",
    multiple=True,
    metavar="PATTERN",
    help="Grant access to this only, e.g. tables/orders or streams/docs/*; can be repeated.",
)
stdin_option = click.option("--password-stdin", is_flag=True, help="Read the new password from standard input.")


@click.command()
@click.argument("name")
@role_option
@access_option
@stdin_option
@click.option("--no-password", is_flag=True, help="For a user who authenticates by access keys or an external issuer.")
@target_options_without_stdin
def create(
    name: str,
    role: str | None,
    access: tuple[str, ...],
    password_stdin: bool,
    no_password: bool,
    data: str | None,
    url: str | None,
    token: str | None,
) -> None:
    """Create user NAME; without --role, with the role user."""
    from tailrace.auth import users as accounts

    accounts.check_name(name)
    target = AdminTarget(data, url, token)
    password = None if no_password else new_password(name, from_stdin=password_stdin)
    if target.url is None:
        target.execute(accounts.create_user(name, password, role or "user", access or None), create=True)
    else:
        facts = {"name": name, "password": password, "role": role or "user", "access": list(access) or None}
        _send(target, "POST", _PATH, facts)
    click.echo(f"user {name} has the role {role or 'user'}", err=True)


@click.command("list")
@target_options
def list_users(data: str | None, url: str | None, token: str | None) -> None:
    """List the users."""
    target = AdminTarget(data, url, token)
    if target.url is None:
        from tailrace.auth.users import ListUsers

        users = [
            _facts(user.name, user.role, user.access, user.password, user.disabled, user.created_ms)
            for user in target.execute(ListUsers())
        ]
    else:
        users = _send(target, "GET", _PATH)["users"]
    if not users:
        click.echo("there are no users; create one with tailrace users create NAME --role dba", err=True)
    width = max((len(user["name"]) for user in users), default=0)
    for user in users:
        created = datetime.fromisoformat(user["created_at"])
        state = "disabled" if user["disabled"] else "enabled" if user["password"] else "no password"
        access = "everything" if user["access"] is None else " ".join(user["access"]) or "nothing"
        click.echo(f"{user['name']:{width}}  {user['role']:7}  {state:11}  {created:%Y-%m-%d %H:%M}  {access}")


def _facts(
    name: str, role: str, access: tuple[str, ...] | None, password: bool, disabled: bool, created_ms: int
) -> dict[str, Any]:
    """A user as the server describes it."""
    created = datetime.fromtimestamp(created_ms / 1000, UTC).isoformat()
    return {
        "name": name, "role": role, "access": access, "password": password, "disabled": disabled, "created_at": created,
    }  # fmt: skip


@click.command()
@user_argument
@role_option
@access_option
@click.option("--all-access", is_flag=True, help="Grant access to everything that the role may use.")
@click.option("--password", "change_password", is_flag=True, help="Prompt for a new password.")
@stdin_option
@click.option("--no-password", is_flag=True, help="Remove the password.")
@click.option("--disable", "disabled", flag_value=True, default=None, help="Refuse the user until it is enabled.")
@click.option("--enable", "disabled", flag_value=False, help="Accept the user again.")
@target_options_without_stdin
def alter(
    name: str,
    role: str | None,
    access: tuple[str, ...],
    all_access: bool,
    change_password: bool,
    password_stdin: bool,
    no_password: bool,
    disabled: bool | None,
    data: str | None,
    url: str | None,
    token: str | None,
) -> None:
    """Change user NAME. A new password, or --disable, ends all its sessions."""
    if (access and all_access) or (no_password and (change_password or password_stdin)):
        raise click.UsageError("--access excludes --all-access, and --password excludes --no-password")
    facts: dict[str, Any] = {}
    if role is not None:
        facts["role"] = role
    if access or all_access:
        facts["access"] = list(access) or None
    if disabled is not None:
        facts["disabled"] = disabled
    if no_password:
        facts["password"] = None
    with_password = change_password or password_stdin
    if not facts and not with_password:
        raise click.UsageError("nothing to change; see tailrace users alter --help")
    target = AdminTarget(data, url, token)
    if with_password:
        facts["password"] = new_password(name, from_stdin=password_stdin)
    if target.url is None:
        from tailrace.auth.users import alter_user

        target.execute(alter_user(name, **facts))
        return
    _send(target, "PATCH", f"{_PATH}/{quote(name, safe='')}", facts)


@click.command()
@user_argument
@target_options
def drop(name: str, data: str | None, url: str | None, token: str | None) -> None:
    """Delete user NAME: its sessions are refused at once."""
    target = AdminTarget(data, url, token)
    if target.url is None:
        from tailrace.auth.users import DropUser

        target.execute(DropUser(name=name))
        return
    _send(target, "DELETE", f"{_PATH}/{quote(name, safe='')}")


def new_password(name: str, *, from_stdin: bool) -> str:
    """A new password: from standard input, from the environment, or from the terminal, twice."""
    if from_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
    elif (given := os.environ.get("TAILRACE_NEW_PASSWORD")) is not None:
        password = given
    elif sys.stdin.isatty():
        password = click.prompt(f"New password for {name}", hide_input=True, confirmation_prompt=True, err=True)
    else:
        raise click.UsageError(
            f"there is no terminal to prompt for the new password of {name!r}: "
            "use --password-stdin or set TAILRACE_NEW_PASSWORD"
        )
    if len(password) < PASSWORD_CHARACTERS_MIN:
        raise Invalid(
            f"the password has {len(password)} characters; use at least {PASSWORD_CHARACTERS_MIN}",
            code="WEAK_PASSWORD",
        )
    return password


def _send(target: AdminTarget, method: str, path: str, facts: dict[str, Any] | None = None) -> dict[str, Any]:
    """Send a request to the server."""
    from tailrace.client.errors import error_of

    assert target.url is not None
    try:
        response = request(target.url, target.credentials, method, path, json=facts)
    except UnicodeEncodeError:
        raise Invalid("the name, the password or the token cannot be sent: it is not valid text") from None
    if response.status_code >= 400:
        raise error_of(response)
    body: dict[str, Any] = response.json() if response.content else {}
    return body
