"""`tier`: copies logs to cold storage, and then moves the mark below which the hot log may be trimmed.

Theory of operation
-------------------
The server's mark is the only cursor. A batch of a Delta table is

    1. planned     [mark, to) of each of its logs, about `batch_records` in all;
    2. copied      by tasks of Spark's executors, which read the entries from the server and write Parquet files;
    3. committed   to the Delta table, with the next generation as application transaction and the ranges as metadata;
    4. marked      on the server, which compares and sets generation and marks.

A round does this for all Delta tables that have a batch: it asks the server about all logs in one request, and how far
the batches reach in another, copies them in one Spark job, and commits several Delta tables at a time.

If two drivers do the same batch, one commits; no commit lists the other's files. If a driver dies between 3 and 4, the
Delta table is one generation ahead of the server. The next driver finishes that batch from the metadata of the commit
and does not repeat it. Before that it compares the checksums in the commit with those of the files, which may have been
lost since, and of the server: one that was restored from an older backup has other entries at these positions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import msgspec

from tailrace.client import Client
from tailrace.client.targets import LogSource
from tailrace.cold.schemas import SCHEMAS
from tailrace.cold.store import Store
from tailrace.cold.writing import WrittenFile, commit, committed_metadata, last_generation, paths_of
from tailrace.errors import (
    Conflict,
    Corrupt,
    Error,
    Forbidden,
    Invalid,
    NotFound,
    TooMany,
    Unauthenticated,
    Unavailable,
)
from tailrace.spark.jobs import progress
from tailrace.spark.jobs.loop import LOOK_S, PATIENCE_S, run_steps
from tailrace.spark.jobs.progress import Meter, ProgressCallback, brief
from tailrace.spark.jobs.ranges import RangeResult, TaskRange, split, tiled
from tailrace.spark.jobs.settings import AGE_S, BATCH_RECORDS, INTERVAL_S, is_pattern, matches
from tailrace.spark.jobs.tasks import Task, TaskEndpoints, TaskResult, run_tasks, task_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP: Final = "tier"  # the application of Delta transactions: one sequence of generations in each Delta table
LIST_S: Final = 30.0  # how often tables, topics and streams are listed
_GONE: Final = ("NOT_FOUND", "TABLE_NOT_FOUND", "TOPIC_NOT_FOUND", "STREAM_NOT_FOUND", "GONE", "OFFSET_TRIMMED")
KINDS: Final = ("table", "topic", "stream")
COMMITS_MAX: Final = 16  # Delta tables that are committed to at the same time

RunTasks: TypeAlias = Callable[[list[Task], TaskEndpoints, bool], list[TaskResult]]


class Tiered(msgspec.Struct, frozen=True):
    """The result of a run of `tier`."""

    rows: int = 0
    files: int = 0
    bytes: int = 0
    commits: int = 0


class TierSource(msgspec.Struct, frozen=True):
    """A table, topic or stream, as the server describes it."""

    kind: str
    name: str
    content_type: str | None
    partitions: list[dict[str, Any]]  # partition, log, tiered, next
    label: str | None = None  # of a table: which of its change streams


class ColdTableState(msgspec.Struct, frozen=True):
    """A Delta table of cold storage, with those of its sources that this driver tiers."""

    name: str
    generation: int
    database: str
    cold: str
    sources: list[TierSource]

    @property
    def lag(self) -> int:
        return sum(each["next"] - each["tiered"] for member in self.sources for each in member.partitions)


class Settled(msgspec.Struct, frozen=True):
    """A batch that was committed and marked."""

    rows: int
    files: int
    bytes: int
    positions: int


class TierBatch(msgspec.Struct, frozen=True):
    """The next ranges to copy to a Delta table, at most one of each log."""

    place: ColdTableState
    ranges: list[TaskRange]
    full: bool  # there is more than this


def tier(
    spark: SparkSession,
    *,
    url: str,
    token: str | None = None,
    tables: Sequence[str] = (),
    topics: Sequence[str] = (),
    streams: Sequence[str] = (),
    all: bool = False,  # noqa: A002
    once: bool = False,
    interval_s: float = INTERVAL_S,
    batch_records: int = BATCH_RECORDS,
    age_s: float = AGE_S,
    options: dict[str, str] | None = None,
    on_progress: ProgressCallback | None = None,
    stop: threading.Event | None = None,
) -> Tiered:
    """Tier the named tables, topics and streams (`*` in a name stands for anything), or `all` that there are.

    With `once`, tier everything that is there now; else run until `stop` is set: a full batch is tiered immediately, a
    smaller one when it is `age_s` old. `options` configure the object store, in addition to environment variables.
    """
    patterns = {"table": tuple(tables), "topic": tuple(topics), "stream": tuple(streams)}
    if all:
        patterns = dict.fromkeys(KINDS, ("*",))
    if not any(patterns.values()):
        raise Invalid("there is nothing to tier; name tables, topics or streams, or set all")
    if batch_records < 1:
        raise Invalid(f"batch_records must be 1 or more, not {batch_records}")
    with Client(url, token=token) as client:
        driver = TierDriver(
            client,
            partial(run_tasks, spark),
            patterns,
            endpoints=TaskEndpoints(url, token, "", options),
            tasks=spark.sparkContext.defaultParallelism,
            batch_records=batch_records,
            age_s=age_s,
            on_progress=on_progress,
        )
        ending = stop or threading.Event()
        run_steps(_TierJob(driver, once, interval_s), ending, patience_s=PATIENCE_S if once else None)
        driver.say(progress.STOPPED if ending.is_set() or not once else progress.DONE)
        return driver.done


class TierDriver:
    """Plans batches, commits and marks them. Its state is a cache: another driver can take over at any time."""

    def __init__(
        self,
        client: Client,
        run: RunTasks,
        patterns: Mapping[str, tuple[str, ...]],
        *,
        endpoints: TaskEndpoints,
        tasks: int = 1,
        batch_records: int = BATCH_RECORDS,
        age_s: float = AGE_S,
        on_progress: ProgressCallback | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._run_tasks = run
        self._patterns = patterns
        self._endpoints = endpoints
        self._tasks = tasks
        self._batch_records = batch_records
        self._age_s = age_s
        self._on_progress = on_progress
        self._clock = clock
        self._attached: dict[tuple[str, str], None] = {}  # in order
        self._unfinished: dict[tuple[str, str], None] = {}  # table and label of change streams with untiered entries
        self._stores: dict[str, Store] = {}
        self._listed_at: float | None = None
        self._settled: dict[str, int] = {}  # by place, the generation in which Delta and the server agreed
        self._waiting: dict[str, float] = {}  # by place, since when less than a full batch waits
        self._meters: dict[str, Meter] = {}
        self._sizes: dict[str, int] = {}
        self.failures: dict[str, Error] = {}  # of the last round, by place
        self.done = Tiered()

    # -- sources

    def look(self) -> list[ColdTableState]:
        """The Delta tables and their sources, as the server has them now."""
        if self._listed_at is None or self._clock() - self._listed_at >= LIST_S:
            self._attach()
            self._find_unfinished()
            self._listed_at = self._clock()
        places: dict[str, ColdTableState] = {}
        attached = list(self._attached)
        for (kind, name), facts in zip(attached, self._described(attached), strict=True):
            if facts is None:
                if not any(is_pattern(each) for each in self._patterns[kind]):
                    self._client.logs(**_named(kind, name))  # raises the error that names it
                del self._attached[kind, name]  # it was dropped; its history stays where it is
            elif facts["cold"] is None:  # it was detached, or recreated
                del self._attached[kind, name]
            else:
                _add(places, kind, name, facts)
        self._add_unfinished(places)
        return list(places.values())

    def _described(self, names: Sequence[tuple[str, str]]) -> list[dict[str, Any] | None]:
        """All of them in one request, however many there are; None for each that does not exist."""
        return self._client.describe_logs([_source(kind, name) for kind, name in names]) if names else []

    def _find_unfinished(self) -> None:
        """Note the change streams with entries that are only in the hot log, also closed ones and those of dropped
        tables: retention keeps these entries until they are tiered."""
        if not self._patterns["table"]:
            return
        for place in self._client.cold()["places"]:
            for log in place["logs"]:
                table = log.get("table")
                if table is not None and log["tiered"] < log["next"] and matches(table, self._patterns["table"]):
                    self._unfinished[table, log["label"]] = None

    def _add_unfinished(self, places: dict[str, ColdTableState]) -> None:
        followed = {(each.name, each.label) for place in places.values() for each in place.sources}
        others = [each for each in self._unfinished if each not in followed]  # not the current ones
        if not others:
            return
        sources = [_source("table", table, label) for table, label in others]
        for (table, label), facts in zip(others, self._client.describe_logs(sources), strict=True):
            done = facts is None or all(each["tiered"] >= each["next"] for each in facts["partitions"])
            if facts is None or facts["cold"] is None or done:
                del self._unfinished[table, label]  # all of it is tiered, or it was detached
                continue
            _add(places, "table", table, facts)

    def _attach(self) -> None:
        """Attach what the patterns match and is not attached yet."""
        wanted: dict[tuple[str, str], bool] = {}  # and whether its name is given exactly
        for kind in KINDS:
            exact = [each for each in self._patterns[kind] if not is_pattern(each)]
            wanted |= {(kind, name): True for name in exact}
            if len(exact) < len(self._patterns[kind]):
                for name in _names(self._client, kind):
                    if matches(name, self._patterns[kind]):
                        wanted.setdefault((kind, name), False)
        new = [each for each in wanted if each not in self._attached]
        for (kind, name), facts in zip(new, self._described(new), strict=True):
            if facts is None or facts["cold"] is None:
                try:
                    self._client.attach(**_named(kind, name))
                except (NotFound, Conflict, Invalid):
                    if wanted[kind, name]:
                        raise
                    continue  # dropped meanwhile, or without a change stream; only exact names report that
            self._attached[kind, name] = None

    # -- one round

    def round(self, *, flush: bool = False, places: list[ColdTableState] | None = None) -> bool:
        """Copy all batches that are ready, as one Spark job; whether there may be more to do immediately.

        A failure in one Delta table does not hold up the others: it is in `failures`.
        """
        self.failures = {}
        again = False
        ready: list[ColdTableState] = []
        known = self.look() if places is None else places
        # Whether a commit was not marked is asked of cold storage, for all Delta tables at once.
        self._generations([place for place in known if self._settled.get(place.name) != place.generation])
        for place in known:
            if place.name in self.failures:
                continue
            try:
                if self._settled.get(place.name) != place.generation and self._finish(place):
                    again = True
                    continue
            except Error as error:
                self._failed(place, error)
                continue
            ready.append(place)
        batches = self._plan_all(ready, flush)
        again |= any(batch.full for batch in batches)
        tasks: list[Task] = []
        owners: list[str] = []
        for batch in batches:
            cut = split(batch.ranges, self._tasks)
            tasks += [Task(batch.place.name, ranges) for ranges in cut]
            owners += [batch.place.name] * len(cut)
        if tasks:
            began = self._clock()
            endpoints = self._endpoints_of(batches[0].place)
            found: dict[str, list[tuple[Task, TaskResult]]] = {}
            for each in self._run_tasks(tasks, endpoints, True):
                found.setdefault(owners[each.number], []).append((tasks[each.number], each))
            self._settle_all(batches, found, began)
        return again

    def _plan_all(self, places: Sequence[ColdTableState], flush: bool) -> list[TierBatch]:
        """The next batches. If a log cannot be read, Delta table by Delta table, to find which it is."""
        try:
            return self._plan(places, flush)
        except (Unavailable, TooMany, Unauthenticated):
            raise
        except Error:
            found: list[TierBatch] = []
            for place in places:
                try:
                    found += self._plan([place], flush)
                except Error as error:
                    self._failed(place, error)
            return found

    def _plan(self, places: Sequence[ColdTableState], flush: bool) -> list[TierBatch]:
        """The next batches of those Delta tables that have a full one, or one that is old enough. How far the batches
        reach is asked in one request."""
        asked: list[tuple[ColdTableState, TierSource, int]] = []
        for place in places:
            if not place.lag:
                self._waiting.pop(place.name, None)
                self._meter(place).say(progress.WAITING, lag=0)
                continue
            behind = [each for each in place.sources if any(part["tiered"] < part["next"] for part in each.partitions)]
            asked += [(place, member, max(self._batch_records // len(behind), 1)) for member in behind]
        if not asked:
            return []
        reached = self._client.advance_logs(
            [
                (
                    _source(member.kind, member.name, member.label),
                    {each["partition"]: each["tiered"] for each in member.partitions if each["tiered"] < each["next"]},
                    records,
                )
                for _, member, records in asked
            ]
        )
        planned: dict[str, TierBatch] = {}
        for (place, member, _), reach in zip(asked, reached, strict=True):
            batch = planned.setdefault(place.name, TierBatch(place, [], False))
            if reach is not None:  # else it was dropped since
                planned[place.name] = _extended(batch, member, reach)
        return [batch for batch in planned.values() if self._is_due(batch, flush)]

    def _is_due(self, batch: TierBatch, flush: bool) -> bool:
        place = batch.place
        since = self._waiting.setdefault(place.name, self._clock())
        if batch.full or flush or self._clock() - since >= self._age_s:
            return bool(batch.ranges)
        self._meter(place).say(progress.WAITING, lag=place.lag)
        return False

    def _settle_all(
        self, batches: Sequence[TierBatch], found: Mapping[str, list[tuple[Task, TaskResult]]], began: float
    ) -> None:
        """Commit and mark the batches, several Delta tables at a time: a commit is mostly waiting."""
        stores = {batch.place.name: self._store(batch.place) for batch in batches}  # made by this thread
        with ThreadPoolExecutor(COMMITS_MAX, thread_name_prefix="tier-commit") as threads:
            running = [
                (batch, threads.submit(self._settle, batch, found.get(batch.place.name, []), stores[batch.place.name]))
                for batch in batches
            ]
            for batch, result in running:
                place = batch.place
                try:
                    settled = result.result()
                    if settled is None:  # another driver committed this generation
                        self._finish(place)
                        continue
                except Error as error:
                    self._failed(place, error)
                    continue
                self._settled[place.name] = place.generation + 1
                self._count(place, settled, began)

    def _count(self, place: ColdTableState, settled: Settled, began: float) -> None:
        self._waiting.pop(place.name, None)
        done = self.done
        self.done = Tiered(
            done.rows + settled.rows, done.files + settled.files, done.bytes + settled.bytes, done.commits + 1
        )
        self._sizes[place.name] = self._sizes.get(place.name, 0) + settled.bytes
        lag = max(place.lag - settled.positions, 0)
        self._meter(place).batch(settled.rows, self._clock() - began, lag=lag, cold_bytes=self._sizes[place.name])

    def _settle(self, batch: TierBatch, found: list[tuple[Task, TaskResult]], store: Store) -> Settled | None:
        """Commit the files of a batch, and mark its ranges; None: another driver committed it. Runs in a thread, and
        changes nothing of the driver."""
        for _, each in found:
            if each.error is not None:
                raise task_error(each.error, each.code)
        place = batch.place
        spans: dict[int, list[RangeResult]] = {}
        for _, each in found:
            for span in each.spans:
                spans.setdefault(span.log, []).append(span)
        ranges = {part.log: (part.start, tiled(part.start, part.end, spans.get(part.log, []))) for part in batch.ranges}
        files = [file for _, each in found for file in each.files]
        generation = place.generation + 1
        carried = [
            [part, span.digest] for task, each in found for part, span in zip(task.ranges, each.spans, strict=True)
        ]
        outcome = commit(
            store,
            place.name,
            SCHEMAS[place.sources[0].kind],
            files,
            app=APP,
            generation=generation,
            database=place.database,
            metadata=msgspec.to_builtins({"ranges": ranges, "carried": carried}, str_keys=True),
            strict=True,
        )
        if outcome == "already":
            return None
        self._check_there(place, files, store)
        self._mark(place, generation, ranges)
        return Settled(
            sum(span.rows for each in spans.values() for span in each),
            len(files),
            sum(file.size for file in files),
            sum(end - start for start, end in ranges.values()),
        )

    @staticmethod
    def _check_there(place: ColdTableState, files: Sequence[WrittenFile], store: Store) -> None:
        """Raise unless the files that were just committed exist: a vacuum may have removed them."""
        with store.wrap_errors(place.name):
            found = store.filesystem().get_file_info([f"{place.name}/{file.path}" for file in files])
        for file, info in zip(files, found, strict=True):
            if info.size != file.size:
                raise Corrupt(
                    f"the cold file {store.uri(place.name)}/{file.path} was removed or changed before its range was "
                    "marked; nothing was trimmed"
                )

    # -- recovery

    def _generations(self, places: Sequence[ColdTableState]) -> None:
        """Note those Delta tables whose last generation is the server's, several at a time."""
        stores = [self._store(place) for place in places]
        with ThreadPoolExecutor(COMMITS_MAX, thread_name_prefix="tier-look") as threads:
            looking = [
                threads.submit(_committed_state, store, place.name, place.name not in self._sizes)
                for store, place in zip(stores, places, strict=True)
            ]
            for place, result in zip(places, looking, strict=True):
                try:
                    version, size = result.result()
                except Error as error:
                    self._failed(place, error)
                    continue
                if size is not None:
                    self._sizes[place.name] = size
                if version is None or version <= place.generation:
                    self._settled[place.name] = place.generation

    def _finish(self, place: ColdTableState) -> bool:
        """Mark a batch that is committed to Delta and not marked on the server; whether there was one."""
        store = self._store(place)
        version = last_generation(store, place.name, APP)
        if version is None or version <= place.generation:
            self._settled[place.name] = place.generation
            return False
        generation = place.generation + 1
        metadata = committed_metadata(store, place.name, APP, generation)
        assert metadata is not None, f"{place.name!r} has generation {version} and not {generation}"
        self._verify(place, metadata["carried"])
        self._mark(place, generation, msgspec.convert(metadata["ranges"], dict[int, tuple[int, int]], str_keys=True))
        self._settled[place.name] = generation
        return True

    def _verify(self, place: ColdTableState, carried: list[Any]) -> None:
        """Raise unless the files and the server both have the entries of that commit."""
        tasks = [Task(place.name, [msgspec.convert(part, TaskRange)]) for part, _ in carried]
        endpoints = self._endpoints_of(place)
        for each in self._run_tasks(tasks, endpoints, False) if tasks else ():
            if each.error is not None:
                if each.code in _GONE:
                    continue  # it was dropped or pruned since; the committed entries stay as history
                raise task_error(each.error, each.code)
            part, digest = tasks[each.number].ranges[0], carried[each.number][1]
            if each.kept[0] != digest:
                raise Corrupt(
                    f"{place.name!r} in cold storage has other entries in positions {part.start} to {part.end} of "
                    f"log {part.log} than were committed: its files were changed. Nothing was marked or trimmed; put "
                    "them back from a copy"
                )
            if each.spans[0].digest != digest:
                raise Corrupt(
                    f"{place.name!r} in cold storage has other entries of {part.kind} {part.name!r} in positions "
                    f"{part.start} to {part.end} than the server: was the server restored from an older backup? "
                    "Nothing was marked or trimmed; give the server another cold URL, or restore a later backup"
                )

    def _mark(self, place: ColdTableState, generation: int, ranges: Mapping[int, tuple[int, int]]) -> None:
        """Move the server's marks, unless another driver has moved them already."""
        try:
            self._client.tiered(place.name, generation, ranges)
        except Conflict as error:
            if error.code != "FENCED":
                raise
            now = {each["name"]: each["generation"] for each in self._client.cold()["places"]}
            if now.get(place.name, 0) < generation:
                raise

    # -- stores and progress

    def _store(self, place: ColdTableState) -> Store:
        """The store, shared by all batches: it remembers which commits are durable."""
        if place.cold not in self._stores:
            self._stores[place.cold] = Store(place.cold, self._endpoints.options)
        return self._stores[place.cold]

    def _endpoints_of(self, place: ColdTableState) -> TaskEndpoints:
        """The endpoints for tasks. The keys of a bucket are the driver's: the environment of a worker may have none."""
        options = self._store(place).storage_options
        return msgspec.structs.replace(self._endpoints, cold=place.cold, options=options or None)

    def _failed(self, place: ColdTableState, error: Error) -> None:
        self.failures[place.name] = error
        self._settled.pop(place.name, None)
        self._meter(place).say(progress.RETRYING, brief(error))

    def _meter(self, place: ColdTableState) -> Meter:
        meter = self._meters.get(place.name)
        if meter is None:
            meter = self._meters[place.name] = Meter(
                _job_name(place), "tier", self._on_progress, server=self._client, source=place.name,
                target=f"{place.cold.rstrip('/')}/{place.name}",
            )  # fmt: skip
        return meter

    def without_paused(self, places: list[ColdTableState], *, once: bool) -> list[ColdTableState]:
        """The Delta tables that are not paused; those that are report it. `once`: one that is paused is an error,
        since the job would not end."""
        paused = {each["name"] for each in self._client.jobs() if each.get("paused")}
        held = [place for place in places if _job_name(place) in paused]
        if held and once:
            raise Conflict(
                f"job {_job_name(held[0])!r} is paused; run tailrace pipeline resume {_job_name(held[0])} first",
                code="JOB_PAUSED",
            )
        for place in held:
            self._waiting.pop(place.name, None)
            self._meter(place).say(progress.PAUSED, lag=place.lag)
        return [place for place in places if _job_name(place) not in paused]

    def say(self, state: str, message: str = "") -> None:
        """Report this state for every Delta table."""
        for meter in self._meters.values():
            meter.say(state, message)


class _TierJob:
    """The step of the job: a round over all Delta tables."""

    def __init__(self, driver: TierDriver, once: bool, interval_s: float) -> None:
        self._driver = driver
        self._once = once
        self._interval_s = interval_s
        self._goal: dict[int, int] | None = None  # by log, where it ended at the first look

    @property
    def done(self) -> Tiered:
        return self._driver.done

    def step(self) -> float | None:
        driver = self._driver
        tables = driver.look()
        if self._goal is None:
            self._goal = {each["log"]: each["next"] for each in _partitions(tables)}
        elif self._once and all_done(tables, self._goal):
            return None
        active = driver.without_paused(tables, once=self._once)
        again = driver.round(flush=self._once, places=active)
        for failure in driver.failures.values():
            raise failure
        if again or self._once:
            return 0.0
        return self._interval_s if len(active) == len(tables) else min(self._interval_s, LOOK_S)

    def is_transient(self, error: Error) -> bool:
        """Whether to retry. A server that is not there at the first look is an error, not something to wait for."""
        if self._goal is None:
            return False
        if self._once:
            fenced = isinstance(error, Conflict) and error.code == "FENCED"  # another driver was faster
            return fenced or isinstance(error, Unavailable | TooMany)
        return self._of_one_table(error) or not isinstance(error, Unauthenticated | Forbidden)

    def retry(self, error: Error) -> None:
        if not self._of_one_table(error):
            self._driver.say(progress.RETRYING, brief(error))

    def _of_one_table(self, error: Error) -> bool:
        """Whether the error is of one Delta table, which has reported it already."""
        return any(error is failure for failure in self._driver.failures.values())


def _job_name(place: ColdTableState) -> str:
    return f"tier/{place.name}"


def all_done(places: Iterable[ColdTableState], goal: Mapping[int, int]) -> bool:
    """Whether every mark has reached its goal; logs that were dropped meanwhile count as done."""
    return all(each["tiered"] >= goal.get(each["log"], 0) for each in _partitions(places))


def _partitions(places: Iterable[ColdTableState]) -> Iterable[dict[str, Any]]:
    return (each for place in places for member in place.sources for each in member.partitions)


def _add(places: dict[str, ColdTableState], kind: str, name: str, facts: dict[str, Any]) -> None:
    """Add a source to the Delta table that it is tiered to."""
    cold = facts["cold"]
    place = places.setdefault(
        cold["place"], ColdTableState(cold["place"], cold["generation"], facts["database"], cold["url"], [])
    )
    place.sources.append(TierSource(kind, name, facts.get("content_type"), facts["partitions"], facts.get("label")))


def _extended(batch: TierBatch, member: TierSource, reach: Mapping[int, int]) -> TierBatch:
    """The batch with the ranges of one more source, up to where they reach."""
    ranges = list(batch.ranges)
    full = batch.full
    for each in member.partitions:
        end = reach.get(each["partition"], each["next"])
        full |= end < each["next"]
        if each["tiered"] < end:
            ranges.append(
                TaskRange(
                    member.kind, member.name, each["partition"], each["log"], each["tiered"], end,
                    member.content_type, member.label,
                )
            )  # fmt: skip
    return TierBatch(batch.place, ranges, full)


def _named(kind: str, name: str) -> dict[str, Any]:
    return {kind: name}


def _source(kind: str, name: str, label: str | None = None) -> LogSource:
    found: dict[str, Any] = {kind: name} if label is None else {kind: name, "label": label}
    return cast(LogSource, found)


def _names(client: Client, kind: str) -> list[str]:
    """The names of all tables, topics or streams."""
    column = "path" if kind == "stream" else "name"
    return [row[column] for row in client.sql(f"SELECT {column} FROM system.{kind}s ORDER BY 1")[-1].rows]


def _committed_state(store: Store, place: str, sized: bool) -> tuple[int | None, int | None]:
    """The last generation of a Delta table, and with `sized` the bytes of the files that it lists."""
    delta = store.delta(place)
    if delta is None:
        return None, 0
    with store.wrap_errors(place):
        size = sum(size for _, size in paths_of(delta)) if sized else None
    return delta.transaction_version(APP), size
