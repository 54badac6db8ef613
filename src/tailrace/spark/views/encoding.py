"""The rows of a view as items of its table: its key, and staging by the tasks that have computed them.

The key of the table is the key of the view: one or two columns are the partition key and the sort key; more than two,
or none, are one text. A column that cannot be NULL and is text, a number or binary keeps its type. Any other is text:
what is not plain text begins with a backslash, and its JSON follows, so NULL is ``\\\\null``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from tailrace import limits
from tailrace.errors import Invalid
from tailrace.spark import rows
from tailrace.spark.connection import client, patiently
from tailrace.spark.options import ServerAccess
from tailrace.spark.views.additive import PARTIALS
from tailrace.spark.views.catalyst import WEIGHT
from tailrace.spark.views.partials import KEY
from tailrace.spark.views.query import COUNT, ViewQuery
from tailrace.spark.views.texts import is_collated, json_text, without_collations

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

OP: Final = "_op"
ROW_TEXT: Final = "_row"  # the column with the text of a row, to compare it with an earlier one
STAGED: Final = "stage string, rows bigint"
_ALL: Final = "all"  # the key of the one row of a view without groups
_SEND_BYTES: Final = 8 * limits.MiB
_SLICE_ROWS: Final = 10_000
_WHOLE: Final = ("tinyint", "smallint", "int", "bigint", "decimal")
_KEPT: Final = (400, 200)  # characters of a partition key or sort key that is too long


class StageTask(msgspec.Struct, frozen=True):
    """Stages the rows of a partition. Runs in an executor."""

    access: ServerAccess
    table: str
    names: tuple[str, ...]
    keys: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        encoder = rows.ItemEncoder(self.table, self.names, self.keys, OP)
        held: list[pa.RecordBatch] = []
        size = count = 0
        for batch in rows.slices(batches, _SLICE_ROWS, _SEND_BYTES):
            made = encoder.rows(batch)
            if held and size + rows.size_of(made) > _SEND_BYTES:
                yield self._staged(held, count)
                held, size, count = [], 0, 0
            held.append(made)
            size += rows.size_of(made)
            count += made.num_rows
        if held:
            yield self._staged(held, count)

    def _staged(self, made: list[pa.RecordBatch], count: int) -> pa.RecordBatch:
        # The request may be repeated: a first stage that did arrive expires.
        body = rows.stream(made)
        stage = patiently(lambda: client(self.access).stage_arrow(body, self.table))
        return pa.RecordBatch.from_pydict({"stage": [stage], "rows": pa.array([count], pa.int64())})


class ViewEncoder:
    """Encodes the rows of a view."""

    def __init__(self, query: ViewQuery, name: str) -> None:
        self._query, self._name = query, name
        repeated = {each for each in query.columns if query.columns.count(each) > 1}
        if repeated:
            raise Invalid(
                f"the SELECT has the column {min(repeated)!r} twice; give one of them another name with AS",
                code="INVALID_VIEW",
            )
        reserved = {OP, PARTIALS, ROW_TEXT} & set(query.columns)
        if reserved:
            raise Invalid(
                f"the SELECT has a column {min(reserved)!r}, a name that is reserved; give it another one with AS",
                code="INVALID_VIEW",
            )
        self._data_types = [field.dataType for field in query.schema.fields]
        self._types = [kind.simpleString() for kind in self._data_types]
        self.keys: list[tuple[str, str]] = []
        if 1 <= len(query.key) <= 2:
            self.keys = [(query.names[index], self._kind(index)) for index in query.key]
        else:
            self.keys = [("key" if "key" not in query.names else "__key", "S")]
        width = len(query.columns)
        stored = list(range(width)) + [i for i in range(width, len(query.names)) if query.names[i] == COUNT]
        self._stored = [index for index in stored if query.names[index] not in dict(self.keys)]
        for index in self._stored:
            rows.check_storable(query.names[index], self._data_types[index], "INVALID_VIEW")

    @property
    def columns(self) -> list[tuple[str, str]]:
        """The columns of the view's table with Spark's types; keys first, where the SELECT does not name them."""
        kinds = {"S": "string", "N": "", "B": "binary"}
        found = []
        shown = [*range(len(self._query.columns)), *[i for i in self._stored if i >= len(self._query.columns)]]
        for index in shown:
            name = self._query.names[index]
            key = dict(self.keys).get(name)
            found.append((name, (kinds[key] if key else "") or without_collations(self._types[index])))
        return found

    def _kind(self, index: int) -> str:
        kind = self._types[index]
        if self._query.nullable[index]:
            return "S"
        if kind.startswith(_WHOLE):
            return "N"
        return "B" if kind == "binary" else "S"

    def _keys(self, columns: Sequence[Column]) -> list[Column]:
        """The key of the table, out of the columns of the view's key."""
        from pyspark.sql import functions as f

        query = self._query
        if not 1 <= len(query.key) <= 2:
            if not query.key:
                return [f.lit(_ALL).alias(self.keys[0][0])]
            kinds = [self._data_types[index] for index in query.key]
            parts = [json_text(column, kind) for column, kind in zip(columns, kinds, strict=True)]
            text = f.concat(f.lit("["), f.concat_ws(",", *parts), f.lit("]"))
            return [_fitting(text, 0).alias(self.keys[0][0])]
        found = []
        for position, (column, (name, kind)) in enumerate(zip(columns, self.keys, strict=True)):
            index = query.key[position]
            if kind == "S":
                column = _fitting(_text(column, self._data_types[index]), position)
            found.append(column.alias(name))
        return found

    def items(self, frame: DataFrame) -> DataFrame:
        """Rows to put (+1) and keys to delete (-1), in columns c0, c1 ..., as items with an operation."""
        from pyspark.sql import functions as f

        names = self._query.names
        columns = [f.col(f"c{index}").alias(names[index]) for index in self._stored]
        op = f.when(f.col(WEIGHT) > 0, f.lit("PUT")).otherwise(f.lit("DELETE")).alias(OP)
        keys = self._keys([f.col(f"c{index}") for index in self._query.key])
        beside = [name for name in (PARTIALS, ROW_TEXT) if name in frame.columns]
        return frame.select(*keys, *columns, *beside, op)

    def with_keys(self, partials: DataFrame, groups: Sequence[str]) -> DataFrame:
        """Partials with the keys of their rows, in columns __k0, __k1."""
        from pyspark.sql import functions as f

        keys = self._keys([f.col(name) for name in groups])
        return partials.select(*partials.columns, *[key.alias(f"{KEY}{index}") for index, key in enumerate(keys)])

    def names(self, items: DataFrame) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The attributes of items, and those of the key."""
        return tuple(name for name in items.columns if name != OP), tuple(name for name, _ in self.keys)


def _text(column: Column, data_type: DataType) -> Column:
    """A value as the text of a key."""
    from pyspark.sql import functions as f

    kind = data_type.simpleString()
    null = f.lit("\\null")
    if kind == "string" or (is_collated(kind) and kind.startswith("string")):
        column = column.cast("string")  # without a collation, under which it may equal others
        special = (column == "") | column.startswith("\\")
        plain = f.when(special, f.concat(f.lit("\\"), json_text(column, data_type))).otherwise(column)
    elif kind.startswith(("struct", "array", "map")):
        plain = json_text(column, data_type)
    elif kind in ("timestamp", "timestamp_ntz"):
        plain = f.concat(f.replace(column.cast("string"), f.lit(" "), f.lit("T")), f.lit("Z"))
    elif kind == "binary":
        plain = f.base64(column)
    else:
        plain = column.cast("string")
    return f.when(column.isNull(), null).otherwise(plain)


def _fitting(text: Column, position: int) -> Column:
    """The text; if it is too long for a key, its beginning and a digest."""
    from pyspark.sql import functions as f

    most = (limits.PARTITION_KEY_BYTES_MAX, limits.SORT_KEY_BYTES_MAX)[position]
    short = f.concat(f.substring(text, 1, _KEPT[position]), f.sha2(text, 256))
    return f.when(f.octet_length(text) > most, short).otherwise(text)
