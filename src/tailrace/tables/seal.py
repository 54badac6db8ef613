"""The secret that places in change streams are sealed with before clients get them.

It is made when it is first needed and kept in the database, so that what was handed out survives a restart.
"""

from __future__ import annotations

import secrets
from typing import Final

from tailrace.command import Command, Query
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.table import META, Meta

SECRET: Final = "iterator-secret"  # its name in META
_SECRET_BYTES: Final = 32


class FindSecret(Query[bytes | None], frozen=True):
    """The secret, if there is one yet."""

    single = True

    def run(self, reader: Reader) -> bytes | None:
        row = reader.get(META, SECRET)
        return None if row is None else row.value


class MakeSecret(Command[bytes], frozen=True):
    """The secret; if there is none, it is made."""

    def run(self, tx: Tx) -> bytes:
        row = tx.get(META, SECRET)
        if row is None:
            row = Meta(SECRET, secrets.token_bytes(_SECRET_BYTES))
            tx.put(META, row)
        return row.value
