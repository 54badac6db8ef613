"""Wires, opens and closes the parts of a database; `execute` and `aexecute` are the way in for every front door."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from tailrace import limits
from tailrace.access import SYSTEM, Principal
from tailrace.auth.audit import admit
from tailrace.clock import Clock, Jump
from tailrace.command import Command, Query
from tailrace.completion import Completion
from tailrace.config import Config
from tailrace.embedded import TableOperations
from tailrace.errors import Error, Invalid, Unavailable
from tailrace.jobs import sweep as jobs
from tailrace.jobs.identity import Identify, LastTime, Noted, NoteTime, Provision, Provisioned
from tailrace.log.cold import Missing, Tier
from tailrace.log.entry import Entry
from tailrace.log.tail import HOUSEKEEPING, Tail
from tailrace.metrics import Metrics
from tailrace.runner import Done, Runner
from tailrace.sql.result import Result
from tailrace.storage.engine import Engine
from tailrace.storage.sqlite import SqliteEngine
from tailrace.streams.sweep import Due, Expire, FindDue, Probe, Reclaim, Trim
from tailrace.tables import sweep as tables
from tailrace.tables.export import Exports
from tailrace.topics import sweep as topics
from tailrace.topics.router import route

if TYPE_CHECKING:
    from tailrace.backup import Made

T = TypeVar("T")
FETCHES_MAX = 200  # from cold storage for one answer; each brings it further
logger = logging.getLogger("tailrace.database")


class Answer(Result):
    """The result of the last of some statements; `results` has those of all."""

    results: list[Result] = []


class ColdStorage:
    """Where a database's cold storage is, and what was read from it lately. What it needs is imported by the first who
    reads history that is no longer hot."""

    def __init__(
        self, url: str, *, options: Mapping[str, str] | None = None, cache_bytes: int = limits.SHELF_BYTES
    ) -> None:
        self.url = url
        self.options = dict(options or {})  # keys may be in them: not to be logged
        self._cache_bytes = cache_bytes
        self._shelf: Any = None
        self._opening = threading.Lock()

    def run(self, tier: Tier, position: int) -> list[Entry]:
        """As `log.cold.Shelf`."""
        if self._shelf is None:
            raise Missing(tier, position)
        return self._shelf.run(tier, position)  # type: ignore[no-any-return]

    def first_since(self, tier: Tier, at_ms: int) -> int:
        """As `log.cold.Shelf`."""
        if self._shelf is None:
            raise Missing(tier, tier.start, at_ms)
        return self._shelf.first_since(tier, at_ms)  # type: ignore[no-any-return]

    def fetch(self, missing: Missing) -> None:
        """As `log.cold.Shelf`."""
        with self._opening:
            if self._shelf is None:
                from tailrace.cold.shelf import Shelf
                from tailrace.cold.store import Store

                self._shelf = Shelf(Store(self.url, self.options), capacity_bytes=self._cache_bytes)
        self._shelf.fetch(missing)


class Database(TableOperations):
    """An open database. Thread-safe; one process at a time."""

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Clock | None = None,
        housekeeping_s: float | None = 1.0,
        cold: ColdStorage | None = None,
    ) -> None:
        self.clock = clock or Clock()
        self.cold = cold
        self.metrics = Metrics()
        self.tail = Tail()
        self._engine = engine
        self._runner = Runner(engine, self.clock, self.tail, self.metrics, route, cold)
        self.exports = Exports(engine.scratch, self._runner, self.execute)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0  # the loop's
        self._attaching = threading.Lock()
        self._cold_threads: ThreadPoolExecutor | None = None
        self._cold_waiting = 0  # requests of the loop
        self._closing = threading.Event()
        self._work = threading.Event()  # set when a commit has left work for the housekeeping
        self._tables_after: tables.Place | None = None  # how far the housekeeping has looked
        self._streams_after: str | None = None
        self._topics_after: int | None = None
        self._jobs_after: jobs.Place | None = None
        self._housekeeper: threading.Thread | None = None
        self._jump: Jump | None = None  # of the clock, as housekeeping has seen it last
        try:
            self._noted = self.execute(LastTime()) or Noted(0)  # the time as it was recorded last
            self.clock.resume(self._noted.settled_ms or None, self._noted.seen_ms)
            self._provisioned = self._provision()
        except BaseException:
            engine.close()  # a database that is damaged, say: its lock is not left behind
            raise
        self._noted_commits = self.metrics.commits
        if housekeeping_s is not None:
            self.tail.subscribe(HOUSEKEEPING, lambda notices: self._work.set())
            self._housekeeper = threading.Thread(
                target=self._keep_house, args=(housekeeping_s,), name="tailrace-housekeeping", daemon=True
            )
            self._housekeeper.start()

    # -- commands and queries

    def execute(self, command: Command[T] | Query[T], principal: Principal = SYSTEM) -> T:
        """Run a command or a query; from any thread but an event loop's."""
        audit = None
        if command.permission not in principal.plain:
            command, audit = admit(command, principal)
        if isinstance(command, Query):
            return self._answer(command)
        if audit is None:
            return self._run(command, principal.name)
        with audit:
            return self._run(command, principal.name)

    def aexecute(self, command: Command[T] | Query[T], principal: Principal = SYSTEM) -> Awaitable[T]:
        """Run a command or a query; await the result on the event loop."""
        audit = None
        if command.permission not in principal.plain:
            command, audit = admit(command, principal)
        # Asking asyncio which loop runs here takes longer than all the rest of this.
        if self._loop is None or self._thread != threading.get_ident() or not self._loop.is_running():
            self._attach_here()
        completion: Completion[T] = Completion(self._loop)
        if isinstance(command, Command):
            done = completion.set if audit is None else audit.then(completion.set)
            if command.history:
                done = partial(self._settle, command, principal.name, done)
            self._runner.submit(command, done, principal.name)
            return completion
        if self._engine.blocking:
            assert self._loop is not None
            return self._loop.run_in_executor(None, self._answer, command)
        try:
            completion.set(self._query(command))
        except Error as error:
            completion.set(None, error)
        except Missing as missing:
            return self._apart(self._answer, command, missing)
        return completion

    def _query(self, query: Query[T]) -> T:
        self.metrics.queries += 1
        with self._engine.reader(self.clock.now_ms(), single=query.single) as reader:
            reader.lag_ms = self.clock.lag_ms
            reader.shelf = self.cold
            reader.exports = self.exports
            return query.run(reader)

    # -- what needs cold storage is tried, told what is missing, and tried again when that was fetched

    def _answer(self, query: Query[T], missing: Missing | None = None) -> T:
        for _ in range(FETCHES_MAX):
            if missing is not None:
                self._fetch(missing)
            try:
                return self._query(query)
            except Missing as error:
                missing = error
        raise _not_found(missing)

    def _run(self, command: Command[T], by: str) -> T:
        missing: Missing | None = None
        for _ in range(FETCHES_MAX):
            try:
                return self._runner.execute(command, by)
            except Missing as error:
                missing = error
            self._fetch(missing)
        raise _not_found(missing)

    def _settle(self, command: Command[Any], by: str, done: Done, value: Any, error: BaseException | None) -> None:
        """A command that was submitted has run: it is done, or to be run again in a thread that may wait."""
        if not isinstance(error, Missing):
            done(value, error)
            return
        loop = self._loop
        assert loop is not None

        def again() -> None:
            value, failure = None, None
            try:
                self._fetch(error)
                value = self._run(command, by)
            except BaseException as raised:  # whoever waits is told, whatever it is
                failure = raised
            loop.call_soon_threadsafe(done, value, failure)

        try:
            self._apart(again)
        except Error as refused:
            done(None, refused)

    def _apart(self, work: Callable[..., T], *args: Any) -> Awaitable[T]:
        """Do what waits for cold storage in threads of its own: others would wait with it."""
        assert self._loop is not None
        if self._cold_threads is None:
            self._cold_threads = ThreadPoolExecutor(limits.COLD_THREADS, "tailrace-cold")
        if self._cold_waiting >= limits.COLD_WAITING_MAX:
            raise Unavailable(
                f"{self._cold_waiting} requests wait for cold storage already; try again in a moment", code="COLD_BUSY"
            )
        self._cold_waiting += 1
        future = self._loop.run_in_executor(self._cold_threads, work, *args)
        future.add_done_callback(self._came_back)
        return future

    def _came_back(self, future: Any) -> None:
        self._cold_waiting -= 1

    def _fetch(self, missing: Missing) -> None:
        assert self.cold is not None, "nothing is missing where there is no cold storage"
        self.metrics.cold_reads += 1
        try:
            self.cold.fetch(missing)
        except Error:
            self.metrics.cold_failures += 1
            raise

    def sql(self, text: str, params: Sequence[Any] = (), principal: Principal = SYSTEM) -> Answer:
        """Run SQL statements, each a transaction of its own; the result of the last, with `results` of all. The first
        that fails ends the run: its error has `line`, `column`, and `done`, the results of those before it.

        >>> db.sql("SELECT * FROM orders WHERE amount > ?", [10]).rows
        [{'id': 'o-1', 'amount': 12}]
        """
        from tailrace.sql.session import Session  # what it needs takes long to import, and few ask

        results = Session(lambda asked: self.execute(asked, principal), caller=principal.name).run(text, params)
        last = results[-1] if results else Result("")
        return Answer(last.statement, last.columns, last.rows, last.row_count, last.message, last.facts, results)

    def backup(
        self,
        target: str | os.PathLike[str],
        *,
        keep: int | None = None,
        deep: bool = False,
        on_progress: Callable[[str, int, int], None] | None = None,
    ) -> Made:
        """Back the database up with its cold storage, while it is in use: into a directory, an archive or
        `s3://bucket/prefix`. What the target has already is not stored again. `tailrace.backup.restore` is the way
        back.

        >>> db.backup("backups", keep=7).manifest.id
        '20260416T120000-000-3f9a'
        """
        from tailrace.backup import back_up
        from tailrace.cold.store import Store

        assert isinstance(self._engine, SqliteEngine), "other engines are backed up by their own tools"
        assert self.cold is not None
        store = Store(self.cold.url, self.cold.options)
        return back_up(self._engine, target, cold=store, keep=keep, deep=deep, on_progress=on_progress)

    # -- life

    @property
    def identity(self) -> str:
        """What tells this database from every other, copies of its files apart; assigned when it is first opened."""
        return self.execute(Identify())

    def _provision(self) -> bool:
        """Make what every database has from its beginning; whether it is there. A database that cannot be written now
        is opened all the same: reads go on, and housekeeping tries again."""
        try:
            if not self.execute(Provisioned()):
                self.execute(Provision())
        except Unavailable as error:
            logger.warning("the database is open, but cannot be written: %s", error)
            return False
        return True

    @property
    def stopped(self) -> Error | None:
        """Why no more writes are taken, if so."""
        return self._runner.stopped

    @property
    def trouble(self) -> Error | None:
        """Why the last commit failed, if it did and writes are still tried: a full disk, say."""
        return self._runner.trouble

    def verify(self) -> None:
        """Stop writes if the files of the database are gone. Done after each commit too."""
        self._runner.verify()

    @property
    def waiting(self) -> int:
        """How many writes wait for the next commit."""
        return self._runner.waiting

    def _attach_here(self) -> None:
        """Serve the running loop; one that was served before and is closed is let go of."""
        here = _running_loop()
        if here is None:
            raise Invalid(
                "no event loop is running on this thread; use execute, or the methods of Table", code="NO_LOOP"
            )
        with self._attaching:
            if self._loop is here:
                return
            if self._loop is not None:
                if not self._loop.is_closed():
                    raise Invalid(
                        "the database is in use on another event loop, and serves one at a time; await it there "
                        "(asyncio.run_coroutine_threadsafe), or use execute and Table on a thread",
                        code="OTHER_LOOP",
                    )
                self._runner.detach()
            self.attach(here)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Bind asynchronous use to this loop. Done by the first `aexecute`, or before it by a server."""
        self._loop = loop
        self._thread = threading.get_ident()
        self._runner.attach(loop)

    async def aclose(self) -> None:
        """Close from the event loop, when everything submitted has been answered."""
        await asyncio.to_thread(self._stop_housekeeping)
        if self._loop is not None:
            await asyncio.to_thread(self._runner.detach)
            await asyncio.sleep(0)  # answers that the committer queued on the loop
            self._loop = None
        self.close()

    def close(self) -> None:
        """Close. Everything acknowledged is durable already."""
        self.followers.close()
        self._stop_housekeeping()
        if self._loop is not None:
            self._runner.detach()
            self._loop = None
        with suppress(Error):  # writes may be stopped: then the next start waits before it deletes by age
            self._note_time()
        if self._cold_threads is not None:
            self._cold_threads.shutdown(wait=True, cancel_futures=True)
        self._runner.close()
        self.exports.close()
        self._engine.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- housekeeping

    def sweep(self) -> int:
        """Do all housekeeping that is due; how many steps it took."""
        self._watch_clock()
        # What tables and topics let go of is in logs, like what streams do: those are last.
        return self._sweep_tables() + self._sweep_topics() + self._sweep_jobs() + self._sweep_streams()

    def _sweep_tables(self) -> int:
        steps, after = 0, None
        while not self._closing.is_set():
            due = self.execute(tables.FindDue(after))
            steps += self._do_tables(due)
            if not due.trims:  # else the same change streams may have more to trim
                after = due.looked_at
            if not due and after is None:
                break
        return steps

    def _sweep_topics(self) -> int:
        steps, after = 0, None
        while not self._closing.is_set():
            due = self.execute(topics.FindDue(after))
            steps += self._do_topics(due)
            if not due.trims:  # else the same topics may have more to trim
                after = due.looked_at
            if not due and after is None:
                break
        return steps

    def _sweep_jobs(self) -> int:
        steps, after = 0, None
        while not self._closing.is_set():
            due = self.execute(jobs.FindDue(after))
            for step in due.steps:
                self.execute(step)
            steps += len(due.steps)
            after = due.looked_at
            if after is None:
                break
        return steps

    def _sweep_streams(self) -> int:
        steps, after = 0, None
        while not self._closing.is_set():
            due = self.execute(FindDue(after))
            steps += self._do(due)
            if not due.trims:  # else the same streams may have more to trim
                after = due.looked_at
            if not due and after is None:
                break
        return steps

    def _do_tables(self, due: tables.Due) -> int:
        steps = len(due.steps) + len(due.expiries) + len(due.trims)
        for step in due.steps:
            while not self.execute(step) and not self._closing.is_set():
                steps += 1
        for expiry in due.expiries:
            while not self._expire(expiry) and not self._closing.is_set():
                steps += 1
        for trim in due.trims:
            self.execute(trim)
            self.metrics.trimmed += 1
        return steps

    def _do_topics(self, due: topics.Due) -> int:
        for trim in due.trims:
            self.metrics.messages_trimmed += self.execute(trim)
        return len(due.trims)

    def _expire(self, expiry: tables.ExpireItems) -> bool:
        expired = self.execute(expiry)
        self.metrics.items_expired += expired.items
        return expired.done

    def _do(self, due: Due) -> int:
        for deadline in due.deadlines:
            self.metrics.expired += self.execute(Expire(deadline))
        for path in due.trims:
            self.execute(Trim(path))
            self.metrics.trimmed += 1
        steps = len(due.deadlines) + len(due.trims) + len(due.garbage)
        for log in due.garbage:
            while not self.execute(Reclaim(log)) and not self._closing.is_set():
                steps += 1
        return steps

    def _keep_house(self, every_s: float) -> None:
        while True:
            self._work.wait(every_s)
            self._work.clear()  # before looking: what comes while we look is looked at in the next round
            if self._closing.is_set():
                return
            for keep in (
                self._watch_clock, self._probe, self._keep_tables, self._keep_topics, self._keep_jobs,
                self._keep_streams, self._note_time,
            ):  # fmt: skip
                try:
                    keep()
                except Unavailable as error:
                    # Nothing is lost: the lists of work are in the database, and the next round looks again.
                    logger.warning("housekeeping waits: %s", error)
                    break
                except Exception:
                    logger.exception("housekeeping failed")

    def _watch_clock(self) -> None:
        """Look whether the clock has jumped, or whether a jump is confirmed or over, and report it."""
        self.clock.observe()
        before, jump = self._jump, self.clock.jump
        self.metrics.clock_ahead_seconds = self.clock.lag_ms / 1000
        self._jump = jump
        if jump is not None and before is None:
            self.metrics.clock_jumps += 1
            logger.warning(
                "the clock is %.0f s ahead of the time that is confirmed; nothing is deleted because of its age by the "
                "new time until the clock has kept to it for %.0f s; set the clock right if it is wrong",
                jump.ahead_ms / 1000, jump.confirmed_in_ms / 1000,
            )  # fmt: skip
        elif before is not None and jump is None and self.clock.lag_ms:
            logger.warning(
                "the clock has come back from its jump; new timestamps stay %.0f s ahead of it until the database is "
                "opened again, since time never goes back in a log",
                self.clock.lag_ms / 1000,
            )
        elif before is not None and jump is None:
            logger.warning("the clock's jump is confirmed; deletion by age goes by the new time")

    def _note_time(self) -> None:
        """Record the time, if there were writes and it was not recorded lately, or if there is news of a jump. An idle
        database writes nothing."""
        now = Noted(self.clock.settled_ms(), self.clock.seen_ms)
        written = self.metrics.commits != self._noted_commits
        if now.seen_ms != self._noted.seen_ms or (
            written and abs(now.settled_ms - self._noted.settled_ms) >= limits.CLOCK_NOTE_S * 1000
        ):
            self.execute(NoteTime(now.seen_ms))
            self._noted, self._noted_commits = now, self.metrics.commits

    def _probe(self) -> None:
        self._engine.examine()
        self.verify()
        if self.trouble is not None:
            self.execute(Probe())  # whoever watches /readyz may send no writes until it is well again
        if not self._provisioned:
            self._provisioned = self._provision()

    def _keep_tables(self) -> None:
        more = True
        while more and not self._closing.is_set():
            due = self.execute(tables.FindDue(self._tables_after))
            self._do_tables(due)
            self._tables_after, more = due.looked_at, due.more

    def _keep_topics(self) -> None:
        due = self.execute(topics.FindDue(self._topics_after))
        self._do_topics(due)
        self._topics_after = due.looked_at

    def _keep_jobs(self) -> None:
        due = self.execute(jobs.FindDue(self._jobs_after))
        for step in due.steps:
            self.execute(step)
        self._jobs_after = due.looked_at

    def _keep_streams(self) -> None:
        more = True
        while more and not self._closing.is_set():
            due = self.execute(FindDue(self._streams_after))
            self._do(due)
            self._streams_after, more = due.looked_at, due.more

    def _stop_housekeeping(self) -> None:
        self._closing.set()
        self._work.set()
        if self._housekeeper is not None:
            self._housekeeper.join()
            self._housekeeper = None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop of this thread, if it is running."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _not_found(missing: Missing | None) -> Unavailable:
    return Unavailable(
        f"{missing}, and what was fetched is crowded out before it can be used; try again, or give cold storage a "
        "larger cache",
        code="COLD_CACHE",
    )


def open(
    path: str | os.PathLike[str], *, cold: str | ColdStorage | None = None, accept_loss: bool = False, **options: Any
) -> Database:
    """Open the database in a directory; it is made if it is not there. `cold` is the URL of its cold storage, by
    default the directory `cold` in it. `accept_loss`: a damaged write-ahead log, which is refused otherwise (`Corrupt`
    WAL_DAMAGED), is cut off where the damage begins, and a copy of it kept.

    >>> import tailrace
    >>> db = tailrace.open("data")
    >>> orders = db.create_table("orders", partition_key="id", stream="NEW_IMAGE", exist_ok=True)
    >>> orders.put({"id": "o-1", "amount": 12})
    >>> orders.get("o-1")
    {'id': 'o-1', 'amount': 12}
    >>> [change.event for change in orders.changes()]
    ['INSERT']
    """
    if cold is None:
        cold = os.path.join(os.path.abspath(path), "cold")
    storage = cold if isinstance(cold, ColdStorage) else ColdStorage(cold)
    return Database(SqliteEngine(path, accept_loss=accept_loss), cold=storage, **options)


def open_configured(config: Config, *, accept_loss: bool = False) -> Database:
    """Open the database of a server."""
    cold = config.cold
    url = cold.url if cold.url is not None else os.path.join(os.path.abspath(config.data), "cold")
    storage = ColdStorage(url, options=cold.options, cache_bytes=cold.cache_bytes)
    return open(config.data, cold=storage, accept_loss=accept_loss)
