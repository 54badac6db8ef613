"""Each command stands alone: what it did stays (`keep`) or never was (`undo`), whatever the others of its batch did."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.storage.engine import Engine, Notice, Tx
from tests.engine.conftest import NOW_MS
from tests.engine.tables import HOT, ITEMS, LINES, Hot, Item, Line
from tests.engine.test_rows import write


def rows(look: Any) -> dict[str, list[Any]]:
    return {"items": list(look.scan(ITEMS)), "hot": list(look.scan(HOT)), "lines": list(look.scan(LINES))}


def finish(tx: Tx) -> None:
    tx.flush()
    tx.commit()


@pytest.fixture
def filled(engine: Engine) -> Engine:
    fill(engine)
    return engine


def fill(engine: Engine) -> None:
    """The same start for each example: two rows of each kind and nothing else."""
    clear(engine)
    write(engine, Item(1, "a", b"0"), Item(1, "b", b"0"), Hot("a", 0), Hot("b", 0), Line(1, 0, b"0"), Line(1, 1, b"0"))


def clear(engine: Engine) -> None:
    tx = engine.begin(NOW_MS)
    for item in tx.scan(ITEMS):
        tx.delete(ITEMS, item.shelf, item.name)
    for hot in tx.scan(HOT):
        tx.delete(HOT, hot.name)
    for log in (1, 2, 3):
        tx.remove_range(LINES, log, limit=10_000)
    tx.keep()
    finish(tx)


def put_over(tx: Tx) -> None:
    tx.put(ITEMS, Item(1, "a", b"undone"))
    tx.put(HOT, Hot("a", 99))


def put_new(tx: Tx) -> None:
    tx.put(ITEMS, Item(5, "new", b"undone"))
    tx.put(HOT, Hot("new", 99))


def put_twice(tx: Tx) -> None:
    tx.put(HOT, Hot("a", 98))
    tx.put(HOT, Hot("a", 99))


def remove(tx: Tx) -> None:
    tx.delete(ITEMS, 1, "a")
    tx.delete(HOT, "a")
    tx.delete(HOT, "never there")


def add(tx: Tx) -> None:
    tx.add(LINES, Line(1, 7, b"undone"))
    tx.add(LINES, Line(2, 7, b"undone"))


def notify(tx: Tx) -> None:
    tx.notify(1, "undone")


def count(tx: Tx) -> None:
    tx.next_id("test")


def scan_everything(tx: Tx) -> None:
    rows(tx)


def remove_lines(tx: Tx) -> None:
    tx.remove_range(LINES, 1, limit=1)


def remove_all_lines(tx: Tx) -> None:
    tx.remove_range(LINES, 1, limit=100)


ACTIONS = [put_over, put_new, put_twice, remove, add, notify, count, scan_everything, remove_lines, remove_all_lines]


@pytest.mark.parametrize("first", ACTIONS, ids=lambda action: action.__name__)
@pytest.mark.parametrize("scans", [False, True], ids=["buffered", "flushed early"])
def test_undo_takes_back_one_command_and_no_more(engine: Engine, first: Any, scans: bool) -> None:
    for second in ACTIONS:
        if not (first is add and second is add):
            fill(engine)
            undo_one(engine, first, scans, second)


def undo_one(filled: Engine, first: Any, scans: bool, second: Any) -> None:
    """A kept command, an undone one that does `first` and `second`, another kept one."""
    tx = filled.begin(NOW_MS)
    tx.put(ITEMS, Item(1, "a", b"kept"))
    tx.put(HOT, Hot("a", 1))
    tx.put(HOT, Hot("kept", 1))
    tx.delete(HOT, "b")
    tx.add(LINES, Line(1, 2, b"kept"))
    tx.notify(1, "kept")
    number = tx.next_id("test")
    tx.keep()
    first(tx)
    if scans:
        scan_everything(tx)
    second(tx)
    tx.undo()
    expected = {
        "items": [Item(1, "a", b"kept"), Item(1, "b", b"0")],
        "hot": [Hot("a", 1), Hot("kept", 1)],
        "lines": [Line(1, 0, b"0"), Line(1, 1, b"0"), Line(1, 2, b"kept")],
    }
    assert tx.get(HOT, "a") == Hot("a", 1)
    assert tx.get(HOT, "b") is None
    assert tx.get(HOT, "new") is None
    assert tx.get(ITEMS, 1, "a") == Item(1, "a", b"kept")
    assert tx.notices == [Notice(1, "kept")]
    assert rows(tx) == expected
    tx.put(HOT, Hot("a", 2))  # and those after it start from there
    tx.notify(2, "after")
    assert tx.next_id("test") == number + 1
    tx.keep()
    finish(tx)
    assert tx.notices == [Notice(1, "kept"), Notice(2, "after")]
    expected["hot"][0] = Hot("a", 2)
    with filled.reader() as reader:
        assert rows(reader) == expected
    tx = filled.begin(NOW_MS)
    assert [tx.get(HOT, name) for name in ("a", "b", "kept", "new")] == [Hot("a", 2), None, Hot("kept", 1), None]
    tx.rollback()


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__name__)
def test_undo_of_the_only_command_leaves_nothing(filled: Engine, action: Any) -> None:
    with filled.reader() as reader:
        before = rows(reader)
    tx = filled.begin(NOW_MS)
    action(tx)
    tx.undo()
    assert tx.notices == []
    finish(tx)
    with filled.reader() as reader:
        assert rows(reader) == before


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__name__)
def test_an_undone_command_can_be_repeated_and_kept(filled: Engine, action: Any) -> None:
    """As if it had not run: the second time it has the same effect as on a fresh transaction."""
    tx = filled.begin(NOW_MS)
    action(tx)
    expected = rows(tx)
    tx.rollback()
    tx = filled.begin(NOW_MS)
    action(tx)
    scan_everything(tx)
    tx.undo()
    action(tx)
    tx.keep()
    tx.put(HOT, Hot("zz", 1))
    tx.undo()
    finish(tx)
    with filled.reader() as reader:
        assert rows(reader) == expected


def test_several_undone_commands_between_kept_ones(filled: Engine) -> None:
    tx = filled.begin(NOW_MS)
    expected: list[int] = []
    for number in range(1, 30):
        left = [*expected, number]
        tx.put(HOT, Hot("a", number))
        tx.add(LINES, Line(3, number, b"%d" % number))
        if number % 3 == 0:
            assert [row.position for row in tx.scan(LINES, 3)] == left
        if number % 5 == 0:
            tx.remove_range(LINES, 3, limit=1)
            left = left[1:]
        tx.notify(3, number)
        if number % 2:
            tx.undo()
        else:
            tx.keep()
            expected = left
    finish(tx)
    with filled.reader() as reader:
        assert reader.get(HOT, "a") == Hot("a", 28)
        assert [row.position for row in reader.scan(LINES, 3)] == expected
    assert [notice.item for notice in tx.notices] == list(range(2, 30, 2))


# -- the same, against a model

_names = st.sampled_from(["a", "b", "c"])
_operation = st.one_of(
    st.tuples(st.just("put"), _names, st.integers(0, 9)),
    st.tuples(st.just("put_item"), _names, st.integers(0, 9)),
    st.tuples(st.just("delete"), _names),
    st.tuples(st.just("delete_item"), _names),
    st.tuples(st.just("add"), st.integers(1, 2)),
    st.tuples(st.just("remove"), st.integers(1, 2), st.integers(1, 3), st.one_of(st.none(), st.integers(0, 12))),
    st.tuples(st.just("scan"), st.sampled_from(["hot", "items", "lines"])),
    st.tuples(st.just("get"), _names),
    st.tuples(st.just("notify"), st.integers(1, 3)),
)
_command = st.tuples(st.lists(_operation, max_size=6), st.booleans())
_batch = st.tuples(st.lists(_command, max_size=5), st.booleans())


class Model:
    """What an engine should hold: three dicts that are copied before each command."""

    def __init__(self) -> None:
        self.hot: dict[str, int] = {}
        self.items: dict[str, int] = {}
        self.lines: dict[tuple[int, int], None] = {}
        self.notices: list[int] = []

    def copy(self) -> Model:
        other = Model()
        other.hot, other.items, other.lines = dict(self.hot), dict(self.items), dict(self.lines)
        other.notices = list(self.notices)
        return other

    def rows(self) -> dict[str, list[Any]]:
        return {
            "items": [Item(1, name, b"%d" % value) for name, value in sorted(self.items.items())],
            "hot": [Hot(name, value) for name, value in sorted(self.hot.items())],
            "lines": [Line(log, position, b"") for log, position in sorted(self.lines)],
        }

    def do(self, tx: Tx, operation: tuple[Any, ...], number: int) -> None:
        match operation:
            case ("put", name, value):
                tx.put(HOT, Hot(name, value))
                self.hot[name] = value
            case ("put_item", name, value):
                tx.put(ITEMS, Item(1, name, b"%d" % value))
                self.items[name] = value
            case ("delete", name):
                tx.delete(HOT, name)
                self.hot.pop(name, None)
            case ("delete_item", name):
                tx.delete(ITEMS, 1, name)
                self.items.pop(name, None)
            case ("add", log):
                tx.add(LINES, Line(log, number, b""))
                self.lines[log, number] = None
            case ("remove", log, limit, before):
                gone = [key for key in sorted(self.lines) if key[0] == log and (before is None or key[1] < before)]
                assert tx.remove_range(LINES, log, before=before, limit=limit) == len(gone[:limit])
                for key in gone[:limit]:
                    del self.lines[key]
            case ("scan", what):
                table: Any = {"hot": HOT, "items": ITEMS, "lines": LINES}[what]
                assert list(tx.scan(table)) == self.rows()[what]
            case ("get", name):
                assert tx.get(HOT, name) == (Hot(name, self.hot[name]) if name in self.hot else None)
                item = tx.get(ITEMS, 1, name)
                assert (item and int(item.value)) == self.items.get(name)
            case ("notify", log):
                tx.notify(log, number)
                self.notices.append(number)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(batches=st.lists(_batch, max_size=4))
def test_any_mixture_of_commands_kept_and_undone(engine: Engine, batches: list[Any]) -> None:
    """Batches of commands, each kept or undone, each batch committed or rolled back; a model says what must remain."""
    clear(engine)
    model, number = Model(), 0
    for commands, commits in batches:
        model.notices.clear()
        tx, before = engine.begin(NOW_MS), model.copy()
        for operations, keeps in commands:
            kept = model.copy()
            for operation in operations:
                number += 1
                model.do(tx, operation, number)
            if keeps:
                tx.keep()
            else:
                tx.undo()
                model = kept
        if commits:
            finish(tx)
            assert [notice.item for notice in tx.notices] == model.notices
        else:
            tx.rollback()
            model = before
        with engine.reader() as reader:
            assert rows(reader) == model.rows()
