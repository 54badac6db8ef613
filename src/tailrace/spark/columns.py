"""The columns that Spark sees: of changes, messages and values, with the types of a table, and inferred from records.

The images of a change are structs (`typed`) whose fields are the declared columns of the table, those of the option
`rowSchema`, or inferred; or JSON, or VARIANT.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec import UNSET
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from tailrace.bulk.columns import schema_of
from tailrace.bulk.text import TypedItem, TypedValue
from tailrace.bulk.typed_rows import FACTS, IMAGES, SEQUENCE
from tailrace.bulk.values import is_double
from tailrace.errors import Invalid
from tailrace.spark.connection import SourceInfo
from tailrace.spark.options import SourceOptions

INFERRED_FROM: Final = 1_000  # records, the first ones; of a table also as many of the last ones
_LONG, _TEXT, _FLAG, _BYTES = LongType(), StringType(), BooleanType(), BinaryType()
_DECIMAL: Final = DecimalType(38, 18)
_INT64: Final = 1 << 63
_DIGITS: Final = 38

DECLARED: Final[Mapping[str, DataType]] = {
    "TEXT": _TEXT,
    "BIGINT": _LONG,
    "DOUBLE": DoubleType(),
    "DECIMAL": _DECIMAL,
    "BOOLEAN": _FLAG,
    "BLOB": _BYTES,
    "JSON": _TEXT,  # any value, as JSON
}
_KEYS: Final[Mapping[str, DataType]] = {"S": _TEXT, "N": _DECIMAL, "B": _BYTES}

# The columns with the record itself; the others are metadata.
_CONTENT: Final = {"table": (), "topic": ("payload",), "stream": ("value",)}
_NAME: Final = re.compile(
    r"\s*(`(?:[^`]|``)+`|[^\s:]+)[\s:]+(.+?)(?:\s+NOT\s+NULL)?(?:\s+COMMENT\s+.*)?\s*", re.I | re.S
)


def facts_of(kind: str, content_type: str | None = None) -> list[StructField]:
    """The columns of a record without the images of a change."""
    schema = schema_of(kind, content_type)
    return list(from_arrow_schema(pa.schema([schema.field(name) for name in FACTS]) if kind == "table" else schema))


def public(found: SourceInfo, settings: SourceOptions, row: StructType | None = None) -> StructType:
    """The columns of a table's changes, a topic's messages or a stream's values. `row`: the type of typed images."""
    fields = facts_of(found.kind, found.content_type)
    if found.kind != "table":
        return StructType(fields)
    if settings.images == "typed":
        assert row is not None, "typed images have a type"
        types: list[DataType] = [keys_type(found, row), row, row]
    else:
        types = [VariantType() if settings.images == "variant" else _TEXT] * len(IMAGES)
    return StructType([*fields, *(StructField(name, each) for name, each in zip(IMAGES, types, strict=True))])


def keys_type(found: SourceInfo, row: StructType) -> StructType:
    """The type of a table's keys: as in its rows."""
    known = {field.name: field.dataType for field in row.fields}
    return StructType([StructField(name, known.get(name, _KEYS[kind])) for name, kind in found.keys])


def declared(found: SourceInfo) -> StructType | None:
    """The declared columns of a table; None: it has none."""
    if not found.columns:
        return None
    return StructType([StructField(name, DECLARED.get(kind, _TEXT)) for name, kind in found.columns])


def items_of(row: StructType) -> StructType:
    """The columns of a table's items: those of the row, and the sequence at which they were read."""
    taken = any(field.name == SEQUENCE for field in row.fields)
    return StructType([*row.fields, *([] if taken else [StructField(SEQUENCE, _LONG)])])


def ddl(found: SourceInfo, settings: SourceOptions) -> str:
    """The columns for the option `rowSchema`, which only Spark can read, as Spark reads them."""
    assert settings.row_schema is not None
    if settings.mode == "items":
        return f"{settings.row_schema}, {SEQUENCE} bigint"
    fields = [f"`{field.name}` {field.dataType.simpleString()}" for field in facts_of(found.kind)]
    given = dict(_members(settings.row_schema))
    keys = ", ".join(f"`{name}`: {given.get(name, _KEYS[kind].simpleString())}" for name, kind in found.keys)
    row = f"struct<{settings.row_schema}>"
    return ", ".join([*fields, f"`keys` struct<{keys}>", f"`before` {row}", f"`after` {row}"])


def _members(text: str) -> Iterable[tuple[str, str]]:
    """The names and types of a schema; what is no schema is left to Spark, whose error is precise."""
    depth, part = 0, ""
    for character in f"{text},":
        if character == "," and not depth:
            found = _NAME.fullmatch(part)
            if found is not None:
                yield found[1].strip("`").replace("``", "`"), found[2]
            part = ""
            continue
        depth += (character in "<(") - (character in ">)")
        part += character


# -- what a given schema means


def about(kind: str) -> dict[str, DataType]:
    """The metadata columns of rows that have attributes for columns."""
    return {f"_{each.name}": each.dataType for each in facts_of(kind) if each.name not in _CONTENT[kind]}


def is_rows(found: SourceInfo, schema: StructType) -> bool:
    """Whether rows of this schema have attributes for columns. The schema is checked."""
    if found.kind == "table" and set(schema.fieldNames()) <= {*FACTS, *IMAGES}:
        _check(found, schema, {each.name: each.dataType for each in facts_of("table")})
        kinds = {type(each.dataType) for each in schema.fields if each.name in IMAGES}
        if not (kinds <= {StringType} or kinds <= {StructType, VariantType}):
            shown = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in schema if each.name in IMAGES)
            raise Invalid(
                f"images cannot be read as {shown}; make all of them structs, or all of them string (JSON), or variant",
                code="WRONG_SCHEMA",
            )
        return False
    if found.kind != "table" and schema == StructType(facts_of(found.kind, found.content_type)):
        return False
    _check(found, schema, about(found.kind))
    return True


def _check(found: SourceInfo, schema: StructType, known: Mapping[str, DataType]) -> None:
    for each in schema.fields:
        wanted = known.get(each.name)
        if wanted is not None and each.dataType != wanted:
            raise Invalid(
                f"the column {each.name!r} is {each.dataType.simpleString()} in the schema and "
                f"{wanted.simpleString()} in {found.kind} {found.name!r}; give it that type or leave it out",
                code="WRONG_SCHEMA",
            )


def have_text_images(schema: StructType) -> bool:
    """Whether the images of changes are JSON."""
    return any(each.name in IMAGES and isinstance(each.dataType, StringType) for each in schema.fields)


# -- inference


def inferred_row(found: SourceInfo, items: Iterable[TypedItem]) -> StructType:
    """The type of a table's rows: its keys, then the attributes of these items in the order of appearance."""
    shape = _InferredType()
    for name, _ in found.keys:
        shape.fields[name] = _InferredType()
    for item in items:
        shape.see({name: _plain(value) for name, value in item.items()})
    known = dict(found.keys)
    return StructType(
        [
            StructField(name, _KEYS[known[name]] if name in known and not inner.kinds else inner.type())
            for name, inner in shape.fields.items()
        ]
    )


def _plain(value: TypedValue) -> Any:
    """A stored value as a Python value."""
    for content in (value.S, value.BOOL, value.B, value.SS, value.BS):
        if content is not UNSET:
            return content
    if value.N is not UNSET:
        return Decimal(value.N)
    if value.NS is not UNSET:
        return [Decimal(each) for each in value.NS]
    if value.L is not UNSET:
        return [_plain(each) for each in value.L]
    if value.M is not UNSET:
        return {name: _plain(each) for name, each in value.M.items()}
    return None


def inferred(kind: str, documents: Iterable[str | bytes]) -> StructType:
    """A schema from the first records' JSON: attributes in the order of appearance, then the metadata columns."""
    shape = _InferredType()
    for document in documents:
        try:
            found = _decoder.decode(document)
        except (msgspec.DecodeError, UnicodeDecodeError):
            found = None
        if not isinstance(found, dict):
            raise Invalid(
                f"inferSchema needs records that are JSON objects, and found {document[:80]!r}; "
                "remove the option, or give a schema",
                code="WRONG_SCHEMA",
            )
        shape.see(found)
    if not shape.fields:
        raise Invalid(
            "inferSchema found no records to infer a schema from; give a schema, or write records first",
            code="WRONG_SCHEMA",
        )
    return with_facts(kind, StructType([StructField(name, inner.type()) for name, inner in shape.fields.items()]))


def with_facts(kind: str, row: StructType) -> StructType:
    """Columns for attributes, then the metadata columns."""
    taken = set(row.fieldNames())
    return StructType(
        [*row.fields, *(StructField(name, each) for name, each in about(kind).items() if name not in taken)]
    )


_decoder = msgspec.json.Decoder(dict[str, Any] | Any, float_hook=Decimal)


class _InferredType:
    """The kinds of values at one path of the documents."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()
        self.fields: dict[str, _InferredType] = {}
        self.items: _InferredType | None = None
        self.whole = self.fraction = 0  # digits of the numbers, before and after the point
        self.doubles = True  # whether all numbers are doubles

    def see(self, value: Any) -> None:
        match value:
            case None:
                return
            case bool():
                self.kinds.add("boolean")
            case int() | Decimal():
                self._see_number(Decimal(value))
            case str():
                self.kinds.add("string")
            case bytes():
                self.kinds.add("binary")
            case list():
                self.kinds.add("array")
                self.items = self.items or _InferredType()
                for each in value:
                    self.items.see(each)
            case dict():
                self.kinds.add("struct")
                for name, each in value.items():
                    self.fields.setdefault(name, _InferredType()).see(each)

    def _see_number(self, value: Decimal) -> None:
        exponent = value.as_tuple().exponent
        assert isinstance(exponent, int), value
        fits = -_INT64 <= value < _INT64 and exponent >= 0
        self.kinds.add("long" if fits else "decimal")
        self.whole = max(self.whole, value.adjusted() + 1)
        self.fraction = max(self.fraction, -exponent)
        self.doubles = self.doubles and is_double(str(value))

    def type(self) -> DataType:
        """The narrowest type that holds them all; text, if they have nothing in common."""
        if self.kinds == {"long"}:
            return _LONG
        if self.kinds == {"boolean"}:
            return _FLAG
        if self.kinds == {"binary"}:
            return _BYTES
        if self.kinds == {"struct"} and self.fields:
            return StructType([StructField(name, inner.type()) for name, inner in self.fields.items()])
        if self.kinds == {"array"} and self.items is not None:
            return ArrayType(self.items.type())
        if self.kinds and self.kinds <= {"long", "decimal"}:
            return self._number()
        return _TEXT

    def _number(self) -> DataType:
        if self.whole <= _DIGITS - _DECIMAL.scale and self.fraction <= _DECIMAL.scale:
            return _DECIMAL
        spare = _DIGITS - self.whole - self.fraction
        if spare >= 0:
            return DecimalType(_DIGITS, self.fraction + spare // 2)
        return DoubleType() if self.doubles else _TEXT
