"""A temporary table of keys and bytes, in key order: in memory while it is small, then in a file.

The file is beside the database, or among the system's temporary files if that directory is gone or cannot be written:
reads need a scratch too. Only its owner can read it, and it is unlinked before the first write, so that a crash leaves
nothing behind. One transaction stays open: pages go to the file only when the cache is full. Not for use by two threads
at once.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, Final

import apsw

from tailrace.errors import Unavailable

_CACHE_KIB: Final = 2 * 1024
ROW_BYTES: Final = 64  # the approximate overhead of a row


class Scratch:
    """A table of keys with bytes, or with None."""

    def __init__(self, directory: Path) -> None:
        self.bytes = 0  # that are kept now
        try:
            handle, path = tempfile.mkstemp(prefix=".scratch-", dir=directory)
            os.close(handle)
        except OSError:
            path = ""  # SQLite makes a file of its own when it needs one
        try:
            self._connection = apsw.Connection(path)
            for statement in (
                "PRAGMA journal_mode = OFF",
                "PRAGMA synchronous = OFF",
                "PRAGMA locking_mode = EXCLUSIVE",
                f"PRAGMA cache_size = -{_CACHE_KIB}",
                "BEGIN EXCLUSIVE",
                "CREATE TABLE kept (key BLOB PRIMARY KEY, body BLOB)",
            ):
                self._connection.execute(statement).fetchall()
        except apsw.Error as error:
            raise _unusable(error) from error
        finally:
            if path:
                os.unlink(path)

    def keep(self, key: bytes, body: bytes | None) -> None:
        """Store bytes under a key, unless the key exists: the first ones stay."""
        try:
            self._connection.execute("INSERT OR IGNORE INTO kept VALUES (?, ?)", (key, body))
        except apsw.Error as error:
            raise _unusable(error) from error
        if self._connection.changes():
            self.bytes += _size(key, body)

    def between(self, start: bytes, until: bytes | None, limit: int) -> list[tuple[bytes, bytes | None]]:
        """The first rows with keys from `start` up to `until`, in key order."""
        bound = "" if until is None else "AND key <= ?"
        bounds = (start, limit) if until is None else (start, until, limit)
        statement = f"SELECT key, body FROM kept WHERE key >= ? {bound} ORDER BY key LIMIT ?"
        try:
            found: list[Any] = self._connection.execute(statement, bounds).fetchall()
            return found
        except apsw.Error as error:
            raise _unusable(error) from error

    def forget(self, until: bytes) -> None:
        """Drop the rows with keys up to `until`."""
        try:
            rows: list[Any] = self._connection.execute(
                f"SELECT sum(length(key) + ifnull(length(body), 0) + {ROW_BYTES}) FROM kept WHERE key <= ?", (until,)
            ).fetchall()
            if rows[0][0]:
                self._connection.execute("DELETE FROM kept WHERE key <= ?", (until,))
                self.bytes -= rows[0][0]
        except apsw.Error as error:
            raise _unusable(error) from error

    def close(self) -> None:
        """Drop everything."""
        self._connection.close()


def _size(key: bytes, body: bytes | None) -> int:
    return len(key) + (0 if body is None else len(body)) + ROW_BYTES


def _unusable(error: Exception) -> Unavailable:
    return Unavailable(f"a temporary file cannot be written ({error}); free some space on the disk", code="SCRATCH")
