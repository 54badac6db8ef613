"""A process that is killed while it seals entries: none is lost, and none is there twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

import tailrace
from tailrace.check import check_database
from tailrace.storage.sqlite import FILE
from tailrace.streams.queries import ReadStream
from tests.crash.sealing_child import STREAMS, stream_of
from tests.support.sealed import seal
from tests.support.server import ROOT

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]


def run_until_killed(data: Path, first: int, failpoint: str) -> int:
    """The last number that was durable."""
    command = [sys.executable, "-m", "tests.crash.sealing_child", str(data), str(first)]
    environment = {**os.environ, "TAILRACE_FAILPOINTS": failpoint}
    child = subprocess.run(command, stdout=subprocess.PIPE, cwd=ROOT, env=environment, timeout=250, check=False)
    assert child.returncode == -signal.SIGKILL
    return max(map(int, child.stdout.split()), default=first - 1)


def assert_kept(data: Path, durable: int) -> int:
    """Every durable number is in its stream once, in order, and perhaps the next one; the last that is there."""
    assert check_database(data).findings == []
    last = durable
    with tailrace.open(data, housekeeping_s=None) as db:
        for sealed in (False, True):
            for path in STREAMS:
                page = db.execute(ReadStream(path, bytes_max=10**9)).page
                found = [int(entry.body[:-1]) for entry in page.entries]
                expected = [number for number in range(durable + 2) if stream_of(number) == path]
                if found[-1] != expected[-1]:
                    expected = [number for number in expected if number <= durable]
                assert found == (expected[-len(found) :] if path == "retained" else expected)
                last = max(last, *found)
            if not sealed:
                seal(db, 7)
    assert check_database(data).findings == []
    return last


@pytest.mark.parametrize("failpoint", ["seal.step", "seal.moved"])
def test_a_kill_while_entries_are_sealed_loses_nothing(failpoint: str, data_dir: Path) -> None:
    last = -1
    for at in (1, 3, 2):
        last = assert_kept(data_dir, run_until_killed(data_dir, last + 1, f"{failpoint}=kill@{at}"))
    connection = apsw.Connection(str(data_dir / FILE), flags=apsw.SQLITE_OPEN_READONLY)
    ((rows,),) = connection.execute("SELECT count(*) FROM entries").fetchall()
    connection.close()
    assert 0 < rows < last
