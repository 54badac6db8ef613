"""Logging in with a password, refreshing the session, and logging out.

All endpoints but `me` are open: they take credentials in the body. A token that belongs to no session costs a read,
never a write, and an address that sends such tokens again and again is throttled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tailrace import limits
from tailrace.access import SYSTEM, Principal
from tailrace.auth import sessions, tokens
from tailrace.auth.audit import record_outcome
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
from tailrace.errors import Invalid, Unauthenticated, WrongToken
from tailrace.http.codec import NO_STORE, json_body, json_response
from tailrace.http.message import Request, Response

if TYPE_CHECKING:
    from tailrace.http.services import Services

BODY_BYTES_MAX: Final = 16 * 1024
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


class UserName(msgspec.Struct):
    name: str
    role: str


class SessionResponse(msgspec.Struct):
    access_token: str
    token_type: str
    expires_in: int
    refresh_token: str
    user: UserName


class PrincipalResponse(msgspec.Struct):
    name: str
    role: str
    permissions: list[str]
    access: list[str] | None  # null: everything


_login: Final = msgspec.json.Decoder(LoginBody)
_refresh: Final = msgspec.json.Decoder(RefreshBody)
_logout: Final = msgspec.json.Decoder(LogoutBody)


async def login(services: Services, request: Request, principal: Principal) -> Response:
    """An access token, and a refresh token."""
    body = json_body(request, _login, BODY_BYTES_MAX, empty=b"{}")
    name = body.username if body.username is not None else body.user
    if not name:
        raise Invalid('the user is missing; send {"username": ..., "password": ...}')
    password = body.password.encode("utf-8", "replace")
    if len(password) > limits.PASSWORD_BYTES_MAX:
        raise Invalid(f"the password is longer than {limits.PASSWORD_BYTES_MAX} bytes, the maximum")
    user = await services.authenticator.check_password(name, password, request.peer)
    token = sessions.new_token(name)
    refresh_ms = request.config.auth.refresh_token_s * 1000
    opened: Opened = await services.db.aexecute(
        OpenSession(name, user.generation, token.session, sessions.digest_of(token), refresh_ms), SYSTEM
    )
    response = await _session(services, request, opened, token)
    record_outcome(name, "login", "", "done", peer=request.peer)
    return response


async def refresh(services: Services, request: Request, principal: Principal) -> Response:
    """The same again; a refresh token works once."""
    throttle = services.authenticator.throttle
    shown = sessions.read_token(json_body(request, _refresh, BODY_BYTES_MAX, empty=b"{}").refresh_token)
    throttle.check_peer(shown.user, request.peer)
    code: str | None = await services.db.aexecute(MayRefresh(shown.user, shown.session))
    if code is not None:
        throttle.failed(request.peer)
        record_outcome(shown.user[:64], "refresh", "", code, peer=request.peer)
        raise WrongToken(_REFUSED[code], code=code)
    token = sessions.new_token(shown.user, shown.session)
    digests = sessions.digest_of(shown), sessions.digest_of(token)
    refresh_ms = request.config.auth.refresh_token_s * 1000
    opened: Opened = await services.db.aexecute(RefreshSession(shown.user, shown.session, *digests, refresh_ms), SYSTEM)
    if opened.refused == sessions.REUSED:
        record_outcome(shown.user[:64], "refresh", "", sessions.REUSED, peer=request.peer)
    if opened.user is not None:
        throttle.trust(shown.user, request.peer)
    return await _session(services, request, opened, token)


async def _session(services: Services, request: Request, opened: Opened, refresh: RefreshToken) -> Response:
    if opened.user is None:
        code = opened.refused or sessions.UNKNOWN
        raise WrongToken(_REFUSED[code], code=code)
    user: User = opened.user
    expires_s = request.config.auth.access_token_s
    key = await services.authenticator.token_key()
    token = tokens.issue(key, user, opened.session, services.db.clock.now_ms(), expires_s)
    return json_response(SessionResponse(token, "Bearer", expires_s, refresh.text(), UserName(user.name, user.role)))


async def logout(services: Services, request: Request, principal: Principal) -> Response:
    """End the session of the refresh token; without one, that of the bearer token."""
    authenticator = services.authenticator
    body = json_body(request, _logout, BODY_BYTES_MAX, empty=b"{}")
    if body.refresh_token is not None:
        shown = sessions.read_token(body.refresh_token)
        authenticator.throttle.check_peer(shown.user, request.peer)
        if not sessions.opens(await services.db.aexecute(FindSession(shown.user, shown.session)), shown):
            authenticator.throttle.failed(request.peer)
            return _logged_out(shown.user, "NO_SESSION", request.peer)
        command = CloseSession(shown.user, shown.session, sessions.digest_of(shown))
    else:
        scheme, _, token = request.headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthenticated("no session is identified; send its access token or refresh token")
        claims = await authenticator.own_claims(token.strip(), request.peer)
        command = CloseSession(claims.user, claims.session)
    ended = await services.db.aexecute(command, SYSTEM)
    return _logged_out(command.user, "done" if ended else "NO_SESSION", request.peer)


def _logged_out(user: str, outcome: str, peer: str) -> Response:
    record_outcome(user[:64], "logout", "", outcome, peer=peer)
    return Response(204, NO_STORE)


def me(services: Services, request: Request, principal: Principal) -> Response:
    """The principal of the credentials, and its permissions."""
    access = None if principal.access is None else list(principal.access.patterns)
    return json_response(PrincipalResponse(principal.name, principal.role, sorted(principal.permissions), access))
