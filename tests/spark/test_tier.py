"""Tier: what is in the hot log is in cold storage, byte for byte and once, whatever happens in between."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.client import Client
from tailrace.cold.schemas import SCHEMAS
from tailrace.errors import Conflict, Corrupt, Error, Invalid, NotFound, Unavailable
from tailrace.spark.jobs import tier as module
from tailrace.spark.jobs.progress import Progress
from tailrace.spark.jobs.tier import tier
from tests.spark.histories import (
    cold_entries,
    delta,
    driver,
    duck_entries,
    here,
    hot,
    make_table,
    put_rows,
    put_together,
    until,
)
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


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    return tmp_path / "data" / "cold"


def marks(client: Client, kind: str, name: str) -> dict[int, tuple[int, int]]:
    return {each["log"]: (each["tiered"], each["next"]) for each in client.logs(**{kind: name})["partitions"]}


def all_tiered(client: Client, kind: str, name: str) -> bool:
    return all(tiered == end for tiered, end in marks(client, kind, name).values())


# -- what is carried


def test_tables_topics_and_streams_are_in_cold_storage_byte_for_byte(
    spark: SparkSession, served: Served, client: Client, cold: Path
) -> None:
    make_table(client, "orders")
    put_rows(client, "orders", 200)
    put_together(client, "orders")
    client.sql("CREATE TOPIC news PARTITIONS 3")
    for number in range(60):
        client.publish("news", f"message {number}".encode(), key=f"k{number % 7}")
    client.create("docs/one", "application/json")
    client.create("docs/two", "text/plain")
    for number in range(20):
        client.append("docs/one", b'{"n": %d}' % number, "application/json")
        client.append("docs/two", b"line %d\n" % number)
    done = tier(
        spark, url=served.url, tables=["orders"], topics=["news"], streams=["docs/*"], once=True, batch_records=150
    )
    assert done.rows == 203 + 60 + 40
    assert done.commits >= 4
    for kind, name, place in (("table", "orders", "tables/orders"), ("topic", "news", "topics/news")):
        wanted = hot(client, kind, name)
        assert cold_entries(cold, place) == wanted
        assert duck_entries(cold, place) == wanted
        assert all_tiered(client, kind, name)
    wanted = sorted(hot(client, "stream", "docs/one") + hot(client, "stream", "docs/two"))
    assert cold_entries(cold, "streams") == wanted == duck_entries(cold, "streams")
    rows = delta(cold, "tables/orders").to_pyarrow_table()
    assert rows.schema.equals(SCHEMAS["table"])
    assert rows.num_rows == 203
    assert rows.filter(rows["index"].is_valid())["index"].to_pylist().count(2) == 1  # of three records in one entry
    streams = delta(cold, "streams").to_pyarrow_table()
    assert set(streams["stream"].to_pylist()) == {"docs/one", "docs/two"}
    # Again: there is nothing to do, and nothing is done.
    version = delta(cold, "tables/orders").version()
    assert tier(spark, url=served.url, tables=["orders"], once=True).rows == 0
    assert delta(cold, "tables/orders").version() == version
    shown = {row["name"]: row for row in client.sql("SELECT * FROM system.pipelines")[-1].rows}
    assert shown["tier/tables/orders"]["state"] == "stopped"


def test_a_batch_is_split_over_tasks_and_still_whole(
    spark: SparkSession, served: Served, client: Client, cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.spark.jobs.ranges.TASK_RECORDS", 10)
    make_table(client, "orders")
    put_rows(client, "orders", 300)
    wanted = hot(client, "table", "orders")
    done = tier(spark, url=served.url, tables=["orders"], once=True)
    assert done.commits == 1
    assert done.files == spark.sparkContext.defaultParallelism > 1
    assert cold_entries(cold, "tables/orders") == wanted


def test_all_means_all_and_what_is_made_later_too(served: Served, client: Client, cold: Path) -> None:
    make_table(client, "aaa")
    client.create("s/1")
    work = driver(served.url, client, tables=["*"], topics=["*"], streams=["s/*"], clock=(clock := Clock()))
    put_rows(client, "aaa", 5)
    client.append("s/1", b"x")
    client.create("other")
    client.append("other", b"y")
    work.round(flush=True)
    make_table(client, "bbb")
    put_rows(client, "bbb", 5)
    clock.now += module.LIST_S
    work.round(flush=True)
    assert not work.failures
    assert work.done.rows == 11
    assert len(cold_entries(cold, "tables/bbb")) == 5
    assert {log for log, *_ in cold_entries(cold, "streams")} == set(marks(client, "stream", "s/1"))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_less_than_a_batch_waits_for_more(served: Served, client: Client, cold: Path) -> None:
    make_table(client, "orders")
    clock, reports = Clock(), []
    work = driver(
        served.url, client, tables=["orders"], batch_records=50, age_s=30, clock=clock, on_progress=reports.append
    )
    put_rows(client, "orders", 10)
    work.round()
    assert work.done.commits == 0
    assert (reports[-1].state, reports[-1].lag) == ("waiting", 10)
    clock.now += 29
    work.round()
    assert work.done.commits == 0
    clock.now += 2
    work.round()
    assert (work.done.commits, work.done.rows) == (1, 10)
    put_rows(client, "orders", 120, first=10)
    assert work.round()  # a full batch does not wait, and there is more
    assert work.done.commits == 2
    assert work.done.rows >= 60
    work.round(flush=True)
    work.round(flush=True)
    assert work.done.rows == 130
    assert reports[-1].state in ("running", "waiting")
    assert cold_entries(cold, "tables/orders") == hot(client, "table", "orders")


# -- crashes and races


class Died(Exception):
    """The driver is no more."""


def test_a_driver_that_died_between_commit_and_mark_is_finished_by_the_next(
    served: Served, client: Client, cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(client, "orders")
    put_rows(client, "orders", 40)
    first = driver(served.url, client, tables=["orders"], batch_records=30)

    def died(*_: Any) -> None:
        raise Died

    monkeypatch.setattr(first, "_mark", died)
    with pytest.raises(Died):
        first.round(flush=True)
    version = delta(cold, "tables/orders").version()
    (before,) = marks(client, "table", "orders").values()
    assert before[0] < before[1]
    put_rows(client, "orders", 5, first=40)
    second = driver(served.url, client, tables=["orders"], batch_records=30)
    assert second.round(flush=True)  # finishes, writes nothing
    assert delta(cold, "tables/orders").version() == version
    assert second.done.commits == 0
    (after,) = marks(client, "table", "orders").values()
    assert after[0] > before[0]
    while second.round(flush=True) or not all_tiered(client, "table", "orders"):
        assert not second.failures
    assert cold_entries(cold, "tables/orders") == hot(client, "table", "orders")


def test_entries_that_differ_from_the_servers_are_not_marked(
    served: Served, client: Client, cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(client, "orders")
    put_rows(client, "orders", 40)
    first = driver(served.url, client, tables=["orders"])
    monkeypatch.setattr(first, "_mark", lambda *_: None)
    first.round(flush=True)
    work = driver(served.url, client, tables=["orders"], run_tasks=_otherwise)
    before = marks(client, "table", "orders")
    work.round(flush=True)
    error = work.failures["tables/orders"]
    assert isinstance(error, Corrupt)
    assert "older backup" in str(error)
    assert "orders" in str(error)
    assert marks(client, "table", "orders") == before


def test_a_file_that_was_lost_or_damaged_since_its_commit_is_named_and_not_marked(
    served: Served, client: Client, cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(client, "orders")
    put_rows(client, "orders", 40)
    first = driver(served.url, client, tables=["orders"])
    monkeypatch.setattr(first, "_mark", lambda *_: None)
    first.round(flush=True)
    before = marks(client, "table", "orders")
    (path,) = (cold / "tables" / "orders").glob("*.parquet")
    whole = path.read_bytes()
    for damage in (None, whole[:200] + bytes(99) + whole[299:], whole[:-20]):
        path.unlink() if damage is None else path.write_bytes(damage)
        work = driver(served.url, client, tables=["orders"])
        work.round(flush=True)
        error = work.failures["tables/orders"]
        assert isinstance(error, Corrupt)
        assert path.name in str(error)
        assert marks(client, "table", "orders") == before
    path.write_bytes(whole)
    work = driver(served.url, client, tables=["orders"])
    work.round(flush=True)
    assert not work.failures
    assert all_tiered(client, "table", "orders")


def _otherwise(loads: Any, reached: Any, write: bool) -> Any:
    """As a server would answer that has other entries at the same positions."""
    import msgspec

    found = here(loads, reached, write)
    if write:
        return found
    spans = [[msgspec.structs.replace(span, digest=span.digest ^ 1) for span in each.spans] for each in found]
    return [msgspec.structs.replace(each, spans=span) for each, span in zip(found, spans, strict=True)]


def test_drivers_that_race_write_no_range_twice(served: Served, client: Client, cold: Path) -> None:
    make_table(client, "orders")
    for path in ("s/1", "s/2"):
        client.create(path)
    stop = threading.Event()
    errors: list[BaseException] = []

    def write() -> None:
        with Client(served.url) as own:
            for number in range(40):
                put_rows(own, "orders", 25, first=number * 25)
                own.append("s/1", b"one %d" % number)
                own.append("s/2", b"two %d" % number)
        stop.set()

    def drive() -> None:
        try:
            with Client(served.url) as own:
                work = driver(served.url, own, tables=["orders"], streams=["s/1", "s/2"], batch_records=40)
                while True:
                    last = stop.is_set()
                    work.round(flush=True)
                    if any(not isinstance(each, Conflict) for each in work.failures.values()):
                        raise next(iter(work.failures.values()))
                    if last and all(all_tiered(own, *of) for of in OF):
                        return
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=each) for each in (write, drive, drive, drive)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE_S)
    assert errors == []
    assert not any(each.is_alive() for each in threads)
    assert cold_entries(cold, "tables/orders") == hot(client, "table", "orders")
    assert cold_entries(cold, "streams") == sorted(hot(client, "stream", "s/1") + hot(client, "stream", "s/2"))
    rows = delta(cold, "tables/orders").to_pyarrow_table()
    assert rows.num_rows == 1000


OF = (("table", "orders"), ("stream", "s/1"), ("stream", "s/2"))

PROGRAM = """
import sys
from tailrace.spark.session import session
from tailrace.spark.jobs.tier import tier
spark = session("race", "local[1]")
print("ready", flush=True)
sys.stdin.readline()
done = tier(spark, url=sys.argv[1], tables=["orders"], once=True, batch_records=150)
print(done.rows, done.commits)
spark.stop()
"""


@pytest.mark.slow
def test_two_applications_of_spark_race(spark: SparkSession, served: Served, client: Client, cold: Path) -> None:
    make_table(client, "orders")
    put_rows(client, "orders", 600)
    other = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, served.url],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert other.stdin is not None and other.stdout is not None
    try:
        assert other.stdout.readline() == "ready\n"
        other.stdin.write("go\n")
        other.stdin.flush()
        done = tier(spark, url=served.url, tables=["orders"], once=True, batch_records=150)
        out, err = other.communicate(timeout=1000)
    finally:
        other.kill()
    assert other.returncode == 0, err
    rows = done.rows + int(out.split()[0])
    assert rows <= 600  # a batch that one of them finished for the other counts for neither
    assert cold_entries(cold, "tables/orders") == hot(client, "table", "orders")
    assert delta(cold, "tables/orders").to_pyarrow_table().num_rows == 600


def test_a_server_that_is_restarted_in_the_middle_is_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    process = ServerProcess.tailrace(data).start()
    port = process.port
    reports: list[Progress] = []
    stop = threading.Event()
    result: list[Any] = []
    with Client(process.url) as client:
        make_table(client, "orders")
        put_rows(client, "orders", 100)
        url = process.url

        def work() -> None:
            try:
                result.append(
                    tier(
                        spark, url=url, tables=["orders"], interval_s=0.1, age_s=0.0, batch_records=50, stop=stop,
                        on_progress=reports.append,
                    )
                )  # fmt: skip
            except BaseException as error:
                result.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            until(lambda: all_tiered(client, "table", "orders"))
            process.kill()
            until(lambda: any(each.state == "retrying" for each in reports))
            process = ServerProcess.tailrace(data, port=port).start()
            put_rows(client, "orders", 100, first=100)
            until(lambda: all_tiered(client, "table", "orders"))
            assert cold_entries(data / "cold", "tables/orders") == hot(client, "table", "orders")
        finally:
            stop.set()
            thread.join(PATIENCE_S)
            process.terminate()
    assert result[0].rows == 200
    assert reports[-1].state == "stopped"


# -- what goes wrong


def test_a_table_that_is_dropped_and_made_again_is_another(served: Served, client: Client, cold: Path) -> None:
    make_table(client, "orders")
    put_rows(client, "orders", 10)
    work = driver(served.url, client, tables=["*"])
    work.round(flush=True)
    old = hot(client, "table", "orders")
    client.call("DeleteTable", {"TableName": "orders"})
    until(lambda: not client.call("ListTables", {})["TableNames"])
    work.round(flush=True)
    assert not work.failures
    make_table(client, "orders")
    put_rows(client, "orders", 3)
    again = driver(served.url, client, tables=["orders"])
    again.round(flush=True)
    assert not again.failures
    assert cold_entries(cold, "tables/orders") == sorted(old + hot(client, "table", "orders"))


def stream(client: Client, table: str, enabled: bool) -> None:
    """Close the table's change stream, or begin another."""
    wanted: dict[str, Any] = {"StreamEnabled": enabled}
    if enabled:
        wanted["StreamViewType"] = "NEW_AND_OLD_IMAGES"
    client.call("UpdateTable", {"TableName": table, "StreamSpecification": wanted})


def test_what_is_left_of_closed_change_streams_is_tiered(served: Served, client: Client, cold: Path) -> None:
    make_table(client, "orders")
    put_rows(client, "orders", 10)
    driver(served.url, client, tables=["orders"]).round(flush=True)
    history = []
    for first in (10, 30):  # twice: a stream that was attached, and has more than was tiered, is closed
        put_rows(client, "orders", 20, first=first)
        history += hot(client, "table", "orders")
        stream(client, "orders", enabled=False)
        stream(client, "orders", enabled=True)
        client.attach(table="orders")
    put_rows(client, "orders", 5, first=50)
    work = driver(served.url, client, tables=["orders"], batch_records=15)
    while work.round(flush=True):
        assert not work.failures
    assert not work.failures
    logs = [each for place in client.cold()["places"] for each in place["logs"]]
    assert len(logs) == 3
    assert all(each["tiered"] == each["next"] and each["table"] == "orders" for each in logs)
    assert cold_entries(cold, "tables/orders") == sorted(history + hot(client, "table", "orders"))
    (place,) = work.look()
    assert len(place.sources) == 1  # the others are all there, and not asked for again


def test_what_is_left_of_a_table_that_is_gone_is_tiered_by_a_driver_that_comes_later(
    served: Served, client: Client, cold: Path
) -> None:
    make_table(client, "orders")
    client.attach(table="orders")
    put_rows(client, "orders", 30)
    wanted = hot(client, "table", "orders")
    client.call("DeleteTable", {"TableName": "orders"})
    until(lambda: not client.call("ListTables", {})["TableNames"])
    other = driver(served.url, client, tables=["others*"])
    other.round(flush=True)
    assert other.done.rows == 0
    work = driver(served.url, client, tables=["*"])
    work.round(flush=True)
    assert not work.failures
    assert cold_entries(cold, "tables/orders") == wanted
    (log,) = client.cold()["places"][0]["logs"]
    assert log["tiered"] == log["next"]
    assert work.look() == []  # nothing more is asked of it


def test_one_place_that_fails_does_not_hold_up_the_others(
    served: Served, client: Client, cold: Path, tmp_path: Path
) -> None:
    for name in ("aaa", "bbb"):
        make_table(client, name)
        put_rows(client, name, 10)
    (cold / "tables").mkdir(parents=True)
    (cold / "tables" / "aaa").write_text("in the way")
    work = driver(served.url, client, tables=["aaa", "bbb"])
    work.round(flush=True)
    assert list(work.failures) == ["tables/aaa"]
    assert isinstance(work.failures["tables/aaa"], Error)
    assert str(cold / "tables" / "aaa") in str(work.failures["tables/aaa"])
    assert all_tiered(client, "table", "bbb")
    assert not all_tiered(client, "table", "aaa")
    (cold / "tables" / "aaa").unlink()
    work.round(flush=True)
    assert not work.failures
    assert all_tiered(client, "table", "aaa")


def test_what_the_server_leaves_out_is_noticed_and_nothing_is_committed(
    served: Served, client: Client, cold: Path
) -> None:
    make_table(client, "orders")
    put_rows(client, "orders", 40)

    def lossy(loads: Any, reached: Any, write: bool) -> Any:
        import msgspec

        found = here(loads, reached, write)
        spans = [[msgspec.structs.replace(span, next=span.next - 1) for span in each.spans] for each in found]
        return [msgspec.structs.replace(each, spans=span) for each, span in zip(found, spans, strict=True)]

    work = driver(served.url, client, tables=["orders"], run_tasks=lossy)
    work.round(flush=True)
    assert isinstance(work.failures["tables/orders"], Corrupt)
    assert not (cold / "tables" / "orders" / "_delta_log").exists()
    assert all(tiered == 0 or tiered < end for tiered, end in marks(client, "table", "orders").values())


def test_bad_input_is_reported_in_one_line(spark: SparkSession, served: Served) -> None:
    with pytest.raises(Invalid, match="nothing to tier"):
        tier(spark, url=served.url)
    with pytest.raises(NotFound, match="nowhere"):
        tier(spark, url=served.url, tables=["nowhere"], once=True)
    with pytest.raises(Unavailable, match="is the server running"):
        tier(spark, url="http://127.0.0.1:1", tables=["orders"], once=True)
    with pytest.raises(Invalid, match="batch_records"):
        tier(spark, url=served.url, all=True, batch_records=0)


def test_a_round_asks_about_all_logs_at_once_and_commits_together(
    served: Served, client: Client, cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many logs there are, a round sends the same few questions; and no commit waits for another one."""
    names = [f"many{number}" for number in range(6)]
    for name in names:
        make_table(client, name)
        put_rows(client, name, 3)
    asked: list[str] = []
    together = threading.Barrier(len(names))

    class Counting(Client):
        def _send(self, method: str, target: str, **options: Any) -> Any:
            asked.append(f"{method} {target.partition('?')[0]}")
            return super()._send(method, target, **options)

    committing = module.commit

    def commit(*given: Any, **named: Any) -> Any:
        together.wait(PATIENCE_S)  # breaks unless all of them are committed at the same time
        return committing(*given, **named)

    monkeypatch.setattr(module, "commit", commit)
    with Counting(served.url) as counting:
        at_work = driver(served.url, counting, tables=["many*"])
        places = at_work.look()
        asked.clear()
        at_work.round(flush=True, places=places)
        assert not at_work.failures
        at_work.look()
    questions = [each for each in asked if each.endswith(("/v1/logs", "/v1/logs/advance"))]
    assert sorted(questions) == ["POST /v1/logs", "POST /v1/logs/advance"]
    for name in names:
        assert cold_entries(cold, f"tables/{name}") == hot(client, "table", name)
