"""`restore`: rebuilds a table as it was at a sequence, or at a time, into another table.

Theory of operation
-------------------
The state is folded from the nearest snapshot at or before the sequence and the changes after it, or from all changes.
Executors fold and *stage* what they have; the driver commits stage by stage, so that no commit is large.

Before the first item is written, the server is told what is being restored into the table: the job `restore/<into>`,
which says from which log, at which sequence, into which table of that name. A restore that died left this behind. The
same restore goes on: all it does is put the same items again, which changes nothing. Another one removes what is there
first. Items that nobody has so announced are somebody's, and the restore is refused.
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
from tailrace.spark.jobs.filling import Filling, pieces, puts
from tailrace.spark.jobs.making import check_key, described, make, not_empty
from tailrace.spark.jobs.progress import Meter, Told, brief
from tailrace.spark.jobs.state import Facts, facts, snapshots_of, start_at, state, store_of, unknown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KIND: Final = "restore"
AHEAD_MS: Final = 60_000  # by how much a clock may differ
_STAGES: Final = "stage string, rows bigint"


class Restored(msgspec.Struct, frozen=True):
    """A table that was rebuilt."""

    table: str
    into: str
    sequence: int
    rows: int
    snapshot: int | None  # the sequence of the snapshot that it began with


def restore(
    spark: SparkSession,
    *,
    table: str,
    into: str,
    url: str,
    token: str | None = None,
    at_sequence: int | None = None,
    at_time: datetime | str | int | None = None,
    on_progress: Told | None = None,
) -> Restored:
    """Rebuild `table` as it was when the transaction `at_sequence` was done, or at the end of the millisecond `at_time`
    (a datetime, ISO 8601, or ms since 1970), or as it is now, into the new or empty table `into`."""
    if into == table:
        raise Invalid(f"{table!r} cannot be restored into itself; give the name of a new table, and compare them first")
    if at_sequence is not None and at_time is not None:
        raise Invalid("a sequence and a time both say when; give one of them")
    with Client(url, token=token) as client:
        known = facts(client, table)
        wanted = at_sequence if at_time is None else _sequence_at(client, known, moment_ms(at_time))
        store = store_of(client)
        snapshots = snapshots_of(store, known)
        sequence, start = start_at(known, snapshots, wanted)
        if start is None:
            raise unknown(known, snapshots, sequence)
        filling, definition = _prepared(client, known, into, sequence)
        meter = Meter(
            f"restore/{into}", KIND, on_progress, server=client, source=f"tables/{table}", target=f"tables/{into}",
            definition=definition,
        )  # fmt: skip
        try:
            meter.say(progress.RUNNING)
            marks, base, partitions = state(spark, store, known, start, sequence, url=url, token=token)
            stages = fold.fold(marks, base, partitions, _stager(url, token, into), _STAGES)
            rows = _committed(stages, filling, meter)
        except Exception as error:
            meter.say(progress.FAILED, brief(error))
            raise
        # It must be known that this is done: what is put into the table from now on is its owner's.
        client.report_job(f"restore/{into}", "stopped", message=f"{rows:,} items as of sequence {sequence}")
        meter.say(progress.DONE, f"{rows:,} items as of sequence {sequence}")
        return Restored(table, into, sequence, rows, None if start.snapshot is None else start.snapshot.sequence)


def _prepared(client: Client, known: Facts, into: str, sequence: int) -> tuple[Filling, dict[str, Any]]:
    """The table `into`, there and empty, or with what an unfinished restore has left of the same state."""
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
        raise not_empty(into, "what is restored")
    filling = Filling(client, into, f"{name}/writes", known.log)
    if left != definition:
        if found["ItemCount"]:
            filling.clear()
        # Only now: until the old items are gone, they are the other restore's.
        try:
            client.drop_job(name)
        except NotFound:
            pass
    client.register_job(name, KIND, source=f"tables/{known.table}", target=f"tables/{into}", definition=definition)
    client.report_job(name, "running")
    return filling, definition


def _unfinished(client: Client, name: str, into: str) -> dict[str, Any] | None:
    """What a restore into this very table had begun, if it did not come to its end."""
    try:
        job = client.job(name)
    except NotFound:
        return None
    definition: dict[str, Any] = job["definition"]
    return definition if job["state"] != "stopped" and definition.get("into") == into else None


def _stager(url: str, token: str | None, into: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What an executor does with all marks of its keys: leave the items on the server, in stages of bounded size."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with Client(url, token=token) as client:
            for piece in pieces(puts(fold.folded(batches))):
                found = client.stage(piece, table=into)
                yield pa.record_batch(
                    [pa.array([found], pa.string()), pa.array([len(piece)], pa.int64())], names=["stage", "rows"]
                )

    return stage


def _committed(stages: DataFrame, filling: Filling, meter: Meter) -> int:
    """Commit the stages as they come, those of the next partition while this one's are written."""
    rows = 0
    began = time.monotonic()
    for row in stages.toLocalIterator(prefetchPartitions=True):
        filling.commit([row["stage"]])
        rows += row["rows"]
        meter.batch(row["rows"], time.monotonic() - began)
        began = time.monotonic()
    return rows


def _sequence_at(client: Client, known: Facts, at_ms: int) -> int:
    """The last sequence of the time up to the end of that millisecond."""
    if at_ms > time.time() * 1000 + AHEAD_MS:
        raise Invalid(
            f"{datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()} lies in the future; give a time that is past"
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
                f"{given!r} is no time; give one like 2026-01-31T12:00:00Z, or milliseconds since 1970"
            ) from None
    if given.tzinfo is None:
        given = given.replace(tzinfo=UTC)
    return int(given.timestamp() * 1_000_000) // 1_000
