"""Commands and queries: every API builds them, and the runner executes them.

A command is a frozen value with ``run(tx)``. It decides and writes inside the one write transaction, raises an `Error`
to change nothing, and returns its result, which the caller gets once the commit is durable. A query only reads: it
runs on a view of committed rows and never waits for a writer.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from tailrace import limits
from tailrace.access import ADMINISTRATIVE, Permission, Principal
from tailrace.storage.engine import Peek, Reader, Tx

T = TypeVar("T")
Subject = tuple[str, str]  # the kind, and the field with the name


class Command(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """A write. It is atomic, and succeeds or fails independently of other commands in the same commit."""

    permission: ClassVar[str] = Permission.WRITE
    subject: ClassVar[Subject | None] = None
    freeing: ClassVar[bool] = False  # as `frees`
    together: ClassVar[bool] = False  # whether there is a `run_together`
    signed: ClassVar[bool] = False  # its rows name the principal: only commands of the same one run together
    history: ClassVar[bool] = False  # it may need cold storage: on `ColdMiss` it is run again after the fetch

    def run(self, tx: Tx) -> T:
        raise AssertionError(f"{type(self).__name__} has no run()")

    @classmethod
    def run_together(cls, tx: Tx, commands: list[Any]) -> list[Any]:
        """If `together`, run as many of the first of these commands, all of this class, as can be run together: none,
        if that would not be cheaper than one by one. Their results, rows and notices are those of `run`; none of them
        fails, nor depends on `tx.by` unless `signed`."""
        raise AssertionError(f"{cls.__name__} has no run_together()")

    def prefetch(self, peek: Peek) -> None:
        """Declare rows that it is going to get, by `peek(table, *key)`: where a read waits for another machine, those
        of a whole batch are read at once, before any of it runs. A row that is in memory by then is returned, and may
        name others; `reads` is called again when it has been read. Only for speed: `run` reads what is not declared."""

    def subjects(self) -> tuple[str, ...]:
        """The subjects it touches, as in ``tables/orders``, checked against the principal's grant. None: only for
        unrestricted principals."""
        return _subjects(self, self.subject)

    def for_principal(self, principal: Principal) -> Command[T]:
        """The command as this principal runs it. Called only for administrative commands."""
        return self

    def size(self) -> int:
        """The bytes that it adds to the queue and the commit."""
        return 0

    def frees(self) -> bool:
        """Whether it frees space, so that it may use the reserve on a full disk."""
        return self.freeing

    def heavy(self) -> bool:
        """Whether it may take long and must not run on the event loop's thread. Administrative commands are rare and
        may touch many rows."""
        return self.permission in ADMINISTRATIVE or self.size() > limits.LOOP_BYTES


class Query(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """A read.

    `single`: its result depends on one row, so that other rows it reads first (a definition, say) may be of an
    earlier commit. Such a view costs half."""

    permission: ClassVar[str] = Permission.READ
    subject: ClassVar[Subject | None] = None
    single: ClassVar[bool] = False

    def run(self, reader: Reader) -> T:
        raise AssertionError(f"{type(self).__name__} has no run()")

    def subjects(self) -> tuple[str, ...]:
        """As `Command.subjects`."""
        return _subjects(self, self.subject)


def _subjects(command: Any, subject: Subject | None) -> tuple[str, ...]:
    name = None if subject is None else getattr(command, subject[1])
    return () if subject is None or name is None else (f"{subject[0]}/{name}",)
