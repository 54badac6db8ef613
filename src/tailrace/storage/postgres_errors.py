"""Translates errors of PostgreSQL and its driver into `Error`s."""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import errors as postgres

from tailrace.errors import Corrupt, Error, Invalid, Unavailable
from tailrace.storage.engine import LOST, UNSTORABLE

FOREIGN: Final = (psycopg.Error, UnicodeEncodeError)


class _PostgresTranslation:
    """A context manager that translates errors. One object serves all uses."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FOREIGN):
            raise translate(error) from error


_TRANSLATION: Final = _PostgresTranslation()


def translated() -> _PostgresTranslation:
    return _TRANSLATION


def translate(error: Any) -> Error:
    if isinstance(error, UnicodeEncodeError):
        return Invalid(f"a text has half of a surrogate pair at {error.start}, which UTF-8 cannot encode; leave it out")
    said = " ".join(str(error).split())
    if isinstance(error, postgres.DiskFull):
        return Unavailable(
            f"the disk of the PostgreSQL server is full ({said}); free some space there, then writes continue",
            code="DISK_FULL",
        )
    if isinstance(error, (postgres.UniqueViolation, postgres.DataCorrupted, postgres.IndexCorrupted)):
        return Corrupt(f"the database is damaged: {said}; run `tailrace check` and restore a backup")
    if isinstance(error, (psycopg.DataError, psycopg.IntegrityError)):
        return Unavailable(
            f"a row cannot be stored ({said}), and nothing that shared its commit was written; if your command has no "
            "such value, try again",
            code=UNSTORABLE,
        )
    if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        return Unavailable(
            f"the PostgreSQL server cannot be reached, or ended the connection ({said}), and nothing was written; "
            "try again",
            code=LOST,
        )
    return Unavailable(f"the database cannot be used: {said}; see the log, then restart", code="STORAGE_FAILED")


def without_nul(text: str) -> None:
    """Raise `Invalid` if a text cannot be stored: one client's text must not fail a whole commit."""
    if "\0" in text:
        raise Invalid(
            f"the text {text[:80]!r} has U+0000, which a database in PostgreSQL does not store; leave it out",
            code="TEXT_NUL",
        )
