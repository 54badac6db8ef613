"""A state in Delta, clustered by the hash of the key; changes are merged into it by executors.

Theory of operation
-------------------
Every file of the state has the rows of a range of hashes, which is in its name: `<low>-<high>-<id>.parquet`, both ends
included. The files divide the hashes among them into *leaves*: ranges that do not overlap. The changes of a batch are
grouped by the leaf of their key, a task for each leaf that has any. It reads the files of the leaf, replaces the rows
with these keys and writes the leaf again; one that has grown is split. So a batch reads and writes the leaves that it
touches, however large the state is, and the driver handles only the names of files.

Files without such a name are *loose*: they may have any key. These are the files of a first copy by an earlier
version, or of another tool. The next batch reads all of them, in parallel, and puts their rows into the leaves.
"""

from __future__ import annotations

import re
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from tailrace import limits
from tailrace.cold import states
from tailrace.cold.states import StateFile
from tailrace.cold.store import Store
from tailrace.cold.writing import WrittenFile, write_rows
from tailrace.spark.jobs import fold

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HASH_MAX: Final = 0xFFFF_FFFF
LEAF_BYTES: Final = 128 * limits.MiB  # of rows in memory; a leaf that is larger is split
LEAF_ROWS: Final = 500_000  # expected in a leaf that is made for new rows
TASKS_PER_CORE: Final = 8  # in one merge, if there are as many leaves
COMPRESSION: Final = 8  # how much larger than their file rows may be in memory
_NAME: Final = re.compile(r"(?:.*/)?([0-9a-f]{8})-([0-9a-f]{8})-[0-9a-f]{32}\.parquet")
_GROUPED: Final = f"{fold.MARKS_DDL}, leaf int"
_ANSWERS: Final = "answer binary"


class Leaf(msgspec.Struct, frozen=True):
    """A range of hashes, both ends included, and the files with its rows."""

    low: int
    high: int
    paths: tuple[str, ...] = ()


class Clustering(msgspec.Struct, frozen=True):
    """The leaves of a state, which have every hash, and its loose files."""

    leaves: list[Leaf]
    loose: list[str] = []


class LeafResult(msgspec.Struct, frozen=True):
    """The files of a leaf, before and after changes were merged into it."""

    removed: tuple[str, ...]
    written: list[WrittenFile]


def hashes(keys: pa.ChunkedArray) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The hash of each key."""
    found = [zlib.crc32(key) for key in keys.cast(pa.binary()).to_pylist()]
    return np.array(found, np.int64)


def clustering(files: Iterable[StateFile], rows: int = 0, size: int = 0) -> Clustering:
    """The leaves that these files divide all hashes into, in order, and the loose files. Ranges without a file are
    leaves too, divided for about so many new `rows`, of so many bytes together (`size`)."""
    merged: list[Leaf] = []
    loose: list[str] = []
    known: list[tuple[int, int, str]] = []
    for file in files:
        named = _NAME.fullmatch(file.path)
        if named is None or int(named[1], 16) > int(named[2], 16):
            loose.append(file.path)
            rows += file.rows
            size += file.size * COMPRESSION
        else:
            known.append((int(named[1], 16), int(named[2], 16), file.path))
    wanted = max(-(-rows // LEAF_ROWS), -(-size // LEAF_BYTES))
    for low, high, path in sorted(known):
        if merged and low <= merged[-1].high:
            last = merged[-1]
            merged[-1] = Leaf(last.low, max(last.high, high), (*last.paths, path))
        else:
            merged.append(Leaf(low, high, (path,)))
    found: list[Leaf] = []
    at = 0
    for leaf in merged:
        found += _empty(at, leaf.low - 1, wanted)
        parts = _empty(leaf.low, leaf.high, wanted)
        if len(parts) > 1:  # the new rows alone are too many for one task: it is divided before, not after
            loose += leaf.paths
            found += parts
        else:
            found.append(leaf)
        at = leaf.high + 1
    return Clustering(found + _empty(at, HASH_MAX, wanted), loose)


def _empty(low: int, high: int, wanted: int) -> list[Leaf]:
    """The leaves of a range without files, of so many for all hashes."""
    if low > high:
        return []
    parts = max(1, wanted * (high - low + 1) // (HASH_MAX + 1))
    bounds = [low + (high - low + 1) * number // parts for number in range(parts + 1)]
    return [Leaf(begin, end - 1) for begin, end in pairwise(bounds)]


def numbers(keys: pa.ChunkedArray, found: Sequence[Leaf]) -> pa.Array:
    """For each key, the number of its leaf."""
    lows = np.array([leaf.low for leaf in found], np.int64)
    return pa.array(np.searchsorted(lows, hashes(keys), "right") - 1, pa.int32())


# -- in executors


def merge_leaf(store: Store, place: str, leaf: Leaf, marks: pa.Table) -> LeafResult:
    """Merge marks of its keys into a leaf: its rows are read, and written again with the last change of each key."""
    earlier = [batch for path in leaf.paths for batch in states.rows(store, place, path, fold.STATE)]
    table = pa.Table.from_batches(earlier, fold.STATE)
    table = table.append_column(fold.MARKS.field("index"), pa.repeat(pa.scalar(-1, pa.int32()), table.num_rows))
    state = fold.state_of(pa.concat_tables([table, marks.select(fold.MARKS.names).cast(fold.MARKS)]))
    written = [
        file
        for low, high, rows in _parts(state, leaf)
        for file in write_rows(store, place, rows.to_batches(), name=f"{low:08x}-{high:08x}-")
    ]
    return LeafResult(leaf.paths, written)


def _parts(state: pa.Table, leaf: Leaf) -> Iterator[tuple[int, int, pa.Table]]:
    """The rows of a leaf in the order of their hashes; divided, if they are too many for one."""
    if not state.num_rows:
        return
    all_hashes = hashes(state["keys"])
    order = np.argsort(all_hashes, kind="stable")
    state, ordered = state.take(pa.array(order)), all_hashes[order].tolist()
    parts = max(1, -(-state.nbytes // LEAF_BYTES))
    first, low = 0, leaf.low
    for number in range(1, parts + 1):
        end, high = state.num_rows, leaf.high
        if number < parts:
            cut = ordered[state.num_rows * number // parts]
            end, high = bisect_left(ordered, cut), cut - 1
        if end > first:
            yield low, high, state.slice(first, end - first)
            first, low = end, high + 1


def assigner(found: Sequence[Leaf]) -> Any:
    """The function of executors over marks: the same, with the number of their leaf."""

    def assign(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            table = pa.Table.from_batches([batch])
            yield from table.append_column("leaf", numbers(table["keys"], found)).to_batches()

    return assign


def merger(store: Store, place: str, found: Sequence[Leaf]) -> Any:
    """The function of executors over all marks of one leaf."""
    encoded = [msgspec.msgpack.encode(leaf) for leaf in found]

    def merge(marks: pa.Table) -> pa.Table:
        leaf = msgspec.msgpack.decode(encoded[marks["leaf"][0].as_py()], type=Leaf)
        answer = msgspec.msgpack.encode(merge_leaf(store, place, leaf, marks))
        return pa.table({"answer": pa.array([answer], pa.binary())})

    return merge


def merge(marks: DataFrame, store: Store, place: str, found: Clustering, cores: int) -> list[LeafResult]:
    """Merge the marks, and the rows of loose files, into the leaves, in executors: a task has one leaf at a time. The
    results, one for each leaf that any of them belongs to, and one for the loose files; nothing is committed."""
    leaves = found.leaves
    if found.loose:
        marks = marks.unionByName(loose_rows(marks.sparkSession, store, place, found.loose))
    grouped = marks.mapInArrow(assigner(leaves), _GROUPED).repartition(partitions_for(len(leaves), cores), "leaf")
    answers = grouped.groupBy("leaf").applyInArrow(merger(store, place, leaves), _ANSWERS).collect()
    done = [msgspec.msgpack.decode(bytes(row.answer), type=LeafResult) for row in answers]
    return [*done, LeafResult(tuple(found.loose), [])] if found.loose else done


def partitions_for(leaves: int, cores: int) -> int:
    """The number of tasks that so many leaves are merged by."""
    return max(1, min(leaves, cores * TASKS_PER_CORE))


def loose_rows(spark: SparkSession, store: Store, place: str, paths: Sequence[str]) -> DataFrame:
    """The rows of these files as marks before any change, a task for each file."""
    reading = states.reader(store, place, fold.STATE)
    frame = spark.createDataFrame([(path,) for path in paths], "path string").repartition(len(paths))
    return frame.mapInArrow(reading, fold.STATE_DDL).selectExpr("*", "-1 AS index")
