"""The options of commands that talk to a server, and the client made of them.

A value on the command line wins over the environment, the environment over the profile. A profile named on the command
line wins over the environment, too: it means that server and those credentials.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from tailrace.cli.profiles import Profile
    from tailrace.client import Client

DEFAULT_URL: Final = "http://127.0.0.1:4437"
_COMMANDLINE: Final = ParameterSource.COMMANDLINE
_EXPLICIT: Final = "tailrace.profile_explicit"
_PROFILE: Final = "tailrace.profile_loaded"
# Of two sources of credentials the first counts.
_RANKS: Final = {_COMMANDLINE: 0, ParameterSource.ENVIRONMENT: 1, ParameterSource.DEFAULT_MAP: 2}

Wrapped = TypeVar("Wrapped", bound=Callable[..., Any])


class ServerOption(click.Option):
    """An option whose value a profile may have. A profile named on the command line hides the environment."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        return None if ctx.meta.get(_EXPLICIT) else super().resolve_envvar_value(ctx)


def _load(context: click.Context, parameter: click.Parameter, name: str | None) -> None:
    """Make the profile's values the defaults of the other options."""
    from tailrace.cli.profiles import load_profile

    named = name if context.get_parameter_source("profile") is _COMMANDLINE else context.meta.get("tailrace.profile")
    context.meta[_EXPLICIT] = named is not None
    profile = context.meta[_PROFILE] = load_profile(named or name)
    values = {"url": profile.url, "token": profile.token, "user": profile.user}
    known = {key: value for key, value in values.items() if value is not None}
    context.default_map = {**(context.default_map or {}), **known}


def _complete_profiles(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str | CompletionItem]:
    from tailrace.cli.profiles import profile_names
    from tailrace.errors import Error

    try:
        return [name for name in profile_names() if name.startswith(incomplete)]
    except Error:
        return []


def _note(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Keep the value for `connect`: commands need not know of users."""
    context.meta[f"tailrace.{parameter.name}"] = value


PROFILE: Final = click.option(
    "--profile", metavar="NAME", envvar="TAILRACE_PROFILE", expose_value=False, is_eager=True, callback=_load,
    shell_complete=_complete_profiles, help="A profile in ~/.config/tailrace.toml: url, token or user.",
)  # fmt: skip
USER: Final = click.option(
    "--user", cls=ServerOption, envvar="TAILRACE_USER", expose_value=False, callback=_note,
    help="The user to authenticate as, instead of a token; prompts for the password.",
)  # fmt: skip
PASSWORD_STDIN: Final = click.option(
    "--password-stdin", is_flag=True, expose_value=False, callback=_note,
    help="Read the user's password from the first line of standard input (or set TAILRACE_PASSWORD).",
)  # fmt: skip
TOKEN: Final = click.option("--token", cls=ServerOption, envvar="TAILRACE_TOKEN", help="The bearer token.")
URL: Final = click.option(
    "--url", cls=ServerOption, default=DEFAULT_URL, envvar="TAILRACE_URL", show_default=True, help="The server's URL."
)
OPTIONAL_URL: Final = click.option(
    "--url", cls=ServerOption, envvar="TAILRACE_URL", help="The server's URL, instead of a directory."
)


def applied(*options: Callable[[Any], Any]) -> Callable[[Wrapped], Wrapped]:
    """A decorator that adds these options, which `--help` lists in this order."""

    def with_options(command: Wrapped) -> Wrapped:
        for option in reversed(options):
            command = option(command)
        return command

    return with_options


server_options: Final = applied(URL, PROFILE, TOKEN, USER, PASSWORD_STDIN)


def connect(url: str, token: str | None) -> Client:
    """A client of the server, with the command's credentials."""
    from tailrace.client import Client

    return Client(url, **credentials(url, token))


def credentials(url: str, token: str | None, *, prompt: bool = True) -> dict[str, str | None]:
    """A `token`, or a `user` and a `password`. Without `prompt`, nothing where the password is not known."""
    context = click.get_current_context()
    user: str | None = context.meta.get("tailrace.user")
    profile: Profile | None = context.meta.get(_PROFILE)
    ranks = {
        name: _RANKS.get(context.get_parameter_source(name) or ParameterSource.DEFAULT, 3)
        for name, value in (("token", token), ("user", user))
        if value is not None
    }
    if profile is not None and profile.url is not None and url != profile.url:
        ranks = {name: rank for name, rank in ranks.items() if rank < _RANKS[ParameterSource.DEFAULT_MAP]}
    if not ranks:
        if context.meta.get("tailrace.password_stdin"):
            raise click.UsageError("--password-stdin is the password of a user: add --user")
        return {"token": None}
    if ranks == {"token": 0, "user": 0}:
        raise click.UsageError("--user and --token exclude each other: leave one out")
    if min(ranks, key=lambda name: (ranks[name], name)) == "token":
        return {"token": token}
    assert user is not None
    stored = profile.password if profile is not None and profile.user == user and ranks["user"] == 2 else None
    if not prompt:
        password = stored or os.environ.get("TAILRACE_PASSWORD")
        return {"token": None} if password is None else {"user": user, "password": password}
    return {"user": user, "password": _password(context, user, stored)}


def _password(context: click.Context, user: str, stored: str | None) -> str:
    if context.meta.get("tailrace.password_stdin"):
        # One line and no more: the rest may be the command's own input.
        return sys.stdin.buffer.readline().decode(errors="surrogateescape").rstrip("\r\n")
    if stored is not None:
        return stored
    if (password := os.environ.get("TAILRACE_PASSWORD")) is not None:
        return password
    if not sys.stdin.isatty():
        other = " or use --password-stdin" if "tailrace.password_stdin" in context.meta else ""
        raise click.UsageError(f"the password of {user!r} is missing: set TAILRACE_PASSWORD{other}")
    typed: str = click.prompt(f"Password of {user}", hide_input=True, err=True)
    return typed
