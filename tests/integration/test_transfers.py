"""Exports and imports by a real server through boto3: to a bucket with a real S3 API, and over kills of the server."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import pytest

from tests.integration.test_cold_s3 import BUCKET, KEYS, bucket, endpoint  # noqa: F401
from tests.support.patience import PATIENCE_S
from tests.support.server import ServerProcess, check

HASHED: dict[str, Any] = {
    "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
    "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
    "BillingMode": "PAY_PER_REQUEST",
}


def configured(tmp_path: Path, name: str, url: str, options: dict[str, str] | None = None) -> Path:
    file = tmp_path / "tailrace.toml"
    lines = ["[transfers.buckets]", f"{name} = {json.dumps(url)}", "[transfers.options]"]
    file.write_text("\n".join(lines + [f"{key} = {json.dumps(value)}" for key, value in (options or {}).items()]))
    return file


def connected(server: ServerProcess) -> Any:
    return boto3.client(
        "dynamodb", endpoint_url=server.url, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
    )


def filled(client: Any, count: int) -> list[dict[str, Any]]:
    client.create_table(TableName="orders", **HASHED)
    client.update_continuous_backups(
        TableName="orders", PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True}
    )
    items = [{"id": {"S": f"k{number:04d}"}, "note": {"S": "x" * 100}} for number in range(count)]
    for start in range(0, count, 25):
        batch = [{"PutRequest": {"Item": item}} for item in items[start : start + 25]]
        client.batch_write_item(RequestItems={"orders": batch})
    return items


def ended(describe: Callable[[], dict[str, Any]], status: str) -> dict[str, Any]:
    until = time.monotonic() + PATIENCE_S
    while (shown := describe())[status] == "IN_PROGRESS":
        assert time.monotonic() < until, shown
        time.sleep(0.05)
    return shown


def exported(client: Any, arn: str) -> dict[str, Any]:
    return ended(lambda: client.describe_export(ExportArn=arn)["ExportDescription"], "ExportStatus")


def imported(client: Any, arn: str) -> dict[str, Any]:
    return ended(lambda: client.describe_import(ImportArn=arn)["ImportTableDescription"], "ImportStatus")


def scanned(client: Any, table: str) -> list[dict[str, Any]]:
    pages = client.get_paginator("scan").paginate(TableName=table)
    return sorted((item for page in pages for item in page["Items"]), key=lambda item: str(item["id"]["S"]))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_round_trip_over_a_bucket(
    data_dir: Path,
    tmp_path: Path,
    endpoint: str,  # noqa: F811
    bucket: Any,  # noqa: F811
    workers: str,
) -> None:
    prefix = uuid4().hex
    file = configured(tmp_path, "exports", f"s3://{BUCKET}/{prefix}", KEYS | {"AWS_ENDPOINT_URL": endpoint})
    with ServerProcess.tailrace(data_dir, "--config", str(file), "--workers", workers) as server:
        client = connected(server)
        items = filled(client, 100)
        arn = client.describe_table(TableName="orders")["Table"]["TableArn"]
        made = client.export_table_to_point_in_time(TableArn=arn, S3Bucket="exports", S3Prefix="nightly")
        done = exported(client, made["ExportDescription"]["ExportArn"])
        assert (done["ExportStatus"], done["ItemCount"]) == ("COMPLETED", 100), done
        summary = json.loads(bucket.get_object(Bucket=BUCKET, Key=f"{prefix}/{done['ExportManifest']}")["Body"].read())
        files = bucket.get_object(Bucket=BUCKET, Key=f"{prefix}/{summary['manifestFilesS3Key']}")["Body"].read()
        (data,) = [json.loads(line)["dataFileS3Key"] for line in files.splitlines()]
        body = bucket.get_object(Bucket=BUCKET, Key=f"{prefix}/{data}")["Body"].read()
        assert len(gzip.decompress(body).splitlines()) == 100
        made = client.import_table(
            S3BucketSource={"S3Bucket": "exports", "S3KeyPrefix": data.rpartition("/")[0] + "/"},
            InputFormat="DYNAMODB_JSON",
            InputCompressionType="GZIP",
            TableCreationParameters={"TableName": "copy", **HASHED},
        )["ImportTableDescription"]
        done = imported(client, made["ImportArn"])
        assert (done["ImportStatus"], done["ImportedItemCount"], done["ErrorCount"]) == ("COMPLETED", 100, 0), done
        client.get_waiter("table_exists").wait(TableName="copy")
        assert scanned(client, "copy") == scanned(client, "orders") == items
        assert len(client.list_exports()["ExportSummaries"]) == len(client.list_imports()["ImportSummaryList"]) == 1
    assert check(data_dir).returncode == 0


def test_a_bucket_that_is_not_there(data_dir: Path, tmp_path: Path, endpoint: str, bucket: Any) -> None:  # noqa: F811
    url = f"s3://missing-{uuid4().hex}/x"
    file = configured(tmp_path, "exports", url, KEYS | {"AWS_ENDPOINT_URL": endpoint})
    with ServerProcess.tailrace(data_dir, "--config", str(file)) as server:
        client = connected(server)
        filled(client, 1)
        arn = client.describe_table(TableName="orders")["Table"]["TableArn"]
        made = client.export_table_to_point_in_time(TableArn=arn, S3Bucket="exports")["ExportDescription"]
        done = exported(client, made["ExportArn"])
        assert (done["ExportStatus"], done["FailureCode"]) == ("FAILED", "S3NoSuchBucket"), done
        assert "not-to-be-shown" not in done["FailureMessage"]


@pytest.mark.parametrize("point", ["transfer.step=kill@1", "transfer.step=kill@2", "transfer.end=kill@1"])
@pytest.mark.parametrize("kind", ["export", "import"])
def test_the_work_goes_on_after_a_kill(data_dir: Path, tmp_path: Path, kind: str, point: str) -> None:
    root = tmp_path / "bucket"
    (root / "in").mkdir(parents=True)
    file = configured(tmp_path, "exports", str(root))
    lines = [json.dumps({"Item": {"id": {"S": f"k{number:04d}"}}}) for number in range(900)]
    (root / "in" / "a.json").write_text("\n".join(lines[:600]))
    (root / "in" / "b.json").write_text("\n".join(lines[600:]))
    with ServerProcess.tailrace(data_dir, "--config", str(file)) as server:
        client = connected(server)
        items = filled(client, 25)
    arm = {"TAILRACE_FAILPOINTS": point}
    with ServerProcess.tailrace(data_dir, "--config", str(file), env=arm) as server:
        client = connected(server)
        if kind == "export":
            arn = client.describe_table(TableName="orders")["Table"]["TableArn"]
            made = client.export_table_to_point_in_time(TableArn=arn, S3Bucket="exports", ClientToken="t")
            name = made["ExportDescription"]["ExportArn"]
        else:
            made = client.import_table(
                S3BucketSource={"S3Bucket": "exports", "S3KeyPrefix": "in/"},
                InputFormat="DYNAMODB_JSON",
                TableCreationParameters={"TableName": "copy", **HASHED},
            )
            name = made["ImportTableDescription"]["ImportArn"]
        if point != "transfer.step=kill@2" or kind == "import":  # an export of one file passes the point once
            assert server.wait() < 0
    with ServerProcess.tailrace(data_dir, "--config", str(file)) as server:
        client = connected(server)
        if kind == "export":
            done = exported(client, name)
            assert (done["ExportStatus"], done["ItemCount"]) == ("COMPLETED", 25)
            summary = json.loads((root / done["ExportManifest"]).read_text())
            found = [
                json.loads(line)["Item"]
                for each in (root / summary["manifestFilesS3Key"]).read_text().splitlines()
                for line in gzip.decompress((root / json.loads(each)["dataFileS3Key"]).read_bytes()).splitlines()
            ]
            assert sorted(found, key=lambda item: str(item["id"]["S"])) == items
        else:
            done = imported(client, name)
            counts = (done["ImportStatus"], done["ImportedItemCount"], done["ProcessedItemCount"])
            assert counts == ("COMPLETED", 900, 900)
            assert len(scanned(client, "copy")) == 900
    assert check(data_dir).returncode == 0
