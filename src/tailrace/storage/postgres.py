"""The engine over PostgreSQL: one server leads and writes, under a lease in the database (`lease.py`).

Readers have connections of their own, from a pool. Committed rows of small hot tables are cached, which is safe because
there is no other writer as long as the lease is fresh. Every call may wait for another machine.
"""

from __future__ import annotations

import os
import select
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tailrace import limits
from tailrace.errors import Invalid, Unavailable
from tailrace.storage import modes, portable, postgres_arrays, postgres_schema, vault
from tailrace.storage.engine import closed
from tailrace.storage.lease import NAME, Deposed, LeaderLease, led_by, look
from tailrace.storage.migrations_list import refuse_other
from tailrace.storage.postgres_errors import translate, translated
from tailrace.storage.postgres_reading import PostgresReader
from tailrace.storage.postgres_writing import PostgresTx
from tailrace.storage.recent import RecentTables
from tailrace.storage.scratch import Scratch
from tailrace.storage.staging import StagingList
from tailrace.storage.table import Key, StorageTable

_READING: Final = "tailrace reader"  # the name of a session
_PREPARED: Final = 500  # statements of a connection that stay prepared
# A machine that has lost its power or its network says nothing: its connections end after POSTGRES_SILENCE_S, and not
# after the quarter of an hour that the kernel would wait.
_SILENCE: Final = {
    "keepalives_idle": limits.POSTGRES_SILENCE_S - 3,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 1000 * limits.POSTGRES_SILENCE_S,
}


def connect(url: str, name: str) -> Any:
    """A connection to the server that takes writes, of those that the URL names."""
    try:
        given = conninfo_to_dict(url)
        options = f"{given.get('options') or ''} -c search_path={postgres_schema.SCHEMA}".strip()
        settings: dict[str, Any] = {"target_session_attrs": "read-write", "connect_timeout": limits.POSTGRES_CONNECT_S}
        settings.update(_SILENCE)
        settings.update(given, options=options, application_name=name[:63])
        conninfo = make_conninfo("", **settings)
    except psycopg.ProgrammingError as error:
        raise Invalid(f"the URL of the database is wrong: {' '.join(str(error).split())}") from error
    connection: Any = psycopg.connect(conninfo, autocommit=True, prepare_threshold=0)
    connection.prepared_max = _PREPARED
    postgres_arrays.register(connection)
    return connection


class PostgresEngine:
    """A database in PostgreSQL. `directory` is where the key of its secrets is, and temporary files."""

    blocking = True

    def __init__(
        self,
        url: str,
        directory: str | os.PathLike[str] | None = None,
        *,
        read_only: bool = False,
        address: str = "",
        bus: str = "",
        ttl_s: float = limits.LEASE_TTL_S,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.url = url
        self.directory = None if directory is None else Path(directory)
        self.read_only = read_only
        self.cache: dict[StorageTable[Any], dict[Key, Any]] = {}
        self.recent = RecentTables(kept=not read_only)
        self.lease = LeaderLease(self._connect, address, ttl_s, bus)
        self._environment = environment
        self._staged: dict[StorageTable[Any], StagingList] = {}
        self._listing = threading.Lock()
        self._idle: deque[PostgresReader] = deque()
        self._lent = threading.BoundedSemaphore(limits.POSTGRES_READERS_MAX)
        self._closed = False
        self.vault: vault.Vault
        try:
            with translated():
                if read_only:
                    self._prepare_reading()
                else:
                    self._lead()
        except BaseException:
            self.lease.stop()
            raise

    @property
    def writer(self) -> Any:
        """The connection that writes."""
        return self.lease.writer

    @property
    def closed(self) -> bool:
        return self._closed

    # -- opening

    def _connect(self, name: str) -> Any:
        return connect(self.url, name)

    def _lead(self) -> None:
        with self._connect(NAME) as connection:
            postgres_schema.prepare(connection)
            state = look(connection)
        if self.lease.acquire(state) is None:
            raise Deposed(f"{led_by(state)}; talk to it, or stop it")
        postgres_schema.migrate(self.writer, self.lease.epoch, self.lease.ttl_s, self._new_vault)
        self.vault = self._open_vault(self.writer)
        self.lease.start()

    def _prepare_reading(self) -> None:
        with self._connect(_READING) as connection:
            version = postgres_schema.version(connection)
            if not version:
                raise Invalid(f"there is no database of Tailrace at {_without_password(self.url)}", code="NO_DATABASE")
            refuse_other(version)
            try:
                self.vault = self._open_vault(connection)
            except Invalid as error:  # the rest is readable without the key
                self.vault = vault.LockedVault(error)

    def _new_vault(self) -> vault.Vault:
        return self._vault_for(None)

    def _open_vault(self, connection: Any) -> vault.Vault:
        return self._vault_for(postgres_schema.read_check(connection))

    def _vault_for(self, check: bytes | None) -> vault.Vault:
        """The vault of the database with this row; None: nothing is encrypted yet."""
        if self.directory is not None:
            if not self.read_only:
                modes.claim_directory(self.directory.absolute(), (vault.FILE,))
            return vault.open_vault(self.directory, check, self._environment, writable=not self.read_only)
        text = self._environment.get(vault.ENVIRONMENT)
        if text is None:
            raise Invalid(
                f"the key of the secrets has no place; set {vault.ENVIRONMENT}, or name a directory (--data)",
                code="SECRET_KEY_MISSING",
            )
        found = vault.Vault(vault.parse_key(text, f"the environment variable {vault.ENVIRONMENT}"))
        if check is not None and not found.fits(check):
            raise Invalid(
                f"{vault.ENVIRONMENT} does not decrypt the secrets of this database; set the key that it was encrypted "
                "with",
                code="SECRET_KEY_WRONG",
            )
        return found

    def check_key(self) -> None:
        """Raise `Invalid` if the key of the secrets is missing or wrong."""
        if isinstance(self.vault, vault.LockedVault):
            raise self.vault.error

    # -- as every engine

    @property
    def floor_ms(self) -> int:
        return self.lease.floor_ms

    def begin(self, now_ms: int) -> PostgresTx:
        if self.lease.lost is not None:
            raise self.lease.lost.with_traceback(None)
        if self._closed:
            raise closed()
        if not alive(self.writer):
            try:
                self.lease.again()
            except psycopg.Error as error:
                raise translate(error) from error
        return PostgresTx(self, max(now_ms, self.lease.floor_ms))

    def reader(
        self, now_ms: int = 0, *, single: bool = False, damaged: dict[str, None] | None = None
    ) -> PostgresReader:
        """As `Engine.reader`. With `damaged`, rows that fail their checksum are collected there, and still returned."""
        reader = self._lend()
        reader.now_ms = max(now_ms, self.lease.floor_ms)
        reader.single = single
        reader.damaged = damaged
        return reader

    def _lend(self) -> PostgresReader:
        if self._closed:
            raise closed()
        if not self._lent.acquire(timeout=limits.POSTGRES_READER_WAIT_S):
            raise Unavailable(
                f"{limits.POSTGRES_READERS_MAX} queries read from PostgreSQL already; try again in a moment",
                code="READERS_BUSY",
            )
        try:
            while True:
                try:
                    reader = self._idle.pop()
                except IndexError:
                    break
                if alive(reader.connection):
                    return reader
                reader.connection.close()
            with translated():
                return PostgresReader(self, self._connect(_READING))
        except BaseException:
            self._lent.release()
            raise

    def take_back(self, reader: PostgresReader) -> None:
        self._lent.release()
        if self._closed or reader.connection.closed:
            reader.connection.close()
            return
        self._idle.append(reader)
        if self.closed:
            self._close_idle()

    def renew_readers(self) -> None:
        """Use no connection again that is idle now: the server that it is to may not take writes any more."""
        self._close_idle()

    def _close_idle(self) -> None:
        with suppress(IndexError):  # a reader may end meanwhile, and look too
            while True:
                self._idle.pop().connection.close()

    def staged(self, table: StorageTable[Any], execute: Callable[..., Any]) -> StagingList | None:
        """The list of a table's staged rows; None if it has none, or another process writes. The first call reads them
        by `execute`: it comes before the first write of such rows, so that all views have the same ones."""
        if table.staging is None or self.read_only:
            return None
        found = self._staged.get(table)
        if found is None:
            with self._listing:
                found = self._staged.get(table)
                if found is None:
                    found = StagingList(table)
                    found.load(execute)
                    self._staged[table] = found
        return found

    def all_staged(self) -> list[StagingList]:
        """The staged rows of all tables that were used."""
        return list(self._staged.values())

    def remember(self, table: StorageTable[Any], rows: dict[Key, Any]) -> None:
        """Cache committed rows; evict all rows of a table when there are too many."""
        cache = self.cache.setdefault(table, {})
        if len(cache) + len(rows) > limits.ROW_CACHE_MAX:
            cache.clear()
        for key, row in rows.items():
            if row is None:
                cache.pop(key, None)
            else:
                cache[key] = row

    def verify(self) -> None:
        """As `Engine.verify`: raises the error by which the lease was lost."""
        if self.lease.lost is not None:
            raise self.lease.lost.with_traceback(None)

    def examine(self) -> None:
        """As `Engine.examine`: PostgreSQL verifies what it reads."""

    def brief(self) -> bool:
        """As `Engine.brief`: a commit waits for another machine."""
        return False

    def make_room(self, freeing: bool) -> None:
        """As `Engine.make_room`: there is no reserve on another machine's disk."""

    def roomy(self) -> bool:
        """As `Engine.roomy`: unknown, so that a commit tells."""
        return True

    def scratch(self) -> Scratch:
        return Scratch(self.directory or Path(tempfile.gettempdir()))

    def integrity(self) -> list[str]:
        """Findings about the database itself."""
        with translated(), self._connect(_READING) as connection:
            return postgres_schema.integrity(connection)

    def copy_to(self, path: Path, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Copy the database as it is at this moment into a new file of SQLite, while others write. `on_progress` gets
        the tables done and their number."""
        with translated(), self._connect(_READING) as connection:
            portable.to_file(connection, path, on_progress)

    def load_from(self, path: Path) -> None:
        """Copy all rows of a file of SQLite into this database, which must be empty. Close it afterwards."""
        with translated():
            portable.from_file(path, self.writer, self.lease.epoch, self.vault)

    def reencrypt(self, fresh: vault.Vault) -> None:
        """Encrypt all secrets with another key, in one transaction. No other thread may use the engine meanwhile."""
        with translated():
            postgres_schema.reencrypt(self.writer, self.lease.epoch, self.vault, fresh)
        self.vault = fresh
        self.cache.clear()

    def close(self) -> None:
        self._closed = True
        self._close_idle()
        self.lease.stop()


def alive(connection: Any) -> bool:
    """Whether an idle connection is there still: the server sends nothing but its end."""
    if connection.closed:
        return False
    waiter = select.poll()
    waiter.register(connection.fileno(), select.POLLIN)
    if not waiter.poll(0):
        return True
    try:
        connection.execute("SELECT 1")  # it may have been a notice
    except psycopg.Error:
        connection.close()
        return False
    return True


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
