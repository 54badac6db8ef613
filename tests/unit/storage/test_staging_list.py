"""The list of staged rows in memory stays short, also where rows are deleted and never moved."""

from __future__ import annotations

from pathlib import Path

from tailrace import limits
from tailrace.log.entry import Segment
from tailrace.log.segments import SEGMENTS
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
