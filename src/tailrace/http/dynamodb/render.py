"""What several answers have in common: names of resources, capacity, item collections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from tailrace.tables.capacity import Capacity
from tailrace.tables.definition import Definition
from tailrace.tables.value import Item

ACCOUNT: Final = "123456789012"  # of nobody: the one that examples use
ITEMS_AT_ONCE: Final = 2  # more are looked up and written down in a thread: each may be of the largest size

_encode: Final = msgspec.json.Encoder().encode


def each(items: Sequence[Item | None]) -> list[Any]:
    """Items that are encoded already, one at a time: encoding is one call, during which no other thread has a turn."""
    return [None if item is None else msgspec.Raw(_encode(item)) for item in items]


def table_arn(name: str, region: str) -> str:
    return f"arn:aws:dynamodb:{region}:{ACCOUNT}:table/{name}"


def stream_arn(name: str, label: str, region: str) -> str:
    return f"arn:aws:dynamodb:{region}:{ACCOUNT}:table/{name}/stream/{label}"


def consumed(capacity: Capacity, how: str, *, split: bool = False) -> dict[str, Any]:
    """ConsumedCapacity. `how`: TOTAL, or INDEXES for the parts too; `split`: reads and writes apart (transactions)."""
    answer: dict[str, Any] = {"TableName": capacity.table, "CapacityUnits": capacity.total}
    if split:
        answer |= _split(capacity.total_read, capacity.total_write)
    if how != "INDEXES":
        return answer
    own = capacity.read + capacity.write
    answer["Table"] = {"CapacityUnits": own}
    if split:
        answer["Table"] |= _split(capacity.read, capacity.write)
    for name, part in capacity.parts.items():
        units: dict[str, float] = {"CapacityUnits": part.read + part.write}
        if split:
            units |= _split(part.read, part.write)
        answer.setdefault("LocalSecondaryIndexes" if part.local else "GlobalSecondaryIndexes", {})[name] = units
    return answer


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
    # The size is an estimate within a gigabyte; collections are not bounded here, so none is near a limit.
    return {"ItemCollectionKey": {definition.hash: item[definition.hash]}, "SizeEstimateRangeGB": [0.0, 1.0]}


def collect(collections: dict[str, list[dict[str, Any]]], definition: Definition, item: Item) -> None:
    """Add an item's collection to those of its table; each is told once."""
    metrics = collection_metrics(definition, item)
    if metrics is not None:
        told = collections.setdefault(definition.name, [])
        if metrics not in told:
            told.append(metrics)
