"""Logs in bulk: what there is of them, and ranges of them as Arrow.

GET  /v1/logs            what a table, topic or stream has of history
GET  /v1/logs/at         by partition, the first offset of a moment
GET  /v1/logs/advance    by partition, how far some records reach
GET  /v1/logs/count      how many records a range of a table has, and where to cut it
GET  the read endpoints of streams, tables' changes and partitions, with `Accept: application/vnd.apache.arrow.stream`
GET  /v1/tables/<name>/items    likewise: all items of a table, of one moment

An Arrow answer is sent batch by batch. The database is read, and rows are made, on a few threads of their own, one
batch at a time for each reader: the event loop goes on, and so do writers. What has to be fetched from cold storage,
which may take long, has other threads: those who read what is hot do not wait behind it. The next batch is read when
the last was taken, so that a reader costs about two batches of memory however slow it is. An answer that cannot be
finished ends with the connection, so that nobody takes a part for the whole; but what is wrong with its first batch is
told as an error.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa

from tailrace import limits
from tailrace.access import Principal
from tailrace.bulk import columns, queries
from tailrace.bulk.columns import PLAIN, STREAM, TABLE, TOPIC, TYPED
from tailrace.bulk.entries import SCHEMA as ENTRIES
from tailrace.bulk.queries import Facts, ReadItems, Run, Which
from tailrace.command import Query
from tailrace.database import Database
from tailrace.errors import Invalid, NotAllowed, Unavailable
from tailrace.http import asking
from tailrace.http.bulk import ARROW, cold_url, wants_arrow
from tailrace.http.message import Answer, Frame, Headers, Live, Request, Response, Sink
from tailrace.http.unsent import Held
from tailrace.jobs.identity import Identify
from tailrace.log.position import BEGINNING, NOW, offset, parse
from tailrace.streams.commands import Touch
from tailrace.tables.export import Export

NAMES: Final = ("table", "topic", "stream", "label")
METHODS: Final = "GET, HEAD, OPTIONS"
FRAME_BYTES: Final = 1 * limits.MiB  # sent at once; then the reader has time to take it
ROWS_BYTES: Final = limits.BULK_BYTES // 2  # of entries that become rows: JSON takes about twice their room
RECORDS_MAX: Final = 1_000_000_000

_DIGITS: Final = re.compile(r"[0-9]{1,16}", re.ASCII)
_offsets: Final = msgspec.json.Decoder(dict[str, int])
_ROWS, _ENTRIES = "rows", "entries"

Piece = tuple[list[memoryview], int]  # a batch, and where the next one begins

A = TypeVar("A")
T = TypeVar("T")


class ArrowDoor:
    """What `BulkDoor` leads to."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._threads = ThreadPoolExecutor(limits.BULK_READS_MAX, thread_name_prefix="tailrace-bulk")
        self._cold = ThreadPoolExecutor(limits.BULK_COLD_READS_MAX, thread_name_prefix="tailrace-bulk-cold")
        self._scans = asyncio.Semaphore(limits.EXPORTS_MAX)

    def close(self) -> None:
        """End the threads; what is under way there is finished."""
        self._threads.shutdown(cancel_futures=True)
        self._cold.shutdown(cancel_futures=True)

    def _apart(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """What `work` returns, called in a thread when one is free."""
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _ask(self, query: Query[A], principal: Principal, then: Callable[[A], T]) -> T:
        """What `then` makes of the answer, both in a thread: if something is to be fetched first, one of those that
        may wait."""

        def at_once() -> tuple[T] | None:
            answer = self._db.execute(queries.ready(query), principal)
            return None if answer is None else (then(answer),)

        found = await self._apart(at_once)
        if found is not None:
            return found[0]
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._cold, lambda: then(self._db.execute(query, principal)))

    # -- what there is

    def logs(self, request: Request, raw: bytes, principal: Principal) -> Coroutine[Any, Any, Answer]:
        """Answer a request; `raw` is the path after /v1/logs, as it came."""
        if raw not in (b"", b"/at", b"/advance", b"/count"):
            raise asking.nothing(request, "below /v1/logs there are at, advance and count")
        if request.method not in (b"GET", b"HEAD"):
            raise asking.refused(request, METHODS)
        if raw == b"/at":
            return self._at(request, principal)
        if raw == b"/count":
            return self._count(request, principal)
        return self._advance(request, principal) if raw else self._describe(request, principal)

    async def _describe(self, request: Request, principal: Principal) -> Response:
        which = _which(asking.asked(request, *NAMES))
        identity = await self._db.aexecute(Identify())

        def work() -> Response:  # a topic may have many partitions
            facts = self._db.execute(queries.find_logs(which), principal)
            return asking.answer(described(facts, identity, cold_url(self._db)))

        return await asyncio.to_thread(work)

    async def _at(self, request: Request, principal: Principal) -> Response:
        asked = asking.asked(request, *NAMES, "timestamp")
        at_ms = _whole(asked, "timestamp", limits.POSITION_MAX, "milliseconds since 1970")
        query = queries.offsets_at(_which(asked), at_ms)
        return asking.answer({"offsets": await self._ask(query, principal, asking.numbered)})

    async def _advance(self, request: Request, principal: Principal) -> Response:
        asked = asking.asked(request, *NAMES, "from", "records")
        records = _whole(asked, "records", RECORDS_MAX, "a number of records", least=1)
        query = queries.advance(_which(asked), _from(asked), records)
        return asking.answer({"offsets": await self._ask(query, principal, asking.numbered)})

    async def _count(self, request: Request, principal: Principal) -> Response:
        asked = asking.asked(request, *NAMES, "first", "until", "pieces")
        first = _whole(asked, "first", limits.POSITION_MAX, "an offset")
        until = _whole(asked, "until", limits.POSITION_MAX, "an offset")
        pieces = 1
        if "pieces" in asked:
            pieces = _whole(asked, "pieces", limits.BULK_PIECES_MAX, "a number of pieces", least=1)
        query = queries.CountRecords(_which(asked), first, until, pieces)
        return asking.answer(await self._ask(query, principal, msgspec.to_builtins))

    # -- ranges of logs

    def stream(self, request: Request, principal: Principal, path: str) -> Coroutine[Any, Any, Answer]:
        return self._range(request, principal, Which(STREAM, path))

    def table(
        self, request: Request, principal: Principal, name: str, label: str | None
    ) -> Coroutine[Any, Any, Answer]:
        return self._range(request, principal, Which(TABLE, name, label))

    def partition(self, request: Request, principal: Principal, topic: str, number: int) -> Coroutine[Any, Any, Answer]:
        return self._range(request, principal, Which(TOPIC, topic), number)

    async def _range(self, request: Request, principal: Principal, which: Which, number: int = 0) -> Answer:
        _check_method(request)
        known = ("offset", "until", "form", "images", "values", *(("label",) if which.kind == TABLE else ()))
        asked = asking.asked(request, *known)
        form = asked.get("form", _ROWS)
        if form not in (_ROWS, _ENTRIES):
            raise Invalid(f"form={form[:80]!r} is unknown; use {_ROWS} or {_ENTRIES}", code="INVALID_FORM")
        images = asked.get("images", asked.get("values", PLAIN))
        if images not in (PLAIN, TYPED):
            raise Invalid(f"images={images[:80]!r} is unknown; use {PLAIN} or {TYPED}", code="INVALID_IMAGES")
        first, until = _position(asked, "offset"), _position(asked, "until")
        found = await self._db.aexecute(queries.plan(which, number, first, until), principal)
        if found.idle:
            self._db.aexecute(Touch(which.name))  # a reader keeps the stream alive; nobody waits for it
        if asked.get("offset") == NOW:
            found = msgspec.structs.replace(found, first=found.tail, end=found.tail)
        decode: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
        if form == _ROWS:
            decode = partial(
                columns.rows_of, which.kind, partition=number, content_type=found.content_type, images=images
            )
        schema = ENTRIES if decode is None else columns.schema_of(which.kind, found.content_type)
        headers = _headers([(b"stream-next-offset", offset(found.end).encode())])
        if found.end >= found.tail:
            headers.append((b"stream-up-to-date", b"true"))
        frames = Frames(schema)
        bytes_max = limits.BULK_BYTES if decode is None else ROWS_BYTES

        def made(run: Run) -> Piece:
            return (frames.of(run.entries, decode) if run.entries.num_rows else []), run.next

        def ask(position: int) -> Coroutine[Any, Any, Piece]:
            return self._ask(queries.packed_entries(which, found.log, position, found.end, bytes_max), principal, made)

        # The first one comes before the answer does: what goes wrong with it is told, and not just cut off.
        first_piece = await ask(found.first) if request.method == b"GET" and found.first < found.end else None
        return Live(200, headers, partial(_send_range, frames, ask, first_piece, found.end), whole=True)

    # -- items of a table

    async def items(self, request: Request, principal: Principal, name: str) -> Answer:
        """All items of a table, of one moment."""
        _check_method(request)
        asking.asked(request)
        if not wants_arrow(request):
            raise Invalid(
                f"a table's items are told as Arrow; send Accept: {ARROW.decode()}, or use Scan or SELECT",
                code="NOT_ACCEPTABLE",
            )
        if request.method == b"HEAD":
            await self._db.aexecute(queries.CheckTable(name), principal)
            return Live(200, _headers([]), _nothing_to_send, whole=True)
        scan = Scan(self._db, self._threads, self._scans, name)
        export = await scan.begin(principal)
        frames = Frames(columns.ITEMS)

        def made(bodies: pa.Array) -> list[memoryview]:
            return frames.of(bodies, lambda array: columns.items_of(array, export.keys)) if len(bodies) else []

        async def run(sink: Sink) -> None:
            async with scan.running():
                await _send(sink, frames.begin())
                while (pieces := await scan.next(made)) is not None:
                    await _send(sink, pieces)
                await _send(sink, frames.end())

        headers = _headers([(b"tailrace-sequence", b"%d" % export.sequence)])
        return Live(200, headers, run, whole=True)


class Pace:
    """Lets others go first: the busier the event loop is, the longer a reader rests between two batches. To send them
    takes some of the loop's time too, which is not counted."""

    def __init__(self) -> None:
        self._began_s, self._used_s = time.monotonic(), time.thread_time()

    async def rest(self) -> None:
        """Call it on the loop, when a batch was sent."""
        took_s = time.monotonic() - self._began_s
        busy = (time.thread_time() - self._used_s) / max(took_s, 1e-6)
        await asyncio.sleep(took_s * limits.BULK_REST * max(0.0, busy - limits.BULK_BUSY) / (1 - limits.BULK_BUSY))
        self._began_s, self._used_s = time.monotonic(), time.thread_time()


class Frames:
    """Batches as an Arrow IPC stream, piece by piece."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def begin(self) -> list[memoryview]:
        return [memoryview(self._schema.serialize())]

    def of(self, given: Any, decode: Callable[[Any], pa.RecordBatch] | None) -> list[memoryview]:
        """The pieces of one batch. In a thread: it may take long."""
        batch = given if decode is None else decode(given)
        message = memoryview(batch.serialize())
        return [message[at : at + FRAME_BYTES] for at in range(0, len(message), FRAME_BYTES)]

    def end(self) -> list[memoryview]:
        """The mark without which a stream was cut off."""
        return [memoryview(b"\xff\xff\xff\xff\x00\x00\x00\x00")]


class Scan:
    """An export of a table's items for one reader. No view of the database and no thread is held between two pages, so
    a reader may be slow; but it has a place among the exports, and gives it back at the end."""

    def __init__(self, db: Database, threads: ThreadPoolExecutor, places: asyncio.Semaphore, table: str) -> None:
        self._db = db
        self._threads = threads
        self._places = places
        self._table = table
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + limits.EXPORT_S
        self._export: Export | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._left = False

    async def begin(self, principal: Principal) -> Export:
        """Start; what the export is of. Raises what a query raises."""
        try:
            await asyncio.wait_for(self._places.acquire(), limits.BULK_WAIT_S)
        except TimeoutError:
            raise Unavailable(
                f"{limits.EXPORTS_MAX} exports of items are under way; try again when one has ended", code="SCANS_BUSY"
            ) from None
        beginning = self._loop.run_in_executor(self._threads, self._db.exports.begin, self._table, principal)
        try:
            self._export = await asyncio.shield(beginning)
        except BaseException:
            beginning.add_done_callback(self._abandoned)
            raise
        # An answer may never be begun: its reader has gone before it was its turn.
        self._watch = self._loop.call_later(limits.BULK_WAIT_S, self._leave)
        return self._export

    def _abandoned(self, beginning: asyncio.Future[Export]) -> None:
        """The request was given up before the export had begun, or it did not begin."""
        self._export = None if beginning.cancelled() or beginning.exception() is not None else beginning.result()
        self._leave()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While pages are taken; at the end the export is ended, whatever is left. A reader that takes them a few bytes
        at a time has to come to an end, too: what changes meanwhile is kept for it."""
        assert self._watch is not None
        self._watch.cancel()
        if self._left:
            raise Unavailable("the items were not taken in time; ask again", code="TOO_SLOW")
        try:
            async with asyncio.timeout_at(self._deadline):
                yield
        except TimeoutError:
            raise Unavailable(
                f"the items were not taken within {limits.EXPORT_S:.0f} s; ask again", code="TOO_SLOW"
            ) from None
        finally:
            self._leave()

    async def next(self, made: Callable[[pa.Array], T]) -> T | None:
        """What `made` makes of the next page, both in a thread; None when there are no more."""
        assert self._export is not None
        query = ReadItems(self._export)

        def work() -> T | None:
            page = self._db.execute(query)
            return None if page is None else made(page)

        return await self._loop.run_in_executor(self._threads, work)

    def _leave(self) -> None:
        """End the export, once."""
        if self._left:
            return
        self._left = True
        self._places.release()
        if self._export is not None:
            with suppress(RuntimeError):  # the threads have ended with the server: the database ends it
                self._threads.submit(self._end, self._export)

    def _end(self, export: Export) -> None:
        self._db.exports.end(export)
        pa.default_memory_pool().release_unused()  # Arrow would keep the memory of the largest pages


async def _send_range(
    frames: Frames, ask: Callable[[int], Awaitable[Piece]], piece: Piece | None, end: int, sink: Sink
) -> None:
    pace = Pace()
    await _send(sink, frames.begin())
    while piece is not None:
        made, position = piece
        piece = None
        await _send(sink, made)
        del made
        if position >= end:
            break
        await pace.rest()
        piece = await ask(position)
    await _send(sink, frames.end())


async def _nothing_to_send(sink: Sink) -> None:
    return None


async def _send(sink: Sink, pieces: list[memoryview]) -> None:
    sink.hold(Held(sum(map(len, pieces))))
    try:
        for piece in pieces:
            await sink.drained()
            sink.send(Frame(bytes(piece)))
        await sink.drained()
    finally:
        sink.release()


def _headers(more: Headers) -> Headers:
    return [(b"content-type", ARROW), *more, (b"cache-control", b"no-store"), (b"vary", b"accept")]


def _check_method(request: Request) -> None:
    if request.method not in (b"GET", b"HEAD"):
        raise NotAllowed(f"Arrow is for reading; {request.method.decode('latin-1')} is not", allow=METHODS)


# -- what is asked


def _which(asked: dict[str, str]) -> Which:
    named = [(kind, asked[kind]) for kind in (TABLE, TOPIC, STREAM) if kind in asked]
    if len(named) != 1:
        given = ", ".join(kind for kind, _ in named) or "none"
        raise Invalid(f"a log is named by exactly one of table, topic and stream, and {given} is given; give one")
    ((kind, name),) = named
    if "label" in asked and kind != TABLE:
        raise Invalid(f"label={asked['label'][:80]!r} is for tables: a {kind} has none; leave it out")
    return Which(kind, name, asked.get("label"))


def _position(asked: dict[str, str], name: str) -> int | None:
    """A position as an offset or a number; None where it is not given or means the one that goes without saying."""
    text = asked.get(name)
    if text is None or text in (BEGINNING, NOW):
        if name == "until" and text == BEGINNING:
            raise Invalid("until=-1 would end at the beginning; leave it out to read up to the tail")
        return None
    return int(text) if _DIGITS.fullmatch(text) else parse(text)


def _whole(asked: dict[str, str], name: str, most: int, what: str, least: int = 0) -> int:
    text = asked.get(name)
    if text is None:
        raise Invalid(f"{name} is missing; give {what}")
    if not _DIGITS.fullmatch(text) or not least <= int(text) <= most:
        raise Invalid(f"{name}={text[:80]!r} is not {what} from {least} to {most}")
    return int(text)


def _from(asked: dict[str, str]) -> dict[int, int]:
    text = asked.get("from")
    wrong = 'give offsets by partition, as in from={"0":12}'
    if text is None:
        raise Invalid(f"from is missing; {wrong}")
    try:
        found = {int(number): at for number, at in _offsets.decode(text).items() if _DIGITS.fullmatch(number)}
    except (msgspec.DecodeError, ValueError) as error:
        raise Invalid(f"from={text[:80]!r} cannot be read ({error}); {wrong}") from None
    if not found or any(not 0 <= at <= limits.POSITION_MAX for at in found.values()):
        raise Invalid(f"from={text[:80]!r} has no offsets, or one that is none; {wrong}")
    return found


# -- what is told


def described(facts: Facts, identity: str, url: str | None) -> dict[str, Any]:
    """The answer of /v1/logs."""
    place = None
    if facts.place is not None and url is not None:
        place = {"url": url, "place": facts.place.name, "generation": facts.place.generation}
    return {
        "kind": facts.which.kind,
        "name": facts.which.name,
        "label": facts.label,
        "view": facts.view,
        "content_type": facts.content_type,
        "keys": facts.keys,
        "columns": facts.columns,
        "complete": facts.complete,
        "database": identity,
        "partitions": [
            {
                "partition": part.partition,
                "log": part.log.id,
                "earliest": part.earliest,
                "hot": part.log.start,
                "tiered": part.earliest if part.tier is None else part.tier.tiered,
                "next": part.log.next,
                "at_ms": part.log.at_ms,
            }
            for part in facts.parts
        ],
        "cold": place,
    }
