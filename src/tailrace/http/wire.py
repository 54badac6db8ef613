"""HTTP/1.1 as bytes: the checks of a request's head, and the encoding of a response's head.

Pure functions, no sockets and no clock. The parser (llhttp, strict) has already rejected bare line feeds, folded
lines, control characters and broken chunks; here is what it lets through and we do not. The rule: where two
readers could disagree about where a request ends, it is refused and the connection closes.
"""

from __future__ import annotations

import json
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

import httptools

from tailrace.http.message import Headers, Response

READS: Final = frozenset((b"GET", b"HEAD", b"OPTIONS", b"TRACE"))
# What waits like a read although it is a POST, and must not go on for a client that has left.
CLAIMS: Final = frozenset((b"/api/topics/consume", b"/v1/api/topics/consume"))
# What may take long although it is a POST: for a client that has left it is stopped, as a read is.
QUERIES: Final = frozenset((b"/v1/api/sql",))
# Fields of which a second one would make two readers disagree.
SINGLE: Final = frozenset((b"host", b"content-length", b"transfer-encoding"))

AWS_FIELD: Final = b"x-amz-target"  # what every request to the DynamoDB API has

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
CLOSE: Final = b"connection: close\r\n"
KEEP_ALIVE: Final = b"connection: keep-alive\r\n"  # only an HTTP/1.0 client needs it
CHUNKED_LENGTH: Final = -1

_VISIBLE: Final = bytes(range(0x21, 0x7F))
_TARGET_BYTES: Final = _VISIBLE.replace(b"#", b"")
_HOST_BYTES: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~%!$&'()*+;=:[]"


def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase.encode()
    except ValueError:
        phrase = b""
    return b"HTTP/1.1 %d %b\r\n" % (status, phrase)


STATUS_LINES: Final = tuple(_status_line(status) for status in range(600))


class Refusal(Exception):
    """A request the transport answers by itself; the connection closes after it."""

    def __init__(self, status: int, code: str, message: str, *, aws: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.aws = aws  # it is for an SDK of AWS, which looks for the error's type

    def response(self) -> Response:
        response = error_response(self.status, self.code, str(self))
        if self.aws:
            body = {"__type": "com.amazon.coral.service#SerializationException", "message": str(self)}
            response.body = json.dumps(body).encode()
        return response


def invalid(message: str) -> Refusal:
    return Refusal(400, "INVALID_REQUEST", message)


def too_large(bytes_max: int) -> Refusal:
    return Refusal(413, "TOO_LARGE", f"the body is larger than {bytes_max} bytes; split it into several requests")


def head_too_large(bytes_max: int, *, aws: bool = False) -> Refusal:
    """431; a client of the DynamoDB API gets the 400 of the service."""
    message = f"the head is larger than {bytes_max} bytes; send fewer or shorter fields"
    return Refusal(400 if aws else 431, "HEAD_TOO_LARGE", message, aws=aws)


def check_head(headers: dict[bytes, bytes], target: bytes, bytes_max: int, *, aws: bool = False) -> None:
    """Raise if the request line and the fields have more bytes than that."""
    fields_bytes = sum(len(name) + len(value) + 4 for name, value in headers.items())
    if fields_bytes + len(target) > bytes_max:
        raise head_too_large(bytes_max, aws=aws)


def extensions_too_large(bytes_max: int) -> Refusal:
    message = f"the chunks have more than {bytes_max} bytes of extensions; leave them out"
    return Refusal(431, "HEAD_TOO_LARGE", message)


def too_many_fields(fields_max: int) -> Refusal:
    return Refusal(431, "HEAD_TOO_LARGE", f"there are more than {fields_max} header fields; send fewer")


def timed_out(message: str) -> Refusal:
    return Refusal(408, "TIMEOUT", message)


def out_of_room(bytes_max: int) -> Refusal:
    message = f"the server holds {bytes_max} bytes of unfinished requests; send this one again in a moment"
    return Refusal(503, "UNAVAILABLE", message)


def error_response(status: int, code: str, message: str) -> Response:
    body = json.dumps({"error": {"code": code, "message": message}}).encode()
    headers: Headers = [(b"content-type", b"application/json")]
    if status == 503:
        headers.append((b"retry-after", b"1"))
    return Response(status, headers, body)


def unparsable(error: httptools.HttpParserError) -> Refusal:
    """The refusal for an error of the parser, in its words."""
    reason = str(error)
    # The parser gives no number for these two, only words; test_transport holds us to them.
    if reason == "Invalid HTTP version" or "PRI" in reason:
        return unsupported_version()
    return invalid(f"not an HTTP/1.1 request: {reason}; send it as RFC 9112 has it")


def unsupported_version() -> Refusal:
    return invalid("this HTTP version is not spoken here; use HTTP/1.1")


def check_method(method: bytes) -> None:
    if method == b"CONNECT":
        raise invalid("this is not a proxy; send the request itself instead of CONNECT")


def check_host(host: bytes | None, *, needed: bool) -> None:
    if host is None:
        if needed:
            raise invalid("the Host field is missing; HTTP/1.1 requires exactly one")
    elif host.translate(None, _HOST_BYTES):
        raise invalid(f"Host {host.decode('latin-1')!r} is not a host name; send name or name:port")


def split_target(method: bytes, target: bytes, headers: dict[bytes, bytes]) -> tuple[bytes, bytes]:
    """Path and query, both raw. An absolute target overrules the Host field, as RFC 9112 3.2.2 demands."""
    if target.translate(None, _TARGET_BYTES):
        raise invalid("the request target holds a fragment, control or non-ASCII bytes; percent-encode them")
    if target[:1] != b"/":
        target = _origin_form(method, target, headers)
    path, _, query = target.partition(b"?")
    return path, query


def _origin_form(method: bytes, target: bytes, headers: dict[bytes, bytes]) -> bytes:
    if target == b"*" and method == b"OPTIONS":
        return target
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        raise invalid("the request target is neither a path nor an http URL; send it as /path?query")
    end = min((at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0), default=len(rest))
    authority = rest[:end]
    if not authority:
        raise invalid("the request target names no host; send it as /path?query")
    check_host(authority, needed=True)
    headers[b"host"] = authority
    return rest[end:] if rest[end : end + 1] == b"/" else b"/" + rest[end:]


def body_length(headers: dict[bytes, bytes], *, http10: bool, bytes_max: int) -> int:
    """The declared length of a body, CHUNKED_LENGTH when it will only show, 0 when there is none."""
    length = headers.get(b"content-length")
    coding = headers.get(b"transfer-encoding")
    if coding is not None:
        if length is not None:
            raise invalid("Content-Length and Transfer-Encoding exclude each other; send one of them")
        if http10:
            raise invalid("HTTP/1.0 has no Transfer-Encoding; send Content-Length")
        if coding.lower() != b"chunked":
            raise invalid("the only Transfer-Encoding taken here is chunked; send that, or Content-Length")
        return CHUNKED_LENGTH
    return check_body_length(length, bytes_max)


def check_body_length(length: bytes | None, bytes_max: int) -> int:
    if length is None:
        return 0
    if not length.isdigit():
        raise invalid(f"Content-Length {length.decode('latin-1')!r} is not a number of bytes")
    # Twenty digits hold any 64-bit length, and int() of more would cost time.
    if len(length) > 20 or int(length) > bytes_max:
        raise too_large(bytes_max)
    return int(length)


def check_expectation(expect: bytes) -> None:
    if expect.lower() != b"100-continue":
        raise Refusal(417, "EXPECTATION_FAILED", "the only expectation met here is 100-continue; leave out Expect")


def encode_fields(headers: Headers) -> bytes:
    """Header fields as they go on the wire, for what is encoded once and sent often."""
    fields = b"".join([b"%b: %b\r\n" % field for field in headers])
    _check_lines(fields, len(headers))
    return fields


def encode_date(at_s: float) -> bytes:
    return b"date: %b\r\n" % formatdate(at_s, usegmt=True).encode()


def encode_head(response: Response, stamp: bytes, connection: bytes, *, head_only: bool) -> bytes:
    """The whole head of an answer; `stamp` is what all answers carry, `connection` a field or nothing."""
    status, headers, fields = response.status, response.headers, b""
    for field in headers:
        fields += b"%b: %b\r\n" % field
    _check_lines(fields, len(headers))
    if not has_body(status) or (head_only and not response.body):
        return b"%b%b%b%b\r\n" % (STATUS_LINES[status], fields, stamp, connection)
    length = len(response.body)
    if response.more:
        length += sum(map(len, response.more))
    return b"%b%b%b%bcontent-length: %d\r\n\r\n" % (STATUS_LINES[status], fields, stamp, connection, length)


def encode_live_head(status: int, headers: Headers, stamp: bytes, connection: bytes, *, chunked: bool) -> bytes:
    framing = b"transfer-encoding: chunked\r\n" if chunked else b""
    return b"%b%b%b%b%b\r\n" % (STATUS_LINES[status], encode_fields(headers), stamp, framing, connection)


def has_body(status: int) -> bool:
    return status != 204 and status != 304 and status >= 200


def _check_lines(fields: bytes, count: int) -> None:
    """Raise unless there are so many lines. A break within a value would let the author of the value forge a
    response."""
    if fields.count(b"\n") != count or fields.count(b"\r") != count:
        raise ValueError("a header field holds a line break")
