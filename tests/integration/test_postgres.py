"""A whole server over PostgreSQL: every API works, another server takes over in order, and the check finds nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import httpx
import pytest

from tailrace.clock import ManualClock
from tailrace.database import Database, open_postgres
from tests.support import postgres
from tests.support.patience import PATIENCE_S
from tests.support.server import ROOT, ServerProcess, check


@pytest.fixture
def url() -> Iterator[str]:
    server = postgres.shared_server()
    made = server.create()
    yield made
    server.drop(made)


def run(*words: str, env: dict[str, str] | None = None) -> str:
    """A command of tailrace; what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "tailrace.cli", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, **(env or {}), "NO_COLOR": "1", "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_api_and_an_orderly_take_over(url: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServerProcess.tailrace(data, "--database", url) as first:
        write_by_every_api(first.url)
        with ServerProcess.tailrace(data, "--database", url) as second:
            waiting = httpx.get(f"{second.url}/readyz")
            assert (waiting.status_code, waiting.json()["status"], waiting.json()["leader"]) == (
                503,
                "standby",
                first.url,
            )
            for method, path in (("GET", "/v1/stream/hello?offset=-1"), ("POST", "/v1/stream/hello"), ("POST", "/")):
                refused = httpx.request(method, second.url + path)
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "NOT_LEADER")
                assert first.url in refused.text
            assert httpx.get(f"{second.url}/healthz").status_code == 200
            found = json.loads(run("cluster", "status", "--database", url, "--json"))
            assert (found["leader"], found["standbys"]) == (first.url, [second.url])
            assert second.url in run("cluster", "step-down", "--database", url, "--timeout", str(PATIENCE_S))
            read_by_every_api(second.url)
            until_s = time.monotonic() + PATIENCE_S
            while httpx.get(f"{first.url}/readyz").json().get("leader") != second.url:
                assert time.monotonic() < until_s
                time.sleep(0.05)
    checked = check(data, "--database", url)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "clean" in checked.stdout


def write_by_every_api(url: str) -> None:
    text = {"content-type": "text/plain"}
    assert httpx.put(f"{url}/v1/stream/hello", headers=text).status_code == 201
    assert httpx.post(f"{url}/v1/stream/hello", headers=text, content="hello").status_code == 204
    wrong = httpx.put(f"{url}/v1/stream/a%00b", headers=text)
    assert wrong.status_code == 400, "PostgreSQL has no place for U+0000"
    statements = """
        CREATE TABLE orders (id TEXT PRIMARY KEY, total INT); CREATE TOPIC app.orders;
        ALTER TOPIC app.orders ADD SOURCE orders ON INSERT WITH (payload = 'full');
        INSERT INTO orders VALUES ('o-1', 5); INSERT INTO orders VALUES ('o-2', 7)
    """
    assert httpx.post(f"{url}/v1/api/sql", json={"sql": statements}).status_code == 200
    client(url).put_item(TableName="orders", Item={"id": {"S": "o-3"}, "total": {"N": "30"}})


def read_by_every_api(url: str) -> None:
    assert httpx.get(f"{url}/v1/stream/hello?offset=-1").text == "hello"
    found = client(url).get_item(TableName="orders", Key={"id": {"S": "o-3"}})["Item"]
    assert found == {"id": {"S": "o-3"}, "total": {"N": "30"}}
    rows = httpx.post(f"{url}/v1/api/sql", json={"sql": "SELECT sum(total) AS total FROM orders"}, timeout=PATIENCE_S)
    assert "42" in rows.text, rows.text
    asked = {"topic": "app.orders", "group_id": "g", "start": "earliest"}
    taken = httpx.post(f"{url}/v1/api/topics/consume", json=asked, timeout=PATIENCE_S)
    assert taken.status_code == 200, taken.text
    assert len(taken.json()["messages"]) == 3, taken.text


def client(url: str):  # type: ignore[no-untyped-def]
    return boto3.client(
        "dynamodb", endpoint_url=url, region_name="local", aws_access_key_id="any", aws_secret_access_key="any"
    )


def test_the_first_user_is_made_before_a_server_starts(url: str, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    run("users", "create", "ann", "--role", "dba", "--no-password", "--data", data, env={"TAILRACE_DATABASE": url})
    assert "ann" in run("users", "list", "--data", data, env={"TAILRACE_DATABASE": url})
    assert not (tmp_path / "data" / "tailrace.db").exists()
    assert (tmp_path / "data" / "secret.key").exists()


def test_time_goes_on_when_the_next_leader_has_a_slower_clock(url: str, tmp_path: Path) -> None:
    """A lease that the first one gave ends under the second one, whose clock is seven minutes behind."""
    fast, slow = ManualClock(1_700_000_420_000), ManualClock(1_700_000_000_000)
    with Database(open_postgres(url, str(tmp_path)), clock=fast, housekeeping_s=None) as db:
        db.create_topic("jobs")
        db.publish("jobs", 1)
        assert len(db.consume("jobs", "workers", consumer="a", visibility_s=4)) == 1
    with Database(open_postgres(url, str(tmp_path)), clock=slow, housekeeping_s=None) as db:
        assert db.clock.now_ms() >= 1_700_000_420_000
        assert len(db.consume("jobs", "workers", consumer="b")) == 0
        slow.advance(5)
        assert len(db.consume("jobs", "workers", consumer="b")) == 1
