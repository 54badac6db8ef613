"""Retention of a table's change stream: how long and how many changes are kept, pruning, and named cursors.

Each endpoint takes `?label=` for a stream before the present one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import UNSET, UnsetType

from tailrace.access import Principal
from tailrace.errors import Invalid, NotFound
from tailrace.http.codec import NO_STORE, Position, json_body, json_response, parameters_of, rfc3339
from tailrace.http.message import Request, Response
from tailrace.http.route import decode_path
from tailrace.tables.change_info import ChangeStreamDescription, DescribeChangeStream
from tailrace.tables.change_trimming import AlterRetention, PruneStream
from tailrace.tables.cursors import CursorStatus, DropCursor, ListCursors, SaveCursor

if TYPE_CHECKING:
    from tailrace.http.services import Services

PARAMETERS: Final = ("label",)


class RetentionBody(msgspec.Struct, forbid_unknown_fields=True):
    """Bounds of a change stream; null is no bound, and one that is left out stays as it is."""

    max_age_s: int | UnsetType | None = UNSET
    max_count: int | UnsetType | None = UNSET


class PruneBody(msgspec.Struct, forbid_unknown_fields=True):
    through: Position


class CursorBody(msgspec.Struct, forbid_unknown_fields=True):
    sequence: Position
    hold_bytes: Position | UnsetType = UNSET


class LagResponse(msgspec.Struct):
    records: int
    bytes: int
    age_s: float


class CursorResponse(msgspec.Struct):
    name: str
    sequence: int
    saved_at: str
    hold_bytes: int | None
    lost: int
    cut_off: bool
    lag: LagResponse


class CursorsResponse(msgspec.Struct):
    cursors: list[CursorResponse]


class ChangeStreamResponse(msgspec.Struct):
    table: str
    label: str | UnsetType = UNSET
    view: str | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET
    created_at: str | UnsetType = UNSET
    closed_at: str | UnsetType | None = UNSET
    oldest: int | UnsetType | None = UNSET
    latest: int | UnsetType | None = UNSET
    records: int | UnsetType = UNSET
    bytes: int | UnsetType = UNSET
    max_age_s: int | UnsetType | None = UNSET
    max_count: int | UnsetType | None = UNSET
    cursors: list[CursorResponse] | UnsetType = UNSET
    pruned: int | UnsetType = UNSET  # how many records were removed
    gone: bool | UnsetType = UNSET  # nothing is left of a stream that was closed


_retention: Final = msgspec.json.Decoder(RetentionBody)
_prune: Final = msgspec.json.Decoder(PruneBody)
_cursor: Final = msgspec.json.Decoder(CursorBody)


def label_of(request: Request) -> str | None:
    """The label of the change stream; None: the present one."""
    return parameters_of(request).get("label")


async def describe(services: Services, request: Request, principal: Principal, name: str) -> Response:
    """The stream, and its cursors."""
    label = label_of(request)
    stream = _shown(await services.db.aexecute(DescribeChangeStream(name, label), principal))
    cursors = await services.db.aexecute(ListCursors(name, label), principal)
    stream.cursors = [_shown_cursor(cursor) for cursor in cursors]
    return json_response(stream)


async def alter(services: Services, request: Request, principal: Principal, name: str) -> Response:
    """Other bounds, and the stream with them."""
    label = label_of(request)
    body = json_body(request, _retention)
    if body.max_age_s is UNSET and body.max_count is UNSET:
        raise Invalid("the body has no setting: give max_age_s, max_count or both; null is no bound")
    await services.db.aexecute(AlterRetention(name, body.max_age_s, body.max_count, label), principal)
    return json_response(_shown(await services.db.aexecute(DescribeChangeStream(name, label), principal)))


async def prune(services: Services, request: Request, principal: Principal, name: str) -> Response:
    """Remove changes, and the stream without them."""
    label = label_of(request)
    body = json_body(request, _prune)
    pruned = await services.db.aexecute(PruneStream(name, body.through, label), principal)
    if pruned.gone:  # the stream was closed, and there is nothing left to describe
        return json_response(ChangeStreamResponse(name, pruned=pruned.records, gone=True))
    stream = _shown(await services.db.aexecute(DescribeChangeStream(name, label), principal))
    stream.pruned, stream.gone = pruned.records, False
    return json_response(stream)


# -- cursors


def parse_cursors(request: Request, name: str, cursor: str = "") -> ListCursors:
    return ListCursors(name, label_of(request))


def render_cursors(request: Request, found: list[CursorStatus]) -> Response:
    return json_response(CursorsResponse([_shown_cursor(cursor) for cursor in found]))


def render_named_cursor(request: Request, found: list[CursorStatus]) -> Response:
    name = decode_path(request.path.rpartition(b"/")[2])
    for cursor in found:
        if cursor.name == name:
            return json_response(_shown_cursor(cursor))
    raise _no_cursor(request)


def parse_save_cursor(request: Request, name: str, cursor: str) -> SaveCursor:
    body = json_body(request, _cursor)
    return SaveCursor(
        name, cursor, body.sequence, None if body.hold_bytes is UNSET else body.hold_bytes, label_of(request)
    )


def render_cursor(request: Request, cursor: CursorStatus) -> Response:
    return json_response(_shown_cursor(cursor))


def parse_drop_cursor(request: Request, name: str, cursor: str) -> DropCursor:
    return DropCursor(name, cursor, label_of(request))


def render_dropped_cursor(request: Request, dropped: bool) -> Response:
    if not dropped:
        raise _no_cursor(request)
    return Response(204, NO_STORE)


def _no_cursor(request: Request) -> NotFound:
    cursors, _, name = request.path.rpartition(b"/")  # before decoding: the name may hold a slash
    shown = decode_path(name)[:200]
    return NotFound(
        f"the change stream has no cursor {shown!r}; its cursors are listed at {decode_path(cursors)}",
        code="CURSOR_NOT_FOUND",
    )


def _shown(info: ChangeStreamDescription) -> ChangeStreamResponse:
    stream = info.stream
    return ChangeStreamResponse(
        stream.name,
        stream.label,
        stream.view,
        info.enabled,
        rfc3339(stream.created_ms),
        None if stream.closed_ms is None else rfc3339(stream.closed_ms),
        info.oldest,
        info.latest,
        info.count,
        info.bytes,
        stream.max_age_s,
        stream.max_count,
    )


def _shown_cursor(cursor: CursorStatus) -> CursorResponse:
    lag = LagResponse(cursor.lag.records, cursor.lag.bytes, cursor.lag.age_ms / 1000)
    return CursorResponse(
        cursor.name, cursor.after, rfc3339(cursor.at_ms), cursor.hold_bytes, cursor.lost, cursor.cut_off, lag
    )
