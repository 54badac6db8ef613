"""Shared by the tests of topics: the three ways to consume, each with a name, and waiting for the server's responses.

A way is a path prefix of HTTP (`/api`, `/v1/api`) or SQL. All answer with the same shapes, so that one test says what
is right for each of them. Nothing here knows how the server works; the wire is all there is.
"""

from __future__ import annotations

import base64
import functools
import json
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import httpx

from tests.support.patience import AT_ONCE_S, PATIENCE_S
from tests.support.server import ROOT

T = TypeVar("T")
DEADLINE_S = PATIENCE_S  # for what must happen
HTTP_WAYS = ("/api", "/v1/api")
WAYS = (*HTTP_WAYS, "sql")


class Refused(AssertionError):
    """The server's answer to what it did not do."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(f"{response.status_code} {response.text[:2000]}")
        self.status = response.status_code
        self.error: dict[str, Any] = response.json()["error"]
        self.code = self.error["code"]


def answer(response: httpx.Response) -> dict[str, Any]:
    """The JSON of a good answer."""
    if response.status_code != 200:
        raise Refused(response)
    found: dict[str, Any] = response.json()
    return found


class Site:
    """A server as an operator sees it: SQL, publishing, what it tells of itself."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=DEADLINE_S + 10)

    def close(self) -> None:
        self.http.close()

    def sql(self, text: str, *params: Any) -> dict[str, Any]:
        """The result of the last statement."""
        response = self.http.post("/v1/api/sql", json={"sql": text, "params": list(params)})
        last: dict[str, Any] = answer(response)["results"][-1]
        return last

    def rows(self, text: str, *params: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.sql(text, *params)["rows"]
        return found

    def publish(self, topic: str, values: Sequence[Any], *, partition: int = 0) -> list[int]:
        """Publish these values as JSON; their offsets."""
        offsets: list[int] = []
        for at in range(0, len(values), 1000):
            messages = [{"value": value, "partition_id": partition} for value in values[at : at + 1000]]
            done = answer(self.http.post("/v1/api/topics/publish", json={"topic": topic, "messages": messages}))
            offsets += [place["offset"] for place in done["messages"]]
        return offsets

    def topic(self, name: str) -> dict[str, Any]:
        """What `GET /v1/topics/{name}` says."""
        return answer(self.http.get(f"/v1/topics/{name}"))

    def partition(self, topic: str, number: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = self.topic(topic)["partition_list"][number]
        return found

    def group(self, topic: str, group: str, partition: int = 0) -> dict[str, Any]:
        """The row of `system.topic_groups`."""
        question = "SELECT * FROM system.topic_groups WHERE topic = ? AND group_id = ? AND partition_id = ?"
        (row,) = self.rows(question, topic, group, partition)
        return row

    def last_acked(self, topic: str, group: str, partition: int = 0) -> int:
        """What `system.topic_offsets` says."""
        question = (
            "SELECT last_acked_offset FROM system.topic_offsets WHERE topic = ? AND group_id = ? AND partition_id = ?"
        )
        (row,) = self.rows(question, topic, group, partition)
        offset: int = row["last_acked_offset"]
        return offset

    def waiting(self) -> int:
        """How many consumers wait at the server."""
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith("tailrace_consumers_waiting "):
                return int(float(line.split()[1]))
        raise AssertionError("the metrics do not say how many consumers wait")

    @contextmanager
    def meanwhile(self, work: Callable[[], T]) -> Iterator[Outcome[T]]:
        """Run `work`, a consume that has to wait, beside the block, and see that what the block did ended it at once.

        The block begins when the server has it waiting. A consume that only its own time-out ended is a failure: it
        was not woken.
        """
        before = self.waiting()
        outcome = Outcome(work)
        until(lambda: outcome.done() or self.waiting() > before, "the consumer waits")
        assert not outcome.done(), f"it should wait, but has {outcome.result()}"
        yield outcome
        began_s = time.monotonic()
        outcome.join()
        assert outcome.ended_s - began_s < AT_ONCE_S, "it was not woken"


class Outcome(Generic[T]):
    """Work in a thread, and what came of it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._result: T | None = None
        self._error: BaseException | None = None
        self.ended_s = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:
            self._error = error
        self.ended_s = time.monotonic()

    def done(self) -> bool:
        return not self._thread.is_alive()

    def join(self) -> None:
        self._thread.join(DEADLINE_S)
        assert self.done(), f"no answer after {DEADLINE_S:g} s"

    def result(self) -> T:
        self.join()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


class Delivered:
    """An answer to a consume: the same whichever way it came."""

    def __init__(self, response: dict[str, Any], messages: list[dict[str, Any]]) -> None:
        self.messages = messages
        self.next_offset: int = response["next_offset"]
        self.has_more: bool = response["has_more"]
        self.skipped: int = response["skipped"]
        self.lease: str | None = response["lease_id"]
        self.partition: int = response["partition_id"]

    @property
    def offsets(self) -> list[int]:
        return [message["offset"] for message in self.messages]

    @property
    def attempts(self) -> list[int]:
        return [message["attempt"] for message in self.messages]

    @property
    def values(self) -> list[Any]:
        """The payloads, decoded."""
        return [json.loads(base64.b64decode(message["payload"])) for message in self.messages]

    def __repr__(self) -> str:
        return f"<offsets {self.offsets} next {self.next_offset} more {self.has_more} skipped {self.skipped}>"


class Way:
    """One way to consume, acknowledge, give back and extend. `timeout_s` counts over HTTP only: SQL answers at once."""

    def __init__(self, site: Site, kind: str) -> None:
        self.site = site
        self.kind = kind

    def consume(
        self,
        topic: str,
        group: str | None = None,
        *,
        start: Any = None,
        limit: int | None = None,
        partition: int | str | None = None,
        consumer: str | None = None,
        visibility_s: float | None = None,
        timeout_s: float | None = 0,
    ) -> Delivered:
        if self.kind == "sql":
            first = None if start is None else f"OFFSET {start['Offset']}" if isinstance(start, dict) else start
            clauses: list[tuple[str, Any]] = [
                ("GROUP", group and f"'{group}'"), ("PARTITION", partition), ("FROM", first), ("LIMIT", limit),
                ("CONSUMER", consumer and f"'{consumer}'"), ("VISIBILITY", visibility_s),
            ]  # fmt: skip
            response = self.site.sql(f"CONSUME FROM {topic}{worded(clauses)}")
            return Delivered(response, response["rows"])
        body = {
            "topic": topic, "group_id": group, "start": start, "limit": limit, "partition_id": partition,
            "consumer_id": consumer, "visibility_timeout_seconds": visibility_s, "timeout_seconds": timeout_s,
        }  # fmt: skip
        response = self._post("consume", body)
        return Delivered(response, response["messages"])

    def ack(
        self,
        topic: str,
        group: str,
        upto: int,
        *,
        partition: int | None = None,
        consumer: str | None = None,
        lease: str | None = None,
    ) -> int:
        """The acknowledged offset of the group."""
        if self.kind == "sql":
            clauses: list[tuple[str, Any]] = [
                ("GROUP", f"'{group}'"),
                ("PARTITION", partition),
                ("CONSUMER", consumer and f"'{consumer}'"),
            ]
            clauses += [("LEASE", lease and f"'{lease}'"), ("UPTO OFFSET", upto)]
            return int(self.site.sql(f"ACK {topic}{worded(clauses)}")["acknowledged_offset"])
        body = {"topic": topic, "group_id": group, "partition_id": partition, "upto_offset": upto}
        response = self._post("ack", body | {"consumer_id": consumer, "lease_id": lease})
        assert response["success"] is True
        return int(response["acknowledged_offset"])

    def nack(
        self,
        topic: str,
        group: str,
        *,
        offset: int | None = None,
        upto: int | None = None,
        consumer: str | None = None,
        lease: str | None = None,
        partition: int | None = None,
        delay_s: float | None = None,
    ) -> None:
        """Give back one message, a range (`upto` is its last), or all."""
        if self.kind == "sql":
            clauses: list[tuple[str, Any]] = [
                ("GROUP", f"'{group}'"),
                ("PARTITION", partition),
                ("CONSUMER", consumer and f"'{consumer}'"),
            ]
            clauses += [("LEASE", lease and f"'{lease}'"), ("OFFSET", offset), ("TO", upto), ("DELAY", delay_s)]
            self.site.sql(f"NACK {topic}{worded(clauses)}")
            return
        body = {"topic": topic, "group_id": group, "partition_id": partition, "consumer_id": consumer}
        place = {"offset": offset} if upto is None else {"from_offset": offset, "upto_offset": upto}
        assert self._post("nack", body | place | {"lease_id": lease, "delay_seconds": delay_s})["success"] is True

    def extend(
        self,
        topic: str,
        group: str,
        visibility_s: float | None,
        *,
        consumer: str | None = None,
        lease: str | None = None,
    ) -> int:
        """When the lease now ends, in milliseconds since 1970."""
        if self.kind == "sql":
            clauses: list[tuple[str, Any]] = [("GROUP", f"'{group}'"), ("CONSUMER", consumer and f"'{consumer}'")]
            clauses += [("LEASE", lease and f"'{lease}'"), ("VISIBILITY", visibility_s)]
            return int(self.site.sql(f"EXTEND {topic}{worded(clauses)}")["lease_until"])
        body = {"topic": topic, "group_id": group, "consumer_id": consumer, "lease_id": lease}
        return int(self._post("extend", body | {"visibility_timeout_seconds": visibility_s})["lease_until"])

    def drained(self, topic: str, group: str, count: int, **options: Any) -> list[Delivered]:
        """Deliveries until there were `count` messages; each is asked for until it comes."""
        deliveries: list[Delivered] = []
        while (missing := count - sum(len(each.messages) for each in deliveries)) > 0:
            deliveries.append(self.expect(topic, group, **{"limit": missing, **options}))
        return deliveries

    def expect(self, topic: str, group: str, **options: Any) -> Delivered:
        """The next delivery with messages: a long-poll over HTTP, over SQL asked for again and again."""
        return until(
            lambda: found if (found := self.consume(topic, group, timeout_s=5, **options)).messages else None,
            f"a delivery of {topic}",
        )

    def _post(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        sent = {name: value for name, value in body.items() if value is not None}
        return answer(self.site.http.post(f"{self.kind}/topics/{what}", json=sent))


def worded(clauses: Sequence[tuple[str, Any]]) -> str:
    """Those clauses that are given, as SQL."""
    return "".join(f" {keyword} {value}" for keyword, value in clauses if value is not None)


def until(probe: Callable[[], T | None], what: str, *, deadline_s: float = DEADLINE_S) -> T:
    """What `probe` finds, asked until it finds something."""
    ends_s = time.monotonic() + deadline_s
    while True:
        found = probe()
        if found:
            return found
        assert time.monotonic() < ends_s, f"after {deadline_s:g} s still not: {what}"
        time.sleep(0.02)


def fresh(kind: str = "topic") -> str:
    """A name that nothing has yet."""
    return f"{kind}.n{uuid.uuid4().hex[:12]}"


class Doomed:
    """A consumer in a process of its own, which takes messages once, says which, and holds them until it is killed."""

    def __init__(self, site: Site, topic: str, group: str, consumer: str, *, limit: int, visibility_s: float) -> None:
        body = {
            "topic": topic, "group_id": group, "consumer_id": consumer, "limit": limit,
            "visibility_timeout_seconds": visibility_s, "timeout_seconds": DEADLINE_S,
        }  # fmt: skip
        self._expire = functools.partial(Way(site, "/api").extend, topic, group, 0.1, consumer=consumer)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.topics", f"{site.url}/api/topics/consume", json.dumps(body)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def offsets(self) -> list[int]:
        """What it holds; waits until it does."""
        assert self._process.stdout is not None
        held: list[int] = json.loads(self._process.stdout.readline())
        return held

    def let_expire(self) -> None:
        """Make its lease run out now: what had to be done before it does may then take any time."""
        self._expire()

    def kill(self) -> None:
        self._process.kill()
        assert self._process.wait() == -signal.SIGKILL
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def hold(url: str, body: str) -> None:
    """What the process of a doomed consumer does."""
    with httpx.Client(timeout=DEADLINE_S + 10) as client:
        messages = answer(client.post(url, content=body, headers={"content-type": "application/json"}))["messages"]
        sys.stdout.write(json.dumps([message["offset"] for message in messages]) + "\n")
        sys.stdout.flush()
        sys.stdin.read()  # ends when the parent does, should that not kill us


if __name__ == "__main__":
    hold(*sys.argv[1:])
