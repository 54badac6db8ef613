"""Authentication: the credentials of a request, of every kind, are verified; their principal is what commands see.

    Authorization: Bearer <the server's token>    the principal "token", of role system
    Authorization: Bearer <JWT>                   of a login here, or of an outside issuer
    Authorization: Basic <user:password>          a user of the database

Verified credentials are cached, by a keyed hash of the header field and never by its content, so that passwords are
hashed once and not with every request. Any change to a user, through whichever API, is in the notices of its commit and
removes that user from the cache, or updates its rights. So `known` answers most requests at once. `find` does the work
that takes longer: it queries the database, hashes in threads of its own, few of them, and throttles guesses.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from base64 import b64decode
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from tailrace import limits
from tailrace.access import EVERYTHING, ROLES, Principal, roles
from tailrace.auth import passwords, tokens
from tailrace.auth.audit import record_outcome
from tailrace.auth.sessions import FindSession
from tailrace.auth.tokens import FindTokenKey, MakeTokenKey, TokenClaims, UnverifiedToken
from tailrace.auth.users import RESERVED, AnyoneCanLogIn, LoadUser, User, access_of
from tailrace.config import Config, IssuerConfig, check_token
from tailrace.database import Database
from tailrace.errors import Error, Invalid, LoginThrottled, TooMany, Unauthenticated, WrongToken
from tailrace.http.issuers import Keyring
from tailrace.http.message import Request
from tailrace.log.tail import MISSED, USERS_CHANGED

REMEMBERED_MAX: Final = 4_096  # verified credentials
PEERS_MAX: Final = 10_000  # addresses that have shown the server's token
# Codes of refusals that may be guesses. A token that has expired, or was revoked, was a good one.
GUESSES: Final = frozenset(
    (
        "WRONG_TOKEN", "TOKEN_INVALID", "UNRECOGNIZED_CLIENT", "INVALID_SIGNATURE",
        tokens.MALFORMED, tokens.ALGORITHM, tokens.SIGNATURE, tokens.WRONG_ISSUER, tokens.UNKNOWN_KEY,
    )
)  # fmt: skip
HASHERS: Final = 2  # threads that hash passwords: each takes a core and PASSES times MEMORY_KIB
HASHES_MAX: Final = 128  # under way or waiting; the next is answered 429

EVERYONE: Final = Principal("everyone", ROLES["dba"], "dba")
TOKEN: Final = Principal("token", EVERYTHING)
ANONYMOUS: Final = Principal("anonymous", frozenset(), "user")
NO_CREDENTIALS: Final = (
    "no credentials would be accepted: set a token (TAILRACE_TOKEN) or use --dev on this machine; or create a user "
    "first: tailrace users create NAME --role dba --data DIR"
)

T = TypeVar("T")


class VerifiedCredentials(msgspec.Struct, frozen=True):
    """A principal whose credentials were right."""

    principal: Principal
    expires_ms: int | None
    generation: int | None = None  # of the user, for a password; None: it was a token


class Authenticator:
    """Finds the principal of a request, or raises `Unauthenticated`. For the event loop's thread."""

    def __init__(self, db: Database, config: Config) -> None:
        self._db = db
        self._dev = config.dev
        self._token = (config.token or "").encode() or None
        self._bearer = b"Bearer " + self._token if self._token else b""
        self._roles = roles(user_consumes=config.topics.allow_user_role_consume)
        self._issuers = {
            issuer.issuer: Keyring(issuer, db.clock.monotonic_s) for issuer in config.auth.issuers if not config.dev
        }
        self._remembered: dict[bytes, VerifiedCredentials] = {}
        self._token_peers: dict[str, None] = {}  # that have shown the server's token, the oldest first
        self._secret = secrets.token_bytes(32)
        self._token_key: bytes | None = None
        self.throttle = db.sharing.login_throttle()
        self._forwarder = db.forwarder  # None: this process writes, and knows of every change
        self._verifying: dict[bytes, asyncio.Task[Principal]] = {}
        self._changes = 0  # how often a user has changed
        self._hashers = ThreadPoolExecutor(HASHERS, thread_name_prefix="tailrace-passwords")
        self._hashing = 0
        self._unsubscribe = db.tail.subscribe(USERS_CHANGED, self._on_changed)

    async def close(self) -> None:
        """Stop following changes, and end the threads."""
        self._unsubscribe()
        for task in list(self._verifying.values()):
            task.cancel()
        await asyncio.to_thread(self._hashers.shutdown, cancel_futures=True)
        for keyring in self._issuers.values():
            await keyring.close()

    # -- for handlers

    def known(self, request: Request) -> Principal | None:
        """The principal, if its credentials are cached; None: call `find`."""
        if self._dev:
            return EVERYONE
        given = request.headers.get(b"authorization")
        if given is None:
            return None
        if self._token is not None and hmac.compare_digest(given, self._bearer):
            return TOKEN if request.peer in self._token_peers else self._by_server_token(request.peer)
        if not self._remembered or (self._forwarder is not None and not self._forwarder.fresh):
            return None
        found = self._remembered.get(self._digest(given, request.peer))
        if found is None or (found.expires_ms is not None and found.expires_ms <= self._db.clock.now_ms()):
            return None
        return found.principal

    async def find(self, request: Request) -> Principal:
        """The principal, or why its credentials are refused."""
        known = self.known(request)
        if known is not None:
            return known
        given = request.headers.get(b"authorization")
        if given is None:
            raise Unauthenticated("credentials are needed; send Authorization: Basic <user:password> or Bearer <token>")
        scheme, _, rest = given.partition(b" ")
        scheme, rest = scheme.lower(), rest.strip()
        if scheme == b"bearer":
            return await self._by_token(given, rest, request.peer)
        if scheme == b"basic":
            return await self._by_password(given, rest, request.peer)
        raise Unauthenticated("this server takes Authorization: Basic <user:password> and Bearer <token>")

    def is_forgotten_password(self, request: Request) -> bool:
        """Whether a request that was authenticated by a password would have to be verified again."""
        given = request.headers.get(b"authorization", b"")
        return given[:6].lower() == b"basic " and self._digest(given, request.peer) not in self._remembered

    def expires_ms(self, request: Request) -> int | None:
        """When the credentials of an authenticated request expire; None: never."""
        given = request.headers.get(b"authorization")
        found = None if given is None else self._remembered.get(self._digest(given, request.peer))
        return None if found is None else found.expires_ms

    def principal_of(self, user: User) -> Principal:
        """The principal of a user."""
        return Principal(user.name, self._roles[user.role], user.role, access_of(user))

    def permissions_of(self, role: str) -> frozenset[str]:
        """The permissions of a role on this server."""
        return self._roles[role]

    def refusal(self, error: Unauthenticated, peer: str, name: str = "") -> Error:
        """The error to answer with to a wrong token or signature: it is counted and audited; `LoginThrottled` if there
        were too many from this address. Right ones are never delayed by it: unlike a password, a token cannot be found
        by trying. For any thread."""
        if self._dev or error.code not in GUESSES:
            return error
        try:
            self.throttle.check_peer("", peer)
        except LoginThrottled as throttled:
            return throttled
        self.throttle.failed(peer)
        record_outcome(name[:64] or ANONYMOUS.name, "authenticate", "", error.code, peer=peer)
        return error

    # -- passwords

    async def check_password(self, name: str, password: bytes, peer: str) -> User:
        """The user whose password this is; after too many wrong ones, `LoginThrottled`."""
        if len(name.encode("utf-8", "replace")) > limits.USER_NAME_BYTES_MAX:
            raise _wrong_password()
        user = await self._db.aexecute(LoadUser(name))
        await self.throttle.attempt(name, peer, known=user is not None)
        right = await self.offload(passwords.matches, password, None if user is None else user.password)
        while user is not None:  # it must not have changed meanwhile: the hashing took a while, and loading may
            changes, before = self._changes, user
            user = await self._db.aexecute(LoadUser(name))
            if user == before and changes == self._changes:
                break
            if user != before:
                right = await self.offload(passwords.matches, password, None if user is None else user.password)
        if user is None or not right or user.disabled:
            record_outcome(name[:64], "login", "", "WRONG_PASSWORD" if not right else "USER_DISABLED", peer=peer)
            raise _wrong_password()
        self.throttle.succeeded(name, peer)
        return user

    async def offload(self, work: Callable[..., T], *given: Any, **named: Any) -> T:
        """Run `work` in one of the threads that hash."""
        if self._hashing >= HASHES_MAX:
            raise TooMany(
                f"{HASHES_MAX} passwords are being checked, which is the limit; try again", code="TOO_MANY_LOGINS"
            )
        self._hashing += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._hashers, lambda: work(*given, **named))
        finally:
            self._hashing -= 1

    async def _by_password(self, given: bytes, encoded: bytes, peer: str) -> Principal:
        digest = self._digest(given, peer)
        task = self._verifying.get(digest)  # a client that has just started sends many requests
        if task is None:
            name, password = _credentials(encoded)
            task = asyncio.get_running_loop().create_task(self._verify(digest, name, password, peer))
            self._verifying[digest] = task
            task.add_done_callback(lambda done: self._verified(digest, done))
        return await asyncio.shield(task)

    async def _verify(self, digest: bytes, name: str, password: bytes, peer: str) -> Principal:
        user = await self.check_password(name, password, peer)
        principal = self.principal_of(user)
        self._remember(digest, principal, None, user.generation)
        return principal

    def _verified(self, digest: bytes, task: asyncio.Task[Principal]) -> None:
        self._verifying.pop(digest, None)
        if not task.cancelled():
            task.exception()  # marked as retrieved: the request may have been cancelled

    # -- tokens

    async def token_key(self) -> bytes:
        """The key that our own tokens are signed with."""
        if self._token_key is None:
            found = await self._db.aexecute(FindTokenKey())
            self._token_key = await self._db.aexecute(MakeTokenKey()) if found is None else found
        return self._token_key

    async def own_claims(self, text: str, peer: str) -> TokenClaims:
        """The claims of one of our own tokens, if it is valid and its session is open."""
        try:
            claims, _ = await self._own(tokens.unread(text))
        except WrongToken as error:
            raise self.refusal(error, peer) from None
        return claims

    def _by_server_token(self, peer: str) -> Principal:
        """The server's token from a new address is throttled if there were too many wrong ones from there, since it may
        be one more guess. Addresses that have sent it before are not."""
        if peer not in self._token_peers:
            self.throttle.check_peer("", peer)
            if len(self._token_peers) >= PEERS_MAX:
                del self._token_peers[next(iter(self._token_peers))]
            self._token_peers[peer] = None
        return TOKEN

    async def _by_token(self, given: bytes, token: bytes, peer: str) -> Principal:
        if self._token is not None and hmac.compare_digest(token, self._token):
            return self._by_server_token(peer)
        try:
            if not tokens.looks_like(token):
                raise WrongToken("the token is not the server's; check TAILRACE_TOKEN on both sides")
            return await self._by_jwt(given, tokens.unread(token.decode("latin-1")), peer)
        except WrongToken as error:
            raise self.refusal(error, peer) from None

    async def _by_jwt(self, given: bytes, unread: UnverifiedToken, peer: str) -> Principal:
        while True:
            changes = self._changes
            if unread.issuer == tokens.ISSUER:
                claims, user = await self._own(unread)
                principal, expires_ms = self.principal_of(user), claims.expires_ms
            else:
                principal, expires_ms = await self._outside(unread)
            if changes == self._changes:
                break
        self._remember(self._digest(given, peer), principal, expires_ms)
        return principal

    async def _own(self, unread: UnverifiedToken) -> tuple[TokenClaims, User]:
        if unread.issuer != tokens.ISSUER:
            raise WrongToken("the token is not of a login here", code=tokens.WRONG_ISSUER)
        key = self._token_key or await self._db.aexecute(FindTokenKey())
        if key is None:  # there was no login yet: verifying must not have to write
            code = tokens.SIGNATURE if unread.algorithm == tokens.OWN_ALGORITHM else tokens.ALGORITHM
            raise WrongToken("the token is not of a login here; log in again", code=code)
        self._token_key = key
        claims = tokens.verify_own(unread, key, self._db.clock.now_ms())
        user = await self._db.aexecute(LoadUser(claims.user))
        session = await self._db.aexecute(FindSession(claims.user, claims.session))
        if user is None or user.disabled or user.generation != claims.generation or session is None:
            raise WrongToken("the token was revoked; log in again", code=tokens.REVOKED)
        return claims, user

    async def _outside(self, unread: UnverifiedToken) -> tuple[Principal, int]:
        keyring = self._issuers.get(unread.issuer)
        if keyring is None:
            raise WrongToken(f"tokens of {unread.issuer[:80]!r} are not taken here", code=tokens.WRONG_ISSUER)
        issuer = keyring.issuer
        if not any(unread.algorithm in names for names in tokens.ALGORITHMS.values()):
            raise WrongToken(
                f"the token's algorithm {unread.algorithm[:20]!r} is not taken of an outside issuer",
                code=tokens.ALGORITHM,
            )
        key = await keyring.key(unread.key_id)
        wall_ms = self._db.clock.wall_ms()
        payload, expires_ms = tokens.verify_outside(unread, key, issuer.audience, wall_ms)
        expires_ms += self._db.clock.now_ms() - wall_ms  # by our time, which does not go back
        name = _claim(payload, issuer.name_claim)
        if not isinstance(name, str) or not _nameable(name):
            raise WrongToken(f"the token does not name a user ({issuer.name_claim})", code=tokens.CLAIMS)
        user = await self._db.aexecute(LoadUser(name))
        if user is None:
            role = outside_role(payload, issuer)
            return Principal(name, self._roles[role], role), expires_ms
        if not issuer.link_users or user.disabled:
            raise WrongToken(
                f"the token bears the name of the user {name!r} here, and is not taken for that user", code="TOKEN_NAME"
            )
        return self.principal_of(user), expires_ms

    # -- the cache

    def _digest(self, given: bytes, peer: str) -> bytes:
        """The cache key of credentials, for one address: a guess from another address must not succeed without having
        been counted."""
        return blake2b(b"%b %b" % (peer.encode(), given), digest_size=24, key=self._secret).digest()

    def _remember(
        self, digest: bytes, principal: Principal, expires_ms: int | None, generation: int | None = None
    ) -> None:
        if len(self._remembered) >= REMEMBERED_MAX:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[digest] = VerifiedCredentials(principal, expires_ms, generation)

    def _on_changed(self, changes: list[Any]) -> None:
        """Remove these users from the cache. A password that is still the user's stays, with the rights that the user
        has now: verifying it again takes long, and requests that wait must be checked at once. It does not where the
        loop would wait for a database on another machine."""
        self._changes += 1
        users: dict[str, User | None] = {}
        if MISSED in changes:  # any user may have changed
            self._remembered.clear()
            return
        for change in changes:
            with suppress(Error):
                users[change.name] = None
                if not self._db.blocking:
                    users[change.name] = self._db.execute(LoadUser(change.name))
        for digest, found in [each for each in self._remembered.items() if each[1].principal.name in users]:
            user = users[found.principal.name]
            if user is None or user.disabled or user.generation != found.generation:
                del self._remembered[digest]
            else:
                self._remembered[digest] = VerifiedCredentials(self.principal_of(user), None, user.generation)


def check_credentials_exist(db: Database, config: Config) -> None:
    """Raise `Invalid` if no credentials would be accepted: such a server does not start."""
    if not (config.dev or config.token or config.auth.issuers or db.execute(AnyoneCanLogIn())):
        raise Invalid(NO_CREDENTIALS)


def check_data_directory(config: Config) -> None:
    """The same check where there is no database yet, so that none is created; and the server's token must be valid."""
    check_token(config.token)
    there = config.database is not None or Path(config.data).is_dir()
    if not (config.dev or config.token or config.auth.issuers or there):
        raise Invalid(NO_CREDENTIALS)


def outside_role(payload: Mapping[str, Any], issuer: IssuerConfig) -> str:
    """The role that a token's claim maps to; of several, the one with the most permissions. Never system."""
    given = _claim(payload, issuer.role_claim)
    words = given if isinstance(given, list) else [given]
    known = {issuer.roles.get(word) if issuer.roles else word for word in words if isinstance(word, str)}
    for role in ("dba", "service", "user", "reader"):
        if role in known:
            return role
    if issuer.default_role is None:
        raise WrongToken(f"the token has no role that is known here ({issuer.role_claim})", code="TOKEN_ROLE")
    return issuer.default_role


def _claim(payload: Mapping[str, Any], name: str) -> Any:
    """A claim by its name, or by its path (realm_access.roles)."""
    if name in payload:
        return payload[name]
    found: Any = payload
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _nameable(name: str) -> bool:
    return (
        bool(name)
        and name.isprintable()
        and name.strip() == name
        and len(name.encode("utf-8", "replace")) <= limits.USER_NAME_BYTES_MAX
        and name not in RESERVED
    )


def _credentials(encoded: bytes) -> tuple[str, bytes]:
    try:
        name, colon, password = b64decode(encoded, validate=True).partition(b":")
        text = name.decode()
    except ValueError:
        colon, text, password = b"", "", b""
    if not colon or not text:
        raise Unauthenticated("the credentials cannot be read; send Authorization: Basic base64(user:password)")
    return text, password


def _wrong_password() -> WrongToken:
    return WrongToken("there is no such user, or the password is wrong", code="WRONG_PASSWORD")
