"""One browser and one filled server for the tests of the console."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.demo import Shop
from tests.support.chromium import Chromium, chromium, executable
from tests.support.server import ServerProcess


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    if executable() is None:
        pytest.skip("Chromium is not installed; tools/ensure-chromium installs it where it can")
    with chromium(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(scope="module")
def shop(server: ServerProcess) -> Iterator[Shop]:
    """The module's server, with data in it."""
    shop = Shop(server.url)
    shop.fill()
    yield shop
    shop.close()


@pytest.fixture
def console(server: ServerProcess) -> str:
    return f"{server.url}/console"


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, which looks for what keeps people from using a page."""
    path = Path(__file__).parents[1] / "clients" / "node_modules" / "axe-core" / "axe.min.js"
    assert path.exists(), f"{path} is missing; run `make node-modules`"
    return path.read_text(encoding="utf-8")
