"""The registry of housekeeping tasks, and how they are run: in rounds, or all at once."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from tailrace import database
from tailrace.command import Command
from tailrace.errors import Unavailable
from tailrace.housekeeping import DueWork, FindDueWork, Housekeeper, HousekeepingTask
from tailrace.metrics import Metrics
from tests.support.patience import PATIENCE_S


class Remove(Command[int], frozen=True):
    """Take one unit of work off a list; the number that is left."""

    number: int


class World:
    """Lists of work by number, searched two at a time, and the executor that works them off."""

    def __init__(self, *work: int) -> None:
        self.work = list(work)
        self.searches: list[int | None] = []
        self.ran: list[int] = []
        self.failure: Exception | None = None

    def execute(self, command: Any) -> Any:
        if isinstance(command, FindDueWork):
            return command.run(None)  # type: ignore[arg-type]
        if self.failure is not None:
            raise self.failure
        self.ran.append(command.number)
        self.work[command.number] -= 1
        return self.work[command.number]

    def find(self, reader: Any, position: int | None) -> DueWork[int]:
        self.searches.append(position)
        start = position or 0
        page = range(start, min(start + 2, len(self.work)))
        end = page.stop if page.stop < len(self.work) else None
        return DueWork([Remove(number) for number in page if self.work[number] > 0], end)

    def task(self, name: str = "test", **options: Any) -> HousekeepingTask[int]:
        return HousekeepingTask(name, self.find, **options)

    def housekeeper(self, *tasks: HousekeepingTask[Any], **options: Any) -> Housekeeper:
        return Housekeeper(tasks or (self.task(),), self.execute, Metrics(), **options)


def round_of(housekeeper: Housekeeper) -> None:
    housekeeper._round()


def test_a_sweep_does_all_that_is_due() -> None:
    world = World(1, 0, 3, 0, 0, 2)
    assert world.housekeeper().sweep() == 6
    assert world.work == [0] * 6
    assert world.searches == [None, None, 2, 2, 2, 2, 4, 4, 4], "a part with work is searched again before the next"


def test_a_command_is_repeated_until_it_is_finished() -> None:
    world = World(4, 2)
    task = world.task(finished=lambda left: left == 0)
    assert world.housekeeper(task).sweep() == 6
    assert world.ran == [0, 0, 0, 0, 1, 1]
    assert len(world.searches) == 2


def test_results_are_counted() -> None:
    world = World(2)
    metrics = Metrics()

    def count(metrics: Metrics, left: int) -> None:
        metrics.trimmed += 10 + left

    Housekeeper((world.task(count=count),), world.execute, metrics).sweep()
    assert metrics.trimmed == 21


def test_a_round_searches_one_part_and_the_next_round_goes_on() -> None:
    world = World(5, 5, 5, 5, 5)
    housekeeper = world.housekeeper()
    for _ in range(4):
        round_of(housekeeper)
    assert world.searches == [None, 2, 4, None]
    assert world.work == [3, 3, 4, 4, 4]


def test_a_round_searches_again_where_a_search_ended_at_its_limit() -> None:
    world = World(3)

    def find(reader: Any, position: None) -> DueWork[int]:
        return DueWork([Remove(0)], more=world.work[0] > 1)

    round_of(world.housekeeper(HousekeepingTask("limited", find)))
    assert world.work == [0]


def test_positions_are_kept_by_task() -> None:
    one, other = World(0, 0, 0), World(0, 0, 0, 0, 0)
    housekeeper = Housekeeper((one.task("one"), other.task("other")), one.execute, Metrics())
    for _ in range(3):
        round_of(housekeeper)
    assert one.searches == [None, 2, None]
    assert other.searches == [None, 2, 4]


def test_a_failure_does_not_keep_other_tasks_from_running(caplog: pytest.LogCaptureFixture) -> None:
    world = World(1)
    after: list[str] = []

    def broken(reader: Any, position: None) -> DueWork[int]:
        raise ZeroDivisionError

    housekeeper = world.housekeeper(
        HousekeepingTask("broken", broken), world.task(), after=(lambda: after.append("after"),)
    )
    with caplog.at_level(logging.WARNING, "tailrace.database"):
        round_of(housekeeper)
    assert (world.work, after) == ([0], ["after"])
    assert [record.message for record in caplog.records] == ["housekeeping failed"]


def test_a_round_ends_where_the_database_is_unavailable(caplog: pytest.LogCaptureFixture) -> None:
    world = World(1)
    world.failure = Unavailable("the disk is full")
    after: list[str] = []
    housekeeper = world.housekeeper(after=(lambda: after.append("after"),))
    with caplog.at_level(logging.WARNING, "tailrace.database"):
        round_of(housekeeper)
    assert after == []
    assert [record.message for record in caplog.records] == ["housekeeping waits: the disk is full"]
    world.failure = None
    round_of(housekeeper)
    assert (world.work, after) == ([0], ["after"])


def test_the_thread_runs_when_it_is_woken_and_ends_when_it_is_stopped() -> None:
    world = World(0)
    ran = threading.Event()
    housekeeper = world.housekeeper(before=(ran.set,))
    housekeeper.start(3600.0)
    assert not ran.wait(0.05)
    housekeeper.wake()
    assert ran.wait(PATIENCE_S)
    housekeeper.stop()
    assert all(thread.name != "tailrace-housekeeping" for thread in threading.enumerate())
    housekeeper.stop()


def test_a_step_that_is_repeated_ends_when_housekeeping_stops() -> None:
    world = World(1_000_000)
    holder: list[Housekeeper] = []

    def finished(left: int) -> bool:
        if left == 999_990:
            holder[0]._stopping.set()
        return False

    housekeeper = world.housekeeper(world.task(finished=finished))
    holder.append(housekeeper)
    assert housekeeper.sweep() == 10


def test_the_tasks_of_a_database_have_names_of_their_own() -> None:
    names = [task.name for task in database.TASKS]
    assert len(names) == len(set(names)) == 15
    assert names[-1] == "streams.reclaim", "it removes what the other tasks let go of"
    assert {name.partition(".")[0] for name in names} == {"tables", "topics", "jobs", "streams"}
