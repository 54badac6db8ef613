"""The sink: rows written to a table, a topic or a stream, exactly once.

Theory of operation
-------------------
Each task leaves its rows on the server as *stages*, which nobody sees. The driver, which knows the tasks that counted,
commits the listed stages in one transaction, once for each batch of a query. A task that ran twice, a batch that is
run again after a crash, other tasks in the second run than in the first: none of it writes a row twice. Stages that
nobody commits expire.

Which batch of which query a task works for stands in its local properties, and so it comes back with what it staged.

That is exactly once as long as the query has its checkpoint. With a `consumer`, the commit also carries the range of
the source that its rows come from, which the server compares with what it has applied: then it holds without one.
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
from tailrace.spark.connection import FIRST_S, Facts, client, patiently, target_facts
from tailrace.spark.failures import told

if TYPE_CHECKING:
    from tailrace.spark.options import Access, Options

_log = logging.getLogger("tailrace.spark")
SEND_BYTES: Final = 8 * limits.MiB  # about what is staged at once
PIECE_ROWS: Final = 10_000  # converted at once: of narrow columns, few bytes become many
_COMMIT_BYTES: Final = limits.COMMIT_BYTES_MAX * 3 // 4  # as counted here, which is not to the byte what the server has
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
class Staged(WriterCommitMessage):
    """What a task has left on the server, and of which part of the source it is."""

    stages: list[str]
    sizes: list[tuple[int, int]]  # rows and about the bytes of each
    query: str
    batch: int
    ranges: dict[int, tuple[int, int]] = field(default_factory=dict)  # by log


class _Sink:
    """What batch and streaming have in common."""

    def __init__(self, options: Options, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise Invalid(
                f"{options.noun} can only be appended to; use mode('append'), and outputMode('append') in a "
                "streaming query",
                code="APPEND_ONLY",
            )
        self._options = options
        self._fence = Fence(options, schema) if options.consumer is not None else None
        self._shape = shape(options, target_facts(options, FIRST_S), schema, self._fence)

    def _stage(self, batches: Iterator[pa.RecordBatch], query: str, batch_id: int) -> Staged:
        here = client(self._options.access)
        target = {str(self._options.kind): self._options.name}
        done = Staged([], [], query, batch_id)
        for made, size in _gathered(self._rows(batches, done.ranges), most_rows(self._options)):
            # A stage is one request that may be sent again: the first one, if it arrived after all, expires.
            stage = patiently(lambda made=made: here.stage(made, **target))  # type: ignore[misc]
            if stage is not None:
                done.stages.append(stage)
                done.sizes.append((len(made), size))
        return done

    def _rows(
        self, batches: Iterator[pa.RecordBatch], ranges: dict[int, tuple[int, int]]
    ) -> Iterator[tuple[list[Any], int]]:
        """Rows as they are sent, some at a time, and their bytes; where they come from goes into `ranges`."""
        for batch in rows.pieces(batches, PIECE_ROWS, SEND_BYTES):
            if self._fence is not None:
                self._fence.see(batch, ranges)
            made = self._shape.rows(batch)
            yield made, rows.size_of(made)

    def _commit(self, query: str, batch_id: int, stages: list[str], ranges: dict[int, tuple[int, int]]) -> None:
        consumer = self._options.consumer
        told_ranges = ranges if consumer is not None else None
        here = client(self._options.access)
        target = {str(self._options.kind): self._options.name}
        patiently(
            lambda: here.commit_stages(
                query, batch_id, stages, consumer=consumer, ranges=told_ranges, strict=False, **target
            )
        )

    def _drop(self, messages: list[WriterCommitMessage | None]) -> None:
        """Forget what was staged. If that fails too, it expires."""
        for message in messages:
            for stage in message.stages if isinstance(message, Staged) else ():
                try:
                    client(self._options.access).drop_stage(stage)
                except Error as error:
                    _log.warning("stage %s was not dropped, and will expire: %s", stage, error)


class Writer(_Sink, DataSourceArrowWriter):
    """Writes a data frame: all at once as many rows as one commit takes, more in several transactions."""

    def __init__(self, options: Options, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite=overwrite)
        self._query = f"batch-{uuid.uuid4()}"

    @told
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._stage(iterator, self._query, 0)

    @told
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        staged = [message for message in messages if isinstance(message, Staged) and message.stages]
        if not staged:
            return
        ranges = merged(staged)
        pairs = [pair for each in staged for pair in zip(each.stages, each.sizes, strict=True)]
        groups = list(grouped(pairs, most_rows(self._options)))
        if len(groups) > 1 and ranges:
            count = sum(size for each in staged for size, _ in each.sizes)
            raise TooLarge(
                f"{count} rows are more than are written at once, which a consumer's fence needs; "
                "write fewer rows at a time, or leave the consumer out"
            )
        for number, group in enumerate(groups):
            self._commit(self._query, number, group, ranges)

    @told
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._drop(messages)


class StreamWriter(_Sink, DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query, each once."""

    @told
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "a task, and no context of it"
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        assert query and batch, "a streaming write, and no query"
        return self._stage(iterator, query, int(batch))

    @told
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        staged = [message for message in messages if isinstance(message, Staged) and message.stages]
        if not staged:
            return
        assert all(each.batch == batchId for each in staged), f"staged for another batch than {batchId}"
        stages = [stage for each in staged for stage in each.stages]
        self._commit(staged[0].query, batchId, stages, merged(staged))

    @told
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._drop(messages)


# -- what is written


def shape(options: Options, found: Facts, schema: StructType, fence: Fence | None) -> rows.Shape:
    """How the frame's rows become the target's; an error where they cannot."""
    left_out = set() if fence is None else fence.columns
    names = [name for name in schema.fieldNames() if name not in left_out]
    match options.kind:
        case "table":
            return _items(options, found, schema, [name for name in names if name not in about("table")])
        case "topic":
            return _messages(options, schema, names)
        case _:
            return _values(options, found, schema, names)


def _items(options: Options, found: Facts, schema: StructType, names: list[str]) -> rows.Shape:
    if options.label is not None:
        raise Invalid("label names a change stream, which only the source reads; leave it out")
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
    return rows.Items(options.name, names, [name for name, _ in found.keys], op)


def _messages(options: Options, schema: StructType, names: list[str]) -> rows.Shape:
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
    return rows.Messages(value, key, partition)


def _values(options: Options, found: Facts, schema: StructType, names: list[str]) -> rows.Shape:
    value = options.value_column or ("value" if "value" in names else None)
    if value is not None and value in names:
        _check_type(schema, value, (StringType, BinaryType), "string or binary")
        return rows.Values(value)
    plain = (found.content_type or "").partition(";")[0].strip().lower()
    if value is None and plain == "application/json" and names:
        return rows.Documents(names)
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


# -- which part of the source


class Fence:
    """Which columns tell where a row comes from, and which log that is."""

    def __init__(self, options: Options, schema: StructType) -> None:
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
        self._logs = sorted(_positions(options.access, options.consumer))
        if not self._logs:
            raise Invalid(
                f"consumer {options.consumer!r} has no position yet: give the source the same option, consumer="
                f"{options.consumer!r}, which pins where it starts",
                code="UNKNOWN_CONSUMER",
            )
        if len(self._logs) > 1 and self._log is None and self._partition is None:
            raise Invalid(
                f"consumer {options.consumer!r} reads {len(self._logs)} logs, and the frame does not tell which a row "
                f"is of; keep its column '{prefix}partition', it is not written",
                code="WRONG_SCHEMA",
            )

    def see(self, batch: pa.RecordBatch, ranges: dict[int, tuple[int, int]]) -> None:
        """Widen the ranges by what these rows come from."""
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

    def _log_of(self, told: int | None) -> int:
        if self._log is not None and told is not None:
            return told
        if told is None or not 0 <= told < len(self._logs):
            raise Invalid(f"the column {self._partition!r} is {told} in a row; keep it as it was read")
        return self._logs[told]  # logs of a topic are numbered in the order of its partitions


def _positions(access: Access, consumer: str) -> dict[int, int]:
    """How far the consumer is, by log."""
    try:
        found: dict[int, int] = patiently(lambda: client(access).job(consumer), FIRST_S)["positions"]
    except NotFound:
        return {}
    return found


def _widen(ranges: dict[int, tuple[int, int]], log: int, first: int, after: int) -> None:
    low, high = ranges.get(log, (first, after))
    ranges[log] = (min(low, first), max(high, after))


def merged(staged: list[Staged]) -> dict[int, tuple[int, int]]:
    """The ranges of all tasks together."""
    ranges: dict[int, tuple[int, int]] = {}
    for each in staged:
        for log, (first, after) in each.ranges.items():
            _widen(ranges, log, first, after)
    return ranges


# -- how much at once


def most_rows(options: Options) -> int:
    """How many rows one commit writes."""
    return limits.COMMIT_ITEMS_MAX if options.kind == "table" else limits.COMMIT_ROWS_MAX


def _gathered(made: Iterator[tuple[list[Any], int]], rows_max: int) -> Iterator[tuple[list[Any], int]]:
    """Rows that are sent together, no more than one commit takes, and their bytes."""
    held: list[Any] = []
    total = 0
    for some, size in made:
        if held and (total + size > SEND_BYTES or len(held) + len(some) > rows_max):
            yield held, total
            held, total = [], 0
        held += some
        total += size
    if held:
        yield held, total


def grouped(stages: list[tuple[str, tuple[int, int]]], rows_max: int) -> Iterator[list[str]]:
    """Stages that one commit may write."""
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
