"""JSON Web Tokens: our own, made at login, and how those of outside issuers are looked at. Pure: no clock, no network.

Our own are signed with HMAC-SHA256 under a key that is made when it is first needed and kept in the database. Which
algorithm a token is verified with is never the token's choice: ours take HS256 alone, an outside issuer's key only the
algorithms of its kind, none of which is symmetric. So ``alg: none`` and a public key used as an HMAC secret are refused
before anything is computed. Whatever is wrong has a code of its own, all of them 401.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final

import jwt
import msgspec
from jwt.algorithms import get_default_algorithms

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
TOKEN_BYTES_MAX: Final = 8 * 1024
LEEWAY_S: Final = 30  # how far an outside issuer's clock may be off; our own is our own
RSA_BITS_MIN: Final = 2_048

# By the kind of key (and its curve): what may be verified with it.
ALGORITHMS: Final[dict[tuple[str, str | None], tuple[str, ...]]] = {
    ("RSA", None): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}

# The claims are looked at here: by the database's clock, and with a code for each fault.
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


class Claims(msgspec.Struct, frozen=True):
    """What one of our own tokens says."""

    user: str
    session: str
    generation: int
    expires_ms: int


class Unread(msgspec.Struct, frozen=True):
    """A token that was taken apart; nothing of it is to be believed yet."""

    text: str
    algorithm: str
    key_id: str | None
    issuer: str


class PublicKey(msgspec.Struct, frozen=True):
    """An outside issuer's key, ready to verify with."""

    key: Any
    algorithms: tuple[str, ...]


class FindTokenKey(Query[bytes | None], frozen=True):
    """The key of our own tokens, if there is one yet."""

    permission = Permission.SYSTEM
    single = True

    def run(self, reader: Reader) -> bytes | None:
        return read_secret(reader, KEY_NAME)


class MakeTokenKey(Command[bytes], frozen=True):
    """The key of our own tokens; if there is none, it is made."""

    permission = Permission.SYSTEM

    def run(self, tx: Tx) -> bytes:
        key = read_secret(tx, KEY_NAME)
        if key is None:
            key = secrets.token_bytes(KEY_BYTES)
            write_secret(tx, KEY_NAME, key)
        return key


def looks_like(text: bytes) -> bool:
    """Whether this could be such a token at all."""
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


def unread(text: str) -> Unread:
    """Take a token apart."""
    if len(text) > TOKEN_BYTES_MAX:
        raise WrongToken(f"the token is longer than {TOKEN_BYTES_MAX} bytes", code=MALFORMED)
    try:
        whole = jwt.decode_complete(text, options={"verify_signature": False})
        header, payload = whole["header"], whole["payload"]
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise WrongToken("the token cannot be read; ask for a new one", code=MALFORMED) from None
    algorithm, key_id, issuer = header.get("alg"), header.get("kid"), payload.get("iss")
    if not isinstance(algorithm, str) or not isinstance(key_id, str | None) or "crit" in header:
        raise WrongToken("the token's header asks for what is not done here", code=MALFORMED)
    if not isinstance(issuer, str):
        raise WrongToken("the token does not say who issued it (iss)", code=WRONG_ISSUER)
    return Unread(text, algorithm, key_id, issuer)


def verify_own(token: Unread, key: bytes, now_ms: int) -> Claims:
    """What one of our own tokens says, if it is one and of now."""
    payload = _verified(token, key, (OWN_ALGORITHM,))
    expires_s = check_times(payload, now_ms, leeway_s=0)
    user, session, generation = payload.get("sub"), payload.get("sid"), payload.get("generation")
    if payload.get("iss") != ISSUER:
        raise WrongToken("the token is not of this server", code=WRONG_ISSUER)
    if not isinstance(user, str) or not isinstance(session, str) or type(generation) is not int:
        raise WrongToken("the token lacks claims that this server puts into its own; log in again", code=CLAIMS)
    return Claims(user, session, generation, int(expires_s * 1000))


def verify_outside(token: Unread, key: PublicKey, audience: str, now_ms: int) -> tuple[dict[str, Any], int]:
    """What an outside issuer's token says, and when (in ms) it ends to be true."""
    payload = _verified(token, key.key, key.algorithms)
    expires_s = check_times(payload, now_ms, leeway_s=LEEWAY_S)
    given = payload.get("aud")
    if audience not in (given if isinstance(given, list) else [given]):
        raise WrongToken(
            f"the token is not for {audience!r} (aud); ask the issuer for one that is", code=WRONG_AUDIENCE
        )
    return payload, int((expires_s + LEEWAY_S) * 1000)


def check_times(payload: Mapping[str, Any], now_ms: int, *, leeway_s: int) -> float:
    """When the token ends, if it has begun and not ended. One that never ends is none."""
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
            raise WrongToken(f"the token is not valid yet ({name}); look at the clocks of both sides", code=NOT_YET)
    expires_s: float = payload["exp"]
    if expires_s + leeway_s <= now_s:
        raise WrongToken("the token has expired; refresh it or log in again", code=EXPIRED)
    return expires_s


def public_key(facts: Mapping[str, Any]) -> tuple[str | None, PublicKey] | None:
    """A key of a JWKS with its id; None: not one to verify with (symmetric, for encryption, unknown or too short)."""
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
    if kind == "RSA" and key.key_size < RSA_BITS_MIN:
        return None
    return key_id, PublicKey(key, allowed)


def _verified(token: Unread, key: Any, algorithms: tuple[str, ...]) -> dict[str, Any]:
    if token.algorithm not in algorithms:
        raise WrongToken(
            f"the token's algorithm {token.algorithm[:20]!r} is not taken; this issuer's are {', '.join(algorithms)}",
            code=ALGORITHM,
        )
    try:
        payload: dict[str, Any] = jwt.decode(token.text, key, algorithms=list(algorithms), options=_SIGNATURE_ALONE)
    except (jwt.PyJWTError, ValueError, TypeError):
        raise WrongToken("the token's signature is wrong", code=SIGNATURE) from None
    return payload
