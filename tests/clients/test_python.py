"""PyPI's durable-streams client, unmodified, against the real server: its sync and its async half.

Live tests wait for what they expect, never for a time: each write follows a read that was seen. (This client
has no idempotent producer; the JavaScript one has.)
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest
from durable_streams import (
    AsyncDurableStream,
    DurableStream,
    SeqConflictError,
    StreamExistsError,
    StreamNotFoundError,
    astream,
    stream,
)

from tests.support.patience import PATIENCE_S
from tests.support.server import ServerProcess

pytestmark = pytest.mark.clients

JSON = "application/json"
TEXT = "text/plain"

Fresh = Callable[[], str]


@pytest.fixture
def fresh(server: ServerProcess) -> Fresh:
    """The URL of a stream that nobody used before."""
    return lambda: f"{server.url}/v1/stream/clients/python/{uuid.uuid4()}"


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


# -- sync


def test_create_append_read_head(fresh: Fresh) -> None:
    with DurableStream.create(fresh(), content_type=TEXT) as handle:
        first = handle.append("one ")
        second = handle.append(b"two")
        assert first.next_offset < second.next_offset
        with handle.stream(live=False) as response:
            assert response.read_text() == "one two"
        head = handle.head()
        assert (head.content_type, head.offset) == (TEXT, second.next_offset)
        with DurableStream.connect(handle.url) as other:
            assert other.content_type == TEXT


def test_create_again_is_fine_with_the_same_settings_only(fresh: Fresh) -> None:
    url = fresh()
    with DurableStream.create(url, content_type=JSON, body=b'[{"n": 1}]'), DurableStream.create(url, content_type=JSON):
        pass
    with pytest.raises(StreamExistsError):
        DurableStream.create(url, content_type=TEXT)
    with stream(url, live=False) as response:
        assert response.read_json() == [{"n": 1}]


def test_a_read_resumes_where_the_last_one_ended(fresh: Fresh) -> None:
    with DurableStream.create(fresh(), content_type=JSON) as handle:
        handle.append({"n": 1})
        with handle.stream(live=False) as response:
            assert response.read_json() == [{"n": 1}]
            offset = response.offset
        handle.append({"n": 2})
        with handle.stream(live=False, offset=offset) as response:
            assert response.read_json() == [{"n": 2}]
            assert response.up_to_date


def test_json_messages_keep_their_bounds(fresh: Fresh) -> None:
    messages: list[Any] = [{"a": 1}, [1, [2]], "Grüße ☃", None, 1.5, True, {"nested": {"list": [{}]}}]
    with DurableStream.create(fresh(), content_type=JSON, batching=False) as handle:
        for message in messages:
            handle.append(message)
        with handle.stream(live=False) as response:
            assert response.read_json() == messages


def test_bytes_come_back_as_they_went(fresh: Fresh) -> None:
    body = bytes(range(256)) * 1024
    with DurableStream.create(fresh(), content_type="application/octet-stream") as handle:
        handle.append(body)
        with handle.stream(live=False) as response:
            assert response.read_bytes() == body


@pytest.mark.parametrize("live", ["long-poll", "sse", "auto"])
def test_follow_json_live(fresh: Fresh, live: Any) -> None:
    with DurableStream.create(fresh(), content_type=JSON) as handle:
        handle.append({"n": 0})
        seen = []
        with stream(handle.url, offset="-1", live=live) as response:
            for item in response.iter_json():
                seen.append(item["n"])
                if len(seen) == 5:
                    break
                handle.append({"n": item["n"] + 1})
        assert seen == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_follow_text_live(fresh: Fresh, live: Any) -> None:
    parts = ["first\n", "second\nthird", "\n\ndata: not a field\n"]
    with DurableStream.create(fresh(), content_type=TEXT) as handle:
        handle.append(parts[0])
        written, seen = 1, ""
        with stream(handle.url, offset="-1", live=live) as response:
            for piece in response.iter_text():
                seen += piece
                if len(seen) < len("".join(parts[:written])):
                    continue
                if written == len(parts):
                    break
                handle.append(parts[written])
                written += 1
        assert seen == "".join(parts)


def test_a_long_poll_that_times_out_goes_on(fresh: Fresh) -> None:
    """The server answers an idle long-poll with 204 after a while; the client asks again and misses nothing."""
    with DurableStream.create(fresh(), content_type=JSON) as handle:
        handle.append(1)
        seen, empty = [], []

        def watch(response: httpx.Response) -> None:
            if response.status_code == 204:
                empty.append(response)
                handle.append(2)

        with (
            httpx.Client(timeout=PATIENCE_S, event_hooks={"response": [watch]}) as client,
            stream(handle.url, offset="-1", live="long-poll", client=client) as response,
        ):
            for item in response.iter_json():
                seen.append(item)
                if len(seen) == 2:
                    break
        assert seen == [1, 2]
        assert len(empty) == 1


def test_events_carry_offsets_to_resume_from(fresh: Fresh) -> None:
    with DurableStream.create(fresh(), content_type=JSON) as handle:
        handle.append({"n": 0})
        with stream(handle.url, offset="-1", live="sse") as response:
            event = next(iter(response.iter_events(mode="json")))
        assert event.data == [{"n": 0}]
        assert event.up_to_date
        assert event.next_offset == handle.head().offset
        handle.append({"n": 1})
        with stream(handle.url, offset=event.next_offset, live=False) as response:
            assert response.read_json() == [{"n": 1}]


def test_a_stream_seq_that_comes_too_late_is_refused(fresh: Fresh) -> None:
    with DurableStream.create(fresh(), content_type=TEXT, batching=False) as handle:
        handle.append("a", seq="0002")
        with pytest.raises(SeqConflictError):
            handle.append("b", seq="0001")
        handle.append("c", seq="0003")
        with handle.stream(live=False) as response:
            assert response.read_text() == "ac"


def test_delete(fresh: Fresh) -> None:
    with DurableStream.create(fresh(), content_type=TEXT) as handle:
        handle.append("old")
        handle.delete()
        with pytest.raises(StreamNotFoundError):
            handle.head()
        with pytest.raises(StreamNotFoundError):
            handle.delete()
        handle.create_stream(content_type=TEXT)
        with handle.stream(live=False) as response:
            assert response.read_text() == ""


# -- async


def test_async_create_append_read_head_delete(fresh: Fresh) -> None:
    async def work() -> None:
        async with await AsyncDurableStream.create(fresh(), content_type=JSON) as handle:
            await asyncio.gather(*(handle.append({"n": n}) for n in range(50)))
            async with handle.stream(live=False) as response:
                assert await response.read_json() == [{"n": n} for n in range(50)]
            head = await handle.head()
            assert head.content_type == JSON
            await handle.delete()
            with pytest.raises(StreamNotFoundError):
                await handle.head()

    run(work())


@pytest.mark.parametrize("live", ["long-poll", "sse", "auto"])
def test_async_follow_json_live(fresh: Fresh, live: Any) -> None:
    async def work() -> None:
        async with await AsyncDurableStream.create(fresh(), content_type=JSON) as handle:
            await handle.append({"n": 0})
            seen = []
            async with astream(handle.url, offset="-1", live=live) as response:
                async for item in response.iter_json():
                    seen.append(item["n"])
                    if len(seen) == 5:
                        break
                    await handle.append({"n": item["n"] + 1})
            assert seen == [0, 1, 2, 3, 4]

    run(work())


def test_async_many_readers_see_the_same(fresh: Fresh) -> None:
    async def work() -> None:
        async with await AsyncDurableStream.create(fresh(), content_type=JSON) as handle:
            await handle.append(0)
            started = [asyncio.Event() for _ in range(20)]

            async def follow(index: int) -> list[int]:
                seen: list[int] = []
                async with astream(handle.url, offset="-1", live="sse" if index % 2 else "long-poll") as response:
                    async for item in response.iter_json():
                        seen.append(item)
                        started[index].set()
                        if len(seen) == 30:
                            break
                return seen

            readers = [asyncio.create_task(follow(index)) for index in range(20)]
            await asyncio.gather(*(event.wait() for event in started))
            for n in range(1, 30):
                await handle.append(n)
            for seen in await asyncio.gather(*readers):
                assert seen == list(range(30))

    run(work())
