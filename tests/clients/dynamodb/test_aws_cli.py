"""The AWS command line, unmodified, against the real server: what it prints, how it pages, what it ends with.

It runs isolated from the environment of the tests: an empty home, and all it needs in environment variables.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import PATIENCE_S
from tests.support.server import ServerProcess

pytestmark = pytest.mark.clients

REFUSED = 255  # what version 1 of the command line ends with when a service refuses

Run = Callable[..., subprocess.CompletedProcess[str]]
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def run(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs `aws` with arguments, whatever comes of it."""
    home = tmp_path_factory.mktemp("home")
    env = {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(home),
        "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "not-a-secret",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_ENDPOINT_URL": server.url,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "2",
        "PYTHONUTF8": "1",
    }

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "awscli", *arguments]
        return subprocess.run(
            command, cwd=home, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S
        )

    return run


@pytest.fixture(scope="module")
def aws(run: Run) -> Ask:
    """Runs `aws`, which must succeed; what it printed, read as JSON if it was anything."""

    def aws(*arguments: str) -> Any:
        done = run(*arguments)
        assert done.returncode == 0, f"aws {' '.join(arguments)}\n{done.stdout}{done.stderr}"
        return json.loads(done.stdout) if done.stdout.strip() else None

    return aws


@pytest.fixture(scope="module")
def table(aws: Ask) -> str:
    """A table with the keys `pk` (S) and `sk` (N) and a change stream."""
    name = f"cli-{uuid.uuid4()}"
    made = aws(
        *("dynamodb", "create-table", f"--table-name={name}"),
        *("--attribute-definitions", "AttributeName=pk,AttributeType=S", "AttributeName=sk,AttributeType=N"),
        *("--key-schema", "AttributeName=pk,KeyType=HASH", "AttributeName=sk,KeyType=RANGE"),
        "--billing-mode=PAY_PER_REQUEST",
        "--stream-specification=StreamEnabled=true,StreamViewType=NEW_AND_OLD_IMAGES",
    )
    assert made["TableDescription"]["TableName"] == name
    aws("dynamodb", "wait", "table-exists", f"--table-name={name}")
    return name


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def key(pk: str, sk: int) -> dict[str, Any]:
    return {"pk": {"S": pk}, "sk": {"N": str(sk)}}


def printed(item: dict[str, Any]) -> dict[str, Any]:
    """The item as it comes back: version 1 takes binary as it is, and prints it in base64."""
    return {**item, "blob": {"B": base64.b64encode(item["blob"]["B"].encode()).decode()}}


def test_tables(run: Run, aws: Ask, table: str) -> None:
    status = run("dynamodb", "describe-table", f"--table-name={table}", "--query=Table.TableStatus", "--output=text")
    assert (status.returncode, status.stdout) == (0, "ACTIVE\n")
    other = f"cli-{uuid.uuid4()}"
    aws(
        *("dynamodb", "create-table", f"--table-name={other}", "--billing-mode=PAY_PER_REQUEST"),
        *("--key-schema", "AttributeName=pk,KeyType=HASH"),
        *("--attribute-definitions", "AttributeName=pk,AttributeType=S"),
    )
    assert {table, other} <= set(aws("dynamodb", "list-tables", "--page-size=1")["TableNames"])
    assert aws("dynamodb", "delete-table", f"--table-name={other}")["TableDescription"]["TableName"] == other
    aws("dynamodb", "wait", "table-not-exists", f"--table-name={other}")
    gone = run("dynamodb", "describe-table", f"--table-name={other}")
    assert gone.returncode == REFUSED
    assert gone.stdout == ""
    assert (
        "An error occurred (ResourceNotFoundException) when calling the DescribeTable operation: "
        f"Requested resource not found: Table: {other} not found"
    ) in gone.stderr


def test_items(run: Run, aws: Ask, table: str) -> None:
    item = {**key("item", 1), "text": {"S": "Grüße ☃"}, "blob": {"B": "raw"}, "words": {"SS": ["a"]}}
    put = ("dynamodb", "put-item", f"--table-name={table}", f"--item={compact(item)}")
    assert aws(*put, "--return-consumed-capacity=TOTAL")["ConsumedCapacity"]["CapacityUnits"] == 1.0
    at = f"--key={compact(key('item', 1))}"
    assert aws("dynamodb", "get-item", f"--table-name={table}", at, "--consistent-read")["Item"] == printed(item)

    again = run(*put, "--condition-expression=attribute_not_exists(pk)")
    assert again.returncode == REFUSED
    assert (
        "An error occurred (ConditionalCheckFailedException) when calling the PutItem operation: "
        "The conditional request failed"
    ) in again.stderr

    updated = aws(
        *("dynamodb", "update-item", f"--table-name={table}", at, "--return-values=UPDATED_NEW"),
        "--update-expression=SET #count = if_not_exists(#count, :zero) + :one ADD words :more",
        '--expression-attribute-names={"#count":"count"}',
        '--expression-attribute-values={":zero":{"N":"0"},":one":{"N":"1.50"},":more":{"SS":["b"]}}',
    )["Attributes"]
    assert updated["count"] == {"N": "1.5"}
    assert sorted(updated["words"]["SS"]) == ["a", "b"]

    deleted = aws("dynamodb", "delete-item", f"--table-name={table}", at, "--return-values=ALL_OLD")
    assert deleted["Attributes"]["text"] == {"S": "Grüße ☃"}
    assert aws("dynamodb", "get-item", f"--table-name={table}", at) is None

    invalid = run("dynamodb", "get-item", f"--table-name={table}", '--key={"pk":{"S":"item"}}')
    assert invalid.returncode == REFUSED
    assert "(ValidationException)" in invalid.stderr
    assert "The provided key element does not match the schema" in invalid.stderr


def test_pages(aws: Ask, table: str, tmp_path: Path) -> None:
    puts = [{"PutRequest": {"Item": {**key("pages", sk), "even": {"BOOL": sk % 2 == 0}}}} for sk in range(20)]
    request = tmp_path / "batch.json"
    request.write_text(json.dumps({table: puts}))
    assert aws("dynamodb", "batch-write-item", f"--request-items=file://{request}") == {"UnprocessedItems": {}}

    query = (
        *("dynamodb", "query", f"--table-name={table}", "--key-condition-expression=pk = :pk"),
        '--expression-attribute-values={":pk":{"S":"pages"}}',
    )
    # The command line asks for page after page; --query sees all of them together.
    found = aws(*query, "--page-size=3", "--query=Items[].sk.N", "--no-scan-index-forward")
    assert found == [str(sk) for sk in reversed(range(20))]

    first = aws(*query, "--max-items=15", "--page-size=4")
    assert [item["sk"]["N"] for item in first["Items"]] == [str(sk) for sk in range(15)]
    rest = aws(*query, f"--starting-token={first['NextToken']}")
    assert [item["sk"]["N"] for item in rest["Items"]] == [str(sk) for sk in range(15, 20)]
    assert "NextToken" not in rest

    scanned = aws(
        *("dynamodb", "scan", f"--table-name={table}", "--page-size=7", "--query=length(Items)"),
        "--filter-expression=pk = :pk AND even = :yes",
        '--expression-attribute-values={":pk":{"S":"pages"},":yes":{"BOOL":true}}',
    )
    assert scanned == 10


def test_transactions(run: Run, aws: Ask, table: str) -> None:
    def write(*actions: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        return run("dynamodb", "transact-write-items", f"--transact-items={compact(actions)}")

    new = {"TableName": table, "ConditionExpression": "attribute_not_exists(pk)"}
    first, second, third = ({"Put": {**new, "Item": key("transaction", sk)}} for sk in (1, 2, 3))
    done = write(first, second)
    assert done.returncode == 0, done.stderr
    refused = write(third, first)
    assert refused.returncode == REFUSED
    assert (
        "An error occurred (TransactionCanceledException) when calling the TransactWriteItems operation: "
        "Transaction cancelled, please refer cancellation reasons for specific reasons [None, ConditionalCheckFailed]"
    ) in refused.stderr
    gets = [{"Get": {"TableName": table, "Key": key("transaction", sk)}} for sk in (1, 2, 3)]
    got = aws("dynamodb", "transact-get-items", f"--transact-items={compact(gets)}")
    assert got["Responses"] == [{"Item": key("transaction", 1)}, {"Item": key("transaction", 2)}, {}]


def test_change_streams(run: Run, aws: Ask, table: str) -> None:
    for size in (1, 2):
        item = {**key("streamed", 1), "size": {"N": str(size)}, "blob": {"B": "raw"}}
        aws("dynamodb", "put-item", f"--table-name={table}", f"--item={compact(item)}")
    (listed,) = aws("dynamodbstreams", "list-streams", f"--table-name={table}")["Streams"]
    arn = f"--stream-arn={listed['StreamArn']}"
    described = aws("dynamodbstreams", "describe-stream", arn)["StreamDescription"]
    assert (described["StreamStatus"], described["TableName"]) == ("ENABLED", table)
    (shard,) = described["Shards"]
    at = (arn, f"--shard-id={shard['ShardId']}", "--shard-iterator-type=TRIM_HORIZON")
    iterator = aws("dynamodbstreams", "get-shard-iterator", *at)["ShardIterator"]
    found = aws("dynamodbstreams", "get-records", f"--shard-iterator={iterator}")
    assert found["NextShardIterator"]
    insert, modify = (record for record in found["Records"] if record["dynamodb"]["Keys"] == key("streamed", 1))
    assert (insert["eventName"], modify["eventName"]) == ("INSERT", "MODIFY")
    assert modify["awsRegion"] == "eu-central-1"
    assert modify["dynamodb"]["OldImage"] == insert["dynamodb"]["NewImage"]
    assert modify["dynamodb"]["NewImage"] == printed(item)

    unknown = run("dynamodbstreams", "describe-stream", f"{arn[:-3]}999")
    assert unknown.returncode == REFUSED
    assert "(ResourceNotFoundException) when calling the DescribeStream operation" in unknown.stderr
