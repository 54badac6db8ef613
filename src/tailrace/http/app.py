"""All routes on one screen: which door answers what, who is let in, and what every answer carries."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

import msgspec

from tailrace.access import Principal
from tailrace.config import Config
from tailrace.database import Database
from tailrace.errors import Error, Forbidden, NotAllowed, NotFound, WrongType
from tailrace.http import asking, errors, system
from tailrace.http.auth import AuthDoor
from tailrace.http.bulk import BulkDoor
from tailrace.http.callers import Callers
from tailrace.http.cold import ColdDoor
from tailrace.http.dynamodb.door import DynamoDoor, refused
from tailrace.http.jobs import JobsDoor
from tailrace.http.keys import KeysDoor
from tailrace.http.live import Live
from tailrace.http.message import Answer, Headers, Request, Response
from tailrace.http.origins import OriginPolicy
from tailrace.http.reading import Reading
from tailrace.http.signature import Signatures
from tailrace.http.signing_keys import SigningKeysHandler
from tailrace.http.sql import SqlDoor
from tailrace.http.stages import StagesDoor
from tailrace.http.streams import METHODS, StreamsDoor
from tailrace.http.subscriptions import SubscriptionsDoor, is_open
from tailrace.http.tables import TablesDoor
from tailrace.http.topics import TopicsDoor
from tailrace.http.users import UsersDoor
from tailrace.http.views import ViewsDoor
from tailrace.http.webhooks import Dispatcher
from tailrace.http.who import NOBODY, Who, check_somebody

COMMON: Final[Headers] = [
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"vary", b"origin"),  # the CORS fields are there for requests that have one
]
_METHODS: Final = f"{METHODS}, PATCH".encode()
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


JSON: Final = (b"application/json",)
JSON_OR_MSGPACK: Final = (*JSON, b"application/vnd.msgpack", b"application/msgpack", b"application/x-msgpack")
ANY_TYPE: Final = ()  # what is sent is data of that type


class Route(msgspec.Struct, frozen=True):
    """What is at or below `path` is for this handler, one of the attributes of `App`.

    It is called with the request, the rest of the path and who is asking; if it is `open`, without the last: then it
    asks itself, or is for everyone. A body must have one of the `types`: a page can send text and forms to any server
    without asking it first, but no JSON. `bare`: there are no parameters in the query string; others check their own,
    but for streams, whose protocol lets clients add some."""

    path: bytes
    door: str
    open: bool = False
    types: tuple[bytes, ...] = JSON
    bare: bool = False


# The first that fits. Beside these there is "/", the DynamoDB API, which has its own order of looking at a request.
ROUTES: Final = (
    Route(b"/v1/stream/__ds/", "control", open=True),  # a wake's token opens some of it
    Route(b"/v1/stream/", "streams", types=ANY_TYPE),
    Route(b"/v1/tables/", "tables"),
    Route(b"/v1/api/topics/", "topics_api", bare=True),
    Route(b"/api/topics/", "topics_api", bare=True),
    Route(b"/v1/topics", "topics", types=ANY_TYPE),
    Route(b"/v1/api/sql", "sql", bare=True),
    Route(b"/v1/logs", "logs"),
    Route(b"/v1/stages", "stages", types=JSON_OR_MSGPACK),
    Route(b"/v1/jobs", "jobs", bare=True),
    Route(b"/v1/cold", "cold", bare=True),
    Route(b"/v1/views", "views", types=JSON_OR_MSGPACK, bare=True),
    Route(b"/v1/admin/keys", "keys", bare=True),
    Route(b"/v1/admin/users", "users", bare=True),
    Route(b"/v1/admin/signing-keys", "signing_keys", bare=True),
    Route(b"/v1/api/auth/", "auth", open=True, bare=True),
    Route(b"/healthz", "health", open=True),
    Route(b"/readyz", "ready", open=True),
    Route(b"/metrics", "metrics"),
)


_READS: Final = frozenset((b"GET", b"HEAD"))


class App:
    """The door that leads to all doors."""

    def __init__(self, db: Database, config: Config) -> None:
        check_somebody(db, config)
        self.db = db
        self.live = Live(db.tail, db.clock, db.metrics, recycle_s=config.sse_recycle_s)
        self.who = Who(db, config)
        self._callers = Callers(db, self.who)
        reading = Reading(
            self.live,
            db.clock,
            self._callers.of,
            page_bytes=config.page_bytes,
            long_poll_timeout_s=config.long_poll_timeout_s,
            # What needed credentials must not be kept by a cache that others read.
            cache_scope="public" if config.dev else "private",
        )
        self._origins = OriginPolicy(config)
        self.logs = BulkDoor(db)
        self.streams = StreamsDoor(db, reading, self.logs, config)
        self.tables = TablesDoor(db, reading, self.logs)
        self.topics = TopicsDoor(db, reading, self.logs, self._callers, config)
        self.topics_api = self.topics.api
        self.stages = StagesDoor(db)
        self.jobs = JobsDoor(db)
        self.cold = ColdDoor(db, self.logs)
        self.views = ViewsDoor(db)
        self.keys = KeysDoor(db)
        self.signing_keys = SigningKeysHandler(db)
        self.users = UsersDoor(db, self.who)
        self.auth = AuthDoor(db, self.who, config)
        self._sql = SqlDoor(db)
        self._subscriptions = SubscriptionsDoor(db, config, self.who.wrong)
        self._signatures = Signatures(db, self.who, dev=config.dev)
        self._dynamodb = DynamoDoor(db, config, self._signatures.claimed)
        self._dispatcher = Dispatcher(db, config)
        self._routes = tuple(
            (
                route.path,
                len(route.path),
                route.path.endswith(b"/"),
                getattr(self, route.door),
                route.open,
                route.types,
                route.bare,
            )
            for route in ROUTES
        )

    async def start(self) -> None:
        """Begin what runs beside requests."""
        await self._dispatcher.start()

    def release(self) -> None:
        """Let live readers go, so that their connections can end."""
        self.live.stop()
        self.topics.release()

    async def stop(self) -> None:
        """End what runs beside requests; live readers are let go."""
        self.release()
        self._signatures.close()
        self._callers.close()
        await self.who.close()
        await asyncio.to_thread(self._dynamodb.close)
        await asyncio.to_thread(self.tables.close)
        await asyncio.to_thread(self.logs.close)
        await asyncio.to_thread(self.stages.close)
        await asyncio.to_thread(self._sql.close)
        await self._dispatcher.stop()

    def __call__(self, request: Request) -> Coroutine[Any, Any, Answer]:
        # Not a coroutine itself: each is stepped through with every turn of a request.
        try:
            cors = self._origins.check(request)
        except Forbidden as error:
            return _refuse(request, error)
        return self._with_cors(request, cors) if cors else self._answer(request)

    async def _with_cors(self, request: Request, cors: Headers) -> Answer:
        answer = await self._answer(request)
        answer.headers = [*answer.headers, *cors]
        return answer

    async def _answer(self, request: Request) -> Answer:
        try:
            path = request.path
            if path == b"/":
                return system.index() if _from_browser(request) else await self._dynamodb(request)
            if request.method == b"OPTIONS":
                return Response(204, _PREFLIGHT if b"origin" in request.headers else _OPTIONS)
            for beginning, size, below, door, opened, types, bare in self._routes:
                if path.startswith(beginning) and (below or path[size : size + 1] in (b"", b"/")):
                    if types and request.headers.get(b"content-type") not in types:
                        _check_type(request, types)
                    if bare and request.query:
                        asking.check_none(request)
                    if opened:
                        return await door(request, path[size:])  # type: ignore[no-any-return]
                    principal = self.who.known(request) or await self.who.find(request)
                    answer: Answer = await door(request, path[size:], principal)
                    return answer if isinstance(answer, Response) else self._callers.guarded(request, principal, answer)
            raise _nothing(path)
        except Error as error:
            return errors.response(error)

    async def control(self, request: Request, raw: bytes) -> Answer:
        """Subscriptions. Some of it is public, or opened by the token of a wake."""
        rest = raw.decode("ascii", "replace")
        if is_open(request.method, rest):
            return await self._subscriptions(request, rest, NOBODY)
        return await self._subscriptions(request, rest, self.who.known(request) or await self.who.find(request))

    async def sql(self, request: Request, rest: bytes, principal: Principal) -> Answer:
        """SQL, at one place and not below it."""
        if rest:
            raise _nothing(request.path)
        return await self._sql(request, principal)

    # -- for those who run the server

    async def health(self, request: Request, rest: bytes) -> Response:
        return _only_get(request, rest, system.health())

    async def ready(self, request: Request, rest: bytes) -> Response:
        return _only_get(request, rest, system.ready(self.db))

    async def metrics(self, request: Request, rest: bytes, principal: Principal) -> Response:
        if principal.access is not None:  # it names topics and groups, whoever they belong to
            raise Forbidden(f"{principal.name!r} may not read metrics: it was given only some things", code="NOT_GIVEN")
        # There may be many topics and groups to tell of.
        return _only_get(request, rest, await asyncio.to_thread(system.metrics, self.db))


async def _refuse(request: Request, error: Forbidden) -> Response:
    return refused(error) if request.path == b"/" else errors.response(error)


def _check_type(request: Request, types: tuple[bytes, ...]) -> None:
    """Raise unless a body is of one of the types, or there is none and none is named."""
    if request.method in _READS or (not request.body and b"content-type" not in request.headers):
        return
    sent = request.headers.get(b"content-type", b"")
    if sent.partition(b";")[0].strip().lower() not in types:
        named = f"Content-Type {sent.decode('latin-1')[:80]!r} is not taken" if sent else "the Content-Type is missing"
        wanted = " or ".join(each.decode() for each in types[:2])
        raise WrongType(f"{named} at {request.path.decode('latin-1')[:100]}; send Content-Type: {wanted}")


def _only_get(request: Request, rest: bytes, response: Response) -> Response:
    if rest:
        raise _nothing(request.path)
    if request.method not in (b"GET", b"HEAD"):
        raise NotAllowed(f"{request.path.decode('latin-1')} takes GET", allow="GET, HEAD, OPTIONS")
    return response


def _nothing(path: bytes) -> NotFound:
    return NotFound(
        f"there is nothing at {path.decode('latin-1')[:200]!r}; streams live at /v1/stream/<path>, tables' changes at "
        "/v1/tables/<name>/stream, topics at /v1/topics/<name>, SQL at POST /v1/api/sql, the DynamoDB API at POST /"
    )


def _from_browser(request: Request) -> bool:
    """Whether somebody is looking, rather than a client of DynamoDB asking whether the server is well."""
    method = request.method
    return method != b"POST" and (
        method == b"HEAD" or (method == b"GET" and b"text/html" in request.headers.get(b"accept", b""))
    )
