"""`compact`: merges small files of cold storage, removes history past its retention, and deletes unlisted files.

Entries that the server no longer has, because they were pruned, cleared or forgotten, are removed from the files too.
Logs that the server does not know stay as they are: the history of a dropped table may still be wanted.

The driver plans and commits; executors read and write: a task for each merge, and for each file with old entries. The
tasks run in waves of a few for each core. A wave is one commit of each Delta table, which names the files it replaces,
so appends of `tier` are not affected, and of two compactions at once one has to plan again. Retention is reported to
the server first: from then on no reader requests the entries that are dropped next, and a crash between the two leaves
rows that the next run drops.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import limits
from tailrace.client import Client
from tailrace.cold import compacting
from tailrace.cold.compacting import RewriteStep
from tailrace.cold.merging import ColdFile, FileCursor, Vanished, merge
from tailrace.cold.reading import ColdListing, listing
from tailrace.cold.store import Store
from tailrace.cold.writing import WrittenFile, database_of
from tailrace.errors import Corrupt, Error, Fenced, Invalid, NotFound, Unavailable
from tailrace.spark.jobs import progress
from tailrace.spark.jobs.loop import Pauses, reported
from tailrace.spark.jobs.progress import Meter, ProgressCallback
from tailrace.spark.jobs.settings import TARGET_BYTES, VACUUM, VACUUM_S_MIN, seconds
from tailrace.spark.jobs.tasks import run_encoded, task_error, waves

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRIES: Final = 5  # attempts while another compaction commits first


class Compacted(msgspec.Struct, frozen=True):
    """The result of a run of `compact`."""

    merged: int = 0  # files
    written: int = 0  # files that they became
    rows: int = 0  # in those
    forgotten: int = 0  # rows past their retention
    removed: int = 0  # files that no commit listed


class CompactTask(msgspec.Struct, frozen=True):
    """Rewrite the files of a step, or find how old the entries of a file are."""

    step: RewriteStep | None = None
    drops: bool = False  # of the step's one file, only old rows are dropped
    file: ColdFile | None = None


class CompactTaskResult(msgspec.Struct, frozen=True):
    """The result of a task, or its error."""

    written: list[WrittenFile] | None = None  # None: there was nothing to drop
    ages: list[tuple[int, int | None, int]] = []  # log, the first position within retention, where the rows end
    error: str | None = None
    code: str = ""


def compact(
    spark: SparkSession,
    *,
    url: str,
    token: str | None = None,
    places: Sequence[str] = (),
    target_bytes: int = TARGET_BYTES,
    retention: str | None = None,
    vacuum: str = VACUUM,
    alone: bool = False,
    options: dict[str, str] | None = None,
    on_progress: ProgressCallback | None = None,
    stop: threading.Event | None = None,
) -> Compacted:
    """Compact the named Delta tables of cold storage, or all of them.

    Small files become files of about `target_bytes`. With `retention` ("365d") older history is removed. Files that no
    commit has listed for as long as `vacuum` are deleted; readers that began before that may still need them. Less than
    an hour is refused, unless `alone` says that nothing else runs: files that `tier` is about to commit would be
    deleted.
    """
    kept_s = None if retention is None else seconds(retention, "retention")
    age_s = seconds(vacuum, "vacuum", zero=True)
    if age_s < VACUUM_S_MIN and not alone:
        raise Invalid(
            f"vacuum {vacuum!r} may delete files that other jobs are about to commit; give 1h or more, or set alone"
        )
    if target_bytes < 1:
        raise Invalid(f"target_bytes must be 1 or more, not {target_bytes}")
    with Client(url, token=token) as client:
        cold = client.cold()
        if cold["url"] is None:
            raise Unavailable("the server has no cold storage; set its cold.url", code="NO_COLD_STORAGE")
        meter = Meter("compact", "compact", on_progress, server=client, source="cold", target=cold["url"])
        store = Store(cold["url"], options)
        job = _Compaction(spark, client, store, cold, meter, stop or threading.Event())
        Pauses(client, meter.job).refuse()
        with reported(meter.say):
            known = _chosen(cold, places)
            check_owner(store, known, cold["database"])
            meter.say(progress.RUNNING)
            if kept_s is not None:
                # The earlier of the two clocks: history that is removed because one is ahead cannot be restored.
                now_ms = min(int(time.time() * 1000), cold.get("time_ms", limits.POSITION_MAX))
                job.forget(known, now_ms - kept_s * 1000)
            job.merge(known, target_bytes)
            job.clear(known)
            job.vacuum(known, age_s // 3600)
        meter.say(progress.DONE)
        return job.done


def _chosen(cold: dict[str, Any], places: Sequence[str]) -> list[str]:
    there = [each["name"] for each in cold["places"]]
    for place in places:
        if place not in there:
            listed = ", ".join(there[:10]) or "none"
            raise NotFound(f"cold storage has no Delta table {place!r}; it has {listed}", code="PLACE_NOT_FOUND")
    return list(places) or there


def check_owner(store: Store, places: Sequence[str], database: str) -> None:
    """Raise if a Delta table belongs to another database: rows are dropped by log number, and its logs have other
    numbers."""
    for place in places:
        delta = store.delta(place)
        owner = database if delta is None else database_of(delta)
        if owner != database:
            whose = "that Tailrace did not make" if owner is None else f"of database {owner}"
            raise Invalid(
                f"{store.uri(place)} is a Delta table {whose}, and the server has database {database}; give each "
                "database its own URL"
            )


class _Compaction:
    def __init__(
        self,
        spark: SparkSession,
        client: Client,
        store: Store,
        cold: dict[str, Any],
        meter: Meter,
        stop: threading.Event,
    ) -> None:
        self._spark = spark
        self._client = client
        self._store = store
        self._tiered = {
            (place["name"], log["log"]): (log["start"], log["tiered"])
            for place in cold["places"]
            for log in place["logs"]
        }
        self._meter = meter
        self._stop = stop
        self.done = Compacted()

    # -- small files

    def merge(self, places: Sequence[str], target_bytes: int) -> None:
        """Merge small files, in all Delta tables at once."""
        self._rewrite(places, lambda place: self._plan(place, target_bytes), target_bytes)

    def _rewrite(
        self, places: Sequence[str], planned: Callable[[str], list[RewriteStep]], target_bytes: int, drops: bool = False
    ) -> None:
        """Run the planned steps of these Delta tables as tasks, and commit them, a wave at a time. Where another
        compaction committed first, plan again."""
        left = list(places)
        for _ in range(TRIES):
            steps = [step for place in left for step in planned(place)]
            fenced: dict[str, None] = {}
            for wave in waves(self._spark, steps):
                if self._stop.is_set():
                    return
                fenced |= dict.fromkeys(self._run_wave(wave, target_bytes, drops))
            left = list(fenced)
            if not left:
                return
        raise Unavailable(f"another compaction of {left[0]!r} keeps committing first; let it finish")

    def _run_wave(self, steps: Sequence[RewriteStep], target_bytes: int, drops: bool) -> Iterator[str]:
        """Run these steps, and commit them with one commit for each Delta table. Those where steps were fenced off."""
        began = time.monotonic()
        # A file of which nothing is left is only taken from the list: there is nothing to do for an executor.
        whole = [drops and compacting.is_wholly_old(step) for step in steps]
        tasks = [CompactTask(step=step, drops=drops) for step, gone in zip(steps, whole, strict=True) if not gone]
        answers = iter(_run_tasks(self._spark, tasks, self._store, target_bytes))
        done: dict[str, list[tuple[RewriteStep, list[WrittenFile]]]] = {}
        failed: Error | None = None
        for step, gone in zip(steps, whole, strict=True):
            answer = CompactTaskResult(written=[]) if gone else next(answers)
            if answer.error is not None:
                error = task_error(answer.error, answer.code)
                if isinstance(error, Fenced):
                    yield step.place
                else:
                    failed = failed or error
            elif answer.written is not None:
                done.setdefault(step.place, []).append((step, answer.written))
        for place, rewritten in done.items():  # the others of the wave are not lost with one that failed
            left_out = compacting.replace_all(self._store, place, rewritten, metadata=_facts(rewritten))
            if left_out:
                yield place
            self._count([each for each in rewritten if each[0] not in left_out], began, drops)
        if failed is not None:
            raise failed

    def _plan(self, place: str, target_bytes: int) -> list[RewriteStep]:
        return compacting.plan(self._store, place, file_bytes=target_bytes, starts=self._starts(place))

    def _starts(self, place: str) -> dict[int, int]:
        """The first position of each log according to the server; no reader requests earlier ones."""
        return {log: start for (of, log), (start, _) in self._tiered.items() if of == place and start > 0}

    def _count(self, rewritten: Sequence[tuple[RewriteStep, list[WrittenFile]]], began: float, drops: bool) -> None:
        before = sum(step.rows for step, _ in rewritten)
        rows = sum(file.rows for _, written in rewritten for file in written)
        dropped = sum(step.rows - sum(file.rows for file in written) for step, written in rewritten if step.starts)
        done = self.done
        self.done = msgspec.structs.replace(done, forgotten=done.forgotten + dropped)
        if not drops:
            self.done = msgspec.structs.replace(
                self.done,
                merged=done.merged + sum(len(step.files) for step, _ in rewritten),
                written=done.written + sum(len(written) for _, written in rewritten),
                rows=done.rows + rows,
            )
        self._meter.batch(before if drops else rows, time.monotonic() - began)

    # -- retention

    def forget(self, places: Sequence[str], before_ms: int) -> None:
        """Drop older entries, after the server was informed."""
        for _ in range(TRIES):
            try:
                starts = self._old(places, before_ms)
                break
            except Fenced:
                continue  # another compaction replaced a file that was to be read
        else:
            raise Unavailable("another compaction keeps committing first; let it finish")
        for place, known in starts.items():
            self._client.forget(place, known)
        self._drop(starts)

    def clear(self, places: Sequence[str]) -> None:
        """Drop entries that the server no longer has from files that were not merged."""
        self._drop({place: known for place in places if (known := self._starts(place))})

    def _drop(self, starts: dict[str, dict[int, int]]) -> None:
        """Drop the entries below these positions: a task for each file that has other entries too."""
        self._rewrite(
            list(starts), lambda place: compacting.plan_drops(self._store, place, starts[place]), 0, drops=True
        )

    def _old(self, places: Sequence[str], before_ms: int) -> dict[str, dict[int, int]]:
        """By Delta table, up to where each log is older."""
        found: dict[str, dict[int, tuple[int | None, int]]] = {}
        read = [file for place in places for file in _old_files(self._store, place, before_ms)]
        for wave in waves(self._spark, read):
            answers = _run_tasks(self._spark, [CompactTask(file=file) for file in wave], self._store, before_ms)
            for file, answer in zip(wave, answers, strict=True):
                if answer.error is not None:
                    raise task_error(answer.error, answer.code)
                for each in answer.ages:
                    _note(found.setdefault(file.place, {}), each)
        return {
            place: {
                log: self._bounded(place, log, end if young is None else young) for log, (young, end) in logs.items()
            }
            for place, logs in found.items()
        }

    def _bounded(self, place: str, log: int, start: int) -> int:
        """The position, at most the mark of the server; of a log that the server does not know, as it is."""
        known = self._tiered.get((place, log))
        return start if known is None else min(start, known[1])

    # -- unlisted files

    def vacuum(self, places: Sequence[str], hours: int) -> None:
        for place in places:
            if self._stop.is_set():
                return
            removed = compacting.vacuum(self._store, place, hours=hours)
            self.done = msgspec.structs.replace(self.done, removed=self.done.removed + len(removed))


def _old_files(store: Store, place: str, before_ms: int) -> list[ColdFile]:
    """The files that may have older entries."""
    delta = store.delta(place)
    if delta is None:
        return []
    with store.wrap_errors(place):
        files = ColdListing(place, delta).files
        listed = pa.table(delta.get_add_actions(flatten=True))
    if "min.timestamp" not in listed.column_names:
        return files
    moments = pc.cast(listed["min.timestamp"], pa.timestamp("us", "UTC"))
    old = pc.fill_null(pc.less(moments, _moment(before_ms)), True)
    paths = set(listed.filter(old)["path"].to_pylist())
    return [file for file in files if file.path in paths]


def _note(found: dict[int, tuple[int | None, int]], age: tuple[int, int | None, int]) -> None:
    """Add what one file has of a log to what others have."""
    log, young, end = age
    first, last = found.get(log, (None, end))
    found[log] = (_least(first, young), max(last, end))


def _facts(rewritten: Sequence[tuple[RewriteStep, list[WrittenFile]]]) -> dict[str, Any]:
    """The metadata of a commit."""
    starts = {str(log): start for step, _ in rewritten for log, start in step.starts.items()}
    files = sum(len(step.files) for step, _ in rewritten)
    return {"files": files, "starts": starts} if starts else {"files": files}


def _moment(at_ms: int) -> pa.Scalar:
    return pa.scalar(at_ms * 1000, pa.timestamp("us", "UTC"))


def _least(*positions: int | None) -> int | None:
    return min((each for each in positions if each is not None), default=None)


# -- in executors


def _run_tasks(spark: SparkSession, tasks: list[CompactTask], store: Store, number: int) -> list[CompactTaskResult]:
    """Run the tasks in executors; their results, in order. `number` is the target size, or the time in ms."""
    return run_encoded(spark, tasks, lambda _, task: _run_task(task, store, number), CompactTask, CompactTaskResult)


def _run_task(task: CompactTask, store: Store, number: int) -> CompactTaskResult:
    try:
        if task.file is not None:
            return CompactTaskResult(ages=ages(store, task.file, number))
        assert task.step is not None
        if task.drops:
            return CompactTaskResult(written=compacting.drop(store, task.step))
        return CompactTaskResult(written=compacting.rewrite(store, task.step, file_bytes=number))
    except Error as error:
        return CompactTaskResult(error=str(error), code=error.code)


def ages(store: Store, file: ColdFile, before_ms: int) -> list[tuple[int, int | None, int]]:
    """For each log in a file: where the first entry that is not older begins (None: there is none); where rows end."""
    found: dict[int, tuple[int | None, int]] = {}
    try:
        for table, _ in merge(
            [FileCursor(store, file, ["log", "position", "next", "timestamp"], None)], ["log", "position"]
        ):
            older = pc.less(table["timestamp"], _moment(before_ms))
            young = pc.if_else(older, pa.scalar(None, pa.int64()), table["position"])
            grouped = table.append_column("young", young).group_by("log")
            for row in grouped.aggregate([("young", "min"), ("next", "max")]).to_pylist():
                first, end = found.get(row["log"], (None, row["next_max"]))
                found[row["log"]] = (_least(first, row["young_min"]), max(end, row["next_max"]))
    except Vanished as vanished:
        path = f"{store.uri(file.place)}/{file.path}"
        if any(each.path == file.path for each in listing(store, file.place).files):
            raise Corrupt(f"the cold file {path} is missing; restore it from a copy of cold storage") from vanished
        raise Fenced(f"the cold file {path} was replaced by another compaction; try again") from vanished
    return [(log, young, end) for log, (young, end) in found.items()]
