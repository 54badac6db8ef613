"""Sessions: logins that last, by a refresh token that works once.

A refresh token is ``trr.<user>.<session>.<secret>``, user and secret in base64url. The database keeps the SHA-256 of
the session's id and of the secret. Each use gives a new secret; the session ends when any other is shown, since then
two parties have had the token and nobody can tell which of them is the thief.

`RefreshSession` answers with a reason instead of raising: ending a session is a change, and an error changes nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final

import msgspec

from tailrace.access import Permission
from tailrace.auth.users import SESSIONS, SESSIONS_MAX, USERS, Session, User, UserChanged
from tailrace.command import Command, Query
from tailrace.errors import WrongToken
from tailrace.log.tail import USERS_CHANGED
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.vault import stored_session

MARK: Final = "trr"
SECRET_BYTES: Final = 32
REFRESH_BYTES_MAX: Final = 1_024

# How a refresh ended where it was refused.
UNKNOWN: Final = "REFRESH_UNKNOWN"
REUSED: Final = "REFRESH_REUSED"
EXPIRED: Final = "REFRESH_EXPIRED"


class RefreshToken(msgspec.Struct, frozen=True):
    """What a client shows to go on with a session."""

    user: str
    session: str
    secret: bytes

    def text(self) -> str:
        """As it is sent."""
        return f"{MARK}.{_told(self.user.encode())}.{self.session}.{_told(self.secret)}"


class Opened(msgspec.Struct, frozen=True):
    """A session that goes on, and the user as it is now; or why there is none."""

    user: User | None = None
    session: str = ""
    refused: str | None = None


class OpenSession(Command[Opened], frozen=True):
    """A new session of a user who has just shown the password, which must still be what it was then."""

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
        ended.update(session.id for session in kept[: max(0, len(kept) + 1 - SESSIONS_MAX)])
        for name in ended:
            tx.delete(SESSIONS, self.user, name)
        if ended:
            tx.notify(USERS_CHANGED, UserChanged(self.user))
        expires_ms = tx.now_ms + self.life_ms
        tx.put(
            SESSIONS,
            Session(self.user, stored_session(self.session), self.digest, tx.now_ms, expires_ms, user.generation),
        )
        return Opened(user, self.session)


class RefreshSession(Command[Opened], frozen=True):
    """Go on with a session under a new secret, or end it if the one shown is not the present one."""

    permission = Permission.SYSTEM

    user: str
    session: str
    digest: bytes
    next_digest: bytes
    life_ms: int

    def run(self, tx: Tx) -> Opened:
        row, user = tx.get(SESSIONS, self.user, stored_session(self.session)), tx.get(USERS, self.user)
        if row is None or user is None or user.disabled or user.generation != row.generation:
            return Opened(refused=UNKNOWN)  # as `MayRefresh` has it
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
    """Why a refresh would be refused without changing anything; None: ask `RefreshSession`, which then has to write."""

    permission = Permission.SYSTEM

    user: str
    session: str

    def run(self, reader: Reader) -> str | None:
        row, user = reader.get(SESSIONS, self.user, stored_session(self.session)), reader.get(USERS, self.user)
        return UNKNOWN if row is None or user is None or user.disabled or user.generation != row.generation else None


class CloseSession(Command[bool], frozen=True):
    """End a session; whether there was one. `digest` None: whoever asks has shown an access token of it."""

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


class FindSession(Query["Session | None"], frozen=True):
    """A session, if it goes on."""

    permission = Permission.SYSTEM
    single = True

    user: str
    session: str

    def run(self, reader: Reader) -> Session | None:
        return reader.get(SESSIONS, self.user, stored_session(self.session))


def new_token(user: str, session: str | None = None) -> RefreshToken:
    """A refresh token with a new secret, of a new session unless it is told."""
    return RefreshToken(user, session or secrets.token_urlsafe(16), secrets.token_bytes(SECRET_BYTES))


def opens(session: Session | None, token: RefreshToken) -> bool:
    """Whether the token is the present one of the session."""
    return session is not None and hmac.compare_digest(session.secret, digest_of(token))


def digest_of(token: RefreshToken) -> bytes:
    """What the database keeps of the secret: it is random, so one hash is enough."""
    return hashlib.sha256(token.secret).digest()


def read_token(text: str) -> RefreshToken:
    """A refresh token as it was sent; its form is right, nothing else is known yet."""
    parts = text.split(".") if len(text) <= REFRESH_BYTES_MAX else []
    try:
        mark, user, session, secret = parts
        token = RefreshToken(_read(user).decode(), session, _read(secret))
    except ValueError:
        raise _malformed() from None
    if mark != MARK or not session.isascii() or len(token.secret) != SECRET_BYTES:
        raise _malformed()
    return token


def _malformed() -> WrongToken:
    return WrongToken("this is no refresh token; send the one that login or the last refresh gave", code=UNKNOWN)


def _end(tx: Tx, row: Session) -> None:
    tx.delete(SESSIONS, row.principal, row.id)
    tx.notify(USERS_CHANGED, UserChanged(row.principal))


def _told(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _read(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
