"""Any cut of a batch is right, and what is missing from its parts is noticed."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import Corrupt
from tailrace.spark.jobs.ranges import TASK_BYTES, TASK_RECORDS, Digest, RangeResult, TaskRange, split, tiled


def piece(log: int, start: int, end: int, kind: str = "table") -> TaskRange:
    return TaskRange(kind, f"t{log}", 0, log, start, end)


ranges = st.dictionaries(
    st.integers(1, 9),
    st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)).map(lambda pair: (min(pair), max(pair))),
    max_size=5,
)


@given(ranges, st.integers(1, 8), st.sampled_from(["table", "stream"]))
def test_a_split_covers_all_once_in_order(found: dict[int, tuple[int, int]], tasks: int, kind: str) -> None:
    cut = split([piece(log, start, end, kind) for log, (start, end) in found.items()], tasks)
    assert len(cut) <= tasks
    flat = [each for task in cut for each in task]
    assert flat == sorted(flat, key=lambda each: (each.log, each.start))
    for log, (start, end) in found.items():
        at = start
        for each in flat:
            if each.log == log:
                assert each.start == at < each.end
                at = each.end
        assert at == end
    least = TASK_BYTES if kind == "stream" else TASK_RECORDS
    assert all(sum(each.end - each.start for each in task) >= least for task in cut[:-1])


def spans(entries: list[tuple[int, int]], cuts: list[int], start: int, end: int) -> list[RangeResult]:
    """What tasks tell of entries, cut anywhere."""
    bounds = [start, *sorted(cut for cut in set(cuts) if start < cut < end), end]
    results = []
    for low, high in pairwise(bounds):
        inside = [each for each in entries if low <= each[0] < high]
        first, last = (inside[0][0], inside[-1][1]) if inside else (low, low)
        results.append(RangeResult(7, low, high, first, last, len(inside), 0))
    return results


lengths = st.lists(st.integers(1, 50), min_size=1, max_size=30)


@given(lengths, st.lists(st.integers(0, 1500)), st.data())
def test_spans_tile_however_they_are_cut_and_a_lost_entry_is_noticed(
    sizes: list[int], cuts: list[int], data: st.DataObject
) -> None:
    entries, at = [], 100
    for size in sizes:
        entries.append((at, at + size))
        at += size
    assert tiled(100, at, spans(entries, cuts, 100, at)) == at
    lost = data.draw(st.integers(0, len(entries) - 1))
    found = spans(entries, [*cuts, entries[lost][0], entries[lost][1]], 100, at)
    without = [each for each in found if each.first != entries[lost][0]]
    with pytest.raises(Corrupt, match="of log"):
        tiled(100, at, without)


def test_the_last_entry_may_reach_beyond_the_end() -> None:
    assert tiled(0, 10, [RangeResult(1, 0, 10, 0, 14, 2, 0)]) == 14


def test_nothing_at_all_is_noticed() -> None:
    with pytest.raises(Corrupt, match="positions 3 to 9"):
        tiled(3, 9, [])


# -- checksums


def entries_of(rows: list[tuple[int, int, int, bytes]], kind: pa.DataType) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    arrays = [pa.array(columns[number], pa.int64()) for number in range(3)]
    return pa.record_batch([*arrays, pa.array(columns[3], kind)], names=["position", "next", "at_ms", "body"])


rows = st.lists(
    st.tuples(st.integers(0, 2**62), st.integers(0, 2**62), st.integers(0, 2**62), st.binary(max_size=20)),
    min_size=1,
    max_size=20,
)


def digest(batches: list[pa.RecordBatch]) -> int:
    found = Digest()
    for batch in batches:
        found.add(batch)
    return found.value()


@given(rows, st.integers(0, 20), st.sampled_from([pa.binary(), pa.large_binary()]))
def test_a_checksum_is_the_same_however_entries_are_cut(
    given_rows: list[tuple[int, int, int, bytes]], at: int, kind: pa.DataType
) -> None:
    whole = entries_of(given_rows, kind)
    assert digest([whole]) == digest([whole.slice(0, at), whole.slice(at)])
    assert digest([whole]) == digest([entries_of(given_rows[:at], kind), entries_of(given_rows[at:], kind)])


def test_a_checksum_notices_bytes_that_moved_to_the_next_entry() -> None:
    one, other = ([(1, 2, 3, b"ab"), (2, 3, 3, b"c")], [(1, 2, 3, b"a"), (2, 3, 3, b"bc")])
    assert digest([entries_of(one, pa.binary())]) != digest([entries_of(other, pa.binary())])


@given(rows, st.data())
def test_a_checksum_distinguishes_entries(given_rows: list[tuple[int, int, int, bytes]], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(given_rows) - 1))
    column = data.draw(st.integers(0, 3))
    changed = list(given_rows[at])
    changed[column] = changed[column] + (b"x" if column == 3 else 1)  # type: ignore[operator]
    other = [*given_rows[:at], tuple(changed), *given_rows[at + 1 :]]
    assert digest([entries_of(given_rows, pa.binary())]) != digest([entries_of(other, pa.binary())])  # type: ignore[arg-type]
