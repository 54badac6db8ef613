"""`/v1/admin/signing-keys`: the keys that webhooks are signed with, for those who administer.

    GET               the keys that are published, the active one first
    POST  /rotate     sign with a new key from now on; the old one stays published for a day

The public halves are at ``/v1/stream/__ds/jwks.json``, for everyone; the private ones are shown nowhere.
"""

from __future__ import annotations

from typing import Any

from tailrace.access import Principal
from tailrace.database import Database
from tailrace.http import asking
from tailrace.http.encoding import rfc3339
from tailrace.http.message import Request, Response
from tailrace.subscriptions.signing import KeyState, ListSigningKeys, RotateSigningKey


class SigningKeysHandler:
    """Answers requests at and below `/v1/admin/signing-keys`."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def __call__(self, request: Request, raw: bytes, principal: Principal) -> Response:
        """Answer a request; `raw` is the path after /v1/admin/signing-keys, as it came."""
        if raw in (b"", b"/"):
            if request.method not in (b"GET", b"HEAD"):
                raise asking.refused(request, "GET, HEAD, OPTIONS")
            found = await self._db.aexecute(ListSigningKeys(), principal)
            return asking.answer({"keys": [_shown(key) for key in found]})
        if raw == b"/rotate":
            if request.method != b"POST":
                raise asking.refused(request, "POST, OPTIONS")
            return asking.answer(_shown(await self._db.aexecute(RotateSigningKey(), principal)), 201)
        raise asking.nothing(request, "a new signing key is made by POST /v1/admin/signing-keys/rotate")


def _shown(key: KeyState) -> dict[str, Any]:
    return {
        "kid": key.kid,
        "created_at": rfc3339(key.created_ms),
        "retired_at": None if key.retired_ms is None else rfc3339(key.retired_ms),
    }
