"""Backups and point-in-time recovery through the DynamoDB API: the shapes of responses, and what is refused."""

from __future__ import annotations

from typing import Any

from tests.unit.http.test_dynamodb_tables import HASHED, REGION, Desk, Run, at_the_desk  # noqa: F401

ARN = f"arn:aws:dynamodb:{REGION}:123456789012:table/orders"


async def _prepared(desk: Desk) -> None:
    await desk.ok("CreateTable", TableName="orders", **HASHED)
    for number in range(3):
        await desk.ok("PutItem", TableName="orders", Item={"a": {"S": str(number)}})


async def _items(desk: Desk, name: str) -> list[str]:
    return sorted(item["a"]["S"] for item in (await desk.ok("Scan", TableName=name))["Items"])


def test_a_backup_is_made_listed_restored_and_deleted(at_the_desk: Run) -> None:  # noqa: F811
    async def scenario(desk: Desk) -> None:
        await _prepared(desk)
        made = (await desk.ok("CreateBackup", TableName="orders", BackupName="first"))["BackupDetails"]
        arn = made["BackupArn"]
        assert arn.startswith(f"{ARN}/backup/")
        assert (made["BackupStatus"], made["BackupType"], made["BackupName"]) == ("CREATING", "USER", "first")
        assert (await desk.refused("DeleteBackup", BackupArn=arn))[0] == "BackupInUseException"
        await desk.ok("PutItem", TableName="orders", Item={"a": {"S": "later"}})
        desk.db.sweep()
        described = (await desk.ok("DescribeBackup", BackupArn=arn))["BackupDescription"]
        assert described["BackupDetails"]["BackupStatus"] == "AVAILABLE"
        assert described["SourceTableDetails"]["ItemCount"] == 3
        assert described["SourceTableDetails"]["KeySchema"] == HASHED["KeySchema"]
        restored = await desk.ok("RestoreTableFromBackup", BackupArn=arn, TargetTableName="copy")
        summary = restored["TableDescription"]["RestoreSummary"]
        assert (summary["SourceBackupArn"], summary["SourceTableArn"], summary["RestoreInProgress"]) == (arn, ARN, True)
        assert restored["TableDescription"]["TableStatus"] == "CREATING"
        assert (await desk.describe("copy"))["TableStatus"] == "CREATING"
        assert (await desk.refused("CreateTable", TableName="copy", **HASHED))[0] == "ResourceInUseException"
        desk.db.sweep()
        assert (await desk.describe("copy"))["TableStatus"] == "ACTIVE"
        assert await _items(desk, "copy") == ["0", "1", "2"]
        again = await desk.refused("RestoreTableFromBackup", BackupArn=arn, TargetTableName="copy")
        assert again[0] == "TableAlreadyExistsException"
        second = (await desk.ok("CreateBackup", TableName="copy", BackupName="second"))["BackupDetails"]["BackupArn"]
        desk.db.sweep()
        page = await desk.ok("ListBackups", Limit=1)
        assert [each["BackupArn"] for each in page["BackupSummaries"]] == [arn]
        rest = await desk.ok("ListBackups", ExclusiveStartBackupArn=page["LastEvaluatedBackupArn"])
        assert [each["BackupArn"] for each in rest["BackupSummaries"]] == [second]
        only = await desk.ok("ListBackups", TableName="copy", BackupType="ALL")
        assert [each["TableName"] for each in only["BackupSummaries"]] == ["copy"]
        assert (await desk.ok("ListBackups", BackupType="SYSTEM"))["BackupSummaries"] == []
        gone = (await desk.ok("DeleteBackup", BackupArn=arn))["BackupDescription"]["BackupDetails"]
        assert gone["BackupStatus"] == "DELETED"
        for operation in ("DescribeBackup", "DeleteBackup"):
            assert (await desk.refused(operation, BackupArn=arn))[0] == "BackupNotFoundException"
        assert (await desk.refused("DescribeBackup", BackupArn="x" * 40))[0] == "BackupNotFoundException"
        missing = await desk.refused("CreateBackup", TableName="missing", BackupName="backup")
        assert missing[0] == "TableNotFoundException"

    at_the_desk(scenario)


def test_a_table_is_restored_to_a_point_in_time(at_the_desk: Run) -> None:  # noqa: F811
    async def scenario(desk: Desk) -> None:
        await _prepared(desk)
        refused = await desk.refused(
            "RestoreTableToPointInTime", SourceTableName="orders", TargetTableName="past", UseLatestRestorableTime=True
        )
        assert refused[0] == "PointInTimeRecoveryUnavailableException"
        spec = {"PointInTimeRecoveryEnabled": True, "RecoveryPeriodInDays": 7}

        async def recovery(operation: str, **more: Any) -> dict[str, Any]:
            answer = (await desk.ok(operation, TableName="orders", **more))["ContinuousBackupsDescription"]
            assert answer["ContinuousBackupsStatus"] == "ENABLED"
            found: dict[str, Any] = answer["PointInTimeRecoveryDescription"]
            return found

        enabled = await recovery("UpdateContinuousBackups", PointInTimeRecoverySpecification=spec)
        assert (enabled["PointInTimeRecoveryStatus"], enabled["RecoveryPeriodInDays"]) == ("ENABLED", 7)
        shown = await desk.describe("orders")
        assert "StreamSpecification" not in shown and "LatestStreamArn" not in shown
        moment = (await recovery("DescribeContinuousBackups"))["LatestRestorableDateTime"]
        while desk.db.clock.now_ms() <= moment * 1000:
            pass
        await desk.ok("DeleteItem", TableName="orders", Key={"a": {"S": "1"}})
        for target, when in (("past", {"RestoreDateTime": moment}), ("now", {"UseLatestRestorableTime": True})):
            made = await desk.ok("RestoreTableToPointInTime", SourceTableArn=ARN, TargetTableName=target, **when)
            assert made["TableDescription"]["RestoreSummary"]["SourceTableArn"] == ARN
        desk.db.sweep()
        assert (await _items(desk, "past"), await _items(desk, "now")) == (["0", "1", "2"], ["0", "2"])
        for wrong, code in (
            ({"RestoreDateTime": 1}, "InvalidRestoreTimeException"),
            ({"RestoreDateTime": 1, "UseLatestRestorableTime": True}, "ValidationException"),
            ({}, "ValidationException"),
        ):
            found = await desk.refused(
                "RestoreTableToPointInTime", SourceTableName="orders", TargetTableName="never", **wrong
            )
            assert found[0] == code
        off = await recovery(
            "UpdateContinuousBackups", PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": False}
        )
        assert off == {"PointInTimeRecoveryStatus": "DISABLED"}

    at_the_desk(scenario)


def test_services_that_are_not_here_are_described_as_such(at_the_desk: Run) -> None:  # noqa: F811
    async def scenario(desk: Desk) -> None:
        await desk.ok("CreateTable", TableName="orders", **HASHED)
        kinesis = await desk.ok("DescribeKinesisStreamingDestination", TableName="orders")
        assert kinesis == {"TableName": "orders", "KinesisDataStreamDestinations": []}
        stream = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
        for operation in ("Enable", "Disable", "Update"):
            code, text = await desk.refused(
                f"{operation}KinesisStreamingDestination", TableName="orders", StreamArn=stream
            )
            assert code == "ValidationException" and "/v1/tables/orders/stream" in text
        insights = await desk.ok("DescribeContributorInsights", TableName="orders")
        assert insights == {"TableName": "orders", "ContributorInsightsStatus": "DISABLED"}
        action = {"TableName": "orders", "ContributorInsightsAction": "DISABLE"}
        assert await desk.ok("UpdateContributorInsights", **action) == insights
        assert (await desk.refused("UpdateContributorInsights", **{**action, "ContributorInsightsAction": "ENABLE"}))[1]
        assert await desk.ok("ListContributorInsights") == {"ContributorInsightsSummaries": []}
        for operation in ("DescribeKinesisStreamingDestination", "DescribeContributorInsights"):
            assert (await desk.refused(operation, TableName="missing"))[0] == "ResourceNotFoundException"

    at_the_desk(scenario)
