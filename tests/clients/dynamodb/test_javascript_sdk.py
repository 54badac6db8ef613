"""The AWS SDK for JavaScript v3, unmodified: runs sdk.test.mjs under Node against the real server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.node import node
from tests.support.server import ServerProcess

CLIENTS = Path(__file__).resolve().parents[1]
TESTS = 13

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]


def test_the_javascript_sdk_works(server: ServerProcess) -> None:
    done = node(
        CLIENTS,
        ["--test", "--test-reporter=tap", "dynamodb/sdk.test.mjs"],
        # The environment of the tests must not matter: no profile, no region, no endpoint.
        env={
            "TAILRACE_URL": server.url,
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            "AWS_EC2_METADATA_DISABLED": "true",
        },
        timeout_s=500,
    )
    counts = {
        name: int(count) for name, count in re.findall(r"^# (pass|fail|cancelled|skipped) (\d+)$", done.stdout, re.M)
    }
    assert done.returncode == 0, done.stdout + done.stderr
    assert counts == {"pass": TESTS, "fail": 0, "cancelled": 0, "skipped": 0}, done.stdout
