"""From ranges to tasks, and how an executor reads one: entries from the server as Arrow, or files of cold storage.

Entries are sent as they are stored and become rows here, so that the server spends no time on it. If the server goes
away in the middle, reading waits and continues after the last entry. Entries that were trimmed since the task was
planned are read from cold storage.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tailrace import limits
from tailrace.bulk.columns import rows_of
from tailrace.cold import reading as cold
from tailrace.cold.store import Store
from tailrace.errors import Conflict, Gone, TooMany, Unavailable
from tailrace.spark.connection import PATIENCE_S, WAIT_MAX_S, WAIT_MIN_S, SourceInfo, client, patiently, source_info
from tailrace.spark.options import SourceOptions
from tailrace.spark.planning import OffsetRange, ReadTask, cold_cuts, split, tasks_wanted
from tailrace.spark.session import available_cores

_ENTRY: Final = ("log", "position", "next", "timestamp", "body")
_RENAMED: Final = {"position": "offset", "next": "next_offset"}
# The columns of cold storage that rows have, some under other names (`_RENAMED`).
_CHANGE: Final = "position next sequence index last timestamp event principal keys old_image new_image"
_MESSAGE: Final = "partition offset next timestamp message_id source_table op mode key payload principal"
COLD: Final = {"table": tuple(_CHANGE.split()), "topic": tuple(_MESSAGE.split())}


class RangeFetcher:
    """Plans tasks and reads them. It is pickled, and travels to the executors."""

    def __init__(self, options: SourceOptions, found: SourceInfo, schema: pa.Schema, *, is_typed: bool) -> None:
        self.options = options
        self.kind = options.kind
        self.content_type = found.content_type
        self.schema = schema  # exactly what Spark expects
        self.is_typed = is_typed
        self.place = "" if found.cold is None else found.cold.place
        self.store = None if found.cold is None else Store(found.cold.url)

    # -- in the driver

    def plan(self, found: SourceInfo, ranges: Sequence[OffsetRange]) -> list[ReadTask]:
        """Tasks for these ranges: first the entries that are only in cold storage, then the rest."""
        hot_from = {part.log: part.hot for part in found.partitions}
        cold_part = [clipped(each, each.start, min(each.end, hot_from[each.log])) for each in ranges]
        hot_part = [clipped(each, max(each.start, hot_from[each.log]), each.end) for each in ranges]
        hot_part = [each for each in hot_part if each.size]
        tasks = [task for each in cold_part if each.size for task in self._plan_cold(each)]
        if self.kind == "table":
            return tasks + [ReadTask(part) for each in hot_part for part in self._cut_by_records(each)]
        wanted = tasks_wanted(
            self.kind, [each.size for each in hot_part], available_cores(), self.options.partitions_min
        )
        return tasks + [ReadTask(each) for each in split(hot_part, wanted)]

    def _cut_by_records(self, wanted: OffsetRange) -> list[OffsetRange]:
        """A table's range, cut by its number of records on the server, which offsets do not give."""
        records, _ = self._count(wanted, 1)
        pieces = tasks_wanted(self.kind, [records], available_cores(), self.options.partitions_min)
        if pieces == 1:
            return [wanted]
        _, cuts = self._count(wanted, min(pieces, limits.BULK_PIECES_MAX))
        return [clipped(wanted, low, high) for low, high in itertools.pairwise(cuts)]

    def _count(self, wanted: OffsetRange, pieces: int) -> tuple[int, list[int]]:
        server, target = client(self.options.access), self.options.target
        return patiently(lambda: server.count_records(wanted.start, wanted.end, pieces, **target))

    def _plan_cold(self, wanted: OffsetRange) -> list[ReadTask]:
        if self.store is None:
            return [ReadTask(wanted)]  # the server may have cold storage by the time of the request
        files = cold.files(self.store, self.place, wanted.log, wanted.start, wanted.end)
        spans = [
            (
                wanted.start if each.position_min is None else each.position_min,
                wanted.end if each.position_max is None else each.position_max,
                each.rows or 0,
            )
            for each in files
        ]
        rows = sum(count for _, _, count in spans)
        count = tasks_wanted("table", [rows], available_cores(), self.options.partitions_min)
        bounds = cold_cuts(spans, wanted.start, wanted.end, count) if spans else [wanted.start, wanted.end]
        return [
            ReadTask(clipped(wanted, low, high), tuple(each for each in files if each.may_have(wanted.log, low, high)))
            for low, high in itertools.pairwise(bounds)
        ]

    # -- in an executor

    def rows(self, task: ReadTask) -> Iterator[pa.RecordBatch]:
        """The rows of the task, in order."""
        found = self._hot(task.range) if task.files is None else self._cold(task.range, task.files)
        for batch in found:
            if batch.num_rows:
                yield self._shaped(batch)

    def _shaped(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self.is_typed:
            from tailrace.bulk.typed import typed  # rarely needed

            rows = typed(self.kind, rows, self.schema)
        if rows.schema.equals(self.schema):
            return rows
        columns = [rows.column(name) for name in self.schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _decoded(self, entries: pa.RecordBatch, partition: int) -> pa.RecordBatch:
        return rows_of(
            self.kind, entries, partition=partition, content_type=self.content_type, images=self.options.images
        )

    def _hot(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        at, wait_s = wanted.start, WAIT_MIN_S
        until_s = time.monotonic() + PATIENCE_S
        while at < wanted.end:
            try:
                for entries in self._entries(wanted, at):
                    if entries.column("log")[0].as_py() != wanted.log:
                        raise self._replaced(wanted)
                    at = entries.column("next")[-1].as_py()
                    yield self._decoded(entries, wanted.partition)
                    until_s, wait_s = time.monotonic() + PATIENCE_S, WAIT_MIN_S
                if at < wanted.end and not self._still_there(wanted):  # or no entry begins in the rest of the range
                    raise self._replaced(wanted)
                return
            except Gone as error:
                end = min(self._hot_now(wanted, at, error), wanted.end)
                yield from self._cold(clipped(wanted, at, end), None)
                at = end
            except (Unavailable, TooMany) as error:
                if error.code == "CLOSED" or time.monotonic() + wait_s > until_s:
                    raise
                time.sleep(wait_s)
                wait_s = min(WAIT_MAX_S, wait_s * 2)

    def _still_there(self, wanted: OffsetRange) -> bool:
        return any(each.log == wanted.log and each.next >= wanted.end for each in source_info(self.options).partitions)

    def _replaced(self, wanted: OffsetRange) -> Conflict:
        return Conflict(
            f"{self.options.noun} is not the one that this query was planned for: the current one does not have "
            f"offsets {wanted.start} to {wanted.end} of log {wanted.log}; it was dropped and recreated; start the "
            "query with a new checkpoint",
            code="LOG_REPLACED",
        )

    def _entries(self, wanted: OffsetRange, at: int) -> Iterator[pa.RecordBatch]:
        target = self.options.target
        with client(self.options.access).arrow(
            **target, partition=wanted.partition, offset=at, until=wanted.end, form="entries"
        ) as batches:
            yield from (batch for batch in batches if batch.num_rows)

    def _hot_now(self, wanted: OffsetRange, at: int, gone: Gone) -> int:
        """Where the hot log begins, if cold storage has the entries before it."""
        found = source_info(self.options)
        part = next((each for each in found.partitions if each.log == wanted.log), None)
        if part is None or found.cold is None or not part.earliest <= at < part.hot:
            raise gone
        self.store, self.place = Store(found.cold.url), found.cold.place
        return part.hot

    def _cold(self, wanted: OffsetRange, files: Sequence[Any] | None) -> Iterator[pa.RecordBatch]:
        assert self.store is not None, "a task of cold files needs cold storage"
        if files is None:
            files = cold.files(self.store, self.place, wanted.log, wanted.start, wanted.end)
        whole = self.kind == "stream" or (self.kind == "table" and self.options.images == "typed")
        columns = _ENTRY if whole else COLD[self.kind]
        for batch in cold.read(self.store, files, wanted.log, wanted.start, wanted.end, columns):
            if whole:
                yield self._decoded(_as_entries(batch), wanted.partition)
            else:
                names = [renamed(name) for name in columns]
                yield pa.RecordBatch.from_arrays([batch.column(name) for name in columns], names=names)


def _as_entries(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Entries of a log from cold rows; the first row of each has its bytes."""
    rows = rows.filter(rows.column("body").is_valid())
    at_ms = pc.divide(rows.column("timestamp").cast(pa.int64()), 1_000)
    columns = [rows.column("log"), rows.column("position"), rows.column("next"), at_ms, rows.column("body")]
    return pa.RecordBatch.from_arrays(columns, names=["log", "position", "next", "at_ms", "body"])


def renamed(column: str) -> str:
    """The name in rows of a column of cold storage."""
    return _RENAMED.get(column, column)


def clipped(each: OffsetRange, start: int, end: int) -> OffsetRange:
    return OffsetRange(each.partition, each.log, start, end)
