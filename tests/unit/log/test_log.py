"""Append, read, fork, trim, drop, reclaim."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from tailrace import limits
from tailrace.errors import Invalid, TooLarge, Trimmed
from tailrace.log import log as logs
from tailrace.log import segments
from tailrace.log.entry import LOGS, Log
from tailrace.storage.engine import Tx
from tests.unit.log.conftest import Bench


def made(bench: Bench, *bodies: bytes, owner: str = "test") -> Log:
    """A log with these entries, each committed alone."""
    log = bench.do(lambda tx: logs.create(tx, owner))
    for body in bodies:
        log = bench.do(partial(logs.append, log=log, body=body, size=len(body)))
    return log


def append_all(tx: Tx, log: Log, *bodies: bytes) -> Log:
    for body in bodies:
        log = logs.append(tx, log, body, len(body))
    return log


def forked(bench: Bench, parent: Log, position: int, *bodies: bytes) -> Log:
    def work(tx: Tx) -> Log:
        origin = tx.get(LOGS, parent.id)
        assert origin is not None
        return append_all(tx, logs.fork(tx, origin, "fork", position), *bodies)

    return bench.do(work)


def dropped(bench: Bench, log: Log) -> list[int]:
    def work(tx: Tx) -> list[int]:
        current = tx.get(LOGS, log.id)
        assert current is not None
        return [dead.id for dead in logs.drop(tx, current)]

    return bench.do(work)


def trimmed(bench: Bench, log: Log, position: int) -> Log:
    def work(tx: Tx) -> Log:
        current = tx.get(LOGS, log.id)
        assert current is not None
        return logs.trim(tx, current, position)

    return bench.do(work)


def reclaimed(bench: Bench, log: Log) -> bool:
    return bench.do(lambda tx: logs.reclaim(tx, log.id))


def read(bench: Bench, log: Log, position: int = 0, bytes_max: int = 10**9) -> logs.LogPage:
    current = bench.log(log.id)
    assert current is not None
    with bench.engine.reader() as reader:
        return logs.read(reader, current, position, bytes_max)


def bodies(page: logs.LogPage) -> list[bytes]:
    return [entry.body for entry in page.entries]


# -- append


def test_entries_appended_together_are_as_large_as_their_bodies(bench: Bench) -> None:
    log, other = made(bench, b"first"), made(bench)
    bench.do(lambda tx: logs.append_together(tx, [(log, [b"one", b"2", b"three"]), (other, [b"alone"])]))
    assert bodies(read(bench, other)) == [b"alone"]
    page = read(bench, log)
    assert [(entry.position, entry.next, entry.body) for entry in page.entries] == [
        (0, 5, b"first"), (5, 8, b"one"), (8, 9, b"2"), (9, 14, b"three"),
    ]  # fmt: skip
    bench.do(lambda tx: logs.append_together(tx, []))
    assert bench.log(log.id).next == 14  # type: ignore[union-attr]


def test_entries_appended_together_are_undone_together(bench: Bench) -> None:
    """Also after a range was read, for which what was buffered went to the database."""
    log, other = made(bench, b"first"), made(bench)

    def work(tx: Tx) -> None:
        logs.append_together(tx, [(log, [b"one", b"2"]), (other, [b"alone"])])
        assert [entry.body for entry in segments.scan(tx, log.id)] == [b"first", b"one", b"2"]
        assert [notice.log for notice in tx.notices] == [log.id, other.id]
        logs.append_together(tx, [(other, [b"more"])])
        tx.undo()
        assert not tx.notices

    bench.do(work)
    assert bodies(read(bench, log)) == [b"first"]
    assert bodies(read(bench, other)) == []


def test_entries_appended_together_never_pass_the_last_position(bench: Bench) -> None:
    def work(tx: Tx, body: bytes) -> int:
        log = msgspec.structs.replace(logs.create(tx, "test"), next=limits.POSITION_MAX - 3)
        tx.put(LOGS, log)
        logs.append_together(tx, [(log, [b"12", body])])
        return tx.get(LOGS, log.id).next  # type: ignore[union-attr]

    assert bench.do(lambda tx: work(tx, b"3")) == limits.POSITION_MAX
    with pytest.raises(TooLarge, match="is full"):
        bench.do(lambda tx: work(tx, b"34"))


def test_a_new_log_is_empty(bench: Bench) -> None:
    log = made(bench)
    assert (log.base, log.start, log.next, log.forks, log.depth, log.dropped) == (0, 0, 0, 0, 0, 0)
    page = read(bench, log)
    assert (page.entries, page.next, page.tail, page.at_tail) == ([], 0, 0, True)


def test_numbers_of_logs_are_never_used_again(bench: Bench) -> None:
    first = made(bench)
    dropped(bench, first)
    while not reclaimed(bench, first):
        pass
    assert bench.log(first.id) is None
    assert made(bench).id == first.id + 1


def test_entries_follow_each_other_without_a_gap(bench: Bench) -> None:
    log = made(bench, b"a", b"bcd", b"ef")
    assert log.next == 6
    page = read(bench, log)
    assert [(entry.position, entry.next, entry.body) for entry in page.entries] == [
        (0, 1, b"a"), (1, 4, b"bcd"), (4, 6, b"ef"),
    ]  # fmt: skip
    assert page.at_tail


def test_an_entry_may_cover_another_number_of_positions_than_bytes(bench: Bench) -> None:
    log = bench.do(lambda tx: logs.append(tx, logs.append(tx, logs.create(tx, "messages"), b"long", 1), b"", 1))
    assert log.next == 2
    assert [entry.position for entry in read(bench, log).entries] == [0, 1]


def test_times_never_decrease(bench: Bench) -> None:
    log = made(bench, b"a")
    start_ms = bench.now_ms
    bench.now_ms -= 60_000
    log = bench.do(lambda tx: logs.append(tx, log, b"b", 1))
    assert log.at_ms == start_ms
    bench.now_ms = start_ms + 5
    bench.do(lambda tx: logs.append(tx, log, b"c", 1))
    assert [entry.at_ms for entry in read(bench, log).entries] == [start_ms, start_ms, start_ms + 5]


def test_an_append_is_announced_with_the_log_as_it_left_it(bench: Bench) -> None:
    log = made(bench, b"a", b"b")
    (one, first), (two, second) = bench.notices
    assert (one, two) == (log.id, log.id)
    assert isinstance(first, logs.Advanced)
    assert isinstance(second, logs.Advanced)
    assert (first.segment.body, first.log.next, second.segment.body, second.log.next) == (b"a", 1, b"b", 2)


def test_positions_end_somewhere(bench: Bench) -> None:
    log = made(bench)
    nearly = msgspec.structs.replace(log, next=limits.POSITION_MAX - 1)
    full = bench.do(lambda tx: logs.append(tx, nearly, b"x", 1))
    with pytest.raises(TooLarge, match=f"'test' is full: positions end at {limits.POSITION_MAX}"):
        bench.do(lambda tx: logs.append(tx, full, b"x", 1))


# -- read


def test_a_page_is_cut_between_entries(bench: Bench) -> None:
    log = made(bench, b"aaaa", b"bbbb", b"cccc")
    assert [bodies(read(bench, log, 0, size)) for size in (1, 4, 7, 8, 11, 12, 100)] == [
        [b"aaaa"], [b"aaaa"], [b"aaaa"], [b"aaaa", b"bbbb"], [b"aaaa", b"bbbb"], [b"aaaa", b"bbbb", b"cccc"],
        [b"aaaa", b"bbbb", b"cccc"],
    ]  # fmt: skip
    page = read(bench, log, 0, 7)
    assert (page.next, page.tail, page.at_tail) == (4, 12, False)


def test_a_page_has_at_least_one_entry_however_large(bench: Bench) -> None:
    log = made(bench, b"x" * 10_000, b"y")
    page = read(bench, log, 0, 1)
    assert (len(page.entries), page.next, page.at_tail) == (1, 10_000, False)
    assert bodies(read(bench, log, page.next, 1)) == [b"y"]


def test_pages_put_together_are_the_log(bench: Bench) -> None:
    log = made(bench, *[b"x" * (n % 13 + 1) for n in range(200)])
    for size in (1, 5, 50, 10_000):
        position, found = 0, []
        while not (page := read(bench, log, position, size)).at_tail or page.entries:
            found += page.entries
            position = page.next
        assert found == read(bench, log).entries


def test_reading_at_the_tail_finds_nothing(bench: Bench) -> None:
    page = read(bench, made(bench, b"abc"), 3)
    assert (page.entries, page.next, page.at_tail) == ([], 3, True)


def test_reading_beyond_the_tail_is_refused(bench: Bench) -> None:
    log = made(bench, b"abc")
    with pytest.raises(Invalid, match=r"_0000000000000004 is beyond the tail 0000000000000000_0000000000000003") as no:
        read(bench, log, 4)
    assert no.value.code == "INVALID_OFFSET"


@pytest.mark.parametrize("position", [1, 2, 4, 5])
def test_reading_inside_a_message_is_refused(bench: Bench, position: int) -> None:
    log = made(bench, b"abc", b"def")
    with pytest.raises(Invalid, match=f"{position} lies inside a message") as refused:
        read(bench, log, position)
    assert refused.value.code == "INVALID_OFFSET"


def test_boundaries(bench: Bench) -> None:
    log = made(bench, b"abc", b"def", b"g")
    with bench.engine.reader() as reader:
        assert [p for p in range(-1, 10) if logs.boundary(reader, log, p)] == [0, 3, 6, 7]


# -- forks


def test_a_fork_shares_what_lies_below_it(bench: Bench) -> None:
    parent = made(bench, b"aa", b"bb", b"cc")
    fork = forked(bench, parent, 4, b"XX", b"YY")
    bench.do(lambda tx: append_all(tx, tx.get(LOGS, parent.id), b"dd"))  # type: ignore[arg-type]
    assert bodies(read(bench, fork)) == [b"aa", b"bb", b"XX", b"YY"]
    assert bodies(read(bench, parent)) == [b"aa", b"bb", b"cc", b"dd"]
    assert bodies(read(bench, fork, 2)) == [b"bb", b"XX", b"YY"]
    assert bodies(read(bench, fork, 4)) == [b"XX", b"YY"]
    assert [entry.position for entry in read(bench, fork).entries] == [0, 2, 4, 6]
    with bench.engine.reader() as reader:
        assert [p for p in range(12) if logs.boundary(reader, fork, p)] == [0, 2, 4, 6, 8]
    current = bench.log(parent.id)
    assert current is not None
    assert current.forks == 1


@pytest.mark.parametrize("position", [0, 2, 6])
def test_a_fork_anywhere(bench: Bench, position: int) -> None:
    parent = made(bench, b"aa", b"bbbb", b"c")
    fork = forked(bench, parent, position)
    assert b"".join(bodies(read(bench, fork))) == b"aabbbbc"[:position]
    assert read(bench, fork).tail == position
    assert read(bench, fork, position).entries == []


def chain(bench: Bench) -> list[Log]:
    """Five generations: each takes all of its parent but the last entry and adds two."""
    family = [made(bench, b"0a", b"0b")]
    for generation in range(1, 5):
        base = family[-1].next - 2
        family.append(forked(bench, family[-1], base, b"%da" % generation, b"%db" % generation))
    return family


def test_pages_stitch_over_a_chain_of_forks(bench: Bench) -> None:
    last = chain(bench)[-1]
    whole = [b"0a", b"1a", b"2a", b"3a", b"4a", b"4b"]
    for size in (1, 2, 3, 4, 5, 7, 12, 100):
        found: list[bytes] = []
        position = 0
        while True:
            page = read(bench, last, position, size)
            assert sum(map(len, bodies(page))) <= max(size, 2)
            found += bodies(page)
            position = page.next
            if page.at_tail:
                break
        assert found == whole, size
    for start in range(6):
        assert bodies(read(bench, last, start * 2)) == whole[start:]


def test_a_fork_of_a_fork_below_its_base(bench: Bench) -> None:
    parent = made(bench, b"aa", b"bb", b"cc")
    child = forked(bench, parent, 6, b"XX")
    grandchild = forked(bench, child, 2, b"YY")
    assert bodies(read(bench, grandchild)) == [b"aa", b"YY"]
    assert bodies(read(bench, child)) == [b"aa", b"bb", b"cc", b"XX"]


def test_a_chain_of_forks_has_an_end(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FORK_DEPTH_MAX", 4)
    last = chain(bench)[-1]
    assert last.depth == 4
    with pytest.raises(Invalid, match="may be 4 deep"):
        forked(bench, last, 0)


# -- trim


def test_trim_moves_the_start_at_once_and_entries_go_later(bench: Bench) -> None:
    log = trimmed(bench, made(bench, b"aa", b"bb", b"cc"), 2)
    assert (log.start, log.next) == (2, 6)
    assert bodies(read(bench, log, 2)) == [b"bb", b"cc"]
    with pytest.raises(Trimmed, match="position 0 is no longer retained") as gone:
        read(bench, log, 0)
    assert (gone.value.earliest, gone.value.offset) == (2, "0000000000000000_0000000000000002")
    assert bench.positions(log.id) == [0, 2, 4]
    assert bench.garbage() == [log.id]
    assert reclaimed(bench, log)
    assert bench.positions(log.id) == [2, 4]
    assert bench.garbage() == []
    assert bench.log(log.id) == log


def test_trim_never_goes_back_nor_beyond_the_tail(bench: Bench) -> None:
    log = trimmed(bench, made(bench, b"aa", b"bb"), 2)
    assert trimmed(bench, log, 1) == log
    assert trimmed(bench, log, 2) == log
    assert trimmed(bench, log, 99).start == 4
    assert read(bench, log, 4).at_tail


def test_reclaim_works_in_steps(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SWEEP_ENTRIES", 3)
    log = trimmed(bench, made(bench, *[b"x"] * 10), 8)
    left = []
    for _ in range(3):
        left.append((reclaimed(bench, log), len(bench.positions(log.id))))
    assert left == [(False, 7), (False, 4), (True, 2)]


def test_reclaim_counts_bytes_whatever_positions_are(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of change streams they are sequences: a large entry covers one, a small one as many as other tables took."""
    monkeypatch.setattr(limits, "SWEEP_BYTES", 100)

    log = made(bench)
    for size, positions in ((250, 1), (60, 1), (60, 1), (10, 5000), (10, 5000), (10, 5000)):
        log = bench.do(partial(logs.append, log=log, body=b"x" * size, size=positions))
    trimmed(bench, log, log.next)
    left = []
    for _ in range(3):
        left.append((reclaimed(bench, log), len(bench.positions(log.id))))
    assert left == [(False, 5), (False, 4), (True, 0)]


def test_what_forks_read_is_not_reclaimed(bench: Bench) -> None:
    parent = made(bench, b"aa", b"bb", b"cc")
    fork = forked(bench, parent, 4, b"XX")
    trimmed(bench, parent, 6)
    assert reclaimed(bench, parent), "there is nothing to do now"
    assert bodies(read(bench, fork)) == [b"aa", b"bb", b"XX"]
    assert bench.garbage() == []
    assert dropped(bench, fork) == [fork.id]
    assert bench.garbage() == [parent.id, fork.id], "what was kept for the fork can go now"
    while not (reclaimed(bench, parent) and reclaimed(bench, fork)):
        pass
    assert bench.positions(parent.id) == []
    assert bench.log(fork.id) is None
    assert bench.log(parent.id) is not None


def test_a_fork_starts_where_its_parent_does(bench: Bench) -> None:
    parent = trimmed(bench, made(bench, b"aa", b"bb", b"cc"), 2)
    fork = forked(bench, parent, 4, b"XX")
    assert fork.start == 2
    assert bodies(read(bench, fork, 2)) == [b"bb", b"XX"]
    with pytest.raises(Trimmed):
        read(bench, fork, 0)


# -- drop


def test_drop_without_forks(bench: Bench) -> None:
    log = made(bench, b"a")
    bench.notices.clear()
    assert dropped(bench, log) == [log.id]
    assert bench.notices == [(log.id, logs.DROPPED)]
    assert bench.garbage() == [log.id]
    assert reclaimed(bench, log)
    assert (bench.positions(log.id), bench.log(log.id), bench.garbage()) == ([], None, [])
    assert reclaimed(bench, log), "again, does nothing"


def test_drop_with_forks_waits_for_the_last(bench: Bench) -> None:
    parent = made(bench, b"aa", b"bb")
    one, two = forked(bench, parent, 2, b"11"), forked(bench, parent, 4, b"22")
    assert dropped(bench, parent) == []
    assert bench.garbage() == []
    assert dropped(bench, one) == [one.id]
    assert bodies(read(bench, two)) == [b"aa", b"bb", b"22"]
    assert dropped(bench, two) == [two.id, parent.id]
    assert bench.garbage() == [parent.id, one.id, two.id]


def test_drop_cascades_up_a_chain(bench: Bench) -> None:
    family = chain(bench)
    for log in family[:-1]:
        assert dropped(bench, log) == []
    assert bodies(read(bench, family[-1])) == [b"0a", b"1a", b"2a", b"3a", b"4a", b"4b"]
    assert dropped(bench, family[-1]) == [log.id for log in reversed(family)]
    for log in family:
        assert reclaimed(bench, log)
    assert [bench.log(log.id) for log in family] == [None] * 5


def test_drop_cascades_only_to_those_that_were_dropped(bench: Bench) -> None:
    family = chain(bench)
    dropped(bench, family[1])
    dropped(bench, family[3])
    assert dropped(bench, family[4]) == [family[4].id, family[3].id]
    current = bench.log(family[2].id)
    assert current is not None
    assert (current.forks, current.dropped) == (0, 0)
    assert bodies(read(bench, family[2])) == [b"0a", b"1a", b"2a", b"2b"]
