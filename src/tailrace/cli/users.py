"""``tailrace users``: who may come in with a password.

The first user is made before the server first starts, in the database's directory; while a server runs it alone has the
directory, so then the same is asked of it over HTTP. A new password is asked for twice, or read from
TAILRACE_NEW_PASSWORD or from standard input, and never taken from the command line, where others can see it.
TAILRACE_PASSWORD is the password of who asks, here as everywhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import quote

import click

from tailrace.access import ROLES
from tailrace.auth import passwords
from tailrace.auth import users as accounts
from tailrace.auth.users import DropUser, ListUsers, UserInfo
from tailrace.cli.keys import Place, place_options, place_options_but_stdin
from tailrace.errors import Invalid, Unavailable

Wrapped = TypeVar("Wrapped", bound=Callable[..., Any])
_PATH = "/v1/admin/users"

role_option = click.option("--role", type=click.Choice(list(ROLES)), help="What the user may do.")
access_option = click.option(
    "--access",
    multiple=True,
    metavar="PATTERN",
    help="Only this, as in tables/orders or streams/docs/*; give it several times for several.",
)
stdin_option = click.option("--password-stdin", is_flag=True, help="Read the new password from standard input.")


@click.group()
def users() -> None:
    """Users, their roles and passwords."""


@users.command()
@click.argument("name")
@role_option
@access_option
@stdin_option
@click.option("--no-password", is_flag=True, help="For one who comes in by access keys or an outside issuer.")
@place_options_but_stdin
def add(
    name: str,
    role: str | None,
    access: tuple[str, ...],
    password_stdin: bool,
    no_password: bool,
    data: str | None,
    url: str | None,
    token: str | None,
) -> None:
    """Make user NAME; without --role, of role user."""
    accounts.check_name(name)
    place = Place(data, url, token)
    password = None if no_password else ask_password(name, from_stdin=password_stdin)
    given = access or None
    if place.url is None:
        place.execute(accounts.create_user(name, password, role or "user", given), create=True)
    else:
        facts = {"name": name, "password": password, "role": role or "user", "access": list(access) or None}
        _send(place, "POST", _PATH, facts)
    click.echo(f"user {name} has the role {role or 'user'}", err=True)


@users.command("list")
@place_options
def list_users(data: str | None, url: str | None, token: str | None) -> None:
    """List the users."""
    place = Place(data, url, token)
    if place.url is None:
        found = place.execute(ListUsers())
    else:
        found = [_told(each) for each in _send(place, "GET", _PATH)["users"]]
    if not found:
        click.echo("there are no users; make one with tailrace users add NAME --role dba", err=True)
    width = max((len(user.name) for user in found), default=0)
    for user in found:
        made = datetime.fromtimestamp(user.created_ms / 1000, UTC)
        state = "disabled" if user.disabled else "enabled" if user.password else "no password"
        given = "everything" if user.access is None else " ".join(user.access) or "nothing"
        click.echo(f"{user.name:{width}}  {user.role:7}  {state:11}  {made:%Y-%m-%d %H:%M}  {given}")


@users.command()
@click.argument("name")
@role_option
@access_option
@click.option("--all-access", is_flag=True, help="Everything that the role may use.")
@click.option("--password", "new_password", is_flag=True, help="Another password; it is asked for.")
@stdin_option
@click.option("--no-password", is_flag=True, help="None from now on.")
@click.option("--disable", "disabled", flag_value=True, default=None, help="Refuse the user until it is enabled.")
@click.option("--enable", "disabled", flag_value=False, help="Let the user in again.")
@place_options_but_stdin
def alter(
    name: str,
    role: str | None,
    access: tuple[str, ...],
    all_access: bool,
    new_password: bool,
    password_stdin: bool,
    no_password: bool,
    disabled: bool | None,
    data: str | None,
    url: str | None,
    token: str | None,
) -> None:
    """Change user NAME. Another password, or --disable, ends all its sessions."""
    if (access and all_access) or (no_password and (new_password or password_stdin)):
        raise click.UsageError("--access and --all-access, or --password and --no-password, say two things at once")
    facts: dict[str, Any] = {}
    if role is not None:
        facts["role"] = role
    if access or all_access:
        facts["access"] = list(access) or None
    if disabled is not None:
        facts["disabled"] = disabled
    if no_password:
        facts["password"] = None
    asked = new_password or password_stdin
    if not facts and not asked:
        raise click.UsageError("nothing to change; see tailrace users alter --help")
    place = Place(data, url, token)
    if asked:
        facts["password"] = ask_password(name, from_stdin=password_stdin)
    if place.url is None:
        place.execute(accounts.alter_user(name, **facts))
        return
    _send(place, "PATCH", f"{_PATH}/{quote(name, safe='')}", facts)


@users.command()
@click.argument("name")
@place_options
def drop(name: str, data: str | None, url: str | None, token: str | None) -> None:
    """Forget user NAME: what it has open is refused at once."""
    place = Place(data, url, token)
    if place.url is None:
        place.execute(DropUser(name=name))
        return
    _send(place, "DELETE", f"{_PATH}/{quote(name, safe='')}")


def ask_password(name: str, *, from_stdin: bool) -> str:
    """A new password: from standard input, from the environment, or from the terminal, twice."""
    if from_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
    elif (given := os.environ.get("TAILRACE_NEW_PASSWORD")) is not None:
        password = given
    elif sys.stdin.isatty():
        password = click.prompt(f"New password for {name}", hide_input=True, confirmation_prompt=True, err=True)
    else:
        raise click.UsageError(
            f"there is no terminal to ask for the new password of {name!r}: "
            "give --password-stdin or TAILRACE_NEW_PASSWORD"
        )
    if len(password) < passwords.PASSWORD_CHARACTERS_MIN:
        raise Invalid(
            f"the password has {len(password)} characters; use at least {passwords.PASSWORD_CHARACTERS_MIN}",
            code="WEAK_PASSWORD",
        )
    return password


def _send(place: Place, method: str, path: str, facts: dict[str, Any] | None = None) -> dict[str, Any]:
    """Ask the server for it."""
    import httpx

    from tailrace.client.errors import raised

    token, user, password = (place.credentials.get(name) for name in ("token", "user", "password"))
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    auth = None if user is None or password is None else (user, password)
    target = f"{(place.url or '').rstrip('/')}{path}"
    try:
        answer = httpx.request(method, target, headers=headers, auth=auth, json=facts, timeout=30)
    except UnicodeEncodeError:
        raise Invalid("the name, the password or the token cannot be sent: it is not valid text") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unavailable(f"cannot reach {place.url}: {error}; is the server running?") from error
    if answer.status_code >= 400:
        raise raised(answer)
    found: dict[str, Any] = answer.json() if answer.content else {}
    return found


def _told(facts: dict[str, Any]) -> UserInfo:
    made, changed = (
        int(datetime.fromisoformat(facts[name]).timestamp() * 1000) for name in ("created_at", "updated_at")
    )
    access = None if facts["access"] is None else tuple(facts["access"])
    return UserInfo(facts["name"], facts["role"], access, facts["password"], facts["disabled"], made, changed)
