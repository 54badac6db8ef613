"""Histories for the tests of jobs: things to write, hot logs as they are, and what cold storage has of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from tailrace.client import Client
from tailrace.spark.jobs import tasks
from tailrace.spark.jobs.tasks import Task, TaskEndpoints, TaskResult
from tailrace.spark.jobs.tier import TierDriver
from tests.support.patience import PATIENCE_S

Entry = tuple[int, int, int, int, bytes]  # log, position, next, at_ms, body


def make_table(client: Client, name: str) -> None:
    client.call(
        "CreateTable",
        {
            "TableName": name,
            "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
            "BillingMode": "PAY_PER_REQUEST",
            "StreamSpecification": {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
        },
    )


def put_rows(client: Client, table: str, count: int, first: int = 0) -> None:
    """Write so many rows, several to a transaction."""
    for at in range(first, first + count, 25):
        puts = [
            {"PutRequest": {"Item": {"id": {"S": f"k{number % 97}"}, "n": {"N": str(number)}, "b": {"B": "AAEC"}}}}
            for number in range(at, min(at + 25, first + count))
        ]
        client.call("BatchWriteItem", {"RequestItems": {table: puts}})


def put_together(client: Client, table: str, first: int = 0) -> None:
    """Write three rows in one transaction, which is one entry with three records."""
    items = [{"id": {"S": f"t{first + number}"}, "n": {"N": str(number)}} for number in range(3)]
    client.call(
        "TransactWriteItems", {"TransactItems": [{"Put": {"TableName": table, "Item": item}} for item in items]}
    )


def hot(client: Client, kind: str, name: str) -> list[Entry]:
    """All entries of the hot log, as the server has them."""
    facts = client.logs(**{kind: name})
    found: list[Entry] = []
    for part in facts["partitions"]:
        named: dict[str, Any] = {kind: name}
        if kind == "topic":
            named["partition"] = part["partition"]
        with client.arrow(**named, offset=part["hot"], until=part["next"], form="entries") as batches:
            for batch in batches:
                columns = [batch.column(each).to_pylist() for each in ("log", "position", "next", "at_ms", "body")]
                found += list(zip(*columns, strict=True))
    return sorted(found)


def delta(cold: Path, place: str) -> DeltaTable:
    """The place with plain deltalake, none of our code."""
    return DeltaTable(str(cold / place))


def cold_entries(cold: Path, place: str) -> list[Entry]:
    """What plain deltalake reads of a place, as entries."""
    table = delta(cold, place).to_pyarrow_table()
    return _entries(table)


def duck_entries(cold: Path, place: str) -> list[Entry]:
    """What DuckDB reads of the files that the Delta log lists."""
    files = delta(cold, place).file_uris()
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    answer = connection.execute(
        'SELECT log, position, "next", epoch_ms(timestamp), body FROM read_parquet($1) WHERE body IS NOT NULL', [files]
    )
    return sorted((row[0], row[1], row[2], row[3], bytes(row[4])) for row in answer.fetchall())


def _entries(table: pa.Table) -> list[Entry]:
    at_ms = [value // 1000 for value in table["timestamp"].cast(pa.int64()).to_pylist()]
    columns = [table[name].to_pylist() for name in ("log", "position", "next")]
    rows = zip(*columns, at_ms, table["body"].to_pylist(), strict=True)
    return sorted(row for row in rows if row[4] is not None)


def here(todo: list[Task], endpoints: TaskEndpoints, write: bool) -> list[TaskResult]:
    """Run tasks without Spark: for races of drivers, whose executors do not matter."""
    return [tasks.run_task(number, task, endpoints, write) for number, task in enumerate(todo)]


def driver(url: str, client: Client, **options: Any) -> TierDriver:
    """A driver of tiering without Spark."""
    patterns = {kind: tuple(options.pop(f"{kind}s", ())) for kind in ("table", "topic", "stream")}
    run_tasks = options.pop("run_tasks", here)
    return TierDriver(client, run_tasks, patterns, endpoints=TaskEndpoints(url, None, ""), **options)


def until(holds: Any, within_s: float = PATIENCE_S, every_s: float = 0.05) -> None:
    """Wait until something is so."""
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(every_s)
