"""The door of `/v1/api/auth`: logging in with a password, going on, and leaving.

    POST  /login    {"username": ..., "password": ...}    an access token, and one to refresh it with
    POST  /refresh  {"refresh_token": ...}                the same again; the refresh token works once
    POST  /logout   {"refresh_token": ...}, or nothing    the session ends; with nothing, that of the bearer token
    GET   /me                                             who is asking

All but the last are open: what they take is credentials itself. What is no session's token costs a look, never a write,
and whoever shows such tokens again and again is slowed down.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from tailrace.access import SYSTEM
from tailrace.auth import sessions, tokens
from tailrace.auth.audit import told
from tailrace.auth.passwords import PASSWORD_BYTES_MAX
from tailrace.auth.sessions import (
    CloseSession,
    FindSession,
    MayRefresh,
    Opened,
    OpenSession,
    RefreshSession,
    RefreshToken,
)
from tailrace.auth.users import User
from tailrace.config import Config
from tailrace.database import Database
from tailrace.errors import Invalid, NotAllowed, NotFound, TooLarge, Unauthenticated, WrongToken
from tailrace.http.message import Headers, Request, Response
from tailrace.http.who import Who

BODY_BYTES_MAX: Final = 16 * 1024
T = TypeVar("T")
_JSON: Final[Headers] = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
_encode: Final = msgspec.json.Encoder().encode
_REFUSED: Final = {
    sessions.UNKNOWN: "there is no such session; log in again",
    sessions.REUSED: "the refresh token was used before, so the session is ended; log in again",
    sessions.EXPIRED: "the session has expired; log in again",
}


class LoginBody(msgspec.Struct, forbid_unknown_fields=True):
    password: str
    username: str | None = None
    user: str | None = None


class RefreshBody(msgspec.Struct, forbid_unknown_fields=True):
    refresh_token: str


class LogoutBody(msgspec.Struct, forbid_unknown_fields=True):
    refresh_token: str | None = None


class AuthDoor:
    """Answers requests below `/v1/api/auth`."""

    def __init__(self, db: Database, who: Who, config: Config) -> None:
        self._db = db
        self._who = who
        self._access_s = config.auth.access_token_s
        self._refresh_ms = config.auth.refresh_token_s * 1000

    async def __call__(self, request: Request, raw: bytes) -> Response:
        """Answer a request; `raw` is the path after /v1/api/auth/, as it came."""
        match raw:
            case b"login" | b"refresh" | b"logout" if request.method != b"POST":
                raise NotAllowed(f"{request.path.decode('latin-1')} takes POST", allow="POST, OPTIONS")
            case b"login":
                return await self._login(request)
            case b"refresh":
                return await self._refresh(request)
            case b"logout":
                return await self._logout(request)
            case b"me":
                return await self._me(request)
        raise NotFound(
            f"there is nothing at {request.path.decode('latin-1')[:200]!r}; use login, refresh, logout or me"
        )

    async def _login(self, request: Request) -> Response:
        asked = _body(request, LoginBody)
        name = asked.username if asked.username is not None else asked.user
        if not name:
            raise Invalid('the user is missing; send {"username": ..., "password": ...}')
        password = asked.password.encode("utf-8", "replace")
        if len(password) > PASSWORD_BYTES_MAX:
            raise Invalid(f"the password is longer than {PASSWORD_BYTES_MAX} bytes, which none is")
        user = await self._who.check_password(name, password, request.peer)
        refresh = sessions.new_token(name)
        opened: Opened = await self._db.aexecute(
            OpenSession(name, user.generation, refresh.session, sessions.digest_of(refresh), self._refresh_ms), SYSTEM
        )
        answer = await self._opened(opened, refresh)
        told(name, "login", "", "done", peer=request.peer)
        return answer

    async def _refresh(self, request: Request) -> Response:
        shown = sessions.read_token(_body(request, RefreshBody).refresh_token)
        self._who.slowing.check_peer(shown.user, request.peer)
        code: str | None = await self._db.aexecute(MayRefresh(shown.user, shown.session))
        if code is not None:
            self._who.slowing.failed(request.peer)
            told(shown.user[:64], "refresh", "", code, peer=request.peer)
            raise WrongToken(_REFUSED[code], code=code)
        refresh = sessions.new_token(shown.user, shown.session)
        digests = sessions.digest_of(shown), sessions.digest_of(refresh)
        opened: Opened = await self._db.aexecute(
            RefreshSession(shown.user, shown.session, *digests, self._refresh_ms), SYSTEM
        )
        if opened.refused == sessions.REUSED:
            told(shown.user[:64], "refresh", "", sessions.REUSED, peer=request.peer)
        if opened.user is not None:
            self._who.slowing.spare(shown.user, request.peer)
        return await self._opened(opened, refresh)

    async def _opened(self, opened: Opened, refresh: RefreshToken) -> Response:
        if opened.user is None:
            code = opened.refused or sessions.UNKNOWN
            raise WrongToken(_REFUSED[code], code=code)
        user: User = opened.user
        token = tokens.issue(await self._who.token_key(), user, opened.session, self._db.clock.now_ms(), self._access_s)
        return _answer(
            {
                "access_token": token,
                "token_type": "Bearer",
                "expires_in": self._access_s,
                "refresh_token": refresh.text(),
                "user": {"name": user.name, "role": user.role},
            }
        )

    async def _logout(self, request: Request) -> Response:
        asked = _body(request, LogoutBody)
        if asked.refresh_token is not None:
            shown = sessions.read_token(asked.refresh_token)
            self._who.slowing.check_peer(shown.user, request.peer)
            if not sessions.opens(await self._db.aexecute(FindSession(shown.user, shown.session)), shown):
                self._who.slowing.failed(request.peer)
                return _left(shown.user, "NO_SESSION", request.peer)
            command = CloseSession(shown.user, shown.session, sessions.digest_of(shown))
        else:
            scheme, _, token = request.headers.get(b"authorization", b"").decode("latin-1").partition(" ")
            if scheme.lower() != "bearer":
                raise Unauthenticated("nothing says which session to end; send its access token or refresh token")
            claims = await self._who.own_claims(token.strip(), request.peer)
            command = CloseSession(claims.user, claims.session)
        ended = await self._db.aexecute(command, SYSTEM)
        return _left(command.user, "done" if ended else "NO_SESSION", request.peer)

    async def _me(self, request: Request) -> Response:
        if request.method not in (b"GET", b"HEAD"):
            raise NotAllowed(f"{request.path.decode('latin-1')} takes GET", allow="GET, HEAD, OPTIONS")
        principal = self._who.known(request) or await self._who.find(request)
        return _answer(
            {
                "name": principal.name,
                "role": principal.role,
                "permissions": sorted(principal.permissions),
                "access": None if principal.access is None else list(principal.access.patterns),
            }
        )


def _left(user: str, outcome: str, peer: str) -> Response:
    told(user[:64], "logout", "", outcome, peer=peer)
    return Response(204, [(b"cache-control", b"no-store")])


def _answer(value: dict[str, Any]) -> Response:
    return Response(200, _JSON, _encode(value))


def _body(request: Request, kind: type[T]) -> T:
    if len(request.body) > BODY_BYTES_MAX:
        raise TooLarge(f"the body is larger than {BODY_BYTES_MAX} bytes; send less")
    try:
        return msgspec.json.decode(request.body or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the body is not the JSON that is wanted here: {error}") from None
