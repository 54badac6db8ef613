"""The identity of the database, and other values that are created once: cold storage belongs to one database and
refuses the history of others; iterators of change streams are sealed with a secret; the last recorded time shows at
startup whether the clock is far ahead (`clock.py`).

`Provision` creates them when a database is opened for writing, so that no read ever has to write.
"""

from __future__ import annotations

import secrets
from typing import Final

import msgspec

from tailrace.access import Permission
from tailrace.command import Command, Query
from tailrace.errors import Unavailable
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.table import META, MetaRow
from tailrace.tables.change_stream import CHANGE_STREAMS
from tailrace.tables.seal import SECRET, MakeSecret

NAME: Final = "identity"  # in META
TIME: Final = "clock"  # likewise


class Identify(Query[str], frozen=True):
    """The identity of the database: random, and never changed."""

    single = True

    def run(self, reader: Reader) -> str:
        known = reader.get(META, NAME)
        if known is None:
            raise Unavailable(
                "the database has no identity yet: it could not be written when it was opened; the identity is "
                "assigned once writes work, so free some space on the disk, or restart the server",
                code="NO_IDENTITY",
            )
        return known.value.decode()


class Provisioned(Query[bool], frozen=True):
    """Whether all values that are created once exist."""

    permission = Permission.SYSTEM
    single = True

    def run(self, reader: Reader) -> bool:
        return all(reader.get(META, name) is not None for name in (NAME, SECRET, TIME))


class Provision(Command[None], frozen=True):
    """Create the values that do not exist yet."""

    permission = Permission.SYSTEM

    def run(self, tx: Tx) -> None:
        if tx.get(META, NAME) is None:
            tx.put(META, MetaRow(NAME, secrets.token_hex(8).encode()))
        MakeSecret().run(tx)
        if tx.get(META, TIME) is None:
            NoteTime(None).run(tx)


class Noted(msgspec.Struct, frozen=True):
    """The last recorded time."""

    settled_ms: int
    seen_ms: int | None = None  # when a jump that was not confirmed was first seen, by the clock that had jumped


class LastTime(Query[Noted | None], frozen=True):
    """The last recorded time; None if there is none."""

    permission = Permission.SYSTEM
    single = True

    def run(self, reader: Reader) -> Noted | None:
        row = reader.get(META, TIME)
        return None if row is None else msgspec.json.decode(row.value, type=Noted)


class NoteTime(Command[None], frozen=True):
    """Record the confirmed time, and that of a jump."""

    permission = Permission.SYSTEM

    seen_ms: int | None

    def run(self, tx: Tx) -> None:
        tx.put(META, MetaRow(TIME, msgspec.json.encode(Noted(tx.settled_ms, self.seen_ms))))


class BecomeAnother(Command[str], frozen=True):
    """Make a copy of a database independent: give it a new identity, secret for iterators and epochs of change streams,
    so that iterators and offsets of the original are not valid in it. The new identity."""

    permission = Permission.SYSTEM

    def run(self, tx: Tx) -> str:
        identity = secrets.token_hex(8)
        tx.put(META, MetaRow(NAME, identity.encode()))
        tx.delete(META, SECRET)
        MakeSecret().run(tx)
        for stream in list(tx.scan(CHANGE_STREAMS)):
            tx.put(CHANGE_STREAMS, msgspec.structs.replace(stream, epoch=secrets.token_hex(8)))
        return identity
