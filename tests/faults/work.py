"""Clients of the servers: each sends every request to another server, and notes what became of it."""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from tests.faults.history import (
    DONE,
    INITIAL,
    REFUSED,
    UNKNOWN,
    Acknowledgement,
    Delivery,
    Outcome,
    Read,
    Swap,
    Write,
)

TIMEOUT_S: Final = 8.0  # after which a response is not waited for
AVOIDED_S: Final = 1.0  # how long a server that does not answer is left alone, as a load balancer would
PAUSE_S: Final = 0.01
# Codes of 503 that say that nothing was written, and nothing will be.
NOTHING_WRITTEN: Final = frozenset(
    ("QUEUE_FULL", "INTERRUPTED", "DATABASE_BUSY", "DATABASE_LOST", "NOT_LEADER", "DISK_FULL", "WRITER_AWAY", "LOST")
)
TABLE, COUNTERS, ACCOUNTS = "registers", "counters", "accounts"
CHANGES, JOBS, RECEIPTS = "changes", "jobs", "receipts"
AUDIT: Final = "audit"
GROUP: Final = "workers"
KEYS: Final = ("k0", "k1", "k2")
NAMES: Final = ("ann", "bob", "cem", "dee")
BALANCE: Final = 1_000
JOBS_PARTITIONS: Final = 2
_SETUP: Final = (
    f"CREATE TABLE {TABLE} (id TEXT PRIMARY KEY, v TEXT) WITH (stream = NEW_AND_OLD_IMAGES)",
    f"CREATE TABLE {COUNTERS} (id TEXT PRIMARY KEY, n BIGINT)",
    f"CREATE TABLE {ACCOUNTS} (id TEXT PRIMARY KEY, balance BIGINT)",
    f"CREATE TOPIC {CHANGES}",
    f"ALTER TOPIC {CHANGES} ADD SOURCE {TABLE} ON INSERT WITH (payload = 'full')",
    f"ALTER TOPIC {CHANGES} ADD SOURCE {TABLE} ON UPDATE WITH (payload = 'full')",
    f"CREATE TOPIC {JOBS} PARTITIONS {JOBS_PARTITIONS}",
    f"CREATE TOPIC {RECEIPTS}",
    *(f"INSERT INTO {ACCOUNTS} VALUES ('{name}', {BALANCE})" for name in NAMES),
)


class Answer(NamedTuple):
    status: int  # 0: there was none
    body: bytes
    headers: dict[str, str]
    began_s: float
    ended_s: float

    @property
    def outcome(self) -> Outcome:
        if self.status == 0:
            return UNKNOWN
        if self.status < 400:
            return DONE
        return REFUSED if self.status < 500 or self.code in NOTHING_WRITTEN else UNKNOWN

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Of an error, in the form of either API."""
        if not self.status or self.status < 400:
            return ""
        try:
            found = self.json
        except ValueError:
            return "?"
        if isinstance(found.get("error"), dict):
            return str(found["error"].get("code", "?"))
        code = str(found.get("__type", "?")).rpartition("#")[2]
        return str(found.get("code", code))


class Balancer:
    """Which server the next request goes to: each in turn, but for those that did not answer a moment ago."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.places = [urlsplit(url).netloc for url in urls]
        self._turn = itertools.count()
        self._avoided: dict[str, float] = {}

    def next(self) -> str:
        now_s = time.monotonic()
        for _ in self.places:
            place = self.places[next(self._turn) % len(self.places)]
            if self._avoided.get(place, 0.0) < now_s:
                return place
        return self.places[next(self._turn) % len(self.places)]

    def avoid(self, place: str) -> None:
        self._avoided[place] = time.monotonic() + AVOIDED_S


class Client(threading.Thread, ABC):
    """Does one step after the other until it is told to end."""

    def __init__(self, name: str, balancer: Balancer) -> None:
        super().__init__(name=name, daemon=True)
        self._balancer = balancer
        self._connections: dict[str, http.client.HTTPConnection] = {}
        self._numbers = itertools.count()
        self.chance = random.Random(name)
        self.ending = threading.Event()
        self.acknowledged_s: list[float] = []  # when requests that write were acknowledged
        self.codes: Counter[str] = Counter()
        self.outcomes: Counter[Outcome] = Counter()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.ending.is_set():
                self.step()
                self.ending.wait(PAUSE_S * self.chance.random() * 2)
        except BaseException as error:
            self.failure = error

    @abstractmethod
    def step(self) -> None: ...

    def value(self) -> str:
        """One that nobody else has."""
        return f"{self.name}-{next(self._numbers)}"

    def ask(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Answer:
        place = self._balancer.next()
        connection = self._connections.get(place)
        if connection is None:
            connection = self._connections[place] = http.client.HTTPConnection(place, timeout=TIMEOUT_S)
        began_s = time.monotonic()
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            found = Answer(response.status, response.read(), dict(response.headers.items()), began_s, time.monotonic())
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self._balancer.avoid(place)
            self.codes[f"no response: {type(error).__name__}"] += 1
            return Answer(0, b"", {}, began_s, time.monotonic())
        if found.status >= 400:
            self.codes[f"{found.status} {found.code}"] += 1
            if found.status == 503:
                self._balancer.avoid(place)
        return found

    def note(self, answer: Answer, *expected: str) -> Outcome:
        """What became of a write. A response that no fault explains is a failure."""
        outcome = answer.outcome
        if answer.status >= 400 and answer.status != 503 and answer.code not in expected:
            raise AssertionError(f"{self.name}: {answer.status} {answer.body[:300]!r}")
        self.outcomes[outcome] += 1
        if outcome is DONE:
            self.acknowledged_s.append(answer.ended_s)
        return outcome

    def until_done(self, attempt: Callable[[], Answer], *, even_ending: bool = False) -> Answer | None:
        """The same request, until it is acknowledged. For those that have no effect when they are repeated."""
        while even_ending or not self.ending.is_set():
            answer = attempt()
            if self.note(answer) is DONE:
                return answer
            time.sleep(PAUSE_S)
        return None

    def post(self, path: str, body: Any) -> Answer:
        return self.ask("POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def dynamodb(self, operation: str, body: dict[str, Any]) -> Answer:
        headers = {
            "X-Amz-Target": f"DynamoDB_20120810.{operation}",
            "Content-Type": "application/x-amz-json-1.0",
            "Authorization": "Bearer none",
        }
        return self.ask("POST", "/", json.dumps(body).encode(), headers)


class Operator(Client):
    """Prepares, and looks at the end."""

    def step(self) -> None:
        raise AssertionError("it is not run")

    def prepare(self) -> None:
        for statement in _SETUP:
            self.sql(statement)
        self.create(AUDIT)

    def sql(self, statement: str) -> Any:
        while True:
            answer = self.post("/v1/api/sql", {"sql": statement})
            if answer.status == 200:
                return answer.json
            assert answer.status in (0, 503), (statement, answer)
            time.sleep(PAUSE_S)

    def create(self, stream: str) -> None:
        while True:
            answer = self.ask("PUT", f"/v1/stream/{stream}", None, {"Content-Type": "text/plain"})
            if answer.status in (200, 201):
                return
            assert answer.status in (0, 503), answer
            time.sleep(PAUSE_S)

    def get(self, path: str) -> Answer:
        while True:
            answer = self.ask("GET", path)
            if answer.status < 500 and answer.status:
                return answer
            time.sleep(PAUSE_S)

    def lines(self, stream: str) -> list[str]:
        """All of a stream of texts."""
        return b"".join(answer.body for answer in self._pages(f"/v1/stream/{stream}")).decode().split()

    def messages(self, topic: str, partition: int = 0) -> list[Any]:
        return [
            each
            for answer in self._pages(f"/v1/topics/{topic}/{partition}/stream")
            if answer.body
            for each in answer.json
        ]

    def changes(self, table: str) -> list[Any]:
        return [each for answer in self._pages(f"/v1/tables/{table}/stream") if answer.body for each in answer.json]

    def _pages(self, path: str) -> Iterator[Answer]:
        offset = "-1"
        while True:
            answer = self.get(f"{path}?offset={offset}")
            assert answer.status == 200, answer
            yield answer
            fields = {name.lower(): value for name, value in answer.headers.items()}
            if "stream-up-to-date" in fields:
                return
            offset = fields["stream-next-offset"]


class LiveReader(Client):
    """Follows a stream of texts as an event stream; when that breaks, from its last offset on, at another server."""

    def __init__(self, name: str, balancer: Balancer, stream: str) -> None:
        super().__init__(name, balancer)
        self.stream = stream
        self.lines: list[str] = []
        self._offset = "-1"

    def step(self) -> None:
        place = self._balancer.next()
        connection = http.client.HTTPConnection(place, timeout=TIMEOUT_S)
        try:
            connection.request("GET", f"/v1/stream/{self.stream}?live=sse&offset={self._offset}")
            response = connection.getresponse()
            if response.status == 200:
                self._follow(response)
            else:
                assert response.status == 503, (response.status, response.read())
                self._balancer.avoid(place)
        except (OSError, http.client.HTTPException):
            self._balancer.avoid(place)
        finally:
            connection.close()

    def _follow(self, response: http.client.HTTPResponse) -> None:
        """Take what comes. Data counts when the offset after it is known: without that it is read again."""
        kind, data, texts = b"", list[bytes](), list[str]()
        while not self.ending.is_set() and (line := response.readline()):
            name, _, value = line.strip().partition(b":")
            if name == b"event":
                kind = value.strip()
            elif name == b"data":
                data.append(value)
            elif not line.strip():
                if kind == b"data":
                    texts += b"\n".join(data).decode().split()
                elif kind == b"control":
                    self.lines += texts
                    self._offset = json.loads(b"".join(data))["streamNextOffset"]
                    texts = []
                kind, data = b"", []


class Appender(Client):
    """Appends to a stream of its own, and repeats nothing; with `claims`, as an idempotent producer that repeats."""

    def __init__(self, name: str, balancer: Balancer, *, claims: bool) -> None:
        super().__init__(name, balancer)
        self.stream = f"s-{name}"
        self.writes: list[Write] = []
        self._claims = claims

    def step(self) -> None:
        number = next(self._numbers)
        value = f"{self.name}-{number}"
        headers = {"Content-Type": "text/plain"}
        if self._claims:
            headers |= {"Producer-Id": self.name, "Producer-Epoch": "0", "Producer-Seq": str(number)}

        def attempt() -> Answer:
            return self.ask("POST", f"/v1/stream/{self.stream}", f"{value}\n".encode(), headers)

        began_s = time.monotonic()
        if self._claims:
            done = self.until_done(attempt)
            outcome = UNKNOWN if done is None else DONE
        else:
            outcome = self.note(attempt())
        self.writes.append(Write(value, began_s, time.monotonic(), outcome))


class Registers(Client):
    """Writes and reads rows of a table that is routed to a topic. Shared by several clients."""

    def __init__(self, name: str, balancer: Balancer) -> None:
        super().__init__(name, balancer)
        self.writes: dict[str, list[Write]] = {key: [] for key in KEYS}
        self.reads: dict[str, list[Read]] = {key: [] for key in KEYS}

    def step(self) -> None:
        key = self.chance.choice(KEYS)
        if self.chance.random() < 0.5:
            self.read(key)
            return
        value = self.value()
        answer = self.dynamodb("PutItem", {"TableName": TABLE, "Item": {"id": {"S": key}, "v": {"S": value}}})
        self.writes[key].append(Write(value, answer.began_s, answer.ended_s, self.note(answer)))

    def read(self, key: str) -> None:
        found = read(self, TABLE, key)
        if found is not None:
            self.reads[key].append(found)


def read(client: Client, table: str, key: str) -> Read | None:
    answer = client.dynamodb("GetItem", {"TableName": table, "Key": {"id": {"S": key}}, "ConsistentRead": True})
    if answer.status in (0, 503):
        return None
    assert answer.status == 200, (client.name, answer)
    item = answer.json.get("Item")
    return Read(INITIAL if item is None else item["v"]["S"], answer.began_s, answer.ended_s)


class Swapper(Client):
    """Replaces the value of one row, on the condition that it is the one it has read."""

    KEY: Final = "swapped"

    def __init__(self, name: str, balancer: Balancer) -> None:
        super().__init__(name, balancer)
        self.swaps: list[Swap] = []
        self.reads: list[Read] = []

    def step(self) -> None:
        found = read(self, TABLE, self.KEY)
        if found is None:
            return
        self.reads.append(found)
        value = self.value()
        request: dict[str, Any] = {"TableName": TABLE, "Item": {"id": {"S": self.KEY}, "v": {"S": value}}}
        if found.value == INITIAL:
            request["ConditionExpression"] = "attribute_not_exists(id)"
        else:
            request |= {"ConditionExpression": "v = :seen", "ExpressionAttributeValues": {":seen": {"S": found.value}}}
        answer = self.dynamodb("PutItem", request)
        outcome = self.note(answer, "ConditionalCheckFailedException")
        self.swaps.append(Swap(found.value, Write(value, answer.began_s, answer.ended_s, outcome)))


class Adder(Client):
    """Adds 1 to a number."""

    KEY: Final = "n"

    def __init__(self, name: str, balancer: Balancer) -> None:
        super().__init__(name, balancer)
        self.added: list[Outcome] = []

    def step(self) -> None:
        request = {
            "TableName": COUNTERS,
            "Key": {"id": {"S": self.KEY}},
            "UpdateExpression": "ADD n :one",
            "ExpressionAttributeValues": {":one": {"N": "1"}},
        }
        self.added.append(self.note(self.dynamodb("UpdateItem", request)))


class Publisher(Client):
    """Publishes messages, and repeats nothing."""

    def __init__(self, name: str, balancer: Balancer) -> None:
        super().__init__(name, balancer)
        self.writes: dict[int, list[Write]] = {partition: [] for partition in range(JOBS_PARTITIONS)}

    def step(self) -> None:
        value, partition = self.value(), self.chance.randrange(JOBS_PARTITIONS)
        headers = {"Content-Type": "text/plain", "Topic-Partition": str(partition)}
        answer = self.ask("POST", f"/v1/topics/{JOBS}", value.encode(), headers)
        self.writes[partition].append(Write(value, answer.began_s, answer.ended_s, self.note(answer)))


class GroupMember(Client):
    """Consumes messages, and acknowledges them one by one."""

    def __init__(self, name: str, balancer: Balancer) -> None:
        super().__init__(name, balancer)
        self.deliveries: list[Delivery] = []
        self.acknowledgements: list[Acknowledgement] = []

    def step(self) -> None:
        member = {"topic": JOBS, "group_id": GROUP, "consumer_id": self.name}
        wanted = {"partition_id": "any", "limit": 20, "timeout_seconds": 0.2, "visibility_timeout_seconds": 4}
        answer = self.post("/v1/api/topics/consume", {**member, **wanted})
        if answer.status in (0, 503):
            return
        assert answer.status == 200, (self.name, answer)
        found = answer.json
        for message in found["messages"]:
            self._take(message, answer)
        if found["messages"]:
            self._acknowledge({**member, "partition_id": found["partition_id"], "lease_id": found["lease_id"]}, found)

    def _take(self, message: dict[str, Any], answer: Answer) -> None:
        self.deliveries.append(Delivery(payload(message), answer.began_s, answer.ended_s))

    def _acknowledge(self, member: dict[str, Any], found: dict[str, Any]) -> None:
        """All of them or none: it is refused if the lease is over, which may be early when the next leader's clock is
        ahead. (`/v1/api/topics/ack` leaves alone what the consumer does not hold, and does not say so.)"""
        offsets = [message["offset"] for message in found["messages"]]
        answer = self.post("/v1/api/transaction", {"operations": [{"op": "ack", **member, "offsets": offsets}]})
        outcome = self.note(answer, "LEASE_LOST")
        for message in found["messages"]:
            self.acknowledgements.append(Acknowledgement(payload(message), answer.began_s, answer.ended_s, outcome))


class Transferer(Client):
    """Moves amounts between accounts in transactions that also publish and append; repeats each until it is done."""

    def __init__(self, name: str, balancer: Balancer) -> None:
        super().__init__(name, balancer)
        self.writes: list[Write] = []

    def step(self) -> None:
        value = self.value()
        source, target = self.chance.sample(NAMES, 2)
        amount = self.chance.randint(1, 50)

        def change(name: str, by: int) -> dict[str, Any]:
            expression = "SET balance = balance + :n"
            return {"op": "update", "table": ACCOUNTS, "key": name, "expression": expression, "values": {"n": by}}

        operations = [
            change(source, -amount),
            change(target, amount),
            {"op": "publish", "topic": RECEIPTS, "messages": [{"payload": base64.b64encode(value.encode()).decode()}]},
            {"op": "append", "stream": AUDIT, "text": f"{value}\n"},
        ]
        began_s = time.monotonic()
        request = {"token": value, "operations": operations}
        done = self.until_done(lambda: self.post("/v1/api/transaction", request))
        self.writes.append(Write(value, began_s, time.monotonic(), UNKNOWN if done is None else DONE))


def payload(message: dict[str, Any]) -> str:
    return base64.b64decode(message["payload"]).decode()
