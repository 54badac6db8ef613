"""The audit: who changed what when, over hot and cold history."""

from __future__ import annotations

import csv
import itertools
import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tailrace.client import Client
from tailrace.cold.store import Store
from tailrace.errors import Invalid
from tailrace.spark.jobs import audit as audit_job
from tailrace.spark.jobs.audit import audit, changed, key_text
from tailrace.spark.jobs.tier import tier
from tests.support.patience import PATIENCE_S
from tests.support.server import ServerProcess

Spark = Any
TABLE = "audited"
TOKEN = "the-token-of-this-server"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with authentication."""
    data = tmp_path_factory.mktemp("audit") / "data"
    command = [sys.executable, "-m", "tailrace.cli", "serve", "--port", "0", "--data", str(data)]
    with ServerProcess(command, env={"TAILRACE_TOKEN": TOKEN}) as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.url, token=TOKEN) as found:
        yield found


@pytest.fixture(scope="module")
def recorded(spark: Spark, server: ServerProcess) -> dict[str, Any]:
    """A history whose first half is in cold storage only."""
    with Client(server.url, token=TOKEN) as client:
        client.sql(
            f"CREATE TABLE {TABLE} (who TEXT, n BIGINT, a JSON, b JSON, PRIMARY KEY (who, n)) WITH (stream = true)"
        )
        users = {}
        for user in ("ann", "bob"):
            client.sql(f"CREATE USER {user} WITH PASSWORD 'secret-of-{user}' ROLE dba")
            users[user] = Client(server.url, user=user, password=f"secret-of-{user}")

        def put(user: str, n: int, **attributes: Any) -> None:
            item = {"who": {"S": user}, "n": {"N": str(n)}, **attributes}
            users[user].call("PutItem", {"TableName": TABLE, "Item": item})

        put("ann", 1, a={"N": "12345678901234567890123456789012345678"})
        put("bob", 1, a={"S": "x"})
        put("ann", 1, a={"N": "2"}, b={"SS": ["p", "q"]})
        cut = client.logs(table=TABLE)["partitions"][0]["next"]
        tier(spark, url=server.url, token=TOKEN, tables=[TABLE], once=True)
        client.alter_retention(TABLE, {"max_count": 1})
        until_s = time.monotonic() + PATIENCE_S
        while client.logs(table=TABLE)["partitions"][0]["hot"] < cut - 1 and time.monotonic() < until_s:
            time.sleep(0.1)
        client.alter_retention(TABLE, {"max_count": None})
        middle = datetime.now(UTC)
        while datetime.now(UTC) < middle + timedelta(milliseconds=1):  # times of records are whole milliseconds
            time.sleep(0.001)
        put("ann", 2, a={"BOOL": True})
        users["bob"].call("DeleteItem", {"TableName": TABLE, "Key": {"who": {"S": "ann"}, "n": {"N": "1"}}})
        for each in users.values():
            each.close()
        part = client.logs(table=TABLE)["partitions"][0]
        assert part["earliest"] < part["hot"], "the first half is only in cold storage"
    return {"middle": middle}


def rows(frame: Any) -> list[Any]:
    return sorted(frame.collect(), key=lambda row: (row.sequence, row.index))


def test_who_changed_what(spark: Spark, server: ServerProcess, recorded: dict[str, Any]) -> None:
    found = rows(audit(spark, table=TABLE, url=server.url, token=TOKEN))
    assert [(row.event, row.principal, json.loads(row["keys"]), row.table) for row in found] == [
        ("INSERT", "ann", {"who": "ann", "n": 1}, TABLE),
        ("INSERT", "bob", {"who": "bob", "n": 1}, TABLE),
        ("MODIFY", "ann", {"who": "ann", "n": 1}, TABLE),
        ("INSERT", "ann", {"who": "ann", "n": 2}, TABLE),
        ("REMOVE", "bob", {"who": "ann", "n": 1}, TABLE),
    ]
    digits = "12345678901234567890123456789012345678"
    assert [tuple(each) for each in found[0].changed] == [("a", None, digits)]
    assert [tuple(each) for each in found[2].changed] == [("a", digits, "2"), ("b", None, '["p","q"]')]
    assert [tuple(each) for each in found[4].changed] == [("a", "2", None), ("b", '["p","q"]', None)]


def test_filters(spark: Spark, server: ServerProcess, recorded: dict[str, Any]) -> None:
    def count(**filters: Any) -> int:
        return int(audit(spark, table=TABLE, url=server.url, token=TOKEN, **filters).count())  # type: ignore[union-attr]

    assert count(principal="ann") == 3
    assert count(events="remove") == 1 and count(events=["INSERT", "REMOVE"]) == 4
    assert count(key={"who": "ann", "n": 1}) == 3 and count(key='["ann", 2]') == 1
    assert count(key="ann") == 4 and count(key="an") == 0
    assert count(since=recorded["middle"]) == 2 and count(until=recorded["middle"].isoformat()) == 3
    assert count(since=recorded["middle"], principal="ann", events="INSERT") == 1
    for wrong, match in (
        ({"events": "TRUNCATE"}, "is not an event"),
        ({"key": {"x": 1}}, "is not a key of the table"),
        ({"since": "yesterday"}, "is not a time"),
        ({"output": "x.xlsx"}, "not a format"),
    ):
        with pytest.raises(Invalid, match=match):
            audit(spark, table=TABLE, url=server.url, token=TOKEN, **wrong)
    with pytest.raises(Invalid, match="a table or a topic"):
        audit(spark, url=server.url, token=TOKEN)


def test_the_history_of_a_key_skips_what_cannot_have_it(
    spark: Spark, server: ServerProcess, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row groups whose Bloom filter does not have the key are not read: they may even be damaged."""
    client.sql("CREATE TABLE scattered (id TEXT PRIMARY KEY, n BIGINT) WITH (stream = true)")

    numbers = itertools.count()  # to put the same item again is no change

    def put(*ids: str) -> None:
        for each in ids:
            item = {"id": {"S": each}, "n": {"N": str(next(numbers))}}
            client.call("PutItem", {"TableName": "scattered", "Item": item})
        tier(spark, url=server.url, token=TOKEN, tables=["scattered"], once=True)

    put("a", "m", "a", "z")
    put("a", "y", "z")  # by its least and greatest key it could have m
    put("m", "b")
    cut = client.logs(table="scattered")["partitions"][0]["next"]
    client.alter_retention("scattered", {"max_count": 1})
    until_s = time.monotonic() + 60
    while client.logs(table="scattered")["partitions"][0]["hot"] < cut - 1 and time.monotonic() < until_s:
        time.sleep(0.1)
    put("m")
    place = client.cold()["url"].removeprefix("file://") + "/tables/scattered"
    without = [
        path
        for path in DeltaTable(place).file_uris()
        if "m" not in {json.loads(each)["id"] for each in pq.read_table(path)["keys"].to_pylist()}
    ]
    assert len(without) == 1
    (path,) = (Path(each.removeprefix("file://")) for each in without)
    group = pq.ParquetFile(path).metadata.row_group(0)
    whole = path.read_bytes()
    damaged = bytearray(whole)
    for number in range(group.num_columns):
        column = group.column(number)
        first = column.data_page_offset
        damaged[first : first + 12] = bytes(12)
    path.write_bytes(bytes(damaged))
    try:
        found = audit(spark, table="scattered", url=server.url, token=TOKEN, key="m")
        assert [row.event for row in found.collect()] == ["INSERT", "MODIFY", "MODIFY"]  # type: ignore[union-attr]
        with pytest.raises(Exception, match=r"(?i)parquet|damaged|read"):
            audit(spark, table="scattered", url=server.url, token=TOKEN, key="y").collect()  # type: ignore[union-attr]
        # In a bucket Spark's own reader cannot be used, and tasks do the same with Arrow.
        monkeypatch.setattr(Store, "local", property(lambda self: None))
        again = audit(spark, table="scattered", url=server.url, token=TOKEN, key="m")
        assert again.collect() == found.collect()  # type: ignore[union-attr]
        with pytest.raises(Exception, match=r"damaged"):
            audit(spark, table="scattered", url=server.url, token=TOKEN, key="y").collect()  # type: ignore[union-attr]
    finally:
        path.write_bytes(whole)
    done = audit(spark, table="scattered", url=server.url, token=TOKEN, key="a", output=str(tmp_path / "a.json"))
    assert done.rows == 3  # type: ignore[union-attr]


def test_files(
    spark: Spark, server: ServerProcess, recorded: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_job, "FILE_ROWS", 2)
    batches, partitions = audit_job._batches, list[int]()

    def counted(frame: Any) -> Any:
        partitions.append(frame.rdd.getNumPartitions())
        return batches(frame)

    monkeypatch.setattr(audit_job, "_batches", counted)
    for name in ("a.csv", "a.json", "a.parquet"):
        done = audit(spark, table=TABLE, url=server.url, token=TOKEN, output=str(tmp_path / name))
        assert done.rows == 5 and sorted(each.name for each in tmp_path.iterdir())[-1] == name  # type: ignore[union-attr]
        (tmp_path / name).rename(tmp_path / f"0-{name}")
    assert partitions == [3, 3, 3], "5 rows, of which the driver fetches two at a time"
    with (tmp_path / "0-a.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    objects = [
        json.loads(line, parse_int=Decimal) for line in (tmp_path / "0-a.json").read_text().splitlines()
    ]  # fmt: skip
    parquet = pq.read_table(tmp_path / "0-a.parquet").to_pylist()
    assert [row["event"] for row in table] == [row["event"] for row in objects] == [row["event"] for row in parquet]
    assert [int(row["sequence"]) for row in table] == sorted(row["sequence"] for row in parquet), "in order"
    assert json.loads(table[2]["changed"], parse_int=Decimal) == objects[2]["changed"]
    assert objects[2]["changed"][0] == {
        "name": "a", "before": Decimal("12345678901234567890123456789012345678"), "after": 2,
    }  # fmt: skip
    times = [datetime.fromisoformat(row["time"]) for row in table]
    assert times == [datetime.fromisoformat(row["time"]) for row in objects] == [row["time"] for row in parquet]
    assert times[2] <= recorded["middle"] <= times[3]


def test_a_file_is_fetched_in_bounded_partitions(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver holds a partition as a whole, so none has more rows than a row group; they keep their order."""
    monkeypatch.setattr(audit_job, "FILE_ROWS", 10)
    large = spark.range(0, 47, 1, numPartitions=3).where("id < 12 OR id >= 16")  # 12, 15 and 16 rows
    with audit_job.bounded(large) as cut:
        found = cut.rdd.glom().collect()
    assert [[row.id for row in part] for part in found] == [
        [*range(10)], [10, 11, *range(16, 24)], [*range(24, 34)], [*range(34, 44)], [44, 45, 46],
    ]  # fmt: skip
    small = spark.range(0, 20, 1, numPartitions=2)
    with audit_job.bounded(small) as same:
        assert [len(part) for part in same.rdd.glom().collect()] == [10, 10]
    with audit_job.bounded(small.where("id < 0")) as nothing:
        assert nothing.collect() == []


def test_a_topic(spark: Spark, server: ServerProcess, client: Client) -> None:
    client.sql("CREATE TOPIC audited_topic")
    client.publish("audited_topic", [b"one", b"two"])
    found = audit(spark, topic="audited_topic", url=server.url, token=TOKEN).collect()  # type: ignore[union-attr]
    assert [(row.offset, row.bytes) for row in found] == [(0, 3), (1, 3)]


def test_what_differs() -> None:
    assert changed("MODIFY", '{"id":1}', None, '{"id":1,"a":2}') is None, "the stream does not tell what it was"
    assert changed("MODIFY", '{"id":1}', '{"id":1,"a":2,"c":0}', '{"id":1,"a":2,"b":null}') == [
        {"name": "c", "before": "0", "after": None},
        {"name": "b", "before": None, "after": "null"},
    ]
    assert changed("INSERT", '{"id":1}', None, '{"id":1}') == []


def test_keys_as_changes_have_them() -> None:
    keys = (("id", "S"), ("n", "N"))
    assert key_text({"n": 1, "id": "a"}, keys) == ('{"id":"a","n":1}', True)
    assert key_text("a", keys) == ('{"id":"a",', False)
    assert key_text(["a", "1.50"], keys) == ('{"id":"a","n":1.5}', True)
    assert key_text("{not json", keys[:1]) == ('{"id":"{not json"}', True)
