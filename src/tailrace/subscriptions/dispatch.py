"""The server's own commands on subscriptions: detect streams that advanced, deliver wakes, end leases.

Each is a small command that checks again before it acts, so it can be late, repeated or lost in a crash; due work is
found in the database (`FindDueSubscriptions`, `Behind`), never only in memory.
"""

from __future__ import annotations

from random import random

import msgspec

from tailrace.access import Permission
from tailrace.command import Command, Query
from tailrace.log.entry import LOGS
from tailrace.storage.engine import Reader, Tx
from tailrace.streams.stream import OWNER
from tailrace.subscriptions import signing, wake_tokens
from tailrace.subscriptions import subscription as rules
from tailrace.subscriptions.commands import end_wake
from tailrace.subscriptions.signing import SigningKey
from tailrace.subscriptions.subscription import LINKS, SUBSCRIPTIONS, DueStep, Link, LinkState, Subscription
from tailrace.subscriptions.wakes import (
    announce,
    has_room,
    log_at,
    put_link,
    save,
    settle,
    states,
    wake_if_pending,
)

Pair = tuple[str, str]  # a subscription's id, a stream's path


class FollowedStreams(msgspec.Struct, frozen=True):
    """The streams that a subscription follows: its pattern, and streams by name."""

    id: str
    pattern: str | None
    streams: tuple[str, ...]  # by name


class SubscriptionStatus(msgspec.Struct, frozen=True):
    """Whether a subscription is busy, and what is due for it."""

    id: str
    busy: bool  # a wake is in flight
    due: DueStep | None


class WebhookDelivery(msgspec.Struct, frozen=True):
    """A wake to be delivered to a webhook."""

    subscription: Subscription
    streams: list[LinkState]  # with the tails of the wake's snapshot
    token: str
    key: SigningKey


class ListFollowedStreams(Query[list[FollowedStreams]], frozen=True):
    """The streams that these subscriptions follow (None: all). Deleted subscriptions are left out."""

    ids: tuple[str, ...] | None = None

    def run(self, reader: Reader) -> list[FollowedStreams]:
        return [self._following(reader, subscription) for subscription in _some(reader, self.ids)]

    def _following(self, reader: Reader, subscription: Subscription) -> FollowedStreams:
        named = tuple(link.path for link in reader.scan(LINKS, subscription.id) if link.explicit)
        return FollowedStreams(subscription.id, subscription.pattern, named)


class FindDueSubscriptions(Query[list[SubscriptionStatus]], frozen=True):
    """The status of these subscriptions (None: all)."""

    ids: tuple[str, ...] | None = None

    def run(self, reader: Reader) -> list[SubscriptionStatus]:
        return [SubscriptionStatus(row.id, row.wake_id is not None, rules.due(row)) for row in _some(reader, self.ids)]


class Owners(Query[dict[int, str]], frozen=True):
    """The paths of the streams that have these logs; other logs are left out."""

    logs: tuple[int, ...]

    def run(self, reader: Reader) -> dict[int, str]:
        rows = (reader.get(LOGS, number) for number in self.logs)
        return {
            row.id: row.owner.removeprefix(OWNER) for row in rows if row is not None and row.owner.startswith(OWNER)
        }


class Behind(Query[list[Pair]], frozen=True):
    """The pairs among these for which `Notify` has work to do."""

    pairs: tuple[Pair, ...]

    def run(self, reader: Reader) -> list[Pair]:
        return [pair for pair in self.pairs if self._behind(reader, *pair)]

    def _behind(self, reader: Reader, name: str, path: str) -> bool:
        subscription = reader.get(SUBSCRIPTIONS, name)
        if subscription is None:
            return False
        log = log_at(reader, path)
        link = reader.get(LINKS, name, path)
        if link is None:
            return log is not None and log.next > log.start
        settled = rules.settled(link, log)
        return settled != link or (subscription.wake_id is None and rules.state(link, log).pending)


class Notify(Command[int], frozen=True):
    """Streams advanced, were created or deleted: link new ones, and wake idle subscriptions; the number woken."""

    permission = Permission.ADMIN

    pairs: tuple[Pair, ...]

    def run(self, tx: Tx) -> int:
        return sum(self._one(tx, name, path) for name, path in self.pairs)

    def _one(self, tx: Tx, name: str, path: str) -> bool:
        before = tx.get(SUBSCRIPTIONS, name)
        if before is None:
            return False
        log = log_at(tx, path)
        link = tx.get(LINKS, name, path)
        subscription, warning = before, None
        if link is not None:
            settled = rules.settled(link, log)
        elif log is None or log.id <= before.log_floor or not rules.follows(before, path):
            return False
        elif has_room(before):
            settled = Link(name, path, 0, 1, log.id, rules.BEFORE_FIRST)
        else:
            save(tx, before, before, warning=f"subscription {name!r} follows too many streams: {path!r} is left out")
            return False
        subscription = put_link(tx, subscription, link, settled)
        woken = False
        if subscription.wake_id is None and settled is not None and rules.state(settled, log).pending:
            subscription, found = settle(tx, subscription)
            issued = wake_if_pending(tx, subscription, found, path)
            subscription, woken, warning = issued.subscription, issued.woken, issued.warning
        save(tx, before, subscription, warning=warning)
        return woken


class AnnounceWake(Command[None], frozen=True):
    """Try again to write the wake event of a pull-wake subscription."""

    permission = Permission.ADMIN

    id: str

    def run(self, tx: Tx) -> None:
        before = tx.get(SUBSCRIPTIONS, self.id)
        if before is None or not _is_due(before, rules.ANNOUNCE, tx.now_ms):
            return
        trigger = min(rules.snapshot_of(before))
        subscription, warning = announce(tx, before, trigger)
        save(tx, before, subscription, warning=warning)


class ExpireLease(Command[bool], frozen=True):
    """End a wake whose lease has ended; True if it had."""

    permission = Permission.ADMIN

    id: str

    def run(self, tx: Tx) -> bool:
        before = tx.get(SUBSCRIPTIONS, self.id)
        if before is None or not _is_due(before, rules.EXPIRE, tx.now_ms):
            return False
        end_wake(tx, before)
        return True


class BeginDelivery(Command[WebhookDelivery | None], frozen=True):
    """Start the lease and return the delivery; None: nothing is due. A wake whose lease ended before it could be
    delivered is replaced by a new one, and the retries continue."""

    permission = Permission.ADMIN

    id: str

    def run(self, tx: Tx) -> WebhookDelivery | None:
        before = tx.get(SUBSCRIPTIONS, self.id)
        if before is None or not _is_due(before, rules.DELIVER, tx.now_ms):
            return None
        subscription = rules.renewed(before, tx.now_ms)
        if rules.lapsed(before, tx.now_ms):
            subscription, found = settle(tx, before)
            issued = wake_if_pending(tx, subscription, found)
            subscription = issued.subscription
            if not issued.woken:
                save(tx, before, subscription)
                return None
        save(tx, before, subscription)
        assert subscription.wake_id is not None
        token = wake_tokens.issue(
            wake_tokens.secret(tx), self.id, subscription.generation, subscription.wake_id, tx.now_ms
        )
        return WebhookDelivery(subscription, self._snapshot(tx, subscription), token, signing.ensure(tx)[0])

    def _snapshot(self, tx: Tx, subscription: Subscription) -> list[LinkState]:
        """The links with the tails that {"done": true} will ack; later entries are for the next wake."""
        snapshot = rules.snapshot_of(subscription)
        found: list[LinkState] = []
        for state in states(tx, subscription):
            link = state.link
            log, tail = snapshot.get(link.path, (link.log, state.acked))
            if log == link.log:
                # A trim may have moved the start past the snapshot's tail: nothing of it is left to read then.
                tail = max(tail, state.acked)
                found.append(LinkState(link, state.acked, tail, tail > state.acked))
        return found


class RecordDelivery(Command[bool], frozen=True):
    """Record the outcome of a delivery; False if the wake was over already. `failure` None: the receiver accepted it,
    and with `done` has finished: the snapshot is acked."""

    permission = Permission.ADMIN

    id: str
    generation: int
    wake_id: str
    done: bool = False
    failure: str | None = None

    def run(self, tx: Tx) -> bool:
        before = tx.get(SUBSCRIPTIONS, self.id)
        if before is None or (before.generation, before.wake_id) != (self.generation, self.wake_id):
            return False  # a callback was faster, or the subscription is gone
        if self.failure is None and self.done:
            self._ack_snapshot(tx, before)
            end_wake(tx, before)
            return True
        if before.next_attempt_ms is None:
            return False  # a callback has shown that the worker received it
        if self.failure is None:
            save(tx, before, rules.delivered(before))
        else:
            warning = f"webhook of subscription {self.id!r}: {self.failure}"
            save(tx, before, rules.failed(before, tx.now_ms, random()), warning=warning)
        return True

    def _ack_snapshot(self, tx: Tx, subscription: Subscription) -> None:
        for path, (log, tail) in rules.snapshot_of(subscription).items():
            link = tx.get(LINKS, self.id, path)
            if link is not None and link.log == log and link.acked < tail:
                tx.put(LINKS, msgspec.structs.replace(link, acked=tail))


def _some(reader: Reader, ids: tuple[str, ...] | None) -> list[Subscription]:
    """These subscriptions as far as they exist, or all."""
    if ids is None:
        return list(reader.scan(SUBSCRIPTIONS))
    return [row for name in ids if (row := reader.get(SUBSCRIPTIONS, name)) is not None]


def _is_due(subscription: Subscription, what: str, now_ms: int) -> bool:
    due = rules.due(subscription)
    return due is not None and due.what == what and due.at_ms <= now_ms
