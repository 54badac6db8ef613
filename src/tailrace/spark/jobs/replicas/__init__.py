"""Where copies of a table are kept: in Delta, in PostgreSQL, in another Tailrace.

The rule that all of them keep: how far a copy has come stands in the copy, and moves in the transaction that writes the
rows. It is the *fence*, the position in the source's log below which everything is there. So a batch that comes twice,
or a checkpoint that is lost, changes nothing: what lies below the fence is cut off, and a batch that does not begin at
the fence is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Protocol

import msgspec
import pyarrow as pa

from tailrace.errors import Fenced


class Source(msgspec.Struct, frozen=True):
    """What is copied."""

    database: str
    table: str
    log: int
    keys: tuple[tuple[str, str], ...]  # name and type of each


class Replica(Protocol):
    """One copy. Rows have the columns of a state (`fold.STATE`); where `typed` is null the item is gone."""

    def fence(self) -> int | None:
        """Up to where the copy has come; None: it has not begun, or was a copy of an earlier change stream."""

    def backfill(self, rows: Iterable[pa.RecordBatch], position: int, before: int | None) -> int:
        """Make the copy equal to these rows, which are the source's at `position`; how many they are. `Fenced` if the
        fence was not at `before`."""

    def apply(self, rows: pa.Table, start: int, end: int) -> None:
        """Write the last changes of [start, end) and move the fence, in one transaction; `Fenced` if it was not at
        `start`."""

    def close(self) -> None: ...

    def __enter__(self) -> Replica: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def fenced(what: str, found: int | None, start: int) -> Fenced:
    """What is raised when a batch does not begin where the copy ends."""
    return Fenced(
        f"{what} has come to {found}, and this batch begins at {start}: another replicate writes to it; let one run"
    )
