"""Three servers over one database, with a proxy of ours on every way to PostgreSQL, and before each bus."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import sys
from pathlib import Path
from typing import Final

import httpx

from tests.faults.databases import Databases, wait_until
from tests.support.proxy import Proxy
from tests.support.server import ServerProcess

SKEWS_S: Final = (0, 180, -240)  # of the servers' clocks
READY_S: Final = 60.0


class OneServer:
    """One of the servers, through all its lives: its address stays the same."""

    def __init__(self, cluster: Cluster, number: int, skew_s: int) -> None:
        self._cluster = cluster
        self.number = number
        self.skew_s = skew_s
        self.to_primary = Proxy(cluster.databases.primary.socket)
        standby = cluster.databases.standby
        self.to_standby = None if standby is None else Proxy(standby.socket)
        self.bus = Proxy(("127.0.0.1", 0))  # in front of its bus, whose port is known when it has started
        self._bus_port = free_port()
        self.bus.target = ("127.0.0.1", self._bus_port)
        self._port = free_port()
        self.outputs: list[str] = []
        self.process = self.started()

    @property
    def databases(self) -> list[Proxy]:
        return [proxy for proxy in (self.to_primary, self.to_standby) if proxy is not None]

    @property
    def database(self) -> str:
        hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in self.databases)
        return f"postgresql://postgres@{hosts}/tailrace?sslmode=disable&connect_timeout=2"

    def started(self) -> ServerProcess:
        options = ["--database", self.database, "--cluster-listen", f"127.0.0.1:{self._bus_port}"]
        options += ["--cluster-advertise", f"127.0.0.1:{self.bus.port}"]
        options += ["--cluster-secret-file", str(self._cluster.secret)]
        serve = ["serve", "--dev", "--host", "127.0.0.1", "--port", str(self._port)]
        data = self._cluster.directory / f"server{self.number}"
        serve += ["--data", str(data), "--long-poll-timeout", "3", *options]
        command = [sys.executable, "-m", "tests.faults.skewed_server", str(self.skew_s), *serve]
        env = {"TAILRACE_SECRET_KEY": self._cluster.key}
        self.process = ServerProcess(command, env=env).start()
        return self.process

    @property
    def url(self) -> str:
        return self.process.url

    @property
    def ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    def kill(self) -> None:
        self.process.kill()
        self.outputs.append(self.process.output)

    def stop(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def close(self) -> None:
        self.process.terminate()
        self.outputs.append(self.process.output)
        for proxy in (*self.databases, self.bus):
            proxy.close()


class Cluster:
    """The servers, and the PostgreSQL below them."""

    def __init__(self, directory: Path, *, standby: bool, servers: int = 3) -> None:
        self.directory = directory
        self.key = secrets.token_hex(32)
        self.secret = directory / "cluster.secret"
        self.secret.write_text(secrets.token_hex(32) + "\n")
        self.secret.chmod(0o600)
        self.databases = Databases(standby=standby)
        self.servers: list[OneServer] = []
        for number in range(servers):
            self.servers.append(OneServer(self, number, SKEWS_S[number % len(SKEWS_S)]))
        self.until_ready()

    def until_ready(self) -> None:
        wait_until(lambda: all(server.ready for server in self.servers), "not all servers are ready", READY_S)

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]

    def leader(self) -> OneServer:
        """The server that leads, as soon as there is one: as the database knows it."""
        found: list[OneServer] = []

        def look() -> bool:
            rows = self.databases.primary.execute(
                "SELECT address FROM tailrace.leader WHERE renewed + ttl > clock_timestamp()", "tailrace"
            )
            addresses = {row[0] for row in rows}
            found[:] = [server for server in self.servers if server.url in addresses]
            return bool(found)

        wait_until(look, "no server leads", READY_S)
        return found[0]

    def followers(self) -> list[OneServer]:
        leader = self.leader()
        return [server for server in self.servers if server is not leader]

    def epoch(self) -> int:
        (row,) = self.databases.primary.execute("SELECT epoch FROM tailrace.leader", "tailrace")
        return int(row[0])

    def aim(self) -> None:
        """Point all proxies at the databases that there are now."""
        primary, standby = self.databases.primary, self.databases.standby
        for server in self.servers:
            assert server.to_standby is not None
            server.to_primary.target = primary.socket
            server.to_standby.target = primary.socket if standby is None else standby.socket

    def close(self) -> None:
        for server in self.servers:
            with contextlib.suppress(AssertionError):
                server.close()
        self.databases.close()


def free_port() -> int:
    """A port that was free a moment ago. A server that is killed comes back on it."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port
