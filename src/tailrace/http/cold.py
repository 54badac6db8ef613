"""The door of cold storage: which logs are kept there, and up to where.

GET   /v1/cold           where it is, and what is there
POST  /v1/cold/attach    {"table" | "topic" | "stream": name}: keep its history there from now on
POST  /v1/cold/detach    likewise: no more
POST  /v1/cold/tiered    {"place", "generation", "ranges"}: this is there now
POST  /v1/cold/forget    {"place", "starts"}: this is there no more
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlencode

import msgspec

from tailrace.access import Principal
from tailrace.database import Database
from tailrace.http import asking
from tailrace.http.asking import LogNumber, Named, Position, Range
from tailrace.http.bulk import BulkDoor, cold_url
from tailrace.http.message import Answer, Request, Response
from tailrace.jobs.identity import Identify
from tailrace.jobs.queries import ListCold, TierInfo
from tailrace.jobs.tiering import AttachTier, DetachTier, ForgetCold, MoveTiered

Work = Callable[[Request, Principal], Coroutine[Any, Any, Answer]]
BELOW = "below /v1/cold there are attach, detach, tiered and forget"


class TieredBody(msgspec.Struct, forbid_unknown_fields=True):
    place: str
    generation: Position
    ranges: dict[LogNumber, Range]


class ForgetBody(msgspec.Struct, forbid_unknown_fields=True):
    place: str
    starts: dict[LogNumber, Position]


class ColdDoor:
    """Everything at and below /v1/cold."""

    def __init__(self, db: Database, logs: BulkDoor) -> None:
        self._db = db
        self._logs = logs
        self._named = msgspec.json.Decoder(Named)
        self._tiers = msgspec.json.Decoder(TieredBody)
        self._forgets = msgspec.json.Decoder(ForgetBody)

    def __call__(self, request: Request, raw: bytes, principal: Principal) -> Coroutine[Any, Any, Answer]:
        """Answer a request; `raw` is the path after /v1/cold, as it came: empty, or with a slash at its beginning."""
        if raw in (b"", b"/"):
            if request.method not in (b"GET", b"HEAD"):
                raise asking.refused(request, "GET, HEAD, OPTIONS")
            return self._list(principal)
        match raw:
            case b"/attach":
                work: Work = self._attach
            case b"/detach":
                work = self._detach
            case b"/tiered":
                work = self._tiered
            case b"/forget":
                work = self._forget
            case _:
                raise asking.nothing(request, BELOW)
        if request.method != b"POST":
            raise asking.refused(request, "POST, OPTIONS")
        return work(request, principal)

    async def _list(self, principal: Principal) -> Response:
        # There may be many logs.
        found = await asyncio.to_thread(self._db.execute, ListCold(), principal)
        places = [
            {
                "name": each.place.name,
                "generation": each.place.generation,
                "logs": [_told(log) for log in each.logs],
            }
            for each in found
        ]
        identity = await self._db.aexecute(Identify())
        found_here = {"url": cold_url(self._db), "database": identity, "time_ms": self._db.clock.settled_ms()}
        return asking.answer({**found_here, "places": places})

    async def _attach(self, request: Request, principal: Principal) -> Answer:
        asked = asking.body(request, self._named)
        # What finds the place takes long to import, and there may be many partitions.
        await asyncio.to_thread(self._db.execute, AttachTier(asked.target(), asked.label), principal)
        return await self._described(request, asked, principal)

    async def _detach(self, request: Request, principal: Principal) -> Answer:
        asked = asking.body(request, self._named)
        await asyncio.to_thread(self._db.execute, DetachTier(asked.target(), asked.label), principal)
        return await self._described(request, asked, principal)

    async def _described(self, request: Request, asked: Named, principal: Principal) -> Answer:
        """What /v1/logs says of it now."""
        named = {name: value for name, value in msgspec.structs.asdict(asked).items() if value is not None}
        question = Request(b"GET", b"/v1/logs", urlencode(named).encode(), {}, b"", peer=request.peer)
        return await self._logs(question, b"", principal)

    async def _tiered(self, request: Request, principal: Principal) -> Response:
        asked = asking.body(request, self._tiers)
        command = MoveTiered(asked.place, asked.generation, asked.ranges)
        return asking.answer({"generation": await self._db.aexecute(command, principal)})

    async def _forget(self, request: Request, principal: Principal) -> Response:
        asked = asking.body(request, self._forgets)
        now = await self._db.aexecute(ForgetCold(asked.place, asked.starts), principal)
        return asking.answer({"starts": asking.numbered(now)})


def _told(log: TierInfo) -> dict[str, Any]:
    of = {} if log.table is None else {"table": log.table, "label": log.label}
    return {"log": log.tier.log, "start": log.tier.start, "tiered": log.tier.tiered, "next": log.next, **of}
