"""Dispatches requests: the route table says how each is answered.

The order of the checks is the same for all: where the request comes from (`origins.py`), the route, the method, the
content type, the query parameters, the credentials; then the row's functions. An ordinary request is parsed to a
command, which is submitted; its result is rendered when it is committed, without a coroutine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, cast

from tailrace.access import SYSTEM, Principal
from tailrace.command import Command
from tailrace.completion import Completion
from tailrace.config import Config
from tailrace.database import Database
from tailrace.errors import Error, Forbidden, WrongType
from tailrace.http import errors
from tailrace.http.authentication import ANONYMOUS, check_credentials_exist
from tailrace.http.bulk import wants_arrow
from tailrace.http.codec import query_of
from tailrace.http.dynamodb.handler import refused
from tailrace.http.message import Answer, Headers, LiveResponse, Request, Response
from tailrace.http.origins import OriginPolicy
from tailrace.http.route import ANY_METHOD, OPEN, PRINCIPAL, WAKE_TOKEN, Methods, Route, RouteTable, not_allowed
from tailrace.http.routes import ROUTES
from tailrace.http.services import Services
from tailrace.http.submitted import RouteSubmitted, Work, rendered, response_of, settled
from tailrace.http.subscriptions import check_wake_token
from tailrace.http.webhooks import Dispatcher

COMMON: Final[Headers] = [
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"vary", b"origin"),  # the CORS fields are there for requests that have one
]
_METHODS: Final = b"GET, HEAD, PUT, POST, DELETE, OPTIONS, PATCH"
_OPTIONS: Final[Headers] = [(b"allow", _METHODS)]
_PREFLIGHT: Final[Headers] = [
    (b"access-control-allow-methods", _METHODS),
    (
        b"access-control-allow-headers",
        b"Content-Type, Authorization, If-None-Match, Stream-Seq, Stream-TTL, Stream-Expires-At, Stream-Closed, "
        b"Stream-Forked-From, Stream-Fork-Offset, Stream-Fork-Sub-Offset, Stream-Max-Age, Stream-Max-Bytes, "
        b"Producer-Id, Producer-Epoch, Producer-Seq, Topic-Key, Topic-Partition, X-Amz-Target, X-Amz-Date, "
        b"X-Amz-Security-Token, X-Amz-User-Agent, X-Amz-Content-Sha256, Amz-Sdk-Invocation-Id, Amz-Sdk-Request",
    ),
    (b"access-control-max-age", b"86400"),
]
_READS: Final = frozenset((b"GET", b"HEAD"))
_find: Final = RouteTable(ROUTES).find
_PRINCIPALS: Final[dict[str, Principal | None]] = {OPEN: ANONYMOUS, WAKE_TOKEN: None}  # None: to be authenticated


class App:
    """The handler of all requests."""

    def __init__(self, db: Database, config: Config) -> None:
        """Webhooks are dispatched by the process that writes."""
        check_credentials_exist(db, config)
        self.db = db
        self._config = config
        self._metrics = db.metrics
        self.services = Services(db, config)
        self._known = self.services.authenticator.known
        self._origins = OriginPolicy(config)
        self._dispatcher = Dispatcher(db, config) if db.forwarder is None else None

    async def start(self) -> None:
        """Begin the work that runs beside requests."""
        if self._dispatcher is not None:
            await self._dispatcher.start()
        self.services.samples.start()

    def release(self) -> None:
        """End live reads, so that their connections can end."""
        self.services.release()

    async def stop(self) -> None:
        """End live reads, and the work that runs beside requests."""
        self.release()
        await self.services.close()
        if self._dispatcher is not None:
            await self._dispatcher.stop()

    def __call__(self, request: Request) -> Work:
        try:
            cors = self._origins.check(request)
        except Forbidden as error:
            return refused(error) if request.path == b"/" else errors.response(error)
        try:
            methods, values = _find(request.path)
            route = methods.get(request.method) or _other_row(request, methods)
            if route.complete and not cors:
                return route.answer(self.services, request, ANONYMOUS)  # type: ignore[misc,no-any-return]
            if route.arrow is not None and wants_arrow(request):
                route = route.arrow
            if route.types and request.headers.get(b"content-type") not in route.types:
                _check_type(request, route.types)
            if request.query and route.query is not None:
                request.parameters = query_of(request, *route.query)
            principal = self._known(request) if route.access is PRINCIPAL else _PRINCIPALS[route.access]
            if principal is None:
                return self._authenticated(route, request, values, cors)
            return self._run(route, request, principal, values, cors)
        except Error as error:
            if request.method == b"OPTIONS":  # answered for every path: it comes without credentials, and has no effect
                return _with_cors(_options(request), cors)
            return _with_cors(errors.response(error), cors)

    def _run(
        self, route: Route, request: Request, principal: Principal, values: tuple[str, ...], cors: Headers | None
    ) -> Work:
        """Answer a request whose principal is known."""
        request.config = self._config
        if route.parse is not None and not route.offload:
            command = route.parse(request, *values)
            if isinstance(command, Command):
                submitted = RouteSubmitted(command, principal.name, route, request, self._metrics, cors)
                self.db.submit(submitted, principal)
                return submitted.response() if submitted.finished else submitted
            completion = self.db.aexecute(command, principal)
            if type(completion) is Completion:
                found, error = completion.outcome()
                return response_of(route, request, found, error, self._metrics, cors)
            # The reads of this engine wait, or history has to be fetched.
            return self._finished(request, principal, self._awaited(route, request, completion), cors)
        if route.parse is not None:
            return self._finished(request, principal, self._offloaded(route, request, principal, values), cors)
        assert route.answer is not None
        work: Work = route.answer(self.services, request, principal, *values)
        if isinstance(work, Response):
            return _with_cors(work, cors)
        return self._finished(request, principal, cast("Coroutine[Any, Any, Answer]", work), cors)

    async def _finished(
        self, request: Request, principal: Principal, work: Coroutine[Any, Any, Answer], cors: Headers | None
    ) -> Answer:
        """The answer of a coroutine. A live one ends as soon as its caller may no longer have it."""
        try:
            answer = await work
            if isinstance(answer, LiveResponse) and principal is not ANONYMOUS:
                answer = self.services.callers.guarded(request, principal, answer)
        except Error as error:
            answer = errors.response(error)
        return _with_cors(answer, cors)

    async def _offloaded(
        self, route: Route, request: Request, principal: Principal, values: tuple[str, ...]
    ) -> Response:
        assert route.parse is not None
        command = route.parse(request, *values)

        def work() -> Response:
            return rendered(route, request, self.db.execute(command, principal), self._metrics)

        return await asyncio.to_thread(work)

    async def _awaited(self, route: Route, request: Request, completion: Any) -> Response:
        return rendered(route, request, await completion, self._metrics)

    async def _authenticated(
        self, route: Route, request: Request, values: tuple[str, ...], cors: Headers | None
    ) -> Answer:
        """Answer a request whose credentials take longer to check."""
        try:
            if route.access is PRINCIPAL:
                principal = await self.services.authenticator.find(request)
            else:
                await check_wake_token(self.services, request, values[0])
                principal = SYSTEM
            work = self._run(route, request, principal, values, cors)
        except Error as error:
            return _with_cors(errors.response(error), cors)
        return await settled(work)


def _with_cors(answer: Answer, cors: Headers | None) -> Answer:
    if cors:
        answer.headers = [*answer.headers, *cors]
    return answer


def _other_row(request: Request, methods: Methods) -> Route:
    """The row for all methods that have none of their own; `NotAllowed` if there is none."""
    route = methods.get(ANY_METHOD.encode())
    if route is None:
        raise not_allowed(request, methods)
    return route


def _options(request: Request) -> Response:
    return Response(204, _PREFLIGHT if b"origin" in request.headers else _OPTIONS)


def _check_type(request: Request, types: tuple[bytes, ...]) -> None:
    """Raise unless a body is of one of the types, or there is none and none is named. A page can send text and forms to
    any server without asking it first, but no JSON."""
    if request.method in _READS or (not request.body and b"content-type" not in request.headers):
        return
    sent = request.headers.get(b"content-type", b"")
    if sent.partition(b";")[0].strip().lower() not in types:
        named = f"Content-Type {sent.decode('latin-1')[:80]!r} is not taken" if sent else "the Content-Type is missing"
        wanted = " or ".join(each.decode() for each in types[:2])
        raise WrongType(f"{named} at {request.path.decode('latin-1')[:100]}; send Content-Type: {wanted}")
