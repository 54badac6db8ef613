"""SELECT under attack: the memory of the server and of its workers stays within named limits, and others are served.

Each attack is legal SQL that takes gigabytes in a DuckDB whose own memory limit is 512 MiB. Memory is the peak of what
is resident, as the kernel counts it; nothing here depends on how fast anything is.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace import limits
from tests.support.patience import PATIENCE_S
from tests.support.server import ServerProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")

TEN = "a AS (SELECT unnest([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]) AS v)"
MANY = "a, a b, a c, a d, a e, a f, a g, a h"
EIGHT = "a.v::VARCHAR || b.v || c.v || d.v || e.v || f.v || g.v || h.v"
DOUBLED = "WITH RECURSIVE r(n, s) AS (SELECT 1, 'x ' UNION ALL SELECT n + 1, s || s FROM r WHERE n < {})"
STEPS = ", ".join(f"a{n} AS MATERIALIZED (SELECT x||x||x||x||x||x||x||x AS x FROM a{n - 1})" for n in range(1, 10))
ATTACKS = {
    "a text that grows step by step": f"WITH a0 AS (SELECT 'xxxxxxxxxxxxxxxx' AS x), {STEPS} SELECT length(x) FROM a9",
    "the same without keeping it": "WITH a0 AS (SELECT 'xxxxxxxxxxxxxxxx' AS x), "
    + STEPS.replace(" MATERIALIZED", "")
    + " SELECT length(x) FROM a9",
    "string_agg": f"WITH {TEN} SELECT length(string_agg('x' || a.v || b.v, 'yyyyyyyyyyyyyyyy')) FROM {MANY}",
    "array_agg": f"WITH {TEN} SELECT len(array_agg('xxxxxxxxxxxxxxxxxxxxxxxxxxxx' || a.v)) FROM {MANY}",
    "json_group_array": f"WITH {TEN} SELECT length(json_group_array('xxxxxxxxxxxx' || a.v)::VARCHAR) FROM {MANY}",
    "histogram": f"WITH {TEN} SELECT cardinality(histogram({EIGHT} || 'xxxxxxxxxxxxxxxxxx')) FROM {MANY}",
    "GROUP BY": f"WITH {TEN} SELECT count(*) FROM (SELECT {EIGHT} AS k FROM {MANY} GROUP BY 1)",
    "a window": f"WITH {TEN} SELECT max(r) FROM (SELECT row_number() OVER (ORDER BY a.v + b.v * h.v) AS r FROM {MANY})",
    "ORDER BY": f"WITH {TEN} SELECT 'xxxxxxxxxxxxxxxxxxxxxxxx' || a.v || b.v AS k FROM {MANY} ORDER BY k",
    "a recursive text": DOUBLED.format(40) + " SELECT max(length(s)) FROM r",
    "recursive rows": f"WITH RECURSIVE {TEN}, r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r, a) SELECT max(n) FROM r",
    "split": DOUBLED.format(27) + " SELECT len(string_split(max(s), ' ')) FROM r",
    "regexp_extract_all": DOUBLED.format(26) + " SELECT len(regexp_extract_all(max(s), '(x)')) FROM r",
    "many large texts": DOUBLED.format(20).replace("WITH RECURSIVE", f"WITH RECURSIVE {TEN},")
    + ", m AS (SELECT max(s) AS s FROM r)"
    + " SELECT count(DISTINCT md5(s || a.v || b.v || c.v || d.v)) FROM m, a, a b, a c, a d",
    "a large result": DOUBLED.format(18).replace("WITH RECURSIVE", f"WITH RECURSIVE {TEN},")
    + ", m AS (SELECT max(s) AS s FROM r) SELECT s || s FROM m, a, a b, a c, a d",
    "a list in a row": f"WITH {TEN} SELECT list(a.v = 1) FROM a, a b, a c, a d, a e, a f, a g",
    "repeat": "SELECT length(repeat('x', 1000000000))",
    "range": "SELECT count(*) FROM range(10000000000)",
    "unnest(range)": "SELECT count(*) FROM unnest(range(10000000000))",
}
ANSWERS_TO_ATTACKS = {"SELECT_TOO_LARGE", "SELECT_TIMEOUT", "SQL_REFUSED"}

# What a worker maps of libraries and of what it shares with others counts as resident, and is not limited.
SHARED_BYTES = 256 * limits.MiB
# What requests may hold in the server itself: results and what is read for four statements, with room to work.
SERVER_BYTES = limits.SELECT_RESULT_BYTES_MAX * 2 + 192 * limits.MiB


class Served:
    """A server, what is sent to it, and how much memory it and its workers have had at most."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.workers_peak = 0
        self._stopped = threading.Event()
        self.pings = 0
        self._watch = threading.Thread(target=self._watching, daemon=True)
        self._watch.start()

    def sql(self, text: str, *params: Any) -> tuple[int, dict[str, Any]]:
        body = json.dumps({"sql": text, "params": params}).encode()
        request = urllib.request.Request(
            f"{self.server.url}/v1/api/sql", body, {"content-type": "application/json"}, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return int(answer.status), json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def workers(self) -> list[int]:
        return children(self.server.pid)

    def peak(self, *, afresh: bool = False) -> int:
        """The server's peak; `afresh`: from now on."""
        if afresh:
            Path(f"/proc/{self.server.pid}/clear_refs").write_text("5")
        return memory(self.server.pid, "VmHWM")

    def _watching(self) -> None:
        while not self._stopped.wait(0.02):
            for pid in self.workers():
                self.workers_peak = max(self.workers_peak, memory(pid, "VmHWM"))
            with urllib.request.urlopen(f"{self.server.url}/healthz", timeout=PATIENCE_S) as answer:
                assert answer.status == 200
            self.pings += 1

    def close(self) -> None:
        self._stopped.set()
        self._watch.join(PATIENCE_S)
        assert not self._watch.is_alive()


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(each) for each in task.read_text().split()]
        except OSError:
            continue
    return found


def memory(pid: int, field: str) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(field + ":")), 0)


def wait_for(condition: Callable[[], Any], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with ServerProcess.tailrace(tmp_path_factory.mktemp("data")) as server:
        found = Served(server)
        try:
            assert found.sql("SELECT 1 AS one")[1]["results"][0]["rows"] == [{"one": 1}]
            yield found
        finally:
            found.close()


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_stopped_at_the_limit_and_others_are_served(served: Served, attack: str) -> None:
    before, pings = served.peak(afresh=True), served.pings
    status, answer = served.sql(ATTACKS[attack])
    assert status in (400, 413, 503), answer
    assert answer["error"]["code"] in ANSWERS_TO_ATTACKS, answer
    wait_for(lambda: served.pings > pings, "others were not served")
    assert served.workers_peak <= limits.SELECT_WORKER_BYTES_MAX + SHARED_BYTES
    assert served.peak() - before <= SERVER_BYTES
    assert served.sql("SELECT 1 AS one")[0] == 200  # a new worker, if need be


def test_many_attacks_at_once_are_stopped_at_the_limit(served: Served) -> None:
    before = served.peak(afresh=True)
    names = [name for name in ATTACKS if "text" in name or "agg" in name]
    codes: list[str] = []

    def ask(name: str) -> None:
        codes.append(served.sql(ATTACKS[name])[1]["error"]["code"])

    threads = [threading.Thread(target=ask, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    # On a busy machine those that run may take so long that the others are told to come back later.
    assert len(codes) == len(names) and set(codes) <= ANSWERS_TO_ATTACKS | {"SELECT_BUSY"}, codes
    assert set(codes) & ANSWERS_TO_ATTACKS, codes
    assert served.workers_peak <= limits.SELECT_WORKER_BYTES_MAX + SHARED_BYTES
    assert served.peak() - before <= SERVER_BYTES
    assert len(served.workers()) <= limits.SELECT_WORKERS_MAX


def test_items_of_many_different_attributes_are_refused_with_what_to_do(served: Served) -> None:
    """2,000 items of 20 names of their own each would be a table of 40,000 columns: 330 MB of offsets alone."""
    assert served.sql("CREATE TABLE sparse (id TEXT PRIMARY KEY)")[0] == 200
    for first in range(0, 2_000, 100):
        body = [
            {"PutRequest": {"Item": {"id": {"S": str(n)}} | {f"a{n}x{k}": {"S": "v"} for k in range(20)}}}
            for n in range(first, first + 100)
        ]
        for at in range(0, 100, 25):
            put(served, {"RequestItems": {"sparse": body[at : at + 25]}})
    before = served.peak(afresh=True)
    status, answer = served.sql("SELECT * FROM sparse")
    assert (status, answer["error"]["code"]) == (413, "SELECT_TOO_LARGE"), answer
    assert "name only the columns" in answer["error"]["message"]
    assert served.peak() - before < 64 * limits.MiB
    status, answer = served.sql("SELECT count(*) AS n, max(a7x3) AS v FROM sparse")
    assert answer["results"][0]["rows"] == [{"n": 2_000, "v": "v"}]


def put(served: Served, body: dict[str, Any]) -> None:
    request = urllib.request.Request(
        served.server.url + "/",
        json.dumps(body).encode(),
        {"content-type": "application/x-amz-json-1.0", "x-amz-target": "DynamoDB_20120810.BatchWriteItem"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        assert not json.load(answer)["UnprocessedItems"]


def test_a_wide_result_is_streamed_and_a_slow_client_costs_little(served: Served) -> None:
    """1,000 columns of 10,000 rows: a few megabytes in Arrow, 350 MB as dicts."""
    assert served.sql("CREATE TABLE wide (id TEXT PRIMARY KEY)")[0] == 200
    item = {"id": {"S": "i"}} | {f"c{n}": {"BOOL": n % 2 == 0} for n in range(999)}
    put(served, {"RequestItems": {"wide": [{"PutRequest": {"Item": item}}]}})
    text = f"WITH {TEN} SELECT wide.* FROM wide, a, a b, a c, a d"
    before = served.peak(afresh=True)
    host, port = served.server.url.removeprefix("http://").split(":")
    body = json.dumps({"sql": text}).encode()
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        head = f"POST /v1/api/sql HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        slow.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert slow.recv(12) == b"HTTP/1.1 200"  # and nothing more is read
        status, answer = served.sql(text)
        assert status == 200
        (result,) = answer["results"]
        assert (len(result["rows"]), result["row_count"], len(result["columns"])) == (10_000, 10_000, 1_000)
        assert result["message"] == "10000 rows" and answer["status"] == "success" and answer["took_ms"] > 0
        assert result["rows"][9_999].keys() == item.keys()
    assert served.peak() - before < 128 * limits.MiB


def test_workers_end_with_a_server_that_is_killed(tmp_path: Path) -> None:
    with ServerProcess.tailrace(tmp_path) as server:
        request = urllib.request.Request(
            f"{server.url}/v1/api/sql", b'{"sql": "SELECT 1"}', {"content-type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=PATIENCE_S).close()
        workers = children(server.pid)
        assert workers
        server.kill()
        wait_for(lambda: not any(runs(pid) for pid in workers), "a worker outlives its server")


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] != "Z"
    except OSError:
        return False
