"""Tailrace on Spark: tables, topics and streams as data frames, batch and streaming, and the jobs of the pipeline.

    import tailrace.spark as ts

    spark = ts.session()
    changes = spark.read.format("tailrace").option("table", "orders").load()

Nothing of Spark is imported before it is used: the rest of Tailrace runs without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.spark.failures import explain
from tailrace.spark.session import register, session

if TYPE_CHECKING:
    from tailrace.spark.source import Source

__all__ = ["Source", "explain", "register", "session"]


def __getattr__(name: str) -> Any:
    if name == "Source":
        from tailrace.spark.source import Source

        return Source
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
