"""Topics of a server inside the test's own event loop: what a consumer and a publisher send and get."""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

from tailrace.topics.commands import CreateTopic, DropTopic, Publish, TopicOptions
from tailrace.topics.commands import Outgoing as Message
from tests.unit.http.inprocess import Up, serve

TOPIC = "app.messages"
GROUP = "ai-service"


class Topics:
    """A server with the topic `app.messages`."""

    def __init__(self, up: Up) -> None:
        self.up = up
        self.db = up.db
        self.http = up.http

    async def create(self, name: str = TOPIC, partitions: int = 1, **options: Any) -> None:
        await self.db.aexecute(CreateTopic(name, partitions, TopicOptions(**options)))

    async def drop(self, name: str = TOPIC) -> None:
        await self.db.aexecute(DropTopic(name))

    async def publish(self, *payloads: bytes, partition: int | None = None) -> None:
        """Publish in one commit, without HTTP."""
        messages = tuple(Message(payload, None, partition) for payload in payloads)
        await self.db.aexecute(Publish(TOPIC, messages))

    async def post(self, what: str, *, root: str = "/v1/api/topics", **body: Any) -> httpx.Response:
        body.setdefault("topic", TOPIC)
        if what in ("consume", "ack", "extend", "nack"):
            body.setdefault("group_id", GROUP)
        return await self.http.post(f"{root}/{what}", json=body)

    async def ok(self, what: str, **body: Any) -> Any:
        answer = await self.post(what, **body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["cache-control"] == "no-store"
        return answer.json()

    async def refused(self, what: str, **body: Any) -> tuple[int, str, str]:
        answer = await self.post(what, **body)
        error = answer.json()["error"]
        return answer.status_code, error["code"], error["message"]

    async def consume(self, **body: Any) -> Any:
        """Without waiting by default."""
        body.setdefault("timeout_seconds", 0)
        return await self.ok("consume", **body)

    def waiting(self, **body: Any) -> asyncio.Task[Any]:
        """A consume that waits, under way."""
        body.setdefault("timeout_seconds", 60)
        return asyncio.create_task(self.ok("consume", **body))

    async def parked(self, count: int) -> None:
        """Return when so many wait."""
        await self.up.until(lambda: self.db.metrics.consumers_waiting == count)

    async def parked_or_answered(self, *requests: asyncio.Task[Any]) -> None:
        """Return when each of these waits, or has its answer: on a busy machine a lease may end before that."""
        await self.up.until(
            lambda: self.db.metrics.consumers_waiting + sum(each.done() for each in requests) == len(requests)
        )


def payloads_of(answer: Any) -> list[bytes]:
    return [b64decode(message["payload"], validate=True) for message in answer["messages"]]


def offsets_of(answer: Any) -> list[int]:
    return [message["offset"] for message in answer["messages"]]


def encoded(payload: bytes) -> str:
    return b64encode(payload).decode()


def run(
    data_dir: Path,
    work: Callable[[Topics], Awaitable[None]],
    *,
    partitions: int = 1,
    make: bool = True,
    **settings: Any,
) -> None:
    """Run a scenario against a server with the topic; the database must be sound afterwards."""

    async def scenario(up: Up) -> None:
        topics = Topics(up)
        if make:
            await topics.create(partitions=partitions)
        await work(topics)

    serve(data_dir, scenario, **settings)
