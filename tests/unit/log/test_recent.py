"""Segments in memory: those that cover a position, within the limits, and never anything else than what is stored."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace import limits
from tailrace.log import log as logs
from tailrace.log import recent as recents
from tailrace.log import segments
from tailrace.log.entry import Segment
from tailrace.log.recent import RecentSegments
from tests.unit.log.conftest import Bench


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recents, "SEGMENT_BYTES", 1)
    monkeypatch.setattr(limits, "RECENT_BYTES", 44)
    monkeypatch.setattr(limits, "RECENT_SEGMENT_BYTES_MAX", 30)


def test_the_segment_that_covers_a_position() -> None:
    recent = RecentSegments()
    first, second = Segment(1, 10, 15, 0, b"x" * 5), Segment(1, 20, 26, 0, b"y" * 6)
    for segment in (second, first, second):
        recent.add(segment)
    assert recent.bytes == 13
    assert [recent.covering(1, at) for at in (9, 10, 14, 15, 19, 20, 25, 26)] == [
        None, first, first, None, None, second, second, None,
    ]  # fmt: skip
    assert recent.covering(2, 12) is None


def test_a_huge_segment_is_not_kept() -> None:
    recent = RecentSegments()
    for position, size in ((0, 29), (100, 30)):
        recent.add(Segment(1, position, position + size, 0, b"x" * size))
    assert [recent.covering(1, at) is not None for at in (0, 100)] == [True, False]
    assert recent.bytes == 30


def test_layouts_count() -> None:
    recent = RecentSegments()
    for log in (1, 2):
        (segment,) = segments.joined(log, 0, 0, [b"x"] * 3, segments.SINGLE)
        recent.add(segment)
    assert recent.bytes == 2 * (1 + 3 + 4 * 4)


def test_the_segment_that_was_not_used_for_longest_is_evicted() -> None:
    recent = RecentSegments()
    held = [Segment(log, 0, 10, 0, b"%d" % log * 10) for log in range(1, 6)]
    for segment in held[:4]:
        recent.add(segment)
    assert recent.covering(1, 5) is held[0]
    recent.add(held[4])
    assert [recent.covering(log, 5) is not None for log in range(1, 6)] == [True, False, True, True, True]
    assert recent.bytes == 44


def test_a_long_read_fills_the_room_and_evicts_nothing() -> None:
    recent = RecentSegments()
    held = [Segment(log, 0, 10, 0, b"%d" % log * 10) for log in range(1, 7)]
    for segment in held[:3]:
        recent.add(segment)
    for segment in held[3:5]:
        recent.fill(segment)
    assert recent.bytes == 44
    assert [recent.covering(log, 5) is not None for log in range(1, 5)] == [True] * 4
    recent.add(held[5])
    assert [recent.covering(log, 5) is not None for log in range(1, 5)] == [False, True, True, True]
    assert recent.covering(6, 5) is held[5]


def test_the_last_segment_of_a_long_read_is_kept_until_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page ends within it, and the next one begins there."""
    monkeypatch.setattr(limits, "RECENT_BYTES", 11)
    recent = RecentSegments()
    kept = Segment(1, 0, 10, 0, b"k" * 10)
    first, second = Segment(1, 10, 20, 0, b"f" * 10), Segment(1, 20, 30, 0, b"s" * 10)
    for segment in (kept, first):
        recent.fill(segment)
    assert [recent.covering(1, at) for at in (9, 10, 19, 20)] == [kept, first, first, None]
    recent.fill(second)
    assert [recent.covering(1, at) for at in (9, 10, 20, 29, 30)] == [kept, None, second, second, None]
    for log in range(2, recents.LONG_READS + 2):
        recent.fill(Segment(log, 0, 10, 0, b"o" * 10))
    assert recent.covering(1, 20) is None, "too many others came by"
    assert recent.covering(2, 9) is not None
    assert recent.covering(1, 5) is kept
    assert recent.bytes == 11


@pytest.mark.parametrize("room", [0, 10_000])
def test_a_read_page_after_page_reads_each_segment_once(
    bench: Bench, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RECENT_BYTES", room)
    monkeypatch.setattr(limits, "RECENT_SEGMENT_BYTES_MAX", 100)
    monkeypatch.setattr(limits, "SEALED_BYTES", 10)
    number = bench.do(lambda tx: logs.create(tx, "test")).id
    for letter in (b"a", b"b", b"c"):
        before = bench.log(number)
        assert before is not None
        bench.do(partial(logs.append_together, appends=[(before, [letter] * 10)]))
    bench.seal()
    log = bench.log(number)
    assert log is not None
    recent = RecentSegments()
    loaded: list[int] = []
    load = segments.SEGMENTS.load

    def noted(values: tuple[Any, ...]) -> Segment:
        loaded.append(values[1])
        return load(values)

    monkeypatch.setattr(segments.SEGMENTS, "load", noted)
    got, position = b"", 0
    while position < log.next:
        with bench.engine.reader() as reader:
            reader.recent = recent
            page = logs.read(reader, log, position, 7, long=True)
        got += b"".join(segment.body for segment in page.segments)
        position = page.next
    assert got == b"a" * 10 + b"b" * 10 + b"c" * 10
    assert loaded == [0, 10, 20]


def test_a_long_read_ends_between_segments(bench: Bench) -> None:
    """Otherwise each of them would be read and cut twice."""
    log = bench.do(lambda tx: logs.create(tx, "test"))
    for bodies in ([b"aa", b"aa", b"aa"], [b"bb", b"bb", b"bb"], [b"c" * 20, b"dd"]):
        bench.do(lambda tx, log=log, bodies=bodies: logs.append_together(tx, [(log, bodies)]))
        log = bench.log(log.id)  # type: ignore[assignment]

    def read(position: int, most: int, *, long: bool, entries: int = 100) -> tuple[list[bytes], int]:
        with bench.engine.reader() as reader:
            page = logs.read(reader, log, position, most, entries, long=long)
        return [segment.body for segment in page.segments], page.next

    assert read(0, 10, long=False) == ([b"aa" * 3, b"bb" * 2], 10)
    assert read(0, 10, long=True) == ([b"aa" * 3], 6)
    assert read(0, 13, long=True) == ([b"aa" * 3, b"bb" * 3], 12)
    assert read(6, 4, long=True) == ([b"bb" * 2], 10), "less than half would be left"
    assert read(2, 9, long=True) == ([b"aa" * 2, b"bb" * 2], 10)
    assert read(2, 9, long=True, entries=3) == ([b"aa" * 2, b"bb"], 8)
    assert read(12, 3, long=True) == ([b"c" * 20], 32), "one entry at least"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(
    commits=st.lists(st.lists(st.binary(min_size=1, max_size=8), min_size=1, max_size=5), min_size=1, max_size=8),
    reads=st.lists(st.tuples(st.integers(0, 200), st.integers(1, 60), st.integers(1, 20)), max_size=12),
)
def test_reads_are_the_same_with_and_without_it(
    bench: Bench, commits: list[list[bytes]], reads: list[tuple[int, int, int]]
) -> None:
    number = bench.do(lambda tx: logs.create(tx, "test")).id
    for bodies in commits:

        def work(tx: Any, bodies: list[bytes] = bodies) -> None:
            log = bench.log(number)
            assert log is not None
            logs.append_together(tx, [(log, bodies)])

        bench.do(work)
    log = bench.log(number)
    assert log is not None
    recent = RecentSegments()
    with bench.engine.reader() as plain, bench.engine.reader() as reader:
        reader.recent = recent
        starts = [entry.position for entry in segments.scan(plain, number)]
        for at, size, limit in reads:
            position = starts[at % len(starts)]
            assert logs.read(reader, log, position, size, limit) == logs.read(plain, log, position, size, limit)
            before = at + size
            for most in (None, limit):
                assert list(segments.scan(reader, number, start=at, before=before, limit=most)) == list(
                    segments.scan(plain, number, start=at, before=before, limit=most)
                )
            assert list(segments.scan(reader, number, start=at)) == list(segments.scan(plain, number, start=at))


def test_a_segment_is_kept_if_only_a_part_of_it_is_read(bench: Bench) -> None:
    log = bench.do(lambda tx: logs.create(tx, "test"))
    bench.do(lambda tx: logs.append_together(tx, [(log, [b"one", b"two", b"three"])]))
    current = bench.log(log.id)
    assert current is not None
    recent = RecentSegments()
    with bench.engine.reader() as reader:
        reader.recent = recent
        assert [entry.body for entry in logs.read(reader, current, 3, 3).entries] == [b"two"]
    assert recent.covering(log.id, 0) is not None


def test_a_transaction_does_not_use_it(bench: Bench) -> None:
    tx = bench.engine.begin(0)
    assert tx.recent is None, "what it sees may not become durable"
    tx.rollback()


def test_a_transaction_reads_what_is_committed_and_keeps_nothing() -> None:
    recent = RecentSegments()
    kept, own = Segment(1, 0, 4, 0, b"kept"), Segment(1, 4, 8, 0, b"mine")
    recent.add(kept)
    recent.committed.add(own)
    assert recent.committed.covering(1, 2) is kept
    assert recent.covering(1, 5) is recent.committed.covering(1, 5) is None


def test_a_part_of_a_stored_segment_in_memory_is_not_read_twice(bench: Bench) -> None:
    """What a commit adds is kept as it was added, and stored as it was packed; a part of it may be evicted."""
    log = bench.do(lambda tx: logs.create(tx, "test"))

    def work(tx: Any) -> None:
        last = logs.append(tx, log, b"one", 3)
        logs.append(tx, last, b"three", 5)

    bench.do(work)
    with bench.engine.reader() as reader:
        reader.recent = RecentSegments()
        reader.recent.add(Segment(log.id, 0, 3, bench.now_ms, b"one"))
        assert [entry.body for entry in segments.scan(reader, log.id, start=0)] == [b"one", b"three"]
        assert [each.position for each in segments.between(reader, log.id, 0, None)] == [0, 3]
