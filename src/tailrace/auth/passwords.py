"""Passwords: what is kept of them, and whether one is right.

A password is kept as its argon2id hash. Making or checking one takes tens of milliseconds and many megabytes on
purpose, so it happens before a command is built, never inside the write transaction, and never on an event loop.
"""

from __future__ import annotations

import secrets
from functools import cache
from typing import Final

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from argon2.low_level import Type

from tailrace.errors import Invalid

PASSWORD_CHARACTERS_MIN: Final = 8
PASSWORD_BYTES_MAX: Final = 1_024
MEMORY_KIB: Final = 19 * 1_024  # what OWASP asks for, with as many passes
PASSES: Final = 2

_hasher: Final = PasswordHasher(time_cost=PASSES, memory_cost=MEMORY_KIB, parallelism=1, type=Type.ID)


def hashed(password: str) -> str:
    """What is kept of a password; it must be long enough. Slow."""
    if len(password) < PASSWORD_CHARACTERS_MIN:
        raise Invalid(
            f"the password has {len(password)} characters; use at least {PASSWORD_CHARACTERS_MIN}", code="WEAK_PASSWORD"
        )
    try:
        data = password.encode()
    except UnicodeEncodeError:
        raise Invalid("the password is not text: it has half a surrogate pair", code="INVALID_PASSWORD") from None
    if len(data) > PASSWORD_BYTES_MAX:
        raise Invalid(f"the password has {len(data)} bytes; use at most {PASSWORD_BYTES_MAX}", code="INVALID_PASSWORD")
    return _hasher.hash(data)


def is_hash(text: str) -> bool:
    """Whether this is what `hashed` makes."""
    return text.startswith("$argon2id$")


def matches(password: bytes, kept: str | None) -> bool:
    """Whether the password is the one that `kept` was made of. None: there is none, which takes as long to find out.
    Slow."""
    if len(password) > PASSWORD_BYTES_MAX:
        return False
    try:
        _hasher.verify(_nobodys() if kept is None else kept, password)
    except (VerificationError, InvalidHashError):
        return False
    return kept is not None


@cache
def _nobodys() -> str:
    """A hash that takes as long to check as any other, and that no password matches but one that was thrown away."""
    return _hasher.hash(secrets.token_bytes(32))
