"""Several independent items in one request: BatchGetItem, BatchWriteItem."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tailrace.errors import Invalid
from tailrace.http.dynamodb import parameters, render
from tailrace.http.dynamodb.context import Context
from tailrace.http.dynamodb.shape import (
    NAME,
    RETURN_CONSUMED_CAPACITY,
    RETURN_ITEM_COLLECTION_METRICS,
    Boolean,
    Item,
    ListOf,
    MapOf,
    Operation,
    Path,
    Request,
    String,
    Structure,
    Violation,
    table_name,
)
from tailrace.limits import ITEM_BYTES_MAX
from tailrace.tables.commands import BatchWrite, DeleteItem, PutItem
from tailrace.tables.messages import ITEM_TOO_LARGE, KEY_MISMATCH, VALUE_AMBIGUOUS
from tailrace.tables.queries import BatchGet, BatchGetKeys
from tailrace.tables.value import read_item

WRITES_MAX: Final = 25
_EITHER_OR: Final = (("ProjectionExpression",), ("AttributesToGet",))
_SHOWN: Final = ("ProjectionExpression", "AttributesToGet")


class _TableNames(String):
    """Names or ARNs of tables, as the keys of a map."""

    def __init__(self) -> None:
        super().__init__(least=3, most=255, pattern=NAME)

    def read(self, value: Any, nested: bool = False) -> Any:
        return table_name(value)


class _RequestItems(MapOf):
    """Requests by table. The service has a special message for an empty map."""

    operation = ""

    def violations(self, value: Any, path: Path, found: list[Violation]) -> None:
        super().violations(value, path, found)
        if not value:
            raise Invalid(f"The requestItems parameter is required for {self.operation}")


# -- reading


class _GetItems(_RequestItems):
    def render(self, value: Any) -> str:
        return msgspec.json.encode(value).decode()


_GET_ITEMS: Final = _GetItems(
    Structure(
        "KeysAndAttributes",
        {
            "Keys": ListOf(Item(), least=1, most=100, late=True),
            "AttributesToGet": parameters.ATTRIBUTES_TO_GET,
            "ConsistentRead": Boolean(),
            "ProjectionExpression": String(),
            "ExpressionAttributeNames": parameters.NAMES,
        },
        required=("Keys",),
    ),
    least=1,
    keys=_TableNames(),
)
_GET_ITEMS.operation = "BatchGetItem"
BATCH_GET_ITEM: Final = Structure(
    "BatchGetItemInput",
    {"RequestItems": _GET_ITEMS, "ReturnConsumedCapacity": RETURN_CONSUMED_CAPACITY},
    required=("RequestItems",),
)


async def batch_get_item(context: Context, request: Request) -> dict[str, Any]:
    requests_by_table: dict[str, Request] = request["RequestItems"]
    # The service refuses a mixture of expressions and legacy parameters even in the requests for different tables.
    parameters.check_mixed(
        {name: one for block in requests_by_table.values() for name, one in block.items() if name in _SHOWN},
        *_EITHER_OR,
    )
    gets = tuple(_keys_to_get(table, one) for table, one in requests_by_table.items())
    capacity = parameters.capacity(request)
    got = await context.execute(BatchGet(gets, capacity != "NONE", stored=True))
    response: dict[str, Any] = {
        "Responses": {table: render.encoded_items(items) for table, items in got.items.items()},
        "UnprocessedKeys": {
            table: {"Keys": keys, **{name: one for name, one in requests_by_table[table].items() if name != "Keys"}}
            for table, keys in got.unprocessed.items()
        },
    }
    if capacity != "NONE":
        response["ConsumedCapacity"] = [render.consumed(units, capacity) for units in got.consumed.values()]
    return response


def _returns_many(request: Request) -> bool:
    """Whether reading and encoding the items may take long."""
    return sum(len(one["Keys"]) for one in request["RequestItems"].values()) > render.ITEMS_AT_ONCE


def _keys_to_get(table: str, one: Request) -> BatchGetKeys:
    parameters.check_mixed(one, *_EITHER_OR)
    parameters.check_attributes_to_get(one)
    given = parameters.placeholders(one)
    projection = parameters.projection(one, given)
    given.check_used()
    keys = tuple(read_item(key)[0] for key in one["Keys"])
    return BatchGetKeys(table, keys, projection, one.get("ConsistentRead", False))


# -- writing

_WRITE_ITEMS: Final = _RequestItems(
    ListOf(
        Structure(
            "WriteRequest",
            {
                "PutRequest": Structure("PutRequest", {"Item": Item()}, required=("Item",)),
                "DeleteRequest": Structure("DeleteRequest", {"Key": Item()}, required=("Key",)),
            },
        )
    ),
    least=1,
    keys=_TableNames(),
    values=(1, WRITES_MAX),
)
_WRITE_ITEMS.operation = "BatchWriteItem"
BATCH_WRITE_ITEM: Final = Structure(
    "BatchWriteItemInput",
    {
        "ReturnConsumedCapacity": RETURN_CONSUMED_CAPACITY,
        "ReturnItemCollectionMetrics": RETURN_ITEM_COLLECTION_METRICS,
        "RequestItems": _WRITE_ITEMS,
    },
    required=("RequestItems",),
)


async def batch_write_item(context: Context, request: Request) -> dict[str, Any]:
    requests_by_table: dict[str, list[Request]] = request["RequestItems"]
    if sum(len(one) for one in requests_by_table.values()) > WRITES_MAX:
        raise Invalid("Too many items requested for the BatchWriteItem call")
    writes: list[PutItem | DeleteItem] = []
    for table, requests in requests_by_table.items():
        if any(len(one) != 1 for one in requests):
            raise Invalid(VALUE_AMBIGUOUS)
        writes += [_write(table, one) for one in requests]
    capacity = parameters.capacity(request)
    try:
        batch = await context.execute(BatchWrite(tuple(writes), atomic=False, capacity=capacity != "NONE"))
    except Invalid as error:
        if "Missing the key" in str(error) or "Type mismatch for key" in str(error):
            raise Invalid(KEY_MISMATCH) from error
        raise
    response: dict[str, Any] = {"UnprocessedItems": {}}
    if capacity != "NONE":
        response["ConsumedCapacity"] = [render.consumed(units, capacity) for units in batch.consumed().values()]
    if request.get("ReturnItemCollectionMetrics") == "SIZE":
        collections: dict[str, list[dict[str, Any]]] = {}
        for write, written in zip(writes, batch.written, strict=True):
            item = write.item if isinstance(write, PutItem) else write.key
            render.collect(collections, written.definition, item)
        if collections:
            response["ItemCollectionMetrics"] = collections
    return response


def _write(table: str, one: Request) -> PutItem | DeleteItem:
    if "PutRequest" not in one:
        return DeleteItem(table, read_item(one["DeleteRequest"]["Key"])[0])
    item, size = read_item(one["PutRequest"]["Item"])
    if size > ITEM_BYTES_MAX:
        raise Invalid(ITEM_TOO_LARGE)
    return PutItem(table, item, size)


OPERATIONS: Final = {
    "BatchGetItem": Operation(BATCH_GET_ITEM, batch_get_item, offload=_returns_many),
    "BatchWriteItem": Operation(BATCH_WRITE_ITEM, batch_write_item, split=("RequestItems", 2)),
}
