"""The operations on exports to buckets and imports from them: the shapes of their requests, and their responses."""

from __future__ import annotations

import hashlib
import re
import uuid
from typing import Any, Final

import msgspec

from tailrace.errors import Invalid, NotFound
from tailrace.http.dynamodb import render
from tailrace.http.dynamodb.context import Context
from tailrace.http.dynamodb.shape import (
    Integer,
    ListOf,
    Number,
    Operation,
    Request,
    String,
    Structure,
    table_name,
)
from tailrace.http.dynamodb.tables import IMPORTED, table_spec
from tailrace.transfers.buckets import checked_key, checked_prefix
from tailrace.transfers.commands import DescribeTransfer, ExportTable, ImportTable, ListTransfers
from tailrace.transfers.exporting import manifest_key
from tailrace.transfers.transfer import (
    CSV,
    EXPORT,
    FAILED,
    FULL,
    GZIP,
    IMPORT,
    IN_PROGRESS,
    INCREMENTAL,
    NEW_IMAGE,
    ExportDetails,
    ImportDetails,
    TransferRow,
)

LISTED_MAX: Final = 25  # exports or imports in one page
_BOTH_IMAGES: Final = "NEW_AND_OLD_IMAGES"
_ARN: Final = String(least=1, most=1024)
_BUCKET: Final = String(most=255, pattern="[a-z0-9A-Z][.\\w-]*[a-z0-9A-Z]")
_PREFIX: Final = String(most=1024)
_OWNER: Final = String(pattern="[0-9]{12}")
_TOKEN: Final = String()
_transfer_of: Final = re.compile(
    r"arn:aws[a-z-]*:dynamodb:[a-z0-9-]*:[0-9]*:table/([a-zA-Z0-9_.-]{3,255})/(export|import)/([0-9]{14}-[0-9a-f]{8})"
).fullmatch
_encode: Final = msgspec.json.Encoder(order="sorted").encode


def _digest(request: Request) -> bytes:
    """Of the parameters, without the client token."""
    return hashlib.sha256(_encode({name: given for name, given in request.items() if name != "ClientToken"})).digest()


def _named(arn: str, kind: str) -> tuple[str, str]:
    """The table and the id in an ARN."""
    match = _transfer_of(arn)
    if match is None or match[2] != kind:
        noun = kind.capitalize()
        raise NotFound(f"{noun} not found: {arn}", code=f"{noun}NotFoundException")
    return match[1], match[3]


def _arn(row: TransferRow, region: str) -> str:
    return f"{render.table_arn(row.name, region)}/{row.kind}/{row.id}"


def _page(found: list[TransferRow], request: Request, size: str) -> tuple[list[TransferRow], str | None]:
    """A page of a list, newest first, and the token of the next."""
    token = request.get("NextToken")
    if token is not None:
        found = [row for row in found if row.id < token]
    most = request.get(size, LISTED_MAX)
    return found[:most], found[most - 1].id if len(found) > most else None


def _failure(row: TransferRow) -> dict[str, Any]:
    return {"FailureCode": row.code, "FailureMessage": row.message} if row.code else {}


# -- exports


async def _export(context: Context, request: Request) -> dict[str, Any]:
    if request.get("ExportFormat", "DYNAMODB_JSON") != "DYNAMODB_JSON":
        raise Invalid("exports in the format ION are not supported: use DYNAMODB_JSON")
    bucket, prefix = request["S3Bucket"], request.get("S3Prefix", "")
    context.db.transfers.buckets.check(bucket)
    if prefix.strip("/"):
        checked_key(prefix.removesuffix("/"))
    kind = request.get("ExportType", FULL)
    spec = request.get("IncrementalExportSpecification")
    at, from_ms, view = request.get("ExportTime"), 0, ""
    if kind == INCREMENTAL:
        if spec is None or "ExportFromTime" not in spec or at is not None:
            raise Invalid(
                "an incremental export needs IncrementalExportSpecification with ExportFromTime, and no ExportTime"
            )
        at, from_ms = spec.get("ExportToTime"), int(spec["ExportFromTime"] * 1000)
        view = spec.get("ExportViewType", _BOTH_IMAGES)
    elif spec is not None:
        raise Invalid("IncrementalExportSpecification is for exports of the type INCREMENTAL_EXPORT")
    details = ExportDetails(
        bucket, prefix.strip("/"), kind, "", context.region, 0, from_ms=from_ms, view=view,
        owner=request.get("S3BucketOwner"), sse=request.get("S3SseAlgorithm"), sse_key=request.get("S3SseKmsKeyId"),
    )  # fmt: skip
    command = ExportTable(
        table_name(request["TableArn"]), details, request.get("ClientToken") or str(uuid.uuid4()), _digest(request),
        None if at is None else int(at * 1000),
    )  # fmt: skip
    return {"ExportDescription": _exported(await context.execute(command), context.region)}


def _exported(row: TransferRow, region: str) -> dict[str, Any]:
    details = row.export
    shown: dict[str, Any] = {
        "ExportArn": _arn(row, region),
        "ExportStatus": row.status,
        "StartTime": row.created_ms / 1000,
        "TableArn": render.table_arn(row.name, region),
        "TableId": details.table_uuid,
        "ClientToken": row.token,
        "S3Bucket": details.bucket,
        "ExportFormat": "DYNAMODB_JSON",
        "ExportType": details.kind,
    }
    for name, given in (
        ("S3Prefix", details.prefix),
        ("S3BucketOwner", details.owner),
        ("S3SseAlgorithm", details.sse),
        ("S3SseKmsKeyId", details.sse_key),
    ):
        if given:
            shown[name] = given
    if details.kind == INCREMENTAL:
        shown["IncrementalExportSpecification"] = {
            "ExportFromTime": details.from_ms / 1000,
            "ExportToTime": details.at_ms / 1000,
            "ExportViewType": details.view,
        }
    else:
        shown["ExportTime"] = details.at_ms / 1000
    if row.status != IN_PROGRESS:
        shown["EndTime"] = row.ended_ms / 1000
    if row.status not in (IN_PROGRESS, FAILED):
        shown |= {
            "ItemCount": details.items,
            "BilledSizeBytes": details.size,
            "ExportManifest": manifest_key(row),
        }
    return shown | _failure(row)


async def _describe_export(context: Context, request: Request) -> dict[str, Any]:
    row = await context.execute(DescribeTransfer(EXPORT, *_named(request["ExportArn"], EXPORT)))
    return {"ExportDescription": _exported(row, context.region)}


async def _list_exports(context: Context, request: Request) -> dict[str, Any]:
    arn = request.get("TableArn")
    found = await context.execute(ListTransfers(EXPORT, None if arn is None else table_name(arn)))
    page, token = _page(found, request, "MaxResults")
    response: dict[str, Any] = {
        "ExportSummaries": [
            {"ExportArn": _arn(row, context.region), "ExportStatus": row.status, "ExportType": row.export.kind}
            for row in page
        ]
    }
    return response if token is None else {**response, "NextToken": token}


# -- imports


async def _import(context: Context, request: Request) -> dict[str, Any]:
    if request["InputFormat"] == "ION":
        raise Invalid("imports of the format ION are not supported: use DYNAMODB_JSON or CSV")
    compression = request.get("InputCompressionType", "NONE")
    if compression == "ZSTD":
        raise Invalid("imports of files with the compression ZSTD are not supported: use GZIP or NONE")
    source = request["S3BucketSource"]
    context.db.transfers.buckets.check(source["S3Bucket"])
    checked_prefix(source.get("S3KeyPrefix", ""))
    options = request.get("InputFormatOptions", {}).get("Csv")
    if options is not None and request["InputFormat"] != CSV:
        raise Invalid("InputFormatOptions.Csv is for imports of the format CSV")
    options = options or {}
    header = options.get("HeaderList")
    if header is not None and len(set(header)) != len(header):
        raise Invalid("HeaderList has a name twice")
    table = request["TableCreationParameters"]
    details = ImportDetails(
        source["S3Bucket"], source.get("S3KeyPrefix", ""), request["InputFormat"], compression == GZIP,
        options.get("Delimiter", ","), None if header is None else tuple(header), source.get("S3BucketOwner"),
        _encode(table),
    )  # fmt: skip
    token = request.get("ClientToken") or str(uuid.uuid4())
    row = await context.execute(ImportTable(table_spec(table), details, token, _digest(request)))
    return {"ImportTableDescription": _imported(row, context.region)}


def _imported(row: TransferRow, region: str) -> dict[str, Any]:
    details = row.import_
    source: dict[str, Any] = {"S3Bucket": details.bucket}
    if details.prefix:
        source["S3KeyPrefix"] = details.prefix
    if details.owner:
        source["S3BucketOwner"] = details.owner
    shown: dict[str, Any] = {
        "ImportArn": _arn(row, region),
        "ImportStatus": row.status,
        "TableArn": render.table_arn(row.name, region),
        "TableId": details.table_uuid,
        "ClientToken": row.token,
        "S3BucketSource": source,
        "ErrorCount": details.errors,
        "InputFormat": details.format,
        "InputCompressionType": GZIP if details.gzip else "NONE",
        "TableCreationParameters": msgspec.json.decode(details.request),
        "StartTime": row.created_ms / 1000,
        "ProcessedSizeBytes": details.size,
        "ProcessedItemCount": details.processed,
        "ImportedItemCount": details.imported,
    }
    if details.format == CSV:
        options: dict[str, Any] = {"Delimiter": details.delimiter}
        if details.header is not None:
            options["HeaderList"] = list(details.header)
        shown["InputFormatOptions"] = {"Csv": options}
    if row.status != IN_PROGRESS:
        shown["EndTime"] = row.ended_ms / 1000
    return shown | _failure(row)


async def _describe_import(context: Context, request: Request) -> dict[str, Any]:
    row = await context.execute(DescribeTransfer(IMPORT, *_named(request["ImportArn"], IMPORT)))
    return {"ImportTableDescription": _imported(row, context.region)}


async def _list_imports(context: Context, request: Request) -> dict[str, Any]:
    arn = request.get("TableArn")
    found = await context.execute(ListTransfers(IMPORT, None if arn is None else table_name(arn)))
    page, token = _page(found, request, "PageSize")
    shown = []
    for row in page:
        described = _imported(row, context.region)
        names = ("ImportArn", "ImportStatus", "TableArn", "S3BucketSource", "InputFormat", "StartTime", "EndTime")
        shown.append({name: described[name] for name in names if name in described})
    response: dict[str, Any] = {"ImportSummaryList": shown}
    return response if token is None else {**response, "NextToken": token}


OPERATIONS: Final[dict[str, Operation]] = {
    "ExportTableToPointInTime": Operation(
        Structure(
            "ExportTableToPointInTimeInput",
            {
                "TableArn": _ARN,
                "ExportTime": Number(),
                "ClientToken": _TOKEN,
                "S3Bucket": _BUCKET,
                "S3BucketOwner": _OWNER,
                "S3Prefix": _PREFIX,
                "S3SseAlgorithm": String(enum=("AES256", "KMS")),
                "S3SseKmsKeyId": String(least=1, most=2048),
                "ExportFormat": String(enum=("DYNAMODB_JSON", "ION")),
                "ExportType": String(enum=(FULL, INCREMENTAL)),
                "IncrementalExportSpecification": Structure(
                    "IncrementalExportSpecification",
                    {
                        "ExportFromTime": Number(),
                        "ExportToTime": Number(),
                        "ExportViewType": String(enum=(NEW_IMAGE, _BOTH_IMAGES)),
                    },
                ),
            },
            required=("TableArn", "S3Bucket"),
        ),
        _export,
    ),
    "DescribeExport": Operation(
        Structure("DescribeExportInput", {"ExportArn": String(least=37, most=1024)}, required=("ExportArn",)),
        _describe_export,
    ),
    "ListExports": Operation(
        Structure(
            "ListExportsInput",
            {"TableArn": _ARN, "MaxResults": Integer(least=1, most=LISTED_MAX), "NextToken": String()},
        ),
        _list_exports,
    ),
    "ImportTable": Operation(
        Structure(
            "ImportTableInput",
            {
                "ClientToken": _TOKEN,
                "S3BucketSource": Structure(
                    "S3BucketSource",
                    {"S3BucketOwner": _OWNER, "S3Bucket": _BUCKET, "S3KeyPrefix": _PREFIX},
                    required=("S3Bucket",),
                ),
                "InputFormat": String(enum=("DYNAMODB_JSON", "ION", "CSV")),
                "InputFormatOptions": Structure(
                    "InputFormatOptions",
                    {
                        "Csv": Structure(
                            "CsvOptions",
                            {
                                "Delimiter": String(least=1, most=1, pattern="[,;:|\\t ]"),
                                "HeaderList": ListOf(String(least=1, most=65536), least=1, most=255),
                            },
                        )
                    },
                ),
                "InputCompressionType": String(enum=("GZIP", "ZSTD", "NONE")),
                "TableCreationParameters": IMPORTED,
            },
            required=("S3BucketSource", "InputFormat", "TableCreationParameters"),
        ),
        _import,
    ),
    "DescribeImport": Operation(
        Structure("DescribeImportInput", {"ImportArn": String(least=37, most=1024)}, required=("ImportArn",)),
        _describe_import,
    ),
    "ListImports": Operation(
        Structure(
            "ListImportsInput",
            {
                "TableArn": _ARN,
                "PageSize": Integer(least=1, most=LISTED_MAX),
                "NextToken": String(least=21, most=1024),
            },
        ),
        _list_imports,
    ),
}
