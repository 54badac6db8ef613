"""`compact`: merges small files of cold storage, forgets what is past its retention, removes what nothing lists.

What the server no longer has of a log, since it was pruned, cleared or forgotten, goes from the files too. Logs that it
does not know any more stay as they are: the history of a table that was dropped may still be wanted.

The driver plans and commits; executors read and write. Each merge is a commit of its own that names the files which it
replaces, so appends of `tier` go on beside it, and of two compactions at once one has to look again. Retention tells
the server first: from then on no reader asks for what is dropped next, and a crash between the two leaves rows that
the next run drops.
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
from tailrace.cold.compacting import Step
from tailrace.cold.merging import ColdFile, Cursor, Vanished, merge
from tailrace.cold.reading import Listing, listing
from tailrace.cold.store import Store
from tailrace.cold.writing import Written, database_of
from tailrace.errors import Corrupt, Error, Fenced, Invalid, NotFound, Unavailable
from tailrace.spark.jobs import progress
from tailrace.spark.jobs.carrying import raised
from tailrace.spark.jobs.progress import Meter, Told, brief
from tailrace.spark.jobs.settings import TARGET_BYTES, VACUUM, VACUUM_S_MIN, seconds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRIES: Final = 5  # rounds in which another compaction was first
_ANSWERS: Final = "answer binary"


class Compacted(msgspec.Struct, frozen=True):
    """What a run of `compact` has done."""

    merged: int = 0  # files
    written: int = 0  # files that they became
    rows: int = 0  # in those
    forgotten: int = 0  # rows past their retention
    removed: int = 0  # files that nothing listed


class Work(msgspec.Struct, frozen=True):
    """What one task does: merge a step's files, tell how old those of a place are, or forget."""

    place: str
    step: Step | None = None
    file: ColdFile | None = None
    starts: dict[int, int] | None = None


class Answer(msgspec.Struct, frozen=True):
    """What became of it."""

    number: int
    written: list[Written] = []
    ages: list[tuple[int, int | None, int]] = []  # log, the first position that is young enough, where the rows end
    dropped: int = 0
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
    on_progress: Told | None = None,
    stop: threading.Event | None = None,
) -> Compacted:
    """Compact the named places of cold storage, or all of them.

    Small files become files of about `target_bytes`. With `retention` ("365d") older history is forgotten. Files that
    nothing has listed for as long as `vacuum` are removed; readers that began before that may still want them. Less
    than an hour is refused, unless you are `alone`: what `tier` has written and not listed yet would be removed.
    """
    kept_s = None if retention is None else seconds(retention, "retention")
    age_s = seconds(vacuum, "vacuum", zero=True)
    if age_s < VACUUM_S_MIN and not alone:
        raise Invalid(f"vacuum {vacuum!r} may remove what others are about to list; give 1h or more, or say alone")
    if target_bytes < 1:
        raise Invalid(f"target_bytes must be 1 or more, not {target_bytes}")
    with Client(url, token=token) as client:
        cold = client.cold()
        if cold["url"] is None:
            raise Unavailable("the server has no cold storage; start it with one", code="NO_COLD_STORAGE")
        meter = Meter("compact", "compact", on_progress, server=client, source="cold", target=cold["url"])
        store = Store(cold["url"], options)
        job = _Compaction(spark, client, store, cold, meter, stop or threading.Event())
        try:
            known = _chosen(cold, places)
            check_owner(store, known, cold["database"])
            meter.say(progress.RUNNING)
            if kept_s is not None:
                # The earlier of the two clocks: history that is forgotten because one is ahead is gone for good.
                now_ms = min(int(time.time() * 1000), cold.get("time_ms", limits.POSITION_MAX))
                job.forget(known, now_ms - kept_s * 1000)
            job.merge(known, target_bytes)
            job.clear(known)
            job.vacuum(known, age_s // 3600)
        except Exception as error:
            meter.say(progress.FAILED, brief(error))
            raise
        meter.say(progress.DONE)
        return job.done


def _chosen(cold: dict[str, Any], places: Sequence[str]) -> list[str]:
    there = [each["name"] for each in cold["places"]]
    for place in places:
        if place not in there:
            listed = ", ".join(there[:10]) or "none"
            raise NotFound(f"cold storage has no place {place!r}; there are {listed}", code="PLACE_NOT_FOUND")
    return list(places) or there


def check_owner(store: Store, places: Sequence[str], database: str) -> None:
    """Raise if a place is another database's: the numbers of its logs mean something else here, and rows are dropped by
    them."""
    for place in places:
        delta = store.delta(place)
        owner = database if delta is None else database_of(delta)
        if owner != database:
            whose = "that Tailrace did not make" if owner is None else f"of database {owner}"
            raise Invalid(
                f"{store.uri(place)} is a Delta table {whose}, and the server has database {database}; give each "
                "database a URL of its own"
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
        """Merge what is worth it, in all places at once; one that another compaction was at is planned again."""
        left = list(places)
        for _ in range(TRIES):
            steps = [step for place in left for step in self._plan(place, target_bytes)]
            if not steps or self._stop.is_set():
                return
            began = time.monotonic()
            work = [Work(step.place, step=step) for step in steps]
            fenced: dict[str, None] = {}
            for answer in _spread(self._spark, work, self._store, target_bytes):
                step = steps[answer.number]
                try:
                    if answer.error is not None:
                        raise raised(answer.error, answer.code)
                    metadata = {"files": len(step.files)}
                    compacting.replace(self._store, step, answer.written, metadata=metadata)
                except Fenced:
                    fenced[step.place] = None
                    continue
                self._merged(step, answer.written, began)
            left = list(fenced)
            if not left:
                return
        raise Unavailable(f"another compaction of {left[0]!r} keeps going ahead; let it finish")

    def _plan(self, place: str, target_bytes: int) -> list[Step]:
        return compacting.plan(self._store, place, file_bytes=target_bytes, starts=self._starts(place))

    def _starts(self, place: str) -> dict[int, int]:
        """Where each log of a place begins, by the server; below it no reader asks."""
        return {log: start for (of, log), (start, _) in self._tiered.items() if of == place and start > 0}

    def _merged(self, step: Step, written: Sequence[Written], began: float) -> None:
        rows = sum(each.rows for each in written)
        done = self.done
        self.done = msgspec.structs.replace(
            done,
            merged=done.merged + len(step.files),
            written=done.written + len(written),
            rows=done.rows + rows,
            forgotten=done.forgotten + (step.rows - rows if step.starts else 0),
        )
        self._meter.batch(rows, time.monotonic() - began)

    # -- retention

    def forget(self, places: Sequence[str], before_ms: int) -> None:
        """Drop entries that are older; the server hears of it first."""
        for _ in range(TRIES):
            try:
                starts = self._old(places, before_ms)
                break
            except Fenced:
                continue  # another compaction replaced a file that was to be looked at
        else:
            raise Unavailable("another compaction keeps going ahead of retention; let it finish")
        for place, known in starts.items():
            self._client.forget(place, known)
        self._drop(starts)

    def clear(self, places: Sequence[str]) -> None:
        """Drop what the server no longer has from files that were not merged."""
        self._drop({place: known for place in places if (known := self._starts(place))})

    def _drop(self, starts: dict[str, dict[int, int]]) -> None:
        work = [Work(place, starts=known) for place, known in starts.items() if not self._stop.is_set()]
        for answer in _spread(self._spark, work, self._store, 0):
            if answer.error is not None:
                raise raised(answer.error, answer.code)
            self.done = msgspec.structs.replace(self.done, forgotten=self.done.forgotten + answer.dropped)

    def _old(self, places: Sequence[str], before_ms: int) -> dict[str, dict[int, int]]:
        """Up to where each log is older, by place."""
        work = [Work(place, file=file) for place in places for file in _old_files(self._store, place, before_ms)]
        found: dict[str, dict[int, tuple[int | None, int]]] = {}
        for answer in _spread(self._spark, work, self._store, before_ms):
            if answer.error is not None:
                raise raised(answer.error, answer.code)
            of_place = found.setdefault(work[answer.number].place, {})
            for log, young, end in answer.ages:
                first, last = of_place.get(log, (None, end))
                of_place[log] = (_least(first, young), max(last, end))
        return {
            place: {
                log: self._bounded(place, log, end if young is None else young) for log, (young, end) in logs.items()
            }
            for place, logs in found.items()
        }

    def _bounded(self, place: str, log: int, start: int) -> int:
        """What the server lets go of: nothing above its mark. A log that it does not know is nobody's."""
        known = self._tiered.get((place, log))
        return start if known is None else min(start, known[1])

    # -- files that nothing lists

    def vacuum(self, places: Sequence[str], hours: int) -> None:
        for place in places:
            if self._stop.is_set():
                return
            removed = compacting.vacuum(self._store, place, hours=hours)
            self.done = msgspec.structs.replace(self.done, removed=self.done.removed + len(removed))


def _old_files(store: Store, place: str, before_ms: int) -> list[ColdFile]:
    """The files in which something may be older."""
    delta = store.delta(place)
    if delta is None:
        return []
    with store.told(place):
        files = Listing(place, delta).files
        listed = pa.table(delta.get_add_actions(flatten=True))
    if "min.timestamp" not in listed.column_names:
        return files
    moments = pc.cast(listed["min.timestamp"], pa.timestamp("us", "UTC"))
    old = pc.fill_null(pc.less(moments, _moment(before_ms)), True)
    paths = set(listed.filter(old)["path"].to_pylist())
    return [file for file in files if file.path in paths]


def _moment(at_ms: int) -> pa.Scalar:
    return pa.scalar(at_ms * 1000, pa.timestamp("us", "UTC"))


def _least(*positions: int | None) -> int | None:
    return min((each for each in positions if each is not None), default=None)


# -- in executors


def _spread(spark: SparkSession, work: list[Work], store: Store, number: int) -> list[Answer]:
    """Do the work, a task for each piece; what became of it, in order. `number` is the target size, or the moment."""

    def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for each in batch.column(0).to_pylist():
                answer = msgspec.msgpack.encode(_done(each, work[each], store, number))
                yield pa.record_batch([pa.array([answer], pa.binary())], names=["answer"])

    if not work:
        return []
    task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] = run
    answers = spark.range(0, len(work), 1, len(work)).mapInArrow(task, _ANSWERS).collect()
    found = [msgspec.msgpack.decode(bytes(row.answer), type=Answer) for row in answers]
    return sorted(found, key=lambda each: each.number)


def _done(at: int, work: Work, store: Store, number: int) -> Answer:
    try:
        if work.step is not None:
            return Answer(at, written=compacting.rewrite(store, work.step, file_bytes=number))
        if work.file is not None:
            return Answer(at, ages=ages(store, work.file, number))
        assert work.starts is not None
        return Answer(at, dropped=compacting.forget(store, work.place, work.starts).dropped)
    except Error as error:
        return Answer(at, error=str(error), code=error.code)


def ages(store: Store, file: ColdFile, before_ms: int) -> list[tuple[int, int | None, int]]:
    """For each log in a file: where the first entry that is not older begins (None: there is none); where rows end."""
    found: dict[int, tuple[int | None, int]] = {}
    try:
        for table, _ in merge(
            [Cursor(store, file, ["log", "position", "next", "timestamp"], None)], ["log", "position"]
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
            raise Corrupt(f"the cold file {path} is missing; put it back from a copy of cold storage") from vanished
        raise Fenced(f"the cold file {path} was replaced by another compaction; look again") from vanished
    return [(log, young, end) for log, (young, end) in found.items()]
