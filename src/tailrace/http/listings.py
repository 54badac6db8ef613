"""Lists of streams and of tables, in pages: for people and programs that look at a database.

A principal with grants sees what it was granted, and nothing else. A page does a bounded amount of work, so it may have
fewer rows than asked for, or none, and still a `next`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from tailrace import limits
from tailrace.access import Principal
from tailrace.errors import Invalid
from tailrace.http.codec import json_response, parameters_of, rfc3339
from tailrace.http.message import Request, Response
from tailrace.listing import NameFilter
from tailrace.log.position import offset
from tailrace.streams.queries import FindStreamPage, StreamDescription
from tailrace.topics.queries import FindTablePage, RoutedTable
from tailrace.topics.topic import MODES, OPERATIONS

if TYPE_CHECKING:
    from tailrace.http.services import Services

STREAMS_PARAMETERS: Final = ("prefix", "search", "after", "limit")
TABLES_PARAMETERS: Final = STREAMS_PARAMETERS
LIMIT: Final = 100  # rows of a page, if no limit is given


class ListedStream(msgspec.Struct):
    """A stream in a list. Streams count bytes, not entries: `entries` is null unless it is known without counting."""

    path: str
    content_type: str
    bytes: int  # that can be read, those shared with the parent of a fork included
    entries: int | None
    earliest_offset: str
    tail_offset: str
    created_at: str
    appended_at: str | None
    closed: bool
    ttl_s: int | None
    expires_at: str | None
    max_age_s: int | None
    max_bytes: int | None
    forked_from: str | None
    fork_offset: str | None


class StreamsResponse(msgspec.Struct):
    streams: list[ListedStream]
    next: str | None


class KeyAttribute(msgspec.Struct):
    name: str
    type: str


class ListedIndex(msgspec.Struct):
    name: str
    local: bool
    partition_key: list[KeyAttribute]
    sort_key: list[KeyAttribute]
    projection: str
    attributes: list[str]
    items: int
    status: str


class ListedColumn(msgspec.Struct):
    name: str
    type: str
    required: bool


class ListedChangeStream(msgspec.Struct):
    label: str
    view: str
    enabled: bool
    max_age_s: int | None
    max_count: int | None


class ListedRoute(msgspec.Struct):
    topic: str
    op: str
    payload_mode: str
    filter: str | None
    partition_by: str | None
    name: str | None


class ListedTable(msgspec.Struct):
    name: str
    status: str
    partition_key: KeyAttribute
    sort_key: KeyAttribute | None
    columns: list[ListedColumn]
    indexes: list[ListedIndex]
    items: int
    bytes: int
    stream: ListedChangeStream | None
    ttl_attribute: str | None
    routes: list[ListedRoute]
    created_at: str


class TablesResponse(msgspec.Struct):
    tables: list[ListedTable]
    next: str | None


async def streams(services: Services, request: Request, principal: Principal) -> Response:
    """A page of streams."""
    wanted = _wanted(request, principal)

    def work() -> Response:
        found = services.db.execute(FindStreamPage(wanted), principal)
        return json_response(StreamsResponse([_stream(each) for each in found.rows], found.next))

    return await asyncio.to_thread(work)


async def tables(services: Services, request: Request, principal: Principal) -> Response:
    """A page of tables."""
    wanted = _wanted(request, principal)

    def work() -> Response:
        found = services.db.execute(FindTablePage(wanted), principal)
        return json_response(TablesResponse([_table(each) for each in found.rows], found.next))

    return await asyncio.to_thread(work)


def whole_number(given: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    """A parameter that is a whole number; `default` if it is left out."""
    text = given.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 19) or not least <= int(text) <= most:
        raise Invalid(
            f"{name}={text[:80]!r} is not a whole number from {least} to {most}", code=f"INVALID_{name.upper()}"
        )
    return int(text)


def _wanted(request: Request, principal: Principal) -> NameFilter:
    given = parameters_of(request)
    limit = whole_number(given, "limit", LIMIT, 1, limits.LISTING_MAX)
    return NameFilter(
        given.get("prefix", ""), given.get("search", ""), given.get("after") or None, limit, principal.access
    )


def _stream(found: StreamDescription) -> ListedStream:
    stream, log = found.stream, found.log
    return ListedStream(
        stream.path,
        stream.content_type,
        log.next - found.earliest,
        0 if log.next == found.earliest else None,
        offset(found.earliest),
        offset(log.next),
        rfc3339(stream.created_ms),
        rfc3339(log.at_ms) if log.next > log.base else None,
        bool(stream.closed),
        stream.ttl_s,
        None if stream.expires_ms is None else rfc3339(stream.expires_ms),
        stream.max_age_s,
        stream.max_bytes,
        stream.forked_from,
        None if stream.fork_position is None else offset(stream.fork_position),
    )


def _table(found: RoutedTable) -> ListedTable:
    definition, stream = found.table.definition, found.table.stream
    kinds, held = definition.kinds, found.table.counts[definition.space]

    def attributes(names: tuple[str, ...]) -> list[KeyAttribute]:
        return [KeyAttribute(name, kinds[name]) for name in names]

    indexes = [
        ListedIndex(
            index.name,
            index.local,
            attributes(index.hash),
            attributes(index.range),
            index.projection.kind,
            list(index.projection.attributes),
            found.table.counts[index.space].items,
            index.status,
        )
        for index in definition.indexes
    ]
    routes = [
        ListedRoute(
            each.topic,
            OPERATIONS[each.route.event],
            MODES[each.route.mode],
            each.route.filter,
            each.route.partition_by,
            each.route.name,
        )
        for each in found.routes
    ]
    return ListedTable(
        definition.name,
        found.table.status,
        KeyAttribute(definition.hash, kinds[definition.hash]),
        None if definition.range is None else KeyAttribute(definition.range, kinds[definition.range]),
        [ListedColumn(column.name, column.kind, column.required) for column in definition.columns],
        indexes,
        held.items,
        held.bytes,
        None
        if stream is None
        else ListedChangeStream(
            stream.label, stream.view, stream.closed_ms is None, stream.max_age_s, stream.max_count
        ),
        definition.ttl,
        routes,
        rfc3339(definition.created_ms),
    )
