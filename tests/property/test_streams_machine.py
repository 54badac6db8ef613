"""Streams against a simple model: whatever is done in whatever order, the answers and the contents agree.

The machine drives the embedded API with a clock of its own. After every step each live stream reads as the model says,
from its start in small pages; at the end `tailrace check` finds nothing, whatever was swept, reopened or left undone.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
from hypothesis import note, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import tailrace
from tailrace.check import check_database
from tailrace.clock import ManualClock
from tailrace.errors import Error
from tailrace.streams import commands
from tailrace.streams.commands import Append, Appended, CreatedStream, CreateStream, DeleteStream, TouchStream
from tailrace.streams.json_mode import array
from tailrace.streams.producer import ProducerClaim
from tailrace.streams.queries import DescribeStream, ReadStream
from tests.support.directories import scratch_directory
from tests.support.model import Answer, Fork, Model, Stream
from tests.support.sealed import seal
from tests.support.soak import examples

# Few names, so that paths, producers and sequences meet often.
NAMES = ["a", "b", "c", "d/e", "d/f", "g", "h"]
RARELY = st.sampled_from([False] * 7 + [True])
TYPES = st.sampled_from(["text/plain", "application/json", "application/octet-stream", "Text/Plain; charset=utf-8"])
BYTES = st.binary(min_size=1, max_size=12)
JSON = st.sampled_from(
    [
        b'{"a":1}',
        b"[1,2,3]",
        b"[[1],[2,3]]",
        b"7",
        b'"x,y"',
        b' [ {"k": [1, 2]} , null ] ',
        b"[4,5]",
        b"[]",
        b"{",
        b"\xff",
    ]
)
LIVES = st.sampled_from([{}] * 6 + [{"ttl_s": 0}, {"ttl_s": 5}, {"ttl_s": 60}, {"expires_in_s": 30}])
RETENTIONS = st.sampled_from([{}] * 3 + [{"max_bytes": 10}, {"max_age_s": 20}, {"max_age_s": 20, "max_bytes": 30}])
PRODUCERS = st.sampled_from(["p", "q"])


class Streams(RuleBasedStateMachine):
    """The database and the model, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = scratch_directory()
        self.clock = ManualClock()
        self.db = tailrace.open(self.directory, clock=self.clock, housekeeping_s=None)
        self.model = Model(self.clock.now_ms(), beginning=0)

    @initialize(kinds=st.lists(st.tuples(TYPES, RETENTIONS), min_size=2, max_size=3), data=st.data())
    def begin(self, kinds: list[tuple[str, Any]], data: st.DataObject) -> None:
        """Some streams with content, so that little time is spent on what is not there."""
        for path, (kind, kept) in zip(NAMES, kinds, strict=False):
            command = CreateStream(path, kind, **kept)
            self.compare(path, self.model.create(path, kind, **kept), lambda command=command: self.db.execute(command))
            for _ in range(data.draw(st.integers(0, 4), label="messages")):
                self._append(path, data)

    def some(self, data: st.DataObject, label: str = "path") -> str:
        """A path, mostly of something that is there."""
        there = sorted(self.model.streams)
        return data.draw(st.sampled_from(there * 5 + NAMES), label=label)

    def free(self, data: st.DataObject) -> str:
        """A path, mostly one that is free."""
        free = [path for path in NAMES if path not in self.model.streams]
        return data.draw(st.sampled_from(free * 5 + NAMES), label="new path")

    # -- life

    @rule(kind=st.none() | TYPES, life=LIVES, kept=RETENTIONS, closed=RARELY, data=st.data())
    def create(self, kind: str | None, life: Any, kept: Any, closed: bool, data: st.DataObject) -> None:
        path = self.free(data)
        body = data.draw(st.just(b"") | (JSON if kind == "application/json" else BYTES), label="body")
        life = self.life(life)
        answer = self.model.create(path, kind, body, closed=closed, **life, **kept)
        self.compare(
            path, answer, lambda: self.db.execute(CreateStream(path, kind, body, closed=closed, **life, **kept))
        )

    @precondition(lambda self: self.model.streams)
    @rule(data=st.data())
    def create_again(self, data: st.DataObject) -> None:
        """Ask for what is there; the answer is 200 unless it was closed since."""
        path = data.draw(st.sampled_from(sorted(self.model.streams)), label="path")
        stream = self.model.streams[path]
        if stream.source is not None:
            return
        life = {"ttl_s": stream.ttl_s} if stream.ttl_s is not None else {"expires_ms": stream.expires_ms}
        kept = {"max_age_s": stream.max_age_s, "max_bytes": stream.max_bytes}
        answer = self.model.create(path, stream.content_type, **life, **kept)
        self.compare(path, answer, lambda: self.db.execute(CreateStream(path, stream.content_type, **life, **kept)))

    @rule(life=LIVES, kept=RETENTIONS, closed=RARELY, data=st.data())
    def fork(self, life: Any, kept: Any, closed: bool, data: st.DataObject) -> None:
        path, source = self.free(data), self.some(data, "source")
        stream = self.model.streams.get(source)
        places = len(stream.offsets) if stream is not None else 1
        index = data.draw(st.none() | st.integers(0, places - 1) | st.integers(0, places), label="index")
        sub = 0 if index is None else data.draw(st.sampled_from([0, 0, 0, 1, 1, 2, 3, 13]), label="sub")
        kind = None if stream is None else data.draw(st.sampled_from([None] * 5 + [stream.content_type, "a/b"]))
        # The offset between an inherited part and a body is never returned, so the model could not know it.
        body = b"" if sub else data.draw(st.sampled_from([b"", b"", b"1", b"[2,3]"]), label="body")
        position = None
        if index is not None:
            position = 10**9 if stream is None or index >= places else stream.offsets[index]
        life = self.life(life)
        branch, origin = Fork(source, index, sub), commands.Fork(source, position, sub)
        for _ in range(data.draw(st.integers(1, 2), label="times")):  # a retry finds what it made
            answer = self.model.create(path, kind, body, closed=closed, fork=branch, **life, **kept)
            command = CreateStream(path, kind, body, closed=closed, fork=origin, **life, **kept)
            self.compare(path, answer, lambda command=command: self.db.execute(command))

    @precondition(lambda self: len(self.model.live()) > 2)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        path = self.some(data)
        answer = self.model.delete(path)
        self.compare(path, answer, lambda: self.db.execute(DeleteStream(path)))

    @rule(rows=st.integers(1, 4), steps=st.none() | st.integers(1, 3))
    def seal(self, rows: int, steps: int | None) -> None:
        """Entries move, and nothing changes."""
        seal(self.db, rows, steps=steps)

    # -- writes

    @rule(data=st.data(), seq=st.none() | st.sampled_from(["1", "10", "2", "Z", "a"]), close=RARELY)
    def append(self, data: st.DataObject, seq: str | None, close: bool) -> None:
        self._append(self.some(data), data, seq=seq, close=close)

    @precondition(lambda self: sum(not stream.closed for stream in self.model.live()) > 1)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        path = self.some(data)
        answer = self.model.append(path, close=True)
        self.compare(path, answer, lambda: self.db.execute(Append(path, close=True)))

    @rule(name=PRODUCERS, data=st.data(), epoch=st.sampled_from([0] * 4 + [1, 1, -1]), close=RARELY,
          step=st.sampled_from([1, 1, 1, 0, -1, 2, -9]))  # fmt: skip
    def produce(self, name: str, data: st.DataObject, epoch: int, step: int, close: bool) -> None:
        """The next request of a producer, or one that is a duplicate, stale, leaves a gap or opens an epoch."""
        path = self.some(data)
        stream = self.model.streams.get(path)
        known = stream.producers.get(name, (0, -1)) if stream is not None else (0, -1)
        sequence = 0 if step == -9 or (epoch == 1 and step != 2) else known[1] + step
        self._append(path, data, producer=(name, max(0, known[0] + epoch), max(0, sequence)), close=close)

    def _append(self, path: str, data: st.DataObject, **options: Any) -> None:
        stream = self.model.streams.get(path)
        right = stream.content_type if stream else "text/plain"
        kind = data.draw(st.sampled_from([right] * 9 + [None, "a/b"]), label="type")
        empty = data.draw(RARELY, label="empty")
        body = b"" if empty else data.draw(JSON if stream is not None and stream.json else BYTES, label="body")
        answer = self.model.append(path, body, kind, **options)
        producer = options.pop("producer", None)
        claim = None if producer is None else ProducerClaim(*producer)
        self.compare(path, answer, lambda: self.db.execute(Append(path, body, kind, claim, **options)))

    # -- time

    @rule(seconds=st.sampled_from([1, 4, 6, 25, 61]))
    def advance(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.model.now_ms = self.clock.now_ms()

    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        path = self.some(data)
        self.model.touch(path)
        self.db.execute(TouchStream(path))

    @rule()
    def sweep(self) -> None:
        self.db.sweep()
        self.model.sweep()
        for stream in self.model.live():
            log = self.db.execute(DescribeStream(stream.path)).log
            if log.start != stream.start:
                self.model.trimmed(stream, log.start)
            if stream.source is None and stream.messages:
                self.assert_retained(stream)

    def assert_retained(self, stream: Stream) -> None:
        """After a sweep nothing is left that retention lets go."""
        if stream.max_age_s is not None:
            assert stream.messages[0].at_ms >= self.clock.now_ms() - stream.max_age_s * 1000
        if stream.max_bytes is not None:
            assert stream.tail - stream.start <= stream.max_bytes or len(stream.messages) == 1, "the last stays"

    @rule()
    def reopen(self) -> None:
        self.db.close()
        self.db = tailrace.open(self.directory, clock=self.clock, housekeeping_s=None)

    # -- reads

    @rule(data=st.data(), bytes_max=st.integers(1, 20))
    def read(self, data: st.DataObject, bytes_max: int) -> None:
        path = self.some(data)
        status, stream = self.model.find(path)
        if status != 200 or stream is None:
            assert_fails(status, lambda: self.db.execute(ReadStream(path)))
            return
        index = data.draw(st.integers(0, len(stream.messages)), label="from")
        self.assert_reads(stream, index, bytes_max)
        if stream.start > 0:
            assert_fails(410, lambda: self.db.execute(ReadStream(path, stream.start - 1)))
        assert self.db.execute(ReadStream(path, stream.tail + 1)).position == stream.tail, (
            "one past the tail is the tail"
        )
        assert_fails(400, lambda: self.db.execute(ReadStream(path, stream.tail + 2)))

    def assert_reads(self, stream: Stream, index: int, bytes_max: int) -> None:
        """From the `index`-th offset on, in pages: all of it, once, in order; closed exactly at the end."""
        at = stream.offsets[index]
        bodies: list[bytes] = []
        while True:
            found = self.db.execute(ReadStream(stream.path, at, bytes_max))
            page = found.page
            assert page.tail == stream.tail
            assert page.next in stream.offsets
            assert found.closed == (stream.closed and page.next == stream.tail)
            assert len(page.entries) <= 1 or sum(len(entry.body) for entry in page.entries) <= bytes_max
            bodies += [entry.body for entry in page.entries]
            if page.at_tail:
                break
            assert page.next > at, "a page before the tail must lead on"
            at = page.next
        content = json.loads(array(bodies)) if stream.json else b"".join(bodies)
        assert content == stream.content(index)

    @invariant()
    def agree(self) -> None:
        for path in NAMES:
            status, stream = self.model.find(path)
            if status == 200 and stream is not None:
                self.assert_reads(stream, 0, 16)
                described = self.db.execute(DescribeStream(path))
                assert bool(described.stream.closed) == stream.closed
                assert (described.stream.ttl_s, described.stream.expires_ms) == (stream.ttl_s, stream.expires_ms)
            else:
                assert_fails(status, lambda path=path: self.db.execute(DescribeStream(path)))

    def teardown(self) -> None:
        self.db.close()
        report = check_database(self.directory)
        shutil.rmtree(self.directory)
        assert report.findings == []

    # -- comparing

    def life(self, life: dict[str, int]) -> dict[str, int]:
        if "expires_in_s" in life:
            return {"expires_ms": self.clock.now_ms() + life["expires_in_s"] * 1000}
        return life

    def compare(self, path: str, answer: Answer, run: Callable[[], object]) -> None:
        """Run it on the database, too; the status, the closure and the offset must be what the model says."""
        note(f"expected: {answer}")
        try:
            done = run()
        except Error as error:
            assert error.status == answer.status, f"{error!r}, expected {answer.status}"
            return
        match done:
            case CreatedStream():
                status, tail, closed = (201 if done.fresh else 200), done.tail, bool(done.stream.closed)
            case Appended():
                # 200 where a producer's data was accepted, as in the HTTP API.
                accepted = done.sequence is not None and not done.duplicate and answer.status == 200
                status, tail, closed = (200 if accepted else 204), done.tail, done.closed
            case _:
                assert answer.status == 204, f"succeeded, expected {answer.status}"
                return
        assert (status, closed) == (answer.status, answer.closed), f"{done}, expected {answer}"
        self.model.answered(path, tail)


def assert_fails(status: int, run: Callable[[], object]) -> None:
    try:
        done = run()
    except Error as error:
        assert error.status == status, f"{error!r}, expected {status}"
    else:
        raise AssertionError(f"{done}, expected {status}")


TestStreams = Streams.TestCase
TestStreams.settings = settings(max_examples=examples(150), stateful_step_count=50)
