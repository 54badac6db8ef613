"""The source, batch: from where to where, narrowed by filters, cut into tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from tailrace import limits
from tailrace.bulk.columns import decoded_entries
from tailrace.bulk.text import TypedItem
from tailrace.errors import Invalid
from tailrace.spark import columns
from tailrace.spark.connection import SourceInfo, SourceLog, client, patiently
from tailrace.spark.failures import hide_traceback, hide_traceback_each
from tailrace.spark.fetching import RangeFetcher, RowForm
from tailrace.spark.filters import PushedFilters
from tailrace.spark.options import EARLIEST, LATEST, SourceOptions
from tailrace.spark.planning import OffsetRange, ReadTask, checked, resolved

_log = logging.getLogger("tailrace.spark")
_WINDOW: Final = 64  # sequences; the first window in which the entry of a sequence is searched


class BatchReader(DataSourceReader):
    """Reads a range of a log once."""

    def __init__(self, options: SourceOptions, found: SourceInfo, form: RowForm) -> None:
        self._options = options
        self._found = found
        self._fetch = RangeFetcher(options, found, form)
        self._narrowing = PushedFilters(options.kind, is_typed=form.is_rows)

    @hide_traceback
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        return self._narrowing.push(filters)

    @hide_traceback
    def partitions(self) -> list[ReadTask]:
        return self._fetch.plan(self._found, self.ranges())

    @hide_traceback_each
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, ReadTask):  # Spark passes another kind where there is nothing to read
            yield from self._fetch.rows(partition)

    def ranges(self) -> list[OffsetRange]:
        """The range of each log to read."""
        options, parts = self._options, self._found.partitions
        starts = starting(options, parts, EARLIEST)
        ends = ending(options, parts)
        starts, warning = checked(starts, parts, options.noun, fail=options.fail_on_data_loss)
        if warning:
            _log.warning("%s", warning)
        found = []
        for part in parts:
            if part.partition in ends and ends[part.partition] > part.next and options.fail_on_data_loss:
                raise Invalid(
                    f"endingOffsets: offset {ends[part.partition]} of {options.noun}, partition {part.partition}, is "
                    f"beyond its end {part.next}; give one up to {part.next}, or 'latest'",
                    code="WRONG_OFFSET",
                )
            wanted = OffsetRange(part.partition, part.log, starts[part.partition], min(ends[part.partition], part.next))
            if self._narrowing.has(part.partition):
                found.append(self._narrowed(part, wanted))
        return [each for each in found if each.size]

    def _narrowed(self, part: SourceLog, wanted: OffsetRange) -> OffsetRange:
        low, high = self._narrowing.low, self._narrowing.high
        start = max(wanted.start, low.get("offset", wanted.start))
        end = min(wanted.end, high.get("offset", wanted.end))
        if "sequence" in low:
            start = max(start, self._of_sequence(part, low["sequence"]))
        if "sequence" in high:
            end = min(end, self._of_sequence(part, high["sequence"]))
        if "timestamp" in low:  # the first millisecond that is not before it
            start = max(start, self._at(part, -(-low["timestamp"] // 1_000)))
        if "timestamp" in high:
            end = min(end, self._at(part, -(-high["timestamp"] // 1_000)))
        return OffsetRange(wanted.partition, wanted.log, start, max(start, end))

    def _at(self, part: SourceLog, at_ms: int) -> int:
        return at(self._options, max(0, at_ms)).get(part.partition, part.next)

    def _of_sequence(self, part: SourceLog, sequence: int) -> int:
        """The position of the first entry of that sequence or a later one.

        An entry covers the positions from the end of the entry before it up to its own sequence. So it begins at the
        sequence or before it, by an unknown distance; it is searched backwards, in windows that grow while empty.
        """
        if sequence < part.earliest:
            return part.earliest
        if sequence >= part.next:
            return part.next
        window = _WINDOW
        while True:
            low = max(part.earliest, sequence - window)
            last = self._last_position(part, low, sequence + 1)
            if last is not None:
                return last
            if low == part.earliest:
                return low
            window *= 8

    def _last_position(self, part: SourceLog, start: int, end: int) -> int | None:
        def request() -> int | None:
            last: int | None = None
            with client(self._options.access).arrow(
                **self._options.target, partition=part.partition, offset=start, until=end, form="entries"
            ) as batches:
                for batch in batches:
                    last = batch.column("position")[-1].as_py() if batch.num_rows else last
            return last

        return patiently(request)


def at(options: SourceOptions, at_ms: int) -> dict[int, int]:
    """By partition, the first offset at or after this time."""
    return patiently(lambda: client(options.access).logs_at(at_ms, **options.target))


def starting(options: SourceOptions, parts: list[SourceLog], default: str) -> dict[int, int]:
    """The starting offset of each partition."""
    if options.starting_ms is not None:
        return at(options, options.starting_ms)
    return resolved(options.starting, parts, default, "startingOffsets", options.noun)


def ending(options: SourceOptions, parts: list[SourceLog]) -> dict[int, int]:
    """The ending offset of each partition."""
    if options.ending_ms is not None:
        return at(options, options.ending_ms)
    return resolved(options.ending, parts, LATEST, "endingOffsets", options.noun)


def sample(options: SourceOptions, found: SourceInfo) -> list[str | bytes]:
    """The JSON of the first messages or values."""
    documents: list[str | bytes] = []
    starts = starting(options, found.partitions, EARLIEST)
    form = RowForm(to_arrow_schema(columns.public(found, options), timezone="UTC"))
    reader = RangeFetcher(options, found, form)
    for part in found.partitions:
        start = min(max(starts.get(part.partition, part.earliest), part.earliest), part.next)
        for batch in reader.rows(ReadTask(OffsetRange(part.partition, part.log, start, part.next))):
            documents += batch.column("payload" if options.kind == "topic" else "value").drop_null().to_pylist()
            if len(documents) >= columns.INFERRED_FROM:
                return documents[: columns.INFERRED_FROM]
    return documents


def sample_items(options: SourceOptions, found: SourceInfo) -> Iterator[TypedItem]:
    """Items in the first changes of a table, and in the last ones."""
    (part,) = found.partitions
    whole = OffsetRange(part.partition, part.log, part.earliest, part.next)
    fetch = RangeFetcher(options, found, RowForm(pa.schema([])))
    yield from _changed_items(fetch, whole)
    if part.next > part.hot:
        server, target = client(options.access), options.target
        records, _ = patiently(lambda: server.count_records(part.hot, part.next, 1, **target))
        pieces = min(records // columns.INFERRED_FROM, limits.BULK_PIECES_MAX)
        if pieces > 1 or part.hot > part.earliest:
            _, cuts = patiently(lambda: server.count_records(part.hot, part.next, max(1, pieces), **target))
            yield from _changed_items(fetch, OffsetRange(part.partition, part.log, cuts[-2], part.next))


def _changed_items(fetch: RangeFetcher, wanted: OffsetRange) -> Iterator[TypedItem]:
    count = 0
    for batch in fetch.entries(wanted):
        for chunk in decoded_entries(batch.column("body").slice(0, columns.INFERRED_FROM)):
            for entry in chunk:
                for record in entry.records:
                    yield from (item for item in (record.keys, record.old, record.new) if item is not None)
                    count += 1
                if count >= columns.INFERRED_FROM:
                    return
