"""The tokens that speak for one wake: signed (HMAC-SHA256, as a JWT), and checked at every call.

A token names the subscription, the generation and the wake, so that none outlives its wake, not even in a subscription
that was deleted and created again under the same id.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from typing import Final

import msgspec

from tailrace.errors import Unauthenticated
from tailrace.storage.engine import Tx
from tailrace.storage.vault import read_secret, write_secret

SECRET: Final = "subscription-secret"  # its name in META
TOKEN_S: Final = 24 * 3600  # the lease ends a token much earlier; this is for a worker that renews it all day
TOKEN_BYTES_MAX: Final = 4096


class Grant(msgspec.Struct, frozen=True):
    """What a token says."""

    sub: str  # the subscription's id
    generation: int
    wake_id: str
    exp: int  # when it ends, in seconds


_HEADER: Final = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').rstrip(b"=")
_DECODER: Final = msgspec.json.Decoder(Grant)


def secret(tx: Tx) -> bytes:
    """The server's secret, made when it is first needed."""
    known = read_secret(tx, SECRET)
    if known is None:
        known = secrets.token_bytes(32)
        write_secret(tx, SECRET, known)
    return known


def issue(key: bytes, subscription: str, generation: int, wake_id: str, now_ms: int) -> str:
    grant = Grant(subscription, generation, wake_id, now_ms // 1000 + TOKEN_S)
    signed = _HEADER + b"." + _base64(msgspec.json.encode(grant))
    return (signed + b"." + _signature(key, signed)).decode()


def verify(key: bytes, token: str, subscription: str, now_ms: int) -> Grant:
    """What a token grants; raises TOKEN_INVALID or TOKEN_EXPIRED."""
    signed, _, signature = token[: TOKEN_BYTES_MAX + 1].encode("utf-8", "replace").rpartition(b".")
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
        "the token is not one that was handed out for this subscription; send the wake's as Authorization: Bearer ...",
        code="TOKEN_INVALID",
    )


def _signature(key: bytes, signed: bytes) -> bytes:
    return _base64(hmac.new(key, signed, hashlib.sha256).digest())


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
