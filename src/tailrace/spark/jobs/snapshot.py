"""`snapshot`: folds a table's changes to its state at a sequence, on top of the last snapshot.

Theory of operation
-------------------
A snapshot is one version of the Delta table `snapshots/<table>`, with an exact row for each item. Its commit has the
sequence, the log, and the offset at which later changes begin. The rows are clustered by the hash of their key
(`clusters`): the next snapshot reads those changes, and reads and writes only the files with the keys that changed. The
versions share all other files.

The commit's generation is the sequence. So a snapshot that exists is not taken again, of two drivers for one sequence
one commits, and a snapshot never replaces a later one. Nothing is trimmed.

Where the changes do not cover every item, because the table had items before its change stream was enabled, or history
was lost, the first snapshot has the items that the server has now; later ones are folded.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tailrace.client import Client
from tailrace.cold import states, writing
from tailrace.cold.schemas import place_of
from tailrace.cold.states import StateVersion
from tailrace.cold.store import Store
from tailrace.errors import Fenced, Invalid, Unavailable
from tailrace.spark.jobs import clusters, fold, progress
from tailrace.spark.jobs.copies import TableCopy, clustered_files
from tailrace.spark.jobs.loop import Pauses, reported
from tailrace.spark.jobs.making import described
from tailrace.spark.jobs.progress import Meter, ProgressCallback
from tailrace.spark.jobs.settings import seconds
from tailrace.spark.jobs.state import (
    ChangeStreamInfo,
    FoldStart,
    aligned,
    change_stream_info,
    marks_after,
    parallelism,
    snapshots_of,
    start_at,
    store_of,
    unknown,
)
from tailrace.spark.options import ServerAccess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDED: Final = "folded"
ITEMS: Final = "items"
ALREADY: Final = "already"
APP: Final = "snapshot"  # the application of Delta transactions: its generation is the sequence
TRIES: Final = 5  # attempts while other drivers commit first


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
    retention: str | None = None,
    on_progress: ProgressCallback | None = None,
) -> Snapshot:
    """Take a snapshot of the table at the sequence `at`, or now. One that exists already is not taken again. With
    `retention` ("90d") older snapshots are removed, except the last one that is as old: from it any later moment can be
    restored."""
    kept_s = None if retention is None else seconds(retention, "retention")
    with Client(url, token=token) as client:
        meter = Meter(
            f"snapshot/{table}", "snapshot", on_progress, server=client, source=f"tables/{table}",
            target=place_of("snapshot", table),
        )  # fmt: skip
        Pauses(client, meter.job).refuse()
        with reported(meter.say):
            known = change_stream_info(client, table)
            meter.say(progress.RUNNING)
            done = _taken(spark, client, known, url, token, at, meter)
            if kept_s is not None:
                expire(client, known, int(time.time() * 1000) - kept_s * 1000)
        meter.say(progress.DONE, f"{done.rows:,} items at sequence {done.sequence}")
        return done


def snapshots(table: str, *, url: str, token: str | None = None) -> list[tuple[int, int, int, int]]:
    """The snapshots of a table's current change stream: sequence, Delta version, items, and time in ms; the oldest
    first."""
    with Client(url, token=token) as client:
        found = snapshots_of(store_of(client), change_stream_info(client, table))
    return [(each.sequence, each.version, each.rows, each.at_ms) for each in found]


def expire(client: Client, known: ChangeStreamInfo, before_ms: int) -> int:
    """Remove the snapshots that are older, except the last of them; the number of files that were deleted."""
    store = store_of(client)
    place = place_of("snapshot", known.table)
    older = [each for each in states.versions(store, place, fold.STATE, known.database) if each.at_ms < before_ms]
    return states.expire(store, place, max(each.version for each in older)) if older else 0


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
    for _ in range(TRIES):
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
        if start is None and at is not None and at != known.tail:
            raise unknown(known, earlier, sequence)
        states.keep_versions(store, place, fold.STATE, known.database)
        began = time.monotonic()
        try:
            if start is None:
                copy = TableCopy(spark, client, known, ServerAccess(url, token, None, None))
                sequence, rows = _from_items(copy, store, place, known)
            else:
                rows = _from_changes(spark, client, store, place, known, start, sequence, url, token)
        except Fenced:
            pass  # another driver committed first
        else:
            meter.batch(rows, time.monotonic() - began)
        # Another driver may have committed a later snapshot: return the one that is there.
        found = [each for each in snapshots_of(store, known) if each.sequence >= sequence]
        if found:
            mine = next((each for each in found if each.sequence == sequence), found[0])
            how = ITEMS if start is None else FOLDED
            return _snapshot(store, place, known, mine, how if mine.sequence == sequence else ALREADY)
    raise Unavailable(f"other snapshots of table {known.table!r} are taken all the time; let them finish")


def _from_changes(
    spark: SparkSession,
    client: Client,
    store: Store,
    place: str,
    known: ChangeStreamInfo,
    start: FoldStart,
    sequence: int,
    url: str,
    token: str | None,
) -> int:
    """Merge the changes into the last snapshot, in executors, and commit the files that are new; the rows in these."""
    table = writing.opened(store, place, fold.STATE, known.database)
    last = start.snapshot
    marks = marks_after(spark, known, start, sequence, url=url, token=token)
    cores = parallelism(spark)
    # A key may have changed in every window of every task: a leaf gets only its last change.
    marks = fold.last_marks(marks, fold.partitions_for(max(0, sequence - start.sequence), cores))
    table_info = described(client, known.table)
    items_now, bytes_now = (0, 0) if table_info is None else (table_info["ItemCount"], table_info["TableSizeBytes"])
    if last is not None and table.transaction_version(APP) == last.sequence:
        listed = states.listed(store, place, table)
        grown = max(0, items_now - sum(file.rows for file in listed))
        found = clusters.clustering(listed, grown, bytes_now * grown // max(1, items_now))
        done = clusters.merge(marks, store, place, found, cores)
        written = [file for leaf in done for file in leaf.written]
        removed = [path for leaf in done for path in leaf.removed]
        rows = sum(file.rows for file in written)
        gone = set(removed)
        kept = sum(file.rows for file in listed if file.path not in gone)
        states.exchange(
            store, place, fold.STATE, written, removed, app=APP, start=last.sequence, end=sequence,
            database=known.database, metadata=_facts(client, known, start, sequence, kept + rows),
        )  # fmt: skip
        return rows
    # The Delta table has another state: of an earlier change stream, or a snapshot from which history was lost.
    loose = [] if last is None else states.files(store, place, last.version)
    found = clusters.clustering([], max(items_now, 0 if last is None else last.rows), bytes_now)
    done = clusters.merge(marks, store, place, clusters.Clustering(found.leaves, loose), cores)
    written = [file for leaf in done for file in leaf.written]
    rows = sum(file.rows for file in written)
    states.replace(
        store, place, fold.STATE, written, app=APP, reached=sequence, database=known.database,
        metadata=_facts(client, known, start, sequence, rows),
    )  # fmt: skip
    return rows


def _facts(client: Client, known: ChangeStreamInfo, start: FoldStart, sequence: int, rows: int) -> dict[str, Any]:
    """The metadata of a snapshot's commit."""
    after = aligned(client, known, start.offset, sequence)
    return _metadata(known, sequence, after, rows, FOLDED)


def _metadata(known: ChangeStreamInfo, sequence: int, after: int, rows: int, how: str) -> dict[str, Any]:
    return {
        "sequence": sequence, "next": after, "rows": rows, "log": known.log, "database": known.database,
        "table": known.table, "how": how,
    }  # fmt: skip


def _from_items(copy: TableCopy, store: Store, place: str, known: ChangeStreamInfo) -> tuple[int, int]:
    """Have executors write the current items, and commit them; their sequence, and how many there are."""
    written, after = clustered_files(copy, store, place)
    rows = sum(each.rows for each in written)
    states.replace(
        store, place, fold.STATE, written, app=APP, reached=after - 1, database=known.database,
        metadata=_metadata(known, after - 1, after, rows, ITEMS),
    )  # fmt: skip
    return after - 1, rows


def _snapshot(store: Store, place: str, known: ChangeStreamInfo, found: StateVersion, how: str) -> Snapshot:
    return Snapshot(known.table, found.sequence, found.version, found.rows, found.at_ms, store.uri(place), how)
