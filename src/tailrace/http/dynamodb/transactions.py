"""Several items in one transaction: TransactWriteItems, TransactGetItems."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

import msgspec

from tailrace import limits
from tailrace.errors import Invalid
from tailrace.http.dynamodb import parameters, render
from tailrace.http.dynamodb.context import Context
from tailrace.http.dynamodb.shape import (
    RETURN_CONSUMED_CAPACITY,
    RETURN_ITEM_COLLECTION_METRICS,
    ApiShape,
    Item,
    ListOf,
    Operation,
    Request,
    String,
    Structure,
    TableName,
)
from tailrace.limits import ITEM_BYTES_MAX, MiB
from tailrace.tables import expression
from tailrace.tables.commands import CheckItem, DeleteItem, ItemCommand, PutItem, TransactWrite, UpdateItem
from tailrace.tables.expression import ItemCondition, ItemUpdate
from tailrace.tables.messages import ITEM_TOO_LARGE
from tailrace.tables.queries import GetItem, TransactGet
from tailrace.tables.value import NAME_BYTES_MAX, check_names, digest, read_item

PAYLOAD_BYTES_MAX: Final = 4 * MiB
TOO_LARGE: Final = "Transaction payload size cannot exceed 4194304 bytes"  # of the request, not of the stored items
_encode: Final = msgspec.json.Encoder(order="deterministic").encode


# -- writing

_CONDITIONAL: Final[dict[str, ApiShape]] = {
    "TableName": TableName(),
    "ConditionExpression": String(),
    "ExpressionAttributeNames": parameters.NAMES,
    "ExpressionAttributeValues": parameters.VALUES,
    "ReturnValuesOnConditionCheckFailure": parameters.ON_CONDITION_FAILURE,
}
TRANSACT_WRITE_ITEMS: Final = Structure(
    "TransactWriteItemsInput",
    {
        "ClientRequestToken": String(least=1, most=36),
        "ReturnConsumedCapacity": RETURN_CONSUMED_CAPACITY,
        "ReturnItemCollectionMetrics": RETURN_ITEM_COLLECTION_METRICS,
        "TransactItems": ListOf(
            Structure(
                "TransactWriteItem",
                {
                    "ConditionCheck": Structure(
                        "ConditionCheck",
                        {"Key": Item(), **_CONDITIONAL},
                        required=("Key", "TableName", "ConditionExpression"),
                    ),
                    "Put": Structure("Put", {"Item": Item(), **_CONDITIONAL}, required=("Item", "TableName")),
                    "Delete": Structure("Delete", {"Key": Item(), **_CONDITIONAL}, required=("Key", "TableName")),
                    "Update": Structure(
                        "Update",
                        {"Key": Item(), "UpdateExpression": String(), **_CONDITIONAL},
                        required=("Key", "UpdateExpression", "TableName"),
                    ),
                },
            ),
            least=1,
            most=limits.TRANSACT_ACTIONS_MAX,
        ),
    },
    required=("TransactItems",),
)


async def transact_write_items(context: Context, request: Request) -> dict[str, Any]:
    token = request.get("ClientRequestToken")
    actions: list[ItemCommand] = []
    parts: list[Any] = []
    payload = 0
    for one in request["TransactItems"]:
        if len(one) != 1:
            raise Invalid(
                "TransactItems can only contain one of Check, Put, Update or Delete"
                if one
                else "Invalid Request: TransactWriteRequest should contain Delete or Put or Update request"
            )
        ((kind, fields),) = one.items()
        action, part, size = _action(kind, fields, token is not None)
        actions.append(action)
        parts.append(part)
        payload += size
    if payload > PAYLOAD_BYTES_MAX:
        raise Invalid(TOO_LARGE)
    capacity = parameters.capacity(request)
    meant = b"" if token is None else sha256(_encode(parts)).digest()
    batch = await context.execute(TransactWrite(tuple(actions), token, meant, capacity != "NONE"))
    response: dict[str, Any] = {}
    if capacity != "NONE":
        response["ConsumedCapacity"] = [
            render.consumed(units, capacity, split=True) for units in batch.consumed().values()
        ]
    if request.get("ReturnItemCollectionMetrics") == "SIZE":
        collections: dict[str, list[dict[str, Any]]] = {}
        for action, written in zip(actions, batch.written, strict=True):
            if isinstance(action, PutItem):
                render.collect(collections, written.definition, action.item)
            elif isinstance(action, DeleteItem | UpdateItem):
                render.collect(collections, written.definition, action.key)
        if collections:
            response["ItemCollectionMetrics"] = collections
    return response


def _may_return_many(request: Request) -> bool:
    """Whether the response may contain many items: those whose conditions failed."""
    actions = request["TransactItems"]
    return len(actions) > render.ITEMS_AT_ONCE and any(
        fields.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD" for one in actions for fields in one.values()
    )


def _action(kind: str, fields: Request, named: bool) -> tuple[ItemCommand, Any, int]:
    """An action, the part of the request that its token identifies, and its share of the transaction's payload."""
    raw = fields["Item" if kind == "Put" else "Key"]
    if "" in raw:
        raise Invalid("Empty attribute name")
    expressions = ("UpdateExpression", "ConditionExpression") if kind == "Update" else ("ConditionExpression",)
    parameters.check_mixed(fields, expressions, ())
    values = fields.get("ExpressionAttributeValues")
    given = parameters.placeholders(fields)
    update = expression.update(fields["UpdateExpression"], given) if kind == "Update" else None
    condition = parameters.condition(fields, given)
    given.check_used()
    item, size = read_item(raw)
    if size > NAME_BYTES_MAX:
        check_names(item)
    if size > ITEM_BYTES_MAX:
        raise Invalid(ITEM_TOO_LARGE)
    payload = size + (len(_encode(values)) if values else 0)
    part = None
    if named:
        # The order of attributes, and of the elements of a set, does not make a request different.
        rest = {name: held for name, held in fields.items() if name not in _DIGESTED}
        read = {name: given.value(name) for name in values or ()}
        part = [kind, rest, digest(item).hex(), digest(read).hex()]
    return _command(kind, fields, item, size, update, condition, payload), part, payload


_DIGESTED: Final = ("Item", "Key", "ExpressionAttributeValues")


def _command(
    kind: str,
    fields: Request,
    item: dict[str, Any],
    size: int,
    update: ItemUpdate | None,
    condition: ItemCondition | None,
    request_bytes: int,
) -> ItemCommand:
    table = fields["TableName"]
    return_item = fields.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD"
    if kind == "Put":
        return PutItem(table, item, size, condition=condition, on_failure=return_item, request_bytes=request_bytes)
    if kind == "Delete":
        return DeleteItem(table, item, condition=condition, on_failure=return_item, request_bytes=request_bytes)
    if kind == "Update":
        return UpdateItem(table, item, update, condition=condition, on_failure=return_item, request_bytes=request_bytes)
    return CheckItem(table, item, condition=condition, on_failure=return_item, request_bytes=request_bytes)


# -- reading

TRANSACT_GET_ITEMS: Final = Structure(
    "TransactGetItemsInput",
    {
        "ReturnConsumedCapacity": RETURN_CONSUMED_CAPACITY,
        "TransactItems": ListOf(
            Structure(
                "TransactGetItem",
                {
                    "Get": Structure(
                        "Get",
                        {
                            "Key": Item(),
                            "TableName": TableName(),
                            "ProjectionExpression": String(),
                            "ExpressionAttributeNames": parameters.NAMES,
                        },
                        required=("Key", "TableName"),
                    )
                },
                required=("Get",),
            ),
            least=1,
            most=limits.TRANSACT_ACTIONS_MAX,
        ),
    },
    required=("TransactItems",),
)


async def transact_get_items(context: Context, request: Request) -> dict[str, Any]:
    gets = tuple(_get(one["Get"]) for one in request["TransactItems"])
    capacity = parameters.capacity(request)
    got = await context.execute(TransactGet(gets, capacity != "NONE"))
    response: dict[str, Any] = {
        "Responses": [{} if item is None else {"Item": item} for item in render.encoded_items(got.items)]
    }
    if capacity != "NONE":
        response["ConsumedCapacity"] = [render.consumed(units, capacity, split=True) for units in got.consumed.values()]
    return response


def _get(fields: Request) -> GetItem:
    parameters.check_mixed(fields, ("ProjectionExpression",), ())
    key, _ = read_item(fields["Key"])
    given = parameters.placeholders(fields)
    projection = parameters.projection(fields, given)
    given.check_used()
    return GetItem(fields["TableName"], key, projection)


OPERATIONS: Final = {
    "TransactWriteItems": Operation(
        TRANSACT_WRITE_ITEMS, transact_write_items, offload=_may_return_many, split=("TransactItems", 1)
    ),
    "TransactGetItems": Operation(
        TRANSACT_GET_ITEMS,
        transact_get_items,
        offload=lambda request: len(request["TransactItems"]) > render.ITEMS_AT_ONCE,
    ),
}
