"""`view`: plans, fills and maintains a materialized view. Spark computes what changes, and the server writes it.

Theory of operation
-------------------
The server stores the view's position in each source's log, and writes the rows of a batch only if its ranges begin
exactly there (`tailrace.jobs.fence`). A batch is a function of the log and of positions alone (`tailrace.spark.views`):
a job that dies, or that finds that another one was faster, starts over from the server's positions. Nothing else is
stored, and there is no checkpoint to lose.

Each step takes the changes since the view's position, up to about `max_records` of each source, works out which rows of
the view change, has the tasks stage them, and commits the stages with the ranges of all sources. The sources need not
be of one moment: the view is the SELECT over each source up to its position, and all advance.

A view is planned by each job when it starts. It is filled if it is new, if its sources have lost changes that it has
not seen, or if that is requested: with the SELECT over all items, in numbered chunks (`tailrace.jobs.view_fill`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, Unpack

import msgspec

from tailrace import limits
from tailrace.client import Client
from tailrace.client.targets import LogSource
from tailrace.errors import Conflict, Error, Fenced, Invalid, NotFound, TooLarge, TooMany, Unavailable
from tailrace.jobs import view_sql
from tailrace.spark.failures import explain
from tailrace.spark.jobs import progress
from tailrace.spark.jobs.loop import PATIENCE_S, TRANSIENT, Pauses, reported, run_steps
from tailrace.spark.jobs.progress import Meter, ProgressCallback, brief
from tailrace.spark.options import ServerAccess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.spark.views.maintenance import ViewMaintainer

MAX_RECORDS: Final = 200_000
MAX_RECORDS_ALONE: Final = 1_000_000  # of a view that only adds changes up: its batches hold no rows
MIN_RECORDS: Final = 1_000
INTERVAL_S: Final = 1.0
REFRESH_S: Final = 60.0  # between two runs of a SELECT whose result changes by itself
TAKEOVER_S: Final = 20.0  # how long the filling by another job may make no progress before it is restarted
REPORT_S: Final = 5.0
_OUTRUN: Final = "start over"  # in the server's message to a task whose view has moved on
_PLANNED: Final = "was planned again"  # and whose view has another plan
# Spark's words, perhaps of a cause, if an executor with a part of the state is gone.
_LOST: Final = ("Checkpoint block", "checkpoint block")


class Maintained(msgspec.Struct, frozen=True):
    """The result of a run of `view`."""

    rows: int = 0  # changes that were applied
    batches: int = 0
    filled: int = 0  # rows that the view was filled with


def view(
    spark: SparkSession,
    name: str,
    *,
    url: str,
    token: str | None = None,
    once: bool = False,
    refill: bool = False,
    interval_s: float = INTERVAL_S,
    refresh_s: float = REFRESH_S,
    max_records: int | None = None,
    on_progress: ProgressCallback | None = None,
    stop: threading.Event | None = None,
) -> Maintained:
    """Maintain the view until `stop` is set; with `once`, until it has all current changes of its sources. With
    `refill`, fill it again first. `max_records`: by default MAX_RECORDS, or MAX_RECORDS_ALONE if the view only adds
    changes up. Safe to stop at any moment, to restart, and to run twice at once."""
    if (max_records is not None and max_records < 1) or interval_s <= 0 or refresh_s <= 0:
        raise Invalid("max_records, interval_s and refresh_s must be above 0")
    meter = Meter(name, "view", on_progress)
    with Client(url, token=token) as client:
        ending = stop or threading.Event()
        job = _ViewJob(
            spark, client, name, ServerAccess(url, token, None, None), max_records, meter,
            once=once, refill=refill, interval_s=interval_s, refresh_s=refresh_s, stop=ending,
        )  # fmt: skip
        pauses = Pauses(client, name)
        with reported(job.report), closing(job):
            if once:
                pauses.refuse()
            run_steps(
                job, ending, patience_s=PATIENCE_S if once else None, hold=lambda: pauses.hold(ending, job.report)
            )
        job.report(progress.STOPPED)
        return job.done


def explain_select(spark: SparkSession, sql: str, *, url: str, token: str | None = None) -> list[tuple[str, str]]:
    """The plan of a view with this SELECT, which need not exist: properties and their values."""
    from tailrace.spark.views.maintenance import ViewMaintainer

    access = ServerAccess(url, token, None, None)
    with Client(url, token=token) as client:
        tables = [each for name in view_sql.tables(sql) for each in _described(client, name)]
        planned = ViewMaintainer(spark, client, access, "view", sql, tables)
        try:
            shape = planned.shape()
        finally:
            planned.close()
    rows = [("strategy", shape["strategy"]), ("key", ", ".join(f"{name} {kind}" for name, kind in shape["keys"]))]
    rows += [("column", f"{name} {kind}") for name, kind in shape["columns"]]
    rows += [("derivative", line) for line in shape["explained"]]
    return rows + [("warning", text) for text in shape["warnings"]]


def _described(client: Client, name: str) -> list[dict[str, Any]]:
    """A source of a SELECT, as the server would describe it: a table, or the partitions of a topic."""
    try:
        return [{"table": name, "keys": client.logs(table=name)["keys"], "log": 0}]
    except NotFound as missing:
        try:
            found = client.logs(topic=name)["partitions"]
        except NotFound:
            raise missing from None
        return [
            {"table": name, "keys": (), "log": 0, "topic": 1, "partition": each["partition"], "first": each["earliest"]}
            for each in found
        ]


class LogServer(Protocol):
    """The methods of a client that `batch_ranges` uses."""

    def advance(self, offsets: Mapping[int, int], records: int, **source: Unpack[LogSource]) -> dict[int, int]: ...

    def advance_logs(
        self, wanted: Sequence[tuple[LogSource, Mapping[int, int], int]]
    ) -> list[dict[int, int] | None]: ...


def batch_ranges(server: LogServer, known: dict[str, Any], records: int) -> dict[int, tuple[int, int]]:
    """The ranges of the next batch, by log: from the view's positions, about `records` of each table and topic. How far
    they reach is asked in one request, however many partitions the topics have."""
    behind: dict[tuple[str, bool], list[dict[str, Any]]] = {}  # by source: its logs that have more
    topics = {source["table"] for source in known["tables"] if source["topic"]}
    for each in known["sources"]:
        if each["position"] < each["next"]:
            behind.setdefault((each["table"], each["table"] in topics), []).append(each)
    wanted: list[tuple[LogSource, dict[int, int], int]] = [
        (
            {"topic": name} if is_topic else {"table": name},
            {each["partition"]: each["position"] for each in logs},
            records,
        )
        for (name, is_topic), logs in behind.items()
    ]
    ranges = {each["log"]: (each["position"], each["position"]) for each in known["sources"]}
    reached = server.advance_logs(wanted) if wanted else []
    for logs, asked, found in zip(behind.values(), wanted, reached, strict=True):
        if found is None:  # it was dropped: this raises the error that names it
            source, offsets, _ = asked
            found = server.advance(offsets, records, **source)
        for each in logs:
            ranges[each["log"]] = each["position"], max(each["position"], found[each["partition"]])
    return ranges


class _ViewJob:
    """One view: how it is planned and filled, and the step of the job."""

    def __init__(
        self,
        spark: SparkSession,
        client: Client,
        name: str,
        access: ServerAccess,
        max_records: int | None,
        meter: Meter,
        *,
        once: bool,
        refill: bool,
        interval_s: float,
        refresh_s: float,
        stop: threading.Event,
    ) -> None:
        self._spark, self.client, self.name, self._access = spark, client, name, access
        self._given, self._max_records, self.meter = max_records, max_records or MAX_RECORDS, meter
        self._once, self._refill, self._interval_s, self._refresh_s = once, refill, interval_s, refresh_s
        self._requested = refill  # by the caller, not only found to be needed
        self._stop = stop
        self._known: dict[str, Any] | None = None  # the view, as the server describes it
        self._maintainer: ViewMaintainer | None = None
        self._tables: list[dict[str, Any]] = []  # the sources that it follows
        self._until: dict[int, int] | None = None  # with `once`: where the logs ended at the start
        self._refreshed_s = float("-inf")
        self.done = Maintained()
        self._fill = ""  # the filling that this job began
        self._reported_s = 0.0

    def close(self) -> None:
        if self._maintainer is not None:
            self._maintainer.close()

    def _look(self) -> dict[str, Any]:
        self._known = self.client.view(self.name)
        return self._known

    def report(self, state: str, message: str = "") -> None:
        """Report the state to the callback and to the server; a report that fails is not repeated."""
        self._reported_s = time.monotonic()
        self.meter.say(state, message)
        stored = {progress.RETRYING: "failed", progress.DONE: "stopped", progress.WAITING: "running"}
        with suppress(Error):
            self.client.report_job(self.name, stored.get(state, state), message=message[:500])

    # -- the step

    def step(self) -> float | None:
        """Plan and fill the view if it has to be, then apply one batch."""
        known = self._look()
        if self._maintainer is not None and known["phase"] == "live" and known["tables"] != self._tables:
            self._maintainer.close()  # another job has filled the view, from other logs or other first messages
            self._maintainer = None
        if self._maintainer is None:
            self._plan(known)
            known = self._look()
        if self._refill or known["stale"]:
            self._fill_again(known)
            self._refill = False
            return 0.0
        if self._until is None:
            self._until = {source["log"]: source["next"] for source in known["sources"]}
            self.report(progress.RUNNING)
        try:
            return self._apply(known)
        except TooLarge:
            self._forget()
            if self._max_records > MIN_RECORDS:
                self._max_records = max(MIN_RECORDS, self._max_records // 4)
            else:  # one transaction is more than a batch can be. What the sources have now is not.
                self._refill = True
            return 0.0
        except Conflict as error:
            self._forget()
            if error.code != "VIEW_NOT_LIVE":
                raise
            return 0.0  # another job has begun to fill it
        except Error:
            raise
        except Exception as error:  # of Spark
            raise self._of_spark(error) from error

    def is_transient(self, error: Error) -> bool:
        """Whether to retry. An error before anything worked is most often a wrong URL, and is raised."""
        if self._known is None or error.code == "LIMIT_EXCEEDED":
            return False
        return isinstance(error, Unavailable | TooMany) or (isinstance(error, Conflict) and _fenced(error))

    def retry(self, error: Error) -> None:
        self._refill = self._refill and not self.done.filled
        self._forget()
        if _PLANNED in str(error) and self._maintainer is not None:
            self._maintainer.close()
            self._maintainer = None
        self.report(progress.RETRYING, brief(error))

    def _forget(self) -> None:
        """A batch was computed and not applied: its state is not the server's."""
        if self._maintainer is not None:
            self._maintainer.forget()

    def _of_spark(self, error: Exception) -> Error:
        from tailrace.spark.views.failing import value_error

        message = value_error(error) or explain(error)
        if _PLANNED in message:
            return Conflict(message, code="VIEW_STALE")
        if any(text in message for text in (*TRANSIENT, _OUTRUN)) or any(text in str(error) for text in _LOST):
            return Unavailable(message)
        return Error(message, code="QUERY_FAILED")

    # -- planning

    def _plan(self, known: dict[str, Any]) -> None:
        from pyspark.errors import AnalysisException, ParseException

        from tailrace.spark.views.maintenance import ViewMaintainer

        maintainer = None
        try:
            maintainer = ViewMaintainer(
                self._spark, self.client, self._access, self.name, known["sql"], known["tables"]
            )
            self.client.plan_view(self.name, {"shape": maintainer.shape()})
        except (AnalysisException, ParseException) as error:
            self.client.plan_view(self.name, {"error": str(error)[: limits.VIEW_ERROR_CHARACTERS_MAX]})
            raise Invalid(f"Spark refuses the SELECT of view {self.name!r}: {error}", code="INVALID_VIEW") from error
        except Error as error:
            if maintainer is None and error.code == "INVALID_VIEW":
                self.client.plan_view(self.name, {"error": str(error)})
            raise
        self._maintainer, self._tables = maintainer, known["tables"]
        if self._given is None and maintainer.needs_only_changes:
            self._max_records = MAX_RECORDS_ALONE

    # -- batches

    def _apply(self, known: dict[str, Any]) -> float | None:
        """Apply the next batch; the seconds to wait, None if the job is done."""
        maintainer = self._maintainer
        assert maintainer is not None and self._until is not None
        began = time.monotonic()
        ranges = batch_ranges(self.client, known, self._max_records)
        moved = any(start != end for start, end in ranges.values())
        due = maintainer.is_interval and began - self._refreshed_s >= self._refresh_s
        if moved or due:
            records = maintainer.apply(ranges, rewrite=not moved)
            self._refreshed_s = time.monotonic()
            if records is None:  # another job has applied it
                maintainer.forget()
                return 0.0
            self.done = Maintained(self.done.rows + records, self.done.batches + 1, self.done.filled)
            self.meter.batch(records, time.monotonic() - began, lag=self._lag())
        if self._once and all(end >= self._until.get(log, 0) for log, (_, end) in ranges.items()):
            return None
        return 0.0 if moved else self._interval_s

    def _lag(self) -> int | None:
        """How many positions the view is behind; None if it was reported recently."""
        if time.monotonic() - self._reported_s < REPORT_S:
            return None
        known = self.client.view(self.name)
        lag: int = sum(max(0, source["next"] - (source["position"] or 0)) for source in known["sources"])
        self.report(progress.RUNNING, f"{lag:,} behind" if lag else "")
        return lag

    # -- filling

    def _fill_again(self, known: dict[str, Any]) -> None:
        """Fill the view from what its sources have now."""
        maintainer = self._maintainer
        assert maintainer is not None
        if known["phase"] == "filling" and not self._abandoned(known):
            return
        self.report(progress.RUNNING, "filling the view")
        began = time.monotonic()
        fill = self._fill = self.client.fill_view(self.name, {"step": "begin", "requested": self._requested})["fill"]
        while self.client.fill_view(self.name, {"step": "clear", "fill": fill})["more"]:
            pass
        try:
            self._tables = self._look()["tables"]
            sequences, positions, stages = maintainer.filled(self._tables)
            count = self._write(fill, stages)
        except Conflict as error:
            if error.code != "VIEW_SOURCE_TRIMMED":
                raise
            # Nothing of this filling was counted yet: it begins again, with the messages that are left.
            raise Conflict(str(error), code="VIEW_STALE") from error
        except Error:
            raise
        except Exception as error:  # of Spark
            raise self._of_spark(error) from error
        self._finish(fill, sequences, positions)
        self._requested = False
        self.done = Maintained(self.done.rows, self.done.batches, self.done.filled + count)
        self.meter.batch(count, time.monotonic() - began)

    def _write(self, fill: str, stages: Any) -> int:
        """Write stages in numbered chunks, as the tasks make them; the number of rows."""
        piece = count = held = 0
        waiting: list[str] = []
        for stage, rows in stages:
            if waiting and held + rows > limits.VIEW_FILL_ROWS:
                piece += 1
                self.client.fill_view(self.name, {"step": "piece", "fill": fill, "piece": piece, "stages": waiting})
                waiting, held = [], 0
            waiting.append(stage)
            held += rows
            count += rows
        if waiting:
            body = {"step": "piece", "fill": fill, "piece": piece + 1, "stages": waiting}
            self.client.fill_view(self.name, body)
        return count

    def _finish(self, fill: str, sequences: dict[str, int], positions: dict[int, int]) -> None:
        at = {str(log): position for log, position in positions.items()}
        try:
            body = {"step": "finish", "fill": fill, "sequences": sequences, "positions": at}
            self.client.fill_view(self.name, body)
        except Conflict as error:
            # The response to a first attempt may have been lost. Then the view is live, at these sequences or later.
            if not _fenced(error) or self.client.view(self.name)["phase"] != "live":
                raise

    def _abandoned(self, known: dict[str, Any]) -> bool:
        """Whether the current filling was abandoned: it is ours from before, or has made no progress for a while."""
        if known["fill"] == self._fill:
            return True
        self.report(progress.WAITING, "another job is filling the view")
        seen, since = (known["fill"], known["piece"]), time.monotonic()
        while time.monotonic() - since < TAKEOVER_S:
            if self._stop.wait(0.5):
                return False
            known = self._look()
            if known["phase"] != "filling":
                return False
            if (known["fill"], known["piece"]) != seen:
                seen, since = (known["fill"], known["piece"]), time.monotonic()
        return True


def _fenced(error: Error) -> bool:
    """Whether another job has applied a batch or begun to fill the view, or a source was recreated: the server has the
    positions to continue from."""
    return error.code in (Fenced.code, "VIEW_STALE")
