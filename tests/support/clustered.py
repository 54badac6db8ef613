"""Servers of one cluster over a PostgreSQL, as processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from tests.support.patience import PATIENCE_S
from tests.support.postgres import PostgresServer
from tests.support.server import ServerProcess

TEXT = {"Content-Type": "text/plain"}


def wait_until(true: Callable[[], bool], what: str = "it did not happen") -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < until_s, what
        time.sleep(0.02)


class Servers:
    """Some servers of a cluster. Leaving it ends all of them."""

    def __init__(self, below: PostgresServer, directory: Path, count: int = 3, token: str | None = None) -> None:
        """`token`: of the servers, which are not in dev mode then."""
        self.below = below
        self.token = token
        self.url = below.create()
        self.directory = directory
        self.secret = directory / "secret"
        self.secret.write_text("of-the-tests-and-of-nothing-else-at-all\n")
        with ThreadPoolExecutor(count) as threads:
            self.all = list(threads.map(lambda number: self.added(), range(count)))
        self.wait_ready()

    def added(self, *options: str, secret: Path | None = None) -> ServerProcess:
        where = ["--cluster-listen", "127.0.0.1:0", "--cluster-secret-file", str(secret or self.secret)]
        env = {} if self.token is None else {"TAILRACE_TOKEN": self.token}
        made = ServerProcess.tailrace(self.directory / "data", "--database", self.url, *where, *options, env=env)
        if self.token is not None:
            made.command.remove("--dev")
        return made.start()

    def wait_ready(self, *servers: ServerProcess) -> None:
        wait_until(lambda: all(map(ready, servers or self.all)), "a server does not become ready")

    def status(self, server: ServerProcess) -> dict[str, Any]:
        bearer = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        found: dict[str, Any] = httpx.get(f"{server.url}/v1/cluster", timeout=PATIENCE_S, headers=bearer).json()
        return found

    def leader(self) -> ServerProcess:
        """The one that leads, as soon as there is one that the others know."""
        found: list[ServerProcess] = []

        def look() -> bool:
            running = [server for server in self.all if server.returncode is None]
            known = {self.status(server)["leader"] for server in running if ready(server)}
            found[:] = [server for server in running if known == {server.url}]
            return bool(found)

        wait_until(look, "no server leads")
        return found[0]

    def followers(self) -> list[ServerProcess]:
        leader = self.leader()
        return [server for server in self.all if server is not leader and server.returncode is None]

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.all:
            if server.returncode is None:
                server.terminate()


def ready(server: ServerProcess) -> bool:
    try:
        return httpx.get(f"{server.url}/readyz", timeout=PATIENCE_S).status_code == 200
    except httpx.HTTPError:
        return False
