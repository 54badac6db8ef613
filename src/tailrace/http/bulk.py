"""Who asks for logs in bulk, and where that leads: to `arrow.py`, loaded when somebody first asks.

What it needs takes long to import and much memory, and many servers are never asked.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tailrace.access import Principal
from tailrace.database import Database
from tailrace.http.message import Answer, Request

if TYPE_CHECKING:
    from tailrace.http.arrow import ArrowDoor

ARROW: Final = b"application/vnd.apache.arrow.stream"


def wants_arrow(request: Request) -> bool:
    """Whether the client asks for Arrow, and for nothing else rather."""
    accept = request.headers.get(b"accept")
    if accept is None or b"vnd.apache.arrow.stream" not in accept.lower():
        return False
    wanted, other = 0.0, 0.0
    for part in accept.lower().split(b","):
        kind, *parameters = (each.strip() for each in part.split(b";"))
        weight = 1.0
        for parameter in parameters:
            if parameter.startswith(b"q="):
                weight = _weight(parameter[2:])
        if kind == ARROW:
            wanted = max(wanted, weight)
        elif b"*" not in kind:
            other = max(other, weight)
    return wanted > 0 and wanted >= other


def _weight(text: bytes) -> float:
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0 <= weight <= 1 else 0.0


class BulkDoor:
    """Everything at and below /v1/logs, and Arrow wherever else it is asked for."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._door: ArrowDoor | None = None

    def close(self) -> None:
        """End the threads; what is under way there is finished."""
        if self._door is not None:
            self._door.close()

    async def _loaded(self) -> ArrowDoor:
        if self._door is not None:
            return self._door
        return self._made(await asyncio.to_thread(_load))

    def _made(self, door: type[ArrowDoor]) -> ArrowDoor:
        if self._door is None:  # another request may have waited for the same
            self._door = door(self._db)
        return self._door

    async def __call__(self, request: Request, raw: bytes, principal: Principal) -> Answer:
        """Answer a request; `raw` is the path after /v1/logs, as it came."""
        return await (await self._loaded()).logs(request, raw, principal)

    async def stream(self, request: Request, principal: Principal, path: str) -> Answer:
        """A range of a stream."""
        return await (await self._loaded()).stream(request, principal, path)

    async def table(self, request: Request, principal: Principal, name: str, label: str | None) -> Answer:
        """A range of a table's changes."""
        return await (await self._loaded()).table(request, principal, name, label)

    async def partition(self, request: Request, principal: Principal, topic: str, number: int) -> Answer:
        """A range of a topic's partition."""
        return await (await self._loaded()).partition(request, principal, topic, number)

    async def items(self, request: Request, principal: Principal, name: str) -> Answer:
        """All items of a table, of one moment."""
        return await (await self._loaded()).items(request, principal, name)


def cold_url(db: Database) -> str | None:
    """Where cold storage is, as a URL for jobs; without keys, which do not belong into it."""
    url = None if db.cold is None else db.cold.url
    if url is None:
        return None
    scheme, apart, rest = url.partition("://")
    if not apart:
        return Path(url).absolute().as_uri()
    if scheme == "file" or not ("@" in rest or ":" in rest.partition("/")[0]):
        return url
    return f"{scheme}://***@{rest.rpartition('@')[2] if '@' in rest else ''}"


def _load() -> type[ArrowDoor]:
    from tailrace.http.arrow import ArrowDoor

    return ArrowDoor
