"""The secret with which shard iterators are sealed before clients get them.

It is created when the database is first opened and stored in it, so that iterators survive a restart.
"""

from __future__ import annotations

import secrets
from typing import Final

from tailrace.access import Permission
from tailrace.command import Command, Query
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.vault import read_secret, write_secret

SECRET: Final = "iterator-secret"  # its name in META
_SECRET_BYTES: Final = 32


class FindSecret(Query[bytes | None], frozen=True):
    """The secret, if it exists yet."""

    permission = Permission.SYSTEM
    single = True

    def run(self, reader: Reader) -> bytes | None:
        return read_secret(reader, SECRET)


class MakeSecret(Command[bytes], frozen=True):
    """The secret; created if it does not exist."""

    permission = Permission.SYSTEM

    def run(self, tx: Tx) -> bytes:
        secret = read_secret(tx, SECRET)
        if secret is None:
            secret = secrets.token_bytes(_SECRET_BYTES)
            write_secret(tx, SECRET, secret)
        return secret
