"""`make serve` and `make run` without make: the compiled build is made beside the server, and never delays it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.patience import PATIENCE_S
from tests.support.server import ROOT

# A compiler that never ends, and prints what mypyc does, too.
ENDLESS = "echo compiling 2 modules; echo 'tailrace/a.py:1: warning: of mypyc'; sleep 3600"


class Serving:
    """`python -m examples.shop serve` with a command that compiles."""

    def __init__(self, folder: Path, script: str) -> None:
        self.folder = folder
        self._log = folder / "serving.log"
        command = f"bash -c {shlex.quote(script)} {folder}"  # the folder is what finds its process
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}
        source = os.environ.get("PYTHONPATH") or str(ROOT / "src")
        options = ["--port", "0", "--data", str(folder / "data"), "--compile", command]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "examples.shop", "serve", *options],
            stdin=subprocess.DEVNULL,
            stdout=self._log.open("wb"),
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**kept, "PYTHONPATH": os.pathsep.join((source, str(ROOT)))},
            start_new_session=True,
        )

    @property
    def output(self) -> str:
        return self._log.read_text()

    def until(self, there: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not there():
            assert self.process.poll() is None, self.output
            assert time.monotonic() < end, self.output
            time.sleep(0.05)

    @property
    def url(self) -> str:
        self.until(lambda: "listening on " in self.output)
        return self.output.partition("listening on ")[2].split()[0]

    def gone(self) -> bool:
        """Whether no process mentions the folder."""
        lines = []
        for each in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                lines.append(each.read_bytes().decode(errors="replace"))
            except OSError:
                continue  # it has ended
        return not any(str(self.folder) in line for line in lines)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Callable[[str], Serving]]:
    made: list[Serving] = []

    def start(script: str) -> Serving:
        made.append(Serving(tmp_path, script))
        return made[-1]

    yield start
    for each in made:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()


def test_the_server_answers_while_the_build_is_made(serving: Callable[[str], Serving]) -> None:
    started = serving(ENDLESS)
    assert httpx.put(f"{started.url}/v1/stream/a", headers={"Content-Type": "text/plain"}).status_code == 201
    started.until(lambda: "compiling 2 modules" in started.output)
    assert started.output.index("listening on") < started.output.index("compiling 2 modules")
    assert "warning: of mypyc" not in started.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_and_the_compiler(serving: Callable[[str], Serving], number: int) -> None:
    started = serving(ENDLESS)
    started.until(lambda: "compiling 2 modules" in started.output)
    if number == signal.SIGINT:
        os.killpg(started.process.pid, number)  # as a terminal does
    else:
        started.process.send_signal(number)
    assert started.process.wait(PATIENCE_S) == 0, started.output
    assert "stopped" in started.output
    assert started.gone()


def test_a_failed_build_is_one_line_and_the_server_stays_up(serving: Callable[[str], Serving]) -> None:
    started = serving("echo compiling 2 modules; echo cc: no; echo error: the modules were not compiled; exit 1")
    started.until(lambda: "error: the modules were not compiled" in started.output)
    assert "cc: no" not in started.output
    assert httpx.get(f"{started.url}/v1/stream/none").status_code == 404


def test_without_a_compiler_nothing_is_printed(serving: Callable[[str], Serving], tmp_path: Path) -> None:
    done = tmp_path / "done"
    started = serving(f"echo 'no C compiler'; touch {done}")
    started.until(done.exists)
    assert httpx.get(f"{started.url}/v1/stream/none").status_code == 404
    assert "no C compiler" not in started.output
