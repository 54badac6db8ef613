"""TableDescription: the wire format of a table, built from its definition and its counts.

Pure. Four operations return a description, each with other parts: DescribeTable everything, CreateTable what was
requested, UpdateTable the throughput before the change, DeleteTable no schema and no indexes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from tailrace.http.dynamodb import render
from tailrace.tables.definition import CREATING, Definition, IndexDefinition, Throughput
from tailrace.tables.lifecycle import TableDescription

UPDATING: Final = "UPDATING"
DELETING: Final = "DELETING"
PAY_PER_REQUEST: Final = "PAY_PER_REQUEST"

_DAY_MS: Final = 24 * 3600 * 1000
_UNPROVISIONED: Final = Throughput()
_BILLED_SINCE: Final = "LastUpdateToPayPerRequestDateTime"
_SUMMARIES: Final = ("BillingModeSummary", "TableThroughputModeSummary")


class DescribeContext(NamedTuple):
    """The inputs of a description besides the table: the region for ARNs, and the time."""

    region: str
    now_ms: int


def described(table: TableDescription, view: DescribeContext) -> dict[str, Any]:
    """The `Table` of DescribeTable, with everything."""
    shown = _whole(table, view)
    shown["TableStatus"] = table.status
    shown["DeletionProtectionEnabled"] = table.definition.protected
    return shown


def created(table: TableDescription, view: DescribeContext) -> dict[str, Any]:
    """The response of CreateTable. Clients expect CREATING here; DescribeTable returns ACTIVE immediately after."""
    shown = _whole(table, view)
    shown["TableStatus"] = CREATING
    if table.definition.protected:
        shown["DeletionProtectionEnabled"] = True
    _forget_billed_since(shown)
    for index in shown.get("GlobalSecondaryIndexes", ()):
        index["IndexStatus"] = CREATING
    return shown


def updated(before: TableDescription, after: TableDescription, view: DescribeContext) -> dict[str, Any]:
    """The response of UpdateTable: the change is in progress, so the throughput is still the old one.

    The service dates a change of capacity twice, when it is requested and when it is done; the response has the first
    time, which is the earlier one.
    """
    old, new = before.definition, after.definition
    shown = _whole(after, view)
    shown["TableStatus"] = UPDATING
    shown["DeletionProtectionEnabled"] = new.protected
    rebilled = old.billing != new.billing
    if rebilled and new.billing == PAY_PER_REQUEST:
        _forget_billed_since(shown)
    elif not rebilled:
        shown["ProvisionedThroughput"] = _under_way(old.throughput, new.throughput, view)
    indexes = {index["IndexName"]: index for index in shown.get("GlobalSecondaryIndexes", ())}
    for index in new.indexes:
        was = old.by_name.get(index.name)
        if was is None or index.local or was.throughput == index.throughput:
            continue
        indexes[index.name]["IndexStatus"] = UPDATING
        if not rebilled:
            units = _under_way(was.throughput or _UNPROVISIONED, index.throughput or _UNPROVISIONED, view)
            indexes[index.name]["ProvisionedThroughput"] = units
    for index in old.indexes:
        if index.name not in new.by_name:
            gone = _global_index(before, index, view)
            gone["IndexStatus"] = DELETING
            gone.pop("Backfilling", None)
            shown.setdefault("GlobalSecondaryIndexes", []).append(gone)
    return shown


def deleted(table: TableDescription, view: DescribeContext) -> dict[str, Any]:
    """The response of DeleteTable: no schema, no indexes."""
    definition = table.definition
    count = table.counts[definition.space]
    shown: dict[str, Any] = {
        "TableName": definition.name,
        "TableStatus": DELETING,
        "TableArn": render.table_arn(definition.name, view.region),
        "TableId": definition.uuid,
        "ItemCount": count.items,
        "TableSizeBytes": count.bytes,
        "ProvisionedThroughput": _throughput(definition.throughput, view),
        "DeletionProtectionEnabled": definition.protected,
    }
    _billing(definition, shown)
    _stream(table, shown, view)
    return shown


def _whole(table: TableDescription, view: DescribeContext) -> dict[str, Any]:
    definition = table.definition
    count = table.counts[definition.space]
    shown: dict[str, Any] = {
        "AttributeDefinitions": [
            {"AttributeName": attribute.name, "AttributeType": attribute.kind} for attribute in definition.attributes
        ],
        "TableName": definition.name,
        "KeySchema": _key_schema(definition.keys[:1], definition.keys[1:]),
        "CreationDateTime": definition.created_ms / 1000,
        "ProvisionedThroughput": _throughput(definition.throughput, view),
        "TableSizeBytes": count.bytes,
        "ItemCount": count.items,
        "TableArn": render.table_arn(definition.name, view.region),
        "TableId": definition.uuid,
    }
    _billing(definition, shown)
    local = [_index(table, index, view) for index in definition.indexes if index.local]
    if local:
        shown["LocalSecondaryIndexes"] = local
    wide = [_global_index(table, index, view) for index in definition.indexes if not index.local]
    if wide:
        shown["GlobalSecondaryIndexes"] = wide
    _stream(table, shown, view)
    if definition.encryption is not None:
        shown["SSEDescription"] = {"Status": "ENABLED", "SSEType": definition.encryption}
    if definition.table_class is not None:
        shown["TableClassSummary"] = {"TableClass": definition.table_class}
    _limits(definition.on_demand, definition.warm, table.status, shown)
    return shown


def _billing(definition: Definition, shown: dict[str, Any]) -> None:
    """Add the billing mode, which the service only returns for tables that are or once were billed per request."""
    if definition.billing != PAY_PER_REQUEST and definition.billing_ms is None:
        return
    since = {} if definition.billing_ms is None else {_BILLED_SINCE: definition.billing_ms / 1000}
    for summary, member in zip(_SUMMARIES, ("BillingMode", "TableThroughputMode"), strict=True):
        shown[summary] = {member: definition.billing, **since}


def _forget_billed_since(shown: dict[str, Any]) -> None:
    for summary in _SUMMARIES:
        if summary in shown:
            shown[summary].pop(_BILLED_SINCE, None)


def _stream(table: TableDescription, shown: dict[str, Any], view: DescribeContext) -> None:
    """Add the change stream, if there is one; its ARN also after it was disabled, because it can still be read."""
    if table.definition.stream is not None:
        shown["StreamSpecification"] = {"StreamEnabled": True, "StreamViewType": table.definition.stream.view}
    if table.stream is not None:
        shown["LatestStreamLabel"] = table.stream.label
        shown["LatestStreamArn"] = render.stream_arn(table.definition.name, table.stream.label, view.region)


def key_schema(definition: Definition) -> list[dict[str, str]]:
    """The key of a table."""
    return _key_schema(definition.keys[:1], definition.keys[1:])


def index_outline(index: IndexDefinition) -> dict[str, Any]:
    """The name, the key and the projection of an index."""
    projection: dict[str, Any] = {"ProjectionType": index.projection.kind}
    if index.projection.attributes:
        projection["NonKeyAttributes"] = list(index.projection.attributes)
    return {"IndexName": index.name, "KeySchema": _key_schema(index.hash, index.range), "Projection": projection}


def _index(table: TableDescription, index: IndexDefinition, view: DescribeContext) -> dict[str, Any]:
    count = table.counts[index.space]
    return {
        **index_outline(index),
        "IndexSizeBytes": count.bytes,
        "ItemCount": count.items,
        "IndexArn": f"{render.table_arn(table.definition.name, view.region)}/index/{index.name}",
    }


def _global_index(table: TableDescription, index: IndexDefinition, view: DescribeContext) -> dict[str, Any]:
    shown = _index(table, index, view)
    shown["IndexStatus"] = index.status
    if index.status == CREATING:
        shown["Backfilling"] = True
    shown["ProvisionedThroughput"] = _throughput(index.throughput or _UNPROVISIONED, view)
    _limits(index.on_demand, index.warm, index.status, shown)
    return shown


def _limits(
    on_demand: tuple[int, int] | None, warm: tuple[int, int] | None, status: str, shown: dict[str, Any]
) -> None:
    if on_demand is not None:
        shown["OnDemandThroughput"] = {"MaxReadRequestUnits": on_demand[0], "MaxWriteRequestUnits": on_demand[1]}
    if warm is not None:
        shown["WarmThroughput"] = {
            "ReadUnitsPerSecond": warm[0],
            "WriteUnitsPerSecond": warm[1],
            "Status": status,
        }


def _key_schema(hashes: Sequence[str], ranges: Sequence[str]) -> list[dict[str, str]]:
    return [{"AttributeName": name, "KeyType": "HASH"} for name in hashes] + [
        {"AttributeName": name, "KeyType": "RANGE"} for name in ranges
    ]


def _throughput(throughput: Throughput, view: DescribeContext) -> dict[str, Any]:
    last = throughput.decreased_ms
    today = last is not None and last // _DAY_MS == view.now_ms // _DAY_MS
    shown: dict[str, Any] = {
        "NumberOfDecreasesToday": throughput.decreases if today else 0,
        "ReadCapacityUnits": throughput.read,
        "WriteCapacityUnits": throughput.write,
    }
    if throughput.increased_ms is not None:
        shown["LastIncreaseDateTime"] = throughput.increased_ms / 1000
    if last is not None:
        shown["LastDecreaseDateTime"] = last / 1000
    return shown


def _under_way(before: Throughput, after: Throughput, view: DescribeContext) -> dict[str, Any]:
    """The old throughput, with the time at which the new one was requested."""
    shown = _throughput(before, view)
    if after.increased_ms is not None and after.increased_ms != before.increased_ms:
        shown["LastIncreaseDateTime"] = (after.increased_ms - 1) / 1000
    if after.decreased_ms is not None and after.decreased_ms != before.decreased_ms:
        shown["LastDecreaseDateTime"] = (after.decreased_ms - 1) / 1000
    return shown
