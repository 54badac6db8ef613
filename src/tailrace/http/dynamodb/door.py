"""The door for clients of DynamoDB: ``POST /`` whose target names an operation, JSON in and JSON out.

The order in which a request is looked at is the service's: method and content type, the JSON, the target, who signed
it, types, constraints, and then the operation itself. A large or compressed request is handled apart, in a thread;
there, who signed it comes first.
"""

from __future__ import annotations

import asyncio
import logging
import re
import zlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import count
from secrets import choice
from string import ascii_uppercase, digits
from typing import Any, Final

import msgspec

from tailrace.access import Principal
from tailrace.config import Config
from tailrace.database import Database
from tailrace.errors import Error, Forbidden, Invalid, TooLarge
from tailrace.http.dynamodb import errors
from tailrace.http.dynamodb.apart import Workers, stepped
from tailrace.http.dynamodb.arns import as_given
from tailrace.http.dynamodb.body import CannotInflate, inflated, parsed
from tailrace.http.dynamodb.context import Context
from tailrace.http.dynamodb.operations import OPERATIONS
from tailrace.http.dynamodb.shape import Operation
from tailrace.http.message import Headers, Request, Response
from tailrace.http.signature import Claimed, Verify
from tailrace.limits import KiB
from tailrace.tables.messages import NESTED_TOO_DEEP

logger = logging.getLogger(__name__)

APART_BYTES: Final = 64 * KiB  # requests with larger bodies are handled in a thread
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
    """Answers whatever a client of the service sends; `operations` by their targets.

    `authenticate` tells who asks, and gives what proves it where that means reading the body (`Signatures.claimed`)."""

    def __init__(
        self,
        db: Database,
        config: Config,
        authenticate: Callable[[Request], Claimed | Awaitable[Claimed]],
        operations: Mapping[str, Operation] = OPERATIONS,
    ) -> None:
        self._db = db
        self._config = config
        self._authenticate = authenticate
        self._operations = {target.encode(): operation for target, operation in operations.items()}
        self._workers = Workers()
        # 52 characters, as the service's: random for this server, then counted.
        self._id_prefix = "".join(choice(ascii_uppercase + digits) for _ in range(36)).encode()
        self._ids = count(1)

    def close(self) -> None:
        """End the threads; what is under way there is finished."""
        self._workers.close()

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
        if len(body) > APART_BYTES or headers.get(b"content-encoding", b"identity") != b"identity":
            return await self._answer_large(request, headers)
        try:
            data: Any = _decode(body) if body else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _malformed(headers)
        operation = self._operations.get(headers.get(b"x-amz-target", b""))
        if operation is None:
            return 400, _encode(errors.body("UnknownOperationException"))
        try:
            claimed = self._authenticate(request)
            principal, verify = claimed if isinstance(claimed, tuple) else await claimed
            if verify is not None:
                verify()
            if not body:
                return 400, _encode(errors.body("SerializationException"))
            asked = operation.shape.check(data)
            context = self._context(principal, headers, len(body))
            if operation.apart is not None and operation.apart(asked):
                return await self._workers.run(partial(self._run_apart, operation, context, data, body), len(body))
            result = await operation.run(context, asked)
            if asked is not data:
                result = as_given(data, result)
            return 200, result if type(result) is bytes else _encode(result)
        except Exception as error:
            return self._failed(error, operation, body)

    async def _answer_large(self, request: Request, headers: dict[bytes, bytes]) -> tuple[int, bytes | None]:
        """A request whose body may take long to read. First comes who sent it, and not, as for others, whether it can
        be read: nobody else is to make the server work."""
        operation = self._operations.get(headers.get(b"x-amz-target", b""))
        if operation is None:
            return 400, _encode(errors.body("UnknownOperationException"))
        try:
            claimed = self._authenticate(request)
            principal, verify = claimed if isinstance(claimed, tuple) else await claimed
            work = partial(self._read_apart, operation, principal, verify, request, headers)
            return await self._workers.run(work, len(request.body))
        except Exception as error:
            return self._failed(error, operation, b"")

    def _context(self, principal: Principal, headers: dict[bytes, bytes], size: int) -> Context:
        authorization, host = headers.get(b"authorization", b""), headers.get(b"host", b"")
        return Context(self._db, principal, authorization, host, self._workers, size)

    # -- in a thread

    def _read_apart(
        self,
        operation: Operation,
        principal: Principal,
        verify: Verify | None,
        request: Request,
        headers: dict[bytes, bytes],
    ) -> tuple[int, bytes | None]:
        body = request.body
        try:
            if verify is not None:
                verify()
            if b"content-encoding" in headers:
                body = inflated(body, headers[b"content-encoding"])
            if not body:
                return 400, _encode(errors.body("SerializationException"))
            data = parsed(body, operation.pieces)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _malformed(headers)
        except TooLarge:
            return 413, b""
        except CannotInflate:
            return 500, _encode(errors.body("InternalServerError", "Internal server error"))
        except Exception as error:
            return self._failed(error, operation, b"")
        return self._run_apart(operation, self._context(principal, headers, len(body)), data, body)

    def _run_apart(self, operation: Operation, context: Context, data: Any, body: bytes) -> tuple[int, bytes | None]:
        try:
            asked = operation.shape.check(data)
            result = stepped(operation.run(context.apart(), asked))
            if asked is not data:
                result = as_given(data, result)
            return 200, result if type(result) is bytes else _encode(result)
        except Exception as error:
            return self._failed(error, operation, body)

    @staticmethod
    def _failed(error: Exception, operation: Operation, body: bytes) -> tuple[int, bytes]:
        if isinstance(error, RecursionError):
            return 400, _encode(errors.body("ValidationException", NESTED_TOO_DEEP))
        if not isinstance(error, Error):
            logger.error("a request to %s failed", operation.shape.name, exc_info=error)
            return 500, _encode(errors.body("InternalServerError", "Internal server error"))
        # Its frames hold all that the request had read, often in a circle that would be left to the garbage collector:
        # that holds everybody up when it comes to it.
        error.__traceback__ = None
        if body and isinstance(error, Invalid) and error.code != "SERIALIZATION":
            # A value of the wrong type, wherever it is, goes before any other fault. Good requests are not searched
            # for one inside their items, so it may be found only here.
            try:
                operation.shape.read(parsed(body, operation.pieces))
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


def refused(error: Forbidden) -> Response:
    """The response to a request that is not looked at, because of where it comes from."""
    return Response(403, [(b"content-type", _JSON_1_0)], _encode(errors.answer(error)[1]))


def _malformed(headers: dict[bytes, bytes]) -> tuple[int, bytes | None]:
    if headers.get(b"content-type", b"").startswith(_CONTENT_TYPES[1]):
        return 404, None
    return 400, _encode(errors.body("SerializationException"))


# -- compression


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
