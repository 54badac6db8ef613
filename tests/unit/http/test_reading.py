"""Catch-up and long-poll: pages, their headers, how caches distinguish them, and which events wake a reader."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailrace import limits
from tailrace.log.entry import Segment
from tailrace.log.log import Advanced
from tailrace.log.position import offset
from tailrace.log.recent import RecentSegments
from tailrace.storage.engine import Notice
from tailrace.streams.queries import DescribeStream
from tests.support.sealed import seal
from tests.unit.http.inprocess import Up, serve

JSON = "application/json"


def state(answer: httpx.Response) -> tuple[str, bool, bool]:
    """Where the reader is, whether that is the tail, whether that is the end."""
    fields = answer.headers
    assert fields.get("stream-up-to-date") in (None, "true")
    assert fields.get("stream-closed") in (None, "true")
    return fields["stream-next-offset"], "stream-up-to-date" in fields, "stream-closed" in fields


# -- pages


@pytest.mark.parametrize("slice_bytes", [3, 7, 1_000_000])
@pytest.mark.parametrize("page_bytes", [1, 7, 10, 25, 1_000_000])
def test_pages_are_cut_at_message_boundaries(
    data_dir: Path, page_bytes: int, slice_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SLICE_BYTES", slice_bytes)
    monkeypatch.setattr(limits, "PAGE_SLICE_BYTES", slice_bytes)
    bodies = [b"%02d" % n * (n % 4 + 1) for n in range(12)]

    async def scenario(up: Up) -> None:
        await up.create("a")
        await up.append("a", *bodies)
        await up.close("a")
        boundaries = {offset(sum(map(len, bodies[:n]))) for n in range(len(bodies) + 1)}
        tail = offset(sum(map(len, bodies)))
        at, whole, pages = "-1", b"", 0
        while True:
            answer = await up.get("a", at)
            assert answer.status_code == 200
            at, up_to_date, closed = state(answer)
            assert at in boundaries
            assert up_to_date == closed == (at == tail), "a capped page claims neither"
            assert len(answer.content) <= page_bytes or answer.content in bodies
            whole += answer.content
            pages += 1
            if up_to_date:
                break
        assert whole == b"".join(bodies)
        assert pages >= min(len(bodies), len(whole) // page_bytes)
        if page_bytes == 1_000_000:
            assert pages == 1

    serve(data_dir, scenario, page_bytes=page_bytes)


@pytest.mark.parametrize("slice_bytes", [40_000, 150_000, 1_000_000])
@pytest.mark.parametrize("content_type", ["application/octet-stream", JSON])
def test_pages_are_the_same_whatever_rows_they_are_read_from(
    data_dir: Path, content_type: str, slice_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PAGE_SLICE_BYTES", slice_bytes)
    bodies = [b'"%s"' % (b"%d" % (number % 10) * (3_000 + 997 * number)) for number in range(20)]
    bodies += [b'"%d"' % number for number in range(100)]

    async def read(up: Up) -> list[tuple[bytes, str]]:
        pages, at, up_to_date = [], "-1", False
        while not up_to_date:
            answer = await up.get("a", at)
            at, up_to_date, _ = state(answer)
            pages.append((answer.content, answer.headers["etag"]))
        return pages

    async def scenario(up: Up) -> None:
        await up.create("a", content_type)
        await up.append("a", *bodies, content_type=content_type)
        written = await read(up)
        monkeypatch.setattr(up.db, "recent", RecentSegments())
        stored = await read(up)
        await asyncio.to_thread(seal, up.db)
        monkeypatch.setattr(up.db, "recent", RecentSegments())
        assert written == stored == await read(up) == await read(up)
        content = [page for page, _ in stored]
        if content_type == JSON:
            assert [text for page in content for text in json.loads(page)] == [json.loads(body) for body in bodies]
        else:
            assert b"".join(content) == b"".join(bodies)
        assert max(map(len, content)) <= 100_000

    serve(data_dir, scenario, page_bytes=100_000)


def test_every_page_of_a_json_stream_is_an_array(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", JSON)
        await up.append("a", b'[{"n":0},{"n":1}]', b'{"n":2}', b'[{"n":3}]', content_type=JSON)
        at, values = "-1", []
        for _ in range(3):
            answer = await up.get("a", at)
            assert answer.headers["content-type"] == JSON
            values.append(answer.json())
            at, up_to_date, _ = state(answer)
        assert values == [[{"n": 0}, {"n": 1}], [{"n": 2}], [{"n": 3}]]
        assert up_to_date
        empty = await up.get("a", at)
        assert (empty.status_code, empty.content) == (200, b"[]")

    serve(data_dir, scenario, page_bytes=10)


def test_a_message_larger_than_a_page(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a")
        await up.append("a", b"x" * 100_000, b"y")
        answer = await up.get("a")
        assert answer.content == b"x" * 100_000
        assert state(answer) == (offset(100_000), False, False)

    serve(data_dir, scenario, page_bytes=1000)


def test_a_page_that_ends_just_at_the_tail(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a")
        await up.append("a", b"12345", b"67890")
        assert state(await up.get("a")) == (offset(10), True, False)
        await up.append("a", b"x")
        assert state(await up.get("a")) == (offset(10), False, False)
        await up.close("a")
        assert state(await up.get("a")) == (offset(10), False, False), "the end comes with the last page"
        assert state(await up.get("a", 10)) == (offset(11), True, True)
        assert state(await up.get("a", 11)) == (offset(11), True, True)

    serve(data_dir, scenario, page_bytes=10)


def test_pages_over_forks(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a")
        await up.append("a", b"aaa", b"bbb", b"ccc")
        answer = await up.ask(
            "PUT", "f", stream_forked_from="/v1/stream/a", stream_fork_offset=offset(3), stream_fork_sub_offset="2"
        )
        assert answer.status_code == 201
        await up.append("f", b"XYZ")
        at, pages = "-1", []
        while True:
            answer = await up.get("f", at)
            pages.append(answer.content)
            at, up_to_date, _ = state(answer)
            if up_to_date:
                break
        assert pages == [b"aaa", b"bb", b"XYZ"]

    serve(data_dir, scenario, page_bytes=3)


@pytest.mark.parametrize(
    "offset_", ["", "x", "-2", "0", "NOW", "0000000000000000_000000000000000", "-1 ", "%00", "1_1"]
)
def test_offsets_that_are_refused(data_dir: Path, offset_: str) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", body=b"abc")
        for live in ({}, {"live": "long-poll"}, {"live": "sse"}):
            answer = await up.get("a", offset_, **live)
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "INVALID_OFFSET"

    serve(data_dir, scenario)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("offset=-1&offset=-1", "INVALID_OFFSET"),
        ("offset=-1&live=x", "INVALID_LIVE"),
        ("offset=-1&live=", "INVALID_LIVE"),
        ("offset=-1&live=sse&live=sse", "INVALID_LIVE"),
        ("offset=-1&cursor=1&cursor=2", "INVALID_CURSOR"),
        ("live=long-poll", "MISSING_OFFSET"),
        ("live=sse", "MISSING_OFFSET"),
        ("offset=%FF", "INVALID_REQUEST"),
        ("&".join(f"x{n}=1" for n in range(70)), "INVALID_REQUEST"),
        ("offset=0000000000000000_0000000000000005", "INVALID_OFFSET"),
        ("offset=0000000000000000_0000000000000099", "INVALID_OFFSET"),
    ],
)
def test_queries_that_are_refused(data_dir: Path, query: str, code: str) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", body=b"abc")
        answer = await up.http.get(f"/v1/stream/a?{query}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)

    serve(data_dir, scenario)


@pytest.mark.parametrize("live", [{}, {"live": "long-poll"}])
def test_a_read_from_inside_a_message_begins_with_that_message(data_dir: Path, live: dict[str, str]) -> None:
    async def scenario(up: Up) -> None:
        bodies = [b"abc", b"defgh", b"ij"]
        await up.create("a")
        await up.append("a", *bodies)
        starts = [0, 3, 8]
        for position in range(10):
            covering = max(start for start in starts if start <= position)
            answer = await up.get("a", position, **live)
            assert (answer.status_code, answer.content) == (200, b"".join(bodies)[covering:])
            assert answer.headers["etag"] == (await up.get("a", covering, **live)).headers["etag"]
            assert state(answer) == (offset(10), True, False)

    serve(data_dir, scenario)


def test_a_read_from_inside_a_message_of_a_fork_begins_with_that_message(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a")
        await up.append("a", b"abc", b"defgh")
        fork = {"stream-forked-from": "/v1/stream/a", "stream-fork-offset": offset(3)}
        assert (await up.http.put("/v1/stream/b", headers=fork)).status_code == 201
        await up.append("b", b"XYZ")
        assert [(await up.get("b", at)).content for at in (1, 3, 5)] == [b"abcXYZ", b"XYZ", b"XYZ"]

    serve(data_dir, scenario)


def test_a_reader_one_past_the_tail_misses_nothing(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", body=b"abc")
        answer = await up.get("a", 4)
        assert (answer.status_code, answer.content, state(answer)) == (200, b"", (offset(3), True, False))
        waiting = asyncio.create_task(up.get("a", 4, live="long-poll"))
        await up.until(lambda: up.waiters == 1)
        await up.append("a", b"def")
        answer = await waiting
        assert (answer.content, state(answer)) == (b"def", (offset(6), True, False))

    serve(data_dir, scenario)


def test_other_parameters_are_nobodys_business(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", body=b"abc")
        assert (await up.http.get("/v1/stream/a?x=1&offset=-1&y")).content == b"abc"
        assert (await up.http.get("/v1/stream/a")).content == b"abc", "without an offset: from the beginning"

    serve(data_dir, scenario)


def test_now(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", body=b"abc")
        await up.create("j", JSON, b"[1]")
        answer = await up.get("a", "now")
        assert (answer.status_code, answer.content, state(answer)) == (200, b"", (offset(3), True, False))
        assert answer.headers["cache-control"] == "no-store"
        assert "etag" not in answer.headers
        assert (await up.get("j", "now")).json() == []
        await up.close("a")
        assert state(await up.get("a", "now")) == (offset(3), True, True)

    serve(data_dir, scenario)


# -- ETag


def test_the_etag_changes_with_what_the_page_says(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", stream_max_bytes="4")
        tags: list[str] = []

        async def changed() -> None:
            answer = await up.get("a")
            assert answer.headers["etag"] not in tags
            tags.append(answer.headers["etag"])
            for known in (tags[-1], f'"x", {tags[-1]}', "W/" + tags[-1], "*"):
                again = await up.http.get("/v1/stream/a?offset=-1", headers={"if-none-match": known})
                assert (again.status_code, again.content) == (304, b"")
                assert again.headers["etag"] == tags[-1]
            for old in [*tags[:-1], '"x"', "", tags[-1].strip('"')]:
                again = await up.http.get("/v1/stream/a?offset=-1", headers={"if-none-match": old})
                assert again.status_code == 200

        await changed()
        await up.append("a", b"abcd")
        await changed()
        await up.append("a", b"efgh")
        await changed()
        await up.sweep()
        assert (await up.get("a")).content == b"efgh"
        await changed()  # trimmed
        await up.close("a")
        await changed()  # closed
        await up.delete("a")
        await up.create("a", stream_max_bytes="4")
        await changed()  # another stream at the same path

    serve(data_dir, scenario)


def test_the_etag_of_a_capped_page_does_not_change_on_closure(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a")
        await up.append("a", b"12345", b"67890")
        first = (await up.get("a")).headers["etag"]
        await up.close("a")
        assert (await up.get("a")).headers["etag"] == first, "the page is the same: a cache may keep it"

    serve(data_dir, scenario, page_bytes=5)


# -- retention


def test_below_what_is_retained(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", stream_max_bytes="3")
        await up.append("a", b"abc", b"def", b"ghi")
        await up.sweep()
        for live in ({}, {"live": "long-poll"}, {"live": "sse"}):
            answer = await up.get("a", 3, **live)
            assert answer.status_code == 410
            assert answer.headers["stream-earliest-offset"] == offset(6)
            error = answer.json()["error"]
            assert (error["code"], error["earliest_offset"]) == ("OFFSET_TRIMMED", offset(6))
        assert (await up.get("a", 6)).content == b"ghi"
        assert (await up.get("a", "-1")).content == b"ghi"
        head = await up.ask("HEAD", "a")
        assert head.headers["stream-earliest-offset"] == offset(6)
        assert head.headers["stream-max-bytes"] == "3"

    serve(data_dir, scenario)


# -- long-poll


def test_long_poll_with_something_to_read_answers_at_once(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", body=b"abc")
        answer = await up.get("a", live="long-poll")
        assert (answer.status_code, answer.content, state(answer)) == (200, b"abc", (offset(3), True, False))
        assert answer.headers["stream-cursor"].isdigit()
        assert answer.headers["cache-control"].startswith("public")

    serve(data_dir, scenario, long_poll_timeout_s=60)


async def polling(up: Up, *, offset_: int | str = 3) -> asyncio.Task[httpx.Response]:
    """A long-poll that waits."""
    readers = up.db.metrics.live_readers
    task = asyncio.create_task(up.get("a", offset_, live="long-poll"))
    await up.until(lambda: up.db.metrics.live_readers > readers)
    return task


@pytest.mark.parametrize("where", [3, "now"])
def test_long_poll_is_woken_by_an_append(data_dir: Path, where: int | str) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", body=b"abc")
        await up.create("other")
        first, second = await polling(up, offset_=where), await polling(up, offset_=where)
        await up.append("other", b"not for you")
        await asyncio.sleep(0.05)
        assert not first.done()
        await up.append("a", b"def")
        for task in (first, second):
            answer = await task
            assert (answer.status_code, answer.content, state(answer)) == (200, b"def", (offset(6), True, False))
            assert "etag" in answer.headers
            assert answer.headers["stream-cursor"].isdigit()
        assert up.db.metrics.live_readers == 0
        assert up.waiters == 0

    serve(data_dir, scenario, long_poll_timeout_s=60)


def test_long_poll_is_woken_by_closure(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", body=b"abc")
        task = await polling(up)
        await up.close("a")
        answer = await task
        assert (answer.status_code, answer.content, state(answer)) == (204, b"", (offset(3), True, True))
        again = await up.get("a", 3, live="long-poll")
        assert (again.status_code, state(again)) == (204, (offset(3), True, True)), "nothing to wait for any more"

    serve(data_dir, scenario, long_poll_timeout_s=60)


def test_the_last_append_and_the_closure_come_together(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", body=b"abc")
        task = await polling(up)
        await up.append("a", b"end", stream_closed="true")
        answer = await task
        assert (answer.status_code, answer.content, state(answer)) == (200, b"end", (offset(6), True, True))

    serve(data_dir, scenario, long_poll_timeout_s=60)


def test_long_poll_is_woken_by_deletion(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", body=b"abc")
        task = await polling(up)
        await up.delete("a")
        assert (await task).status_code == 404

    serve(data_dir, scenario, long_poll_timeout_s=60)


def test_long_poll_times_out(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", body=b"abc")
        answer = await up.get("a", 3, live="long-poll")
        assert (answer.status_code, answer.content, state(answer)) == (204, b"", (offset(3), True, False))
        assert answer.headers["cache-control"] == "no-store"
        cursor = int(answer.headers["stream-cursor"])
        again = await up.get("a", 3, live="long-poll", cursor=str(cursor))
        assert int(again.headers["stream-cursor"]) > cursor
        ahead = await up.get("a", 3, live="long-poll", cursor=str(cursor + 10_000))
        assert int(ahead.headers["stream-cursor"]) > cursor + 10_000
        odd = await up.get("a", 3, live="long-poll", cursor="-x")
        assert int(odd.headers["stream-cursor"]) >= cursor
        assert up.db.metrics.live_readers == 0

    serve(data_dir, scenario, long_poll_timeout_s=0.02)


def test_long_polls_are_answered_when_the_server_stops(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", body=b"abc")
        task = await polling(up)
        await up.running.app.stop()
        assert (await task).status_code in (204, 503)

    serve(data_dir, scenario, long_poll_timeout_s=60)


def test_a_client_that_leaves_waits_no_more(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", body=b"abc")
        task = await polling(up)
        task.cancel()
        await up.until(lambda: up.db.metrics.live_readers == 0 and up.waiters == 0)

    serve(data_dir, scenario, long_poll_timeout_s=60)


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_too_many_readers(data_dir: Path, live: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", body=b"abc")
        first = await polling(up)
        monkeypatch.setattr(limits, "WAITERS_MAX", 1)
        answer = await up.get("a", 3, live=live)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "TOO_MANY")
        assert answer.headers["retry-after"] == "1"
        await up.append("a", b"x")
        assert (await first).content == b"x"

    serve(data_dir, scenario, long_poll_timeout_s=60)


def test_long_polls_chained_under_concurrent_appends_miss_nothing(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", JSON)

        async def write() -> None:
            for number in range(60):
                await up.append("a", json.dumps(number), content_type=JSON)
            await up.close("a")

        async def read() -> list[Any]:
            at, found = "-1", []
            while True:
                answer = await up.get("a", at, live="long-poll")
                if answer.status_code == 200:
                    found += answer.json()
                at, _, closed = state(answer)
                if closed:
                    return found

        results = await asyncio.gather(read(), read(), write())
        assert results[0] == results[1] == list(range(60))

    serve(data_dir, scenario, long_poll_timeout_s=30, page_bytes=9)


# -- TTL and reads


def test_reads_renew_the_ttl_and_head_does_not(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(up: Up) -> None:
        ahead_ms, real = 0, up.db.clock.now_ms
        monkeypatch.setattr(up.db.clock, "now_ms", lambda: real() + ahead_ms)

        async def expires_ms() -> int:
            found = await up.db.aexecute(DescribeStream("a"))
            assert found.stream.expires_ms is not None
            return found.stream.expires_ms

        await up.create("a", body=b"x", stream_ttl="3600")
        for query in ("-1", "now"):
            before = await expires_ms()
            ahead_ms += 60_000  # enough to be worth a write
            await up.ask("HEAD", "a")
            await asyncio.sleep(0.05)
            assert await expires_ms() == before
            await up.get("a", query)
            while await expires_ms() == before:
                await asyncio.sleep(0.01)
            assert await expires_ms() >= before + 60_000, query

    serve(data_dir, scenario)


def test_a_parked_long_poll_keeps_the_stream_alive(data_dir: Path) -> None:
    """Longer than its TTL; nothing else reads or writes it."""

    async def scenario(up: Up) -> None:
        await up.http.put("/v1/stream/a", headers={"content-type": "text/plain", "stream-ttl": "8"})
        answer = await up.http.get("/v1/stream/a", params={"offset": "now", "live": "long-poll"})
        assert answer.status_code == 204
        assert (await up.http.head("/v1/stream/a")).status_code == 200

    serve(data_dir, scenario, long_poll_timeout_s=10)


def test_a_wake_up_without_news_is_slept_over(data_dir: Path) -> None:
    """The notice of a commit that the first look already saw must not end the poll: 204 says that the time is up."""

    async def scenario(up: Up) -> None:
        await up.http.put("/v1/stream/a", headers={"content-type": "text/plain"}, content=b"abc")
        found = await up.db.aexecute(DescribeStream("a"))
        task = await polling(up)
        up.db.tail.publish([Notice(found.log.id, Advanced(found.log, Segment(found.log.id, 0, 3, 0, b"abc")))])
        await asyncio.sleep(0.05)
        assert not task.done()
        await up.http.post("/v1/stream/a", headers={"content-type": "text/plain"}, content=b"def")
        answer = await task
        assert (answer.status_code, answer.content) == (200, b"def")

    serve(data_dir, scenario)


def test_a_page_of_very_small_messages_is_cut_by_their_number(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SLICE_ENTRIES", 3)
    monkeypatch.setattr(limits, "PAGE_ENTRIES", 6)

    async def scenario(up: Up) -> None:
        await up.http.put("/v1/stream/a", headers={"content-type": "text/plain"})
        for digit in b"0123456789":
            await up.http.post("/v1/stream/a", headers={"content-type": "text/plain"}, content=bytes([digit]))
        answer = await up.http.get("/v1/stream/a", params={"offset": "-1"})
        assert answer.content == b"012345"
        assert "stream-up-to-date" not in answer.headers
        rest = await up.http.get("/v1/stream/a", params={"offset": answer.headers["stream-next-offset"]})
        assert rest.content == b"6789"
        assert rest.headers["stream-up-to-date"] == "true"

    serve(data_dir, scenario)


def test_an_event_stream_reader_keeps_the_stream_alive(data_dir: Path) -> None:
    """It gets what is appended long after the TTL, which nothing but the reader renewed."""

    async def scenario(up: Up) -> None:
        await up.http.put("/v1/stream/a", headers={"content-type": "text/plain", "stream-ttl": "8"})
        query = {"offset": "now", "live": "sse"}
        async with up.http.stream("GET", "/v1/stream/a", params=query) as answer:
            await asyncio.sleep(10)
            posted = await up.http.post("/v1/stream/a", headers={"content-type": "text/plain"}, content=b"late")
            assert posted.status_code == 204
            async for line in answer.aiter_lines():
                if line == "data:late":
                    return
        raise AssertionError("the event stream ended")

    serve(data_dir, scenario)
