"""The door of `{stream root}/__ds/`: subscriptions and the keys that webhooks are signed with.

    GET                jwks.json
    GET                subscriptions                      ?after=&limit=  (our extension)
    PUT GET DELETE     subscriptions/:id
    POST               subscriptions/:id/streams
    DELETE             subscriptions/:id/streams/:path    :path may hold slashes, percent-encoded or not
    POST               subscriptions/:id/claim
    POST               subscriptions/:id/callback|ack|release

The last row's callers show a token of their own, made for one wake, and jwks.json is public: `is_open` tells which
requests must get here without the server's credentials.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import quote, unquote_to_bytes

import msgspec

from tailrace import limits
from tailrace.access import SYSTEM, Principal
from tailrace.config import Config
from tailrace.database import Database
from tailrace.errors import Conflict, Error, Invalid, NotAllowed, NotFound, TooLarge, Unauthenticated
from tailrace.http import asking, errors
from tailrace.http.message import Request, Response, origin
from tailrace.log.position import offset
from tailrace.streams.stream import RESERVED
from tailrace.subscriptions import subscription as rules
from tailrace.subscriptions import webhook
from tailrace.subscriptions.commands import (
    Ack,
    AckOf,
    AddStreams,
    CheckToken,
    Claim,
    Claimed,
    DeleteSubscription,
    Described,
    GetSubscription,
    ListSubscriptions,
    PutSubscription,
    Release,
    RemoveStream,
)
from tailrace.subscriptions.signing import EnsureSigningKey, GetSigningKeys, jwks
from tailrace.subscriptions.subscription import Settings, State, Subscription

T = TypeVar("T")

LIST_MAX: Final = 1_000
_OWN_TOKEN: Final = ("callback", "ack", "release")
_PREFIX: Final = f"/{RESERVED}/".encode()
_encode: Final = msgspec.json.Encoder().encode


# -- what clients send. Fields we do not know are ignored, as the protocol may grow. No list is longer than what a
# subscription can follow: each item costs a look-up in the one transaction.

_AtMostLinks: Final = msgspec.Meta(max_length=limits.SUBSCRIPTION_LINKS_MAX)
StreamList = Annotated[list[str], _AtMostLinks]


class WebhookBody(msgspec.Struct):
    url: str


class PutBody(msgspec.Struct):
    type: str
    pattern: str | None = None
    streams: StreamList | None = None
    webhook: WebhookBody | None = None
    wake_stream: str | None = None
    lease_ttl_ms: int | None = None
    description: str | None = None


class StreamsBody(msgspec.Struct):
    streams: StreamList


class ClaimBody(msgspec.Struct):
    worker: str


class AckItem(msgspec.Struct):
    offset: str
    stream: str | None = None
    path: str | None = None  # what the reference server takes too


class WakeBody(msgspec.Struct):
    wake_id: str
    generation: int
    acks: Annotated[list[AckItem], _AtMostLinks] | None = None
    done: bool | None = None


class SubscriptionsDoor:
    """Answers requests below `__ds/`; `rest` is the raw path after it, still percent-encoded."""

    def __init__(
        self, db: Database, config: Config, wrong: Callable[[Unauthenticated, str], Error] | None = None
    ) -> None:
        self._wrong = wrong  # what to answer to a wrong token, which may be one of too many
        self._db = db
        self._config = config
        self._webhooks = webhook_rules(config)

    async def __call__(self, request: Request, rest: str, principal: Principal) -> Response:
        try:
            return await self._route(request, rest, principal)
        except Error as error:
            return errors.response(error)

    async def _route(self, request: Request, rest: str, principal: Principal) -> Response:
        first, *parts = rest.split("/")
        if first == "jwks.json" and not parts:
            _allow(request, b"GET", b"HEAD")
            return await self._jwks()
        if first != "subscriptions":
            raise _unknown(rest)
        if not parts or parts == [""]:
            _allow(request, b"GET", b"HEAD")
            return await self._list(request, principal)
        name = _decoded(parts[0])
        match parts[1:]:
            case []:
                return await self._one(request, name, principal)
            case ["streams"]:
                _allow(request, b"POST")
                streams = tuple(_body(request, StreamsBody).streams)
                await self._db.aexecute(AddStreams(name, streams), principal)
                return Response(204, [])
            case ["streams", *path]:
                _allow(request, b"DELETE")
                await self._db.aexecute(RemoveStream(name, _decoded("/".join(path))), principal)
                return Response(204, [])
            case ["claim"]:
                _allow(request, b"POST")
                return await self._claim(request, name, principal)
            case ["callback" | "ack" as action]:
                _allow(request, b"POST")
                return await self._ack(request, name, rules.WEBHOOK if action == "callback" else rules.PULL_WAKE)
            case ["release"]:
                _allow(request, b"POST")
                token = await self._checked_token(request, name)
                body = _body(request, WakeBody)
                await self._db.aexecute(Release(name, token, body.wake_id, body.generation), SYSTEM)
                return Response(204, [])
            case _:
                raise _unknown(rest)

    async def _one(self, request: Request, name: str, principal: Principal) -> Response:
        _allow(request, b"GET", b"HEAD", b"PUT", b"DELETE")
        base = base_url(request, self._config)
        if request.method == b"PUT":
            command = PutSubscription(name, _settings(_body(request, PutBody)), base, self._webhooks)
            put = await self._db.aexecute(command, principal)
            return await asyncio.to_thread(lambda: _json(201 if put.fresh else 200, described(put, base)))
        if request.method == b"DELETE":
            await self._db.aexecute(DeleteSubscription(name), principal)
            return Response(204, [])
        # It may follow very many streams.
        return await asyncio.to_thread(
            lambda: _json(200, described(self._db.execute(GetSubscription(name), principal), base))
        )

    async def _list(self, request: Request, principal: Principal) -> Response:
        query = asking.asked(request, "after", "limit")
        text = query.get("limit", "100")
        limit = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
        if not 1 <= limit <= LIST_MAX:
            raise Invalid(f"limit {text[:80]!r} is not a number from 1 to {LIST_MAX}")
        rows = await asyncio.to_thread(self._db.execute, ListSubscriptions(query.get("after"), limit), principal)
        base = base_url(request, self._config)
        more = rows[-1].id if len(rows) == limit else None
        items = [{**_summary(row, None, base), "link_count": row.links} for row in rows]
        return _json(200, {"subscriptions": items, "next_after": more})

    async def _claim(self, request: Request, name: str, principal: Principal) -> Response:
        claimed = await self._db.aexecute(Claim(name, _body(request, ClaimBody).worker), principal)
        if claimed is None:
            raise Conflict(
                f"subscription {name!r} has no pending work; wait for its next wake event", code="NO_PENDING_WORK"
            )
        return await asyncio.to_thread(_claimed, claimed)

    async def _ack(self, request: Request, name: str, kind: str) -> Response:
        token = await self._checked_token(request, name)
        body = _body(request, WakeBody)
        acks = tuple(AckOf(item.stream or item.path or "", item.offset) for item in body.acks or ())
        command = Ack(name, kind, token, body.wake_id, body.generation, acks, bool(body.done))
        acked = await self._db.aexecute(command, SYSTEM)
        return _json(200, {"ok": True, "next_wake": acked.next_wake})

    async def _checked_token(self, request: Request, name: str) -> str:
        """The wake's token. Checked before the body is looked at: without one a request should cost us nothing."""
        token = _token(request)
        try:
            await self._db.aexecute(CheckToken(name, token), SYSTEM)
        except Unauthenticated as error:
            raise (error if self._wrong is None else self._wrong(error, request.peer)) from None
        return token

    async def _jwks(self) -> Response:
        keys = await self._db.aexecute(GetSigningKeys(), SYSTEM)
        if not keys:
            keys = await self._db.aexecute(EnsureSigningKey(), SYSTEM)
        headers = [(b"content-type", b"application/jwk-set+json"), (b"cache-control", b"public, max-age=300")]
        return Response(200, headers, _encode(jwks(keys, self._db.clock.settled_ms())))


def _claimed(claimed: Claimed) -> Response:
    row = claimed.subscription
    return _json(
        200,
        {
            "wake_id": row.wake_id,
            "generation": row.generation,
            "token": claimed.token,
            "streams": stream_infos(claimed.streams),
            "lease_ttl_ms": row.lease_ms,
        },
    )


def is_open(method: bytes, rest: str) -> bool:
    """Whether a request below `__ds/` is let in without the server's credentials: the keys are public, and callback,
    ack and release bring a token of their own, which the door checks."""
    parts = rest.split("/")
    if parts == ["jwks.json"]:
        return True
    return method == b"POST" and len(parts) == 3 and parts[0] == "subscriptions" and parts[2] in _OWN_TOKEN


def webhook_rules(config: Config) -> webhook.Rules:
    return webhook.Rules(allow_loopback=config.dev, allow_private=config.webhook_allow_private)


def base_url(request: Request, config: Config) -> str:
    """The stream root as the client reaches it, without a slash at the end."""
    root = request.path.partition(_PREFIX)[0].decode("ascii", "replace")
    return origin(request, config) + root


def callback_url(subscription: Subscription) -> str:
    return f"{subscription.base_url}/{RESERVED}/subscriptions/{quote(subscription.id, safe='')}/callback"


# -- what clients get


def stream_infos(found: Sequence[State]) -> list[dict[str, Any]]:
    """Streams as a wake shows them."""
    return [
        {
            "path": state.link.path,
            "link_type": _link_type(state),
            "acked_offset": offset(state.acked),
            "tail_offset": offset(state.tail),
            "has_pending": state.pending,
        }
        for state in found
    ]


def described(found: Described, base: str) -> dict[str, Any]:
    streams = [
        {"path": state.link.path, "link_type": _link_type(state), "acked_offset": offset(state.acked)}
        for state in found.streams
    ]
    return {**_summary(found.subscription, found.kid, base), "streams": streams}


def _summary(row: Subscription, kid: str | None, base: str) -> dict[str, Any]:
    hook: dict[str, Any] | None = None
    if row.webhook_url is not None:
        hook = {"url": row.webhook_url}
        if kid is not None:
            hook["signing"] = {"alg": "ed25519", "kid": kid, "jwks_url": f"{base}/{RESERVED}/jwks.json"}
    return {
        "id": row.id,
        "subscription_id": row.id,
        "type": row.kind,
        "pattern": row.pattern,
        "webhook": hook,
        "wake_stream": row.wake_stream,
        "lease_ttl_ms": row.lease_ms,
        "created_at": _time(row.created_ms),
        "status": rules.status(row),
        "description": row.description,
        # Not in the protocol: what an operator asks first when nothing happens.
        "generation": row.generation,
        "holder": row.holder,
        "retries": row.retries,
        "next_attempt_at": None if not row.retries or row.next_attempt_ms is None else _time(row.next_attempt_ms),
    }


def _link_type(state: State) -> str:
    return "explicit" if state.link.explicit else "glob"


def _time(at_ms: int) -> str:
    text = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _json(status: int, value: Any) -> Response:
    return Response(status, [(b"content-type", b"application/json"), (b"cache-control", b"no-store")], _encode(value))


# -- taking requests apart


def _settings(body: PutBody) -> Settings:
    return Settings(
        kind=body.type,
        pattern=body.pattern,
        streams=tuple(body.streams or ()),
        webhook_url=body.webhook.url if body.webhook is not None else None,
        wake_stream=body.wake_stream,
        lease_ms=limits.LEASE_MS if body.lease_ttl_ms is None else body.lease_ttl_ms,
        description=body.description,
    )


def _body(request: Request, kind: type[T]) -> T:
    size = len(request.body)
    if size > limits.CONTROL_BODY_BYTES_MAX:
        raise TooLarge(
            f"the body has {size} bytes, more than the {limits.CONTROL_BODY_BYTES_MAX} that are taken here; "
            f"send what it lists in several requests"
        )
    try:
        return msgspec.json.decode(request.body or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the body is wrong: {error}; send it as JSON as PROTOCOL.md section 6 and 7 have it") from None


def _token(request: Request) -> str:
    scheme, _, token = request.headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("the wake's token is missing; send it as Authorization: Bearer ...", code="TOKEN_INVALID")
    return token.strip()


def _decoded(text: str) -> str:
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise Invalid(f"{text[:80]!r} in the path is not percent-encoded UTF-8", code="INVALID_PATH") from None


def _allow(request: Request, *methods: bytes) -> None:
    if request.method not in methods:
        allow = b", ".join(methods).decode()
        raise NotAllowed(f"{request.method.decode('latin-1')} is not for this resource; use {allow}", allow=allow)


def _unknown(rest: str) -> NotFound:
    return NotFound(f"there is nothing at {RESERVED}/{rest[:80]}; see PROTOCOL.md section 6 for what there is")
