"""No legal request keeps the event loop for long: every heavy one is fired, and the loop's longest turn is measured."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace.command import Command
from tailrace.database import Database
from tailrace.errors import Error
from tailrace.http.routes import ROUTES
from tailrace.jobs.commands import PinPositions
from tailrace.jobs.tiering import ForgetCold, MoveTiered
from tailrace.log.position import offset
from tailrace.streams.commands import Append, CreateStream, Fork
from tailrace.subscriptions.commands import (
    AddStreams,
    ClaimWake,
    DeleteSubscription,
    PutSubscription,
    ReleaseWake,
    StreamAck,
    SubscriptionAck,
)
from tailrace.subscriptions.subscription import SubscriptionSettings
from tests.support.stalls import CASES, Stall, measure, show

pytestmark = pytest.mark.timeout(600)

# The goal is 0.1 s on an idle machine. Processor time does not count what other processes do, but caches are shared.
TURN_S_MAX = 0.25
SCALE = 0.5
# Groups of routes whose requests are all small, or that are measured by others: a request is bounded by its body.
SMALL = {"/v1/admin", "/healthz", "/readyz", "/openapi.json", "/v1/views", "/", "/console", "/console/{file}"}


def test_no_request_keeps_the_loop_for_long(tmp_path: Path) -> None:
    found = measure(tmp_path / "data", SCALE, show, ping=False)
    assert {stall.name for stall in found} == set(CASES)
    slow: list[Stall] = [stall for stall in found if stall.turn_s > TURN_S_MAX]
    assert not slow, "\n".join(f"{stall.name}: {stall.turn_s:.3f} s" for stall in slow)


LONG: list[Command[Any]] = [
    PutSubscription("s", SubscriptionSettings(kind="pull-wake", streams=("a",), wake_stream="w"), "http://here"),
    AddStreams("s", ("b",)),
    DeleteSubscription("s"),
    ClaimWake("s", "worker"),
    SubscriptionAck("s", "pull-wake", "token", "w", 1),
    ReleaseWake("s", "token", "w", 1),
    PinPositions("job", {1: 0}),
    MoveTiered("place", 1, {1: (0, 0)}),
    ForgetCold("place", {1: 0}),
    CreateStream("fork", fork=Fork("source", 0, 1)),
]


@pytest.mark.parametrize("command", LONG, ids=lambda command: type(command).__name__)
def test_commands_that_may_take_long_never_run_on_the_loop(
    command: Command[Any], data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    run = type(command).run

    def watched(self: Command[Any], tx: Any) -> Any:
        ran.append(threading.get_ident())
        return run(self, tx)

    async def main() -> None:
        with tailrace.open(data_dir, housekeeping_s=None) as db:
            monkeypatch.setattr(type(command), "run", watched)
            with suppress(Error):
                await db.aexecute(command)
            await db.aclose()
        assert ran and threading.get_ident() not in ran

    asyncio.run(main())


def test_acks_of_very_many_streams_take_time_in_proportion(data_dir: Path) -> None:
    """The processor time of an ack of n streams, at n and at 4 n: the snapshot of a wake is decoded once."""

    def acked_s(db: Database, name: str, count: int) -> float:
        names = [f"{name}/{number}" for number in range(count)]
        for path in names:
            db.execute(CreateStream(path, "text/plain"))
        db.execute(
            PutSubscription(
                name, SubscriptionSettings(kind="pull-wake", streams=tuple(names), wake_stream="wakes"), "http://h"
            )
        )
        for path in names:
            db.execute(Append(path, b"x", "text/plain"))
        claimed = db.execute(ClaimWake(name, "worker"))
        assert claimed is not None and claimed.subscription.wake_id is not None
        acks = tuple(StreamAck(state.link.path, offset(state.tail)) for state in claimed.streams)
        row = claimed.subscription
        command = SubscriptionAck(name, "pull-wake", claimed.token, str(row.wake_id), row.generation, acks, True)
        began = time.thread_time()
        db.execute(command)
        return time.thread_time() - began

    with tailrace.open(data_dir, housekeeping_s=None) as db:
        acked_s(db, "first", 50)
        few = min(acked_s(db, f"few-{number}", 200) for number in range(3))
        many = min(acked_s(db, f"many-{number}", 800) for number in range(3))
        assert many < 9 * few, (few, many)


def test_every_route_has_a_heavy_request_or_says_that_it_has_none() -> None:
    source = Path(__file__).parent.parent.joinpath("support", "stalls.py").read_text()
    groups = {"/".join(route.path.split("/")[:3]) for route in ROUTES}
    missing = {group for group in groups if group not in SMALL and group not in source}
    assert not missing, f"add cases for {missing}"
