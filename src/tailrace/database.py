"""Wires, opens and closes the parts of a database; every API runs its commands by `execute` or `aexecute`."""

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

from tailrace import extras, limits
from tailrace.access import SYSTEM, Principal
from tailrace.auth.audit import admit
from tailrace.auth.throttle import LoginThrottle
from tailrace.bus.remote_policies import LateAdmission
from tailrace.clock import Clock, FollowedClock, Jump
from tailrace.command import Command, Query
from tailrace.completion import Completion
from tailrace.config import DATABASE_URLS, Config
from tailrace.embedded import EmbeddedOperations
from tailrace.errors import Error, Invalid, Unavailable
from tailrace.housekeeping import Housekeeper
from tailrace.jobs import sweep as jobs
from tailrace.jobs.identity import Identify, LastTime, Noted, NoteTime, Provision, Provisioned
from tailrace.log.cold import ColdMiss, ColdRange
from tailrace.log.entry import Entry
from tailrace.log.recent import RecentSegments
from tailrace.log.tail import ACKNOWLEDGED, HOUSEKEEPING, POLICIES_CHANGED, TRANSFERS_DUE, Tail
from tailrace.metrics import Metrics
from tailrace.runner import Done, Followers, Mark, QueuedCommand, Runner
from tailrace.sql import checks
from tailrace.sql.result import Result
from tailrace.storage.engine import Engine
from tailrace.storage.sqlite import SqliteEngine
from tailrace.streams import sweep as streams
from tailrace.tables import constraints, copying
from tailrace.tables import sweep as tables
from tailrace.tables.export import Exports
from tailrace.tables.policies import ListPolicies, PolicyBook
from tailrace.topics import sweep as topics
from tailrace.topics.consumption import AckRecorder
from tailrace.topics.router import route
from tailrace.transfers.buckets import Buckets
from tailrace.transfers.worker import TransferWorker

if TYPE_CHECKING:
    from tailrace.backup import BackupResult
    from tailrace.bus.forwarder import Forwarder

T = TypeVar("T")
# In this order: entries that tables and topics let go of are removed by the last task of streams.
TASKS = (*tables.TASKS, *copying.TASKS, *topics.TASKS, *jobs.TASKS, *streams.TASKS)
logger = logging.getLogger("tailrace.database")


class SqlResult(Result):
    """The result of the last statement; `results` has the results of all statements."""

    results: list[Result] = []


class ColdStorage:
    """The cold storage of a database, with its cache. Its dependencies are imported by the first read of trimmed
    history."""

    def __init__(
        self, url: str, *, options: Mapping[str, str] | None = None, cache_bytes: int = limits.COLD_CACHE_BYTES
    ) -> None:
        self.url = url
        self.options = dict(options or {})  # may contain credentials: never logged
        self._cache_bytes = cache_bytes
        self._cache: Any = None
        self._opening = threading.Lock()

    def segment(self, tier: ColdRange, position: int) -> list[Entry]:
        """As `log.cold.ColdReader`."""
        if self._cache is None:
            raise ColdMiss(tier, position)
        return self._cache.segment(tier, position)  # type: ignore[no-any-return]

    def first_since(self, tier: ColdRange, at_ms: int) -> int:
        """As `log.cold.ColdReader`."""
        if self._cache is None:
            raise ColdMiss(tier, tier.start, at_ms)
        return self._cache.first_since(tier, at_ms)  # type: ignore[no-any-return]

    def fetch(self, missing: ColdMiss) -> None:
        """As `log.cold.ColdReader`."""
        with self._opening:
            if self._cache is None:
                from tailrace.cold.cache import ColdCache
                from tailrace.cold.store import Store

                self._cache = ColdCache(Store(self.url, self.options), capacity_bytes=self._cache_bytes)
        self._cache.fetch(missing)


class Database(EmbeddedOperations):
    """An open database. Thread-safe; one process at a time."""

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Clock | None = None,
        housekeeping_s: float | None = 1.0,
        cold: ColdStorage | None = None,
        forwarder: Callable[[Database], Forwarder] | None = None,
        buckets: Buckets | None = None,
    ) -> None:
        """`forwarder`: another process writes, and this makes the link to it."""
        self.clock = clock or Clock()
        self.cold = cold
        self.metrics = Metrics()
        self.tail = Tail()
        self.recent = RecentSegments()
        self._engine = engine
        constraints.use(checks.fails)
        self.forwarder = None if forwarder is None else forwarder(self)
        self._runner: Runner | Forwarder
        if self.forwarder is None:
            self._runner = runner = Runner(engine, self.clock, self.tail, self.metrics, route, cold, self.recent)
            self.exports = Exports(engine.scratch, runner, self.execute)
        else:
            self._runner = self.forwarder
            self.exports = self.forwarder.remote_exports(self.execute)
        self.sharing = Sharing(self)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0  # the loop's
        self._attaching = threading.Lock()
        self._cold_threads: ThreadPoolExecutor | None = None
        self._cold_waiting = 0  # requests of the loop
        self._acks = AckRecorder(self.execute)
        self._housekeeper = Housekeeper(
            TASKS,
            self.execute,
            self.metrics,
            before=(self._watch_clock, self._probe, self._acks.flush),
            after=(self._note_time,),
        )
        made = PolicyBook if self.forwarder is None else self.forwarder.remote_policies
        self.policies = made(lambda: self._query(ListPolicies()), self.clock.now_ms)
        self._late = LateAdmission(self.policies, self._answer, self._submit)
        self.tail.subscribe(POLICIES_CHANGED, self.policies.notice)
        self.transfers = TransferWorker(self.execute, buckets or Buckets())
        self._jump: Jump | None = None  # of the clock, as housekeeping has seen it last
        if self.forwarder is not None:  # the writer's process does the rest
            return
        try:
            self._noted = self.execute(LastTime()) or Noted(0)  # the time as it was recorded last
            self.policies.load()
            self.clock.resume(self._noted.settled_ms or None, self._noted.seen_ms)
            self.clock.not_before(engine.floor_ms)
            self._provisioned = self._provision()
        except BaseException:
            engine.close()  # for example a damaged database: its lock is not left behind
            raise
        self._noted_commits = self.metrics.commits
        self.tail.subscribe(ACKNOWLEDGED, self._acks.note)
        if housekeeping_s is not None:
            self.tail.subscribe(HOUSEKEEPING, lambda notices: self._housekeeper.wake())
            self._housekeeper.start(housekeeping_s)
            self.tail.subscribe(TRANSFERS_DUE, lambda notices: self.transfers.wake())
            self.transfers.start()

    # -- commands and queries

    def execute(self, command: Command[T] | Query[T], principal: Principal = SYSTEM) -> T:
        """Run a command or a query; from any thread but an event loop's."""
        audit = None
        if command.permission not in principal.plain or self.policies.active:
            command, audit = admit(command, principal, self.policies)
        if isinstance(command, Query):
            try:
                return self._query(command)
            except ColdMiss as missing:
                return self._answer(command, missing)
        if audit is None:
            return self._run(command, principal.name)
        with audit:
            return self._run(command, principal.name)

    def aexecute(self, command: Command[T] | Query[T], principal: Principal = SYSTEM) -> Awaitable[T]:
        """Run a command or a query; await the result on the event loop."""
        # Asking asyncio for the running loop takes longer than the rest of this method.
        if self._loop is None or self._thread != threading.get_ident() or not self._loop.is_running():
            self._attach_here()
        audit = None
        if command.permission not in principal.plain or self.policies.active:
            if self._engine.blocking and self.policies.missing(principal):
                return self._late.aexecute(command, principal)
            command, audit = admit(command, principal, self.policies)
        completion: Completion[T] = Completion(self._loop)
        if isinstance(command, Command):
            self._submit(command, principal, completion.set if audit is None else audit.then(completion.set))
            return completion
        if self._engine.blocking:
            assert self._loop is not None
            return self._loop.run_in_executor(None, self._answer, command)
        try:
            completion.set(self._query(command))
        except Error as error:
            completion.set(None, error)
        except ColdMiss as missing:
            return self._offload_cold(self._answer, command, missing)
        return completion

    def submit(self, job: QueuedCommand, principal: Principal) -> None:
        """Run a queued command, which must be the principal's; its `deliver` is called on the event loop."""
        command = job.command
        if self._loop is None or self._thread != threading.get_ident() or not self._loop.is_running():
            self._attach_here()
        if command.permission in principal.plain and not command.history and not self.policies.active:
            self._runner.queue(job)
            return
        done: Done = job.settle
        if command.permission not in principal.plain or self.policies.active:
            if self._engine.blocking and self.policies.missing(principal):
                self._late.submit(command, principal, done)
                return
            command, audit = admit(command, principal, self.policies)
            if audit is not None:
                done = audit.then(done)
        self._submit(command, principal, done)

    def _submit(self, command: Command[Any], principal: Principal, done: Done) -> None:
        if command.history:
            done = partial(self._settle, command, principal.name, done)
        self._runner.submit(command, done, principal.name)

    def add_followers(self, followers: Followers) -> Callable[[], None]:
        """Let waiting commands share the commits that they wait for, as `Runner` describes; on the loop's thread.
        Returns a function that ends it."""
        self._runner.followers.append(followers)
        return partial(self._runner.followers.remove, followers)

    def _query(self, query: Query[T]) -> T:
        self.metrics.queries += 1
        with self._engine.reader(self.clock.now_ms(), single=query.single) as reader:
            reader.lag_ms = self.clock.lag_ms
            reader.cold = self.cold
            reader.recent = self.recent
            reader.exports = self.exports
            return query.run(reader)

    # -- reads of cold storage: on `ColdMiss` the segment is fetched, and the query or command runs again

    def _answer(self, query: Query[T], missing: ColdMiss | None = None) -> T:
        """Answer a query in a thread that may wait for cold storage."""
        for _ in range(limits.COLD_FETCHES_MAX):
            if missing is not None:
                self._fetch(missing)
            try:
                return self._query(query)
            except ColdMiss as error:
                missing = error
        raise _not_found(missing)

    def _run(self, command: Command[T], by: str) -> T:
        missing: ColdMiss | None = None
        for _ in range(limits.COLD_FETCHES_MAX):
            try:
                return self._runner.execute(command, by)
            except ColdMiss as error:
                missing = error
            self._fetch(missing)
        raise _not_found(missing)

    def _settle(self, command: Command[Any], by: str, done: Done, value: Any, error: BaseException | None) -> None:
        """Complete a submitted command, or run it again in a thread that may wait for cold storage."""
        if not isinstance(error, ColdMiss):
            done(value, error)
            return
        loop = self._loop
        assert loop is not None

        def again() -> None:
            value, failure = None, None
            try:
                self._fetch(error)
                value = self._run(command, by)
            except BaseException as raised:  # every error reaches the caller
                failure = raised
            loop.call_soon_threadsafe(done, value, failure)

        try:
            self._offload_cold(again)
        except Error as refused:
            done(None, refused)

    def _offload_cold(self, work: Callable[..., T], *args: Any) -> Awaitable[T]:
        """Run work that waits for cold storage in its own threads, so that other work does not wait with it."""
        assert self._loop is not None
        if self._cold_threads is None:
            self._cold_threads = ThreadPoolExecutor(limits.COLD_THREADS, "tailrace-cold")
        if self._cold_waiting >= limits.COLD_WAITING_MAX:
            raise Unavailable(
                f"{self._cold_waiting} requests wait for cold storage already; try again in a moment", code="COLD_BUSY"
            )
        self._cold_waiting += 1
        future = self._loop.run_in_executor(self._cold_threads, work, *args)
        future.add_done_callback(self._cold_done)
        return future

    def _cold_done(self, future: Any) -> None:
        self._cold_waiting -= 1

    def _fetch(self, missing: ColdMiss) -> None:
        assert self.cold is not None, "nothing is missing where there is no cold storage"
        self.metrics.cold_reads += 1
        try:
            self.cold.fetch(missing)
        except Error:
            self.metrics.cold_failures += 1
            raise

    def sql(self, text: str, params: Sequence[Any] = (), principal: Principal = SYSTEM) -> SqlResult:
        """Run SQL statements, each in its own transaction, or several between BEGIN and COMMIT; returns the last
        result, with `results` of all. The first failure ends the run: its error has `line`, `column`, and `done`, the
        results of the statements before it.

        >>> db.sql("SELECT * FROM orders WHERE amount > ?", [10]).rows
        [{'id': 'o-1', 'amount': 12}]
        """
        from tailrace.sql.session import Session  # slow to import, and rarely used

        session = Session(partial(self.execute, principal=principal), caller=principal.name, access=principal.access)
        results = session.run(text, params)
        session.check_ended()
        last = results[-1] if results else Result("")
        return SqlResult(last.statement, last.columns, last.rows, last.row_count, last.message, last.facts, results)

    def backup(
        self,
        target: str | os.PathLike[str],
        *,
        keep: int | None = None,
        deep: bool = False,
        on_progress: Callable[[str, int, int], None] | None = None,
    ) -> BackupResult:
        """Back the database up with its cold storage, while it is in use: into a directory, an archive or
        `s3://bucket/prefix`. Chunks that the target has already are not stored again. Restore it with
        `tailrace.backup.restore`.

        >>> db.backup("backups", keep=7).manifest.id
        '20260416T120000-000-3f9a'
        """
        from tailrace.backup import back_up
        from tailrace.cold.store import Store

        if self.cold is None:
            raise Invalid("a database is backed up with its cold storage; open it with `cold`")
        store = Store(self.cold.url, self.cold.options)
        source: Any = self._engine
        return back_up(source, target, cold=store, keep=keep, deep=deep, on_progress=on_progress)

    # -- opening and closing

    @property
    def identity(self) -> str:
        """The unique id of this database, assigned when it is first opened. Copies of its files have the same id."""
        return self.execute(Identify())

    def _provision(self) -> bool:
        """Create the objects that every database has; True if they exist. A database that cannot be written now is
        opened all the same: reads work, and housekeeping tries again."""
        try:
            if not self.execute(Provisioned()):
                self.execute(Provision())
        except Unavailable as error:
            logger.warning("the database is open, but cannot be written: %s", error)
            return False
        return True

    @property
    def blocking(self) -> bool:
        """Whether a query may wait for another machine, so that it is not for an event loop's thread."""
        return self._engine.blocking

    @property
    def stopped(self) -> Error | None:
        """The error that stopped all writes, if any."""
        return self._runner.stopped

    @property
    def trouble(self) -> Error | None:
        """The error of the last commit if it failed but writes are still tried, for example on a full disk."""
        return self._runner.trouble

    def verify(self) -> None:
        """Stop writes if the files of the database are gone. Every commit checks this too."""
        self._runner.verify()

    @property
    def waiting(self) -> int:
        """The number of writes that wait for the next commit."""
        return self._runner.waiting

    def _attach_here(self) -> None:
        """Attach to the running event loop, and detach from a closed one."""
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
        await asyncio.to_thread(self.transfers.stop)
        await asyncio.to_thread(self._housekeeper.stop)
        if self._loop is not None:
            await asyncio.to_thread(self._runner.detach)
            await asyncio.sleep(0)  # let the loop deliver the results that the committer queued
            self._loop = None
        self.close()

    def close(self) -> None:
        """Close. Everything acknowledged is durable already."""
        self.followers.close()
        self.transfers.stop()
        self._housekeeper.stop()
        if self._loop is not None:
            self._runner.detach()
            self._loop = None
        if self.forwarder is None:
            with suppress(Error):  # writes may be stopped: the next start then waits before it deletes by age
                self._acks.flush()
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
        """Do all housekeeping that is due; the number of steps. Exports and imports have `transfers.advance`."""
        self._watch_clock()
        self._acks.flush()
        return self._housekeeper.sweep()

    def _watch_clock(self) -> None:
        """Check whether the clock has jumped, or a jump is confirmed or over, and log it."""
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
            logger.warning("the clock's jump is confirmed; deletion by age uses the new time")

    def _note_time(self) -> None:
        """Record the time if there were writes since the last record, or if a jump began or ended. An idle database
        writes nothing."""
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
            self.execute(streams.ProbeWrite())  # clients that watch /readyz may send no writes until it succeeds
        if not self._provisioned:
            self._provisioned = self._provision()


class Sharing:
    """The parts of a database that processes of one server share, or use in each other's name (`bus/`)."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._throttle: LoginThrottle | None = None

    def login_throttle(self) -> LoginThrottle:
        """The counts of login attempts, those of all processes."""
        if self._throttle is None:
            clock, forwarder = self._db.clock, self._db.forwarder
            if forwarder is None:
                self._throttle = LoginThrottle(clock.monotonic_s)
            else:
                self._throttle = forwarder.shared_throttle(clock.monotonic_s)
        return self._throttle

    def total_metrics(self) -> Metrics:
        """The metrics of all processes. Not on the event loop's thread."""
        self._db.metrics.queue = self._db.waiting
        return self._db.metrics if self._db.forwarder is None else self._db.forwarder.total_metrics()

    def refuse_reads(self, damage: Error | None) -> None:
        """The process that writes has found damage, or none: no page of the write-ahead log may be used then."""
        engine = self._db._engine
        if isinstance(engine, SqliteEngine):
            engine.reported = damage

    # -- for the process that writes

    @property
    def damage(self) -> Error | None:
        """The damage that was found in the files, for which all reads are refused."""
        engine = self._db._engine
        return engine.damage if isinstance(engine, SqliteEngine) else None

    def queue(self, job: QueuedCommand) -> None:
        """Run a command whose permission was checked; its `deliver` is called on the event loop."""
        self._db._runner.queue(job)

    def submit(self, command: Command[Any], done: Done) -> None:
        """Run a command of the system; `done` is called on the event loop."""
        self._db._runner.submit(command, done)

    def mark_commits(self, mark: Mark) -> None:
        """Let `mark` add rows to each transaction."""
        assert isinstance(self._db._runner, Runner)
        self._db._runner.mark = mark

    def fetch_cold(self, missing: ColdMiss, fetched: int) -> Awaitable[None]:
        """Fetch trimmed history that a command needs, for which it was `fetched` so often already."""
        if fetched >= limits.COLD_FETCHES_MAX:
            raise _not_found(missing)
        return self._db._offload_cold(self._db._fetch, missing)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop of this thread, if it is running."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _not_found(missing: ColdMiss | None) -> Unavailable:
    return Unavailable(
        f"{missing}, and the cold cache is thrashing: fetched entries are evicted before they are used; try again, or "
        "set a larger cold.cache_bytes",
        code="COLD_CACHE",
    )


def open(
    path: str | os.PathLike[str], *, cold: str | ColdStorage | None = None, accept_loss: bool = False, **options: Any
) -> Database:
    """Open the database in a directory, or at postgresql://...; it is created if it does not exist. `cold` is the URL
    of its cold storage, by default the directory `cold` in it. `accept_loss`: a damaged write-ahead log is truncated
    where the damage begins, and a copy of it is kept; otherwise it is an error (`Corrupt` WAL_DAMAGED).

    >>> import tailrace
    >>> db = tailrace.open("data")
    >>> orders = db.create_table("orders", partition_key="id", stream="NEW_IMAGE", exist_ok=True)
    >>> orders.put({"id": "o-1", "amount": 12})
    >>> orders.get("o-1")
    {'id': 'o-1', 'amount': 12}
    >>> [change.event for change in orders.changes()]
    ['INSERT']
    """
    if is_url(path):
        storage = ColdStorage(cold) if isinstance(cold, str) else cold
        return Database(open_postgres(str(path)), cold=storage, **options)
    if cold is None:
        cold = os.path.join(os.path.abspath(path), "cold")
    storage = cold if isinstance(cold, ColdStorage) else ColdStorage(cold)
    return Database(SqliteEngine(path, accept_loss=accept_loss), cold=storage, **options)


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether it names a database in PostgreSQL, and not a directory."""
    return isinstance(path, str) and path.startswith(DATABASE_URLS)


def open_postgres(url: str, directory: str | None = None, *, address: str = "") -> Any:
    """The engine over a database in PostgreSQL, as its leader. `Unavailable` NOT_LEADER: another server leads."""
    extras.require("postgres")
    from tailrace.storage.postgres import PostgresEngine  # an optional package

    return PostgresEngine(url, directory, address=address)


def open_worker(config: Config, connect: Callable[..., Any], server: str, version: str) -> Database:
    """Open the database of a server whose other process writes: reads are its own, commands go over the link that
    `connect` makes."""
    return _open_forwarding(config, SqliteEngine(config.data, read_only=True), connect, server, version)


def open_follower(config: Config, connect: Callable[..., Any], server: str, version: str, url: str) -> Database:
    """Open the database of a server of a cluster, which clients reach at `url`: as `open_worker`, over PostgreSQL."""
    extras.require("postgres")
    from tailrace.storage.postgres import PostgresEngine

    assert config.database is not None
    engine = PostgresEngine(config.database, config.data, read_only=True)
    try:
        engine.check_key()
        db = _open_forwarding(config, engine, connect, server, version, url)
        assert db.forwarder is not None
        db.forwarder.on_welcome = engine.renew_readers
    except BaseException:
        engine.close()
        raise
    return db


def _open_forwarding(
    config: Config, engine: Any, connect: Callable[..., Any], server: str, version: str, url: str | None = None
) -> Database:
    from tailrace.bus.forwarder import Forwarder

    clock = FollowedClock()

    def forwarder(db: Database) -> Forwarder:
        made = Forwarder(
            connect,
            server,
            os.urandom(8).hex(),
            version=version,
            tail=db.tail,
            metrics=db.metrics,
            recent=db.recent,
            url=url,
        )
        made.set_time = clock.follow
        made.set_damage = lambda damage: db.sharing.refuse_reads(damage)
        return made

    return Database(
        engine,
        clock=clock,
        housekeeping_s=None,
        cold=_cold_storage(config),
        forwarder=forwarder,
        buckets=_buckets(config),
    )


def open_configured(config: Config, *, accept_loss: bool = False, engine: Engine | None = None) -> Database:
    """Open the database of a server; `engine`: which is open already."""
    cold = _cold_storage(config)
    if engine is None and config.database is not None:
        engine = open_postgres(config.database, config.data)
    if engine is not None:
        return Database(engine, cold=cold, buckets=_buckets(config))
    return open(config.data, cold=cold, accept_loss=accept_loss, buckets=_buckets(config))


def _buckets(config: Config) -> Buckets:
    return Buckets(config.transfers.buckets, config.transfers.options)


def _cold_storage(config: Config) -> ColdStorage:
    cold = config.cold
    url = cold.url if cold.url is not None else os.path.join(os.path.abspath(config.data), "cold")
    return ColdStorage(url, options=cold.options, cache_bytes=cold.cache_bytes)
