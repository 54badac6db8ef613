"""The client for looking into a database: lists of streams and tables, the past of a table, the server's status."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from tailrace.client.async_connection import AsyncServerResponse
from tailrace.client.targets import table_target


class AsyncInspection:
    """The part of the asynchronous client that consoles are made of. Results are the JSON of the HTTP API."""

    async def _send(self, method: str, target: str, **options: Any) -> AsyncServerResponse:
        raise NotImplementedError

    async def status(self) -> dict[str, Any]:
        """The server: health, rates, latencies, sizes, the groups with the largest lag."""
        return await self._inspect("/v1/status", {})

    async def cluster(self) -> dict[str, Any]:
        """The servers of the database, with their URLs; one that is not in a cluster names itself."""
        return await self._inspect("/v1/cluster", {})

    async def samples(self, since_ms: int = 0, step_s: int | None = None) -> dict[str, Any]:
        """The samples of the last 24 hours after a time, as columns; `step_s` joins those of so many seconds."""
        return await self._inspect("/v1/status/samples", {"since": since_ms, "step_s": step_s})

    def list_streams(self, prefix: str = "", search: str = "") -> AsyncIterator[dict[str, Any]]:
        """The streams whose path begins with `prefix` and contains `search`, by path."""
        return self._listed("streams", prefix, search)

    def list_tables(self, prefix: str = "", search: str = "") -> AsyncIterator[dict[str, Any]]:
        """The tables whose name begins with `prefix` and contains `search`, by name."""
        return self._listed("tables", prefix, search)

    async def item_history(
        self, table: str, key: Mapping[str, Any], *, before: int | None = None, limit: int = 100, typed: bool = False
    ) -> dict[str, Any]:
        """A page of the versions of an item, the newest first, of sequences below `before`. `next` is the `before` of
        the next page; it may be there although a page has no version."""
        query = {"key": _text(key), "before": before, "limit": limit, "values": "typed" if typed else None}
        return await self._inspect(f"{table_target(table)}/items/history", query)

    async def items_at(
        self,
        table: str,
        *,
        sequence: int | None = None,
        time: str | int | None = None,
        after: Mapping[str, Any] | None = None,
        limit: int = 100,
        typed: bool = False,
    ) -> dict[str, Any]:
        """A page of the items of a table as of a sequence or a time, `after` a key: the `next` of the page before."""
        query = {
            "sequence": sequence,
            "time": time,
            "after": None if after is None else _text(after),
            "limit": limit,
            "values": "typed" if typed else None,
        }
        return await self._inspect(f"{table_target(table)}/at", query)

    async def trace_write(
        self, table: str, sequence: int, key: Mapping[str, Any] | None = None, *, typed: bool = False
    ) -> dict[str, Any]:
        """A write and what has become of it: change record, messages, groups, jobs and views, files."""
        query = {"key": None if key is None else _text(key), "values": "typed" if typed else None}
        return await self._inspect(f"{table_target(table)}/writes/{sequence}", query)

    async def _listed(self, what: str, prefix: str, search: str) -> AsyncIterator[dict[str, Any]]:
        after = None
        while True:
            query = {"prefix": prefix or None, "search": search or None, "after": after, "limit": 1000}
            page = await self._inspect(f"/v1/{what}", query)
            for each in page[what]:
                yield each
            after = page["next"]
            if after is None:
                return

    async def _inspect(self, target: str, query: Mapping[str, str | int | None]) -> dict[str, Any]:
        params = {name: str(value) for name, value in query.items() if value is not None}
        response = await self._send("GET", target, params=params)
        found: dict[str, Any] = response.json()
        return found


def _text(key: Mapping[str, Any]) -> str:
    return msgspec.json.encode(key).decode()
