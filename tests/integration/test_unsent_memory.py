"""The memory of a server whose clients do not read stays within the budget for unsent output, and those who read are
served. Measured from outside, as the peak of the resident set of a real server."""

from __future__ import annotations

import re
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tailrace import limits
from tests.support.patience import PATIENCE_S
from tests.support.server import ServerProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MiB = limits.MiB
# Beside the budget: what requests under way need (a 16 MiB append is in memory a few times over until it is durable),
# and what the allocator keeps for later.
OVERHEAD_BYTES = 160 * MiB


def memory(server: ServerProcess, field: str) -> int:
    status = Path(f"/proc/{server.pid}/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * limits.KiB


def metric(server: ServerProcess, name: str) -> float:
    text = httpx.get(f"{server.url}/metrics", timeout=PATIENCE_S).text
    found = re.search(rf"^tailrace_{name} (\S+)$", text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "this should have come about long ago"
        time.sleep(0.05)


def stalled(server: ServerProcess, target: str, fields: str = "") -> socket.socket:
    """A client that asks and does not read."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * limits.KiB)
    sock.settimeout(PATIENCE_S)
    sock.connect(("127.0.0.1", server.port))
    sock.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n".encode())
    return sock


@pytest.mark.parametrize("when", ["live", "catch-up"])
@pytest.mark.parametrize("content_type", ["text/plain", "application/json"])
def test_24_stalled_event_streams_of_16_mb_of_line_breaks(tmp_path: Path, when: str, content_type: str) -> None:
    body = b"\n" * (limits.BODY_BYTES_MAX - 100)
    expected = 6 * len(body)
    if content_type == "application/json":
        body = b'{"white space":%b1}' % body
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess.tailrace(tmp_path / "data"))
        client = stack.enter_context(httpx.Client(base_url=server.url, timeout=PATIENCE_S))
        stream = "/v1/stream/lines"
        assert client.put(stream, headers={"content-type": content_type}).status_code == 201
        before = memory(server, "VmRSS")

        def append() -> None:
            headers = {"content-type": content_type}
            assert client.post(stream, content=body, headers=headers).status_code == 204

        if when == "catch-up":
            append()
        for _ in range(24):
            stack.enter_context(stalled(server, f"{stream}?offset=-1&live=sse"))
        if when == "live":
            until(lambda: metric(server, "live_readers") == 24)
            append()
        until(lambda: metric(server, "unsent_bytes") > len(body) + 24 * 64 * limits.KiB)
        # Whoever reads gets all of it, and the control event after it.
        got, end = 0, b""
        with client.stream("GET", stream, params={"offset": "-1", "live": "sse"}) as response:
            for piece in response.iter_raw():
                got, end = got + len(piece), (end + piece)[-400:]
                if b"upToDate" in end:
                    break
        assert expected <= got < expected + 2_000
        assert memory(server, "VmHWM") - before < OVERHEAD_BYTES  # and not 24 × 96 MB
        assert metric(server, "unsent_disconnects_total") == 0  # one event that many are sent is in memory once


def test_260_stalled_reads_of_4_mb_pages_are_cut_oldest_first(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess.tailrace(tmp_path / "data"))
        client = stack.enter_context(httpx.Client(base_url=server.url, timeout=PATIENCE_S))
        stream = "/v1/stream/pages"
        assert client.put(stream, headers={"content-type": "text/plain"}).status_code == 201
        for _ in range(4):
            assert client.post(stream, content=b"x" * MiB, headers={"content-type": "text/plain"}).status_code == 204
        before = memory(server, "VmRSS")
        stuck = []
        for _ in range(260):
            stuck.append(stack.enter_context(stalled(server, f"{stream}?offset=-1")))
            # A reader that reads is served all the while.
            if len(stuck) % 26 == 0:
                assert len(client.get(stream).content) == 4 * MiB
        # A page is sent row by row, and a row that the kernel has taken counts no more.
        until(lambda: metric(server, "unsent_disconnects_total") > 0)
        assert metric(server, "unsent_bytes") <= limits.UNSENT_BYTES_MAX
        assert memory(server, "VmHWM") - before < limits.UNSENT_BYTES_MAX + OVERHEAD_BYTES
        whole = [_read_all(sock) for sock in stuck]
        first = whole.index(True)
        assert 0 < first < 260 and all(whole[first:])


def test_stalled_long_polls_that_one_append_answers(tmp_path: Path) -> None:
    """They read one after the other, so that what one was sent counts before the next has it in memory."""
    body = b"x" * (limits.BODY_BYTES_MAX - 100)
    headers = {"content-type": "text/plain"}
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess.tailrace(tmp_path / "data", long_poll_timeout_s=PATIENCE_S))
        client = stack.enter_context(httpx.Client(base_url=server.url, timeout=PATIENCE_S))
        stream = "/v1/stream/large"
        assert client.put(stream, headers=headers).status_code == 201
        before = memory(server, "VmRSS")
        for _ in range(60):
            stack.enter_context(stalled(server, f"{stream}?offset=now&live=long-poll"))
        until(lambda: metric(server, "live_readers") == 60)
        assert client.post(stream, content=body, headers=headers).status_code == 204
        until(lambda: metric(server, "live_readers") == 0)
        assert memory(server, "VmHWM") - before < limits.UNSENT_BYTES_MAX + OVERHEAD_BYTES  # and not 60 × 16 MB


def test_stalled_exports_of_items_that_json_makes_larger(tmp_path: Path) -> None:
    """A control character is six bytes of JSON, and an export has it twice."""
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess.tailrace(tmp_path / "data"))
        client = stack.enter_context(httpx.Client(base_url=server.url, timeout=PATIENCE_S))
        sql = "CREATE TABLE dense (id TEXT PRIMARY KEY, body TEXT)"
        assert client.post("/v1/api/sql", json={"sql": sql}).status_code == 200
        headers = {"x-amz-target": "DynamoDB_20120810.PutItem", "content-type": "application/x-amz-json-1.0"}
        for number in range(50):
            item = {"id": {"S": str(number)}, "body": {"S": "\x01" * 390_000}}
            response = client.post("/", json={"TableName": "dense", "Item": item}, headers=headers)
            assert response.status_code == 200
        before = memory(server, "VmRSS")
        for _ in range(20):
            accept = "Accept: application/vnd.apache.arrow.stream\r\n"
            stack.enter_context(stalled(server, "/v1/tables/dense/items", accept))
        until(lambda: metric(server, "unsent_bytes") > limits.EXPORTS_MAX * 8 * limits.EXPORT_PAGE_BYTES)
        assert memory(server, "VmHWM") - before < limits.UNSENT_BYTES_MAX + 2 * OVERHEAD_BYTES


def _read_all(sock: socket.socket) -> bool:
    """Whether a whole page comes; what was cut off ends early."""
    size = 0
    try:
        while size < 4 * MiB and (piece := sock.recv(MiB)):
            size += len(piece)
    except ConnectionResetError:
        return False
    return size >= 4 * MiB
