"""npm's @durable-streams/y-durable-streams, unmodified: runs yjs.test.mjs under Node against the real server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.node import node
from tests.support.server import ServerProcess

HERE = Path(__file__).resolve().parent
TESTS = 11

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]


def test_the_official_yjs_provider_works_through_compactions(server: ServerProcess) -> None:
    done = node(
        HERE,
        ["--test", "--test-reporter=tap", "yjs.test.mjs"],
        env={"TAILRACE_URL": server.url},
        timeout_s=500,
    )
    counts = {
        name: int(count) for name, count in re.findall(r"^# (pass|fail|cancelled|skipped) (\d+)$", done.stdout, re.M)
    }
    assert done.returncode == 0, done.stdout + done.stderr
    assert counts == {"pass": TESTS, "fail": 0, "cancelled": 0, "skipped": 0}, done.stdout
