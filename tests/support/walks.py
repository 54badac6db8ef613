"""The files of the package that a request visits, in the order of the first call.

`python -m tests.support.walks` prints them.

A server runs in this process, on a real socket, under a profile function that notes the module of every call, in the
thread of the event loop and in the thread that commits. The request is sent once before the profile is on, so that
imports and first-time work are not part of the walk.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import httpx

from tailrace.config import Config
from tailrace.http.serve import start
from tests.support.patience import PATIENCE_S

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "tailrace"
FIRST = "http/inbound.py"
ATTEMPTS = 10
COMMITTER = "tailrace-committer"  # the name of the thread
DYNAMODB = {"Content-Type": "application/x-amz-json-1.0"}

Send = Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]


class Trace:
    """The modules of the package that were called while it was on, from the first bytes of the request."""

    def __init__(self) -> None:
        self.on = False
        self.visited: dict[str, str] = {}  # module -> the first function called there
        self.path: list[tuple[str, str]] = []  # thread and module, whenever one of them changes
        self.calls = 0
        self._prefix = f"{PACKAGE}/"
        self._loop_thread = threading.current_thread()

    def start(self) -> None:
        self.visited.clear()
        self.path.clear()
        self.calls, self.on = 0, True

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if not self.on or event != "call" or not code.co_filename.startswith(self._prefix):
            return
        thread = threading.current_thread()
        lane = "event loop" if thread is self._loop_thread else "committer thread"
        module = code.co_filename[len(self._prefix) :]
        if thread.name not in (self._loop_thread.name, COMMITTER) or (not self.visited and module != FIRST):
            return  # housekeeping, or a timer
        self.calls += 1
        self.visited.setdefault(module, code.co_qualname)
        if not self.path or self.path[-1] != (lane, module):
            self.path.append((lane, module))


async def _walk(trace: Trace, directory: Path, prepare: Send, send: Send) -> None:
    running = await start(Config(data=str(directory), dev=True, port=0))
    try:
        async with httpx.AsyncClient(base_url=running.url, timeout=PATIENCE_S) as http:
            for request in (prepare, send):
                (await request(http)).raise_for_status()
            for _ in range(ATTEMPTS):
                await asyncio.sleep(0.2)  # what the requests before started is over
                trace.start()
                (await send(http)).raise_for_status()
                await asyncio.sleep(0)
                trace.on = False
                if ("event loop", "log/log.py") in trace.path:
                    break
                # Housekeeping had the turn of the writer, and the whole batch ran in the committer's thread.
    finally:
        await running.stop()


def walk(prepare: Send, send: Send) -> Trace:
    """The trace of `send`, after `prepare` and a `send` that is not traced."""
    trace = Trace()
    with tempfile.TemporaryDirectory() as directory:
        threading.setprofile(trace)
        sys.setprofile(trace)
        try:
            asyncio.run(_walk(trace, Path(directory) / "data", prepare, send))
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    return trace


def append() -> Trace:
    """An append by an idempotent producer."""
    sequence = count()

    async def send(http: httpx.AsyncClient) -> httpx.Response:
        fields = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": str(next(sequence))}
        return await http.post("/v1/stream/walk", content=b"step", headers={"Content-Type": "text/plain", **fields})

    return walk(lambda http: http.put("/v1/stream/walk", headers={"Content-Type": "text/plain"}), send)


def put_item() -> Trace:
    """A PutItem into a table with a change stream and a route."""
    numbers = count(secrets.randbelow(10**15))  # none of them was parsed before, and is in a cache

    async def prepare(http: httpx.AsyncClient) -> httpx.Response:
        statements = (
            "CREATE TABLE walks (id TEXT PRIMARY KEY, n BIGINT) WITH (stream = 'NEW_AND_OLD_IMAGES'); "
            "CREATE TOPIC steps; ALTER TOPIC steps ADD SOURCE walks ON INSERT WHERE (n >= 0); "
            "ALTER TOPIC steps ADD SOURCE walks ON UPDATE WHERE (n >= 0)"
        )
        return await http.post("/v1/api/sql", json={"sql": statements})

    async def send(http: httpx.AsyncClient) -> httpx.Response:
        body = {"TableName": "walks", "Item": {"id": {"S": "a"}, "n": {"N": str(next(numbers))}}}
        return await http.post("/", json=body, headers={**DYNAMODB, "X-Amz-Target": "DynamoDB_20120810.PutItem"})

    return walk(prepare, send)


WALKS = {"append": append, "put_item": put_item}


if __name__ == "__main__":
    for name in sys.argv[1:] or WALKS:
        traced = WALKS[name]()
        print(f"{name}: {traced.calls} calls in {len(traced.visited)} files")
        for module, function in traced.visited.items():
            print(f"  {module:32} {function}")
