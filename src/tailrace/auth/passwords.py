"""Hashing and verifying passwords.

A password is stored as its argon2id hash. Computing or verifying one takes tens of milliseconds and many megabytes by
design, so it happens before a command is built, never inside the write transaction, and never on an event loop.
"""

from __future__ import annotations

import secrets
from functools import cache
from typing import Final

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from argon2.low_level import Type

from tailrace import limits
from tailrace.errors import Invalid

MEMORY_KIB: Final = 19 * 1_024  # as OWASP recommends, with PASSES
PASSES: Final = 2

_hasher: Final = PasswordHasher(time_cost=PASSES, memory_cost=MEMORY_KIB, parallelism=1, type=Type.ID)


def hashed(password: str) -> str:
    """The hash of a password, which must be long enough. Slow."""
    if len(password) < limits.PASSWORD_CHARACTERS_MIN:
        raise Invalid(
            f"the password has {len(password)} characters; use at least {limits.PASSWORD_CHARACTERS_MIN}",
            code="WEAK_PASSWORD",
        )
    try:
        data = password.encode()
    except UnicodeEncodeError:
        raise Invalid("the password is not text: it has half a surrogate pair", code="INVALID_PASSWORD") from None
    if len(data) > limits.PASSWORD_BYTES_MAX:
        raise Invalid(
            f"the password has {len(data)} bytes; use at most {limits.PASSWORD_BYTES_MAX}", code="INVALID_PASSWORD"
        )
    return _hasher.hash(data)


def is_hash(text: str) -> bool:
    """Whether this is a hash as `hashed` returns it."""
    return text.startswith("$argon2id$")


def matches(password: bytes, kept: str | None) -> bool:
    """Whether the password has this hash. None: there is no hash, and the check takes as long as any other. Slow."""
    if len(password) > limits.PASSWORD_BYTES_MAX:
        return False
    try:
        _hasher.verify(_decoy() if kept is None else kept, password)
    except (VerificationError, InvalidHashError):
        return False
    return kept is not None


@cache
def _decoy() -> str:
    """The hash of a random password that was discarded: it takes as long to check as any other."""
    return _hasher.hash(secrets.token_bytes(32))
