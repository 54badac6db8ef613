"""From Arrow to the rows that are staged: items for tables, messages for topics, bytes for streams.

Columns are converted whole where Arrow can do it. Items are even encoded so, as MessagePack, part by part: a Python
dictionary for each value would cost five times as much.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import Invalid

PUT: Final = "PUT"
DELETE: Final = "DELETE"
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"  # with as many digits of a second as the type has


_encode: Final = msgspec.msgpack.Encoder().encode


class RowEncoder(Protocol):
    """Encodes rows for one kind of target."""

    def rows(self, batch: pa.RecordBatch) -> list[Any]: ...


class ItemEncoder:
    """Rows of a table: each column is an attribute, a null is none."""

    def __init__(self, table: str, names: Sequence[str], keys: Sequence[str], op: str | None) -> None:
        self._table = table
        self._names = list(names)
        self._keys = list(keys)
        self._op = op

    def rows(self, batch: pa.RecordBatch) -> list[msgspec.Raw]:
        for name in self._keys:
            if batch.column(name).null_count:
                raise Invalid(
                    f"the column {name!r} is null in a row, and it is a key of table {self._table!r}; "
                    "filter such rows, or give them a key"
                )
        parts = [packed(batch.column(name), name) for name in self._names]
        present = np.zeros(batch.num_rows, dtype=">u4")
        for name in self._names:
            present += batch.column(name).is_valid().to_numpy(zero_copy_only=False)
        filled = [pc.fill_null(part, b"") for part in parts]
        joined = pc.binary_join_element_wise(self._begins(batch), _number(present), *filled, b"")
        return [msgspec.Raw(row) for row in joined.to_pylist()]

    def _begins(self, batch: pa.RecordBatch) -> Any:
        """The beginning of each row: an array of two, the operation, and a map."""
        put, delete = (pa.scalar(b"\x92" + _encode(op) + b"\xdf", pa.binary()) for op in (PUT, DELETE))
        if self._op is None:
            return put
        ops = pc.utf8_upper(pc.fill_null(batch.column(self._op), PUT))
        for op in ops.unique().to_pylist():
            if op not in (PUT, DELETE):
                raise Invalid(f"the column '_op' is {op!r} in a row; use PUT (or null) or DELETE")
        return pc.if_else(pc.equal(ops, DELETE), delete, put)


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
        return [_json(row) for row in batch.select(self._names).to_pylist()]


def binary_values(batch: pa.RecordBatch, name: str) -> list[bytes]:
    """A column of text or bytes, as bytes; without nulls."""
    column = batch.column(name)
    if column.null_count:
        raise Invalid(f"the column {name!r} is null in a row, and it is the value that is written; filter such rows")
    found: list[bytes] = _binary(column).to_pylist()
    return found


def _binary(column: pa.Array) -> pa.Array:
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())


# -- typed values


def packed(column: pa.Array, name: str) -> pa.Array:
    """A column as an attribute of that name with DynamoDB's typed values, in MessagePack; null where it is null."""
    begin = _encode(name)
    if pa.types.is_boolean(column.type):
        true, false = (pa.scalar(begin + _encode({"BOOL": value}), pa.binary()) for value in (True, False))
        return pc.if_else(column, true, false)
    kind, texts = _texts(column, name)
    if kind is None:
        values = [None if value is None else begin + _encode(_typed(value, name)) for value in column.to_pylist()]
        return pa.array(values, pa.binary())
    texts = texts.cast(pa.binary())
    sizes = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False).astype(">u4")
    prefix = pa.scalar(begin + b"\x81" + _encode(kind) + b"\xdb", pa.binary())  # a map of one; a text of some size
    return pc.binary_join_element_wise(prefix, _number(sizes), texts, b"")


def _number(values: Any) -> pa.Array:
    """Numbers as the four bytes that MessagePack has for sizes."""
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(4), len(values), [None, pa.py_buffer(values.tobytes())])
    return fixed.cast(pa.binary())


def _texts(column: pa.Array, name: str) -> tuple[str | None, pa.Array]:
    """The type and the text of a column's values, if they have one; no type for nested ones."""
    type_ = column.type
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return "S", column
    if pa.types.is_integer(type_) or pa.types.is_decimal(type_):
        return "N", column.cast(pa.string())
    if pa.types.is_floating(type_):
        if column.null_count < len(column) and not pc.all(pc.is_finite(column)).as_py():
            raise Invalid(
                f"the column {name!r} is NaN or infinite in a row, which a table cannot store; filter such rows"
            )
        return "N", column.cast(pa.string())
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        texts = [None if value is None else b64encode(value) for value in column.to_pylist()]
        return "B", pa.array(texts, pa.binary())
    if pa.types.is_timestamp(type_):
        return "S", pc.strftime(_utc(column), format=_TIME)
    if pa.types.is_date(type_):
        return "S", column.cast(pa.string())
    return None, column


def _utc(column: pa.Array) -> pa.Array:
    return column if column.type.tz else column.cast(pa.timestamp(column.type.unit, "UTC"))


def _typed(value: Any, name: str) -> dict[str, Any]:
    """One value of a nested column. Arrow has made it a Python value; maps are lists of pairs."""
    match value:
        case None:
            return {"NULL": True}
        case bool():
            return {"BOOL": value}
        case str():
            return {"S": value}
        case int():
            return {"N": str(value)}
        case float():
            if value != value or value in (float("inf"), float("-inf")):
                raise Invalid(f"the column {name!r} holds {value}, which a table cannot store; filter such rows")
            return {"N": repr(value)}
        case Decimal():
            return {"N": _digits(value)}
        case bytes():
            return {"B": b64encode(value).decode()}
        case dict():
            return {"M": {key: _typed(inner, name) for key, inner in value.items() if inner is not None}}
        case list() if value and all(isinstance(each, tuple) and len(each) == 2 for each in value):
            return {"M": {str(key): _typed(inner, name) for key, inner in value}}
        case list():
            return {"L": [_typed(inner, name) for inner in value]}
        case _:
            return {"S": value.isoformat() if hasattr(value, "isoformat") else str(value)}


def _digits(value: Decimal) -> str:
    """Without the zeros that a column's scale adds."""
    text = f"{value:f}"
    return (text.rstrip("0").rstrip(".") or "0") if "." in text else text


# -- JSON


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    raise Invalid(f"{value!r} cannot be written as JSON; cast its column to a string")


_encoder: Final = msgspec.json.Encoder(decimal_format="number", enc_hook=_plain)


def _json(row: dict[str, Any]) -> bytes:
    return _encoder.encode(row)


def slices(batches: Iterator[pa.RecordBatch], rows_max: int, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The batches, cut where one has more rows or bytes than are converted at once; without empty ones."""
    for batch in batches:
        count = max(-(-batch.num_rows // rows_max), min(batch.num_rows, -(-batch.nbytes // bytes_max)))
        step = -(-batch.num_rows // max(1, count))
        for start in range(0, batch.num_rows, max(1, step)):
            yield batch.slice(start, step)


def size_of(made: list[Any]) -> int:
    """About how many bytes these rows are when they are sent."""
    if made and isinstance(made[0], tuple):
        return sum(len(row[1]) + len(row[0] or b"") for row in made) + 8 * len(made)
    return sum(memoryview(row).nbytes for row in made)
