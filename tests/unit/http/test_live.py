"""Event streams: catch-up, then live, with no gap and no duplicate; closure, deletion, recycling, heartbeats."""

from __future__ import annotations

import asyncio
import gc
import json
import math
from base64 import b64decode
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailrace import limits
from tailrace.access import SYSTEM, Principal
from tailrace.clock import ManualClock
from tailrace.http import cursor as cursors
from tailrace.http.drive import Drive, start
from tailrace.http.live import READ_BYTES, LiveReads, Turns, Watch
from tailrace.http.message import Frame, Request
from tailrace.http.reading import FeedSlice, Reading
from tailrace.http.revocation import Caller
from tailrace.http.sse import TEXT
from tailrace.log.entry import Log, Segment
from tailrace.log.log import CLOSED, DROPPED, Advanced
from tailrace.log.position import offset
from tailrace.log.tail import Tail
from tailrace.metrics import Metrics
from tailrace.storage.engine import Notice
from tests.support.patience import PATIENCE_S
from tests.unit.http.inprocess import Events, Up, serve

JSON = "application/json"


async def follow(events: Events) -> tuple[list[str], list[dict[str, Any]]]:
    """All data and all control events up to the closure; each data event has one control event after it."""
    data, controls = [], []
    while True:
        text, control = await events.pair()
        if text is not None:
            data.append(text)
        controls.append(control)
        if control.get("streamClosed"):
            assert await events.rest() == []
            return data, controls


def test_catch_up_then_live(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", body=b"old")
        async with up.events("a") as events:
            fields = events.answer.headers
            assert fields["content-type"] == "text/event-stream"
            assert fields["cache-control"] == "no-cache"
            assert "stream-sse-data-encoding" not in fields
            text, control = await events.pair()
            assert (text, control["streamNextOffset"], control["upToDate"]) == ("old", offset(3), True)
            await up.append("a", b"new")
            text, control = await events.pair()
            assert (text, control["streamNextOffset"], control["upToDate"]) == ("new", offset(6), True)
            await up.append("a", b"end", stream_closed="true")
            text, control = await events.pair()
            assert (text, control) == ("end", {"streamNextOffset": offset(9), "streamClosed": True, "upToDate": True})
            assert await events.rest() == []

    serve(data_dir, scenario)


@pytest.mark.parametrize(("position", "expected"), [("now", None), (3, None), (0, "old")])
def test_where_it_begins(data_dir: Path, position: int | str, expected: str | None) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", body=b"old")
        async with up.events("a", position) as events:
            text, control = await events.pair()
            assert (text, control["streamNextOffset"], control["upToDate"]) == (expected, offset(3), True)
            await up.append("a", b"new")
            assert (await events.pair())[0] == "new"

    serve(data_dir, scenario)


def test_an_empty_stream_sends_its_state_at_once(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a")
        async with up.events("a") as events:
            text, control = await events.pair()
            assert (text, control["streamNextOffset"], control["upToDate"]) == (None, offset(0), True)

    serve(data_dir, scenario)


def test_a_closed_stream_is_sent_and_ended(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", body=b"all", stream_closed="true")
        for position, expected in (("-1", ["all"]), (3, []), ("now", [])):
            async with up.events("a", position) as events:
                data, controls = await follow(events)
                assert data == expected
                assert len(controls) == 1

    serve(data_dir, scenario)


def test_closed_midway(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", body=b"x")
        async with up.events("a") as events:
            await events.pair()
            await up.close("a")
            text, control = await events.pair()
            assert (text, control["streamClosed"]) == (None, True)
            assert "streamCursor" not in control
            assert await events.rest() == []

    serve(data_dir, scenario)


def test_deleted_midway(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", body=b"x")
        async with up.events("a") as events:
            await events.pair()
            await up.delete("a")
            assert await events.rest() == [], "it ends, and claims nothing"
        await up.until(lambda: up.db.metrics.live_readers == 0 and up.waiters == 0)

    serve(data_dir, scenario)


def test_deleted_and_recreated_under_a_reader(data_dir: Path) -> None:
    """The reader's stream is gone: what is at the path now is not its continuation."""

    async def scenario(up: Up) -> None:
        await up.create("a", body=b"x")
        async with up.events("a") as events:
            await events.pair()
            await asyncio.gather(up.delete("a"), up.ask("PUT", "a", b"other stream", content_type="text/plain"))
            await up.append("a", b"more") if (await up.ask("HEAD", "a")).status_code == 200 else None
            assert await events.rest() == []
        await up.until(lambda: up.db.metrics.live_readers == 0)

    serve(data_dir, scenario)


def test_deleted_during_catch_up(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader so slow that it is still catching up; the answer ends, the server does not mind."""
    monkeypatch.setattr(limits, "SLICE_BYTES", 64 * 1024)

    async def scenario(up: Up) -> None:
        await up.create("a")
        await up.append("a", *[b"x" * 1_000_000] * 16)
        async with up.events("a") as events:
            lines = events.answer.aiter_bytes()
            await anext(lines)
            await up.delete("a")
            await up.create("a")
            await up.append("a", *[b"y" * 1_000_000] * 16)  # the same boundaries
            rest = b""
            try:
                async for piece in lines:
                    rest += piece
            except httpx.RemoteProtocolError:
                pass  # cut off: to a reader the same as a lost connection, so it reconnects and gets the error
            assert b"yyyy" not in rest, "what is at the path now is not the continuation"
            assert b"streamClosed" not in rest
        assert (await up.get("a", "now")).status_code == 200

    serve(data_dir, scenario)


def test_a_reader_that_keeps_reading_is_not_dropped_for_large_messages(data_dir: Path) -> None:
    """It is slower than the server, and each message is about as large as what may pile up for it."""

    async def scenario(up: Up) -> None:
        await up.create("a")
        await up.append("a", *[b"Q" * 900_000] * 14, b"Q" * 3_000_000, b"end")
        await up.close("a")
        async with up.events("a") as events:
            whole = bytearray()
            async for piece in events.answer.aiter_bytes():
                whole += piece
                await asyncio.sleep(0.003)
        assert whole.count(b"Q") == 14 * 900_000 + 3_000_000
        assert whole.endswith(b'"streamClosed":true,"upToDate":true}\n\n')

    serve(data_dir, scenario)


@pytest.mark.parametrize("content_type", ["application/octet-stream", "image/png"])
def test_binary_travels_as_base64(data_dir: Path, content_type: str) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", content_type, bytes(range(256)))
        async with up.events("a") as events:
            assert events.answer.headers["stream-sse-data-encoding"] == "base64"
            text, _ = await events.pair()
            assert text is not None
            assert b64decode(text) == bytes(range(256))
            await up.append("a", b"\n\n", content_type=content_type)
            text, _ = await events.pair()
            assert text is not None
            assert b64decode(text) == b"\n\n"

    serve(data_dir, scenario)


@pytest.mark.parametrize("slice_bytes", [7, 100, 1_000_000])
def test_no_gap_and_no_duplicate_under_concurrent_appends(
    data_dir: Path, slice_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers come at every moment while four writers append; each sees every message once, in the log's order."""
    monkeypatch.setattr(limits, "SLICE_BYTES", slice_bytes)

    async def scenario(up: Up) -> None:
        await up.create("a", JSON)
        await up.append("a", *[json.dumps(f"before {n}") for n in range(10)], content_type=JSON)
        writing = asyncio.Event()

        async def write(name: str) -> None:
            for number in range(40):
                await up.append("a", json.dumps(f"{name}{number}"), content_type=JSON)
                writing.set()

        async def read(delay_turns: int) -> list[str]:
            await writing.wait()
            for _ in range(delay_turns * 7):
                await asyncio.sleep(0)
            async with up.events("a") as events:
                data, controls = await follow(events)
            positions = [control["streamNextOffset"] for control in controls]
            assert positions == sorted(positions)
            cursors_ = [int(control["streamCursor"]) for control in controls if "streamCursor" in control]
            assert cursors_ == sorted(cursors_)
            return [message for text in data for message in json.loads(text)]

        async def all_writers() -> None:
            await asyncio.gather(*[write(name) for name in "wxyz"])
            await up.close("a")

        *found, _ = await asyncio.gather(*[read(n) for n in range(12)], all_writers())
        stored = (await up.get("a")).json()
        assert len(stored) == len(set(stored)) == 170
        for one in found:
            assert one == stored

    serve(data_dir, scenario)


def test_the_same_cursor_never_comes_twice_to_a_client(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", body=b"x")
        ahead = cursors.current(up.db.clock.now_ms()) + 1_000
        async with up.events("a", cursor=str(ahead)) as events:
            seen = []
            for number in range(3):
                _, control = await events.pair()
                seen.append(int(control["streamCursor"]))
                await up.append("a", b"%d" % number)
        assert seen[0] > ahead
        assert seen == sorted(seen)

    serve(data_dir, scenario)


def test_an_answer_is_recycled(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", body=b"x")
        async with up.events("a") as events:
            _, control = await events.pair()
            assert await events.rest() == []
        await up.append("a", b"y")
        async with up.events("a", control["streamNextOffset"], cursor=control["streamCursor"]) as events:
            text, again = await events.pair()
        assert text == "y", "and taken up where it ended"
        assert int(again["streamCursor"]) > int(control["streamCursor"])

    serve(data_dir, scenario, sse_recycle_s=0.05)


def test_heartbeats(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SSE_HEARTBEAT_S", 0.02)

    async def scenario(up: Up) -> None:
        await up.create("a", body=b"x")
        async with up.events("a") as events:
            await events.pair()
            assert [await events.next() for _ in range(3)] == [("comment", "alive")] * 3
            await up.append("a", b"y")
            text, _ = await events.pair()
            assert text == "y"

    serve(data_dir, scenario)


def test_event_streams_end_when_the_server_stops(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", body=b"x")
        async with up.events("a") as events:
            await events.pair()
            await up.running.app.stop()
            assert await events.rest() == []

    serve(data_dir, scenario)


def test_a_reader_that_leaves_is_forgotten(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", body=b"x")
        for _ in range(3):
            async with up.events("a") as events:
                await events.pair()
                await up.until(lambda: up.db.metrics.live_readers == 1)
            await up.until(lambda: up.db.metrics.live_readers == 0 and up.waiters == 0)

    serve(data_dir, scenario)


def test_lines_arrive_as_they_were_written(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a")
        texts = [" leading", "two\nlines", "\n", "event: control\ndata:{}", ": comment", "tail\n", "ä 日本", "a\r\nb"]
        async with up.events("a") as events:
            await events.pair()
            for text in texts:
                await up.append("a", text)
                found, _ = await events.pair()
                assert found == text.replace("\r\n", "\n")

    serve(data_dir, scenario)


# -- channels, by hand


class RecordingSink:
    """A sink that keeps what it is sent."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []

    def send(self, *frames: Frame) -> None:
        self.frames += frames

    async def drained(self) -> None:
        return None


def advanced(position: int, body: bytes) -> Notice:
    end = position + len(body)
    log = Log(1, "x", None, 0, 0, end, 0, 0, 0, 0)
    return Notice(1, Advanced(log, Segment(1, position, end, 0, body)))


def by_hand(work: Any) -> None:
    async def main() -> None:
        tail, metrics = Tail(), Metrics()
        await work(tail, LiveReads(tail, ManualClock(), metrics, recycle_s=60), metrics)

    asyncio.run(main())


class Scripted:
    """A feed of 1-byte messages whose reads find, one after the other, a log of the lengths given."""

    principal = SYSTEM
    slice_bytes = 100
    renew_s = math.inf

    def __init__(self, *lengths: int) -> None:
        self._lengths = list(lengths)

    async def read(self, position: int | None, bytes_max: int) -> FeedSlice:
        at, tail = position or 0, self._lengths.pop(0)
        bodies = [b"%d" % (n % 10) for n in range(at, tail)]
        return FeedSlice(1, "text/plain", TEXT, at, bodies, tail, tail, not self._lengths)

    async def describe(self) -> FeedSlice:
        tail = self._lengths.pop(0)
        return FeedSlice(1, "text/plain", TEXT, tail, [], tail, tail, not self._lengths)


def answered(tail: Tail, live: LiveReads, feed: Scripted, query: bytes) -> Any:
    def caller(_: Request, principal: Principal) -> Caller:
        return Caller(None, None, principal)

    reading = Reading(live, ManualClock(), caller, page_bytes=1000, long_poll_timeout_s=600, cache_scope="public")
    return reading.answer(Request(b"GET", b"/", query, {}, b""), feed)


def test_what_is_committed_between_a_read_and_the_joining_is_not_missed() -> None:
    """No notice comes for it: it was sent before the reader joined. Only reading again finds it."""

    async def work(tail: Tail, live: LiveReads, metrics: Metrics) -> None:
        sink = RecordingSink()
        answer = await answered(tail, live, Scripted(2, 3, 4), b"offset=-1&live=sse")
        await asyncio.wait_for(answer.run(sink), 10)
        events = b"".join(frame.data for frame in sink.frames)
        assert [line for line in events.split(b"\n") if line.startswith(b"data:") and b"{" not in line] == [
            b"data:01", b"data:2", b"data:3",
        ]  # fmt: skip
        assert metrics.live_readers == 0

    by_hand(work)


class CommittedMeanwhile(Scripted):
    """Notices are lost when the reader waits, and an entry is committed while it reads what it may have missed."""

    renew_s = math.inf

    def __init__(self, tail: Tail, *lengths: int) -> None:
        super().__init__(*lengths)
        self._tail = tail
        self._reads = 0

    async def read(self, position: int | None, bytes_max: int) -> FeedSlice:
        self._reads += 1
        if self._reads == 2:
            asyncio.get_running_loop().call_soon(self._tail.missed)
        elif self._reads == 3:
            self._tail.publish([advanced(1, b"1")])
        return await super().read(position, bytes_max)


def test_what_a_reader_reads_after_it_was_behind_is_not_sent_to_it_twice() -> None:
    async def work(tail: Tail, live: LiveReads, metrics: Metrics) -> None:
        sink = RecordingSink()
        answer = await answered(tail, live, CommittedMeanwhile(tail, 1, 1, 2, 3), b"offset=-1&live=sse")
        await asyncio.wait_for(answer.run(sink), PATIENCE_S)
        events = b"".join(frame.data for frame in sink.frames)
        assert [line for line in events.split(b"\n") if line.startswith(b"data:") and b"{" not in line] == [
            b"data:0", b"data:1", b"data:2",
        ]  # fmt: skip

    by_hand(work)


@pytest.mark.parametrize("start", [b"now", b"-1"])
def test_what_is_committed_between_a_read_and_the_waiting_is_not_missed(start: bytes) -> None:
    async def work(tail: Tail, live: LiveReads, metrics: Metrics) -> None:
        feed = Scripted(0, 2, 2)
        answer = await asyncio.wait_for(answered(tail, live, feed, b"live=long-poll&offset=" + start), 10)
        assert (answer.status, answer.body) == (200, b"01")
        assert (metrics.live_readers, len(tail)) == (0, 0)

    by_hand(work)


def test_a_long_poll_that_waits_has_no_task_and_shares_a_timer() -> None:
    async def work(tail: Tail, live: LiveReads, metrics: Metrics) -> None:
        loop = asyncio.get_running_loop()
        answers: list[Any] = []
        timers: list[Any] = []
        call_at, done = loop.call_at, asyncio.Event()

        def answer(response: Any, error: BaseException | None) -> None:
            answers.append(error or response)
            if len(answers) == 9:
                done.set()

        def noted(*args: Any, **options: Any) -> asyncio.TimerHandle:
            timers.append(args)
            return call_at(*args, **options)

        def begin() -> None:
            loop.call_at = noted  # type: ignore[method-assign, assignment]
            for _ in range(9):
                begun.append(start(answered(tail, live, Scripted(0, 0, 2, 2), b"live=long-poll&offset=-1"), answer))

        begun: list[Drive[Any]] = []
        loop.call_soon(begin)
        await until(lambda: len(begun) == 9)
        assert not answers
        assert metrics.live_readers == 9
        assert len(timers) == 1
        assert asyncio.all_tasks() == {asyncio.current_task()}
        begun.pop().cancel()
        await until(lambda: len(answers) == 1)
        assert isinstance(answers[0], asyncio.CancelledError)
        tail.publish([advanced(0, b"01")])
        assert len(answers) == 1, "a commit may be published within a task, in which no other request may run"
        await asyncio.wait_for(done.wait(), PATIENCE_S)
        assert [(each.status, each.body) for each in answers[1:]] == [(200, b"01")] * 8
        assert (metrics.live_readers, len(tail)) == (0, 0)

    by_hand(work)


def test_a_watch_that_is_woken_while_it_does_not_wait_does_not_wait_next_time() -> None:
    async def work(tail: Tail, live: LiveReads, metrics: Metrics) -> None:
        watch = live.watch(1)
        tail.publish([advanced(0, b"0")])
        tail.publish([advanced(1, b"1")])
        assert watch.wait(600).done()
        waiting = watch.wait(600)
        assert not waiting.done(), "both commits came before the last wait"
        live.stop()
        await asyncio.wait_for(waiting, PATIENCE_S)
        watch.close()

    by_hand(work)


def test_nothing_is_left_of_a_watch_that_was_closed() -> None:
    async def work(tail: Tail, live: LiveReads, metrics: Metrics) -> None:
        def left() -> int:
            return sum(type(each) is Watch for each in gc.get_objects())

        before, loop = left(), asyncio.get_running_loop()
        for end in (lambda: None, lambda: tail.publish([advanced(0, b"0")])):
            watch, begun = live.watch(1), loop.time()
            await asyncio.wait_for(watch.wait(0.01), PATIENCE_S)
            assert loop.time() >= begun + 0.01
            waiting = watch.wait(600)
            end()
            watch.close()
            await asyncio.sleep(0)
            del watch, waiting
            assert left() == before
        assert (metrics.live_readers, len(tail)) == (0, 0)

    by_hand(work)


async def until(holds: Callable[[], bool]) -> None:
    """Let the loop turn until it holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0)


def test_a_frame_is_encoded_once_for_all_readers_at_one_place() -> None:
    async def work(tail: Tail, live: LiveReads, metrics: Metrics) -> None:
        sinks = [RecordingSink() for _ in range(5)]
        for sink in sinks:
            live.join(1, TEXT, sink, 0, None)
        tail.publish([advanced(0, b"a"), advanced(1, b"b")])
        assert [len(sink.frames) for sink in sinks] == [1] * 5
        assert len({id(sink.frames[0]) for sink in sinks}) == 1
        assert sinks[0].frames[0].data.startswith(b"event: data\ndata:ab\n\nevent: control\n")
        assert metrics.frames == 5

    by_hand(work)


def test_large_data_is_encoded_once_whatever_the_cursors() -> None:
    async def work(tail: Tail, live: LiveReads, metrics: Metrics) -> None:
        ahead = cursors.current(ManualClock().now_ms()) + 1_000_000
        sinks = [RecordingSink() for _ in range(6)]
        for number, sink in enumerate(sinks):
            live.join(1, TEXT, sink, 0, ahead + number // 2 if number else None)
        tail.publish([advanced(0, b"a" * 100_000)])
        assert len({id(sink.frames[0]) for sink in sinks}) == 1, "one copy for all"
        for sink in sinks:
            data, control = sink.frames
            assert data.data == TEXT.event([b"a" * 100_000])
            assert control.data.startswith(b"event: control\n")
        assert sinks[2].frames[1] is sinks[3].frames[1]
        assert b'"streamCursor":"%d"' % (ahead + 2) in sinks[4].frames[1].data

    by_hand(work)


def test_a_cursor_that_time_has_passed_is_the_present_one() -> None:
    async def work(tail: Tail, live: LiveReads, metrics: Metrics) -> None:
        one, other = RecordingSink(), RecordingSink()
        live.join(1, TEXT, one, 0, None)
        live.join(1, TEXT, other, 0, cursors.current(ManualClock().now_ms()) - 1)
        tail.publish([advanced(0, b"a")])
        assert one.frames[0] is other.frames[0]

    by_hand(work)


def test_readers_with_cursors_of_their_own_get_large_messages_whole(data_dir: Path) -> None:
    """More than may pile up for a reader: the control event after it must not count as one too many."""

    async def scenario(up: Up) -> None:
        await up.create("a")
        ahead = cursors.current(up.db.clock.now_ms()) + 1_000

        async def read(cursor: int) -> None:
            async with up.events("a", cursor=str(cursor)) as events:
                await events.pair()
                text, control = await events.pair()
                assert text == "x" * 5_000_000
                assert int(control["streamCursor"]) > cursor

        async def write() -> None:
            await up.until(lambda: up.db.metrics.live_readers == 4)
            await up.append("a", b"x" * 5_000_000)

        await asyncio.gather(write(), *[read(ahead + n) for n in range(4)])
        assert up.db.metrics.readers_dropped == 0

    serve(data_dir, scenario)


def test_readers_at_different_places_get_what_they_lack() -> None:
    async def work(tail: Tail, live: LiveReads, metrics: Metrics) -> None:
        here, ahead, behind, done = RecordingSink(), RecordingSink(), RecordingSink(), RecordingSink()
        readers = [live.join(1, TEXT, sink, at, None) for sink, at in ((here, 5), (ahead, 6), (behind, 4), (done, 7))]
        tail.publish([advanced(5, b"x"), advanced(6, b"y")])
        assert b"data:xy\n" in here.frames[0].data
        assert b"data:y\n" in ahead.frames[0].data
        assert behind.frames == [], "it missed something: it must read before it can follow"
        assert readers[2].behind
        assert readers[2].ended
        assert done.frames == [], "it has received this already"
        assert not readers[3].ended
        assert [reader.position for reader in readers] == [7, 7, 4, 7]

    by_hand(work)


def test_a_reader_of_a_large_entry_knows_how_much_it_has_to_read() -> None:
    """It takes its turn by that: two of them do not read in one turn of the loop."""

    async def work(tail: Tail, live: LiveReads, metrics: Metrics) -> None:
        reader = live.join(1, TEXT, RecordingSink(), 0, None)
        tail.publish([advanced(0, b"a" * 3 * limits.EVENT_BYTES)])
        assert (reader.behind, reader.ended) == (3 * limits.EVENT_BYTES, True)

    by_hand(work)


def test_what_ends_a_log_ends_its_readers() -> None:
    async def work(tail: Tail, live: LiveReads, metrics: Metrics) -> None:
        for notices, data, closed in (
            ([Notice(1, CLOSED)], False, True),
            ([Notice(1, DROPPED)], False, False),
            ([advanced(0, b"a"), Notice(1, CLOSED)], True, True),
            ([advanced(0, b"a"), Notice(1, DROPPED)], True, False),
            ([Notice(1, CLOSED), Notice(1, DROPPED)], False, True),
        ):
            sink = RecordingSink()
            reader = live.join(1, TEXT, sink, 0, None)
            tail.publish(notices)
            assert reader.ended
            sent = b"".join(frame.data for frame in sink.frames)
            assert (b"event: data" in sent) == data
            assert (b"streamClosed" in sent) == closed
            live.leave(1, TEXT, reader)
        assert metrics.live_readers == 0
        assert len(tail) == 0

    by_hand(work)


def test_leaving_twice_counts_once() -> None:
    async def work(tail: Tail, live: LiveReads, metrics: Metrics) -> None:
        one, two = live.join(1, TEXT, RecordingSink(), 0, None), live.join(1, TEXT, RecordingSink(), 0, None)
        live.leave(1, TEXT, one)
        live.leave(1, TEXT, one)
        assert metrics.live_readers == 1
        assert len(tail) == 1
        live.leave(1, TEXT, two)
        assert (metrics.live_readers, len(tail)) == (0, 0)

    by_hand(work)


@pytest.mark.parametrize("size", [0, 100_000, limits.BODY_BYTES_MAX])
def test_readers_that_are_woken_at_once_read_a_slice_in_a_turn(size: int) -> None:
    async def main() -> None:
        loop, turns = asyncio.get_running_loop(), Turns()
        each = -(-limits.SLICE_BYTES // (size + READ_BYTES))
        count, read, seen = 3 * each + 1, 0, [0]

        async def reader() -> None:
            nonlocal read
            await turns.take(size)
            read += 1

        def look() -> None:
            seen.append(read)
            if read < count:
                loop.call_soon(look)

        loop.call_soon(look)
        await asyncio.gather(*(reader() for _ in range(count)))
        assert read == count
        assert max(after - before for before, after in pairwise(seen)) <= each

    asyncio.run(main())


def test_a_reader_that_leaves_delays_no_other() -> None:
    async def main() -> None:
        turns = Turns()
        tasks = [asyncio.create_task(turns.take(limits.BODY_BYTES_MAX)) for _ in range(5)]
        await asyncio.sleep(0)
        tasks[2].cancel()
        await asyncio.wait(tasks, timeout=PATIENCE_S)
        assert [task.cancelled() for task in tasks] == [False, False, True, False, False]

    asyncio.run(main())


def test_readers_are_woken_together_and_when_their_time_has_come() -> None:
    async def work(tail: Tail, live: LiveReads, metrics: Metrics) -> None:
        loop = asyncio.get_running_loop()
        late, soon, gone = (live.join(1, TEXT, RecordingSink(), 0, None) for _ in range(3))
        begun = loop.time()
        live.wake_at(late, begun + 600)
        live.wake_at(gone, begun + 0.05)
        live.leave(1, TEXT, gone)
        live.wake_at(soon, begun + 600)
        live.wake_at(soon, begun + 0.05)  # the last call counts
        await asyncio.wait_for(soon.woken, 10)
        assert loop.time() >= begun + 0.05
        assert not soon.ended
        assert not gone.woken.done()
        assert not late.woken.done()
        live.stop()
        await asyncio.wait_for(late.woken, 10)
        assert late.ended

    by_hand(work)


def test_a_reader_that_waits_keeps_the_log_alive() -> None:
    class Renewed(Scripted):
        renew_s = 0.01
        described = 0

        async def describe(self) -> FeedSlice:
            self.described += 1
            if self.described == 3:
                tail.publish([Notice(1, CLOSED)])
            return FeedSlice(1, "text/plain", TEXT, 0, [], 0, 0, False)

    tail = Tail()

    async def main() -> None:
        live, feed, sink = LiveReads(tail, ManualClock(), Metrics(), recycle_s=600), Renewed(0, 0, 0), RecordingSink()
        answer = await answered(tail, live, feed, b"offset=-1&live=sse")
        await asyncio.wait_for(answer.run(sink), 30)
        assert feed.described == 3
        assert b"streamClosed" in sink.frames[-1].data

    asyncio.run(main())
