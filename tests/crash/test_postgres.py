"""Two servers over one PostgreSQL, under appends, while servers, sessions and PostgreSQL itself are killed.

Every acknowledged append is there exactly once, in order; one that was refused with "nothing was written" is not there;
one whose outcome is unknown is there at most once. A leader that was frozen and replaced writes nothing when it wakes.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support import postgres
from tests.support.patience import PATIENCE_S
from tests.support.postgres import PostgresServer
from tests.support.server import ServerProcess, check
from tests.support.soak import rounds

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(600)]

REFUSED = ("DATABASE_LOST", "DATABASE_BUSY", "NOT_LEADER")  # nothing was written, and nothing will be


class Pair:
    """Two servers, of which one leads, and the PostgreSQL below them."""

    def __init__(self, below: PostgresServer, directory: Path) -> None:
        self.below = below
        self.url = below.create()
        self.directory = directory
        self.servers = [self.started(), self.started()]

    def started(self) -> ServerProcess:
        return ServerProcess.tailrace(self.directory, "--database", self.url).start()

    def leads(self, server: ServerProcess) -> bool:
        try:
            return httpx.get(f"{server.url}/readyz", timeout=PATIENCE_S).status_code == 200
        except httpx.HTTPError:
            return False

    def leader(self) -> ServerProcess:
        """The server that leads, as soon as there is one."""
        found: list[ServerProcess] = []

        def look() -> bool:
            found[:] = [server for server in self.servers if self.leads(server)]
            return bool(found)

        wait_until(look)
        return found[0]

    def other(self, server: ServerProcess) -> ServerProcess:
        return next(each for each in self.servers if each is not server)

    def close(self) -> None:
        for server in self.servers:
            server.terminate()


def wait_until(true: Callable[[], bool]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < until_s, "it did not happen"
        time.sleep(0.02)


class Appender(threading.Thread):
    """Appends to a stream of its own, one after the other, and notes what became of each."""

    def __init__(self, pair: Pair, name: str, *, idempotent: bool) -> None:
        super().__init__(name=name, daemon=True)
        self._pair = pair
        self._idempotent = idempotent
        self._connections: dict[str, http.client.HTTPConnection] = {}
        self._at = 0
        self.path = f"/v1/stream/{name}"
        self.outcomes: dict[str, str] = {}  # of each append: acknowledged, refused or unknown
        self.acknowledged = 0
        self.ending = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            number = 0
            while not self.ending.is_set():
                text = f"{number};"
                outcome = self._append(number, text)
                if self._idempotent and outcome != "acknowledged":
                    continue  # the same one again, until it is acknowledged
                self.outcomes[text] = outcome
                self.acknowledged += outcome == "acknowledged"
                number += 1
        except BaseException as error:
            self.failure = error

    def _append(self, number: int, text: str) -> str:
        headers = {"Content-Type": "text/plain"}
        if self._idempotent:
            headers |= {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": str(number)}
        try:
            status, body = self.ask("POST", headers, text)
        except (OSError, http.client.HTTPException):
            return "unknown"
        if status in (200, 204):
            return "acknowledged"
        assert status == 503, (status, body)
        return "refused" if json.loads(body)["error"]["code"] in REFUSED else "unknown"

    def ask(self, method: str, headers: dict[str, str], body: str = "", query: str = "") -> tuple[int, str]:
        servers = self._pair.servers
        url = servers[self._at % len(servers)].url
        connection = self._connections.get(url)
        if connection is None:
            connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_S)
            self._connections[url] = connection
        try:
            connection.request(method, self.path + query, body or None, headers)
            answer = connection.getresponse()
            found = answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException):
            connection.close()
            self._at += 1
            time.sleep(0.01)
            raise
        if found[0] == 503:
            self._at += 1
            time.sleep(0.01)
        return found

    def verify(self, url: str) -> None:
        assert self.failure is None, repr(self.failure)
        found = httpx.get(f"{url}{self.path}?offset=-1", timeout=PATIENCE_S).text.split(";")[:-1]
        numbers = [int(text) for text in found]
        assert numbers == sorted(set(numbers)), f"{self.name}: doubled, or out of order"
        for text, outcome in self.outcomes.items():
            there = text[:-1] in found
            if outcome == "acknowledged":
                assert there, f"{self.name}: {text} was acknowledged, and is lost"
            elif outcome == "refused":
                assert not there, f"{self.name}: {text} was refused, and is there"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    if postgres.programs() is None:
        pytest.skip(postgres.NOT_TESTED)
    below = PostgresServer(durable=True)
    try:
        made = Pair(below, tmp_path / "data")
        yield made
        made.close()
    finally:
        below.remove()


def kill(pair: Pair) -> None:
    leader = pair.leader()
    leader.kill()
    pair.servers[pair.servers.index(leader)] = pair.started()


def end_session(pair: Pair) -> None:
    pair.below.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'tailrace leader %'"
    )


def restart(mode: str) -> Callable[[Pair], None]:
    def again(pair: Pair) -> None:
        pair.below.stop(mode)
        pair.below.start()

    again.__name__ = f"restart_{mode}"
    return again


def freeze(pair: Pair) -> None:
    """Longer than the lease, until the other one leads."""
    leader = pair.leader()
    os.kill(leader.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: pair.leads(pair.other(leader)))
    finally:
        os.kill(leader.pid, signal.SIGCONT)
    wait_until(lambda: httpx.get(f"{leader.url}/readyz", timeout=PATIENCE_S).json()["status"] == "standby")


FAULTS = (kill, end_session, restart("fast"), freeze, restart("immediate"), kill, end_session)


def test_no_acknowledged_append_is_lost_or_doubled(pair: Pair) -> None:
    appenders = [Appender(pair, f"s{number}", idempotent=number == 2) for number in range(3)]
    leader = pair.leader()
    for appender in appenders:
        created = httpx.put(f"{leader.url}{appender.path}", headers={"Content-Type": "text/plain"})
        assert created.status_code == 201, created.text
        appender.start()
    try:
        for fault in FAULTS * rounds(1):
            progress(appenders)
            fault(pair)
        progress(appenders)
    finally:
        for appender in appenders:
            appender.ending.set()
        for appender in appenders:
            appender.join(PATIENCE_S)
    url = pair.leader().url
    for appender in appenders:
        appender.verify(url)
    checked = check(pair.directory, "--database", pair.url)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def progress(appenders: list[Appender]) -> None:
    """Wait until all of them have been acknowledged a few more times."""
    before = [appender.acknowledged for appender in appenders]

    def moved() -> bool:
        for appender in appenders:
            assert appender.failure is None, repr(appender.failure)
        return all(now.acknowledged >= was + 20 for now, was in zip(appenders, before, strict=True))

    wait_until(moved)
