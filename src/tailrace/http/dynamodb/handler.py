"""The handler of the DynamoDB API: ``POST /`` whose target names an operation, with JSON requests and responses.

A request is checked in the service's order: method and content type, the JSON, the target, the signature, types,
constraints, and then the operation itself. A large or compressed request is offloaded to a thread; its signature is
checked first.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from itertools import count
from secrets import choice
from string import ascii_uppercase, digits
from typing import Any, Final

import msgspec

from tailrace.access import Principal
from tailrace.checksum import crc32
from tailrace.config import Config
from tailrace.database import Database
from tailrace.errors import Error, Forbidden, Invalid, TooLarge
from tailrace.http.dynamodb import errors
from tailrace.http.dynamodb.arns import with_given_arns
from tailrace.http.dynamodb.body import parsed
from tailrace.http.dynamodb.compression import CannotInflate, deflated, inflated, preferred
from tailrace.http.dynamodb.context import Commanded, Context
from tailrace.http.dynamodb.offload import OffloadPool, run_sync
from tailrace.http.dynamodb.operations import OPERATIONS
from tailrace.http.dynamodb.shape import Body, Operation
from tailrace.http.message import Headers, Request, Response
from tailrace.http.signature import Claimed, Verify
from tailrace.http.submitted import Submitted
from tailrace.limits import KiB
from tailrace.tables.messages import NESTED_TOO_DEEP, detected

logger = logging.getLogger(__name__)

OFFLOAD_BYTES: Final = 64 * KiB  # requests with larger bodies are handled in a thread
COMPRESS_BYTES_MIN: Final = 4 * KiB  # smaller responses are never compressed, as in the service
COMPRESS_OFFLOAD_BYTES: Final = 64 * KiB  # larger responses are compressed in a thread, to not block the event loop
_JSON_1_0: Final = b"application/x-amz-json-1.0"
_JSON: Final = b"application/json"
_CONTENT_TYPES: Final = (_JSON_1_0, b"application/x-amz-json-1.1", _JSON)
_UNKNOWN: Final = b"<UnknownOperationException/>\n"
_host: Final = re.compile(rb"[A-Za-z0-9.:\[\]-]+").fullmatch

# Status and body; without a body the response is a 404, as for an unknown path.
Outcome = tuple[int, bytes | None]

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


class DynamoHandler:
    """Handles the requests of DynamoDB clients; `operations` by their targets.

    `authenticate` returns the principal, and a function that verifies the signature if that requires reading the body
    (`Signatures.claimed`)."""

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
        self._workers = OffloadPool()
        # Request ids have 52 characters, as in the service: a random prefix of this server, and a counter.
        self._id_prefix = "".join(choice(ascii_uppercase + digits) for _ in range(36)).encode()
        self._ids = count(1)

    def close(self) -> None:
        """Stop the threads after their current requests."""
        self._workers.close()

    def __call__(self, request: Request) -> Response | Submitted | Coroutine[Any, Any, Response]:
        """The response; a submitted command or a coroutine if the request has to wait."""
        method = request.method
        if method != b"POST":
            return self._other_method(request, method)
        sent = request.headers.get(b"content-type")
        if sent != _JSON_1_0 and request.body and _content_type(request) not in _CONTENT_TYPES:
            return self._response(404, _UNKNOWN, None)
        outcome = self._respond(request)
        if isinstance(outcome, OperationSubmitted):
            return outcome
        return self.answer(request, outcome) if type(outcome) is tuple else self._awaited(request, outcome)

    async def _awaited(self, request: Request, outcome: Any) -> Response:
        answer = self.answer(request, await outcome)
        return answer if isinstance(answer, Response) else await answer

    def _other_method(self, request: Request, method: bytes) -> Response:
        if method == b"GET":
            host = request.headers.get(b"host", b"")
            return self._response(200, b"healthy: %b " % (host if _host(host) else b"yes"), None)
        if method == b"OPTIONS" and b"origin" in request.headers:
            allowed: Headers = [(b"access-control-max-age", b"172800"), (b"x-amzn-requestid", self._id())]
            for requested, allowed_header in (
                (b"access-control-request-headers", b"access-control-allow-headers"),
                (b"access-control-request-method", b"access-control-allow-methods"),
            ):
                if requested in request.headers:
                    allowed.append((allowed_header, request.headers[requested]))
            return Response(200, allowed)
        return self._response(404, _UNKNOWN, None)

    # -- one request

    def _respond(self, request: Request) -> Outcome | OperationSubmitted | Coroutine[Any, Any, Outcome]:
        body, headers = request.body, request.headers
        if len(body) > OFFLOAD_BYTES or headers.get(b"content-encoding", b"identity") != b"identity":
            return self._respond_large(request, headers)
        try:
            data: Any = _decode(body) if body else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _malformed(headers)
        operation = self._operations.get(headers.get(b"x-amz-target", b""))
        if operation is None:
            return 400, _encode(errors.body("UnknownOperationException"))
        try:
            claimed = self._authenticate(request)
        except Exception as error:
            return failed(error, operation, body)
        if isinstance(claimed, tuple):
            return self._run(operation, claimed, request, data)
        return self._run_authenticated(operation, claimed, request, data)

    async def _run_authenticated(
        self, operation: Operation, claimed: Awaitable[Claimed], request: Request, data: Any
    ) -> Outcome:
        """Run the operation of a request whose credentials take longer to check."""
        try:
            outcome = self._run(operation, await claimed, request, data)
        except Exception as error:
            return failed(error, operation, request.body)
        if isinstance(outcome, OperationSubmitted):
            await outcome.wait()
            return outcome.outcome()
        return outcome if isinstance(outcome, tuple) else await outcome

    def _run(
        self, operation: Operation, claimed: Claimed, request: Request, data: Any
    ) -> Outcome | OperationSubmitted | Coroutine[Any, Any, Outcome]:
        """Run the operation of a request whose principal is known."""
        body = request.body
        try:
            principal, verify = claimed
            if verify is not None:
                verify()
            if not body:
                return 400, _encode(errors.body("SerializationException"))
            parameters = operation.shape.check(data)
            context = Context(self._db, principal, request.headers, self._workers, len(body))
            if operation.offload is not None and operation.offload(parameters):
                return self._offloaded(operation, partial(self._run_in_thread, operation, context, data, body), body)
            result = operation.run(context, parameters)
            if isinstance(result, (bytes, dict)):
                return succeeded(result, parameters, data)
            if isinstance(result, Commanded):
                submitted = OperationSubmitted(result, principal.name, self, request, operation, parameters, data)
                self._db.submit(submitted, principal)
                return submitted.outcome() if submitted.finished else submitted
            return self._finished(operation, result, parameters, data, body)
        except Exception as error:
            return failed(error, operation, body)

    async def _finished(
        self, operation: Operation, result: Awaitable[Body], parameters: Any, data: Any, body: bytes
    ) -> Outcome:
        try:
            return succeeded(await result, parameters, data)
        except Exception as error:
            return failed(error, operation, body)

    async def _offloaded(self, operation: Operation, work: Callable[[], Outcome], body: bytes) -> Outcome:
        try:
            return await self._workers.run(work, len(body))
        except Exception as error:
            return failed(error, operation, body)

    async def _respond_large(self, request: Request, headers: dict[bytes, bytes]) -> Outcome:
        """A request whose body may take long to parse. Its signature is checked before the JSON, unlike for small
        requests, so that only authenticated callers can cause the work."""
        operation = self._operations.get(headers.get(b"x-amz-target", b""))
        if operation is None:
            return 400, _encode(errors.body("UnknownOperationException"))
        try:
            claimed = self._authenticate(request)
            principal, verify = claimed if isinstance(claimed, tuple) else await claimed
            work = partial(self._read_in_thread, operation, principal, verify, request, headers)
            return await self._workers.run(work, len(request.body))
        except Exception as error:
            return failed(error, operation, b"")

    # -- in a thread

    def _read_in_thread(
        self,
        operation: Operation,
        principal: Principal,
        verify: Verify | None,
        request: Request,
        headers: dict[bytes, bytes],
    ) -> Outcome:
        body = request.body
        try:
            if verify is not None:
                verify()
            if b"content-encoding" in headers:
                body = inflated(body, headers[b"content-encoding"])
            if not body:
                return 400, _encode(errors.body("SerializationException"))
            data = parsed(body, operation.split)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _malformed(headers)
        except TooLarge:
            return 413, b""
        except CannotInflate:
            return 500, _encode(errors.body("InternalServerError", "Internal server error"))
        except Exception as error:
            return failed(error, operation, b"")
        context = Context(self._db, principal, headers, self._workers, len(body))
        return self._run_in_thread(operation, context, data, body)

    def _run_in_thread(self, operation: Operation, context: Context, data: Any, body: bytes) -> Outcome:
        try:
            parameters = operation.shape.check(data)
            result = operation.run(context.blocking(), parameters)
            assert not isinstance(result, Commanded), "in a thread, commands are executed at once"
            return succeeded(result if isinstance(result, (bytes, dict)) else run_sync(result), parameters, data)
        except Exception as error:
            return failed(error, operation, body)

    # -- responses

    def _id(self) -> bytes:
        return b"%b%016X" % (self._id_prefix, next(self._ids))

    def answer(self, request: Request, outcome: Outcome) -> Response | Coroutine[Any, Any, Response]:
        """The response to a request; a coroutine if it is compressed."""
        status, body = outcome
        if body is None:
            return self._response(404, _UNKNOWN, None)
        sent = request.headers.get(b"content-type")
        content_type = _JSON_1_0 if sent == _JSON_1_0 or _content_type(request) == _JSON_1_0 else _JSON
        if len(body) > COMPRESS_BYTES_MIN and b"accept-encoding" in request.headers:
            return self._compressed(status, body, content_type, request.headers[b"accept-encoding"])
        return self._response(status, body, content_type)

    def _response(self, status: int, body: bytes, content_type: bytes | None) -> Response:
        headers: Headers = [
            (b"x-amzn-requestid", b"%b%016X" % (self._id_prefix, next(self._ids))),
            (b"x-amz-crc32", b"%d" % crc32(body)),
        ]
        if content_type is not None:
            headers.append((b"content-type", content_type))
        return Response(status, headers, body)

    async def _compressed(self, status: int, body: bytes, content_type: bytes, accepted: bytes) -> Response:
        coding = preferred(accepted.decode("latin-1"))
        if coding is not None:
            if len(body) < COMPRESS_OFFLOAD_BYTES:
                body = deflated(body, coding)
            else:
                body = await asyncio.to_thread(deflated, body, coding)
        # The checksum is that of the compressed bytes, which the SDKs verify.
        response = self._response(status, body, content_type)
        if coding is not None:
            response.headers.append((b"content-encoding", coding.encode()))
        return response


class OperationSubmitted(Submitted):
    """The submitted command of an operation."""

    __slots__ = ("_data", "_handler", "_operation", "_parameters", "_render", "_request")

    def __init__(
        self,
        commanded: Commanded,
        by: str,
        handler: DynamoHandler,
        request: Request,
        operation: Operation,
        parameters: Any,
        data: Any,
    ) -> None:
        Submitted.__init__(self, commanded.command, by)
        self._render = commanded.render
        self._handler = handler
        self._request = request
        self._operation = operation
        self._parameters = parameters
        self._data = data

    def outcome(self) -> Outcome:
        """The response, when the command is finished."""
        error = self.error
        if error is None:
            try:
                return succeeded(self._render(self.result), self._parameters, self._data)
            except Exception as refused:
                error = refused
        if not isinstance(error, Exception):
            raise error
        return failed(error, self._operation, self._request.body)

    def response(self) -> Response | Coroutine[Any, Any, Response]:
        return self._handler.answer(self._request, self.outcome())


def refused(error: Forbidden) -> Response:
    """The response to a request that is refused because of its origin."""
    return Response(403, [(b"content-type", _JSON_1_0)], _encode(errors.response(error)[1]))


def _content_type(request: Request) -> bytes:
    return request.headers.get(b"content-type", b"").partition(b";")[0].strip()


def succeeded(result: Body, parameters: Any, data: Any) -> Outcome:
    """The response of an operation with this result."""
    if parameters is not data:
        result = with_given_arns(data, result)
    return 200, result if type(result) is bytes else _encode(result)


def failed(error: Exception, operation: Operation, body: bytes) -> Outcome:
    """The response to a request that failed."""
    if isinstance(error, RecursionError):
        return 400, _encode(errors.body("ValidationException", NESTED_TOO_DEEP))
    if not isinstance(error, Error):
        logger.error("a %s request failed", operation.shape.name, exc_info=error)
        return 500, _encode(errors.body("InternalServerError", "Internal server error"))
    # The traceback's frames hold everything that the request has read, often in a reference cycle. Collecting such
    # cycles would pause all requests.
    error.__traceback__ = None
    if body and isinstance(error, Invalid) and error.code != "SERIALIZATION":
        # The service reports a value of the wrong type before any other error. The items of valid requests are not
        # searched for one, so it may be found only here.
        try:
            operation.shape.read(parsed(body, operation.split))
        except Invalid as earlier:
            error = earlier
    if operation.detects and isinstance(error, Invalid):
        error = detected(error)
    status, shown = errors.response(error, names_table=operation.names_table)
    return status, _encode(shown)


def _malformed(headers: dict[bytes, bytes]) -> Outcome:
    if headers.get(b"content-type", b"").startswith(_CONTENT_TYPES[1]):
        return 404, None
    return 400, _encode(errors.body("SerializationException"))
