"""A Spark session in a process of its own, which runs commands and reports their duration.

`python -m bench.pipeline.worker URL CORES`: requests are lines of JSON on the standard input, answers lines of JSON on
what was the standard output. Whatever Spark and its workers print goes to the standard error. A JVM cannot change its
number of cores, hence a process for each.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bench.pipeline.orders import CUSTOMERS, STATUSES, TABLE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tailrace.spark.jobs.progress import Progress

clock = time.perf_counter
STARTED_S = 300.0  # how long a job that keeps a view may take to start


class Work:
    """The requests, each a method of its name."""

    def __init__(self, url: str, cores: int) -> None:
        import tailrace.spark as ts

        self._url = url
        self._spark: SparkSession = ts.session("bench", f"local[{cores}]")
        self._query: StreamingQuery | None = None
        self._kept: Kept | None = None

    # -- reading

    def noop(self, **parameters: Any) -> dict[str, Any]:
        """Read every column of every row, into nothing."""
        frame = self._frame(**parameters)
        before = python_cpu_s()
        done = timed(lambda: frame.write.format("noop").mode("overwrite").save())
        return done | {"python_s": python_cpu_s() - before}

    def count(self, **parameters: Any) -> dict[str, Any]:
        frame = self._frame(**parameters)
        return timed(frame.count, "count")

    def parquet(self, into: str, **parameters: Any) -> dict[str, Any]:
        """Read it all, and write it as Parquet."""
        frame = self._frame(**parameters)
        return timed(lambda: frame.write.mode("overwrite").parquet(into))

    def _frame(
        self, until: int | None = None, path: str | None = None, native: bool = False, images: str = "typed"
    ) -> DataFrame:
        import tailrace.spark as ts

        if path is not None:
            found = self._spark.read.parquet(path)
            return found if until is None else found.where(f"offset < {until}")
        assert until is not None
        parameters = {
            "url": self._url,
            "table": TABLE,
            "startingOffsets": "earliest",
            "endingOffsets": f'{{"0": {until}}}',
            "images": images,
        }
        if native:
            return ts.history(self._spark, **parameters)
        return self._spark.read.format("tailrace").options(**parameters).load()

    # -- jobs

    def tier(self, marks: list[int]) -> dict[str, Any]:
        """All that is there into cold storage; also how long it took to the marks, in rows."""
        from tailrace.spark.jobs.tier import tier

        laps = Laps(marks)
        done = timed(lambda: tier(self._spark, url=self._url, tables=[TABLE], once=True, on_progress=laps), "tiered")
        tiered = done.pop("tiered")
        return done | {"laps": laps.done, "rows": tiered.rows, "bytes": tiered.bytes, "commits": tiered.commits}

    def snapshot(self, at: int) -> dict[str, Any]:
        from tailrace.spark.jobs.snapshot import snapshot

        done = timed(lambda: snapshot(self._spark, table=TABLE, url=self._url, at=at), "snapshot")
        taken = done.pop("snapshot")
        return done | {"how": taken.how, "rows": taken.rows, "sequence": taken.sequence, "place": taken.place}

    def view(self, name: str, marks: list[int]) -> dict[str, Any]:
        """Bring a view up to where its source is; also how long it took to the marks, in changes."""
        from tailrace.spark.jobs.view import view

        laps = Laps(marks)
        done = timed(lambda: view(self._spark, name, url=self._url, once=True, on_progress=laps), "view")
        del done["view"]
        return done | {"laps": laps.done, "rows": laps.rows}

    def keep(self, name: str) -> dict[str, Any]:
        """Start a job that keeps a view until it is stopped, with the settings that it has by itself; return when it
        runs."""
        self._kept = Kept(self._spark, self._url, name)
        self._kept.wait()
        return {}

    def stop_keeping(self) -> dict[str, Any]:
        assert self._kept is not None
        self._kept.stop()
        return {}

    def select(self, path: str, sql: str, until: int) -> dict[str, Any]:
        """Run the SELECT of a view over Parquet of changes, once, its rows into nothing. A row is the new image
        of a change: this is less than the work of a view, which has old images too, and stores its rows."""
        from pyspark.sql import functions as f

        self._spark.read.parquet(path).where(f"offset < {until}").select("after.*").createOrReplaceTempView(TABLE)
        customers = self._spark.range(CUSTOMERS).select(
            f.concat(f.lit("c"), f.lpad(f.col("id").cast("string"), 5, "0")).alias("id"), f.lit("gold").alias("tier")
        )
        customers.createOrReplaceTempView("customers")
        prices = [(each, len(each)) for each in STATUSES]
        self._spark.createDataFrame(prices, "id string, price bigint").createOrReplaceTempView("products")
        return timed(lambda: self._spark.sql(sql).write.format("noop").mode("overwrite").save())

    # -- the sink

    def sink(self, kind: str, name: str, first: int, until: int) -> dict[str, Any]:
        """Write the orders [first, until), which Spark makes up as it goes, to a table, a topic or a stream, or as
        Parquet."""
        from pyspark.sql import functions as f

        number, statuses = f.col("number"), f.array(*map(f.lit, STATUSES))
        frame = self._spark.range(first, until).withColumnRenamed("id", "number")
        frame = frame.select(
            f.concat(f.lit("o"), f.lpad(number.cast("string"), 8, "0")).alias("id"),
            f.element_at(statuses, (number % len(STATUSES) + 1).cast("int")).alias("status"),
            number.alias("total"),
            f.concat(f.lit("c"), f.lpad((number % CUSTOMERS).cast("string"), 5, "0")).alias("customer"),
        )
        item = f.to_json(f.struct("id", "status", "total", "customer"))
        match kind:
            case "topic":
                frame = frame.select(f.col("id").alias("key"), item.alias("payload"))
            case "stream":
                frame = frame.select(item.alias("value"))
            case "parquet":
                return timed(lambda: frame.write.mode("append").parquet(name))
        writer = frame.write.format("tailrace").mode("append").options(**{"url": self._url, kind: name})
        return timed(writer.save)

    def held(self, kind: str, name: str) -> dict[str, Any]:
        """What is in a topic or a stream that orders were written to: how many, and the sum of their totals."""
        from pyspark.sql import functions as f

        column = f.col("value" if kind == "stream" else "payload").cast("string")
        frame = self._spark.read.format("tailrace").options(**{"url": self._url, kind: name}).load()
        totals = f.sum(f.get_json_object(column, "$.total").cast("bigint"))
        found = frame.agg(f.count("*").alias("rows"), totals.alias("totals")).first()
        assert found is not None
        return {"rows": found["rows"], "totals": found["totals"]}

    def follow(self, source: str, target: str, checkpoint: str) -> dict[str, Any]:
        """Start a query that copies a stream to another one, batch after batch, as fast as they come."""
        frame = self._spark.readStream.format("tailrace").options(url=self._url, stream=source).load()
        writer = frame.select("value").writeStream.format("tailrace").options(url=self._url, stream=target)
        self._query = writer.option("checkpointLocation", checkpoint).start()
        return {}

    def stop_following(self) -> dict[str, Any]:
        assert self._query is not None
        failure = self._query.exception()
        batches = [each.batchDuration for each in self._query.recentProgress if each.numInputRows]
        self._query.stop()
        if failure is not None:
            raise RuntimeError(str(failure))
        return {"batch_ms": sorted(batches)}

    def close(self) -> None:
        self._spark.stop()


class Kept:
    """A job of a view that goes on, in a thread."""

    def __init__(self, spark: SparkSession, url: str, name: str) -> None:
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._running = self._ended = False
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(spark, url, name), daemon=True)
        self._thread.start()

    def _run(self, spark: SparkSession, url: str, name: str) -> None:
        from tailrace.spark.jobs.view import view

        try:
            view(spark, name, url=url, stop=self._stop, on_progress=self._note)
        except Exception as error:
            self._failed = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _note(self, progress: Progress) -> None:
        # A job that fills its view reports that it runs, with a message, and once more when it follows the changes.
        if progress.state == "running" and not progress.message:
            with self._changed:
                self._running = True
                self._changed.notify_all()

    def wait(self, timeout_s: float = STARTED_S) -> None:
        """Return when the job has planned its view, and has filled it if it had to: from then on it follows changes.
        The positions of the view do not tell: they may be at the end before the job has begun."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._running or self._ended, timeout_s):
                raise TimeoutError(f"the job of the view has not started within {timeout_s:g} s")
        if not self._running:
            self.stop()  # which raises what it has failed with
            raise RuntimeError("the job of the view ended before it followed any changes")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        if self._failed is not None:
            raise self._failed


class Laps:
    """A progress callback of a job: records when it has passed each mark."""

    def __init__(self, marks: list[int]) -> None:
        self._began = clock()
        self._marks = list(marks)
        self.rows = 0
        self.done: list[tuple[int, float]] = []  # rows by then, seconds

    def __call__(self, progress: Progress) -> None:
        self.rows = max(self.rows, progress.rows)
        while self._marks and self.rows >= self._marks[0]:
            self._marks.pop(0)
            self.done.append((self.rows, clock() - self._began))


def python_cpu_s() -> float:
    """Processor time of the Python processes that Spark has started: planners and workers, also those that ended."""
    parents: dict[int, int] = {}
    spent: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            head, _, rest = path.read_bytes().rpartition(b")")
            fields = rest.split()
            pid = int(path.parent.name)
            parents[pid] = int(fields[1])
            if b"python" in head:
                spent[pid] = sum(int(field) for field in fields[11:15])
    total = 0
    for pid, ticks in spent.items():
        at = parents[pid]
        while at in parents and at != os.getpid():
            at = parents[at]
        total += ticks if at == os.getpid() else 0
    return total / os.sysconf("SC_CLK_TCK")


def timed(work: Callable[[], Any], name: str | None = None) -> dict[str, Any]:
    began = clock()
    found = work()
    done: dict[str, Any] = {"seconds": clock() - began}
    return done if name is None else done | {name: found}


def describe_error(error: Exception) -> str:
    """What went wrong, in the words of the product, or of the last line of a Python worker's traceback."""
    from tailrace.spark import explain

    text = explain(error)
    if text.endswith(":"):
        inside = [line.strip() for line in str(error).partition("JVM stacktrace:")[0].splitlines() if line.strip()]
        text = f"{text} {inside[-1]}"
    return f"{type(error).__name__}: {text}"


def main() -> None:
    url, cores = sys.argv[1], int(sys.argv[2])
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # nobody else writes to where the answers go
    requests = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    work: Work | None = None
    for line in requests:
        try:
            work = work or Work(url, cores)
            parameters: Mapping[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
            arguments = {name: value for name, value in parameters.items() if name != "do"}
            answer = getattr(work, parameters["do"])(**arguments)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": describe_error(error)}
        answers.write(msgspec.json.encode(answer) + b"\n")
    if work is not None:
        work.close()


if __name__ == "__main__":
    main()
