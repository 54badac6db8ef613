"""The keys that webhooks are signed with: made once, kept, published, rotated."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

import tailrace
from tailrace import Database, limits
from tailrace.access import ROLES, Permission, Principal
from tailrace.clock import ManualClock
from tailrace.errors import Forbidden, TooMany
from tailrace.subscriptions import signing
from tailrace.subscriptions.signing import (
    EnsureSigningKey,
    GetSigningKeys,
    ListSigningKeys,
    RotateSigningKey,
    SigningKey,
)


def unpadded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def verify(header: str, body: bytes, keys: list[SigningKey]) -> None:
    """What a receiver does."""
    match = re.fullmatch(r"t=(\d+),kid=([^,]+),ed25519=([A-Za-z0-9_-]+)", header)
    assert match is not None
    (jwk,) = (key for key in signing.jwks(keys, 0)["keys"] if key["kid"] == match[2])
    Ed25519PublicKey.from_public_bytes(unpadded(jwk["x"])).verify(unpadded(match[3]), f"{match[1]}.".encode() + body)


def open_at(path: Path, clock: ManualClock | None = None) -> Database:
    return tailrace.open(path, clock=clock or ManualClock(), housekeeping_s=None)


def test_a_signature_can_be_verified_with_the_published_key(data_dir: Path) -> None:
    with open_at(data_dir) as db:
        keys = db.execute(EnsureSigningKey())
    header = signing.sign(keys[0], b'{"a":1}', 1_700_000_000)
    assert header.startswith("t=1700000000,kid=ds_")
    verify(header, b'{"a":1}', keys)
    for body, other in ((b'{"a":2}', header), (b'{"a":1}', header.replace("t=1", "t=2"))):
        with pytest.raises(InvalidSignature):
            verify(other, body, keys)


def test_the_kid_is_the_rfc_7638_thumbprint(data_dir: Path) -> None:
    # The example of RFC 8037, appendix A.3.
    assert signing.thumbprint("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo") == (
        "ds_kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
    )
    with open_at(data_dir) as db:
        (key,) = db.execute(EnsureSigningKey())
    required = json.dumps({"crv": "Ed25519", "kty": "OKP", "x": key.x}, separators=(",", ":")).encode()
    assert unpadded(key.kid.removeprefix("ds_")) == hashlib.sha256(required).digest()


def test_what_is_published_has_no_private_half(data_dir: Path) -> None:
    with open_at(data_dir) as db:
        keys = db.execute(EnsureSigningKey())
    (jwk,) = signing.jwks(keys, 0)["keys"]
    assert set(jwk) == {"kty", "crv", "kid", "use", "alg", "x"}
    assert (jwk["kty"], jwk["crv"], jwk["use"], jwk["alg"]) == ("OKP", "Ed25519", "sig", "EdDSA")
    assert len(unpadded(jwk["x"])) == 32


def test_a_key_is_made_once_and_survives_restarts(data_dir: Path) -> None:
    with open_at(data_dir) as db:
        assert db.execute(GetSigningKeys()) == []
        keys = db.execute(EnsureSigningKey())
        assert db.execute(EnsureSigningKey()) == keys
    with open_at(data_dir) as db:
        assert db.execute(GetSigningKeys()) == db.execute(EnsureSigningKey()) == keys


def test_a_rotated_key_stays_published_for_a_day_without_its_private_half(data_dir: Path) -> None:
    clock = ManualClock()
    with open_at(data_dir, clock) as db:
        (old,) = db.execute(EnsureSigningKey())
        header = signing.sign(old, b"body", 1)
        new = db.execute(RotateSigningKey())
        keys = db.execute(GetSigningKeys())
        assert [key.kid for key in keys] == [new.kid, old.kid]
        assert keys[0].d is not None and keys[1].d is None
        assert [each["kid"] for each in signing.jwks(keys, clock.now_ms())["keys"]] == [new.kid, old.kid]
        verify(header, b"body", keys)
        verify(signing.sign(keys[0], b"body", 2), b"body", keys)
        with pytest.raises(AssertionError, match="retired"):
            signing.sign(keys[1], b"body", 1)
        clock.advance(24 * 3600 + 1)
        assert [each["kid"] for each in signing.jwks(keys, clock.now_ms())["keys"]] == [new.kid]
        assert [key.kid for key in db.execute(ListSigningKeys())] == [new.kid]
        newest = db.execute(RotateSigningKey())
        assert [key.kid for key in db.execute(GetSigningKeys())] == [newest.kid, new.kid]


def test_a_clock_that_jumps_takes_no_key_from_those_that_are_published(data_dir: Path) -> None:
    clock = ManualClock()
    with open_at(data_dir, clock) as db:
        (old,) = db.execute(EnsureSigningKey())
        new = db.execute(RotateSigningKey())
        clock.jump_by(10 * 24 * 3600)
        assert [key.kid for key in db.execute(ListSigningKeys())] == [new.kid, old.kid]
        newest = db.execute(RotateSigningKey())
        assert [key.kid for key in db.execute(GetSigningKeys())] == [newest.kid, new.kid, old.kid]


def test_keys_in_use_are_not_dropped_to_make_room(data_dir: Path) -> None:
    with open_at(data_dir) as db:
        db.execute(EnsureSigningKey())
        for _ in range(limits.PUBLISHED_KEYS_MAX - 1):
            db.execute(RotateSigningKey())
        before = db.execute(GetSigningKeys())
        with pytest.raises(TooMany):
            db.execute(RotateSigningKey())
        assert db.execute(GetSigningKeys()) == before
        assert len(before) == limits.PUBLISHED_KEYS_MAX


def test_rotating_needs_the_admin_permission(data_dir: Path) -> None:
    writer = Principal("writer", frozenset((Permission.READ, Permission.WRITE)))
    dba = Principal("dba", ROLES["dba"], "dba")
    with open_at(data_dir) as db:
        for command in (RotateSigningKey(), ListSigningKeys()):
            with pytest.raises(Forbidden):
                db.execute(command, writer)
            db.execute(command, dba)
        for secret in (GetSigningKeys(), EnsureSigningKey()):  # these have the private half
            with pytest.raises(Forbidden):
                db.execute(secret, dba)
