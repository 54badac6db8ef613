"""The DynamoDB handler: checks before an operation is reached, the format of errors, compression, checksums."""

from __future__ import annotations

import asyncio
import gc
import gzip
import re
import threading
import weakref
import zlib
from typing import Any

import msgspec
import pytest

from tailrace.access import EVERYTHING, Principal
from tailrace.config import Config
from tailrace.errors import (
    ConditionFailed,
    Corrupt,
    Error,
    Forbidden,
    InUse,
    Invalid,
    IteratorExpired,
    LimitExceeded,
    NotFound,
    TableNotFound,
    TokenMismatch,
    TooMany,
    TransactionCanceled,
    Trimmed,
    Unauthenticated,
    Unavailable,
    WrongToken,
)
from tailrace.http.dynamodb import errors
from tailrace.http.dynamodb import handler as handlers
from tailrace.http.dynamodb.compression import preferred
from tailrace.http.dynamodb.context import Context
from tailrace.http.dynamodb.handler import DynamoHandler
from tailrace.http.dynamodb.offload import OffloadPool
from tailrace.http.dynamodb.shape import Item, Operation, String, Structure
from tailrace.http.message import Answer, Request, Response
from tailrace.http.signature import Verify
from tailrace.http.submitted import settled
from tailrace.limits import BODY_BYTES_MAX

JSON_1_0 = b"application/x-amz-json-1.0"
SIGNED = b"AWS4-HMAC-SHA256 Credential=AKID/20260101/eu-west-3/dynamodb/aws4_request, SignedHeaders=host, Signature=0"
SHAPE = Structure("EchoInput", {"Say": String(), "Item": Item()})


async def echo(context: Context, request: dict[str, Any]) -> bytes | dict[str, Any]:
    say = request.get("Say", "")
    if say == "bytes":
        return b'{"as": "is"}'
    if say == "nothing":
        return b""
    if say == "wrong":
        raise Invalid("something else is wrong")
    if say == "bug":
        raise AssertionError("ours")
    if say == "deep":
        raise RecursionError
    if say == "table":
        raise TableNotFound("orders")
    return {"Said": say, "Who": context.principal.name, "Where": context.region}


async def where(context: Context, request: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"Main": threading.current_thread() is threading.main_thread(), "Waits": context.waits}


class Large:
    """What an operation has in memory."""


LARGE: weakref.WeakSet[Large] = weakref.WeakSet()


async def circle(context: Context, request: dict[str, Any]) -> dict[str, Any]:
    large = Large()
    LARGE.add(large)
    error = Invalid("wrong")  # the frame has the error, and the error the frame
    raise error


OPERATIONS = {
    "DynamoDB_20120810.Circle": Operation(SHAPE, circle),
    "DynamoDB_20120810.Where": Operation(SHAPE, where, offload=lambda request: request.get("Say") == "offload"),
    "DynamoDB_20120810.Echo": Operation(SHAPE, echo),
    "DynamoDB_20120810.Named": Operation(SHAPE, echo, names_table=True),
}


def authenticate(request: Request) -> tuple[Principal, Verify | None]:
    if request.headers.get(b"authorization") == b"no":
        raise Unauthenticated("Request is missing Authentication Token", code="MISSING_TOKEN")
    return Principal("someone", EVERYTHING), None


def handled(handler: DynamoHandler, request: Request) -> Response:
    async def call() -> Answer:
        return await settled(handler(request))

    answer = asyncio.run(call())
    assert isinstance(answer, Response)
    return answer


def send(
    body: bytes | dict[str, Any] = b"{}",
    *,
    method: bytes = b"POST",
    target: bytes | None = b"DynamoDB_20120810.Echo",
    headers: dict[bytes, bytes] | None = None,
) -> Response:
    handler = DynamoHandler(None, Config(dev=True), authenticate, OPERATIONS)  # type: ignore[arg-type]
    fields = {b"content-type": JSON_1_0, b"authorization": SIGNED}
    if target is not None:
        fields[b"x-amz-target"] = target
    fields |= headers or {}
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return handled(handler, Request(method, b"/", b"", fields, content))


def field(response: Response, name: bytes) -> bytes | None:
    return dict(response.headers).get(name)


def kind(response: Response) -> str:
    name: str = msgspec.json.decode(response.body)["__type"]
    return name


def test_an_answer() -> None:
    response = send({"Say": "hi"})
    assert response.status == 200
    assert msgspec.json.decode(response.body) == {"Said": "hi", "Who": "someone", "Where": "eu-west-3"}
    assert field(response, b"content-type") == JSON_1_0
    assert field(response, b"x-amz-crc32") == b"%d" % zlib.crc32(response.body)
    assert re.fullmatch(rb"[0-9A-Z]{52}", field(response, b"x-amzn-requestid") or b"")


def test_requests_have_their_own_ids() -> None:
    handler = DynamoHandler(None, Config(dev=True), authenticate, OPERATIONS)  # type: ignore[arg-type]
    answers = [handled(handler, Request(b"POST", b"/", b"", {}, b"")) for _ in range(2)]
    assert len({field(answer, b"x-amzn-requestid") for answer in answers}) == 2


def test_bytes_are_sent_as_they_are() -> None:
    assert send({"Say": "bytes"}).body == b'{"as": "is"}'
    empty = send({"Say": "nothing"})
    assert (empty.status, empty.body, field(empty, b"x-amz-crc32")) == (200, b"", b"0")


@pytest.mark.parametrize(
    ("authorization", "region"),
    [(b"", "us-east-1"), (b"AWS4 Credential=a/b", "us-east-1"), (b"AWS4 Credential=a/b/<x>/d", "us-east-1")],
)
def test_a_request_without_a_region_is_of_the_usual_one(authorization: bytes, region: str) -> None:
    assert msgspec.json.decode(send(headers={b"authorization": authorization}).body)["Where"] == region


# -- before an operation is reached


@pytest.mark.parametrize("method", [b"PUT", b"DELETE", b"OPTIONS"])
def test_other_methods_find_nothing(method: bytes) -> None:
    response = send(b"", method=method)
    assert (response.status, response.body) == (404, b"<UnknownOperationException/>\n")
    assert field(response, b"x-amz-crc32") == b"3552371480"


def test_get_tells_that_all_is_well() -> None:
    response = send(b"", method=b"GET", headers={b"host": b"dynamodb.us-east-1.amazonaws.com"})
    assert (response.status, response.body) == (200, b"healthy: dynamodb.us-east-1.amazonaws.com ")
    assert field(response, b"x-amz-crc32") == b"3128867991"
    assert b"<" not in send(b"", method=b"GET", headers={b"host": b"<script>"}).body


def test_preflight() -> None:
    requested = {
        b"origin": b"http://x",
        b"access-control-request-headers": b"a, b",
        b"access-control-request-method": b"POST",
    }
    response = send(b"", method=b"OPTIONS", headers=requested)
    assert (response.status, field(response, b"access-control-max-age")) == (200, b"172800")
    assert field(response, b"access-control-allow-headers") == b"a, b"
    assert field(response, b"access-control-allow-methods") == b"POST"


@pytest.mark.parametrize("content_type", [b"", b"whatever", b"application/jsonasdf", b"application/x-amz-json-1.1"])
def test_other_content_types_find_nothing(content_type: bytes) -> None:
    response = send(b"hi", headers={b"content-type": content_type})
    assert (response.status, response.body) == (404, b"<UnknownOperationException/>\n")


@pytest.mark.parametrize(
    ("given", "answered"),
    [
        (b"application/json", b"application/json"),
        (b"  application/json  ;  asdf", b"application/json"),
        (b"application/x-amz-json-1.0;blah", JSON_1_0),
    ],
)
def test_what_is_not_json(given: bytes, answered: bytes) -> None:
    response = send(b"hi", headers={b"content-type": given})
    assert (response.status, response.body) == (
        400,
        b'{"__type":"com.amazon.coral.service#SerializationException"}',
    )
    assert field(response, b"x-amz-crc32") == b"3948637019"
    assert field(response, b"content-type") == answered


def test_the_newer_json_is_taken_too() -> None:
    assert send({"Say": "x"}, headers={b"content-type": b"application/x-amz-json-1.1"}).status == 200


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000, b'{"Say": "\xff"}', b'{"Say": "\\ud800"}']
)
def test_malicious_json(body: bytes) -> None:
    assert kind(send(body)) == "com.amazon.coral.service#SerializationException"


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b'"x"', b"7"])
def test_a_body_that_is_no_object(body: bytes) -> None:
    assert kind(send(body)) == "com.amazon.coral.service#SerializationException"


@pytest.mark.parametrize("target", [None, b"whatever", b"DynamoDB_20120810.Ech", b"DynamoDBStreams_20120810.Echo"])
def test_unknown_targets(target: bytes | None) -> None:
    response = send(b"", target=target, headers={b"authorization": b"no"})
    assert response.body == b'{"__type":"com.amazon.coral.service#UnknownOperationException"}'
    assert (response.status, field(response, b"x-amz-crc32")) == (400, b"1368724161")


def test_unauthenticated_requests_are_refused() -> None:
    response = send(b"", headers={b"authorization": b"no"})
    assert msgspec.json.decode(response.body) == {
        "__type": "com.amazon.coral.service#MissingAuthenticationTokenException",
        "message": "Request is missing Authentication Token",
    }
    assert (response.status, field(response, b"x-amz-crc32")) == (400, b"2088342776")


# -- large and slow requests are offloaded


@pytest.mark.parametrize("headers", [{}, {b"content-encoding": b"gzip"}])
def test_strangers_are_refused_before_a_large_body_is_read(
    headers: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "inflated", None)
    monkeypatch.setattr(handlers, "parsed", None)
    body = b"no JSON" if headers else b"x" * (handlers.OFFLOAD_BYTES + 1)
    response = send(body, headers={b"authorization": b"no", **headers})
    assert kind(response) == f"{SERVICE}MissingAuthenticationTokenException"
    unknown = send(body, target=b"x", headers=headers)
    assert kind(unknown) == f"{SERVICE}UnknownOperationException"


def test_a_wrong_signature_of_a_large_body_is_found_in_a_thread() -> None:
    def verify() -> None:
        assert threading.current_thread() is not threading.main_thread()
        raise Unauthenticated("no", code="INVALID_SIGNATURE")

    handler = DynamoHandler(None, Config(dev=True), lambda _: (Principal("x", EVERYTHING), verify), OPERATIONS)  # type: ignore[arg-type]
    headers = {b"content-type": JSON_1_0, b"x-amz-target": b"DynamoDB_20120810.Echo"}
    response = handled(handler, Request(b"POST", b"/", b"", headers, b" " * (handlers.OFFLOAD_BYTES + 1)))
    assert (response.status, kind(response)) == (400, f"{SERVICE}InvalidSignatureException")


def test_where_requests_run() -> None:
    def where(body: bytes, target: bytes = b"DynamoDB_20120810.Where") -> tuple[bool, bool]:
        answer = msgspec.json.decode(send(body, target=target).body)
        return answer["Main"], answer["Waits"]

    assert where(b"{}") == (True, True)
    assert where(b"{}" + b" " * handlers.OFFLOAD_BYTES) == (False, False)
    assert where(b'{"Say": "offload"}') == (False, False)


def test_a_large_request_is_answered_as_a_small_one() -> None:
    blanks = b" " * handlers.OFFLOAD_BYTES
    for say in ("hi", "bytes", "nothing", "wrong", "bug", "deep", "table"):
        small = msgspec.json.encode({"Say": say})
        one, other = send(small), send(blanks + small)
        assert (one.status, one.body) == (other.status, other.body)
    for body in (b'{"Say": "wrong", "Item": {"a": {"S": 1}}}', b'{"Say": 1}', b"{", b"[]", b'"x"'):
        one, other = send(body), send(blanks + body)
        assert (one.status, one.body) == (other.status, other.body)


def test_too_many_at_once_are_asked_to_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "OffloadPool", lambda: OffloadPool(requests_max=0))
    response = send(b"{}" + b" " * handlers.OFFLOAD_BYTES)
    assert (response.status, kind(response)) == (503, "com.amazon.coral.availability#ServiceUnavailableException")


# -- errors


def test_a_wrong_type_goes_before_what_the_operation_finds() -> None:
    body = msgspec.json.decode(send({"Say": "wrong", "Item": {"a": {"S": 1}}}).body)
    assert body == {
        "__type": "com.amazon.coral.service#SerializationException",
        "Message": "NUMBER_VALUE cannot be converted to String",
    }
    assert kind(send({"Say": "wrong"})) == "com.amazon.coral.validate#ValidationException"


def test_internal_errors_are_reported_as_such(caplog: pytest.LogCaptureFixture) -> None:
    response = send({"Say": "bug"})
    assert (response.status, kind(response)) == (500, "com.amazonaws.dynamodb.v20120810#InternalServerError")
    assert "ours" in caplog.text
    assert "ours" not in response.body.decode()
    assert kind(send({"Say": "deep"})) == "com.amazon.coral.validate#ValidationException"


@pytest.mark.parametrize("blanks", [0, handlers.OFFLOAD_BYTES])
def test_the_memory_of_a_refused_request_is_released_at_once(blanks: int) -> None:
    LARGE.clear()
    gc.disable()
    try:
        response = send(b'{"Say": "x"}' + b" " * blanks, target=b"DynamoDB_20120810.Circle")
        assert kind(response) == "com.amazon.coral.validate#ValidationException"
        assert len(LARGE) == 0
    finally:
        gc.enable()


def test_tables_that_are_not_there() -> None:
    prefix = "Requested resource not found"
    assert msgspec.json.decode(send({"Say": "table"}).body)["message"] == prefix
    named = send({"Say": "table"}, target=b"DynamoDB_20120810.Named")
    assert msgspec.json.decode(named.body)["message"] == f"{prefix}: Table: orders not found"
    _, body = errors.response(TableNotFound("orders", "in the service's words"))
    assert body["message"] == "in the service's words"


TABLES = "com.amazonaws.dynamodb.v20120810#"
SERVICE = "com.amazon.coral.service#"


@pytest.mark.parametrize(
    ("error", "status", "name"),
    [
        (Invalid("x"), 400, "com.amazon.coral.validate#ValidationException"),
        (Invalid("x", code="SERIALIZATION"), 400, f"{SERVICE}SerializationException"),
        (NotFound("x"), 400, f"{TABLES}ResourceNotFoundException"),
        (InUse("x"), 400, f"{TABLES}ResourceInUseException"),
        (InUse("x", code="TableInUseException"), 400, f"{TABLES}TableInUseException"),
        (TokenMismatch("x"), 400, f"{TABLES}IdempotentParameterMismatchException"),
        (LimitExceeded("x"), 400, f"{TABLES}LimitExceededException"),
        (TooMany("x"), 400, "com.amazon.coral.availability#ThrottlingException"),
        (Trimmed(requested=1, earliest=2, offset="2"), 400, f"{TABLES}TrimmedDataAccessException"),
        (IteratorExpired("x"), 400, f"{TABLES}ExpiredIteratorException"),
        (Forbidden("x"), 400, f"{SERVICE}AccessDeniedException"),
        (WrongToken("x"), 400, f"{SERVICE}UnrecognizedClientException"),
        (Unauthenticated("x"), 400, f"{SERVICE}MissingAuthenticationTokenException"),
        (Unauthenticated("x", code="INVALID_SIGNATURE"), 400, f"{SERVICE}InvalidSignatureException"),
        (Unauthenticated("x", code="INCOMPLETE_SIGNATURE"), 400, f"{SERVICE}IncompleteSignatureException"),
        (Unavailable("x"), 503, "com.amazon.coral.availability#ServiceUnavailableException"),
        (Corrupt("x"), 500, f"{TABLES}InternalServerError"),
    ],
)
def test_errors(error: Error, status: int, name: str) -> None:
    answered, body = errors.response(error)
    assert (answered, body["__type"]) == (status, name)
    assert str(error) in (body.get("message"), body.get("Message"))


def test_a_failed_condition_may_tell_the_item() -> None:
    item = {"a": {"S": "x"}}
    assert errors.response(ConditionFailed())[1] == {
        "__type": f"{TABLES}ConditionalCheckFailedException",
        "message": "The conditional request failed",
    }
    assert errors.response(ConditionFailed(item))[1]["Item"] == item


def test_a_cancelled_transaction_tells_why() -> None:
    item = {"a": {"B": b"x"}}
    reasons: list[tuple[str, str | None, Any]] = [("None", None, None), ("ConditionalCheckFailed", "it failed", item)]
    _, body = errors.response(TransactionCanceled(reasons))
    assert body["__type"] == f"{TABLES}TransactionCanceledException"
    assert body["Message"] == (
        "Transaction cancelled, please refer cancellation reasons for specific reasons [None, ConditionalCheckFailed]"
    )
    assert body["CancellationReasons"] == [
        {"Code": "None"},
        {"Code": "ConditionalCheckFailed", "Message": "it failed", "Item": item},
    ]


# -- compression


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        (b"gzip", gzip.compress(b'{"Say": "hi"}', mtime=0)),
        (b"GZIP ", gzip.compress(b'{"Say": ', mtime=0) + gzip.compress(b'"hi"}', mtime=0)),
        (b"deflate", zlib.compress(b'{"Say": "hi"}')),
        (b"identity", b'{"Say": "hi"}'),
    ],
)
def test_compressed_requests(coding: bytes, body: bytes) -> None:
    response = send(body, headers={b"content-encoding": coding})
    assert response.status == 200
    assert b'"Said":"hi"' in response.body


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        (b"gzip", b""),
        (b"gzip", b"{}"),
        (b"gzip", gzip.compress(b"{}", mtime=0)[:-1]),
        (b"gzip", gzip.compress(b"{}", mtime=0) + b"junk"),
        (b"deflate", b""),
        (b"deflate", zlib.compress(b"{}") + b"junk"),
        (b"br", b"{}"),
    ],
)
def test_what_cannot_be_inflated(coding: bytes, body: bytes) -> None:
    assert send(body, headers={b"content-encoding": coding}).status == 500


def test_what_inflates_beyond_the_limit_is_refused() -> None:
    bomb = gzip.compress(b" " * (BODY_BYTES_MAX + 1))
    assert send(bomb, headers={b"content-encoding": b"gzip"}).status == 413
    halves = gzip.compress(b" " * (BODY_BYTES_MAX // 2 + 1)) * 2
    assert send(halves, headers={b"content-encoding": b"gzip"}).status == 413


@pytest.mark.parametrize("length", [5_000, 100_000])
@pytest.mark.parametrize(("coding", "inflate"), [(b"gzip", gzip.decompress), (b"deflate", zlib.decompress)])
def test_large_answers_are_compressed_for_who_asks(coding: bytes, inflate: Any, length: int) -> None:
    say = "x" * length
    plain = send({"Say": say})
    assert field(plain, b"content-encoding") is None
    response = send({"Say": say}, headers={b"accept-encoding": coding})
    assert field(response, b"content-encoding") == coding
    assert len(response.body) < 1_000
    assert inflate(response.body) == plain.body
    assert field(response, b"x-amz-crc32") == b"%d" % zlib.crc32(response.body)
    assert field(send({"Say": "x"}, headers={b"accept-encoding": coding}), b"content-encoding") is None
    assert field(send({"Say": say}, headers={b"accept-encoding": b"br"}), b"content-encoding") is None


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        ("", None),
        ("identity", None),
        ("x-gzip", None),
        ("gzip, deflate", "gzip"),
        ("br, identity, deflate, gzip", "deflate"),
        ("dog, GZIP ,, cat", "gzip"),
        ("gzip;q=0.2, deflate;q=0.5", "deflate"),
        ("br, gzip;q=0, deflate; q = 0.5 , identity;q=0", "deflate"),
        ("*", "gzip"),
        ("*, gzip;q=0.5", "deflate"),
        ("*;q=0", None),
        ("gzip ;q=0", None),
        ("deflate;q=0.5, gzip;q=31", "gzip"),
        ("deflate;q=-0.5, gzip;q=0.2", "gzip"),
        ("deflate;q=0.5,gzip;q=0.x", "gzip"),
        ("gzip;q=0.0001", "gzip"),
    ],
)
def test_which_coding_is_preferred(accepted: str, coding: str | None) -> None:
    assert preferred(accepted) == coding
