"""Slow readers of a table's items beside a writer: the write-ahead log stays small, and the readers get one moment."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa

from tailrace import limits
from tests.unit.http.inprocess import Up, serve

HEADERS = {"accept": "application/vnd.apache.arrow.stream"}
ITEMS = 1_500
ROUNDS = 12
# SQLite restarts at the beginning of its log after 1,000 pages (4 MiB), if nobody reads from it; a commit may be large.
WAL_BYTES_MAX = 24 * limits.MiB


def item(number: int, draw: random.Random) -> dict[str, Any]:
    return {"id": f"o-{number}", "n": draw.randrange(10**9), "text": draw.randbytes(8_000).hex()}


class Reader:
    """A client that reads the items a little at a time."""

    def __init__(self, answer: httpx.Response, expected: dict[str, int]) -> None:
        self._parts = answer.aiter_raw(256 * 1024)
        self._taken: list[bytes] = []
        self._expected = expected

    async def some(self) -> None:
        async for part in self._parts:
            self._taken.append(part)
            return

    async def check(self) -> None:
        async for part in self._parts:
            self._taken.append(part)
        found = pa.ipc.open_stream(b"".join(self._taken)).read_all().to_pylist()
        items = [json.loads(row["item"]) for row in found]
        assert {each["id"]: each["n"] for each in items} == self._expected
        assert len(items) == len(self._expected)


def test_slow_readers_do_not_let_the_log_grow(data_dir: Path) -> None:
    draw = random.Random(7)
    model: dict[str, int] = {}

    def wal_bytes() -> int:
        return (data_dir / "tailrace.db-wal").stat().st_size

    def write(db: Any, count: int) -> int:
        """Inserts, updates and deletes; the largest the log was."""
        table, largest = db.table("orders"), 0
        for _ in range(count):
            made = item(draw.randrange(ITEMS * 2), draw)
            if draw.random() < 0.2:
                table.delete(made["id"])
                model.pop(made["id"], None)
            else:
                table.put(made)
                model[made["id"]] = made["n"]
            largest = max(largest, wal_bytes())
        return largest

    def fill(db: Any) -> None:
        table = db.create_table("orders", partition_key="id")
        for number in range(ITEMS):
            made = item(number, draw)
            table.put(made)
            model[made["id"]] = made["n"]

    async def scenario(up: Up) -> None:
        await asyncio.to_thread(fill, up.db)
        path = "/v1/tables/orders/items"
        async with up.http.stream("GET", path, headers=HEADERS) as first:
            one = Reader(first, dict(model))
            await one.some()
            await asyncio.to_thread(write, up.db, 100)
            async with up.http.stream("GET", path, headers=HEADERS) as second:
                other = Reader(second, dict(model))
                largest = 0
                for _ in range(ROUNDS):
                    await one.some()
                    await other.some()
                    largest = max(largest, await asyncio.to_thread(write, up.db, 200))
                assert largest < WAL_BYTES_MAX
                await one.check()
                await other.check()
        await up.until(lambda: not up.db._runner.exports)

    serve(data_dir, scenario)
