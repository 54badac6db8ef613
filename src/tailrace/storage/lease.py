"""Who leads: one server at a time writes to a database in PostgreSQL, and a row of it says which.

Theory of operation
-------------------
The row of `leader` has an epoch, which grows with each take-over, and the number of the last commit in it. Every commit
updates that row, where it must find its own epoch and the commit before it; otherwise the whole transaction fails. So
the row is what makes leading safe. Two things make it quick:

- The leader's session holds an advisory lock that is named after the epoch. When the process or its connection ends,
  the lock is free, and a server that waits takes over at once.
- The leader renews the row. When it has not done so for the time to live (TTL) by the clock of the database, it hangs:
  a server that waits ends its session and takes over.

When the answer to a COMMIT is lost, looking does not tell what became of it: it may still be on its way. So the outcome
is *decided*: the server takes over from itself. After that the old transaction can only fail, and the number in the row
as it was before is the truth. If another server was quicker, its take-over has left that number in `epochs`.

A number is used for one attempt of a commit, never for two.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import psycopg

from tailrace import limits
from tailrace.errors import Unavailable
from tailrace.storage.engine import NOT_LEADER

_CLASS: Final = 7421  # of the advisory locks
NAME: Final = "tailrace leader"  # of the session, with the epoch
WAITING: Final = "tailrace standby"  # of the session of a server that waits, with its address
FOLLOWING: Final = "tailrace follower"  # the same of one that serves meanwhile
UNKNOWN: Final = "OUTCOME_UNKNOWN"

_LOOK: Final = (
    "SELECT epoch, batch, server, address, pid, renewed + ttl < clock_timestamp(), "
    f"pg_try_advisory_xact_lock_shared({_CLASS}, epoch::int), "
    "CASE WHEN isfinite(renewed) THEN extract(epoch FROM clock_timestamp() - renewed)::float8 END, "
    "extract(epoch FROM ttl)::float8, coalesce(to_jsonb(leader) ->> 'bus', '') FROM leader"
)
_TAKE: Final = (
    "SELECT batch, now_ms FROM leader WHERE epoch = %s AND (server = %s OR renewed + ttl < clock_timestamp() "
    f"OR pg_try_advisory_xact_lock_shared({_CLASS}, epoch::int)) FOR UPDATE SKIP LOCKED"
)
_END: Final = "INSERT INTO epochs VALUES (%s, %s, clock_timestamp())"
_LEAD: Final = (
    "UPDATE leader SET epoch = %s, batch = 0, server = %s, address = %s, pid = pg_backend_pid(), "
    "renewed = clock_timestamp(), ttl = %s * interval '1 s', asked = 0, bus = %s"
)
_TERMINATE: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE pid = %s AND application_name = %s AND pid <> pg_backend_pid()"
)
_RENEW: Final = "UPDATE leader SET renewed = clock_timestamp() WHERE epoch = %s RETURNING asked"
_RELEASE: Final = "UPDATE leader SET renewed = '-infinity' WHERE epoch = %s AND server = %s"
_ASK: Final = "UPDATE leader SET asked = epoch WHERE epoch = %s AND asked <> epoch"
_ENDED: Final = "SELECT batches FROM epochs WHERE epoch = %s"
FENCE: Final = (
    "WITH mine AS (UPDATE leader SET batch = %s, now_ms = greatest(now_ms, %s), renewed = clock_timestamp() "
    "WHERE epoch = %s AND batch = %s RETURNING 1) SELECT 1 / count(*) FROM mine"
)
_STANDBYS: Final = (
    "SELECT DISTINCT substr(application_name, %s) FROM pg_stat_activity "
    "WHERE datname = current_database() AND starts_with(application_name, %s) ORDER BY 1"
)


class LeaderState(NamedTuple):
    """The row of the leader, as it was at one moment."""

    epoch: int
    batch: int
    server: str
    address: str
    pid: int
    expired: bool  # it has not been renewed for its time to live
    gone: bool  # its session has ended
    age_s: float | None  # since it was renewed; None: it was released
    ttl_s: float
    bus: str  # where other servers send their commands; "" if it does not take any

    @property
    def vacant(self) -> bool:
        return self.expired or self.gone or not self.epoch


class Deposed(Unavailable):
    """Another server leads, and nothing of this batch was or will be written."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=NOT_LEADER)


class LeaderLease:
    """The lease of one server, and the connection that writes under it."""

    def __init__(self, connect: Callable[[str], Any], address: str, ttl_s: float, bus: str = "") -> None:
        self._connect = connect
        self.server = uuid.uuid4().hex  # this process, in this life
        self.address = address
        self.bus = bus
        self.ttl_s = ttl_s
        self.epoch = 0  # 0: it does not lead
        self.floor_ms = 0  # the highest time that was used before
        self.writer: Any = None
        self.warned = False  # PostgreSQL has warned of something since the last commit began
        self.lost: Unavailable | None = None  # why it does not lead any more
        self.asked = False  # to step down
        self.on_end: Callable[[], None] = lambda: None  # called by the renewing thread when it lost or is asked
        self._number = 0  # of the last attempt of a commit
        self._committed = 0  # of the last commit
        self._renewed_s = 0.0
        self._renewer: Any = None
        self._changing = threading.Lock()  # of the epoch: the committer and the renewing thread
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # -- taking over

    def acquire(self, state: LeaderState) -> int | None:
        """Take over from the leader of this state; the number of its last commit. None: it leads still, or another
        server was quicker."""
        own = state.server == self.server
        if not own and not state.vacant:
            return None
        writer = self._connect(NAME)
        try:
            if state.pid and not state.gone:  # it hangs, perhaps with the row locked
                writer.execute(_TERMINATE, (state.pid, f"{NAME} {state.epoch}"))
            epoch = state.epoch + 1
            writer.add_notice_handler(self._note)
            self.warned, began_s = False, time.monotonic()
            with writer.transaction():
                row = writer.execute(_TAKE, (state.epoch, self.server)).fetchone()
                if row is not None:
                    writer.execute(_END, (state.epoch, row[0]))
                    writer.execute(_LEAD, (epoch, self.server, self.address, self.ttl_s, self.bus))
                    # Before anybody can see the epoch. It lasts as long as the session.
                    writer.execute("SELECT pg_advisory_lock(%s, %s::int)", (_CLASS, epoch))
                    writer.execute("SELECT set_config('application_name', %s, false)", (f"{NAME} {epoch}",))
            if self.warned:  # it is not known whether a synchronous standby has it, and what was committed before
                raise psycopg.OperationalError("PostgreSQL has warned of the commit by which this server takes over")
        except BaseException:
            writer.close()
            raise
        if row is None:
            writer.close()
            return None
        if self.writer is not None:
            self.writer.close()
        with self._changing:
            self.writer, self.epoch, self.floor_ms = writer, epoch, max(self.floor_ms, row[1])
            self._number = self._committed = 0
            self._renewed_s = began_s
        batch: int = row[0]
        return batch

    def again(self) -> None:
        """Lead again after the connection was lost, as long as no other server does. Raises `Deposed`."""
        state = self._looked()
        if state.server != self.server:
            raise self.end(self._other(state))
        if self.acquire(state) is None:
            raise Unavailable(
                "the connection to PostgreSQL was lost, and the old one has not ended yet; try again",
                code="DATABASE_BUSY",
            )

    def decide(self, epoch: int, number: int) -> bool:
        """Whether the commit of this number is durable, which its connection did not tell. It cannot become so later.
        Returns when this server leads again, or raises `Deposed`."""
        until_s = time.monotonic() + limits.COMMIT_DECISION_S
        while True:
            try:
                batches = self._ended(epoch)
                state = self._looked()
                if batches is None and state.epoch == epoch:
                    batches = self.acquire(state)
                elif batches is None:
                    batches = self._ended(epoch)  # it ended meanwhile
                if batches is not None:
                    return self._decided(batches >= number, epoch)
            except psycopg.Error as error:
                failure: Exception = error
            else:
                failure = TimeoutError("the session of the commit has not ended")
            if time.monotonic() > until_s or self._stop.wait(limits.STANDBY_LOOK_S):
                raise self.end(
                    Unavailable(
                        f"the PostgreSQL server cannot be reached ({failure}), and it is not known whether the last "
                        "writes were committed; read before you write them again",
                        code=UNKNOWN,
                    )
                ) from failure

    def _decided(self, durable: bool, epoch: int) -> bool:
        if self.epoch == epoch:  # ended by another server, or by this one in a transaction whose answer was lost
            state = self._looked()
            if state.server != self.server or self.acquire(state) is None:
                error = self.end(self._other(state))
                if not durable:
                    raise error
        return durable

    def _ended(self, epoch: int) -> int | None:
        connection = self._connect(NAME)
        try:
            row = connection.execute(_ENDED, (epoch,)).fetchone()
            return None if row is None else int(row[0])
        finally:
            connection.close()

    def _looked(self) -> LeaderState:
        connection = self._connect(NAME)
        try:
            return look(connection)
        finally:
            connection.close()

    def _other(self, state: LeaderState) -> Deposed:
        return Deposed(f"{led_by(state)}; nothing was written; send the request there")

    def _note(self, notice: Any) -> None:
        self.warned = self.warned or notice.severity_nonlocalized == "WARNING"

    # -- leading

    def next_number(self) -> tuple[int, tuple[int, int]]:
        """A number for an attempt of a commit, with the epoch and the number of the last commit."""
        self._number += 1
        return self._number, (self.epoch, self._committed)

    def committed(self, number: int, began_s: float) -> None:
        """The commit of this number, sent at this time, is durable."""
        self._committed = number
        self._renewed_s = max(self._renewed_s, began_s)

    @property
    def committed_batch(self) -> int:
        """The number of the last commit in this epoch."""
        return self._committed

    @property
    def fresh(self) -> bool:
        """Whether no other server can lead, by this machine's clock."""
        return self.lost is None and time.monotonic() - self._renewed_s < self.ttl_s

    def end(self, error: Unavailable) -> Unavailable:
        """It does not lead any more."""
        with self._changing:
            if self.lost is None:
                self.lost = error
        self.on_end()
        return error

    def start(self) -> None:
        """Renew the lease, until it is lost or `stop`."""
        self._thread = threading.Thread(target=self._renew_all, name="tailrace-lease", daemon=True)
        self._thread.start()

    def _renew_all(self) -> None:
        while self.lost is None and not self._stop.wait(self.ttl_s / 3):
            try:
                self._renew()
            except psycopg.Error:
                if self._renewer is not None:
                    self._renewer.close()
                self._renewer = None

    def _renew(self) -> None:
        if self._renewer is None:
            self._renewer = self._connect(NAME)
        epoch, began_s = self.epoch, time.monotonic()
        row = self._renewer.execute(_RENEW, (epoch,)).fetchone()
        with self._changing:
            moved = self.epoch != epoch  # by this server
            if row is not None and not moved:
                self._renewed_s = max(self._renewed_s, began_s)
        if row is None and not moved:
            state = look(self._renewer)
            if state.server != self.server:
                self.end(self._other(state))
        elif row is not None and row[0] == epoch and not self.asked:
            self.asked = True
            self.on_end()

    def stop(self) -> None:
        """Stop renewing, release the lease and close the connections."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        if self.epoch and self.lost is None:
            try:
                connection = self._renewer or self._connect(NAME)
                self._renewer = connection
                connection.execute(_RELEASE, (self.epoch, self.server))
            except psycopg.Error:
                pass  # it ends with the session
        for connection in (self._renewer, self.writer):
            if connection is not None:
                connection.close()


def look(connection: Any) -> LeaderState:
    """Who leads."""
    return LeaderState(*connection.execute(_LOOK).fetchone())


def led_by(state: LeaderState) -> str:
    where = f" at {state.address}" if state.address else ""
    return f"another server{where} leads this database (epoch {state.epoch})"


def standbys(connection: Any) -> list[str]:
    """The addresses of the servers that wait."""
    return _named(connection, WAITING)


def followers(connection: Any) -> list[str]:
    """The addresses of the servers that serve, and would lead."""
    return _named(connection, FOLLOWING)


def _named(connection: Any, name: str) -> list[str]:
    return [row[0] for row in connection.execute(_STANDBYS, (len(name) + 2, name)).fetchall()]


def ask_to_step_down(connection: Any) -> LeaderState:
    """Ask the leader to let another server take over; the state before."""
    state = look(connection)
    connection.execute(_ASK, (state.epoch,))
    return state
