"""A topic's partition over HTTP as a Durable Stream: pages, long polls and events of messages, and what is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailrace.access import Principal
from tailrace.errors import Forbidden
from tailrace.http import partitions
from tailrace.http.partitions import PartitionFeed
from tailrace.log.position import offset
from tailrace.topics.commands import ClearTopic
from tests.unit.http.inprocess import Events
from tests.unit.http.messages import TOPIC, Topics, payloads_of, run

FEED = f"/v1/topics/{TOPIC}/0/stream"


async def get(topics: Topics, position: int | str = "-1", path: str = FEED, **query: str) -> httpx.Response:
    at = offset(position) if isinstance(position, int) else position
    return await topics.http.get(path, params={"offset": at, **query})


def read(text: str | bytes) -> list[bytes]:
    return payloads_of({"messages": json.loads(text)})


def test_messages_are_those_of_consume_without_the_delivery(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        await topics.publish(b"\x00\xff", b"two")
        answer = await get(topics)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["stream-next-offset"] == offset(2)
        assert answer.headers["stream-up-to-date"] == "true"
        assert "stream-closed" not in answer.headers
        consumed = (await topics.consume())["messages"]
        for message in consumed:
            del message["attempt"], message["lease_id"]
        assert answer.json() == consumed
        cached = await topics.http.get(FEED, headers={"if-none-match": answer.headers["etag"]}, params={"offset": "-1"})
        assert cached.status_code == 304

    run(data_dir, work)


def test_offsets_go_on_page_by_page(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        await topics.publish(*(b"%d" % number for number in range(5)))
        assert read((await get(topics, 3)).content) == [b"3", b"4"]
        assert (await get(topics, 5)).json() == []
        assert (await get(topics, "now")).headers["stream-next-offset"] == offset(5)
        assert (await get(topics, 6)).status_code == 400
        assert (await get(topics, "rubbish")).status_code == 400
        seen: list[bytes] = []
        at = "-1"
        while len(seen) < 5:
            page = await get(topics, at)
            seen += read(page.content)
            at = page.headers["stream-next-offset"]
        assert seen == [b"%d" % number for number in range(5)]

    run(data_dir, work, page_bytes=60)


def test_each_partition_is_a_stream(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        await topics.publish(b"zero", partition=0)
        await topics.publish(b"one", partition=1)
        assert read((await get(topics, path=f"/v1/topics/{TOPIC}/1/stream")).content) == [b"one"]
        refused = await get(topics, path=f"/v1/topics/{TOPIC}/2/stream")
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "NO_SUCH_PARTITION")
        assert (await get(topics, path="/v1/topics/nothing/0/stream")).status_code == 404

    run(data_dir, work, partitions=2)


def test_a_long_poll_is_woken_by_a_message(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        waiting = asyncio.create_task(get(topics, 0, live="long-poll"))
        await topics.up.until(lambda: topics.db.metrics.live_readers == 1)
        await topics.publish(b"a", b"b")
        answer = await waiting
        assert read(answer.content) == [b"a", b"b"]
        assert answer.headers["stream-next-offset"] == offset(2)

    run(data_dir, work)


def test_events_follow(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(topics: Topics) -> None:
        await topics.publish(b"before")
        query = {"offset": "-1", "live": "sse"}
        async with (
            topics.http.stream("GET", FEED, params=query) as one,
            topics.http.stream("GET", FEED, params=query) as two,
        ):
            readers = [Events(one), Events(two)]
            for reader in readers:
                data, control = await reader.pair()
                assert read(data or "") == [b"before"]
                assert control["upToDate"]
            await topics.up.until(lambda: topics.db.metrics.live_readers == 2)
            rendered: list[Any] = []
            encode = partitions.rendered
            monkeypatch.setattr(partitions, "rendered", lambda *args: rendered.append(args) or encode(*args))
            await topics.publish(b"a", b"b")
            for reader in readers:
                data, control = await reader.pair()
                assert read(data or "") == [b"a", b"b"]
                assert control["streamNextOffset"] == offset(3)
            assert len(rendered) == 2, "each message is encoded once, however many follow"
            large = b"x" * (partitions.TURN_BYTES + 1)
            await topics.publish(large)
            for reader in readers:
                data, _ = await reader.pair()
                assert read(data or "") == [large]

    run(data_dir, work)


def test_what_retention_removed_is_gone(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        await topics.publish(b"a", b"b")
        await topics.db.aexecute(ClearTopic(TOPIC))
        await topics.publish(b"c")
        gone = await get(topics, 1)
        assert (gone.status_code, gone.headers["stream-earliest-offset"]) == (410, offset(2))
        assert read((await get(topics)).content) == [b"c"]

    run(data_dir, work)


def test_a_topic_that_is_dropped_ends_its_readers(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        waiting = asyncio.create_task(get(topics, 0, live="long-poll"))
        async with topics.http.stream("GET", FEED, params={"offset": "-1", "live": "sse"}) as answer:
            await topics.up.until(lambda: topics.db.metrics.live_readers == 2)
            await topics.drop()
            assert (await waiting).status_code == 404
            await Events(answer).rest()

    run(data_dir, work)


def test_the_head_tells_what_is_kept(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        await topics.create("app.kept", retention_seconds=60, retention_max_bytes=1000)
        head = await topics.http.head("/v1/topics/app.kept/0/stream")
        assert head.status_code == 200
        assert head.headers["stream-next-offset"] == head.headers["stream-earliest-offset"] == offset(0)
        assert (head.headers["stream-max-age"], head.headers["stream-max-bytes"]) == ("60", "1000")
        assert "stream-max-age" not in (await topics.http.head(FEED)).headers

    run(data_dir, work)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_is_appended_here(data_dir: Path, method: str) -> None:
    async def work(topics: Topics) -> None:
        answer = await topics.http.request(method, FEED, content=b"[1]", headers={"content-type": "application/json"})
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
        assert (await get(topics)).json() == []

    run(data_dir, work)


def test_reading_needs_the_permission_to_consume(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        await topics.publish(b"a")
        feed = PartitionFeed(topics.db, Principal("reader", frozenset(("read", "write"))), TOPIC, 0)
        for work in (feed.read(None, 100), feed.describe()):
            with pytest.raises(Forbidden, match="consume"):
                await work

    run(data_dir, work)


def test_a_filter_of_the_reader_is_applied_by_the_server(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        small, large = (
            [b'{"n":%d}' % number for number in (1, 2)],
            [b'{"n":%d.5,"by":"x"}' % number for number in (7, 8)],
        )
        await topics.publish(small[0], large[0], b"\xff not JSON", b"[9]", small[1])
        query = {"where": "n > 5 AND _by = 'system'"}
        page = await get(topics, "-1", **query)
        assert read(page.content) == [large[0]]
        assert page.headers["stream-next-offset"] == offset(5)
        assert page.headers["stream-up-to-date"] == "true"
        waiting = asyncio.create_task(get(topics, 5, live="long-poll", **query))
        async with topics.http.stream("GET", FEED, params={"offset": "-1", "live": "sse", **query}) as one:
            events = Events(one)
            data, _ = await events.pair()
            assert read(data or "") == [large[0]]
            await topics.up.until(lambda: topics.db.metrics.live_readers == 2)
            await topics.publish(small[0])
            await topics.publish(large[1], small[0])
            data, control = await events.pair()
            assert data is None  # nothing for this reader, but where it is
            assert control["streamNextOffset"] == offset(6)
            data, control = await events.pair()
            assert read(data or "") == [large[1]]
            assert control["streamNextOffset"] == offset(8)
        assert read((await waiting).content) == [large[1]]
        for wrong in ("", "n >", "n = 1" * 1_000, "count(*) > 1"):
            assert (await get(topics, "-1", where=wrong)).status_code == 400

    run(data_dir, work)


def test_a_number_beyond_all_decimals_is_no_poison(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        await topics.publish(b'{"n":1e99999999999999999999}', b'{"n":7}')
        assert read((await get(topics, "-1", where="n > 5")).content) == [b'{"n":7}']
        put = {"op": "put", "table": "t", "item": {"id": "a"}}
        body = json.dumps({"operations": [put]}).replace('"a"', "1e99999999999999999999")
        answer = await topics.http.post(
            "/v1/api/transaction", content=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 400

    run(data_dir, work)
