"""The list of staged rows in memory: it stays short where rows are deleted and never moved, and knows every row that a
reader sees, also after a commit that was interrupted or has failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace import limits
from tailrace.errors import Unavailable
from tailrace.log.entry import Segment
from tailrace.log.segments import SEGMENTS
from tailrace.storage.engine import Tx
from tailrace.storage.sqlite import SqliteEngine

ROWS = 1_000  # of a commit


def test_rows_that_are_deleted_before_they_are_moved_leave_the_list(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path)
    longest = 0
    for number in range(3 * limits.STAGED_LISTED_ROWS // ROWS):
        tx = engine.begin(0)
        for log in range(ROWS):
            if number:
                assert tx.remove_range(SEGMENTS, log, limit=2) == 1
            tx.add(SEGMENTS, Segment(log, number, number + 1, 0, b"x"))
        tx.keep()
        tx.flush()
        tx.commit()
        (listed,) = engine.all_staged()
        longest = max(longest, len(listed))
    assert ROWS <= len(listed) <= longest <= limits.STAGED_LISTED_ROWS + ROWS
    with engine.reader() as reader:
        assert [(row.log, row.position) for row in reader.scan(SEGMENTS)] == [(log, number) for log in range(ROWS)]
    engine.close()


def begun(engine: SqliteEngine, *places: tuple[int, int], size: int = 1) -> Any:
    """A transaction that has added a row at each (log, position)."""
    tx = engine.begin(0)
    for log, position in places:
        tx.add(SEGMENTS, Segment(log, position, position + 1, 0, b"x" * size))
    tx.keep()
    tx.flush()
    return tx


def places(view: Any) -> list[tuple[int, int]]:
    return [(row.log, row.position) for row in view.scan(SEGMENTS)]


def test_rows_of_a_commit_that_was_interrupted_when_it_was_durable_stay_listed(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path)
    begun(engine, (1, 0)).commit()
    tx = begun(engine, (1, 1))
    execute = tx._execute

    def interrupted(statement: str, *bound: Any) -> Any:
        found = execute(statement, *bound)
        if statement == "COMMIT":
            raise KeyboardInterrupt
        return found

    tx._execute = interrupted
    with pytest.raises(KeyboardInterrupt):
        tx.commit()
    assert tx.ended()
    begun(engine, (1, 2)).rollback()
    with engine.reader() as reader:
        assert places(reader) == [(1, 0), (1, 1)]
    engine.close()


def test_a_commit_that_fails_leaves_older_views_as_they_were(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path)
    begun(engine, (1, 0), (2, 0)).commit()
    with engine.reader() as old:
        assert places(old) == [(1, 0), (2, 0)]
        tx: Tx = engine.begin(0)
        tx.remove_range(SEGMENTS, 2, limit=1)
        tx.keep()
        tx.flush()
        tx.commit()
        ((pages,),) = engine.writer.execute("PRAGMA page_count").fetchall()
        engine.writer.execute(f"PRAGMA max_page_count = {pages}").fetchall()
        tx = engine.begin(0)
        for log in range(3, 103):
            tx.add(SEGMENTS, Segment(log, 0, 1, 0, b"x" * 4000))
        tx.keep()
        with pytest.raises(Unavailable):
            tx.flush()
            tx.commit()
        tx.rollback()
        assert places(old) == [(1, 0), (2, 0)]
    with engine.reader() as reader:
        assert places(reader) == [(1, 0)]
    engine.close()
