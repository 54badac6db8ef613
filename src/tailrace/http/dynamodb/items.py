"""Operations on single items: PutItem, GetItem, UpdateItem, DeleteItem.

Each checks what does not depend on the table, in the service's order; the command checks the rest.
"""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import Any, Final

from tailrace.errors import Invalid
from tailrace.http.dynamodb import parameters, render
from tailrace.http.dynamodb.context import Commanded, Context
from tailrace.http.dynamodb.shape import (
    RETURN_CONSUMED_CAPACITY,
    RETURN_ITEM_COLLECTION_METRICS,
    ApiShape,
    AttributeValue,
    Body,
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
from tailrace.tables.queries import GetItem, Got
from tailrace.tables.stored_json import stored_to_json
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


def get_item(context: Context, request: Request) -> Body | Coroutine[Any, Any, Body]:
    if len(request) == 2:
        return context.then(GetItem(request["TableName"], read_item(request["Key"])[0]), _got)
    parameters.check_mixed(request, ("ProjectionExpression",), ("AttributesToGet",))
    key, _ = read_item(request["Key"])
    parameters.check_attributes_to_get(request)
    given = parameters.placeholders(request)
    projection = parameters.projection(request, given)
    given.check_used()
    capacity = parameters.capacity(request)
    get = GetItem(request["TableName"], key, projection, request.get("ConsistentRead", False), capacity != "NONE")
    return context.then(get, _got if capacity == "NONE" else partial(_got, capacity=capacity))


def _got(got: Got, capacity: str = "NONE") -> Body:
    body = got.body
    if body is not None and got.projection is None and got.consumed is None:
        return b'{"Item":%b}' % stored_to_json(body)
    response: dict[str, Any] = {}
    if body is not None:
        response["Item"] = got.item
    if got.consumed is not None:
        response["ConsumedCapacity"] = render.consumed(got.consumed, capacity)
    return response or _EMPTY


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


def put_item(context: Context, request: Request) -> Body | Commanded:
    if len(request) == 2:
        item, size = read_item(request["Item"])
        if size > ITEM_BYTES_MAX:
            raise Invalid(ITEM_TOO_LARGE)
        return context.submit(PutItem(request["TableName"], item, size), _empty)
    parameters.check_mixed(request, ("ConditionExpression",), ("Expected", "ConditionalOperator"))
    item, size = read_item(request["Item"])
    _check_returns(request)
    if size > ITEM_BYTES_MAX:
        raise Invalid(ITEM_TOO_LARGE)
    condition = _condition(request)
    command = PutItem(
        request["TableName"],
        item,
        size,
        condition=condition,
        on_failure=request.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD",
        returns=request.get("ReturnValues", "NONE"),
        capacity=parameters.capacity(request) != "NONE",
        request_bytes=context.size,
    )
    return context.submit(command, partial(_written, request, item))


def delete_item(context: Context, request: Request) -> Body | Commanded:
    parameters.check_mixed(request, ("ConditionExpression",), ("Expected", "ConditionalOperator"))
    key, _ = read_item(request["Key"])
    _check_returns(request)
    condition = _condition(request)
    command = DeleteItem(
        request["TableName"],
        key,
        condition=condition,
        on_failure=request.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD",
        returns=request.get("ReturnValues", "NONE"),
        capacity=parameters.capacity(request) != "NONE",
        request_bytes=context.size,
    )
    return context.submit(command, partial(_written, request, key))


def update_item(context: Context, request: Request) -> Body | Commanded:
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
    command = UpdateItem(
        request["TableName"],
        key,
        update,
        condition=condition,
        on_failure=request.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD",
        returns=request.get("ReturnValues", "NONE"),
        capacity=parameters.capacity(request) != "NONE",
        request_bytes=context.size,
    )
    return context.submit(command, partial(_written, request, key))


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


def _empty(written: WrittenItem) -> Body:
    return _EMPTY


def _written(request: Request, item: dict[str, Any], written: WrittenItem) -> Body:
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
    "PutItem": Operation(PUT_ITEM, put_item, detects=True),
    "GetItem": Operation(GET_ITEM, get_item),
    "UpdateItem": Operation(UPDATE_ITEM, update_item, detects=True),
    "DeleteItem": Operation(DELETE_ITEM, delete_item, detects=True),
}
