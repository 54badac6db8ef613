"""Messages and values that are JSON objects, with their attributes as columns, for a given schema.

The JSON of all rows is parsed at once where Arrow's parser supports it. Otherwise (a number where a text is expected, a
map, a date) it is parsed value by value, which is slower and gives a precise error: column, value, and position.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from tailrace.bulk.columns import TOPIC
from tailrace.errors import Invalid

_QUICK: Final = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_decimal,
    pa.types.is_timestamp,
)
MARK: Final = "_"  # the prefix of metadata columns
_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode: Final = msgspec.json.Encoder(decimal_format="number").encode


def typed(kind: str, rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows of `rows_of` as these columns: names with ``_`` are metadata, all others attributes of the JSON object of
    the message or value. A missing attribute is null."""
    names = set(rows.schema.names)
    meta = {field.name for field in schema if field.name[:1] == MARK and field.name[1:] in names}
    wanted = pa.schema([field.with_nullable(True) for field in schema if field.name not in meta])
    found: dict[str, pa.Array] = {}
    if len(wanted):
        texts = _documents(kind, rows)
        quick = all(_quick(field.type) for field in wanted) and _objects(texts)
        parsed = _parsed(texts, wanted) if quick else None
        found = _one_by_one(rows, texts, wanted) if parsed is None else parsed
    arrays = [rows[field.name[1:]].cast(field.type) if field.name in meta else found[field.name] for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _documents(kind: str, rows: pa.RecordBatch) -> pa.Array:
    """The JSON object of each row, as bytes."""
    return rows["payload" if kind == TOPIC else "value"].cast(pa.binary())


# -- all at once


def _quick(kind: pa.DataType) -> bool:
    """Whether Arrow's parser reads this type as we do."""
    if pa.types.is_struct(kind):
        return all(_quick(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _quick(kind.value_type)
    return any(test(kind) for test in _QUICK)


def _objects(texts: pa.Array) -> bool:
    """Whether each of them is one JSON object. Published messages are not checked, and two halves in two messages must
    not be parsed as one."""
    try:
        for text in texts.to_pylist():
            _object.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def _parsed(texts: pa.Array, schema: pa.Schema) -> dict[str, pa.Array] | None:
    """The columns, or None where the parser fails."""
    if not len(texts):
        return {field.name: pa.array([], field.type) for field in schema}
    lines = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts), b"\n")
    data = lines[0].as_buffer()
    try:
        table = arrow_json.read_json(
            pa.BufferReader(data),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=min(len(data) + 1, 2**31 - 1)),
            parse_options=arrow_json.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="ignore", newlines_in_values=True
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    assert table.num_rows == len(texts), "each text is one object"
    return {name: table[name].combine_chunks() for name in schema.names}


# -- value by value


def _one_by_one(rows: pa.RecordBatch, texts: pa.Array, schema: pa.Schema) -> dict[str, pa.Array]:
    columns: dict[str, list[Any]] = {name: [] for name in schema.names}
    for number, text in enumerate(texts.to_pylist()):
        try:
            document = json.loads(text, parse_float=Decimal)
        except (ValueError, TypeError):
            document = None
        if not isinstance(document, dict):
            raise Invalid(
                f"{_where(rows, number)} is {_shown(text)}, which is not a JSON object and has no columns; read it "
                "without a schema",
                code="NOT_TYPED",
            )
        for field in schema:
            value = document.get(field.name)
            try:
                columns[field.name].append(None if value is None else _convert(value, field.type))
            except (ValueError, TypeError, ArithmeticError):
                raise _wrong(rows, number, field, value) from None
    return {field.name: _array(rows, columns[field.name], field) for field in schema}


def _array(rows: pa.RecordBatch, values: list[Any], field: pa.Field) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError):
        for number, value in enumerate(values):  # find the value that does not fit
            try:
                pa.array([value], field.type)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError):
                raise _wrong(rows, number, field, value) from None
        raise


def _convert(value: Any, kind: pa.DataType) -> Any:
    """A JSON value for pyarrow and this type; ValueError, TypeError or ArithmeticError if it does not fit."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        _must(isinstance(value, dict))
        return {field.name: _convert(value.get(field.name), field.type) for field in kind}
    if pa.types.is_map(kind):
        _must(isinstance(value, dict))
        return [(name, _convert(held, kind.item_type)) for name, held in value.items()]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        _must(isinstance(value, list))
        return [_convert(each, kind.value_type) for each in value]
    for test, convert in _CONVERTERS:
        if test(kind):
            return convert(value, kind)
    raise TypeError


def _must(right: bool) -> None:
    if not right:
        raise ValueError


def _integer(value: Any, kind: pa.DataType) -> int:
    _must(isinstance(value, int | Decimal) and not isinstance(value, bool))
    # Before int(), which would write out all the zeros of 1e999999999.
    _must(
        isinstance(value, int) or (value.is_finite() and value.adjusted() < 20 and value == value.to_integral_value())
    )
    return int(value)


def _floating(value: Any, kind: pa.DataType) -> float:
    _must(isinstance(value, int | Decimal) and not isinstance(value, bool))
    return float(value)


def _decimal(value: Any, kind: pa.DataType) -> Decimal:
    _must(isinstance(value, int | Decimal | str) and not isinstance(value, bool))
    number = Decimal(value)
    if not number.is_finite():
        raise InvalidOperation
    return number


def _boolean(value: Any, kind: pa.DataType) -> bool:
    _must(isinstance(value, bool))
    return bool(value)


def _string(value: Any, kind: pa.DataType) -> str:
    """A text unchanged, anything else as JSON."""
    return value if isinstance(value, str) else _encode(value).decode()


def _binary(value: Any, kind: pa.DataType) -> bytes:
    return b64decode(value, validate=True)


def _timestamp(value: Any, kind: pa.DataType) -> datetime:
    moment = datetime.fromisoformat(value)
    if kind.tz is None:
        return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _date(value: Any, kind: pa.DataType) -> date:
    return date.fromisoformat(value)


_CONVERTERS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any, pa.DataType], Any]], ...]] = (
    (pa.types.is_integer, _integer),
    (pa.types.is_floating, _floating),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_boolean, _boolean),
    (pa.types.is_string, _string),
    (pa.types.is_large_string, _string),
    (pa.types.is_binary, _binary),
    (pa.types.is_large_binary, _binary),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_date, _date),
)


# -- errors


def _where(rows: pa.RecordBatch, number: int) -> str:
    if "partition" in rows.schema.names:
        return f"the message at offset {rows['offset'][number]} of partition {rows['partition'][number]}"
    return f"the value at offset {rows['offset'][number]}"


def _shown(value: Any) -> str:
    return repr(value)[:100]


def _wrong(rows: pa.RecordBatch, number: int, field: pa.Field, value: Any) -> Invalid:
    return Invalid(
        f"column {field.name!r} is {field.type}, and {_where(rows, number)} has {_shown(value)} there; give the column "
        "a type that holds it, string for instance",
        code="NOT_TYPED",
    )
