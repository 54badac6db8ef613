"""All routes on one screen: which door answers what, who is let in, and what every answer carries."""

from __future__ import annotations

import asyncio
import re
from typing import Final

import msgspec

from tailrace.access import Principal
from tailrace.config import Config
from tailrace.database import Database
from tailrace.errors import Error, Forbidden, NotAllowed, NotFound
from tailrace.http import errors, system
from tailrace.http.auth import AuthDoor
from tailrace.http.bulk import BulkDoor
from tailrace.http.cold import ColdDoor
from tailrace.http.dynamodb.door import DynamoDoor
from tailrace.http.jobs import JobsDoor
from tailrace.http.keys import KeysDoor
from tailrace.http.live import Live
from tailrace.http.message import Answer, Headers, Request, Response
from tailrace.http.reading import Reading
from tailrace.http.signature import Signatures
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
    (b"cross-origin-resource-policy", b"cross-origin"),
    (b"access-control-allow-origin", b"*"),
    (
        b"access-control-expose-headers",
        b"Stream-Next-Offset, Stream-Cursor, Stream-Up-To-Date, Stream-Closed, Stream-TTL, Stream-Expires-At, "
        b"Stream-Earliest-Offset, Stream-Max-Age, Stream-Max-Bytes, Stream-SSE-Data-Encoding, Producer-Epoch, "
        b"Producer-Seq, Producer-Expected-Seq, Producer-Received-Seq, Topic-Partition, Topic-Offset, ETag, Location, "
        b"Retry-After, Tailrace-Sequence, X-Amzn-RequestId, X-Amz-Crc32",
    ),
]
_PREFLIGHT: Final[Headers] = [
    (b"access-control-allow-methods", f"{METHODS}, PATCH".encode()),
    (
        b"access-control-allow-headers",
        b"Content-Type, Authorization, If-None-Match, Stream-Seq, Stream-TTL, Stream-Expires-At, Stream-Closed, "
        b"Stream-Forked-From, Stream-Fork-Offset, Stream-Fork-Sub-Offset, Stream-Max-Age, Stream-Max-Bytes, "
        b"Producer-Id, Producer-Epoch, Producer-Seq, Topic-Key, Topic-Partition, X-Amz-Target, X-Amz-Date, "
        b"X-Amz-Security-Token, X-Amz-User-Agent, X-Amz-Content-Sha256, Amz-Sdk-Invocation-Id, Amz-Sdk-Request",
    ),
    (b"access-control-max-age", b"86400"),
]


class Route(msgspec.Struct, frozen=True):
    """What is at or below `path` is for this door, one of the attributes of `App`.

    It is called with the request, the rest of the path and who is asking; if it is `open`, without the last: then it
    asks itself, or is for everyone. With --dev, where everyone is let in, the methods of `own` are for pages of this
    machine alone: otherwise any page that somebody looks at could use what listens here."""

    path: bytes
    door: str
    open: bool = False
    own: frozenset[bytes] = frozenset()


_READS: Final = frozenset((b"GET", b"HEAD"))
_WRITES: Final = frozenset((b"POST", b"PUT", b"PATCH", b"DELETE"))
_ALL: Final = _READS | _WRITES
_LOOPBACK: Final = re.compile(rb"https?://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)


# The first that fits. Beside these there is "/", the DynamoDB API, which has its own order of looking at a request.
ROUTES: Final = (
    Route(b"/v1/stream/__ds/", "control", open=True),  # a wake's token opens some of it
    Route(b"/v1/stream/", "streams"),
    Route(b"/v1/tables/", "tables"),
    Route(b"/v1/api/topics/", "topics_api", own=_ALL),
    Route(b"/api/topics/", "topics_api", own=_ALL),
    Route(b"/v1/topics", "topics", own=_WRITES),
    Route(b"/v1/api/sql", "sql", own=_ALL),
    Route(b"/v1/logs", "logs"),
    Route(b"/v1/stages", "stages", own=_ALL),
    Route(b"/v1/jobs", "jobs", own=_ALL),
    Route(b"/v1/cold", "cold", own=_ALL),
    Route(b"/v1/views", "views", own=_ALL),
    Route(b"/v1/admin/keys", "keys", own=_ALL),
    Route(b"/v1/admin/users", "users", own=_ALL),
    Route(b"/v1/api/auth/", "auth", open=True, own=_ALL),
    Route(b"/healthz", "health", open=True),
    Route(b"/readyz", "ready", open=True),
    Route(b"/metrics", "metrics"),
)


class App:
    """The door that leads to all doors."""

    def __init__(self, db: Database, config: Config) -> None:
        check_somebody(db, config)
        self.db = db
        self.live = Live(db.tail, db.clock, db.metrics, recycle_s=config.sse_recycle_s)
        reading = Reading(
            self.live,
            db.clock,
            page_bytes=config.page_bytes,
            long_poll_timeout_s=config.long_poll_timeout_s,
            # What needed credentials must not be kept by a cache that others read.
            cache_scope="public" if config.dev else "private",
        )
        self.who = Who(db, config)
        self.logs = BulkDoor(db)
        self.streams = StreamsDoor(db, reading, self.logs, config)
        self.tables = TablesDoor(db, reading, self.logs)
        self.topics = TopicsDoor(db, reading, self.logs, config)
        self.topics_api = self.topics.api
        self.stages = StagesDoor(db)
        self.jobs = JobsDoor(db)
        self.cold = ColdDoor(db, self.logs)
        self.views = ViewsDoor(db)
        self.keys = KeysDoor(db)
        self.users = UsersDoor(db, self.who)
        self.auth = AuthDoor(db, self.who, config)
        self._sql = SqlDoor(db)
        self._subscriptions = SubscriptionsDoor(db, config)
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
                route.own if config.dev else frozenset(),
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
        await self.who.close()
        await asyncio.to_thread(self._dynamodb.close)
        await asyncio.to_thread(self.tables.close)
        await asyncio.to_thread(self.logs.close)
        await asyncio.to_thread(self.stages.close)
        await asyncio.to_thread(self._sql.close)
        await self._dispatcher.stop()

    async def __call__(self, request: Request) -> Answer:
        try:
            path = request.path
            if path == b"/":
                return system.index() if _from_browser(request) else await self._dynamodb(request)
            if request.method == b"OPTIONS":
                return Response(204, _PREFLIGHT)
            for beginning, size, below, door, opened, own in self._routes:
                if path.startswith(beginning) and (below or path[size : size + 1] in (b"", b"/")):
                    if request.method in own:
                        _check_origin(request)
                    if opened:
                        return await door(request, path[size:])  # type: ignore[no-any-return]
                    principal = self.who.known(request) or await self.who.find(request)
                    return await door(request, path[size:], principal)  # type: ignore[no-any-return]
            raise _nothing(path)
        except Error as error:
            return errors.response(error)

    async def control(self, request: Request, raw: bytes) -> Answer:
        """Subscriptions. Some of it is public, or opened by the token of a wake."""
        rest = raw.decode("ascii", "replace")
        if is_open(request.method, rest):
            return await self._subscriptions(request, rest, NOBODY)
        return await self._subscriptions(request, rest, self.who.known(request) or await self.who.find(request))

    async def sql(self, request: Request, rest: bytes, principal: Principal) -> Response:
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


def _check_origin(request: Request) -> None:
    """Raise `Forbidden` if a page sent this that is not of this machine."""
    origin = request.headers.get(b"origin")
    if origin is not None and _LOOPBACK.fullmatch(origin) is None:
        raise Forbidden(
            f"a page of {origin.decode('latin-1')[:100]!r} may not use {request.path.decode('latin-1')[:100]} of a "
            "server that runs with --dev, which lets everyone in; open the page from localhost, or run the server "
            "without --dev",
            code="FOREIGN_ORIGIN",
        )


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
