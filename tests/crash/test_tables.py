"""Tables after a crash: of the server at every failpoint and at random moments, of an embedded process, of the disk.

After each: `tailrace check` is clean; every acknowledged write is there and every other one whole or not at all; a
transaction over two tables is in both or in neither, and its repetition has no second effect; an index that was being
filled is filled; the change streams, replayed from their start, make the tables as they are.
"""

from __future__ import annotations

import copy
import itertools
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace.check import check_database
from tailrace.database import Database
from tailrace.errors import Unavailable
from tailrace.storage.sqlite import SqliteEngine
from tailrace.tables import change_reading, queries
from tailrace.tables.commands import DeleteItem, PutItem
from tailrace.tables.definition import COUNTS, INDEX_ENTRIES, ITEMS, TABLES, decoded
from tailrace.tables.lifecycle import CreateTable, DescribeTable, SetTimeToLive, UpdateTable
from tests.crash import table_child as child
from tests.crash.load import Lost
from tests.crash.points import WRITES
from tests.crash.table_load import ORDERS, STOCK, Caller, Refused, TableLoad
from tests.crash.test_disk import faulty_server, get
from tests.support.patience import PATIENCE_S
from tests.support.server import ROOT, ServerProcess
from tests.support.soak import rounds
from tests.support.vfs import FaultyDisk, LossyDisk, failed_sync, no_space

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

numbers = itertools.count()
LATER = {"sweep.step": 7, "batch.begun": 40, "batch.flushed": 40, "commit.synced": 40, "batch.answered": 40}


# -- looking


def contents(db: Database, table: str) -> dict[str, Any]:
    pager: queries.Pager[queries.ScanItems] = queries.Pager(queries.ScanItems(table=table))
    items: dict[str, Any] = {}
    while True:
        while (step := pager.next()) is not None:
            pager.add(db.execute(step))
        page = pager.page()
        items |= {item["id"]["S"]: item for item in page.items or ()}
        if page.last_key is None:
            return items
        pager = queries.Pager(queries.ScanItems(table=table, start=page.last_key))


def replayed(db: Database, table: str) -> dict[str, Any]:
    """The table as its change stream tells it, read in small pages from the start."""
    items: dict[str, Any] = {}
    after: int | None = None
    while True:
        page = db.execute(change_reading.ReadChanges(table, after, 7))
        assert page.oldest == page.stream.first, "nothing was trimmed"
        for record in page.records:
            name = record.keys["id"]["S"]
            assert (name in items) == (record.event != "INSERT"), f"{record.event} of {name} at {record.sequence}"
            if page.stream.view == "NEW_AND_OLD_IMAGES":
                assert record.old == items.get(name)
            if record.event == "REMOVE":
                del items[name]
            else:
                items[name] = record.new
        if not page.more:
            return items
        after = page.records[-1].sequence


def assert_sound(data: Path) -> None:
    """Nothing is wrong, and streams tell the tables; on a copy: whoever opens it next must do its own recovery."""
    twin = data.with_name("checked")
    shutil.copytree(data, twin)
    try:
        assert check_database(twin).findings == []
        with tailrace.open(twin, housekeeping_s=None) as db:
            with db._engine.reader() as reader:
                names = [row.name for row in reader.scan(TABLES) if decoded(row).stream is not None]
            for name in names:
                assert replayed(db, name) == contents(db, name)
    finally:
        shutil.rmtree(twin)


# -- a server


@pytest.fixture(scope="module")
def seasoned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TableLoad]:
    """A database with some history, and the ledger of it."""
    data = tmp_path_factory.mktemp("seasoned") / "data"
    load = TableLoad(seed=1)
    with ServerProcess.tailrace(data).start() as server:
        load.prepare(server.url)
        assert not load.run(server.url, until=100)
        load.settle(server.url)
    return data, load


def kill(data: Path, load: TableLoad, failpoint: str | None, at: int, seconds: float = 0.0) -> None:
    """Run a server under load until it kills itself at a failpoint, or is killed after some time."""
    env = {} if failpoint is None else {"TAILRACE_FAILPOINTS": f"{failpoint}=kill@{at}"}
    server = ServerProcess.tailrace(data, env=env)
    timer: threading.Timer | None = None
    try:
        server.start()
        load.settle(server.url)
        if failpoint is None:
            timer = threading.Timer(seconds, os.kill, (server.pid, signal.SIGKILL))
            timer.start()
        assert load.run(server.url), f"{failpoint} was not passed {at} times"
    except Lost:
        pass  # the settling sends again what was unknown, and that was the last pass
    except AssertionError:
        if server.returncode != -signal.SIGKILL or "listening" in server.output:
            raise
    finally:
        if timer is not None:
            timer.join()
        status = server.wait() if server.returncode is not None else server.kill()
    assert status == -signal.SIGKILL, server.output


def recover(data: Path, load: TableLoad) -> None:
    """Restart, hold the server to the ledger, write some more, end in order, and look once more."""
    with ServerProcess.tailrace(data).start() as server:
        load.settle(server.url)
        assert not load.run(server.url, until=30)
        load.settle(server.url)
    assert_sound(data)


@pytest.mark.parametrize("failpoint", WRITES)
def test_a_kill_at_a_failpoint_loses_nothing(failpoint: str, seasoned: tuple[Path, TableLoad], tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(seasoned[0], data)
    load = copy.deepcopy(seasoned[1])
    kill(data, load, failpoint, LATER.get(failpoint, 90))
    assert_sound(data)
    recover(data, load)


@pytest.mark.parametrize("seed", range(rounds(1)))
def test_kills_at_random_moments_lose_nothing(seed: int, seasoned: tuple[Path, TableLoad], tmp_path: Path) -> None:
    """Several crashes of one directory, one after the other."""
    data = tmp_path / "data"
    shutil.copytree(seasoned[0], data)
    load = copy.deepcopy(seasoned[1])
    chance = random.Random(seed)
    for _ in range(3):
        kill(data, load, None, 0, chance.uniform(0.05, 0.8))
        assert_sound(data)
    recover(data, load)


# -- embedded


class Ledger:
    """The output of the child: the number of each writer's last request and of its last answer."""

    def __init__(self) -> None:
        self.requested: dict[str, int] = {}
        self.answered: dict[str, int] = {}

    def note(self, line: str) -> None:
        mark, name, number = line.split()
        (self.requested if mark == "?" else self.answered)[name] = int(number)

    def state(self) -> dict[str, int]:
        """With which number each writer goes on: what was not answered is sent again."""
        return {name: self.answered.get(name, -1) + 1 for name in self.requested}

    def possible(self, name: str) -> list[int]:
        """The numbers of which one must be the last that was carried out; -1: none."""
        answered = self.answered.get(name, -1)
        return sorted({answered, self.requested.get(name, answered)})


def run_until_killed(data: Path, ledger: Ledger, environment: dict[str, str], answers: int | None) -> None:
    command = [sys.executable, "-m", "tests.crash.table_child", str(data), json.dumps(ledger.state())]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, **environment})
    assert process.stdout is not None
    rest, answered = b"", 0
    try:
        while chunk := os.read(process.stdout.fileno(), 65536):
            answered += chunk.count(b"!")
            if answers is not None and answered >= answers:
                process.kill()
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                ledger.note(line.decode())
        assert process.wait(PATIENCE_S) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def assert_kept(data: Path, ledger: Ledger) -> None:
    """What was answered is there; what was not is there whole or not at all."""
    with tailrace.open(data, housekeeping_s=None) as db:
        orders, stock = contents(db, child.ORDERS), contents(db, child.STOCK)
        for name in child.WRITERS:
            possible = ledger.possible(name)
            if name.startswith("single"):
                found = int(orders[name]["n"]["N"]) if name in orders else None
                assert found in [number if number % 3 != 2 and number >= 0 else None for number in possible]
            elif name.startswith("transact"):
                counts = {int(table[name]["n"]["N"]) if name in table else 0 for table in (orders, stock)}
                assert len(counts) == 1, f"{name} is in one table only"
                assert counts.pop() in [number + 1 for number in possible], f"{name} was done twice, or lost"
            elif name.startswith("batch"):
                versions = {orders.get(f"{name}-{number}", {}).get("n", {}).get("N") for number in range(child.BATCH)}
                assert len(versions) == 1, f"{name}: a part of a batch"
                assert versions.pop() in [str(number) if number >= 0 else None for number in possible]
        db.sweep()
        definition = db.execute(DescribeTable(child.ORDERS))
        assert definition.status == "ACTIVE", "what was being filled is filled"
        assert not any(name.startswith("expire") for name in contents(db, child.STOCK)), "what expired is gone"
    assert_sound(data)


def test_a_killed_embedded_database_keeps_what_it_answered(data_dir: Path) -> None:
    """One directory, killed again and again: from outside right after an answer, and at failpoints."""
    chance = random.Random(11)
    ledger = Ledger()
    for number in range(rounds(8)):
        if number % 2:
            run_until_killed(data_dir, ledger, {}, answers=chance.randrange(1, 600))
        else:
            failpoint = WRITES[number // 2 % len(WRITES)]
            armed = f"{failpoint}=kill@{chance.randrange(30, 300)}"
            run_until_killed(data_dir, ledger, {"TAILRACE_FAILPOINTS": armed}, answers=None)
        assert_kept(data_dir, ledger)
    assert min(ledger.answered.values()) > 2, ledger.answered


def test_a_kill_while_the_tables_are_made_leaves_all_or_nothing_of_each(data_dir: Path) -> None:
    for at in (1, 2, 3, 4, 6, 9):  # two commands for each table, six batches
        shutil.rmtree(data_dir, ignore_errors=True)
        failpoint = ("command.ran", "commit.synced")[at % 2]
        run_until_killed(data_dir, Ledger(), {"TAILRACE_FAILPOINTS": f"{failpoint}=kill@{at}"}, answers=None)
        assert_sound(data_dir)
        with tailrace.open(data_dir, housekeeping_s=None) as db:
            child.prepare(db)
            assert len(contents(db, child.ORDERS)) == child.BALLAST


# -- disks


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """That writes are stopped is logged as critical; here it is what is wanted."""
    logging.getLogger("tailrace").setLevel(logging.CRITICAL + 1)
    yield
    logging.getLogger("tailrace").setLevel(logging.NOTSET)


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    made = FaultyDisk(f"faulty-tables{next(numbers)}")
    yield made
    made.unregister()


def with_tables(db: Database) -> None:
    for name, view in ((child.ORDERS, "NEW_AND_OLD_IMAGES"), (child.STOCK, "NEW_IMAGE")):
        db.execute(CreateTable(child.spec(name, view=view)))
    db.execute(SetTimeToLive(child.STOCK, "until", True))


def all_rows(db: Database) -> list[Any]:
    with db._engine.reader() as reader:
        return [list(reader.scan(table)) for table in (ITEMS, INDEX_ENTRIES, COUNTS, TABLES)]


def transacted(db: Database) -> list[int]:
    """How often the transaction was done, by what each of the two tables holds."""
    found = [contents(db, table).get("t") for table in (child.ORDERS, child.STOCK)]
    return [0 if item is None else int(item["n"]["N"]) for item in found]


def test_a_failed_sync_leaves_a_transaction_in_both_tables_or_in_neither(disk: FaultyDisk, data_dir: Path) -> None:
    db = Database(SqliteEngine(data_dir, vfs=disk.name), housekeeping_s=None)
    with_tables(db)
    db.execute(child.both("t", 0))

    def fault(operation: str, path: str, offset: int, size: int) -> None:
        if operation == "sync" and path.endswith("-wal"):
            raise failed_sync()

    disk.fault = fault
    with pytest.raises(Unavailable):
        db.execute(child.both("t", 1))
    disk.fault = None
    with pytest.raises(Unavailable, match="restart"):
        db.execute(child.both("t", 2))
    assert transacted(db) == [1, 1], "reads go on, and see only what is durable"
    db.close()
    with tailrace.open(data_dir, housekeeping_s=None) as again:
        assert transacted(again) in ([1, 1], [2, 2])
        again.execute(child.both("t", 1))
        assert transacted(again) == [2, 2], "the repetition, with its token, has no second effect"
    assert_sound(data_dir)


@pytest.mark.parametrize("nth", [1, 2, 3, 5, 8])
def test_a_disk_that_fills_loses_the_commit_alone_and_all_of_it(nth: int, disk: FaultyDisk, data_dir: Path) -> None:
    """Item, index, expiry, counts, record and sequence: nothing of it is left, and the next write goes on."""
    db = Database(SqliteEngine(data_dir, vfs=disk.name), housekeeping_s=None)
    with_tables(db)
    left = 0

    def fault(operation: str, path: str, offset: int, size: int) -> None:
        nonlocal left
        left -= operation == "write"
        if left <= 0 and operation == "write":
            raise no_space()

    refused, sequence = 0, 0
    for number in range(6):
        for command in (
            child.both("t", number),
            child.put(child.STOCK, id=f"p{number}", n=1, group="x", until=10, pad="x" * 9000),
            UpdateTable(child.ORDERS, child.NO_INDEX if number % 2 else child.LIVE_INDEX),
            DeleteItem(child.STOCK, child.key(f"p{number - 1}")),
        ):
            rows = all_rows(db)
            left, disk.fault = nth, fault
            try:
                db.execute(command)
            except Unavailable as error:
                disk.fault = None
                assert error.code == "DISK_FULL"
                assert all_rows(db) == rows
                refused += 1
                db.execute(command)  # there is space again
            disk.fault = None
        assert transacted(db) == [number + 1, number + 1]
        records = db.execute(change_reading.ReadChanges(child.ORDERS, sequence)).records
        assert len(records) == 1, "one for each time that it was done"
        assert records[0].sequence > sequence
        sequence = records[0].sequence
    assert refused > (0 if nth > 3 else 20)
    db.close()
    assert_sound(data_dir)


def test_a_server_on_a_failing_disk_answers_as_the_service_does_when_it_is_unavailable(tmp_path: Path) -> None:
    control, data = tmp_path / "control", tmp_path / "data"
    control.mkdir()
    load = TableLoad(seed=3)
    with faulty_server(control, data) as server:
        load.prepare(server.url)
        assert not load.run(server.url, until=30)
        call = Caller(server.url)
        item = {"id": {"S": "refused"}}
        for fault, recovers in (("full", True), ("sync", False)):
            (control / fault).touch()
            for _ in range(2):
                with pytest.raises(Refused) as caught:
                    call("PutItem", TableName=ORDERS, Item=item)
                assert (caught.value.status, caught.value.kind) == (503, "ServiceUnavailableException")
            assert call.get(ORDERS, "refused") is None, "reads go on"
            (control / fault).unlink()
            if recovers:
                load.settle(server.url)
                call("PutItem", TableName=STOCK, Item=item)
            else:
                with pytest.raises(Refused):
                    call("DeleteItem", TableName=STOCK, Key=item)
                assert get(server, "/readyz") == 503
        call.close()
    assert_sound(data)
    with ServerProcess.tailrace(data) as server:
        load.settle(server.url)
        call = Caller(server.url)
        assert call.get(STOCK, "refused") == item
        call.close()


@pytest.mark.parametrize("seed", range(rounds(1)))
def test_what_was_acknowledged_survives_a_power_loss(seed: int, tmp_path: Path) -> None:
    """After each answer the power fails, in a copy; exactly the answered writes are there."""
    disk = LossyDisk(f"lossy-tables{next(numbers)}")
    data, lost = tmp_path / "data", tmp_path / "copy"
    chance = random.Random(seed)
    db = Database(SqliteEngine(data, vfs=disk.name), housekeeping_s=None)
    with_tables(db)
    expected: dict[str, Any] = {}
    for number in range(40):
        match number % 5:
            case 0:
                db.execute(child.both("t", number))
            case 1 | 2:
                name = f"i{chance.randrange(5)}"
                command: PutItem = child.put(child.ORDERS, id=name, n=number, group="g", pad="x" * (number % 3 * 4000))
                db.execute(command)
                expected[name] = command.item
            case 3:
                name = f"i{chance.randrange(5)}"
                db.execute(DeleteItem(child.ORDERS, child.key(name)))
                expected.pop(name, None)
            case 4:
                db.execute(UpdateTable(child.ORDERS, child.LIVE_INDEX if number % 10 == 4 else child.NO_INDEX))
                if chance.random() < 0.5:
                    db.sweep()
        disk.lose(data, lost, chance)
        with tailrace.open(lost, housekeeping_s=None) as found:
            there = contents(found, child.ORDERS)
            assert there.pop("t")["n"]["N"] == str(number // 5 + 1)
            assert there == expected
            assert transacted(found) == [number // 5 + 1] * 2
            assert replayed(found, child.ORDERS) == contents(found, child.ORDERS)
        assert check_database(lost).findings == []
    db.close()
    disk.unregister()
