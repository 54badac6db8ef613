"""Which of several servers over one database in PostgreSQL writes: waiting to lead, and what operators see and ask for.

The rules are in `storage/lease.py`. A server that does not lead looks at the leader's row again and again, on one
connection, whose name tells `cluster_status` that it waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import msgspec

from tailrace import extras, limits
from tailrace.errors import Error, Invalid, Unavailable
from tailrace.storage.engine import NOT_LEADER


class ClusterStatus(msgspec.Struct, frozen=True):
    """The servers of a database."""

    leader: str  # the address; "" if it has none
    leading: bool  # whether there is a leader
    epoch: int
    commits: int  # in this epoch
    renewed_s: float | None  # since the lease was renewed; None: it was released
    ttl_s: float
    standbys: list[str]  # the addresses of those that wait
    followers: list[str]  # and of those that serve, and would lead


class Candidate:
    """A server that leads, or waits to. For one thread at a time, but for `reason`."""

    def __init__(self, url: str, directory: str, address: str, bus: str = "") -> None:
        """`address`: where clients reach the server; `bus`: where other servers do."""
        extras.require("postgres")
        self._url = url
        self._directory = directory
        self._address = address
        self._bus = bus
        self._connection: Any = None
        self._rest_until_s = 0.0
        self._checked = False  # whether the key of the secrets fits
        self._closed = threading.Event()
        self.leader: str | None = None  # the address of the leader, as it was last seen
        self.state: Any = None  # the row of the leader, likewise; None: unknown
        self.reason: Error = Unavailable("the server has not looked yet who leads; try again", code=NOT_LEADER)

    def attempt(self) -> Any:
        """Lead, if no other server does: the engine. Otherwise None, and `reason`."""
        from tailrace.storage.lease import led_by
        from tailrace.storage.postgres import PostgresEngine

        try:
            self.state = state = self._look()
            if state is not None and not state.vacant:
                self._check_key()
                self.leader = state.address
                self.reason = Unavailable(f"{led_by(state)}; send the request there", code=NOT_LEADER)
                return None
            if time.monotonic() < self._rest_until_s:
                self.reason = Unavailable("no server leads the database at the moment; try again", code=NOT_LEADER)
                return None
            engine = PostgresEngine(self._url, self._directory, address=self._address, bus=self._bus)
        except Unavailable as error:
            self.reason = error
            self._disconnect()
            return None
        self.leader = self._address
        self._disconnect()
        return engine

    def _check_key(self) -> None:
        """A server that could not decrypt the secrets fails when it starts, and not when it takes over."""
        from tailrace.storage.postgres import PostgresEngine

        if not self._checked:
            try:
                with closing(PostgresEngine(self._url, self._directory, read_only=True)) as engine:
                    engine.check_key()
            except Invalid as error:
                if error.code != "DATABASE_TOO_OLD":  # it will be migrated by this server
                    raise
            self._checked = True

    def _look(self) -> Any:
        """The leader's row; None if there is no database yet."""
        from tailrace.storage import lease, postgres, postgres_schema
        from tailrace.storage.postgres_errors import translated

        with translated():
            if self._connection is None:
                name = lease.FOLLOWING if self._bus else lease.WAITING
                self._connection = postgres.connect(self._url, f"{name} {self._address}")
                if not postgres_schema.version(self._connection):
                    return None
            return lease.look(self._connection)

    def rest(self) -> None:
        """Let another server take over: do not lead for a while, unless nobody else does."""
        self._rest_until_s = time.monotonic() + limits.STEP_DOWN_REST_S

    def wait(self) -> None:
        """Until it is time to look again."""
        self._closed.wait(limits.STANDBY_LOOK_S)

    def close(self) -> None:
        self._closed.set()
        self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def cluster_status(url: str) -> ClusterStatus:
    """The leader and the servers that wait, as the database knows them."""
    with _connected(url) as connection:
        from tailrace.storage import lease

        return _described(connection, lease.look(connection))


def _described(connection: Any, state: Any) -> ClusterStatus:
    from tailrace.storage import lease

    return ClusterStatus(
        state.address,
        not state.vacant,
        state.epoch,
        state.batch,
        state.age_s,
        state.ttl_s,
        lease.standbys(connection),
        lease.followers(connection),
    )


def step_down(url: str, timeout_s: float) -> ClusterStatus:
    """Ask the leader to let another server take over, and wait until one has. Raises `Unavailable` if none waits, or
    none has taken over in time."""
    with _connected(url) as connection:
        from tailrace.storage import lease

        if not lease.standbys(connection) and not lease.followers(connection):
            raise Unavailable("no other server waits to take over; start one first", code="NO_STANDBY")
        before = lease.ask_to_step_down(connection)
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            now = lease.look(connection)
            if now.epoch > before.epoch and now.server != before.server and not now.vacant:
                return _described(connection, now)
            time.sleep(limits.STANDBY_LOOK_S)
    raise Unavailable(
        f"no other server has taken over within {timeout_s:g} s; see its log, and `tailrace cluster status`",
        code="NO_TAKE_OVER",
    )


@contextmanager
def _connected(url: str) -> Iterator[Any]:
    """A connection to a database that exists, whose errors are translated."""
    extras.require("postgres")
    from tailrace.storage import postgres, postgres_schema
    from tailrace.storage.postgres_errors import translated

    with translated(), closing(postgres.connect(url, "tailrace cluster")) as connection:
        if not postgres_schema.version(connection):
            raise Unavailable("there is no database of Tailrace at this URL; start a server first", code="NO_DATABASE")
        yield connection
