"""Commands and queries of clients on subscriptions. Those of the server itself are in `subscriptions/dispatch.py`."""

from __future__ import annotations

import secrets

import msgspec

from tailrace import limits
from tailrace.command import Command, Query
from tailrace.errors import AlreadyClaimed, Conflict, Fenced, Invalid, TooMany
from tailrace.log import log as logs
from tailrace.log import position as positions
from tailrace.log.entry import LOGS
from tailrace.log.position import offset
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.table import META, MetaRow
from tailrace.storage.vault import read_secret
from tailrace.streams.stream import STREAMS
from tailrace.subscriptions import signing, wake_tokens, webhook
from tailrace.subscriptions import subscription as rules
from tailrace.subscriptions.subscription import (
    LINKS,
    SUBSCRIPTIONS,
    Changed,
    Link,
    LinkState,
    Subscription,
    SubscriptionSettings,
)
from tailrace.subscriptions.wakes import (
    has_room,
    load,
    log_at,
    put_link,
    require_kind,
    save,
    settle,
    snapshot,
    states,
    wake_if_pending,
)

_BACKFILL_STEP = 1_000


class SubscriptionDescription(msgspec.Struct, frozen=True):
    subscription: Subscription
    streams: list[LinkState]
    kid: str | None  # the active signing key, if deliveries are signed
    fresh: bool = False


class ClaimedWake(msgspec.Struct, frozen=True):
    subscription: Subscription
    token: str
    streams: list[LinkState]


class SubscriptionAcked(msgspec.Struct, frozen=True):
    next_wake: bool


class StreamAck(msgspec.Struct, frozen=True):
    """Entries of a stream up to `offset` are processed."""

    stream: str
    offset: str


class PutSubscription(Command[SubscriptionDescription], frozen=True):
    """Create a subscription; succeeds if it exists with the same configuration.

    Existing streams are linked at their tail: a subscription does not replay earlier entries."""

    id: str
    settings: SubscriptionSettings
    base_url: str
    webhooks: webhook.WebhookRules = webhook.WebhookRules()

    def subjects(self) -> tuple[str, ...]:
        settings = rules.normalised(self.settings)
        # A pattern is granted if its prefix up to the first wildcard is.
        named = (settings.pattern, settings.wake_stream, *settings.streams)
        return (f"subscriptions/{self.id}", *(f"streams/{path}" for path in named if path is not None))

    def heavy(self) -> bool:
        return True  # a subscription may follow very many streams, and each is read

    def run(self, tx: Tx) -> SubscriptionDescription:
        rules.check_id(self.id)
        settings = rules.normalised(self.settings)
        if settings.webhook_url is not None:
            webhook.parse(settings.webhook_url, self.webhooks)
        digest = rules.digest(settings)
        existing = tx.get(SUBSCRIPTIONS, self.id)
        if existing is not None:
            return self._confirm(tx, existing, digest)
        _count(tx, 1)
        floor = tx.get(META, "counter/log")
        subscription = Subscription(
            id=self.id, kind=settings.kind, pattern=settings.pattern, webhook_url=settings.webhook_url,
            wake_stream=settings.wake_stream, lease_ms=settings.lease_ms, description=settings.description,
            created_ms=tx.now_ms, digest=digest, base_url=self.base_url, log_floor=int(floor.value) if floor else 0,
            links=0, generation=0, wake_id=None, snapshot=None, holder=None, lease_until_ms=None, retries=0,
            next_attempt_ms=None,
        )  # fmt: skip
        for path in settings.streams:
            subscription = _link_by_name(tx, subscription, path)
        subscription = _backfill(tx, subscription)
        save(tx, None, subscription, membership=True)
        return _described(tx, subscription, fresh=True)

    def _confirm(self, tx: Tx, existing: Subscription, digest: str) -> SubscriptionDescription:
        if existing.digest != digest:
            raise Conflict(
                f"subscription {self.id!r} exists with a different configuration; delete it first or use another id",
                code="SUBSCRIPTION_ALREADY_EXISTS",
            )
        # The client reaches the server at this URL now, so callbacks should too.
        save(tx, existing, msgspec.structs.replace(existing, base_url=self.base_url))
        return _described(tx, existing, fresh=False)


class GetSubscription(Query[SubscriptionDescription], frozen=True):
    subject = ("subscriptions", "id")

    id: str

    def run(self, reader: Reader) -> SubscriptionDescription:
        subscription = load(reader, self.id)
        keys = signing.load(reader) if subscription.kind == rules.WEBHOOK else []
        return SubscriptionDescription(subscription, states(reader, subscription), keys[0].kid if keys else None)


class ListSubscriptions(Query[list[Subscription]], frozen=True):
    """Subscriptions in the order of their ids, `after` one."""

    after: str | None = None
    limit: int = 100

    def run(self, reader: Reader) -> list[Subscription]:
        return list(reader.scan(SUBSCRIPTIONS, after=self.after, limit=self.limit))


class DeleteSubscription(Command[bool], frozen=True):
    """Delete a subscription; True if it existed. A worker that holds a wake of it can no longer ack."""

    freeing = True
    subject = ("subscriptions", "id")

    id: str

    def heavy(self) -> bool:
        return True  # a subscription may follow very many streams, and each is read

    def run(self, tx: Tx) -> bool:
        if tx.get(SUBSCRIPTIONS, self.id) is None:
            return False
        for link in list(tx.scan(LINKS, self.id)):
            tx.delete(LINKS, self.id, link.path)
        tx.delete(SUBSCRIPTIONS, self.id)
        _count(tx, -1)
        tx.notify(rules.CHANGES, Changed(self.id, membership=True))
        return True


class AddStreams(Command[None], frozen=True):
    """Follow streams by name, from their tail on."""

    id: str
    streams: tuple[str, ...]

    def subjects(self) -> tuple[str, ...]:
        named = (rules.stream_path(text, "streams") for text in self.streams)
        return (f"subscriptions/{self.id}", *(f"streams/{path}" for path in named))

    def heavy(self) -> bool:
        return True  # a subscription may follow very many streams, and each is read

    def run(self, tx: Tx) -> None:
        subscription = load(tx, self.id)
        if not self.streams:
            raise Invalid("streams is empty; name at least one stream to follow")
        after = subscription
        for path in dict.fromkeys(rules.stream_path(text, "streams") for text in dict.fromkeys(self.streams)):
            if path == subscription.wake_stream:
                raise Invalid(f"streams has the wake_stream {path!r}, which would wake itself for ever; leave it out")
            after = _link_by_name(tx, after, path)
        save(tx, subscription, after, membership=True)


class RemoveStream(Command[None], frozen=True):
    """Stop following a stream by name. If the pattern matches it, it is still followed."""

    freeing = True

    id: str
    stream: str

    def subjects(self) -> tuple[str, ...]:
        return f"subscriptions/{self.id}", f"streams/{self.stream.strip('/')}"

    def run(self, tx: Tx) -> None:
        subscription = load(tx, self.id)
        path = self.stream.strip("/")
        link = tx.get(LINKS, self.id, path)
        if link is None or not link.explicit:
            return
        kept = msgspec.structs.replace(link, explicit=0) if link.matched else None
        if kept is not None:
            kept = rules.settled(kept, log_at(tx, path))
        save(tx, subscription, put_link(tx, subscription, link, kept), membership=True)


class ClaimWake(Command[ClaimedWake | None], frozen=True):
    """Take the lease of a pull-wake subscription; None: nothing is pending.

    None is a result and not an error because the command may end a wake whose streams were deleted: if it stayed in
    flight, the next append would not wake a worker."""

    subject = ("subscriptions", "id")

    id: str
    worker: str

    def heavy(self) -> bool:
        return True  # a subscription may follow very many streams, and each is read

    def run(self, tx: Tx) -> ClaimedWake | None:
        rules.check_worker(self.worker)
        before = load(tx, self.id)
        require_kind(before, rules.PULL_WAKE, "claim")
        subscription = before
        if subscription.holder is not None:
            if not rules.lapsed(subscription, tx.now_ms):
                raise AlreadyClaimed(holder=subscription.holder, generation=subscription.generation)
            subscription = rules.idle(subscription)
        subscription, found = settle(tx, subscription)
        warning = None
        if subscription.wake_id is None or not any(state.pending for state in found):
            issued = wake_if_pending(tx, subscription, found)
            subscription, warning = issued.subscription, issued.warning
            if not issued.woken:
                save(tx, before, subscription)
                return None
        subscription = rules.claimed(subscription, self.worker, snapshot(found), tx.now_ms)
        save(tx, before, subscription, warning=warning)
        return ClaimedWake(subscription, _token(tx, subscription), found)


class SubscriptionAck(Command[SubscriptionAcked], frozen=True):
    """Move cursors under a wake and renew its lease; with `done`, end the wake. Used by webhook callbacks and pull-wake
    acks alike. Either all acks apply or none."""

    freeing = True

    id: str
    kind: str  # WEBHOOK or PULL_WAKE, as the caller expects
    token: str
    wake_id: str
    generation: int
    acks: tuple[StreamAck, ...] = ()
    done: bool = False

    def heavy(self) -> bool:
        return True  # a subscription may follow very many streams, and each is read

    def run(self, tx: Tx) -> SubscriptionAcked:
        before = _holder(tx, self.id, self.kind, self.token, self.wake_id, self.generation)
        snapshot = rules.snapshot_of(before) if self.acks else {}  # decoded once: it may have very many streams
        for ack in self.acks:
            self._apply(tx, snapshot, ack)
        if not self.done:
            save(tx, before, rules.heartbeat(before, tx.now_ms))
            return SubscriptionAcked(False)
        return SubscriptionAcked(end_wake(tx, before))

    def _apply(self, tx: Tx, snapshot: rules.Snapshot, ack: StreamAck) -> None:
        path = ack.stream.strip("/")
        try:
            position = positions.parse(ack.offset)
        except Invalid as error:
            raise rules.invalid_offset(f"ack of {path[:80]!r}: {error}") from None
        log = log_at(tx, path)
        link = tx.get(LINKS, self.id, path)
        rules.judge_ack(link, log, path, position, snapshot)
        assert link is not None and log is not None
        # Cold entries are not looked up here: any position below the hot part is accepted.
        hot = tx.get(LOGS, log.id)
        assert hot is not None
        if position not in (link.acked, 0) and position > hot.start and not logs.boundary(tx, hot, position):
            raise rules.invalid_offset(f"ack of {path!r}: offset {offset(position)} lies inside a message")
        tx.put(LINKS, msgspec.structs.replace(link, acked=position))


class CheckToken(Query[None], frozen=True):
    """Raise unless the token was issued for a wake of this subscription and has not expired. `SubscriptionAck` and
    `ReleaseWake` check it themselves; handlers use this before they parse a body."""

    id: str
    token: str

    def run(self, reader: Reader) -> None:
        # Before the first token there is no secret, and no token is valid.
        secret = read_secret(reader, wake_tokens.SECRET) or secrets.token_bytes(32)
        wake_tokens.verify(secret, self.token, self.id, reader.now_ms)


class ReleaseWake(Command[None], frozen=True):
    """Release the lease of a pull-wake subscription. If entries are pending, the next wake follows at once."""

    id: str
    token: str
    wake_id: str
    generation: int

    def heavy(self) -> bool:
        return True  # a subscription may follow very many streams, and each is read

    def run(self, tx: Tx) -> None:
        end_wake(tx, _holder(tx, self.id, rules.PULL_WAKE, self.token, self.wake_id, self.generation))


def end_wake(tx: Tx, before: Subscription) -> bool:
    """End the wake in flight; True if the next one has begun."""
    subscription, found = settle(tx, rules.idle(before))
    issued = wake_if_pending(tx, subscription, found)
    save(tx, before, issued.subscription, warning=issued.warning)
    return issued.woken


def _holder(tx: Tx, name: str, kind: str, token: str, wake_id: str, generation: int) -> Subscription:
    """The subscription, if token, wake and generation are those of its wake in flight. The token is checked first:
    callers without one cannot find out which subscriptions exist."""
    granted = wake_tokens.verify(wake_tokens.secret(tx), token, name, tx.now_ms)
    subscription = load(tx, name)
    require_kind(subscription, kind, "callback" if kind == rules.WEBHOOK else "ack or release")
    if (granted.generation, granted.wake_id) != (generation, wake_id):
        raise Fenced("the token was issued for another wake than the one in the request; stop working on this one")
    rules.fence(subscription, wake_id=wake_id, generation=generation, now_ms=tx.now_ms)
    return subscription


def _token(tx: Tx, subscription: Subscription) -> str:
    assert subscription.wake_id is not None
    return wake_tokens.issue(
        wake_tokens.secret(tx), subscription.id, subscription.generation, subscription.wake_id, tx.now_ms
    )


def _described(tx: Tx, subscription: Subscription, *, fresh: bool) -> SubscriptionDescription:
    kid = signing.ensure(tx)[0].kid if subscription.kind == rules.WEBHOOK else None
    return SubscriptionDescription(subscription, states(tx, subscription), kid, fresh)


def _count(tx: Tx, change: int) -> None:
    row = tx.get(META, rules.COUNT)
    count = (int(row.value) if row else 0) + change
    if change > 0 and count > limits.SUBSCRIPTIONS_MAX:
        raise TooMany(f"there are {limits.SUBSCRIPTIONS_MAX} subscriptions, the maximum; delete one first")
    tx.put(META, MetaRow(rules.COUNT, b"%d" % count))


def _link_by_name(tx: Tx, subscription: Subscription, path: str) -> Subscription:
    """Follow `path` explicitly; a stream that is already followed keeps its cursor."""
    log = log_at(tx, path)
    existing = tx.get(LINKS, subscription.id, path)
    link = rules.settled(existing, log) if existing is not None else None
    if link is None:
        _require_room(subscription, existing)
        matched = int(rules.follows(subscription, path))
        link = Link(subscription.id, path, 1, matched, log.id if log else rules.UNBOUND, log.next if log else 0)
    else:
        link = msgspec.structs.replace(link, explicit=1)
    return put_link(tx, subscription, existing, link)


def _require_room(subscription: Subscription, existing: Link | None = None) -> None:
    if existing is None and not has_room(subscription):
        raise TooMany(
            f"a subscription follows {limits.SUBSCRIPTION_LINKS_MAX} streams at most; narrow the pattern or use "
            f"several subscriptions"
        )


def _backfill(tx: Tx, subscription: Subscription) -> Subscription:
    """Link the existing streams that the pattern matches, at their tail."""
    if subscription.pattern is None:
        return subscription
    prefix = rules.compiled(subscription.pattern).prefix
    start = prefix or None
    before = prefix + "0" if prefix else None  # "0" sorts next after "/"
    after = None
    while True:
        step = list(tx.scan(STREAMS, start=start, after=after, before=before, limit=_BACKFILL_STEP))
        for stream in step:
            if not rules.follows(subscription, stream.path):
                continue
            log = log_at(tx, stream.path)
            existing = tx.get(LINKS, subscription.id, stream.path)
            if log is not None and existing is None:
                _require_room(subscription)
                link = Link(subscription.id, stream.path, 0, 1, log.id, log.next)
                subscription = put_link(tx, subscription, None, link)
        if len(step) < _BACKFILL_STEP:
            return subscription
        start, after = None, step[-1].path
