"""`snapshot`: folds a table's changes to its state at a sequence, on top of the last snapshot.

Theory of operation
-------------------
A snapshot is one version of the Delta table `snapshots/<table>`, with an exact row for each item. Its commit has the
sequence, the log, and the offset at which later changes begin. The next snapshot reads only this one and those changes.

The commit's generation is the sequence. So a snapshot that exists is not taken again, of two drivers for one sequence
one commits, and a snapshot never replaces a later one. Nothing is trimmed.

Where the changes do not cover every item, because the table had items before its change stream was enabled, or history
was lost, the first snapshot has the items that the server has now; later ones are folded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from tailrace.client import Client
from tailrace.cold import states
from tailrace.cold.schemas import place_of
from tailrace.cold.states import StateVersion
from tailrace.cold.store import Store
from tailrace.cold.writing import WrittenFile, write_rows
from tailrace.errors import Invalid
from tailrace.spark.jobs import fold, progress
from tailrace.spark.jobs.progress import Meter, ProgressCallback, brief
from tailrace.spark.jobs.state import (
    ChangeStreamInfo,
    FoldStart,
    aligned,
    change_stream_info,
    items,
    snapshots_of,
    start_at,
    state,
    store_of,
    unknown,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDED: Final = "folded"
ITEMS: Final = "items"
ALREADY: Final = "already"
_ANSWERS: Final = "answer binary"


class Snapshot(msgspec.Struct, frozen=True):
    """The state of a table at a sequence, in cold storage."""

    table: str
    sequence: int
    version: int  # of the Delta table
    rows: int
    at_ms: int
    place: str  # the Delta table's path or URL
    how: str  # folded (from changes), items (from the current items), already (it existed)


def snapshot(
    spark: SparkSession,
    *,
    table: str,
    url: str,
    token: str | None = None,
    at: int | None = None,
    on_progress: ProgressCallback | None = None,
) -> Snapshot:
    """Take a snapshot of the table at the sequence `at`, or now. One that exists already is not taken again."""
    with Client(url, token=token) as client:
        meter = Meter(
            f"snapshot/{table}", "snapshot", on_progress, server=client, source=f"tables/{table}",
            target=place_of("snapshot", table),
        )  # fmt: skip
        try:
            known = change_stream_info(client, table)
            meter.say(progress.RUNNING)
            done = _taken(spark, client, known, url, token, at, meter)
        except Exception as error:
            meter.say(progress.FAILED, brief(error))
            raise
        meter.say(progress.DONE, f"{done.rows:,} items at sequence {done.sequence}")
        return done


def snapshots(table: str, *, url: str, token: str | None = None) -> list[tuple[int, int, int, int]]:
    """The snapshots of a table's current change stream: sequence, Delta version, items, and time in ms; the oldest
    first."""
    with Client(url, token=token) as client:
        found = snapshots_of(store_of(client), change_stream_info(client, table))
    return [(each.sequence, each.version, each.rows, each.at_ms) for each in found]


def _taken(
    spark: SparkSession,
    client: Client,
    known: ChangeStreamInfo,
    url: str,
    token: str | None,
    at: int | None,
    meter: Meter,
) -> Snapshot:
    store = store_of(client)
    place = place_of("snapshot", known.table)
    earlier = snapshots_of(store, known)
    sequence, start = start_at(known, earlier, at)
    if start is not None and start.snapshot is not None and sequence < start.offset:
        return _snapshot(store, place, known, start.snapshot, ALREADY)  # no changes since that snapshot
    if earlier and sequence < earlier[-1].sequence:
        raise Invalid(
            f"there is a snapshot of table {known.table!r} at sequence {earlier[-1].sequence}, and a new "
            f"one cannot be of an earlier sequence; for the state at {sequence} run: tailrace pipeline restore "
            f"{known.table} --at-sequence {sequence}",
            code="INVALID_SEQUENCE",
        )
    states.keep_versions(store, place, fold.STATE, known.database)
    began = time.monotonic()
    if start is None:
        if at is not None and at != known.tail:
            raise unknown(known, earlier, sequence)
        sequence, after, written = _from_items(client, store, place, known)
        how = ITEMS
    else:
        written = _from_changes(spark, store, place, known, start, sequence, url, token)
        after = aligned(client, known, start.offset, sequence)
        how = FOLDED
    rows = sum(each.rows for each in written)
    meter.batch(rows, time.monotonic() - began)
    metadata = {
        "sequence": sequence, "next": after, "rows": rows, "log": known.log, "database": known.database,
        "table": known.table, "how": how,
    }  # fmt: skip
    states.replace(
        store, place, fold.STATE, written, app="snapshot", reached=sequence, database=known.database, metadata=metadata
    )
    # Another driver may have committed first, also a later snapshot: return the one that is there.
    found = [each for each in snapshots_of(store, known) if each.sequence >= sequence]
    mine = next((each for each in found if each.sequence == sequence), found[0])
    return _snapshot(store, place, known, mine, how if mine.sequence == sequence else ALREADY)


def _from_changes(
    spark: SparkSession,
    store: Store,
    place: str,
    known: ChangeStreamInfo,
    start: FoldStart,
    sequence: int,
    url: str,
    token: str | None,
) -> list[WrittenFile]:
    """Fold the changes and write the state; the files."""
    marks, base, partitions = state(spark, store, known, start, sequence, url=url, token=token)
    answers = fold.fold(marks, base, partitions, _writer(store, place), _ANSWERS).collect()
    return [each for row in answers for each in msgspec.msgpack.decode(bytes(row.answer), type=list[WrittenFile])]


def _writer(store: Store, place: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of executors, for all marks of their keys."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        answer = msgspec.msgpack.encode(write_rows(store, place, fold.folded(batches)))
        yield pa.record_batch([pa.array([answer], pa.binary())], names=["answer"])

    return write


def _from_items(
    client: Client, store: Store, place: str, known: ChangeStreamInfo
) -> tuple[int, int, list[WrittenFile]]:
    """Write the current items; their sequence, where the changes after it begin, and the files."""
    with items(client, known) as (after, batches):
        return after - 1, after, write_rows(store, place, batches)


def _snapshot(store: Store, place: str, known: ChangeStreamInfo, found: StateVersion, how: str) -> Snapshot:
    return Snapshot(known.table, found.sequence, found.version, found.rows, found.at_ms, store.uri(place), how)
