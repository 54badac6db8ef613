"""What every front door builds and the runner executes.

A command is a frozen value with ``run(tx)``. It decides and writes inside the one write transaction, raises an `Error`
to change nothing, and returns its result, which the caller gets once the commit is durable. A query is a command
that only reads: it runs on a view of what is committed and never waits for a writer.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from tailrace import limits
from tailrace.access import ADMINISTRATIVE, Permission, Principal
from tailrace.storage.engine import Reader, Tx

T = TypeVar("T")
Subject = tuple[str, str]  # the kind, and the field that has the name


class Command(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """A change. All or nothing, alone in its outcome even when it shares a commit."""

    permission: ClassVar[str] = Permission.WRITE
    subject: ClassVar[Subject | None] = None
    freeing: ClassVar[bool] = False  # as `frees`
    history: ClassVar[bool] = False  # it may need what is in cold storage, and is then run again when that was fetched

    def run(self, tx: Tx) -> T:
        raise AssertionError(f"{type(self).__name__} has no run()")

    def subjects(self) -> tuple[str, ...]:
        """What it touches, as in ``tables/orders``, for principals that were given only some things. None: not for
        those."""
        return _subjects(self, self.subject)

    def asked_by(self, principal: Principal) -> Command[T]:
        """The command for a principal that has its permission; only those that administer are told who that is."""
        return self

    def size(self) -> int:
        """How many bytes it carries into the queue and the commit."""
        return 0

    def frees(self) -> bool:
        """Whether it helps to free space, so that it may use what is set aside for a full disk."""
        return self.freeing

    def heavy(self) -> bool:
        """Whether it may take long, so that it never runs on an event loop's thread. What administers is rare and may
        touch much."""
        return self.permission in ADMINISTRATIVE or self.size() > limits.LOOP_BYTES


class Query(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """A question.

    `single`: it is answered by one row, so that it does not matter whether what it reads before that (a definition,
    say) is of the very same commit. Such a view costs half."""

    permission: ClassVar[str] = Permission.READ
    subject: ClassVar[Subject | None] = None
    single: ClassVar[bool] = False

    def run(self, reader: Reader) -> T:
        raise AssertionError(f"{type(self).__name__} has no run()")

    def subjects(self) -> tuple[str, ...]:
        """As `Command.subjects`."""
        return _subjects(self, self.subject)


def _subjects(asked: Any, subject: Subject | None) -> tuple[str, ...]:
    name = None if subject is None else getattr(asked, subject[1])
    return () if subject is None or name is None else (f"{subject[0]}/{name}",)
