"""While writes are stopped every read is answered as before, also one that nobody has made before: no read writes.

The table of routes is that of the access matrix, which a test there compares with the routes of the server, and what it
lacks of reads.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import jwt
import pytest

import tailrace
from tailrace.config import Config
from tailrace.errors import Unavailable
from tailrace.http.dynamodb.operations import OPERATIONS
from tailrace.http.serve import start
from tailrace.storage.sqlite import SqliteEngine
from tailrace.streams.commands import Append
from tests.integration import test_access_matrix as matrix
from tests.integration.test_access_matrix import ADMIN, ARROW, CONSUME, ITEM, READ, Row, bearer, dynamodb, sql
from tests.support.patience import PATIENCE_S
from tests.support.vfs import FaultyDisk, failed_sync, no_space
from tests.unit.http.inprocess import Up, serve

TOKEN = bearer("s3cret-s3cret-s3cret")
numbers = itertools.count()
ORDERS = "arn:aws:dynamodb:ddblocal:000000000000:table/orders"


READS: tuple[Row, ...] = (
    *(
        row
        for row in matrix.TABLE
        if (row.needs == READ or row.method in ("GET", "HEAD")) and row.path not in ("/readyz", "/metrics")
    ),
    sql("SELECT * FROM system.users", ADMIN),
    *(sql(f"SHOW {what}", READ) for what in ("TABLES", "TOPICS")),
    sql("SELECT * FROM system.topics", READ),
    sql("SELECT * FROM news", CONSUME),
    Row("GET", "/v1/stream/idle?offset=-1", READ),
    Row("GET", "/v1/stream/idle?offset=-1", READ, headers=ARROW),
    Row("GET", "/v1/stream/a?offset=-1&live=sse", READ),
    Row("POST", "/v1/api/topics/consume", CONSUME, {"topic": "news", "partition_id": 0, "timeout_seconds": 0}),
    dynamodb("BatchGetItem", READ, RequestItems={"orders": {"Keys": [ITEM]}}),
    dynamodb("TransactGetItems", READ, TransactItems=[{"Get": {"TableName": "orders", "Key": ITEM}}]),
    dynamodb(
        "Query",
        READ,
        TableName="orders",
        KeyConditionExpression="id = :i",
        ExpressionAttributeValues={":i": {"S": "x"}},
    ),
    dynamodb("DescribeTimeToLive", READ, TableName="orders"),
    dynamodb("DescribeEndpoints", READ),
    dynamodb("DescribeLimits", READ),
    dynamodb("GetResourcePolicy", READ, ResourceArn=ORDERS),
    dynamodb("ListExports", READ),
    dynamodb("ListImports", READ),
    dynamodb("DescribeExport", READ, ExportArn=f"{ORDERS}/export/01234567890123-a1b2c3d4"),
    dynamodb("DescribeImport", READ, ImportArn=f"{ORDERS}/import/01234567890123-a1b2c3d4"),
)


async def prepare(up: Up) -> None:
    await matrix.prepare(up)
    created = await up.http.put("/v1/stream/idle", headers={**matrix.TEXT, **TOKEN, "Stream-TTL": "1000"})
    assert created.status_code == 201


async def answers(up: Up) -> dict[str, int]:
    found = {}
    for number, row in enumerate(READS):
        if "live=sse" in row.path:
            async with up.http.stream(row.method, row.path, headers=TOKEN) as answer:
                found[f"{number} {row.path}"] = answer.status_code
            continue
        answer = await matrix.ask(up, row, TOKEN)
        found[f"{number} {row.method} {row.path} {row.body!r}"] = answer.status_code
    found.update(await shard_reads(up))
    return found


async def shard_reads(up: Up) -> dict[str, int]:
    """The reads of DynamoDB Streams, each of which needs what the one before it answered."""

    async def ask(operation: str, **parameters: object) -> httpx.Response:
        return await matrix.ask(up, dynamodb(operation, READ, **parameters), TOKEN)

    streams = await ask("ListStreams")
    arn = streams.json()["Streams"][0]["StreamArn"]
    described = await ask("DescribeStream", StreamArn=arn)
    shard = described.json()["StreamDescription"]["Shards"][0]["ShardId"]
    iterator = await ask("GetShardIterator", StreamArn=arn, ShardId=shard, ShardIteratorType="TRIM_HORIZON")
    records = await ask("GetRecords", ShardIterator=iterator.json().get("ShardIterator", "none"))
    return {
        "ListStreams": streams.status_code,
        "DescribeStream": described.status_code,
        "GetShardIterator": iterator.status_code,
        "GetRecords": records.status_code,
    }


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyDisk]:
    made = FaultyDisk(f"stopped{next(numbers)}")
    monkeypatch.setattr("tailrace.database.SqliteEngine", partial(SqliteEngine, vfs=made.name))
    logging.getLogger("tailrace").setLevel(logging.CRITICAL + 1)
    yield made
    logging.getLogger("tailrace").setLevel(logging.NOTSET)
    made.unregister()


def sync_fails(operation: str, path: str, offset: int, size: int) -> None:
    if operation == "sync" and path.endswith("-wal"):
        raise failed_sync()


def disk_is_full(operation: str, path: str, offset: int, size: int) -> None:
    if operation == "write":
        raise no_space()


@pytest.mark.parametrize("fault", [sync_fails, disk_is_full])
def test_every_read_is_answered_as_before_while_writes_are_stopped(fault, disk: FaultyDisk, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    expected: dict[str, int] = {}

    async def healthy(up: Up) -> None:
        await prepare(up)
        expected.update(await answers(up))

    async def stopped(up: Up) -> None:
        await prepare(up)
        disk.fault = fault
        with pytest.raises(Unavailable):
            await up.db.aexecute(Append("a", b"refused", "text/plain"))
        try:
            found = await answers(up)
            write = await up.http.post("/v1/stream/a", content=b"x", headers={**matrix.TEXT, **TOKEN})
            assert write.status_code == 503
            forged = jwt.encode({"iss": "tailrace", "sub": "a-dba"}, b"k" * 32, algorithm="HS256")
            assert (await up.http.get("/v1/stream/a?offset=-1", headers=bearer(forged))).status_code == 401
        finally:
            disk.fault = None
        different = {read: (status, found[read]) for read, status in expected.items() if found[read] != status}
        assert not different, different

    serve(tmp_path / "healthy", healthy, token="s3cret-s3cret-s3cret")
    assert 503 not in expected.values()
    serve(tmp_path / "stopped", stopped, token="s3cret-s3cret-s3cret")


READING = ("Get", "Describe", "List", "Query", "Scan", "BatchGet", "TransactGet")
IN_TURN = {"DescribeStream", "GetShardIterator", "GetRecords"}  # see `shard_reads`
NAMELESS = {"ListTagsOfResource", "DescribeContinuousBackups"}  # they ask as DescribeTable does
BACKUPS = {"DescribeBackup", "ListBackups"}  # a scan of one table of rows
NONE = {
    "DescribeKinesisStreamingDestination",
    "DescribeContributorInsights",
    "ListContributorInsights",
}


def test_the_table_has_every_read_of_the_dynamodb_api() -> None:
    tested = {row.headers["x-amz-target"].rpartition(".")[2] for row in READS if "x-amz-target" in row.headers}
    names = {target.rpartition(".")[2] for target in OPERATIONS}
    missing = {name for name in names if name.startswith(READING)} - tested - IN_TURN - NAMELESS - BACKUPS - NONE
    assert not missing, f"add rows for {missing}"


def test_a_database_that_cannot_be_written_is_served_for_reading(disk: FaultyDisk, tmp_path: Path) -> None:
    """Also where nothing of what is made once was made before: an older version had not made it."""
    with tailrace.open(tmp_path, housekeeping_s=None) as db:
        db.create_table("orders", partition_key="id").put({"id": "x"})
        db._runner._engine.writer.execute("DELETE FROM meta WHERE name IN ('identity', 'iterator-secret')")  # type: ignore[attr-defined]
    disk.fault = disk_is_full
    try:
        with tailrace.open(tmp_path, housekeeping_s=None) as db:
            assert db.table("orders").get("x") == {"id": "x"}
            with pytest.raises(Unavailable, match="identity"):
                _ = db.identity
            disk.fault = None
            db._probe()
            assert len(db.identity) == 16
    finally:
        disk.fault = None


def test_a_server_starts_on_a_full_disk_and_answers_reads(disk: FaultyDisk, tmp_path: Path) -> None:
    with tailrace.open(tmp_path, housekeeping_s=None) as db:
        db.create_table("orders", partition_key="id").put({"id": "x"})

    async def main() -> None:
        disk.fault = disk_is_full
        running = await start(Config(port=0, data=str(tmp_path), dev=True))
        try:
            async with httpx.AsyncClient(base_url=running.url, timeout=PATIENCE_S) as http:
                row = dynamodb("GetItem", READ, TableName="orders", Key=ITEM)
                got = await http.post("/", content=row.body, headers=row.headers)
                assert json.loads(got.content)["Item"] == ITEM
                assert (await http.get("/v1/logs?topic=none")).status_code == 404
        finally:
            disk.fault = None
            await running.stop()

    asyncio.run(main())
