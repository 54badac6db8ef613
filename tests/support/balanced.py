"""Three servers over PostgreSQL behind a balancer that sends every request to another one, where a test expects one.

`TAILRACE_TESTED_SERVERS=3` lets the fixture `server` be this (`make several`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import postgres
from tests.support.clustered import Servers
from tests.support.round_robin import RoundRobin
from tests.support.server import check

COUNT = int(os.environ.get("TAILRACE_TESTED_SERVERS", "1"))


class Balanced:
    """What tests use of a server."""

    def __init__(self, servers: Servers, balancer: RoundRobin) -> None:
        self._servers = servers
        self.url = balancer.url
        self.port = int(balancer.url.rpartition(":")[2])

    @property
    def output(self) -> str:
        return "".join(server.output for server in self._servers.all)


@contextmanager
def balanced(directory: Path) -> Iterator[Balanced]:
    with Servers(postgres.shared_server(), directory, COUNT) as servers:
        with RoundRobin([server.url for server in servers.all]) as balancer:
            yield Balanced(servers, balancer)
        assert len(balancer.requests) == COUNT, "not every server was asked"
    checked = check(directory / "data", "--database", servers.url)
    assert checked.returncode == 0, f"tailrace check:\n{checked.stdout}{checked.stderr}"
