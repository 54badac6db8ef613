"""``tailrace pipeline``: the jobs that work on history, on Spark.

Everything that takes Spark is imported when a job is asked for. What goes wrong ends with one line of ours, whoever
raised it: a page of a JVM's stack helps nobody at a keyboard.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from tailrace.cli.text import json_line
from tailrace.errors import Conflict, Error, Invalid, Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.cli.pipeline_board import Shown

Wrapped = TypeVar("Wrapped", bound=Callable[..., Any])
_URL: Final = "http://127.0.0.1:4437"
_STATUS: Final = "SELECT * FROM system.pipelines ORDER BY name"


def _options(*options: Callable[[Any], Any]) -> Callable[[Wrapped], Wrapped]:
    def with_options(command: Wrapped) -> Wrapped:
        for option in reversed(options):
            command = option(command)
        return command

    return with_options


_SERVER: Final = (
    click.option("--url", default=_URL, envvar="TAILRACE_URL", show_default=True, help="The server."),
    click.option("--token", envvar="TAILRACE_TOKEN", help="The bearer token, if the server wants one."),
)
_SPARK: Final = (
    click.option(
        "--master", help="Where Spark runs: local[4], spark://host:7077, yarn, k8s://...; or on this machine."
    ),
    click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark; several times for several."),
    click.option("--ship", is_flag=True, help="Send this package to the executors, where it is not installed."),
    click.option("--json", "as_json", is_flag=True, help="Progress, or rows, as JSON; one object per line."),
    click.option("--quiet", is_flag=True, help="No progress."),
)
_ONCE: Final = click.option("--once", is_flag=True, help="Do what there is now, and end.")
job_options = _options(*_SERVER, *_SPARK)


@click.group()
def pipeline() -> None:
    """Jobs on history: cold storage, snapshots, views, copies. They run on Spark: pip install 'tailrace[spark]'."""


class Running:
    """What a job is given: a session, who shows its progress, and when to stop."""

    def __init__(self, spark: SparkSession, shown: Shown, stop: threading.Event, server: dict[str, Any]) -> None:
        self.spark = spark
        self.shown = shown
        self.stop = stop
        self.server = server


@contextmanager
def _running(
    job: str, url: str, token: str | None, master: str | None, conf: tuple[str, ...], ship: bool, as_json: bool,
    quiet: bool, more: Mapping[str, Any] | None = None,
) -> Iterator[Running]:  # fmt: skip
    """A Spark session for the time of a job; its errors are ours. SIGINT and SIGTERM stop it cleanly."""
    settings = {**(more or {}), **_settings(conf)}
    _reach(url, token)
    from tailrace.spark.session import session

    with _explained():
        from tailrace.cli.pipeline_board import Shown

        stop = threading.Event()
        shown = Shown(as_json=as_json, quiet=quiet)
        with _signals(stop):  # until the session is there: to interrupt its start shows a page of a stack
            _still_java()
            spark = session(f"tailrace {job}", master, ship=ship, **settings)
        try:
            with _signals(stop), shown:
                yield Running(spark, shown, stop, {"url": url, "token": token, "on_progress": shown})
        finally:
            spark.stop()


def _still_java() -> None:
    """Let Java say nothing when it starts: it warns of the incubator's module, which no job uses."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started it
        return
    from tailrace.spark import java

    home = java.provide()
    found = Path(home) / "bin" / "java" if home is not None else Path(shutil.which("java") or "java")
    os.environ["JAVA_HOME"] = str(java.wrapped(found))


def _reach(url: str, token: str | None) -> None:
    """Ask the server something, before seconds go by in which Spark starts: a wrong URL or token is told at once."""
    from tailrace.client import Client

    with Client(url, token=token) as client:
        client.jobs()


@contextmanager
def _explained() -> Iterator[None]:
    from tailrace.spark.failures import explain

    try:
        yield
    except (Error, click.ClickException, click.exceptions.Exit):
        raise
    except Exception as error:
        raise Unavailable(explain(error)) from error


@contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    """Let SIGINT and SIGTERM set `stop`; the second one is meant."""

    def asked(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _settings(conf: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in conf:
        name, equals, value = each.partition("=")
        if not equals or not name.startswith("spark."):
            raise click.UsageError(f"--conf {each!r} is no setting of Spark; give one like spark.executor.memory=4g")
        found[name] = value
    return found


# -- cold storage


@pipeline.command()
@click.option("--table", "tables", multiple=True, metavar="NAME", help="A table; * in a name stands for anything.")
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="A topic.")
@click.option("--stream", "streams", multiple=True, metavar="PATH", help="A stream.")
@click.option("--all", "everything", is_flag=True, help="All tables, topics and streams.")
@_ONCE
@click.option("--interval", type=click.FloatRange(0.05), help="Seconds between two looks at the server (5).")
@click.option("--batch-records", type=click.IntRange(1), help="Records of one commit (200000).")
@click.option("--age", type=click.FloatRange(0), help="Seconds that less than a batch waits for more (30).")
@job_options
def tier(
    tables: tuple[str, ...], topics: tuple[str, ...], streams: tuple[str, ...], everything: bool, once: bool,
    interval: float | None, batch_records: int | None, age: float | None, **common: Any,
) -> None:  # fmt: skip
    """Follow logs into cold storage; what is there may be trimmed from the hot log, and is read from there."""
    if not (tables or topics or streams or everything):
        raise click.UsageError("say what to tier: --table, --topic, --stream or --all")
    given: dict[str, Any] = {"interval_s": interval, "batch_records": batch_records, "age_s": age}
    with _running("tier", **common) as job:
        from tailrace.spark.jobs.progress import size
        from tailrace.spark.jobs.tier import tier as work

        done = work(
            job.spark, tables=tables, topics=topics, streams=streams, all=everything, once=once, stop=job.stop,
            **{name: value for name, value in given.items() if value is not None}, **job.server,
        )  # fmt: skip
    _say(common, f"{done.rows:,} rows tiered: {done.commits:,} commits, {done.files:,} files, {size(done.bytes)}")


@pipeline.command()
@click.option(
    "--place", "places", multiple=True, metavar="PLACE", help="As tables/orders or streams; all, if none is given."
)
@click.option("--target-bytes", metavar="SIZE", help="How large files become: 256MiB, or a number.")
@click.option("--retention", metavar="TIME", help="Forget history that is older, as 365d; without it, none.")
@click.option("--vacuum", metavar="TIME", help="Remove files that nothing has listed for so long (7d).")
@click.option("--alone", is_flag=True, help="Nobody else reads or writes: --vacuum may be less than an hour.")
@job_options
def compact(
    places: tuple[str, ...], target_bytes: str | None, retention: str | None, vacuum: str | None, alone: bool,
    **common: Any,
) -> None:  # fmt: skip
    """Merge small files of cold storage, forget what is past its retention, remove what nothing lists."""
    from tailrace.spark.jobs import settings

    given: dict[str, Any] = {"retention": retention, "alone": alone}
    if target_bytes is not None:
        given["target_bytes"] = settings.octets(target_bytes, "--target-bytes")
    if vacuum is not None:
        settings.seconds(vacuum, "--vacuum", zero=True)
        given["vacuum"] = vacuum
    if retention is not None:
        settings.seconds(retention, "--retention")
    with _running("compact", **common) as job:
        from tailrace.spark.jobs.compact import compact as work

        done = work(job.spark, places=places, stop=job.stop, **given, **job.server)
    _say(
        common,
        f"{done.merged:,} files merged into {done.written:,}, {done.forgotten:,} rows forgotten, "
        f"{done.removed:,} files removed",
    )


# -- states


@pipeline.command()
@click.argument("table")
@click.option(
    "--at", "at", type=click.IntRange(0), metavar="SEQUENCE", help="As of this transaction; now, if not given."
)
@job_options
def snapshot(table: str, at: int | None, **common: Any) -> None:
    """Fold the changes of TABLE to its state, from the last snapshot on, and keep that in cold storage."""
    with _running("snapshot", **common) as job:
        from tailrace.spark.jobs.snapshot import snapshot as work

        done = work(job.spark, table=table, at=at, **job.server)
    _say(common, f"{done.rows:,} items of {table} at sequence {done.sequence} ({done.how}): {done.place}")


@pipeline.command()
@click.argument("table")
@click.option("--into", required=True, metavar="TABLE", help="The table that is made, or empty.")
@click.option("--at-sequence", type=click.IntRange(0), metavar="SEQUENCE", help="As it was after this transaction.")
@click.option("--at-time", metavar="TIME", help="As it was then: ISO 8601, or milliseconds since 1970.")
@job_options
def restore(table: str, into: str, at_sequence: int | None, at_time: str | None, **common: Any) -> None:
    """Rebuild TABLE as it was, or is, in another table. (A whole database comes back from a backup with `tailrace
    restore`.)"""
    if at_sequence is not None and at_time is not None:
        raise click.UsageError("--at-sequence and --at-time both say when; give one of them")
    with _running("restore", **common) as job:
        from tailrace.spark.jobs.restore import restore as work

        done = work(job.spark, table=table, into=into, at_sequence=at_sequence, at_time=at_time, **job.server)
    _say(common, f"{done.rows:,} items of {table} as of sequence {done.sequence} are in {done.into}")


# -- views, copies and questions


@pipeline.command()
@click.argument("name")
@_ONCE
@click.option("--refill", is_flag=True, help="Begin by filling it anew from the items of its sources.")
@click.option("--checkpoint", metavar="DIR", help="Where Spark keeps its cursor; a temporary place, if not given.")
@click.option("--max-records", type=click.IntRange(1), help="Changes of one batch (20000).")
@click.option("--interval", type=click.FloatRange(0.05), help="Seconds between two batches (1).")
@job_options
def view(
    name: str, once: bool, refill: bool, checkpoint: str | None, max_records: int | None, interval: float | None,
    **common: Any,
) -> None:  # fmt: skip
    """Keep the materialized view NAME, which was declared with CREATE MATERIALIZED VIEW."""
    given: dict[str, Any] = {"max_records": max_records, "interval_s": interval}
    with _running("view", **common) as job:
        from tailrace.spark.jobs.view import view as work

        done = work(
            job.spark, name, once=once, refill=refill, checkpoint=checkpoint, stop=job.stop,
            **{each: value for each, value in given.items() if value is not None}, **job.server,
        )  # fmt: skip
    filled = f", filled with {done.filled:,} items" if done.filled else ""
    _say(common, f"{done.rows:,} changes in {done.batches:,} batches{filled}")


@pipeline.command()
@click.argument("table")
@click.option(
    "--to", required=True, metavar="URL", help="file:///path, s3://bucket/prefix, postgresql://... or http://..."
)
@click.option("--name", help="What the copy is called, where a table has several.")
@click.option("--target-table", metavar="TABLE", help="What the table is called there; the same, if not given.")
@click.option(
    "--target-token", envvar="TAILRACE_TARGET_TOKEN", help="The bearer token of a Tailrace that is copied to."
)
@_ONCE
@click.option("--checkpoint", metavar="DIR", help="Where Spark keeps its cursor; a temporary place, if not given.")
@click.option("--max-records", type=click.IntRange(1), help="Changes of one batch (50000).")
@click.option("--interval", type=click.FloatRange(0.05), help="Seconds between two batches (1).")
@job_options
def replicate(
    table: str, to: str, name: str | None, target_table: str | None, target_token: str | None, once: bool,
    checkpoint: str | None, max_records: int | None, interval: float | None, **common: Any,
) -> None:  # fmt: skip
    """Keep a copy of TABLE elsewhere: in Delta, in PostgreSQL or in another Tailrace; in order, each change once."""
    given: dict[str, Any] = {"max_records": max_records, "interval_s": interval}
    with _running("replicate", **common) as job:
        from tailrace.spark.jobs.replicate import replicate as work

        done = work(
            job.spark, table=table, to=to, name=name, target_table=target_table, target_token=target_token, once=once,
            checkpoint=checkpoint, stop=job.stop,
            **{each: value for each, value in given.items() if value is not None}, **job.server,
        )  # fmt: skip
    _say(common, f"{done.rows:,} changes in {done.batches:,} batches; the copy is at {done.position}")


@pipeline.command()
@click.option("--table", metavar="NAME", help="What was changed in this table.")
@click.option("--topic", metavar="NAME", help="What was sent to this topic.")
@click.option("--key", help="Of this item: its key, or JSON of it.")
@click.option("--principal", metavar="NAME", help="By this one.")
@click.option(
    "--event", "events", multiple=True, metavar="EVENT", help="INSERT, MODIFY or REMOVE; several times for several."
)
@click.option("--since", metavar="TIME", help="From then on: ISO 8601, or milliseconds since 1970.")
@click.option("--until", metavar="TIME", help="Before then.")
@click.option("--output", metavar="FILE", help="A file instead of the terminal: .csv, .json or .parquet.")
@click.option(
    "--format", "form", metavar="FORMAT", help="What FILE is, where its name does not say: csv, json, parquet."
)
@click.option("--limit", type=click.IntRange(1), default=1000, show_default=True, help="Rows that are shown at most.")
@job_options
def audit(
    table: str | None, topic: str | None, key: str | None, principal: str | None, events: tuple[str, ...],
    since: str | None, until: str | None, output: str | None, form: str | None, limit: int, **common: Any,
) -> None:  # fmt: skip
    """Tell who changed what, when, over all history, hot and cold."""
    if (table is None) == (topic is None):
        raise click.UsageError("say whose history: --table or --topic")
    with _running("audit", **common) as job:
        from tailrace.spark.jobs.audit import Audited
        from tailrace.spark.jobs.audit import audit as work

        found = work(
            job.spark, url=common["url"], token=common["token"], table=table, topic=topic, key=key, principal=principal,
            events=events or None, since=since, until=until, output=output, format=form,
        )  # fmt: skip
        if isinstance(found, Audited):
            click.echo(f"{found.rows:,} rows are in {found.path}", err=common["as_json"])
            return
        rows = [row.asDict(recursive=True) for row in found.limit(limit).collect()]
    if common["as_json"]:
        for row in rows:
            click.echo(json_line(row), nl=False)
        return
    from tailrace.cli import pipeline_board

    pipeline_board.show(pipeline_board.audited(rows))
    if len(rows) == limit:
        click.echo(f"these are the first {limit:,}; --limit shows more, --output writes all", err=True)


# -- all of them


@pipeline.command()
@click.option("--config", "config", metavar="FILE", help="The settings; pipeline.toml if it is there.")
@click.option("--url", envvar="TAILRACE_URL", help="The server, instead of the file's.")
@_SERVER[1]
@_options(*_SPARK)
def run(config: str | None, url: str | None, token: str | None, master: str | None, **common: Any) -> None:
    """Run all jobs of a pipeline.toml in one Spark application, until interrupted."""
    from tailrace.spark.jobs import settings as pipeline_settings

    found = pipeline_settings.load(config, url=url, master=master)
    more = {"spark.scheduler.mode": "FAIR", **found.spark}
    with _running("run", found.url, token, found.master, more=more, **common) as job:
        from tailrace.spark.jobs.run import run as work

        work(job.spark, settings=found, token=token, on_progress=job.shown, stop=job.stop)
    _say(common, "stopped; what was not finished goes on with the next run")


@pipeline.command()
@click.argument("file", default="pipeline.toml")
def init(file: str) -> None:
    """Write a pipeline.toml that shows every setting; FILE is where."""
    from tailrace.spark.jobs.settings import EXAMPLE

    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)  # credentials may follow
        with open(handle, "w", encoding="utf-8") as out:
            out.write(EXAMPLE)
    except FileExistsError:
        raise Conflict(f"there is a {file!r} already; give another name, or remove it") from None
    except OSError as error:
        raise Invalid(f"cannot write {file!r}: {error.strerror}") from error
    click.echo(f"wrote {file}; start it with tailrace pipeline run --config {file}")


@pipeline.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object per job and line.")
@_options(*_SERVER)
def status(as_json: bool, url: str, token: str | None) -> None:
    """Show the jobs that the server knows of: what they do, how they are, and how far."""
    from tailrace.client import Client

    with Client(url, token=token) as client:
        found = client.sql(_STATUS)[-1].rows
    if as_json:
        for each in found:
            click.echo(json_line(each), nl=False)
    elif found:
        from tailrace.cli import pipeline_board

        pipeline_board.show(pipeline_board.stored(found))
    else:
        click.echo("no job has run yet; start one with tailrace pipeline run", err=True)


def _say(common: dict[str, Any], text: str) -> None:
    """The last word of a job, for people."""
    click.echo(text, err=bool(common.get("as_json")))
