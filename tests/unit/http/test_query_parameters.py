"""Parameters in the query string: unknown ones are refused at every endpoint of our own, as unknown JSON fields are."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tailrace.http.route import RouteTable
from tailrace.http.routes import ROUTES
from tailrace.tables.change_stream import EnableStream
from tailrace.tables.change_trimming import PruneStream
from tests.unit.http.inprocess import Up, serve
from tests.unit.tables.changes import define, item, write

ENDPOINTS = [
    ("GET", "/v1/stream/__ds/subscriptions"),
    ("GET", "/v1/tables/orders/stream"),
    ("GET", "/v1/tables/orders/stream?offset=-1"),
    ("HEAD", "/v1/tables/orders/stream"),
    ("PATCH", "/v1/tables/orders/stream"),
    ("GET", "/v1/tables/orders/stream/info"),
    ("POST", "/v1/tables/orders/stream/prune"),
    ("GET", "/v1/tables/orders/items"),
    ("GET", "/v1/streams"),
    ("GET", "/v1/tables"),
    ("GET", "/v1/tables/orders/items/history?key={}"),
    ("GET", "/v1/tables/orders/at?sequence=1"),
    ("GET", "/v1/tables/orders/writes/1"),
    ("GET", "/v1/cluster"),
    ("POST", "/v1/cluster/step-down"),
    ("GET", "/v1/status"),
    ("GET", "/v1/status/samples"),
    ("GET", "/v1/tables/orders/cursors"),
    ("GET", "/v1/tables/orders/cursors/c"),
    ("PUT", "/v1/tables/orders/cursors/c"),
    ("DELETE", "/v1/tables/orders/cursors/c"),
    ("POST", "/v1/api/topics/consume"),
    ("POST", "/v1/api/topics/publish"),
    ("POST", "/api/topics/ack"),
    ("POST", "/v1/api/topics/extend"),
    ("POST", "/v1/api/topics/nack"),
    ("GET", "/v1/topics"),
    ("GET", "/v1/topics/news"),
    ("GET", "/v1/topics/news/acknowledgements"),
    ("POST", "/v1/topics/news"),
    ("GET", "/v1/topics/news/0/stream"),
    ("HEAD", "/v1/topics/news/0/stream"),
    ("POST", "/v1/api/sql"),
    ("GET", "/v1/logs?table=orders"),
    ("GET", "/v1/logs/at?table=orders&timestamp=1"),
    ("POST", "/v1/logs"),
    ("POST", "/v1/logs/advance"),
    ("GET", "/v1/logs/count?table=orders"),
    ("POST", "/v1/stages?table=orders"),
    ("POST", "/v1/stages/commit"),
    ("DELETE", "/v1/stages/some"),
    ("GET", "/v1/jobs"),
    ("GET", "/v1/jobs/some"),
    ("PUT", "/v1/jobs/some"),
    ("DELETE", "/v1/jobs/some"),
    *(("POST", f"/v1/jobs/some/{name}") for name in ("report", "pin", "pause", "resume")),
    ("GET", "/v1/cold"),
    *(("POST", f"/v1/cold/{name}") for name in ("attach", "detach", "tiered", "forget")),
    ("GET", "/v1/views"),
    ("GET", "/v1/views/some"),
    *(("POST", f"/v1/views/some/{name}") for name in ("apply", "plan", "fill", "partials")),
    *(("POST", f"/v1/api/transaction{name}") for name in ("", "/read")),
    ("GET", "/v1/admin/audit"),
    ("GET", "/v1/admin/keys"),
    ("POST", "/v1/admin/keys"),
    ("PATCH", "/v1/admin/keys/some"),
    ("DELETE", "/v1/admin/keys/some"),
    ("GET", "/v1/admin/users"),
    ("POST", "/v1/admin/users"),
    ("GET", "/v1/admin/users/some"),
    ("PATCH", "/v1/admin/users/some"),
    ("DELETE", "/v1/admin/users/some"),
    ("GET", "/v1/admin/signing-keys"),
    ("POST", "/v1/admin/signing-keys/rotate"),
    ("GET", "/v1/api/auth/me"),
    *(("POST", f"/v1/api/auth/{name}") for name in ("login", "refresh", "logout")),
]


def test_every_route_that_knows_its_parameters_is_looked_at() -> None:
    """A new route belongs into the list."""
    table = RouteTable(ROUTES)
    seen = set()
    for method, path in ENDPOINTS:
        methods, _ = table.find(path.partition("?")[0].encode())
        seen.add((method, methods[method.encode()].path))
    strict = {(route.method, route.path) for route in ROUTES if route.query is not None}
    assert strict <= seen, f"add {strict - seen}"


async def prepared(up: Up) -> None:
    await asyncio.to_thread(define, up.db)
    await up.db.aexecute(EnableStream("orders"))
    answer = await up.http.post("/v1/api/sql", json={"sql": "CREATE TOPIC news"})
    assert answer.status_code == 200


def test_an_unknown_parameter_is_refused_and_named(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await prepared(up)
        for method, path in ENDPOINTS:
            query = "&" if "?" in path else "?"
            kind = "application/vnd.msgpack" if path.startswith("/v1/stages?") else "application/json"
            types = {} if method in ("GET", "HEAD", "DELETE") else {"content-type": kind}
            arrow = {"accept": "application/vnd.apache.arrow.stream"} if path.endswith("items") else {}
            answer = await up.http.request(
                method, f"{path}{query}limmit=3", content=b"{}" if types else None, headers={**types, **arrow}
            )
            assert answer.status_code == 400, (method, path, answer.text)
            if method != "HEAD":
                assert "parameter 'limmit' is unknown here" in answer.text, (method, path, answer.text)

    serve(data_dir, scenario)


def test_streams_let_clients_add_parameters_as_their_protocol_says(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("s", body=b"x")
        for path in ("/v1/stream/s?offset=-1&limmit=3", "/healthz?x=1", "/readyz?x=1", "/metrics?x=1"):
            assert (await up.http.get(path)).status_code == 200, path

    serve(data_dir, scenario)


def test_changes_are_polled_by_sequence(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await prepared(up)
        sequences = [await asyncio.to_thread(write, up.db, item(number)) for number in range(5)]
        pair = await asyncio.to_thread(write, up.db, item(10), item(11))

        async def poll(**query: Any) -> list[int]:
            answer = await up.http.get("/v1/tables/orders/stream", params=query)
            assert answer.status_code == 200, answer.text
            assert answer.headers["cache-control"] == "no-store"
            return [record["sequence"] for record in answer.json()]

        everything = [*sequences, pair, pair]
        assert await poll(after_sequence=0) == everything
        assert await poll(limit=3) == sequences[:3]
        assert await poll(after_sequence="", limit="") == everything
        assert await poll(after_sequence=sequences[2], limit=2) == sequences[3:]
        assert await poll(after_sequence=sequences[3], limit=2) == [sequences[4]]  # a transaction is not cut in two
        assert await poll(after_sequence=sequences[4], limit=1) == [pair, pair]  # nor held back for ever
        assert await poll(after_sequence=pair) == []
        seen: list[int] = []
        last = 0
        while found := await poll(after_sequence=last, limit=2):
            seen += found
            last = found[-1]
        assert seen == everything
        typed = await up.http.get("/v1/tables/orders/stream?after_sequence=0&limit=1&values=typed")
        assert set(typed.json()[0]["keys"]["pk"]) == {"S"}

    serve(data_dir, scenario)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("after_sequence=x", "INVALID_AFTER_SEQUENCE"),
        ("after_sequence=-1", "INVALID_AFTER_SEQUENCE"),
        ("after_sequence=" + "9" * 30, "INVALID_AFTER_SEQUENCE"),
        ("after_sequence=1&limit=0", "INVALID_LIMIT"),
        ("limit=" + "0" * 5_000 + "1", "INVALID_LIMIT"),
        ("limit=10001", "INVALID_LIMIT"),
        ("after_sequence=1&offset=-1", "INVALID_OFFSET"),
        ("limit=1&live=sse&offset=-1", "INVALID_OFFSET"),
        ("after_sequence=999999999", "INVALID_OFFSET"),
        ("after_sequence=1&after_sequence=2", "INVALID_REQUEST"),
    ],
)
def test_a_poll_that_makes_no_sense_is_refused(data_dir: Path, query: str, code: str) -> None:
    async def scenario(up: Up) -> None:
        await prepared(up)
        answer = await up.http.get(f"/v1/tables/orders/stream?{query}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)

    serve(data_dir, scenario)


def test_a_poll_below_the_trimmed_range_is_refused(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await prepared(up)
        sequences = [await asyncio.to_thread(write, up.db, item(number)) for number in range(4)]
        await up.db.aexecute(PruneStream("orders", sequences[2]))
        answer = await up.http.get(f"/v1/tables/orders/stream?after_sequence={sequences[0]}")
        assert answer.status_code == 410
        kept = await up.http.get("/v1/tables/orders/stream?after_sequence=0")
        assert [record["sequence"] for record in kept.json()] == sequences[3:]

    serve(data_dir, scenario)
