"""Operations that return many items in order: Query, Scan.

A page is read in slices; between two slices the event loop serves other requests. A page with large items is read in a
thread.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from tailrace.errors import Invalid, TableNotFound
from tailrace.http.dynamodb import parameters, render
from tailrace.http.dynamodb.context import Context
from tailrace.http.dynamodb.offload import run_sync
from tailrace.http.dynamodb.shape import (
    INDEX_NAME,
    RETURN_CONSUMED_CAPACITY,
    ApiShape,
    Boolean,
    Integer,
    Item,
    Operation,
    Request,
    String,
    Structure,
    TableName,
)
from tailrace.tables import expression, legacy
from tailrace.tables.expression import ItemCondition, KeyConditions, Placeholders
from tailrace.tables.queries import HeavyItems, ItemPage, Pager, QueryItems, ScanItems

SEGMENTS_MAX: Final = 1_000_000
_SELECT: Final = String(enum=("SPECIFIC_ATTRIBUTES", "COUNT", "ALL_ATTRIBUTES", "ALL_PROJECTED_ATTRIBUTES"))
_SHOWN: Final[dict[str, ApiShape]] = {
    "ExclusiveStartKey": Item(),
    "ConsistentRead": Boolean(),
    "FilterExpression": String(),
    "ProjectionExpression": String(),
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
        "KeyConditionExpression": String(),
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
    capacity = parameters.capacity(request)
    items_query = QueryItems(
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
        capacity=capacity != "NONE",
        legacy="QueryFilter" in request or "AttributesToGet" in request,
    )
    try:
        return await _page(context, items_query, capacity)
    except TableNotFound:
        # The service reports too many key conditions before a missing table.
        key.check(indexed="IndexName" in request)
        raise


def _key_condition(request: Request, given: Placeholders) -> KeyConditions:
    if "KeyConditionExpression" in request:
        return expression.key_condition(request["KeyConditionExpression"], given)
    return legacy.read_key_conditions(request["KeyConditions"])


def _old_filter(request: Request, parameter: str) -> ItemCondition | None:
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
    capacity = parameters.capacity(request)
    items_query = ScanItems(
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
        capacity=capacity != "NONE",
        legacy="ScanFilter" in request or "AttributesToGet" in request,
    )
    return await _page(context, items_query, capacity)


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


async def _page(context: Context, items_query: QueryItems | ScanItems, capacity: str) -> bytes | dict[str, Any]:
    if context.waits:
        try:
            return _response(await _read(context, msgspec.structs.replace(items_query, light=True)), capacity)
        except HeavyItems:
            blocking = context.blocking()
            return await context.call(lambda: _encode(_response(run_sync(_read(blocking, items_query)), capacity)))
    return _response(await _read(context, items_query), capacity)


async def _read(context: Context, items_query: QueryItems | ScanItems) -> ItemPage:
    pager: Pager[Any] = Pager(items_query)
    step = pager.next()
    while step is not None:
        pager.add(await context.execute(step))
        step = pager.next()
        if step is not None:
            await asyncio.sleep(0)
    return pager.page()


def _response(page: ItemPage, capacity: str) -> dict[str, Any]:
    response: dict[str, Any] = {"Count": page.count, "ScannedCount": page.scanned}
    if page.items is not None:
        response["Items"] = page.items
    if page.last_key is not None:
        response["LastEvaluatedKey"] = page.last_key
    if page.consumed is not None:
        response["ConsumedCapacity"] = render.consumed(page.consumed, capacity)
    return response


OPERATIONS: Final = {"Query": Operation(QUERY, query), "Scan": Operation(SCAN, scan)}
