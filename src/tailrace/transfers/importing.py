"""Reads the files of an import, and stores their items in batches, each with how far the import has come.

After a restart the import goes on behind the last batch. The table appears when all files are read; an item that cannot
be stored is counted, and logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from tailrace import failpoints, limits
from tailrace.errors import Invalid
from tailrace.transfers.buckets import Bucket, BucketError
from tailrace.transfers.commands import EndTransfer, FindCopy, ImportItems, definition_of
from tailrace.transfers.records import ItemReader, chunks, lines
from tailrace.transfers.transfer import CSV, ImportDetails, TransferRow

logger = logging.getLogger("tailrace.transfers")
INVALID_ITEMS = "ItemValidationError"


def advance(execute: Callable[[Any], Any], bucket: Bucket, row: TransferRow, stopping: Callable[[], bool]) -> bool:
    """Read all files; False: the thread stops."""
    copy = execute(FindCopy(row.import_.space))
    assert copy is not None, f"import {row.id} has no space for its items"
    import_ = _Import(execute, row)
    definition = definition_of(copy)
    details = row.import_
    keys = bucket.keys(details.prefix)
    if not keys:
        raise BucketError("S3NoSuchKey", f"no object in {details.bucket!r} has the prefix {details.prefix!r}")
    for key in keys:
        if key < details.file or (key == details.file and details.records < 0):
            continue
        reader = ItemReader(definition, details.delimiter if details.format == CSV else None, details.header)
        skipped = details.records if key == details.file else 0
        with bucket.open(key) as stream:
            try:
                for number, record in enumerate(
                    lines(chunks(stream, details.gzip, key), quoted=details.format == CSV), start=1
                ):
                    if stopping():
                        return False
                    if number == 1 and reader.wants_header:
                        reader.take_header(record)
                    elif number > skipped and record != b"" and not import_.take(reader, key, number, record):
                        return True
            except Invalid as error:
                raise BucketError("InvalidCsvHeader", f"{key!r}: {error}") from error
            except OSError as error:
                raise BucketError("S3Error", f"{key!r}: {error}") from error
        if not import_.commit(key, -1):
            return True
    failpoints.hit("transfer.end")
    errors = import_.details.errors
    message = f"{errors} items failed validation checks; the log of the server has the first" if errors else ""
    execute(EndTransfer(row.id, INVALID_ITEMS if errors else "", message))
    return True


class _Import:
    """The items that are not stored yet, and the counts."""

    def __init__(self, execute: Callable[[Any], Any], row: TransferRow) -> None:
        self._execute = execute
        self._id = row.id
        self._table = row.name
        self.details: ImportDetails = row.import_
        self._rows: list[tuple[bytes, int, bytes]] = []
        self._size = 0
        self._records = 0

    def take(self, reader: ItemReader, key: str, number: int, record: bytes | None) -> bool:
        """Take a record; False: the import has ended meanwhile."""
        details = self.details
        size = 0 if record is None else len(record) + 1
        imported, errors = details.imported, details.errors
        try:
            item = reader.item(record)
            self._rows.append(item)
            self._size += len(item[2])
            imported += 1
        except Invalid as error:
            errors += 1
            if errors <= limits.IMPORT_ERRORS_LOGGED:
                logger.warning("import of %r: record %d of %r: %s", self._table, number, key, error)
        self.details = msgspec.structs.replace(
            details, processed=details.processed + 1, imported=imported, errors=errors, size=details.size + size
        )
        self._records += 1
        if self._records >= limits.SWEEP_ITEMS or self._size >= limits.SWEEP_BYTES:
            return self.commit(key, number)
        return True

    def commit(self, key: str, number: int) -> bool:
        """Store what was taken; `number`: of the last record, -1 for the last of its file."""
        self.details = msgspec.structs.replace(self.details, file=key, records=number)
        failpoints.hit("transfer.step")
        going: bool = self._execute(ImportItems(self._id, self._rows, self.details))
        self._rows, self._size, self._records = [], 0, 0
        return going
