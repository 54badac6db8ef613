"""The past of a table over HTTP: the versions of an item, the items as of an earlier moment, and the trace of a write.

All of them are read in a thread: they may decode many records, and wait for cold storage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tailrace import limits
from tailrace.access import Principal
from tailrace.database import Database
from tailrace.errors import Error, Invalid
from tailrace.http.codec import json_response, parameters_of, rfc3339
from tailrace.http.listings import whole_number
from tailrace.http.message import Request, Response
from tailrace.http.tables import ChangeMessage, Convert, plain, typed
from tailrace.jobs.tracing import KeptEntry, TracedJob, TracedMessage, WriteTrace, trace_write
from tailrace.tables.change import ChangeRecord
from tailrace.tables.history import ItemHistory, ItemVersion, PastItems, item_history
from tailrace.tables.history import past_items as read_past_items

if TYPE_CHECKING:
    from tailrace.http.services import Services

HISTORY_PARAMETERS: Final = ("key", "before", "limit", "values")
PAST_PARAMETERS: Final = ("sequence", "time", "after", "limit", "values")
WRITE_PARAMETERS: Final = ("key", "values")
LIMIT: Final = 100
_KEY_EXAMPLE: Final = 'key={"id": "o-1"}, percent-encoded'


class VersionResponse(msgspec.Struct):
    """A change of an item; `old` and `new` are null if the change stream does not record them."""

    sequence: int
    index: int
    at: str
    event: str
    by: str
    old: Any
    new: Any
    where: str  # hot or cold


class HistoryResponse(msgspec.Struct):
    table: str
    key: Any
    view: str  # which images the change stream records
    versions: list[VersionResponse]  # the newest first
    next: int | None  # the `before` of the next page; null: there are no older ones


class PastItemsResponse(msgspec.Struct):
    table: str
    sequence: int
    items: list[Any]
    next: Any  # the key for `after` of the next page; null: there are no more


class KeptResponse(msgspec.Struct):
    """Where an entry is kept. `files` is null if they could not be listed."""

    log: int
    position: int
    hot: bool
    cold_table: str | None
    files: list[str] | None


class MessageGroupResponse(msgspec.Struct):
    group_id: str
    state: str  # waiting, in_flight or acknowledged
    attempt: int
    consumer_id: str | None  # that holds it, or has acknowledged it
    until: str | None
    acknowledged_at: str | None  # if that is still on record
    acknowledged_by: str | None


class TracedMessageResponse(msgspec.Struct):
    topic: str
    partition_id: int
    offset: int
    at: str
    op: str
    payload_mode: str
    kept: KeptResponse
    groups: list[MessageGroupResponse]


class MovedRowsResponse(msgspec.Struct):
    """The rows of a view that changed by the batch with the write; `alone`: that batch had no other change."""

    at: str
    alone: bool
    rows: list[ChangeMessage]
    more: bool


class TracedJobResponse(msgspec.Struct):
    name: str
    kind: str
    state: str
    position: int
    applied: bool
    updated_at: str
    moved: MovedRowsResponse | None


class WriteResponse(msgspec.Struct):
    """A write and what has become of it."""

    table: str
    sequence: int
    at: str
    by: str
    records: list[ChangeMessage]
    kept: KeptResponse
    messages: list[TracedMessageResponse]
    jobs: list[TracedJobResponse]  # that read the table's changes, among them the views
    complete: bool  # false: there are more records or messages


async def versions(services: Services, request: Request, principal: Principal, name: str) -> Response:
    """A page of the versions of an item."""
    given = parameters_of(request)
    before = whole_number(given, "before", 0, 1, limits.POSITION_MAX) or None
    limit = whole_number(given, "limit", LIMIT, 1, limits.HISTORY_VERSIONS_MAX)
    key, convert = _key(given), _convert(given)
    execute = partial(services.db.execute, principal=principal)
    return await _in_thread(lambda: _history(item_history(execute, name, key, before, limit), convert))


async def past_items(services: Services, request: Request, principal: Principal, name: str) -> Response:
    """A page of the items of an earlier moment."""
    given = parameters_of(request)
    if ("sequence" in given) == ("time" in given):
        raise Invalid("name one moment: sequence=<a sequence>, or time=<RFC 3339, or milliseconds since 1970>")
    sequence = whole_number(given, "sequence", 0, 0, limits.POSITION_MAX) if "sequence" in given else None
    at_ms = None if sequence is not None else _moment(given["time"])
    limit = whole_number(given, "limit", LIMIT, 1, limits.HISTORY_VERSIONS_MAX)
    after, convert = given.get("after") or None, _convert(given)
    execute = partial(services.db.execute, principal=principal)

    def work() -> PastItemsResponse:
        found = read_past_items(execute, name, sequence=sequence, at_ms=at_ms, after=after, limit=limit)
        return _past(found, convert)

    return await _in_thread(work)


async def follow_write(
    services: Services, request: Request, principal: Principal, name: str, sequence: str
) -> Response:
    """The trace of a write."""
    given = parameters_of(request)
    number = whole_number({"sequence": sequence}, "sequence", 0, 1, limits.POSITION_MAX)
    key, convert = given.get("key"), _convert(given)
    execute = partial(services.db.execute, principal=principal)

    def work() -> WriteResponse:
        return _trace(services.db, trace_write(execute, name, number, key, principal.access), convert)

    return await _in_thread(work)


async def _in_thread(work: Callable[[], Any]) -> Response:
    return await asyncio.to_thread(lambda: json_response(work()))


# -- parameters


def _key(given: dict[str, str]) -> str:
    if "key" not in given:
        raise Invalid(f"name the item: {_KEY_EXAMPLE}", code="INVALID_KEY")
    return given["key"]


def _convert(given: dict[str, str]) -> Convert:
    values = given.get("values", "plain")
    if values not in ("plain", "typed"):
        raise Invalid(f"values={values[:80]!r} is unknown; use plain or typed", code="INVALID_VALUES")
    return typed if values == "typed" else plain


def _moment(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return int(text)
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is not None:
            return int(found.timestamp() * 1000)
    except (ValueError, OverflowError):
        pass
    raise Invalid(
        f"time={text[:80]!r} is no time; write it as 2026-04-16T12:00:00Z, or in milliseconds since 1970",
        code="INVALID_TIME",
    )


# -- responses


def _version(found: ItemVersion, convert: Convert) -> VersionResponse:
    return VersionResponse(
        found.sequence,
        found.index,
        rfc3339(found.at_ms),
        found.event,
        found.by,
        None if found.old is None else convert(found.old),
        None if found.new is None else convert(found.new),
        "cold" if found.cold else "hot",
    )


def _history(found: ItemHistory, convert: Convert) -> HistoryResponse:
    shown = [_version(each, convert) for each in found.versions]
    return HistoryResponse(found.stream.name, convert(found.key), found.stream.view, shown, found.before)


def _past(found: PastItems, convert: Convert) -> PastItemsResponse:
    following = None if found.after is None else convert(found.after)
    return PastItemsResponse(found.definition.name, found.sequence, [convert(item) for item in found.items], following)


def _trace(db: Database, found: WriteTrace, convert: Convert) -> WriteResponse:
    first = found.records[0]
    records = [_change(found.table, each, convert) for each in found.records]
    return WriteResponse(
        found.table,
        found.sequence,
        rfc3339(first.at_ms),
        first.by,
        records,
        _kept(db, found.kept),
        [_message(db, each) for each in found.messages],
        [_job(each, convert) for each in found.jobs],
        found.complete,
    )


def _message(db: Database, found: TracedMessage) -> TracedMessageResponse:
    groups = [
        MessageGroupResponse(
            each.group,
            each.state,
            each.attempt,
            each.consumer,
            None if each.until_ms is None else rfc3339(each.until_ms),
            None if each.acked_ms is None else rfc3339(each.acked_ms),
            each.by,
        )
        for each in found.groups
    ]
    return TracedMessageResponse(
        found.topic,
        found.partition,
        found.offset,
        rfc3339(found.at_ms),
        found.operation,
        found.mode,
        _kept(db, found.kept),
        groups,
    )


def _job(found: TracedJob, convert: Convert) -> TracedJobResponse:
    moved = None
    if found.moved is not None:
        rows = [_change(found.name, each, convert) for each in found.moved.records]
        moved = MovedRowsResponse(rfc3339(found.moved.at_ms), found.moved.alone, rows, found.moved.more)
    return TracedJobResponse(
        found.name, found.kind, found.state, found.position, found.applied, rfc3339(found.updated_ms), moved
    )


def _change(table: str, found: ChangeRecord, convert: Convert) -> ChangeMessage:
    return ChangeMessage(
        found.sequence,
        found.index,
        found.last,
        found.event,
        table,
        convert(found.keys),
        None if found.old is None else convert(found.old),
        None if found.new is None else convert(found.new),
        rfc3339(found.at_ms),
        found.by,
    )


def _kept(db: Database, found: KeptEntry) -> KeptResponse:
    if found.cold is None:
        return KeptResponse(found.log, found.position, found.hot, None, [])
    return KeptResponse(found.log, found.position, found.hot, found.cold.place, _files(db, found))


def _files(db: Database, found: KeptEntry) -> list[str] | None:
    """The files of cold storage that may have an entry; None if they cannot be listed now."""
    from tailrace.cold.reading import files  # Arrow and Delta take long to import
    from tailrace.cold.store import Store

    assert found.cold is not None
    if db.cold is None:
        return None
    try:
        store = Store(db.cold.url, db.cold.options)
        listed = files(store, found.cold.place, found.log, found.position, found.position + 1)
    except Error:
        return None
    return [each.path for each in listed]
