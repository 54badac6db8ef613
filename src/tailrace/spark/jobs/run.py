"""`run`: all jobs of a pipeline.toml in one Spark application.

Each job has a thread, and a pool of Spark's fair scheduler, so that a long backfill does not hold up the others. A job
that fails is started again, after a pause that grows; one that is to run now and then waits for its time. The views
are those that the server has: one that is created later is started, one that was dropped is stopped. Nothing is
remembered here: the server knows how far each job is, so this program and the server may be restarted at any time.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tailrace.client import Client
from tailrace.errors import TooMany, Unavailable
from tailrace.spark.failures import explain
from tailrace.spark.jobs import progress
from tailrace.spark.jobs.progress import Progress, Told, nobody
from tailrace.spark.jobs.settings import Replicate, Settings, matches, octets, seconds
from tailrace.spark.jobs.tier import tier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAUSE_S: Final = 1.0  # before a job that failed is started again; then twice as long each time
PAUSE_S_MAX: Final = 60.0
CALM_S: Final = 60.0  # after so long without failure the pause is short again
LEAVE_S: Final = 20.0  # how long jobs may finish what they do when all is to stop
POOL: Final = "spark.scheduler.pool"

Work = Callable[[threading.Event], Any]


class Worker:
    """A job in a thread of its own, again and again until it is stopped."""

    def __init__(
        self, spark: SparkSession, name: str, kind: str, work: Work, told: Told, every_s: float | None
    ) -> None:
        self.name = name
        self.kind = kind
        self.stop = threading.Event()
        self._spark = spark
        self._work = work
        self._told = told
        self._every_s = every_s
        self._pause_s = PAUSE_S
        self._thread = _thread(self._run, name)
        self._thread.start()

    def _run(self) -> None:
        self._spark.sparkContext.setLocalProperty(POOL, self.name)
        while not self.stop.is_set():
            began = time.monotonic()
            try:
                self._work(self.stop)
            except Exception as error:  # whatever it is: one job must not end the others, and it is told
                if self.stop.is_set():
                    break  # Spark was stopped below it
                self._say(progress.RETRYING, explain(error))
                self._wait(began)
            else:
                self._pause_s = PAUSE_S
                self.stop.wait(PAUSE_S if self._every_s is None else self._every_s)
        self._say(progress.STOPPED)

    def _wait(self, began: float) -> None:
        if time.monotonic() - began > CALM_S:
            self._pause_s = PAUSE_S
        self.stop.wait(self._pause_s)
        self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)

    def _say(self, state: str, message: str = "") -> None:
        self._told(Progress(job=self.name, kind=self.kind, state=state, message=message, at_ms=int(time.time() * 1000)))

    def ended(self, within_s: float = 0.0) -> bool:
        """Whether it has come to its end; waits so long for that."""
        self._thread.join(within_s)
        return not self._thread.is_alive()


def _thread(work: Callable[[], None], name: str) -> threading.Thread:
    from pyspark import InheritableThread  # it gives its JVM thread back when it ends

    made: threading.Thread = InheritableThread(target=work)
    made.name, made.daemon = name, True
    return made


def run(
    spark: SparkSession,
    *,
    settings: Settings | None = None,
    url: str | None = None,
    token: str | None = None,
    on_progress: Told | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Run the jobs of the settings until `stop` is set. A server that is not there at the start is an error; later it
    is waited for."""
    settings = settings or Settings()
    at = url or settings.url
    with Client(at, token=token) as client:
        client.jobs()  # whoever has a wrong URL or token hears of it now
        Pipeline(spark, client, settings, at, token, on_progress or nobody).follow(stop or threading.Event())


class Pipeline:
    """The jobs of one application, and who watches over them."""

    def __init__(
        self, spark: SparkSession, client: Client, settings: Settings, url: str, token: str | None, told: Told
    ) -> None:
        self._spark = spark
        self._client = client
        self._settings = settings
        self._url = url
        self._token = token
        self._told = told
        self._workers: dict[tuple[str, str], Worker] = {}  # by kind, and name as the job has it

    def follow(self, stop: threading.Event) -> None:
        """Until told to stop; then all of them end what they do, within a time."""
        try:
            self._start_all()
            while not stop.is_set():
                try:
                    self._look_at_views()
                    self._start_snapshots()
                except (Unavailable, TooMany) as error:
                    # The jobs that run notice by themselves; which views there are is asked again.
                    self._told(Progress(job="pipeline", kind="run", state=progress.RETRYING, message=str(error)))
                stop.wait(self._settings.views.poll_s)
        finally:
            self._end()

    def _start(self, kind: str, name: str, work: Work, every_s: float | None = None) -> None:
        if (kind, name) not in self._workers:
            self._workers[kind, name] = Worker(self._spark, name, kind, work, self._told, every_s)

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
        return {"url": self._url, "token": self._token, "on_progress": self._told}

    def _tier(self, stop: threading.Event) -> None:
        asked = self._settings.tier
        tier(
            self._spark,
            tables=asked.tables,
            topics=asked.topics,
            streams=asked.streams,
            interval_s=asked.interval_s,
            batch_records=asked.batch_records,
            age_s=asked.age_s,
            stop=stop,
            **self._server,
        )

    def _compact(self, stop: threading.Event) -> None:
        from tailrace.spark.jobs.compact import compact

        asked = self._settings.compact
        compact(
            self._spark,
            target_bytes=octets(asked.target_bytes, "compact.target_bytes"),
            retention=asked.retention,
            vacuum=asked.vacuum,
            stop=stop,
            **self._server,
        )

    def _snapshot(self, table: str) -> Work:
        from tailrace.spark.jobs.snapshot import snapshot

        return lambda stop: snapshot(self._spark, table=table, **self._server)

    def _replicate(self, asked: Replicate) -> tuple[str, Work]:
        """The name of the job, and its work."""
        from tailrace.spark.jobs.replicate import kind_of, replicate

        name = asked.name or f"{asked.table}/{kind_of(asked.to)}"  # a URL that nothing can be copied to is told at once
        token = asked.target_token or os.environ.get("TAILRACE_TARGET_TOKEN")
        more: dict[str, Any] = {"max_records": asked.max_records, "interval_s": asked.interval_s}
        return f"replicate/{name}", lambda stop: replicate(
            self._spark,
            table=asked.table,
            to=asked.to,
            name=asked.name,
            target_table=asked.target_table,
            target_token=token,
            checkpoint=asked.checkpoint,
            stop=stop,
            **{name: value for name, value in more.items() if value is not None},
            **self._server,
        )

    def _view(self, name: str) -> Work:
        from tailrace.spark.jobs.view import view

        interval_s = self._settings.views.interval_s
        return lambda stop: view(self._spark, name, interval_s=interval_s, stop=stop, **self._server)

    # -- those that come and go

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
        """Start the snapshots of tables that are new; of one that was dropped there is nothing to do."""
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
        until = time.monotonic() + LEAVE_S
        for worker in self._workers.values():
            worker.ended(max(until - time.monotonic(), 0.0))
        if not all(worker.ended() for worker in self._workers.values()):
            self._spark.sparkContext.cancelAllJobs()  # what was not committed is done again by the next run
            for worker in self._workers.values():
                worker.ended(1.0)
