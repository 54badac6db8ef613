"""Compact: fewer files, the same rows, whoever else is at work; retention; damage is named."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from tailrace.client import Client
from tailrace.cold.store import Store
from tailrace.errors import Corrupt, Invalid, NotFound
from tailrace.spark.jobs import compact as module
from tailrace.spark.jobs.compact import compact
from tests.spark.histories import cold_entries, delta, driver, duck_entries, hot, make_table, put_rows
from tests.support.patience import PATIENCE_S
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


def filled(served: Served, client: Client, batches: int, first: int = 0) -> None:
    """So many commits, each a small file for the table and one for the streams."""
    work = driver(served.url, client, tables=["orders"], streams=["s/*"])
    for number in range(first, first + batches):
        put_rows(client, "orders", 10, first=number * 10)
        client.append("s/1", b"one %d" % number)
        client.append("s/2", b"two %d" % number)
        work.round(flush=True)
        assert not work.failures


@pytest.fixture
def small_files(served: Served, client: Client) -> None:
    make_table(client, "orders")
    client.create("s/1")
    client.create("s/2")
    filled(served, client, 8)


@pytest.mark.usefixtures("small_files")
def test_small_files_become_one_with_the_same_rows(
    spark: SparkSession, served: Served, client: Client, cold: Path
) -> None:
    before = cold_entries(cold, "tables/orders"), cold_entries(cold, "streams")
    assert len(delta(cold, "tables/orders").file_uris()) == 8
    reports = []
    done = compact(spark, url=served.url, on_progress=reports.append)
    assert (done.merged, done.written) == (16, 2)
    assert done.rows == 80 + 16
    assert done.removed == done.forgotten == 0
    assert len(delta(cold, "tables/orders").file_uris()) == 1
    assert (cold_entries(cold, "tables/orders"), cold_entries(cold, "streams")) == before
    assert duck_entries(cold, "tables/orders") == before[0] == hot(client, "table", "orders")
    order = delta(cold, "streams").to_pyarrow_table().select(["log", "position"]).to_pylist()
    assert order == sorted(order, key=lambda row: (row["log"], row["position"]))
    assert reports[-1].state == "done"
    # Again: nothing is small any more.
    assert compact(spark, url=served.url).merged == 0
    # Tiering goes on where it was, and what nothing lists goes.
    filled(served, client, 1, first=8)
    assert cold_entries(cold, "tables/orders") == hot(client, "table", "orders")
    parquet = list((cold / "tables" / "orders").glob("*.parquet"))
    assert len(parquet) == 10
    done = compact(spark, url=served.url, places=["tables/orders"], vacuum="0s", alone=True)
    assert done.merged == 2
    assert done.removed >= 10
    assert len(list((cold / "tables" / "orders").glob("*.parquet"))) == 1
    assert cold_entries(cold, "tables/orders") == hot(client, "table", "orders")


@pytest.mark.usefixtures("small_files")
def test_compactions_and_tiering_at_once_lose_and_double_nothing(
    spark: SparkSession, served: Served, client: Client, cold: Path
) -> None:
    errors: list[BaseException] = []
    stop = threading.Event()

    def tiering() -> None:
        try:
            with Client(served.url) as own:
                number = 8
                while not stop.is_set():
                    filled(served, own, 1, first=number)
                    number += 1
        except BaseException as error:
            errors.append(error)

    def compacting() -> None:
        try:
            for _ in range(3):
                compact(spark, url=served.url)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=each) for each in (compacting, compacting)]
    feeding = threading.Thread(target=tiering)
    for each in (feeding, *threads):
        each.start()
    for each in threads:
        each.join(PATIENCE_S)
    stop.set()
    feeding.join(PATIENCE_S)
    assert errors == []
    assert cold_entries(cold, "tables/orders") == hot(client, "table", "orders")
    assert cold_entries(cold, "streams") == sorted(hot(client, "stream", "s/1") + hot(client, "stream", "s/2"))


@pytest.mark.usefixtures("small_files")
def test_history_past_its_retention_is_forgotten_on_the_server_and_then_in_the_files(
    spark: SparkSession, served: Served, client: Client, cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time.sleep(1.1)
    cut_s = time.time()
    time.sleep(0.1)
    filled(served, client, 2, first=8)
    everything = {place: cold_entries(cold, place) for place in ("tables/orders", "streams")}
    young = {place: [row for row in rows if row[3] >= cut_s * 1000] for place, rows in everything.items()}
    assert [len(rows) for rows in young.values()] == [20, 4]

    ours, servers = cut_s + 3600, None
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: ours, monotonic=time.monotonic))
    original_cold = Client.cold
    monkeypatch.setattr(
        Client, "cold", lambda self: original_cold(self) | ({} if servers is None else {"time_ms": servers})
    )
    # Only the driver's clock is ahead: nothing is forgotten.
    assert compact(spark, url=served.url, retention="1h").forgotten == 0
    servers = int(ours * 1000)
    done = compact(spark, url=served.url, retention="1h")
    assert done.forgotten == 80 + 16
    for place, rows in young.items():
        assert cold_entries(cold, place) == rows
    logs = {each["log"]: each for place in client.cold()["places"] for each in place["logs"]}
    for rows in young.values():
        for log in {row[0] for row in rows}:
            assert logs[log]["start"] == min(row[1] for row in rows if row[0] == log)
    # Again: there is nothing to forget.
    assert compact(spark, url=served.url, retention="1h").forgotten == 0
    ours = cut_s + 10 * 3600
    # Only the driver's clock: the server's says that an hour has passed.
    assert compact(spark, url=served.url, retention="1h").forgotten == 0
    servers = int(ours * 1000)
    done = compact(spark, url=served.url, retention="1h")
    assert done.forgotten == 20 + 4
    assert cold_entries(cold, "streams") == []
    filled(served, client, 1, first=10)
    assert len(cold_entries(cold, "tables/orders")) == 10


@pytest.mark.usefixtures("small_files")
def test_what_the_server_no_longer_has_goes_from_the_files(
    spark: SparkSession, served: Served, client: Client, cold: Path
) -> None:
    orders, streams = cold_entries(cold, "tables/orders"), cold_entries(cold, "streams")
    first, second = sorted({row[0] for row in streams})
    (log,) = {row[0] for row in orders}
    # As a driver leaves it that dies between the server and the files; pruning and clearing do the same.
    client.forget("tables/orders", {log: orders[45][1]})
    (cut,) = [row[1] for row in streams if row[0] == first][3:4]
    client.forget("streams", {first: cut})
    client.detach(stream="s/2")  # the server knows nothing of it any more: it stays
    assert compact(spark, url=served.url, places=["streams"]).forgotten == 3
    kept = [row for row in streams if row[0] == second or row[1] >= cut]
    assert cold_entries(cold, "streams") == kept == duck_entries(cold, "streams")
    # Files that are too large to be merged too.
    done = compact(spark, url=served.url, places=["tables/orders"], target_bytes=1)
    assert (done.merged, done.forgotten) == (0, 45)
    assert cold_entries(cold, "tables/orders") == orders[45:]
    # Again: there is nothing to drop, and nothing is written.
    version = delta(cold, "tables/orders").version()
    assert compact(spark, url=served.url, target_bytes=1).forgotten == 0
    assert delta(cold, "tables/orders").version() == version


@pytest.mark.usefixtures("small_files")
def test_snapshots_are_left_alone(spark: SparkSession, served: Served, client: Client, cold: Path) -> None:
    from tailrace.spark.jobs.snapshot import snapshot

    one = snapshot(spark, table="orders", url=served.url)
    filled(served, client, 1, first=8)
    two = snapshot(spark, table="orders", url=served.url)
    assert one.version < two.version
    done = compact(spark, url=served.url, vacuum="0s", alone=True)
    assert done.removed > 0
    for each in (one, two):
        rows = DeltaTable(str(cold / "snapshots" / "orders"), version=each.version).to_pyarrow_table()
        assert rows.num_rows == each.rows > 0
    with pytest.raises(NotFound, match="snapshots/orders"):
        compact(spark, url=served.url, places=["snapshots/orders"])


@pytest.mark.usefixtures("small_files")
def test_a_damaged_or_missing_file_is_named_and_nothing_is_done(
    spark: SparkSession, served: Served, cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = delta(cold, "tables/orders").version()
    path = Path(delta(cold, "tables/orders").file_uris()[3].removeprefix("file://"))
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + bytes(50) + whole[150:])
    with pytest.raises(Corrupt, match=path.name):
        compact(spark, url=served.url, places=["tables/orders"])
    path.unlink()
    with pytest.raises(Corrupt, match=path.name):
        compact(spark, url=served.url, places=["tables/orders"])
    # An hour later every file is past a retention of one second, however fast the steps above were.
    later = time.time() + 3600
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: later, monotonic=time.monotonic))
    original_cold = Client.cold
    monkeypatch.setattr(Client, "cold", lambda self: original_cold(self) | {"time_ms": int(later * 1000)})
    with pytest.raises(Corrupt, match=path.name):
        compact(spark, url=served.url, places=["tables/orders"], retention="1s")
    assert delta(cold, "tables/orders").version() == version
    path.write_bytes(whole)
    assert compact(spark, url=served.url, places=["tables/orders"]).merged == 8


@pytest.mark.usefixtures("small_files")
def test_ages_are_of_each_log(cold: Path) -> None:
    from tailrace.cold.reading import listing

    store = Store(str(cold))
    file = listing(store, "streams").files[0]
    rows = cold_entries(cold, "streams")
    far = rows[-1][3] + 10_000
    assert all(young is None for _, young, _ in module.ages(store, file, far))
    assert all(young is not None and young < end for _, young, end in module.ages(store, file, 0))
    assert len(module._old_files(store, "streams", far)) == 8
    assert module._old_files(store, "streams", rows[0][3] - 10_000) == []


@pytest.mark.usefixtures("small_files")
def test_the_history_of_another_database_is_not_touched(served: Served, client: Client, cold: Path) -> None:
    database = client.cold()["database"]
    assert database == client.logs(table="orders")["database"]
    module.check_owner(Store(str(cold)), ["tables/orders", "streams", "tables/nothing"], database)
    with pytest.raises(Invalid, match=f"of database {database}, and the server has database another"):
        module.check_owner(Store(str(cold)), ["tables/orders"], "another")


def test_bad_input_is_reported_in_one_line(spark: SparkSession, served: Served) -> None:
    with pytest.raises(NotFound, match="tables/nowhere"):
        compact(spark, url=served.url, places=["tables/nowhere"])
    with pytest.raises(Invalid, match="retention 'soon'"):
        compact(spark, url=served.url, retention="soon")
    with pytest.raises(Invalid, match="alone"):
        compact(spark, url=served.url, vacuum="30m")
    with pytest.raises(Invalid, match="target_bytes"):
        compact(spark, url=served.url, target_bytes=0)
