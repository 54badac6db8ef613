"""``tailrace pipeline``: the jobs on history, which run on Spark.

Spark is imported when a job starts. Every failure ends with one line, also one of the JVM: its stack trace does not
help at a keyboard.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tailrace.cli.names import complete, job_argument, table_argument
from tailrace.cli.options import PROFILE, TOKEN, URL, ServerOption, applied, connect, server_options
from tailrace.cli.signals import stop_on_signals
from tailrace.cli.text import json_line
from tailrace.errors import Conflict, Error, Invalid, Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.cli.pipeline_board import ProgressDisplay

_STATUS: Final = "SELECT * FROM system.pipelines ORDER BY name"


_SPARK: Final = (
    click.option(
        "--master", help="Spark's master: local[4], spark://host:7077, yarn, k8s://... (default: this machine)."
    ),
    click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark; can be repeated."),
    click.option("--ship", is_flag=True, help="Send this package to executors that do not have it."),
    click.option("--json", "as_json", is_flag=True, help="Print progress, or rows, as JSON, one object per line."),
    click.option("--quiet", is_flag=True, help="Print no progress."),
)
_ONCE: Final = click.option("--once", is_flag=True, help="Process the existing data, then end.")
job_options = applied(URL, PROFILE, TOKEN, *_SPARK)


class JobContext:
    """The environment of a job: the Spark session, the progress display, the stop event, the server."""

    def __init__(
        self, spark: SparkSession, display: ProgressDisplay, stop: threading.Event, server: dict[str, Any]
    ) -> None:
        self.spark = spark
        self.display = display
        self.stop = stop
        self.server = server


@contextmanager
def _running(
    job: str, url: str, token: str | None, master: str | None, conf: tuple[str, ...], ship: bool, as_json: bool,
    quiet: bool, more: Mapping[str, Any] | None = None,
) -> Iterator[JobContext]:  # fmt: skip
    """A Spark session for one job; its errors become the product's. SIGINT and SIGTERM stop it cleanly."""
    settings = {**(more or {}), **_settings(conf)}
    _check_server(url, token)
    from tailrace.spark.session import session

    with _explained():
        from tailrace.cli.pipeline_board import ProgressDisplay

        stop = threading.Event()
        display = ProgressDisplay(as_json=as_json, quiet=quiet)
        with stop_on_signals(stop):  # while the session starts: an interrupt would show its stack trace
            _quieten_java()
            spark = session(f"tailrace {job}", master, ship=ship, **settings)
        try:
            with stop_on_signals(stop), display:
                yield JobContext(spark, display, stop, {"url": url, "token": token, "on_progress": display})
        finally:
            spark.stop()


def _quieten_java() -> None:
    """Suppress Java's warning about the incubator module, which no job uses."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started it
        return
    from tailrace.spark import java

    home = java.provide()
    program = Path(home) / "bin" / "java" if home is not None else Path(shutil.which("java") or "java")
    os.environ["JAVA_HOME"] = str(java.wrapped(program))


def _check_server(url: str, token: str | None) -> None:
    """Send a request before Spark takes seconds to start: a wrong URL or token is reported at once."""
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


def _settings(conf: tuple[str, ...]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for each in conf:
        name, equals, value = each.partition("=")
        if not equals or not name.startswith("spark."):
            raise click.UsageError(f"--conf {each!r} is not a setting of Spark; give one like spark.executor.memory=4g")
        settings[name] = value
    return settings


# -- cold storage


@click.command()
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="NAME",
    shell_complete=complete("tables"),
    help="A table; * in a name matches anything.",
)
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="A topic; can be repeated, like the others.")
@click.option("--stream", "streams", multiple=True, metavar="PATH", help="A stream.")
@click.option("--all", "everything", is_flag=True, help="All tables, topics and streams.")
@_ONCE
@click.option("--interval", type=click.FloatRange(0.05), help="Seconds between two polls of the server (5).")
@click.option("--batch-records", type=click.IntRange(1), help="Records per commit (200000).")
@click.option("--age", type=click.FloatRange(0), help="Seconds that an incomplete batch waits for more (30).")
@job_options
def tier(
    tables: tuple[str, ...], topics: tuple[str, ...], streams: tuple[str, ...], everything: bool, once: bool,
    interval: float | None, batch_records: int | None, age: float | None, **common: Any,
) -> None:  # fmt: skip
    """Copy logs to cold storage, continuously or with --once. Copied history may be trimmed from the hot log; it is
    then read from cold storage."""
    if not (tables or topics or streams or everything):
        raise click.UsageError("nothing to tier: give --table, --topic, --stream or --all")
    given: dict[str, Any] = {"interval_s": interval, "batch_records": batch_records, "age_s": age}
    with _running("tier", **common) as job:
        from tailrace.spark.jobs.progress import size
        from tailrace.spark.jobs.tier import tier as work

        done = work(
            job.spark, tables=tables, topics=topics, streams=streams, all=everything, once=once, stop=job.stop,
            **{name: value for name, value in given.items() if value is not None}, **job.server,
        )  # fmt: skip
    _summarize(common, f"{done.rows:,} rows tiered: {done.commits:,} commits, {done.files:,} files, {size(done.bytes)}")


@click.command()
@click.option(
    "--place",
    "places",
    multiple=True,
    metavar="PLACE",
    help="E.g. tables/orders or streams; can be repeated (default: all).",
)
@click.option("--target-bytes", metavar="SIZE", help="The size that files are merged to: 256MiB, or a number.")
@click.option("--retention", metavar="TIME", help="Delete history older than this, e.g. 365d (default: keep all).")
@click.option("--vacuum", metavar="TIME", help="Remove files unreferenced for this long (7d).")
@click.option("--alone", is_flag=True, help="No other job or reader is active: --vacuum may be less than an hour.")
@job_options
def compact(
    places: tuple[str, ...], target_bytes: str | None, retention: str | None, vacuum: str | None, alone: bool,
    **common: Any,
) -> None:  # fmt: skip
    """Merge small files of cold storage, delete history past its retention, remove unreferenced files."""
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
    _summarize(
        common,
        f"{done.merged:,} files merged into {done.written:,}, {done.forgotten:,} rows deleted, "
        f"{done.removed:,} files removed",
    )


# -- states


@click.command()
@table_argument
@click.option(
    "--at", "at", type=click.IntRange(0), metavar="SEQUENCE", help="The state after this transaction (default: now)."
)
@click.option("--retention", metavar="TIME", help="Delete snapshots older than this, e.g. 90d (default: keep all).")
@job_options
def snapshot(table: str, at: int | None, retention: str | None, **common: Any) -> None:
    """Fold the changes of TABLE to its state, starting from the last snapshot, and store it in cold storage."""
    from tailrace.spark.jobs import settings

    if retention is not None:
        settings.seconds(retention, "--retention")
    with _running("snapshot", **common) as job:
        from tailrace.spark.jobs.snapshot import snapshot as work

        done = work(job.spark, table=table, at=at, retention=retention, **job.server)
    _summarize(common, f"{done.rows:,} items of {table} at sequence {done.sequence} ({done.how}): {done.place}")


@click.command()
@table_argument
@click.option("--into", required=True, metavar="TABLE", help="The table to create, or an empty one.")
@click.option("--at-sequence", type=click.IntRange(0), metavar="SEQUENCE", help="The state after this transaction.")
@click.option("--at-time", metavar="TIME", help="The state at this time: ISO 8601, or milliseconds since 1970.")
@job_options
def restore(table: str, into: str, at_sequence: int | None, at_time: str | None, **common: Any) -> None:
    """Rebuild TABLE as of an earlier time, in another table. (`tailrace restore` restores a whole database from a
    backup.)"""
    if at_sequence is not None and at_time is not None:
        raise click.UsageError("--at-sequence and --at-time exclude each other")
    with _running("restore", **common) as job:
        from tailrace.spark.jobs.restore import restore as work

        done = work(job.spark, table=table, into=into, at_sequence=at_sequence, at_time=at_time, **job.server)
    _summarize(common, f"{done.rows:,} items of {table} as of sequence {done.sequence} are in {done.into}")


# -- views, copies and audits


@click.command()
@click.argument("name", shell_complete=complete("views"))
@_ONCE
@click.option("--refill", is_flag=True, help="Fill it again from its sources first.")
@click.option(
    "--max-records", type=click.IntRange(1), help="Changes of a source per batch (200000; of an additive view 1000000)."
)
@click.option("--interval", type=click.FloatRange(0.05), help="Seconds between two batches (1).")
@click.option("--refresh", type=click.FloatRange(0.05), help="Seconds between two runs of a SELECT with now() (60).")
@job_options
def view(
    name: str, once: bool, refill: bool, max_records: int | None, interval: float | None, refresh: float | None,
    **common: Any,
) -> None:  # fmt: skip
    """Maintain the materialized view NAME, declared with CREATE MATERIALIZED VIEW."""
    given: dict[str, Any] = {"max_records": max_records, "interval_s": interval, "refresh_s": refresh}
    with _running("view", **common) as job:
        from tailrace.spark.jobs.view import view as work

        done = work(
            job.spark, name, once=once, refill=refill, stop=job.stop,
            **{each: value for each, value in given.items() if value is not None}, **job.server,
        )  # fmt: skip
    filled = f", filled with {done.filled:,} rows" if done.filled else ""
    _summarize(common, f"{done.rows:,} changes in {done.batches:,} batches{filled}")


@click.command()
@click.argument("select")
@job_options
def explain(select: str, **common: Any) -> None:
    """Plan a view with this SELECT without creating it: strategy, key, columns, derivative and warnings."""
    with _running("explain", **common) as job:
        from tailrace.spark.jobs.view import explain_select

        rows = explain_select(job.spark, select, **{name: job.server[name] for name in ("url", "token")})
    for name, value in rows:
        click.echo(f"{name:<11}{value}")


@click.command()
@table_argument
@click.option(
    "--to", required=True, metavar="URL", help="file:///path, s3://bucket/prefix, postgresql://... or http://..."
)
@click.option("--name", help="The copy's name, where a table has several.")
@click.option("--target-table", metavar="TABLE", help="The table's name there (default: the same).")
@click.option("--target-token", envvar="TAILRACE_TARGET_TOKEN", help="The bearer token of the target server.")
@_ONCE
@click.option("--checkpoint", metavar="DIR", help="Where Spark keeps its cursor (default: a temporary directory).")
@click.option("--max-records", type=click.IntRange(1), help="Changes per batch (50000; to Delta 500000).")
@click.option("--interval", type=click.FloatRange(0.05), help="Seconds between two batches (1).")
@job_options
def replicate(
    table: str, to: str, name: str | None, target_table: str | None, target_token: str | None, once: bool,
    checkpoint: str | None, max_records: int | None, interval: float | None, **common: Any,
) -> None:  # fmt: skip
    """Maintain a copy of TABLE in Delta, in PostgreSQL or on another Tailrace server; in order, each change once."""
    given: dict[str, Any] = {"max_records": max_records, "interval_s": interval}
    with _running("replicate", **common) as job:
        from tailrace.spark.jobs.replicate import replicate as work

        done = work(
            job.spark, table=table, to=to, name=name, target_table=target_table, target_token=target_token, once=once,
            checkpoint=checkpoint, stop=job.stop,
            **{each: value for each, value in given.items() if value is not None}, **job.server,
        )  # fmt: skip
    _summarize(common, f"{done.rows:,} changes in {done.batches:,} batches; the copy is at {done.position}")


@click.command()
@click.option("--table", metavar="NAME", shell_complete=complete("tables"), help="Changes of this table.")
@click.option("--topic", metavar="NAME", shell_complete=complete("topics"), help="Messages of this topic.")
@click.option("--key", help="Only this item: its key, or the key as JSON.")
@click.option("--principal", metavar="NAME", help="Only changes by this principal.")
@click.option(
    "--event", "events", multiple=True, metavar="EVENT", help="Only INSERT, MODIFY or REMOVE; can be repeated."
)
@click.option("--since", metavar="TIME", help="From this time on: ISO 8601, or milliseconds since 1970.")
@click.option("--until", metavar="TIME", help="Before this time.")
@click.option("--output", metavar="FILE", help="Write to a file: .csv, .json or .parquet.")
@click.option(
    "--format", "form", metavar="FORMAT", help="The format of FILE, if not by its suffix: csv, json, parquet."
)
@click.option("--limit", type=click.IntRange(1), default=1000, show_default=True, help="Show at most this many rows.")
@job_options
def audit(
    table: str | None, topic: str | None, key: str | None, principal: str | None, events: tuple[str, ...],
    since: str | None, until: str | None, output: str | None, form: str | None, limit: int, **common: Any,
) -> None:  # fmt: skip
    """Report who changed what, and when, over the whole history, hot and cold."""
    if (table is None) == (topic is None):
        raise click.UsageError("give --table or --topic")
    with _running("audit", **common) as job:
        from tailrace.spark.jobs.audit import Audited
        from tailrace.spark.jobs.audit import audit as work

        result = work(
            job.spark, url=common["url"], token=common["token"], table=table, topic=topic, key=key, principal=principal,
            events=events or None, since=since, until=until, output=output, format=form,
        )  # fmt: skip
        if isinstance(result, Audited):
            click.echo(f"{result.rows:,} rows written to {result.path}", err=common["as_json"])
            return
        rows = [row.asDict(recursive=True) for row in result.limit(limit).collect()]
    if common["as_json"]:
        for row in rows:
            click.echo(json_line(row), nl=False)
        return
    from tailrace.cli import pipeline_board

    pipeline_board.show(pipeline_board.audit_rows(rows))
    if len(rows) == limit:
        click.echo(f"the first {limit:,} rows; raise --limit, or write all with --output", err=True)


# -- the pipeline as a whole


@click.command()
@click.option("--config", metavar="FILE", help="The settings (default: pipeline.toml, if it exists).")
@click.option("--url", cls=ServerOption, envvar="TAILRACE_URL", help="The server's URL (default: the file's).")
@applied(PROFILE, TOKEN, *_SPARK)
def run(config: str | None, url: str | None, token: str | None, master: str | None, **common: Any) -> None:
    """Run all jobs of a pipeline.toml in one Spark application, until interrupted."""
    from tailrace.spark.jobs import settings as pipeline_settings

    settings = pipeline_settings.load(config, url=url, master=master)
    more = {"spark.scheduler.mode": "FAIR", **settings.spark}
    with _running("run", settings.url, token, settings.master, more=more, **common) as job:
        from tailrace.spark.jobs.run import run as work

        work(job.spark, settings=settings, token=token, on_progress=job.display, stop=job.stop)
    _summarize(common, "stopped; unfinished work continues with the next run")


@click.command()
@click.argument("file", default="pipeline.toml")
def init(file: str) -> None:
    """Write FILE, a pipeline.toml with every setting and its default."""
    from tailrace.spark.jobs.settings import EXAMPLE

    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)  # credentials may follow
        with open(handle, "w", encoding="utf-8") as out:
            out.write(EXAMPLE)
    except FileExistsError:
        raise Conflict(f"{file!r} exists already; give another name, or remove it") from None
    except OSError as error:
        raise Invalid(f"cannot write {file!r}: {error.strerror}") from error
    click.echo(f"wrote {file}; start it with tailrace pipeline run --config {file}")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per job and line.")
@server_options
def status(as_json: bool, url: str, token: str | None) -> None:
    """List the jobs registered with the server: source, target, state and progress."""
    with connect(url, token) as client:
        jobs = client.sql(_STATUS)[-1].rows
    if as_json:
        for each in jobs:
            click.echo(json_line(each), nl=False)
    elif jobs:
        from tailrace.cli import pipeline_board

        pipeline_board.show(pipeline_board.stored_jobs(jobs))
    else:
        click.echo("no job has run yet; start one with tailrace pipeline run", err=True)


@click.command()
@job_argument
@server_options
def pause(name: str, url: str, token: str | None) -> None:
    """Pause the job NAME: its program finishes the batch and then waits, also after a restart, until it is resumed."""
    with connect(url, token) as client:
        found = client.pause_job(name)
    click.echo(f"{name}: paused since {found['paused_at']} by {found['paused_by']}")


@click.command()
@job_argument
@server_options
def resume(name: str, url: str, token: str | None) -> None:
    """Resume the paused job NAME; it continues from where it was."""
    with connect(url, token) as client:
        client.resume_job(name)
    click.echo(f"{name}: resumed")


def _summarize(common: dict[str, Any], text: str) -> None:
    """The summary of a job, for people."""
    click.echo(text, err=bool(common.get("as_json")))
