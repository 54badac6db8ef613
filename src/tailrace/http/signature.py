"""Signed requests: access keys are looked up and signatures verified; `authentication.py` checks other credentials.

Keys that were used are cached, since every request needs one. Any change to a key or a user, through whichever API, is
in the notices of its commit and clears the cache. So a key that is disabled or deleted is refused once that is
committed, and so are the keys of a user that is disabled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from tailrace.access import Principal
from tailrace.auth import signature
from tailrace.auth.keys import FindAccessKey
from tailrace.auth.signature import SignatureClaim, SigningKeys
from tailrace.auth.users import LoadUser
from tailrace.clock import Clock
from tailrace.database import Database
from tailrace.errors import Unauthenticated
from tailrace.http.authentication import EVERYONE, Authenticator
from tailrace.http.message import Request
from tailrace.log.tail import KEYS_CHANGED, USERS_CHANGED

REMEMBERED_MAX: Final = 1_024
_SIGNED: Final = b"AWS4-"
Verify = Callable[[], None]
Claimed = tuple[Principal, Verify | None]


class Signatures:
    """Finds the principal of a signed request, or raises `Unauthenticated` with one of the codes of `auth.signature`.

    With `dev`, authentication is off: any key and any signature are accepted, or none at all. A signature must still
    have the right form and a current time, so that a client that builds requests wrongly fails before production.
    """

    def __init__(
        self, db: Database, authenticator: Authenticator, clock: Clock | None = None, *, dev: bool = False
    ) -> None:
        self._db = db
        self._authenticator = authenticator
        self._clock = clock or db.clock
        self._dev = dev
        self._forwarder = db.forwarder  # as the authenticator's
        self._known: dict[str, tuple[str, Principal]] = {}  # secret and principal, by key id
        self._changes = 0  # of keys and users
        self._signing_keys = SigningKeys()
        self._unsubscribe = [db.tail.subscribe(number, self._on_changed) for number in (KEYS_CHANGED, USERS_CHANGED)]

    def close(self) -> None:
        """Stop following changes."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()

    def claimed(self, request: Request) -> Claimed | Awaitable[Claimed]:
        """The principal that claims to have signed the request, and a function that verifies it or raises; None: it is
        verified already.

        All that is cheap is checked here, so that a request without a key costs nothing more. The function reads the
        whole body, and may be called in another thread. Other credentials than signatures may take a while: then the
        result is awaited."""
        headers, query = request.headers, request.query
        given = headers.get(b"authorization")
        if given is not None and not given.startswith(_SIGNED) and _scheme(given) in (b"bearer", b"basic"):
            known = self._authenticator.known(request)
            return self._found(request) if known is None else (known, None)
        if self._dev and not signature.is_signed(headers, query):
            return EVERYONE, None
        claim = signature.read_claim(headers, query)
        signature.check_time(claim, self._clock.wall_ms())
        if self._dev:
            return EVERYONE, None
        signature.check_scope(claim, headers)
        trusted = self._forwarder is None or self._forwarder.fresh
        found = self._known.get(claim.key_id) if trusted else None
        if found is None:
            if self._db.blocking:
                return self._found_elsewhere(request, claim)
            try:
                found = self._find(claim.key_id)
            except Unauthenticated as error:
                raise self._authenticator.refusal(error, request.peer, claim.key_id) from None
            self._remember(claim.key_id, found)
        secret, principal = found
        return self._signed(request, claim, secret, principal)

    def _signed(self, request: Request, claim: SignatureClaim, secret: str, principal: Principal) -> Claimed:
        key = self._signing_keys.get(claim.key_id, secret, claim.scope)
        return principal, partial(self._verify, request, claim, key)

    async def _found_elsewhere(self, request: Request, claim: SignatureClaim) -> Claimed:
        """The key is in a database on another machine."""
        changes = self._changes
        try:
            found = await asyncio.to_thread(self._find, claim.key_id)
        except Unauthenticated as error:
            raise self._authenticator.refusal(error, request.peer, claim.key_id) from None
        if changes == self._changes:  # it may have been revoked meanwhile
            self._remember(claim.key_id, found)
        secret, principal = found
        return self._signed(request, claim, secret, principal)

    def _verify(self, request: Request, claim: SignatureClaim, key: bytes) -> None:
        try:
            signature.verify(
                claim,
                key,
                method=request.method,
                path=request.mount.encode("latin-1") + request.path if request.mount else request.path,
                query=request.query,
                headers=request.headers,
                body=request.body,
            )
        except Unauthenticated as error:
            raise self._authenticator.refusal(error, request.peer, claim.key_id) from None

    async def _found(self, request: Request) -> Claimed:
        return await self._authenticator.find(request), None

    def _find(self, key_id: str) -> tuple[str, Principal]:
        """The secret and the principal of a key. From any thread."""
        row = self._db.execute(FindAccessKey(key_id))
        if row is None:
            raise signature.unrecognized_client()
        user = self._db.execute(LoadUser(row.principal))
        if user is not None and user.disabled:
            raise signature.unrecognized_client()
        if user is not None:
            principal = self._authenticator.principal_of(user)
        else:
            principal = Principal(row.principal, self._authenticator.permissions_of(row.role), row.role)
        return row.secret, principal

    def _remember(self, key_id: str, found: tuple[str, Principal]) -> None:
        """Cache a key. On the loop's thread, where changes of keys arrive, too: a change cannot come in between."""
        if len(self._known) >= REMEMBERED_MAX:
            self._known.clear()
        self._known[key_id] = found

    def _on_changed(self, changes: list[Any]) -> None:
        self._changes += 1
        self._known.clear()
        self._signing_keys.clear()


def _scheme(given: bytes) -> bytes:
    return given.partition(b" ")[0].lower()
