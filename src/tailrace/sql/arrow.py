"""Conversion of items to Arrow tables for DuckDB, and of result columns to plain values.

Items are documents, so the type of a column is the common type of its values: `ItemTableBuilder` collects them and
determines it. No value is changed: a number that no numeric type represents exactly turns its column into text, and
values of several types become JSON.

The plain values of a result can be encoded as JSON without further conversion.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import limits
from tailrace.bulk.columns import NUMPY
from tailrace.errors import Invalid, TooLarge
from tailrace.sql.stored import decoded
from tailrace.tables import value
from tailrace.tables.value import Item, Value

if NUMPY:
    from tailrace.sql.stored import shaped

DIGITS_MAX: Final = 38  # of a DECIMAL
VALUE_BYTES: Final = 64  # Python's overhead of a value, approximately
CHUNK_BYTES: Final = 256  # the overhead of an Arrow array, approximately
NULL_BYTES: Final = 5  # the size of a null in a text column: an offset and a bit
SHAPED_ROWS_MIN: Final = 256  # fewer items are decoded faster one by one
FEW_ROWS: Final = 64  # whose digits are counted faster one by one
PACK_BYTES: Final = 4 * limits.MiB  # of Python values collected before they are converted to Arrow
PACK_ROWS: Final = 1_024  # likewise; a column that first appears in a later row has a null for each row before
_BIGINT_DIGITS: Final = 18  # any number with at most this many digits fits in 64 bits
_WHOLE: Final = range(-(2**63), 2**64)  # integers that the JSON encoder accepts

BIGINT: Final = pa.int64()
TEXT: Final = pa.string()
BOOLEAN: Final = pa.bool_()
BLOB: Final = pa.binary()
MOMENT: Final = pa.timestamp("ms", "UTC")
_SCALARS: Final = {"S": TEXT, "N": BIGINT, "B": BLOB, "BOOL": BOOLEAN}
_JSON: Final = "JSON"  # the kind of a column of documents, or of values of several kinds
_STORED: Final = {**_SCALARS, "N": TEXT, _JSON: TEXT}  # the Arrow type while values are collected
_DECLARED: Final = {
    "TEXT": TEXT, "BIGINT": BIGINT, "DOUBLE": pa.float64(), "DECIMAL": pa.decimal128(DIGITS_MAX, 0),
    "BOOLEAN": BOOLEAN, "BLOB": BLOB, "JSON": TEXT, "TIMESTAMP": pa.timestamp("us"), "DATE": pa.date32(), "UUID": TEXT,
}  # fmt: skip
_TIMES: Final = ("TIMESTAMP", "DATE")
_NAMES: Final = {BIGINT: "BIGINT", TEXT: "VARCHAR", BOOLEAN: "BOOLEAN", BLOB: "BLOB", MOMENT: "TIMESTAMPTZ"}

Spend = Callable[[int], None]

_json: Final = msgspec.json.Encoder().encode
_DOCUMENTS: Final = b"tailrace.documents"
_NUMERIC: Final = r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$"


# -- in: documents


class KnownColumn(msgspec.Struct, frozen=True):
    """A column that the table has regardless of its items."""

    name: str
    declared: str | None = None  # in SQL: TEXT, BIGINT, DOUBLE, DECIMAL, BOOLEAN, BLOB or JSON
    key: str | None = None  # the type of a key attribute: S, N or B


class BuiltColumn(msgspec.Struct, frozen=True):
    """A finished column, and the kind of its values: S, N, B, BOOL or JSON; None: it has none."""

    kind: str | None
    array: pa.ChunkedArray


class ItemTableBuilder:
    """Builds an Arrow table of items: first the known columns, then others in order of appearance.

    Values are collected in Python and regularly packed into Arrow. `spend` is called with the bytes that takes, never
    more than about PACK_BYTES late, and raises if the total is too large."""

    def __init__(self, known: Iterable[KnownColumn], spend: Spend, keep: frozenset[str] | None = None) -> None:
        """`keep`: the names, in lower case, of the columns that are needed (None: all); others get no values."""
        self._keep = keep
        self._spend = spend
        self._columns = {each.name: _Column(each) for each in known}
        self._always = frozenset(self._columns)
        self._base = 0  # rows that are packed
        self._pending = 0
        self.count = 0

    def add(self, item: Item, size: int) -> None:
        """Add an item of `size` bytes."""
        if self._keep is not None:
            item = {name: held for name, held in item.items() if name.lower() in self._keep}
            size = sum(map(_size, item.values()))
        columns, base = self._columns, self._base
        for name, held in item.items():
            column = columns.get(name)
            if column is None:
                column = self._new(name)
            if column.packed < base and "NULL" not in held:
                self._spend(column.gap_bytes(base))
            column.add(self.count, base, held)
        self.count += 1
        self._pending += size + VALUE_BYTES * (len(item) + 1)
        if self._pending > PACK_BYTES or self.count - base >= PACK_ROWS:
            self._pack()

    def add_stored(self, bodies: pa.Array) -> None:
        """Add items as they are stored: those of common shapes together, the others one by one."""
        found = shaped(bodies, self._keep) if NUMPY and len(bodies) >= SHAPED_ROWS_MIN else None
        if found is None:
            for chunk in decoded(bodies):
                for item, size in chunk:
                    self.add(item, size)
            return
        self._pack()
        columns, base, rows = self._columns, self._base, len(bodies)
        rest = ItemTableBuilder((), _unspent, self._keep)
        for chunk in decoded(bodies.take(found.others)):
            for item, size in chunk:
                rest.add(item, size)
        rest._pack()
        for name in dict.fromkeys((*found.columns, *rest._columns)):
            column = columns.get(name) or self._new(name)
            parts = [found.columns.get(name), rest._columns[name].kept(rest.count) if name in rest._columns else None]
            kind, array = _merged(parts, [len(found.fit), rest.count])
            if kind is not None:
                if rest.count:
                    array = array.take(found.order)
                self._spend(column.gap_bytes(base) if column.packed < base else 0)
                self._spend(column.add_array(base, kind, array))
        self.count += rows
        self._base = self.count

    def _new(self, name: str) -> _Column:
        if len(self._columns) >= limits.SELECT_COLUMNS_MAX:
            raise TooLarge(
                f"the rows have more than {limits.SELECT_COLUMNS_MAX:,} different attributes, the limit of a SELECT; "
                "name only the columns you need",
                code="SELECT_TOO_LARGE",
            )
        column = self._columns[name] = _Column(KnownColumn(name))
        return column

    def ensure(self, names: Iterable[str]) -> None:
        """Add a column of nulls for each of these names that no item has."""
        known = {name.lower() for name in self._columns}
        for name in names:
            if name.lower() not in known:
                known.add(name.lower())
                self._new(name)

    def _pack(self) -> None:
        self._pending = 0
        self._base = self.count
        for column in self._columns.values():
            self._spend(column.pack())

    def table(self) -> pa.Table:
        """The whole table. Names that differ only in case get a number, because SQL does not distinguish case."""
        return with_names(self.built(), self._always)

    def built(self) -> dict[str, BuiltColumn]:
        """All columns, by the names of attributes. Can be called once."""
        self._pack()
        return {
            name: BuiltColumn(column.kind, column.array(self.count, self._spend))
            for name, column in self._columns.items()
        }


class _Column:
    """The values of one column. They are kept as they are while they are of one kind, else as JSON.

    `_chunks` are texts, binaries or booleans; numbers are texts until all are known. Trailing nulls take no memory
    before `array`."""

    __slots__ = ("_chunks", "_kind", "_known", "_owed", "_values", "packed")

    def __init__(self, known: KnownColumn) -> None:
        self._known = known
        self._kind: str | None = _JSON if known.declared == "JSON" else None
        self._chunks: list[pa.Array] = []
        self._values: list[Any] = []  # of the rows after the chunks
        self._owed = 0  # bytes allocated since `pack`
        self.packed = 0  # rows in chunks

    @property
    def kind(self) -> str | None:
        return self._kind if self.packed or self._kind != _JSON else None

    def gap_bytes(self, base: int) -> int:
        """The bytes needed to fill the column with nulls up to a row."""
        return (base - self.packed) * NULL_BYTES + CHUNK_BYTES

    def add(self, row: int, base: int, held: Value) -> None:
        """Add the value of a row; the other columns are packed up to row `base`."""
        ((kind, inner),) = held.items()
        if kind == "NULL":
            return
        if self.packed < base:
            self._chunks.append(pa.nulls(base - self.packed, _STORED.get(self._kind or kind, TEXT)))
            self.packed = base
        values = self._values
        if missing := row - base - len(values):
            values += [None] * missing
        if kind != self._kind:
            if self._kind is None:
                self._kind = kind if kind in _SCALARS else _JSON
            elif self._kind != _JSON:
                self._to_json()
        values.append(_json_text(held) if self._kind == _JSON else inner)

    def add_array(self, base: int, kind: str, array: pa.Array) -> int:
        """Add values of one kind as the rows from `base` on; the values before are packed. Returns the bytes."""
        if self.packed < base:
            self._chunks.append(pa.nulls(base - self.packed, _STORED.get(self._kind or kind, TEXT)))
        if self._kind is None:
            self._kind = kind
        elif self._kind != kind:
            array = array if kind == _JSON else _json_array(kind, array)
            if self._kind != _JSON:
                self._to_json()
        self._chunks.append(array)
        self.packed = base + len(array)
        owed, self._owed = self._owed, 0
        return int(array.nbytes) + CHUNK_BYTES + owed

    def kept(self, count: int) -> tuple[str | None, pa.Array]:
        """The kind of the values, and `count` of them."""
        if self._kind is None:
            return None, pa.nulls(count)
        stored = _STORED[self._kind]
        chunks = [*self._chunks, pa.nulls(count - self.packed, stored)]
        return self._kind, pa.chunked_array(chunks, stored).combine_chunks()

    def _to_json(self) -> None:
        """Convert the values to JSON, because they are of several kinds."""
        was, self._kind = self._kind or _JSON, _JSON
        self._values[:] = _json_texts(was, self._values)
        before = sum([chunk.nbytes for chunk in self._chunks])
        self._chunks = [_json_array(was, chunk) for chunk in self._chunks]
        self._owed += sum([chunk.nbytes for chunk in self._chunks]) - before

    def pack(self) -> int:
        """Convert the collected values to Arrow; returns the bytes that takes."""
        owed, self._owed = self._owed, 0
        if not self._values:
            return owed
        chunk = pa.array(self._values, _STORED[self._kind or _JSON])
        self._values = []
        self._chunks.append(chunk)
        self.packed += len(chunk)
        return int(chunk.nbytes) + CHUNK_BYTES + owed

    def array(self, count: int, spend: Spend) -> pa.ChunkedArray:
        """The column with `count` values: of the declared type if all values are, else of their common type."""
        known = self._known
        kind = self._kind
        if kind is None:
            type_ = _DECLARED.get(known.declared or "") or _SCALARS.get(known.key or "", pa.null())
            spend(count * NULL_BYTES)
            return pa.chunked_array([pa.nulls(count, type_)], type_)
        stored = _STORED[kind]
        if self.packed < count:
            spend(self.gap_bytes(count))
            self._chunks.append(pa.nulls(count - self.packed, stored))
        held = pa.chunked_array(self._chunks, stored)
        self._chunks = []
        if kind == "S" and known.declared in _TIMES:
            return _times(held, _DECLARED[known.declared], spend)
        return _numbers(held, known.declared, spend) if kind == "N" else held


def _merged(parts: list[tuple[str | None, pa.Array] | None], sizes: list[int]) -> tuple[str | None, pa.Array]:
    """One array of the parts of a column, each with a kind of its own, or absent; and its kind."""
    kinds = {part[0] for part in parts if part is not None and part[0] is not None}
    if not kinds:
        return None, pa.nulls(0)
    kind = kinds.pop() if len(kinds) == 1 else _JSON
    stored = _STORED[kind or _JSON]
    arrays = []
    for part, size in zip(parts, sizes, strict=True):
        if part is None or part[0] is None:
            arrays.append(pa.nulls(size, stored))
        else:
            arrays.append(part[1] if part[0] == kind else _json_array(part[0], part[1]))
    return kind, pa.concat_arrays(arrays) if sizes[1] else arrays[0]


def _json_texts(kind: str, values: Iterable[Any]) -> list[str | None]:
    return [None if each is None else _json_text({kind: each}) for each in values]


def _json_array(kind: str, array: pa.Array) -> pa.Array:
    """Values of a scalar kind as JSON."""
    return pa.array(_json_texts(kind, array.to_pylist()), TEXT)


def _unspent(size: int) -> None:
    """What is spent on a part is counted when it is added to the whole."""


def attribute_names(names: Iterable[str], always: Container[str]) -> list[str]:
    """The names of columns for attributes, as `distinct`. Which of two that differ only in case gets the number depends
    on the names alone, not on the order in which rows are read; those that the table always has go first."""
    given = list(names)
    order = sorted(range(len(given)), key=lambda at: (0, at, "") if given[at] in always else (1, 0, given[at]))
    made = dict(zip(order, distinct(given[at] for at in order), strict=True))
    return [made[at] for at in range(len(given))]


def with_names(columns: Mapping[str, BuiltColumn], always: Container[str]) -> pa.Table:
    """Columns of attributes as a table whose schema says which hold JSON (`documents_of`)."""
    names = attribute_names(columns, always)
    made = pa.Table.from_arrays([column.array for column in columns.values()], names=names)
    documents = [name for name, column in zip(names, columns.values(), strict=True) if column.kind == _JSON]
    return made.replace_schema_metadata({_DOCUMENTS: _json(documents)}) if documents else made


def documents_of(table: pa.Table) -> frozenset[str]:
    """The columns of a table of items that hold the JSON of each value."""
    held = (table.schema.metadata or {}).get(_DOCUMENTS)
    return frozenset(msgspec.json.decode(held)) if held else frozenset()


def number_type(documents: pa.ChunkedArray) -> str:
    """The type, in SQL, that holds all numbers of a column of JSON and those in its strings: a string must not be
    rounded to the type of the numbers beside it."""
    texts = pc.utf8_trim(documents, '" ')
    texts = texts.filter(pc.fill_null(pc.match_substring_regex(texts, _NUMERIC), False))
    if pc.any(pc.match_substring_regex(texts, "[eE]")).as_py():
        return "DOUBLE"
    whole, fraction = _digits(pc.utf8_ltrim(texts, "+-0"))
    if not fraction and whole <= _BIGINT_DIGITS:
        return "BIGINT"
    return f"DECIMAL({DIGITS_MAX}, {fraction})" if whole + fraction <= DIGITS_MAX else "DOUBLE"


def distinct(names: Iterable[str]) -> list[str]:
    """The names, with _1, _2 and so on appended to those that occurred before (ignoring case)."""
    taken: set[str] = set()
    numbers: dict[str, int] = {}  # the last number of each name, so that no number is tried twice
    given = []
    for name in names:
        new, lowered = name, name.lower()
        while new.lower() in taken:
            numbers[lowered] = number = numbers.get(lowered, 0) + 1
            new = f"{name}_{number}"
        taken.add(new.lower())
        given.append(new)
    return given


def _size(held: Value) -> int:
    """The approximate size of a value in bytes."""
    ((kind, inner),) = held.items()
    return len(inner) if kind in ("S", "N", "B") else value.size(held)


def _json_text(held: Value) -> str:
    return _json(value.to_json(held)).decode()


def _times(texts: pa.ChunkedArray, type_: pa.DataType, spend: Spend) -> pa.ChunkedArray:
    """Texts as times; as they are, if one is none."""
    try:
        made = texts.cast(type_)
    except pa.ArrowInvalid:
        return texts
    spend(int(made.nbytes))
    return made


def _numbers(texts: pa.ChunkedArray, declared: str | None, spend: Spend) -> pa.ChunkedArray:
    """Canonical numbers: BIGINT if all are whole and fit in 64 bits, else DECIMAL(38, s) if that represents all of
    them, else text."""
    if declared == "DOUBLE":
        spend(8 * len(texts))
        return texts.cast(pa.float64())
    whole, fraction = _digits(texts)
    if not fraction and declared != "DECIMAL" and whole <= _BIGINT_DIGITS + 1:
        spend(8 * len(texts))
        try:
            return texts.cast(BIGINT)
        except pa.ArrowInvalid:  # 19 digits that do not fit in 64 bits
            spend(-8 * len(texts))
    if whole + fraction > DIGITS_MAX:
        return texts
    spend(16 * len(texts))
    return texts.cast(pa.decimal128(DIGITS_MAX, fraction))


def _digits(texts: pa.ChunkedArray) -> tuple[int, int]:
    """The most digits of numbers before the point, and after it."""
    if len(texts) <= FEW_ROWS:
        parts = [text.lstrip("-").partition(".") for text in texts.to_pylist() if text is not None]
        return max([len(part[0]) for part in parts], default=0), max([len(part[2]) for part in parts], default=0)
    sizes = pc.binary_length(texts)
    points = pc.find_substring(texts, ".")
    signs = pc.if_else(pc.starts_with(texts, "-"), 1, 0)
    fractions = pc.if_else(pc.less(points, 0), 0, pc.subtract(pc.subtract(sizes, points), 1))
    wholes = pc.subtract(pc.if_else(pc.less(points, 0), sizes, points), signs)
    return pc.max(wholes).as_py() or 0, pc.max(fractions).as_py() or 0


# -- in: rows of a fixed shape


class RowTableBuilder:
    """Builds an Arrow table of rows with fixed columns. Timestamps are milliseconds since 1970. Values are packed and
    counted as in `ItemTableBuilder`."""

    def __init__(self, columns: Sequence[tuple[str, pa.DataType]], spend: Spend) -> None:
        self._schema = pa.schema(list(columns))
        self._spend = spend
        self._rows: list[Sequence[Any]] = []
        self._batches: list[pa.RecordBatch] = []
        self._pending = 0
        self.count = 0

    def add(self, row: Sequence[Any]) -> None:
        self._rows.append(row)
        self.count += 1
        texts = sum([len(each) for each in row if isinstance(each, str | bytes)])
        self._pending += texts + VALUE_BYTES * (len(row) + 1)
        if self._pending > PACK_BYTES:
            self._pack()

    def _pack(self) -> None:
        if self._rows:
            held = zip(*self._rows, strict=True)
            arrays = [pa.array(values, field.type) for values, field in zip(held, self._schema, strict=True)]
            self._rows, self._pending = [], 0
            batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
            self._batches.append(batch)
            self._spend(int(batch.nbytes) + CHUNK_BYTES * len(arrays))

    def table(self) -> pa.Table:
        """The whole table."""
        self._pack()
        return pa.Table.from_batches(self._batches, self._schema)


def type_name(type_: pa.DataType) -> str:
    """The SQL name of a fixed column's type."""
    return _NAMES[type_]


def json_text(plain: Any) -> str:
    """Compact JSON."""
    return _json(plain).decode()


def image(item: Item | None) -> str | None:
    """An item as JSON."""
    return None if item is None else _json(value.item_to_json(item)).decode()


# -- out


def plain_column(held: pa.Array) -> list[Any]:
    """The values of a column, as JSON can represent them."""
    convert = _CONVERT.get(held.type.id)
    try:
        values = held.to_pylist()
    except (OverflowError, ValueError):
        raise Invalid(
            "the result has a time outside the years 1 to 9999, or one in nanoseconds in a list; cast it to VARCHAR",
            code="SQL_INVALID",
        ) from None
    if convert is None:
        return values if held.type.id in _AS_THEY_ARE else [plain(each) for each in values]
    return [None if each is None else convert(each) for each in values]


def plain(held: Any) -> Any:
    """A value as JSON can represent it: times as RFC 3339 text in UTC, binary as base64, numbers with all digits."""
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
    """An int if the number is whole and the JSON encoder accepts it, as for the numbers of an item."""
    if held == held.to_integral_value() and int(held) in _WHOLE:
        return int(held)
    return held


def _float(held: float) -> float | str:
    """A float; as text if it is not finite, which JSON cannot represent."""
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
