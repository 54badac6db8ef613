"""The sources of a view: the changes of a table between two positions, and its rows at any position.

Theory of operation
-------------------
When a job starts, it reads the items of a table at one sequence: the *base*, with the position at which the changes
after it begin. Changes have both images. So the rows at a later position are the base with the last new image of each
key that changed since; and at an earlier one with the first old image. What a batch means is therefore a function of
the log and of positions alone: a job that dies loses work, never state, and nothing is committed beside the view.

Changes after the base are kept as an *overlay*, one row for each key that changed. When it has grown, both become the
new base. They are checkpoints in the executors: if an executor is lost, the job starts over from the items.
"""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from tailrace.bulk.typed_rows import SEQUENCE
from tailrace.client import Client
from tailrace.errors import Unavailable
from tailrace.spark import columns
from tailrace.spark.connection import source_info
from tailrace.spark.items import sample_stored
from tailrace.spark.jobs.state import change_stream_info
from tailrace.spark.options import ServerAccess, SourceOptions
from tailrace.spark.reading import sample_items
from tailrace.spark.views.catalyst import WEIGHT, empty_frame
from tailrace.spark.views.query import SourceRows, ViewSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# When an overlay becomes a part of the base, which is written anew for it. A batch writes the overlay anew; so it is a
# small part of a large base, and a large base is not written with each batch.
OVERLAY_ROWS: Final = 200_000
OVERLAY_SHARE: Final = 20  # or one row in so many of the base, if that is more
_TRIES: Final = 5


class SourceTableReader:
    """One source of a view."""

    def __init__(self, spark: SparkSession, server: Client, access: ServerAccess, table: str, keys: list[Any]) -> None:
        from pyspark.sql.types import StructField, StructType

        self._spark, self._server, self._access = spark, server, access
        self.table = table
        self.keys = tuple(name for name, _ in keys)
        options = SourceOptions(access, "table", table)
        info = source_info(options)
        row = columns.declared(info)
        if row is None:
            row = columns.inferred_row(info, chain(sample_stored(options), sample_items(options, info)))
        known = {field.name: field for field in row.fields}
        key_types = {field.name: field.dataType for field in columns.keys_type(info, row).fields}
        first = [StructField(name, key_types[name], False) for name in self.keys]
        rest = [StructField(field.name, field.dataType) for field in known.values() if field.name not in self.keys]
        self.schema: StructType = StructType([*first, *rest])
        self.used: list[str] = self.schema.fieldNames()
        self.needed: list[str] = self.used  # those of them that the SELECT names, which may lack the key
        self._base: DataFrame | None = None
        self._base_at = self._base_rows = 0
        self._overlay: DataFrame | None = None
        self.at = 0
        self._nothing: DataFrame | None = None

    @property
    def source(self) -> ViewSource:
        return ViewSource(self.keys, self.schema)

    # -- changes

    def records(self, span: dict[int, tuple[int, int]]) -> int:
        """The number of changes in a range."""
        return 0 if span[0][0] == span[0][1] else self._server.count_records(*span[0], table=self.table)[0]

    def changes(self, span: dict[int, tuple[int, int]]) -> DataFrame | None:
        """The changes in [start, end), with the columns that the view uses; None: there are none. The range is that of
        partition 0: a table has one log."""
        row = self._row_type(self.used)
        return self._read(
            span,
            _struct(
                ("offset", "bigint"), ("index", "int"), ("keys", _subset(row, self.keys)),
                ("before", row), ("after", row),
            ),
        )  # fmt: skip

    def delta(self, span: dict[int, tuple[int, int]]) -> DataFrame | None:
        """The changes as rows with weights, with the columns that the SELECT names, and nothing else: all that is read
        costs time. It must not need the rows of the table."""
        needed = self.needed or [self.keys[0]]
        row = self._row_type(needed)
        found = self._read(span, _struct(("before", row), ("after", row)))
        return None if found is None else self.weighted(found, needed)

    def _read(self, span: dict[int, tuple[int, int]], schema: StructType) -> DataFrame | None:
        start, end = span[0]
        if start == end:
            return None
        options = self._options() | {
            "startingOffsets": json.dumps({"0": start}),
            "endingOffsets": json.dumps({"0": end}),
        }
        return self._spark.read.format("tailrace").options(**options).schema(schema).load()

    def _options(self) -> dict[str, str]:
        options = {"url": self._access.url, "table": self.table}
        return options if self._access.token is None else options | {"token": self._access.token}

    def _row_type(self, names: list[str]) -> StructType:
        return _subset(self.schema, names, nullable=True)

    def consolidated(self, changes: DataFrame) -> DataFrame:
        """For each key that changed, its first old image and its last new image."""
        from pyspark.sql import functions as f

        place = f.struct("offset", "index")
        keyed = [f.col(f"keys.{name}").alias(f"k{i}") for i, name in enumerate(self.keys)]
        grouped = changes.select(*keyed, place.alias("place"), "before", "after").groupBy(
            *[f"k{i}" for i in range(len(self.keys))]
        )
        return grouped.agg(
            f.min_by("before", "place").alias("before"), f.max_by("after", "place").alias("after")
        )  # min_by and max_by return NULL for a NULL image

    def weighted(self, changes: DataFrame, read: list[str] | None = None) -> DataFrame:
        """Old images with -1, new ones with +1; without changes of columns that the view does not use. `read`: the
        columns of the images, by default all that are used."""
        from pyspark.sql import functions as f

        moved = changes.where("NOT (before <=> after)")
        both = moved.select(
            f.explode(
                f.array(
                    f.struct(f.col("before").alias("row"), f.lit(-1).alias(WEIGHT)),
                    f.struct(f.col("after").alias("row"), f.lit(1).alias(WEIGHT)),
                )
            ).alias("e")
        ).where("e.row IS NOT NULL")
        return both.select(*self._all_columns("e.row.", read), f.col(f"e.{WEIGHT}").alias(WEIGHT))

    def _all_columns(self, prefix: str, read: list[str] | None = None) -> list[Any]:
        """All columns of the table; those that are not read are NULL."""
        from pyspark.sql import functions as f

        there = self.used if read is None else read
        return [
            f.col(f"{prefix}`{field.name}`").alias(field.name)
            if field.name in there
            else f.lit(None).cast(field.dataType).alias(field.name)
            for field in self.schema.fields
        ]

    # -- rows

    def read_items(self) -> int:
        """Read the base from the server; the sequence that it is of. It is at `at` then."""
        from pyspark.sql import functions as f
        from pyspark.sql.types import LongType, StructField, StructType

        schema = StructType([*self._row_type(self.used).fields, StructField(SEQUENCE, LongType())])
        for _ in range(_TRIES):
            before = self._next()
            found = self._spark.read.format("tailrace").options(**self._options(), mode="items").schema(schema).load()
            rows = found.localCheckpoint(storageLevel=_level())
            last = rows.agg(f.max(SEQUENCE), f.count("*")).first()
            assert last is not None
            # All rows are as of the end of the log when the read was planned, which an empty table does not state.
            position = last[0] + 1 if last[0] is not None else before
            if last[0] is not None or position == self._next():
                self._base, self._overlay = rows.drop(SEQUENCE), None
                self._base_at = self.at = position
                self._base_rows = last[1]
                return position - 1
        raise Unavailable(f"table {self.table!r} changed each time that it was read and found empty; try again")

    def _next(self) -> int:
        return change_stream_info(self._server, self.table).next

    def move_to(self, at: dict[int, int]) -> None:
        """Have the rows as of this position, whatever they are of now."""
        position = at[0]
        if self._base is None:
            self.read_items()
        if position == self.at:
            return
        self._overlay, self.at = None, self._base_at
        low, high = sorted((position, self._base_at))
        found = self.changes({0: (low, high)})
        if found is not None:
            self._overlay = self._laid(self.consolidated(found), "after" if position > self._base_at else "before")
            self.at = position

    def _laid(self, consolidated: DataFrame, image: str) -> DataFrame:
        from pyspark.sql import functions as f

        keys = [f"k{i}" for i in range(len(self.keys))]
        return consolidated.select(*keys, f.col(image).alias("row")).localCheckpoint(storageLevel=_level())

    def rows(self) -> DataFrame:
        """The rows as of `at`."""
        return self._over(self._overlay)

    def nothing(self) -> DataFrame:
        """No rows."""
        if self._nothing is None:
            self._nothing = empty_frame(self._spark, self.schema).where("false")
        return self._nothing

    def release(self) -> None:
        """Forget the rows, which are not needed any more."""
        self._base = self._overlay = None

    def _over(self, overlay: DataFrame | None) -> DataFrame:
        base = self._base
        assert base is not None
        if overlay is None:
            return base.select(*self._all_columns(""))
        test = [overlay[f"k{i}"] == base[name] for i, name in enumerate(self.keys)]
        kept = base.join(overlay, test, "left_anti").select(*self._all_columns(""))
        return kept.unionAll(overlay.where("row IS NOT NULL").select(*self._all_columns("row.")))

    def batch(self, consolidated: DataFrame | None) -> tuple[SourceRows, DataFrame | None]:
        """The rows for a batch with these consolidated changes, and the overlay after it."""
        old = self.rows()
        if consolidated is None:
            return SourceRows(old, old, None), self._overlay
        fresh = self._laid(consolidated, "after")
        merged = fresh
        if self._overlay is not None:
            keys = [f"k{i}" for i in range(len(self.keys))]
            merged = self._overlay.join(fresh, keys, "left_anti").unionAll(fresh)
        return SourceRows(old, self._over(merged), self.weighted(consolidated)), merged

    def advance(self, at: dict[int, int], overlay: DataFrame | None) -> None:
        """The batch was applied."""
        self.at = position = at[0]
        if overlay is None or overlay is self._overlay:
            return
        self._overlay = overlay.localCheckpoint(storageLevel=_level())
        if self._overlay.count() > max(OVERLAY_ROWS, self._base_rows // OVERLAY_SHARE):
            used = [f"`{name}`" for name in self.used]
            self._base = self.rows().select(*used).localCheckpoint(storageLevel=_level())
            self._base_at, self._base_rows, self._overlay = position, self._base.count(), None


def _level() -> Any:
    from pyspark import StorageLevel

    return StorageLevel.MEMORY_AND_DISK


def _struct(*fields: tuple[str, Any]) -> StructType:
    from pyspark.sql.types import IntegerType, LongType, StructField, StructType

    plain = {"bigint": LongType(), "int": IntegerType()}
    return StructType([StructField(name, plain[kind] if isinstance(kind, str) else kind) for name, kind in fields])


def _subset(row: StructType, names: Any, *, nullable: bool = False) -> StructType:
    from pyspark.sql.types import StructField, StructType

    found = [field for field in row.fields if field.name in names]
    return StructType([StructField(field.name, field.dataType, nullable or field.nullable) for field in found])
