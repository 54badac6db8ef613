"""Folding changes to a state: the last change of each key counts, and one that removes the item leaves none.

Theory of operation
-------------------
Every row here is a *mark* (`MARKS`): the effect of one change, or of one row of an earlier state, on one key. Marks
fold in any order and in any grouping, because the last one is determined by its sequence and its index in the
transaction. So a fold has two steps. Each task of the source folds the changes that it reads, window by window, which
is most of the work and needs no order between tasks (`combined`). The remaining marks are grouped by key and folded
again, with the earlier state (`folded`).

All of it is Arrow; Python handles single rows only where the last mark of a key is converted to plain JSON. Memory is
bounded: a window has `WINDOW_BYTES`, and the second step gets as many partitions as its rows need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import limits
from tailrace.tables import value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WINDOW_BYTES: Final = 64 * limits.MiB  # of changes that one task folds at a time
PARTITION_ROWS: Final = 500_000  # about how many marks one task of the second step holds
OUT_ROWS: Final = 20_000  # in a batch that leaves a fold

STATE: Final = pa.schema(
    [("keys", pa.string()), ("item", pa.string()), ("typed", pa.string()), ("sequence", pa.int64())]
)
# `typed` is null where the item was removed; `item` is null until the fold is done: most marks are not the last.
MARKS: Final = pa.schema([*STATE, ("index", pa.int32())])

STATE_DDL: Final = "keys string, item string, typed string, sequence bigint"
MARKS_DDL: Final = f"{STATE_DDL}, index int"

# What a fold needs of the source, read with `images=dynamodb`.
COLUMNS: Final = ("sequence", "index", "event", "keys", "after")
REMOVE: Final = "REMOVE"

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


# -- exact values


def plain(typed: str) -> str:
    """An item in DynamoDB's JSON as plain JSON; numbers keep all their digits."""
    return _encode(value.item_to_json(value.read_item(_decode(typed))[0])).decode()


def _plain(column: pa.ChunkedArray) -> pa.Array:
    return pa.array([None if typed is None else plain(typed) for typed in column.to_pylist()], pa.string())


# -- the fold


def last(marks: pa.Table) -> pa.Table:
    """Of each key the mark with the highest sequence and index, in the order in which they stand."""
    if marks.num_rows < 2:
        return marks
    order = pc.sort_indices(
        marks.select(["sequence", "index"]), sort_keys=[("sequence", "ascending"), ("index", "ascending")]
    )
    by_key = pa.table({"keys": marks["keys"].take(order), "row": order})
    # Without threads a group sees its rows in order, which is what makes `last` the last.
    rows = by_key.group_by("keys", use_threads=False).aggregate([("row", "last")])["row_last"]
    return marks.take(rows.take(pc.sort_indices(rows)))


def marks_of(changes: pa.Table) -> pa.Table:
    """The last changes of a window of records (`COLUMNS`), as marks."""
    gone = pc.equal(changes["event"], REMOVE)
    typed = pc.if_else(gone, pa.scalar(None, pa.string()), changes["after"])
    found = last(
        pa.table(
            {
                "keys": changes["keys"],
                "item": pa.nulls(changes.num_rows, pa.string()),
                "typed": typed,
                "sequence": changes["sequence"],
                "index": changes["index"],
            },
            schema=MARKS,
        )
    )
    return found.set_column(0, MARKS.field("keys"), _plain(found["keys"]))


def combined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first step, in a task: changes to marks, window by window."""
    for window in _windows(batches):
        yield from marks_of(window).to_batches(max_chunksize=OUT_ROWS)


def folded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The second step, in a task that has all marks of its keys: the state (`STATE`), in the order of the keys."""
    there = present(pa.Table.from_batches(list(batches), MARKS))
    yield from _finished(there.take(pc.sort_indices(there["keys"])))


def present(marks: pa.Table) -> pa.Table:
    """Of each key the last mark, if that did not remove the item."""
    found = last(marks)
    return found.filter(pc.is_valid(found["typed"])).drop_columns(["index"])


def state_of(marks: pa.Table) -> pa.Table:
    """As `folded`, in memory, in no particular order."""
    return pa.Table.from_batches(list(_finished(present(marks))), STATE)


def settled(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """As `folded`, but with the keys of removed items, for a copy to delete."""
    yield from _finished(last(pa.Table.from_batches(list(batches), MARKS)).drop_columns(["index"]))


def _finished(state: pa.Table) -> Iterator[pa.RecordBatch]:
    """Batches of a state; marks without a plain item get one, a batch at a time."""
    for batch in state.to_batches(max_chunksize=OUT_ROWS):
        table = pa.Table.from_batches([batch])
        missing = pc.and_(pc.is_null(table["item"]), pc.is_valid(table["typed"]))
        wanted = pc.if_else(missing, table["typed"], pa.scalar(None, pa.string()))
        item = pc.coalesce(table["item"], _plain(wanted))
        yield from table.set_column(1, STATE.field("item"), item).cast(STATE).combine_chunks().to_batches()


def _windows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= WINDOW_BYTES:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


# -- in Spark


def marks(changes: DataFrame) -> DataFrame:
    """The last marks of each task's changes."""
    return changes.select(*COLUMNS).mapInArrow(combined, MARKS_DDL)


def last_marks(marks: DataFrame, partitions: int) -> DataFrame:
    """Of each key the last mark of all tasks, also if it removes the item."""
    return marks.repartition(partitions, "keys").mapInArrow(_lasts, MARKS_DDL)


def _lasts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from last(pa.Table.from_batches(list(batches), MARKS)).to_batches(max_chunksize=OUT_ROWS)


def fold(found: DataFrame, base: DataFrame | None, partitions: int, finish: Callable[..., Any], ddl: str) -> DataFrame:
    """All marks brought together by key, and `finish` run over each part; `base` is an earlier state."""
    if base is not None:
        found = found.unionByName(base.selectExpr("*", "-1 as index"))
    return found.repartition(partitions, "keys").mapInArrow(finish, ddl)


def partitions_for(rows: int, least: int) -> int:
    """The number of partitions for the second step."""
    return max(least, -(-rows // PARTITION_ROWS))
