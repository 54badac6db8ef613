"""`tier`: follows logs into cold storage, and then moves the mark below which the hot log may be trimmed.

Theory of operation
-------------------
The server's mark is the only cursor. A batch of a place is

    1. planned     [mark, to) of each of its logs, about `batch_records` in all;
    2. carried     by Spark's executors, which read the entries from the server and write Parquet files;
    3. committed   to the Delta table with the next generation as application transaction, and what was carried beside;
    4. marked      on the server, which compares and sets generation and marks.

Of two drivers that do the same batch one commits; the other's files are listed by nothing. Whoever finds Delta one
generation ahead of the server, because a driver died between 3 and 4, finishes that batch from what the commit says and
does not do it again. Before that the checksums of the commit are compared with those of the files, which may have been
lost since, and of the server: one that was restored from an older backup has other entries at these positions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from tailrace.client import Client
from tailrace.cold.schemas import SCHEMAS
from tailrace.cold.store import Store
from tailrace.cold.writing import Written, commit, committed_metadata, last_generation, paths_of
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
from tailrace.spark.jobs.carrying import Found, Load, Reached, carry, raised
from tailrace.spark.jobs.pieces import Piece, split, tiled
from tailrace.spark.jobs.progress import Meter, Told, brief
from tailrace.spark.jobs.settings import AGE_S, BATCH_RECORDS, INTERVAL_S, is_pattern, matches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP: Final = "tier"  # the application of Delta transactions: one sequence of generations in each place
LIST_S: Final = 30.0  # between two looks at which tables, topics and streams there are
PATIENCE_S: Final = 60.0  # how long `once` waits for a server that went away
PAUSE_S: Final = 0.5  # before the first retry; then twice as long each time
PAUSE_S_MAX: Final = 15.0
_LOST: Final = ("NOT_FOUND", "TABLE_NOT_FOUND", "TOPIC_NOT_FOUND", "STREAM_NOT_FOUND", "GONE", "OFFSET_TRIMMED")
KINDS: Final = ("table", "topic", "stream")

Carry: TypeAlias = Callable[[list[Load], Reached, bool], list[Found]]


class Tiered(msgspec.Struct, frozen=True):
    """What a run of `tier` has done."""

    rows: int = 0
    files: int = 0
    bytes: int = 0
    commits: int = 0


class Member(msgspec.Struct, frozen=True):
    """A table, topic or stream, as the server tells of it."""

    kind: str
    name: str
    content_type: str | None
    partitions: list[dict[str, Any]]  # partition, log, tiered, next
    label: str | None = None  # of a table: which of its change streams


class Place(msgspec.Struct, frozen=True):
    """A Delta table, with what of it this driver was asked for."""

    name: str
    generation: int
    database: str
    cold: str
    members: list[Member]

    @property
    def lag(self) -> int:
        return sum(each["next"] - each["tiered"] for member in self.members for each in member.partitions)


class Batch(msgspec.Struct, frozen=True):
    """What is to be carried to a place."""

    place: Place
    pieces: list[Piece]
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
    on_progress: Told | None = None,
    stop: threading.Event | None = None,
) -> Tiered:
    """Tier the named tables, topics and streams (`*` in a name stands for anything), or `all` that there are.

    With `once` all that is there now; else for as long as `stop` is not set: a full batch at once, less when it is
    `age_s` old. `options` are those of the object store, where its environment variables are not enough.
    """
    patterns = {"table": tuple(tables), "topic": tuple(topics), "stream": tuple(streams)}
    if all:
        patterns = dict.fromkeys(KINDS, ("*",))
    if not any(patterns.values()):
        raise Invalid("there is nothing to tier: name tables, topics or streams, or say all")
    if batch_records < 1:
        raise Invalid(f"batch_records must be 1 or more, not {batch_records}")
    with Client(url, token=token) as client:
        driver = Driver(
            client,
            partial(_carried, spark),
            patterns,
            reached=Reached(url, token, "", options),
            tasks=spark.sparkContext.defaultParallelism,
            batch_records=batch_records,
            age_s=age_s,
            told=on_progress,
        )
        loop = _Loop(driver, stop or threading.Event(), interval_s)
        return loop.once() if once else loop.follow()


def _carried(spark: SparkSession, loads: list[Load], reached: Reached, write: bool) -> list[Found]:
    return carry(spark, loads, reached, write=write)


class Driver:
    """One that plans, commits and marks. It holds nothing that another would miss."""

    def __init__(
        self,
        client: Client,
        carried: Carry,
        patterns: Mapping[str, tuple[str, ...]],
        *,
        reached: Reached,
        tasks: int = 1,
        batch_records: int = BATCH_RECORDS,
        age_s: float = AGE_S,
        told: Told | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._carry = carried
        self._patterns = patterns
        self._reached = reached
        self._tasks = tasks
        self._batch_records = batch_records
        self._age_s = age_s
        self._told = told
        self._clock = clock
        self._attached: dict[tuple[str, str], None] = {}  # in order
        self._left: dict[tuple[str, str], None] = {}  # table and label of change streams that are not all tiered
        self._stores: dict[str, Store] = {}
        self._listed_at: float | None = None
        self._settled: dict[str, int] = {}  # the generation in which Delta and server agreed, by place
        self._waiting: dict[str, float] = {}  # since when less than a batch waits there
        self._meters: dict[str, Meter] = {}
        self._sizes: dict[str, int] = {}
        self.failures: dict[str, Exception] = {}  # of the last round, by place
        self.done = Tiered()

    # -- what there is

    def look(self) -> list[Place]:
        """The places, as the server has them now."""
        if self._listed_at is None or self._clock() - self._listed_at >= LIST_S:
            self._attach()
            self._look_for_left()
            self._listed_at = self._clock()
        places: dict[str, Place] = {}
        for kind, name in list(self._attached):
            try:
                facts = self._client.logs(**_named(kind, name))
            except NotFound:
                if not any(is_pattern(each) for each in self._patterns[kind]):
                    raise
                del self._attached[kind, name]  # it was dropped; its history stays where it is
                continue
            if facts["cold"] is None:  # someone has detached it, or it is another stream than before
                del self._attached[kind, name]
                continue
            _add(places, kind, name, facts)
        self._add_left(places)
        return list(places.values())

    def _look_for_left(self) -> None:
        """Which change streams have more that is hot alone: retention holds on to it, also when they are closed, and
        there is another one of that table, or the table is gone."""
        if not self._patterns["table"]:
            return
        for place in self._client.cold()["places"]:
            for log in place["logs"]:
                table = log.get("table")
                if table is not None and log["tiered"] < log["next"] and matches(table, self._patterns["table"]):
                    self._left[table, log["label"]] = None

    def _add_left(self, places: dict[str, Place]) -> None:
        followed = {(each.name, each.label) for place in places.values() for each in place.members}
        for table, label in list(self._left):
            if (table, label) in followed:
                continue  # the present one
            try:
                facts = self._client.logs(table=table, label=label)
            except NotFound:
                facts = {"cold": None}
            if facts["cold"] is None or all(each["tiered"] >= each["next"] for each in facts["partitions"]):
                del self._left[table, label]  # all of it is there, or nobody wants it any more
                continue
            _add(places, "table", table, facts)

    def _attach(self) -> None:
        for kind in KINDS:
            exact = [each for each in self._patterns[kind] if not is_pattern(each)]
            for name in exact:
                if (kind, name) not in self._attached:
                    self._client.attach(**_named(kind, name))
                    self._attached[kind, name] = None
            if len(exact) == len(self._patterns[kind]):
                continue
            for name in _names(self._client, kind):
                if (kind, name) in self._attached or not matches(name, self._patterns[kind]):
                    continue
                try:
                    self._client.attach(**_named(kind, name))
                except (NotFound, Conflict, Invalid):
                    continue  # dropped meanwhile, or without a change stream: who means it by name is told so
                self._attached[kind, name] = None

    # -- one round

    def round(self, *, flush: bool = False, places: list[Place] | None = None) -> bool:
        """Do what is ready, in every place, as one Spark job; whether there may be more to do at once.

        What fails in one place does not hold up the others: it is in `failures`.
        """
        self.failures = {}
        again = False
        batches: list[Batch] = []
        for place in self.look() if places is None else places:
            try:
                if self._settled.get(place.name) != place.generation and self._finish(place):
                    again = True
                    continue
                batch = self._plan(place, flush)
            except Error as error:
                self._failed(place, error)
                continue
            if batch is not None:
                batches.append(batch)
                again |= batch.full
        loads: list[Load] = []
        owners: list[str] = []
        for batch in batches:
            cut = split(batch.pieces, self._tasks)
            loads += [Load(batch.place.name, pieces) for pieces in cut]
            owners += [batch.place.name] * len(cut)
        if loads:
            began = self._clock()
            reached = self._reach(batches[0].place)
            found = self._carry(loads, reached, True)
            for batch in batches:
                mine = [(loads[each.number], each) for each in found if owners[each.number] == batch.place.name]
                try:
                    self._settle(batch, mine, began)
                except Error as error:
                    self._failed(batch.place, error)
        return again

    def _plan(self, place: Place, flush: bool) -> Batch | None:
        """The next batch of a place, if it is time for one."""
        if not place.lag:
            self._waiting.pop(place.name, None)
            self._meter(place).say(progress.WAITING, lag=0)
            return None
        behind = [each for each in place.members if any(part["tiered"] < part["next"] for part in each.partitions)]
        records = max(self._batch_records // len(behind), 1)
        pieces: list[Piece] = []
        full = False
        for member in behind:
            marks = {each["partition"]: each["tiered"] for each in member.partitions}
            reach = self._client.advance(marks, records, **_named(member.kind, member.name, member.label))
            for each in member.partitions:
                end = reach[each["partition"]]
                full |= end < each["next"]
                if each["tiered"] < end:
                    pieces.append(
                        Piece(
                            member.kind, member.name, each["partition"], each["log"], each["tiered"], end,
                            member.content_type, member.label,
                        )
                    )  # fmt: skip
        since = self._waiting.setdefault(place.name, self._clock())
        if not (full or flush or self._clock() - since >= self._age_s):
            self._meter(place).say(progress.WAITING, lag=place.lag)
            return None
        return Batch(place, pieces, full)

    def _settle(self, batch: Batch, found: list[tuple[Load, Found]], began: float) -> None:
        """Commit what was carried, and mark it."""
        for _, each in found:
            if each.error is not None:
                raise raised(each.error, each.code)
        place = batch.place
        spans = [span for _, each in found for span in each.spans]
        ranges: dict[int, tuple[int, int]] = {}
        for log in {piece.log for piece in batch.pieces}:
            start = min(piece.start for piece in batch.pieces if piece.log == log)
            end = max(piece.end for piece in batch.pieces if piece.log == log)
            ranges[log] = start, tiled(start, end, (span for span in spans if span.log == log))
        files = [file for _, each in found for file in each.files]
        generation = place.generation + 1
        carried = [
            [piece, span.digest] for load, each in found for piece, span in zip(load.pieces, each.spans, strict=True)
        ]
        outcome = commit(
            self._store(place),
            place.name,
            SCHEMAS[place.members[0].kind],
            files,
            app=APP,
            generation=generation,
            database=place.database,
            metadata=msgspec.to_builtins({"ranges": ranges, "carried": carried}, str_keys=True),
            strict=True,
        )
        if outcome == "already":
            self._finish(place)
            return
        self._check_there(place, files)
        self._mark(place, generation, ranges)
        self._waiting.pop(place.name, None)
        rows, size = sum(span.rows for span in spans), sum(file.size for file in files)
        self.done = Tiered(
            self.done.rows + rows, self.done.files + len(files), self.done.bytes + size, self.done.commits + 1
        )
        self._sizes[place.name] = self._sizes.get(place.name, 0) + size
        lag = place.lag - sum(end - start for start, end in ranges.values())
        self._meter(place).batch(rows, self._clock() - began, lag=max(lag, 0), cold_bytes=self._sizes[place.name])

    def _check_there(self, place: Place, files: Sequence[Written]) -> None:
        """Raise unless the files that were listed just now are there: somebody may have tidied up too eagerly."""
        store = self._store(place)
        with store.told(place.name):
            found = store.filesystem().get_file_info([f"{place.name}/{file.path}" for file in files])
        for file, info in zip(files, found, strict=True):
            if info.size != file.size:
                raise Corrupt(
                    f"the cold file {store.uri(place.name)}/{file.path} was removed or changed before it was marked; "
                    "nothing was trimmed"
                )

    # -- what another left

    def _finish(self, place: Place) -> bool:
        """Mark what Delta has and the server does not know of; whether there was such."""
        store = self._store(place)
        version = last_generation(store, place.name, APP)
        if place.name not in self._sizes:
            self._sizes[place.name] = _size(store, place.name)
        if version is None or version <= place.generation:
            self._settled[place.name] = place.generation
            return False
        generation = place.generation + 1
        told = committed_metadata(store, place.name, APP, generation)
        assert told is not None, f"{place.name!r} has generation {version} and not {generation}"
        self._verify(place, told["carried"])
        self._mark(place, generation, msgspec.convert(told["ranges"], dict[int, tuple[int, int]], str_keys=True))
        return True

    def _verify(self, place: Place, carried: list[Any]) -> None:
        """Raise unless the files and the server both have the entries of that commit."""
        loads = [Load(place.name, [msgspec.convert(piece, Piece)]) for piece, _ in carried]
        reached = self._reach(place)
        for each in self._carry(loads, reached, False) if loads else ():
            if each.error is not None:
                if each.code in _LOST:
                    continue  # it was dropped or pruned since; what was committed of it is history
                raise raised(each.error, each.code)
            piece, digest = loads[each.number].pieces[0], carried[each.number][1]
            if each.kept[0] != digest:
                raise Corrupt(
                    f"{place.name!r} in cold storage has other entries in positions {piece.start} to {piece.end} of "
                    f"log {piece.log} than were committed: its files were changed. Nothing was marked or trimmed; put "
                    "them back from a copy"
                )
            if each.spans[0].digest != digest:
                raise Corrupt(
                    f"{place.name!r} in cold storage has other entries of {piece.kind} {piece.name!r} in positions "
                    f"{piece.start} to {piece.end} than the server: was the server restored from an older backup? "
                    "Nothing was marked or trimmed; give the server another cold URL, or restore a later backup"
                )

    def _mark(self, place: Place, generation: int, ranges: Mapping[int, tuple[int, int]]) -> None:
        """Move the server's marks, unless somebody has moved them for us."""
        try:
            self._client.tiered(place.name, generation, ranges)
        except Conflict as error:
            if error.code != "FENCED":
                raise
            now = {each["name"]: each["generation"] for each in self._client.cold()["places"]}
            if now.get(place.name, 0) < generation:
                raise
        self._settled[place.name] = generation

    # -- telling

    def _store(self, place: Place) -> Store:
        """One for all batches: it knows what it has made durable."""
        if place.cold not in self._stores:
            self._stores[place.cold] = Store(place.cold, self._reached.options)
        return self._stores[place.cold]

    def _reach(self, place: Place) -> Reached:
        """What tasks are told. A bucket's keys are those of the driver: a worker's environment has none, or others."""
        options = self._store(place).storage_options
        return msgspec.structs.replace(self._reached, cold=place.cold, options=options or None)

    def _failed(self, place: Place, error: Error) -> None:
        self.failures[place.name] = error
        self._settled.pop(place.name, None)
        self._meter(place).say(progress.RETRYING, brief(error))

    def _meter(self, place: Place) -> Meter:
        meter = self._meters.get(place.name)
        if meter is None:
            meter = self._meters[place.name] = Meter(
                f"tier/{place.name}", "tier", self._told, server=self._client, source=place.name,
                target=f"{place.cold.rstrip('/')}/{place.name}",
            )  # fmt: skip
        return meter

    def say(self, state: str, message: str = "") -> None:
        """Say of every place that it is in this state."""
        for meter in self._meters.values():
            meter.say(state, message)


class _Loop:
    """Rounds, and the pauses between them."""

    def __init__(self, driver: Driver, stop: threading.Event, interval_s: float) -> None:
        self._driver = driver
        self._stop = stop
        self._interval_s = interval_s

    def once(self) -> Tiered:
        """Until all is tiered that was there at the first look."""
        driver = self._driver
        first = driver.look()  # a server that is not there now is an error, not something to wait for
        goal = {each["log"]: each["next"] for each in _partitions(first)}
        pause = _Pause(self._stop, PATIENCE_S)
        places = first
        while not self._stop.is_set():
            try:
                driver.round(flush=True, places=places)
                if driver.failures:
                    raise next(iter(driver.failures.values()))
                places = driver.look()
                pause.reset()
            except (Unavailable, TooMany, Conflict) as error:
                if isinstance(error, Conflict) and error.code != "FENCED":
                    raise
                pause.wait(error)  # the server comes back; another driver was faster
                places = []
                continue
            if all_done(places, goal):
                break
        driver.say(progress.STOPPED if self._stop.is_set() else progress.DONE)
        return driver.done

    def follow(self) -> Tiered:
        """Until told to stop."""
        driver = self._driver
        driver.look()
        pause = _Pause(self._stop, None)
        while not self._stop.is_set():
            try:
                again = driver.round()
                if not driver.failures:
                    pause.reset()
                    if not again:
                        self._stop.wait(self._interval_s)
                    continue
                error: Exception = next(iter(driver.failures.values()))
            except (Unauthenticated, Forbidden):
                raise
            except Error as failure:  # the server, most likely; it comes back
                driver.say(progress.RETRYING, brief(failure))
                error = failure
            pause.wait(error)
        driver.say(progress.STOPPED)
        return driver.done


class _Pause:
    """Longer each time, until something goes well."""

    def __init__(self, stop: threading.Event, patience_s: float | None) -> None:
        self._stop = stop
        self._patience_s = patience_s
        self._since: float | None = None
        self._next_s = PAUSE_S

    def reset(self) -> None:
        self._since, self._next_s = None, PAUSE_S

    def wait(self, error: Exception) -> None:
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if self._patience_s is not None and now - self._since > self._patience_s:
            raise error
        self._stop.wait(self._next_s)
        self._next_s = min(self._next_s * 2, PAUSE_S_MAX)


def all_done(places: Iterable[Place], goal: Mapping[int, int]) -> bool:
    """Whether every mark has reached its goal; what was dropped meanwhile has."""
    return all(each["tiered"] >= goal.get(each["log"], 0) for each in _partitions(places))


def _partitions(places: Iterable[Place]) -> Iterable[dict[str, Any]]:
    return (each for place in places for member in place.members for each in member.partitions)


def _add(places: dict[str, Place], kind: str, name: str, facts: dict[str, Any]) -> None:
    """Put what the server told of something to the others of its place."""
    cold = facts["cold"]
    place = places.setdefault(
        cold["place"], Place(cold["place"], cold["generation"], facts["database"], cold["url"], [])
    )
    place.members.append(Member(kind, name, facts.get("content_type"), facts["partitions"], facts.get("label")))


def _named(kind: str, name: str, label: str | None = None) -> dict[str, Any]:
    return {kind: name} if label is None else {kind: name, "label": label}


def _names(client: Client, kind: str) -> list[str]:
    """All tables, topics or streams that there are."""
    column = "path" if kind == "stream" else "name"
    return [row[column] for row in client.sql(f"SELECT {column} FROM system.{kind}s ORDER BY 1")[-1].rows]


def _size(store: Store, place: str) -> int:
    """How large the files are that a place lists."""
    delta = store.delta(place)
    return 0 if delta is None else sum(size for _, size in paths_of(delta))
