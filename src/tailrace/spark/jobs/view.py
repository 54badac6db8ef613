"""`view`: maintains a materialized view. Changes of its sources become deltas in Spark, which the server applies.

Theory of operation
-------------------
The server stores the view's position in each source's log, and applies a delta only if its ranges begin exactly there
(`tailrace.jobs.fence`). So each run starts its stream at the server's positions, and Spark's checkpoint is only a
cursor: lost, replayed or behind, it changes nothing. Each batch is read once; the ranges follow from its rows, because
entries tile a log. A batch whose delta is too large for one transaction is cut at an entry, and applied in two.

A join has two sources, and a delta has a range of each, which is empty where a batch has no changes of one. The two
need not be of one moment: the view is the join of one source up to one position with the other up to another, and both
advance. But a delta is only valid for exactly the state that it was computed from, so the position of the source that
did not change is compared too: if two jobs run at once, one of them starts over.

A view that was not filled yet, or whose sources have lost changes that it has not seen, is filled first: with all
items, at one sequence of each source, in numbered chunks (`tailrace.jobs.view_fill`).
"""

from __future__ import annotations

import functools
import json
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tailrace import limits
from tailrace.client import Client
from tailrace.errors import Conflict, Error, Fenced, Invalid, TooLarge, TooMany, Unavailable
from tailrace.jobs.view_delta import Delta, unpack
from tailrace.jobs.view_plan import SourceTable
from tailrace.spark.failures import explain
from tailrace.spark.jobs import progress, view_tasks
from tailrace.spark.jobs.loop import PATIENCE_S, BatchQuery, run_steps
from tailrace.spark.jobs.progress import Meter, ProgressCallback, brief
from tailrace.spark.jobs.view_tasks import ViewTask
from tailrace.spark.options import ServerAccess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_RECORDS: Final = 20_000
INTERVAL_S: Final = 1.0
TAKEOVER_S: Final = 20.0  # how long the filling by another job may make no progress before it is restarted
REPORT_S: Final = 5.0
_COLUMNS: Final = ("offset", "next_offset", "old_image", "new_image")


class Maintained(msgspec.Struct, frozen=True):
    """The result of a run of `view`."""

    rows: int = 0  # changes that were applied
    batches: int = 0
    filled: int = 0  # items that the view was filled with


def view(
    spark: SparkSession,
    name: str,
    *,
    url: str,
    token: str | None = None,
    once: bool = False,
    refill: bool = False,
    interval_s: float = INTERVAL_S,
    checkpoint: str | None = None,
    max_records: int = MAX_RECORDS,
    on_progress: ProgressCallback | None = None,
    stop: threading.Event | None = None,
) -> Maintained:
    """Maintain the view until `stop` is set; with `once`, until it has all current changes of its sources. With
    `refill`, fill it again first. Safe to stop at any moment, to restart, and to run twice at once."""
    if max_records < 1 or interval_s <= 0:
        raise Invalid("max_records and interval_s must be above 0")
    meter = Meter(name, "view", on_progress)
    with Client(url, token=token) as client:
        ending = stop or threading.Event()
        job = _ViewMaintenance(
            spark, client, name, ServerAccess(url, token, None, None), max_records, meter,
            once=once, refill=refill, interval_s=interval_s, checkpoint=checkpoint, stop=ending,
        )  # fmt: skip
        try:
            run_steps(job, ending, patience_s=PATIENCE_S if once else None)
        except Exception as error:
            job.report(progress.FAILED, brief(error) if isinstance(error, Error) else explain(error))
            raise
        job.report(progress.STOPPED)
        return job.done


class _ViewMaintenance:
    """One view, its batches, how it is filled, and the step of the job."""

    def __init__(
        self,
        spark: SparkSession,
        client: Client,
        name: str,
        access: ServerAccess,
        max_records: int,
        meter: Meter,
        *,
        once: bool,
        refill: bool,
        interval_s: float,
        checkpoint: str | None,
        stop: threading.Event,
    ) -> None:
        self.spark, self.client, self.name, self.access = spark, client, name, access
        self.max_records, self.meter = max_records, meter
        self._once, self._refill, self._interval_s, self._checkpoint = once, refill, interval_s, checkpoint
        self._stop = stop
        self._query = BatchQuery(self._apply_batch, stop)
        self.known: dict[str, Any] | None = None  # the view, as the server describes it
        self.task: ViewTask | None = None
        self.at: dict[int, int] = {}  # by log, the position of the view before the current batch
        self.done = Maintained()
        self._fill = ""  # the filling that this job began
        self._reported_s = 0.0

    def look(self) -> dict[str, Any]:
        """The view as it is now."""
        known = self.known = self.client.view(self.name)
        sources = msgspec.convert(known["tables"], tuple[SourceTable, ...])
        self.task = ViewTask(self.name, known["sql"], sources, self.access)
        self.at = {source["log"]: source["position"] for source in known["sources"] if source["position"] is not None}
        return known

    def report(self, state: str, message: str = "") -> None:
        """Report the state to the callback and to the server; a report that fails is not repeated."""
        self._reported_s = time.monotonic()
        self.meter.say(state, message)
        stored = {progress.RETRYING: "failed", progress.DONE: "stopped", progress.WAITING: "running"}
        with suppress(Error):
            self.client.report_job(self.name, stored.get(state, state), message=message[:500])

    # -- the step

    def step(self) -> None:
        """Fill the view if it has to be, then follow its sources: `once`, up to what they have now; else until the job
        is stopped."""
        known = self.look()
        while (self._refill or known["stale"]) and not self._stop.is_set():
            self.fill(self._stop)
            self._refill = False
            known = self.look()
        if self._stop.is_set():
            return
        self.report(progress.RUNNING)
        try:
            self._follow(known)
        except TooLarge:
            # One transaction is more than a delta can be. What the sources have now is not.
            self.fill(self._stop)
            self.step()
        except Conflict as error:
            if error.code != "VIEW_NOT_LIVE":
                raise
            self.step()  # another job has begun to fill it

    def _follow(self, known: dict[str, Any]) -> None:
        frame = self.frame(known)
        try:
            self._query.run(frame, once=self._once, interval_s=self._interval_s, checkpoint=self._checkpoint)
        except Error as error:
            if error.code == "QUERY_FAILED" and self.look()["stale"]:
                raise Unavailable(str(error)) from error
            raise

    def is_transient(self, error: Error) -> bool:
        """Whether to retry. An error before anything worked is most often a wrong URL, and is raised."""
        if self.known is None or error.code == "LIMIT_EXCEEDED":
            return False
        return isinstance(error, Unavailable | TooMany) or (isinstance(error, Conflict) and _fenced(error))

    def retry(self, error: Error) -> None:
        self._refill = self._refill and not self.done.filled
        if isinstance(error, Conflict):
            self._checkpoint = None  # it is not where the server is
        self.report(progress.RETRYING, brief(error))

    # -- batches

    def frame(self, known: dict[str, Any]) -> DataFrame:
        """The changes of all sources from where the view is."""
        frames: list[DataFrame] = []
        for side, source in enumerate(known["sources"]):
            options: dict[str, Any] = {
                "url": self.access.url,
                "table": source["table"],
                "startingOffsets": json.dumps({"0": source["position"]}),
                "maxRecordsPerTrigger": self.max_records,
                "images": "typed",
            }
            if self.access.token is not None:
                options["token"] = self.access.token
            read = self.spark.readStream.format("tailrace").options(**options).load()
            frames.append(read.selectExpr(f"{side} AS side", *_COLUMNS))
        return functools.reduce(lambda a, b: a.union(b), frames)

    def _apply_batch(self, frame: DataFrame) -> None:
        began = time.monotonic()
        records = self._apply(frame)
        if records:
            self.done = Maintained(self.done.rows + records, self.done.batches + 1, self.done.filled)
            self.meter.batch(records, time.monotonic() - began, lag=self._lag())

    def _apply(self, frame: DataFrame) -> int:
        """Compute the delta of a batch and apply it; the number of changes in it."""
        assert self.task is not None
        ranges, delta = self._collected(self._deltas(frame, lookup=True))
        if not ranges:
            return 0
        records = sum(count for _, _, count in ranges.values())
        if len(delta) > limits.VIEW_ENTRIES and (cut := self._cut(frame, ranges)) is not None:
            return sum(self._apply(part) for part in cut)
        logs = {log: (at, at) for log, at in self.at.items()}
        logs |= {self.task.sources[side].log: (low, high) for side, (low, high, _) in ranges.items()}
        moves = {**delta.wire(), "records": records}
        body = {"ranges": {str(log): each for log, each in logs.items()}, "moves": moves}
        response = self.client.apply_view(self.name, body)
        self.at = {int(log): position for log, position in response["positions"].items()}
        return records if response["applied"] else 0

    def _deltas(self, frame: DataFrame, *, lookup: bool) -> DataFrame:
        """The deltas of a frame of changes, one row for each task or more."""
        task = self.task
        assert task is not None
        if len(task.sources) == 1:
            return frame.mapInArrow(functools.partial(view_tasks.changes, task), view_tasks.PARTS)
        sided = frame.mapInArrow(functools.partial(view_tasks.sided, task), view_tasks.SIDED)
        return self._joined(sided, lookup)

    def _joined(self, sided: DataFrame, lookup: bool) -> DataFrame:
        assert self.task is not None
        by_key = sided.repartition("joined").sortWithinPartitions("joined")
        return by_key.mapInArrow(functools.partial(view_tasks.joined, self.task, lookup), view_tasks.PARTS)

    def _collected(self, parts: DataFrame) -> tuple[dict[int, tuple[int, int, int]], Delta]:
        """By side, the range and the number of changes; and the whole delta."""
        assert self.task is not None
        delta = Delta(self.task.plan)
        ranges: dict[int, tuple[int, int, int]] = {}
        for row in parts.collect():
            if row.body:
                delta.merge(unpack(delta.plan, bytes(row.body)))
                continue
            low, high, count = ranges.get(row.side, (row.low, row.high, 0))
            ranges[row.side] = (min(low, row.low), max(high, row.high), count + row.records)
        return ranges, delta

    def _cut(self, frame: DataFrame, ranges: dict[int, tuple[int, int, int]]) -> tuple[DataFrame, DataFrame] | None:
        """The batch in two parts, one after the other; None: it is one transaction and cannot be cut."""
        for side in sorted(ranges, key=lambda each: -ranges[each][2]):
            of_side = frame.where(f"side = {side}")
            row: Any = of_side.selectExpr("percentile_approx(offset, 0.5) AS middle", "min(offset) AS low").first()
            middle = row["middle"]
            if middle == row["low"]:
                after: Any = of_side.where(f"offset > {middle}").selectExpr("min(offset) AS next").first()
                middle = after["next"]
            if middle is not None:
                return (
                    frame.where(f"side <> {side} OR offset < {middle}"),
                    frame.where(f"side = {side} AND offset >= {middle}"),
                )
        return None

    def _lag(self) -> int | None:
        """How many positions the view is behind; None if it was reported recently."""
        if time.monotonic() - self._reported_s < REPORT_S:
            return None
        known = self.client.view(self.name)
        lag: int = sum(max(0, source["next"] - (source["position"] or 0)) for source in known["sources"])
        self.report(progress.RUNNING, f"{lag:,} behind" if lag else "")
        return lag

    # -- filling

    def fill(self, stop: threading.Event) -> None:
        """Fill the view from what its sources have now."""
        known = self.look()
        if known["phase"] == "filling" and not self._abandoned(known, stop):
            return
        self.report(progress.RUNNING, "filling the view")
        fill = self._fill = self.client.fill_view(self.name, {"step": "begin"})["fill"]
        while self.client.fill_view(self.name, {"step": "clear", "fill": fill})["more"]:
            pass
        self.look()  # its sources as they are now
        assert self.task is not None
        sequences: dict[int, int] = {}
        piece = count = 0
        began = time.monotonic()
        for row in self._filled().toLocalIterator(prefetchPartitions=True):
            if not row.body:
                if sequences.setdefault(row.side, row.low) != row.low or row.low != row.high:
                    raise Unavailable("a source was read twice, at two moments; the filling is restarted")
                count += row.records
                continue
            for wire in unpack(self.task.plan, bytes(row.body)).parts(limits.VIEW_ENTRIES):
                piece += 1
                body = {"step": "piece", "fill": fill, "piece": piece, "moves": wire}
                self.client.fill_view(self.name, body)
        by_table = {self.task.sources[side].table: sequence for side, sequence in sequences.items()}
        self._finish(fill, by_table)
        count -= len(sequences)  # without the row of each source that has only its sequence
        self.done = Maintained(self.done.rows, self.done.batches, self.done.filled + count)
        self.meter.batch(count, time.monotonic() - began)

    def _finish(self, fill: str, sequences: dict[str, int]) -> None:
        try:
            self.client.fill_view(self.name, {"step": "finish", "fill": fill, "sequences": sequences})
        except Conflict as error:
            # The response to a first attempt may have been lost. Then the view is live, at these sequences or later.
            if not _fenced(error) or self.client.view(self.name)["phase"] != "live":
                raise

    def _filled(self) -> DataFrame:
        task = self.task
        assert task is not None
        frames = []
        for side in range(len(task.sources)):
            one = self.spark.range(1, numPartitions=1)
            frames.append(one.mapInArrow(functools.partial(view_tasks.items, task, side), view_tasks.ITEMS))
        items = functools.reduce(lambda a, b: a.union(b), frames)
        spread = items.repartition(max(2, self.spark.sparkContext.defaultParallelism))
        if len(task.sources) == 1:
            return spread.mapInArrow(functools.partial(view_tasks.filled, task), view_tasks.PARTS)
        sided = spread.mapInArrow(functools.partial(view_tasks.sided_items, task), view_tasks.SIDED)
        return self._joined(sided, lookup=False)

    def _abandoned(self, known: dict[str, Any], stop: threading.Event) -> bool:
        """Whether the current filling was abandoned: it is ours from before, or has made no progress for a while."""
        if known["fill"] == self._fill:
            return True
        self.report(progress.WAITING, "another job is filling the view")
        seen, since = (known["fill"], known["piece"]), time.monotonic()
        while time.monotonic() - since < TAKEOVER_S:
            if stop.wait(0.5):
                return False
            known = self.look()
            if known["phase"] != "filling":
                return False
            if (known["fill"], known["piece"]) != seen:
                seen, since = (known["fill"], known["piece"]), time.monotonic()
        return True


def _fenced(error: Error) -> bool:
    """Whether another job has applied a delta or begun to fill the view, or a source was recreated: the server has the
    positions to continue from."""
    return error.code in (Fenced.code, "VIEW_STALE")
