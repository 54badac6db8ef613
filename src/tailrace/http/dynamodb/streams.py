"""The operations of DynamoDB Streams: a stream has one shard, and a reader keeps nothing but an iterator.

The SequenceNumber of a record is its (sequence, index) as one number, prefixed with a 1 that preserves leading zeros in
clients that do arithmetic. An iterator names the first (sequence, index) that has not been read, so a page may end in
the middle of a transaction. The server keeps no iterators: they are self-contained and survive a restart. They carry
the stream's epoch, because a position in a copy of a database is not valid in the original, and a MAC, so that clients
cannot forge them.
"""

from __future__ import annotations

import hmac
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from tailrace import limits
from tailrace.command import Query
from tailrace.database import Database
from tailrace.errors import Gone, Invalid, IteratorExpired, NotFound, Trimmed
from tailrace.http.dynamodb.context import Context
from tailrace.http.dynamodb.render import stream_arn
from tailrace.http.dynamodb.shape import NAME, Integer, Operation, Request, String, Structure
from tailrace.log.cold import NO_COLD_STORAGE
from tailrace.tables import change
from tailrace.tables.change import EVENTS, NO_IMAGE, TTL
from tailrace.tables.change_info import (
    ChangeStreamBounds,
    ChangeStreamDescription,
    DescribeChangeStream,
    FindStreamBounds,
    ListRecentStreams,
)
from tailrace.tables.change_reading import ChangeEntries, ReadEntries
from tailrace.tables.change_stream import ChangeStream
from tailrace.tables.seal import FindSecret, MakeSecret
from tailrace.tables.stored_json import key_to_json, stored_to_json

T = TypeVar("T")
ITERATOR_MS: Final = 15 * 60 * 1000  # how long an iterator may be used
RECORDS_MAX: Final = 1_000  # in one page
PAGE_BYTES: Final = 1 * limits.MiB  # of records, as their sizes are counted; at least one record
STREAMS_MAX: Final = 100  # in one page of ListStreams
_BEYOND: Final = 10**8 - 1  # greater than the index of any record: an empty shard starts after all earlier records
_SEAL_BYTES: Final = 16
SKIMMED_BYTES: Final = 256 * limits.KiB  # records of larger transactions are decoded one by one

_arn: Final = re.compile(
    r"arn:aws[a-z-]*:dynamodb:[a-z0-9-]*:[0-9]*:table/([a-zA-Z0-9_.-]{1,255})/stream/([0-9T:.-]{1,40})"
).fullmatch
_number: Final = re.compile(r"1([0-9]{16})([0-9]{8})", re.ASCII).fullmatch

_STREAM_ARN: Final = String(least=37, most=1024)
_SHARD_ID: Final = String(least=28, most=65)


# -- records


_RECORD: Final = (
    b'{"eventID":"%b%%b","eventName":"%%b","eventVersion":"1.1","eventSource":"aws:dynamodb","awsRegion":"%b",'
    b'"dynamodb":{"ApproximateCreationDateTime":%%d,"Keys":%%b,"SequenceNumber":"%%b","SizeBytes":%%d,'
    b'"StreamViewType":"%b"'
)  # the format of the records of a page up to the images, after the format of all pages
_EVENT_NAMES: Final = tuple(event.encode() for event in EVENTS)
_END: Final = b"}}"
_EXPIRY_END: Final = b'},"userIdentity":{"PrincipalId":"dynamodb.amazonaws.com","Type":"Service"}}'
_encode: Final = msgspec.json.Encoder().encode


def sequence_number(sequence: int, index: int) -> str:
    """The SequenceNumber of a record: sorts the same as text, as a number and as a pair."""
    return f"1{sequence:016d}{index:08d}"


def _pair(text: str) -> tuple[int, int]:
    match = _number(text)
    if match is None:
        raise Invalid(f"Invalid SequenceNumber: {text}")
    return int(match[1]), int(match[2])


# -- iterators


class ShardIterator(msgspec.Struct, frozen=True, array_like=True):
    """A reader's position: the first record at or after (sequence, index)."""

    name: str
    label: str
    epoch: str
    sequence: int
    index: int
    at_ms: int  # when it was issued


_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder(ShardIterator).decode


def sealed(iterator: ShardIterator, secret: bytes) -> str:
    """An iterator as text, authenticated with the secret."""
    body = _pack(iterator)
    return urlsafe_b64encode(_seal(body, secret) + body).decode()


def _seal(body: bytes, secret: bytes) -> bytes:
    return hmac.digest(secret, body, "sha256")[:_SEAL_BYTES]


def opened(text: str, secret: bytes, now_ms: int) -> ShardIterator:
    """The iterator in a text made by `sealed`."""
    try:
        raw = urlsafe_b64decode(text.encode("ascii"))
        seal, body = raw[:_SEAL_BYTES], raw[_SEAL_BYTES:]
        if not hmac.compare_digest(seal, _seal(body, secret)) or urlsafe_b64encode(raw).decode() != text:
            raise ValueError("the seal does not match")
        iterator = _unpack(body)
    except (NotBase64, ValueError, msgspec.DecodeError):
        raise Invalid("Invalid ShardIterator") from None
    if (
        not 0 <= iterator.sequence <= limits.POSITION_MAX
        or not 0 <= iterator.index <= _BEYOND + 1
        or iterator.at_ms > now_ms + ITERATOR_MS  # the clock may have been set back, but not by this much
    ):
        raise Invalid("Invalid ShardIterator")
    return iterator


_secrets: Final[WeakKeyDictionary[Database, bytes]] = WeakKeyDictionary()


async def _secret(context: Context) -> bytes:
    """The secret that authenticates this database's iterators."""
    secret = _secrets.get(context.db)
    if secret is None:
        system = context.as_system()  # readers need an iterator, although the first one writes the secret
        secret = await system.execute(FindSecret()) or await system.execute(MakeSecret())
        _secrets[context.db] = secret
    return secret


def shard_id(stream: ChangeStream) -> str:
    """The name of a stream's only shard."""
    return f"shardId-{stream.created_ms:020d}-{stream.epoch[:8]}"


def _trimmed() -> Gone:
    return Gone("The data you are trying to access has been trimmed", code="TrimmedDataAccessException")


# -- operations


def _named(arn: str) -> tuple[str, str]:
    """The table's name and the label in a stream's ARN."""
    match = _arn(arn)
    if match is None:
        raise Invalid("Invalid StreamArn")
    return match[1], match[2]


async def _queried(context: Context, arn: str, query: Callable[[str, str], Query[T]]) -> T:
    """The result of a query for the stream with this ARN."""
    try:
        result: T = await context.execute(query(*_named(arn)))
    except NotFound:
        raise NotFound(f"Requested resource not found: Stream: {arn} not found") from None
    return result


async def _list_streams(context: Context, request: Request) -> dict[str, Any]:
    limit = request.get("Limit", STREAMS_MAX)
    start = request.get("ExclusiveStartStreamArn")
    after = None
    if start is not None:
        name, label = _named(start)
        after = label, name
    listed: list[ChangeStream] = await context.execute(ListRecentStreams(request.get("TableName"), after, limit + 1))
    region = context.region
    streams = [
        {
            "StreamArn": stream_arn(stream.name, stream.label, region),
            "TableName": stream.name,
            "StreamLabel": stream.label,
        }
        for stream in listed[:limit]
    ]
    response: dict[str, Any] = {"Streams": streams}
    if len(listed) > limit:
        response["LastEvaluatedStreamArn"] = streams[-1]["StreamArn"]
    return response


async def _describe_stream(context: Context, request: Request) -> dict[str, Any]:
    arn = request["StreamArn"]
    info: ChangeStreamDescription = await _queried(context, arn, DescribeChangeStream)
    stream = info.stream
    after = request.get("ExclusiveStartShardId")
    shards = []
    # The only shard has no children, and nothing comes after it.
    if "ShardFilter" not in request and (after is None or after < shard_id(stream)):
        shards.append({"ShardId": shard_id(stream), "SequenceNumberRange": _range(info)})
    description = {
        "StreamArn": arn,
        "StreamLabel": stream.label,
        "StreamStatus": "ENABLED" if info.enabled else "DISABLED",
        "StreamViewType": stream.view,
        "CreationRequestDateTime": stream.created_ms / 1000,
        "TableName": stream.name,
        "KeySchema": [
            {"AttributeName": name, "KeyType": role}
            for (name, _), role in zip(stream.keys, ("HASH", "RANGE"), strict=False)
        ],
        "Shards": shards,
    }
    return {"StreamDescription": description}


def _range(info: ChangeStreamDescription) -> dict[str, str]:
    """From the oldest record to the newest; the end only if the stream is closed. An empty shard starts just before
    its first record to come."""
    if info.oldest is None or info.latest is None:
        first = last = sequence_number(info.earliest - 1, _BEYOND)
    else:
        first, last = sequence_number(info.oldest, 0), sequence_number(info.latest, info.latest_index)
    return (
        {"StartingSequenceNumber": first}
        if info.enabled
        else {"StartingSequenceNumber": first, "EndingSequenceNumber": last}
    )


async def _get_shard_iterator(context: Context, request: Request) -> dict[str, Any]:
    kind, number = request["ShardIteratorType"], request.get("SequenceNumber")
    numbered = kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER")
    if numbered and number is None:
        raise Invalid(f"SequenceNumber is required for ShardIteratorType {kind}")
    if not numbered and number is not None:
        raise Invalid(f"SequenceNumber is not allowed for ShardIteratorType {kind}")
    sequence, index = _pair(number) if number is not None else (0, 0)
    info: ChangeStreamBounds = await _queried(context, request["StreamArn"], FindStreamBounds)
    stream, log, first = info.stream, info.log, info.earliest
    if request["ShardId"] != shard_id(stream):
        raise NotFound("Requested resource not found: Shard does not exist")
    if kind == "TRIM_HORIZON":
        sequence = first
    elif kind == "LATEST":
        sequence = log.next
    else:
        if kind == "AFTER_SEQUENCE_NUMBER":
            sequence, index = await _after(context, stream, sequence, index)
        if sequence < first:
            if sequence < first - 1 or (index < _BEYOND and first != stream.first):
                raise _trimmed()
            sequence, index = first, 0
        if sequence > log.next:
            raise Invalid(f"Invalid SequenceNumber: {number} is beyond the end of the shard")
    now_ms = context.db.clock.now_ms()
    iterator = ShardIterator(stream.name, stream.label, stream.epoch, sequence, index, now_ms)
    return {"ShardIterator": sealed(iterator, await _secret(context))}


async def _after(context: Context, stream: ChangeStream, sequence: int, index: int) -> tuple[int, int]:
    """The position after a record: the next record of its transaction, or the next transaction."""
    try:
        page: ChangeEntries = await context.execute(ReadEntries(stream.name, stream.label, sequence, 1, 1))
    except (Trimmed, Invalid):
        return sequence, index + 1  # the caller checks the position
    for entry in page.entries:
        if entry.next - 1 == sequence and index < len(change.skimmed(entry.body).records) - 1:
            return sequence, index + 1
    return sequence + 1, 0


async def _get_records(context: Context, request: Request) -> bytes:
    now_ms = context.db.clock.now_ms()
    secret = await _secret(context)
    at = opened(request["ShardIterator"], secret, now_ms)
    if now_ms - at.at_ms > ITERATOR_MS:
        raise IteratorExpired("The iterator has expired: it was handed out more than 15 minutes ago")
    limit = request.get("Limit", RECORDS_MAX)
    try:
        entries: ChangeEntries = await context.execute(
            ReadEntries(at.name, at.label, at.sequence, PAGE_BYTES, limit, at.epoch)
        )
    except Trimmed:
        raise _trimmed() from None
    except NotFound:
        arn = stream_arn(at.name, at.label, context.region)
        raise NotFound(f"Requested resource not found: Stream: {arn} not found") from None
    except Invalid as error:
        if error.code == NO_COLD_STORAGE:
            raise
        raise Invalid("Invalid ShardIterator") from None
    region = context.region
    if any(len(entry.body) > SKIMMED_BYTES for entry in entries.entries):
        return await context.call(lambda: _page(entries, at, limit, region, now_ms, secret))
    return _page(entries, at, limit, region, now_ms, secret)


def _page(read: ChangeEntries, at: ShardIterator, limit: int, region: str, now_ms: int, secret: bytes) -> bytes:
    records, sequence, index = _records(read, at, limit, region)
    following = b""
    if read.stream.closed_ms is None or sequence < read.log.next:
        iterator = msgspec.structs.replace(at, sequence=sequence, index=index, at_ms=now_ms)
        following = b',"NextShardIterator":"%b"' % sealed(iterator, secret).encode()
    return b"".join((b'{"Records":[', *records, b"]", following, b"}"))


def _records(read: ChangeEntries, at: ShardIterator, limit: int, region: str) -> tuple[list[bytes], int, int]:
    """Up to `limit` records from the iterator's position as JSON, and the position of the next page. The JSON is in
    parts, so that the images, which are most of it, are copied only once."""
    record_format = _RECORD % (read.stream.epoch[:7].encode(), region.encode(), read.stream.view.encode())
    left, count = PAGE_BYTES, 0
    parts: list[bytes] = []
    for entry in read.entries:
        sequence = entry.next - 1
        index = at.index if sequence == at.sequence else 0
        by, stored = _stored(entry.body, index)
        seconds = entry.at_ms // 1000
        end = _EXPIRY_END if by == TTL else _END
        for record in stored:
            left -= record.size
            if count:
                if left < 0 or count == limit:
                    return parts, sequence, index
                parts.append(b",")
            number = b"1%016d%08d" % (sequence, index)
            parts.append(
                record_format
                % (number, _EVENT_NAMES[record.event], seconds, key_to_json(record.keys), number, record.size)
            )
            new, old = bytes(record.new), bytes(record.old)
            if new != NO_IMAGE:
                parts += (b',"NewImage":', stored_to_json(new))
            if old != NO_IMAGE:
                parts += (b',"OldImage":', stored_to_json(old))
            parts.append(end)
            count += 1
            index += 1
    return parts, max(read.next, at.sequence), 0 if read.next > at.sequence else at.index


def _stored(body: bytes, index: int) -> tuple[str, Iterable[change.SkimmedRecord]]:
    """The principal of a transaction, and its records from `index` on. Those of a large transaction are taken apart
    lazily, so that the cost of a page depends on the page, not on the transaction."""
    if len(body) <= SKIMMED_BYTES:
        entry = change.skimmed_records(body)
        return entry.by, entry.records[index:] if index else entry.records
    skimmed = change.skimmed(body)
    return skimmed.by, map(change.skimmed_record, islice(skimmed.records, index, None))


OPERATIONS: Final[dict[str, Operation]] = {
    "ListStreams": Operation(
        Structure(
            "ListStreamsInput",
            {
                "TableName": String(least=3, most=255, pattern=NAME),
                "Limit": Integer(least=1, most=STREAMS_MAX),
                "ExclusiveStartStreamArn": _STREAM_ARN,
            },
        ),
        _list_streams,
    ),
    "DescribeStream": Operation(
        Structure(
            "DescribeStreamInput",
            {
                "StreamArn": _STREAM_ARN,
                "Limit": Integer(least=1, most=STREAMS_MAX),
                "ExclusiveStartShardId": _SHARD_ID,
                "ShardFilter": Structure(
                    "ShardFilter",
                    {"Type": String(enum=("CHILD_SHARDS",)), "ShardId": _SHARD_ID},
                    required=("Type", "ShardId"),
                ),
            },
            required=("StreamArn",),
        ),
        _describe_stream,
    ),
    "GetShardIterator": Operation(
        Structure(
            "GetShardIteratorInput",
            {
                "StreamArn": _STREAM_ARN,
                "ShardId": _SHARD_ID,
                "ShardIteratorType": String(
                    enum=("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "TRIM_HORIZON", "LATEST")
                ),
                "SequenceNumber": String(least=21, most=40),
            },
            required=("StreamArn", "ShardId", "ShardIteratorType"),
        ),
        _get_shard_iterator,
    ),
    "GetRecords": Operation(
        Structure(
            "GetRecordsInput",
            {"ShardIterator": String(least=1, most=2048), "Limit": Integer(least=1, most=RECORDS_MAX)},
            required=("ShardIterator",),
        ),
        _get_records,
    ),
}
