"""The door for clients of DynamoDB: ``POST /`` whose target names an operation, JSON in and JSON out.

The order in which a request is looked at is the service's: method and content type, the JSON, the target, who signed
it, types, constraints, and then the operation itself.
"""

from __future__ import annotations

import asyncio
import logging
import re
import zlib
from collections.abc import Callable, Mapping
from itertools import count
from secrets import choice
from string import ascii_uppercase, digits
from typing import Any, Final

import msgspec

from tailrace.access import Principal
from tailrace.config import Config
from tailrace.database import Database
from tailrace.errors import Error, Invalid, TooLarge
from tailrace.http.dynamodb import errors
from tailrace.http.dynamodb.operations import OPERATIONS
from tailrace.http.dynamodb.shape import Context, Operation
from tailrace.http.message import Headers, Request, Response
from tailrace.limits import BODY_BYTES_MAX, KiB
from tailrace.tables.messages import NESTED_TOO_DEEP

logger = logging.getLogger(__name__)

COMPRESS_BYTES_MIN: Final = 4 * KiB  # answers up to this are never compressed, as in the service
COMPRESS_APART_BYTES: Final = 64 * KiB  # from here on compressing takes long enough to hold up the event loop
_JSON_1_0: Final = b"application/x-amz-json-1.0"
_JSON: Final = b"application/json"
_CONTENT_TYPES: Final = (_JSON_1_0, b"application/x-amz-json-1.1", _JSON)
_UNKNOWN: Final = b"<UnknownOperationException/>\n"
_host: Final = re.compile(rb"[A-Za-z0-9.:\[\]-]+").fullmatch
_quality: Final = re.compile(r"q=\s*([0-9.-]+)\s*(?:;|$)").search

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


class DynamoDoor:
    """Answers whatever a client of the service sends; `operations` by their targets."""

    def __init__(
        self,
        db: Database,
        config: Config,
        authenticate: Callable[[Request], Principal],
        operations: Mapping[str, Operation] = OPERATIONS,
    ) -> None:
        self._db = db
        self._config = config
        self._authenticate = authenticate
        self._operations = {target.encode(): operation for target, operation in operations.items()}
        # 52 characters, as the service's: random for this server, then counted.
        self._id_prefix = "".join(choice(ascii_uppercase + digits) for _ in range(36)).encode()
        self._ids = count(1)

    async def __call__(self, request: Request) -> Response:
        method = request.method
        if method != b"POST":
            return self._other_method(request, method)
        headers = request.headers
        content_type = headers.get(b"content-type", b"")
        if content_type != _JSON_1_0:
            content_type = content_type.partition(b";")[0].strip()
            if request.body and content_type not in _CONTENT_TYPES:
                return self._response(404, _UNKNOWN, None)
        status, body = await self._answer(request, headers)
        if body is None:
            return self._response(404, _UNKNOWN, None)
        if len(body) > COMPRESS_BYTES_MIN and b"accept-encoding" in headers:
            return await self._compressed(status, body, content_type, headers[b"accept-encoding"])
        return self._response(status, body, content_type)

    def _other_method(self, request: Request, method: bytes) -> Response:
        if method == b"GET":
            host = request.headers.get(b"host", b"")
            return self._response(200, b"healthy: %b " % (host if _host(host) else b"yes"), None)
        if method == b"OPTIONS" and b"origin" in request.headers:
            allowed: Headers = [(b"access-control-max-age", b"172800"), (b"x-amzn-requestid", self._id())]
            for asked, given in (
                (b"access-control-request-headers", b"access-control-allow-headers"),
                (b"access-control-request-method", b"access-control-allow-methods"),
            ):
                if asked in request.headers:
                    allowed.append((given, request.headers[asked]))
            return Response(200, allowed)
        return self._response(404, _UNKNOWN, None)

    # -- one request

    async def _answer(self, request: Request, headers: dict[bytes, bytes]) -> tuple[int, bytes | None]:
        """Status and body; no body: as if there were nothing here."""
        body = request.body
        operation: Operation | None = None
        try:
            if b"content-encoding" in headers:
                body = _inflated(body, headers[b"content-encoding"])
            data: Any = _decode(body) if body else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if headers.get(b"content-type", b"").startswith(_CONTENT_TYPES[1]):
                return 404, None
            return 400, _encode(errors.body("SerializationException"))
        except TooLarge:
            return 413, b""
        except _CannotInflate:
            return 500, _encode(errors.body("InternalServerError", "Internal server error"))
        try:
            operation = self._operations.get(headers.get(b"x-amz-target", b""))
            if operation is None:
                return 400, _encode(errors.body("UnknownOperationException"))
            principal = self._authenticate(request)
            if not body:
                return 400, _encode(errors.body("SerializationException"))
            data = operation.shape.check(data)
            context = Context(self._db, principal, headers.get(b"authorization", b""), headers.get(b"host", b""))
            result = await operation.run(context, data)
            return 200, result if type(result) is bytes else _encode(result)
        except Error as error:
            return self._failed(error, operation, body)
        except RecursionError:
            return 400, _encode(errors.body("ValidationException", NESTED_TOO_DEEP))
        except Exception:
            logger.exception("a request to %s failed", headers.get(b"x-amz-target", b"").decode("latin-1"))
            return 500, _encode(errors.body("InternalServerError", "Internal server error"))

    def _failed(self, error: Error, operation: Operation | None, body: bytes) -> tuple[int, bytes]:
        if operation is None:
            status, shown = errors.answer(error)
            return status, _encode(shown)
        if isinstance(error, Invalid) and error.code != "SERIALIZATION":
            # A value of the wrong type, wherever it is, goes before any other fault. Good requests are not searched
            # for one inside their items, so it may be found only here.
            try:
                operation.shape.read(_decode(body))
            except Invalid as earlier:
                error = earlier
        status, shown = errors.answer(error, table_told=operation.table_told)
        return status, _encode(shown)

    # -- answers

    def _id(self) -> bytes:
        return b"%b%016X" % (self._id_prefix, next(self._ids))

    def _response(self, status: int, body: bytes, content_type: bytes | None) -> Response:
        headers: Headers = [
            (b"x-amzn-requestid", self._id()),
            (b"x-amz-crc32", b"%d" % zlib.crc32(body)),
        ]
        if content_type is not None:
            headers.append((b"content-type", _JSON_1_0 if content_type == _JSON_1_0 else _JSON))
        return Response(status, headers, body)

    async def _compressed(self, status: int, body: bytes, content_type: bytes, accepted: bytes) -> Response:
        coding = preferred(accepted.decode("latin-1"))
        if coding is not None:
            if len(body) < COMPRESS_APART_BYTES:
                body = _deflated(body, coding)
            else:
                body = await asyncio.to_thread(_deflated, body, coding)
        # The checksum is of the bytes as they are sent: that is what SDKs verify.
        response = self._response(status, body, content_type)
        if coding is not None:
            response.headers.append((b"content-encoding", coding.encode()))
        return response


# -- compression


class _CannotInflate(Exception):
    """The body is not what its content-encoding says."""


def _inflated(body: bytes, coding: bytes) -> bytes:
    """A request's body as it was before it was compressed, within the limit of bodies."""
    name = coding.strip().lower()
    if name == b"identity":
        return body
    if name not in (b"gzip", b"deflate"):
        raise _CannotInflate
    parts: list[bytes] = []
    room = BODY_BYTES_MAX
    first = True
    while body or first:  # gzip may have several members, one after the other
        inflating = zlib.decompressobj(31 if name == b"gzip" else 15)
        try:
            part = inflating.decompress(body, room + 1)
        except zlib.error as error:
            raise _CannotInflate from error
        room -= len(part)
        if room < 0:
            raise TooLarge("the request is too large once inflated; send less at a time")
        if not inflating.eof:
            raise _CannotInflate
        parts.append(part)
        body = inflating.unused_data
        if body and name == b"deflate":
            raise _CannotInflate
        first = False
    return b"".join(parts)


def _deflated(body: bytes, coding: str) -> bytes:
    deflating = zlib.compressobj(6, zlib.DEFLATED, 31 if coding == "gzip" else 15)
    return deflating.compress(body) + deflating.flush()


def preferred(accepted: str) -> str | None:
    """Which of gzip and deflate an Accept-Encoding prefers; of two it likes as well, the one it names first."""
    named: dict[str, float] = {}
    rest = 0.0
    for entry in accepted.lower().split(","):
        coding, _, parameters = entry.partition(";")
        coding = coding.strip()
        quality = _read_quality(parameters)
        if coding == "*":
            rest = max(rest, quality)
        elif coding in ("gzip", "deflate"):
            named[coding] = max(named.get(coding, 0.0), quality)
    for coding in ("gzip", "deflate"):
        named.setdefault(coding, rest)
    best = max(named, key=named.__getitem__)
    return best if named[best] > 0 else None


def _read_quality(parameters: str) -> float:
    found = _quality(parameters)
    if found is None:
        return 1.0
    try:
        return min(float(found[1]), 1.0)
    except ValueError:
        return 1.0
