"""Staged writes: rows are staged in several requests, and written all at once, exactly once.

Rows are checked in a thread: a request has many.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from tailrace.access import SYSTEM, Principal
from tailrace.errors import Invalid
from tailrace.http.codec import (
    LogName,
    LogNumber,
    Position,
    Range,
    by_log,
    json_body,
    json_response,
    parameters_of,
    target_of,
)
from tailrace.http.message import Request, Response
from tailrace.jobs.commands import CommitStages, Committed, DropStage, StageRows
from tailrace.jobs.queries import FindStage, FindTarget
from tailrace.jobs.target import checked

if TYPE_CHECKING:
    from tailrace.http.services import Services

PARAMETERS: Final = ("table", "topic", "stream", "stage", "chunk")
CHUNK_DIGITS_MAX: Final = 6


class CommitBody(msgspec.Struct, forbid_unknown_fields=True):
    query: str
    batch: Position
    target: LogName
    stages: list[str]
    consumer: str | None = None
    ranges: dict[LogNumber, Range] | None = None
    strict: bool = True


class StageResponse(msgspec.Struct):
    stage: str
    rows: int


class CommitResponse(msgspec.Struct):
    applied: bool
    rows: int
    positions: dict[str, int]
    more: bool


_commit: Final = msgspec.json.Decoder(CommitBody)


async def stage(services: Services, request: Request, principal: Principal) -> Response:
    """Rows for a new stage, or more rows for one."""
    content_type = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    arrow = content_type == b"application/vnd.apache.arrow.stream"
    parameters = parameters_of(request)
    here = await services.db.aexecute(FindTarget(target_of(parameters)), principal)
    rows = await services.stage_workers.run(partial(checked, here, request.body, arrow=arrow), len(request.body))
    if not rows.rows:
        raise Invalid("there are no rows in the body; stage at least one", code="INVALID_ROWS")
    command = StageRows(here.target, here.number, rows.rows, rows.body, parameters.get("stage"), _chunk(parameters))
    done = await services.db.aexecute(command, principal)
    return json_response(StageResponse(done.stage.id, done.stage.rows), 201 if done.fresh else 200)


def parse_commit(request: Request) -> CommitStages:
    body = json_body(request, _commit)
    if body.target.label is not None:
        raise Invalid("a label names a change stream, which is written by changing the table; leave it out")
    return CommitStages(
        body.query, body.batch, body.target.target(), tuple(body.stages), body.consumer, body.ranges, body.strict
    )


def render_committed(request: Request, done: Committed) -> Response:
    return json_response(CommitResponse(done.applied, done.rows, by_log(done.positions), done.more))


async def drop(services: Services, request: Request, principal: Principal, stage: str) -> Response:
    """Drop a stage. Its target has to be known before the principal's permission can be checked."""
    target = await services.db.aexecute(FindStage(stage), SYSTEM)
    await services.db.aexecute(DropStage(stage, target), principal)
    return Response(204, [])


def _chunk(parameters: dict[str, str]) -> int | None:
    text = parameters.get("chunk")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= CHUNK_DIGITS_MAX):
        raise Invalid(f"chunk={text[:80]!r} is not the number of a chunk; the first is 0")
    return int(text)
