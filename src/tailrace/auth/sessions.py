"""Login sessions, extended by refresh tokens that work once.

A refresh token is ``trr.<user>.<session>.<secret>``, user and secret in base64url. The database keeps the SHA-256 of
the session's id and of the secret. Each refresh replaces the secret; the session ends when an older one is sent, since
then two parties have had the token and one of them stole it.

`RefreshSession` returns a reason instead of raising: ending a session is a write, and a command that raises writes
nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final

import msgspec

from tailrace import limits
from tailrace.access import Permission
from tailrace.auth.users import SESSIONS, USERS, LoginSession, User, UserChanged
from tailrace.command import Command, Query
from tailrace.errors import WrongToken
from tailrace.log.tail import USERS_CHANGED
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.vault import stored_session

MARK: Final = "trr"
SECRET_BYTES: Final = 32

# The reasons for which a refresh is refused.
UNKNOWN: Final = "REFRESH_UNKNOWN"
REUSED: Final = "REFRESH_REUSED"
EXPIRED: Final = "REFRESH_EXPIRED"


class RefreshToken(msgspec.Struct, frozen=True):
    """The token with which a client continues a session."""

    user: str
    session: str
    secret: bytes

    def text(self) -> str:
        """The token in its wire form."""
        return f"{MARK}.{_encoded(self.user.encode())}.{self.session}.{_encoded(self.secret)}"


class Opened(msgspec.Struct, frozen=True):
    """An open session and its user, or the reason why it was refused."""

    user: User | None = None
    session: str = ""
    refused: str | None = None


class OpenSession(Command[Opened], frozen=True):
    """Open a session for a user whose password was just verified and has not changed since."""

    permission = Permission.SYSTEM

    user: str
    generation: int
    session: str
    digest: bytes
    life_ms: int

    def run(self, tx: Tx) -> Opened:
        user = tx.get(USERS, self.user)
        if user is None or user.disabled or user.generation != self.generation:
            return Opened(refused=UNKNOWN)
        open_now = sorted(tx.scan(SESSIONS, self.user), key=lambda session: session.created_ms)
        kept = [session for session in open_now if session.expires_ms > tx.settled_ms]
        ended = {session.id for session in open_now} - {session.id for session in kept}
        ended.update(session.id for session in kept[: max(0, len(kept) + 1 - limits.SESSIONS_MAX)])
        for name in ended:
            tx.delete(SESSIONS, self.user, name)
        if ended:
            tx.notify(USERS_CHANGED, UserChanged(self.user))
        expires_ms = tx.now_ms + self.life_ms
        tx.put(
            SESSIONS,
            LoginSession(self.user, stored_session(self.session), self.digest, tx.now_ms, expires_ms, user.generation),
        )
        return Opened(user, self.session)


class RefreshSession(Command[Opened], frozen=True):
    """Continue a session under a new secret, or end it if the secret is not the current one."""

    permission = Permission.SYSTEM

    user: str
    session: str
    digest: bytes
    next_digest: bytes
    life_ms: int

    def run(self, tx: Tx) -> Opened:
        row, user = tx.get(SESSIONS, self.user, stored_session(self.session)), tx.get(USERS, self.user)
        if row is None or user is None or user.disabled or user.generation != row.generation:
            return Opened(refused=UNKNOWN)  # as in `MayRefresh`
        if row.expires_ms <= tx.now_ms:
            if row.expires_ms <= tx.settled_ms:  # else the clock has jumped, and may come back
                _end(tx, row)
            return Opened(refused=EXPIRED)
        if not hmac.compare_digest(row.secret, self.digest):
            _end(tx, row)
            return Opened(refused=REUSED)
        expires_ms = tx.now_ms + self.life_ms
        tx.put(SESSIONS, msgspec.structs.replace(row, secret=self.next_digest, expires_ms=expires_ms))
        return Opened(user, self.session)


class MayRefresh(Query[str | None], frozen=True):
    """The reason to refuse a refresh without a write; None: run `RefreshSession`, which decides."""

    permission = Permission.SYSTEM

    user: str
    session: str

    def run(self, reader: Reader) -> str | None:
        row, user = reader.get(SESSIONS, self.user, stored_session(self.session)), reader.get(USERS, self.user)
        return UNKNOWN if row is None or user is None or user.disabled or user.generation != row.generation else None


class CloseSession(Command[bool], frozen=True):
    """End a session; True if it existed. `digest` None: the caller has an access token of the session."""

    freeing = True
    permission = Permission.SYSTEM

    user: str
    session: str
    digest: bytes | None = None

    def run(self, tx: Tx) -> bool:
        row = tx.get(SESSIONS, self.user, stored_session(self.session))
        if row is None or (self.digest is not None and not hmac.compare_digest(row.secret, self.digest)):
            return False
        _end(tx, row)
        return True


class FindSession(Query["LoginSession | None"], frozen=True):
    """A session, if it has not ended."""

    permission = Permission.SYSTEM
    single = True

    user: str
    session: str

    def run(self, reader: Reader) -> LoginSession | None:
        return reader.get(SESSIONS, self.user, stored_session(self.session))


def new_token(user: str, session: str | None = None) -> RefreshToken:
    """A refresh token with a new secret; for a new session if `session` is None."""
    return RefreshToken(user, session or secrets.token_urlsafe(16), secrets.token_bytes(SECRET_BYTES))


def opens(session: LoginSession | None, token: RefreshToken) -> bool:
    """Whether the token is the current one of the session."""
    return session is not None and hmac.compare_digest(session.secret, digest_of(token))


def digest_of(token: RefreshToken) -> bytes:
    """The hash of the secret that the database stores. The secret is random, so one SHA-256 is enough."""
    return hashlib.sha256(token.secret).digest()


def read_token(text: str) -> RefreshToken:
    """Parse a refresh token. Only its form is checked."""
    parts = text.split(".") if len(text) <= limits.REFRESH_TOKEN_BYTES_MAX else []
    try:
        mark, user, session, secret = parts
        token = RefreshToken(_read(user).decode(), session, _read(secret))
    except ValueError:
        raise _malformed() from None
    if mark != MARK or not session.isascii() or len(token.secret) != SECRET_BYTES:
        raise _malformed()
    return token


def _malformed() -> WrongToken:
    return WrongToken("this is not a refresh token; send the one from the login or the last refresh", code=UNKNOWN)


def _end(tx: Tx, row: LoginSession) -> None:
    tx.delete(SESSIONS, row.principal, row.id)
    tx.notify(USERS_CHANGED, UserChanged(row.principal))


def _encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _read(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
