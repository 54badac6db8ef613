"""Copies of tables: their rows, and what a write to a table that is being copied does. `copying.py` makes them."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from tailrace.storage.engine import Reader, Tx
from tailrace.storage.table import StorageTable
from tailrace.tables.definition import INDEX_ENTRIES, ITEMS, Definition, IndexRow, ItemRow, add_count

BACKUP: Final = "backup"
RESTORE: Final = "restore"
EXPORT: Final = "export"
IMPORT: Final = "import"
COPYING: Final = "copying"
UNDOING: Final = "undoing"
GATHERING: Final = "gathering"  # of an incremental export: the changes
FILLING: Final = "filling"  # of an import: by `transfers/`
AVAILABLE: Final = "available"


class CopyDetails(msgspec.Struct, frozen=True):
    """What a copy is of, and for what."""

    definition: Definition  # of the source; of a restore, that of the table to be
    source: str  # the name of the source
    source_uuid: str
    source_created_ms: int
    at_ms: int  # the moment of the copy
    backup: str | None = None  # the id of the backup that is made or restored
    label: str | None = None  # of the change stream that is undone
    changes: tuple[int, int] | None = None  # of an incremental export: the positions of its changes


class GatheredChange(msgspec.Struct, frozen=True, array_like=True):
    """What happened to an item between two moments; the item at the end is in the copy."""

    at_ms: int  # of the last change
    keys: msgspec.Raw
    old: msgspec.Raw  # the item at the begin, or `change.NO_IMAGE`


class CopyRow(msgspec.Struct, frozen=True):
    space: int  # of the items of the copy
    kind: str  # BACKUP, RESTORE, EXPORT or IMPORT
    name: str  # of the backup or the table to be, or the id of the export
    phase: str
    source: int  # the space that is copied
    after: bytes  # the last key that the walk has copied
    # The space of marks: items that were inserted meanwhile, or keys whose changes are undone. Of an incremental export
    # that gathers its changes, or has, that of the changes.
    marks: int
    position: int  # UNDOING: the next entry of the change stream
    until: int  # and where its changes end
    created_ms: int
    details: bytes

    @property
    def facts(self) -> CopyDetails:
        return _decoder.decode(self.details)


COPIES = StorageTable("copies", CopyRow, key=("space",))
encode_details: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(CopyDetails)


class CopiedWrite(Protocol):
    """A write to a table that is being copied."""

    @property
    def definition(self) -> Definition: ...
    @property
    def key(self) -> bytes: ...
    @property
    def row(self) -> ItemRow | None: ...


def restored(reader: Reader | Tx, name: str) -> CopyRow | None:
    """The restore or import of a table that is under way."""
    return next((row for row in reader.scan(COPIES) if row.kind in (RESTORE, IMPORT) and row.name == name), None)


def keep_old(tx: Tx, plan: CopiedWrite) -> None:
    """An item is about to be written: copy it as it is, unless the walk has passed it. What a transaction only tries is
    not copied: its commit is."""
    if tx.tentative:
        return
    for space in plan.definition.copies:
        copy = tx.get(COPIES, space)
        assert copy is not None, f"table {plan.definition.name!r} is copied to space {space}, which is not listed"
        if plan.key <= copy.after or has_item(tx, copy, plan.key):
            continue
        if plan.row is None:
            tx.put(INDEX_ENTRIES, IndexRow(copy.marks, plan.key, plan.key))
        else:
            tx.put(ITEMS, ItemRow(space, plan.key, plan.row.size, plan.row.body))
            add_count(tx, space, 1, plan.row.size)


def has_item(tx: Tx, copy: CopyRow, key: bytes) -> bool:
    return tx.get(ITEMS, copy.space, key) is not None or tx.get(INDEX_ENTRIES, copy.marks, key) is not None
