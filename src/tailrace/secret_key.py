"""Replaces the encryption key of a database's secrets, while no server has the database open."""

from __future__ import annotations

import base64
import os
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from tailrace import extras, failpoints
from tailrace.errors import Invalid
from tailrace.storage.modes import write_private
from tailrace.storage.presence import sync_directory
from tailrace.storage.sqlite import FILE as DATABASE
from tailrace.storage.sqlite import SqliteEngine
from tailrace.storage.vault import ENVIRONMENT, FILE, KEY_BYTES, NEXT, PREVIOUS, Vault, parse_key


def rotate_secret_key(directory: Path, database: str | None = None) -> str:
    """Encrypt all secrets with the key in TAILRACE_SECRET_KEY, or with a new key in the key file if that is not set.
    The present key is in TAILRACE_SECRET_KEY_OLD, or in the key file. Returns where the new key is. `database`: the URL
    of one in PostgreSQL, whose key is in the directory."""
    if database is None and not (directory / DATABASE).is_file():
        raise Invalid(f"there is no database in {str(directory)!r}; name the directory with --data")
    wanted, present = os.environ.get(ENVIRONMENT), os.environ.get(PREVIOUS)
    new = None if wanted is None else parse_key(wanted, f"the environment variable {ENVIRONMENT}")
    if present is None and new is not None and not (directory / FILE).is_file():
        raise Invalid(
            f"there is no {FILE} in {str(directory)!r}; set {PREVIOUS} to the current key", code="SECRET_KEY_MISSING"
        )
    with closing(_opened(directory, database, {} if present is None else {ENVIRONMENT: present})) as engine:
        if new is None:
            new = os.urandom(KEY_BYTES)
            write_private(directory / NEXT, base64.b64encode(new) + b"\n")
        failpoints.hit("rotation.begun")
        engine.reencrypt(Vault(new))
        failpoints.hit("rotation.committed")
        if wanted is None:
            os.rename(directory / NEXT, directory / FILE)
        else:
            with suppress(FileNotFoundError):
                (directory / FILE).unlink()
        sync_directory(directory)
    return f"the environment variable {ENVIRONMENT}" if wanted is not None else str(directory / FILE)


def _opened(directory: Path, database: str | None, environment: dict[str, str]) -> Any:
    if database is None:
        return SqliteEngine(directory, environment=environment)
    extras.require("postgres")
    from tailrace.storage.postgres import PostgresEngine  # an optional package

    return PostgresEngine(database, directory, environment=environment)
