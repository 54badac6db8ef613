"""Three servers over one PostgreSQL that all serve: what one acknowledges all others show, whoever leads.

Every append has a text of its own, so that a lost and a doubled one are found in the stream.
"""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tailrace import limits
from tests.support import postgres
from tests.support.clustered import TEXT, Servers, ready, wait_until
from tests.support.patience import PATIENCE_S
from tests.support.postgres import PostgresServer
from tests.support.server import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    with Servers(postgres.shared_server(), tmp_path) as made:
        yield made


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Servers]:
    """Servers over a PostgreSQL of their own, which the test may stop."""
    if postgres.programs() is None:
        pytest.skip(postgres.NOT_TESTED)
    below = PostgresServer(durable=True)
    try:
        with Servers(below, tmp_path) as made:
            yield made
    finally:
        below.remove()


class Appender(threading.Thread):
    """Appends to a stream, one after the other, each to another server; notes what became of each."""

    def __init__(self, servers: list[ServerProcess], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._urls = [server.url for server in servers]
        self._links: dict[str, http.client.HTTPConnection] = {}
        self.path = f"/v1/stream/{name}"
        self.outcomes: dict[str, str] = {}  # acknowledged, refused or unknown
        self.refusals: Counter[str] = Counter()
        self.longest_s = 0.0
        self.ending = threading.Event()
        self.failure: BaseException | None = None

    @property
    def acknowledged(self) -> int:
        return sum(outcome == "acknowledged" for outcome in list(self.outcomes.values()))

    def run(self) -> None:
        try:
            number = 0
            while not self.ending.is_set():
                began_s = time.monotonic()
                self.outcomes[f"{number};"] = self._append(self._urls[number % len(self._urls)], f"{number};")
                self.longest_s = max(self.longest_s, time.monotonic() - began_s)
                number += 1
        except BaseException as error:
            self.failure = error

    def _append(self, url: str, text: str) -> str:
        try:
            link = self._links.get(url)
            if link is None:
                link = self._links[url] = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_S)
            link.request("POST", self.path, text, TEXT)
            answer = link.getresponse()
            status, body = answer.status, answer.read()
        except ConnectionRefusedError:
            self._links.pop(url).close()
            time.sleep(0.01)
            return "refused"
        except (OSError, http.client.HTTPException) as error:
            self._links.pop(url).close()
            self.refusals[type(error).__name__] += 1
            return "unknown"
        if status in (200, 204):
            return "acknowledged"
        assert status == 503, (status, body)
        code = json.loads(body)["error"]["code"]
        self.refusals[code] += 1
        time.sleep(0.01)
        return "refused" if code in ("DATABASE_LOST", "DATABASE_BUSY", "NOT_LEADER", "WRITER_AWAY") else "unknown"

    def end(self) -> None:
        self.ending.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()
        if self.failure is not None:
            raise self.failure

    def check(self, server: ServerProcess) -> None:
        """Every acknowledged append is there once, in order; none that was refused; an unknown one at most once."""
        found = [f"{text};" for text in read(server, self.path).split(";")[:-1]]
        assert len(found) == len(set(found)), [text for text, count in Counter(found).items() if count > 1]
        assert found == sorted(found, key=lambda text: int(text[:-1]))
        missing = {text for text, outcome in self.outcomes.items() if outcome == "acknowledged"} - set(found)
        assert not missing
        assert not {text for text, outcome in self.outcomes.items() if outcome == "refused"} & set(found)


def read(server: ServerProcess, path: str) -> str:
    """A stream from its beginning to its end."""
    text, offset = "", "-1"
    while True:
        page = httpx.get(f"{server.url}{path}?offset={offset}", timeout=PATIENCE_S)
        assert page.status_code == 200, page.text
        text += page.text
        offset = page.headers["Stream-Next-Offset"]
        if page.headers.get("Stream-Up-To-Date") == "true":
            return text


def load(servers: Servers, count: int = 4) -> list[Appender]:
    made = [Appender(servers.all, f"load-{number}") for number in range(count)]
    for appender in made:
        assert httpx.put(f"{servers.all[0].url}{appender.path}", headers=TEXT, timeout=PATIENCE_S).status_code == 201
        appender.start()
    wait_until(lambda: all(appender.acknowledged > 5 for appender in made))
    return made


def go_on(appenders: list[Appender], more: int = 10) -> None:
    """Wait until each of them has more appends acknowledged."""
    before = [appender.acknowledged for appender in appenders]
    wait_until(lambda: all(each.acknowledged >= count + more for each, count in zip(appenders, before, strict=True)))


def end(appenders: list[Appender], servers: Servers) -> None:
    for appender in appenders:
        appender.end()
    for server in servers.all:
        if server.returncode is None:
            for appender in appenders:
                appender.check(server)


# -- reads and writes on all servers


def test_what_one_server_acknowledges_all_others_show(servers: Servers) -> None:
    first, *_ = servers.all
    assert httpx.put(f"{first.url}/v1/stream/a", headers=TEXT).status_code == 201
    expected = ""
    for number in range(30):
        writer, reader = servers.all[number % 3], servers.all[(number + 1) % 3]
        expected += f"{number};"
        sent = httpx.post(f"{writer.url}/v1/stream/a", content=f"{number};", headers=TEXT, timeout=PATIENCE_S)
        assert sent.status_code == 204
        assert read(reader, "/v1/stream/a") == expected


def test_sql_runs_on_a_follower(servers: Servers) -> None:
    pytest.importorskip("duckdb")
    one, other = servers.followers()

    def sql(server: ServerProcess, text: str) -> Any:
        answer = httpx.post(f"{server.url}/v1/api/sql", json={"sql": text}, timeout=PATIENCE_S)
        assert answer.status_code == 200, answer.text
        return answer.json()

    sql(one, "CREATE TABLE t (id TEXT PRIMARY KEY, n INT)")
    sql(other, "INSERT INTO t VALUES ('a', 1), ('b', 2)")
    sql(one, "UPDATE t SET n = n + 10 WHERE id = 'b'")
    found = sql(other, "SELECT sum(n) AS total FROM t")
    assert "13" in json.dumps(found)


def test_a_live_reader_of_a_follower_gets_what_others_append(servers: Servers) -> None:
    """And goes on when the leader changes."""
    reader, writer = servers.followers()
    leader = servers.leader()
    httpx.put(f"{leader.url}/v1/stream/live", headers=TEXT)
    lines: list[str] = []

    def follow() -> None:
        with httpx.stream("GET", f"{reader.url}/v1/stream/live?offset=-1&live=sse", timeout=PATIENCE_S) as answer:
            for line in answer.iter_lines():
                lines.append(line)
                if "last" in line:
                    return

    following = threading.Thread(target=follow, daemon=True)
    following.start()
    httpx.post(f"{writer.url}/v1/stream/live", content="one", headers=TEXT, timeout=PATIENCE_S)
    wait_until(lambda: any("one" in line for line in lines))
    leader.kill()
    sent = httpx.post(f"{writer.url}/v1/stream/live", content="last", headers=TEXT, timeout=PATIENCE_S)
    assert sent.status_code == 204
    following.join(PATIENCE_S)
    assert not following.is_alive()


def test_all_servers_are_listed(servers: Servers) -> None:
    leader = servers.leader()
    wait_until(lambda: len(servers.status(leader)["servers"]) == 3)
    for server in servers.all:
        found = servers.status(server)
        assert found["leading"] is True
        assert (found["leader"], found["server"]) == (leader.url, server.url)
        assert {each["url"]: each["role"] for each in found["servers"]} == {
            each.url: "leader" if each is leader else "follower" for each in servers.all
        }
        assert all(0 <= each["lag_s"] < PATIENCE_S and 0 <= each["seen_s"] < PATIENCE_S for each in found["servers"])
        metrics = httpx.get(f"{server.url}/metrics", timeout=PATIENCE_S).text
        assert f"tailrace_leading {1.0 if server is leader else 0.0}" in metrics
        assert f"tailrace_epoch {float(found['epoch'])}" in metrics


def test_a_server_with_another_secret_is_not_let_in(servers: Servers, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("another-secret-than-that-of-the-others")
    stranger = servers.added(secret=wrong)
    try:
        before = servers.status(servers.leader())
        wait_until(lambda: httpx.get(f"{stranger.url}/readyz", timeout=PATIENCE_S).status_code == 503)
        asked = httpx.get(f"{stranger.url}/v1/stream/a?offset=-1", timeout=PATIENCE_S)
        assert asked.status_code == 503
        after = servers.status(servers.leader())
        assert len(after["servers"]) == len(before["servers"]) == 3
        assert stranger.url not in {each["url"] for each in after["servers"]}
        assert "Traceback" not in servers.leader().output
    finally:
        stranger.kill()


def test_connections_of_strangers_keep_nobody_out(servers: Servers) -> None:
    """More than are waited for, which send nothing or something else; a new server joins all the same."""
    ((address,),) = servers.below.execute("SELECT bus FROM tailrace.leader", postgres.name_of(servers.url))
    host, _, port = address.rpartition(":")
    leader = servers.leader()
    strangers = [socket.create_connection((host, int(port)), PATIENCE_S) for _ in range(limits.BUS_HANDSHAKES_MAX + 8)]
    try:
        for number, stranger in enumerate(strangers[::2]):
            with suppress(OSError):  # it may be closed by now
                stranger.sendall(b"\x00\x00\x00\x05hello" if number % 2 else b"GET / HTTP/1.1\r\n\r\n")
        servers.all.append(servers.added())
        servers.wait_ready()
        assert len(servers.status(leader)["servers"]) == 4
        assert "Traceback" not in leader.output
    finally:
        for stranger in strangers:
            stranger.close()


# -- credentials


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Servers]:
    """Servers that ask for credentials."""
    with Servers(postgres.shared_server(), tmp_path, token="the token of the operator of the tests") as made:
        yield made


def create_user(servers: Servers, name: str, password: str) -> None:
    asked = httpx.post(
        f"{servers.all[0].url}/v1/admin/users",
        json={"name": name, "password": password, "role": "dba"},
        headers={"Authorization": f"Bearer {servers.token}"},
        timeout=PATIENCE_S,
    )
    assert asked.status_code == 201, asked.text


def test_a_revoked_user_is_refused_everywhere_at_once(guarded: Servers) -> None:
    """As soon as the revocation is acknowledged, with the user in the caches of all servers before."""
    for number in range(4):
        name, password = f"user{number}", "a password that is long enough"
        create_user(guarded, name, password)
        with httpx.Client(auth=(name, password), timeout=PATIENCE_S) as client:
            for server in guarded.all * 2:
                assert client.get(f"{server.url}/v1/cluster").status_code == 200
            if number == 2:  # a new leader does not know which servers trust what
                guarded.leader().kill()
                guarded.all = [server for server in guarded.all if server.returncode is None]
            revoking = guarded.all[number % len(guarded.all)]
            bearer = {"Authorization": f"Bearer {guarded.token}"}
            gone = httpx.delete(f"{revoking.url}/v1/admin/users/{name}", headers=bearer, timeout=PATIENCE_S)
            assert gone.status_code == 204, gone.text
            for server in guarded.all:
                assert client.get(f"{server.url}/v1/cluster").status_code == 401


def test_failed_logins_are_counted_for_all_servers(guarded: Servers) -> None:
    create_user(guarded, "ann", "a password that is long enough")
    statuses = []
    for number in range(2 * limits.LOGIN_USER_FREE + 2):  # each server on its own would take three times the limit
        asked = httpx.post(
            f"{guarded.all[number % 3].url}/v1/api/auth/login",
            json={"user": "ann", "password": f"wrong {number}"},
            timeout=PATIENCE_S,
        )
        statuses.append(asked.status_code)
    assert 429 in statuses
    assert set(statuses) == {401, 429}


# -- take-over


def test_a_killed_leader_loses_and_doubles_nothing(servers: Servers) -> None:
    appenders = load(servers)
    killed = servers.leader()
    killed.kill()
    servers.all.remove(killed)
    go_on(appenders)
    end(appenders, servers)


def test_a_frozen_leader_is_replaced_and_writes_nothing_when_it_wakes(servers: Servers) -> None:
    appenders = load(servers)
    frozen = servers.leader()
    epoch = servers.status(frozen)["epoch"]
    frozen.send(signal.SIGSTOP)
    others = [server for server in servers.all if server is not frozen]
    try:
        wait_until(lambda: servers.status(others[0])["epoch"] > epoch and ready(others[0]))
        sent = httpx.post(f"{others[0].url}{appenders[0].path}-b", content="x", headers=TEXT, timeout=PATIENCE_S)
        assert sent.status_code == 404  # it was answered by the new leader
    finally:
        frozen.send(signal.SIGCONT)
    go_on(appenders)
    servers.wait_ready()
    assert servers.leader() is not frozen
    end(appenders, servers)


def test_a_leader_steps_down_without_a_failed_request(servers: Servers) -> None:
    appenders = load(servers)
    for number in range(3):
        before = servers.leader()
        asked = httpx.post(f"{servers.all[number].url}/v1/cluster/step-down", timeout=PATIENCE_S)
        assert asked.status_code == 200, asked.text
        assert asked.json()["leading"] is True
        assert asked.json()["leader"] in {server.url for server in servers.all} - {before.url}
        go_on(appenders)
    end(appenders, servers)
    for appender in appenders:
        assert set(appender.outcomes.values()) == {"acknowledged"}, appender.refusals


def test_a_leader_that_is_stopped_hands_over(servers: Servers) -> None:
    """The requests of other servers do not fail; those of its own end with it."""
    leader = servers.leader()
    servers.all.remove(leader)
    appenders = load(servers)
    assert leader.terminate() == 0
    go_on(appenders)
    end(appenders, servers)
    for appender in appenders:
        assert set(appender.outcomes.values()) == {"acknowledged"}, appender.refusals


# -- PostgreSQL


def test_sessions_that_end_lose_nothing(own: Servers) -> None:
    appenders = load(own)
    for _ in range(3):
        own.below.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'tailrace%'"
        )
        go_on(appenders)
    end(appenders, own)


def test_metrics_are_there_while_the_database_is_not(own: Servers) -> None:
    httpx.post(f"{own.all[0].url}/v1/api/sql", json={"sql": "CREATE TOPIC news"}, timeout=PATIENCE_S).raise_for_status()
    own.below.stop("fast")
    try:
        for server in own.all:
            answer = httpx.get(f"{server.url}/metrics", timeout=PATIENCE_S)
            assert answer.status_code == 200, answer.text
            assert "tailrace_commits_total " in answer.text
            assert "tailrace_topic_messages" not in answer.text
    finally:
        own.below.start()
    own.wait_ready()
    for server in own.all:
        assert "tailrace_topic_messages{" in httpx.get(f"{server.url}/metrics", timeout=PATIENCE_S).text


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_of_postgresql_loses_nothing(own: Servers, mode: str) -> None:
    appenders = load(own)
    own.below.stop(mode)
    own.below.start()
    own.wait_ready()
    go_on(appenders)
    end(appenders, own)
