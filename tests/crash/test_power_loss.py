"""Power losses, simulated: what was not synced is gone, or there in part, in any order. What was acknowledged is there.

SIGKILL does not show this: the operating system keeps what a dead process wrote. Here the disk itself forgets.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from tailrace.check import check_database
from tailrace.database import Database
from tailrace.errors import NotFound
from tailrace.storage.sqlite import SqliteEngine
from tailrace.streams.commands import Append, CreateStream, DeleteStream, Fork
from tailrace.streams.producer import ProducerClaim
from tailrace.streams.queries import DescribeStream, ReadStream
from tests.support.soak import rounds
from tests.support.vfs import LossyDisk

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

TEXT = "text/plain"
WRITES = 300  # of several writers, from one loss to the next
names = itertools.count()


@pytest.fixture
def disk() -> Iterator[LossyDisk]:
    made = LossyDisk(f"lossy{next(names)}")
    yield made
    made.unregister()


def bodies(db: Database, path: str) -> list[bytes]:
    return [entry.body for entry in db.execute(ReadStream(path, bytes_max=10**9)).page.entries]


@pytest.mark.parametrize("seed", range(rounds(2)))
def test_what_was_acknowledged_was_synced_before(seed: int, disk: LossyDisk, tmp_path: Path) -> None:
    """One writer: after each answer the power fails, in a copy; exactly the answered writes are there."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    chance = random.Random(seed)
    db = Database(SqliteEngine(data, vfs=disk.name), housekeeping_s=None)
    expected: dict[str, tuple[list[bytes], bool] | None] = {}

    def assert_survived() -> None:
        disk.lose(data, copy, chance)
        with tailrace.open(copy, housekeeping_s=None) as found:
            for path, state in expected.items():
                if state is None:
                    with pytest.raises(NotFound):
                        found.execute(DescribeStream(path))
                else:
                    assert bodies(found, path) == state[0]
                    assert bool(found.execute(DescribeStream(path)).stream.closed) == state[1]
        assert check_database(copy).findings == []

    assert_survived()
    db.execute(CreateStream("s", TEXT))
    expected["s"] = ([], False)
    for number in range(90):
        assert_survived()
        body = b"%d" % number + b"x" * chance.choice([10, 5_000, 400_000, 400_000])
        match number % 6:
            case 0:
                db.execute(CreateStream(f"f{number}", fork=Fork("s")))
                expected[f"f{number}"] = (list(expected["s"][0]), False)  # type: ignore[index]
            case 1:
                db.execute(Append(f"f{number - 1}", b"last", TEXT, close=True))
                expected[f"f{number - 1}"] = ([*expected[f"f{number - 1}"][0], b"last"], True)  # type: ignore[index]
            case 2:
                db.execute(DeleteStream(f"f{number - 2}"))
                expected[f"f{number - 2}"] = None
            case 3:
                db.sweep()
            case _:
                db.execute(Append("s", body, TEXT, ProducerClaim("p", number, 0)))
                expected["s"][0].append(body)  # type: ignore[index]
    assert_survived()
    assert disk.durable_bytes(data / "tailrace.db") > 500_000, "a checkpoint was to be among what was tried"
    db.close()


@pytest.mark.parametrize("seed", range(rounds(2)))
def test_answers_to_several_writers_come_after_the_sync(seed: int, disk: LossyDisk, tmp_path: Path) -> None:
    """The power fails at any moment: what was answered by then is there, nothing is there twice or in part."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    chance = random.Random(seed)
    db = Database(SqliteEngine(data, vfs=disk.name), housekeeping_s=None)
    db.execute(CreateStream("s", TEXT))
    answered: list[bytes] = []
    stop = threading.Event()
    allowed = threading.Semaphore(0)  # so that what is copied and checked does not outgrow a slow machine
    failures: list[BaseException] = []

    def write(name: int) -> None:
        try:
            for number in itertools.count():
                allowed.acquire()
                if stop.is_set():
                    return
                body = b"%d.%d" % (name, number) + b"x" * (number % 7 * 1000)
                db.execute(Append("s", body, TEXT, ProducerClaim(str(name), 0, number)))
                answered.append(body)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(25):
            allowed.release(WRITES)
            before = set(answered)
            disk.lose(data, copy, chance)
            with tailrace.open(copy, housekeeping_s=None) as found:
                there = bodies(found, "s")
            assert before <= set(there), f"{len(before - set(there))} answered writes are lost"
            assert len(there) == len(set(there))
            assert check_database(copy).findings == []
    finally:
        stop.set()
        allowed.release(len(threads))
        for thread in threads:
            thread.join()
        db.close()
    assert not failures
    assert answered
