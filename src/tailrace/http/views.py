"""Materialized views: their definitions and states, and the deltas that their job applies.

Views are made and dropped by SQL. The bodies of apply, held and fill are MessagePack, for the job that comes with
Tailrace; `jobs/apply.py` says what they mean.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from tailrace import limits
from tailrace.access import Principal
from tailrace.errors import Invalid, TooLarge
from tailrace.http.codec import LogNumber, Position, Range, by_log, json_response, rfc3339
from tailrace.http.message import Headers, Request, Response
from tailrace.jobs.apply import ApplyView, EncodedDelta, ReadHeld
from tailrace.jobs.view import DescribeView, ListViews, ViewDescription
from tailrace.jobs.view_fill import BeginFill, ClearRows, FillRows, FinishFill

if TYPE_CHECKING:
    from tailrace.http.services import Services

T = TypeVar("T")
_MSGPACK: Final[Headers] = [(b"content-type", b"application/vnd.msgpack"), (b"cache-control", b"no-store")]


class ApplyBody(msgspec.Struct, forbid_unknown_fields=True):
    ranges: dict[str, Range]
    moves: EncodedDelta


class HeldBody(msgspec.Struct, forbid_unknown_fields=True):
    asked: list[tuple[int, str, bool, bytes]]


class BeginFillBody(msgspec.Struct, forbid_unknown_fields=True, tag_field="step", tag="begin"):
    """Nothing but the view's name is needed."""


class ClearFillBody(msgspec.Struct, forbid_unknown_fields=True, tag_field="step", tag="clear"):
    fill: str


class FillPieceBody(msgspec.Struct, forbid_unknown_fields=True, tag_field="step", tag="piece"):
    fill: str
    piece: Position
    moves: EncodedDelta


class FinishFillBody(msgspec.Struct, forbid_unknown_fields=True, tag_field="step", tag="finish"):
    fill: str
    sequences: dict[str, Position]


class ViewResponse(msgspec.Struct, kw_only=True):
    name: str
    sql: str
    phase: str
    stale: str
    state: str
    message: str
    rows: int
    items: int
    keys: tuple[tuple[str, str], ...]
    tables: Any
    sources: Any
    fill: str
    piece: int
    created_at: str
    updated_at: str


class ViewsResponse(msgspec.Struct):
    views: list[ViewResponse]


class AppliedResponse(msgspec.Struct):
    applied: bool
    positions: dict[str, int]


FillBody = BeginFillBody | ClearFillBody | FillPieceBody | FinishFillBody
_apply: Final = msgspec.msgpack.Decoder(ApplyBody)
_held: Final = msgspec.msgpack.Decoder(HeldBody)
_fill: Final[msgspec.msgpack.Decoder[FillBody]] = msgspec.msgpack.Decoder(FillBody)


def parse_list(request: Request) -> ListViews:
    return ListViews()


def render_list(request: Request, found: list[ViewDescription]) -> Response:
    return json_response(ViewsResponse([_shown(each) for each in found]))


def parse_get(request: Request, name: str) -> DescribeView:
    return DescribeView(name)


def render_view(request: Request, view: ViewDescription) -> Response:
    return json_response(_shown(view))


async def apply(services: Services, request: Request, principal: Principal, name: str) -> Response:
    """Apply a delta, with the ranges of the sources' logs that it comes from, once."""
    body = await _body(request, _apply)
    ranges = {_log(log): each for log, each in body.ranges.items()}
    done = await services.db.aexecute(ApplyView(name, ranges, body.moves, len(request.body)), principal)
    return json_response(AppliedResponse(done.applied, by_log(done.positions)))


async def held(services: Services, request: Request, principal: Principal, name: str) -> Response:
    """The rows that a join has of its sources, by side and join key."""
    body = await _body(request, _held)
    found = await asyncio.to_thread(services.db.execute, ReadHeld(name, tuple(body.asked)), principal)  # may be many
    encoded = await asyncio.to_thread(msgspec.msgpack.encode, [[each.rows, each.count, each.next] for each in found])
    return Response(200, _MSGPACK, encoded)


async def fill(services: Services, request: Request, principal: Principal, name: str) -> Response:
    """A step of filling the view: begin, clear, piece or finish."""
    db = services.db
    match await _body(request, _fill):
        case BeginFillBody():
            return json_response({"fill": await db.aexecute(BeginFill(name), principal)})
        case ClearFillBody(fill=number):
            return json_response({"more": await db.aexecute(ClearRows(name, number), principal)})
        case FillPieceBody(fill=number, piece=piece, moves=moves):
            command = FillRows(name, number, piece, moves, len(request.body))
            return json_response({"applied": await db.aexecute(command, principal)})
        case FinishFillBody(fill=number, sequences=sequences):
            return json_response(_shown(await db.aexecute(FinishFill(name, number, sequences), principal)))


async def _body(request: Request, decoder: msgspec.msgpack.Decoder[T]) -> T:
    if len(request.body) > limits.BODY_BYTES_MAX:
        raise TooLarge(f"the body has more than {limits.BODY_BYTES_MAX} bytes; send shorter ranges")
    try:
        if len(request.body) <= limits.LOOP_BYTES:
            return decoder.decode(request.body)
        return await asyncio.to_thread(decoder.decode, request.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the body is not MessagePack of the expected form: {error}") from None


def _log(text: str) -> int:
    try:
        return msgspec.convert(text, LogNumber, strict=False)
    except msgspec.ValidationError:
        raise Invalid(f"{text[:40]!r} is not the number of a log") from None


def _shown(view: ViewDescription) -> ViewResponse:
    return ViewResponse(
        name=view.name,
        sql=view.sql,
        phase=view.phase,
        stale=view.stale,
        state=view.state,
        message=view.message,
        rows=view.rows,
        items=view.items,
        keys=view.keys,
        tables=view.tables,
        sources=view.sources,
        fill=view.fill,
        piece=view.piece,
        created_at=rfc3339(view.created_ms),
        updated_at=rfc3339(view.updated_ms),
    )
