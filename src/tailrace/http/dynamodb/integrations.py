"""Operations that connect tables with other services of AWS, which are not here: what there is none of is described as
such, and what cannot be enabled is refused with what to use instead."""

from __future__ import annotations

from typing import Any, Final

from tailrace.errors import Invalid
from tailrace.http.dynamodb.context import Context
from tailrace.http.dynamodb.shape import (
    INDEX_NAME,
    ApiShape,
    Integer,
    ManagedTableName,
    Operation,
    Request,
    String,
    Structure,
)
from tailrace.tables.lifecycle import DescribeTable

_STREAM_ARN: Final = String(least=37, most=1024)
_PRECISION: Final = String(enum=("MILLISECOND", "MICROSECOND"))


def _unsupported(name: str) -> Invalid:
    return Invalid(
        f"UnsupportedOperation: there is no Kinesis here; follow the changes of table {name} in its change stream: the "
        f"API of DynamoDB Streams, GET /v1/tables/{name}/stream, or a topic with a source"
    )


async def _describe_kinesis(context: Context, request: Request) -> dict[str, Any]:
    await context.execute(DescribeTable(request["TableName"]))
    return {"TableName": request["TableName"], "KinesisDataStreamDestinations": []}


async def _change_kinesis(context: Context, request: Request) -> dict[str, Any]:
    await context.execute(DescribeTable(request["TableName"]))
    raise _unsupported(request["TableName"])


async def _describe_insights(context: Context, request: Request) -> dict[str, Any]:
    await context.execute(DescribeTable(request["TableName"]))
    shown: dict[str, Any] = {"TableName": request["TableName"], "ContributorInsightsStatus": "DISABLED"}
    if "IndexName" in request:
        shown["IndexName"] = request["IndexName"]
    return shown


async def _update_insights(context: Context, request: Request) -> dict[str, Any]:
    shown = await _describe_insights(context, request)
    if request["ContributorInsightsAction"] == "ENABLE":
        raise Invalid("UnsupportedOperation: there are no contributor insights here; /metrics has the server's metrics")
    return shown


async def _list_insights(context: Context, request: Request) -> dict[str, Any]:
    return {"ContributorInsightsSummaries": []}


def _of_kinesis(name: str, **more: Structure) -> Structure:
    members: dict[str, ApiShape] = {"TableName": ManagedTableName(), "StreamArn": _STREAM_ARN, **more}
    return Structure(name, members, required=("TableName", "StreamArn"))


def _of_insights(name: str, **more: String) -> Structure:
    members: dict[str, ApiShape] = {"TableName": ManagedTableName(), "IndexName": INDEX_NAME, **more}
    return Structure(name, members, required=("TableName", *(each for each in more if each.endswith("Action"))))


_ENABLE: Final = Structure("EnableKinesisStreamingConfiguration", {"ApproximateCreationDateTimePrecision": _PRECISION})
_UPDATE: Final = Structure("UpdateKinesisStreamingConfiguration", {"ApproximateCreationDateTimePrecision": _PRECISION})

OPERATIONS: Final[dict[str, Operation]] = {
    "DescribeKinesisStreamingDestination": Operation(
        Structure(
            "DescribeKinesisStreamingDestinationInput", {"TableName": ManagedTableName()}, required=("TableName",)
        ),
        _describe_kinesis,
    ),
    "EnableKinesisStreamingDestination": Operation(
        _of_kinesis("KinesisStreamingDestinationInput", EnableKinesisStreamingConfiguration=_ENABLE), _change_kinesis
    ),
    "DisableKinesisStreamingDestination": Operation(
        _of_kinesis("KinesisStreamingDestinationInput", EnableKinesisStreamingConfiguration=_ENABLE), _change_kinesis
    ),
    "UpdateKinesisStreamingDestination": Operation(
        _of_kinesis("UpdateKinesisStreamingDestinationInput", UpdateKinesisStreamingConfiguration=_UPDATE),
        _change_kinesis,
    ),
    "DescribeContributorInsights": Operation(_of_insights("DescribeContributorInsightsInput"), _describe_insights),
    "UpdateContributorInsights": Operation(
        _of_insights(
            "UpdateContributorInsightsInput",
            ContributorInsightsAction=String(enum=("ENABLE", "DISABLE")),
            ContributorInsightsMode=String(enum=("ACCESSED_AND_THROTTLED_KEYS", "THROTTLED_KEYS")),
        ),
        _update_insights,
    ),
    "ListContributorInsights": Operation(
        Structure(
            "ListContributorInsightsInput",
            {"TableName": String(least=1, most=1024), "NextToken": String(), "MaxResults": Integer(most=100)},
        ),
        _list_insights,
    ),
}
