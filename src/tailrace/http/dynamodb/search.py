"""Many items in order: Query, Scan.

A page is put together from slices; between two of them the event loop does other things. A page with large items is
put together in a thread.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from tailrace.errors import Invalid, TableNotFound
from tailrace.http.dynamodb import parameters, render
from tailrace.http.dynamodb.apart import stepped
from tailrace.http.dynamodb.context import Context
from tailrace.http.dynamodb.shape import (
    INDEX_NAME,
    RETURN_CONSUMED_CAPACITY,
    Boolean,
    Integer,
    Item,
    Operation,
    Request,
    Shape,
    Structure,
    TableName,
    Text,
)
from tailrace.tables import expression, legacy
from tailrace.tables.expression import Condition, KeyConditions, Placeholders
from tailrace.tables.queries import Heavy, Page, Pager, Query, Scan

SEGMENTS_MAX: Final = 1_000_000
_SELECT: Final = Text(enum=("SPECIFIC_ATTRIBUTES", "COUNT", "ALL_ATTRIBUTES", "ALL_PROJECTED_ATTRIBUTES"))
_SHOWN: Final[dict[str, Shape]] = {
    "ExclusiveStartKey": Item(),
    "ConsistentRead": Boolean(),
    "FilterExpression": Text(),
    "ProjectionExpression": Text(),
    "ExpressionAttributeValues": parameters.VALUES,
    "ExpressionAttributeNames": parameters.NAMES,
}
_encode: Final = msgspec.json.Encoder().encode
_TABLE_NAME: Final = TableName(newer=False)


# -- one partition

QUERY: Final = Structure(
    "QueryInput",
    {
        "Select": _SELECT,
        "IndexName": INDEX_NAME,
        "ReturnConsumedCapacity": RETURN_CONSUMED_CAPACITY,
        "QueryFilter": parameters.CONDITIONS,
        "TableName": _TABLE_NAME,
        "ConditionalOperator": parameters.CONDITIONAL_OPERATOR,
        "AttributesToGet": parameters.ATTRIBUTES_TO_GET,
        "Limit": Integer(least=1, late=True),
        "KeyConditions": parameters.CONDITIONS,
        "ScanIndexForward": Boolean(),
        "KeyConditionExpression": Text(),
        **_SHOWN,
    },
    required=("TableName",),
)


async def query(context: Context, request: Request) -> bytes | dict[str, Any]:
    parameters.check_mixed(
        request,
        ("ProjectionExpression", "FilterExpression", "KeyConditionExpression"),
        ("AttributesToGet", "QueryFilter", "ConditionalOperator", "KeyConditions"),
    )
    condition = _old_filter(request, "QueryFilter")
    parameters.check_attributes_to_get(request)
    start = parameters.start_key(request)
    if "KeyConditions" not in request and "KeyConditionExpression" not in request:
        raise Invalid("Either the KeyConditions or KeyConditionExpression parameter must be specified in the request.")
    given = parameters.placeholders(request)
    key = _key_condition(request, given)
    condition = parameters.condition(request, given, "FilterExpression") or condition
    projection = parameters.projection(request, given)
    given.check_used()
    key.check(indexed=True)
    told = parameters.capacity(request)
    asked = Query(
        table=request["TableName"],
        condition=key,
        index=request.get("IndexName"),
        start=start,
        limit=request.get("Limit"),
        reverse=not request.get("ScanIndexForward", True),
        filter=condition,
        projection=projection,
        select=request.get("Select"),
        consistent=request.get("ConsistentRead", False),
        capacity=told != "NONE",
        legacy="QueryFilter" in request or "AttributesToGet" in request,
    )
    try:
        return await _page(context, asked, told)
    except TableNotFound:
        # Of too many conditions the service tells, too, where there is no table to hold them against.
        key.check(indexed="IndexName" in request)
        raise


def _key_condition(request: Request, given: Placeholders) -> KeyConditions:
    if "KeyConditionExpression" in request:
        return expression.key_condition(request["KeyConditionExpression"], given)
    return legacy.read_key_conditions(request["KeyConditions"])


def _old_filter(request: Request, parameter: str) -> Condition | None:
    parameters.check_operator(request, parameter)
    conditions = request.get(parameter)
    if not conditions:
        return None
    return legacy.query_filter(conditions, request.get("ConditionalOperator", "AND"))


# -- everything

SCAN: Final = Structure(
    "ScanInput",
    {
        "Select": _SELECT,
        "IndexName": INDEX_NAME,
        "TotalSegments": Integer(least=1, most=SEGMENTS_MAX),
        "ReturnConsumedCapacity": RETURN_CONSUMED_CAPACITY,
        "TableName": _TABLE_NAME,
        "ConditionalOperator": parameters.CONDITIONAL_OPERATOR,
        "ScanFilter": parameters.CONDITIONS,
        "Segment": Integer(least=0, most=SEGMENTS_MAX - 1),
        "Limit": Integer(least=1),
        "AttributesToGet": parameters.ATTRIBUTES_TO_GET,
        **_SHOWN,
    },
    required=("TableName",),
)


async def scan(context: Context, request: Request) -> bytes | dict[str, Any]:
    parameters.check_mixed(
        request,
        ("ProjectionExpression", "FilterExpression"),
        ("AttributesToGet", "ScanFilter", "ConditionalOperator"),
    )
    parameters.check_attributes_to_get(request)
    condition = _old_filter(request, "ScanFilter")
    start = parameters.start_key(request)
    segment, total = request.get("Segment"), request.get("TotalSegments")
    _check_segments(segment, total)
    given = parameters.placeholders(request)
    condition = parameters.condition(request, given, "FilterExpression") or condition
    projection = parameters.projection(request, given)
    given.check_used()
    told = parameters.capacity(request)
    asked = Scan(
        table=request["TableName"],
        index=request.get("IndexName"),
        segment=segment,
        total=total,
        start=start,
        limit=request.get("Limit"),
        filter=condition,
        projection=projection,
        select=request.get("Select"),
        consistent=request.get("ConsistentRead", False),
        capacity=told != "NONE",
        legacy="ScanFilter" in request or "AttributesToGet" in request,
    )
    return await _page(context, asked, told)


def _check_segments(segment: int | None, total: int | None) -> None:
    if total is None:
        if segment is not None:
            raise Invalid(
                "The TotalSegments parameter is required but was not present in the request when Segment parameter "
                "is present"
            )
    elif segment is None:
        raise Invalid(
            "The Segment parameter is required but was not present in the request when parameter TotalSegments is "
            "present"
        )
    elif segment >= total:
        raise Invalid(
            "The Segment parameter is zero-based and must be less than parameter TotalSegments: "
            f"Segment: {segment} is not less than TotalSegments: {total}"
        )


async def _page(context: Context, asked: Query | Scan, told: str) -> bytes | dict[str, Any]:
    if context.waits:
        try:
            return _shown(await _read(context, msgspec.structs.replace(asked, light=True)), told)
        except Heavy:
            apart = context.apart()
            return await context.call(lambda: _encode(_shown(stepped(_read(apart, asked)), told)))
    return _shown(await _read(context, asked), told)


async def _read(context: Context, asked: Query | Scan) -> Page:
    pager: Pager[Any] = Pager(asked)
    step = pager.next()
    while step is not None:
        pager.add(await context.execute(step))
        step = pager.next()
        if step is not None:
            await asyncio.sleep(0)
    return pager.page()


def _shown(page: Page, told: str) -> dict[str, Any]:
    answer: dict[str, Any] = {"Count": page.count, "ScannedCount": page.scanned}
    if page.items is not None:
        answer["Items"] = page.items
    if page.last_key is not None:
        answer["LastEvaluatedKey"] = page.last_key
    if page.consumed is not None:
        answer["ConsumedCapacity"] = render.consumed(page.consumed, told)
    return answer


OPERATIONS: Final = {"Query": Operation(QUERY, query), "Scan": Operation(SCAN, scan)}
