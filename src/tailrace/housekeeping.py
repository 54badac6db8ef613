"""Background work of an open database: the registry of tasks, and the thread that runs them.

Each package declares its tasks in one tuple: how due work is found, and the commands that do it. A command is one small
step, so that other writers wait milliseconds at most. The lists of work are in the database and each step checks again
before it acts, so housekeeping may stop at any point and continue in the next round, or in the next process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from tailrace.command import Command, Query
from tailrace.errors import Unavailable
from tailrace.metrics import Metrics
from tailrace.storage.engine import Reader

T = TypeVar("T")
logger = logging.getLogger("tailrace.database")


class DueWork(msgspec.Struct, Generic[T], frozen=True):
    """Commands that are due, found in a part of the committed state."""

    commands: Sequence[Command[T]]
    position: Any = None  # where the next search goes on; None: at the beginning
    more: bool = False  # the search ended at its limit: search again in this round


class HousekeepingTask(msgspec.Struct, Generic[T], frozen=True):
    """One kind of background work. `find_due` gets the position at which the last search ended, None at first."""

    name: str
    find_due: Callable[[Reader, Any], DueWork[T]]
    finished: Callable[[T], bool] = lambda result: True  # False: run the command again, there is more of the same
    count: Callable[[Metrics, T], None] = lambda metrics, result: None


class FindDueWork(Query[DueWork[T]], Generic[T], frozen=True):
    """Work that is due for a task, searched from a position on."""

    task: HousekeepingTask[T]
    position: Any = None

    def run(self, reader: Reader) -> DueWork[T]:
        return self.task.find_due(reader, self.position)


class Housekeeper:
    """Runs tasks in their order: in rounds, on a thread of its own, or all at once.

    `before` and `after` are what else a round does, before and after the tasks."""

    def __init__(
        self,
        tasks: Sequence[HousekeepingTask[Any]],
        execute: Callable[[Any], Any],
        metrics: Metrics,
        *,
        before: Sequence[Callable[[], None]] = (),
        after: Sequence[Callable[[], None]] = (),
    ) -> None:
        self._tasks = tasks
        self._execute = execute
        self._metrics = metrics
        self._before = before
        self._after = after
        self._positions: dict[str, Any] = {}  # where the last search of each task ended
        self._stopping = threading.Event()
        self._wakeup = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, interval_s: float) -> None:
        """Run a round every `interval_s`, and after each `wake`."""
        self._thread = threading.Thread(target=self._run, args=(interval_s,), name="tailrace-housekeeping", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Start the next round now: a commit has left work."""
        self._wakeup.set()

    def stop(self) -> None:
        """End after the current step, for good."""
        self._stopping.set()
        self._wakeup.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def sweep(self) -> int:
        """Do all work that is due; the number of steps."""
        return sum(self._sweep(task) for task in self._tasks)

    def _sweep(self, task: HousekeepingTask[Any]) -> int:
        steps, position = 0, None
        while not self._stopping.is_set():
            due = self._execute(FindDueWork(task, position))
            steps += self._do(task, due)
            if due.commands:
                continue  # the same part of the state may have more
            position = due.position
            if position is None:
                break
        return steps

    def _run(self, interval_s: float) -> None:
        while True:
            self._wakeup.wait(interval_s)
            self._wakeup.clear()  # before the search: work that is left during this round wakes the next one
            if self._stopping.is_set():
                return
            self._round()

    def _round(self) -> None:
        tasks = [lambda task=task: self._advance(task) for task in self._tasks]
        for run in (*self._before, *tasks, *self._after):
            try:
                run()
            except Unavailable as error:
                # Nothing is lost: the lists of work are in the database, and the next round searches again.
                logger.warning("housekeeping waits: %s", error)
                return
            except Exception:
                logger.exception("housekeeping failed")

    def _advance(self, task: HousekeepingTask[Any]) -> None:
        more = True
        while more and not self._stopping.is_set():
            due = self._execute(FindDueWork(task, self._positions.get(task.name)))
            self._do(task, due)
            self._positions[task.name], more = due.position, due.more

    def _do(self, task: HousekeepingTask[T], due: DueWork[T]) -> int:
        steps = 0
        for command in due.commands:
            finished = False
            while not finished and not (steps and self._stopping.is_set()):
                result = self._execute(command)
                task.count(self._metrics, result)
                finished = task.finished(result)
                steps += 1
        return steps
