"""Fixtures of all tests, and how hypothesis runs: the same examples every time in CI, new ones on a desk."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.balanced import COUNT, Balanced, balanced
from tests.support.server import ServerProcess, check

SERVER_OPTIONS = os.environ.get("TAILRACE_TESTED_OPTIONS", "").split()  # of `tailrace serve`, for the fixture `server`

settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("desk", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "deep", deadline=None, max_examples=2_000, stateful_step_count=100, suppress_health_check=list(HealthCheck)
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "desk"))

# A shell starts what runs in the background with Ctrl-C ignored, and every child would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Where a test's database goes; not there yet."""
    return tmp_path / "data"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess | Balanced]:
    """A real server shared by the tests of one module. It must end in order and leave a sound database."""
    directory = tmp_path_factory.mktemp("server")
    if COUNT > 1:
        with balanced(directory) as several:
            yield several
        return
    data = directory / "data"
    process = ServerProcess.tailrace(data, *SERVER_OPTIONS).start()
    try:
        yield process
    finally:
        status = process.terminate()
    assert status == 0, f"the server ended with {status}:\n{process.output}"
    checked = check(data)
    assert checked.returncode == 0, f"tailrace check:\n{checked.stdout}{checked.stderr}"


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Commands that run in the tests' own process set up logging; the next test must not notice."""
    logger = logging.getLogger("tailrace")
    before = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before
    logger.setLevel(before[1])  # also forgets what loggers below have cached
