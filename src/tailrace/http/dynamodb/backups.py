"""The operations on backups, and on point-in-time recovery: the shapes of their requests, and their responses."""

from __future__ import annotations

import re
from typing import Any, Final

from tailrace.errors import Invalid, NotFound, TableNotFound
from tailrace.http.dynamodb import describe, render
from tailrace.http.dynamodb.context import Context
from tailrace.http.dynamodb.shape import (
    INDEX_NAME,
    NAME,
    Boolean,
    Integer,
    ListOf,
    ManagedTableName,
    Number,
    Operation,
    Request,
    String,
    Structure,
    TableName,
    table_name,
)
from tailrace.tables.backups import (
    RECOVERY_DAYS_MAX,
    Backup,
    CreateBackup,
    DeleteBackup,
    DescribeBackup,
    DescribeRecovery,
    DescribeRestore,
    ListBackups,
    RecoveryStatus,
    RestoreBackup,
    RestoreSettings,
    RestoreToPointInTime,
    SetRecovery,
)
from tailrace.tables.copies import IMPORT, CopyRow
from tailrace.tables.definition import Definition

BACKUPS_LISTED_MAX: Final = 100
_BACKUP_ARN: Final = String(least=37, most=1024)
_RESTORED_NAME: Final = String(least=3, most=255, pattern=NAME)
_backup_of: Final = re.compile(
    r"arn:aws[a-z-]*:dynamodb:[a-z0-9-]*:[0-9]*:table/([a-zA-Z0-9_.-]{3,255})/backup/([0-9]{14}-[0-9a-f]{8})"
).fullmatch
_INDEX: Final = Structure("SecondaryIndex", {"IndexName": INDEX_NAME}, required=("IndexName",))
_BILLING: Final = String(enum=("PROVISIONED", "PAY_PER_REQUEST"))


class _AnyStructure(Structure):
    """A structure whose members are accepted and not looked at: what they ask for makes no difference here."""

    def passes(self, value: Any) -> bool:
        return isinstance(value, dict)

    def read(self, value: Any, nested: bool = False) -> Any:
        return value

    def violations(self, value: Any, path: Any, found: Any) -> None:
        return


class _NamedIndexes(ListOf):
    """Indexes of which only the names count: an index is restored as it was, or not at all."""

    def read(self, value: Any, nested: bool = False) -> Any:
        return super().read(
            [{"IndexName": each.get("IndexName")} if isinstance(each, dict) else each for each in value], nested
        )


_OVERRIDES: Final = {
    "BillingModeOverride": _BILLING,
    "GlobalSecondaryIndexOverride": _NamedIndexes(_INDEX),
    "LocalSecondaryIndexOverride": _NamedIndexes(_INDEX),
    "ProvisionedThroughputOverride": _AnyStructure("ProvisionedThroughput", {}),
    "OnDemandThroughputOverride": _AnyStructure("OnDemandThroughput", {}),
    "SSESpecificationOverride": _AnyStructure("SSESpecification", {}),
}


def _backup_named(arn: str) -> tuple[str, str]:
    """The table and the id in a backup's ARN."""
    match = _backup_of(arn)
    if match is None:
        raise NotFound(f"Backup not found: {arn}", code="BackupNotFoundException")
    return match[1], match[2]


def _backup_arn(backup: Backup, region: str) -> str:
    return f"{render.table_arn(backup.details.source, region)}/backup/{backup.details.backup}"


def _details(backup: Backup, region: str) -> dict[str, Any]:
    return {
        "BackupArn": _backup_arn(backup, region),
        "BackupName": backup.row.name,
        "BackupSizeBytes": backup.size.bytes,
        "BackupStatus": "AVAILABLE" if backup.available else "CREATING",
        "BackupType": "USER",
        "BackupCreationDateTime": backup.details.at_ms / 1000,
    }


def _source(backup: Backup, region: str) -> dict[str, Any]:
    definition, details = backup.details.definition, backup.details
    return {
        "TableName": details.source,
        "TableId": details.source_uuid,
        "TableArn": render.table_arn(details.source, region),
        "TableSizeBytes": backup.size.bytes,
        "ItemCount": backup.size.items,
        "KeySchema": describe.key_schema(definition),
        "TableCreationDateTime": details.source_created_ms / 1000,
        "ProvisionedThroughput": {
            "ReadCapacityUnits": definition.throughput.read,
            "WriteCapacityUnits": definition.throughput.write,
        },
        "BillingMode": definition.billing,
    }


def _features(definition: Definition) -> dict[str, Any]:
    """The parts of the table that the backup has, and the service describes apart."""
    shown: dict[str, Any] = {}
    for name, local in (("LocalSecondaryIndexes", True), ("GlobalSecondaryIndexes", False)):
        indexes = [describe.index_outline(index) for index in definition.indexes if index.local == local]
        if indexes:
            shown[name] = indexes
    return shown


# -- backups


async def _create_backup(context: Context, request: Request) -> dict[str, Any]:
    made = await context.execute(CreateBackup(request["TableName"], request["BackupName"]))
    return {"BackupDetails": _details(made, context.region)}


async def _describe_backup(context: Context, request: Request) -> dict[str, Any]:
    found = await context.execute(DescribeBackup(*_backup_named(request["BackupArn"])))
    return {"BackupDescription": _description(found, context.region)}


def _description(backup: Backup, region: str) -> dict[str, Any]:
    return {
        "BackupDetails": _details(backup, region),
        "SourceTableDetails": _source(backup, region),
        "SourceTableFeatureDetails": _features(backup.details.definition),
    }


async def _delete_backup(context: Context, request: Request) -> dict[str, Any]:
    deleted = await context.execute(DeleteBackup(*_backup_named(request["BackupArn"])))
    shown = _description(deleted, context.region)
    shown["BackupDetails"]["BackupStatus"] = "DELETED"
    return {"BackupDescription": shown}


async def _list_backups(context: Context, request: Request) -> dict[str, Any]:
    found = await context.execute(ListBackups(request.get("TableName")))
    low, high = request.get("TimeRangeLowerBound"), request.get("TimeRangeUpperBound")
    after = request.get("ExclusiveStartBackupArn")
    if after is not None:
        id_ = _backup_named(after)[1]
        found = [each for each in found if (each.details.backup or "") > id_]
    if request.get("BackupType", "USER") not in ("USER", "ALL"):
        found = []
    found = [
        each
        for each in sorted(found, key=lambda each: each.details.backup or "")
        if (low is None or each.details.at_ms >= low * 1000) and (high is None or each.details.at_ms < high * 1000)
    ]
    limit = request.get("Limit", BACKUPS_LISTED_MAX)
    region = context.region
    shown = [
        {
            "TableName": each.details.source,
            "TableId": each.details.source_uuid,
            "TableArn": render.table_arn(each.details.source, region),
            **_details(each, region),
        }
        for each in found[:limit]
    ]
    response: dict[str, Any] = {"BackupSummaries": shown}
    if len(found) > limit:
        response["LastEvaluatedBackupArn"] = shown[-1]["BackupArn"]
    return response


# -- restoring


def _settings(request: Request) -> RestoreSettings:
    wide, local = request.get("GlobalSecondaryIndexOverride"), request.get("LocalSecondaryIndexOverride")
    return RestoreSettings(
        request.get("BillingModeOverride"),
        None if wide is None else tuple(each["IndexName"] for each in wide),
        None if local is None else tuple(each["IndexName"] for each in local),
    )


async def _restore_backup(context: Context, request: Request) -> dict[str, Any]:
    source, id_ = _backup_named(request["BackupArn"])
    command = RestoreBackup(source, id_, request["TargetTableName"], _settings(request))
    return await _restoring(context, await context.execute(command))


async def _restore_to_point_in_time(context: Context, request: Request) -> dict[str, Any]:
    arn, name = request.get("SourceTableArn"), request.get("SourceTableName")
    if (arn is None) == (name is None):
        raise Invalid("One of SourceTableName and SourceTableArn is required, and not both")
    source = name if arn is None else table_name(arn)
    assert source is not None
    at, latest = request.get("RestoreDateTime"), request.get("UseLatestRestorableTime", False)
    if (at is None) != bool(latest):
        raise Invalid("One of RestoreDateTime and UseLatestRestorableTime is required, and not both")
    command = RestoreToPointInTime(
        source, request["TargetTableName"], None if at is None else int(at * 1000), _settings(request)
    )
    return await _restoring(context, await context.execute(command))


async def _restoring(context: Context, row: CopyRow) -> dict[str, Any]:
    """The table that is being restored."""
    return {"TableDescription": await described(context, row.name) or {}}


async def described(context: Context, name: str) -> dict[str, Any] | None:
    """A table whose restore or import is under way, for DescribeTable; None: there is none."""
    found = await context.execute(DescribeRestore(name))
    if found is None:
        return None
    table, row = found
    shown = describe.created(table, describe.DescribeContext(context.region, context.db.clock.now_ms()))
    if row.kind == IMPORT:
        return shown
    details = row.facts
    summary: dict[str, Any] = {
        "SourceTableArn": render.table_arn(details.source, context.region),
        "RestoreDateTime": details.at_ms / 1000,
        "RestoreInProgress": True,
    }
    if details.backup is not None:
        summary["SourceBackupArn"] = f"{summary['SourceTableArn']}/backup/{details.backup}"
    return {**shown, "RestoreSummary": summary}


# -- point-in-time recovery


async def _update_continuous_backups(context: Context, request: Request) -> dict[str, Any]:
    spec = request["PointInTimeRecoverySpecification"]
    days = spec.get("RecoveryPeriodInDays", RECOVERY_DAYS_MAX) if spec["PointInTimeRecoveryEnabled"] else None
    return _continuous(await context.execute(SetRecovery(request["TableName"], days)))


async def _describe_continuous_backups(context: Context, request: Request) -> dict[str, Any]:
    try:
        return _continuous(await context.execute(DescribeRecovery(request["TableName"])))
    except TableNotFound as error:
        raise NotFound(f"Table not found: {error.name}", code="TableNotFoundException") from error


def _continuous(status: RecoveryStatus) -> dict[str, Any]:
    recovery: dict[str, Any] = {"PointInTimeRecoveryStatus": "DISABLED"}
    if status.days is not None:
        recovery = {
            "PointInTimeRecoveryStatus": "ENABLED",
            "RecoveryPeriodInDays": status.days,
            "EarliestRestorableDateTime": status.earliest_ms / 1000,
            "LatestRestorableDateTime": status.latest_ms / 1000,
        }
    return {
        "ContinuousBackupsDescription": {
            "ContinuousBackupsStatus": "ENABLED",
            "PointInTimeRecoveryDescription": recovery,
        }
    }


OPERATIONS: Final[dict[str, Operation]] = {
    "CreateBackup": Operation(
        Structure(
            "CreateBackupInput",
            {"TableName": ManagedTableName(), "BackupName": String(least=3, most=255, pattern=NAME)},
            required=("TableName", "BackupName"),
        ),
        _create_backup,
    ),
    "DescribeBackup": Operation(
        Structure("DescribeBackupInput", {"BackupArn": _BACKUP_ARN}, required=("BackupArn",)), _describe_backup
    ),
    "DeleteBackup": Operation(
        Structure("DeleteBackupInput", {"BackupArn": _BACKUP_ARN}, required=("BackupArn",)), _delete_backup
    ),
    "ListBackups": Operation(
        Structure(
            "ListBackupsInput",
            {
                "TableName": TableName(),
                "Limit": Integer(least=1, most=BACKUPS_LISTED_MAX),
                "TimeRangeLowerBound": Number(),
                "TimeRangeUpperBound": Number(),
                "ExclusiveStartBackupArn": _BACKUP_ARN,
                "BackupType": String(enum=("USER", "SYSTEM", "AWS_BACKUP", "ALL")),
            },
        ),
        _list_backups,
    ),
    "RestoreTableFromBackup": Operation(
        Structure(
            "RestoreTableFromBackupInput",
            {"TargetTableName": _RESTORED_NAME, "BackupArn": _BACKUP_ARN, **_OVERRIDES},
            required=("TargetTableName", "BackupArn"),
        ),
        _restore_backup,
    ),
    "RestoreTableToPointInTime": Operation(
        Structure(
            "RestoreTableToPointInTimeInput",
            {
                "SourceTableArn": String(least=1, most=1024),
                "SourceTableName": String(least=3, most=255, pattern=NAME),
                "TargetTableName": _RESTORED_NAME,
                "UseLatestRestorableTime": Boolean(),
                "RestoreDateTime": Number(),
                **_OVERRIDES,
            },
            required=("TargetTableName",),
        ),
        _restore_to_point_in_time,
    ),
    "UpdateContinuousBackups": Operation(
        Structure(
            "UpdateContinuousBackupsInput",
            {
                "TableName": ManagedTableName(),
                "PointInTimeRecoverySpecification": Structure(
                    "PointInTimeRecoverySpecification",
                    {
                        "PointInTimeRecoveryEnabled": Boolean(),
                        "RecoveryPeriodInDays": Integer(least=1, most=RECOVERY_DAYS_MAX),
                    },
                    required=("PointInTimeRecoveryEnabled",),
                ),
            },
            required=("TableName", "PointInTimeRecoverySpecification"),
        ),
        _update_continuous_backups,
    ),
    "DescribeContinuousBackups": Operation(
        Structure("DescribeContinuousBackupsInput", {"TableName": ManagedTableName()}, required=("TableName",)),
        _describe_continuous_backups,
    ),
}
