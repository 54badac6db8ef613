"""Each kind of fault once, with clients at work: the short form of `make cluster-faults`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.run import Run
from tests.support import postgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SEED = 15


def test_no_fault_violates_anything(tmp_path: Path) -> None:
    if postgres.programs() is None:
        pytest.skip(postgres.NOT_TESTED)
    run = Run(tmp_path, SEED)
    try:
        possible = run.possible()
        run.start()
        for fault in run.chance.sample(possible, len(possible)):
            run.inflict(fault)
        problems = run.finish()
    finally:
        run.close()
    print(run.report())
    assert not problems, "\n".join(problems)
    assert set(run.done) == {fault.name for fault in possible}
