"""Exports to buckets and imports from them through the DynamoDB API: directories play the buckets."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tailrace import limits
from tailrace.transfers.buckets import BucketError, Buckets, DirectoryBucket
from tests.unit.http.test_dynamodb_tables import HASHED, REGION, Desk, Run, at_the_desk  # noqa: F401

ARN = f"arn:aws:dynamodb:{REGION}:123456789012:table/orders"


def _use(desk: Desk, root: Path) -> Path:
    root.mkdir(exist_ok=True)
    desk.db.transfers.buckets = Buckets({"bucket": str(root)})
    return root


async def _prepared(desk: Desk, root: Path) -> Path:
    _use(desk, root)
    await desk.ok("CreateTable", TableName="orders", **HASHED)
    await desk.ok(
        "UpdateContinuousBackups",
        TableName="orders",
        PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True},
    )
    return root


def _work(desk: Desk) -> None:
    desk.db.sweep()
    desk.db.transfers.advance()
    desk.db.sweep()


def _tick(desk: Desk) -> float:
    """A moment at which nothing has been written yet."""
    moment = desk.db.clock.now_ms()
    while desk.db.clock.now_ms() <= moment:
        pass
    return desk.db.clock.now_ms() / 1000


def _lines(root: Path, manifest_files: str) -> list[Any]:
    """The content of an export, whose checksums and counts are verified."""
    found: list[Any] = []
    for line in (root / manifest_files).read_text().splitlines():
        file = json.loads(line)
        data = (root / file["dataFileS3Key"]).read_bytes()
        assert file["md5Checksum"] == base64.b64encode(hashlib.md5(data).digest()).decode()
        items = [json.loads(each) for each in gzip.decompress(data).splitlines()]
        assert file["itemCount"] == len(items)
        found += items
    return found


async def _exported(desk: Desk, **more: Any) -> dict[str, Any]:
    made = (await desk.ok("ExportTableToPointInTime", TableArn=ARN, S3Bucket="bucket", **more))["ExportDescription"]
    assert made["ExportStatus"] == "IN_PROGRESS"
    _work(desk)
    described: dict[str, Any] = (await desk.ok("DescribeExport", ExportArn=made["ExportArn"]))["ExportDescription"]
    return described


def test_an_export_has_the_items_of_its_moment_and_can_be_imported(
    at_the_desk: Run,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "EXPORT_FILE_BYTES", 2_000)
    monkeypatch.setattr(limits, "SWEEP_ITEMS", 7)

    async def scenario(desk: Desk) -> None:
        root = await _prepared(desk, tmp_path / "bucket")
        items = [
            {"a": {"S": f"k{number}"}, "b": {"B": "AAE="}, "n": {"NS": ["1", "2"]}, "m": {"M": {"x": {"NULL": True}}}}
            for number in range(60)
        ]
        for item in items:
            await desk.ok("PutItem", TableName="orders", Item=item)
        made = await desk.ok("ExportTableToPointInTime", TableArn=ARN, S3Bucket="bucket", S3Prefix="x/y")
        await desk.ok("PutItem", TableName="orders", Item={"a": {"S": "later"}})
        await desk.ok("DeleteItem", TableName="orders", Key={"a": {"S": "k7"}})
        _work(desk)
        arn = made["ExportDescription"]["ExportArn"]
        described = (await desk.ok("DescribeExport", ExportArn=arn))["ExportDescription"]
        assert (described["ExportStatus"], described["ItemCount"]) == ("COMPLETED", 60)
        id_ = arn.rpartition("/")[2]
        assert described["ExportManifest"] == f"x/y/AWSDynamoDB/{id_}/manifest-summary.json"
        summary = json.loads((root / described["ExportManifest"]).read_text())
        assert (summary["itemCount"], summary["outputFormat"], summary["exportArn"]) == (60, "DYNAMODB_JSON", arn)
        lines = _lines(root, summary["manifestFilesS3Key"])
        key = lambda item: str(item["a"]["S"])  # noqa: E731
        assert sorted((line["Item"] for line in lines), key=key) == sorted(items, key=key)
        assert len((root / summary["manifestFilesS3Key"]).read_text().splitlines()) > 1
        listed = (await desk.ok("ListExports", TableArn=ARN))["ExportSummaries"]
        assert listed == [{"ExportArn": arn, "ExportStatus": "COMPLETED", "ExportType": "FULL_EXPORT"}]

        imported = await desk.ok(
            "ImportTable",
            InputFormat="DYNAMODB_JSON",
            InputCompressionType="GZIP",
            S3BucketSource={"S3Bucket": "bucket", "S3KeyPrefix": f"x/y/AWSDynamoDB/{id_}/data/"},
            TableCreationParameters={"TableName": "copy", **HASHED},
        )
        assert imported["ImportTableDescription"]["ImportStatus"] == "IN_PROGRESS"
        assert (await desk.describe("copy"))["TableStatus"] == "CREATING"
        assert (await desk.refused("CreateTable", TableName="copy", **HASHED))[0] == "ResourceInUseException"
        _work(desk)
        done = await desk.ok("DescribeImport", ImportArn=imported["ImportTableDescription"]["ImportArn"])
        shown = done["ImportTableDescription"]
        assert shown["ImportStatus"] == "COMPLETED"
        assert (shown["ImportedItemCount"], shown["ProcessedItemCount"], shown["ErrorCount"]) == (60, 60, 0)
        copied = (await desk.ok("Scan", TableName="copy"))["Items"]
        assert sorted(copied, key=key) == sorted(items, key=key)
        assert (await desk.describe("copy"))["ItemCount"] == 60
        summaries = (await desk.ok("ListImports"))["ImportSummaryList"]
        assert [each["ImportStatus"] for each in summaries] == ["COMPLETED"]

    at_the_desk(scenario)


def test_an_incremental_export_has_the_net_changes(at_the_desk: Run, tmp_path: Path) -> None:  # noqa: F811
    async def scenario(desk: Desk) -> None:
        root = await _prepared(desk, tmp_path / "bucket")

        async def put(key: str, number: int) -> None:
            await desk.ok("PutItem", TableName="orders", Item={"a": {"S": key}, "n": {"N": str(number)}})

        for key in ("changed", "deleted", "same"):
            await put(key, 1)
        before = _tick(desk)
        begin = _tick(desk)
        await put("changed", 2)
        await put("changed", 3)
        await put("new", 1)
        await put("brief", 1)
        for key in ("brief", "deleted"):
            await desk.ok("DeleteItem", TableName="orders", Key={"a": {"S": key}})
        end = _tick(desk)
        await put("changed", 4)
        await put("after", 1)
        spec: dict[str, Any] = {"ExportFromTime": begin, "ExportToTime": end}
        done = await _exported(desk, ExportType="INCREMENTAL_EXPORT", IncrementalExportSpecification=spec)
        assert (done["ExportStatus"], done["ItemCount"]) == ("COMPLETED", 3)
        summary = json.loads((root / done["ExportManifest"]).read_text())
        assert (summary["exportType"], summary["outputView"]) == ("INCREMENTAL_EXPORT", "NEW_AND_OLD_IMAGES")
        lines = {line["Keys"]["a"]["S"]: line for line in _lines(root, summary["manifestFilesS3Key"])}

        def image(key: str, number: int) -> dict[str, Any]:
            return {"a": {"S": key}, "n": {"N": str(number)}}

        assert lines.keys() == {"changed", "deleted", "new"}
        assert (lines["changed"]["OldImage"], lines["changed"]["NewImage"]) == (
            image("changed", 1),
            image("changed", 3),
        )
        assert lines["deleted"]["OldImage"] == image("deleted", 1) and "NewImage" not in lines["deleted"]
        assert lines["new"]["NewImage"] == image("new", 1) and "OldImage" not in lines["new"]
        written = int(lines["new"]["Metadata"]["WriteTimestampMicros"]["N"])
        assert begin <= written / 1_000_000 < end
        spec = {**spec, "ExportViewType": "NEW_IMAGE"}
        done = await _exported(desk, ExportType="INCREMENTAL_EXPORT", IncrementalExportSpecification=spec)
        summary = json.loads((root / done["ExportManifest"]).read_text())
        assert not any("OldImage" in line for line in _lines(root, summary["manifestFilesS3Key"]))
        past = await _exported(desk, ExportTime=before)
        summary = json.loads((root / past["ExportManifest"]).read_text())
        kept = {line["Item"]["a"]["S"]: line["Item"]["n"]["N"] for line in _lines(root, summary["manifestFilesS3Key"])}
        assert kept == {"changed": "1", "deleted": "1", "same": "1"}

    at_the_desk(scenario)


def test_exports_are_refused_with_a_reason(at_the_desk: Run, tmp_path: Path) -> None:  # noqa: F811
    async def scenario(desk: Desk) -> None:
        export = "ExportTableToPointInTime"
        code, message = await desk.refused(export, TableArn=ARN, S3Bucket="bucket")
        assert code == "ValidationException" and "[transfers.buckets]" in message
        _use(desk, tmp_path / "bucket")
        assert (await desk.refused(export, TableArn=ARN, S3Bucket="bucket"))[0] == "TableNotFoundException"
        await desk.ok("CreateTable", TableName="orders", **HASHED)
        refused = await desk.refused(export, TableArn=ARN, S3Bucket="bucket")
        assert refused[0] == "PointInTimeRecoveryUnavailableException"
        await _prepared_recovery(desk)
        assert "ION" in (await desk.refused(export, TableArn=ARN, S3Bucket="bucket", ExportFormat="ION"))[1]
        early = await desk.refused(export, TableArn=ARN, S3Bucket="bucket", ExportTime=1.0)
        assert early[0] == "InvalidExportTimeException"
        for prefix in ("../up", "/abs", "a/../../b", "a//b", "."):
            assert (await desk.refused(export, TableArn=ARN, S3Bucket="bucket", S3Prefix=prefix))[0] == (
                "ValidationException"
            ), prefix
        lost = await desk.refused("DescribeExport", ExportArn=f"{ARN}/export/00000000000001-00000000")
        assert lost[0] == "ExportNotFoundException"
        lost = await desk.refused("DescribeImport", ImportArn=f"{ARN}/import/00000000000001-00000000")
        assert lost[0] == "ImportNotFoundException"

        first = await desk.ok(export, TableArn=ARN, S3Bucket="bucket", ClientToken="t")
        again = await desk.ok(export, TableArn=ARN, S3Bucket="bucket", ClientToken="t")
        assert first["ExportDescription"]["ExportArn"] == again["ExportDescription"]["ExportArn"]
        other = await desk.refused(export, TableArn=ARN, S3Bucket="bucket", S3Prefix="p", ClientToken="t")
        assert other[0] == "ExportConflictException"
        assert (await desk.refused("DeleteTable", TableName="orders"))[0] == "ResourceInUseException"
        _work(desk)
        await desk.ok("DeleteTable", TableName="orders")
        described = await desk.ok("DescribeExport", ExportArn=first["ExportDescription"]["ExportArn"])
        assert described["ExportDescription"]["ExportStatus"] == "COMPLETED"

    at_the_desk(scenario)


async def _prepared_recovery(desk: Desk) -> None:
    spec = {"PointInTimeRecoveryEnabled": True}
    await desk.ok("UpdateContinuousBackups", TableName="orders", PointInTimeRecoverySpecification=spec)


def test_a_bucket_that_fails_is_reported(at_the_desk: Run, tmp_path: Path) -> None:  # noqa: F811
    async def scenario(desk: Desk) -> None:
        root = await _prepared(desk, tmp_path / "bucket")
        (root / "AWSDynamoDB").symlink_to(tmp_path)
        done = await _exported(desk)
        assert (done["ExportStatus"], done["FailureCode"]) == ("FAILED", "S3AccessDenied")
        assert sorted(path.name for path in tmp_path.iterdir() if path.name != "data") == ["bucket"]
        (root / "AWSDynamoDB").unlink()
        root.rmdir()
        done = await _exported(desk)
        assert (done["ExportStatus"], done["FailureCode"]) == ("FAILED", "S3NoSuchBucket")
        imported = await desk.ok(
            "ImportTable",
            InputFormat="DYNAMODB_JSON",
            S3BucketSource={"S3Bucket": "bucket", "S3KeyPrefix": "none"},
            TableCreationParameters={"TableName": "copy", **HASHED},
        )
        _work(desk)
        arn = imported["ImportTableDescription"]["ImportArn"]
        shown = (await desk.ok("DescribeImport", ImportArn=arn))["ImportTableDescription"]
        assert (shown["ImportStatus"], shown["FailureCode"]) == ("FAILED", "S3NoSuchBucket")
        await desk.ok("CreateTable", TableName="copy", **HASHED)

    at_the_desk(scenario)


CSV = """a,n,note
k1,5,"a ""quoted"" field, with a comma
and a line"
k2,not a number,x
,6,no key
k3,7
k4,8,x,too many
k5,9,
"""
INDEXED: dict[str, Any] = {
    "AttributeDefinitions": [
        {"AttributeName": "a", "AttributeType": "S"},
        {"AttributeName": "n", "AttributeType": "N"},
    ],
    "KeySchema": [{"AttributeName": "a", "KeyType": "HASH"}],
    "BillingMode": "PAY_PER_REQUEST",
    "GlobalSecondaryIndexes": [
        {
            "IndexName": "by-n",
            "KeySchema": [{"AttributeName": "n", "KeyType": "HASH"}],
            "Projection": {"ProjectionType": "ALL"},
        }
    ],
}


def test_a_transfer_that_fails_in_an_unforeseen_way_holds_up_no_other(at_the_desk: Run, tmp_path: Path) -> None:  # noqa: F811
    class Broken(Buckets):
        def find(self, name: str) -> Any:
            if name == "broken":
                raise RuntimeError("no such thing")
            return super().find(name)

    async def scenario(desk: Desk) -> None:
        root = await _prepared(desk, tmp_path / "bucket")
        desk.db.transfers.buckets = Broken({"broken": str(root), "bucket": str(root)})
        made = [
            (await desk.ok("ExportTableToPointInTime", TableArn=ARN, S3Bucket=name))["ExportDescription"]["ExportArn"]
            for name in ("broken", "bucket", "broken")
        ]
        _work(desk)
        found = [(await desk.ok("DescribeExport", ExportArn=arn))["ExportDescription"] for arn in made]
        assert [each["ExportStatus"] for each in found] == ["FAILED", "COMPLETED", "FAILED"]
        assert (found[0]["FailureCode"], found[0]["FailureMessage"]) == ("InternalError", "no such thing")

    at_the_desk(scenario)


def test_csv_is_imported_and_bad_records_are_counted(
    at_the_desk: Run,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SWEEP_ITEMS", 2)

    async def scenario(desk: Desk) -> None:
        root = _use(desk, tmp_path / "bucket")
        (root / "in").mkdir()
        (root / "in" / "one.csv").write_text(CSV)
        (root / "in" / "two.csv").write_text("a,n,note\r\nk6,1,z\r\n")
        (root / "in" / "link.csv").symlink_to("/etc/passwd")
        (root / "other.csv").write_text("a,n\nnot,1\n")
        made = await desk.ok(
            "ImportTable",
            InputFormat="CSV",
            S3BucketSource={"S3Bucket": "bucket", "S3KeyPrefix": "in/"},
            TableCreationParameters={"TableName": "orders", **INDEXED},
        )
        _work(desk)
        arn = made["ImportTableDescription"]["ImportArn"]
        shown = (await desk.ok("DescribeImport", ImportArn=arn))["ImportTableDescription"]
        assert (shown["ImportStatus"], shown["FailureCode"]) == ("COMPLETED", "ItemValidationError")
        assert (shown["ProcessedItemCount"], shown["ImportedItemCount"], shown["ErrorCount"]) == (7, 4, 3)
        found = {item["a"]["S"]: item for item in (await desk.ok("Scan", TableName="orders"))["Items"]}
        assert found.keys() == {"k1", "k3", "k5", "k6"}
        assert found["k1"]["note"]["S"] == 'a "quoted" field, with a comma\nand a line'
        assert "note" not in found["k3"] and found["k5"]["note"]["S"] == ""
        queried = await desk.ok(
            "Query",
            TableName="orders",
            IndexName="by-n",
            KeyConditionExpression="n = :n",
            ExpressionAttributeValues={":n": {"N": "7"}},
        )
        assert queried["Count"] == 1
        for options, problem in (
            ({"InputFormat": "ION"}, "ION"),
            ({"InputFormat": "CSV", "InputCompressionType": "ZSTD"}, "ZSTD"),
        ):
            refused = await desk.refused(
                "ImportTable",
                S3BucketSource={"S3Bucket": "bucket"},
                TableCreationParameters={"TableName": "more", **INDEXED},
                **options,
            )
            assert refused[0] == "ValidationException" and problem in refused[1]

    at_the_desk(scenario)


def test_bad_lines_and_files_of_json(at_the_desk: Run, tmp_path: Path) -> None:  # noqa: F811
    async def scenario(desk: Desk) -> None:
        root = _use(desk, tmp_path / "bucket")
        lines = [
            b'{"Item": {"a": {"S": "good"}}}',
            b"",
            b"not JSON",
            b"[1]",
            b'{"Item": 5}',
            b'{"Item": {"a": {"N": "5"}}}',
            b'{"Item": {"b": {"S": "no key"}}}',
            b'{"Item": {"a": {"S": ""}}}',
            b'{"Item": {"a": {"S": 5}}}',
            b'{"Item": {"a": {"S": "x"}, "b": {"B": "%"}}}',
            b'{"Item": {"a": {"S": "x"}, "b": {"N": "one"}}}',
            b'{"Item": {"a": {"S": "x"}, "b": {"Q": "one"}}}',
            b'{"Item": {"a": {"S": "x"}, "b": 7}}',
            b'{"Item": {"a": {"S": "x"}, "b": {"SS": []}}}',
            b'{"Item": {"a": {"S": "large"}, "b": {"S": "' + b"x" * 409_600 + b'"}}}',
            b'{"Item": {"a": {"S": "\xff"}}}',
            b'{"Item": {"a": {"S": "deep"}, "b": ' + b'{"L": [' * 500 + b"]}" * 500 + b"}}",
            b'{"Item": {"a": {"S": "last"}}}',
        ]
        (root / "lines.json").write_bytes(b"\n".join(lines))
        made = await desk.ok(
            "ImportTable",
            InputFormat="DYNAMODB_JSON",
            S3BucketSource={"S3Bucket": "bucket"},
            TableCreationParameters={"TableName": "orders", **HASHED},
        )
        _work(desk)
        arn = made["ImportTableDescription"]["ImportArn"]
        shown = (await desk.ok("DescribeImport", ImportArn=arn))["ImportTableDescription"]
        assert (shown["ImportStatus"], shown["ImportedItemCount"], shown["ErrorCount"]) == ("COMPLETED", 2, 15)
        made = await desk.ok(
            "ImportTable",
            InputFormat="DYNAMODB_JSON",
            InputCompressionType="GZIP",
            S3BucketSource={"S3Bucket": "bucket"},
            TableCreationParameters={"TableName": "second", **HASHED},
        )
        _work(desk)
        arn = made["ImportTableDescription"]["ImportArn"]
        shown = (await desk.ok("DescribeImport", ImportArn=arn))["ImportTableDescription"]
        assert (shown["ImportStatus"], shown["FailureCode"]) == ("FAILED", "InvalidCompression")
        assert (await desk.refused("DescribeTable", TableName="second"))[0] == "ResourceNotFoundException"

    at_the_desk(scenario)


def test_no_key_leaves_its_directory(tmp_path: Path) -> None:
    root, outside = tmp_path / "bucket", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (root / "link").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    os.mkfifo(root / "pipe")
    (root / "inside").mkdir()
    (root / "inside" / "fine").write_text("fine")
    bucket = DirectoryBucket(str(root))
    for key in ("../outside/x", "/etc/x", "inside/../../outside/x", "link/x", "a//b", "inside/.", "nul\0"):
        with pytest.raises(BucketError):
            bucket.write(key, b"x")
    for key in ("../outside/secret", str(outside / "secret"), "link/secret", "file", "pipe", "inside", "missing"):
        with pytest.raises(BucketError):
            bucket.open(key)
    for prefix in ("../", "link/", "../outside/"):
        with pytest.raises(BucketError):
            bucket.keys(prefix)
    assert bucket.keys("") == ["inside/fine"]
    assert bucket.keys("ins") == ["inside/fine"]
    assert bucket.keys("inside/none") == []
    bucket.write("file", b"replaced")  # the link itself is replaced, and not what it leads to
    assert (outside / "secret").read_text() == "secret"
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]
    with bucket.open("file") as stream:
        assert stream.read() == b"replaced"
