"""The door of staged writes: rows wait here, and are written all at once.

    POST    /v1/stages?table=t|topic=t|stream=p               a new stage; the body is MessagePack, an array of rows
    POST    /v1/stages?table=t|...&stage=id[&chunk=n]         more rows for it
    POST    /v1/stages/commit                                 write the rows of some stages, once
    DELETE  /v1/stages/:id                                    forget them

Rows are checked in a thread: a request has many.
"""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import Any, Final

import msgspec

from tailrace.access import SYSTEM, Principal
from tailrace.database import Database
from tailrace.errors import Invalid, WrongType
from tailrace.http import asking
from tailrace.http.asking import LogNumber, Named, Position, Range
from tailrace.http.dynamodb.apart import Workers
from tailrace.http.message import Answer, Request, Response
from tailrace.http.streams import decode_path
from tailrace.jobs.commands import CommitStages, DropStage, StageRows
from tailrace.jobs.queries import FindStage, FindTarget
from tailrace.jobs.target import checked

CONTENT_TYPES: Final = ("application/vnd.msgpack", "application/msgpack", "application/x-msgpack")
CHUNK_DIGITS_MAX: Final = 6


class CommitBody(msgspec.Struct, forbid_unknown_fields=True):
    query: str
    batch: Position
    target: Named
    stages: list[str]
    consumer: str | None = None
    ranges: dict[LogNumber, Range] | None = None
    strict: bool = True


class StagesDoor:
    """Everything at and below /v1/stages."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._workers = Workers()
        self._commits = msgspec.json.Decoder(CommitBody)

    def close(self) -> None:
        """End the threads; what is under way there is finished."""
        self._workers.close()

    def __call__(self, request: Request, raw: bytes, principal: Principal) -> Coroutine[Any, Any, Answer]:
        """Answer a request; `raw` is the path after /v1/stages, as it came: empty, or with a slash at its beginning."""
        parts = raw.split(b"/")[1:]
        if raw in (b"", b"/"):
            if request.method != b"POST":
                raise asking.refused(request, "POST, OPTIONS")
            return self._stage(request, principal)
        if parts == [b"commit"]:
            if request.method != b"POST":
                raise asking.refused(request, "POST, OPTIONS")
            asking.check_none(request)
            return self._commit(request, principal)
        if len(parts) == 1:
            if request.method != b"DELETE":
                raise asking.refused(request, "DELETE, OPTIONS")
            asking.check_none(request)
            return self._drop(decode_path(parts[0]), principal)
        raise asking.nothing(request, "rows are staged at /v1/stages, committed at /v1/stages/commit")

    async def _stage(self, request: Request, principal: Principal) -> Response:
        content_type = request.headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
        if content_type not in CONTENT_TYPES:
            raise WrongType(f"Content-Type {content_type[:80]!r} is not taken here; send rows as {CONTENT_TYPES[0]}")
        given = asking.asked(request, "table", "topic", "stream", "stage", "chunk")
        here = await self._db.aexecute(FindTarget(asking.target(given)), principal)
        rows = await self._workers.run(partial(checked, here, request.body), len(request.body))
        if not rows.rows:
            raise Invalid("there are no rows in the body; stage at least one", code="INVALID_ROWS")
        command = StageRows(here.target, here.number, rows.rows, rows.body, given.get("stage"), _chunk(given))
        done = await self._db.aexecute(command, principal)
        return asking.answer({"stage": done.stage.id, "rows": done.stage.rows}, 201 if done.fresh else 200)

    async def _commit(self, request: Request, principal: Principal) -> Response:
        asked = asking.body(request, self._commits)
        if asked.target.label is not None:
            raise Invalid("a label names a change stream, which is written by changing the table; leave it out")
        command = CommitStages(
            asked.query, asked.batch, asked.target.target(), tuple(asked.stages), asked.consumer, asked.ranges,
            asked.strict,
        )  # fmt: skip
        done = await self._db.aexecute(command, principal)
        return asking.answer({"applied": done.applied, "rows": done.rows, "positions": asking.numbered(done.positions)})

    async def _drop(self, name: str, principal: Principal) -> Response:
        # What it is for has to be known before it can be asked whether this one may.
        target = await self._db.aexecute(FindStage(name), SYSTEM)
        await self._db.aexecute(DropStage(name, target), principal)
        return Response(204, [])


def _chunk(given: dict[str, str]) -> int | None:
    text = given.get("chunk")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= CHUNK_DIGITS_MAX):
        raise Invalid(f"chunk={text[:80]!r} is not the number of a chunk; the first is 0")
    return int(text)
