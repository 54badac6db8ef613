"""Logs in bulk over HTTP: the same records as the JSON feeds have, wherever ranges are cut; bounded, and never half."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from tailrace import limits
from tailrace.access import ROLES, Access, Principal
from tailrace.auth.users import CreateUser
from tailrace.bulk import queries
from tailrace.bulk.columns import items_of, rows_of
from tailrace.errors import Forbidden
from tailrace.http import arrow
from tailrace.http.bulk import wants_arrow
from tailrace.http.message import Request
from tailrace.log.cold import COLD_TABLES, ColdMiss, ColdTable
from tailrace.log.position import offset
from tailrace.storage.engine import Tx
from tailrace.streams.commands import Append, CreateStream
from tailrace.streams.queries import DescribeStream
from tailrace.tables.plain import Delete, Put
from tailrace.topics.commands import CreateTopic, Outgoing, Publish
from tests.support.patience import AT_ONCE_S, PATIENCE_S
from tests.unit.http.inprocess import Up, serve
from tests.unit.test_cold_reads import All, DictCache, Tiered

ARROW = "application/vnd.apache.arrow.stream"
HEADERS = {"accept": ARROW}
EOS = b"\xff\xff\xff\xff\x00\x00\x00\x00"


async def read(up: Up, path: str, **params: Any) -> pa.Table:
    answer = await up.http.get(path, params={"offset": "-1", **params}, headers=HEADERS)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == ARROW
    assert answer.content.endswith(EOS)
    table = pa.ipc.open_stream(answer.content).read_all()
    table.validate(full=True)
    return table


async def code(up: Up, path: str, **params: Any) -> tuple[int, str, str]:
    answer = await up.http.get(path, params=params, headers=HEADERS)
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["message"]


async def feed(up: Up, path: str, **params: Any) -> list[Any]:
    """All that the JSON feed has."""
    found, at = [], "-1"
    while True:
        answer = await up.http.get(path, params={"offset": at, **params})
        assert answer.status_code == 200, answer.text
        found += json.loads(answer.content, parse_float=Decimal)
        at = answer.headers["stream-next-offset"]
        if "stream-up-to-date" in answer.headers:
            return found


def fill(db: Any, rounds: int = 300) -> None:
    """A table with changes of all sorts: single ones, transactions, other tables' between them."""
    chance = random.Random(7)
    orders = db.create_table("orders", partition_key="id", stream="NEW_AND_OLD_IMAGES")
    other = db.create_table("other", partition_key="id", stream="NEW_IMAGE")
    for number in range(rounds):
        key = f"o-{chance.randrange(40)}"
        item = {
            "id": key, "n": number, "price": Decimal(number) / 8, "b": bytes([number % 256]), "ok": number % 2 == 0,
            "none": None, "tags": {"a", f"t{number}"}, "text": 'say "}" \\ ü',
        }  # fmt: skip
        match number % 5:
            case 0 | 1 | 2:
                orders.put(item)
            case 3:
                other.put({"id": key})
                orders.delete(key)
            case 4:
                deep = {**item, "id": f"t-{number}", "m": {"S": "x", "l": [1, None, {2, 3}]}}
                db.transact_write(
                    [Put("orders", deep), Put("orders", item), Delete("orders", "o-99"), Put("other", {"id": "x"})]
                )


def change_of(row: dict[str, Any]) -> dict[str, Any]:
    """A row as the JSON feed tells it."""

    def parsed(text: str | None) -> Any:
        return None if text is None else json.loads(text, parse_float=Decimal)

    at = row["timestamp"]
    return {
        "sequence": row["sequence"],
        "index": row["index"],
        "last": row["last"],
        "event": row["event"],
        "table": "orders",
        "keys": parsed(row["keys"]),
        "old": parsed(row["old_image"]),
        "new": parsed(row["new_image"]),
        "at": f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z",
        "by": row["principal"],
    }


# -- the same as the feeds


def test_a_tables_changes(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await asyncio.to_thread(fill, up.db)
        path = "/v1/tables/orders/stream"
        rows = await read(up, path)
        assert [change_of(row) for row in rows.to_pylist()] == await feed(up, path)
        typed = await read(up, path, images="typed")
        assert [change_of(row) for row in typed.to_pylist()] == await feed(up, path, values="typed")
        assert rows.num_rows > 300 and max(rows["index"].to_pylist()) > 0

    serve(data_dir, scenario)


def test_entries_become_the_same_rows_elsewhere(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await asyncio.to_thread(fill, up.db, 60)
        path = "/v1/tables/orders/stream"
        entries = await read(up, path, form="entries")
        made = [rows_of("table", batch) for batch in entries.to_batches()]
        assert pa.Table.from_batches(made) == await read(up, path)
        logs = (await up.http.get("/v1/logs", params={"table": "orders"})).json()
        assert set(entries["log"].to_pylist()) == {logs["partitions"][0]["log"]}
        assert entries["next"].to_pylist()[:-1] == entries["position"].to_pylist()[1:]

    serve(data_dir, scenario)


def test_a_topic(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.db.aexecute(CreateTopic("news", partitions=2))
        messages = [Outgoing(b"payload %d \xff" % number, b"k%d" % number) for number in range(50)]
        await up.db.aexecute(Publish("news", tuple(messages)))
        count = 0
        for partition in (0, 1):
            path = f"/v1/topics/news/{partition}/stream"
            rows, delivered = await read(up, path), await feed(up, path)
            count += rows.num_rows
            assert rows["message_id"].to_pylist() == [each["message_id"] for each in delivered]
            assert rows["offset"].to_pylist() == [each["offset"] for each in delivered]
            assert rows["op"].to_pylist() == [each["op"] for each in delivered]
            assert rows["mode"].to_pylist() == [each["payload_mode"] for each in delivered]
            assert rows["key"].to_pylist() == [each["key"].encode() for each in delivered]
            assert [row for row in rows["partition"].to_pylist() if row != partition] == []
            assert set(rows["payload"].to_pylist()) <= {each.payload for each in messages}
        assert count == 50

    serve(data_dir, scenario)


def test_streams_and_their_forks(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("j", "application/json")
        for number in range(30):
            await up.append(
                "j", json.dumps([{"n": number}, "x,]", None][: 1 + number % 3]), content_type="application/json"
            )
        rows = await read(up, "/v1/stream/j")
        assert [json.loads(text) for text in rows["value"].to_pylist()] == await feed(up, "/v1/stream/j")
        await up.create("t", "text/plain", b"abc")
        tail = await up.append("t", "de", "f")
        await up.create("f", "text/plain", stream_forked_from="/v1/stream/t", stream_fork_offset=offset(5))
        await up.append("f", "own", "more")
        assert (await read(up, "/v1/stream/t"))["value"].to_pylist() == ["abc", "de", "f"]
        assert (await read(up, "/v1/stream/f"))["value"].to_pylist() == ["abc", "de", "own", "more"]
        assert (await read(up, "/v1/stream/t", offset=tail)).num_rows == 0
        assert (await read(up, "/v1/stream/f", offset="3", until="8"))["value"].to_pylist() == ["de", "own"]

    serve(data_dir, scenario)


# -- ranges


def test_ranges_lose_and_double_nothing_wherever_they_are_cut(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(up: Up) -> None:
        await asyncio.to_thread(fill, up.db, 80)
        chance = random.Random(3)
        path = "/v1/tables/orders/stream"
        whole = await read(up, path, form="entries")
        (part,) = (await up.http.get("/v1/logs", params={"table": "orders"})).json()["partitions"]
        for _ in range(12):
            cuts = sorted(chance.sample(range(part["earliest"] + 1, part["next"]), chance.randrange(1, 9)))
            bounds = [part["earliest"], *cuts, part["next"]]
            pieces = [
                await read(up, path, offset=offset(low), until=offset(high), form="entries")
                for low, high in itertools.pairwise(bounds)
            ]
            assert pa.concat_tables(pieces).combine_chunks() == whole.combine_chunks()

    monkeypatch.setattr(limits, "BULK_BYTES", 2_000)  # several batches to a range
    monkeypatch.setattr(arrow, "ROWS_BYTES", 1_000)
    serve(data_dir, scenario)


def test_what_comes_later_is_not_in_the_range(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("t", "text/plain", b"abc")
        assert (await read(up, "/v1/stream/t", until="100"))["value"].to_pylist() == ["abc"]
        assert (await read(up, "/v1/stream/t", until="0")).num_rows == 0
        assert (await read(up, "/v1/stream/t", offset="now")).num_rows == 0
        answer = await up.http.get("/v1/stream/t", headers=HEADERS)
        assert answer.headers["stream-next-offset"] == offset(3) and answer.headers["stream-up-to-date"] == "true"
        assert "accept" in answer.headers["vary"].split(", ") and answer.headers["cache-control"] == "no-store"
        head = await up.http.head("/v1/stream/t", headers=HEADERS)
        assert head.status_code == 200 and head.headers["content-type"] == ARROW and head.content == b""

    serve(data_dir, scenario)


def test_batches_are_bounded(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("b", "application/octet-stream")
        bodies = [bytes([number]) * 3_000_000 for number in range(6)] + [b"z" * 9_000_000, b"end"]
        for body in bodies:
            await up.append("b", body, content_type="application/octet-stream")
        answer = await up.http.get("/v1/stream/b", params={"form": "entries"}, headers=HEADERS)
        batches = list(pa.ipc.open_stream(answer.content))
        assert [batch.num_rows for batch in batches] == [2, 2, 2, 1, 1]
        assert [body for batch in batches for body in batch["body"].to_pylist()] == bodies

    serve(data_dir, scenario)


# -- requests


@pytest.mark.parametrize(
    ("path", "params", "expected"),
    [
        ("/v1/stream/t", {"offset": "x"}, (400, "INVALID_OFFSET", "'x'")),
        ("/v1/stream/t", {"offset": "999"}, (400, "INVALID_OFFSET", "beyond the tail")),
        ("/v1/stream/t", {"until": "-1"}, (400, "INVALID_REQUEST", "until=-1")),
        ("/v1/stream/t", {"until": "y"}, (400, "INVALID_OFFSET", "'y'")),
        ("/v1/stream/t", {"form": "csv"}, (400, "INVALID_FORM", "rows or entries")),
        ("/v1/stream/t", {"images": "raw"}, (400, "INVALID_IMAGES", "plain or typed")),
        ("/v1/stream/t", {"live": "sse"}, (400, "INVALID_REQUEST", "'live'")),
        ("/v1/stream/none", {}, (404, "NOT_FOUND", "none")),
        ("/v1/tables/none/stream", {}, (404, "TABLE_NOT_FOUND", "none")),
        ("/v1/tables/none/items", {}, (404, "TABLE_NOT_FOUND", "none")),
        ("/v1/tables/t/items", {"form": "csv"}, (400, "INVALID_FORM", "rows or stored")),
        ("/v1/tables/t/items", {"segment": "1"}, (400, "INVALID_REQUEST", "segment is given without segments")),
        ("/v1/tables/t/items", {"segment": "3", "segments": "3"}, (400, "INVALID_REQUEST", "from 0 to 2")),
        ("/v1/tables/t/items", {"segment": "0", "segments": "0"}, (400, "INVALID_REQUEST", "a number of segments")),
        ("/v1/topics/none/0/stream", {}, (404, "TOPIC_NOT_FOUND", "none")),
        ("/v1/logs", {}, (400, "INVALID_REQUEST", "exactly one")),
        ("/v1/logs", {"table": "a", "topic": "b"}, (400, "INVALID_REQUEST", "table, topic")),
        ("/v1/logs", {"stream": "t", "label": "x"}, (400, "INVALID_REQUEST", "'x'")),
        ("/v1/logs", {"stream": "t", "more": "x"}, (400, "INVALID_REQUEST", "'more'")),
        ("/v1/logs/at", {"stream": "t"}, (400, "INVALID_REQUEST", "timestamp is missing")),
        ("/v1/logs/at", {"stream": "t", "timestamp": "now"}, (400, "INVALID_REQUEST", "'now'")),
        ("/v1/logs/nowhere", {"stream": "t"}, (404, "NOT_FOUND", "advance")),
        ("/v1/logs/count", {"stream": "t", "first": "0", "until": "1"}, (400, "INVALID_REQUEST", "is not a table")),
        ("/v1/logs/count", {"table": "t", "until": "1"}, (400, "INVALID_REQUEST", "first is missing")),
        (
            "/v1/logs/count",
            {"table": "t", "first": "0", "until": "1", "pieces": "1001"},
            (400, "INVALID_REQUEST", "'1001'"),
        ),
    ],
)
def test_mistakes_are_reported(
    data_dir: Path, path: str, params: dict[str, str], expected: tuple[int, str, str]
) -> None:
    async def scenario(up: Up) -> None:
        await up.create("t", "text/plain", b"abc")
        status, name, message = await code(up, path, **params)
        assert (status, name) == expected[:2] and expected[2] in message

    serve(data_dir, scenario)


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (ARROW, True),
        (ARROW.upper(), True),
        (f"{ARROW};q=0.9, application/json;q=0.5", True),
        (f"application/json, {ARROW};q=0.9", False),
        (f"{ARROW};q=0", False),
        (f"{ARROW};q=x", False),
        (f"*/*, {ARROW}", True),
        (f"*/*, {ARROW};q=0.1", True),
        ("application/json", False),
        ("*/*", False),
        ("application/vnd.apache.arrow.streams", False),
    ],
)
def test_who_wants_arrow(accept: str, wanted: bool) -> None:
    assert wants_arrow(Request(b"GET", b"/", b"", {b"accept": accept.encode()}, b"")) is wanted


def test_arrow_is_for_those_who_may_read(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        root = {"authorization": "Bearer s3cret-s3cret-s3cret"}
        await up.db.aexecute(CreateTopic("news"))
        await up.http.put("/v1/stream/t", content=b"abc", headers={**root, "content-type": "text/plain"})
        await asyncio.to_thread(up.db.create_table, "orders", partition_key="id", stream="NEW_IMAGE")
        await up.db.aexecute(CreateUser(name="reader", role="user", access=("streams/t",), password=None))
        paths = ["/v1/stream/t", "/v1/tables/orders/stream", "/v1/topics/news/0/stream", "/v1/tables/orders/items"]
        paths += [f"/v1/logs?{named}" for named in ("stream=t", "table=orders", "topic=news")]
        for path in paths:
            assert (await up.http.get(path, headers=HEADERS)).status_code == 401
            assert (await up.http.get(path, headers={**HEADERS, **root})).status_code == 200
        some = Principal("reader", ROLES["user"], "user", Access(("streams/t",)))
        topic = queries.LogSelector("topic", "news")
        for query in (
            queries.find_logs(topic),
            queries.plan(topic, 0, None, None),
            queries.packed_entries(topic, 1, 0, 1, 1),
        ):
            with pytest.raises(Forbidden):
                await up.db.aexecute(query, Principal("user", ROLES["user"]))
        for query in (
            queries.find_logs(queries.LogSelector("table", "orders")),
            queries.offsets_at(queries.LogSelector("stream", "u"), 0),
        ):
            with pytest.raises(Forbidden):
                await up.db.aexecute(query, some)
        await up.db.aexecute(queries.find_logs(queries.LogSelector("stream", "t")), some)

    serve(data_dir, scenario, token="s3cret-s3cret-s3cret")


# -- logs


def test_what_there_is_of_logs(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await asyncio.to_thread(
            up.db.create_table, "orders", partition_key="id", sort_key=("n", "N"), stream="NEW_IMAGE"
        )
        await up.db.aexecute(CreateTopic("news", partitions=2))
        await up.create("t", "text/plain", b"abc")
        info = (await up.http.get("/v1/logs", params={"table": "orders"})).json()
        assert info["kind"] == "table" and info["keys"] == [["id", "S"], ["n", "N"]] and info["view"] == "NEW_IMAGE"
        assert info["complete"] is True and info["cold"] is None and info["database"] == await identity(up)
        (part,) = info["partitions"]
        assert part["earliest"] == part["hot"] == part["tiered"] == part["next"]
        info = (await up.http.get("/v1/logs", params={"topic": "news"})).json()
        assert [part["partition"] for part in info["partitions"]] == [0, 1]
        info = (await up.http.get("/v1/logs", params={"stream": "t"})).json()
        assert info["content_type"] == "text/plain" and info["partitions"][0]["next"] == 3

    async def identity(up: Up) -> str:
        return await asyncio.to_thread(lambda: up.db.identity)

    serve(data_dir, scenario)


def test_where_a_moment_lies(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await asyncio.to_thread(fill, up.db, 40)
        await asyncio.sleep(0.01)
        await asyncio.to_thread(up.db.table("orders").put, {"id": "last"})
        entries = (await read(up, "/v1/tables/orders/stream", form="entries")).to_pylist()
        tail = entries[-1]["next"]
        times = {entry["at_ms"] for entry in entries}
        for at_ms in sorted({0, *times, *(each + 1 for each in times), 2**50}):
            answer = await up.http.get("/v1/logs/at", params={"table": "orders", "timestamp": at_ms})
            expected = next((entry["position"] for entry in entries if entry["at_ms"] >= at_ms), tail)
            assert answer.json() == {"offsets": {"0": expected}}, at_ms

    serve(data_dir, scenario)


async def advanced(up: Up, *wanted: dict[str, Any]) -> list[Any]:
    answer = await up.http.post("/v1/logs/advance", json={"logs": list(wanted)})
    assert answer.status_code == 200, answer.text
    return [None if each is None else each["offsets"] for each in answer.json()["logs"]]


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/v1/logs", {"logs": [{}]}, "exactly one"),
        ("/v1/logs", {"logs": [{"stream": "t", "label": "x"}]}, "'x'"),
        ("/v1/logs", {"logs": [{"stream": "t", "more": "x"}]}, "more"),
        ("/v1/logs/advance", {"logs": [{"stream": "t", "from": "3", "records": 1}]}, "from"),
        ("/v1/logs/advance", {"logs": [{"stream": "t", "from": {}, "records": 1}]}, "from"),
        ("/v1/logs/advance", {"logs": [{"stream": "t", "from": {"0": 0}, "records": 0}]}, "records"),
        ("/v1/logs/advance", {"logs": [{"stream": "t", "from": {"4": 0}, "records": 1}]}, "partition 4"),
        (
            "/v1/logs/advance",
            {"logs": [{"topic": "t", "from": {str(number): 0 for number in range(10_001)}, "records": 1}]},
            "more than 10000 offsets",
        ),
    ],
)
def test_mistakes_in_questions_about_many_logs_are_reported(
    data_dir: Path, path: str, body: dict[str, Any], says: str
) -> None:
    async def scenario(up: Up) -> None:
        await up.create("t", "text/plain")
        answer = await up.http.post(path, json=body)
        assert answer.status_code == 400, answer.text
        assert says in answer.text

    serve(data_dir, scenario)


def test_many_logs_are_described_in_one_request(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(up: Up) -> None:
        await asyncio.to_thread(fill, up.db, 6)
        await up.create("t", "text/plain")
        for name in ("news", "more"):
            await up.db.aexecute(CreateTopic(name, partitions=3))
        names = [{"stream": "t"}, {"table": "none"}, {"topic": "news"}, {"table": "orders"}, {"topic": "more"}]
        single = [(await up.http.get("/v1/logs", params=name)).json() for name in names]
        answer = (await up.http.post("/v1/logs", json={"logs": names})).json()["logs"]
        assert answer == [each if "partitions" in each else None for each in single]
        monkeypatch.setattr(limits, "BULK_LOGS_MAX", 5)  # partitions in one answer: the rest is asked for again
        assert (await up.http.post("/v1/logs", json={"logs": names})).json()["logs"] == answer[:4]
        monkeypatch.setattr(limits, "BULK_LOGS_MAX", 2)
        assert (await up.http.post("/v1/logs", json={"logs": names[2:]})).json()["logs"] == answer[2:3]

    serve(data_dir, scenario)


def test_how_far_records_reach(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await asyncio.to_thread(fill, up.db, 60)
        rows = await read(up, "/v1/tables/orders/stream")
        at, seen = rows["offset"][0].as_py(), 0
        while True:
            (reach,) = await advanced(up, {"table": "orders", "from": {"0": at}, "records": 7})
            reached = reach["0"]
            piece = await read(up, "/v1/tables/orders/stream", offset=offset(at), until=offset(reached))
            if reached == at:
                break
            assert 1 <= piece.num_rows <= 9, "about seven, in whole transactions"
            at, seen = reached, seen + piece.num_rows
        assert seen == rows.num_rows
        await up.db.aexecute(CreateTopic("news", partitions=2))
        await up.db.aexecute(Publish("news", tuple(Outgoing(b"x", None, number % 3 // 2) for number in range(30))))
        news = {"topic": "news", "from": {"0": 0, "1": 0}, "records": 15}
        assert await advanced(up, news) == [{"0": 10, "1": 5}]
        await up.create("t", "text/plain")
        await up.append("t", "ab", "c", "def", "g")
        asked = [{"stream": "t", "from": {"0": at}, "records": 2} for at in (0, 2, 3, 6, 7)]
        assert [each["0"] for each in await advanced(up, *asked)] == [3, 6, 7, 7, 7]
        gone = {"table": "none", "from": {"0": 0}, "records": 1}
        assert await advanced(up, gone, news, gone) == [None, {"0": 10, "1": 5}, None]

    serve(data_dir, scenario)


# -- items


def test_all_items_of_one_moment(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(up: Up) -> None:
        def put(low: int, high: int) -> None:
            for number in range(low, high):
                table.put({"id": f"i-{number:04}", "sort": number, "n": Decimal(number) / 4, "m": {"x": [number]}})

        table = await asyncio.to_thread(
            up.db.create_table, "orders", partition_key="id", sort_key=("sort", "N"), stream="KEYS_ONLY"
        )
        await asyncio.to_thread(put, 0, 200)
        async with up.http.stream("GET", "/v1/tables/orders/items", headers=HEADERS) as answer:
            assert answer.status_code == 200
            sequence = int(answer.headers["tailrace-sequence"])
            await asyncio.to_thread(put, 200, 260)  # while the answer is under way
            found = pa.ipc.open_stream(await answer.aread()).read_all().to_pylist()
        assert len(found) == 200
        assert sequence == 201, "of the enabling, and of 200 puts"
        by_id = {json.loads(row["keys"])["id"]: row for row in found}
        assert sorted(by_id) == [f"i-{number:04}" for number in range(200)]
        row = by_id["i-0007"]
        assert json.loads(row["item"]) == {"id": "i-0007", "sort": 7, "n": 1.75, "m": {"x": [7]}}
        assert json.loads(row["keys"]) == {"id": "i-0007", "sort": 7}
        assert json.loads(row["typed"])["m"] == {"M": {"x": {"L": [{"N": "7"}]}}}

    monkeypatch.setattr(limits, "BULK_BYTES", 1_000)
    serve(data_dir, scenario)


def test_segments_are_all_items_once_each(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        fill(up.db, 100)
        path = "/v1/tables/orders/items"

        async def items(**params: str) -> pa.Table:
            answer = await up.http.get(path, params=params, headers=HEADERS)
            assert answer.status_code == 200, answer.text
            return pa.ipc.open_stream(answer.content).read_all()

        whole = await items()
        parts = [await items(segment=str(segment), segments="7") for segment in range(7)]
        assert pa.concat_tables(parts) == whole
        assert sum(part.num_rows > 0 for part in parts) > 3
        stored = [await items(segment=str(segment), segments="2", form="stored") for segment in range(2)]
        bodies = pa.concat_tables(stored)["body"].combine_chunks()
        assert items_of(bodies, ("id",)).to_pylist() == whole.to_pylist()

    serve(data_dir, scenario)


def test_items_of_an_empty_table_and_other_asks(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await asyncio.to_thread(up.db.create_table, "empty", partition_key="id")
        answer = await up.http.get("/v1/tables/empty/items", headers=HEADERS)
        assert answer.headers["tailrace-sequence"] == "0"
        assert pa.ipc.open_stream(answer.content).read_all().num_rows == 0
        head = await up.http.head("/v1/tables/empty/items", headers=HEADERS)
        assert head.status_code == 200 and head.headers["content-type"] == ARROW
        plain = await up.http.get("/v1/tables/empty/items")
        assert plain.status_code == 400 and "Accept" in plain.json()["error"]["message"]
        assert (await up.http.post("/v1/tables/empty/items", headers=HEADERS)).status_code == 405

    serve(data_dir, scenario)


# -- slow, gone, cut off


def large(db: Any, count: int = 60) -> None:
    """A stream of 60 MB, far more than sockets hold."""
    db.execute(CreateStream("b", "application/octet-stream"))
    for number in range(count):
        db.execute(Append("b", bytes([number]) * 1_000_000, "application/octet-stream"))


def test_a_reader_that_does_not_read_holds_little(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    original = queries.PackedEntries.run

    def counted(self: queries.PackedEntries, reader: Any) -> Any:
        reads.append(self.first)
        return original(self, reader)

    async def scenario(up: Up) -> None:
        await asyncio.to_thread(large, up.db)
        monkeypatch.setattr(queries.PackedEntries, "run", counted)
        async with up.http.stream("GET", "/v1/stream/b?form=entries", headers=HEADERS) as answer:
            assert answer.status_code == 200
            await asyncio.sleep(0.5)
            held = len(reads)
            assert held <= 2, "no more is read than was taken, and one batch"
            # Meanwhile others read and write as ever.
            assert (await read(up, "/v1/stream/b", until="1000000")).num_rows == 1
            await up.append("b", b"more", content_type="application/octet-stream")
            body = await answer.aread()
        entries = pa.ipc.open_stream(body).read_all()
        assert entries.num_rows == 60 and len(reads) > held

    serve(data_dir, scenario)


def test_readers_that_leave_free_their_place(data_dir: Path) -> None:
    def fill_table(db: Any) -> None:
        table = db.create_table("wide", partition_key="id")
        for number in range(60):
            table.put({"id": str(number), "b": bytes(300_000)})

    async def scenario(up: Up) -> None:
        await asyncio.to_thread(large, up.db)
        await asyncio.to_thread(fill_table, up.db)
        for path in ("/v1/stream/b", "/v1/tables/wide/items"):
            for _ in range(2 * limits.BULK_READS_MAX):
                async with up.http.stream("GET", path, headers=HEADERS) as answer:
                    assert answer.status_code == 200
            async with asyncio.timeout(AT_ONCE_S):
                answer = await up.http.get(path, headers=HEADERS)
            assert pa.ipc.open_stream(answer.content).read_all().num_rows == 60

    serve(data_dir, scenario)


def test_no_more_scans_at_once_than_there_are_places(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill_table(db: Any) -> None:
        table = db.create_table("wide", partition_key="id")
        for number in range(60):
            table.put({"id": str(number), "b": bytes(300_000)})

    async def scenario(up: Up) -> None:
        await asyncio.to_thread(fill_table, up.db)
        path = "/v1/tables/wide/items"
        async with up.http.stream("GET", path, headers=HEADERS), up.http.stream("GET", path, headers=HEADERS) as second:
            monkeypatch.setattr(limits, "BULK_WAIT_S", 0.2)
            assert (await code(up, path))[:2] == (503, "SCANS_BUSY")
            await second.aread()

    monkeypatch.setattr(limits, "EXPORTS_MAX", 2)
    serve(data_dir, scenario)


def test_what_cannot_be_finished_is_cut_off(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleted in the middle, or the server stops: the client must not take what it got for all there is."""

    async def scenario(up: Up) -> None:
        await asyncio.to_thread(large, up.db)
        with pytest.raises(httpx.RemoteProtocolError):
            async with up.http.stream("GET", "/v1/stream/b?form=entries", headers=HEADERS) as answer:
                await up.delete("b")
                await answer.aread()
        await asyncio.to_thread(large, up.db)
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            async with up.http.stream("GET", "/v1/stream/b?form=entries", headers=HEADERS) as answer:
                stopping = asyncio.ensure_future(up.running.stop())
                await answer.aread()
        await stopping

    serve(data_dir, scenario)


def test_a_stream_that_is_read_stays_alive(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(up: Up) -> None:
        ahead_ms, real = 0, up.db.clock.now_ms
        monkeypatch.setattr(up.db.clock, "now_ms", lambda: real() + ahead_ms)

        async def expires_ms() -> int | None:
            return (await up.db.aexecute(DescribeStream("brief"))).stream.expires_ms

        await up.create("brief", "text/plain", b"abc", stream_ttl="1000")
        for _ in range(8):
            before = await expires_ms()
            ahead_ms += 400_000
            assert (await read(up, "/v1/stream/brief")).num_rows == 1
            while await expires_ms() == before:
                await asyncio.sleep(0.01)

    serve(data_dir, scenario)


# -- cold storage


class Moved(Tiered, frozen=True):
    """As a batch of tiering leaves it, with the place."""

    def run(self, tx: Tx) -> None:
        super().run(tx)
        tx.put(COLD_TABLES, ColdTable("somewhere", 0, 0))


class Slow(DictCache):
    """Cold storage that answers on command."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()

    def fetch(self, missing: ColdMiss) -> None:
        assert self.answers.wait(PATIENCE_S)
        super().fetch(missing)


def test_reads_that_wait_for_cold_storage_hold_up_no_hot_ones(data_dir: Path) -> None:
    def cold_streams(db: Any, cache: Slow, count: int) -> None:
        for number in range(count):
            db.execute(CreateStream(f"c{number}", "text/plain"))
            for _ in range(4):
                db.execute(Append(f"c{number}", b"0123456789", "text/plain"))
            log = db.execute(DescribeStream(f"c{number}")).log.id
            cache.kept[log] = db.execute(All(log))
            db.execute(Moved(log, 20))

    async def scenario(up: Up) -> None:
        cache = Slow()
        up.db.cold = cache  # type: ignore[assignment]
        count = limits.BULK_COLD_READS_MAX + 2 * limits.BULK_READS_MAX
        await asyncio.to_thread(cold_streams, up.db, cache, count)
        await up.create("hot", "text/plain", b"abc")
        waiting = [asyncio.ensure_future(read(up, f"/v1/stream/c{number}")) for number in range(count)]
        at = {"stream": "c0", "timestamp": "0"}
        waiting_at = asyncio.ensure_future(up.http.get("/v1/logs/at", params=at))
        await asyncio.sleep(0.5)
        try:
            async with asyncio.timeout(AT_ONCE_S):
                assert (await read(up, "/v1/stream/hot")).num_rows == 1
                assert (await read(up, "/v1/stream/c1", offset="20")).num_rows == 2
                params = {"stream": "hot", "timestamp": "0"}
                assert (await up.http.get("/v1/logs/at", params=params)).status_code == 200
                assert await advanced(up, {"stream": "hot", "from": {"0": 0}, "records": 1})
            assert not any(each.done() for each in (*waiting, waiting_at))
        finally:
            cache.answers.set()
        assert [(await each).num_rows for each in waiting] == [4] * count
        assert (await waiting_at).json() == {"offsets": {"0": 0}}

    serve(data_dir, scenario, cold_files=False)


def test_a_reader_that_stalls_in_a_batch_does_not_hold_its_place_for_ever(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_table(db: Any) -> None:
        table = db.create_table("wide", partition_key="id")
        for number in range(60):
            table.put({"id": str(number), "b": bytes(300_000)})

    async def scenario(up: Up) -> None:
        await asyncio.to_thread(fill_table, up.db)
        path = "/v1/tables/wide/items"
        async with up.http.stream("GET", path, headers=HEADERS) as one, up.http.stream("GET", path, headers=HEADERS):
            monkeypatch.setattr(limits, "EXPORT_S", PATIENCE_S)
            async with asyncio.timeout(
                AT_ONCE_S
            ):  # the places of those two are free again, though they are still there
                answer = await up.http.get(path, headers=HEADERS)
            assert pa.ipc.open_stream(answer.content).read_all().num_rows == 60
            with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
                await one.aread()

    monkeypatch.setattr(limits, "EXPORT_S", 1.0)
    monkeypatch.setattr(limits, "EXPORTS_MAX", 2)
    serve(data_dir, scenario)


def test_keys_in_the_url_of_cold_storage_are_not_shown(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("s", "text/plain", b"abc")
        await up.http.post("/v1/cold/attach", json={"stream": "s"})
        for url in ("s3://KEY:a/Hidden@bucket/x", "s3://KEY:Hidden/bucket"):
            up.db.cold.url = url
            for path in ("/v1/cold", "/v1/logs?stream=s"):
                answer = await up.http.get(path)
                assert answer.status_code == 200 and "s3://***@" in answer.text
                assert "Hidden" not in answer.text and "KEY" not in answer.text

    serve(data_dir, scenario)
