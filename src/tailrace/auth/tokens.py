"""JSON Web Tokens: issued by this server at login, or by external issuers. Pure: no clock, no network.

Tokens of this server are signed with HMAC-SHA256 under a key that is created on first use and stored in the database.
A token never chooses the algorithm that verifies it: ours accept HS256 alone, and an external issuer's key accepts only
the algorithms of its type, none of which is symmetric. So ``alg: none`` and a public key used as an HMAC secret are
rejected before anything is computed. Each kind of failure has its own code, all with status 401.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final

import jwt
import msgspec
from jwt.algorithms import get_default_algorithms

from tailrace import limits
from tailrace.access import Permission
from tailrace.auth.users import User
from tailrace.command import Command, Query
from tailrace.errors import WrongToken
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.vault import read_secret, write_secret

ISSUER: Final = "tailrace"
OWN_ALGORITHM: Final = "HS256"
KEY_NAME: Final = "token-key"  # in META
KEY_BYTES: Final = 32

# The algorithms that a type of key (and curve) may verify.
ALGORITHMS: Final[dict[tuple[str, str | None], tuple[str, ...]]] = {
    ("RSA", None): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}

# The claims are checked here: by the database's clock, and with a code for each fault.
_CLAIMS: Final = ("exp", "nbf", "iat", "aud", "iss", "sub", "jti")
_SIGNATURE_ALONE: Final[Any] = {"verify_signature": True, **{f"verify_{claim}": False for claim in _CLAIMS}}

MALFORMED: Final = "TOKEN_MALFORMED"
ALGORITHM: Final = "TOKEN_ALGORITHM"
SIGNATURE: Final = "TOKEN_SIGNATURE"
EXPIRED: Final = "TOKEN_EXPIRED"
NOT_YET: Final = "TOKEN_NOT_YET_VALID"
WRONG_ISSUER: Final = "TOKEN_ISSUER"
WRONG_AUDIENCE: Final = "TOKEN_AUDIENCE"
CLAIMS: Final = "TOKEN_CLAIMS"
REVOKED: Final = "TOKEN_REVOKED"
UNKNOWN_KEY: Final = "TOKEN_KEY"


class TokenClaims(msgspec.Struct, frozen=True):
    """The claims of a token of this server."""

    user: str
    session: str
    generation: int
    expires_ms: int


class UnverifiedToken(msgspec.Struct, frozen=True):
    """A parsed token whose signature is not verified yet."""

    text: str
    algorithm: str
    key_id: str | None
    issuer: str


class PublicKey(msgspec.Struct, frozen=True):
    """An external issuer's key, ready to verify with."""

    key: Any
    algorithms: tuple[str, ...]


class FindTokenKey(Query[bytes | None], frozen=True):
    """The key for tokens of this server, if it exists yet."""

    permission = Permission.SYSTEM
    single = True

    def run(self, reader: Reader) -> bytes | None:
        return read_secret(reader, KEY_NAME)


class MakeTokenKey(Command[bytes], frozen=True):
    """The key for tokens of this server; created if it does not exist."""

    permission = Permission.SYSTEM

    def run(self, tx: Tx) -> bytes:
        key = read_secret(tx, KEY_NAME)
        if key is None:
            key = secrets.token_bytes(KEY_BYTES)
            write_secret(tx, KEY_NAME, key)
        return key


def looks_like(text: bytes) -> bool:
    """Whether this has the form of a token."""
    return text.count(b".") == 2 and text.startswith(b"eyJ")


def issue(key: bytes, user: User, session: str, now_ms: int, life_s: int) -> str:
    """A token for a user, of a session."""
    now_s = now_ms // 1000
    claims = {
        "iss": ISSUER,
        "sub": user.name,
        "role": user.role,
        "iat": now_s,
        "exp": now_s + life_s,
        "jti": secrets.token_urlsafe(12),
        "sid": session,
        "generation": user.generation,
    }
    return jwt.encode(claims, key, algorithm=OWN_ALGORITHM)


def unread(text: str) -> UnverifiedToken:
    """Parse a token without verifying it."""
    if len(text) > limits.ACCESS_TOKEN_BYTES_MAX:
        raise WrongToken(f"the token is longer than {limits.ACCESS_TOKEN_BYTES_MAX} bytes", code=MALFORMED)
    try:
        whole = jwt.decode_complete(text, options={"verify_signature": False})
        header, payload = whole["header"], whole["payload"]
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise WrongToken("the token is malformed; request a new one", code=MALFORMED) from None
    algorithm, key_id, issuer = header.get("alg"), header.get("kid"), payload.get("iss")
    if not isinstance(algorithm, str) or not isinstance(key_id, str | None) or "crit" in header:
        raise WrongToken(
            "the token's header is malformed, or uses an extension (crit) that is not supported", code=MALFORMED
        )
    if not isinstance(issuer, str):
        raise WrongToken("the token has no issuer (claim iss)", code=WRONG_ISSUER)
    return UnverifiedToken(text, algorithm, key_id, issuer)


def verify_own(token: UnverifiedToken, key: bytes, now_ms: int) -> TokenClaims:
    """The claims of a token of this server, if it is valid now."""
    payload = _verified(token, key, (OWN_ALGORITHM,))
    expires_s = check_times(payload, now_ms, leeway_s=0)
    user, session, generation = payload.get("sub"), payload.get("sid"), payload.get("generation")
    if payload.get("iss") != ISSUER:
        raise WrongToken("the token was not issued by this server", code=WRONG_ISSUER)
    if not isinstance(user, str) or not isinstance(session, str) or type(generation) is not int:
        raise WrongToken("the token lacks claims of this server; log in again", code=CLAIMS)
    return TokenClaims(user, session, generation, int(expires_s * 1000))


def verify_outside(token: UnverifiedToken, key: PublicKey, audience: str, now_ms: int) -> tuple[dict[str, Any], int]:
    """The claims of an external issuer's token, and when it expires (in ms)."""
    payload = _verified(token, key.key, key.algorithms)
    expires_s = check_times(payload, now_ms, leeway_s=limits.TOKEN_LEEWAY_S)
    claimed = payload.get("aud")
    if audience not in (claimed if isinstance(claimed, list) else [claimed]):
        raise WrongToken(
            f"the token is not for {audience!r} (aud); ask the issuer for one that is", code=WRONG_AUDIENCE
        )
    return payload, int((expires_s + limits.TOKEN_LEEWAY_S) * 1000)


def check_times(payload: Mapping[str, Any], now_ms: int, *, leeway_s: int) -> float:
    """The expiry of a token that is valid now. A token without expiry is rejected."""
    now_s = now_ms / 1000
    for name in ("exp", "nbf", "iat"):
        value: Any = payload.get(name)
        if value is None and name != "exp":
            continue
        if type(value) not in (int, float) or not 0 <= value < 2**53:  # NaN is not, either
            raise WrongToken(
                f"the token lacks {name!r}, a number of seconds since 1970, or has another kind", code=CLAIMS
            )
    for name in ("nbf", "iat"):
        if payload.get(name) is not None and payload[name] > now_s + max(leeway_s, 1):
            raise WrongToken(f"the token is not valid yet ({name}); compare the clocks of both sides", code=NOT_YET)
    expires_s: float = payload["exp"]
    if expires_s + leeway_s <= now_s:
        raise WrongToken("the token has expired; refresh it or log in again", code=EXPIRED)
    return expires_s


def public_key(facts: Mapping[str, Any]) -> tuple[str | None, PublicKey] | None:
    """A key of a JWKS with its id; None: it cannot verify tokens (symmetric, for encryption, unknown or too short)."""
    kind, curve, use = facts.get("kty"), facts.get("crv"), facts.get("use")
    allowed = ALGORITHMS.get((str(kind), None if kind == "RSA" else str(curve)))
    if allowed is None or use not in (None, "sig"):
        return None
    named = facts.get("alg")
    if named is not None:
        allowed = tuple(name for name in allowed if name == named)
    key_id = facts.get("kid")
    if not allowed or not isinstance(key_id, str | None):
        return None
    public = {name: value for name, value in facts.items() if name not in ("d", "p", "q", "dp", "dq", "qi", "oth")}
    try:
        key = get_default_algorithms()[allowed[0]].from_jwk(public)
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    if kind == "RSA" and key.key_size < limits.RSA_BITS_MIN:
        return None
    return key_id, PublicKey(key, allowed)


def _verified(token: UnverifiedToken, key: Any, algorithms: tuple[str, ...]) -> dict[str, Any]:
    if token.algorithm not in algorithms:
        raise WrongToken(
            f"the token's algorithm {token.algorithm[:20]!r} is not accepted; use {', '.join(algorithms)}",
            code=ALGORITHM,
        )
    try:
        payload: dict[str, Any] = jwt.decode(token.text, key, algorithms=list(algorithms), options=_SIGNATURE_ALONE)
    except (jwt.PyJWTError, ValueError, TypeError):
        raise WrongToken("the token's signature is wrong", code=SIGNATURE) from None
    return payload
