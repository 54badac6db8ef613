"""One writer that shares commits: which commands share one, which fail, and when waiters are notified.

Most tests hold a commit open on a fake engine, so that what arrives meanwhile is known and not hoped for.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import pkgutil
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import failpoints, limits
from tailrace.access import Permission
from tailrace.clock import Clock, ManualClock
from tailrace.command import Command
from tailrace.errors import Conflict, Corrupt, Error, Invalid, Unavailable
from tailrace.log.entry import Segment
from tailrace.log.segments import SEGMENTS
from tailrace.log.tail import Tail
from tailrace.metrics import Metrics
from tailrace.pace import CommitPace
from tailrace.runner import QueuedCommand, Runner
from tailrace.storage.engine import NOT_LEADER, Tx
from tailrace.storage.sqlite import SqliteEngine
from tailrace.storage.table import META, MetaRow
from tailrace.tables.commands import BatchWrite, DeleteItem, PutItem, TransactWrite
from tailrace.tables.definition import COUNTS, CountRow
from tests.support.patience import PATIENCE_S


class FakeTx:
    """A transaction that remembers what happened to it, and whose commit can be held."""

    def fetch_ahead(self, declare: Any) -> None:
        pass

    def __init__(self, engine: FakeEngine, now_ms: int) -> None:
        self.engine = engine
        self.now_ms = now_ms
        self.notices: list[Any] = []
        self.ran: list[str] = []
        self.events: list[str] = []
        self.wrote = True

    def keep(self) -> None:
        self.events.append("keep")

    def undo(self) -> None:
        self.events.append("undo")

    def flush(self) -> None:
        self.events.append("flush")

    def commit(self) -> None:
        self.engine.committing.set()
        self.engine.threads.append(threading.current_thread())
        self.engine.on_commit()
        assert self.engine.gate.wait(PATIENCE_S)
        if self.engine.commit_error is not None:
            raise self.engine.commit_error
        self.events.append("commit")
        self.engine.commits.append(self.ran)

    def rollback(self) -> None:
        self.events.append("rollback")
        if self.engine.rollback_error is not None:
            raise self.engine.rollback_error


class FakeEngine:
    floor_ms = 0

    def __init__(self, *, blocking: bool = False) -> None:
        self.blocking = blocking
        self.gate = threading.Event()  # commits pass while it is set
        self.gate.set()
        self.committing = threading.Event()  # a commit has been called
        self.commit_error: BaseException | None = None
        self.rollback_error: Error | None = None
        self.commits: list[list[str]] = []
        self.threads: list[threading.Thread] = []  # that called commit
        self.on_commit: Callable[[], object] = lambda: None
        self.is_brief = True
        self.txs: list[FakeTx] = []

    def begin(self, now_ms: int) -> FakeTx:
        tx = FakeTx(self, now_ms)
        self.txs.append(tx)
        return tx

    def verify(self) -> None:
        pass

    def make_room(self, freeing: bool) -> None:
        pass

    def roomy(self) -> bool:
        return True

    def brief(self) -> bool:
        return self.is_brief


class Note(Command[str], frozen=True):
    """Leaves its name in the transaction."""

    name: str
    error: str = ""
    bytes: int = 0
    tells: int = 0

    def size(self) -> int:
        return self.bytes

    def run(self, tx: Any) -> str:
        tx.ran.append(self.name)
        if self.tells:
            from tailrace.storage.engine import Notice

            tx.notices.append(Notice(self.tells, self.name))
        if self.error:
            tx.ran.pop()
            raise {"conflict": Conflict(self.name), "bug": ZeroDivisionError(self.name), "corrupt": Corrupt(self.name),
                   "full": Unavailable(self.name, code="DISK_FULL")}[self.error]  # fmt: skip
        return self.name + "!"


class Fixture:
    def __init__(self, engine: Any = None, clock: Clock | None = None) -> None:
        self.engine: Any = engine or FakeEngine()
        self.tail = Tail()
        self.metrics = Metrics()
        self.runner = Runner(self.engine, clock or Clock(), self.tail, self.metrics)

    def waiting(self) -> int:
        return len(self.runner._pending)

    def hold(self) -> threading.Thread:
        """A command that is in its commit until `release`."""
        self.engine.committing.clear()
        self.engine.gate.clear()
        thread = threading.Thread(target=self.runner.execute, args=(Note("held"),))
        thread.start()
        assert self.engine.committing.wait(PATIENCE_S)
        return thread

    def release(self) -> None:
        self.engine.gate.set()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


async def auntil(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.002)


@pytest.fixture
def fixture() -> Fixture:
    return Fixture()


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


def started(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


# -- threads


def test_an_idle_writer_commits_at_once(fixture: Fixture) -> None:
    assert fixture.runner.execute(Note("a")) == "a!"
    assert fixture.runner.execute(Note("b")) == "b!"
    assert fixture.engine.commits == [["a"], ["b"]]
    assert fixture.engine.txs[0].events == ["keep", "flush", "commit"]


def test_no_delay_when_idle(fixture: Fixture) -> None:
    took_s = []
    for _ in range(200):
        began = time.perf_counter()
        fixture.runner.execute(Note("a"))
        took_s.append(time.perf_counter() - began)
    assert min(took_s) < 0.005, "a delay would be in all of them; a busy machine is not"


def test_what_arrives_during_a_commit_shares_the_next(fixture: Fixture) -> None:
    holder = fixture.hold()
    results: list[str] = []
    threads = [started(lambda n=n: results.append(fixture.runner.execute(Note(f"{n}")))) for n in range(20)]
    until(lambda: fixture.waiting() == 20)
    assert results == [], "nobody is answered before the commit"
    fixture.release()
    for thread in [holder, *threads]:
        thread.join(PATIENCE_S)
    assert fixture.engine.commits[0] == ["held"]
    assert sorted(fixture.engine.commits[1], key=int) == [f"{n}" for n in range(20)]
    assert len(fixture.engine.commits) == 2
    assert sorted(results) == sorted(f"{n}!" for n in range(20))
    assert fixture.metrics.commits == 2
    assert fixture.metrics.commands == 21


def test_commands_run_in_the_order_of_their_arrival(fixture: Fixture) -> None:
    holder = fixture.hold()
    threads = []
    for number in range(10):
        threads.append(started(lambda n=number: fixture.runner.execute(Note(f"{n}"))))
        until(lambda number=number: fixture.waiting() == number + 1)
    fixture.release()
    for thread in [holder, *threads]:
        thread.join(PATIENCE_S)
    assert fixture.engine.commits[1] == [f"{n}" for n in range(10)]


def test_each_command_of_a_batch_fails_alone(fixture: Fixture) -> None:
    holder = fixture.hold()
    results: dict[str, Any] = {}

    def run(name: str, error: str) -> None:
        try:
            results[name] = fixture.runner.execute(Note(name, error))
        except Exception as raised:
            results[name] = raised

    threads = []
    for number, (name, error) in enumerate([("a", ""), ("b", "conflict"), ("c", ""), ("d", "bug"), ("e", "")]):
        threads.append(started(lambda name=name, error=error: run(name, error)))
        until(lambda number=number: fixture.waiting() == number + 1)
    fixture.release()
    for thread in [holder, *threads]:
        thread.join(PATIENCE_S)
    assert fixture.engine.commits[1] == ["a", "c", "e"]
    assert fixture.engine.txs[1].events == ["keep", "undo", "keep", "undo", "keep", "flush", "commit"]
    assert (results["a"], results["c"], results["e"]) == ("a!", "c!", "e!")
    assert isinstance(results["b"], Conflict)
    assert isinstance(results["d"], ZeroDivisionError)
    assert fixture.runner.stopped is None
    assert fixture.metrics.commands_failed == 2


def test_a_batch_has_a_limit_in_commands(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_COMMANDS_MAX", 4)
    holder = fixture.hold()
    results: list[str] = []
    threads = [started(lambda n=n: results.append(fixture.runner.execute(Note(f"{n}")))) for n in range(10)]
    until(lambda: fixture.waiting() == 10)
    fixture.release()
    for thread in [holder, *threads]:
        thread.join(PATIENCE_S)
    assert [len(batch) for batch in fixture.engine.commits] == [1, 4, 4, 2]
    assert sorted(results) == [f"{n}!" for n in range(10)], "nobody leaves before its own command is done"


def test_a_batch_has_a_limit_in_bytes(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_BYTES_MAX", 100)
    holder = fixture.hold()
    threads = []
    for number in range(6):
        threads.append(started(lambda n=number: fixture.runner.execute(Note(f"{n}", bytes=60))))
        until(lambda number=number: fixture.waiting() == number + 1)
    fixture.release()
    for thread in [holder, *threads]:
        thread.join(PATIENCE_S)
    assert [len(batch) for batch in fixture.engine.commits] == [1, 2, 2, 2]
    assert fixture.runner._pending_bytes == 0


def test_a_full_queue_refuses(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WRITE_QUEUE_MAX", 3)
    holder = fixture.hold()
    threads = [started(lambda n=n: fixture.runner.execute(Note(f"{n}"))) for n in range(3)]
    until(lambda: fixture.waiting() == 3)
    with pytest.raises(Unavailable, match="retry in a moment") as refused:
        fixture.runner.execute(Note("one too many"))
    assert refused.value.code == "QUEUE_FULL"
    fixture.release()
    for thread in [holder, *threads]:
        thread.join(PATIENCE_S)
    assert [len(batch) for batch in fixture.engine.commits] == [1, 3]
    assert "one too many" not in fixture.engine.commits[1]
    assert fixture.runner.execute(Note("later")) == "later!"


def test_a_queue_full_of_bytes_refuses(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WRITE_QUEUE_BYTES_MAX", 1000)
    assert fixture.runner.execute(Note("alone", bytes=5000)) == "alone!", "an empty queue takes anything"
    holder = fixture.hold()
    first = started(lambda: fixture.runner.execute(Note("first", bytes=900)))
    until(lambda: fixture.waiting() == 1)
    with pytest.raises(Unavailable) as refused:
        fixture.runner.execute(Note("second", bytes=101))
    assert refused.value.code == "QUEUE_FULL"
    third = started(lambda: fixture.runner.execute(Note("third", bytes=100)))
    until(lambda: fixture.waiting() == 2)
    fixture.release()
    for thread in (holder, first, third):
        thread.join(PATIENCE_S)
    assert fixture.engine.commits[2] == ["first", "third"]


# -- what goes wrong


def test_a_take_over_by_another_server_is_not_reported_as_a_bug(
    fixture: Fixture, caplog: pytest.LogCaptureFixture
) -> None:
    fixture.engine.commit_error = Unavailable("another server leads", code=NOT_LEADER)
    with caplog.at_level(logging.INFO, "tailrace.runner"), pytest.raises(Unavailable):
        fixture.runner.execute(Note("a"))
    (record,) = caplog.records
    assert (record.levelname, record.exc_info) == ("INFO", None)
    with pytest.raises(Unavailable, match="another server leads") as refused:
        fixture.runner.execute(Note("b"))
    assert refused.value.code == NOT_LEADER


@pytest.mark.parametrize(
    "error", [Unavailable("disk I/O error", code="STORAGE_FAILED"), Corrupt("damaged"), OSError("bug"), MemoryError()]
)
def test_a_commit_that_fails_stops_the_writer(
    fixture: Fixture, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    fixture.engine.commit_error = error
    received: list[Any] = []
    fixture.tail.subscribe(1, received.append)
    with caplog.at_level(logging.CRITICAL, "tailrace.runner"), pytest.raises(Error) as failed:
        fixture.runner.execute(Note("a", tells=1))
    assert failed.value is error or failed.value.code == "WRITES_STOPPED"
    assert "writes are stopped" in caplog.text
    assert received == []
    assert fixture.engine.txs[0].events[-1] == "rollback"
    fixture.engine.commit_error = None
    with pytest.raises(Unavailable, match="restart the server to recover") as refused:
        fixture.runner.execute(Note("b"))
    assert refused.value.code == "WRITES_STOPPED"
    assert fixture.runner.stopped is refused.value
    assert len(fixture.engine.txs) == 1, "nothing more is tried"


def test_a_full_disk_does_not_stop_the_writer(fixture: Fixture) -> None:
    fixture.engine.commit_error = Unavailable("the disk is full", code="DISK_FULL")
    with pytest.raises(Unavailable) as refused:
        fixture.runner.execute(Note("a"))
    assert refused.value.code == "DISK_FULL"
    assert fixture.runner.stopped is None
    fixture.engine.commit_error = None
    assert fixture.runner.execute(Note("b")) == "b!"
    assert fixture.engine.commits == [["b"]]


def test_a_full_disk_inside_a_command_fails_the_batch_and_no_more(fixture: Fixture) -> None:
    """How far the storage came is not known then, so the whole transaction goes."""
    with pytest.raises(Unavailable) as refused:
        fixture.runner.execute(Note("a", "full"))
    assert refused.value.code == "DISK_FULL"
    assert fixture.engine.txs[0].events == ["rollback"]
    assert fixture.runner.execute(Note("b")) == "b!"


def test_a_full_disk_whose_rollback_fails_stops_the_writer(fixture: Fixture) -> None:
    fixture.engine.commit_error = Unavailable("the disk is full", code="DISK_FULL")
    fixture.engine.rollback_error = Unavailable("and more", code="STORAGE_FAILED")
    with pytest.raises(Unavailable):
        fixture.runner.execute(Note("a"))
    assert fixture.runner.stopped is not None


def test_damage_found_by_a_command_fails_the_batch_and_stops_the_writer(fixture: Fixture) -> None:
    with pytest.raises(Corrupt):
        fixture.runner.execute(Note("a", "corrupt"))
    assert fixture.engine.commits == []
    with pytest.raises(Unavailable):
        fixture.runner.execute(Note("b"))


def test_all_of_a_failed_batch_get_the_error(fixture: Fixture) -> None:
    errors: list[Error] = []

    def run(name: str) -> None:
        try:
            fixture.runner.execute(Note(name))
        except Error as error:
            errors.append(error)

    fixture.engine.gate.clear()
    threads = [started(lambda: run("first"))]
    assert fixture.engine.committing.wait(PATIENCE_S)
    threads += [started(lambda n=n: run(f"{n}")) for n in range(5)]
    until(lambda: fixture.waiting() == 5)
    fixture.engine.commit_error = Unavailable("gone", code="STORAGE_FAILED")
    fixture.release()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(error.code for error in errors) == ["STORAGE_FAILED"] + ["WRITES_STOPPED"] * 5
    assert fixture.engine.commits == []
    assert len(fixture.engine.txs) == 1
    assert fixture.metrics.commands_failed == 6


def test_closed(fixture: Fixture) -> None:
    fixture.runner.close()
    with pytest.raises(Unavailable, match="open it again") as refused:
        fixture.runner.execute(Note("a"))
    assert refused.value.code == "CLOSED"
    fixture.runner.close()


def test_close_waits_for_what_is_under_way(fixture: Fixture) -> None:
    holder = fixture.hold()
    closer = started(fixture.runner.close)
    closer.join(0.05)
    assert closer.is_alive()
    fixture.release()
    closer.join(PATIENCE_S)
    holder.join(PATIENCE_S)
    assert fixture.engine.commits == [["held"]]


# -- waiters


def test_waiters_are_woken_after_the_commit_and_never_before(fixture: Fixture) -> None:
    received: list[Any] = []
    fixture.tail.subscribe(5, received.append)
    fixture.engine.gate.clear()
    writer = started(lambda: fixture.runner.execute(Note("a", tells=5)))
    assert fixture.engine.committing.wait(PATIENCE_S)
    assert received == []
    fixture.release()
    writer.join(PATIENCE_S)
    assert received == [["a"]]


# -- the event loop


def test_submit_answers_on_the_loop_after_the_commit(fixture: Fixture) -> None:
    async def main() -> None:
        runner, engine = fixture.runner, fixture.engine
        runner.attach(asyncio.get_running_loop())
        order: list[Any] = []
        fixture.tail.subscribe(5, lambda items: order.append(("woken", items, threading.current_thread())))
        engine.gate.clear()
        runner.submit(Note("a", tells=5), lambda *done: order.append(("answered", *done, threading.current_thread())))
        assert engine.txs == [], "it runs in the loop's next turn"
        await asyncio.to_thread(engine.committing.wait, PATIENCE_S)
        assert order == []
        assert threading.current_thread().name not in ("tailrace-committer",)
        engine.gate.set()
        await auntil(lambda: len(order) == 2)
        here = threading.current_thread()
        assert order == [("answered", "a!", None, here), ("woken", ["a"], here)]
        await asyncio.to_thread(runner.detach)

    asyncio.run(main())


@pytest.mark.parametrize("thread", [False, True])
def test_followers_share_the_commit_that_they_wait_for(thread: bool) -> None:
    fixture = Fixture()

    async def main() -> None:
        runner, engine = fixture.runner, fixture.engine
        answers: list[Any] = []
        waiting = {5: ["b", "c"]}

        def followers(notices: list[Any]) -> Iterator[tuple[Command[Any], Any, str]]:
            for notice in notices:
                for name in waiting.pop(notice.log, ()):
                    error = "conflict" if name == "c" else ""
                    yield Note(name, error, tells=5), lambda *done: answers.append(done), "system"

        runner.attach(asyncio.get_running_loop())
        runner.followers.append(followers)
        fixture.tail.subscribe(5, answers.append)
        if thread:
            await asyncio.to_thread(runner.execute, Note("a", tells=5))
        else:
            runner.submit(Note("a", tells=5), lambda *done: answers.append(done))
        await auntil(lambda: len(answers) == (1 if thread else 4))
        if thread:
            assert answers == [["a"]]
            assert waiting, "it is asked on the loop's thread only"
        else:
            assert engine.commits == [["a", "b"]]
            (first, second, (nothing, error), notices) = answers
            assert (first, second, nothing) == (("a!", None), ("b!", None), None)
            assert isinstance(error, Conflict)
            assert notices[:2] == ["a", "b"]
            assert engine.txs[0].events == ["keep", "keep", "undo", "flush", "commit"]
            assert fixture.metrics.commands == 3
        await asyncio.to_thread(runner.detach)

    asyncio.run(main())


def test_followers_fail_with_the_commit_that_they_share() -> None:
    fixture = Fixture()

    async def main() -> None:
        runner, engine = fixture.runner, fixture.engine
        answers: list[Any] = []
        runner.followers.append(
            lambda notices: iter([(Note("b"), lambda *done: answers.append(done), "system")] if notices else ())
        )
        runner.attach(asyncio.get_running_loop())
        engine.commit_error = Unavailable("full", code="DISK_FULL")
        runner.submit(Note("a", tells=5), lambda *done: answers.append(done))
        await auntil(lambda: len(answers) == 2)
        assert [(result, error.code) for result, error in answers] == [(None, "DISK_FULL")] * 2
        assert engine.commits == []
        await asyncio.to_thread(runner.detach)

    asyncio.run(main())


def test_followers_end_with_their_batch() -> None:
    fixture = Fixture()

    async def main() -> None:
        runner, engine = fixture.runner, fixture.engine
        begun: list[int] = []

        def followers(notices: list[Any]) -> Iterator[tuple[Command[Any], Any, str]]:
            for number in range(1_000_000):
                begun.append(number)
                yield Note("b"), lambda *done: None, "system"

        runner.followers.append(followers)
        runner.attach(asyncio.get_running_loop())
        answers: list[Any] = []
        runner.submit(Note("a", tells=5), lambda *done: answers.append(done))
        await auntil(lambda: len(answers) == 1)
        assert 1 <= len(begun) < limits.BATCH_COMMANDS_MAX
        assert engine.commits == [["a", *["b"] * len(begun)]]
        await asyncio.to_thread(runner.detach)

    asyncio.run(main())


@pytest.mark.parametrize("blocking", [False, True])
def test_submissions_during_a_commit_share_the_next(blocking: bool) -> None:
    fixture = Fixture(FakeEngine(blocking=blocking))

    async def main() -> None:
        runner, engine = fixture.runner, fixture.engine
        runner.attach(asyncio.get_running_loop())
        answers: list[Any] = []
        engine.gate.clear()
        runner.submit(Note("first"), lambda *done: answers.append(done))
        await asyncio.to_thread(engine.committing.wait, PATIENCE_S)
        for number in range(30):
            error = "conflict" if number % 10 == 3 else ""
            runner.submit(Note(f"{number}", error), lambda *done: answers.append(done))
            await asyncio.sleep(0)
        engine.gate.set()
        await auntil(lambda: len(answers) == 31)
        assert [len(batch) for batch in engine.commits] == [1, 27]
        assert [result for result, error in answers] == [
            "first!", *[None if n % 10 == 3 else f"{n}!" for n in range(30)],
        ]  # fmt: skip
        assert sum(isinstance(error, Conflict) for _, error in answers) == 3
        assert fixture.metrics.commands_failed == 3
        await asyncio.to_thread(runner.detach)

    asyncio.run(main())


def test_a_result_that_cannot_be_delivered_holds_up_nothing(caplog: pytest.LogCaptureFixture) -> None:
    fixture = Fixture()
    seen: list[Any] = []
    delivered: list[str] = []
    fixture.tail.subscribe(7, seen.append)

    def deliver(result: Any, error: BaseException | None) -> None:
        if result in ("b!", "d!"):
            raise ZeroDivisionError(result)
        delivered.append(result)

    async def scenario() -> None:
        fixture.runner.attach(asyncio.get_running_loop())
        for name in "abcde":
            fixture.runner.submit(Note(name, tells=7), deliver)
        await auntil(lambda: bool(seen))
        await asyncio.to_thread(fixture.runner.detach)

    asyncio.run(scenario())
    assert fixture.engine.commits == [list("abcde")]
    assert delivered == ["a!", "c!", "e!"]
    assert seen == [list("abcde")]
    assert [record.getMessage() for record in caplog.records] == ["a result could not be delivered"] * 2


@pytest.mark.parametrize("blocking", [False, True])
def test_threads_and_a_loop_at_once(blocking: bool) -> None:
    """Every caller gets the answer to its request exactly once, and everything is committed exactly once."""
    fixture = Fixture(FakeEngine(blocking=blocking))
    results: list[str] = []

    def work(which: int) -> None:
        for number in range(60):
            assert fixture.runner.execute(Note(f"t{which}-{number}")) == f"t{which}-{number}!"
            results.append(f"t{which}-{number}")

    async def main() -> None:
        fixture.runner.attach(asyncio.get_running_loop())
        threads = [started(lambda n=n: work(n)) for n in range(4)]
        answers: list[str] = []
        for number in range(300):
            fixture.runner.submit(Note(f"l{number}"), lambda result, error: answers.append(result))
            if number % 7 == 0:
                await asyncio.sleep(0.001)
        await auntil(lambda: len(answers) == 300 and not any(thread.is_alive() for thread in threads))
        assert answers == [f"l{n}!" for n in range(300)], "in the order of submission"
        await asyncio.to_thread(fixture.runner.detach)

    asyncio.run(main())
    done = [name for batch in fixture.engine.commits for name in batch]
    assert len(done) == len(set(done)) == 540
    assert len(results) == 240


def test_one_that_stands_behind_more_than_a_batch_waits_for_its_own(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BATCH_COMMANDS_MAX", 4)

    async def main() -> None:
        fixture.runner.attach(asyncio.get_running_loop())
        answers: list[str] = []
        for number in range(10):
            fixture.runner.submit(Note(f"{number}"), lambda result, error: answers.append(result))
        assert fixture.runner.execute(Note("last")) == "last!"
        assert [len(batch) for batch in fixture.engine.commits] == [4, 4, 3]
        await auntil(lambda: len(answers) == 10)
        await asyncio.to_thread(fixture.runner.detach)

    asyncio.run(main())


def test_a_thread_wakes_the_waiters_of_the_loop_on_the_loop(fixture: Fixture) -> None:
    async def main() -> None:
        fixture.runner.attach(asyncio.get_running_loop())
        received: list[Any] = []
        fixture.tail.subscribe(5, lambda items: received.append((items, threading.current_thread())))
        await asyncio.to_thread(fixture.runner.execute, Note("a", tells=5))
        await auntil(lambda: bool(received))
        assert received == [(["a"], threading.current_thread())]
        await asyncio.to_thread(fixture.runner.detach)

    asyncio.run(main())


def test_submit_on_a_full_or_stopped_writer_answers_at_once(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        fixture.runner.attach(asyncio.get_running_loop())
        answers: list[Any] = []
        monkeypatch.setattr(limits, "WRITE_QUEUE_MAX", 1)
        fixture.runner.submit(Note("a"), lambda *done: answers.append(done))
        fixture.runner.submit(Note("b"), lambda *done: answers.append(done))
        assert len(answers) == 1
        assert answers[0][1].code == "QUEUE_FULL"
        await auntil(lambda: len(answers) == 2)
        fixture.engine.commit_error = Unavailable("x", code="STORAGE_FAILED")
        fixture.runner.submit(Note("c"), lambda *done: answers.append(done))
        await auntil(lambda: len(answers) == 3)
        fixture.runner.submit(Note("d"), lambda *done: answers.append(done))
        assert answers[3][1].code == "WRITES_STOPPED"
        await asyncio.to_thread(fixture.runner.detach)

    asyncio.run(main())


def test_detach_finishes_what_was_submitted(fixture: Fixture) -> None:
    """One is in its commit, others wait behind it, and all are answered."""

    async def main() -> None:
        runner, engine = fixture.runner, fixture.engine
        runner.attach(asyncio.get_running_loop())
        answers: list[Any] = []
        engine.gate.clear()
        runner.submit(Note("a"), lambda *done: answers.append(done))
        await asyncio.to_thread(engine.committing.wait, PATIENCE_S)
        for number in range(5):
            runner.submit(Note(f"{number}"), lambda *done: answers.append(done))
        leaving = asyncio.create_task(asyncio.to_thread(runner.detach))
        await asyncio.sleep(0.02)
        engine.gate.set()
        await leaving
        await auntil(lambda: len(answers) == 6)
        assert [name for batch in engine.commits for name in batch] == ["a", "0", "1", "2", "3", "4"]
        runner.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


# -- failpoints, on the real engine


class Set(Command[None], frozen=True):
    value: bytes

    def run(self, tx: Any) -> None:
        tx.put(META, MetaRow("test", self.value))


@pytest.mark.parametrize(
    "name", [name for name in failpoints.NAMES if name.startswith(("batch.", "command.", "commit."))]
)
def test_after_a_failure_at_any_place_the_database_is_whole(tmp_path: Path, name: str) -> None:
    """Before the commit nothing is there; after it everything is, whether or not the caller got its answer."""
    fixture = Fixture(SqliteEngine(tmp_path))
    fixture.runner.execute(Set(b"old"))
    failpoints.arm(name)
    with pytest.raises(Error):
        fixture.runner.execute(Set(b"new"))
    stops = name not in ("command.ran", "batch.answered")
    assert (fixture.runner.stopped is not None) == stops
    fixture.engine.close()
    engine = SqliteEngine(tmp_path)
    with engine.reader() as reader:
        kept = name in ("commit.synced", "batch.answered")
        assert reader.get(META, "test") == MetaRow("test", b"new" if kept else b"old")
    engine.close()


def test_a_failpoint_must_exist() -> None:
    with pytest.raises(ValueError, match="there is no failpoint 'x'"):
        failpoints.arm("x")
    with pytest.raises(ValueError, match="'explode' is not kill or raise"):
        failpoints.arm("batch.begun", "explode")


def test_an_invalid_command_changes_nothing_of_the_queue(fixture: Fixture) -> None:
    class Bad(Command[None], frozen=True):
        def size(self) -> int:
            raise Invalid("no size")

    with pytest.raises(Invalid):
        fixture.runner.execute(Bad())
    assert fixture.waiting() == 0


# -- what is not for the loop


class Slow(Note, frozen=True):
    """Takes a while, by the clock that the test moves."""

    clock: Any = None

    def run(self, tx: Any) -> str:
        self.clock.advance(limits.BATCH_LOOP_S / 2)
        return super().run(tx)


def test_a_batch_on_the_loop_ends_in_time_and_the_rest_keeps_its_place() -> None:
    clock = ManualClock()
    fixture = Fixture(clock=clock)

    async def main() -> None:
        runner, engine = fixture.runner, fixture.engine
        runner.attach(asyncio.get_running_loop())
        answers: list[Any] = []
        for number in range(5):
            runner.submit(Slow(f"{number}", bytes=7, clock=clock), lambda *done: answers.append(done))
        await auntil(lambda: len(answers) == 5)
        assert engine.commits == [["0", "1"], ["2", "3"], ["4"]]
        assert answers == [(f"{number}!", None) for number in range(5)]
        assert (runner._pending_bytes, runner._latched, runner._heavy) == (0, 0, 0)
        await asyncio.to_thread(runner.detach)

    asyncio.run(main())


def test_a_thread_whose_command_is_put_back_is_served() -> None:
    clock = ManualClock()
    fixture = Fixture(clock=clock)

    async def main() -> None:
        runner, engine = fixture.runner, fixture.engine
        runner.attach(asyncio.get_running_loop())
        answers: list[Any] = []
        engine.gate.clear()
        runner.submit(Note("first"), lambda *done: answers.append(done))
        await asyncio.to_thread(engine.committing.wait, PATIENCE_S)
        for number in range(3):
            runner.submit(Slow(f"{number}", clock=clock), lambda *done: answers.append(done))
        threads = [started(lambda: answers.append((runner.execute(Slow("t", clock=clock)), None))) for _ in range(3)]
        await auntil(lambda: fixture.waiting() == 6)
        engine.gate.set()
        await auntil(lambda: len(answers) == 7)
        for thread in threads:
            await asyncio.to_thread(thread.join, PATIENCE_S)
        assert [name for batch in engine.commits for name in batch] == ["first", "0", "1", "2", "t", "t", "t"]
        assert (runner._pending_bytes, runner._latched, runner._heavy) == (0, 0, 0)
        await asyncio.to_thread(runner.detach)

    asyncio.run(main())


def test_a_thread_runs_all_that_one_commit_takes() -> None:
    clock = ManualClock()
    fixture = Fixture(clock=clock)
    thread = fixture.hold()
    others = [started(lambda: fixture.runner.execute(Slow("t", clock=clock))) for _ in range(5)]
    until(lambda: fixture.waiting() == 5)
    fixture.release()
    for each in [thread, *others]:
        each.join(PATIENCE_S)
    assert [len(batch) for batch in fixture.engine.commits] == [1, 5]


class Where(Note, frozen=True):
    """Tells which thread it ran on."""

    def run(self, tx: Any) -> str:
        super().run(tx)
        return threading.current_thread().name


class WhereOfAdmin(Where, frozen=True):
    permission = Permission.ADMIN


def test_what_is_heavy_runs_on_a_thread(fixture: Fixture) -> None:
    async def main() -> None:
        runner = fixture.runner
        runner.attach(asyncio.get_running_loop())
        here, there = threading.current_thread().name, "tailrace-committer"
        answers: list[Any] = []

        async def ran(*commands: Note) -> set[str]:
            answers.clear()
            for command in commands:
                runner.submit(command, lambda *done: answers.append(done[0]))
            await auntil(lambda: len(answers) == len(commands))
            return set(answers)

        assert await ran(Where("small", bytes=limits.LOOP_BYTES), Where("other")) == {here}
        assert await ran(Where("small"), Where("large", bytes=limits.LOOP_BYTES + 1)) == {there}
        assert await ran(WhereOfAdmin("small")) == {there}
        assert await ran(Where("small")) == {here}, "and no longer than it has to be so"
        await asyncio.to_thread(runner.detach)

    asyncio.run(main())


def test_one_command_is_committed_on_the_loop_where_the_disk_is_fast() -> None:
    clock = ManualClock()
    fixture = Fixture(clock=clock)

    async def main() -> None:
        runner, engine = fixture.runner, fixture.engine
        runner.attach(asyncio.get_running_loop())
        here = threading.current_thread()

        async def commits(*names: str) -> bool:
            """Whether these commands were committed here."""
            answers: list[Any] = []
            for name in names:
                runner.submit(Note(name, tells=5), lambda *done: answers.append(done))
            await auntil(lambda: len(answers) == len(names))
            assert answers == [(f"{name}!", None) for name in names]
            return bool(engine.threads[-1] is here)

        for _ in range(limits.LOOP_COMMITS_MIN):
            assert not await commits("a")
        assert await commits("a")
        assert not await commits("a", "b"), "others write too: meanwhile the loop reads their requests"
        assert await commits("a")
        engine.is_brief = False
        assert not await commits("a")
        engine.is_brief = True
        engine.on_commit = lambda: clock.advance(2 * limits.LOOP_STALL_S)
        assert await commits("a")
        assert not await commits("a"), "the disk is slow"
        engine.on_commit = lambda: None
        for _ in range(limits.LOOP_COMMITS_MIN * 2):
            assert not await commits("a"), "a disk that stalls once will do so again"
        await asyncio.to_thread(runner.detach)

    asyncio.run(main())


def test_a_commit_that_fails_on_the_loop_stops_the_writer(fixture: Fixture) -> None:
    async def main() -> None:
        runner, engine = fixture.runner, fixture.engine
        runner.attach(asyncio.get_running_loop())
        for _ in range(limits.LOOP_COMMITS_MIN * 2):
            runner._pace.note(0.0)
        engine.commit_error = OSError("the disk is gone")
        answers: list[Any] = []
        runner.submit(Note("a"), lambda *done: answers.append(done))
        await auntil(lambda: len(answers) == 1)
        runner.submit(Note("b"), lambda *done: answers.append(done))
        assert len(answers) == 2, "it is refused at once"
        assert [type(error) for _, error in answers] == [Unavailable, Unavailable]
        assert runner.stopped is not None
        assert engine.threads == [threading.current_thread()]
        await asyncio.to_thread(runner.detach)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("seconds", "fast"),
    [([0.0] * 256, True), ([0.0] * 255, False), ([0.0] * 256 + [0.001], False), ([0.0] * 300 + [0.01] * 2, True),
     ([0.0] * 5_000 + [0.01] * 17, False), ([0.0] * 5_000 + [0.02], False), ([0.02] + [0.0] * 10_000, False),
     ([0.02] + [0.0] * 10_256, True)],
)  # fmt: skip
def test_pace_of_commits(seconds: list[float], fast: bool) -> None:
    pace = CommitPace()
    for each in seconds:
        pace.note(each)
    assert pace.fast is fast


def test_a_command_that_is_submitted_by_an_answer_is_run(fixture: Fixture) -> None:
    async def main() -> None:
        runner = fixture.runner
        runner.attach(asyncio.get_running_loop())
        answers: list[str] = []

        def answered(result: str, error: object) -> None:
            answers.append(result)
            if len(answers) < 5:
                runner.submit(Note(f"{len(answers)}"), answered)

        runner.submit(Note("0"), answered)
        await auntil(lambda: len(answers) == 5)
        assert fixture.engine.commits == [["0"], ["1"], ["2"], ["3"], ["4"]]
        await asyncio.to_thread(runner.detach)

    asyncio.run(main())


def test_notices_are_published_in_the_order_of_the_commits(fixture: Fixture) -> None:
    """Also if a thread has committed, and its notices are on their way to the loop."""

    async def main() -> None:
        runner = fixture.runner
        runner.attach(asyncio.get_running_loop())
        seen: list[Any] = []
        fixture.tail.subscribe(1, seen.extend)
        fixture.engine.committing.clear()
        fixture.engine.gate.clear()
        thread = started(lambda: runner.execute(Note("first", tells=1)))
        assert fixture.engine.committing.wait(PATIENCE_S)
        runner.submit(Note("second", tells=1), lambda *outcome: None)
        fixture.release()
        thread.join(PATIENCE_S)  # all this within one turn of the loop
        await auntil(lambda: len(seen) == 2)
        assert seen == ["first", "second"]
        await asyncio.to_thread(runner.detach)

    asyncio.run(main())


def test_a_stopped_writer_keeps_nothing_of_the_commands_that_it_refuses(fixture: Fixture) -> None:
    """An error that is raised again and again keeps all the frames that it went through."""

    async def main() -> None:
        runner = fixture.runner
        runner.attach(asyncio.get_running_loop())
        fixture.engine.commit_error = Unavailable("disk I/O error", code="STORAGE_FAILED")
        refused: list[Any] = []
        for number in range(20):
            runner.submit(Note(f"{number}"), lambda *outcome: refused.append(outcome))
            await auntil(lambda number=number: len(refused) > number)  # type: ignore[misc]
        assert runner.stopped is not None
        assert refused[-1] == (None, runner.stopped)
        assert len(list(traceback.walk_tb(runner.stopped.__traceback__))) <= 2
        await asyncio.to_thread(runner.detach)

    asyncio.run(main())


# -- loops that are gone


def test_a_closed_loop_is_as_none(fixture: Fixture) -> None:
    loop = asyncio.new_event_loop()
    fixture.runner.attach(loop)
    loop.close()
    received: list[Any] = []
    fixture.tail.subscribe(5, received.append)
    assert fixture.runner.execute(Note("a", tells=5)) == "a!"
    assert received == [["a"]]
    fixture.runner.detach()


# -- rows that cannot be stored


class Store(Command[str], frozen=True):
    """Puts what it is given where an int belongs."""

    value: Any
    early: bool = False

    def run(self, tx: Tx) -> str:
        tx.put(COUNTS, CountRow(7, self.value, 0))
        if self.early:
            list(tx.scan(COUNTS))
        return "stored"


class AddTwice(Command[None], frozen=True):
    """A heap's key that is there already: that is damage."""

    def run(self, tx: Tx) -> None:
        for _ in range(2):
            tx.add(SEGMENTS, Segment(1, 1, 2, 0, b""))


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("value", [1.5, 2**70, None, "x", object(), b"x"])
def test_a_row_that_cannot_be_stored_fails_its_batch_and_no_more(tmp_path: Path, value: Any, early: bool) -> None:
    engine = SqliteEngine(tmp_path)
    fixture = Fixture(engine)
    assert fixture.runner.execute(Store(1)) == "stored"
    with pytest.raises(Unavailable, match="row of counts cannot be stored") as failed:
        fixture.runner.execute(Store(value, early))
    assert failed.value.code == "UNSTORABLE"
    assert fixture.runner.stopped is None
    assert fixture.runner.trouble is None, "it says nothing of the disk"
    with engine.reader() as reader:
        assert reader.get(COUNTS, 7) == CountRow(7, 1, 0)
    assert fixture.runner.execute(Store(2)) == "stored"
    with pytest.raises(Corrupt):
        fixture.runner.execute(AddTwice())
    assert fixture.runner.stopped is not None
    engine.close()


# -- a full disk


def test_every_command_that_removes_something_may_use_the_reserve_of_a_full_disk() -> None:
    for module in pkgutil.walk_packages(tailrace.__path__, "tailrace."):
        if not module.name.startswith(("tailrace.spark", "tailrace.cli", "tailrace.__main__")):
            importlib.import_module(module.name)
    found: dict[str, bool] = {}
    queue: list[Any] = [Command]
    while queue:
        kind = queue.pop()
        queue += kind.__subclasses__()
        if kind.__module__.startswith("tailrace."):
            found[kind.__name__] = kind.freeing
    verbs = ("Delete", "Drop", "Trim", "Prune", "Purge", "Reclaim", "Forget", "Clear", "Remove", "Disable")
    removing = {name for name in found if name.startswith(verbs)}
    assert {"DeleteStream", "DeleteItem", "DropTopic", "PruneStream", "TrimStream", "ReclaimLog"} <= removing
    assert sorted(name for name in removing if not found[name]) == []
    assert not found["Append"] and not found["PutItem"] and not found["Publish"]


def test_a_batch_of_deletes_may_use_the_reserve_and_one_with_a_put_may_not() -> None:
    delete, put = DeleteItem("t", {"id": "1"}), PutItem("t", {"id": "1"}, 2)
    assert BatchWrite((delete, delete)).frees()
    assert not BatchWrite((delete, put)).frees()
    assert TransactWrite((delete,)).frees()
    assert not TransactWrite((put,)).frees()


# -- commits on the loop, and the order of notices


def prove_fast(runner: Runner) -> None:
    """As if many commits had been fast."""
    for _ in range(limits.LOOP_COMMITS_MIN * 2):
        runner._pace.note(0.0)


def test_a_commit_on_the_loop_is_published_after_one_of_the_committer(fixture: Fixture) -> None:
    async def main() -> None:
        runner, engine = fixture.runner, fixture.engine
        runner.attach(asyncio.get_running_loop())
        prove_fast(runner)
        seen: list[Any] = []
        fixture.tail.subscribe(1, seen.extend)
        engine.committing.clear()
        engine.gate.clear()
        for name in ("a", "b"):
            runner.submit(Note(name, tells=1), lambda *outcome: None)
        await auntil(engine.committing.is_set)
        runner.submit(Note("c", tells=1), lambda *outcome: None)
        fixture.release()
        await auntil(lambda: len(seen) == 3)
        assert seen == ["a", "b", "c"]
        await asyncio.to_thread(runner.detach)

    asyncio.run(main())


def test_a_commit_on_the_loop_is_published_after_one_of_a_thread(fixture: Fixture) -> None:
    async def main() -> None:
        runner, engine = fixture.runner, fixture.engine
        runner.attach(asyncio.get_running_loop())
        prove_fast(runner)
        seen: list[Any] = []
        fixture.tail.subscribe(1, seen.extend)
        engine.committing.clear()
        engine.gate.clear()
        thread = started(lambda: runner.execute(Note("first", tells=1)))
        assert engine.committing.wait(PATIENCE_S)
        runner.submit(Note("second", tells=1), lambda *outcome: None)
        fixture.release()
        thread.join(PATIENCE_S)
        await auntil(lambda: len(seen) == 2)
        assert seen == ["first", "second"]
        await asyncio.to_thread(runner.detach)

    asyncio.run(main())


def test_threads_that_go_on_to_write_do_not_hold_the_loop(fixture: Fixture) -> None:
    """Each enqueues its next command during the commit of the last one."""

    async def main() -> None:
        runner, engine = fixture.runner, fixture.engine
        runner.attach(asyncio.get_running_loop())
        prove_fast(runner)
        left = 2_000

        def another() -> None:
            nonlocal left
            if left:
                left -= 1
                job = QueuedCommand(Note("t"), "system")
                job.latch = threading.Lock()
                job.latch.acquire()
                runner._enqueue(job)

        engine.on_commit = another
        answers: list[Any] = []
        runner.submit(Note("a"), lambda *done: answers.append((done, left)))
        await auntil(lambda: not left and bool(answers))
        assert answers[0][0] == ("a!", None)
        assert answers[0][1] > 1_990, "it was answered while others went on"
        await asyncio.to_thread(runner.detach)

    asyncio.run(main())
