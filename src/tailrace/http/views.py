"""The door of materialized views: what they are, and what their job does to them.

GET     /v1/views                 all of them
GET     /v1/views/:name           one: its SELECT, its sources and how far it has come in each
POST    /v1/views/:name/apply     a delta and the ranges of the sources' logs that it comes from, MessagePack
POST    /v1/views/:name/held      rows that a join has of its sources, by side and join key, MessagePack both ways
POST    /v1/views/:name/fill      {"step": "begin" | "clear" | "piece" | "finish", ...}, MessagePack: fill it anew

Views are made and dropped by SQL. What is sent here is for the job that comes with Tailrace; `jobs/apply.py` says what
it means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import msgspec

from tailrace import limits
from tailrace.access import Principal
from tailrace.database import Database
from tailrace.errors import Invalid, TooLarge
from tailrace.http import asking
from tailrace.http.asking import LogNumber, Position, Range
from tailrace.http.encoding import rfc3339
from tailrace.http.message import Answer, Headers, Request, Response
from tailrace.http.streams import decode_path
from tailrace.jobs.apply import ApplyView, Moves, ReadHeld
from tailrace.jobs.view import Described, DescribeView, ListViews
from tailrace.jobs.view_fill import BeginFill, ClearRows, FillRows, FinishFill

T = TypeVar("T")
_MSGPACK: Final[Headers] = [(b"content-type", b"application/vnd.msgpack"), (b"cache-control", b"no-store")]


class ApplyBody(msgspec.Struct, forbid_unknown_fields=True):
    ranges: dict[str, Range]
    moves: Moves


class HeldBody(msgspec.Struct, forbid_unknown_fields=True):
    asked: list[tuple[int, str, bool, bytes]]


class Begin(msgspec.Struct, forbid_unknown_fields=True, tag_field="step", tag="begin"):
    """Nothing but the view's name is needed."""


class Clear(msgspec.Struct, forbid_unknown_fields=True, tag_field="step", tag="clear"):
    fill: str


class Piece(msgspec.Struct, forbid_unknown_fields=True, tag_field="step", tag="piece"):
    fill: str
    piece: Position
    moves: Moves


class Finish(msgspec.Struct, forbid_unknown_fields=True, tag_field="step", tag="finish"):
    fill: str
    sequences: dict[str, Position]


class ViewsDoor:
    """Everything at and below /v1/views."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._applies = msgspec.msgpack.Decoder(ApplyBody)
        self._helds = msgspec.msgpack.Decoder(HeldBody)
        self._fills = msgspec.msgpack.Decoder(Begin | Clear | Piece | Finish)

    def __call__(self, request: Request, raw: bytes, principal: Principal) -> Coroutine[Any, Any, Answer]:
        """Answer a request; `raw` is the path after /v1/views, as it came: empty, or with a slash at its beginning."""
        name, *parts = (decode_path(part) for part in raw[1:].split(b"/"))
        match parts:
            case []:
                if request.method not in (b"GET", b"HEAD"):
                    raise asking.refused(request, "GET, HEAD, OPTIONS")
                return self._one(name, principal) if name else self._list(principal)
            case ["apply" | "held" | "fill" as what]:
                if request.method != b"POST":
                    raise asking.refused(request, "POST, OPTIONS")
                doors = {"apply": self._apply, "held": self._held, "fill": self._fill}
                return doors[what](request, name, principal)
        raise asking.nothing(request, "a view is at /v1/views/<name>, and below it are apply, held and fill")

    async def _list(self, principal: Principal) -> Response:
        found = await asyncio.to_thread(self._db.execute, ListViews(), principal)
        return asking.answer({"views": [told(each) for each in found]})

    async def _one(self, name: str, principal: Principal) -> Response:
        return asking.answer(told(await self._db.aexecute(DescribeView(name), principal)))

    async def _apply(self, request: Request, name: str, principal: Principal) -> Response:
        asked = await _body(request, self._applies)
        ranges = {_log(log): each for log, each in asked.ranges.items()}
        command = ApplyView(name, ranges, asked.moves, len(request.body))
        done = await self._db.aexecute(command, principal)
        return asking.answer({"applied": done.applied, "positions": asking.numbered(done.positions)})

    async def _held(self, request: Request, name: str, principal: Principal) -> Response:
        asked = await _body(request, self._helds)
        # There may be many, so it is not done on the event loop.
        found = await asyncio.to_thread(self._db.execute, ReadHeld(name, tuple(asked.asked)), principal)
        body = await asyncio.to_thread(msgspec.msgpack.encode, [[each.rows, each.count, each.next] for each in found])
        return Response(200, _MSGPACK, body)

    async def _fill(self, request: Request, name: str, principal: Principal) -> Response:
        match await _body(request, self._fills):
            case Begin():
                return asking.answer({"fill": await self._db.aexecute(BeginFill(name), principal)})
            case Clear(fill=fill):
                return asking.answer({"more": await self._db.aexecute(ClearRows(name, fill), principal)})
            case Piece(fill=fill, piece=piece, moves=moves):
                command = FillRows(name, fill, piece, moves, len(request.body))
                return asking.answer({"applied": await self._db.aexecute(command, principal)})
            case asked:
                finish = FinishFill(name, asked.fill, asked.sequences)
                return asking.answer(told(await self._db.aexecute(finish, principal)))


async def _body(request: Request, decoder: msgspec.msgpack.Decoder[T]) -> T:
    if len(request.body) > limits.BODY_BYTES_MAX:
        raise TooLarge(f"the body has more than {limits.BODY_BYTES_MAX} bytes; send shorter ranges")
    try:
        if len(request.body) <= limits.LOOP_BYTES:
            return decoder.decode(request.body)
        return await asyncio.to_thread(decoder.decode, request.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the body is not the MessagePack that is wanted here: {error}") from None


def _log(text: str) -> int:
    try:
        return msgspec.convert(text, LogNumber, strict=False)
    except msgspec.ValidationError:
        raise Invalid(f"{text[:40]!r} is no number of a log") from None


def told(view: Described) -> dict[str, Any]:
    """A view as clients see it."""
    return {
        "name": view.name,
        "sql": view.sql,
        "phase": view.phase,
        "stale": view.stale,
        "state": view.state,
        "message": view.message,
        "rows": view.rows,
        "items": view.items,
        "keys": view.keys,
        "tables": view.tables,
        "sources": view.sources,
        "fill": view.fill,
        "piece": view.piece,
        "created_at": rfc3339(view.created_ms),
        "updated_at": rfc3339(view.updated_ms),
    }
