"""From ranges to tasks, and how an executor reads one: entries from the server as Arrow, or files of cold storage.

Entries are sent as they are stored and become rows here, so that the server spends no time on it. If the server goes
away in the middle, reading waits and continues after the last entry. Entries that were trimmed since the task was
planned are read from cold storage.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tailrace import limits
from tailrace.bulk.columns import PLAIN, TYPED, rows_of
from tailrace.bulk.typed_rows import TypedRows
from tailrace.cold import reading as cold
from tailrace.cold.store import Store
from tailrace.errors import Conflict, Gone, TooMany, Unavailable
from tailrace.spark.connection import SourceInfo, client, patiently, source_info
from tailrace.spark.options import ServerAccess, SourceOptions
from tailrace.spark.planning import OffsetRange, ReadTask, cold_cuts, split, tasks_wanted
from tailrace.spark.servers import BEHIND, Turn, beginning, servers
from tailrace.spark.session import planning_cores

_ENTRY: Final = ("log", "position", "next", "timestamp", "body")
_RENAMED: Final = {"position": "offset", "next": "next_offset"}
# The columns of cold storage that rows have, some under other names (`_RENAMED`).
_CHANGE: Final = "position next sequence index last timestamp event principal keys old_image new_image"
_MESSAGE: Final = "partition offset next timestamp message_id source_table op mode key payload principal"
IMAGE_TEXTS: Final = {"before": "old_image", "after": "new_image"}  # the stored names of images as JSON
COLD: Final = {"table": tuple(_CHANGE.split()), "topic": tuple(_MESSAGE.split())}


@dataclass(frozen=True)
class RowForm:
    """The form of rows: exactly what Spark expects."""

    schema: pa.Schema
    is_rows: bool = False  # attributes are columns
    is_text: bool = False  # the images of changes are JSON
    strict: bool = False  # the schema was inferred


class RangeFetcher:
    """Plans tasks and reads them. It is pickled, and travels to the executors."""

    def __init__(self, options: SourceOptions, found: SourceInfo, form: RowForm) -> None:
        self.options = options
        self.kind = options.kind
        self.content_type = found.content_type
        self.form = form
        self.typed: TypedRows | None = None
        if self.kind == "table" and not form.is_text:
            self.typed = TypedRows(options.name, form.schema, form.strict)
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
            return tasks + self._spread([part for each in hot_part for part in self._cut_by_records(each)])
        wanted = tasks_wanted(
            self.kind, [each.size for each in hot_part], planning_cores(), self.options.partitions_min
        )
        return tasks + self._spread(split(hot_part, wanted))

    def _spread(self, ranges: list[OffsetRange]) -> list[ReadTask]:
        """A task for each range, over the servers of the cluster."""
        urls = servers(self.options) if ranges else ()
        return [ReadTask(each, servers=beginning(urls, number)) for number, each in enumerate(ranges)]

    def _cut_by_records(self, wanted: OffsetRange) -> list[OffsetRange]:
        """A table's range, cut by its number of records on the server, which offsets do not give."""
        records, _ = self._count(wanted, 1)
        pieces = tasks_wanted(self.kind, [records], planning_cores(), self.options.partitions_min)
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
        count = tasks_wanted("table", [rows], planning_cores(), self.options.partitions_min)
        bounds = cold_cuts(spans, wanted.start, wanted.end, count) if spans else [wanted.start, wanted.end]
        return [
            ReadTask(clipped(wanted, low, high), tuple(each for each in files if each.may_have(wanted.log, low, high)))
            for low, high in itertools.pairwise(bounds)
        ]

    # -- in an executor

    def rows(self, task: ReadTask) -> Iterator[pa.RecordBatch]:
        """The rows of the task, in order."""
        found = self._hot(task.range, task.servers) if task.files is None else self._cold(task.range, task.files)
        for batch in found:
            if batch.num_rows:
                yield self._shaped(batch)

    def entries(self, wanted: OffsetRange, access: ServerAccess | None = None) -> Iterator[pa.RecordBatch]:
        """The entries of a range as they are stored, from the given server."""
        access = access or self.options.access
        found = source_info(self.options, access=access)
        hot = next(part.hot for part in found.partitions if part.log == wanted.log)
        older = clipped(wanted, wanted.start, min(wanted.end, hot))
        if older.size and self.store is not None:
            for batch in self._cold_rows(older, None, _ENTRY):
                yield _as_entries(batch)
        newer = clipped(wanted, max(wanted.start, hot), wanted.end)
        if newer.size:
            yield from self._entries(newer, newer.start, access)

    def _shaped(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        schema = self.form.schema
        if self.form.is_rows and self.kind != "table":
            from tailrace.bulk.typed import typed  # rarely needed

            rows = typed(self.kind, rows, schema)
        if rows.schema.equals(schema):
            return rows
        columns = [rows.column(IMAGE_TEXTS.get(name, name)) for name in schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _decoded(self, entries: pa.RecordBatch, partition: int) -> pa.RecordBatch:
        if self.typed is not None:
            return self.typed.of_changes(entries)
        images = TYPED if self.options.images == "dynamodb" else PLAIN
        return rows_of(self.kind, entries, partition=partition, content_type=self.content_type, images=images)

    def _hot(self, wanted: OffsetRange, urls: Sequence[str]) -> Iterator[pa.RecordBatch]:
        at, turn = wanted.start, Turn(self.options.access, urls)
        complete_from: int | None = None  # the server was seen to have the rest of the range after this position
        while at < wanted.end:
            try:
                for entries in self._entries(wanted, at, turn.access):
                    if entries.column("log")[0].as_py() != wanted.log:
                        raise self._replaced(wanted)
                    at = entries.column("next")[-1].as_py()
                    yield self._decoded(entries, wanted.partition)
                    turn.worked()
                if at < wanted.end and complete_from != at:  # or no entry begins in the rest of the range
                    self._check_end(wanted, turn)
                    if turn.several:  # it may have had the rest only after it was read
                        complete_from = at
                        continue
                return
            except Gone as error:
                end = min(self._hot_now(wanted, at, error), wanted.end)
                yield from self._cold(clipped(wanted, at, end), None)
                at = end
            except (Unavailable, TooMany) as error:
                complete_from = None
                turn.failed(error)

    def _check_end(self, wanted: OffsetRange, turn: Turn) -> None:
        """See that the server has the whole range. One of several that has not is behind: another one is asked."""
        found = source_info(self.options, access=turn.access).partitions
        if any(each.log == wanted.log and each.next >= wanted.end for each in found):
            return
        if turn.several and (
            turn.access.url != self.options.access.url or any(each.log == wanted.log for each in found)
        ):
            raise Unavailable(f"{turn.access.url} does not have all of {self.options.noun} yet", code=BEHIND)
        raise self._replaced(wanted)

    def _replaced(self, wanted: OffsetRange) -> Conflict:
        return Conflict(
            f"{self.options.noun} is not the one that this query was planned for: the current one does not have "
            f"offsets {wanted.start} to {wanted.end} of log {wanted.log}; it was dropped and recreated; start the "
            "query with a new checkpoint",
            code="LOG_REPLACED",
        )

    def _entries(self, wanted: OffsetRange, at: int, access: ServerAccess) -> Iterator[pa.RecordBatch]:
        target = self.options.target
        with client(access).arrow(
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
        whole = self.kind == "stream" or self.typed is not None or self.options.images == "dynamodb"
        if whole and self.kind != "topic":
            for batch in self._cold_rows(wanted, files, _ENTRY):
                yield self._decoded(_as_entries(batch), wanted.partition)
            return
        columns = COLD[self.kind]
        for batch in self._cold_rows(wanted, files, columns):
            names = [renamed(name) for name in columns]
            yield pa.RecordBatch.from_arrays([batch.column(name) for name in columns], names=names)

    def _cold_rows(
        self, wanted: OffsetRange, files: Sequence[Any] | None, columns: tuple[str, ...]
    ) -> Iterator[pa.RecordBatch]:
        assert self.store is not None, "a task of cold files needs cold storage"
        if files is None:
            files = cold.files(self.store, self.place, wanted.log, wanted.start, wanted.end)
        return cold.read(self.store, files, wanted.log, wanted.start, wanted.end, columns)


def _as_entries(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Entries of a log from cold rows; the first row of each has its bytes."""
    rows = rows.filter(rows.column("body").is_valid())
    at_ms = pc.divide(rows.column("timestamp").cast(pa.int64()), 1_000)
    columns = [rows.column("log"), rows.column("position"), rows.column("next"), at_ms, rows.column("body")]
    return pa.RecordBatch.from_arrays(columns, names=["log", "position", "next", "at_ms", "body"])


def renamed(column: str) -> str:
    """The name in rows of a column of cold storage."""
    return _RENAMED.get(column, column)


def public_name(column: str) -> str:
    """The name that Spark sees of a column of cold storage."""
    return next((name for name, stored in IMAGE_TEXTS.items() if stored == column), renamed(column))


def clipped(each: OffsetRange, start: int, end: int) -> OffsetRange:
    return OffsetRange(each.partition, each.log, start, end)
