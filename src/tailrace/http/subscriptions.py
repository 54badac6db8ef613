"""Subscriptions to streams, and the public keys of webhooks: the reserved paths below ``/v1/stream/__ds/``.

The callers of callback, ack and release authenticate with a token of their own, made for one wake; jwks.json is public.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final, TypeVar
from urllib.parse import quote

import msgspec

from tailrace import limits
from tailrace.access import SYSTEM, Principal
from tailrace.config import Config
from tailrace.errors import Conflict, Invalid, TooLarge, Unauthenticated
from tailrace.http.codec import json_response, parameters_of, rfc3339
from tailrace.http.message import Request, Response, origin
from tailrace.log.position import offset
from tailrace.streams.stream import RESERVED
from tailrace.subscriptions import subscription as rules
from tailrace.subscriptions import webhook
from tailrace.subscriptions.commands import (
    AddStreams,
    CheckToken,
    ClaimedWake,
    ClaimWake,
    DeleteSubscription,
    GetSubscription,
    ListSubscriptions,
    PutSubscription,
    ReleaseWake,
    RemoveStream,
    StreamAck,
    SubscriptionAck,
    SubscriptionAcked,
    SubscriptionDescription,
)
from tailrace.subscriptions.signing import EnsureSigningKey, GetSigningKeys, jwks
from tailrace.subscriptions.subscription import LinkState, Subscription, SubscriptionSettings

if TYPE_CHECKING:
    from tailrace.http.services import Services

T = TypeVar("T")

LIST_MAX: Final = 1_000
LIST_PARAMETERS: Final = ("after", "limit")
_PREFIX: Final = f"/{RESERVED}/".encode()
_encode: Final = msgspec.json.Encoder().encode


# -- requests. Fields we do not know are ignored, as the protocol may grow. No list is longer than what a
# subscription can follow: each item costs a look-up in the one transaction.

_AtMostLinks: Final = msgspec.Meta(max_length=limits.SUBSCRIPTION_LINKS_MAX)
StreamList = Annotated[list[str], _AtMostLinks]


class WebhookBody(msgspec.Struct):
    url: str


class SubscriptionBody(msgspec.Struct):
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


# -- responses


class WebhookSigningResponse(msgspec.Struct):
    alg: str
    kid: str
    jwks_url: str


class WebhookResponse(msgspec.Struct):
    url: str
    signing: WebhookSigningResponse | msgspec.UnsetType = msgspec.UNSET


class LinkResponse(msgspec.Struct):
    path: str
    link_type: str
    acked_offset: str


class WakeLinkResponse(LinkResponse):
    tail_offset: str
    has_pending: bool


class SubscriptionResponse(msgspec.Struct, kw_only=True):
    id: str
    subscription_id: str
    type: str
    pattern: str | None
    webhook: WebhookResponse | None
    wake_stream: str | None
    lease_ttl_ms: int
    created_at: str
    status: str
    description: str | None
    # Not in the protocol: the facts that an operator needs first when nothing happens.
    generation: int
    holder: str | None
    retries: int
    next_attempt_at: str | None
    streams: list[LinkResponse] | msgspec.UnsetType = msgspec.UNSET
    link_count: int | msgspec.UnsetType = msgspec.UNSET  # in lists, which have no streams


class SubscriptionsResponse(msgspec.Struct):
    subscriptions: list[SubscriptionResponse]
    next_after: str | None


class WakeResponse(msgspec.Struct):
    wake_id: str | None
    generation: int
    token: str
    streams: list[WakeLinkResponse]
    lease_ttl_ms: int


class WakeAckResponse(msgspec.Struct):
    ok: bool
    next_wake: bool


# -- subscriptions


async def put(services: Services, request: Request, principal: Principal, name: str) -> Response:
    """Make a subscription, or find that it is there with the same configuration."""
    base = base_url(request, request.config)
    settings = _settings(_body(request, SubscriptionBody))
    command = PutSubscription(name, settings, base, webhook_rules(request.config))
    found = await services.db.aexecute(command, principal)
    # It may follow very many streams.
    return await asyncio.to_thread(lambda: json_response(_described(found, base), 201 if found.fresh else 200))


def parse_get(request: Request, name: str) -> GetSubscription:
    return GetSubscription(name)


def render_described(request: Request, found: SubscriptionDescription) -> Response:
    return json_response(_described(found, base_url(request, request.config)))


def parse_delete(request: Request, name: str) -> DeleteSubscription:
    return DeleteSubscription(name)


def parse_list(request: Request) -> ListSubscriptions:
    return ListSubscriptions(parameters_of(request).get("after"), _limit(request))


def render_list(request: Request, rows: list[Subscription]) -> Response:
    base = base_url(request, request.config)
    items = []
    for row in rows:
        item = _summary(row, None, base)
        item.link_count = row.links
        items.append(item)
    full = len(rows) == _limit(request)
    return json_response(SubscriptionsResponse(items, rows[-1].id if full else None))


def _limit(request: Request) -> int:
    text = parameters_of(request).get("limit", "100")
    limit = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not 1 <= limit <= LIST_MAX:
        raise Invalid(f"limit {text[:80]!r} is not a number from 1 to {LIST_MAX}")
    return limit


def parse_add_streams(request: Request, name: str) -> AddStreams:
    return AddStreams(name, tuple(_body(request, StreamsBody).streams))


def parse_remove_stream(request: Request, name: str, path: str) -> RemoveStream:
    return RemoveStream(name, path)


# -- wakes


async def claim(services: Services, request: Request, principal: Principal, name: str) -> Response:
    """Claim the subscription's pending work for a worker."""
    claimed = await services.db.aexecute(ClaimWake(name, _body(request, ClaimBody).worker), principal)
    if claimed is None:
        raise Conflict(
            f"subscription {name!r} has no pending work; wait for its next wake event", code="NO_PENDING_WORK"
        )
    return await asyncio.to_thread(_claimed, claimed)  # there may be many streams


def _claimed(claimed: ClaimedWake) -> Response:
    row = claimed.subscription
    return json_response(
        WakeResponse(row.wake_id, row.generation, claimed.token, stream_infos(claimed.streams), row.lease_ms)
    )


async def check_wake_token(services: Services, request: Request, name: str) -> None:
    """Raise unless the request has the token of a wake of this subscription. Checked before the body is decoded: a
    request without one must cost nothing."""
    try:
        await services.db.aexecute(CheckToken(name, _token(request)), SYSTEM)
    except Unauthenticated as error:
        raise services.authenticator.refusal(error, request.peer) from None


def parse_callback(request: Request, name: str) -> SubscriptionAck:
    return _acked(request, name, rules.WEBHOOK)


def parse_ack(request: Request, name: str) -> SubscriptionAck:
    return _acked(request, name, rules.PULL_WAKE)


def _acked(request: Request, name: str, kind: str) -> SubscriptionAck:
    body = _body(request, WakeBody)
    acks = tuple(StreamAck(item.stream or item.path or "", item.offset) for item in body.acks or ())
    return SubscriptionAck(name, kind, _token(request), body.wake_id, body.generation, acks, bool(body.done))


def render_acked(request: Request, acked: SubscriptionAcked) -> Response:
    return json_response(WakeAckResponse(True, acked.next_wake))


def parse_release(request: Request, name: str) -> ReleaseWake:
    body = _body(request, WakeBody)
    return ReleaseWake(name, _token(request), body.wake_id, body.generation)


# -- keys


async def public_keys(services: Services, request: Request, principal: Principal) -> Response:
    """The keys that verify the signatures of webhooks, as a JSON Web Key Set."""
    keys = await services.db.aexecute(GetSigningKeys(), SYSTEM)
    if not keys:
        keys = await services.db.aexecute(EnsureSigningKey(), SYSTEM)
    headers = [(b"content-type", b"application/jwk-set+json"), (b"cache-control", b"public, max-age=300")]
    return Response(200, headers, _encode(jwks(keys, services.db.clock.settled_ms())))


def webhook_rules(config: Config) -> webhook.WebhookRules:
    return webhook.WebhookRules(allow_loopback=config.dev, allow_private=config.webhook_allow_private)


def base_url(request: Request, config: Config) -> str:
    """The stream root as the client reaches it, without a slash at the end."""
    root = request.path.partition(_PREFIX)[0].decode("ascii", "replace")
    return origin(request, config) + root


def callback_url(subscription: Subscription) -> str:
    return f"{subscription.base_url}/{RESERVED}/subscriptions/{quote(subscription.id, safe='')}/callback"


# -- parts of responses


def stream_infos(found: Sequence[LinkState]) -> list[WakeLinkResponse]:
    """Streams as a wake shows them."""
    return [
        WakeLinkResponse(state.link.path, _link_type(state), offset(state.acked), offset(state.tail), state.pending)
        for state in found
    ]


def _described(found: SubscriptionDescription, base: str) -> SubscriptionResponse:
    described = _summary(found.subscription, found.kid, base)
    described.streams = [
        LinkResponse(state.link.path, _link_type(state), offset(state.acked)) for state in found.streams
    ]
    return described


def _summary(row: Subscription, kid: str | None, base: str) -> SubscriptionResponse:
    hook: WebhookResponse | None = None
    if row.webhook_url is not None:
        hook = WebhookResponse(row.webhook_url)
        if kid is not None:
            hook.signing = WebhookSigningResponse("ed25519", kid, f"{base}/{RESERVED}/jwks.json")
    return SubscriptionResponse(
        id=row.id,
        subscription_id=row.id,
        type=row.kind,
        pattern=row.pattern,
        webhook=hook,
        wake_stream=row.wake_stream,
        lease_ttl_ms=row.lease_ms,
        created_at=rfc3339(row.created_ms),
        status=rules.status(row),
        description=row.description,
        generation=row.generation,
        holder=row.holder,
        retries=row.retries,
        next_attempt_at=None if not row.retries or row.next_attempt_ms is None else rfc3339(row.next_attempt_ms),
    )


def _link_type(state: LinkState) -> str:
    return "explicit" if state.link.explicit else "glob"


# -- parts of requests


def _settings(body: SubscriptionBody) -> SubscriptionSettings:
    return SubscriptionSettings(
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
            f"the body has {size} bytes, more than the {limits.CONTROL_BODY_BYTES_MAX} that are accepted here; "
            f"split the list over several requests"
        )
    try:
        return msgspec.json.decode(request.body or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the body is wrong: {error}; send JSON as described in PROTOCOL.md, sections 6 and 7") from None


def _token(request: Request) -> str:
    scheme, _, token = request.headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("the wake's token is missing; send it as Authorization: Bearer ...", code="TOKEN_INVALID")
    return token.strip()
