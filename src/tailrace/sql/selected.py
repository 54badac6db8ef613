"""The result of a SELECT: the Arrow batches of its worker, and its rows in slices of bounded size.

A value takes far more memory in Python than in Arrow: a result of 60 MiB can be gigabytes of dicts. So the rows are
built a slice at a time while they are sent, and all at once only if they are few. Values that cannot be represented are
detected before the first slice is built.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tailrace import limits
from tailrace.errors import Invalid, TooLarge
from tailrace.sql.arrow import VALUE_BYTES, plain_column
from tailrace.sql.result import Result
from tailrace.sql.workers import too_large

SLICE_BYTES: Final = limits.MiB  # of the rows of one slice, as Python values; a single row may have more
# A slice costs time for each of its columns, however few rows it has. So the slices of a wide result are larger: with
# slices of few rows the time would grow with the square of the columns.
SLICE_COLUMN_BYTES: Final = 2 * limits.KiB
WIDE_SLICE_BYTES: Final = 16 * limits.MiB
_DAY: Final = 24 * 3600
_FIRST_S: Final = int(datetime.datetime(1, 1, 1, tzinfo=datetime.UTC).timestamp())
_LAST_S: Final = int(datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC).timestamp())
_PER_S: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


class ArrowRows:
    """The rows of a SELECT, in Arrow. Slices are (number of a batch, first row, rows)."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.count = 0
        self.bytes = 0
        self.rows_bytes = 0  # an estimate of the memory that all rows take in Python
        self._row_bytes = sys.getsizeof(dict.fromkeys(self.names))
        self._slice_bytes = max(SLICE_BYTES, min(SLICE_COLUMN_BYTES * len(self.names), WIDE_SLICE_BYTES))
        self._nested_columns: list[int] | None = None
        self._batches: list[pa.RecordBatch] = []
        self._slices: list[tuple[int, int, int]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch; raises if the result is too large or has values that cannot be represented."""
        if not batch.num_rows:
            return
        self.count += batch.num_rows
        self.bytes += int(batch.get_total_buffer_size())
        if self.count > limits.SELECT_RESULT_ROWS_MAX or self.bytes > limits.SELECT_RESULT_BYTES_MAX:
            raise too_large()
        for column in batch.columns:
            _check_shown(column)
        self._batches.append(batch)
        cost = self._cost(batch)
        self.rows_bytes += cost
        rows = max(1, batch.num_rows * self._slice_bytes // max(cost, 1))
        for start in range(0, batch.num_rows, rows):
            self._cut(len(self._batches) - 1, start, min(rows, batch.num_rows - start))

    def _cut(self, number: int, start: int, rows: int) -> None:
        """Plan a slice of these rows, or several if they are large."""
        cost = self._cost(self._batches[number].slice(start, rows))
        if rows == 1 and cost > limits.SELECT_ROW_BYTES_MAX:
            raise TooLarge(
                f"a row of the result takes more than {limits.SELECT_ROW_BYTES_MAX:,} bytes; select fewer columns",
                code="SELECT_TOO_LARGE",
            )
        if rows > 1 and cost > 2 * self._slice_bytes:
            half = rows // 2
            self._cut(number, start, half)
            self._cut(number, start + half, rows - half)
        else:
            self._slices.append((number, start, rows))

    def _cost(self, batch: pa.RecordBatch) -> int:
        values = int(batch.num_columns * batch.num_rows)
        for number in self._nested(batch.schema):
            values += _values(batch.column(number)) - batch.num_rows
        return int(batch.nbytes) + VALUE_BYTES * values + self._row_bytes * int(batch.num_rows)

    def _nested(self, schema: pa.Schema) -> list[int]:
        """The numbers of the columns whose values have values inside them. All batches have the same types."""
        if self._nested_columns is None:
            self._nested_columns = [number for number, type_ in enumerate(schema.types) if pa.types.is_nested(type_)]
        return self._nested_columns

    def slices(self) -> Iterator[list[dict[str, Any]]]:
        """The rows, some at a time. Can be read once: the memory of rows already read is released."""
        batches, self._batches = self._batches, []
        last = 0
        for number, start, rows in self._slices:
            if number != last:
                batches[last] = None
                last = number
            columns = [plain_column(column) for column in batches[number].slice(start, rows).columns]
            yield [dict(zip(self.names, row, strict=True)) for row in zip(*columns, strict=True)]

    def tuples(self) -> Iterator[tuple[Any, ...]]:
        """The rows as they are stored in a table: as `slices`, but bytes are bytes. Can be read once."""
        batches, self._batches = self._batches, []
        for number, start, rows in self._slices:
            columns = batches[number].slice(start, rows).columns
            yield from zip(
                *[each.to_pylist() if pa.types.is_binary(each.type) else plain_column(each) for each in columns],
                strict=True,
            )

    def rows(self) -> list[dict[str, Any]]:
        """All rows at once; an error if they take too much memory."""
        if self.rows_bytes > limits.SELECT_ROWS_BYTES_MAX:
            raise TooLarge(
                f"the rows of the result take more than {limits.SELECT_ROWS_BYTES_MAX:,} bytes of memory; use LIMIT, "
                "or select fewer columns",
                code="SELECT_TOO_LARGE",
            )
        return [row for some in self.slices() for row in some]


class ArrowResult(Result, kw_only=True):
    """The result of a SELECT whose rows are still in Arrow."""

    selected: ArrowRows

    def with_rows(self) -> Result:
        """The same result with its rows as dicts; an error if they take too much memory."""
        return Result(self.statement, self.columns, self.selected.rows(), self.row_count, self.message)


def _values(held: pa.Array) -> int:
    """The number of values in a column, including those inside lists and structs."""
    count = len(held)
    type_ = held.type
    if pa.types.is_struct(type_):
        return count + sum([_values(each) for each in held.flatten()])
    if pa.types.is_map(type_):
        start, end = held.offsets[0].as_py(), held.offsets[-1].as_py()
        return count + sum([_values(each.slice(start, end - start)) for each in (held.keys, held.items)])
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return count + _values(held.flatten())
    return count


def _check_shown(held: pa.Array) -> None:
    """Raise if Python cannot represent a time in the column."""
    type_ = held.type
    if pa.types.is_struct(type_):
        for each in held.flatten():
            _check_shown(each)
    elif pa.types.is_map(type_):
        _check_shown(held.keys)
        _check_shown(held.items)
    elif pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        _check_shown(held.flatten())
    elif pa.types.is_date(type_) or pa.types.is_timestamp(type_) or pa.types.is_time64(type_):
        _check_time(held)


def _check_time(held: pa.Array) -> None:
    type_ = held.type
    numbers = held.view(pa.int32() if pa.types.is_date32(type_) else pa.int64())
    least, most = (each.as_py() for each in pc.min_max(numbers).values())
    if least is None:
        return
    shown = True
    if not pa.types.is_time64(type_):
        days = pa.types.is_date32(type_)
        per_s = 1_000 if pa.types.is_date64(type_) else 1 if days else _PER_S[type_.unit]
        first, last = (least * _DAY, most * _DAY) if days else (least // per_s, most // per_s)
        shown = first >= _FIRST_S and last <= _LAST_S
    if shown and getattr(type_, "unit", "") == "ns":
        rest = pc.subtract(numbers, pc.multiply(pc.divide(numbers, 1_000), 1_000))
        shown = not pc.any(pc.not_equal(rest, 0)).as_py()
    if not shown:
        raise Invalid(
            "the result has a time outside the years 1 to 9999, or one in nanoseconds; cast it to VARCHAR",
            code="SQL_INVALID",
        )
