"""Several items in one request, each on its own: BatchGetItem, BatchWriteItem."""

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
    Structure,
    Text,
    Violation,
    table_name,
)
from tailrace.limits import ITEM_BYTES_MAX
from tailrace.tables.commands import BatchWrite, DeleteItem, PutItem
from tailrace.tables.messages import ITEM_TOO_LARGE, KEY_MISMATCH, VALUE_AMBIGUOUS
from tailrace.tables.queries import BatchGet, Wanted
from tailrace.tables.value import read_item

WRITES_MAX: Final = 25
_EITHER_OR: Final = (("ProjectionExpression",), ("AttributesToGet",))
_SHOWN: Final = ("ProjectionExpression", "AttributesToGet")


class _TableNames(Text):
    """Names or ARNs of tables, as the keys of a map."""

    def __init__(self) -> None:
        super().__init__(least=3, most=255, pattern=NAME)

    def read(self, value: Any, nested: bool = False) -> Any:
        return table_name(value)


class _RequestItems(MapOf):
    """Requests by table. The service's newer layer tells an empty map in words of its own."""

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
            "ProjectionExpression": Text(),
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
    asked: dict[str, Request] = request["RequestItems"]
    # One way for all tables: of two that are each right in themselves, the service refuses the mixture.
    parameters.check_mixed(
        {name: one for block in asked.values() for name, one in block.items() if name in _SHOWN}, *_EITHER_OR
    )
    wanted = tuple(_wanted(table, one) for table, one in asked.items())
    told = parameters.capacity(request)
    got = await context.execute(BatchGet(wanted, told != "NONE"))
    answer: dict[str, Any] = {
        "Responses": {table: render.each(items) for table, items in got.items.items()},
        "UnprocessedKeys": {
            table: {"Keys": keys, **{name: one for name, one in asked[table].items() if name != "Keys"}}
            for table, keys in got.unprocessed.items()
        },
    }
    if told != "NONE":
        answer["ConsumedCapacity"] = [render.consumed(units, told) for units in got.consumed.values()]
    return answer


def _many(request: Request) -> bool:
    """Whether so much is asked for that looking it up and writing it down takes long."""
    return sum(len(one["Keys"]) for one in request["RequestItems"].values()) > render.ITEMS_AT_ONCE


def _wanted(table: str, one: Request) -> Wanted:
    parameters.check_mixed(one, *_EITHER_OR)
    parameters.check_attributes_to_get(one)
    given = parameters.placeholders(one)
    projection = parameters.projection(one, given)
    given.check_used()
    keys = tuple(read_item(key)[0] for key in one["Keys"])
    return Wanted(table, keys, projection, one.get("ConsistentRead", False))


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
    asked: dict[str, list[Request]] = request["RequestItems"]
    if sum(len(one) for one in asked.values()) > WRITES_MAX:
        raise Invalid("Too many items requested for the BatchWriteItem call")
    writes: list[PutItem | DeleteItem] = []
    for table, requests in asked.items():
        if any(len(one) != 1 for one in requests):
            raise Invalid(VALUE_AMBIGUOUS)
        writes += [_write(table, one) for one in requests]
    told = parameters.capacity(request)
    try:
        batch = await context.execute(BatchWrite(tuple(writes), atomic=False, capacity=told != "NONE"))
    except Invalid as error:
        if "Missing the key" in str(error) or "Type mismatch for key" in str(error):
            raise Invalid(KEY_MISMATCH) from error
        raise
    answer: dict[str, Any] = {"UnprocessedItems": {}}
    if told != "NONE":
        answer["ConsumedCapacity"] = [render.consumed(units, told) for units in batch.consumed().values()]
    if request.get("ReturnItemCollectionMetrics") == "SIZE":
        collections: dict[str, list[dict[str, Any]]] = {}
        for write, written in zip(writes, batch.written, strict=True):
            item = write.item if isinstance(write, PutItem) else write.key
            render.collect(collections, written.definition, item)
        if collections:
            answer["ItemCollectionMetrics"] = collections
    return answer


def _write(table: str, one: Request) -> PutItem | DeleteItem:
    if "PutRequest" not in one:
        return DeleteItem(table, read_item(one["DeleteRequest"]["Key"])[0])
    item, size = read_item(one["PutRequest"]["Item"])
    if size > ITEM_BYTES_MAX:
        raise Invalid(ITEM_TOO_LARGE)
    return PutItem(table, item, size)


OPERATIONS: Final = {
    "BatchGetItem": Operation(BATCH_GET_ITEM, batch_get_item, apart=_many),
    "BatchWriteItem": Operation(BATCH_WRITE_ITEM, batch_write_item, pieces=("RequestItems", 2)),
}
