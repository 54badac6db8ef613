"""The columns that Spark sees: of each kind, of typed rows, and inferred from the first records."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final

import msgspec
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from tailrace.bulk.columns import schema_of
from tailrace.errors import Invalid
from tailrace.spark.connection import SourceInfo

INFERRED_FROM: Final = 1_000  # records
_LONG, _TEXT, _FLAG, _DECIMAL = LongType(), StringType(), BooleanType(), DecimalType(38, 18)
_INT64: Final = 1 << 63
_INTEGER_DIGITS_MAX: Final = 20  # of what a decimal(38, 18) holds
_SCALE_MAX: Final = 18

# The columns with the item itself; the others are metadata.
_CONTENT: Final = {"table": ("keys", "old_image", "new_image"), "topic": ("payload",), "stream": ("value",)}


def public(facts: SourceInfo) -> StructType:
    """The columns of a table's changes, a topic's messages or a stream's."""
    return from_arrow_schema(schema_of(facts.kind, facts.content_type))


def about(kind: str) -> dict[str, DataType]:
    """The metadata columns of typed rows."""
    fields = from_arrow_schema(schema_of(kind)).fields
    return {f"_{each.name}": each.dataType for each in fields if each.name not in _CONTENT[kind]}


def is_typed(facts: SourceInfo, schema: StructType) -> bool:
    """Whether rows of this schema have the item's attributes for columns. If so, the schema is checked."""
    if schema.fieldNames() == public(facts).fieldNames() and schema == public(facts):
        return False
    known = about(facts.kind)
    for each in schema.fields:
        wanted = known.get(each.name)
        if wanted is not None and each.dataType != wanted:
            raise Invalid(
                f"the column {each.name!r} is {each.dataType.simpleString()} in the schema and "
                f"{wanted.simpleString()} in {facts.kind} {facts.name!r}; give it that type or leave it out",
                code="WRONG_SCHEMA",
            )
    return True


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
    fields = [StructField(name, inner.type()) for name, inner in shape.fields.items()]
    taken = set(shape.fields)
    return StructType(
        fields + [StructField(name, kind_of) for name, kind_of in about(kind).items() if name not in taken]
    )


_decoder = msgspec.json.Decoder(dict[str, Any] | Any, float_hook=Decimal)


class _InferredType:
    """The kinds of values at one path of the documents."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()
        self.fields: dict[str, _InferredType] = {}
        self.items: _InferredType | None = None

    def see(self, value: Any) -> None:
        match value:
            case None:
                return
            case bool():
                self.kinds.add("boolean")
            case int():
                self.kinds.add("long" if -_INT64 <= value < _INT64 else _number(Decimal(value)))
            case Decimal():
                self.kinds.add(_number(value))
            case str():
                self.kinds.add("string")
            case list():
                self.kinds.add("array")
                self.items = self.items or _InferredType()
                for each in value:
                    self.items.see(each)
            case dict():
                self.kinds.add("struct")
                for name, each in value.items():
                    self.fields.setdefault(name, _InferredType()).see(each)

    def type(self) -> DataType:
        """The narrowest type that holds them all; text, if they have nothing in common."""
        if self.kinds == {"long"}:
            return _LONG
        if self.kinds == {"boolean"}:
            return _FLAG
        if self.kinds == {"struct"} and self.fields:
            return StructType([StructField(name, inner.type()) for name, inner in self.fields.items()])
        if self.kinds == {"array"} and self.items is not None:
            return ArrayType(self.items.type())
        if self.kinds and self.kinds <= {"long", "decimal"}:
            return _DECIMAL
        if self.kinds and self.kinds <= {"long", "decimal", "double"}:
            return DoubleType()
        return _TEXT


def _number(value: Decimal) -> str:
    """The type of a number that does not fit into a bigint: decimal if all its digits fit, else double."""
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int), value
    return "decimal" if -exponent <= _SCALE_MAX and value.adjusted() < _INTEGER_DIGITS_MAX else "double"
