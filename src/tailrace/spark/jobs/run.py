"""`run`: all jobs of a pipeline.toml in one Spark application.

Each job has a thread and a pool of Spark's fair scheduler, so that a long backfill does not hold up the others. A job
that fails is restarted after a pause, which grows; a periodic job waits for its interval. The views are those on the
server: one that is created later is started, one that is dropped is stopped. The program keeps no state: the server
stores the progress of each job, so both may be restarted at any time.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tailrace.client import Client
from tailrace.errors import Error, TooMany, Unavailable
from tailrace.spark.failures import explain
from tailrace.spark.jobs import progress
from tailrace.spark.jobs.loop import Pauses, run_steps
from tailrace.spark.jobs.progress import Progress, ProgressCallback, ignore_progress
from tailrace.spark.jobs.settings import PipelineSettings, ReplicateSettings, matches, octets, seconds
from tailrace.spark.jobs.tier import tier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAUSE_S: Final = 1.0  # before a failed job is restarted; doubles with each failure
PAUSE_S_MAX: Final = 60.0
STABLE_S: Final = 60.0  # a run that lasted this long resets the pause
STOP_S: Final = 20.0  # how long jobs may take to finish their work when they are stopped
POOL: Final = "spark.scheduler.pool"

JobFunction = Callable[[threading.Event], Any]


class JobThread:
    """A job in its own thread, restarted until it is stopped."""

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        kind: str,
        work: JobFunction,
        on_progress: ProgressCallback,
        every_s: float | None,
        pauses: Pauses | None = None,
    ) -> None:
        """`pauses`: of a job that does not look for itself, because it runs now and then."""
        self._pauses = pauses
        self.name = name
        self.kind = kind
        self.stop = threading.Event()
        self._spark = spark
        self._work = work
        self._on_progress = on_progress
        self._every_s = every_s
        self.done = 0  # runs that ended well, or lasted
        self._thread = _thread(self._run, name)
        self._thread.start()

    def _run(self) -> None:
        self._spark.sparkContext.setLocalProperty(POOL, self.name)
        run_steps(self, self.stop, patience_s=None, pauses_s=(PAUSE_S, PAUSE_S_MAX), hold=self._hold)
        self._say(progress.STOPPED)

    def _hold(self) -> None:
        if self._pauses is not None:
            self._pauses.hold(self.stop, self._say_paused)

    def _say_paused(self, state: str) -> None:
        assert self._pauses is not None
        self._say(state)
        self._pauses.report(state)

    # -- as `JobStep`

    def step(self) -> float | None:
        """Run the job."""
        began = time.monotonic()
        try:
            self._work(self.stop)
        except Exception as error:  # of any kind: one job must not end the others
            if self.stop.is_set():
                return None  # Spark was stopped during the job
            self.done += time.monotonic() - began > STABLE_S
            raise error if isinstance(error, Error) else Error(explain(error), code="JOB_FAILED") from error
        self.done += 1
        return PAUSE_S if self._every_s is None else self._every_s

    def is_transient(self, error: Error) -> bool:
        """Every job is restarted, after any error."""
        return True

    def retry(self, error: Error) -> None:
        self._say(progress.RETRYING, str(error))

    def _say(self, state: str, message: str = "") -> None:
        self._on_progress(
            Progress(job=self.name, kind=self.kind, state=state, message=message, at_ms=int(time.time() * 1000))
        )

    def ended(self, within_s: float = 0.0) -> bool:
        """Whether the thread has ended; waits up to `within_s` for it."""
        self._thread.join(within_s)
        return not self._thread.is_alive()


def _thread(work: Callable[[], None], name: str) -> threading.Thread:
    from pyspark import InheritableThread  # it releases its JVM thread when it ends

    made: threading.Thread = InheritableThread(target=work)
    made.name, made.daemon = name, True
    return made


def run(
    spark: SparkSession,
    *,
    settings: PipelineSettings | None = None,
    url: str | None = None,
    token: str | None = None,
    on_progress: ProgressCallback | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Run the jobs of the settings until `stop` is set. A server that is unreachable at the start is an error; one that
    becomes unreachable later is waited for."""
    settings = settings or PipelineSettings()
    at = url or settings.url
    with Client(at, token=token) as client:
        client.jobs()  # raises an error immediately for a wrong URL or token
        PipelineRunner(spark, client, settings, at, token, on_progress or ignore_progress).follow(
            stop or threading.Event()
        )


class PipelineRunner:
    """Starts, restarts and stops the jobs of one application."""

    def __init__(
        self,
        spark: SparkSession,
        client: Client,
        settings: PipelineSettings,
        url: str,
        token: str | None,
        on_progress: ProgressCallback,
    ) -> None:
        self._spark = spark
        self._client = client
        self._settings = settings
        self._url = url
        self._token = token
        self._on_progress = on_progress
        self._workers: dict[tuple[str, str], JobThread] = {}  # by kind, and name as the job has it

    def follow(self, stop: threading.Event) -> None:
        """Run until `stop` is set; then let all jobs finish, within a time limit."""
        try:
            self._start_all()
            while not stop.is_set():
                try:
                    self._look_at_views()
                    self._start_snapshots()
                except (Unavailable, TooMany) as error:
                    # Running jobs handle this themselves; the list of views is read again later.
                    self._on_progress(Progress(job="pipeline", kind="run", state=progress.RETRYING, message=str(error)))
                stop.wait(self._settings.views.poll_s)
        finally:
            self._end()

    def _start(self, kind: str, name: str, work: JobFunction, every_s: float | None = None) -> None:
        if (kind, name) not in self._workers:
            pauses = None if every_s is None else Pauses(self._client, name)
            self._workers[kind, name] = JobThread(self._spark, name, kind, work, self._on_progress, every_s, pauses)

    def _start_all(self) -> None:
        settings = self._settings
        if settings.tier.enabled and (settings.tier.tables or settings.tier.topics or settings.tier.streams):
            self._start("tier", "tier", self._tier)
        if settings.compact.enabled:
            self._start("compact", "compact", self._compact, seconds(settings.compact.every, "compact.every"))
        for each in settings.replicate:
            self._start("replicate", *self._replicate(each))

    # -- the jobs

    @property
    def _server(self) -> dict[str, Any]:
        return {"url": self._url, "token": self._token, "on_progress": self._on_progress}

    def _tier(self, stop: threading.Event) -> None:
        settings = self._settings.tier
        tier(
            self._spark,
            tables=settings.tables,
            topics=settings.topics,
            streams=settings.streams,
            interval_s=settings.interval_s,
            batch_records=settings.batch_records,
            age_s=settings.age_s,
            stop=stop,
            **self._server,
        )

    def _compact(self, stop: threading.Event) -> None:
        from tailrace.spark.jobs.compact import compact

        settings = self._settings.compact
        compact(
            self._spark,
            target_bytes=octets(settings.target_bytes, "compact.target_bytes"),
            retention=settings.retention,
            vacuum=settings.vacuum,
            stop=stop,
            **self._server,
        )

    def _snapshot(self, table: str) -> JobFunction:
        from tailrace.spark.jobs.snapshot import snapshot

        retention = self._settings.snapshot.retention
        return lambda stop: snapshot(self._spark, table=table, retention=retention, **self._server)

    def _replicate(self, settings: ReplicateSettings) -> tuple[str, JobFunction]:
        """The name of the job, and its work."""
        from tailrace.spark.jobs.replicate import kind_of, replicate

        name = settings.name or f"{settings.table}/{kind_of(settings.to)}"  # raises an error for an invalid URL
        token = settings.target_token or os.environ.get("TAILRACE_TARGET_TOKEN")
        more: dict[str, Any] = {"max_records": settings.max_records, "interval_s": settings.interval_s}
        return f"replicate/{name}", lambda stop: replicate(
            self._spark,
            table=settings.table,
            to=settings.to,
            name=settings.name,
            target_table=settings.target_table,
            target_token=token,
            checkpoint=settings.checkpoint,
            stop=stop,
            **{name: value for name, value in more.items() if value is not None},
            **self._server,
        )

    def _view(self, name: str) -> JobFunction:
        from tailrace.spark.jobs.view import view

        interval_s = self._settings.views.interval_s
        return lambda stop: view(self._spark, name, interval_s=interval_s, stop=stop, **self._server)

    # -- jobs that come and go

    def _look_at_views(self) -> None:
        """Start the views that are new, and stop those that were dropped."""
        if not self._settings.views.names:
            return
        there = {
            each["name"]
            for each in self._client.jobs()
            if each["kind"] == "view" and matches(each["name"], self._settings.views.names)
        }
        for name in sorted(there):
            self._start("view", name, self._view(name))
        for (kind, name), worker in list(self._workers.items()):
            if kind == "view" and name not in there:
                worker.stop.set()
                if worker.ended():
                    del self._workers[kind, name]

    def _start_snapshots(self) -> None:
        """Start the snapshots of new tables."""
        wanted = self._settings.snapshot.tables
        if not wanted:
            return
        every_s = seconds(self._settings.snapshot.every, "snapshot.every")
        for row in self._client.sql("SELECT name FROM system.tables ORDER BY name")[-1].rows:
            if matches(row["name"], wanted):
                self._start("snapshot", f"snapshot/{row['name']}", self._snapshot(row["name"]), every_s)

    def _end(self) -> None:
        for worker in self._workers.values():
            worker.stop.set()
        until = time.monotonic() + STOP_S
        for worker in self._workers.values():
            worker.ended(max(until - time.monotonic(), 0.0))
        if not all(worker.ended() for worker in self._workers.values()):
            self._spark.sparkContext.cancelAllJobs()  # the next run repeats uncommitted work
            for worker in self._workers.values():
                worker.ended(1.0)
