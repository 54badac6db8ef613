"""A table's change stream as a Durable Stream to read: catch-up, long-poll and event streams of JSON records.

An entry of the log is one transaction in MessagePack. Here it becomes JSON messages: what is read as it leaves the
database, slice by slice; what is committed once for all who follow. From there on it is a JSON stream like any other.
Records come with plain JSON values, or with ``values=typed`` as DynamoDB writes them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from tailrace import limits
from tailrace.access import Principal
from tailrace.database import Database
from tailrace.errors import Invalid, NotAllowed, NotFound
from tailrace.http import asking
from tailrace.http.bulk import BulkDoor, wants_arrow
from tailrace.http.dynamodb.apart import Workers
from tailrace.http.encoding import JsonEncoding, rfc3339
from tailrace.http.message import Answer, Headers, Request, Response
from tailrace.http.reading import PARAMETERS, Piece, Reading, whole
from tailrace.http.streams import decode_path
from tailrace.http.upkeep import Upkeep
from tailrace.log.entry import Entry
from tailrace.log.position import offset
from tailrace.tables import change, value
from tailrace.tables.streams import PAGE_BYTES, PAGE_RECORDS, ReadEntries, StreamState

METHODS: Final = "GET, HEAD, PATCH, OPTIONS"
READ_PARAMETERS: Final = (*PARAMETERS, "label", "values", "after_sequence", "limit")
CONTENT_TYPE: Final = "application/json"
APART_BYTES: Final = 64 * limits.KiB  # of entries; more are made JSON in a thread


class ChangeMessage(msgspec.Struct, gc=False):
    """A record as readers see it."""

    sequence: int
    index: int
    last: bool  # of its transaction
    event: str
    table: str
    keys: Any
    old: Any
    new: Any
    at: str
    by: str


_encode: Final = msgspec.json.Encoder().encode
Convert = Callable[[dict[str, Any]], Any]


def plain(item: dict[str, Any]) -> Any:
    """An item as plain JSON: sets are arrays, binary is base64."""
    return value.item_to_json(item)


def typed(item: dict[str, Any]) -> Any:
    """An item as DynamoDB writes it."""
    return item


def rendered(entry: Entry, table: str, convert: Convert) -> Entry:
    """The entry with JSON messages for a body, commas between them.

    Record by record: decoding and encoding are calls that nothing interrupts, and a transaction may be large."""
    at = rfc3339(entry.at_ms)
    found = change.skimmed(entry.body)
    sequence, last = entry.next - 1, len(found.records) - 1
    messages = []
    for index, raw in enumerate(found.records):
        record = change.record(raw)
        message = ChangeMessage(
            sequence,
            index,
            index == last,
            change.EVENTS[record.event],
            table,
            convert(record.keys),
            None if record.old is None else convert(record.old),
            None if record.new is None else convert(record.new),
            at,
            found.by,
        )
        messages.append(_encode(message))
    return Entry(entry.log, entry.position, entry.next, entry.at_ms, b",".join(messages))


def _all_rendered(entries: list[Entry], table: str, convert: Convert) -> list[Entry]:
    return [rendered(entry, table, convert) for entry in entries]


class ChangesEncoding(JsonEncoding):
    """One table's records. Equal ones share a channel, so that everybody on it is sent the same bytes."""

    live_bytes_max = APART_BYTES

    def __init__(self, table: str, convert: Convert) -> None:
        self.table = table
        self.convert = convert

    def rendered(self, entry: Entry) -> bytes:
        return rendered(entry, self.table, self.convert).body

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChangesEncoding) and (self.table, self.convert) == (other.table, other.convert)

    def __hash__(self) -> int:
        return hash((self.table, self.convert))


class TableFeed:
    """A table's change stream as something to be read."""

    renew_s = math.inf

    def __init__(
        self, db: Database, workers: Workers, principal: Principal, name: str, label: str | None, convert: Convert
    ) -> None:
        self._db = db
        self._workers = workers
        self.principal = principal
        self._name = name
        self._label = label
        self._convert = convert

    async def read(self, position: int | None, bytes_max: int) -> Piece:
        query = ReadEntries(self._name, self._label, position, bytes_max, limits.SLICE_ENTRIES)
        run = await self._db.aexecute(query, self.principal)
        size = sum(len(entry.body) for entry in run.entries)
        work = partial(_all_rendered, run.entries, run.stream.name, self._convert)
        entries = work() if size <= APART_BYTES else await self._workers.run(work, size)
        closed = run.stream.closed_ms is not None
        encoding = ChangesEncoding(run.stream.name, self._convert)
        return Piece(run.log.id, CONTENT_TYPE, encoding, run.position, entries, run.next, run.log.next, closed)

    async def records(self, position: int | None, limit: int) -> Piece:
        """Transactions from `position` on, until they have `limit` records; none is cut in two, and there is at least
        one if there is any. Read in slices between which the loop serves others."""
        found: list[Entry] = []
        left, bytes_left = limit, PAGE_BYTES
        while True:
            query = ReadEntries(self._name, self._label, position, min(bytes_left, limits.SLICE_BYTES), left)
            run = await self._db.aexecute(query, self.principal)
            for entry in run.entries:
                count = len(change.skimmed(entry.body).records)
                bytes_left -= len(entry.body)
                if found and (count > left or bytes_left < 0):
                    left = 0
                    break
                found.append(entry)
                left -= count
            if left <= 0 or bytes_left <= 0 or run.next >= run.log.next:
                break
            position = run.next
            await asyncio.sleep(0)
        tail = run.log.next
        entries = await self._workers.run(
            partial(_all_rendered, found, run.stream.name, self._convert), sum(len(entry.body) for entry in found)
        )
        first, after = (found[0].position, found[-1].next) if found else (tail, tail)
        encoding = ChangesEncoding(run.stream.name, self._convert)
        closed = run.stream.closed_ms is not None
        return Piece(run.log.id, CONTENT_TYPE, encoding, first, entries, after, tail, closed)

    async def describe(self) -> Piece:
        info = await self._db.aexecute(StreamState(self._name, self._label), self.principal)
        tail = info.log.next
        encoding = ChangesEncoding(info.stream.name, self._convert)
        return Piece(info.log.id, CONTENT_TYPE, encoding, tail, [], tail, tail, not info.enabled)


class TablesDoor:
    """Everything under /v1/tables/."""

    def __init__(self, db: Database, reading: Reading, bulk: BulkDoor) -> None:
        self._db = db
        self._reading = reading
        self._bulk = bulk
        self._workers = Workers()

    def close(self) -> None:
        """End the threads; what is under way there is finished."""
        self._workers.close()

    def __call__(self, request: Request, raw: bytes, principal: Principal) -> Coroutine[Any, Any, Answer]:
        """Answer a request; `raw` is the path after /v1/tables/, as it came."""
        name, *parts = (decode_path(part) for part in raw.split(b"/"))
        reads = parts == ["stream"] and request.method in (b"GET", b"HEAD")
        if parts[:1] not in (["stream"], ["cursors"]) or (reads and wants_arrow(request)):
            label, as_typed, poll = _label(request), False, None  # the rest is checked there, if there is anything
        else:
            label, as_typed, poll = _asked(request, reads)
        upkeep = Upkeep(self._db, principal, name, label)
        match parts:
            case ["items"]:
                return self._bulk.items(request, principal, name)
            case ["stream"] if reads and wants_arrow(request):
                return self._bulk.table(request, principal, name, label)
            case ["stream"] if poll is not None and request.method == b"GET":
                feed = TableFeed(self._db, self._workers, principal, name, label, typed if as_typed else plain)
                return _polled(feed, *poll)
            case ["stream"]:
                return self._stream(request, principal, name, label, typed if as_typed else plain)
            case ["stream", "info"]:
                return upkeep.info(request)
            case ["stream", "prune"]:
                return upkeep.prune(request)
            case ["cursors"]:
                return upkeep.cursors(request)
            case ["cursors", cursor]:
                return upkeep.cursor(request, cursor)
        raise NotFound(
            "there is nothing here; a table's changes are at /v1/tables/<name>/stream, its items at "
            "/v1/tables/<name>/items, its cursors at /v1/tables/<name>/cursors"
        )

    def _stream(
        self, request: Request, principal: Principal, name: str, label: str | None, convert: Convert
    ) -> Coroutine[Any, Any, Answer]:
        match request.method:
            case b"GET":
                return self._reading.answer(
                    request, TableFeed(self._db, self._workers, principal, name, label, convert)
                )
            case b"HEAD":
                return self._head(name, label, principal)
            case b"PATCH":
                return Upkeep(self._db, principal, name, label).alter(request)
        raise NotAllowed(
            f"a table's change stream does not take {request.method.decode('latin-1')}: it is written by "
            "changing the table",
            allow=METHODS,
        )

    async def _head(self, name: str, label: str | None, principal: Principal) -> Response:
        info = await self._db.aexecute(StreamState(name, label), principal)
        stream, log = info.stream, info.log
        headers: Headers = [
            (b"content-type", CONTENT_TYPE.encode()),
            (b"stream-next-offset", offset(log.next).encode()),
            (b"stream-earliest-offset", offset(info.earliest).encode()),
            (b"cache-control", b"no-store"),
        ]
        if not info.enabled:
            headers.append((b"stream-closed", b"true"))
        if stream.max_age_s is not None:
            headers.append((b"stream-max-age", b"%d" % stream.max_age_s))
        return Response(200, headers)


async def _polled(feed: TableFeed, after: int, limit: int) -> Response:
    piece = await feed.records(None if after == 0 else after + 1, limit)
    return whole(piece, [(b"cache-control", b"no-store")])


def _label(request: Request) -> str | None:
    """The label in a query string, whatever else is in it."""
    pairs = parse_qsl(request.query.decode("ascii", "replace"), keep_blank_values=True)
    return next((text for name, text in pairs if name == "label"), None)


def _asked(request: Request, reads: bool) -> tuple[str | None, bool, tuple[int, int] | None]:
    """What a query string says: the label, whether values are to be typed, and, if it asks so, after which sequence how
    many records are wanted."""
    if not request.query:
        return None, False, None
    given = asking.asked(request, *(READ_PARAMETERS if reads else ("label",)))
    values = given.get("values", "plain")
    if values not in ("plain", "typed"):
        raise Invalid(f"values={values[:80]!r} is unknown; use plain or typed", code="INVALID_VALUES")
    poll = None
    if "after_sequence" in given or "limit" in given:
        others = [name for name in PARAMETERS if name in given]
        if others:
            raise Invalid(
                f"after_sequence and limit do not go with {', '.join(others)}; read by sequences, or by offsets",
                code="INVALID_OFFSET",
            )
        after = _whole_number(given, "after_sequence", 0, 0, limits.POSITION_MAX - 1)
        poll = after, _whole_number(given, "limit", PAGE_RECORDS, 1, limits.POLL_RECORDS_MAX)
    return given.get("label"), values == "typed", poll


def _whole_number(given: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    text = given.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 19) or not least <= int(text) <= most:
        raise Invalid(
            f"{name}={text[:80]!r} is not a whole number from {least} to {most}", code=f"INVALID_{name.upper()}"
        )
    return int(text)
