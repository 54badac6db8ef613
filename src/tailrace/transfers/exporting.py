"""Writes an export that is copied to its bucket: data files one after the other, then the manifests.

A file is made in memory, written whole, and then recorded with the key that it ends with. After a restart the export
goes on behind the last recorded file.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from tailrace import failpoints, limits
from tailrace.tables import change
from tailrace.tables.copies import AVAILABLE
from tailrace.tables.copying import gathered
from tailrace.tables.stored_json import key_to_json
from tailrace.transfers.buckets import Bucket
from tailrace.transfers.commands import AddExportFile, DescribeTransfer, EndTransfer, ExportPage, FindCopy, ReadExported
from tailrace.transfers.transfer import INCREMENTAL, NEW_IMAGE, ExportDetails, ExportedFile, TransferRow

ACCOUNT: Final = "123456789012"
FOLDER: Final = "AWSDynamoDB"
_encode: Final = msgspec.json.Encoder().encode
_NAME: Final = "abcdefghijklmnopqrstuvwxyz234567"

Execute = Callable[[Any], Any]


def advance(execute: Execute, bucket: Bucket, row: TransferRow, stopping: Callable[[], bool]) -> bool:
    """Write as much as is ready; False: the copy is not complete yet, or the thread stops."""
    details = row.export
    copy = execute(FindCopy(details.space))
    if copy is None:
        lost = "the changes of the table since the time of the export are no longer retained"
        execute(EndTransfer(row.id, "ItemHistoryLost", lost, failed=True))
        return True
    if copy.phase != AVAILABLE:
        return False
    base = place(details)
    incremental = details.kind == INCREMENTAL
    folder = f"{base}/data" if incremental else f"{base}/{row.id}/data"
    if not details.files:
        bucket.write(f"{base}/{row.id}/_started", b"")
    after = details.after
    more = True
    while more:
        file = _DataFile()
        while more and file.raw < limits.EXPORT_FILE_BYTES:
            if stopping():
                return False
            page: ExportPage = execute(ReadExported(details.space, copy.marks, after))
            for key, body, new in page.rows:
                line = _changed(body, new, details.view) if incremental else b'{"Item":' + key_to_json(body) + b"}\n"
                after = key
                if line:
                    file.add(line)
            more = page.more
        if file.items:
            _put(execute, bucket, row, file, folder, after)
    finished = execute(DescribeTransfer(row.kind, row.name, row.id))
    _write_manifests(bucket, row, finished)
    failpoints.hit("transfer.end")
    execute(EndTransfer(row.id))
    return True


class _DataFile:
    """A data file in memory."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._gzip = gzip.GzipFile(fileobj=self._buffer, mode="wb", mtime=0, compresslevel=6)
        self.raw = 0
        self.items = 0

    def add(self, line: bytes) -> None:
        self._gzip.write(line)
        self.raw += len(line)
        self.items += 1

    def content(self) -> bytes:
        self._gzip.close()
        return self._buffer.getvalue()


def _put(execute: Execute, bucket: Bucket, row: TransferRow, file: _DataFile, folder: str, after: bytes) -> None:
    data = file.content()
    key = f"{folder}/{''.join(secrets.choice(_NAME) for _ in range(26))}.json.gz"
    bucket.write(key, data)
    failpoints.hit("transfer.step")
    execute(AddExportFile(row.id, ExportedFile(key, file.items, _md5(data)), after, file.raw))


def _changed(body: bytes, new: bytes, view: str) -> bytes:
    """The line of an item that was changed; empty: it was not there before, nor afterwards."""
    found = gathered(body)
    old = bytes(found.old)
    if old == change.NO_IMAGE and not new:
        return b""
    written = b'{"Metadata":{"WriteTimestampMicros":{"N":"%d"}},"Keys":' % (found.at_ms * 1000)
    parts = [written + key_to_json(bytes(found.keys))]
    if old != change.NO_IMAGE and view != NEW_IMAGE:
        parts.append(b'"OldImage":' + key_to_json(old))
    if new:
        parts.append(b'"NewImage":' + key_to_json(new))
    return b",".join(parts) + b"}\n"


# -- manifests


def place(details: ExportDetails) -> str:
    """Where in the bucket exports are."""
    prefix = details.prefix.strip("/")
    return f"{prefix}/{FOLDER}" if prefix else FOLDER


def manifest_key(row: TransferRow) -> str:
    return f"{place(row.export)}/{row.id}/manifest-summary.json"


def _md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def _time(at_ms: int) -> str:
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"


def _write_manifests(bucket: Bucket, row: TransferRow, finished: TransferRow) -> None:
    details = finished.export
    base = f"{place(details)}/{row.id}"
    files = b"".join(
        _encode(
            {
                "itemCount": file.items,
                "md5Checksum": file.md5,
                "etag": base64.b64decode(file.md5).hex(),
                "dataFileS3Key": file.key,
            }
        )
        + b"\n"
        for file in details.files
    )
    table = f"arn:aws:dynamodb:{details.region}:{ACCOUNT}:table/{row.name}"
    incremental = details.kind == INCREMENTAL
    summary = {
        "version": "2023-08-01" if incremental else "2020-06-30",
        "exportArn": f"{table}/export/{row.id}",
        "startTime": _time(row.created_ms),
        "endTime": _time(max(row.created_ms, details.at_ms)),
        "tableArn": table,
        "tableId": details.table_uuid,
        **(
            {"exportFromTime": _time(details.from_ms), "exportToTime": _time(details.at_ms)}
            if incremental
            else {"exportTime": _time(details.at_ms)}
        ),
        "s3Bucket": details.bucket,
        "s3Prefix": details.prefix or None,
        "s3SseAlgorithm": details.sse,
        "s3SseKmsKeyId": details.sse_key,
        "manifestFilesS3Key": f"{base}/manifest-files.json",
        "billedSizeBytes": details.size,
        "itemCount": details.items,
        "outputFormat": "DYNAMODB_JSON",
        **({"outputView": details.view, "exportType": details.kind} if incremental else {}),
    }
    for name, data in (("manifest-files", files), ("manifest-summary", _encode(summary))):
        bucket.write(f"{base}/{name}.json", data)
        bucket.write(f"{base}/{name}.md5", _md5(data).encode())
