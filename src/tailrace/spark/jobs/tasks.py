"""Tasks in executors; and those of `tier`, which read ranges of logs from the server, and write files.

A job that has a list of things to do, such as files to merge, runs a task for each (`run_encoded`).
A task that fails returns its error as data, so that the driver can commit the other Delta tables and raise the error
with its code and message. No commit lists the files of a task that failed or ran twice; `compact` removes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.bulk.cold_rows import cold_batch
from tailrace.client import Client
from tailrace.cold import reading
from tailrace.cold.store import Store
from tailrace.cold.writing import WrittenFile, write_rows
from tailrace.errors import Corrupt, Error, Fenced, Forbidden, Invalid, NotFound, TooMany, Unavailable
from tailrace.spark.connection import PATIENCE_S, WAIT_MAX_S, WAIT_MIN_S
from tailrace.spark.jobs.ranges import Digest, RangeResult, TaskRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ANSWERS: Final = "number bigint, answer binary"
WAVE_TASKS: Final = 8  # for each core, in one Spark job
_KINDS: Final[dict[str, type[Error]]] = {kind.code: kind for kind in (Corrupt, Fenced, Forbidden, Invalid, NotFound)}
T = TypeVar("T")
R = TypeVar("R")
_TRANSIENT: Final = ("UNAVAILABLE", "CUT_OFF", "TOO_MANY", "COLD_STORAGE_FAILED")


class Task(msgspec.Struct, frozen=True):
    """Ranges that one executor copies to one Delta table."""

    place: str
    ranges: list[TaskRange]


class TaskResult(msgspec.Struct, frozen=True):
    """The files that a task wrote and the ranges that it read, or its error."""

    number: int
    files: list[WrittenFile] = []
    spans: list[RangeResult] = []
    kept: list[int] = []  # without `write`: the checksums of the same ranges in cold storage
    error: str | None = None
    code: str = ""


class TaskEndpoints(msgspec.Struct, frozen=True):
    """The URLs of the server and of cold storage, with the credentials for them."""

    url: str
    token: str | None
    cold: str
    options: dict[str, str] | None = None


def run_tasks(spark: SparkSession, tasks: list[Task], endpoints: TaskEndpoints, write: bool = True) -> list[TaskResult]:
    """Run the tasks in executors; their results, in order. Without `write`, compute the checksums of the ranges on the
    server and in cold storage."""
    return run_encoded(spark, tasks, lambda number, task: run_task(number, task, endpoints, write), Task, TaskResult)


def run_encoded(
    spark: SparkSession, tasks: Sequence[T], work: Callable[[int, T], R], takes: type[T], gives: type[R]
) -> list[R]:
    """Run `work` in executors with the number of each task and the task: a Spark task for each; the results, in order.
    The tasks travel encoded, so that an executor decodes only its own."""
    encoded = [msgspec.msgpack.encode(task) for task in tasks]

    def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                answer = msgspec.msgpack.encode(work(number, msgspec.msgpack.decode(encoded[number], type=takes)))
                yield pa.record_batch(
                    [pa.array([number], pa.int64()), pa.array([answer], pa.binary())], names=["number", "answer"]
                )

    if not encoded:
        return []
    task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] = run
    rows = spark.range(0, len(encoded), 1, len(encoded)).mapInArrow(task, _ANSWERS).collect()
    return [msgspec.msgpack.decode(bytes(row.answer), type=gives) for row in sorted(rows, key=lambda row: row.number)]


def waves(spark: SparkSession, tasks: Sequence[T]) -> Iterator[Sequence[T]]:
    """The tasks in groups of a few for each core: the results of a group are committed before the next one is run, so
    that the driver never holds more, and little is lost if it dies."""
    size = WAVE_TASKS * int(spark.sparkContext.defaultParallelism)
    for first in range(0, len(tasks), size):
        yield tasks[first : first + size]


def run_task(number: int, task: Task, endpoints: TaskEndpoints, write: bool) -> TaskResult:
    """Run one task in this process."""
    spans: list[RangeResult] = []
    store = Store(endpoints.cold, endpoints.options)
    try:
        with Client(endpoints.url, token=endpoints.token) as client:
            rows = (batch for part in task.ranges for batch in read(client, part, spans, write))
            if write:
                return TaskResult(number, write_rows(store, task.place, rows), spans)
            for _ in rows:
                pass
        return TaskResult(number, [], spans, [kept(store, task.place, part) for part in task.ranges])
    except Error as error:
        return TaskResult(number, error=str(error), code=error.code)


def kept(store: Store, place: str, part: TaskRange) -> int:
    """The checksum of a range in cold storage; Corrupt, with the name of the file, if entries are missing."""
    digest = Digest()
    columns = ["position", "next", "timestamp", "body"]
    found = reading.files(store, place, part.log, part.start, part.end)
    for batch in reading.read(store, found, part.log, part.start, part.end, columns):
        rows = batch.filter(batch.column("body").is_valid())  # only the first record of an entry has its body
        at_ms = pc.divide(rows.column("timestamp").cast(pa.int64()), 1_000)
        parts = [rows.column("position"), rows.column("next"), at_ms, rows.column("body")]
        digest.add(pa.record_batch(parts, names=["position", "next", "at_ms", "body"]))
    return digest.value()


def task_error(message: str, code: str) -> Error:
    """The error of a task, of the class that it was raised as."""
    return _KINDS.get(code, Unavailable if code in _TRANSIENT else Error)(message, code=code)


def read(client: Client, part: TaskRange, spans: list[RangeResult], convert: bool = True) -> Iterator[pa.RecordBatch]:
    """The rows of a range as they are stored in cold storage. At the end its result is added to `spans`."""
    first = at = None
    rows = 0
    digest = Digest()
    for entries in _entries(client, part):
        _check(entries, part, at)
        if first is None:
            first = entries.column("position")[0].as_py()
        at = entries.column("next")[-1].as_py()
        digest.add(entries)
        if convert:
            batch = cold_batch(part.kind, entries, **_facts(part))
            rows += batch.num_rows
            yield batch
    begun, ended = (part.start, part.start) if first is None or at is None else (first, at)
    spans.append(RangeResult(part.log, part.start, part.end, begun, ended, rows, digest.value()))


def _entries(client: Client, part: TaskRange) -> Iterator[pa.RecordBatch]:
    """The entries of a range. If the server goes away in the middle, wait for it and read the rest."""
    at, wait_s = part.start, WAIT_MIN_S
    until_s = time.monotonic() + PATIENCE_S
    while at < part.end:
        try:
            with client.arrow(**_named(part), offset=at, until=part.end, form="entries") as found:
                for entries in found:
                    if entries.num_rows:
                        yield entries
                        at = entries.column("next")[-1].as_py()
                        until_s, wait_s = time.monotonic() + PATIENCE_S, WAIT_MIN_S
            return
        except (Unavailable, TooMany):
            if time.monotonic() + wait_s > until_s:
                raise
            time.sleep(wait_s)
            wait_s = min(WAIT_MAX_S, wait_s * 2)


def _check(entries: pa.RecordBatch, part: TaskRange, at: int | None) -> None:
    """Raise unless the entries are of that log, and tile its positions from `at` on (if that is known)."""
    begins, ends = entries.column("position"), entries.column("next")
    if pc.any(pc.not_equal(entries.column("log"), part.log)).as_py():
        raise NotFound(f"{part.kind} {part.name!r} was dropped and recreated; list it again")
    if at not in (None, begins[0].as_py()) or not begins.slice(1).equals(ends.slice(0, len(ends) - 1)):
        raise Corrupt(
            f"the server did not send all entries of {part.kind} {part.name!r} after position {at}; run tailrace check"
        )


def _named(part: TaskRange) -> dict[str, Any]:
    named: dict[str, Any] = {part.kind: part.name}
    if part.label is not None:
        named["label"] = part.label
    return {**named, "partition": part.partition} if part.kind == "topic" else named


def _facts(part: TaskRange) -> dict[str, Any]:
    """Columns of the rows that do not come from the entries."""
    if part.kind == "stream":
        return {"stream": part.name, "content_type": part.content_type}
    return {"partition": part.partition} if part.kind == "topic" else {}
