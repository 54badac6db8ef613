"""`replicate`: keeps a copy of a table in Delta, in PostgreSQL or in another Tailrace; in order, exactly once.

Theory of operation
-------------------
Changes come as a stream of batches, each a range [from, to) of the table's log. Of a batch only the last change of each
key is written, in one transaction of the target that also moves the target's fence from `from` to `to` (`replicas`). So
the copy is at all times equal to the table as it was at some sequence. Spark's checkpoint is a mere cursor. A batch
that ends below the fence was written before, and is left out; one that overlaps it is cut; one that begins above it
waits until what lies between was read and written. Without a checkpoint the stream begins at the fence.

A copy that has not begun starts with all changes, if they tell of every item; else with the items as they are at one
sequence, and the changes after it. So does one that was away for so long that the changes it needs are gone.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa

from tailrace import limits
from tailrace.client import Client
from tailrace.errors import Error, Invalid, TooLarge, TooMany, Unavailable
from tailrace.spark.failures import explain
from tailrace.spark.jobs import fold, progress
from tailrace.spark.jobs.filling import spooled
from tailrace.spark.jobs.progress import Meter, Told, brief
from tailrace.spark.jobs.replicas import Replica, Source
from tailrace.spark.jobs.replicas.delta import DeltaReplica
from tailrace.spark.jobs.replicas.postgres import PostgresReplica
from tailrace.spark.jobs.replicas.tailrace import TailraceReplica
from tailrace.spark.jobs.state import Facts, changes, facts, items

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MAX_RECORDS: Final = 50_000  # of a batch, unless told
BATCH_BYTES: Final = 16 * limits.MiB  # of items that are written at once; a larger batch is cut
INTERVAL_S: Final = 1.0
PATIENCE_S: Final = 60.0  # how long `once` waits for a server or target that went away
PAUSE_S_MAX: Final = 15.0
_LOOK_S: Final = 0.2  # between two looks at whether the query still runs


class Replicated(msgspec.Struct, frozen=True):
    """What a run of `replicate` has done."""

    rows: int = 0  # changes read
    batches: int = 0
    backfilled: int = 0  # items of a first copy
    position: int = 0  # up to where the copy has come


def replicate(
    spark: SparkSession,
    *,
    table: str,
    to: str,
    url: str,
    name: str | None = None,
    token: str | None = None,
    target_token: str | None = None,
    target_table: str | None = None,
    once: bool = False,
    checkpoint: str | None = None,
    max_records: int = MAX_RECORDS,
    interval_s: float = INTERVAL_S,
    on_progress: Told | None = None,
    stop: threading.Event | None = None,
) -> Replicated:
    """Keep the copy at `to` up to date: a Delta table (file:///..., s3://...), a database (postgresql://...) or a
    server (http://..., with `target_token`). With `once` all that is there now, else until `stop` is set."""
    if max_records < 1:
        raise Invalid(f"max_records must be 1 or more, not {max_records}")
    kind = kind_of(to)
    with Client(url, token=token) as client:
        meter = Meter(
            f"replicate/{name or f'{table}/{kind}'}", "replicate", on_progress, server=client,
            source=f"tables/{table}", target=shown(to),
        )  # fmt: skip
        copying = _Copying(
            spark, client, table, to, kind, name or table, target_table or table,
            url=url, token=token, target_token=target_token, max_records=max_records, meter=meter,
        )  # fmt: skip
        try:
            loop = _Loop(copying, stop or threading.Event(), checkpoint, interval_s)
            done = loop.run(once=once)
        except Exception as error:
            meter.say(progress.FAILED, brief(error))
            raise
        meter.say(progress.DONE if once else progress.STOPPED)
        return done


def kind_of(to: str) -> str:
    """What is at that URL."""
    match urlsplit(to).scheme:
        case "http" | "https":
            return "tailrace"
        case "postgresql" | "postgres":
            return "postgresql"
        case "file" | "s3" | "s3a" | "delta":
            return "delta"
    raise Invalid(
        f"{shown(to)!r} is no place for a copy; give http(s)://server:port, postgresql://host/database, file:///path "
        "or s3://bucket/prefix"
    )


def shown(to: str) -> str:
    """The URL without what is secret in it."""
    parts = urlsplit(to)
    host = parts.hostname or ""
    try:
        port = f":{parts.port}" if parts.port else ""
    except ValueError:  # what stands there is a piece of a password that should have been quoted
        return f"{parts.scheme}://…"
    return f"{parts.scheme}://{host}{port}{parts.path}" if parts.scheme else to


def opened(
    to: str, kind: str, name: str, target_table: str, known: Facts, *, url: str, target_token: str | None
) -> Replica:
    """The copy."""
    source = Source(known.database, known.table, known.log, known.keys)
    if kind == "postgresql":
        return PostgresReplica(to, name, target_table, source)
    if kind == "delta":
        return DeltaReplica("file" + to[len("delta") :] if to.startswith("delta:") else to, name, source)
    if to.rstrip("/") == url.rstrip("/") and target_table == known.table:
        raise Invalid(f"table {known.table!r} cannot be a copy of itself; give target_table or another server")
    return TailraceReplica(to, target_token, name, target_table, source, known)


class _Copying:
    """What is done with batches. Used by one thread at a time."""

    def __init__(
        self,
        spark: SparkSession,
        client: Client,
        table: str,
        to: str,
        kind: str,
        name: str,
        target_table: str,
        *,
        url: str,
        token: str | None,
        target_token: str | None,
        max_records: int,
        meter: Meter,
    ) -> None:
        self.spark, self.client, self.table = spark, client, table
        self.url, self.token, self.max_records, self.meter = url, token, max_records, meter
        self._target = (to, kind, name, target_table)
        self._target_token = target_token
        self._replica: Replica | None = None
        self.known: Facts | None = None
        self.done = Replicated()
        self.error: Exception | None = None  # why the last batch failed: Spark tells it in its own words

    # -- the copy

    def begin(self) -> int:
        """Open the copy, and begin it if it has not; the fence."""
        known = self.known = facts(self.client, self.table)
        if self._replica is None:
            self._replica = opened(*self._target, known, url=self.url, target_token=self._target_token)
        fence = self._replica.fence()
        if fence is None and known.complete:
            self._replica.backfill((), known.earliest, None)
            fence = known.earliest
        elif fence is None or fence < known.earliest:
            fence = self._backfill(self._replica, known, fence)
        if fence > known.next:
            raise Invalid(
                f"the copy has come to {fence}, and the changes of table {self.table!r} end at {known.next}: was the "
                "server restored from an older backup? Begin a new copy under another name",
                code="COPY_AHEAD",
            )
        self.done = msgspec.structs.replace(self.done, position=fence)
        return fence

    def _backfill(self, replica: Replica, known: Facts, before: int | None) -> int:
        self.meter.say(progress.RUNNING, "making the first copy")
        began = time.monotonic()
        with items(self.client, known) as (position, batches), spooled(batches) as rows:
            count = replica.backfill(rows, position, before)
        self.meter.batch(count, time.monotonic() - began)
        self.done = msgspec.structs.replace(self.done, backfilled=self.done.backfilled + count)
        return position

    def close(self) -> None:
        if self._replica is not None:
            self._replica.close()
            self._replica = None

    # -- batches

    def batch(self, frame: DataFrame, number: int) -> None:
        """What Spark calls with each batch of the stream."""
        try:
            self._batch(frame)
        except Exception as error:
            self.error = error
            raise

    def _batch(self, frame: DataFrame) -> None:
        assert self._replica is not None and self.known is not None
        began = time.monotonic()
        frame = held = frame.select("offset", "next_offset", *fold.COLUMNS).persist()
        try:
            low, high, count, size = _measured(frame)
            if not count:
                return
            fence = self._replica.fence()
            assert fence is not None, "a batch came before the copy was begun"
            if high <= fence:
                return
            if low > fence:
                self._catch_up(fence, low)
                fence = low
            elif low < fence:
                frame = frame.where(f"offset >= {fence}")
            self._apply(frame, fence, high, size)
        finally:
            held.unpersist()
        self.done = msgspec.structs.replace(
            self.done, rows=self.done.rows + count, batches=self.done.batches + 1, position=high
        )
        self.meter.batch(count, time.monotonic() - began)

    def _catch_up(self, start: int, end: int) -> None:
        """Write what lies between the fence and a checkpoint that is ahead of it."""
        assert self.known is not None
        while start < end:
            reach = self.client.advance({0: start}, self.max_records, table=self.table, label=self.known.label)[0]
            high = min(end, max(reach, start + 1))
            frame = changes(self.spark, self.known, self.url, self.token, start, high)
            self._apply(frame, start, high, _measured(frame)[3])
            start = high

    def _apply(self, frame: DataFrame, start: int, end: int, size: int) -> None:
        """Write the changes of [start, end) in one transaction, or in a few if they are too much for one."""
        assert self._replica is not None
        if size <= BATCH_BYTES or (middle := _middle(frame)) is None:
            try:
                self._replica.apply(last_changes(frame), start, end)
                return
            except TooLarge:
                middle = _middle(frame)
                if middle is None:
                    raise
        for low, high in ((start, middle), (middle, end)):
            part = frame.where(f"offset >= {low} AND offset < {high}")
            self._apply(part, low, high, _measured(part)[3])


def last_changes(frame: DataFrame) -> pa.Table:
    """The last change of each key, with what the item is now; where it is gone, `typed` is null."""
    marks = fold.marks(frame).toArrow().cast(fold.MARKS)
    return pa.Table.from_batches(list(fold.settled(marks.to_batches())), fold.STATE)


def _measured(frame: DataFrame) -> tuple[int, int, int, int]:
    """Where the frame begins and ends, how many changes there are, and about how many bytes of items."""
    row: Any = frame.selectExpr(
        "min(offset) AS low", "max(next_offset) AS high", "count(*) AS count",
        "sum(length(keys) + coalesce(length(new_image), 0)) AS size",
    ).first()  # fmt: skip
    return row["low"] or 0, row["high"] or 0, row["count"], row["size"] or 0


def _middle(frame: DataFrame) -> int | None:
    """The offset of an entry in the middle, where a batch can be cut; None: it is one entry."""
    row: Any = frame.selectExpr("percentile_approx(offset, 0.5) AS middle", "min(offset) AS low").first()
    found: int | None = row["middle"]
    if found is not None and found == row["low"]:
        after: Any = frame.where(f"offset > {found}").selectExpr("min(offset) AS next").first()
        found = after["next"]
    return found


class _Loop:
    """Runs the stream, and takes it up again when the server or the target was away."""

    def __init__(self, copying: _Copying, stop: threading.Event, checkpoint: str | None, interval_s: float) -> None:
        self._copying = copying
        self._stop = stop
        self._checkpoint = checkpoint
        self._interval_s = interval_s

    def run(self, *, once: bool) -> Replicated:
        pause_s = 0.5
        gave_up_at = time.monotonic() + PATIENCE_S
        try:
            while True:
                before = self._copying.done
                try:
                    self._stream(once)
                    return self._copying.done
                except (Unavailable, TooMany) as error:
                    if self._copying.done != before:
                        pause_s, gave_up_at = 0.5, time.monotonic() + PATIENCE_S
                    first = not self._copying.done.position  # it never worked: most often a wrong URL
                    if first or error.code == "LIMIT_EXCEEDED" or (once and time.monotonic() > gave_up_at):
                        raise
                    self._copying.meter.say(progress.RETRYING, brief(error))
                    self._copying.close()
                    if self._stop.wait(pause_s):
                        return self._copying.done
                    pause_s = min(PAUSE_S_MAX, pause_s * 2)
        finally:
            self._copying.close()

    def _stream(self, once: bool) -> None:
        copying = self._copying
        fence = copying.begin()
        copying.meter.say(progress.RUNNING)
        assert copying.known is not None
        options: dict[str, Any] = {
            "url": copying.url,
            "table": copying.table,
            "label": copying.known.label,
            "startingOffsets": json.dumps({"0": fence}),
            "maxRecordsPerTrigger": copying.max_records,
            "images": "typed",
        }
        if copying.token is not None:
            options["token"] = copying.token
        stream = copying.spark.readStream.format("tailrace").options(**options).load()
        with tempfile.TemporaryDirectory(prefix="tailrace-replicate-", ignore_cleanup_errors=True) as folder:
            writing = stream.writeStream.foreachBatch(copying.batch).option(
                "checkpointLocation", self._checkpoint or folder
            )
            if once:
                writing = writing.trigger(availableNow=True)
            else:
                writing = writing.trigger(processingTime=f"{max(1, round(self._interval_s * 1000))} milliseconds")
            copying.error = None
            query = writing.start()
            try:
                self._wait(query)
            finally:
                query.stop()

    def _wait(self, query: StreamingQuery) -> None:
        """Until it has ended, or is told to."""
        while query.isActive and not self._stop.is_set():
            self._stop.wait(_LOOK_S)
        if self._copying.error is not None:
            raise self._copying.error
        failed = query.exception()
        if failed is not None:
            said = explain(failed)
            raise _away(said) or Error(said, code="QUERY_FAILED") from failed


def _away(said: str) -> Unavailable | None:
    """The error of a source that could not reach the server, or of a worker that was slow to start: it is text."""
    passing = ("cannot reach", "broke off", "failed to connect back")
    return Unavailable(said) if any(each in said for each in passing) else None
