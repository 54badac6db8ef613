"""What is kept of a table's changes: the part of the door `/v1/tables/:name` for retention, pruning and named cursors.

    GET     /stream/info                                     what is in the stream, and its cursors
    PATCH   /stream {"max_age_s": ..., "max_count": ...}     how long and how many; null: no bound
    POST    /stream/prune {"through": sequence}              remove what is there up to this sequence
    GET     /cursors                                         all of them
    GET     /cursors/:cursor                                 one
    PUT     /cursors/:cursor {"sequence": ..., "hold_bytes": ...}   save it
    DELETE  /cursors/:cursor                                 forget it

Each takes `?label=` for a stream before the present one.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tailrace import limits
from tailrace.access import Principal
from tailrace.database import Database
from tailrace.errors import Invalid, NotAllowed, NotFound, TooLarge
from tailrace.http.encoding import rfc3339
from tailrace.http.message import Headers, Request, Response
from tailrace.tables.cursors import Cursor, DropCursor, ListCursors, SaveCursor
from tailrace.tables.streams import (
    AlterRetention,
    Info,
    PruneStream,
    StreamInfo,
)

T = TypeVar("T")
Number = Annotated[int, Meta(ge=0, le=limits.POSITION_MAX)]
_JSON: Final[Headers] = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
_encode: Final = msgspec.json.Encoder().encode


class RetentionBody(msgspec.Struct, forbid_unknown_fields=True):
    max_age_s: int | UnsetType | None = UNSET
    max_count: int | UnsetType | None = UNSET


class PruneBody(msgspec.Struct, forbid_unknown_fields=True):
    through: Number


class CursorBody(msgspec.Struct, forbid_unknown_fields=True):
    sequence: Number
    hold_bytes: Number | UnsetType = UNSET


class Upkeep:
    """Answers for one table's stream, that of `label` or the present one."""

    def __init__(self, db: Database, principal: Principal, name: str, label: str | None) -> None:
        self._db = db
        self._principal = principal
        self._name = name
        self._label = label

    async def info(self, request: Request) -> Response:
        if request.method not in (b"GET", b"HEAD"):
            raise _refused(request, "GET, HEAD, OPTIONS")
        info = await self._info()
        found = await self._db.aexecute(ListCursors(self._name, self._label), self._principal)
        return _answer(_stream(info) | {"cursors": [_cursor(cursor) for cursor in found]})

    async def alter(self, request: Request) -> Response:
        asked = _body(request, RetentionBody)
        if asked.max_age_s is UNSET and asked.max_count is UNSET:
            raise Invalid("the body says nothing: give max_age_s, max_count or both; null is no bound")
        command = AlterRetention(self._name, asked.max_age_s, asked.max_count, self._label)
        await self._db.aexecute(command, self._principal)
        return _answer(_stream(await self._info()))

    async def prune(self, request: Request) -> Response:
        if request.method != b"POST":
            raise _refused(request, "POST, OPTIONS")
        asked = _body(request, PruneBody)
        pruned = await self._db.aexecute(PruneStream(self._name, asked.through, self._label), self._principal)
        if pruned.gone:  # it was closed, and nothing is left to tell of
            return _answer({"table": self._name, "pruned": pruned.records, "gone": True})
        return _answer(_stream(await self._info()) | {"pruned": pruned.records, "gone": False})

    async def cursors(self, request: Request) -> Response:
        if request.method not in (b"GET", b"HEAD"):
            raise _refused(request, "GET, HEAD, OPTIONS")
        found = await self._db.aexecute(ListCursors(self._name, self._label), self._principal)
        return _answer({"cursors": [_cursor(cursor) for cursor in found]})

    async def cursor(self, request: Request, name: str) -> Response:
        match request.method:
            case b"GET" | b"HEAD":
                found = await self._db.aexecute(ListCursors(self._name, self._label), self._principal)
                for cursor in found:
                    if cursor.name == name:
                        return _answer(_cursor(cursor))
                raise self._no_cursor(name)
            case b"PUT":
                asked = _body(request, CursorBody)
                hold_bytes = None if asked.hold_bytes is UNSET else asked.hold_bytes
                command = SaveCursor(self._name, name, asked.sequence, hold_bytes, self._label)
                return _answer(_cursor(await self._db.aexecute(command, self._principal)))
            case b"DELETE":
                if not await self._db.aexecute(DropCursor(self._name, name, self._label), self._principal):
                    raise self._no_cursor(name)
                return Response(204, [(b"cache-control", b"no-store")])
        raise _refused(request, "GET, HEAD, PUT, DELETE, OPTIONS")

    async def _info(self) -> Info:
        return await self._db.aexecute(StreamInfo(self._name, self._label), self._principal)

    def _no_cursor(self, name: str) -> NotFound:
        return NotFound(
            f"the change stream of table {self._name!r} has no cursor {name[:200]!r}; list them at "
            f"/v1/tables/{self._name}/cursors",
            code="CURSOR_NOT_FOUND",
        )


def _refused(request: Request, allow: str) -> NotAllowed:
    path, method = request.path.decode("latin-1")[:200], request.method.decode("latin-1")
    return NotAllowed(f"{path} does not take {method}; it takes {allow}", allow=allow)


def _stream(info: Info) -> dict[str, Any]:
    stream = info.stream
    return {
        "table": stream.name,
        "label": stream.label,
        "view": stream.view,
        "enabled": info.enabled,
        "created_at": rfc3339(stream.created_ms),
        "closed_at": None if stream.closed_ms is None else rfc3339(stream.closed_ms),
        "oldest": info.oldest,
        "latest": info.latest,
        "records": info.count,
        "bytes": info.bytes,
        "max_age_s": stream.max_age_s,
        "max_count": stream.max_count,
    }


def _cursor(cursor: Cursor) -> dict[str, Any]:
    return {
        "name": cursor.name,
        "sequence": cursor.after,
        "saved_at": rfc3339(cursor.at_ms),
        "hold_bytes": cursor.hold_bytes,
        "lost": cursor.lost,
        "cut_off": cursor.cut_off,
        "lag": {"records": cursor.lag.records, "bytes": cursor.lag.bytes, "age_s": cursor.lag.age_ms / 1000},
    }


def _answer(state: dict[str, Any]) -> Response:
    return Response(200, _JSON, _encode(state))


def _body(request: Request, kind: type[T]) -> T:
    if len(request.body) > limits.CONTROL_BODY_BYTES_MAX:
        raise TooLarge(f"the body is larger than {limits.CONTROL_BODY_BYTES_MAX} bytes; send less")
    try:
        return msgspec.json.decode(request.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the body is not the JSON that is wanted here: {error}") from None
