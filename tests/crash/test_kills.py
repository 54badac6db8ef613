"""A server killed with SIGKILL at every named failpoint, and at random moments, under load from several clients.

After each restart: `tailrace check` is clean; every acknowledged write is there exactly once and every
unacknowledged one at most once; a producer's retry ends exactly once; closed stays closed, deleted stays deleted,
forks read their prefix.
"""

from __future__ import annotations

import copy
import os
import random
import shutil
import signal
import threading
from pathlib import Path

import pytest

from tailrace.storage.sqlite import migrations
from tests.crash.load import Load, Lost
from tests.crash.points import WRITES
from tests.support.server import ServerProcess, check
from tests.support.soak import rounds

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(600)]

LATER = {
    "sweep.step": 4,
    "batch.begun": 20,
    "commit.synced": 20,
    "batch.flushed": 20,
    "batch.answered": 20,
    "command.ran": 60,
}


def assert_sound(data: Path) -> None:
    """`tailrace check` finds nothing, on a copy: the server must do its own recovery."""
    twin = data.with_name("checked")
    shutil.copytree(data, twin)
    checked = check(twin)
    shutil.rmtree(twin)
    assert checked.returncode == 0, f"tailrace check:\n{checked.stdout}{checked.stderr}"


def kill_at(data: Path, load: Load, failpoint: str, at: int) -> None:
    """Run a server under load until it kills itself at the failpoint; a server also writes while it starts."""
    server = ServerProcess.tailrace(data, env={"TAILRACE_FAILPOINTS": f"{failpoint}=kill@{at}"})
    try:
        server.start()
        load.settle(server.url)
        assert load.run(server.url), f"{failpoint} was not passed {at} times"
    except Lost:
        pass  # the settling sends again what was unknown, and that was the last pass
    except AssertionError:
        if server.returncode != -signal.SIGKILL or "listening" in server.output:
            raise
    finally:
        status = server.wait() if server.returncode is not None else server.kill()
    assert status == -signal.SIGKILL, server.output


def recover(data: Path, load: Load) -> None:
    """Restart, hold the server to the ledger, write some more, end in order, and look once more."""
    with ServerProcess.tailrace(data).start() as server:
        load.settle(server.url)
        assert not load.run(server.url, until=40)
        load.settle(server.url)
    assert_sound(data)


@pytest.fixture(scope="module")
def seasoned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Load]:
    """A database with some history, and the ledger of it."""
    data = tmp_path_factory.mktemp("seasoned") / "data"
    load = Load(seed=1)
    with ServerProcess.tailrace(data).start() as server:
        assert not load.run(server.url, until=300)
        load.settle(server.url)
    return data, load


CASES = [(name, at) for name in WRITES for at in (1, LATER.get(name, 10))]


@pytest.mark.parametrize(("failpoint", "at"), CASES)
def test_a_kill_at_a_failpoint_loses_nothing(
    failpoint: str, at: int, seasoned: tuple[Path, Load], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(seasoned[0], data)
    load = copy.deepcopy(seasoned[1])
    kill_at(data, load, failpoint, at)
    assert_sound(data)
    recover(data, load)


@pytest.mark.parametrize("at", range(1, len(migrations()) + 1))
def test_a_kill_during_a_migration_leaves_a_database_that_opens(at: int, data_dir: Path) -> None:
    server = ServerProcess.tailrace(data_dir, env={"TAILRACE_FAILPOINTS": f"migration.step=kill@{at}"})
    with pytest.raises(AssertionError, match="did not say where it listens"):
        server.start()
    assert server.returncode == -signal.SIGKILL
    recover(data_dir, Load(seed=at))


def test_the_first_writes_of_a_new_database_survive_a_kill(data_dir: Path) -> None:
    load = Load(seed=2)
    kill_at(data_dir, load, "commit.synced", 1)
    assert_sound(data_dir)
    recover(data_dir, load)


@pytest.mark.parametrize("seed", range(rounds(3)))
def test_kills_at_random_moments_lose_nothing(seed: int, data_dir: Path) -> None:
    """Several crashes of one directory, one after the other."""
    chance = random.Random(seed)
    load = Load(seed)
    for number in range(8):
        failpoint = chance.choice([None, None, "command.ran", "batch.flushed", "commit.synced", "batch.answered"])
        if failpoint is not None and number:
            kill_at(data_dir, load, failpoint, chance.randrange(1, 200))
        else:
            kill_after(data_dir, load, chance.uniform(0.05, 1.5))
        assert_sound(data_dir)
    recover(data_dir, load)


def kill_after(data: Path, load: Load, seconds: float) -> None:
    """Run a server under load and kill it at some moment, whatever it is doing."""
    server = ServerProcess.tailrace(data).start()
    timer = threading.Timer(seconds, os.kill, (server.pid, signal.SIGKILL))
    try:
        load.settle(server.url)
        timer.start()
        assert load.run(server.url), "the server was not killed"
        timer.join()
    finally:
        timer.cancel()
        server.kill()
