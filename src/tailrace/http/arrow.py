"""Logs in bulk: facts about logs, and ranges of them as Arrow.

An Arrow response is sent batch by batch. The database is read, and rows are made, on a few threads of their own, one
batch at a time for each reader: the event loop goes on, and so do writers. Reads that have to fetch from cold storage,
which may take long, have other threads: reads of hot data do not wait behind them. The next batch is read when the last
was taken, so that a reader costs about two batches of memory however slow it is. A response that cannot be finished
ends with the connection, so that no part is taken for the whole; a failure of the first batch is an error response.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
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
from tailrace.bulk.queries import EntryBatch, LogInfo, LogSelector, ReadItems
from tailrace.command import Query
from tailrace.database import Database
from tailrace.errors import Invalid, NotFound, Unavailable
from tailrace.http.bulk import (
    ARROW,
    AdvanceLog,
    AdvanceResponse,
    ColdTableResponse,
    LogPartitionResponse,
    LogResponse,
    LogsResponse,
    OffsetsResponse,
    cold_url,
)
from tailrace.http.codec import LogName, by_log, json_response, parameters_of
from tailrace.http.message import Answer, Frame, Headers, LiveResponse, Request, Response, ResponseSink
from tailrace.http.unsent import Held
from tailrace.jobs.identity import Identify
from tailrace.log.position import BEGINNING, NOW, offset, parse
from tailrace.streams.commands import TouchStream
from tailrace.tables.export import Export

FRAME_BYTES: Final = 1 * limits.MiB  # sent at once; then the reader has time to take it
ROWS_BYTES: Final = limits.BULK_BYTES // 2  # of entries that become rows: JSON takes about twice their room

_DIGITS: Final = re.compile(r"[0-9]{1,16}", re.ASCII)
_ROWS, _ENTRIES, _STORED = "rows", "entries", "stored"

Piece = tuple[list[memoryview], int]  # a batch, and where the next one begins

A = TypeVar("A")
T = TypeVar("T")


class ArrowHandlers:
    """Handlers that `bulk.py` loads when they are first needed."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._threads = ThreadPoolExecutor(limits.BULK_READS_MAX, thread_name_prefix="tailrace-bulk")
        self._cold = ThreadPoolExecutor(limits.BULK_COLD_READS_MAX, thread_name_prefix="tailrace-bulk-cold")
        self._scans = asyncio.Semaphore(limits.EXPORTS_MAX)

    def close(self) -> None:
        """End the threads; what is under way there is finished."""
        self._threads.shutdown(cancel_futures=True)
        self._cold.shutdown(cancel_futures=True)

    def _offload(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` in a thread when one is free."""
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _query(self, query: Query[A], principal: Principal, then: Callable[[A], T]) -> T:
        """The result of a query, converted by `then`, both in a thread: if history has to be fetched first, in one of
        those that may wait."""

        def at_once() -> tuple[T] | None:
            answer = self._db.execute(queries.ready(query), principal)
            return None if answer is None else (then(answer),)

        found = await self._offload(at_once)
        if found is not None:
            return found[0]
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._cold, lambda: then(self._db.execute(query, principal)))

    # -- facts about logs

    async def describe(self, names: dict[str, str], principal: Principal) -> Response:
        """The history of a table, topic or stream: where each partition begins and ends, and its cold part."""
        which = _which(names)
        identity = await self._db.aexecute(Identify())

        def work() -> Response:  # a topic may have many partitions
            facts = self._db.execute(queries.find_logs(which), principal)
            return json_response(described(facts, identity, cold_url(self._db)))

        return await asyncio.to_thread(work)

    async def offsets_at(self, parameters: dict[str, str], principal: Principal) -> Response:
        """By partition, the first offset of a moment."""
        at_ms = _whole(parameters, "timestamp", limits.POSITION_MAX, "milliseconds since 1970")
        query = queries.offsets_at(_which(parameters), at_ms)
        return json_response({"offsets": await self._query(query, principal, by_log)})

    async def describe_many(self, names: Sequence[LogName], principal: Principal) -> Response:
        """As `describe`, for as many of them as have at most `BULK_LOGS_MAX` partitions together; one at least."""
        identity = await self._db.aexecute(Identify())

        def work() -> Response:
            url = cold_url(self._db)
            found: list[LogResponse | None] = []
            partitions = 0
            for which in map(_selected, names):
                try:
                    facts = described(self._db.execute(queries.find_logs(which), principal), identity, url)
                except NotFound:
                    found.append(None)
                    continue
                partitions += len(facts.partitions)
                if partitions > limits.BULK_LOGS_MAX and found:
                    break
                found.append(facts)
            return json_response(LogsResponse(found))

        return await self._offload(work)

    async def advance(self, wanted: Sequence[AdvanceLog], principal: Principal) -> Response:
        """By partition, how far some records reach."""
        if sum(len(each.offsets) for each in wanted) > limits.BULK_LOGS_MAX:
            raise Invalid(f"the request has more than {limits.BULK_LOGS_MAX} offsets; send several requests")

        def at_once() -> list[tuple[Query[dict[int, int]], tuple[dict[int, int] | None] | None]]:
            asked = [queries.advance(_selected(each), each.offsets, each.records) for each in wanted]
            return [(each, _if_found(partial(self._db.execute, queries.ready(each), principal))) for each in asked]

        found: list[OffsetsResponse | None] = []
        loop = asyncio.get_running_loop()
        for query, answer in await self._offload(at_once):
            if answer is not None and answer[0] is None:  # history has to be fetched first
                fetching = partial(self._db.execute, query, principal)
                answer = await loop.run_in_executor(self._cold, _if_found, fetching)
            found.append(None if answer is None or answer[0] is None else OffsetsResponse(by_log(answer[0])))
        return json_response(AdvanceResponse(found))

    async def count(self, parameters: dict[str, str], principal: Principal) -> Response:
        """How many records a range of a table has, and where to cut it."""
        first = _whole(parameters, "first", limits.POSITION_MAX, "an offset")
        until = _whole(parameters, "until", limits.POSITION_MAX, "an offset")
        pieces = 1
        if "pieces" in parameters:
            pieces = _whole(parameters, "pieces", limits.BULK_PIECES_MAX, "a number of pieces", least=1)
        query = queries.CountRecords(_which(parameters), first, until, pieces)
        return json_response(await self._query(query, principal, msgspec.to_builtins))

    # -- ranges of logs

    def stream(self, request: Request, principal: Principal, path: str) -> Coroutine[Any, Any, Answer]:
        return self._range(request, principal, LogSelector(STREAM, path))

    def table(self, request: Request, principal: Principal, name: str) -> Coroutine[Any, Any, Answer]:
        return self._range(request, principal, LogSelector(TABLE, name, parameters_of(request).get("label")))

    def partition(self, request: Request, principal: Principal, topic: str, number: int) -> Coroutine[Any, Any, Answer]:
        return self._range(request, principal, LogSelector(TOPIC, topic), number)

    async def _range(self, request: Request, principal: Principal, which: LogSelector, number: int = 0) -> Answer:
        parameters = parameters_of(request)
        form = parameters.get("form", _ROWS)
        if form not in (_ROWS, _ENTRIES):
            raise Invalid(f"form={form[:80]!r} is unknown; use {_ROWS} or {_ENTRIES}", code="INVALID_FORM")
        images = parameters.get("images", parameters.get("values", PLAIN))
        if images not in (PLAIN, TYPED):
            raise Invalid(f"images={images[:80]!r} is unknown; use {PLAIN} or {TYPED}", code="INVALID_IMAGES")
        first, until = _position(parameters, "offset"), _position(parameters, "until")
        found = await self._db.aexecute(queries.plan(which, number, first, until), principal)
        if found.idle:
            self._db.aexecute(TouchStream(which.name))  # a reader keeps the stream alive; the result is not awaited
        if parameters.get("offset") == NOW:
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

        def made(run: EntryBatch) -> Piece:
            return (frames.of(run.entries, decode) if run.entries.num_rows else []), run.next

        def next_piece(position: int) -> Coroutine[Any, Any, Piece]:
            return self._query(
                queries.packed_entries(which, found.log, position, found.end, bytes_max), principal, made
            )

        # The first batch is read before the response begins: its failure is an error response, not a broken connection.
        first_piece = await next_piece(found.first) if request.method == b"GET" and found.first < found.end else None
        return LiveResponse(200, headers, partial(_send_range, frames, next_piece, first_piece, found.end), whole=True)

    # -- items of a table

    async def items(self, request: Request, principal: Principal, name: str) -> Answer:
        """All items of a table, of one moment; or those of a segment."""
        parameters = parameters_of(request)
        form = parameters.get("form", _ROWS)
        if form not in (_ROWS, _STORED):
            raise Invalid(f"form={form[:80]!r} is unknown; use {_ROWS} or {_STORED}", code="INVALID_FORM")
        segment, segments = _segment(parameters)
        if request.method == b"HEAD":
            await self._db.aexecute(queries.CheckTable(name), principal)
            return LiveResponse(200, _headers([]), _nothing_to_send, whole=True)
        scan = Scan(self._db, self._threads, self._scans, name)
        export = await scan.begin(principal, segment, segments)
        frames = Frames(columns.ITEMS if form == _ROWS else columns.STORED_ITEMS)

        def decode(bodies: pa.Array) -> pa.RecordBatch:
            if form == _ROWS:
                return columns.items_of(bodies, export.keys)
            return pa.RecordBatch.from_arrays([bodies], schema=columns.STORED_ITEMS)

        def made(bodies: pa.Array) -> list[memoryview]:
            return frames.of(bodies, decode) if len(bodies) else []

        async def run(sink: ResponseSink) -> None:
            async with scan.running():
                await _send(sink, frames.begin())
                while (pieces := await scan.next(made)) is not None:
                    await _send(sink, pieces)
                await _send(sink, frames.end())

        headers = _headers([(b"tailrace-sequence", b"%d" % export.sequence)])
        return LiveResponse(200, headers, run, whole=True)


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

    def of(self, source: Any, decode: Callable[[Any], pa.RecordBatch] | None) -> list[memoryview]:
        """The pieces of one batch. In a thread: it may take long."""
        batch = source if decode is None else decode(source)
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

    async def begin(self, principal: Principal, segment: int = 0, segments: int = 1) -> Export:
        """Start; what the export is of. Raises what a query raises."""
        try:
            await asyncio.wait_for(self._places.acquire(), limits.BULK_WAIT_S)
        except TimeoutError:
            raise Unavailable(
                f"{limits.EXPORTS_MAX} exports of items are under way; try again when one has ended", code="SCANS_BUSY"
            ) from None
        beginning = self._loop.run_in_executor(
            self._threads, self._db.exports.begin, self._table, principal, segment, segments
        )
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
            raise Unavailable("the client did not read the items in time; repeat the request", code="TOO_SLOW")
        try:
            async with asyncio.timeout_at(self._deadline):
                yield
        except TimeoutError:
            raise Unavailable(
                f"the client did not read the items within {limits.EXPORT_S:.0f} s; ask again", code="TOO_SLOW"
            ) from None
        finally:
            self._leave()

    async def next(self, made: Callable[[pa.Array], T]) -> T | None:
        """The next page, converted by `made`, both in a thread; None when there are no more."""
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
    frames: Frames, next_piece: Callable[[int], Awaitable[Piece]], piece: Piece | None, end: int, sink: ResponseSink
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
        piece = await next_piece(position)
    await _send(sink, frames.end())


async def _nothing_to_send(sink: ResponseSink) -> None:
    return None


async def _send(sink: ResponseSink, pieces: list[memoryview]) -> None:
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


def _if_found(work: Callable[[], T]) -> tuple[T] | None:
    """The result of `work`; None if what it is about does not exist."""
    try:
        return (work(),)
    except NotFound:
        return None


# -- parameters


def _selected(name: LogName) -> LogSelector:
    """The logs that a body names."""
    given = ((TABLE, name.table), (TOPIC, name.topic), (STREAM, name.stream), ("label", name.label))
    return _which({kind: value for kind, value in given if value is not None})


def _which(parameters: dict[str, str]) -> LogSelector:
    named = [(kind, parameters[kind]) for kind in (TABLE, TOPIC, STREAM) if kind in parameters]
    if len(named) != 1:
        given = ", ".join(kind for kind, _ in named) or "none"
        raise Invalid(f"a log is named by exactly one of table, topic and stream, and {given} is given; give one")
    ((kind, name),) = named
    if "label" in parameters and kind != TABLE:
        raise Invalid(f"label={parameters['label'][:80]!r} is for tables: a {kind} has none; leave it out")
    return LogSelector(kind, name, parameters.get("label"))


def _position(parameters: dict[str, str], name: str) -> int | None:
    """A position as an offset or a number; None where it is not given or means the one that goes without saying."""
    text = parameters.get(name)
    if text is None or text in (BEGINNING, NOW):
        if name == "until" and text == BEGINNING:
            raise Invalid("until=-1 would end at the beginning; leave it out to read up to the tail")
        return None
    return int(text) if _DIGITS.fullmatch(text) else parse(text)


def _whole(parameters: dict[str, str], name: str, most: int, what: str, least: int = 0) -> int:
    text = parameters.get(name)
    if text is None:
        raise Invalid(f"{name} is missing; give {what}")
    if not _DIGITS.fullmatch(text) or not least <= int(text) <= most:
        raise Invalid(f"{name}={text[:80]!r} is not {what} from {least} to {most}")
    return int(text)


def _segment(parameters: dict[str, str]) -> tuple[int, int]:
    """The number of a segment, and how many there are."""
    if "segments" not in parameters:
        if "segment" in parameters:
            raise Invalid("segment is given without segments; give both, or neither to read the whole table")
        return 0, 1
    segments = _whole(parameters, "segments", limits.BULK_PIECES_MAX, "a number of segments", least=1)
    return _whole(parameters, "segment", segments - 1, "the number of a segment"), segments


# -- the response of /v1/logs


def described(facts: LogInfo, identity: str, url: str | None) -> LogResponse:
    cold = None
    if facts.place is not None and url is not None:
        cold = ColdTableResponse(url, facts.place.name, facts.place.generation)
    partitions = [
        LogPartitionResponse(
            part.partition,
            part.log.id,
            part.earliest,
            part.log.start,
            part.earliest if part.tier is None else part.tier.tiered,
            part.log.next,
            part.log.at_ms,
        )
        for part in facts.parts
    ]
    return LogResponse(
        facts.which.kind, facts.which.name, facts.label, facts.view, facts.content_type, facts.keys, facts.columns,
        facts.complete, identity, partitions, cold,
    )  # fmt: skip
