"""Which transaction of a view's table has applied which changes of its sources: for those who follow a write.

A batch of a view leaves one row for each source of which it applied changes; the last VIEW_BATCHES of each are kept.
"""

from __future__ import annotations

import msgspec

from tailrace import limits
from tailrace.jobs.fence import Ranges
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.table import StorageTable


class ViewBatch(msgspec.Struct, frozen=True, gc=False):
    """The positions [began, ended) of a source's log, and the sequences [first, last] that the view's rows were written
    with; `last` is below `first` if no row changed."""

    view: str
    log: int
    ended: int
    began: int
    first: int
    last: int
    at_ms: int


VIEW_BATCHES = StorageTable("view_batches", ViewBatch, key=("view", "log", "ended"))


def note(tx: Tx, view: str, ranges: Ranges, before: int, last: int) -> None:
    """Note a batch; `before` and `last` are the last sequences before and after it."""
    for log, (start, end) in ranges.items():
        if start < end:
            tx.put(VIEW_BATCHES, ViewBatch(view, log, end, start, before + 1, last, tx.now_ms))
            ends = tx.values(VIEW_BATCHES, "ended", view, log, limit=limits.VIEW_BATCHES + 1)
            for (old,) in ends[: max(0, len(ends) - limits.VIEW_BATCHES)]:
                tx.delete(VIEW_BATCHES, view, log, old)


def forget(tx: Tx, view: str) -> None:
    """Remove what was noted of a view that is dropped."""
    for log, end in tx.values(VIEW_BATCHES, "log, ended", view):
        tx.delete(VIEW_BATCHES, view, log, end)


def find(reader: Reader | Tx, view: str, log: int, position: int) -> ViewBatch | None:
    """The batch that has applied this position of a source; None: it is not on record."""
    for batch in reader.scan(VIEW_BATCHES, view, log, after=position, limit=1):
        return batch if batch.began <= position else None
    return None
