"""The jobs on a cluster, as they are started by hand: `tailrace pipeline ... --master spark://...`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from tailrace.client import Client
from tests.cluster.cold import problems
from tests.cluster.queries import VIEW
from tests.cluster.torment import VIEWED, copied, totals
from tests.cluster.writing import STREAM, TABLE, Writer, create
from tests.support.cluster import Cluster
from tests.support.killing import Program, Server, chance, until

pytestmark = pytest.mark.timeout(600)
TOPIC = "app.events"


class Scene:
    """A server with some of everything, and jobs that run on the cluster."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder, self.cluster = folder, cluster
        self.seed, self.chance = chance()
        self.server = Server(folder)
        self.client: Client = self.server.client()
        create(self.client)
        self.client.sql(f"CREATE TOPIC {TOPIC} PARTITIONS 2")
        for event in ("INSERT", "UPDATE", "DELETE"):
            self.client.sql(f"ALTER TOPIC {TOPIC} ADD SOURCE {TABLE} ON {event}")
        self.writer = Writer(self.server.url, self.seed)

    def write(self, count: int) -> None:
        for _ in range(count):
            self.writer.step()

    def start(self, job: str, *arguments: str) -> Program:
        return Program.pipeline(
            job, *arguments, "--url", self.server.url, "--master", self.cluster.url,
            log=self.folder / f"{job}.log", conf=self.cluster.conf,
        )  # fmt: skip

    def finish(self, job: Program) -> None:
        status = job.wait(180)
        assert status == 0, f"{job.arguments} ended with {status}: {job.tail()}\nTAILRACE_SEED={self.seed}"

    def kill_executors(self, job: Program, count: int, begun: Callable[[], bool]) -> int:
        """SIGKILL to so many executors, as soon as the job has done something; how many it were before it had ended."""
        killed = 0
        until(f"the job has begun (TAILRACE_SEED={self.seed})", lambda: begun() or job.status is not None)
        while killed < count and job.status is None:
            if self.cluster.kill_executor(self.chance):
                killed += 1
                time.sleep(self.chance.uniform(0.3, 2))
            time.sleep(0.05)
        return killed


@pytest.fixture
def scene(tmp_path: Path, cluster: Cluster) -> Iterator[Scene]:
    made = Scene(tmp_path, cluster)
    yield made
    made.client.close()
    made.server.end()


def test_tier_with_executors_killed_and_all_is_read_back(scene: Scene) -> None:
    scene.write(1500)
    everything = ("--table", TABLE, "--topic", TOPIC, "--stream", STREAM, "--once", "--batch-records", "100")
    job = scene.start("tier", *everything, "--ship")
    killed = scene.kill_executors(job, 3, lambda: any(each["generation"] for each in scene.client.cold()["places"]))
    scene.finish(job)
    assert killed, "no executor was killed"
    scene.write(200)
    scene.finish(scene.start("tier", *everything))
    wrong = [
        each
        for kind, name, place in (
            ("table", TABLE, f"tables/{TABLE}"), ("topic", TOPIC, f"topics/{TOPIC}"), ("stream", STREAM, "streams"),
        )
        for each in problems(scene.client, scene.server.data, kind, name, place)
    ]  # fmt: skip
    assert not wrong, f"{wrong}; TAILRACE_SEED={scene.seed}"
    assert copied(scene.client, STREAM) == scene.writer.messages


def test_a_view_with_executors_killed_is_what_the_table_says(scene: Scene) -> None:
    scene.client.sql(VIEWED)
    scene.write(300)
    scene.finish(scene.start("view", VIEW, "--once"))
    scene.write(1200)
    before = scene.client.view(VIEW)["sources"][0]["position"]
    job = scene.start("view", VIEW, "--once", "--max-records", "50")
    killed = scene.kill_executors(job, 3, lambda: scene.client.view(VIEW)["sources"][0]["position"] > before)
    scene.finish(job)
    assert killed, "no executor was killed"
    rows = scene.client.sql(f"SELECT status, n, total, newest FROM {VIEW}")[-1].rows
    found = {row["status"]: (int(row["n"]), Decimal(str(row["total"])), int(row["newest"])) for row in rows}
    assert found == totals(scene.writer.items), f"TAILRACE_SEED={scene.seed}"
