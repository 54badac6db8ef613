"""Programs that are killed: started in a process group of their own, killed whole, started again, their logs kept.

What is compared in the end is what a writer was acknowledged (`tests.cluster.writing`), so nothing here trusts what
the killed ones say of themselves. A seed decides when what is killed; a failure tells it, and TAILRACE_SEED plays it
again. The moments are still those of the machine.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tailrace.client import Client
from tailrace.errors import Error
from tests.support.jvm import SHORT_LIVED
from tests.support.server import ROOT, ServerProcess

PATIENCE_S = 300.0  # until something moves again after a kill; a quiet machine takes ten
SMALL = {  # what a Spark needs that lives for seconds
    "spark.driver.memory": "768m",
    "spark.driver.extraJavaOptions": SHORT_LIVED,
    # For a few rows, generating and compiling code takes longer than running the query.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
}


def chance() -> tuple[int, random.Random]:
    """A seed, printed, and the random choices it decides."""
    text = os.environ.get("TAILRACE_SEED")
    seed = int(text) if text else random.SystemRandom().randrange(1_000_000)
    print(f"seed {seed} (TAILRACE_SEED={seed} kills the same in the same order)", flush=True)
    return seed, random.Random(seed)


def settings(conf: Mapping[str, str]) -> list[str]:
    """As options of `tailrace pipeline`."""
    return [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]


class Program:
    """A process, its children with it, and the file that has what they print."""

    def __init__(self, arguments: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.log = log
        self.arguments = list(arguments)
        self._began = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            output.write(f"\n--- {' '.join(self.arguments)}\n".encode())
            output.flush()
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**os.environ, "NO_COLOR": "1", **(env or {})},
                start_new_session=True,
            )

    @classmethod
    def pipeline(cls, *arguments: str, log: Path, conf: Mapping[str, str] | None = None) -> Program:
        """`tailrace pipeline ...`."""
        return cls(["tailrace.cli", "pipeline", *arguments, *settings(SMALL | dict(conf or {}))], log)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        """SIGKILL to it and all that it has started, in one moment."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(PATIENCE_S)

    def end(self, timeout_s: float = PATIENCE_S) -> int:
        """Ask it to end, and see how it did. What it left running is killed."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Until it ends by itself; its status."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.arguments} did not end in {timeout_s:g} s:\n{self.tail()}") from None
        finally:
            self.kill()

    @property
    def output(self) -> str:
        """All that this run of it has printed."""
        return self.log.read_bytes()[self._began :].decode(errors="replace")

    def tail(self, lines: int = 40) -> str:
        """The last lines of its output."""
        return f"{self.log}:\n" + "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Server:
    """A server that comes back on its port over its data."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self._process = ServerProcess.tailrace(self.data).start()
        self.url, self._port = self._process.url, self._process.port
        self._outputs: list[str] = []

    def client(self) -> Client:
        return Client(self.url)

    def kill(self, away_s: float = 0.0) -> None:
        """SIGKILL, and a start again after a while."""
        self._process.kill()
        self._outputs.append(self._process.output)
        time.sleep(away_s)
        self._process = ServerProcess.tailrace(self.data, port=self._port).start()

    def end(self) -> int:
        return self._process.terminate()

    @property
    def output(self) -> str:
        return "\n--- killed\n".join([*self._outputs, self._process.output])


class Load:
    """The writer: a process that writes to a stream and a table of the server, until it is stopped."""

    def __init__(self, url: str, seed: int, folder: Path, *, pause_ms: int = 50) -> None:
        self._model = folder / "model.json"
        arguments = ["tests.cluster.writing", url, str(seed), str(self._model), str(pause_ms)]
        self.program = Program(arguments, folder / "writer.log")

    def end(self) -> dict[str, Any]:
        """Stop it; what it was acknowledged."""
        status = self.program.end()
        assert status == 0, f"the writer ended with {status}:\n{self.program.tail()}"
        found: dict[str, Any] = json.loads(self._model.read_text())
        return found


def until(
    what: str, condition: Callable[[], bool], *programs: Program, timeout_s: float = PATIENCE_S, pause_s: float = 0.1
) -> None:
    """Poll the condition until it holds. A server that is away is polled too; a program that ended is an error."""
    end = time.monotonic() + timeout_s
    while True:
        try:
            if condition():
                return
        except Error as error:
            if error.status not in (429, 503):
                raise
        for each in programs:
            assert each.status is None, f"waiting until {what}, {each.arguments} ended ({each.status}): {each.tail()}"
        if time.monotonic() > end:
            outputs = "\n".join(each.tail() for each in programs)
            raise AssertionError(f"{what}: not in {timeout_s:g} s.\n{outputs}")
        time.sleep(pause_s)


def remove(folder: Path) -> None:
    """Delete a checkpoint, whoever may still write to it."""
    end = time.monotonic() + PATIENCE_S
    while folder.exists():
        assert time.monotonic() < end, f"{folder} does not go away"
        shutil.rmtree(folder, ignore_errors=True)
