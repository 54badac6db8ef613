"""Clients that write over real sockets, keep a ledger of what was acknowledged, and hold a server to it after a crash.

Each client owns its part of the data, so that it knows exactly what must be there: everything acknowledged, once; what
was under way when the connection broke, once or not at all. `settle` compares that with what a restarted server says,
adopts what became of the unknown request and, where the client is an idempotent producer, sends it again.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.support.model import Answer, Fork, Model, Stream
from tests.support.patience import PATIENCE_S

BEGINNING = "-1"  # sorts before every offset
TEXT = "text/plain"


class Lost(Exception):
    """The connection broke: nobody knows whether the request was carried out."""


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes


class Connection:
    """One kept-alive connection."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_S)

    def ask(self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b"") -> Reply:
        try:
            self._connection.request(method, f"/v1/stream/{path}", body or None, headers or {})
            answer = self._connection.getresponse()
            return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise Lost(f"{method} {path}: {error!r}") from error

    def read_all(self, path: str) -> Reply:
        """The whole stream, page after page; the reply is the last one with all the bytes (of JSON: all the items)."""
        offset, bodies, items = BEGINNING, b"", []
        while True:
            reply = self.ask("GET", f"{path}?offset={offset}")
            if reply.status != 200:
                return reply
            if reply.headers["content-type"] == "application/json":
                items += json.loads(reply.body)
                reply.body = json.dumps(items).encode()
            else:
                bodies += reply.body
                reply.body = bodies
            if "stream-up-to-date" in reply.headers:
                return reply
            assert reply.headers["stream-next-offset"] > offset, f"{path}: a page leads nowhere at {offset}"
            offset = reply.headers["stream-next-offset"]

    def close(self) -> None:
        self._connection.close()


class Client(ABC):
    """One writer."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.chance = random.Random(f"{name} {seed}")
        self.acknowledged = 0

    @abstractmethod
    def step(self, server: Connection) -> None:
        """Send one request. Raises `Lost` when it broke off; the ledger then says that its outcome is unknown."""

    @abstractmethod
    def settle(self, server: Connection) -> None:
        """Hold the server to the ledger and resolve what was unknown."""


class Producer(Client):
    """Appends to a stream that it shares with others, each request once, however often it is sent."""

    def __init__(self, name: str, seed: int, path: str) -> None:
        super().__init__(name, seed)
        self.path = path
        self.epoch = 0
        self.sequence = 0
        self.sent: list[str] = []  # what was acknowledged, in order
        self.unknown: str | None = None

    def step(self, server: Connection) -> None:
        text = self.unknown or f"{self.name}:{len(self.sent)};"
        again, self.unknown = self.unknown is not None, text
        fields = {"Content-Type": TEXT, "Producer-Id": self.name}
        fields |= {"Producer-Epoch": str(self.epoch), "Producer-Seq": str(self.sequence)}
        reply = server.ask("POST", self.path, fields, text.encode())
        assert reply.status in ((200, 204) if again else (200,)), f"{self.name}: {reply}"
        self.unknown = None
        self.sent.append(text)
        self.sequence += 1
        self.acknowledged += 1
        if self.chance.random() < 0.05:  # as a producer that restarts
            self.epoch, self.sequence = self.epoch + 1, 0

    def settle(self, server: Connection) -> None:
        found = self.found(server)
        allowed = [self.sent, [*self.sent, self.unknown]] if self.unknown else [self.sent]
        assert found in allowed, f"{self.name}: {difference(found, self.sent)}, unknown: {self.unknown}"
        if self.unknown:
            self.step(server)
            assert self.found(server) == self.sent, f"{self.name}: the retry was not applied exactly once"

    def found(self, server: Connection) -> list[str]:
        return tokens(server.read_all(self.path), self.name, ":")


class Appender(Client):
    """Appends to a stream that it shares with others, without a way to send again what broke off."""

    def __init__(self, name: str, seed: int, path: str) -> None:
        super().__init__(name, seed)
        self.path = path
        self.number = 0
        self.sent: set[str] = set()
        self.unknown: set[str] = set()

    def step(self, server: Connection) -> None:
        text = f"{self.name}#{self.number}{'x' * self.chance.choice([0, 0, 10, 3000])};"
        self.number += 1
        self.unknown.add(text)
        reply = server.ask("POST", self.path, {"Content-Type": TEXT}, text.encode())
        assert reply.status == 204, f"{self.name}: {reply}"
        self.unknown.discard(text)
        self.sent.add(text)
        self.acknowledged += 1

    def settle(self, server: Connection) -> None:
        counts = Counter(tokens(server.read_all(self.path), self.name, "#"))
        assert self.sent <= counts.keys(), (
            f"{self.name}: acknowledged and lost: {sorted(self.sent - counts.keys())[:5]}"
        )
        assert counts.keys() <= self.sent | self.unknown, f"{self.name}: never sent: {counts.keys() - self.sent}"
        assert set(counts.values()) <= {1}, f"{self.name}: twice: {[text for text in counts if counts[text] > 1]}"


class Keeper(Client):
    """Appends to a stream of its own that keeps only its last bytes; also makes streams that expire."""

    MAX_BYTES = 400

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name, seed)
        self.sent = 0
        self.unknown = False
        self.made = False
        self.passing = 0

    def step(self, server: Connection) -> None:
        if not self.made:
            reply = server.ask("PUT", self.name, {"Content-Type": TEXT, "Stream-Max-Bytes": str(self.MAX_BYTES)})
            assert reply.status in (200, 201), reply
            self.made = True
        if self.chance.random() < 0.2:
            self.passing += 1
            fields = {"Content-Type": TEXT, "Stream-TTL": "1"}
            reply = server.ask("PUT", f"{self.name}/passing/{self.passing}", fields, b"soon gone")
            assert reply.status in (200, 201), reply
        self.unknown = True
        reply = server.ask("POST", self.name, {"Content-Type": TEXT}, self._token(self.sent))
        assert reply.status == 204, reply
        self.unknown = False
        self.sent += 1
        self.acknowledged += 1

    def settle(self, server: Connection) -> None:
        if not self.made:
            return
        reply = server.read_all(self.name)
        assert reply.status == 200, reply
        found = reply.body
        for sent in {self.sent, self.sent + self.unknown}:
            kept = min(sent, self.MAX_BYTES // len(self._token(0)))
            if found.endswith(b"".join(self._token(number) for number in range(sent - kept, sent))):
                first = sent - len(found) // len(self._token(0))
                assert found == b"".join(self._token(number) for number in range(first, sent)), found
                self.sent, self.unknown = sent, False
                return
        raise AssertionError(f"{self.name}: {self.sent} acknowledged, the stream ends with {found[-60:]!r}")

    @staticmethod
    def _token(number: int) -> bytes:
        return b"%09d;" % number


class Family(Client):
    """Makes, forks, closes and deletes a few streams of its own, and knows by the model what each must hold."""

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name, seed)
        self.paths = [f"{name}/{letter}" for letter in "abcd"]
        self.model = Model(beginning=BEGINNING)
        self.other: Model | None = None  # how it is if the request under way was carried out
        self.touched = ""
        self.number = 0

    def step(self, server: Connection) -> None:
        after = self.model.copy()
        answer, (method, path, fields, body) = self._choose(after)
        self.other, self.touched = after, path
        reply = server.ask(method, path, fields, body)
        self.other = None
        assert reply.status == answer.status, f"{method} {path} {fields}: {reply}, expected {answer}"
        self.model = after
        if reply.status < 300 and method != "DELETE":
            assert ("stream-closed" in reply.headers) == answer.closed, f"{method} {path}: {reply}, expected {answer}"
            self.model.answered(path, reply.headers["stream-next-offset"])
        self.acknowledged += 1

    def settle(self, server: Connection) -> None:
        found = {path: self._look(server, path) for path in self.paths}
        candidates = [self.model] if self.other is None else [self.model, self.other]
        matching = [model for model in candidates if all(_is(found[path], model, path) for path in self.paths)]
        assert matching, f"{self.name}: found {found}, expected one of {[model.streams for model in candidates]}"
        self.model, self.other = matching[0], None
        stream = self.model.streams.get(self.touched)
        if stream is not None and not stream.deleted:
            self.model.answered(self.touched, found[self.touched].headers["stream-next-offset"])

    def _look(self, server: Connection, path: str) -> Reply:
        reply = server.read_all(path)
        for source in self.model.streams.values():
            # Each known offset still leads to the same place.
            if source.path == path and reply.status == 200 and len(source.offsets) > 2:
                index = self.chance.randrange(1, len(source.offsets))
                part = server.ask("GET", f"{path}?offset={source.offsets[index]}")
                if part.status == 200 and self.other is None:
                    assert part.body == source.content(index), f"{path} from {source.offsets[index]}: {part}"
        return reply

    def _choose(self, model: Model) -> tuple[Answer, tuple[str, str, dict[str, str], bytes]]:
        """One request, and what it does to the model."""
        self.number += 1
        path = self.chance.choice(self.paths)
        body = f"{self.name}.{self.number};".encode() * self.chance.choice([1, 1, 5])
        there = model.streams.get(path)
        if there is None:
            source = self.chance.choice([None, *(stream for stream in model.live() if len(stream.messages) < 20)])
            if source is None:
                return model.create(path, TEXT), ("PUT", path, {"Content-Type": TEXT}, b"")
            return self._fork(model, path, source)
        draw = self.chance.random()
        if draw < 0.12 or len(there.messages) > 25:
            return model.delete(path), ("DELETE", path, {}, b"")
        if draw < 0.18:
            return model.append(path, close=True), ("POST", path, {"Stream-Closed": "true"}, b"")
        fields = {"Content-Type": TEXT}
        if draw < 0.24:
            fields["Stream-Closed"] = "true"
            return model.append(path, body, TEXT, close=True), ("POST", path, fields, body)
        if draw < 0.4:
            epoch, sequence = there.producers.get("p", (0, -1))
            producer = ("p", epoch, sequence + 1)
            fields |= {"Producer-Id": "p", "Producer-Epoch": str(epoch), "Producer-Seq": str(sequence + 1)}
            return model.append(path, body, TEXT, producer=producer), ("POST", path, fields, body)
        return model.append(path, body, TEXT), ("POST", path, fields, body)

    def _fork(self, model: Model, path: str, source: Stream) -> tuple[Answer, tuple[str, str, dict[str, str], bytes]]:
        index = self.chance.choice([None, self.chance.randrange(len(source.offsets))])
        fields = {"Stream-Forked-From": f"/v1/stream/{source.path}"}
        sub = 0
        if index is not None:
            fields["Stream-Fork-Offset"] = source.offsets[index]
            if index < len(source.messages) and self.chance.random() < 0.3:
                sub = self.chance.randrange(1, len(source.messages[index].data) + 1)
                fields["Stream-Fork-Sub-Offset"] = str(sub)
        return model.create(path, fork=Fork(source.path, index, sub)), ("PUT", path, fields, b"")


def _is(found: Reply, model: Model, path: str) -> bool:
    """Whether what was found at a path is what the model has there."""
    status, stream = model.find(path)
    if found.status != status or stream is None or status != 200:
        return found.status == status
    return found.body == stream.content() and ("stream-closed" in found.headers) == stream.closed


def tokens(reply: Reply, name: str, mark: str) -> list[str]:
    """The tokens that a client wrote, in the order in which they are found."""
    assert reply.status == 200, reply
    parts = reply.body.decode().split(";")
    assert parts.pop() == "", "the last token is cut off"
    return [f"{part};" for part in parts if part.startswith(name + mark)]


def difference(found: list[str], sent: list[str]) -> str:
    for number, (left, right) in enumerate(zip(found, sent, strict=False)):
        if left != right:
            return f"at {number} found {left}, acknowledged {right}"
    return f"found {len(found)}, acknowledged {len(sent)}; found ends {found[-3:]}, acknowledged ends {sent[-3:]}"


class Load:
    """All clients, each in a thread of its own while it runs."""

    SHARED = "shared"

    def __init__(self, seed: int) -> None:
        self.clients: list[Client] = [
            *(Producer(f"producer{number}", seed, self.SHARED) for number in range(2)),
            *(Appender(f"appender{number}", seed, self.SHARED) for number in range(2)),
            *(Family(f"family{number}", seed) for number in range(3)),
            Keeper("keeper", seed),
        ]
        self._ready = False

    @property
    def acknowledged(self) -> int:
        return sum(client.acknowledged for client in self.clients)

    def run(self, url: str, *, for_s: float = PATIENCE_S, until: int | None = None) -> bool:
        """Write until the server is gone, the time is over or that many requests were acknowledged; whether it is
        gone."""
        ends = time.monotonic() + for_s
        goal = None if until is None else self.acknowledged + until
        lost = threading.Event()
        failures: list[BaseException] = []

        def work(client: Client) -> None:
            server = Connection(url)
            try:
                while not lost.is_set() and not failures and time.monotonic() < ends:
                    if goal is not None and self.acknowledged >= goal:
                        return
                    client.step(server)
            except Lost:
                lost.set()
            except BaseException as error:
                failures.append(error)
            finally:
                server.close()

        try:
            self._prepare(url)
        except Lost:
            return True
        threads = [threading.Thread(target=work, args=(client,), name=client.name) for client in self.clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return lost.is_set()

    def settle(self, url: str) -> None:
        """Hold the server to everything that was acknowledged."""
        self._prepare(url)
        server = Connection(url)
        for client in self.clients:
            client.settle(server)
        server.close()

    def _prepare(self, url: str) -> None:
        if self._ready:
            return
        server = Connection(url)
        reply = server.ask("PUT", self.SHARED, {"Content-Type": TEXT})
        assert reply.status in (200, 201), reply
        self._ready = True
        server.close()
