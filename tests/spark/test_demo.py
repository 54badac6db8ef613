"""The shop of `make run` and `make demo`: every step passes, printed commands work, no process is left behind."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from examples.shop import orders, walkthrough
from examples.shop.installing import Installation
from examples.shop.processes import Program
from tailrace.client import Client
from tailrace.errors import Conflict, NotFound
from tests.support.jvm import spark_environment
from tests.support.patience import PATIENCE_S
from tests.support.server import ROOT, ServerProcess

pytestmark = pytest.mark.timeout(900)
LONG_S = 600.0  # on a busy machine Spark takes its time


def environment(*before: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}
    return {**kept, "PYTHONPATH": os.pathsep.join(map(str, (*before, ROOT / "src", ROOT))), "PYTHONUNBUFFERED": "1"}


def running(text: str) -> list[str]:
    """The processes with this in their command line."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = each.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended
        if text in line:
            found.append(line)
    return found


def until(there: Callable[[], object], within_s: float, what: Callable[[], str]) -> None:
    end = time.monotonic() + within_s
    while not there():
        assert time.monotonic() < end, what()
        time.sleep(0.1)


@pytest.fixture(autouse=True)
def _short_lived(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not below the test's own directory: a JVM has the path in its command line, and may end after its program."""
    for name, value in spark_environment(tmp_path_factory.mktemp("jvm")).items():
        monkeypatch.setenv(name, value)


class Demo:
    """`make run` without make, over a directory, on a free port."""

    def __init__(self, folder: Path, *before: Path, install: str | None = None, build: str | None = None) -> None:
        self.folder = folder
        self._log = folder / "demo.log"
        options = ["--port", "0", "--data", str(folder / "data")] + (["--install", install] if install else [])
        options += ["--compile", build] if build else []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "examples.shop", "run", *options],
            stdin=subprocess.DEVNULL,
            stdout=self._log.open("wb"),
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment(*before),
        )

    @property
    def output(self) -> str:
        return self._log.read_text()

    @property
    def url(self) -> str:
        self.until("Tailrace is up at")
        found = re.search(r"Tailrace is up at (\S+);", self.output)
        assert found is not None
        return found[1]

    def until(self, text: str, within_s: float = LONG_S) -> None:
        until(lambda: text in self.output or self.process.poll() is not None, within_s, lambda: self.output)
        assert text in self.output, self.output

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def gone(self) -> bool:
        return not running(str(self.folder / "data"))


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    made: list[Demo] = []

    def start(*before: Path, install: str | None = None, build: str | None = None) -> Demo:
        made.append(Demo(tmp_path, *before, install=install, build=build))
        return made[-1]

    yield start
    for each in made:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()


@pytest.fixture
def no_spark(tmp_path: Path) -> Path:
    """A folder that hides PySpark from a process that has it first on its path."""
    hiding = tmp_path / "hiding" / "pyspark"
    hiding.mkdir(parents=True)
    (hiding / "__init__.py").write_text('raise ImportError("hidden")\n')
    return hiding.parent


def test_every_step_of_the_walkthrough_passes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.shop", "check", "--timeout", str(LONG_S)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, timeout=850, check=False,
        env={**environment(), "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    steps = re.findall(r"^ *[\d.]+ s  (\w+)", done.stdout, re.M)
    assert " ".join(steps) == "server tables spark live write topic view view cold trim open check done", done.stdout
    assert not done.stderr, "no output of Spark is shown"
    assert not list(tmp_path.glob("tailrace-demo-*"))
    assert not running(str(tmp_path))


def test_the_printed_commands_work(demo: Callable[..., Demo]) -> None:
    started = demo()
    assert started.url
    assert "pipeline status" not in started.output, "a command is printed before it works"
    started.until("the view is filled")
    started.until("history is in cold storage")
    commands = [line.strip() for line in started.output.splitlines() if line.startswith("    ")]
    assert len(commands) == 9
    for line in commands:
        live = "live=sse" in line
        done = subprocess.run(
            ["timeout", "3" if live else "120", "bash", "-c", line],
            capture_output=True, text=True, cwd=started.folder, env=environment(), check=False,
        )  # fmt: skip
        assert done.returncode == (124 if live else 0), f"{line}\n{done.stdout}{done.stderr}"
        assert done.stdout.strip(), line
    assert "incubator" not in started.output
    assert "Traceback" not in started.output
    assert started.end() == 0, started.output
    assert started.gone()


def test_without_spark_the_server_stays_up_and_says_why(demo: Callable[..., Demo], no_spark: Path) -> None:
    started = demo(no_spark)
    url = started.url
    started.until("the server stays up")
    assert "tailrace[spark]" in started.output
    with Client(url) as client:
        rows = f"SELECT * FROM {orders.TABLE}"
        before = client.sql(rows)[-1].rows
        until(lambda: client.sql(rows)[-1].rows != before, PATIENCE_S, lambda: started.output)
    assert started.end(signal.SIGTERM) == 0
    assert started.gone()


def test_the_pipeline_waits_for_the_installation(demo: Callable[..., Demo], no_spark: Path, tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    script = f"echo 'Downloading spark-1.0.whl'; until [ -e {go_on} ]; do sleep 0.1; done"
    started = demo(no_spark, install=f"bash -c {shlex.quote(script)}")
    started.until("installing Spark: Downloading spark-1.0.whl")
    assert started.url, "the server is up meanwhile"
    assert "the pipeline is starting" not in started.output
    go_on.touch()
    started.until("the pipeline is starting")
    assert started.end() == 0


def test_the_compiled_build_waits_for_the_installation_and_ends_with_the_demo(
    demo: Callable[..., Demo], no_spark: Path, tmp_path: Path
) -> None:
    go_on = tmp_path / "go-on"
    install = f"until [ -e {go_on} ]; do sleep 0.1; done"
    build = f"echo compiling 2 modules; sleep 3600; : {tmp_path / 'data'}"
    started = demo(no_spark, install=f"bash -c {shlex.quote(install)}", build=f"bash -c {shlex.quote(build)}")
    assert started.url, "the server is up meanwhile"
    assert "compiling" not in started.output
    go_on.touch()
    started.until("compiling 2 modules")
    assert started.end() == 0
    assert started.gone()


def test_a_failed_installation_is_reported_and_the_server_stays_up(demo: Callable[..., Demo], no_spark: Path) -> None:
    started = demo(no_spark, install="bash -c 'echo ERROR: no such package; exit 1'")
    started.until("Spark could not be installed: ERROR: no such package")
    with Client(started.url) as client:
        assert client.topics()
    assert started.end() == 0


def test_an_installation_shows_the_progress_of_pip() -> None:
    lines: list[str] = []
    bar = "Downloading pyspark-4.3.0.tar.gz (455.9 MB)\n   ━━━━━╸   120.5/455.9 MB 20.1 MB/s eta 0:00:17\rsleep"
    installation = Installation(f"bash -c {shlex.quote(f'printf {shlex.quote(bar)}; sleep 60')}", lines.append)
    try:
        until(lambda: "120.5/455.9 MB" in installation.progress, PATIENCE_S, lambda: installation.progress)
        assert "pyspark" in installation.progress
        assert lines == ["installing Spark: Downloading pyspark-4.3.0.tar.gz (455.9 MB)"]
    finally:
        installation.stop()
    assert installation.status is not None


def test_a_killed_demo_leaves_no_process_behind(demo: Callable[..., Demo], no_spark: Path) -> None:
    started = demo(no_spark)
    assert started.url
    assert not started.gone()
    started.process.kill()
    started.process.wait()
    until(started.gone, PATIENCE_S, lambda: str(running(str(started.folder))))


def test_a_table_of_that_name_is_left_alone(demo: Callable[..., Demo], no_spark: Path, tmp_path: Path) -> None:
    with ServerProcess.tailrace(tmp_path / "data") as server, Client(server.url) as client:
        client.sql("CREATE TABLE orders (id TEXT PRIMARY KEY); INSERT INTO orders VALUES ('mine')")
    started = demo(no_spark)
    started.until("which this demo did not create and leaves alone")
    with Client(started.url) as client:
        time.sleep(2)
        assert client.sql("SELECT * FROM orders")[-1].rows == [{"id": "mine"}]
        assert client.topics() == []


def test_a_server_that_cannot_start_is_reported_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    command = [sys.executable, "-m", "examples.shop", "run", "--port", "0", "--data", str(tmp_path / "data")]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment(), timeout=PATIENCE_S, check=False
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr


def test_the_shop_is_bounded_and_knows_its_table(client: Client) -> None:
    orders.prepare(client, 50)
    orders.prepare(client, 50)  # what is there stays
    try:
        shop = orders.Shop(client, seed=3)
        for _ in range(400):
            shop.write()
        assert len(shop.orders) <= orders.ORDERS_MAX
        rows = client.sql("SELECT * FROM orders ORDER BY id")[-1].rows
        assert orders.exact(rows) == orders.exact(sorted(shop.orders.values(), key=lambda row: str(row["id"])))
        later = orders.Shop(client)
        later.resume()
        assert later.orders == shop.orders
        client.sql("DROP MATERIALIZED VIEW app.totals; DROP TABLE orders; CREATE TABLE orders (id TEXT PRIMARY KEY)")
        with pytest.raises(Conflict, match="did not create"):
            orders.prepare(client)
    finally:
        client.sql(
            "DROP MATERIALIZED VIEW IF EXISTS app.totals; DROP TOPIC IF EXISTS app.new_orders; DROP TABLE orders"
        )


def test_a_difference_ends_the_walkthrough(client: Client, tmp_path: Path) -> None:
    """So does a pipeline that has ended, with its own message."""
    ended = Program("pipeline", "run", "--config", str(tmp_path / "none.toml"))
    until(lambda: ended.status is not None, 60, lambda: "it still runs")
    steps = walkthrough.Walkthrough(client, "http://127.0.0.1:9", tmp_path, ended, lambda step, text: None, 0.5)
    with pytest.raises(Exception, match=r"the pipeline has ended: cannot read the pipeline in .*none\.toml"):
        steps._until("the view", lambda: False)
    with pytest.raises(walkthrough.StepFailed, match="the messages: found 1, and expected 2"):
        steps._same("the messages", 1, 2)
    with pytest.raises(NotFound):
        steps._rows()
