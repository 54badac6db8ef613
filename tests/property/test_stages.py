"""Staged writes against a model: batches that are replayed, computed again, overlapping and racing, in any order.

Two drivers follow one log of numbers into a stream, each with a checkpoint of its own that may be lost or fall back;
both write as one consumer. The model knows up to where the numbers were applied. Whatever happens, the stream has every
number below that once and in order.

The second machine has a query that filters, and a fence that is not strict, as the sink's is: of the numbers that the
query keeps the same holds.
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
from tailrace.housekeeping import FindDueWork
from tailrace.jobs import sweep
from tailrace.jobs.commands import CommitStages, StageRows
from tailrace.jobs.queries import FindTarget, GetJob
from tailrace.jobs.stage import STREAM, Target
from tailrace.jobs.target import checked
from tailrace.streams.commands import CreateStream
from tailrace.streams.queries import ReadStream
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
    strict = True

    def __init__(self) -> None:
        super().__init__()
        logging.disable(logging.CRITICAL)
        self.directory = scratch_directory()
        self.clock = ManualClock()
        self.db = tailrace.open(self.directory, clock=self.clock, housekeeping_s=None)
        self.applied = dict.fromkeys(LOGS, 0)
        self.written: list[str] = []
        self.positions: dict[int, int] = {}  # the last that were seen
        self.sent: list[tuple[CommitStages, list[str]]] = []

    @initialize()
    def create(self) -> None:
        self.db.execute(CreateStream("copy", "application/json"))
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

    def kept(self, log: int, number: int) -> bool:
        """Whether the query writes this number."""
        return True

    def plan(self, driver: Driver, ahead: tuple[int, int]) -> dict[int, tuple[int, int]]:
        return {log: (driver.at[log], driver.at[log] + more) for log, more in zip(LOGS, ahead, strict=True)}

    def committed_ranges(self, planned: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
        """The ranges that the commit of this batch has; if it has none, there is nothing to commit."""
        return planned

    @rule(
        name=drivers,
        ahead=lengths,
        parts=st.integers(1, 4),
        lost=st.booleans(),
        broken=st.booleans(),
        stalled=st.sampled_from([False, False, False, True]),
    )
    def run(self, name: str, ahead: tuple[int, int], parts: int, lost: bool, broken: bool, stalled: bool) -> None:
        """A driver plans a batch, or has one from before it was restarted, computes it and commits it. `lost`: the
        answer is not seen. `broken`: the server fails in the middle of it. `stalled`: it may arrive, but later."""
        driver = self.drivers[name]
        if driver.planned is None:
            driver.planned = self.plan(driver, ahead)
        planned = driver.planned
        rows = [
            f"{log}-{number}"
            for log, (start, end) in planned.items()
            for number in range(start, end)
            if self.kept(log, number)
        ]
        ranges, refused = self.committed_ranges(planned), False
        if ranges:
            command = CommitStages(
                driver.query, driver.batch, TARGET, self.staged(rows, parts), "copy", ranges, self.strict
            )
            self.sent.append((command, rows))
            if stalled:
                return
            if broken:
                self.fail(command, rows)
            refused = not self.commit(command, rows)
        if not lost and (self.strict or not refused):
            driver.at = {log: end for log, (_, end) in planned.items()}
            driver.batch, driver.planned = driver.batch + 1, None

    def fail(self, command: CommitStages, rows: list[str]) -> None:
        """The server fails in the middle of it, if there is anything to do."""
        failpoints.arm("stages.part" if rows else "stages.fenced")
        try:
            self.db.execute(command)
        except (failpoints.Failure, Fenced):
            pass
        else:
            self.expect(command, applied=False)
        finally:
            failpoints.disarm()

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

    def commit(self, command: CommitStages, rows: list[str]) -> bool:
        """Whether it is done now, by this or before; else it was refused."""
        assert command.ranges is not None
        applied, refused = self.verdict(command)
        known = self.known()
        try:
            done = self.db.execute(command)
        except Fenced as error:
            assert refused
            stored = {str(log): self.applied[log] for log in command.ranges if log in known}
            assert error.facts == {"positions": stored}
            return False
        assert not refused and done.applied is applied
        if applied:
            assert done.rows == len(rows)
            self.written += rows
            self.applied.update({log: end for log, (_, end) in command.ranges.items()})
        return True

    @rule(data=st.data())
    def late(self, data: st.DataObject) -> None:
        """A commit arrives once more, or only now, long after it was sent; its stages may be gone."""
        if not self.sent:
            return
        command, rows = data.draw(st.sampled_from(self.sent))
        applied, _ = self.verdict(command)
        try:
            self.commit(command, rows)
        except NotFound:
            assert applied

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
        for task in sweep.TASKS:
            for command in self.db.execute(FindDueWork(task)).commands:
                self.db.execute(command)
        assert limits.STAGE_S <= 30 * 3600

    @invariant()
    def every_number_once(self) -> None:
        entries = self.db.execute(ReadStream("copy", bytes_max=10**9)).page.entries if hasattr(self, "drivers") else []
        found = msgspec.json.decode(b"[" + b",".join(entry.body for entry in entries) + b"]", type=list[str])
        assert found == self.written
        for log in LOGS:
            mine = [row for row in found if row.startswith(f"{log}-")]
            assert mine == [f"{log}-{number}" for number in range(self.applied[log]) if self.kept(log, number)]

    @invariant()
    def positions_move_forward(self) -> None:
        known = self.known()
        assert all(at >= self.positions.get(log, 0) for log, at in known.items())
        assert {**dict.fromkeys(LOGS, 0), **known} == self.applied
        assert self.positions.keys() <= known.keys()
        self.positions = known

    def teardown(self) -> None:
        self.db.close()
        logging.disable(logging.NOTSET)
        try:
            assert check_database(self.directory).findings == []
        finally:
            shutil.rmtree(self.directory)


class SiftMachine(StageMachine):
    """A query that filters, into the sink. What it left out leaves no trace in what it writes: a range begins with a
    row that was kept and ends with one, and a log of which none was kept has no range. So it may begin after the
    position. Spark stops a query that is refused: it plans nothing more unless its checkpoint is lost or put back."""

    strict = False

    def kept(self, log: int, number: int) -> bool:
        return (number * 7 + log) % 5 in (0, 1, 3)

    def plan(self, driver: Driver, ahead: tuple[int, int]) -> dict[int, tuple[int, int]]:
        """As the source does: if some was applied before, the batch ends there. A driver that is not first may not know
        of the last that was; an even batch knows nothing."""
        planned = super().plan(driver, ahead)
        known = self.known() if driver.batch % 2 else {}
        if not any(start < known.get(log, 0) for log, (start, _) in planned.items()):
            return planned
        return {log: (start, min(end, max(start, known.get(log, 0)))) for log, (start, end) in planned.items()}

    def committed_ranges(self, planned: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
        ranges = {}
        for log, (start, end) in planned.items():
            if numbers := [number for number in range(start, end) if self.kept(log, number)]:
                ranges[log] = (numbers[0], numbers[-1] + 1)
        return ranges

    def verdict(self, command: CommitStages) -> tuple[bool, bool]:
        assert command.ranges and not command.strict
        new = [start >= self.applied[log] for log, (start, _) in command.ranges.items()]
        old = [end <= self.applied[log] for log, (_, end) in command.ranges.items()]
        return all(new), not all(new) and not all(old)


TestStages = StageMachine.TestCase
TestStages.settings = settings(max_examples=examples(40), stateful_step_count=30)
TestSifted = SiftMachine.TestCase
TestSifted.settings = settings(max_examples=examples(40), stateful_step_count=40)
