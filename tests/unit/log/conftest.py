from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar
from unittest import mock

import pytest

from tailrace import limits
from tailrace.log import sealing, segments
from tailrace.log.entry import GARBAGE, LOGS, Log
from tailrace.storage.engine import Tx
from tailrace.storage.sqlite import SqliteEngine

T = TypeVar("T")


class Bench:
    """Does things to logs, each in a committed transaction of its own, and looks at what is committed."""

    def __init__(self, engine: SqliteEngine) -> None:
        self.engine = engine
        self.now_ms = 1_700_000_000_000
        self.notices: list[tuple[int, object]] = []

    def do(self, work: Callable[[Tx], T]) -> T:
        tx = self.engine.begin(self.now_ms)
        result = work(tx)
        tx.keep()
        tx.flush()
        tx.commit()
        self.notices += [(notice.log, notice.item) for notice in tx.notices]
        return result

    def seal(self, rows: int = 1_000, *, steps: int | None = None) -> int:
        """Seal staged entries, up to so many rows in a step, until none are left or for some steps; the number of
        steps."""
        done = 0
        with mock.patch.object(limits, "STAGED_ROWS", 1), mock.patch.object(limits, "SEAL_ROWS", rows):
            while steps is None or done < steps:
                with self.engine.reader() as reader:
                    found = sealing.find(reader)
                if found is None:
                    break
                assert self.do(partial(sealing.seal, found=found))
                done += 1
        return done

    def reopen(self) -> None:
        self.engine.close()
        self.engine = SqliteEngine(self.engine.directory)

    def log(self, number: int) -> Log | None:
        with self.engine.reader() as reader:
            return reader.get(LOGS, number)

    def positions(self, number: int) -> list[int]:
        """Where a log's own entries are, in storage."""
        with self.engine.reader() as reader:
            return [entry.position for entry in segments.scan(reader, number)]

    def garbage(self) -> list[int]:
        with self.engine.reader() as reader:
            return [row.log for row in reader.scan(GARBAGE)]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(SqliteEngine(tmp_path / "data"))
    yield found
    found.engine.close()
