"""Signature Version 4, against the signer of the AWS SDK for Python: what it signs is accepted, all else refused."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any
from unittest import mock
from urllib.parse import quote, urlsplit

import pytest
from botocore import auth as botocore_auth
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from tailrace import limits
from tailrace.auth import signature
from tailrace.auth.signature import SigningKeys, check_scope, check_time, read_claim, verify
from tailrace.errors import Unauthenticated

KEY_ID, SECRET = "TRK00000000000000000", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
NOW_MS = int(NOW.timestamp() * 1000)
FORM = "AWS4-HMAC-SHA256 Credential={0}, SignedHeaders={1}, Signature={2}"


class Sent:
    """A request as it reaches a server."""

    def __init__(self, request: AWSRequest) -> None:
        parts = urlsplit(request.url)
        self.method = request.method.encode()
        self.path = parts.path.encode()
        self.query = parts.query.encode()
        self.headers = {name.lower().encode(): value.strip().encode("utf-8") if isinstance(value, str) else value
                        for name, value in request.headers.items()}  # fmt: skip
        self.headers.setdefault(b"host", parts.netloc.encode())
        self.body = request.data or b""

    def check(self, secret: str = SECRET, now_ms: int = NOW_MS) -> None:
        claim = read_claim(self.headers, self.query)
        check_time(claim, now_ms)
        check_scope(claim, self.headers)
        assert claim.key_id == KEY_ID
        key = SigningKeys().get(claim.key_id, secret, claim.scope)
        verify(
            claim, key, method=self.method, path=self.path, query=self.query, headers=self.headers, body=self.body
        )  # fmt: skip


def signed(
    method: str = "POST",
    url: str = "http://localhost:4437/",
    body: bytes = b"{}",
    headers: dict[str, str] | None = None,
    *,
    region: str = "us-east-1",
    signer: Callable[..., Any] = SigV4Auth,
    **options: Any,
) -> Sent:
    fields = {"X-Amz-Target": "DynamoDB_20120810.ListTables"} if headers is None else headers
    request = AWSRequest(method=method, url=url, data=body, headers=fields)
    with mock.patch.object(botocore_auth, "get_current_datetime", return_value=NOW):
        signer(Credentials(KEY_ID, SECRET), "dynamodb", region, **options).add_auth(request)
    return Sent(request)


def refusal(sent: Sent, **options: Any) -> tuple[str, str]:
    with pytest.raises(Unauthenticated) as caught:
        sent.check(**options)
    return caught.value.code, str(caught.value)


MISMATCH = (
    "INVALID_SIGNATURE",
    "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access Key "
    "and signing method. Consult the service documentation for details.",
)


# -- what is signed is accepted


def test_a_signed_request() -> None:
    signed().check()
    signed(region="eu-central-1").check()
    signed(body=b"").check()


VISIBLE = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)
WORDS = st.lists(VISIBLE, max_size=4)


@given(
    method=st.sampled_from(["GET", "POST", "PUT"]),
    segments=st.lists(st.one_of(st.sampled_from([".", "..", ""]), st.text(max_size=5)), max_size=4),
    query=st.lists(st.tuples(st.text(min_size=1, max_size=5), st.text(max_size=5)), max_size=4),
    headers=st.dictionaries(st.from_regex("X-[A-Z][a-z]{1,8}", fullmatch=True), st.tuples(WORDS, WORDS), max_size=4),
    body=st.binary(max_size=100),
    region=st.from_regex("[a-z]{2}-[a-z]{4,9}-[1-9]", fullmatch=True),
    blanks=st.sampled_from([" ", "  ", "\t", "   \t "]),
)
def test_whatever_is_signed(
    method: str, segments: list[str], query: list[tuple[str, str]], headers: dict[str, tuple[list[str], list[str]]],
    body: bytes, region: str, blanks: str,
) -> None:  # fmt: skip
    path = "/" + "/".join(quote(segment, safe="") for segment in segments)
    query_string = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query)
    fields = {name: blanks.join(before + after) for name, (before, after) in headers.items()}
    sent = signed(method, f"http://example.com{path}?{query_string}", body, fields, region=region)
    sent.check()
    assert refusal(sent, secret=SECRET + "x") == MISMATCH
    sent.body += b" "
    assert refusal(sent) == MISMATCH


def test_a_query_may_be_encoded_in_other_ways_than_it_was_signed() -> None:
    sent = signed(url="http://localhost/?b=%20x&a=~%2F")
    sent.query = b"a=%7e/&b=+x"
    sent.check()


def test_a_presigned_url() -> None:
    sent = signed("GET", "http://localhost/?Action=a%20b", b"", signer=SigV4QueryAuth, expires=3600)
    assert b"authorization" not in sent.headers
    sent.check()
    sent.check(now_ms=NOW_MS + 3600_000)
    code, message = refusal(sent, now_ms=NOW_MS + 3601_000)
    assert code == "INVALID_SIGNATURE"
    assert message == (
        "Signature expired: 20260102T030405Z is now earlier than 20260102T030406Z (20260102T040406Z - 60 min.)"
    )
    sent.query = sent.query.replace(b"a%20b", b"a%20c")
    assert refusal(sent) == MISMATCH


@pytest.mark.parametrize("life", ["-1", "x", "", "604801", "9" * 40, "٣", "000000000999999999", "0" * 5000])
def test_the_life_of_a_presigned_url_is_bounded(life: str) -> None:
    sent = signed("GET", "http://localhost/", b"", signer=SigV4QueryAuth)
    sent.query = sent.query.replace(b"X-Amz-Expires=3600", b"X-Amz-Expires=" + quote(life).encode())
    assert refusal(sent)[0] == "INCOMPLETE_SIGNATURE"


def test_fields_may_be_sent_with_other_blanks_in_another_order() -> None:
    sent = signed(headers={"Meerkat": "Hello world"})
    sent.headers = dict(reversed([*sent.headers.items()]))
    sent.headers[b"meerkat"] = b" \t Hello \t  world  "
    sent.check()


def test_a_field_that_was_sent_twice() -> None:
    sent = signed(headers={"Meerkat": "a,b"})
    sent.headers[b"meerkat"] = b"a, b"  # as transports join them
    sent.check()
    sent = signed(headers={"Meerkat": "a, b"})
    sent.check()
    sent.headers[b"meerkat"] = b"b, a"
    assert refusal(sent) == MISMATCH


def test_the_parts_of_the_header_in_any_order_and_with_other_separators() -> None:
    sent = signed()
    algorithm, *parts = sent.headers[b"authorization"].split()
    bare = [part.strip(b",") for part in parts]
    for joined in (b"".join(parts), b"  ".join(bare), b", ".join(reversed(bare)), b" ,".join(bare)):
        sent.headers[b"authorization"] = algorithm + b" " + joined
        sent.check()


def test_a_date_field_will_do() -> None:
    sent = signed(headers={"Date": "Fri, 02 Jan 2026 03:04:05 GMT"})
    sent.check()


# -- what is not, is refused


@pytest.mark.parametrize("changed", ["method", "path", "query", "body", "target", "host", "secret", "signature"])
def test_whatever_is_changed_afterwards_is_noticed(changed: str) -> None:
    sent = signed()
    secret = SECRET
    match changed:
        case "method":
            sent.method = b"PUT"
        case "path":
            sent.path = b"/x"
        case "query":
            sent.query = b"x=y"
        case "body":
            sent.body = b"{ }"
        case "target":
            sent.headers[b"x-amz-target"] = b"DynamoDB_20120810.DeleteTable"
        case "host":
            sent.headers[b"host"] = b"elsewhere"
        case "secret":
            secret = "x" * 40
        case "signature":
            found = sent.headers[b"authorization"]
            sent.headers[b"authorization"] = found[:-1] + (b"0" if found[-1:] != b"0" else b"1")
    assert refusal(sent, secret=secret) == MISMATCH


def test_a_target_that_is_not_signed_is_refused() -> None:
    for signer in (SigV4Auth, SigV4QueryAuth):
        sent = signed(headers={}, signer=signer)
        sent.check()
        sent.headers[b"x-amz-target"] = b"DynamoDB_20120810.DeleteTable"
        assert refusal(sent) == (
            "INVALID_SIGNATURE",
            "'X-Amz-Target' must be a 'SignedHeader' in the AWS Authorization.",
        )


def test_an_unsigned_payload_is_refused() -> None:
    class Unsigned(SigV4Auth):  # type: ignore[misc]
        def payload(self, request: AWSRequest) -> str:
            return "UNSIGNED-PAYLOAD"

    sent = signed(headers={"X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"}, signer=Unsigned)
    assert refusal(sent) == MISMATCH


def test_clocks_may_differ_by_a_quarter_of_an_hour() -> None:
    sent = signed()
    for minutes in (-15, 15):
        sent.check(now_ms=NOW_MS + minutes * 60_000)
    assert refusal(sent, now_ms=NOW_MS + 901_000) == (
        "INVALID_SIGNATURE",
        "Signature expired: 20260102T030405Z is now earlier than 20260102T030406Z (20260102T031906Z - 15 min.)",
    )
    assert refusal(sent, now_ms=NOW_MS - 901_000) == (
        "INVALID_SIGNATURE",
        "Signature not yet current: 20260102T030405Z is still later than 20260102T030404Z (20260102T024904Z + 15 min.)",
    )


def claimed(authorization: str | None, query: str = "", **fields: str) -> tuple[str, str]:
    """The error for an unsigned request with this header."""
    headers = {name.replace("_", "-").encode(): value.encode("latin-1") for name, value in fields.items()}
    if authorization is not None:
        headers[b"authorization"] = authorization.encode("latin-1")
    with pytest.raises(Unauthenticated) as caught:
        claim = read_claim(headers, query.encode())
        check_time(claim, NOW_MS)
        check_scope(claim, headers)
    return caught.value.code, str(caught.value)


@pytest.mark.parametrize(
    ("authorization", "query"),
    [
        (None, ""),
        ("AWS4", ""),
        ("X", "X-Amz-Algorith"),
        ("Basic abc", ""),
        ("", ""),
        (None, "X-Amz-Credential=a&X-Amz-Signature=b&X-Amz-SignedHeaders=c&X-Amz-Date=d"),
    ],
)
def test_no_credentials(authorization: str | None, query: str) -> None:
    assert claimed(authorization, query) == ("MISSING_TOKEN", "Request is missing Authentication Token")


def test_credentials_twice() -> None:
    assert claimed("X", "X-Amz-Algorithm") == (
        "INVALID_SIGNATURE",
        "Found both 'X-Amz-Algorithm' as a query-string param and 'Authorization' as HTTP header.",
    )


def test_parts_of_the_header_are_missing() -> None:
    assert claimed("AWS4-") == (
        "INCOMPLETE_SIGNATURE",
        "Authorization header requires 'Credential' parameter. Authorization header requires 'Signature' parameter. "
        "Authorization header requires 'SignedHeaders' parameter. Authorization header requires existence of either "
        "a 'X-Amz-Date' or a 'Date' header. Authorization=AWS4-",
    )
    for header in ("AWS4- Signature=b Credential=a", "AWS4- Signature=b,Credential=a"):
        assert claimed(header, date="a") == (
            "INCOMPLETE_SIGNATURE",
            f"Authorization header requires 'SignedHeaders' parameter. Authorization={header}",
        )
    header = "AWS4-HMAC-SHA256 Signature=b,    Credential,    SignedHeaders"
    assert claimed(header, date="a") == (
        "INCOMPLETE_SIGNATURE",
        f"'Credential' not a valid key=value pair (missing equal-sign) in Authorization header: '{header}'.",
    )


def test_parts_of_the_query_are_missing() -> None:
    assert claimed(None, "X-Amz-Algorithm=a&X-Amz-Credential=b&X-Amz-Signature=c&X-Amz-Date=d") == (
        "INCOMPLETE_SIGNATURE",
        "AWS query-string parameters must include 'X-Amz-SignedHeaders'. Re-examine the query-string parameters.",
    )
    assert claimed(None, "X-Amz-Algorithm")[1].count("must include") == 5


ARABIC = "٢٠٢٦0102T030405Z".encode().decode("latin-1")


@pytest.mark.parametrize("stamp", ["201", "20260102", "20260231T000000Z", "20260102T250000Z", "x, y", ARABIC])
def test_no_time(stamp: str) -> None:
    code, message = claimed(FORM.format("a/b/c/d/e", "host", "0"), x_amz_date=stamp)
    assert code == "INCOMPLETE_SIGNATURE"
    assert message.startswith(f"Date must be in ISO-8601 'basic format'. Got '{stamp}'.")


def test_what_must_be_signed_and_for_whom() -> None:
    at = "20260102T030405Z"
    scope = "k/20260102/us-east-1/dynamodb/aws4_request"
    assert claimed(FORM.format(scope, "x-amz-date", "0"), x_amz_date=at) == (
        "INVALID_SIGNATURE",
        "'Host' must be a 'SignedHeader' in the AWS Authorization.",
    )
    assert "'X-Amz-Date'" in claimed(FORM.format(scope, "Host", "0"), x_amz_date=at)[1]
    both = "x-amz-date;host"
    assert claimed(FORM.replace("256", "25").format(scope, both, "0"), x_amz_date=at) == (
        "INCOMPLETE_SIGNATURE",
        "Unsupported AWS 'algorithm': 'AWS4-HMAC-SHA25' (only AWS4-HMAC-SHA256 for now). ",
    )
    assert claimed(FORM.format("a/b/c/d", both, "0"), x_amz_date=at) == (
        "INCOMPLETE_SIGNATURE",
        "Credential must have exactly 5 slash-delimited elements, e.g. keyid/date/region/service/term, got 'a/b/c/d'",
    )
    assert claimed(FORM.format("a/b/c/d/e", both, "0"), x_amz_date=at) == (
        "INVALID_SIGNATURE",
        "Credential should be scoped to correct service: 'dynamodb'. Credential should be scoped with a valid "
        "terminator: 'aws4_request', not 'e'. Date in Credential scope does not match YYYYMMDD from ISO-8601 version "
        "of date from HTTP: 'b' != '20260102', from '20260102T030405Z'.",
    )


@given(st.text(st.characters(max_codepoint=255), max_size=60), st.binary(max_size=60), st.text(max_size=20))
def test_nothing_sent_is_more_than_refused(authorization: str, query: bytes, date: str) -> None:
    for header in (authorization, "AWS4-" + authorization, FORM.format(authorization, "host", "0")):
        for query_string in (query, b"X-Amz-Algorithm=a&" + query):
            headers = {b"authorization": header.encode("latin-1"), b"x-amz-date": date.encode()}
            with pytest.raises(Unauthenticated):
                claim = read_claim(headers, query_string)
                check_time(claim, NOW_MS)
                check_scope(claim, headers)
                verify(claim, b"key", method=b"POST", path=query, query=query_string, headers=headers, body=b"")


# -- what is remembered


def test_derived_keys_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SIGNING_KEYS_MAX", 2)
    derive = mock.Mock(wraps=signature.signing_key)
    monkeypatch.setattr(signature, "signing_key", derive)
    keys = SigningKeys()
    first = keys.get("a", SECRET, "1/2/3/4")
    assert keys.get("a", SECRET, "1/2/3/4") is first
    assert derive.call_count == 1
    assert len({keys.get("a", SECRET, f"{number}/2/3/4") for number in range(5)}) == 5
    keys.clear()
    assert keys.get("a", SECRET, "1/2/3/4") == first
