"""Sealing: rows become fewer, and nobody notices."""

from __future__ import annotations

from functools import partial

import pytest

from tailrace import limits
from tailrace.log import log as logs
from tailrace.log import sealing, segments
from tailrace.log.entry import Log, Segment
from tailrace.log.recent import RecentSegments
from tailrace.log.segments import SEGMENTS
from tests.unit.log.conftest import Bench


def create(bench: Bench) -> Log:
    return bench.do(lambda tx: logs.create(tx, "test"))


def append(bench: Bench, log: Log, bodies: list[bytes]) -> Log:
    """One entry in a commit, a millisecond after the other."""
    for body in bodies:
        bench.now_ms += 1
        log = bench.do(partial(logs.append, log=log, body=body, size=len(body)))
    return log


def rows(bench: Bench, log: Log) -> list[Segment]:
    with bench.engine.reader() as reader:
        return list(reader.scan(SEGMENTS, log.id))


def contents(bench: Bench, log: Log) -> list[tuple[int, bytes]]:
    with bench.engine.reader() as reader:
        return [(entry.at_ms, entry.body) for entry in segments.scan(reader, log.id)]


BODIES = [b"%d" % number for number in range(10)]


def test_entries_of_many_commits_share_a_row(bench: Bench) -> None:
    one, two = create(bench), create(bench)
    for body in BODIES:
        one, two = append(bench, one, [body]), append(bench, two, [body * 2])
    before = contents(bench, one), contents(bench, two)
    assert len(rows(bench, one)) == len(rows(bench, two)) == 10
    assert bench.seal() == 1
    assert [segment.body for segment in rows(bench, one)] == [b"0123456789"]
    assert [segment.body for segment in rows(bench, two)] == [b"00112233445566778899"]
    assert (contents(bench, one), contents(bench, two)) == before, "their times too"


def test_rows_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SEALED_BYTES", 4)
    monkeypatch.setattr(limits, "SEALED_ENTRIES", 3)
    log = append(bench, create(bench), [*BODIES, b"abc", b"de"])
    bench.seal()
    assert [segment.body for segment in rows(bench, log)] == [b"012", b"345", b"678", b"9abc", b"de"]


def test_few_rows_are_left_where_they_are(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    append(bench, create(bench), BODIES)
    monkeypatch.setattr(limits, "STAGED_ROWS", 11)
    with bench.engine.reader() as reader:
        assert sealing.find(reader) is None
    monkeypatch.setattr(limits, "STAGED_ROWS", 10)
    with bench.engine.reader() as reader:
        assert sealing.find(reader) is not None


def test_few_large_rows_are_as_good_as_many_small_ones(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STAGED_ROWS", 20)
    monkeypatch.setattr(limits, "STAGED_ROW_BYTES", 10)
    log = append(bench, create(bench), [b"x" * 30] * 4)  # each counts as four
    assert due(bench) is None
    append(bench, log, [b"x" * 30])
    found = due(bench)
    assert found is not None
    assert [len(segment.body) for segment in found.segments] == [150]
    assert bench.do(partial(sealing.seal, found=found))
    append(bench, create(bench), [b"x" * 30] * 4)
    assert due(bench) is None, "what was sealed does not count"
    bench.reopen()
    assert due(bench) is None
    append(bench, create(bench), [b"x" * 30])
    assert due(bench) is not None, "what was there before does"


def test_old_rows_are_sealed_where_they_make_large_ones(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STAGED_LOG_ROWS", 5)
    one, two = create(bench), create(bench)
    one = append(bench, one, BODIES[:5])
    assert due(bench) is None, "more may come"
    bench.now_ms += limits.STAGED_AGE_S * 1000
    two = append(bench, two, BODIES[:4])
    assert due(bench) is None, "nine of two logs"
    append(bench, one, BODIES[5:])
    found = due(bench)
    assert found is not None
    assert [segment.body for segment in found.segments] == [b"0123456789", b"0123"]


def due(bench: Bench) -> sealing.SealableSegments | None:
    with bench.engine.reader(bench.now_ms) as reader:
        return sealing.find(reader)


def test_a_step_is_bounded_in_bytes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    append(bench, create(bench), [b"aa", b"bb", b"cc"])
    for most, count in ((1, 1), (4, 2), (5, 2), (6, 3)):
        monkeypatch.setattr(limits, "SEAL_BYTES", most)
        monkeypatch.setattr(limits, "STAGED_ROWS", 1)
        with bench.engine.reader() as reader:
            found = sealing.find(reader)
        assert found is not None
        assert found.count == count


def test_a_large_row_between_small_ones_stays_as_it_is(bench: Bench) -> None:
    large = b"x" * limits.STAGED_BYTES_MAX
    bodies = [b"a", b"b", large, b"c", b"d"]
    log = append(bench, create(bench), bodies)
    assert [segment.body for segment in rows(bench, log)] == bodies
    bench.seal()
    assert [segment.body for segment in rows(bench, log)] == [b"ab", large, b"cd"]
    assert [body for _, body in contents(bench, log)] == bodies


def staged(bench: Bench) -> int:
    with bench.engine.reader() as reader:
        return len(list(reader.scan(segments.STAGED)))


@pytest.mark.parametrize("size", [limits.STAGED_BYTES_MIN // 2, limits.STAGED_BYTES_MAX // 4, limits.STAGED_BYTES_MAX])
@pytest.mark.parametrize("count", [1, 2])
def test_only_streams_are_rewritten_where_rows_are_larger_than_a_page(bench: Bench, size: int, count: int) -> None:
    stream, topic, changes = create(bench), create(bench), create(bench)
    bodies = [b"x" * (size // count)] * count
    bench.do(partial(logs.append_together, appends=[(stream, bodies)]))
    assert staged(bench) == (size < limits.STAGED_BYTES_MAX)
    before = staged(bench)
    bench.do(partial(logs.append_each, log=topic, bodies=bodies))
    bench.do(partial(logs.append_until, log=changes, bodies=bodies, ends=[3 * n for n in range(1, count + 1)]))
    assert staged(bench) - before == (2 if size < limits.STAGED_BYTES_MIN else 0)
    for log in (stream, topic, changes):
        assert [body for _, body in contents(bench, log)] == bodies


def test_what_is_trimmed_meanwhile_is_found_again_without(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    log, other = append(bench, create(bench), BODIES), append(bench, create(bench), BODIES)
    monkeypatch.setattr(limits, "STAGED_ROWS", 1)
    with bench.engine.reader() as reader:
        found = sealing.find(reader)
    assert found is not None
    log = bench.do(partial(logs.trim, log=log, position=4))
    assert bench.do(lambda tx: logs.reclaim(tx, log.id))
    assert not bench.do(partial(sealing.seal, found=found))
    assert bench.positions(log.id) == [4, 5, 6, 7, 8, 9]
    assert bench.seal() == 1
    assert [segment.body for segment in rows(bench, log)] == [b"456789"]
    assert len(rows(bench, other)) == 1


def test_what_is_trimmed_or_dropped_afterwards_is_removed(bench: Bench) -> None:
    log, gone = append(bench, create(bench), BODIES), append(bench, create(bench), BODIES)
    bench.seal(15)
    gone = append(bench, gone, [b"staged"])
    bench.do(lambda tx: logs.drop(tx, gone))
    while not bench.do(lambda tx: logs.reclaim(tx, gone.id)):
        pass
    bench.seal()
    assert bench.log(gone.id) is None
    assert rows(bench, gone) == []
    bench.do(partial(logs.trim, log=log, position=10))
    assert bench.do(lambda tx: logs.reclaim(tx, log.id))
    assert rows(bench, log) == []
    assert bench.garbage() == []


def test_a_fork_reads_what_its_parent_has_sealed(bench: Bench) -> None:
    parent = append(bench, create(bench), BODIES)
    fork = bench.do(partial(logs.fork, parent=parent, owner="fork", position=4))
    fork = append(bench, fork, [b"x", b"y"])
    bench.seal()
    with bench.engine.reader() as reader:
        page = logs.read(reader, fork, 2, 100)
        assert [entry.body for entry in page.entries] == [b"2", b"3", b"x", b"y"]


def test_segments_in_memory_are_joined_too(bench: Bench) -> None:
    """Otherwise readers would go on with one entry at a time."""
    recent = RecentSegments()
    log, unread = append(bench, create(bench), BODIES), append(bench, create(bench), BODIES)
    for segment in rows(bench, log):
        recent.add(segment)
    size = recent.bytes

    def work(tx: object, found: sealing.SealableSegments) -> bool:
        tx.recent = recent.committed  # type: ignore[attr-defined]
        return sealing.seal(tx, found)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "STAGED_ROWS", 1)
        with bench.engine.reader() as reader:
            found = sealing.find(reader)
    assert found is not None
    assert bench.do(partial(work, found=found))
    for position in range(10):
        held = recent.covering(log.id, position)
        assert held is not None
        assert held.body == b"0123456789"
    assert recent.covering(unread.id, 0) is None, "nobody has asked for it"
    assert recent.bytes < size / 5
    append(bench, log, [b"more"])
    with bench.engine.reader() as reader:
        reader.recent = recent
        now = bench.log(log.id)
        assert now is not None
        assert [entry.body for entry in logs.read(reader, now, 3, 100).entries] == [*BODIES[3:], b"more"]
