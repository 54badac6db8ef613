"""Segments: the same entries as one by one, however they are packed, cut and read."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace import limits
from tailrace.errors import Corrupt
from tailrace.log import log as logs
from tailrace.log import segments
from tailrace.log.entry import Entry, Log, Segment
from tailrace.log.segments import SEGMENTS
from tailrace.storage.engine import Tx
from tests.unit.log.conftest import Bench

AT_MS = 1_700_000_000_000


def rows(bench: Bench, log: int) -> list[Segment]:
    with bench.engine.reader() as reader:
        return list(reader.scan(SEGMENTS, log))


def single(entry: Entry) -> Segment:
    return Segment(entry.log, entry.position, entry.next, entry.at_ms, entry.body)


def in_a_row(pieces: list[tuple[bytes, int]], log: int = 1, position: int = 0) -> list[Entry]:
    """Entries with these bodies that cover as many positions as given, some of them later than the one before."""
    found = []
    at_ms = AT_MS
    for body, size in pieces:
        found.append(Entry(log, position, position + size, at_ms, body))
        position += size
        at_ms += len(body) % 3
    return found


PIECES = st.one_of(
    st.lists(st.binary(min_size=1, max_size=5).map(lambda body: (body, len(body))), min_size=1, max_size=12),
    st.lists(st.binary(max_size=5).map(lambda body: (body, 1)), min_size=1, max_size=12),
    st.lists(st.tuples(st.binary(max_size=5), st.integers(1, 4)), min_size=1, max_size=12),
)


# -- packing


def test_entries_of_a_transaction_share_a_row_of_each_log(bench: Bench) -> None:
    def work(tx: Tx) -> tuple[Log, Log]:
        one, two = logs.create(tx, "one"), logs.create(tx, "two")
        for number in range(5):
            one = logs.append(tx, one, b"%d" % number, 1)
            two = logs.append(tx, two, b"other%d" % number, 6)
        return one, two

    one, two = bench.do(work)
    assert [segment.body for segment in rows(bench, one.id)] == [b"01234"]
    assert [segment.body for segment in rows(bench, two.id)] == [b"other0other1other2other3other4"]
    with bench.engine.reader() as reader:
        assert [entry.body for entry in segments.scan(reader, one.id)] == [b"0", b"1", b"2", b"3", b"4"]


def test_one_entry_has_no_layout(bench: Bench) -> None:
    log = bench.do(lambda tx: logs.append(tx, logs.create(tx, "test"), b"body", 4))
    assert rows(bench, log.id) == [Segment(log.id, 0, 4, AT_MS, b"body", None)]


def append_sized(tx: Tx, log: Log, bodies: list[bytes]) -> None:
    logs.append_together(tx, [(log, bodies)])


@pytest.mark.parametrize("append", [logs.append_each, append_sized])
def test_rows_are_bounded(bench: Bench, append: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SEGMENT_BYTES", 10)
    monkeypatch.setattr(limits, "SEGMENT_ENTRIES", 4)
    bodies = [b"aaa", b"bbb", b"cccc", b"d", b"x" * 30, b"e", b"f", b"g", b"h", b"i"]
    expected = [b"aaabbbcccc", b"d", b"x" * 30, b"efgh", b"i"]
    log = bench.do(lambda tx: logs.create(tx, "test"))
    bench.do(lambda tx: append(tx, log, bodies))
    assert [segment.body for segment in rows(bench, log.id)] == expected
    one_by_one = bench.do(lambda tx: logs.create(tx, "test"))

    def work(tx: Tx) -> None:
        at = one_by_one
        for body in bodies:
            at = logs.append(tx, at, body, len(body))

    bench.do(work)
    assert [segment.body for segment in rows(bench, one_by_one.id)] == expected


def test_a_command_that_fails_leaves_nothing_of_its_own_in_a_segment(bench: Bench) -> None:
    log = bench.do(lambda tx: logs.create(tx, "test"))
    tx = bench.engine.begin(AT_MS)
    log = logs.append(tx, log, b"kept", 4)
    tx.keep()
    append_sized(tx, log, [b"not", b"kept"])
    tx.undo()
    log = logs.append(tx, log, b"too", 3)
    tx.keep()
    tx.flush()
    tx.commit()
    assert [(segment.body, segment.next) for segment in rows(bench, log.id)] == [(b"kepttoo", 7)]


@given(pieces=PIECES, cuts=st.lists(st.booleans(), min_size=12, max_size=12))
def test_packing_keeps_every_entry(pieces: list[tuple[bytes, int]], cuts: list[bool]) -> None:
    entries = in_a_row(pieces)
    groups: list[list[Entry]] = [[]]
    for entry, cut in zip(entries, cuts, strict=False):
        groups[-1].append(entry)
        if cut:
            groups.append([])
    packed = [segment for group in groups if group for segment in segments.pack(list(map(single, group)))]
    again = segments.pack(packed)
    assert len(again) == 1, "segments are packed as entries are"
    assert segments.flaw(again[0]) is None
    assert [entry for segment in packed for entry in segments.entries(segment)] == entries
    assert list(segments.entries(again[0])) == entries
    assert segments.bodies(again[0]) == [entry.body for entry in entries]
    assert segments.count(again[0]) == len(entries)
    columns = segments.columns(packed)
    assert list(columns.nexts) == [entry.next for entry in entries]
    assert list(columns.times) == [entry.at_ms for entry in entries]
    assert columns.ends[-1] == sum(len(entry.body) for entry in entries)


def test_positions_that_a_layout_cannot_express_begin_another_row() -> None:
    entries = in_a_row([(b"a", 1), (b"b", 2**32), (b"c", 1)])
    packed = segments.pack(list(map(single, entries)))
    assert [entry for segment in packed for entry in segments.entries(segment)] == entries
    assert [segments.count(segment) for segment in packed] == [1, 1, 1]


def test_times_that_a_layout_cannot_express_begin_another_row() -> None:
    """Those that go back, too: no command writes them, but a damaged database may have them."""
    times = [AT_MS, AT_MS + 2**32 - 1, AT_MS + 2**32, AT_MS + 2**32 - 5, AT_MS + 2**32]
    entries = [Entry(1, number, number + 1, at_ms, b"x") for number, at_ms in enumerate(times)]
    packed = segments.pack(list(map(single, entries)))
    assert [entry for segment in packed for entry in segments.entries(segment)] == entries
    assert [segments.count(segment) for segment in packed] == [2, 1, 2]


def test_times_are_counted() -> None:
    times = [AT_MS, AT_MS, AT_MS + 7]
    (segment,) = segments.pack([Segment(1, at, at + 1, at_ms, b"x") for at, at_ms in enumerate(times)])
    assert list(segments.times(segment)) == [(AT_MS, 2), (AT_MS + 7, 1)]
    (together,) = segments.joined(1, 0, AT_MS, [b"a", b"b"], segments.SINGLE)
    assert list(segments.times(together)) == [(AT_MS, 2)]
    assert list(segments.times(Segment(1, 0, 1, AT_MS, b"a"))) == [(AT_MS, 1)]


@given(
    pieces=PIECES,
    start=st.integers(-2, 50),
    before=st.integers(-2, 50),
    size=st.integers(0, 40),
    some=st.integers(0, 9),
)
def test_a_cut_has_the_first_entries_of_a_range(
    pieces: list[tuple[bytes, int]], start: int, before: int, size: int, some: int
) -> None:
    entries = in_a_row(pieces)
    (segment,) = segments.pack(list(map(single, entries)))
    inside = [entry for entry in entries if start <= entry.position < before]
    expected: list[Entry] = []
    for entry in inside[:some]:
        if sum(len(each.body) for each in expected) + len(entry.body) > size:
            break
        expected.append(entry)
    found = segments.cut(segment, start, before, size, some)
    assert ([] if found is None else list(segments.entries(found))) == expected
    assert found is None or segments.flaw(found) is None


# -- reading


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(commits=st.lists(PIECES, max_size=4), data=st.data())
def test_every_read_finds_the_same_entries(bench: Bench, commits: list[list[tuple[bytes, int]]], data: Any) -> None:
    """However they are staged, stored and sealed."""
    log = bench.do(lambda tx: logs.create(tx, "test"))
    expected: list[Entry] = []
    for pieces in commits:
        bench.now_ms += data.draw(st.integers(0, 2))
        entries = in_a_row(pieces, log.id, log.next)
        expected += [msgspec.structs.replace(entry, at_ms=bench.now_ms) for entry in entries]

        def work(tx: Tx, at: Log = log, pieces: list[tuple[bytes, int]] = pieces) -> Log:
            for body, size in pieces:
                at = logs.append(tx, at, body, size)
            return at

        least, most = sorted(data.draw(st.tuples(st.sampled_from([0, 8, 100]), st.sampled_from([0, 8, 100]))))
        with (
            mock.patch.object(limits, "STAGED_BYTES_MIN", least),
            mock.patch.object(limits, "STAGED_BYTES_MAX", most),
        ):
            log = bench.do(work)
        bench.seal(data.draw(st.integers(1, 9)), steps=data.draw(st.integers(0, 3)))
    start = data.draw(st.none() | st.integers(0, log.next + 2))
    before = data.draw(st.none() | st.integers(0, log.next + 2))
    limit = data.draw(st.none() | st.integers(0, 10))
    inside = [
        entry
        for entry in expected
        if (start is None or entry.position >= start) and (before is None or entry.position < before)
    ]
    with bench.engine.reader() as reader:
        for reverse in (False, True):
            found = segments.scan(reader, log.id, start=start, before=before, limit=limit, reverse=reverse)
            assert list(found) == (inside[::-1] if reverse else inside)[: len(inside) if limit is None else limit]
        for at in range(log.next + 2):
            later = [entry for entry in expected if entry.position >= at]
            some = limit if limit is not None else 1000
            outlines = list(segments.outlines(reader, log.id, at, some))
            assert outlines == [(each.position, each.next, each.at_ms, len(each.body)) for each in later[:some]]
            first = later[0] if later else None
            assert segments.outline(reader, log.id, at) == (
                None if first is None else (first.position, first.next, first.at_ms, len(first.body))
            )
            assert segments.head(reader, log.id, at, 3) == (
                None if first is None else (first.position, first.next, first.at_ms, first.body[:3])
            )
        for entry in expected:
            size, most = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 20))
            page = logs.read(reader, log, entry.position, size, most)
            at = expected.index(entry)
            fits = at + 1
            while fits < len(expected) and fits - at < most:
                if sum(len(each.body) for each in expected[at : fits + 1]) > size:
                    break
                fits += 1
            entries_found = page.entries
            assert entries_found == expected[at : at + len(entries_found)]
            # Empty entries after as many bytes as are wanted may or may not be there.
            assert b"".join([each.body for each in entries_found]) == b"".join(
                [each.body for each in expected[at:fits]]
            )
            assert page.next == page.entries[-1].next
            for inner in range(entry.position + 1, entry.next):
                with pytest.raises(logs.Misaligned):
                    logs.read(reader, log, inner, size)
                assert logs.message_start(reader, log, inner) == entry.position
                assert not logs.boundary(reader, log, inner)
            assert logs.boundary(reader, log, entry.position)


def test_many_rows_are_outlined_in_steps(bench: Bench) -> None:
    log = bench.do(lambda tx: logs.create(tx, "test"))
    for number in range(300):
        log = bench.do(partial(logs.append, log=log, body=b"%d" % number, size=1))
    with bench.engine.reader() as reader:
        assert [position for position, *_ in segments.outlines(reader, log.id, 7, 1000)] == list(range(7, 300))


# -- trimming and forks


def test_a_segment_is_removed_when_all_of_it_is_trimmed(bench: Bench) -> None:
    log = bench.do(lambda tx: logs.create(tx, "test"))
    for bodies in ([b"aa", b"bb", b"cc"], [b"dd", b"ee"]):
        bench.do(
            partial(
                lambda tx, number, bodies: append_sized(tx, bench.log(number), bodies),
                number=log.id,
                bodies=bodies,
            )
        )  # type: ignore[arg-type]
    current = bench.log(log.id)
    assert current is not None
    current = bench.do(partial(logs.trim, log=current, position=4))
    assert bench.do(lambda tx: logs.reclaim(tx, log.id))
    assert [segment.body for segment in rows(bench, log.id)] == [b"aabbcc", b"ddee"]
    with bench.engine.reader() as reader:
        assert [entry.body for entry in logs.read(reader, current, 4, 100).entries] == [b"cc", b"dd", b"ee"]
    bench.do(partial(logs.trim, log=current, position=8))
    assert bench.do(lambda tx: logs.reclaim(tx, log.id))
    assert [segment.body for segment in rows(bench, log.id)] == [b"ddee"]


def test_a_fork_begins_within_a_segment(bench: Bench) -> None:
    log = bench.do(lambda tx: logs.create(tx, "test"))
    bench.do(lambda tx: append_sized(tx, log, [b"aa", b"bb", b"cc"]))
    parent = bench.log(log.id)
    assert parent is not None
    fork = bench.do(partial(logs.fork, parent=parent, owner="fork", position=4))
    bench.do(lambda tx: append_sized(tx, fork, [b"XX", b"YY"]))
    current = bench.log(fork.id)
    assert current is not None
    with bench.engine.reader() as reader:
        for position, expected in ((0, [b"aa", b"bb", b"XX", b"YY"]), (2, [b"bb", b"XX", b"YY"]), (6, [b"YY"])):
            page = logs.read(reader, current, position, 100)
            assert [entry.body for entry in page.entries] == expected
            assert page.at_tail


# -- damage


@pytest.mark.parametrize(
    "layout", [b"", b"\0\0\0", bytes(8), b"\3\0\0\0" + bytes(8), b"\2\0\0\0" + bytes(12), b"\0\1\0\0" + bytes(8)]
)
def test_a_layout_that_cannot_be_read_is_an_error(layout: bytes) -> None:
    segment = Segment(1, 0, 4, AT_MS, b"abcd", layout)
    with pytest.raises(Corrupt, match="not the layout of a segment"):
        list(segments.entries(segment))
    assert segments.flaw(segment) == "its layout cannot be read"


def timed(*lags: int) -> bytes:
    numbers = (segments.TIMED + segments.SIZED, 2, 3, 4, *lags)
    return b"".join(number.to_bytes(4, "little") for number in numbers)


def test_flaws_are_named() -> None:
    (sound,) = segments.joined(1, 0, AT_MS, [b"ab", b"c", b"d"], segments.SIZED)
    assert segments.flaw(sound) is None
    for changed, flaw in (
        ({"body": b"abcde"}, "its entries do not end where it ends"),
        ({"next": 5}, "its entries do not end where it ends"),
        ({"layout": bytes([0, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0])}, "its entries are out of order"),
        ({"layout": timed(0, 7, 6)}, "the times of its entries are out of order"),
        ({"layout": timed(1, 1, 2)}, "the times of its entries are out of order"),
        ({"layout": timed(0, 0, 9)}, None),
    ):
        fields = {name: getattr(sound, name) for name in sound.__struct_fields__}
        assert segments.flaw(Segment(**{**fields, **changed})) == flaw  # type: ignore[arg-type]


@given(PIECES)
def test_views_are_the_entries(pieces: list[tuple[bytes, int]]) -> None:
    entries = in_a_row(pieces)
    (segment,) = segments.pack([single(entry) for entry in entries])
    assert [(at, at_ms, bytes(body)) for at, at_ms, body in segments.views(segment)] == [
        (entry.position, entry.at_ms, entry.body) for entry in entries
    ]
