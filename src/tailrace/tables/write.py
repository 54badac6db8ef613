"""Writing one item: the item, its index entries, the counts and the change record, in one transaction.

A write is planned before it is applied: `WritePlan` holds the old and the new item. A transaction plans all of its
actions, and applies them only if no plan failed.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace.errors import Invalid
from tailrace.storage.engine import Tx
from tailrace.tables import key as keys
from tailrace.tables import value
from tailrace.tables.capacity import Capacity, IndexCapacity, write_units
from tailrace.tables.change import TTL, Capture
from tailrace.tables.definition import (
    ACTIVE,
    COUNTS,
    INDEX_ENTRIES,
    ITEMS,
    CountRow,
    Definition,
    IndexDefinition,
    IndexRow,
    ItemRow,
    counted,
)
from tailrace.tables.value import Item

INSERT: Final = 0
MODIFY: Final = 1
REMOVE: Final = 2
_NONE: Final = (b"", 0)


class WritePlan:
    """The old item (`row`, `old`) and the new one (`new`; None: deleted)."""

    __slots__ = ("_old", "definition", "key", "keys", "new", "row", "size")

    def __init__(self, definition: Definition, key: bytes, attributes: Item, row: ItemRow | None) -> None:
        self.definition = definition
        self.key = key
        self.keys = attributes  # an item that has at least the key's attributes
        self.row = row
        self.new: Item | None = None
        self.size = 0
        self._old: Item | None = None

    @property
    def size_old(self) -> int:
        """The size of the old item."""
        return 0 if self.row is None else self.row.size

    @property
    def old(self) -> Item | None:
        """The old item, decoded on first use."""
        if self._old is None and self.row is not None:
            self._old = value.decode(self.row.body)
        return self._old


def find(tx: Tx, definition: Definition, key: bytes, attributes: Item) -> WritePlan:
    """Read the item with this key; the plan without a new item."""
    return WritePlan(definition, key, attributes, tx.get(ITEMS, definition.space, key))


def do(tx: Tx, plan: WritePlan, capture: Capture) -> None:
    """Apply a plan. A write that changes nothing leaves no trace, not even a record."""
    definition, row, new = plan.definition, plan.row, plan.new
    if new is None:
        if row is None:
            return
        if tx.exports:
            _save(tx, plan)
        tx.delete(ITEMS, definition.space, plan.key)
        _count(tx, definition.space, -1, -row.size)
        if not definition.plain:
            _move(tx, plan)
        if definition.stream is not None:
            capture.add(definition, REMOVE, *_named(plan), (row.body, row.size), _NONE)
        if definition.routes:
            _send(plan, REMOVE, capture)
        return
    body = value.encode(new)
    if row is not None and (body == row.body or (len(body) == len(row.body) and value.same(plan.old, new))):
        return  # equal items have equally long bodies, whatever the order of their attributes
    if not definition.plain:
        _move(tx, plan)
    if tx.exports:
        _save(tx, plan)
    tx.put(ITEMS, ItemRow(definition.space, plan.key, plan.size, body))
    if row is None:
        _count(tx, definition.space, 1, plan.size)
        if definition.stream is not None:
            capture.add(definition, INSERT, *_named(plan), _NONE, (body, plan.size))
        if definition.routes:
            _send(plan, INSERT, capture)
    else:
        if plan.size != row.size:
            _count(tx, definition.space, 0, plan.size - row.size)
        if definition.stream is not None:
            capture.add(definition, MODIFY, *_named(plan), (row.body, row.size), (body, plan.size))
        if definition.routes:
            _send(plan, MODIFY, capture)


def _save(tx: Tx, plan: WritePlan) -> None:
    """Save the old image of the item for running exports, before it is written (`export.py`)."""
    for export in tx.exports.get(plan.definition.space, ()):
        export.save(plan.key, None if plan.row is None else plan.row.body)


def _send(plan: WritePlan, event: int, capture: Capture) -> None:
    if plan.definition.routes_of[event]:
        capture.send(plan, event)


def remove(tx: Tx, definition: Definition, key: bytes) -> bool:
    """Remove an expired item, for the TTL service; True if it existed."""
    plan = find(tx, definition, key, {})
    if plan.old is None:
        return False
    plan.keys = plan.old
    capture = Capture()
    do(tx, plan, capture)
    capture.append(tx, TTL)
    return True


def _named(plan: WritePlan) -> tuple[Item, int]:
    """The key's attributes and their size, for a record."""
    definition, attributes = plan.definition, plan.keys
    size = len(plan.key) - keys.HEAD_BYTES + len(definition.hash)
    if definition.range is None:
        return {definition.hash: attributes[definition.hash]}, size
    named = {definition.hash: attributes[definition.hash], definition.range: attributes[definition.range]}
    return named, size + len(definition.range)


def _count(tx: Tx, space: int, items: int, size: int) -> None:
    row = counted(tx, space)
    tx.put(COUNTS, CountRow(space, row.items + items, row.bytes + size))


# -- indexes


def _move(tx: Tx, plan: WritePlan) -> None:
    """Update the item's entries in each index, and in the expiry order."""
    definition, key, old, new = plan.definition, plan.key, plan.old, plan.new
    for index in definition.indexes:
        before = None if old is None else entry_key(definition, index, old, key)
        after = None if new is None else keys.index_key(definition, index, new, key)
        if before is not None and index.status != ACTIVE and tx.get(INDEX_ENTRIES, index.space, before) is None:
            before = None  # the backfill of the index has not reached this item yet
        size_before = 0 if before is None or old is None else projected_size(definition, index, old)
        size_after = 0 if after is None or new is None else projected_size(definition, index, new)
        if before != after:
            if before is not None:
                tx.delete(INDEX_ENTRIES, index.space, before)
            if after is not None:
                tx.put(INDEX_ENTRIES, IndexRow(index.space, after, key))
        if before != after or size_before != size_after:
            _count(tx, index.space, (after is not None) - (before is not None), size_after - size_before)
    if definition.ttl_space is not None:
        expiry_before, expiry_after = expiry(definition, old, key), expiry(definition, new, key)
        if expiry_before != expiry_after:
            if expiry_before is not None:
                tx.delete(INDEX_ENTRIES, definition.ttl_space, expiry_before)
            if expiry_after is not None:
                tx.put(INDEX_ENTRIES, IndexRow(definition.ttl_space, expiry_after, key))


def entry_key(definition: Definition, index: IndexDefinition, item: Item, key: bytes) -> bytes | None:
    """The key of a stored item's entry in an index; None if the item was written before the index was created and does
    not fit it."""
    try:
        return keys.index_key(definition, index, item, key)
    except Invalid:
        return None


def expiry(definition: Definition, item: Item | None, key: bytes) -> bytes | None:
    """The key of an item in the expiry order; None if it never expires."""
    when = None if item is None or definition.ttl is None else item.get(definition.ttl)
    return None if when is None or "N" not in when else keys.ttl_key(when["N"], key)


def projected(definition: Definition, index: IndexDefinition, item: Item) -> Item:
    """The part of an item that an index holds."""
    if index.projection.kind == "ALL":
        return item
    named = {*definition.keys, *index.hash, *index.range, *index.projection.attributes}
    return {name: attribute for name, attribute in item.items() if name in named}


def projected_size(definition: Definition, index: IndexDefinition, item: Item) -> int:
    return value.item_size(projected(definition, index, item))


# -- capacity


def units(plan: WritePlan, *, transactional: bool = False) -> Capacity:
    """The cost of a write in DynamoDB: the larger of the old and new item, and the same for each index whose entry
    changed; an entry that moves is deleted and put."""
    definition, old, new = plan.definition, plan.old, plan.new
    size_new = plan.size if new is not None else 0
    parts: dict[str, IndexCapacity] = {}
    for index in definition.indexes:
        before = None if old is None else entry_key(definition, index, old, plan.key)
        after = None if new is None else entry_key(definition, index, new, plan.key)
        held_before = None if before is None or old is None else projected(definition, index, old)
        held_after = None if after is None or new is None else projected(definition, index, new)
        cost = 0.0
        if before is not None and after is not None and before == after:
            if not value.same(held_before, held_after):
                assert held_before is not None and held_after is not None
                cost = write_units(max(value.item_size(held_before), value.item_size(held_after)), transactional)
        else:
            cost += 0.0 if held_before is None else write_units(value.item_size(held_before), transactional)
            cost += 0.0 if held_after is None else write_units(value.item_size(held_after), transactional)
        if cost:
            parts[index.name] = IndexCapacity(0.0, cost, index.local)
    return Capacity(definition.name, 0.0, write_units(max(plan.size_old, size_new), transactional), parts)


class WrittenItem(msgspec.Struct, frozen=True):
    """An item was written."""

    definition: Definition
    attributes: Item | None = None  # the requested attributes
    consumed: Capacity | None = None
    sequence: int | None = None  # of the change record, if there is one
