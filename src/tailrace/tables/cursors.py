"""Named cursors: the positions of consumers in a change stream, and their lag.

How cursors hold back retention is in `retention`."""

from __future__ import annotations

import msgspec

from tailrace import limits
from tailrace.command import Command, Query
from tailrace.errors import Invalid, LimitExceeded
from tailrace.log import cold
from tailrace.log.entry import Log
from tailrace.storage.engine import Reader, Tx
from tailrace.tables import retention, value
from tailrace.tables.change_reading import position_after
from tailrace.tables.change_stream import find_stream, log_of, whole
from tailrace.tables.retention import CHANGE_CURSORS, ChangeCursor, Lag


class CursorStatus(msgspec.Struct, frozen=True):
    """A named cursor and its lag."""

    name: str
    after: int  # the last sequence that it has seen
    at_ms: int
    hold_bytes: int
    lost: int  # records trimmed before it reached them, since it was created
    cut_off: bool  # its next record was trimmed: reading after `after` raises Trimmed
    lag: Lag


class SaveCursor(Command[CursorStatus], frozen=True):
    """Save a cursor: `name` has seen everything up to the sequence `after`, and retention keeps the rest for it."""

    history = True
    subject = ("tables", "table")
    table: str
    name: str
    after: int
    hold_bytes: int | None = None  # None: as before, or HOLD_BYTES
    label: str | None = None

    def run(self, tx: Tx) -> CursorStatus:
        size = len(value.check_text(self.name, "a cursor's name").encode())
        if not 1 <= size <= limits.CURSOR_NAME_BYTES_MAX:
            raise Invalid(f"a cursor's name has 1 to {limits.CURSOR_NAME_BYTES_MAX} bytes, not {size}")
        if self.hold_bytes is not None and not whole(self.hold_bytes, 0, limits.HOLD_BYTES_MAX):
            raise Invalid(
                f"hold_bytes {self.hold_bytes!r} is not from 0 to {limits.HOLD_BYTES_MAX}; use 0 to hold nothing back"
            )
        stream = find_stream(tx, self.table, self.label)
        log = log_of(tx, stream)
        position = position_after(tx, stream, log, self.after)
        known = tx.get(CHANGE_CURSORS, log.id, self.name)
        most = limits.CURSORS_MAX
        if known is None and len(list(tx.scan(CHANGE_CURSORS, log.id, limit=most))) >= most:
            raise LimitExceeded(f"the stream has {most} cursors already; drop one that is no longer used")
        hold = self.hold_bytes if self.hold_bytes is not None else known.hold_bytes if known else limits.HOLD_BYTES
        cursor = ChangeCursor(log.id, self.name, position, tx.now_ms, hold, known.lost if known else 0)
        tx.put(CHANGE_CURSORS, cursor)
        return _cursor(tx, log, cursor)


class DropCursor(Command[bool], frozen=True):
    """Drop a cursor; True if it existed."""

    freeing = True
    subject = ("tables", "table")
    table: str
    name: str
    label: str | None = None

    def run(self, tx: Tx) -> bool:
        stream = find_stream(tx, self.table, self.label)
        known = tx.get(CHANGE_CURSORS, stream.log, self.name) is not None
        if known:
            tx.delete(CHANGE_CURSORS, stream.log, self.name)
        return known


class ListCursors(Query[list[CursorStatus]], frozen=True):
    """All cursors of a stream, by name."""

    subject = ("tables", "table")
    table: str
    label: str | None = None

    def run(self, reader: Reader) -> list[CursorStatus]:
        stream = find_stream(reader, self.table, self.label)
        log = log_of(reader, stream)
        return [_cursor(reader, log, row) for row in list(reader.scan(CHANGE_CURSORS, log.id))]


def _cursor(reader: Reader | Tx, log: Log, row: ChangeCursor) -> CursorStatus:
    return CursorStatus(
        row.name, row.position - 1, row.at_ms, row.hold_bytes, row.lost, row.position < cold.earliest(reader, log),
        retention.lag(reader, log, row.position),
    )  # fmt: skip
