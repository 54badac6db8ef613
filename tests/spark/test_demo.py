"""The first five minutes: the demo goes the whole path and checks it; the one that serves says what is true, and leaves
nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailrace.cli import demo_parts, demo_shop, demo_steps
from tailrace.client import Client
from tailrace.errors import Conflict, NotFound
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


class Demo:
    """`tailrace demo --serve` over a directory, on a free port."""

    def __init__(self, folder: Path, *before: Path) -> None:
        self.folder = folder
        self._log = folder / "demo.log"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tailrace.cli", "demo", "--serve", "--port", "0", "--data", str(folder / "data")],
            stdin=subprocess.DEVNULL,
            stdout=self._log.open("wb"),
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment(*before),
        )

    @property
    def said(self) -> str:
        return self._log.read_text()

    @property
    def url(self) -> str:
        self.until("Tailrace is up at")
        found = re.search(r"Tailrace is up at (\S+);", self.said)
        assert found is not None
        return found[1]

    def until(self, text: str, within_s: float = LONG_S) -> None:
        until(lambda: text in self.said or self.process.poll() is not None, within_s, lambda: self.said)
        assert text in self.said, self.said

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def gone(self) -> bool:
        return not running(str(self.folder / "data"))


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    made: list[Demo] = []

    def start(*before: Path) -> Demo:
        made.append(Demo(tmp_path, *before))
        return made[-1]

    yield start
    for each in made:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()


@pytest.fixture
def no_spark(tmp_path: Path) -> Path:
    """A folder that hides PySpark from whoever has it in front of its path."""
    hiding = tmp_path / "hiding" / "pyspark"
    hiding.mkdir(parents=True)
    (hiding / "__init__.py").write_text('raise ImportError("hidden")\n')
    return hiding.parent


def test_the_demo_goes_the_whole_path(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tailrace.cli", "demo", "--timeout", str(LONG_S)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, timeout=850, check=False,
        env={**environment(), "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    steps = re.findall(r"^ *[\d.]+ s  (\w+)", done.stdout, re.M)
    assert " ".join(steps) == "server tables spark live write topic view view cold trim open check done", done.stdout
    assert not done.stderr, "nothing of Spark is shown"
    assert not list(tmp_path.glob("tailrace-demo-*"))
    assert not running(str(tmp_path))


def test_what_the_serving_demo_prints_can_be_typed(demo: Callable[..., Demo]) -> None:
    started = demo()
    url = started.url
    started.until("the pipeline is up")
    with Client(url) as client:
        until(lambda: len(client.sql(f"SELECT * FROM {demo_shop.VIEW}")[-1].rows) == 3, LONG_S, lambda: started.said)
        place = started.folder / "data" / "cold" / "tables" / demo_shop.TABLE
        until(lambda: list(place.glob("*.parquet")), LONG_S, lambda: started.said)
    typed = [line.strip() for line in started.said.splitlines() if line.startswith("    ")]
    assert len(typed) == 8
    for line in typed:
        live = "live=sse" in line
        done = subprocess.run(
            ["timeout", "3" if live else "120", "bash", "-c", line],
            capture_output=True, text=True, cwd=started.folder, env=environment(), check=False,
        )  # fmt: skip
        assert done.returncode == (124 if live else 0), f"{line}\n{done.stdout}{done.stderr}"
        assert done.stdout.strip(), line
    assert "incubator" not in started.said
    assert "Traceback" not in started.said
    assert started.end() == 0, started.said
    assert started.gone()


def test_without_spark_the_server_stays_up_and_says_why(demo: Callable[..., Demo], no_spark: Path) -> None:
    started = demo(no_spark)
    url = started.url
    started.until("the server stays up")
    assert "this needs Spark; pip install 'tailrace[spark]'" in started.said
    with Client(url) as client:
        rows = f"SELECT * FROM {demo_shop.TABLE}"
        before = client.sql(rows)[-1].rows
        until(lambda: client.sql(rows)[-1].rows != before, 30, lambda: started.said)
    assert started.end(signal.SIGTERM) == 0
    assert started.gone()


def test_who_is_killed_leaves_nobody_behind(demo: Callable[..., Demo], no_spark: Path) -> None:
    started = demo(no_spark)
    assert started.url
    assert not started.gone()
    started.process.kill()
    started.process.wait()
    until(started.gone, 30, lambda: str(running(str(started.folder))))


def test_a_table_of_that_name_is_left_alone(demo: Callable[..., Demo], no_spark: Path, tmp_path: Path) -> None:
    with ServerProcess.tailrace(tmp_path / "data") as server, Client(server.url) as client:
        client.sql("CREATE TABLE orders (id TEXT PRIMARY KEY); INSERT INTO orders VALUES ('mine')")
    started = demo(no_spark)
    started.until("which the demo did not make and leaves alone")
    with Client(started.url) as client:
        time.sleep(2)
        assert client.sql("SELECT * FROM orders")[-1].rows == [{"id": "mine"}]
        assert client.topics() == []


def test_a_server_that_cannot_start_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    command = [sys.executable, "-m", "tailrace.cli", "demo", "--serve", "--port", "0", "--data", str(tmp_path / "data")]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment(), timeout=PATIENCE_S, check=False
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr


def test_the_shop_is_bounded_and_knows_its_table(client: Client) -> None:
    demo_shop.prepare(client, 50)
    demo_shop.prepare(client, 50)  # what is there stays
    try:
        shop = demo_shop.Shop(client, seed=3)
        for _ in range(400):
            shop.write()
        assert len(shop.orders) <= demo_shop.ORDERS_MAX
        rows = client.sql("SELECT * FROM orders ORDER BY id")[-1].rows
        assert demo_shop.exact(rows) == demo_shop.exact(sorted(shop.orders.values(), key=lambda row: str(row["id"])))
        later = demo_shop.Shop(client)
        later.resume()
        assert later.orders == shop.orders
        client.sql("DROP MATERIALIZED VIEW app.totals; DROP TABLE orders; CREATE TABLE orders (id TEXT PRIMARY KEY)")
        with pytest.raises(Conflict, match="did not make"):
            demo_shop.prepare(client)
    finally:
        client.sql(
            "DROP MATERIALIZED VIEW IF EXISTS app.totals; DROP TOPIC IF EXISTS app.new_orders; DROP TABLE orders"
        )


def test_what_is_not_as_it_should_be_ends_the_demo(client: Client, tmp_path: Path) -> None:
    """A view that does not come is told; a pipeline that has ended is told with its own words."""
    ended = demo_parts.Part("pipeline", "run", "--config", str(tmp_path / "none.toml"))
    until(lambda: ended.status is not None, 60, lambda: "it still runs")
    steps = demo_steps.Demo(client, "http://127.0.0.1:9", tmp_path, ended, lambda step, text: None, 0.5)
    with pytest.raises(Exception, match=r"the pipeline has ended: cannot read the pipeline in .*none\.toml"):
        steps._until("the view", lambda: False)
    with pytest.raises(demo_steps.Wrong, match="the messages: found 1, and expected 2"):
        steps._same("the messages", 1, 2)
    with pytest.raises(NotFound):
        steps._rows()
