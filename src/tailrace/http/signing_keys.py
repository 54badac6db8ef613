"""The keys that webhooks are signed with, for administrators.

The public halves are at ``/v1/stream/__ds/jwks.json``, for everyone; the private ones are shown nowhere.
"""

from __future__ import annotations

import msgspec

from tailrace.http.codec import json_response, rfc3339
from tailrace.http.message import Request, Response
from tailrace.subscriptions.signing import KeyState, ListSigningKeys, RotateSigningKey


class SigningKeyResponse(msgspec.Struct):
    kid: str
    created_at: str
    retired_at: str | None  # null: it is the active one


class SigningKeysResponse(msgspec.Struct):
    keys: list[SigningKeyResponse]


def parse_list(request: Request) -> ListSigningKeys:
    return ListSigningKeys()


def render_list(request: Request, found: list[KeyState]) -> Response:
    return json_response(SigningKeysResponse([_shown(key) for key in found]))


def parse_rotate(request: Request) -> RotateSigningKey:
    return RotateSigningKey()


def render_rotated(request: Request, key: KeyState) -> Response:
    return json_response(_shown(key), 201)


def _shown(key: KeyState) -> SigningKeyResponse:
    return SigningKeyResponse(
        key.kid, rfc3339(key.created_ms), None if key.retired_ms is None else rfc3339(key.retired_ms)
    )
