"""The row that makes a SELECT fail: Spark's errors about values, as of a cast or a division, name no row.

The SELECT runs again over halves of the rows of each source, until one row is left that makes it fail. This takes some
twenty runs, over fewer and fewer rows, and happens only when a view stops.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tailrace.spark.views.query import ViewQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_VALUE: Final = re.compile(r"\[[A-Z0-9_.]+\] (?P<message>[^\n]*?)\s*SQLSTATE: 22\w{3}")  # class 22: data exception
_BITS: Final = 63  # of the hash that halves are made by


class FailingRow(NamedTuple):
    """A row of a source, and the column of the view that fails for it; None: a condition, or more than one."""

    table: str
    key: dict[str, Any]
    column: str | None


def value_error(error: BaseException) -> str | None:
    """Spark's message, if the error is about a value."""
    found = _VALUE.search(str(error))
    return None if found is None else found["message"].strip()


def failing_row(query: ViewQuery, suspects: Mapping[str, DataFrame], now: Mapping[str, DataFrame]) -> FailingRow | None:
    """A row among the suspects that makes the SELECT fail; None: no row does so alone, as if a sum is too large. `now`
    has the rows of all sources."""
    for table, frame in suspects.items():
        keys = list(query.sources[table].key)
        left = _narrowed(query, table, frame.localCheckpoint(), keys, now)
        if left is None:
            continue
        row = left.select(*keys).first()
        assert row is not None, "no rows do not fail"
        rows = {**now, table: left}
        columns = [name for at, name in enumerate(query.columns) if _fails(query, rows, f"c{at}")]
        alone = columns[0] if columns and (len(columns) < len(query.columns) or len(query.columns) == 1) else None
        return FailingRow(table, row.asDict(), alone)
    return None


def _narrowed(
    query: ViewQuery, table: str, held: DataFrame, keys: list[str], now: Mapping[str, DataFrame]
) -> DataFrame | None:
    """The rows of one key that make the SELECT fail."""
    from pyspark.sql import functions as f

    if not _fails(query, {**now, table: held}):
        return None
    for bit in range(_BITS):
        if held.select(*keys).distinct().count() == 1:
            return held
        is_low = f.xxhash64(*keys).bitwiseAND(f.lit(1 << bit)) == 0
        halves = (held.where(is_low).localCheckpoint(), held.where(~is_low).localCheckpoint())
        failing = next((half for half in halves if _fails(query, {**now, table: half})), None)
        if failing is None:
            return None
        held = failing
    return None


def _fails(query: ViewQuery, rows: Mapping[str, DataFrame], column: str = "*") -> bool:
    try:
        query.result(rows).select(column).write.format("noop").mode("overwrite").save()
    except Exception as error:  # of Spark
        return value_error(error) is not None
    return False
