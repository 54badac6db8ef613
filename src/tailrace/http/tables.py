"""A table's change stream as a Durable Stream to read: catch-up, long-poll and event streams of JSON records.

An entry of the log is one transaction in MessagePack. Here it becomes JSON messages: what is read as it leaves the
database, slice by slice; what is committed once for all who follow. From there on it is a JSON stream like any other.
Records come with plain JSON values, or with ``values=typed`` as DynamoDB writes them.
"""

from __future__ import annotations

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
from tailrace.http.bulk import BulkDoor, wants_arrow
from tailrace.http.dynamodb.apart import Workers
from tailrace.http.encoding import JsonEncoding, rfc3339
from tailrace.http.message import Answer, Headers, Request, Response
from tailrace.http.reading import Piece, Reading
from tailrace.http.streams import decode_path
from tailrace.http.upkeep import Upkeep
from tailrace.log.entry import Entry
from tailrace.log.position import offset
from tailrace.tables import change, value
from tailrace.tables.streams import ReadEntries, StreamState

METHODS: Final = "GET, HEAD, PATCH, OPTIONS"
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
        self._principal = principal
        self._name = name
        self._label = label
        self._convert = convert

    async def read(self, position: int | None, bytes_max: int) -> Piece:
        query = ReadEntries(self._name, self._label, position, bytes_max, limits.SLICE_ENTRIES)
        run = await self._db.aexecute(query, self._principal)
        size = sum(len(entry.body) for entry in run.entries)
        work = partial(_all_rendered, run.entries, run.stream.name, self._convert)
        entries = work() if size <= APART_BYTES else await self._workers.run(work, size)
        closed = run.stream.closed_ms is not None
        encoding = ChangesEncoding(run.stream.name, self._convert)
        return Piece(run.log.id, CONTENT_TYPE, encoding, run.position, entries, run.next, run.log.next, closed)

    async def describe(self) -> Piece:
        info = await self._db.aexecute(StreamState(self._name, self._label), self._principal)
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
        label, as_typed = _asked(request.query)
        upkeep = Upkeep(self._db, principal, name, label)
        match parts:
            case ["items"]:
                return self._bulk.items(request, principal, name)
            case ["stream"] if request.method in (b"GET", b"HEAD") and wants_arrow(request):
                return self._bulk.table(request, principal, name, label)
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


def _asked(query: bytes) -> tuple[str | None, bool]:
    """The label in a query string, and whether it asks for typed values. What is malformed is said where it is read."""
    if b"label" not in query and b"values" not in query:
        return None, False
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=64)
    except ValueError as error:
        raise Invalid(f"the query string is malformed: {error}") from None
    label, values = None, "plain"
    for name, text in pairs:
        if name == "label":
            label = text
        elif name == "values":
            values = text
    if values not in ("plain", "typed"):
        raise Invalid(f"values={values[:80]!r} is unknown; use plain or typed", code="INVALID_VALUES")
    return label, values == "typed"
