"""Staged writes after a crash: at every failpoint and at random moments.

A driver follows numbers into a table, a topic and a stream, batch by batch, each with a consumer's position. The server
is killed in the middle; the driver computes the batch again, in another number of stages, and goes on. After each:
`tailrace check` is clean, and every number is in each target once and in order: a batch is there as a whole or not at
all, with the position of its consumer.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tailrace.check import check_database
from tailrace.client import Client
from tailrace.client.sync import pipeline
from tailrace.errors import Error
from tests.crash import small_server
from tests.crash.points import COMMITS
from tests.support.server import ServerProcess
from tests.support.soak import rounds

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

LOG = 7
ROWS = 40  # of one batch
TARGETS: tuple[tuple[str, dict[str, str]], ...] = (
    ("items", {"table": "numbers"}),
    ("messages", {"topic": "numbers"}),
    ("entries", {"stream": "numbers"}),
)
NAMES = (*COMMITS, "stages.fenced", "stages.part", "stages.written")
# A server that starts passes some of them before it listens.
CASES = [(name, at) for name in NAMES for at in ((1, 5) if name.startswith("stages.") else (15,))]


class Driver:
    """Writes batches of numbers to all targets, and knows up to which it got an answer."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.batch = 0
        self.done: dict[str, bool] = {}  # which targets have answered the present batch
        self.unsure: set[str] = set()  # and which may have it

    def prepare(self, url: str) -> None:
        with Client(url) as client:
            client.sql("CREATE TABLE IF NOT EXISTS numbers (id TEXT PRIMARY KEY, n BIGINT) WITH (stream = 'NEW_IMAGE')")
            client.sql("CREATE TOPIC IF NOT EXISTS numbers")
            client.create("numbers", "application/json")

    def run(self, url: str, until: int) -> bool:
        """Whether it came that far."""
        try:
            with Client(url) as client:
                while self.batch < until:
                    for name, target in TARGETS:
                        if name not in self.done:
                            self.unsure.add(name)
                            self.write(client, name, target)
                            self.done[name] = True
                    self.batch, self.done, self.unsure = self.batch + 1, {}, set()
        except Error:
            return False
        return True

    def write(self, client: Client, name: str, target: dict[str, str]) -> None:
        start, end = self.batch * ROWS, (self.batch + 1) * ROWS
        parts = self._random.randint(1, 4)
        edges = [start + ROWS * part // parts for part in range(parts)] + [end]
        stages = []
        for first, last in pairwise(edges):
            stage = client.stage([row(name, number) for number in range(first, last)], **target)
            assert stage is not None
            stages.append(stage)
        response = client.commit_stages(
            f"query of {name}", self.batch, stages, **target, consumer=f"copy of {name}", ranges={LOG: (start, end)}
        )
        assert response["positions"] == {LOG: end}
        assert response["applied"] or name in self.unsure


def row(name: str, number: int) -> Any:
    if name == "items":
        return ["PUT", {"id": {"S": f"{number:06d}"}, "n": {"N": str(number)}}]
    return [None, b"%d" % number, 0] if name == "messages" else b"%d" % number


def numbers(client: Client, name: str) -> list[int]:
    """What is in a target now, in order."""
    if name == "items":
        changes = [json for page in pages(client, "/v1/tables/numbers/stream") for json in page]
        items = client.sql("SELECT n FROM numbers ORDER BY id")[0].rows
        found = [each["new"]["n"] for each in changes]
        assert found == [each["n"] for each in items], "the change stream tells of all items, once"
        return found
    if name == "messages":
        return [int(b64decode(each["payload"])) for page in pages(client, MESSAGES) for each in page]
    return [each for page in pages(client, "/v1/stream/numbers") for each in page]


MESSAGES = "/v1/topics/numbers/0/stream"


def pages(client: Client, target: str) -> Iterator[list[Any]]:
    offset, more = "-1", True
    while more:
        page = client._read(target, offset, False)
        yield msgspec.json.decode(page.body)
        offset, more = page.next, not page.up_to_date


def check_all(url: str, driver: Driver) -> None:
    with Client(url) as client:
        for name, _ in TARGETS:
            found = numbers(client, name)
            at = client.job(f"copy of {name}")["positions"][LOG] if found else 0
            assert found == list(range(at)), f"{name}: every number once and in order"
            sure = (driver.batch + (name in driver.done)) * ROWS
            assert at == sure or (name in driver.unsure and at == sure + ROWS), f"{name}: what was answered is there"


def recover(data: Path, driver: Driver) -> None:
    assert check_database(data).findings == []
    with ServerProcess.tailrace(data).start() as server:
        driver.prepare(server.url)
        check_all(server.url, driver)
        assert driver.run(server.url, driver.batch + 3)
        check_all(server.url, driver)
    assert check_database(data).findings == []


@pytest.fixture(autouse=True)
def _one_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server does not come back by itself."""
    monkeypatch.setattr(pipeline, "TRIES", 1)


@pytest.mark.parametrize(("name", "at"), CASES)
def test_a_kill_at_a_failpoint_leaves_whole_batches(data_dir: Path, name: str, at: int) -> None:
    driver = Driver(at)
    with ServerProcess.tailrace(data_dir).start() as server:
        driver.prepare(server.url)
        assert driver.run(server.url, 2)
    armed = {"TAILRACE_FAILPOINTS": f"{name}=kill@{at}"}
    server = ServerProcess.tailrace(data_dir, env=armed).start()
    assert not driver.run(server.url, 50)
    assert server.wait() == -signal.SIGKILL, server.output
    recover(data_dir, driver)


@pytest.mark.parametrize("seed", range(rounds(3)))
def test_a_kill_at_any_moment_leaves_whole_batches(data_dir: Path, seed: int) -> None:
    driver = Driver(seed)
    chance = random.Random(seed)
    for _ in range(3):
        server = ServerProcess.tailrace(data_dir).start()
        driver.prepare(server.url)
        killer = threading.Thread(target=lambda server=server: (time.sleep(chance.uniform(0.1, 0.6)), server.kill()))
        killer.start()
        assert not driver.run(server.url, 100_000)
        killer.join()
        recover(data_dir, driver)


# -- commits that are larger than a transaction

LARGE = small_server.ITEMS + small_server.SLICE // 2


def small(data: Path, env: dict[str, str] | None = None) -> ServerProcess:
    server = ServerProcess.tailrace(data, env=env)
    server.command[2] = small_server.__name__
    return server


def stage_large(client: Client, stages: int, tag: str) -> list[str]:
    """The numbers below LARGE, in so many stages; `tag` says which computation of the batch they are from."""
    found = []
    for part in range(stages):
        mine = range(LARGE * part // stages, LARGE * (part + 1) // stages)
        batch = pa.record_batch({"id": [f"{number:06d}" for number in mine], "n": list(mine), "tag": [tag] * len(mine)})
        written = pa.BufferOutputStream()
        with pa.ipc.new_stream(written, batch.schema) as writer:
            writer.write_batch(batch)
        found.append(client.stage_arrow(written.getvalue().to_pybytes(), "numbers"))
    return found


@pytest.mark.parametrize(
    ("point", "kept"),
    [("stages.slice=kill@1", False), ("stages.slice=kill@2", True), ("stages.slice=kill@5", True)],
)
def test_a_kill_between_two_slices_doubles_nothing(data_dir: Path, point: str, kept: bool) -> None:
    """The batch is computed again, in other stages. If some of the first computation was written, all the rest is of
    it; every number is there once, also in the change stream."""
    server = small(data_dir, {"TAILRACE_FAILPOINTS": point}).start()
    with Client(server.url) as client:
        client.sql("CREATE TABLE numbers (id TEXT PRIMARY KEY, n BIGINT, tag TEXT) WITH (stream = 'NEW_IMAGE')")
        stages = stage_large(client, 2, "first")
        with pytest.raises(Error):
            client.commit_stages("query", 0, stages, table="numbers")
    assert server.wait() == -signal.SIGKILL, server.output
    assert check_database(data_dir).findings == []
    with small(data_dir).start() as server, Client(server.url) as client:
        before = count(client)
        assert (before > 0) is kept
        assert before < LARGE
        again = stage_large(client, 3, "second")
        done = client.commit_stages("query", 0, again, table="numbers")
        assert done["applied"] is not kept
        repeated = client.commit_stages("query", 0, stages, table="numbers")
        assert not repeated["applied"]
        assert count(client) == LARGE
        select = "SELECT count(DISTINCT id) AS ids, sum(n) AS total, min(tag) AS a, max(tag) AS b FROM numbers"
        (row,) = client.sql(select)[0].rows
        tag = "first" if kept else "second"
        assert row == {"ids": LARGE, "total": LARGE * (LARGE - 1) // 2, "a": tag, "b": tag}
        (part,) = client.logs(table="numbers")["partitions"]
        records, _ = client.count_records(part["earliest"], part["next"], table="numbers")
        assert records == LARGE, "each is recorded once"
    assert check_database(data_dir).findings == []


def count(client: Client) -> int:
    found: int = client.call("DescribeTable", {"TableName": "numbers"})["Table"]["ItemCount"]
    return found
