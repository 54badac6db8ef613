"""The two servers as child processes: each on the same one core, on a data directory of its own on the same disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tailrace.cli.load import Address, Child, Failed

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent
NAMES: Final = ("tailrace", "reference")


def cores() -> tuple[set[int], set[int]]:
    """The core of the servers and the core of the load generator. With one core in all they share it."""
    usable = sorted(os.sched_getaffinity(0))
    return {usable[0]}, {usable[-1]}


def install_reference() -> None:
    """Install the pinned packages when they are missing or are not the pinned ones."""
    have = HERE / "node_modules" / ".package-lock.json"
    want = HERE / "package-lock.json"
    if have.exists() and have.stat().st_mtime >= want.stat().st_mtime:
        return
    if shutil.which("npm") is None:
        raise Failed("npm is missing; `make test` installs it, or run with --server tailrace")
    print("installing @durable-streams/server (npm ci)", flush=True)
    done = subprocess.run(
        ["npm", "ci", "--no-audit", "--no-fund"], cwd=HERE, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Failed(f"npm ci failed: {(done.stderr or done.stdout).strip()[:1000]}")
    have.touch()


class Server:
    """One server under test; can be stopped, moved to other data and started again."""

    def __init__(self, name: str, data: Path, core: set[int]) -> None:
        self.name = name
        self.data = data
        self._core = core
        self._child: Child | None = None

    def start(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        if self.name == "tailrace":
            command = [sys.executable, "-m", "tailrace.cli", "serve", "--dev", "--host", "127.0.0.1", "--port", "0"]
            command += ["--data", str(self.data)]
        else:
            command = ["node", str(HERE / "reference.mjs"), str(self.data)]
        log = self.data.with_name(self.data.name + ".log")
        self._child = Child(command, log=log, cores=self._core, cwd=ROOT)

    @property
    def child(self) -> Child:
        assert self._child is not None, "not started"
        return self._child

    @property
    def address(self) -> Address:
        return self.child.address

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop()
            self._child = None

    def move(self, data: Path) -> None:
        """Stop, take the data to another directory, start there."""
        self.stop()
        shutil.copytree(self.data, data, dirs_exist_ok=True)
        shutil.rmtree(self.data)
        self.data = data
        os.sync()  # so that what was copied is not written back while we measure
        self.start()


def scratch(bytes_needed: int) -> Path | None:
    """A directory in memory to fill a server in, where each append does not wait for the disk; None without room."""
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > 4 * bytes_needed:
        return Path(tempfile.mkdtemp(prefix="tailrace-bench-", dir=memory))
    return None
