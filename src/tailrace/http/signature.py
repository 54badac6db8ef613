"""Who signed a request: access keys looked up, signatures verified; other credentials are left to `who`.

Keys that were used are remembered, since every request needs one; any change to a key or a user, by whichever door, is
told in its commit's notices and makes this forget. So a key that is disabled or deleted is refused once that is
committed, and so are those of a user that is disabled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from tailrace.access import Principal
from tailrace.auth import signature
from tailrace.auth.keys import FindAccessKey
from tailrace.auth.signature import Claim, SigningKeys
from tailrace.auth.users import LoadUser
from tailrace.clock import Clock
from tailrace.database import Database
from tailrace.errors import Unauthenticated
from tailrace.http.message import Request
from tailrace.http.who import EVERYONE, Who
from tailrace.log.tail import KEYS_CHANGED, USERS_CHANGED

REMEMBERED_MAX: Final = 1_024
Verify = Callable[[], None]
Claimed = tuple[Principal, Verify | None]


class Signatures:
    """Tells who is asking, or raises `Unauthenticated` with one of the codes of `auth.signature`.

    With `dev` everyone is let in: any key, any signature, or none at all. What is sent must still have the form of a
    signature, and be of about now, so that a client that builds requests wrongly hears of it before production.
    """

    def __init__(self, db: Database, who: Who, clock: Clock | None = None, *, dev: bool = False) -> None:
        self._db = db
        self._who = who
        self._clock = clock or db.clock
        self._dev = dev
        self._known: dict[str, tuple[str, Principal]] = {}  # secret and principal, by key id
        self._signing_keys = SigningKeys()
        self._unsubscribe = [db.tail.subscribe(number, self._on_changed) for number in (KEYS_CHANGED, USERS_CHANGED)]

    def close(self) -> None:
        """Hear of changes no more."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()

    def claimed(self, request: Request) -> Claimed | Awaitable[Claimed]:
        """Who says to have signed the request, and what proves it or raises; None: it is proved already.

        All that is cheap is checked here, so that whoever has no key costs nothing more. The rest reads the whole body,
        and may be called in another thread. Other credentials than signatures may take a while: then this is what to
        wait for."""
        headers, query = request.headers, request.query
        given = headers.get(b"authorization")
        if given is not None and given.partition(b" ")[0].lower() in (b"bearer", b"basic"):
            known = self._who.known(request)
            return self._found(request) if known is None else (known, None)
        if self._dev and not signature.is_signed(headers, query):
            return EVERYONE, None
        claim = signature.read_claim(headers, query)
        signature.check_time(claim, self._clock.wall_ms())
        if self._dev:
            return EVERYONE, None
        signature.check_scope(claim, headers)
        try:
            secret, principal = self._known.get(claim.key_id) or self._find(claim.key_id)
        except Unauthenticated as error:
            raise self._who.wrong(error, request.peer, claim.key_id) from None
        verify = partial(
            self._verify,
            request.peer,
            claim,
            self._signing_keys.get(claim.key_id, secret, claim.scope),
            method=request.method,
            path=request.mount.encode("latin-1") + request.path if request.mount else request.path,
            query=query,
            headers=headers,
            body=request.body,
        )
        return principal, verify

    def _verify(self, peer: str, claim: Claim, *given: Any, **named: Any) -> None:
        try:
            signature.verify(claim, *given, **named)
        except Unauthenticated as error:
            raise self._who.wrong(error, peer, claim.key_id) from None

    async def _found(self, request: Request) -> Claimed:
        return await self._who.find(request), None

    def _find(self, key_id: str) -> tuple[str, Principal]:
        row = self._db.execute(FindAccessKey(key_id))
        if row is None:
            raise signature.unrecognized_client()
        user = self._db.execute(LoadUser(row.principal))
        if user is not None and user.disabled:
            raise signature.unrecognized_client()
        if user is not None:
            principal = self._who.principal_of(user)
        else:
            principal = Principal(row.principal, self._who.permissions_of(row.role), row.role)
        if len(self._known) >= REMEMBERED_MAX:
            self._known.clear()
        found = self._known[key_id] = row.secret, principal
        return found

    def _on_changed(self, changes: list[Any]) -> None:
        self._known.clear()
        self._signing_keys.clear()
