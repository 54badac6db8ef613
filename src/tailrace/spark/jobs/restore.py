"""`restore`: rebuilds a table as it was at a sequence, or at a time, into another table.

Theory of operation
-------------------
The state is folded from the nearest snapshot at or before the sequence and the changes after it, or from all changes.
Executors fold and *stage* what they have; the driver commits stage by stage, so that no commit is large.

Before the first item is written, the restore is registered on the server as the job `restore/<into>`, with the log, the
sequence and the id of the target table. A restore that died leaves this registration behind. The same restore can be
repeated: it puts the same items again, which changes nothing. Another restore removes the items first. If the table has
items and no unfinished restore is registered for it, the restore is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from tailrace.client import Client
from tailrace.errors import Invalid, NotFound
from tailrace.spark.jobs import fold, progress
from tailrace.spark.jobs.copies import items_of
from tailrace.spark.jobs.filling import Filling, RowStager, staged
from tailrace.spark.jobs.loop import reported
from tailrace.spark.jobs.making import check_key, described, make, not_empty
from tailrace.spark.jobs.progress import Meter, ProgressCallback
from tailrace.spark.jobs.state import (
    ChangeStreamInfo,
    change_stream_info,
    snapshots_of,
    start_at,
    state,
    store_of,
    unknown,
)
from tailrace.spark.options import ServerAccess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KIND: Final = "restore"
AHEAD_MS: Final = 60_000  # the tolerated difference between clocks
_STAGES: Final = "answer binary"


class Restored(msgspec.Struct, frozen=True):
    """The result of a restore."""

    table: str
    into: str
    sequence: int
    rows: int
    snapshot: int | None  # the sequence of the snapshot that it started from


def restore(
    spark: SparkSession,
    *,
    table: str,
    into: str,
    url: str,
    token: str | None = None,
    at_sequence: int | None = None,
    at_time: datetime | str | int | None = None,
    on_progress: ProgressCallback | None = None,
) -> Restored:
    """Rebuild `table` as it was after the transaction `at_sequence`, or at the end of the millisecond `at_time` (a
    datetime, ISO 8601, or ms since 1970), or as it is now, into the new or empty table `into`."""
    if into == table:
        raise Invalid(f"{table!r} cannot be restored into itself; give the name of a new table, and compare them first")
    if at_sequence is not None and at_time is not None:
        raise Invalid("at_sequence and at_time exclude each other; give one of them")
    with Client(url, token=token) as client:
        known = change_stream_info(client, table)
        wanted = at_sequence if at_time is None else _sequence_at(client, known, moment_ms(at_time))
        store = store_of(client)
        snapshots = snapshots_of(store, known)
        sequence, start = start_at(known, snapshots, wanted)
        if start is None:
            raise unknown(known, snapshots, sequence)
        access = ServerAccess(url, token, None, None)
        filling, definition = _prepared(spark, client, access, known, into, sequence)
        meter = Meter(
            f"restore/{into}", KIND, on_progress, server=client, source=f"tables/{table}", target=f"tables/{into}",
            definition=definition,
        )  # fmt: skip
        with reported(meter.say):
            meter.say(progress.RUNNING)
            marks, base, partitions = state(spark, store, known, start, sequence, url=url, token=token)
            stages = fold.fold(marks, base, partitions, _stager(RowStager(access, into, known.keys)), _STAGES)
            rows = _committed(stages, filling, meter)
        # This report must succeed: items that are put into the table from now on belong to its owner.
        client.report_job(f"restore/{into}", "stopped", message=f"{rows:,} items as of sequence {sequence}")
        meter.say(progress.DONE, f"{rows:,} items as of sequence {sequence}")
        return Restored(table, into, sequence, rows, None if start.snapshot is None else start.snapshot.sequence)


def _prepared(
    spark: SparkSession, client: Client, access: ServerAccess, known: ChangeStreamInfo, into: str, sequence: int
) -> tuple[Filling, dict[str, Any]]:
    """Create or check the table `into`: it is empty, or has items of an unfinished restore of the same state."""
    name = f"restore/{into}"
    found = described(client, into)
    if found is None:
        found = make(client, known, into, described(client, known.table))
    check_key(known, into, found)
    definition = {
        "table": known.table, "log": known.log, "database": known.database, "sequence": sequence,
        "into": found["TableId"],
    }  # fmt: skip
    left = _unfinished(client, name, found["TableId"])
    if found["ItemCount"] and left is None:
        raise not_empty(into, "the restored items")
    filling = Filling(client, into, f"{name}/writes", known.log)
    if left != definition:
        if found["ItemCount"]:
            filling.clear(items_of(spark, client, access, into, 0), access)
        # Only now: until the old items are removed, they belong to the other restore.
        try:
            client.drop_job(name)
        except NotFound:
            pass
    client.register_job(name, KIND, source=f"tables/{known.table}", target=f"tables/{into}", definition=definition)
    client.report_job(name, "running")
    return filling, definition


def _unfinished(client: Client, name: str, into: str) -> dict[str, Any] | None:
    """The definition of an unfinished restore into this table, if there is one."""
    try:
        job = client.job(name)
    except NotFound:
        return None
    definition: dict[str, Any] = job["definition"]
    return definition if job["state"] != "stopped" and definition.get("into") == into else None


def _stager(stage: RowStager) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of executors, for all marks of their keys: stage the items on the server."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for answer in stage(fold.folded(batches)):
            yield pa.record_batch([pa.array([answer], pa.binary())], names=["answer"])

    return run


def _committed(stages: DataFrame, filling: Filling, meter: Meter) -> int:
    """Commit the stages as they come; the next partition is computed while those of this one are committed."""
    rows = 0
    began = time.monotonic()
    answers = (bytes(row["answer"]) for row in stages.toLocalIterator(prefetchPartitions=True))
    for stage, count in staged(answers):
        filling.commit([stage])
        rows += count
        meter.batch(count, time.monotonic() - began)
        began = time.monotonic()
    return rows


def _sequence_at(client: Client, known: ChangeStreamInfo, at_ms: int) -> int:
    """The last sequence of the time up to the end of that millisecond."""
    if at_ms > time.time() * 1000 + AHEAD_MS:
        raise Invalid(
            f"{datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()} is in the future; give a time in the past"
        )
    return client.logs_at(at_ms + 1, table=known.table, label=known.label)[0] - 1


def moment_ms(given: datetime | str | int) -> int:
    """A time in ms since 1970. Text is ISO 8601, which is UTC where it names no zone, or a number."""
    if isinstance(given, int):
        return given
    if isinstance(given, str):
        if given.strip().isdigit():
            return int(given)
        try:
            given = datetime.fromisoformat(given.strip())
        except ValueError:
            raise Invalid(
                f"{given!r} is not a time; give one like 2026-01-31T12:00:00Z, or milliseconds since 1970"
            ) from None
    if given.tzinfo is None:
        given = given.replace(tzinfo=UTC)
    return int(given.timestamp() * 1_000_000) // 1_000
