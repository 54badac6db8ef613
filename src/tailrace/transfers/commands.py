"""The commands and queries of exports and imports: they begin one, record how far it has come, and end it."""

from __future__ import annotations

import secrets
from typing import Final

import msgspec

from tailrace import limits
from tailrace.access import Permission
from tailrace.command import Command, Query
from tailrace.errors import InUse, Invalid, LimitExceeded, NotFound
from tailrace.log.tail import TRANSFERS_DUE
from tailrace.storage.engine import Reader, Tx
from tailrace.tables import change_stream, copies, retention
from tailrace.tables.backups import check_target, earliest, source_of
from tailrace.tables.change_stream import log_of
from tailrace.tables.copies import COPIES, CopyDetails, CopyRow
from tailrace.tables.copying import begin, finish, give_up
from tailrace.tables.definition import ITEMS, Definition, ItemRow, add_count
from tailrace.tables.lifecycle import CreateTable
from tailrace.tables.schema import TableSpec, check_table
from tailrace.transfers.transfer import (
    COMPLETED,
    EXPORT,
    FAILED,
    IMPORT,
    IN_PROGRESS,
    INCREMENTAL,
    TRANSFERS,
    ExportDetails,
    ExportedFile,
    ImportDetails,
    TransferRow,
    encode_details,
)

_EXCEPTIONS: Final = {EXPORT: ("ExportConflictException", "Export"), IMPORT: ("ImportConflictException", "Import")}


def _known(tx: Tx, kind: str, token: str, digest: bytes) -> TransferRow | None:
    """The transfer that was begun with the same token, if it is remembered."""
    since_ms = tx.now_ms - limits.TRANSFER_TOKEN_S * 1000
    for row in tx.scan(TRANSFERS):
        if row.kind == kind and row.token == token and row.created_ms >= since_ms:
            if row.digest != digest:
                raise InUse(
                    f"the client token {token[:64]!r} was used for another {kind} in the last eight hours",
                    code=_EXCEPTIONS[kind][0],
                )
            return row
    return None


def _add(tx: Tx, row: TransferRow) -> TransferRow:
    known = list(tx.scan(TRANSFERS))
    if sum(each.status == IN_PROGRESS for each in known) >= limits.TRANSFERS_ACTIVE_MAX:
        raise LimitExceeded(
            f"{limits.TRANSFERS_ACTIVE_MAX} exports and imports are in progress, the maximum; wait for one to end"
        )
    ended = sorted(each.id for each in known if each.status != IN_PROGRESS)
    for id_ in ended[: max(0, len(known) + 1 - limits.TRANSFERS_MAX)]:
        tx.delete(TRANSFERS, id_)
    tx.put(TRANSFERS, row)
    tx.notify(TRANSFERS_DUE, None)
    return row


def _id(tx: Tx) -> str:
    return f"{tx.now_ms:014d}-{secrets.token_hex(4)}"


# -- exports


class ExportTable(Command[TransferRow], frozen=True):
    """Begin an export of a table as of a moment (None: now), or of the changes between two."""

    history = True
    permission = Permission.ADMIN
    subject = ("tables", "table")

    table: str
    details: ExportDetails
    token: str
    digest: bytes
    at_ms: int | None = None

    def run(self, tx: Tx) -> TransferRow:
        known = _known(tx, EXPORT, self.token, self.digest)
        if known is not None:
            return known
        definition = source_of(tx, self.table)
        if definition.recovery is None:
            raise Invalid(
                f"Point in time recovery is not enabled for table '{self.table}'",
                code="PointInTimeRecoveryUnavailableException",
            )
        stream = change_stream.find_stream(tx, definition.name)
        log = log_of(tx, stream)
        incremental = self.details.kind == INCREMENTAL
        at_ms = tx.now_ms if self.at_ms is None else self.at_ms
        from_ms = self.details.from_ms if incremental else at_ms
        earliest_ms = earliest(tx, definition, stream)
        if not (earliest_ms <= from_ms <= at_ms <= tx.now_ms):
            raise Invalid(
                f"the time of an export is from {earliest_ms / 1000} to {tx.now_ms / 1000}",
                code="InvalidExportTimeException",
            )

        def position(moment_ms: int) -> int:
            return log.next if moment_ms >= log.at_ms else retention.first_after(tx, log, moment_ms)

        # An incremental export is of the changes from its begin on, and before its end.
        end = position(at_ms - 1 if incremental else at_ms)
        id_ = _id(tx)
        kept = msgspec.structs.replace(definition, routes=(), copies=(), stream=None, recovery=None)
        copied = CopyDetails(
            kept, definition.name, definition.uuid, definition.created_ms, at_ms, label=stream.label,
            changes=(position(from_ms - 1), end) if incremental else None,
        )  # fmt: skip
        copy = begin(tx, copies.EXPORT, id_, definition.space, copied, definition, end)
        details = msgspec.structs.replace(
            self.details, table_uuid=definition.uuid, at_ms=at_ms, from_ms=from_ms, space=copy.space
        )
        return _add(
            tx,
            TransferRow(
                id_, EXPORT, self.table, IN_PROGRESS, self.token, self.digest, tx.now_ms, 0, "", "",
                encode_details(details),
            ),
        )  # fmt: skip


class AddExportFile(Command[None], frozen=True):
    """A data file is in the bucket: the items up to a key are written."""

    permission = Permission.SYSTEM

    id: str
    file: ExportedFile
    after: bytes
    raw_bytes: int  # before compression

    def run(self, tx: Tx) -> None:
        row = tx.get(TRANSFERS, self.id)
        if row is None or row.status != IN_PROGRESS:
            return
        known = row.export
        details = msgspec.structs.replace(
            known, files=(*known.files, self.file), after=self.after, items=known.items + self.file.items,
            size=known.size + self.raw_bytes,
        )  # fmt: skip
        tx.put(TRANSFERS, msgspec.structs.replace(row, details=encode_details(details)))


class ExportPage(msgspec.Struct, frozen=True):
    """Items of an export, or its changes with the items at the end; and whether there are more."""

    rows: list[tuple[bytes, bytes, bytes]]  # the key, the stored bytes, and of changes the new item
    more: bool


class ReadExported(Query[ExportPage], frozen=True):
    """The next items or changes of an export."""

    permission = Permission.SYSTEM

    space: int
    changes: int  # the space of the changes; 0: all items
    after: bytes

    def run(self, reader: Reader) -> ExportPage:
        walked = self.changes or self.space
        rows: list[tuple[bytes, bytes, bytes]] = []
        size = 0
        for row in reader.scan(ITEMS, walked, start=self.after + b"\0", limit=limits.SWEEP_ITEMS):
            new = reader.get(ITEMS, self.space, row.key) if self.changes else None
            rows.append((row.key, row.body, b"" if new is None else new.body))
            size += len(row.body) + len(rows[-1][2])
            if size > limits.SWEEP_BYTES:
                return ExportPage(rows, True)
        return ExportPage(rows, len(rows) == limits.SWEEP_ITEMS)


# -- imports


class ImportTable(Command[TransferRow], frozen=True):
    """Begin an import to a new table, which appears when it is complete."""

    permission = Permission.ADMIN

    spec: TableSpec
    details: ImportDetails
    token: str
    digest: bytes

    def subjects(self) -> tuple[str, ...]:
        return (f"tables/{self.spec.name}",)

    def run(self, tx: Tx) -> TransferRow:
        known = _known(tx, IMPORT, self.token, self.digest)
        if known is not None:
            return known
        check_table(self.spec)
        check_target(tx, self.spec.name, "ResourceInUseException")
        definition = CreateTable(self.spec).defined(tx)
        definition = msgspec.structs.replace(
            definition, indexes=tuple(msgspec.structs.replace(each, space=0) for each in definition.indexes)
        )
        copied = CopyDetails(definition, definition.name, definition.uuid, tx.now_ms, tx.now_ms)
        tx.put(
            COPIES,
            CopyRow(
                definition.space, copies.IMPORT, definition.name, copies.FILLING, 0, b"", 0, 0, 0, tx.now_ms,
                copies.encode_details(copied),
            ),
        )  # fmt: skip
        details = msgspec.structs.replace(self.details, table_uuid=definition.uuid, space=definition.space)
        return _add(
            tx,
            TransferRow(
                _id(tx), IMPORT, definition.name, IN_PROGRESS, self.token, self.digest, tx.now_ms, 0, "", "",
                encode_details(details),
            ),
        )  # fmt: skip


class ImportItems(Command[bool], frozen=True):
    """Store some items of an import, with how far it has come; False: it has ended."""

    permission = Permission.SYSTEM

    id: str
    rows: list[tuple[bytes, int, bytes]]  # key, size, stored bytes
    details: ImportDetails

    def run(self, tx: Tx) -> bool:
        row = tx.get(TRANSFERS, self.id)
        if row is None or row.status != IN_PROGRESS:
            return False
        space = row.import_.space
        items = size = 0
        for key, item_size, body in self.rows:
            before = tx.get(ITEMS, space, key)
            items += before is None
            size += item_size - (0 if before is None else before.size)
            tx.put(ITEMS, ItemRow(space, key, item_size, body))
        if self.rows:
            add_count(tx, space, items, size)
        tx.put(TRANSFERS, msgspec.structs.replace(row, details=encode_details(self.details)))
        return True


# -- both


class EndTransfer(Command[None], frozen=True):
    """An export is written, or an import read; or it has failed, with a code and a message."""

    permission = Permission.SYSTEM

    id: str
    code: str = ""
    message: str = ""
    failed: bool = False

    def run(self, tx: Tx) -> None:
        row = tx.get(TRANSFERS, self.id)
        if row is None or row.status != IN_PROGRESS:
            return
        space = row.export.space if row.kind == EXPORT else row.import_.space
        copy = tx.get(COPIES, space)
        if copy is not None:
            if row.kind == IMPORT and not self.failed:
                finish(tx, copy)
            else:
                give_up(tx, copy)
        status = FAILED if self.failed else COMPLETED
        ended = msgspec.structs.replace(
            row, status=status, ended_ms=tx.now_ms, code=self.code, message=self.message[:1000]
        )
        tx.put(TRANSFERS, ended)


class DueTransfers(Query[list[TransferRow]], frozen=True):
    """The exports and imports in progress, the oldest first."""

    permission = Permission.SYSTEM

    def run(self, reader: Reader) -> list[TransferRow]:
        return [row for row in reader.scan(TRANSFERS) if row.status == IN_PROGRESS]


class FindCopy(Query[CopyRow | None], frozen=True):
    """The copy that an export writes, or that an import fills."""

    permission = Permission.SYSTEM

    space: int

    def run(self, reader: Reader) -> CopyRow | None:
        return reader.get(COPIES, self.space)


class DescribeTransfer(Query[TransferRow], frozen=True):
    """An export or import of a table."""

    subject = ("tables", "table")

    kind: str
    table: str
    id: str

    def run(self, reader: Reader) -> TransferRow:
        row = reader.get(TRANSFERS, self.id)
        if row is None or row.kind != self.kind or row.name != self.table:
            noun = _EXCEPTIONS[self.kind][1]
            raise NotFound(f"{noun} not found: {self.id}", code=f"{noun}NotFoundException")
        return row


class ListTransfers(Query[list[TransferRow]], frozen=True):
    """All exports or imports of a table, or of all tables, the newest first."""

    subject = ("tables", "table")

    kind: str
    table: str | None = None

    def run(self, reader: Reader) -> list[TransferRow]:
        return [
            row
            for row in reader.scan(TRANSFERS, reverse=True)
            if row.kind == self.kind and self.table in (None, row.name)
        ]


def definition_of(copy: CopyRow) -> Definition:
    """The table that an import fills."""
    return copy.facts.definition
