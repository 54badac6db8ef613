"""Operations on single items: PutItem, GetItem, UpdateItem, DeleteItem.

Each checks what does not depend on the table, in the service's order; the command checks the rest.
"""

from __future__ import annotations

from typing import Any, Final

from tailrace.errors import Invalid
from tailrace.http.dynamodb import parameters, render
from tailrace.http.dynamodb.context import Context
from tailrace.http.dynamodb.shape import (
    RETURN_CONSUMED_CAPACITY,
    RETURN_ITEM_COLLECTION_METRICS,
    ApiShape,
    AttributeValue,
    Boolean,
    Item,
    MapOf,
    Operation,
    Request,
    String,
    Structure,
    TableName,
)
from tailrace.limits import ITEM_BYTES_MAX
from tailrace.tables import expression, legacy
from tailrace.tables.commands import DeleteItem, PutItem, UpdateItem
from tailrace.tables.expression import ItemCondition, ItemUpdate, Placeholders
from tailrace.tables.messages import ITEM_TOO_LARGE
from tailrace.tables.queries import GetItem
from tailrace.tables.value import check_names, read_item
from tailrace.tables.write import WrittenItem

_EMPTY: Final = b"{}"
_CONDITIONAL: Final[dict[str, ApiShape]] = {
    "ConditionalOperator": parameters.CONDITIONAL_OPERATOR,
    "Expected": parameters.EXPECTED,
    "ConditionExpression": String(),
    "ExpressionAttributeValues": parameters.VALUES,
    "ExpressionAttributeNames": parameters.NAMES,
    "ReturnValuesOnConditionCheckFailure": parameters.ON_CONDITION_FAILURE,
}
_RETURNS: Final[dict[str, ApiShape]] = {
    "ReturnConsumedCapacity": RETURN_CONSUMED_CAPACITY,
    "ReturnItemCollectionMetrics": RETURN_ITEM_COLLECTION_METRICS,
    "ReturnValues": parameters.RETURN_VALUES,
}


# -- reading

GET_ITEM: Final = Structure(
    "GetItemInput",
    {
        "ReturnConsumedCapacity": RETURN_CONSUMED_CAPACITY,
        "AttributesToGet": parameters.ATTRIBUTES_TO_GET,
        "TableName": TableName(),
        "Key": Item(),
        "ConsistentRead": Boolean(),
        "ProjectionExpression": String(),
        "ExpressionAttributeNames": parameters.NAMES,
    },
    required=("TableName", "Key"),
)


async def get_item(context: Context, request: Request) -> bytes | dict[str, Any]:
    if len(request) == 2:
        got = await context.execute(GetItem(request["TableName"], read_item(request["Key"])[0]))
        return _EMPTY if got.item is None else {"Item": got.item}
    parameters.check_mixed(request, ("ProjectionExpression",), ("AttributesToGet",))
    key, _ = read_item(request["Key"])
    parameters.check_attributes_to_get(request)
    given = parameters.placeholders(request)
    projection = parameters.projection(request, given)
    given.check_used()
    capacity = parameters.capacity(request)
    got = await context.execute(
        GetItem(request["TableName"], key, projection, request.get("ConsistentRead", False), capacity != "NONE")
    )
    response: dict[str, Any] = {}
    if got.item is not None:
        response["Item"] = got.item
    if got.consumed is not None:
        response["ConsumedCapacity"] = render.consumed(got.consumed, capacity)
    return response


# -- writing

PUT_ITEM: Final = Structure(
    "PutItemInput",
    {"TableName": TableName(), "Item": Item(), **_RETURNS, **_CONDITIONAL},
    required=("TableName", "Item"),
)
DELETE_ITEM: Final = Structure(
    "DeleteItemInput",
    {"TableName": TableName(), "Key": Item(), **_RETURNS, **_CONDITIONAL},
    required=("TableName", "Key"),
)
UPDATE_ITEM: Final = Structure(
    "UpdateItemInput",
    {
        "ReturnConsumedCapacity": RETURN_CONSUMED_CAPACITY,
        "TableName": TableName(),
        **_RETURNS,
        "AttributeUpdates": MapOf(
            Structure(
                "AttributeValueUpdate",
                {"Action": String(enum=("ADD", "PUT", "DELETE")), "Value": AttributeValue()},
            )
        ),
        "UpdateExpression": String(),
        **_CONDITIONAL,
        "Key": Item(),
    },
    required=("TableName", "Key"),
)


async def put_item(context: Context, request: Request) -> bytes | dict[str, Any]:
    if len(request) == 2:
        item, size = read_item(request["Item"])
        if size > ITEM_BYTES_MAX:
            raise Invalid(ITEM_TOO_LARGE)
        await context.execute(PutItem(request["TableName"], item, size))
        return _EMPTY
    parameters.check_mixed(request, ("ConditionExpression",), ("Expected", "ConditionalOperator"))
    item, size = read_item(request["Item"])
    _check_returns(request)
    if size > ITEM_BYTES_MAX:
        raise Invalid(ITEM_TOO_LARGE)
    condition = _condition(request)
    written = await context.execute(
        PutItem(
            request["TableName"],
            item,
            size,
            condition=condition,
            on_failure=request.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD",
            returns=request.get("ReturnValues", "NONE"),
            capacity=parameters.capacity(request) != "NONE",
            request_bytes=context.size,
        )
    )
    return _written(request, written, item)


async def delete_item(context: Context, request: Request) -> bytes | dict[str, Any]:
    parameters.check_mixed(request, ("ConditionExpression",), ("Expected", "ConditionalOperator"))
    key, _ = read_item(request["Key"])
    _check_returns(request)
    condition = _condition(request)
    written = await context.execute(
        DeleteItem(
            request["TableName"],
            key,
            condition=condition,
            on_failure=request.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD",
            returns=request.get("ReturnValues", "NONE"),
            capacity=parameters.capacity(request) != "NONE",
            request_bytes=context.size,
        )
    )
    return _written(request, written, key)


async def update_item(context: Context, request: Request) -> bytes | dict[str, Any]:
    parameters.check_mixed(
        request,
        ("UpdateExpression", "ConditionExpression"),
        ("AttributeUpdates", "Expected", "ConditionalOperator"),
    )
    key, _ = read_item(request["Key"])
    update: ItemUpdate | None = None
    if request.get("AttributeUpdates"):
        check_names(request["AttributeUpdates"])
        update = legacy.attribute_updates(request["AttributeUpdates"])
    condition = _expected(request)
    given = parameters.placeholders(request)
    if "UpdateExpression" in request:
        update = expression.update(request["UpdateExpression"], given)
    if condition is None:
        condition = parameters.condition(request, given)
    given.check_used()
    written = await context.execute(
        UpdateItem(
            request["TableName"],
            key,
            update,
            condition=condition,
            on_failure=request.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD",
            returns=request.get("ReturnValues", "NONE"),
            capacity=parameters.capacity(request) != "NONE",
            request_bytes=context.size,
        )
    )
    return _written(request, written, key)


def _check_returns(request: Request) -> None:
    if request.get("ReturnValues", "NONE") not in ("ALL_OLD", "NONE"):
        raise Invalid("ReturnValues can only be ALL_OLD or NONE")


def _expected(request: Request) -> ItemCondition | None:
    """The condition of the legacy parameter Expected."""
    parameters.check_operator(request, "Expected")
    expected = request.get("Expected")
    return legacy.expected(expected, request.get("ConditionalOperator", "AND")) if expected else None


def _condition(request: Request) -> ItemCondition | None:
    """The condition, from ConditionExpression or from Expected."""
    condition = _expected(request)
    if "ConditionExpression" in request:
        given: Placeholders = parameters.placeholders(request)
        condition = parameters.condition(request, given)
        given.check_used()
    return condition


def _written(request: Request, written: WrittenItem, item: dict[str, Any]) -> bytes | dict[str, Any]:
    response: dict[str, Any] = {}
    if written.attributes:
        response["Attributes"] = written.attributes
    if written.consumed is not None:
        response["ConsumedCapacity"] = render.consumed(written.consumed, parameters.capacity(request))
    if request.get("ReturnItemCollectionMetrics") == "SIZE":
        metrics = render.collection_metrics(written.definition, item)
        if metrics is not None:
            response["ItemCollectionMetrics"] = metrics
    return response or _EMPTY


OPERATIONS: Final = {
    "PutItem": Operation(PUT_ITEM, put_item),
    "GetItem": Operation(GET_ITEM, get_item),
    "UpdateItem": Operation(UPDATE_ITEM, update_item),
    "DeleteItem": Operation(DELETE_ITEM, delete_item),
}
