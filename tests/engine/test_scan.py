"""Ranges: prefix, bounds, limit, direction, order, laziness; the same for a reader and inside a transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tailrace.storage.engine import Engine
from tests.engine.conftest import NOW_MS
from tests.engine.tables import HOT, ITEMS, LINES, MARKS, Hot, Item, Line, Mark
from tests.engine.test_rows import write

View = Callable[[Engine], Any]


@contextmanager
def committed(engine: Engine) -> Iterator[Any]:
    with engine.reader() as reader:
        yield reader


@contextmanager
def inside(engine: Engine) -> Iterator[Any]:
    tx = engine.begin(NOW_MS)
    try:
        yield tx
    finally:
        tx.rollback()


@pytest.fixture(params=[committed, inside], ids=["reader", "tx"])
def view(request: pytest.FixtureRequest) -> View:
    found: View = request.param
    return found


ROWS = [Line(log, position, b"") for log in (1, 2, 3) for position in range(10)]


@pytest.mark.parametrize(
    ("prefix", "options", "expected"),
    [
        ((), {}, ROWS),
        ((2,), {}, ROWS[10:20]),
        ((9,), {}, []),
        ((2, 4), {}, ROWS[14:15]),
        ((2,), {"start": 4}, ROWS[14:20]),
        ((2,), {"start": 0}, ROWS[10:20]),
        ((2,), {"after": 4}, ROWS[15:20]),
        ((2,), {"before": 4}, ROWS[10:14]),
        ((2,), {"before": 0}, []),
        ((2,), {"start": 3, "before": 6}, ROWS[13:16]),
        ((2,), {"after": 3, "before": 6}, ROWS[14:16]),
        ((2,), {"start": 3, "after": 3}, ROWS[14:20]),
        ((2,), {"start": 6, "before": 6}, []),
        ((2,), {"start": 10}, []),
        ((2,), {"start": -5}, ROWS[10:20]),
        ((), {"start": 2}, ROWS[10:]),
        ((), {"after": 2}, ROWS[20:]),
        ((), {"before": 2}, ROWS[:10]),
        ((2,), {"limit": 3}, ROWS[10:13]),
        ((2,), {"limit": 0}, []),
        ((2,), {"limit": 100}, ROWS[10:20]),
        ((2,), {"start": 4, "limit": 1}, ROWS[14:15]),
        ((), {"limit": 12}, ROWS[:12]),
        ((2,), {"reverse": True}, ROWS[19:9:-1]),
        ((2,), {"reverse": True, "limit": 1}, ROWS[19:20]),
        ((2,), {"reverse": True, "before": 4}, ROWS[13:9:-1]),
        ((2,), {"reverse": True, "after": 4, "limit": 2}, [ROWS[19], ROWS[18]]),
        ((), {"reverse": True, "limit": 11}, ROWS[29:18:-1]),
    ],
    ids=lambda value: str(value)[:40] if not isinstance(value, list) else "",
)
def test_ranges(
    engine: Engine, view: Any, prefix: tuple[int, ...], options: dict[str, Any], expected: list[Line]
) -> None:
    write(engine, *sorted(ROWS, key=lambda row: (row.position * 7) % 10))  # not in key order
    with view(engine) as look:
        assert list(look.scan(LINES, *prefix, **options)) == expected


def test_integers_sort_as_numbers(engine: Engine, view: Any) -> None:
    numbers = [0, 1, -1, 9, 10, 100, -100, 2**62, -(2**62), 2**63 - 1, -(2**63)]
    write(engine, *[Mark(number, "") for number in numbers])
    with view(engine) as look:
        assert [row.at for row in look.scan(MARKS)] == sorted(numbers)
        assert [row.at for row in look.scan(MARKS, reverse=True)] == sorted(numbers, reverse=True)
        assert [row.at for row in look.scan(MARKS, after=-1, before=100)] == [0, 1, 9, 10]
        assert [row.at for row in look.scan(MARKS, start=-100, before=0)] == [-100, -1]


def test_text_sorts_by_code_points_not_by_language(engine: Engine, view: Any) -> None:
    # Sorting by UTF-8 bytes is sorting by code points; a locale would put "a" before "B" and "é" before "z".
    names = ["", "A", "B", "Z", "a", "a/", "a/b", "aa", "b", "z", "é", "\uffff", "\U0001f600", "10", "9", " ", "~"]
    write(engine, *[Hot(name, 0) for name in names], *[Item(1, name, b"") for name in names])
    expected = sorted(names, key=str.encode)
    with view(engine) as look:
        assert [row.name for row in look.scan(HOT)] == expected
        assert [row.name for row in look.scan(HOT, reverse=True)] == expected[::-1]
        assert [row.name for row in look.scan(ITEMS, 1, start="a", before="b")] == ["a", "a/", "a/b", "aa"]
        assert [row.name for row in look.scan(ITEMS, 1, after="z")] == ["~", "é", "\uffff", "\U0001f600"]
        assert [row.name for row in look.scan(ITEMS, 1, start="", limit=1)] == [""]


def test_the_second_key_column_sorts_within_the_first(engine: Engine, view: Any) -> None:
    write(engine, Item(2, "a", b""), Item(1, "b", b""), Item(1, "a", b""), Item(10, "", b""))
    with view(engine) as look:
        assert [(row.shelf, row.name) for row in look.scan(ITEMS)] == [(1, "a"), (1, "b"), (2, "a"), (10, "")]
        assert [(row.shelf, row.name) for row in look.scan(ITEMS, reverse=True)] == [
            (10, ""), (2, "a"), (1, "b"), (1, "a"),
        ]  # fmt: skip


def test_a_scan_need_not_be_finished(engine: Engine, view: Any) -> None:
    write(engine, *[Line(1, n, b"x" * 1000) for n in range(2_000)])
    with view(engine) as look:
        rows = look.scan(LINES, 1)
        assert next(rows).position == 0
        assert next(rows).position == 1
        assert look.get(LINES, 1, 7) == Line(1, 7, b"x" * 1000), "other reads go on"
        assert next(iter(look.scan(LINES, 1, start=9))).position == 9
    write(engine, Line(1, 5_000, b""))  # nothing is left locked


def test_a_reader_takes_rows_as_they_are_asked_for(engine: Engine) -> None:
    """200 MB that nobody takes cost nothing: the scan is lazy."""
    import tracemalloc

    write(engine, *[Line(1, n, b"x" * 100_000) for n in range(300)])
    with engine.reader() as reader:
        tracemalloc.start()
        try:
            assert next(iter(reader.scan(LINES, 1))).position == 0
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 3_000_000, f"{peak} bytes were taken for one row"


def test_scan_sees_what_the_transaction_has_written(engine: Engine) -> None:
    write(engine, Item(1, "a", b"old"), Item(1, "b", b"old"))
    tx = engine.begin(NOW_MS)
    tx.put(ITEMS, Item(1, "a", b"new"))
    tx.put(ITEMS, Item(1, "c", b"new"))
    tx.delete(ITEMS, 1, "b")
    assert list(tx.scan(ITEMS, 1)) == [Item(1, "a", b"new"), Item(1, "c", b"new")]
    tx.add(LINES, Line(1, 0, b""))
    tx.add(LINES, Line(1, 1, b""))
    assert [row.position for row in tx.scan(LINES, 1)] == [0, 1]
    tx.add(LINES, Line(1, 2, b""))
    tx.put(ITEMS, Item(1, "d", b"later"))
    assert [row.position for row in tx.scan(LINES, 1, reverse=True)] == [2, 1, 0]
    assert [row.name for row in tx.scan(ITEMS, 1)] == ["a", "c", "d"]
    tx.keep()
    tx.flush()
    tx.commit()
    with engine.reader() as reader:
        assert [row.name for row in reader.scan(ITEMS)] == ["a", "c", "d"]
        assert [row.position for row in reader.scan(LINES)] == [0, 1, 2]


def test_rows_of_a_scan_can_be_deleted_while_it_runs(engine: Engine) -> None:
    write(engine, *[Item(1, f"{n:02d}", b"") for n in range(20)])
    tx = engine.begin(NOW_MS)
    for row in tx.scan(ITEMS, 1):
        tx.delete(ITEMS, row.shelf, row.name)
    assert list(tx.scan(ITEMS)) == []
    tx.keep()
    tx.flush()
    tx.commit()
    with engine.reader() as reader:
        assert list(reader.scan(ITEMS)) == []


@pytest.mark.parametrize(
    ("before", "limit", "removed", "left"),
    [
        (None, 100, 10, []),
        (None, 10, 10, []),
        (None, 3, 3, [3, 4, 5, 6, 7, 8, 9]),
        (5, 100, 5, [5, 6, 7, 8, 9]),
        (5, 2, 2, [2, 3, 4, 5, 6, 7, 8, 9]),
        (0, 100, 0, list(range(10))),
        (100, 100, 10, []),
    ],
)
def test_remove_range(engine: Engine, before: int | None, limit: int, removed: int, left: list[int]) -> None:
    write(engine, *[Line(log, n, b"") for log in (1, 2) for n in range(9, -1, -1)])
    tx = engine.begin(NOW_MS)
    assert tx.remove_range(LINES, 1, before=before, limit=limit) == removed
    assert [row.position for row in tx.scan(LINES, 1)] == left
    tx.keep()
    tx.flush()
    tx.commit()
    with engine.reader() as reader:
        assert [row.position for row in reader.scan(LINES, 1)] == left
        assert [row.position for row in reader.scan(LINES, 2)] == list(range(10)), "other prefixes are left alone"


def test_remove_range_takes_what_was_just_added(engine: Engine) -> None:
    write(engine, Line(1, 0, b""))
    tx = engine.begin(NOW_MS)
    tx.add(LINES, Line(1, 1, b""))
    tx.keep()
    tx.add(LINES, Line(1, 2, b""))
    assert tx.remove_range(LINES, 1, before=2, limit=10) == 2
    assert [row.position for row in tx.scan(LINES, 1)] == [2]
    tx.rollback()


# What is not a heap has no row numbers to delete by: the rows are named by their keys.


@pytest.mark.parametrize(
    ("options", "removed", "left"),
    [
        ({"limit": 100}, 5, []),
        ({"limit": 3}, 3, ["d", "e"]),
        ({"limit": 0}, 0, ["a", "b", "c", "d", "e"]),
        ({"before": "c", "limit": 100}, 2, ["c", "d", "e"]),
        ({"before": "c", "limit": 1}, 1, ["b", "c", "d", "e"]),
        ({"before": "a", "limit": 100}, 0, ["a", "b", "c", "d", "e"]),
    ],
)
def test_remove_range_of_a_table_without_row_numbers(
    engine: Engine, options: dict[str, Any], removed: int, left: list[str]
) -> None:
    write(engine, *[Item(shelf, name, b"x") for shelf in (1, 2, 3) for name in "ecadb"])
    tx = engine.begin(NOW_MS)
    assert tx.remove_range(ITEMS, 2, **options) == removed
    assert [row.name for row in tx.scan(ITEMS, 2)] == left
    tx.keep()
    tx.flush()
    tx.commit()
    with engine.reader() as reader:
        assert [row.name for row in reader.scan(ITEMS, 2)] == left
        for shelf in (1, 3):
            assert [row.name for row in reader.scan(ITEMS, shelf)] == list("abcde"), "other prefixes are left alone"


def test_remove_range_of_rows_that_are_all_key(engine: Engine) -> None:
    write(engine, *[Mark(at, name) for at in (1, 2) for name in "abc"])
    tx = engine.begin(NOW_MS)
    assert tx.remove_range(MARKS, 1, limit=2) == 2
    assert tx.remove_range(MARKS, before=2, limit=10) == 1
    assert list(tx.scan(MARKS)) == [Mark(2, name) for name in "abc"]
    tx.rollback()


def test_remove_range_sees_what_the_transaction_put_and_deleted(engine: Engine) -> None:
    write(engine, Item(1, "a", b"old"), Item(1, "b", b"old"), Item(1, "c", b"old"))
    tx = engine.begin(NOW_MS)
    tx.put(ITEMS, Item(1, "aa", b"new"))
    tx.delete(ITEMS, 1, "b")
    assert tx.remove_range(ITEMS, 1, limit=2) == 2
    assert [row.name for row in tx.scan(ITEMS, 1)] == ["c"]
    assert tx.get(ITEMS, 1, "aa") is None
    tx.keep()
    tx.flush()
    tx.commit()
    with engine.reader() as reader:
        assert [row.name for row in reader.scan(ITEMS)] == ["c"]


def test_remove_range_is_undone_with_its_command(engine: Engine) -> None:
    write(engine, *[Item(1, name, b"") for name in "abc"])
    tx = engine.begin(NOW_MS)
    assert tx.remove_range(ITEMS, 1, limit=1) == 1
    tx.keep()
    assert tx.remove_range(ITEMS, 1, limit=2) == 2
    tx.undo()
    assert [row.name for row in tx.scan(ITEMS, 1)] == ["b", "c"]
    tx.keep()
    tx.flush()
    tx.commit()
    with engine.reader() as reader:
        assert [row.name for row in reader.scan(ITEMS)] == ["b", "c"]


def test_a_transaction_knows_for_whom_it_runs(engine: Engine) -> None:
    tx = engine.begin(NOW_MS)
    assert tx.by == "", "nobody, until the runner says"
    tx.by = "ann"
    tx.undo()
    assert tx.by == "ann", "it is the runner's to change"
    tx.rollback()
    tx = engine.begin(NOW_MS)
    assert tx.by == ""
    tx.rollback()
