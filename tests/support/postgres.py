"""A PostgreSQL server of the tests' own: in a temporary directory, on a Unix socket, with a database for each test.

It is Debian's (`tools/ensure-postgres` installs it). Where there is none, tests over it are skipped, and say "Not
tested". Without `durable` it does not sync, which only matters to a machine that loses power.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import PATIENCE_S

NOT_TESTED = "Not tested: PostgreSQL is missing (tools/ensure-postgres installs Debian's)"
_numbers = itertools.count(1)


@cache
def programs() -> Path | None:
    """Where initdb and pg_ctl are."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    beside = shutil.which("initdb")
    return None if beside is None else Path(beside).resolve().parent


class PostgresServer:
    """One server. The process that made it removes it at its end."""

    def __init__(self, *, durable: bool = False, within: Path | None = None, settings: Sequence[str] = ()) -> None:
        """`within`: a directory for it, as an empty file system of its own."""
        where = programs()
        assert where is not None, NOT_TESTED
        self._programs = where
        self.directory = Path(tempfile.mkdtemp(prefix="tailrace-postgres-", dir=within))
        self.directory.chmod(0o755)
        if os.getuid() == 0:  # PostgreSQL does not run as root
            shutil.chown(self.directory, "postgres", "postgres")
        self._data = self.directory / "data"
        self._create(durable, settings)
        self.start()

    def _create(self, durable: bool, more: Sequence[str]) -> None:
        how = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--data-checksums"]
        self._command("initdb", "-D", str(self._data), *how, *([] if durable else ["--no-sync"]))
        settings = [
            "listen_addresses = ''",
            f"unix_socket_directories = '{self.directory}'",
            "max_connections = 60",
            "shared_buffers = '32MB'",
            "log_min_messages = 'fatal'",
            "log_min_error_statement = 'panic'",
        ]
        if not durable:
            settings += ["fsync = off", "synchronous_commit = off", "full_page_writes = off"]
        self.configure(*settings, *more)

    def configure(self, *settings: str) -> None:
        """Add lines to its configuration."""
        self._command("tee", "-a", str(self._data / "postgresql.conf"), input="\n".join(settings) + "\n", beside=False)

    def start(self) -> None:
        log = self.directory / "log"
        self._command("pg_ctl", "-D", str(self._data), "-l", str(log), "-w", "-t", str(int(PATIENCE_S)), "start")

    def stop(self, mode: str = "fast") -> None:
        self._command("pg_ctl", "-D", str(self._data), "-m", mode, "-w", "-t", str(int(PATIENCE_S)), "stop")

    def promote(self) -> None:
        """Let a standby take writes."""
        self._command("pg_ctl", "-D", str(self._data), "-w", "-t", str(int(PATIENCE_S)), "promote")

    def kill(self) -> None:
        """End it as a lost machine would: all its processes, at once."""
        postmaster = int((self._data / "postmaster.pid").read_text().split()[0])
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(postmaster)], stdout=subprocess.PIPE, text=True)
        for pid in [postmaster, *map(int, listed.stdout.split())]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until_s = time.monotonic() + PATIENCE_S
        while Path(f"/proc/{postmaster}").exists():
            state = Path(f"/proc/{postmaster}/stat").read_text().rpartition(")")[2].split()[0]
            if state == "Z" or time.monotonic() > until_s:
                break
            time.sleep(0.01)

    @property
    def running(self) -> bool:
        return self.socket.exists() and (self._data / "postmaster.pid").exists()

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.directory / ".s.PGSQL.5432"

    def remove(self) -> None:
        if self.directory.exists():
            with contextlib.suppress(AssertionError):  # it does not run
                self.stop("immediate")
            shutil.rmtree(self.directory, ignore_errors=True)

    def url(self, database: str) -> str:
        return f"postgresql:///{database}?host={self.directory}&user=postgres"

    def execute(self, statement: str, database: str = "postgres") -> list[Any]:
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    def create(self, template: str = "template0") -> str:
        """A new database; its URL."""
        name = f"test{next(_numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)

    def drop(self, url: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {name_of(url)} WITH (FORCE)")

    def _command(self, program: str, *arguments: str, input: str | None = None, beside: bool = True) -> None:  # noqa: A002
        command: Sequence[str] = [str(self._programs / program) if beside else program, *arguments]
        if os.getuid() == 0:
            command = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *command]
        done = subprocess.run(
            command, input=input, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.directory
        )
        assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}"


KEY = "00" * 32  # of the secrets in the shared database
_EMPTY = """
DO $$ DECLARE each text; BEGIN
  FOR each IN SELECT tablename FROM pg_tables WHERE schemaname = 'tailrace'
    AND tablename NOT IN ('schema_version', 'leader', 'epochs', 'sent', 'meta')
  LOOP EXECUTE format('DELETE FROM tailrace.%I', each); END LOOP;
  DELETE FROM tailrace.meta WHERE name <> 'secret-check';
  UPDATE tailrace.leader SET now_ms = 0;
END $$
"""


@cache
def shared_server() -> PostgresServer:
    """The server of this process's tests that are not about durability."""
    if programs() is None:
        pytest.skip(NOT_TESTED)
    server = PostgresServer()
    atexit.register(server.remove)
    return server


@cache
def _shared_database() -> str:
    from tailrace.storage.postgres import PostgresEngine

    url = shared_server().create()
    PostgresEngine(url, environment={"TAILRACE_SECRET_KEY": KEY}).close()
    return url


def empty_database() -> str:
    """The URL of a migrated database with nothing in it: the same one each time, so that it is there at once. The key
    of its secrets is KEY."""
    url = _shared_database()
    shared_server().execute(_EMPTY, name_of(url))
    return url


def name_of(url: str) -> str:
    """The name of a database."""
    return url.partition("///")[2].partition("?")[0]


def refuse_commits(url: str) -> None:
    """Let every COMMIT of a leader fail, as on a full disk."""
    shared_server().execute(
        """
        CREATE FUNCTION tailrace.refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '53100'; END $$;
        CREATE CONSTRAINT TRIGGER refuse AFTER UPDATE OF batch ON tailrace.leader DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION tailrace.refuse()
        """,
        name_of(url),
    )


def accept_commits(url: str) -> None:
    shared_server().execute("DROP FUNCTION tailrace.refuse CASCADE", name_of(url))


def end_sessions(url: str) -> None:
    """End the sessions of the leader, and wait until they are gone."""
    leading = "application_name LIKE 'tailrace leader%' AND datname = current_database()"
    shared_server().execute(
        f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE {leading}", name_of(url)
    )
