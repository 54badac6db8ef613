"""The operations of DynamoDB Streams: one stream is one shard, and one iterator is all that a reader has to keep.

A record's SequenceNumber is its (sequence, index) as one number, behind a 1 that keeps the zeros through clients that
do arithmetic. An iterator names the first (sequence, index) that was not read yet, so that a page may end in the middle
of a transaction. Iterators hold all they mean: the server remembers none, so they survive its restart. They carry the
stream's epoch, because a position in a copy of a database is not one in the original, and a seal, so that nobody makes
one up.
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
from tailrace.http.dynamodb.shape import NAME, Integer, Operation, Request, Structure, Text
from tailrace.log.cold import NO_COLD_STORAGE
from tailrace.tables import change
from tailrace.tables.change import EVENTS, TTL
from tailrace.tables.seal import FindSecret, MakeSecret
from tailrace.tables.streams import (
    ChangeStream,
    Info,
    ReadEntries,
    RecentStreams,
    Run,
    State,
    StreamInfo,
    StreamState,
)
from tailrace.tables.value import Item

T = TypeVar("T")
ITERATOR_MS: Final = 15 * 60 * 1000  # how long an iterator may be used
RECORDS_MAX: Final = 1_000  # in one page
PAGE_BYTES: Final = 1 * limits.MiB  # of records, as their sizes are counted; at least one record
STREAMS_MAX: Final = 100  # in one page of ListStreams
_BEYOND: Final = 10**8 - 1  # an index that no record has: what is told of an empty shard is after all that was there
_SEAL_BYTES: Final = 16
SKIMMED_BYTES: Final = 256 * limits.KiB  # records of larger transactions are decoded one by one
_EVENT_VERSION: Final = "1.1"
_EVENT_SOURCE: Final = "aws:dynamodb"

_arn: Final = re.compile(
    r"arn:aws[a-z-]*:dynamodb:[a-z0-9-]*:[0-9]*:table/([a-zA-Z0-9_.-]{1,255})/stream/([0-9T:.-]{1,40})"
).fullmatch
_number: Final = re.compile(r"1([0-9]{16})([0-9]{8})", re.ASCII).fullmatch

_STREAM_ARN: Final = Text(least=37, most=1024)
_SHARD_ID: Final = Text(least=28, most=65)


# -- how records look


class _Image(msgspec.Struct, gc=False, omit_defaults=True, rename="pascal"):
    """StreamRecord: the `dynamodb` member of a record."""

    approximate_creation_date_time: int
    keys: Item
    sequence_number: str
    size_bytes: int
    stream_view_type: str
    new_image: Item | None = None
    old_image: Item | None = None


class _Identity(msgspec.Struct, rename="pascal"):
    principal_id: str
    type: str


class _Record(msgspec.Struct, gc=False, omit_defaults=True):
    """A record, under the service's names."""

    eventID: str
    eventName: str
    eventVersion: str
    eventSource: str
    awsRegion: str
    dynamodb: _Image
    userIdentity: _Identity | None = None


_EXPIRY: Final = _Identity("dynamodb.amazonaws.com", "Service")
_encode: Final = msgspec.json.Encoder().encode


class _Page(msgspec.Struct, gc=False, omit_defaults=True, rename="pascal"):
    """GetRecords' answer."""

    records: list[_Record]
    next_shard_iterator: str | None = None


def sequence_number(sequence: int, index: int) -> str:
    """The SequenceNumber of a record: sorts the same as text, as a number and as the pair."""
    return f"1{sequence:016d}{index:08d}"


def _pair(text: str) -> tuple[int, int]:
    found = _number(text)
    if found is None:
        raise Invalid(f"Invalid SequenceNumber: {text}")
    return int(found[1]), int(found[2])


# -- iterators


class Iterator(msgspec.Struct, frozen=True, array_like=True):
    """Where a reader goes on: the first record at or after (sequence, index)."""

    name: str
    label: str
    epoch: str
    sequence: int
    index: int
    at_ms: int  # when it was handed out


_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder(Iterator).decode


def sealed(iterator: Iterator, secret: bytes) -> str:
    """An iterator as text, which only those who know the secret can make."""
    body = _pack(iterator)
    return urlsafe_b64encode(_seal(body, secret) + body).decode()


def _seal(body: bytes, secret: bytes) -> bytes:
    return hmac.digest(secret, body, "sha256")[:_SEAL_BYTES]


def opened(text: str, secret: bytes, now_ms: int) -> Iterator:
    """The iterator of a text that `sealed` made."""
    try:
        raw = urlsafe_b64decode(text.encode("ascii"))
        seal, body = raw[:_SEAL_BYTES], raw[_SEAL_BYTES:]
        if not hmac.compare_digest(seal, _seal(body, secret)) or urlsafe_b64encode(raw).decode() != text:
            raise ValueError("not as it was made")
        iterator = _unpack(body)
    except (NotBase64, ValueError, msgspec.DecodeError):
        raise Invalid("Invalid ShardIterator") from None
    if (
        not 0 <= iterator.sequence <= limits.POSITION_MAX
        or not 0 <= iterator.index <= _BEYOND + 1
        or iterator.at_ms > now_ms + ITERATOR_MS  # a clock may be put back, but not by so much
    ):
        raise Invalid("Invalid ShardIterator")
    return iterator


_secrets: Final[WeakKeyDictionary[Database, bytes]] = WeakKeyDictionary()


async def _secret(context: Context) -> bytes:
    """What iterators of this database are sealed with."""
    secret = _secrets.get(context.db)
    if secret is None:
        system = context.as_system()  # whoever may read may have an iterator, though the first one is a write
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
    found = _arn(arn)
    if found is None:
        raise Invalid("Invalid StreamArn")
    return found[1], found[2]


async def _asked(context: Context, arn: str, query: Callable[[str, str], Query[T]]) -> T:
    """What a query says of the stream of this ARN."""
    try:
        found: T = await context.execute(query(*_named(arn)))
    except NotFound:
        raise NotFound(f"Requested resource not found: Stream: {arn} not found") from None
    return found


async def _list_streams(context: Context, request: Request) -> dict[str, Any]:
    limit = request.get("Limit", STREAMS_MAX)
    start = request.get("ExclusiveStartStreamArn")
    after = None
    if start is not None:
        name, label = _named(start)
        after = label, name
    found: list[ChangeStream] = await context.execute(RecentStreams(request.get("TableName"), after, limit + 1))
    region = context.region
    streams = [
        {
            "StreamArn": stream_arn(stream.name, stream.label, region),
            "TableName": stream.name,
            "StreamLabel": stream.label,
        }
        for stream in found[:limit]
    ]
    answer: dict[str, Any] = {"Streams": streams}
    if len(found) > limit:
        answer["LastEvaluatedStreamArn"] = streams[-1]["StreamArn"]
    return answer


async def _describe_stream(context: Context, request: Request) -> dict[str, Any]:
    arn = request["StreamArn"]
    info: Info = await _asked(context, arn, StreamInfo)
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


def _range(info: Info) -> dict[str, str]:
    """From the oldest record to the newest, where no more will come; an empty shard starts before what comes first."""
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
    info: State = await _asked(context, request["StreamArn"], StreamState)
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
    iterator = Iterator(stream.name, stream.label, stream.epoch, sequence, index, now_ms)
    return {"ShardIterator": sealed(iterator, await _secret(context))}


async def _after(context: Context, stream: ChangeStream, sequence: int, index: int) -> tuple[int, int]:
    """What follows a record: the next of its transaction, or the next transaction."""
    try:
        run: Run = await context.execute(ReadEntries(stream.name, stream.label, sequence, 1, 1))
    except (Trimmed, Invalid):
        return sequence, index + 1  # whoever looks at where that is says what is wrong
    for entry in run.entries:
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
        run: Run = await context.execute(ReadEntries(at.name, at.label, at.sequence, PAGE_BYTES, limit, at.epoch))
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
    if any(len(entry.body) > SKIMMED_BYTES for entry in run.entries):
        return await context.call(lambda: _page(run, at, limit, region, now_ms, secret))
    return _page(run, at, limit, region, now_ms, secret)


def _page(run: Run, at: Iterator, limit: int, region: str, now_ms: int, secret: bytes) -> bytes:
    records, sequence, index = _records(run, at, limit, region)
    page = _Page(records)
    if run.stream.closed_ms is None or sequence < run.log.next:
        following = msgspec.structs.replace(at, sequence=sequence, index=index, at_ms=now_ms)
        page.next_shard_iterator = sealed(following, secret)
    return _encode(page)


def _records(run: Run, at: Iterator, limit: int, region: str) -> tuple[list[_Record], int, int]:
    """Up to `limit` records from where the iterator stands, and where the next page starts."""
    view = run.stream.view
    prefix = run.stream.epoch[:7]
    left = PAGE_BYTES
    records: list[_Record] = []
    for entry in run.entries:
        sequence = entry.next - 1
        index = at.index if sequence == at.sequence else 0
        by, stored = _stored(entry.body, index)
        seconds = entry.at_ms // 1000
        identity = _EXPIRY if by == TTL else None
        for record in stored:
            left -= record.size
            if records and (left < 0 or len(records) == limit):
                return records, sequence, index
            number = f"1{sequence:016d}{index:08d}"
            image = _Image(seconds, record.keys, number, record.size, view, record.new, record.old)
            event = EVENTS[record.event]
            records.append(_Record(prefix + number, event, _EVENT_VERSION, _EVENT_SOURCE, region, image, identity))
            index += 1
    return records, max(run.next, at.sequence), 0 if run.next > at.sequence else at.index


def _stored(body: bytes, index: int) -> tuple[str, Iterable[change.Stored]]:
    """Who made a transaction, and its records from `index` on. Those of a large one are decoded when their turn comes,
    so that a page costs what it holds, not what the transaction does."""
    if len(body) <= SKIMMED_BYTES:
        found = change.opened(body)
        return found.by, found.records[index:] if index else found.records
    skimmed = change.skimmed(body)
    return skimmed.by, map(change.record, islice(skimmed.records, index, None))


OPERATIONS: Final[dict[str, Operation]] = {
    "ListStreams": Operation(
        Structure(
            "ListStreamsInput",
            {
                "TableName": Text(least=3, most=255, pattern=NAME),
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
                    {"Type": Text(enum=("CHILD_SHARDS",)), "ShardId": _SHARD_ID},
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
                "ShardIteratorType": Text(
                    enum=("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "TRIM_HORIZON", "LATEST")
                ),
                "SequenceNumber": Text(least=21, most=40),
            },
            required=("StreamArn", "ShardId", "ShardIteratorType"),
        ),
        _get_shard_iterator,
    ),
    "GetRecords": Operation(
        Structure(
            "GetRecordsInput",
            {"ShardIterator": Text(least=1, most=2048), "Limit": Integer(least=1, most=RECORDS_MAX)},
            required=("ShardIterator",),
        ),
        _get_records,
    ),
}
