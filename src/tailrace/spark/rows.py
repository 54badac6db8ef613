"""The rows that are staged: Arrow for tables, messages for topics, bytes for streams."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import pyarrow as pa

from tailrace.errors import Invalid
from tailrace.jobs import variant_values

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_VALUE_BYTES: Final = 10  # about what a value has beside its content


class RowEncoder(Protocol):
    """Encodes rows for one kind of target: a batch for a table, else a list."""

    def rows(self, batch: pa.RecordBatch) -> Any: ...


class ItemEncoder:
    """Rows of a table: each column is an attribute, a null is none. The server encodes them, column by column."""

    def __init__(self, table: str, names: Sequence[str], keys: Sequence[str], op: str | None) -> None:
        self._table = table
        self._names = [*names, *filter(None, (op,))]
        self._keys = list(keys)

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for name in self._keys:
            if batch.column(name).null_count:
                raise Invalid(
                    f"the column {name!r} is null in a row, and it is a key of table {self._table!r}; "
                    "filter such rows, or give them a key"
                )
        return batch.select(self._names)


def check_storable(name: str, kind: DataType, code: str) -> None:
    """Raise if a table cannot store a column of this type: before the rows are computed."""
    from pyspark.sql.types import (
        AnsiIntervalType,
        ArrayType,
        CalendarIntervalType,
        IntegralType,
        MapType,
        StringType,
        StructType,
    )

    if isinstance(kind, AnsiIntervalType | CalendarIntervalType):
        raise Invalid(
            f"the column {name!r} is {kind.simpleString()}, which a table cannot store; cast it: "
            f"CAST({name} AS STRING), or compute a number, such as timestampdiff(SECOND, start, end)",
            code=code,
        )
    if isinstance(kind, ArrayType):
        check_storable(name, kind.elementType, code)
    elif isinstance(kind, StructType):
        for field in kind.fields:
            check_storable(f"{name}.{field.name}", field.dataType, code)
    elif isinstance(kind, MapType):
        if not isinstance(kind.keyType, StringType | IntegralType):
            raise Invalid(
                f"the column {name!r} is a map whose keys are {kind.keyType.simpleString()}; cast them to strings, as "
                f"in transform_keys({name}, (k, v) -> CAST(k AS STRING))",
                code=code,
            )
        check_storable(name, kind.valueType, code)


class MessageEncoder:
    """Rows of a topic."""

    def __init__(self, value: str, key: str | None, partition: str | None) -> None:
        self._value = value
        self._key = key
        self._partition = partition

    def rows(self, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
        values = binary_values(batch, self._value)
        keys = [None] * len(values) if self._key is None else _binary(batch.column(self._key)).to_pylist()
        if self._partition is None:
            return list(zip(keys, values, [None] * len(values), strict=True))
        return list(zip(keys, values, batch.column(self._partition).to_pylist(), strict=True))


class ValueEncoder:
    """Rows of a stream: the bytes of one column."""

    def __init__(self, value: str) -> None:
        self._value = value

    def rows(self, batch: pa.RecordBatch) -> list[bytes]:
        return binary_values(batch, self._value)


class DocumentEncoder:
    """Rows of a JSON stream: each a JSON object with the columns."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)

    def rows(self, batch: pa.RecordBatch) -> list[bytes]:
        batch = batch.select(self._names)
        found: list[dict[str, Any]] = batch.to_pylist()
        kind = pa.struct(list(batch.schema))
        if variant_values.has_variant(kind):
            found = [variant_values.plain(kind, row) for row in found]
        return [_json(row) for row in found]


def binary_values(batch: pa.RecordBatch, name: str) -> list[bytes]:
    """A column of text or bytes, as bytes; without nulls."""
    column = batch.column(name)
    if column.null_count:
        raise Invalid(f"the column {name!r} is null in a row, and it is the value that is written; filter such rows")
    found: list[bytes] = _binary(column).to_pylist()
    return found


def _binary(column: pa.Array) -> pa.Array:
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())


# -- JSON


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    raise Invalid(f"{value!r} cannot be written as JSON; cast its column to a string")


_encoder: Final = msgspec.json.Encoder(decimal_format="number", enc_hook=_plain)


def _json(row: dict[str, Any]) -> bytes:
    return _encoder.encode(row)


# -- sizes


def slices(batches: Iterator[pa.RecordBatch], rows_max: int, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The batches, cut where one has more rows or bytes than are converted at once; without empty ones."""
    for batch in batches:
        count = max(-(-batch.num_rows // rows_max), min(batch.num_rows, -(-weight(batch) // bytes_max)))
        step = -(-batch.num_rows // max(1, count))
        for start in range(0, batch.num_rows, max(1, step)):
            yield batch.slice(start, step)


def weight(batch: pa.RecordBatch) -> int:
    """About the bytes of a batch as items, which repeat the names of the columns."""
    size: int = batch.nbytes
    named = sum(len(name) + _VALUE_BYTES for name in batch.schema.names)
    count: int = batch.num_rows
    return size + count * named


def size_of(made: Any) -> int:
    """About how many bytes these rows are when they are sent, or stored."""
    if isinstance(made, pa.RecordBatch):
        return weight(made)
    if made and isinstance(made[0], tuple):
        return sum(len(row[1]) + len(row[0] or b"") for row in made) + 8 * len(made)
    return sum(memoryview(row).nbytes for row in made)


def stream(batches: Sequence[pa.RecordBatch]) -> bytes:
    """Batches of one schema as an Arrow stream."""
    written = pa.BufferOutputStream()
    with pa.ipc.new_stream(written, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    found: bytes = written.getvalue().to_pybytes()
    return found
