"""Tokens: our own and those of others; every way to be wrong has its code."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tailrace import limits
from tailrace.auth import tokens
from tailrace.auth.users import User
from tailrace.errors import WrongToken

KEY = b"k" * 32
NOW_S = 1_700_000_000
NOW_MS = NOW_S * 1000
ANN = User("ann", "service", None, b"", 0, 0, 0, 7)
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def own(key: bytes = KEY, algorithm: str = "HS256", headers: dict[str, Any] | None = None, **claims: Any) -> str:
    facts = {
        "iss": "tailrace", "sub": "ann", "role": "service", "iat": NOW_S, "exp": NOW_S + 60, "jti": "j", "sid": "s",
        "generation": 7, **claims,
    }  # fmt: skip
    facts = {name: value for name, value in facts.items() if value is not None}
    return jwt.encode(facts, key, algorithm=algorithm, headers=headers)


def code_of(text: str, now_ms: int = NOW_MS) -> str:
    with pytest.raises(WrongToken) as refused:
        tokens.verify_own(tokens.unread(text), KEY, now_ms)
    return refused.value.code


def test_what_we_issue_we_believe() -> None:
    text = tokens.issue(KEY, ANN, "s", NOW_MS, 60)
    assert tokens.looks_like(text.encode())
    claims = tokens.verify_own(tokens.unread(text), KEY, NOW_MS)
    assert (claims.user, claims.session, claims.generation) == ("ann", "s", 7)
    assert claims.expires_ms == NOW_MS + 60_000
    decoded = jwt.decode(text, options={"verify_signature": False})
    assert (decoded["iss"], decoded["sub"], decoded["role"], decoded["iat"]) == ("tailrace", "ann", "service", NOW_S)
    assert (
        jwt.decode(tokens.issue(KEY, ANN, "s", NOW_MS, 60), options={"verify_signature": False})["jti"]
        != decoded["jti"]
    )
    assert code_of(text, NOW_MS + 60_000) == tokens.EXPIRED
    tokens.verify_own(tokens.unread(text), KEY, NOW_MS + 59_999)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (own(exp=NOW_S), tokens.EXPIRED),
        (own(exp=None), tokens.CLAIMS),
        (own(exp="soon"), tokens.CLAIMS),
        (own(exp=True), tokens.CLAIMS),
        (own(exp=float("nan")), tokens.CLAIMS),
        (own(exp=float("inf")), tokens.CLAIMS),
        (own(exp=-1), tokens.CLAIMS),
        (own(nbf=NOW_S + 60), tokens.NOT_YET),
        (own(iat=NOW_S + 60), tokens.NOT_YET),
        (own(nbf="x"), tokens.CLAIMS),
        (own(key=b"x" * 32), tokens.SIGNATURE),
        (own(algorithm="HS512"), tokens.ALGORITHM),
        (own(sid=None), tokens.CLAIMS),
        (own(sub=7), tokens.CLAIMS),
        (own(generation=None), tokens.CLAIMS),
        (own(generation="7"), tokens.CLAIMS),
        (own(generation=True), tokens.CLAIMS),
        (own(headers={"crit": ["exp"]}), tokens.MALFORMED),
        (jwt.encode({"iss": "tailrace", "exp": NOW_S + 60}, RSA, algorithm="RS256"), tokens.ALGORITHM),
        (f"{part({'alg': 'none'})}.{part({'iss': 'tailrace', 'sub': 'ann', 'exp': NOW_S + 60})}.", tokens.ALGORITHM),
        (f"{part({'alg': 'NONE'})}.{part({'iss': 'tailrace', 'sub': 'ann', 'exp': NOW_S + 60})}.", tokens.ALGORITHM),
        (own().rpartition(".")[0] + ".", tokens.SIGNATURE),
        ("eyJ.eyJ.x", tokens.MALFORMED),
        ("a.b", tokens.MALFORMED),
        ("", tokens.MALFORMED),
        ("eyJ" + "x" * 9000, tokens.MALFORMED),
        (f"{part({})}.{part({})}.", tokens.MALFORMED),
        (f"{part({'alg': 'HS256'})}.{part([])}.x", tokens.MALFORMED),
        (f"{part({'alg': 'HS256'})}.{part({})}.", tokens.WRONG_ISSUER),
        (f"{part({'alg': 'HS256'})}.{part({'iss': 7})}.", tokens.WRONG_ISSUER),
    ],
)
def test_each_fault_has_a_code(text: str, code: str) -> None:
    assert code_of(text) == code


def test_a_body_that_was_changed() -> None:
    head, _, mark = own().split(".")
    forged = part({"iss": "tailrace", "sub": "root", "exp": NOW_S + 60, "sid": "s", "generation": 7})
    assert code_of(f"{head}.{forged}.{mark}") == tokens.SIGNATURE


# -- of others


def jwk(key: Any, **more: Any) -> dict[str, Any]:
    kind = {"RS": "RS256", "EC": "ES256", "ED": "EdDSA"}
    name = "RS" if isinstance(key, rsa.RSAPrivateKey) else "EC" if isinstance(key, ec.EllipticCurvePrivateKey) else "ED"
    facts = jwt.get_algorithm_by_name(kind[name]).to_jwk(key.public_key(), as_dict=True)
    return {**facts, "kid": "k1", **more}


def outside(key: Any, algorithm: str, **claims: Any) -> tokens.UnverifiedToken:
    facts = {"iss": "https://issuer", "aud": "here", "sub": "ann", "exp": NOW_S + 60, **claims}
    facts = {name: value for name, value in facts.items() if value is not None}
    return tokens.unread(jwt.encode(facts, key, algorithm=algorithm, headers={"kid": "k1"}))


def public(facts: dict[str, Any]) -> tokens.PublicKey:
    found = tokens.public_key(facts)
    assert found is not None
    assert found[0] == "k1"
    return found[1]


@pytest.mark.parametrize(
    ("key", "algorithm"), [(RSA, "RS256"), (RSA, "RS512"), (RSA, "PS256"), (EC, "ES256"), (ED, "EdDSA")]
)
def test_keys_of_each_kind(key: Any, algorithm: str) -> None:
    payload, expires_ms = tokens.verify_outside(outside(key, algorithm), public(jwk(key)), "here", NOW_MS)
    assert payload["sub"] == "ann"
    assert expires_ms == NOW_MS + 60_000 + limits.TOKEN_LEEWAY_S * 1000


@pytest.mark.parametrize(
    ("claims", "code"),
    [
        ({"exp": NOW_S - 60}, tokens.EXPIRED),
        ({"exp": None}, tokens.CLAIMS),
        ({"nbf": NOW_S + 60}, tokens.NOT_YET),
        ({"aud": "there"}, tokens.WRONG_AUDIENCE),
        ({"aud": None}, tokens.WRONG_AUDIENCE),
        ({"aud": ["there", "elsewhere"]}, tokens.WRONG_AUDIENCE),
    ],
)
def test_what_others_say_is_checked_too(claims: dict[str, Any], code: str) -> None:
    with pytest.raises(WrongToken) as refused:
        tokens.verify_outside(outside(RSA, "RS256", **claims), public(jwk(RSA)), "here", NOW_MS)
    assert refused.value.code == code


def test_one_of_several_audiences_and_clocks_a_little_off() -> None:
    unread = outside(RSA, "RS256", aud=["there", "here"], exp=NOW_S - 10, nbf=NOW_S + 10)
    tokens.verify_outside(unread, public(jwk(RSA)), "here", NOW_MS)


def test_a_public_key_is_no_secret() -> None:
    """A token signed by HMAC with the issuer's public key as the secret: the classic confusion."""
    pem = RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    claims = {"iss": "https://issuer", "aud": "here", "sub": "root", "exp": NOW_S + 60}
    signed_part = f"{part({'alg': 'HS256', 'kid': 'k1'})}.{part(claims)}"
    mark = base64.urlsafe_b64encode(hmac.new(pem, signed_part.encode(), hashlib.sha256).digest()).rstrip(b"=").decode()
    with pytest.raises(WrongToken) as refused:
        tokens.verify_outside(tokens.unread(f"{signed_part}.{mark}"), public(jwk(RSA)), "here", NOW_MS)
    assert refused.value.code == tokens.ALGORITHM


def test_another_kind_of_key_and_another_key() -> None:
    for key, algorithm, code in (
        (EC, "ES256", tokens.ALGORITHM),
        (rsa.generate_private_key(65537, 2048), "RS256", tokens.SIGNATURE),
    ):
        with pytest.raises(WrongToken) as refused:
            tokens.verify_outside(outside(key, algorithm), public(jwk(RSA)), "here", NOW_MS)
        assert refused.value.code == code


def test_a_key_that_names_its_algorithm_takes_no_other() -> None:
    key = public(jwk(RSA, alg="RS512"))
    assert key.algorithms == ("RS512",)
    with pytest.raises(WrongToken):
        tokens.verify_outside(outside(RSA, "RS256"), key, "here", NOW_MS)


@pytest.mark.parametrize(
    "facts",
    [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "k1"},
        {"kty": "RSA", "n": "!", "e": "AQAB"},
        {"kty": "RSA"},
        {"kty": "EC", "crv": "secp256k1", "x": "a", "y": "b"},
        {},
        jwk(RSA, use="enc"),
        jwk(RSA, alg="HS256"),
        jwk(RSA, kid=7),
        jwk(rsa.generate_private_key(65537, 1024)),
    ],
)
def test_keys_that_are_passed_over(facts: dict[str, Any]) -> None:
    assert tokens.public_key(facts) is None
