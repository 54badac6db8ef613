"""The runner under threads and a loop at once: every command is carried out and answered once, with its own result.

Batches are made small here, so that what the limits split in production is split all the time.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections import deque
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tailrace
from tailrace import limits
from tailrace.clock import ManualClock
from tailrace.errors import NotFound
from tailrace.log import log as logs
from tailrace.log import segments
from tailrace.log.entry import LOGS
from tailrace.runner import QueuedCommand, _Batch
from tailrace.streams.commands import Append, Appended, CreateStream, live, log_of
from tailrace.streams.producer import PRODUCERS, ProducerClaim
from tailrace.streams.queries import ReadStream
from tailrace.streams.stream import STREAMS
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
            db._runner._enqueue(QueuedCommand(Append("s", b"%d" % number, TEXT), "me"))
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

    class LookedAtBefore(deque[QueuedCommand]):
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


STREAMS_MADE = (
    CreateStream("plain", TEXT),
    CreateStream("other", TEXT),
    CreateStream("json", "application/json"),
    CreateStream("closed", TEXT, closed=True),
    CreateStream("ttl", TEXT, ttl_s=1000),
    CreateStream("expiring", TEXT, expires_ms=1_700_000_001_000),
)
OTHERS = (
    Append("json", b"[1]", "application/json"),
    Append("json", b"{", "application/json"),
    Append("closed", b"x", TEXT),
    Append("ttl", b"x", TEXT),
    Append("expiring", b"x", TEXT),
    Append("missing", b"x", TEXT),
    Append("plain", b"", TEXT),
    Append("plain", b"x", "text/plain; charset=utf-8"),
    Append("plain", b"x", "text/html"),
    Append("plain", b"x", None),
    Append("plain", b"x", TEXT, ProducerClaim("p", 0, 0)),
    Append("plain", b"x", TEXT, seq="a"),
    Append("other", b"x", TEXT, close=True),
    Append("other", b"", TEXT, close=True),
)
PLAIN = st.builds(Append, st.sampled_from(("plain", "plain", "other")), st.sampled_from((b"a", b"bcd")), st.just(TEXT))


def run_in_one_batch(commands: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """The outcomes, the rows and the notices of a batch."""
    with tempfile.TemporaryDirectory() as directory:
        clock = ManualClock()
        with tailrace.open(directory, clock=clock, housekeeping_s=None) as db:
            for command in STREAMS_MADE:
                db.execute(command)
            clock.advance(2)  # one stream has expired
            jobs = [QueuedCommand(command, "me") for command in commands]
            batch = db._runner._prepare(_Batch(jobs))
            db._runner._commit(batch)
            assert batch.error is None
            outcomes = [(job.result, repr(job.error)) for job in jobs]
            with db._engine.reader() as reader:
                rows: list[Any] = [list(reader.scan(table)) for table in (STREAMS, LOGS, PRODUCERS)]
                rows += [entry for segment in reader.scan(segments.SEGMENTS) for entry in segments.entries(segment)]
            return outcomes, rows, batch.notices


def by_log(notices: list[Any]) -> dict[int, list[Any]]:
    """The entries of each log; the order between logs means nothing to those who follow one."""
    found: dict[int, list[Any]] = {}
    for notice in notices:
        events = segments.entries(notice.item.segment) if type(notice.item) is logs.Advanced else [notice.item]
        found.setdefault(notice.log, []).extend(events)
    return found


@settings(max_examples=40)
@given(st.lists(PLAIN | st.sampled_from(OTHERS), min_size=2, max_size=12))
def test_appends_that_run_together_do_what_they_do_one_by_one(commands: list[Append]) -> None:
    together = run_in_one_batch(commands)
    with mock.patch.object(Append, "together", False):
        alone = run_in_one_batch(commands)
    assert together[:2] == alone[:2]
    assert by_log(together[2]) == by_log(alone[2])


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_an_append_that_is_not_plain_among_plain_ones(other: Append) -> None:
    plain = Append(other.path if other.path in ("plain", "other") else "plain", b"abc", TEXT)
    test_appends_that_run_together_do_what_they_do_one_by_one.hypothesis.inner_test(  # type: ignore[attr-defined]
        [plain, plain, other, plain, other, plain, plain]
    )


def test_plain_appends_run_together() -> None:
    """Otherwise the test above would compare nothing."""
    with mock.patch.object(Append, "run", side_effect=AssertionError("it ran alone")):
        outcomes, _, _ = run_in_one_batch([Append("plain", b"abc", TEXT)] * 3 + [Append("other", b"d", TEXT)])
    assert [result.tail for result, _ in outcomes] == [3, 6, 9, 1]


def test_a_bug_in_running_together_costs_nothing_but_time() -> None:
    """The commands are undone, and run one by one."""
    commands = [Append("plain", b"abc", TEXT)] * 3
    alone = run_in_one_batch([Append("plain", b"abc", TEXT)] * 3)

    def broken(tx: Any, commands: list[Any]) -> list[Any]:
        logs.append(tx, log_of(tx, live(tx, "plain")), b"half", 4)
        raise ZeroDivisionError

    with mock.patch.object(Append, "run_together", broken):
        assert run_in_one_batch(commands)[:2] == alone[:2]
