"""Links of a cluster: what a leader answers under its lease, and what a server does when another one leads.

The databases are directories, whose parts are the same; the lease is that of the test.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tailrace import limits
from tailrace.bus import link
from tailrace.bus.asking import BeginLogin, ListServers
from tailrace.bus.forwarder import Forwarder
from tailrace.bus.link import BusLink
from tailrace.bus.server_commands import ForgetLife, ListSent
from tailrace.bus.writer import BusServer
from tailrace.clock import FollowedClock
from tailrace.config import Config
from tailrace.database import Database, open_configured
from tailrace.errors import Error, Unavailable
from tailrace.storage.sqlite import SqliteEngine
from tailrace.streams.commands import Append, CreateStream
from tailrace.streams.queries import DescribeStream
from tests.support.patience import PATIENCE_S

TEXT = "text/plain"


class Lease:
    """A lease that the test ends."""

    def __init__(self, epoch: int) -> None:
        self.server = f"leader-{epoch}"
        self.epoch = epoch
        self.fresh = True
        self.lost: Error | None = None
        self.committed_batch = 0


class Cluster:
    """A leader, and servers that are connected to it."""

    def __init__(self, directory: Path) -> None:
        self.config = Config(data=str(directory / "data"))
        self.path = str(directory / "bus")
        self.epoch = 0
        self.followers: list[Database] = []

    async def lead(self) -> None:
        self.epoch += 1
        self.lease = Lease(self.epoch)
        self.db = open_configured(self.config)
        self.db.attach(asyncio.get_running_loop())
        throttle = self.db.sharing.login_throttle()
        self.bus = BusServer(self.db, throttle, "0", replaces=True, term=self.lease, url="http://leader")
        await self.bus.start(self._listen)

    async def _listen(self, protocol: Callable[[], BusLink]) -> asyncio.AbstractServer:
        if os.path.exists(self.path):
            os.unlink(self.path)
        return await asyncio.get_running_loop().create_unix_server(protocol, self.path)

    async def follow(self, url: str = "http://follower") -> Database:
        async def connect(loop: asyncio.AbstractEventLoop, protocol: Callable[[], BusLink]) -> None:
            await loop.create_unix_connection(protocol, self.path)

        def forwarder(db: Database) -> Forwarder:
            name = f"cluster-{len(self.followers)}"
            return Forwarder(
                connect, name, "1", version="0", tail=db.tail, metrics=db.metrics, recent=db.recent, url=url
            )

        engine = SqliteEngine(self.config.data, read_only=True)
        db = Database(engine, clock=FollowedClock(), housekeeping_s=None, forwarder=forwarder)
        self.followers.append(db)
        db.attach(asyncio.get_running_loop())
        await until(lambda: bus_of(db).welcomed.is_set())
        return db

    async def end_term(self) -> None:
        await self.bus.stop()
        await self.db.aclose()

    async def close(self) -> None:
        for follower in self.followers:
            await follower.aclose()
        await self.end_term()


def bus_of(db: Database) -> Any:
    assert db.forwarder is not None
    return db.forwarder


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


def in_cluster(test: Callable[[Cluster], Awaitable[None]], directory: Path) -> None:
    async def run() -> None:
        cluster = Cluster(directory)
        await cluster.lead()
        try:
            await test(cluster)
        finally:
            await cluster.close()

    asyncio.run(run())


def test_a_leader_that_leads_no_more_answers_nothing(tmp_path: Path) -> None:
    """Not even that a command has failed: it is sent to the next leader, and done there."""

    async def test(cluster: Cluster) -> None:
        follower = await cluster.follow()
        await follower.aexecute(CreateStream("a", TEXT))
        cluster.lease.lost = Unavailable("another server leads", code="NOT_LEADER")
        cluster.db._runner.close()  # every command fails from now on
        waiting = [follower.aexecute(Append("a", b"%d" % number, TEXT)) for number in range(3)]
        await until(lambda: bus_of(follower)._sent_upto == 4)
        await cluster.end_term()
        await cluster.lead()
        assert [found.tail for found in await asyncio.gather(*waiting)] == [1, 2, 3]

    in_cluster(test, tmp_path)


def test_a_leader_that_steps_down_finishes_and_leaves_the_rest(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        follower = await cluster.follow()
        await follower.aexecute(CreateStream("a", TEXT))
        runner: Any = cluster.db._runner
        runner._turn.acquire()  # a commit takes long
        before = follower.aexecute(Append("a", b"before;", TEXT))
        await until(lambda: len(runner._pending) == 1)
        draining = asyncio.ensure_future(cluster.bus.drain(PATIENCE_S))
        await until(lambda: cluster.bus._draining)
        after = follower.aexecute(Append("a", b"after;", TEXT))
        await until(lambda: bus_of(follower)._sent_upto == 3)
        assert not draining.done()
        runner._release_turn()
        assert await draining
        assert (await before).tail == len(b"before;")
        await cluster.end_term()
        await cluster.lead()
        assert (await after).tail == len(b"before;after;")
        assert follower.metrics.outcomes_unknown == 0

    in_cluster(test, tmp_path)


def test_questions_wait_for_the_next_leader(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        follower = await cluster.follow()
        await cluster.end_term()
        await until(lambda: not bus_of(follower).connected)
        asked = bus_of(follower).ask(BeginLogin("ann", "10.0.0.1", True))
        await cluster.lead()
        assert await asked is None

    in_cluster(test, tmp_path)


def test_caches_are_trusted_only_while_the_leader_answers_under_its_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that was frozen and continues sends beats again, before it knows that another one leads."""

    async def test(cluster: Cluster) -> None:
        follower = await cluster.follow()
        await until(lambda: bus_of(follower).fresh)
        cluster.lease.fresh = False
        await until(lambda: not bus_of(follower).fresh)
        assert bus_of(follower).connected  # and beats are received
        assert time.monotonic() - bus_of(follower)._received_s < PATIENCE_S
        cluster.lease.fresh = True
        await until(lambda: bus_of(follower).fresh)

    monkeypatch.setattr(limits, "BUS_TTL_S", 0.3)
    monkeypatch.setattr(limits, "BUS_BEAT_S", 0.02)
    in_cluster(test, tmp_path)


def test_a_link_to_an_earlier_leader_is_cut(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        follower = await cluster.follow()
        bus = bus_of(follower)
        first = bus._link
        bus.dropped("leader-1", 1)  # the one that it is connected to
        bus.dropped("leader-1", 7)  # the same one, which has taken over from itself
        bus.dropped("leader-0", 0)  # what was read before
        assert bus._link is first and first.open
        bus.dropped("leader-2", 2)
        await until(lambda: not first.open)
        await until(lambda: bus.connected)

    in_cluster(test, tmp_path)


def test_a_server_that_was_forgotten_repeats_nothing(tmp_path: Path) -> None:
    """It was frozen for long. What it had sent may be committed, and nobody knows any more."""

    async def test(cluster: Cluster) -> None:
        follower = await cluster.follow()
        await follower.aexecute(CreateStream("a", TEXT))
        (life,) = [row.server for row in await cluster.db.aexecute(ListSent())]
        cluster.bus._flush = lambda: None  # type: ignore[method-assign]
        committed = follower.aexecute(Append("a", b"committed;", TEXT))
        await until(lambda: any(row.upto == 2 for row in cluster.db.execute(ListSent())))
        await cluster.end_term()
        await until(lambda: not bus_of(follower).connected)
        later = follower.aexecute(Append("a", b"later;", TEXT))
        db = open_configured(cluster.config)
        db.execute(ForgetLife(life))
        db.close()
        await cluster.lead()
        with pytest.raises(Unavailable) as unknown:
            await committed
        assert unknown.value.code == "OUTCOME_UNKNOWN"
        assert (await later).tail == len(b"committed;later;")
        assert (await follower.aexecute(DescribeStream("a"))).log.next == len(b"committed;later;")
        assert life not in [row.server for row in await cluster.db.aexecute(ListSent())]

    in_cluster(test, tmp_path)


def test_servers_that_were_not_connected_for_long_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(cluster: Cluster) -> None:
        gone, there = await cluster.follow(), await cluster.follow()
        await gone.aexecute(CreateStream("a", TEXT))
        cluster.followers.remove(gone)
        await gone.aclose()
        async with asyncio.timeout(PATIENCE_S):
            while len(found := await cluster.db.aexecute(ListSent())) != 1:
                await asyncio.sleep(0.01)
        assert found[0].server.startswith(bus_of(there).server)

    monkeypatch.setattr(limits, "BUS_FORGET_S", 0.1)
    in_cluster(test, tmp_path)


def test_servers_are_listed_with_their_lag(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        one = await cluster.follow("http://one")
        await cluster.follow("http://two")
        await one.aexecute(CreateStream("a", TEXT))
        found = await bus_of(one).ask(ListServers())
        assert (found.epoch, found.url) == (1, "http://leader")
        assert [each.url for each in found.servers] == ["http://one", "http://two"]
        (behind, _) = cluster.bus._links.values()
        await one.aexecute(Append("a", b"x", TEXT))
        cluster.bus._pong(behind, 1, cluster.bus._batch - 1)
        assert behind.lag_s > 0
        cluster.bus._pong(behind, 1, cluster.bus._batch)
        assert behind.lag_s == 0

    in_cluster(test, tmp_path)


def test_a_server_that_sends_nothing_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network does not always say that a machine is gone."""

    async def test(cluster: Cluster) -> None:
        follower = await cluster.follow()
        silent = bus_of(follower)
        silent._ping = lambda: None
        made = silent._link
        await until(lambda: not made.open)

    monkeypatch.setattr(limits, "WRITER_WAIT_S", 0.3)
    monkeypatch.setattr(limits, "BUS_BEAT_S", 0.05)
    in_cluster(test, tmp_path)


def test_a_connection_that_ends_before_it_is_made_leaves_nothing(tmp_path: Path) -> None:
    """As one does whose TLS fails."""

    async def test(cluster: Cluster) -> None:
        made = cluster.bus._accept()
        assert made not in cluster.bus._links
        made.connection_lost(None)
        assert not cluster.bus._links

    in_cluster(test, tmp_path)


def test_messages_of_a_link_that_was_cut_are_not_applied(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        follower = await cluster.follow()
        bus = bus_of(follower)
        old = bus._link
        await follower.aexecute(CreateStream("a", TEXT))
        bus._lost(old)
        waiting = follower.aexecute(Append("a", b"x", TEXT))
        bus._receive(old, [link.DONE, [(2, True, b"\xc0")]])
        old.cut()
        assert (await waiting).tail == 1

    in_cluster(test, tmp_path)


def test_a_clock_is_followed_through_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the reports the quickest counts, and an old one not for ever."""
    clock = FollowedClock()

    def report(offset_ms: int) -> int:
        """How far the clock is from the monotonic one after a report of this offset."""
        monkeypatch.setattr(clock, "_read", lambda: (0, 5_000))
        clock.follow(5_000 + offset_ms, 7)
        return clock._base_ms

    assert [report(1_000_000 - late_ms) for late_ms in (40, 5, 60)] == [999_960, 999_995, 999_995]
    assert [report(999_800) for _ in range(100)][-1] == 999_800  # this machine's clock runs faster
    assert clock.lag_ms == 7
    assert report(-9_000_000) == -9_000_000  # it was set back
