"""Staged rows: to a reader they are like all others, wherever they are, and in whichever commit its view began."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from tailrace import limits
from tailrace.errors import Corrupt
from tailrace.storage.engine import Engine, Tx
from tests.engine.conftest import NOW_MS, Place
from tests.engine.tables import SETTLED, Line

Rows = dict[tuple[int, int], Line]
SMALL, LARGE = b"abc", b"a large one"


def add(tx: Tx, *rows: Line) -> None:
    for row in rows:
        tx.add(SETTLED, row)


def commit(tx: Tx) -> None:
    tx.keep()
    tx.flush()
    tx.commit()


def write(engine: Engine, *rows: Line) -> None:
    tx = engine.begin(NOW_MS)
    add(tx, *rows)
    commit(tx)


def settle(engine: Engine, limit: int = 1000) -> list[Line]:
    """Move the oldest staged rows; these."""
    with engine.reader() as reader:
        found = list(reader.staged(SETTLED, 1, limit))
    if found:
        tx = engine.begin(NOW_MS)
        assert tx.settle(SETTLED, found[0][0], found[-1][0], len(found), [row for _, row in found])
        commit(tx)
    return [row for _, row in found]


def all_rows(view: Any) -> list[Line]:
    return list(view.scan(SETTLED))


@pytest.fixture
def engine(place: Place) -> Engine:
    found: Engine = place.open()
    return found


def test_rows_are_moved_when_they_are_old_or_many(engine: Engine) -> None:
    rows = [Line(1, number, SMALL) for number in range(limits.STAGED_LOG_ROWS)]
    write(engine, *rows)
    many = 10 * len(rows)
    for age_s, due in ((0, []), (limits.STAGED_AGE_S, rows)):
        with engine.reader(NOW_MS + int(age_s * 1000)) as reader:
            assert [row for _, row in reader.staged(SETTLED, many, many)] == due


def test_small_rows_are_staged_and_large_ones_are_not(engine: Engine) -> None:
    rows = [Line(1, 0, SMALL), Line(1, 1, LARGE), Line(2, 0, SMALL), Line(1, 2, SMALL)]
    write(engine, *rows)
    with engine.reader() as reader:
        assert all_rows(reader) == sorted(rows, key=SETTLED.key_of)
        assert [row for _, row in reader.staged(SETTLED, 1, 10)] == [rows[0], rows[2], rows[3]]
        assert [row for _, row in reader.staged(SETTLED, 3, 2)] == [rows[0], rows[2]]
        assert list(reader.staged(SETTLED, 4, 10)) == [], "too few"
    assert settle(engine, 2) == [rows[0], rows[2]]
    with engine.reader() as reader:
        assert all_rows(reader) == sorted(rows, key=SETTLED.key_of)
        assert [row for _, row in reader.staged(SETTLED, 1, 10)] == [rows[3]]


def test_what_is_settled_may_have_fewer_and_other_rows(engine: Engine) -> None:
    write(engine, Line(1, 0, b"a"), Line(1, 1, b"b"), Line(1, 2, b"c"))
    tx = engine.begin(NOW_MS)
    ((first, _), (last, _), _) = tx.staged(SETTLED, 1, 10)
    assert tx.settle(SETTLED, first, last, 2, [Line(1, 0, b"ab")])
    assert all_rows(tx) == [Line(1, 0, b"ab"), Line(1, 2, b"c")]
    commit(tx)
    with engine.reader() as reader:
        assert all_rows(reader) == [Line(1, 0, b"ab"), Line(1, 2, b"c")]


def test_rows_that_are_not_what_they_were_are_not_settled(engine: Engine) -> None:
    write(engine, *(Line(log, position, SMALL) for position in range(4) for log in (1, 2)))
    with engine.reader() as reader:
        found = list(reader.staged(SETTLED, 1, 4))
    tx = engine.begin(NOW_MS)
    assert tx.remove_range(SETTLED, 2, limit=1) == 1
    before = all_rows(tx)
    for first, last, count in (
        (found[0][0], found[-1][0], 4),  # one is gone
        (found[1][0], found[-1][0], 3),  # not the oldest
        (found[0][0] - 1, found[-1][0], 3),
    ):
        assert not tx.settle(SETTLED, first, last, count, [])
        assert all_rows(tx) == before
    assert tx.settle(SETTLED, found[0][0], found[-1][0], 3, [row for _, row in found if row != Line(2, 0, SMALL)])
    assert not tx.settle(SETTLED, found[0][0], found[-1][0], 3, []), "done already"
    assert all_rows(tx) == before
    commit(tx)


def test_a_view_that_began_before_rows_were_moved_has_them(engine: Engine) -> None:
    """Also if they were moved long ago, and are not listed in memory any more."""
    write(engine, *(Line(1, position, SMALL) for position in range(10)))
    with ExitStack() as stack:
        views = []
        for moved in range(6):
            view = stack.enter_context(engine.reader())
            expected = all_rows(view)
            views.append((view, expected))
            settle(engine, 2)
            write(engine, Line(1, 10 + moved, SMALL), Line(2, moved, LARGE))
        for view, expected in views:
            assert list(view.scan(SETTLED, 1)) == [row for row in expected if row.log == 1]
            assert all_rows(view) == expected
            assert list(view.scan(SETTLED, 1, covering=7, limit=2)) == [Line(1, 7, SMALL), Line(1, 8, SMALL)]


def test_a_view_that_has_read_nothing_yet_begins_with_the_first_read(engine: Engine) -> None:
    write(engine, Line(1, 0, SMALL))
    with engine.reader() as reader:
        write(engine, Line(1, 1, SMALL))
        settle(engine, 1)
        write(engine, Line(1, 2, SMALL))
        expected = [Line(1, position, SMALL) for position in range(3)]
        assert list(reader.scan(SETTLED, 1)) == expected
        write(engine, Line(1, 3, SMALL))
        settle(engine)
        assert list(reader.scan(SETTLED, 1)) == expected


def test_a_view_that_began_before_rows_were_deleted_has_them(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows between those that stay are gone from the list, which was made anew."""
    monkeypatch.setattr(limits, "STAGED_LISTED_ROWS", 4)
    write(engine, Line(1, 0, SMALL), *(Line(2, position, SMALL) for position in range(3)), Line(3, 0, SMALL))
    with engine.reader() as view:
        expected = all_rows(view)
        tx = engine.begin(NOW_MS)
        assert tx.remove_range(SETTLED, 2, limit=9) == 3
        commit(tx)
        for position in range(1, 30):
            write(engine, Line(3, position, SMALL))
        assert all_rows(view) == expected
        assert list(view.scan(SETTLED, 2)) == [row for row in expected if row.log == 2]


def test_a_key_that_was_added_before_is_damage(engine: Engine) -> None:
    write(engine, Line(1, 5, SMALL))
    for position in (5, 4):
        tx = engine.begin(NOW_MS)
        add(tx, Line(1, position, SMALL))
        tx.keep()
        with pytest.raises(Corrupt, match="would be added"):
            tx.flush()
        tx.rollback()
    write(engine, Line(1, 6, SMALL))
    with engine.reader() as reader:
        assert all_rows(reader) == [Line(1, 5, SMALL), Line(1, 6, SMALL)]


LOGS = st.integers(1, 3)
BODIES = st.sampled_from([b"", b"x", SMALL, LARGE])
STEPS = st.one_of(
    st.tuples(st.just("add"), LOGS, BODIES),
    st.tuples(st.just("add"), LOGS, BODIES),
    st.tuples(st.just("add"), LOGS, BODIES),
    st.tuples(st.just("remove"), LOGS, st.integers(1, 4)),
    st.tuples(st.just("settle"), st.integers(1, 5), st.none()),
    st.tuples(st.just("look"), LOGS, st.none()),
)
COMMANDS = st.lists(st.tuples(st.lists(STEPS, max_size=6), st.booleans()), max_size=4)
ENDS = st.sampled_from(["commit"] * 6 + ["rollback", "reopen"])


def expected_scan(rows: Rows, log: int, bounds: dict[str, Any], limit: int | None, reverse: bool) -> list[Line]:
    found = [row for (first, _), row in sorted(rows.items()) if first == log]
    covering = bounds.get("covering")
    if covering is not None:
        last = max([row.position for row in found if row.position <= covering], default=covering)
        found = [row for row in found if row.position >= last]
    if (start := bounds.get("start")) is not None:
        found = [row for row in found if row.position >= start]
    if (after := bounds.get("after")) is not None:
        found = [row for row in found if row.position > after]
    if (before := bounds.get("before")) is not None:
        found = [row for row in found if row.position < before]
    return (found[::-1] if reverse else found)[:limit]


def look(view: Any, rows: Rows, data: st.DataObject) -> None:
    assert all_rows(view) == [row for _, row in sorted(rows.items())]
    where = st.none() | st.integers(0, 12)
    for log in (1, 2, 3, 4):
        names = data.draw(st.sampled_from([("covering", "before"), ("start", "before"), ("after",), ("covering",), ()]))
        bounds = {name: data.draw(where, label=name) for name in names}
        if bounds.get("before") is not None and bounds.get("covering") is not None:
            bounds["before"] += bounds["covering"] + 1
        limit = data.draw(st.none() | st.integers(1, 4), label="limit")
        for reverse in (False, True):
            found = list(view.scan(SETTLED, log, limit=limit, reverse=reverse, **bounds))
            assert found == expected_scan(rows, log, bounds, limit, reverse)
        bounds.pop("before", None)
        bounds.pop("after", None)
        values = view.values(SETTLED, "length(body), position", log, limit=limit, **bounds)
        expected = expected_scan(rows, log, bounds, limit, False)
        assert values == [(len(row.body), row.position) for row in expected]


@pytest.mark.parametrize("listed", [1, limits.STAGED_LISTED_ROWS])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(batches=st.lists(st.tuples(COMMANDS, ENDS), max_size=8), data=st.data())
def test_rows_are_those_of_a_model(
    place: Place, monkeypatch: pytest.MonkeyPatch, listed: int, batches: list[Any], data: st.DataObject
) -> None:
    """Whatever is added, moved, removed, undone and rolled back; for views that began earlier, too, and also if the
    list in memory is made anew again and again."""
    monkeypatch.setattr(limits, "STAGED_LISTED_ROWS", listed)
    here = place.another()
    engine = here.open()
    model: Rows = {}
    next_position = {1: 0, 2: 0, 3: 0}
    with ExitStack() as stack:
        views: list[tuple[Any, Rows]] = []
        for commands, end in batches:
            tx = engine.begin(NOW_MS)
            batch, positions = dict(model), dict(next_position)
            for steps, fails in commands:
                rows, at = dict(batch), dict(positions)
                for step in steps:
                    take(tx, rows, at, step, data)
                if fails:
                    tx.undo()
                else:
                    tx.keep()
                    batch, positions = rows, at
            if end == "rollback":
                tx.rollback()
            else:
                tx.flush()
                tx.commit()
                model, next_position = batch, positions
            if end == "reopen":
                stack.close()
                views.clear()
                engine = here.open()
            with engine.reader() as reader:
                look(reader, model, data)
            view = stack.enter_context(engine.reader())
            all_rows(view)
            views.append((view, model))
        for view, rows in views:
            look(view, rows, data)
    here.close()


def take(tx: Tx, rows: Rows, at: dict[int, int], step: Any, data: st.DataObject) -> None:
    action, what, how = step
    match action:
        case "add":
            row = Line(what, at[what], how)
            at[what] += 1
            rows[row.log, row.position] = row
            tx.add(SETTLED, row)
        case "remove":
            keys = sorted(key for key in rows if key[0] == what)[:how]
            for key in keys:
                del rows[key]
            assert tx.remove_range(SETTLED, what, limit=how) == len(keys)
        case "settle":
            found = list(tx.staged(SETTLED, 1, what))
            if found:
                assert tx.settle(SETTLED, found[0][0], found[-1][0], len(found), [row for _, row in found])
        case _:
            look(tx, rows, data)
