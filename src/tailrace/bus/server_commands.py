"""Which commands of each server are committed: a row per server, written in the transaction of its commands.

A server that sends commands to the writer of another process numbers them. When the writer is replaced, the server asks
how far the last one came, and sends again exactly the commands beyond that.
"""

from __future__ import annotations

import msgspec

from tailrace.access import Permission
from tailrace.command import Command, Query
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.table import StorageTable


class SentRow(msgspec.Struct, frozen=True, gc=False):
    """The number of the last committed command of a server in one of its lives."""

    server: str  # its name, a slash, and the id of this life
    upto: int


SENT = StorageTable("sent", SentRow, key=("server",), cached=True)


def life_name(server: str, life: str) -> str:
    return f"{server}/{life}"


class ForgetLives(Command[None], frozen=True):
    """The first writer of a server begins: no process of an earlier start is left."""

    freeing = True
    permission = Permission.SYSTEM

    def run(self, tx: Tx) -> None:
        for row in list(tx.scan(SENT)):
            tx.delete(SENT, row.server)


class JoinLife(Command[bool], frozen=True):
    """A server connects. Whether its life is known: one that was forgotten is not begun again, since what it has sent
    before may have been committed. Its name has no other process.

    Its row may use the reserve of a full disk: a worker can be replaced then, and its reads go on."""

    freeing = True
    permission = Permission.SYSTEM

    life: str
    first: bool  # it has not been connected before

    def run(self, tx: Tx) -> bool:
        if tx.get(SENT, self.life) is None:
            if not self.first:
                return False
            tx.put(SENT, SentRow(self.life, 0))
        return True


class ForgetLife(Command[None], frozen=True):
    """A server has not been connected for BUS_FORGET_S: it has ended."""

    freeing = True
    permission = Permission.SYSTEM

    life: str

    def run(self, tx: Tx) -> None:
        if tx.get(SENT, self.life) is not None:
            tx.delete(SENT, self.life)


class LastSent(Query[int], frozen=True):
    """The number of the last committed command of a life. Not the result of `JoinLife`: the numbers of the commands
    that share its transaction are written after it."""

    permission = Permission.SYSTEM

    life: str

    def run(self, reader: Reader) -> int:
        found = reader.get(SENT, self.life)
        return 0 if found is None else found.upto


class ListSent(Query[list[SentRow]], frozen=True):
    """The last committed command of each server."""

    permission = Permission.SYSTEM

    def run(self, reader: Reader) -> list[SentRow]:
        return list(reader.scan(SENT))
