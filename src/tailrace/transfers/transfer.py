"""Exports and imports: their rows. What is recorded of one is enough to go on with it after a restart."""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace.storage.table import StorageTable

EXPORT: Final = "export"
IMPORT: Final = "import"
IN_PROGRESS: Final = "IN_PROGRESS"
COMPLETED: Final = "COMPLETED"
FAILED: Final = "FAILED"
FULL: Final = "FULL_EXPORT"
INCREMENTAL: Final = "INCREMENTAL_EXPORT"
CSV: Final = "CSV"
GZIP: Final = "GZIP"
NEW_IMAGE: Final = "NEW_IMAGE"


class ExportedFile(msgspec.Struct, frozen=True, array_like=True):
    """A data file of an export, which is in the bucket."""

    key: str
    items: int
    md5: str  # base64, as in manifests


class ExportDetails(msgspec.Struct, frozen=True):
    """What is exported where, and how far it has come."""

    bucket: str
    prefix: str
    kind: str  # FULL or INCREMENTAL
    table_uuid: str
    region: str  # of the ARNs in the manifest
    at_ms: int  # the moment that is exported; of an incremental export its end
    from_ms: int = 0  # of an incremental export: its begin
    view: str = ""  # of an incremental export: with old images or without
    owner: str | None = None
    sse: str | None = None
    sse_key: str | None = None
    space: int = 0  # of the copy that is written
    after: bytes = b""  # the last key that is written
    files: tuple[ExportedFile, ...] = ()
    items: int = 0
    size: int = 0  # in bytes


class ImportDetails(msgspec.Struct, frozen=True):
    """What is imported from where, and how far it has come."""

    bucket: str
    prefix: str
    format: str  # DYNAMODB_JSON or CSV
    gzip: bool = False
    delimiter: str = ","
    header: tuple[str, ...] | None = None  # None: the first record of each file
    owner: str | None = None
    request: bytes = b""  # the parameters of the table in JSON, as they were given
    table_uuid: str = ""
    space: int = 0  # of the items that are imported
    file: str = ""  # the key of the file that is being read
    records: int = 0  # of it, how many are done
    processed: int = 0
    imported: int = 0
    errors: int = 0
    size: int = 0  # in bytes


class TransferRow(msgspec.Struct, frozen=True):
    id: str  # a time and a random number, as of backups
    kind: str  # EXPORT or IMPORT
    name: str  # of the table
    status: str
    token: str  # of the client
    digest: bytes  # of the request
    created_ms: int
    ended_ms: int  # 0: it has not ended
    code: str  # of the failure
    message: str
    details: bytes

    @property
    def export(self) -> ExportDetails:
        return _export_decoder.decode(self.details)

    @property
    def import_(self) -> ImportDetails:
        return _import_decoder.decode(self.details)


TRANSFERS = StorageTable("transfers", TransferRow, key=("id",))
encode_details: Final = msgspec.msgpack.Encoder().encode
_export_decoder: Final = msgspec.msgpack.Decoder(ExportDetails)
_import_decoder: Final = msgspec.msgpack.Decoder(ImportDetails)
