"""A server with several processes, some of which are killed under load: nothing acknowledged is lost or doubled.

Plain appends are the hard case: no request is ever repeated by the client, so a worker that sends a command again after
its commit would double an entry, and one that drops it would lose a request that should only have waited.
"""

from __future__ import annotations

import http.client
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.crash.load import TEXT, Connection, Lost
from tests.support.patience import PATIENCE_S
from tests.support.server import ServerProcess, check

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(600)]
UP = re.compile(r"(the writer|worker \d+) \(process (\d+)\) is up")
ACKED_BETWEEN = 40  # requests, between two kills


class Appender(threading.Thread):
    """Appends to a stream of its own, one numbered entry after the other."""

    def __init__(self, url: str, number: int, *, idempotent: bool) -> None:
        super().__init__(daemon=True)
        self.path = f"{'producer' if idempotent else 'plain'}-{number}"
        self.acknowledged: list[int] = []
        self.unknown: list[int] = []
        self.refused: list[str] = []
        self.failure: BaseException | None = None
        self.ending = threading.Event()
        self._url = url
        self._idempotent = idempotent

    def run(self) -> None:
        try:
            connection = Connection(self._url)
            while True:
                try:
                    if connection.ask("PUT", self.path, {"Content-Type": TEXT}).status in (200, 201):
                        break
                except Lost:
                    continue
            number = 0
            while not self.ending.is_set():
                self._append(connection, number)
                number += 1
        except BaseException as failure:
            self.failure = failure

    def _append(self, connection: Connection, number: int) -> None:
        fields = {"Content-Type": TEXT}
        if self._idempotent:
            fields |= {"Producer-Id": self.path, "Producer-Epoch": "0", "Producer-Seq": str(number)}
        while True:
            try:
                reply = connection.ask("POST", self.path, fields, f"{number};".encode())
            except Lost:
                reply = None
            if reply is not None and reply.status in (200, 204):
                self.acknowledged.append(number)
                return
            if reply is not None and not (reply.status == 503 and b"OUTCOME_UNKNOWN" in reply.body):
                self.refused.append(f"{reply.status} {reply.body!r}")
            if not self._idempotent:
                self.unknown.append(number)
                return

    def verify(self, connection: Connection) -> None:
        """Every acknowledged entry is there once, in order; an unknown one at most once."""
        found = [int(each) for each in connection.read_all(self.path).body.decode().split(";") if each]
        assert found == sorted(set(found)), f"{self.path}: an entry is doubled, or out of order: {found}"
        assert set(self.acknowledged) <= set(found), f"{self.path}: lost {set(self.acknowledged) - set(found)}"
        assert set(found) <= {*self.acknowledged, *self.unknown}


class Load:
    """Appenders of both kinds, at work."""

    def __init__(self, url: str) -> None:
        self.appenders = [Appender(url, number, idempotent=number % 2 == 0) for number in range(4)]

    @property
    def acknowledged(self) -> int:
        return sum(len(each.acknowledged) for each in self.appenders)

    def await_progress(self, server: ServerProcess) -> None:
        """Return when more requests were acknowledged."""
        enough = self.acknowledged + ACKED_BETWEEN
        wait_for(lambda: self.acknowledged >= enough, lambda: f"no progress:\n{server.output[-3000:]}")


def wait_for(condition: Callable[[], bool], describe: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, describe()
        time.sleep(0.02)


def processes(server: ServerProcess) -> dict[str, int]:
    """The process of each part that was started last."""
    return {name: int(pid) for name, pid in UP.findall(server.output)}


@contextmanager
def loaded(data: Path, env: dict[str, str] | None = None) -> Iterator[tuple[ServerProcess, Load]]:
    """A server under load. At the end everything is compared with what it has, and the server stops in order."""
    with ServerProcess.tailrace(data, "--workers", "2", env=env) as server:
        load = Load(server.url)
        for each in load.appenders:
            each.start()
        yield server, load
        for each in load.appenders:
            each.ending.set()
        for each in load.appenders:
            each.join(PATIENCE_S)
        assert [each.failure for each in load.appenders if each.failure is not None] == []
        assert [each.refused for each in load.appenders if each.refused] == [], server.output[-3000:]
        connection = Connection(server.url)
        for each in load.appenders:
            each.verify(connection)
        connection.close()
        assert server.terminate() == 0, server.output[-3000:]
    checked = check(data)
    assert checked.returncode == 0, f"tailrace check:\n{checked.stdout}{checked.stderr}"


def test_the_writer_is_killed(data_dir: Path) -> None:
    with loaded(data_dir) as (server, load):
        for _ in range(3):
            load.await_progress(server)
            killed = processes(server)["the writer"]
            os.kill(killed, signal.SIGKILL)
            wait_for(lambda gone=killed: processes(server)["the writer"] != gone, lambda: server.output[-3000:])
        load.await_progress(server)
        assert sum(len(each.unknown) for each in load.appenders) < load.acknowledged


def test_workers_are_killed(data_dir: Path) -> None:
    with loaded(data_dir) as (server, load):
        for name in ("worker 0", "worker 1", "worker 0"):
            load.await_progress(server)
            killed = processes(server)[name]
            os.kill(killed, signal.SIGKILL)
            wait_for(lambda gone=killed, name=name: processes(server)[name] != gone, lambda: server.output[-3000:])
        load.await_progress(server)


def test_the_writer_is_killed_while_a_worker_is_replaced(data_dir: Path) -> None:
    with loaded(data_dir) as (server, load):
        for pause_s in (0.02, 0.05):
            load.await_progress(server)
            before = processes(server)
            os.kill(before["worker 1"], signal.SIGKILL)
            time.sleep(pause_s)
            os.kill(before["the writer"], signal.SIGKILL)
            wait_for(
                lambda gone=before: all(processes(server)[name] != gone[name] for name in ("the writer", "worker 1")),
                lambda: server.output[-3000:],
            )
        load.await_progress(server)


@pytest.mark.parametrize("failpoint", ["batch.flushed", "commit.synced", "bus.answering"])
def test_the_writer_dies_at(failpoint: str, data_dir: Path) -> None:
    """Each writer kills itself at the same point, again and again."""
    with loaded(data_dir, {"TAILRACE_FAILPOINTS": f"{failpoint}=kill@60"}) as (server, load):
        wait_for(lambda: server.output.count("the writer (process") >= 5, lambda: server.output[-3000:])
        load.await_progress(server)


def test_workers_are_replaced_without_a_refused_connection(data_dir: Path) -> None:
    with loaded(data_dir) as (server, load):
        for _ in range(2):
            load.await_progress(server)
            before = processes(server)
            server.send(signal.SIGHUP)

            def replaced(before: dict[str, int] = before) -> bool:
                now = processes(server)
                return all(now[name] != pid for name, pid in before.items() if name != "the writer")

            wait_for(replaced, lambda: server.output[-3000:])
        load.await_progress(server)
        refused = 0
        for _ in range(20):
            connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=PATIENCE_S)
            connection.request("GET", "/readyz")
            refused += connection.getresponse().status != 200
            connection.close()
        assert refused == 0
