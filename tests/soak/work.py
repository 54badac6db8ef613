"""The clients of the mixed soak. Each is a thread that knows what the server owes it.

A client sends until it is answered: a broken connection, 429 and 503 are retried, so that every write has a known
outcome (writes carry a producer's numbers, or a condition). Anything else that it did not expect is a failure of the
soak. Acknowledged writes go into the client's ledger; `settle` compares the ledger with the server when all faults are
over.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from base64 import b64decode
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pyarrow as pa

from tests.support.server import ROOT, check

TABLE, BULK, TOPIC, GROUP = "orders", "bulk", "soak.orders", "workers"
BULK_ITEMS = 20_000
ALIVE_MAX = 200  # items that one writer keeps
ARROW = {"Accept": "application/vnd.apache.arrow.stream"}
AGAIN = (429, 500, 502, 503)  # 500 counts: it is retried, and reported
PATIENCE_S = 180.0


class Away(Exception):
    """The server did not answer, or asked to try again."""


class Client(ABC, threading.Thread):
    """One client. `latencies` are those since the last sample, by kind of request."""

    pause_s = 0.02

    def __init__(self, name: str, url: str, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.url = url
        self.chance = random.Random(f"{name} {seed}")
        self.latencies: list[tuple[str, float]] = []
        self.requests = 0
        self.retries: Counter[str] = Counter()
        self.problems: list[str] = []
        self.ending = threading.Event()
        self.http = httpx.Client(base_url=url, timeout=30.0)

    @abstractmethod
    def step(self) -> None:
        """Do one thing. `Away` is retried."""

    def settle(self) -> list[str]:
        """Compare the ledger with the server; what is wrong."""
        return []

    def run(self) -> None:
        while not self.ending.wait(self.chance.uniform(0, 2 * self.pause_s)):
            try:
                self.step()
            except Away:
                self.ending.wait(0.1)
            except Exception as error:  # whatever it is, it is a finding
                self.problems.append(f"{self.name}: {type(error).__name__}: {error}")
                self.ending.wait(1.0)

    def ask(self, kind: str, method: str, target: str, **options: Any) -> httpx.Response:
        """One request; its latency counts if it was answered."""
        began = time.monotonic()
        try:
            response = self.http.request(method, target, **options)
        except httpx.HTTPError as error:
            self.retries[type(error).__name__] += 1
            raise Away(str(error)) from error
        if response.status_code in AGAIN:
            self.retries[str(response.status_code)] += 1
            if response.status_code == 500:
                self.problems.append(f"{self.name}: {method} {target}: 500 {response.text[:300]}")
            raise Away(response.text)
        self.latencies.append((kind, time.monotonic() - began))
        self.requests += 1
        return response

    def expect(self, kind: str, method: str, target: str, *statuses: int, **options: Any) -> httpx.Response:
        response = self.ask(kind, method, target, **options)
        assert response.status_code in statuses, f"{method} {target}: {response.status_code} {response.text[:300]}"
        return response

    def call(self, kind: str, operation: str, parameters: dict[str, Any]) -> httpx.Response:
        """An operation of the DynamoDB API."""
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"DynamoDB_20120810.{operation}"}
        return self.ask(kind, "POST", "/", headers=headers, content=json.dumps(parameters))

    def until_answered(self, send: Any) -> Any:
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return send()
            except Away:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)


# -- streams


class Appender(Client):
    """An idempotent producer: each message is in the stream once, in order."""

    def __init__(self, name: str, url: str, seed: int) -> None:
        super().__init__(name, url, seed)
        self.path = f"/v1/stream/soak/{name}"
        self.sent = 0
        self.acknowledged = 0

    def step(self) -> None:
        if self.sent == 0:
            self.expect("create", "PUT", self.path, 200, 201, headers={"Content-Type": "application/json"})
            self.sent = 1
        headers = {"Content-Type": "application/json", "Producer-Id": self.name, "Producer-Epoch": "0"}
        headers["Producer-Seq"] = str(self.acknowledged)
        body = json.dumps({"n": self.acknowledged, "text": "x" * self.chance.choice((10, 100, 1000))})
        self.expect("append", "POST", self.path, 200, 204, headers=headers, content=body)
        self.acknowledged += 1

    def settle(self) -> list[str]:
        found: list[int] = []
        offset = "-1"
        while True:
            page = self.until_answered(lambda at=offset: self.expect("read", "GET", f"{self.path}?offset={at}", 200))
            found += [each["n"] for each in page.json()]
            if "stream-up-to-date" in page.headers:
                break
            offset = page.headers["stream-next-offset"]
        # The last one may have been committed without its answer having arrived.
        if found in (list(range(self.acknowledged)), list(range(self.acknowledged + 1))):
            return []
        return [f"{self.name}: {self.acknowledged} appends were acknowledged, {len(found)} messages are there"]


class Retained(Client):
    """Appends large texts to a stream that keeps its last 4 MB: what is trimmed all the time."""

    pause_s = 0.2
    path = "/v1/stream/soak/retained"

    def step(self) -> None:
        headers = {"Content-Type": "text/plain", "Stream-Max-Bytes": str(4 * 1024 * 1024)}
        self.expect("create", "PUT", self.path, 200, 201, headers=headers)
        body = b"line\n" * self.chance.choice((100, 1_000, 20_000))
        self.expect("append", "POST", self.path, 204, headers={"Content-Type": "text/plain"}, content=body)


class Follower(Client):
    """Follows an appender by server-sent events; sees each message once, in order, across every fault."""

    def __init__(self, name: str, url: str, seed: int, appender: Appender) -> None:
        super().__init__(name, url, seed)
        self.appender = appender
        self.offset = "-1"
        self.seen = 0

    def step(self) -> None:
        target = f"{self.appender.path}?offset={self.offset}&live=sse"
        try:
            with self.http.stream("GET", target) as response:
                if response.status_code == 404:
                    raise Away("not there yet")
                assert response.status_code in (200, *AGAIN), f"{target}: {response.status_code}"
                self.read(response)
        except httpx.HTTPError as error:
            raise Away(str(error)) from error

    def read(self, response: httpx.Response) -> None:
        event, data, pending = "", "", []
        for line in response.iter_lines():
            if self.ending.is_set():
                return
            if line.startswith("event:"):
                event = line[6:].strip()
            elif line.startswith("data:"):
                data += line[5:]
            elif not line and event:
                if event == "data":
                    pending += [each["n"] for each in json.loads(data)]
                elif event == "control":
                    self.take(pending)
                    pending, self.offset = [], json.loads(data)["streamNextOffset"]
                event, data = "", ""

    def take(self, numbers: list[int]) -> None:
        expected = list(range(self.seen, self.seen + len(numbers)))
        if numbers != expected:
            self.problems.append(f"{self.name}: got {numbers[:5]}…, expected {expected[:5]}…")
        self.seen += len(numbers)
        self.requests += len(numbers)

    def settle(self) -> list[str]:
        if self.seen == 0:
            return [f"{self.name}: nothing arrived"]
        return []


# -- tables and topics


class Writer(Client):
    """Inserts, changes and deletes items of its own, each write on a condition, so that it can be sent again."""

    def __init__(self, name: str, url: str, seed: int) -> None:
        super().__init__(name, url, seed)
        self.items: dict[str, int] = {}
        self.inserted: list[str] = []
        self.number = 0

    def step(self) -> None:
        choice = self.chance.random()
        if choice < 0.4 or not self.items:
            self.number += 1
            self.insert(f"{self.name}-{self.number}")
        elif choice < 0.6:
            self.change(self.chance.choice(list(self.items)))
        elif choice < 0.9:
            self.get(self.chance.choice(list(self.items)))
        elif len(self.items) > ALIVE_MAX:
            for key in list(self.items)[: ALIVE_MAX // 4]:
                self.delete(key)
        else:
            self.put_expiring()

    def write(self, operation: str, key: str, body: dict[str, Any], wanted: int | None) -> None:
        """Send until it is answered. A condition that fails means that an earlier attempt was committed."""

        def send() -> None:
            response = self.call("put", operation, {"TableName": TABLE, **body})
            if response.status_code == 400 and "ConditionalCheckFailed" in response.text:
                found = self.found(key)
                assert found == wanted, f"{operation} {key}: wanted {wanted}, found {found}"
                return
            assert response.status_code == 200, f"{operation} {key}: {response.status_code} {response.text[:300]}"

        self.until_answered(send)

    def insert(self, key: str) -> None:
        item = {"id": {"S": key}, "v": {"N": "0"}, "by": {"S": self.name}}
        body = {"Item": item, "ConditionExpression": "attribute_not_exists(id)"}
        self.write("PutItem", key, body, 0)
        self.items[key] = 0
        self.inserted.append(key)

    def change(self, key: str) -> None:
        was = self.items[key]
        body = {
            "Key": {"id": {"S": key}},
            "UpdateExpression": "SET v = :new",
            "ConditionExpression": "v = :was",
            "ExpressionAttributeValues": {":new": {"N": str(was + 1)}, ":was": {"N": str(was)}},
        }
        self.write("UpdateItem", key, body, was + 1)
        self.items[key] = was + 1

    def delete(self, key: str) -> None:
        body = {"Key": {"id": {"S": key}}, "ConditionExpression": "attribute_exists(id)"}
        self.write("DeleteItem", key, body, None)
        del self.items[key]

    def put_expiring(self) -> None:
        item = {"id": {"S": f"expiring-{self.name}"}, "until": {"N": str(int(time.time()) + 5)}}
        response = self.call("put", "PutItem", {"TableName": TABLE, "Item": item})
        assert response.status_code == 200, response.text

    def get(self, key: str) -> None:
        found = self.found(key)
        assert found == self.items[key], f"{key}: acknowledged {self.items[key]}, found {found}"

    def found(self, key: str) -> int | None:
        body = {"TableName": TABLE, "Key": {"id": {"S": key}}, "ConsistentRead": True}
        response = self.call("get", "GetItem", body)
        assert response.status_code == 200, response.text
        item = response.json().get("Item")
        return None if item is None else int(item["v"]["N"])

    def settle(self) -> list[str]:
        wrong = []
        for key, version in self.items.items():
            found = self.until_answered(lambda key=key: self.found(key))
            if found != version:
                wrong.append(f"{key}: acknowledged {version}, found {found}")
        return wrong


class Consumer(Client):
    """Consumes what the routed inserts become. Now and then it forgets what it was given, as a worker that crashed."""

    def __init__(self, name: str, url: str, seed: int) -> None:
        super().__init__(name, url, seed)
        self.seen: set[str] = set()

    def step(self) -> None:
        self.consume(timeout_s=1.0, forget=self.chance.random() < 0.02)

    def consume(self, *, timeout_s: float, forget: bool) -> int:
        body: dict[str, Any] = {"topic": TOPIC, "group_id": GROUP, "consumer_id": self.name, "limit": 100}
        body |= {"partition_id": "any", "timeout_seconds": timeout_s, "visibility_timeout_seconds": 10}
        response = self.expect("consume", "POST", "/v1/api/topics/consume", 200, json=body)
        delivery = response.json()
        messages = delivery["messages"]
        if not messages or forget:
            return len(messages)
        self.seen.update(json.loads(b64decode(message["payload"]))["id"] for message in messages)
        # With the lease's id: an ack covers this delivery, and not what this consumer has forgotten.
        ack = {"topic": TOPIC, "group_id": GROUP, "consumer_id": self.name, "lease_id": delivery["lease_id"]}
        ack |= {"partition_id": delivery["partition_id"], "upto_offset": messages[-1]["offset"]}
        # 409 and 400: the lease ran out meanwhile, and the messages come again.
        self.expect("ack", "POST", "/v1/api/topics/ack", 200, 400, 409, json=ack)
        return len(messages)


# -- SQL, Arrow, webhooks


class Selecter(Client):
    pause_s = 0.5

    def step(self) -> None:
        text = self.chance.choice(
            (
                f"SELECT by, count(*) AS n, max(v) AS newest FROM {TABLE} WHERE by IS NOT NULL GROUP BY by",
                f"SELECT count(*) AS n FROM {BULK}",
                "SELECT * FROM system.topic_groups",
                f"SELECT id, v FROM {TABLE} ORDER BY id LIMIT 50",
            )
        )
        rows = self.expect("select", "POST", "/v1/api/sql", 200, json={"sql": text}).json()["results"][-1]["rows"]
        if BULK in text:
            assert int(rows[0]["n"]) == BULK_ITEMS, rows


class SlowArrow(Client):
    """Reads all items of a table that changes meanwhile, slowly. Its rows are of one moment, the WAL stays small."""

    pause_s = 1.0

    def step(self) -> None:
        parts = []
        try:
            with self.http.stream("GET", f"/v1/tables/{BULK}/items", headers=ARROW) as response:
                if response.status_code in AGAIN:
                    raise Away("busy")
                assert response.status_code == 200, response.status_code
                for part in response.iter_bytes(64 * 1024):
                    parts.append(part)
                    if self.ending.wait(0.02):
                        return
        except httpx.HTTPError as error:
            raise Away(str(error)) from error
        rows = pa.ipc.open_stream(b"".join(parts)).read_all()
        versions = {json.loads(item)["round"] for item in rows.column("item").to_pylist()}
        assert rows.num_rows == BULK_ITEMS, f"{rows.num_rows} items instead of {BULK_ITEMS}"
        # One transaction at a time moves 100 items on to the next round: at one moment there are two rounds at most.
        assert len(versions) <= 2, f"items of {len(versions)} moments: {sorted(versions)}"
        self.requests += 1


class BulkWriter(Client):
    """Moves the items of the bulk table on, 100 in a transaction, round after round."""

    pause_s = 0.05

    def __init__(self, name: str, url: str, seed: int) -> None:
        super().__init__(name, url, seed)
        self.round, self.next = 0, 0

    def fill(self) -> None:
        for first in range(0, BULK_ITEMS, 100):
            self.until_answered(lambda first=first: self.transact(first, 0))

    def step(self) -> None:
        self.until_answered(lambda: self.transact(self.next, self.round + 1))
        self.next += 100
        if self.next == BULK_ITEMS:
            self.round, self.next = self.round + 1, 0

    def transact(self, first: int, number: int) -> None:
        puts = [
            {"Put": {"TableName": BULK, "Item": {"id": {"S": f"b{each:06}"}, "round": {"N": str(number)}, **FILLER}}}
            for each in range(first, first + 100)
        ]
        response = self.call("transact", "TransactWriteItems", {"TransactItems": puts})
        assert response.status_code == 200, response.text[:300]


FILLER = {"text": {"S": "x" * 300}}


class Webhooks(Client):
    """Appends to streams of a webhook subscription; the endpoint fails now and then. In the end everything is acked."""

    pause_s = 0.1
    subscription = "/v1/stream/__ds/subscriptions/soak"

    def __init__(self, name: str, url: str, seed: int) -> None:
        super().__init__(name, url, seed)
        self.wakes = self.refused = 0
        self.streams = [f"soak-hooks/{number}" for number in range(5)]
        self.made = False
        chance = random.Random(seed)
        client = self

        class Endpoint(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                fail = chance.random() < 0.1
                client.wakes += not fail
                client.refused += fail
                body = b'{"done": true}'
                self.send_response(500 if fail else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.endpoint = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
        self.endpoint.daemon_threads = True
        threading.Thread(target=self.endpoint.serve_forever, daemon=True).start()

    def step(self) -> None:
        if not self.made:
            hook = {"url": f"http://127.0.0.1:{self.endpoint.server_port}/hook"}
            body = {"type": "webhook", "pattern": "soak-hooks/*", "webhook": hook, "lease_ttl_ms": 5_000}
            self.expect("subscribe", "PUT", self.subscription, 200, 201, json=body)
            for path in self.streams:
                target = f"/v1/stream/{path}"
                self.expect("create", "PUT", target, 200, 201, headers={"Content-Type": "text/plain"})
            self.made = True
        target = f"/v1/stream/{self.chance.choice(self.streams)}"
        self.expect("append", "POST", target, 204, headers={"Content-Type": "text/plain"}, content=b"wake")

    def settle(self) -> list[str]:
        end = time.monotonic() + PATIENCE_S
        left: list[Any] = ["the subscription was not read"]
        while left and time.monotonic() < end:
            facts = self.until_answered(lambda: self.expect("read", "GET", self.subscription, 200)).json()
            tails = {}
            for path in self.streams:
                head = self.until_answered(lambda path=path: self.expect("read", "HEAD", f"/v1/stream/{path}", 200))
                tails[path] = head.headers["stream-next-offset"]
            acked = {each["path"]: each["acked_offset"] for each in facts["streams"]}
            left = [path for path in self.streams if acked.get(path) != tails[path]]
            time.sleep(0.2)
        return [f"{self.name}: never acknowledged up to the tail: {left}"] if left else []


class Backups(Client):
    """Backs the database up, also while the server is killed and restarted; in the end the newest one is restored."""

    pause_s = 20.0

    def __init__(self, name: str, url: str, seed: int, data: Path) -> None:
        super().__init__(name, url, seed)
        self.data, self.target = data, data.parent / "backups"

    def step(self) -> None:
        self.run_command("backup", "--data", str(self.data), "--keep", "3", str(self.target))
        self.requests += 1

    def settle(self) -> list[str]:
        self.run_command("restore", str(self.target), str(self.data.parent / "restored"))
        checked = check(self.data.parent / "restored")
        return [] if checked.returncode == 0 else [f"the restored database: {checked.stdout}{checked.stderr}"]

    def run_command(self, *arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "tailrace.cli", *arguments], capture_output=True, text=True, cwd=ROOT
        )
        assert done.returncode == 0, f"tailrace {' '.join(arguments)}: {done.stdout}{done.stderr}"


# -- clients that behave badly


class Stalled(Client):
    """Asks for much, and does not read it."""

    pause_s = 1.0

    def __init__(self, name: str, url: str, seed: int) -> None:
        super().__init__(name, url, seed)
        self.sockets: list[socket.socket] = []

    def step(self) -> None:
        targets = (f"{Retained.path}?offset=-1", f"{Retained.path}?offset=-1&live=sse", f"/v1/tables/{TABLE}/stream")
        try:
            connection = self.connect()
            connection.sendall(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % self.chance.choice(targets).encode())
        except OSError as error:
            raise Away(str(error)) from error
        self.sockets.append(connection)
        self.requests += 1
        while len(self.sockets) > 30:
            self.sockets.pop(0).close()

    def connect(self) -> socket.socket:
        where = urlsplit(self.url)
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(1.0)
        connection.connect((where.hostname, where.port))
        return connection


class Garbage(Stalled):
    """Sends nonsense, and halves of requests, and leaves."""

    pause_s = 0.2

    def step(self) -> None:
        sent = self.chance.choice(
            (
                self.chance.randbytes(500),
                b"POST /v1/stream/soak/retained HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nhalf",
                b"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: DynamoDB_20120810.PutItem\r\n"
                b"Content-Type: application/x-amz-json-1.0\r\nContent-Length: 9\r\n\r\n{" + b'"a":{{{}',
                b"GET /v1/stream/soak/retained?offset=" + b"9" * 5000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
            )
        )
        try:
            with self.connect() as connection:
                connection.sendall(sent)
                if self.chance.random() < 0.5:
                    connection.recv(4096)
        except OSError as error:
            raise Away(str(error)) from error
        self.requests += 1
