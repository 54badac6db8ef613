"""`replicate`: maintains a copy of a table in Delta, in PostgreSQL or in another Tailrace; in order, exactly once.

Theory of operation
-------------------
Changes are read as a stream of batches, each a range [from, to) of the table's log. Of a batch only the last change of
each key is written, in one transaction of the target that also moves the target's fence from `from` to `to`
(`replicas`). So the copy always equals the table at some sequence. Spark's checkpoint is only a cursor. A batch that
ends below the fence was written before, and is skipped; one that overlaps it is cut; one that begins above it waits
until the changes in between were read and written. Without a checkpoint the stream begins at the fence.

A new copy starts with all changes, if they cover every item; else with the items at one sequence, and the changes after
it. So does a copy that was stopped for so long that the changes it needs are gone.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from tailrace.client import Client
from tailrace.errors import Error, Invalid, TooLarge, TooMany, Unavailable
from tailrace.spark.jobs import fold, progress
from tailrace.spark.jobs.copies import EmptyCopy, SparkChanges, TableCopy, measured
from tailrace.spark.jobs.loop import PATIENCE_S, BatchQuery, Pauses, reported, run_steps, spark_errors
from tailrace.spark.jobs.progress import Meter, ProgressCallback, brief
from tailrace.spark.jobs.replicas import Replica, ReplicaSource
from tailrace.spark.jobs.replicas.delta import DeltaReplica
from tailrace.spark.jobs.replicas.postgres import PostgresReplica
from tailrace.spark.jobs.replicas.tailrace import TailraceReplica
from tailrace.spark.jobs.state import ChangeStreamInfo, change_stream_info, changes, parallelism
from tailrace.spark.options import ServerAccess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Of a batch, by default. A batch is merged into the files of a Delta table that it touches: the larger, the cheaper.
MAX_RECORDS: Final = {"delta": 500_000, "postgresql": 50_000, "tailrace": 50_000}
INTERVAL_S: Final = 1.0


class Replicated(msgspec.Struct, frozen=True):
    """The result of a run of `replicate`."""

    rows: int = 0  # changes read
    batches: int = 0
    backfilled: int = 0  # items of a first copy
    position: int = 0  # the fence of the copy


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
    max_records: int | None = None,
    interval_s: float = INTERVAL_S,
    on_progress: ProgressCallback | None = None,
    stop: threading.Event | None = None,
) -> Replicated:
    """Keep the copy at `to` up to date: a Delta table (file:///..., s3://...), a database (postgresql://...) or a
    server (http://..., with `target_token`). With `once`, apply the changes that are there now; else run until `stop`
    is set."""
    kind = kind_of(to)
    if max_records is None:
        max_records = MAX_RECORDS[kind]
    if max_records < 1:
        raise Invalid(f"max_records must be 1 or more, not {max_records}")
    with Client(url, token=token) as client:
        meter = Meter(
            f"replicate/{name or f'{table}/{kind}'}", "replicate", on_progress, server=client,
            source=f"tables/{table}", target=shown(to),
        )  # fmt: skip
        ending = stop or threading.Event()
        pauses = Pauses(client, meter.job)
        job = _Replication(
            spark, client, table, to, kind, name or table, target_table or table,
            url=url, token=token, target_token=target_token, max_records=max_records, meter=meter,
            once=once, interval_s=interval_s, checkpoint=checkpoint, stop=ending, pauses=pauses,
        )  # fmt: skip
        if once:
            pauses.refuse()
        with reported(meter.say), closing(job):
            run_steps(job, ending, patience_s=PATIENCE_S if once else None, hold=lambda: pauses.hold(ending, meter.say))
        meter.say(progress.DONE if once else progress.STOPPED)
        return job.done


def kind_of(to: str) -> str:
    """The kind of target that the URL names."""
    match urlsplit(to).scheme:
        case "http" | "https":
            return "tailrace"
        case "postgresql" | "postgres":
            return "postgresql"
        case "file" | "s3" | "s3a" | "delta":
            return "delta"
    raise Invalid(
        f"{shown(to)!r} cannot be the target of a copy; give http(s)://server:port, postgresql://host/database, "
        "file:///path or s3://bucket/prefix"
    )


def shown(to: str) -> str:
    """The URL without user and password."""
    parts = urlsplit(to)
    host = parts.hostname or ""
    try:
        port = f":{parts.port}" if parts.port else ""
    except ValueError:  # the port is part of a password that should have been quoted
        return f"{parts.scheme}://…"
    return f"{parts.scheme}://{host}{port}{parts.path}" if parts.scheme else to


def opened(
    spark: SparkSession,
    to: str,
    kind: str,
    name: str,
    target_table: str,
    known: ChangeStreamInfo,
    *,
    url: str,
    target_token: str | None,
) -> Replica:
    """Open the copy."""
    source = ReplicaSource(known.database, known.table, known.log, known.keys, known.columns)
    if kind == "postgresql":
        return PostgresReplica(to, name, target_table, source)
    if kind == "delta":
        return DeltaReplica("file" + to[len("delta") :] if to.startswith("delta:") else to, name, source)
    if to.rstrip("/") == url.rstrip("/") and target_table == known.table:
        raise Invalid(f"table {known.table!r} cannot be a copy of itself; give target_table or another server")
    return TailraceReplica(spark, to, target_token, name, target_table, source, known)


class _Replication:
    """One copy, its batches, and the step of the job. Used by one thread at a time."""

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
        once: bool = True,
        interval_s: float = INTERVAL_S,
        checkpoint: str | None = None,
        stop: threading.Event | None = None,
        pauses: Pauses | None = None,
    ) -> None:
        self.spark, self.client, self.table = spark, client, table
        self.url, self.token, self.max_records, self.meter = url, token, max_records, meter
        self._target = (to, kind, name, target_table)
        self._target_token = target_token
        self._replica: Replica | None = None
        self.known: ChangeStreamInfo | None = None
        self.done = Replicated()
        self._once, self._interval_s, self._checkpoint = once, interval_s, checkpoint
        paused = (lambda: False) if once or pauses is None else pauses.paused
        self._query = BatchQuery(self.apply_batch, stop or threading.Event(), paused)

    # -- the step

    def step(self) -> float | None:
        """Follow the changes from where the copy is: `once`, all that are there now; else until the job is stopped, or
        paused: then no query is left, and the next step begins a new one."""
        fence = self.begin()
        self.meter.say(progress.RUNNING)
        assert self.known is not None
        options: dict[str, Any] = {
            "url": self.url,
            "table": self.table,
            "label": self.known.label,
            "startingOffsets": json.dumps({"0": fence}),
            "maxRecordsPerTrigger": self.max_records,
            "images": "dynamodb",
        }
        if self.token is not None:
            options["token"] = self.token
        frame = self.spark.readStream.format("tailrace").options(**options).load()
        self._query.run(frame, once=self._once, interval_s=self._interval_s, checkpoint=self._checkpoint)
        return None if self._once else 0.0  # stopped, or paused

    def is_transient(self, error: Error) -> bool:
        """Whether to retry. An error before anything worked is most often a wrong URL, and is raised."""
        passing = isinstance(error, Unavailable | TooMany) and error.code != "LIMIT_EXCEEDED"
        return passing and bool(self.done.position)

    def retry(self, error: Error) -> None:
        self.meter.say(progress.RETRYING, brief(error))
        self.close()

    # -- the copy

    def begin(self) -> int:
        """Open the copy, and start it if it is new; the fence."""
        known = self.known = change_stream_info(self.client, self.table)
        if self._replica is None:
            self._replica = opened(self.spark, *self._target, known, url=self.url, target_token=self._target_token)
        fence = self._replica.fence()
        if fence is None and known.complete:
            _, fence = self._replica.backfill(EmptyCopy(known.earliest), None)
        elif fence is None or fence < known.earliest:
            fence = self._backfill(self._replica, known, fence)
        elif fence > known.next:
            raise Invalid(
                f"the copy is at {fence}, and the changes of table {self.table!r} end at {known.next}: was the "
                "server restored from an older backup? Start a new copy under another name",
                code="COPY_AHEAD",
            )
        self.done = msgspec.structs.replace(self.done, position=fence)
        return fence

    def _backfill(self, replica: Replica, known: ChangeStreamInfo, before: int | None) -> int:
        self.meter.say(progress.RUNNING, "making the first copy")
        began = time.monotonic()
        first = TableCopy(self.spark, self.client, known, ServerAccess(self.url, self.token, None, None))
        with spark_errors():
            count, position = replica.backfill(first, before)
        self.meter.batch(count, time.monotonic() - began)
        self.done = msgspec.structs.replace(self.done, backfilled=self.done.backfilled + count)
        return position

    def close(self) -> None:
        if self._replica is not None:
            self._replica.close()
            self._replica = None

    # -- batches

    def apply_batch(self, frame: DataFrame) -> None:
        """Write a batch of the stream to the copy."""
        assert self._replica is not None and self.known is not None
        began = time.monotonic()
        frame = held = frame.select("offset", "next_offset", *fold.COLUMNS).persist()
        try:
            low, high, count, size = measured(frame)
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
            self._apply(frame, fence, high, count, size)
        finally:
            held.unpersist()
        self.done = msgspec.structs.replace(
            self.done, rows=self.done.rows + count, batches=self.done.batches + 1, position=high
        )
        self.meter.batch(count, time.monotonic() - began)

    def _catch_up(self, start: int, end: int) -> None:
        """Write the changes between the fence and a checkpoint that is ahead of it."""
        assert self.known is not None
        while start < end:
            reach = self.client.advance({0: start}, self.max_records, table=self.table, label=self.known.label)[0]
            high = min(end, max(reach, start + 1))
            frame = changes(self.spark, self.known, self.url, self.token, start, high)
            self._apply(frame, start, high, *measured(frame)[2:])
            start = high

    def _apply(self, frame: DataFrame, start: int, end: int, count: int, size: int) -> None:
        """Write the changes of [start, end) in one transaction, or in several if they are too large for one."""
        assert self._replica is not None
        most = self._replica.bytes_max
        if most is None or size <= most or (middle := _middle(frame)) is None:
            try:
                self._replica.apply(SparkChanges(frame, count, size, parallelism(self.spark)), start, end)
                return
            except TooLarge:
                middle = _middle(frame)
                if middle is None:
                    raise
        for low, high in ((start, middle), (middle, end)):
            part = frame.where(f"offset >= {low} AND offset < {high}")
            self._apply(part, low, high, *measured(part)[2:])


def _middle(frame: DataFrame) -> int | None:
    """The offset of an entry in the middle, where a batch can be cut; None: it has only one entry."""
    row: Any = frame.selectExpr("percentile_approx(offset, 0.5) AS middle", "min(offset) AS low").first()
    found: int | None = row["middle"]
    if found is not None and found == row["low"]:
        after: Any = frame.where(f"offset > {found}").selectExpr("min(offset) AS next").first()
        found = after["next"]
    return found
