"""Translates errors of SQLite and its binding into `Error`s."""

from __future__ import annotations

from typing import Any, Final

import apsw

from tailrace.errors import Corrupt, Error, Invalid, Unavailable
from tailrace.storage.engine import unstorable
from tailrace.storage.table import StorageTable


class _Translation:
    """A context manager that translates errors. One object serves all uses: entering it costs nothing."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FOREIGN):
            raise translate(error) from error


FOREIGN: Final = (apsw.Error, UnicodeEncodeError)
# What a write can fail with because of a value in it; apsw.Error is more than that.
REFUSALS: Final = (apsw.Error, OverflowError, TypeError, UnicodeEncodeError)
_DATATYPES: Final = (apsw.SQLITE_CONSTRAINT_DATATYPE, apsw.SQLITE_CONSTRAINT_NOTNULL)


def refused(table: StorageTable[Any], error: Exception) -> Error:
    """The error for rows that were not written."""
    if isinstance(error, apsw.ConstraintError) and getattr(error, "extendedresult", None) not in _DATATYPES:
        return translate(error)  # a key that must be new exists
    if isinstance(error, apsw.Error) and not isinstance(error, apsw.ConstraintError | apsw.TooBigError):
        return translate(error)
    return unstorable(table, error)


def translate(error: apsw.Error | UnicodeEncodeError) -> Error:
    if isinstance(error, UnicodeEncodeError):
        return Invalid(f"a text has half of a surrogate pair at {error.start}, which UTF-8 cannot encode; leave it out")
    if isinstance(error, apsw.FullError):
        return Unavailable(f"the disk is full ({error}); free some space, then writes continue", code="DISK_FULL")
    if isinstance(error, apsw.BusyError):
        return Unavailable(
            f"another program has locked the database ({error}); writes continue when it releases the lock",
            code="DATABASE_BUSY",
        )
    if isinstance(error, (apsw.CorruptError, apsw.NotADBError, apsw.ConstraintError)):
        return Corrupt(f"the database is damaged: {error}; run `tailrace check` and restore a backup")
    if getattr(error, "extendedresult", None) == apsw.SQLITE_IOERR_DATA:
        return Corrupt(
            "the database is damaged: a page of the database file fails its checksum; `tailrace check` says which, and "
            "what it holds; restore a backup"
        )
    return Unavailable(f"the database cannot be used: {error}; see the log, then restart", code="STORAGE_FAILED")


_TRANSLATION: Final = _Translation()


def translated() -> _Translation:
    return _TRANSLATION
