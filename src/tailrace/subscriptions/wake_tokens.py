"""Wake tokens: each authorizes requests for one wake. Signed with HMAC-SHA256, as a JWT, and verified on every request.

A token names the subscription, the generation and the wake, so that it is not valid beyond its wake, not even in a
subscription that was deleted and recreated under the same id.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from typing import Final

import msgspec

from tailrace import limits
from tailrace.errors import Unauthenticated
from tailrace.storage.engine import Tx
from tailrace.storage.vault import read_secret, write_secret

SECRET: Final = "subscription-secret"  # its name in META


class WakeToken(msgspec.Struct, frozen=True):
    """The claims of a token."""

    sub: str  # the subscription's id
    generation: int
    wake_id: str
    exp: int  # when it ends, in seconds


_HEADER: Final = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').rstrip(b"=")
_DECODER: Final = msgspec.json.Decoder(WakeToken)


def secret(tx: Tx) -> bytes:
    """The server's secret, created on first use."""
    known = read_secret(tx, SECRET)
    if known is None:
        known = secrets.token_bytes(32)
        write_secret(tx, SECRET, known)
    return known


def issue(key: bytes, subscription: str, generation: int, wake_id: str, now_ms: int) -> str:
    grant = WakeToken(subscription, generation, wake_id, now_ms // 1000 + limits.WAKE_TOKEN_S)
    signed = _HEADER + b"." + _base64(msgspec.json.encode(grant))
    return (signed + b"." + _signature(key, signed)).decode()


def verify(key: bytes, token: str, subscription: str, now_ms: int) -> WakeToken:
    """The claims of a valid token; raises TOKEN_INVALID or TOKEN_EXPIRED."""
    signed, _, signature = token[: limits.WAKE_TOKEN_BYTES_MAX + 1].encode("utf-8", "replace").rpartition(b".")
    header, _, payload = signed.partition(b".")
    if not hmac.compare_digest(signature, _signature(key, signed)) or header != _HEADER:
        raise _invalid()
    grant = _DECODER.decode(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
    if grant.sub != subscription:
        raise _invalid()
    if grant.exp * 1000 <= now_ms:
        raise Unauthenticated("the token has expired; wait for the next wake", code="TOKEN_EXPIRED")
    return grant


def _invalid() -> Unauthenticated:
    return Unauthenticated(
        "the token was not issued for this subscription; send the token of the wake as Authorization: Bearer ...",
        code="TOKEN_INVALID",
    )


def _signature(key: bytes, signed: bytes) -> bytes:
    return _base64(hmac.new(key, signed, hashlib.sha256).digest())


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
