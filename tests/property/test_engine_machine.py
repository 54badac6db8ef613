"""The write transaction and the runner against dicts: in a batch each command counts whole or not at all.

Commands are scripts of reads and writes that may fail at the end. The model runs the same scripts on dicts; what a
script reads must be what the model read, and after each batch the tables hold what the model holds, in the writer's
cache as in the database. Batches fail whole, too: on a full disk (and go on), and when the writer stops (and is
opened again).
"""

from __future__ import annotations

import itertools
import logging
import shutil
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tailrace import failpoints
from tailrace.clock import ManualClock
from tailrace.command import Command
from tailrace.errors import Error, Invalid, Unavailable
from tailrace.log.entry import GARBAGE, Entry, Garbage
from tailrace.log.tail import Tail
from tailrace.metrics import Metrics
from tailrace.runner import Runner
from tailrace.storage.engine import Tx
from tailrace.storage.sqlite import SqliteEngine
from tailrace.storage.table import META, MetaRow, StorageTable
from tailrace.streams.producer import PRODUCERS, ProducerState
from tailrace.streams.stream import DEADLINES, Deadline
from tests.support import postgres
from tests.support.directories import scratch_directory
from tests.support.patience import PATIENCE_S
from tests.support.soak import examples
from tests.support.vfs import FaultyDisk, no_space

numbers = itertools.count()

HEAP = StorageTable("entries", Entry, key=("log", "position"), heap=True, checked=True)  # one entry in a row
# A cached table, a cached one that is scanned, two plain ones, and the heap.
TABLES: list[StorageTable[Any]] = [META, PRODUCERS, DEADLINES, GARBAGE, HEAP]
Rows = dict[StorageTable[Any], dict[tuple[Any, ...], Any]]
Step = tuple[Any, ...]

SMALL = st.integers(1, 3)
STEPS = st.one_of(
    st.tuples(st.just("put"), st.builds(MetaRow, st.sampled_from("abc"), st.sampled_from([b"0", b"1"])), st.just(META)),
    st.tuples(st.just("put"), st.builds(ProducerState, SMALL, st.sampled_from("pq"), SMALL, SMALL), st.just(PRODUCERS)),
    st.tuples(st.just("put"), st.builds(Deadline, SMALL, st.sampled_from("xy")), st.just(DEADLINES)),
    st.tuples(st.just("put"), st.builds(Garbage, SMALL), st.just(GARBAGE)),
    st.tuples(st.just("delete"), st.tuples(st.sampled_from("abc")), st.just(META)),
    st.tuples(st.just("delete"), st.tuples(SMALL, st.sampled_from("pq")), st.just(PRODUCERS)),
    st.tuples(st.just("delete"), st.tuples(SMALL, st.sampled_from("xy")), st.just(DEADLINES)),
    st.tuples(st.just("get"), st.tuples(st.sampled_from("abc")), st.just(META)),
    st.tuples(st.just("get"), st.tuples(SMALL, st.sampled_from("pq")), st.just(PRODUCERS)),
    st.tuples(st.just("get"), st.tuples(SMALL), st.just(GARBAGE)),
    st.tuples(st.just("scan"), st.tuples(SMALL), st.sampled_from([PRODUCERS, DEADLINES, HEAP])),
    st.tuples(st.just("add"), SMALL, st.binary(max_size=3)),
    st.tuples(st.just("remove"), SMALL, st.integers(1, 3)),
    st.tuples(st.just("notify"), SMALL, st.integers(0, 99)),
    st.tuples(st.just("id"), st.sampled_from("ij"), st.none()),
)
SCRIPTS = st.tuples(st.lists(STEPS, max_size=8), st.booleans())


class Script(Command[list[Any]], frozen=True):
    """Some steps, then perhaps a failure. What it read is its result; also when it fails, through `seen`."""

    steps: Any
    fails: bool
    seen: Any

    def run(self, tx: Tx) -> list[Any]:
        for step in self.steps:
            self.seen.append(self._do(tx, *step))
        if self.fails:
            raise Invalid("the script ends so")
        return list(self.seen)

    def _do(self, tx: Tx, action: str, what: Any, where: Any) -> Any:
        match action:
            case "put":
                return tx.put(where, what)
            case "delete":
                return tx.delete(where, *what)
            case "get":
                return tx.get(where, *what)
            case "scan":
                return list(tx.scan(where, *what))
            case "add":
                return tx.add(HEAP, _entry(list(tx.scan(HEAP, what, reverse=True, limit=1)), what, where))
            case "remove":
                return tx.remove_range(HEAP, what, limit=where)
            case "notify":
                return tx.notify(what, where)
            case _:
                return tx.next_id(what)


def _entry(last: list[Entry], log: int, body: bytes) -> Entry:
    position = last[0].position + 1 if last else 0
    return Entry(log, position, position + 1, 0, body)


def play(rows: Rows, step: Step) -> Any:
    """The same step on dicts."""
    action, what, where = step
    match action:
        case "put":
            rows[where][where.key_of(what)] = what
        case "delete":
            rows[where].pop(what, None)
        case "get":
            return rows[where].get(what)
        case "scan":
            return [row for key, row in sorted(rows[where].items()) if key[: len(what)] == what]
        case "add":
            held = [row for key, row in sorted(rows[HEAP].items(), reverse=True) if key[0] == what]
            entry = _entry(held[:1], what, where)
            rows[HEAP][entry.log, entry.position] = entry
        case "remove":
            keys = sorted(key for key in rows[HEAP] if key[0] == what)[:where]
            for key in keys:
                del rows[HEAP][key]
            return len(keys)
        case "id":
            known = rows[META].get((f"counter/{what}",))
            number = int(known.value) + 1 if known else 1
            rows[META][f"counter/{what}",] = MetaRow(f"counter/{what}", b"%d" % number)
            return number
    return None


class Loop:
    """An event loop of the simplest kind: callbacks wait until `turn`."""

    def __init__(self) -> None:
        self._ready: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._arrived = threading.Semaphore(0)

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self._ready.append((callback, args))
        self._arrived.release()

    call_soon_threadsafe = call_soon

    def turn_until(self, done: Callable[[], bool]) -> None:
        while not done():
            assert self._arrived.acquire(timeout=PATIENCE_S), "the runner has forgotten to answer"
            callback, args = self._ready.popleft()
            callback(*args)


class Engines(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        # Stopping the writer is part of the play; the test's end puts the level back.
        logging.getLogger("tailrace").setLevel(logging.CRITICAL + 1)
        self.directory = scratch_directory()
        self.disk = FaultyDisk(f"engine{next(numbers)}")
        self.rows: Rows = {table: {} for table in TABLES}
        self.notices: list[Any] = []
        self.clock = ManualClock()
        self.open()
        with self.engine.reader() as reader:
            self.engines = list(reader.scan(META))  # what the engine itself has written

    def open_engine(self) -> Any:
        return SqliteEngine(self.directory, vfs=self.disk.name)

    def open(self) -> None:
        self.engine = self.open_engine()
        self.tail = Tail()
        self.runner = Runner(self.engine, self.clock, self.tail, Metrics())
        self.loop = Loop()
        self.runner.attach(self.loop)
        for log in (1, 2, 3):
            self.tail.subscribe(log, lambda items, log=log: self.notices.extend((log, item) for item in items))

    # -- batches

    @rule(scripts=st.lists(SCRIPTS, min_size=1, max_size=6))
    def submit(self, scripts: list[tuple[list[Step], bool]]) -> None:
        """Several commands of one loop: they share a commit."""
        expected, notices = self.expect(scripts)
        self.compare(self.run(scripts), expected)
        self.settle_notices(notices)

    @rule(script=SCRIPTS)
    def execute(self, script: tuple[list[Step], bool]) -> None:
        """One command of a thread."""
        expected, notices = self.expect([script])
        seen: list[Any] = []
        error: BaseException | None = None
        try:
            self.runner.execute(Script(*script, seen))
        except Error as caught:
            error = caught
        self.compare([(seen, error)], expected)
        self.settle_notices(notices)

    @rule(scripts=st.lists(SCRIPTS, min_size=1, max_size=4), kept=st.integers(0, 6))
    def submit_on_a_full_disk(self, scripts: list[tuple[list[Step], bool]], kept: int) -> None:
        """Nothing of the batch counts, unless it had nothing to write; then all goes on."""
        left = kept

        def fault(operation: str, path: str, offset: int, size: int) -> None:
            nonlocal left
            left -= operation == "write"
            if operation == "write" and left < 0:
                raise no_space()

        before = self.rows
        expected, notices = self.expect(scripts)
        self.disk.fault = fault
        answers = self.run(scripts)
        self.disk.fault = None
        assert self.runner.stopped is None
        if any(isinstance(error, Unavailable) for _, error in answers):
            assert all(isinstance(error, Unavailable) and error.code == "DISK_FULL" for _, error in answers)
            self.rows = before
            self.settle_notices([])
        else:
            self.compare(answers, expected)
            self.settle_notices(notices)

    @rule(scripts=st.lists(SCRIPTS, min_size=1, max_size=4), place=st.sampled_from(["batch.begun", "batch.flushed"]))
    def stop(self, scripts: list[tuple[list[Step], bool]], place: str) -> None:
        """The batch fails for a reason that nobody knows: no more writes, until the database is opened again."""
        failpoints.arm(place)
        try:
            answers = self.run(scripts)
        finally:
            failpoints.disarm()
        assert all(error is not None for _, error in answers)
        assert self.runner.stopped is not None
        assert all(isinstance(error, Unavailable) for _, error in self.run([([], False)]))
        self.settle_notices([])
        self.reopen()

    @rule()
    def reopen(self) -> None:
        self.runner.detach()
        self.runner.close()
        self.engine.close()
        self.open()

    # -- comparing

    def expect(self, scripts: list[tuple[list[Step], bool]]) -> tuple[list[tuple[list[Any], bool]], list[Any]]:
        """The reads of each script, whether it fails, and the expected notices; the model moves on."""
        expected: list[tuple[list[Any], bool]] = []
        notices: list[Any] = []
        for steps, fails in scripts:
            trial = {table: dict(rows) for table, rows in self.rows.items()}
            expected.append(([play(trial, step) for step in steps], fails))
            if not fails:
                self.rows = trial
                notices += [(step[1], step[2]) for step in steps if step[0] == "notify"]
        return expected, notices

    def run(self, scripts: list[tuple[list[Step], bool]]) -> list[tuple[list[Any], BaseException | None]]:
        answers: list[tuple[list[Any], BaseException | None]] = [([], None) for _ in scripts]
        waiting = len(scripts)

        def done(number: int, seen: list[Any]) -> Callable[[Any, BaseException | None], None]:
            def answer(result: Any, error: BaseException | None) -> None:
                nonlocal waiting
                waiting -= 1
                answers[number] = (seen, error)

            return answer

        for number, script in enumerate(scripts):
            seen: list[Any] = []
            self.runner.submit(Script(*script, seen), done(number, seen))
        self.loop.turn_until(lambda: not waiting)
        return answers

    def compare(
        self, answers: list[tuple[list[Any], BaseException | None]], expected: list[tuple[list[Any], bool]]
    ) -> None:
        for (seen, error), (reads, fails) in zip(answers, expected, strict=True):
            assert seen == reads
            assert isinstance(error, Invalid) if fails else error is None, repr(error)

    def settle_notices(self, notices: list[Any]) -> None:
        """The waiters were notified of the commits, in order, and of nothing else."""
        self.loop.turn_until(lambda: len(self.notices) >= len(notices))
        for log in (1, 2, 3):
            assert [item for item in self.notices if item[0] == log] == [item for item in notices if item[0] == log]
        self.notices.clear()

    @invariant()
    def committed(self) -> None:
        with self.engine.reader() as reader:
            for table in TABLES:
                found = [row for row in reader.scan(table) if row not in self.engines]
                assert found == [row for _, row in sorted(self.rows[table].items())], table
        for table, rows in self.engine.cache.items():
            for key, row in rows.items():
                if row in self.engines:
                    continue
                assert self.rows[table].get(key) == row, f"the cache of {table} has {row}"

    def teardown(self) -> None:
        self.runner.detach()
        self.runner.close()
        self.engine.close()
        self.disk.unregister()
        shutil.rmtree(self.directory)


class EnginesInPostgres(Engines):
    """The same over PostgreSQL, whose disk is not ours to fill: there a commit fails by a trigger."""

    def __init__(self) -> None:
        self.url = postgres.empty_database()
        super().__init__()

    def open_engine(self) -> Any:
        from tailrace.storage.postgres import PostgresEngine

        return PostgresEngine(self.url, environment={"TAILRACE_SECRET_KEY": postgres.KEY})

    def submit_on_a_full_disk(self, scripts: list[tuple[list[Step], bool]], kept: int) -> None:
        before = self.rows
        expected, notices = self.expect(scripts)
        postgres.refuse_commits(self.url)
        try:
            answers = self.run(scripts)
        finally:
            postgres.accept_commits(self.url)
        assert self.runner.stopped is None
        if any(isinstance(error, Unavailable) for _, error in answers):
            assert all(isinstance(error, Unavailable) and error.code == "DISK_FULL" for _, error in answers)
            self.rows = before
            self.settle_notices([])
        else:
            self.compare(answers, expected)
            self.settle_notices(notices)

    @rule(scripts=st.lists(SCRIPTS, min_size=1, max_size=3))
    def submit_after_the_session_ended(self, scripts: list[tuple[list[Step], bool]]) -> None:
        """The connection is noticed to be gone, and made anew."""
        postgres.end_sessions(self.url)
        self.submit(scripts)


TestEngines = Engines.TestCase
TestEngines.settings = settings(max_examples=examples(150), stateful_step_count=25)


@pytest.mark.skipif(postgres.programs() is None, reason=postgres.NOT_TESTED)
class TestEnginesInPostgres(EnginesInPostgres.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=examples(10), stateful_step_count=20, deadline=None)
