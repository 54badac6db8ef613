"""Two drivers that tier the same logs at once: whoever of them is killed, each entry is in cold storage once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cluster.cold import problems
from tests.cluster.writing import STREAM, TABLE, create
from tests.support.killing import Load, Program, Server, chance, until

pytestmark = pytest.mark.timeout(900)
ROUNDS = 3
PLACES = {"table": (TABLE, f"tables/{TABLE}"), "stream": (STREAM, "streams")}


def test_two_drivers_never_tier_a_range_twice(tmp_path: Path) -> None:
    seed, source = chance()
    server = Server(tmp_path)
    client = server.client()
    create(client)
    load = Load(server.url, seed, tmp_path, pause_ms=4)
    context = f"TAILRACE_SEED={seed}; the logs are in {tmp_path}"

    def start(name: str) -> Program:
        size = source.choice(("40", "100", "300"))
        return Program.pipeline(
            "tier", "--url", server.url, "--table", TABLE, "--stream", STREAM, "--batch-records", size,
            "--interval", "0.05", "--age", "0.1", "--master", f"local[{source.choice((1, 2))}]", "--json",
            log=tmp_path / f"{name}.log",
        )  # fmt: skip

    def generations() -> int:
        return sum(each["generation"] for each in client.cold()["places"])

    def race() -> None:
        """Until both are at it: each has begun, and then there were some batches."""
        for name in drivers:
            until(
                f"driver {name} tiers ({context})",
                lambda at=name: reported_progress(drivers[at]),
                *drivers.values(),
                load.program,
            )  # type: ignore[misc]
        before = generations()
        until(
            f"ten batches are tiered ({context})", lambda: generations() >= before + 10, *drivers.values(), load.program
        )

    drivers = {name: start(name) for name in ("one", "two")}
    try:
        for number in range(ROUNDS):
            race()
            time.sleep(source.uniform(0, 2))
            name = source.choice(("one", "two"))
            drivers[name].kill()
            if number == 1:
                server.kill(source.uniform(0, 1))
            print(f"{number + 1}. killed {name} at generation {generations()}", flush=True)
            drivers[name] = start(name)
        race()
        load.end()
        until(
            f"all is tiered ({context})",
            lambda: all(
                part["tiered"] == part["next"]
                for kind, (name, _) in PLACES.items()
                for part in client.logs(**{kind: name})["partitions"]
            ),
            *drivers.values(),
        )
        for name, driver in drivers.items():
            status = driver.end()
            assert status == 0, f"driver {name} ended with {status}: {driver.tail()}\n{context}"
        wrong = [
            each
            for kind, (name, place) in PLACES.items()
            for each in problems(client, server.data, kind, name, place)
        ]  # fmt: skip
        assert not wrong, f"{wrong}\n{context}"
        print(f"{generations()} generations, each range once", flush=True)
    finally:
        for driver in drivers.values():
            driver.kill()
        load.program.kill()
        client.close()
        server.end()


def reported_progress(driver: Program) -> bool:
    """Whether this run of a driver has looked at the logs, and so takes part. It may lose every race."""
    return '{"job":' in driver.output
