"""Tailrace on Spark: tables, topics and streams as data frames, batch and streaming, and the jobs of the pipeline.

    import tailrace.spark as ts

    spark = ts.session()
    changes = spark.read.format("tailrace").option("table", "orders").load()

PySpark is imported only when it is used: the rest of Tailrace runs without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace import lazy
from tailrace.spark.failures import explain
from tailrace.spark.session import register, session

if TYPE_CHECKING:
    from tailrace.spark.native import history
    from tailrace.spark.source import TailraceSource
    from tailrace.spark.upserting import upsert

__all__ = ["TailraceSource", "explain", "history", "register", "session", "upsert"]

__getattr__, __dir__ = lazy.names(
    __name__,
    {
        "TailraceSource": "tailrace.spark.source",
        "history": "tailrace.spark.native",
        "upsert": "tailrace.spark.upserting",
    },
)
