"""The official Durable Streams conformance suite, all of it, against the real server, the same with two and four
workers, the ASGI adapter, and three servers over PostgreSQL of which each request reaches another.

The number is exact on purpose: a suite that quietly skipped half of itself would pass too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import postgres
from tests.support.clustered import Servers
from tests.support.node import node
from tests.support.round_robin import RoundRobin
from tests.support.server import ServerProcess, check

HERE = Path(__file__).resolve().parent
TESTS = 338

pytestmark = [pytest.mark.conformance, pytest.mark.slow, pytest.mark.timeout(1200)]


def run_suite(url: str, report: Path) -> str:
    """Run the suite against a URL and return its count; fail with the names and reasons of what did not pass."""
    done = node(
        HERE,
        ["node_modules/vitest/vitest.mjs", "run", "--reporter=dot", "--reporter=json", f"--outputFile.json={report}"],
        env={"TAILRACE_URL": url},
        timeout_s=1100,
    )
    assert report.exists(), f"the suite made no report:\n{done.stdout}\n{done.stderr}"
    result = json.loads(report.read_text())
    failures = [
        f"{test['status']}: {test['fullName']}\n    " + "\n".join(test.get("failureMessages", []))[:600]
        for file in result["testResults"]
        for test in file["assertionResults"]
        if test["status"] != "passed"
    ]
    passed, failed = result["numPassedTests"], result["numFailedTests"]
    skipped = result["numPendingTests"] + result["numTodoTests"]
    count = f"{passed} passed, {failed} failed, {skipped} skipped"
    assert (passed, failed, skipped) == (TESTS, 0, 0), "\n".join([count, *failures, "" if failures else done.stdout])
    assert done.returncode == 0, done.stdout + done.stderr
    return count


WORKERS = {"own transport": "1", "two workers": "2", "four workers": "4"}


@pytest.mark.parametrize("how", [*WORKERS, "uvicorn"])
def test_every_conformance_test_passes(
    how: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    data = tmp_path / "data"
    if how == "uvicorn":
        server = ServerProcess.uvicorn(data)
    else:
        server = ServerProcess.tailrace(data, "--workers", WORKERS[how])
    with server.start():
        try:
            record_property("conformance", f"{how}: {run_suite(server.url, tmp_path / 'report.json')}")
        except AssertionError:
            print(f"the server printed:\n{server.output[-4000:]}")
            raise
    checked = check(data)
    assert checked.returncode == 0, f"tailrace check:\n{checked.stdout}{checked.stderr}"


def test_every_conformance_test_passes_on_three_servers(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    below = postgres.shared_server()
    with Servers(below, tmp_path) as servers:
        with RoundRobin([server.url for server in servers.all]) as balancer:
            try:
                count = run_suite(balancer.url, tmp_path / "report.json")
            except AssertionError:
                for server in servers.all:
                    print(f"a server printed:\n{server.output[-4000:]}")
                raise
        record_property("conformance", f"three servers over PostgreSQL: {count}")
        assert min(balancer.requests.values()) > TESTS, balancer.requests
    checked = check(tmp_path / "data", "--database", servers.url)
    assert checked.returncode == 0, f"tailrace check:\n{checked.stdout}{checked.stderr}"
