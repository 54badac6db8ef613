"""The servers that topics are measured beside: Redis Streams, and a queue in PostgreSQL.

Both are Debian's, started here on a directory and a port of their own, and set to promise what Tailrace promises: an
answer is sent when what it acknowledges has been synced. Beyond that each has its defaults, but Redis does not rewrite
its log meanwhile. They listen on the loopback address like the others.

A `Queue` is such a server with what a row needs besides clients: make it, fill it, count what is there.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psycopg
import redis

from bench.clients import FIELD, QUEUE
from bench.load import Address, Failed, Session
from bench.servers import ChildAt, Missing, Server, free_port
from bench.workers import message

FILL_AT_ONCE: Final = 1_000  # messages
DEBIAN_POSTGRES: Final = Path("/usr/lib/postgresql")
JSON_HEADERS: Final = [("content-type", "application/json")]
INSTALL: Final = "not available here; to have it: apt-get install"
START_S: Final = 60.0  # for PostgreSQL to take connections


class Queue(Server):
    """A server of queues."""

    def make(self) -> None:
        """An empty queue."""
        raise NotImplementedError

    def fill(self, count: int) -> None:
        """Messages 0 to `count`, none of them taken by the group that is made next."""
        raise NotImplementedError

    def make_group(self, group: str) -> None:
        """A group that has all messages before it."""
        raise NotImplementedError

    def held(self) -> int:
        """How many messages were ever published (and are not deleted)."""
        raise NotImplementedError

    def unfinished(self, group: str) -> int:
        """How many of them the group has not acknowledged."""
        raise NotImplementedError


class TailraceQueue(Queue):
    def make(self) -> None:
        sql(self.address, f"DROP TOPIC IF EXISTS {QUEUE}; CREATE TOPIC {QUEUE}")

    def fill(self, count: int) -> None:
        with Session(self.address) as session:
            for first in range(0, count, FILL_AT_ONCE):
                numbers = range(first, min(first + FILL_AT_ONCE, count))
                payloads = [base64.b64encode(message(number)).decode() for number in numbers]
                body = {"topic": QUEUE, "messages": [{"payload": payload} for payload in payloads]}
                answer = session.call("POST", "/v1/api/topics/publish", JSON_HEADERS, json.dumps(body).encode())
                if answer.status != 200:
                    raise Failed(f"publish answered {answer.status}: {answer.body[:200]!r}")

    def make_group(self, group: str) -> None:
        pass  # the first consume does

    def held(self) -> int:
        return topic_next(self.address, QUEUE)

    def unfinished(self, group: str) -> int:
        topic = described(self.address, QUEUE)
        done = sum(each["last_acked_offset"] + 1 for each in topic["groups"] if each["group_id"] == group)
        return int(topic["partition_list"][0]["next_offset"] - done)


class RedisQueue(Queue):
    def start(self, under: tuple[str, ...] = ()) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise Missing(f"{INSTALL} redis-server")
        self.data.mkdir(parents=True, exist_ok=True)
        port = free_port()
        options = {
            "port": port, "bind": "127.0.0.1", "dir": self.data, "save": "", "appendonly": "yes",
            "appendfsync": "always", "auto-aof-rewrite-percentage": 0, "daemonize": "no",
        }  # fmt: skip
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        log = self.data.with_name(self.data.name + ".log")
        self._child = ChildAt(port, [*under, program, *words], log=log, cores=self._core, cwd=self.data)

    def _open(self) -> redis.Redis:
        return redis.Redis(*self.address)

    def make(self) -> None:
        with self._open() as server:
            found = server.config_get("appendfsync")
            if found != {"appendfsync": "always"}:
                raise Failed(f"Redis does not sync each answer: {found}")
            server.delete(QUEUE)

    def fill(self, count: int) -> None:
        with self._open() as server:
            for first in range(0, count, FILL_AT_ONCE):
                pipe = server.pipeline(transaction=False)
                for number in range(first, min(first + FILL_AT_ONCE, count)):
                    pipe.xadd(QUEUE, {FIELD: message(number)})
                pipe.execute()

    def make_group(self, group: str) -> None:
        with self._open() as server:
            server.xgroup_create(QUEUE, group, id="0", mkstream=True)

    def held(self) -> int:
        with self._open() as server:
            return int(server.xlen(QUEUE))

    def unfinished(self, group: str) -> int:
        with self._open() as server:
            (found,) = [one for one in server.xinfo_groups(QUEUE) if one["name"].decode() == group]
        return int(found["lag"] + found["pending"])


class PostgresQueue(Queue):
    """A table and an index on its number, as queues in PostgreSQL are made."""

    MAKE: Final = (
        f"DROP TABLE IF EXISTS {QUEUE}",
        f"CREATE TABLE {QUEUE} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload bytea NOT NULL)",
        # A payload of 1 KB stays in its row, uncompressed: the cheapest for it.
        f"ALTER TABLE {QUEUE} ALTER COLUMN payload SET STORAGE PLAIN",
    )

    def start(self, under: tuple[str, ...] = ()) -> None:
        programs = postgres_programs()
        if programs is None:
            raise Missing(f"{INSTALL} postgresql")
        self.data.mkdir(parents=True, exist_ok=True)
        home = self.data / "cluster"
        user = as_other_user(self.data)
        if not home.exists():
            self._run([*user, str(programs / "initdb"), "-D", str(home), "-U", "bench", "-A", "trust", "-N"])
        port = free_port()
        settings = {
            "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "port": port,
            "fsync": "on", "synchronous_commit": "on",
        }  # fmt: skip
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        command = [*under, *user, str(programs / "postgres"), "-D", str(home), *words]
        log = self.data.with_name(self.data.name + ".log")
        self._child = Family(port, command, log=log, cores=self._core, cwd=self.data)

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(command, cwd=self.data, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failed(f"{' '.join(command)} failed: {(done.stderr or done.stdout).strip()[-500:]}")

    def _signal(self, number: signal.Signals) -> None:
        if isinstance(self._child, Family) and self._child.alive():
            self._child.signal_all(number)

    def _open(self) -> psycopg.Connection[tuple[object, ...]]:
        """A connection. A server that listens may still be starting up, and says so to whoever connects."""
        give_up = time.monotonic() + START_S
        while True:
            try:
                return psycopg.connect(
                    host=self.address.host, port=self.address.port, user="bench", dbname="postgres", autocommit=True
                )
            except psycopg.errors.CannotConnectNow:
                if time.monotonic() > give_up:
                    raise
            except psycopg.OperationalError as error:
                if "starting up" not in str(error) or time.monotonic() > give_up:
                    raise
            time.sleep(0.05)

    def make(self) -> None:
        with self._open() as connection:
            for name in ("fsync", "synchronous_commit"):
                found = connection.execute(f"SHOW {name}").fetchone()
                if found != ("on",):
                    raise Failed(f"PostgreSQL does not sync each commit: {name} = {found}")
            for statement in self.MAKE:
                connection.execute(statement)

    def fill(self, count: int) -> None:
        with self._open() as connection:
            connection.execute(f"TRUNCATE {QUEUE}")
            with connection.cursor() as cursor, cursor.copy(f"COPY {QUEUE} (payload) FROM STDIN BINARY") as copy:
                copy.set_types(["bytea"])
                for number in range(count):
                    copy.write_row((message(number),))
            for statement in (f"VACUUM (ANALYZE) {QUEUE}", "CHECKPOINT"):
                connection.execute(statement)

    def make_group(self, group: str) -> None:
        pass  # who takes a message deletes it

    def held(self) -> int:
        with self._open() as connection:
            found = connection.execute(f"SELECT count(*) FROM {QUEUE}").fetchone()
        assert found is not None
        return int(str(found[0]))

    def unfinished(self, group: str) -> int:
        return self.held()


class Family(ChildAt):
    """A server of several processes."""

    def signal_all(self, number: signal.Signals) -> None:
        for pid in self.members():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> None:
        if self.alive():
            os.kill(self.pid, signal.SIGINT)  # PostgreSQL's fast shutdown; SIGTERM waits for clients to leave
        super().stop()


QUEUES: Final[dict[str, type[Queue]]] = {
    "tailrace": TailraceQueue,
    "redis": RedisQueue,
    "redis-bare": RedisQueue,
    "postgresql": PostgresQueue,
}


def postgres_programs() -> Path | None:
    """The directory with `initdb` and `postgres`: Debian's newest, else what the path has."""
    found = [path.parent for path in DEBIAN_POSTGRES.glob("*/bin/initdb")]
    if found:
        return max(found, key=lambda path: float(path.parent.name))
    other = shutil.which("initdb")
    return Path(other).resolve().parent if other else None


def as_other_user(data: Path) -> list[str]:
    """What to put before a command of PostgreSQL, which does not run as root; gives `data` to that user."""
    if os.geteuid() != 0:
        return []
    user = "postgres" if Path("/etc/passwd").read_text().find("\npostgres:") >= 0 else "nobody"
    shutil.chown(data, user)
    prefix = ["setpriv", f"--reuid={user}", "--clear-groups"]
    if subprocess.run([*prefix, "test", "-w", str(data)], check=False).returncode:
        raise Missing(
            f"PostgreSQL does not run as root, and the user {user} cannot reach {data}:"
            " run the benchmarks as another user, or from a directory that all may enter"
        )
    return prefix


def version_of(name: str) -> str:
    """What the program calls itself."""
    programs = postgres_programs()
    command = (
        ["redis-server", "--version"] if name.startswith("redis") else [str(programs and programs / "postgres"), "-V"]
    )
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return f"{name}, not installed"
    found = re.search(r"(?:v=|\) )(\d[\d.]*)", text)
    return f"{name.removesuffix('-bare')} {found[1] if found else text.strip()}"


# -- Tailrace


def sql(address: Address, text: str) -> list[dict[str, object]]:
    """The rows of the last statement."""
    with Session(address) as session:
        body = json.dumps({"sql": text}).encode()
        answer = session.call("POST", "/v1/api/sql", JSON_HEADERS, body)
    if answer.status != 200:
        raise Failed(f"{text} answered {answer.status}: {answer.body[:300]!r}")
    found: list[dict[str, object]] = json.loads(answer.body)["results"][-1]["rows"]
    return found


def described(address: Address, name: str) -> dict[str, Any]:
    """A topic with its partitions and groups."""
    with Session(address) as session:
        answer = session.call("GET", f"/v1/topics/{name}")
    if answer.status != 200:
        raise Failed(f"GET /v1/topics/{name} answered {answer.status}: {answer.body[:200]!r}")
    found: dict[str, Any] = json.loads(answer.body)
    return found


def topic_next(address: Address, name: str) -> int:
    """The offset of the next message of partition 0: how many there were."""
    return int(described(address, name)["partition_list"][0]["next_offset"])
