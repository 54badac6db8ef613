"""Staged writes against a model: batches that are replayed, computed again, overlapping and racing, in any order.

Two drivers follow one log of numbers into a stream, each with a checkpoint of its own that may be lost or fall back;
both write as one consumer. The model knows up to where the numbers were applied. Whatever happens, the stream has every
number below that once and in order.
"""

from __future__ import annotations

import logging
import shutil

import hypothesis.strategies as st
import msgspec
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import tailrace
from tailrace import failpoints, limits
from tailrace.check import check_database
from tailrace.clock import ManualClock
from tailrace.errors import Fenced, NotFound
from tailrace.jobs import sweep
from tailrace.jobs.commands import CommitStages, StageRows
from tailrace.jobs.queries import FindTarget, GetJob
from tailrace.jobs.stage import STREAM, Target
from tailrace.jobs.target import checked
from tailrace.streams.commands import Create
from tailrace.streams.queries import Read
from tests.support.directories import scratch_directory
from tests.support.soak import examples

LOGS = (1, 2)
TARGET = Target(STREAM, "copy")
drivers = st.sampled_from(["ann", "bob"])
lengths = st.tuples(st.integers(0, 4), st.integers(0, 4))


class Driver(msgspec.Struct):
    """A streaming query: its checkpoint, and the batch it has planned."""

    query: str
    batch: int = 0
    at: dict[int, int] = {}
    planned: dict[int, tuple[int, int]] | None = None
    lives: int = 0


class StageMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        logging.disable(logging.CRITICAL)
        self.directory = scratch_directory()
        self.clock = ManualClock()
        self.db = tailrace.open(self.directory, clock=self.clock, housekeeping_s=None)
        self.applied = dict.fromkeys(LOGS, 0)
        self.written: list[str] = []
        self.sent: list[CommitStages] = []

    @initialize()
    def create(self) -> None:
        self.db.execute(Create("copy", "application/json"))
        self.drivers = {name: Driver(name, at=dict.fromkeys(LOGS, 0)) for name in ("ann", "bob")}

    def staged(self, rows: list[str], parts: int) -> tuple[str, ...]:
        """The rows in that many stages."""
        here = self.db.execute(FindTarget(TARGET))
        ids = []
        for part in range(parts):
            mine = rows[len(rows) * part // parts : len(rows) * (part + 1) // parts]
            if mine:
                done = checked(here, msgspec.msgpack.encode([msgspec.json.encode(row) for row in mine]))
                ids.append(self.db.execute(StageRows(TARGET, here.number, done.rows, done.body)).stage.id)
        return tuple(ids)

    @rule(name=drivers, ahead=lengths, parts=st.integers(1, 4), lost=st.booleans(), broken=st.booleans())
    def run(self, name: str, ahead: tuple[int, int], parts: int, lost: bool, broken: bool) -> None:
        """A driver plans a batch, or has one from before it was restarted, computes it and commits it. `lost`: the
        answer is not seen. `broken`: the server fails in the middle of it."""
        driver = self.drivers[name]
        if driver.planned is None:
            driver.planned = {
                log: (driver.at[log], driver.at[log] + more) for log, more in zip(LOGS, ahead, strict=True)
            }
        ranges = driver.planned
        rows = [f"{log}-{number}" for log, (start, end) in ranges.items() for number in range(start, end)]
        command = CommitStages(driver.query, driver.batch, TARGET, self.staged(rows, parts), "copy", ranges)
        if broken:
            failpoints.arm("stages.part" if rows else "stages.fenced")
            try:
                self.db.execute(command)
            except (failpoints.Failure, Fenced):
                pass
            else:
                self.expect(command, applied=False)
            finally:
                failpoints.disarm()
        self.sent.append(command)
        self.commit(command, rows)
        if not lost:
            driver.at = {log: end for log, (_, end) in ranges.items()}
            driver.batch, driver.planned = driver.batch + 1, None

    def expect(self, command: CommitStages, *, applied: bool) -> None:
        assert self.verdict(command)[0] is applied, command

    def verdict(self, command: CommitStages) -> tuple[bool, bool]:
        """Whether it is to be applied, and whether it is to be refused."""
        assert command.ranges is not None
        moving = {
            log: each for log, each in command.ranges.items() if each[0] != each[1] or each[0] != self.applied[log]
        }
        known = bool(self.known())
        if all(end <= self.applied[log] for log, (_, end) in moving.items()) and (moving or known):
            return False, False
        if all(start == self.applied[log] for log, (start, _) in moving.items()):
            return True, False
        return False, True

    def known(self) -> dict[int, int]:
        try:
            return self.db.execute(GetJob("copy")).positions
        except NotFound:
            return {}

    def commit(self, command: CommitStages, rows: list[str]) -> None:
        applied, refused = self.verdict(command)
        try:
            done = self.db.execute(command)
        except Fenced as error:
            assert refused
            assert error.facts == {"positions": {str(log): at for log, at in self.applied.items()}}
            return
        assert not refused and done.applied is applied
        if applied:
            assert command.ranges is not None
            assert done.rows == len(rows)
            self.written += rows
            self.applied = {log: end for log, (_, end) in command.ranges.items()}

    @rule(data=st.data())
    def late(self, data: st.DataObject) -> None:
        """A commit arrives once more, long after it was sent; its stages may be gone."""
        if not self.sent:
            return
        command = data.draw(st.sampled_from(self.sent))
        applied, refused = self.verdict(command)
        before = len(self.written)
        try:
            done = self.db.execute(command)
        except (Fenced, NotFound) as error:
            assert refused if isinstance(error, Fenced) else applied
            return
        assert not refused
        if done.applied:
            assert applied and command.ranges is not None
            self.written += [
                f"{log}-{number}" for log, (start, end) in command.ranges.items() for number in range(start, end)
            ]
            self.applied = {log: end for log, (_, end) in command.ranges.items()}
            assert len(self.written) == before + done.rows

    @rule(name=drivers)
    def lose_checkpoint(self, name: str) -> None:
        """The checkpoint is gone: another query, which begins where the consumer is."""
        driver = self.drivers[name]
        life = driver.lives + 1
        at = {**dict.fromkeys(LOGS, 0), **self.known()}
        self.drivers[name] = Driver(f"{name}-{life}", at=at, lives=life)

    @rule(name=drivers, back=lengths)
    def fall_back(self, name: str, back: tuple[int, int]) -> None:
        """An old checkpoint is put in place: what it plans was applied before, or in part."""
        driver = self.drivers[name]
        driver.at = {log: max(0, driver.at[log] - less) for log, less in zip(LOGS, back, strict=True)}
        driver.batch, driver.planned = max(0, driver.batch - 1), None

    @rule(hours=st.sampled_from([1, 30]))
    def wait(self, hours: int) -> None:
        self.clock.advance(hours * 3600)
        for step in self.db.execute(sweep.FindDue()).steps:
            self.db.execute(step)
        assert limits.STAGE_S <= 30 * 3600

    @invariant()
    def every_number_once(self) -> None:
        entries = self.db.execute(Read("copy", bytes_max=10**9)).page.entries if hasattr(self, "drivers") else []
        found = msgspec.json.decode(b"[" + b",".join(entry.body for entry in entries) + b"]", type=list[str])
        assert found == self.written
        for log in LOGS:
            mine = [row for row in found if row.startswith(f"{log}-")]
            assert mine == [f"{log}-{number}" for number in range(self.applied[log])]

    def teardown(self) -> None:
        self.db.close()
        logging.disable(logging.NOTSET)
        try:
            assert check_database(self.directory).findings == []
        finally:
            shutil.rmtree(self.directory)


TestStages = StageMachine.TestCase
TestStages.settings = settings(max_examples=examples(40), stateful_step_count=30)
