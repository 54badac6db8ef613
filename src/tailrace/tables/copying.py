"""Copies of tables, made in small steps while the tables are in use: backups, exports, and tables that are restored.

Theory of operation
-------------------
A copy has a space of its own, and is that of one commit: the one that begins it. Housekeeping walks through the source
in the order of keys and copies the items; `after` is how far it has come. An item beyond that which is written
meanwhile is copied by that write, as it was before (`keep_old`), and the walk passes over it. An item that is inserted
meanwhile is marked, so that the walk passes over it as well. So the copy has every item as it was when the copy was
begun, and needs neither a long transaction nor memory; a step that was interrupted is repeated.

To restore a table to an earlier moment, its changes since then are undone in the copy (UNDOING): the first old image of
a key after that moment is its item at that moment. The table appears when it is complete, and its indexes are filled
like those of any table that gets a new one.

An export is such a copy too, which is written to a bucket when it is complete (`transfers/`). For an incremental one
the changes of its time are gathered then (GATHERING): of each key the first old image, and the time of the last change.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from tailrace import failpoints, limits
from tailrace.access import Permission
from tailrace.command import Command
from tailrace.errors import Gone, NotFound
from tailrace.housekeeping import DueWork, HousekeepingTask
from tailrace.log.tail import HOUSEKEEPING, TRANSFERS_DUE
from tailrace.storage.engine import Reader, Tx
from tailrace.tables import change, value
from tailrace.tables import key as keys
from tailrace.tables.change_reading import entries_from, position_after
from tailrace.tables.change_stream import find_stream, log_of
from tailrace.tables.copies import (
    AVAILABLE,
    COPIES,
    COPYING,
    EXPORT,
    FILLING,
    GATHERING,
    RESTORE,
    UNDOING,
    CopyDetails,
    CopyRow,
    GatheredChange,
    encode_details,
    has_item,
)
from tailrace.tables.definition import (
    ACTIVE,
    BACKFILLS,
    CREATING,
    INDEX_ENTRIES,
    ITEMS,
    TABLES,
    BackfillRow,
    Definition,
    IndexRow,
    ItemRow,
    add_count,
    counted,
    decoded,
    save,
)
from tailrace.tables.lifecycle import drop_space, new_space
from tailrace.tables.sweep import next_items

_log = logging.getLogger("tailrace.tables")
gathered: Final = msgspec.msgpack.Decoder(GatheredChange).decode


def begin(
    tx: Tx, kind: str, name: str, source: int, details: CopyDetails, live: Definition | None, position: int = 0
) -> CopyRow:
    """Begin a copy of a space; `live` is the table that it belongs to, if that may change meanwhile. `position`: where
    the changes begin that are undone afterwards."""
    space, until = new_space(tx), 0
    if live is not None:
        save(tx, msgspec.structs.replace(live, copies=(*live.copies, space)))
        if details.label is not None:
            until = log_of(tx, find_stream(tx, live.name, details.label)).next
    row = CopyRow(
        space, kind, name, COPYING, source, b"", new_space(tx), position, until, tx.now_ms, encode_details(details)
    )
    tx.put(COPIES, row)
    tx.notify(HOUSEKEEPING, None)
    return row


# -- steps


class ContinueCopy(Command[bool], frozen=True):
    """Do the next step of a copy; True when it is complete, or was given up."""

    history = True
    permission = Permission.ADMIN

    space: int

    def run(self, tx: Tx) -> bool:
        failpoints.hit("sweep.step")
        copy = tx.get(COPIES, self.space)
        if copy is None or copy.phase in (AVAILABLE, FILLING):
            return True
        if copy.phase == GATHERING:
            return _gather(tx, copy)
        return _walk(tx, copy) if copy.phase == COPYING else _undo(tx, copy)


def _walk(tx: Tx, copy: CopyRow) -> bool:
    items, more = next_items(tx, copy.source, copy.after)
    live = _live(tx, copy)
    size = count = 0
    for row in items:
        if live is None or not has_item(tx, copy, row.key):
            tx.put(ITEMS, ItemRow(copy.space, row.key, row.size, row.body))
            count, size = count + 1, size + row.size
    if count:
        add_count(tx, copy.space, count, size)
    if more:
        tx.put(COPIES, msgspec.structs.replace(copy, after=items[-1].key))
        return False
    if live is not None:
        left = tuple(space for space in live.copies if space != copy.space)
        save(tx, msgspec.structs.replace(live, copies=left))
    drop_space(tx, copy.marks)
    if copy.until > copy.position:  # not of a backup
        tx.put(COPIES, msgspec.structs.replace(copy, phase=UNDOING, marks=new_space(tx)))
        return False
    return _complete(tx, copy)


def _complete(tx: Tx, copy: CopyRow) -> bool:
    """The copy is that of its moment; whether nothing is left to be done."""
    if copy.kind == RESTORE:
        finish(tx, copy)
        return True
    changes = copy.facts.changes
    if changes is not None:
        gathering = msgspec.structs.replace(
            copy, phase=GATHERING, marks=new_space(tx), position=changes[0], until=changes[1]
        )
        tx.put(COPIES, gathering)
        return False
    tx.put(COPIES, msgspec.structs.replace(copy, phase=AVAILABLE, marks=0))
    if copy.kind == EXPORT:
        tx.notify(TRANSFERS_DUE, None)
    return True


def _live(tx: Tx, copy: CopyRow) -> Definition | None:
    """The table whose items are copied while it is in use."""
    row = tx.get(TABLES, copy.facts.source)
    definition = None if row is None else decoded(row)
    return definition if definition is not None and copy.space in definition.copies else None


def _undo(tx: Tx, copy: CopyRow) -> bool:
    """Undo some changes of the source since the moment that is restored, in their order."""
    definition = copy.facts.definition
    read = _changes(tx, copy)
    if read is None:
        return True
    entries, position = read
    for _, records in entries:
        for record in records:
            _undo_record(tx, copy, definition, bytes(record.keys), bytes(record.old))
    if position < copy.until:
        tx.put(COPIES, msgspec.structs.replace(copy, position=position))
        return False
    drop_space(tx, copy.marks)
    return _complete(tx, copy)


def _changes(tx: Tx, copy: CopyRow) -> tuple[list[tuple[int, list[change.SkimmedRecord]]], int] | None:
    """The times and records of the next changes, and the position after them. None: they are no longer retained, and
    the copy was given up."""
    details = copy.facts
    try:
        stream = find_stream(tx, details.source, details.label)
        position = position_after(tx, stream, log_of(tx, stream), copy.position - 1)
    except (Gone, NotFound) as error:
        _log.error("%s of %r failed: the changes are no longer retained: %s", copy.kind, copy.name, error)
        give_up(tx, copy)
        if copy.kind == EXPORT:
            tx.notify(TRANSFERS_DUE, None)
        return None
    entries: list[tuple[int, list[change.SkimmedRecord]]] = []
    count, bytes_left = 0, limits.SWEEP_BYTES
    for entry in entries_from(tx, log_of(tx, stream), position):
        if entry.position >= copy.until or count >= limits.SWEEP_ITEMS or bytes_left <= 0:
            break
        records = change.skimmed_records(entry.body).records
        entries.append((entry.at_ms, records))
        count, bytes_left = count + len(records), bytes_left - len(entry.body)
        position = entry.next
    return entries, position if entries else copy.until


def _gather(tx: Tx, copy: CopyRow) -> bool:
    """Gather some changes of an incremental export: the first old image of each key."""
    definition = copy.facts.definition
    read = _changes(tx, copy)
    if read is None:
        return True
    entries, position = read
    for at_ms, records in entries:
        for record in records:
            key = keys.key_of(definition, value.decode(bytes(record.keys)))
            known = tx.get(ITEMS, copy.marks, key)
            old = record.old if known is None else gathered(known.body).old
            body = value.encode(GatheredChange(at_ms, record.keys, old))
            tx.put(ITEMS, ItemRow(copy.marks, key, len(body), body))
    if position < copy.until:
        tx.put(COPIES, msgspec.structs.replace(copy, position=position))
        return False
    tx.put(COPIES, msgspec.structs.replace(copy, phase=AVAILABLE))
    tx.notify(TRANSFERS_DUE, None)
    return True


def _undo_record(tx: Tx, copy: CopyRow, definition: Definition, attributes: bytes, image: bytes) -> None:
    key = keys.key_of(definition, value.decode(attributes))
    if tx.get(INDEX_ENTRIES, copy.marks, key) is not None:
        return
    tx.put(INDEX_ENTRIES, IndexRow(copy.marks, key, key))
    present = tx.get(ITEMS, copy.space, key)
    if present is not None:
        tx.delete(ITEMS, copy.space, key)
        add_count(tx, copy.space, -1, -present.size)
    if image != change.NO_IMAGE:
        size = value.item_size(value.decode(image))
        tx.put(ITEMS, ItemRow(copy.space, key, size, image))
        add_count(tx, copy.space, 1, size)


def finish(tx: Tx, copy: CopyRow) -> None:
    """The copy is complete: it becomes a table."""
    definition = copy.facts.definition
    filled = counted(tx, copy.space).items > 0
    indexes = tuple(
        msgspec.structs.replace(index, space=new_space(tx), status=CREATING if filled else ACTIVE)
        for index in definition.indexes
    )
    made = msgspec.structs.replace(definition, space=copy.space, created_ms=tx.now_ms, indexes=indexes)
    save(tx, made)
    if filled:
        for index in indexes:
            tx.put(BACKFILLS, BackfillRow(index.space, made.name, b""))
        tx.notify(HOUSEKEEPING, None)
    tx.delete(COPIES, copy.space)


def give_up(tx: Tx, copy: CopyRow) -> None:
    """Remove a copy, complete or not."""
    live = _live(tx, copy)
    if live is not None:
        left = tuple(space for space in live.copies if space != copy.space)
        save(tx, msgspec.structs.replace(live, copies=left))
    tx.delete(COPIES, copy.space)
    drop_space(tx, copy.space)
    if copy.marks:
        drop_space(tx, copy.marks)


def find_due(reader: Reader, position: None) -> DueWork[bool]:
    """The copies that are not complete."""
    spaces = [row.space for row in reader.scan(COPIES) if row.phase not in (AVAILABLE, FILLING)]
    return DueWork([ContinueCopy(space) for space in spaces[: limits.SWEEP_DUE]], more=len(spaces) > limits.SWEEP_DUE)


TASKS: Final = (HousekeepingTask("tables.copy", find_due, finished=bool),)
