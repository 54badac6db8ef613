"""The history of a log as one data frame, of which Spark reads the cold part natively.

The format "tailrace" reads cold files in Python, proves that no entry is missing, and passes the rows to Spark. Spark's
own Parquet reader is faster, and skips columns and row groups that a query does not need. So `history` plans as the
format does and then gives the files to Spark; entries that are not in cold storage yet come from the server. The
statistics of the files have their positions: a gap between them is an error here too.

Spark cannot reach the files of a bucket without Hadoop's libraries for it. There tasks look up one key with Arrow: they
read the row groups whose Bloom filter may have it (`cold/bloom.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.cold import bloom
from tailrace.cold import reading as cold
from tailrace.cold.merging import ColdFile, Vanished, file_errors
from tailrace.cold.schemas import SCHEMAS
from tailrace.cold.store import Store
from tailrace.errors import Corrupt, Unavailable
from tailrace.spark.failures import hide_traceback_each

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tailrace.spark.planning import OffsetRange

_SPECIAL: Final = re.compile(r"[\[\]{}*?\\]")  # to Hadoop, in a path
_BATCH_ROWS: Final = 20_000
_FILES_PER_CORE: Final = 8  # tasks that look for a key
_BOUNDS: Final = ("startingoffsets", "endingoffsets", "startingtimestamp", "endingtimestamp")


def history(spark: SparkSession, **options: Any) -> DataFrame:
    """The changes of a table or the messages of a topic: the rows and the options of `format("tailrace")`.

    Spark reads cold files natively if they are in a directory, and images, which are stored as JSON, with
    `images="json"`, the default here. Buckets, streams and other images are read by the format "tailrace"."""
    return history_of(spark, options, None)


def history_of(spark: SparkSession, options: dict[str, Any], key: KeyValue | None) -> DataFrame:
    """As `history`; with a `key`, at least the rows that have it."""
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    from tailrace.spark.catalog import named_server
    from tailrace.spark.columns import public
    from tailrace.spark.connection import FIRST_S, source_info
    from tailrace.spark.fetching import COLD, RowForm, clipped, public_name
    from tailrace.spark.options import read
    from tailrace.spark.reading import BatchReader
    from tailrace.spark.session import text

    given = {
        name: json.dumps(value) if isinstance(value, dict) else text(value)  # offsets by partition
        for name, value in options.items()
        if value is not None
    }
    given = named_server(spark) | given
    if given.get("table"):
        given.setdefault("images", "json")
    settings = read(given)
    found = source_info(settings, FIRST_S)
    store = None if found.cold is None else Store(found.cold.url)
    format_ = spark.read.format("tailrace")
    if (
        found.cold is None
        or store is None
        or (store.local is None and key is None)
        or settings.kind not in COLD
        or (settings.kind == "table" and settings.images != "json")
    ):
        return format_.options(**given).load()

    form = RowForm(to_arrow_schema(public(found, settings), timezone="UTC"), is_text=True)
    ranges = BatchReader(settings, found, form).ranges()
    hot = {part.log: part.hot for part in found.partitions}
    older = [clipped(each, each.start, min(each.end, hot[each.log])) for each in ranges]
    newer = [clipped(each, max(each.start, hot[each.log]), each.end) for each in ranges]
    frames: list[DataFrame] = []
    if any(each.size for each in older):
        files = {each: _files(store, found.cold.place, each) for each in older if each.size}
        distinct = {file.path: file for listed in files.values() for file in listed}
        if store.local is not None:
            paths = [_path(store, file) for _, file in sorted(distinct.items())]
            rows = spark.read.schema(from_arrow_schema(SCHEMAS[settings.kind])).parquet(*paths)
        else:
            assert key is not None
            rows = _looked_up(spark, KeyRows(store, found.cold.place, settings.kind, key), sorted(distinct))
        condition = " OR ".join(f"(log = {r.log} AND position >= {r.start} AND position < {r.end})" for r in files)
        frames.append(
            rows.where(condition).selectExpr(*(f"`{name}` AS `{public_name(name)}`" for name in COLD[settings.kind]))
        )
    if any(each.size for each in newer) or not frames:
        nothing = {part.partition: part.next for part in found.partitions}
        starts = nothing | {each.partition: each.start for each in newer if each.size}
        ends = nothing | {each.partition: each.end for each in newer if each.size}
        kept = {name: value for name, value in given.items() if name.lower() not in _BOUNDS}
        bounds = {"startingOffsets": json.dumps(starts), "endingOffsets": json.dumps(ends)}
        frames.append(format_.options(**kept, **bounds).load())
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


# -- one key in a bucket


class KeyValue(msgspec.Struct, frozen=True):
    """A value of a column with Bloom filters, as its bytes."""

    column: str
    value: bytes


class KeyRows:
    """Reads the rows with a key, given paths of cold files. Runs in an executor."""

    def __init__(self, store: Store, place: str, kind: str, key: KeyValue) -> None:
        from tailrace.spark.fetching import COLD

        self._store, self._place, self._key = store, place, key
        self.schema = pa.schema([SCHEMAS[kind].field(name) for name in ("log", *COLD[kind])])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return hide_traceback_each(self._rows)(batches)

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path in batch.column(0).to_pylist():
                try:
                    with file_errors(self._store, ColdFile(self._place, path, 0)):
                        yield from self._of_file(path)
                except Vanished as vanished:
                    raise Unavailable(
                        f"the file {self._store.uri(self._place)}/{path} was replaced while it was read; try again"
                    ) from vanished

    def _of_file(self, path: str) -> Iterator[pa.RecordBatch]:
        file = self._store.opened(self._place, path)
        with self._store.filesystem().open_input_file(f"{self._place}/{path}") as source:
            groups = bloom.row_groups(source, file.metadata, self._key.column, self._key.value)
        if not groups:
            return
        names = self.schema.names
        sought = pa.scalar(self._key.value, pa.binary())
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=groups, columns=names):
            found = batch.filter(pc.equal(batch.column(self._key.column).cast(pa.binary()), sought))
            if found.num_rows:
                yield from pa.Table.from_batches([found.select(names)]).cast(self.schema).to_batches()


def _looked_up(spark: SparkSession, rows: KeyRows, paths: Sequence[str]) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    tasks = min(len(paths), _FILES_PER_CORE * int(spark.sparkContext.defaultParallelism))
    frame = spark.createDataFrame([(path,) for path in paths], "path string").repartition(max(1, tasks))
    return frame.mapInArrow(rows, from_arrow_schema(rows.schema))


def _files(store: Store, place: str, wanted: OffsetRange) -> Sequence[ColdFile]:
    """The files that have the range. Corrupt, if by their statistics they do not have all of it."""
    listed = cold.files(store, place, wanted.log, wanted.start, wanted.end)
    reached = wanted.start
    for file in listed:
        if file.log_min != file.log_max or file.position_min is None or file.next_max is None:
            return listed  # of several logs: the statistics do not say which positions of this one
        if file.position_min > reached:
            break
        reached = max(reached, file.next_max)
    if reached < wanted.end:
        raise Corrupt(
            f"positions {reached} to {wanted.end} of log {wanted.log} are missing at {store.uri(place)}; look at the "
            "Delta history of that table"
        )
    return listed


def _path(store: Store, file: ColdFile) -> str:
    return "file://" + _SPECIAL.sub(r"\\\g<0>", f"{store.uri(file.place)}/{file.path}")
