"""Jobs of the pipeline: their definitions, their states and their positions."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tailrace.errors import Invalid
from tailrace.http.codec import LogNumber, Position, by_log, json_body, json_response, rfc3339
from tailrace.http.message import Request, Response
from tailrace.jobs.commands import DropJob, PauseJob, PinPositions, Registered, RegisterJob, ReportJob, ResumeJob
from tailrace.jobs.job import Job, JobPause
from tailrace.jobs.queries import GetJob, JobStatus, ListJobs


class RegisterJobBody(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    source: str = ""
    target: str = ""
    definition: dict[str, Any] = {}


class ReportJobBody(msgspec.Struct, forbid_unknown_fields=True):
    state: str
    rows: Position | None = None
    message: str | None = None


class PinBody(msgspec.Struct, forbid_unknown_fields=True):
    positions: dict[LogNumber, Position]


class JobResponse(msgspec.Struct, kw_only=True):
    name: str
    kind: str
    source: str
    target: str
    state: str
    message: str
    rows: int
    definition: Any
    positions: dict[str, int]  # by log
    created_at: str
    updated_at: str
    paused: bool
    paused_at: str | None
    paused_by: str | None
    lag: int | msgspec.UnsetType | None = msgspec.UNSET  # only in lists; null: its logs are not here


class JobsResponse(msgspec.Struct):
    jobs: list[JobResponse]


class PositionsResponse(msgspec.Struct):
    positions: dict[str, int]


_register: Final = msgspec.json.Decoder(RegisterJobBody)
_report: Final = msgspec.json.Decoder(ReportJobBody)
_pin: Final = msgspec.json.Decoder(PinBody)


def parse_list(request: Request) -> ListJobs:
    return ListJobs()


def render_list(request: Request, found: list[JobStatus]) -> Response:
    return json_response(JobsResponse([_shown(each.job, each.positions, each.pause, each.lag) for each in found]))


def parse_get(request: Request, name: str) -> GetJob:
    return GetJob(name)


def render_job(request: Request, found: Registered) -> Response:
    return json_response(_shown(found.job, found.positions, found.pause))


def parse_register(request: Request, name: str) -> RegisterJob:
    body = json_body(request, _register)
    try:
        definition = msgspec.msgpack.encode(body.definition)
    except (OverflowError, UnicodeEncodeError) as error:
        raise Invalid(f"the definition cannot be stored: {error}") from None
    return RegisterJob(name, body.kind, body.source, body.target, definition)


def parse_drop(request: Request, name: str) -> DropJob:
    return DropJob(name)


def parse_report(request: Request, name: str) -> ReportJob:
    body = json_body(request, _report)
    return ReportJob(name, body.state, body.rows, body.message)


def parse_pause(request: Request, name: str) -> PauseJob:
    return PauseJob(name)


def parse_resume(request: Request, name: str) -> ResumeJob:
    return ResumeJob(name)


def parse_pin(request: Request, name: str) -> PinPositions:
    return PinPositions(name, json_body(request, _pin).positions)


def render_positions(request: Request, positions: dict[int, int]) -> Response:
    return json_response(PositionsResponse(by_log(positions)))


def _shown(
    job: Job, positions: dict[int, int], pause: JobPause | None, lag: int | msgspec.UnsetType | None = msgspec.UNSET
) -> JobResponse:
    return JobResponse(
        name=job.name,
        kind=job.kind,
        source=job.source,
        target=job.target,
        state=job.state,
        message=job.message,
        rows=job.rows,
        definition=job.settings(),
        positions=by_log(positions),
        created_at=rfc3339(job.created_ms),
        updated_at=rfc3339(job.updated_ms),
        paused=pause is not None,
        paused_at=None if pause is None else rfc3339(pause.at_ms),
        paused_by=None if pause is None else pause.by,
        lag=lag,
    )
