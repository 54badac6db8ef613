"""Run: all jobs of a pipeline.toml, as a program that is started, watched, interrupted and started again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake.exceptions import TableNotFoundError

from tailrace.client import Client
from tailrace.errors import Conflict, Unavailable
from tailrace.spark.jobs import run as module
from tailrace.spark.jobs.progress import Progress
from tailrace.spark.jobs.run import JobThread, run
from tailrace.spark.jobs.settings import (
    CompactSettings,
    PipelineSettings,
    ReplicateSettings,
    SnapshotSettings,
    TierSettings,
    ViewSettings,
)
from tailrace.spark.jobs.tier import tier
from tailrace.spark.jobs.view import view
from tests.spark.histories import cold_entries, delta, hot, make_table, put_rows, until
from tests.support.patience import PATIENCE_S
from tests.support.server import ROOT, ServerProcess
from tests.unit.threaded import Served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    with Client(served.url) as found:
        yield found


def tiered(client: Client, table: str) -> bool:
    return all(each["tiered"] == each["next"] for each in client.logs(table=table)["partitions"])


NOTHING = Progress(job="", kind="", state="")


def _count(client: Client, view: str) -> int | None:
    if client.view(view)["phase"] != "live":
        return None
    rows = client.sql(f"SELECT n FROM {view}")[-1].rows
    return int(rows[0]["n"]) if rows else None


class Running:
    """`run` in a thread of the tests' own session."""

    def __init__(self, spark: SparkSession, settings: PipelineSettings) -> None:
        self.reports: list[Progress] = []
        self.error: BaseException | None = None
        self.stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(spark, settings))
        self._thread.start()

    def _run(self, spark: SparkSession, settings: PipelineSettings) -> None:
        try:
            run(spark, settings=settings, on_progress=self.reports.append, stop=self.stop)
        except BaseException as error:
            self.error = error

    def latest(self, job: str) -> Progress | None:
        return next((each for each in reversed(self.reports) if each.job == job), None)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        assert self.error is None


def settings(url: str, **sections: Any) -> PipelineSettings:
    tier = TierSettings(interval_s=0.1, age_s=0.0)
    return PipelineSettings(
        **{
            "url": url,
            "tier": tier,
            "compact": CompactSettings(enabled=False),
            "views": ViewSettings(poll_s=0.3),
            **sections,
        }
    )


def test_all_jobs_run_together(
    spark: SparkSession, served: Served, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.spark.jobs.tier.LIST_S", 0.5)
    cold = tmp_path / "data" / "cold"
    make_table(client, "orders")
    wanted = settings(
        served.url, compact=CompactSettings(every="1s"), snapshot=SnapshotSettings(tables=("orders",), every="1s")
    )
    with Running(spark, wanted) as running:
        for number in range(10):
            put_rows(client, "orders", 20, first=number * 20)
            until(lambda: tiered(client, "orders"))
        until(lambda: len(delta(cold, "tables/orders").file_uris()) <= 3)
        until(lambda: (running.latest("snapshot/orders") or NOTHING).state == "done")
        client.sql("CREATE MATERIALIZED VIEW totals AS SELECT count(*) AS n FROM orders")
        until(lambda: _count(client, "totals") == 97)
        client.sql("DROP MATERIALIZED VIEW totals")
        until(lambda: (running.latest("totals") or NOTHING).state == "stopped")
        make_table(client, "later")
        put_rows(client, "later", 5)
        until(lambda: tiered(client, "later"))
    assert cold_entries(cold, "tables/orders") == hot(client, "table", "orders")
    states = {row["name"]: row["state"] for row in client.sql("SELECT name, state FROM system.pipelines")[-1].rows}
    assert states["tier/tables/orders"] == states["tier/tables/later"] == "stopped"
    assert {"compact", "snapshot/orders"} <= set(states)


def test_jobs_are_paused_and_resumed_also_across_restarts(
    spark: SparkSession, served: Served, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.spark.jobs.tier.LIST_S", 0.5)
    make_table(client, "orders")
    make_table(client, "others")
    copy = ReplicateSettings(table="orders", to=f"file://{tmp_path}/copy", interval_s=0.1)
    wanted = settings(served.url, snapshot=SnapshotSettings(tables=("orders",), every="1s"), replicate=(copy,))
    client.sql("CREATE MATERIALIZED VIEW totals AS SELECT count(*) AS n FROM orders")
    jobs = ("totals", "tier/tables/orders", "snapshot/orders", "replicate/orders/delta")

    def states() -> dict[str, tuple[str, bool]]:
        return {each["name"]: (each["state"], each["paused"]) for each in client.jobs()}

    def held() -> bool:
        return all(states().get(name) == ("paused", True) for name in jobs)

    def copied() -> int | None:
        try:
            return int(delta(tmp_path, "copy").to_pyarrow_table().num_rows)
        except TableNotFoundError:
            return None

    with Running(spark, wanted):
        put_rows(client, "orders", 10)
        rows = client.sql("SELECT count(*) AS n FROM orders")[-1].rows[0]["n"]
        until(lambda: _count(client, "totals") == rows and tiered(client, "orders") and copied() == rows)
        until(lambda: set(jobs) <= set(states()))
        for name in jobs:
            client.pause_job(name)
        until(held)
        generations = {each["name"]: each["generation"] for each in client.cold()["places"]}
        put_rows(client, "orders", 10, first=100)
        put_rows(client, "others", 10)
        until(lambda: tiered(client, "others"))  # the others go on
        assert held() and not tiered(client, "orders")
    with Running(spark, wanted):  # another program: it is still paused
        until(held)
        put_rows(client, "others", 10, first=100)
        until(lambda: tiered(client, "others"))
        assert _count(client, "totals") == copied() == rows and not tiered(client, "orders")
        now = {each["name"]: each["generation"] for each in client.cold()["places"]}
        assert now["tables/orders"] == generations["tables/orders"]
        with pytest.raises(Conflict, match="resume totals"):
            view(spark, "totals", url=served.url, once=True)
        with pytest.raises(Conflict, match="is paused"):
            tier(spark, tables=["orders"], url=served.url, once=True)
        reported = {each["name"]: each["updated_at"] for each in client.jobs()}
        until(lambda: all(each["updated_at"] > reported[each["name"]] for each in client.jobs() if each["paused"]))
        for name in jobs:
            client.resume_job(name)
        rows = client.sql("SELECT count(*) AS n FROM orders")[-1].rows[0]["n"]
        until(lambda: _count(client, "totals") == rows and tiered(client, "orders") and copied() == rows)
        until(lambda: states()["snapshot/orders"] == ("stopped", False))
        assert not any(paused for _, paused in states().values())


def test_a_job_that_fails_is_started_again_and_holds_up_no_other(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.05)
    reports: list[Progress] = []
    tries = {"bad": 0, "good": 0}

    def bad(stop: threading.Event) -> None:
        tries["bad"] += 1
        raise RuntimeError("a page of a stack") if tries["bad"] % 2 else Unavailable("the server is away")

    def good(stop: threading.Event) -> None:
        assert spark.range(10).count() == 10
        tries["good"] += 1

    workers = [
        JobThread(spark, "bad", "test", bad, reports.append, None),
        JobThread(spark, "good", "test", good, reports.append, 0.05),
    ]
    until(lambda: tries["bad"] >= 3 and tries["good"] >= 3)
    for each in workers:
        each.stop.set()
    assert all(each.ended(20) for each in workers)
    messages = [each.message for each in reports if each.state == "retrying"]
    assert {"a page of a stack", "the server is away"} <= set(messages)
    assert all(each.job == "bad" for each in reports if each.state == "retrying")
    assert {each.job for each in reports if each.state == "stopped"} == {"bad", "good"}


def test_a_wrong_url_is_reported_at_once(spark: SparkSession) -> None:
    with pytest.raises(Unavailable, match="is the server running"):
        run(spark, settings=settings("http://127.0.0.1:1"))


# -- as a program


def program(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tailrace.cli", "pipeline", *arguments],
        cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip


def environment() -> dict[str, str]:
    import os

    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}
    return {**kept, "PYTHONPATH": paths, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}


@pytest.mark.slow
def test_the_program_runs_a_toml_outlives_the_server_and_stops_at_a_signal(tmp_path: Path) -> None:
    data = tmp_path / "data"
    process = ServerProcess.tailrace(data).start()
    (tmp_path / "pipeline.toml").write_text(
        f"""
        url = "{process.url}"
        master = "local[1]"
        [tier]
        interval_s = 0.1
        age_s = 0.0
        [compact]
        enabled = false
        [views]
        poll_s = 0.5
        """
    )
    with Client(process.url) as client:
        make_table(client, "orders")
        put_rows(client, "orders", 50)
        child = program("run", "--json", cwd=tmp_path)
        try:
            until(lambda: tiered(client, "orders"))
            port = process.port
            process.kill()
            time.sleep(1)
            process = ServerProcess.tailrace(data, port=port).start()
            put_rows(client, "orders", 50, first=50)
            until(lambda: tiered(client, "orders"))
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=PATIENCE_S)
        finally:
            child.kill()
        assert child.returncode == 0, err
        assert "stopped" in err
        assert "Traceback" not in err
        assert "java" not in err
        reports = [json.loads(line) for line in out.splitlines()]
        assert {"tier/tables/orders"} <= {each["job"] for each in reports}
        assert cold_entries(data / "cold", "tables/orders") == hot(client, "table", "orders")
        status = subprocess.run(
            [sys.executable, "-m", "tailrace.cli", "pipeline", "status", "--url", process.url],
            capture_output=True, text=True, check=True, env=environment(),
        )  # fmt: skip
        assert "tier/tables/orders" in status.stdout
    process.terminate()
