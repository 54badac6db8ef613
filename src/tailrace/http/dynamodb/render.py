"""Parts that several responses share: ARNs, consumed capacity, item collections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from tailrace.tables.capacity import Capacity
from tailrace.tables.definition import Definition
from tailrace.tables.paging import FoundItem
from tailrace.tables.stored_json import stored_to_json
from tailrace.tables.value import Item

ACCOUNT: Final = "123456789012"  # a placeholder, as in AWS's examples
ITEMS_AT_ONCE: Final = 2  # more are read and encoded in a thread, because each may have the maximum size

_encode: Final = msgspec.json.Encoder().encode


def encoded_item(item: FoundItem) -> bytes:
    return stored_to_json(item) if type(item) is bytes else _encode(item)


def encoded_items(items: Sequence[FoundItem | None]) -> list[Any]:
    """The items, each encoded on its own: encoding holds the interpreter lock for the length of a call."""
    return [None if item is None else msgspec.Raw(encoded_item(item)) for item in items]


def table_arn(name: str, region: str) -> str:
    return f"arn:aws:dynamodb:{region}:{ACCOUNT}:table/{name}"


def stream_arn(name: str, label: str, region: str) -> str:
    return f"arn:aws:dynamodb:{region}:{ACCOUNT}:table/{name}/stream/{label}"


def consumed(capacity: Capacity, how: str, *, split: bool = False) -> dict[str, Any]:
    """ConsumedCapacity. `how`: TOTAL, or INDEXES with the indexes; `split`: reads and writes separately, as in
    transactions."""
    response: dict[str, Any] = {"TableName": capacity.table, "CapacityUnits": capacity.total}
    if split:
        response |= _split(capacity.total_read, capacity.total_write)
    if how != "INDEXES":
        return response
    own = capacity.read + capacity.write
    response["Table"] = {"CapacityUnits": own}
    if split:
        response["Table"] |= _split(capacity.read, capacity.write)
    for name, part in capacity.parts.items():
        units: dict[str, float] = {"CapacityUnits": part.read + part.write}
        if split:
            units |= _split(part.read, part.write)
        response.setdefault("LocalSecondaryIndexes" if part.local else "GlobalSecondaryIndexes", {})[name] = units
    return response


def _split(read: float, write: float) -> dict[str, float]:
    units = {}
    if read:
        units["ReadCapacityUnits"] = read
    if write:
        units["WriteCapacityUnits"] = write
    return units


def collection_metrics(definition: Definition, item: Item) -> dict[str, Any] | None:
    """ItemCollectionMetrics, which only tables with local indexes have."""
    if not any(index.local for index in definition.indexes):
        return None
    # The service estimates the size to the gigabyte. Collections have no limit here, so the estimate does not matter.
    return {"ItemCollectionKey": {definition.hash: item[definition.hash]}, "SizeEstimateRangeGB": [0.0, 1.0]}


def collect(collections: dict[str, list[dict[str, Any]]], definition: Definition, item: Item) -> None:
    """Add an item's collection to those of its table, once each."""
    metrics = collection_metrics(definition, item)
    if metrics is not None:
        metrics_of_table = collections.setdefault(definition.name, [])
        if metrics not in metrics_of_table:
            metrics_of_table.append(metrics)
