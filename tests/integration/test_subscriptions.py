"""Subscriptions on the real server: a worker is woken for every append, though the server is killed again and again."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.patience import PATIENCE_S
from tests.support.server import ServerProcess, check

JSON = {"content-type": "application/json"}


class Worker:
    """A webhook's receiver that fails now and then, finishes at once or by callback, and records the last offsets."""

    def __init__(self, chance: random.Random) -> None:
        worker = self
        self.received: dict[str, str] = {}
        self.generations: list[int] = []
        self.reliable = False

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                status, answer = worker._answer(body, chance.random())
                payload = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()

    def _answer(self, body: dict[str, Any], dice: float) -> tuple[int, dict[str, Any]]:
        if not self.reliable and dice < 0.2:
            return 500, {}
        self.generations.append(body["generation"])
        pending = {item["path"]: item["tail_offset"] for item in body["streams"] if item["has_pending"]}
        self.received.update(pending)
        if dice < 0.6:
            return 200, {"done": True}
        acks = [{"stream": path, "offset": tail} for path, tail in pending.items()]
        wake = {"wake_id": body["wake_id"], "generation": body["generation"], "acks": acks, "done": True}
        try:
            httpx.post(body["callback_url"], json=wake, headers={"authorization": f"Bearer {body['callback_token']}"})
        except httpx.HTTPError:
            pass  # the server was killed meanwhile; it will tell us again
        return 200, {}

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join(PATIENCE_S)


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker(random.Random(11))
    yield worker
    worker.close()


@pytest.mark.crash
def test_no_append_goes_undelivered_though_the_server_is_killed(tmp_path: Path, worker: Worker) -> None:
    data = tmp_path / "data"
    chance = random.Random(3)
    server = ServerProcess.tailrace(data).start()
    port = server.port
    tails: dict[str, str] = {}
    try:
        for round_number in range(4):
            root = f"{server.url}/v1/stream"
            with httpx.Client(timeout=PATIENCE_S) as http:
                settings = {
                    "type": "webhook",
                    "pattern": "events/**",
                    "webhook": {"url": worker.url},
                    "lease_ttl_ms": 1000,
                }
                put = http.put(f"{root}/__ds/subscriptions/s", json=settings)
                assert put.status_code == (200 if round_number else 201)
                for _ in range(30):
                    path = f"events/{chance.randrange(6)}"
                    answer = http.put(f"{root}/{path}", headers=JSON)
                    assert answer.status_code in (200, 201)
                    answer = http.post(f"{root}/{path}", json={"n": 1})
                    assert answer.status_code in (200, 204)
                    tails[path] = answer.headers["stream-next-offset"]
                if round_number == 3:
                    worker.reliable = True
                    _wait_until_acked(http, root, tails)
                    break
            server.kill()
            server = ServerProcess.tailrace(data, port=port).start()
        assert worker.received == tails
    finally:
        assert server.terminate() == 0, server.output
    checked = check(data)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def _wait_until_acked(http: httpx.Client, root: str, tails: dict[str, str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    acked: dict[str, str] = {}
    while time.monotonic() < deadline:
        found = http.get(f"{root}/__ds/subscriptions/s").json()
        acked = {item["path"]: item["acked_offset"] for item in found["streams"]}
        if acked == tails:
            return
        time.sleep(0.02)
    raise AssertionError(f"acked is {acked}, the tails are {tails}")


def test_workers_call_back_with_their_own_token(tmp_path: Path) -> None:
    command = ServerProcess.tailrace(tmp_path / "data").command
    command.remove("--dev")
    with (
        ServerProcess(command, env={"TAILRACE_TOKEN": "s3cret-s3cret-s3cret"}) as server,
        httpx.Client(timeout=PATIENCE_S) as http,
    ):
        root = f"{server.url}/v1/stream"
        credentials = {"authorization": "Bearer s3cret-s3cret-s3cret"}
        subscription = f"{root}/__ds/subscriptions/s"
        settings = {"type": "pull-wake", "pattern": "events/*", "wake_stream": "wake/pool"}
        assert http.put(subscription, json=settings).status_code == 401
        assert http.put(subscription, json=settings, headers=credentials).status_code == 201
        assert http.get(subscription).status_code == 401
        assert http.get(f"{root}/__ds/jwks.json").status_code == 200
        http.put(f"{root}/events/a", json={"n": 1}, headers=credentials)
        assert http.post(f"{subscription}/claim", json={"worker": "w"}).status_code == 401
        deadline = time.monotonic() + PATIENCE_S
        while (
            claim := http.post(f"{subscription}/claim", json={"worker": "w"}, headers=credentials)
        ).status_code != 200:
            assert time.monotonic() < deadline, claim.text
        wake = {"wake_id": claim.json()["wake_id"], "generation": claim.json()["generation"], "done": True}
        for headers, status in (
            ({}, 401),
            (credentials, 401),
            ({"authorization": f"Bearer {claim.json()['token']}"}, 200),
        ):
            assert http.post(f"{subscription}/ack", json=wake, headers=headers).status_code == status
