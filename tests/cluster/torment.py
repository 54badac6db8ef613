"""Two streaming queries under load, and what is done to them. In the end, what is there must be what was written."""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

from tailrace.client import Client
from tests.cluster.queries import CONSUMER, COPY, VIEW
from tests.cluster.writing import STREAM, TABLE, create
from tests.support.cluster import Cluster
from tests.support.killing import SMALL, Load, Program, Server, chance, remove, settings, until
from tests.support.server import check

DRIVER, SERVER, BOTH, CHECKPOINT, EXECUTOR = "driver", "server", "driver and server", "checkpoint", "executor"
BUSY = "failed to connect back"  # what Spark says of a Python that takes ten seconds to start
VIEWED = (
    f"CREATE MATERIALIZED VIEW {VIEW} AS "
    f"SELECT status, count(*) AS n, sum(total) AS total, max(v) AS newest FROM {TABLE} GROUP BY status"
)


class Torment:
    """A server, a writer and a driver of two queries: table -> view, stream -> stream."""

    def __init__(self, folder: Path, cluster: Cluster | None = None, *, shuffle: bool = False) -> None:
        self.folder = folder
        self.seed, self.chance = chance()
        self._cluster, self._shuffle = cluster, shuffle
        self._checkpoints = folder / "checkpoints"
        self._partitions = 0
        self.server = Server(folder)
        self.client = self.server.client()
        create(self.client)
        self.client.create(COPY, "application/json")
        self.client.sql(VIEWED)
        self.load = Load(self.server.url, self.seed, folder)
        self.driver = self._drive()
        self.done: list[str] = []
        self.ended = False  # of the load

    # -- what happens

    def run(self, kills: list[str]) -> None:
        """All of these, each at a random moment."""
        for what in kills:
            self._wait_a_while(at_once=what != SERVER)
            self._do(what)
            self.done.append(what)
            print(f"{len(self.done):2}. {what}, {self._partitions} partitions, {self._status()}", flush=True)

    def _wait_a_while(self, *, at_once: bool) -> None:
        """Mostly until both queries have gone on since the last kill, and then some; now and then at any moment.
        But a server is there when a query starts: a missing one is reported as a wrong URL."""
        if at_once and self.chance.random() < 0.2:
            time.sleep(self.chance.uniform(0, 8))
            return
        before = self._positions()
        self._until(
            "both queries go on",
            lambda: all(now > then for now, then in zip(self._positions(), before, strict=True)),
        )
        time.sleep(self.chance.uniform(0, 2))
        if self.chance.random() < 0.5:  # the worst moment: something was applied, and nobody knows of it yet
            number = self.chance.randrange(2)
            before = self._positions()
            self._until("a batch is applied", lambda: self._positions()[number] > before[number], pause_s=0.005)

    def _until(self, what: str, condition: Callable[[], bool], *, pause_s: float = 0.1) -> None:
        """Ask again until it is so, and look after the driver, as whoever runs one does."""

        def tended() -> bool:
            if self.driver.status is not None:
                reason = f"{what}: the driver ended ({self.driver.status})\n{self.driver.tail()}\n{self.explained()}"
                assert BUSY in self.driver.output, reason
                print(f"    the machine is too busy for Spark; the driver is started again ({BUSY})", flush=True)
                self.driver = self._drive()
            return condition()

        programs = [] if self.ended else [self.load.program]
        until(f"{what} ({self.explained()})", tended, *programs, pause_s=pause_s)

    def _do(self, what: str) -> None:
        away_s = self.chance.uniform(0, 1.5)
        if what == SERVER:
            self.server.kill(away_s)
        elif what == EXECUTOR:
            assert self._cluster is not None
            cluster = self._cluster
            self._until("there is an executor", lambda: cluster.kill_executor(self.chance))
        else:
            self.driver.kill()
            if what == BOTH:
                self.server.kill(away_s)
            if what == CHECKPOINT:
                remove(self._checkpoints)
            self.driver = self._drive()

    def _drive(self) -> Program:
        """The driver, with another number of partitions than the one before."""
        self._partitions = self.chance.choice([n for n in (1, 2, 3, 5) if n != self._partitions])
        conf = SMALL
        arguments = ["tests.cluster.queries", self.server.url, str(self._checkpoints)]
        arguments += ["--partitions", str(self._partitions), *(["--shuffle"] if self._shuffle else [])]
        if self._cluster is not None:
            arguments += ["--master", self._cluster.url]
            conf = self._cluster.conf
        return Program([*arguments, *settings(conf)], self.folder / "driver.log")

    # -- how far it is

    def _positions(self) -> tuple[int, int]:
        """Of the view and of the copy."""
        view = sum(each["position"] or 0 for each in self.client.view(VIEW)["sources"])
        return view, sum(self._copied().values())

    def _copied(self) -> dict[int, int]:
        found = {each["name"]: each for each in self.client.jobs()}
        return dict(self.client.job(CONSUMER)["positions"]) if CONSUMER in found else {}

    def _status(self) -> str:
        view, copy = self._positions()
        return f"the view at {view}, the copy at {copy}"

    def _caught_up(self) -> bool:
        ends = {each["log"]: each["next"] for each in self.client.logs(stream=STREAM)["partitions"]}
        view = self.client.view(VIEW)
        return (
            self._copied() == ends
            and not view["stale"]
            and all(each["position"] == each["next"] for each in view["sources"])
        )

    # -- what is right

    def settle(self) -> None:
        """End the load, let the queries finish, and compare all that there is with the model."""
        model = self.load.end()
        self.ended = True
        self._until("all is applied", self._caught_up)
        self.driver.kill()
        found = copied(self.client)
        if self._shuffle:
            found.sort(key=lambda message: message["n"])
        problems = [*compare_copy(model["messages"], found), *self._view_problems(model)]
        assert not problems, f"{problems}\n{self.explained()}"
        assert model["writes"] > 100, f"hardly anything was written: {model['writes']}. {self.explained()}"
        print(f"{model['writes']} writes, {len(model['messages'])} messages, {len(model['items'])} items: all right")
        status = self.server.end()
        assert status == 0, f"the server ended with {status}: {self.server.output}\n{self.explained()}"
        checked = check(self.server.data)
        assert checked.returncode == 0, f"{checked.stdout}{checked.stderr}\n{self.explained()}"

    def _view_problems(self, model: dict[str, Any]) -> list[str]:
        rows = self.client.sql(f"SELECT status, n, total, newest FROM {VIEW}")[-1].rows
        found = {row["status"]: (int(row["n"]), Decimal(str(row["total"])), int(row["newest"])) for row in rows}
        expected = totals(model["items"])
        return [] if found == expected else [f"the view has {found}, and the table says {expected}"]

    def explained(self) -> str:
        """What whoever looks for the reason needs."""
        return f"TAILRACE_SEED={self.seed}; after {', '.join(self.done) or 'nothing'}; the logs are in {self.folder}"

    def close(self) -> None:
        """End whatever still runs; also after a failure."""
        self.driver.kill()
        self.load.program.kill()
        (self.folder / "server.log").write_text(self.server.output)
        self.client.close()
        self.server.end()

    def __enter__(self) -> Torment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def totals(items: dict[str, dict[str, Any]]) -> dict[str, tuple[int, Decimal, int]]:
    """The view's SELECT, over the model."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for item in items.values():
        groups[item["status"]].append(item)
    return {
        status: (len(each), sum((Decimal(item["total"]) for item in each), Decimal(0)), max(item["v"] for item in each))
        for status, each in groups.items()
    }


def copied(client: Client, stream: str = COPY) -> list[Any]:
    """All messages of a JSON stream."""
    found: list[Any] = []
    offset = "-1"
    while True:
        page = client.read(stream, offset)
        found += json.loads(page.body or b"[]")
        if page.up_to_date:
            return found
        offset = page.next


def compare_copy(written: list[Any], found: list[Any]) -> list[str]:
    """What is wrong with the copy: lost, doubled, or in another order."""
    if found == written:
        return []
    numbers = [each["n"] for each in found]
    lost = sorted(set(range(len(written))) - set(numbers))
    doubled = sorted({each for each in numbers if numbers.count(each) > 1}) if len(numbers) != len(set(numbers)) else []
    return [f"of {len(written)} messages {len(found)} were copied; lost: {lost[:20]}; doubled: {doubled[:20]}"]


def shuffled(chance_: random.Random, *kills: str) -> list[str]:
    """In some order."""
    return chance_.sample(kills, len(kills))
