"""The common steps of subscription commands: updating links to committed streams, issuing wakes, storing rows.

The rule: a subscription's row and its links change only here, and each change notifies the dispatcher (`Changed`) once
the commit is durable. A link is updated before it is used, so that a lost or repeated notice of an advanced stream does
no harm.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from random import random

import msgspec

from tailrace import limits
from tailrace.errors import Error, Invalid, NotFound
from tailrace.log import cold
from tailrace.log.entry import LOGS, Log
from tailrace.storage.engine import Reader, Tx
from tailrace.streams.commands import Append
from tailrace.streams.stream import DEFAULT_CONTENT_TYPE, STREAMS, expired, is_json, is_text, media_type
from tailrace.subscriptions import subscription as rules
from tailrace.subscriptions.subscription import (
    CHANGES,
    LINKS,
    SUBSCRIPTIONS,
    Changed,
    Link,
    LinkState,
    Snapshot,
    Subscription,
)

_LINES = (DEFAULT_CONTENT_TYPE, "application/x-ndjson")  # and all text types: a wake event can be a line in these


def load(reader: Reader | Tx, name: str) -> Subscription:
    subscription = reader.get(SUBSCRIPTIONS, name)
    if subscription is None:
        raise NotFound(f"there is no subscription {name[:200]!r}; create it with PUT", code="SUBSCRIPTION_NOT_FOUND")
    return subscription


def require_kind(subscription: Subscription, kind: str, what: str) -> None:
    if subscription.kind != kind:
        raise Invalid(f"subscription {subscription.id!r} is {subscription.kind}: {what} is for {kind} subscriptions")


def log_at(reader: Reader | Tx, path: str) -> Log | None:
    """The log of the stream at `path`, if it exists."""
    stream = reader.get(STREAMS, path)
    if stream is None or stream.deleted or expired(stream, reader.settled_ms):
        return None
    log = reader.get(LOGS, stream.log)
    return None if log is None else cold.whole(reader, log)


def states(reader: Reader | Tx, subscription: Subscription) -> list[LinkState]:
    """The state of all links, in path order. Changes nothing: for queries."""
    found: list[LinkState] = []
    for link in list(reader.scan(LINKS, subscription.id)):
        log = log_at(reader, link.path)
        settled = rules.settled(link, log)
        if settled is not None:
            found.append(rules.state(settled, log))
    return found


def settle(tx: Tx, subscription: Subscription) -> tuple[Subscription, list[LinkState]]:
    """As `states`; the updated links are stored."""
    found: list[LinkState] = []
    for link in list(tx.scan(LINKS, subscription.id)):
        log = log_at(tx, link.path)
        settled = rules.settled(link, log)
        subscription = put_link(tx, subscription, link, settled)
        if settled is not None:
            found.append(rules.state(settled, log))
    return subscription, found


def put_link(tx: Tx, subscription: Subscription, before: Link | None, after: Link | None) -> Subscription:
    """Store a link that was `before` and is `after`; the subscription with its count of links."""
    if after == before:
        return subscription
    count = subscription.links + (after is not None) - (before is not None)
    if after is not None:
        tx.put(LINKS, after)
    elif before is not None:
        tx.delete(LINKS, before.subscription, before.path)
    if count == subscription.links:
        return subscription
    return msgspec.structs.replace(subscription, links=count)


def has_room(subscription: Subscription) -> bool:
    return subscription.links < limits.SUBSCRIPTION_LINKS_MAX


def save(
    tx: Tx, before: Subscription | None, after: Subscription, *, membership: bool = False, warning: str | None = None
) -> Subscription:
    """Store the subscription and notify the dispatcher, if anything changed."""
    if after != before:
        tx.put(SUBSCRIPTIONS, after)
    elif not membership and warning is None:
        return after
    woken = after.generation > (before.generation if before is not None else 0)
    tx.notify(CHANGES, Changed(after.id, membership=membership, woken=woken, warning=warning))
    return after


class Issued(msgspec.Struct, frozen=True):
    """A subscription after a wake may have been issued."""

    subscription: Subscription
    woken: bool = False
    warning: str | None = None


def wake_if_pending(tx: Tx, subscription: Subscription, found: list[LinkState], trigger: str | None = None) -> Issued:
    """Issue the next wake if entries are pending. Not for a subscription with a wake in flight."""
    pending = [state for state in found if state.pending]
    if not pending:
        return Issued(rules.idle(subscription))
    wake_id = "w_" + secrets.token_hex(12)
    subscription = rules.woken(subscription, wake_id, snapshot(pending), tx.now_ms)
    if subscription.kind == rules.WEBHOOK:
        return Issued(subscription, True)
    subscription, warning = announce(tx, subscription, trigger or pending[0].link.path)
    return Issued(subscription, True, warning)


def snapshot(found: Iterable[LinkState]) -> Snapshot:
    return {state.link.path: (state.link.log, state.tail) for state in found if state.pending}


def announce(tx: Tx, subscription: Subscription, trigger: str) -> tuple[Subscription, str | None]:
    """Write the wake event into the wake stream. If that fails, the wake is still issued: it can be claimed, and the
    event is retried later."""
    path = subscription.wake_stream
    assert path is not None, f"pull-wake subscription {subscription.id!r} has no wake stream"
    event = msgspec.json.encode(
        {
            "type": "wake",
            "subscription_id": subscription.id,
            "stream": trigger,
            "generation": subscription.generation,
            "ts": tx.now_ms,
        }
    )
    try:
        stream = tx.get(STREAMS, path)
        content_type = DEFAULT_CONTENT_TYPE if stream is None else stream.content_type
        if not is_json(content_type):
            if not is_text(content_type) and media_type(content_type) not in _LINES:
                raise Invalid(f"stream {path!r} has content type {content_type!r}; create it with application/json")
            event += b"\n"
        Append(path, event, content_type).run(tx)
    except Error as error:
        warning = f"subscription {subscription.id!r} cannot write its wake event: {error}"
        return rules.failed(subscription, tx.now_ms, random()), warning
    return rules.delivered(subscription), None
