"""Targets of `replicate`: a copy of a table in Delta, in PostgreSQL or in another Tailrace.

The rule for all of them: the progress of a copy is stored in the copy, and moves in the transaction that writes the
rows. It is the *fence*, the position in the source's log below which all changes are applied. So a batch that comes
twice, or a lost checkpoint, changes nothing: changes below the fence are cut off, and a batch that does not begin at
the fence is refused.

Executors write the rows of a batch or of a first copy where no reader of the copy sees them (`copies`); the
transaction, which the driver makes, lists or moves them.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

import msgspec

from tailrace.errors import Fenced
from tailrace.spark.jobs.copies import CopyRows, FirstCopy


class ReplicaSource(msgspec.Struct, frozen=True):
    """The table that is copied."""

    database: str
    table: str
    log: int
    keys: tuple[tuple[str, str], ...]  # name and type of each
    columns: tuple[tuple[str, str], ...] = ()  # declared in SQL: name and type of each


class Replica(Protocol):
    """One copy."""

    bytes_max: int | None  # of items in one batch; None: any number of them

    def fence(self) -> int | None:
        """The fence; None: the copy has not begun, or is a copy of an earlier change stream."""

    def backfill(self, first: FirstCopy, before: int | None) -> tuple[int, int]:
        """Make the copy equal to a first copy; the number of items, and the position. `Fenced` if the fence was not at
        `before`."""

    def apply(self, changes: CopyRows, start: int, end: int) -> None:
        """Write the last changes of [start, end) and move the fence, in one transaction; `Fenced` if it was not at
        `start`."""

    def close(self) -> None: ...

    def __enter__(self) -> Replica: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def fenced(what: str, found: int | None, start: int) -> Fenced:
    """The error for a batch that does not begin at the fence."""
    return Fenced(
        f"{what} is at {found}, and this batch begins at {start}: another replicate job writes to it; run only one"
    )
