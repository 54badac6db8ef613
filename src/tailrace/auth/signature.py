"""AWS Signature Version 4, the verifying side. Pure: no clock, no storage, no sockets.

Theory of operation
-------------------
Client and server each reduce a request to the same bytes, the *canonical request*:

    POST                                       the method
    /                                          the path: dot segments removed, percent-encoded once more than sent
    Action=a&b=%20                             the query: decoded, encoded strictly, sorted; without X-Amz-Signature
    host:localhost:4437                        the signed header fields: lower-case names, sorted, blanks folded
    x-amz-date:20260102T030405Z
    (an empty line)
    host;x-amz-date                            their names
    44136fa3...                                SHA-256 of the body, of the bytes as they were sent

Its SHA-256 goes into the *string to sign*, with the algorithm, the time and the *scope*
(``20260102/us-east-1/dynamodb/aws4_request``). That is signed (HMAC-SHA256) with a key derived from the secret and
the scope in four steps. The derived key changes once a day, so `SigningKeys` keeps it.

A request carries its signature in the Authorization header or, for a presigned URL, in X-Amz-* parameters of the query.
`read_claim` parses either into a `SignatureClaim`. Checks come in the order of the service, since a request with
several mistakes must get the same error: form (`read_claim`), time (`check_time`), algorithm, signed fields and scope
(`check_scope`), the key (looked up by the caller), the signature (`verify`).

The body's hash is always computed, never taken from X-Amz-Content-SHA256; so a client that signs ``UNSIGNED-PAYLOAD``
is rejected, as by the service. X-Amz-Security-Token is just another header here: keys are not temporary.

A field that was sent twice is signed as ``a,b``, but arrives here joined as ``a, b``, which may also be what was sent
and signed. `verify` accepts either.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from time import gmtime, strftime
from typing import Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

import msgspec

from tailrace import limits
from tailrace.errors import Unauthenticated

ALGORITHM: Final = "AWS4-HMAC-SHA256"
TERMINATOR: Final = "aws4_request"

# Error codes; the DynamoDB API maps them to its own names.
MISSING_TOKEN: Final = "MISSING_TOKEN"
INCOMPLETE_SIGNATURE: Final = "INCOMPLETE_SIGNATURE"
UNRECOGNIZED_CLIENT: Final = "UNRECOGNIZED_CLIENT"
INVALID_SIGNATURE: Final = "INVALID_SIGNATURE"

_MISMATCH: Final = (
    "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access Key "
    "and signing method. Consult the service documentation for details."
)
_SEPARATORS: Final = re.compile("[, ]+")
_USUAL_HEAD: Final = re.compile(r"(AWS4-[^, ]+) +Credential=([^, ]+)[, ]+SignedHeaders=([^, ]+)[, ]+")
_SIGNATURE: Final = "Signature="
_STAMP: Final = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z", re.ASCII)
_DIGITS: Final = re.compile("[0-9]{1,6}")  # as many as PRESIGNED_S_MAX has
_BLANKS: Final = re.compile(rb"[ \t]+")
_QUERY_FORM: Final = ("X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Signature", "X-Amz-SignedHeaders", "X-Amz-Date")

Pairs = list[tuple[bytes, bytes]]


class SignatureClaim(msgspec.Struct, frozen=True):
    """The signature of a request with its parameters. Only the form is checked."""

    algorithm: str
    credential: str
    signed: tuple[bytes, ...]  # names of header fields, lower-case, sorted
    signature: bytes
    stamp: str  # when it was signed, 20260102T030405Z
    by_field: bool  # whether the time comes from X-Amz-Date among the header fields
    expires_s: int | None  # of a presigned URL
    query: Pairs | None  # decoded, where it had to be; without the signature

    @property
    def key_id(self) -> str:
        return _credential(self.credential)[0]

    @property
    def scope(self) -> str:
        """The scope of the derived key: date, region, service, terminator."""
        return _credential(self.credential)[1]


@lru_cache(maxsize=256)
def _credential(text: str) -> tuple[str, str]:
    """The key id and the scope."""
    return text.partition("/")[0], text.rstrip("/").partition("/")[2]


def is_signed(headers: Mapping[bytes, bytes], query: bytes) -> bool:
    """Whether a request carries credentials of any kind, valid or not."""
    return b"authorization" in headers or b"X-Amz-" in query


def read_claim(headers: Mapping[bytes, bytes], query: bytes) -> SignatureClaim:
    """Parse the signature in the header or the query; `headers` have lower-case names."""
    header = headers.get(b"authorization")
    if not query and header is not None:
        return _header_claim(header.decode("latin-1"), headers, None)
    pairs = _pairs(query)
    presigned = any(name == b"X-Amz-Algorithm" for name, _ in pairs)
    if header is not None and presigned:
        raise _invalid("Found both 'X-Amz-Algorithm' as a query-string param and 'Authorization' as HTTP header.")
    if header is not None:
        return _header_claim(header.decode("latin-1"), headers, pairs)
    if not presigned:
        raise missing_token()
    return _query_claim(pairs)


def check_time(claim: SignatureClaim, now_ms: int) -> None:
    """Raise unless the request was signed recently, or within the lifetime of its presigned URL."""
    at_s, now_s = _seconds(claim.stamp), now_ms // 1000
    life_s = limits.SIGNATURE_SKEW_S if claim.expires_s is None else claim.expires_s
    if at_s < now_s - life_s:
        raise _invalid(
            f"Signature expired: {claim.stamp} is now earlier than {_stamp(now_s - life_s)} "
            f"({_stamp(now_s)} - {life_s // 60} min.)"
        )
    if at_s > now_s + limits.SIGNATURE_SKEW_S:
        raise _invalid(
            f"Signature not yet current: {claim.stamp} is still later than {_stamp(now_s + limits.SIGNATURE_SKEW_S)} "
            f"({_stamp(now_s)} + {limits.SIGNATURE_SKEW_S // 60} min.)"
        )


def check_scope(
    claim: SignatureClaim, headers: Mapping[bytes, bytes], services: frozenset[str] = frozenset(("dynamodb",))
) -> None:
    """Raise unless the required fields were signed, with a known algorithm, for this service. Any region is valid."""
    if b"host" not in claim.signed:
        raise _invalid("'Host' must be a 'SignedHeader' in the AWS Authorization.")
    if claim.by_field and b"x-amz-date" not in claim.signed:
        raise _invalid("'X-Amz-Date' must be a 'SignedHeader' in the AWS Authorization.")
    if b"x-amz-target" in headers and b"x-amz-target" not in claim.signed:
        # It names the operation: unsigned, an attacker could replay the request as another operation.
        raise _invalid("'X-Amz-Target' must be a 'SignedHeader' in the AWS Authorization.")
    if claim.algorithm != ALGORITHM:
        raise _incomplete(f"Unsupported AWS 'algorithm': '{claim.algorithm}' (only {ALGORITHM} for now). ")
    parts = claim.credential.rstrip("/").split("/")
    if len(parts) != 5:
        raise _incomplete(
            "Credential must have exactly 5 slash-delimited elements, e.g. keyid/date/region/service/term, "
            f"got '{claim.credential}'"
        )
    _, date, region, service, terminator = parts
    if region and service in services and terminator == TERMINATOR and date == claim.stamp[:8]:
        return
    wrong = []
    if not region:
        wrong.append(f"Credential should be scoped to a valid region, not '{region}'. ")
    if service not in services:
        wrong.append(f"Credential should be scoped to correct service: '{min(services)}'. ")
    if terminator != TERMINATOR:
        wrong.append(f"Credential should be scoped with a valid terminator: '{TERMINATOR}', not '{terminator}'. ")
    if date != claim.stamp[:8]:
        wrong.append(
            "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: "
            f"'{date}' != '{claim.stamp[:8]}', from '{claim.stamp}'."
        )
    raise _invalid("".join(wrong))


def verify(
    claim: SignatureClaim,
    key: bytes,
    *,
    method: bytes,
    path: bytes,
    query: bytes,
    headers: Mapping[bytes, bytes],
    body: bytes,
) -> None:
    """Raise unless the request was signed with `key`, a derived key (`SigningKeys`), and has not changed since. For any
    thread: hashing a large body takes long."""
    fields = [(name, headers.get(name, b"")) for name in claim.signed]
    payload = hashlib.sha256(body).hexdigest().encode()
    pairs = _pairs(query) if claim.query is None else claim.query
    request = canonical_request(method, path, pairs, fields, payload)
    if hmac.compare_digest(_signed(claim, key, request), claim.signature):
        return
    twice = [(name, value.replace(b", ", b",")) for name, value in fields]
    if twice != fields:
        request = canonical_request(method, path, pairs, twice, payload)
        if hmac.compare_digest(_signed(claim, key, request), claim.signature):
            return
    raise _invalid(_MISMATCH)


def _signed(claim: SignatureClaim, key: bytes, request: bytes) -> bytes:
    return hmac.digest(key, string_to_sign(claim.stamp, claim.scope, request), "sha256").hex().encode()


def canonical_request(
    method: bytes, path: bytes, query: Pairs, fields: Iterable[tuple[bytes, bytes]], payload_hash: bytes
) -> bytes:
    """The bytes both sides agree on. `fields` are sorted; `path` is as it was sent, `query` decoded."""
    lines = [method, canonical_path(path), canonical_query(query)]
    names = []
    for name, value in fields:
        names.append(name)
        lines.append(b"%b:%b" % (name, folded(value) if b" " in value or b"\t" in value else value))
    lines += (b"", b";".join(names), payload_hash)
    return b"\n".join(lines)


def string_to_sign(stamp: str, scope: str, request: bytes) -> bytes:
    return f"{ALGORITHM}\n{stamp}\n{scope}\n{hashlib.sha256(request).hexdigest()}".encode("latin-1")


def signing_key(secret: str, scope: str) -> bytes:
    """The key that requests of one scope are signed with."""
    key = b"AWS4" + secret.encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode("latin-1"), "sha256")
    return key


class SigningKeys:
    """A cache of derived keys: their four HMACs cost more than the rest of a check."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, str], bytes] = {}

    def get(self, key_id: str, secret: str, scope: str) -> bytes:
        """The key of this id for this scope, which holds date, region and service."""
        key = self._keys.get((key_id, scope))
        if key is None:
            if len(self._keys) >= limits.SIGNING_KEYS_MAX:
                self._keys.clear()
            key = self._keys[key_id, scope] = signing_key(secret, scope)
        return key

    def clear(self) -> None:
        self._keys.clear()


# -- the canonical parts


def canonical_path(path: bytes) -> bytes:
    """A path without dot segments and doubled slashes, percent-encoded once more."""
    if path in (b"/", b""):
        return b"/"
    kept: list[bytes] = []
    for segment in path.split(b"/"):
        if segment == b"..":
            if kept:
                kept.pop()
        elif segment not in (b"", b"."):
            kept.append(segment)
    first = b"/" if path.startswith(b"/") else b""
    last = b"/" if path.endswith(b"/") and kept else b""
    return quote_from_bytes(first + b"/".join(kept) + last, safe="/~").encode()


def canonical_query(pairs: Pairs) -> bytes:
    """Decoded names and values, encoded the strict way and sorted."""
    if not pairs:
        return b""
    encoded = sorted((quote_from_bytes(name, safe="~"), quote_from_bytes(value, safe="~")) for name, value in pairs)
    return "&".join(f"{name}={value}" for name, value in encoded).encode()


def folded(value: bytes) -> bytes:
    """A field's value without surrounding blanks, and with runs of blanks folded into one."""
    value = value.strip(b" \t")
    return _BLANKS.sub(b" ", value) if b"  " in value or b"\t" in value else value


def _pairs(query: bytes) -> Pairs:
    pairs = []
    for part in query.split(b"&") if query else ():
        if part:
            name, _, value = part.replace(b"+", b" ").partition(b"=")
            pairs.append((unquote_to_bytes(name), unquote_to_bytes(value)))
    return pairs


# -- the two forms of a claim


def _header_claim(header: str, headers: Mapping[bytes, bytes], query: Pairs | None) -> SignatureClaim:
    if not header.lstrip().startswith("AWS4-"):
        raise missing_token()
    dated = headers.get(b"x-amz-date")
    stamp = dated or headers.get(b"date")
    # Only the signature differs from one request of a client to the next.
    head, _, signature = header.rpartition(_SIGNATURE)
    usual = _usual_head(head) if stamp and signature and "," not in signature and " " not in signature else None
    if usual is not None:
        algorithm, credential, signed = usual
    else:
        algorithm, credential, names, signature = _header_parts(header, stamp)
        signed = _names(names)
    at = _read_stamp((stamp or b"").decode("latin-1").strip())
    return SignatureClaim(
        algorithm, credential, signed, signature.encode("latin-1"), at, dated is not None, None, query
    )


@lru_cache(maxsize=256)
def _usual_head(head: str) -> tuple[str, str, tuple[bytes, ...]] | None:
    """Algorithm, credential and signed fields of a header whose parts are in the usual order; None: they are not."""
    usual = _USUAL_HEAD.fullmatch(head)
    if usual is None:
        return None
    algorithm, credential, names = usual.groups()
    return algorithm, credential, _names(names)


def _header_parts(header: str, stamp: bytes | None) -> tuple[str, str, str, str]:
    """Parse a header whose parts are in any order; the error names all missing parts."""
    algorithm, *rest = _SEPARATORS.split(header.strip())
    found: dict[str, str] = {}
    for pair in rest:
        name, equals, value = pair.partition("=")
        if pair and not equals:
            raise _incomplete(
                f"'{pair}' not a valid key=value pair (missing equal-sign) in Authorization header: '{header}'."
            )
        found[name] = value
    missing = "".join(
        f"Authorization header requires '{name}' parameter. "
        for name in ("Credential", "Signature", "SignedHeaders")
        if not found.get(name)
    )
    if not stamp:
        missing += "Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header. "
    if missing:
        raise _incomplete(f"{missing}Authorization={header}")
    return algorithm, found["Credential"], found["SignedHeaders"], found["Signature"]


@lru_cache(maxsize=256)
def _names(text: str) -> tuple[bytes, ...]:
    return tuple(sorted({name.encode("latin-1", "replace") for name in text.lower().split(";") if name}))


def _query_claim(pairs: Pairs) -> SignatureClaim:
    found = {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}
    missing = "".join(
        f"AWS query-string parameters must include '{name}'. " for name in _QUERY_FORM if not found.get(name)
    )
    if missing:
        raise _incomplete(f"{missing}Re-examine the query-string parameters.")
    expires = found.get("X-Amz-Expires")
    if expires is not None and not (_DIGITS.fullmatch(expires) and int(expires) <= limits.PRESIGNED_S_MAX):
        raise _incomplete(
            f"X-Amz-Expires must be a number of seconds from 0 to {limits.PRESIGNED_S_MAX}, not '{expires[:32]}'."
        )
    return SignatureClaim(
        found["X-Amz-Algorithm"],
        found["X-Amz-Credential"],
        _names(found["X-Amz-SignedHeaders"]),
        found["X-Amz-Signature"].encode("latin-1"),
        _read_stamp(found["X-Amz-Date"]),
        False,
        None if expires is None else int(expires),
        [(name, value) for name, value in pairs if name != b"X-Amz-Signature"],
    )


# -- time


@lru_cache(maxsize=256)
def _read_stamp(text: str) -> str:
    """The time in its signed form; a Date field may use the format of HTTP."""
    if _STAMP.fullmatch(text):
        try:
            _seconds(text)
        except ValueError:  # the 31st of February
            pass
        else:
            return text
    elif "," in text:
        try:
            return _stamp(int(parsedate_to_datetime(text).timestamp()))
        except (ValueError, OverflowError, TypeError, OSError):
            pass
    raise _incomplete(
        f"Date must be in ISO-8601 'basic format'. Got '{text}'. See http://en.wikipedia.org/wiki/ISO_8601"
    )


@lru_cache(maxsize=256)
def _seconds(stamp: str) -> int:
    found = _STAMP.fullmatch(stamp)
    assert found is not None, stamp
    year, month, day, hour, minute, second = (int(part) for part in found.groups())
    return int(datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp())


@lru_cache(maxsize=256)
def _stamp(at_s: int) -> str:
    return strftime("%Y%m%dT%H%M%SZ", gmtime(at_s))


# -- errors, in the service's words


def missing_token() -> Unauthenticated:
    return Unauthenticated("Request is missing Authentication Token", code=MISSING_TOKEN)


def unrecognized_client() -> Unauthenticated:
    """The access key does not exist or is disabled."""
    return Unauthenticated("The security token included in the request is invalid.", code=UNRECOGNIZED_CLIENT)


def _incomplete(message: str) -> Unauthenticated:
    return Unauthenticated(message, code=INCOMPLETE_SIGNATURE)


def _invalid(message: str) -> Unauthenticated:
    return Unauthenticated(message, code=INVALID_SIGNATURE)
