"""Logs in bulk: which requests are for Arrow, and the handlers in `arrow.py`, loaded when first needed.

Arrow takes long to import and much memory, and many servers never need it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from tailrace import limits
from tailrace.access import Principal
from tailrace.database import Database
from tailrace.errors import Invalid
from tailrace.http.codec import LogName, Position, json_body, parameters_of, prefers
from tailrace.http.message import Answer, Request
from tailrace.http.partitions import partition_number

if TYPE_CHECKING:
    from tailrace.http.arrow import ArrowHandlers
    from tailrace.http.services import Services

LOG_NAMES: Final = ("table", "topic", "stream", "label")
RANGE_PARAMETERS: Final = ("offset", "until", "form", "images", "values")
ITEMS_PARAMETERS: Final = ("form", "segment", "segments")
ARROW: Final = b"application/vnd.apache.arrow.stream"
RECORDS_MAX: Final = 1_000_000_000

PartitionNumber = Annotated[int, msgspec.Meta(ge=0, le=limits.POSITION_MAX)]
RecordTotal = Annotated[int, msgspec.Meta(ge=1, le=RECORDS_MAX)]


def wants_arrow(request: Request) -> bool:
    """Whether the client accepts Arrow, and prefers no other type."""
    accept = request.headers.get(b"accept")
    return accept is not None and b"vnd.apache.arrow.stream" in accept.lower() and prefers(accept, ARROW)


# -- requests


class LogsBody(msgspec.Struct, forbid_unknown_fields=True):
    """Tables, topics and streams."""

    logs: Annotated[list[LogName], msgspec.Meta(max_length=limits.BULK_LOGS_MAX)]


class AdvanceLog(LogName, forbid_unknown_fields=True, kw_only=True):
    """A table, topic or stream, offsets by partition, and a number of records."""

    offsets: Annotated[dict[PartitionNumber, Position], msgspec.Meta(min_length=1)] = msgspec.field(name="from")
    records: RecordTotal


class AdvanceBody(msgspec.Struct, forbid_unknown_fields=True):
    """From where, and how far, by table, topic or stream."""

    logs: Annotated[list[AdvanceLog], msgspec.Meta(max_length=limits.BULK_LOGS_MAX)]


_logs: Final = msgspec.json.Decoder(LogsBody)
_advance: Final = msgspec.json.Decoder(AdvanceBody)


# -- responses


class LogPartitionResponse(msgspec.Struct):
    partition: int
    log: int
    earliest: int
    hot: int
    tiered: int
    next: int
    at_ms: int


class ColdTableResponse(msgspec.Struct):
    url: str
    place: str
    generation: int


class LogResponse(msgspec.Struct):
    """The history of a table, topic or stream."""

    kind: str
    name: str
    label: str | None
    view: str | None
    content_type: str | None
    keys: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, str], ...]
    complete: bool
    database: str
    partitions: list[LogPartitionResponse]
    cold: ColdTableResponse | None


class LogsResponse(msgspec.Struct):
    """In the order of the request, null for each that does not exist. Where they have very many partitions there are
    only the first ones: the others are asked for again."""

    logs: list[LogResponse | None]


class OffsetsResponse(msgspec.Struct):
    offsets: dict[str, int]


class AdvanceResponse(msgspec.Struct):
    """In the order of the request, null for each that does not exist."""

    logs: list[OffsetsResponse | None]


class CountResponse(msgspec.Struct):
    records: int
    cuts: list[int]


# -- handlers, all of which are in `arrow.py`


class ArrowLoader:
    """Loads `arrow.py` when one of its handlers is first needed."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._handlers: ArrowHandlers | None = None

    def close(self) -> None:
        """End the threads; reads that are under way there are finished."""
        if self._handlers is not None:
            self._handlers.close()

    async def handlers(self) -> ArrowHandlers:
        if self._handlers is None:
            loaded = await asyncio.to_thread(_load)
            return self._made(loaded)
        return self._handlers

    def _made(self, loaded: type[ArrowHandlers]) -> ArrowHandlers:
        if self._handlers is None:  # another request may have waited for the same
            self._handlers = loaded(self._db)
        return self._handlers


async def describe(services: Services, request: Request, principal: Principal) -> Answer:
    return await (await services.arrow.handlers()).describe(parameters_of(request), principal)


async def offsets_at(services: Services, request: Request, principal: Principal) -> Answer:
    return await (await services.arrow.handlers()).offsets_at(parameters_of(request), principal)


async def describe_many(services: Services, request: Request, principal: Principal) -> Answer:
    body = json_body(request, _logs)
    return await (await services.arrow.handlers()).describe_many(body.logs, principal)


async def advance(services: Services, request: Request, principal: Principal) -> Answer:
    body = json_body(request, _advance)
    return await (await services.arrow.handlers()).advance(body.logs, principal)


async def count(services: Services, request: Request, principal: Principal) -> Answer:
    return await (await services.arrow.handlers()).count(parameters_of(request), principal)


async def stream(services: Services, request: Request, principal: Principal, path: str) -> Answer:
    """A range of a stream."""
    return await (await services.arrow.handlers()).stream(request, principal, path)


async def table(services: Services, request: Request, principal: Principal, name: str) -> Answer:
    """A range of a table's changes."""
    return await (await services.arrow.handlers()).table(request, principal, name)


async def partition(services: Services, request: Request, principal: Principal, topic: str, number: str) -> Answer:
    """A range of a topic's partition."""
    return await (await services.arrow.handlers()).partition(request, principal, topic, partition_number(number))


async def items(services: Services, request: Request, principal: Principal, name: str) -> Answer:
    """All items of a table, of one moment."""
    if not wants_arrow(request):
        raise Invalid(
            f"the items of a table are sent as Arrow; send Accept: {ARROW.decode()}, or use Scan or SELECT",
            code="NOT_ACCEPTABLE",
        )
    return await (await services.arrow.handlers()).items(request, principal, name)


def cold_url(db: Database) -> str | None:
    """Where cold storage is, as a URL for jobs; without keys, which do not belong into it."""
    url = None if db.cold is None else db.cold.url
    if url is None:
        return None
    scheme, separator, rest = url.partition("://")
    if not separator:
        return Path(url).absolute().as_uri()
    if scheme == "file" or not ("@" in rest or ":" in rest.partition("/")[0]):
        return url
    return f"{scheme}://***@{rest.rpartition('@')[2] if '@' in rest else ''}"


def _load() -> type[ArrowHandlers]:
    from tailrace.http.arrow import ArrowHandlers

    return ArrowHandlers
