"""Cold storage: which logs have history there, and up to which position."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from tailrace.access import Principal
from tailrace.command import Command
from tailrace.http.bulk import cold_url
from tailrace.http.codec import LogName, LogNumber, Position, Range, by_log, json_body, json_response
from tailrace.http.message import Answer, Request, Response
from tailrace.jobs.identity import Identify
from tailrace.jobs.queries import ColdLogInfo, ListCold
from tailrace.jobs.tiering import AttachTier, DetachTier, ForgetCold, MoveTiered

if TYPE_CHECKING:
    from tailrace.http.services import Services


class TieredBody(msgspec.Struct, forbid_unknown_fields=True):
    """Ranges of logs that were written to a table of cold storage."""

    place: str
    generation: Position
    ranges: dict[LogNumber, Range]


class ForgetColdBody(msgspec.Struct, forbid_unknown_fields=True):
    """By log, the first position that is still in cold storage."""

    place: str
    starts: dict[LogNumber, Position]


class TieredLogResponse(msgspec.Struct):
    log: int
    start: int
    tiered: int
    next: int
    table: str | UnsetType = UNSET
    label: str | UnsetType | None = UNSET


class ColdPlaceResponse(msgspec.Struct):
    name: str
    generation: int
    logs: list[TieredLogResponse]


class ColdStorageResponse(msgspec.Struct):
    url: str | None
    database: str
    time_ms: int
    places: list[ColdPlaceResponse]


class GenerationResponse(msgspec.Struct):
    generation: int


class StartsResponse(msgspec.Struct):
    starts: dict[str, int]


_name: Final = msgspec.json.Decoder(LogName)
_tiered: Final = msgspec.json.Decoder(TieredBody)
_forget: Final = msgspec.json.Decoder(ForgetColdBody)


async def describe(services: Services, request: Request, principal: Principal) -> Response:
    """Where cold storage is, and the logs in it."""
    db = services.db
    found = await asyncio.to_thread(db.execute, ListCold(), principal)  # there may be many logs
    places = [
        ColdPlaceResponse(each.place.name, each.place.generation, [_shown(log) for log in each.logs]) for each in found
    ]
    identity = await db.aexecute(Identify())
    return json_response(ColdStorageResponse(cold_url(db), identity, db.clock.settled_ms(), places))


async def attach(services: Services, request: Request, principal: Principal) -> Answer:
    """Keep the history of a log in cold storage from now on; the log."""
    name = json_body(request, _name)
    return await _altered(services, AttachTier(name.target(), name.label), name, principal)


async def detach(services: Services, request: Request, principal: Principal) -> Answer:
    """Keep no more of it there; the log."""
    name = json_body(request, _name)
    return await _altered(services, DetachTier(name.target(), name.label), name, principal)


async def _altered(services: Services, command: Command[Any], name: LogName, principal: Principal) -> Answer:
    # In a thread: cold storage takes long to import, and there may be many partitions.
    await asyncio.to_thread(services.db.execute, command, principal)
    names = {key: value for key, value in msgspec.structs.asdict(name).items() if value is not None}
    return await (await services.arrow.handlers()).describe(names, principal)


def parse_tiered(request: Request) -> MoveTiered:
    body = json_body(request, _tiered)
    return MoveTiered(body.place, body.generation, body.ranges)


def render_generation(request: Request, generation: int) -> Response:
    return json_response(GenerationResponse(generation))


def parse_forget(request: Request) -> ForgetCold:
    body = json_body(request, _forget)
    return ForgetCold(body.place, body.starts)


def render_starts(request: Request, starts: dict[int, int]) -> Response:
    return json_response(StartsResponse(by_log(starts)))


def _shown(log: ColdLogInfo) -> TieredLogResponse:
    shown = TieredLogResponse(log.tier.log, log.tier.start, log.tier.tiered, log.next)
    if log.table is not None:
        shown.table, shown.label = log.table, log.label
    return shown
