"""Materialized views after a crash: the rows of a batch, their partial aggregates and the view's positions are there
together, or none of them is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tailrace
from tailrace import failpoints
from tailrace.check import check_database
from tailrace.jobs.view import DescribeView
from tests.support import views

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

NAME = "app.totals"
PROGRAM = f"""
import sys

import tailrace
from tests.support import views

with tailrace.open(sys.argv[1], housekeeping_s=None) as db:
    views.run(db, "CREATE TABLE orders (id TEXT PRIMARY KEY, status TEXT) WITH (stream = true)")
    views.run(db, "INSERT INTO orders VALUES ('1', 'new'), ('2', 'paid')")
    views.run(db, "CREATE MATERIALIZED VIEW {NAME} AS SELECT status, count(*) AS n FROM orders GROUP BY status")
    views.plan(db, "{NAME}", ("status", "string"), ("n", "bigint"), partials="n bigint")
    views.fill(db, "{NAME}")
    views.run(db, "INSERT INTO orders VALUES ('3', 'new'), ('4', 'sent')")
    views.run(db, "DELETE FROM orders WHERE id = '2'")
    views.advance(db, "{NAME}")
"""


@pytest.mark.parametrize("point", [name for name in failpoints.NAMES if name.startswith("views.")])
def test_a_kill_within_a_batch_leaves_the_view_as_it_was(data_dir: Path, point: str) -> None:
    environment = {**os.environ, "TAILRACE_FAILPOINTS": f"{point}=kill@1"}
    root = Path(__file__).parents[2]
    child = subprocess.run([sys.executable, "-c", PROGRAM, str(data_dir)], env=environment, cwd=root, check=False)
    assert child.returncode == -signal.SIGKILL
    assert check_database(data_dir).findings == []
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        (source,) = db.execute(DescribeView(NAME)).sources
        assert source.position is not None and source.position < source.next, "the batch is still to come"
        rows = views.run(db, f"SELECT status, n FROM {NAME} ORDER BY status")
        assert rows == [{"status": "new", "n": 1}, {"status": "paid", "n": 1}]
        assert views.partials(db, NAME) == ["1", "1"], "partial aggregates are those of the rows"
        assert views.advance(db, NAME) is not None
        assert views.advance(db, NAME) is None, "its positions have moved"
        views.check(db, NAME)
    assert check_database(data_dir).findings == []
