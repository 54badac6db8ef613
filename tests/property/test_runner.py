"""The runner under threads and a loop at once: every command is carried out and answered once, with its own result.

Batches are made small here, so that what the limits split in production is split all the time.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import limits
from tailrace.errors import NotFound
from tailrace.runner import _QueuedCommand
from tailrace.streams.commands import Append, Appended, CreateStream
from tailrace.streams.queries import ReadStream
from tests.support.patience import PATIENCE_S

TEXT = "text/plain"


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_COMMANDS_MAX", 2)


def bodies(db: tailrace.Database) -> list[bytes]:
    return [entry.body for entry in db.execute(ReadStream("s", bytes_max=10**9)).page.entries]


@pytest.mark.usefixtures("small_batches")
def test_execute_waits_for_its_own_command_however_many_are_before_it(data_dir: Path) -> None:
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        db.execute(CreateStream("s", TEXT))
        for number in range(7):
            db._runner._enqueue(Append("s", b"%d" % number, TEXT), "me", None)
        assert db.execute(Append("s", b"mine", TEXT)) == Appended(11, False)
        assert bodies(db)[-1] == b"mine"


@pytest.mark.usefixtures("small_batches")
def test_threads_and_a_loop_each_get_their_own_results(data_dir: Path) -> None:
    async def main() -> None:
        db = tailrace.open(data_dir, housekeeping_s=0.001)
        await db.aexecute(CreateStream("s", TEXT))
        tails: list[int] = []

        def write(name: int) -> None:
            for number in range(100):
                tails.append(db.execute(Append("s", b"%d.%03d" % (name, number), TEXT)).tail)

        async def awrite(name: int) -> None:
            for number in range(0, 100, 4):
                texts = [b"%d.%03d" % (name, each) for each in range(number, number + 4)]
                done = await asyncio.gather(*(db.aexecute(Append("s", text, TEXT)) for text in texts))
                tails.extend(each.tail for each in done)

        threads = [asyncio.to_thread(write, name) for name in range(4)]
        await asyncio.wait_for(asyncio.gather(*threads, *(awrite(name) for name in range(4, 8))), 60)
        assert sorted(tails) == [5 * number for number in range(1, 801)], "each result is its own"
        found = bodies(db)
        assert len(set(found)) == len(found) == 800
        for name in range(8):
            own = [body for body in found if body.startswith(b"%d." % name)]
            assert own == sorted(own), "in the order in which they were asked for"
        await db.aclose()

    asyncio.run(main())


@pytest.mark.usefixtures("small_batches")
def test_closing_answers_all_that_was_submitted(data_dir: Path) -> None:
    async def main() -> None:
        db = tailrace.open(data_dir, housekeeping_s=None)
        await db.aexecute(CreateStream("s", TEXT))
        waiting: list[Any] = [db.aexecute(Append("s", b"x", TEXT)) for _ in range(50)]
        await db.aclose()
        assert [each.done() for each in waiting] == [True] * 50
        assert [each.result().tail for each in waiting] == list(range(1, 51))

    # In a thread with a time-out, since what it guards against is waiting for ever.
    thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "closing hangs"
    with tailrace.open(data_dir, housekeeping_s=None) as again:
        assert len(bodies(again)) == 50


def test_a_turn_for_which_nothing_is_left_does_no_harm(data_dir: Path) -> None:
    """A thread may take the whole queue between the loop's look at it and the loop's turn."""

    class LookedAtBefore(deque[_QueuedCommand]):
        looks = 1

        def __bool__(self) -> bool:
            self.looks -= 1
            return self.looks >= 0 or len(self) > 0

    async def main() -> None:
        db = tailrace.open(data_dir, housekeeping_s=None)
        await db.aexecute(CreateStream("s", TEXT))
        db._runner._pending = LookedAtBefore()
        db._runner._kicked = True  # as it is whenever a kick runs
        db._runner._kick()
        await asyncio.sleep(0)
        assert (await asyncio.wait_for(db.aexecute(Append("s", b"x", TEXT)), 30)).tail == 1
        await db.aclose()

    asyncio.run(main())


def test_a_result_that_is_awaited_behaves_as_asyncio_wants(data_dir: Path) -> None:
    async def main() -> None:
        db = tailrace.open(data_dir, housekeeping_s=None)
        await db.aexecute(CreateStream("s", TEXT))
        good, bad = await asyncio.gather(
            db.aexecute(Append("s", b"x", TEXT)), db.aexecute(Append("t", b"x", TEXT)), return_exceptions=True
        )
        assert good == Appended(1, False)
        assert isinstance(bad, NotFound)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(db.aexecute(Append("s", b"y", TEXT)), 1e-9)
        done, _ = await asyncio.wait([asyncio.ensure_future(db.aexecute(Append("s", b"z", TEXT)))])
        assert done.pop().result().tail == 3, "what was given up happened all the same"
        await db.aclose()

    asyncio.run(main())
