"""Writing one item: the item, its index entries, the counts and the change record, in one transaction.

A write is planned before it is applied: `WritePlan` holds the old and the new item. A transaction plans all of its
actions, and applies them only if no plan failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, TypeAlias

import msgspec

from tailrace import failpoints, limits
from tailrace.errors import Invalid
from tailrace.storage.engine import Tx
from tailrace.tables import constraints, value
from tailrace.tables import key as keys
from tailrace.tables.capacity import Capacity, IndexCapacity, write_units
from tailrace.tables.change import TTL, Capture, StoredRecord, append, made
from tailrace.tables.copies import keep_old
from tailrace.tables.definition import (
    ACTIVE,
    INDEX_ENTRIES,
    ITEMS,
    Definition,
    IndexDefinition,
    IndexRow,
    ItemRow,
    add_count,
)
from tailrace.tables.value import Item

INSERT: Final = 0
MODIFY: Final = 1
REMOVE: Final = 2
# A write in its stored form: the key, the key's attributes encoded, the size, and the item encoded; to delete: -1, and
# nothing. Not a class: objects of very many rows that the garbage collector tracks would take half of the time.
EncodedWrite: TypeAlias = tuple[bytes, bytes, int, bytes]
LOOKUPS: Final = 100  # items that are looked up at once; they may be large
RECORDS: Final = 1_000  # of changes that share a sequence, where very many items are written
RECORD_BYTES: Final = 1 * limits.MiB  # and about how large they are together
_NONE: Final = (b"", 0)


class WritePlan:
    """The old item (`row`, `old`) and the new one (`new`; None: deleted)."""

    __slots__ = ("_old", "definition", "key", "keys", "lenient", "new", "row", "size")

    def __init__(self, definition: Definition, key: bytes, attributes: Item, row: ItemRow | None) -> None:
        self.definition = definition
        self.key = key
        self.keys = attributes  # an item that has at least the key's attributes
        self.row = row
        self.new: Item | None = None
        self.size = 0
        self.lenient = False  # an index that the new item does not fit has no entry for it, as if it were created later
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


def do(tx: Tx, plan: WritePlan, capture: Capture, body: bytes | None = None) -> None:
    """Apply a plan; `capture.append` completes it. A write that changes nothing leaves no trace, not even a record.
    `body` is the new item, if it is encoded already."""
    definition, row, new = plan.definition, plan.row, plan.new
    if new is None:
        if row is None:
            return
        if tx.exports:
            _save(tx, plan)
        tx.delete(ITEMS, definition.space, plan.key)
        capture.count(definition.space, -1, -row.size)
        if not definition.plain:
            _move(tx, plan, capture)
        if definition.stream is not None:
            capture.add(definition, REMOVE, *_named(definition, plan.key, plan.keys), (row.body, row.size), _NONE)
        if definition.routes:
            _send(plan, REMOVE, capture)
        return
    if body is None:
        body = value.encode(new)
    if row is not None and (body == row.body or (value.alike(body, row.body) and value.same(plan.old, new))):
        return
    if not definition.plain:
        _move(tx, plan, capture)
    if tx.exports:
        _save(tx, plan)
    tx.put(ITEMS, ItemRow(definition.space, plan.key, plan.size, body))
    if row is None:
        capture.count(definition.space, 1, plan.size)
        if definition.stream is not None:
            capture.add(definition, INSERT, *_named(definition, plan.key, plan.keys), _NONE, (body, plan.size))
        if definition.routes:
            _send(plan, INSERT, capture)
    else:
        if plan.size != row.size:
            capture.count(definition.space, 0, plan.size - row.size)
        if definition.stream is not None:
            capture.add(
                definition, MODIFY, *_named(definition, plan.key, plan.keys), (row.body, row.size), (body, plan.size)
            )
        if definition.routes:
            _send(plan, MODIFY, capture)


def do_each(
    tx: Tx,
    definition: Definition,
    writes: Iterable[EncodedWrite],
    *,
    by: str | None = None,
    lenient: bool = False,
) -> None:
    """As plans and `do`, in this order, for many writes of one table. In the change stream they are transactions of
    about RECORDS records: one entry with all of them would be too large to read. Items are decoded only where an index,
    an expiry or a route needs their values. `by` is the principal, if it is not that of the transaction."""
    capture = Capture()
    bulk = PlainWrites.possible(tx, definition)
    remaining, held = iter(writes), 0
    while some := list(islice(remaining, LOOKUPS)):
        found = tx.get_each(ITEMS, (definition.space,), [write[0] for write in some])
        if bulk:
            _put_each(tx, definition, some, found, capture, by)
        else:
            _plan_each(tx, definition, some, found, capture, by, lenient)
        held += len(some)
        if held >= RECORDS:
            capture.append(tx, by)
            held = 0
            failpoints.hit("stages.part")
    capture.append(tx, by)


def _put_each(
    tx: Tx,
    definition: Definition,
    writes: Sequence[EncodedWrite],
    found: dict[bytes, ItemRow],
    capture: Capture,
    by: str | None,
) -> None:
    """Writes of which only the items, the counts and the records are affected."""
    space, recorded = definition.space, definition.stream is not None
    named_size = sum(map(len, definition.keys)) - keys.HEAD_BYTES
    changed: dict[tuple[int, bytes], ItemRow | None] = {}
    items = total = 0
    for key, named, size, body in writes:
        row = found.get(key)
        if size < 0:
            if row is None:
                continue
            del found[key]
            changed[space, key] = None
            items, total, event, new = items - 1, total - row.size, REMOVE, _NONE
        else:
            if row is None:
                items, event = items + 1, INSERT
                total += size
            elif body == row.body or (
                value.alike(body, row.body) and value.same(value.decode(row.body), value.decode(body))
            ):
                continue
            else:
                total, event = total + size - row.size, MODIFY
            changed[space, key] = found[key] = ItemRow(space, key, size, body)
            new = (body, size)
        if recorded:
            old = _NONE if row is None else (row.body, row.size)
            capture.add(definition, event, msgspec.Raw(named), named_size + len(key), old, new)
            if capture.bytes >= RECORD_BYTES:
                capture.append(tx, by)
    tx.put_each(ITEMS, changed)
    capture.count(space, items, total)


def _plan_each(
    tx: Tx,
    definition: Definition,
    writes: Sequence[EncodedWrite],
    found: dict[bytes, ItemRow],
    capture: Capture,
    by: str | None,
    lenient: bool,
) -> None:
    """Writes that also change indexes, or are routed to topics, or saved for exports."""
    for key, named, size, body in writes:
        new = value.decode(body) if size >= 0 else None
        plan = WritePlan(definition, key, value.decode(named) if new is None else new, found.get(key))
        plan.new, plan.size, plan.lenient = new, max(size, 0), lenient
        do(tx, plan, capture, body)
        now = tx.get(ITEMS, definition.space, key)  # a later write may have the same key
        if now is not None:
            found[key] = now
        else:
            found.pop(key, None)
        if capture.bytes >= RECORD_BYTES:
            capture.append(tx, by)


class PlainWrites:
    """Writes to one table of which only the items, the counts and the records are affected: applied at once, although
    they may be of several transactions. `keys`: those of all items, if they are known, to look them up together."""

    __slots__ = ("_changed", "_definition", "_found", "_items", "_records", "_size", "_tx", "bytes", "records_bytes")

    def __init__(self, tx: Tx, definition: Definition, keys: Sequence[bytes] | None = None) -> None:
        self.bytes = 0  # of the items, as they were and as they are to be
        self.records_bytes = 0
        self._tx = tx
        self._definition = definition
        self._found = None if keys is None else tx.get_each(ITEMS, (definition.space,), keys)
        self._changed: dict[tuple[int, bytes], ItemRow | None] = {}
        self._items = 0
        self._size = 0
        self._records: dict[int, list[StoredRecord]] = {}  # by the number of the transaction

    @staticmethod
    def possible(tx: Tx, definition: Definition) -> bool:
        """Whether writes to this table affect nothing else."""
        return definition.plain and not definition.routes and not tx.exports.get(definition.space)

    def put(self, key: bytes, item: Item, size: int, number: int) -> bool:
        """Put an item; whether that leaves a record in the transaction with this number."""
        definition, body = self._definition, value.encode(item)
        row = self._row(key)
        self.bytes += size
        if row is None:
            event, old = INSERT, _NONE
            self._items += 1
            self._size += size
        elif body == row.body or (value.alike(body, row.body) and value.same(value.decode(row.body), item)):
            return False
        else:
            event, old = MODIFY, (row.body, row.size)
            self._size += size - row.size
        self._changed[definition.space, key] = ItemRow(definition.space, key, size, body)
        return definition.stream is not None and self._record(number, event, key, item, old, (body, size))

    def delete(self, key: bytes, attributes: Item, number: int) -> bool:
        """Delete the item with this key, if there is one; as `put`."""
        row = self._row(key)
        if row is None:
            return False
        self._changed[self._definition.space, key] = None
        self._items -= 1
        self._size -= row.size
        return self._definition.stream is not None and self._record(
            number, REMOVE, key, attributes, (row.body, row.size), _NONE
        )

    def _row(self, key: bytes) -> ItemRow | None:
        place = (self._definition.space, key)
        if place in self._changed:
            row = self._changed[place]
        else:
            row = self._tx.get(ITEMS, *place) if self._found is None else self._found.get(key)
        if row is not None:
            self.bytes += row.size
        return row

    def _record(
        self, number: int, event: int, key: bytes, attributes: Item, old: tuple[bytes, int], new: tuple[bytes, int]
    ) -> bool:
        record = made(self._definition, event, *_named(self._definition, key, attributes), old, new)
        self.records_bytes += record.size
        self._records.setdefault(number, []).append(record)
        return True

    def apply(self, first: int) -> None:
        """Write everything; `first` is the sequence of the transaction with the number 0."""
        tx, definition = self._tx, self._definition
        tx.put_each(ITEMS, self._changed)
        if self._items or self._size:
            add_count(tx, definition.space, self._items, self._size)
        if self._records:
            assert definition.stream is not None
            recorded = [(first + number, records) for number, records in self._records.items()]
            append(tx, definition.stream.log, tx.by, recorded)


def _save(tx: Tx, plan: WritePlan) -> None:
    """Save the old image of the item for running exports, before it is written (`export.py`)."""
    for export in tx.exports.get(plan.definition.space, ()):
        export.save(plan.key, None if plan.row is None else plan.row.body)


def _send(plan: WritePlan, event: int, capture: Capture) -> None:
    if plan.definition.routes_of[event] or plan.definition.backfilled:
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


def _named(definition: Definition, key: bytes, attributes: Item) -> tuple[Item, int]:
    """The key's attributes and their size, for a record."""
    size = len(key) - keys.HEAD_BYTES + len(definition.hash)
    if definition.range is None:
        return {definition.hash: attributes[definition.hash]}, size
    named = {definition.hash: attributes[definition.hash], definition.range: attributes[definition.range]}
    return named, size + len(definition.range)


# -- indexes


def _move(tx: Tx, plan: WritePlan, capture: Capture) -> None:
    """Update the item's entries in each index, and in the expiry order."""
    definition, key, old, new = plan.definition, plan.key, plan.old, plan.new
    if definition.constrained and new is not None and not plan.lenient:
        constraints.check(definition, new)
    if definition.copies:
        keep_old(tx, plan)
    for index in definition.indexes:
        before = None if old is None else entry_key(definition, index, old, key)
        fitted = entry_key if plan.lenient else keys.index_key
        after = None if new is None else fitted(definition, index, new, key)
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
            capture.count(index.space, (after is not None) - (before is not None), size_after - size_before)
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
