"""Rows of cached tables are remembered across transactions; what is remembered is always what is committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tailrace import limits
from tailrace.errors import Error
from tailrace.storage.engine import Engine, Tx
from tailrace.storage.sqlite import SqliteEngine
from tests.engine.conftest import NOW_MS
from tests.engine.tables import HOT, Hot
from tests.engine.test_rows import write
from tests.support import postgres


def got(engine: Engine, *names: str) -> list[int | None]:
    """What a new transaction finds."""
    tx = engine.begin(NOW_MS)
    found = [tx.get(HOT, name) for name in names]
    tx.rollback()
    return [row.value if row else None for row in found]


def committed(engine: Engine, *names: str) -> list[int | None]:
    with engine.reader() as reader:
        found = [reader.get(HOT, name) for name in names]
    return [row.value if row else None for row in found]


@pytest.fixture
def warm(engine: Engine) -> Engine:
    """a and b are committed and have been read."""
    write(engine, Hot("a", 1), Hot("b", 1))
    tx = engine.begin(NOW_MS)
    assert tx.get(HOT, "a") == Hot("a", 1)
    assert tx.get(HOT, "b") == Hot("b", 1)
    assert tx.get(HOT, "c") is None
    tx.keep()
    tx.flush()
    tx.commit()
    return engine


def change(tx: Tx) -> None:
    tx.put(HOT, Hot("a", 2))
    tx.delete(HOT, "b")
    tx.put(HOT, Hot("c", 2))


def test_a_commit_is_found_by_the_next_transaction(warm: Engine) -> None:
    tx = warm.begin(NOW_MS)
    change(tx)
    tx.keep()
    tx.flush()
    tx.commit()
    assert got(warm, "a", "b", "c") == committed(warm, "a", "b", "c") == [2, None, 2]


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("reads", [False, True])
def test_after_a_rollback(warm: Engine, flushed: bool, reads: bool) -> None:
    tx = warm.begin(NOW_MS)
    change(tx)
    tx.keep()
    if flushed:
        tx.flush()
    if reads:
        assert [tx.get(HOT, name) for name in "abc"] == [Hot("a", 2), None, Hot("c", 2)]
    tx.rollback()
    assert got(warm, "a", "b", "c") == committed(warm, "a", "b", "c") == [1, 1, None]


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("reads", [False, True])
def test_after_an_undo(warm: Engine, flushed: bool, reads: bool) -> None:
    tx = warm.begin(NOW_MS)
    change(tx)
    if flushed:
        list(tx.scan(HOT))
    if reads:
        assert [tx.get(HOT, name) for name in "abc"] == [Hot("a", 2), None, Hot("c", 2)]
    tx.undo()
    assert [tx.get(HOT, name) for name in "abc"] == [Hot("a", 1), Hot("b", 1), None]
    tx.keep()
    tx.flush()
    tx.commit()
    assert got(warm, "a", "b", "c") == committed(warm, "a", "b", "c") == [1, 1, None]


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_undo_over_what_an_earlier_command_kept(warm: Engine, ending: str) -> None:
    """The kept rows were flushed behind the undone command's savepoint; they are there, but not committed yet."""
    tx = warm.begin(NOW_MS)
    change(tx)
    tx.keep()
    tx.put(HOT, Hot("a", 3))
    tx.put(HOT, Hot("b", 3))
    list(tx.scan(HOT))
    assert tx.get(HOT, "a") == Hot("a", 3)
    tx.undo()
    assert [tx.get(HOT, name) for name in "abc"] == [Hot("a", 2), None, Hot("c", 2)]
    tx.keep()
    tx.flush()
    if ending == "commit":
        tx.commit()
        assert got(warm, "a", "b", "c") == committed(warm, "a", "b", "c") == [2, None, 2]
    else:
        tx.rollback()
        assert got(warm, "a", "b", "c") == committed(warm, "a", "b", "c") == [1, 1, None]


def test_a_row_read_inside_a_savepoint_is_not_remembered(warm: Engine) -> None:
    tx = warm.begin(NOW_MS)
    tx.put(HOT, Hot("d", 5))
    list(tx.scan(HOT))
    assert tx.get(HOT, "d") == Hot("d", 5)
    tx.undo()
    assert tx.get(HOT, "d") is None
    tx.flush()
    tx.commit()
    assert got(warm, "d") == [None]


def test_after_a_commit_that_failed(warm: Engine) -> None:
    """Whatever the engine cannot commit, it must not remember either."""
    tx: Any = warm.begin(NOW_MS)
    change(tx)
    tx.keep()
    tx.flush()
    assert tx.get(HOT, "a") == Hot("a", 2)
    mend = _break_commit(warm)
    with pytest.raises(Error):
        tx.commit()
    tx.rollback()
    mend()
    assert got(warm, "a", "b", "c") == committed(warm, "a", "b", "c") == [1, 1, None]


def _break_commit(engine: Any) -> Callable[[], None]:
    """Let the engine's COMMIT fail until the result is called. What that takes differs by engine: SQLite has a hook,
    PostgreSQL a trigger that is deferred."""
    if not isinstance(engine, SqliteEngine):
        postgres.refuse_commits(engine.url)
        return lambda: postgres.accept_commits(engine.url)
    engine.writer.set_commit_hook(lambda: True)
    return lambda: engine.writer.set_commit_hook(None)


def test_more_rows_than_are_remembered(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ROW_CACHE_MAX", 10)
    for start in range(0, 40, 8):
        write(engine, *[Hot(f"{n}", n) for n in range(start, start + 8)])
    assert got(engine, *[f"{n}" for n in range(40)]) == list(range(40))
    write(engine, *[Hot(f"{n}", -n) for n in range(30)])
    assert got(engine, *[f"{n}" for n in range(40)]) == [-n for n in range(30)] + list(range(30, 40))
