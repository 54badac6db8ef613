"""The driver that is killed: one Spark session with two streaming queries, table -> view and stream -> stream.

The copy is read in `--partitions` tasks and written in the order that it was read in; with `--shuffle` it goes through
as many others first, and has no order. The view is kept by the job that `tailrace pipeline view` runs.

    python -m tests.cluster.queries URL CHECKPOINTS --partitions 3 [--master local[2]] [--conf name=value ...]
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.cli.signals import stop_on_signals
from tailrace.spark import explain, session
from tailrace.spark.jobs.progress import Progress
from tailrace.spark.jobs.view import view
from tests.cluster.writing import STREAM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VIEW, COPY, CONSUMER = "app.totals", "copy", "copying"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("checkpoints", type=Path)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--shuffle", action="store_true")
    parser.add_argument("--conf", action="append", default=[])
    args = parser.parse_args()
    conf = dict(each.split("=", 1) for each in args.conf)
    conf["spark.sql.shuffle.partitions"] = str(args.partitions)
    spark = session("killed", args.master, **conf)

    stop = threading.Event()
    with stop_on_signals(stop, signal.SIGTERM):
        keeping = threading.Thread(target=_run_or_exit, args=(keep, spark, args, stop))
        keeping.start()
        _run_or_exit(copy, spark, args, stop)  # in the thread that made the session: only there formats are found
        keeping.join()
    spark.stop()


def _run_or_exit(query: Callable[..., None], *arguments: Any) -> None:
    """A query that ends by itself ends the program."""
    try:
        query(*arguments)
    except BaseException as error:
        print(f"{query.__name__} ended: {explain(error)}", flush=True)
        traceback.print_exception(error)
        os._exit(3)


def keep(spark: SparkSession, args: argparse.Namespace, stop: threading.Event) -> None:
    """Table -> view."""

    def print_progress(progress: Progress) -> None:
        if progress.message:
            print("view", progress.state, progress.message, flush=True)

    view(
        spark, VIEW, url=args.url, interval_s=0.2, max_records=args.records, stop=stop, on_progress=print_progress,
    )  # fmt: skip


def copy(spark: SparkSession, args: argparse.Namespace, stop: threading.Event) -> None:
    """Stream -> stream."""
    rows = (
        spark.readStream.format("tailrace")
        .options(url=args.url, stream=STREAM, consumer=CONSUMER)
        .options(minPartitions=args.partitions, maxRecordsPerTrigger=args.records)
        .load()
        .select("offset", "next_offset", "value")
    )
    query = (
        (rows.repartition(args.partitions) if args.shuffle else rows)
        .writeStream.format("tailrace")
        .options(url=args.url, stream=COPY, consumer=CONSUMER)
        .option("checkpointLocation", str(args.checkpoints / "copy"))
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    while query.isActive and not stop.is_set():
        time.sleep(0.1)
    failed = query.exception()
    if failed is not None:
        raise failed
    query.stop()


if __name__ == "__main__":
    main()
