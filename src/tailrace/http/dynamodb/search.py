"""Operations that return many items in order: Query, Scan.

A page is read in slices; between two slices the event loop serves other requests. A page with large items is read in a
thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeAlias

import msgspec

from tailrace.errors import Invalid, TableNotFound
from tailrace.http.dynamodb import parameters, render
from tailrace.http.dynamodb.context import Context
from tailrace.http.dynamodb.offload import run_sync
from tailrace.http.dynamodb.shape import (
    INDEX_NAME,
    RETURN_CONSUMED_CAPACITY,
    ApiShape,
    Body,
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

ItemsQuery: TypeAlias = QueryItems | ScanItems

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


def query(context: Context, request: Request) -> Body | Coroutine[Any, Any, Body]:
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
        light=context.waits,
        stored=True,
    )
    try:
        return _page(context, items_query, capacity)
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


def scan(context: Context, request: Request) -> Body | Coroutine[Any, Any, Body]:
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
        light=context.waits,
        stored=True,
    )
    return _page(context, items_query, capacity)


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


def _page(context: Context, items_query: ItemsQuery, capacity: str) -> Body | Coroutine[Any, Any, Body]:
    """The response, if the first slice of the page is the whole page; else a coroutine that reads the rest."""
    pager: Pager[Any] = Pager(items_query)
    try:
        waits_for = context.then(items_query, pager.add)
    except HeavyItems:
        return _heavy_page(context, items_query, capacity)
    if waits_for is None and pager.done:
        return _response(pager.page(), capacity)
    return _long_page(context, items_query, pager, waits_for, capacity)


async def _long_page(
    context: Context,
    items_query: ItemsQuery,
    pager: Pager[Any],
    waits_for: Coroutine[Any, Any, None] | None,
    capacity: str,
) -> Body:
    try:
        if waits_for is not None:
            await waits_for
        while (step := pager.next()) is not None:
            await asyncio.sleep(0)
            pager.add(await context.execute(step))
    except HeavyItems:
        return await _heavy_page(context, items_query, capacity)
    return _response(pager.page(), capacity)


async def _heavy_page(context: Context, items_query: ItemsQuery, capacity: str) -> Body:
    """A page with large items is read from its beginning in a thread."""

    def read() -> Body:
        page = _page(context.blocking(), msgspec.structs.replace(items_query, light=False), capacity)
        return page if isinstance(page, (bytes, dict)) else run_sync(page)

    return await context.call(read)


def _response(page: ItemPage, capacity: str) -> bytes:
    last = b"" if page.last_key is None else b',"LastEvaluatedKey":%b' % _encode(page.last_key)
    if page.consumed is not None:
        last += b',"ConsumedCapacity":%b' % _encode(render.consumed(page.consumed, capacity))
    if not page.items:
        items = b"" if page.items is None else b',"Items":[]'
        return b'{"Count":%d,"ScannedCount":%d%b%b}' % (page.count, page.scanned, items, last)
    # The first and the last item with what is around them, so that the page is copied once.
    parts = list(map(render.encoded_item, page.items))
    parts[0] = b'{"Count":%d,"ScannedCount":%d,"Items":[%b' % (page.count, page.scanned, parts[0])
    parts[-1] += b"]%b}" % last
    return b",".join(parts)


OPERATIONS: Final = {"Query": Operation(QUERY, query), "Scan": Operation(SCAN, scan)}
