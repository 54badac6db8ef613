"""Consumer groups against a model: consumers that crash, give back, extend and acknowledge out of order, in any order.

The model knows of every offset whether it was never delivered, is held and by whom, waits to be delivered again, or was
acknowledged. A consume must deliver exactly what the model says, and at the end, when the crashed are timed out and
a consumer drains the topic, every message has been acknowledged by a consumer that held it: none is lost, none is
acknowledged for another. Order holds within a partition: what one answer has is ascending, and what is delivered for
the first time comes in the order of publishing.
"""

from __future__ import annotations

import logging
import shutil

import hypothesis.strategies as st
import msgspec
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import tailrace
from tailrace.check import check_database
from tailrace.clock import ManualClock
from tailrace.errors import Conflict, Invalid
from tailrace.topics.commands import CreateTopic, Outgoing, Publish
from tailrace.topics.consuming import Ack, Consume, Extend, Nack, ResetGroup
from tailrace.topics.group import StartPoint
from tailrace.topics.queries import ListGroups
from tests.support.directories import scratch_directory
from tests.support.soak import examples

TOPIC, GROUP = "app.work", "workers"
consumers = st.sampled_from(["", "ann", "bob", "cid"])


class Held(msgspec.Struct):
    """Who has an offset, or had it last (`lease` None: given back)."""

    consumer: str
    lease: str | None
    until_ms: int
    attempt: int


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = scratch_directory()
        self.clock = ManualClock()
        self.db = tailrace.open(self.directory, clock=self.clock, housekeeping_s=None)
        self.published = 0
        self.cursor = 0
        self.held: dict[int, Held] = {}
        self.acked: set[int] = set()
        self.leases: list[tuple[str, str]] = []  # consumer and lease
        logging.disable(logging.CRITICAL)

    @initialize()
    def create(self) -> None:
        self.db.execute(CreateTopic(TOPIC))

    def teardown(self) -> None:
        try:
            self.drain()
            self.db.close()
            assert check_database(self.directory).findings == []
        finally:
            logging.disable(logging.NOTSET)
            shutil.rmtree(self.directory, ignore_errors=True)

    # -- what is done

    @rule(count=st.integers(1, 12))
    def publish(self, count: int) -> None:
        messages = tuple(Outgoing(b"%d" % (self.published + at)) for at in range(count))
        places = self.db.execute(Publish(TOPIC, messages)).offsets
        assert places == [(0, self.published + at) for at in range(count)]
        self.published += count

    @rule(consumer=consumers, limit=st.integers(1, 10), visibility_s=st.integers(1, 9))
    def consume(self, consumer: str, limit: int, visibility_s: int) -> None:
        now_ms = self.clock.now_ms()
        free = sorted(offset for offset, held in self.held.items() if held.until_ms <= now_ms)
        wanted = (free + list(range(self.cursor, self.published)))[:limit]
        got = self.db.execute(Consume(TOPIC, GROUP, limit=limit, consumer=consumer, visibility_ms=visibility_s * 1000))
        assert [message.offset for message in got.messages] == wanted
        assert [message.envelope.payload for message in got.messages] == [b"%d" % offset for offset in wanted]
        for message in got.messages:
            before = self.held.get(message.offset)
            assert message.attempt == (1 if before is None else before.attempt + 1)
            assert got.lease is not None
            self.held[message.offset] = Held(consumer, got.lease, now_ms + visibility_s * 1000, message.attempt)
            self.cursor = max(self.cursor, message.offset + 1)
        if got.lease is not None:
            self.leases.append((consumer, got.lease))
        assert got.next_offset == (wanted[-1] + 1 if wanted else self.cursor)
        assert got.has_more == (self.cursor < self.published or len(free) > len(set(free) & set(wanted)))

    @rule(consumer=consumers, upto=st.integers(0, 60))
    def acknowledge_upto(self, consumer: str, upto: int) -> None:
        self._acknowledge(consumer, None, upto)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), back=st.integers(0, 3))
    def acknowledge_lease(self, data: st.DataObject, back: int) -> None:
        consumer, lease = data.draw(st.sampled_from(self.leases))
        mine = [offset for offset, held in self.held.items() if (held.consumer, held.lease) == (consumer, lease)]
        if mine:
            self._acknowledge(consumer, lease, max(0, max(mine) - back))

    def _acknowledge(self, consumer: str, lease: str | None, upto: int) -> None:
        command = Ack(TOPIC, GROUP, upto, consumer=consumer, lease=lease)
        if upto >= self.cursor:
            try:
                self.db.execute(command)
            except Invalid as error:
                assert error.code == "NOT_DELIVERED"
                return
            raise AssertionError(f"offset {upto} was acknowledged before it was delivered")
        covered = {
            offset
            for offset, held in self.held.items()
            if offset <= upto and held.lease is not None and held.consumer == consumer
            if lease is None or held.lease == lease
        }
        done = self.db.execute(command)
        assert done.acked == len(covered)
        for offset in covered:
            del self.held[offset]
        self.acked |= covered
        assert done.floor == min(self.held, default=self.cursor)

    @rule(consumer=consumers, first=st.integers(0, 40), count=st.integers(1, 20), delay_s=st.integers(0, 4))
    def give_back(self, consumer: str, first: int, count: int, delay_s: int) -> None:
        if not self.cursor and not self.published:
            return
        mine = {
            offset
            for offset, held in self.held.items()
            if first <= offset < first + count and held.consumer == consumer and held.lease is not None
        }
        command = Nack(TOPIC, GROUP, consumer=consumer, first=first, upto=first + count - 1, delay_ms=delay_s * 1000)
        try:
            done = self.db.execute(command)
        except Invalid as error:
            assert error.code == "NOT_DELIVERED" and not self.held and not self.acked
            return
        assert done.messages == len(mine)
        for offset in mine:
            until_ms = self.clock.now_ms() + delay_s * 1000
            self.held[offset] = Held("", None, until_ms, self.held[offset].attempt)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), visibility_s=st.integers(1, 20))
    def extend(self, data: st.DataObject, visibility_s: int) -> None:
        consumer, lease = data.draw(st.sampled_from(self.leases))
        mine = [held for held in self.held.values() if (held.consumer, held.lease) == (consumer, lease)]
        command = Extend(TOPIC, GROUP, consumer=consumer, lease=lease, visibility_ms=visibility_s * 1000)
        if not mine:
            try:
                self.db.execute(command)
            except Conflict as error:
                assert error.code == "LEASE_LOST"
                return
            raise AssertionError("a lease that holds nothing was extended")
        assert self.db.execute(command).messages == len(mine)
        for held in mine:
            held.until_ms = self.clock.now_ms() + visibility_s * 1000

    @rule(seconds=st.integers(0, 12))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule()
    def restart(self) -> None:
        self.db.close()
        self.db = tailrace.open(self.directory, clock=self.clock, housekeeping_s=None)

    @precondition(lambda self: self.published)
    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        to = data.draw(st.integers(0, self.published))
        self.db.execute(ResetGroup(TOPIC, GROUP, StartPoint("offset", to)))
        self.cursor = to
        self.held.clear()
        self.acked = {offset for offset in self.acked if offset < to} | set(
            range(to)
        )  # whatever lies below is passed over

    # -- what holds

    @invariant()
    def group_info_is_right(self) -> None:
        infos = self.db.execute(ListGroups(TOPIC)) if self.published else []
        if not infos:
            return
        (info,) = infos
        held = [held for held in self.held.values() if held.lease is not None and held.until_ms > self.clock.now_ms()]
        assert (info.cursor, info.in_flight, info.lag) == (
            self.cursor,
            len(held),
            len(self.held) + self.published - self.cursor,
        )
        assert info.lost == 0

    def drain(self) -> None:
        """Everybody has crashed but one, who does all that is left."""
        self.clock.advance(3600)
        while True:
            got = self.db.execute(Consume(TOPIC, GROUP, limit=7, consumer="last"))
            if not got.messages:
                break
            offsets = [message.offset for message in got.messages]
            assert offsets == sorted(offsets) and not self.acked & set(offsets)
            self.db.execute(Ack(TOPIC, GROUP, offsets[-1], consumer="last", lease=got.lease))
            self.acked |= set(offsets)
        assert self.acked == set(range(self.published)), "every message was processed at least once"


TestGroups = GroupMachine.TestCase
TestGroups.settings = settings(max_examples=examples(120), stateful_step_count=40)
