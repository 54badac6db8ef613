"""Rows go in and come out as they were: get, put, delete, add, counters, and the bounds of each type."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.errors import Corrupt
from tailrace.storage.engine import Engine
from tests.engine.conftest import NOW_MS, Place
from tests.engine.tables import HOT, ITEMS, LINES, MARKS, WIDE, Hot, Item, Line, Mark, Wide


def write(engine: Engine, *rows: Any) -> None:
    """Commit rows, each into the table of its type."""
    homes = {Item: ITEMS, Hot: HOT, Mark: MARKS, Wide: WIDE}
    tx = engine.begin(NOW_MS)
    for row in rows:
        if isinstance(row, Line):
            tx.add(LINES, row)
        else:
            tx.put(homes[type(row)], row)
    tx.keep()
    tx.flush()
    tx.commit()


def test_what_is_put_is_got_in_the_transaction_and_after_it(engine: Engine) -> None:
    row = Item(1, "a", b"x", "note")
    tx = engine.begin(NOW_MS)
    assert tx.get(ITEMS, 1, "a") is None
    tx.put(ITEMS, row)
    assert tx.get(ITEMS, 1, "a") == row
    tx.keep()
    tx.flush()
    assert tx.get(ITEMS, 1, "a") == row, "also when it is flushed and not committed"
    tx.commit()
    tx = engine.begin(NOW_MS)
    assert tx.get(ITEMS, 1, "a") == row
    tx.rollback()
    with engine.reader() as reader:
        assert reader.get(ITEMS, 1, "a") == row
        assert reader.get(ITEMS, 1, "b") is None
        assert reader.get(ITEMS, 2, "a") is None


def test_put_replaces_the_row_with_the_same_key(engine: Engine) -> None:
    write(engine, Item(1, "a", b"old", "note"), Item(1, "b", b"stays"))
    write(engine, Item(1, "a", b"new", None))
    with engine.reader() as reader:
        assert list(reader.scan(ITEMS)) == [Item(1, "a", b"new", None), Item(1, "b", b"stays")]


def test_the_last_put_of_a_transaction_wins(engine: Engine) -> None:
    write(engine, Hot("a", 1), Hot("a", 2), Hot("a", 3))
    with engine.reader() as reader:
        assert reader.get(HOT, "a") == Hot("a", 3)


def test_put_of_a_row_that_is_all_key(engine: Engine) -> None:
    write(engine, Mark(1, "a"))
    write(engine, Mark(1, "a"), Mark(2, "a"))
    with engine.reader() as reader:
        assert list(reader.scan(MARKS)) == [Mark(1, "a"), Mark(2, "a")]


def test_delete(engine: Engine) -> None:
    write(engine, Item(1, "a", b"x"), Item(1, "b", b"y"))
    tx = engine.begin(NOW_MS)
    tx.delete(ITEMS, 1, "a")
    tx.delete(ITEMS, 9, "never there")
    assert tx.get(ITEMS, 1, "a") is None
    tx.keep()
    tx.flush()
    assert tx.get(ITEMS, 1, "a") is None
    tx.commit()
    with engine.reader() as reader:
        assert list(reader.scan(ITEMS)) == [Item(1, "b", b"y")]


def test_delete_then_put_and_put_then_delete(engine: Engine) -> None:
    write(engine, Item(1, "a", b"x"))
    tx = engine.begin(NOW_MS)
    tx.delete(ITEMS, 1, "a")
    tx.put(ITEMS, Item(1, "a", b"again"))
    tx.put(ITEMS, Item(1, "new", b""))
    tx.delete(ITEMS, 1, "new")
    tx.keep()
    tx.flush()
    tx.commit()
    with engine.reader() as reader:
        assert list(reader.scan(ITEMS)) == [Item(1, "a", b"again")]


def test_add_to_a_heap(engine: Engine) -> None:
    write(engine, Line(1, 0, b"a"), Line(2, 0, b"b"), Line(1, 1, b"c"))
    with engine.reader() as reader:
        assert reader.get(LINES, 1, 1) == Line(1, 1, b"c")
        assert list(reader.scan(LINES)) == [Line(1, 0, b"a"), Line(1, 1, b"c"), Line(2, 0, b"b")]


def test_put_into_a_heap_is_our_bug(engine: Engine) -> None:
    tx = engine.begin(NOW_MS)
    with pytest.raises(AssertionError, match="added, not put"):
        tx.put(LINES, Line(1, 0, b""))
    tx.rollback()


@pytest.mark.parametrize("committed", [True, False])
def test_adding_a_key_twice_means_the_database_is_damaged(engine: Engine, committed: bool) -> None:
    if committed:
        write(engine, Line(1, 5, b"first"))
    tx = engine.begin(NOW_MS)
    if not committed:
        tx.add(LINES, Line(1, 5, b"first"))
    tx.add(LINES, Line(1, 5, b"second"))
    with pytest.raises(Corrupt, match="tailrace check"):
        tx.flush()
        tx.commit()
    tx.rollback()
    with engine.reader() as reader:
        assert list(reader.scan(LINES)) == ([Line(1, 5, b"first")] if committed else [])


def test_counters_never_repeat(engine: Engine, place: Place) -> None:
    tx = engine.begin(NOW_MS)
    assert [tx.next_id("test"), tx.next_id("test"), tx.next_id("other"), tx.next_id("test")] == [1, 2, 1, 3]
    tx.keep()
    assert tx.next_id("test") == 4
    tx.undo()
    assert tx.next_id("test") == 4, "a failed command used no number"
    tx.keep()
    tx.flush()
    tx.commit()
    tx = place.open().begin(NOW_MS)
    assert tx.next_id("test") == 5
    tx.rollback()


def test_the_time_of_a_transaction_is_the_one_passed_in(engine: Engine) -> None:
    tx = engine.begin(NOW_MS + 7)
    assert tx.now_ms == NOW_MS + 7
    tx.rollback()


@pytest.mark.parametrize("number", [0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63), None])
def test_integers_are_64_bits_wide(engine: Engine, number: int | None) -> None:
    write(engine, Wide(1, number, None, None))
    with engine.reader() as reader:
        row = reader.get(WIDE, 1)
    assert row == Wide(1, number, None, None)
    assert row is not None
    assert type(row.number) is type(number)


@pytest.mark.parametrize(
    "text",
    ["", " ", "a'b\"c", "äöü", "日本語", "\U0001f600", "a\nb\r\n", "%_*?", "\uffff", "x" * 100_000, "ﬁ", "e\u0301"],
)
def test_text_is_kept_as_it_is(engine: Engine, text: str) -> None:
    write(engine, Wide(1, None, text, None), Item(1, text, b""))
    with engine.reader() as reader:
        assert reader.get(WIDE, 1) == Wide(1, None, text, None)
        assert reader.get(ITEMS, 1, text) == Item(1, text, b"")


def test_text_that_only_looks_equal_is_not(engine: Engine) -> None:
    names = ["a", "A", "a ", "é", "e\u0301", "ﬁ", "fi"]
    write(engine, *[Item(1, name, name.encode()) for name in names])
    with engine.reader() as reader:
        for name in names:
            row = reader.get(ITEMS, 1, name)
            assert row is not None
            assert row.value == name.encode()


@pytest.mark.parametrize("blob", [b"", b"\0", bytes(range(256)), b"not utf-8: \xff", b"x" * (5 * 1024 * 1024), None])
def test_blobs_are_kept_as_they_are(engine: Engine, blob: bytes | None) -> None:
    write(engine, Wide(1, None, None, blob))
    with engine.reader() as reader:
        row = reader.get(WIDE, 1)
    assert row == Wide(1, None, None, blob)
    assert row is not None
    assert type(row.blob) is type(blob), "an empty blob is not null"


def test_a_transaction_that_did_nothing_commits(engine: Engine) -> None:
    tx = engine.begin(NOW_MS)
    tx.keep()
    tx.flush()
    tx.commit()
    assert tx.notices == []


def test_many_rows_in_one_transaction(engine: Engine) -> None:
    write(engine, *[Line(n % 7, n, b"%d" % n) for n in range(20_000)], *[Hot(f"{n}", n) for n in range(5_000)])
    with engine.reader() as reader:
        assert sum(1 for _ in reader.scan(LINES)) == 20_000
        assert sum(row.value for row in reader.scan(HOT)) == sum(range(5_000))
        assert [row.position for row in reader.scan(LINES, 3, limit=2)] == [3, 10]


def test_many_keys_at_once(engine: Engine) -> None:
    """Committed, flushed and buffered rows, and those that are deleted in any of these ways; more than one statement's
    worth of keys."""
    write(engine, *[Item(1, f"{n:03d}", b"old") for n in range(300)], Item(2, "000", b"other"))
    tx = engine.begin(NOW_MS)
    tx.put(ITEMS, Item(1, "001", b"flushed"))
    tx.delete(ITEMS, 1, "002")
    tx.keep()
    tx.flush()
    tx.put(ITEMS, Item(1, "003", b"buffered"))
    tx.put(ITEMS, Item(1, "new", b"buffered"))
    tx.delete(ITEMS, 1, "004")
    wanted = [*(f"{n:03d}" for n in range(250)), "new", "none"]
    found = tx.get_each(ITEMS, (1,), wanted)
    assert found == {name: row for name in wanted if (row := tx.get(ITEMS, 1, name)) is not None}
    assert len(found) == 249
    assert {name: found[name].value for name in ("000", "001", "003", "new")} == {
        "000": b"old",
        "001": b"flushed",
        "003": b"buffered",
        "new": b"buffered",
    }
    assert tx.get_each(ITEMS, (1,), []) == {}
    tx.rollback()
    with engine.reader() as reader:
        read = reader.get_each(ITEMS, (1,), wanted)
        assert read == {name: Item(1, name, b"old") for name in wanted[:250]}
        assert reader.get_each(ITEMS, (1,), []) == {}
