"""Passwords are kept as argon2id hashes, within bounds; who has none takes as long to refuse."""

from __future__ import annotations

import time

import pytest

from tailrace.auth import passwords
from tailrace.errors import Invalid


def test_a_hash_is_argon2id_salted_and_matches_its_password_alone() -> None:
    one, other = passwords.hashed("correct horse"), passwords.hashed("correct horse")
    assert one.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert passwords.is_hash(one)
    assert one != other
    assert passwords.matches(b"correct horse", one)
    assert not passwords.matches(b"correct horse ", one)
    assert not passwords.matches(b"", one)


def test_bounds() -> None:
    with pytest.raises(Invalid, match="has 7 characters; use at least 8"):
        passwords.hashed("1234567")
    passwords.hashed("12345678")
    longest = "ä" * 512
    assert passwords.matches(longest.encode(), passwords.hashed(longest))
    with pytest.raises(Invalid, match="has 1025 bytes; use at most 1024"):
        passwords.hashed("x" * 1025)
    with pytest.raises(Invalid, match="half a surrogate pair"):
        passwords.hashed("\ud800" * 8)
    assert not passwords.matches(b"x" * 1025, None)


def test_who_has_no_password_matches_none_and_takes_as_long() -> None:
    kept = passwords.hashed("correct horse")
    passwords.matches(b"warm up", None)

    def spent(hashed: str | None) -> float:
        began = time.process_time()
        for _ in range(3):
            assert not passwords.matches(b"wrong", hashed)
        return time.process_time() - began

    known, unknown = min(spent(kept) for _ in range(3)), min(spent(None) for _ in range(3))
    assert unknown > known / 3


def test_what_is_no_hash_matches_nothing() -> None:
    assert not passwords.matches(b"x", "x")
    assert not passwords.matches(b"x", "$argon2id$nonsense")
    assert not passwords.is_hash("password")
