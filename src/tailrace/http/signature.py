"""Who signed a request: access keys looked up, signatures verified, the server's own token taken too.

Keys that were used are remembered, since every request needs one; any change to a key, by whichever door, is told in
its commit's notices and makes this forget. So a key that is disabled or deleted is refused once that is committed.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from tailrace.access import EVERYTHING, Principal
from tailrace.auth import signature
from tailrace.auth.keys import FindAccessKey
from tailrace.auth.signature import SigningKeys
from tailrace.clock import Clock
from tailrace.database import Database
from tailrace.errors import WrongToken
from tailrace.http.message import Request
from tailrace.log.tail import KEYS_CHANGED

REMEMBERED_MAX: Final = 1_024
Verify = Callable[[], None]

_EVERYONE: Final = Principal("everyone", EVERYTHING)
_TOKEN: Final = Principal("token", EVERYTHING)


class Signatures:
    """Tells who is asking, or raises `Unauthenticated` with one of the codes of `auth.signature`.

    With `dev` everyone is let in: any key, any signature, or none at all. What is sent must still have the form of a
    signature, and be of about now, so that a client that builds requests wrongly hears of it before production.
    `token` is what is also taken as ``Authorization: Bearer``; None takes none (but any, with `dev`).
    """

    def __init__(
        self, db: Database, clock: Clock | None = None, *, dev: bool = False, token: bytes | None = None
    ) -> None:
        self._db = db
        self._clock = clock or db.clock
        self._dev = dev
        self._token = token
        self._known: dict[str, tuple[str, Principal]] = {}  # secret and principal, by key id
        self._signing_keys = SigningKeys()
        self._unsubscribe = db.tail.subscribe(KEYS_CHANGED, self._on_changed)

    def close(self) -> None:
        """Hear of changes no more."""
        self._unsubscribe()

    def principal(self, request: Request) -> Principal:
        """Who signed the request."""
        principal, verify = self.claimed(request)
        if verify is not None:
            verify()
        return principal

    def claimed(self, request: Request) -> tuple[Principal, Verify | None]:
        """Who says to have signed the request, and what proves it or raises; None: it is proved already.

        All that is cheap is checked here, so that whoever has no key costs nothing more. The rest reads the whole body,
        and may be called in another thread."""
        headers, query = request.headers, request.query
        given = headers.get(b"authorization")
        if given is not None and given[:7].lower() == b"bearer ":
            return self._bearer(given[7:]), None
        if self._dev and not signature.is_signed(headers, query):
            return _EVERYONE, None
        claim = signature.read_claim(headers, query)
        signature.check_time(claim, self._clock.now_ms())
        if self._dev:
            return _EVERYONE, None
        signature.check_scope(claim, headers)
        secret, principal = self._known.get(claim.key_id) or self._find(claim.key_id)
        verify = partial(
            signature.verify,
            claim,
            self._signing_keys.get(claim.key_id, secret, claim.scope),
            method=request.method,
            path=request.mount.encode("latin-1") + request.path if request.mount else request.path,
            query=query,
            headers=headers,
            body=request.body,
        )
        return principal, verify

    def _bearer(self, given: bytes) -> Principal:
        if self._dev:
            return _EVERYONE
        if self._token and hmac.compare_digest(given.strip(), self._token):
            return _TOKEN
        raise WrongToken(
            "the token is not the server's; check TAILRACE_TOKEN on both sides", code=signature.UNRECOGNIZED_CLIENT
        )

    def _find(self, key_id: str) -> tuple[str, Principal]:
        row = self._db.execute(FindAccessKey(key_id))
        if row is None:
            raise signature.unrecognized_client()
        if len(self._known) >= REMEMBERED_MAX:
            self._known.clear()
        found = self._known[key_id] = row.secret, Principal(row.principal, EVERYTHING)
        return found

    def _on_changed(self, changes: list[Any]) -> None:
        self._known.clear()
        self._signing_keys.clear()
