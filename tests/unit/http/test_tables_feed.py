"""A table's changes over HTTP: JSON records in pages, on the long poll and as events, and what is refused."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tailrace import limits
from tailrace.http import tables
from tailrace.log.position import offset
from tailrace.tables.change import TTL
from tailrace.tables.change_info import FindStreamBounds
from tailrace.tables.change_stream import DisableStream, EnableStream
from tailrace.tables.change_trimming import PruneStream
from tailrace.tables.lifecycle import DeleteTable
from tests.unit.http.inprocess import Events, Up, serve
from tests.unit.tables.changes import define, item, write


class Orders:
    """The table `orders` of a server."""

    def __init__(self, up: Up) -> None:
        self.up = up
        self.db = up.db

    async def put(self, *numbers: int, **more: Any) -> int:
        return await asyncio.to_thread(write, self.db, *(item(number, **more) for number in numbers))

    async def get(self, position: int | str = "-1", path: str = "orders/stream", **query: str) -> httpx.Response:
        at = offset(position) if isinstance(position, int) else position
        return await self.up.http.get(f"/v1/tables/{path}", params={"offset": at, **query})


def scenario_of(work: Callable[[Orders], Awaitable[None]]) -> Callable[[Up], Awaitable[None]]:
    async def scenario(up: Up) -> None:
        await asyncio.to_thread(define, up.db)
        await asyncio.sleep(0.002)  # a stream that is as old as its table is taken to have all of it
        await work(Orders(up))

    return scenario


def run(data_dir: Path, work: Callable[[Orders], Awaitable[None]], **settings: Any) -> None:
    serve(data_dir, scenario_of(work), **settings)


def keys_of(answer: httpx.Response) -> list[str]:
    return [record["keys"]["pk"] for record in answer.json()]


def test_records_are_plain_json(data_dir: Path) -> None:
    async def work(orders: Orders) -> None:
        await orders.db.aexecute(EnableStream("orders"))
        number = {"N": "12345678901234567890123456789012345678"}
        sequence = await orders.put(
            1, 2, n=number, b={"B": b"\x00\xff"}, s={"SS": ["x"]}, m={"M": {"t": {"BOOL": True}}}
        )
        removed = await asyncio.to_thread(write, orders.db, "k2", by=TTL)
        answer = await orders.get()
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["stream-next-offset"] == offset(removed + 1)
        assert answer.headers["stream-up-to-date"] == "true"
        first, second, third = answer.json()
        assert first == {
            "sequence": sequence,
            "index": 0,
            "last": False,
            "event": "INSERT",
            "table": "orders",
            "keys": {"pk": "k1"},
            "old": None,
            "new": {"pk": "k1", "n": int(number["N"]), "b": "AP8=", "s": ["x"], "m": {"t": True}},
            "at": first["at"],
            "by": "me",
        }
        assert first["at"].endswith("Z")
        assert (second["index"], second["last"]) == (1, True)
        assert (third["event"], third["by"], third["new"], third["old"]["pk"]) == ("REMOVE", "ttl", None, "k2")

    run(data_dir, work)


def test_records_are_typed_on_request(data_dir: Path) -> None:
    async def work(orders: Orders) -> None:
        await orders.db.aexecute(EnableStream("orders"))
        await orders.put(1, n={"N": "1.50"}, b={"B": b"\x00\xff"})
        (record,) = (await orders.get(values="typed")).json()
        assert record["keys"] == {"pk": {"S": "k1"}}
        assert record["new"] == {"pk": {"S": "k1"}, "n": {"N": "1.50"}, "b": {"B": "AP8="}}
        assert (await orders.get(values="plain")).json()[0]["new"]["n"] == 1.5
        wrong = await orders.get(values="funny")
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "INVALID_VALUES")

    run(data_dir, work)


def test_pages_lead_to_the_end(data_dir: Path) -> None:
    async def work(orders: Orders) -> None:
        await orders.db.aexecute(EnableStream("orders"))
        empty = await orders.get()
        assert (empty.content, empty.headers["stream-up-to-date"]) == (b"[]", "true")
        for number in range(10):
            await orders.put(number, text={"S": "x" * 200})
        found: list[str] = []
        at: int | str = "-1"
        pages = 0
        while True:
            answer = await orders.get(at)
            found += keys_of(answer)
            pages += 1
            at = answer.headers["stream-next-offset"]
            if "stream-up-to-date" in answer.headers:
                break
        assert found == [f"k{n}" for n in range(10)]
        assert pages > 2
        again = await orders.up.http.get(
            "/v1/tables/orders/stream", params={"offset": at}, headers={"if-none-match": answer.headers["etag"]}
        )
        assert again.status_code in (200, 304)

    run(data_dir, work, page_bytes=1000)


def test_a_long_poll_waits_for_a_write(data_dir: Path) -> None:
    async def work(orders: Orders) -> None:
        await orders.db.aexecute(EnableStream("orders"))
        waiting = asyncio.create_task(orders.get("now", live="long-poll"))
        await orders.up.until(lambda: orders.up.waiters > 0)
        await orders.put(5)
        answer = await waiting
        assert (answer.status_code, keys_of(answer)) == (200, ["k5"])
        waiting = asyncio.create_task(orders.get(answer.headers["stream-next-offset"], live="long-poll"))
        await orders.up.until(lambda: orders.up.waiters > 0)
        await orders.db.aexecute(DisableStream("orders"))
        answer = await waiting
        assert (answer.status_code, answer.headers["stream-closed"]) == (204, "true")
        await orders.up.until(lambda: orders.up.waiters == 0)

    run(data_dir, work)


async def _next(events: Events) -> tuple[list[Any], dict[str, Any]]:
    data, control = await events.pair()
    return [] if data is None else msgspec.json.decode(data), control


def test_large_transactions_are_rendered_in_a_thread(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    real = tables.rendered

    def noted(*arguments: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return real(*arguments)

    async def work(orders: Orders) -> None:
        await orders.db.aexecute(EnableStream("orders"))
        await orders.put(1, 2)
        plain = (await orders.get()).json()
        assert threads == [True]
        large = {"S": "x" * tables.OFFLOAD_BYTES}
        sequence = await orders.put(3, 4, t=large)
        answer = await orders.get(sequence)
        assert keys_of(answer) == ["k3", "k4"]
        assert [record["last"] for record in answer.json()] == [False, True]
        assert threads[-1] is False
        assert (await orders.get()).json()[:2] == plain
        http = orders.up.http
        query = {"offset": "now", "live": "sse"}
        async with http.stream("GET", "/v1/tables/orders/stream", params=query) as one:
            events = Events(one)
            assert (await _next(events))[0] == []
            await orders.up.until(lambda: orders.db.metrics.live_readers == 1)
            threads.clear()
            for number in (5, 6, 7):  # followed, then read because it is large, then followed again
                await orders.put(number, **({"t": large} if number == 6 else {}))
                records: list[Any] = []
                while not records:
                    records, _ = await _next(events)
                assert [record["keys"]["pk"] for record in records] == [f"k{number}"]
                await orders.up.until(lambda: orders.db.metrics.live_readers == 1)
        assert threads == [True, False, True]

    monkeypatch.setattr(tables, "rendered", noted)
    run(data_dir, work)


def test_events_follow_the_table(data_dir: Path) -> None:
    async def work(orders: Orders) -> None:
        await orders.db.aexecute(EnableStream("orders"))
        await orders.put(1)
        url = "/v1/tables/orders/stream"
        http = orders.up.http
        async with (
            http.stream("GET", url, params={"offset": "-1", "live": "sse"}) as one,
            http.stream("GET", url, params={"offset": "now", "live": "sse"}) as other,
            http.stream("GET", url, params={"offset": "now", "live": "sse", "values": "typed"}) as as_typed,
        ):
            first, second, third = Events(one), Events(other), Events(as_typed)
            records, control = await _next(first)
            assert ([r["keys"]["pk"] for r in records], control["upToDate"]) == (["k1"], True)
            assert (await _next(second))[0] == (await _next(third))[0] == []
            await orders.up.until(lambda: orders.db.metrics.live_readers == 3)
            sequence = await orders.put(2, 3)
            for events, key in ((first, "k2"), (second, "k2"), (third, {"S": "k2"})):
                records, control = await _next(events)
                assert [(r["sequence"], r["index"], r["last"]) for r in records] == [
                    (sequence, 0, False),
                    (sequence, 1, True),
                ]
                assert (records[0]["keys"]["pk"], records[0]["table"]) == (key, "orders")
                assert control["streamNextOffset"] == offset(sequence + 1)
            await orders.db.aexecute(DeleteTable("orders"))
            for events in (first, second, third):
                records, control = await _next(events)
                assert (records, control["streamClosed"]) == ([], True)
        await orders.up.until(lambda: orders.up.waiters == 0)

    run(data_dir, work)


def test_readers_are_disconnected_when_the_server_stops(data_dir: Path) -> None:
    async def work(orders: Orders) -> None:
        await orders.db.aexecute(EnableStream("orders"))
        poll = asyncio.create_task(orders.get("now", live="long-poll"))
        params = {"offset": "-1", "live": "sse"}
        async with orders.up.http.stream("GET", "/v1/tables/orders/stream", params=params) as answer:
            events = Events(answer)
            await _next(events)
            await orders.up.until(lambda: orders.db.metrics.live_readers == 2)
            orders.up.running.app.release()
            assert await events.rest() == []
        assert (await poll).status_code == 204

    run(data_dir, work)


def test_an_older_stream_is_read_by_its_label(data_dir: Path) -> None:
    async def work(orders: Orders) -> None:
        first = await orders.db.aexecute(EnableStream("orders"))
        seen = await orders.put(1)
        await orders.db.aexecute(DisableStream("orders"))
        closed = await orders.get()
        assert (keys_of(closed), closed.headers["stream-closed"]) == (["k1"], "true")
        await orders.db.aexecute(EnableStream("orders"))
        await orders.put(2)
        assert keys_of(await orders.get()) == ["k2"]
        assert keys_of(await orders.get(label=first.label)) == ["k1"]
        behind = await orders.get(seen)
        assert behind.status_code == 410
        assert keys_of(await orders.get(behind.headers["stream-earliest-offset"])) == ["k2"]
        missing = await orders.get(label="2020-01-01T00:00:00.000")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "STREAM_NOT_FOUND")

    run(data_dir, work)


def test_what_was_trimmed_is_gone(data_dir: Path) -> None:
    async def work(orders: Orders) -> None:
        await orders.db.aexecute(EnableStream("orders"))
        sequences = [await orders.put(number) for number in range(3)]
        await orders.db.aexecute(PruneStream("orders", sequences[1]))
        answer = await orders.get(sequences[0])
        assert (answer.status_code, answer.json()["error"]["code"]) == (410, "OFFSET_TRIMMED")
        assert answer.headers["stream-earliest-offset"] == offset(sequences[1] + 1)
        assert keys_of(await orders.get()) == ["k2"]

    run(data_dir, work)


def test_what_is_refused(data_dir: Path) -> None:
    async def work(orders: Orders) -> None:
        http = orders.up.http
        none = await orders.get()
        assert (none.status_code, none.json()["error"]["code"]) == (404, "STREAM_NOT_FOUND")
        assert "enable one" in none.json()["error"]["message"]
        missing = await orders.get(path="nothing/stream")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "TABLE_NOT_FOUND")
        assert (await orders.get(path="orders")).status_code == 404
        await orders.db.aexecute(EnableStream("orders"))
        for method in ("POST", "PUT", "DELETE"):
            answer = await http.request(method, "/v1/tables/orders/stream", json=[])
            assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, PATCH, OPTIONS"), method
        assert (await orders.get("funny")).status_code == 400
        assert (await orders.get(10**9)).status_code == 400

    run(data_dir, work)


def test_head_tells_where_the_ends_are(data_dir: Path) -> None:
    async def work(orders: Orders) -> None:
        await orders.db.aexecute(EnableStream("orders", max_age_s=60))
        sequence = await orders.put(1)
        head = await orders.up.http.head("/v1/tables/orders/stream")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["stream-next-offset"] == offset(sequence + 1)
        assert head.headers["stream-earliest-offset"] == offset(sequence)
        assert head.headers["stream-max-age"] == "60"
        assert "stream-closed" not in head.headers

    run(data_dir, work)


def test_a_filter_of_the_reader_is_applied_by_the_server(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(orders: Orders) -> None:
        await orders.db.aexecute(EnableStream("orders"))
        for number in range(1, 9):
            await orders.put(number, n={"N": str(number)})
        last = await orders.put(2, n={"N": "20"})
        assert keys_of(await orders.get(where="n % 2 = 0")) == ["k2", "k4", "k6", "k8", "k2"]
        assert keys_of(await orders.get(where="OLD.n = 2 AND NEW.n = 20")) == ["k2"]
        assert keys_of(await orders.get(where="pk = 'k3' OR _by = 'nobody'")) == ["k3"]
        polled = await orders.up.http.get(
            "/v1/tables/orders/stream", params={"after_sequence": "0", "limit": "100", "where": "n >= 8"}
        )
        assert keys_of(polled) == ["k8", "k2"]
        # A page of a filter that rarely matches ends somewhere, and the next one goes on there.
        monkeypatch.setattr(limits, "SLICE_ENTRIES", 1)
        monkeypatch.setattr(limits, "FEED_FILTER_SLICES", 2)
        found, pages, at = [], 0, "-1"
        while True:
            page = await orders.get(at, where="n = 7")
            found += keys_of(page)
            pages, at = pages + 1, page.headers["stream-next-offset"]
            if "stream-up-to-date" in page.headers:
                break
        assert (found, at) == (["k7"], offset(last + 1))
        assert pages > 2

    run(data_dir, work)


def test_a_filter_of_the_reader_knows_the_declared_columns(data_dir: Path) -> None:
    async def work(orders: Orders) -> None:
        path = "/v1/tables/visits/stream"
        sql = functools.partial(asyncio.to_thread, orders.db.sql)
        await sql("CREATE TABLE visits (pk TEXT PRIMARY KEY, ts TIMESTAMP, N BIGINT) WITH (stream = true)")
        await sql("INSERT INTO visits VALUES ('k1', '2026-01-02 03:04:05', 1), ('k2', '2026-01-03', 2)")
        for where in (
            "n = 1",
            "NEW.n = 1",
            "ts < '2026-01-02 04:00:00'",
            "ts = '2026-01-02T05:04:05+02:00'",
            "NOT (ts > '2026-01-02 04:00:00') AND _by <> 'x'",
        ):
            assert keys_of(await orders.up.http.get(path, params={"offset": "-1", "where": where})) == ["k1"], where
            polled = await orders.up.http.get(path, params={"after_sequence": "0", "where": where})
            assert keys_of(polled) == ["k1"]
        for where in ("nope = 1", "ts < 'noon'"):
            refused = await orders.up.http.get(path, params={"offset": "-1", "where": where})
            assert refused.status_code == 400
            assert "nope" in refused.text or "noon" in refused.text
        # The stream of a table that was dropped has no declared columns any more, also if another one has its name.
        label = (await orders.db.aexecute(FindStreamBounds("visits"))).stream.label
        for statement in ("DROP TABLE visits", "CREATE TABLE visits (pk TEXT PRIMARY KEY, other BIGINT)"):
            await sql(statement)
            params = {"offset": "-1", "label": label, "where": "N = 2"}
            assert keys_of(await orders.up.http.get(path, params=params)) == ["k2"]

    run(data_dir, work)
