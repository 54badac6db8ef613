"""Sealing of staged entries, when a test wants it and in steps of its choice."""

from __future__ import annotations

from unittest import mock

from tailrace import limits
from tailrace.database import Database
from tailrace.log import sealing
from tailrace.streams.sweep import SealEntries


def seal(db: Database, rows: int = 1_000, *, steps: int | None = None) -> int:
    """Seal staged entries, up to so many rows in a step, until none are left or for some steps; the number of steps."""
    done = 0
    with mock.patch.object(limits, "STAGED_ROWS", 1), mock.patch.object(limits, "SEAL_ROWS", rows):
        while steps is None or done < steps:
            with db._engine.reader() as reader:
                found = sealing.find(reader)
            if found is None:
                break
            assert db.execute(SealEntries(found))
            done += 1
    return done
