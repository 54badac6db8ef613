"""Materialized views: their definitions and states, and the deltas that their job applies.

Views are created and dropped by SQL. The bodies of plan, apply and fill are MessagePack, for the job that comes with
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
from tailrace.http.message import Request, Response
from tailrace.jobs.apply import ApplyView, RewriteView
from tailrace.jobs.partials import ReadPartials
from tailrace.jobs.view import DescribeView, ListViews, PlanView, ViewDescription, ViewShape
from tailrace.jobs.view_fill import BeginFill, ClearRows, FillRows, FinishFill

if TYPE_CHECKING:
    from tailrace.http.services import Services

T = TypeVar("T")


class ApplyBody(msgspec.Struct, forbid_unknown_fields=True):
    ranges: dict[str, Range]
    stages: tuple[str, ...] = ()
    records: int = 0
    form: str = ""  # of the partial aggregates in the stages
    rewrite: bool = False  # the SELECT ran again at these positions, which do not move


class PlanBody(msgspec.Struct, forbid_unknown_fields=True):
    shape: ViewShape | None = None
    error: str = ""


class PartialsBody(msgspec.Struct, forbid_unknown_fields=True):
    at: dict[str, Position]  # by log
    form: str
    keys: bytes  # an Arrow stream with the key columns of the view's table


class BeginFillBody(msgspec.Struct, forbid_unknown_fields=True, tag_field="step", tag="begin"):
    requested: bool = False  # also if messages that the view has counted have left their topic


class ClearFillBody(msgspec.Struct, forbid_unknown_fields=True, tag_field="step", tag="clear"):
    fill: str


class FillPieceBody(msgspec.Struct, forbid_unknown_fields=True, tag_field="step", tag="piece"):
    fill: str
    piece: Position
    stages: tuple[str, ...] = ()


class FinishFillBody(msgspec.Struct, forbid_unknown_fields=True, tag_field="step", tag="finish"):
    fill: str
    sequences: dict[str, Position]
    positions: dict[str, Position] = {}  # of the partitions of topics, by log


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
    columns: tuple[tuple[str, str], ...]
    strategy: str
    explained: tuple[str, ...]
    warnings: tuple[str, ...]
    refresh: int
    tables: Any
    sources: Any
    fill: str
    piece: int
    created_at: str
    updated_at: str


class ViewsResponse(msgspec.Struct):
    views: list[ViewResponse]


class PartialsResponse(msgspec.Struct):
    partials: list[str | None]


class AppliedResponse(msgspec.Struct):
    applied: bool
    positions: dict[str, int]


FillBody = BeginFillBody | ClearFillBody | FillPieceBody | FinishFillBody
_apply: Final = msgspec.msgpack.Decoder(ApplyBody)
_partials: Final = msgspec.msgpack.Decoder(PartialsBody)
_plan: Final = msgspec.msgpack.Decoder(PlanBody)
_fill: Final[msgspec.msgpack.Decoder[FillBody]] = msgspec.msgpack.Decoder(FillBody)


def parse_list(request: Request) -> ListViews:
    return ListViews()


def render_list(request: Request, found: list[ViewDescription]) -> Response:
    return json_response(ViewsResponse([_shown(each) for each in found]))


def parse_get(request: Request, name: str) -> DescribeView:
    return DescribeView(name)


def render_view(request: Request, view: ViewDescription) -> Response:
    return json_response(_shown(view))


async def plan(services: Services, request: Request, principal: Principal, name: str) -> Response:
    """Report the plan of a view, or Spark's error."""
    body = await _body(request, _plan)
    return json_response(_shown(await services.db.aexecute(PlanView(name, body.shape, body.error), principal)))


async def apply(services: Services, request: Request, principal: Principal, name: str) -> Response:
    """Write staged rows, with the ranges of the sources' logs that they come from, once."""
    body = await _body(request, _apply)
    ranges = {_log(log): each for log, each in body.ranges.items()}
    if body.rewrite:
        at = {log: end for log, (_, end) in ranges.items()}
        written = await services.db.aexecute(RewriteView(name, at, body.stages), principal)
        return json_response(AppliedResponse(written, by_log(at)))
    done = await services.db.aexecute(ApplyView(name, ranges, body.stages, body.records, body.form), principal)
    return json_response(AppliedResponse(done.applied, by_log(done.positions)))


async def partials(services: Services, request: Request, principal: Principal, name: str) -> Response:
    """The partial aggregates of groups, in the order of their keys, at these positions of the view."""
    body = await _body(request, _partials)
    at = {_log(log): position for log, position in body.at.items()}

    def work() -> Response:
        query = ReadPartials(name, at, body.form, body.keys)
        return json_response(PartialsResponse(services.db.execute(query, principal)))

    return await services.stage_workers.run(work, len(request.body))


async def fill(services: Services, request: Request, principal: Principal, name: str) -> Response:
    """A step of filling the view: begin, clear, piece or finish."""
    db = services.db
    match await _body(request, _fill):
        case BeginFillBody(requested=requested):
            return json_response({"fill": await db.aexecute(BeginFill(name, requested), principal)})
        case ClearFillBody(fill=number):
            return json_response({"more": await db.aexecute(ClearRows(name, number), principal)})
        case FillPieceBody(fill=number, piece=piece, stages=stages):
            command = FillRows(name, number, piece, stages)
            return json_response({"applied": await db.aexecute(command, principal)})
        case FinishFillBody(fill=number, sequences=sequences, positions=positions):
            by_number = {_log(log): position for log, position in positions.items()}
            finish = FinishFill(name, number, sequences, by_number)
            return json_response(_shown(await db.aexecute(finish, principal)))


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
    shape = view.shape or ViewShape((), (), "")
    return ViewResponse(
        name=view.name,
        sql=view.sql,
        phase=view.phase,
        stale=view.stale,
        state=view.state,
        message=view.message,
        rows=view.rows,
        items=view.items,
        keys=shape.keys,
        columns=shape.columns,
        strategy=shape.strategy,
        explained=shape.explained,
        warnings=shape.warnings,
        refresh=view.refresh,
        tables=view.tables,
        sources=view.sources,
        fill=view.fill,
        piece=view.piece,
        created_at=rfc3339(view.created_ms),
        updated_at=rfc3339(view.updated_ms),
    )
