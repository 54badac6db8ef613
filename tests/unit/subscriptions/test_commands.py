"""Subscriptions through the database: every transition, fenced and durable. `reopen` stands for a restart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import tailrace
from tailrace import Database, limits
from tailrace.clock import ManualClock
from tailrace.errors import AlreadyClaimed, Conflict, Fenced, Invalid, NotFound, TooMany, Unauthenticated
from tailrace.log.position import offset
from tailrace.storage.engine import Tx
from tailrace.streams.commands import Append, CreateStream, DeleteStream, Fork
from tailrace.streams.queries import ListStreams, ReadStream
from tailrace.subscriptions import commands
from tailrace.subscriptions import subscription as rules
from tailrace.subscriptions.commands import (
    AddStreams,
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
    SubscriptionDescription,
)
from tailrace.subscriptions.dispatch import (
    AnnounceWake,
    BeginDelivery,
    Behind,
    ExpireLease,
    FindDueSubscriptions,
    ListFollowedStreams,
    Notify,
    Owners,
    RecordDelivery,
    SubscriptionStatus,
    WebhookDelivery,
)
from tailrace.subscriptions.subscription import LinkState, Subscription, SubscriptionSettings

BASE = "http://127.0.0.1:4437/v1/stream"
URL = "https://worker.example/hook"


class World:
    """A database that can be closed and opened again, and what a dispatcher would do, done by hand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self.db = self._open()

    def _open(self) -> Database:
        return tailrace.open(self.path, clock=self.clock, housekeeping_s=None)

    def reopen(self) -> None:
        self.db.close()
        self.db = self._open()

    # -- streams

    def create(self, path: str, body: bytes = b"", content_type: str = "application/json") -> None:
        self.db.execute(CreateStream(path, content_type, body))

    def append(self, path: str, body: bytes = b'{"n":1}', content_type: str = "application/json") -> int:
        return self.db.execute(Append(path, body, content_type)).tail

    def delete(self, path: str) -> None:
        self.db.execute(DeleteStream(path))

    def messages(self, path: str) -> list[dict[str, object]]:
        page = self.db.execute(ReadStream(path)).page
        return json.loads(b"[" + b",".join(entry.body for entry in page.entries) + b"]")

    # -- subscriptions

    def webhook(self, name: str = "s", **more: object) -> SubscriptionDescription:
        settings = {"kind": "webhook", "pattern": "events/*", "webhook_url": URL, **more}
        return self.db.execute(PutSubscription(name, SubscriptionSettings(**settings), BASE))  # type: ignore[arg-type]

    def pull(self, name: str = "s", *, wake: bool = True, **more: object) -> SubscriptionDescription:
        if wake:
            self.create("wake/pool")
        settings = {"kind": "pull-wake", "pattern": "events/*", "wake_stream": "wake/pool", **more}
        return self.db.execute(PutSubscription(name, SubscriptionSettings(**settings), BASE))  # type: ignore[arg-type]

    def get(self, name: str = "s") -> SubscriptionDescription:
        return self.db.execute(GetSubscription(name))

    def acked(self, name: str = "s") -> dict[str, str]:
        return {state.link.path: offset(state.acked) for state in self.get(name).streams}

    def notify(self, *paths: str, name: str = "s") -> int:
        return self.db.execute(Notify(tuple((name, path) for path in paths)))

    def claim(self, worker: str = "worker-1", name: str = "s") -> ClaimedWake:
        claimed = self.db.execute(ClaimWake(name, worker))
        assert claimed is not None
        return claimed

    def ack(
        self, wake: ClaimedWake | WebhookDelivery, acks: dict[str, int] | None = None, *, done: bool = False
    ) -> bool:
        row = wake.subscription
        return self.db.execute(
            SubscriptionAck(
                row.id, row.kind, wake.token, row.wake_id or "", row.generation,
                tuple(StreamAck(path, offset(position)) for path, position in (acks or {}).items()), done,
            )
        ).next_wake  # fmt: skip

    def release(self, wake: ClaimedWake) -> None:
        row = wake.subscription
        self.db.execute(ReleaseWake(row.id, wake.token, row.wake_id or "", row.generation))

    def deliver(self, name: str = "s") -> WebhookDelivery:
        delivery = self.db.execute(BeginDelivery(name))
        assert delivery is not None
        return delivery

    def record(self, delivery: WebhookDelivery, *, done: bool = False, failure: str | None = None) -> bool:
        row = delivery.subscription
        assert row.wake_id is not None
        return self.db.execute(RecordDelivery(row.id, row.generation, row.wake_id, done, failure))

    def due(self, name: str = "s") -> rules.DueStep | None:
        (duty,) = self.db.execute(FindDueSubscriptions((name,)))
        assert duty.busy == (self.get(name).subscription.wake_id is not None)
        return duty.due

    def wake_events(self) -> list[dict[str, object]]:
        return self.messages("wake/pool")


@pytest.fixture
def world(data_dir: Path) -> Iterator[World]:
    world = World(data_dir)
    yield world
    world.db.close()


def by_path(found: list[LinkState]) -> dict[str, LinkState]:
    return {state.link.path: state for state in found}


# -- put, get, list, delete


def test_put_makes_confirms_and_refuses_to_change(world: World) -> None:
    made = world.webhook(description="d", lease_ms=1000)
    assert made.fresh
    assert made.kid is not None
    again = world.webhook(description="d", lease_ms=1000)
    assert not again.fresh
    assert again.subscription == made.subscription
    with pytest.raises(Conflict) as raised:
        world.webhook(description="e", lease_ms=1000)
    assert raised.value.code == "SUBSCRIPTION_ALREADY_EXISTS"
    world.reopen()
    assert world.get().subscription == made.subscription
    assert not world.webhook(description="d", lease_ms=1000).fresh


def test_streams_are_compared_without_order_and_membership_does_not_count(world: World) -> None:
    world.webhook(pattern=None, streams=("b", "a", "/a/"))
    world.db.execute(AddStreams("s", ("c",)))
    assert not world.webhook(pattern=None, streams=("a", "b")).fresh


def test_a_confirmation_moves_the_base_url(world: World) -> None:
    world.webhook()
    settings = SubscriptionSettings(kind="webhook", pattern="events/*", webhook_url=URL)
    world.db.execute(PutSubscription("s", settings, "https://public.example/v1/stream"))
    assert world.get().subscription.base_url == "https://public.example/v1/stream"


def test_what_is_not_there_is_not_found(world: World) -> None:
    for command in (
        GetSubscription("x"), AddStreams("x", ("a",)), RemoveStream("x", "a"), ClaimWake("x", "w"),
    ):  # fmt: skip
        with pytest.raises(NotFound) as raised:
            world.db.execute(command)
        assert raised.value.code == "SUBSCRIPTION_NOT_FOUND"


def test_unsafe_webhooks_are_refused_and_leave_nothing(world: World) -> None:
    with pytest.raises(Invalid) as raised:
        world.webhook(webhook_url="http://10.0.0.1/hook")
    assert raised.value.code == "WEBHOOK_URL_REJECTED"
    assert world.db.execute(ListSubscriptions()) == []


def test_existing_streams_are_linked_at_their_tail(world: World) -> None:
    tails = {}
    for path in ("events/a", "events/b", "events/c/d", "other", "events", "events-x/a"):
        world.create(path)
        tails[path] = world.append(path)
    world.create("events/empty")
    world.create("events/gone")
    world.delete("events/gone")
    world.webhook(streams=("other", "absent"))
    assert world.acked() == {
        "absent": offset(0),
        "events/a": offset(tails["events/a"]),
        "events/b": offset(tails["events/b"]),
        "events/empty": offset(0),
        "other": offset(tails["other"]),
    }
    types = {path: state.link.explicit for path, state in by_path(world.get().streams).items()}
    assert types == {"absent": 1, "events/a": 0, "events/b": 0, "events/empty": 0, "other": 1}
    assert world.notify("events/a", "events/b", "events/empty", "other") == 0
    assert world.get().subscription.links == 5


def test_backfill_finds_matches_beyond_one_step(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.subscriptions.commands._BACKFILL_STEP", 3)
    for number in range(10):
        world.create(f"events/{number}")
        world.create(f"f/{number}")
    assert len(world.webhook().streams) == 10
    assert len(world.webhook("all", pattern="**").streams) == 20
    assert len(world.webhook("one", pattern="f/3").streams) == 1


def test_list_pages_in_order(world: World) -> None:
    for name in ("c", "a", "b"):
        world.webhook(name)
    assert [row.id for row in world.db.execute(ListSubscriptions(limit=2))] == ["a", "b"]
    assert [row.id for row in world.db.execute(ListSubscriptions(after="b"))] == ["c"]


def test_limits_are_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SUBSCRIPTIONS_MAX", 2)
    world.webhook("a")
    world.webhook("b")
    with pytest.raises(TooMany):
        world.webhook("c")
    world.webhook("a")  # there already
    world.db.execute(DeleteSubscription("a"))
    world.webhook("c")
    with pytest.raises(Invalid):
        world.webhook("x" * 257)


def test_the_number_of_links_is_limited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SUBSCRIPTION_LINKS_MAX", 2)
    world.create("events/a")
    world.webhook(streams=("x",))
    with pytest.raises(TooMany):
        world.db.execute(AddStreams("s", ("x", "y")))
    world.db.execute(AddStreams("s", ("x", "events/a")))  # there already
    world.create("events/b", b"{}")
    assert world.notify("events/b") == 0
    assert sorted(world.acked()) == ["events/a", "x"]
    world.db.execute(RemoveStream("s", "x"))
    assert world.notify("events/b") == 1
    for path in ("events/c", "events/d"):
        world.create(path)
    with pytest.raises(TooMany):
        world.webhook("t")


def test_delete_ends_everything(world: World) -> None:
    world.pull()
    world.create("events/a", b"{}")
    world.notify("events/a")
    claimed = world.claim()
    assert world.db.execute(DeleteSubscription("s"))
    assert not world.db.execute(DeleteSubscription("s"))
    world.reopen()
    for speak in (lambda: world.ack(claimed, done=True), lambda: world.release(claimed)):
        with pytest.raises(NotFound):
            speak()
    assert world.db.execute(FindDueSubscriptions()) == world.db.execute(ListFollowedStreams()) == []
    assert world.notify("events/a") == 0
    # Made again under the same id it starts over, and the old wake means nothing to it.
    world.pull()
    assert world.acked() == {"events/a": offset(2)}
    world.append("events/a")
    world.notify("events/a")
    world.claim()
    with pytest.raises(Fenced):
        world.ack(claimed, done=True)


# -- membership


def test_streams_are_added_at_their_tail_and_removed(world: World) -> None:
    world.webhook(pattern=None, streams=("a",))
    world.create("b")
    tail = world.append("b")
    world.db.execute(AddStreams("s", ("/b/", "c")))
    assert world.acked() == {"a": offset(0), "b": offset(tail), "c": offset(0)}
    world.append("b")
    world.db.execute(AddStreams("s", ("b",)))
    assert world.acked()["b"] == offset(tail)
    for _ in range(2):
        world.db.execute(RemoveStream("s", "b"))
    assert sorted(world.acked()) == ["a", "c"]
    with pytest.raises(Invalid):
        world.db.execute(AddStreams("s", ()))
    with pytest.raises(Invalid):
        world.db.execute(AddStreams("s", ("ok", "__ds/x")))
    assert sorted(world.acked()) == ["a", "c"]


def test_a_glob_link_outlives_the_explicit_one(world: World) -> None:
    world.create("events/a", b"{}")
    world.webhook(streams=("events/a", "events/later"))
    assert {state.link.explicit for state in world.get().streams} == {1}
    world.db.execute(RemoveStream("s", "events/a"))
    world.db.execute(RemoveStream("s", "events/later"))
    (state,) = world.get().streams
    assert (state.link.path, state.link.explicit) == ("events/a", 0)
    world.db.execute(RemoveStream("s", "events/a"))
    assert sorted(world.acked()) == ["events/a"]
    world.db.execute(AddStreams("s", ("events/a",)))
    assert world.get().streams[0].link.explicit == 1


def test_the_wake_stream_is_not_followed(world: World) -> None:
    world.pull(pattern="**")
    assert world.acked() == {}
    with pytest.raises(Invalid, match="wake"):
        world.db.execute(AddStreams("s", ("wake/pool",)))
    world.append("wake/pool")
    assert world.notify("wake/pool") == 0


# -- new streams


def test_a_new_stream_is_linked_before_its_first_entry(world: World) -> None:
    world.pull()
    world.create("events/a")
    tail = world.append("events/a")
    assert world.notify("events/a", "other") == 1
    assert world.acked() == {"events/a": offset(0)}
    (state,) = world.claim().streams
    assert (state.tail, state.pending) == (tail, True)


def test_an_explicit_stream_that_comes_later_is_followed_from_its_beginning(world: World) -> None:
    world.pull(pattern=None, streams=("later",))
    assert world.acked() == {"later": offset(0)}
    world.create("later", b"{}")
    assert world.notify("later") == 1
    assert world.acked() == {"later": offset(0)}


def test_a_fork_is_new_with_what_it_inherits(world: World) -> None:
    world.create("source", b"{}")
    world.pull()
    world.db.execute(CreateStream("events/fork", fork=Fork("source")))
    assert world.notify("events/fork") == 1
    assert by_path(world.claim().streams)["events/fork"].pending


@pytest.mark.parametrize("notified", [True, False], ids=["notified of the deletion", "not notified"])
@pytest.mark.parametrize("explicit", [True, False])
def test_a_stream_created_again_starts_over(world: World, notified: bool, explicit: bool) -> None:
    more: dict[str, object] = {"pattern": None, "streams": ("events/a",)} if explicit else {}
    world.create("events/a", b"{}")
    world.pull(**more)
    world.delete("events/a")
    if notified:
        world.notify("events/a")
        assert world.acked() == ({"events/a": offset(0)} if explicit else {})
        assert world.get().subscription.links == int(explicit)
    world.create("events/a", b"{}")
    assert world.notify("events/a") == 1
    assert world.acked() == {"events/a": offset(0)}


def test_an_expired_stream_is_gone(world: World) -> None:
    world.db.execute(CreateStream("events/a", "application/json", b"{}", ttl_s=10))
    world.webhook(streams=("events/b",))
    assert sorted(world.acked()) == ["events/a", "events/b"]
    world.clock.advance(11)
    assert sorted(world.acked()) == ["events/b"]


def test_behind_finds_missed_appends(world: World) -> None:
    world.create("events/old", b"{}")
    world.webhook()
    paths = ("events/old", "events/new", "events/empty", "other")
    pairs = tuple(("s", path) for path in paths)

    def behind() -> list[str]:
        return [path for _, path in world.db.execute(Behind(pairs))]

    assert behind() == []
    world.append("events/old")
    world.create("events/new", b"{}")
    world.create("events/empty")
    world.reopen()
    assert behind() == ["events/old", "events/new"]
    assert world.notify(*behind()) == 1
    assert behind() == []
    assert world.db.execute(Behind((("gone", "events/old"),))) == []


def test_owners_are_the_paths_of_streams(world: World) -> None:
    world.create("events/a")
    (stream,) = world.db.execute(ListStreams())
    assert world.db.execute(Owners((stream.log, 999))) == {stream.log: "events/a"}


# -- pull-wake


def test_claim_ack_done(world: World) -> None:
    world.pull()
    world.create("events/a", b"{}")
    world.create("events/b", b"{}")
    assert world.notify("events/b", "events/a") == 1
    (event,) = world.wake_events()
    assert event == {
        "type": "wake", "subscription_id": "s", "stream": "events/b", "generation": 1, "ts": world.clock.now_ms()
    }  # fmt: skip
    world.reopen()
    claimed = world.claim()
    assert claimed.subscription.generation == 1
    assert set(by_path(claimed.streams)) == {"events/a", "events/b"}
    with pytest.raises(AlreadyClaimed) as raised:
        world.claim("worker-2")
    assert (raised.value.holder, raised.value.generation) == ("worker-1", 1)
    world.reopen()
    assert not world.ack(claimed, {"events/a": 2, "/events/b/": 2}, done=True)
    assert world.acked() == {"events/a": offset(2), "events/b": offset(2)}
    with pytest.raises(Fenced):
        world.ack(claimed, done=True)
    assert world.db.execute(ClaimWake("s", "worker-1")) is None
    assert len(world.wake_events()) == 1


def test_done_with_something_pending_begins_the_next_wake(world: World) -> None:
    world.pull()
    world.create("events/a", b"{}")
    world.notify("events/a")
    claimed = world.claim()
    world.append("events/a")
    assert world.notify("events/a") == 0  # the lease is held
    assert world.ack(claimed, {"events/a": 2}, done=True)
    assert [event["generation"] for event in world.wake_events()] == [1, 2]
    again = world.claim("worker-2")
    assert again.subscription.generation == 2
    assert again.subscription.wake_id != claimed.subscription.wake_id


def test_a_claim_needs_no_notice(world: World) -> None:
    world.create("events/a")
    world.pull()
    world.append("events/a")
    claimed = world.claim()
    assert claimed.subscription.generation == 1
    assert [event["generation"] for event in world.wake_events()] == [1]


def test_release_gives_back_and_wakes_again(world: World) -> None:
    world.pull()
    world.create("events/a", b"{}")
    world.notify("events/a")
    claimed = world.claim()
    world.release(claimed)
    assert [event["generation"] for event in world.wake_events()] == [1, 2]
    with pytest.raises(Fenced):
        world.release(claimed)
    again = world.claim()
    world.ack(again, {"events/a": 2})
    world.release(again)
    assert len(world.wake_events()) == 2
    assert world.get().subscription.wake_id is None


def test_acks_renew_the_lease(world: World) -> None:
    world.pull(lease_ms=1000)
    world.create("events/a", b"{}")
    world.notify("events/a")
    claimed = world.claim()
    for _ in range(5):
        world.clock.advance(0.9)
        assert not world.ack(claimed, {"events/a": 2})
        assert not world.db.execute(ExpireLease("s"))
    assert world.acked() == {"events/a": offset(2)}
    assert world.due() == rules.DueStep(world.clock.now_ms() + 1000, rules.EXPIRE)


def test_a_lease_ends_by_the_clock_also_across_a_restart(world: World) -> None:
    world.pull(lease_ms=1000)
    world.create("events/a", b"{}")
    world.notify("events/a")
    claimed = world.claim()
    world.clock.advance(1.0)
    for speak in (lambda: world.ack(claimed, {"events/a": 2}, done=True), lambda: world.release(claimed)):
        with pytest.raises(Fenced, match="lease"):
            speak()
    assert world.acked() == {"events/a": offset(0)}
    world.reopen()
    assert world.due() == rules.DueStep(world.clock.now_ms(), rules.EXPIRE)
    assert world.db.execute(ExpireLease("s"))
    assert not world.db.execute(ExpireLease("s"))
    row = world.get().subscription
    assert (row.holder, row.generation) == (None, 2)
    assert [event["generation"] for event in world.wake_events()] == [1, 2]
    with pytest.raises(Fenced):
        world.ack(claimed, {"events/a": 2}, done=True)


def test_a_lapsed_lease_can_be_claimed_before_anybody_ended_it(world: World) -> None:
    world.pull(lease_ms=1000)
    world.create("events/a", b"{}")
    world.notify("events/a")
    world.claim()
    world.clock.advance(1.0)
    claimed = world.claim("worker-2")
    assert (claimed.subscription.holder, claimed.subscription.generation) == ("worker-2", 2)


def test_a_lease_that_ends_with_nothing_pending_leaves_it_idle(world: World) -> None:
    world.pull(lease_ms=1000)
    world.create("events/a", b"{}")
    world.notify("events/a")
    world.ack(world.claim(), {"events/a": 2})
    world.clock.advance(1.0)
    assert world.db.execute(ExpireLease("s"))
    row = world.get().subscription
    assert (row.wake_id, row.generation, world.due()) == (None, 1, None)


def test_a_wake_whose_streams_are_gone_does_not_block_the_next(world: World) -> None:
    world.pull()
    world.create("events/a", b"{}")
    world.notify("events/a")
    world.delete("events/a")
    assert world.db.execute(ClaimWake("s", "worker")) is None
    assert world.get().subscription.wake_id is None
    world.create("events/b", b"{}")
    assert world.notify("events/b") == 1
    assert [event["generation"] for event in world.wake_events()] == [1, 2]


def test_a_missing_wake_stream_delays_the_event_and_not_the_wake(world: World) -> None:
    world.pull(wake=False)
    world.create("events/a", b"{}")
    assert world.notify("events/a") == 1
    row = world.get().subscription
    assert (row.generation, row.retries, rules.status(row)) == (1, 1, "failed")
    due = world.due()
    assert due is not None
    assert due.what == rules.ANNOUNCE
    world.db.execute(AnnounceWake("s"))  # too early
    assert world.get().subscription.retries == 1
    world.clock.advance(2)
    world.db.execute(AnnounceWake("s"))
    assert world.get().subscription.retries == 2
    world.create("wake/pool")
    world.reopen()
    world.clock.advance(3)
    world.db.execute(AnnounceWake("s"))
    (event,) = world.wake_events()
    assert (event["generation"], event["stream"]) == (1, "events/a")
    assert (rules.status(world.get().subscription), world.due()) == ("active", None)
    assert world.claim().subscription.generation == 1


@pytest.mark.parametrize("why", ["missing", "closed", "picture"])
def test_a_wake_stream_that_takes_nothing_leaves_the_wake_to_be_claimed(world: World, why: str) -> None:
    world.pull(wake=False)
    if why == "closed":
        world.db.execute(CreateStream("wake/pool", "application/json", closed=True))
    elif why == "picture":
        world.create("wake/pool", content_type="image/png")
    world.create("events/a", b"{}")
    assert world.notify("events/a") == 1
    assert world.get().subscription.retries == 1
    claimed = world.claim()
    assert (claimed.subscription.retries, claimed.subscription.next_attempt_ms) == (0, None)
    assert not world.ack(claimed, {"events/a": 2}, done=True)


@pytest.mark.parametrize("content_type", ["application/octet-stream", "text/plain", "application/x-ndjson"])
def test_other_wake_streams_get_lines(world: World, content_type: str) -> None:
    world.create("wake/pool", content_type=content_type)
    world.pull(wake=False)
    world.create("events/a", b"{}")
    world.notify("events/a")
    world.release(world.claim())
    page = world.db.execute(ReadStream("wake/pool")).page
    lines = b"".join(entry.body for entry in page.entries).splitlines()
    assert [json.loads(line)["generation"] for line in lines] == [1, 2]


def test_wake_events_renew_the_wake_streams_ttl(world: World) -> None:
    world.db.execute(CreateStream("wake/pool", "application/json", ttl_s=10))
    world.pull(wake=False)
    world.clock.advance(8)
    world.create("events/a", b"{}")
    world.notify("events/a")
    world.clock.advance(8)
    assert len(world.wake_events()) == 1


# -- acks


def test_acks_are_all_or_nothing(world: World) -> None:
    world.pull()
    world.create("events/a", b"{}")
    world.create("events/b", b"{}")
    world.notify("events/a", "events/b")
    claimed = world.claim()
    for wrong in ({"events/x": 2}, {"events/b": 3}, {"events/b": 1}):
        with pytest.raises(Conflict) as raised:
            world.ack(claimed, {"events/a": 2, **wrong}, done=True)
        assert raised.value.code == "INVALID_OFFSET"
    assert world.acked() == {"events/a": offset(0), "events/b": offset(0)}
    world.ack(claimed, {"events/a": 2})
    with pytest.raises(Conflict, match="behind"):
        world.ack(claimed, {"events/a": 0})
    world.ack(claimed, {"events/a": 2})  # again is not back


@pytest.mark.parametrize("text", ["-1", "now", "", "2", "0000000000000000_2", offset(0) + "x"])
def test_an_ack_takes_real_offsets_only(world: World, text: str) -> None:
    world.pull()
    world.create("events/a", b"{}")
    world.notify("events/a")
    row = (claimed := world.claim()).subscription
    with pytest.raises(Conflict) as raised:
        world.db.execute(
            SubscriptionAck("s", row.kind, claimed.token, row.wake_id or "", 1, (StreamAck("events/a", text),))
        )
    assert raised.value.code == "INVALID_OFFSET"


def test_an_ack_may_reach_past_the_snapshot_but_not_into_a_message(world: World) -> None:
    world.pull()
    world.create("events/a", b"{}")
    world.notify("events/a")
    claimed = world.claim()
    tail = world.append("events/a")
    for inside in (1, tail - 1):
        with pytest.raises(Conflict, match="inside a message"):
            world.ack(claimed, {"events/a": inside})
    world.ack(claimed, {"events/a": 2})
    assert not world.ack(claimed, {"events/a": tail}, done=True)


@pytest.mark.parametrize("notified", [True, False])
def test_an_offset_of_a_deleted_stream_is_not_taken_for_its_successors(world: World, notified: bool) -> None:
    world.pull()
    world.create("events/a", b"{}")
    world.notify("events/a")
    claimed = world.claim()
    world.delete("events/a")
    with pytest.raises(Conflict, match="was deleted"):
        world.ack(claimed, {"events/a": 2}, done=True)
    world.create("events/a", b"{}")
    if notified:
        world.notify("events/a")
    with pytest.raises(Conflict, match="recreated"):
        world.ack(claimed, {"events/a": 2}, done=True)
    assert world.ack(claimed, done=True)
    assert world.acked() == {"events/a": offset(0)}


def test_the_offset_of_a_new_stream_is_where_it_can_be_read_and_can_be_acked(world: World) -> None:
    world.webhook()
    world.db.execute(CreateStream("events/a", "application/json", b"{}", max_age_s=1))
    world.notify("events/a")
    tail = world.append("events/a")
    world.clock.advance(5)
    world.db.sweep()
    delivery = world.db.execute(BeginDelivery("s"))
    assert delivery is not None
    ((link, acked, shown, pending),) = map(msgspec.structs.astuple, delivery.streams)
    assert (link.acked, acked, shown, pending) == (rules.BEFORE_FIRST, tail, tail, False)
    row = delivery.subscription
    world.db.execute(
        SubscriptionAck("s", row.kind, delivery.token, row.wake_id or "", 1, (StreamAck("events/a", offset(acked)),))
    )


def test_a_stream_named_often_is_looked_up_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.pull()
    lookups: list[str] = []
    link = commands._link_by_name

    def noted(tx: Tx, subscription: Subscription, path: str) -> Subscription:
        lookups.append(path)
        return link(tx, subscription, path)

    monkeypatch.setattr(commands, "_link_by_name", noted)
    world.db.execute(AddStreams("s", ("b", "a", "/b/", "a", "b")))
    assert lookups == ["b", "a"]


# -- tokens and fencing


def test_who_speaks_for_a_wake_needs_everything_right(world: World) -> None:
    world.pull("s")
    world.pull("t")
    world.create("events/a", b"{}")
    for name in ("s", "t"):
        world.notify("events/a", name=name)
    claimed, other = world.claim(name="s"), world.claim(name="t")
    row = claimed.subscription
    wake_id = row.wake_id or ""

    def code(token: str, wake: str, generation: int, name: str = "s", kind: str = rules.PULL_WAKE) -> tuple[int, str]:
        with pytest.raises((Unauthenticated, Fenced, Invalid)) as raised:
            world.db.execute(SubscriptionAck(name, kind, token, wake, generation, done=True))
        return raised.value.status, raised.value.code

    assert code(other.token, wake_id, 1) == (401, "TOKEN_INVALID")
    assert code("nonsense", wake_id, 1) == (401, "TOKEN_INVALID")
    assert code(claimed.token, "w_other", 1) == (409, "FENCED")
    assert code(claimed.token, wake_id, 2) == (409, "FENCED")
    assert code(claimed.token, wake_id, 0) == (409, "FENCED")
    assert code(claimed.token, wake_id, 1, kind=rules.WEBHOOK) == (400, "INVALID_REQUEST")
    assert code(claimed.token, wake_id, 1, name="unknown") == (401, "TOKEN_INVALID")
    world.clock.advance(24 * 3600)
    assert code(claimed.token, wake_id, 1) == (401, "TOKEN_EXPIRED")


def test_a_token_outlives_a_restart_and_not_its_wake(world: World) -> None:
    world.pull()
    world.create("events/a", b"{}")
    world.notify("events/a")
    first = world.claim()
    world.reopen()
    world.release(first)
    second = world.claim()
    row = second.subscription
    with pytest.raises(Fenced):  # the right wake and generation with the token of the one before
        world.db.execute(SubscriptionAck("s", row.kind, first.token, row.wake_id or "", row.generation, done=True))
    assert not world.ack(second, {"events/a": 2}, done=True)


def test_what_is_for_one_kind_is_not_for_the_other(world: World) -> None:
    world.webhook("hook")
    with pytest.raises(Invalid, match="pull-wake"):
        world.db.execute(ClaimWake("hook", "w"))
    for worker in ("", "x" * 257):
        with pytest.raises(Invalid, match="worker"):
            world.db.execute(ClaimWake("hook", worker))


# -- webhooks


def test_a_wake_is_delivered_and_done(world: World) -> None:
    world.webhook()
    world.create("events/a", b"{}")
    assert world.notify("events/a") == 1
    assert world.due() == rules.DueStep(world.clock.now_ms(), rules.DELIVER)
    delivery = world.deliver()
    (state,) = delivery.streams
    assert (state.link.path, state.tail, state.pending) == ("events/a", 2, True)
    assert delivery.key.d is not None
    assert world.record(delivery, done=True)
    assert world.acked() == {"events/a": offset(2)}
    assert world.due() is None
    assert not world.record(delivery, done=True)


def test_done_acks_the_snapshot_and_wakes_for_the_rest(world: World) -> None:
    world.webhook()
    world.create("events/a", b"{}")
    world.notify("events/a")
    world.append("events/a")
    world.create("events/b", b"{}")
    assert world.notify("events/a", "events/b") == 0
    delivery = world.deliver()
    states = by_path(delivery.streams)
    assert (states["events/a"].tail, states["events/b"].tail, states["events/b"].pending) == (2, 0, False)
    world.reopen()
    world.record(delivery, done=True)
    assert world.acked() == {"events/a": offset(2), "events/b": offset(0)}
    again = world.deliver()
    assert again.subscription.generation == 2
    assert {path for path, state in by_path(again.streams).items() if state.pending} == {"events/a", "events/b"}
    world.record(again, done=True)
    assert world.get().subscription.wake_id is None


def test_done_does_not_ack_a_stream_created_again(world: World) -> None:
    world.webhook()
    world.create("events/a", b"{}")
    world.notify("events/a")
    delivery = world.deliver()
    world.delete("events/a")
    world.create("events/a", b"{}")
    world.record(delivery, done=True)
    assert world.acked() == {"events/a": offset(0)}
    assert world.deliver().subscription.generation == 2


def test_callbacks_ack_and_fence(world: World) -> None:
    world.webhook()
    world.create("events/a", b"{}")
    world.notify("events/a")
    delivery = world.deliver()
    world.record(delivery)
    world.reopen()
    assert not world.ack(delivery, {"events/a": 2}, done=True)
    with pytest.raises(Fenced):
        world.ack(delivery, {"events/a": 2}, done=True)


def test_a_callback_may_come_before_the_answer(world: World) -> None:
    world.webhook()
    world.create("events/a", b"{}")
    world.notify("events/a")
    delivery = world.deliver()
    assert not world.ack(delivery, {"events/a": 2})
    assert not world.record(delivery, failure="the answer was lost")  # it does not matter: the worker has spoken
    assert world.due() == rules.DueStep(world.clock.now_ms() + 30_000, rules.EXPIRE)
    world.append("events/a")
    assert world.ack(delivery, done=True)
    assert not world.record(delivery)
    row = world.get().subscription
    assert (row.generation, row.retries) == (2, 0)
    assert world.due() == rules.DueStep(world.clock.now_ms(), rules.DELIVER)


def test_a_heartbeat_then_done_as_the_answer(world: World) -> None:
    world.webhook()
    world.create("events/a", b"{}")
    world.notify("events/a")
    delivery = world.deliver()
    world.ack(delivery)
    assert world.record(delivery, done=True)
    assert world.acked() == {"events/a": offset(2)}


def test_a_worker_that_falls_silent_loses_the_wake(world: World) -> None:
    world.webhook(lease_ms=1000)
    world.create("events/a", b"{}")
    world.notify("events/a")
    delivery = world.deliver()
    world.record(delivery)
    assert world.db.execute(BeginDelivery("s")) is None
    world.clock.advance(0.9)
    world.ack(delivery)
    world.clock.advance(0.9)
    assert not world.db.execute(ExpireLease("s"))
    world.clock.advance(0.1)
    world.reopen()
    assert world.db.execute(ExpireLease("s"))
    with pytest.raises(Fenced):
        world.ack(delivery, done=True)
    assert world.deliver().subscription.generation == 2


def test_failures_are_retried_on_a_stored_schedule(world: World) -> None:
    world.webhook(lease_ms=600_000)
    world.create("events/a", b"{}")
    world.notify("events/a")
    waits = []
    for retries in range(1, 9):
        delivery = world.deliver()
        assert delivery.subscription.generation == 1
        assert world.record(delivery, failure="500")
        assert world.db.execute(BeginDelivery("s")) is None
        world.reopen()
        row = world.get().subscription
        assert (row.retries, rules.status(row)) == (retries, "failed")
        due = world.due()
        assert due is not None
        waits.append(due.at_ms - world.clock.now_ms())
        world.clock.advance(waits[-1] / 1000 + 0.001)
    for wait, middle in zip(waits, (1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000), strict=True):
        assert 0.8 * middle <= wait <= 1.2 * middle
    world.record(world.deliver(), done=True)
    row = world.get().subscription
    assert (row.retries, rules.status(row), world.due()) == (0, "active", None)


def test_a_retry_after_the_lease_is_a_new_wake(world: World) -> None:
    world.webhook(lease_ms=1000)
    world.create("events/a", b"{}")
    world.notify("events/a")
    first = world.deliver()
    world.record(first, failure="500")
    world.clock.advance(5)
    assert not world.db.execute(ExpireLease("s"))  # the retry deals with it
    world.append("events/a")
    second = world.deliver()
    assert (second.subscription.generation, second.subscription.retries) == (2, 1)
    assert second.streams[0].tail > first.streams[0].tail
    with pytest.raises(Fenced):
        world.ack(first, done=True)
    assert not world.record(first, done=True)
    assert not world.ack(second, {"events/a": second.streams[0].tail}, done=True)


def test_a_delivery_restarts_the_lease(world: World) -> None:
    world.webhook(lease_ms=1000)
    world.create("events/a", b"{}")
    world.notify("events/a")
    world.clock.advance(0.9)  # it had to wait for others
    delivery = world.deliver()
    assert delivery.subscription.generation == 1
    world.clock.advance(0.9)
    assert not world.ack(delivery, {"events/a": 2}, done=True)


def test_a_lapsed_delivery_of_nothing_ends(world: World) -> None:
    world.webhook(lease_ms=1000)
    world.create("events/a", b"{}")
    world.notify("events/a")
    world.record(world.deliver(), failure="500")
    world.delete("events/a")
    world.clock.advance(5)
    assert world.db.execute(BeginDelivery("s")) is None
    row = world.get().subscription
    assert (row.wake_id, row.retries, world.due()) == (None, 0, None)


def test_a_crash_before_the_answer_repeats_the_delivery(world: World) -> None:
    world.webhook()
    world.create("events/a", b"{}")
    world.notify("events/a")
    first = world.deliver()
    world.reopen()
    second = world.deliver()
    assert second.subscription.wake_id == first.subscription.wake_id
    world.record(second, done=True)
    assert world.due() is None


def test_what_the_server_finds_after_a_restart(world: World) -> None:
    world.create("events/a")
    world.webhook("hook", streams=("x", "y"))
    world.pull("pull")
    world.append("events/a")
    for name in ("hook", "pull"):
        world.notify("events/a", name=name)
    world.claim(name="pull")
    world.reopen()
    now_ms = world.clock.now_ms()
    hook, pull = world.db.execute(ListFollowedStreams())
    assert (hook.id, hook.pattern, hook.streams) == ("hook", "events/*", ("x", "y"))
    assert (pull.id, pull.streams) == ("pull", ())
    assert world.db.execute(ListFollowedStreams(("pull", "nobody"))) == [pull]
    assert world.db.execute(FindDueSubscriptions()) == [
        SubscriptionStatus("hook", True, rules.DueStep(now_ms, rules.DELIVER)),
        SubscriptionStatus("pull", True, rules.DueStep(now_ms + 30_000, rules.EXPIRE)),
    ]


def test_commands_notify_the_dispatcher(world: World) -> None:
    notices: list[rules.Changed] = []
    world.db.tail.subscribe(rules.CHANGES, notices.extend)
    world.pull(wake=False)
    world.create("events/a", b"{}")
    world.notify("events/a")
    world.notify("events/a")
    world.db.execute(DeleteSubscription("s"))
    put, woken, gone = notices
    assert (put.id, put.membership, put.woken) == ("s", True, False)
    assert (woken.membership, woken.woken) == (False, True)
    assert "wake/pool" in (woken.warning or "")
    assert gone.membership


# -- nothing is lost, whatever happens when


class Following(RuleBasedStateMachine):
    """One pull-wake subscription, streams that come and go, a worker that may vanish, a server that may restart.

    The model knows for each stream what was appended and what was acked. Whatever has happened: once the dispatcher
    has caught up, unacked entries mean that a wake is in flight, and a worker that claims is shown them."""

    PATHS = ("events/a", "events/b", "named")
    paths = st.sampled_from(PATHS)

    @initialize()
    def begin(self) -> None:
        import tempfile

        self.directory = tempfile.TemporaryDirectory()
        self.world = World(Path(self.directory.name) / "data")
        self.world.pull(streams=("named",), lease_ms=1000)
        self.tails: dict[str, int] = {}
        self.unacked: dict[str, int] = {}  # path -> acked position, of streams that exist
        self.claims: list[ClaimedWake] = []
        self.generation = 0

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.db.close()
            self.directory.cleanup()

    @rule(path=paths)
    def append(self, path: str) -> None:
        if path not in self.tails:
            self.world.create(path)
            self.unacked[path] = 0
        self.tails[path] = self.world.append(path)

    @precondition(lambda self: self.tails)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(self.tails)))
        self.world.delete(path)
        del self.tails[path], self.unacked[path]

    @rule(paths=st.sets(paths))
    def tell(self, paths: set[str]) -> None:
        self.world.notify(*sorted(paths))

    @rule()
    def restart(self) -> None:
        self.world.reopen()

    @rule(seconds=st.sampled_from([0.5, 1.0]))
    def wait(self, seconds: float) -> None:
        self.world.clock.advance(seconds)

    @rule()
    def expire(self) -> None:
        self.world.db.execute(ExpireLease("s"))

    @rule()
    def claim(self) -> None:
        try:
            claimed = self.world.db.execute(ClaimWake("s", "worker"))
        except AlreadyClaimed:
            return
        if claimed is not None:
            self.claims.append(claimed)

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), done=st.booleans())
    def ack(self, data: st.DataObject, done: bool) -> None:
        claimed = data.draw(st.sampled_from(self.claims))
        shown = {state.link.path: state.tail for state in claimed.streams if state.pending}
        try:
            self.world.ack(claimed, shown, done=done)
        except Conflict:
            return
        assert claimed is self.claims[-1], "an earlier wake than the last was let through"
        for path, tail in shown.items():
            self.unacked[path] = tail

    @invariant()
    def generations_only_grow(self) -> None:
        if hasattr(self, "world"):
            generation = self.world.get().subscription.generation
            assert generation >= self.generation
            self.generation = generation

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "world"):
            return
        pairs = tuple(("s", path) for path in self.PATHS)
        behind = self.world.db.execute(Behind(pairs))
        self.world.db.execute(Notify(tuple(behind)))
        found = self.world.get()
        pending = {state.link.path for state in found.streams if state.pending}
        assert pending == {path for path, tail in self.tails.items() if tail > self.unacked[path]}
        assert found.subscription.links == len(found.streams)
        if pending:
            assert found.subscription.wake_id is not None


TestFollowing = Following.TestCase
TestFollowing.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
