"""The streaming source: the offsets of each batch.

Theory of operation
-------------------
Spark stores the offsets of each batch in its checkpoint, as JSON that is produced here: by partition the offset, the
log that it belongs to, and the database. A table that was dropped and recreated has another log; continuing in it at
the old offset would skip records silently.

With a `consumer` the start is pinned on the server at the first request, because Spark requests it again after a
restart without a checkpoint. If the server has applied more than the checkpoint says, the next batch ends at that
position: a batch is then either applied or new as a whole, and the fence of the sink never sees a part.

`commit` is not used: it lags a batch behind and is not called for the last one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tailrace import limits
from tailrace.errors import Gone, Invalid
from tailrace.spark import connection
from tailrace.spark.connection import SourceInfo, client, patiently
from tailrace.spark.failures import hide_traceback, hide_traceback_each
from tailrace.spark.fetching import RangeFetcher, RowForm
from tailrace.spark.options import EARLIEST, SourceOptions
from tailrace.spark.planning import OffsetRange, ReadTask, checked
from tailrace.spark.reading import starting

_log = logging.getLogger("tailrace.spark")

RECORDS: Final = limits.COMMIT_ITEMS_MAX * 3 // 4  # of a batch, by default; fits into one commit to a table
Offset = dict[str, Any]  # as stored in the checkpoint


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a log as it grows."""

    def __init__(self, options: SourceOptions, found: SourceInfo, form: RowForm) -> None:
        self._options = options
        self._fetch = RangeFetcher(options, found, form)
        self._target: dict[int, int] | None = None  # the end of a run with AvailableNow
        self._applied: dict[int, int] | None = None  # by log, what the consumer has applied

    # -- offsets

    @hide_traceback
    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        found = self._facts()
        starts = starting(self._options, found.partitions, EARLIEST)
        starts, warning = checked(starts, found.partitions, self._options.noun, fail=self._options.fail_on_data_loss)
        _warn(warning)
        if self._options.consumer is not None:
            logs = {part.partition: part.log for part in found.partitions}
            pinned = self._pinned({logs[partition]: offset for partition, offset in starts.items()})
            starts = {partition: pinned.get(logs[partition], offset) for partition, offset in starts.items()}
        return checkpointed(found, starts)

    @hide_traceback
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        found = self._facts()
        starts = self._starts(found, start)
        ends = dict(starts)
        for part in found.partitions:
            ends[part.partition] = max(starts[part.partition], self._end_of(part.partition, part.next))
        if isinstance(limit, ReadMaxRows) and any(ends[each] > starts[each] for each in starts):
            reach = patiently(
                lambda: client(self._options.access).advance(starts, limit.max_rows, **self._options.target)
            )
            ends = {each: max(starts[each], min(end, reach.get(each, end))) for each, end in ends.items()}
        return checkpointed(found, until_applied(found, starts, ends, self._applied_of()))

    @hide_traceback
    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        found = self._facts()
        return checkpointed(found, {part.partition: part.next for part in found.partitions})

    @hide_traceback
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._options.records_max or RECORDS)

    @hide_traceback
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = {part.partition: part.next for part in self._facts().partitions}

    # -- a batch

    @hide_traceback
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        found = self._facts()
        starts = self._starts(found, start)
        ends = self._starts(found, end)
        ranges = []
        for part in found.partitions:
            if logs_of(end).get(part.partition, part.log) == part.log:
                ranges.append(OffsetRange(part.partition, part.log, starts[part.partition], ends[part.partition]))
        return self._fetch.plan(found, [each for each in ranges if each.size])

    @hide_traceback_each
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, ReadTask):
            yield from self._fetch.rows(partition)

    def commit(self, end: Offset) -> None:
        """Not used: see above."""

    def stop(self) -> None:
        """There is nothing to release."""

    # -- positions

    def _facts(self) -> SourceInfo:
        return connection.source_info(self._options)

    def _end_of(self, partition: int, tail: int) -> int:
        return tail if self._target is None else min(tail, self._target.get(partition, 0))

    def _starts(self, found: SourceInfo, journal: Offset) -> dict[int, int]:
        """The offset of each partition, if the checkpoint is of these logs and they still have it."""
        fail = self._options.fail_on_data_loss
        offsets, lost = same_logs(found, journal, self._options.noun, fail=fail)
        starts, warning = checked(offsets, found.partitions, self._options.noun, fail=fail)
        _warn("; ".join(filter(None, (lost, warning))))
        return starts

    def _pinned(self, positions: Mapping[int, int]) -> dict[int, int]:
        name = self._options.consumer
        assert name is not None
        here = client(self._options.access)
        stored = patiently(lambda: here.pin(name, {}))
        foreign = sorted(set(stored) - {part.log for part in self._facts().partitions})
        if foreign:
            raise Invalid(
                f"consumer {name!r} has positions in other logs than those of {self._options.noun} (log {foreign[0]}): "
                "of another source, or of one that was dropped and recreated; use a separate name for each, or drop "
                f"this one: DELETE /v1/jobs/{name}",
                code="CONSUMER_IN_USE",
            )
        self._applied = patiently(lambda: here.pin(name, positions)) if positions else stored
        return self._applied

    def _applied_of(self) -> dict[int, int]:
        """The positions that the consumer had applied when this run began, by log. A run that continues from its
        checkpoint has not requested them yet."""
        if self._options.consumer is None:
            return {}
        return self._pinned({}) if self._applied is None else self._applied


def checkpointed(found: SourceInfo, offsets: Mapping[int, int]) -> Offset:
    """Offsets as the checkpoint stores them."""
    return {
        "database": found.database,
        "logs": {str(part.partition): part.log for part in found.partitions},
        "offsets": {str(partition): offset for partition, offset in sorted(offsets.items())},
    }


def until_applied(
    found: SourceInfo, starts: Mapping[int, int], ends: Mapping[int, int], applied: Mapping[int, int]
) -> dict[int, int]:
    """Where a batch ends, if some of it was applied before: no partition continues before all have caught up, or the
    batch would be new in one and old in another."""
    known = {part.partition: applied.get(part.log, 0) for part in found.partitions}
    if not any(starts[each] < known[each] for each in known):
        return dict(ends)
    return {each: min(end, max(starts[each], known.get(each, 0))) for each, end in ends.items()}


def logs_of(journal: Offset) -> dict[int, int]:
    return {int(partition): log for partition, log in journal.get("logs", {}).items()}


def same_logs(found: SourceInfo, journal: Offset, noun: str, *, fail: bool) -> tuple[dict[int, int], str]:
    """The checkpoint's offsets that are valid in these logs, and a warning if others are not."""
    try:
        logs = logs_of(journal)
        offsets = {int(partition): int(offset) for partition, offset in journal["offsets"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Invalid(
            f"the checkpoint holds {journal!r}, which is not an offset of {noun}; start with a new checkpoint"
        ) from None
    lost = ""
    if journal.get("database", found.database) != found.database:
        lost = f"the checkpoint is of {noun} in another database"
    gone = [str(p.partition) for p in found.partitions if logs.get(p.partition, p.log) != p.log]
    if gone and not lost:
        lost = f"{noun} is not the one that the checkpoint is of: it was dropped and recreated"
    if not lost:
        return offsets, ""
    if fail:
        raise Gone(
            f"{lost}; start with a new checkpoint, or set failOnDataLoss to false to continue at the earliest offset",
            code="DATA_LOSS",
        )
    kept = {p.partition for p in found.partitions if logs.get(p.partition) == p.log} if gone else set()
    return {
        each: offset for each, offset in offsets.items() if each in kept
    }, f"{lost}; reading continues at the earliest offset"


def _warn(text: str) -> None:
    if text:
        _log.warning("%s", text)
