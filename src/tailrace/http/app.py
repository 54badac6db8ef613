"""All routes on one screen: which door answers what, who is let in, and what every answer carries."""

from __future__ import annotations

import asyncio
import hmac
from typing import Final

from tailrace.access import EVERYTHING, Principal
from tailrace.config import Config
from tailrace.database import Database
from tailrace.errors import Error, NotAllowed, NotFound, Unauthenticated, WrongToken
from tailrace.http import errors, system
from tailrace.http.dynamodb.door import DynamoDoor
from tailrace.http.keys import KeysDoor
from tailrace.http.live import Live
from tailrace.http.message import Answer, Headers, Request, Response
from tailrace.http.reading import Reading
from tailrace.http.signature import Signatures
from tailrace.http.streams import METHODS, StreamsDoor
from tailrace.http.subscriptions import SubscriptionsDoor, is_open
from tailrace.http.tables import TablesDoor
from tailrace.http.webhooks import Dispatcher

COMMON: Final[Headers] = [
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"cross-origin"),
    (b"access-control-allow-origin", b"*"),
    (
        b"access-control-expose-headers",
        b"Stream-Next-Offset, Stream-Cursor, Stream-Up-To-Date, Stream-Closed, Stream-TTL, Stream-Expires-At, "
        b"Stream-Earliest-Offset, Stream-Max-Age, Stream-Max-Bytes, Stream-SSE-Data-Encoding, Producer-Epoch, "
        b"Producer-Seq, Producer-Expected-Seq, Producer-Received-Seq, ETag, Location, Retry-After, X-Amzn-RequestId, "
        b"X-Amz-Crc32",
    ),
]
_PREFLIGHT: Final[Headers] = [
    (b"access-control-allow-methods", f"{METHODS}, PATCH".encode()),
    (
        b"access-control-allow-headers",
        b"Content-Type, Authorization, If-None-Match, Stream-Seq, Stream-TTL, Stream-Expires-At, Stream-Closed, "
        b"Stream-Forked-From, Stream-Fork-Offset, Stream-Fork-Sub-Offset, Stream-Max-Age, Stream-Max-Bytes, "
        b"Producer-Id, Producer-Epoch, Producer-Seq, X-Amz-Target, X-Amz-Date, X-Amz-Security-Token, "
        b"X-Amz-User-Agent, X-Amz-Content-Sha256, Amz-Sdk-Invocation-Id, Amz-Sdk-Request",
    ),
    (b"access-control-max-age", b"86400"),
]
_EVERYONE: Final = Principal("everyone", EVERYTHING)
_TOKEN: Final = Principal("token", EVERYTHING)
_NOBODY: Final = Principal("nobody", frozenset())


class App:
    """The door that leads to all doors."""

    def __init__(self, db: Database, config: Config) -> None:
        self.db = db
        self._token = None if config.dev else (config.token or "").encode()
        self.live = Live(db.tail, db.clock, db.metrics, recycle_s=config.sse_recycle_s)
        reading = Reading(
            self.live,
            db.clock,
            page_bytes=config.page_bytes,
            long_poll_timeout_s=config.long_poll_timeout_s,
            # What needed credentials must not be kept by a cache that others read.
            cache_scope="public" if config.dev else "private",
        )
        self._streams = StreamsDoor(db, reading, config)
        self._subscriptions = SubscriptionsDoor(db, config)
        self._tables = TablesDoor(db, reading)
        self._keys = KeysDoor(db)
        self._signatures = Signatures(db, dev=config.dev, token=self._token)
        self._dynamodb = DynamoDoor(db, config, self._signatures.claimed)
        self._dispatcher = Dispatcher(db, config)

    async def start(self) -> None:
        """Begin what runs beside requests."""
        await self._dispatcher.start()

    def release(self) -> None:
        """Let live readers go, so that their connections can end."""
        self.live.stop()

    async def stop(self) -> None:
        """End what runs beside requests; live readers are let go."""
        self.release()
        self._signatures.close()
        await asyncio.to_thread(self._dynamodb.close)
        await asyncio.to_thread(self._tables.close)
        await self._dispatcher.stop()

    async def __call__(self, request: Request) -> Answer:
        try:
            path = request.path
            if path == b"/":
                return system.index() if _from_browser(request) else await self._dynamodb(request)
            if request.method == b"OPTIONS":
                return Response(204, _PREFLIGHT)
            if path.startswith(b"/v1/stream/__ds/"):
                rest = path[16:].decode("ascii", "replace")
                principal = _NOBODY if is_open(request.method, rest) else self._principal(request)
                return await self._subscriptions(request, rest, principal)
            if path.startswith(b"/v1/stream/"):
                return await self._streams(request, path[11:], self._principal(request))
            if path.startswith(b"/v1/tables/"):
                return await self._tables(request, path[11:], self._principal(request))
            if path == b"/v1/admin/keys" or path.startswith(b"/v1/admin/keys/"):
                return await self._keys(request, path[14:], self._principal(request))
            return self._operator(request, path)
        except Error as error:
            return errors.response(error)

    def _operator(self, request: Request, path: bytes) -> Response:
        """What is not for clients but for those who run the server."""
        if path == b"/healthz":
            return self._only_get(request, system.health())
        if path == b"/readyz":
            return self._only_get(request, system.ready(self.db))
        if path == b"/metrics":
            self._principal(request)
            return self._only_get(request, system.metrics(self.db))
        raise NotFound(
            f"there is nothing at {path.decode('latin-1')[:200]!r}; streams live at /v1/stream/<path>, "
            "tables' changes at /v1/tables/<name>/stream, the DynamoDB API at POST /"
        )

    @staticmethod
    def _only_get(request: Request, response: Response) -> Response:
        if request.method not in (b"GET", b"HEAD"):
            raise NotAllowed(f"{request.path.decode('latin-1')} takes GET", allow="GET, HEAD, OPTIONS")
        return response

    def _principal(self, request: Request) -> Principal:
        """Who is asking."""
        if self._token is None:
            return _EVERYONE
        given = request.headers.get(b"authorization")
        if given is None:
            raise Unauthenticated("credentials are needed; send Authorization: Bearer <token>")
        scheme, _, token = given.partition(b" ")
        if scheme.lower() != b"bearer":
            raise Unauthenticated("this server takes Authorization: Bearer <token>")
        if not hmac.compare_digest(token.strip(), self._token):
            raise WrongToken("the token is not the server's; check TAILRACE_TOKEN on both sides")
        return _TOKEN


def _from_browser(request: Request) -> bool:
    """Whether somebody is looking, rather than a client of DynamoDB asking whether the server is well."""
    method = request.method
    return method != b"POST" and (
        method == b"HEAD" or (method == b"GET" and b"text/html" in request.headers.get(b"accept", b""))
    )
