"""Columns on the way in to DuckDB, and values on the way out.

Rows are documents, so a column's type is what its values have in common: `Columns` collects them and finds it. No
value ever changes on the way: a number that no numeric type holds exactly makes its column one of texts, and so do
values of several kinds, as JSON.

What comes out are values that JSON can hold, and the doors need not look at them again.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Final

import msgspec
import pyarrow as pa

from tailrace.errors import Invalid
from tailrace.tables import value
from tailrace.tables.value import Item, Value

DIGITS_MAX: Final = 38  # of a DECIMAL
VALUE_BYTES: Final = 32  # what Python needs for a value beside its bytes, at least
_BIGINT_DIGITS: Final = 18  # any number of so many digits is one of 64 bits
_BIGINT: Final = range(-(2**63), 2**63)
_WHOLE: Final = range(-(2**63), 2**64)  # what a JSON encoder writes as an int

BIGINT: Final = pa.int64()
TEXT: Final = pa.string()
BOOLEAN: Final = pa.bool_()
BLOB: Final = pa.binary()
MOMENT: Final = pa.timestamp("ms", "UTC")
_SCALARS: Final = {"S": TEXT, "N": BIGINT, "B": BLOB, "BOOL": BOOLEAN}
_JSON: Final = "JSON"  # the kind of a column of documents, or of values of several kinds
_DECLARED: Final = {
    "TEXT": TEXT, "BIGINT": BIGINT, "DOUBLE": pa.float64(), "DECIMAL": pa.decimal128(DIGITS_MAX, 0),
    "BOOLEAN": BOOLEAN, "BLOB": BLOB, "JSON": TEXT,
}  # fmt: skip
_NAMES: Final = {BIGINT: "BIGINT", TEXT: "VARCHAR", BOOLEAN: "BOOLEAN", BLOB: "BLOB", MOMENT: "TIMESTAMPTZ"}

_json: Final = msgspec.json.Encoder().encode


# -- in: documents


class Known(msgspec.Struct, frozen=True):
    """A column that is there whatever items there are."""

    name: str
    declared: str | None = None  # in SQL: TEXT, BIGINT, DOUBLE, DECIMAL, BOOLEAN, BLOB or JSON
    key: str | None = None  # the type of a key attribute: S, N or B


class Columns:
    """The attributes of many items, by name: first those that are known, then others as they are found."""

    def __init__(self, known: Iterable[Known], keep: frozenset[str] | None = None) -> None:
        """`keep`: the names, in lower case, that are wanted (None: all); nobody looks at what is in the others."""
        self._keep = keep
        self._columns = {each.name: _Column(each) for each in known}
        self.count = 0

    def add(self, item: Item, size: int) -> int:
        """Take an item of so many bytes; about how many bytes of memory that costs."""
        if self._keep is not None:
            item = {name: held for name, held in item.items() if name.lower() in self._keep}
            size = sum(map(_size, item.values()))
        for name, held in item.items():
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = _Column(Known(name))
            column.add(self.count, held)
        self.count += 1
        return size + VALUE_BYTES * (len(item) + 1)

    def ensure(self, names: Iterable[str]) -> None:
        """Let there be a column, of nulls, for each of these names that no item has."""
        known = {name.lower() for name in self._columns}
        for name in names:
            if name.lower() not in known:
                known.add(name.lower())
                self._columns[name] = _Column(Known(name))

    def table(self) -> pa.Table:
        """All of it. Names that differ in nothing but case get a number: SQL does not tell them apart."""
        arrays = [column.array(self.count) for column in self._columns.values()]
        return pa.Table.from_arrays(arrays, names=distinct(self._columns))


class _Column:
    """Values of one name. As long as they are of one kind they are kept as they are, then as JSON."""

    __slots__ = ("_kind", "_known", "_values")

    def __init__(self, known: Known) -> None:
        self._known = known
        self._kind: str | None = _JSON if known.declared == "JSON" else None
        self._values: list[Any] = []

    def add(self, row: int, held: Value) -> None:
        values = self._values
        if len(values) < row:
            values += [None] * (row - len(values))
        ((kind, inner),) = held.items()
        if kind == "NULL":
            values.append(None)
            return
        if kind != self._kind:
            if self._kind is None:
                self._kind = kind if kind in _SCALARS else _JSON
            elif self._kind != _JSON:
                was, self._kind = self._kind, _JSON
                values[:] = [None if each is None else _json_text({was: each}) for each in values]
        values.append(_json_text(held) if self._kind == _JSON else inner)

    def array(self, count: int) -> pa.Array:
        """The column, `count` values long: of the declared kind if they all are, else of what they have in common."""
        values = self._values + [None] * (count - len(self._values))
        known = self._known
        if self._kind is None:
            return pa.nulls(count, _DECLARED.get(known.declared or "") or _SCALARS.get(known.key or "", TEXT))
        if self._kind == "N":
            return _numbers(values, known.declared)
        return pa.array(values, TEXT if self._kind == _JSON else _SCALARS[self._kind])


def distinct(names: Iterable[str]) -> list[str]:
    """The names, those that came before (in whichever case) with _1, _2 and so on."""
    taken: set[str] = set()
    given = []
    for name in names:
        new, number = name, 0
        while new.lower() in taken:
            number += 1
            new = f"{name}_{number}"
        taken.add(new.lower())
        given.append(new)
    return given


def _size(held: Value) -> int:
    """About how many bytes a value has."""
    ((kind, inner),) = held.items()
    return len(inner) if kind in ("S", "N", "B") else value.size(held)


def _json_text(held: Value) -> str:
    return _json(value.to_json(held)).decode()


def _numbers(texts: list[str | None], declared: str | None) -> pa.Array:
    """Canonical numbers: BIGINT where all are whole and have 64 bits, else DECIMAL(38, s) where that holds all of them,
    else text."""
    if declared == "DOUBLE":
        return pa.array([None if text is None else float(text) for text in texts], pa.float64())
    whole = fraction = 0
    big = declared == "DECIMAL"
    for text in texts:
        if text is not None:
            left, _, right = text.partition(".")
            whole = max(whole, len(left) - (text[0] == "-"))
            fraction = max(fraction, len(right))
            big = big or (len(left) > _BIGINT_DIGITS and int(left) not in _BIGINT)
    if not fraction and not big:
        return pa.array([None if text is None else int(text) for text in texts], BIGINT)
    if whole + fraction > DIGITS_MAX:
        return pa.array(texts, TEXT)
    type_ = pa.decimal128(DIGITS_MAX, fraction)
    return pa.array([None if text is None else Decimal(text) for text in texts], type_)


# -- in: rows of a fixed shape


def rows_table(columns: Sequence[tuple[str, pa.DataType]], rows: Sequence[Sequence[Any]]) -> pa.Table:
    """A table of rows that have these columns. Milliseconds since 1970 are moments as they are."""
    made = list(zip(*rows, strict=True)) or [()] * len(columns)
    arrays = [pa.array(list(held), type_) for held, (_, type_) in zip(made, columns, strict=True)]
    return pa.Table.from_arrays(arrays, names=[name for name, _ in columns])


def type_name(type_: pa.DataType) -> str:
    """What SQL calls the type of a fixed column."""
    return _NAMES[type_]


def json_text(plain: Any) -> str:
    """Compact JSON."""
    return _json(plain).decode()


def image(item: Item | None) -> str | None:
    """An item as JSON."""
    return None if item is None else _json(value.item_to_json(item)).decode()


# -- out


def plain_column(held: pa.Array) -> list[Any]:
    """The values of a column as JSON can hold them."""
    convert = _CONVERT.get(held.type.id)
    try:
        values = held.to_pylist()
    except (OverflowError, ValueError):
        raise Invalid(
            "the answer has a time outside of the years 1 to 9999, or one in nanoseconds in a list; cast it to VARCHAR",
            code="SQL_INVALID",
        ) from None
    if convert is None:
        return values if held.type.id in _AS_THEY_ARE else [plain(each) for each in values]
    return [None if each is None else convert(each) for each in values]


def plain(held: Any) -> Any:
    """A value as JSON can hold it: moments as RFC 3339 text in UTC, binary as base64, a number with all its digits."""
    if held is None or isinstance(held, str | bool):
        return held
    if isinstance(held, int):
        return held if held in _WHOLE else Decimal(held)
    if isinstance(held, float):
        return _float(held)
    if isinstance(held, Decimal):
        return _decimal(held)
    if isinstance(held, datetime):
        return _moment(held)
    if isinstance(held, date | time):
        return held.isoformat()
    if isinstance(held, bytes):
        return b64encode(held).decode()
    if isinstance(held, dict):
        return {str(name): plain(each) for name, each in held.items()}
    if isinstance(held, list):
        if held and all(isinstance(each, tuple) and len(each) == 2 for each in held):  # a MAP
            return {name if isinstance(name, str) else str(plain(name)): plain(each) for name, each in held}
        return [plain(each) for each in held]
    return str(held)


def _decimal(held: Decimal) -> int | Decimal:
    """An int where it is whole and a JSON encoder takes it, as it is with the numbers of an item."""
    if held == held.to_integral_value() and int(held) in _WHOLE:
        return int(held)
    return held


def _float(held: float) -> float | str:
    """JSON has no word for what is not a finite number."""
    if math.isfinite(held):
        return held
    return "NaN" if math.isnan(held) else "Infinity" if held > 0 else "-Infinity"


def _moment(held: datetime) -> str:
    digits = "microseconds" if held.microsecond % 1000 else "milliseconds" if held.microsecond else "seconds"
    if held.tzinfo is None:
        return held.isoformat(timespec=digits)
    return held.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=digits) + "Z"


_AS_THEY_ARE: Final = frozenset(
    type_.id
    for type_ in (
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
        pa.string(), pa.large_string(), pa.null(),
    )
)  # fmt: skip
_CONVERT: Final[dict[int, Callable[[Any], Any]]] = {
    pa.float64().id: _float,
    pa.float32().id: _float,
    pa.decimal128(38).id: _decimal,
    pa.timestamp("us").id: _moment,
    pa.binary().id: plain,
}
