"""Retention, pruning and named cursors over HTTP: what is answered, what is refused, and who may."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailrace.limits import HOLD_BYTES
from tailrace.tables.change_stream import DisableStream, EnableStream
from tests.unit.http.inprocess import Up, serve
from tests.unit.tables.changes import define, item, write


class Orders:
    """The table `orders` of a server, with a stream that holds `sequences`."""

    sequences: list[int]

    def __init__(self, up: Up) -> None:
        self.db = up.db
        self.http = up.http

    async def put(self, number: int) -> int:
        return await asyncio.to_thread(write, self.db, item(number))

    async def __call__(self, method: str, path: str, body: Any = None, **query: str) -> httpx.Response:
        options: dict[str, Any] = {"json": body}
        if isinstance(body, bytes):
            options = {"content": body, "headers": {"content-type": "application/json"}}
        return await self.http.request(method, f"/v1/tables/orders/{path}", params=query, **options)

    async def ok(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        answer = await self(method, path, body, **query)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["cache-control"] == "no-store"
        return answer.json()

    async def refused(self, method: str, path: str, body: Any = None, **query: str) -> tuple[int, str, str]:
        answer = await self(method, path, body, **query)
        error = answer.json()["error"]
        return answer.status_code, error["code"], error["message"]


def run(data_dir: Path, work: Callable[[Orders], Awaitable[None]], **settings: Any) -> None:
    async def scenario(up: Up) -> None:
        await asyncio.to_thread(define, up.db)
        await asyncio.sleep(0.002)  # a stream that is as old as its table is taken to have all of it
        orders = Orders(up)
        await up.db.aexecute(EnableStream("orders", max_age_s=60, max_count=1000))
        orders.sequences = [await orders.put(number) for number in range(4)]
        await work(orders)

    serve(data_dir, scenario, **settings)


def test_what_there_is_to_know(data_dir: Path) -> None:
    async def work(orders: Orders) -> None:
        state = await orders.ok("GET", "stream/info")
        assert {name: state[name] for name in state.keys() - {"label", "created_at", "bytes"}} == {
            "table": "orders",
            "view": "NEW_AND_OLD_IMAGES",
            "enabled": True,
            "closed_at": None,
            "oldest": orders.sequences[0],
            "latest": orders.sequences[3],
            "records": 4,
            "max_age_s": 60,
            "max_count": 1000,
            "cursors": [],
        }
        assert state["bytes"] > 0
        assert state["created_at"] == f"{state['label']}Z"
        await orders.db.aexecute(DisableStream("orders"))
        await orders.db.aexecute(EnableStream("orders", "KEYS_ONLY"))
        now, before = await orders.ok("GET", "stream/info"), await orders.ok("GET", "stream/info", label=state["label"])
        assert (now["view"], now["records"], now["oldest"]) == ("KEYS_ONLY", 0, None)
        assert (before["records"], before["enabled"]) == (4, False)
        assert before["closed_at"] is not None
        assert (await orders.refused("GET", "stream/info", label="x"))[:2] == (404, "STREAM_NOT_FOUND")
        head = await orders("HEAD", "stream/info")
        assert (head.status_code, head.content) == (200, b"")

    run(data_dir, work)


def test_only_the_sent_fields_of_retention_are_altered(data_dir: Path) -> None:
    async def work(orders: Orders) -> None:
        for body, kept in (
            ({"max_age_s": 7}, (7, 1000)),
            ({"max_count": None}, (7, None)),
            ({"max_age_s": None, "max_count": 9}, (None, 9)),
        ):
            state = await orders.ok("PATCH", "stream", body)
            assert (state["max_age_s"], state["max_count"]) == kept
        assert state["records"] == 4
        await orders.ok("PATCH", "stream", {"max_count": 2})
        await asyncio.to_thread(orders.db.sweep)
        assert (await orders.ok("GET", "stream/info"))["oldest"] == orders.sequences[2]

    run(data_dir, work)


def test_pruning(data_dir: Path) -> None:
    async def work(orders: Orders) -> None:
        label = (await orders.ok("GET", "stream/info"))["label"]
        state = await orders.ok("POST", "stream/prune", {"through": orders.sequences[1]})
        assert (state["pruned"], state["gone"], state["oldest"]) == (2, False, orders.sequences[2])
        assert (await orders.ok("POST", "stream/prune", {"through": 0}))["pruned"] == 0
        await orders.db.aexecute(DisableStream("orders"))
        state = await orders.ok("POST", "stream/prune", {"through": orders.sequences[3]}, label=label)
        assert state == {"table": "orders", "pruned": 2, "gone": True}
        assert (await orders.refused("GET", "stream/info"))[:2] == (404, "STREAM_NOT_FOUND")

    run(data_dir, work)


def test_cursors_are_saved_read_and_dropped(data_dir: Path) -> None:
    async def work(orders: Orders) -> None:
        first, second = orders.sequences[:2]
        saved = await orders.ok("PUT", "cursors/mailer", {"sequence": second})
        assert {name: saved[name] for name in saved.keys() - {"saved_at", "lag"}} == {
            "name": "mailer",
            "sequence": second,
            "hold_bytes": HOLD_BYTES,
            "lost": 0,
            "cut_off": False,
        }
        assert saved["lag"]["records"] == 2
        assert saved["lag"]["bytes"] > 0
        assert saved["lag"]["age_s"] >= 0
        odd = await orders.ok("PUT", "cursors/a%2Fb%20%C3%A4", {"sequence": first, "hold_bytes": 0})
        assert (odd["name"], odd["hold_bytes"]) == ("a/b ä", 0)
        listed = (await orders.ok("GET", "cursors"))["cursors"]
        assert [(cursor["name"], cursor["lag"]["records"]) for cursor in listed] == [("a/b ä", 3), ("mailer", 2)]
        assert [cursor["name"] for cursor in (await orders.ok("GET", "stream/info"))["cursors"]] == ["a/b ä", "mailer"]
        assert (await orders.ok("GET", "cursors/a%2Fb%20%C3%A4"))["sequence"] == first
        assert (await orders("DELETE", "cursors/mailer")).status_code == 204
        for method in ("GET", "DELETE"):
            status, code, message = await orders.refused(method, "cursors/mailer")
            assert (status, code) == (404, "CURSOR_NOT_FOUND")
            assert "'mailer'" in message
        await orders.ok("POST", "stream/prune", {"through": second})
        assert (await orders.ok("GET", "cursors"))["cursors"][0]["cut_off"]
        assert (await orders.refused("PUT", "cursors/mailer", {"sequence": first}))[:2] == (410, "OFFSET_TRIMMED")

    run(data_dir, work)


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("PATCH", "stream", {"max_age": 5}, "unknown field `max_age`"),
        ("PATCH", "stream", {"max_age_s": "7d"}, r"got `str` - at `$.max_age_s`"),
        ("PATCH", "stream", {"max_count": True}, r"got `bool` - at `$.max_count`"),
        ("PATCH", "stream", {"max_count": 1.5}, r"got `float` - at `$.max_count`"),
        ("PATCH", "stream", {"max_age_s": 0}, "max_age_s 0 is not from 1 to"),
        ("PATCH", "stream", {"max_count": 10**40}, "max_count 1000"),
        ("PATCH", "stream", {}, "give max_age_s, max_count or both"),
        ("PATCH", "stream", b"", "not JSON of the expected form"),
        ("PATCH", "stream", b"\xff", "not JSON of the expected form"),
        ("PATCH", "stream", b"[" * 100_000, "not JSON of the expected form"),
        ("POST", "stream/prune", {}, "missing required field `through`"),
        ("POST", "stream/prune", {"through": -1}, "`int` >= 0 - at `$.through`"),
        ("POST", "stream/prune", {"through": None}, "got `null` - at `$.through`"),
        ("POST", "stream/prune", {"through": 1000}, "sequence 1000 was never assigned"),
        ("PUT", "cursors/c", {"after": 1}, "unknown field `after`"),
        ("PUT", "cursors/c", {"sequence": 1, "hold_bytes": -1}, "`int` >= 0 - at `$.hold_bytes`"),
        ("PUT", "cursors/c", {"sequence": 1000}, "sequence 1000 was never assigned"),
        ("PUT", "cursors/", {"sequence": 2}, "a cursor's name has 1 to 256 bytes, not 0"),
        ("PUT", "cursors/" + "c" * 257, {"sequence": 2}, "a cursor's name has 1 to 256 bytes, not 257"),
        ("PUT", "cursors/%FF", {"sequence": 2}, "not valid UTF-8"),
    ],
)
def test_bad_input_is_reported_and_changes_nothing(
    data_dir: Path, method: str, path: str, body: Any, expected: str
) -> None:
    async def work(orders: Orders) -> None:
        before = await orders.ok("GET", "stream/info")
        status, _, message = await orders.refused(method, path, body)
        assert status == 400
        assert expected in message
        assert await orders.ok("GET", "stream/info") == before

    run(data_dir, work)


def test_what_is_not_there_and_what_is_not_allowed(data_dir: Path) -> None:
    async def work(orders: Orders) -> None:
        for path, allow, methods in (
            ("stream/info", "GET, HEAD, OPTIONS", ("PUT", "POST", "PATCH", "DELETE")),
            ("stream/prune", "POST, OPTIONS", ("GET", "PUT", "PATCH", "DELETE")),
            ("cursors", "GET, HEAD, OPTIONS", ("PUT", "POST", "PATCH", "DELETE")),
            ("cursors/c", "GET, HEAD, PUT, DELETE, OPTIONS", ("POST", "PATCH")),
        ):
            for method in methods:
                answer = await orders(method, path, {})
                assert (answer.status_code, answer.headers["allow"]) == (405, allow), (method, path)
        for path in ("", "stream/", "stream/x", "stream/info/x", "cursors/a/b", "x"):
            status, code, message = await orders.refused("GET", path)
            assert (status, code) == (404, "NOT_FOUND"), path
            assert "/v1/tables/<name>/stream" in message
        for method, path in (("PATCH", "stream"), ("GET", "stream/info"), ("GET", "cursors")):
            answer = await orders.http.request(method, f"/v1/tables/nothing/{path}", json={"max_count": 1})
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "TABLE_NOT_FOUND")

    run(data_dir, work)


def test_requests_without_the_token_are_refused(data_dir: Path) -> None:
    async def work(orders: Orders) -> None:
        for method, path in (
            ("GET", "stream/info"), ("PATCH", "stream"), ("POST", "stream/prune"), ("GET", "cursors"),
            ("PUT", "cursors/c"), ("DELETE", "cursors/c"),
        ):  # fmt: skip
            assert (await orders(method, path, {})).status_code == 401
        orders.http.headers["authorization"] = "Bearer a-long-secret-token"
        await orders.ok("PATCH", "stream", {"max_count": 5})

    run(data_dir, work, token="a-long-secret-token")
