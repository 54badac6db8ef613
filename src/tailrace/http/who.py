"""Who is asking: credentials of every kind, told apart and verified, for every door.

    Authorization: Bearer <the server's token>    the principal "token", of role system
    Authorization: Bearer <JWT>                   of a login here, or of an outside issuer
    Authorization: Basic <user:password>          a user of the database

What was verified is remembered, by a keyed hash of the header field and never by what is in it, so that passwords are
hashed once and not with every request. Any change to a user, by whichever door, is told in its commit's notices and
makes this forget that user, or learn its new rights. So `known` answers most requests at once; `find` does what takes
longer: it asks the database, hashes in threads of its own, few of them, and slows down who guesses.
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

from tailrace.access import EVERYTHING, ROLES, Principal, roles
from tailrace.auth import passwords, tokens
from tailrace.auth.audit import told
from tailrace.auth.sessions import FindSession
from tailrace.auth.slowing import Slowing
from tailrace.auth.tokens import Claims, FindTokenKey, MakeTokenKey, Unread
from tailrace.auth.users import NAME_BYTES_MAX, RESERVED, AnyoneCanLogIn, LoadUser, User, UserChanged, access_of
from tailrace.config import Config, Issuer, check_token
from tailrace.database import Database
from tailrace.errors import Error, Invalid, Slowed, TooMany, Unauthenticated, WrongToken
from tailrace.http.issuers import Keyring
from tailrace.http.message import Request
from tailrace.log.tail import USERS_CHANGED

REMEMBERED_MAX: Final = 4_096  # credentials that were verified
PEERS_MAX: Final = 10_000  # addresses that have shown the server's token
# Codes of what may be a guess. A token that has expired, or was taken back, was a good one.
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
NOBODY: Final = Principal("nobody", frozenset(), "user")
NO_ONE_COULD_COME_IN: Final = (
    "nobody could be let in: set a token (TAILRACE_TOKEN) or use --dev on this machine; or make a user first, with "
    "tailrace users add NAME --role dba --data DIR"
)

T = TypeVar("T")


class Remembered(msgspec.Struct, frozen=True):
    """Somebody whose credentials were right."""

    principal: Principal
    expires_ms: int | None
    generation: int | None = None  # of the user whose password it was; None: it was a token


class Who:
    """Tells who is asking, or raises `Unauthenticated`. For the event loop's thread; a query from others is none."""

    def __init__(self, db: Database, config: Config) -> None:
        self._db = db
        self._dev = config.dev
        self._token = (config.token or "").encode() or None
        self._bearer = b"Bearer " + self._token if self._token else b""
        self._roles = roles(user_consumes=config.topics.allow_user_role_consume)
        self._issuers = {
            issuer.issuer: Keyring(issuer, db.clock.monotonic_s) for issuer in config.auth.issuers if not config.dev
        }
        self._remembered: dict[bytes, Remembered] = {}
        self._token_peers: dict[str, None] = {}  # that have shown the server's token, the oldest first
        self._secret = secrets.token_bytes(32)
        self._token_key: bytes | None = None
        self.slowing = Slowing(db.clock.monotonic_s)
        self._verifying: dict[bytes, asyncio.Task[Principal]] = {}
        self._changes = 0  # how often a user has changed
        self._hashers = ThreadPoolExecutor(HASHERS, thread_name_prefix="tailrace-passwords")
        self._hashing = 0
        self._unsubscribe = db.tail.subscribe(USERS_CHANGED, self._on_changed)

    async def close(self) -> None:
        """Hear of changes no more; end the threads."""
        self._unsubscribe()
        for task in list(self._verifying.values()):
            task.cancel()
        await asyncio.to_thread(self._hashers.shutdown, cancel_futures=True)
        for keyring in self._issuers.values():
            await keyring.close()

    # -- for doors

    def known(self, request: Request) -> Principal | None:
        """Who is asking, if that can be told at once; None: ask `find`."""
        if self._dev:
            return EVERYONE
        given = request.headers.get(b"authorization")
        if given is None:
            return None
        if self._token is not None and hmac.compare_digest(given, self._bearer):
            return TOKEN if request.peer in self._token_peers else self._by_server_token(request.peer)
        if not self._remembered:
            return None
        found = self._remembered.get(self._digest(given, request.peer))
        if found is None or (found.expires_ms is not None and found.expires_ms <= self._db.clock.now_ms()):
            return None
        return found.principal

    async def find(self, request: Request) -> Principal:
        """Who is asking, or why that is not believed."""
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
        """Whether a request that was authenticated by a password would have to be verified anew."""
        given = request.headers.get(b"authorization", b"")
        return given[:6].lower() == b"basic " and self._digest(given, request.peer) not in self._remembered

    def expires_ms(self, request: Request) -> int | None:
        """When the credentials of a request that was authenticated end; None: not by themselves."""
        given = request.headers.get(b"authorization")
        found = None if given is None else self._remembered.get(self._digest(given, request.peer))
        return None if found is None else found.expires_ms

    def principal_of(self, user: User) -> Principal:
        """What a user is to commands."""
        return Principal(user.name, self._roles[user.role], user.role, access_of(user))

    def permissions_of(self, role: str) -> frozenset[str]:
        """What a role may do on this server."""
        return self._roles[role]

    def wrong(self, error: Unauthenticated, peer: str, name: str = "") -> Error:
        """What to answer to a token or signature that is wrong: the error, which is counted and audited; `Slowed` if
        there were too many from this address. What is right is never kept waiting by it: unlike a password, it cannot
        be found by trying. For any thread."""
        if self._dev or error.code not in GUESSES:
            return error
        try:
            self.slowing.check_peer("", peer)
        except Slowed as slowed:
            return slowed
        self.slowing.failed(peer)
        told(name[:64] or NOBODY.name, "authenticate", "", error.code, peer=peer)
        return error

    # -- passwords

    async def check_password(self, name: str, password: bytes, peer: str) -> User:
        """The user whose password this is; who is wrong too often is told to wait (`Slowed`)."""
        if len(name.encode("utf-8", "replace")) > NAME_BYTES_MAX:
            raise _wrong_password()
        user = await self._db.aexecute(LoadUser(name))
        self.slowing.begin(name, peer, known=user is not None)
        while True:
            right = await self.apart(passwords.matches, password, None if user is None else user.password)
            before = user
            if before is None or (user := await self._db.aexecute(LoadUser(name))) == before:
                break  # what was verified must still be so: the hashing took a while
        if user is None or not right or user.disabled:
            told(name[:64], "login", "", "WRONG_PASSWORD" if not right else "USER_DISABLED", peer=peer)
            raise _wrong_password()
        self.slowing.succeeded(name, peer)
        return user

    async def apart(self, work: Callable[..., T], *given: Any, **named: Any) -> T:
        """What `work` returns, called in one of the threads that hash."""
        if self._hashing >= HASHES_MAX:
            raise TooMany(
                f"{HASHES_MAX} passwords are being checked, as many as may; try again", code="TOO_MANY_LOGINS"
            )
        self._hashing += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._hashers, lambda: work(*given, **named))
        finally:
            self._hashing -= 1

    async def _by_password(self, given: bytes, encoded: bytes, peer: str) -> Principal:
        digest = self._digest(given, peer)
        task = self._verifying.get(digest)  # many requests of a client that has just started ask the same
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
            task.exception()  # whoever asked may have left: then nobody else looks at it

    # -- tokens

    async def token_key(self) -> bytes:
        """What our own tokens are signed with."""
        if self._token_key is None:
            found = await self._db.aexecute(FindTokenKey())
            self._token_key = await self._db.aexecute(MakeTokenKey()) if found is None else found
        return self._token_key

    async def own_claims(self, text: str, peer: str) -> Claims:
        """What one of our own tokens says, if it is right and its session goes on."""
        try:
            claims, _ = await self._own(tokens.unread(text))
        except WrongToken as error:
            raise self.wrong(error, peer) from None
        return claims

    def _by_server_token(self, peer: str) -> Principal:
        """The server's token was shown from a new address: it has to wait there if others were wrong too often, since
        it may be one more guess. Those who have shown it before do not."""
        if peer not in self._token_peers:
            self.slowing.check_peer("", peer)
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
            raise self.wrong(error, peer) from None

    async def _by_jwt(self, given: bytes, unread: Unread, peer: str) -> Principal:
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

    async def _own(self, unread: Unread) -> tuple[Claims, User]:
        if unread.issuer != tokens.ISSUER:
            raise WrongToken("the token is not of a login here", code=tokens.WRONG_ISSUER)
        key = self._token_key or await self._db.aexecute(FindTokenKey())
        if key is None:  # nobody has logged in yet: a look at credentials must not have to write
            code = tokens.SIGNATURE if unread.algorithm == tokens.OWN_ALGORITHM else tokens.ALGORITHM
            raise WrongToken("the token is not of a login here; log in again", code=code)
        self._token_key = key
        claims = tokens.verify_own(unread, key, self._db.clock.now_ms())
        user = await self._db.aexecute(LoadUser(claims.user))
        session = await self._db.aexecute(FindSession(claims.user, claims.session))
        if user is None or user.disabled or user.generation != claims.generation or session is None:
            raise WrongToken("the token was taken back; log in again", code=tokens.REVOKED)
        return claims, user

    async def _outside(self, unread: Unread) -> tuple[Principal, int]:
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
            raise WrongToken(f"the token does not name anybody ({issuer.name_claim})", code=tokens.CLAIMS)
        user = await self._db.aexecute(LoadUser(name))
        if user is None:
            role = outside_role(payload, issuer)
            return Principal(name, self._roles[role], role), expires_ms
        if not issuer.link_users or user.disabled:
            raise WrongToken(
                f"the token bears the name of the user {name!r} here, and is not taken for that user", code="TOKEN_NAME"
            )
        return self.principal_of(user), expires_ms

    # -- what is remembered

    def _digest(self, given: bytes, peer: str) -> bytes:
        """What credentials are remembered by, each for the address that showed them: a guess from elsewhere must not
        be found right without having been counted."""
        return blake2b(b"%b %b" % (peer.encode(), given), digest_size=24, key=self._secret).digest()

    def _remember(
        self, digest: bytes, principal: Principal, expires_ms: int | None, generation: int | None = None
    ) -> None:
        if len(self._remembered) >= REMEMBERED_MAX:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[digest] = Remembered(principal, expires_ms, generation)

    def _on_changed(self, changes: list[UserChanged]) -> None:
        """Forget what was remembered of these users. A password that is still the user's stays, with the rights that
        the user has now: to verify it anew takes long, and those who wait must be judged at once."""
        self._changes += 1
        users: dict[str, User | None] = {}
        for change in changes:
            with suppress(Error):
                users[change.name] = None
                users[change.name] = self._db.execute(LoadUser(change.name))
        for digest, found in [each for each in self._remembered.items() if each[1].principal.name in users]:
            user = users[found.principal.name]
            if user is None or user.disabled or user.generation != found.generation:
                del self._remembered[digest]
            else:
                self._remembered[digest] = Remembered(self.principal_of(user), None, user.generation)


def check_somebody(db: Database, config: Config) -> None:
    """Raise `Invalid` where nobody could come in: then a server has no business to run."""
    if not (config.dev or config.token or config.auth.issuers or db.execute(AnyoneCanLogIn())):
        raise Invalid(NO_ONE_COULD_COME_IN)


def check_place(config: Config) -> None:
    """The same where there is no database yet, so that none is made for nothing; and the server's token must be one."""
    check_token(config.token)
    if not (config.dev or config.token or config.auth.issuers or Path(config.data).is_dir()):
        raise Invalid(NO_ONE_COULD_COME_IN)


def outside_role(payload: Mapping[str, Any], issuer: Issuer) -> str:
    """The role that a token's claim stands for: the mightiest, if it has several. Never system."""
    given = _claim(payload, issuer.role_claim)
    words = given if isinstance(given, list) else [given]
    known = {issuer.roles.get(word) if issuer.roles else word for word in words if isinstance(word, str)}
    for role in ("dba", "service", "user"):
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
        and len(name.encode("utf-8", "replace")) <= NAME_BYTES_MAX
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
    return WrongToken("there is no such user, or the password is another one", code="WRONG_PASSWORD")
