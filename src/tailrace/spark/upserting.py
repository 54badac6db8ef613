"""Rows into a table from `foreachBatch`, each batch of the query once.

Spark refuses `outputMode("update")` for sinks written in Python, and passes the rows of such a batch to a function
instead. Spark runs the function again for a batch that it cannot tell to be complete. `upsert` finds the query and the
batch in the local properties of the thread that runs it, and commits under them as the sink does.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from tailrace.errors import Invalid
from tailrace.spark.session import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_RUN: Final = "spark.jobGroup.id"  # a query has another one each time it is started
_KEPT: Final = 1_000
_last: OrderedDict[tuple[str, str, str], str] = OrderedDict()  # the last batch, by run, table and name


def upsert(frame: DataFrame, table: str, *, name: str = "", **options: Any) -> None:
    """Write the rows of a data frame to a table: each replaces the item with its key, or is deleted if its column
    `_op` says DELETE. In `foreachBatch`, a batch that Spark repeats is written once; a second call for the same table
    needs another `name`. Elsewhere it is the same as an ordinary write. `options` are those of the sink: `url`,
    `token`."""
    spark = frame.sparkSession
    register(spark)
    writer = frame.write.format("tailrace").options(**options, table=table).mode("append")
    context = spark.sparkContext
    query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
    if not query or not batch:
        writer.save()
        return
    call = (str(context.getLocalProperty(_RUN)), table, name)
    if _last.get(call) == batch:  # the server would take it for a repetition, and skip it
        raise Invalid(
            f"batch {batch} was written to table {table!r} already{f' under the name {name!r}' if name else ''}; give "
            "each call of upsert in a batch a name of its own: upsert(frame, table, name='second')",
            code="WRITTEN_ALREADY",
        )
    writer.options(query=f"{query}/{name}" if name else query, batch=batch).save()
    _last[call] = batch
    _last.move_to_end(call)
    while len(_last) > _KEPT:
        _last.popitem(last=False)
