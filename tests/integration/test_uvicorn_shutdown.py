"""Under uvicorn, whoever waits is answered when the process is asked to stop, so that it does stop."""

from __future__ import annotations

import signal
import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.support.patience import PATIENCE_S
from tests.support.server import UVICORN_READY, ServerProcess


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_an_event_stream_a_long_poll_and_a_consumer_do_not_hold_up_the_end(tmp_path: Path, signum: int) -> None:
    command = [sys.executable, "-m", "uvicorn", "--factory", "tailrace.http.asgi:create_app"]
    command += ["--host", "127.0.0.1", "--port", "0", "--no-access-log"]  # and no limit to a graceful shutdown
    settings = {"TAILRACE_DEV": "1", "TAILRACE_DATA": str(tmp_path / "data"), "TAILRACE_LONG_POLL_TIMEOUT_S": "300"}
    settings |= {"TAILRACE_SSE_RECYCLE_S": "300", "TAILRACE_TOPICS_MAX_CONSUME_TIMEOUT": "300"}
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(command, ready=UVICORN_READY, env=settings))
        with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as client:
            assert client.put("/v1/stream/s", headers={"content-type": "text/plain"}).status_code == 201
            created = client.post("/v1/api/sql", json={"sql": "CREATE TOPIC waited_for"})
            assert created.status_code == 200, created.text
        consume = b'{"topic": "waited_for", "group_id": "g", "start": "Earliest", "timeout_seconds": 300}'
        waiting = []
        for request in (
            b"GET /v1/stream/s?offset=now&live=sse HTTP/1.1\r\nhost: localhost\r\n\r\n",
            b"GET /v1/stream/s?offset=now&live=long-poll HTTP/1.1\r\nhost: localhost\r\n\r\n",
            b"POST /v1/api/topics/consume HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(consume), consume),
        ):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S))
            sock.sendall(request)
            waiting.append(sock)
        _until_waiting(server, 3)
        began = time.monotonic()
        server.send(signum)
        server.wait()
        assert time.monotonic() - began < 45, "readers live for about a minute"
        answers = [_all_of(sock) for sock in waiting]
        assert answers[0].startswith(b"HTTP/1.1 200") and answers[0].endswith(b"0\r\n\r\n")
        assert answers[1].startswith(b"HTTP/1.1 204")
        assert answers[2].startswith(b"HTTP/1.1 200")


def _until_waiting(server: ServerProcess, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while f"\ntailrace_live_readers {count}" not in httpx.get(f"{server.url}/metrics", timeout=PATIENCE_S).text:
        assert time.monotonic() < deadline, "not all of them wait"
        time.sleep(0.02)


def _all_of(sock: socket.socket) -> bytes:
    got = b""
    while piece := sock.recv(65536):
        got += piece
    return got
