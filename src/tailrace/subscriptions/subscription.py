"""Subscriptions and their rules. Pure: no transaction, no clock, no randomness of its own.

Theory of operation
-------------------
A subscription follows streams and wakes a worker when one of them has entries past the acked position. A *link* is its
cursor in one stream; it is bound to the stream's log, so that a stream that is recreated starts over.

    pending     a linked stream's tail is past its acked position
    idle        no wake is in flight (`wake_id` is None)

    idle ──pending──> woken ──> ... ──> idle

Every wake has the next `generation` and a random `wake_id`. A request for a wake must name both, with the token that
was issued for them; any other is fenced. How a wake gets to its worker depends on the kind:

    webhook     woken: a delivery is due at `next_attempt_ms`, the lease runs
                ├─ answered 2xx             delivered: no attempt is due, callbacks are awaited while the lease runs
                ├─ answered {"done": true}  the snapshot is acked; idle
                └─ failed                   `retries` + 1, the next attempt later; if the lease has ended by then, it is
                                            made under a new generation
    pull-wake   woken: the wake event is in the wake stream (or is due at `next_attempt_ms`, where that stream could
                not take it); no worker holds the lease
                └─ claimed                  `holder` is set, the lease runs

A valid callback or ack renews the lease; with done it ends the wake. A lease that ends takes the wake with it. Whenever
a wake ends and entries are pending, the next one begins in the same transaction. The whole state is stored, times
included, so a restart changes nothing.

Positions: a link's `acked` is BEFORE_FIRST until the first ack in a stream that was new when it was linked. It stands
for the start of the stream, and clients see that offset.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Final

import msgspec

from tailrace import limits
from tailrace.errors import Conflict, Fenced, Invalid
from tailrace.log.entry import Log
from tailrace.log.position import offset
from tailrace.storage.table import StorageTable
from tailrace.streams.stream import RESERVED, check_path
from tailrace.subscriptions.backoff import backoff_ms

WEBHOOK: Final = "webhook"
PULL_WAKE: Final = "pull-wake"
BEFORE_FIRST: Final = -1  # acked, as a position
UNBOUND: Final = 0  # the log of a link whose stream does not exist; logs are numbered from 1
COUNT: Final = "count/subscriptions"  # in META: counting rows at every PUT would cost more the more there are
CHANGES: Final = 0  # the number under which `Changed` notices are published; no log has it


class Subscription(msgspec.Struct, frozen=True):
    id: str
    kind: str  # WEBHOOK or PULL_WAKE
    pattern: str | None
    webhook_url: str | None
    wake_stream: str | None
    lease_ms: int
    description: str | None
    created_ms: int
    digest: str  # of the configuration it was created with
    base_url: str  # the URL of the stream root as its creator reached it; callbacks go there
    log_floor: int  # the highest log number at creation: a matching stream above it is new
    links: int  # how many there are
    generation: int
    wake_id: str | None
    snapshot: bytes | None  # of the wake in flight: path -> (log, tail) of what was pending
    holder: str | None
    lease_until_ms: int | None
    retries: int
    next_attempt_ms: int | None


class Link(msgspec.Struct, frozen=True):
    subscription: str
    path: str
    explicit: int  # named in streams[]
    matched: int  # by the pattern
    log: int
    acked: int


SUBSCRIPTIONS = StorageTable("subscriptions", Subscription, key=("id",), cached=True)
LINKS = StorageTable("links", Link, key=("subscription", "path"), cached=True)


class Changed(msgspec.Struct, frozen=True):
    """The notice that there may be something to do for a subscription."""

    id: str
    membership: bool = False  # it began, ended, or follows other streams by name
    woken: bool = False
    warning: str | None = None  # for the operator


class LinkState(msgspec.Struct, frozen=True):
    """A link and the state of its stream."""

    link: Link
    acked: int  # where the worker continues to read
    tail: int
    pending: bool


class SubscriptionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration that a client requests."""

    kind: str
    pattern: str | None = None
    streams: tuple[str, ...] = ()
    webhook_url: str | None = None
    wake_stream: str | None = None
    lease_ms: int = limits.LEASE_MS
    description: str | None = None


class DueStep(msgspec.Struct, frozen=True):
    """The next step of a subscription, and when it is due."""

    at_ms: int
    what: str


DELIVER: Final = "deliver"
ANNOUNCE: Final = "announce"
EXPIRE: Final = "expire"

Snapshot = dict[str, tuple[int, int]]
_SNAPSHOT: Final = msgspec.msgpack.Decoder(Snapshot)
_replace = msgspec.structs.replace


# -- patterns


class Pattern:
    """A compiled glob: `*` is one segment, `**` any number of them, also none.

    The states of the matching automaton are the bits of one integer, so that a path costs one step per segment
    whatever the pattern."""

    __slots__ = ("_accept", "_any_one", "_deep", "_literals", "head", "prefix")

    def __init__(self, text: str) -> None:
        segments: list[str] = []
        for segment in text.split("/"):
            if segment != "**" or segments[-1:] != ["**"]:
                segments.append(segment)
        self._accept = 1 << len(segments)
        self._any_one = self._deep = 0
        self._literals: dict[str, int] = {}
        for at, segment in enumerate(segments):
            if segment == "**":
                self._deep |= 1 << at
            elif segment == "*":
                self._any_one |= 1 << at
            else:
                literal = _literal(segment)
                self._literals[literal] = self._literals.get(literal, 0) | 1 << at
        literals = [_literal(segment) for segment in _until_wildcard(segments)]
        self.head = literals[0] if literals else None  # the first segment of all that can match
        self.prefix = "/".join(literals)  # what can match is this path or lies below it

    def matches(self, path: str) -> bool:
        deep = self._deep
        states = 1 | (1 & deep) << 1
        for segment in path.split("/"):
            states = (states & (self._literals.get(segment, 0) | self._any_one)) << 1 | states & deep
            states |= (states & deep) << 1
            if not states:
                return False
        return bool(states & self._accept)


def _until_wildcard(segments: list[str]) -> list[str]:
    for at, segment in enumerate(segments):
        if segment in ("*", "**"):
            return segments[:at]
    return segments


def _literal(segment: str) -> str:
    return segment.replace("%2A", "*").replace("%2a", "*")


@lru_cache(maxsize=limits.SUBSCRIPTIONS_MAX)
def compiled(pattern: str) -> Pattern:
    return Pattern(pattern)


def follows(subscription: Subscription, path: str) -> bool:
    """Whether the pattern matches. A subscription never follows its own wake stream: it would wake itself forever."""
    pattern = subscription.pattern
    return pattern is not None and path != subscription.wake_stream and compiled(pattern).matches(path)


# -- configuration


def check_id(text: str) -> str:
    if not text or len(text.encode()) > limits.SUBSCRIPTION_ID_BYTES_MAX or not text.isprintable():
        raise Invalid(
            f"subscription id {text[:80]!r} is empty, longer than {limits.SUBSCRIPTION_ID_BYTES_MAX} bytes or has "
            f"control characters; choose another"
        )
    return text


def check_worker(text: str) -> str:
    if not text or len(text.encode()) > limits.WORKER_NAME_BYTES_MAX:
        raise Invalid(f"worker must be a name of 1 to {limits.WORKER_NAME_BYTES_MAX} bytes; send the worker's name")
    return text


def normalised(settings: SubscriptionSettings) -> SubscriptionSettings:
    """The settings in canonical form: without surrounding slashes, duplicates, and fields of the other kind."""
    if settings.kind not in (WEBHOOK, PULL_WAKE):
        raise Invalid(f'type must be "{WEBHOOK}" or "{PULL_WAKE}", not {settings.kind[:80]!r}')
    webhook = settings.kind == WEBHOOK
    if webhook and not settings.webhook_url:
        raise Invalid("webhook.url is missing; a webhook subscription needs the URL that receives its wakes")
    if not webhook and not settings.wake_stream:
        raise Invalid("wake_stream is missing; a pull-wake subscription needs the path of the stream for its wakes")
    if not limits.LEASE_MS_MIN <= settings.lease_ms <= limits.LEASE_MS_MAX:
        raise Invalid(
            f"lease_ttl_ms {settings.lease_ms} is out of range; use {limits.LEASE_MS_MIN} to {limits.LEASE_MS_MAX}"
        )
    if settings.description is not None and len(settings.description.encode()) > limits.DESCRIPTION_BYTES_MAX:
        raise Invalid(f"description is longer than {limits.DESCRIPTION_BYTES_MAX} bytes; shorten it")
    wake_stream = None if webhook or settings.wake_stream is None else stream_path(settings.wake_stream, "wake_stream")
    streams = tuple(sorted({stream_path(path, "streams") for path in dict.fromkeys(settings.streams)}))
    pattern = _pattern(settings.pattern) if settings.pattern else None
    if pattern is None and not streams:
        raise Invalid("pattern and streams are both missing; give at least one of them")
    if wake_stream is not None and wake_stream in streams:
        raise Invalid(f"streams has the wake_stream {wake_stream!r}, which would wake itself forever; leave it out")
    return SubscriptionSettings(
        kind=settings.kind,
        pattern=pattern,
        streams=streams,
        webhook_url=settings.webhook_url if webhook else None,
        wake_stream=wake_stream,
        lease_ms=settings.lease_ms,
        description=settings.description,
    )


def stream_path(text: str, field: str) -> str:
    """A stream-root-relative path of a request's `field`."""
    try:
        return check_path(text.strip("/"))
    except Invalid as error:
        raise Invalid(f"{field}: {error}") from None


def _pattern(text: str) -> str:
    text = text.strip("/")
    segments = text.split("/")
    if len(text.encode()) > limits.PATH_BYTES_MAX or len(segments) > limits.PATTERN_SEGMENTS_MAX:
        raise Invalid(
            f"pattern has more than {limits.PATH_BYTES_MAX} bytes or {limits.PATTERN_SEGMENTS_MAX} segments; shorten it"
        )
    if any(segment in ("", ".", "..") for segment in segments) or any(ord(character) < 0x20 for character in text):
        raise Invalid(f"pattern {text[:80]!r} has an empty, '.' or '..' segment or a control character; leave it out")
    for segment in segments:
        if "*" in segment and segment not in ("*", "**"):
            raise Invalid(
                f"pattern segment {segment[:80]!r} mixes * with text; * stands for a whole segment, ** for any number "
                f"of them, and %2A for the character itself"
            )
    if segments[0] == RESERVED:
        raise Invalid(f"pattern: paths under {RESERVED}/ are reserved; choose another first segment")
    return text


def digest(settings: SubscriptionSettings) -> str:
    """Equal for equal normalised settings."""
    return hashlib.sha256(msgspec.json.encode(msgspec.structs.astuple(settings))).hexdigest()


# -- links


def settled(link: Link, log: Log | None) -> Link | None:
    """The link updated to its stream's `log`; None: there is nothing left to follow."""
    if log is None:
        if not link.explicit:
            return None
        return link if link.log == UNBOUND else _replace(link, log=UNBOUND, acked=0)
    if link.log != log.id:
        return _replace(link, log=log.id, acked=BEFORE_FIRST)
    return link


def state(link: Link, log: Log | None) -> LinkState:
    if log is None:
        return LinkState(link, max(link.acked, 0), 0, False)
    acked = log.start if link.acked == BEFORE_FIRST else link.acked
    return LinkState(link, acked, log.next, log.next > acked)


def judge_ack(link: Link | None, log: Log | None, path: str, position: int, snapshot: Snapshot) -> None:
    """Raise unless `position` may be acked. (Whether it is a message boundary is checked against the log.)"""
    if link is None or log is None:
        raise invalid_offset(f"ack of {path[:80]!r}: the subscription does not follow that stream, or it was deleted")
    if link.log != log.id or snapshot.get(path, (log.id, 0))[0] != log.id:
        raise invalid_offset(f"ack of {path!r}: the stream was recreated after this wake; leave it to the next one")
    if position < link.acked:
        raise invalid_offset(
            f"ack of {path!r}: offset {offset(position)} is behind {offset(link.acked)}, which was acked already"
        )
    if position > log.next:
        raise invalid_offset(f"ack of {path!r}: offset {offset(position)} is beyond the tail {offset(log.next)}")


def invalid_offset(message: str) -> Conflict:
    return Conflict(f"{message}; nothing was acked", code="INVALID_OFFSET")


# -- wakes


def woken(subscription: Subscription, wake_id: str, snapshot: Snapshot, now_ms: int) -> Subscription:
    """The next wake is in flight. A webhook's lease starts with it, a pull-wake's with the claim."""
    webhook = subscription.kind == WEBHOOK
    return _replace(
        subscription,
        generation=subscription.generation + 1,
        wake_id=wake_id,
        snapshot=msgspec.msgpack.encode(snapshot),
        holder=None,
        lease_until_ms=now_ms + subscription.lease_ms if webhook else None,
        next_attempt_ms=now_ms,
    )


def claimed(subscription: Subscription, worker: str, snapshot: Snapshot, now_ms: int) -> Subscription:
    return _replace(
        subscription,
        snapshot=msgspec.msgpack.encode(snapshot),
        holder=worker,
        lease_until_ms=now_ms + subscription.lease_ms,
        retries=0,
        next_attempt_ms=None,
    )


def renewed(subscription: Subscription, now_ms: int) -> Subscription:
    """A delivery begins, and with it the lease."""
    return _replace(subscription, lease_until_ms=now_ms + subscription.lease_ms)


def heartbeat(subscription: Subscription, now_ms: int) -> Subscription:
    """The worker sent a heartbeat: it has the wake, whatever the outcome of the delivery, and the lease is extended."""
    return _replace(renewed(subscription, now_ms), retries=0, next_attempt_ms=None)


def delivered(subscription: Subscription) -> Subscription:
    """The wake is with its worker (or in the wake stream)."""
    return _replace(subscription, retries=0, next_attempt_ms=None)


def failed(subscription: Subscription, now_ms: int, random: float) -> Subscription:
    """An attempt to deliver failed; the next is scheduled."""
    retries = subscription.retries + 1
    return _replace(subscription, retries=retries, next_attempt_ms=now_ms + backoff_ms(retries, random))


def idle(subscription: Subscription) -> Subscription:
    """The wake is over."""
    return _replace(
        subscription, wake_id=None, snapshot=None, holder=None, lease_until_ms=None, retries=0, next_attempt_ms=None
    )


def lapsed(subscription: Subscription, now_ms: int) -> bool:
    """Whether the lease has ended."""
    return subscription.lease_until_ms is not None and subscription.lease_until_ms <= now_ms


def due(subscription: Subscription) -> DueStep | None:
    """The next step that the server takes by itself. A lease that ends while a delivery is due is handled by that
    delivery."""
    if subscription.wake_id is None:
        return None
    if subscription.next_attempt_ms is not None:
        return DueStep(subscription.next_attempt_ms, DELIVER if subscription.kind == WEBHOOK else ANNOUNCE)
    if subscription.lease_until_ms is not None:
        return DueStep(subscription.lease_until_ms, EXPIRE)
    return None


def status(subscription: Subscription) -> str:
    return "failed" if subscription.retries else "active"


def snapshot_of(subscription: Subscription) -> Snapshot:
    return {} if subscription.snapshot is None else _SNAPSHOT.decode(subscription.snapshot)


def fence(subscription: Subscription, *, wake_id: str, generation: int, now_ms: int) -> None:
    """Raise unless these are of the wake in flight and its lease has not ended."""
    if generation != subscription.generation or wake_id != subscription.wake_id:
        raise Fenced(
            f"wake {wake_id[:80]!r} of generation {generation} is over, the current generation is "
            f"{subscription.generation}; stop working on it"
        )
    if lapsed(subscription, now_ms):
        raise Fenced(f"the lease of wake {wake_id!r} has ended; stop working on it, and ack before the lease ends")
