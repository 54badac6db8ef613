"""An embedded database whose process is killed while threads and an event loop write to it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import tailrace
from tailrace.check import check_database
from tailrace.errors import NotFound
from tailrace.streams.commands import DeleteStream
from tailrace.streams.queries import ReadStream
from tests.support.patience import PATIENCE_S
from tests.support.server import ROOT
from tests.support.soak import rounds

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]


class Ledger:
    """The output of the child: the number of each writer's last request, and how many were answered."""

    def __init__(self) -> None:
        self.requested: dict[str, int] = {}
        self.answered: dict[str, int] = {}
        self.lost: dict[str, set[int]] = {}  # requests without an answer, of rounds before

    def note(self, line: str) -> None:
        mark, name, number = line.split()
        known = self.requested if mark == "?" else self.answered
        known[name] = int(number)

    def state(self) -> dict[str, int]:
        """With which number each writer goes on: a producer repeats what was not answered, others leave it."""
        return {
            name: (self.answered.get(name, -1) if name.startswith("p") else requested) + 1
            for name, requested in self.requested.items()
        }


def run_until_killed(data: Path, ledger: Ledger, environment: dict[str, str], answers: int | None) -> None:
    """Run the child; kill it right after so many answers, or let a failpoint do it."""
    command = [sys.executable, "-m", "tests.crash.embedded_child", str(data), json.dumps(ledger.state())]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, **environment})
    assert child.stdout is not None
    rest, answered = b"", 0
    try:
        # Unbuffered, so that the kill follows the answer as closely as it can.
        while chunk := os.read(child.stdout.fileno(), 65536):
            answered += chunk.count(b"!")
            if answers is not None and answered >= answers and b"!" in chunk:
                child.kill()
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                ledger.note(line.decode())
        assert child.wait(PATIENCE_S) == -signal.SIGKILL
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def assert_kept(data: Path, ledger: Ledger) -> None:
    assert check_database(data).findings == []
    with tailrace.open(data, housekeeping_s=None) as db:
        text = b"".join(entry.body for entry in db.execute(ReadStream("s", bytes_max=10**9)).page.entries)
        found: dict[str, list[int]] = {}
        for token in text.decode().split(";")[:-1]:
            name, number = token.split(".")
            found.setdefault(name, []).append(int(number))
        for name, requested in ledger.requested.items():
            if name in ("make", "unmake"):
                continue
            numbers, answered = found.get(name, []), ledger.answered.get(name, -1)
            assert numbers == sorted(numbers), f"{name}: out of order"
            assert max(Counter(numbers).values(), default=1) == 1, f"{name}: twice"
            lost = ledger.lost.setdefault(name, set())
            missing = set(range(answered + 1)) - set(numbers) - lost
            assert not missing, f"{name}: {sorted(missing)[:5]} were answered and are gone"
            assert set(numbers) <= set(range(requested + 1))
            if not name.startswith("p"):
                lost |= set(range(answered + 1, requested + 1))
        assert_remade(db, ledger)


def assert_remade(db: tailrace.Database, ledger: Ledger) -> None:
    """The path that is made again and again holds its latest content, or nothing."""
    try:
        found: int | None = int(db.execute(ReadStream("again")).page.entries[0].body)
    except NotFound:
        found = None
    making, made = ledger.requested.get("make", -1), ledger.answered.get("make", -1)
    deleting, deleted = ledger.requested.get("unmake", -1), ledger.answered.get("unmake", -1)
    if making > made:
        allowed = {None, making}
    elif deleting > deleted:
        allowed = {made, None}
    else:
        allowed = {made} if made > deleted else {None}
    assert found in allowed or made < 0, f"found {found}, allowed {allowed}"
    if found is not None:
        db.execute(DeleteStream("again"))  # the child starts with making it
    ledger.requested["make"] = ledger.answered["make"] = ledger.requested["unmake"] = ledger.answered["unmake"] = max(
        making, -1
    )


def test_a_killed_embedded_database_keeps_what_it_answered(data_dir: Path) -> None:
    """One directory, killed again and again: from outside right after an answer, and at failpoints."""
    chance = random.Random(7)
    ledger = Ledger()
    for number in range(rounds(24)):
        if number % 3:
            run_until_killed(data_dir, ledger, {}, answers=chance.randrange(1, 1500))
        else:
            failpoint = chance.choice(["command.ran", "batch.flushed", "commit.synced", "batch.answered", "sweep.step"])
            armed = f"{failpoint}=kill@{chance.randrange(2, 300)}"
            run_until_killed(data_dir, ledger, {"TAILRACE_FAILPOINTS": armed}, answers=None)
        assert_kept(data_dir, ledger)
    assert min(ledger.answered.values()) > 10, ledger.answered
