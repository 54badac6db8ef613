"""One writer that shares commits.

Theory of operation
-------------------
Commands wait in one queue. The holder of the *turn* takes the waiting commands, runs them in one transaction and
commits; commands that arrive meanwhile form the next batch. Commands of one class that follow one another may be run
together (`Command.run_together`). There is no timer: an idle database commits at once, a busy
one in batches whose size follows the latency of the disk.

Two kinds of callers take turns, with the same code in between:

- `execute`, from any thread: queue the command and wait for the turn; by then it is done, or this thread runs it.
- `submit`, on an event loop's thread: the commands run on the loop, in its next turn, and only COMMIT (the write and
  the sync) happens on the committer thread, so that a slow disk never holds up readers. Where the turn is taken, the
  engine may block or a heavy command waits, the whole batch goes to the committer. On the loop a batch ends after
  BATCH_LOOP_S; what has not run by then goes back to the front of the queue. The commit of a single command stays on
  the loop where the disk has proved to be fast (`CommitPace`): to wake another thread would take longer.

A batch on the loop may take along *followers*: commands that wait for what the batch has written, such as the claim of
a consumer that waits for messages. They run after its commands and share its commit, so that one sync serves both.

The turn also covers the COMMIT, so that the connection is never used meanwhile. Results are delivered after it. A batch
that fails before its COMMIT without harm to the storage (a full disk, a row with a value that no column takes) is
rolled back, and the next one is tried. While the disk is full, commands that free space run in batches of their own,
for which the engine releases its reserve; the first batch that fails is split, so that such commands in it are tried
again. A COMMIT that fails with anything but a full disk leaves the outcome unknown: the writer stops, reads continue,
and opening the database again recovers exactly what was durable.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from tailrace import failpoints, limits
from tailrace.clock import Clock
from tailrace.command import Command
from tailrace.errors import Corrupt, Error, Unavailable
from tailrace.log import segments
from tailrace.log.entry import Segment
from tailrace.log.log import Advanced
from tailrace.log.recent import RecentSegments
from tailrace.log.tail import Notices, Tail
from tailrace.metrics import Metrics
from tailrace.pace import CommitPace
from tailrace.storage.engine import LOST, NOT_LEADER, UNSTORABLE, Engine, Notice, Tx, closed
from tailrace.storage.presence import GONE
from tailrace.storage.wal import DAMAGED

T = TypeVar("T")
Done = Callable[[Any, BaseException | None], None]
# Called on the loop's thread with the notices of a transaction that is about to be committed: the commands that wait
# for them, each with its callback and principal. A command counts as begun when it is yielded.
Followers = Callable[[Notices], Iterator[tuple[Command[Any], Done, str]]]
Mark = Callable[[Tx, list["QueuedCommand"]], None]  # adds rows to the transaction of these commands
logger = logging.getLogger("tailrace.runner")

# Failures that left nothing written and may pass; any other stops the writer.
FULL = "DISK_FULL"
PASSING = frozenset((FULL, "DATABASE_BUSY", LOST))
SURVIVABLE = PASSING | {UNSTORABLE}


class Loop(Protocol):
    """The part of an event loop that the runner uses."""

    def call_soon(self, callback: Callable[..., object], *args: Any) -> Any: ...

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> Any: ...


class QueuedCommand:
    """A command in the queue, and its outcome."""

    __slots__ = ("by", "command", "error", "finished", "heavy", "latch", "result", "size")

    def __init__(self, command: Command[Any], by: str) -> None:
        self.command = command
        self.by = by
        self.result: Any = None
        self.error: BaseException | None = None
        self.finished = False
        self.size = command.size()
        self.heavy = command.heavy()
        self.latch: threading.Lock | None = None  # held while a thread waits for it

    def deliver(self) -> None:
        """The outcome is there, and durable. Called on the loop, and not if a thread waits."""

    def settle(self, result: Any, error: BaseException | None) -> None:
        """Deliver this outcome."""
        self.result, self.error = result, error
        self.deliver()

    def finish(self) -> None:
        """The same for a thread."""
        self.finished = True
        if self.latch is not None:
            self.wake()

    def wake(self) -> None:
        """Wake the waiting thread: the command is finished, or the thread may take the turn."""
        assert self.latch is not None
        with suppress(RuntimeError):  # already awake
            self.latch.release()


class CalledBack(QueuedCommand):
    """A command whose outcome is passed to a function."""

    __slots__ = ("_done",)

    def __init__(self, command: Command[Any], by: str, done: Done) -> None:
        super().__init__(command, by)
        self._done = done

    def deliver(self) -> None:
        self._done(self.result, self.error)


class CarriedCommand(QueuedCommand):
    """A command of another process: where it came from, and its number there. It is passed to a function when it is
    finished. Here, and not in `bus/`, because classes of this module are compiled and cannot be extended elsewhere."""

    __slots__ = ("_done", "bytes", "fetched", "number", "origin")

    def __init__(
        self,
        command: Command[Any],
        by: str,
        origin: Any,
        number: int,
        size: int,
        done: Callable[[CarriedCommand], None],
    ) -> None:
        super().__init__(command, by)
        self.origin = origin
        self.number = number
        self.bytes = size  # of the message that it came in
        self.fetched = 0  # how often trimmed history was fetched for it
        self._done = done

    def deliver(self) -> None:
        self._done(self)


class _Batch:
    """Commands that share a commit."""

    __slots__ = ("error", "freeing", "jobs", "latched", "notices", "tx")

    def __init__(self, jobs: list[QueuedCommand], latched: int = 0) -> None:
        self.jobs = jobs
        self.latched = latched  # those for which a thread waits, and that may have been put back since
        self.tx: Tx | None = None
        self.notices: list[Notice] = []
        self.error: BaseException | None = None
        self.freeing = False  # it may use the reserve

    @property
    def prepared(self) -> bool:
        """Whether the commands ran and the turn is held. There may be none: a thread may have taken them first."""
        return self.tx is not None or self.error is not None


class Runner:
    """The writer of one database."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        tail: Tail,
        metrics: Metrics,
        router: Callable[..., None] | None = None,
        cold: Any = None,
        recent: RecentSegments | None = None,
    ) -> None:
        self.exports: Mapping[int, Sequence[Any]] = {}  # as in a transaction; changed only `between` two transactions
        self.followers: list[Followers] = []  # changed only on the loop's thread
        self.mark: Mark | None = None  # called with each transaction before it is flushed
        self._engine = engine
        self._router = router
        self._cold = cold
        self._recent = RecentSegments() if recent is None else recent
        self._clock = clock
        self._tail = tail
        self._metrics = metrics
        self._pending: deque[QueuedCommand] = deque()
        self._pending_bytes = 0
        self._latched = 0  # the pending commands for which a thread waits
        self._heavy = 0  # the pending commands that must not run on the loop
        self._turn = threading.Lock()
        self._queue = threading.Lock()
        self._stopped: Error | None = None
        self._trouble: Error | None = None
        self._pace = CommitPace()
        self._unanswered = 0  # commits whose results and notices are on their way to the loop
        if not engine.roomy():
            self._trouble = Unavailable("the disk is almost full; free some space", code=FULL)
        self._interrupt: KeyboardInterrupt | None = None  # raised after the results of its batch are delivered
        self._loop: Loop | None = None
        # A kick is scheduled, or the committer has a batch; never both and never two, since the committer could not
        # wait for a turn that is held for a batch behind its own.
        self._kicked = False
        self._leave = threading.Lock()
        self._leaving = False
        self._handoff: SimpleQueue[_Batch | None] = SimpleQueue()
        self._committer: threading.Thread | None = None

    @property
    def stopped(self) -> Error | None:
        """The error that stopped all writes, if any."""
        return self._stopped

    @property
    def trouble(self) -> Error | None:
        """The error of the last commit if it failed but writes are still tried, for example on a full disk."""
        return self._trouble

    def verify(self) -> None:
        """Stop writes if the files of the database are gone; from any thread, at any time."""
        if self._stopped is None:
            try:
                self._engine.verify()
            except Error as error:
                self._stop(error)

    @property
    def waiting(self) -> int:
        """The number of commands that wait for the next commit."""
        return len(self._pending)

    # -- callers

    def execute(self, command: Command[T], by: str = "system") -> T:
        """Run a command for `by`; its result, once it is durable. From any thread."""
        job = QueuedCommand(command, by)
        latch = job.latch = threading.Lock()
        latch.acquire()
        self._enqueue(job)
        led = False
        while not job.finished:
            if not self._turn.acquire(blocking=False):
                latch.acquire()
                continue
            led = True
            try:
                while not job.finished:  # more may be queued before it than one commit carries
                    batch = self._prepare(self._take())
                    self._commit(batch)
                    self._deliver(batch)
            finally:
                self._release_turn()
        if led:
            self._raise_interrupt()
        if job.error is not None:
            raise job.error
        return job.result  # type: ignore[no-any-return]

    def submit(self, command: Command[Any], done: Done, by: str = "system") -> None:
        """Run a command for `by`; call `done(result, error)` once it is durable. On the attached loop's thread."""
        self.queue(CalledBack(command, by, done))

    def queue(self, job: QueuedCommand) -> None:
        """Run a command; call its `deliver` once it is durable. On the attached loop's thread."""
        try:
            self._enqueue(job)
        except Error as error:
            job.settle(None, error)
            return
        if not self._kicked:
            self._kicked = True
            assert self._loop is not None, "queue needs attach()"
            self._loop.call_soon(self._kick)

    def between(self, work: Callable[[], T]) -> T:
        """Call `work` between two transactions, when everything is committed; returns its result. From any thread but
        the loop's; every writer waits for it."""
        self._turn.acquire()
        try:
            return work()
        finally:
            self._release_turn()

    def attach(self, loop: Loop) -> None:
        """Serve `submit` on this loop."""
        assert self._loop is None, "one loop at a time"
        self._loop = loop
        self._committer = threading.Thread(target=self._commit_all, name="tailrace-committer", daemon=True)
        self._committer.start()

    def detach(self) -> None:
        """Finish the submitted commands and release the loop."""
        with self._leave:  # a batch that a kick has prepared is in the hand-off by now
            self._leaving = True
            self._handoff.put(None)
        if self._committer is not None:
            self._committer.join()
        self._committer = None
        self._loop = None
        self._leaving = self._kicked = False

    def close(self) -> None:
        """Accept no more commands; returns when none is running."""
        self._turn.acquire()
        if self._stopped is None:
            self._stopped = closed()
        self._release_turn()

    # -- the queue

    def _enqueue(self, job: QueuedCommand) -> None:
        if self._stopped is not None:
            raise self._stopped.with_traceback(None)  # else it would keep the command of every call
        pending, size = self._pending, job.size
        with self._queue:
            if len(pending) >= limits.WRITE_QUEUE_MAX or (
                self._pending_bytes + size > limits.WRITE_QUEUE_BYTES_MAX and pending
            ):
                raise Unavailable("too many writes are waiting for the disk; retry in a moment", code="QUEUE_FULL")
            pending.append(job)
            self._pending_bytes += size
            if job.latch is not None:
                self._latched += 1
            if job.heavy:
                self._heavy += 1

    def _take(self) -> _Batch:
        """The next batch: the waiting commands, up to the limits of one commit."""
        with self._queue:
            pending = self._pending
            full = self._trouble is not None and self._trouble.code == FULL
            if not full and len(pending) <= limits.BATCH_COMMANDS_MAX and self._pending_bytes < limits.BATCH_BYTES_MAX:
                batch = _Batch(list(pending), self._latched)
                pending.clear()
                self._pending_bytes = self._latched = self._heavy = 0
                return batch
            jobs: list[QueuedCommand] = []
            size = latched = 0
            while pending and len(jobs) < limits.BATCH_COMMANDS_MAX and (not jobs or size < limits.BATCH_BYTES_MAX):
                if full and jobs and pending[0].command.frees() != jobs[0].command.frees():
                    break
                job = pending.popleft()
                size += job.size
                latched += job.latch is not None
                self._heavy -= job.heavy
                jobs.append(job)
            self._pending_bytes -= size
            self._latched -= latched
        return _Batch(jobs, latched)

    def _put_back(self, jobs: list[QueuedCommand]) -> None:
        """Return commands that have not run to the front of the queue. Only with the turn."""
        with self._queue:
            self._pending.extendleft(reversed(jobs))
            for job in jobs:
                self._pending_bytes += job.size
                self._latched += job.latch is not None
                self._heavy += job.heavy

    # -- a turn: prepare, commit, deliver

    def _prepare(self, batch: _Batch, within_s: float | None = None) -> _Batch:
        """Run each command in the transaction; a failing one changes nothing and fails alone. Commands that have not
        begun `within_s` are put back."""
        monotonic_s = self._clock.monotonic_s
        until_s = None if within_s is None else monotonic_s() + within_s
        try:
            if self._stopped is not None:
                raise self._stopped
            if self._trouble is not None and self._trouble.code == FULL:
                batch.freeing = bool(batch.jobs) and batch.jobs[0].command.frees()
                self._engine.make_room(batch.freeing)
            tx = batch.tx = self._engine.begin(self._clock.now_ms())
            tx.lag_ms = self._clock.lag_ms
            tx.exports = self.exports
            tx.router = self._router
            tx.cold = self._cold
            tx.recent = self._recent.committed
            failpoints.hit("batch.begun")
            if self._engine.blocking:
                tx.fetch_ahead([job.command.prefetch for job in batch.jobs])
            jobs, number, alone = batch.jobs, 0, 0
            while number < len(jobs):
                ran = 0
                if number >= alone and jobs[number].command.together:
                    ran, alone = self._run_together(tx, jobs, number)
                if not ran:
                    self._run_one(tx, jobs[number])
                    ran = 1
                number += ran
                if until_s is not None and number < len(jobs) and monotonic_s() >= until_s:
                    self._put_back(jobs[number:])
                    del jobs[number:]
            if until_s is not None and self.followers and tx.notices:
                self._follow(batch, tx, until_s)
            if self.mark is not None:
                self.mark(tx, batch.jobs)
                tx.keep()
            tx.flush()
            failpoints.hit("batch.flushed")
        except BaseException as error:
            self._fail(batch, error)
        return batch

    def _run_together(self, tx: Tx, jobs: list[QueuedCommand], first: int) -> tuple[int, int]:
        """Run commands from `first` on together; how many were run, and up to where the others are to be run alone."""
        commands = _alike(jobs, first)
        results: list[Any] = []
        try:
            if len(commands) > 1:
                tx.by = jobs[first].by
                results = commands[0].run_together(tx, commands)
                failpoints.hit("command.ran")
                tx.keep()
        except (Corrupt, Unavailable):
            raise
        except Exception as error:
            if not isinstance(error, Error):  # which is a name that cannot be looked up: that one will fail alone
                logger.exception("commands that are run together must not fail")
            tx.undo()
            results = []
        for number, result in enumerate(results, start=first):
            jobs[number].result = result
        return len(results), first + len(commands)

    def _run_one(self, tx: Tx, job: QueuedCommand) -> None:
        try:
            tx.by = job.by
            job.result = job.command.run(tx)
            failpoints.hit("command.ran")
            tx.keep()
        except (Corrupt, Unavailable):
            raise  # a failure of the storage: the transaction may be gone, and with it the whole batch
        except Exception as error:
            tx.undo()
            job.error = error
            self._metrics.commands_failed += 1

    def _follow(self, batch: _Batch, tx: Tx, until_s: float) -> None:
        """Run the followers of a batch, as far as it has time and room for them. The others are woken by its
        notices."""
        notices = tx.notices[:]  # those of followers concern nobody here
        for followers in self.followers:
            for command, done, by in followers(notices):
                job = CalledBack(command, by, done)
                batch.jobs.append(job)
                self._run_one(tx, job)
                if len(batch.jobs) >= limits.BATCH_COMMANDS_MAX or self._clock.monotonic_s() >= until_s:
                    return

    def _commit(self, batch: _Batch) -> None:
        """Make a prepared batch durable, or fail it whole."""
        if batch.error is not None:
            return
        assert batch.tx is not None
        began = self._clock.monotonic_s()
        try:
            batch.tx.commit()
            self._pace.note(self._clock.monotonic_s() - began)
            failpoints.hit("commit.synced")
        except KeyboardInterrupt as interrupt:
            # It is raised when the call has returned: the commit is durable, for the other commands too.
            if not batch.tx.ended():
                self._fail(batch, interrupt)
                return
            self._interrupt = interrupt
        except BaseException as error:
            self._fail(batch, error)
            return
        if not self._engine.blocking:  # on another machine it is durable, even if this server leads no more
            try:
                self._engine.verify()  # a commit to a deleted file is not durable
            except Error as error:
                self._fail(batch, error)
                return
        # A commit that wrote nothing, or used the reserve, does not show that writes work.
        if self._trouble is not None and batch.tx.wrote and not batch.freeing and self._engine.roomy():
            self._trouble = None
        batch.notices = batch.tx.notices
        metrics = self._metrics
        added: list[Segment] = [notice.item.segment for notice in batch.notices if type(notice.item) is Advanced]
        for segment in added:
            metrics.entries += 1 if segment.layout is None else segments.count(segment)
            metrics.entry_bytes += len(segment.body)
        self._recent.add_each(added)
        took_s = self._clock.monotonic_s() - began
        metrics.commit_seconds += took_s
        metrics.commit_times.append(took_s)
        metrics.commits += 1
        metrics.commands += len(batch.jobs)

    def _fail(self, batch: _Batch, error: BaseException) -> None:
        """Fail the whole batch, and stop the writer unless the next batch may succeed."""
        batch.error = error
        survivable = isinstance(error, Unavailable) and error.code in SURVIVABLE
        if isinstance(error, KeyboardInterrupt):
            self._interrupt, survivable = error, True
            error = Unavailable("the write was interrupted and did not happen; try again", code="INTERRUPTED")
        if batch.tx is not None:
            try:
                batch.tx.rollback()
            except Error:
                survivable = False
        if not survivable and self._stopped is None:
            self._stop(error)
        if isinstance(error, Error) and error.code == FULL and survivable and not batch.freeing:
            self._try_again(batch)
        if survivable and isinstance(error, Error) and error.code in PASSING:
            self._trouble = error
        elif survivable and isinstance(error, Error) and error.code == UNSTORABLE:
            logger.error("%d commands were rolled back: %s", len(batch.jobs), error)
        shown = error if isinstance(error, Error) else self._stopped
        self._metrics.commands_failed += sum(job.error is None for job in batch.jobs)
        for job in batch.jobs:
            job.result, job.error = None, shown

    def _try_again(self, batch: _Batch) -> None:
        """Queue the commands of a batch again that may use the reserve."""
        freeing = [job for job in batch.jobs if job.command.frees()]
        if not freeing:
            return
        for job in freeing:
            job.result, job.error = None, None
        batch.jobs = [job for job in batch.jobs if not job.command.frees()]
        self._put_back(freeing)
        if self._loop is not None:
            with suppress(RuntimeError):  # closed
                self._loop.call_soon_threadsafe(self._kick_again)

    def _stop(self, error: BaseException) -> None:
        """Accept no more writes."""
        if isinstance(error, Error) and error.code == NOT_LEADER:
            logger.info("writes are stopped: %s", error)  # in order: a take-over, of which the leadership tells
        else:
            logger.critical("writes are stopped: %s", error, exc_info=error)
        reason = f"writes are stopped since the last commit failed ({error}); restart the server to recover"
        code = "WRITES_STOPPED"
        if isinstance(error, Error) and error.code in (GONE, DAMAGED):
            reason = f"writes are stopped: {error}"
        elif isinstance(error, Error) and error.code == NOT_LEADER:
            reason, code = str(error), NOT_LEADER
        self._stopped = Unavailable(reason, code=code)

    def _raise_interrupt(self) -> None:
        """Raise a KeyboardInterrupt that arrived during a write, in its thread."""
        interrupt, self._interrupt = self._interrupt, None
        if interrupt is not None:
            raise interrupt

    def _release_turn(self) -> None:
        """Release the turn, and wake a thread that waits for it. Threads wait on latches of their own, not on the turn:
        otherwise those whose command is done already would queue behind the next commit."""
        self._turn.release()
        waiting = None
        with self._queue:
            if self._latched:
                waiting = next(job for job in self._pending if job.latch is not None)
        if waiting is not None:
            waiting.wake()

    def _deliver(self, batch: _Batch) -> None:
        """Mark the commands finished; deliver results and notify waiters. Called with the turn held."""
        for job in batch.jobs:
            job.finish()
        if batch.notices or self._loop is None or any(job.latch is None for job in batch.jobs):
            self._call_back(self._answer, batch)

    def _call_back(self, how: Callable[[_Batch], None], batch: _Batch) -> None:
        """Deliver results on the loop. Without a loop, or if it was closed, only waiting threads get theirs."""
        loop = self._loop
        if loop is not None:
            self._count_unanswered(1)
            try:
                loop.call_soon_threadsafe(self._called_back, how, batch)
                return
            except RuntimeError:  # closed
                self._count_unanswered(-1)
        failpoints.hit("batch.answered")
        self._tail.publish(batch.notices)

    def _count_unanswered(self, more: int) -> None:
        with self._queue:
            self._unanswered += more

    # -- the loop's side

    def _called_back(self, how: Callable[[_Batch], None], batch: _Batch) -> None:
        try:
            how(batch)
        finally:
            self._count_unanswered(-1)

    def _kick(self) -> None:
        """Start the next batch, on the loop's thread."""
        if not self._pending:
            self._kicked = False
            return
        with self._leave:
            if self._leaving:
                return  # the committer takes the rest
            troubled = self._trouble is not None  # then the disk is checked, which takes long
            if self._heavy or self._engine.blocking or troubled or not self._turn.acquire(blocking=False):
                self._handoff.put(_Batch([]))
                return
            # Not before earlier commits are answered: waiters rely on the order of notices. Nor within `_finish`, again
            # and again, while threads go on to write.
            lone = len(self._pending) == 1 and not self._unanswered
            batch = self._prepare(self._take(), limits.BATCH_LOOP_S)
            if not (lone and self._pace.fast and self._engine.brief()):
                self._handoff.put(batch)
                return
            self._commit_prepared(batch)
            self._count_unanswered(1)
        self._called_back(self._finish, batch)
        self._raise_interrupt()

    def _kick_again(self) -> None:
        """Start a batch for commands that were queued again, unless one is running."""
        if not self._kicked:
            self._kicked = True
            self._kick()

    def _commit_all(self) -> None:
        """The committer thread."""
        while (batch := self._handoff.get()) is not None:
            self._commit_one(batch)
        while self._pending:
            self._commit_one(_Batch([]))

    def _commit_one(self, batch: _Batch) -> None:
        if not batch.prepared:
            self._turn.acquire()
            batch = self._prepare(self._take())
        self._commit_prepared(batch)
        self._call_back(self._finish, batch)

    def _commit_prepared(self, batch: _Batch) -> None:
        """Commit, wake the threads that wait for it, and release the turn."""
        self._commit(batch)
        if batch.latched:
            for job in batch.jobs:
                job.finish()
        self._release_turn()

    def _finish(self, batch: _Batch) -> None:
        # The next batch begins in the next turn of the loop, together with the requests that clients send when they get
        # the results of this one; begun at once, it would be half as large, and each commit would cost twice as much.
        if self._pending and self._loop is not None:
            self._loop.call_soon(self._kick)
        else:
            self._kicked = False
        self._answer(batch)

    def _answer(self, batch: _Batch) -> None:
        delivered = 0
        while delivered < len(batch.jobs):
            delivered = _delivered(batch.jobs, delivered)
        failpoints.hit("batch.answered")
        self._tail.publish(batch.notices)


def _delivered(jobs: list[QueuedCommand], first: int) -> int:
    """Deliver the results from `first` on; where to go on. One that fails must not keep the others, nor the notices."""
    number = first
    try:
        while number < len(jobs):
            number += 1
            if jobs[number - 1].latch is None:
                jobs[number - 1].deliver()
    except Exception:
        logger.exception("a result could not be delivered")
    return number


def _alike(jobs: list[QueuedCommand], first: int) -> list[Command[Any]]:
    """Some commands from `first` on, as far as they are of one class, and of one principal if they are signed."""
    kind, by = type(jobs[first].command), jobs[first].by
    alike: list[Command[Any]] = []
    for number in range(first, min(first + limits.BATCH_TOGETHER_MAX, len(jobs))):
        command = jobs[number].command
        if type(command) is not kind or (kind.signed and jobs[number].by != by):
            break
        alike.append(command)
    return alike
