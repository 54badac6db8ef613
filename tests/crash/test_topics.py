"""Topics after a crash: at every failpoint and at random moments.

After each: `tailrace check` is clean; a row's change record and its messages are both there or both not, one for one
and in the same order; every answered write is there; an acknowledgement that was answered holds, and what nobody
acknowledged is delivered again.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import tailrace
from tailrace.check import check_database
from tailrace.database import Database
from tailrace.storage.engine import Reader
from tailrace.tables.change import EVENTS as CHANGES
from tailrace.topics import group as rules
from tailrace.topics.queries import ListPartitions, ReadPartition
from tailrace.topics.topic import GROUPS, OPERATIONS, opened
from tests.crash import topic_child as child
from tests.crash.points import WRITES
from tests.support.patience import PATIENCE_S
from tests.support.server import ROOT
from tests.support.soak import rounds

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

LATER = {"sweep.step": 3, "batch.begun": 60, "batch.flushed": 60, "commit.synced": 60, "batch.answered": 60}


class Ledger:
    """The output of the child: the last number requested and answered by each writer; the acknowledged offsets."""

    def __init__(self) -> None:
        self.requested: dict[str, int] = {}
        self.answered: dict[str, int] = {}
        self.acks_requested: set[int] = set()
        self.acks_answered: set[int] = set()

    def note(self, line: str) -> None:
        mark, name, number = line.split()
        if name == "ack":
            (self.acks_requested if mark == "?" else self.acks_answered).add(int(number))
        else:
            (self.requested if mark == "?" else self.answered)[name] = int(number)

    def state(self) -> dict[str, int]:
        """With which number each writer goes on: all of them can repeat what was not answered."""
        return {name: self.answered.get(name, -1) + 1 for name in self.requested}


def run_until_killed(
    data: Path, ledger: Ledger, environment: dict[str, str], answers: int | None, how: str = "threads"
) -> None:
    command = [sys.executable, "-m", "tests.crash.topic_child", str(data), json.dumps(ledger.state()), how]
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


# -- looking


class LoggedChange(msgspec.Struct, frozen=True, order=True):
    """A change, as a record or as a message tells it."""

    sequence: int
    index: int
    what: str
    table: str
    key: str


def recorded(db: Database) -> list[LoggedChange]:
    """All changes of both tables. The index of a message counts the changes of its transaction over all tables; that of
    a record those of its own table, so only their order is compared."""
    found = []
    for table in (child.CHAT, child.LIKES):
        for change in db.table(table).changes(limit=10**6):
            what = OPERATIONS[CHANGES.index(change.event)]
            found.append(LoggedChange(change.sequence, change.index, what, table, change.keys["id"]))
    return sorted(found, key=lambda logged: (logged.sequence, logged.table, logged.index))


def routed(db: Database, topic: str) -> list[LoggedChange]:
    """All messages of a topic; within a partition they are in the order of their changes."""
    found = []
    for info in db.execute(ListPartitions(topic)):
        here = []
        position = None
        while True:
            run = db.execute(ReadPartition(topic, info.partition, position, 10**8, 10_000))
            if not run.entries:
                break
            for entry in run.entries:
                message = opened(entry.body)
                assert message.source is not None
                key = msgspec.json.decode(message.payload)["id"]
                here.append(
                    LoggedChange(message.sequence, message.index, OPERATIONS[message.operation], message.source, key)
                )
            position = run.next
        places = [(change.sequence, change.index) for change in here]
        assert places == sorted(places), f"{topic}/{info.partition}: out of order"
        found += here
    return sorted(found, key=lambda change: (change.sequence, change.table, change.index))


def without_index(changes: list[LoggedChange]) -> list[tuple[int, str, str, str]]:
    return [(each.sequence, each.what, each.table, each.key) for each in changes]


def assert_kept(data: Path, ledger: Ledger) -> None:
    assert check_database(data).findings == []
    with tailrace.open(data, housekeeping_s=None) as db:
        changes = recorded(db)
        for topic in (child.EVENTS, child.FULL):
            assert without_index(routed(db, topic)) == without_index(changes), f"{topic} tells another story"
        keys = {(change.table, change.key) for change in changes}
        for name, answered in ledger.answered.items():
            for number in range(answered + 1):
                here = f"{name}-{number}"
                if name.startswith("t"):
                    assert {(child.CHAT, here), (child.LIKES, here)} <= keys
                elif name.startswith("b"):
                    assert (child.LIKES, f"{here}-4") in keys
                elif name.startswith("w"):
                    assert (child.CHAT, f"{name}-{number - number % 4}") in keys
        (short,) = db.execute(ListPartitions(child.SHORT))
        assert ledger.answered.get("p0", -1) + 1 <= short.next <= ledger.requested.get("p0", -1) + 1
        assert_acknowledged(db, ledger)


def assert_acknowledged(db: Database, ledger: Ledger) -> None:
    with db._engine.reader(db.clock.now_ms()) as reader:
        row = _group(reader, db.execute(ListPartitions(child.FULL))[0].log)
    if row is None:
        assert not ledger.acks_answered
        return
    cursor, unsettled = row
    assert all(offset < cursor and offset not in unsettled for offset in ledger.acks_answered), "an ack was lost"
    settled = set(range(cursor)) - unsettled
    assert settled <= ledger.acks_requested, f"{sorted(settled - ledger.acks_requested)[:5]} were never acknowledged"


def _group(reader: Reader, log: int) -> tuple[int, set[int]] | None:
    found = reader.get(GROUPS, log, child.GROUP)
    if found is None:
        return None
    return found.cursor, {at for held in rules.unpacked(found.ranges) for at in range(held.first, held.end)}


@pytest.mark.parametrize("name", WRITES)
def test_a_row_and_its_messages_are_both_there_or_both_not_at_every_failpoint(data_dir: Path, name: str) -> None:
    ledger = Ledger()
    for number in range(rounds(2)):
        at = LATER.get(name, 90) + 37 * number
        run_until_killed(data_dir, ledger, {"TAILRACE_FAILPOINTS": f"{name}=kill@{at}"}, None)
        assert_kept(data_dir, ledger)


def test_a_row_and_its_messages_are_both_there_or_both_not_at_random_moments(data_dir: Path) -> None:
    chance = random.Random(11)
    ledger = Ledger()
    for _ in range(rounds(6)):
        run_until_killed(data_dir, ledger, {}, chance.randint(20, 400))
        assert_kept(data_dir, ledger)


BATCH = ["batch.begun", "command.ran", "batch.flushed", "commit.synced", "batch.answered"]


@pytest.mark.parametrize("name", BATCH)
def test_messages_and_the_claims_of_waiting_consumers_are_both_there_or_both_not(data_dir: Path, name: str) -> None:
    """A claim shares the commit of its messages: a lease has its messages, and none that was answered is lost."""
    ledger = Ledger()
    for number in range(rounds(3)):
        at = LATER.get(name, 300) + 41 * number
        run_until_killed(data_dir, ledger, {"TAILRACE_FAILPOINTS": f"{name}=kill@{at}"}, None, "loop")
        assert_kept(data_dir, ledger)
    assert ledger.acks_answered


def test_waiting_consumers_are_killed_at_random_moments(data_dir: Path) -> None:
    chance = random.Random(13)
    ledger = Ledger()
    for _ in range(rounds(4)):
        run_until_killed(data_dir, ledger, {}, chance.randint(20, 400), "loop")
        assert_kept(data_dir, ledger)
