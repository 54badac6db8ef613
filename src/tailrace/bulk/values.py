"""Stored values as values of Arrow types, one by one and exactly: a value that a type does not hold is an error.

Numbers have 38 digits and a free exponent, which no type of Arrow holds. So a whole number fits an integer type by its
range, and any number fits a decimal if none of its digits is lost. A double holds a number if it is the one that the
double is written as: 0.1 fits, and a number of 20 digits does not. A string holds every value: a text as it is,
anything else as JSON.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET

from tailrace.bulk import variant
from tailrace.bulk.text import TypedItem, TypedValue, plain_item, plain_value
from tailrace.errors import Invalid

DOUBLE_DIGITS: Final = 15  # any number with so many digits is the one that its double is written as
FLOAT_DIGITS: Final = 6
_SHOWN: Final = 100  # characters of a value in an error
_encode: Final = msgspec.json.Encoder().encode

Convert = Callable[[TypedValue], Any]


class Misfit(Exception):
    """A value that its column does not hold."""

    def __init__(self, kind: pa.DataType | None, value: TypedValue) -> None:
        super().__init__(kind, value)
        self.kind = kind  # None: there is no such column
        self.value = value
        self.path: list[str] = []


class UnknownAttribute(Misfit):
    """An attribute that a schema does not name, though it was inferred."""


def converter(kind: pa.DataType, *, strict: bool = False) -> Convert:
    """Converts values for columns of this type; raises Misfit. `strict`: attributes that a struct does not have are
    misfits too."""
    convert = _converter(kind, strict)

    def checked(value: TypedValue) -> Any:
        return None if value.NULL is not UNSET else convert(value)

    return checked


def item_converter(kind: pa.StructType, *, strict: bool = False) -> Callable[[TypedItem], dict[str, Any]]:
    """Converts items for a struct; raises Misfit."""
    fields = [(field.name, converter(field.type, strict=strict)) for field in kind]
    names = {name for name, _ in fields}

    def convert(item: TypedItem) -> dict[str, Any]:
        found = {}
        for name, each in fields:
            value = item.get(name)
            try:
                found[name] = None if value is None else each(value)
            except Misfit as misfit:
                misfit.path.insert(0, name)
                raise
        if strict and not names >= item.keys():
            name = next(name for name in item if name not in names)
            unknown = UnknownAttribute(None, item[name])
            unknown.path.append(name)
            raise unknown
        return found

    return convert


def _converter(kind: pa.DataType, strict: bool) -> Convert:
    if variant.is_variant(kind):
        return _variant
    if pa.types.is_struct(kind):
        convert = item_converter(kind, strict=strict)
        return lambda value: convert(_held(value.M, kind, value))
    if pa.types.is_map(kind):
        _must_be_text(kind.key_type)
        each = converter(kind.item_type, strict=strict)
        return lambda value: [(name, each(held)) for name, held in _held(value.M, kind, value).items()]
    if pa.types.is_list(kind):
        return _list(kind, strict)
    for test, make in _MAKERS:
        if test(kind):
            return make(kind)
    raise Invalid(
        f"a column cannot be {shown_type(kind)}; use a number, boolean, string, binary, date, timestamp, struct, map "
        "or array",
        code="WRONG_SCHEMA",
    )


def _held(content: Any, kind: pa.DataType, value: TypedValue) -> Any:
    if content is UNSET:
        raise Misfit(kind, value)
    return content


def _must_be_text(kind: pa.DataType) -> None:
    if not pa.types.is_string(kind):
        raise Invalid(f"the keys of a map are {shown_type(kind)}; use map<string, …>", code="WRONG_SCHEMA")


def _list(kind: pa.ListType, strict: bool) -> Convert:
    each = converter(kind.value_type, strict=strict)

    def convert(value: TypedValue) -> list[Any]:
        if value.L is not UNSET:
            return [each(element) for element in value.L]
        if value.SS is not UNSET:
            return [each(TypedValue(S=element)) for element in value.SS]
        if value.NS is not UNSET:
            return [each(TypedValue(N=element)) for element in value.NS]
        if value.BS is not UNSET:
            return [each(TypedValue(B=element)) for element in value.BS]
        raise Misfit(kind, value)

    return convert


def _variant(value: TypedValue) -> dict[str, bytes]:
    try:
        return variant.of_value(value)
    except ArithmeticError:
        raise Misfit(None, value) from None


# -- many at once


def numbers(digits: pa.Array, kind: pa.DataType) -> pa.Array:
    """Numbers as integers, decimals or doubles. ValueError or ArrowInvalid: one of them does not fit."""
    if pa.types.is_decimal(kind):
        # Arrow does not notice that a number overflows when it is scaled, so the digits before the point are counted.
        whole_max = max(1, kind.precision - kind.scale)
        long = digits.filter(pc.greater(pc.binary_length(digits), whole_max))
        if len(long):
            points = pc.find_substring(long, ".")
            whole = pc.if_else(pc.less(points, 0), pc.binary_length(long), points)
            if pc.max(pc.subtract(whole, pc.starts_with(long, "-").cast(pa.int32()))).as_py() > whole_max:
                raise ValueError
    elif pa.types.is_floating(kind):
        long = digits.filter(pc.greater(pc.binary_length(digits), DOUBLE_DIGITS))
        if not all(map(is_double, long.to_pylist())):
            raise ValueError
    return digits.cast(kind)


class ItemColumns:
    """Makes columns of items, attribute by attribute; raises Misfit, without its place."""

    def __init__(self, kind: pa.StructType, *, strict: bool) -> None:
        self._kind = kind
        self._names = {field.name for field in kind} if strict else None
        self._fields = [(field.name, field.type, converter(field.type, strict=strict)) for field in kind]

    def of(self, items: Sequence[TypedItem | None]) -> pa.Array:
        """The items as structs; null where there is none."""
        if self._names is not None and any(item is not None and not item.keys() <= self._names for item in items):
            raise Misfit(None, TypedValue(NULL=True))
        there = [_NOTHING if item is None else item for item in items]
        if not self._fields:
            return pa.array([None if item is None else {} for item in items], self._kind)
        arrays = [self._column([item.get(name) for item in there], kind, each) for name, kind, each in self._fields]
        absent = pa.array([item is None for item in items], pa.bool_())
        return pa.StructArray.from_arrays(arrays, fields=list(self._kind), mask=absent)

    def _column(self, values: list[TypedValue | None], kind: pa.DataType, convert: Convert) -> pa.Array:
        if pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_float64(kind):
            digits = [None if value is None else value.N for value in values]
            if UNSET not in digits:
                try:
                    return numbers(pa.array(digits, pa.string()), kind)
                except (pa.ArrowInvalid, ValueError):
                    pass  # the value is found below
        elif pa.types.is_string(kind):
            texts = [None if value is None else value.S for value in values]
            if UNSET not in texts:
                return pa.array(texts, kind)
        return pa.array([None if value is None else convert(value) for value in values], kind)


_NOTHING: Final[TypedItem] = {}


# -- scalars


def _integer(kind: pa.DataType) -> Convert:
    most = 1 << (kind.bit_width - 1)

    def convert(value: TypedValue) -> int:
        text = value.N
        if text is UNSET or "." in text or len(text) > 20 or not -most <= int(text) < most:
            raise Misfit(kind, value)
        return int(text)

    return convert


def _decimal(kind: pa.Decimal128Type) -> Convert:
    whole, fraction = kind.precision - kind.scale, kind.scale

    def convert(value: TypedValue) -> Decimal:
        if value.N is UNSET:
            raise Misfit(kind, value)
        integer, _, rest = value.N.lstrip("-").partition(".")
        if len(rest) > fraction or (len(integer) > whole and integer != "0"):
            raise Misfit(kind, value)
        return Decimal(value.N)

    return convert


def is_double(text: str) -> bool:
    """Whether the number is the one that its double is written as."""
    return len(text) <= DOUBLE_DIGITS or Decimal(repr(float(text))) == Decimal(text)


def _floating(kind: pa.DataType) -> Convert:
    if kind.bit_width == 64:

        def double(value: TypedValue) -> float:
            if value.N is UNSET or not is_double(value.N):
                raise Misfit(kind, value)
            return float(value.N)

        return double

    def single(value: TypedValue) -> float:
        if value.N is UNSET:
            raise Misfit(kind, value)
        number = float(value.N)
        try:
            near: float = struct.unpack("f", struct.pack("f", number))[0]
        except OverflowError:
            raise Misfit(kind, value) from None
        if not any(Decimal(f"{near:.{digits}g}") == Decimal(value.N) for digits in range(FLOAT_DIGITS, 10)):
            raise Misfit(kind, value)
        return near

    return single


def _boolean(kind: pa.DataType) -> Convert:
    return lambda value: _held(value.BOOL, kind, value)


def _string(kind: pa.DataType) -> Convert:
    def convert(value: TypedValue) -> str:
        if value.S is not UNSET:
            return value.S
        if value.N is not UNSET:
            return value.N
        plain = plain_value(value)
        return plain if isinstance(plain, str) else _encode(plain).decode()

    return convert


def _binary(kind: pa.DataType) -> Convert:
    return lambda value: _held(value.B, kind, value)


def _timestamp(kind: pa.TimestampType) -> Convert:
    def convert(value: TypedValue) -> datetime:
        try:
            return moment(_held(value.S, kind, value), kind)
        except ValueError:
            raise Misfit(kind, value) from None

    return convert


def moment(text: str, kind: pa.TimestampType) -> datetime:
    """ISO 8601 as a time; UTC where it names no zone."""
    found = datetime.fromisoformat(text)
    if kind.tz is None:
        return found if found.tzinfo is None else found.astimezone(UTC).replace(tzinfo=None)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _date(kind: pa.DataType) -> Convert:
    def convert(value: TypedValue) -> date:
        try:
            return date.fromisoformat(_held(value.S, kind, value))
        except ValueError:
            raise Misfit(kind, value) from None

    return convert


def _null(kind: pa.DataType) -> Convert:
    def convert(value: TypedValue) -> None:
        raise Misfit(kind, value)

    return convert


_MAKERS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], Convert]], ...]] = (
    (pa.types.is_integer, _integer),
    (pa.types.is_floating, _floating),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_boolean, _boolean),
    (pa.types.is_string, _string),
    (pa.types.is_binary, _binary),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_date, _date),
    (pa.types.is_null, _null),
)


# -- errors


_NAMES: Final = {"int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint", "bool": "boolean"}
_NAMES_MORE: Final = {"date32[day]": "date", "halffloat": "half"}


def shown_type(kind: pa.DataType) -> str:
    """The type as Spark writes it."""
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz is not None else "timestamp_ntz"
    if pa.types.is_list(kind):
        return f"array<{shown_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{shown_type(kind.key_type)},{shown_type(kind.item_type)}>"
    if variant.is_variant(kind):
        return "variant"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{shown_type(field.type)}' for field in kind)}>"
    return (_NAMES | _NAMES_MORE).get(str(kind), str(kind))


def shown_value(value: TypedValue) -> str:
    """The value for an error, with its type."""
    kind = next(name for name in value.__struct_fields__ if getattr(value, name) is not UNSET)
    if kind == "N":
        return f"the number {value.N}"
    text = _encode(plain_value(value)).decode()
    text = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
    return f"the {_NOUNS[kind]} {text}"


_NOUNS: Final = {
    "S": "text", "BOOL": "boolean", "NULL": "null", "B": "binary", "M": "map", "L": "list", "SS": "string set",
    "NS": "number set", "BS": "binary set",
}  # fmt: skip


def not_typed(misfit: Misfit, place: str, column: str) -> Invalid:
    """The error for a misfit; `place` names table, key and sequence, `column` the image."""
    path = ".".join(filter(None, [column, *misfit.path]))
    value = shown_value(misfit.value)
    if isinstance(misfit, UnknownAttribute):
        return Invalid(
            f"{place}: there is no column {path!r} in the inferred schema, and the item has {value} there; declare the "
            "columns of the table, give a schema (option rowSchema), or read with images=json",
            code="NOT_TYPED",
        )
    if misfit.kind is None:
        return Invalid(
            f"{place}: column {path!r} is variant, which cannot hold {value}; read with images=json",
            code="NOT_TYPED",
        )
    return Invalid(
        f"{place}: column {path!r} is {shown_type(misfit.kind)}, which cannot hold {value}; give the column "
        "a type that holds it (option rowSchema; string holds any value), or read with images=json",
        code="NOT_TYPED",
    )


def shown_item(item: TypedItem) -> str:
    """An item, a key for instance, as plain JSON."""
    return _encode(plain_item(item)).decode()
