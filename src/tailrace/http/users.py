"""The door of `/v1/admin/users`: users, for those who administer.

    GET                           the users
    POST      {"name": ...}       a new one; "password", "role" and "access" if wanted
    GET       /:name              one of them
    PATCH     /:name {...}        change "password", "role", "access" or "disabled"; null takes one of the first away
    DELETE    /:name              drop it

Passwords come in the clear, so this is for TLS or for this machine; they are hashed before a command is made.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import UNSET, UnsetType

from tailrace.access import Permission, Principal
from tailrace.auth import users
from tailrace.auth.users import DropUser, FindUser, ListUsers, UserInfo
from tailrace.database import Database
from tailrace.errors import Invalid, NotAllowed, NotFound, TooLarge
from tailrace.http.message import Headers, Request, Response
from tailrace.http.who import Who

BODY_BYTES_MAX: Final = 256 * 1024
T = TypeVar("T")
_JSON: Final[Headers] = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
_encode: Final = msgspec.json.Encoder().encode


class CreateBody(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    password: str | None = None
    role: str = "user"
    access: list[str] | None = None


class AlterBody(msgspec.Struct, forbid_unknown_fields=True):
    password: str | UnsetType | None = UNSET
    role: str | UnsetType = UNSET
    access: list[str] | UnsetType | None = UNSET
    disabled: bool | UnsetType = UNSET


class UsersDoor:
    """Answers requests at and below `/v1/admin/users`; the commands want an administrator."""

    def __init__(self, db: Database, who: Who) -> None:
        self._db = db
        self._who = who

    async def __call__(self, request: Request, raw: bytes, principal: Principal) -> Response:
        """Answer a request; `raw` is the path after /v1/admin/users, as it came."""
        if raw in (b"", b"/"):
            return await self._all(request, principal)
        if raw.startswith(b"/") and b"/" not in raw[1:]:
            return await self._one(request, _decoded(raw[1:]), principal)
        raise NotFound(f"there is nothing at {request.path.decode('latin-1')[:200]!r}; users live at /v1/admin/users")

    async def _all(self, request: Request, principal: Principal) -> Response:
        match request.method:
            case b"GET" | b"HEAD":
                found = await self._db.aexecute(ListUsers(), principal)
                return _answer(200, {"users": [_shown(user) for user in found]})
            case b"POST":
                _may_administer(principal, "CreateUser")
                asked = _body(request, CreateBody)
                command = await self._who.apart(users.create_user, asked.name, asked.password, asked.role, asked.access)
                return _answer(201, _shown(await self._db.aexecute(command, principal)))
        raise NotAllowed("the users take GET and POST", allow="GET, HEAD, POST, OPTIONS")

    async def _one(self, request: Request, name: str, principal: Principal) -> Response:
        match request.method:
            case b"GET" | b"HEAD":
                found: UserInfo | None = await self._db.aexecute(FindUser(name), principal)
                if found is None:
                    raise NotFound(f"there is no user {name[:64]!r}", code="USER_NOT_FOUND")
                return _answer(200, _shown(found))
            case b"PATCH":
                _may_administer(principal, "AlterUser")
                asked = _body(request, AlterBody)
                command = await self._who.apart(users.alter_user, name, **msgspec.structs.asdict(asked))
                return _answer(200, _shown(await self._db.aexecute(command, principal)))
            case b"DELETE":
                await self._db.aexecute(DropUser(name=name), principal)
                return Response(204, [(b"cache-control", b"no-store")])
        raise NotAllowed("a user takes GET, PATCH and DELETE", allow="GET, HEAD, PATCH, DELETE, OPTIONS")


def _may_administer(principal: Principal, what: str) -> None:
    """Before a password is hashed for somebody who may not ask for it; the command is checked all the same."""
    if Permission.ADMIN not in principal.permissions:
        raise principal.refusal(Permission.ADMIN, what)


def _shown(user: UserInfo) -> dict[str, Any]:
    return {
        "name": user.name,
        "role": user.role,
        "access": None if user.access is None else list(user.access),
        "password": user.password,
        "disabled": user.disabled,
        "created_at": _time(user.created_ms),
        "updated_at": _time(user.updated_ms),
    }


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _answer(status: int, value: dict[str, Any]) -> Response:
    return Response(status, _JSON, _encode(value))


def _decoded(raw: bytes) -> str:
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise Invalid(f"{raw[:80]!r} in the path is not percent-encoded UTF-8", code="INVALID_PATH") from None


def _body(request: Request, kind: type[T]) -> T:
    if len(request.body) > BODY_BYTES_MAX:
        raise TooLarge(f"the body is larger than {BODY_BYTES_MAX} bytes; send less")
    try:
        return msgspec.json.decode(request.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the body is not the JSON that is wanted here: {error}") from None
