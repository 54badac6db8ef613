"""A table's change stream as a Durable Stream to read: catch-up, long-poll and event streams of JSON records.

An entry of the log is one transaction in MessagePack. Here it becomes JSON messages: what is read as it leaves the
database, slice by slice; what is committed once for all who follow. From there on it is a JSON stream like any other.
Records come with plain JSON values, or with ``values=typed`` as DynamoDB writes them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tailrace import limits
from tailrace.access import Principal
from tailrace.database import Database
from tailrace.errors import Invalid
from tailrace.http import feed_filter
from tailrace.http.codec import parameters_of, rfc3339
from tailrace.http.dynamodb.offload import OffloadPool
from tailrace.http.feed_filter import FeedFilter
from tailrace.http.message import Answer, Headers, Request, Response
from tailrace.http.reading import PARAMETERS, FeedSlice, whole
from tailrace.http.sse import JsonEncoding
from tailrace.log.entry import Entry
from tailrace.log.position import offset
from tailrace.tables import change, value
from tailrace.tables.change_info import ChangeStreamBounds, FindStreamBounds
from tailrace.tables.change_reading import ReadEntries

if TYPE_CHECKING:
    from tailrace.http.services import Services

READ_PARAMETERS: Final = (*PARAMETERS, "label", "values", "after_sequence", "limit", feed_filter.PARAMETER)
CONTENT_TYPE: Final = "application/json"
OFFLOAD_BYTES: Final = 64 * limits.KiB  # of entries; more are made JSON in a thread


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


def rendered(entry: Entry, table: str, convert: Convert, where: FeedFilter | None = None) -> bytes:
    """The entry with JSON messages for a body, commas between them; of records for which the filter is true.

    Record by record: decoding and encoding are calls that nothing interrupts, and a transaction may be large."""
    at = rfc3339(entry.at_ms)
    found = change.skimmed(entry.body)
    sequence, last = entry.next - 1, len(found.records) - 1
    messages = []
    for index, raw in enumerate(found.records):
        record = change.record(raw)
        if where is not None and not where.takes_change(record, found.by):
            continue
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
    return b",".join(messages)


def _all_rendered(entries: list[Entry], table: str, convert: Convert, where: FeedFilter | None) -> list[bytes]:
    bodies = [rendered(entry, table, convert, where) for entry in entries]
    return bodies if where is None else list(filter(None, bodies))


class ChangesEncoding(JsonEncoding):
    """One table's records. Equal ones share a channel, so that everybody on it is sent the same bytes."""

    live_bytes_max = OFFLOAD_BYTES

    def __init__(self, table: str, convert: Convert, where: FeedFilter | None = None) -> None:
        self._identity = (table, convert, where)
        self.sparse = where is not None

    def rendered(self, entry: Entry) -> bytes:
        return rendered(entry, *self._identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChangesEncoding) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)


class TableFeed:
    """A table's change stream as something to be read."""

    renew_s = math.inf

    def __init__(
        self,
        db: Database,
        workers: OffloadPool,
        principal: Principal,
        name: str,
        label: str | None,
        convert: Convert,
        where: FeedFilter | None = None,
    ) -> None:
        self._where = where
        self._db = db
        self._workers = workers
        self.principal = principal
        self.slice_bytes = limits.SLICE_BYTES
        self._name = name
        self._label = label
        self._convert = convert

    async def read(self, position: int | None, bytes_max: int) -> FeedSlice:
        query = ReadEntries(self._name, self._label, position, bytes_max, limits.SLICE_ENTRIES)
        run = await self._db.aexecute(query, self.principal)
        size = sum(len(entry.body) for entry in run.entries)
        work = partial(_all_rendered, run.entries, run.stream.name, self._convert, self._where)
        bodies = work() if size <= OFFLOAD_BYTES else await self._workers.run(work, size)
        closed = run.stream.closed_ms is not None
        encoding = ChangesEncoding(run.stream.name, self._convert, self._where)
        return FeedSlice(run.log.id, CONTENT_TYPE, encoding, run.position, bodies, run.next, run.log.next, closed)

    async def records(self, position: int | None, limit: int) -> FeedSlice:
        """Transactions from `position` on, until they have `limit` records; none is cut in two, and there is at least
        one if there is any. Read in slices between which the loop serves others."""
        found: list[Entry] = []
        left, bytes_left = limit, limits.CHANGE_PAGE_BYTES
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
        bodies = await self._workers.run(
            partial(_all_rendered, found, run.stream.name, self._convert, self._where),
            sum(len(entry.body) for entry in found),
        )
        first, after = (found[0].position, found[-1].next) if found else (tail, tail)
        encoding = ChangesEncoding(run.stream.name, self._convert, self._where)
        closed = run.stream.closed_ms is not None
        return FeedSlice(run.log.id, CONTENT_TYPE, encoding, first, bodies, after, tail, closed)

    async def describe(self) -> FeedSlice:
        info = await self._db.aexecute(FindStreamBounds(self._name, self._label), self.principal)
        tail = info.log.next
        encoding = ChangesEncoding(info.stream.name, self._convert, self._where)
        return FeedSlice(info.log.id, CONTENT_TYPE, encoding, tail, [], tail, tail, not info.enabled)


async def read(services: Services, request: Request, principal: Principal, name: str) -> Answer:
    """A page, a long-poll or an event stream; or records after a sequence. With `where`, of the records for which it is
    true."""
    label, as_typed, poll = _parameters(request)
    text = feed_filter.requested(request)
    where = None
    if text is not None:
        stream = await services.db.aexecute(ReadEntries(name, label, entries_max=0), principal)
        where = await feed_filter.compiled(text, stream.declared)
    convert = typed if as_typed else plain
    feed = TableFeed(services.db, services.change_workers, principal, name, label, convert, where)
    return await (services.reading.answer(request, feed) if poll is None else _polled(feed, *poll))


def parse_head(request: Request, name: str) -> FindStreamBounds:
    label, _, _ = _parameters(request)
    return FindStreamBounds(name, label)


def render_head(request: Request, info: ChangeStreamBounds) -> Response:
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


def _parameters(request: Request) -> tuple[str | None, bool, tuple[int, int] | None]:
    """The query string of a read: the label, whether values are to be typed, and, for a poll, after which sequence how
    many records are wanted."""
    if not request.query:
        return None, False, None
    given = parameters_of(request)
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
        poll = after, _whole_number(given, "limit", limits.CHANGE_PAGE_RECORDS, 1, limits.POLL_RECORDS_MAX)
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
