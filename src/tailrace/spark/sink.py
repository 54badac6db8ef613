"""The sink: rows written to a table, a topic or a stream, exactly once.

Theory of operation
-------------------
Each task sends its rows to the server as *stages*, which are not visible to readers. The driver, which knows the
successful tasks, commits their stages in one transaction, once for each batch of a query. So a task that ran twice, or
a batch that is repeated after a crash, possibly with other tasks, never writes a row twice. Uncommitted stages expire.

A task has the query and the batch in its local properties, and returns them with its stages.

This is exactly-once as long as the query has its checkpoint. With a `consumer`, the commit also has the range of the
source that its rows come from, which the server compares with the ranges applied before: then no checkpoint is needed.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from tailrace import limits
from tailrace.errors import Error, Invalid, NotFound, TooLarge
from tailrace.spark import rows
from tailrace.spark.columns import about
from tailrace.spark.connection import FIRST_S, PATIENCE_S, SourceInfo, client, patiently, target_info
from tailrace.spark.failures import hide_traceback

if TYPE_CHECKING:
    from tailrace.spark.options import ServerAccess, SourceOptions

_log = logging.getLogger("tailrace.spark")
SEND_BYTES: Final = 8 * limits.MiB  # about the size of one stage request
SLICE_ROWS: Final = 10_000  # of a topic or a stream, converted at once
_COMMIT_BYTES: Final = limits.COMMIT_BYTES_MAX * 3 // 4  # as estimated here; the server's count differs a little
OP: Final = "_op"
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)
_KEY_TYPES: Final = {
    "S": (StringType,),
    "N": (*_WHOLE, DecimalType, FloatType, DoubleType),
    "B": (BinaryType,),
}
_CASTS: Final = {"S": "string", "N": "bigint or decimal", "B": "binary"}


@dataclass
class StagedRows(WriterCommitMessage):
    """The stages of a task, and the range of the source that they come from."""

    stages: list[str]
    sizes: list[tuple[int, int]]  # rows and about the bytes of each
    query: str
    batch: int
    ranges: dict[int, tuple[int, int]] = field(default_factory=dict)  # by log


class _StagingWriter:
    """The common part of batch and streaming writers."""

    first_s = FIRST_S  # how long to wait for a server that has not answered yet

    def __init__(self, options: SourceOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise Invalid(
                f"{options.noun} can only be appended to; use mode('append'), and outputMode('append') in a "
                "streaming query",
                code="APPEND_ONLY",
            )
        self._options = options
        self._fence = ConsumerFence(options, schema, self.first_s) if options.consumer is not None else None
        self._encoder = encoder_for(options, target_info(options, self.first_s), schema, self._fence)

    def _stage(self, batches: Iterator[pa.RecordBatch], query: str, batch_id: int) -> StagedRows:
        done = StagedRows([], [], query, batch_id)
        for made, count, size in _gathered(self._rows(batches, done.ranges)):
            # The request may be repeated: a first stage that did arrive expires.
            done.stages.append(patiently(lambda made=made: self._send(made)))  # type: ignore[misc]
            done.sizes.append((count, size))
        return done

    def _send(self, made: list[Any]) -> str:
        """Stage rows that were gathered."""
        here = client(self._options.access)
        if self._options.kind == "table":
            return here.stage_arrow(rows.stream(made), self._options.name)
        target = {str(self._options.kind): self._options.name}
        stage = here.stage([row for some in made for row in some], **target)
        assert stage is not None, "there are rows"
        return stage

    def _rows(
        self, batches: Iterator[pa.RecordBatch], ranges: dict[int, tuple[int, int]]
    ) -> Iterator[tuple[Any, int, int]]:
        """Encoded rows, some at a time, their number and their bytes; their ranges of the source are added to
        `ranges`."""
        for batch in rows.slices(batches, SLICE_ROWS, SEND_BYTES):
            if self._fence is not None:
                self._fence.see(batch, ranges)
            made = self._encoder.rows(batch)
            yield made, batch.num_rows, rows.size_of(made)

    def _commit(self, query: str, batch_id: int, stages: list[str], ranges: dict[int, tuple[int, int]]) -> None:
        consumer = self._options.consumer
        fenced_ranges = ranges if consumer is not None else None
        here = client(self._options.access)
        target = {str(self._options.kind): self._options.name}
        patiently(
            lambda: here.commit_stages(
                query, batch_id, stages, consumer=consumer, ranges=fenced_ranges, strict=False, **target
            )
        )

    def _drop(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop the stages. Those that cannot be dropped expire."""
        for message in messages:
            for stage in message.stages if isinstance(message, StagedRows) else ():
                try:
                    client(self._options.access).drop_stage(stage)
                except Error as error:
                    _log.warning("stage %s was not dropped, and will expire: %s", stage, error)


class BatchWriter(_StagingWriter, DataSourceArrowWriter):
    """Writes a data frame, in one transaction if it fits, else in several. With the options `query` and `batch` it is
    that batch of a query, and written once."""

    def __init__(self, options: SourceOptions, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite=overwrite)
        if options.query is not None and options.kind != "table":
            raise Invalid(f"query and batch identify a write to a table; remove them for {options.noun}")
        self._query = f"batch-{uuid.uuid4()}" if options.query is None else options.query
        self._batch = options.batch

    @hide_traceback
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._stage(iterator, self._query, self._batch)

    @hide_traceback
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        staged = [message for message in messages if isinstance(message, StagedRows) and message.stages]
        if not staged:
            return
        ranges = merged(staged)
        if self._options.kind == "table":  # one commit, however large
            self._commit(self._query, self._batch, [stage for each in staged for stage in each.stages], ranges)
            return
        pairs = [pair for each in staged for pair in zip(each.stages, each.sizes, strict=True)]
        groups = list(grouped(pairs, limits.COMMIT_ROWS_MAX))
        if len(groups) > 1 and ranges:
            count = sum(size for each in staged for size, _ in each.sizes)
            raise TooLarge(
                f"{count} rows do not fit into one transaction, which the option consumer requires; "
                "write fewer rows at a time, or remove the option"
            )
        for number, group in enumerate(groups):
            self._commit(self._query, number, group, ranges)

    @hide_traceback
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._drop(messages)


class StreamWriter(_StagingWriter, DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query, each once. Spark makes a writer for each commit, so the server may be
    restarting just then."""

    first_s = PATIENCE_S

    @hide_traceback
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "a task has a context"
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        assert query and batch, "a streaming write has a query and a batch"
        return self._stage(iterator, query, int(batch))

    @hide_traceback
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        staged = [message for message in messages if isinstance(message, StagedRows) and message.stages]
        if not staged:
            return
        assert all(each.batch == batchId for each in staged), f"staged for another batch than {batchId}"
        stages = [stage for each in staged for stage in each.stages]
        self._commit(staged[0].query, batchId, stages, merged(staged))

    @hide_traceback
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._drop(messages)


# -- encoding


def encoder_for(
    options: SourceOptions, found: SourceInfo, schema: StructType, fence: ConsumerFence | None
) -> rows.RowEncoder:
    """The encoder of the frame's rows for the target; an error if the columns do not fit."""
    left_out = set() if fence is None else fence.columns
    names = [name for name in schema.fieldNames() if name not in left_out]
    match options.kind:
        case "table":
            return _items(options, found, schema, [name for name in names if name not in about("table")])
        case "topic":
            return _messages(options, schema, names)
        case _:
            return _values(options, found, schema, names)


def _items(options: SourceOptions, found: SourceInfo, schema: StructType, names: list[str]) -> rows.RowEncoder:
    if options.label is not None:
        raise Invalid("label selects a change stream to read from; remove it to write")
    op = OP if OP in names else None
    names = [name for name in names if name != OP]
    if op is not None:
        _check_type(schema, OP, (StringType,), "string")
    for name, kind in found.keys:
        if name not in names:
            raise Invalid(
                f"the frame has no column {name!r}, which is a key of {options.noun}; it has {_listed(names)}",
                code="WRONG_SCHEMA",
            )
        _check_type(schema, name, _KEY_TYPES[kind], f"{_CASTS[kind]}, since the key of {options.noun} is {kind}")
    for name in names:
        rows.check_storable(name, schema[name].dataType, "WRONG_SCHEMA")
    return rows.ItemEncoder(options.name, names, [name for name, _ in found.keys], op)


def _messages(options: SourceOptions, schema: StructType, names: list[str]) -> rows.RowEncoder:
    value = options.value_column or next((name for name in ("payload", "value") if name in names), None)
    if value is None or value not in names:
        raise Invalid(
            f"the frame has no column {value or 'payload'!r} to write to {options.noun}; it has {_listed(names)}: "
            "select to_json(struct(*)) AS payload, or name one with valueColumn",
            code="WRONG_SCHEMA",
        )
    _check_type(schema, value, (StringType, BinaryType), "string or binary")
    key = options.key_column or ("key" if "key" in names else None)
    if key is not None:
        if key not in names:
            raise Invalid(
                f"keyColumn is {key!r}, and the frame has {_listed(names)}; name one of these", code="WRONG_SCHEMA"
            )
        _check_type(schema, key, (StringType, BinaryType), "string or binary")
    partition = "partition" if "partition" in names else None
    if partition is not None:
        _check_type(schema, partition, _WHOLE, "int")
    return rows.MessageEncoder(value, key, partition)


def _values(options: SourceOptions, found: SourceInfo, schema: StructType, names: list[str]) -> rows.RowEncoder:
    value = options.value_column or ("value" if "value" in names else None)
    if value is not None and value in names:
        _check_type(schema, value, (StringType, BinaryType), "string or binary")
        return rows.ValueEncoder(value)
    plain = (found.content_type or "").partition(";")[0].strip().lower()
    if value is None and plain == "application/json" and names:
        return rows.DocumentEncoder(names)
    raise Invalid(
        f"the frame has no column {value or 'value'!r} to write to {options.noun} ({plain or 'of no type'}); it has "
        f"{_listed(names)}: name one with valueColumn",
        code="WRONG_SCHEMA",
    )


def _check_type(schema: StructType, name: str, allowed: tuple[type[DataType], ...], wanted: str) -> None:
    found = schema[name].dataType
    if not isinstance(found, allowed):
        raise Invalid(
            f"the column {name!r} is {found.simpleString()}; cast it to {wanted}",
            code="WRONG_SCHEMA",
        )


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"


# -- the range of the source


class ConsumerFence:
    """The columns with the source position of a row, and the log of that position."""

    def __init__(self, options: SourceOptions, schema: StructType, patience_s: float) -> None:
        assert options.consumer is not None
        names = schema.fieldNames()
        prefix = "_" if "_offset" in names else ""
        self._first, self._after = f"{prefix}offset", f"{prefix}next_offset"
        for name in (self._first, self._after):
            if name not in names:
                raise Invalid(
                    f"consumer {options.consumer!r} fences by the source's offsets, and the frame has no column "
                    f"{name!r}; keep it in the frame, it is not written",
                    code="WRONG_SCHEMA",
                )
        self._log = next((name for name in (f"{prefix}log",) if name in names), None)
        self._partition = next((name for name in (f"{prefix}partition",) if name in names), None)
        self.columns = {self._first, self._after, *filter(None, (self._log, self._partition))}
        self._logs = sorted(_positions(options.access, options.consumer, patience_s))
        if not self._logs:
            raise Invalid(
                f"consumer {options.consumer!r} has no position yet: give the source the same option, consumer="
                f"{options.consumer!r}, which pins where it starts",
                code="UNKNOWN_CONSUMER",
            )
        if len(self._logs) > 1 and self._log is None and self._partition is None:
            raise Invalid(
                f"consumer {options.consumer!r} reads {len(self._logs)} logs, and the frame does not say which a row "
                f"is of; keep its column '{prefix}partition', it is not written",
                code="WRONG_SCHEMA",
            )

    def see(self, batch: pa.RecordBatch, ranges: dict[int, tuple[int, int]]) -> None:
        """Extend the ranges by those of these rows."""
        table = pa.table({"first": batch.column(self._first), "after": batch.column(self._after)})
        if table["first"].null_count or table["after"].null_count:
            raise Invalid(
                f"the column {self._first!r} or {self._after!r} is null in a row; keep them as they were read"
            )
        by = self._log or (self._partition if len(self._logs) > 1 else None)
        if by is None:
            first, after = pc.min(table["first"]).as_py(), pc.max(table["after"]).as_py()
            if first is not None:
                _widen(ranges, self._logs[0], first, after)
            return
        table = table.append_column("by", batch.column(by))
        grouped = table.group_by("by").aggregate([("first", "min"), ("after", "max")])
        for row in grouped.to_pylist():
            _widen(ranges, self._log_of(row["by"]), row["first_min"], row["after_max"])

    def _log_of(self, value: int | None) -> int:
        if self._log is not None and value is not None:
            return value
        if value is None or not 0 <= value < len(self._logs):
            raise Invalid(f"the column {self._partition!r} is {value} in a row; keep it as it was read")
        return self._logs[value]  # logs of a topic are numbered in the order of its partitions


def _positions(access: ServerAccess, consumer: str, patience_s: float) -> dict[int, int]:
    """The positions of the consumer, by log."""
    try:
        found: dict[int, int] = patiently(lambda: client(access).job(consumer), patience_s)["positions"]
    except NotFound:
        return {}
    return found


def _widen(ranges: dict[int, tuple[int, int]], log: int, first: int, after: int) -> None:
    low, high = ranges.get(log, (first, after))
    ranges[log] = (min(low, first), max(high, after))


def merged(staged: list[StagedRows]) -> dict[int, tuple[int, int]]:
    """The ranges of all tasks together."""
    ranges: dict[int, tuple[int, int]] = {}
    for each in staged:
        for log, (first, after) in each.ranges.items():
            _widen(ranges, log, first, after)
    return ranges


# -- sizes


def _gathered(made: Iterator[tuple[Any, int, int]]) -> Iterator[tuple[list[Any], int, int]]:
    """Rows that are sent together, their number and their bytes."""
    held: list[Any] = []
    rows_held = bytes_held = 0
    for some, count, size in made:
        if held and (bytes_held + size > SEND_BYTES or rows_held + count > limits.COMMIT_ROWS_MAX):
            yield held, rows_held, bytes_held
            held, rows_held, bytes_held = [], 0, 0
        held.append(some)
        rows_held, bytes_held = rows_held + count, bytes_held + size
    if held:
        yield held, rows_held, bytes_held


def grouped(stages: list[tuple[str, tuple[int, int]]], rows_max: int) -> Iterator[list[str]]:
    """Groups of stages that fit into one commit."""
    held: list[str] = []
    rows_held = bytes_held = 0
    for stage, (count, size) in stages:
        if held and (rows_held + count > rows_max or bytes_held + size > _COMMIT_BYTES):
            yield held
            held, rows_held, bytes_held = [], 0, 0
        held.append(stage)
        rows_held += count
        bytes_held += size
    if held:
        yield held
