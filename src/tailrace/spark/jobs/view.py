"""`view`: keeps a materialized view. Changes of its sources become deltas in Spark, and the server adds them.

Theory of operation
-------------------
The server knows how far the view has come in each source's log, and adds a delta only if its ranges begin just there
(`tailrace.jobs.fence`). So each run starts its stream at the server's positions, and Spark's checkpoint is no more than
a cursor: lost, replayed or behind, it changes nothing. Each batch is read once; its rows tell which ranges it has,
because entries tile a log. A batch whose delta is too large for one transaction is cut at an entry, and applied in two.

A join has two sources, and a delta has a range of each, empty where a batch has no changes of one. The two need not be
of one moment: what is kept is the join of one source up to here with the other up to there, and both go on. But a delta
is only right with just what the view had when it was worked out, so the position of the source that did not change is
compared too: of two jobs that run at once, one begins again.

A view that was not filled yet, or whose sources have lost what it has not seen, is filled first: all items, at one
sequence of each source, in counted pieces (`tailrace.jobs.view_fill`).
"""

from __future__ import annotations

import functools
import json
import tempfile
import threading
import time
from collections.abc import Iterable
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
from tailrace.spark.jobs.progress import Meter, Told, brief
from tailrace.spark.jobs.view_tasks import Work
from tailrace.spark.options import Access

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MAX_RECORDS: Final = 20_000
INTERVAL_S: Final = 1.0
PATIENCE_S: Final = 60.0  # how long a run with `once` waits for a server that is away
PAUSE_S_MAX: Final = 10.0
TAKEOVER_S: Final = 20.0  # how long a filling of somebody else may stand still before it is begun again
REPORT_S: Final = 5.0
LEAVE_S: Final = 10.0  # how long a batch may take to end when the job is stopped
_LOOK_S: Final = 0.05
# What Spark says of a server that is away, and of executors that have too much to do: it passes.
_PASSING: Final = ("cannot reach", "broke off", "try again", "Python worker failed to connect back")
_COLUMNS: Final = ("offset", "next_offset", "old_image", "new_image")


class Kept(msgspec.Struct, frozen=True):
    """What a run has done."""

    rows: int = 0  # changes that were applied
    batches: int = 0
    filled: int = 0  # items that it was filled with


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
    on_progress: Told | None = None,
    stop: threading.Event | None = None,
) -> Kept:
    """Keep the view until `stop` is set; with `once`, until it has all that its sources have now. `refill`: begin by
    filling it anew. Safe to stop at any moment, to start again, and to run twice."""
    if max_records < 1 or interval_s <= 0:
        raise Invalid("max_records and interval_s must be above 0")
    meter = Meter(name, "view", on_progress)
    with Client(url, token=token) as client:
        keeping = _Keeping(spark, client, name, Access(url, token, None, None), max_records, meter)
        loop = _Loop(keeping, stop or threading.Event(), checkpoint, interval_s)
        try:
            done = loop.run(once=once, refill=refill)
        except Exception as error:
            keeping.report(progress.FAILED, brief(error) if isinstance(error, Error) else explain(error))
            raise
        keeping.report(progress.STOPPED)
        return done


class _Keeping:
    """One view and what is done for it."""

    def __init__(
        self, spark: SparkSession, client: Client, name: str, access: Access, max_records: int, meter: Meter
    ) -> None:
        self.spark, self.client, self.name, self.access = spark, client, name, access
        self.max_records, self.meter = max_records, meter
        self.known: dict[str, Any] | None = None  # the view, as the server told
        self.work: Work | None = None
        self.at: dict[int, int] = {}  # by log, how far the view was before the batch under way
        self.done = Kept()
        self.error: Exception | None = None  # why the last batch failed: Spark tells it in its own words
        self.stopping = False
        self.busy = threading.Lock()  # held during a batch
        self._fill = ""  # the filling that is ours
        self._reported_s = 0.0

    def look(self) -> dict[str, Any]:
        """The view as it is now."""
        known = self.known = self.client.view(self.name)
        sources = msgspec.convert(known["tables"], tuple[SourceTable, ...])
        self.work = Work(self.name, known["sql"], sources, self.access)
        self.at = {source["log"]: source["position"] for source in known["sources"] if source["position"] is not None}
        return known

    def report(self, state: str, message: str = "") -> None:
        """Tell whoever watches, and the server; one that cannot be told stops no work."""
        self._reported_s = time.monotonic()
        self.meter.say(state, message)
        stored = {progress.RETRYING: "failed", progress.DONE: "stopped", progress.WAITING: "running"}
        with suppress(Error):
            self.client.report_job(self.name, stored.get(state, state), message=message[:500])

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

    def batch(self, frame: DataFrame, number: int) -> None:
        """What Spark calls with each batch of the stream."""
        with self.busy:
            self._batch(frame)

    def _batch(self, frame: DataFrame) -> None:
        try:
            if self.stopping:
                raise Unavailable("the job was told to stop")
            began = time.monotonic()
            records = self._apply(frame)
            if records:
                self.done = Kept(self.done.rows + records, self.done.batches + 1, self.done.filled)
                self.meter.batch(records, time.monotonic() - began, lag=self._lag())
        except Exception as error:
            self.error = error
            raise

    def _apply(self, frame: DataFrame) -> int:
        """Work a batch out and apply it; how many changes it had."""
        assert self.work is not None
        ranges, delta = self._collected(self._worked_out(frame, asks=True))
        if not ranges:
            return 0
        records = sum(count for _, _, count in ranges.values())
        if len(delta) > limits.VIEW_ENTRIES and (cut := self._cut(frame, ranges)) is not None:
            return sum(self._apply(part) for part in cut)
        logs = {log: (at, at) for log, at in self.at.items()}
        logs |= {self.work.sources[side].log: (low, high) for side, (low, high, _) in ranges.items()}
        moves = {**delta.wire(), "records": records}
        body = {"ranges": {str(log): each for log, each in logs.items()}, "moves": moves}
        told = self.client.apply_view(self.name, body)
        self.at = {int(log): position for log, position in told["positions"].items()}
        return records if told["applied"] else 0

    def _worked_out(self, frame: DataFrame, *, asks: bool) -> DataFrame:
        """The deltas of a frame of changes, one row for each task or more."""
        work = self.work
        assert work is not None
        if len(work.sources) == 1:
            return frame.mapInArrow(functools.partial(view_tasks.changes, work), view_tasks.PARTS)
        sided = frame.mapInArrow(functools.partial(view_tasks.sided, work), view_tasks.SIDED)
        return self._joined(sided, asks)

    def _joined(self, sided: DataFrame, asks: bool) -> DataFrame:
        assert self.work is not None
        by_key = sided.repartition("joined").sortWithinPartitions("joined")
        return by_key.mapInArrow(functools.partial(view_tasks.joined, self.work, asks), view_tasks.PARTS)

    def _collected(self, parts: DataFrame) -> tuple[dict[int, tuple[int, int, int]], Delta]:
        """By side, the range and the number of changes; and the whole delta."""
        assert self.work is not None
        delta = Delta(self.work.plan)
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
        """How much the view has not seen; asked now and then."""
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
        self.look()  # it follows its sources as they are now
        assert self.work is not None
        sequences: dict[int, int] = {}
        piece = count = 0
        began = time.monotonic()
        for row in self._filled().toLocalIterator(prefetchPartitions=True):
            if not row.body:
                if sequences.setdefault(row.side, row.low) != row.low or row.low != row.high:
                    raise Unavailable("a source was read twice, at two moments; the filling is begun again")
                count += row.records
                continue
            for wire in unpack(self.work.plan, bytes(row.body)).parts(limits.VIEW_ENTRIES):
                piece += 1
                body = {"step": "piece", "fill": fill, "piece": piece, "moves": wire}
                self.client.fill_view(self.name, body)
        told = {self.work.sources[side].table: sequence for side, sequence in sequences.items()}
        self._finish(fill, told)
        count -= len(sequences)  # of each source, the row that tells its sequence
        self.done = Kept(self.done.rows, self.done.batches, self.done.filled + count)
        self.meter.batch(count, time.monotonic() - began)

    def _finish(self, fill: str, sequences: dict[str, int]) -> None:
        try:
            self.client.fill_view(self.name, {"step": "finish", "fill": fill, "sequences": sequences})
        except Conflict as error:
            # The answer to a first try may have been lost. Then the view is live, and at these sequences or behind.
            if not _fenced(error) or self.client.view(self.name)["phase"] != "live":
                raise

    def _filled(self) -> DataFrame:
        work = self.work
        assert work is not None
        frames = []
        for side in range(len(work.sources)):
            one = self.spark.range(1, numPartitions=1)
            frames.append(one.mapInArrow(functools.partial(view_tasks.items, work, side), view_tasks.ITEMS))
        items = functools.reduce(lambda a, b: a.union(b), frames)
        spread = items.repartition(max(2, self.spark.sparkContext.defaultParallelism))
        if len(work.sources) == 1:
            return spread.mapInArrow(functools.partial(view_tasks.filled, work), view_tasks.PARTS)
        sided = spread.mapInArrow(functools.partial(view_tasks.sided_items, work), view_tasks.SIDED)
        return self._joined(sided, asks=False)

    def _abandoned(self, known: dict[str, Any], stop: threading.Event) -> bool:
        """Whether a filling under way is nobody's any more: it is ours from before, or has stood still for a while."""
        if known["fill"] == self._fill:
            return True
        self.report(progress.WAITING, "somebody else fills the view")
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


class _Loop:
    """Runs the stream, and takes it up again when the server was away or somebody else applied."""

    def __init__(self, keeping: _Keeping, stop: threading.Event, checkpoint: str | None, interval_s: float) -> None:
        self._keeping = keeping
        self._stop = stop
        self._checkpoint = checkpoint
        self._interval_s = interval_s

    def run(self, *, once: bool, refill: bool) -> Kept:
        keeping = self._keeping
        pause_s, gave_up_s = 0.2, time.monotonic() + PATIENCE_S
        while True:
            before = keeping.done
            try:
                self._run(once, refill)
                return keeping.done
            except (Unavailable, TooMany, Conflict) as error:
                if isinstance(error, Conflict) and not _fenced(error):
                    raise
                if keeping.done != before:
                    pause_s, gave_up_s = 0.2, time.monotonic() + PATIENCE_S
                refill = refill and not keeping.done.filled
                first = keeping.known is None  # most often a wrong URL
                if first or error.code == "LIMIT_EXCEEDED" or (once and time.monotonic() > gave_up_s):
                    raise
                if isinstance(error, Conflict):
                    self._checkpoint = None  # it is not where the server is
                keeping.report(progress.RETRYING, brief(error))
                if self._stop.wait(pause_s):
                    return keeping.done
                pause_s = min(PAUSE_S_MAX, pause_s * 2)

    def _run(self, once: bool, refill: bool) -> None:
        keeping = self._keeping
        known = keeping.look()
        while (refill or known["stale"]) and not self._stop.is_set():
            keeping.fill(self._stop)
            refill = False
            known = keeping.look()
        if self._stop.is_set():
            return
        keeping.report(progress.RUNNING)
        try:
            self._stream(known, once)
        except TooLarge:
            # One transaction is more than a delta can be. What the sources have now is not.
            keeping.fill(self._stop)
            self._run(once, False)
        except Conflict as error:
            if error.code != "VIEW_NOT_LIVE":
                raise
            self._run(once, False)  # somebody has begun to fill it

    def _stream(self, known: dict[str, Any], once: bool) -> None:
        keeping = self._keeping
        with tempfile.TemporaryDirectory(prefix="tailrace-view-", ignore_cleanup_errors=True) as folder:
            writing = keeping.frame(known).writeStream.foreachBatch(keeping.batch)
            writing = writing.option("checkpointLocation", self._checkpoint or folder)
            if once:
                writing = writing.trigger(availableNow=True)
            else:
                writing = writing.trigger(processingTime=f"{max(1, round(self._interval_s * 1000))} milliseconds")
            keeping.error = None
            query = writing.start()
            keeping.stopping = False
            try:
                self._wait(query)
            finally:
                keeping.stopping = True
                # A batch under way is let to its end: Spark shows the whole stack of one that is interrupted.
                if keeping.busy.acquire(timeout=LEAVE_S):
                    keeping.busy.release()
                query.stop()

    def _wait(self, query: StreamingQuery) -> None:
        """Until it has ended, or is told to."""
        while query.isActive and not self._stop.is_set():
            self._stop.wait(_LOOK_S)
        if self._stop.is_set():
            return
        if isinstance(self._keeping.error, Error):
            raise self._keeping.error
        failed = query.exception()
        if failed is not None:
            said = explain(failed)
            if _any(_PASSING, said) or self._keeping.look()["stale"]:
                raise Unavailable(said) from failed
            raise Error(said, code="QUERY_FAILED") from failed


def _fenced(error: Error) -> bool:
    """Whether somebody else has applied, or begun to fill, or a source is not what it was: the server knows how to go
    on."""
    return error.code in (Fenced.code, "VIEW_STALE")


def _any(words: Iterable[str], text: str) -> bool:
    return any(word in text for word in words)
