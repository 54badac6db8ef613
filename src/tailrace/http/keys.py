"""The door of `/v1/admin/keys`: access keys, for those who run the server.

    GET                            the keys, without their secrets
    POST      {"principal": ...}   a new key, with the secret that is shown this once; "role" if it is not user
                                   (a user's key has the user's role)
    DELETE    /:id                 delete it
    PATCH     /:id {"disabled": ...}   switch it off or on

A key's holder cannot make keys with it: this door takes passwords and tokens, not signatures.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec

from tailrace import limits
from tailrace.access import Principal
from tailrace.auth.keys import (
    CreateAccessKey,
    DeleteAccessKey,
    DisableAccessKey,
    EnableAccessKey,
    KeyInfo,
    ListAccessKeys,
    NewKey,
)
from tailrace.command import Command
from tailrace.database import Database
from tailrace.errors import Error, Invalid, NotAllowed, NotFound, TooLarge
from tailrace.http import errors
from tailrace.http.message import Headers, Request, Response

T = TypeVar("T")
_JSON: Final[Headers] = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
_encode: Final = msgspec.json.Encoder().encode


class CreateBody(msgspec.Struct):
    principal: str
    role: str | None = None


class SwitchBody(msgspec.Struct):
    disabled: bool


class KeysDoor:
    """Answers requests at and below `/v1/admin/keys`; the commands want an administrator."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def __call__(self, request: Request, raw: bytes, principal: Principal) -> Response:
        """Answer a request; `raw` is the path after /v1/admin/keys, as it came."""
        try:
            rest = raw.decode("latin-1")
            if rest in ("", "/"):
                return await self._all(request, principal)
            if rest.startswith("/") and "/" not in rest[1:]:
                return await self._one(request, rest[1:], principal)
            raise NotFound(f"there is nothing at {request.path.decode('latin-1')[:200]!r}; keys live at /v1/admin/keys")
        except Error as error:
            return errors.response(error)

    async def _all(self, request: Request, principal: Principal) -> Response:
        match request.method:
            case b"GET" | b"HEAD":
                found = await self._db.aexecute(ListAccessKeys(), principal)
                return _answer(200, {"keys": [_shown(key) for key in found]})
            case b"POST":
                asked = _body(request, CreateBody)
                key = await self._db.aexecute(CreateAccessKey(asked.principal, asked.role), principal)
                return _answer(201, _shown(key))
        raise NotAllowed("the access keys take GET and POST", allow="GET, HEAD, POST, OPTIONS")

    async def _one(self, request: Request, name: str, principal: Principal) -> Response:
        match request.method:
            case b"DELETE":
                await self._db.aexecute(DeleteAccessKey(name), principal)
                return Response(204, [(b"cache-control", b"no-store")])
            case b"PATCH":
                asked = _body(request, SwitchBody)
                command: Command[KeyInfo] = DisableAccessKey(name) if asked.disabled else EnableAccessKey(name)
                switched = await self._db.aexecute(command, principal)
                return _answer(200, _shown(switched))
        raise NotAllowed("an access key takes DELETE and PATCH", allow="DELETE, PATCH, OPTIONS")


def _shown(key: KeyInfo | NewKey) -> dict[str, Any]:
    created = datetime.fromtimestamp(key.created_ms / 1000, UTC).isoformat(timespec="milliseconds")
    shown: dict[str, Any] = {
        "id": key.id,
        "principal": key.principal,
        "role": key.role,
        "created_at": created.replace("+00:00", "Z"),
    }
    if isinstance(key, NewKey):
        return shown | {"secret": key.secret}
    return shown | {"disabled": key.disabled}


def _answer(status: int, value: dict[str, Any]) -> Response:
    return Response(status, _JSON, _encode(value))


def _body(request: Request, kind: type[T]) -> T:
    if len(request.body) > limits.CONTROL_BODY_BYTES_MAX:
        raise TooLarge(f"the body is larger than {limits.CONTROL_BODY_BYTES_MAX} bytes; send less")
    try:
        return msgspec.json.decode(request.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the body is not the JSON that is wanted here: {error}") from None
