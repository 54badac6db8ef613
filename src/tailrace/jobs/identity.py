"""What tells one database from another: cold storage belongs to one, and refuses the history of others."""

from __future__ import annotations

import secrets

from tailrace.access import Permission
from tailrace.command import Command
from tailrace.storage.engine import Tx
from tailrace.storage.table import META, Meta

NAME = "identity"


class Identify(Command[str], frozen=True):
    """The database's name for itself, random, given at the first look."""

    permission = Permission.READ

    def run(self, tx: Tx) -> str:
        known = tx.get(META, NAME)
        if known is not None:
            return known.value.decode()
        fresh = secrets.token_hex(8)
        tx.put(META, Meta(NAME, fresh.encode()))
        return fresh
