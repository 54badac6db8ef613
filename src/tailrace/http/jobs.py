"""The door of jobs: what they are, how they are and how far they have come.

GET     /v1/jobs                  all of them
GET     /v1/jobs/:name            one
PUT     /v1/jobs/:name            {"kind", "source", "target", "definition"}: make sure it is there
DELETE  /v1/jobs/:name            forget it and how far it was
POST    /v1/jobs/:name/report     {"state", "rows", "message"}: it tells how it is
POST    /v1/jobs/:name/pin        {"positions"}: where it begins, unless that is noted already
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec

from tailrace.access import Principal
from tailrace.database import Database
from tailrace.errors import Invalid
from tailrace.http import asking
from tailrace.http.asking import LogNumber, Position
from tailrace.http.encoding import rfc3339
from tailrace.http.message import Answer, Request, Response
from tailrace.http.streams import decode_path
from tailrace.jobs.commands import DropJob, PinPositions, Registered, RegisterJob, ReportJob
from tailrace.jobs.job import Job
from tailrace.jobs.queries import GetJob, ListJobs

ONE = "GET, HEAD, PUT, DELETE, OPTIONS"


class RegisterBody(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    source: str = ""
    target: str = ""
    definition: dict[str, Any] = {}


class ReportBody(msgspec.Struct, forbid_unknown_fields=True):
    state: str
    rows: Position | None = None
    message: str | None = None


class PinBody(msgspec.Struct, forbid_unknown_fields=True):
    positions: dict[LogNumber, Position]


class JobsDoor:
    """Everything at and below /v1/jobs."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._registers = msgspec.json.Decoder(RegisterBody)
        self._reports = msgspec.json.Decoder(ReportBody)
        self._pins = msgspec.json.Decoder(PinBody)

    def __call__(self, request: Request, raw: bytes, principal: Principal) -> Coroutine[Any, Any, Answer]:
        """Answer a request; `raw` is the path after /v1/jobs, as it came: empty, or with a slash at its beginning."""
        if raw in (b"", b"/"):
            if request.method not in (b"GET", b"HEAD"):
                raise asking.refused(request, "GET, HEAD, OPTIONS")
            return self._list(principal)
        name, *parts = (decode_path(part) for part in raw[1:].split(b"/"))
        match parts:
            case []:
                return self._one(request, name, principal)
            case ["report" | "pin" as what]:
                if request.method != b"POST":
                    raise asking.refused(request, "POST, OPTIONS")
                return (
                    self._report(request, name, principal) if what == "report" else self._pin(request, name, principal)
                )
        raise asking.nothing(request, "a job is at /v1/jobs/<name>, and below it are report and pin")

    def _one(self, request: Request, name: str, principal: Principal) -> Coroutine[Any, Any, Answer]:
        match request.method:
            case b"GET" | b"HEAD":
                return self._get(name, principal)
            case b"PUT":
                return self._register(request, name, principal)
            case b"DELETE":
                return self._drop(name, principal)
        raise asking.refused(request, ONE)

    async def _list(self, principal: Principal) -> Response:
        # There may be many, and each has positions in many logs.
        def listed() -> Response:
            found = self._db.execute(ListJobs(), principal)
            return asking.answer({"jobs": [told(each.job, each.positions) | {"lag": each.lag} for each in found]})

        return await asyncio.to_thread(listed)

    async def _get(self, name: str, principal: Principal) -> Response:
        return _answer(await asyncio.to_thread(self._db.execute, GetJob(name), principal))

    async def _register(self, request: Request, name: str, principal: Principal) -> Response:
        asked = asking.body(request, self._registers)
        try:
            definition = msgspec.msgpack.encode(asked.definition)
        except (OverflowError, UnicodeEncodeError) as error:
            raise Invalid(f"the definition cannot be kept: {error}") from None
        command = RegisterJob(name, asked.kind, asked.source, asked.target, definition)
        return _answer(await self._db.aexecute(command, principal))

    async def _drop(self, name: str, principal: Principal) -> Response:
        await self._db.aexecute(DropJob(name), principal)
        return Response(204, [])

    async def _report(self, request: Request, name: str, principal: Principal) -> Response:
        asked = asking.body(request, self._reports)
        return _answer(await self._db.aexecute(ReportJob(name, asked.state, asked.rows, asked.message), principal))

    async def _pin(self, request: Request, name: str, principal: Principal) -> Response:
        asked = asking.body(request, self._pins)
        stored = await self._db.aexecute(PinPositions(name, asked.positions), principal)
        return asking.answer({"positions": asking.numbered(stored)})


def told(job: Job, positions: dict[int, int]) -> dict[str, Any]:
    """A job as clients see it."""
    return {
        "name": job.name,
        "kind": job.kind,
        "source": job.source,
        "target": job.target,
        "state": job.state,
        "message": job.message,
        "rows": job.rows,
        "definition": job.settings(),
        "positions": asking.numbered(positions),
        "created_at": rfc3339(job.created_ms),
        "updated_at": rfc3339(job.updated_ms),
    }


def _answer(found: Registered) -> Response:
    return asking.answer(told(found.job, found.positions))
