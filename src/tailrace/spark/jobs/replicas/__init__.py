"""Targets of `replicate`: a copy of a table in Delta, in PostgreSQL or in another Tailrace.

The rule for all of them: the progress of a copy is stored in the copy, and moves in the transaction that writes the
rows. It is the *fence*, the position in the source's log below which all changes are applied. So a batch that comes
twice, or a lost checkpoint, changes nothing: changes below the fence are cut off, and a batch that does not begin at
the fence is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import pyarrow as pa

from tailrace import limits
from tailrace.cold.store import Store
from tailrace.errors import Fenced
from tailrace.spark.jobs import clusters, fold
from tailrace.spark.jobs.clusters import Clustering, LeafResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


BATCH_BYTES: Final = 16 * limits.MiB  # of items in one transaction of a database; a larger batch is cut


class ReplicaSource(msgspec.Struct, frozen=True):
    """The table that is copied."""

    database: str
    table: str
    log: int
    keys: tuple[tuple[str, str], ...]  # name and type of each
    columns: tuple[tuple[str, str], ...] = ()  # declared in SQL: name and type of each


class BatchChanges(Protocol):
    """The last changes of each key in a batch."""

    rows: int  # at most
    size: int  # about, in bytes

    def table(self) -> pa.Table:
        """All of them, here, with the columns of a state (`fold.STATE`); where `typed` is null the item is gone."""

    def merge(self, store: Store, place: str, found: Clustering) -> list[LeafResult]:
        """Merge them into a clustered state."""


class SparkChanges:
    """The changes of a batch that Spark has read: they are merged in executors."""

    def __init__(self, frame: DataFrame, rows: int, size: int, cores: int) -> None:
        self.rows, self.size = rows, size
        self._marks = fold.marks(frame)
        self._cores = cores

    def table(self) -> pa.Table:
        marks = self._marks.toArrow().cast(fold.MARKS)
        return pa.Table.from_batches(list(fold.settled(marks.to_batches())), fold.STATE)

    def merge(self, store: Store, place: str, found: Clustering) -> list[LeafResult]:
        return clusters.merge(self._marks, store, place, found, self._cores)


class Replica(Protocol):
    """One copy. Rows have the columns of a state (`fold.STATE`)."""

    bytes_max: int | None  # of items in one batch; None: any number of them

    def fence(self) -> int | None:
        """The fence; None: the copy has not begun, or is a copy of an earlier change stream."""

    def backfill(self, rows: Iterable[pa.RecordBatch], position: int, before: int | None) -> int:
        """Make the copy equal to these rows, the state of the source at `position`; the number of rows. `Fenced` if the
        fence was not at `before`."""

    def apply(self, changes: BatchChanges, start: int, end: int) -> None:
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
