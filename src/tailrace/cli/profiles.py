"""Profiles: how to connect to which server, in ``~/.config/tailrace.toml``.

Each table of the file is a profile; ``[default]`` is used when none is named by ``--profile`` or ``TAILRACE_PROFILE``::

    [default]
    url = "http://127.0.0.1:4437"

    [prod]
    url = "https://tailrace.example.com"
    token = "..."       # or user, and perhaps password

A profile's credentials are sent to the profile's own URL only. Errors name the file and the key.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, Final

import msgspec

from tailrace.errors import Invalid

DEFAULT: Final = "default"
KEYS: Final = ("url", "token", "user", "password")
SECRETS: Final = ("token", "password")


class Profile(msgspec.Struct, frozen=True):
    """How to connect to one server; None is what the profile leaves open."""

    name: str
    url: str | None = None
    token: str | None = None
    user: str | None = None
    password: str | None = None


def profiles_path() -> Path:
    """The file: in XDG_CONFIG_HOME, else in ~/.config."""
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    home = Path(configured) if os.path.isabs(configured) else Path.home() / ".config"
    return home / "tailrace.toml"


def load_profile(name: str | None) -> Profile:
    """The profile by this name; without a name the default one, which may be empty."""
    path = profiles_path()
    tables = _read(path)
    wanted = name or DEFAULT
    table = tables.get(wanted)
    if table is None:
        if name is None:
            return Profile(DEFAULT)
        there = ", ".join(sorted(tables)) or "none"
        raise Invalid(f"{path} has no profile {wanted!r}; its profiles: {there}. Add a table [{wanted}] with a url")
    return _checked(path, wanted, table)


def profile_names() -> list[str]:
    """The names of all profiles."""
    return sorted(_read(profiles_path()))


def _read(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Invalid(f"cannot read the profiles in {path}: {error.strerror}") from None
    import tomllib

    try:
        return tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"{path} is not TOML: {error}") from None


def _checked(path: Path, name: str, table: Any) -> Profile:
    if not isinstance(table, dict):
        raise Invalid(f"{path}: {name} must be a table [{name}] with url and token, not {table!r}")
    for key, value in table.items():
        if key not in KEYS:
            raise Invalid(f"{path}: [{name}] has an unknown key {key!r}; a profile has {', '.join(KEYS)}")
        if not isinstance(value, str) or not value:
            raise Invalid(f"{path}: {key} in [{name}] must be text that is not empty, not {value!r}")
    if "token" in table and "user" in table:
        raise Invalid(f"{path}: [{name}] has both token and user; keep one of them")
    if "password" in table and "user" not in table:
        raise Invalid(f"{path}: [{name}] has a password and no user; add user")
    if any(key in table for key in SECRETS) and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise Invalid(f"{path} holds secrets and other users can read it; run: chmod 600 {path}")
    return Profile(name, **table)
