"""Tier, trim, read: history that is no longer in the database reads as it did before, through every API.

A table with both images, a topic that it is routed to, and a raw stream; copies of all of them are taken through the
doors while they are hot, by clients that nobody here wrote where there are some. Then the pipeline tiers them,
retention takes them out of the database, and they are read again. RECORDS sets how many; `make history` takes a
million.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import httpx
import pytest
from durable_streams import stream as open_stream

import tailrace
from tailrace.client import Client
from tailrace.command import Command
from tailrace.spark.jobs.tier import tier
from tailrace.storage.engine import Tx
from tailrace.streams.commands import Append, CreateStream
from tailrace.tables import value
from tailrace.tables.change_trimming import AlterRetention
from tailrace.tables.commands import PutItem
from tests.support.patience import PATIENCE_S
from tests.support.server import ServerProcess, check

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = int(os.environ.get("RECORDS", "4000"))
KEPT = 50  # records that stay hot
pytestmark = pytest.mark.timeout(300 + RECORDS // 200)
STEP = 2_000  # records to a commit


class Load(Command[None], frozen=True):
    """Many writes, each with a sequence and a change record of its own, in one commit."""

    first: int
    count: int

    def run(self, tx: Tx) -> None:
        for number in range(self.first, self.first + self.count):
            item, size = value.item_from_plain(
                {"id": f"k{number % 1000}", "n": number, "status": "paid" if number % 3 else "new"}
            )
            PutItem("orders", item, size).run(tx)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with RECORDS changes, as many messages, and a stream of as many appends, up to a bound."""
    path = tmp_path_factory.mktemp("history") / "data"
    with tailrace.open(path) as db:
        db.create_table("orders", partition_key="id", stream="NEW_AND_OLD_IMAGES")
        db.execute(AlterRetention("orders", max_age_s=None, max_count=None))
        db.sql("CREATE TOPIC app.orders")
        db.sql("ALTER TOPIC app.orders ADD SOURCE orders ON INSERT WITH (payload = 'full')")
        db.sql("ALTER TOPIC app.orders ADD SOURCE orders ON UPDATE WITH (payload = 'full')")
        for first in range(0, RECORDS, STEP):
            db.execute(Load(first, min(STEP, RECORDS - first)))
        db.execute(CreateStream("docs/notes", "application/json"))
        for number in range(min(RECORDS, 5_000)):
            db.execute(Append("docs/notes", b'{"n": %d, "text": "%s"}' % (number, b"x" * 40), "application/json"))
    return path


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[ServerProcess]:
    with ServerProcess.tailrace(data) as process:
        yield process
    checked = check(data)
    assert checked.returncode == 0, f"tailrace check:\n{checked.stdout}{checked.stderr}"


class Digest:
    """What was read, in order: how many, and a hash of all."""

    def __init__(self) -> None:
        self.count = 0
        self._hash = hashlib.sha256()

    def add(self, part: Any) -> None:
        self.count += 1
        self._hash.update(repr(part).encode())

    @property
    def value(self) -> tuple[int, str]:
        return self.count, self._hash.hexdigest()


def by_durable_streams(url: str) -> tuple[int, str]:
    """The official client of the Durable Streams protocol, from the beginning."""
    read = Digest()
    with open_stream(url, offset="-1", live=False) as response:
        for message in response.iter_json():
            read.add(message)
    return read.value


def by_boto3(url: str) -> tuple[int, str]:
    """GetRecords from TRIM_HORIZON, by the AWS SDK."""
    streams = boto3.client(
        "dynamodbstreams", endpoint_url=url, region_name="us-east-1", aws_access_key_id="any",
        aws_secret_access_key="any",
    )  # fmt: skip
    arn = streams.list_streams(TableName="orders")["Streams"][0]["StreamArn"]
    shard = streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"][0]["ShardId"]
    at = streams.get_shard_iterator(StreamArn=arn, ShardId=shard, ShardIteratorType="TRIM_HORIZON")["ShardIterator"]
    read = Digest()
    while read.count < RECORDS:
        page = streams.get_records(ShardIterator=at)
        for record in page["Records"]:
            image = record["dynamodb"]
            read.add(
                (record["eventName"], image["SequenceNumber"], image["Keys"], image.get("OldImage"), image["NewImage"])
            )
        at = page["NextShardIterator"]
    return read.value


def by_consuming(url: str, group: str) -> tuple[int, str]:
    """CONSUME FROM EARLIEST, in SQL."""
    read = Digest()
    with Client(url) as client:
        while read.count < RECORDS:
            consume = f"CONSUME FROM app.orders GROUP '{group}' FROM EARLIEST LIMIT 1000"
            (found,) = client.sql(consume)
            assert found.rows, f"only {read.count} of {RECORDS} messages"
            for row in found.rows:
                read.add((row["offset"], row["op"], row["ts"], row["payload"]))
            client.sql(f"ACK app.orders GROUP '{group}' UPTO OFFSET {found.rows[-1]['offset']}")
    return read.value


def by_spark(spark: SparkSession, url: str) -> tuple[int, str]:
    """The source, all of it: tasks are in the log's order, and so is what each of them reads."""
    options = {"url": url, "table": "orders", "minPartitions": 1 + RECORDS // 50_000}
    frame = spark.read.format("tailrace").options(**options).load()
    read = Digest()
    for row in frame.toLocalIterator():
        read.add(tuple(row))
    return read.value


def by_arrow(url: str) -> tuple[int, str]:
    """Arrow over HTTP, for whoever has pyarrow."""
    read = Digest()
    with Client(url, token=None) as client, client.arrow(table="orders") as batches:
        for batch in batches:
            for row in batch.to_pylist():
                read.add(row)
    return read.value


READERS: dict[str, Callable[[SparkSession, str, str], tuple[int, str]]] = {
    "durable streams, the table's feed": lambda spark, url, turn: by_durable_streams(f"{url}/v1/tables/orders/stream"),
    "durable streams, a topic's partition": lambda spark, url, turn: by_durable_streams(
        f"{url}/v1/topics/app.orders/0/stream"
    ),
    "durable streams, a stream": lambda spark, url, turn: by_durable_streams(f"{url}/v1/stream/docs/notes"),
    "boto3 GetRecords": lambda spark, url, turn: by_boto3(url),
    "CONSUME FROM EARLIEST": lambda spark, url, turn: by_consuming(url, turn),
    "Arrow": lambda spark, url, turn: by_arrow(url),
    "Spark": lambda spark, url, turn: by_spark(spark, url),
}


def trimmed(url: str) -> None:
    """Shorten retention, and wait until the hot logs begin where it says."""
    with Client(url) as client:
        client.alter_retention("orders", {"max_count": KEPT})
        client.sql("ALTER TOPIC app.orders SET (retention_max_bytes = 4096)")
        until_s = time.monotonic() + 600
        while time.monotonic() < until_s:
            table = client.logs(table="orders")["partitions"][0]
            topic = client.logs(topic="app.orders")["partitions"][0]
            if table["next"] - table["hot"] <= KEPT and topic["next"] - topic["hot"] < RECORDS // 2:
                return
            time.sleep(0.2)
    raise AssertionError(f"not trimmed: {table}, {topic}")


def read_all(spark: SparkSession, url: str, turn: str) -> dict[str, tuple[int, str]]:
    found = {}
    for name, read in READERS.items():
        began = time.monotonic()
        found[name] = read(spark, url, turn)
        print(f"{turn}, {name}: {found[name][0]:,} in {time.monotonic() - began:.0f} s", flush=True)
    return found


def test_all_history_reads_as_before_it_was_tiered_and_trimmed(spark: SparkSession, server: ServerProcess) -> None:
    before = read_all(spark, server.url, "before")
    assert before["Spark"][0] == before["boto3 GetRecords"][0] == before["CONSUME FROM EARLIEST"][0] == RECORDS
    tier(spark, url=server.url, tables=["orders"], topics=["app.orders"], streams=["docs/notes"], once=True)
    trimmed(server.url)
    after = read_all(spark, server.url, "after")
    assert after == before
    metrics = httpx.get(f"{server.url}/metrics", timeout=PATIENCE_S).text
    reads = [line for line in metrics.splitlines() if line.startswith("tailrace_cold_reads_total")]
    assert float(reads[0].split()[1]) > 0, "nothing came from cold storage: the test has tested nothing"
