"""What jobs run in: `reported` for all of them, and a loop for those that go on, or that `run` restarts; the streaming
query of `replicate`.

A job supplies its *step*. The loop repeats it until the job is done or is stopped. After a transient error, such as a
server that restarts, the step is repeated after a pause, which doubles with each failure in a row.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from tailrace.errors import Conflict, Error, NotFound, Unavailable
from tailrace.spark.failures import explain
from tailrace.spark.jobs import progress
from tailrace.spark.jobs.progress import REPORT_S, brief

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

PATIENCE_S: Final = 60.0  # how long a run with `once` waits for a server or target that is away
PAUSE_S: Final = 0.5  # before the first retry
PAUSE_S_MAX: Final = 15.0
STOP_S: Final = 10.0  # how long a batch may take to end when the job is stopped
LOOK_S: Final = 1.0  # how often the server is asked whether a job is paused
_POLL_S: Final = 0.05  # how often a running query is checked
# Messages of Spark about a server that is away, or about executors that are overloaded.
TRANSIENT: Final = ("cannot reach", "broke off", "try again", "failed to connect back")


@contextmanager
def reported(say: Callable[[str, str], None]) -> Iterator[None]:
    """Report an error of the job by `say`, and raise it."""
    try:
        yield
    except Exception as error:
        say(progress.FAILED, explain(error) if _is_of_spark(error) else brief(error))
        raise


def _is_of_spark(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


def spark_error(error: BaseException) -> Error:
    """An exception of Spark as an error of ours: one that may pass if the server was away, or executors overloaded."""
    message = explain(error)
    if any(text in message for text in TRANSIENT):
        return Unavailable(message)
    return Error(message, code="QUERY_FAILED")


@contextmanager
def spark_errors() -> Iterator[None]:
    """Raise exceptions of Spark as errors of ours."""
    try:
        yield
    except Exception as error:
        if not _is_of_spark(error):
            raise
        raise spark_error(error) from error


class PauseServer(Protocol):
    """The methods of a client that a `Pauses` uses."""

    def job(self, name: str) -> dict[str, Any]: ...

    def report_job(
        self, name: str, state: str, *, rows: int | None = None, message: str | None = None
    ) -> dict[str, Any]: ...


class Pauses:
    """Whether a job is paused, as the server knows it: asked now and then, by the job's thread or another."""

    def __init__(self, server: PauseServer, name: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._server = server
        self._clock = clock
        self._asked_s: float | None = None
        self._found: dict[str, Any] = {}
        self._asking = threading.Lock()

    def paused(self) -> bool:
        """Whether the job is paused. While the server is away, what it said last; a job that it does not know yet is
        not paused."""
        with self._asking:
            now_s = self._clock()
            if self._asked_s is None or now_s - self._asked_s >= LOOK_S:
                self._asked_s = now_s
                try:
                    self._found = self._server.job(self.name)
                except NotFound:
                    self._found = {}
                except Error:
                    pass
            return bool(self._found.get("paused"))

    def refuse(self) -> None:
        """Raise `Conflict` if the job is paused: for jobs that run once, which would never end."""
        if self.paused():
            by, at = self._found.get("paused_by"), self._found.get("paused_at")
            raise Conflict(
                f"job {self.name!r} was paused by {by!r} at {at}; run tailrace pipeline resume {self.name} first",
                code="JOB_PAUSED",
            )

    def report(self, state: str) -> None:
        """Report a state, for a job that does not run and so does not report itself."""
        with suppress(Error):
            self._server.report_job(self.name, state, message="")

    def hold(self, stop: threading.Event, say: Callable[[str], None]) -> None:
        """Return when the job is not paused, or is stopped. Reports `PAUSED` by `say`, again and again: whoever looks
        at the job sees that its program is there."""
        said_s: float | None = None
        while not stop.is_set() and self.paused():
            now_s = self._clock()
            if said_s is None or now_s - said_s >= REPORT_S:
                say(progress.PAUSED)
                said_s = now_s
            stop.wait(LOOK_S)


class JobStep(Protocol):
    """A job, as the loop sees it."""

    @property
    def done(self) -> object:
        """The result so far. Errors count as failures in a row only while it stays the same."""

    def step(self) -> float | None:
        """Do the next part of the work; the seconds to wait before the next step, None: the job is done."""

    def is_transient(self, error: Error) -> bool:
        """Whether the step may succeed if it is repeated."""

    def retry(self, error: Error) -> None:
        """Report the error, and prepare to repeat the step."""


def run_steps(
    job: JobStep,
    stop: threading.Event,
    *,
    patience_s: float | None,
    pauses_s: tuple[float, float] = (PAUSE_S, PAUSE_S_MAX),
    hold: Callable[[], None] = lambda: None,
) -> None:
    """Repeat the job's step until it is done or `stop` is set. Errors in a row are raised after `patience_s`; None:
    never, as long as they are transient. `pauses_s`: before the first retry, and at most. `hold` is called before each
    step, and returns when the job is not paused."""
    first_s, most_s = pauses_s
    pause_s, failing_since_s = first_s, None
    while True:
        hold()
        if stop.is_set():
            return
        before = job.done
        try:
            wait_s = job.step()
        except Error as error:
            now_s = time.monotonic()
            if failing_since_s is None or job.done != before:
                pause_s, failing_since_s = first_s, now_s
            if not job.is_transient(error) or (patience_s is not None and now_s - failing_since_s > patience_s):
                raise
            job.retry(error)
            stop.wait(pause_s)
            pause_s = min(pause_s * 2, most_s)
            continue
        if wait_s is None:
            return
        pause_s, failing_since_s = first_s, None
        stop.wait(wait_s)


class BatchQuery:
    """A streaming query that calls `apply` with each batch. An error of `apply` is raised as it is, not in Spark's
    words."""

    def __init__(
        self, apply: Callable[[DataFrame], None], stop: threading.Event, paused: Callable[[], bool] = lambda: False
    ) -> None:
        self._apply = apply
        self._paused = paused
        self._stop = stop
        self._busy = threading.Lock()  # held during a batch
        self._ending = False
        self._error: Exception | None = None  # of the last batch

    def run(self, frame: DataFrame, *, once: bool, interval_s: float, checkpoint: str | None) -> None:
        """Run the query until it has read everything that is there now (`once`), or until the job is stopped or
        paused."""
        with tempfile.TemporaryDirectory(prefix="tailrace-", ignore_cleanup_errors=True) as folder:
            writer = frame.writeStream.foreachBatch(self._batch).option("checkpointLocation", checkpoint or folder)
            if once:
                writer = writer.trigger(availableNow=True)
            else:
                writer = writer.trigger(processingTime=f"{max(1, round(interval_s * 1000))} milliseconds")
            self._error, self._ending = None, False
            query = writer.start()
            try:
                self._wait(query)
            finally:
                self._ending = True
                # A batch in progress may finish: Spark prints the whole stack of one that is interrupted.
                if self._busy.acquire(timeout=STOP_S):
                    self._busy.release()
                query.stop()

    def _batch(self, frame: DataFrame, number: int) -> None:
        with self._busy:
            try:
                if self._ending:
                    raise Unavailable("the job is being stopped")
                self._apply(frame)
            except Exception as error:
                self._error = error
                raise

    def _wait(self, query: StreamingQuery) -> None:
        while query.isActive and not self._stop.is_set():
            if self._paused():
                return
            self._stop.wait(_POLL_S)
        if self._stop.is_set():
            return
        if isinstance(self._error, Error):
            raise self._error
        failed = query.exception()
        if failed is not None:
            raise spark_error(failed) from failed
