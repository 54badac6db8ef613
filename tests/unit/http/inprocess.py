"""A real server on a free port inside the test's own event loop, and readers that understand event streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tailrace.check import check_database
from tailrace.config import Config
from tailrace.http.serve import Running, start
from tailrace.log.position import offset
from tests.support.patience import PATIENCE_S

Scenario = Callable[["Up"], Awaitable[None]]


class Up:
    """A server that is up, and a client of it."""

    def __init__(self, running: Running, http: httpx.AsyncClient) -> None:
        self.running = running
        self.db = running.db
        self.http = http
        self._waiters = len(self.db.tail)  # the server's own

    @property
    def waiters(self) -> int:
        """How many callbacks of readers wait for commits."""
        return len(self.db.tail) - self._waiters

    async def ask(self, method: str, path: str, body: bytes | str = b"", **headers: str) -> httpx.Response:
        """A request on a stream's path; `content_type="x"` is the field Content-Type."""
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        content = body.encode() if isinstance(body, str) else body
        return await self.http.request(method, f"/v1/stream/{path}", content=content or None, headers=fields)

    async def create(self, path: str, content_type: str = "text/plain", body: bytes = b"", **headers: str) -> None:
        answer = await self.ask("PUT", path, body, content_type=content_type, **headers)
        assert answer.status_code == 201, answer.text

    async def append(self, path: str, *bodies: bytes | str, content_type: str = "text/plain", **headers: str) -> str:
        """Append; the offset after the last."""
        for body in bodies:
            answer = await self.ask("POST", path, body, content_type=content_type, **headers)
            assert answer.status_code in (200, 204), answer.text
        return answer.headers["stream-next-offset"]

    async def close(self, path: str) -> None:
        assert (await self.ask("POST", path, stream_closed="true")).status_code == 204

    async def delete(self, path: str) -> None:
        assert (await self.ask("DELETE", path)).status_code == 204

    async def get(self, path: str, position: int | str = "-1", **query: str) -> httpx.Response:
        at = offset(position) if isinstance(position, int) else position
        return await self.http.get(f"/v1/stream/{path}", params={"offset": at, **query})

    async def sweep(self) -> None:
        await asyncio.to_thread(self.db.sweep)

    @asynccontextmanager
    async def events(self, path: str, position: int | str = "-1", **query: str) -> AsyncIterator[Events]:
        at = offset(position) if isinstance(position, int) else position
        params = {"offset": at, "live": "sse", **query}
        async with self.http.stream("GET", f"/v1/stream/{path}", params=params) as answer:
            assert answer.status_code == 200, await answer.aread()
            yield Events(answer)

    async def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, "it did not happen"
            await asyncio.sleep(0.003)


class Events:
    """The events of one answer, by the rules that browsers follow."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._lines = answer.aiter_lines()

    async def next(self) -> tuple[str, str] | None:
        """The next event's name and data; ("comment", text) for a comment; None at the end."""
        name, data = "message", None
        async with asyncio.timeout(PATIENCE_S):
            async for line in self._lines:
                if line == "":
                    if data is not None:
                        return name, data
                    continue
                if line.startswith(":"):
                    return "comment", line[1:].strip()
                field, _, value = line.partition(":")
                value = value.removeprefix(" ")
                if field == "event":
                    name = value
                elif field == "data":
                    data = value if data is None else f"{data}\n{value}"
        return None

    async def pair(self) -> tuple[str | None, dict[str, Any]]:
        """What the next control event says, and the data event that came just before it."""
        data = None
        while (event := await self.next()) is not None:
            name, text = event
            if name == "data":
                assert data is None, "two data events without a control event between them"
                data = text
            elif name == "control":
                return data, msgspec.json.decode(text)
        raise EOFError("the event stream ended")

    async def rest(self) -> list[tuple[str, str]]:
        found = []
        while (event := await self.next()) is not None:
            found.append(event)
        return found


def serve(data: Path, scenario: Scenario, *, cold_files: bool = True, **settings: Any) -> None:
    """Run a scenario against a server of its own; the database must be sound afterwards. Without `cold_files`, what the
    scenario says to be in cold storage is in no file."""

    async def main() -> None:
        settings.setdefault("dev", "token" not in settings)
        running = await start(Config(port=0, data=str(data), **settings))
        try:
            async with httpx.AsyncClient(base_url=running.url, timeout=PATIENCE_S) as http, asyncio.timeout(PATIENCE_S):
                await scenario(Up(running, http))
        finally:
            await running.stop()

    asyncio.run(main())
    findings = check_database(data).findings
    assert [each for each in findings if cold_files or not each.startswith("cold storage: ")] == []
