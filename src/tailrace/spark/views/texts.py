"""Values as JSON text, equal for equal values only: Spark's default patterns drop the microseconds of times."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_VARIANT: Final = re.compile(r"(?:^|[<:,])variant(?:$|[>,])")  # a field may have this name
_COLLATION: Final = re.compile(r"(?<=string) collate \w+")
_SECONDS: Final = "yyyy-MM-dd'T'HH:mm:ss"
_MILLISECONDS: Final = {"timestampFormat": f"{_SECONDS}.SSSXXX", "timestampNTZFormat": f"{_SECONDS}.SSS"}
_MICROSECONDS: Final = {"timestampFormat": f"{_SECONDS}.SSSSSSXXX", "timestampNTZFormat": f"{_SECONDS}.SSSSSS"}


def json_text(column: Column, kind: DataType) -> Column:
    """A value of any type as JSON. Its times have three digits of a second if that is exact for all of them, else
    six."""
    from pyspark.sql import functions as f

    text = _only(f.to_json(f.array(column), _MILLISECONDS))
    if not _has_times(kind):
        return text
    return f.when(_is_in_milliseconds(column, kind), text).otherwise(_only(f.to_json(f.array(column), _MICROSECONDS)))


def _only(text: Column) -> Column:
    """The element of a JSON array that has one."""
    from pyspark.sql import functions as f

    return f.substring(text, f.lit(2), f.length(text) - 2)


def _has_times(kind: DataType) -> bool:
    """Whether values of this type have times that the patterns are for; those in the keys of maps are numbers."""
    from pyspark.sql.types import ArrayType, MapType, StructType, TimestampNTZType, TimestampType

    if isinstance(kind, ArrayType | MapType):
        return _has_times(kind.elementType if isinstance(kind, ArrayType) else kind.valueType)
    if isinstance(kind, StructType):
        return any(_has_times(field.dataType) for field in kind.fields)
    return isinstance(kind, TimestampType | TimestampNTZType)


def _is_in_milliseconds(column: Column, kind: DataType) -> Column:
    """Whether all times in a value of a type that has times are whole milliseconds."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, MapType, StructType

    found: Column = f.lit(True)
    if isinstance(kind, ArrayType):
        element = kind.elementType
        found = f.forall(column, lambda each: _is_in_milliseconds(each, element))
    elif isinstance(kind, MapType):
        value = kind.valueType
        found = f.forall(f.map_values(column), lambda each: _is_in_milliseconds(each, value))
    elif isinstance(kind, StructType):
        for field in kind.fields:
            if _has_times(field.dataType):
                found = found & _is_in_milliseconds(column.getField(field.name), field.dataType)
    else:
        found = f.unix_micros(column.cast("timestamp")) % 1000 == 0
    return f.coalesce(found, f.lit(True))


def has_variant(kind: str) -> bool:
    """Whether a type, as Spark writes it, is VARIANT or has it inside."""
    return _VARIANT.search(kind) is not None


def is_comparable(kind: str) -> bool:
    """Whether Spark can tell if two values of this type are the same: VARIANT has no equality, and a collation may make
    different texts equal."""
    return not has_variant(kind) and not is_collated(kind)


def is_collated(kind: str) -> bool:
    """Whether a type is a text under a collation, or has one inside: different texts may be equal."""
    return _COLLATION.search(kind) is not None


def without_collations(kind: str) -> str:
    """The type of the same values as they are stored."""
    return _COLLATION.sub("", kind)


def comparable(column: Column, kind: str) -> Column:
    """The value, or a text that represents it where values of its type are not comparable."""
    from pyspark.sql import functions as f

    if is_comparable(kind):
        return column
    if kind == "variant":  # bytes and their Base64 have the same JSON
        return f.to_json(f.array(f.schema_of_variant(column), f.to_json(column)))
    return _only(f.to_json(f.array(column), _MICROSECONDS))


def row_text(frame: DataFrame) -> Column:
    """The columns of a row as one text, which is equal for equal rows only."""
    from pyspark.sql import functions as f

    columns = [comparable(f.col(name), kind).alias(name) for name, kind in frame.dtypes]
    return f.to_json(f.struct(*columns), _MICROSECONDS)
