"""A real Spark cluster on this machine: a standalone master and workers from the installed PySpark, as processes.

They listen on ports that the system chooses, on the loopback interface alone, and are found by the lines that they log.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support.jvm import SHORT_LIVED
from tests.support.killing import PATIENCE_S, SMALL
from tests.support.server import ROOT

_READY = {
    "master": re.compile(r"Starting Spark master at (spark://\S+)"),
    "worker": re.compile(r"Successfully registered with master (spark://\S+)"),
}
_START_S = PATIENCE_S
_EXECUTOR = "CoarseGrainedExecutorBackend"


class Cluster:
    """A master and some workers of one core each. Leaving it ends all of them, and their executors."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder
        self.url = ""
        self._count = workers
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def conf(self) -> dict[str, str]:
        """What an application needs to be small, and to stay on the loopback interface."""
        return SMALL | {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": SHORT_LIVED,
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
        }

    def __enter__(self) -> Cluster:
        try:
            at = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
            self.url = self._start("master", "org.apache.spark.deploy.master.Master", *at)
            for number in range(self._count):
                size = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / f"work{number}")]
                self._start(f"worker{number}", "org.apache.spark.deploy.worker.Worker", *at, *size, self.url)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in self._daemons.values():
            daemon.kill()  # workers first would tell the master; nobody needs to know
        for pid in self.executors():
            _kill(pid)
        for daemon in self._daemons.values():
            daemon.wait(PATIENCE_S)

    def executors(self) -> list[int]:
        """The processes that run tasks, of all applications of this cluster."""
        work = str(self.folder)
        return [pid for pid, command in _processes() if _EXECUTOR in command and work in _folder(pid, command)]

    def kill_executor(self, source: random.Random) -> bool:
        """SIGKILL to one of them; whether there was one."""
        found = self.executors()
        if not found:
            return False
        _kill(source.choice(found))
        return True

    def _start(self, name: str, main: str, *arguments: str) -> str:
        """Start a daemon; the master's URL, once it says that it is ready."""
        import pyspark

        from tailrace.spark import java

        java.provide()
        home = Path(pyspark.__file__).parent
        log = self.folder / f"{name}.log"
        env = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "PYSPARK_PYTHON": sys.executable,
        }
        with log.open("wb") as output:
            daemon = self._daemons[name] = subprocess.Popen(
                [home / "bin" / "spark-class", main, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=env,
                start_new_session=True,
            )
        ready = _READY[name.rstrip("0123456789")]
        end = time.monotonic() + _START_S
        while (found := ready.search(log.read_text(errors="replace"))) is None:
            logged = log.read_text(errors="replace")[-4000:]
            assert daemon.poll() is None, f"Spark's {name} ended with {daemon.returncode}:\n{logged}"
            assert time.monotonic() < end, f"Spark's {name} was not ready in {_START_S:g} s:\n{logged}"
            time.sleep(0.1)
        return found[1]


def _processes() -> list[tuple[int, str]]:
    listed = subprocess.run(["ps", "-A", "-ww", "-o", "pid=,command="], capture_output=True, text=True, check=True)
    found = (line.strip().partition(" ") for line in listed.stdout.splitlines())
    return [(int(pid), command) for pid, _, command in found]


def _folder(pid: int, command: str) -> str:
    """Where an executor works: a directory of its worker's."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return command  # no /proc here: the command has its class path, and at least the test fails in the open


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
