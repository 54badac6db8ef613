"""What is done to the servers, to PostgreSQL and to the ways between them. Each leaves everything working again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import httpx

from tailrace import limits
from tests.faults.databases import wait_until
from tests.faults.servers import READY_S, Cluster, OneServer
from tests.support.proxy import AFTER, BEFORE, LATE, Proxy

FROZEN_S: Final = limits.LEASE_TTL_S + 1.0
FULL_S: Final = 1.0
CUT_S: Final = 20.0  # within which a leader commits something


class Fault(NamedTuple):
    name: str
    do: Callable[[Cluster], None]
    weight: int  # how often, compared with the others
    needs: str = ""  # "standby" or "disk"


def again(server: OneServer) -> None:
    server.started()


def kill_leader(cluster: Cluster) -> None:
    leader = cluster.leader()
    leader.kill()
    again(leader)


def kill_follower(cluster: Cluster) -> None:
    follower = cluster.followers()[0]
    follower.kill()
    again(follower)


def terminate_leader(cluster: Cluster) -> None:
    """In order, as a rolling upgrade does."""
    leader = cluster.leader()
    leader.process.terminate()
    again(leader)


@contextlib.contextmanager
def stopped(server: OneServer) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.go_on()


def freeze_leader(cluster: Cluster) -> None:
    epoch, leader = cluster.epoch(), cluster.leader()
    with stopped(leader):
        wait_until(lambda: cluster.epoch() > epoch, "nobody took over from a leader that hangs", READY_S)
        time.sleep(0.5)


def freeze_follower(cluster: Cluster) -> None:
    with stopped(cluster.followers()[-1]):
        time.sleep(FROZEN_S)


def end_session(cluster: Cluster) -> None:
    cluster.databases.primary.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'tailrace leader %'"
    )


def end_all_sessions(cluster: Cluster) -> None:
    cluster.databases.primary.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'tailrace%'"
    )


def restart(mode: str) -> Callable[[Cluster], None]:
    def do(cluster: Cluster) -> None:
        cluster.databases.primary.stop(mode)
        cluster.databases.primary.start()

    return do


def cut(mode: str) -> Callable[[Cluster], None]:
    def do(cluster: Cluster) -> None:
        ways = cluster.leader().databases
        events = [way.cut_at_commit(mode) for way in ways]
        try:
            wait_until(lambda: any(event.is_set() for event in events), "the leader committed nothing", CUT_S)
        finally:
            for way in ways:
                way.pass_commits()

    return do


@contextlib.contextmanager
def silent(ways: list[Proxy], *, lose: bool) -> Iterator[None]:
    for way in ways:
        way.silence()
    try:
        yield
    finally:
        for way in ways:
            way.heal(lose=lose)


def leader_without_database(cluster: Cluster) -> None:
    """The leader's way to the database is gone, and those of the others are not."""
    epoch, leader = cluster.epoch(), cluster.leader()
    with silent(leader.databases, lose=epoch % 2 == 0):
        wait_until(lambda: cluster.epoch() > epoch, "nobody took over from a leader without a database", READY_S)
        time.sleep(0.5)


def follower_without_database(cluster: Cluster) -> None:
    with silent(cluster.followers()[0].databases, lose=cluster.epoch() % 2 == 0):
        time.sleep(FROZEN_S)


def refused_database(cluster: Cluster) -> None:
    """The way breaks, and is refused for a while."""
    ways = cluster.leader().databases
    for way in ways:
        way.refuse()
    time.sleep(1.0)
    for way in ways:
        way.heal()


def leader_without_followers(cluster: Cluster) -> None:
    """No server reaches the leader's bus, and all of them reach the database."""
    with silent([cluster.leader().bus], lose=cluster.epoch() % 2 == 0):
        time.sleep(FROZEN_S)


def broken_bus(cluster: Cluster) -> None:
    bus = cluster.leader().bus
    bus.refuse()
    time.sleep(0.5)
    bus.heal()


def fill_disk(cluster: Cluster) -> None:
    databases = cluster.databases
    with databases.full():
        time.sleep(FULL_S)
    if not databases.primary.running:  # it could not write its log, and gave up
        databases.primary.start()


def fail_over(cluster: Cluster) -> None:
    """The primary's machine is lost, and its synchronous standby becomes the primary."""
    databases = cluster.databases
    wait_until(lambda: databases.synchronous, "the standby does not follow", READY_S)
    databases.fail_over()
    cluster.aim()
    databases.follow()
    cluster.aim()


def step_down(cluster: Cluster) -> None:
    epoch, leader = cluster.epoch(), cluster.leader()
    answer = httpx.post(f"{leader.url}/v1/cluster/step-down", timeout=READY_S)
    assert answer.status_code in (200, 503), answer.text
    wait_until(lambda: cluster.epoch() > epoch, "the leader did not step down", READY_S)


FAULTS: Final = (
    Fault("leader killed", kill_leader, 8),
    Fault("follower killed", kill_follower, 4),
    Fault("leader ended in order", terminate_leader, 2),
    Fault("leader frozen beyond its lease", freeze_leader, 3),
    Fault("follower frozen", freeze_follower, 1),
    Fault("leader's session ended", end_session, 6),
    Fault("all sessions ended", end_all_sessions, 4),
    Fault("PostgreSQL restarted (fast)", restart("fast"), 3),
    Fault("PostgreSQL restarted (immediate)", restart("immediate"), 3),
    Fault("connection cut before COMMIT", cut(BEFORE), 6),
    Fault("connection cut after COMMIT", cut(AFTER), 6),
    Fault("connection cut, COMMIT arrives late", cut(LATE), 4),
    Fault("leader without its database", leader_without_database, 2),
    Fault("follower without its database", follower_without_database, 1),
    Fault("leader refused by its database", refused_database, 3),
    Fault("leader's bus silent", leader_without_followers, 1),
    Fault("leader's bus broken", broken_bus, 4),
    Fault("PostgreSQL's disk full", fill_disk, 2, "disk"),
    Fault("primary killed, standby promoted", fail_over, 2, "standby"),
    Fault("leader asked to step down", step_down, 4),
)
