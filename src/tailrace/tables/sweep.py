"""Housekeeping of tables: expired items are deleted, new indexes filled, what was dropped is removed, tokens forgotten.

As for streams, each step is a small command of its own, so that writers wait for milliseconds at most, and can be
repeated or interrupted anywhere: the lists of work are in the database, and a step looks again before it acts. An item
whose time was put off since it was found is never deleted, an index entry is never added twice.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tailrace import failpoints, limits
from tailrace.access import Permission
from tailrace.command import Command, Query
from tailrace.storage.engine import Reader, Tx
from tailrace.tables import key as keys
from tailrace.tables import number, streams, value, write
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
    Index,
    IndexRow,
    ItemRow,
    counted,
    decoded,
    save,
)
from tailrace.tables.lifecycle import with_index

EXPIRED_S_MAX: Final = 5 * 365 * 24 * 3600  # what expired longer ago was meant otherwise and stays
Place = tuple[str | None, tuple[str, str] | None]  # a table, and a change stream's name and label
STEP_ITEMS: Final = 250  # items that one step deletes or adds to an index
STEP_ROWS: Final = 2_000  # rows of what was dropped that one step removes


class Due(msgspec.Struct, frozen=True):
    """Work found by looking at committed state."""

    steps: list[Command[bool]]  # each to be repeated until it answers that it is done
    expiries: list[ExpireItems]  # likewise
    trims: list[streams.TrimChanges]
    looked_at: Place | None  # go on after it; None: all was looked at
    more: bool  # there may be more than these

    def __bool__(self) -> bool:
        return bool(self.steps or self.expiries or self.trims)


class FindDue(Query[Due], frozen=True):
    """What there is to do. Of tables with expiry and of change streams only some, `after` others."""

    after: Place | None = None
    limit: int = 100

    def run(self, reader: Reader) -> Due:
        tables_after, streams_after = self.after or (None, None)
        fills = [row.space for row in reader.scan(BACKFILLS, limit=self.limit)]
        dropped = [row.space for row in reader.scan(DROPPED_SPACES, limit=self.limit)]
        steps: list[Command[bool]] = [Backfill(space) for space in fills]
        steps += [Purge(space) for space in dropped]
        if any(True for _ in reader.scan(TOKEN_AGES, before=reader.settled_ms - limits.TOKEN_S * 1000, limit=1)):
            steps.append(ForgetTokens())
        expiries = []
        rows = list(reader.scan(TABLES, after=tables_after, limit=limits.SWEEP_STREAMS))
        for row in rows:
            definition = decoded(row)
            if definition.ttl_space is not None and _expired(reader, definition, 1):
                expiries.append(ExpireItems(row.name))
        found = streams.find_due(reader, streams_after, limits.SWEEP_STREAMS)
        trims = [streams.TrimChanges(name, label) for name, label in found.due]
        last = rows[-1].name if len(rows) == limits.SWEEP_STREAMS else None
        looked_at = None if last is None and found.looked_at is None else (last, found.looked_at)
        return Due(steps, expiries, trims, looked_at, max(len(fills), len(dropped)) == self.limit)


# -- expiry


def _expired(reader: Reader | Tx, definition: Definition, limit: int) -> list[IndexRow]:
    """The first items whose time has come."""
    now_s = reader.settled_ms // 1000
    since = number.ordered(str(max(0, now_s - EXPIRED_S_MAX)))
    until = keys.successor(number.ordered(str(now_s)))
    return list(reader.scan(INDEX_ENTRIES, definition.ttl_space, start=since, before=until, limit=limit))


class Expired(msgspec.Struct, frozen=True):
    """What one step of expiry did."""

    items: int  # how many were deleted
    done: bool  # all that were due are gone


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
        found = _expired(tx, definition, STEP_ITEMS)
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
                tx.delete(INDEX_ENTRIES, entry.space, entry.key)  # it is not its item's, and the item stays
        return Expired(deleted, done=len(found) < STEP_ITEMS)


# -- new indexes


class Backfill(Command[bool], frozen=True):
    """Add some of the items that were there before an index, or an order of expiry, to it; whether all are in now."""

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
        items, more = _step(tx, definition.space, work.after)
        index = next((index for index in definition.indexes if index.space == self.space), None)
        if index is not None:
            _add(tx, definition, index, items)
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


def _step(tx: Tx, space: int, after: bytes) -> tuple[list[ItemRow], bool]:
    """The next items, not too many and not too large together, and whether there may be more."""
    start = after + b"\0"  # the least key above it
    sizes = tx.values(ITEMS, "size", space, start=start, limit=STEP_ITEMS)
    count = _affordable(sizes)
    items = list(tx.scan(ITEMS, space, start=start, limit=count)) if count else []
    return items, count < len(sizes) or len(sizes) == STEP_ITEMS


def _add(tx: Tx, definition: Definition, index: Index, rows: list[ItemRow]) -> None:
    """Items that do not fit the index are passed over, as are those that were written since it was made."""
    items = size = 0
    for row in rows:
        item = value.decode(row.body)
        place = write.place(definition, index, item, row.key)
        if place is not None and tx.get(INDEX_ENTRIES, index.space, place) is None:
            tx.put(INDEX_ENTRIES, IndexRow(index.space, place, row.key))
            items += 1
            size += write.projected_size(definition, index, item)
    if items:
        count = counted(tx, index.space)
        tx.put(COUNTS, CountRow(index.space, count.items + items, count.bytes + size))


def _add_expiry(tx: Tx, definition: Definition, rows: list[ItemRow]) -> None:
    assert definition.ttl_space is not None
    for row in rows:
        expiry = write.expiry(definition, value.decode(row.body), row.key)
        if expiry is not None:
            tx.put(INDEX_ENTRIES, IndexRow(definition.ttl_space, expiry, row.key))


# -- what was dropped


class Purge(Command[bool], frozen=True):
    """Remove some of what a dropped table or index left behind; whether all is gone."""

    freeing = True
    permission = Permission.ADMIN

    space: int

    def run(self, tx: Tx) -> bool:
        failpoints.hit("sweep.step")
        if tx.get(DROPPED_SPACES, self.space) is None:
            return True
        sizes = tx.values(ITEMS, "size", self.space, limit=STEP_ROWS)
        if sizes:
            tx.remove_range(ITEMS, self.space, limit=_affordable(sizes))
            return False
        if tx.remove_range(INDEX_ENTRIES, self.space, limit=STEP_ROWS) == STEP_ROWS:
            return False
        tx.delete(DROPPED_SPACES, self.space)
        return True


def _affordable(sizes: list[tuple[Any, ...]]) -> int:
    """How many items one step takes on: at least one, then as many as are not too large together."""
    count, left = 0, limits.SWEEP_BYTES
    for (size,) in sizes:
        left -= size
        if count and left < 0:
            break
        count += 1
    return count


# -- tokens


class ForgetTokens(Command[bool], frozen=True):
    """Forget some client request tokens that are too old to be repeated; whether all of those are forgotten."""

    freeing = True
    permission = Permission.ADMIN

    def run(self, tx: Tx) -> bool:
        failpoints.hit("sweep.step")
        old = list(tx.scan(TOKEN_AGES, before=tx.settled_ms - limits.TOKEN_S * 1000, limit=STEP_ROWS))
        for age in old:
            token = tx.get(TOKENS, age.token)
            if token is not None and token.at_ms == age.at_ms:
                tx.delete(TOKENS, age.token)
            tx.delete(TOKEN_AGES, age.at_ms, age.token)
        return len(old) < STEP_ROWS
