"""Housekeeping of tables: expired items are deleted, new indexes filled, dropped tables removed, tokens forgotten.

Each step is a small command of its own, so that writers wait for milliseconds at most, and can be repeated or
interrupted anywhere: the lists of work are in the database, and each step checks again before it acts. An item whose
TTL was postponed after it was found is not deleted, and an index entry is never added twice.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tailrace import failpoints, limits
from tailrace.access import Permission
from tailrace.command import Command
from tailrace.errors import Invalid
from tailrace.housekeeping import DueWork, HousekeepingTask
from tailrace.metrics import Metrics
from tailrace.storage.engine import Reader, Tx
from tailrace.tables import change_trimming, number, value, write
from tailrace.tables import key as keys
from tailrace.tables.change_stream import CHANGE_STREAMS, ChangeStream
from tailrace.tables.definition import (
    ACTIVE,
    BACKFILLS,
    COUNTS,
    DROPPED_SPACES,
    INDEX_ENTRIES,
    ITEMS,
    TABLES,
    TOKEN_AGES,
    TOKENS,
    BackfillRow,
    CountRow,
    Definition,
    IndexDefinition,
    IndexRow,
    ItemRow,
    counted,
    decoded,
    save,
)
from tailrace.tables.lifecycle import with_index

# -- expiry


def _expired(reader: Reader | Tx, definition: Definition, limit: int) -> list[IndexRow]:
    """The first expired items, as entries of the expiry order."""
    now_s = reader.settled_ms // 1000
    since = number.ordered(str(max(0, now_s - limits.EXPIRED_ITEM_S_MAX)))
    until = keys.successor(number.ordered(str(now_s)))
    return list(reader.scan(INDEX_ENTRIES, definition.ttl_space, start=since, before=until, limit=limit))


class Expired(msgspec.Struct, frozen=True):
    """The outcome of one step of expiry."""

    items: int  # deleted
    done: bool  # no more are due


class ExpireItems(Command[Expired], frozen=True):
    """Delete some of a table's expired items, as the TTL service."""

    freeing = True
    permission = Permission.ADMIN

    name: str

    def run(self, tx: Tx) -> Expired:
        failpoints.hit("sweep.step")
        row = tx.get(TABLES, self.name)
        definition = None if row is None else decoded(row)
        if definition is None or definition.ttl_space is None:
            return Expired(0, done=True)
        deleted, left = 0, limits.SWEEP_BYTES
        found = _expired(tx, definition, limits.SWEEP_ITEMS)
        for entry in found:
            item = tx.get(ITEMS, definition.space, entry.item)
            left -= 0 if item is None else item.size
            if deleted and left < 0:
                return Expired(deleted, done=False)
            expiry = None if item is None else write.expiry(definition, value.decode(item.body), entry.item)
            if expiry == entry.key:
                write.remove(tx, definition, entry.item)
                deleted += 1
            else:
                tx.delete(INDEX_ENTRIES, entry.space, entry.key)  # the item has another TTL by now, and stays
        return Expired(deleted, done=len(found) < limits.SWEEP_ITEMS)


# -- new indexes


class BackfillIndex(Command[bool], frozen=True):
    """Add some existing items to a new index, or to a new expiry order; True when all are in it."""

    permission = Permission.ADMIN

    space: int

    def run(self, tx: Tx) -> bool:
        failpoints.hit("sweep.step")
        work = tx.get(BACKFILLS, self.space)
        if work is None:
            return True  # the index was dropped
        row = tx.get(TABLES, work.owner)
        assert row is not None, f"backfill of a table {work.owner!r} that does not exist"
        definition = decoded(row)
        items, more = next_items(tx, definition.space, work.after)
        index = next((index for index in definition.indexes if index.space == self.space), None)
        if index is not None:
            if not _add(tx, definition, index, items) and not index.partial:
                index = msgspec.structs.replace(index, partial=True)
                definition = with_index(definition, index)
                save(tx, definition)
        else:
            assert definition.ttl_space == self.space, f"backfill of space {self.space}, which is no index's"
            _add_expiry(tx, definition, items)
        if more:
            tx.put(BACKFILLS, BackfillRow(self.space, work.owner, items[-1].key))
            return False
        tx.delete(BACKFILLS, self.space)
        if index is not None:
            save(tx, with_index(definition, msgspec.structs.replace(index, status=ACTIVE)))
        return True


def next_items(tx: Tx, space: int, after: bytes) -> tuple[list[ItemRow], bool]:
    """The next items, limited by number and total size, and whether there may be more."""
    start = after + b"\0"  # the least key above it
    sizes = tx.values(ITEMS, "size", space, start=start, limit=limits.SWEEP_ITEMS)
    count = _affordable(sizes)
    items = list(tx.scan(ITEMS, space, start=start, limit=count)) if count else []
    return items, count < len(sizes) or len(sizes) == limits.SWEEP_ITEMS


def _add(tx: Tx, definition: Definition, index: IndexDefinition, rows: list[ItemRow]) -> bool:
    """Skips items without the index's key attributes, and items written since the index was created. False: an item has
    such an attribute, but it does not fit the index."""
    items = size = 0
    fits = True
    for row in rows:
        item = value.decode(row.body)
        try:
            key = keys.index_key(definition, index, item, row.key)
        except Invalid:
            fits = False
            continue
        if key is not None and tx.get(INDEX_ENTRIES, index.space, key) is None:
            tx.put(INDEX_ENTRIES, IndexRow(index.space, key, row.key))
            items += 1
            size += write.projected_size(definition, index, item)
    if items:
        count = counted(tx, index.space)
        tx.put(COUNTS, CountRow(index.space, count.items + items, count.bytes + size))
    return fits


def _add_expiry(tx: Tx, definition: Definition, rows: list[ItemRow]) -> None:
    assert definition.ttl_space is not None
    for row in rows:
        expiry = write.expiry(definition, value.decode(row.body), row.key)
        if expiry is not None:
            tx.put(INDEX_ENTRIES, IndexRow(definition.ttl_space, expiry, row.key))


# -- dropped tables and indexes


class PurgeSpace(Command[bool], frozen=True):
    """Remove some rows of a dropped table or index; True when none are left."""

    freeing = True
    permission = Permission.ADMIN

    space: int

    def run(self, tx: Tx) -> bool:
        failpoints.hit("sweep.step")
        if tx.get(DROPPED_SPACES, self.space) is None:
            return True
        sizes = tx.values(ITEMS, "size", self.space, limit=limits.SWEEP_ROWS)
        if sizes:
            tx.remove_range(ITEMS, self.space, limit=_affordable(sizes))
            return False
        if tx.remove_range(INDEX_ENTRIES, self.space, limit=limits.SWEEP_ROWS) == limits.SWEEP_ROWS:
            return False
        tx.delete(DROPPED_SPACES, self.space)
        return True


def _affordable(sizes: list[tuple[Any, ...]]) -> int:
    """The number of items for one step: at least one, then as many as fit SWEEP_BYTES."""
    count, left = 0, limits.SWEEP_BYTES
    for (size,) in sizes:
        left -= size
        if count and left < 0:
            break
        count += 1
    return count


# -- tokens


class ForgetTokens(Command[bool], frozen=True):
    """Forget some client request tokens that are too old to be repeated; True when none are left."""

    freeing = True
    permission = Permission.ADMIN

    def run(self, tx: Tx) -> bool:
        failpoints.hit("sweep.step")
        old = list(tx.scan(TOKEN_AGES, before=tx.settled_ms - limits.TOKEN_S * 1000, limit=limits.SWEEP_ROWS))
        for age in old:
            token = tx.get(TOKENS, age.token)
            if token is not None and token.at_ms == age.at_ms:
                tx.delete(TOKENS, age.token)
            tx.delete(TOKEN_AGES, age.at_ms, age.token)
        return len(old) < limits.SWEEP_ROWS


# -- tasks


def _find_backfills(reader: Reader, position: None) -> DueWork[bool]:
    rows = list(reader.scan(BACKFILLS, limit=limits.SWEEP_DUE))
    spaces = [row.space for row in rows if not is_of_route(reader, row)]
    return DueWork([BackfillIndex(space) for space in spaces], more=bool(spaces) and len(rows) == limits.SWEEP_DUE)


def is_of_route(reader: Reader, row: BackfillRow) -> bool:
    """Whether a backfill is that of a route to a topic, not of an index."""
    table = reader.get(TABLES, row.owner)
    return table is not None and any(route.backfill == row.space for route in decoded(table).backfilled)


def _find_dropped(reader: Reader, position: None) -> DueWork[bool]:
    spaces = [row.space for row in reader.scan(DROPPED_SPACES, limit=limits.SWEEP_DUE)]
    return DueWork([PurgeSpace(space) for space in spaces], more=len(spaces) == limits.SWEEP_DUE)


def _find_tokens(reader: Reader, position: None) -> DueWork[bool]:
    due = any(True for _ in reader.scan(TOKEN_AGES, before=reader.settled_ms - limits.TOKEN_S * 1000, limit=1))
    return DueWork([ForgetTokens()] if due else [])


def _find_expired(reader: Reader, after: str | None) -> DueWork[Expired]:
    """A page of the tables: examining all of them takes long."""
    rows = list(reader.scan(TABLES, after=after, limit=limits.SWEEP_STREAMS))
    due = []
    for row in rows:
        definition = decoded(row)
        if definition.ttl_space is not None and _expired(reader, definition, 1):
            due.append(ExpireItems(row.name))
    return DueWork(due, rows[-1].name if len(rows) == limits.SWEEP_STREAMS else None)


def _find_trims(reader: Reader, after: tuple[str, str] | None) -> DueWork[int]:
    """A page of the change streams, in order of table and label."""
    rows: list[ChangeStream]
    if after is None:
        rows = list(reader.scan(CHANGE_STREAMS, limit=limits.SWEEP_STREAMS))
    else:
        rows = list(reader.scan(CHANGE_STREAMS, after[0], after=after[1], limit=limits.SWEEP_STREAMS))
        if len(rows) < limits.SWEEP_STREAMS:
            rows += reader.scan(CHANGE_STREAMS, after=after[0], limit=limits.SWEEP_STREAMS - len(rows))
    due = [change_trimming.TrimChanges(row.name, row.label) for row in rows if change_trimming.is_due(reader, row)]
    return DueWork(due, (rows[-1].name, rows[-1].label) if len(rows) == limits.SWEEP_STREAMS else None)


def _count_expired(metrics: Metrics, expired: Expired) -> None:
    metrics.items_expired += expired.items


def _count_trimmed(metrics: Metrics, records: int) -> None:
    metrics.trimmed += 1


TASKS = (
    HousekeepingTask("tables.backfill", _find_backfills, finished=bool),
    HousekeepingTask("tables.purge", _find_dropped, finished=bool),
    HousekeepingTask("tables.tokens", _find_tokens, finished=bool),
    HousekeepingTask("tables.expire", _find_expired, finished=lambda expired: expired.done, count=_count_expired),
    HousekeepingTask("tables.trim", _find_trims, count=_count_trimmed),
)
