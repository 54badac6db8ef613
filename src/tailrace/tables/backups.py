"""Backups of tables, and recovery to a point in time: the commands and queries of the DynamoDB API.

A backup is a copy of the table's items in the same database (`copying.py`), kept until it is deleted, also when the
table is deleted. Point-in-time recovery keeps the table's changes with their old images: in the table's change stream
if that records them, else in one of its own, which the DynamoDB API does not show.
"""

from __future__ import annotations

import secrets
import uuid
from typing import Final

import msgspec

from tailrace import limits
from tailrace.access import Permission
from tailrace.command import Command, Query
from tailrace.errors import InUse, Invalid, LimitExceeded, NotFound
from tailrace.log import cold
from tailrace.storage.engine import Reader, Tx
from tailrace.tables import change, change_stream, retention
from tailrace.tables.change_stream import ChangeStream, log_of
from tailrace.tables.copies import AVAILABLE, BACKUP, COPIES, RESTORE, CopyDetails, CopyRow, restored
from tailrace.tables.copying import begin, give_up
from tailrace.tables.definition import TABLES, CountRow, Definition, Recovery, counted, decoded, save
from tailrace.tables.lifecycle import TableDescription, find
from tailrace.tables.schema import PAY_PER_REQUEST

RECOVERY_DAYS_MAX: Final = 35
_DAY_MS: Final = 24 * 3600 * 1000
_OLD_IMAGES: Final = (change.BOTH, change.OLD_IMAGE)


class Backup(msgspec.Struct, frozen=True):
    """A backup, complete or not."""

    row: CopyRow
    details: CopyDetails
    size: CountRow

    @property
    def available(self) -> bool:
        return self.row.phase == AVAILABLE


def _backup(reader: Reader | Tx, row: CopyRow) -> Backup:
    return Backup(row, row.facts, counted(reader, row.space))


def _find(reader: Reader | Tx, table: str, id_: str) -> CopyRow:
    """The backup of a table: a caller may only know those of tables that it may use."""
    for row in reader.scan(COPIES):
        if row.kind == BACKUP and row.facts.backup == id_ and row.facts.source == table:
            return row
    raise NotFound(f"Backup not found: {id_}", code="BackupNotFoundException")


class CreateBackup(Command[Backup], frozen=True):
    """Begin a backup of a table: its items as of this commit."""

    permission = Permission.ADMIN
    subject = ("tables", "table")

    table: str
    name: str

    def run(self, tx: Tx) -> Backup:
        definition = source_of(tx, self.table)
        if sum(row.kind == BACKUP for row in tx.scan(COPIES)) >= limits.BACKUPS_MAX:
            raise LimitExceeded(f"there are {limits.BACKUPS_MAX} backups, the maximum; delete some first")
        id_ = f"{tx.now_ms:014d}-{secrets.token_hex(4)}"
        kept = msgspec.structs.replace(definition, routes=(), copies=(), stream=None, recovery=None)
        details = CopyDetails(kept, definition.name, definition.uuid, definition.created_ms, tx.now_ms, backup=id_)
        return _backup(tx, begin(tx, BACKUP, self.name, definition.space, details, definition))


class DescribeBackup(Query[Backup], frozen=True):
    table: str
    id: str

    subject = ("tables", "table")

    def run(self, reader: Reader) -> Backup:
        return _backup(reader, _find(reader, self.table, self.id))


class ListBackups(Query[list[Backup]], frozen=True):
    """All backups of a table, or of all tables, the oldest first."""

    subject = ("tables", "table")

    table: str | None = None

    def run(self, reader: Reader) -> list[Backup]:
        found = [_backup(reader, row) for row in list(reader.scan(COPIES)) if row.kind == BACKUP]
        return [each for each in found if self.table is None or each.details.source == self.table]


class DeleteBackup(Command[Backup], frozen=True):
    """Delete a backup."""

    freeing = True
    permission = Permission.ADMIN
    subject = ("tables", "table")

    table: str
    id: str

    def run(self, tx: Tx) -> Backup:
        row = _find(tx, self.table, self.id)
        if row.phase != AVAILABLE:
            raise InUse(f"Backup is being created: {self.id}", code="BackupInUseException")
        if any(each.kind == RESTORE and each.facts.backup == self.id for each in tx.scan(COPIES)):
            raise InUse(f"Backup is being restored: {self.id}", code="BackupInUseException")
        deleted = _backup(tx, row)
        give_up(tx, row)
        return deleted


# -- restoring


class RestoreSettings(msgspec.Struct, frozen=True):
    """What is different in the restored table; None: as in the source."""

    billing: str | None = None
    globals: tuple[str, ...] | None = None  # the names of the indexes that are restored
    local: tuple[str, ...] | None = None


class RestoreBackup(Command[CopyRow], frozen=True):
    """Begin to restore a backup to a new table."""

    permission = Permission.ADMIN

    source: str  # the table that the backup is of
    id: str
    target: str
    settings: RestoreSettings = RestoreSettings()

    def subjects(self) -> tuple[str, ...]:
        return (f"tables/{self.source}", f"tables/{self.target}")

    def run(self, tx: Tx) -> CopyRow:
        backup = _find(tx, self.source, self.id)
        if backup.phase != AVAILABLE:
            raise InUse(f"Backup is being created: {self.id}", code="BackupInUseException")
        check_target(tx, self.target)
        known = backup.facts
        details = msgspec.structs.replace(known, definition=_made(tx, known.definition, self.target, self.settings))
        return begin(tx, RESTORE, self.target, backup.space, details, None)


class RestoreToPointInTime(Command[CopyRow], frozen=True):
    """Begin to restore a table as of an earlier time to a new table; None: as of now."""

    history = True
    permission = Permission.ADMIN

    source: str
    target: str
    at_ms: int | None = None
    settings: RestoreSettings = RestoreSettings()

    def subjects(self) -> tuple[str, ...]:
        return (f"tables/{self.source}", f"tables/{self.target}")

    def run(self, tx: Tx) -> CopyRow:
        definition = source_of(tx, self.source)
        if definition.recovery is None:
            raise Invalid(
                f"Point in time recovery is not enabled for table '{self.source}'",
                code="PointInTimeRecoveryUnavailableException",
            )
        check_target(tx, self.target)
        assert definition.stream is not None, f"table {self.source!r} is recoverable and does not record its changes"
        stream = change_stream.find_stream(tx, definition.name)
        log = log_of(tx, stream)
        at_ms = tx.now_ms if self.at_ms is None else self.at_ms
        earliest_ms = earliest(tx, definition, stream)
        if not earliest_ms <= at_ms <= tx.now_ms:
            raise Invalid(
                f"RestoreDateTime is out of range: it is from {earliest_ms / 1000} to {tx.now_ms / 1000}",
                code="InvalidRestoreTimeException",
            )
        position = log.next if at_ms >= log.at_ms else retention.first_after(tx, log, at_ms)
        details = CopyDetails(
            _made(tx, definition, self.target, self.settings), definition.name, definition.uuid,
            definition.created_ms, at_ms, label=stream.label,
        )  # fmt: skip
        return begin(tx, RESTORE, self.target, definition.space, details, definition, position)


def source_of(tx: Tx, name: str) -> Definition:
    """The table that is copied."""
    row = tx.get(TABLES, name)
    if row is None:
        raise NotFound(f"Table not found: {name}", code="TableNotFoundException")
    return decoded(row)


def check_target(tx: Tx, name: str, code: str = "TableAlreadyExistsException") -> None:
    """Raise unless a table of this name can be made."""
    if tx.get(TABLES, name) is not None or restored(tx, name) is not None:
        raise InUse(f"Table already exists: {name}", code=code)
    if len(tx.values(TABLES, "space", limit=limits.TABLES_MAX)) >= limits.TABLES_MAX:
        raise LimitExceeded(f"there are {limits.TABLES_MAX} tables, the maximum; delete some first")


def _made(tx: Tx, source: Definition, name: str, settings: RestoreSettings) -> Definition:
    """The definition of a restored table: the source's keys, indexes and capacity; no stream, no expiry, no tags."""
    known = {index.name: index for index in source.indexes}
    for chosen, local in ((settings.globals, False), (settings.local, True)):
        for each in chosen or ():
            if each not in known or known[each].local != local:
                raise Invalid(
                    f"One or more parameter values were invalid: the index {each!r} is not one of the source table"
                )
    indexes = tuple(
        index
        for index in source.indexes
        if (chosen := settings.local if index.local else settings.globals) is None or index.name in chosen
    )
    used = {*source.keys, *(part for index in indexes for part in (*index.hash, *index.range))}
    billing = settings.billing or source.billing
    return Definition(
        name=name,
        space=0,
        uuid=str(uuid.uuid4()),
        created_ms=tx.now_ms,
        attributes=tuple(attribute for attribute in source.attributes if attribute.name in used),
        hash=source.hash,
        range=source.range,
        indexes=indexes,
        billing=billing,
        billing_ms=tx.now_ms if billing == PAY_PER_REQUEST else None,
        throughput=source.throughput,
        table_class=source.table_class,
        encryption=source.encryption,
        columns=source.columns,
        checks=source.checks,
    )


class DescribeRestore(Query[tuple[TableDescription, CopyRow] | None], frozen=True):
    """The table of a restore that is under way, as far as it exists; None: there is no such restore."""

    subject = ("tables", "name")

    name: str

    def run(self, reader: Reader) -> tuple[TableDescription, CopyRow] | None:
        row = restored(reader, self.name)
        if row is None:
            return None
        definition = msgspec.structs.replace(row.facts.definition, space=row.space)
        spaces = (row.space, *(index.space for index in definition.indexes))
        return TableDescription(definition, {space: CountRow(space, 0, 0) for space in spaces}, None), row


# -- point-in-time recovery


class RecoveryStatus(msgspec.Struct, frozen=True):
    """`days` None: point-in-time recovery is disabled."""

    days: int | None
    earliest_ms: int = 0
    latest_ms: int = 0


class SetRecovery(Command[RecoveryStatus], frozen=True):
    """Enable or disable (None) point-in-time recovery of a table, for the changes of so many days."""

    permission = Permission.ADMIN
    subject = ("tables", "table")

    table: str
    days: int | None

    def run(self, tx: Tx) -> RecoveryStatus:
        definition = source_of(tx, self.table)
        if self.days is None:
            if definition.recovery is not None:
                save(tx, msgspec.structs.replace(definition, recovery=None))
                definition = find(tx, self.table)
                if definition.stream is not None and definition.stream.hidden:
                    change_stream.disable(tx, definition)
            return RecoveryStatus(None)
        if not 1 <= self.days <= RECOVERY_DAYS_MAX:
            raise Invalid(f"RecoveryPeriodInDays is 1 to {RECOVERY_DAYS_MAX}, not {self.days}")
        if definition.stream is not None and definition.stream.view not in _OLD_IMAGES:
            raise Invalid(
                f"point-in-time recovery needs old images, and the stream of table {self.table!r} records "
                f"{definition.stream.view}: disable the stream, or enable one with NEW_AND_OLD_IMAGES"
            )
        since_ms = tx.now_ms if definition.recovery is None else definition.recovery.since_ms
        definition = msgspec.structs.replace(definition, recovery=Recovery(since_ms, self.days))
        save(tx, definition)
        if definition.stream is None:
            change_stream.record_for_recovery(tx, definition)
        elif definition.stream.hidden:
            kept = change_stream.find_stream(tx, self.table)
            age_s = self.days * _DAY_MS // 1000
            tx.put(change_stream.CHANGE_STREAMS, msgspec.structs.replace(kept, max_age_s=age_s))
        return _status(tx, find(tx, self.table))


class DescribeRecovery(Query[RecoveryStatus], frozen=True):
    subject = ("tables", "table")

    table: str

    def run(self, reader: Reader) -> RecoveryStatus:
        row = reader.get(TABLES, self.table)
        if row is None:
            raise NotFound(f"Table not found: {self.table}", code="TableNotFoundException")
        return _status(reader, decoded(row))


def _status(reader: Reader | Tx, definition: Definition) -> RecoveryStatus:
    if definition.recovery is None:
        return RecoveryStatus(None)
    stream = change_stream.find_stream(reader, definition.name)
    return RecoveryStatus(definition.recovery.days, earliest(reader, definition, stream), reader.now_ms)


def earliest(reader: Reader | Tx, definition: Definition, stream: ChangeStream) -> int:
    """The earliest time to which a table can be restored: since then its changes are recorded and retained."""
    assert definition.recovery is not None
    log = log_of(reader, stream)
    since_ms = max(definition.recovery.since_ms, stream.created_ms, reader.now_ms - definition.recovery.days * _DAY_MS)
    if cold.earliest(reader, log) > stream.first:
        oldest_ms = retention.oldest_ms(reader, log)
        since_ms = max(since_ms, reader.now_ms if oldest_ms is None else oldest_ms)
    return since_ms
