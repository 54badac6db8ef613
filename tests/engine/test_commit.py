"""Commits are whole: not visible before, visible after, kept over a restart; a rollback leaves nothing."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tailrace.errors import Invalid, Unavailable
from tailrace.storage.engine import UNSTORABLE, Engine, Notice
from tests.engine.conftest import NOW_MS, Place
from tests.engine.tables import HOT, ITEMS, LINES, Hot, Item, Line
from tests.engine.test_rows import write


def test_nothing_is_visible_before_the_commit(engine: Engine) -> None:
    write(engine, Hot("a", 1))
    tx = engine.begin(NOW_MS)
    tx.put(HOT, Hot("a", 2))
    tx.add(LINES, Line(1, 0, b""))
    list(tx.scan(LINES))
    tx.keep()
    tx.flush()
    with engine.reader() as reader:
        assert reader.get(HOT, "a") == Hot("a", 1)
        assert list(reader.scan(LINES)) == []
    tx.commit()
    with engine.reader() as reader:
        assert reader.get(HOT, "a") == Hot("a", 2)
        assert list(reader.scan(LINES)) == [Line(1, 0, b"")]


def test_a_reader_keeps_its_view(engine: Engine) -> None:
    """From its first look on: what is committed meanwhile is for the next reader."""
    write(engine, Hot("a", 1), *[Line(1, n, b"") for n in range(100)])
    with engine.reader() as reader:
        assert reader.get(HOT, "a") == Hot("a", 1)
        scan = reader.scan(LINES, 1)
        assert next(scan).position == 0
        write(engine, Hot("a", 2), Hot("b", 1), *[Line(1, n, b"") for n in range(100, 200)])
        tx = engine.begin(NOW_MS)
        tx.remove_range(LINES, 1, before=50, limit=100)
        tx.keep()
        tx.flush()
        tx.commit()
        assert reader.get(HOT, "a") == Hot("a", 1)
        assert reader.get(HOT, "b") is None
        assert [row.position for row in scan] == list(range(1, 100))
        assert len(list(reader.scan(LINES, 1))) == 100
    with engine.reader() as reader:
        assert reader.get(HOT, "a") == Hot("a", 2)
        assert [row.position for row in reader.scan(LINES, 1)] == list(range(50, 200))


def test_readers_of_different_ages_at_once(engine: Engine) -> None:
    views: list[Any] = []
    for number in range(5):
        write(engine, Hot("a", number))
        context = engine.reader()
        reader = context.__enter__()
        assert reader.get(HOT, "a") == Hot("a", number)
        views.append((context, reader))
    try:
        for number, (_, reader) in enumerate(views):
            assert reader.get(HOT, "a") == Hot("a", number)
    finally:
        for context, _ in views:
            context.__exit__(None, None, None)


def test_a_reader_survives_an_error_of_its_user(engine: Engine) -> None:
    write(engine, Hot("a", 1))
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), engine.reader() as reader:
            assert next(iter(reader.scan(HOT))) == Hot("a", 1)
            raise ZeroDivisionError
    with engine.reader() as reader:
        assert reader.get(HOT, "a") == Hot("a", 1)
    write(engine, Hot("a", 2))


def test_rollback_leaves_nothing(engine: Engine) -> None:
    write(engine, Hot("a", 1), Item(1, "a", b"x"), Line(1, 0, b""))
    tx = engine.begin(NOW_MS)
    tx.put(HOT, Hot("a", 2))
    tx.delete(ITEMS, 1, "a")
    tx.add(LINES, Line(1, 1, b""))
    tx.next_id("test")
    tx.keep()
    tx.remove_range(LINES, 1, limit=10)
    tx.keep()
    tx.flush()
    tx.put(HOT, Hot("b", 1))
    tx.rollback()
    with engine.reader() as reader:
        assert list(reader.scan(HOT)) == [Hot("a", 1)]
        assert list(reader.scan(ITEMS)) == [Item(1, "a", b"x")]
        assert list(reader.scan(LINES)) == [Line(1, 0, b"")]
    tx = engine.begin(NOW_MS)
    assert tx.next_id("test") == 1
    tx.rollback()


def test_rollback_of_a_command_half_way(engine: Engine) -> None:
    """The batch is given up in the middle of a command that had flushed early."""
    write(engine, Line(1, 0, b""))
    tx = engine.begin(NOW_MS)
    tx.add(LINES, Line(1, 1, b""))
    list(tx.scan(LINES))
    tx.put(HOT, Hot("a", 1))
    tx.rollback()
    write(engine, Hot("b", 1))
    with engine.reader() as reader:
        assert list(reader.scan(LINES)) == [Line(1, 0, b"")]
        assert list(reader.scan(HOT)) == [Hot("b", 1)]


def test_what_is_committed_is_there_after_a_restart(engine: Engine, place: Place) -> None:
    write(engine, Hot("a", 1), Item(1, "ä", b"\0"), Line(1, 0, b"x"))
    engine = place.open()
    with engine.reader() as reader:
        assert list(reader.scan(HOT)) == [Hot("a", 1)]
        assert list(reader.scan(ITEMS)) == [Item(1, "ä", b"\0")]
        assert list(reader.scan(LINES)) == [Line(1, 0, b"x")]


def test_what_is_not_committed_is_not_there_after_a_restart(engine: Engine, place: Place) -> None:
    write(engine, Hot("a", 1))
    tx = engine.begin(NOW_MS)
    tx.put(HOT, Hot("a", 2))
    tx.keep()
    tx.flush()
    engine = place.open()
    with engine.reader() as reader:
        assert list(reader.scan(HOT)) == [Hot("a", 1)]


def test_notices_are_kept_in_order(engine: Engine) -> None:
    tx = engine.begin(NOW_MS)
    tx.notify(2, "a")
    tx.keep()
    tx.notify(1, "b")
    tx.notify(2, "c")
    tx.keep()
    tx.flush()
    tx.commit()
    assert tx.notices == [Notice(2, "a"), Notice(1, "b"), Notice(2, "c")]


def test_commit_from_another_thread(engine: Engine) -> None:
    """The runner prepares on the event loop's thread and commits on the committer's."""
    for number in range(20):
        tx = engine.begin(NOW_MS)
        tx.put(HOT, Hot("a", number))
        tx.keep()
        tx.flush()
        thread = threading.Thread(target=tx.commit)
        thread.start()
        thread.join()
        with engine.reader() as reader:
            assert reader.get(HOT, "a") == Hot("a", number)


def test_readers_see_whole_commits_while_a_writer_writes(engine: Engine) -> None:
    """Each commit adds one line and sets two counters to how many there are: no view may show different values."""
    write(engine, Hot("first", 0), Hot("last", 0))
    stop = threading.Event()
    failures: list[str] = []
    looks = [0, 0, 0]

    def look(which: int) -> None:
        seen = 0
        while not stop.is_set():
            with engine.reader() as reader:
                first, lines, last = reader.get(HOT, "first"), list(reader.scan(LINES, 1)), reader.get(HOT, "last")
            assert first is not None
            assert last is not None
            if not first.value == last.value == len(lines):
                failures.append(f"{first.value} {len(lines)} {last.value}")
            if len(lines) < seen:
                failures.append(f"went back from {seen} to {len(lines)}")
            seen = len(lines)
            looks[which] += 1

    threads = [threading.Thread(target=look, args=(which,)) for which in range(3)]
    for thread in threads:
        thread.start()
    try:
        number = 0
        while number < 150 or (min(looks) < 20 and number < 3_000):
            tx = engine.begin(NOW_MS)
            tx.put(HOT, Hot("first", number + 1))
            tx.add(LINES, Line(1, number, b""))
            tx.keep()
            tx.put(HOT, Hot("last", number + 1))
            tx.keep()
            tx.flush()
            tx.commit()
            number += 1
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert min(looks) >= 20


def test_a_slow_reader_does_not_hold_the_writer_up(engine: Engine) -> None:
    write(engine, *[Line(1, n, b"x" * 1000) for n in range(1000)])
    with engine.reader() as reader:
        scan = reader.scan(LINES, 1)
        next(scan)
        for number in range(50):
            write(engine, Hot("a", number))
        assert sum(1 for _ in scan) == 999


@pytest.mark.parametrize("single", [False, True])
def test_nothing_is_read_after_closing(engine: Engine, single: bool) -> None:
    write(engine, Hot("a", 1), Item(1, "a", b""))
    with engine.reader(single=single) as reader:
        assert reader.get(ITEMS, 1, "a") == Item(1, "a", b"")
        engine.close()  # whoever reads may finish
    for _ in range(2):
        with pytest.raises(Unavailable, match="closed") as refused, engine.reader(single=single):
            pass
        assert refused.value.code == "CLOSED"


@pytest.mark.parametrize("row", [Hot("a", 1.5), Hot("a", 2**70), Hot("a", None), Hot("\ud800", 1), Hot("a", "x")])  # type: ignore[arg-type]
def test_a_value_that_no_column_takes_is_distinguished_from_damage(engine: Engine, row: Hot) -> None:
    write(engine, Hot("a", 1))
    tx = engine.begin(NOW_MS)
    tx.put(HOT, row)
    with pytest.raises(Unavailable) as refused:
        tx.flush()
    assert refused.value.code == UNSTORABLE
    tx.rollback()
    tx = engine.begin(NOW_MS)
    assert tx.get(HOT, "a") == Hot("a", 1)
    tx.rollback()


def test_a_text_that_no_column_takes_is_refused_where_it_is_looked_for(engine: Engine) -> None:
    tx = engine.begin(NOW_MS)
    with pytest.raises(Invalid, match="surrogate"):
        tx.get(ITEMS, 1, "\ud800")
    tx.rollback()
    with pytest.raises(Invalid, match="surrogate"), engine.reader() as reader:
        reader.get(HOT, "\ud800")
