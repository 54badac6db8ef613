"""The signing keys of webhook deliveries (Ed25519), published to receivers as a JWK Set.

The keys are one short list in META, the active one first. A rotation puts a new key in front; the old one loses its
private part at once and stays published until no signature of it can be accepted any more. A key's `kid` is its RFC
7638 thumbprint.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tailrace import limits
from tailrace.access import Permission
from tailrace.command import Command, Query
from tailrace.errors import TooMany
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.vault import read_secret, write_secret

KEYS: Final = "webhook-signing-keys"  # their name in META


class SigningKey(msgspec.Struct, frozen=True, omit_defaults=True):
    kid: str
    x: str  # the public half, base64url
    created_ms: int
    d: str | None = None  # the private half; None: retired
    retired_ms: int | None = None

    def jwk(self) -> dict[str, str]:
        return {"kty": "OKP", "crv": "Ed25519", "kid": self.kid, "use": "sig", "alg": "EdDSA", "x": self.x}


_DECODER: Final = msgspec.json.Decoder(list[SigningKey])


def generate(now_ms: int) -> SigningKey:
    private = Ed25519PrivateKey.generate()
    x = _base64(private.public_key().public_bytes_raw())
    return SigningKey(thumbprint(x), x, now_ms, d=_base64(private.private_bytes_raw()))


def thumbprint(x: str) -> str:
    """The kid of a public key."""
    required = b'{"crv":"Ed25519","kty":"OKP","x":"%b"}' % x.encode()
    return "ds_" + _base64(hashlib.sha256(required).digest())


def sign(key: SigningKey, body: bytes, at_s: int) -> str:
    """The value of Webhook-Signature for a body sent at `at_s`."""
    assert key.d is not None, f"key {key.kid} is retired"
    private = Ed25519PrivateKey.from_private_bytes(base64.urlsafe_b64decode(key.d + "=" * (-len(key.d) % 4)))
    signature = private.sign(b"%d.%b" % (at_s, body))
    return f"t={at_s},kid={key.kid},ed25519={_base64(signature)}"


def published(keys: list[SigningKey], settled_ms: int) -> list[SigningKey]:
    """The keys that a receiver may still need: the active one, and recently retired ones."""
    return [key for key in keys if key.retired_ms is None or settled_ms - key.retired_ms < limits.RETIRED_KEY_MS]


def jwks(keys: list[SigningKey], settled_ms: int) -> dict[str, Any]:
    return {"keys": [key.jwk() for key in published(keys, settled_ms)]}


def load(reader: Reader | Tx) -> list[SigningKey]:
    """The keys, the active one first; none before first use."""
    keys = read_secret(reader, KEYS)
    return [] if keys is None else _DECODER.decode(keys)


def ensure(tx: Tx) -> list[SigningKey]:
    """The keys; the first one is created on first use."""
    keys = load(tx)
    if not keys:
        keys = [generate(tx.now_ms)]
        _store(tx, keys)
    return keys


class EnsureSigningKey(Command[list[SigningKey]], frozen=True):
    """The keys; the first one is created if there is none."""

    permission = Permission.SYSTEM  # the result has the private keys

    def run(self, tx: Tx) -> list[SigningKey]:
        return ensure(tx)


class GetSigningKeys(Query[list[SigningKey]], frozen=True):
    """The keys with their private parts."""

    permission = Permission.SYSTEM

    def run(self, reader: Reader) -> list[SigningKey]:
        return load(reader)


class KeyState(msgspec.Struct, frozen=True):
    """A signing key without its private part."""

    kid: str
    created_ms: int
    retired_ms: int | None  # None: it is the active one


class ListSigningKeys(Query[list[KeyState]], frozen=True):
    """The published keys, the active one first, without their private parts."""

    permission = Permission.ADMIN

    def run(self, reader: Reader) -> list[KeyState]:
        return [_state(key) for key in published(load(reader), reader.settled_ms)]


class RotateSigningKey(Command[KeyState], frozen=True):
    """Replace the signing key; the new key. The old one stays published for a day."""

    permission = Permission.ADMIN

    def run(self, tx: Tx) -> KeyState:
        now_ms = tx.now_ms
        kept = [
            key if key.retired_ms is not None else msgspec.structs.replace(key, d=None, retired_ms=now_ms)
            for key in published(load(tx), tx.settled_ms)
        ]
        if len(kept) >= limits.PUBLISHED_KEYS_MAX:
            raise TooMany(
                f"{len(kept)} keys were used within {limits.RETIRED_KEY_MS // 3_600_000} hours and are still "
                f"published; rotate again when the oldest is no longer published"
            )
        fresh = generate(now_ms)
        _store(tx, [fresh, *kept])
        return _state(fresh)


def _state(key: SigningKey) -> KeyState:
    return KeyState(key.kid, key.created_ms, key.retired_ms)


def _store(tx: Tx, keys: list[SigningKey]) -> None:
    write_secret(tx, KEYS, msgspec.json.encode(keys))


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
