"""A history as one data frame of which Spark reads the cold part itself.

The format "tailrace" reads cold files in Python, proves that no entry is missing, and hands the rows over. Spark's own
reader of Parquet is faster at that, and leaves out columns and row groups that a query does not need. So `history`
plans as the format does and then gives the files to Spark; what is not in cold storage yet comes from the server.
Files say which positions they hold: a gap between them is an error here too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tailrace.cold import reading as cold
from tailrace.cold.merging import ColdFile
from tailrace.cold.schemas import SCHEMAS
from tailrace.cold.store import Store
from tailrace.errors import Corrupt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tailrace.spark.planning import Range

_SPECIAL: Final = re.compile(r"[\[\]{}*?\\]")  # to Hadoop, in a path
_PLACES: Final = ("startingoffsets", "endingoffsets", "startingtimestamp", "endingtimestamp")


def history(spark: SparkSession, **options: Any) -> DataFrame:
    """The changes of a table or the messages of a topic: the rows and the options of `format("tailrace")`.

    Spark reads cold files itself if they are in a directory. All of it is read as the format does from a bucket, of
    streams, and with `images="typed"`."""
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    from tailrace.spark.columns import public
    from tailrace.spark.connection import FIRST_S, facts
    from tailrace.spark.fetching import COLD, clipped, renamed
    from tailrace.spark.options import read
    from tailrace.spark.reading import Reader
    from tailrace.spark.session import text

    given = {
        name: json.dumps(value) if isinstance(value, dict) else text(value)  # offsets by partition
        for name, value in options.items()
        if value is not None
    }
    asked = read(given)
    found = facts(asked, FIRST_S)
    store = None if found.cold is None else Store(found.cold.url)
    format_ = spark.read.format("tailrace")
    if found.cold is None or store is None or store.local is None or asked.kind not in COLD or asked.images != "plain":
        return format_.options(**given).load()

    ranges = Reader(asked, found, to_arrow_schema(public(found), timezone="UTC"), is_typed=False).ranges()
    hot = {part.log: part.hot for part in found.partitions}
    older = [clipped(each, each.start, min(each.end, hot[each.log])) for each in ranges]
    newer = [clipped(each, max(each.start, hot[each.log]), each.end) for each in ranges]
    frames: list[DataFrame] = []
    if any(each.size for each in older):
        files = {each: _files(store, found.cold.place, each) for each in older if each.size}
        paths = sorted({_path(store, file) for listed in files.values() for file in listed})
        rows = spark.read.schema(from_arrow_schema(SCHEMAS[asked.kind])).parquet(*paths)
        condition = " OR ".join(f"(log = {r.log} AND position >= {r.start} AND position < {r.end})" for r in files)
        frames.append(
            rows.where(condition).selectExpr(*(f"`{name}` AS `{renamed(name)}`" for name in COLD[asked.kind]))
        )
    if any(each.size for each in newer) or not frames:
        nothing = {part.partition: part.next for part in found.partitions}
        starts = nothing | {each.partition: each.start for each in newer if each.size}
        ends = nothing | {each.partition: each.end for each in newer if each.size}
        kept = {name: value for name, value in given.items() if name.lower() not in _PLACES}
        bounds = {"startingOffsets": json.dumps(starts), "endingOffsets": json.dumps(ends)}
        frames.append(format_.options(**kept, **bounds).load())
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


def _files(store: Store, place: str, wanted: Range) -> Sequence[ColdFile]:
    """The files that hold the range. Corrupt, if by what they say of themselves they do not hold all of it."""
    listed = cold.files(store, place, wanted.log, wanted.start, wanted.end)
    reached = wanted.start
    for file in listed:
        if file.log_min != file.log_max or file.position_min is None or file.next_max is None:
            return listed  # of several logs: what they hold of this one, they do not say
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
