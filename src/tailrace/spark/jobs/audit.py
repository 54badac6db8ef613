"""`audit`: who changed what, when; over the whole history, hot and cold.

There is a row for each change, in order: `changed` lists the attributes that differ, with their values before and after
as JSON. Time and position are filtered where the history is read, so that a query about an hour does not read a year;
Spark filters by principal, event and key. Where a whole key is given, row groups whose Bloom filter does not have the
key are skipped, by Spark's own Parquet reader in a directory, by Arrow in a bucket (`native`). The result
is a data frame, or one file, which the driver writes row group by row group. The driver fetches a result by partitions,
each as a whole; so for a file executors cut it into partitions of as many rows as a row group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from tailrace.client import Client
from tailrace.errors import Invalid
from tailrace.spark.jobs.fold import plain
from tailrace.spark.jobs.restore import moment_ms
from tailrace.spark.native import KeyValue, history_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

EVENTS: Final = ("INSERT", "MODIFY", "REMOVE")
FORMATS: Final = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
FILE_ROWS: Final = 10_000  # fetched and written at a time
ROW_BITS: Final = 33  # of the number of a row in its partition, in monotonically_increasing_id
CHANGED: Final = "array<struct<name: string, before: string, after: string>>"
TABLE_DDL: Final = (
    "time timestamp, sequence bigint, index int, event string, table string, keys string, principal string, "
    f"changed {CHANGED}"
)
TOPIC_COLUMNS: Final = (
    "timestamp AS time", "partition", "offset", "op AS event", "source_table AS table",
    "decode(key, 'UTF-8') AS keys", "principal", "message_id", "length(payload) AS bytes",
)  # fmt: skip

TABLE_ORDER: Final = ("sequence", "index")
TOPIC_ORDER: Final = ("partition", "offset")

_NUMBER: Final = "_number"  # a column for a while: partition and row
_attributes: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_changed_type: Final = pa.list_(pa.struct([("name", pa.string()), ("before", pa.string()), ("after", pa.string())]))


class Audited(msgspec.Struct, frozen=True):
    """A result that was written to a file."""

    path: str
    rows: int


def audit(
    spark: SparkSession,
    *,
    url: str,
    table: str | None = None,
    topic: str | None = None,
    token: str | None = None,
    key: Any = None,
    principal: str | None = None,
    events: Sequence[str] | str | None = None,
    since: datetime | str | int | None = None,
    until: datetime | str | int | None = None,
    output: str | None = None,
    format: str | None = None,  # noqa: A002
) -> DataFrame | Audited:
    """What was changed in a table, or sent to a topic, from `since` on and before `until` (a datetime, ISO 8601, or ms
    since 1970), of a `key` (its value, JSON of it, or a dict; of a table with a sort key also the first value alone),
    by a `principal`, of some `events` (INSERT, MODIFY, REMOVE). With `output`, a file: csv, json or parquet by its
    suffix."""
    if (table is None) == (topic is None):
        raise Invalid("name either a table or a topic; streams do not record their writers")
    wanted = _events(events)
    kind = _format(output, format)
    options: dict[str, Any] = (
        {"url": url, "topic": topic} if table is None else {"url": url, "table": table, "images": "json"}
    )
    for name, given in (("startingTimestamp", since), ("endingTimestamp", until)):
        if given is not None:
            options[name] = str(moment_ms(given))
    if token is not None:
        options["token"] = token
    with Client(url, token=token) as client:
        info = client.logs(table=table) if table is not None else client.logs(topic=topic)
    from pyspark.sql import functions as F

    condition = None if key is None else _key_condition(key, info)
    if condition is not None and condition[1] is not None:
        frame = (
            history_of(spark, options, condition[1])
            .where(condition[0])
            .orderBy(*(TABLE_ORDER if table else TOPIC_ORDER))
        )
    else:
        frame = spark.read.format("tailrace").options(**options).load()
        frame = frame if condition is None else frame.where(condition[0])
    if principal is not None:
        frame = frame.where(F.col("principal") == principal)
    if wanted:
        frame = frame.where(F.col("event" if table is not None else "op").isin(*wanted))
    if table is not None:
        frame = frame.mapInArrow(_comparing(table), TABLE_DDL)
    else:
        frame = frame.selectExpr(*TOPIC_COLUMNS)
    return frame if output is None or kind is None else _written(frame, output, kind)


# -- parameters


def _key_condition(key: Any, info: dict[str, Any]) -> tuple[Column, KeyValue | None]:
    """The condition that rows have this key; and the value that Bloom filters have, if it is a whole key."""
    from pyspark.sql import functions as F

    if info["kind"] == "topic":  # the key of a message is bytes
        sought = key if isinstance(key, bytes) else str(key).encode()
        return F.col("key") == F.lit(bytearray(sought)), KeyValue("key", sought)
    text, whole = key_text(key, tuple((name, kind) for name, kind in info["keys"]))
    if not whole:
        return F.col("keys").startswith(text), None
    return F.col("keys") == text, KeyValue("keys", text.encode())


def _events(given: Sequence[str] | str | None) -> tuple[str, ...]:
    if given is None:
        return ()
    names = given.split(",") if isinstance(given, str) else given
    found = tuple(each.strip().upper() for each in names)
    for each in found:
        if each not in (*EVENTS, "UPDATE", "DELETE"):
            raise Invalid(f"{each!r} is not an event; use {', '.join(EVENTS)}")
    return found


def key_text(given: Any, keys: tuple[tuple[str, str], ...]) -> tuple[str, bool]:
    """A key as changes have it, in plain JSON; and whether it is all of it, or only the beginning."""
    names = [name for name, _ in keys]
    values = _values(given, names)
    typed: dict[str, Any] = {}
    for name, kind in keys[: len(values)]:
        typed[name] = {kind: _typed(values[name], name, kind)}
    text = plain(msgspec.json.encode(typed).decode())
    return (text, True) if len(values) == len(keys) else (text[:-1] + ",", False)


def _values(given: Any, names: list[str]) -> dict[str, Any]:
    """The values of the key's attributes by name: of all, or of the first."""
    if isinstance(given, str) and given.lstrip().startswith(("{", "[")):
        try:
            given = msgspec.json.decode(given)
        except msgspec.DecodeError:
            pass  # it is a string that looks like JSON
    if isinstance(given, list | tuple):
        given = dict(zip(names, given, strict=False)) if len(given) <= len(names) else {"": given}
    elif not isinstance(given, Mapping):
        given = {names[0]: given}
    if not given or (list(given) != names[: len(given)] and set(given) != set(names)):
        raise Invalid(f"{given!r} is not a key of the table; its key is {', '.join(names)}")
    return {name: given[name] for name in names if name in given}


def _typed(value: Any, name: str, kind: str) -> str:
    if kind == "S" and isinstance(value, str):
        return value
    if kind == "N" and not isinstance(value, bool):
        return str(value)
    if kind == "B" and isinstance(value, str):
        return value  # base64, as it is shown
    raise Invalid(f"{name} of the key is {value!r}, and must be of type {kind}")


def _format(output: str | None, given: str | None) -> str | None:
    if output is None:
        return None
    kind = given or FORMATS.get(Path(output).suffix.lower())
    if kind not in ("csv", "json", "parquet"):
        raise Invalid(
            f"{output!r}: {given or 'its suffix'} is not a format; use the suffix .csv, .json or .parquet, or give a "
            "format"
        )
    return kind


# -- differences


def _comparing(table: str) -> Any:
    """The function that executors apply to changes."""

    def compare(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in ("event", "keys", "before", "after"))
            found = [changed(*row) for row in zip(*columns, strict=True)]
            names = ("timestamp", "sequence", "index", "event", "keys", "principal")
            taken = {name: batch.column(name) for name in names}
            yield pa.RecordBatch.from_arrays(
                [
                    taken["timestamp"],
                    taken["sequence"],
                    taken["index"],
                    taken["event"],
                    pa.repeat(pa.scalar(table, pa.string()), batch.num_rows),
                    taken["keys"],
                    taken["principal"],
                    pa.array(found, _changed_type),
                ],
                names=["time", "sequence", "index", "event", "table", "keys", "principal", "changed"],
            )

    return compare


def changed(event: str, keys: str, old: str | None, new: str | None) -> list[dict[str, str | None]] | None:
    """The attributes that differ, without the key; None where the change stream has no images to compare."""
    if (old is None and event != "INSERT") or (new is None and event != "REMOVE"):
        return None
    known = _attributes.decode(keys)
    before = {} if old is None else _attributes.decode(old)
    after = {} if new is None else _attributes.decode(new)
    names = [name for name in {**before, **after} if name not in known]
    return [
        {"name": name, "before": _text(before.get(name)), "after": _text(after.get(name))}
        for name in names
        if _text(before.get(name)) != _text(after.get(name))
    ]


def _text(raw: msgspec.Raw | None) -> str | None:
    return None if raw is None else bytes(raw).decode()


# -- files


def _written(frame: DataFrame, output: str, kind: str) -> Audited:
    """Write the rows to one file, which appears when it is complete."""
    path = Path(output.removeprefix("file://"))
    part = path.with_name(f".{path.name}.part")
    rows = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            writer = _writer(frame, file, kind)
            with bounded(frame) as cut:
                for batch in _batches(cut):
                    writer.write(batch)
                    rows += len(batch)
            writer.close()
        part.replace(path)
    except OSError as error:
        raise Invalid(
            f"cannot write {str(path)!r}: {error.strerror or error}; give a path that this user may write"
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return Audited(str(path), rows)


@contextmanager
def bounded(frame: DataFrame) -> Iterator[DataFrame]:
    """The rows in the same order, in partitions of FILE_ROWS at most. They are kept on the disks of executors until the
    end: what a partition has is known when all of it was computed."""
    from pyspark import StorageLevel
    from pyspark.sql import functions as F

    numbered = frame.withColumn(_NUMBER, F.monotonically_increasing_id()).persist(StorageLevel.DISK_ONLY)
    try:
        counts = numbered.groupBy(F.shiftright(_NUMBER, ROW_BITS).alias("part")).count().collect()
        if all(row["count"] <= FILE_ROWS for row in counts):
            yield numbered.drop(_NUMBER)
            return
        found = {row["part"]: row["count"] for row in counts}
        before = list(accumulate((found.get(number, 0) for number in range(max(found))), initial=0))
        first = F.lit(before)[F.shiftright(_NUMBER, ROW_BITS).cast("int")]
        row = F.col(_NUMBER).bitwiseAND((1 << ROW_BITS) - 1)
        at = F.floor((first + row) / FILE_ROWS).cast("int")
        cut = numbered.repartitionById(-(-sum(found.values()) // FILE_ROWS), at)
        yield cut.sortWithinPartitions(_NUMBER).drop(_NUMBER)
    finally:
        numbered.unpersist()


def _batches(frame: DataFrame) -> Iterator[list[dict[str, Any]]]:
    held: list[dict[str, Any]] = []
    for row in frame.toLocalIterator(prefetchPartitions=True):
        held.append(row.asDict(recursive=True))
        if len(held) == FILE_ROWS:
            yield held
            held = []
    if held:
        yield held


class _JsonLines:
    """One JSON object on each line; `before` and `after` are JSON in it, not text."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if "changed" in row and row["changed"] is not None:
                row["changed"] = [_nested(each) for each in row["changed"]]
            self._file.write(msgspec.json.encode({**row, "time": _utc(row["time"])}) + b"\n")

    def close(self) -> None:
        """There is nothing to close."""


class _Columns:
    """CSV and Parquet: one schema for all rows."""

    def __init__(self, file: Any, schema: pa.Schema, kind: str) -> None:
        self._schema = schema
        self._csv = kind == "csv"
        if self._csv:
            self._schema = pa.schema([_flat(field) for field in schema])
        self._writer: Any = (
            pa.csv.CSVWriter(file, self._schema)
            if self._csv
            else pq.ParquetWriter(file, self._schema, compression="zstd")
        )

    def write(self, rows: list[dict[str, Any]]) -> None:
        if self._csv:
            rows = [{name: _cell(value) for name, value in row.items()} for row in rows]
        else:
            rows = [{**row, "time": _utc(row["time"])} for row in rows]
        self._writer.write_batch(pa.RecordBatch.from_pylist(rows, self._schema))

    def close(self) -> None:
        self._writer.close()


def _writer(frame: DataFrame, file: Any, kind: str) -> _JsonLines | _Columns:
    if kind == "json":
        return _JsonLines(file)
    from pyspark.sql.pandas.types import to_arrow_schema

    return _Columns(file, to_arrow_schema(frame.schema, timezone="UTC"), kind)


def _flat(field: pa.Field) -> pa.Field:
    nested = pa.types.is_list(field.type) or pa.types.is_timestamp(field.type)
    return pa.field(field.name, pa.string()) if nested else field


def _cell(value: Any) -> Any:
    """A value as CSV has it: times as ISO 8601, lists as JSON."""
    if isinstance(value, datetime):
        return _utc(value).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return msgspec.json.encode([_nested(each) for each in value]).decode() if isinstance(value, list) else value


def _nested(each: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": each["name"],
        **{side: None if each[side] is None else msgspec.Raw(each[side].encode()) for side in ("before", "after")},
    }


def _utc(at: datetime) -> datetime:
    """Spark returns times in the local zone, without a zone."""
    return at.astimezone(UTC)
